"""Updates a second of one BCQ run, against the straightforward implementation of the tests.

Both train HalfCheetah's sizes on batches of 100 with one thread; rounds of each alternate, so that whatever else the
machine does falls on both. Times are of the processor, not of the clock.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from retable.platform.config import override
from retable.platform.train.worker import Worker
from retable.tasks.rl.config import Config
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.learning.timing import RandomTransitions
from tests.rl.reference_bcq import ReferenceBcq

ROUNDS, UPDATES = 7, 15


def seconds(update: Any) -> float:
    start = time.process_time()
    for _ in range(UPDATES):
        update()
    return (time.process_time() - start) / UPDATES


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    data = RandomTransitions(Config(), 17, 6)
    batch = data.sample(0, 100)
    stacked = {name: value[None] for name, value in batch.items()}
    reference = ReferenceBcq(17, 6)
    learners = {
        "retable, float32": OfflineLearner([Config()], data, Worker()),
        "retable, SNIP 95 %": OfflineLearner([override(Config(), {"prune": "snip"})], data, Worker()),
        "retable, bfloat16 target": OfflineLearner(
            [override(Config(), {"algorithm.target_precision": "bfloat16"})], data, Worker()
        ),
        "retable, BC (VAE alone)": OfflineLearner([override(Config(), {"algorithm": "bc"})], data, Worker()),
    }

    def plain() -> None:
        noise = (torch.randn(100, 12), torch.randn(1000, 12).clamp(-0.5, 0.5), torch.randn(100, 12).clamp(-0.5, 0.5))
        reference.update(batch, noise)

    updates = {"straightforward": plain} | {
        name: (lambda learner=learner: learner.step(stacked)) for name, learner in learners.items()
    }
    times: dict[str, list[float]] = {name: [] for name in updates}
    for update in updates.values():
        update()
    for _ in range(ROUNDS):
        for name, update in updates.items():
            times[name].append(seconds(update))
    middle = {name: statistics.median(values) for name, values in times.items()}
    rates = {f"{name}: updates/s of one core": 1 / value for name, value in middle.items()}
    ratios = {f"{name}: speed / straightforward": middle["straightforward"] / middle[name] for name in learners}
    return rates | ratios
