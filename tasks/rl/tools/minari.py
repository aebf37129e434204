"""Minari's data sets as they lie on disk, read without its package.

Source: Farama Foundation, Minari 0.5: a folder with `data/metadata.json` and `data/main_data.hdf5`, which has a group
`episode_<k>` for each episode with `observations` (T + 1 rows), `actions`, `rewards`, `terminations` and `truncations`
(T rows). Minari's MuJoCo sets come from other policies in another simulator than D4RL's: no score on them is a D4RL
score, whatever their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace as replaced
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import new_data
from retable.platform.store.hdf5 import plain_entry
from retable.platform.store.run import file_digest
from retable.platform.store.storage import Storage
from retable.tasks.rl.data import notes_of, simulator, store
from retable.tasks.rl.metrics import is_reference
from retable.tasks.rl.play.evaluate import Spaces, check_sizes, refused_settings, spaces
from retable.tasks.rl.recordings.d4rl import (
    TOLERANCE,
    check_name,
    check_skip,
    numbers,
    odd_ends,
    opened,
    scaled,
)
from retable.tasks.rl.recordings.episodes import Recording, Rows, find_ends, record_of

if TYPE_CHECKING:
    import gymnasium

FILE, METADATA = "data/main_data.hdf5", "data/metadata.json"
AXES = {"observations": 2, "actions": 2, "rewards": 1, "terminations": 1, "truncations": 1}
"""An episode's keys and their number of axes; `infos` is not read."""
BOUNDS = {"low": -1.0, "high": 1.0}
"""Default bounds of actions where neither the metadata nor an environment give them."""
AGAIN = "download or write it again"
UNWRAPPED = "record the data in an environment without it"
PASSIVE = {"OrderEnforcing", "PassiveEnvChecker", "Autoreset", "RecordEpisodeStatistics", "RecordVideo", "Monitor"}
PASSIVE |= {"HumanRendering", "RenderCollection", "ClipAction", "RescaleAction", "DataCollector"}
"""Wrappers that change neither what a policy sees nor what it earns; actions are clipped and scaled here anyway."""
SHOWN = {"render_mode", "width", "height", "camera_id", "camera_name", "default_camera_config", "max_geom"}
SHOWN |= {"visual_options"}
"""Arguments of an environment that change its pictures alone."""


def import_minari(
    source: Path,
    storage: Storage,
    environment: str | None = None,
    name: str | None = None,
    version: str | None = None,
    *,
    skip: Collection[int] = (),
    mending: bool = False,
    replace: bool = False,
) -> dict[str, Any]:
    """Turn a Minari data set with flat observations into the internal form; return its `dataset.json`.

    Args:
        source: the data set's folder, e.g. `~/.minari/datasets/mujoco/hopper/expert-v0`.
        storage: the root of everything that lasts.
        environment: a Gymnasium environment without version; not needed where the metadata name it.
        name: what the set is called; default: `minari-` and the last word of its id.
        version: the environment's, such as `v4`; not needed where the metadata name it.
        skip: numbers of episodes that are left out.
        mending: whether wrong ends of episodes are mended; they are refused otherwise.
        replace: whether a data set of that name is given up.

    Raises:
        UserError: where the folder holds no valid data set of this kind, or a name or environment is missing, reserved
            or contradicted, or does not fit.

    """
    about = metadata(source)
    info = identify(source, about, environment, name, version)
    with new_data(storage, "rl", info["environment"], info["name"], replace=replace) as target:
        space = spaces(simulator(info["environment"], info))
        made = read_minari(source, about, space, skip, mending)
        files = {Path(FILE).name: file_digest(source / FILE)}
        return store(made.columns, made.returns, target, {**info, "files": files, **notes_of(made, skip)})


