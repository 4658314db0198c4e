"""Panels by t-SNE in the report: files, page, and which rows they are taken from."""

import re
from pathlib import Path
from typing import Any

import pytest

from navia.bench.grid import run_grid
from navia.bench.spec import parse_spec
from navia.bench.store import Store
from navia.report.charts import Figure, figures
from navia.report.page import report_page
from navia.report.tables import Table, tabulate
from tests.report.test_page import Parsed, charts_of
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


def test_the_page_has_every_point_with_its_class_and_says_what_the_chart_cannot(real: Path) -> None:
    html = (real / "report" / "index.html").read_text()
    section = html[html.index("Classes as the blocks separate them</h2>") :].partition("</section>")[0]
    said = Parsed(f"<div><h2>{section}</div>").said()
    charts = [chart for chart in charts_of(html) if chart["kind"] == "map"]
    traces = [Store(real).trace(row.key)["tsne"] for row in Store(real).rows()]
    panels = [(trace, panel) for trace in traces for panel in trace["panels"]]
    assert len(charts) == len(panels) == 2 * 3
    for chart, (trace, panel) in zip(charts, panels, strict=True):
        wanted = sorted(trace["names"][label] for label in trace["labels"])
        assert sorted(point[4] for series in chart["series"] for point in series["points"]) == wanted
        assert chart["title"] == f"block {panel['block']}: 5-NN accuracy {100 * panel['neighbours']:.0f} %"
        assert chart["title"] in said
        assert [series["name"] for series in chart["series"]] == traces[0]["names"]  # one sign per class in all panels
    assert "t-SNE shows which images are neighbours. It does not show how far groups lie apart" in said


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


def tsne_figures(table: Table, traces: dict[str, Any]) -> list[Figure]:
    return [figure for figure in figures(table, traces) if figure.section == "tsne"]


def points_of(html: str) -> int:
    return sum(len(series["points"]) for chart in charts_of(html) if chart["kind"] == "map" for series in chart["series"])


def test_rows_without_a_view_have_no_figure_and_no_section() -> None:
    table, traces = seen([made_up("align", adapt_for=2), made_up("navia", adapt_for=2)], {})
    assert tsne_figures(table, traces) == []
    assert "Classes as the blocks separate them" not in report_page(tabulate(table.rows), traces)


def test_the_seed_that_most_lines_have_is_shown_and_every_domain_has_its_own(tmp_path: Path) -> None:
    rows = [made_up(m, d, adapt_for=2, seed=s) for d in ("fog", "snow") for m in ("align", "navia") for s in (0, 1)]
    table, traces = seen(rows, {0: view(), 1: view(), 3: view(), 4: view(("cat", "cow"), (1, 5)), 6: view()})
    snow, fog = tsne_figures(table, traces)
    assert fog.note == "Fog: 6 images of 2 classes, seed 1."
    assert list(dict.fromkeys(chart.group for chart in fog.charts)) == ["align, 2 batches", "navia, 2 batches"]
    assert snow.note == "Snow: 6 images of 3 classes, seed 0."
    assert [series.name for series in snow.charts[0].series] == ["cat", "cow", "dog"]
    assert snow.columns == 3  # blocks 0, 1 and 5
    filled = [any(series.points for series in chart.series) for chart in snow.charts[:3]]
    assert filled == [False, True, True]  # align has no block 0
    names = {path.stem for path in save_figures(tabulate(rows), traces, tmp_path)}
    assert {"table1-tsne-fog", "table1-tsne-snow"} <= names
    html = report_page(tabulate(rows), traces)
    assert "Fog: 6 images of 2 classes, seed 1." in html
    assert points_of(html) == 6 * (2 + 2 + 2 + 2)
    table, traces = seen(rows[:4], {0: view()})
    assert {path.stem for path in save_figures(tabulate(rows[:4]), traces, tmp_path)} >= {"table1-tsne"}
    assert not list(tmp_path.glob("table1-tsne-*"))  # of the earlier report


def test_the_same_run_without_a_view_does_not_hide_the_one_that_has_it() -> None:
    looked, plain = made_up("navia", adapt_for=2, tsne={"blocks": [0, 1]}), made_up("navia", adapt_for=2)
    looked["key"] += " with a view"
    for rows in ([looked, plain], [plain, looked]):
        table, traces = seen(rows, {rows.index(looked): view()})
        assert len(tsne_figures(table, traces)) == 1
        assert table.repeated == ()


def test_what_could_not_be_laid_out_is_an_empty_panel(tmp_path: Path) -> None:
    broken = view()
    broken["panels"][1] |= {"points": None, "neighbours": None}
    table, traces = seen([made_up("navia", adapt_for=2)], {0: broken})
    (figure,) = tsne_figures(table, traces)
    assert figure.charts[1].title == "block 1"
    assert save_figures(tabulate(table.rows), traces, tmp_path)
    html = report_page(tabulate(table.rows), traces)
    assert points_of(html) == 6
