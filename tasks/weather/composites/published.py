"""The layouts in which composites of rain are published: what a file says of itself, and its rain rate.

Read are OPERA's and others' ODIM_H5 (rate, accumulation or reflectivity), NWC-SAF's netCDF-4, KNMI's HDF5, the netCDF
of Australia's Bureau of Meteorology, the PGM of Finland's FMI and, by `grib`, MRMS's GRIB2.

Sources: Michelson et al. 2014, *EUMETNET OPERA weather radar information model for implementation with the HDF5 file
format*, version 2.2; NWC SAF, *Data output format for the NWC/GEO*, 2016; of the others what their files say.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt
import pyproj

from retable.platform.errors import UserError
from retable.tasks.weather.composites import grib
from retable.tasks.weather.composites.resample import PIXEL, plane
from retable.tasks.weather.w4c.preprocess import MISSING, UNDETECTED

Array = npt.NDArray[Any]
Quantity = Literal["rate", "accumulation", "reflectivity"]

PRODUCTS = {
    "opera": "ODIM_H5 radar composites",
    "crr": "NWC-SAF convective rain rate",
    "knmi": "KNMI radar composites",
    "bom": "rainfields of the Bureau of Meteorology",
    "fmi": "FMI radar composites",
    "mrms": "MRMS rain rates",
}
SUFFIXES = (".h5", ".hdf", ".hdf5", ".nc", ".nc4", ".pgm", ".pgm.gz", *grib.SUFFIXES)
WANTED: Mapping[str, Quantity] = {"RATE": "rate", "ACRR": "accumulation", "DBZH": "reflectivity", "TH": "reflectivity"}
"""ODIM's quantities that are rain, the best first."""
MARSHALL_PALMER = (200.0, 1.6)
"""a and b of Z = a R^b."""
LARGEST = 1 << 28
"""Pixels of a composite and bytes of a packed picture, at the most."""
WIDTHS = (50.0, 50_000.0)
"""Widths in metres that a pixel may have; what says another is damaged."""
YEARS = (1950, 2100)
"""Years that a composite may be of."""


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
class Described:
    """What a file says of itself."""

    product: str
    time: datetime
    grid: Grid
    quantity: Quantity
    resampled: str = ""
    """What the reader does to the file's pixels, in words; empty: nothing."""


@dataclass(frozen=True)
class Field:
    """A map in an HDF5 file, and what its numbers mean."""

    key: str
    quantity: Quantity
    scale: float
    offset: float
    sentinels: Mapping[float, float]
    """Raw values that are no rain, and what they are here."""
    minutes: float = 0.0
    """Of an accumulation."""
    relation: tuple[float, float] = MARSHALL_PALMER

    def rate(self, raw: Array) -> Array:
        """Return rain rates in mm/h, with `MISSING` and `UNDETECTED`."""
        return rates(raw, self)


