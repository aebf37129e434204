"""Small data and workers for the tests of `tasks/rl`. As a program it is one worker of two (`test_learner.py`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from retable.tasks.rl.config import Config
from retable.tasks.rl.learner import OfflineLearner

SMALL = {"actor": (16, 12), "critic": (14, 10), "vae": (18, 16), "batch": 8, "states": "raw"}


def config(**values) -> Config:
    return Config(**{**SMALL, **values})


def transitions(seed, size, states=5, actions=2):
    """Make transitions without a member axis; a quarter of them end their episode."""
    source = torch.Generator().manual_seed(seed)
    state, following = (torch.randn(size, states, generator=source) for _ in range(2))
    return {
        "observation": state,
        "action": torch.rand(size, actions, generator=source) * 2 - 1,
        "reward": torch.randn(size, 1, generator=source),
        "next_observation": following,
        "not_done": (torch.rand(size, 1, generator=source) > 0.25).float(),
    }


def columns(size, states, actions):
    """Make the columns of a data set."""
    draw = np.random.default_rng(0)
    made = {name: draw.normal(size=(size, states)).astype(np.float32) for name in ("observation", "next_observation")}
    made["action"] = draw.uniform(-1, 1, (size, actions)).astype(np.float32)
    made["reward"] = draw.normal(size=size).astype(np.float32)
    made["terminal"] = draw.random(size) < 0.1
    return made


def stack(parts):
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


@dataclass
class Toy:
    """Data of the members with these seeds."""

    seeds: list[int]
    states: int = 5
    actions: int = 2
    max_action: float = 1.0
    standard: object = None

    def sample(self, member, size):
        return transitions(1000 + self.seeds[member], size, self.states, self.actions)

    def batch(self, step, size=8):
        return stack([transitions(7919 * seed + step, size, self.states, self.actions) for seed in self.seeds])


@dataclass
class Worker:
    rank: int = 0
    world: int = 1
    device: str = "cpu"
    wrapped: list = field(default_factory=list)
    notes: list = field(default_factory=list)

    def note(self, text):
        self.notes.append(text)

    def wrap(self, module):
        if self.world == 1:
            return module
        self.wrapped.append(torch.nn.parallel.DistributedDataParallel(module))
        return self.wrapped[-1]


def learner(configs, worker=None, **data):
    toy = Toy([c.seed for c in configs], **data)
    return OfflineLearner(configs, toy, worker or Worker()), toy


def train(configs, updates, worker=None):
    trained, toy = learner(configs, worker)
    metrics = [trained.step(toy.batch(step)) for step in range(updates)]
    return trained, metrics


def work(rank: int, folder: Path) -> None:
    """Train as worker `rank` of two on halves of the batches, pruning on data that the workers do NOT agree on."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    configs = torch.load(folder / "configs.pt", weights_only=False)  # our own file
    toy = Toy([c.seed for c in configs])
    if rank:
        honest = toy.sample
        toy.sample = lambda member, size: honest(member, size + 1)  # other scores, as another CPU's rounding might give
    trained = OfflineLearner(configs, toy, Worker(rank, 2))
    for step in range(5):
        trained.step({name: value[:, rank * 4 : rank * 4 + 4] for name, value in toy.batch(step).items()})
    torch.save(trained.state_dict(), folder / f"state{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    work(int(sys.argv[1]), Path(sys.argv[2]))
