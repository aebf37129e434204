"""Serving 10,000 requests of each kind: whether replicas grow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from benchmarks import serving

REQUESTS = 10_000
CLIENTS = 16
"""Each asks again once it is answered."""


def measure() -> dict[str, Any]:
    """Return how much larger each replica is after so many requests of its kind than after the first tenth."""
    with serving.served("--zoo") as server:
        results: dict[str, Any] = {}
        for name, call in serving.calls(server.client, pixels=64).items():
            (pid, *_) = server.replicas[name]
            sizes = []
            for count in (REQUESTS // 10, REQUESTS - REQUESTS // 10):
                with ThreadPoolExecutor(CLIENTS) as pool:
                    list(pool.map(call, range(count)))
                sizes.append(serving.pss(psutil.Process(pid)))
            results |= {f"{name}/memory_mb": sizes[1] / 1e6, f"{name}/growth": sizes[1] / sizes[0] - 1}
            print(f"  {name}: {results[f'{name}/growth']:.1%}", flush=True)
        return results | {"requests_of_each": REQUESTS}