def rates(raw: Array, field: Field) -> Array:
    """Turn the numbers of a map into rain rates, float32 in mm/h, with sentinels."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is out of range is no measurement
        value: Array = raw * field.scale + field.offset
        if field.quantity == "accumulation":
            value = value * (60 / field.minutes)
        elif field.quantity == "reflectivity":
            a, b = field.relation
            value = (10 ** (value / 10) / a) ** (1 / b)
        rate: Array = value.astype(np.float32)
    rate[~np.isfinite(rate)] = MISSING
    for number, sentinel in field.sentinels.items():
        rate[raw == number] = sentinel
    return rate


def describe(path: Path) -> Described:
    """Read what a file says of itself.

    Raises:
        UserError: where the file is truncated, foreign, or holds nothing that is rain.
    """
    with _told(path):
        found = _described(path)
        if found.time.tzinfo is not None:
            found = replace(found, time=found.time.astimezone(UTC).replace(tzinfo=None))
        _check_range(path, found)
        return found


def _described(path: Path) -> Described:
    if path.name.lower().endswith(grib.SUFFIXES):
        message = grib.describe(path)
        flat = plane(message.grid)
        return Described("mrms", message.time, Grid(flat.shape, PIXEL, flat.projdef, flat.corner), "rate", grib.METHOD)
    if _is_picture(path):
        said, pixels = _picture(path)
        time, grid = datetime.strptime(said["obstime"], "%Y%m%d%H%M"), _fmi_grid(path, said, pixels.shape)
        return Described("fmi", time, grid, "reflectivity")
    with h5py.File(path, "r") as file:
        product = _product(path, file)
        found = field_of(path, file, product)
        _check_own(path, file, found.key)
        time, grid = MEASURES[product](path, file, file[found.key].shape)
        return Described(product, time, grid, found.quantity)


def _check_range(path: Path, found: Described) -> None:
    """Refuse what no composite says of itself, and what would not fit into memory."""
    (height, width), pixel = found.grid.shape, found.grid.pixel
    said = ""
    if pixel is not None and not WIDTHS[0] <= pixel <= WIDTHS[1]:
        said = f"pixels of {pixel:g} m"
    elif height * width > LARGEST:
        said = f"{height} x {width} pixels"
    elif not YEARS[0] <= found.time.year < YEARS[1]:
        said = f"to be of {found.time}"
    if said:
        raise UserError(f"{path}: says {said}, which no composite has; download it again or remove it")


def read(path: Path, rows: slice, columns: slice) -> Array:
    """Return the rain rate of a window of the described grid, float32 (rows, columns) in mm/h, with sentinels.

    Raises:
        UserError: where the file cannot be read.
    """
    with _told(path):
        if path.name.lower().endswith(grib.SUFFIXES):
            return grib.read(path)[rows, columns]
        if _is_picture(path):
            said, pixels = _picture(path)
            missing = {float(said.get("missingval", 255)): MISSING}
            return rates(pixels[rows, columns], Field("", "reflectivity", 0.5, -32.0, missing | {0.0: UNDETECTED}))
        with h5py.File(path, "r") as file:
            found = field_of(path, file, _product(path, file))
            _check_own(path, file, found.key)
            return found.rate(file[found.key][rows, columns])


def _is_picture(path: Path) -> bool:
    return path.name.lower().endswith((".pgm", ".pgm.gz"))


def _product(path: Path, file: h5py.File) -> str:
    """Return whose layout a file has."""
    if "crr_intensity" in file:
        return "crr"
    if "image1/image_data" in file and "overview" in file:
        return "knmi"
    if "precipitation" in file and "valid_time" in file:
        return "bom"
    if any(name.startswith("dataset") for name in file):
        return "opera"
    raise UserError(
        f"{path}: neither an ODIM_H5 composite nor one of NWC-SAF (crr_intensity), KNMI or the Bureau of Meteorology; "
        "remove it"
    )


def field_of(path: Path, file: h5py.File, product: str) -> Field:
    """Return the map of rain in a file, and what its numbers mean."""
    match product:
        case "crr":
            attributes = file["crr_intensity"].attrs
            scale, offset, fill = (_number(attributes[name]) for name in ("scale_factor", "add_offset", "_FillValue"))
            return Field("crr_intensity", "rate", scale, offset, {fill: MISSING})
        case "knmi":
            return _knmi_field(path, file)
        case "bom":
            attributes = file["precipitation"].attrs
            scale, offset, fill = (_number(attributes[name]) for name in ("scale_factor", "add_offset", "_FillValue"))
            minutes = (_number(file["valid_time"][()]) - _number(file["start_time"][()])) / 60
            _check_minutes(path, minutes)
            return Field("precipitation", "accumulation", scale, offset, {fill: MISSING}, minutes)
    return _odim_field(path, file)


def _check_minutes(path: Path, minutes: float) -> None:
    """Refuse an accumulation whose time is none."""
    if not 0 < minutes <= 60:
        raise UserError(f"{path}: an accumulation of {minutes:g} minutes; rain rates need one of an hour at most")


def _odim_field(path: Path, file: h5py.File) -> Field:
    """Find an ODIM file's best map of rain; attributes that lack have ODIM's defaults."""
    found: dict[str, Field] = {}
    seen = []
    for dataset in sorted(name for name in file if name.startswith("dataset")):
        for data in sorted(name for name in file[dataset] if name.startswith("data")):
            # An attribute of the data overrules the same one of the data set above (section 4 of the format).
            groups = [group for group in ("what", f"{dataset}/what", f"{dataset}/{data}/what") if group in file]
            what = {name: value for group in groups for name, value in file[group].attrs.items()}
            seen.append(_text(what["quantity"]) if "quantity" in what else "nothing named")
            if seen[-1] in WANTED and seen[-1] not in found:
                how = f"{dataset}/{data}/how"
                found[seen[-1]] = _odim_meaning(path, f"{dataset}/{data}/data", WANTED[seen[-1]], what, file.get(how))
    for quantity in WANTED:
        if quantity in found:
            return found[quantity]
    raise UserError(f"{path}: holds {', '.join(seen) or 'no data'} but none of {', '.join(WANTED)}")


def _odim_meaning(path: Path, key: str, quantity: Quantity, what: Mapping[str, Any], how: Any) -> Field:
    """Return what the numbers of an ODIM map mean."""
    sentinels = {
        _number(what[name]): value for name, value in (("undetect", UNDETECTED), ("nodata", MISSING)) if name in what
    }
    minutes, relation = 0.0, MARSHALL_PALMER
    if quantity == "accumulation":
        start, end = (_moment(what[f"{name}date"], what[f"{name}time"]) for name in ("start", "end"))
        minutes = (end - start).total_seconds() / 60
        _check_minutes(path, minutes)
    if how is not None and "zr_a" in how.attrs and "zr_b" in how.attrs:
        relation = _number(how.attrs["zr_a"]), _number(how.attrs["zr_b"])
    scale, offset = _number(what.get("gain", 1.0)), _number(what.get("offset", 0.0))
    return Field(key, quantity, scale, offset, sentinels, minutes, relation)


def _knmi_field(path: Path, file: h5py.File) -> Field:
    """Read KNMI's calibration: `GEO=0.01*PV+0.0`, millimetres of the file's own minutes, or reflectivity."""
    calibration, kind = file["image1/calibration"].attrs, _text(file["image1"].attrs["image_geo_parameter"])
    formula = re.fullmatch(
        r"GEO=([-+.\deE]+)\*PV([-+][.\deE+-]*)", _text(calibration["calibration_formulas"]).replace(" ", "")
    )
    if not formula:
        raise UserError(f"{path}: its calibration formula is not understood; expected GEO=a*PV+b")
    names = ("calibration_missing_data", "calibration_out_of_image")
    sentinels = {_number(calibration[name]): MISSING for name in names if name in calibration}
    scale, offset = float(formula[1]), float(formula[2])
    if kind.startswith("ACCUMULATED"):
        start, end = (_knmi_time(file, name) for name in ("start", "end"))
        minutes = (end - start).total_seconds() / 60
        _check_minutes(path, minutes)
        return Field("image1/image_data", "accumulation", scale, offset, sentinels, minutes)
    if "REFLECTIVITY" in kind:
        return Field("image1/image_data", "reflectivity", scale, offset, sentinels)
    raise UserError(f"{path}: holds {kind}, which is no rain; remove it")


def _knmi_time(file: h5py.File, name: str) -> datetime:
    text = _text(np.ravel(file["overview"].attrs[f"product_datetime_{name}"])[0])
    return datetime.strptime(text.title(), "%d-%b-%Y;%H:%M:%S.%f")


def _crr(path: Path, file: h5py.File, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    time = _text(file.attrs["nominal_product_time"]).removesuffix("Z")
    return datetime.fromisoformat(time), _satellite_grid(path, file.attrs, shape)


def _opera(path: Path, file: h5py.File, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    what = file["what"].attrs
    places = [file[name].attrs for name in ("dataset1/where", "where") if name in file]
    where = {name: value for place in reversed(places) for name, value in place.items()}
    return _moment(what["date"], what["time"]), _radar_grid(path, where, shape)


def _knmi(path: Path, file: h5py.File, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    """Read KNMI's grid, which is in kilometres, the earth's radius too."""
    place = file["geographic"].attrs
    across, down = (_number(place[f"geo_pixel_size_{axis}"]) for axis in "xy")
    if across != -down:
        raise UserError(f"{path}: its pixels are not square; give composites on an equal-area grid")
    projection = _text(file["geographic/map_projection"].attrs["projection_proj4_params"])
    metres = re.sub(r"\+(a|b)=([.\d]+)", lambda found: f"+{found[1]}={float(found[2]) * 1000:.10g}", projection)
    left, top = _number(place["geo_column_offset"]) * across, _number(place["geo_row_offset"]) * down
    corner = (float(round(left * 1000)) + 0.0, float(round(top * 1000)) + 0.0)
    return _knmi_time(file, "end"), Grid(shape, across * 1000, metres, corner)


def _bom(path: Path, file: h5py.File, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    """Read the Bureau's grid: centres of pixels in kilometres on an Albers projection, north first."""
    x, y = (file[axis][:2].astype(float) for axis in "xy")
    pixel = round(float(x[1] - x[0]), 6)
    if pixel <= 0 or round(float(y[0] - y[1]), 6) != pixel:
        raise UserError(f"{path}: its pixels are not square or its rows begin in the south; give the Bureau's own grid")
    said = file["proj"].attrs
    first, second = np.ravel(said["standard_parallel"])[:2]
    minor = (
        f"+b={_number(said['semi_minor_axis'])}"
        if "semi_minor_axis" in said
        else f"+rf={_number(said['inverse_flattening'])}"
    )
    projection = (
        f"+proj=aea +lat_1={first:g} +lat_2={second:g} +lat_0={_number(said['latitude_of_projection_origin']):g} "
        f"+lon_0={_number(said['longitude_of_central_meridian']):g} +a={_number(said['semi_major_axis'])} {minor} "
        "+units=m"
    )
    corner = (float(x[0] - pixel / 2) * 1000, float(y[0] + pixel / 2) * 1000)
    time = datetime.fromtimestamp(_number(file["valid_time"][()]), UTC).replace(tzinfo=None)
    return time, Grid(shape, pixel * 1000, projection, corner)


