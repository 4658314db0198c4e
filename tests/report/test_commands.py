"""Options and lines of the commands that make reports."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from navia.cli.main import app
from navia.errors import SpecError


def test_a_device_that_is_not_there_is_refused_by_the_demo(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--device", "tape", "--out", str(tmp_path / "demo.html")])
    assert isinstance(result.exception, SpecError)
    assert "no device 'tape' here; there is cpu" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["choose", "x", "--source", "x", "-m", "embedded", "--batch-size", "0"],
        ["choose", "x", "--source", "x", "-m", "embedded", "--batches", "1"],
        ["stats", "x", "-o", "y", "-m", "embedded", "--limit", "0"],
    ],
)
def test_counts_that_leave_nothing_to_do_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[-2]}'" in result.output
