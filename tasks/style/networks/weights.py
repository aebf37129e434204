"""Weights of the backbones: torchvision's, random ones, and those of files that others trained.

All are brought to one form: torchvision's tensor names and layers, on RGB images in [0, 1] of which a mean colour is
subtracted and which are divided by a standard deviation. Other orders of channels, scales and colour maps in front are
linear, so they go into the first convolution, and the features stay those of the file's own layout.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from retable.platform.errors import UserError
from retable.platform.store import weights
from retable.platform.store.run import sha256
from retable.platform.store.storage import Storage
from retable.tasks.style.streams import BACKBONE, torch_generator

NETWORKS = ("vgg16", "vgg19", "alexnet", "squeezenet1_0")
"""torchvision's names."""
KNOWN = (
    "known are torchvision's .pth files of VGG-16, VGG-19, AlexNet and SqueezeNet 1.0, VGG-19 with a 1x1 convolution "
    "in front (normalised or pruned), and the compressed SqueezeNet 1.0 (.net)"
)
LEVELS = 255.0
"""Scale of weight files that take pixels in 0..255."""
SQUEEZENET_MEAN = (104.0, 117.0, 123.0)
"""Mean colour of the compressed SqueezeNet's inputs: blue, green, red in 0..255 (Iandola et al. 2016, prototxt)."""
CODES = 256
"""Entries of a codebook of the compressed SqueezeNet."""

SMALL = {name: Path(__file__).with_name(f"small_{name}.safetensors") for name in ("vgg19", "alexnet")}
"""The small networks that come with the task."""

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Weights:
    """A backbone's convolutions, from the first to any depth."""

    network: str
    """One of `NETWORKS`."""
    tensors: Mapping[str, Tensor]
    """`features.N.weight` and `.bias` (SqueezeNet: `features.N.squeeze.weight`, ...), N as in torchvision's whole
    network; float32. There may be fewer filters than torchvision's."""
    mean: Colour = (0.485, 0.456, 0.406)
    """Mean color subtracted from images: red, green, blue in [0, 1]. The default is torchvision's, of ImageNet."""
    std: Colour = (0.229, 0.224, 0.225)
    padding: Literal["zeros", "reflect"] = "zeros"


def architecture(network: str) -> nn.Sequential:
    """Return the convolutional part of torchvision's network on the device `meta`: its tensors take no memory."""
    from torchvision.models import get_model

    with torch.device("meta"):
        features: nn.Sequential = get_model(network, weights=None).features
    return features


def assemble(loaded: Weights, pooling: Literal["average", "max"]) -> nn.Sequential:
    """Build torchvision's layers with these weights, up to the first layer that has none; frozen.

    ReLUs are never in place, so that every output may be kept. Average pooling has the windows of the network's own
    max pooling, and where one overlaps the border (SqueezeNet) its mean is over the pixels there are.

    Raises:
        ValueError: where a tensor is missing in between, or its shape is not its layer's.
    """
    rest = dict(loaded.tensors)
    layers: list[nn.Module] = []
    for index, layer in enumerate(architecture(loaded.network)):
        if any(f"features.{index}.{name}" not in rest for name, _ in layer.named_parameters()):
            break
        layers.append(_layer(layer, f"features.{index}", rest, loaded.padding, pooling))
    if rest:
        raise ValueError(f"layer {len(layers)} of {loaded.network} is missing, but {min(rest)} is there")
    return nn.Sequential(*layers)


def _layer(layer: nn.Module, name: str, rest: dict[str, Tensor], padding: str, pooling: str) -> nn.Module:
    """Return a layer for `assemble`; its tensors are removed from `rest`."""
    from torchvision.models.squeezenet import Fire

    match layer:
        case nn.Conv2d():
            return _convolution(layer, name, rest.pop(f"{name}.weight"), rest.pop(f"{name}.bias"), padding)
        case nn.MaxPool2d() if pooling == "average":
            return nn.AvgPool2d(layer.kernel_size, layer.stride, ceil_mode=layer.ceil_mode)
        case nn.ReLU():
            return nn.ReLU()
        case Fire():
            for child, module in list(layer.named_children()):
                setattr(layer, child, _layer(module, f"{name}.{child}", rest, padding, pooling))
    return layer


def _convolution(layer: nn.Conv2d, name: str, weight: Tensor, bias: Tensor, padding: str) -> nn.Conv2d:
    """Return torchvision's convolution with the weights, and so the number of filters, of the file."""
    filters, inputs, *kernel = weight.shape if weight.ndim == 4 else (0, 0)
    fits = 0 < filters <= layer.out_channels and 0 < inputs <= layer.in_channels and bias.shape == (filters,)
    if not fits or tuple(kernel) != layer.kernel_size:
        wanted = (layer.out_channels, layer.in_channels, *layer.kernel_size)
        raise ValueError(f"{name} has shape {tuple(weight.shape)}, bias {tuple(bias.shape)}, where {wanted} is usual")
    like = (layer.kernel_size, layer.stride, layer.padding)
    made = nn.Conv2d(inputs, filters, *like, padding_mode=padding, device="meta")  # type: ignore[arg-type]
    made.weight = nn.Parameter(weight.detach().float().contiguous().clone(), requires_grad=False)
    made.bias = nn.Parameter(bias.detach().float().contiguous().clone(), requires_grad=False)
    return made


