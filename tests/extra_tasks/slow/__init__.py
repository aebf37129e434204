"""The straight line in two halves, predicted slowly: time to lose a machine in."""

import time
from dataclasses import replace

from retable.platform.spec.table import Column, Combined, Row, Table
from retable.platform.spec.task import Scale
from retable.tasks import halves


def predict(config, view, weights, source, shard):
    time.sleep(3)
    return halves.predict(config, view, weights, source, shard)


def mean(shard, members):
    time.sleep(3)
    return {"y": sum(member.load()["y"] for member in members) / len(members)}


TABLE = Table(
    title="Slow predictions, joined",
    rows=[
        Row(label="slow", overrides={"rate": 0.001}, view={}),
        Row(label="fast", view={}),
        Combined(label="mean", of=("slow", "fast"), combine=mean),
    ],
    columns=[Column(header="hits", metric="hits", format=".3f")],
)

TASK = replace(
    halves.TASK,
    name="slow",
    about="a straight line in two halves, slowly",
    predict=predict,
    tables=lambda: {"table1": TABLE},
    scales=lambda: {"smoke": Scale(about="seconds"), "quick": Scale(about="seconds")},
)
