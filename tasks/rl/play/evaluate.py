"""Play a policy in a Gymnasium environment: returns and lengths of whole episodes.

The simulator is imported where it is used, so that a machine without it can train.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from retable.platform.errors import UserError, nearest, words
from retable.platform.spec.arrays import Array

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.vector import VectorEnv


@contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Drop MuJoCo's remark on HalfCheetah's model file: printed for each copy and kept in a MUJOCO_LOG.TXT."""
    import mujoco

    def show(message: str) -> None:
        if "settotalmass" not in message:
            print(f"MuJoCo: {message}", file=sys.stderr)

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(show)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def with_settings(environment_id: str, settings: Mapping[str, Any]) -> str:
    """Return what an environment is called here: its id and, after a blank, settings of its own as JSON.

    Settings are `max_episode_steps` and arguments of its constructor, as `gymnasium.make` takes them.
    """
    return f"{environment_id} {json.dumps(settings, sort_keys=True)}" if settings else environment_id


def _parts(environment_id: str) -> tuple[str, dict[str, Any]]:
    """Return an environment's id and its settings, as `with_settings` joins them; any other blank is part of the id."""
    name, _, text = environment_id.partition(" ")
    try:
        settings = json.loads(text)
    except ValueError:
        settings = None
    return (name, settings) if isinstance(settings, dict) else (environment_id, {})


LONGEST = {"max_episode_steps": 100_000, "frame_skip": 100}
"""Settings of a foreign file by which a single call could last for hours, and their most."""


def refused_settings(settings: Any) -> str:
    """Return what a foreign file may not set, in words, or nothing: numbers alone cannot name files or code."""

    def plain(value: Any, deep: int = 2) -> bool:
        if isinstance(value, float):
            return not math.isnan(value)  # infinity is the end of some ranges
        return isinstance(value, int) or (
            isinstance(value, list) and deep > 0 and all(plain(entry, deep - 1) for entry in value)
        )

    if not isinstance(settings, dict):
        return "no names of settings"
    bad = [key for key, value in settings.items() if not str(key).isidentifier() or not plain(value)]
    if bad:
        return f"{bad[0]!r} = {reprlib.repr(settings[bad[0]])}, which only numbers may be"
    floats = [key for key in LONGEST if isinstance(settings.get(key), float)]
    if part := [key for key in floats if not settings[key].is_integer()]:
        return f"{part[0]!r} = {settings[part[0]]!r}, which is no whole number"
    given = ((key, settings.get(key, 1), most) for key, most in LONGEST.items())
    long = [key for key, value, most in given if isinstance(value, list) or not 0 < value <= most]
    return f"{long[0]!r} = {settings[long[0]]!r}, which is beyond 1 to {LONGEST[long[0]]}" if long else ""


def versions(environment: str) -> list[str]:
    """Return the versions of an environment that Gymnasium registers, `v2`, ..., `v5`, the newest last."""
    import gymnasium

    registered = [
        spec.version for spec in gymnasium.registry.values() if spec.namespace is None and spec.name == environment
    ]
    return [f"v{version}" for version in sorted(version for version in registered if version is not None)]


def make(environment_id: str, lanes: int) -> VectorEnv[Any, Any, Any]:
    """Make `lanes` copies of an environment with continuous actions, stepped one after the other in this process.

    Raises:
        UserError: where the environment is unknown (the nearest names are given), cannot be built here, has no flat
            vector of observations, no bounded continuous actions, or no limit on an episode's length.

    """
    import gymnasium

    name, settings = _parts(environment_id)
    if name not in gymnasium.registry:
        names = [name for name, spec in gymnasium.registry.items() if "gymnasium.envs.mujoco" in str(spec.entry_point)]
        raise UserError(f"unknown environment {name!r}{nearest(name, names)}")
    try:
        settings |= {key: int(settings[key]) for key in LONGEST if key in settings}  # 1000.0 of another JSON writer
        with warnings.catch_warnings(), _quiet_mujoco():
            # "v4 is out of date": we ask for it, because D4RL's rewards are those of v4.
            warnings.simplefilter("ignore", DeprecationWarning)
            environments = gymnasium.make_vec(name, num_envs=lanes, vectorization_mode="sync", **settings)
    except Exception as error:  # foreign arguments in arbitrary constructors
        raise UserError(f"environment {environment_id!r} cannot be built here: {words(error)}") from error
    actions, observations = environments.single_action_space, environments.single_observation_space
    lacks = None
    if not isinstance(actions, gymnasium.spaces.Box) or len(actions.shape) != 1 or not actions.is_bounded():
        lacks = "no bounded continuous actions"
    elif not isinstance(observations, gymnasium.spaces.Box) or len(observations.shape) != 1:
        lacks = "no flat vector of observations"
    elif _limit(name, settings) is None:
        lacks = "no limit on an episode's length"
    if lacks:
        environments.close()
        raise UserError(f"environment {environment_id!r} has {lacks}; choose another, such as 'Hopper-v5'")
    return environments


def _limit(name: str, settings: Mapping[str, Any]) -> int | None:
    import gymnasium

    limit = settings.get("max_episode_steps", gymnasium.registry[name].max_episode_steps)
    return int(limit) if limit is not None and limit > 0 else None


