"""Make an index of a folder of recordings, and keep it up to date.

What costs time, the embeddings, is written in small shards as it is made, each by the content of its recordings: a
command that was killed goes on where it stopped, and a file that was moved, renamed or copied is not heard again (see
`places.py`). The files of an index are never changed: an update writes new ones beside them, then `index.json`, which
names them, at once, and then removes those that it names no more. So an index answers while it is updated, and after an
update that was killed. One process at a time may write an index.

`add` puts a single recording in at once: a small shard that `index.json` lists as added and that searches compare
segment by segment, until the index is built anew. Who has the index open sees it with `search.refresh`.

    index.json           the model, the folder, the kind of index that was asked for and that it is, its recall, and
                         the files below; `added` lists the shards since, `null` what words at random find
    embeddings-*.arrow   a row a segment: content of the recording, offset, unit vector
    places-*.arrow       a row a file: path, bytes, time of change, content
    index-*.faiss        see `nearest.py`; none for an exact index
    refit-*.safetensors  what words are searched as, once marks were learnt from; see `refit.py`
    .lock                held by the process that writes
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float32

from retable.platform.console import Show
from retable.platform.errors import UserError, disk_errors
from retable.platform.execute.streams import map_over
from retable.platform.store.run import file_digest
from retable.platform.store.storage import Storage
from retable.platform.train.worker import threads
from retable.tasks.audio.tools.embed.embedder import Embedder, Heard, embed_each, embed_file
from retable.tasks.audio.tools.embed.lexicon import digest_of
from retable.tasks.audio.tools.embed.words import Words
from retable.tasks.audio.tools.search import nearest, null, places
from retable.tasks.audio.tools.search.opening import open_embedder
from retable.tasks.audio.tools.search.places import File, file_at, identify, scan
from retable.tasks.audio.tools.search.refitted import Refit
from retable.tasks.audio.tools.search.search import (
    FORMAT,
    INFO,
    Index,
    check_model,
    folder_of,
    open_index,
    read_info,
    read_places,
    read_shard,
    refit_of,
    refresh,
    schema,
    shard_vectors,
)

SHARE = 32
"""Files that are embedded between two writes: so many of each worker, and as many more, may be lost."""
WORKERS = min(len(os.sched_getaffinity(0)), 8)
"""Threads that embed files."""
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
QUERIES = tuple(sound + setting for sound in SOUNDS for setting in PLACES)
"""Captions that an index's recall is measured with: words lie elsewhere than the sounds that it holds."""

Encode = Callable[[Sequence[str]], Float32[np.ndarray, "captions dimension"]]
Share = tuple[bytes, dict[str, str], list[str]]
"""A shard of files that were heard; why others were not, a line by their content; and what is odd about those heard."""
Remote = Callable[[Sequence[Sequence[File]], float], Iterator[Share]]
"""Embeds shares of files by segments so far apart; see `embed_files` for what comes of each."""


@dataclass(frozen=True)
class Update:
    """Result of an index's update."""

    info: dict[str, Any]
    added: int
    """Recordings that were heard."""
    found: int
    """New places of recordings that were known."""
    removed: int
    """Places that are no more."""
    failures: list[str]
    """Files that could not be read, a line each."""
    remarks: list[str]
    """Warnings about files that were heard: silence, a lost second; a line each."""
    others: dict[str, int]
    """Files that are no recordings, by the ends of their names: how many."""


