"""Scoring a policy in ten episodes of HalfCheetah, by its parts: the simulator, the policy, and making the simulators.

One thread, processor time. Dense and pruned policies of behaviour cloning come with the task; BCQ's dense networks are
untrained, which takes the same time, and weigh as many candidates as a view has.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from retable.platform.models import zoo
from retable.tasks.rl.config import Config, View
from retable.tasks.rl.export import read_export
from retable.tasks.rl.model import bcq_action, build
from retable.tasks.rl.play import evaluate
from retable.tasks.rl.play.acting import player

EPISODES, STEPS, CALLS, ROUNDS = 10, 1000, 100, 7
STATES, ACTIONS = 17, 6


def milliseconds(work: Callable[[], object]) -> float:
    """Return the median processor time of a call, over rounds of many calls."""
    work()
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(CALLS):
            work()
        rounds.append((time.process_time() - start) / CALLS * 1e3)
    return statistics.median(rounds)


def measure() -> dict[str, float]:
    """Return the milliseconds of each part, and the seconds of ten episodes made of them."""
    torch.set_num_threads(1)
    start = time.process_time()
    environments = evaluate.make("HalfCheetah-v5", EPISODES)
    result = {"make ten simulators, ms": (time.process_time() - start) * 1e3}
    environments.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (EPISODES, ACTIONS)).astype(np.float32)
    observations = rng.normal(size=(EPISODES, STATES)).astype(np.float32)
    result["a step of ten simulators, ms"] = milliseconds(lambda: environments.step(actions))
    environments.close()
    for name in ("dense", "snip-95"):
        act = player(read_export(zoo.read("rl", f"HalfCheetah-{name}"), name).act, EPISODES, 2 * ACTIONS, 0)
        result[f"BC {name} acts in ten, ms"] = milliseconds(lambda act=act: act(observations))  # type: ignore[misc]
    networks, candidates = build([Config()], STATES, ACTIONS, 1.0), EPISODES * View().samples
    act = player(lambda o, n: bcq_action(networks, o[None], n[None])[0], candidates, 2 * ACTIONS, 0)
    result[f"BCQ dense acts in ten ({View().samples} candidates), ms"] = milliseconds(lambda: act(observations))
    step = result["a step of ten simulators, ms"]
    for name, acts in [(key.partition(" acts")[0], value) for key, value in result.items() if " acts" in key]:
        result[f"ten episodes, {name}, s"] = (result["make ten simulators, ms"] + STEPS * (step + acts)) / 1e3
    return result
