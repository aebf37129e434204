"""Timing and comparison, the same in every part."""

from __future__ import annotations

import functools
import gc
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from benchmarks.gpu.frame import Where

ROUNDS = 5
ROUNDING = {"float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that rounding to a format changes a number by, relatively; TF32 and float16 keep 11 bits, bfloat16 8."""

Tensors = Tensor | Mapping[str, Tensor]


def synchronize(where: Where) -> None:
    """Wait until the device has done what it was told."""
    if where.gpu:
        torch.cuda.synchronize(where.device)


def per_second(call: Callable[[], object], where: Where, warmup: int = 3) -> float:
    """Return calls a second: the median of rounds that together take about `where.seconds`; tiny, of a single call."""
    if where.tiny:
        return 1 / seconds_of(call, 1, where)
    for _ in range(warmup):
        call()
    count = max(1, round(where.seconds / ROUNDS / seconds_of(call, 1, where)))
    if count > 1:  # a first call may be slow; so many are not
        count = max(1, round(count * where.seconds / ROUNDS / seconds_of(call, count, where)))
    return statistics.median(count / seconds_of(call, count, where) for _ in range(ROUNDS))


def seconds_of(call: Callable[[], object], count: int, where: Where) -> float:
    """Return the seconds of so many calls, until the device has done them."""
    synchronize(where)
    start = time.perf_counter()
    for _ in range(count):
        call()
    synchronize(where)
    return time.perf_counter() - start


def peak_memory(where: Where) -> float:
    """Return the most MB that tensors took on the device since `free`; on a CPU, the process since it began."""
    if where.gpu:
        return torch.cuda.max_memory_allocated(where.device) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def free(where: Where) -> None:
    """Free unused memory, and count the peak of memory from here."""
    gc.collect()
    if where.gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where.device)


def distance(got: Tensors, want: Tensors) -> float:
    """Return ||got - want|| / ||want|| over all tensors together, in float64; infinite where a number is not finite.

    All together, as some gradients are 0 in exact arithmetic (a bias before a normalisation): by themselves they would
    be noise relative to nothing.
    """
    pairs = [(got, want)] if isinstance(got, Tensor) else [(got[name], want[name]) for name in want]  # type: ignore[index]
    wide = [(one.detach().double().cpu(), other.detach().double().cpu()) for one, other in pairs]
    if any(one.shape != other.shape for one, other in wide):
        raise ValueError("tensors of different shapes are compared")
    apart = sum(float((one - other).square().sum()) for one, other in wide) ** 0.5
    size = sum(float(other.square().sum()) for _, other in wide) ** 0.5
    if not apart < float("inf"):  # NaN too
        return float("inf")
    return apart / size if size else apart


def closeness(name: str, got: Tensors, want: Tensors, bound: float) -> dict[str, float | str | bool]:
    """Compare tensors, or named tensors, to a reference; a bound of 0 asks for every bit."""
    error = distance(got, want)
    return {"compared": name, "error": error, "bound": bound, "ok": error <= bound}


def rounding_bound(precision: str, own: float) -> float:
    """Return how far from the float64 result a device may be at a precision, from how far float32 is on the CPU.

    To first order an error by rounding is proportional to the rounding of single numbers, through any network, so it
    grows as `ROUNDING` does. Sixteen times as much is allowed to float32, as sums of hundreds of terms taken one by one
    err so much more than those taken in blocks; four times to the coarser ones, whose sums are in float32 too. Half
    is the most: beyond it nothing is compared.
    """
    order = 16 if precision == "float32" else 4
    return min(0.5, order * max(own, ROUNDING["float32"]) * ROUNDING[precision] / ROUNDING["float32"])


def as_pytorch_starts() -> None:
    """Set TF32 as PyTorch has it at first, for convolutions only: learners change it, and others would inherit that."""
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """Switch TF32 for float32 matrix products and convolutions on a GPU; restore the setting at the end."""
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = enabled
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


@functools.cache
def ceilings(where: Where) -> dict[str, float]:
    """Return the most operations a second that large matrix products reach here, by precision, and `bytes` a second.

    Random factors: products of zeros run faster. A copy reads and writes; both are counted.
    """
    size = 256 if where.tiny else 8192
    results = {}
    for precision in ("float32", "tf32", "bfloat16"):
        kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
        one, other = (torch.randn(size, size, device=where.device, dtype=kind) for _ in range(2))
        with tf32(precision == "tf32"):
            results[precision] = 2 * size**3 * per_second(lambda one=one, other=other: one @ other, where)
    source = torch.randn(size * size * (1 if where.tiny else 16), device=where.device)
    target = torch.empty_like(source)
    results["bytes"] = 2 * source.nbytes * per_second(lambda: target.copy_(source), where)
    return results


def shown_ceilings(where: Where) -> dict[str, float]:
    """Return `ceilings` in the units of a report."""
    measured = ceilings(where)
    return {f"{kind}, TFLOP/s": measured[kind] / 1e12 for kind in ("float32", "tf32", "bfloat16")} | {
        "copy, GB/s": measured["bytes"] / 1e9
    }
