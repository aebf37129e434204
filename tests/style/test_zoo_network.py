"""A run of a network that comes with the task: its weights, its pictures, and what a changed file does to it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.models.zoo import digest
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.style import TASK
from retable.tasks.style.config import Config, View, ZooNetwork
from retable.tasks.style.files import assets, images
from retable.tasks.style.learner import ZooLearner, build_learner, cost, gpu_work
from retable.tasks.style.networks.tiling import stylise
from retable.tasks.style.networks.transformer import find
from retable.tasks.style.predict import evaluate, predict, view_cost

CONFIG = override(Config(), {"method": "zoo_network", "epochs": 1, "steps": 1})
WAVE = ("great_wave",)


@pytest.fixture
def source(tmp_path):
    return Source(Storage.open(tmp_path / "data/style/x"), {"test": [], "digest": ""})


def test_its_pictures_are_the_zoos_and_are_judged_with_the_gate_of_version_2(source):
    learner = build_learner([CONFIG], None, SimpleNamespace())
    assert isinstance(learner, ZooLearner) and float(learner.step(None)["loss"]) == 0
    view = View(content=("mountain",), size=96)
    found = predict(CONFIG, view, learner.state_dict()[0]["weights"], source, "all")
    photograph = images.fit(images.read(assets.photographs()["mountain"]).pixels, 96)
    wanted = images.to_pixels(stylise(find("great_wave"), images.to_tensor(photograph)))
    assert np.array_equal(found["stylised/mountain"], wanted)
    metrics = evaluate(CONFIG, view, {"all": found}, source)
    assert metrics.keys() == {"style_error", "content_error", "photograph_style_error"}
    larger = {name: np.kron(pixels, np.ones((2, 2, 1), np.uint8)) for name, pixels in found.items()}
    assert evaluate(CONFIG, view, {"all": larger}, source)["lattice"] > 0, "from 64 pixels each way on"


def test_another_file_of_the_zoo_is_another_run():
    assert ZooLearner(ZooNetwork(digest=digest("style", "great_wave")), WAVE)
    with pytest.raises(UserError, match=r"method\.digest: great_wave of the zoo is another file by now"):
        ZooLearner(ZooNetwork(digest="0" * 64), WAVE)
    with pytest.raises(UserError, match="nosuch"):
        ZooLearner(ZooNetwork(name="nosuch"), WAVE)


def test_a_network_of_another_painting_is_not_scored_against_this_one():
    assert build_learner([override(CONFIG, {"method.name": "the_scream", "style": ("the_scream",)})], None, None)
    for changes in ({"method.name": "the_scream"}, {"style": ("the_scream",)}, {"style": ("great_wave", "the_scream")}):
        with pytest.raises(UserError, match=r"method\.name: \w+ paints as \w+; set style to that, not \w+"):
            build_learner([override(CONFIG, changes)], None, None)


def test_it_costs_next_to_nothing_and_starts_from_nothing_else():
    assert cost(CONFIG) < 10 and gpu_work(CONFIG)[1] == 0 and view_cost(CONFIG, View()) > 0
    assert TASK.keep(CONFIG) == ()
    with pytest.raises(UserError, match="zoo_network is trained already"):
        override(CONFIG, {"init": "parent"})
    assert torch.equal(ZooLearner(ZooNetwork(), WAVE).step(None)["loss"], torch.zeros(1))


def test_what_would_be_ignored_is_refused():
    with pytest.raises(UserError, match="size -5 is below 0"):
        override(View(), {"size": -5})
    several = {"method": "train_network", "method.conditional": True, "style": ["great_wave", "the_scream"]}
    override(Config(), several)
    with pytest.raises(UserError, match="blend: a conditional network learns each painting by itself"):
        override(Config(), several | {"blend": [0.5, 0.5]})
