"""Training of pruned networks: sparse (`sparse/training.py`), with masked dense layers, and of the dense network.

HalfCheetah's sizes, batches of 100, one thread, at sparsities of 50 to 99 %: BCQ and BC (the VAE alone), pruned by SNIP
and at random. A network's sparsity is that of the whole, so that its layers have more or less, and SNIP's have less
where most of the arithmetic is. Rounds of each way alternate, so that whatever else the machine does falls on all.
Times are medians of the processor's time, not of the clock's. Other work on the machine slows sparse training more than
dense: it waits for memory, dense products for arithmetic.

Bytes are those of all tensors that live between updates: networks, Adam's moments, targets, masks and patterns.

One layer, forward and backward, is timed by itself: that is where `training_sparse.SPARSE_BELOW` is from. Where
SparseProp is installed (it compiles itself for this processor), its layer is timed beside ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from retable.platform.config import override
from retable.platform.train.worker import Worker
from retable.tasks.rl.config import Config
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.learning.timing import RandomTransitions
from retable.tasks.rl.model import layers
from retable.tasks.rl.sparse import training as training_sparse
from retable.tasks.rl.sparse.training import Pattern, linear
from tests.rl.reference_bcq import ReferenceBcq

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
METHODS = {"SNIP": "snip", "random": "random"}
STATES, ACTIONS, BATCH, ROUNDS, UPDATES = 17, 6, 100, 9, 3
SHAPES = ((750, 750), (300, 400), (750, 29), (12, 750))
DENSITIES = (0.05, 0.1, 0.2, 0.25, 0.3, 0.5)


def medians(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of a call of each way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            for _ in range(repeats):
                way()
            times[name].append((time.process_time() - start) / repeats)
    return {name: statistics.median(values) for name, values in times.items()}


def learner(changes: dict[str, Any], sparsely: bool = True) -> OfflineLearner:
    """Return a learner; `sparsely` false: pruned weights are there, and masked."""
    config = override(Config(), changes)
    limit = training_sparse.SPARSE_BELOW if sparsely else 0.0
    with patch.object(training_sparse, "SPARSE_BELOW", limit):
        return OfflineLearner([config], RandomTransitions(config, STATES, ACTIONS), Worker())


def bytes_of(trained: OfflineLearner) -> int:
    """Count the bytes of networks, moments, targets, masks and patterns."""
    kept: list[Tensor] = []
    for module in (trained.networks, trained.targets):
        kept += [*module.parameters(), *module.buffers()]
    for part in trained._trained.values():
        kept += [value for state in part.optimizer.state.values() for value in state.values()]
    patterns = {id(layer.pattern): layer.pattern for layer in layers(trained.networks).values()}
    for pattern in patterns.values():
        kept += [value for value in vars(pattern).values() if isinstance(value, Tensor)] if pattern else []
    return sum(value.nbytes for value in kept)


def updates(algorithm: str, batch: dict[str, Tensor]) -> Iterable[tuple[str, dict[str, float]]]:
    """Yield the milliseconds and bytes of every way to train, by method and sparsity."""
    dense = learner({"algorithm": algorithm})
    for label, method in METHODS.items():
        for sparsity in SPARSITIES:
            changes = {"algorithm": algorithm, "prune": method, "prune.sparsity": sparsity}
            ways = {"dense": dense, "masked dense": learner(changes, sparsely=False), "sparse": learner(changes)}
            steps = {name: (lambda way=way: way.step(batch)) for name, way in ways.items()}
            if (algorithm, label, sparsity) == ("bcq", "SNIP", 0.95):
                steps["straightforward"] = plain(batch)
            times = medians(steps, UPDATES if algorithm == "bcq" else 3 * UPDATES)
            results = {f"{name}, ms": 1e3 * seconds for name, seconds in times.items()}
            others = [name for name in times if name != "sparse"]
            results |= {f"sparse, times as fast as {name}": times[name] / times["sparse"] for name in others}
            results["dense memory / sparse memory"] = bytes_of(dense) / bytes_of(ways["sparse"])
            yield f"{algorithm.upper()}, {label} {100 * sparsity:.0f} %", results


def plain(batch: dict[str, Tensor]) -> Callable[[], object]:
    """Return an update of the straightforward implementation of the tests, its noise included."""
    reference, one = ReferenceBcq(STATES, ACTIONS), {name: value[0] for name, value in batch.items()}

    def update() -> object:
        vae, target, actor = (torch.randn(rows, 2 * ACTIONS) for rows in (BATCH, 10 * BATCH, BATCH))
        return reference.update(one, (vae, target.clamp(-0.5, 0.5), actor.clamp(-0.5, 0.5)))

    return update


def layer(outputs: int, inputs: int, density: float) -> dict[str, float]:
    """Return the milliseconds of one layer, forward and backward, sparse and masked dense."""
    source = torch.Generator().manual_seed(0)
    mask = torch.rand(outputs, inputs, generator=source) < density
    pattern, weight, bias = Pattern.of(mask), torch.randn(outputs, inputs) * mask, torch.randn(outputs)
    rows, back = (torch.rand(width, BATCH, generator=source).T.requires_grad_() for width in (inputs, outputs))
    values = pattern.gather(weight).requires_grad_()
    weight.requires_grad_()

    def sparse() -> None:
        torch.autograd.grad(linear(pattern, values, bias, rows), (values, rows), back)

    def masked() -> None:
        of_weight, _ = torch.autograd.grad(linear(None, weight, bias, rows), (weight, rows), back)
        of_weight.view(torch.int32).mul_(mask)

    ways: dict[str, Callable[[], object]] = {"masked dense": masked, "sparse": sparse}
    if find_spec("sparseprop"):
        ways["SparseProp"] = sparseprop(weight, bias, rows.detach(), back)
    times = medians(ways, 20)
    return {f"sparse, times as fast as {name}": times[name] / times["sparse"] for name in ways if name != "sparse"}


def sparseprop(weight: Tensor, bias: Tensor, rows: Tensor, back: Tensor) -> Callable[[], object]:
    """Return a layer of SparseProp, forward and backward (Nikdan et al. 2023; `pip install sparseprop`, built here)."""
    from sparseprop.modules.linear import SparseLinear

    peer = SparseLinear(weight.detach(), torch.nn.Parameter(bias))
    inputs, gradient = rows.contiguous().requires_grad_(), back.contiguous()
    return lambda: torch.autograd.grad(peer(inputs), (peer.W_val, inputs), gradient)


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    drawn = RandomTransitions(Config(), STATES, ACTIONS).sample(0, BATCH)
    batch = {name: value[None] for name, value in drawn.items()}
    results: dict[str, Any] = {}
    for shape in SHAPES:
        for density in DENSITIES:
            for what, value in layer(*shape, density).items():
                results[f"layer {shape[0]} x {shape[1]}, {100 * density:.0f} % kept: {what}"] = value
    for algorithm in ("bcq", "bc"):
        for name, values in updates(algorithm, batch):
            results |= {f"{name}: {what}": value for what, value in values.items()}
    return results
