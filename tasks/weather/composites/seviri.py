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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyproj import CRS, Transformer

from retable.platform.errors import UserError
from retable.tasks.weather.w4c import layout
from retable.tasks.weather.w4c.preprocess import CHANNELS

Array = npt.NDArray[Any]

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
"""What the images are, for files and reports."""


@dataclass(frozen=True)
class Points:
    """Where the pixels of an image are looked up: degrees, (S, S, SAMPLES * SAMPLES)."""

    longitude: Array
    latitude: Array


def survey(folder: Path) -> tuple[dict[datetime, Path], list[str]]:
    """Return a folder's scans by the quarter of an hour at which they begin (UTC), and a line on each other file.

    Raises:
        UserError: where satpy is missing, or the folder holds no scan that can be read.
    """
    _satpy(folder)
    scans: dict[datetime, Path] = {}
    skipped: list[str] = []
    for path in sorted(folder.glob(PATTERN)):
        try:
            begins = quarter(_time(path))
        except UserError as error:
            skipped.append(str(error))
            continue
        if begins in scans:
            skipped.append(f"{path}: same time as {scans[begins].name}, {begins}")
        else:
            scans[begins] = path
    if not scans:
        raise UserError(skipped[0] if skipped else f"{folder}: no scans ({PATTERN}); give a folder of them")
    return scans, skipped


def quarter(time: datetime) -> datetime:
    """Return the nearest quarter of an hour: a scan says when it began, some seconds late."""
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
        there = Transformer.from_crs(CRS.from_user_input(projdef), CRS.from_epsg(4326), always_xy=True)
    except Exception as error:  # pyproj's own, of several kinds
        raise UserError(f"the composites' projection {projdef!r} is not understood: {error}") from error
    longitude, latitude = (_by_pixel(degrees, size) for degrees in there.transform(x, y))
    return Points(longitude, latitude)


def _by_pixel(grid: Array, size: int) -> Array:
    """Return samples (size * SAMPLES, size * SAMPLES) as (size, size, SAMPLES * SAMPLES)."""
    split = grid.reshape(size, SAMPLES, size, SAMPLES).transpose(0, 2, 1, 3)
    return split.reshape(size, size, SAMPLES * SAMPLES)


def read(path: Path, where: Sequence[Points]) -> Array:
    """Return a scan's images, float32 (squares, 11, S, S) with the channels in the order of `CHANNELS`.

    Not a number where nothing was seen. A file is unpacked as a whole, whatever is asked for: ask for all squares.

    Raises:
        UserError: where the file is damaged or lacks a channel, or the satellite does not see a square.
    """
    longitude, latitude = (np.stack([getattr(each, name) for each in where]) for name in ("longitude", "latitude"))
    with _quiet(path):
        scene = _scene(path)
        scene.load(list(CHANNELS))
        lacking = [name for name in CHANNELS if name not in scene]
        if lacking:
            raise UserError(f"{path}: has no {', '.join(lacking)}; order all channels, and not HRV alone")
        area = scene[CHANNELS[0]].attrs["area"]  # the channels' grid is one
        found = [np.ma.asarray(numbers) for numbers in area.get_array_indices_from_lonlat(longitude, latitude)]
        unseen = np.ma.getmaskarray(found[0]) | np.ma.getmaskarray(found[1])
        if unseen.reshape(len(where), -1).all(1).any():
            raise UserError(f"{path}: the satellite does not see all squares; leave out --satellite")
        column, row = (np.where(unseen, 0, np.ma.getdata(numbers)).astype(np.int64) for numbers in found)
        images = [_means(scene[name].values, row, column, unseen) / UNIT.get(name, 1.0) for name in CHANNELS]
    return np.stack(images, axis=1).astype(np.float32)


def _means(channel: Array, row: Array, column: Array, unseen: Array) -> Array:
    """Return the means over the points of each pixel, (squares, S, S)."""
    values = np.where(unseen, np.nan, channel[row, column])
    seen = np.isfinite(values)
    total = np.where(seen, values, 0).sum(-1)
    return np.where(seen.any(-1), total / np.maximum(seen.sum(-1), 1), np.nan)


def _time(path: Path) -> datetime:
    """Return when a scan began, UTC."""
    with _quiet(path):
        time: datetime = _scene(path).start_time
    return time.replace(tzinfo=None)


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
    """Let no warning or log of satpy's pass, and make its errors a line: it raises what its parts happen to."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UserError:
        raise
    except Exception as error:
        said = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"{path}: satpy cannot read it ({said[0]}); remove it or get it again") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def scan_of(scans: Mapping[datetime, Path], time: datetime) -> Path | None:
    """Return the scan that belongs to a composite: of the nearest quarter of an hour."""
    return scans.get(quarter(time))
