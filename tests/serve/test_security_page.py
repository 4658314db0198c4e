"""docs/security.md: every line of its table names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
LINES = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")][1:]
NAMED = re.compile(r"`(\w+/test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)(?:; )?")


def test_the_table_is_read() -> None:
    assert len(LINES) > 10


@pytest.mark.parametrize("line", LINES, ids=[line[0].strip() for line in LINES])
def test_every_line_names_tests_that_exist(line: list[str]) -> None:
    threat, protection, tested = map(str.strip, line)
    assert threat
    assert protection
    assert tested
    assert NAMED.sub("", tested) == ""
    for file, tests in NAMED.findall(tested):
        code = (ROOT / "tests" / file).read_text()
        for name in re.findall(r"`(\w+)`", tests):
            assert f"def {name}(" in code, f"{file} has no {name}"


def test_limits_are_those_of_the_settings() -> None:
    """Numbers in brackets after an option are its default."""
    settings = pytest.importorskip("navia.serve.settings")
    limits = settings.Limits()
    defaults = {
        "--wrong-keys": f"{limits.wrong_keys}",
        "--max-body": f"{limits.max_body_bytes // 2**20} MiB",
        "--timeout": f"{limits.timeout:g} s",
        "--max-pixels": f"{limits.max_pixels // 10**6} million",
        "--max-connections": f"{limits.max_connections:,}",
        "--keep-images": f"{settings.ServiceSettings().keep_images}",
    }
    assert dict(re.findall(r"`(--[\w-]+)` \(([^)]+)\)", PAGE)) == defaults
    assert f"{limits.max_total_bytes // 2**20} MiB for all running requests" in PAGE
    assert f"{limits.max_streams} dashboards" in PAGE
