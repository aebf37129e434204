"""Benchmarks: `make bench`. The toy task of the tests measures what the platform itself costs."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("RETABLE_TASKS", str(ROOT / "tests" / "extra_tasks"))


def most_resident() -> float:
    """Return the most memory that this process has had, MB; `ru_maxrss` would count the parent's before `exec`."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
