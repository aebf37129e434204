"""Training steps and forecasts a second of the 3D U-Net and Swin-UNETR, with and without our settings; peak memory.

The reference is the same network as the competition's code runs it: float32, contiguous, not compiled. On a CPU the
sizes are small; on a GPU (`RETABLE_BENCH_DEVICE=cuda`) they are the paper's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEVICE = os.environ.get("RETABLE_BENCH_DEVICE", "cpu")
SIZE, BATCH = (252, 4) if DEVICE == "cuda" else (36, 4)
MODELS = {
    "3D U-Net": {} if DEVICE == "cuda" else {"model.filters": 8},
    "Swin-UNETR": {"model": "swin", **({} if DEVICE == "cuda" else {"model.feature_size": 12})},
}
PATIENCE = 1200 if DEVICE == "cuda" else 120
"""Seconds that a setting may take: compilation, two steps to warm up, and the timing."""
SETTINGS: dict[str, dict[str, object]] = {
    "as the reference": {},
    "channels last": {"channels_last": True},
    "bfloat16": {"precision": "bfloat16"},
    "compiled": {"compile": True},
    "channels last, bfloat16, compiled": {"channels_last": True, "precision": "bfloat16", "compile": True},
}


def one(model: str, setting: str) -> None:
    """Time one network with one setting, in this process; print steps a second, forecasts a second and peak MB."""
    import torch

    from retable.platform.config import override
    from retable.platform.worker import Worker
    from retable.tasks.weather.config import Config
    from retable.tasks.weather.data import Batch
    from retable.tasks.weather.learner import ForecastLearner

    class Data:
        size, regions = SIZE, ("roxi_0004",)

    torch.set_num_threads(os.cpu_count() or 1)
    batch = BATCH if model == "3D U-Net" or DEVICE == "cuda" else 1
    config = override(Config(), {"regions": ["roxi_0004"], "batch": batch, **MODELS[model], **SETTINGS[setting]})
    learner = ForecastLearner([config], Data(), Worker(device=DEVICE))
    shape = (batch, 32, SIZE, SIZE)
    sample = Batch(
        torch.randn(batch, 11, 4, SIZE, SIZE),
        torch.randint(0, 2, shape, dtype=torch.uint8),
        torch.randint(0, 2, (batch, SIZE, SIZE), dtype=torch.uint8),
        torch.zeros(batch, dtype=torch.long),
        ("2019/roxi_0004",) * batch,
    )
    steps, forecasts = per_second(lambda: learner.step(sample)), per_second(lambda: learner.forecast(sample))
    status = Path("/proc/self/status").read_text()  # not getrusage: what the parent once held would count
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    if DEVICE == "cuda":
        peak = torch.cuda.max_memory_allocated() / 1e6
    print(f"{steps} {batch * forecasts} {peak}")


def per_second(call: Any, seconds: float = 4.0) -> float:
    """Return calls a second, after two that warm up."""
    import torch

    for _ in range(2):
        call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        count += 1
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return count / (time.perf_counter() - start)


def measure() -> dict[str, Any]:
    found: dict[str, Any] = {"size": SIZE, "device": DEVICE}
    for model in MODELS:
        reference = 0.0
        for setting in SETTINGS:
            command = [sys.executable, "-c", f"from benchmarks.weather_step import one; one({model!r}, {setting!r})"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            except subprocess.TimeoutExpired:  # CPUs emulate what they lack, and compile slowly
                found[f"{model}, {setting}"] = f"took longer than {PATIENCE} s"
                continue
            if done.returncode:
                found[f"{model}, {setting}"] = "failed: " + done.stderr.strip().splitlines()[-1]
                continue
            steps, forecasts, peak = map(float, done.stdout.split())
            reference = reference or steps
            found[f"{model}, {setting}: steps/s"] = steps
            found[f"{model}, {setting}: ratio"] = steps / reference
            found[f"{model}, {setting}: forecasts/s"] = forecasts
            found[f"{model}, {setting}: peak MB"] = peak
    return found
