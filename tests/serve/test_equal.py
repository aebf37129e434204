"""What is served of a run is what scoring keeps of it: the same input gives the same answer, for each task.

Policies are in `test_episodes.py`: an episode that is served has the return that `retable score` keeps.
"""

import io
import json
from importlib import import_module

import numpy as np
import pytest
import soundfile

from retable.platform.api import TrainedRun
from retable.platform.spec.task import find
from retable.platform.store.storage import Storage
from retable.serve.deployments import audio, maps, style, weather
from retable.tasks.audio import export as audio_export
from retable.tasks.audio.config import View as AudioView
from retable.tasks.audio.tools.search.index import update
from retable.tasks.style import export as style_export
from retable.tasks.style.config import View as StyleView
from retable.tasks.style.files import images
from retable.tasks.weather import export as weather_export
from retable.tasks.weather.config import View as WeatherView
from retable.tasks.weather.data import sequences
from retable.tasks.weather.w4c.frames import Frames
from tests.tiny import DATA, UNET, tiny, trained


def predict(task):
    return import_module(f"retable.tasks.{task}.predict")


@pytest.fixture
def run(tmp_path):
    def make(task, changes=()):
        storage = Storage.open(tmp_path / task)
        DATA[task](storage)
        config = tiny(task, dict(changes))
        return TrainedRun(find(task), trained(task, config, storage, storage), config)

    return make


def test_a_forecast_that_is_served_is_the_one_that_is_scored(run):
    made = run("weather", UNET)
    shard = predict("weather").shards(made.config, WeatherView(epoch=2), made.source)[0]
    kept = predict("weather").predict(made.config, WeatherView(epoch=2), made.weights(2), made.source, shard)
    _, _, region = shard.split("/")
    frames, forecaster = (
        Frames(made.source.folder, made.source.info),
        weather_export.read_export(weather_export.write_export(made), "x"),
    )
    for steps, window in zip(kept["probability"], sequences(made.source, made.config, shard), strict=True):
        seen = frames.satellite(window.series, window.satellite, window.satellite + made.config.inputs)
        body = io.BytesIO()
        np.savez_compressed(body, images=seen)
        (served,) = weather.forecasts(weather.work([forecaster], region, body.getvalue()))
        answer = np.load(io.BytesIO(maps.packed(served)))["probability"]
        assert np.array_equal(answer, steps)


def test_a_painting_that_is_served_is_the_one_that_is_scored(run):
    made = run("style")
    view = StyleView(epoch=2, size=64, strength=0.7, original_colours=True)
    kept = predict("style").predict(made.config, view, made.weights(2), made.source, "all")
    network = style_export.read_export(style_export.write_export(made), "x").style()
    names = [key.removeprefix("photograph/") for key in kept if key.startswith("photograph/")]
    for name in names:
        photograph = style.decode(images.encode_png(kept[f"photograph/{name}"]), 0)
        (painted,) = style.paint([style.StyleRequest(network, photograph.pixels)])
        answer = images.read(style.finish(painted, photograph, 0.7, True, "png").body)
        assert np.array_equal(answer.pixels, kept[f"stylised/{name}"])
    assert names


def test_recordings_are_ranked_as_they_are_scored(run, tmp_path):
    """Each recording is one segment here: an index keeps segments, where scoring joins those of a recording."""
    made = run("audio", {"segment": 1.0, "audio.frames": 100})
    view = AudioView(epoch=2, split="validation")
    shards = predict("audio").shards(made.config, view, made.source)
    similarity = np.concatenate(
        [
            predict("audio").predict(made.config, view, made.weights(2), made.source, shard)["similarity"]
            for shard in shards
        ]
    )
    recordings = predict("audio").split_recordings(made.source, "validation")
    asked = [caption for caption, _ in predict("audio").queries(recordings, "validation")]
    folder = tmp_path / "sounds"
    folder.mkdir()
    for recording, sound in zip(recordings, predict("audio").sounds(made.source, recordings), strict=True):
        soundfile.write(folder / f"{recording.recording}.wav", sound, 32_000, subtype="FLOAT")
    embedder = audio_export.read_export(audio_export.write_export(made), "x").embedder()
    update(folder, tmp_path / "index", embedder)
    shelf = audio.AudioIndex(embedder, tmp_path / "index")
    for caption, row in zip(asked, similarity, strict=True):
        hits = json.loads(shelf.found(embedder.words([caption])[0], len(recordings)).body)["hits"]
        scores = {int(hit["file"].removesuffix(".wav")): hit["score"] for hit in hits}
        wanted = {recording.recording: score for recording, score in zip(recordings, row.tolist(), strict=True)}
        assert scores == pytest.approx(wanted, abs=1e-5)
        assert [hit["score"] for hit in hits] == sorted(scores.values(), reverse=True)
