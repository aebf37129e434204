"""Runs of the toy `halves`, trained, predicted and scored in this process."""

import pyarrow.parquet as pq

from retable.platform.execute.scoring import predict_one, score_one
from retable.platform.plan.plan import compile_plan
from retable.platform.spec.table import Row, Table
from retable.platform.spec.task import Source, find
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker

HALVES = find("halves")
ROWS = (
    Row(label="slow", overrides={"rate": 0.001}, view={"limit": 2.5}),
    Row(label="fast", view={"limit": 0.1}),
    Row(label="first", view={"limit": 0.1, "epoch": 1}),
)


def planned(storage, *rows, task=HALVES):
    return compile_plan({"halves/t": (task, Table(title="", rows=rows, columns=()))}, storage)


def fit(storage, config, folder, keep, task=HALVES):
    """Train a run with the bare loop."""
    task.dataset.prepare(config, storage)
    source = Source.of(storage, "line/points")
    columns = task.dataset.arrays(pq.read_table(f"{storage.root}/data/line/points/points.parquet"))
    train(
        task, [config], task.dataset.open(columns, source, [config]), [folder], source.info["digest"], Worker(), [keep]
    )


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
