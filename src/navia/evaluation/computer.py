"""Where something was measured: ratios may be compared between computers, milliseconds may not."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def computer() -> dict[str, Any]:
    """Versions, processor and threads."""
    return {
        "versions": {name: version(name) for name in ("navia", "torch", "timm")} | {"python": platform.python_version()},
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def available_mib() -> float | None:
    """Memory that this computer has left, where it says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] / 1024 if found else None
