"""Requests of one replica wait in order for their turn, and no longer than a time that the configuration names."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import TypeVar

from retable.serve.ingress.replies import Problem

T = TypeVar("T")


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
            problem = Problem(503, f"more to do than can be begun within {self.wait:g} s; try again in a moment")
            raise problem.wait(math.ceil(self.wait / 4)) from error
        doing = asyncio.create_task(_begun(work))
        doing.add_done_callback(lambda _: self.places.release())
        return await asyncio.shield(doing)


async def _begun(work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Begin work within a task, which frees its place also where it fails before its first step."""
    return await work()
