"""The transformation network of version 2: it stylises an image of any size in one pass.

Source: Johnson, Alahi and Fei-Fei 2016, *Perceptual Losses for Real-Time Style Transfer*, supplementary table 1, with
what everyone has used since: reflection padding in every layer and instance normalisation (Ulyanov et al. 2016) with
learnt scale and shift. Layers, initialisation and the scale of the output are those of the PyTorch example
`fast_neural_style`. One deviation: it returns sizes that are multiples of four; here the result has the image's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Image = Float[Tensor, "batch 3 height width"]
Features = Float[Tensor, "batch channel row column"]
Statistics = list[tuple[Float[Tensor, " channel"], Float[Tensor, " channel"]]]
"""Mean and variance of each normalised layer, in order."""
Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Shape and conventions of a network; a file of weights carries them."""

    filters: int = 32
    """Filters of the first convolution; the next ones have two and four times as many."""
    upsampling: Literal["transposed", "resize"] = "transposed"
    """transposed: stride 1/2; resize: nearest neighbour, then a convolution with stride 1."""
    output: Literal["raw", "tanh"] = "raw"
    """raw: the last layer's values are levels, 0 to 255; tanh: they are 150 tanh(x) + 127.5."""
    padding: Literal["reflect", "zeros"] = "reflect"
    """zeros: TensorFlow's SAME, for networks trained with it; then upsampling is transposed."""
    epsilon: float = 1e-5
    """Constant added to the variance in instance normalisation."""
    final_norm: bool = False
    """Whether the last convolution is normalised too."""
    styles: int = 1
    """Styles that share the convolutions; more than one: each has its own scales and shifts."""
    bottleneck: bool = False
    """Whether residual blocks are of 1x1, 3x3 and 1x1, the first two of half the width, and not of two 3x3."""


class ConditionalNorm(nn.Module):
    """Instance normalisation with a scale and a shift for each style (Dumoulin et al. 2017, section 2.2)."""

    shares: Float[Tensor, "batch style"]
    """Share of each style in each image; see `TransformerNetwork.forward`."""

    def __init__(self, styles: int, channels: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(styles, channels))
        self.bias = nn.Parameter(torch.zeros(styles, channels))

    def forward(self, features: Features) -> Features:
        """Normalise each channel by its own mean and variance, and scale and shift it as the styles' shares say."""
        scale, shift = (self.shares @ values for values in (self.weight, self.bias))
        normal = functional.instance_norm(features, eps=self.eps)
        return torch.addcmul(shift[:, :, None, None], normal, scale[:, :, None, None])


