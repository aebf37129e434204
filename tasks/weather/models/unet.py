"""The competition's baseline, a 3D U-Net (elektronn3's, patched by the organisers), and the paper's improvements of it.

Modules have the reference's names, so its weights load. Its parts that the names give no hint of: normalisation after
every convolution (Çiçek et al. 2016, here also after the upsampling one), whole-channel dropout between normalisation
and activation on the way down and on what the way up is given, and a head for which the lead times are channels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from retable.platform.errors import UserError
from retable.tasks.weather.config import UNet
from retable.tasks.weather.w4c.preprocess import CHANNELS

Volume = Float[Tensor, "batch channel time row column"]


def normalization(config: UNet, channels: int) -> nn.Module:
    """Batch normalisation, or instance normalisation without parameters."""
    return nn.BatchNorm3d(channels) if config.normalization == "batch" else nn.InstanceNorm3d(channels)


def activation(config: UNet) -> nn.Module:
    """ReLU, or the randomised leaky ReLU with slopes from 1/8 to 1/3 (Xu et al. 2015)."""
    return nn.ReLU() if config.activation == "relu" else nn.RReLU()


def halve(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape after pooling by 2, which keeps the rest of an odd length."""
    return tuple((length + 1) // 2 for length in shape)


class DownConv(nn.Module):
    """Two convolutions of one level, each with normalisation, dropout and activation."""

    def __init__(self, config: UNet, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv3d(outputs, outputs, 3, padding=1)
        self.norm0, self.norm1 = normalization(config, outputs), normalization(config, outputs)
        self.dropout, self.act = nn.Dropout3d(config.dropout), activation(config)

    def forward(self, x: Volume) -> Volume:
        """Map a level's input to its features, before pooling."""
        hidden = self.act(self.dropout(self.norm0(self.conv1(x))))
        features: Tensor = self.act(self.dropout(self.norm1(self.conv2(hidden))))
        return features


class ResizeConv(nn.Module):
    """Trilinear upsampling by 2, then a convolution: no checkerboard (Odena et al. 2016)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(inputs, outputs, 3, padding=1)

    def forward(self, x: Volume) -> Volume:
        """Double time, rows and columns."""
        enlarged: Tensor = self.conv(functional.interpolate(x, scale_factor=2, mode="trilinear"))
        return enlarged


class GridAttention(nn.Module):
    """Attention gate: the coarser level says where its skip connection's features matter (Oktay et al. 2018, figure 2).

    They are compared on a grid coarser by `stride`. The output is normalised over the batch even where the rest of the
    network is normalised over instances, as in the reference.
    """

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        between = max(1, channels // 2)
        self.w = nn.Sequential(nn.Conv3d(channels, channels, 1), nn.BatchNorm3d(channels))
        self.theta = nn.Conv3d(channels, between, stride, stride=stride, bias=False)
        self.phi = nn.Conv3d(2 * channels, between, 1)
        self.psi = nn.Conv3d(between, 1, 1)

    def forward(self, skip: Volume, gate: Volume) -> Volume:
        """Weigh the skip connection's features by the gate, the coarser level's with twice as many channels."""
        theta = self.theta(skip)
        phi = functional.interpolate(self.phi(gate), size=theta.shape[2:], mode="trilinear")
        attention = torch.sigmoid(self.psi(torch.relu(theta + phi)))
        weighted: Tensor = self.w(functional.interpolate(attention, size=skip.shape[2:], mode="trilinear") * skip)
        return weighted


class UpConv(nn.Module):
    """Upsampling of a level's output, joined with the skip connection above, and two convolutions."""

    def __init__(self, config: UNet, channels: int, stride: int) -> None:
        super().__init__()
        if config.upsampling == "transposed":
            self.upconv: nn.Module = nn.ConvTranspose3d(2 * channels, channels, 2, stride=2)
        else:
            self.upconv = ResizeConv(2 * channels, channels)
        self.conv1 = nn.Conv3d(2 * channels, channels, 3, padding=1)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1)
        self.norm0, self.norm1 = normalization(config, channels), normalization(config, channels)
        self.norm2, self.act = normalization(config, channels), activation(config)
        self.attention = GridAttention(channels, stride) if config.attention else None

    def forward(self, skip: Volume, x: Volume) -> Volume:
        """Bring a level's output `x` to the level of `skip`; what doubling an odd length's half gives more is cut."""
        time, rows, columns = skip.shape[2:]
        enlarged = self.act(self.norm0(self.upconv(x)[:, :, :time, :rows, :columns]))
        if self.attention is not None:
            skip = self.attention(skip, x)
        joined = self.act(self.norm1(self.conv1(torch.cat((enlarged, skip), 1))))
        features: Tensor = self.act(self.norm2(self.conv2(joined)))
        return features


class UNetForecaster(nn.Module):
    """The 3D U-Net for images of `size` x `size` pixels, `inputs` of them, with a logit for each of `forecast` times.

    Any numbers are fine: what pooling cannot halve it rounds up. (Batch normalization of a lowest level of one pixel
    trains from two samples on.) The reference takes exactly 4 images. Where attention compares on a half grid, the
    reference decides by the number of channels, right for 32 filters only; here it is by the number of images, with the
    same outcome at 32 filters: a level that time has left a single image keeps its grid.

    Raises:
        UserError: where the lowest level has a single pixel and instance normalisation would make it 0.

    """

    def __init__(self, config: UNet, size: int, inputs: int, forecast: int) -> None:
        super().__init__()
        shapes: list[tuple[int, ...]] = [(inputs, size, size)]
        for _ in range(config.levels - 1):
            shapes.append(halve(shapes[-1]))
        if config.normalization == "instance" and max(shapes[-1]) == 1:
            raise UserError(
                f"model.levels {config.levels} brings images of {size} x {size} pixels to one, which instance "
                "normalization makes 0; lower model.levels"
            )
        widths = [config.filters * 2**level for level in range(config.levels)]
        below = [len(CHANNELS), *widths]
        self.down_convs = nn.ModuleList(DownConv(config, below[level], width) for level, width in enumerate(widths))
        upwards = reversed(range(config.levels - 1))
        self.up_convs = nn.ModuleList(UpConv(config, widths[i], 2 if min(shapes[i]) > 1 else 1) for i in upwards)
        self.reduce_channels = nn.Conv3d(config.filters * inputs, forecast, 1)
        self.dropout = nn.Dropout3d(config.dropout)
        for module in self.modules():
            # Of a network without memory, Torch would draw by its compiler, whose import takes 1.5 s and 80 MB.
            if isinstance(module, nn.Conv3d | nn.ConvTranspose3d) and not module.weight.is_meta:
                nn.init.xavier_normal_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Float[Tensor, "batch 11 input row column"]) -> Float[Tensor, "batch lead row column"]:
        """Return logits of rain, on the grid of the images."""
        skips: list[Tensor] = []
        for level, down in enumerate(self.down_convs):
            x = down(functional.max_pool3d(x, 2, ceil_mode=True) if level else x)
            skips.append(self.dropout(x))
        x = skips.pop()
        for up in self.up_convs:
            x = up(skips.pop(), x)
        logits: Tensor = self.reduce_channels(x.flatten(1, 2).unsqueeze(2))  # channel-major: channel * inputs + time
        return logits.squeeze(2)
