"""The transformation network tile by tile: images of any size in little memory, and the fast path on a CPU.

Tiles that are stylised one by one do not fit together, for instance normalisation measures each on its own. Here every
layer goes over all tiles before the next begins: features lie in host memory, a tile and its margin (the pixels that
the convolution needs beyond it) are convolved on the device, and mean and variance are those of the whole image.
The result equals the network's on the whole image up to rounding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from retable.platform.store.provenance import cores
from retable.platform.train.worker import threads
from retable.tasks.style.networks import winograd
from retable.tasks.style.networks.network import Features, Image, Layer, Range, Statistics, TransformerNetwork

Precision = Literal["auto", "float32", "bfloat16"]
"""auto: bfloat16 where the device multiplies matrices in it, else float32."""

STRIP = 65536
"""Pixels of a strip on a CPU: with smaller ones margins weigh, larger buffers the allocator returns to the system."""
CACHED = 1 << 19
"""Numbers that stay in a core's cache."""
ROWS = 4
"""Rows of the last convolution's output that are computed as channels."""


class Moments:
    """Mean and variance of each channel over tiles of any sizes, merged in float64 (Chan, Golub and LeVeque 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, tile: Float[Tensor, "1 channel row column"]) -> None:
        """Take in the pixels of a tile, in two passes over pieces that fit the cache.

        Sums are matrix products: on CPUs that is twice as fast as `sum`, and many times as fast as `torch.var_mean`.
        """
        for piece in torch.split(tile.permute(0, 2, 3, 1).flatten(0, 2), max(1, CACHED // tile.shape[1])):
            ones = piece.new_ones(len(piece))
            mean = ones @ piece / len(piece)
            squares = (ones @ (piece - mean).square_()).cpu().double()  # Apple's GPUs have no float64
            delta = mean.cpu().double() - self.mean
            total = self.count + len(piece)
            self.squares = self.squares + squares + delta**2 * (self.count * len(piece) / total)
            self.mean = self.mean + delta * (len(piece) / total)
            self.count = total

    def result(self) -> tuple[Float[Tensor, " channel"], Float[Tensor, " channel"]]:
        """Return mean and variance (of the population), in float32."""
        return self.mean.float(), (self.squares / self.count).float()


def stylise_tiled(
    network: TransformerNetwork,
    image: Image,
    tile: int,
    device: str | torch.device = "cpu",
    precision: Precision = "float32",
    progress: Callable[[int, int], None] = lambda done, total: None,
    statistics: Statistics | None = None,
) -> Image:
    """Stylise one image (1, 3, height, width) in host memory with only tiles of it on the device.

    `tile` is a tile's side in pixels of the image, rounded down to a multiple of eight, at least eight. `progress` is
    told after each tile how many are done and how many there are. With `statistics` layers are normalised by those.
    """
    side = max(8, tile // 8 * 8)
    return _run(network, image, (side, side), device, precision, progress, statistics)


@torch.inference_mode()
def stylise(
    network: TransformerNetwork, image: Image, precision: Precision = "float32", statistics: Statistics | None = None
) -> Image:
    """Stylise images on the network's device by the fastest way that is right; the result is clamped to [0, 1].

    On a CPU in strips of whole rows: large buffers that are made anew for every layer cost more there than arithmetic
    can save.
    """
    device = next(network.parameters()).device
    if device.type == "cpu":
        side = (max(8, STRIP // image.shape[3] // 8 * 8), -(-image.shape[3] // 8) * 8)
        strips = partial(_run, network, side=side, precision=precision, statistics=statistics)
        return torch.cat([strips(single) for single in torch.split(image, 1)]).clamp_(0, 1)
    image = image.to(device, memory_format=torch.channels_last)
    if arithmetic(precision, device) == torch.bfloat16:
        return stylise_mixed(network, image, statistics).clamp_(0, 1)
    result: Tensor = network(image, statistics)
    return result.clamp_(0, 1)


def stylise_mixed(network: TransformerNetwork, image: Image, statistics: Statistics | None = None) -> Image:
    """Do what the network does, its convolutions but the first and the last in bfloat16; the result is not clamped.

    bfloat16 has eight bits: by the first the photograph's levels would be rounded to them, by the last the result's.
    """
    ends = 0, len(network.layers) - 1

    def rounded(index: int) -> torch.autocast:
        return torch.autocast(image.device.type, torch.bfloat16, enabled=index not in ends)

    return network.walk(image, lambda index, features: None if statistics is None else statistics[index], rounded)


def arithmetic(precision: Precision, device: str | torch.device) -> torch.dtype:
    """Return the type that a network's convolutions, but the first and the last, are computed in on a device.

    On a CPU bfloat16 is used where the processor multiplies matrices in it (AMX), whatever was asked for: elsewhere it
    is emulated, many times slower, or no faster. On a GPU `auto` takes it where it is not emulated either.
    """
    if precision == "float32":
        return torch.float32
    kind = torch.device(device).type
    if kind == "cpu":
        usable = torch.cpu.get_capabilities().get("amx_bf16", False)
    else:
        native = kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        usable = precision == "bfloat16" or native
    return torch.bfloat16 if usable else torch.float32


def needed_bytes(network: TransformerNetwork, height: int, width: int, tiled: bool = True) -> int:
    """Estimate the memory that one image's features take at most, tiled (on the host) or whole (on the device).

    Tiled: a layer's input and output, in a residual block also the block's input, in float32. Whole: beside these
    the padded and enlarged input and a normalised copy of the output, as `TransformerNetwork.forward` holds them.
    """
    rows, columns = (max(8, -(-length // 4) * 4) for length in (height, width))
    peak, kept, channels, image = 0, 0, 3, 2 * 3 * rows * columns
    for layer in layers(network):
        inputs = channels * rows * columns
        enlarged = inputs * 4 if layer.doubles and not layer.transposed else inputs
        channels, rows, columns = layer.outputs, layer.size(rows), layer.size(columns)
        outputs = channels * rows * columns
        held = inputs + kept + outputs
        kept = inputs if layer.branches else 0 if layer.residual else kept
        peak = max(peak, held if tiled else held + enlarged + 2 * outputs)
    return 4 * (peak + image)


def layers(network: TransformerNetwork) -> list[Layer]:
    """Return the network's layers in order."""
    return [layer for layer in network.layers if isinstance(layer, Layer)]


