"""Real rain composites as their providers publish them: OPERA's ODIM_H5 and NWC-SAF's netCDF-4, read by h5py.

Sources: Michelson et al. 2014, *EUMETNET OPERA weather radar information model for implementation with the HDF5 file
format*, version 2.2; NWC SAF, *Data output format for the NWC/GEO*, 2016.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt
import pyproj

from retable.platform.errors import UserError
from retable.tasks.weather.preprocess import MISSING, UNDETECTED

Array = npt.NDArray[Any]

PRODUCTS = {"opera": "OPERA composites", "crr": "NWC-SAF convective rain rate"}
SUFFIXES = (".h5", ".hdf", ".hdf5", ".nc", ".nc4")


@dataclass(frozen=True)
class Grid:
    """The pixels of a composite; row 0 lies in the north."""

    shape: tuple[int, int]
    pixel: float | None
    """Width in metres in the projection's plane (of a satellite's own grid: below the satellite); None: not said."""
    projdef: str
    """PROJ's string; empty: not said."""
    corner: tuple[float, float] | None
    """The upper left corner of the upper left pixel, x and y in the projection's metres; None: not known."""


@dataclass(frozen=True)
class Composite:
    """One file, its rain not yet read."""

    path: Path
    product: Literal["opera", "crr"]
    time: datetime
    """What the file calls its own (nominal) time, UTC."""
    grid: Grid

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> Array:
        """Return the rain rate of a window, float32 (rows, columns) in mm/h, with `MISSING` and `UNDETECTED`.

        NWC-SAF's dry pixels are 0; it has no other word for them.

        Raises:
            UserError: where the file cannot be read.

        """
        with _opened(self.path) as file:
            key, scale, offset, sentinels = _rate(self.path, file)
            raw: Array = file[key][rows, columns]
        rate: Array = (raw * scale + offset).astype(np.float32)
        rate[~np.isfinite(rate)] = MISSING
        for value, sentinel in sentinels.items():
            rate[raw == value] = sentinel
        return rate


def describe(path: Path) -> Composite:
    """Read what a file says of itself.

    Raises:
        UserError: where the file is truncated, foreign, or holds no rain rate.

    """
    with _opened(path) as file:
        shape = file[_rate(path, file)[0]].shape
        if "crr_intensity" in file:
            time = _text(file.attrs["nominal_product_time"]).removesuffix("Z")
            return Composite(path, "crr", datetime.fromisoformat(time), _satellite_grid(path, file.attrs, shape))
        what = file["what"].attrs
        time = _text(what["date"]) + _text(what["time"])
        where = file["where"].attrs if "where" in file else {}
        return Composite(path, "opera", datetime.strptime(time, "%Y%m%d%H%M%S"), _radar_grid(path, where, shape))


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open a composite; whatever fails inside for want of valid contents becomes one line."""
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a readable composite ({reason}); download it again or remove it") from error


def _rate(path: Path, file: h5py.File) -> tuple[str, float, float, dict[float, float]]:
    """Return the rain rate's key, scale, offset and, by raw value, sentinels."""
    if "crr_intensity" in file:
        _check_own(path, file, "crr_intensity")
        attributes = file["crr_intensity"].attrs
        scale, offset, fill = (_number(attributes[name]) for name in ("scale_factor", "add_offset", "_FillValue"))
        return "crr_intensity", scale, offset, {fill: MISSING}
    found = []
    for dataset in sorted(name for name in file if name.startswith("dataset")):
        for data in sorted(name for name in file[dataset] if name.startswith("data")):
            # An attribute of the data overrules the same one of the data set above (section 4 of the format).
            groups = [group for group in (f"{dataset}/what", f"{dataset}/{data}/what") if group in file]
            what = {name: value for group in groups for name, value in file[group].attrs.items()}
            found.append(_text(what["quantity"]) if "quantity" in what else "nothing named")
            if found[-1] == "RATE":
                _check_own(path, file, f"{dataset}/{data}/data")
                gain, offset, nodata, undetect = (_number(what[k]) for k in ("gain", "offset", "nodata", "undetect"))
                return f"{dataset}/{data}/data", gain, offset, {undetect: UNDETECTED, nodata: MISSING}
    if found:
        raise UserError(f"{path}: holds {', '.join(found)} but no RATE; download the rain rate composites")
    raise UserError(f"{path}: neither an ODIM_H5 composite nor NWC-SAF's crr_intensity; remove it")


def _check_own(path: Path, file: h5py.File, key: str) -> None:
    """Refuse what is no map of numbers, or data that lie in another file, which could be any of this machine."""
    data = file[key]
    if not isinstance(data, h5py.Dataset) or data.ndim != 2 or data.dtype.kind not in "fiu":
        raise UserError(f"{path}: '{key}' is no map of numbers; download it again or remove it")
    if data.file.filename != file.filename or data.is_virtual or data.external:
        raise UserError(f"{path}: '{key}' keeps its data in another file; download it again or remove it")


def _number(value: Any) -> float:
    """Return an attribute's number; netCDF writes arrays of one."""
    return float(np.ravel(value)[0])


def _text(value: Any) -> str:
    """Return an attribute's text, stored with fixed or variable length."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _radar_grid(path: Path, where: Mapping[str, Any], shape: tuple[int, int]) -> Grid:
    """Read ODIM's /where."""
    if "xscale" in where and "yscale" in where and _number(where["xscale"]) != _number(where["yscale"]):
        raise UserError(f"{path}: its pixels are not square; give composites on an equal-area grid")
    pixel = _number(where["xscale"]) if "xscale" in where else None
    projdef = _text(where.get("projdef", ""))
    corner = None
    if "UL_lon" in where and "UL_lat" in where:
        corner = project(projdef, _number(where["UL_lon"]), _number(where["UL_lat"]))
    return Grid(shape, pixel, projdef, corner)


def _satellite_grid(path: Path, attributes: Mapping[str, Any], shape: tuple[int, int]) -> Grid:
    """Read NWC-SAF's grid: pixels of equal angle seen from the satellite, 3 km wide below it and wider elsewhere."""
    if "gdal_geotransform_table" not in attributes:
        return Grid(shape, None, "", None)
    x, width, _, y, _, height = (float(number) for number in attributes["gdal_geotransform_table"])
    if width != -height:
        raise UserError(f"{path}: its pixels are not square; give composites on the satellite's own grid")
    return Grid(shape, width, _text(attributes.get("gdal_projection", "")), (x, y))


def project(projdef: str, longitude: float, latitude: float) -> tuple[float, float] | None:
    """Project degrees to metres, to the nearest metre; None where PROJ does not understand `projdef`."""
    try:
        x, y = pyproj.Proj(projdef)(longitude, latitude)
    except pyproj.exceptions.CRSError:
        return None
    return float(round(x)) + 0.0, float(round(y)) + 0.0  # no -0
