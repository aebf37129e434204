"""Convolutions of 3 x 3 in float32 on a CPU with fewer multiplications: Winograd's F(4 x 4, 3 x 3).

Source: Lavin and Gray 2016, *Fast Algorithms for Convolutional Neural Networks*, equation 8 and section 4.3. A tile of
4 x 4 outputs takes 36 multiplications for a pair of channels in place of 144; transforms and products are matrix
products over many tiles. The sum is the same in another order: it is off by some 3e-5 of the outputs' spread, the
direct sum by 1e-6.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Features = Float[Tensor, "batch channel row column"]
Kernels = Float[Tensor, "36 inputs outputs"]

CHANNELS, POSITIONS = 128, 256
"""Fewer inputs or outputs, or positions of an image, are convolved as fast directly."""
TILES = 256
"""Tiles that are transformed at once: their numbers fit the cache."""

_INPUT = torch.tensor(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    dtype=torch.float64,
)
_KERNEL = torch.tensor(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ],
    dtype=torch.float64,
)
_OUTPUT = torch.tensor(
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], dtype=torch.float64
)
_INPUTS, _OUTPUTS = (torch.kron(matrix, matrix).float() for matrix in (_INPUT, _OUTPUT))


def fits(convolution: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether Winograd's algorithm suits a convolution on a CPU."""
    return (
        isinstance(convolution, nn.Conv2d)
        and convolution.kernel_size == (3, 3)
        and (convolution.stride, convolution.dilation, convolution.groups) == ((1, 1), (1, 1), 1)
        and min(convolution.in_channels, convolution.out_channels) >= CHANNELS
    )


def suits(convolution: nn.Module, features: Features) -> TypeGuard[nn.Conv2d]:
    """Return whether Winograd's algorithm is faster for these features, whose size is that of the result."""
    return (
        fits(convolution)
        and features.shape[2] * features.shape[3] >= POSITIONS
        and features.device.type == "cpu"
        and features.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def transform(weight: Float[Tensor, "outputs inputs 3 3"]) -> Kernels:
    """Transform a convolution's weights, as `convolve` takes them."""
    rows = torch.einsum("ik,ockl->iocl", _KERNEL, weight.detach().double())
    return torch.einsum("jl,iocl->ijco", _KERNEL, rows).flatten(0, 1).float().contiguous()


@torch.no_grad()
def convolve(
    features: Features, kernels: Kernels, bias: Float[Tensor, " outputs"] | float, padding: int = 0
) -> Features:
    """Convolve features, padded with zeros, by transformed kernels; the result lies channels last in memory."""
    (batch, _, height, width), outputs = features.shape, kernels.shape[2]
    height, width = height + 2 * padding - 2, width + 2 * padding - 2
    down, across = -(-height // 4), -(-width // 4)
    beyond = (padding, padding + 4 * across - width, padding, padding + 4 * down - height)
    padded = functional.pad(features, beyond) if any(beyond) else features
    source = padded.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
    result = torch.empty((batch, outputs, 4 * down, 4 * across), memory_format=torch.channels_last)
    tiled = result.permute(0, 2, 3, 1).view(batch, down, 4, across, 4, outputs)
    rows = max(1, TILES // across)
    for image in range(batch):
        for top in range(0, down, rows):
            strip = source[image, 4 * top : 4 * min(top + rows, down) + 2]
            torch.add(_strip(strip, kernels), bias, out=tiled[image, top : top + rows])
    exact = (height, width) == tuple(result.shape[2:])
    return result if exact else result[:, :, :height, :width].clone(memory_format=torch.channels_last)


def _strip(source: Float[Tensor, "row column channel"], kernels: Kernels) -> Float[Tensor, "down 4 across 4 outputs"]:
    """Convolve rows of tiles that overlap by two rows and columns."""
    (height, width, channels), (row, column, _) = source.shape, source.stride()
    down, across = height // 4, width // 4
    tiles = source.as_strided((6, 6, down, across, channels), (row, column, 4 * row, 4 * column, 1))
    inputs = (_INPUTS @ tiles.reshape(36, -1)).view(36, down * across, channels)
    outputs = _OUTPUTS @ torch.bmm(inputs, kernels).view(36, -1)
    return outputs.view(4, 4, down, across, -1).permute(2, 0, 3, 1, 4)


class Frozen:
    """A convolution whose weights do not change: a function of features that passes gradients on to them alone."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        weight = convolution.weight
        self.forth, self.back = transform(weight), transform(weight.flip(2, 3).transpose(0, 1))
        self.bias, self.reflects = convolution.bias, convolution.padding_mode == "reflect"
        self.padding = int(convolution.padding[0])

    def __call__(self, features: Features) -> Features:
        """Convolve."""
        padding = self.padding
        if self.reflects:
            features, padding = functional.pad(features, (padding,) * 4, mode="reflect"), 0
        convolved: Tensor = _Convolution.apply(features, self.forth, self.back, self.bias, padding)
        return convolved


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, features: Tensor, forth: Tensor, back: Tensor, bias: Tensor, padding: int) -> Tensor:
        context.save_for_backward(back)
        context.padding = padding
        return convolve(features, forth, bias, padding)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (back,) = context.saved_tensors  # the gradient is itself a convolution, by the kernels reversed
        return convolve(gradients[0], back, 0.0, 2 - context.padding), None, None, None, None
