"""What the deployments of all tasks share: Serve's options, and models that are held while they are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from ray import serve

from retable.platform.storage import Storage
from retable.serve.models import Model, models_of, read

T = TypeVar("T")


def deployment(name: str, *, cpus: float, ongoing: int, queued: int = -1) -> Callable[[type], Any]:
    """Return the decorator of a deployment's class.

    Args:
        name: what Serve, its metrics and its logs call it: the task.
        cpus: reserved for each replica.
        ongoing: requests that a replica has at once.
        queued: requests that wait for one, for each process that asks; more are refused with 503. -1: any number.
    """
    decorate: Callable[[type], Any] = serve.deployment(
        name=name,
        ray_actor_options={"num_cpus": cpus},
        max_ongoing_requests=ongoing,
        max_queued_requests=queued,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=5,
        max_constructor_retry_count=2,
    )
    return decorate


class Held(Generic[T]):
    """The models of a task that a replica holds, by their digests.

    When others are to be served, the new ones are loaded beside the old, so that each request finds what it asks for.
    One that is asked for before the replica hears of it, or after, is loaded then: the ingress alone says what is
    served, and its news and those of the replicas come in any order.
    """

    def __init__(self, task: str, storage: str, threads: int, load: Callable[[bytes, str], T]) -> None:
        """Hold nothing yet.

        Args:
            task: whose models.
            storage: where their files lie.
            threads: Torch computes with so many.
            load: a file and its name -> what answers; it is asked once, so that what is made at the first use is made.
        """
        torch.set_num_threads(threads)
        self.task, self.storage, self.load = task, Storage.open(storage), load
        self.held: dict[str, T] = {}

    def __getitem__(self, sha256: str) -> T:
        """Return the model of a digest.

        Raises:
            UserError: where its file is not on the storage, or another one.
        """
        if sha256 not in self.held:
            self._take(Model(task=self.task, name=self.task, sha256=sha256))
        return self.held[sha256]

    def any(self) -> T:
        """Return a model, where all give the same answers: those that an index was made with."""
        return next(iter(self.held.values()))

    async def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Hold the models that Serve's `user_config` names, and no others.

        What cannot be loaded is an error at the start; later it is one in the log, and what is served goes on.

        Raises:
            UserError: at the start, where a file is not on the storage, or another one.
        """
        named = [model for model in models_of(config) if model.task == self.task]
        try:
            for model in named:
                if model.sha256 not in self.held:
                    await asyncio.to_thread(self._take, model)
        except Exception:
            if not self.held:
                raise
            logging.getLogger("ray.serve").exception("%s: the models stay as they were", self.task)
            return
        kept = {model.sha256 for model in named}
        self.held = {sha256: model for sha256, model in self.held.items() if sha256 in kept}

    def _take(self, model: Model) -> None:
        self.held[model.sha256] = self.load(read(model, self.storage), model.name)
