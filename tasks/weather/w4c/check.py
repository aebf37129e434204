"""Look for defects of a data set: in the competition's layout, or converted to Parquet."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import Storage
from retable.tasks.weather.w4c.convert import parts
from retable.tasks.weather.w4c.frames import Frames, open_hdf5, part_path, read_hdf5
from retable.tasks.weather.w4c.layout import REMEDY, SPLITS, TARGET, Slots, blocks, layout_files, read_csv, remedy
from retable.tasks.weather.w4c.prepare import file_digest, lengths, scan
from retable.tasks.weather.w4c.preprocess import (
    CHANNELS,
    HIGH,
    HIGHEST_RATE,
    LOW,
    MASKED,
    MISSING,
    UNDETECTED,
    classify,
)

Read = Callable[[slice], Array]

SAMPLED = 16
"""Frames of a file whose values are looked at, evenly spread."""
FLOOD = 0.5
"""A frame's channel with more missing values than this share is a defect."""
BELOW, ABOVE = 0.1, 0.5
"""How far values may leave a channel's clip range, in its widths."""
REFLECTANCES = ("IR_016", "VIS006", "VIS008")
AGAIN = "download or write it again"


def check(where: Storage | Path) -> list[str]:
    """Return one line for each defect of the data set in a folder; an empty list if it is fine.

    Every file is opened and its key, shape and rows are compared with the CSV; of the values, 16 frames of each file
    are looked at. Converted sets are read whole, as their files have checksums.

    Args:
        where: the root of a layout, or the folder of a converted set.

    """
    folder = Storage.open(where)
    try:
        info = folder.read_json("dataset.json") if folder.exists("dataset.json") else {}
        if info and not (
            isinstance(info, dict) and all(isinstance(info.get(key), dict) for key in ("series", "files"))
        ):
            raise UserError(f"{folder}/dataset.json: not a data set's; remove it, and the files are indexed again")
        slots = read_csv(folder)
    except UserError as error:
        return [_here(str(error))]
    if info.get("format") == "parquet":
        defects = [*_sequence_defects(folder, slots), *_parquet_defects(folder, info, slots)]
    elif not folder.is_local:
        defects = [f"{folder}: HDF5 cannot be read from here; run `retable data convert weather` on a local storage"]
    else:
        defects = [*_sequence_defects(folder, slots), *_layout_defects(Path(folder.root), info, slots)]
    return [_here(defect) for defect in defects]


def _here(line: str) -> str:
    """Return an error's line without what sends to this command."""
    return line.replace(f" ({REMEDY})", "").replace(f"; {REMEDY}", "")


def _unlisted(
    folder: Storage | Path, present: Collection[tuple[int, str]], slots: Mapping[tuple[int, str], Slots]
) -> Iterator[str]:
    """Yield the years, and the splits of the others, that have files and no row of the CSV."""
    years, put = {year for year, _ in slots}, "put the CSV that belongs to these files there"
    for year in sorted({year for year, _ in present} - years):
        yield f"{folder}/{year}: the CSV does not list this year; {put}"
    for year, split in sorted({pair for pair in present if pair[0] in years} - slots.keys()):
        yield f"{folder}: the CSV lists no complete row of {split} in {year}, of which files are there; {put}"


def _sequence_defects(folder: Storage, slots: Mapping[tuple[int, str], Slots]) -> Iterator[str]:
    inputs, forecast = lengths(slots)
    for (year, split), here in slots.items():
        if split == "training":
            continue
        with_targets = bool((here.kind == TARGET).any())
        starts, _ = blocks(here, split, inputs, forecast, with_targets)
        left = len(here.rain_rows) - len(starts) * (inputs + forecast if with_targets else inputs)
        if left:
            what = f"{left} rows of {split} belong to no whole sequence of {inputs} + {forecast} frames"
            yield f"{folder}: the CSV has gaps: in {year} {what}; such sequences are left out"


