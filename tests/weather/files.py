"""A tiny data set in the competition's layout, written line by line, and plain ways to count what is in it."""

import functools
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import h5py
import numpy as np

SHORT = {"training": "train", "validation": "val", "test": "test", "heldout": "heldout"}
HEADER = "time,date_str,date,RATE,ACRR,DBZH,REFL-BT,all_vars,split,split_type"
KINDS = {"satellite": ("HRIT", "reflbt0.ns", "REFL-BT", 11), "rain": ("OPERA", "rates.crop", "rates.crop", 1)}


@dataclass
class Layout:
    """What a written layout holds."""

    size: int = 12
    inputs: int = 4
    forecast: int = 8
    sequences: int = 2
    regions: tuple = ("boxi_0015", "roxi_0004")
    years: tuple = (2019, 2020)
    targets: bool = True
    """Whether test and heldout have rain files."""
    runs: tuple = (22, 14, 11)
    """Lengths of the training's contiguous parts, between which the other splits lie in turn."""
    missing: int = 1
    """Slots without all variables inside the first training run."""
    rows: list = field(default_factory=list)

    def __post_init__(self):
        for year in self.years:
            self._year(datetime(year, 2, 14, 22, 30))

    def _year(self, time):
        after = [s for _ in range(self.sequences) for s in ("test", "validation", "heldout")]
        runs = [self.runs[i % len(self.runs)] for i in range(len(after))]
        for number, (split, run) in enumerate(zip(after, runs, strict=True)):
            for i in range(run):
                if number == 0 and i == 20:
                    for _ in range(self.missing):
                        time = self._row(time, 0, "-", "-")
                time = self._row(time, 1, "training", "-")
            parts = [("in", self.inputs), ("target", self.forecast)]
            if split != "validation":
                parts.append(("buffer", self.forecast))
            for kind, length in parts:
                for _ in range(length):
                    time = self._row(time, 1, split, f"{split}_{kind}")

    def _row(self, time, complete, split, split_type):
        self.rows.append((time, complete, split, split_type))
        return time + timedelta(minutes=15)

    def info(self, **changes):
        """What `dataset.json` would say of series, counted by hand."""
        series = {}
        for year in self.years:
            for split in SHORT:
                mine = [row for row in self.rows if row[0].year == year and row[1] and row[2] == split]
                targets = [row for row in mine if not row[3].endswith("_buffer")]
                images = mine if split == "training" else targets
                if split in ("test", "heldout"):
                    images = [row for row in mine if row[3].endswith("_in")]
                    if not self.targets:
                        targets = None
                for region in self.regions:
                    rain = None if targets is None else len(mine if split == "training" else targets)
                    series[f"{year}/{region}/{split}"] = {"satellite": len(images), "rain": rain}
        return {
            "format": "hdf5",
            "size": self.size,
            "regions": list(self.regions),
            "years": list(self.years),
            "inputs": self.inputs,
            "forecast": self.forecast,
            "holdout": "official" if self.targets else "local",
            "series": series,
            "digest": "none",
            **changes,
        }

    def write_csv(self, path, pad=True):
        """Write the table; without `pad`, times lack their leading zeros."""
        lines = [HEADER]
        for time, complete, split, split_type in self.rows:
            clock = time.strftime("%H%M%S")
            clock = clock if pad else str(int(clock))
            day = time.strftime("%Y%m%d,%Y-%m-%d")
            lines.append(f"{clock},{day},1,1,1,{complete},{complete},{split},{split_type}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    def write(self, root):
        """Write CSV and HDF5 files below `root`; return the info."""
        self.write_csv(root / "timestamps_and_splits.csv")
        info = self.info()
        for name, rows in info["series"].items():
            for kind, count in rows.items():
                if count is not None:
                    write_hdf5(root / hdf5_path(name, kind), kind, frames(name, kind, count, self.size))
        return info


def hdf5_path(name, kind):
    year, region, split = name.split("/")
    folder, middle, _, _ = KINDS[kind]
    return f"{year}/{folder}/{region}.{SHORT[split]}.{middle}.h5"


def write_hdf5(path, kind, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset(KINDS[kind][2], data=array, chunks=(1, *array.shape[1:]), **options)


def frames(name, kind, count, size):
    """Plausible numbers, the same for the same name: images with missing values, rates with sentinels."""
    return _frames(name, kind, count, size).copy()


@functools.lru_cache(maxsize=64)
def _frames(name, kind, count, size):
    random = np.random.default_rng(list(f"{name}/{kind}".encode()))
    if kind == "satellite":
        array = random.uniform(200, 300, (count, 11, size, size)).astype(np.float32)
        array[:, [0, 7, 8]] = random.uniform(0, 1, (count, 3, size, size))
        array[random.uniform(size=array.shape) < 0.01] = np.nan
        array[random.uniform(size=array.shape) < 0.01] = np.inf
        return array
    array = random.gamma(0.3, 0.5, (count, 1, size, size)).astype(np.float32)
    array[random.uniform(size=array.shape) < 0.3] = -8888000
    array[random.uniform(size=array.shape) < 0.05] = -9999000
    return array
