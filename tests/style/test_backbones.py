"""Backbones against torchvision's own models, plain re-implementations, and published numbers."""

from functools import cache

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from retable.platform.errors import UserError
from retable.tasks.style.config import Alexnet, Squeezenet, Vgg16, Vgg19
from retable.tasks.style.networks import backbones, weights
from retable.tasks.style.networks.backbones import build

CONFIGS = {"vgg16": Vgg16, "vgg19": Vgg19, "alexnet": Alexnet, "squeezenet1_0": Squeezenet}
SIZES = {"vgg16": 40, "vgg19": 36, "alexnet": 71, "squeezenet1_0": 50}


def picture(side=48, count=2, seed=0, width=None):
    """Smooth colours with some noise."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=random)
    smooth = functional.interpolate(coarse, (side, width or side), mode="bicubic", align_corners=False)
    return (smooth + 0.1 * torch.rand(smooth.shape, generator=random)).clamp(0, 1)


@pytest.fixture
def calibrated(monkeypatch):
    """Small calibration images."""
    images = picture(64, 3, seed=7)
    monkeypatch.setattr(backbones, "calibration", lambda: images)
    return images


drawn = cache(weights.random)


def network(name, pooling="max", seed=0):
    """As `build` makes it of random weights, which are drawn once for all tests."""
    found = drawn(name, seed)
    return backbones.BackboneNetwork(name, weights.assemble(found, pooling), found.mean, found.std)


def torchvisions(name, tensors, pooling):
    """torchvision's own layers with these weights, and pools replaced where average pooling is asked for."""
    with torch.device("meta"):
        features = torchvision.models.get_model(name, weights=None).features
    features = features.to_empty(device="cpu")
    features.load_state_dict({key.removeprefix("features."): value for key, value in tensors.items()})
    if pooling == "average":
        for index, module in enumerate(features):
            if isinstance(module, nn.MaxPool2d):
                features[index] = nn.AvgPool2d(module.kernel_size, module.stride, 0, module.ceil_mode)
    return features


