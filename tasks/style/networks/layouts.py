"""Files of others: weights of transformation networks in the layouts in which they are published.

Each layout's conventions are brought to this project's: images in [0, 1], red first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.store import weights

RESIDUALS = [(f"res{block}.conv{part}.conv2d", f"res{block}.in{part}") for block in range(1, 6) for part in (1, 2)]
EXAMPLE_NAMES = [
    ("conv1.conv2d", "in1"),
    ("conv2.conv2d", "in2"),
    ("conv3.conv2d", "in3"),
    *RESIDUALS,
    ("deconv1.conv2d", "in4"),
    ("deconv2.conv2d", "in5"),
    ("deconv3.conv2d", None),
]
"""Convolution and instance normalisation of each layer in pytorch/examples' `fast_neural_style`."""
GORDIC_NAMES = [
    *EXAMPLE_NAMES[:3],
    *RESIDUALS,
    ("up1.conv2d.conv2d", "in4"),
    ("up2.conv2d.conv2d", "in5"),
    ("up3.conv2d", None),
]
"""The same in gordicaleksa/pytorch-neural-style-transfer-johnson."""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FIRST = ("layers.0.convolution.weight", "conv1.conv2d.weight", "Variable_47", "ConvBlock.0.conv_layer.weight")
"""A tensor of each layout by which its network is found: ours, pytorch/examples' and gordicaleksa's, lengstrom's and
rrmina's."""
MANIFEST = "manifest.json"
"""File that marks a folder as one of a network's variables."""
Converted = tuple[dict[str, Any], dict[str, Tensor]]
"""Arguments of `TransformerNetwork` and its state dict."""


def convert(tensors: Mapping[str, Tensor]) -> Converted:
    """Convert a foreign state dict, recognised by its names.

    Raises:
        UserError: where the layout is unknown or a tensor is missing.
    """
    try:
        if "up3.conv2d.weight" in tensors:
            return _gordic(tensors)
        if "conv1.conv2d.weight" in tensors:
            return _example(tensors)
        if "ConvBlock.0.conv_layer.weight" in tensors:
            return _rrmina(tensors)
        if "Variable_47" in tensors:
            return _tensorflow(tensors)
    except KeyError as error:
        raise UserError(f"the weights have no tensor {error}; the file is incomplete") from error
    raise UserError(
        "no weights of a transformation network; known are files that retable trained, state dicts of "
        "pytorch/examples' fast_neural_style, gordicaleksa/pytorch-neural-style-transfer-johnson and "
        "rrmina/fast-neural-style-pytorch, and variables of lengstrom/fast-style-transfer (also ml5's folders of them)"
    )


def _named(tensors: Mapping[str, Tensor], names: Sequence[tuple[str, str | None]], who: str) -> dict[str, Tensor]:
    """Rename the tensors of layers in order; `who` is what an error calls the layout."""
    state = {}
    for index, (convolution, norm) in enumerate(names):
        for part in ("weight", "bias"):
            state[f"layers.{index}.convolution.{part}"] = tensors[f"{convolution}.{part}"]
            if norm is not None:
                state[f"layers.{index}.norm.{part}"] = tensors[f"{norm}.{part}"]
    if len(tensors) != len(state):
        raise UserError(f"the weights have {len(tensors)} tensors, {who}'s networks {len(state)}")
    return state


def _example(tensors: Mapping[str, Tensor]) -> Converted:
    """Convert pytorch/examples: RGB 0 to 255 in and out, resizing; files before 2018 have unused running statistics."""
    tensors = {name: value for name, value in tensors.items() if not re.search(r"in\d\.running_(mean|var)$", name)}
    state = _named(tensors, EXAMPLE_NAMES, "fast_neural_style")
    state["layers.0.convolution.weight"] = state["layers.0.convolution.weight"] * 255
    return {"filters": len(tensors["in1.weight"]), "upsampling": "resize"}, state


