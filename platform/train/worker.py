"""Distributed context passed to a learner: rank, world size, device, collectives; and what its process uses.

Besides `execute/trials.py` it is the only place that touches `torch.distributed`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from retable.platform.store.storage import Record


def best_device(apple: bool = False) -> str:
    """Return `cuda` where there is a GPU of NVIDIA's, else `cpu`; with `apple`, else Apple's GPU where there is one."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if apple and torch.backends.mps.is_available() else "cpu"


def device_of(parameters: Iterable[Tensor]) -> torch.device:
    """Return the device on which a model's parameters lie; of a model without any, the CPU."""
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads that torch computes in, in this process, while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share(batch: int, rank: int, world: int) -> slice:
    """Return which rows of a batch are a rank's: consecutive ones, and those of all ranks are the batch."""
    return slice(rank * batch // world, (rank + 1) * batch // world)


_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


_CONVOLUTIONS = {getattr(torch, f"conv{kind}{dims}d") for kind in ("", "_transpose") for dims in (1, 2, 3)}


class _RoundedConvolutions(TorchFunctionMode):
    """Convolutions under a CPU's autocast, of rounded operands, summed in float32, their result rounded.

    Instructions for 16 bits do the same, but for the order of the sums. Where a CPU has none, PyTorch's own
    convolutions in 16 bits take twenty times as long as those in float32; these take about as long.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function not in _CONVOLUTIONS or not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        rounded = [arg.to(self.dtype).float() if isinstance(arg, Tensor) else arg for arg in args]
        with torch.autocast("cpu", enabled=False):
            return function(*rounded, **kwargs).to(self.dtype)


def _has_instructions(dtype: torch.dtype) -> bool:
    """Return whether this CPU convolves in a type of 16 bits."""
    mkldnn: Any = torch.ops.mkldnn
    supported = mkldnn._is_mkldnn_bf16_supported if dtype == torch.bfloat16 else mkldnn._is_mkldnn_fp16_supported
    return bool(supported())


@contextmanager
def autocast(device: str, precision: str) -> Iterator[None]:
    """Compute networks in a precision, a key of `_PRECISIONS`, while the block runs."""
    kind, dtype = torch.device(device).type, _PRECISIONS[precision]
    rounds = kind == "cpu" and dtype != torch.float32 and not _has_instructions(dtype)
    rounding = _RoundedConvolutions(dtype) if rounds else nullcontext()
    with torch.autocast(kind, dtype, enabled=dtype != torch.float32), rounding:
        yield


def ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Worker:
    """One process of a run. The defaults are a single process on the CPU, with no Ray."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    report: Callable[[Record], None] = ignore
    """Called by every rank, equally often, at each epoch's end: Tune's, Train's or nobody's."""
    save: Callable[[str, bytes], None] = ignore
    """(name, data): keep a file in the run's folder; `samples/<step>.png` are shown in TensorBoard too."""
    check_owner: Callable[[], None] = ignore
    """Called before each lasting write; raises if another attempt owns the runs."""
    note: Callable[[str], None] = ignore
    """Keep a line about an event with the runs."""
    checkpoint_requested: Callable[[], bool] = bool
    """Called after each step: whether preemption requests a checkpoint now."""
    checkpoint_written: Callable[[], None] = ignore
    """Called when a checkpoint was written."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose backward pass averages gradients over the workers; itself where there is one."""
        module.to(self.device)
        if self.world == 1:
            return module
        wrapped = nn.parallel.DistributedDataParallel(module)
        wrapped.broadcast_buffers = False  # masks never change: no need to send them again (an argument of old torch)
        return wrapped

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate every rank's rows, in order of rank, with gradients to each."""
        if self.world == 1:
            return tensor
        rows: Tensor = _Gather.apply(tensor)
        return rows

    def mean(self, tensor: Tensor) -> Tensor:
        """Average a tensor over the ranks (no gradient)."""
        if self.world > 1:
            tensor = tensor.clone()
            distributed.all_reduce(tensor)
            tensor = tensor / self.world
        return tensor

    def average_buffers(self, module: nn.Module) -> None:
        """Average a module's running statistics over the ranks: each has seen its own share of the batches."""
        if self.world > 1:
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.mean(buffer))


class _Gather(torch.autograd.Function):
    """Concatenate all ranks' rows, as many of each; the gradient of a rank's rows is summed over all ranks' losses.

    torch's own (`torch.distributed.nn.functional.all_gather`) is deprecated, and its successor is too new.
    """

    @staticmethod
    def forward(context: object, rows: Tensor) -> Tensor:
        """Gather the rows, in order of rank."""
        parts = [
            torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(distributed.get_world_size())
        ]
        distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context: object, *gradients: Tensor) -> Tensor:
        """Add up the gradients of every rank and return those of this rank's rows."""
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(gradient)
        return gradient.chunk(distributed.get_world_size())[distributed.get_rank()]


def seed_everything(seed: int, step: int, rank: int) -> None:
    """Seed Python, NumPy and torch for one step, so that there is no generator state to save."""
    words = np.random.SeedSequence([seed, step, rank]).generate_state(2)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    # Without an accelerator `torch.manual_seed` formats a traceback for each that may come: 0.4 ms a step.
    manual_seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    manual_seed(int(words[0]) << 32 | int(words[1]))


PEAKS = ("peak_memory", "peak_gpu_memory")


class Meter:
    """Measures this process from now on; a process that trains one run after another has one for each."""

    def __init__(self, device: str = "cpu", workers: int = 1) -> None:
        self.gpu, self.workers = device != "cpu", workers
        self.cpu, self.start = time.process_time(), time.monotonic()
        with suppress(OSError):  # Linux: the peak starts anew
            Path("/proc/self/clear_refs").write_text("5")
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()

    def read(self) -> dict[str, float]:
        """Return seconds of CPUs and GPUs of all workers, as this one took its share, and this one's peaks in bytes."""
        seconds = time.monotonic() - self.start
        return {
            "cpu_seconds": (time.process_time() - self.cpu) * self.workers,
            "gpu_seconds": seconds * self.workers if self.gpu else 0.0,
            "peak_memory": float(_peak()),
            "peak_gpu_memory": float(torch.cuda.max_memory_allocated()) if self.gpu else 0.0,
        }


def _peak() -> int:
    """Return the peak memory of this process in bytes; where the system does not report it, the current one."""
    import psutil

    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration, ValueError):
        return int(psutil.Process().memory_info().rss)


def add_usage(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the usage of two stretches of a training: summed seconds, and the higher peaks."""
    return {
        name: max(before.get(name, 0.0), value) if name in PEAKS else before.get(name, 0.0) + value
        for name, value in now.items()
    }
