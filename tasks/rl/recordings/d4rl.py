"""D4RL's file format, as D4RL published it (v0, v1, v2) and as our recordings write it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from retable.platform.errors import UserError, words
from retable.platform.spec.arrays import Array
from retable.platform.store.hdf5 import plain_numbers
from retable.platform.store.run import file_digest
from retable.platform.text import plural
from retable.tasks.rl.metrics import D4RL
from retable.tasks.rl.play.evaluate import Spaces, check_sizes
from retable.tasks.rl.recordings.episodes import Ends, Recording, Rows, find_ends, record_of

if TYPE_CHECKING:
    from retable.platform.store.download import Published


AXES = {"observations": 2, "actions": 2, "rewards": 1, "terminals": 1, "timeouts": 1, "next_observations": 2}
"""D4RL's keys and their number of axes. All but the last two must be there."""
TOLERANCE = 1e-3
"""How far an action may lie outside [-1, 1]: float32 policies with a tanh can miss by a rounding error."""
ENDLESS = ("HalfCheetah", "HumanoidStandup", "Pendulum", "Pusher", "Reacher", "Swimmer")
"""Environments of Gymnasium in which only the limit ends an episode."""
UNKNOWN = "no environment is known, so the bounds of actions and the limit of steps were not checked; name it by --env"
OTHERS = {
    r"ant[_-](random|medium|expert|mixed|full|replay).*": "Ant, whose 111 observations no Ant of Gymnasium's gives",
    r"ant_?maze.*|maze2d-.*": "mazes, whose environments are not Gymnasium's",
    r"(pen|hammer|door|relocate)-.*": "Adroit hand, whose environments are not Gymnasium's",
    r"(mini_)?kitchen[_-].*": "kitchen, whose environment is not Gymnasium's",
    r"(minigrid|flow-|carla[_-]|bullet-).*": "MiniGrid, Flow, CARLA and Bullet, whose environments are not Gymnasium's",
}
"""Names of D4RL's other files, as published and as its sets are called -> what they are of."""
IDENTITY = ("environment", "simulator")
"""Fields of a recording's metadata that are text."""
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
        raise UserError(f"{path}: not a readable HDF5 file ({words(error)}); download or write it again") from error


def numbers(path: Path, group: h5py.Group, key: str, axes: int, remedy: str) -> Array:
    """Return an array of a foreign file: numbers as float32, flags as they are; (N, 1) as (N,) where `axes` is 1.

    Raises:
        UserError: where it is missing, not an array of numbers, kept in another file, or nearly all of it is not there.

    """
    dataset = plain_numbers(path, group, key, remedy)
    size, stored = math.prod(dataset.shape or ()) * dataset.dtype.itemsize, dataset.id.get_storage_size()
    if size > max(SMALL, SHRINKS * stored):
        name = f"{group.name}/{key}".lstrip("/")
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
    keys, needed = list(AXES), list(AXES)[:-2]
    remedy = f"give a D4RL file, with {', '.join(needed)}"
    with opened(path) as file:
        keys = [key for key in keys if key in needed or file.id.links.exists(key.encode())]
        return {key: numbers(path, file, key, AXES[key], remedy) for key in keys}


@dataclass(frozen=True)
class Reading:
    """Content of a D4RL file, with its defects."""

    rows: Rows | None
    """None: its arrays are not those of a recording."""
    ends: Ends | None
    """None: the file has defects, so its ends were not looked for."""
    row_name: Callable[[int], str]
    """Returns the name of a row."""
    defects: list[str]
    """A line each, the gravest first; those of episodes' ends are not among them."""
    remarks: list[str]
    """Warnings: properties that are unexpected but may be right."""