def update(
    folder: Path,
    out: Path,
    embedder: Embedder,
    *,
    kind: nearest.Kind | Literal["auto"] | None = None,
    hop: float | None = None,
    remote: Remote | None = None,
    show: Show = lambda done, total: None,
    patience: float = 0.0,
    verify: bool = False,
) -> Update:
    """Make an index of a folder, or bring it up to date; a broken file is a line, and the rest go on.

    Args:
        folder: the recordings; folders below it are read too, hidden ones are not.
        out: the index.
        embedder: the model; always the same for one index.
        kind: of FAISS index; auto: by the number of segments; None: what was asked for before, at first auto.
        hop: seconds from one segment's start to the next one's; always the same for one index. None: as it was made,
            at first a whole segment.
        remote: embeds shares of files elsewhere and in any order, as `over_ray` does; none: here.
        show: told how many files are embedded, of how many.
        patience: seconds to wait while another process writes.
        verify: read all files to see whether they are those that were indexed, whatever their size and time say.

    Raises:
        UserError: where the folder has no recordings, none can be read, the index is another folder's or model's or
            of another hop, or another process writes it.
    """
    folder = folder.absolute()  # as other machines name it in their lines
    current, failures, others = scan(folder)
    _before(folder, out, embedder, hop)  # refuses before anything is made there
    with writing(out, patience), threads(1):  # on busy cores torch's threads mostly wait for each other
        before = _before(folder, out, embedder, hop)
        before["asked"] = kind or before.get("asked", "auto")
        listed = read_places(out, before)
        current += sorted(filter(_is_elsewhere, listed), key=lambda file: file.path)
        current, unread = identify(folder, current, () if verify else listed)
        _check_same(folder, out, before, listed, current)
        held = _held(out, embedder.dimension)
        if not before["finished"]:
            Storage.open(out).write_json(INFO, before)
        new = {file.content: file for file in reversed(current) if file.content not in held}  # the first of equal ones
        unheard, remarks = _hear(out, embedder, folder, list(new.values())[::-1], before["hop"], remote, show)
        heard = _held(out, embedder.dimension)
        first = {content: str(folder / file.path) for content, file in new.items()}
        copies = [(folder / file.path, file.content) for file in current if file.content in unheard]
        failures += unread + [f"{path}{unheard[digest].removeprefix(first[digest])}" for path, digest in copies]
        files = [file for file in current if file.content in heard]
        if not files:
            many = len(current) + len(unread)
            raise UserError(f"{folder}: none of {many} recordings can be read; first: {failures[0]}")
        info = _finish(out, before, listed, files, embedder)
        was, now = ({file.path for file in some} for some in (listed, files))
        new_paths = sum(file.path not in was and file.content in held for file in files)
        return Update(info, len(heard - held), new_paths, len(was - now), failures, remarks, others)


def _hear(
    out: Path,
    embedder: Embedder,
    folder: Path,
    pending: Sequence[File],
    hop: float,
    remote: Remote | None,
    show: Show,
) -> tuple[dict[str, str], list[str]]:
    """Write shards of files, a share at a time; return why some were not heard, and what is odd about the others."""
    shares = [pending[start : start + SHARE] for start in range(0, len(pending), SHARE)]
    made = remote(shares, hop) if remote else _over_threads(embedder, folder, shares, hop)
    failures: dict[str, str] = {}
    remarks: list[str] = []
    for done, (shard, failed, odd) in enumerate(made, 1):
        if shard:
            Storage.open(out).write(_next(out, "embeddings", "arrow"), shard)
        failures |= failed
        remarks += odd
        show(min(done * SHARE, len(pending)), len(pending))
    return failures, remarks


