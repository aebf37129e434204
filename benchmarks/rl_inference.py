"""Acting with pruned networks: the sparse way against the dense stack and against plain `nn.Linear`, one thread.

Two things are timed at every sparsity. One layer of the VAE's size (750 x 750) with random weights kept: each way to
compute it, which is where `inference.SPARSE_BELOW` is from. And what a run does: the decoder alone (behaviour cloning)
and BCQ's whole rule, at HalfCheetah's sizes with SNIP's masks (at 95 % also random ones), where a network's sparsity is
that of the whole, so that its layers have more or less. A batch is so many columns: observations, for BCQ candidates.

Ways alternate round by round, so that whatever else the machine does falls on all of them. Times are medians of the
processor's time, not of the clock's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

from retable.platform.train.worker import Worker
from retable.tasks.rl.config import Config, Random, Snip
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.learning.timing import RandomTransitions
from retable.tasks.rl.model import BC_CLIP, BCQ_CLIP, StackedLinear, bc_action, bcq_action, generator, unstack
from retable.tasks.rl.sparse import inference
from tests.rl.reference_bcq import ReferenceBcq

SPARSITIES = (0.5, 0.8, 0.85, 0.9, 0.95, 0.99)
BATCHES = (1, 10, 100, 1000)
ROUNDS, SECONDS = 15, 0.01
UNITS, STATES, ACTIONS = 750, 17, 6
PLAIN = "nn.Linear"


def compare(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of a call of each way; a round calls each for at least `SECONDS`."""
    repeats = {}
    for name, way in ways.items():
        way()
        start = time.process_time()
        way()
        repeats[name] = 1 + int(SECONDS / max(time.process_time() - start, 1e-6))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                way()
            times[name].append((time.process_time() - start) / repeats[name])
    return {name: statistics.median(values) for name, values in times.items()}


def ways_of_a_layer(sparsity: float, batch: int) -> dict[str, Callable[[], object]]:
    """Return every way to compute one layer and its ReLU, from activations as that way holds them.

    `inference.forward` holds them in blocks of columns, each of which is what the layer before has made.
    """
    source = torch.Generator().manual_seed(0)
    stacked = StackedLinear(UNITS, UNITS, [generator(0, "layer")])
    keep = torch.randperm(UNITS * UNITS, generator=source)[: round((1 - sparsity) * UNITS * UNITS)]
    stacked.weight.data.mul_(torch.zeros(UNITS * UNITS).index_fill_(0, keep, 1).view(1, UNITS, UNITS))
    weight, bias = stacked.weight.data[0], stacked.bias.data[0]
    plain = nn.Linear(UNITS, UNITS)
    plain.load_state_dict({"weight": weight, "bias": bias})
    rows = torch.rand(batch, UNITS, generator=source)
    columns = rows[0] if batch == 1 else rows.T.contiguous()
    blocks = [columns] if batch == 1 else [part.contiguous() for part in torch.split(columns, inference.BLOCK, 1)]
    dense, sparse = inference.Layer(weight, bias), inference.Layer(inference.csr(weight), bias)
    matrix, column = scipy.sparse.csr_array(weight.numpy()), bias.numpy() if batch == 1 else bias.numpy()[:, None]

    def by_scipy() -> object:
        return np.maximum(matrix @ columns.numpy() + column, 0)

    return {
        "dense stack": lambda: torch.relu(stacked(rows[None])),
        PLAIN: lambda: torch.relu(plain(rows)),
        "dense, features first": lambda: [dense(block).relu_() for block in blocks],
        "CSR": lambda: [sparse(block).relu_() for block in blocks],
        "SciPy's CSR": by_scipy,
    }


def ways_of_acting(learner: OfflineLearner, policy: str, batch: int) -> dict[str, Callable[[], object]]:
    """Return the ways to act with one run's networks; BCQ chooses among 100 candidates, fewer where the batch is."""
    weights, networks = unstack(learner.networks, 0), learner.networks
    reference = ReferenceBcq(STATES, ACTIONS)
    reference.load(weights)
    candidates = min(batch, 100) if policy == "bcq" else 1
    source = torch.Generator().manual_seed(1)
    states = torch.randn(batch // candidates, STATES, generator=source)
    noise = torch.randn(batch, 2 * ACTIONS, generator=source)

    def plain_bcq() -> Tensor:
        repeated = states.repeat_interleave(candidates, 0)
        actions = reference.actor(repeated, reference.vae.decode(repeated, noise.clamp(-BCQ_CLIP, BCQ_CLIP)))
        best = reference.critic.q1(repeated, actions).view(-1, candidates).argmax(1)
        chosen: Tensor = actions.view(len(states), candidates, -1)[torch.arange(len(states)), best]
        return chosen

    if policy == "bcq":
        sparse = inference.bcq(weights, 1.0, Config().algorithm.perturbation)
        dense, plain = bcq_action, plain_bcq
    else:
        sparse, dense = inference.bc(weights, 1.0), bc_action
        plain = lambda: reference.vae.decode(states, noise.clamp(-BC_CLIP, BC_CLIP))  # noqa: E731
    return {
        "dense stack": lambda: dense(networks, states[None], noise[None]),
        PLAIN: plain,
        "sparse": lambda: sparse(states, noise),
    }


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    data = RandomTransitions(Config(), STATES, ACTIONS)
    runs = {f"SNIP {100 * s:.0f} %": Config(prune=Snip(sparsity=s)) for s in SPARSITIES}
    runs["random 95 %"] = Config(prune=Random(sparsity=0.95))
    results: dict[str, Any] = {}
    with torch.no_grad():
        for sparsity in SPARSITIES:
            for batch in BATCHES:
                times, name = compare(ways_of_a_layer(sparsity, batch)), f"layer, {100 * sparsity:.0f} %, batch {batch}"
                results[f"{name}: dense stack, us"] = 1e6 * times["dense stack"]
                results |= {f"{name}: {way}, times as fast": times["dense stack"] / times[way] for way in [*times][1:]}
    for label, config in runs.items():
        learner = OfflineLearner([config], data, Worker())
        for policy in ("bc", "bcq"):
            used = [unstack(learner.networks, 0)[f"{layer}.weight"] for layer in inference.ACTING[policy]]
            kept = sum(int(weight.count_nonzero()) for weight in used) / sum(weight.numel() for weight in used)
            results[f"{policy}, {label}: share of the acting weights kept"] = kept
            for batch in BATCHES:
                with torch.no_grad():
                    times = compare(ways_of_acting(learner, policy, batch))
                name = f"{policy}, {label}, batch {batch}"
                results[f"{name}: dense stack, us"] = 1e6 * times["dense stack"]
                results |= {f"{name}: {way}, times as fast": times["dense stack"] / times[way] for way in [*times][1:]}
    at_95 = {key: value for key, value in results.items() if key.startswith("layer, 95 %") and ": CSR" in key}
    plain = [value / results[key.replace("CSR", PLAIN)] for key, value in at_95.items()]
    results["layer, 95 %, batch 1 to 1000: least times as fast as the dense stack"] = min(at_95.values())
    results[f"layer, 95 %, batch 1 to 1000: least times as fast as {PLAIN}"] = min(plain)
    return results
