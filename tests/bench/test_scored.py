"""A trace tells which images were answered right, so that runs can be compared image by image."""

from pathlib import Path

import pytest

from navia.bench.grid import run_grid
from navia.bench.spec import parse_spec
from navia.bench.store import Store
from navia.report.lines import read_scores

pytestmark = pytest.mark.slow

SPEC = """
models: [{name: embedded}]
data: [{path: embedded, corruptions: [contrast, fog], severity: 3, IMAGES}]
source: {images: 4}
runs: [{method: none}]
seeds: [0, 1]
batch: 16
"""


@pytest.mark.parametrize(("images", "scored"), [("images: 20", 20), ("images: 20, stream: mixed", 40)])
def test_right_answers_are_told_by_image(images: str, scored: int, tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = [done.row for done in run_grid(parse_spec(SPEC.replace("IMAGES", images), "a"), store)]
    scores = read_scores({row.key: store.trace(row.key) for row in rows})
    collections = {part.collection for own in scores.values() for part in own}
    assert len(collections) == 1  # every corruption is made of the same images
    for row in rows:
        own = scores[row.key]
        assert [part.collection for part in own] == list(collections) * len(row.domains)
        assert sum(part.seen.sum() for part in own) == row.count == scored
        assert sum(part.right.sum() for part in own) == row.correct
        assert not any((part.right & ~part.seen).any() for part in own)
    seen = {row.seed: scores[row.key][0].seen.tolist() for row in rows}
    assert seen[0] != seen[1]  # with a limit each seed draws other images