def _over_threads(embedder: Embedder, folder: Path, shares: Sequence[Sequence[File]], hop: float) -> Iterator[Share]:
    """Embed shares of files, in order, in as many threads as there are cores, each of which computes alone."""
    workers = min(WORKERS, len(shares))
    if workers < 2:
        yield from (embed_files(embedder, folder, share, hop) for share in shares)
        return
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        running: deque[Future[Share]] = deque()
        try:
            for share in shares:
                running.append(pool.submit(embed_files, embedder, folder, share, hop))
                if len(running) > workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def add(index: Index, embedder: Embedder, path: Path, kept: Path | None = None, patience: float = PATIENCE) -> Index:
    """Put one recording into an index, and return the index with it; one that is there already is not heard again.

    Args:
        index: an open one, finished.
        embedder: the model that it was made with.
        path: the recording, known by its path: below the index's folder, or from elsewhere by its absolute path.
        kept: where it is moved to once it could be read, in the same file system, and from there back if the index
            cannot be written; none: it stays.
        patience: seconds to wait while another process writes.

    Raises:
        UserError: where the recording cannot be read, another process writes for longer, or the index is another
            model's or unfinished.
    """
    check_model(index.info, embedder, index.out)
    target = kept or path
    name = indexed(index, target)
    if (now := refresh(index)).holds(name):
        return now
    with disk_errors(str(path)):
        content = file_digest(path)
    heard = None if content in now.paths else embed_file(embedder, path, hop_of(now.info))
    with writing(index.out, patience):
        now = refresh(now)
        if not now.holds(name):
            if kept:
                path.replace(target)
            file = replace(file_at(name, target), content=content)
            new = heard is not None and content not in now.paths
            try:
                _append(now, file, _shard([(file, heard)], embedder.dimension) if heard and new else b"")
            except BaseException:
                if kept and not refresh(now).holds(name):
                    target.replace(path)
                raise
        return refresh(now)


def indexed(index: Index, path: Path) -> str:
    """Return what an index calls a recording: its path below the index's folder, or its absolute one."""
    folder, resolved = index.folder.resolve(), path.parent.resolve() / path.name
    return resolved.relative_to(folder).as_posix() if resolved.is_relative_to(folder) else str(resolved)


def _append(index: Index, file: File, shard: bytes) -> None:
    """Write a place and a shard, then that they are there; where there are many, all that was added as one of each."""
    out, info = index.out, read_info(index.out)
    if not (info and info["finished"]):
        raise UserError(f"{out}: unfinished; run `retable audio index` again")
    storage, shards, named = Storage.open(out), info["added"], info["places"]
    if joined := len(named) > ADDED:
        old = [*named, *(listed["name"] for listed in shards if shard)]
    if shard:
        table = pa.ipc.open_file(pa.py_buffer(shard)).read_all()
        if joined:
            table = pa.concat_tables([*index.tables[index.built :], table])
        name, data = _next(out, "embeddings", "arrow"), _ipc(table)
        storage.write(name, data)
        listed = {"name": name, "rows": table.num_rows, "bytes": len(data)}
        shards = [*([] if joined else shards), listed]
    name = _next(out, "places", "arrow")
    storage.write(name, _ipc(places.table([*index.files, file] if joined else [file])))
    storage.write_json(INFO, {**info, "added": shards, "places": [*([] if joined else named), name]})
    for old_name in old if joined else ():
        storage.remove(old_name)


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
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    text = f"{out}: its disk has no locks ({error.strerror}), so two writers could harm it"
                    raise UserError(f"{text}; choose an --out on another disk") from error
                if time.monotonic() >= end:
                    file.seek(0)
                    owner = file.read(100) or "another process"
                    raise UserError(f"{out}: {owner} writes it; try again when that is done") from None
                time.sleep(0.02)
        file.truncate(0)
        file.write(f"process {os.getpid()} of {os.uname().nodename}")
        file.flush()
        yield


def _is_elsewhere(file: File) -> bool:
    """Return whether a recording was added from outside the folder, and is still as it was."""
    path = Path(file.path)
    try:
        return path.is_absolute() and file_at(file.path, path) == replace(file, content="")
    except OSError:
        return False


def embed_files(embedder: Embedder, folder: Path, files: Sequence[File], hop: float | None = None) -> Share:
    """Return a shard (see `schema`) as bytes, why files are not in it, and what is odd about the others."""
    heard, failures, remarks = [], dict[str, str](), []
    paths = [folder / file.path for file in files]
    for file, path, made in zip(files, paths, embed_each(embedder, paths, hop), strict=True):
        if isinstance(made, UserError):
            failures[file.content] = str(made)
            continue
        heard.append((file, made))
        remarks += [f"{path}: {line}" for line in made.remarks]
    return _shard(heard, embedder.dimension) if heard else b"", failures, remarks


