"""Training: losses fall, and samples are kept."""

import contextlib
import hashlib
import io
import shutil
from dataclasses import replace
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from retable.platform.config import differences, override
from retable.platform.errors import UserError
from retable.platform.execute.scoring import predict_and_score, summaries
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker
from retable.tasks.style import losses
from retable.tasks.style.config import Config, Squeezenet, View
from retable.tasks.style.data import Photographs
from retable.tasks.style.files import images
from retable.tasks.style.files.prepare import make_generated
from retable.tasks.style.learner import build_learner, cost, keep, rate
from retable.tasks.style.networks import transformer
from retable.tasks.style.networks.backbones import build

WAIT = 120
module = import_module("retable.tasks.style.predict")  # the package has a function of the module's name
predict, judge_seed = module.predict, module.judge_seed
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


@pytest.fixture(scope="module")
def trained(storage):
    """A run of the network, which tests read and begin with."""
    return run(storage, storage.root, override(Config(), NETWORK))


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


def learner(storage, **changes):
    config = override(Config(), NETWORK | changes)
    return build_learner([config], opened(storage, config), Worker())


def batch(storage, made):
    return next(iter(opened(storage, made.config).batches(0, 0, 0, 1)))


TWO = {"style": ["great_wave", "the_scream"], "method.conditional": True}


@pytest.mark.slow
def test_a_conditional_network_learns_a_style_for_each_painting(storage, tmp_path):
    config = override(Config(), NETWORK | TWO | {"epochs": 8, "steps": 16, "method.learning_rate": 1e-2})
    folder = run(storage, tmp_path, config)
    losses = [row["validation_loss"] for row in folder.history()]
    assert losses[-1] < 0.7 * losses[0]
    sample = np.asarray(Image.open(io.BytesIO(folder.folder.read("samples/00000128.png"))))
    assert sample.shape == (48, 3 * 48, 3)  # the photograph, and each style of it
    assert not np.array_equal(sample[:, 48:96], sample[:, 96:])
    source, aims = Source.of(storage, "style/tiny"), {}
    for painting in ("", "great_wave", "the_scream"):
        view = View(painting=painting, size=48, content=("coffee",))
        made = predict(config, view, folder.weights(8), source, "all")
        aims[painting] = next(key for key in made if key.startswith("painting/")), made["stylised/coffee"]
    assert aims[""][0] == aims["great_wave"][0] == "painting/great_wave" and aims["the_scream"][0].endswith("scream")
    assert np.array_equal(aims[""][1], aims["great_wave"][1])
    assert not np.array_equal(aims["the_scream"][1], aims["great_wave"][1])


def test_the_styles_of_a_share_are_taken_in_turn(storage):
    made = learner(storage, **TWO)
    found = {tuple(made._styles(3, np.random.default_rng(seed)).tolist()) for seed in range(8)}
    assert found == {(0, 1, 0), (1, 0, 1)} and made._styles(3, None).tolist() == [0, 1, 0]


def test_losses_are_those_of_each_images_own_painting(storage):
    both = learner(storage, **TWO)
    pictures = batch(storage, both).to(torch.float32) / 255
    after = pictures.flip(2)
    (judge,) = both.judges
    found = judge(pictures, after, torch.tensor([0, 1, 1, 0]))
    for place, painting in enumerate((0, 1, 1, 0)):
        alone = learner(storage, style=[TWO["style"][painting]]).judges[0]
        expected = alone(pictures[place : place + 1], after[place : place + 1], None)
        assert float(found.total[place]) == pytest.approx(float(expected.total), rel=1e-5)


def test_a_second_network_judges_a_part_of_each_image(storage):
    more = {"method.texture": "texture", "method.texture.crop": 32, "method.texture.style_weight": 3.0}
    more |= {"method.texture.backbone": "squeezenet", "method.texture.backbone.weights": "random"}
    more |= {"method.texture.backbone.normalise": False, "method.texture.style_layers": ["relu1"]}
    made = learner(storage, **more)
    first, second = made.judges
    pictures = batch(storage, made).to(torch.float32) / 255
    assert first.place((48, 48), np.random.default_rng(0)) == (..., slice(0, 48), slice(0, 48))
    places = [second.place((48, 48), np.random.default_rng(seed))[1:] for seed in range(200)]
    assert {place.stop - place.start for both in places for place in both} == {32}
    assert {place.start for place, _ in places} == set(range(16)) == {place.start for _, place in places}
    found = second(pictures, pictures.flip(2), None)
    assert (found.content == 0).all() and (found.variation == 0).all()
    only = replace(made.method.objective, style_layers=("relu1",), style_weight=3.0)
    expected = losses.loss(
        second.network, only, losses.with_content(second.targets[0], second.network, only, pictures), pictures.flip(2)
    )
    assert torch.allclose(found.style, expected.style)


