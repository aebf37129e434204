"""Weights files against layouts written here, encoded here, and decoded by plain loops."""

import io
import json
import os
import socket
import struct
import urllib.error

import numpy as np
import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import save
from torch.nn import functional

from retable.platform.errors import UserError
from retable.tasks.style.networks import weights

BGR = [[0, 0, 255], [0, 255, 0], [255, 0, 0]]
SQUEEZENET = {  # squeeze, expand (each of two): Iandola et al. 2016, table 1
    "3": (96, 16, 64),
    "4": (128, 16, 64),
    "5": (128, 32, 128),
    "7": (256, 32, 128),
    "8": (256, 48, 192),
    "9": (384, 48, 192),
    "10": (384, 64, 256),
    "12": (512, 64, 256),
}


def squeezenet_shapes():
    yield "features.0", (96, 3, 7, 7)
    for index, (inputs, squeeze, expand) in SQUEEZENET.items():
        yield f"features.{index}.squeeze", (squeeze, inputs, 1, 1)
        yield f"features.{index}.expand1x1", (expand, squeeze, 1, 1)
        yield f"features.{index}.expand3x3", (expand, squeeze, 3, 3)
    yield "classifier.1", (1000, 512, 1, 1)


def colours_state(keys, matrix=BGR, widths=(4, 5, 6, 7, 8), seed=0):
    random = torch.Generator().manual_seed(seed)
    state = {f"{keys[0]}.weight": torch.tensor(matrix, dtype=torch.float32).view(3, 3, 1, 1)}
    state[f"{keys[0]}.bias"] = torch.tensor([-103.939, -116.779, -123.68])
    inputs = 3
    for key, width in zip(keys[1:], widths, strict=True):
        state[f"{key}.weight"] = torch.randn(width, inputs, 3, 3, generator=random) / (50 if inputs == 3 else 4)
        state[f"{key}.bias"] = torch.randn(width, generator=random)
        inputs = width
    return state


def plain_colours(state, keys, image):
    """The layout as its authors run it: colours, then reflection padding before each 3 x 3 convolution."""
    features, found = functional.conv2d(image, state[f"{keys[0]}.weight"], state[f"{keys[0]}.bias"]), []
    for number, key in enumerate(keys[1:], 1):
        padded = functional.pad(features, (1, 1, 1, 1), mode="reflect")
        features = functional.relu(functional.conv2d(padded, state[f"{key}.weight"], state[f"{key}.bias"]))
        found.append(features)
        if number in (2, 4):
            features = functional.max_pool2d(features, 2)
    return found


def saved(path, value, **options):
    torch.save(value, path, **options)
    return path


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("keys", "matrix"),
    [
        (["0", "2", "5", "9", "12", "16"], BGR),
        (["conv0", "conv11", "conv12", "conv21", "conv22", "conv31"], [[3, -2, 254], [1, 252, 4], [249, 7, 2]]),
    ],
)
def test_colours_in_front_are_folded(tmp_path, storage, keys, matrix, legacy):
    state = colours_state(keys, matrix)
    extra = {"conv11_aux.weight": torch.zeros(9, 4, 1, 1), "conv11_aux.bias": torch.zeros(9)}
    whole = {"epoch": 3, "model": state | extra} if keys[0] == "conv0" else state
    file = saved(tmp_path / "a.pth", whole, _use_new_zipfile_serialization=not legacy)
    found = weights.stored(weights.import_weights(file, storage), storage)
    assert (found.network, found.padding) == ("vgg19", "reflect")
    assert {n for n in found.tensors if "weight" in n} == {f"features.{n}.weight" for n in (0, 2, 5, 7, 10)}
    image = torch.rand(2, 3, 24, 20, generator=torch.Generator().manual_seed(1))
    wanted = plain_colours(state, keys, image)
    features = (image - torch.tensor(found.mean).view(3, 1, 1)) / torch.tensor(found.std).view(3, 1, 1)
    ours = []
    for layer in weights.assemble(found, "max"):
        features = layer(features)
        ours += [features] if isinstance(layer, torch.nn.ReLU) else []
    assert len(ours) == 5
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_torchvisions_file_is_taken_as_it_is(tmp_path, storage):
    torch.manual_seed(0)
    state = torchvision.models.squeezenet1_0(weights=None).state_dict()
    digest = weights.import_weights(saved(tmp_path / "a.pth", state), storage)
    found = weights.stored(digest, storage)
    assert set(found.tensors) == {name for name in state if name.startswith("features.")}
    assert all(torch.equal(found.tensors[name], state[name]) for name in found.tensors)
    assert (found.network, found.padding) == ("squeezenet1_0", "zeros")
    usual = torchvision.models.SqueezeNet1_0_Weights.IMAGENET1K_V1.transforms()
    assert (list(found.mean), list(found.std)) == (usual.mean, usual.std)
    with safe_open(f"{storage}/weights/{digest}.safetensors", "pt") as file:
        fields = json.loads(file.metadata()["backbone"])
    assert set(fields) == {"network", "mean", "std", "padding", "source"}


