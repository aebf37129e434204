"""Record data in a simulator with a committed policy: what stands in for D4RL where it cannot be had."""

from __future__ import annotations

import importlib.metadata
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from retable.platform.errors import UserError, nearest
from retable.platform.spec.arrays import Array
from retable.platform.store.run import file_digest
from retable.platform.store.storage import Storage
from retable.tasks.rl.config import View
from retable.tasks.rl.data import folder, store
from retable.tasks.rl.play.evaluate import make, scale
from retable.tasks.rl.recordings import expert
from retable.tasks.rl.recordings.d4rl import read_d4rl

SIMULATOR = "v5"
ALGORITHM = {"expert": "committed policy with Gaussian action noise", "random": "uniform actions"}


PLAYED = range(View().seed, View().seed + 100)
"""Seeds of the episodes that tables play, with room for more of them."""


@dataclass(frozen=True)
class Behaviour:
    """Behaviour policy of a recording; all actions are clipped to [-1, 1] afterwards."""

    noise: float = 0.0
    """Standard deviation of the Gaussian noise on the committed policy's actions."""
    random: float = 0.0
    """Probability that a step's action is uniformly random instead; 1 needs no committed policy."""


BEHAVIOURS = {
    "expert": Behaviour(0.05),
    "noisy": Behaviour(0.3),
    "imperfect": Behaviour(0.3, 0.3),
    "random": Behaviour(random=1.0),
}
"""Behaviours in a mixed set. `imperfect` are the demonstrations of Fujimoto et al. 2019, section 5: noise of 0.3 and,
with probability 0.3, an action at random."""
MIX = ("expert", "imperfect", "random")
"""Default behaviours of the data set `mixed`."""


