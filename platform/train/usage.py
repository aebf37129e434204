"""Resource usage of a training: seconds of CPUs and GPUs, and memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import torch

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
            "peak_memory": float(peak()),
            "peak_gpu_memory": float(torch.cuda.max_memory_allocated()) if self.gpu else 0.0,
        }


def peak() -> int:
    """Return the peak memory of this process in bytes; where the system does not report it, the current one."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration, ValueError):
        return int(psutil.Process().memory_info().rss)


def joined(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the usage of two stretches of a training: summed seconds, and the higher peaks."""
    return {
        name: max(before.get(name, 0.0), value) if name in PEAKS else before.get(name, 0.0) + value
        for name, value in now.items()
    }
