"""Every task in small: a data set of a few rows, configs that train on it within a second, and the loop on them.

`work` is one worker of two.
"""

from datetime import timedelta

import numpy as np
import torch
from torch import distributed

from retable.platform.config import override
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker

WAIT = 300
"""Seconds after which a worker gives up the other."""


def lines(storage):
    find("line").dataset.prepare(None, storage)


def transitions(storage):
    from retable.tasks.rl.data import store
    from tests.rl.toys import columns

    made = columns(64, 4, 1)
    made |= {"timeout": np.zeros(64, bool), "episode": np.zeros(64, np.int32), "step": np.arange(64, dtype=np.int32)}
    said = {"source": "own", "environment": "InvertedPendulum", "simulator": "v5", "name": "tiny"}
    said |= {"generated": False, "files": {}, "versions": {}}
    store(made, np.ones(1), storage / "data/rl/InvertedPendulum/tiny", said)


def rain(storage):
    from tests.weather.toys import make

    make(storage.root)


def photographs(storage):
    from retable.tasks.style.files.prepare import make_generated

    make_generated(storage / "data/style/tiny", "tiny", photographs=12, seed=3)


def tones(storage):
    from retable.tasks.audio.collect.recordings import Recording, write_dataset

    def items():
        for number in range(12):
            split = "training" if number < 8 else "validation"
            length = 9_000 + 1_100 * number
            said = (f"tone {number} is heard", f"a sound of {number} waves")
            about = Recording(number, "", "clotho", split, "", length / 32_000, said, "", False, ((), ()), "")
            wave = 0.1 * np.sin(np.arange(length) / 32_000 * 2 * np.pi * 200 * 1.3**number).astype(np.float32)
            yield about, lambda wave=wave: wave

    write_dataset(storage / "data/audio/tiny", "tiny", "own", "waveform", items())


DATA = {"line": lines, "rl": transitions, "weather": rain, "style": photographs, "audio": tones}
"""Task -> what writes its data set to a storage."""

LOSSES = {
    "method.backbone": "squeezenet",
    "method.backbone.weights": "random",
    "method.backbone.normalise": False,
    "method.objective.convention": "relative",
    "method.objective.content_layers": ["fire2"],
    "method.objective.style_layers": ["relu1", "fire2"],
    "method.objective.content_weight": 1.0,
    "method.objective.style_weight": 5.0,
}
UNET = {"model": "unet", "model.filters": 2, "model.levels": 3, "optimizer.learning_rate": 1e-3}
BASE = {
    "line": {"epochs": 2, "batch": 16},
    "rl": {
        "environment": "InvertedPendulum",
        "data": "tiny",
        "actor": [12, 10],
        "critic": [12, 10],
        "vae": [14, 14],
        "batch": 8,
        "steps": 4,
        "epochs": 2,
    },
    "weather": {
        "data": "tiny",
        "regions": ["boxi_0015", "roxi_0004"],
        "inputs": 4,
        "forecast": 8,
        "batch": 4,
        "window_run": 5,
        "epochs": 2,
        "steps": 4,
    },
    "style": LOSSES
    | {
        "data": "tiny",
        "method": "train_network",
        "method.filters": 4,
        "method.size": 48,
        "method.style_size": 64,
        "epochs": 2,
        "steps": 4,
    },
    "audio": {
        "data": "tiny",
        "corpora": ["clotho"],
        "audio.weights": "random",
        "audio.heads": 2,
        "audio.width": 16,
        "audio.depth": 1,
        "audio.patchout_time": 0,
        "audio.patchout_frequency": 0,
        "audio.frames": 50,
        "text": "untrained",
        "text.heads": 2,
        "text.width": 16,
        "text.depth": 1,
        "text.vocabulary": 300,
        "text.dropout": 0.0,
        "segment": 0.5,
        "clip_seconds": 1.0,
        "projection": 8,
        "precision": "float32",
        "temperature": 0.1,
        "learning_rate": 1e-3,
        "warmup": 0.5,
        "batch": 4,
        "epochs": 2,
    },
}
"""Task -> config of a run of eight steps in two epochs."""

