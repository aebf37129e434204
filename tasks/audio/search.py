"""Search an index: the recordings whose best segment lies nearest to some words, or to a sound.

An index is a folder: `index.json` says what it is, `embeddings-*.arrow` hold a row and a unit vector for each segment,
and `index.faiss` finds the nearest of them; see `index.py`. Segments that were added since `index.faiss` was built are
compared one by one; who holds an index open sees them with `refresh`.

A recording's score is the cosine of its best segment. Where a recording is one segment, that is the score an evaluation
ranks by; of a long one an evaluation takes the mean of all segments, and a search wants the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float32

from retable.platform.errors import UserError
from retable.platform.storage import Storage
from retable.tasks.audio import nearest
from retable.tasks.audio.embedder import Embedder, embed_file

INFO, FAISS, FORMAT = "index.json", "index.faiss", 1
SHARDS = "embeddings-*.arrow"
BUILT = ("shards", "faiss_bytes", "corpus", "kind")
"""Entries of `index.json` that are others once `index.faiss` was built anew."""
TRIES = 3


@dataclass(frozen=True)
class Hit:
    """A recording that was found."""

    file: str
    """Below the folder that was indexed; of a recording that was added from elsewhere, its absolute path."""
    score: float
    """Cosine between the query and the recording's best segment."""
    offset: float
    """Second at which that segment begins."""


@dataclass(frozen=True)
class Index:
    """An index that was opened; vectors stay on the disk but for those of FAISS."""

    out: Path
    """Where it lies."""
    stamp: tuple[int, int, int]
    """Of `index.json`: another one is there as soon as something was added."""
    info: dict[str, Any]
    tables: Sequence[pa.Table]
    """Of the shards that `faiss` was built of, then of those that were added since."""
    vectors: nearest.Vectors
    faiss: Any

    @property
    def built(self) -> int:
        """Return how many of the tables `faiss` was built of."""
        return len(self.info["shards"])

    def holds(self, file: str) -> bool:
        """Say whether a recording is in the index."""
        return any(pc.any(pc.equal(table["file"], file)).as_py() for table in self.tables)


def schema(dimension: int) -> pa.Schema:
    """Return the columns of a shard: a row is a segment."""
    return pa.schema(
        [
            ("file", pa.string()),
            ("bytes", pa.int64()),
            ("modified", pa.int64()),
            ("offset", pa.float64()),
            ("vector", pa.list_(pa.float32(), dimension)),
        ]
    )


