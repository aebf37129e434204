"""The small backbone: how much of the large one it knows, and how it is made."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.style.config import Alexnet, Squeezenet, Vgg16, Vgg19
from retable.tasks.style.files import assets, images
from retable.tasks.style.networks import backbones, weights
from retable.tasks.style.networks.backbones import build
from retable.tasks.style.tools.distil import LAYERS, RECIPES, Student, aligned, distil, least_squares, rows

torch.set_num_threads(1)
KNOWN = (0.03, 0.05, 0.04, 0.19, 0.19)
"""What the shipped network may leave of each layer's variance on pictures that it was not trained on."""

DISTILLED = json.loads((Path(__file__).parents[3] / "benchmarks/results/style_distilled.json").read_text())
"""What was measured of both small networks."""


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return Storage.open(tmp_path_factory.mktemp("distil") / "storage")


@pytest.fixture(scope="module")
def digest(shared, storage):
    return weights.import_weights(shared / "weights/style/vgg19_normalised_conv3_1.pth", storage)


@pytest.fixture(scope="module")
def teacher(storage, digest):
    return digest, build(Vgg19(weights=digest, normalise=True), 0, storage)


def pictures(shared, split, first, count, size):
    files = sorted((shared / "data/style/bsds500").glob(f"{split}_*.jpg"))[first : first + count]
    return torch.cat([images.to_tensor(images.read(file).pixels[:size, :size]) for file in files])


def unseen(shared, count=6, size=128):
    return pictures(shared, "test", 100, count, size)


@torch.no_grad()
def unexplained(small, large, batch, network="vgg19", fitted=None):
    """Return which share of the variance of the teacher's features the best matrix on the small one's leaves.

    One number for each layer of the recipe; least squares over all positions of other pictures, `fitted`, with a
    constant. Without them it is over the batch itself, which favors a network of many filters.
    """
    shares, layers = [], RECIPES[network][1]
    ours, theirs, mine, taught = (
        net(pictures, names)
        for pictures in (batch, batch if fitted is None else fitted)
        for net, names in ((small, tuple(layers)), (large, tuple(layers.values())))
    )
    for layer, name in layers.items():
        solution = least_squares(*map(rows, aligned(mine[layer], taught[name])))
        x, y = map(rows, aligned(ours[layer], theirs[name]))
        left = y - x @ solution[:-1] - solution[-1]
        shares.append(float(left.square().sum() / (y - y.mean(0)).square().sum()))
    return shares


def test_the_shipped_network_ends_where_it_says(storage):
    small = build(Vgg19(weights="small", normalise=False), 0, storage)
    found = small(torch.rand(1, 3, 16, 24), LAYERS)
    assert [found[layer].shape[1] for layer in LAYERS] == [32, 32, 64, 64, 128]
    assert found["relu3_1"].shape[2:] == (4, 6)
    with pytest.raises(UserError, match="relu4_1 is not among the layers of these weights"):
        small.resolve("relu4_1", "style")


@pytest.mark.slow  # it depends on the shipped file alone
def test_the_shipped_network_sees_what_the_large_one_sees(shared, storage, teacher):
    small = build(Vgg19(weights="small", normalise=True), 0, storage)
    found = unexplained(small, teacher[1], unseen(shared), fitted=pictures(shared, "val", 0, 6, 128))
    assert all(left < most for left, most in zip(found, KNOWN, strict=True)), found
    assert found == pytest.approx(DISTILLED["vgg19"]["unexplained"], abs=0.005)


def test_what_is_unexplained_is_what_least_squares_leaves(storage):
    small = build(Vgg19(weights="small", normalise=False), 0, storage)
    other = build(Vgg19(weights="random", normalise=False), 3, storage)
    batch = torch.cat([images.to_tensor(images.read(p).pixels[:32, :32]) for p in assets.photographs().values()])
    found = unexplained(small, other, batch)
    for left, layer in zip(found, LAYERS, strict=True):
        own, wanted = (rows(net(batch, [layer])[layer]).numpy() for net in (small, other))
        own = own - own.mean(0)
        wanted = wanted - wanted.mean(0)
        projected = own @ (np.linalg.pinv(own, rcond=1e-10) @ wanted)
        assert left == pytest.approx(((wanted - projected) ** 2).sum() / (wanted**2).sum(), abs=1e-4)
    assert unexplained(small, small, batch) == pytest.approx([0.0] * 5, abs=1e-6)


