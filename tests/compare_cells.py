"""Compare the reports of two storages cell by cell: `python -m tests.compare_cells OLD NEW`, run by hand.

For a change that should change no number: `OLD` was made before it, `NEW` after. Tables are compared by the values of
each cell, figures by every metric of each replicate, but for seconds. Ends with 1 where a number differs or is gone.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

NOT_NUMBERS = {"scale", "fingerprint", "source", "sources", "diverged", "seconds"}


def cells_of(file):
    """Return (row, column or axes and metric) -> values of a report's CSV file."""
    frame = pd.read_csv(file)
    if {"column", "values"} <= set(frame.columns):
        texts = zip(frame["row"], frame["column"], frame["values"], strict=True)
        return {(row, column): [*map(float, str(text).split())] for row, column, text in texts if str(text) != "nan"}
    axes = [name for name in frame.columns if name in ("row", "seed", "environment") or "." in name]
    metrics = [name for name in frame.columns if name not in NOT_NUMBERS and "seconds" not in name and name not in axes]
    found = {}
    for _, line in frame.iterrows():
        place = tuple(str(line[axis]) for axis in axes)
        for metric in metrics:
            if isinstance(line[metric], (int, float)) and not pd.isna(line[metric]):
                found[(*place, metric)] = [float(line[metric])]
    return found


def compare(old, new):
    """Print what differs between two folders of reports; return how many cells do."""
    different = 0
    for file in sorted(Path(old).glob("*.csv")):
        if not (Path(new) / file.name).exists():
            print(f"{file.name}: gone")
            different += 1
            continue
        before, after = cells_of(file), cells_of(Path(new) / file.name)
        same = [key for key in before if key in after and np.array_equal(before[key], after[key])]
        print(
            f"{file.name}: {len(same)} of {len(before)} cells are the same, {len(after.keys() - before.keys())} are new"
        )
        for key in before.keys() - set(same):
            different += 1
            print(f"    {' | '.join(key)}: {before[key]} -> {after.get(key, 'gone')}")
    return different


if __name__ == "__main__":
    sys.exit(bool(compare(Path(sys.argv[1], "report"), Path(sys.argv[2], "report"))))