def read(path: Path, space: Spaces | None = None, skip: Collection[int] = ()) -> Reading:
    """Read a D4RL file (v0, v1, v2) or a recording of ours, which has the same layout.

    The file is a sequence of rows; an episode ends where `terminals` or `timeouts` is set, or with the file.

    Args:
        path: the file.
        space: of the environment that it was recorded in, in whose bounds its actions are; None: they are in [-1, 1].
        skip: numbers of episodes, as they are marked, that are left out.

    Raises:
        UserError: where the file is missing, broken or foreign, does not fit the environment, or has no such episode.
            Links to other files are refused.

    """
    arrays = load(path)
    if defects := _misshapen(path, arrays):
        return Reading(None, None, str, defects, [])
    if space:
        check_sizes(space.environment, arrays["observations"].shape[1], arrays["actions"].shape[1], str(path))
    arrays.setdefault("timeouts", np.zeros(len(arrays["rewards"]), bool))
    marked = (arrays["terminals"] != 0) | (arrays["timeouts"] != 0)
    episode = np.concatenate([[0], np.cumsum(marked)[:-1]])
    check_skip(path, skip, int(episode[-1]) + 1)
    numbers = np.flatnonzero(~np.isin(episode, list(skip)))
    arrays, episode = {key: array[numbers] for key, array in arrays.items()}, episode[numbers]
    defects = list(_defects(path, arrays, numbers, episode))
    actions, remarks, beyond = scaled(arrays["actions"], space)
    if beyond is not None and not any("'actions'" in line for line in defects):
        bounds, remedy = "[-1, 1]", "name the environment by --env, or scale them"
        if space:
            bounds = f"[{space.low.min():g}, {space.high.max():g}], the bounds of {space.environment}"
            remedy = "scale them"
        defects.append(f"{path}: key 'actions' leaves {bounds}, first in row {numbers[beyond]}; {remedy}")
    rows = Rows(
        arrays["observations"],
        actions,
        arrays["rewards"].astype(np.float32),
        arrays["terminals"] != 0,
        arrays["timeouts"] != 0,
        arrays.get("next_observations"),
        np.append(episode[1:] != episode[:-1], True),
        space.steps if space else None,
    )
    ends = None if defects else find_ends(rows)
    if not (rows.terminals | rows.timeouts).any() and (ends is None or not len(ends.unmarked)):
        defects.append(f"{path}: keys 'terminals' and 'timeouts' end no episode; mark the last row of each episode")

    def row_name(row: int) -> str:
        return f"row {numbers[row]}"

    return Reading(rows, ends, row_name, defects, [*remarks, *odd_ends(rows, space, row_name)])


def check_skip(path: Path, skip: Collection[int], episodes: int) -> None:
    """Refuse to leave out episodes that are not there, or all.

    Raises:
        UserError: then.
    """
    if wrong := sorted(number for number in skip if not 0 <= number < episodes):
        raise UserError(f"{path}: no episode {wrong[0]} to skip; they are numbered from 0 to {episodes - 1}")
    if len(set(skip)) == episodes:
        raise UserError(f"{path}: no episode is left; skip fewer")


def _misshapen(path: Path, arrays: Mapping[str, Array]) -> list[str]:
    """Return one line for each array that is of other sizes than the rest."""
    remedy = "download or write it again"
    rows = arrays["observations"].shape[0] if arrays["observations"].ndim else 0
    defects = []
    for key, array in arrays.items():
        axes = ["(N,)", "(N, size)"][AXES[key] - 1]
        if array.ndim != AXES[key] or 0 in array.shape[1:]:
            defects.append(f"{path}: key '{key}' has shape {array.shape}, not {axes}; {remedy}")
        elif len(array) != rows:
            defects.append(f"{path}: key '{key}' has {len(array)} rows, 'observations' {rows}; {remedy}")
    nexts = arrays.get("next_observations", arrays["observations"])
    if not defects and nexts.shape != arrays["observations"].shape:
        defects.append(f"{path}: key 'next_observations' is not shaped as 'observations'; {remedy}")
    if not defects and not rows:
        defects.append(f"{path}: key 'observations' has no rows; {remedy}")
    return defects


def _defects(path: Path, arrays: Mapping[str, Array], numbers: Array, episode: Array) -> Iterator[str]:
    """Yield one line for each array with values that are no numbers; `numbers` and `episode` are of each row."""
    for key, array in arrays.items():
        bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
        if bad.any():
            where = f"first in row {numbers[bad.argmax()]}"
            yield f"{path}: key '{key}' has NaN or infinite values, {where}; {skipping(np.unique(episode[bad]))}"


def skipping(episodes: Array) -> str:
    """Return the remedy for bad episodes."""
    again = "download or write it again"
    return f"{again}, or leave them out by --skip {','.join(map(str, episodes))}" if len(episodes) <= 20 else again


