"""Weights and images on disk: a change is noticed, the way a path is written is not, and nothing is listed in vain."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from navia.bench import cell as cell_module
from navia.bench.grid import cells, run_grid
from navia.bench.spec import Spec, parse_spec
from navia.bench.store import Store
from navia.data import sample
from navia.data.sources import scan
from navia.errors import InputError

pytestmark = pytest.mark.slow


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sample.unseen_images().images[number]).save(path)


def tree(root: Path, *folders: str, count: int = 2) -> Path:
    """So many pictures of each of two classes in each folder."""
    for folder in folders:
        for number in range(count):
            picture(root / folder / sample.CLASSES[0] / f"{number}.png", number)
            picture(root / folder / sample.CLASSES[1] / f"{number}.png", number + 10)
    return root


def spec_of(data: object, checkpoint: object = None, more: str = "", runs: str = "{method: none}") -> Spec:
    model = "{name: embedded}" if checkpoint is None else f"{{name: embedded, checkpoint: {checkpoint}}}"
    text = f"models: [{model}]\ndata: [{{path: {data}{more}}}]\nsource: {{path: embedded, images: 4}}\nruns: [{runs}]\n"
    return parse_spec(text + "batch: 4\n", "a")


def keys(spec: Spec) -> list[str]:
    return [cell.key for cell in cells(spec)]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(Path(sample.MODEL).read_bytes())
    return path


def change(weights: Path) -> None:
    """Other numbers in a file of the same size."""
    tensors = load_file(weights)
    tensors["head.weight"] = torch.flip(tensors["head.weight"], [0])
    save_file(tensors, weights)


def test_changed_weights_are_run_again(tmp_path: Path, weights: Path) -> None:
    spec, store = spec_of(tree(tmp_path / "data", "."), weights), Store(tmp_path / "rows")
    (before,) = [done.row for done in run_grid(spec, store)]
    assert list(run_grid(spec, store)) == []
    size = weights.stat().st_size
    change(weights)
    assert weights.stat().st_size == size
    (after,) = [done.row for done in run_grid(spec, store)]
    assert after.fingerprint.weights != before.fingerprint.weights
    assert after.nll != before.nll
    (kept,) = store.specs()
    assert [cell["key"] for cell in kept["cells"]] == [after.key] != [before.key]


def test_weights_in_a_folder_of_transformers_count_by_their_content(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"first")
    (folder / "config.json").write_text("{}")

    def keys_of(name: str) -> list[str]:
        return keys(parse_spec(f"models: {{name: '{name}'}}\ndata: {{path: embedded}}\nruns: {{method: none}}\n", "a"))

    before = keys_of(f"hf:{folder}")
    assert keys_of(f"hf:{folder}/") == keys_of(f"hf:{os.path.relpath(folder)}") == before
    (folder / "README.md").write_text("what it is")
    assert keys_of(f"hf:{folder}") == before
    (folder / "model.safetensors").write_bytes(b"other")
    assert keys_of(f"hf:{folder}") != before


def add(root: Path) -> None:
    picture(root / sample.CLASSES[0] / "new.png", 5)


def remove(root: Path) -> None:
    (root / sample.CLASSES[0] / "0.png").unlink()


def replace(root: Path) -> None:
    """Another picture in a file of the same size."""
    path = root / sample.CLASSES[0] / "0.png"
    path.write_bytes(path.read_bytes().ljust(4000))
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("edit", [add, remove, replace])
@pytest.mark.parametrize("place", ["data", "source"])
def test_changed_images_are_run_again(tmp_path: Path, edit: Callable[[Path], None], place: str) -> None:
    root = {name: tree(tmp_path / name, ".") for name in ("data", "source")}
    for folder in root.values():
        path = folder / sample.CLASSES[0] / "0.png"
        path.write_bytes(path.read_bytes().ljust(4000))
    text = f"models: {{name: embedded}}\ndata: {{path: {root['data']}}}\nsource: {{path: {root['source']}, images: 3}}\n"
    spec, store = parse_spec(text + "runs: {method: align}\nbatch: 4\n", "a"), Store(tmp_path / "rows")
    (before,) = [done.row for done in run_grid(spec, store)]
    assert list(run_grid(spec, store)) == []
    edit(root[place])
    (after,) = [done.row for done in run_grid(spec, store)]
    assert list(run_grid(spec, store)) == []
    assert (after.key == before.key) == (edit is replace)
    (cell,) = store.specs()[0]["cells"]
    assert [row.finished for row in store.rows() if row.key == cell["key"]] == [after.finished]


def test_the_key_does_not_depend_on_how_a_path_is_written(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tree(tmp_path / "data", ".")
    (tmp_path / "link").symlink_to(data)
    (tmp_path / "link.safetensors").symlink_to(weights)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    ways = [(str(data), str(weights)), ("data", "weights/model.safetensors"), ("./data/", "weights/../link.safetensors")]
    ways += [("link", "link.safetensors"), ("~/data", "~/link.safetensors"), ("weights/../data", weights.as_posix())]
    for more in ("", ", corruptions: [fog]"):
        found = {tuple(keys(spec_of(path, checkpoint, more))) for path, checkpoint in ways}
        assert len(found) == 1
    (cell,) = cells(spec_of("~/data", "~/link.safetensors"))
    assert (cell.data, cell.checkpoint) == ("~/data", "~/link.safetensors")
    assert cell_module.run_cell(cell)[0].count == 4


def test_a_copy_elsewhere_has_the_same_keys(tmp_path: Path) -> None:
    one, two = (tree(tmp_path / name / "images", "fog/5", "snow/5") for name in ("one", "two"))
    for more in ("", ", stream: continual", ", parts: [snow/5]"):
        assert keys(spec_of(one, more=more)) == keys(spec_of(two, more=more))
    assert len(set(keys(spec_of(one)))) == 2  # the pictures of both are alike, the corruptions are not
    assert keys(spec_of(one, more=", stream: continual")) != keys(
        spec_of(one, more=", stream: continual, parts: [fog/5, snow/5]")
    )


def test_images_that_change_while_a_grid_runs_are_refused(tmp_path: Path) -> None:
    data = tree(tmp_path, ".")
    (cell,) = cells(spec_of(data))
    add(data)
    with pytest.raises(InputError, match="has changed"):
        cell_module.run_cell(cell)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each folder was listed."""
    counts: Counter[str] = Counter()
    whole = os.scandir

    def counting(path: str | os.PathLike[str] = ".") -> object:
        counts[os.path.realpath(path)] += 1
        return whole(path)

    monkeypatch.setattr(os, "scandir", counting)
    return counts


