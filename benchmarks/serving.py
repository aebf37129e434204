"""A server for benchmarks: `retable serve` in processes of its own, asked as its users ask it."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from retable.serve.client import Client

ALONE = "from benchmarks import serving; serving.alone(); from retable.platform.cli import app as cli; cli.main()"


@dataclass(frozen=True)
class Server:
    """A running server."""

    client: Client
    process: subprocess.Popen[str]
    folder: Path
    """Everything that it writes lies below: the storage, and temporary files."""
    seconds: float
    """From the command to the first answer of every model."""

    @property
    def replicas(self) -> dict[str, list[int]]:
        """Deployment -> process ids of its replicas, by what Ray calls its processes."""
        pids: dict[str, list[int]] = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                named = re.search(r"ServeReplica:\w+:(\w+)", " ".join(process.cmdline()))
            except psutil.Error:
                continue
            if named:
                pids.setdefault(named[1], []).append(process.pid)
        return pids

    def memory(self) -> float:
        """Return the bytes of all its processes, shared pages once."""
        processes = [psutil.Process(self.process.pid)]
        processes += processes[0].children(recursive=True)
        return float(sum(pss(process) for process in processes))


def pss(process: psutil.Process) -> int:
    """Return the bytes of a process, shared pages by their share; 0 where it is gone."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


@contextmanager
def served(*words: str, alone: bool = False) -> Iterator[Server]:
    """Serve while the block runs; `alone`: each request by itself, without batches."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as root:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        folder = Path(root)
        (folder / "tmp").mkdir()
        code = ["-c", ALONE] if alone else ["-m", "retable.platform.cli"]
        command = [sys.executable, *code, "serve", *words, "--port", str(port), "--storage", f"{root}/results"]
        environment = {**os.environ, "TMPDIR": f"{root}/tmp", "RAY_TMPDIR": tempfile.gettempdir()}
        start = time.monotonic()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True, text=True
            )
        try:
            client = Client(f"http://127.0.0.1:{port}")
            wait(client, process, folder / "log")
            yield Server(client, process, folder, time.monotonic() - start)
        finally:
            process.terminate()  # SIGINT is ignored below a shell's &
            process.wait(90)


def wait(client: Client, process: subprocess.Popen[str], log: Path, seconds: float = 300) -> None:
    """Wait until the server answers.

    Raises:
        RuntimeError: where it ends before.
    """
    end = time.monotonic() + seconds
    while "is open" not in log.read_text():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the server does not start:\n{log.read_text()}")
        time.sleep(0.1)
    client.models()


def alone() -> None:
    """Turn off batching: deployments answer each request by itself."""
    from dataclasses import replace

    from retable.serve import application

    changed = {
        name: replace(deployment, path=f"benchmarks.serving_alone.{deployment.path.rpartition('.')[2]}")
        for name, deployment in application.DEPLOYMENTS.items()
        if name in ("rl", "style", "audio", "weather")
    }
    application.DEPLOYMENTS = {**application.DEPLOYMENTS, **changed}


@contextmanager
def bare() -> Iterator[Call]:
    """Serve the least there is while the block runs, and give what asks it: the part of a request that is Serve's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.serving_bare", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert process.stdout is not None
    body = json.dumps({"observations": [[0.1] * 17], "seed": 0}).encode()
    try:
        if b"is open" not in process.stdout.readline():
            raise RuntimeError("the bare server does not start")
        client = Client(f"http://127.0.0.1:{port}")
        yield lambda number: client.ask("POST", "/", {}, body)
    finally:
        process.terminate()  # SIGINT is ignored below a shell's &
        process.wait(90)


Call = Callable[[int], object]
"""Asks once; the number tells requests apart."""


def calls(client: Client, pixels: int = 256) -> dict[str, Call]:
    """Return a request of each kind, as small as people send them, pictures of so many pixels across."""
    models = {model["task"]: model for model in client.models()}
    draw = np.random.default_rng(0)
    made: dict[str, Call] = {}
    if "rl" in models:
        name, states = models["rl"]["name"], models["rl"]["about"]["states"]
        rows = draw.normal(size=(64, 1, states)).astype(np.float32)
        made["rl"] = lambda i: client.act(name, rows[i % 64], seed=i)
    if "style" in models:
        picture = photograph(pixels)
        style = models["style"]["name"]
        made["style"] = lambda i: client.stylise(style, picture, format="jpeg")
    if "audio" in models:
        words = ("a dog barks", "rain falls on a roof", "a rooster crows", "waves break", "a clock ticks")
        made["audio"] = lambda i: client.search(words[i % len(words)], top=5)
    if "weather" in models:
        about = models["weather"]["about"]
        images = draw.normal(250, 20, (about["inputs"], 11, about["size"], about["size"])).astype(np.float32)
        region = about["regions"][0]
        made["weather"] = lambda i: client.forecast(images, region)
    return made


def photograph(size: int) -> bytes:
    """Return a PNG file: a photograph's sizes and colours, made of noise that is smooth."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((size, size), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def throughput(call: Call, seconds: float, clients: int = 32) -> float:
    """Return answers a second, of so many clients that each ask again once they are answered."""
    call(0)
    end = time.monotonic() + seconds

    def client(first: int) -> int:
        count = 0
        while time.monotonic() < end:
            call(first + count)
            count += 1
        return count

    start = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        done = sum(pool.map(client, range(0, clients * 1000, 1000)))
    return done / (time.monotonic() - start)


def latencies(call: Call, rate: float, seconds: float, clients: int = 32) -> list[float]:
    """Return the seconds of each answer where requests come at a rate, whether or not those before are answered."""
    count = max(20, round(rate * seconds))
    start = time.monotonic() + 0.1

    def client(number: int) -> float:
        due = start + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        call(number)
        return time.monotonic() - due

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(client, range(count)))


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the tails, in milliseconds."""
    return {f"p{share}_ms": 1000 * float(np.percentile(seconds, share)) for share in (50, 95, 99)}


def problems(body: bytes) -> str:
    """Return what an answer must not hold and does; empty where it holds nothing of it."""
    text = body[:100_000].decode("latin-1")
    if text.startswith("{") and '"detail"' in text:
        text = str(json.loads(body).get("detail", text))
    named = re.search(r"Traceback|site-packages|/tmp/|/home/|/root/|\.py\b|0x[0-9a-f]{6,}", text)
    return named[0] if named else ""
