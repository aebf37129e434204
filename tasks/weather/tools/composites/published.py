"""The layouts in which composites of rain are published: what a file says of itself, and its rain rate.

Read are OPERA's and others' ODIM_H5 (rate, accumulation or reflectivity), NWC-SAF's netCDF-4, KNMI's HDF5, the netCDF
of Australia's Bureau of Meteorology, the PGM of Finland's FMI and, by `grib`, MRMS's GRIB2. `PRODUCTS` defines each.

Sources: Michelson et al. 2014, *EUMETNET OPERA weather radar information model for implementation with the HDF5 file
format*, version 2.2; NWC SAF, *Data output format for the NWC/GEO*, 2016; of the others what their files say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pyproj

from retable.platform.errors import UserError, words
from retable.platform.spec.arrays import Array
from retable.tasks.weather.tools.composites import grib
from retable.tasks.weather.tools.composites.opening import LARGEST, content, form_of, hdf5
from retable.tasks.weather.tools.composites.resample import PIXEL, coarse, flatten, plane
from retable.tasks.weather.w4c import layout
from retable.tasks.weather.w4c.frames import check_filters
from retable.tasks.weather.w4c.preprocess import HIGHEST_RATE, MISSING, UNDETECTED

Quantity = Literal["rate", "accumulation", "reflectivity"]
Relation = tuple[float, float]
"""a and b of Z = a R^b."""

SUFFIXES = (".h5", ".hdf", ".hdf5", ".nc", ".nc4", ".pgm", ".pgm.gz", *grib.SUFFIXES)
"""Usual names of composites: a file so named that cannot be read is reported, one of another name is ignored."""
WANTED: Mapping[str, Quantity] = {"RATE": "rate", "ACRR": "accumulation", "DBZH": "reflectivity", "TH": "reflectivity"}
"""ODIM's quantities that are rain, the best first."""
MARSHALL_PALMER = (200.0, 1.6)
"""The relation of a product that has no other (Marshall and Palmer 1948)."""
WIDTHS = (50.0, 50_000.0)
"""Widths in metres that a pixel may have; what says another is damaged."""
KNMI_PARAMETERS: Mapping[str, Quantity] = {
    "ACCUMULATED_PRECIPITATION": "accumulation",
    "ACCUMULATION_[MM]": "accumulation",
    "PRECIP_[MM]": "accumulation",
    "RAINFALL_RATE_[MM/H]": "rate",
    "REFLECTIVITY": "reflectivity",
}
"""Part of KNMI's `image_geo_parameter` -> what the map holds."""
YEARS = (1950, 2100)
"""Years that a composite may be of."""
HEADER = 1 << 16
"""Bytes of a picture that hold its header."""


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
    product: str
    """Whose layout it is, of `PRODUCTS`; region names begin with it."""
    time: datetime
    """Nominal time by the file, UTC; of an accumulation, its end."""
    grid: Grid
    """The pixels that `read` gives."""
    quantity: Quantity = "rate"
    """Quantity that the file holds."""
    minutes: float = 0.0
    """Interval of an accumulation."""
    relation: Relation | None = None
    """a and b of Z = a R^b, by which `read` turns reflectivity into a rate."""
    finer: int = 1
    """How many of the file's pixels lie across one."""
    resampled: str = ""
    """Resampling by the reader, in words; empty: none."""

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> Array:
        """Return the rain rate of a window, float32 (rows, columns) in mm/h, with `MISSING` and `UNDETECTED`.

        A pixel of several is the mean of those that were measured, and `MISSING` where they are less than half; dry
        ones count as 0. NWC-SAF's and others' dry pixels are 0 where they have no other word for them.

        Raises:
            UserError: where the file cannot be read.

        """
        (height, width), finer = self.grid.shape, self.finer
        window = scaled(rows, height, finer), scaled(columns, width, finer)
        return coarse(read(self.path, *window, self.relation), finer)


