"""Stacks of BCQ networks: whether a GPU trains them right, and how many network-updates a second it makes.

HalfCheetah's sizes, batches of 100 from data that lie on the device. An update is the whole of it: gathering the batch,
noise, three losses, three Adam steps, targets. Evaluation, which is on CPUs, does not count. Where speed is measured,
masks are random ones of 95 % unless a step says otherwise: where the zeros are changes no speed.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.frame import Step, Value, Where
from benchmarks.gpu.measure import (
    ceilings,
    closeness,
    distance,
    peak_memory,
    per_second,
    rounding_bound,
    shown_ceilings,
    tf32,
)
from benchmarks.gpu.training import DRIFT, by_two, resumed
from benchmarks.rl_stack import ACTIONS, STATES, columns, work
from retable.platform.config import override
from retable.platform.train.worker import Worker
from retable.tasks.rl import TASK
from retable.tasks.rl.config import Bcq, Config
from retable.tasks.rl.data import Transitions
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.losses import Noise, actor_loss, critic_loss, draw_noise, td_target, vae_loss
from retable.tasks.rl.model import build, layers

INFO = {"states": STATES, "actions": ACTIONS, "max_action": 1.0}
TINY = {"actor": [12, 10], "critic": [12, 10], "vae": [14, 14], "batch": 8}
UPDATES = 6
"""Of trainings that are compared."""
GRID = 315e6
"""Network-updates of the paper: dense, SNIP and GraSP at ten sparsities, 3 environments, 5 seeds, a million each."""
BFLOAT16 = {"algorithm.target_precision": "bfloat16"}
GROUPS = {
    "matrix products": ("aten::bmm", "aten::baddbmm"),
    "Adam": ("aten::_fused_adam_",),
    "masks": ("aten::masked_fill_", "aten::bitwise_not"),
    "targets": ("aten::_foreach_lerp_",),
}
"""Groups among which a profile's time is divided; noise, activations, losses and copies are the rest."""


