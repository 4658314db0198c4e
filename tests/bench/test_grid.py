"""The grid: what was killed goes on, what is done stays, and the rows are those of an undisturbed run."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from timm.layers import PatchEmbed
from typer.testing import CliRunner

from navia.bench.cell import run_cell
from navia.bench.grid import FailedCellsError, cells, estimate, run_grid
from navia.bench.row import Row
from navia.bench.spec import Spec, parse_spec
from navia.bench.store import Store
from navia.cli.main import app
from navia.data import sample
from navia.errors import InputError
from tests.paused import start_paused
from tests.test_cli import invoke

pytestmark = pytest.mark.slow

SPEC = """
models: [{name: embedded}]
data: [{path: embedded, corruptions: [contrast, gaussian_noise], severity: 2, images: 12}]
source: {images: 8}
runs:
  - {method: none}
  - {method: navia, reduce: [tome:8]}
seeds: [0]
batch: 4
"""
VARYING = ("ms_per_image", "peak_mib", "finished", "wall_seconds", "realtime_ratio")


def same(row: Row) -> dict[str, Any]:
    """A row without what the clock decides."""
    return {key: value for key, value in row.as_json().items() if key not in VARYING}


@pytest.fixture(scope="module")
def spec() -> Spec:
    return parse_spec(SPEC, "test.yaml")


@pytest.fixture(scope="module")
def whole(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("whole"))
    assert [(done.done, done.left > 0) for done in run_grid(spec, store)] == [(1, True), (2, True), (3, True), (4, False)]
    return store


def test_rows_hold_accuracy_cost_and_fingerprint(whole: Store) -> None:
    for row in whole.rows():
        assert row.count == 12
        assert row.top1 == row.correct / 12
        assert row.low <= row.top1 <= row.high
        assert row.fingerprint.images == 12
        trace = whole.trace(row.key)
        assert sum(trace["right"]) == row.correct
        assert sum(trace["predicted"]) == 12
        assert trace["images"] == [4, 4, 4]
    dense, merged = whole.rows()[0], whole.rows()[1]
    assert merged.gmacs < dense.gmacs
    assert dense.fingerprint.pictures == merged.fingerprint.pictures


def test_a_finished_grid_runs_nothing_and_a_longer_spec_only_what_is_new(spec: Spec, whole: Store) -> None:
    assert estimate(spec, whole) == ([], 0)
    assert list(run_grid(spec, whole)) == []
    longer = parse_spec(SPEC.replace("tome:8", "tome:8, tome:4"), "test.yaml")
    wanted, seconds = estimate(longer, whole)
    assert [cell.reduce for cell in wanted] == ["tome:4", "tome:4"]
    assert seconds is not None
    assert seconds > 0


def test_a_torn_last_line_is_made_again(spec: Spec, whole: Store, tmp_path: Path) -> None:
    torn = Store(tmp_path)
    lines = whole.path.read_bytes().splitlines(keepends=True)
    torn.path.write_bytes(b"".join(lines[:3]) + lines[3][:100])
    assert len(torn.rows()) == 3
    assert len(list(run_grid(spec, torn))) == 1
    assert [same(row) for row in torn.rows()] == [same(row) for row in whole.rows()]


def test_kill_9_in_the_middle_of_a_cell_loses_that_cell_alone(spec: Spec, whole: Store, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    arguments = ["bench", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "rows")]
    process = start_paused("navia.bench.cell._scores", 3, arguments, tmp_path)  # the third cell is answered, but has no row
    process.kill()
    process.communicate()
    store = Store(tmp_path / "rows")
    kept = store.path.read_bytes()
    assert len(store.rows()) == 2
    list(run_grid(spec, store))
    assert store.path.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    assert [same(row) for row in store.rows()] == [same(row) for row in whole.rows()]
    for row in whole.rows():
        assert store.trace(row.key)["right"] == whole.trace(row.key)["right"]


def test_two_runs_into_one_folder_are_refused(spec: Spec, tmp_path: Path) -> None:
    with Store(tmp_path).writing(), pytest.raises(InputError, match="another run writes"):
        next(run_grid(spec, Store(tmp_path)))


def test_rows_of_another_version_and_garbage_are_refused_and_kept(spec: Spec, whole: Store, tmp_path: Path) -> None:
    store = Store(tmp_path)
    row = whole.rows()[0].as_json()
    row["fingerprint"]["versions"]["navia"] = "0.0.1"
    store.path.write_text(json.dumps(row) + "\n")
    before = store.path.read_bytes()
    with pytest.raises(InputError, match=r"rows of navia 0\.0\.1"):
        next(run_grid(spec, store))
    assert store.path.read_bytes() == before
    store.path.write_text("no row\n")
    with pytest.raises(InputError, match="no row"):
        store.rows()


def test_missing_data_is_named_before_anything_runs(tmp_path: Path) -> None:
    lost = parse_spec(
        SPEC.replace("path: embedded, corruptions: [contrast, gaussian_noise], severity: 2,", "path: nowhere,"), "a"
    )
    with pytest.raises(InputError, match="nowhere"):
        cells(lost)


def test_streams_without_reset_are_one_cell(tmp_path: Path) -> None:
    for kind in ("continual", "mixed"):
        store = Store(tmp_path / kind)
        one = parse_spec(SPEC.replace("severity: 2,", f"severity: 2, stream: {kind},"), "a")
        rows = [done.row for done in run_grid(one, store)]
        assert [row.domain for row in rows] == ["", ""]
        assert rows[0].count == 24


@pytest.fixture
def counted_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that counts batches embedded by the model instead of seconds."""
    walks = itertools.count(1)
    now, embed = [0], PatchEmbed.forward

    def counted(self: PatchEmbed, images: torch.Tensor) -> torch.Tensor:
        now[0] = next(walks)
        return embed(self, images)

    monkeypatch.setattr(PatchEmbed, "forward", counted)
    monkeypatch.setattr("navia.evaluation.latency.time", SimpleNamespace(perf_counter=lambda: float(now[0])))


