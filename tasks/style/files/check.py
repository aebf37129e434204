"""Look for defects of pictures: of a data set, or of any folder."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from retable.platform.console import counted
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.style.data import (
    AGAIN,
    files_below,
    is_picture,
    pictures_below,
    read_index,
    threaded,
    training_files,
)
from retable.tasks.style.files import images

SMALLEST = 32
"""Pixels that a picture's shorter side must have."""
REMEDY = "remove or replace it"


def defect(data: bytes) -> str | None:
    """Return the defect of a picture file in a few words; None if it has none. The whole file is decoded."""
    if not data:
        return "zero bytes"
    try:
        with Image.open(io.BytesIO(data)) as picture:
            width, height = picture.size
            if width * height > images.PIXELS:
                return f"{width} x {height} pixels: too large"
            if small := too_small(width, height):
                return small
            images.named_matrix(picture, data)  # refuses HDR, as reading it as a photograph or painting does
            picture.load()
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_REDUCED_COLOR_8)
    except UserError as error:
        return str(error)
    except UnidentifiedImageError:
        return "no picture, whatever its name says"
    except Image.DecompressionBombError:
        return "too large"
    except Exception as error:  # decoders raise anything on broken bytes
        return "truncated" if "truncated" in str(error) else f"broken ({(str(error) or repr(error)).splitlines()[0]})"
    return None if decoded is not None else "broken: OpenCV cannot decode it"


def defect_of_other(data: bytes) -> str | None:
    """Return the defect of a picture of a format that training does not read, and an import converts."""
    try:
        height, width = images.read(data).pixels.shape[:2]
    except UserError as error:
        return str(error).removeprefix("the picture: ")
    return too_small(width, height)


def too_small(width: int, height: int) -> str | None:
    """Return what is wrong with a picture of this size; None where it is large enough."""
    return None if min(width, height) >= SMALLEST else f"{width} x {height} pixels: too small, {SMALLEST} are needed"


def check(where: Storage | Path, progress: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
    """Return one line for each defect of a data set, or of any folder's pictures; an empty list if all is fine.

    Every picture is decoded: missing ones, empty files, what is no picture, truncated or broken ones and those below 32
    pixels are found.

    Args:
        where: the folder of a data set, or a folder of pictures.
        progress: called now and then with the pictures done and in all.

    """
    folder = Storage.open(where)
    sizes: dict[str, int] = {}
    crc32: dict[str, int | None] = {}
    defects = []
    if folder.exists("dataset.json"):
        try:
            sizes, crc32 = _indexed(folder)
        except UserError as error:
            return [str(error)]
        pictures = {*crc32}
        unknown = [
            path
            for top in ("training", "test", "paintings")
            for path in pictures_below(folder, top)
            if path not in pictures
        ]
        if unknown:
            defects.append(f"{folder}: {len(unknown)} pictures, such as {unknown[0]}, that dataset.json lacks; {AGAIN}")
    else:
        pictures = {path for path in files_below(folder) if Path(path).suffix.lower() in images.SUFFIXES}
    if not pictures:
        return [f"{folder}: no pictures ({', '.join(sorted(images.SUFFIXES))})"]
    paths = sorted(pictures)
    lines = threaded(partial(_line, folder, sizes, crc32), paths)
    defects += filter(None, counted(lines, progress, len(paths)))
    return [*defects, *same_names(folder, paths)]


def _indexed(folder: Storage) -> tuple[dict[str, int], dict[str, int | None]]:
    """Return, by path, the sizes of training pictures, and the CRC-32 of all pictures; None where none is known."""
    info = folder.read_json("dataset.json")
    if not isinstance(info, dict) or not isinstance(info.get("test"), list):
        raise UserError(f"{folder}/dataset.json: not a data set's; {AGAIN}")
    sizes = dict(zip(*(read_index(folder)[name].to_pylist() for name in ("path", "bytes")), strict=True))
    crc32: dict[str, int | None] = {**dict.fromkeys([*sizes, *info["test"]]), **training_files(folder)}
    return sizes, crc32 | info.get("crc32", dict.fromkeys(pictures_below(folder, "paintings")))


def _line(folder: Storage, sizes: dict[str, int], crc32: dict[str, int | None], path: str) -> str | None:
    try:
        data = folder.read(path)
    except FileNotFoundError:
        return f"{folder}/{path}: missing; put it back, or {AGAIN}"
    except UserError as error:
        return str(error)
    if what := defect(data) if is_picture(path) else defect_of_other(data):
        return f"{folder}/{path}: {what}; {REMEDY}"
    if sizes.get(path, len(data)) != len(data):
        return f"{folder}/{path}: {len(data)} bytes, not the {sizes[path]} that were indexed; {AGAIN}"
    if crc32.get(path) not in (None, zlib.crc32(data)):
        return f"{folder}/{path}: not the file that was indexed (checksum); put that back, or {AGAIN}"
    return None


def same_names(folder: Storage, paths: Iterable[str]) -> Iterator[str]:
    """Yield a line for each test photograph and painting that has the name of another: configs name them so."""
    first: dict[tuple[str, str], str] = {}
    for path in filter(is_picture, paths):
        top, name = path.split("/")[0], PurePosixPath(path).stem
        if top in ("test", "val2017", "paintings"):
            other = first.setdefault((top, name), path)
            if other != path:
                yield f"{folder}/{path}: has the name of {other}; rename one of them"
