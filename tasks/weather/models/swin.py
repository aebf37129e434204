"""Swin-UNETR (section 2.4; Hatamizadeh et al. 2022) from MONAI, in three variants that differ in how time grows.

`repeat_interleave` and `channel_convolution` bring the input times to the lead times and leave MONAI's network as it
is, with the reference's settings: 11 channels in, 1 out, depths 2, heads 3, 6, 12, 24, windows of 7 (`Swin.window`), no
dropout. The names of the weights are the reference's. `upsample` is built from MONAI's blocks after the paper's words.

What MONAI demands: every dimension divides by 32. Height and width are brought to a multiple by `Swin.resize`. Lead
times that are no multiple of 32 are continued with the last one and cut off again. Instance normalization refuses to
train a bottleneck of one voxel, so that of images of 32 pixels or less has two lead times, by as many more (64); in
`upsample`, whose bottleneck has one, images are brought to 64 pixels at least.

A quirk of MONAI that stays: where height or width is smaller than a window, positions within it get the biases of
others. With fewer times than that the biases are the right ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from retable.tasks.weather.config import Swin
from retable.tasks.weather.w4c.preprocess import CHANNELS

MULTIPLE, LEAST = 32, 64
DEPTH, HEADS = 2, (3, 6, 12, 24)


def up_to_multiple(number: int) -> int:
    """Return the next multiple of 32."""
    return math.ceil(number / MULTIPLE) * MULTIPLE


def extend(volume: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Repeat the first and last slice of `dim`: replicate padding, whose gradient is deterministic on GPUs as well."""
    first, last = volume.narrow(dim, 0, 1), volume.narrow(dim, -1, 1)
    parts = (first.repeat_interleave(before, dim), volume, last.repeat_interleave(after, dim))
    return torch.cat(parts, dim)


def resize(
    volume: Float[Tensor, "batch channel time row column"], size: int, how: str
) -> Float[Tensor, "batch channel time size size"]:
    """Bring square images to another size and leave time alone.

    `pad` repeats the border on all sides, or cuts it off: there and back is exact. `nearest` there and back moves most
    rows by a pixel (248 of 252 by way of 256), as the reference does; `trilinear` smooths.
    """
    if how != "pad":
        return F.interpolate(volume, (volume.shape[2], size, size), mode=how)
    more = size - volume.shape[4]
    before = abs(more) // 2
    if more < 0:
        return volume[..., before : before + size, before : before + size]
    return extend(extend(volume, 3, before, more - before), 4, before, more - before)


class ChannelConvolution(nn.Module):
    """Learns what `repeat_interleave` fixes: two 3x3x3 convolutions over (channel, row, column), times as channels.

    Instance normalization and RReLU follow each of them (the paper: "after these 2 layers"), as in the reference.
    """

    def __init__(self, inputs: int, forecast: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(inputs, forecast, 3, padding=1)
        self.norm1 = nn.InstanceNorm3d(forecast)
        self.conv2 = nn.Conv3d(forecast, forecast, 3, padding=1)
        self.norm2 = nn.InstanceNorm3d(forecast)
        self.activation = nn.RReLU()

    def forward(
        self, images: Float[Tensor, "batch channel inputs row column"]
    ) -> Float[Tensor, "batch channel lead row column"]:
        """Make one volume for each lead time."""
        hidden = self.activation(self.norm1(self.conv1(images.transpose(1, 2))))
        hidden = self.activation(self.norm2(self.conv2(hidden)))
        volumes: Tensor = hidden.transpose(1, 2)
        return volumes


KEEPING_TIME = tuple((slice(None), slice(row, None, 2), slice(column, None, 2)) for row in (0, 1) for column in (0, 1))
"""Every second (time, row, column): the two by two tokens of an image that become one."""
REFERENCE = tuple(
    tuple(slice(start, None, 2) for start in starts)
    for starts in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 0), (0, 0, 1), (1, 1, 1))
)
"""The reference's eight neighbours: two are there twice, two are not. MONAI had them so before 1.5."""


