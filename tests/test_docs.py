"""The Python in the documentation runs as printed."""

import re
from pathlib import Path

import pytest

from navia.spec import parse_spec

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_snippets(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one page share their names; those for torchrun are covered by the tests of several processes."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)  # for the files that they write
    names: dict[str, object] = {}
    for block in blocks:
        if not block.startswith("# torchrun"):
            exec(compile(block, page.name, "exec"), names)


def test_specs_in_the_documentation_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "benchmarks.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        assert parse_spec(block, "benchmarks.md").runs


def test_links_point_somewhere() -> None:
    for page in (*PAGES, *ROOT.glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
