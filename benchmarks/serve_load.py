"""Serving: start, memory, throughput with and without batches, latency at half load, and what HTTP adds to a model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import serving
from retable.platform.models import zoo
from retable.serve.deployments import rl
from retable.tasks.audio import export as audio_export
from retable.tasks.audio.tools.embed.embedder import BATCH
from retable.tasks.rl.export import read_export

SECONDS = 15.0


def measure() -> dict[str, Any]:
    """Return figures of the four tasks, served from the zoo on this machine."""
    result: dict[str, Any] = {}
    with serving.served("--zoo") as server:
        calls = serving.calls(server.client)
        result |= {"start_s": server.seconds, "memory_mb": server.memory() / 1e6}
        for task, call in calls.items():
            rate = serving.throughput(call, SECONDS)
            result |= {f"{task}/batched_per_s": rate}
            results = serving.percentiles(serving.latencies(call, rate / 2, SECONDS))
            result |= {f"{task}/half_load_{key}": value for key, value in results.items()}
        if "rl" in calls:
            result |= overhead(calls["rl"])
        result |= gains()
    with serving.served("--zoo", alone=True) as server:
        for task, call in serving.calls(server.client).items():
            rate = serving.throughput(call, SECONDS)
            result |= {f"{task}/alone_per_s": rate, f"{task}/batching": result[f"{task}/batched_per_s"] / rate}
    with serving.bare() as call:
        result |= {"serve_alone/per_s": serving.throughput(call, SECONDS), "serve_alone/http_ms": median_ms(call)}
    return result


def overhead(call: serving.Call) -> dict[str, float]:
    """Return the median milliseconds of a request for one action, and of the same in this process."""
    name, file = next(iter(zoo.zoo("rl").items()))
    policy = read_export(file.read_bytes(), name)
    body = json.dumps({"observations": [[0.1] * int(policy.info["states"])], "seed": 0}).encode()

    def inside(number: int) -> None:
        rl.answers([rl.question(policy, body)])

    times = {"http_ms": median_ms(call), "in_process_ms": median_ms(inside)}
    times["added_ms"] = times["http_ms"] - times["in_process_ms"]
    return {f"rl/{key}": value for key, value in times.items()}


def gains() -> dict[str, float]:
    """Return how many times faster a full batch is than its questions one by one, in this process: without HTTP."""
    name, file = next(iter(zoo.zoo("rl").items()))
    policy = read_export(file.read_bytes(), name)
    body = json.dumps({"observations": [[0.1] * int(policy.info["states"])], "seed": 0}).encode()
    questions = [rl.question(policy, body) for _ in range(rl.BATCH)]
    name, file = next(iter(zoo.zoo("audio").items()))
    embedder = audio_export.read_export(file.read_bytes(), name).embedder("cpu")
    words = [f"a dog barks {number} times" for number in range(BATCH)]
    return {
        "rl/model_gain": gain(rl.answers, questions),
        "audio/model_gain": gain(embedder.words, words),
    }


def gain(answer: Callable[[list[Any]], Any], questions: list[Any], repeats: int = 20) -> float:
    """Return the least seconds for questions one by one, over the least for all of them at once, by turns."""
    together, alone = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        answer(questions)
        together.append(time.perf_counter() - start)
        start = time.perf_counter()
        for question in questions:
            answer([question])
        alone.append(time.perf_counter() - start)
    return min(alone) / min(together)


def median_ms(call: serving.Call, count: int = 300) -> float:
    """Return the median milliseconds of an answer, one after another."""
    for number in range(20):
        call(number)
    seconds = []
    for number in range(count):
        start = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - start)
    return 1000 * float(np.median(seconds))