class Merging(nn.Module):
    """Patch merging (Liu et al. 2021) of the given neighbours; tokens are (batch, time, row, column, channel)."""

    def __init__(self, inputs: int, outputs: int, neighbours: Sequence[tuple[slice, ...]]) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.norm = nn.LayerNorm(len(neighbours) * inputs)
        self.reduction = nn.Linear(len(neighbours) * inputs, outputs, bias=False)

    def forward(self, tokens: Float[Tensor, "batch time row column channel"]) -> Tensor:
        """Join neighbours to one token."""
        joined = torch.cat([tokens[:, *neighbour] for neighbour in self.neighbours], -1)
        merged: Tensor = self.reduction(self.norm(joined))
        return merged


def halve(config: Swin) -> Any:
    """Return MONAI's merging layers that halve all three dimensions and double the channels."""
    from monai.networks.nets.swin_unetr import PatchMerging, PatchMergingV2

    def as_the_reference(dim: int, **_: Any) -> nn.Module:
        return Merging(dim, 2 * dim, REFERENCE)

    return {"mergingv2": PatchMergingV2, "merging": as_the_reference, "merging_1_5": PatchMerging}[config.merging]


def shares(ratio: int, layers: int) -> list[int]:
    """Split a ratio into one whole factor for each layer, as even as its primes allow, later layers first."""
    factors, prime = [1] * layers, 2
    while ratio > 1:
        while ratio % prime:
            prime += 1
        smallest = max(range(layers), key=lambda layer: (-factors[layer], layer))
        factors[smallest] *= prime
        ratio //= prime
    return factors


