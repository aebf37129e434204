"""Data of offline RL: D4RL's files and our recordings, the internal form, and the batches of a training.

The internal form is a folder `data/rl/<environment>/<name>/` of `part-00000.parquet`, ... and `dataset.json`, which is
written last: without it a set does not count. Actions are in [-1, 1] whatever the environment's own bounds.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from retable.platform.errors import UserError, words
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source, data_folder, new_data
from retable.platform.store.run import file_digest
from retable.platform.store.storage import Storage
from retable.platform.train import seeds
from retable.platform.train.worker import share
from retable.tasks.rl.config import Config
from retable.tasks.rl.metrics import normalised_score
from retable.tasks.rl.play.evaluate import Spaces, check_sizes, spaces, versions, with_settings
from retable.tasks.rl.play.states import Standard
from retable.tasks.rl.recordings.d4rl import (
    TOLERANCE,
    contradicted,
    identify,
    impostor,
    named_environment,
    origin,
    read_d4rl,
)
from retable.tasks.rl.recordings.d4rl import read as read_file
from retable.tasks.rl.recordings.episodes import COLUMNS, Recording, Rows, find_ends, with_remedy

PROVENANCE: dict[str, type | tuple[type, ...]] = {
    "source": str,
    "name": str,
    "environment": str,
    "simulator": str,
    "generated": bool,
    "states": int,
    "actions": int,
    "max_action": float,
    "transitions": int,
    "episodes": int,
    "complete_episodes": int,
    "parts": int,
    "files": dict,
    "versions": dict,
    "digest": str,
    "behaviour_return": float,
    "behaviour_return_std": float,
    "behaviour_score": (float, type(None)),
}
REMEDY = "make or convert the data set again"
CHANGED = "the Parquet files are not those of dataset.json (digest)"
PART = 131_072
"""Rows of one Parquet file."""
BLOCK = 100
"""Steps whose rows are drawn at once: one generator a step would cost more than the rows themselves."""
BATCHES, PRUNING = "rl.batches", "rl.pruning"
"""The two streams of random rows: of trainings, and of the batches that weights are scored on."""


def folder(storage: Storage, environment: str, name: str) -> Storage:
    """Return the folder of a data set below the storage's root.

    Raises:
        UserError: where a name would leave that folder.

    """
    return data_folder(storage, "rl", environment, name)


def _schema(states: int, actions: int) -> pa.Schema:
    flat, state, action = pa.float32(), pa.list_(pa.float32(), states), pa.list_(pa.float32(), actions)
    types = (state, action, flat, state, pa.bool_(), pa.bool_(), pa.int32(), pa.int32())
    return pa.schema(list(zip(COLUMNS, types, strict=True)))


def store(columns: Mapping[str, Array], returns: Array, target: Storage, info: Mapping[str, Any]) -> dict[str, Any]:
    """Write columns (as from `read_d4rl`) as the internal form into `target`; return what `dataset.json` holds.

    Args:
        columns: the rows of the data set.
        returns: undiscounted returns of its episodes (episodes,).
        target: the data set's folder; an older set there is replaced.
        info: source, name, environment, simulator, generated, files, and whatever else is known; `cut` says that the
            last episode was cut short, so that its return does not count.

    Raises:
        UserError: where the disk is full or the folder cannot be written.

    """
    target.remove("dataset.json")
    for name in target.list():
        if name.startswith("part-"):
            target.remove(name)
    states, actions = columns["observation"].shape[1], columns["action"].shape[1]
    fields = [
        pa.array(columns[field.name])
        if not pa.types.is_fixed_size_list(field.type)
        else pa.FixedSizeListArray.from_arrays(pa.array(columns[field.name].ravel()), field.type.list_size)
        for field in _schema(states, actions)
    ]
    table, digest = pa.Table.from_arrays(fields, schema=_schema(states, actions)), hashlib.sha256()
    for number, start in enumerate(range(0, len(table), PART)):
        digest.update(target.write_table(_part(number), table.slice(start, PART), use_dictionary=False))
    complete = returns[:-1] if info.get("cut") and len(returns) > 1 else returns
    lengths = np.bincount(columns["episode"])[: len(complete)]
    mean = _behaviour_return(complete, lengths, info)
    score = normalised_score(info["environment"], mean, info)
    written = {
        **info,
        "real": not info.get("generated"),
        "states": states,
        "actions": actions,
        "max_action": 1.0,
        "transitions": len(table),
        "parts": number + 1,
        "episodes": int(columns["episode"][-1]) + 1,
        "complete_episodes": len(complete),
        "behaviour_return": mean,
        "behaviour_return_std": float(complete.std()),
        "behaviour_score": None if score is None else float(score),
        "versions": {name: importlib.metadata.version(name) for name in ("h5py", "numpy", "pyarrow")}
        | info.get("versions", {}),
        "digest": digest.hexdigest(),
    }
    target.write_json("dataset.json", written)
    return written


def _behaviour_return(returns: Array, lengths: Array, info: Mapping[str, Any]) -> float:
    """Return the mean return of an episode; of a mixed set that of its parts, weighted by their transitions.

    Episodes of a weak part are short where falling ends them: thousands of them would drown the others. Where some were
    left out or mended, what a part's are is not known any more: each of the others is weighted by its own transitions.
    """
    parts = info.get("behaviour", {}).get("parts")
    if not parts:
        return float(returns.mean())
    if info.get("skipped") or info.get("mended"):
        return float(np.average(returns, weights=lengths))
    return float(np.average([part["return"] for part in parts], weights=[part["transitions"] for part in parts]))


def _part(number: int) -> str:
    return f"part-{number:05d}.parquet"


def convert(
    source: Path,
    storage: Storage,
    environment: str | None = None,
    name: str | None = None,
    simulator: str | None = None,
    *,
    skip: Collection[int] = (),
    mending: bool = False,
    replace: bool = False,
) -> dict[str, Any]:
    """Turn a file in D4RL's format into the internal form below the storage's root; return its `dataset.json`.

    A file whose SHA-256 is that of a published D4RL file becomes `d4rl-<quality>-<version>` of its environment, and
    only such a file may be called D4RL. Any other file is the user's own, with an environment and name to give.

    The file is read and written in this process, without Ray: episodes are numbered in one pass over one local file
    that Ray Data has no reader for. From then on Ray Data reads the parts (`read`).

    Args:
        source: the HDF5 file.
        storage: the root of everything that lasts.
        environment: a Gymnasium environment without version; not needed for D4RL's files and our recordings.
        name: what the set is called; not needed for D4RL's files.
        simulator: the environment's version, such as `v4`, where the file does not say it: policies are played in it.
        skip: numbers of episodes that are left out, as the file marks them.
        mending: whether wrong ends of episodes are mended; they are refused otherwise.
        replace: whether a data set of that name is given up.

    Raises:
        UserError: where the file is no valid data set, or a name, environment or simulator is missing, reserved or
            contradicted, or does not fit.

    """
    info = identify(source, environment, name)
    if simulator not in (None, info["simulator"]):
        if info["simulator"] != "unknown":
            raise UserError(f"{source}: recorded in {info['simulator']}, not in {simulator}; leave --simulator out")
        info["simulator"] = simulator
    with new_data(storage, "rl", info["environment"], info["name"], replace=replace) as target:
        space = _space(source, info["environment"], info["simulator"])
        made = read_d4rl(source, space, skip, mending)
        marked = len(made.returns) + len(set(skip))
        cut = {"cut": bool(info["cut"]) and marked - 1 not in skip} if "cut" in info else {}  # the last episode
        return store(made.columns, made.returns, target, info | notes_of(made, skip) | cut)


def notes_of(made: Recording, skip: Collection[int]) -> dict[str, Any]:
    """Return what `dataset.json` says of how a recording was read, where there is something to say."""
    remarks = {"remarks": made.remarks, "mended": made.mended, "skipped": sorted(set(skip))}
    return {key: value for key, value in remarks.items() if value}


def _space(source: Path, environment: str, version: str) -> Spaces:
    """Return the spaces that a file has to fit; actions of our recordings are in [-1, 1] in any environment.

    Raises:
        UserError: where the environment or its version is unknown or cannot be built.

    """
    space = spaces(f"{environment}-{played_in(environment, version)}")
    if origin(source):
        return changed(space, low=-np.ones_like(space.low), high=np.ones_like(space.high))
    return space


def provenance(storage: Storage) -> dict[str, Any]:
    """Return `dataset.json` of a data set's folder.

    Raises:
        UserError: where the set is absent or unfinished, or the file is not JSON or lacks an entry.

    """
    if not storage.exists("dataset.json"):
        raise UserError(f"{storage}: no finished data set here (no dataset.json); {REMEDY}")
    return storage.read_record("dataset.json", PROVENANCE, REMEDY)


def inspect(source: Path, environment: str | None = None, simulator: str | None = None) -> tuple[list[str], list[str]]:
    """Return one line for each defect of an HDF5 file in D4RL's format, and its remarks.

    Args:
        source: the file.
        environment: a Gymnasium environment without version, where the file or its name do not say it.
        simulator: the environment's version, such as `v4`, likewise.

    """
    try:
        if why := contradicted(source, environment):
            raise UserError(why)
        named, version = named_environment(source)
        environment = environment or named
        space = environment and _space(source, environment, simulator or version)
        reading = read_file(source, space or None)
        ends = with_remedy(reading.ends, reading.row_name) if reading.ends and not reading.defects else []
        defects = [*reading.defects, *(f"{source}: {line}" for line in ends)]
    except UserError as error:
        return [str(error)], []
    impostors = impostor(source, file_digest(source))
    return [*defects, *([f"{impostors}; download it again"] if impostors else [])], reading.remarks


def check(where: Storage | Path) -> list[str]:
    """Return one line for each defect of a data set; an empty list if it is fine.

    Args:
        where: an HDF5 file in D4RL's format, or the folder of a set in the internal form.

    """
    if isinstance(where, Path) and not where.is_dir():
        return inspect(where)[0]
    storage = Storage.open(where)
    try:
        info = provenance(storage)
        table = _table(storage, info)
    except UserError as error:
        return [str(error)]
    defects = [] if _digest(storage, info) == info["digest"] else [CHANGED]
    wrong = list(_row_defects(table, info))
    return [f"{storage}: {line}; {REMEDY}" for line in [*defects, *(wrong or _end_defects(arrays(table), info))]]


def _digest(storage: Storage, info: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a data set's files, as `store` wrote them."""
    digest = hashlib.sha256()
    for number in range(info["parts"]):
        try:
            digest.update(storage.read(_part(number)))
        except FileNotFoundError as error:
            raise UserError(f"{storage}: {_part(number)} is missing; {REMEDY}") from error
    return digest.hexdigest()


