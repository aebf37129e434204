"""Search latency and recall@10 of the indexes of `retable audio index`, against brute force in NumPy; memory.

Vectors have 256 dimensions and the shape of a trained space: a mixture of clusters in few dimensions. Queries are like
those in words: drawn near the same clusters, and moved off by an offset that all of them share, which is what sets
captions apart from sounds in such spaces (the gap between modalities). Their similarity to the nearest vector is
reported. Queries come one at a time, as people search, and in batches of 16, as a server gathers them; ours and NumPy
take turns, and medians count. `RETABLE_BENCH_VECTORS=1000000` adds a million vectors, without HNSW, which is slow to
build. Memory is that of a process of its own that reads the index.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import most_resident
from retable.tasks.audio.tools.search import nearest

VECTORS = sorted({1_000, 10_000, 100_000, int(os.environ.get("RETABLE_BENCH_VECTORS", 100_000))})
DIMENSION, RANK, CLUSTERS = 256, 48, 500
QUERIES, COUNT, BATCHES = 200, 10, (1, 16)
ROUNDS = 48
"""Calls of each way; 16 where there are more than a hundred thousand vectors."""
MOST_HNSW = 100_000
BLOCK = 16384


def world(rows: int) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return unit vectors in blocks, and unit queries."""
    draw = np.random.default_rng(0)
    basis = np.linalg.qr(draw.normal(size=(DIMENSION, RANK)))[0].T
    centres = draw.normal(size=(CLUSTERS, RANK))
    gap = draw.normal(size=DIMENSION) / np.sqrt(DIMENSION)

    def near(count: int, spread: float, offset: float) -> np.ndarray[Any, Any]:
        """Draw vectors around the centres."""
        inner = centres[draw.integers(CLUSTERS, size=count)] + spread * draw.normal(size=(count, RANK))
        vectors = inner @ basis / np.sqrt(RANK) + 0.02 * draw.normal(size=(count, DIMENSION)) + offset * gap
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    sizes = [min(BLOCK, rows - start) for start in range(0, rows, BLOCK)]
    return [near(size, 0.6, 0.0) for size in sizes], near(QUERIES, 0.8, 1.0)


def latencies(calls: Mapping[str, Callable[[Any], object]], batches: list[Any], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call, where all take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call(batches[number % len(batches)])
            times[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(spent[1:]) for name, spent in times.items()}


def compare(kind: nearest.Kind, rows: int, folder: Path) -> dict[str, float]:
    """Build one kind of index of so many vectors, and time it against brute force on the same ones."""
    blocks, queries = world(rows)
    name = f"{kind}, {rows:,}"
    start = time.perf_counter()
    index = nearest.build(kind, blocks, DIMENSION)
    seconds = time.perf_counter() - start
    effort, recall = nearest.tune(index, blocks, queries)
    joined = np.concatenate(blocks)

    def brute(vectors: np.ndarray[Any, Any]) -> object:
        """Multiply by all, and select."""
        scores = vectors @ joined.T
        best = np.argpartition(scores, -COUNT, axis=1)[:, -COUNT:]
        return np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, 1), axis=1), 1)

    calls = {"ours": lambda asked: nearest.nearest(index, blocks, asked, COUNT, effort), "NumPy": brute}
    rounds = ROUNDS if rows <= MOST_HNSW else 16
    results: dict[str, float] = {}
    for batch in BATCHES:
        asked = [queries[first : first + batch] for first in range(0, QUERIES - batch + 1, batch)]
        spent = latencies(calls, asked, rounds)
        results[f"{name}, {batch} at once: ms"] = spent["ours"]
        results[f"{name}, {batch} at once: times as fast as NumPy"] = spent["NumPy"] / spent["ours"]
    size = nearest.write(index, folder / f"{kind}.faiss")
    return {
        f"{name}: build, s": seconds,
        f"{name}: effort": effort,
        f"{name}: recall@10": recall,
        **results,
        f"{name}: file, MB": size / 1e6,
        f"{name}: memory, MB": memory(folder / f"{kind}.faiss", size, rows),
    }


def memory(path: Path, size: int, rows: int) -> float:
    """Return what reading an index adds to a process of its own, MB."""
    command = f"from benchmarks.audio_search import grown; grown({str(path)!r}, {size}, {rows})"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return float(done.stdout)


def grown(path: str, size: int, rows: int) -> None:
    """Print the most memory that reading an index takes, MB."""
    import faiss

    faiss.IndexFlatIP(1)
    before = most_resident()
    nearest.read(Path(path), size, rows, DIMENSION)
    print(most_resident() - before)


def measure() -> dict[str, Any]:
    """Compare all kinds of index."""
    blocks, queries = world(20_000)
    results: dict[str, Any] = {
        "dimension": DIMENSION,
        "threads": os.environ.get("OMP_NUM_THREADS", os.cpu_count()),
        "nearest cosine of a query, median": float(np.median(nearest.exact(blocks, queries, 1)[0])),
    }
    kinds: tuple[nearest.Kind, ...] = ("flat", "sq8", "ivf", "hnsw")
    with tempfile.TemporaryDirectory() as folder:
        for rows, kind in itertools.product(VECTORS, kinds):
            if kind != "hnsw" or rows <= MOST_HNSW:
                results |= compare(kind, rows, Path(folder))
    return results
