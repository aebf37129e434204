"""The competition's submissions: write, read and check them.

A submission is a zip of one HDF5 file for each year and region, `{year}/{region}.pred.h5`, plain or gzipped (`.gz`),
with no folder above the years. Its data set `submission`, float32 of 0 and 1, has the shape (60, 1, 32, 252, 252):
sequences, a channel, lead times, rows, columns. The authors left the channel out, and the server took it.

Source: the competition's description and the files that participants sent; the server's own code is not public.
"""

from __future__ import annotations

import gzip
import io
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import h5py
import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.store.hdf5 import plain_numbers
from retable.platform.store.storage import whole_file
from retable.tasks.weather.config import CORE_REGIONS, STEPS, TRANSFER_REGIONS

CORE = tuple((year, region) for year in (2019, 2020) for region in CORE_REGIONS)
"""Years and regions of the core challenge: 14 files."""
TRANSFER = (
    *((year, region) for year in (2019, 2020) for region in TRANSFER_REGIONS),
    *((2021, region) for region in (*CORE_REGIONS, *TRANSFER_REGIONS)),
)
"""Years and regions of the transfer challenge: 16 files, of regions or a year that nobody trains on."""
KEY = "submission"
NAME = re.compile(r"(\d{4})/(\w+)\.pred\.h5(\.gz)?")
TYPES = ("float32", "uint8")
"""Types of the files that participants sent: the description's float32, and uint8 of the runner-up."""
LIMIT = 2**30
"""Bytes that a file may unpack to; the largest honest one, float32 and not compressed, has 488 MB."""
ENTRIES = 1000
"""Files that a zip may hold."""
UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error)
"""Exceptions of zipfile, gzip and h5py for broken, encrypted or odd files."""


def write(path: Path, predictions: Iterable[tuple[int, str, Array]]) -> None:
    """Write a submission; equal predictions give equal bytes.

    Args:
        path: the zip to write; it appears only when it is whole.
        predictions: year, region and `steps` uint8 (n, L, S, S), one region and year after another; only one is held.
            From half of the steps on, rain is forecast.

    Raises:
        ValueError: where a region and year comes twice, or steps have other axes.

    """
    written: set[str] = set()
    # Stored: the files are compressed inside.
    with whole_file(path) as writing, zipfile.ZipFile(writing, "w") as archive:
        for year, region, steps in predictions:
            name = f"{year}/{region}.pred.h5"
            if name in written or steps.ndim != 4:
                raise ValueError(f"{name}: comes twice, or has the shape {steps.shape}")
            written.add(name)
            entry = zipfile.ZipInfo(name)  # dated 1980, whenever it is written
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, packed(steps))