def inspect(source: Path, environment: str | None = None, version: str | None = None) -> tuple[list[str], list[str]]:
    """Return a line for the first defect of a data set, by which it cannot be read, and its remarks."""
    try:
        about = metadata(source)
        info = identify(source, about, environment or ("" if not about["env_spec"] else None), "any", version)
        space = spaces(simulator(info["environment"], info)) if info["environment"] else None
        made = read_minari(source, about, space)
    except UserError as error:
        return [str(error)], []
    return [], made.remarks


def metadata(source: Path) -> dict[str, Any]:
    """Return what `metadata.json` says, `env_spec` and `action_space` parsed, as they are JSON within JSON.

    Raises:
        UserError: where the folder is no Minari data set, or one that is not kept as HDF5.

    """
    path = source / METADATA
    if not path.is_file():
        raise UserError(f"{source}: no Minari data set (no {METADATA}); give the folder that holds `data`")
    try:
        about = dict(json.loads(path.read_text()))
        about |= {key: dict(json.loads(about.get(key) or "{}")) for key in ("env_spec", "action_space")}
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: not Minari's metadata ({error}); {AGAIN}") from error
    kind = about.get("data_format", "hdf5")
    if kind != "hdf5":
        raise UserError(f"{path}: the data are kept as {kind!r}; write the set with data_format='hdf5'")
    return about


def identify(
    source: Path, about: Mapping[str, Any], environment: str | None, name: str | None, version: str | None = None
) -> dict[str, Any]:
    """Return a dataset's source, name, environment, simulator, ..., from its metadata and the names that the user gave.

    Raises:
        UserError: where the environment is missing or contradicted, or the name is reserved.

    """
    spec = re.fullmatch(r"(?:.*/)?([\w.-]+)-(v\d+)", str(about["env_spec"].get("id", "")), re.ASCII)
    if spec and environment not in (None, spec[1]):
        raise UserError(f"{source}: recorded in {spec[1]}-{spec[2]}, not in {environment!r}; leave the environment out")
    if spec and version not in (None, spec[2]):
        raise UserError(f"{source}: recorded in {spec[2]}, not in {version}; leave --simulator out")
    if not spec and environment is None:
        raise UserError(f"{source}/{METADATA}: 'env_spec' names no environment; give it with --env")
    identity = str(about.get("dataset_id") or source.name)
    name = name or f"minari-{identity.rsplit('/', 1)[-1]}"
    check_name(source, name)
    kept = ("minari_version", "requirements", "algorithm_name", "author", "code_permalink")
    return {
        "source": "minari",
        "name": name,
        "environment": spec[1] if spec else environment,
        "simulator": spec[2] if spec else version or "unknown",
        "generated": False,
        **({"settings": settings} if (settings := _settings(source, about["env_spec"])) else {}),
        **(
            {"reference": reference}
            if is_reference(reference := [about.get("ref_min_score"), about.get("ref_max_score")])
            else {}
        ),
        "minari": {"id": identity, "env_spec": about["env_spec"], **{key: about.get(key) for key in kept}},
    }


