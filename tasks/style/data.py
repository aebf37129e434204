"""Photographs in batches: from memory as encoded files, or as a stream; and single pictures by name.

The order of training pictures is endless: pass after pass over all of them, each pass a permutation that follows from
seed and pass. A batch's place in it follows from epoch and step, so training can start at any step, and the batches are
the same for any number of workers, from memory as from a stream.
"""

from __future__ import annotations

import io
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import torch
from jaxtyping import UInt8
from PIL import Image
from pyarrow import fs
from torch import Tensor

from retable.platform.errors import UserError, disk_errors, nearest
from retable.platform.execute.streams import stream
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.platform.train.seeds import generator
from retable.platform.train.worker import share
from retable.tasks.style.config import Config, OptimiseImage, TrainNetwork
from retable.tasks.style.files import assets, images
from retable.tasks.style.streams import CROPS, ORDER

INDEX = "index.parquet"
"""The training pictures of a data set: `path` below its folder, size in `bytes`, and `crc32` of these."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp")
REMEDY = "`retable data check style` lists all such files"
AGAIN = "remove dataset.json, and the files are indexed again"
ZOOM = 1.5
"""Random crops are at most so much smaller than the largest square that fits."""
PIECE = 64
"""Pictures that one task of Ray Data prepares."""
THREADS = 8
"""Files read or decoded at once; OpenCV decodes without Python's lock."""


def is_picture(path: str) -> bool:
    """Return whether a file name has the suffix of a picture."""
    return PurePosixPath(path).suffix.lower() in SUFFIXES


def files_below(folder: Storage, path: str = "") -> dict[str, int]:
    """Return all files in a folder and those below it, sorted: path relative to `folder` -> bytes; no hidden ones.

    Symbolic links are followed, to a folder by the shortest path to it alone; an absent folder is empty.
    """
    selector = fs.FileSelector(f"{folder.root}/{path}".rstrip("/"), allow_not_found=True, recursive=True)
    with disk_errors(f"{folder}/{path}"):
        infos = folder.retried(path, lambda: folder.filesystem.get_file_info(selector))
    start = len(folder.root) + 1
    files = {info.path[start:]: int(info.size) for info in infos if info.type == fs.FileType.File}
    if folder.is_local:  # a link to a folder above leads to the same files again and again
        real, first = cache(os.path.realpath), dict[tuple[str, str], str]()
        for name in sorted(files, key=lambda name: (name.count("/"), name)):
            where, _, base = f"{folder.root}/{name}".rpartition("/")
            first.setdefault((real(where), base), name)
        files = {name: files[name] for name in first.values()}
    return {name: files[name] for name in sorted(files) if not any(part[0] == "." for part in name.split("/"))}


def pictures_below(folder: Storage, path: str = "") -> dict[str, int]:
    """Return the files among those that have a picture's name."""
    return {name: size for name, size in files_below(folder, path).items() if is_picture(name)}