def packed(steps: Array) -> bytes:
    """Return the HDF5 file of one region and year, made sequence by sequence."""
    shape = (len(steps), 1, *steps.shape[1:])
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        data = file.create_dataset(KEY, shape, "f4", chunks=(1, *shape[1:]), compression="gzip", shuffle=True)
        for sequence, forecast in enumerate(steps):
            data[sequence] = (forecast >= STEPS // 2).reshape(shape[1:])
    return buffer.getvalue()


def check(
    path: Path,
    wanted: Sequence[tuple[int, str]] = (),
    sequences: int = 60,
    forecast: int = 32,
    size: int = 252,
) -> list[str]:
    """Return why the organisers' server would refuse a submission, a line each; nothing where it would take it.

    Files are read sequence by sequence, and nothing is unpacked beyond `LIMIT` bytes.

    Args:
        path: the zip.
        wanted: years and regions; none: the core challenge's, or the transfer's where the zip holds any of those.
        sequences: of a region and year.
        forecast: lead times.
        size: pixels across.
    """
    axes = (sequences, forecast, size, size)
    try:
        with opened(path) as archive:
            entries, reasons = members(archive)
            wanted = wanted or (TRANSFER if entries.keys() & set(TRANSFER) else CORE)
            missing = [key for key in wanted if key not in entries]
            reasons += [f"{year}/{region}.pred.h5: is missing" for year, region in missing]
            for key, entry in entries.items():
                if key not in wanted:
                    reasons.append(f"{entry.filename}: this region and year is not asked for")
                else:
                    reasons += wrong(archive, entry, axes)
    except UserError as error:
        return [str(error)]
    return reasons


def wrong(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, axes: tuple[int, ...]) -> list[str]:
    """Return what is wrong with one file that ought to have these axes, its channel left out."""
    try:
        with dataset(archive, entry) as data:
            if data.shape not in (axes, (axes[0], 1, *axes[1:])):
                expected = (axes[0], 1, *axes[1:])
                return [f"{entry.filename}: {KEY!r} has the shape {data.shape}, not {expected} or {axes}"]
            return [f"{entry.filename}: {reason}" for reason in defects(data)]
    except UserError as error:
        return [str(error)]


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip, or raise a UserError."""
    try:
        archive = zipfile.ZipFile(path)
    except UNREADABLE as error:
        raise UserError(f"{path}: is no zip file that can be read ({error})") from error
    with archive:
        if len(archive.infolist()) > ENTRIES:
            raise UserError(f"{path}: holds {len(archive.infolist())} files, more than {ENTRIES}")
        yield archive


def members(archive: zipfile.ZipFile) -> tuple[dict[tuple[int, str], zipfile.ZipInfo], list[str]]:
    """Return a zip's files by year and region, and why others do not belong there."""
    entries: dict[tuple[int, str], zipfile.ZipInfo] = {}
    reasons: list[str] = []
    for entry in archive.infolist():
        if entry.is_dir():
            continue
        match = NAME.fullmatch(entry.filename)
        below = NAME.fullmatch("/".join(entry.filename.split("/")[-2:]))
        if match is None and below is not None:
            top = entry.filename.removesuffix(f"/{below.group()}")
            reasons.append(f"{entry.filename}: lies in a top-level folder {top!r}; years must be at the top")
        elif match is None:
            reasons.append(f"{entry.filename}: is no {{year}}/{{region}}.pred.h5 or .pred.h5.gz")
        elif (int(match[1]), match[2]) in entries:
            reasons.append(f"{entry.filename}: comes twice")
        else:
            entries[int(match[1]), match[2]] = entry
    return entries, reasons


@contextmanager
def dataset(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[h5py.Dataset]:
    """Unpack one file to a temporary one and open its data set, or raise a UserError."""
    with tempfile.TemporaryFile() as unpacked:
        unpack(archive, entry, unpacked)
        try:
            file = h5py.File(unpacked, "r")
        except UNREADABLE as error:
            raise UserError(f"{entry.filename}: is no HDF5 file, or a truncated one") from error
        with file:
            try:
                data = plain_numbers(Path(entry.filename), file, KEY, f"the file holds {', '.join(file) or 'nothing'}")
            except UNREADABLE as error:
                raise UserError(f"{entry.filename}: cannot be read ({error})") from error
            yield data


def unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: IO[bytes]) -> None:
    """Unpack one file of a zip, and its gzip, but no more than `LIMIT` bytes."""
    try:
        with archive.open(entry) as stored:
            source: IO[bytes] = gzip.open(stored) if entry.filename.endswith(".gz") else stored  # type: ignore[assignment]
            size = 0
            while block := source.read(2**20):
                size += len(block)
                if size > LIMIT:
                    raise UserError(f"{entry.filename}: unpacks to more than {LIMIT} bytes")
                target.write(block)
    except UNREADABLE as error:
        raise UserError(f"{entry.filename}: cannot be unpacked ({error})") from error
    target.seek(0)


def defects(data: h5py.Dataset) -> list[str]:
    """Return what is wrong with axes, type and values of a data set; values are read sequence by sequence."""
    shape: tuple[int, ...] = data.shape or ()
    if len(shape) not in (4, 5) or (len(shape) == 5 and shape[1] != 1) or data.dtype.name not in TYPES:
        return [f"{KEY!r} is {data.dtype.name} {shape}, not float32 (sequences, 1, lead times, rows, columns)"]
    if max(data.nbytes, int(np.prod(data.chunks or (1,))) * data.dtype.itemsize) > LIMIT:
        return [f"{KEY!r} has more than {LIMIT} bytes"]
    reasons: set[str] = set()
    try:
        for sequence in range(len(data)):
            values = data[sequence]
            if np.isnan(values).any():
                reasons.add(f"{KEY!r} holds values that are not numbers")
            if not np.isin(values[~np.isnan(values)], (0, 1)).all():
                reasons.add(f"{KEY!r} holds values other than 0 and 1; apply a threshold first")
    except UNREADABLE as error:
        reasons.add(f"{KEY!r} cannot be read whole ({error})")
    return sorted(reasons)
