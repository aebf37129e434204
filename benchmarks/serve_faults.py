"""Serving while replicas are killed with -9, every few seconds for a minute: what is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import serving

MINUTE, EVERY = 60.0, 4.0


def measure() -> dict[str, Any]:
    """Return answered and lost requests of each kind."""
    with serving.served("--zoo") as server:
        return kills(server)


def kills(server: serving.Server) -> dict[str, Any]:
    """Kill a replica of a task every few seconds for a minute, under load by our client and by `curl --retry`."""
    calls = serving.calls(server.client)
    end = time.monotonic() + MINUTE
    counts: dict[str, list[int]] = {name: [0, 0] for name in (*calls, "curl")}

    def ask(name: str) -> None:
        while time.monotonic() < end:
            try:
                calls[name](counts[name][0])
                counts[name][0] += 1
            except Exception:  # whatever it is, the request is lost
                counts[name][1] += 1

    def curl() -> None:
        environment = server.client.models()
        model = next(model for model in environment if model["task"] == "rl")
        body = json.dumps({"observations": [[0.0] * model["about"]["states"]]})
        words = ["curl", "-sf", "--retry", "10", "--retry-all-errors", "--max-time", "120", "--json", body]
        while time.monotonic() < end:
            ended = subprocess.run([*words, f"{server.client.url}/v1/rl/{model['name']}"], capture_output=True)
            counts["curl"][ended.returncode != 0] += 1

    killed = 0
    with ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(ask, name) for name in calls for _ in range(2)] + [pool.submit(curl)]
        draw = random.Random(0)
        while time.monotonic() < end - EVERY:
            time.sleep(EVERY)
            workers = [pid for name, pids in server.replicas.items() if name != "ingress" for pid in pids]
            if workers:
                os.kill(draw.choice(workers), signal.SIGKILL)
                killed += 1
        for job in jobs:
            job.result()
    answered = {f"{name}/answered": done for name, (done, _) in counts.items()}
    return {"kills": killed, **answered, **{f"{name}/lost": lost for name, (_, lost) in counts.items()}}
