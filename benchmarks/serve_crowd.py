"""Serving a crowd: policies asked by 64, 256 and 600 clients at once, and beside a thousand bodies that never end."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmarks import serving
from retable.serve.client import Client

CLIENTS, SECONDS = (64, 256, 600), 20.0
SLOW, BESIDE = 1000, 16
"""Bodies that never end, and the clients that are measured beside them."""


def measure() -> dict[str, Any]:
    """Return answers a second, waits and refusals for each number of clients, from the zoo on this machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    result: dict[str, Any] = {}
    with serving.served("rl", "--zoo") as server:
        serving.calls(server.client)["rl"](0)
        for clients in CLIENTS:
            result |= asyncio.run(crowd(server.client, clients))
        alone = asyncio.run(crowd(server.client, BESIDE))
        beside = asyncio.run(crowd(server.client, BESIDE, SLOW))
        result |= alone | {f"slow_bodies/{key}": value for key, value in beside.items()}
    return result


async def crowd(client: Client, clients: int, slow: int = 0) -> dict[str, Any]:
    """Run clients that ask again after each answer, with a pause after a refusal; return rate, waits and statuses."""
    model = next(model for model in client.models() if model["task"] == "rl")
    body = json.dumps({"observations": [[0.1] * int(model["about"]["states"])], "seed": 0}).encode()
    url = urlsplit(client.url)
    head = f"POST /v1/rl/{model['name']} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    given_up: Counter[int] = Counter()
    stuck = [asyncio.ensure_future(never_ends(url.netloc, head + body[:1], given_up)) for _ in range(slow)]
    await asyncio.sleep(3 if slow else 0)
    waits: list[float] = []
    statuses: Counter[int] = Counter()
    end = time.monotonic() + SECONDS
    await asyncio.gather(*(asks(url.netloc, head + body, end, waits, statuses) for _ in range(clients)))
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    results = {"per_s": len(waits) / SECONDS, **percentiles(waits), "refused": statuses[503]}
    results |= {f"status_{status}": count for status, count in statuses.items() if status not in (200, 503)}
    results |= {"given_up_408": given_up[408]} if slow else {}
    return {f"{clients}/{key}": value for key, value in results.items()}


def percentiles(waits: Sequence[float]) -> dict[str, float]:
    """Return the tails of answers; nothing where there was none."""
    return serving.percentiles(waits) if waits else {}


async def asks(netloc: str, request: bytes, end: float, waits: list[float], statuses: Counter[int]) -> None:
    """Ask on one connection until the end; note how long answers took."""
    reader, writer = await connect(netloc)
    while time.monotonic() < end:
        begun = time.monotonic()
        try:
            writer.write(request)
            status, headers = await answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            statuses[0] += 1
            reader, writer = await connect(netloc)
            continue
        statuses[status] += 1
        if status == 200:
            waits.append(time.monotonic() - begun)
        else:
            await asyncio.sleep(float(headers.get("retry-after", "1")))
    writer.close()


async def never_ends(netloc: str, part: bytes, given_up: Counter[int]) -> None:
    """Send the beginning of a request, and wait for what is said to it; again, a second after it is given up."""
    while True:
        reader, writer = await connect(netloc)
        writer.write(part)
        try:
            given_up[(await answer(reader))[0]] += 1
        except (OSError, asyncio.IncompleteReadError):
            given_up[0] += 1
        writer.close()
        await asyncio.sleep(1)


async def connect(netloc: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection."""
    host, _, port = netloc.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read an answer; return its status and headers."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    await reader.readexactly(int(headers.get("content-length", "0")))
    return int(first.split()[1]), headers
