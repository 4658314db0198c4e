"""The grid on a real local Ray cluster: the same rows as in one process, also when a worker is killed."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from navia.bench.grid import FailedCellsError, run_grid
from navia.bench.spec import parse_spec
from navia.bench.store import Store
from navia.errors import NaviaError
from tests.bench.test_grid import SPEC, same

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")

from navia.bench.executors.ray import ray_executor  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One for all tests that need not see how it is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
        yield
        ray.shutdown()


def kill_one_worker(killed: threading.Event) -> None:
    """SIGKILL the first process that is seen at work on a cell; stopped before, so that it cannot finish in between."""
    while not killed.is_set():
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if at_work(child):
                    child.suspend()
                    if at_work(child):
                        child.kill()
                        killed.set()
                        return
                    child.resume()
        time.sleep(0.01)


def at_work(process: Any) -> bool:
    """Ray writes what a worker does into its command line."""
    return "_in_worker" in " ".join(process.cmdline())


def test_a_ray_cluster_gives_the_rows_of_one_process_even_when_a_worker_dies(tmp_path: Path) -> None:
    spec = parse_spec(SPEC, "a")
    serial, spread = Store(tmp_path / "serial"), Store(tmp_path / "ray")
    list(run_grid(spec, serial))
    killed = threading.Event()
    killer = threading.Thread(target=kill_one_worker, args=(killed,), daemon=True)
    killer.start()
    list(run_grid(spec, spread, ray_executor(cpus=1, workers=1)))
    assert killed.is_set(), "no worker was seen"

    def by_key(store: Store) -> dict[str, dict[str, object]]:
        rows = [same(row) for row in store.rows()]
        return {row["key"]: row for row in rows}

    assert by_key(spread) == by_key(serial)
    assert len(spread.rows()) == 4


@pytest.mark.usefixtures("cluster")
def test_a_cell_whose_worker_dies_too_often_is_given_up_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("navia.bench.executors.ray.TRIES", 0)
    killed = threading.Event()
    threading.Thread(target=kill_one_worker, args=(killed,), daemon=True).start()
    with pytest.raises(FailedCellsError, match=r"1 cell failed(?s:.*)given up after 0 retries"):
        list(run_grid(parse_spec(SPEC, "a"), Store(tmp_path), ray_executor()))
    assert len(Store(tmp_path).rows()) == 3


@pytest.mark.usefixtures("cluster")
def test_the_longest_cell_begins(tmp_path: Path) -> None:
    text = SPEC.replace("[contrast, gaussian_noise]", "[contrast]")
    one_at_a_time = ray_executor(cpus=os.cpu_count() or 1)
    assert [done.row.method for done in run_grid(parse_spec(text, "a"), Store(tmp_path), one_at_a_time)] == [
        "navia",
        "none",
    ]


@pytest.mark.usefixtures("cluster")
def test_what_a_worker_refuses_is_refused_by_name(tmp_path: Path) -> None:
    text = SPEC.replace("{method: navia, reduce: [tome:8]}", "{method: foa, options: {population: 4}}")
    spec = parse_spec(
        text.replace("models: [{name: embedded}]", "models: [{name: embedded, checkpoint: nowhere.safetensors}]"), "a"
    )
    with pytest.raises(NaviaError, match="nowhere"):
        list(run_grid(spec, Store(tmp_path), ray_executor()))