def test_only_the_parts_of_a_cell_are_listed(tmp_path: Path, listed: Counter[str]) -> None:
    root = tree(tmp_path / "c", "fog/5", "snow/5", "frost/5")
    last = str(root / "snow" / "5" / max(sample.CLASSES[:2]))
    assert cell_module.run_cell(cells(spec_of(root, more=", parts: [fog/5]"))[0])[0].count == 4
    assert listed[str(root / "fog" / "5" / max(sample.CLASSES[:2]))] > 0
    assert listed[last] == 0  # one class folder is enough to see that it is a part


def test_a_listing_is_reused_by_the_next_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: Counter[str] = Counter()

    def counting(folder: Path) -> object:
        scanned[str(folder)] += 1
        return scan(folder)

    monkeypatch.setattr(cell_module, "scan", counting)
    root = tree(tmp_path / "c", "fog/5", "snow/5")
    spec = spec_of(root, runs="{method: [none, tent]}")
    assert len(list(run_grid(spec, Store(tmp_path / "rows")))) == 4
    assert scanned == {str(root / "fog" / "5"): 1, str(root / "snow" / "5"): 1}
    picture(root / "fog" / "5" / sample.CLASSES[0] / "new.png", 5)
    assert [done.row.count for done in run_grid(spec, Store(tmp_path / "rows"))] == [5, 5]


def test_a_grid_lists_every_folder_a_few_times_however_many_cells_it_has(tmp_path: Path, listed: Counter[str]) -> None:
    root = tree(tmp_path / "c", "fog/5")
    for seeds in (1, 3):
        listed.clear()
        spec = spec_of(root, runs="{method: lame}").scaled(seeds=list(range(seeds)))
        list(run_grid(spec, Store(tmp_path / f"rows{seeds}")))
        assert listed[str(root / "fog" / "5" / max(sample.CLASSES[:2]))] <= 3
