"""Training: losses fall, and samples are kept."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.loop import train
from retable.platform.runs import RunFolder
from retable.platform.stages import predict_and_score, summaries
from retable.platform.storage import Storage
from retable.platform.task import Source, find
from retable.platform.worker import Worker
from retable.tasks.style import images
from retable.tasks.style.config import Config, View
from retable.tasks.style.data import Photographs
from retable.tasks.style.learner import cost, keep
from retable.tasks.style.prepare import make_generated

WAIT = 120
RANDOM = {
    "data": "tiny",
    "method.backbone": "squeezenet",
    "method.backbone.weights": "random",
    "method.backbone.normalise": False,
    "method.objective.convention": "relative",
    "method.objective.content_layers": ["fire2"],
    "method.objective.style_layers": ["relu1", "fire2"],
    "method.objective.content_weight": 1.0,
    "method.objective.style_weight": 5.0,
    "epochs": 2,
    "steps": 4,
}
NETWORK = RANDOM | {"method": "train_network", "method.filters": 4, "method.size": 48, "method.style_size": 64}
IMAGE = RANDOM | {"method": "optimise_image", "method.size": 48}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    found = Storage.open(tmp_path_factory.mktemp("style") / "results")
    make_generated(found / "data/style/tiny", "tiny", photographs=12, seed=3)
    return found


def opened(storage, config):
    return Photographs(None, Source.of(storage, "style/tiny"), [config])


def run(storage, where, config):
    """Train into a storage of its own."""
    task, source = find("style"), Source.of(storage, "style/tiny")
    folder = RunFolder.of(Storage.open(where), task, config)
    folder.begin(config, task.version, {})
    data = opened(storage, config)
    saving = Worker(save=folder.folder.write)
    train(task, [config], data, [folder], source.info["digest"], saving, [tuple(keep(config))])
    return folder


def test_a_network_learns_and_keeps_every_checkpoint_and_sample(storage, tmp_path):
    config = override(Config(), NETWORK | {"epochs": 4, "steps": 8, "method.learning_rate": 5e-3})
    folder = run(storage, tmp_path, config)
    losses = [row["validation_loss"] for row in folder.history()]
    assert losses[-1] < 0.7 * losses[0]
    assert folder.result()["weights"].keys() == {"1", "2", "3", "4"}
    assert folder.folder.list("samples") == [f"{step:08d}.png" for step in (8, 16, 24, 32)]
    sample = np.asarray(Image.open(io.BytesIO(folder.folder.read("samples/00000032.png"))))
    assert sample.shape == (48, 96, 3)
    last = list(opened(storage, config).batches(3, 7, 0, 1))[-1].permute(0, 2, 3, 1).numpy()
    assert any(np.array_equal(sample[:, :48], photograph) for photograph in last)
    assert not np.array_equal(sample[:, 48:], sample[:, :48])


def test_tensorboard_shows_the_samples(storage, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = run(storage, tmp_path, override(Config(), NETWORK))
    events = EventAccumulator(str(tmp_path / "runs/style" / folder.fingerprint / "tensorboard"))
    events.Reload()
    shown = events.Images("sample")
    assert [event.step for event in shown] == [4, 8]
    assert (shown[0].width, shown[0].height) == (96, 48)
    assert shown[1].encoded_image_string == folder.folder.read("samples/00000008.png")


def test_the_views_of_a_network_and_of_an_image(storage):
    task = find("style")
    for changes, view in ((NETWORK, {"content": ["mountain", "coffee"], "size": 128}), (IMAGE, {})):
        config = override(Config(), changes)
        folder = run(storage, storage.root, config)
        seen = override(View(), {"epoch": 2, **view})
        assert predict_and_score(task, config, seen, folder) is None
        scores = folder.scores(seen, folder.result()["weights"]["2"])["metrics"]
        assert 0 < scores["style_error"] < 1000 and 0 < scores["content_error"] < 10
        arrays = summaries(task, config, seen, folder)["all"]
        names = {name.removeprefix("stylised/") for name in arrays if name.startswith("stylised/")}
        assert names == set(view.get("content", ["mountain"]))
        for name in names:
            assert arrays[f"stylised/{name}"].shape == arrays[f"photograph/{name}"].shape
        if not view:
            assert arrays["losses"].shape == (8, 3)
            assert arrays["losses"][-1, 0] == pytest.approx(folder.history()[-1]["final_loss"])
            assert np.array_equal(arrays["stylised/mountain"], images.to_pixels(folder.weights(2)["image"]))


def test_judging_a_photograph_itself_finds_no_difference_in_content(storage):
    task, source = find("style"), Source.of(storage, "style/tiny")
    config = override(Config(), IMAGE | {"method.shape": "keep", "method.size": 128})
    weights = {"image": images.to_tensor(images.fit(opened(storage, config).photograph("mountain"), 128))}
    weights["losses"] = torch.zeros(1, 3)
    same = task.predict(config, replace(View(), epoch=2), weights, source, "all")
    scores = task.evaluate(config, View(epoch=2), {"all": same}, source)
    assert scores["content_error"] < 1e-6 < scores["style_error"]
    half = task.predict(config, View(epoch=2, strength=0.0), {**weights, "image": 1 - weights["image"]}, source, "all")
    assert np.array_equal(half["stylised/mountain"], half["photograph/mountain"])


def test_larger_trainings_cost_more():
    base = override(Config(), NETWORK)
    for changes in ({"method.size": 96}, {"steps": 400}, {"method.filters": 32}, {"method.backbone": "vgg19"}):
        assert cost(override(base, changes)) > cost(base)


def test_a_network_starts_from_another_paintings(storage, tmp_path):
    parent = override(Config(), NETWORK)
    trained = run(storage, tmp_path, parent).weights(2)
    child = NETWORK | {"style": ["the_scream"], "steps": 1, "epochs": 1, "method.learning_rate": 1e-12}
    child |= {"init": "parent", "init.overrides": list(NETWORK.items())}
    weights = run(storage, tmp_path, override(Config(), child)).weights(1)
    for name, value in trained.items():
        torch.testing.assert_close(weights[name], value, atol=1e-9, rtol=0)
    with pytest.raises(UserError, match=r"init: .*shape"):
        run(storage, tmp_path, override(Config(), child | {"method.filters": 8}))
    with pytest.raises(UserError, match=r"method\.start"):
        override(Config(), {"method": "optimise_image", "init": "parent"})
