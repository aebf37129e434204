"""The task as the platform trains, predicts and scores it; `__init__.py` has what `retable list` shows."""

from __future__ import annotations

from retable.platform.spec.resources import Requirements, Stage
from retable.platform.spec.task import Dataset, Task
from retable.tasks.audio import DESCRIPTION
from retable.tasks.audio.config import Config, Pretrained, View
from retable.tasks.audio.data import Recordings, read
from retable.tasks.audio.learner import RetrievalLearner, cost, gpu_work, validate
from retable.tasks.audio.predict import check, evaluate, predict, shards, summarise, view_cost
from retable.tasks.audio.prepare.prepare import describe, is_published, prepare


def needs(config: Config, stage: Stage) -> Requirements:
    """Return what a training or a prediction takes: of a pretrained text encoder a whole GPU to train.

    Memory of that is twice its weights and the audio encoder's, as both are read before they go to the GPU; it was not
    measured.
    """
    if not isinstance(config.text, Pretrained):
        return Requirements(gpus=0.25)
    return Requirements(gpus=1.0 if stage == "train" else 0.5, memory=4e9)


TASK = Task(
    **vars(DESCRIPTION),
    version=3,
    config=Config,
    view=View,
    dataset=Dataset(
        where=lambda config: f"audio/{config.data}",
        prepare=prepare,
        read=read,
        open=Recordings,
        describe=describe,
        published=is_published,
        streams=True,
    ),
    learner=RetrievalLearner,
    validate=validate,
    predict=predict,
    evaluate=evaluate,
    shards=shards,
    summarise=summarise,
    early_stop=lambda config: ("validation_map10", config.patience) if config.patience else None,
    needs=needs,
    cost=cost,
    gpu_work=gpu_work,
    view_cost=view_cost,
    check=check,
    metrics=(
        "map10",
        "r1",
        "r5",
        "r10",
        "a2t_map10",
        "map10_multi",
        "map16_multi",
        "validation_map10",
        "validation_loss",
    ),
    settings=("epochs", "steps", "batch", "learning_rate", "patience"),
)