def _row_defects(table: pa.Table, info: Mapping[str, Any]) -> Iterator[str]:
    if len(table) != info["transitions"] or not len(table):
        yield f"{len(table)} rows, dataset.json says {info['transitions']}"
    if nulls := [name for name in COLUMNS if table[name].null_count]:
        yield f"empty values in column '{nulls[0]}'"
    if nulls or not len(table):
        return
    values = arrays(table)
    for name, array in values.items():
        if not np.isfinite(array).all():
            yield f"column '{name}' has NaN or infinite values"
    if (np.abs(values["action"]) > 1 + TOLERANCE).any():
        yield "column 'action' leaves [-1, 1]"
    episode, step, ended = values["episode"], values["step"], values["terminal"] | values["timeout"]
    first = np.diff(episode, prepend=-1)
    if not np.isin(first, (0, 1)).all() or episode[-1] + 1 != info["episodes"]:
        yield "column 'episode' does not count 0, 1, 2, ... up to the number of episodes"
    if step[0] != 0 or (np.diff(step) != 1)[first[1:] == 0].any() or step[first == 1].any():
        yield "column 'step' does not count 0, 1, 2, ... within each episode"
    if (ended[:-1] & (first[1:] == 0)).any():
        yield "an episode goes on after its end ('terminal' or 'timeout')"