@pytest.mark.usefixtures("counted_walks")
def test_under_a_clock_a_slow_method_misses_batches(tmp_path: Path) -> None:
    """CoTTA asks three models about every batch: student, teacher and source."""
    text = SPEC.replace("{method: navia, reduce: [tome:8]}", "{method: cotta, realtime: true}")
    store = Store(tmp_path)
    list(run_grid(parse_spec(text.replace("[contrast, gaussian_noise]", "[contrast]"), "a"), store))
    row = next(row for row in store.rows() if row.method == "cotta")
    assert row.realtime_ratio == 3
    assert [loss is None for loss in store.trace(row.key)["loss"]] == [False, True, True]


def test_convergence_scores_the_last_third_alone(tmp_path: Path) -> None:
    text = SPEC.replace("reduce: [tome:8]}", "reduce: [tome:8], adapt_for: [1, 2]}")
    store = Store(tmp_path)
    list(run_grid(parse_spec(text, "a"), store))
    rows = [row for row in store.rows() if row.method == "navia"]
    assert [row.adapt_for for row in rows] == [1, 2, 1, 2]
    assert {row.count for row in rows} == {4}


def test_without_the_guard_a_collapse_is_let_happen(whole: Store, tmp_path: Path) -> None:
    """Another cell, whose row says so; the keys of rows that were made before there was a choice stay as they are."""
    tent = "{method: tent, options: {lr: 50.0}%s}"
    text = SPEC.replace("{method: navia, reduce: [tome:8]}", tent % "").replace(
        "severity: 2, images: 12", "severity: 5, images: 48"
    )
    guarded, bare = parse_spec(text, "a"), parse_spec(text.replace(tent % "", tent % ", guard: false"), "a")
    watched = [done.row for done in run_grid(guarded, Store(tmp_path / "guarded")) if done.row.method == "tent"]
    left = [done.row for done in run_grid(bare, Store(tmp_path / "bare")) if done.row.method == "tent"]
    assert any(row.guard for row in watched)
    assert not any(row.guard for row in left)
    assert not any(row.guarded for row in left)
    assert not {row.key for row in left} & {row.key for row in watched}
    assert sum(row.top1 for row in left) < sum(row.top1 for row in watched)


