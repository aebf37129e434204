"""Forecasts: an hour of satellite images in, eight hours of probabilities of rain out."""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import io
import math
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from numpy.lib import format as npy
from ray import serve

from retable.platform.errors import UserError, nearest
from retable.platform.spec.arrays import Array
from retable.serve.deployments import maps
from retable.serve.deployments.served import Served, raised, together
from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Problem, Reply, kind_of, returns_problems, wrong
from retable.tasks.weather.answer import NAME, NOT_NAMED
from retable.tasks.weather.combine import majority_vote, mean_probability
from retable.tasks.weather.config import View
from retable.tasks.weather.export import Exported
from retable.tasks.weather.predict import BATCH
from retable.tasks.weather.tools.forecasts.exchange import check_alike
from retable.tasks.weather.w4c.frames import open_hdf5, read_hdf5
from retable.tasks.weather.w4c.layout import SATELLITE
from retable.tasks.weather.w4c.preprocess import CHANNELS

Combine = Literal["mean", "vote"]
WAIT = 0.02
"""Seconds that the first request of a batch waits for others."""
STARTS = {"npz": rb"PK\x03\x04", "hdf5": rb"\x89HDF\r\n\x1a\n"}
"""Kind of file -> first bytes of files of images."""
_ARRAYS = 1000
"""Of an npz file, at most: listing one takes ten times its entry's bytes."""
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_CHUNKS = 10_000
"""Chunks of an HDF5 data set, at most: each takes a kilobyte and HDF5's time, whether or not the file holds it."""
_CHECKSUM = 4
"""Bytes that fletcher32 adds to a chunk."""


@dataclass(frozen=True, eq=False)
class ForecastRequest:
    """Checked images, and the forecaster for them."""

    forecaster: Exported
    region: str
    images: Array


def images_of(body: bytes, shape: tuple[int, ...], limits: Limits = LIMITS) -> Array:
    """Return the images in a file, float32, by what it holds and not by what it is called.

    Raises:
        Problem: where it is neither HDF5 nor npz, is broken, or the images have another shape.
    """
    kind = kind_of(body, STARTS, f"neither npz (an array `{NAME}`) nor HDF5 (a data set `{SATELLITE}`)")
    return _from_npz(body, shape, limits) if kind == "npz" else _from_hdf5(body, shape, limits)


@np.errstate(over="ignore")  # numbers beyond float32 are infinite, which counts as missing
def _from_npz(body: bytes, shape: tuple[int, ...], limits: Limits) -> Array:
    """Return the images in an npz file; its header is read before anything is made room for, and no pickles are."""
    try:
        if body.count(b"PK\1\2") > _ARRAYS:
            raise Problem(400, f"the npz file holds more than {_ARRAYS} arrays; send `{NAME}` alone")
        with zipfile.ZipFile(io.BytesIO(body)) as folder, folder.open(f"{NAME}.npy") as file:
            about = folder.getinfo(f"{NAME}.npy")
            if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others inflate without a bound
                raise Problem(400, "the npz file is packed otherwise than by deflate; np.savez_compressed writes that")
            if about.file_size > limits.frames_bytes:
                raise Problem(413, f"{NAME}: more than {limits.frames_bytes} bytes")
            if npy.read_magic(file) != (1, 0):
                raise Problem(400, "the npz file is of an unknown version")
            dimensions, columns, kind = npy.read_array_header_1_0(file)
            if dimensions != shape:
                raise wrong(NAME, f"shape {dimensions}", f"shape {shape}")
            if kind.kind not in "fiu":
                raise wrong(NAME, str(kind), "numbers")
            data = file.read(kind.itemsize * math.prod(shape) + 1)
        return np.frombuffer(data, kind).reshape(shape, order="F" if columns else "C").astype(np.float32)
    except Problem:
        raise
    except Exception as error:  # zlib, zipfile and NumPy's reader of headers raise anything on broken bytes
        raise Problem(400, f"no npz file that holds an array `{NAME}`, or a broken one") from error


