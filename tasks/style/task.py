"""The task as the platform trains, predicts and scores it; `__init__.py` has what `retable list` shows."""

from __future__ import annotations

from retable.platform.spec.resources import Requirements, Stage
from retable.platform.spec.task import Dataset, Task
from retable.tasks.style import DESCRIPTION
from retable.tasks.style.config import Config, TrainNetwork, View
from retable.tasks.style.data import Photographs, read
from retable.tasks.style.files.prepare import describe, is_published, prepare
from retable.tasks.style.learner import build_learner, cost, gpu_work, keep, validate
from retable.tasks.style.predict import evaluate, predict, view_cost


def needs(config: Config, stage: Stage) -> Requirements:
    """Return what a training or a prediction takes: half a GPU, as one picture at a time seldom fills a whole one."""
    return Requirements(gpus=1.0 if stage == "train" and isinstance(config.method, TrainNetwork) else 0.5)


TASK = Task(
    **vars(DESCRIPTION),
    version=2,
    config=Config,
    view=View,
    dataset=Dataset(
        where=lambda config: f"style/{config.data}",
        prepare=prepare,
        read=read,
        open=Photographs,
        describe=describe,
        published=is_published,
        streams=True,
    ),
    learner=build_learner,
    validate=validate,
    predict=predict,
    evaluate=evaluate,
    keep=keep,
    needs=needs,
    cost=cost,
    gpu_work=gpu_work,
    view_cost=view_cost,
    metrics=("style_error", "content_error", "validation_loss", "final_loss"),
    settings=(
        "data",
        "epochs",
        "steps",
        "method.backbone.weights",
        "method.backbone.normalise",
        "method.objective.convention",
        "method.objective.style_weight",
    ),
)