def scaled(actions: Array, space: Spaces | None) -> tuple[Array, list[str], int | None]:
    """Return actions (N, actions) in [-1, 1], a remark if they were not, and the first row that leaves its bounds.

    They are in the bounds of their environment; such as leave them and are in [-1, 1] were scaled by their recorder.
    """
    outside = _outside(actions)
    beyond = int(outside.argmax()) if outside.any() else None
    if space is None or ((space.low == -1).all() and (space.high == 1).all()):
        return actions, [], beyond
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    mapped = ((actions - middle) / half).astype(np.float32)
    outside = _outside(mapped)
    bounds = f"the bounds of {space.environment}, [{space.low.min():g}, {space.high.max():g}]"
    if not outside.any():
        return mapped, [f"actions are scaled to [-1, 1] from {bounds}"], None
    if beyond is None:
        return actions, [f"actions leave {bounds}, and are taken as scaled to [-1, 1]"], None
    return actions, [], int(outside.argmax())


def _outside(actions: Array) -> Array:
    return np.asarray((np.abs(actions) > 1 + TOLERANCE).any(axis=1))


def odd_ends(rows: Rows, space: Spaces | None, row_name: Callable[[int], str]) -> list[str]:
    """Return remarks on episodes that end where their environment does not let them; `row_name` names a row.

    They are longer than its limit, or terminal there, or terminal though it never terminates.
    """
    if space is None:
        return [UNKNOWN]
    ends = np.flatnonzero(rows.last)
    lengths = np.diff(ends, prepend=-1)
    remarks, terminal = too_long(lengths, space), np.flatnonzero(rows.terminals)
    why, remedy = f"{space.environment} never terminates, but", "; mark time-outs in 'timeouts' alone"
    if space.environment.partition("-")[0] in ENDLESS and terminal.size:
        return [*remarks, f"{why} {plural(terminal.size, 'row')} are terminal, first {row_name(terminal[0])}{remedy}"]
    full = ends[lengths == space.steps]
    full = full[rows.terminals[full]]
    if full.size:
        where = f"{plural(full.size, 'row')} at the limit of {space.environment}, {space.steps:,} steps"
        remarks.append(f"{where}, are terminal, first {row_name(full[0])}{remedy}")
    return remarks


def too_long(lengths: Array, space: Spaces) -> list[str]:
    """Return a remark on episodes that are longer than their environment lets them be."""
    if not (long := np.flatnonzero(lengths > space.steps)).size:
        return []
    which = f"episode {long[0]} has {lengths[long[0]]:,} steps"
    more = f", {len(long) - 1:,} more are longer, too" if len(long) > 1 else ""
    return [f"{which}{more}: {space.environment} stops at {space.steps:,}; marks are missing, or its limit was another"]


def read_d4rl(path: Path, space: Spaces | None = None, skip: Collection[int] = (), mending: bool = False) -> Recording:
    """Read a file (see `read`) into the internal form's columns.

    A row's successor is `next_observations` where the file has it. Without it, it is the next row of the same episode;
    the last row of an episode then has none: it is kept where it is terminal (the successor is masked in every target,
    and stands in the table as the row's own observation) and dropped where a timeout or the file's end cut the episode.

    `d4rl.qlearning_dataset` differs in two ways, which we mend: it never returns the file's last row, even a terminal
    one (D4RL issues 145 and 204), and it gives a terminal row the first observation of the next episode.

    Raises:
        UserError: as `read`, and where the file has a defect; wrong ends of episodes are mended where that is wanted.

    """
    reading = read(path, space, skip)
    for defect in reading.defects:
        raise UserError(defect)
    assert reading.rows is not None and reading.ends is not None
    recording = record_of(path, reading.rows, reading.ends, reading.row_name, reading.remarks, mending)
    if not len(recording.columns["step"]):
        raise UserError(f"{path}: no row has a successor; write 'next_observations' or longer episodes")
    return recording


def published() -> dict[str, Published]:
    """Return D4RL's files by name, such as `hopper-expert-v2`, as they can be downloaded; version 2 comes first."""
    from retable.platform.store.download import Published, Remote

    sets = {}
    for digest, about in sorted(D4RL["files"].items(), key=lambda item: item[1]["name"][::-1], reverse=True):
        name = fetched_as(about)
        remote = Remote(about["url"], about["url"].rpartition("/")[2], about["bytes"], f"sha256:{digest}")
        title = f"D4RL {about['environment']} {about['name'].removeprefix('d4rl-')}"
        sets[name] = Published(name, title, D4RL["licence"], "https://github.com/Farama-Foundation/D4RL", [remote])
    return sets


