"""Files of others: weights of transformation networks in the layouts in which they are published.

Each layout's conventions are brought to this project's: images in [0, 1], red first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, zeros_like

from retable.platform.errors import UserError

EXAMPLE_NAMES = [
    ("conv1.conv2d", "in1"),
    ("conv2.conv2d", "in2"),
    ("conv3.conv2d", "in3"),
    *((f"res{block}.conv{part}.conv2d", f"res{block}.in{part}") for block in range(1, 6) for part in (1, 2)),
    ("deconv1.conv2d", "in4"),
    ("deconv2.conv2d", "in5"),
    ("deconv3.conv2d", None),
]
"""Convolution and instance normalisation of each layer in pytorch/examples' `fast_neural_style`."""

FIRST = ("layers.0.convolution.weight", "conv1.conv2d.weight", "Variable_47")
"""A tensor of each layout by which its network is found: ours, pytorch/examples', and lengstrom's."""
Converted = tuple[dict[str, Any], dict[str, Tensor]]
"""Arguments of `TransformerNetwork` and its state dict."""


def convert(tensors: Mapping[str, Tensor]) -> Converted:
    """Convert a foreign state dict, recognised by its names.

    Raises:
        UserError: where the layout is unknown or a tensor is missing.
    """
    try:
        if "conv1.conv2d.weight" in tensors:
            return _example(tensors)
        if "Variable_47" in tensors:
            return _tensorflow(tensors)
    except KeyError as error:
        raise UserError(f"the weights have no tensor {error}; the file is incomplete") from error
    raise UserError(
        "no weights of a transformation network; known are files that retable trained, state dicts of "
        "pytorch/examples' fast_neural_style, and variables of lengstrom/fast-style-transfer"
    )


def _example(tensors: Mapping[str, Tensor]) -> Converted:
    """Convert pytorch/examples: RGB 0 to 255 in and out, resizing; files before 2018 have unused running statistics."""
    state = {}
    tensors = {name: value for name, value in tensors.items() if not re.search(r"in\d\.running_(mean|var)$", name)}
    for index, (convolution, norm) in enumerate(EXAMPLE_NAMES):
        for part in ("weight", "bias"):
            state[f"layers.{index}.convolution.{part}"] = tensors[f"{convolution}.{part}"]
            if norm is not None:
                state[f"layers.{index}.norm.{part}"] = tensors[f"{norm}.{part}"]
    if len(tensors) != len(state):
        raise UserError(f"the weights have {len(tensors)} tensors, fast_neural_style's networks {len(state)}")
    state["layers.0.convolution.weight"] = state["layers.0.convolution.weight"] * 255
    return {"filters": len(tensors["in1.weight"]), "upsampling": "resize"}, state


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
        state[f"layers.{index}.convolution.bias"] = zeros_like(shift)
        state[f"layers.{index}.norm.weight"] = scale
        state[f"layers.{index}.norm.bias"] = shift
    arguments = {"output": "tanh", "padding": "zeros", "epsilon": 1e-3, "final_norm": True}
    return {"filters": len(tensors["Variable_1"]), **arguments}, state
