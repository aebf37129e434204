"""The same frames as Parquet on any storage: for clusters whose nodes share a bucket and no disk.

A file holds up to 256 frames of one series, images or rain, in row groups of 8 (a forecast starts from 4), each frame a
binary value. Rain rates stay as they are, bit for bit. Images become 16-bit numbers: each channel's clip range in 65533
equal steps (0.0053 K where it is 0 to 350 K, 0.000016 for a reflectance; the instrument itself resolves 10 bits), so
what is read differs by up to half a step, and values outside the range, which normalisation clips, are clipped here.
NaN and infinity stay what they are; minus infinity becomes infinity, as normalisation treats both alike.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retable.platform.console import counted, progress_bar
from retable.platform.errors import UserError
from retable.platform.execute.session import ray_cluster
from retable.platform.execute.streams import stream
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import data_folder
from retable.platform.store.lease import one_maker
from retable.platform.store.storage import Storage
from retable.tasks.weather.config import DATA_LENGTHS
from retable.tasks.weather.w4c.frames import COLUMN, FRAMES_PER_FILE, Frames, part_path
from retable.tasks.weather.w4c.layout import CSV, find_csv
from retable.tasks.weather.w4c.preprocess import HIGH, LOW

FRAMES_PER_GROUP = 8
INF, NAN = 65534, 65535
"""Reserved codes; those below them are numbers."""
TOP = 65533


def encoding() -> dict[str, Any]:
    """Return how images are coded: per channel `offset` and `scale`, and the codes of `nan` and `inf`.

    A number's code is its distance from `offset` in steps of `scale`, so 0 (missing, in many files) stays exactly 0.
    """
    scale = ((HIGH.astype(np.float64) - LOW) / TOP).astype(np.float32)
    return {"offset": LOW.tolist(), "scale": scale.tolist(), "nan": NAN, "inf": INF}


def encode(images: Array) -> Array:
    """Return satellite images, float32 (n, 11, S, S), as uint16 codes of that shape."""
    how = encoding()
    offset, scale = (np.asarray(how[name], np.float64).reshape(-1, 1, 1) for name in ("offset", "scale"))
    with np.errstate(invalid="ignore"):
        codes = np.clip(np.rint((images - offset) / scale), 0, TOP)
    codes[np.isinf(images)] = INF
    codes[np.isnan(images)] = NAN
    return codes.astype(np.uint16)


def convert(storage: Storage, name: str, target: str | None = None) -> dict[str, Any]:
    """Convert the data set `name` of `storage` to Parquet beside it, with Ray Data: two files at a time.

    Args:
        storage: where both data sets lie, below `data/weather`; HDF5 is read from local storage only.
        name: a data set in the competition's layout, with its `dataset.json`.
        target: the new data set; by default `<name>-parquet`.

    Raises:
        UserError: as `transfer` does, and where a name is that of other data or none of a data set.

    """
    target = target or f"{name}-parquet"
    if target == name:
        raise UserError(f"{name}: the converted data set needs another name; choose --target {name}-parquet")
    if target in DATA_LENGTHS:
        raise UserError(f"--target {target}: tables read other data under this name; choose another one")
    source, target_folder = (data_folder(storage, "weather", folder_name) for folder_name in (name, target))
    read_hdf5_info(source)  # before Ray starts
    with one_maker(storage, f"weather/{target}"):
        made = (
            target_folder.read_json("dataset.json").get("converted_from", {})
            if target_folder.exists("dataset.json")
            else {"name": name}
        )
        if made.get("name") != name or any(folder_name.isdecimal() for folder_name in target_folder.list()):
            raise UserError(f"{target_folder} holds other data; choose another --target")
        with ray_cluster():
            return transfer(source, target_folder, target)


def read_hdf5_info(source: Storage) -> dict[str, Any]:
    """Return `dataset.json` of a data set of HDF5 files.

    Raises:
        UserError: where there is none, or its files are of another format.
    """
    if not source.exists("dataset.json"):
        raise UserError(f"{source}: no data set here (no dataset.json); check the name, or prepare it first")
    info: dict[str, Any] = source.read_json("dataset.json")
    if info["format"] != "hdf5":
        raise UserError(f"{source}: format is {info['format']} already; nothing to convert")
    return info


def transfer(source: Storage, target: Storage, name: str) -> dict[str, Any]:
    """Write the data set in the folder `source` as Parquet into the folder `target`; return its `dataset.json`.

    Where Ray runs, Ray Data does the work, and its workers must see both folders. Finished files of an interrupted
    conversion of the same data are kept; `dataset.json` is written last.

    Raises:
        UserError: where the source is no finished set of HDF5 files, or one is damaged, or the target's disk is full.

    """
    info = read_hdf5_info(source)
    target.remove("dataset.json")
    table = source.read(find_csv(source))
    target.write(CSV, table)
    pieces = list(parts(info))
    files = {CSV: hashlib.sha256(table).hexdigest()}
    size = 0
    work = stream(pieces, partial(write_part, source=source, target=target, info=info))
    with progress_bar(f"converting {info['name']} to Parquet") as show:
        for piece, done in counted(zip(pieces, work, strict=True), show, len(pieces)):
            files[part_path(piece["series"], piece["kind"], piece["number"])] = done["sha256"].tobytes().hex()
            size += int(done["bytes"][0])
    digest = hashlib.sha256(json.dumps([info["digest"], encoding()]).encode()).hexdigest()
    written = {
        **info,
        "name": name,
        "format": "parquet",
        "encoding": encoding(),
        "converted_from": {"name": info["name"], "digest": info["digest"]},
        "digest": digest,
        "files": files,
        "stored_bytes": size,
    }
    target.write_json("dataset.json", written)
    return written


def parts(info: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each file of a data set's Parquet form: series, kind (`satellite`, `rain`), number, start and stop row."""
    for series, counts in info["series"].items():
        for kind in ("satellite", "rain"):
            rows = counts[kind] or 0
            for number, start in enumerate(range(0, rows, FRAMES_PER_FILE)):
                stop = min(start + FRAMES_PER_FILE, rows)
                yield {"series": series, "kind": kind, "number": number, "start": start, "stop": stop}