@pytest.mark.slow
def test_a_student_begins_with_most_of_what_its_teacher_knows(shared, teacher):
    """Kernel and matrix before it are one product, so the chosen filters are nearly the teacher's own."""
    large, batch = teacher[1], unseen(shared)
    with torch.no_grad():
        wanted = large(batch, LAYERS)
        student = Student(
            "vgg19", large, [wanted[layer].shape[1] for layer in LAYERS], float(large.prepare(batch).std())
        )
        student.begin(large, batch)
        made = student(batch)
    for layer, own, most in zip(LAYERS, made, (0.02, 0.05, 0.1, 0.3, 0.4), strict=True):
        left = (own - wanted[layer]).square().sum() / (
            wanted[layer] - wanted[layer].mean((0, 2, 3), True)
        ).square().sum()
        assert left < most, layer


@pytest.mark.slow
def test_what_is_distilled_is_a_backbones_file(shared, storage, teacher, tmp_path):
    seen = []
    photographs = sorted((shared / "data/style/bsds500").glob("train_*.jpg"))[:4]
    data = distil(photographs, teacher[0], 3, storage, lambda step, left: seen.append((step, left)))
    (tmp_path / "small.safetensors").write_bytes(data)
    digest = weights.import_weights(tmp_path / "small.safetensors", storage)
    assert [step for step, _ in seen] == [1, 2, 3] and len(data) < 300_000
    made = build(Vgg19(weights=digest, normalise=True), 0, storage)
    found = unexplained(made, teacher[1], unseen(shared, 3))
    assert all(left < 2.5 * most for left, most in zip(found, KNOWN, strict=True)), found


def test_pictures_that_are_too_small_are_told(storage, digest, tmp_path, monkeypatch):
    monkeypatch.setattr(backbones, "normalise", lambda network, pictures: None)  # it takes a second
    images.write(tmp_path / "tiny.png", np.zeros((40, 200, 3), np.uint8))
    with pytest.raises(UserError, match="no picture is of 112 x 112 pixels or more"):
        distil([tmp_path / "tiny.png"], digest, 1, storage, lambda step, left: None)


def test_the_small_alexnet_has_half_the_filters_and_ends_at_its_third_layer(storage):
    small = build(Alexnet(weights="small", normalise=False), 0, storage)
    found = small(torch.rand(1, 3, 64, 96), ("relu1", "relu2", "relu3"))
    assert [tuple(found[f"relu{n}"].shape[1:]) for n in (1, 2, 3)] == [(32, 15, 23), (96, 7, 11), (192, 3, 5)]
    with pytest.raises(UserError, match="relu4 is not among the layers of these weights"):
        small.resolve("relu4", "style")


@pytest.mark.slow
def test_what_the_small_alexnet_knows_of_its_teacher_on_pictures_that_no_matrix_was_fitted_on(shared, storage):
    """Next to nothing in its third layer: figures 2 and 3 do not take it for a trained AlexNet."""
    digest = weights.import_weights(shared / "weights/style/squeezenet1_0_compressed.net", storage)
    teacher = build(Squeezenet(weights=digest, normalise=True), 0, storage)
    held, fitted = unseen(shared, 12, 224), pictures(shared, "val", 0, 48, 224)
    small, random = (
        unexplained(build(Alexnet(weights=name, normalise=False), 0, storage), teacher, held, "alexnet", fitted)
        for name in ("small", "random")
    )
    assert small == pytest.approx(DISTILLED["alexnet"]["unexplained"], abs=0.005)
    assert random == pytest.approx(DISTILLED["alexnet"]["random"], abs=0.005)
    assert all(left < other for left, other in zip(small, random, strict=True)), "of twice the filters"


def test_a_network_without_a_small_one_is_told():
    assert set(RECIPES) == set(weights.SMALL)
    with pytest.raises(ValueError, match="weights small are of vgg19 and alexnet, not of vgg16"):
        Vgg16(weights="small")
