"""Make an index of a folder of recordings, and keep it up to date.

What costs time, the embeddings, is written in small shards as it is made: a command that was killed goes on where it
stopped. A file is known by its path, size and time of change: a new or changed one is embedded, one that is gone leaves
the index. `index.faiss` is built anew from the shards whenever they change. One process at a time may write an index.

`add` puts a single recording in at once: a small shard that `index.json` lists as added and that searches compare
segment by segment, until the index is built anew. Who has the index open sees it with `search.refresh`. A process that
is killed leaves the index as it was before or after.

    index.json           the model, the folder, the kind of index that was asked for and that it is, its recall;
                         written first as unfinished, and last; `added` lists the shards since
    embeddings-*.arrow   a row a segment: file, bytes, modified, offset, unit vector
    index.faiss          see `nearest.py`
    .lock                held by the process that writes
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from retable.platform.errors import UserError, disk_errors
from retable.platform.storage import Storage
from retable.platform.stream import map_over
from retable.tasks.audio import nearest
from retable.tasks.audio.embedder import Embedder, embed_file, open_embedder
from retable.tasks.audio.files import SUFFIXES, is_sound
from retable.tasks.audio.search import (
    FAISS,
    FORMAT,
    INFO,
    SHARDS,
    Index,
    check_model,
    read_info,
    read_shard,
    refresh,
    schema,
    shard_vectors,
)

SHARE = 32
"""Files that are embedded between two writes: so many at most are lost."""
ROWS = 16384
"""Segments of a full shard; small shards are joined until they are as large."""
ADDED = 32
"""Shards of added recordings, at most: then they are joined."""
LOCK = ".lock"
PATIENCE = 10.0
"""Seconds that an addition waits for another writer."""

SOUNDS = (
    "a dog barks", "birds are singing", "rain falls on a tin roof", "thunder rolls far away", "wind blows in the trees",
    "waves break on the shore", "a man is speaking", "children laugh and shout", "a crowd is talking", "a baby cries",
    "footsteps on gravel", "a door creaks and shuts", "an engine starts and idles", "a train passes by",
    "a helicopter flies overhead", "a siren comes closer", "a clock is ticking", "church bells ring", "a phone rings",
    "someone types on a keyboard", "water drips into a sink", "a fire crackles", "glass breaks", "a saw cuts wood",
)  # fmt: skip
PLACES = ("", " in a large hall", " while a car passes", " in the background", " and then it is quiet")
QUERIES = tuple(sound + place for sound in SOUNDS for place in PLACES)
"""Captions that an index's recall is measured with: words lie elsewhere than the sounds that it holds."""

Say = Callable[[str], None]
Show = Callable[[int, int], None]


@dataclass(frozen=True)
class File:
    """A recording in a folder; one that changed is another."""

    path: str
    """Below the folder; absolute where it was added from elsewhere."""
    bytes: int
    modified: int
    """Nanoseconds, as the disk says."""


@dataclass(frozen=True)
class Update:
    """What became of an index."""

    info: dict[str, Any]
    added: int
    removed: int
    failures: list[str]
    """Files that could not be read, a line each."""


