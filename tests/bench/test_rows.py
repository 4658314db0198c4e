"""Lines of rows.jsonl that are no rows are refused by their number."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from navia.bench.cell import Cell
from navia.bench.row import Fingerprint, Row, check_rows, schema_table
from navia.bench.store import Store
from navia.cli.main import app
from navia.errors import InputError
from tests.report.test_results import made_up


@pytest.mark.parametrize("line", ["{}", '{"key": "a"}', "[]", "no row", '{"key": "a", "fingerprint": {"versions": 1}}'])
def test_a_line_that_is_no_row_is_refused_by_its_number(line: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.path.write_text(f"{json.dumps(made_up())}\n{line}\n")
    with pytest.raises(InputError, match=r"line 2 of '.*rows\.jsonl' is no row of `navia bench`"):
        store.rows()
    for arguments in (["bench", "quick", "--out", str(tmp_path), "--dry-run"], ["report", str(tmp_path)]):
        refused = CliRunner().invoke(app, arguments)
        assert isinstance(refused.exception, InputError), arguments
        assert "line 2 of" in str(refused.exception)


PUBLISHED = Path(__file__).parents[2] / "docs" / "assets" / "results.jsonl"


def test_published_rows_load_and_keep_every_value() -> None:
    """They are of several versions: some lack fields that came later."""
    lines = [json.loads(line) for line in PUBLISHED.read_text().splitlines()]
    rows = check_rows(lines, "the published rows")
    assert [row.as_json() for row in rows] == lines
    assert any("guarded" not in line for line in lines)
    assert all(row.guarded for row in rows)


def test_published_rows_have_the_keys_that_their_settings_give_today() -> None:
    for row in check_rows(map(json.loads, PUBLISHED.read_text().splitlines()), "the published rows"):
        settings = {name: getattr(row, name) for name in Cell.model_fields}
        assert Cell(**settings).key == row.key


def test_fields_of_a_newer_version_are_kept_and_wrong_ones_named() -> None:
    (row,) = check_rows([{**made_up(), "colour": "red"}], "rows")
    assert row.as_json()["colour"] == "red"
    with pytest.raises(InputError, match=r"line 1 of rows is no row of `navia bench`: top1 'high'"):
        check_rows([{**made_up(), "top1": "high"}], "rows")


def test_the_schema_describes_every_field() -> None:
    table = schema_table()
    for prefix, schema in (("", Row), ("fingerprint.", Fingerprint)):
        for name, field in schema.model_fields.items():
            assert field.description
            assert f"| `{prefix}{name}` | `" in table