class UpsamplingSwin(nn.Module):
    """The paper's `upsample` variant; its code was never published, so this is how we read the paragraph.

    - "feed the data using its original shape": T times enter. Patches are 1x2x2, so that each image keeps its tokens.
    - "change the last 2 layers of the SWIN encoder so they have an identical number of input and output channels": four
      times can be halved but twice, by the first two stages. The section calls times channels ("4 time channels"), so
      the last two stages keep the number of times; and, as channels usually means, that of features (4, 4 instead of 8,
      16 times `feature_size`; the last stage then has 12 heads, for heads as wide as elsewhere). They still halve
      height and width.
    - "the last ConvTranspose layers are up-sampling sequentially to the desired output size": the last three decoders
      undo the halving of time and share the ratio L / T beyond it: 1, 4, 16, 32 lead times. Their skip connections,
      which know fewer times, are repeated as in `repeat_interleave`.

    All else is Swin-UNETR's. T that is no multiple of 4 is halved as long as it is even.
    """

    def __init__(self, config: Swin, inputs: int, forecast: int) -> None:
        # MONAI takes seconds to import, so it is imported where it is used.
        from monai.networks.blocks.dynunet_block import UnetOutBlock
        from monai.networks.blocks.patchembedding import PatchEmbed
        from monai.networks.blocks.unetr_block import UnetrBasicBlock, UnetrUpBlock

        super().__init__()
        width = config.feature_size
        widths = (width, 2 * width, 4 * width, 4 * width, 4 * width)  # of the tokens before and after each stage
        halvings = [2 if inputs % 2 == 0 else 1, 2 if inputs % 4 == 0 else 1, 1, 1]
        self.embed = PatchEmbed((1, 2, 2), len(CHANNELS), width, norm_layer=None)  # type: ignore[arg-type]
        self.stages = nn.ModuleList(
            stage(config, widths[i], widths[i + 1], min(HEADS[i], HEADS[2]), halvings[i]) for i in range(4)
        )

        def block(channels: int, outputs: int) -> nn.Module:
            return UnetrBasicBlock(3, channels, outputs, kernel_size=3, stride=1, norm_name="instance", res_block=True)

        # Coarse to fine. As in MONAI, the skip connection next to the bottleneck has no block of its own.
        self.bottleneck = block(widths[4], widths[4])
        sources = ((widths[2], widths[2]), (widths[1], widths[1]), (width, width), (len(CHANNELS), width))
        self.skips = nn.ModuleList([nn.Identity(), *(block(*source) for source in sources)])
        extra = [1, 1, *shares(forecast // inputs, 3)]
        self.repeats = [math.prod(extra[: i + 1]) for i in range(5)]
        strides = [again * more for again, more in zip([*reversed(halvings), 1], extra, strict=True)]
        outputs = (widths[3], widths[2], widths[1], width, width)
        self.decoders = nn.ModuleList(
            UnetrUpBlock(3, source, target, 3, (stride, 2, 2), "instance", res_block=True)
            for source, target, stride in zip((widths[4], *outputs), outputs, strides, strict=False)
        )
        self.out = UnetOutBlock(3, width, 1)

    def forward(
        self, images: Float[Tensor, "batch channel inputs row column"]
    ) -> Float[Tensor, "batch 1 lead row column"]:
        """Return one logit for each lead time and pixel; height and width are multiples of 32."""
        tokens = [self.embed(images)]
        for layer in self.stages:
            tokens.append(layer(tokens[-1].contiguous()))
        *states, deepest = [F.layer_norm(t.movedim(1, -1), t.shape[1:2]).movedim(-1, 1) for t in tokens]
        hidden: Tensor = self.bottleneck(deepest)
        finer = [*reversed(states), images]
        for decoder, skip, state, repeat in zip(self.decoders, self.skips, finer, self.repeats, strict=True):
            hidden = decoder(hidden, skip(state).repeat_interleave(repeat, 2))
        logits: Tensor = self.out(hidden)
        return logits


def stage(config: Swin, inputs: int, outputs: int, heads: int, halving: int) -> nn.Module:
    """Make a stage of the encoder: two transformer blocks and a merging that halves time (2) or keeps it (1)."""
    from monai.networks.nets.swin_unetr import BasicLayer

    def keep_time(dim: int, **_: Any) -> nn.Module:
        return Merging(dim, outputs, KEEPING_TIME)

    return BasicLayer(
        dim=inputs,
        depth=DEPTH,
        num_heads=heads,
        window_size=(config.window,) * 3,
        drop_path=[0.0] * DEPTH,
        qkv_bias=True,
        downsample=halve(config) if halving == 2 else keep_time,  # type: ignore[arg-type]
        use_checkpoint=config.checkpointing,
    )


def unchanged(config: Swin) -> nn.Module:
    """Make MONAI's Swin-UNETR with the reference's settings."""
    from monai.networks.nets.swin_unetr import SwinUNETR

    return SwinUNETR(
        in_channels=len(CHANNELS),
        out_channels=1,
        depths=(DEPTH,) * 4,
        num_heads=HEADS,
        window_size=config.window,
        feature_size=config.feature_size,
        use_checkpoint=config.checkpointing,
        downsample=halve(config),
    )


class SwinForecaster(nn.Module):
    """Reads T satellite images of `size` x `size` pixels and gives L logits for each pixel of the same grid.

    L is a multiple of T, but for the variant `channel_convolution`.
    """

    def __init__(self, model: Swin, size: int, inputs: int, forecast: int) -> None:
        super().__init__()
        self.size, self.forecast, self.how = size, forecast, model.resize
        upsamples = model.variant == "upsample"
        self.inner_size = max(LEAST if upsamples else MULTIPLE, up_to_multiple(size))
        leads = up_to_multiple(forecast) if self.inner_size >= LEAST else max(LEAST, up_to_multiple(forecast))
        self.model = UpsamplingSwin(model, inputs, forecast) if model.variant == "upsample" else unchanged(model)
        converts = model.variant == "channel_convolution"
        self.channel_conv = ChannelConvolution(inputs, forecast) if converts else None
        self.repeat = forecast // inputs if model.variant == "repeat_interleave" else 1
        self.missing = 0 if upsamples else leads - forecast

    def forward(
        self, images: Float[Tensor, "batch channel inputs row column"]
    ) -> Float[Tensor, "batch lead row column"]:
        """Bring the times to the lead times, then the images to the inner size; run the network; and back."""
        if self.channel_conv is not None:
            images = self.channel_conv(images)
        volume = resize(images.repeat_interleave(self.repeat, 2), self.inner_size, self.how)
        logits = self.model(extend(volume, 2, 0, self.missing))[:, :, : self.forecast]
        return resize(logits, self.size, self.how)[:, 0]