def read_index(folder: Storage) -> pa.Table:
    """Return the table of a data set's training pictures; sets of before have no `crc32`.

    Raises:
        UserError: where it is missing or damaged.

    """
    try:
        table = folder.read_table(INDEX, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{folder}/{INDEX}: missing or broken; {AGAIN}") from error
    if not {"path", "bytes"} <= {*table.column_names}:
        raise UserError(f"{folder}/{INDEX}: not a data set's; {AGAIN}")
    return table


def training_files(folder: Storage) -> dict[str, int | None]:
    """Return the paths of a data set's training pictures, in their order, and their CRC-32; None where none is known.

    Raises:
        UserError: where the index is missing or damaged.

    """
    table = read_index(folder)
    crc32 = table["crc32"].to_pylist() if "crc32" in table.column_names else [None] * len(table)
    return dict(zip(table["path"].to_pylist(), crc32, strict=True))


def threaded(function: Callable[[Any], Any], items: Iterable[Any], ahead: int = 2 * THREADS) -> Iterator[Any]:
    """Yield `function(item)` for each item, in order, from threads; so many are worked on ahead."""
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[Any] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def read(folder: Storage) -> dict[str, Array]:
    """Return all training pictures' files one after another (`bytes`), and where each begins and ends (`offsets`)."""
    files = threaded(lambda file: np.frombuffer(_bytes(folder, *file), np.uint8), training_files(folder).items())
    contents = list(files)
    offsets = np.cumsum([0, *map(len, contents)])
    return {"bytes": np.concatenate(contents), "offsets": offsets}


def _bytes(folder: Storage, path: str, crc32: int | None) -> bytes:
    try:
        data = folder.read(path)
    except FileNotFoundError as error:
        raise UserError(f"{folder}/{path}: missing; {REMEDY}") from error
    if crc32 not in (None, zlib.crc32(data)):
        raise UserError(f"{folder}/{path}: not the file that was indexed (checksum); {REMEDY}")
    return data


def decode(data: bytes | memoryview, shorter: int, name: str) -> UInt8[np.ndarray, "height width 3"]:
    """Decode a picture in blue, green, red; a JPEG that is much larger at 1/2, 1/4 or 1/8 of its size, which is faster.

    Args:
        data: an encoded picture.
        shorter: the shorter side has at least so many pixels, unless the picture itself has fewer.
        name: what an error calls it.

    Raises:
        UserError: where it cannot be decoded.

    """
    flag, pixels = cv2.IMREAD_COLOR, None
    try:
        with Image.open(io.BytesIO(data)) as header:
            for factor in (2, 4, 8):
                if header.format == "JPEG" and min(header.size) >= factor * shorter:
                    flag = getattr(cv2, f"IMREAD_REDUCED_COLOR_{factor}")
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except (OSError, Image.DecompressionBombError, cv2.error):
        pass
    if pixels is None:
        raise UserError(f"{name}: cannot be decoded; {REMEDY}")
    return np.asarray(pixels)


def prepare_picture(
    data: bytes | memoryview, size: int, key: tuple[int, int] | None, name: str
) -> UInt8[np.ndarray, "3 size size"]:
    """Decode a training picture, crop a square and resize it by area averaging (bicubically where it grows).

    Args:
        data: an encoded picture.
        size: pixels across the result.
        key: seed and place in the order, of a random crop: a square between 1 / 1.5 of the shorter side and all of it,
            anywhere, and mirrored every other time; None: the shorter side is resized to `size` and the centre cropped.
        name: what an error calls it.

    Raises:
        UserError: where it cannot be decoded.

    """
    if key is None:
        pixels = images.square(decode(data, size, name), size)
    else:
        pixels = decode(data, round(ZOOM * size), name)
        rng = generator(key[0], CROPS, key[1])
        side = round(min(pixels.shape[:2]) / rng.uniform(1, ZOOM))
        pixels = images.square(random_crop(pixels, side, rng), size)
        pixels = pixels[:, ::-1] if rng.integers(2) else pixels
    return np.ascontiguousarray(pixels[..., ::-1].transpose(2, 0, 1))


def random_crop(pixels: Array, side: int, rng: np.random.Generator) -> Array:
    """Return a square of a picture that lies anywhere in it."""
    top, left = (int(rng.integers(length - side + 1)) for length in pixels.shape[:2])
    return pixels[top : top + side, left : left + side]


def pictures_at(positions: Array, count: int, seed: int) -> Array:
    """Return which of `count` pictures stands at each of some positions, int64 (...), of the endless order."""
    passes, numbers = positions // count, np.empty_like(positions)
    for number in np.unique(passes).tolist():
        here = passes == number
        numbers[here] = generator(seed, ORDER, number).permutation(count)[positions[here] % count]
    return numbers


def fetch(piece: Mapping[str, Any], folder: Storage, size: int) -> dict[str, Array]:
    """Read and prepare the pictures of a piece, uint8 (pictures, 3, size, size).

    A piece has `paths`, their `crc32`, and `keys` of their crops.
    """

    def one(item: tuple[str, int | None, Sequence[int] | None]) -> Array:
        path, crc32, key = item
        return prepare_picture(
            _bytes(folder, path, crc32), size, None if key is None else (key[0], key[1]), f"{folder}/{path}"
        )

    items = zip(piece["paths"], piece["crc32"], piece["keys"], strict=True)
    return {"images": np.stack(list(threaded(one, items)))}


class Photographs:
    """The training batches of one run, and the pictures that it names."""

    def __init__(self, columns: Mapping[str, Array] | None, source: Source, configs: Sequence[Config]) -> None:
        """Take what `arrays` returned, or None to read the data set's files as a stream.

        Raises:
            UserError: where a painting, or the content image, is not there.

        """
        (config,) = configs
        self.config, self.source, self.steps = config, source, config.steps
        self.batch = config.method.batch if isinstance(config.method, TrainNetwork) else 1
        self.tests = tests(source)
        self.storage = source.storage
        self._columns, files = columns, training_files(source.folder)
        self._paths, self._crc32 = list(files), list(files.values())
        for name in config.style:
            find(paintings(source), name, "style")
        if isinstance(config.method, OptimiseImage):
            find(photographs(source), config.method.content, "method.content")

    def batches(
        self, epoch: int, start: int, rank: int, world: int
    ) -> Iterator[UInt8[Tensor, "batch 3 size size"] | None]:
        """Yield this rank's share of the epoch's batches from step `start` on; for version 1, None for each step.

        Raises:
            UserError: where a picture is missing or broken.

        """
        method = self.config.method
        if not isinstance(method, TrainNetwork):
            return iter([None] * (self.steps - start))
        part = share(self.batch, rank, world)
        first, last = (epoch * self.steps + step for step in (start, self.steps))
        positions = np.arange(first * self.batch, last * self.batch).reshape(-1, self.batch)[:, part]
        return self._streamed(positions, method) if self._columns is None else self._decoded(positions, method)

    def _keys(self, positions: Array, method: TrainNetwork) -> list[tuple[int, int] | None]:
        random = method.crop == "random"
        return [(self.config.seed, position) if random else None for position in positions.ravel().tolist()]

    def _decoded(self, positions: Array, method: TrainNetwork) -> Iterator[Tensor]:
        """Yield batches of pictures whose files are in memory."""
        assert self._columns is not None
        data, offsets = self._columns["bytes"], self._columns["offsets"]
        order, rows = pictures_at(positions, len(self._paths), self.config.seed), positions.shape[1]

        def one(item: tuple[int, tuple[int, int] | None]) -> Array:
            number, key = item
            name = f"{self.source.folder}/{self._paths[number]}"
            return prepare_picture(data[offsets[number] : offsets[number + 1]].data, method.size, key, name)

        items = zip(order.ravel().tolist(), self._keys(positions, method), strict=True)
        decoded = threaded(one, items, ahead=max(2 * rows, 2 * THREADS))
        for _ in positions:
            yield torch.from_numpy(np.stack(list(islice(decoded, rows))))

    def _streamed(self, positions: Array, method: TrainNetwork) -> Iterator[Tensor]:
        """Yield batches of pictures that tasks of Ray Data prepare."""
        order, rows = pictures_at(positions, len(self._paths), self.config.seed), positions.shape[1]
        steps = max(1, PIECE // rows)
        pieces = [
            {
                "paths": [self._paths[number] for number in order[step : step + steps].ravel()],
                "crc32": [self._crc32[number] for number in order[step : step + steps].ravel()],
                "keys": self._keys(positions[step : step + steps], method),
            }
            for step in range(0, len(positions), steps)
        ]
        for piece in stream(pieces, partial(fetch, folder=self.source.folder, size=method.size)):
            pictures = piece["images"]
            for start in range(0, len(pictures), rows):
                yield torch.from_numpy(pictures[start : start + rows].copy())  # a stream's arrays are shared memory

    def painting(self, name: str) -> UInt8[np.ndarray, "height width 3"]:
        """Return a painting by name; see `painting`."""
        return painting(self.source, name)

    def photograph(self, name: str) -> UInt8[np.ndarray, "height width 3"]:
        """Return a photograph by name; see `photograph`."""
        return photograph(self.source, name)


def tests(source: Source) -> tuple[str, ...]:
    """Return the names of a data set's test photographs; of the shipped ones where it has none."""
    return tuple(PurePosixPath(path).stem for path in source.info["test"]) or tuple(assets.photographs())


def photographs(source: Source) -> dict[str, str | Path]:
    """Return where photographs lie, by name: those shipped, those below `test/` now, and the data set's tests."""
    paths = [*pictures_below(source.folder, "test"), *source.info["test"]]
    return {**assets.photographs(), **assets.large(), **_by_name(source, paths)}


def paintings(source: Source) -> dict[str, str | Path]:
    """Return where paintings lie, by name: those shipped, and those below `paintings/` now, which win."""
    return {**assets.paintings(), **_by_name(source, pictures_below(source.folder, "paintings"))}


def _by_name(source: Source, paths: Iterable[str]) -> dict[str, str]:
    """Return pictures by name; of two of one name the one that was indexed."""
    indexed = source.info.get("crc32", {})
    return {PurePosixPath(path).stem: path for path in sorted(paths, key=indexed.__contains__) if is_picture(path)}


def find(pictures: Mapping[str, str | Path], name: str, what: str) -> str | Path:
    """Return where a picture lies.

    Raises:
        UserError: where there is none of that name; `what` says who names it.

    """
    if name not in pictures:
        raise UserError(f"{what}: the data set has no picture {name!r}{nearest(name, pictures)}")
    return pictures[name]


def photograph(source: Source, name: str) -> UInt8[np.ndarray, "height width 3"]:
    """Return a photograph of a data set by name, in red, green, blue; the shipped ones are in every set.

    Raises:
        UserError: where there is none of that name, or it is broken.

    """
    return _picture(source, find(photographs(source), name, "content"))


def painting(source: Source, name: str) -> UInt8[np.ndarray, "height width 3"]:
    """Return a painting of a data set by name, in red, green, blue; the shipped ones are in every set.

    Raises:
        UserError: where there is none of that name, or it is broken.

    """
    return _picture(source, find(paintings(source), name, "style"))


def _picture(source: Source, where: str | Path) -> Array:
    if isinstance(where, Path):
        return images.read(where).pixels
    crc32 = source.info.get("crc32")
    if crc32 is not None and where not in crc32:  # the data set's digest would not cover it
        raise UserError(f"{source.folder}/{where}: was added after the data set was indexed; {AGAIN}")
    with source.folder.local(where) as path:
        if crc32 is not None and crc32[where] != zlib.crc32(path.read_bytes()):
            changed = "not the file that was indexed (checksum)"
            raise UserError(f"{source.folder}/{where}: {changed}; put it back, or {AGAIN}")
        return images.read(path).pixels