def scaled(window: slice, size: int, factor: int) -> slice:
    """Return the window of fine pixels that one of coarse pixels means."""
    start, stop, _ = window.indices(size)
    return slice(start * factor, stop * factor)


@dataclass(frozen=True)
class Field:
    """A map in a file, and the meaning of its numbers."""

    key: str
    """Of an HDF5 file."""
    quantity: Quantity
    scale: float = 1.0
    offset: float = 0.0
    sentinels: tuple[tuple[float, float], ...] = ()
    """Raw values that are no rain, and `MISSING` or `UNDETECTED`."""
    minutes: float = 0.0
    """Of an accumulation."""
    relation: Relation | None = None
    """Of reflectivity; None: the product's."""


@dataclass(frozen=True)
class Product:
    """Format in which one provider publishes rain."""

    title: str
    field: Callable[[Path, Any], Field]
    """Finds the map of rain in an open file."""
    place: Callable[[Path, Any, tuple[int, int]], tuple[datetime, Grid]]
    """Returns the nominal time (UTC; of an accumulation its end) and the grid, given the map's shape."""
    relation: Relation = MARSHALL_PALMER
    """Of reflectivity, where a file gives none."""
    holds: Callable[[h5py.File], bool] = lambda file: False
    """Recognizes the product's HDF5 files."""


def rates(raw: Array, field: Field) -> Array:
    """Return rain rates, float32 in mm/h with sentinels; integers of up to 16 bits by a table of all their values.

    A rate above `HIGHEST_RATE`, as of hail, is `HIGHEST_RATE`.
    """
    if raw.dtype.kind in "iu" and raw.dtype.itemsize <= 2 and raw.size > 1 << 8:
        raw = raw.astype(raw.dtype.newbyteorder("="), copy=False)
        return np.take(_table(field, raw.dtype), raw.view(f"u{raw.dtype.itemsize}"))
    return _rates(raw, field)


@lru_cache(maxsize=8)
def _table(field: Field, kind: np.dtype[Any]) -> Array:
    """Return the rate of each value of an integer type, in the order of its bits read as an unsigned number."""
    unsigned = np.dtype(f"u{kind.itemsize}")
    return _rates(np.arange(1 << (8 * kind.itemsize), dtype=unsigned).view(kind), field)


def _rates(raw: Array, field: Field) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # what is out of range is no measurement
        value: Array = raw * field.scale + field.offset
        if field.quantity == "accumulation":
            value = value * (60 / field.minutes)
        elif field.quantity == "reflectivity":
            a, b = field.relation or MARSHALL_PALMER
            value = (10 ** (value / 10) / a) ** (1 / b)
        rate: Array = value.astype(np.float32)
        unknown = ~np.isfinite(rate)
        np.minimum(rate, np.float32(HIGHEST_RATE), out=rate)
        rate[unknown] = MISSING
        if raw.dtype.kind == "f":  # an attribute may have more digits than the numbers, or fewer
            raw = raw.astype(np.float32, copy=False)
        for number, sentinel in field.sentinels:
            rate[raw == number] = sentinel
    return rate


def describe(path: Path) -> Composite:
    """Read what a file says of itself, of its own pixels.

    Raises:
        UserError: where the file is truncated, foreign, or holds nothing that is rain.
    """
    with _told(path), _opened(path, with_pixels=False) as (name, file):
        field = field_of(path, file, name)
        time, grid = PRODUCTS[name].place(path, file, _raw(path, file, field).shape)
        if time.tzinfo is not None:
            time = time.astimezone(UTC).replace(tzinfo=None)
        resampled = grib.METHOD if name == "mrms" else ""
        about = (field.quantity, field.minutes, field.relation)
        described = Composite(path, name, time, grid, *about, resampled=resampled)
        _check_range(path, described)
        return described