def _tiles(height: int, width: int, side: tuple[int, int]) -> Iterator[tuple[Range, Range]]:
    for top in range(0, height, side[0]):
        for left in range(0, width, side[1]):
            yield (top, min(top + side[0], height)), (left, min(left + side[1], width))


def free_threads() -> int:
    """Return how many of PyTorch's threads find a core that no other process computes on; at least one.

    The work is thousands of small parallel pieces, and each waits for its slowest thread: one that shares its core with
    others holds all back, and beside four busy processes two threads took twice the time of one. The result is the same
    with any number, but for the rounding of sums on some processors. Where the system does not say what runs (Linux
    does), that is all of them.
    """
    most = torch.get_num_threads()
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        stats = [(thread / "stat").read_text() for thread in Path("/proc/self/task").iterdir()]
    except (OSError, IndexError, ValueError):
        return most
    ours = sum(stat.rsplit(")", 1)[-1].split()[:1] == ["R"] for stat in stats)
    return max(1, min(most, cores(), (os.cpu_count() or 1) - max(0, running - ours)))


@torch.inference_mode()
def _run(
    network: TransformerNetwork,
    image: Image,
    side: tuple[int, int],
    device: str | torch.device = "cpu",
    precision: Precision = "float32",
    progress: Callable[[int, int], None] = lambda done, total: None,
    statistics: Statistics | None = None,
) -> Image:
    """Apply the layers, each to all tiles of `side` (rows, columns in pixels of the image) before the next."""
    with threads(free_threads()):
        return _walk(network, image, side, device, precision, progress, statistics)


