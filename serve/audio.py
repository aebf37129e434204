"""Retrieval: words in, recordings of an index out, and the recordings themselves."""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import hashlib
import json
import re
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from ray import serve

from retable.serve.answers import Problem, Reply, wrong
from retable.serve.held import Held
from retable.serve.limits import LIMITS, Limits
from retable.tasks.audio.embedder import BATCH, Embedder
from retable.tasks.audio.export import read_export
from retable.tasks.audio.search import Index, check_model, open_index, search

WAIT = 0.005
"""Seconds that the first query of a batch waits for others."""
MEDIA = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".opus": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".aif": "audio/aiff",
    ".aiff": "audio/aiff",
}


def identity(file: str) -> str:
    """Return what requests call a recording: nothing of its path."""
    return hashlib.sha256(file.encode()).hexdigest()[:16]


def recordings(index: Index) -> dict[str, Path]:
    """Return the recordings that an index holds, by their identities."""
    folder = Path(index.info["folder"])
    files = {file for table in index.tables for file in table["file"].unique().to_pylist()}
    return {identity(file): folder / file for file in files}


def found(index: Index, vector: Float32[np.ndarray, " dimension"], top: int) -> Reply:
    """Return the recordings nearest to a vector."""
    hits = [
        {"id": identity(hit.file), "file": hit.file, "score": round(hit.score, 6), "offset": hit.offset}
        for hit in search(index, vector, top)
    ]
    return Reply(json.dumps({"hits": hits}).encode(), "application/json")


def send(path: Path, wanted: str, limits: Limits = LIMITS) -> Reply | Problem:
    """Return a recording, or the range of its bytes that a request names."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start, stop = span(wanted, size, limits.recording_bytes)
            file.seek(start)
            body = file.read(stop - start)
    except OSError:
        return Problem(404, "this recording is gone since the index was made")
    except Problem as problem:
        return problem
    headers: tuple[tuple[str, str], ...] = (("Accept-Ranges", "bytes"),)
    if wanted:
        headers = (*headers, ("Content-Range", f"bytes {start}-{stop - 1}/{size}"))
    return Reply(body, MEDIA.get(path.suffix.lower(), "application/octet-stream"), 206 if wanted else 200, headers)


def span(wanted: str, size: int, most: int) -> tuple[int, int]:
    """Return the bytes [start, stop) that a `Range` header names, `most` of them; all, where there is none.

    Raises:
        Problem: 416 where there are no such bytes, 413 where all are more than is sent at once.
    """
    if not wanted:
        if size > most:
            raise Problem(413, f"the recording has {size} bytes; ask for a range of at most {most}")
        return 0, size
    named = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", wanted.strip(), re.ASCII)
    if not named or not (named[1] or named[2]):
        raise Problem(416, "one range of bytes can be asked for: bytes=FIRST-LAST")
    start = int(named[1]) if named[1] else max(0, size - int(named[2]))
    stop = min(size, int(named[2]) + 1) if named[1] and named[2] else size
    if not start < stop:
        raise Problem(416, f"no such bytes; the recording has {size}")
    return start, min(stop, start + most)


class Retrieval:
    """Holds a pair of encoders, and maps the index that was made with it."""

    def __init__(self, storage: str, index: str):
        self.index = open_index(Path(index))
        self.recordings = recordings(self.index)

        def load(data: bytes, name: str) -> Embedder:
            embedder = read_export(data, name).embedder()
            check_model(self.index.info, embedder, Path(index))
            embedder.words(["ready"])  # what is made at the first use is made now
            return embedder

        self.embedders = Held("audio", storage, load)
        self.reconfigure = self.embedders.reconfigure

    async def search(self, words: str, top: int) -> Reply | Problem:
        """Find the recordings that fit words best."""
        if not any(letter.isalnum() for letter in words):
            return wrong("q", "nothing that can be heard", "words")
        vector = await self.batch(words)
        return await asyncio.to_thread(found, self.index, vector, top)

    async def recording(self, name: str, wanted: str) -> Reply | Problem:
        """Return a recording by its identity, or a range of its bytes."""
        if name not in self.recordings:
            return Problem(404, "no such recording; GET /v1/audio?q=WORDS names some")
        return await asyncio.to_thread(send, self.recordings[name], wanted)

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def batch(self, words: list[str]) -> list[Float32[np.ndarray, " dimension"]]:
        """Embed queries together, in a thread, so that the replica hears meanwhile whether it lives."""
        return list(await asyncio.to_thread(self.embedders.any().words, words))
