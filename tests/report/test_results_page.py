"""tools/results.py: the generated page of the documentation, also with missing rows."""

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from navia.bench.grid import cells
from navia.bench.spec import Spec, parse_spec
from navia.bench.store import Store
from navia.report.figures import COLOURS
from tests.report.test_results import made_up

SPEC = """
models: [{name: timm:made_up}]
data: [{path: nowhere/val, corruptions: all, severity: 5}]
seeds: [0, 1, 2]
runs:
  - {method: none, label: plain}
  - {method: tent, label: tent}
  - {method: align, label: align}
  - {method: align, reduce: [tome:8], label: "align, tome:8"}
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "results.py"
    found = importlib.util.spec_from_file_location("results_tool", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def spec() -> Spec:
    return parse_spec(SPEC, "made_up.yaml")


def kept(spec: Spec) -> dict[str, Any]:
    """As `navia bench` keeps it beside the rows."""
    asked = [{"key": cell.key, **cell.model_dump(mode="json")} for cell in cells(spec)]
    return {"name": "study", "order": 0, "spec": spec.model_dump(mode="json"), "cells": asked}


def rows_of(spec: Spec, label: str, *seeds: int, domains: tuple[str, ...] = ()) -> dict[str, Any]:
    """Rows of some cells; no domains: of all."""
    own = [c for c in cells(spec) if c.label == label and c.seed in seeds and (not domains or c.domain in domains)]
    return {c.key: {**made_up(c.method, c.domain, reduce=c.reduce, seed=c.seed), "key": c.key} for c in own}


def test_what_is_missing_is_said_once_and_shortly(tool: ModuleType, spec: Spec) -> None:
    few = ("gaussian_noise", "fog")
    rows = rows_of(spec, "plain", 0, domains=few) | rows_of(spec, "tent", 0, domains=few)
    parts = list(tool.section(kept(spec), rows))
    assert parts[0] == "4 of 150 cells have been run."
    assert parts[-1].split("\n\n")[1].split("\n") == [
        "- `align`, `align, tome:8`: all 45",
        "- `plain`: all 15 but gaussian noise and fog",
        "- `tent`: all 15 but gaussian noise and fog in order 0; all 15 in orders 1 and 2",
    ]


def test_few_missing_cells_are_named(tool: ModuleType, spec: Spec) -> None:
    rows = {
        key: row
        for label in ("plain", "tent", "align", "align, tome:8")
        for key, row in rows_of(spec, label, 0, 1, 2).items()
    }
    whole = list(tool.section(kept(spec), rows))
    assert whole[0] == "150 of 150 cells have been run."
    assert whole[1].startswith("Highest average: ")
    for cell in cells(spec):
        if cell.label == "tent" and cell.domain in ("fog", "jpeg_compression") and cell.seed > 0:
            del rows[cell.key]
    parts = list(tool.section(kept(spec), rows))
    assert parts[-1].endswith("- `tent`: fog and jpeg compression in orders 1 and 2")
    assert not any(part.startswith("Highest") for part in parts)  # of a part of the cells it might be another


def test_a_spec_of_which_nothing_was_run(tool: ModuleType, spec: Spec) -> None:
    assert list(tool.section(kept(spec), {})) == [
        "0 of 150 cells have been run.",
        "Not run yet:\n\n- `plain`: all 15\n- `tent`, `align`, `align, tome:8`: all 45",
    ]


def test_the_picture_of_the_readme_has_a_bar_for_each_group(tool: ModuleType, spec: Spec, tmp_path: Path) -> None:
    rows = {key: row for label in ("plain", "tent", "align") for key, row in rows_of(spec, label, 0, 1, 2).items()}
    tool.draw(kept(spec), rows, tmp_path / "few.png")
    tool.draw(kept(spec), rows | rows_of(spec, "align, tome:8", 0, 1, 2), tmp_path / "all.png")
    few, drawn = (np.asarray(Image.open(tmp_path / name).convert("RGB")) for name in ("few.png", "all.png"))
    assert drawn.shape == few.shape == (512, 1280, 3)
    fourth = np.array([int(COLOURS[3][i : i + 2], 16) for i in (1, 3, 5)])
    assert not (few == fourth).all(axis=-1).any()
    columns = (drawn == fourth).all(axis=-1)[:430].sum(axis=0) > 60  # above the legend
    assert (np.diff(columns.astype(int)) == 1).sum() == 5  # noise, blur, weather, digital, average


def test_the_page_of_the_documentation_is_that_of_its_rows(tool: ModuleType) -> None:
    """From the rows, specs and scores beside it, without images or weights."""
    assets = tool.ROOT / "docs" / "assets"
    page = (tool.ROOT / "docs" / "results.md").read_text()
    for place, file, names in ((assets, "results.jsonl", tool.SPECS), (assets / "more", "rows.jsonl", tool.MORE)):
        rows, scores = tool.read_rows(place / file), tool.read_scores_file(place / "scores.jsonl")
        specs = Store(place).specs()
        found = [spec["name"] for spec in specs]
        assert found == [name for name in names if name in found]
        assert found
        for spec in specs:
            for part in tool.section(spec, rows, scores):
                assert part in page
    assert all((tool.ROOT / "docs" / path).is_file() for path in re.findall(r"!\[.*\]\((.*)\)", page))


def test_what_a_folder_lacks_stays_as_published(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder writes the same page, rows and specs again."""
    copy = tmp_path / "root"
    for name in ("docs/assets", "benchmarks/results"):
        shutil.copytree(tool.ROOT / name, copy / name)
    monkeypatch.setattr(tool, "ROOT", copy)
    tool.main(tmp_path / "empty")
    written = {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*.json*")}
    root = Path(__file__).parents[2]
    assert written == {path: (root / path).read_bytes() for path in written}
    lines = (copy / "docs" / "results.md").read_text().splitlines()
    assert set(lines) <= set((root / "docs" / "results.md").read_text().splitlines())