def found_corrupted(root: Path, **images: int) -> Path:
    """A tree like that of ImageNet-C with so many pictures of each corruption at severity 5."""
    unseen = sample.unseen_images()
    assert unseen.labels is not None
    for corruption, count in images.items():
        for i in range(count):
            folder = root / corruption / "5" / sample.CLASSES[unseen.labels[i]]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(unseen.images[i]).save(folder / f"{i}.png")
    return root


def spec_of(data: str, run: str = "{method: none}", source: str = "{path: embedded, images: 16}") -> Spec:
    text = f"models: [{{name: embedded}}]\ndata: [{{{data}}}]\nsource: {source}\nruns: [{run}]\nbatch: 4\n"
    return parse_spec(text, "a")


def test_parts_decide_what_is_streamed_and_in_which_order(tmp_path: Path) -> None:
    root = found_corrupted(tmp_path, snow=6, fog=5, contrast=3)
    for kind, lengths in (("continual", [3, 4, 2]), ("mixed", [4, 4, 1])):
        (cell,) = cells(spec_of(f"path: {root}, stream: {kind}, parts: [contrast/5, snow/5]"))
        row, trace = run_cell(cell)
        assert row.domains == ("contrast/5", "snow/5")
        assert trace["images"] == lengths


def test_shifted_images_without_a_source_run_methods_that_need_none(tmp_path: Path) -> None:
    root = found_corrupted(tmp_path, fog=8)
    none, navia = cells(spec_of(f"path: {root}", "{method: [none, navia]}", "{images: 2}"))
    row, _ = run_cell(none)
    assert row.count == 8
    assert row.fingerprint.source is None
    with pytest.raises(InputError, match=r"'navia' needs a source, and 'fog/5' \(imagenet-c\) is shifted itself"):
        run_cell(navia)


def test_too_large_a_source_is_refused_by_name() -> None:
    (cell,) = cells(spec_of("path: embedded, images: 4", source="{path: embedded, images: 300}"))
    with pytest.raises(InputError, match="'embedded' has 256 images, but 300 are wanted as the source"):
        run_cell(cell)


def test_the_embedded_source_is_the_same_named_or_not() -> None:
    """None of its pictures is one of the stream's."""
    rows = []
    for source in ("{path: embedded, images: 32}", "{images: 32}"):
        (cell,) = cells(spec_of("path: embedded, corruptions: [contrast], images: 32", "{method: align}", source))
        rows.append(run_cell(cell)[0])
    assert rows[0].nll == rows[1].nll
    assert rows[0].fingerprint == rows[1].fingerprint


def test_images_without_labels_are_refused_before_anything_runs(clothes: Path) -> None:
    (cell,) = cells(spec_of(f"path: {clothes}"))
    with pytest.raises(InputError, match="has no labels to score with"):
        run_cell(cell)


def test_decoding_processes_change_nothing_of_a_row(tmp_path: Path) -> None:
    root = found_corrupted(tmp_path, fog=12)
    (cell,) = cells(spec_of(f"path: {root}", "{method: align, reduce: [tome:8]}"))
    assert same(run_cell(cell, workers=2)[0]) == same(run_cell(cell)[0])


@pytest.fixture
def one_cannot() -> str:
    """adapt_for: more batches than come before the last third, of one run only."""
    return SPEC.replace("reduce: [tome:8]}", "reduce: [tome:8], adapt_for: [9, 1]}")


def test_a_cell_that_fails_costs_the_others_nothing(one_cannot: str, tmp_path: Path) -> None:
    store, told, counts = Store(tmp_path), [], []
    grid = run_grid(parse_spec(one_cannot, "a"), store, on_failure=told.append)
    named = r"(?s)2 cells failed.*contrast navia\+tome:8 \(9 batches\) seed 0 and 1 more: 9 batches"
    with pytest.raises(FailedCellsError, match=named):
        counts.extend((done.done, done.total) for done in grid)
    assert counts == [(1, 6), (2, 6), (3, 6), (4, 6)]
    assert [(failure.cell.domain, failure.cell.adapt_for) for failure in told] == [("contrast", 9), ("gaussian_noise", 9)]
    assert [cell.adapt_for for cell in estimate(parse_spec(one_cannot, "a"), store)[0]] == [9, 9]