def record(
    environment: str,
    storage: Storage,
    transitions: int = 100_000,
    noise: float = 0.05,
    seed: int = 0,
    lanes: int = 10,
    policy: Literal["expert", "random"] = "expert",
    mix: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Record `transitions` transitions as the data set `recorded`, or `mixed`; return its `dataset.json`.

    The set's folder also gets the recording in D4RL's layout (v2, with `next_observations`), from which the internal
    form is made. Equal arguments, versions and processors give equal files.

    Episodes are played side by side and stored whole, in the order in which they began, so long episodes are as likely
    as short ones; only the last one is cut, by a timeout, where the transitions are enough. A mixed set is several such
    recordings one after the other, of equally many transitions, less what would be a cut episode.

    Args:
        environment: a Gymnasium environment without version, such as `Hopper`; v5 is used.
        storage: the root of everything that lasts.
        transitions: how many to record.
        noise: standard deviation of the noise on actions in [-1, 1], which are clipped after it.
        seed: seed of the environments and of the noise.
        lanes: episodes side by side.
        policy: the committed policy (`expert`), or uniformly random actions (`random`, for any environment).
        mix: names of `BEHAVIOURS`, in place of `noise` and `policy`; one that is named twice has two shares.
        progress: called now and then with the transitions so far and in all.

    Raises:
        UserError: where the environment is unknown, not of this kind or has no committed policy, or an argument is out
            of range, or the disk is full, or episodes would begin as those that tables play.

    """
    if 0 < transitions < len(mix):
        raise UserError(f"cannot record {transitions} transitions of {len(mix)} behaviours; give each one or more")
    if transitions < 1 or lanes < 1 or not 0 <= noise < math.inf:
        given = f"{transitions} transitions in {lanes} lanes with noise {noise}"
        raise UserError(f"cannot record {given}; give positive numbers")
    begun = range(seed, seed + lanes * max(1, len(mix)))
    if begun.start < PLAYED.stop and PLAYED.start < begun.stop:
        most, elsewhere = PLAYED.start - len(begun), f"choose one from {PLAYED.stop} on"
        elsewhere += f", or up to {most}" if most >= 0 else ""
        raise UserError(f"seed {seed}: episodes would begin where those that tables play begin; {elsewhere}")
    if unknown := [part for part in mix if part not in BEHAVIOURS]:
        raise UserError(f"no behaviour {unknown[0]!r} to mix{nearest(unknown[0], BEHAVIOURS)}")
    name = "mixed" if mix else "recorded"
    target, environment_id = folder(storage, environment, name), f"{environment}-{SIMULATOR}"
    if mix:
        arrays, about = _mixed(environment, environment_id, transitions, mix, seed, lanes, progress)
    else:
        behaviour = Behaviour(noise) if policy == "expert" else BEHAVIOURS["random"]
        act, about = _policy(environment, environment_id, behaviour, seed)
        arrays = _play(act, environment_id, transitions, seed, lanes, progress)
    ends = _ends(arrays)
    if not ends.any():
        raise UserError(f"{transitions} transitions of {environment_id} hold no whole episode; record more")
    header = {
        "environment": environment,
        "simulator": SIMULATOR,
        "seed": seed,
        "lanes": lanes,
        "behaviour": about,
        "cut": bool(~ends[-1]),
    }
    arrays["timeouts"][-1] |= header["cut"]
    target.remove("dataset.json")
    with tempfile.TemporaryDirectory(prefix="retable-") as scratch:
        path = Path(scratch) / f"{environment.lower()}_{name}-{SIMULATOR}.hdf5"
        _write(path, arrays, header, f"mixture of {', '.join(mix)}" if mix else ALGORITHM[policy])
        target.write(path.name, path.read_bytes())
        info = {
            **header,
            "source": "recorded",
            "name": name,
            "generated": True,
            "files": {path.name: file_digest(path)},
            "versions": {name: importlib.metadata.version(name) for name in ("gymnasium", "mujoco")},
        }
        made = read_d4rl(path)
        return store(made.columns, made.returns, target, info)


def _mixed(
    environment: str,
    environment_id: str,
    transitions: int,
    mix: Sequence[str],
    seed: int,
    lanes: int,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Play equally many transitions of each behaviour, whole episodes alone; return them, and what each part is."""
    parts: list[dict[str, Array]] = []
    described: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    for number, name in enumerate(mix):
        behaviour, first = BEHAVIOURS[name], seed + number * lanes  # no two parts share an environment's seed
        act, origin = _policy(environment, environment_id, behaviour, first)
        about |= {key: value for key, value in origin.items() if key in ("sha256", "trained")}
        before, share = number * transitions // len(mix), (number + 1) * transitions // len(mix)

        def show(done: int, _: int, before: int = before) -> None:
            progress(before + done, transitions)

        played = _play(act, environment_id, share - before, first, lanes, show)
        ends = np.flatnonzero(_ends(played))
        if not len(ends):
            raise UserError(f"{share - before} transitions of {environment_id} hold no whole episode; record more")
        parts.append({key: array[: ends[-1] + 1] for key, array in played.items()})
        described.append({"name": name, **asdict(behaviour), "transitions": int(ends[-1]) + 1, "episodes": len(ends)})
        described[-1]["return"] = float(parts[-1]["rewards"].sum(dtype=np.float64) / len(ends))
    arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return arrays, {"policy": "mixed", **about, "parts": described}


def _ends(arrays: Mapping[str, Array]) -> Array:
    """Return which rows end an episode."""
    return arrays["terminals"] | arrays["timeouts"]


def _policy(
    environment: str, environment_id: str, behaviour: Behaviour, seed: int
) -> tuple[Callable[[Array], Array], dict[str, Any]]:
    """Return the behaviour, observations (lanes, states) -> actions (lanes, actions), and where it is from."""
    probe = make(environment_id, 1)  # an unknown environment is the first thing to say
    (size,) = probe.single_action_space.shape or (0,)
    probe.close()
    # The environments use `seed`, `seed + 1`, ... alone, so a second word keeps the noise apart from them; at seed 0 it
    # does not (NumPy pads with zeros): the noise then has the numbers that lane 1 starts from. A stream of
    # `train.seeds` would part them, and make other recordings: with the task's next version.
    random = np.random.default_rng([1, seed])
    if behaviour.random == 1:
        return lambda observations: random.uniform(-1, 1, (len(observations), size)), {"policy": "random"}
    file = expert.POLICIES / f"{environment}.safetensors"
    if not file.exists():
        committed = ", ".join(sorted(path.stem for path in expert.POLICIES.glob("*.safetensors"))) or "none"
        raise UserError(f"no committed policy for {environment!r} (there is: {committed}); record with policy 'random'")
    network, origin = expert.Policy.load(environment)

    def act(observations: Array) -> Array:
        lanes = len(observations)
        actions = network(observations) + behaviour.noise * random.standard_normal((lanes, size))
        if behaviour.random:
            by_chance = random.random((lanes, 1)) < behaviour.random
            actions = np.where(by_chance, random.uniform(-1, 1, (lanes, size)), actions)
        return actions

    trained = {"sha256": file_digest(file), "trained": dict(origin)}
    return act, {"policy": "expert", "noise": behaviour.noise, **trained}


def _play(
    act: Callable[[Array], Array],
    environment_id: str,
    transitions: int,
    seed: int,
    lanes: int,
    progress: Callable[[int, int], None],
) -> dict[str, Array]:
    """Play until the first `transitions` rows, by the order in which episodes began, are there; return them."""
    environments = make(environment_id, lanes)
    try:
        observations, _ = environments.reset(seed=seed)
        rows: list[tuple[Array, ...]] = []
        skip, total = np.zeros(lanes, bool), 0
        while True:
            actions = np.clip(act(observations), -1, 1).astype(np.float32)
            following, rewards, terminated, truncated, _ = environments.step(
                scale(actions, environments.single_action_space)
            )
            # The step after an episode's end only resets the lane: nothing happened that could be recorded.
            rows.append(
                (
                    ~skip,
                    observations.astype(np.float32),
                    actions,
                    rewards.astype(np.float32),
                    terminated,
                    truncated,
                    following.astype(np.float32),
                )
            )
            total += lanes - int(skip.sum())
            observations, skip = following, terminated | truncated
            if total >= transitions and (len(rows) % 100 == 0 or total == transitions):
                order, ready = _order(np.stack([row[0] for row in rows]), np.stack([row[4] | row[5] for row in rows]))
                if ready >= transitions:
                    break
            if len(rows) % 100 == 0:
                progress(min(total, transitions), transitions)
    finally:
        environments.close()
    progress(transitions, transitions)
    keys = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    arrays = {key: np.stack([row[axis] for row in rows])[order] for axis, key in enumerate(keys, start=1)}
    return {key: array[:transitions] for key, array in arrays.items()}


def _order(valid: Array, ended: Array) -> tuple[tuple[Array, Array], int]:
    """Return the order of the valid rows (step, lane) by the start of their episode, and how many are ready.

    Ready are the rows up to the end of the first episode that still runs: those after it would move on with it.
    """
    steps, lanes = valid.shape
    begins = np.zeros(valid.shape, np.int64)
    for row in range(1, steps):
        begins[row] = np.where(valid[row] & ~valid[row - 1], row, begins[row - 1])
    step, lane = np.nonzero(valid)
    episode = begins[step, lane] * lanes + lane
    order = np.lexsort((step, episode))
    running = [begins[-1, k] * lanes + k for k in range(lanes) if valid[-1, k] and not ended[-1, k]]
    ready = int((episode <= min(running)).sum()) if running else len(order)
    return (step[order], lane[order]), ready


def _write(path: Path, arrays: dict[str, Array], header: dict[str, Any], algorithm: str) -> None:
    """Write a file as D4RL's v2: flat arrays and `metadata`; the root's attribute `retable` says what it is."""
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key, data=array)
        file.create_dataset("metadata/algorithm", data=algorithm)
        file.attrs["retable"] = json.dumps(header, sort_keys=True)
