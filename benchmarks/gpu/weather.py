"""Forecasters of rain at the paper's size: whether a GPU trains them right, how fast, in how much memory.

A sample is an hour, four images of 11 channels at 252 x 252 pixels, and 32 lead times. Checks are at sizes that a CPU
can repeat in float64. PyTorch's default for float32 is to round the factors of convolutions to TF32 and those of matrix
products not; "float32" means strictly, "default" what a run gets.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.frame import Step, Value, Where
from benchmarks.gpu.measure import (
    ceilings,
    closeness,
    distance,
    free,
    peak_memory,
    per_second,
    rounding_bound,
    seconds_of,
    shown_ceilings,
    tf32,
)
from benchmarks.gpu.training import by_two, resumed
from retable.platform.config import override
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.platform.train.worker import Worker
from retable.tasks.weather import TASK
from retable.tasks.weather.config import Config
from retable.tasks.weather.data import Batch, Windows
from retable.tasks.weather.learner import ForecastLearner, on
from retable.tasks.weather.losses import build_loss
from retable.tasks.weather.model import build
from retable.tasks.weather.w4c.layout import CSV

REGION, FRAMES, BATCH = "roxi_0004", 96, 4
Changes = dict[str, Any]
SWIN: Changes = {"model": "swin"}
MODELS: dict[str, Changes] = {
    "unet": {},
    "swin/repeat_interleave": SWIN,
    "vivit": {"model": "vivit"},
    "swin/channel_convolution": SWIN | {"model.variant": "channel_convolution"},
    "swin/upsample": SWIN | {"model.variant": "upsample"},
}
SMALL: dict[str, Changes] = {
    "unet": {"model.filters": 4, "model.levels": 3},
    "swin": {"model.feature_size": 12},
    "vivit": {"model.dim": 64, "model.depth": 2, "model.heads": 2, "model.patch": 12},
}
"""Model -> changes at which a CPU takes a step in less than a second."""
SETTINGS: dict[str, Changes] = {
    "default": {},
    "bfloat16": {"precision": "bfloat16"},
    "float32": {},
    "channels last 3D": {"channels_last": True},
    "bfloat16, channels last 3D": {"precision": "bfloat16", "channels_last": True},
    "bfloat16, checkpointing": {"precision": "bfloat16", "model.checkpointing": True},
    "compiled": {"compile": True},
    "bfloat16, compiled": {"precision": "bfloat16", "compile": True},
    "bfloat16, channels last 3D, compiled": {"precision": "bfloat16", "channels_last": True, "compile": True},
}
CHECKED = ("unet", "vivit", "swin/upsample")
"""Compared to float64 on a CPU; the other two have the same blocks as the third."""
SLOW = ("swin/repeat_interleave", "swin/channel_convolution")
"""However small the pictures, these have volumes 32 deep: seconds a step on a CPU."""
GRADIENT_BOUND = 1e-4
"""Between float32 gradients of two processes and of one: sums of the same terms in another order."""


def steps(where: Where) -> Iterator[Step]:
    """Yield the checks, the ceilings, and the speeds: first of what a run gets and of bfloat16, compilation last."""
    for name, precision in itertools.product(CHECKED, ("float32", "tf32", "bfloat16")):
        run = functools.partial(against_float64, where, name, precision)
        yield Step(f"{name}, {precision}: outputs and gradients against the CPU's in float64", run)
    yield Step("resumed against uninterrupted", lambda: resume(where))
    yield Step("two processes against one, gradients", lambda: two_against_one(where))
    yield Step("ceilings of this device", lambda: shown_ceilings(where))
    for setting, name in itertools.product(SETTINGS, MODELS):
        if applies(where, name, setting):
            rates = {f"weather/{name}": "samples/s"} if setting == "default" else {}
            yield Step(f"{name}, {setting}", functools.partial(speed, where, name, setting), rates)
        if setting == "channels last 3D" and name == "unet":  # as telling as what comes after it
            for model in (model for model in MODELS if not (where.tiny and model.startswith("swin"))):
                yield Step(f"{model}, bfloat16: largest batch", functools.partial(largest_batch, where, model))
            yield Step("unet beside its loader, default", lambda: beside_loader(where, "default"))
            yield Step("unet beside its loader, bfloat16", lambda: beside_loader(where, "bfloat16"))


def applies(where: Where, name: str, setting: str) -> bool:
    """Return whether a setting is one of this network: only Swin has checkpointing, ViViT has no volumes."""
    swin = name.startswith("swin")
    if where.tiny and swin:  # a second a step and more; the others run every setting
        return setting == "default" or (name not in SLOW and "checkpointing" in setting)
    return (swin or "checkpointing" not in setting) and (name != "vivit" or "channels last" not in setting)


def config_of(where: Where, name: str, small: bool = False, **changes: Any) -> Config:
    """Return the config of a network, full-size or small."""
    small = small or where.tiny
    shrunk = {**SMALL[name.split("/")[0]], "forecast": 4 if name.startswith("swin") else 8} if small else {}
    base = {"regions": [REGION], "years": [2019], "batch": 1 if where.tiny else BATCH}
    return override(Config(), {**base, **MODELS[name], **shrunk, **changes})


def size_of(where: Where, name: str, small: bool = False) -> int:
    """Return the width of the images, pixels."""
    return (12 if name.startswith("swin") else 36) if small or where.tiny else 252


class Shape:
    """Sizes and names that a learner reads of its data."""

    def __init__(self, size: int) -> None:
        self.size, self.regions, self.positive_ratio = size, (REGION,), 2.0


def sample(config: Config, size: int, device: str) -> Batch:
    """Return a batch of random images and events."""
    draw = torch.Generator().manual_seed(0)
    shape = (config.batch, config.forecast, size, size)
    batch = Batch(
        torch.randn(config.batch, 11, config.inputs, size, size, generator=draw),
        torch.randint(0, 3, shape, dtype=torch.uint8, generator=draw),
        torch.randint(0, 3, (config.batch, size, size), dtype=torch.uint8, generator=draw),
        torch.zeros(config.batch, dtype=torch.long),
        (f"2019/{REGION}",) * config.batch,
    )
    moved: Batch = on(batch, device)
    return moved


def against_float64(where: Where, name: str, precision: str) -> dict[str, Value]:
    """Compare a small network's logits, loss and gradients on the device to float64 on the CPU."""
    want, own = reference(where, name)
    got = outputs_and_gradients(where, name, where.device, torch.float32, precision)
    bound = rounding_bound(precision, distance(own, want))
    return closeness(f"{len(want)} tensors", got, want, bound)


