"""Read raw frames of a data set: HDF5 in the competition's layout, or Parquet on any storage.

Both give the same arrays for the same rows, whatever slice they are read by. Files are opened in the process that
reads, at the first use, and stay open there; a `Frames` itself holds no handle and can be sent anywhere.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retable.platform.errors import UserError, words
from retable.platform.spec.arrays import Array
from retable.platform.store.hdf5 import plain_numbers
from retable.platform.store.storage import Storage
from retable.tasks.weather.w4c.layout import REMEDY, layout_files
from retable.tasks.weather.w4c.preprocess import CHANNELS

FRAMES_PER_FILE = 256
"""Frames of one Parquet file."""
OPEN_FILES = 128
"""So many files stay open in a process."""
COLUMN = "frame"
NOT_WRITTEN = float.fromhex("0x1.ep+122")
"""Fill value of netCDF where no float was written (NC_FILL_FLOAT and NC_FILL_DOUBLE)."""

_opened: OrderedDict[tuple[int, int, str], Any] = OrderedDict()
_lock = threading.Lock()


def part_path(series: str, kind: str, number: int) -> str:
    """Return where the Parquet form keeps frames `256 number` and following; `kind` is `satellite` or `rain`."""
    return f"data/{series.replace('/', '.')}.{kind}-{number:05d}.parquet"


def open_hdf5(path: Path, key: str, channels: int) -> h5py.Dataset:
    """Open the data set `key`, float (frames, channels, S, S), of a file in the competition's layout.

    Closing its `.file` is the caller's business, or left to the garbage collector.

    Raises:
        UserError: where the file is missing, truncated or foreign, or lacks the key, or the shape is another.

    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; put it there, or take its region and year out")
    try:
        file = h5py.File(path, "r", locking=False)  # read-only mounts cannot lock
        data = plain_numbers(path, file, key, f"download the file again ({REMEDY})", "fiu")
        check_filters(path, data)
        shape = data.shape
    except (OSError, RuntimeError, KeyError) as error:
        raise UserError(_unreadable(path, error)) from error
    if len(shape) != 4 or shape[1] != channels or shape[2] != shape[3]:
        wanted = f"(frames, {channels}, size, size)"
        raise UserError(f"{path}: key '{key}' has shape {shape}, not {wanted}; download the file again ({REMEDY})")
    return data


def check_filters(path: Path, data: h5py.Dataset) -> None:
    """Load the compression filters that a data set needs; those that h5py lacks are in the package hdf5plugin.

    Raises:
        UserError: where one is missing, naming it.
    """
    plist = data.id.get_create_plist()
    for code, _, _, name in (plist.get_filter(number) for number in range(plist.get_nfilters())):
        if not h5py.h5z.filter_avail(code) and find_spec("hdf5plugin"):
            import_module("hdf5plugin")  # registers its filters
        if not h5py.h5z.filter_avail(code):
            missing = f"filter {code} ({name.decode(errors='replace') or 'not named'})"
            raise UserError(f"{path}: is compressed by HDF5's {missing}, which is not here; pip install hdf5plugin")


@np.errstate(over="ignore")  # numbers beyond float32 are infinite, which counts as missing
def read_hdf5(data: h5py.Dataset, rows: slice) -> Array:
    """Return rows of an open data set as float32; packed numbers are unpacked as netCDF's conventions say.

    `scale_factor` and `add_offset` are applied; `_FillValue`, `missing_value` and, in a netCDF file, its own fill value
    of floats become not a number.

    Raises:
        UserError: where the file is damaged.

    """
    try:
        raw, attributes = data[rows], data.attrs
        scale, offset = (attributes.get(name) for name in ("scale_factor", "add_offset"))
        plain = scale is None and offset is None
        factors = [1.0 if scale is None else scale, 0.0 if offset is None else offset]
        factor, added = (float(np.ravel(number)[0]) for number in factors)
        # `raw` is this call's own: floats need no copy.
        values = np.asarray(raw if plain else raw * factor + added, np.float32)
        missing = [np.ravel(attributes[name])[0] for name in ("_FillValue", "missing_value") if name in attributes]
        if raw.dtype.kind == "f":  # an attribute may have more digits than the numbers, or fewer
            missing += [NOT_WRITTEN] * ("_NCProperties" in data.file.attrs)
            missing, raw = [np.float32(value) for value in missing], np.asarray(raw, np.float32)
        for value in missing:
            values[raw == value] = np.nan
        return values
    except (OSError, RuntimeError) as error:
        raise UserError(_unreadable(Path(data.file.filename), error)) from error