@contextmanager
def _opened(path: Path, with_pixels: bool = True) -> Iterator[tuple[str, Any]]:
    """Open a file; yield its product and its content: of a picture without `with_pixels`, the header alone."""
    match form_of(path):
        case "grib":
            yield "mrms", grib.message(path)
        case "pgm":
            yield "fmi", _picture(content(path) if with_pixels else content(path, HEADER), with_pixels)
        case "archive":
            raise UserError(f"{path}: is an archive; unpack it, and give the folder of what it holds")
        case _:
            with hdf5(path) as file:
                yield _product(path, file), file


def field_of(path: Path, file: Any, product: str) -> Field:
    """Return the map of rain in a file of a product, and the meaning of its numbers."""
    field = PRODUCTS[product].field(path, file)
    if field.quantity != "reflectivity":
        return replace(field, relation=None)  # by which its rates were made
    return replace(field, relation=field.relation or PRODUCTS[product].relation)


def _raw(path: Path, file: Any, field: Field) -> Any:
    """Return the map of an open file: something with a shape that gives windows."""
    if not isinstance(file, h5py.File):
        return file.pixels
    _check_own(path, file, field.key)
    return file[field.key]


def _check_range(path: Path, described: Composite) -> None:
    """Refuse what no composite says of itself, and what would not fit into memory."""
    (height, width), pixel = described.grid.shape, described.grid.pixel
    claim = ""
    if pixel is not None and not WIDTHS[0] <= pixel <= WIDTHS[1]:
        claim = f"pixels of {pixel:g} m"
    elif height * width > LARGEST:
        claim = f"{height} x {width} pixels"
    elif not YEARS[0] <= described.time.year < YEARS[1]:
        claim = f"to be of {described.time}"
    if claim:
        raise UserError(f"{path}: says {claim}, which no composite has; download it again or remove it")


def read(path: Path, rows: slice, columns: slice, relation: Relation | None = None) -> Array:
    """Return the rain rate of a window of the described grid, float32 (rows, columns) in mm/h, with sentinels.

    `relation` replaces the file's or product's own.

    Raises:
        UserError: where the file cannot be read.
    """
    with _told(path), _opened(path) as (name, file):
        field = field_of(path, file, name)
        if relation and field.relation:
            field = replace(field, relation=relation)
        if name == "mrms":
            return flatten(file.values.values, file.grid)[rows, columns]
        return rates(_raw(path, file, field)[rows, columns], field)


def _product(path: Path, file: h5py.File) -> str:
    """Return the product of an HDF5 file."""
    names = [name for name, product in PRODUCTS.items() if product.holds(file)]
    if not names:
        raise UserError(
            f"{path}: neither an ODIM_H5 composite nor one of NWC-SAF (crr_intensity), KNMI or the Bureau of "
            "Meteorology; remove it"
        )
    return names[0]


def _linear(attributes: Mapping[str, Any]) -> tuple[float, float, tuple[tuple[float, float], ...]]:
    """Return scale, offset and sentinels of a netCDF variable, packed or not."""
    scale, offset = _number(attributes.get("scale_factor", 1.0)), _number(attributes.get("add_offset", 0.0))
    names = ("_FillValue", "missing_value")
    return scale, offset, tuple((_number(attributes[name]), MISSING) for name in names if name in attributes)


def _crr_field(_: Path, file: h5py.File) -> Field:
    return Field("crr_intensity", "rate", *_linear(file["crr_intensity"].attrs))


def _bom_field(path: Path, file: h5py.File) -> Field:
    minutes = _minutes(path, _number(file["valid_time"][()]) - _number(file["start_time"][()]))
    return Field("precipitation", "accumulation", *_linear(file["precipitation"].attrs), minutes)


def _minutes(path: Path, seconds: float) -> float:
    """Return an accumulation's minutes; refuse one without an interval, or one longer than the layout's step."""
    minutes = seconds / 60
    if not 0 < minutes <= layout.STEP:
        needs = f"a rain rate of each quarter of an hour needs one of {layout.STEP} at most"
        raise UserError(f"{path}: an accumulation of {minutes:g} minutes; {needs}")
    return minutes


ODIM_MAPS = ("COMP", "IMAGE", "CVOL")
"""Objects on a Cartesian grid (ODIM_H5, table 2); the others, PVOL and SCAN among them, are azimuths by ranges."""


