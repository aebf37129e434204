"""Write `docs/results/quick.json`: the numbers and verdicts of one `retable reproduce`, which README and docs quote.

`python docs/quick.py STORAGE SECONDS`: the storage that the command filled, and how long it took, without the set-up.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean

from retable.platform.report.results import FilledTable
from retable.platform.report.write import kept_tables
from retable.platform.store.storage import Storage

FILE = Path(__file__).parent / "results" / "quick.json"


METRICS = ("behaviour_share", "iou", "content_error", "style_error")
"""What a figure's rows are told by, as figures have no cells."""


def numbers(part: FilledTable) -> dict[str, dict[str, float]]:
    """Return the mean of each measured cell, of a figure's rows those of `METRICS`: row -> column -> value."""
    if part.figure:
        every = {row.label: [replicate.metrics for replicate in row.replicates] for row in part.rows if row.replicates}
        return {
            label: {
                name: fmean(one[name] for one in metrics) for name in METRICS if all(name in one for one in metrics)
            }
            for label, metrics in every.items()
        }
    headers = [column.header for column in part.columns]
    rows = {row.label: dict(zip(headers, row.cells, strict=True)) for row in part.rows if row.replicates}
    return {
        label: {header: cell.mean for header, cell in cells.items() if cell.mean is not None}
        for label, cells in rows.items()
    }


def main(storage: Storage, seconds: float) -> None:
    """Write the file."""
    parts = [part for part in kept_tables(storage) if part.scale == "quick"]
    runs = [run["provenance"] for part in parts for run in part.runs.values()]
    last = max(runs, key=lambda provenance: str(provenance["started"]))
    about = {key: last[key] for key in ("device", "commit", "dirty", "started")}
    tables = {
        part.name: {
            "numbers": numbers(part),
            "claims": Counter(f"{'ours' if claim.ours else 'of the papers'}: {claim.status}" for claim in part.claims),
        }
        for part in parts
    }
    FILE.write_text(json.dumps({"seconds": seconds, **about, "tables": tables}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Storage.open(sys.argv[1]), float(sys.argv[2]))