def _unreadable(path: Path, error: Exception) -> str:
    return f"{path}: not a readable HDF5 file ({words(error)}); download or write it again ({REMEDY})"


def _open(name: str, how: Callable[[], Any]) -> Any:
    """Return the open file `name` of this thread, opened by `how` at the first call; the oldest ones are dropped."""
    # A forked process must not share its parent's handles, nor a thread another's, as pyarrow's are not made for that.
    key = (os.getpid(), threading.get_ident(), name)
    with _lock:
        if key not in _opened:
            _opened[key] = how()
            while len(_opened) > OPEN_FILES:
                _opened.popitem(last=False)  # closed when its last reader lets go
        _opened.move_to_end(key)
        return _opened[key]


def _forget(name: str) -> None:
    """Close a file whose reading failed; the next read opens it again."""
    with _lock:
        _opened.pop((os.getpid(), threading.get_ident(), name), None)


class Frames:
    """The raw frames of a data set, by series and rows."""

    def __init__(self, folder: Storage, info: Mapping[str, Any]) -> None:
        """Take the data set's folder and what its `dataset.json` says; nothing is opened yet.

        Raises:
            UserError: where HDF5 files lie on a storage that is not local, or the format is unknown.

        """
        if info["format"] not in ("hdf5", "parquet"):
            raise UserError(f"{folder}/dataset.json: format {info['format']!r} is unknown; convert the data again")
        if info["format"] == "hdf5" and not folder.is_local:
            raise UserError(f"{folder}: HDF5 cannot be read from here; run `retable data convert weather` first")
        self._folder, self._size, self._series = folder, int(info["size"]), dict(info["series"])
        self._format, self._encoding, self._digest = info["format"], info.get("encoding", {}), str(info.get("digest"))
        """The digest keeps the open files of a set apart from those of one that replaces it."""

    def satellite(self, series: str, start: int, stop: int) -> Array:
        """Return the images `start`, ..., `stop - 1` of a series as they are in the file, float32 (n, 11, S, S).

        Reflectances of 0 to about 1 and brightness temperatures in kelvin, with whatever stands for missing values.

        Raises:
            UserError: where a file is missing, damaged, foreign, or not as `dataset.json` says.
            IndexError: where the series has no such rows.

        """
        return self.read(series, "satellite", slice(start, stop))

    def rate(self, series: str, start: int, stop: int) -> Array:
        """Return the rain rates `start`, ..., `stop - 1` of a series as they are in the file, float32 (n, S, S), mm/h.

        -9999000 is missing, -8888000 undetected.

        Raises:
            UserError: as `satellite` does.
            IndexError: where the series has no such rows.

        """
        return self.read(series, "rain", slice(start, stop))[:, 0]

    def read(self, series: str, kind: str, rows: slice) -> Array:
        """Return rows of a series' `kind`, `satellite` or `rain`, as the methods above do: (n, 11 or 1, S, S)."""
        if series not in self._series:
            raise UserError(f"{self._folder}/dataset.json: no series {series!r}; {REMEDY}")
        start, stop, count = rows.start, rows.stop, self._series[series][kind]
        if count is None:
            raise UserError(f"{self._folder}: {series} has no {kind} rates; choose another split, region or year")
        if not 0 <= start <= stop <= count:
            raise IndexError(f"{series}: rows {start} to {stop} of {count}")
        read = self._read_parquet if self._format == "parquet" else self._read_hdf5
        return read(series, kind, start, stop)

    def _read_hdf5(self, series: str, kind: str, start: int, stop: int) -> Array:
        year, region, split = series.split("/")
        name, key, channels = layout_files(int(year), region, split)[kind]
        path = Path(self._folder.root) / name
        data = _open(f"{self._digest}:{path}", lambda: open_hdf5(path, key, channels))
        wanted = (self._series[series][kind], channels, self._size, self._size)
        if data.shape != wanted:
            raise UserError(f"{path}: key '{key}' has shape {data.shape}, dataset.json says {wanted}; {REMEDY}")
        return read_hdf5(data, slice(start, stop))

    def _read_parquet(self, series: str, kind: str, start: int, stop: int) -> Array:
        channels = len(CHANNELS) if kind == "satellite" else 1
        pieces = [np.empty((0, channels, self._size, self._size), np.float32)]
        while start < stop:
            number = start // FRAMES_PER_FILE
            first = number * FRAMES_PER_FILE
            end = min(stop, first + FRAMES_PER_FILE)
            codes = self._part(part_path(series, kind, number), start - first, end - first, kind)
            codes = codes.reshape(-1, channels, self._size, self._size)
            pieces.append(decode(codes, self._encoding) if kind == "satellite" else codes)
            start = end
        return np.concatenate(pieces)

    def _part(self, path: str, start: int, stop: int, kind: str) -> Array:
        """Return rows of a Parquet file, reading only the row groups that hold them: (n, bytes of a frame) numbers."""
        name = f"{self._folder}/{path}"
        try:
            column, first = self._folder.retried(path, lambda: self._column(path, start, stop))
        except FileNotFoundError as error:
            raise UserError(f"{name}: no such file; run `retable data convert weather` again") from error
        except (pa.ArrowException, OSError, KeyError) as error:
            raise UserError(
                f"{name}: not a readable Parquet file ({words(error)}); remove it and convert again"
            ) from error
        return unpack(column, kind)[start - first : stop - first]

    def _column(self, path: str, start: int, stop: int) -> tuple[pa.Array, int]:
        """Return the row groups of a Parquet file that hold some rows, and the first one's number."""
        name, full = f"{self._digest}:{self._folder}/{path}", f"{self._folder.root}/{path}"
        opened = partial(self._folder.filesystem.open_input_file, full)
        try:
            file = _open(name, lambda: pq.ParquetFile(opened(), pre_buffer=True, page_checksum_verification=True))
            step = file.metadata.row_group(0).num_rows
            groups = list(range(start // step, -(-stop // step)))
            table = file.read_row_groups(groups, columns=[COLUMN], use_threads=False)
        except OSError:
            _forget(name)
            raise
        return table[COLUMN].combine_chunks(), groups[0] * step


def unpack(column: pa.Array, kind: str) -> Array:
    """Return a column of frames as uint16 (satellite) or float32 (rain), one row a frame."""
    dtype = np.dtype("<u2" if kind == "satellite" else "<f4")
    width = column.type.byte_width
    data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
    return data.view(dtype).reshape(len(column), width // dtype.itemsize)


def decode(codes: Array, encoding: Mapping[str, Any]) -> Array:
    """Return satellite images, float32 (n, 11, S, S), from their uint16 codes: `offset + code * scale` per channel.

    The codes `nan` and `inf` of `encoding` stand for these.
    """
    shape = (-1, 1, 1)
    offset, scale = (np.asarray(encoding[name], np.float32).reshape(shape) for name in ("offset", "scale"))
    images: Array = codes * scale + offset
    for name in ("nan", "inf"):
        images[codes == encoding[name]] = np.float32(name)
    return images
