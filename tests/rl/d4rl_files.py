"""Small files in D4RL's layout, and what a naive loop reads from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from retable.tasks.rl import data

STATES, ACTIONS = 11, 3
"""Those of Hopper."""
Arrays = dict[str, Any]
Episodes = list[tuple[int, str]]
MIXED: Episodes = [(3, "terminal"), (1, "timeout"), (4, "timeout"), (1, "terminal"), (2, "both"), (3, "none")]


def make_arrays(episodes: Episodes, seed: int = 0) -> Arrays:
    """Random rows; each episode is (length, how it ends), `none` for a last one that the file's end cuts."""
    random = np.random.default_rng(seed)
    rows = sum(length for length, _ in episodes)
    last = np.cumsum([length for length, _ in episodes]) - 1
    terminals, timeouts = np.zeros(rows, bool), np.zeros(rows, bool)
    for row, (_, ending) in zip(last, episodes, strict=True):
        terminals[row], timeouts[row] = ending in ("terminal", "both"), ending in ("timeout", "both")
    observations, successors = (random.normal(size=(rows, STATES)).astype(np.float32) for _ in range(2))
    inside = ~(terminals | timeouts)[:-1]
    successors[:-1][inside] = observations[1:][inside]
    return {
        "observations": observations,
        "actions": random.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32),
        "rewards": random.normal(size=rows).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "next_observations": successors,
    }


def write(path: Path, arrays: Mapping[str, Any], variant: str = "v2") -> Path:
    """Write arrays as D4RL does: v0 bare, v1 with infos and (N, 1) float64 columns, v2 with next_observations."""
    arrays = dict(arrays)
    if variant != "v2":
        arrays.pop("next_observations", None)
    if variant == "v1":
        arrays = {key: np.asarray(array, np.float64) for key, array in arrays.items()}
        arrays |= {key: arrays[key][:, None] for key in ("rewards", "terminals", "timeouts")}
        arrays["infos/qpos"] = np.zeros((len(arrays["rewards"]), 2))
        arrays["metadata/algorithm"] = "SAC"
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
    return path


def oracle(arrays: Arrays, successors: bool) -> tuple[dict[str, list[Any]], list[float]]:
    """Split into episodes and find successors row by row."""
    columns: dict[str, list[Any]] = {name: [] for name in data.COLUMNS}
    returns, total, step, episode, kept = [], 0.0, 0, 0, False
    rows = len(arrays["rewards"])
    for i in range(rows):
        terminal, timeout = bool(arrays["terminals"][i]), bool(arrays["timeouts"][i])
        total += float(arrays["rewards"][i])
        following = None
        if successors:
            following = arrays["next_observations"][i]
        elif terminal:
            following = arrays["observations"][i]
        elif not timeout and i + 1 < rows:
            following = arrays["observations"][i + 1]
        if following is not None:
            kept = True
            values = [arrays[key][i] for key in ("observations", "actions", "rewards")]
            values += [following, terminal, timeout, episode, step]
            for name, value in zip(data.COLUMNS, values, strict=True):
                columns[name].append(value)
        step += 1
        if terminal or timeout:
            returns.append(total)
            episode, step, total, kept = episode + kept, 0, 0.0, False
    return columns, returns


def assert_columns(found: Mapping[str, Any], expected: Mapping[str, list[Any]]) -> None:
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], np.array(values), err_msg=name)
    kinds = [found[name].dtype for name in data.COLUMNS]
    assert kinds == [np.float32] * 4 + [bool] * 2 + [np.int32] * 2
