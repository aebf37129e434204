"""CNN14 of PANNs (Kong et al. 2020) with its own mel spectrograms: the challenge's baseline encoder.

Source: qiuqiangkong/audioset_tagging_cnn, `pytorch/models.py` and torchlibrosa. Parameters have the published names,
without AudioSet's classifier. Differences: PANNs' SpecAugment (fixed at 64 frames and 8 bands, twice, after `bn0`) and
mixup are left to the caller; spectrograms of 128 bands, where a data set holds them, stand in for PANNs' own.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from retable.tasks.audio.config import SAMPLE_RATE, Cnn14
from retable.tasks.audio.encoders.mel import FFT, power_spectrum

BANDS = 64
BAND = (50.0, 14000.0)
"""Lowest and highest frequency in Hz."""
FLOOR = 1e-10
SHORTEST = 32
"""Frames that the five poolings need."""


def slaney_bank(rate: int = SAMPLE_RATE) -> Float[Tensor, "64 bin"]:
    """Return Slaney's triangles of equal area, their corners equally far in mel (librosa's default)."""
    from transformers.audio_utils import mel_filter_bank

    bank = mel_filter_bank(FFT // 2 + 1, BANDS, *BAND, rate, norm="slaney", mel_scale="slaney")
    return torch.from_numpy(bank.T.astype(np.float32))


class PannsMel(nn.Module):
    """PANNs' log-mel in decibels: 64 bands of 50 Hz to 14 kHz, windows of 32 ms each 10 ms, no pre-emphasis."""

    window: Tensor
    bank: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(FFT), persistent=False)
        self.register_buffer("bank", slaney_bank().contiguous(), persistent=False)

    def forward(self, waveform: Float[Tensor, "batch samples"]) -> Float[Tensor, "batch band frames"]:
        """Return 1 + samples // 320 frames; float32, without gradients."""
        with torch.no_grad(), torch.autocast(waveform.device.type, enabled=False):
            return _decibels(self.bank @ power_spectrum(waveform.float(), self.window))


def from_passt_mel(log_mel: Float[Tensor, "batch 128 frames"]) -> Float[Tensor, "batch 64 frames"]:
    """Make 64 bands in decibels of PaSST's raw log-mel: the mean power of neighbours.

    Scale, window and corners are not PANNs', so this is for networks that are trained on it from the start.
    """
    return _decibels(log_mel.float().exp().reshape(len(log_mel), BANDS, 2, -1).mean(2))


def _decibels(power: Tensor) -> Tensor:
    return 10 * power.clamp(min=FLOOR).log10()


class ConvBlock(nn.Module):
    """Two 3 x 3 convolutions with batch normalisation and ReLU, then average pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)

    def forward(
        self, x: Float[Tensor, "batch channel frames band"], pooling: int
    ) -> Float[Tensor, "batch channel frames band"]:
        """Refine, and make both sides `pooling` times smaller."""
        x = F.relu(self.bn1(self.conv1(x)))
        return F.avg_pool2d(F.relu(self.bn2(self.conv2(x))), pooling)


class Cnn14Network(nn.Module):
    """Six blocks of convolutions, maximum plus mean over time, one linear layer.

    Batch normalisation makes a training step depend on which clips a worker has: several workers do not equal one.
    """

    def __init__(self, config: Cnn14) -> None:
        super().__init__()
        channels = [1, *(config.filters * 2**block for block in range(6))]
        self.width = channels[-1]
        self.bn0 = nn.BatchNorm2d(BANDS)
        for block in range(1, 7):
            self.add_module(f"conv_block{block}", ConvBlock(channels[block - 1], channels[block]))
        self.fc1 = nn.Linear(self.width, self.width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(self.fc1.bias)

    def forward(self, x: Float[Tensor, "batch 1 64 frames"]) -> Float[Tensor, "batch width"]:
        """Encode log-mel in decibels, at least 32 frames of it."""
        x = self.bn0(x.transpose(1, 2)).permute(0, 2, 3, 1)
        for block in range(1, 7):
            x = self.get_submodule(f"conv_block{block}")(x, 2 if block < 6 else 1)
            x = F.dropout(x, 0.2, self.training)
        x = x.mean(3)
        x = F.dropout(x.amax(2) + x.mean(2), 0.5, self.training)
        return F.dropout(F.relu(self.fc1(x)), 0.5, self.training)
