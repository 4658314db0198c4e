"""The examples as a person runs them: programs of their own, without a network, with small settings."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from PIL import Image

from tests.paused import PATIENCE

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = ("--limit", "32", "--batch-size", "16")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}


def run(name: str, *arguments: str, cwd: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ten_lines(tmp_path: Path) -> None:
    lines = run("ten_lines.py", *SMALL, cwd=tmp_path).splitlines()
    assert len(lines) == 2
    found = re.fullmatch(r"step   2  entropy (\d\.\d+)  correct (\d+) of 32  \(source model (\d+)\)", lines[-1])
    assert found, lines
    assert int(found[2]) > 3  # far above one in ten
    body = (EXAMPLES / "ten_lines.py").read_text().partition("setup = ")[2].splitlines()[2:]
    assert len(body) == 10


def test_transformers_pipeline(tmp_path: Path) -> None:
    lines = run("transformers_pipeline.py", *SMALL, cwd=tmp_path).splitlines()
    assert len(lines) == 6
    assert all(re.fullmatch(r"test/\d{5}: ([\w -]+ \d+%(, )?){3}", line) for line in lines[:5]), lines
    assert re.fullmatch(r"32 images, 2 steps, top-1 \d+\.\d%", lines[-1])


def test_compare_methods_on_a_folder_of_ones_own(clothes_by_class: Path, clothes: Path, tmp_path: Path) -> None:
    own = ("--images", str(clothes_by_class), "--source", str(clothes), "--methods", "none", "navia", "--reduce", "tome:16")
    table = run("compare_methods.py", *SMALL, *own, cwd=tmp_path)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows] == [["none", "tome:16"], ["navia", "tome:16"]]
    for row in rows:
        assert float(row[2].rstrip("%")) > 60  # clean clothes
        assert float(row[5]) > 0


def test_folder_stream_plays_a_camera_and_keeps_what_it_learned(tmp_path: Path) -> None:
    delta = tmp_path / "learned.safetensors"
    text = run("folder_stream.py", *SMALL, "--rate", "200", "--idle", "20", "--save", str(delta), cwd=tmp_path)
    lines = text.splitlines()
    assert re.match(r"frame +\d+  \d+\.\d frames/s  entropy \d\.\d+  accuracy \d+% of the last \d+", lines[0])
    assert lines[-2].startswith("32 frames in ")
    assert delta.is_file()


def test_folder_stream_follows_a_growing_folder_until_ctrl_c(clothes: Path, tmp_path: Path) -> None:
    frames = tmp_path / "frames"
    frames.mkdir()
    command = [sys.executable, str(EXAMPLES / "folder_stream.py"), "--frames", str(frames), "--source", str(clothes)]
    options = ["--batch-size", "8", "--idle", "600"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, *options], env=ENVIRONMENT, **pipes)  # type: ignore[call-overload]
    for number, picture in enumerate(sorted(clothes.iterdir())[:8]):
        shutil.copy(picture, frames / f"{number}.png")
    (frames / "cut-off.png").write_bytes(b"\x89PNG")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert "entropy" in first
    assert "accuracy" not in first  # nobody said what is on these frames
    Image.new("L", (28, 28)).save(frames / "late.png")
    assert "frame " in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    assert "stopped" in out
    assert "9 frames in 2 steps" in out
    assert "1 unreadable" in out


def test_the_notebook_runs_and_was_stored_with_its_outputs() -> None:
    stored = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbformat.validate(stored)
    assert [cell.execution_count for cell in code_of(stored)] == list(range(1, len(code_of(stored)) + 1))
    fresh = nbformat.reads(nbformat.writes(stored), as_version=4)
    for cell in code_of(fresh):
        cell.outputs = []
    NotebookClient(fresh, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": EXAMPLES}}).execute()
    for before, after in zip(code_of(stored), code_of(fresh), strict=True):
        assert kinds(before) == kinds(after)
    assert sum(kinds(cell).count("picture") for cell in code_of(stored)) == 3


def code_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: nbformat.NotebookNode) -> list[str]:
    """Of its outputs, without repeats: what libraries complain about on stderr differs from machine to machine, and into how
    many pieces the printed text is cut depends on when the kernel sends it."""
    shown = [output for output in cell.outputs if output.get("name") != "stderr"]
    every = ["picture" if "image/png" in output.get("data", {}) else output.output_type for output in shown]
    return [kind for place, kind in enumerate(every) if kind != "stream" or every[place - 1 : place] != ["stream"]]
