"""The model cache that the deployments of all tasks share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch

from retable.platform.store.storage import Storage
from retable.serve.launch.models import Model, models_of, read

T = TypeVar("T")
THREADS = 1
"""Torch computes with so many in each replica: no more than the CPUs that it reserves, rounded up."""


class ModelCache(Generic[T]):
    """The models of a task that a replica holds, by their digests.

    On an update the new models are loaded beside the old, so that each request finds its model. Models requested before
    `reconfigure` reaches this replica, or after their removal, are loaded on demand: only the ingress decides what is
    served.
    """

    def __init__(self, task: str, storage: Storage, load: Callable[[bytes, str], T]) -> None:
        """Hold nothing yet.

        Args:
            task: whose models.
            storage: where their files lie.
            load: a file and its name -> what answers; it is asked once, so that what is made at the first use is made.
        """
        torch.set_num_threads(THREADS)
        self.task, self.storage, self.load = task, storage, load
        self.models: dict[str, T] = {}

    def __getitem__(self, sha256: str) -> T:
        """Return the model of a digest.

        Raises:
            UserError: where its file is not on the storage, or another one.
        """
        if sha256 not in self.models:
            self._take(Model(task=self.task, name=self.task, sha256=sha256))
        return self.models[sha256]

    def file(self, sha256: str) -> bytes:
        """Return the file of a digest.

        Raises:
            UserError: where it is not on the storage, or another one.
        """
        return read(Model(task=self.task, name=self.task, sha256=sha256), self.storage)

    def any(self) -> T:
        """Return a model, where all give the same answers: those that an index was made with."""
        return next(iter(self.models.values()))

    async def reconfigure(self, config: Mapping[str, object]) -> None:
        """Hold the models that Serve's `user_config` names, and no others.

        What cannot be loaded is an error at the start; later it is one in the log, and what is served goes on.

        Raises:
            UserError: at the start, where a file is not on the storage, or another one.
        """
        named = [model for model in models_of(config) if model.task == self.task]
        try:
            for model in named:
                if model.sha256 not in self.models:
                    await asyncio.to_thread(self._take, model)
        except Exception:
            if not self.models:
                raise
            logging.getLogger("ray.serve").exception("%s: the models stay as they were", self.task)
            return
        kept = {model.sha256 for model in named}
        self.models = {sha256: model for sha256, model in self.models.items() if sha256 in kept}

    def _take(self, model: Model) -> None:
        self.models[model.sha256] = self.load(read(model, self.storage), model.name)