def _shard(heard: Sequence[tuple[File, Heard]], dimension: int) -> bytes:
    """Return a shard of files, each with what was heard in it."""
    rows: dict[str, list[Any]] = {"content": [], "offset": []}
    for file, what in heard:
        rows["offset"] += what.starts
        rows["content"] += [file.content] * len(what.starts)
    flat = pa.array(np.concatenate([what.vectors for _, what in heard]).reshape(-1))
    listed = pa.FixedSizeListArray.from_arrays(flat, dimension)
    return _ipc(pa.table({**rows, "vector": listed}, schema=schema(dimension)))


def _ipc(table: pa.Table) -> bytes:
    """Return a table as one uncompressed batch, which can be mapped into memory."""
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


class Worker:
    """An actor of Ray Data: holds a model, and embeds the files of a block."""

    def __init__(self, source: str, storage: Storage, device: str, folder: str, hop: float) -> None:
        self.embedder, self.folder, self.hop = open_embedder(source, storage, device), Path(folder), hop

    def __call__(self, block: pa.Table) -> pa.Table:
        """Return one row: a shard, and what is to be said of files as JSON."""
        shard, *notes = embed_files(self.embedder, self.folder, [File(**row) for row in block.to_pylist()], self.hop)
        return pa.table({"shard": pa.array([shard], pa.large_binary()), "said": [json.dumps(notes)]})


def over_ray(
    shares: Sequence[Sequence[File]], hop: float, source: str, storage: Storage, device: str, folder: Path
) -> Iterator[Share]:
    """Embed shares of files on a Ray cluster; they come as they are done.

    Every machine must see the files, and the model, under the same absolute paths.
    """
    tables = [places.table(share) for share in shares]
    for row in map_over(tables, Worker, source, storage, device, str(folder.absolute()), hop, in_order=False):
        failures, remarks = json.loads(row["said"])
        yield row["shard"], failures, remarks


def hop_of(info: dict[str, Any]) -> float:
    """Return how far apart the segments of an index begin; older ones do not say, and theirs do not overlap."""
    return float(info.get("hop", info["segment"]))


def _before(folder: Path, out: Path, embedder: Embedder, hop: float | None) -> dict[str, Any]:
    """Return what an index says of itself, or what a new one will."""
    info, segment = read_info(out), embedder.segment
    if hop is not None and hop > segment:
        raise UserError(f"--hop {hop:g}: segments of this model are {segment:g} s; sound between them would be lost")
    if info is None:
        if out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
            raise UserError(f"{out}: holds other files; choose another --out")
        info = {
            "format": FORMAT,
            "model": embedder.fingerprint,
            "segment": segment,
            "hop": segment if hop is None else hop,
            "dimension": embedder.dimension,
            "normalised": True,
            "finished": False,
        }
    else:
        check_model(info, embedder, out)
        if hop not in (None, hop_of(info)):
            raise UserError(f"{out}: its segments begin each {hop_of(info):g} s, not {hop:g}; choose another --out")
        old = folder_of(out, info)
        moved = old.resolve() != folder.resolve()
        if moved and any((old / file.path).is_file() for file in _below(read_places(out, info))):
            raise UserError(f"{out}: is the index of {old}; choose another --out")
    beside = os.path.relpath(folder.resolve(), out.resolve())
    return {**info, "hop": hop_of(info), "source": embedder.source, "folder": str(folder.resolve()), "beside": beside}


def _below(files: Iterable[File]) -> list[File]:
    """Return the files of an index's own folder, without those from elsewhere."""
    return [file for file in files if not Path(file.path).is_absolute()]


def _check_same(
    folder: Path, out: Path, before: dict[str, Any], listed: Sequence[File], current: Sequence[File]
) -> None:
    """Refuse a folder that has nothing of what an index holds, unless it is the one that was indexed."""
    was = read_info(out)
    if was is None or was["folder"] == before["folder"]:
        return
    contents = {file.content for file in _below(listed)}
    if contents and contents.isdisjoint(file.content for file in _below(current)):
        text = f"is the index of {was['folder']}, of whose recordings {folder} has none"
        raise UserError(f"{out}: {text}; choose another --out")