def _walk(
    network: TransformerNetwork,
    image: Image,
    side: tuple[int, int],
    device: str | torch.device,
    precision: Precision,
    progress: Callable[[int, int], None],
    statistics: Statistics | None,
) -> Image:
    x = network.enlarge(image.float().cpu()).contiguous(memory_format=torch.channels_last)
    height, width = x.shape[2:]
    stack, done, dtype = layers(network), 0, arithmetic(precision, device)
    total = len(stack) * sum(1 for _ in _tiles(height, width, side))
    before = x
    for index, layer in enumerate(stack):
        ends = index in (0, len(stack) - 1)  # see `stylise_mixed`
        convolve = fast_convolution(layer, device, torch.float32 if ends else dtype)
        rows, columns = (layer.size(length) for length in x.shape[2:])
        features, moments = torch.empty((1, layer.outputs, rows, columns), memory_format=torch.channels_last), Moments()
        for area in _tiles(rows, columns, (side[0] * rows // height, side[1] * columns // width)):
            result = convolve(layer.window(x, *area)).float()
            features[:, :, slice(*area[0]), slice(*area[1])] = result
            if layer.norm is not None and statistics is None:
                moments.add(result)
            done += 1
            progress(done, total)
        if layer.norm is not None:
            measured = moments.result() if statistics is None else statistics[index]
            scale, shift = layer.scale_and_shift(*(value.to(layer.convolution.weight.device) for value in measured))
            torch.addcmul(shift.cpu(), features, scale.cpu(), out=features)
        if layer.branches:
            before = x
        if layer.residual:
            features.add_(before)
        if layer.rectified:
            features.relu_()
        x = features
    return network.colours(x, *image.shape[2:])


def fast_convolution(layer: Layer, device: str | torch.device, dtype: torch.dtype) -> Callable[[Features], Features]:
    """Return a function that equals `layer.convolve` but is faster, since the libraries prefer many channels.

    Doubling the resolution: each of the four pixels that an input pixel becomes depends on 2 x 2 input pixels, so one
    convolution with four times the channels, whose output is reordered. The last layer: of its three colours, four
    rows at a time are channels, with kernels of nine rows shifted within twelve. Wide layers of 3 x 3 in float32 on a
    CPU: by Winograd's algorithm.
    """
    weight = layer.convolution.weight.detach()
    bias = layer.convolution.bias.detach() if layer.convolution.bias is not None else weight.new_zeros(layer.outputs)
    if layer.doubles:
        weight, bias, stride = _quarters(layer, weight), bias.repeat_interleave(4), (1, 1)
    elif layer.outputs == 3:
        shifted = [functional.pad(weight, (0, 0, row, ROWS - 1 - row)) for row in range(ROWS)]
        weight, bias, stride = torch.cat(shifted), bias.repeat(ROWS), (ROWS, 1)
    else:
        stride = (layer.stride, layer.stride)
    if dtype == torch.float32 and torch.device(device).type == "cpu" and winograd.fits(layer.convolution):
        kernels = winograd.transform(weight)
        return lambda window: winograd.convolve(window, kernels, bias)
    weight, bias = weight.to(device, dtype), bias.to(device, dtype)

    def convolve(window: Features) -> Features:
        result = functional.conv2d(window.to(device, dtype), weight, bias, stride)
        if layer.doubles:
            result = functional.pixel_shuffle(result, 2)
            return result if layer.transposed else result[:, :, 1:-1, 1:-1]
        if layer.outputs == 3:
            result = torch.unflatten(result, 1, (ROWS, 3)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        return result

    return convolve


def _quarters(layer: Layer, weight: Tensor) -> Float[Tensor, "four_outputs inputs 2 2"]:
    """Rewrite a kernel that doubles the resolution as four of 2 x 2, in the order of `pixel_shuffle`.

    taps[i, j, k] = 1 where output pixel i of two sees tap k of the kernel at input pixel j of two.
    """
    taps = torch.zeros(2, 2, 3, dtype=weight.dtype, device=weight.device)
    if layer.transposed and layer.reflected:  # outputs 2 j, 2 j + 1 of inputs j, j + 1
        pairs = [(0, 0, 1), (1, 0, 2), (1, 1, 0)]
    elif layer.transposed:  # outputs 2 j, 2 j + 1 of inputs j - 1, j
        pairs = [(0, 0, 2), (0, 1, 0), (1, 1, 1)]
    else:  # outputs 2 j - 1, 2 j of inputs j - 1, j
        pairs = [(0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 0, 0), (1, 1, 1), (1, 1, 2)]
    for tap in pairs:
        taps[tap] = 1
    if layer.transposed:
        weight = weight.transpose(0, 1)
    return torch.einsum("ijk,lmn,ockn->oilcjm", taps, taps, weight).flatten(0, 2)