def _gordic(tensors: Mapping[str, Tensor]) -> Converted:
    """Convert gordicaleksa's: RGB less ImageNet's mean over its deviation, in and out; resizing.

    Both scales are linear and the same at every pixel, so the first and the last convolution take them in.
    """
    state = _named(tensors, GORDIC_NAMES, "gordicaleksa")
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (IMAGENET_MEAN, IMAGENET_STD))
    weight, bias = (state[f"layers.0.convolution.{part}"].double() for part in ("weight", "bias"))
    weight = weight / std[:, None, None]
    state["layers.0.convolution.weight"] = weight.float()
    state["layers.0.convolution.bias"] = (bias - weight.sum((2, 3)) @ mean).float()
    weight, bias = (state[f"layers.15.convolution.{part}"].double() for part in ("weight", "bias"))
    state["layers.15.convolution.weight"] = (255 * std[:, None, None, None] * weight).float()
    state["layers.15.convolution.bias"] = (255 * (std * bias + mean)).float()
    return {"filters": len(tensors["in1.weight"]), "upsampling": "resize"}, state


def _rrmina(tensors: Mapping[str, Tensor]) -> Converted:
    """Convert rrmina's: BGR 0 to 255 in and out, transposed convolutions; with plain or with ResNeXt's blocks."""
    bottleneck = "ResidualBlock.0.conv3.conv_layer.weight" in tensors
    blocks = [f"ResidualBlock.{n}.conv{part}" for n in range(5) for part in range(1, 4 if bottleneck else 3)]
    names: list[tuple[str, str | None]] = [
        (f"{layer}.conv_layer", f"{layer}.norm_layer") for layer in (*(f"ConvBlock.{n}" for n in (0, 2, 4)), *blocks)
    ]
    names += [(f"DeconvBlock.{n}.conv_transpose", f"DeconvBlock.{n}.norm_layer") for n in (0, 2)]
    names.append(("DeconvBlock.4.conv_layer", None))
    state = _named(tensors, names, "rrmina")
    last = f"layers.{len(names) - 1}.convolution"
    state["layers.0.convolution.weight"] = state["layers.0.convolution.weight"].flip(1) * 255
    for part in ("weight", "bias"):
        state[f"{last}.{part}"] = state[f"{last}.{part}"].flip(0)
    filters = len(tensors["ConvBlock.0.norm_layer.weight"])
    return {"filters": filters, "upsampling": "transposed", "bottleneck": bottleneck}, state


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Read the variables of a folder as deeplearn.js and ml5 publish them: `manifest.json` and a file of each.

    Raises:
        UserError: where the manifest or a file is missing or damaged.
    """
    manifest = folder / MANIFEST
    try:
        listed = json.loads(manifest.read_bytes())
        shapes = {
            name: (entry["filename"], [int(length) for length in entry["shape"]]) for name, entry in listed.items()
        }
    except OSError as error:
        raise UserError(f"{manifest}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{manifest}: no list of variables with file names and shapes") from error
    tensors = {}
    for name, (filename, shape) in shapes.items():
        if Path(filename).name != filename:
            raise UserError(f"{manifest}: {filename!r} is no name of a file in this folder")
        data = weights.read_bytes(folder / filename)
        if min(shape, default=1) < 1 or len(data) != 4 * math.prod(shape):
            raise UserError(f"{folder / filename}: {len(data)} bytes are no {'x'.join(map(str, shape))} float32")
        tensors[name] = torch.from_numpy(np.frombuffer(data, "<f4").reshape(shape).copy())
    return tensors


def _tensorflow(tensors: Mapping[str, Tensor]) -> Converted:
    """Convert lengstrom/fast-style-transfer: triples of kernel (height, width, in, out), shift and scale.

    Input is RGB / 255, padding SAME with zeros, every convolution without bias and normalised, the last one's output
    150 tanh(x) + 127.5. Kernels of transposed convolutions are (height, width, out, in).
    """
    names = ["Variable", *(f"Variable_{number}" for number in range(1, 48))]
    state = {}
    for index in range(16):
        kernel, shift, scale = (tensors[name] for name in names[3 * index : 3 * index + 3])
        state[f"layers.{index}.convolution.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
        state[f"layers.{index}.convolution.bias"] = torch.zeros_like(shift)
        state[f"layers.{index}.norm.weight"] = scale
        state[f"layers.{index}.norm.bias"] = shift
    arguments = {"output": "tanh", "padding": "zeros", "epsilon": 1e-3, "final_norm": True}
    return {"filters": len(tensors["Variable_1"]), **arguments}, state
