"""How things are timed and compared, the same in every part."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Mapping
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
    """Return calls a second: the median of rounds that together take about `where.seconds`."""
    for _ in range(warmup):
        call()
    synchronize(where)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < where.seconds / (2 * ROUNDS) or not count:  # how many calls make a round
        call()
        count += 1
    synchronize(where)
    spent = time.perf_counter() - start  # the device may have been told far more than it had done by then
    count = max(1, round(count * where.seconds / ROUNDS / max(spent, 1e-9)))
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            call()
        synchronize(where)
        rates.append(count / (time.perf_counter() - start))
    return statistics.median(rates)


def peak_memory(where: Where) -> float:
    """Return the most MB that tensors took on the device since `free`; on a CPU, the process since it began."""
    if where.gpu:
        return torch.cuda.max_memory_allocated(where.device) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def free(where: Where) -> None:
    """Give back what nothing holds any more, and count the peak of memory from here."""
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
    """Return how far from the float64 result another device may be at a precision, from how far float32 is on the CPU.

    To first order an error by rounding grows with the rounding of single numbers, through any network. So a precision
    may err in proportion to `ROUNDING`, and float32 in another order of summation four times as much as on the CPU. One
    tenth is the most: beyond it, first order says nothing.
    """
    if precision == "float32":
        return 4 * max(own, ROUNDING["float32"])
    return min(0.1, own * ROUNDING[precision] / ROUNDING["float32"])
