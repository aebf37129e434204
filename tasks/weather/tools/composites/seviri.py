"""EUMETSAT's own images: SEVIRI's level 1.5 in the native format (`MSG*-SEVI-MSG15-*-NA*.nat`), read by satpy.

An image of the layout has pixels of 12 km, of 6 x 6 pixels of rain; SEVIRI's are 3 km wide below the satellite and
some 3 x 5 km over Europe. So a pixel is the mean of `SAMPLES` x `SAMPLES` points spread evenly over it, each the value
of the satellite's pixel that lies nearest. Reflectances are shares of one and temperatures K, as in the competition's
files; high clouds are not moved to where they stand (parallax), as they are not there either.

satpy is an extra: `pip install 'retable[seviri]'`.

Source: EUMETSAT, *MSG Level 1.5 Image Data Format Description* (EUM/MSG/ICD/105); Herruzo et al. 2021, Weather4cast,
for the channels and their order.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pyproj import CRS, Transformer

from retable.platform.console import quiet
from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.tasks.weather.w4c import layout
from retable.tasks.weather.w4c.preprocess import CHANNELS

PATTERN = "*-SEVI-MSG15-*.nat"
STEP = timedelta(minutes=layout.STEP)
SAMPLES = 4
"""Points along each side of a pixel of 12 km, 3 km apart."""
UNIT = {"VIS006": 100.0, "VIS008": 100.0, "IR_016": 100.0}
"""Of the channels that satpy gives in per cent, as reflectances; the others are brightness temperatures in K."""
LOGGERS = ("satpy", "native_msg")
"""Whose warnings are not for the user: of orbits that are not needed, and the like."""
ABOUT = (
    "SEVIRI level 1.5, read by satpy: each pixel the mean of 16 points, nearest neighbours; not corrected for parallax"
)
"""Description of the images, for files and reports."""


@dataclass(frozen=True)
class Points:
    """Sampling points of an image's pixels: degrees, (S, S, SAMPLES * SAMPLES)."""

    longitude: Array
    latitude: Array


@dataclass(frozen=True)
class Scan:
    """One file: when its scan begins (UTC), and which part of the disk it shows."""

    path: Path
    begins: datetime
    extent: tuple[Any, ...]


def survey(folder: Path) -> tuple[dict[datetime, Path], list[str]]:
    """Return a folder's scans by the quarter of an hour at which they begin (UTC), and a line on what is left out.

    All show the same part of the disk. Of rapid scans, every five minutes, those that begin at a quarter are taken.

    Raises:
        UserError: where satpy is missing, or the folder holds no scan that can be read.
    """
    _satpy(folder)
    described: list[Scan] = []
    skipped: list[str] = []
    for path in sorted(folder.glob(PATTERN)):
        try:
            described.append(_describe(path))
        except UserError as error:
            skipped.append(str(error))
    at_quarters = [scan for scan in described if scan.begins == quarter(scan.begins)]
    if len(at_quarters) < len(described):
        between = len(described) - len(at_quarters)
        skipped.append(f"{folder}: {between} of {len(described)} scans begin between two quarters of an hour, not used")
    if not at_quarters:
        raise UserError(skipped[0] if skipped else f"{folder}: no scans ({PATTERN}); give a folder of them")
    ((most, _),) = Counter(scan.extent for scan in at_quarters).most_common(1)
    scans: dict[datetime, Path] = {}
    for scan in at_quarters:
        if scan.extent != most:
            skipped.append(f"{scan.path}: shows another part of the disk than most scans")
        elif scan.begins in scans:
            skipped.append(f"{scan.path}: same time as {scans[scan.begins].name}, {scan.begins}")
        else:
            scans[scan.begins] = scan.path
    return scans, skipped


def _describe(path: Path) -> Scan:
    """Read a scan's header.

    Raises:
        UserError: where the file is damaged or lacks a channel.
    """
    with _quiet(path):
        scene = _scene(path)
        scene.load(list(CHANNELS))  # names them; what is in them is read when it is asked for
        if lacking := [name for name in CHANNELS if name not in scene]:
            raise UserError(f"{path}: has no {', '.join(lacking)}; order all channels, and not HRV alone")
        area = scene[CHANNELS[0]].attrs["area"]
        return Scan(path, scene.start_time.replace(tzinfo=None), (area.shape, tuple(area.area_extent)))


def quarter(time: datetime) -> datetime:
    """Return the nearest quarter of an hour."""
    midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (time - midnight + STEP / 2) // STEP * STEP


