"""One table per kept spec; a label is for display, and joins what was run in pieces."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from navia.bench.store import Store
from navia.report.charts import rate_sweeps
from navia.report.markup import csv_text, latex_table, markdown, page_markdown
from navia.report.page import report_page
from navia.report.tables import Results, Table, tabulate
from navia.report.text import missing_text, summary
from tests.report.test_page import Parsed
from tests.report.test_results import column, line, made_up, only, run_command

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
Row = dict[str, Any]


def own_rows() -> list[Row]:
    return [json.loads(text) for text in (ASSETS / "results.jsonl").read_text().splitlines()]


def run(method: str, domain: str = "fog", top1: float = 0.5, **changes: Any) -> Row:
    """A row whose key does not depend on its label, as with real ones."""
    row = made_up(method, domain, top1, **changes)
    row["key"] = "-".join(str(row[name]) for name in ("method", "reduce", "options", "domain", "seed", "batch", "data"))
    return row


def kept(name: str, cells: list[Row], order: int = 0, **labels: str) -> dict[str, Any]:
    """A spec that asks for these cells; labels: by method."""
    asked = [{**cell, "label": labels.get(cell["method"], cell["label"])} for cell in cells]
    return {"name": name, "order": order, "spec": {}, "cells": asked}


def titles(results: Results) -> list[str]:
    return [table.title.split(":")[0] for table in results.tables]


# ---- the project's own rows


def test_rows_that_differ_in_their_label_alone_are_one_line() -> None:
    """Two specs call align tome:8 differently; all three orders are in one line."""
    table = only(tabulate(own_rows()))
    found = [x for x in table.lines if (x.setting.method, x.setting.reduce, x.setting.options) == ("align", "tome:8", "{}")]
    assert len(found) == 1
    value = found[0].value(column(table, "contrast"))
    assert (f"{value.mean:.1f}", value.seeds) == ("49.4", 3)
    assert len({x.setting for x in table.lines}) == len(table.lines)


def test_each_spec_of_the_projects_own_rows_is_a_table() -> None:
    rows, specs = own_rows(), Store(ASSETS).specs()
    results = tabulate(rows, specs=specs)
    assert titles(results) == ["table1", "orders", "ablation", "layers", "rates"]
    assert [len(table.lines) for table in results.tables] == [16, 5, 4, 8, 2]
    assert [len(table.domains) for table in results.tables] == [5, 15, 5, 5, 5]
    assert results.missing() == []
    assert results.apart == ()  # their rows may be compared
    for table in results.tables:
        assert all(x.value(table.average).mean is not None for x in table.lines), table.title
    orders = results.tables[1]
    assert f"{line(orders, 'align, tome:8').value(column(orders, 'contrast')).mean:.1f}" == "49.4"
    assert "| align, tome:8 |" in markdown(orders)
    assert len(report_page(results, {})) < 1_000_000  # what all rows of a table share is told once


# ---- tables of specs


def test_labels_are_the_specs_and_other_rows_have_tables_of_their_own() -> None:
    plain, tent, align = (run(method, label="first") for method in ("none", "tent", "align"))
    other = run("tent", batch=1)
    rows = [plain, tent, align, other]
    specs = [kept("two", [plain, tent], none="source", tent="entropy"), kept("one", [align], 1, align="moments")]
    results = tabulate(rows, specs=specs)
    assert [[x.name for x in table.lines] for table in results.tables] == [["source", "entropy"], ["moments"], ["tent"]]
    assert [table.spec for table in results.tables] == ["two", "one", None]
    assert results.apart == ("Table 3 is not comparable with table 1: other batch (64 and 1).",)
    assert "Each spec has its own table" in page_markdown(results)
    assert "must not be compared" not in summary(results)
    assert [table.title for table in results.tables] == [
        "two: timm:made_up on val, severity 5",
        "one: timm:made_up on val, severity 5",
        "timm:made_up on val, severity 5",
    ]


def test_the_command_reads_specs_beside_the_rows(tmp_path: Path) -> None:
    rows = [run("none"), run("tent")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "specs").mkdir()
    asked = [*rows, run("align")]
    (tmp_path / "specs" / "mine.json").write_text(json.dumps(kept("mine", asked, tent="entropy")))
    told = json.loads(run_command(str(tmp_path), "--json").stdout)
    assert [(t["spec"], [x["name"] for b in t["blocks"] for x in b["lines"]]) for t in told["tables"]] == [
        ("mine", ["no adaptation", "entropy"])
    ]
    assert told["missing"] == [{"table": 1, "spec": "mine", "line": "align", "domain": "fog", "seed": 0}]
    shown = run_command(str(tmp_path))
    assert "1 cell has no row, or not yet: align on fog (seed 0)." in shown.output
    (tmp_path / "specs" / "mine.json").write_text(json.dumps({"name": "mine", "order": 0}))
    refused = run_command(str(tmp_path))
    assert "spec 'mine' in" in str(refused.exception)


def test_what_is_missing_is_what_the_spec_asks_for() -> None:
    """Also seeds, lines and domains that have not begun."""
    asked = [run(m, d, seed=s) for s in (0, 1, 2) for d in ("fog", "snow") for m in ("tent", "align", "navia")]
    asked += [run("tent", "fog", data="elsewhere/val")]
    done = [cell for cell in asked[:6] if cell["method"] != "navia" and cell["domain"] == "fog"]
    results = tabulate(done, specs=[kept("study", asked)])
    table = only(results)
    assert len(results.missing()) == len(asked) - len(done) == 17
    assert {missing.table for missing in results.missing()} == {1, None}
    assert [x.name for x in table.lines] == ["tent", "align"]
    text = missing_text(results)
    assert text.startswith("17 cells have no row, or not yet: ")
    assert "navia on fog and snow (seeds 0, 1, 2)" in text
    assert "tent (study, not begun) on fog (seed 0)" in text
    assert table.average.name == "fog"
    assert only(tabulate(done)).missing() == []  # without the spec nobody knows


def test_an_average_over_a_part_of_the_domains_says_so() -> None:
    asked = [run(m, d) for d in ("fog", "snow", "frost") for m in ("tent", "align")]
    table = only(tabulate(asked[:4], specs=[kept("study", asked)]))
    assert table.average.name == "average of 2"
    assert only(tabulate(asked, specs=[kept("study", asked)])).average.name == "average"


# ---- in pieces


def pieces(**changes: Any) -> tuple[list[Row], list[Row]]:
    """A study with other options for each domain."""
    fog = [run("none", "fog", 0.3), run("navia", "fog", 0.5, options={"budget": 4, "lr": 0.1}, label="ours")]
    low = [run("none", "contrast", 0.4), run("navia", "contrast", 0.7, options={"budget": 5, "lr": 0.1}, label="ours")]
    return fog, [{**row, **changes} for row in low]


def check_joined(table: Table) -> None:
    assert [x.name for x in table.lines] == ["no adaptation", "ours"]
    ours = line(table, "ours")
    assert ours.value(table.average).mean == pytest.approx(60)
    assert ours.options_by_domain == {"fog": {"budget": 4, "lr": 0.1}, "contrast": {"budget": 5, "lr": 0.1}}
    assert ours.setting.given == {"lr": 0.1}


def test_runs_of_one_label_with_other_options_per_domain_are_one_line() -> None:
    fog, low = pieces()
    check_joined(only(tabulate([*fog, *low])))
    check_joined(only(tabulate([*fog, *low], specs=[kept("fog", fog), kept("contrast", low, 1)])))
    check_joined(only(tabulate([*fog, *low], specs=[kept("study", low)])))  # a later spec of that name replaced the first
    results = tabulate([*fog, *low], specs=[kept("fog", fog), kept("contrast", low, 1)])
    assert only(results).title.startswith("fog, contrast: ")
    said = "Options of ours: budget=4 on fog; budget=5 on contrast."
    for text in (page_markdown(results), latex_table(only(results)), report_page(results, {})):
        assert said in text.replace("\\_", "_")
    assert "navia (lr=0.1); budget=4 on fog; budget=5 on contrast" in report_page(results, {})
    told = {row["quantity"]: row["options"] for row in csv.DictReader(io.StringIO(csv_text(only(results))))
            if row["line"] == "ours"}  # fmt: skip
    assert json.loads(told["fog"]) == {"budget": 4, "lr": 0.1}
    assert json.loads(told["average"]) == {"fog": {"budget": 4, "lr": 0.1}, "contrast": {"budget": 5, "lr": 0.1}}
    assert rate_sweeps(only(results), "eta_delta") == []


def test_json_tells_options_by_domain(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for part in pieces() for row in part))
    told = json.loads(run_command(str(tmp_path), "--json").stdout)
    ours = told["tables"][0]["blocks"][0]["lines"][1]
    assert ours["options_by_domain"] == {"fog": {"budget": 4, "lr": 0.1}, "contrast": {"budget": 5, "lr": 0.1}}
    assert ours["values"]["average"]["mean"] == pytest.approx(60)


def test_seeds_in_pieces_are_one_table() -> None:
    first, second = ([run(m, seed=s) for m in ("none", "tent")] for s in (0, 1))
    table = only(tabulate([*first, *second], specs=[kept("a", first), kept("b", second, 1)]))
    assert [len(x.rows) for x in table.lines] == [2, 2]


@pytest.mark.parametrize(
    "changes",
    [{"batch": 1, "key": "x"}, {"label": "theirs"}, {"domain": "fog", "key": "x"}, {"domain": "fog", "seed": 1, "key": "y"}],
)
def test_what_is_no_piece_of_a_study_is_not_joined(changes: dict[str, Any]) -> None:
    """Another protocol, other lines, other options on the same domain, or on the same domain with another seed."""
    fog, low = pieces()
    low[1] |= changes
    results = tabulate([*fog, *low], specs=[kept("fog", fog), kept("contrast", low, 1)])
    assert len(results.tables) > 1
    assert not any(x.options_by_domain for table in results.tables for x in table.lines)


def test_a_spec_that_is_not_finished_joins_no_lines_by_mistake() -> None:
    """Both settings are asked for on both domains, so each is a line, whatever was run first."""
    asked = [run("navia", d, options={"budget": b}, label="ours") for d in ("fog", "snow") for b in (4, 5)]
    done = [asked[0], asked[3]]
    assert len(only(tabulate(done, specs=[kept("study", asked)])).lines) == 2


def test_a_label_of_the_page_has_its_setting_beside_it() -> None:
    html = report_page(tabulate([run("none"), run("navia", reduce="tome:8", label="ours")]), {})
    assert ("small", "navia + tome:8") in Parsed(html).texts
