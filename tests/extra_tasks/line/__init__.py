"""A fifth task in four short files: fit a straight line to noisy points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retable.platform.spec.claims import Verdict, untested
from retable.platform.spec.table import Claim, Column, Combined, Figure, Results, Row, Table
from retable.platform.spec.task import Dataset, Scale, Task
from retable.tasks.line.config import Config, View
from retable.tasks.line.data import Points, prepare, read, where
from retable.tasks.line.learner import LineLearner, evaluate, mean, predict, validate

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

SLOW = Row(label="slow", overrides={"rate": 0.001}, view={}, published={"RMSE": 1.0})
FAST = Row(label="fast", overrides={"rate": 0.1}, view={}, published={"RMSE": 0.1})


def better(results: Results) -> Verdict:
    """Test whether the fast rate ends closer to the line than the slow one."""
    if FAST not in results or SLOW not in results:
        return untested("rows are missing")
    fast, slow = results.values(FAST, "rmse").mean(), results.values(SLOW, "rmse").mean()
    return Verdict("holds" if fast < slow else "does not hold", f"rmse {fast:.3f} against {slow:.3f}")


def draw(results: Results) -> Drawing:
    """Draw the loss over training, a line a run."""
    from matplotlib.figure import Figure as Drawing  # it takes half a second of every process

    figure = Drawing()
    axis = figure.subplots()
    for label, replicates in results.replicates.items():
        for replicate in replicates:
            axis.plot([row["loss"] for row in replicate.history], label=label)
    return figure


FIGURE = Figure(
    title="Loss over training",
    rows=[Row(label="slow", overrides={"rate": 0.001}), Row(label="fast")],
    over={"seed": (0, 1)},
    draw=draw,
)

TABLE = Table(
    title="Error of a fitted line",
    rows=[
        SLOW,
        FAST,
        Row(label="fast, first epoch", overrides={}, view={"epoch": 1}),
        Row(label="fine-tuned", overrides={"init": "parent", "rate": 0.01}, view={}),
        Combined(label="mean of both", of=("slow", "fast"), combine=mean),
        Row(label="as printed", overrides=None, published={"RMSE": 0.2}),
    ],
    columns=[Column(header="RMSE", metric="rmse", format=".3f")],
    over={"seed": (0, 1)},
    claims=[Claim(text="A fast rate fits better.", check=better)],
)

TASK = Task(
    name="line",
    about="a straight line",
    version=1,
    config=Config,
    view=View,
    dataset=Dataset(
        where=where,
        prepare=prepare,
        read=read,
        open=Points,
        describe=lambda info: f"{info['points']} generated points",
        caution=lambda info: info.get("caution", ""),
        published=lambda info: info.get("published", False),
    ),
    learner=LineLearner,
    validate=validate,
    predict=predict,
    evaluate=evaluate,
    group=lambda config: config,
    cost=lambda config: 0.01 * config.epochs,
    view_cost=lambda config, view: 0.01,
    metrics=("rmse", "slope"),
    tables=lambda: {"table1": TABLE, "figure1": FIGURE},
    scales=lambda: {
        "smoke": Scale(about="seconds"),
        "quick": Scale(about="seconds"),
        "small": Scale(about="seconds"),
        "paper": Scale(about="seconds"),
    },
)
