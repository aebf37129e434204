"""Nearest vectors: FAISS indexes of unit vectors, chosen by size, tuned by their recall with queries of words.

FAISS proposes and the vectors themselves decide: what an approximate index finds is ranked again by exact scores, so
that it can miss a vector, and never misplaces one. An evaluation never comes here: it multiplies matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int64

from retable.platform.errors import UserError, disk_errors

Kind = Literal["flat", "sq8", "hnsw", "ivf"]
Vectors = Sequence[Float32[np.ndarray, "rows dimension"]]
"""Unit vectors in blocks, as they lie in files; a vector's number counts through all of them."""
Found = tuple[Float32[np.ndarray, "queries count"], Int64[np.ndarray, "queries count"]]
"""Scores, falling, and the vectors' numbers; where there are fewer: -inf and -1."""

FLAT = 200_000
"""Up to so many vectors an index is exact: a query takes about 15 ms on two cores. Beyond, it is divided into lists; a
byte a number (SQ8) saves as much memory, and was slower than an exact search wherever it was measured."""
LINKS, CONSTRUCTION = 32, 80
"""HNSW: neighbours of a vector, and candidates looked at when it is put in."""
TRAINING = 64
"""Vectors for each list that an IVF index learns its centres from."""
WANTED, COUNT = 0.95, 10
"""The recall at so many that an approximate index is tuned to."""
TOGETHER = 1 << 14
"""Values of a line up to which several lines are ranked at once."""
PRODUCTS = 1 << 24
"""Scores that an exact search holds at once: 64 MB."""
SPARE = 4
"""An approximate index is asked for so many times as many as are wanted."""


def choose(rows: int) -> Kind:
    """Return the kind of index for so many vectors."""
    return "flat" if rows <= FLAT else "ivf"