def read_shard(path: Path, dimension: int) -> pa.Table:
    """Map a shard into memory.

    Raises:
        UserError: where the file is none, or its vectors have another length.
    """
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        table.validate(full=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: damaged or missing; remove it and run `retable audio index` again") from error
    if table.schema != schema(dimension):
        raise UserError(
            f"{path}: holds no vectors of {dimension} numbers; remove it and run `retable audio index` again"
        )
    return table


def shard_vectors(table: pa.Table) -> Float32[np.ndarray, "rows dimension"]:
    """Return a shard's vectors without copying them."""
    column = table["vector"]
    flat = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    found: Float32[np.ndarray, "rows dimension"] = flat.flatten().to_numpy().reshape(-1, column.type.list_size)
    return found


def read_info(out: Path) -> dict[str, Any] | None:
    """Return what an index says of itself; None where there is none.

    Raises:
        UserError: where `index.json` is not one of ours.
    """
    try:
        info = Storage.open(out).read_json(INFO)
    except FileNotFoundError:
        return None
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise UserError(f"{out / INFO}: no index of this version; choose another folder, or remove {out}")
    return info


def open_index(out: Path) -> Index:
    """Open an index.

    Raises:
        UserError: where there is none, it is unfinished, or its files are not those that were written.
    """
    stamp, info = _stamp(out), read_info(out)
    if info is None or stamp is None:
        raise UserError(f"{out}: no index; `retable audio index FOLDER --model RUN --out {out}` makes one")
    if not info["finished"]:
        raise UserError(f"{out}: unfinished; run `retable audio index {info['folder']} --out {out}` again")
    tables = _tables(out, info, [*info["shards"], *info.get("added", ())])
    index = nearest.read(out / FAISS, info["faiss_bytes"], info["segments"], info["dimension"])
    return Index(out, stamp, info, tables, [shard_vectors(table) for table in tables], index)


def refresh(index: Index) -> Index:
    """Return an index as it lies there now; the same one where nothing was added since, or it is just being built.

    What was there before is not read again, unless the index was built anew.
    """
    for _ in range(TRIES):
        if _stamp(index.out) == index.stamp:
            break
        try:
            return _reread(index)
        except UserError:  # somebody joins shards just now
            continue
    return index


def _reread(index: Index) -> Index:
    stamp, info = _stamp(index.out), read_info(index.out)
    if stamp is None or info is None or not info["finished"]:
        return index
    if any(info[entry] != index.info[entry] for entry in BUILT):
        return open_index(index.out)
    tables = [*index.tables[: index.built], *_tables(index.out, info, info.get("added", ()))]
    vectors = [*index.vectors[: index.built], *map(shard_vectors, tables[index.built :])]
    return Index(index.out, stamp, info, tables, vectors, index.faiss)


def _stamp(out: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever `index.json` is written; None where there is none."""
    try:
        said = (out / INFO).stat()
    except OSError:
        return None
    return said.st_ino, said.st_mtime_ns, said.st_size


def _tables(out: Path, info: dict[str, Any], shards: Sequence[dict[str, Any]]) -> list[pa.Table]:
    """Map shards into memory, which must be those that were written."""
    tables = [read_shard(out / shard["name"], info["dimension"]) for shard in shards]
    for shard, table in zip(shards, tables, strict=True):
        if table.num_rows != shard["rows"]:
            raise UserError(f"{out / shard['name']}: not what was written; run `retable audio index` again")
    return tables


def check_model(info: dict[str, Any], embedder: Embedder, out: Path) -> None:
    """Refuse a model that an index was not made with: its vectors would mean nothing there.

    Raises:
        UserError: naming both.
    """
    if info["model"] != embedder.fingerprint:
        made, given = f"{info['source']} ({info['model'][:8]})", f"{embedder.source} ({embedder.fingerprint[:8]})"
        raise UserError(f"{out}: was made with the model {made}, not {given}; use that one, or another index")


def query_vector(embedder: Embedder, words: str, like: Path | None) -> Float32[np.ndarray, " dimension"]:
    """Return the unit vector to search for: of words, of a recording's mean segment, or of both added.

    Raises:
        UserError: where there is neither, or the recording cannot be read.
    """
    said = any(letter.isalnum() for letter in words)  # punctuation is not heard
    if not said and like is None:
        raise UserError("nothing to search for; give words, or a recording with --like")
    parts = [] if like is None else [_unit(embed_file(embedder, like)[1].mean(0))]
    if said:
        parts.append(embedder.words([words])[0])
    return _unit(np.stack(parts).sum(0))


def _unit(vector: Float32[np.ndarray, " dimension"]) -> Float32[np.ndarray, " dimension"]:
    unit: Float32[np.ndarray, " dimension"] = (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype(np.float32)
    return unit


def search(index: Index, query: Float32[np.ndarray, " dimension"], top: int) -> list[Hit]:
    """Return the recordings nearest to a unit vector, best first, each with its best segment.

    A file that is gone from the folder is left out; where the folder itself is not there, nothing is looked up.
    """
    rows = sum(map(len, index.vectors))
    folder = Path(index.info["folder"])
    look = folder.is_dir()
    wanted = min(rows, 4 * top)
    while True:
        hits = _hits(index, *_found(index, query, wanted)) if rows else {}
        there = [hit for hit in hits.values() if not look or (folder / hit.file).is_file()]
        if len(there) >= top or wanted >= rows:
            return there[:top]
        wanted = min(rows, 4 * wanted)


def _found(index: Index, query: Float32[np.ndarray, " dimension"], count: int) -> tuple[Any, Any]:
    """Return the scores and numbers of the nearest segments: those that FAISS knows, and those added since."""
    built, added = index.vectors[: index.built], index.vectors[index.built :]
    found = nearest.nearest(index.faiss, built, query[None], count, index.info["effort"])
    if added:
        scores, numbers = nearest.exact(added, query[None], count)
        found = nearest.merged(found, (scores, np.where(numbers < 0, -1, numbers + index.faiss.ntotal)), count)
    return found[0][0], found[1][0]


def _hits(index: Index, scores: Any, numbers: Any) -> dict[str, Hit]:
    """Return the best segment of each file, in the order of the scores."""
    ends = np.cumsum([table.num_rows for table in index.tables])
    hits: dict[str, Hit] = {}
    for score, number in zip(scores.tolist(), numbers.tolist(), strict=True):
        if number < 0:
            continue
        shard = int(np.searchsorted(ends, number, side="right"))
        table = index.tables[shard]
        row = number - int(ends[shard]) + table.num_rows
        file = table["file"][row].as_py()
        hits.setdefault(file, Hit(file, score, table["offset"][row].as_py()))
    return hits