def _odim_field(path: Path, file: h5py.File) -> Field:
    """Find an ODIM file's best map of rain; attributes that lack have ODIM's defaults."""
    kind = _text(file["what"].attrs.get("object", "COMP")) if "what" in file else "COMP"
    if kind not in ODIM_MAPS:
        raise UserError(f"{path}: holds no map but {kind} (what/object), in a radar's own coordinates; make maps of it")
    maps: dict[str, tuple[str, str]] = {}
    seen = []
    for dataset in sorted(name for name in file if name.startswith("dataset")):
        for data in sorted(name for name in file[dataset] if name.startswith("data")):
            what = _inherited(file, "what", dataset, data)
            seen.append(_text(what["quantity"]) if "quantity" in what else "nothing named")
            maps.setdefault(seen[-1], (dataset, data))
    refused = []
    for name in WANTED:
        if name in maps:
            try:
                return _odim_meaning(path, file, WANTED[name], *maps[name])
            except UserError as error:  # an hour's sum may stand beside reflectivity
                refused.append(error)
    if refused:
        raise refused[0]
    raise UserError(f"{path}: holds {', '.join(seen) or 'no data'} but none of {', '.join(WANTED)}")


def _inherited(file: h5py.File, group: str, dataset: str, data: str) -> dict[str, Any]:
    """Return a map's attributes: those of the data overrule those of the data set, and these the file's (section 4)."""
    groups = [name for name in (group, f"{dataset}/{group}", f"{dataset}/{data}/{group}") if name in file]
    return {name: value for path in groups for name, value in file[path].attrs.items()}


def _odim_meaning(path: Path, file: h5py.File, quantity: Quantity, dataset: str, data: str) -> Field:
    """Return the meaning of the numbers of an ODIM map."""
    what, how = (_inherited(file, group, dataset, data) for group in ("what", "how"))
    marks = (("undetect", UNDETECTED), ("nodata", MISSING))
    sentinels = tuple((_number(what[name]), value) for name, value in marks if name in what)
    minutes, relation = 0.0, None
    if quantity == "accumulation":
        start, end = (_moment(what[f"{name}date"], what[f"{name}time"]) for name in ("start", "end"))
        minutes = _minutes(path, (end - start).total_seconds())
    if "zr_a" in how and "zr_b" in how:
        relation = _number(how["zr_a"]), _number(how["zr_b"])
    scale, offset = _number(what.get("gain", 1.0)), _number(what.get("offset", 0.0))
    return Field(f"{dataset}/{data}/data", quantity, scale, offset, sentinels, minutes, relation)


_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
FORMULA = re.compile(rf"GEO=([-+]*{_NUMBER})\*PV(?:([-+]+)({_NUMBER}))?")


def _knmi_field(path: Path, file: h5py.File) -> Field:
    """Read KNMI's calibration: `GEO=0.01*PV+0.0`, millimetres of the file's own minutes, or reflectivity."""
    calibration, kind = file["image1/calibration"].attrs, _text(file["image1"].attrs["image_geo_parameter"])
    formula = FORMULA.fullmatch(_plain(_text(calibration["calibration_formulas"])))
    if not formula:
        raise UserError(f"{path}: its calibration formula is not understood; expected GEO=a*PV+b")
    of_zero = {"calibration_missing_data": UNDETECTED, "calibration_out_of_image": MISSING}  # missing data: no echo
    limits = {name: _number(calibration[name]) for name in of_zero if name in calibration}
    sentinels = tuple((limit, MISSING if limit else of_zero[name]) for name, limit in limits.items())
    sign = (-1) ** (formula[2] or "").count("-")  # KNMI writes `+ -32`
    scale, offset = float(formula[1]), sign * float(formula[3] or 0)
    quantity = next((value for name, value in KNMI_PARAMETERS.items() if name in kind), None)
    if quantity is None:
        raise UserError(f"{path}: holds {kind}, which is no rain; remove it")
    minutes = 0.0
    if quantity == "accumulation":
        start, end = (_knmi_time(file, name) for name in ("start", "end"))
        minutes = _minutes(path, (end - start).total_seconds())
    return Field("image1/image_data", quantity, scale, offset, sentinels, minutes)


