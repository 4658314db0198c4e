"""Whole or not at all, and one writer at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from navia.errors import InputError
from navia.io import exclusive, written_whole


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_appears_when_it_is_whole(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "answers.json"
    path.write_text("before")
    with written_whole(path, sync) as unfinished:
        unfinished.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, OSError])
def test_what_fails_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path, trouble: type[BaseException]) -> None:
    path = tmp_path / "answers.json"
    path.write_text("before")

    def fail() -> None:
        with written_whole(path) as unfinished:
            unfinished.write_text("half")
            raise trouble

    with pytest.raises(trouble):
        fail()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_held_file_is_refused_to_others_until_it_is_closed_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("content")
    program = "import sys; from pathlib import Path; from navia.io import exclusive; exclusive(Path(sys.argv[1]), 'held')"
    other = [sys.executable, "-c", program, str(path)]
    with exclusive(path, "held"):
        refused = subprocess.run(other, capture_output=True, text=True, check=False)
        assert "InputError: held" in refused.stderr
        with pytest.raises(InputError, match="held"):
            exclusive(path, "held")
    assert subprocess.run(other, check=False).returncode == 0
    assert path.read_text() == "content"
