"""A network's file stylises as its run does; what is none is refused in one line."""

import json
from importlib import import_module

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.models import export as exported
from retable.platform.models import zoo
from retable.platform.spec.task import find
from retable.platform.store.storage import Storage
from retable.platform.store.weights import metadata
from retable.tasks.style.config import View
from retable.tasks.style.export import read_export, write_export
from retable.tasks.style.networks import transformer
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.tools.pictures.stylise import find_network, find_painting
from tests.tiny import IMAGE, photographs, tiny, trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    storage = Storage.open(tmp_path_factory.mktemp("style"))
    photographs(storage)
    found = []
    for changes in ({}, IMAGE | {"epochs": 1, "steps": 1}):
        config = tiny("style", changes)
        found.append(TrainedRun(find("style"), trained("style", config, storage, storage), config))
    return found


@pytest.fixture(scope="module")
def run(runs):
    return runs[0]


@pytest.fixture(scope="module")
def good(run):
    return write_export(run)


def test_a_file_stylises_bit_for_bit_as_predict(run, good):
    predict = import_module("retable.tasks.style.predict").predict
    found = predict(run.config, View(epoch=2, size=64), run.weights(2), run.source, "all")
    names = [key.removeprefix("photograph/") for key in found if key.startswith("photograph/")]
    style = read_export(good, "x").style()
    assert len(names) >= 3
    for name in names:
        (made,) = style([found[f"photograph/{name}"]], lambda *words: None)
        assert np.array_equal(made.pixels, found[f"stylised/{name}"])


def test_a_file_says_where_it_is_from(run):
    said = read_export(write_export(run, 1, half=True, licence="ours"), "x").about
    assert (said["task"], said["fingerprint"], said["epoch"]) == ("style", run.fingerprint, 1)
    assert (said["paintings"], said["licence"], said["data"]) == (["great_wave"], "ours", "tiny")
    assert said["config"]["method.filters"] == 4
    assert write_export(run, 1) == write_export(run, 1)


def test_an_optimised_image_is_no_network(runs):
    with pytest.raises(UserError, match="trained no network; only method train_network"):
        write_export(runs[1])


def test_what_is_no_network_is_refused_in_one_line(good, monkeypatch):
    wide = json.dumps(json.loads(metadata(good)["network"]) | {"filters": 1 << 20})
    other = save(load(good), metadata(good) | {"network": "[1"})
    broken = {
        "no network": save({"x": torch.zeros(1)}),
        "not the whole file": b"hello, this is no network",
        "no file of tensors": good[:-10],
        "no JSON": other,
        "has shape": save(load(good), metadata(good) | {"network": wide}),
        "`provenance` are missing": save(load(good), metadata(good) | {"provenance": "3"}),
    }
    for reason, data in broken.items():
        with pytest.raises(UserError, match=f"^evil: .*{reason}") as caught:
            read_export(data, "evil")
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(exported, "LARGEST", 10)
    with pytest.raises(UserError, match=r"^evil: [\d,]+ bytes; no exported file is larger"):
        read_export(good, "evil")


def test_the_zoo_says_where_it_is_from():
    said = zoo.about("style", "great_wave")
    assert (said["task"], said["paintings"], said["steps"]) == ("style", ["great_wave"], 575)
    assert "BSDS500" in said["data_description"] and "Apache" in said["licence"] and "H100" in said["device"]
    with pytest.raises(UserError, match="the zoo of style has no 'great_waves'; did you mean 'great_wave'"):
        zoo.read("style", "great_waves")


@pytest.mark.parametrize("half", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_file_of_several_styles_is_a_zoo_of_as_many(half, tmp_path, monkeypatch):
    torch.manual_seed(0)
    network = TransformerNetwork(4, "transposed", "tanh", styles=2)
    for norm in network.norms():
        torch.nn.init.normal_(norm.weight)
    (tmp_path / "zoo").mkdir()
    about = {"task": "style", "paintings": ["great_wave", "the_scream"], "licence": "ours"}
    (tmp_path / "zoo" / "both.safetensors").write_bytes(transformer.pack(network, about, half))
    monkeypatch.setattr(zoo, "folder", lambda task: tmp_path)
    assert list(zoo.zoo("style")) == ["great_wave", "the_scream"]
    assert zoo.show("style")[0].endswith("one file with 1 more")
    image = torch.rand(1, 3, 32, 32)
    made = {}
    for place, name in enumerate(zoo.zoo("style")):
        alone = read_export(zoo.read("style", name), name)
        assert (alone.about["paintings"], alone.about["licence"]) == ([name], "ours")
        kept = network.half().float() if half else network
        expected = kept.blended([float(place == other) for other in range(2)]).eval()(image)
        made[name] = alone.network(image)
        assert torch.equal(made[name], expected) and torch.equal(transformer.find(name)(image), expected)
        assert (len(zoo.read("style", name)) < 1.1 * len(zoo.read("style", "great_wave"))) and find_painting(
            name
        ) is None
    assert not torch.equal(*made.values())
    blend = find_network("great_wave:0.5,the_scream:0.5", Storage.open(tmp_path))
    assert torch.equal(blend(image), kept.blended([0.5, 0.5]).eval()(image))