def _end_defects(values: Mapping[str, Array], info: Mapping[str, Any]) -> list[str]:
    """Return a line for each kind of wrong end in columns that are sound otherwise.

    Successors that were read off the next row say nothing of ends, and which were is not known any more.
    """
    try:
        limit = spaces(simulator(info["environment"], info)).steps
    except UserError:  # an environment that is not installed here
        limit = None
    rows = Rows(
        observations=values["observation"],
        actions=values["action"],
        rewards=values["reward"],
        terminals=values["terminal"],
        timeouts=values["timeout"],
        successors=values["next_observation"],
        last=np.append(np.diff(values["episode"]) != 0, True),
        limit=limit,
    )
    return list(find_ends(rows, genuine=False).lines(lambda row: f"row {row}"))


def _table(storage: Storage, info: Mapping[str, Any]) -> pa.Table:
    tables = [_read_part(storage, info, number) for number in range(info["parts"])]
    return pa.concat_tables(tables) if tables else _schema(info["states"], info["actions"]).empty_table()


def _read_part(storage: Storage, info: Mapping[str, Any], number: int) -> pa.Table:
    try:
        table = storage.read_table(_part(number))
    except FileNotFoundError as error:
        raise UserError(f"{storage}: {_part(number)} is missing; {REMEDY}") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{storage}: {_part(number)} cannot be read ({words(error)}); {REMEDY}") from error
    for field in _schema(info["states"], info["actions"]):
        if field.name not in table.schema.names or table.schema.field(field.name).type != field.type:
            raise UserError(f"{storage}: {_part(number)} has no column '{field.name}' of {field.type}; {REMEDY}")
    return table.select(COLUMNS)


