"""LanceDB in the place of the vectors of `retable audio index`: the same vectors and queries, in turn with ours.

LanceDB keeps vectors, versions and indexes in one folder that is read while it is written, which our index does by
files of its own. What a search, one addition and the import cost in each decides which is kept. Its IVF holds vectors
as they are, and is asked for as many lists as find 95 % of an exact search's ten nearest, as ours is. It is in no
extra: `pip install lancedb`, then `python -m benchmarks audio_lance`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.audio_search import COUNT, DIMENSION, QUERIES, latencies, world
from retable.tasks.audio.tools.search import nearest

VECTORS = (10_000, 100_000)
LISTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of lists to look through, until the recall is enough."""
ADDITIONS, ROUNDS = 5, 48
IMPORTS = {"LanceDB": "import lancedb", "ours": "import faiss, numpy"}


def table_of(vectors: np.ndarray[Any, Any], first: int) -> pa.Table:
    """Return vectors with their numbers as LanceDB takes them."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSION)
    return pa.table({"number": np.arange(first, first + len(vectors)), "vector": column})


def search(table: Any, query: np.ndarray[Any, Any], lists: int = 0) -> list[int]:
    """Return the numbers of the nearest vectors; `lists` of an index, 0: among all, exactly."""
    query_plan = table.search(query).distance_type("dot")
    query_plan = query_plan.nprobes(lists) if lists else query_plan.bypass_vector_index()
    numbers: list[int] = query_plan.select(["number", "_distance"]).limit(COUNT).to_arrow()["number"].to_pylist()
    return numbers


def recall(table: Any, queries: np.ndarray[Any, Any], exact: np.ndarray[Any, Any], lists: int) -> float:
    """Return the share of the nearest that a search finds."""
    hits = [len(set(search(table, query, lists)) & set(true)) for query, true in zip(queries, exact, strict=True)]
    return sum(hits) / exact.size


def compare(rows: int, folder: Path) -> dict[str, float]:
    """Time both with so many vectors, exact and by lists."""
    import lancedb

    blocks, queries = world(rows)
    name, exact = f"{rows:,}", nearest.exact(blocks, queries, COUNT)[1]
    start = time.perf_counter()
    table = lancedb.connect(folder).create_table("vectors", table_of(np.concatenate(blocks), 0))
    results = {f"{name}, LanceDB: write, s": time.perf_counter() - start}
    start = time.perf_counter()
    table.create_index(metric="dot", vector_column_name="vector", index_type="IVF_FLAT")
    results[f"{name}, LanceDB: build IVF, s"] = time.perf_counter() - start
    reached = ((lists, recall(table, queries, exact, lists)) for lists in LISTS)
    lists, share = next(trial for trial in reached if trial[1] >= nearest.WANTED or trial[0] == LISTS[-1])
    start = time.perf_counter()
    ivf = nearest.build("ivf", blocks, DIMENSION)
    results[f"{name}, ours: build IVF, s"] = time.perf_counter() - start
    effort, own = nearest.tune(ivf, blocks, queries)
    flat = nearest.build("flat", blocks, DIMENSION)
    calls = {
        "ours, exact": lambda vector: nearest.nearest(flat, blocks, vector[None], COUNT, 0),
        "LanceDB, exact": lambda vector: search(table, vector),
        "ours, IVF": lambda vector: nearest.nearest(ivf, blocks, vector[None], COUNT, effort),
        "LanceDB, IVF": lambda vector: search(table, vector, lists),
    }
    results |= {f"{name}, ours, IVF: recall@10": own, f"{name}, LanceDB, IVF: recall@10": share}
    results |= {f"{name}, {way}: ms": value for way, value in latencies(calls, list(queries), ROUNDS).items()}
    return results | {f"{name}, LanceDB: add one recording, ms": added(table, queries)}


def added(table: Any, vectors: np.ndarray[Any, Any]) -> float:
    """Return the median milliseconds of adding ten vectors, a version each time."""
    times = []
    for number in range(ADDITIONS):
        start = time.perf_counter()
        table.add(table_of(vectors[:10], 10**9 + 10 * number))
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def imported(command: str) -> float:
    """Return the least seconds of processor time of three processes that import something and end."""
    times = []
    for _ in range(3):
        before = sum(os.times()[2:4])
        subprocess.run([sys.executable, "-c", command], check=True)
        times.append(sum(os.times()[2:4]) - before)
    return min(times)


def measure() -> dict[str, Any]:
    """Compare searches, additions and imports."""
    results: dict[str, Any] = {"dimension": DIMENSION, "queries": QUERIES, "threads": len(os.sched_getaffinity(0))}
    with tempfile.TemporaryDirectory() as folder:
        for rows in VECTORS:
            results |= compare(rows, Path(folder) / str(rows))
    return results | {f"import, {way}: s of the processor": imported(command) for way, command in IMPORTS.items()}
