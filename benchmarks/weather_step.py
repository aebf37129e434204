"""Training steps and forecasts a second of the 3D U-Net and Swin-UNETR, with and without our settings; peak memory.

The reference is the same network as the competition's code runs it: float32, contiguous, not compiled; each setting
takes turns with it, and the least seconds count. On a CPU the sizes are small; on a GPU
(`RETABLE_BENCH_DEVICE=cuda`) they are the paper's.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import most_resident
from retable.platform.config import override
from retable.platform.train.worker import Worker
from retable.tasks.weather.config import Config
from retable.tasks.weather.data import Batch
from retable.tasks.weather.learner import ForecastLearner

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
    "channels last, fused AdamW": {"channels_last": True, "optimizer.fused": True},
    "compiled": {"compile": True},
}
if DEVICE == "cuda":  # CPUs without AMX emulate bfloat16: a seventh of the speed
    SETTINGS |= {
        "bfloat16": {"precision": "bfloat16"},
        "channels last, bfloat16, compiled": {"channels_last": True, "precision": "bfloat16", "compile": True},
    }


def one(model: str, setting: str) -> None:
    """Time one network with one setting in turn with the reference's, in this process, and print what was found.

    Steps a second, times as fast as the reference's, forecasts a second, times as fast, and peak MB of the setting
    alone.
    """
    learner, sample = made(model, setting)
    for _ in range(2):
        learner.step(sample)
    learner.forecast(sample)
    peak = torch.cuda.max_memory_allocated() / 1e6 if DEVICE == "cuda" else most_resident()
    reference, _ = made(model, next(iter(SETTINGS)))
    step, plain_step = in_turn(lambda: learner.step(sample), lambda: reference.step(sample))
    forecast, plain_forecast = in_turn(lambda: learner.forecast(sample), lambda: reference.forecast(sample))
    forecasts = len(sample.region) / forecast
    print(f"{1 / step} {plain_step / step} {forecasts} {plain_forecast / forecast} {peak}")


def made(model: str, setting: str) -> tuple[ForecastLearner, Batch]:
    """Return a network with a setting, and a batch for it."""

    class Data:
        size, regions = SIZE, ("roxi_0004",)

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    batch = BATCH if model == "3D U-Net" or DEVICE == "cuda" else 1
    config = override(Config(), {"regions": ["roxi_0004"], "batch": batch, **MODELS[model], **SETTINGS[setting]})
    shape = (batch, 32, SIZE, SIZE)
    sample = Batch(
        torch.randn(batch, 11, 4, SIZE, SIZE),
        torch.randint(0, 2, shape, dtype=torch.uint8),
        torch.randint(0, 2, (batch, SIZE, SIZE), dtype=torch.uint8),
        torch.zeros(batch, dtype=torch.long),
        ("2019/roxi_0004",) * batch,
    )
    return ForecastLearner([config], Data(), Worker(device=DEVICE)), sample


def in_turn(*calls: Callable[[], object], seconds: float = 10.0) -> list[float]:
    """Return the least seconds of each call, where they take turns after two that warm up."""
    least = [float("inf")] * len(calls)
    start, rounds = time.perf_counter(), 0
    while rounds < 4 or time.perf_counter() - start < seconds:
        for number, call in enumerate(calls):
            before = time.perf_counter()
            call()
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            if rounds >= 2:
                least[number] = min(least[number], time.perf_counter() - before)
        rounds += 1
    return least


def measure() -> dict[str, Any]:
    """Time all settings of all networks, each in a process of its own."""
    results: dict[str, Any] = {"size": SIZE, "device": DEVICE, "threads": len(os.sched_getaffinity(0))}
    for model, setting in itertools.product(MODELS, SETTINGS):
        command = [sys.executable, "-c", f"from benchmarks.weather_step import one; one({model!r}, {setting!r})"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:  # CPUs compile slowly
            results[f"{model}, {setting}"] = f"took longer than {PATIENCE} s"
            continue
        if done.returncode:
            results[f"{model}, {setting}"] = "failed: " + done.stderr.strip().splitlines()[-1]
            continue
        names = ("steps/s", "step, ratio", "forecasts/s", "forecast, ratio", "peak MB")
        values = map(float, done.stdout.split())
        results |= {f"{model}, {setting}: {name}": value for name, value in zip(names, values, strict=True)}
    return results
