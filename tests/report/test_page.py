"""The page and its parts: well-formed, self-contained, escaped, and never a number that is none."""

import base64
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from navia.errors import InputError
from navia.report.bars import bars
from navia.report.clouds import Cloud, clouds
from navia.report.demo_page import DemoRow, DemoStory, answers, demo_page, limits, reading, running
from navia.report.labels import Box, ends_apart, place
from navia.report.lines import Series, lines
from navia.report.numbers import DASH, finite, shown, shown_alike, span, tick_labels, ticks
from navia.report.page import FOLDER, Cell, Column, PictureRow, Section, facts, page, pictures, png_uri, steps, table
from navia.report.scatter import Point, pareto, scatter
from navia.report.svg import COLOURS, colour, marker
from tests.report.made_up import IMAGES, row, story

NAN, INFINITY = float("nan"), float("inf")
EVIL = "<script>alert('x')</script>\"&"
VOID = {"meta", "link", "img", "br", "hr", "input"}


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
    """A page without our own style sheet and script, and only those: others that got in must stay to be found."""
    style, script = ((FOLDER / name).read_text() for name in ("page.css", "page.js"))
    return html.replace(f"<style>\n{style}</style>", "").replace(f"<script>\n{script}</script>", "")


# ---- document


def test_page_is_well_formed_and_complete() -> None:
    html = demo_page(story())
    parsed = Parsed(html)
    assert html.startswith("<!doctype html>")
    counts = Counter(tag for tag, _ in parsed.elements)
    assert (counts["html"], counts["head"], counts["body"], counts["main"], counts["h1"]) == (1, 1, 1, 1, 1)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in parsed.all("meta")
    assert counts["section"] == counts["h2"] == 6


def test_ids_are_unique_and_links_lead_to_them() -> None:
    parsed = Parsed(page("t", "l", [Section("same", ""), Section("same", ""), Section("other", "")]))
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids)) == 3
    assert [a["href"] for a in parsed.all("a")] == [f"#{i}" for i in ids]