@pytest.mark.parametrize(
    ("name", "pooling"),
    [(name, "max") for name in CONFIGS]
    + [pytest.param(name, "average", marks=pytest.mark.slow) for name in ("vgg16", "vgg19")]
    + [(name, "average") for name in ("alexnet", "squeezenet1_0")],
)
@torch.no_grad()
def test_features_are_torchvisions(name, pooling):
    ours, image = network(name, pooling), picture(SIZES[name])
    theirs = torchvisions(name, drawn(name, 0).tensors, pooling)
    seen = []
    for module in theirs:  # copied at once: torchvision's ReLUs overwrite what they are given
        module.register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    theirs(torchvision.transforms.functional.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    found = ours(image, ours.layers)
    assert list(found) == list(ours.layers) and len(seen) == len(found)
    for layer, wanted in zip(ours.layers, seen, strict=True):
        torch.testing.assert_close(found[layer], wanted, rtol=0, atol=1e-4 * float(wanted.detach().std()), msg=layer)
        assert not layer.startswith("conv") or (found[layer] < 0).any()


@pytest.mark.parametrize(
    ("name", "places"),
    [
        (
            "vgg19",
            {"relu1_1": 1, "relu2_1": 6, "relu3_1": 11, "relu4_1": 20, "conv4_2": 21, "relu4_2": 22, "relu5_1": 29},
        ),
        ("vgg16", {"relu1_2": 3, "relu2_2": 8, "relu3_3": 15, "pool3": 16, "relu4_3": 22, "relu5_3": 29, "pool5": 30}),
        ("alexnet", {"conv1": 0, "pool1": 2, "conv2": 3, "pool2": 5, "conv3": 6, "conv4": 8, "relu4": 9, "pool5": 12}),
        ("squeezenet1_0", {"relu1": 1, "pool1": 2, "fire2": 3, "fire4": 5, "pool4": 6, "fire5": 7, "fire9": 12}),
    ],
)
def test_places_of_layers_are_the_published(name, places):
    layers = backbones.names(name, weights.architecture(name))
    assert {layer: layers.index(layer) for layer in places} == places


def test_stages():
    def stages(made, role):
        return [made.resolve(f"stage{stage}", role) for stage in (1, 2, 3, 4, 5)]

    vgg = network("vgg16")
    assert stages(vgg, "style") == ["relu1_1", "relu2_1", "relu3_1", "relu4_1", "relu5_1"]
    assert stages(vgg, "content") == ["relu1_2", "relu2_2", "relu3_2", "relu4_2", "relu5_2"]
    alexnet, squeezenet = network("alexnet"), network("squeezenet1_0")
    assert stages(alexnet, "style") == stages(alexnet, "content") == ["relu1", "relu2", "relu3", "relu4", "relu5"]
    assert stages(squeezenet, "style") == ["relu1", "fire2", "fire3", "fire6", "fire9"]
    assert stages(squeezenet, "content") == ["relu1", "fire2", "fire4", "fire6", "fire9"]
    assert vgg.resolve("pool3", "content") == "pool3"


def cut(depth, widths=(12, 13, 14, 15, 15, 14, 14, 13, 13, 12, 12, 12, 12, 12, 12, 12)):
    """VGG-19 with few filters, as far as some number of convolutions."""
    random = torch.Generator().manual_seed(2)
    tensors, inputs = {}, 3
    places = [name for name, _ in weights.architecture("vgg19").named_parameters() if name.endswith("weight")]
    for place, width in zip(places[:depth], widths, strict=False):
        tensors[f"features.{place}"] = torch.randn(width, inputs, 3, 3, generator=random) * (2 / 9 / inputs) ** 0.5
        tensors[f"features.{place[:-6]}bias"] = torch.zeros(width)
        inputs = width
    return tensors


def small(depth=16, pooling="max", padding="zeros"):
    found = weights.Weights("vgg19", cut(depth), padding=padding)
    return backbones.BackboneNetwork("vgg19", weights.assemble(found, pooling), found.mean, found.std)


def test_weights_that_end_early():
    made = small(depth=9)
    assert made.layers[-3:] == ("pool3", "conv4_1", "relu4_1")
    assert made.resolve("stage4", "content") == "relu4_1"  # the last of the stage that there is
    assert made.resolve("stage3", "content") == "relu3_2"
    for layer in ("stage5", "relu4_2", "stage6", "pool4", "stage"):
        with pytest.raises(
            UserError, match=rf"^content_layers: {layer}.*vgg19: relu1_1, relu1_2, .*, relu4_1;"
        ) as caught:
            made.resolve(layer, "content")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"^style_layers: stage5 \(relu5_1\)"):
        made.resolve("stage5", "style")


def test_nothing_deeper_than_asked_is_computed():
    made, seen = network("alexnet"), []
    for name, module in zip(made.layers, made.features, strict=True):
        module.register_forward_hook(lambda module, inputs, output, name=name: seen.append(name))
    assert set(made(picture(64), ("conv2", "relu1"))) == {"conv2", "relu1"}
    assert seen == ["conv1", "pool1", "conv2"]  # a ReLU is applied in place where its input is not asked for
    assert made(picture(64), ()) == {}


@pytest.mark.parametrize("name", ["alexnet", "squeezenet1_0", "zeros", "reflect"])
@pytest.mark.parametrize("pooling", ["max", "average"])
@torch.no_grad()
def test_too_small_images_are_the_users(name, pooling):
    made = small(pooling=pooling, padding=name) if name in ("zeros", "reflect") else network(name, pooling)
    worked = []
    for side in (1, 2, 3, 5, 6, 7, 14, 15, 16, 17, 18, 19, 31, 32, 34, 35, 62, 63, 64):
        image = picture(side, 1, width=64)
        try:
            made.features(image)
        except RuntimeError:  # torch's own opinion
            with pytest.raises(UserError, match=f"^{side} x 64 pixels are too few for [a-z0-9_]+; take a larger size$"):
                made(image, made.layers)
        else:
            worked.append(made(image, made.layers)[made.layers[-1]].shape[2])
    assert 1 < len(worked) < 19 and min(worked) > 0


