"""Network-updates a second of BCQ stacks: one member, several, and the straightforward implementation of the tests.

HalfCheetah's sizes, batches of 100, float32, on the CPU with one thread: stacked against separate training, in
times of the processor. For a GPU an estimate from operations and bytes, named as such; `benchmarks/gpu` measures there.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from retable.platform.config import override
from retable.platform.train.worker import Worker
from retable.tasks.rl.config import Bcq, Config
from retable.tasks.rl.data import Transitions
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.model import weight_count
from tests.rl.reference_bcq import ReferenceBcq

STATES, ACTIONS, ROWS = 17, 6, 200_000
CPU_MEMBERS = (1, 2, 5, 10)
SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
H100 = {"float32": 67e12, "TF32": 495e12, "bytes": 3.35e12}
"""Peak operations and bytes a second that NVIDIA states for an H100 SXM (dense)."""


def members(count: int, **changes: Any) -> list[Config]:
    """Return configs that differ in seed and sparsity, as those of a grid; random masks cost no scoring."""
    points = [{"seed": n % 5, "prune": "random", "prune.sparsity": SPARSITIES[n // 5 % 11]} for n in range(count)]
    return [override(Config(), {**point, **changes}) for point in points]


def columns() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    wide = {name: draw.standard_normal((ROWS, STATES), np.float32) for name in ("observation", "next_observation")}
    return {
        **wide,
        "action": draw.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32),
        "reward": draw.standard_normal(ROWS, np.float32),
        "terminal": np.zeros(ROWS, bool),
    }


def updating(configs: list[Config], rows: dict[str, Any]) -> Callable[[], Any]:
    """Return what draws a batch and makes one update of a stack, as the loop does."""
    data = Transitions(rows, {"states": STATES, "actions": ACTIONS, "max_action": 1.0}, configs)
    learner = OfflineLearner(configs, data, Worker())
    batches = (batch for epoch in range(10**6) for batch in data.batches(epoch, 0, 0, 1))
    return lambda: learner.step(next(batches))


def plain() -> Callable[[], Any]:
    """Return one update of the straightforward implementation, its noise included."""
    reference = ReferenceBcq(STATES, ACTIONS)
    shapes = {"observation": STATES, "action": ACTIONS, "reward": 1, "next_observation": STATES, "not_done": 1}
    batch = {name: torch.rand(100, width) for name, width in shapes.items()}

    def update() -> None:
        latents = [torch.randn(rows, 2 * ACTIONS) for rows in (100, 1000, 100)]
        reference.update(batch, [latents[0], latents[1].clamp(-0.5, 0.5), latents[2].clamp(-0.5, 0.5)])

    return update


def cpu_rates(rounds: int = 5, networks: int = 10) -> dict[str, float]:
    """Return network-updates a second of one core; rounds of each alternate, for other work falls on all alike."""
    rows = columns()
    updates = {f"stack of {count}": (updating(members(count), rows), count) for count in CPU_MEMBERS}
    updates["straightforward"] = (plain(), 1)
    times: dict[str, list[float]] = {name: [] for name in updates}
    for update, _ in updates.values():
        update()
    for _ in range(rounds):
        for name, (update, count) in updates.items():
            start = time.process_time()
            for _ in range(networks // count):
                update()
            times[name].append((time.process_time() - start) / networks)
    return {name: 1 / statistics.median(values) for name, values in times.items()}


def work(config: Config) -> tuple[float, float, float]:
    """Count one network's update: operations of the target pass, of the rest, and bytes of device memory.

    A multiply-add is two operations; a backward pass costs two forward ones, or one where only inputs need gradients.
    Bytes: ten reads or writes of each trained float32 weight (forward, backward, Adam's value, gradient and moments)
    and three of a target's. Activations are left out: a GPU's caches hold them in part only, so this is too few.
    """
    count = {name: weight_count(name, STATES, ACTIONS, getattr(config, name)) for name in ("vae", "actor", "critic")}
    assert isinstance(config.algorithm, Bcq)
    decoder = (STATES + 2 * ACTIONS) * config.vae[0] + config.vae[0] * config.vae[1] + config.vae[1] * ACTIONS
    moved, trained = count["actor"] + count["critic"], sum(count.values())
    target = config.algorithm.target_samples * (decoder + moved)
    climbed = decoder + count["critic"]  # the actor's update: a proposal, and one head forward and backward
    return 2.0 * config.batch * target, 2.0 * config.batch * (3 * trained + climbed), 4.0 * (10 * trained + 3 * moved)


def estimate() -> dict[str, float]:
    """Estimate what an H100 could reach at the stated peaks, were operations and bytes all that counts."""
    target, rest, moved = work(Config())
    operations = target + rest
    limits = {kind: H100[kind] / operations for kind in ("float32", "TF32")}
    return {
        "operations an update, 1e9": operations / 1e9,
        "bytes an update, 1e6": moved / 1e6,
        "ESTIMATE: most by float32 peak of an H100, network-updates/s": limits["float32"],
        "ESTIMATE: most by TF32 peak of an H100, network-updates/s": limits["TF32"],
        "ESTIMATE: most by memory of an H100, network-updates/s": H100["bytes"] / moved,
    }


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    cpu = cpu_rates()
    results: dict[str, Any] = {f"CPU, {name}: network-updates/s of one core": rate for name, rate in cpu.items()}
    results |= {
        f"CPU, {name}: speed / separate": rate / cpu["stack of 1"] for name, rate in cpu.items() if "of" in name
    }
    results["CPU, stack of 1: speed / straightforward"] = cpu["stack of 1"] / cpu["straightforward"]
    return {**results, **estimate()}
