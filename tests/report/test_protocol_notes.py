"""What a table says of the guard, of options that were chosen without labels, and of the time of a step."""

from typing import Any

import pytest

from navia.report.charts import convergence, rate_sweeps, reduction_sweeps
from navia.report.compare import step_times
from navia.report.markup import page_markdown
from navia.report.page import report_page
from navia.report.tables import tabulate
from navia.report.text import how_to_read
from tests.report.test_results import fingerprinted, line, made_up, only

Row = dict[str, Any]
OFF = "The guard was off, as in the published methods: collapses show."


# ---- the guard


def test_a_table_without_guard_says_so_once() -> None:
    rows = [made_up("none", guarded=False), made_up("tent", guarded=False), made_up("navia", guarded=False, label="ours")]
    table = only(tabulate(rows))
    assert [x.name for x in table.lines] == ["no adaptation", "tent", "ours"]
    assert how_to_read(table).count(OFF) == 1
    assert "without guard" not in page_markdown(tabulate(rows)) + report_page(tabulate(rows), {})
    assert not line(table, "tent").setting.guarded


def test_where_both_are_there_the_lines_say_which_and_what_it_saved() -> None:
    rows = [made_up("none"), made_up("tent", top1=0.1, guarded=False), made_up("tent", top1=0.5, guard=["rolled back"])]
    rows[2]["key"] = "guarded"
    table = only(tabulate(rows))
    assert [x.name for x in table.lines] == ["no adaptation", "tent (without guard)", "tent"]
    told = " ".join(how_to_read(table))
    assert "The guard was on in tent and acted: tent on fog. It was off in all other lines" in told
    assert "What it saved: tent against tent (without guard): +40.0 points, higher in 1 of 1 pair" in told


# ---- chosen options


def chosen(domain: str, seed: int = 0, **options: Any) -> Row:
    row = made_up("navia", domain, 0.6, reduce="tome:8", seed=seed, label="NAVIA_8", choose={"batches": 8, "grid": None})
    choice = {"options": options, "loss": 1.0, "images": 512, "steps": 216, "seconds": 34.0, "gmacs": 4.2}
    return {**row, "choice": choice, "key": f"chosen {row['key']}"}


def fixed(domain: str) -> Row:
    return made_up("navia", domain, 0.5, reduce="tome:8", label="NAVIA_8, fixed")


def test_chosen_options_are_one_line_beside_the_fixed_one() -> None:
    rows = [fixed("fog"), fixed("snow"), chosen("fog", budget=4), chosen("snow", budget=6), chosen("snow", 1, budget=5)]
    table = only(tabulate(rows))
    assert [x.name for x in table.lines] == ["NAVIA_8, fixed", "NAVIA_8"]
    ours = line(table, "NAVIA_8")
    assert ours.options_text == "budget=4 on fog; budget=6 or 5 on snow"
    assert ours.setting.text == "navia + tome:8 (options chosen)"
    told = " ".join(how_to_read(table))
    assert "Options of NAVIA_8 were chosen on each stream without labels, by the lowest loss (Eq. 7)" in told
    assert (
        "on its first 512 images, in 216 steps that took 34.0 s and 4.20 GMACs per image of the stream, beside 13.1" in told
    )


def test_chosen_lines_are_in_the_sweeps_over_tokens_and_batches_and_in_none_over_rates() -> None:
    rows = [chosen("fog", budget=4), {**chosen("fog", budget=5), "reduce": "tome:4", "key": "b", "gmacs": 15.0}]
    rows += [{**chosen("fog", budget=5), "reduce": "none", "key": "c", "gmacs": 17.6}]
    assert [len(sweep.lines) for sweep in reduction_sweeps(only(tabulate(rows)))] == [3]
    assert rate_sweeps(only(tabulate(rows)), "eta_delta") == []
    stopped = [{**chosen("fog", budget=n), "adapt_for": n, "key": str(n)} for n in (1, 2)]
    assert [sweep.name for sweep in convergence(only(tabulate(stopped)))] == ["NAVIA_8"]


def test_images_for_the_fisher_information_are_told_and_split_no_table() -> None:
    rows = [made_up("tent"), made_up("eata", fisher_images=2000)]
    assert [x.name for x in only(tabulate(rows)).lines] == ["tent", "eata (Fisher information of 2,000 images)"]


# ---- time of a step


def test_steps_with_fewer_tokens_are_compared_with_the_dense_step() -> None:
    rows = [made_up("none", ms_per_image=5.0), made_up("align", ms_per_image=20.0)]
    rows += [made_up("align", reduce="tome:8", ms_per_image=15.0), made_up("navia", reduce="tome:8", ms_per_image=16.0)]
    rows += [made_up("foa", reduce="tome:8", ms_per_image=99.0)]
    results = tabulate(rows)
    found = [(x.line.name, x.dense.name, x.percent, x.paper) for x in step_times(only(results))]
    assert found == [
        ("align + tome:8", "align", pytest.approx(-25), None),
        ("navia + tome:8", "align", pytest.approx(-20), -20.0),
    ]
    assert "| navia + tome:8 | align | −20 % | −20 % |" in page_markdown(results)
    assert "Time of a step against the dense step" in report_page(results, {})


def test_times_of_other_threads_or_without_a_dense_line_are_not_compared() -> None:
    rows = [made_up("navia", reduce="tome:8"), fingerprinted(made_up("navia"), threads=8)]
    assert step_times(only(tabulate(rows))) == []
    assert step_times(only(tabulate(rows[:1]))) == []
    assert "Time of a step" not in page_markdown(tabulate(rows[:1]))