def points(projdef: str, corner: tuple[float, float], pixel: float, size: int) -> Points:
    """Return where to look up an image of `size` x `size` pixels, each of 6 x 6 pixels of rain.

    Args:
        projdef: the rain's projection, PROJ's string.
        corner: the upper left corner of the square, x and y in the projection's metres.
        pixel: a pixel of rain in metres.
        size: pixels across the image.

    Raises:
        UserError: where the projection is not understood.
    """
    inside = (np.arange(SAMPLES) + 0.5) / SAMPLES
    along = (np.arange(size)[:, None] + inside).ravel() * 6 * pixel
    x, y = np.meshgrid(corner[0] + along, corner[1] - along)
    try:
        transformer = Transformer.from_crs(CRS.from_user_input(projdef), CRS.from_epsg(4326), always_xy=True)
    except Exception as error:  # pyproj's own, of several kinds
        raise UserError(f"the composites' projection {projdef!r} is not understood: {error}") from error
    longitude, latitude = (_by_pixel(degrees, size) for degrees in transformer.transform(x, y))
    return Points(longitude, latitude)


def _by_pixel(grid: Array, size: int) -> Array:
    """Return samples (size * SAMPLES, size * SAMPLES) as (size, size, SAMPLES * SAMPLES)."""
    split = grid.reshape(size, SAMPLES, size, SAMPLES).transpose(0, 2, 1, 3)
    return split.reshape(size, size, SAMPLES * SAMPLES)


def sees(path: Path, where: Sequence[Points]) -> list[bool]:
    """Return whether a scan shows all of each square.

    Raises:
        UserError: where the file is damaged.
    """
    with _quiet(path):
        scene = _scene(path)
        scene.load([CHANNELS[0]])
        area = scene[CHANNELS[0]].attrs["area"]
        return [not _nearest(area, square.longitude, square.latitude)[2].any() for square in where]


def read(path: Path, where: Sequence[Points]) -> Array:
    """Return a scan's images, float32 (squares, 11, S, S) with the channels in the order of `CHANNELS`.

    Not a number where nothing was seen. A file is unpacked as a whole, whatever is asked for: ask for all squares.

    Raises:
        UserError: where the file is damaged.
    """
    longitude, latitude = (np.stack([getattr(square, name) for square in where]) for name in ("longitude", "latitude"))
    with _quiet(path):
        scene = _scene(path)
        scene.load(list(CHANNELS))
        row, column, unseen = _nearest(scene[CHANNELS[0]].attrs["area"], longitude, latitude)  # the channels' is one
        images = [_means(scene[name].values, row, column, unseen) / UNIT.get(name, 1.0) for name in CHANNELS]
    return np.stack(images, axis=1).astype(np.float32)


def _nearest(area: Any, longitude: Array, latitude: Array) -> tuple[Array, Array, Array]:
    """Return rows and columns of the pixels nearest to points, and which of the points are not in the image."""
    indices = [np.ma.asarray(numbers) for numbers in area.get_array_indices_from_lonlat(longitude, latitude)]
    unseen = np.ma.getmaskarray(indices[0]) | np.ma.getmaskarray(indices[1])
    column, row = (np.where(unseen, 0, np.ma.getdata(numbers)).astype(np.int64) for numbers in indices)
    return row, column, unseen


def _means(channel: Array, row: Array, column: Array, unseen: Array) -> Array:
    """Return the means over the points of each pixel, (squares, S, S)."""
    values = np.where(unseen, np.nan, channel[row, column])
    seen = np.isfinite(values)
    total = np.where(seen, values, 0).sum(-1)
    return np.where(seen.any(-1), total / np.maximum(seen.sum(-1), 1), np.nan)


def _scene(path: Path) -> Any:
    """Open a scan; its images are read when they are asked for."""
    return _satpy(path).Scene(filenames=[str(path)], reader="seviri_l1b_native")


def _satpy(path: Path) -> Any:
    """Import satpy."""
    try:
        import satpy
    except ImportError as error:
        remedy = "pip install 'retable[seviri]'"
        raise UserError(f"{path}: SEVIRI's files are read by satpy, which is not here; {remedy}") from error
    return satpy


@contextmanager
def _quiet(path: Path) -> Iterator[None]:
    """Silence satpy's warnings and logs, and convert its errors, of any type, to a UserError."""
    try:
        with quiet(LOGGERS, logging.CRITICAL), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UserError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"{path}: satpy cannot read it ({lines[0]}); remove it or get it again") from error


def scan_of(scans: Mapping[datetime, Path], time: datetime, tolerance: timedelta) -> Path | None:
    """Return the scan that belongs to a composite: of the quarter of an hour that it misses by no more."""
    nearest = quarter(time)
    return scans.get(nearest) if abs(time - nearest) <= tolerance else None
