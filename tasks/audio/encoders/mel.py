"""PaSST's mel spectrograms, with the constants that its published checkpoints were trained with.

Source: kkoutini/PaSST and passt_hear21, `preprocess.py` (the same in both). Waveforms are 32 kHz mono in [-1, 1].
Always float32 and without gradients: half precision has no room for the power of quiet sounds.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from retable.tasks.audio.config import BANDS, HOP, SAMPLE_RATE

FFT = 1024
WINDOW = 800
PRE_EMPHASIS = 0.97
FLOOR = 1e-5
"""Value added to a band's power before the logarithm."""
SILENCE = math.log(FLOOR)
"""A band without sound, in raw log-mel."""
BAND = (0.0, 15000.0)
"""Lowest and highest frequency in Hz, where they are not drawn."""


def frames_of(samples: int) -> int:
    """Return the number of frames of a waveform: 1000 for 10 s; one of under 16 ms is padded and has 2."""
    return 1 + max(samples - 1, FFT // 2 + 1) // HOP


def power_spectrum(
    waveform: Float[Tensor, "batch samples"], window: Float[Tensor, " window"]
) -> Float[Tensor, "batch bin frames"]:
    """Return |STFT|^2: frames are centred, the ends are reflected; a waveform too short to be reflected gets zeros."""
    padded = F.pad(waveform, (0, max(0, FFT // 2 + 1 - waveform.shape[-1])))
    spectrum = torch.stft(padded, FFT, HOP, len(window), window, pad_mode="reflect", return_complex=True)
    return spectrum.real.square().addcmul_(spectrum.imag, spectrum.imag)  # a sum over two is many times as slow


def kaldi_bank(lowest: float, highest: float) -> Float[Tensor, "band bin"]:
    """Return Kaldi's triangles, linear in mel and all of height 1; the bin at half the sample rate counts nowhere."""
    mels = 1127 * torch.log1p(torch.arange(FFT // 2, dtype=torch.float64) * SAMPLE_RATE / FFT / 700)
    low, high = (1127 * math.log1p(frequency / 700) for frequency in (lowest, highest))
    step = (high - low) / (BANDS + 1)
    peaks = low + step * torch.arange(1, BANDS + 1, dtype=torch.float64)
    triangles = (1 - (mels - peaks[:, None]).abs() / step).clamp(min=0)
    return F.pad(triangles, (0, 1)).float()


def draw_band() -> tuple[float, float]:
    """Draw a lowest and a highest frequency in Hz, as PaSST does for each training batch; from torch's generator."""
    lowest, lowered = torch.randint(10, ()), torch.randint(2000, ())
    return float(lowest), SAMPLE_RATE / 2 - float(lowered)


class Mel(nn.Module):
    """Raw log-mel spectrograms: pre-emphasis, STFT of 25 ms each 10 ms, 128 bands, log(power + 1e-5)."""

    window: Tensor
    bank: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW, periodic=False), persistent=False)
        self.register_buffer("bank", kaldi_bank(*BAND), persistent=False)

    def forward(
        self, waveform: Float[Tensor, "batch samples"], band: tuple[float, float] | None = None
    ) -> Float[Tensor, "batch band frames"]:
        """Return `frames_of(samples)` frames; `band` is the lowest and highest frequency where they are not `BAND`."""
        with torch.no_grad(), torch.autocast(waveform.device.type, enabled=False):
            waveform = waveform.float()
            emphasised = waveform[:, 1:] - PRE_EMPHASIS * waveform[:, :-1]
            bank = self.bank if band is None else kaldi_bank(*band).to(self.bank.device)
            return torch.log(bank @ power_spectrum(emphasised, self.window) + FLOOR)


def normalise(log_mel: Tensor) -> Tensor:
    """Bring raw log-mel to about [-1.4, 1.5], as the checkpoints want it."""
    return (log_mel + 4.5) / 5


def mask(
    log_mel: Float[Tensor, "batch band frames"], frequency: int, time: int, generator: torch.Generator | None = None
) -> Float[Tensor, "batch band frames"]:
    """Hide one range of less than `frequency` bands and one of less than `time` frames of each spectrogram.

    SpecAugment (Park et al. 2019) as torchaudio 2 does it, one draw for each spectrogram. What is hidden becomes 0.0 of
    raw log-mel, which is loud: so does PaSST's code. Ranges are drawn on the CPU.
    """
    if frequency:
        log_mel = log_mel.masked_fill(_ranges(log_mel, 1, frequency, generator)[:, :, None], 0.0)
    if time:
        log_mel = log_mel.masked_fill(_ranges(log_mel, 2, time, generator)[:, None, :], 0.0)
    return log_mel


def _ranges(log_mel: Tensor, axis: int, most: int, generator: torch.Generator | None) -> Tensor:
    """Draw one range of the axis for each spectrogram: (batch, size), true inside."""
    size = log_mel.shape[axis]
    length, offset = torch.rand(2, len(log_mel), 1, generator=generator)
    length = length * min(most, size)
    start = (offset * (size - length)).long()
    positions = torch.arange(size)
    hidden: Tensor = (positions >= start) & (positions < start + length.long())
    return hidden.to(log_mel.device)