def steps(where: Where) -> Iterator[Step]:
    """Yield the checks, the ceilings, and the speeds, from the grid's own stack to what explains them."""
    for precision, kind in itertools.product(("float32", "tf32", "bfloat16"), ("outputs", "gradients")):
        name = f"{precision}{' target' if precision == 'bfloat16' else ''}: {kind} against the CPU's in float64"
        yield Step(name, functools.partial(against_float64, where, precision, kind))
    yield Step("CUDA graph against eager", lambda: graph_against_eager(where))
    yield Step("members of a stack against single trainings", lambda: stack_against_single(where))
    yield Step("resumed against uninterrupted", lambda: resume(where))
    yield Step("two processes against one", lambda: two_against_one(where))
    yield Step("ceilings of this device", lambda: shown_ceilings(where))

    def speed(count: int, changes: dict[str, Any], words: str, graph: bool = True, fused: bool = True) -> Step:
        """Return the step that times one setting, named by its precision and what else is special."""
        name = f"stack of {count}, {words}{'' if graph else ', eager'}{'' if fused else ', foreach Adam'}"
        rates = {"rl": "float32", "rl/tf32": "tf32"}  # no setting that changes numbers by more
        own = {rate: "network-updates/s" for rate, precision in rates.items() if words == precision}
        return Step(name, functools.partial(rate_of, where, count, changes, graph, fused), own)

    *fewer, grid, more = (1, 2, 3) if where.tiny else (1, 8, 35, 105, 256)
    tf32_too = {"precision": "tf32"}
    yield speed(grid, {}, "float32")
    yield speed(grid, tf32_too, "tf32")
    yield speed(grid, tf32_too | BFLOAT16, "tf32, bfloat16 target")
    yield speed(grid, BFLOAT16, "float32, bfloat16 target")
    yield Step(f"where the time of a stack of {grid} goes, eager", lambda: profile(where, grid))
    for count in (*fewer[::-1], more):
        yield speed(count, {}, "float32")
        yield speed(count, tf32_too, "tf32")
    yield speed(grid, tf32_too, "tf32", graph=False)
    yield speed(fewer[0], tf32_too, "tf32", graph=False)
    yield speed(grid, tf32_too, "tf32", fused=False)
    yield speed(grid, tf32_too | {"prune": "dense"}, "tf32, dense")
    yield Step(f"masks of a stack of {grid}, inverted in each update or kept", lambda: masking(where, grid))
    yield speed(fewer[len(fewer) // 2], tf32_too | {"prune": "snip"}, "tf32, SNIP 95 %")


def members(where: Where, count: int, **changes: Any) -> list[Config]:
    """Return configs that differ in seed, with random masks unless the changes say otherwise."""
    base = {"prune": "random", **(TINY if where.tiny else {}), **changes}
    return [override(Config(), {**base, "seed": seed}) for seed in range(count)]


@functools.cache
def rows() -> dict[str, Any]:
    """Return transitions to train on: random numbers."""
    return columns()


def against_float64(where: Where, precision: str, kind: str) -> dict[str, Value]:
    """Compare one update's outputs (losses, targets) or gradients on the device to float64 on the CPU."""
    want, own = reference(where)
    got = outputs_and_gradients(where, where.device, torch.float32, precision)
    names = [name for name in want if ("/" in name) == (kind == "gradients")]
    pick = lambda tensors: {name: tensors[name] for name in names}  # noqa: E731
    bound = rounding_bound(precision, distance(pick(own), pick(want)))
    return closeness(f"{len(names)} tensors", pick(got), pick(want), bound)


@functools.cache
def reference(where: Where) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what the CPU computes in float64, and in float32."""
    wide, narrow = (outputs_and_gradients(where, "cpu", kind, "float32") for kind in (torch.float64, torch.float32))
    return wide, narrow


def outputs_and_gradients(where: Where, device: str, kind: torch.dtype, precision: str) -> dict[str, Tensor]:
    """Return targets and losses of two members' first update, and by `network/parameter` the losses' gradients."""
    configs = members(where, 2)
    algorithm, size = configs[0].algorithm, configs[0].batch
    assert isinstance(algorithm, Bcq)
    networks = build(configs, STATES, ACTIONS, 1.0).to(device, kind)
    assert networks.actor is not None and networks.critic is not None
    drawn = [Transitions(rows(), INFO, configs).sample(member, size) for member in range(2)]
    batch = {name: torch.stack([one[name] for one in drawn]).to(device, kind) for name in drawn[0]}
    noise = Noise(*(part.to(device, kind) for part in draw_noise((0, 1), "gpu", 0, size, 2 * ACTIONS, 10)))
    autocast = torch.autocast(torch.device(device).type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with tf32(precision == "tf32"):
        with autocast:
            target = td_target(networks.vae, networks.actor, networks.critic, batch, noise.target, algorithm)
        outputs = {"target": target, "vae": vae_loss(networks.vae, batch, noise.vae)}
        outputs["critic"], outputs["q"] = critic_loss(networks.critic, batch, target)
        outputs["actor"] = actor_loss(networks.actor, networks.critic, networks.vae, batch, noise.actor)
        torch.autograd.backward((outputs["vae"] + outputs["critic"] + outputs["actor"]).sum())
    gradients = {name.replace(".", "/", 1): value.grad for name, value in networks.named_parameters()}
    return {**outputs, **{name: value for name, value in gradients.items() if value is not None}}


def updating(where: Where, configs: list[Config], **how: Any) -> tuple[OfflineLearner, Callable[[], Any]]:
    """Return a learner, and what draws a batch and makes one update, as the loop does."""
    data = Transitions(rows(), INFO, configs)
    learner = OfflineLearner(configs, data, Worker(device=where.device), **how)
    batches = (batch for epoch in itertools.count() for batch in data.batches(epoch, 0, 0, 1))
    return learner, lambda: learner.step(next(batches))


def ended(where: Where, configs: list[Config], **how: Any) -> dict[str, Tensor]:
    """Train for a few updates; return all weights as `member/name`."""
    learner, update = updating(where, configs, **how)
    for _ in range(UPDATES):
        update()
    return flat(learner)


def flat(learner: OfflineLearner) -> dict[str, Tensor]:
    """Return all weights of a learner, as `seed/name`."""
    states = zip(learner.configs, learner.state_dict(), strict=True)
    return {f"{config.seed}/{name}": value for config, state in states for name, value in state["weights"].items()}


def graph_against_eager(where: Where) -> dict[str, Value]:
    """Compare trainings; the first updates of a graph are eager, the others are replays."""
    configs = members(where, 2)
    return closeness("weights", ended(where, configs), ended(where, configs, graph=False), DRIFT)


def stack_against_single(where: Where) -> dict[str, Value]:
    """Compare a stack of three, one of them dense, to three trainings."""
    configs = [*members(where, 2), *members(where, 3, prune="dense")[2:]]
    alone = [ended(where, [config]) for config in configs]
    return closeness("weights", ended(where, configs), {k: v for one in alone for k, v in one.items()}, DRIFT)


def resume(where: Where) -> dict[str, Value]:
    """Train two members by the loop for two epochs, whole and interrupted in the second."""
    configs = members(where, 2, epochs=2, steps=UPDATES)
    return resumed(TASK, configs, Transitions(rows(), INFO, configs), where)


def two_against_one(where: Where) -> dict[str, Value]:
    """Compare two processes, each with its half of the batches, to one."""
    configs = members(where, 1)
    return closeness("weights", by_two(shared, configs, where), ended(where, configs, graph=False), DRIFT)


def shared(worker: Worker, configs: list[Config]) -> dict[str, Tensor]:
    """Train for a few updates as one of several processes."""
    data = Transitions(rows(), INFO, configs)
    learner = OfflineLearner(configs, data, worker)
    for batch in itertools.islice(data.batches(0, 0, worker.rank, worker.world), UPDATES):
        learner.step(batch)
    return flat(learner)


def fast_start(
    where: Where, count: int, changes: dict[str, Any], **how: Any
) -> tuple[OfflineLearner, Callable[[], Any]]:
    """Return a learner and its update, pruned on the device: masks by the configs take half a second a network."""
    learner, update = updating(where, members(where, count, **{"prune": "dense"} | changes), **how)
    if "prune" not in changes:
        for layer in layers(learner.networks).values():
            layer.mask = torch.rand(layer.weight.shape, device=where.device) < 0.05
            layer.weight.data.masked_fill_(~layer.mask, 0)
    return learner, update


def rate_of(where: Where, count: int, changes: dict[str, Any], graph: bool, fused: bool) -> dict[str, Value]:
    """Time the updates of one stack, beside what the device's ceilings allow for their operations and bytes."""
    limits, start = ceilings(where), time.perf_counter()
    learner, update = fast_start(where, count, changes, graph=graph, fused=fused)
    made = time.perf_counter() - start
    rate, config = count * per_second(update, where, warmup=6), learner.configs[0]
    assert isinstance(config.algorithm, Bcq)
    target, rest, moved = work(config)
    target_precision = "bfloat16" if config.algorithm.target_precision == "bfloat16" else config.precision
    return {
        "network-updates/s": rate,
        "updates/s": rate / count,
        "TFLOP/s": rate * (target + rest) / 1e12,
        "share of the matrix peak": rate * (target / limits[target_precision] + rest / limits[config.precision]),
        "GB/s": rate * moved / 1e9,
        "share of the copy's speed": rate * moved / limits["bytes"],
        "peak MB": peak_memory(where),
        "hours of the published grid": GRID / rate / 3600,
        "to build it, s": made,
    }


def profile(where: Where, count: int) -> dict[str, Value]:
    """Divide the device's time of a few eager updates (TF32) among `GROUPS`; a graph runs the same kernels."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    _, update = fast_start(where, count, {"precision": "tf32"}, graph=False)
    for _ in range(3):
        update()
    with profiler(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if where.gpu else [])]) as seen:
        for _ in range(UPDATES):
            update()
    spent: dict[str, float] = {}
    for event in seen.key_averages():
        if event.device_type == torch.autograd.DeviceType.CPU:  # operations; a GPU's kernels are listed once more
            spent[event.key] = event.self_device_time_total if where.gpu else event.self_cpu_time_total
    total = sum(spent.values())
    shares = {group: sum(spent.get(name, 0.0) for name in names) / total for group, names in GROUPS.items()}
    return {**shares, "the rest": 1 - sum(shares.values()), "ms an update": total / UPDATES / 1e3}


def masking(where: Where, count: int) -> dict[str, Value]:
    """Time the masking of one update's gradients, as it is and with inverse masks kept: a byte a weight more."""
    learner, _ = fast_start(where, count, {}, graph=False)
    masks = [layer.mask for layer in layers(learner.networks).values() if layer.mask is not None]
    inverse, gradients = [~mask for mask in masks], [torch.zeros(mask.shape, device=where.device) for mask in masks]

    def inverted() -> None:
        for gradient, mask in zip(gradients, masks, strict=True):
            gradient.masked_fill_(~mask, 0)

    def kept() -> None:
        for gradient, mask in zip(gradients, inverse, strict=True):
            gradient.masked_fill_(mask, 0)

    return {"inverted, ms": 1e3 / per_second(inverted, where), "kept, ms": 1e3 / per_second(kept, where)}