def _layout_defects(root: Path, info: Mapping[str, Any], slots: Mapping[tuple[int, str], Slots]) -> Iterator[str]:
    present = list(scan(root))
    if not present:
        yield f"{root}: no satellite images; put the competition's files there"
    sizes: dict[int, Path] = {}
    yield from _absent(root, present, slots)
    yield from _foreign(root, present)
    for year, region, split in present:
        wanted = slots[year, split].rows(split) if (year, split) in slots else (None, None)
        for (kind, (path, key, channels)), count in zip(layout_files(year, region, split).items(), wanted, strict=True):
            full = root / path
            if not full.exists():
                continue  # said already
            try:
                data = open_hdf5(full, key, channels)
                sizes.setdefault(data.shape[-1], full)
                yield from _row_defects(full, len(data), count)
                if info and info["files"].get(path) != file_digest(path, data):
                    yield f"{full}: not the file that dataset.json knows; put it back, or {remedy(info)}"
                yield from _value_defects(full, kind, partial(read_hdf5, data), len(data))
            except UserError as error:
                yield str(error)
    if len(sizes) > 1:
        yield f"{root}: files of several sizes: " + ", ".join(f"{path} is {size} wide" for size, path in sizes.items())


def _absent(root: Path, present: list[tuple[int, str, str]], slots: Mapping[tuple[int, str], Slots]) -> Iterator[str]:
    """Yield the files that others, or the CSV, let expect."""
    years = {year for year, _, _ in present}
    for year in sorted({year for year, _ in slots} - years if years else set()):
        yield f"{root}/{year}: missing, but the CSV lists the year; put its files there, or leave the year out"
    yield from _unlisted(root, {(year, split) for year, _, split in present}, slots)
    for region, split in sorted({(region, split) for _, region, split in present}):
        for year in sorted(years):
            if (year, region, split) not in present:
                if (year, split) in slots:
                    path = layout_files(year, region, split)["satellite"][0]
                    yield f"{root / path}: missing, though another year has it; put it there, or leave the region out"
                continue
            path = layout_files(year, region, split)["rain"][0]
            if split in ("training", "validation") and not (root / path).exists():
                yield f"{root / path}: missing, though its satellite images are there; put it there"


def _foreign(root: Path, present: list[tuple[int, str, str]]) -> Iterator[str]:
    expected = {path for series in present for path, _, _ in layout_files(*series).values()}
    for path in sorted([*root.glob("[0-9]*/HRIT/*"), *root.glob("[0-9]*/OPERA/*")]):
        if path.relative_to(root).as_posix() in expected:
            continue
        split = path.name.split(".")[1] if path.name.count(".") > 2 else ""
        if path.parent.name == "OPERA" and split in SPLITS.values() and path.name.endswith(".rates.crop.h5"):
            yield f"{path}: its satellite images are missing; put them there"
        else:
            yield f"{path}: no file of the competition's layout; remove it"


def _row_defects(path: Path | str, rows: int, wanted: int | None) -> Iterator[str]:
    if wanted is not None and rows != wanted:
        many = f"{abs(rows - wanted)} {'missing' if rows < wanted else 'too many'}"
        yield f"{path}: {rows} frames, but the CSV lists {wanted} ({many}); take file and CSV from one download"


