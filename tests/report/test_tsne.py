"""Panels by t-SNE in the report: files, page, and which rows they are taken from."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from navia.bench.grid import run_grid
from navia.bench.spec import parse_spec
from navia.bench.store import Store
from navia.report.figures import figures
from navia.report.index_page import index_page
from navia.report.results import Table, tabulate, tsne_pictures
from tests.report.test_page import Parsed
from tests.report.test_results import made_up, made_up_traces, run_command, save_figures

pytestmark = pytest.mark.slow

SPEC = """
models: {name: embedded}
data: {path: embedded, corruptions: contrast, severity: 1, images: 72}
source: {images: 16}
runs: {method: [none, navia], reduce: tome:8, adapt_for: 2, tsne: {blocks: [3, 6, 11]}}
batch: 12
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tsne")
    list(run_grid(parse_spec(SPEC, "test.yaml"), Store(folder)))
    result = run_command(str(folder))
    assert result.exit_code == 0, result.output
    return folder


def test_both_files_have_a_row_per_run_and_a_column_per_block(real: Path) -> None:
    assert (real / "report" / "table1-tsne.png").stat().st_size > 10_000
    drawing = (real / "report" / "table1-tsne.svg").read_text()
    for row in Store(real).rows():
        trace = Store(real).trace(row.key)["tsne"]
        for panel in trace["panels"]:
            assert f"block {panel['block']}: 5-NN accuracy {100 * panel['neighbours']:.0f} %" in drawing
        assert all(f">{name}<" in drawing for name in trace["names"])
    assert len(re.findall(r'<g id="axes_\d+">', drawing)) == 2 * 3
    assert "no adaptation + tome:8," in drawing
    assert "navia + tome:8," in drawing


def test_the_page_has_every_point_with_its_class_and_says_what_the_picture_cannot(real: Path) -> None:
    html = (real / "report" / "index.html").read_text()
    section = html[html.index("What the blocks tell apart</h2>") :].partition("</section>")[0]
    parsed = Parsed(f"<div><h2>{section}</div>")
    assert len(parsed.all("svg", "plot")) == 2 * 3
    traces = [Store(real).trace(row.key)["tsne"] for row in Store(real).rows()]
    wanted = [trace["names"][place] for trace in traces for _ in trace["panels"] for place in trace["labels"]]
    assert [json.loads(point["data-tip"])["head"] for point in parsed.all("g", "point")] == wanted
    assert len(parsed.all("li")) == len(traces[0]["names"])
    said = parsed.said()
    assert "t-SNE shows which pictures are neighbours. It cannot show how far groups lie apart" in said
    for trace in traces:
        for panel in trace["panels"]:
            assert f"block {panel['block']}: 5-NN accuracy {100 * panel['neighbours']:.0f} %" in said


def test_a_class_has_one_colour_and_one_shape_in_all_panels_and_no_other_class_both(real: Path) -> None:
    html = (real / "report" / "index.html").read_text()
    found = re.findall(
        r'<g class="point (c\d)" data-tip="[^"]*"><title>([^<]+)</title>.*?d="M[^a-zA-Z]*([a-zA-Z][^"]*)"', html
    )
    signs: dict[str, set[tuple[str, str]]] = {}
    for kind, name, drawing in found:
        signs.setdefault(name, set()).add((kind, re.sub(r"[^a-zA-Z]", "", drawing)))
    assert len(signs) >= 6
    assert all(len(own) == 1 for own in signs.values())
    assert len({sign for own in signs.values() for sign in own}) == len(signs)


# ---- invented traces


def view(names: tuple[str, ...] = ("cat", "dog"), blocks: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    labels = [i % len(names) for i in range(6)]
    panels = [{"block": b, "neighbours": 0.5, "points": [[i, b + i * i] for i in range(6)]} for b in blocks]
    return {"classes": list(range(len(names))), "names": list(names), "labels": labels, "panels": panels}


def seen(rows: list[dict[str, Any]], views: dict[int, dict[str, Any]]) -> tuple[Table, dict[str, Any]]:
    """The rows' only table and their traces, some with a view."""
    traces = made_up_traces(rows)
    for number, what in views.items():
        traces[rows[number]["key"]]["tsne"] = what
    (table,) = tabulate(rows).tables
    return table, traces


def test_rows_without_a_view_have_no_figure_and_no_section() -> None:
    table, traces = seen([made_up("align", adapt_for=2), made_up("navia", adapt_for=2)], {})
    assert tsne_pictures(table, traces) == []
    assert "tsne" not in dict(figures(table, traces))
    assert "What the blocks tell apart" not in index_page(tabulate(table.rows), traces)


def test_the_seed_that_most_lines_have_is_shown_and_every_domain_has_its_own(tmp_path: Path) -> None:
    rows = [made_up(m, d, adapt_for=2, seed=s) for d in ("fog", "snow") for m in ("align", "navia") for s in (0, 1)]
    table, traces = seen(rows, {0: view(), 1: view(), 3: view(), 4: view(("cat", "cow"), (1, 5)), 6: view()})
    snow, fog = tsne_pictures(table, traces)
    assert (fog.domain, fog.seed, list(fog.panels)) == ("fog", 1, ["align, 2 batches", "navia, 2 batches"])
    assert (snow.domain, snow.seed) == ("snow", 0)
    assert (snow.classes, snow.blocks) == (("cat", "cow", "dog"), (0, 1, 5))
    assert list(snow.panels["align, 2 batches"]) == [1, 5]
    names = {path.stem for path in save_figures(tabulate(rows), traces, tmp_path)}
    assert {"table1-tsne-fog", "table1-tsne-snow"} <= names
    html = index_page(tabulate(rows), traces)
    assert "Fog: 6 pictures of 2 classes, seed 1." in html
    assert len(Parsed(html).all("g", "point")) == 6 * (2 + 2 + 2 + 2)
    table, traces = seen(rows[:4], {0: view()})
    assert {path.stem for path in save_figures(tabulate(rows[:4]), traces, tmp_path)} >= {"table1-tsne"}
    assert not list(tmp_path.glob("table1-tsne-*"))  # of the earlier report


def test_the_same_run_without_a_view_does_not_hide_the_one_that_has_it() -> None:
    looked, plain = made_up("navia", adapt_for=2, tsne={"blocks": [0, 1]}), made_up("navia", adapt_for=2)
    looked["key"] += " with a view"
    for rows in ([looked, plain], [plain, looked]):
        table, traces = seen(rows, {rows.index(looked): view()})
        assert len(tsne_pictures(table, traces)) == 1
        assert table.repeated == ()


def test_what_could_not_be_laid_out_is_an_empty_panel(tmp_path: Path) -> None:
    broken = view()
    broken["panels"][1] |= {"points": None, "neighbours": None}
    table, traces = seen([made_up("navia", adapt_for=2)], {0: broken})
    (picture,) = tsne_pictures(table, traces)
    assert picture.panels["navia, 2 batches"][1].title == "block 1"
    assert save_figures(tabulate(table.rows), traces, tmp_path)
    html = index_page(tabulate(table.rows), traces)
    assert "No values." in html
    assert len(Parsed(html).all("g", "point")) == 6
