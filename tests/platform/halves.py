"""Runs of the toy `halves`, trained, predicted and scored in this process."""

import warnings
from datetime import timedelta

import torch
from torch import distributed

from retable.platform.execute.scoring import predict_one, score_one
from retable.platform.plan.plan import compile_plan
from retable.platform.spec.table import Row, Table
from retable.platform.spec.task import Source, find
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker

WAIT = 300
"""Seconds after which a worker gives up the other."""
HALVES = find("halves")
ROWS = (
    Row(label="slow", overrides={"rate": 0.001}, view={"limit": 2.5}),
    Row(label="fast", view={"limit": 0.1}),
    Row(label="first", view={"limit": 0.1, "epoch": 1}),
)


def planned(storage, *rows, task=HALVES):
    return compile_plan({"halves/t": (task, Table(title="", rows=rows, columns=()))}, storage)


def fit(storage, config, folder, keep, task=HALVES, place=None):
    """Train a run with the bare loop."""
    task.dataset.prepare(config, storage)
    source = Source.of(storage, "line/points")
    columns = task.dataset.read(storage / "data/line/points")
    data = task.dataset.open(columns, source, [config])
    train(task, [config], data, [folder], source.info["digest"], place or Worker(), [keep])


def fit_together(storage, config, folder, task):
    """Train a run with the bare loop in two processes that share its batches: the oracle of Train groups."""
    other = torch.multiprocessing.get_context("spawn").Process(
        target=_fit_half, args=(1, storage, config, folder, task.name), daemon=True
    )
    other.start()
    _fit_half(0, storage, config, folder, task.name)
    other.join(WAIT)
    assert other.exitcode == 0


def _fit_half(rank, storage, config, folder, name):
    limit = timedelta(seconds=WAIT)
    distributed.init_process_group("gloo", f"file://{storage.root}-meet", limit, rank=rank, world_size=2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strides, which cost DDP time
            fit(storage, config, folder, (), find(name), Worker(rank, 2))
    finally:
        distributed.destroy_process_group()


def fill(storage, *rows):
    """Do all that some rows need but for joining; return the plan of what is left."""
    for training in planned(storage, *rows).missing:
        fit(storage, training.config, training.folder, training.keep)
    plan = planned(storage, *rows)
    for each in plan.predictions.values():
        assert predict_one("halves", each.config, each.view, each.folder, each.joined) is None
    for each in plan.unscored:
        assert score_one("halves", each.config, each.view, each.folder) is None
    return planned(storage, *rows)
