"""Sizes of a trained network's file, and the seconds it takes to write and read, against the dense file.

HalfCheetah's sizes, SNIP at 95 %, after updates on random data: sizes hardly depend on what is learned. Times are of
the processor. Files of random and ERK masks leave these out, as `rl export` does.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from retable.platform.config import override
from retable.platform.train.worker import Worker
from retable.tasks.rl.config import Config
from retable.tasks.rl.export import write_policy
from retable.tasks.rl.formats.compact import pack, unpack
from retable.tasks.rl.formats.precisions import COMPACT
from retable.tasks.rl.formats.sizes import every_size, file_bytes
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.learning.timing import RandomTransitions

ROUNDS, UPDATES = 7, 100
INFO = {"states": 17, "actions": 6, "simulator": "v5", "max_action": 1.0, "behaviour_return": 1.0}
"""Of the data set that the file names."""


def seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def trained(method: str) -> tuple[Config, dict[str, torch.Tensor]]:
    config = override(Config(), {"prune": method})
    data = RandomTransitions(config, 17, 6)
    learner = OfflineLearner([config], data, Worker())
    batch = {name: value[None] for name, value in data.sample(0, config.batch).items()}
    for _ in range(UPDATES):
        learner.step(batch)
    return config, learner.state_dict()[0]["weights"]


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    _, weights = trained("snip")
    results: dict[str, Any] = {
        name: value for name, value in every_size(weights, archives=True).items() if name.startswith("smaller/")
    }
    plain = io.BytesIO()
    torch.save(weights, plain)
    results["dense: write, ms"] = 1e3 * seconds(lambda: file_bytes(weights))
    results["dense: read, ms"] = 1e3 * seconds(lambda: torch.load(io.BytesIO(plain.getvalue()), weights_only=True))
    for form, precision in COMPACT.items():
        file = pack(weights, precision)
        results[f"{form}: write, ms"] = 1e3 * seconds(lambda precision=precision: pack(weights, precision))
        results[f"{form}: read, ms"] = 1e3 * seconds(lambda file=file: unpack(file, "benchmark"))
    for method in ("random", "erk"):
        config, weights = trained(method)
        for form, precision in COMPACT.items():
            left = len(write_policy(config, INFO, weights, "all", precision))
            results[f"{method}, smaller/all/{form}"] = file_bytes(weights) / len(pack(weights, precision))
            results[f"{method}, smaller/all/{form}, masks left out"] = file_bytes(weights) / left
    return results
