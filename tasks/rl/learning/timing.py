"""Milliseconds of an update and of acting, on random data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from retable.platform.spec.table import stored_as
from retable.tasks.rl.config import Bc, Config

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@stored_as("speed")
def speed(config: Config) -> dict[str, float]:
    """Measure the milliseconds of one update and of acting in one state, at HalfCheetah's size on random data."""
    import torch  # here: tables name what measures, and a list of them measures nothing

    from retable.platform.train.worker import Worker
    from retable.tasks.rl.learner import OfflineLearner
    from retable.tasks.rl.model import bc_action, bcq_action

    torch.set_num_threads(1)
    states, actions = 17, 6
    data = RandomTransitions(config, states, actions)
    learner = OfflineLearner([config], data, Worker())
    batch = {name: value[None] for name, value in data.sample(0, config.batch).items()}
    choose = bc_action if isinstance(config.algorithm, Bc) else bcq_action
    noise = torch.randn(1, 1 if isinstance(config.algorithm, Bc) else 100, 2 * actions)
    observation = torch.randn(1, 1, states)
    times: dict[str, list[float]] = {"update_ms": [], "act_ms": []}
    for _ in range(30):
        start = time.perf_counter()
        learner.step(batch)
        between = time.perf_counter()
        choose(learner.networks, observation, noise)
        times["update_ms"].append(1e3 * (between - start))
        times["act_ms"].append(1e3 * (time.perf_counter() - between))
    return {name: float(np.median(values[5:])) for name, values in times.items()}


class RandomTransitions:
    """Transitions of standard normal numbers: enough to time an update."""

    max_action = 1.0
    standard = None

    def __init__(self, config: Config, states: int, actions: int) -> None:
        self.states, self.actions, self.steps, self.seed = states, actions, config.steps, config.seed

    def sample(self, member: int, size: int) -> dict[str, Tensor]:
        """Return `size` transitions."""
        import torch

        drawn = torch.Generator().manual_seed(self.seed)
        shapes = {"observation": self.states, "action": self.actions, "next_observation": self.states, "reward": 1}
        tensors = {name: torch.randn(size, width, generator=drawn) for name, width in shapes.items()}
        return {**tensors, "action": tensors["action"].tanh(), "not_done": torch.ones(size, 1)}

    def place(self, device: torch.device) -> None:
        """Do nothing: samples are drawn on the CPU."""