def build(kind: Kind, vectors: Vectors, dimension: int) -> Any:
    """Return a FAISS index of all vectors, for inner products.

    It lies in memory whole, as all of FAISS does; the vectors pass through block by block. HNSW's links depend on the
    order in which threads meet; the other kinds are the same every time.
    """
    import faiss

    rows = sum(map(len, vectors))
    metric = faiss.METRIC_INNER_PRODUCT
    index: Any
    if kind == "flat" or not rows:
        index = faiss.IndexFlatIP(dimension)
    elif kind == "sq8":
        index = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_8bit, metric)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(dimension, LINKS, metric)
        index.hnsw.efConstruction = CONSTRUCTION
    else:
        lists = max(1, min(int(4 * math.sqrt(rows)), rows // 39 or 1))  # FAISS wants 39 vectors a list
        centres = faiss.IndexFlatIP(dimension)
        index = faiss.IndexIVFScalarQuantizer(centres, dimension, lists, faiss.ScalarQuantizer.QT_8bit, metric)
    if not index.is_trained:
        index.train(_sample(vectors, TRAINING * getattr(index, "nlist", 1000)))
    for block in vectors:
        index.add(np.ascontiguousarray(block))
    return index


def _sample(vectors: Vectors, wanted: int) -> Float32[np.ndarray, "sample dimension"]:
    """Return evenly spread vectors."""
    rows = sum(map(len, vectors))
    return gather(vectors, np.unique(np.linspace(0, rows - 1, min(rows, wanted)).astype(np.int64)))


def gather(vectors: Vectors, numbers: Int64[np.ndarray, " count"]) -> Float32[np.ndarray, "count dimension"]:
    """Return the vectors of some numbers."""
    ends = np.cumsum([len(block) for block in vectors])
    blocks = np.searchsorted(ends, numbers, side="right")
    gathered = np.empty((len(numbers), vectors[0].shape[1]), np.float32)
    for block in np.unique(blocks):
        here = blocks == block
        gathered[here] = vectors[block][numbers[here] - (ends[block] - len(vectors[block]))]
    return gathered


def exact(vectors: Vectors, queries: Float32[np.ndarray, "queries dimension"], count: int) -> Found:
    """Return the nearest vectors of each query by comparing with all of them; ties by number."""
    rows = sum(map(len, vectors))
    scores = np.full((len(queries), count), -np.inf, np.float32)
    numbers = np.full((len(queries), count), -1, np.int64)
    most = max(PRODUCTS // max(rows, 1), 1)
    for first in range(0, len(queries), most):
        part = queries[first : first + most]
        products, start = np.empty((len(part), rows), np.float32), 0
        for block in vectors:
            np.matmul(part, block.T, out=products[:, start : start + len(block)])
            start += len(block)
        kept, last = min(count, rows), first + len(part)
        scores[first:last, :kept], numbers[first:last, :kept] = _largest(products, kept)
    return scores, numbers


def _largest(lines: Float32[np.ndarray, "lines rows"], count: int) -> Found:
    """Return the largest values of each line, falling, and their places; of equal ones the first.

    The value at `count` is found first: what reaches it is little, and is all that is ranked. Short lines are looked at
    together, and long ones, which a cache does not hold, one after another.
    """
    rows = lines.shape[1]
    if rows > TOGETHER and len(lines) > 1:
        parts = [_largest(line[None], count) for line in lines]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    least = np.partition(lines, rows - count, axis=1)[:, rows - count]
    flat = np.flatnonzero(lines >= least[:, None])
    values = lines.reshape(-1)[flat]
    if len(flat) > count * len(lines):  # some equal the last one
        owner = flat // rows
        order = np.lexsort((flat, -values, owner))
        chosen = order[np.searchsorted(owner, np.arange(len(lines)))[:, None] + np.arange(count)]
    else:
        order = np.argsort(-values.reshape(len(lines), count), axis=1, kind="stable")
        chosen = order + count * np.arange(len(lines))[:, None]
    return values[chosen], flat[chosen] % rows


def nearest(
    index: Any, vectors: Vectors, queries: Float32[np.ndarray, "queries dimension"], count: int, effort: int
) -> Found:
    """Return what an index holds nearest to each query, ranked by exact scores; ties by number.

    Args:
        index: of `build`, or None: all vectors are compared, which is what a flat one comes to.
        vectors: what it was built of.
        queries: unit vectors.
        count: how many are wanted.
        effort: of `tune`: lists looked into (IVF), or candidates kept (HNSW).
    """
    rows = sum(map(len, vectors))
    if index is None or not rows or _is_flat(index):  # NumPy is twice as fast as FAISS' flat index
        return exact(vectors, queries, count)
    spare = min(rows, SPARE * count)
    _set_effort(index, max(effort, spare if hasattr(index, "hnsw") else 1))
    _, numbers = index.search(np.ascontiguousarray(queries), spare)
    valid = numbers >= 0
    scores = np.full(numbers.shape, -np.inf, np.float32)
    owner = np.nonzero(valid)[0]
    scores[valid] = np.einsum("nd,nd->n", gather(vectors, numbers[valid]), queries[owner])
    return _padded(*_best(scores, numbers, count), count)


def merged(one: Found, other: Found, count: int) -> Found:
    """Return the best of two findings of the same queries, ranked; ties by number."""
    return _padded(*_best(np.hstack([one[0], other[0]]), np.hstack([one[1], other[1]]), count), count)


def _best(scores: Any, numbers: Any, count: int) -> tuple[Any, Any]:
    """Return the best columns of each row, best first; equal scores in order of their numbers."""
    order = np.lexsort((numbers, -scores), axis=1)[:, :count]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(numbers, order, 1)


def _padded(scores: Any, numbers: Any, count: int) -> Found:
    lacking = ((0, 0), (0, count - scores.shape[1]))
    return np.pad(scores, lacking, constant_values=-np.inf), np.pad(numbers, lacking, constant_values=-1)


def _is_flat(index: Any) -> bool:
    import faiss

    return isinstance(index, faiss.IndexFlat)


def _set_effort(index: Any, effort: int) -> None:
    if hasattr(index, "nprobe"):
        index.nprobe = effort
    if hasattr(index, "hnsw"):
        index.hnsw.efSearch = effort


def recall(
    index: Any, vectors: Vectors, queries: Float32[np.ndarray, "queries dimension"], truth: Found, effort: int
) -> float:
    """Return which share of the truly nearest an index finds; one that is as near as the last of them counts.

    Args:
        index: of `build`.
        vectors: what it was built of.
        queries: unit vectors of words: those of sounds lie where the vectors do, and flatter an index.
        truth: of `exact`, for the same queries.
        effort: see `nearest`.
    """
    best = truth[0]
    scores, _ = nearest(index, vectors, queries, best.shape[1], effort)
    finite = np.isfinite(best)
    last = np.where(finite, best, np.inf).min(1, keepdims=True)
    hits = (np.isfinite(scores) & (scores >= last - 1e-5)).sum()
    return float(min(hits, finite.sum()) / max(finite.sum(), 1))


def tune(index: Any, vectors: Vectors, queries: Float32[np.ndarray, "queries dimension"]) -> tuple[int, float]:
    """Return the least effort, doubled from 8 on, with which an index finds 95 % of the nearest 10, and its recall.

    Flat and SQ8 take none: 0. Where no effort suffices, the greatest counts, and its recall says so.
    """
    truth = exact(vectors, queries, min(COUNT, max(int(index.ntotal), 1)))
    most = int(getattr(index, "nlist", 0)) or (1024 if hasattr(index, "hnsw") else 0)
    effort = min(8, most)
    share = recall(index, vectors, queries, truth, effort)
    while share < WANTED and effort < most:
        effort = min(2 * effort, most)
        share = recall(index, vectors, queries, truth, effort)
    return effort, share


def write(index: Any, path: Path) -> int:
    """Write an index at once, and return its size in bytes."""
    import faiss

    writing = path.parent / f".writing-{path.name}"
    try:
        faiss.write_index(index, str(writing))
    except RuntimeError as error:
        raise UserError(f"{path}: cannot be written; free some space or choose another --out") from error
    with disk_errors(str(path)):
        writing.replace(path)
    return path.stat().st_size


def read(path: Path, size: int, rows: int, dimension: int) -> Any:
    """Read an index that `write` wrote.

    FAISS' format holds numbers and no code, but its reader trusts them: a file that was made to harm may. So a file
    whose size is not what was written is not opened, one that holds other vectors than those beside it is refused, and
    of a stranger's index `index-*.faiss` should be removed: `retable audio index` builds it again from the vectors.

    Raises:
        UserError: where the file is missing, or is not the one that was written.
    """
    import faiss

    again = f"remove {path} and run `retable audio index` again"
    if not path.is_file() or path.stat().st_size != size:
        raise UserError(f"{path}: missing, or not what was written; {again}")
    try:
        index: Any = faiss.read_index(str(path))
    except RuntimeError as error:
        raise UserError(f"{path}: FAISS cannot read it; {again}") from error
    if (index.ntotal, index.d) != (rows, dimension):
        raise UserError(f"{path}: holds {index.ntotal} vectors of {index.d}, not {rows} of {dimension}; {again}")
    return index