def test_shifted_losses_see_all_places_below_the_shift(storage):
    (judge,) = learner(storage, **{"method.shift": 4}).judges
    places = [judge.place((48, 40), np.random.default_rng(seed))[1:] for seed in range(100)]
    assert {(rows.start, rows.stop) for rows, _ in places} == {(start, start + 44) for start in range(4)}
    assert {(columns.start, columns.stop) for _, columns in places} == {(start, start + 36) for start in range(4)}
    assert judge.place((48, 40), None) == (...,)


def test_unsteadiness_is_nil_for_a_network_that_moves_with_its_image(storage, monkeypatch):
    made = learner(storage, **{"method.steady_weight": 2.0})
    pictures = batch(storage, made).to(torch.float32) / 255
    monkeypatch.setattr(made, "forward", lambda image: image * 0.5 + 0.1)
    monkeypatch.setattr("retable.tasks.style.learner.NOISE", 0.0)
    rng = np.random.default_rng(3)
    assert float(made._unsteadiness(pictures, made.forward(pictures), None, rng).max()) < 1e-12
    monkeypatch.setattr("retable.tasks.style.learner.NOISE", 0.02)  # half the noise comes through: 0.01 squared
    grey = torch.full_like(pictures, 0.5)
    assert float(made._unsteadiness(grey, made.forward(grey), None, rng).mean()) == pytest.approx(1e-4, rel=0.1)
    monkeypatch.setattr(made, "forward", lambda image: torch.linspace(0, 1, 48).expand_as(image))  # stands still
    assert float(made._unsteadiness(pictures, made.forward(pictures), None, np.random.default_rng(3)).min()) > 1e-4


def test_a_grid_costs_what_its_weight_says(storage):
    plain, weighed = learner(storage), learner(storage, **{"method.lattice_weight": 50.0})
    pictures = batch(storage, plain)
    with torch.no_grad():
        grid = losses.lattice(plain.forward(pictures.float() / 255)).mean()
    found = [float(each.step(pictures)["loss"]) for each in (plain, weighed)]
    assert float(grid) > 1e-7 and found[1] - found[0] == pytest.approx(50 * float(grid), rel=0.02)


def test_lost_tones_cost_what_their_weight_says(storage):
    plain, weighed = learner(storage), learner(storage, **{"method.tone_weight": 3.0})
    pictures = batch(storage, plain)
    with torch.no_grad():
        photographs = pictures.float() / 255
        tone = losses.tone(plain.forward(photographs), photographs).mean()
    found = [float(each.step(pictures)["loss"]) for each in (plain, weighed)]
    assert float(tone) > 0.01 and found[1] - found[0] == pytest.approx(3 * float(tone), rel=0.02)


def test_spikes_of_residual_layers_cost_what_their_weight_says(storage, monkeypatch):
    monkeypatch.setattr(losses, "SPIKE", 1.0)  # of a standard deviation, which untrained features have too
    plain, weighed = learner(storage), learner(storage, **{"method.spike_weight": 3.0, "method.steady_weight": 1e-9})
    pictures, said = batch(storage, plain), []
    with torch.no_grad():
        plain.network.walk(pictures.float() / 255, lambda index, features: said.append(losses.spikes(features).mean()))
    spikes = float(sum(said[4:13:2]))  # the second convolution of each of five blocks
    found = [float(each.step(pictures)["loss"]) for each in (plain, weighed)]
    assert spikes > 1 and found[1] - found[0] == pytest.approx(3 * spikes, rel=0.02)


def test_the_rate_falls_along_half_a_cosine():
    config = override(Config(), NETWORK | {"method.schedule": "cosine", "epochs": 5, "steps": 2})
    rates = [rate(config, config.method, done) for done in range(11)]
    assert rates[0] == 1e-3 and rates[5] == pytest.approx(5e-4) and rates[10] == pytest.approx(0)
    assert rates == pytest.approx(1e-3 * np.cos(np.pi * np.arange(11) / 20) ** 2, abs=1e-12)
    assert all(after < before for before, after in pairwise(rates))
    plain = override(Config(), NETWORK)
    assert {rate(plain, plain.method, done) for done in range(9)} == {1e-3}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"method.shift": 17}, "shift 17 leaves fewer than 32 of 48 pixels"),
        ({"method.texture": "texture", "method.texture.crop": 64}, r"texture.crop 64 is outside \[32, 48\]"),
    ],
)
def test_impossible_trainings_are_refused(changes, line):
    with pytest.raises(UserError, match=line):
        override(Config(), NETWORK | changes)