def _value_defects(path: Path | str, kind: str, read: Read, rows: int) -> Iterator[str]:
    """Yield what is wrong with values; `read(rows)` returns frames, (n, 11, S, S) or (n, 1, S, S)."""
    if not rows:
        yield f"{path}: no frames; {AGAIN}"
        return
    chosen = np.unique(np.linspace(0, rows - 1, min(rows, SAMPLED)).round().astype(int))
    frames = np.concatenate([read(slice(row, row + 1)) for row in chosen.tolist()])
    names = CHANNELS if kind == "satellite" else ("rain rate",)
    flooded = (np.isnan(frames).mean(axis=(2, 3)) > FLOOD).sum(axis=0)
    for name, count in zip(names, flooded, strict=True):
        if count:
            yield f"{path}: {name}: more than half NaN in {count} of {len(chosen)} sampled frames; {AGAIN}"
    if kind == "rain":
        yield from _rain_defects(path, frames[:, 0])
        return
    yield from _flat_defects(path, frames)
    for channel, name in enumerate(names):
        values = frames[:, channel][np.isfinite(frames[:, channel])]
        low, width = float(LOW[channel]), float(HIGH[channel] - LOW[channel])
        if len(values) and (values.min() < low - BELOW * width or values.max() > low + (1 + ABOVE) * width):
            values_range = f"{values.min():g} to {values.max():g}, expected about {low:g} to {low + width:g}"
            yield f"{path}: {name}: values from {values_range}; reflectances are shares, temperatures kelvin"


def _flat_defects(path: Path | str, frames: Array) -> Iterator[str]:
    """Yield a line on images (n, 11, S, S) whose temperatures are one value everywhere; at night reflectances are 0."""
    thermal = [channel for channel, name in enumerate(CHANNELS) if name not in REFLECTANCES]
    flat = (frames[:, thermal] == frames[:, thermal, :1, :1]).all(axis=(2, 3))
    empty, dead = flat.all(axis=1).sum(), [CHANNELS[thermal[k]] for k in np.flatnonzero(flat.all(axis=0))]
    if empty:
        yield f"{path}: images: one value everywhere in {empty} of {len(frames)} sampled frames; {AGAIN}"
    elif dead:
        yield f"{path}: {', '.join(dead)}: one value everywhere in all sampled frames; {AGAIN}"


def _rain_defects(path: Path | str, rates: Array) -> Iterator[str]:
    events = classify(rates, 0.0)
    if (events == MASKED).all():
        yield f"{path}: no sampled pixel has a measurement; {AGAIN}"
    odd = (rates < 0) & (rates != MISSING) & (rates != UNDETECTED)
    if odd.any():
        negative = f"negative rain rates ({rates[odd].min():g})"
        yield f"{path}: {negative}; only {MISSING:.0f} and {UNDETECTED:.0f} stand for missing and undetected"
    beyond = np.isfinite(rates) & (rates > HIGHEST_RATE)
    if beyond.mean() > FLOOD:
        yield f"{path}: more than half above {HIGHEST_RATE:g} mm/h in the sampled frames; rates must be in mm/h"


def _parquet_defects(folder: Storage, info: Mapping[str, Any], slots: Mapping[tuple[int, str], Slots]) -> Iterator[str]:
    present = [series.split("/") for series in info["series"]]
    yield from _unlisted(folder, {(int(year), split) for year, _, split in present}, slots)
    broken = set()
    for path, checksum in sorted(info["files"].items()):
        if not folder.exists(path):
            broken.add(path)
            yield f"{folder}/{path}: missing; convert again"
        elif hashlib.sha256(folder.read(path)).hexdigest() != checksum:
            broken.add(path)
            yield f"{folder}/{path}: not the file that was written (checksum); remove it and convert again"
    frames = Frames(folder, info)
    damaged = {
        (piece["series"], piece["kind"])
        for piece in parts(info)
        if part_path(piece["series"], piece["kind"], piece["number"]) in broken
    }
    for series, rows in sorted(info["series"].items()):
        year, split = int(series.split("/")[0]), series.split("/")[2]
        wanted = slots[year, split].rows(split) if (year, split) in slots else (None, None)
        for kind, count in zip(("satellite", "rain"), wanted, strict=True):
            if rows[kind] is None or (series, kind) in damaged:
                continue
            name = f"{folder}: {series} {kind}"
            yield from _row_defects(name, rows[kind], count)
            try:
                yield from _value_defects(name, kind, partial(frames.read, series, kind), rows[kind])
            except UserError as error:
                yield str(error)
