"""Rain rates on pixels of about 2 km: finer square pixels are averaged in blocks, pixels of equal angle in a plane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyproj

from retable.platform.spec.arrays import Array
from retable.tasks.weather.w4c.preprocess import HIGHEST_RATE, MISSING, UNDETECTED

PIXEL = 2000.0
"""Width of the layout's rain pixels in metres."""
NEAR = 0.001
"""By so much of `PIXEL` a pixel may differ from it without a remark; FMI's and KNMI's do."""
MEASURED = 0.5
"""Share of the fine pixels of a coarse one that must be measured."""
WIDEST = 120.0
"""Degrees that a grid of equal angles may span; a plane shows no more of the earth."""
ROWS = 256
"""Rows of a grid of equal angles that are projected or averaged at a time, to limit memory."""


def coarse(rate: Array, factor: int) -> Array:
    """Average blocks of `factor` x `factor` pixels, which fit without a rest; see `Composite.read`."""
    if factor == 1:
        return rate
    shape = tuple(length // factor for length in rate.shape)
    total, seen, echoes = np.zeros(shape), np.zeros(shape, np.int16), np.zeros(shape, np.int16)
    for row, column in np.ndindex(factor, factor):  # one pixel of each block at a time: no copy of the blocks
        part = rate[row::factor, column::factor]
        echo = part != UNDETECTED
        measured = part != MISSING
        echo &= measured
        total += np.where(echo, part, 0)
        seen += measured
        echoes += echo
    mean: Array = (total / np.maximum(seen, 1)).astype(np.float32)
    mean[echoes == 0] = UNDETECTED
    mean[seen < MEASURED * factor**2] = MISSING
    return mean


@dataclass(frozen=True)
class EqualAngles:
    """A grid of longitudes and latitudes; row 0 lies in the north, column 0 in the west."""

    shape: tuple[int, int]
    north: float
    """Latitude of the first row's centres, degrees."""
    west: float
    """Longitude of the first column's centres, degrees."""
    down: float
    """Degrees from row to row."""
    across: float
    """Degrees from column to column."""


@dataclass(frozen=True)
class Plane:
    """Square pixels of `PIXEL` that cover a grid of equal angles."""

    shape: tuple[int, int]
    projdef: str
    corner: tuple[float, float]
    """The upper left corner of the upper left pixel, metres."""


@lru_cache(maxsize=4)
def plane(grid: EqualAngles) -> Plane:
    """Return pixels on Lambert's azimuthal equal-area projection about the grid's middle (to a tenth of a degree).

    Raises:
        ValueError: where the grid is too wide for one plane, or beyond the poles.
    """
    (height, width), half = grid.shape, (grid.down / 2, grid.across / 2)
    spans = (grid.down * height, grid.across * width)
    if not all(0 < span <= WIDEST for span in spans) or abs(grid.north - spans[0] / 2) + spans[0] / 2 > 90:
        raise ValueError(f"a grid of {spans[0]:g} x {spans[1]:g} degrees from {grid.north:g}, {grid.west:g}")
    middle = grid.north - grid.down * (height - 1) / 2, grid.west + grid.across * (width - 1) / 2
    longitude = (round(middle[1], 1) + 180) % 360 - 180
    projdef = f"+proj=laea +lat_0={middle[0]:.1f} +lon_0={longitude:.1f} +ellps=WGS84 +units=m"
    latitudes = np.linspace(grid.north + half[0], grid.north + half[0] - spans[0], 2 * height + 1)
    longitudes = np.linspace(grid.west - half[1], grid.west - half[1] + spans[1], 2 * width + 1)
    border = [(longitudes, np.full(longitudes.shape, edge)) for edge in (latitudes[0], latitudes[-1])]
    border += [(np.full(latitudes.shape, edge), latitudes) for edge in (longitudes[0], longitudes[-1])]
    east, north = (np.concatenate(part) for part in zip(*border, strict=True))
    x, y = pyproj.Proj(projdef)(east, north)
    left, top = math.floor(x.min() / PIXEL), math.ceil(y.max() / PIXEL)
    shape = top - math.floor(y.min() / PIXEL), math.ceil(x.max() / PIXEL) - left
    return Plane(shape, projdef, (left * PIXEL, top * PIXEL))


@lru_cache(maxsize=1)  # of the whole United States 100 MB; all files of an archive share it
def cells(grid: EqualAngles) -> Array:
    """Return, for each pixel of equal angles, the plane's pixel that its centre lies in, int32 (height * width,)."""
    target, (height, width) = plane(grid), grid.shape
    project, longitudes = pyproj.Proj(target.projdef), grid.west + grid.across * np.arange(width)
    index = np.empty((height, width), np.int32)
    for first in range(0, height, ROWS):
        latitudes = grid.north - grid.down * np.arange(first, min(height, first + ROWS))
        x, y = project(*np.meshgrid(longitudes, latitudes))
        row, column = (target.corner[1] - y) // PIXEL, (x - target.corner[0]) // PIXEL
        index[first : first + ROWS] = row * target.shape[1] + column
    return index.ravel()


def flatten(rate: Array, grid: EqualAngles) -> Array:
    """Resample rain rates on equal angles to the plane's pixels, float32, by bucket averaging.

    A pixel is the mean of those whose centres it holds, each alike, since their areas hardly differ within 2 km; it is
    `MISSING` where it holds none, or fewer than half of them are measured. Nothing is smoothed or made up in between:
    a grid coarser than 2 km would leave holes. A rate above `HIGHEST_RATE` counts as `HIGHEST_RATE`.

    Args:
        rate: (height, width) in mm/h, masked or not; masked and below 0: not measured.
        grid: where the pixels lie.
    """
    target, index, width = plane(grid), cells(grid), grid.shape[1]
    pixels = math.prod(target.shape)
    total, seen, held = np.zeros(pixels), np.zeros(pixels, np.int32), np.zeros(pixels, np.int32)
    for first in range(0, grid.shape[0], ROWS):
        values = np.minimum(np.ma.filled(rate[first : first + ROWS], -1.0).ravel(), HIGHEST_RATE)
        where = index[first * width : first * width + len(values)]
        measured = values >= 0
        low, high = int(where.min()), int(where.max()) + 1
        part = slice(low, high)
        total[part] += np.bincount(where[measured] - low, values[measured], high - low)
        seen[part] += np.bincount(where[measured] - low, minlength=high - low)
        held[part] += np.bincount(where - low, minlength=high - low)
    mean: Array = (total / np.maximum(seen, 1)).astype(np.float32)
    mean[(seen < MEASURED * held) | (held == 0)] = MISSING
    return mean.reshape(target.shape)