@pytest.mark.parametrize("network", ["vgg16", "vgg19", "alexnet"])
def test_torchvisions_names_are_recognised(tmp_path, storage, network):
    with torch.device("meta"):
        shapes = torchvision.models.get_model(network, weights=None).features.state_dict()
    state = {f"features.{name}": torch.zeros(like.shape, dtype=torch.float16) for name, like in shapes.items()}
    file = saved(tmp_path / "a.pth", state | {"classifier.6.weight": torch.zeros(3, 3)})
    found = weights.recognise(file, file.read_bytes())
    assert found.network == network
    assert {name: value.shape for name, value in found.tensors.items()} == {n: v.shape for n, v in state.items()}
    assert weights.assemble(found, "average")(torch.zeros(1, 3, 64, 64)).dtype == torch.float32


def test_the_same_file_has_the_same_digest(tmp_path, storage):
    file = saved(tmp_path / "a.pth", colours_state(["0", "2", "5", "9", "12", "16"]))
    assert len({weights.import_weights(file, storage) for _ in range(3)}) == 1
    assert len(storage.list("weights")) == 1


def compressed(seed=0):
    """Encode random sparse layers: each kept weight is a code of a book, gaps fit four bits (at most 15 skipped)."""
    random = np.random.default_rng(seed)
    counts, blocks, wanted = [], [], {}
    for name, shape in squeezenet_shapes():
        size = int(np.prod(shape))
        steps = random.integers(1, 17, size)
        index = np.cumsum(steps) - 1
        index = index[index < size]
        book, bias = random.normal(0, 0.1, 256).astype("<f4"), random.normal(size=shape[0]).astype("<f4")
        codes = random.integers(0, 256, len(index)).astype("u1")
        dense = np.zeros(size, np.float32)
        dense[index] = book[codes]
        wanted[name] = (dense.reshape(shape), bias)
        nibbles = (steps[: len(index)] - 1).tolist() + [0] * (len(index) % 2)
        packed = bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True))
        counts.append(len(index))
        blocks.append(book.tobytes() + bias.tobytes() + codes.tobytes() + packed)
    return struct.pack("<26I", *counts) + b"".join(blocks), wanted


def test_compressed_squeezenet(tmp_path, storage):
    data, wanted = compressed()
    (tmp_path / "a.net").write_bytes(data)
    found = weights.stored(weights.import_weights(tmp_path / "a.net", storage), storage)
    assert found.network == "squeezenet1_0"
    np.testing.assert_allclose(found.mean, np.array([123, 117, 104]) / 255)
    for name, (weight, bias) in wanted.items():
        if name.startswith("features."):
            weight = weight[:, ::-1] if name == "features.0" else weight  # BGR
            np.testing.assert_array_equal(found.tensors[f"{name}.weight"], weight)
            np.testing.assert_array_equal(found.tensors[f"{name}.bias"], bias)


