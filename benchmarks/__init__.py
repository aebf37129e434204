"""Benchmarks: `make bench`. The toy task of the tests measures what the platform itself costs."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("RETABLE_TASKS", str(ROOT / "tests" / "extra_tasks"))
