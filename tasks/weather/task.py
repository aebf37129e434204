"""The task as the platform trains, predicts and scores it; `__init__.py` has what `retable list` shows."""

from __future__ import annotations

from collections.abc import Sequence

from retable.platform.spec.resources import Requirements, Stage
from retable.platform.spec.task import Dataset, Source, Task
from retable.tasks.weather import DESCRIPTION
from retable.tasks.weather.config import AllDry, AllRain, Climatology, Config, Swin, View
from retable.tasks.weather.data import Windows, memory_notes, read
from retable.tasks.weather.learner import ForecastLearner, cost, gpu_work, validate
from retable.tasks.weather.predict import check, evaluate, predict, reads, shards, summarise, view_cost
from retable.tasks.weather.w4c.prepare import caution, describe, holdout_notes, is_published, prepare


def needs(config: Config, stage: Stage) -> Requirements:
    """Return what a training or a prediction takes: a whole GPU for the competition's images, a part for small ones.

    Memory as measured at 36 x 36 pixels (`benchmarks/results/weather_step.json`), where a GPU holds what grows with
    the images.
    """
    if isinstance(config.model, AllDry | AllRain | Climatology):
        return Requirements()
    gpus = 0.25 if config.data.startswith("generated-") else 1.0 if stage == "train" else 0.5
    return Requirements(gpus=gpus, memory=2e9 if isinstance(config.model, Swin) and stage == "train" else 1e9)


def notes(configs: Sequence[Config], source: Source) -> list[str]:
    """Return lines for the plan of a data set: what its hold-outs cost, and the memory of a stream.

    Raises:
        UserError: where the layout's CSV is missing, foreign or damaged.
    """
    return [*holdout_notes(configs, source), *memory_notes(configs, source)]


TASK = Task(
    **vars(DESCRIPTION),
    version=3,  # 3: simulated images know nothing of later rain; named random streams; motion is a view
    config=Config,
    view=View,
    dataset=Dataset(
        where=lambda config: f"weather/{config.data}",
        prepare=prepare,
        read=read,
        open=Windows,
        describe=describe,
        caution=caution,
        published=is_published,
        notes=notes,
        streams=True,
    ),
    learner=ForecastLearner,
    validate=validate,
    predict=predict,
    evaluate=evaluate,
    shards=shards,
    summarise=summarise,
    reads=reads,
    early_stop=lambda config: ("validation_iou", config.patience) if config.patience else None,
    needs=needs,
    cost=cost,
    gpu_work=gpu_work,
    view_cost=view_cost,
    check=check,
    metrics=("iou", "iou_batched", "pod", "far", "precision", "fss", "brier", "validation_iou", "validation_loss"),
    settings=("epochs", "steps", "batch", "patience", "optimizer.learning_rate", "model.checkpointing"),
)
