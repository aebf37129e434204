"""A line whose steps take and free some 100 MB in pieces, and that says how much memory its process holds."""

import os
from dataclasses import replace

import psutil
import torch

from retable.tasks import line
from retable.tasks.line.learner import LineLearner


class HeavyLearner(LineLearner):
    """Its pieces are as small as activations and weights: glibc keeps such in the arena of the thread."""

    def step(self, batch):
        self.pieces = [torch.ones(250_000) for _ in range(100)]
        return super().step(batch)


def validate(learner, data):
    """Return the process, and its private memory in MB."""
    memory = psutil.Process().memory_info()
    return [{"process": os.getpid(), "private": (memory.rss - memory.shared) / 1e6}]


TASK = replace(line.TASK, name="heavy", about="a heavy line", learner=HeavyLearner, validate=validate, tables=dict)