class Layer(nn.Module):
    """A convolution, perhaps one that doubles the resolution, and what follows it.

    It knows which part of its input a part of its output needs, so that the whole image and a tile are one code.
    """

    def __init__(
        self,
        architecture: Architecture,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        doubles: bool = False,
        branches: bool = False,
        residual: bool = False,
        rectified: bool = True,
        normalised: bool = True,
    ) -> None:
        super().__init__()
        self.outputs, self.kernel, self.stride, self.doubles = outputs, kernel, stride, doubles
        self.branches = branches  # whether its input is what the next residual layer adds to its output
        self.residual, self.rectified = residual, rectified
        self.transposed = doubles and architecture.upsampling == "transposed"
        self.reflected = architecture.padding == "reflect"
        # Whole output of a transposed convolution with stride 2: 2 n + 1; SAME in TensorFlow crops the end of it.
        self.skipped = 1 if self.reflected else 2
        self.convolution: nn.Conv2d | nn.ConvTranspose2d = (
            nn.ConvTranspose2d(inputs, outputs, kernel, 2)
            if self.transposed
            else nn.Conv2d(inputs, outputs, kernel, stride)
        )
        self.norm: nn.InstanceNorm2d | ConditionalNorm | None = None
        if normalised and architecture.styles > 1:
            self.norm = ConditionalNorm(architecture.styles, outputs, architecture.epsilon)
        elif normalised:
            self.norm = nn.InstanceNorm2d(outputs, eps=architecture.epsilon, affine=True)

    def size(self, length: int) -> int:
        """Return the output length for an even input length."""
        return 2 * length if self.doubles else length // self.stride

    def source(self, start: int, stop: int) -> Range:
        """Return the part of the input, perhaps beyond its borders, that the output's rows [start, stop) need.

        Where the layer doubles the resolution, start and stop are even.
        """
        if self.transposed:
            return start // 2 + 1 - self.skipped, stop // 2 + 2 - self.skipped
        if self.doubles:
            return start // 2 - 1, stop // 2 + 1
        before = self.kernel // 2 if self.reflected else (self.kernel - self.stride) // 2
        return start * self.stride - before, (stop - 1) * self.stride - before + self.kernel

    def window(self, features: Features, rows: Range, columns: Range) -> Features:
        """Cut out what the output in `rows` x `columns` needs, padded at the image's true borders alone."""
        (top, bottom), (left, right) = self.source(*rows), self.source(*columns)
        height, width = features.shape[2:]
        inside = features[:, :, max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
        beyond = [max(-left, 0), max(right - width, 0), max(-top, 0), max(bottom - height, 0)]
        if not any(beyond):
            return inside
        if self.transposed or not self.reflected:
            return functional.pad(inside, beyond)
        # The doubled image, reflected at its border pixel, is the image with that pixel repeated, doubled.
        return extended(inside, beyond, "replicate" if self.doubles else "reflect")

    def convolve(self, window: Features) -> Features:
        """Apply the convolution to what `window` gave."""
        if self.transposed:
            uncropped: Tensor = self.convolution(window)
            kept = slice(self.skipped, self.skipped - 3)
            return uncropped[:, :, kept, kept]
        if self.doubles:
            window = functional.interpolate(window, scale_factor=2.0)[:, :, 1:-1, 1:-1]
        result: Tensor = self.convolution(window)
        return result

    def scale_and_shift(
        self, mean: Float[Tensor, " channel"], variance: Float[Tensor, " channel"]
    ) -> tuple[Float[Tensor, "channel 1 1"], Float[Tensor, "channel 1 1"]]:
        """Return the scale and shift that equal instance normalisation with these statistics."""
        assert self.norm is not None
        scale = self.norm.weight * torch.rsqrt(variance + self.norm.eps)
        return scale[:, None, None], (self.norm.bias - mean * scale)[:, None, None]

    def normalise(self, features: Features, statistics: tuple[Tensor, Tensor] | None) -> Features:
        """Normalise each channel, in float32, by its own mean and variance or by those given."""
        if self.norm is None:
            return features
        if statistics is None:
            normal: Tensor = self.norm(features.float())
            if len(features) == 1 and normal.requires_grad:
                # PyTorch (2.11, 2.14) gives a wrong gradient of one image where that of the result lies channels last.
                normal.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        else:
            scale, shift = self.scale_and_shift(*statistics)
            normal = features.float() * scale + shift
        return normal.to(features.dtype)


def extended(features: Features, beyond: list[int], mode: Literal["replicate", "reflect"]) -> Features:
    """Pad features as `functional.pad` does, which takes many times as long on a CPU where channels lie last."""
    if features.device.type != "cpu" or not features.is_contiguous(memory_format=torch.channels_last):
        return functional.pad(features, beyond, mode=mode)
    for dim, (before, after) in ((3, beyond[:2]), (2, beyond[2:])):
        last = features.shape[dim] - 1
        first, end = list(range(before, 0, -1)), list(range(last - 1, last - 1 - after, -1))
        if mode == "replicate":
            first, end = [0] * before, [last] * after
        edges = [[features.narrow(dim, index, 1) for index in places] for places in (first, end)]
        parts = [*edges[0], features, *edges[1]]
        features = torch.cat(parts, dim) if len(parts) > 1 else features
    return features


def block(architecture: Architecture, width: int) -> list[Layer]:
    """Make the layers of a residual block."""
    if not architecture.bottleneck:
        return [
            Layer(architecture, width, width, branches=True),
            Layer(architecture, width, width, residual=True, rectified=False),
        ]
    return [
        Layer(architecture, width, width // 2, 1, branches=True),
        Layer(architecture, width // 2, width // 2),
        Layer(architecture, width // 2, width, 1, residual=True, rectified=False),
    ]


class TransformerNetwork(nn.Module):
    """Three convolutions down to a quarter of the size, five residual blocks, two up and one to colours.

    `forward` takes images in [0, 1] and returns stylised ones of the same size, on that scale but not clamped. Below,
    widths are in units of `filters`: 9x9 to 1, 3x3 stride 2 to 2, 3x3 stride 2 to 4; five blocks of two 3x3 (or 1x1,
    3x3 and 1x1 through a width of 2), without rectifier after the sum; 3x3 stride 1/2 to 2 and to 1; 9x9 to three
    colours.

    Raises:
        ValueError: for zero padding with resizing, which no known network has.
    """

    def __init__(
        self,
        filters: int = 32,
        upsampling: Literal["transposed", "resize"] = "transposed",
        output: Literal["raw", "tanh"] = "raw",
        padding: Literal["reflect", "zeros"] = "reflect",
        epsilon: float = 1e-5,
        final_norm: bool = False,
        styles: int = 1,
        bottleneck: bool = False,
    ) -> None:
        super().__init__()
        if padding == "zeros" and upsampling == "resize":
            raise ValueError("zero padding goes with transposed convolutions only")
        self.architecture = a = Architecture(
            filters=filters,
            upsampling=upsampling,
            output=output,
            padding=padding,
            epsilon=epsilon,
            final_norm=final_norm,
            styles=styles,
            bottleneck=bottleneck,
        )
        layers = [
            Layer(a, 3, filters, 9),
            Layer(a, filters, 2 * filters, stride=2),
            Layer(a, 2 * filters, 4 * filters, stride=2),
        ]
        for _ in range(5):
            layers += block(a, 4 * filters)
        layers += [
            Layer(a, 4 * filters, 2 * filters, doubles=True),
            Layer(a, 2 * filters, filters, doubles=True),
            Layer(a, filters, 3, 9, rectified=False, normalised=final_norm),
        ]
        self.layers = nn.ModuleList(layers)

    def forward(
        self,
        image: Image,
        statistics: Statistics | None = None,
        shares: Float[Tensor, "batch style"] | None = None,
    ) -> Image:
        """Stylise images; with `statistics`, each layer is normalised by those in place of the image's own.

        A network of several styles needs `shares`: what each image takes of each, best of sum one. It is for training;
        to stylise, `blended` gives a network of one style.
        """
        for norm in self.norms():
            assert shares is not None, "a network of several styles, none of which is chosen"
            norm.shares = shares
        return self.walk(image, lambda index, features: None if statistics is None else statistics[index])

    def norms(self) -> list[ConditionalNorm]:
        """Return what tells several styles apart; of one style, nothing."""
        return [module for module in self.modules() if isinstance(module, ConditionalNorm)]

    @torch.no_grad()
    def blended(self, shares: Sequence[float]) -> TransformerNetwork:
        """Return a copy with one style: the mixture of a conditional network's styles by these shares.

        Raises:
            ValueError: where there are not as many shares as styles.
        """
        if len(shares) != self.architecture.styles:
            raise ValueError(f"{len(shares)} shares of {self.architecture.styles} styles")
        made = TransformerNetwork(**asdict(replace(self.architecture, styles=1)))
        state = self.state_dict()
        for name, like in made.state_dict().items():
            if state[name].shape != like.shape:
                state[name] = state[name].new_tensor(shares) @ state[name]
        made.load_state_dict(state)
        return made.train(self.training)

    @torch.no_grad()
    def statistics(self, images: Image) -> Statistics:
        """Measure each normalised layer's mean and variance over all pixels of all the images, taken as one.

        Frames of one shot that are normalised by the same statistics do not flicker in brightness and contrast.
        """
        measured: Statistics = []

        def measure(_: int, features: Features) -> tuple[Tensor, Tensor]:
            variance, mean = torch.var_mean(features.float(), (0, 2, 3), correction=0)
            measured.append((mean, variance))
            return mean, variance

        self.walk(images, measure)
        return measured

    def enlarge(self, image: Image) -> Image:
        """Repeat the last row and column until both sizes are multiples of four, and at least eight."""
        height, width = (max(8, -(-length // 4) * 4) for length in image.shape[2:])
        if image.shape[2:] == (height, width):
            return image
        return functional.pad(image, (0, width - image.shape[3], 0, height - image.shape[2]), mode="replicate")

    def colours(self, features: Features, height: int, width: int) -> Image:
        """Turn the last layer's output into images on the scale of [0, 1], cropped to `height` x `width`."""
        features = features[:, :, :height, :width].float()
        if self.architecture.output == "tanh":
            return (150 * torch.tanh(features) + 127.5) / 255
        return features / 255

    def walk(
        self,
        image: Image,
        choose: Callable[[int, Features], tuple[Tensor, Tensor] | None],
        arithmetic: Callable[[int], AbstractContextManager[object]] = lambda index: nullcontext(),
    ) -> Image:
        """Apply the layers.

        Args:
            image: on the network's device.
            choose: says by which statistics the output of each convolution is normalised; None: its own.
            arithmetic: gives the context that each convolution is computed in, such as `torch.autocast`.
        """
        x = before = self.enlarge(image)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            extent = [(0, layer.size(length)) for length in x.shape[2:]]
            with arithmetic(index):
                if not torch.is_autocast_enabled(x.device.type):
                    x = x.to(image.dtype)  # which the layer before may have left rounded
                features = layer.convolve(layer.window(x, *extent))
            features = layer.normalise(features, choose(index, features) if layer.norm is not None else None)
            if layer.branches:
                before = x
            if layer.residual:
                features = features + before
            x = torch.relu(features) if layer.rectified else features
        return self.colours(x, *image.shape[2:])
