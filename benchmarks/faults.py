"""What goes wrong on clusters (`tests/platform/execute/test_faults.py`): what survived, and what it cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests/platform/execute/test_faults.py"


def measure() -> dict[str, Any]:
    """Run the tests of faults; return of each whether the work ended as if nothing had been, and what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        record, report = Path(folder, "told.jsonl"), Path(folder, "report.xml")
        words = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junitxml={report}", str(TESTS)]
        ended = subprocess.run(words, env={**os.environ, "RETABLE_FAULTS": str(record)}, capture_output=True, text=True)
        results: dict[str, Any] = {}
        for fact in map(json.loads, record.read_text().splitlines()):
            name = fact.pop("fault", fact["test"])
            results |= {f"{name}: {key}": value for key, value in fact.items() if key != "test"}
        return {"ended": ended.stdout.strip().splitlines()[-1], **results}


def table(result: dict[str, Any]) -> str:
    """Return the figures as the table of `docs/reliability.md`."""
    names = dict.fromkeys(key.split(": ")[0] for key in result if ": " in key)
    lines = [
        "| fault | survived | steps done twice, at most | seconds until it went on | attempts |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        keys = ("survived", "steps_lost", "seconds", "attempts")
        cells = [result.get(f"{name}: {key}", "") for key in keys]
        shown = [f"{cell:.0f}" if isinstance(cell, float) else str(cell) for cell in cells]
        lines.append("| " + " | ".join([name, *shown]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads((Path(__file__).parent / "results" / "faults.json").read_text())["result"]))