@functools.cache
def reference(where: Where, name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what the CPU computes in float64, and in float32."""
    wide, narrow = (
        outputs_and_gradients(where, name, "cpu", kind, "float32") for kind in (torch.float64, torch.float32)
    )
    return wide, narrow


def outputs_and_gradients(where: Where, name: str, device: str, kind: torch.dtype, precision: str) -> dict[str, Tensor]:
    """Return the logits, the loss and its gradients of one batch, each group scaled to length 1 of its own."""
    changes = {"model.dropout": 0.0} if name == "unet" else {}
    config, size = config_of(where, name, small=True, **changes), size_of(where, name, small=True)
    torch.manual_seed(0)
    model = build(config, size, (REGION,)).to(device, kind).train()
    batch = sample(config, size, device)
    kind_of_device = torch.device(device).type
    autocast = torch.autocast(kind_of_device, torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with tf32(precision == "tf32"):
        with autocast:
            logits = model(batch.images.to(kind), batch.region)
        loss = build_loss(config, 2.0)(logits.to(kind), batch.events)
        torch.autograd.backward(loss)
    gradients = {key: value.grad for key, value in model.named_parameters() if value.grad is not None}
    length = sum(float(value.double().square().sum()) for value in gradients.values()) ** 0.5
    outputs = {"logits": logits.detach().double() / logits.detach().double().norm()}
    return {**outputs, "loss": loss.detach(), **{key: value.double() / length for key, value in gradients.items()}}


def windows(folder: Path, config: Config, size: int) -> Windows:
    """Return a loader of windows of random frames in memory; the list of times alone is written to the folder."""
    start, series = datetime(2019, 3, 1), f"2019/{REGION}/training"
    lines = ["time,date_str,date,RATE,ACRR,DBZH,REFL-BT,all_vars,split,split_type"]
    for frame in range(FRAMES):
        lines.append(f"{start + frame * timedelta(minutes=15):%H%M%S,%Y%m%d,%Y-%m-%d},1,1,1,1,1,training,-")
    (folder / CSV).parent.mkdir(parents=True, exist_ok=True)
    (folder / CSV).write_text("\n".join(lines) + "\n")
    info = {"format": "hdf5", "size": size, "regions": [REGION], "years": [2019], "holdout": "official", "rain": {}}
    info |= {"inputs": 4, "forecast": 32, "series": {series: {"satellite": FRAMES, "rain": FRAMES}}, "digest": "random"}
    draw = np.random.default_rng(0)
    satellite = 200 + 100 * draw.random((FRAMES, 11, size, size), np.float32)
    rate = draw.gamma(0.2, 0.5, (FRAMES, size, size)).astype(np.float32)
    columns = {f"{series}/satellite": satellite, f"{series}/rate": rate}
    return Windows(columns, Source(Storage.open(folder), info), [config])


def resume(where: Where) -> dict[str, Value]:
    """Train a small U-Net by the loop for two epochs of four steps, whole and interrupted in the second."""
    config = config_of(where, "unet", small=True, epochs=2, steps=4, batch=2)
    with tempfile.TemporaryDirectory(prefix="retable-gpu-") as folder:
        return resumed(TASK, [config], windows(Path(folder), config, 36), where)


def two_against_one(where: Where) -> dict[str, Value]:
    """Compare the gradients that two processes share, each of half a batch, to those of one."""
    changes = {"model.normalization": "instance", "model.dropout": 0.0}  # what does not depend on the rest of a batch
    config = config_of(where, "unet", small=True, batch=4, gradient_clamp=0.0, **changes)
    alone = gradients(Worker(device=where.device), config)
    return closeness("gradients", by_two(gradients, config, where), alone, GRADIENT_BOUND)


def gradients(worker: Worker, config: Config) -> dict[str, Tensor]:
    """Return the gradients of a worker's share of a batch, averaged over the workers."""
    batch = sample(config, 36, worker.device)
    share = slice(worker.rank * 4 // worker.world, (worker.rank + 1) * 4 // worker.world)
    parts = (getattr(batch, name)[share] for name in ("images", "events", "now", "region", "shard"))
    learner = ForecastLearner([config], Shape(36), worker)
    with tf32(False):
        learner.step(Batch(*parts))
    return {name: value.grad for name, value in learner.model.named_parameters() if value.grad is not None}


def speed(where: Where, name: str, setting: str) -> dict[str, Value]:
    """Time full steps of one network in one setting, with its memory and its share of the matrix peak."""
    config = config_of(where, name, **SETTINGS[setting])
    strictly = tf32(False) if setting == "float32" else nullcontext()
    compiling = torch.compiler.set_stance("force_eager" if where.tiny else "default")  # that alone would take minutes
    torch.compiler.reset()  # what was compiled for another network counts against a limit
    with strictly, compiling:
        step = stepping(where, name, config)
        operations = 0.0 if config.compile or (where.tiny and name in SLOW) else counted(step)
        rate = per_second(step, where)
    results: dict[str, Value] = {"samples/s": rate * config.batch, "steps/s": rate, "peak MB": peak_memory(where)}
    if operations:
        peak = "bfloat16" if config.precision == "bfloat16" else "float32" if setting == "float32" else "tf32"
        results |= {"TFLOP a sample": operations / config.batch / 1e12, "of the peak of": peak}
        results |= {"share": rate * operations / ceilings(where)[peak]}
    return results


def stepping(where: Where, name: str, config: Config) -> Callable[[], Any]:
    """Return a whole step of training on a batch that lies on the device."""
    size = size_of(where, name)
    learner = ForecastLearner([config], Shape(size), Worker(device=where.device))
    batch = sample(config, size, where.device)
    return lambda: learner.step(batch)


def counted(step: Callable[[], Any]) -> float:
    """Return the floating-point operations of a step's matrix products and convolutions, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def largest_batch(where: Where, name: str) -> dict[str, Value]:
    """Double the batch, up to 256, until memory is short or a kernel refuses; return the largest that went."""
    results: dict[str, Value] = {"largest batch": 0.0, "ended by": "the largest that is tried"}
    for batch in (2**power for power in range(2 if where.tiny else 9)):
        try:
            results |= one_batch(where, name, batch)
        except RuntimeError as error:  # PyTorch's for memory is one too
            return {**results, "ended by": str(error).splitlines()[0][:80]}
        free(where)
    return results


def one_batch(where: Where, name: str, batch: int) -> dict[str, Value]:
    """Return the speed of the second step of a batch of this size, in bfloat16, and the memory that it takes."""
    step = stepping(where, name, config_of(where, name, batch=batch, precision="bfloat16"))
    step()
    rate = batch / seconds_of(step, 1, where)
    return {"largest batch": float(batch), "samples/s": rate, "peak MB": peak_memory(where)}


def beside_loader(where: Where, setting: str) -> dict[str, Value]:
    """Time the loader alone, steps alone, and steps on what the loader gives, in one process: who waits for whom."""
    config, size = config_of(where, "unet", **SETTINGS[setting]), size_of(where, "unet")
    with tempfile.TemporaryDirectory(prefix="retable-gpu-") as folder:
        data = windows(Path(folder), config, size)
        batches = (batch for epoch in itertools.count() for batch in data.batches(epoch, 0, 0, 1))
        learner, fixed = (
            ForecastLearner([config], data, Worker(device=where.device)),
            sample(config, size, where.device),
        )
        rates = {
            "loader alone, samples/s": per_second(lambda: next(batches), where),
            "steps alone, samples/s": per_second(lambda: learner.step(fixed), where),
            "together, samples/s": per_second(lambda: learner.step(next(batches)), where),
        }
    results: dict[str, Value] = {name: config.batch * rate for name, rate in rates.items()}
    waits = 1 - rates["together, samples/s"] / rates["steps alone, samples/s"]
    return {**results, "share of the time that the device waits": waits}
