"""Lines of rows.jsonl that are no rows are refused by their number."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