def update(
    folder: Path,
    out: Path,
    embedder: Embedder,
    *,
    kind: nearest.Kind | Literal["auto"] | None = None,
    remote: Callable[[Sequence[Sequence[File]]], Iterator[tuple[bytes, list[str]]]] | None = None,
    show: Show = lambda done, total: None,
    patience: float = 0.0,
    moved: bool = False,
) -> Update:
    """Make an index of a folder, or bring it up to date; a broken file is a line, and the rest go on.

    Args:
        folder: the recordings; folders below it are read too, hidden ones are not.
        out: the index.
        embedder: the model; always the same for one index.
        kind: of FAISS index; auto: by the number of segments; None: what was asked for before, at first auto.
        remote: embeds shares of files elsewhere and in any order, as `over_ray` does; none: here.
        show: told how many files are embedded, of how many.
        patience: seconds to wait while another process writes.
        moved: whether the folder may have moved since, as one beside its index does.

    Raises:
        UserError: where the folder has no recordings, none can be read, the index is another folder's or model's, or
            another process writes it.
    """
    current, failures = scan(folder)
    _before(folder, out, embedder, moved)  # refuses before anything is made there
    with writing(out, patience):
        before = _before(folder, out, embedder, moved)
        asked = before["asked"] = kind or before.get("asked", "auto")
        held = _held(out, embedder.dimension)
        current += sorted(filter(_is_elsewhere, held), key=lambda file: file.path)
        pending = [file for file in current if file not in held]
        removed = len({file.path for file in held} - {file.path for file in current})
        wanted = nearest.choose if asked == "auto" else lambda rows: asked
        due = not (held <= set(current) and _is_whole(out, before) and before["kind"] == wanted(before["segments"]))
        shares = [pending[start : start + SHARE] for start in range(0, len(pending), SHARE)]
        made = remote(shares) if remote else (embed_files(embedder, folder, share) for share in shares)
        for done, (shard, failed) in enumerate(made, 1):
            if shard:
                _begin(out, before)
                Storage.open(out).write(_next_shard(out), shard)
                due = True
            failures += failed
            show(min(done * SHARE, len(pending)), len(pending))
        if not due:
            if before != read_info(
                out
            ):  # the same vectors of a model that lies elsewhere now, or the kind by another name
                Storage.open(out).write_json(INFO, before)
            return Update(before, 0, 0, failures)
        _begin(out, before)
        shards = _tidy(out, embedder.dimension, set(current))
        if not shards:
            raise UserError(f"{folder}: none of {len(current)} recordings can be read; first: {failures[0]}")
        info = _finish(out, before, shards, embedder, wanted)
        return Update(info, len(_held(out, embedder.dimension) - held), removed, failures)


def add(index: Index, embedder: Embedder, path: Path, kept: Path | None = None, patience: float = PATIENCE) -> Index:
    """Put one recording into an index, and return the index with it; one that is there already stays as it is.

    Args:
        index: an open one, finished.
        embedder: the model that it was made with.
        path: the recording, known by its path: below the index's folder, or from elsewhere by its absolute path.
        kept: where it is moved to once it could be read, in the same file system; none: it stays.
        patience: seconds to wait while another process writes.

    Raises:
        UserError: where the recording cannot be read, another process writes for longer, or the index is another
            model's or unfinished.
    """
    check_model(index.info, embedder, index.out)
    place = (kept or path).absolute()
    name = indexed(index, place)
    if (now := refresh(index)).holds(name):
        return now
    starts, vectors = embed_file(embedder, path)
    with writing(index.out, patience):
        now = refresh(now)
        if not now.holds(name):
            if kept:
                path.replace(place)
            _append(now, _shard([(_file(name, place), starts, vectors)], embedder.dimension))
        return refresh(now)


def indexed(index: Index, path: Path) -> str:
    """Return what an index calls a recording: its path below the index's folder, or its absolute one."""
    folder, place = Path(index.info["folder"]), path.absolute()
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else str(place)


def _append(index: Index, shard: bytes) -> None:
    """Write a shard, then that it is there; where there are many, all that was added as one shard."""
    out, info = index.out, read_info(index.out)
    if not (info and info["finished"]):
        raise UserError(f"{out}: unfinished; run `retable audio index` again")
    before = info.get("added", [])
    table = pa.ipc.open_file(pa.py_buffer(shard)).read_all()
    if joined := len(before) >= ADDED:
        table = pa.concat_tables([*index.tables[index.built :], table])
    place, name, data = Storage.open(out), _next_shard(out), _ipc(table)
    place.write(name, data)
    listed = {"name": name, "rows": table.num_rows, "bytes": len(data)}
    place.write_json(INFO, {**info, "added": [*([] if joined else before), listed]})
    for old in before if joined else ():
        place.remove(old["name"])


