"""What is set for the whole process: CPU threads and the memory that it keeps."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from navia.models.device import _has_glibc, use_threads

pytestmark = pytest.mark.slow

STEPS = """
import resource, sys, torch
if sys.argv[1] == "program":
    import navia.models.device as device
    kept = device.keep_freed_memory()
else:
    import navia
    adapter = navia.adapt(navia.load("embedded"), "tent")
    adapter(torch.randn(2, 1, 28, 28))
    kept = None
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.empty(2**24).fill_(1) for _ in range(3)]  # 64 MiB each
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(kept, *[faults() for _ in range(10)])
"""


@pytest.mark.skipif(not _has_glibc(), reason="not glibc")
@pytest.mark.parametrize("forbidden", [False, True])
def test_freed_memory_is_used_again_without_asking_the_system(forbidden: bool) -> None:
    env = os.environ | {"NAVIA_RETURN_MEMORY": "1" if forbidden else "0", "OMP_NUM_THREADS": "1"}
    kept, first, *later = _run("program", env)
    settled = int(later[-1])  # a few rounds until the heap has a place for each
    assert kept == str(not forbidden)
    if not forbidden:
        assert int(first) > 10_000  # pages of 4 KiB, or fewer large ones
        assert settled < 100
    else:
        assert settled > 10_000


@pytest.mark.skipif(not _has_glibc(), reason="not glibc")
def test_an_adapter_leaves_the_allocator_of_the_process_alone() -> None:
    """Freed memory goes back to the system as before: the same pages are asked for again in every round."""
    env = os.environ | {"NAVIA_RETURN_MEMORY": "0", "OMP_NUM_THREADS": "1"}
    _, *rounds = _run("library", env)
    assert int(rounds[-1]) > 10_000


def _run(who: str, env: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", STEPS, who], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_thread_keeps_its_number_whatever_others_ask_for() -> None:
    """Also one that has not computed yet, which torch would give the number set last."""
    before = torch.get_num_threads()
    seen: list[int] = []
    asked, go = threading.Event(), threading.Event()

    def mine() -> None:
        asked.wait()
        use_threads(2)
        go.set()
        seen.append(torch.get_num_threads())

    def others() -> None:
        use_threads(1)
        asked.set()
        go.wait()
        seen.append(torch.get_num_threads())

    threads = [threading.Thread(target=work) for work in (mine, others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [1, 2]
    use_threads(before)
    assert torch.get_num_threads() == before


GPU_OPTIONS = """
import os, sys, torch
from typer.testing import CliRunner
from navia.cli.main import app
command = [word for word in sys.argv[1].split()]
result = CliRunner().invoke(app, command)
print(result.exit_code, torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(),
      torch.is_deterministic_algorithms_warn_only_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("evaluate embedded -m embedded --method none -n 4", ["0", "highest", "False", "False", "None"]),
        ("evaluate embedded -m embedded --method none -n 4 --tf32", ["0", "high", "False", "False", "None"]),
        ("evaluate embedded -m embedded --method none -n 4 --deterministic", ["0", "highest", "True", "True", ":4096:8"]),
    ],
)
def test_gpu_options_are_set_for_the_process_only_when_given(command: str, expected: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if name != "CUBLAS_WORKSPACE_CONFIG"}
    done = subprocess.run([sys.executable, "-c", GPU_OPTIONS, command], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split()[-5:] == expected