def _plain(formula: str) -> str:
    """Return a formula without spaces and without brackets around a number."""
    return re.sub(rf"\(([-+]*{_NUMBER})\)", r"\1", formula.replace(" ", ""))


def _knmi_time(file: h5py.File, name: str) -> datetime:
    text = _text(file["overview"].attrs[f"product_datetime_{name}"])
    return datetime.strptime(text.title(), "%d-%b-%Y;%H:%M:%S.%f")


def _crr(path: Path, file: h5py.File, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    time = _text(file.attrs["nominal_product_time"]).removesuffix("Z")
    return datetime.fromisoformat(time), _satellite_grid(path, file.attrs, shape)


def _opera(path: Path, file: h5py.File, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    field = _odim_field(path, file)
    what = _inherited(file, "what", *field.key.split("/")[:2])
    edge = "end" if field.quantity == "accumulation" else ""  # the nominal time may be another one
    places = [file[name].attrs for name in ("dataset1/where", "where") if name in file]
    where = {name: value for attributes in reversed(places) for name, value in attributes.items()}
    return _moment(what[f"{edge}date"], what[f"{edge}time"]), _radar_grid(path, where, shape)


def _knmi(path: Path, file: h5py.File, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    """Read KNMI's grid, which is in kilometres; the earth's radius is in kilometres too, or in metres."""
    geographic = file["geographic"].attrs
    across, down = (_number(geographic[f"geo_pixel_size_{axis}"]) for axis in "xy")
    _check_square(path, across, -down, shape)
    projection = _text(file["geographic/map_projection"].attrs["projection_proj4_params"])
    metres = re.sub(r"\+(a|b)=([.\d]+)", _radius, projection).replace("+units=km", "+units=m")
    left, top = _number(geographic["geo_column_offset"]) * across, _number(geographic["geo_row_offset"]) * down
    corner = (float(round(left * 1000)) + 0.0, float(round(top * 1000)) + 0.0)
    return _knmi_time(file, "end"), Grid(shape, across * 1000, metres, corner)


def _radius(match: re.Match[str]) -> str:
    """Return a radius of the earth in PROJ's string in metres."""
    radius = float(match[2])
    return f"+{match[1]}={radius if radius > 1e5 else radius * 1000:.10g}"


def _bom(path: Path, file: h5py.File, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    """Read the Bureau's grid on an Albers projection, north first; in kilometres, unless said.

    Coordinates are centres of pixels, but in older files left and upper edges: a radar's map then lies about 0.
    """
    units = _text(file["x"].attrs.get("units", "km"))
    edges = (np.array([*file[axis][:2], file[axis][-1]], float) for axis in "xy")
    x, y = (values / (1000 if units.startswith("m") else 1) for values in edges)
    pixel, down = (round(float(step), 6) for step in (x[1] - x[0], y[0] - y[1]))
    if pixel <= 0 or down <= 0:
        raise UserError(f"{path}: its rows begin in the south or its columns in the east; give the Bureau's own grid")
    _check_square(path, pixel, down, shape)
    about = file["proj"].attrs
    first, second = np.ravel(about["standard_parallel"])[:2]
    minor = (
        f"+b={_number(about['semi_minor_axis'])}"
        if "semi_minor_axis" in about
        else f"+rf={_number(about['inverse_flattening'])}"
    )
    projection = (
        f"+proj=aea +lat_1={first:g} +lat_2={second:g} +lat_0={_number(about['latitude_of_projection_origin']):g} "
        f"+lon_0={_number(about['longitude_of_central_meridian']):g} +a={_number(about['semi_major_axis'])} {minor} "
        "+units=m"
    )
    edges = max(abs(x[0] + x[-1] + pixel), abs(y[0] + y[-1] - pixel)) < pixel / 4
    before = 0 if edges else pixel / 2
    corner = (float(x[0] - before) * 1000, float(y[0] + before) * 1000)
    time = datetime.fromtimestamp(_number(file["valid_time"][()]), UTC).replace(tzinfo=None)
    return time, Grid(shape, pixel * 1000, projection, corner)


@dataclass(frozen=True)
class Picture:
    """A PGM of FMI: levels of 0.5 dBZ above -32."""

    comments: Mapping[str, str]
    pixels: Array
    """All levels; of a picture of which only the header was read, zeros of the same shape."""


def _picture(data: bytes, with_pixels: bool) -> Picture:
    """Read a PGM, or its header alone."""
    header = re.match(rb"P5\s((?:#[^\n]*\n|\s)*)(\d+)\s+(\d+)\s+(\d+)\s", data)
    if not header:
        raise ValueError("no PGM")
    width, height, most = (int(header[group]) for group in (2, 3, 4))
    lines = (line.strip("# ").partition(" ") for line in header[1].decode("ascii", "replace").splitlines())
    comments = {name: value.strip() for name, _, value in lines}
    if "Reflectivity" not in comments["param"] or "obstime" not in comments:
        raise ValueError(f"holds {comments['param']}, not reflectivity, or says no obstime")
    if most > 255 or (with_pixels and width * height != len(data) - header.end()):
        raise ValueError(f"{len(data) - header.end()} bytes of pixels, not {width} x {height}")
    if not with_pixels:
        return Picture(comments, np.broadcast_to(np.uint8(0), (height, width)))
    return Picture(comments, np.frombuffer(data, np.uint8, width * height, header.end()).reshape(height, width))


def _fmi_field(_: Path, picture: Picture) -> Field:
    sentinels = ((float(picture.comments.get("missingval", 255)), MISSING), (0.0, UNDETECTED))
    return Field("", "reflectivity", 0.5, -32.0, sentinels)


def _mrms_field(path: Path, message: grib.Message) -> Field:
    return Field("", "rate")


def _mrms(path: Path, message: grib.Message, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    flat = plane(message.grid)
    return message.time, Grid(flat.shape, PIXEL, flat.projdef, flat.corner)


def _fmi(path: Path, picture: Picture, shape: tuple[int, int]) -> tuple[datetime, Grid]:
    """Read FMI's grid: polar stereographic; its two widths differ by some hundred thousandths."""
    comments = picture.comments
    try:
        across, down = (float(comments[f"metersperpixel_{axis}"]) for axis in "xy")
        if comments["type"] != "stereographic":
            raise ValueError(comments["type"])
        _check_square(path, across, down, shape)
        projection = (
            f"+proj=stere +lon_0={float(comments['centrallongitude']):g} +lat_0={float(comments['centrallatitude']):g} "
            f"+lat_ts={float(comments['truelatitude']):g} +a=6371288 +b=6371288 +units=m"
        )
        longitude, latitude = (float(word) for word in comments["bottomleft"].split())
        lower = project(projection, longitude, latitude)
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: its projection is not FMI's stereographic one ({error}); remove it") from error
    corner = None if lower is None else (lower[0], lower[1] + down * shape[0])
    return _of_digits(comments["obstime"], "%Y%m%d%H%M"), Grid(shape, across, projection, corner)


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
        reason = words(error) or type(error).__name__
        raise UserError(f"{path}: not a readable composite ({reason}); download it again or remove it") from error


def _check_own(path: Path, file: h5py.File, key: str) -> None:
    """Refuse what is no map of numbers, or data that lie in another file, which could be any of this machine."""
    data = file[key]
    if not isinstance(data, h5py.Dataset) or data.ndim != 2 or data.dtype.kind not in "fiu":
        raise UserError(f"{path}: '{key}' is no map of numbers; download it again or remove it")
    if data.file.filename != file.filename or data.is_virtual or data.external:
        raise UserError(f"{path}: '{key}' keeps its data in another file; download it again or remove it")
    check_filters(path, data)


def _check_square(path: Path, across: float, down: float, shape: tuple[int, int]) -> None:
    """Refuse a grid whose two widths differ by so much that a pixel of the far side is half a pixel away."""
    if not abs(across - down) * max(shape) < abs(across) / 2:
        raise UserError(f"{path}: its pixels are not square; give composites on an equal-area grid")


def _moment(date: Any, time: Any) -> datetime:
    """Return a moment of ODIM's date and time; seconds that lack are 0."""
    clock = _text(time)
    return _of_digits(_text(date) + clock + "00" * (len(clock) == 4), "%Y%m%d%H%M%S")


def _of_digits(digits: str, form: str) -> datetime:
    """Return a moment that is written in this form and in no shorter one, which `strptime` reads otherwise."""
    moment = datetime.strptime(digits, form)
    if moment.strftime(form) != digits:
        raise ValueError(f"time {digits!r} is not written as {form}")
    return moment


def _number(value: Any) -> float:
    """Return an attribute's number; netCDF writes arrays of one."""
    return float(np.ravel(value)[0])


def _text(value: Any) -> str:
    """Return an attribute's text, stored with fixed or variable length, perhaps as an array of one."""
    text = np.ravel(value)[0]
    return text.decode() if isinstance(text, bytes) else str(text)


def _radar_grid(path: Path, where: Mapping[str, Any], shape: tuple[int, int]) -> Grid:
    """Read ODIM's /where."""
    if "xscale" in where and "yscale" in where:
        _check_square(path, _number(where["xscale"]), _number(where["yscale"]), shape)
    pixel = _number(where["xscale"]) if "xscale" in where else None
    projdef = _text(where.get("projdef", "")).replace("+units=km", "+units=m")  # widths are in metres
    corner = None
    if "UL_lon" in where and "UL_lat" in where:
        corner = project(projdef, _number(where["UL_lon"]), _number(where["UL_lat"]))
    return Grid(shape, pixel, projdef, corner)


def _satellite_grid(path: Path, attributes: Mapping[str, Any], shape: tuple[int, int]) -> Grid:
    """Read NWC-SAF's grid: pixels of equal angle seen from the satellite, 3 km wide below it and wider elsewhere."""
    if "gdal_geotransform_table" not in attributes:
        return Grid(shape, None, "", None)
    x, width, _, y, _, height = (float(number) for number in attributes["gdal_geotransform_table"])
    _check_square(path, width, -height, shape)
    return Grid(shape, width, _text(attributes.get("gdal_projection", "")), (x, y))


def project(projdef: str, longitude: float, latitude: float) -> tuple[float, float] | None:
    """Project degrees to metres, to the nearest metre; None where PROJ does not understand `projdef`."""
    try:
        x, y = pyproj.Proj(projdef)(longitude, latitude)
    except pyproj.exceptions.CRSError:
        return None
    return float(round(x)) + 0.0, float(round(y)) + 0.0  # no -0


PRODUCTS = {
    "crr": Product("NWC-SAF convective rain rate", _crr_field, _crr, holds=lambda file: "crr_intensity" in file),
    "knmi": Product(
        "KNMI radar composites",
        _knmi_field,
        _knmi,
        holds=lambda file: "image1/image_data" in file and "overview" in file,
    ),
    "bom": Product(
        "rainfields of the Bureau of Meteorology",
        _bom_field,
        _bom,
        holds=lambda file: "precipitation" in file and "valid_time" in file,
    ),
    "fmi": Product("FMI radar composites", _fmi_field, _fmi, relation=(223.0, 1.53)),
    "mrms": Product("MRMS rain rates", _mrms_field, _mrms),
    "opera": Product(
        "ODIM_H5 radar composites",
        _odim_field,
        _opera,
        holds=lambda file: any(name.startswith("dataset") for name in file),
    ),
}
"""Name of a product, with which region names begin -> its definition."""