def write_part(piece: Mapping[str, Any], source: Storage, target: Storage, info: Mapping[str, Any]) -> dict[str, Array]:
    """Write one Parquet file, whole, unless the same one is there; return its `sha256` (32,) and its `bytes` (1,)."""
    path = part_path(piece["series"], piece["kind"], piece["number"])
    mark = json.dumps({"digest": info["digest"], "encoding": encoding(), **piece}, sort_keys=True)
    data = target.read(path) if target.exists(path) else b""
    if _mark(data) != mark:
        data = _parquet(piece, Frames(source, info), mark)
        target.write(path, data)
    checksum = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
    return {"sha256": checksum, "bytes": np.array([len(data)])}


def _mark(data: bytes) -> str | None:
    """Return what a Parquet file says of its origin; None where it is not one of ours."""
    try:
        metadata = pq.read_schema(pa.BufferReader(data)).metadata or {}
    except (pa.ArrowException, OSError):
        return None
    mark = metadata.get(b"retable")
    return None if mark is None else mark.decode()


def _parquet(piece: Mapping[str, Any], frames: Frames, mark: str) -> bytes:
    satellite = piece["kind"] == "satellite"
    sink, writer = io.BytesIO(), None
    for start in range(piece["start"], piece["stop"], FRAMES_PER_GROUP):
        stop = min(start + FRAMES_PER_GROUP, piece["stop"])
        read = frames.satellite if satellite else frames.rate
        rows = read(piece["series"], start, stop)
        rows = encode(rows).astype("<u2") if satellite else np.ascontiguousarray(rows, "<f4")
        kind = pa.binary(rows[0].nbytes)
        schema = pa.schema([(COLUMN, kind)], metadata={"retable": mark})
        if writer is None:  # statistics would repeat whole frames in the footer
            writer = pq.ParquetWriter(
                sink,
                schema,
                compression="zstd",
                use_dictionary=False,
                write_statistics=False,
                store_schema=True,
                write_page_checksum=True,
            )
        column = pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows.tobytes())])
        writer.write_table(pa.table([column], schema=schema), row_group_size=FRAMES_PER_GROUP)
    if writer is not None:
        writer.close()
    return sink.getvalue()
