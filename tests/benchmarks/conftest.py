"""The scripts and modules of benchmarks/ are imported by their plain names, as they import each other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
