"""Rain rates of the Multi-Radar Multi-Sensor system (MRMS) of the United States: GRIB2, packed by gzip or not.

A file holds one message, PrecipRate in mm/h, on a grid of 0.01 degrees. GRIB2 is read by pygrib, an extra:
`pip install 'retable[grib]'`. What is below 0 (-1 missing, -3 no coverage) was not measured.

Source: NOAA NSSL, *Operational MRMS GRIB2 Tables*, version 12.2; Zhang et al. 2016, *Multi-Radar Multi-Sensor (MRMS)
Quantitative Precipitation Estimation*.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.tasks.weather.tools.composites.opening import LARGEST, content
from retable.tasks.weather.tools.composites.resample import PIXEL, EqualAngles, plane

SUFFIXES = (".grib2", ".grb2", ".grib2.gz", ".grb2.gz")
PRECIP_RATE = (209, 6, 1)
"""Discipline, category and number of the surface rain rate."""
SCANNING = ("iScansNegatively", "jScansPositively", "jPointsAreConsecutive", "alternativeRowScanning")
METHOD = (
    f"pixels of equal angle are resampled to {PIXEL:,.0f} m on an equal-area projection: each is the mean of those "
    "whose centres it holds"
)
"""Description of the resampling, for the screen."""


@dataclass(frozen=True, eq=False)
class Message:
    """A file's one message, its rain not yet unpacked."""

    time: datetime
    grid: EqualAngles
    values: Any
    """The library's message; `resample.flatten` reads it."""

    @property
    def pixels(self) -> Array:
        """Return an array of the plane's shape that takes no memory."""
        return np.broadcast_to(np.float32(0), plane(self.grid).shape)


def message(path: Path) -> Message:
    """Open a file of one message, checked before the library sees it, which prints what it finds wrong.

    Raises:
        UserError: where pygrib is missing, or the file holds something else than PrecipRate from north to south.
        ValueError: where it is no whole message.
    """
    try:
        import pygrib
    except ImportError as error:
        raise UserError(f"{path}: GRIB2 is read by pygrib, which is not here; pip install 'retable[grib]'") from error
    data = content(path)
    # Indicator section: "GRIB", two reserved bytes, discipline, edition, and the whole message's length.
    if len(data) < 20 or data[:4] != b"GRIB" or data[7] != 2 or data[-4:] != b"7777":
        raise ValueError("no whole GRIB2 message")
    if struct.unpack_from(">Q", data, 8)[0] != len(data):
        raise ValueError("more than one GRIB2 message, or a part of one")
    opened = pygrib.fromstring(data)
    return Message(*_described(path, opened), opened)


def _described(path: Path, message: Any) -> tuple[datetime, EqualAngles]:
    """Return the time and grid of a message of the library."""
    holds = tuple(message[name] for name in ("discipline", "parameterCategory", "parameterNumber"))
    if holds != PRECIP_RATE:
        raise UserError(f"{path}: holds discipline, category and number {holds}, not MRMS's PrecipRate; remove it")
    if message["gridType"] != "regular_ll" or any(message[name] for name in SCANNING):
        raise UserError(f"{path}: its grid is not one of longitudes and latitudes from north and west; remove it")
    down, across = (message[f"{axis}DirectionIncrementInDegrees"] for axis in "ji")
    north, west = (message[f"{axis}OfFirstGridPointInDegrees"] for axis in ("latitude", "longitude"))
    shape = message["Nj"], message["Ni"]
    if shape[0] * shape[1] > LARGEST or max(down, across) > 0.012:
        raise UserError(f"{path}: {shape[0]} x {shape[1]} pixels of {down:g} degrees; MRMS's are 0.01 wide")
    time = datetime(*(message[name] for name in ("year", "month", "day", "hour", "minute", "second")))
    return time, EqualAngles(shape, north, west, down, across)