@torch.no_grad()
def test_frozen_but_not_towards_the_image():
    made = network("vgg16")
    assert not made.training and not any(parameter.requires_grad for parameter in made.parameters())
    with torch.enable_grad():
        image = picture(32).requires_grad_()
        before = made(image, ("conv1_1", "relu1_1"))
        (before["conv1_1"].square().sum() + before["relu1_1"].sum()).backward()
    assert image.grad.abs().sum() > 0 and before["conv1_1"].min() < 0


def test_seeds():
    def features(seed):
        return build(Alexnet(weights="random", normalise=False), seed, None)(image, ("relu5",))["relu5"]

    image = picture(64)
    assert torch.equal(features(3), features(3)) and not torch.allclose(features(3), features(4))


@pytest.mark.parametrize("pooling", ["max", "average"])
@pytest.mark.parametrize("name", ["vgg19", "alexnet", "squeezenet1_0"])
@torch.no_grad()
def test_normalised_features_are_scaled_and_nothing_else(name, pooling, calibrated):
    plain, made = ((small(9, pooling) if name == "vgg19" else network(name, pooling)) for _ in range(2))
    random = torch.Generator().manual_seed(5)
    for one, other in zip(plain.parameters(), made.parameters(), strict=True):
        if one.ndim == 1:
            one.copy_(0.1 * torch.randn(one.shape, generator=random))
            other.copy_(one)
    backbones.normalise(made, calibrated)
    taps = tuple(layer for layer in made.layers if layer.startswith(("relu", "fire")))
    seen, ours, fresh = plain(calibrated, taps), made(calibrated, taps), picture(72, 2, seed=3)
    plain_fresh, made_fresh = plain(fresh, taps), made(fresh, taps)
    for layer in taps:
        means = seen[layer].double().mean((0, 2, 3)).numpy()
        halves = np.split(means, 2) if layer.startswith("fire") else [means]  # each expanding convolution by itself
        wanted = np.concatenate([naive_scale(half) for half in halves])
        scaled = (plain_fresh[layer] / torch.from_numpy(wanted).view(-1, 1, 1)).float()
        torch.testing.assert_close(made_fresh[layer], scaled, rtol=2e-3, atol=1e-4 * float(scaled.max()))
        common = (means > 0) & (means == wanted)
        assert common.mean() > 0.5
        np.testing.assert_allclose(ours[layer].double().mean((0, 2, 3)).numpy()[common], 1, atol=2e-3)


