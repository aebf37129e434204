"""Style transfer of images and videos (Shen and Wang): an image is optimised, or a network is trained."""

from __future__ import annotations

from retable.platform.task import Dataset, Task
from retable.tasks.style.config import Config, View
from retable.tasks.style.data import Photographs, arrays, read
from retable.tasks.style.learner import build_learner, cost, group, keep, validate
from retable.tasks.style.predict import evaluate, predict, view_cost
from retable.tasks.style.prepare import describe, prepare
from retable.tasks.style.scales import SCALES
from retable.tasks.style.tables import TABLES

TASK = Task(
    name="style",
    about="pictures and videos in the manner of a painting",
    version=1,
    config=Config,
    view=View,
    dataset=Dataset(
        where=lambda config: f"style/{config.data}",
        prepare=prepare,
        read=read,
        arrays=arrays,
        open=Photographs,
        describe=describe,
        streams=True,
    ),
    learner=build_learner,
    validate=validate,
    predict=predict,
    evaluate=evaluate,
    keep=keep,
    predicts_on_gpu=True,
    group=group,
    cost=cost,
    view_cost=view_cost,
    metrics=("style_error", "content_error", "validation_loss", "final_loss"),
    tables=TABLES,
    scales=SCALES,
)