def _shards(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("embeddings-*.arrow"))


def _next(out: Path, stem: str, suffix: str) -> str:
    """Return the name of a file that is not there yet."""
    names = sorted(path.name for path in out.glob(f"{stem}-*.{suffix}"))
    number = int(names[-1].split("-")[1].split(".")[0]) + 1 if names else 0
    return f"{stem}-{number:06d}.{suffix}"


def _held(out: Path, dimension: int) -> set[str]:
    """Return the contents whose embeddings are there."""
    return {content for name in _shards(out) for content in read_shard(out / name, dimension)["content"].to_pylist()}


def _tidy(out: Path, dimension: int, current: set[str]) -> list[str]:
    """Join small shards, drop the rows of recordings that are gone or there twice, and return the shards to use.

    Nothing is removed: until `index.json` names the joined shards, their parts are the index.
    """
    owner: dict[str, str] = {}
    names: list[str] = []
    loose: list[tuple[str, pa.Table, bool]] = []
    for name in _shards(out):
        table = read_shard(out / name, dimension)
        keep = [
            content in current and owner.setdefault(content, name) == name for content in table["content"].to_pylist()
        ]
        if all(keep) and len(keep) >= ROWS // 2:
            names.append(name)
        else:
            loose.append((name, table.filter(pa.array(keep)), all(keep)))
        if sum(part.num_rows for _, part, _ in loose) >= ROWS:
            names += _join(out, loose)
            loose = []
    return sorted(names + _join(out, loose))


def _join(out: Path, loose: Sequence[tuple[str, pa.Table, bool]]) -> list[str]:
    """Write parts of shards as one, and return its name; a single whole one stays as it is."""
    if len(loose) == 1 and loose[0][2]:
        return [loose[0][0]]
    joined = pa.concat_tables([part for _, part, _ in loose]) if loose else None
    if not joined:
        return []
    name = _next(out, "embeddings", "arrow")
    Storage.open(out).write(name, _ipc(joined))
    return [name]


def _finish(
    out: Path, before: dict[str, Any], listed: Sequence[File], files: Sequence[File], embedder: Embedder
) -> dict[str, Any]:
    """Write what has changed, then `index.json`, then remove what it names no more; return what it says."""
    storage = Storage.open(out)
    info = {**before, **_built(out, before, _tidy(out, embedder.dimension, {file.content for file in files}), embedder)}
    info["files"] = len(files)
    info["recordings"] = len({file.content for file in files})
    pairs = [[file.path, file.content] for file in sorted(files, key=lambda file: file.path)]
    info["corpus"] = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
    if set(listed) != set(files):
        info["places"] = [_next(out, "places", "arrow")]
        storage.write(info["places"][0], _ipc(places.table(files)))
    info["finished"] = True
    if info != read_info(out):
        storage.write_json(INFO, info)
    _sweep(out, info)
    return info


def _built(out: Path, before: dict[str, Any], names: Sequence[str], embedder: Embedder) -> dict[str, Any]:
    """Build, tune and write the FAISS index of shards, unless it is there; return what `index.json` says of it."""
    tables = [read_shard(out / name, embedder.dimension) for name in names]
    vectors = [shard_vectors(table) for table in tables]
    rows = sum(map(len, vectors))
    kind = nearest.choose(rows) if before["asked"] == "auto" else before["asked"]
    shards = [
        {"name": n, "rows": len(v), "bytes": (out / n).stat().st_size} for n, v in zip(names, vectors, strict=True)
    ]
    old_file = before.get("faiss")
    reusable = old_file is not None and (
        not old_file if kind == "flat" else bool(old_file) and _is_whole(out / old_file["name"], old_file)
    )
    reusable = reusable and shards == before["shards"] and before["kind"] == kind
    past, anchors = before.get("null", {}), digest_of(embedder.anchors)
    if reusable and "best" in past and past.get("anchors", "") == anchors:
        return {"added": []}
    words = _words(embedder, refit_of(out, before))
    index, file, effort, recall = None, {}, 0, 1.0
    if reusable:
        file, effort, recall = before["faiss"], before["effort"], before["recall"]
        index = nearest.read(out / file["name"], file["bytes"], rows, embedder.dimension) if file else None
    elif kind != "flat":
        index = nearest.build(kind, vectors, embedder.dimension)
        effort, recall = nearest.tune(index, vectors, words(QUERIES))
        name = _next(out, "index", "faiss")
        file = {"name": name, "bytes": nearest.write(index, out / name)}
    entries = {"kind": kind, "effort": effort, "recall": recall, "segments": rows}
    entries |= {"null": _null(words, anchors, partial(nearest.nearest, index, vectors, effort=effort))}
    return {**entries, "shards": shards, "faiss": file, "added": []}


