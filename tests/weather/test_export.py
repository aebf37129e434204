"""A forecaster's file forecasts as its run does; what is none is refused in one line."""

import dataclasses
import json
import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from typer.testing import CliRunner

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.models import export as exported
from retable.platform.models import zoo
from retable.platform.spec.task import Source, find
from retable.platform.store.weights import metadata
from retable.tasks.weather import cli
from retable.tasks.weather.config import Config, View
from retable.tasks.weather.data import sequences
from retable.tasks.weather.export import FORMAT, read_export, write_export
from retable.tasks.weather.model import build
from retable.tasks.weather.w4c.frames import Frames
from tests.weather.toys import SMALL, config, make, run

predict = import_module("retable.tasks.weather.predict")
MODELS = {
    "unet": {"model": "unet", "model.filters": 2, "model.levels": 3},
    "context": {"model": "context", "model.filters": 4, "model.levels": 2},
    "climatology": {"model": "climatology"},
}
SHARD = "test/2019/roxi_0004"


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return make(tmp_path_factory.mktemp("weather") / "results")


@pytest.fixture(scope="module", params=MODELS)
def trained(request, storage):
    base = {name: value for name, value in SMALL.items() if not name.startswith("model")}
    chosen = override(Config(), base | {"epochs": 1} | MODELS[request.param])
    return TrainedRun(find("weather"), run(storage, chosen), chosen)


def images(source, chosen):
    frames = Frames(source.folder, source.info)
    windows = sequences(source, chosen, SHARD)
    return np.stack([frames.satellite(w.series, w.satellite, w.satellite + chosen.inputs) for w in windows])


def test_a_file_forecasts_bit_for_bit_what_predict_keeps(trained, storage):
    source = Source.of(storage, "weather/tiny")
    wanted = predict.predict(trained.config, View(epoch=1), trained.weights(1), source, SHARD)["probability"]
    opened = read_export(write_export(trained), "x")
    assert np.array_equal(opened.steps(images(source, trained.config), "roxi_0004"), wanted)
    assert opened.size == 12 and not opened.forecaster.training


def test_a_file_says_where_it_is_from(trained, monkeypatch):
    said = read_export(write_export(trained, licence="ours"), "x").about
    assert "pixel" not in said  # own files do not say it
    monkeypatch.setattr("retable.tasks.weather.export.pixel_width", lambda info: 1000.0 * (info["size"] == 12))
    assert read_export(write_export(trained), "x").about["pixel"] == 1000
    assert (said["task"], said["fingerprint"], said["epoch"]) == ("weather", trained.fingerprint, 1)
    assert (said["size"], said["regions"], said["licence"]) == (12, ["boxi_0015", "roxi_0004"], "ours")
    assert said["data_digest"] == trained.result["data"] and said["config"]["forecast"] == 8


def test_a_run_whose_images_may_show_later_rain_is_not_written(trained):
    said = {"simulated_satellite": True, "simulation": 1}
    old = dataclasses.replace(trained.source, info={**trained.source.info, **said})
    with pytest.raises(UserError, match="simulated by an older version and show later rain; import them again"):
        write_export(SimpleNamespace(config=trained.config, source=old))


def test_the_command_writes_the_file(trained, tmp_path):
    out, storage = tmp_path / "rain.safetensors", trained.folder.storage.root
    words = ["export", trained.fingerprint, str(out), "--storage", storage]
    ended = CliRunner().invoke(cli.app, words)
    assert ended.exit_code == 0, ended.exception
    assert out.read_bytes() == write_export(trained, licence="")
    ended = CliRunner().invoke(cli.app, [*words[:2], "rain.pt", *words[3:]])
    assert "so that it is known for what it is" in str(ended.exception)


@pytest.fixture(scope="module")
def good(storage):
    chosen = config(epochs=1)
    return write_export(TrainedRun(find("weather"), run(storage, chosen), chosen))