def _check_chunks(data: h5py.Dataset, limits: Limits) -> None:
    """Refuse chunks that take more memory or time than their data: HDF5 bounds neither them nor what they inflate to.

    Raises:
        Problem: 422, before anything is read.
    """
    if data.chunks is None:
        return
    properties, size = data.id.get_create_plist(), math.prod(data.chunks) * data.dtype.itemsize
    filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    if len(set(filters)) < len(filters) or set(filters) - _FILTERS:
        raise wrong(f"filters of {SATELLITE}", filters, "gzip, shuffle and fletcher32, each once")
    count = math.prod(-(-side // chunk) for side, chunk in zip(data.shape, data.chunks, strict=True))
    if count > _CHUNKS or count * size > limits.frames_bytes:
        wanted = f"{_CHUNKS} of {limits.frames_bytes} bytes in all, at most"
        raise wrong(f"chunks of {SATELLITE}", f"{count} chunks of shape {data.chunks}", wanted)
    if h5py.h5z.FILTER_DEFLATE in filters:
        for index in range(data.id.get_num_chunks()):
            skipped, raw = data.id.read_direct_chunk(data.id.get_chunk_info(index).chunk_offset)
            inflating = zlib.decompressobj()
            deflated = not skipped & 1 << filters.index(h5py.h5z.FILTER_DEFLATE)
            if deflated and len(inflating.decompress(raw, size + _CHECKSUM + 1)) > size + _CHECKSUM:
                raise wrong(f"chunks of {SATELLITE}", "one that inflates to more", f"{size} bytes")


def _from_hdf5(body: bytes, shape: tuple[int, ...], limits: Limits) -> Array:
    """Return the images in a file of the competition's layout; it may hold no links to anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.h5"
        path.write_bytes(body)
        try:
            data = open_hdf5(path, SATELLITE, len(CHANNELS))
            with data.file:
                if data.shape != shape:
                    raise wrong(SATELLITE, f"shape {data.shape}", f"shape {shape}")
                _check_chunks(data, limits)
                return read_hdf5(data, slice(None)).astype(np.float32)
        except UserError as error:
            raise Problem(400, str(error).replace(str(path), "the file").partition("; download")[0]) from error
        except Problem:
            raise
        except Exception as error:  # h5py, zlib and what reads attributes raise anything on broken bytes
            raise Problem(400, "the HDF5 file is broken") from error


def work(forecasters: Sequence[Exported], region: str, body: bytes) -> list[ForecastRequest]:
    """Read and check a request to forecasters, so that nothing in it can fail a batch; images of one shape once.

    Raises:
        Problem: which says what was got and what is wanted.
    """
    for forecaster in forecasters:
        try:
            forecaster.forecaster.number(region)
        except UserError as error:
            regions = forecaster.config.regions
            wanted = f"one of {', '.join(regions)}, which this climatology has seen"
            more = {"nearest": nearest(region, regions).removeprefix("; ")} if region else {}
            raise wrong("region", repr(region)[:60], wanted, **more) from error
    images = {shape: images_of(body, shape) for shape in dict.fromkeys(map(_shape_of, forecasters))}
    return [ForecastRequest(forecaster, region, images[_shape_of(forecaster)]) for forecaster in forecasters]


def _shape_of(forecaster: Exported) -> tuple[int, int, int, int]:
    """Return the shape of the images that a forecaster reads."""
    return forecaster.config.inputs, len(CHANNELS), forecaster.size, forecaster.size


def steps(works: Sequence[ForecastRequest]) -> Array:
    """Return the steps of forecasts by one forecaster, of one region, uint8 (works, leads, S, S)."""
    return works[0].forecaster.steps(np.stack([request.images for request in works]), works[0].region)


def forecasts(works: Sequence[ForecastRequest]) -> list[Array | Exception]:
    """Return the steps of each forecast, uint8 (leads, S, S); those of one model and region go together."""
    return together(works, steps, lambda request: (id(request.forecaster), request.region))


def joined(members: Sequence[Array], combine: Combine, threshold: float) -> Array:
    """Return the forecast of several, by the arithmetic of the tables' ensembles; of one, as it is.

    Args:
        members: their steps.
        combine: how they are joined; `vote` is the share of those that forecast rain.
        threshold: from which on a voter forecasts rain.

    Raises:
        Problem: 422 where they differ in shape, or the threshold is none.
    """
    if len(members) == 1:
        return members[0]
    try:
        view = View(threshold=threshold) if combine == "vote" else View()
        given = [maps.Member(str(number), view, steps, {}) for number, steps in enumerate(members, 1)]
        join = majority_vote if combine == "vote" else mean_probability
        return join("", given)["probability"]
    except (UserError, ValueError) as error:
        raise Problem(422, str(error)) from error


def moment(time: str) -> np.datetime64 | None:
    """Return a time that a request names, UTC; none where it names none.

    Raises:
        Problem: 422 where it is none.
    """
    if not time:
        return None
    try:
        parsed = datetime.fromisoformat(time)
        plain = parsed.astimezone(UTC).replace(tzinfo=None) if parsed.tzinfo else parsed
        if not 1900 <= plain.year < 3000:  # a netCDF counts minutes in 32 bits
            raise ValueError(time)
    except (ValueError, OverflowError) as error:
        raise wrong("time", repr(time)[:40], "ISO 8601, as 2019-06-01T12:00") from error
    return np.datetime64(plain, "m")


class Forecasters(Served[Exported]):
    """Holds every forecaster that is served."""

    def probe(self, model: Exported) -> None:
        """Forecast from images of zeros."""
        steps([ForecastRequest(model, model.config.regions[0], np.zeros(_shape_of(model), np.float32))])

    @returns_problems
    async def forecast(
        self,
        sha256s: Sequence[str],
        body: bytes,
        region: str,
        combine: Combine = "mean",
        threshold: float = 0.5,
        kind: maps.Format = "npz",
        lead: int = 0,
        time: str = "",
    ) -> Reply:
        """Forecast rain from the images in a body, by one forecaster or several.

        Args:
            sha256s: digests of the forecasters' files.
            body: the images.
            region: where they are; empty: not said.
            combine: how several are joined, see `joined`.
            threshold: of a vote.
            kind: of the file that is returned.
            lead: minutes ahead of the one map that a PNG shows; 0: all.
            time: of the last image, UTC, ISO 8601; empty: not known.
        """
        last = moment(time)

        async def forecasts() -> tuple[list[Exported], list[Array]]:
            models = [await self.model(sha256) for sha256 in sha256s]
            try:
                check_alike("members", [model.config for model in models], ("forecast", "rain_threshold"))
            except UserError as error:
                raise Problem(422, str(error)) from error
            works = await asyncio.to_thread(work, models, region, body)
            return models, [raised(result) for result in await asyncio.gather(*map(self.batch, works))]

        models, members = await self.line.run(forecasts)
        cautions = dict.fromkeys(str(model.about.get("data_caution", "")) for model in models)
        widths = {model.about.get("pixel") for model in models}
        several = f", {combine} of {len(sha256s)} forecasters" if len(sha256s) > 1 else ""
        made = maps.Forecast(
            steps=joined(members, combine, threshold),
            region=region or NOT_NAMED,
            source=f"retable{several}; files {', '.join(sha256s)}",
            time=last,
            caution=" ".join(filter(None, cautions)),
            pixel=widths.pop() if len(widths) == 1 else None,
        )
        return await asyncio.to_thread(maps.written, made, kind, lead)

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def batch(self, works: list[ForecastRequest]) -> list[Array | Exception]:
        """Forecast together, in a thread, so that health checks are answered meanwhile."""
        return await asyncio.to_thread(forecasts, works)