IMAGE = LOSSES | {"method": "optimise_image", "method.size": 48}
NOISY = {"text.dropout": 0.3, "audio.patchout_time": 1, "frequency_mask": 20, "time_mask": 10, "shift_bands": True}
VARIANTS = {
    "line": [{}],
    "rl": [{}, {"prune": "snip"}, {"prune": "grasp", "prune.batch": 16}, {"algorithm": "bc"}],
    "weather": [
        UNET,
        UNET | {"model.normalization": "instance", "model.attention": True, "model.activation": "rrelu"},
        {"model": "context", "model.filters": 4, "model.levels": 2},
        {"model": "retrieval", "model.filters": 4},
        {"model": "climatology"},
        {"model": "all_dry"},
        UNET | {"optimizer": "adabelief", "precision": "bfloat16"},
        UNET | {"loss": "soft_iou", "temporal_shift": True, "mask": "zero", "optimizer.fused": True},
        UNET | {"loss": "dice_focal", "crop": "none"},
    ],
    "style": [
        {},
        {"method.crop": "random", "method.upsampling": "resize", "method.output": "raw"},
        IMAGE,
        IMAGE | {"method.optimizer": "adam", "method.scales": [32]},
    ],
    "audio": [{}, NOISY, NOISY | {"chunk": 3}, {"audio": "cnn14", "audio.filters": 2}],
}
"""Task -> changes that give runs with a state of another kind."""

COVERED = [
    ("rl", {}),
    ("rl", {"prune": "snip"}),
    ("weather", UNET),
    ("weather", {"model": "context", "model.filters": 4, "model.levels": 2}),
    ("weather", UNET | {"loss": "soft_iou", "temporal_shift": True, "mask": "zero", "optimizer.fused": True}),
    ("weather", UNET | {"loss": "dice_focal", "crop": "none"}),
    ("style", {}),
    ("audio", {}),
    ("audio", NOISY),
]
"""Those whose states the others have too: optimizer, masks, random numbers and position."""

STEADY = {
    "rl": {"prune": "snip", "steps": 2},
    "weather": UNET | {"steps": 2, "model.normalization": "instance", "model.dropout": 0.0},
    "style": {"steps": 2},
    "audio": {"steps": 2},
}
"""Task -> changes that give a run in which nothing depends on the worker: no dropout, no batch statistics. A line's
noise is drawn in each worker on purpose. Few steps: roundings grow."""


def tiny(name, changes):
    """Return a task's config, with changes; a choice among these brings all of its fields."""
    chosen = tuple(f"{path}." for path in changes if "." not in path)
    base = {path: value for path, value in BASE[name].items() if not path.startswith(chosen)}
    return override(find(name).config(), base | changes)


def opened(name, storage, config):
    """Open a task's data set without Ray, as one process alone does."""
    dataset = find(name).dataset
    source = Source.of(storage, dataset.where(config))
    if dataset.streams:
        return dataset.open(None, source, [config])
    return dataset.open(dataset.read(source.folder), source, [config])


class Stopped(Exception):
    """What ends a training early, as a machine that dies would."""


def trained(name, config, data, where, place=None, stop_at=None, checkpoint_every=0):
    """Train to the end, or until an interruption before step `stop_at` of this call; return the run's folder.

    `data` is the storage that holds the data set, `where` that of the run.
    """
    task, place = find(name), place or Worker()
    folder = RunFolder.of(where, task, config)
    found = opened(name, data, config)
    steps, batches = iter(range(10_000)), found.batches

    def dying(*arguments):
        for batch in batches(*arguments):
            if next(steps) == stop_at:
                raise Stopped
            yield batch

    found.batches = dying
    kept = tuple(range(1, config.epochs + 1))
    digest = Source.of(data, task.dataset.where(config)).info["digest"]
    train(task, [config], found, [folder], digest, place, [kept], checkpoint_every)
    return folder


def timeless(folder):
    """Return a run's log without what a clock says."""
    return [{name: v for name, v in row.items() if name not in ("time", "seconds")} for row in folder.history()]


def work(rank, data, where):
    """Train each task's steady run as one worker of two."""
    torch.set_num_threads(1)
    meet = f"file://{where}/meet"
    distributed.init_process_group("gloo", meet, timedelta(seconds=WAIT), rank=rank, world_size=2)
    try:
        for name, changes in STEADY.items():
            trained(name, tiny(name, changes), Storage.open(data), Storage.open(where), Worker(rank, 2))
    finally:
        distributed.destroy_process_group()
