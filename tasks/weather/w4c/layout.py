"""Names of the competition's files, and the index of the windows that training, validation and tests read.

The layout is that of Weather4cast 2022 (stage 2): `{year}/HRIT/{region}.{split}.reflbt0.ns.h5` holds satellite images,
`{year}/OPERA/{region}.{split}.rates.crop.h5` rain rates, and one CSV file says to which split each quarter of an hour
belongs. Its rows of one split and year that have all variables, in the order of time, are the rows of every region's
files. Of test and heldout the organisers publish the images before each forecast alone; our generated data have rain
files for them as well, with the rows of inputs and targets.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from csv import writer
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from retable.platform.errors import UserError, nearest, words
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import Storage
from retable.tasks.weather.w4c.preprocess import CHANNELS

VERSION = 2
"""Raised when the numbers of simulated weather or images change. 2: images know nothing of later rain."""
SIMULATION = (
    "computed by retable.tasks.weather.w4c.satellite.observe from the rain of the whole square at the image's time and "
    "in the hour before it; not observed"
)
"""Provenance text of images that are simulated from real rain."""
CLOUDS = "computed by retable.tasks.weather.w4c.satellite.draw from generated clouds, which generated rain follows"
"""Provenance text of images of generated weather."""
SPLITS = {"training": "train", "validation": "val", "test": "test", "heldout": "heldout"}
"""The splits, as the CSV names them, and as file names do."""
SATELLITE, RAIN = "REFL-BT", "rates.crop"
"""Keys of the data sets in the HDF5 files: float32 (frames, 11, S, S) and (frames, 1, S, S)."""
CSV = "timestamps_and_splits.csv"
CSV_NAMES = tuple(
    folder + name
    for name in (CSV, "timestamps_and_splits_stage2.csv", "timestamps_and_splits_2019.csv")
    for folder in ("", "data/")
)
"""Possible paths of the CSV; the first that exists counts."""
COLUMNS = ("time", "date_str", "date", "RATE", "ACRR", "DBZH", "REFL-BT", "all_vars", "split", "split_type")
"""Of the CSV."""
STEP = 15
"""Minutes from one frame to the next."""
HOLDOUT = 60
"""At most so many local hold-out sequences of each kind in a series, where nothing else is said: as the organisers."""
LOCAL_SHARE = 5
"""Local hold-outs and their buffers take at most one frame in so many."""
INPUT, TARGET = 1, 2
REMEDY = "`retable data check weather` says more"


def series_name(year: int, region: str, split: str) -> str:
    """Return the name of one pair of files, such as `2019/boxi_0015/training`."""
    return f"{year}/{region}/{split}"


def satellite_path(year: int, region: str, split: str) -> str:
    """Return where the layout keeps a series' satellite images."""
    return f"{year}/HRIT/{region}.{SPLITS[split]}.reflbt0.ns.h5"


def rain_path(year: int, region: str, split: str) -> str:
    """Return where the layout keeps a series' rain rates."""
    return f"{year}/OPERA/{region}.{SPLITS[split]}.rates.crop.h5"


def layout_files(year: int, region: str, split: str) -> dict[str, tuple[str, str, int]]:
    """Return a series' two files by kind: path, key and channels."""
    return {
        "satellite": (satellite_path(year, region, split), SATELLITE, len(CHANNELS)),
        "rain": (rain_path(year, region, split), RAIN, 1),
    }


@dataclass(frozen=True)
class Window:
    """Position of one sample."""

    series: str
    satellite: int
    """Row of the first input in the series' satellite images."""
    rain: int
    """Row of the series' rain rates that belongs to the first input; the targets follow the inputs."""


