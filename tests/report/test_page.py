"""The page and its parts: well-formed, self-contained, escaped, and never a number that is none."""

import base64
import gzip
import io
import itertools
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from navia.errors import InputError
from navia.report.charts import Chart, Point, Series
from navia.report.figures import COLOURS
from navia.report.formatting import DASH, finite, format_column, format_number
from navia.report.images import ImageRow
from navia.report.page import FOLDER, Section, _charts_part, _image_part, cell, image_uri, render, report_page, table_part
from navia.report.tables import tabulate

NAN, INFINITY = float("nan"), float("inf")
EVIL = "<script>alert('x')</script>\"&"
VOID = {"meta", "link", "img", "br", "hr", "input"}
ROOT = Path(__file__).parents[2]


class Parsed(HTMLParser):
    """All elements of a text with their attributes and their own text; fails where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        assert len(attrs) == len({name for name, _ in attrs}), f"an attribute twice in <{tag}>"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str, kind: str = "") -> list[dict[str, str]]:
        return [a for name, a in self.elements if name == tag and (not kind or kind in a.get("class", "").split())]

    def said(self, *tags: str) -> str:
        return " ".join(text for tag, text in self.texts if tag in tags or not tags)


def body_of(html: str) -> str:
    """A page without our own style sheet and scripts, and only those: others that got in must stay to be found."""
    for name in ("page.css", "echarts.min.js", "page.js"):
        tag = "style" if name.endswith("css") else "script"
        html = html.replace(f"<{tag}>\n{(FOLDER / name).read_text(encoding='utf-8')}</{tag}>", "")
    return html


def charts_of(html: str) -> list[dict[str, Any]]:
    """The charts that the page gives to its script."""
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, flags=re.S)
    return json.loads(found[1]) if found else []


def rows_of(html: str) -> list[dict[str, Any]]:
    """The rows of the download."""
    (uri,) = re.findall(r'href="data:application/gzip;base64,([^"]+)"', html)
    return [json.loads(line) for line in gzip.decompress(base64.b64decode(uri)).decode().splitlines()]


def page(*parts: dict[str, Any], note: str = "") -> str:
    return render("t", "l", [Section("s", parts, note)])


def chart(kind: Any = "line", *series: Series) -> Chart:
    return Chart(kind, "title", "x", "y", series or [Series("a", [Point(1, 2, 1, 3, "p", {"k": "v"}), Point(2, 3)])])


# ---- document


def test_page_is_well_formed_and_complete() -> None:
    html = page(_charts_part([chart()]), table_part([("a", "text")], [[cell("x")]]))
    parsed = Parsed(html)
    assert html.startswith("<!doctype html>")
    counts = Counter(tag for tag, _ in parsed.elements)
    assert [counts[tag] for tag in ("html", "head", "body", "main", "h1", "section", "h2")] == [1] * 7
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in parsed.all("meta")


def test_ids_are_unique_and_links_lead_to_them() -> None:
    parsed = Parsed(render("t", "l", [Section("same", []), Section("same", []), Section("other", [])]))
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids)) == 3
    assert [a["href"] for a in parsed.all("a")] == [f"#{i}" for i in ids]


def test_page_refers_to_no_other_file_or_host() -> None:
    html = page(_charts_part([chart()]), _image_part(ImageRow("r", [np.zeros((2, 2), np.uint8)], ["c"])))
    for tag, attributes in Parsed(html).elements:
        for name in ("src", "href", "action", "poster", "srcset", "xlink:href", "data"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")), f"<{tag} {name}={value[:40]}>"
    assert "default-src 'none'" in html
    style, script, library = ((FOLDER / name).read_text() for name in ("page.css", "page.js", "echarts.min.js"))
    assert "url(" not in style
    assert "@import" not in style
    for word in ("fetch(", "XMLHttpRequest", "import(", "innerHTML", "eval(", "</script", "WebSocket"):
        assert word not in script
    assert "</script" not in library


def test_the_library_has_its_licence_and_its_recipe_beside_it() -> None:
    assert "Apache License" in (FOLDER / "echarts.LICENSE").read_text()
    recipe = (FOLDER / "echarts.build.md").read_text()
    assert "echarts 6" in recipe
    assert "esbuild" in recipe


def test_a_page_without_charts_does_not_carry_the_library() -> None:
    assert len(page()) < 50_000 < len(page(_charts_part([chart()])))


def test_blank_lines_part_the_lead() -> None:
    assert len(Parsed(render("t", "one\n\ntwo\n\n\n", [])).all("p", "lead")) == 2


def test_the_projects_own_rows_make_a_page_below_2_mb() -> None:
    rows = [json.loads(line) for line in (ROOT / "docs" / "assets" / "results.jsonl").read_text().splitlines()]
    specs = [json.loads(path.read_text()) for path in (ROOT / "docs" / "assets" / "specs").glob("*.json")]
    traces = {row["key"]: {"right": [9] * 30, "images": [64] * 30, "predicted": [1] * 1000} for row in rows}
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    images = [ImageRow(f"corruption {i}", [noise] * 5, ["a"] * 5) for i in range(16)]
    html = report_page(tabulate(rows, specs=specs, traces=traces), traces, (images, ""))
    assert len(rows) == 320
    assert len(html.encode()) - 80 * len(image_uri(noise)) < 1_400_000  # pure noise is the largest of all images
    found = {row["key"]: row for row in rows_of(html)}
    assert found == {row["key"]: {**row, "label": found[row["key"]]["label"]} for row in rows}  # labels are the specs'


# ---- escaping


@pytest.mark.parametrize(
    "part",
    [
        table_part([(EVIL, "text"), (EVIL, "low")], [[cell(EVIL, EVIL, EVIL), cell(1.0, EVIL, EVIL)]], EVIL),
        _charts_part([Chart("scatter", EVIL, EVIL, EVIL, [Series(EVIL, [Point(1, 2, 1, 3, EVIL, {EVIL: EVIL})])])], EVIL),
        _charts_part([Chart("map", EVIL, "", "", [Series(EVIL, [Point(1, 2, name=EVIL)])], group=EVIL)]),
        _image_part(ImageRow(EVIL, [np.zeros((2, 2), np.uint8)], [f"{EVIL}\n{EVIL}"])),
        {"kind": "facts", "title": EVIL, "items": {EVIL: EVIL}},
        {"kind": "steps", "items": [(EVIL, EVIL)]},
        {"kind": "list", "items": [EVIL]},
        {"kind": "text", "text": EVIL},
        {"kind": "heading", "text": EVIL},
        {"kind": "note", "text": EVIL},
    ],
    ids=lambda part: part["kind"],
)
def test_every_text_is_escaped(part: dict[str, Any]) -> None:
    html = body_of(render(EVIL, EVIL, [Section(EVIL, [part], EVIL)]))
    data = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', html, flags=re.S)
    assert all("<" not in text for text in data)
    html = re.sub(r'<script type="application/json" id="charts">.*?</script>', "", html, flags=re.S)
    assert "<script" not in html.lower()
    parsed = Parsed(html)  # a quote that got out of its attribute would leave attributes that nobody made
    made = {"lang", "charset", "name", "content", "http-equiv", "rel", "href", "class", "id", "aria-label", "role", "scope"}
    made |= {"aria-sort", "tabindex", "disabled", "type", "src", "alt", "width", "height"}
    for tag, attributes in parsed.elements:
        unknown = {key for key in attributes if not key.startswith("data-")} - made
        assert not unknown, f"<{tag}> has {unknown}"
    assert "alert('x')" in parsed.said()


def test_data_for_the_script_survives_escaping() -> None:
    (found,) = charts_of(page(_charts_part([Chart("scatter", EVIL, "x", "y", [Series(EVIL, [Point(1, 2, name=EVIL)])])])))
    assert found["title"] == EVIL
    assert found["series"] == [{"name": EVIL, "points": [[1.0, 2.0, None, None, EVIL]]}]


# ---- table


def cells_of(html: str) -> list[list[str]]:
    """The texts of the body's cells."""
    rows = re.findall(r"<tr>(.*?)</tr>", html.split("<tbody>")[1].split("</tbody>")[0], flags=re.S)
    return [[re.sub(r"<[^>]+>", "", text) for text in re.findall(r"<t[hd][ >].*?</t[hd]>", r)] for r in rows]


