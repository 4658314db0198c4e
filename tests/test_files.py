"""Atomic writes and locks between processes."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from navia.errors import InputError
from navia.io import atomic_write, lock_file


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_appears_when_it_is_whole(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "answers.json"
    path.write_text("before")
    with atomic_write(path, sync) as unfinished:
        unfinished.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, OSError])
def test_what_fails_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path: Path, trouble: type[BaseException]) -> None:
    path = tmp_path / "answers.json"
    path.write_text("before")

    def fail() -> None:
        with atomic_write(path) as unfinished:
            unfinished.write_text("half")
            raise trouble

    with pytest.raises(trouble):
        fail()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_held_lock_is_refused_to_others_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = "import sys; from pathlib import Path; from navia.io import lock_file; lock_file(Path(sys.argv[1]), 'held')"
    other = [sys.executable, "-c", program, str(path)]
    with lock_file(path, "held"):
        refused = subprocess.run(other, capture_output=True, text=True, check=False)
        assert "InputError: held" in refused.stderr
        with pytest.raises(InputError, match="held"):
            lock_file(path, "held", timeout=0.2)
    assert subprocess.run(other, check=False).returncode == 0
    lock = lock_file(path, "held")
    lock.close()
    lock_file(path, "held").close()


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = (
        "import sys, time; from pathlib import Path; from navia.io import lock_file\n"
        "lock = lock_file(Path(sys.argv[1]), 'held'); print('locked', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    with pytest.raises(InputError, match="held"):
        lock_file(path, "held")
    process.kill()
    process.communicate()
    with lock_file(path, "held"):
        pass


def test_a_file_system_without_locks_works_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with lock_file(tmp_path / "lock", "held"), lock_file(tmp_path / "lock", "held"):
        pass
    monkeypatch.undo()
    with pytest.raises(OSError, match="Is a directory"):
        lock_file(tmp_path, "held")
