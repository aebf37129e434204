"""Episodes: a served policy plays in MuJoCo; its bodies are returned as lines in the plane of their motion."""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Json, Problem
from retable.tasks.rl.config import View
from retable.tasks.rl.export import Exported
from retable.tasks.rl.formats.compact import deployable
from retable.tasks.rl.play.acting import player
from retable.tasks.rl.play.evaluate import play as simulate

_PER_SECOND = 25
"""Pictures of a second of simulated time, at most."""
_PLANE, _SPHERE, _CAPSULE, _CYLINDER, _MESH = 0, 2, 3, 5, 7
"""MuJoCo's kinds of bodies (`mjtGeom`); the others are ellipsoids and boxes."""


class Stopped(Exception):
    """No client waits for the episode any more."""


class Film:
    """Film of an episode, in the plane in which its bodies are spread out.

    Each visible body is a line of some width, with or without round ends.
    """

    def __init__(self, environment: Any) -> None:
        """Read the bodies off MuJoCo's model, which stands as an episode begins."""
        model, self.data = environment.model, environment.data
        kinds, sizes = np.array(model.geom_type), np.array(model.geom_size)
        floors = np.flatnonzero(kinds == _PLANE)
        self.ground = float(self.data.geom_xpos[floors[0], 2]) if len(floors) else None
        """Height of the floor, m."""
        self.places = np.flatnonzero((kinds != _PLANE) & (kinds < _MESH) & (np.array(model.geom_rgba)[:, 3] > 0))
        """(bodies,) their indices among MuJoCo's geoms."""
        kinds, sizes = kinds[self.places], sizes[self.places]
        long, sphere = np.isin(kinds, (_CAPSULE, _CYLINDER)), kinds == _SPHERE
        ordered = np.sort(sizes, axis=1)
        self.radii = np.where(long | sphere, sizes[:, 0], ordered[:, 1])
        """(bodies,) half the width, m."""
        self.halves = np.where(long, sizes[:, 1], np.where(sphere, 0, ordered[:, 2]))
        """(bodies,) half the length, m."""
        self.axes = np.where(long | sphere, 2, sizes.argmax(axis=1))
        """(bodies,) which of a body's own axes the line follows."""
        self.round = np.isin(kinds, (_CAPSULE, _SPHERE))
        """(bodies,) whether the ends are round."""
        spread = np.ptp(self.ends().reshape(-1, 3), axis=0)
        self.depth = 2 if spread[2] >= spread[1] else 1
        self.pause = float(environment.dt)
        self.every = max(1, round(1 / (_PER_SECOND * self.pause)))
        self.frames: list[list[int]] = []

    def ends(self) -> Array:
        """Return where each line begins and ends now, m: (bodies, 2, 3)."""
        turned = np.array(self.data.geom_xmat)[self.places].reshape(-1, 3, 3)
        along = np.take_along_axis(turned, self.axes[:, None, None].repeat(3, 1), axis=2)[:, :, 0]
        middle = np.array(self.data.geom_xpos)[self.places]
        reach = self.halves[:, None] * along
        return np.stack([middle - reach, middle + reach], axis=1)

    def see(self, step: int) -> None:
        """Keep where the bodies are after a step, where that is one of those that are kept: whole mm."""
        if step % self.every == 0:
            ends = self.ends()[:, :, [0, self.depth]]
            self.frames.append(np.rint(1000 * ends).astype(int).reshape(-1).tolist())

    def as_json(self) -> Json:
        """Return what an answer says of it."""
        lines = zip(np.rint(1000 * self.radii).astype(int).tolist(), self.round.tolist(), strict=True)
        floor = None if self.ground is None or self.depth == 1 else round(1000 * self.ground)
        return {
            "plane": "xz" if self.depth == 2 else "xy",
            "ground": floor,
            "bodies": [{"radius": radius, "round": ends} for radius, ends in lines],
            "every": self.every,
            "seconds_per_step": self.pause,
            "frames": self.frames,
        }


def play(policy: Exported, seed: int, steps: int, stopped: Callable[[], bool]) -> Json:
    """Play the first `steps` steps of an episode, as `retable rl play` does, and return what came of them.

    Raises:
        UserError: where the simulator is not here, or knows no such environment.
        Stopped: where it is told to stop.
    """
    candidates = View.samples if policy.policy == "bcq" else 1
    act = player(policy.act, candidates, 2 * int(policy.info["actions"]), seed)
    rewards: list[float] = []
    film, end = None, "steps"
    with closing(simulate(act, policy.environment, 1, seed)) as played:
        for number, step in enumerate(played):
            if stopped():
                raise Stopped
            environment = step.environments.envs[0].unwrapped  # type: ignore[attr-defined]  # those of one process
            if film is None and hasattr(environment, "model"):
                film = Film(environment)
            if film:
                film.see(number)
            rewards.append(round(float(step.rewards[0]), 6))
            if step.ended[0]:
                end = "fell" if step.terminated[0] else "limit"
            if len(rewards) == steps:
                break
    return {
        "environment": policy.environment,
        "seed": seed,
        "steps": len(rewards),
        "end": end,
        "return": sum(rewards),
        "rewards": rewards,
        **(film.as_json() if film else {"frames": []}),
    }


def weight(policy: Exported) -> dict[str, int]:
    """Return how many of a policy's weights are not 0, and of how many it is made."""
    held = [tensor for name, tensor in deployable(policy.weights, policy.policy).items() if tensor.dim() == 2]
    return {"weights": sum(int((w != 0).sum()) for w in held), "weights_of": sum(w.numel() for w in held)}


class Stage:
    """Plays episodes one at a time, in a thread, and no longer than a client waits."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits, self.free, self.waiting = limits, asyncio.Lock(), 0

    async def play(self, policy: Exported, seed: int, steps: int) -> Json:
        """Play an episode; a request that is cancelled stops it at its next step.

        Raises:
            Problem: 501 where there is no simulator, 503 where too many wait or it takes too long.
        """
        if self.waiting >= self.limits.episodes:
            raise Problem(503, "other episodes are being played; try again in a moment", wait=5)
        self.waiting += 1
        gone = threading.Event()
        try:
            async with self.free:
                end = time.monotonic() + self.limits.episode_seconds
                return await asyncio.to_thread(
                    play, policy, seed, steps, lambda: gone.is_set() or time.monotonic() > end
                )
        except ModuleNotFoundError as error:
            raise Problem(501, "no simulator here: the server has no gymnasium[mujoco]") from error
        except UserError as error:  # what the simulator says of itself may name its files
            public = "/" not in str(error)
            raise Problem(501, str(error) if public else "the environment cannot be built here") from error
        except Stopped as error:
            detail = f"not played within {self.limits.episode_seconds:g} s; ask for fewer steps"
            raise Problem(503, detail, wait=5) from error
        finally:
            gone.set()
            self.waiting -= 1
