"""One stream over two processes equals one process with the whole batch."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import navia
from navia.errors import SpecError
from tests.families import build, images_for

pytestmark = pytest.mark.slow

STEPS = 5


def whole_batches(size: int) -> list[torch.Tensor]:
    return [images_for(build("timm plain"), size, seed=i) * 1.3 + 0.2 for i in range(STEPS)]


def adapted(method: str, images: list[torch.Tensor], distributed: bool, adapt_every: Any = 1) -> dict[str, Any]:
    vit = build("timm plain")
    source = navia.SourceStatistics.measure(vit, images_for(vit, 40, seed=77), "tome:2")
    adapter = navia.adapt(vit, method, "tome:2", source, distributed=distributed, adapt_every=adapt_every)
    logits = torch.cat([adapter(x) for x in images])
    assert adapter.last is not None
    schedule = {name: value for name, value in adapter.schedule.state().items() if name != "detector"}
    mean = adapter.schedule.detector.mean
    return {"logits": logits, "loss": adapter.last.loss, "parameters": adapter.method.tensors(), **schedule, "mean": mean}


UNEVEN, SMALL = (9, 5), (3, 1)  # the small ones borrow recent features, of which each process has another number
RUNS: list[tuple[str, tuple[int, int], Any]] = [
    *((method, UNEVEN, 1) for method in ("align", "navia", "tent", "foa_bp")), ("align", SMALL, 1),
    ("navia", UNEVEN, 4), ("tent", UNEVEN, "auto"),
]  # fmt: skip


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    patience = timedelta(minutes=5)  # for a process that waits for one which has decided otherwise
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=patience)
    for number, (method, sizes, every) in enumerate(RUNS):
        shares = [x.split(sizes)[rank] for x in whole_batches(sum(sizes))]
        torch.save(adapted(method, shares, True, every), Path(folder) / f"{number}-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, one after the other, in two processes."""
    folder = tmp_path_factory.mktemp("two processes")
    mp.spawn(worker, args=(str(folder),), nprocs=2)
    return folder


@pytest.mark.parametrize("number", range(len(RUNS)), ids=[f"{method}-{sum(sizes)}-{every}" for method, sizes, every in RUNS])
def test_two_processes_equal_one(number: int, shared_runs: Path) -> None:
    method, sizes, every = RUNS[number]
    alone = adapted(method, whole_batches(sum(sizes)), False, every)
    parts = [torch.load(shared_runs / f"{number}-{rank}.pt") for rank in range(2)]
    shares = [part["logits"].split(size) for part, size in zip(parts, sizes, strict=True)]
    together = torch.cat([rows for step in zip(*shares, strict=True) for rows in step])
    torch.testing.assert_close(together, alone["logits"], atol=1e-5, rtol=0)
    for part in parts:
        assert (part["updates"], part["wait"]) == (alone["updates"], alone["wait"])
        if every == "auto":
            torch.testing.assert_close(part["mean"], alone["mean"])
            torch.testing.assert_close(part["signals"], alone["signals"], atol=1e-5, rtol=0)
        assert part["loss"] == pytest.approx(alone["loss"], abs=1e-5)
        for name, value in alone["parameters"].items():
            if name == "memory.recent":  # each process remembers its own share
                continue
            torch.testing.assert_close(part["parameters"][name], value, atol=1e-5, rtol=0)


def test_refuses_what_cannot_be_distributed() -> None:
    with pytest.raises(SpecError, match="init_process_group"):
        navia.adapt(build("timm plain"), "tent", distributed=True)


def test_refuses_methods_that_are_not_distributable(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises(SpecError, match=r"lame.*several processes"):
            navia.adapt(build("timm plain"), "lame", distributed=True)
    finally:
        dist.destroy_process_group()