def test_headers_can_be_sorted_by() -> None:
    parsed = Parsed(page(table_part([("a", "text"), ("b", "high"), ("c", "low")], [])))
    heads = parsed.all("th")
    assert [h["aria-sort"] for h in heads] == ["none"] * 3
    assert [h["data-first"] for h in heads] == ["ascending", "descending", "ascending"]
    assert [h.get("class") for h in heads] == [None, "number", "number"]
    assert [b["type"] for b in parsed.all("button")] == ["button"] * 3


def test_rows_carry_what_is_sorted_by() -> None:
    rows = [[cell("x", "shown"), cell(0.123456, "0.1")], [cell("y"), cell(NAN)]]
    parsed = Parsed(page(table_part([("a", "text"), ("b", "low")], rows)))
    assert [a.get("data-key") for a in parsed.all("th")[2:]] == ["x", None]  # where there is none, the text is the key
    assert [a["data-key"] for a in parsed.all("td")] == ["0.123456", ""]


@pytest.mark.parametrize("value", [None, NAN, INFINITY, -INFINITY, np.float32("nan")])
def test_missing_numbers_are_dashes_whatever_their_text_says(value: float | None) -> None:
    html = body_of(page(table_part([("a", "text"), ("b", "high")], [[cell("x"), cell(value, "nan %", "nan–nan")]])))
    assert cells_of(html) == [["x", DASH]]
    assert "nan" not in html