def test_real_compressed_squeezenet(shared):
    data = (shared / "weights/style/squeezenet1_0_compressed.net").read_bytes()
    found = weights.recognise(shared, data)
    counts, place, kept = struct.unpack("<26I", data[:104]), 104, 0
    for count, (name, shape) in zip(counts, squeezenet_shapes(), strict=True):
        floats = struct.unpack_from(f"<{256 + shape[0]}f", data, place)
        place += 4 * len(floats)
        codes, gaps = data[place : place + count], data[place + count : place + count + (count - 1) // 2 + 1]
        place += count + len(gaps)
        dense, index = [0.0] * int(np.prod(shape)), -1
        for k, code in enumerate(codes):
            index += (gaps[k // 2] >> 4 * (k % 2) & 15) + 1
            dense[index] = floats[code]
        kept += count
        if name.startswith("features."):
            weight = np.array(dense, np.float32).reshape(shape)
            weight = weight[:, ::-1] if name == "features.0" else weight
            np.testing.assert_array_equal(found.tensors[f"{name}.weight"], weight)
            np.testing.assert_array_equal(found.tensors[f"{name}.bias"], np.array(floats[256:], np.float32))
    assert place == len(data)  # nothing is left over
    zeros = sum(float((value == 0).sum()) for name, value in found.tensors.items() if "weight" in name)
    sizes = sum(value.numel() for name, value in found.tensors.items() if "weight" in name)
    assert 0.5 < zeros / sizes < 0.75  # 66 % are published for the whole network


class Code:
    def __reduce__(self):
        return os.makedirs, ("was-run",)


def hostile():
    keys = ["0", "2", "5", "9", "12", "16"]
    good = colours_state(keys)
    data, _ = compressed()

    def of(value):
        stream = io.BytesIO()
        torch.save(value, stream)
        return stream.getvalue()

    yield "empty", b""
    yield "text", b"some words\n" * 50
    yield "cut zip", of(good)[:2000]
    yield "cut pickle", b"\x80\x02" + b"x" * 200
    yield "cut net", data[:-1]
    yield "long net", data + b"\0"
    yield "wild net", data[: 104 + 4 * (256 + 96)] + b"\xff" * (len(data) - 104 - 4 * (256 + 96))
    yield "huge net", b"\xff" * 104
    yield "code", of({"a": Code()})
    yield "list", of([torch.zeros(3)])
    yield "unknown", of({"head.weight": torch.zeros(3, 3)})
    yield "numbers alone", of({"epoch": 3, "model": {"lr": 0.1}})
    yield "no bias", of({name: value for name, value in good.items() if name != "5.bias"})
    yield "widths", of(good | {"5.weight": torch.zeros(5, 3, 3, 3)})
    yield "kernel", of(good | {"5.weight": torch.zeros(5, 4, 5, 5)})
    yield "bias", of(good | {"5.bias": torch.zeros(4)})
    yield "bomb", of(good | {"5.weight": torch.zeros(1).expand(1 << 40).view(1 << 20, 1 << 20, 1, 1)})
    yield "nan", of(good | {"5.bias": torch.full((5,), float("nan"))})
    yield "singular", of(good | {"0.weight": torch.ones(3, 3, 1, 1)})
    yield "nan colours", of(good | {"0.weight": torch.full((3, 3, 1, 1), float("nan"))})
    yield "whole numbers", of({name: value.long() for name, value in good.items()})


HOSTILE = dict(hostile())


@pytest.mark.parametrize("what", HOSTILE)
def test_a_bad_file_is_one_clear_line(tmp_path, monkeypatch, storage, what):
    monkeypatch.chdir(tmp_path)  # where the hostile code would make its folder
    file = tmp_path / "bad.pth"
    file.write_bytes(HOSTILE[what])
    with pytest.raises(UserError) as caught:
        weights.import_weights(file, storage)
    text = str(caught.value)
    assert text.startswith(f"{file}: ") and "\n" not in text and len(text) < 450
    assert "weights_only" not in text and not (tmp_path / "was-run").exists()
    assert not storage.exists("weights")


def test_unreadable_files(tmp_path, storage):
    for path in (tmp_path / "absent.pth", tmp_path):
        with pytest.raises(UserError, match=f"^{path}: [A-Z].*[a-z]$"):
            weights.import_weights(path, storage)


def test_stored_weights_are_checked(tmp_path, storage):
    keys = ["0", "2", "5", "9", "12", "16"]
    digest = weights.import_weights(saved(tmp_path / "a.pth", colours_state(keys)), storage)
    with pytest.raises(UserError, match="missing"):
        weights.stored("0" * 64, storage)
    with pytest.raises(UserError, match="missing"):
        weights.stored(digest, None)
    for data in (save({"a": torch.zeros(2)}), save({"a": torch.zeros(2)}, metadata={"backbone": "?"}), b"words"):
        other = weights.sha256(data)
        storage.write(f"weights/{other}.safetensors", data)
        with pytest.raises(UserError, match="no weights of the kind backbone"):
            weights.stored(other, storage)
    storage.write(f"weights/{digest}.safetensors", b"changed")
    with pytest.raises(UserError, match="another file"):
        weights.stored(digest, storage)


def test_layers_in_between_may_not_be_missing():
    state = weights.random("alexnet", 0)
    for gone in ("features.3.weight", "features.3.bias"):
        some = {name: value for name, value in state.tensors.items() if name != gone}
        with pytest.raises(ValueError, match=r"layer 3 of alexnet is missing, but features\."):
            weights.assemble(weights.Weights("alexnet", some), "max")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(socket, "socket", None)  # whatever opens a connection fails
    folder = tmp_path / "hub/checkpoints"
    folder.mkdir(parents=True)
    return folder / "squeezenet1_0-b66bff10.pth"


def test_imagenet_weights_from_the_cache(offline, capsys):
    torch.manual_seed(1)
    state = torchvision.models.squeezenet1_0(weights=None).state_dict()
    torch.save(state, offline)
    found = weights.imagenet("squeezenet1_0")
    assert all(torch.equal(value, state[name]) for name, value in found.tensors.items())
    assert len(found.tensors) == 50  # 25 convolutions, without the classifier's
    assert capsys.readouterr().out == ""


def test_imagenet_weights_that_cannot_be_had(offline, monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr(torch.hub, "urlopen", refuse)
    with pytest.raises(UserError, match=r"name resolution\); take weights=random, .*retable style weights") as caught:
        weights.imagenet("squeezenet1_0")
    assert "\n" not in str(caught.value) and capsys.readouterr().out == ""
    for data in (b"", b"half a file", b"\x80\x02"):
        offline.write_bytes(data)
        with pytest.raises(UserError, match="broken; remove"):
            weights.imagenet("squeezenet1_0")


def test_random_weights():
    first, same, other = (weights.random("alexnet", seed).tensors for seed in (0, 0, 1))
    for name, value in first.items():
        assert torch.equal(value, same[name])
        if name.endswith("bias"):
            assert not value.any()
            continue
        assert not torch.equal(value, other[name])
        inputs = value[0].numel()
        assert float(value.std()) == pytest.approx((2 / inputs) ** 0.5, rel=0.02)  # He et al. 2015, equation 10
        assert abs(float(value.mean())) < 0.02 * inputs**-0.5
