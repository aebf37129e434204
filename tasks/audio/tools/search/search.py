"""Search an index: the recordings whose best segment lies nearest to some words, or to a sound.

An index is a folder: `index.json` says what it is, and what it takes to say how unusual a hit is; `embeddings-*.arrow`
hold a row and a unit vector for each segment, `index-*.faiss` finds the nearest of them, `places-*.arrow` say where the
recordings lie, and `refit-*.safetensors`, where marks were learnt from, what words are searched as; see `index.py`.
Segments that were added since the FAISS index was built are compared one by one; who holds an index open sees them with
`refresh`. Nobody who reads waits for who writes: the files that `index.json` names are there until another one is.

A recording's score is the cosine of its best segment. Where a recording is one segment, that is the score an evaluation
ranks by; of a long one an evaluation takes the mean of all segments, and a search wants the place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from jaxtyping import Float32

from retable.platform.errors import UserError
from retable.platform.models import zoo
from retable.platform.store.storage import Storage
from retable.tasks.audio.tools.embed.lexicon import digest_of, unit
from retable.tasks.audio.tools.embed.words import Words, read_words
from retable.tasks.audio.tools.search import nearest, places
from retable.tasks.audio.tools.search.null import Null
from retable.tasks.audio.tools.search.refitted import Refit, read_refit

if TYPE_CHECKING:
    from retable.tasks.audio.tools.embed.embedder import Embedder

INFO, FORMAT = "index.json", 2
BUILT = ("shards", "faiss", "null", "refit")
"""Entries of `index.json` that are others once the FAISS index was built anew."""
ENTRIES = {
    **dict.fromkeys(("model", "source", "folder", "beside"), str),
    **{"segment": float | int, "dimension": int, "finished": bool},
}
"""Entries that every `index.json` has, and their types."""
FINISHED = {
    **dict.fromkeys(("shards", "added", "places"), list),
    **dict.fromkeys(("effort", "segments", "files", "recordings"), int),
    **{"faiss": dict, "kind": str, "recall": float | int},
}
"""Entries that a finished index has besides."""
AVOID = 0.5
"""Weight of the words to avoid, against 1 of what is searched for."""
TRIES = 3
"""How often an index is opened that is being written."""


@dataclass(frozen=True)
class Hit:
    """A recording that was found."""

    file: str
    """Below the folder that was indexed; of a recording that was added from elsewhere, its absolute path."""
    also: tuple[str, ...]
    """The other places of the very same recording."""
    score: float
    """Cosine between the query and the recording's best segment."""
    offset: float
    """Second at which that segment begins."""


@dataclass(frozen=True)
class Where:
    """Which recordings may be hits."""

    min_seconds: float = 0.0
    """The shortest, to within a segment: an index knows where the last segment of a recording begins."""
    under: str = ""
    """A folder, below the index's or absolute."""
    name: str = ""
    """A pattern of the file's name, such as `*.flac`; without `*`, `?` and `[` a part of it. Case is ignored."""

    def places(self, index: Index, content: str) -> tuple[str, ...]:
        """Return the places of a recording that may be hits; none where it is too short."""
        if self.min_seconds and index.longest.get(content, 0.0) < self.min_seconds:
            return ()
        return tuple(filter(partial(self._fits, index.folder), index.paths.get(content, ())))

    def _fits(self, folder: Path, path: str) -> bool:
        pattern = self.name.lower()
        pattern = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
        places = (folder / self.under, (folder / self.under).resolve())  # an index knows its folder by its real name
        below = not self.under or any(map((folder / path).is_relative_to, places))
        return below and fnmatchcase(PurePath(path).name.lower(), pattern)


@dataclass(frozen=True)
class Index:
    """An index that was opened; vectors stay on the disk but for those of FAISS."""

    out: Path
    """The index's own folder."""
    stamp: tuple[int, int, int]
    """Of `index.json`: another one is there as soon as something was added."""
    info: dict[str, Any]
    folder: Path
    """Of the recordings, as it lies now."""
    tables: Sequence[pa.Table]
    """Of the shards that `faiss` was built of, then of those that were added since."""
    vectors: nearest.Vectors
    faiss: Any
    """None where the index is exact."""
    files: Sequence[places.File]
    """The places of the recordings."""
    null: Null | None
    """Null distribution: scores of random words in it; None in an index from before there was one."""
    refit: Refit | None
    """Map learnt from marks, through which the words of a query go; None if nothing was learnt."""

    @cached_property
    def paths(self) -> Mapping[str, tuple[str, ...]]:
        """The paths of each recording, by its content."""
        by_content: dict[str, tuple[str, ...]] = {}
        for file in sorted(self.files, key=lambda file: file.path):
            by_content[file.content] = (*by_content.get(file.content, ()), file.path)
        return by_content

    @cached_property
    def longest(self) -> Mapping[str, float]:
        """The most seconds that each recording may last, by its content: up to a segment too many."""
        parts = [table.select(["content", "offset"]) for table in self.tables]
        last = pa.concat_tables(parts).group_by("content").aggregate([("offset", "max")])
        ends = (offset + self.info["segment"] for offset in last["offset_max"].to_pylist())
        return dict(zip(last["content"].to_pylist(), ends, strict=True))

    @property
    def built(self) -> int:
        """Return how many of the tables `faiss` was built of."""
        return len(self.info["shards"])

    def holds(self, path: str) -> bool:
        """Return whether a recording is in the index at this place."""
        return any(file.path == path for file in self.files)