@dataclass(frozen=True)
class Slots:
    """The rows of one year and split in the order of time.

    Attributes:
        time: datetime64[m] (n,).
        kind: uint8 (n,): INPUT, TARGET, or 0 where the CSV's `split_type` ends otherwise (`-`, `*_buffer`).

    """

    time: Array
    kind: Array

    @property
    def rain_rows(self) -> Array:
        """Return where the inputs and targets stand: these rows a test's rain file has, and a validation's both."""
        return np.flatnonzero(self.kind)

    def rows(self, split: str) -> tuple[int, int]:
        """Return how many rows the split's satellite files have, and its rain files."""
        if split == "training":
            return len(self.time), len(self.time)
        rain = len(self.rain_rows)
        return (rain if split == "validation" else int((self.kind == INPUT).sum())), rain


def find_csv(folder: Storage) -> str:
    """Return the path of a layout's CSV below its root.

    Raises:
        UserError: where there is none.

    """
    for name in CSV_NAMES:
        if folder.exists(name):
            return name
    raise UserError(f"{folder}/{CSV} is missing; put the competition's file {CSV_NAMES[2]} there")


def read_csv(folder: Storage) -> dict[tuple[int, str], Slots]:
    """Read the rows that have all variables from a layout's CSV, by year and split.

    The reference sorts times as text; we sort them as times, which differs only where the file lacks leading zeros.

    Raises:
        UserError: where the file is missing, foreign, or lists a slot of a split twice.

    """
    name = find_csv(folder)
    columns = ["time", "date_str", "all_vars", "split", "split_type"]
    options = csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string()))
    try:
        table = csv.read_csv(io.BytesIO(folder.read(name)), convert_options=options)
        text = {column: np.asarray(table[column].to_numpy(), dtype=str) for column in columns}
        date, clock = text["date_str"].astype(np.int64), text["time"].astype(np.int64)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise UserError(f"{folder}/{name}: not the competition's table ({words(error)}); download it again") from error
    time = _times(date, clock)
    kind = np.zeros(len(time), np.uint8)
    kind[np.char.endswith(text["split_type"], "_in")] = INPUT
    kind[np.char.endswith(text["split_type"], "_target")] = TARGET
    complete, year = np.isin(np.char.lower(text["all_vars"]), ("1", "1.0", "true")), date // 10_000
    slots = {}
    for split in SPLITS:
        chosen = np.flatnonzero(complete & (text["split"] == split))
        chosen = chosen[np.argsort(time[chosen], kind="stable")]
        twice = np.flatnonzero(np.diff(time[chosen]) == np.timedelta64(0))
        if len(twice):
            raise UserError(
                f"{folder}/{name}: {split} has the slot {time[chosen][twice[0]]} twice; download it again ({REMEDY})"
            )
        for this in np.unique(year[chosen]):
            rows = chosen[year[chosen] == this]
            slots[int(this), split] = Slots(time[rows], kind[rows])
    return slots


def write_csv(path: Path, rows: Iterable[tuple[datetime, Sequence[int], str, str]]) -> None:
    """Write a layout's CSV: of each slot its time, which variables are there, split and `split_type`."""
    with path.open("w", newline="") as file:
        table = writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for time, flags, *names in rows:
            table.writerow((f"{time:%H%M%S}", f"{time:%Y%m%d}", f"{time:%Y-%m-%d}", *flags, *names))


