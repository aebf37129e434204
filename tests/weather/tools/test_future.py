"""A model cannot know later rain from simulated images: with another future it makes the same forecasts."""

from datetime import datetime, timedelta

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from retable.platform.config import override
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker
from retable.tasks.weather import cli
from retable.tasks.weather.config import Config
from retable.tasks.weather.data import sequences
from retable.tasks.weather.metrics import paired_difference, sequence_counts, summarise
from retable.tasks.weather.predict import events, forecast_windows, load
from retable.tasks.weather.tools.composites import importer
from retable.tasks.weather.w4c.frames import Frames
from tests.weather.tools.composite_files import odim

SIZE, INPUTS, FORECAST, LENGTH, STRETCHES = 12, 2, 2, 7, 24
SHAPE = (2 * 6 * SIZE, 3 * 6 * SIZE)
START = datetime(2021, 7, 14)


def showers(seed):
    """Return a map of showers, mm/h."""
    field = gaussian_filter(np.random.default_rng(seed).normal(size=SHAPE), 7, mode="wrap")
    return np.clip(10 * field / field.std() - 4, 0, 60).round(1)


def archive(folder, replaced):
    """Write stretches of showers that drift; `replaced`: after the inputs of each test sequence it is other weather."""
    folder.mkdir()
    for stretch in range(STRETCHES):
        for frame in range(LENGTH):
            seed = 1000 + stretch if replaced and frame >= INPUTS else stretch
            time = START + timedelta(minutes=15 * (stretch * (LENGTH + 1) + frame))
            rate = np.roll(showers(seed), 2 * frame, axis=1)
            odim(folder / f"{time:%Y%m%d%H%M}.h5", rate, "RATE", time=time)


def imported(tmp_path, name):
    cli.import_(tmp_path / name, str(tmp_path / "results"), name, SIZE, 6, INPUTS, FORECAST)
    return Source.of(Storage.open(tmp_path / "results"), f"weather/{name}")


def trained(source, seed):
    """Train a tiny context network; return its config and the network."""
    task, info = find("weather"), source.info
    changes = {"data": info["name"], "regions": info["regions"], "years": info["years"], "inputs": INPUTS}
    changes |= {"forecast": FORECAST, "model": "context", "model.filters": 8, "model.levels": 2, "window_run": 1}
    changes |= {"batch": 16, "epochs": 1, "steps": 60, "optimizer.learning_rate": 1e-2, "seed": seed}
    chosen = override(Config(), changes | {"loss.positive_weight": 3.0})
    folder = RunFolder.of(source.storage, task, chosen)
    folder.begin(chosen, task.version, {})
    data = task.dataset.open(None, source, [chosen])
    train(task, [chosen], data, [folder], info["digest"], Worker(), [()])
    return chosen, load(chosen, folder.weights(1), info["size"])


def difference(tmp_path):
    """Return by how much the IoU of the true images' forecasts exceeds that with another future, 3 training seeds."""
    for name, replaced in (("true", False), ("other", True)):
        archive(tmp_path / name, replaced)
    true, other = imported(tmp_path, "true"), imported(tmp_path, "other")
    (region,) = true.info["splits"]["test"]
    assert other.info["splits"] == true.info["splits"]
    counts = {"true": [], "other": []}
    for seed in range(3):
        chosen, model = trained(true, seed)
        shard = f"test/2021/{region}"
        for source in (true, other):
            steps = forecast_windows(model, chosen, source, sequences(source, chosen, shard))
            found = {shard: summarise(steps, events(chosen, true, shard))}
            counts[source.info["name"]].append(sequence_counts(found, {shard: 0.5}))
    series, rows = f"2021/{region}/test", true.info["series"][f"2021/{region}/test"]
    images = [Frames(each.folder, each.info).satellite(series, 0, rows["satellite"]) for each in (true, other)]
    rain = [Frames(each.folder, each.info).rate(series, 0, rows["rain"]) for each in (true, other)]
    assert rows["satellite"] == INPUTS * STRETCHES and not np.array_equal(*rain)
    return np.array_equal(*images, equal_nan=True), paired_difference(counts["true"], counts["other"])


@pytest.mark.slow
def test_forecasts_from_images_do_not_depend_on_what_comes_later(tmp_path):
    equal, gained = difference(tmp_path)
    assert equal and gained.low <= 0 <= gained.high


@pytest.mark.slow
def test_images_that_show_later_rain_would_be_found_out(tmp_path, monkeypatch):
    """The same with images of half an hour later: the comparison above can fail."""
    observe = importer.observe

    def peeking(rates, **options):
        return observe(np.concatenate([rates[2:], rates[-2:]]), **options)

    monkeypatch.setattr(importer, "observe", peeking)
    equal, gained = difference(tmp_path)
    assert not equal and gained.low > 0.05
