"""Charts of the paper's figures: number of layers, cost on a logarithmic axis, best rates, groups of classes."""

from typing import Any

import pytest

from navia.data.corruptions import names
from navia.report.charts import Chart, Figure, Point, Series, budget_sweeps, figures
from navia.report.figures import COLOURS, MARKERS, draw_figure, style
from navia.report.page import report_page
from navia.report.tables import Table, tabulate
from tests.report.test_page import charts_of
from tests.report.test_results import made_up, only
from tests.report.test_tsne import view


def drawn(table: Table, name: str, traces: dict[str, Any] | None = None) -> Figure:
    (found,) = [figure for figure in figures(table, traces or {}) if figure.name == name]
    return found


def test_improvement_over_no_tuned_layer_by_group() -> None:
    budgets: dict[int, dict[str, Any]] = {0: {"biases": False}, 1: {"budget": 1}, 6: {"budget": 6}, 12: {"budget": 12}}
    rows = [
        made_up("navia", domain, 0.5 + 0.01 * budget, reduce="tome:8", options=options, label=f"shallow {budget}")
        for budget, options in budgets.items()
        for domain in names()
    ]
    table = only(tabulate(rows))
    (sweep,) = budget_sweeps(table)
    assert [x for x, _ in sweep.lines] == [0, 1, 6, 12]
    (chart,) = drawn(table, "layers").charts
    assert [series.name for series in chart.series] == ["noise", "blur", "weather", "digital", "average"]
    for series in chart.series:
        assert [point.y for point in series.points] == pytest.approx([0, 2, 12, 24])
    assert budget_sweeps(only(tabulate(rows[:30]))) == []  # two points are no curve


def test_costs_that_span_much_have_a_logarithmic_axis() -> None:
    rows = [made_up("none", gmacs=17.6), made_up("foa", gmacs=500.0, top1=0.6)]
    assert drawn(only(tabulate(rows)), "accuracy-cost").charts[0].log_x
    near = [made_up("none", gmacs=17.6), made_up("cotta", gmacs=53.0)]
    assert not drawn(only(tabulate(near)), "accuracy-cost").charts[0].log_x
    with style():
        axes = draw_figure(drawn(only(tabulate(rows)), "accuracy-cost")).axes[0]
        assert axes.get_xscale() == "log"


def test_every_method_has_its_own_colour_and_marker_in_files_too() -> None:
    methods = ["none", "tent", "lame", "cotta", "sar", "eata", "deyo", "foa", "align", "navia"]
    assert min(len(COLOURS), len(MARKERS)) >= len(methods)
    series = [Series(method, [Point(i + 1, 50, 49, 51, method)]) for i, method in enumerate(methods)]
    with style():
        axes = draw_figure(Figure("x", None, [Chart("scatter", "", "x", "y", series)])).axes[0]
        lines = [container.lines[0] for container in axes.containers]
    assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines}) == len(methods)


def test_the_best_rate_of_each_curve_is_marked() -> None:
    rows = [
        made_up("navia", domain, top1, options={"eta_delta": rate})
        for domain, values in (("fog", (0.4, 0.6, 0.5)), ("snow", (0.7, 0.6, 0.5)))
        for rate, top1 in zip((0.0001, 0.001, 0.01), values, strict=True)
    ]
    figure = drawn(only(tabulate(rows)), "rates-eta_delta")
    marked = {series.name: [p.x for p in series.points if p.mark] for series in figure.charts[0].series}
    assert marked == {"fog": [0.001], "snow": [0.0001]}
    with style():
        rings = [own for own in draw_figure(figure).axes[0].collections if len(own.get_offsets())]
    assert len(rings) == 2
    (chart,) = [c for c in charts_of(report_page(tabulate(rows), {})) if c["title"].startswith("Sensitivity")]
    assert [point[4] for one in chart["series"] for point in one["points"] if len(point) > 4] == ["best", "best"]


def test_classes_of_one_group_share_a_colour_and_differ_in_their_markers() -> None:
    row = made_up("navia", adapt_for=2)
    tsne = view()
    groups = ["dogs" if i % 2 else "cars" for i in range(len(tsne["names"]))]
    table = only(tabulate([row]))
    figure = drawn(table, "tsne", {row["key"]: {"tsne": {**tsne, "groups": groups}}})
    series = figure.charts[0].series
    assert [one.group for one in series] == groups
    assert series[0].name == f"{tsne['names'][0]} (cars)"
    assert "in 2 groups (colours: cars and dogs; markers: classes)" in figure.note
    with style():
        handles = draw_figure(figure).axes[0].get_legend_handles_labels()[0]
    colours = [tuple(handle.get_facecolor()[0]) for handle in handles]
    assert len(set(colours)) == 2
    assert drawn(table, "tsne", {row["key"]: {"tsne": tsne}}).charts[0].series[0].group == ""


def test_lines_with_labels_converge_in_one_figure() -> None:
    rows = [
        made_up(method, reduce=reduce, label=label, adapt_for=n, top1=0.4 + 0.01 * n)
        for method, reduce, label in (("align", "tome:8", "ToMe"), ("align", "evit:8", "EViT"), ("align", "tofu:8", "ToFu"),
                                      ("navia", "tome:8", "NAVIA"))
        for n in (0, 1, 2)
    ]  # fmt: skip
    (chart,) = drawn(only(tabulate(rows)), "convergence").charts
    assert [series.name for series in chart.series] == ["ToMe", "EViT", "ToFu", "NAVIA"]
