"""docs/security.md: every line of its table names the tests that show it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
LINES = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_the_table_is_read() -> None:
    assert len(LINES) == 13


@pytest.mark.parametrize("line", LINES, ids=[line[0].strip() for line in LINES])
def test_every_line_names_tests_that_exist(line: list[str]) -> None:
    threat, answer, tested = line
    assert threat.strip()
    assert answer.strip()
    named = re.findall(r"`(\w+/test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)", tested)
    assert named
    assert re.sub(r"`(\w+/test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)(; )?", "", tested).strip() == ""
    for file, tests in named:
        code = (ROOT / "tests" / file).read_text()
        for name in re.findall(r"`(\w+)`", tests):
            assert f"def {name}(" in code, f"{file} has no {name}"