def _times(date: Array, clock: Array) -> Array:
    """Return YYYYMMDD and HHMMSS (integers, (n,)) as datetime64[m] (n,)."""
    years = (date // 10_000 - 1970).astype("datetime64[Y]")
    days = (years + (date // 100 % 100 - 1).astype("timedelta64[M]")) + (date % 100 - 1).astype("timedelta64[D]")
    time: Array = days + (clock // 10_000 * 60 + clock // 100 % 100).astype("timedelta64[m]")
    return time


def contiguous(time: Array, length: int) -> Array:
    """Return each row from which on `length` frames follow one another without a gap, int64 (m,)."""
    if len(time) < length:
        return np.empty(0, np.int64)
    gapless = time[length - 1 :] - time[: len(time) - length + 1] == np.timedelta64((length - 1) * STEP, "m")
    return np.flatnonzero(gapless)


def local_holdout(time: Array, others: Array, inputs: int, forecast: int, most: int) -> tuple[Array, Array]:
    """Choose the sequences of the training set that stand in for a test whose targets nobody has.

    The training set is cut into equal parts, at most twice `most` and so few that sequences and buffers take no more
    than a fifth of it (but two at least). In each part the sequence without a gap that is nearest to the middle is
    chosen, of those where neither it nor its buffer meets validation, whose weather thresholds and rows are chosen by.
    As every region has the same slots, the choice is the same for all.

    Args:
        time: of the training frames, in order, datetime64[m] (n,).
        others: of the validation frames, in order.
        inputs: images that a forecast starts from.
        forecast: lead times.
        most: the most sequences in each of test and heldout.

    Returns:
        First rows of the sequences, int64 (m,), in the order of time: test, heldout, test, ...
        Which rows no training window may touch, bool (n,): the sequences and `forecast` slots on either side.

    """
    length, rows = inputs + forecast, len(time)
    parts = min(2 * most, max(2, rows // (LOCAL_SHARE * (length + 2 * forecast)) // 2 * 2))
    starts, chosen, buffer = contiguous(time, length), [], np.timedelta64(forecast * STEP, "m")
    before = np.searchsorted(others, time[starts] - buffer)
    starts = starts[before == np.searchsorted(others, time[starts + length - 1] + buffer, "right")]
    for part in range(parts):
        low, high = part * rows // parts, (part + 1) * rows // parts - length
        inside = starts[(starts >= low) & (starts <= high)]
        if len(inside):
            chosen.append(inside[np.argmin(np.abs(inside - (low + high) // 2))])
    taken = np.zeros(rows, bool)
    for start in chosen:
        taken |= (time >= time[start] - buffer) & (time <= time[start + length - 1] + buffer)
    return np.array(chosen, np.int64), taken


def blocks(slots: Slots, split: str, inputs: int, forecast: int, with_targets: bool) -> tuple[Array, Array]:
    """Return the first input of each sequence, as rows of the satellite file and of the rain file, int64 (m,) each.

    Sequences are found by their runs of inputs; `with_targets` leaves out those whose targets do not follow without a
    gap.
    """
    rows = slots.rain_rows
    time, is_input, length = slots.time[rows], slots.kind[rows] == INPUT, inputs + forecast
    joined = np.zeros(len(rows), bool)
    joined[1:] = is_input[1:] & is_input[:-1] & (np.diff(time) == np.timedelta64(STEP, "m"))
    position = np.arange(len(rows))
    nth = position - np.maximum.accumulate(np.where(joined, 0, position))  # place within its run of inputs
    starts = np.intersect1d(np.flatnonzero(is_input & (nth % inputs == 0)), contiguous(time, inputs))
    starts = starts[is_input[starts[:, None] + np.arange(inputs)].all(axis=1)]
    if with_targets:
        starts = np.intersect1d(starts, contiguous(time, length))
        starts = starts[~is_input[starts[:, None] + np.arange(inputs, length)].any(axis=1)]
    images = starts if split == "validation" else np.cumsum(is_input)[starts] - 1
    return images.astype(np.int64), starts.astype(np.int64)


def remedy(info: Mapping[str, Any]) -> str:
    """Return how to index files again that are not those that `info`, a data set's `dataset.json`, knows."""
    if made := {"imported": "import", "generated": "make"}.get(info.get("source", "")):
        return f"remove the folder and {made} the data set again"  # their dataset.json says more than the files do
    return "remove dataset.json, and the files are indexed again"


class Index:
    """Which windows a data set has. It knows times and rows, and reads no frame."""

    def __init__(self, slots: Mapping[tuple[int, str], Slots], info: Mapping[str, Any], holdout: int = HOLDOUT) -> None:
        """Take the rows of the CSV (see `read_csv`), what `dataset.json` says, and a config's `holdout`."""
        self._slots, self._info, self._holdout = slots, info, holdout
        self._inputs, self._forecast = int(info["inputs"]), int(info["forecast"])

    @staticmethod
    def read(folder: Storage, info: Mapping[str, Any], holdout: int = HOLDOUT) -> Index:
        """Read the index of the data set in `folder`; `info` is its `dataset.json`, `holdout` a config's.

        Raises:
            UserError: where the CSV is missing, foreign or damaged.

        """
        table = find_csv(folder)
        if info.get("files", {}).get(table) not in (None, hashlib.sha256(folder.read(table)).hexdigest()):
            raise UserError(f"{folder}/{table}: not the table that dataset.json knows; put it back, or {remedy(info)}")
        return Index(read_csv(folder), info, holdout)

    def training(
        self, regions: Sequence[str], years: Sequence[int], inputs: int, forecast: int, with_validation: bool
    ) -> list[Window]:
        """Return the windows of `inputs + forecast` frames without a gap, ordered by year, region (as given) and start.

        The reference finds the same ones, but for those that cross New Year, which lie in two files. None touches a
        local hold-out or its buffer. `with_validation` adds each validation sequence, once, after its region's windows.

        Raises:
            UserError: where a region or year is unknown, a length exceeds the layout's, or files and CSV disagree.

        """
        self._check(regions, years, inputs, forecast)
        windows = []
        for year in years:
            starts_here, added = self._training_starts(year, inputs, forecast)
            for region in regions:
                for split, starts in (("training", starts_here), ("validation", added if with_validation else [])):
                    name = series_name(year, region, split)
                    if self._has(name):
                        self._check_rows(name, year, split)
                        windows += [Window(name, start, start) for start in starts]
        return windows

    def sequences(
        self, split: str, regions: Sequence[str], years: Sequence[int], inputs: int, forecast: int
    ) -> dict[str, list[Window]]:
        """Return the sequences on which forecasts of a split are scored, by shard `{split}/{year}/{region}`.

        A run may ask for less than the layout has: its inputs are then the last ones, its targets the first ones.
        Where the organisers keep the targets, test and heldout are local hold-outs (see `local_holdout`).

        Returns:
            Shards in the order of years, then regions; what has no such data is left out.

        Raises:
            UserError: as `training` does.

        """
        if split == "validation" or self._info["holdout"] != "local":
            return self.official(split, regions, years, inputs, forecast, targets=True)
        self._check(regions, years, inputs, forecast)
        if not self._holdout:
            raise UserError(f"holdout 0 holds no sequences back for {split}; score validation, or train with a holdout")
        shards = {}
        for year in years:
            starts, _ = self._local(year)
            rows = (starts[("test", "heldout").index(split) :: 2] + self._inputs - inputs).tolist()
            for region in regions:
                name = series_name(year, region, "training")
                if self._has(name) and rows:
                    self._check_rows(name, year, "training")
                    shards[f"{split}/{year}/{region}"] = [Window(name, row, row) for row in rows]
        return shards

    def official(
        self, split: str, regions: Sequence[str], years: Sequence[int], inputs: int, forecast: int, targets: bool
    ) -> dict[str, list[Window]]:
        """Return the organisers' sequences of a split, as `sequences` does; without `targets` also those to submit.

        With `targets` a sequence without a gap up to its last target counts, and a series whose rain is there.
        """
        self._check(regions, years, inputs, forecast)
        shards = {}
        for year in years:
            satellite, rain = blocks(self._slot(year, split), split, self._inputs, self._forecast, with_targets=targets)
            later = self._inputs - inputs
            pairs = list(zip((satellite + later).tolist(), (rain + later).tolist(), strict=True))
            for region in regions:
                name = series_name(year, region, split)
                if pairs and name in self._info["series"] and (self._has(name) or not targets):
                    self._check_rows(name, year, split)
                    shards[f"{split}/{year}/{region}"] = [Window(name, *pair) for pair in pairs]
        return shards

    def holdout(self, years: Sequence[int], inputs: int, forecast: int) -> tuple[int, int, int, int]:
        """Return what the local hold-outs of some years cost and give in a region.

        Training windows that stay, those without a hold-out, and sequences of `test` and of `heldout`.
        """
        windows = sum(len(self._training_starts(year, inputs, forecast)[0]) for year in years)
        every = sum(len(contiguous(self._slot(year, "training").time, inputs + forecast)) for year in years)
        chosen = [len(self._local(year)[0]) for year in years]
        return windows, every, sum((count + 1) // 2 for count in chosen), sum(count // 2 for count in chosen)

    def free(self, series: str) -> Array:
        """Return which rain rows of a series belong to no local hold-out or its buffer, bool (n,)."""
        year, _, split = series.split("/")
        rows = len(self._slot(int(year), split).time)
        if split != "training" or self._info["holdout"] != "local":
            return np.ones(rows, bool)
        return ~self._local(int(year))[1]

    def reference_times(self, windows: Sequence[Window], inputs: int) -> Array:
        """Return the time of each window's last input, from which its lead times count, datetime64[m] (n,)."""
        times = []
        for window in windows:
            year, _, split = window.series.split("/")
            slots = self._slot(int(year), split)
            time = slots.time if split == "training" else slots.time[slots.rain_rows]
            times.append(time[window.rain + inputs - 1])
        return np.array(times, "datetime64[m]")

    def _training_starts(self, year: int, inputs: int, forecast: int) -> tuple[list[int], list[int]]:
        """Return the first rows of a year's training windows, and of the validation sequences that may join them."""
        slots, length = self._slot(year, "training"), inputs + forecast
        starts = contiguous(slots.time, length)
        added, _ = blocks(self._slot(year, "validation"), "validation", self._inputs, self._forecast, with_targets=True)
        added = added + self._inputs - inputs
        if self._info["holdout"] == "local":
            before = np.concatenate([[0], np.cumsum(self._local(year)[1])])
            starts = starts[before[starts + length] == before[starts]]
        return starts.tolist(), added.tolist()

    def _local(self, year: int) -> tuple[Array, Array]:
        time, others = (self._slot(year, split).time for split in ("training", "validation"))
        return local_holdout(time, others, self._inputs, self._forecast, self._holdout)

    def _slot(self, year: int, split: str) -> Slots:
        nothing = Slots(np.empty(0, "datetime64[m]"), np.empty(0, np.uint8))
        return self._slots.get((year, split), nothing)

    def _has(self, name: str) -> bool:
        return name in self._info["series"] and self._info["series"][name]["rain"] is not None

    def _check(self, regions: Sequence[str], years: Sequence[int], inputs: int, forecast: int) -> None:
        for field, asked, available in (("inputs", inputs, self._inputs), ("forecast", forecast, self._forecast)):
            if asked > available:
                raise UserError(f"{field} {asked}: the data are laid out for at most {available}; lower it")
        for region in regions:
            if region not in self._info["regions"]:
                raise UserError(f"regions: no {region!r} in these data{nearest(region, self._info['regions'])}")
        for year in years:
            if year not in self._info["years"]:
                raise UserError(f"years: no {year} in these data{nearest(str(year), map(str, self._info['years']))}")

    def _check_rows(self, name: str, year: int, split: str) -> None:
        rows, asked = self._info["series"][name], self._slot(year, split).rows(split)
        for what, have, want in zip(("satellite", "rain"), (rows["satellite"], rows["rain"]), asked, strict=True):
            if have is not None and have != want:
                raise UserError(f"{name}: {have} {what} rows, but the CSV lists {want}; {REMEDY}")