def arrays(table: pa.Table) -> dict[str, Array]:
    """Return the columns of an Arrow table in the internal form as arrays (N, size) and (N,), copied where need be."""
    by_name = {}
    for name in COLUMNS:
        column = table[name].combine_chunks()
        vector = pa.types.is_fixed_size_list(column.type)
        flat = column.flatten() if vector else column
        by_name[name] = flat.to_numpy(zero_copy_only=False).reshape(-1, *([column.type.list_size] if vector else []))
    return by_name


def some_observations(storage: Storage, info: Mapping[str, Any], count: int) -> Array:
    """Return `count` observations (count, states) spread evenly over the first part of a data set, or all it has."""
    table = _read_part(storage, info, 0)
    chosen = np.unique(np.linspace(0, len(table) - 1, count).astype(int))
    return arrays(table.take(chosen))["observation"]


def read(storage: Storage) -> dict[str, Array]:
    """Return the columns of a data set's folder: (N, size) and (N,) arrays in the order written.

    Raises:
        UserError: where the set is absent, unfinished or damaged.

    """
    info = provenance(storage)
    if _digest(storage, info) != info["digest"]:
        raise UserError(f"{storage}: {CHANGED}; {REMEDY}")
    return arrays(_table(storage, info))


def open_transitions(columns: Mapping[str, Array] | None, source: Source, configs: Sequence[Config]) -> Transitions:
    """Return the batches of members that train together; a data set of transitions is always in memory.

    Raises:
        UserError: if policies cannot be played in the simulator of the data: it is unknown or cannot be built here, or
            its observations or actions have other sizes.

    """
    assert columns is not None
    sizes, config = (source.info["states"], source.info["actions"]), configs[0]
    check_sizes(simulator(config.environment, source.info), *sizes, f"data {config.data!r}")
    return Transitions(columns, source.info, configs)


def simulator(environment: str, info: Mapping[str, Any]) -> str:
    """Return the environment in which policies are played, such as `Hopper-v4`: that of the data, with its settings."""
    return with_settings(f"{environment}-{played_in(environment, info['simulator'])}", info.get("settings", {}))


def played_in(environment: str, recorded: str) -> str:
    """Return the version in which policies are played, where data were recorded in `recorded`: v4 reproduces v2.

    Data that do not say it are of v5; of an environment without it, of the newest version.
    """
    if recorded != "unknown":
        return {"v2": "v4"}.get(recorded, recorded)
    registered = versions(environment)
    return registered[-1] if registered and "v5" not in registered else "v5"


def check_data(configs: Sequence[Config], source: Source) -> Sequence[str]:
    """Refuse data that cannot be played, when trainings on them are planned; there is nothing to say of others.

    Raises:
        UserError: as `open_transitions`.

    """
    info = provenance(source.folder)
    for config in configs[:1]:
        check_sizes(simulator(config.environment, info), info["states"], info["actions"], f"data {config.data!r}")
    return ()


