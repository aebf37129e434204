"""Text-to-audio retrieval (Primus et al. 2023): PaSST and BERT, contrastive training, rewritten captions."""

from __future__ import annotations

from retable.platform.task import Dataset, Task
from retable.tasks.audio.config import Config, View
from retable.tasks.audio.data import Recordings, arrays, read
from retable.tasks.audio.learner import RetrievalLearner, cost, group, validate
from retable.tasks.audio.predict import evaluate, predict, shards, summarise, view_cost
from retable.tasks.audio.prepare import describe, prepare
from retable.tasks.audio.scales import SCALES
from retable.tasks.audio.tables import TABLES

TASK = Task(
    name="audio",
    about="the recording that a sentence describes",
    version=2,
    config=Config,
    view=View,
    dataset=Dataset(
        where=lambda config: f"audio/{config.data}",
        prepare=prepare,
        read=read,
        arrays=arrays,
        open=Recordings,
        describe=describe,
        streams=True,
    ),
    learner=RetrievalLearner,
    validate=validate,
    predict=predict,
    evaluate=evaluate,
    shards=shards,
    summarise=summarise,
    early_stop=lambda config: ("validation_map10", config.patience) if config.patience else None,
    predicts_on_gpu=True,
    group=group,
    cost=cost,
    view_cost=view_cost,
    metrics=("map10", "r1", "r5", "r10", "a2t_map10", "map10_multi", "map16_multi", "validation_map10", "validation_loss"),
    tables=TABLES,
    scales=SCALES,
)
