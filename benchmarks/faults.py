"""Faults of clusters: whether the work survived them unchanged, and their cost in steps, seconds and attempts.

`python -m benchmarks faults` runs the tests and writes their figures into the table of `docs/reliability.md`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
PLATFORM = "tests/platform/execute"
TESTS = (
    f"{PLATFORM}/test_faults.py",
    f"{PLATFORM}/test_preemption.py",
    f"{PLATFORM}/test_hung.py",
    "tests/test_slurm.py::test_a_preempted_job_goes_on_from_its_checkpoint",
)
HEAD = "| fault | survived | steps done twice, at most | seconds until it went on | attempts |\n|---|---|---|---|---|\n"


def measure() -> dict[str, Any]:
    """Run the tests of faults; return what each fault cost, and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        record, report = Path(folder, "record.jsonl"), Path(folder, "report.xml")
        words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow", f"--junitxml={report}", *TESTS]
        record.touch()
        more = {**os.environ, "RETABLE_FAULTS": str(record)}
        ended = subprocess.run(words, env=more, cwd=ROOT, capture_output=True, text=True)
        results: dict[str, Any] = {}
        for fact in map(json.loads, record.read_text().splitlines()):
            name = fact.pop("fault", fact["test"])
            results |= {f"{name}: {key}": value for key, value in fact.items() if key != "test"}
    if ended.returncode == 0:  # else rows would be missing
        PAGE.write_text(with_table(PAGE.read_text(), results))
    return {"ended": ended.stdout.strip().splitlines()[-1], **results}


def with_table(page: str, result: dict[str, Any]) -> str:
    """Return a page with its table replaced by the one of these figures."""
    before, _, rest = page.partition(HEAD)
    after = rest.partition("\n\n")[2]
    return f"{before}{table(result)}\n\n{after}"


def table(result: dict[str, Any]) -> str:
    """Return the figures as a table of Markdown."""
    lines = []
    for name in dict.fromkeys(key.split(": ")[0] for key in result if ": " in key):
        keys = ("survived", "steps_lost", "seconds", "attempts")
        cells = [result.get(f"{name}: {key}", "") for key in keys]
        cells[1] = math.ceil(cells[1]) if cells[1] != "" else ""  # an upper bound
        shown = [f"{cell:.0f}" if isinstance(cell, float) else str(cell) for cell in cells]
        lines.append("| " + " | ".join([name, *shown]) + " |")
    return HEAD + "\n".join(lines)