MEASURES = {"crr": _crr, "opera": _opera, "knmi": _knmi, "bom": _bom}


@lru_cache(maxsize=4)
def _picture(path: Path) -> tuple[Mapping[str, str], Array]:
    """Return what a PGM of FMI says in its comments, and its pixels.

    Levels are 0.5 dBZ above -32, 255 is no measurement (`missingval`).
    """
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        data = file.read(LARGEST)
    header = re.match(rb"P5\s((?:#[^\n]*\n|\s)*)(\d+)\s+(\d+)\s+(\d+)\s", data)
    if not header:
        raise ValueError("no PGM")
    width, height, most = (int(header[group]) for group in (2, 3, 4))
    if most > 255 or width * height != len(data) - header.end():
        raise ValueError(f"{len(data) - header.end()} bytes of pixels, not {width} x {height}")
    pixels = np.frombuffer(data, np.uint8, width * height, header.end()).reshape(height, width)
    lines = (line.strip("# ").partition(" ") for line in header[1].decode("ascii", "replace").splitlines())
    said = {name: value.strip() for name, _, value in lines}
    if "Reflectivity" not in said["param"] or "obstime" not in said:
        raise ValueError(f"holds {said['param']}, not reflectivity, or says no obstime")
    return said, pixels


def _fmi_grid(path: Path, said: Mapping[str, str], shape: tuple[int, int]) -> Grid:
    """Read FMI's grid: polar stereographic; its two widths differ by some hundred thousandths."""
    try:
        across, down = (float(said[f"metersperpixel_{axis}"]) for axis in "xy")
        if said["type"] != "stereographic" or not abs(across / down - 1) <= 0.001:
            raise ValueError(said["type"])
        projection = (
            f"+proj=stere +lon_0={float(said['centrallongitude']):g} +lat_0={float(said['centrallatitude']):g} "
            f"+lat_ts={float(said['truelatitude']):g} +a=6371288 +b=6371288 +units=m"
        )
        longitude, latitude = (float(word) for word in said["bottomleft"].split())
        lower = project(projection, longitude, latitude)
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{path}: its projection is not FMI's stereographic one ({error}); remove it") from error
    corner = None if lower is None else (lower[0], lower[1] + down * shape[0])
    return Grid(shape, across, projection, corner)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Make one line of whatever a file makes its reader raise.

    A file of anybody's may hold anything: numbers that overflow, text for numbers, packed data that do not unpack. To
    list what libraries raise of it would leave out the next one.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: not a readable composite ({reason}); download it again or remove it") from error


def _check_own(path: Path, file: h5py.File, key: str) -> None:
    """Refuse what is no map of numbers, or data that lie in another file, which could be any of this machine."""
    data = file[key]
    if not isinstance(data, h5py.Dataset) or data.ndim != 2 or data.dtype.kind not in "fiu":
        raise UserError(f"{path}: '{key}' is no map of numbers; download it again or remove it")
    if data.file.filename != file.filename or data.is_virtual or data.external:
        raise UserError(f"{path}: '{key}' keeps its data in another file; download it again or remove it")


def _moment(date: Any, time: Any) -> datetime:
    """Return a moment of ODIM's date and time."""
    return datetime.strptime(_text(date) + _text(time), "%Y%m%d%H%M%S")


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
