"""Satellite images in a file, a forecast out: what `retable predict weather` does with each file."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib import format as npy

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.tasks.weather.export import Exported
from retable.tasks.weather.metrics import MINUTES
from retable.tasks.weather.tools.forecasts.netcdf import comment, export
from retable.tasks.weather.w4c.frames import open_hdf5, read_hdf5
from retable.tasks.weather.w4c.layout import SATELLITE, SPLITS
from retable.tasks.weather.w4c.preprocess import CHANNELS

SUFFIXES = (".npz", ".h5", ".hdf5")
NAME = "images"
"""Name of the array in an npz file; an entry `region` may stand beside it."""
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""Reader of an npy file's header, by version of the format; later versions hold no plain numbers."""
REGION = re.compile(r"[a-z]+_\d+(?=\.)")
"""A region at the beginning of a file's name, as the competition's and imported ones have them."""
NOT_NAMED = "not named"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that the files do not hold."""

    format: Literal["npz", "netcdf"] = "npz"
    region: str = ""
    """Of all files; empty: the one that a file says or its name begins with, as the competition's do."""


def target(source: Path, options: Options) -> str:
    """Return what the answer to a file is called."""
    return f"{source.stem}{'.nc' if options.format == 'netcdf' else '.npz'}"


def answering(model: Exported, options: Options) -> Callable[[Path], bytes]:
    """Return what answers files.

    Raises:
        UserError: where a climatology does not know the region.
    """
    if options.region:
        model.forecaster.number(options.region)
    return partial(answer, model, options)


def answer(model: Exported, options: Options, source: Path) -> bytes:
    """Return `probability`, uint8 steps of 1/200 (n, leads, S, S), and `minutes` of each lead time, as npz or netCDF.

    A file holds one sequence (4, 11, S, S), or several after each other: the competition's test files hold 60.

    Raises:
        UserError: where it holds something else, or a climatology does not know its region.
    """
    inputs = model.config.inputs
    frames, own_region = read(source, (len(CHANNELS), model.size, model.size))
    if frames.ndim == 4 and len(frames) % inputs == 0:
        frames = frames.reshape(-1, inputs, *frames.shape[1:])
    after = r"(?![^\W_]|_[^\W\d])"  # a date may follow a region's name, but no other name
    trained_on = [name for name in model.config.regions if re.match(re.escape(name) + after, source.name)]
    named = REGION.match(source.name)
    region = options.region or own_region or max(trained_on, key=len, default=named[0] if named else NOT_NAMED)
    if not region.isprintable():
        raise UserError(f"{source}: region {region!r} is no name; --set region= gives one")
    try:
        model.forecaster.number(region)
    except UserError as error:
        raise UserError(f"{source}: {error}; --set region= names one of them") from error
    steps = model.steps(frames, region)
    if options.format == "netcdf":
        caution = str(model.about.get("data_caution", ""))
        made_by = f"retable predict weather, {source.name}"
        return as_netcdf(steps, region, made_by, caution, pixel=model.about.get("pixel"))
    return packed(steps)


def packed(steps: Array) -> bytes:
    """Return forecasts (..., leads, S, S) as npz: `probability` in steps of 1/200, `minutes` of each lead time."""
    file = io.BytesIO()
    np.savez_compressed(file, probability=steps, minutes=MINUTES * np.arange(1, steps.shape[-3] + 1, dtype=np.int32))
    return file.getvalue()


def as_netcdf(
    steps: Array,
    region: str,
    source: str,
    caution: str = "",
    times: Array | None = None,
    pixel: float | None = None,
) -> bytes:
    """Return forecasts as the netCDF of `retable weather netcdf`.

    Args:
        steps: uint8 (n, leads, S, S).
        region: theirs.
        source: which models made them, in words.
        caution: what the data that the forecasters were trained on do not show.
        times: of the last images, UTC, where they are known; neither times nor places are in files of images.
        pixel: width of a pixel, metres, where it is known.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forecast.nc"
        attributes = {"source": source, **comment(caution)}
        export(path, steps, times=times, region=region, attributes=attributes, grid={"step": pixel})
        return path.read_bytes()


def read(source: Path, wanted: tuple[int, int, int]) -> tuple[Array, str]:
    """Return the images in a file, float32, raw as the competition has them, and the region that it says.

    Raises:
        UserError: where it is neither npz nor HDF5, a broken one, of a split whose images are no sequences of inputs,
            or where its images are of another shape than `wanted`, (11, S, S).
    """
    if source.suffix.lower() != ".npz":
        if {SPLITS["training"], SPLITS["validation"]} & set(source.name.split(".")[1:]):
            raise UserError(f"{source}: holds other frames beside the inputs; give the .test. or .heldout. file")
        data = open_hdf5(source, SATELLITE, len(CHANNELS))
        with data.file:
            check_shape(source, data.shape, wanted)  # before reading: a file may hold 64 GB
            return read_hdf5(data, slice(None)), ""
    try:
        with np.load(source, allow_pickle=False) as arrays:
            with arrays.zip.open(f"{NAME}.npy") as file:
                shape, _, kind = HEADERS[npy.read_magic(file)](file)
            if kind.kind not in "iuf":
                raise UserError(f"{source}: `{NAME}` holds {kind}; wanted are numbers")
            check_shape(source, shape, wanted)  # before reading, as above
            with np.errstate(over="ignore"):  # infinite numbers count as missing
                images: Array = arrays[NAME].astype(np.float32)
            return images, str(arrays["region"]) if "region" in arrays else ""
    except UserError:
        raise
    except Exception as error:  # zlib, zipfile and NumPy's reader of headers raise anything on broken bytes
        raise UserError(f"{source}: no npz file that holds an array `{NAME}`, or a broken one") from error


def check_shape(source: Path, shape: tuple[int, ...], wanted: tuple[int, int, int]) -> None:
    """Raise a UserError where images of a shape end in other axes than `wanted`, (11, S, S)."""
    if shape[-3:] != wanted:
        raise UserError(f"{source}: images of shape {shape}; this forecaster reads {wanted}, a sequence or several")
