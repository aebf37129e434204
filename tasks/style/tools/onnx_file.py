"""A network as an ONNX file: one graph of standard operators for pictures of any size, without this package.

The graph is written node by node after the network's own layers, so that nothing depends on a tracer: the same padding,
the same order, instance normalisation of the whole picture. `torch.onnx` (2.x) has no quantizer for files of 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from retable.platform.spec import extras
from retable.platform.spec.arrays import Array
from retable.tasks.style.networks.network import Layer, TransformerNetwork
from retable.tasks.style.networks.tiling import layers

OPSET = 17
"""Version of ONNX's operators where nothing else is said: phones' runtimes know it."""
Bits = Literal[32, 16, 8]
"""Of a stored weight. Arithmetic is in float32 whatever the file holds."""


class Graph:
    """A graph in the making: nodes in order, and the constants that they read."""

    def __init__(self, bits: Bits) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.numpy_helper, self.bits = helper, numpy_helper, bits
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Append a node, and return its output's name."""
        name = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, values: Any, dtype: str = "float32") -> str:
        """Keep an array under a name, and return the name."""
        self.constants[name] = self.numpy_helper.from_array(np.asarray(values, dtype), name)
        return name

    def weight(self, name: str, values: Array, axis: int) -> str:
        """Keep a kernel in the file's number of bits, and return the name of its float32 form.

        In 8 bits each output channel, along `axis`, has its own scale, and zero is exactly zero.
        """
        if self.bits == 32:
            return self.constant(name, values)
        if self.bits == 16:
            return self.add("Cast", [self.constant(f"{name}_half", values, "float16")], name, to=1)
        others = tuple(n for n in range(values.ndim) if n != axis)
        scale = np.maximum(np.abs(values).max(others), 1e-12) / 127
        shape = [-1 if n == axis else 1 for n in range(values.ndim)]
        coded = self.constant(f"{name}_coded", np.rint(values / scale.reshape(shape)), "int8")
        zero = self.constant(f"{name}_zero", np.zeros(len(scale)), "int8")
        return self.add("DequantizeLinear", [coded, self.constant(f"{name}_scale", scale), zero], name, axis=axis)


def pack(network: TransformerNetwork, bits: Bits = 32, opset: int = OPSET) -> bytes:
    """Return the ONNX file of a network of one style, with operators of a version from 13 to 18.

    Its input `image` and output `stylised` are float32 (batch, 3, height, width) in [0, 1], red first, of any size.

    Raises:
        Missing: where the package onnx is not installed.
    """
    extras.check("onnx")
    import onnx

    graph = Graph(bits)
    x = enlarge(graph)
    before = x
    for index, layer in enumerate(layers(network)):
        convolved = convolve(graph, layer, x, f"layer{index}")
        if layer.norm is not None:
            scale, shift = (
                graph.constant(f"layer{index}_{part}", getattr(layer.norm, part).detach().numpy())
                for part in ("weight", "bias")
            )
            convolved = graph.add("InstanceNormalization", [convolved, scale, shift], epsilon=layer.norm.eps)
        if layer.branches:
            before = x
        if layer.residual:
            convolved = graph.add("Add", [convolved, before])
        x = graph.add("Relu", [convolved]) if layer.rectified else convolved
    colours(graph, network, x)
    shape = ["batch", 3, "height", "width"]
    ends = [graph.helper.make_tensor_value_info(name, 1, shape) for name in ("image", "stylised")]
    made = graph.helper.make_graph(graph.nodes, "retable_style", ends[:1], ends[1:], list(graph.constants.values()))
    operators = [graph.helper.make_opsetid("", opset)]
    oldest = graph.helper.find_min_ir_version_for(operators)  # which old runtimes read
    model = graph.helper.make_model(made, opset_imports=operators, ir_version=oldest)
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def enlarge(graph: Graph) -> str:
    """Repeat the last row and column until both sizes are multiples of four, and at least eight."""
    ends = [graph.constant(name, [value], "int64") for name, value in (("two", 2), ("beyond", 4), ("first", 0))]
    shape = graph.add("Slice", [graph.add("Shape", ["image"]), *ends], "shape")
    four, eight = graph.constant("four", [4], "int64"), graph.constant("eight", [8], "int64")
    three = graph.constant("three", [3], "int64")
    rounded = graph.add("Mul", [graph.add("Div", [graph.add("Add", [shape, three]), four]), four])
    missing = graph.add("Sub", [graph.add("Max", [rounded, eight]), shape])
    pads = graph.add("Concat", [graph.constant("none", [0] * 6, "int64"), missing], axis=0)
    return graph.add("Pad", ["image", pads], mode="edge")


def convolve(graph: Graph, layer: Layer, x: str, name: str) -> str:
    """Add a layer's convolution with its padding, as `Layer.window` and `Layer.convolve` have it."""
    kernel = layer.convolution.weight.detach().numpy()
    weight = graph.weight(f"{name}_kernel", kernel, axis=1 if layer.transposed else 0)
    inputs = [weight]
    if layer.convolution.bias is not None:
        inputs.append(graph.constant(f"{name}_offset", layer.convolution.bias.detach().numpy()))
    if layer.transposed:
        # The whole result has 2 n + 1 rows: reflected, its first is dropped, and TensorFlow's SAME drops the last.
        ends: dict[str, Any] = (
            {"pads": [1] * 4, "output_padding": [1, 1]} if layer.reflected else {"pads": [0, 0, 1, 1]}
        )
        return graph.add("ConvTranspose", [x, *inputs], strides=[2, 2], **ends)
    if layer.doubles:
        sizes = graph.constant("twice", [1, 1, 2, 2])
        how: dict[str, Any] = {
            "mode": "nearest",
            "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric",
        }
        x = graph.add("Resize", [x, "", sizes], **how)
    stride = [layer.stride] * 2
    if layer.reflected:
        margin = layer.kernel // 2
        pads = graph.constant(f"margin{margin}", [0, 0, margin, margin] * 2, "int64")
        return graph.add("Conv", [graph.add("Pad", [x, pads], mode="reflect"), *inputs], strides=stride)
    first = (layer.kernel - layer.stride) // 2
    last = layer.kernel - layer.stride - first
    return graph.add("Conv", [x, *inputs], strides=stride, pads=[first, first, last, last])


def colours(graph: Graph, network: TransformerNetwork, x: str) -> None:
    """Cut the last layer's output to the picture's size, and bring it to [0, 1]."""
    starts, axes = graph.constant("starts", [0, 0], "int64"), graph.constant("axes", [2, 3], "int64")
    x = graph.add("Slice", [x, starts, "shape", axes])
    if network.architecture.output == "tanh":
        spread = graph.add("Mul", [graph.add("Tanh", [x]), graph.constant("spread", 150)])
        x = graph.add("Add", [spread, graph.constant("middle", 127.5)])
    levels = graph.add("Div", [x, graph.constant("levels", 255)])
    graph.add("Clip", [levels, graph.constant("low", 0), graph.constant("high", 1)], "stylised")