@contextmanager
def writing(out: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold an index alone while the block runs; the lock of a process that was killed is free.

    Args:
        out: the index; its folder is made where there is none.
        patience: seconds to wait for another process.

    Raises:
        UserError: where another process holds it for longer; the line names that process.
    """
    with disk_errors(str(out)):
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("a+")
    with file:
        end = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    file.seek(0)
                    owner = file.read(100) or "another process"
                    raise UserError(f"{out}: {owner} writes it; try again when that is done") from None
                time.sleep(0.02)
        file.truncate(0)
        file.write(f"process {os.getpid()} of {os.uname().nodename}")
        file.flush()
        yield


def scan(folder: Path) -> tuple[list[File], list[str]]:
    """Return the recordings below a folder by their names, sorted, and what cannot be one, a line each.

    Raises:
        UserError: where there is no such folder, or no recording in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no folder; give one that holds recordings")
    found, failures = [], []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not is_sound(path):
                continue
            try:
                below = path.relative_to(folder).as_posix()
                below.encode()
                file = _file(below, path)
            except UnicodeEncodeError:
                failures.append(f"{os.fsencode(path)!r}: its name is not UTF-8; rename it")
            except OSError as error:
                failures.append(f"{path}: {error.strerror}")
            else:
                found.append(file)
    if not found:
        raise UserError(f"{folder}: no recordings ({', '.join(sorted(SUFFIXES))})")
    return sorted(found, key=lambda file: file.path), failures


def _file(name: str, path: Path) -> File:
    said = path.stat()
    return File(name, said.st_size, said.st_mtime_ns)


def _is_elsewhere(file: File) -> bool:
    """Say whether a recording was added from outside the folder, and is still as it was."""
    path = Path(file.path)
    try:
        return path.is_absolute() and _file(file.path, path) == file
    except OSError:
        return False


def embed_files(embedder: Embedder, folder: Path, files: Sequence[File]) -> tuple[bytes, list[str]]:
    """Return a shard (see `schema`) as bytes, and what is wrong with the files that are not in it.

    No file shares a batch with another, so that its vectors never depend on what lies beside it.
    """
    heard, failures = [], []
    for file in files:
        try:
            heard.append((file, *embed_file(embedder, folder / file.path)))
        except UserError as error:
            failures.append(str(error))
    return _shard(heard, embedder.dimension) if heard else b"", failures


def _shard(heard: Sequence[tuple[File, list[float], Any]], dimension: int) -> bytes:
    """Return a shard of files, each with the offsets and the vectors of its segments."""
    rows: dict[str, list[Any]] = {"file": [], "bytes": [], "modified": [], "offset": []}
    for file, starts, _ in heard:
        rows["offset"] += starts
        for name in ("path", "bytes", "modified"):
            rows["file" if name == "path" else name] += [getattr(file, name)] * len(starts)
    flat = pa.array(np.concatenate([vectors for _, _, vectors in heard]).reshape(-1))
    listed = pa.FixedSizeListArray.from_arrays(flat, dimension)
    return _ipc(pa.table({**rows, "vector": listed}, schema=schema(dimension)))


def _ipc(table: pa.Table) -> bytes:
    """Return a table as one uncompressed batch, which can be mapped into memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


class Worker:
    """An actor of Ray Data: holds a model, and embeds the files of a block."""

    def __init__(self, source: str, storage: str, device: str, folder: str) -> None:
        self.embedder, self.folder = open_embedder(source, Storage.open(storage), device), Path(folder)

    def __call__(self, block: pa.Table) -> pa.Table:
        """Return one row: a shard, and the failures as JSON."""
        shard, failures = embed_files(self.embedder, self.folder, [File(**row) for row in block.to_pylist()])
        return pa.table({"shard": pa.array([shard], pa.large_binary()), "failures": [json.dumps(failures)]})


def over_ray(
    shares: Sequence[Sequence[File]], source: str, storage: Storage, device: str, folder: Path
) -> Iterator[tuple[bytes, list[str]]]:
    """Embed shares of files on a Ray cluster; they come as they are done.

    Every machine must see the files, and the model, under the same absolute paths.
    """
    tables = [pa.Table.from_pylist([vars(file) for file in share]) for share in shares]
    for row in map_over(tables, Worker, source, str(storage), device, str(folder.absolute()), in_order=False):
        yield row["shard"], json.loads(row["failures"])


def _before(folder: Path, out: Path, embedder: Embedder, moved: bool) -> dict[str, Any]:
    """Return what an index says of itself, or what a new one will."""
    info = read_info(out)
    if info is None:
        if out.is_dir() and any(path.name != LOCK for path in out.iterdir()):
            raise UserError(f"{out}: holds other files; choose another --out")
        return {
            "format": FORMAT,
            "model": embedder.fingerprint,
            "source": embedder.source,
            "segment": embedder.config.segment,
            "dimension": embedder.dimension,
            "normalised": True,
            "folder": str(folder.absolute()),
            "finished": False,
        }
    check_model(info, embedder, out)
    if info["folder"] != str(folder.absolute()) and not moved:
        raise UserError(f"{out}: is the index of {info['folder']}; choose another --out")
    return {**info, "folder": str(folder.absolute()), "source": embedder.source}


def _is_whole(out: Path, info: dict[str, Any]) -> bool:
    """Say whether an index is finished and its files are there."""
    sizes = {FAISS: info.get("faiss_bytes"), **{shard["name"]: shard["bytes"] for shard in info.get("shards", ())}}
    whole = info["finished"] and not info.get("added")
    return whole and all((out / n).is_file() and (out / n).stat().st_size == s for n, s in sizes.items())


def _begin(out: Path, info: dict[str, Any]) -> None:
    """Say that an index is being written, and remove what a killed command left half-written."""
    with disk_errors(str(out)):
        out.mkdir(parents=True, exist_ok=True)
        for path in out.glob(".writing-*"):
            path.unlink()
    Storage.open(out).write_json(INFO, {**info, "finished": False})


def _shards(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob(SHARDS))


def _next_shard(out: Path) -> str:
    names = _shards(out)
    number = int(names[-1].split("-")[1].split(".")[0]) + 1 if names else 0
    return f"embeddings-{number:06d}.arrow"


def _files(table: pa.Table) -> list[File]:
    """Return the file of each row."""
    columns = (table[name].to_pylist() for name in ("file", "bytes", "modified"))
    return [File(*row) for row in zip(*columns, strict=True)]


def _held(out: Path, dimension: int) -> set[File]:
    """Return the files whose embeddings are there."""
    return {file for name in _shards(out) for file in _files(read_shard(out / name, dimension))}


def _tidy(out: Path, dimension: int, current: set[File]) -> list[str]:
    """Join small shards, drop the rows of files that are gone or there twice, and return the shards' names.

    A joined shard is written before its parts are removed; what a killed command leaves twice is dropped the next time.
    """
    owner: dict[File, str] = {}
    loose: list[tuple[str, pa.Table, bool]] = []
    for name in _shards(out):
        table = read_shard(out / name, dimension)
        keep = [file in current and owner.setdefault(file, name) == name for file in _files(table)]
        if not all(keep) or len(keep) < ROWS // 2:
            loose.append((name, table.filter(pa.array(keep)), all(keep)))
        if sum(part.num_rows for _, part, _ in loose) >= ROWS:
            _join(out, loose)
            loose = []
    if len(loose) > 1 or not all(whole for _, _, whole in loose):
        _join(out, loose)
    return _shards(out)


def _join(out: Path, loose: Sequence[tuple[str, pa.Table, bool]]) -> None:
    joined = pa.concat_tables([part for _, part, _ in loose])
    place = Storage.open(out)
    if joined.num_rows:
        place.write(_next_shard(out), _ipc(joined))
    for name, _, _ in loose:
        place.remove(name)


def _finish(
    out: Path, info: dict[str, Any], names: Sequence[str], embedder: Embedder, kind: Callable[[int], nearest.Kind]
) -> dict[str, Any]:
    """Build, tune and write the FAISS index, then `index.json`; return what that says."""
    tables = [read_shard(out / name, embedder.dimension) for name in names]
    vectors = [shard_vectors(table) for table in tables]
    rows = sum(map(len, vectors))
    index = nearest.build(kind(rows), vectors, embedder.dimension)
    effort, recall = nearest.tune(index, vectors, embedder.words(QUERIES))
    files = sorted({file for table in tables for file in _files(table)}, key=lambda file: file.path)
    shards = zip(names, vectors, strict=True)
    info = {
        **info,
        "kind": kind(rows),
        "effort": effort,
        "recall": recall,
        "files": len(files),
        "segments": rows,
        "corpus": hashlib.sha256(json.dumps([list(vars(file).values()) for file in files]).encode()).hexdigest(),
        "shards": [{"name": n, "rows": len(v), "bytes": (out / n).stat().st_size} for n, v in shards],
        "faiss_bytes": nearest.write(index, out / FAISS),
        "added": [],
        "finished": True,
    }
    Storage.open(out).write_json(INFO, info)
    return info
