"""Print which build of torch an environment has, and how large the environment is: python tools/installed.py .venv"""

import sys
from pathlib import Path

import torch


def build() -> str:
    """What the installed torch was built for."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "CPU"


def size(folder: Path) -> int:
    """Bytes of all files below a folder, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(f"installed: torch {torch.__version__} ({build()} build), {where} {size(where) / 1e9:.1f} GB")