def test_what_nobody_foresaw_comes_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr("navia.bench.cell.adapt_then_score", broken)
    text = SPEC.replace("reduce: [tome:8]}", "reduce: [tome:8], adapt_for: [1]}")
    with pytest.raises(FailedCellsError, match=r"and 1 more: RuntimeError: not enough memory$") as failed:
        list(run_grid(parse_spec(text, "a"), Store(tmp_path)))
    assert len(failed.value.failures) == 2
    assert all("Traceback" in failure.why and "run_cell" in failure.why for failure in failed.value.failures)


def test_the_command_names_what_failed_and_keeps_the_rest(one_cannot: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(one_cannot)
    result = invoke("bench", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "rows"))
    assert isinstance(result.exception, FailedCellsError)
    assert "2 cells failed" in str(result.exception)
    assert "4 cells run" in result.stdout
    assert result.stderr.count("failed: embedded") == 2
    assert len(Store(tmp_path / "rows").rows()) == 4


def test_each_spec_is_kept_beside_its_rows(spec: Spec, tmp_path: Path) -> None:
    store = Store(tmp_path)
    labelled = parse_spec(SPEC.replace("{method: none}", "{method: none, label: plain}"), "b")
    for name, asked in (("b", labelled), ("../a spec", spec), ("b", labelled)):
        with store.writing():
            store.keep_spec(name, asked, cells(asked))
    assert sorted(path.name for path in (tmp_path / "specs").iterdir()) == ["_a_spec.json", "b.json"]
    first, second = store.specs()
    assert (first["name"], second["name"]) == ("b", "../a spec")
    assert [cell["key"] for cell in first["cells"]] == [cell.key for cell in cells(spec)]
    assert [cell["label"] for cell in first["cells"]] == ["plain", None, "plain", None]
    assert [cell["options"] for cell in first["cells"]] == [{}] * 4
    assert Spec.model_validate(first["spec"]) == labelled


def test_a_grid_keeps_its_spec_and_a_changed_one_replaces_it(spec: Spec, whole: Store, tmp_path: Path) -> None:
    (kept,) = whole.specs()
    assert kept["name"] == "spec"
    assert [cell["key"] for cell in kept["cells"]] == [row.key for row in whole.rows()]
    store = Store(tmp_path)
    store.path.write_bytes(whole.path.read_bytes())
    shorter = parse_spec(SPEC.replace("contrast, ", ""), "a")
    for asked in (spec, shorter):
        assert list(run_grid(asked, store, name="mine")) == []
    (kept,) = store.specs()
    assert [cell["domain"] for cell in kept["cells"]] == ["gaussian_noise"] * 2


def test_a_dry_run_keeps_no_spec(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SPEC)
    for more, names in ((["--dry-run"], []), (["--images", "16"], ["mine"])):
        command = ["bench", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "rows"), *more]
        assert CliRunner().invoke(app, command).exit_code == 0
        assert [kept["name"] for kept in Store(tmp_path / "rows").specs()] == names


BROKEN = """
models: [{name: embedded}]
data: [{path: embedded, corruptions: [contrast], images: 24}]
source: {images: 8}
runs: [{method: tent, options: {lr: 1.0e+38}, guard: false%s}]
batch: 8
"""


@pytest.mark.parametrize("more", ["", ", adapt_for: 2"])
def test_a_run_that_ends_in_nan_has_a_row_and_a_report(more: str, tmp_path: Path) -> None:
    """A collapse is a result: its images count as wrong, the row says where it began, and it is not run again."""
    spec, store = parse_spec(BROKEN % more, "a"), Store(tmp_path)
    (done,) = run_grid(spec, store)
    (line,) = store.path.read_text().splitlines()
    row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert done.row.as_json() == row
    assert row["collapsed"] == (2 if more else 1)
    assert (row["nll"], row["ece"]) == (None, None)
    trace = store.trace(row["key"])
    assert row["correct"] == sum(trace["right"]) == trace["right"][0]
    assert row["top1"] == row["correct"] / row["count"] <= row["top5"]
    assert sum(trace["predicted"]) == (0 if more else 8)
    assert trace["entropy"][-1] is None
    assert list(run_grid(spec, store)) == []
    result = CliRunner().invoke(app, ["report", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