def fetched_as(about: Mapping[str, Any]) -> str:
    """Return the name by which `retable data fetch rl` knows a file of D4RL's."""
    file: str = about["url"].rpartition("/")[2]
    return file.removesuffix(".hdf5").replace("_", "-")


def published_as(path: Path) -> str:
    """Return which of D4RL's published files a file is, by its SHA-256, or which other set its name belongs to."""
    if entry := D4RL["files"].get(file_digest(path)):
        return f"D4RL's {entry['environment']} {entry['name'].removeprefix('d4rl-')}"
    return _other(path) or "not one of D4RL's files"


def _other(path: Path) -> str:
    """Return to which of D4RL's sets that are not for us a file belongs by its name; "" where to none."""
    other = next((what for names, what in OTHERS.items() if re.fullmatch(names, path.stem, re.IGNORECASE)), "")
    return f"by its name D4RL's {other}: not one that can be played here" if other else ""


def named_environment(path: Path) -> tuple[str | None, str]:
    """Return the environment and its version that a file is of, by its contents or its name; None, `unknown`."""
    if published := D4RL["files"].get(file_digest(path)):
        return published["environment"], "v2"
    about = origin(path)
    names = {file["url"].rsplit("/", 1)[1]: file["environment"] for file in D4RL["files"].values()}
    return about.get("environment", names.get(path.name)), about.get(
        "simulator", "v2" if path.name in names else "unknown"
    )


def origin(path: Path) -> dict[str, Any]:
    """Return what a recording of ours says of itself (environment, simulator, noise, seed, ...), {} for other files."""
    with opened(path) as file:
        text = file.attrs.get("retable")
    try:
        about = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        about = None
    about = about if isinstance(about, dict) else {}
    return {key: value for key, value in about.items() if key not in IDENTITY or isinstance(value, str)}


def contradicted(path: Path, environment: str | None) -> str:
    """Return in words that a recording of ours is of another environment than is given; nothing if it is not."""
    recorded = origin(path).get("environment")
    if recorded is None or environment in (None, recorded):
        return ""
    return f"{path}: recorded in {recorded}, not in {environment!r}; leave --env out"


def identify(source: Path, environment: str | None, name: str | None) -> dict[str, Any]:
    """Return a file's source, name, environment, simulator, ..., from its SHA-256 and the names that the user gave.

    Raises:
        UserError: where the file is missing or no HDF5, or the environment or name is missing, reserved or
            contradicted.

    """
    about, checksum = origin(source), file_digest(source)
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
    if wrong := contradicted(source, environment):
        raise UserError(wrong)
    environment = environment or about.get("environment")
    if not environment or not name:
        why = impostor(source, checksum) or f"{source}: {_other(source) or 'not a file that D4RL published'}"
        raise UserError(f"{why}; to use it as your own data, give its environment and a name")
    check_name(source, name)
    return {
        "source": "file",
        "name": name,
        "environment": environment,
        "simulator": about.get("simulator", "unknown"),
        "generated": bool(about),
        "cut": bool(about.get("cut")),
        "files": files,
        **_mixed(about),
    }


def _mixed(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recording of ours says of the behaviours that it mixes, as their returns are weighted by it."""
    behaviour: Any = about.get("behaviour")
    try:
        mixed = behaviour["policy"] == "mixed"
        parts = [(part["name"], float(part["return"]), int(part["transitions"])) for part in behaviour["parts"]]
    except (KeyError, TypeError, ValueError, OverflowError):  # of one behaviour, or a header that somebody changed
        return {}
    sound = mixed and parts and all(isinstance(n, str) and rows > 0 and math.isfinite(mean) for n, mean, rows in parts)
    return {"behaviour": behaviour} if sound else {}


def check_name(source: Path, name: str) -> None:
    """Refuse a name for a user's data that is kept for D4RL's, or for our recordings.

    Raises:
        UserError: then.
    """
    if name.startswith("d4rl") or name in ("recorded", "mixed"):
        raise UserError(f"{source}: the name {name!r} is kept for other data; choose another name")


def impostor(path: Path, checksum: str) -> str | None:
    """Return an error line for a file that is named as one of D4RL's but is another; None otherwise."""
    sizes = {file["url"].rsplit("/", 1)[1]: file["bytes"] for file in D4RL["files"].values()}
    if path.name not in sizes or checksum in D4RL["files"]:
        return None
    size = path.stat().st_size
    return f"{path}: named as D4RL's file, but the contents differ ({size} bytes, D4RL's has {sizes[path.name]})"
