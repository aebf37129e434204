"""Retrieval: words in, recordings of an index out, and the recordings themselves."""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from ray import serve

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.serve.deployments.recordings import folder_of, own_index, shown, take_in
from retable.serve.deployments.served import Served, raised, together
from retable.serve.ingress.limits import LIMITS
from retable.serve.ingress.replies import Problem, Reply, json_reply, returns_problems, send, wrong
from retable.tasks.audio.export import read_export
from retable.tasks.audio.tools.embed.embedder import BATCH, Embedder
from retable.tasks.audio.tools.search.hits import judged, tags
from retable.tasks.audio.tools.search.index import indexed
from retable.tasks.audio.tools.search.search import Index, check_model, open_index, p_value, refresh, search

Vector = Float32[np.ndarray, " dimension"]
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
    return {identity(file.path): index.folder / file.path for file in index.files}


class AudioIndex:
    """A pair of encoders, and the index that was made with it, as it lies there now."""

    def __init__(self, embedder: Embedder, out: Path) -> None:
        self.embedder, self.index = embedder, open_index(out)
        check_model(self.index.info, embedder, out)
        self.recordings = recordings(self.index)

    def refresh(self) -> None:
        """Load what was added to the index since the last call.

        Raises:
            Problem: where the index was made anew with another model.
        """
        try:
            self._have(refresh(self.index))
        except UserError as error:
            raise Problem(503, "the index was made anew with another model; restart the server") from error

    def found(self, vector: Vector, top: int) -> Reply:
        """Return the recordings nearest to words, and how unusual that is (`p`, `verdict`; see `null.py`).

        Args:
            vector: the words', as the model embeds them.
            top: recordings, at most.
        """
        self.refresh()
        index, refit = self.index, self.index.refit
        listed = search(index, refit.apply(vector[None])[0] if refit else vector, top)
        hits = [
            {
                "id": identity(hit.file),
                "file": shown(hit.file, index.folder),
                "score": round(hit.score, 6),
                "offset": hit.offset,
                "tags": tags(hit.file),
            }
            for hit in listed
        ]
        return json_reply({"hits": hits, **judged(listed, p_value(index, listed, self.embedder))})

    def add(self, body: bytes, name: str, storage: Storage) -> Reply:
        """Add a recording, so that the next query finds it; one at a time.

        Raises:
            Problem: where it is none that is taken.
        """
        self.refresh()
        index, kept, seconds = take_in(body, name, self.index, self.embedder, folder_of(storage))
        self._have(index)
        file = indexed(index, kept)
        entry = {"id": identity(file), "file": shown(file, index.folder), "seconds": round(seconds, 3)}
        return json_reply(entry, 201, (("Location", f"/v1/audio/{entry['id']}"),))

    def _have(self, index: Index) -> None:
        if index is not self.index:
            self.index, self.recordings = index, recordings(index)


Query = tuple[AudioIndex, str]
"""A model, and the words that it embeds."""


def vectors(queries: Sequence[Query]) -> list[Vector | Exception]:
    """Embed the words of each query; those to one model together."""

    def embedded(queries: Sequence[Query]) -> Iterable[Vector]:
        return queries[0][0].embedder.words([words for _, words in queries])

    return together(queries, embedded, lambda query: id(query[0]))


class Retrieval(Served[AudioIndex]):
    """Holds a pair of encoders, and maps the index that was made with it.

    Every replica may add to the index: the index lets one process write at a time, and all see what was written.
    """

    def __init__(self, storage: Storage, task: str, index: str, places: int, wait: float) -> None:
        super().__init__(storage, task, places, wait)
        self.folder = index

    def load(self, data: bytes, name: str) -> AudioIndex:
        """Return the encoders in a file, with their index."""
        embedder = read_export(data, name).embedder()
        return AudioIndex(embedder, Path(self.folder) if self.folder else own_index(embedder, self.storage))

    def probe(self, model: AudioIndex) -> None:
        """Embed a word and refresh the index."""
        model.embedder.words(["ready"])
        model.refresh()

    @returns_problems
    async def search(self, sha256: str, words: str, top: int) -> Reply:
        """Find the recordings that fit words best."""
        if not any(letter.isalnum() for letter in words):
            raise wrong("q", "nothing that can be heard", "words")

        async def found() -> Reply:
            shelf = await self.model(sha256)
            return await asyncio.to_thread(shelf.found, raised(await self.batch((shelf, words))), top)

        return await self.line.run(found)

    @returns_problems
    async def recording(self, sha256: str, name: str, wanted: str) -> Reply:
        """Return a recording by its identity, or a range of its bytes."""
        shelf = await self.model(sha256)
        if name not in shelf.recordings:
            await asyncio.to_thread(shelf.refresh)
        if name not in shelf.recordings:
            raise Problem(404, "no such recording; GET /v1/audio?q=WORDS names some")
        path = shelf.recordings[name]
        media = MEDIA.get(path.suffix.lower(), "application/octet-stream")
        return await asyncio.to_thread(send, path, wanted, LIMITS.recording_bytes, media)

    @returns_problems
    async def add(self, sha256: str, body: bytes, name: str) -> Reply:
        """Add a recording."""
        shelf = await self.model(sha256)
        return await self.alone.run(lambda: asyncio.to_thread(shelf.add, body, name, self.storage))

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def batch(self, queries: list[Query]) -> list[Vector | Exception]:
        """Embed queries together, in a thread, so that health checks are answered meanwhile."""
        return await asyncio.to_thread(vectors, queries)