def _settings(source: Path, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an environment is made with, where that is not as Gymnasium registers it.

    Raises:
        UserError: where it has wrappers that are not known, or arguments that a data set may not give.

    """
    import gymnasium

    where = f"{source}/{METADATA}"
    registered = gymnasium.registry.get(str(spec.get("id")))
    given, limit = spec.get("kwargs") or {}, spec.get("max_episode_steps")
    wrappers = spec.get("additional_wrappers") or []
    for wrapper in wrappers if isinstance(wrappers, list) else [wrappers]:
        name = str(wrapper.get("name") if isinstance(wrapper, dict) else wrapper)
        if name == "TimeLimit" and isinstance(wrapper, dict) and isinstance(wrapper.get("kwargs"), dict):
            limit = wrapper["kwargs"].get("max_episode_steps", limit)
        elif name not in PASSIVE:
            raise UserError(f"{where}: 'env_spec' has the wrapper {name!r}, which cannot be played here; {UNWRAPPED}")
    if not isinstance(given, dict):
        raise UserError(f"{where}: 'env_spec' has no arguments but {given!r}; {AGAIN}")
    settings = {key: value for key, value in given.items() if key not in SHOWN}
    usual = _usual(registered) if registered else {}
    settings = {key: value for key, value in settings.items() if usual.get(key, ...) != value}
    if limit is not None and (registered is None or limit != registered.max_episode_steps):
        settings["max_episode_steps"] = limit
    if refused := refused_settings(settings):
        raise UserError(f"{where}: 'env_spec' has {refused}; {UNWRAPPED}")
    return settings


def _usual(spec: gymnasium.envs.registration.EnvSpec) -> dict[str, Any]:
    """Return the arguments that an environment is made with unless others are given, as JSON has them."""
    from gymnasium.envs.registration import load_env_creator

    try:
        creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        given = {name: parameter.default for name, parameter in signature(creator or dict).parameters.items()}
    except (ImportError, AttributeError, TypeError, ValueError):  # an environment whose package is not here
        given = {}
    return {name: _as_json(value) for name, value in {**given, **spec.kwargs}.items()}


def _as_json(value: Any) -> Any:
    """Return a value as it comes back from JSON: NumPy's numbers and arrays, and tuples, at any depth."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return [_as_json(item) for item in value] if isinstance(value, list | tuple) else value


def read_minari(
    source: Path,
    about: Mapping[str, Any],
    space: Spaces | None = None,
    skip: Collection[int] = (),
    mending: bool = False,
) -> Recording:
    """Read the episodes of a data set.

    An observation's successor is the next row of its episode, also at a timeout and where an episode is cut without
    either flag; so no transition is left out. Actions are mapped from the bounds of `action_space` to [-1, 1]; without
    these, from those of the environment.

    Args:
        source: the data set's folder.
        about: its metadata.
        space: of the environment that it names.
        skip: numbers of episodes that are left out.
        mending: whether wrong ends of episodes are mended.

    Raises:
        UserError: where the file is missing, broken, foreign or no valid data set. Links to other files are refused.

    """
    path = source / FILE
    with opened(path) as file:
        count = len(file)
        if not count:
            raise UserError(f"{path}: no episodes; {AGAIN}")
        check_skip(path, skip, count)
        chosen = [number for number in range(count) if number not in skip]
        episodes = [_episode(path, file, number) for number in chosen]
    steps = [len(episode["rewards"]) for episode in episodes]
    for key, counted in (("total_episodes", count), *((("total_steps", sum(steps)),) if not skip else ())):
        if about.get(key, counted) != counted:
            raise UserError(f"{path}: {counted} {key.removeprefix('total_')}, {METADATA} says {about[key]}; {AGAIN}")
    rows = replaced(_rows(path, episodes, chosen, about["action_space"]), limit=space.steps if space else None)
    if space:
        check_sizes(space.environment, rows.observations.shape[1], rows.actions.shape[1], str(source))
    remarks: list[str] = []
    whose = "'action_space'"
    if space and not BOUNDS.keys() & about["action_space"].keys():
        actions, remarks, _ = scaled(rows.actions, space)
        rows, whose = replaced(rows, actions=actions), space.environment
    beyond = (np.abs(rows.actions) > 1 + TOLERANCE).any(axis=1)
    episode, first = np.repeat(chosen, steps), np.repeat(np.cumsum([0, *steps[:-1]]), steps)
    if beyond.any():
        row = beyond.argmax()
        location = f"episode_{episode[row]}/actions', first in row {row - first[row]}"
        raise UserError(f"{path}: actions leave the bounds of {whose} in '{location}; clip them")
    if not (rows.terminals | rows.timeouts).any():
        raise UserError(f"{path}: 'terminations' and 'truncations' end no episode; mark the last row of each episode")

    def place_of(row: int) -> str:
        return f"episode_{episode[row]} row {row - first[row]}"

    ends = find_ends(rows, genuine=False)
    return record_of(path, rows, ends, place_of, [*remarks, *odd_ends(rows, space, place_of)], mending)


def _episode(path: Path, file: h5py.File, number: int) -> dict[str, Array]:
    """Return one sound episode's arrays: T + 1 observations and T of everything else, T >= 1."""
    again = f"{AGAIN}, or leave it out by --skip {number}"
    name, remedy = f"episode_{number}", f"give a Minari data set, with {', '.join(AXES)} in each episode"
    group = plain_entry(path, file, name, "number the episodes 0, 1, 2, ...")
    if not isinstance(group, h5py.Group):
        raise UserError(f"{path}: key '{name}' is no group; {remedy}")
    for key in ("observations", "actions"):
        if group.get(key, getclass=True, getlink=True) is h5py.HardLink and isinstance(group[key], h5py.Group):
            parts = ", ".join(group[key])
            raise UserError(f"{path}: key '{name}/{key}' has parts ({parts}); only sets of flat vectors can be read")
    arrays = {key: numbers(path, group, key, axes, remedy) for key, axes in AXES.items()}
    for key, array in arrays.items():
        if array.ndim != AXES[key] or 0 in array.shape:
            axes = ["(T,)", "(T, size)"][AXES[key] - 1]
            raise UserError(f"{path}: key '{name}/{key}' has shape {array.shape}, not {axes}; {again}")
    steps = len(arrays["actions"])
    for key, array in arrays.items():
        wanted = steps + (key == "observations")
        if len(array) != wanted:
            raise UserError(f"{path}: key '{name}/{key}' has {len(array)} rows, not {wanted}; {again}")
        bad = ~np.isfinite(array).reshape(wanted, -1).all(axis=1)
        if bad.any():
            where = f"first in row {bad.argmax()}"
            raise UserError(f"{path}: key '{name}/{key}' has NaN or infinite values, {where}; {again}")
    if (arrays["terminations"][:-1] != 0).any() or (arrays["truncations"][:-1] != 0).any():
        raise UserError(f"{path}: '{name}' goes on after its end (terminations or truncations); {again}")
    return arrays


def _rows(path: Path, episodes: list[dict[str, Array]], chosen: list[int], space: Mapping[str, Any]) -> Rows:
    """Join episodes; actions are mapped to [-1, 1]."""
    for key in ("observations", "actions"):
        widths = [episode[key].shape[1] for episode in episodes]
        if (odd := next((number for number, width in enumerate(widths) if width != widths[0]), None)) is not None:
            what = f"key 'episode_{chosen[odd]}/{key}' has {widths[odd]} numbers a row, episode_{chosen[0]} {widths[0]}"
            raise UserError(f"{path}: {what}; {AGAIN}")
    joined = {key: np.concatenate([episode[key] for episode in episodes]) for key in tuple(AXES)[1:]}
    return Rows(
        np.concatenate([episode["observations"][:-1] for episode in episodes]),
        _unit(path, joined["actions"], space),
        joined["rewards"],
        joined["terminations"] != 0,
        joined["truncations"] != 0,
        np.concatenate([episode["observations"][1:] for episode in episodes]),
        np.concatenate([np.arange(len(e["rewards"])) == len(e["rewards"]) - 1 for e in episodes]),
    )


def _unit(path: Path, actions: Array, space: Mapping[str, Any]) -> Array:
    """Map actions (N, size) from a serialised Box to [-1, 1]; without one they are taken to lie there."""
    try:
        shape = actions.shape[1:]
        low, high = (np.broadcast_to(np.array(space.get(key, end), float), shape) for key, end in BOUNDS.items())
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{path}: 'action_space' does not fit actions of {shape[0]} numbers; {AGAIN}") from error
    if space.get("type", "Box") != "Box" or not (np.isfinite([low, high]).all() and (low < high).all()):
        raise UserError(f"{path}: 'action_space' is no Box with finite bounds; only such sets can be read")
    scaled: Array = ((actions - (low + high) / 2) / ((high - low) / 2)).astype(np.float32)
    return scaled
