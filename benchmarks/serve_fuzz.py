"""Serving what nobody should send: Schemathesis on the whole API, and broken files; what the server lets happen.

Needs `pip install schemathesis`. Schemathesis sends for ten minutes, or `RETABLE_FUZZ_MINUTES`.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np

from benchmarks import serving
from retable.serve.client import Answer, Client, ServeError

MINUTES = 10.0
ROUND = 25
"""Requests that Schemathesis makes up for each endpoint and mode in a turn; then it starts again with another seed."""
BINARY = (
    *(
        "image/jpeg",
        "image/png",
        "image/webp",
        "image/gif",
        "image/tiff",
        "image/bmp",
        "audio/wav",
        "audio/flac",
        "audio/ogg",
        "audio/mpeg",
        "video/mp4",
    ),
    *("video/webm", "video/quicktime", "application/x-hdf5", "application/x-npz", "application/octet-stream"),
)
"""Kinds of bodies that are no JSON."""
BROKEN = 400
"""Broken files for each endpoint that takes files."""


@dataclass
class Seen:
    """Counts of the answers."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    """Endpoint and kind of fault -> the first of them."""

    def note(self, endpoint: str, answer: Answer, denied: str = "") -> None:
        """Count an answer, and keep what it should never be: an error of the server, a leak, what the schema denies."""
        self.counts[f"status_{answer.status}"] += 1
        leaked = serving.problems(answer.body) if answer.status >= 400 else ""
        # 503 with Retry-After is an answer: too much at once. 501 says what this machine lacks.
        refused = answer.status == 501 or (answer.status == 503 and "retry-after" in answer.headers)
        if answer.status >= 500 and not refused:
            self.faults.setdefault(f"{endpoint}: {answer.status}", denied or f"{answer.body[:200]!r}")
        if leaked:
            self.faults.setdefault(f"{endpoint}: leaks {leaked!r}", f"{answer.body[:200]!r}")
        if denied:
            self.faults.setdefault(f"{endpoint}: {answer.status} is not as documented", denied)


def measure() -> dict[str, Any]:
    """Return how many requests were sent, what came back, and what should never have."""
    minutes = float(os.environ.get("RETABLE_FUZZ_MINUTES", MINUTES))
    with serving.served("--zoo") as server:
        for call in serving.calls(server.client).values():
            call(0)
        before = server.replicas
        present = set(files(server.folder))
        seen = Seen()
        made_up(server.client, minutes, seen)
        generated = seen.counts.total()
        broken(server.client, seen)
        for name, call in serving.calls(server.client).items():  # whatever was refused has taken nothing for ever
            try:
                call(0)
            except ServeError as error:
                seen.faults[f"{name} afterwards"] = str(error)
        left = [str(path.relative_to(server.folder)) for path in sorted(set(files(server.folder)) - present)]
        return {
            "minutes": minutes,
            "generated": generated,
            "broken_files": seen.counts.total() - generated,
            **dict(sorted(seen.counts.items())),
            "faults": len(seen.faults),
            "first_faults": seen.faults,
            "files_left": left[:10],
            "replicas_restarted": sum(
                len(set(pids) - set(server.replicas.get(name, []))) for name, pids in before.items()
            ),
        }


def files(folder: Path) -> Iterator[Path]:
    """Yield files that a request could have left: all but logs and what was added on purpose."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "log" and "results/served" not in str(path):
            yield path