def schema(dimension: int) -> pa.Schema:
    """Return the columns of a shard: a row is a segment."""
    return pa.schema(
        [
            ("content", pa.string()),
            ("offset", pa.float64()),
            ("vector", pa.list_(pa.float32(), dimension)),
        ]
    )


def read_shard(path: Path, dimension: int) -> pa.Table:
    """Map a shard into memory.

    Raises:
        UserError: where the file is none, or its vectors have another length.
    """
    return _mapped(path, schema(dimension), f"vectors of {dimension} numbers")


def _mapped(path: Path, columns: pa.Schema, what: str) -> pa.Table:
    again = "remove it and run `retable audio index` again"
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate(full=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: damaged or missing; {again}") from error
    if table.schema != columns:
        raise UserError(f"{path}: holds no {what}; {again}")
    return table


def read_places(out: Path, info: dict[str, Any]) -> list[places.File]:
    """Return where the recordings of an index lie.

    Raises:
        UserError: where a file of them is missing or damaged.
    """
    return places.files_of(_mapped(out / name, places.SCHEMA, "places") for name in info.get("places", ()))


def read_null(info: dict[str, Any]) -> Null | None:
    """Return what words at random find in an index; None where it was made before there was that."""
    entry = info.get("null", {})
    return Null(np.array(entry["best"]), entry.get("anchors", "")) if "best" in entry else None


def refit_of(out: Path, info: dict[str, Any]) -> Refit | None:
    """Return what was learnt from an index's marks; None where nothing was.

    Raises:
        UserError: where its file is missing or damaged.
    """
    return read_refit(out / info["refit"], info["dimension"]) if info.get("refit") else None


def folder_of(out: Path, info: dict[str, Any]) -> Path:
    """Return the folder of an index: as it lies from the index where both moved together, else where it was."""
    beside = Path(os.path.normpath(out.resolve() / info["beside"]))
    return beside if beside.is_dir() else Path(info["folder"])


def shard_vectors(table: pa.Table) -> Float32[np.ndarray, "rows dimension"]:
    """Return a shard's vectors without copying them, and without Arrow's `to_numpy`, which imports pandas."""
    column = table["vector"]
    listed = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    size = column.type.list_size
    flat: Float32[np.ndarray, " values"] = np.from_dlpack(listed.values.slice(listed.offset * size, len(listed) * size))
    return flat.reshape(-1, size)


def read_info(out: Path) -> dict[str, Any] | None:
    """Return what an index says of itself; None where there is none.

    Raises:
        UserError: where `index.json` is not one of ours, or a file is in the folder's place.
    """
    if out.is_file():
        raise UserError(f"{out}: is a file; name an index's folder, by --index, or --out of a new one")
    try:
        info = Storage.open(out).read_json(INFO)
    except FileNotFoundError:
        return None
    if not isinstance(info, dict) or info.get("format") != FORMAT or not _is_complete(info):
        raise UserError(f"{out / INFO}: no index of this version; choose another folder, or remove {out}")
    return info


def _is_complete(info: dict[str, Any]) -> bool:
    """Return whether the entries that are read without asking for them are there, each of its type."""
    wanted = {**ENTRIES, **(FINISHED if info.get("finished") else {})}
    return all(isinstance(info.get(name), kind) for name, kind in wanted.items())


def open_index(out: Path) -> Index:
    """Open an index, as it was before or after what another process writes just now.

    Raises:
        UserError: where there is none, it was never finished, or its files are not those that were written.
    """
    for left in reversed(range(TRIES)):
        stamp = _stamp(out)
        try:
            return _opened(out, stamp)
        except UserError:  # somebody removes files that another index.json named
            if not left or _stamp(out) == stamp:
                raise
    raise AssertionError("TRIES is 0")


def _opened(out: Path, stamp: tuple[int, int, int] | None) -> Index:
    info = read_info(out)
    if info is None or stamp is None:
        raise UserError(f"{out}: no index; `retable audio index FOLDER --model RUN --out {out}` makes one")
    if not info["finished"]:
        raise UserError(f"{out}: unfinished; run `retable audio index {info['folder']} --out {out}` again")
    tables = _tables(out, info, [*info["shards"], *info["added"]])
    index, file = None, info["faiss"]
    if info["kind"] != "flat":  # which is the vectors themselves, though older indexes keep a file of it
        index = nearest.read(out / file["name"], file["bytes"], info["segments"], info["dimension"])
    vectors = [shard_vectors(table) for table in tables]
    files, null, refit = read_places(out, info), read_null(info), refit_of(out, info)
    return Index(out, stamp, info, folder_of(out, info), tables, vectors, index, files, null, refit)


def refresh(index: Index) -> Index:
    """Return an index as it lies there now; the same one where nothing was written since.

    What was there before is not read again, unless the index was built anew.

    Raises:
        UserError: where it was removed and made again with another model, whose vectors mean something else.
    """
    for _ in range(TRIES):
        if _stamp(index.out) == index.stamp:
            break
        try:
            now = _reread(index)
        except UserError:  # somebody joins shards just now
            continue
        if now.info["model"] != index.info["model"]:
            raise UserError(f"{index.out}: was made anew with another model; open it again")
        return now
    return index


def _reread(index: Index) -> Index:
    stamp, info = _stamp(index.out), read_info(index.out)
    if stamp is None or info is None or not info["finished"]:
        return index
    if any(info.get(entry) != index.info.get(entry) for entry in BUILT):
        return open_index(index.out)
    tables = [*index.tables[: index.built], *_tables(index.out, info, info["added"])]
    vectors = [*index.vectors[: index.built], *map(shard_vectors, tables[index.built :])]
    folder, files = folder_of(index.out, info), read_places(index.out, info)
    return replace(index, stamp=stamp, info=info, folder=folder, tables=tables, vectors=vectors, files=files)


def _stamp(out: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever `index.json` is written; None where there is none."""
    try:
        status = (out / INFO).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _tables(out: Path, info: dict[str, Any], shards: Sequence[dict[str, Any]]) -> list[pa.Table]:
    """Map shards into memory, which must be those that were written."""
    tables = [read_shard(out / shard["name"], info["dimension"]) for shard in shards]
    for shard, table in zip(shards, tables, strict=True):
        if table.num_rows != shard["rows"]:
            raise UserError(f"{out / shard['name']}: not what was written; run `retable audio index` again")
    return tables


def open_words(name: str, storage: Storage, device: str = "", with_audio: bool = False) -> Embedder | Words:
    """Open the half of a model that embeds words: a file without torch, which takes seconds to import.

    Args:
        name: a file, a model of the zoo, or a run; see `opening.open_embedder`.
        storage: where runs lie.
        device: cpu, cuda, ...; none: the CPU for a file, else a GPU where there is one.
        with_audio: open the half that embeds sounds, too.

    Raises:
        UserError: where there is no such model, or no such device.
    """
    file = zoo.find_file("audio", name)
    embedder = read_words(file.absolute()) if file and device in ("", "cpu") and not with_audio else None
    if embedder:
        return embedder
    from retable.tasks.audio.tools.search import opening

    return opening.open_embedder(name, storage, device, words_alone=not with_audio)


def check_model(info: dict[str, Any], embedder: Embedder | Words, out: Path) -> None:
    """Refuse a model that an index was not made with: its vectors would mean nothing there.

    Raises:
        UserError: naming both.
    """
    if info["model"] != embedder.fingerprint:
        made, given = f"{info['source']} ({info['model'][:8]})", f"{embedder.source} ({embedder.fingerprint[:8]})"
        raise UserError(f"{out}: was made with the model {made}, not {given}; use that one, or another index")


def query_vector(
    embedder: Embedder | Words, words: str, like: Path | None, refit: Refit | None = None, avoid: str = ""
) -> Float32[np.ndarray, " dimension"]:
    """Return the unit vector to search for: of words, of a recording's mean segment, or of both added.

    Args:
        embedder: what embeds; a whole one where there is a recording.
        words: what is to be heard.
        like: a recording.
        refit: the index's, which words go through; a recording does not.
        avoid: words of what is not to be heard, whose vector is subtracted with the weight `AVOID`.

    Raises:
        UserError: where there is neither, the recording cannot be read, or words are not UTF-8.
    """
    has_words = any(letter.isalnum() for letter in words)  # punctuation is not heard
    if not has_words and like is None:
        raise UserError("nothing to search for; give words, or a recording: `retable audio search --like FILE`")
    parts = []
    if like is not None:
        from retable.tasks.audio.tools.embed.embedder import embed_file

        parts.append(unit(embed_file(cast("Embedder", embedder), like).vectors.mean(0)))
    if has_words:
        parts.append(_words_vector(embedder, words, refit))
    wanted = unit(np.stack(parts).sum(0))
    if not any(letter.isalnum() for letter in avoid):
        return wanted
    return unit(wanted - np.float32(AVOID) * _words_vector(embedder, avoid, refit))


def _words_vector(embedder: Embedder | Words, words: str, refit: Refit | None) -> Float32[np.ndarray, " dimension"]:
    if any("\ud800" <= letter <= "\udfff" for letter in words):  # what a shell makes of other bytes
        raise UserError(f"{words!a}: not UTF-8; type it in a terminal that is")
    vectors = embedder.words([words])
    vector: Float32[np.ndarray, " dimension"] = (refit.apply(vectors) if refit else vectors)[0]
    return vector


def search(
    index: Index, query: Float32[np.ndarray, " dimension"], top: int, where: Where | None = None, itself: str = ""
) -> list[Hit]:
    """Return the recordings nearest to a unit vector, best first, each once, with its best segment and all its places.

    A place that is gone from the folder is left out; where the folder itself is not there, nothing is looked up.

    Args:
        index: an open one.
        query: of `query_vector`.
        top: recordings, at most.
        where: which recordings may be hits; None: all.
        itself: content of the recording that the query is; where the index holds it, it is the first hit.
    """
    where = where or Where()
    rows = sum(map(len, index.vectors))
    look = index.folder.is_dir()
    wanted = min(rows, 4 * top)
    while True:
        hits = []
        # The lists that the index is tuned to look into need not hold what `where` allows: then all are compared.
        scores, numbers = (result[0] for result in _found(index, query[None], wanted, exhaustive=wanted > 4 * top))
        nearest_first = _contents(index, scores, numbers) if rows else []
        if itself in index.paths:
            nearest_first = [(itself, 1.0, 0.0), *(result for result in nearest_first if result[0] != itself)]
        for content, score, offset in nearest_first:
            paths = where.places(index, content)
            present = [path for path in paths if not look or (index.folder / path).is_file()]
            if present:
                hits.append(Hit(present[0], tuple(present[1:]), score, offset))
            if len(hits) == top:
                return hits
        if wanted >= rows:
            return hits
        wanted = min(rows, 4 * wanted)


def p_value(index: Index, hits: Sequence[Hit], embedder: Embedder | Words) -> float | None:
    """Return how often words at random find as much as the best hit of a query in words; see `null.py`.

    The null is that of the index as it was built, whatever was added since or is left out as a hit. None where nothing
    was found, and where the index has no null, or one of other anchors: `retable audio index` brings it up to date.
    """
    fits = index.null is not None and index.null.anchors == digest_of(embedder.anchors)
    return index.null.p_value(hits[0].score) if index.null and fits and hits else None


def _found(
    index: Index, queries: Float32[np.ndarray, "queries dimension"], count: int, exhaustive: bool
) -> nearest.Found:
    """Return the scores and numbers of the nearest segments: those that FAISS knows, and those added since.

    With `exhaustive` all are compared, whatever FAISS would look into.
    """
    built, added = index.vectors[: index.built], index.vectors[index.built :]
    best = nearest.nearest(None if exhaustive else index.faiss, built, queries, count, index.info["effort"])
    if added:
        scores, numbers = nearest.exact(added, queries, count)
        best = nearest.merged(best, (scores, np.where(numbers < 0, -1, numbers + sum(map(len, built)))), count)
    return best


def _contents(index: Index, scores: Any, numbers: Any) -> list[tuple[str, float, float]]:
    """Return the contents of segments in the order of their scores, each with the score and offset of its best one."""
    ends = np.cumsum([table.num_rows for table in index.tables])
    best: dict[str, tuple[str, float, float]] = {}
    for score, number in zip(scores.tolist(), numbers.tolist(), strict=True):
        if number < 0:
            continue
        shard = int(np.searchsorted(ends, number, side="right"))
        table = index.tables[shard]
        row = number - int(ends[shard]) + table.num_rows
        content = table["content"][row].as_py()
        best.setdefault(content, (content, score, table["offset"][row].as_py()))
    return list(best.values())