def test_page_refers_to_no_other_file_or_host() -> None:
    html = demo_page(story())
    for tag, attributes in Parsed(html).elements:
        for name in ("src", "href", "action", "poster", "srcset", "xlink:href", "data"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")), f"<{tag} {name}={value[:40]}>"
    style, script = ((FOLDER / name).read_text() for name in ("page.css", "page.js"))
    assert "url(" not in style
    assert "@import" not in style
    for word in ("fetch(", "XMLHttpRequest", "import(", "innerHTML", "insertAdjacentHTML", "eval(", "</script", "WebSocket"):
        assert word not in script


def test_style_and_script_are_inline_and_end_where_they_should() -> None:
    html = page("t", "l", [])
    assert (FOLDER / "page.css").read_text() in html
    assert (FOLDER / "page.js").read_text() in html
    assert html.count("<script>") == html.count("</script>") == html.count("</style>") == 1


def test_blank_lines_part_the_lead() -> None:
    assert len(Parsed(page("t", "one\n\ntwo\n\n\n", [])).all("p", "lead")) == 2


# ---- escaping


def point(x: float, y: float, label: str, group: str = "g", **detail: str) -> Point:
    return Point(x, y, label, group, None, None, detail)


def evil_parts() -> dict[str, str]:
    picture = PictureRow(EVIL, [np.zeros((2, 2), np.uint8)], [f"{EVIL}\n{EVIL}"])
    points = [Point(1, 2, EVIL, EVIL, 1, 3, {EVIL: EVIL}), point(2, NAN, EVIL, EVIL), point(3, 4, "b", EVIL + "b")]
    return {
        "page": page(EVIL, EVIL, [Section(EVIL, "", EVIL)]),
        "table": table([Column(EVIL), Column(EVIL, True)], [[Cell(EVIL, EVIL, EVIL), Cell(1.0, EVIL, EVIL)]], EVIL),
        "text cell": table([Column(EVIL)], [[Cell(EVIL)]]),
        "scatter": scatter(points, EVIL, EVIL, EVIL),
        "nothing to draw": scatter([], EVIL, EVIL, EVIL),
        "clouds": clouds({EVIL: [Cloud(EVIL, [(1.0, 2.0, EVIL), (2.0, 2.0, "b")]), Cloud(EVIL, [])]}, [EVIL, "b"]),
        "lines": lines([Series(EVIL, [1, 2]), Series(EVIL, [NAN])], EVIL, EVIL, EVIL, [1, 2]),
        "bars": bars([EVIL, "b"], {EVIL: [1, NAN]}, EVIL, EVIL),
        "pictures": pictures([picture]),
        "facts": facts({EVIL: EVIL}, EVIL),
        "steps": steps([(EVIL, EVIL)]),
        "demo": demo_page(evil_story(picture)),
    }


def evil_story(picture: PictureRow) -> DemoStory:
    shares = {EVIL: 0.5}, {EVIL: (0.4, 0.6)}
    rows = [DemoRow(method, EVIL, *shares, 1.0, 1.0, {EVIL: [0.5]}, (0.4, 0.6)) for method in (EVIL, "none")]
    return DemoStory(EVIL, EVIL, EVIL, 10, 10, [picture], rows, {EVIL: EVIL}, [(EVIL, EVIL)])


@pytest.mark.parametrize("name", list(evil_parts()))
def test_every_text_is_escaped(name: str) -> None:
    html = body_of(evil_parts()[name])
    assert "<script" not in html.lower()
    parsed = Parsed(html)  # a quote that got out of its attribute would leave attributes that nobody made
    made = {"lang", "charset", "name", "content", "http-equiv", "rel", "href", "class", "id", "aria-label", "aria-hidden"}
    made |= {"aria-sort", "role", "tabindex", "scope", "disabled", "type", "src", "alt", "width", "height", "viewbox", "d"}
    made |= {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "transform"}
    for tag, attributes in parsed.elements:
        unknown = {key for key in attributes if not key.startswith("data-")} - made
        assert not unknown, f"<{tag}> has {unknown}"
    assert "alert('x')" in parsed.said() + "".join(value for _, a in parsed.elements for value in a.values())


def test_data_for_the_script_survives_escaping() -> None:
    (wide, _) = Parsed(scatter([point(1, 2, EVIL, **{EVIL: EVIL})], "x", "y", "t")).all("g", "point")
    assert json.loads(wide["data-tip"]) == {"head": EVIL, "rows": [[EVIL, EVIL]]}


# ---- table


def cells_of(html: str) -> list[list[str]]:
    """The texts of the body's cells."""
    rows = re.findall(r"<tr>(.*?)</tr>", html.split("<tbody>")[1], flags=re.S)
    return [[re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][ >].*?</t[hd]>", r)] for r in rows]


def test_headers_can_be_sorted_by() -> None:
    parsed = Parsed(table([Column("a"), Column("b", True, "high"), Column("c", True, "low")], []))
    heads = parsed.all("th")
    assert [h["aria-sort"] for h in heads] == ["none"] * 3
    assert [h["data-first"] for h in heads] == ["ascending", "descending", "ascending"]
    assert [h.get("class") for h in heads] == [None, "number", "number"]
    assert len(parsed.all("button")) == 3
    assert all(b["type"] == "button" for b in parsed.all("button"))


def test_rows_carry_what_is_sorted_by() -> None:
    parsed = Parsed(table([Column("a"), Column("b", True)], [[Cell("x", "shown"), Cell(0.123456)], [Cell("y"), Cell(NAN)]]))
    assert [a["data-key"] for a in parsed.all("th")[2:]] == ["x", "y"]
    assert [a["data-key"] for a in parsed.all("td")] == ["0.123456", ""]


@pytest.mark.parametrize("value", [None, NAN, INFINITY, -INFINITY, np.float32("nan")])
def test_missing_numbers_are_dashes_whatever_their_text_says(value: float | None) -> None:
    html = table([Column("a"), Column("b", True, "high")], [[Cell("x"), Cell(value, "nan %", "nan–nan")]])
    assert cells_of(html) == [["x", DASH]]
    assert "nan" not in html


def test_best_values_are_marked() -> None:
    rows = [[Cell("x"), Cell(0.5), Cell(3.0)], [Cell("y"), Cell(0.7), Cell(1.0)], [Cell("z"), Cell(NAN), Cell(2.0)]]
    html = table([Column("n"), Column("up", True, "high"), Column("down", True, "low")], rows)
    assert re.findall(r'<strong class="best">(.*?)</strong>', html) == ["0.700", "1.00"]
    assert "best" not in table([Column("n"), Column("up", True)], [r[:2] for r in rows])


def test_values_that_read_the_same_are_equally_good() -> None:
    rows = [[Cell(81.24, "81.2")], [Cell(81.21, "81.2")], [Cell(79.0, "79.0")]]
    assert table([Column("a", True, "high")], rows).count('class="best"') == 2
    assert "best" not in table([Column("a", True, "high")], rows[:2])  # a mark on all of them would say nothing


def test_numbers_of_a_column_have_the_same_decimals() -> None:
    html = table([Column("a", True)], [[Cell(0.41)], [Cell(12.0)], [Cell(3.456)], [Cell(None)]])
    assert cells_of(html) == [["0.4"], ["12.0"], ["3.5"], [DASH]]


def test_small_text_stands_beside_the_value() -> None:
    assert "81.2 <small>78–84</small>" in table([Column("a", True)], [[Cell(81.2, "81.2", "78–84")]])


def test_ragged_rows_are_refused() -> None:
    with pytest.raises(InputError, match="2 columns got a row of 1"):
        table([Column("a"), Column("b")], [[Cell("x")]])


# ---- numbers

NUMBERS = st.floats(-1e12, 1e12, allow_nan=False)


@given(NUMBERS, NUMBERS, st.integers(5, 10))
def test_ticks_are_round_even_and_inside(a: float, b: float, count: int) -> None:
    low, high = min(a, b), max(a, b)
    assume(high - low > max(1e-99, 1e-9 * max(abs(low), abs(high))))  # `span` gives no axis that is narrower
    values = ticks(low, high, count)
    assert 2 <= len(values) <= count + 1
    assert low <= values[0] < values[-1] <= high
    step = (values[-1] - values[0]) / (len(values) - 1)
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-6)
    tolerance = 1e-6 + 1e-15 * max(abs(low), abs(high)) / step * 10
    assert min(abs(mantissa - nice) for nice in (1, 2, 5)) < tolerance
    for value, after in itertools.pairwise(values):
        assert after - value == pytest.approx(step, rel=1e-5)
    assert values[0] - low < step * (1 + 1e-6)  # none was left out at either end
    assert high - values[-1] < step * (1 + 1e-6)


@given(NUMBERS, NUMBERS)
def test_tick_labels_are_distinct_short_and_right(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    assume(high - low > max(1e-99, 1e-3 * max(abs(low), abs(high))))  # `span` gives no axis that is narrower
    values = ticks(low, high)
    labels = tick_labels(values)
    assert len(set(labels)) == len(values)
    for value, label in zip(values, labels, strict=True):
        assert float(label.replace("−", "-").replace(",", "")) == pytest.approx(value, rel=1e-9)
        assert len(label) <= 13


def test_ticks_are_the_decimals_they_stand_for() -> None:
    assert ticks(0, 0.55, 6) == [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert tick_labels([0, 0.1, 0.2]) == ["0.0", "0.1", "0.2"]
    assert tick_labels([-10, 0, 10]) == ["−10", "0", "10"]


@given(st.lists(NUMBERS, min_size=1), st.booleans())
def test_an_axis_holds_all_values_and_does_not_invent_negative_ones(values: list[float], from_zero: bool) -> None:
    low, high = span(values, from_zero)
    assert low < high
    assert low <= min(values) <= max(values) <= high
    assert low >= 0 or min(values) < 0
    assert not from_zero or low <= 0 <= high
    assert len(ticks(low, high)) >= 2


@given(st.floats())
def test_numbers_are_short_and_never_nan(value: float) -> None:
    text = shown(value)
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
def test_shown_numbers(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_numbers_below_each_other() -> None:
    assert shown_alike([0.0187, 0.0139]) == ["0.0187", "0.0139"]
    assert shown_alike([0.003, 120.0]) == ["0.003", "120.000"]  # the smallest must not become 0
    assert shown_alike([3, 1200]) == ["3", "1,200"]
    assert shown_alike([]) == []


# ---- points


def test_each_point_is_drawn_named_and_readable() -> None:
    points = [
        Point(1.5, 50.0, "none", "none", 45, 55, {"cost": "1.5", "time": "1 ms"}),
        point(2, 70, "tent", "tent", time="3 ms"),
    ]
    html = scatter(points, "cost", "accuracy", "Title")
    parsed = Parsed(html)
    assert len(parsed.all("g", "point")) == 4  # two layouts
    assert len(parsed.all("path", "whisker")) == 2
    said = [a["aria-label"] for a in parsed.all("g", "point")[:2]]
    assert said == ["none. cost: 1.5; time: 1 ms", "tent. time: 3 ms"]
    assert parsed.said("title").count("none. cost") == 2
    assert parsed.said("text").count("tent") == 2
    assert parsed.said("li") == " ".join(
        ["front: nothing further left is higher"] * 2
    )  # each point is named where it stands


def test_groups_differ_in_colour_and_shape() -> None:
    looks = {(colour(i), marker(i, 0, 0)) for i in range(42)}
    assert len(looks) == 42
    assert len({marker(i, 0, 0) for i in range(6)}) == 6


def test_a_crowd_gets_a_legend() -> None:
    points = [point(1, 50 + 0.01 * i, f"run {i}", f"group {i % 3}") for i in range(30)]
    html = scatter(points, "x", "y", "t")
    assert Parsed(html).said("li").count("group 2") == 2


def test_points_without_a_value_are_named_below() -> None:
    html = scatter([point(1, 2, "good"), point(NAN, 2, "bad"), point(1, INFINITY, "worse")], "x", "y", "t")
    assert len(Parsed(html).all("g", "point")) == 2
    assert "for want of a value: bad, worse." in html
    assert "nan" not in html.lower()
    assert "No values." in scatter([point(NAN, 2, "bad")], "x", "y", "t")


def test_the_front_is_what_nothing_beats() -> None:
    points = [point(x, y, f"{x} {y}") for x, y in ((3, 9), (1, 5), (2, 4), (2, 7), (4, 9), (1, 3))]
    assert [(p.x, p.y) for p in pareto(points)] == [(1, 5), (2, 7), (3, 9)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1))
def test_front_against_its_definition(pairs: list[tuple[int, int]]) -> None:
    front = {(p.x, p.y) for p in pareto([point(x, y, "") for x, y in pairs])}
    beaten = {(x, y) for x, y in pairs if any((u <= x and v >= y) and (u, v) != (x, y) for u, v in pairs)}
    assert front == set(pairs) - beaten


@given(st.lists(st.tuples(st.floats(20, 680), st.floats(40, 340), st.text("abc", min_size=1, max_size=15)), max_size=15))
def test_names_touch_neither_marks_nor_names(entries: list[tuple[float, float, str]]) -> None:
    marks = [Box(x, y, 7, y - 12, y + 12) for x, y, _ in entries]
    spots = place([name for _, _, name in entries], marks, (10, 20, 700, 360))
    boxes = [(m.x - 7, m.top, m.x + 7, m.bottom) for m in marks]
    for spot, (_, _, name) in zip(spots, entries, strict=True):
        if spot is None:
            continue
        left = spot.x - {"start": 0, "middle": 0.5, "end": 1}[spot.anchor] * 6.8 * len(name)
        box = (left, spot.y - 11, left + 6.8 * len(name), spot.y + 3)
        assert all(box[2] <= o[0] or o[2] <= box[0] or box[3] <= o[1] or o[3] <= box[1] for o in boxes)
        boxes.append(box)


def test_a_lone_point_is_named() -> None:
    assert place(["name"], [Box(100, 100, 7, 90, 110)], (0, 0, 300, 300)) == [(111, 104, "start")]


@given(st.dictionaries(st.integers(0, 20), st.floats(0, 300), max_size=12))
def test_names_at_line_ends_keep_their_order_and_distance(heights: dict[int, float]) -> None:
    moved = ends_apart(heights, 14, 0, 300)
    order = sorted(heights, key=lambda key: heights[key])
    assert all(moved[b] - moved[a] >= 14 - 1e-9 for a, b in itertools.pairwise(order))
    assert all(-1e-9 <= y <= 300 for y in moved.values())


# ---- lines and bars


def readout(html: str) -> dict[str, Any]:
    return json.loads(next(a["data-readout"] for a in Parsed(html).all("svg", "plot")))


def test_lines_read_out_all_series_and_leave_gaps() -> None:
    html = lines([Series("a", [1.0, NAN, 3.0, 4.0]), Series("b", [2.0, 2.5])], "batch", "y", "t", [1, 2, 3, 4])
    data = readout(html)
    assert data["heads"] == ["batch: 1", "batch: 2", "batch: 3", "batch: 4"]
    assert [row["text"] for row in data["rows"]] == [["1.00", DASH, "3.00", "4.00"], ["2.00", "2.50", DASH, DASH]]
    line = next(a["d"] for a in Parsed(html).all("path", "line"))
    assert line.count("M") == 2  # a new stretch after the gap
    assert "nan" not in html.lower()


def test_lines_without_gaps_go_on_to_their_next_value() -> None:
    html = lines(
        [Series("a", [1.0, NAN, 3.0], gaps=False), Series("b", [NAN, 2.0, NAN], gaps=False)], "x", "y", "t", [1, 2, 3]
    )
    first, alone = [a["d"] for a in Parsed(html).all("path", "line")][:2]
    assert (first.count("M"), first.count("L")) == (1, 1)
    assert (alone.count("M"), alone.count("L")) == (1, 0)
    assert readout(html)["rows"][0]["text"] == ["1.00", DASH, "3.00"]


def test_lines_over_given_places() -> None:
    assert readout(lines([Series("a", [1, 2])], "images", "y", "t", [32, 48.5]))["heads"] == ["images: 32", "images: 48.5"]
    for wrong in ([1.0], [2.0, 1.0], [1.0, NAN]):
        with pytest.raises(InputError, match="x must be finite, rise, and hold 2 values"):
            lines([Series("a", [1, 2])], "x", "y", "t", wrong)


def test_lines_without_values() -> None:
    assert "No values." in lines([], "x", "y", "t", [])
    assert "No values." in lines([Series("a", [NAN])], "x", "y", "t", [1])
    assert "for want of values: b." in lines([Series("a", [1.0]), Series("b", [])], "x", "y", "t", [1])


def test_bars_stand_on_zero_and_are_as_high_as_their_values() -> None:
    html = bars(["g", "h"], {"a": [10, 20], "b": [-5, NAN]}, "y", "t")
    parsed = Parsed(html)
    boxes = [(float(a["y"]), float(a["height"])) for a in parsed.all("rect", "bar")[:3]]
    (ten, twenty, minus) = boxes
    assert twenty[1] == pytest.approx(2 * ten[1], abs=0.2)
    assert minus[1] == pytest.approx(ten[1] / 2, abs=0.2)
    assert ten[0] + ten[1] == pytest.approx(twenty[0] + twenty[1], abs=0.2)
    assert minus[0] == pytest.approx(ten[0] + ten[1], abs=0.2)  # hangs where the others stand
    assert "for want of a value: b (h)." in html
    assert [row["text"] for row in readout(html)["rows"]] == [["10.0", "20.0"], ["−5.00", DASH]]


def test_bars_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="takes 2 values, and 'a' has 1"):
        bars(["g", "h"], {"a": [1]}, "y", "t")
    assert "No values." in bars([], {}, "y", "t")


def points_of(values: list[float]) -> list[Point]:
    pairs = zip(values, values[::-1], strict=True)
    return [Point(x, y, f"p{i}", f"g{i}", y - 1, y + 1, {}) for i, (x, y) in enumerate(pairs)]


DRAWINGS: dict[str, Callable[[list[float]], str]] = {
    "scatter": lambda values: scatter(points_of(values), "x", "y", "t"),
    "lines": lambda values: lines(
        [Series("a", values), Series("b", values[::-1], gaps=False)], "x", "y", "t", range(len(values))
    ),
    "bars": lambda values: bars([f"group {i}" for i in range(len(values))], {"a": values, "b": values[::-1]}, "y", "t"),
}


@pytest.mark.parametrize("kind", DRAWINGS)
@given(values=st.lists(st.one_of(st.floats(), st.floats(0, 100)), min_size=1, max_size=8))
def test_any_numbers_can_be_drawn_inside_the_picture(kind: str, values: list[float]) -> None:
    html = DRAWINGS[kind](values)
    assert not re.search(r"\b(nan|inf)\b", html, flags=re.I)
    for attributes in [a for tag, a in Parsed(html).elements if tag in ("line", "circle", "rect", "text")]:
        for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy"):
            if name in attributes:
                assert -1 <= float(attributes[name]) <= 800


# ---- pictures, facts, steps


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_pictures_are_inlined_to_the_bit(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    (attributes,) = Parsed(pictures([PictureRow("row", [image], ["caption"])])).all("img")
    assert (attributes["width"], attributes["height"], attributes["alt"]) == ("7", "5", "row")
    data = base64.b64decode(attributes["src"].removeprefix("data:image/png;base64,"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), image)


def test_only_small_pictures_are_pixelated() -> None:
    images = [np.zeros((28, 28), np.uint8), np.zeros((224, 224, 3), np.uint8)]
    parsed = Parsed(pictures([PictureRow("row", images, ["a", "b\nc"])]))
    assert [a.get("class") for a in parsed.all("img")] == ["pixels", None]
    assert parsed.said("span") == "a b c"


@pytest.mark.parametrize(
    "image", [np.zeros((2, 2)), np.zeros((2, 2, 4), np.uint8), np.zeros(4, np.uint8), np.zeros((0, 2), np.uint8)]
)
def test_other_arrays_are_no_pictures(image: np.ndarray) -> None:
    with pytest.raises(InputError, match="a picture is uint8"):
        png_uri(image)
    with pytest.raises(InputError, match="1 images, 0 captions"):
        pictures([PictureRow("row", [image], [])])


def test_facts_and_steps() -> None:
    parsed = Parsed(facts({"seed": "0", "batch": "32"}) + steps([("Do this.", "navia demo")]))
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
    series = [colours[f"c{i}"] for i in range(COLOURS)]
    assert min(contrast(c, colours["paper"]) for c in series) >= 3
    assert contrast(colours["ink"], colours["paper"]) >= 7
    assert contrast(colours["quiet"], colours["paper"]) >= 4.5
    for name, sight in SIGHT.items():
        seen = [lab(sight @ linear(c)) for c in series]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15, name


# ---- the demonstration


def test_demo_table_holds_every_row_and_domain() -> None:
    html = demo_page(story())
    rows = cells_of(html)
    assert len(rows) == 5
    assert rows[0] == ["none no reduction", "52.0 44.6–59.4", "31.0 24.2–37.8", "41.5 36.5–46.5", "18.7", "0.41"]
    assert Parsed(html).said("button").replace("\N{NO-BREAK SPACE}", " ") == (
        "method gaussian noise, % low contrast, % mean, % MMACs/image ms/image"
    )


def test_demo_says_what_can_be_concluded() -> None:
    assert "176 images per shift in batches of 32" in limits(story())
    assert "up to 7 points to each side" in limits(story())
    assert "One model and two shifts" in limits(story())
    verdicts = reading(story())[1]
    settled = "better than no adaptation: align, align + tome:2 and navia + tome:2; not settled by these images: tent."
    assert verdicts == f"Gaussian noise: {settled} Low contrast: {settled}"


def test_demo_calls_worse_runs_worse() -> None:
    rows = [row("none", "none", (0.5, 0.5), 1, 1), row("tent", "none", (0.2, 0.5), 1, 1)]
    made = DemoStory("m", "t", "l", IMAGES, 32, [], rows)
    assert reading(made)[1] == "Gaussian noise: worse: tent. Low contrast: not settled by these images: tent."
    assert len(reading(DemoStory("m", "t", "l", IMAGES, 32, [], rows[1:]))) == 1  # nothing to compare with


def test_demo_leaves_out_what_it_was_not_given() -> None:
    parsed = Parsed(demo_page(DemoStory("m", "t", "l", IMAGES, 32, [], [row("none", "none", (0.5, 0.5), 17.6, 1)])))
    assert parsed.said("h2") == "Accuracy, cost and time Accuracy against cost Accuracy as the stream goes on Protocol"
    assert "GMACs/image" in parsed.said("button")


def test_demo_with_missing_numbers() -> None:
    broken = DemoRow("tent", "none", {"gaussian noise": NAN}, {"gaussian noise": (NAN, NAN)}, NAN, NAN, {})
    made = DemoStory("m", "t", "l", IMAGES, 32, [], [row("none", "none", (0.5, 0.5), 1, 1), broken])
    html = body_of(demo_page(made))
    assert cells_of(html)[1] == ["tent no reduction", *[DASH] * 5]
    assert "for want of a value: tent." in html
    assert not re.search(r"\bnan\b", html, flags=re.I)


def test_running_accuracy_weighs_batches_by_their_images() -> None:
    assert running([0.5, 1.0, 0.0], 80, 32) == pytest.approx([50, 75, 100 * 48 / 80])
    assert running([], 80, 32) == []


def test_captions_of_examples() -> None:
    assert answers("bag", "coat", "bag") == "bag\nbefore ✗ coat\nafter ✓ bag"