def naive_scale(means):
    fires = sorted(mean for mean in means if mean > 0)
    median = fires[(len(fires) - 1) // 2]
    return np.array([max(mean, 0.05 * median) if mean > 0 else 1.0 for mean in means])


@torch.no_grad()
def test_dead_and_rare_filters_are_not_blown_up(calibrated):
    plain, made = small(4), small(4)
    for net in (plain, made):
        net.features[5].bias[0] = -1e4  # conv2_1: dead
        values = net(calibrated, ("conv2_1",))["conv2_1"][:, 1]
        net.features[5].bias[1] = -values.flatten().sort().values[-3]  # two pixels of many fire
    backbones.normalise(made, calibrated)
    means = plain(calibrated, ("relu2_1",))["relu2_1"].mean((0, 2, 3))
    assert means[0] == 0 and 0 < means[1] < 0.05 * means[means > 0].median()
    torch.testing.assert_close(made.features[5].bias[0], torch.tensor(-1e4))
    rare = made(calibrated, ("relu2_1",))["relu2_1"].mean((0, 2, 3))[1]
    torch.testing.assert_close(rare, means[1] / (0.05 * means[means > 0].median()), rtol=1e-3, atol=0)


def test_normalise_is_part_of_the_config(calibrated):
    made = build(Vgg16(weights="random", normalise=True), 0, None)
    torch.testing.assert_close(made(calibrated, ("relu1_1",))["relu1_1"].mean((0, 2, 3)), torch.ones(64))
    pools = [module for module in made.features if isinstance(module, nn.AvgPool2d)]
    assert len(pools) == 5 and not any(isinstance(module, nn.MaxPool2d) for module in made.modules())


def test_bfloat16():
    made, image = network("alexnet"), picture(64)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = made(image, ("relu3",))["relu3"]
    full = made(image, ("relu3",))["relu3"]
    assert reduced.dtype == torch.bfloat16
    assert (reduced.float() - full).norm() < 0.02 * full.norm()


def test_weights_that_are_not_there(storage):
    with pytest.raises(UserError, match="'imagnet' is none of imagenet, small, random, or the SHA-256"):
        build(Vgg19(weights="imagnet"), 0, storage)
    with pytest.raises(UserError, match="missing"):
        build(Vgg19(weights="ab" * 32), 0, storage)


def test_weights_of_another_network(storage, tmp_path):
    tensors = weights.random("alexnet", 0).tensors
    torch.save(dict(tensors), tmp_path / "a.pth")
    digest = weights.import_weights(tmp_path / "a.pth", storage)
    with pytest.raises(UserError, match=rf"{digest[:12]} are of alexnet, not of vgg19"):
        build(Vgg19(weights=digest), 0, storage)
    made, image = build(Alexnet(weights=digest, normalise=False, pooling="max"), 0, storage), picture(64)
    assert torch.equal(made(image, ("relu5",))["relu5"], network("alexnet")(image, ("relu5",))["relu5"])


@torch.no_grad()
def test_real_pruned_network(shared, storage):
    """All layers as its authors' code runs them: colours, reflection padding, ReLU, 2 x 2 max pooling."""
    file = shared / "weights/style/vgg19_pruned16x_conv5_1.pth"
    state = torch.load(file, map_location="cpu", weights_only=True)["model"]
    digest = weights.import_weights(file, storage)
    made = build(Vgg19(weights=digest, normalise=False, pooling="max"), 0, storage)
    image = picture(64)
    features = functional.conv2d(image.double(), state["conv0.weight"].double(), state["conv0.bias"].double())
    for stage, count in ((1, 2), (2, 2), (3, 4), (4, 4), (5, 1)):
        for number in range(1, count + 1):
            weight, bias = (state[f"conv{stage}{number}.{what}"].double() for what in ("weight", "bias"))
            features = functional.conv2d(functional.pad(features, (1, 1, 1, 1), "reflect"), weight, bias).relu()
            ours = made(image, (f"relu{stage}_{number}",))[f"relu{stage}_{number}"]
            torch.testing.assert_close(ours.double(), features, rtol=1e-3, atol=1e-4 * float(features.max()))
        features = functional.max_pool2d(features, 2)
    assert made.layers[-1] == "relu5_1" and made.resolve("stage4", "content") == "relu4_2"


@torch.no_grad()
def test_real_normalised_network(shared, storage):
    """Gatys normalised it on ImageNet: on other pictures mean activations are near one (published: 1.07 to 1.26)."""
    digest = weights.import_weights(shared / "weights/style/vgg19_normalised_conv3_1.pth", storage)
    made = build(Vgg19(weights=digest, normalise=False, pooling="max"), 0, storage)
    layers = ("relu1_1", "relu1_2", "relu2_1", "relu2_2", "relu3_1")
    found = made(backbones.calibration()[..., 32:160, 32:160], layers)
    means = [float(found[layer].mean()) for layer in layers]
    assert made.layers[-1] == "relu3_1"
    np.testing.assert_allclose(means, [1.26, 1.15, 1.07, 1.17, 1.09], atol=0.15)
    medians = [float(found[layer].mean((0, 2, 3)).median()) for layer in layers]
    assert min(medians) > 0.9 and max(medians) < 1.3


@torch.no_grad()
def test_real_squeezenet_sees_right_colours(shared, storage):
    """Its own calibration: features of the first convolution are those of BGR pixels in 0..255 less the mean."""
    data = shared / "weights/style/squeezenet1_0_compressed.net"
    digest = weights.import_weights(data, storage)
    made = build(Squeezenet(weights=digest, normalise=False), 0, storage)
    image = picture(64)
    pixels = 255 * image[:, [2, 1, 0]] - torch.tensor([104.0, 117.0, 123.0]).view(3, 1, 1)
    layer = made.features[0]
    wanted = functional.conv2d(pixels, layer.weight[:, [2, 1, 0]], layer.bias, stride=2)
    torch.testing.assert_close(made(image, ("conv1",))["conv1"], wanted, rtol=1e-4, atol=1e-2)
