"""Serving 10,000 requests while replicas, ingress, proxy and controller are killed at random: lost requests and memory.

`RETABLE_CHAOS_REQUESTS` asks for fewer.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil

from benchmarks import serving

REQUESTS, CLIENTS = 10_000, 16
EVERY = (4.0, 12.0)
"""Seconds between two kills, at least and at most."""
SHARES = {"rl": 60, "audio": 33, "weather": 5, "style": 2}
"""Of 100 requests, by kind."""
PROCESS = re.compile(r"ray::(?:ServeReplica:\w+:(\w+)|(ProxyActor)|(ServeController))")


def measure() -> dict[str, Any]:
    """Return what was answered, lost and killed, and the server's memory before and after."""
    count = int(os.environ.get("RETABLE_CHAOS_REQUESTS", REQUESTS))
    with serving.served("--zoo") as server:
        calls = serving.calls(server.client)
        warm = Load(calls, count // 20)
        warm.run()
        before = server.memory()
        load, killed, over = Load(calls, count), Counter[str](), threading.Event()
        killer = threading.Thread(target=kill, args=(server, killed, over))
        killer.start()
        begun = time.monotonic()
        try:
            load.run()
        finally:
            over.set()
            killer.join()
        seconds = time.monotonic() - begun
        Load(calls, count // 20).run()  # all is back
        after = server.memory()
        return {
            "requests": count,
            "seconds": seconds,
            **{f"{name}/answered": load.answered[name] for name in calls},
            **{f"{name}/lost": load.lost[name] for name in calls},
            "first_losses": load.reasons[:5],
            **{f"killed/{name}": number for name, number in sorted(killed.items())},
            "longest_s": load.longest,
            "memory_before_mb": before / 1e6,
            "memory_after_mb": after / 1e6,
            "memory_growth": after / before - 1,
        }


class Load:
    """Requests of all kinds, mixed, each sent once through our client."""

    def __init__(self, calls: dict[str, serving.Call], count: int) -> None:
        self.calls = calls
        self.places = iter(random.Random(0).choices(list(calls), [SHARES[name] for name in calls], k=count))
        self.lock = threading.Lock()
        self.answered: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.reasons: list[str] = []
        self.longest = 0.0

    def run(self) -> None:
        """Ask, of all clients, until everything was asked."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(self.client, range(CLIENTS)))

    def client(self, _: int) -> None:
        """Ask again once it is answered."""
        while True:
            with self.lock:
                name = next(self.places, None)
                number = self.answered.total()
            if name is None:
                return
            begun = time.monotonic()
            try:
                self.calls[name](number)
                failure = ""
            except Exception as error:  # whatever it is, the request is lost
                failure = f"{name}: {error!r}"
            with self.lock:
                (self.lost if failure else self.answered)[name] += 1
                self.reasons += [failure] if failure else []
                self.longest = max(self.longest, time.monotonic() - begun)


def kill(server: serving.Server, killed: Counter[str], over: threading.Event) -> None:
    """Kill one process of Serve with -9 now and then: of a kind, and of those of that kind, drawn at random."""
    draw = random.Random(0)
    while not over.wait(draw.uniform(*EVERY)):
        pids = processes(server)
        if pids:
            kind = draw.choice(sorted(pids))
            with suppress(ProcessLookupError):
                os.kill(draw.choice(pids[kind]), signal.SIGKILL)
                killed[kind] += 1


def processes(server: serving.Server) -> dict[str, list[int]]:
    """Return Serve's processes: the name of a deployment, or what Ray calls them -> process ids."""
    pids: dict[str, list[int]] = {}
    for process in psutil.Process(server.process.pid).children(recursive=True):
        try:
            named = PROCESS.match(" ".join(process.cmdline()))
        except psutil.Error:
            continue
        if named:
            pids.setdefault(next(filter(None, named.groups())), []).append(process.pid)
    return pids