def random(network: str, seed: int) -> Weights:
    """Draw He-normal weights (fan in, zero bias), which keep activations' magnitudes; the same for the same seed."""
    generator = torch_generator(seed, BACKBONE)
    tensors = {}
    for name, like in architecture(network).named_parameters():
        tensor = torch.zeros(like.shape)
        if name.endswith("weight"):
            nn.init.kaiming_normal_(tensor, nonlinearity="relu", generator=generator)
        tensors[f"features.{name}"] = tensor
    return Weights(network, tensors)


def imagenet(network: str) -> Weights:
    """Return torchvision's ImageNet weights, downloaded to torch's cache unless they are there.

    Raises:
        UserError: where they cannot be downloaded, or the file in the cache is broken.
    """
    from torchvision.models import get_model_weights

    entry: Any = get_model_weights(network)["IMAGENET1K_V1"]
    try:
        with contextlib.redirect_stdout(sys.stderr):  # torch prints that it downloads; standard output is for results
            state = entry.get_state_dict(progress=False, check_hash=True, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(
            f"weights imagenet: {entry.url} cannot be downloaded ({_reason(error)}); take weights=random, or put the "
            f"file into {torch.hub.get_dir()}/checkpoints, or name a file of yours (`retable style weights FILE`)"
        ) from error
    except Exception as error:  # unpickling a broken file raises almost anything
        where = f"{torch.hub.get_dir()}/checkpoints/{entry.url.rsplit('/', 1)[-1]}"
        raise UserError(f"weights imagenet: {entry.url}, or its copy {where}, is broken; remove the copy") from error
    return Weights(network, {name: value for name, value in state.items() if name.startswith("features.")})


def small(network: str) -> Weights:
    """Return the small network that comes with the task; see `distil`. A config refuses kinds that have none."""
    return _sealed(*weights.unsealed(SMALL[network].read_bytes(), "backbone"))


def stored(digest: str, storage: Storage | None) -> Weights:
    """Read the weights that `import_weights` wrote.

    Raises:
        UserError: where the file is missing, changed, or of another kind.
    """
    return _sealed(*weights.stored(digest, storage, "import it by `retable style weights FILE`", "backbone"))


def _sealed(tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> Weights:
    """Return `Weights` from a file's tensors and fields."""
    mean, std = tuple(fields["mean"]), tuple(fields["std"])
    tensors = {name: value.float() for name, value in tensors.items()}
    return Weights(fields["network"], tensors, mean, std, fields["padding"])


def import_weights(file: Path, storage: Storage) -> str:
    """Import a backbone's file as `<storage>/weights/<sha256>.safetensors`, and return that digest.

    Classifiers and other tensors beside the path of convolutions are dropped. A file with torchvision's names is taken
    to want torchvision's preprocessing. The same file gives the same digest.

    Raises:
        UserError: where the file cannot be read, is of no known layout, or its tensors do not fit each other.
    """
    data = weights.read_bytes(file)
    loaded = recognise(file, data)
    try:
        weights.check_finite(loaded.tensors)
        assemble(loaded, "max")(torch.zeros(1, 3, 64, 64))  # whether each layer takes what the one before gives
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{file}: no {loaded.network}: {str(error).splitlines()[0]}; {KNOWN}") from error
    fields = dict(vars(loaded))
    tensors, fields["source"] = fields.pop("tensors"), sha256(data)
    return weights.keep(weights.sealed(tensors, "backbone", fields), storage)


def recognise(file: Path, data: bytes) -> Weights:
    """Return the weights of a file in any known layout.

    Raises:
        UserError: where they are of no known layout.
    """
    loaded: Weights | None
    if "backbone" in (weights.metadata(data) or {}):
        loaded = _sealed(*weights.unsealed(data, "backbone"))
    elif data.startswith((b"PK", b"\x80")) or weights.metadata(data) is not None:
        state = weights.read_tensors(file, data, KNOWN, "features.0.weight", "0.weight", "conv0.weight")
        loaded = _torchvision(state) or _with_colours(state)
    else:
        loaded = decompress(data)
    if loaded is None:
        raise UserError(f"{file}: unknown weights, or not the whole file; {KNOWN}")
    return loaded


def _torchvision(state: Mapping[str, Tensor]) -> Weights | None:
    """Recognise torchvision's own names, with or without the classifier."""
    features = {name: value for name, value in state.items() if name.startswith("features.")}
    for network in NETWORKS:
        if features.keys() == {f"features.{name}" for name, _ in architecture(network).named_parameters()}:
            return Weights(network, {name: value.float() for name, value in features.items()})
    return None


def _with_colours(state: Mapping[str, Tensor]) -> Weights | None:
    """Recognise VGG-19 with a 1x1 convolution of colours in front and reflection padding.

    Names are `0`, `2`, `5`, ... (Gatys' normalised network, as converted for universal style transfer) or `conv0`,
    `conv11`, `conv12`, ... (16x pruned, with auxiliary layers `conv11_aux` beside them).
    """
    numbers = sorted((int(n[1]), n[0][:-7]) for name in state if (n := re.fullmatch(r"(?:conv)?(\d+)\.weight", name)))
    names = [name for _, name in numbers]
    places = [f"features.{n[:-7]}" for n, _ in architecture("vgg19").named_parameters() if n.endswith("weight")]
    if not 1 < len(names) <= len(places) + 1 or any(f"{name}.bias" not in state for name in names):
        return None
    matrix, offset = state[f"{names[0]}.weight"].double(), state[f"{names[0]}.bias"].double()
    if numbers[0][0] != 0 or matrix.shape != (3, 3, 1, 1) or offset.shape != (3,):
        return None
    tensors = {}
    for target, name in zip(places, names[1:], strict=False):  # a file may end at any convolution
        tensors[f"{target}.weight"], tensors[f"{target}.bias"] = state[f"{name}.weight"].float(), state[f"{name}.bias"]
    return _fold("vgg19", tensors, matrix[:, :, 0, 0], offset, "reflect")


def _fold(
    network: str, tensors: dict[str, Tensor], matrix: Tensor, offset: Tensor, padding: Literal["zeros", "reflect"]
) -> Weights | None:
    """Put `matrix @ image + offset` in front: the mean colour m with matrix @ m = -offset, and a new first layer.

    Exact with either padding: what is padded is `image - m`, and a matrix maps zero to zero.
    """
    first = tensors["features.0.weight"]
    if first.ndim != 4 or first.shape[1] != 3 or not matrix.isfinite().all() or matrix.det() == 0:
        return None
    red, green, blue = torch.linalg.solve(matrix, -offset).tolist()
    turned = torch.einsum("ochw,ci->oihw", first.double(), matrix / LEVELS)
    tensors = {name: value.float() for name, value in tensors.items()} | {"features.0.weight": turned.float()}
    return Weights(network, tensors, (red, green, blue), (1 / LEVELS,) * 3, padding)


def decompress(data: bytes) -> Weights | None:
    """Decode the compressed SqueezeNet 1.0 (Iandola et al. 2016; Han et al. 2016); None where `data` is no such file.

    Numbers are little-endian. uint32 count[26], then of each convolution, the classifier's last: a codebook of 256
    float32, float32 biases, uint8 codes of the `count` weights kept, and the gaps between them in four bits each, the
    low half of a byte first. Weights left out are zero. Inputs are BGR in 0..255 with a mean colour subtracted.
    """
    from torchvision.models import get_model

    with torch.device("meta"):
        network = get_model("squeezenet1_0", weights=None)
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Conv2d)}
    head = 4 * len(layers)
    if len(data) < head:
        return None
    counts = np.frombuffer(data[:head], "<u4").astype(int)
    biases = [layer.out_channels for layer in layers.values()]
    sizes = [4 * (CODES + bias) + n + (n + 1) // 2 for bias, n in zip(biases, counts.tolist(), strict=True)]
    if len(data) != head + sum(sizes):
        return None
    starts = head + np.cumsum([0, *sizes])
    tensors = {}
    for (name, layer), start, count in zip(layers.items(), starts, counts, strict=False):
        filters, shape = layer.out_channels, layer.weight.shape
        floats = np.frombuffer(data, "<f4", CODES + filters, start)
        codes = np.frombuffer(data, "u1", count, start + floats.nbytes)
        packed = np.frombuffer(data, "u1", (count + 1) // 2, start + floats.nbytes + count)
        gaps = np.stack((packed & 15, packed >> 4), 1).reshape(-1)[:count].astype(int)
        index = (gaps + 1).cumsum() - 1
        if count and index[-1] >= shape.numel():
            return None
        weight = np.zeros(shape.numel(), np.float32)
        weight[index] = floats[codes]
        tensors[f"{name}.weight"] = torch.from_numpy(weight).view(shape)
        tensors[f"{name}.bias"] = torch.from_numpy(floats[CODES:].copy())
    features = {name: value for name, value in tensors.items() if name.startswith("features.")}
    bgr = LEVELS * torch.eye(3, dtype=torch.float64).flip(0)
    return _fold("squeezenet1_0", features, bgr, -torch.tensor(SQUEEZENET_MEAN, dtype=torch.float64), "zeros")


def _reason(error: OSError) -> str:
    """Return the reason of an error in one line."""
    return str(getattr(error, "reason", None) or error.strerror or error).splitlines()[0]
