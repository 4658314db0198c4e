"""Images that arrive while somebody looks."""

import os
import time
from pathlib import Path

import numpy as np
from PIL import Image

from navia.data.watch import watch_folder


def put(folder: Path, name: str, age: float = 10.0) -> None:
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(folder / name)
    then = time.time() - age
    os.utime(folder / name, (then, then))


def test_full_batches_leave_at_once_and_the_rest_after_its_wait(tmp_path: Path) -> None:
    for i in range(5):
        put(tmp_path, f"{i}.png", age=10 - i)
    (tmp_path / "notes.txt").write_text("no image")
    found = list(watch_folder(tmp_path, [], 2, wait=0.2, idle=0.3, poll=0.02))
    assert [[path.name for path in batch] for batch in found] == [["0.png", "1.png"], ["2.png", "3.png"], ["4.png"]]


def test_seen_ones_are_left_out_and_new_ones_come_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    put(tmp_path, "b.png")
    put(tmp_path, "a.png", age=5)
    found = watch_folder(tmp_path, ["a.png"], 8, wait=0.1, idle=0.3, poll=0.02)
    assert [path.name for path in next(found)] == ["b.png"]
    (tmp_path / "sub").mkdir()
    put(tmp_path / "sub", "c.png")
    assert [[path.name for path in batch] for batch in found] == [["c.png"]]


def test_a_file_that_is_still_growing_waits(tmp_path: Path) -> None:
    put(tmp_path, "fresh.png", age=-3600)
    put(tmp_path, "old.png")
    found = watch_folder(tmp_path, [], 1, idle=0.3, poll=0.02, settle=0.4)
    assert [path.name for path in next(found)] == ["old.png"]
    put(tmp_path, "older.png")
    assert [path.name for path in next(found)] == ["older.png"]
    put(tmp_path, "fresh.png")
    assert [path.name for path in next(found)] == ["fresh.png"]
