"""The task as the platform trains, predicts and scores it; `__init__.py` has what `retable list` shows."""

from __future__ import annotations

from retable.platform.spec.resources import Requirements, Stage
from retable.platform.spec.task import Dataset, Task
from retable.tasks.rl import DESCRIPTION
from retable.tasks.rl.config import Config, View
from retable.tasks.rl.data import check_data, open_transitions, read
from retable.tasks.rl.learner import OfflineLearner, cost, gpu_work, group
from retable.tasks.rl.predict import check, evaluate, predict, view_cost
from retable.tasks.rl.prune.validate import validate
from retable.tasks.rl.recordings.prepare import describe, is_published, prepare


def needs(config: Config, stage: Stage) -> Requirements:
    """Return what a training or a prediction takes: small networks share a GPU; rollouts step simulators, on CPUs."""
    return Requirements(gpus=0.25 if stage == "train" else 0.0)


TASK = Task(
    **vars(DESCRIPTION),
    version=3,
    config=Config,
    view=View,
    dataset=Dataset(
        where=lambda config: f"rl/{config.environment}/{config.data}",
        prepare=prepare,
        read=read,
        open=open_transitions,
        describe=describe,
        published=is_published,
        notes=check_data,
    ),
    learner=OfflineLearner,
    validate=validate,
    predict=predict,
    evaluate=evaluate,
    group=group,
    cost=cost,
    gpu_work=gpu_work,
    needs=needs,
    view_cost=view_cost,
    check=check,
    metrics=("return", "behaviour_share", "score", "return_std", "length"),
    settings=("epochs", "steps"),
)
