"""D4RL's file format, as D4RL published it (v0, v1, v2) and as our recordings write it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from retable.platform.errors import UserError
from retable.tasks.rl.metrics import D4RL

Array = npt.NDArray[Any]

AXES = {"observations": 2, "actions": 2, "rewards": 1, "terminals": 1, "timeouts": 1, "next_observations": 2}
"""D4RL's keys and their number of axes. All but the last must be there."""
COLUMNS = ("observation", "action", "reward", "next_observation", "terminal", "timeout", "episode", "step")
"""The internal form's columns."""
TOLERANCE = 1e-3
"""How far an action may lie outside [-1, 1]: float32 policies with a tanh can miss by a rounding error."""
SMALL, SHRINKS = 1 << 26, 2000
"""Bytes that an array may claim whatever is stored of it, and how many times smaller a larger one may be stored: HDF5
gives 0 for what was never written, and zlib makes a thousandth of zeros."""


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a foreign HDF5 file for reading.

    Raises:
        UserError: where the file is missing, truncated or no HDF5, or turns out to be so while it is read.

    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; check the path")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except MemoryError as error:
        raise UserError(f"{path}: takes more memory than there is; give a smaller file") from error
    except (OSError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a readable HDF5 file ({reason}); download or write it again") from error


def child(path: Path, group: h5py.Group, key: str, remedy: str) -> Any:
    """Return a member of a group of a foreign file.

    Raises:
        UserError: where it is missing, or a link: that may point into any other file of this machine.

    """
    name = f"{group.name}/{key}".lstrip("/")
    if not group.id.links.exists(key.encode()):
        raise UserError(f"{path}: key '{name}' is missing; {remedy}")
    if group.id.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
        raise UserError(f"{path}: key '{name}' is a link to elsewhere; write the data itself into the file")
    return group[key]


def numbers(path: Path, group: h5py.Group, key: str, axes: int, remedy: str) -> Array:
    """Return an array of a foreign file: numbers as float32, flags as they are; (N, 1) as (N,) where `axes` is 1.

    Raises:
        UserError: where it is missing, not an array of numbers, kept in another file, or nearly all of it is not there.

    """
    dataset = child(path, group, key, remedy)
    name = f"{group.name}/{key}".lstrip("/")
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiub":
        raise UserError(f"{path}: key '{name}' is no array of numbers; {remedy}")
    if dataset.is_virtual or dataset.external:
        raise UserError(f"{path}: key '{name}' keeps its data in another file; write the data itself into the file")
    size, stored = math.prod(dataset.shape or ()) * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if size > max(SMALL, SHRINKS * stored):
        raise UserError(f"{path}: key '{name}' claims {size:,} bytes and holds {stored:,}; download or write it again")
    array: Array = np.asarray(dataset[()])
    if axes == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is reported as such
        return array if array.dtype == bool else array.astype(np.float32)


def load(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by D4RL's keys: numbers as float32, flags as they are, (N, 1) columns as (N,).

    Raises:
        UserError: where the file is missing, truncated, foreign, lacks a key, or refers to another file.

    """
    *needed, optional = AXES
    remedy = f"give a D4RL file, with {', '.join(needed)}"
    with opened(path) as file:
        keys = [*needed, optional] if file.id.links.exists(optional.encode()) else needed
        return {key: numbers(path, file, key, AXES[key], remedy) for key in keys}


def defects(path: Path, arrays: Mapping[str, Array]) -> list[str]:
    """Return one line for each defect of a file's arrays (as `load` gives them), the gravest first; none if valid."""
    remedy = "download or write it again"
    rows = arrays["observations"].shape[0] if arrays["observations"].ndim else 0
    found = []
    for key, array in arrays.items():
        axes = ["(N,)", "(N, size)"][AXES[key] - 1]
        if array.ndim != AXES[key] or 0 in array.shape[1:]:
            found.append(f"{path}: key '{key}' has shape {array.shape}, not {axes}; {remedy}")
        elif len(array) != rows:
            found.append(f"{path}: key '{key}' has {len(array)} rows, 'observations' {rows}; {remedy}")
    nexts = arrays.get("next_observations", arrays["observations"])
    if not found and nexts.shape != arrays["observations"].shape:
        found.append(f"{path}: key 'next_observations' is not shaped as 'observations'; {remedy}")
    if not found and not rows:
        found.append(f"{path}: key 'observations' has no rows; {remedy}")
    if found:
        return found
    for key, array in arrays.items():
        bad = ~np.isfinite(array).reshape(rows, -1).all(axis=1)
        if bad.any():
            found.append(f"{path}: key '{key}' has NaN or infinite values, first in row {bad.argmax()}; {remedy}")
    beyond = (np.abs(arrays["actions"]) > 1 + TOLERANCE).any(axis=1)
    if beyond.any():
        found.append(f"{path}: key 'actions' leaves [-1, 1], first in row {beyond.argmax()}; scale them")
    if not (arrays["terminals"].any() or arrays["timeouts"].any()):
        found.append(f"{path}: keys 'terminals' and 'timeouts' end no episode; mark the last row of each episode")
    return found


def read_d4rl(path: Path) -> tuple[dict[str, Array], Array]:
    """Read a D4RL file (v0, v1, v2) or a recording of ours, which has the same layout.

    The file is a sequence of rows; an episode ends where `terminals` or `timeouts` is set, or with the file. A row's
    successor is `next_observations` where the file has it. Without it, it is the next row of the same episode; the
    last row of an episode then has none: it is kept where it is terminal (the successor is masked in every target, and
    stands in the table as the row's own observation) and dropped where a timeout or the file's end cut the episode.

    `d4rl.qlearning_dataset` differs in two ways, which we mend: it never returns the file's last row, even a terminal
    one (D4RL issues 145 and 204), and it gives a terminal row the first observation of the next episode.

    Returns:
        The columns of the internal form (observation (N, states), action (N, actions), reward (N,), next_observation
        (N, states), terminal (N,), timeout (N,), episode (N,), step (N,)) and the undiscounted returns of the complete
        episodes (episodes,) float64, dropped rows included.

    Raises:
        UserError: where the file is missing, broken, foreign or no valid data set. Links to other files are refused.

    """
    arrays = load(path)
    for defect in defects(path, arrays):
        raise UserError(defect)
    observations, terminal, timeout = arrays["observations"], arrays["terminals"] != 0, arrays["timeouts"] != 0
    ends = terminal | timeout
    starts = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
    step = np.arange(len(ends)) - np.repeat(starts, np.diff(starts, append=len(ends)))
    if "next_observations" in arrays:
        successors, keep = arrays["next_observations"], np.ones(len(ends), bool)
    else:
        successors = np.concatenate([observations[1:], observations[-1:]])
        successors[ends] = observations[ends]
        keep = terminal | ~ends
        keep[-1] = terminal[-1]
    if not keep.any():
        raise UserError(f"{path}: no row has a successor; write 'next_observations' or longer episodes")
    columns = {
        "observation": observations,
        "action": arrays["actions"],
        "reward": arrays["rewards"].astype(np.float32),
        "next_observation": successors,
        "terminal": terminal,
        "timeout": timeout,
        "step": step.astype(np.int32),
    }
    columns = {name: column[keep] for name, column in columns.items()}
    # Counted after dropping, for an episode of one dropped row leaves nothing.
    columns["episode"] = (np.cumsum(columns["step"] == 0) - 1).astype(np.int32)
    returns = np.add.reduceat(arrays["rewards"].astype(np.float64), starts)
    return {name: columns[name] for name in COLUMNS}, returns if ends[-1] else returns[:-1]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def published_as(path: Path) -> str:
    """Say which of D4RL's published files a file is, by its SHA-256."""
    found = D4RL["files"].get(sha256(path))
    return (
        f"D4RL's {found['environment']} {found['name'].removeprefix('d4rl-')}" if found else "not one of D4RL's files"
    )


def origin(path: Path) -> dict[str, Any]:
    """Return what a recording of ours says of itself (environment, simulator, noise, seed, ...), {} for other files."""
    with h5py.File(path, "r") as file:
        text = file.attrs.get("retable")
    try:
        said = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {}


def identify(source: Path, environment: str | None, name: str | None) -> dict[str, Any]:
    """Say what a file is (source, name, environment, simulator, ...), by its SHA-256 and what the user calls it.

    Raises:
        UserError: where the environment or name is missing, reserved or contradicted.

    """
    checksum = sha256(source)
    files = {source.name: checksum}
    if published := D4RL["files"].get(checksum):
        for given, right in ((environment, published["environment"]), (name, published["name"])):
            if given not in (None, right):
                raise UserError(f"{source}: this is D4RL's {right!r}, not {given!r}; leave the name out")
        # D4RL was recorded in Gym's v2 environments, which v4 reproduces; v5 pays other rewards.
        return {
            "source": "d4rl",
            "simulator": "v2",
            "generated": False,
            "files": files,
            "licence": D4RL["licence"],
            **{key: published[key] for key in ("environment", "name", "url")},
        }
    said = origin(source)
    environment = environment or said.get("environment")
    if not environment or not name:
        why = impostor(source, checksum) or f"{source}: not a file that D4RL published"
        raise UserError(f"{why}; to use it as your own data, give its environment and a name")
    if name.startswith("d4rl") or name in ("recorded", "mixed"):
        raise UserError(f"{source}: the name {name!r} is kept for other data; choose another name")
    return {
        "source": "file",
        "name": name,
        "environment": environment,
        "simulator": said.get("simulator", "unknown"),
        "generated": bool(said),
        "cut": bool(said.get("cut")),
        "files": files,
    }


def impostor(path: Path, checksum: str) -> str | None:
    """Say that a file is named as one of D4RL's but is another; None if that is not so."""
    sizes = {file["url"].rsplit("/", 1)[1]: file["bytes"] for file in D4RL["files"].values()}
    if path.name not in sizes or checksum in D4RL["files"]:
        return None
    size = path.stat().st_size
    return f"{path}: named as D4RL's file, but the contents differ ({size} bytes, D4RL's has {sizes[path.name]})"
