"""A stronger arm of ours: a 2D U-Net sees the whole context, and its features are refined where the forecast lies.

Cutting out the centre of a network's *forecast* and enlarging it, as 2022's winner did (UNetCropUpscale of
Datalab-FIT-CTU), leaves a picture of 12 km pixels. Here the centre of its *features* is cut out, and convolutions
enlarge it to 2 km in two steps. Times are channels, as those four images hold little more than a motion.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from retable.tasks.weather.config import Context
from retable.tasks.weather.w4c.preprocess import CHANNELS

RAIN_SHARE = 0.08
"""Initial probability of rain: its frequency in the seven regions (training set of 2019 and 2020)."""
STEPS = (2, 3)
"""Enlargement from 12 km to 2 km."""

Maps = Float[Tensor, "batch channel row column"]


def trim(x: Maps, margin: int) -> Maps:
    """Cut off a margin on all four sides."""
    return x[..., margin : x.shape[-2] - margin, margin : x.shape[-1] - margin]


class Block(nn.Module):
    """Residual block (He et al. 2016) with group normalisation, which needs no large batch (Wu and He 2018)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        groups = math.gcd(8, outputs)
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(groups, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Maps) -> Maps:
        """Map to `outputs` channels on the same grid."""
        hidden = functional.gelu(self.norm1(self.conv1(x)))
        return functional.gelu(self.shortcut(x) + self.norm2(self.conv2(hidden)))


class Body(nn.Module):
    """2D U-Net: maps of any size to features on the same grid."""

    def __init__(self, inputs: int, filters: int, levels: int) -> None:
        super().__init__()
        widths = [filters * 2**level for level in range(levels)]
        self.multiple = 2 ** (levels - 1)
        self.down = nn.ModuleList(Block(below, width) for below, width in zip([inputs, *widths], widths, strict=False))
        self.up = nn.ModuleList(Block(3 * width, width) for width in reversed(widths[:-1]))

    def forward(self, x: Maps) -> Maps:
        """Repeat the border up to a size that halves at every level, and cut off the features of what was added."""
        rows, columns = x.shape[2:]
        top, left = -rows % self.multiple // 2, -columns % self.multiple // 2
        bottom, right = -rows % self.multiple - top, -columns % self.multiple - left
        x = functional.pad(x, (left, right, top, bottom), mode="replicate")
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        x = skips.pop()
        for block in self.up:
            x = block(torch.cat((functional.interpolate(x, scale_factor=2, mode="bilinear"), skips.pop()), 1))
        return x[..., top : top + rows, left : left + columns]


class ContextForecaster(nn.Module):
    """The network for images of `size` x `size` pixels, `inputs` of them, with a logit for each of `forecast` times.

    With `crop` the centre is cut out and enlarged. Without, the same layers work on the grid of the images, for
    comparison with the reference, which lays the images over the forecast. An untrained network says that it rains in
    `RAIN_SHARE` of all cases, everywhere.
    """

    def __init__(self, config: Context, size: int, inputs: int, forecast: int, crop: bool) -> None:
        super().__init__()
        self.size, self.crop = size, crop
        width = 2 * config.filters  # lead times are read off these features, so they are twice as many as the body's
        self.body = Body(len(CHANNELS) * inputs, config.filters, config.levels)
        self.join = Block(len(CHANNELS) * inputs + config.filters, width)
        self.refine = nn.ModuleList(Block(width, width) for _ in STEPS)
        self.last = nn.Conv2d(width, forecast, 1)
        nn.init.zeros_(self.last.weight)
        self.last.bias = nn.Parameter(torch.full((forecast,), math.log(RAIN_SHARE / (1 - RAIN_SHARE))))

    def forward(self, x: Float[Tensor, "batch 11 input row column"]) -> Float[Tensor, "batch lead row column"]:
        """Return logits of rain: of the forecast's place at 2 km, or (without `crop`) on the grid of the images.

        A margin of one pixel, kept at every scale, gives the enlargement its neighbours.
        """
        x = x.flatten(1, 2)
        x = torch.cat((self.body(x), x), 1)
        x = self.join(trim(x, 5 * self.size // 12 - 1) if self.crop else x)
        for block, step in zip(self.refine, STEPS, strict=True):
            if self.crop:
                x = trim(functional.interpolate(x, scale_factor=step, mode="bilinear"), step - 1)
            x = block(x)
        logits: Tensor = self.last(x)
        return trim(logits, 1) if self.crop else logits
