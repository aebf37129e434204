"""A tiny data set and runs on it through the platform's loop."""

from pathlib import Path

from retable.platform.config import override
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker
from retable.tasks.weather.config import Config
from retable.tasks.weather.w4c.prepare import index_folder
from tests.weather.files import Layout

SMALL = {
    "data": "tiny",
    "regions": ["boxi_0015", "roxi_0004"],
    "inputs": 4,
    "forecast": 8,
    "batch": 4,
    "window_run": 5,
    "epochs": 2,
    "steps": 3,
    "model": "unet",
    "model.filters": 2,
    "model.levels": 3,
    "optimizer.learning_rate": 1e-3,
}


def config(**changes):
    return override(Config(), SMALL | {name.replace("__", "."): value for name, value in changes.items()})


def make(where, **layout):
    """Write the tiny layout as a data set of a storage."""
    storage = Storage.open(where)
    folder = storage / "data/weather/tiny"
    Layout(**layout).write(Path(folder.root))
    index_folder(folder, "tiny", "own")
    return storage


def run(storage, chosen, place=None, keep=()):
    """Train to the end; the weights of the epochs in `keep` stay too."""
    task = find("weather")
    folder = RunFolder.of(storage, task, chosen)
    source = Source.of(storage, "weather/tiny")
    if (place or Worker()).rank == 0:
        folder.begin(chosen, task.version, {})
    data = task.dataset.open(None, source, [chosen])
    train(task, [chosen], data, [folder], source.info["digest"], place or Worker(), [keep])
    return folder