def test_a_retrieval_is_written_with_its_motion_and_read_where_pysteps_is(storage, tmp_path, monkeypatch):
    still = {name: value for name, value in SMALL.items() if not name.startswith("model")} | {"epochs": 1}
    folder = run(storage, override(Config(), {**still, "model": "retrieval", "model.filters": 2}))
    out, words = tmp_path / "rain.safetensors", ["export", folder.fingerprint, "--storage", storage.root]
    ended = CliRunner().invoke(cli.app, [*words, str(out), "--motion", "optical_flow"])
    assert ended.exit_code == 0, ended.exception
    assert read_export(out.read_bytes(), "x").forecaster.model.moves == "optical_flow"
    changed = json.loads(metadata(out.read_bytes())["provenance"]) | {"motion": "pysteps"}
    monkeypatch.setitem(sys.modules, "pysteps", None)
    with pytest.raises(UserError, match=r"^view.motion pysteps: .*pip install"):
        read_export(rewritten(out.read_bytes(), provenance=json.dumps(changed)), "x")


def rewritten(good, **changes):
    """The same weights under other metadata."""
    said = {key: value for key, value in (metadata(good) | changes).items() if value is not None}
    return save(load(good), said)


def test_what_is_no_forecaster_is_refused_in_one_line(good, monkeypatch):
    wide = json.dumps(json.loads(metadata(good)["config"]) | {"model.filters": 1 << 20})
    broken = {
        "no forecaster": save({"x": torch.zeros(1)}),
        "not the whole file": b"hello, this is no model",
        "a damaged forecaster": good[:-10],
        "`config` are missing": rewritten(good, config="[1"),
        "`provenance` are missing": rewritten(good, provenance=None),
        "a damaged forecaster .'size'": rewritten(good, size=None),
        "multiple of 12": rewritten(good, size="13"),
        "has shape": rewritten(good, config=wide),
        "no_such_field": rewritten(good, config='{"no_such_field": 1}'),
    }
    for reason, data in broken.items():
        with pytest.raises(
            UserError, match=f"^evil: .*{reason}.*retable weather export RUN FILE` writes one$"
        ) as caught:
            read_export(data, "evil")
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(exported, "LARGEST", 10)
    with pytest.raises(UserError, match=r"^evil: [\d,]+ bytes; no exported file is larger"):
        read_export(good, "evil")


def test_a_run_on_longer_sequences_than_the_competitions_is_read_again(storage):
    chosen = config(inputs=6, forecast=40)
    weights = build(chosen, 12, chosen.regions).state_dict()
    data = exported.sealed(weights, {**exported.described(FORMAT, chosen, {}), "size": "12"})
    opened = read_export(data, "x")
    assert opened.forecast(np.zeros((1, 6, 11, 12, 12), np.float32), "roxi_0004").shape == (1, 40, 12, 12)


@pytest.mark.parametrize("shape", [(0, 4, 11, 12, 12), (1, 3, 11, 12, 12), (1, 4, 11, 24, 24), (4, 11, 12, 12)])
def test_images_of_another_shape_are_refused(good, shape):
    with pytest.raises(UserError, match="satellite images of shape"):
        read_export(good, "x").forecast(np.zeros(shape, np.float32), "roxi_0004")


def test_a_region_that_it_never_saw_is_forecast_like_any(good):
    opened, images = read_export(good, "x"), np.full((1, 4, 11, 12, 12), 250, np.float32)
    assert np.array_equal(opened.forecast(images, "roxi_0005"), opened.forecast(images, "roxi_0004"))


def test_the_zoo_forecasts_and_says_how_well():
    for name, file in zoo.zoo("weather").items():
        opened = read_export(file.read_bytes(), name)
        said, size = opened.about, opened.size
        assert said["score"]["metric"] == "IoU at 0.5" and 0 < said["score"]["value"] < 1 and said["licence"]
        assert said["command"].startswith("retable train weather --scale small") and "--storage" not in said["command"]
        assert said["version"] == find("weather").version, "of today's generator, whose images know no later rain"
        images = np.full((1, 4, 11, size, size), 250, np.float32)
        assert opened.forecast(images, said["regions"][0]).shape == (1, said["forecast"], size, size)
    assert zoo.zoo("weather")