@dataclass(frozen=True, eq=False)
class Spaces:
    """Shapes, bounds and episode limit that data of an environment have to fit."""

    environment: str
    """As `with_settings` calls it."""
    states: int
    low: Array
    """(actions,) the bounds of its actions."""
    high: Array
    steps: int
    """Of an episode, at most."""


@cache
def spaces(environment_id: str) -> Spaces:
    """Return an environment's sizes, bounds and limit; refuses what no policy could be played in.

    Raises:
        UserError: as `make`.
    """
    environments = make(environment_id, 1)
    (states,), actions = environments.single_observation_space.shape or (0,), environments.single_action_space
    try:
        environments.reset(seed=0)
        environments.step(np.zeros(environments.action_space.shape or (), np.float32))
    except Exception as error:  # settings that only a step reads
        raise UserError(f"environment {environment_id!r} cannot be stepped: {words(error)}") from error
    finally:
        environments.close()
    steps = _limit(*_parts(environment_id))
    assert steps is not None
    return Spaces(environment_id, states, actions.low, actions.high, steps)  # type: ignore[attr-defined]  # a Box


def check_sizes(environment_id: str, states: int, actions: int, what: str) -> None:
    """Refuse an environment whose observations and actions are of other sizes than those of `what`.

    Raises:
        UserError: then, with the versions that fit, and where the environment is unknown or cannot be built.

    """
    space = spaces(environment_id)
    sizes = (space.states, len(space.low))
    if sizes != (states, actions):
        fitting = [name for name in _other_versions(environment_id) if _fits(name, states, actions)]
        remedy = "give data of this environment, or name another"
        if fitting:
            remedy = f"{fitting[-1]} fits: convert or import the data with --simulator {fitting[-1].rpartition('-')[2]}"
        raise UserError(f"{environment_id} has {sizes} observations and actions, {what} {(states, actions)}; {remedy}")


def _other_versions(environment_id: str) -> list[str]:
    match = re.match(r"([\w.-]+)-v\d+", environment_id)
    return [f"{match[1]}-{version}" for version in versions(match[1])] if match else []


def _fits(environment_id: str, states: int, actions: int) -> bool:
    try:
        space = spaces(environment_id)
    except UserError:  # such as v2, which needs another package
        return False
    return (space.states, len(space.low)) == (states, actions)


def scale(actions: Array, space: gymnasium.spaces.Space[Any]) -> Array:
    """Clip actions (lanes, actions) to [-1, 1] and stretch them to the bounds of `space`.

    Data sets and policies hold actions in [-1, 1] (so `Transitions.max_action` is 1); for D4RL's environments, whose
    bounds are -1 and 1, this only clips.

    Raises:
        UserError: where an action is not finite, as after a training that diverged.

    """
    from gymnasium.spaces import Box

    assert isinstance(space, Box)
    if not np.isfinite(actions).all():
        what = "the policy's actions are not finite; its training has diverged"
        raise UserError(f"{what}: take an earlier epoch, or train with a smaller learning_rate")
    centre, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    stretched: Array = (centre + half * np.clip(actions, -1, 1)).astype(space.dtype)
    return stretched


@dataclass(frozen=True, eq=False)
class Step:
    """Result of one simulator step for the episodes that are played side by side."""

    environments: VectorEnv[Any, Any, Any]
    rewards: Array
    """(episodes,) float64; of an episode that had ended before, meaningless."""
    running: Array
    """(episodes,) bool: had not ended before this step."""
    ended: Array
    """(episodes,) bool: has now; before its limit of steps, where it is in `terminated` too."""
    terminated: Array


def play(act: Callable[[Array], Array], environment_id: str, episodes: int, seed: int) -> Generator[Step, None, None]:
    """Play `episodes` episodes side by side, a step at a time, until all have ended.

    Episode k is the first episode of lane k, which is seeded with `seed + k`. Lanes that are done wait for the others;
    `act` still sees them, so that it is always called with the same shapes and its own randomness does not depend on
    which lane ends first.

    Args:
        act: maps observations (episodes, states) float32 to actions (episodes, actions) in [-1, 1].
        environment_id: a Gymnasium environment with its version, such as `Hopper-v5`, and its settings.
        episodes: how many episodes, at least one.
        seed: seed of the first episode.

    Raises:
        UserError: where the environment is unknown or not of this kind (see `make`), or the policy's actions are not
            finite.

    Source: the evaluation of Fujimoto et al. 2019 (10 episodes, no discount), with its episodes side by side.

    """
    environments = make(environment_id, episodes)
    try:
        observations, _ = environments.reset(seed=seed)
        running = np.ones(episodes, bool)
        while running.any():
            actions = scale(act(observations.astype(np.float32)), environments.single_action_space)
            observations, rewards, terminated, truncated, _ = environments.step(actions)
            yield Step(environments, rewards, running, terminated | truncated, terminated)
            running = running & ~(terminated | truncated)
    finally:
        environments.close()


def rollout(act: Callable[[Array], Array], environment_id: str, episodes: int, seed: int) -> dict[str, Array]:
    """Play whole episodes, as `play` does, and return what came of them.

    Returns:
        `returns` (episodes,) float64, undiscounted, and `lengths` (episodes,) int64, in steps.

    Raises:
        UserError: as `play`.

    """
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    for step in play(act, environment_id, episodes, seed):
        returns[step.running] += step.rewards[step.running]
        lengths += step.running
    return {"returns": returns, "lengths": lengths}