class Transitions:
    """Batches of random transitions for members that train together on one data set.

    Attributes:
        states: numbers in an observation.
        actions: numbers in an action.
        max_action: bound of each number of an action: 1, as data sets hold actions in [-1, 1].
        steps: batches in an epoch.
        batch: transitions in a batch, over all workers together.
        standard: what states are standardized by, in every batch; None where they are raw.

    """

    def __init__(self, columns: Mapping[str, Array], info: Mapping[str, Any], configs: Sequence[Config]) -> None:
        """Take a data set's columns (read-only views of shared memory are fine), its provenance, and the members.

        Raises:
            ValueError: where the members differ in `batch`, `steps` or `states`.

        """
        if len({(config.batch, config.steps, config.states) for config in configs}) != 1:
            raise ValueError("members that train together need equal `batch`, `steps` and `states`")
        self.states, self.actions = int(info["states"]), int(info["actions"])
        self.max_action = float(info["max_action"])
        self.steps, self.batch, self._columns = configs[0].steps, configs[0].batch, columns
        self.standard = Standard.of(columns["observation"]) if configs[0].states == "standardized" else None
        self._seeds = [config.seed for config in configs]
        # Members with one seed (many sparsities, say) see the same rows, which are drawn once.
        self._streams = sorted(set(self._seeds))
        self._members = np.array([self._streams.index(seed) for seed in self._seeds])
        self._table: torch.Tensor | None = None

    def place(self, device: torch.device) -> None:
        """Hold all columns on a device, as one float32 table: the same batches are then gathered there."""
        columns = self._take(np.arange(len(self._columns["reward"])))
        self._widths = {name: part.shape[1] for name, part in columns.items()}
        self._table = torch.cat([*columns.values()], 1).to(device)

    def batches(self, epoch: int, start: int, rank: int, world: int) -> Iterator[dict[str, torch.Tensor]]:
        """Yield this rank's share of the batches `start`, `start + 1`, ..., `steps - 1` of an epoch.

        Each batch holds float32 tensors with one leading axis for the E members: observation (E, B, states), action
        (E, B, actions), reward (E, B, 1), next_observation (E, B, states), not_done (E, B, 1), where B is the global
        batch over `world`. A timeout is not the end of the task: `not_done` is 0 after terminals only.

        Rows are drawn with replacement from (seed, epoch, step), as the reference draws them, so batches depend on
        neither `start` nor the other members, and the ranks' shares joined are the batch of one worker.

        """
        rows_here = share(self.batch, rank, world)
        for block in range(start // BLOCK, -(-self.steps // BLOCK)):
            draws = [self._draw((BLOCK, self.batch), seed, BATCHES, epoch, block) for seed in self._streams]
            rows: Any = np.stack(draws)
            members: Any = self._members
            if self._table is not None:  # one transfer for all the block's steps
                rows, members = (torch.from_numpy(numbers).to(self._table.device) for numbers in (rows, members))
            for step in range(max(start, block * BLOCK), min(self.steps, (block + 1) * BLOCK)):
                yield self._take(rows[:, step % BLOCK, rows_here][members])

    def sample(self, member: int, size: int) -> dict[str, torch.Tensor]:
        """Return `size` transitions for pruning a member: a batch without the members' axis, the same at each call.

        They come from a stream of their own, so pruning does not change the batches of the training.
        """
        return self._take(self._draw((size,), self._seeds[member], PRUNING))

    def _draw(self, shape: tuple[int, ...], seed: int, stream: str, *where: int) -> Array:
        return seeds.generator(seed, stream, *where).integers(len(self._columns["reward"]), size=shape)

    def _take(self, rows: Array | torch.Tensor) -> dict[str, torch.Tensor]:
        if isinstance(rows, torch.Tensor):
            assert self._table is not None
            parts = torch.split(self._table[rows], [*self._widths.values()], -1)
            return dict(zip(self._widths, parts, strict=True))
        # `take` copies. A column itself must never reach torch: it is memory that other processes share.
        taken = {name: self._columns[name].take(rows, axis=0) for name in COLUMNS[:5]}
        taken["reward"] = taken["reward"][..., None]
        taken["not_done"] = 1 - taken.pop("terminal")[..., None].astype(np.float32)
        batch = {name: torch.from_numpy(array) for name, array in taken.items()}
        if self.standard is not None:
            batch |= {name: self.standard(batch[name]) for name in ("observation", "next_observation")}
        return batch