def _is_whole(path: Path, entry: dict[str, Any]) -> bool:
    """Return whether a file is there as it was written."""
    return path.is_file() and path.stat().st_size == entry["bytes"]


def _words(embedder: Embedder | Words, refit: Refit | None) -> Encode:
    """Return what makes vectors of words as they are searched for."""
    return (lambda captions: refit.apply(embedder.words(captions))) if refit else embedder.words


def set_refit(index: Index, embedder: Embedder | Words, refit: Refit | None) -> None:
    """Keep a refit in an index in place of what is there, or none; what hits must surpass is measured anew.

    Args:
        index: an open one.
        embedder: the model that it was made with.
        refit: of `refit.learn`; None: words are searched for as the model embeds them.

    Raises:
        UserError: where another process writes the index, or it was built anew meanwhile.
    """
    out = index.out
    with writing(out):
        info = read_info(out)
        if not (info and info["finished"]) or info["shards"] != index.info["shards"]:
            raise UserError(f"{out}: was built anew meanwhile; try again")
        if refit:
            info["refit"] = _next(out, "refit", "safetensors")
            Storage.open(out).write(info["refit"], refit.data())
        else:
            info.pop("refit", None)
        vectors = index.vectors[: index.built]
        search = partial(nearest.nearest, index.faiss, vectors, effort=info["effort"])
        info["null"] = _null(_words(embedder, refit), digest_of(embedder.anchors), search)
        Storage.open(out).write_json(INFO, info)
        _sweep(out, info)


def undo_refit(out: Path, embedder: Embedder | Words) -> None:
    """Search again for words as the model embeds them, also where the file of the refit is damaged.

    Raises:
        UserError: as of `set_refit`.
    """
    with writing(out):
        info = read_info(out) or {}
        rest = {name: value for name, value in info.items() if name not in ("refit", "null")}
        Storage.open(out).write_json(INFO, rest)  # where this is killed, an index without a null says so
    set_refit(open_index(out), embedder, None)


def _null(words: Encode, anchors: str, search: null.Search) -> dict[str, Any]:
    """Measure what words at random find; return what `index.json` says of it, with the digest of their anchors."""
    measured = null.measure(words(null.salads(null.SALADS)), search)
    entry: dict[str, Any] = {"best": [round(score, 6) for score in measured.scores.tolist()]}
    return entry | {"anchors": anchors} if anchors else entry


def _sweep(out: Path, info: dict[str, Any]) -> None:
    """Remove what `index.json` does not name: of an older index, and what a killed command left half-written.

    Who is reading has the older files mapped: they stay until they are closed.
    """
    named = {
        info["faiss"].get("name"),
        info.get("refit"),
        *info["places"],
        *(shard["name"] for shard in [*info["shards"], *info["added"]]),
    }
    with disk_errors(str(out)):
        for pattern in (
            "embeddings-*.arrow",
            "places-*.arrow",
            "index-*.faiss",
            "null-*.arrow",
            "refit-*",
            ".writing-*",
        ):
            for path in out.glob(pattern):
                if path.name not in named:
                    path.unlink()