def test_tensorboard_shows_the_samples(storage, trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(f"{storage.root}/runs/style/{trained.fingerprint}/tensorboard")
    events.Reload()
    shown = events.Images("sample")
    assert [event.step for event in shown] == [4, 8]
    assert (shown[0].width, shown[0].height) == (96, 48)
    assert shown[1].encoded_image_string == trained.folder.read("samples/00000008.png")


def test_the_views_of_a_network_and_of_an_image(storage, trained):
    task, image = find("style"), override(Config(), IMAGE)
    made = run(storage, storage.root, image)
    for folder, config, view in (
        (trained, override(Config(), NETWORK), {"content": ["mountain", "coffee"], "size": 128}),
        (made, image, {}),
    ):
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


def test_the_lattice_of_a_large_picture_is_seen_at_its_own_size(storage, monkeypatch):
    """Reduced to what the judge sees, a picture has none."""
    monkeypatch.setattr(module, "JUDGED_SIZE", 128)
    task, source, config = find("style"), Source.of(storage, "style/tiny"), override(Config(), NETWORK)
    rows, columns = np.indices((176, 160))
    board = np.where((rows + columns) % 2, 168, 88).astype(np.uint8)[..., None].repeat(3, -1)
    plain = np.random.default_rng(0).integers(90, 160, (176, 160, 3), np.uint8)
    found = []
    for pixels in (plain, board // 2 + plain // 2):
        arrays = {"stylised/a": pixels, "photograph/a": plain, f"painting/{config.style[0]}": plain}
        found.append(task.evaluate(config, View(epoch=1), {"all": arrays}, source)["lattice"])
    assert found[0] < 20 and found[1] > 1e3


def test_a_photograph_that_is_too_narrow_for_the_judge_is_named(storage):
    task, source, config = find("style"), Source.of(storage, "style/tiny"), override(Config(), NETWORK)
    narrow, plain = np.zeros((5, 256, 3), np.uint8), np.zeros((64, 64, 3), np.uint8)
    arrays = {
        f"{what}/{name}": made for what in ("stylised", "photograph") for name, made in (("a", plain), ("pano", narrow))
    }
    arrays[f"painting/{config.style[0]}"] = plain
    with pytest.raises(
        UserError, match=r"photograph pano: 5 x 256 pixels are too few .*, or name others in view\.content"
    ):
        task.evaluate(config, View(epoch=1), {"all": arrays}, source)


def test_the_judge_is_never_the_network_that_pictures_were_made_with():
    made = override(Config(), {"method.backbone": "squeezenet", "method.backbone.weights": "random"})
    view = View()
    for seed in (0, 1):
        config = override(made, {"seed": seed})
        own, judge = build(config.method.backbone, seed, None), build(view.judge, judge_seed(config, view), None)
        assert not torch.equal(own.features[0].weight, judge.features[0].weight)
    other = override(Config(), {"method.backbone.weights": "random"})
    assert judge_seed(other, view) == judge_seed(override(Config(), {"method": "zoo_network"}), view) == 0
    texture = {"method.texture": "texture", "method.texture.backbone": "squeezenet"}
    for config in (override(Config(), texture), override(Config(), {"method.backbone": "squeezenet"})):
        with pytest.raises(UserError, match=r"view\.judge: is the network that the pictures were made with"):
            judge_seed(config, View(judge=Squeezenet()))


def test_a_painting_of_a_network_of_one_style_is_refused(storage):
    with pytest.raises(UserError, match=r"view\.painting: the_scream is of a network with several styles"):
        predict(override(Config(), NETWORK), View(painting="the_scream"), {}, Source.of(storage, "style/tiny"), "all")


@pytest.mark.parametrize("kind", ["vgg16", "squeezenet"])
def test_a_backbone_without_a_small_version_is_refused(kind):
    with pytest.raises(UserError, match="weights small are of vgg19 and alexnet"):
        override(Config(), {"method.backbone": kind, "method.backbone.weights": "small"})


def test_larger_trainings_cost_more():
    base = override(Config(), NETWORK)
    for changes in ({"method.size": 96}, {"steps": 400}, {"method.filters": 32}, {"method.backbone": "vgg19"}):
        assert cost(override(base, changes)) > cost(base)


def test_a_new_style_is_learnt_by_its_scales_and_shifts_and_leaves_the_others_as_they_were(storage, tmp_path):
    several = NETWORK | {"method.conditional": True, "style": ["great_wave", "the_scream"]}
    several |= {"epochs": 1, "steps": 1}
    before = run(storage, tmp_path, override(Config(), several)).weights(1)
    child = several | {"style": [*several["style"], "starry_night"], "method.new_styles": 1, "steps": 2}
    child |= {"init": "parent", "init.overrides": list(several.items())}
    config = override(Config(), child)
    after = run(storage, tmp_path, config).weights(1)
    for name, value in after.items():
        if ".norm." in name:
            assert torch.equal(value[:2], before[name]), name
            assert not torch.equal(value[2], before[name].mean(0)), name
        else:
            assert torch.equal(value, before[name]), name
    learner = build_learner([config], opened(storage, config), Worker())
    assert learner._styles(3, None).tolist() == [2, 2, 2]


def test_a_network_of_several_styles_starts_from_one_of_one(storage, trained):
    one = trained.weights(2)
    child = NETWORK | {"method.conditional": True, "style": ["great_wave", "the_scream"], "init": "parent"}
    config = override(Config(), child | {"init.overrides": list(NETWORK.items())})
    learner = build_learner([config], opened(storage, config), Worker())
    learner.load_weights([one])
    image = torch.rand(1, 3, 48, 48)
    alone = build_learner([override(Config(), NETWORK)], opened(storage, override(Config(), NETWORK)), Worker())
    alone.load_weights([one])
    for shares in ([1.0, 0.0], [0.0, 1.0]):
        made = learner.network.blended(shares)(image)
        torch.testing.assert_close(made, alone.network(image), atol=1e-5, rtol=0)


def test_a_style_that_neither_is_known_nor_learnt_is_refused(storage, trained):
    """It would stay the mean of those that are."""
    one = trained.weights(2)
    child = {"method.conditional": True, "style": ["great_wave", "the_scream", "starry_night"], "init": "parent"}
    child |= NETWORK | {"init.overrides": list(NETWORK.items())}
    for new, fits in ((1, False), (2, True)):
        config = override(Config(), child | {"method.new_styles": new})
        learner = build_learner([config], opened(storage, config), Worker())
        with contextlib.nullcontext() if fits else pytest.raises(UserError, match=r"of 1 styles, not 2; set .*=2"):
            learner.load_weights([one])


def several_styles(*names, **changes):
    return override(Config(), NETWORK | {"method.conditional": True, "style": names} | changes)


def test_styles_that_are_kept_have_the_names_and_order_of_the_network_that_is_begun_with(storage):
    """Another painting's scales and shifts would be kept under the name."""
    before = several_styles("great_wave", "the_scream")
    network = build_learner([before], opened(storage, before), Worker()).network
    data = transformer.pack(network, {"paintings": before.style})
    digest = hashlib.sha256(data).hexdigest()
    storage.write(f"weights/{digest}.safetensors", data)
    from_run = {"init": "parent", "init.overrides": list(differences(before, Config()).items())}
    for init in (from_run, {"init": "weights", "init.sha256": digest}):
        for names, fits in ((before.style, True), (before.style[::-1], False)):
            config = several_styles(*names, "starry_night", **init, **{"method.new_styles": 1})
            learner = build_learner([config], opened(storage, config), Worker())
            refusal = pytest.raises(
                UserError, match="of great_wave, the_scream; let style begin with them, in this order"
            )
            with contextlib.nullcontext() if fits else refusal:
                learner.load_weights([network.state_dict()])


@pytest.mark.parametrize("conditional", [True, False])
def test_a_network_of_more_styles_is_no_beginning(storage, conditional):
    three = several_styles("great_wave", "the_scream", "starry_night")
    network = build_learner([three], opened(storage, three), Worker()).network
    fewer = several_styles("great_wave", "the_scream", **{"method.conditional": conditional})
    learner = build_learner([fewer], opened(storage, fewer), Worker())
    with pytest.raises(UserError, match=rf"init: a network of 3 styles, not {1 + conditional}; name all"):
        learner.load_weights([network.state_dict()])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method.new_styles": 1}, "set method.conditional=true"),
        ({"method.new_styles": 2, "method.conditional": True, "init": "weights"}, "leaves none of 2"),
        ({"method.new_styles": 1, "method.conditional": True}, "name it by init"),
    ],
)
def test_new_styles_that_cannot_be_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        override(Config(), {"style": ["great_wave", "the_scream"], **changes})


def test_a_network_starts_from_another_paintings(storage, trained, tmp_path):
    shutil.copytree(f"{storage.root}/runs", tmp_path / "runs")
    child = NETWORK | {"style": ["the_scream"], "steps": 1, "epochs": 1, "method.learning_rate": 1e-12}
    child |= {"init": "parent", "init.overrides": list(NETWORK.items())}
    weights = run(storage, tmp_path, override(Config(), child)).weights(1)
    for name, value in trained.weights(2).items():
        torch.testing.assert_close(weights[name], value, atol=1e-9, rtol=0)
    with pytest.raises(UserError, match=r"init: .*shape"):
        run(storage, tmp_path, override(Config(), child | {"method.filters": 8}))
    with pytest.raises(UserError, match=r"method\.start"):
        override(Config(), {"method": "optimise_image", "init": "parent"})
