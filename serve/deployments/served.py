"""The base of the tasks' deployments: the models that a replica holds, the line in which requests wait, and batches."""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Generic, TypeVar, cast

import torch

from retable.platform.models import contract, export
from retable.platform.store.storage import Storage
from retable.serve.ingress.replies import Problem, Reply, returns_problems
from retable.serve.launch.models import models_of

T = TypeVar("T")
R = TypeVar("R")
THREADS = 1
"""Torch computes with so many in each replica: no more than the CPUs that it reserves, rounded up."""


class Line:
    """Admits a number of requests at once.

    Serve's own router retries a full replica after pauses of up to half a second, in which the replica runs dry. So
    Serve sends all there are, and they wait here.
    """

    def __init__(self, places: int, wait: float) -> None:
        """Admit `places` requests at once; refuse one that has waited for `wait` seconds."""
        self.places, self.wait = asyncio.Semaphore(places), wait

    async def run(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Wait for a place, then run; the place stays taken until the work ends, even if its client has gone.

        Raises:
            Problem: 503 where there was no place in time.
        """
        try:
            async with asyncio.timeout(self.wait):
                await self.places.acquire()
        except TimeoutError as error:
            detail = f"more to do than can be begun within {self.wait:g} s; try again in a moment"
            raise Problem(503, detail, wait=math.ceil(self.wait / 4)) from error
        doing = asyncio.create_task(_begun(work))
        doing.add_done_callback(lambda _: self.places.release())
        return await asyncio.shield(doing)


async def _begun(work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Begin work within a task, which frees its place also where it fails before its first step."""
    return await work()


def together(
    requests: Sequence[T],
    answer: Callable[[Sequence[T]], Iterable[R]],
    key: Callable[[T], Hashable],
    size: Callable[[T], float] = lambda _: 0,
    most: float = math.inf,
) -> list[R | Exception]:
    """Return the answers to the requests of one batch, in their order; where some fail, the error in their places.

    Args:
        requests: of one batch.
        answer: computes those that go together.
        key: what those that go together have in common.
        size: of a request.
        most: of those that go together; a larger request goes alone.
    """
    groups: dict[Hashable, list[list[int]]] = {}
    for index, request in enumerate(requests):
        group = groups.setdefault(key(request), [[]])
        if group[-1] and sum(size(requests[other]) for other in (*group[-1], index)) > most:
            group.append([])
        group[-1].append(index)
    answers: dict[int, R | Exception] = {}
    for share in chain.from_iterable(groups.values()):
        try:
            answers |= dict(zip(share, answer([requests[index] for index in share]), strict=True))
        except Exception as error:  # of whatever kind, it is no other group's
            answers |= dict.fromkeys(share, error)
    return [answers[index] for index in range(len(requests))]


def raised(answer: R | Exception) -> R:
    """Return an answer of `together`, or raise the error that is in its place."""
    if isinstance(answer, Exception):
        raise answer
    return answer


class Served(Generic[T]):
    """A deployment of one task; subclasses may override how models are loaded and probed.

    On an update the new models are loaded beside the old, so that each request finds its model. Models requested before
    `reconfigure` reaches this replica, or after their removal, are loaded on demand: only the ingress decides what is
    served.
    """

    def __init__(self, storage: Storage, task: str, places: int, wait: float) -> None:
        """Hold no model yet.

        Args:
            storage: where the files of models lie.
            task: whose models.
            places: requests that are answered at once, beside one that is large.
            wait: seconds that others wait, at most.
        """
        torch.set_num_threads(THREADS)
        self.storage, self.task, self.line, self.alone = storage, task, Line(places, wait), Line(1, wait)
        self.models: dict[str, T] = {}
        self.loading = asyncio.Lock()

    def load(self, data: bytes, name: str) -> T:
        """Return the model in a file."""
        return cast(T, contract.exporter(self.task).read_export(data, name))

    def probe(self, model: T) -> None:
        """Ask a model something small, past all batches; raise if it does not answer."""

    async def model(self, sha256: str, name: str = "") -> T:
        """Return the model of a digest, loaded in threads if the replica does not hold it yet: one at a time.

        It is asked once: what is made at its first use is made now.

        Args:
            sha256: the digest of its file.
            name: what errors call the file; empty: the task.

        Raises:
            Problem: 503 where it cannot be loaded.
        """
        if sha256 not in self.models:
            async with self.loading:
                if sha256 not in self.models:  # another request may have waited for the same one
                    try:
                        data = await asyncio.to_thread(export.kept, self.task, sha256, self.storage)
                        model = await asyncio.to_thread(self.load, data, name or self.task)
                        await asyncio.to_thread(self.probe, model)
                    except Exception as error:
                        logging.getLogger("ray.serve").exception("%s: %s cannot be loaded", self.task, sha256)
                        why = "it cannot be loaded; the server's log says why"
                        raise Problem(503, f"model {sha256[:8]}: {why}", wait=5) from error
                    self.models[sha256] = model
        return self.models[sha256]

    async def reconfigure(self, config: Mapping[str, object]) -> None:
        """Hold the models that Serve's `user_config` names, and no others.

        What cannot be loaded is an error at the start; later it is one in the log, and the models stay as they were.

        Raises:
            UserError: at the start, where a file is not on the storage, or another one.
        """
        wanted = {model.sha256: model.name for model in models_of(config) if model.task == self.task}
        first = not self.models
        try:
            for sha256, name in wanted.items():
                await self.model(sha256, name)
        except Problem as problem:
            if first:
                raise (problem.__cause__ or problem) from None  # Serve shows the last line
            return
        self.models = {sha256: self.models[sha256] for sha256 in wanted}

    @returns_problems
    async def ready(self, sha256s: Sequence[str]) -> Reply:
        """Return an empty reply once each of these models has answered."""
        models = await asyncio.gather(*map(self.model, sha256s))
        for model in models:
            await asyncio.to_thread(self.probe, model)
        return Reply(b"", "text/plain")
