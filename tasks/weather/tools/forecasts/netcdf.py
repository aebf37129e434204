"""Forecasts as netCDF, for geographic information systems and the tools of meteorologists.

Written by h5netcdf, a sequence at a time. `xarray.Dataset.to_netcdf` writes the same file in 66 statements in place of
77 and in as much time, but takes 350 MB beside the forecasts of a region and year (60 sequences), where this takes 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import pyproj

from retable.platform.spec.arrays import Array
from retable.platform.store.storage import whole_file
from retable.tasks.weather.config import STEPS
from retable.tasks.weather.metrics import MINUTES

NO_PLACE = "none: it is not known where the region lies; x and y count within the region"


def export(
    path: Path,
    steps: Array,
    *,
    region: str,
    attributes: Mapping[str, str],
    times: Array | None = None,
    year: int = 0,
    grid: Mapping[str, Any] | None = None,
) -> None:
    """Write one region and year's forecasts as CF-1.8 netCDF-4.

    Args:
        path: the file to write; it appears only when it is whole.
        steps: probability of rain in steps of 1/200, uint8 (n, L, S, S); row 0 lies in the north.
        region: name of the region.
        attributes: what else the file says of itself, such as `title`, `source`, `history`.
        times: when each forecast starts, UTC, datetime64 (n,): the last input image, which lead times count from; None
            where it is not known: the file then has lead times alone.
        year: the competition's year; 0: of none.
        grid: where the region lies: `projdef` (PROJ's string), `x0` and `y0` (upper left corner of the upper left
            pixel, metres) and `step` (a pixel's width, metres). None, or without these, or with a projection that PROJ
            does not understand or that is not in metres: x and y are kilometres within the region, or pixels where
            there is no `step`.

    The variable `probability` (sequence, lead_time, y, x) is packed in signed bytes, as CF-1.8 packs no unsigned ones;
    0.5 is exact. Raises ValueError where there are not as many times as sequences.

    """
    if steps.ndim != 4 or (times is not None and times.shape != steps.shape[:1]):
        raise ValueError(
            f"steps {steps.shape} and times {None if times is None else times.shape} are not (n, L, S, S) and (n,)"
        )
    with whole_file(path) as writing, h5netcdf.File(writing, "w") as file:
        file.dimensions = dict(zip(("sequence", "lead_time", "y", "x"), steps.shape, strict=True))
        lead = np.arange(1, steps.shape[1] + 1, dtype=np.int32) * MINUTES
        variable(file, "lead_time", ("lead_time",), lead, standard_name="forecast_period", units="minutes")
        names = [] if times is None else write_times(file, times, lead)
        mapping = write_place(file, grid, steps.shape[2:])
        names += ["longitude", "latitude"] if mapping else []
        write_probability(file, steps, mapping | ({"coordinates": " ".join(names)} if names else {}))
        file.attrs.update({**attributes, "Conventions": "CF-1.8", "region": region})
        file.attrs.update({"year": np.int32(year)} if year else {})
        file.attrs["georeference"] = mapping.get("grid_mapping", NO_PLACE)


def comment(caution: str) -> dict[str, str]:
    """Return the attribute that holds what forecasts do not show; none where there is nothing to say."""
    return {"comment": caution} if caution else {}


def write_times(file: Any, times: Array, lead: Array) -> list[str]:
    """Write when forecasts start, and the times that they are for; return the names of these variables."""
    since = "minutes since 1970-01-01 00:00:00"
    start = np.asarray(times, "datetime64[m]").astype(np.int32)
    described = {"units": since, "calendar": "standard"}
    name = "forecast_reference_time"
    variable(file, name, ("sequence",), start, standard_name=name, **described)
    valid = (start[:, None] + lead).astype(np.int32)
    variable(file, "time", ("sequence", "lead_time"), valid, standard_name="time", **described)
    return [name, "time"]


def write_place(file: Any, grid: Mapping[str, Any] | None, shape: tuple[int, ...]) -> dict[str, str]:
    """Write x, y and, where the place is known, projection, longitudes and latitudes; return what points to it."""
    rows, columns = (np.arange(side) + 0.5 for side in shape)
    system = projection(grid["projdef"]) if grid and {"projdef", "x0", "y0", "step"} <= set(grid) else None
    if grid is None or system is None:
        step = (grid or {}).get("step")
        width, units, of = (float(step) / 1000, "km", "") if step else (1.0, "1", ", in pixels")
        about = f"distance from the region's {{}} edge{of}"
        variable(file, "y", ("y",), width * rows[::-1], units=units, axis="Y", long_name=about.format("lower"))
        variable(file, "x", ("x",), width * columns, units=units, axis="X", long_name=about.format("left"))
        return {}
    y, x = grid["y0"] - grid["step"] * rows, grid["x0"] + grid["step"] * columns
    # Of a geostationary view too in metres, as NWC-SAF's files and PROJ have them: GDAL misplaces CF's angles.
    for name, centres in (("y", y), ("x", x)):
        standard = f"projection_{name}_coordinate"
        variable(file, name, (name,), centres, units="m", axis=name.upper(), standard_name=standard)
    variable(file, "projection", (), np.int32(0), **system.to_cf())
    across, down = np.meshgrid(x, y)
    degrees = pyproj.Proj(system)(across, down, inverse=True)
    for name, values, direction in zip(("longitude", "latitude"), degrees, ("east", "north"), strict=True):
        seen = np.where(np.isfinite(values), values, np.nan)  # a satellite's map goes beyond the earth's edge
        data = file.create_variable(name, ("y", "x"), data=seen, fillvalue=np.nan, compression="gzip", shuffle=True)
        data.attrs.update({"standard_name": name, "units": f"degrees_{direction}"})
    return {"grid_mapping": "projection"}


def projection(projdef: str) -> Any:
    """Return a projection in metres as a `pyproj.CRS`; None where PROJ does not understand it or it is no other."""
    try:
        system = pyproj.CRS(projdef)
    except pyproj.exceptions.CRSError:
        return None
    return system if system.is_projected and system.axis_info[0].unit_name == "metre" else None


def write_probability(file: Any, steps: Array, pointers: Mapping[str, str]) -> None:
    """Write the forecasts: compressed, a sequence's lead time in each chunk."""
    data = file.create_variable(
        "probability",
        ("sequence", "lead_time", "y", "x"),
        "i1",
        fillvalue=np.int8(-128),
        chunks=(1, 1, *steps.shape[2:]),
        compression="gzip",
        shuffle=True,
    )
    data.attrs.update(
        {
            "long_name": "probability of rain",
            "comment": f"rounded down to a multiple of 1/{STEPS}",
            "units": "1",
            "scale_factor": np.float32(1 / STEPS),
            "add_offset": np.float32(0.5),
            "valid_range": np.array([-STEPS // 2, STEPS // 2], np.int8),
            **pointers,
        }
    )
    for sequence, forecast in enumerate(steps):
        data[sequence] = (forecast.astype(np.int16) - STEPS // 2).astype(np.int8)


def variable(file: Any, name: str, dimensions: tuple[str, ...], values: Any, **attributes: Any) -> None:
    """Write a small variable with its attributes."""
    file.create_variable(name, dimensions, data=values).attrs.update(attributes)