def test_the_best_is_bold_and_small_text_stands_beside_the_value() -> None:
    html = page(table_part([("a", "high")], [[cell(81.2, "81.2", "78–84", mark=True)]]))
    assert '<strong class="best">81.2</strong> <small>78–84</small>' in html


def test_ragged_rows_are_refused() -> None:
    with pytest.raises(InputError, match="2 columns got a row of 1"):
        table_part([("a", "text"), ("b", "text")], [[cell("x")]])


# ---- numbers


@given(st.floats())
def test_numbers_are_short_and_never_nan(value: float) -> None:
    text = format_number(value)
    assert len(text.lstrip("−")) <= 11
    assert (text == DASH) == (finite(value) is None)
    if text != DASH:
        assert float(text.replace("−", "-").replace(",", "")) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.41, "0.410"),
        (9.999, "10.0"),
        (81.249, "81.2"),
        (1234.5, "1,234"),
        (-2.5, "−2.50"),
        (7, "7"),
        (None, DASH),
    ],
)
def test_formatted_numbers(value: float | None, text: str) -> None:
    assert format_number(value) == text


def test_numbers_below_each_other() -> None:
    assert format_column([0.0187, 0.0139]) == ["0.0187", "0.0139"]
    assert format_column([0.003, 120.0]) == ["0.003", "120.000"]  # the smallest must not become 0
    assert format_column([3, 1200]) == ["3", "1,200"]
    assert format_column([]) == []
    assert format_column([0.41, 12.0, 3.456, None]) == ["0.4", "12.0", "3.5", DASH]


# ---- images, facts, steps


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_small_images_are_inlined_to_the_bit(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    (attributes,) = Parsed(page(_image_part(ImageRow("row", [image], ["caption"])))).all("img")
    assert (attributes["width"], attributes["height"], attributes["alt"]) == ("7", "5", "row: caption")
    data = base64.b64decode(attributes["src"].removeprefix("data:image/png;base64,"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), image)


def test_only_small_images_are_pixelated() -> None:
    images = [np.zeros((28, 28), np.uint8), np.zeros((224, 224, 3), np.uint8)]
    parsed = Parsed(page(_image_part(ImageRow("row", images, ["a", "b\nc"]))))
    assert [a.get("class") for a in parsed.all("img")] == ["pixels", None]
    assert [a["src"][:15] for a in parsed.all("img")] == ["data:image/png;", "data:image/jpeg"]
    assert parsed.said("span") == "a b c"


@pytest.mark.parametrize(
    "image", [np.zeros((2, 2)), np.zeros((2, 2, 4), np.uint8), np.zeros(4, np.uint8), np.zeros((0, 2), np.uint8)]
)
def test_other_arrays_are_no_images(image: np.ndarray) -> None:
    with pytest.raises(InputError, match="an image is uint8"):
        image_uri(image)
    with pytest.raises(InputError, match="1 images, 0 captions"):
        _image_part(ImageRow("row", [image], []))


def test_facts_and_steps() -> None:
    facts = {"kind": "facts", "title": "all", "items": {"seed": "0", "batch": "32"}}
    parsed = Parsed(page(facts, {"kind": "steps", "items": [("Do this.", "navia demo")]}))
    assert (parsed.said("dt"), parsed.said("dd"), parsed.said("code")) == ("seed batch", "0 32", "navia demo")
    assert len(parsed.all("details")) == 1


# ---- colours: the claims of the style sheet

SIGHT = {  # Machado et al. 2009, full deficiency, on linear RGB
    "usual": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}


def linear(code: str) -> np.ndarray:
    value = np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(code) @ [0.2126, 0.7152, 0.0722]) for code in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    f = np.cbrt(xyz / [0.9505, 1, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def palettes() -> list[dict[str, str]]:
    """The variables of each :root block of the style sheet."""
    blocks = re.findall(r":root \{(.*?)\}", (FOLDER / "page.css").read_text(), flags=re.S)
    return [dict(re.findall(r"--([\w]+): (#[0-9a-f]{6})", block)) for block in blocks]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_are_told_apart_from_the_paper_and_each_other(mode: int) -> None:
    colours = palettes()[mode]
    series = [colours[f"c{i}"] for i in range(len(COLOURS))]
    assert min(contrast(c, colours["paper"]) for c in series) >= 3
    assert contrast(colours["ink"], colours["paper"]) >= 7
    assert contrast(colours["quiet"], colours["paper"]) >= 4.5
    for name, sight in SIGHT.items():
        seen = [lab(sight @ linear(c)) for c in series]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15, name