def made_up(client: Client, minutes: float, seen: Seen) -> None:
    """Send valid and invalid requests of Schemathesis to each endpoint, repeatedly, with other seeds."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings, strategies
    from hypothesis.errors import Unsatisfiable
    from schemathesis import GenerationMode

    bodies = strategies.sampled_from(sorted(corpus().values())) | strategies.binary(max_size=2000)
    for kind in BINARY:
        schemathesis.openapi.media_type(kind, bodies)
    how: dict[str, Any] = {"max_examples": ROUND, "deadline": None, "database": None}
    how |= {"suppress_health_check": list(HealthCheck), "phases": [Phase.generate]}
    schema = schemathesis.openapi.from_url(f"{client.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    end = time.monotonic() + 60 * minutes
    for turn in itertools.count():
        for operation, mode in itertools.product(operations, GenerationMode):
            if time.monotonic() > end:
                return
            send = sender(f"{operation.method.upper()} {operation.path}", seen)
            try:
                seed(turn)(settings(**how)(given(operation.as_strategy(generation_mode=mode))(send)))()
            except (Unsatisfiable, SkipTest):  # nothing to make up: no parameters and no body that can be wrong
                pass


def sender(endpoint: str, seen: Seen) -> Callable[[Any], None]:
    """Return what sends a request that was made up, and notes what came back and whether the document allows it."""
    from schemathesis.core.failures import FailureGroup
    from schemathesis.specs.openapi import checks

    conforms = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]

    def send(case: Any) -> None:
        got, denied = case.call(timeout=150), ""
        try:
            case.validate_response(got, checks=conforms)
        except FailureGroup as group:
            denied = "; ".join(f"{failure.title}: {failure.message}"[:300] for failure in group.exceptions)
        headers = {key.lower(): value[0] for key, value in got.headers.items()}
        seen.note(endpoint, Answer(got.status_code, got.content, headers), denied)

    return send


def broken(client: Client, seen: Seen) -> None:
    """Send files that are cut, changed, foreign, empty and huge by their headers."""
    draw = random.Random(0)
    models = {model["task"]: model for model in client.models()}
    places = {
        "style": f"/v1/style/{models['style']['name']}",
        "weather": "/v1/weather",
        "audio": "/v1/audio",
        "rl": f"/v1/rl/{models['rl']['name']}",
    }
    inputs = corpus()
    once = Client(client.url, tries=1)
    for task, path in places.items():
        query: dict[str, object] = {"region": models["weather"]["about"]["regions"][0]} if task == "weather" else {}
        for _ in range(BROKEN):
            kind = draw.choice(sorted(inputs))
            body = damaged(inputs[kind], draw)
            answer = once._once("POST", path + "?" + "&".join(f"{k}={v}" for k, v in query.items()), body, {})
            seen.note(f"{task} {kind}", answer)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return a file with some of it lost, changed, or doubled."""
    way = draw.choice(("cut", "flip", "flip", "flip", "zero", "double", "empty"))
    if way == "cut":
        return data[: draw.randrange(len(data))]
    if way == "double":
        return data + data
    if way == "empty":
        return b""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 4, 64))):
        changed[draw.randrange(len(changed))] = 0 if way == "zero" else draw.randrange(256)
    return bytes(changed)


def corpus() -> dict[str, bytes]:
    """Return small whole files of the kinds that endpoints take, and of some that none does."""
    import h5py
    import soundfile
    from PIL import Image

    inputs = {"png": serving.photograph(64), "json": b'{"observations": [[0, 0, 0]], "seed": 1}', "text": b"hello" * 50}
    picture = Image.open(io.BytesIO(inputs["png"]))
    for kind in ("JPEG", "GIF", "WEBP", "TIFF", "BMP"):
        file = io.BytesIO()
        picture.save(file, kind)
        inputs[kind.lower()] = file.getvalue()
    images = np.zeros((4, 11, 36, 36), np.float32)
    file = io.BytesIO()
    np.savez_compressed(file, images=images)
    inputs["npz"] = file.getvalue()
    file = io.BytesIO()
    with h5py.File(file, "w") as hdf5:
        hdf5["REFL-BT"] = images
    inputs["hdf5"] = file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("images.npy", b"\x93NUMPY\x01\x00" + bytes(50_000_000))
    inputs["bomb"] = file.getvalue()
    sound = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    for kind in ("WAV", "FLAC", "OGG"):
        file = io.BytesIO()
        soundfile.write(file, sound, 16_000, format=kind)
        inputs[kind.lower()] = file.getvalue()
    return inputs
