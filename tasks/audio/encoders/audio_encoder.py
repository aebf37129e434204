"""From waveforms or cached mels of any length to one vector each: segments, spectrograms, a network, their mean."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.config import BANDS, HOP, SAMPLE_RATE, SHORTEST, Cnn14, Config, MeanMel, Passt
from retable.tasks.audio.encoders import checkpoints, cnn14
from retable.tasks.audio.encoders.cnn14 import Cnn14Network, PannsMel
from retable.tasks.audio.encoders.mel import SILENCE, Mel, draw_band, frames_of, mask, normalise
from retable.tasks.audio.encoders.passt import PasstNetwork, columns_of, grid

AT_ONCE = 64
"""Segments in memory at once where nothing is trained: a recording of hours needs no more than one of minutes."""


class MeanMelNetwork(nn.Module):
    """The mean over time of each mel band, and with `deviation` the standard deviation; nothing to train."""

    def __init__(self, deviation: bool) -> None:
        super().__init__()
        self.deviation, self.width = deviation, BANDS * (1 + deviation)

    def forward(self, x: Float[Tensor, "batch 1 band frames"]) -> Float[Tensor, "batch width"]:
        """Describe normalised log-mel."""
        deviation, mean = torch.std_mean(x[:, 0], 2, correction=0)
        return torch.cat((mean, deviation), 1) if self.deviation else mean


class AudioEncoder(nn.Module):
    """Cuts audio into segments, encodes those that hold sound, and takes their mean.

    Source: section 2 of the paper. A partly filled segment is padded with silence and counts fully, as there; a last
    one of less than 0.1 s beside others is left out, which the paper's code counts. Segments are cut before the
    spectrogram; of cached mels, whose frames look over the cut, the outermost two frames differ a little. A CNN14 that
    was trained on cached mels makes waveforms into the same, for ever: its weights remember that. SpecAugment
    and the shift of bands happen in training mode only, each segment with its own masks. All draws come from torch's
    generator of the CPU, but those of CNN14's dropout.

    Attributes:
        network: from (segment, 1, band, frames) to (segment, width).
        width: the length of a vector.
    """

    on_mels: Tensor

    def __init__(self, config: Config, network: PasstNetwork | Cnn14Network | MeanMelNetwork) -> None:
        super().__init__()
        self.config, self.network, self.width = config, network, network.width
        self.mel, self.panns_mel = Mel(), PannsMel() if isinstance(network, Cnn14Network) else None
        if self.panns_mel:
            self.register_buffer("on_mels", torch.tensor(False))

    def forward(
        self,
        audio: Float[Tensor, "batch samples"] | Float[Tensor, "batch frames band"],
        lengths: Int[Tensor, " batch"],
        features: str,
    ) -> Float[Tensor, "batch width"]:
        """Encode each recording; what lies behind its length (samples or frames, at least 1) is not heard."""
        encoded, counts = self.segments(audio, lengths, features)
        return encoded.sum(1) / counts[:, None]

    def segments(
        self,
        audio: Float[Tensor, "batch samples"] | Float[Tensor, "batch frames band"],
        lengths: Int[Tensor, " batch"],
        features: str,
    ) -> tuple[Float[Tensor, "batch segment width"], Int[Tensor, " batch"]]:
        """Encode each segment by itself.

        Returns:
            Vectors, zero where a recording has no such segment, and how many segments each recording has.
        """
        step = HOP if features == "mel" else 1
        size, shortest = round(self.config.segment * SAMPLE_RATE / step), round(SHORTEST * SAMPLE_RATE) // step
        lengths = lengths.to(audio.device)
        counts = (lengths // size + (lengths % size >= shortest)).clamp(min=1)
        pieces = _cut(audio, lengths, size, int(counts.max()), SILENCE if features == "mel" else 0.0)
        heard = torch.arange(pieces.shape[1], device=counts.device) < counts[:, None]
        valid = pieces[heard]
        parts = [valid] if self.training else torch.split(valid, AT_ONCE)
        encoded = torch.cat([self.network(self._spectrogram(part, features)[:, None]) for part in parts]).float()
        placed = encoded.new_zeros(*heard.shape, self.width)
        placed[heard] = encoded
        return placed, counts

    def _spectrogram(self, pieces: Tensor, features: str) -> Float[Tensor, "segment band frames"]:
        """Return the network's input, masked in training."""
        log_mel = self._log_mel(pieces, features)
        if self.training:
            log_mel = mask(log_mel, self.config.frequency_mask, self.config.time_mask)
        return log_mel if self.panns_mel else normalise(log_mel)

    def _log_mel(self, pieces: Tensor, features: str) -> Tensor:
        if features == "waveform":
            if self.panns_mel and not self.on_mels:
                panns: Tensor = self.panns_mel(pieces)
                return panns
            shifted = self.training and self.config.shift_bands
            log_mel = self.mel(pieces, draw_band()) if shifted else self.mel(pieces)
        elif self.training and self.config.shift_bands:
            raise UserError(
                "shift_bands: the data set holds mels, not waveforms; set shift_bands=false, or make it anew"
            )
        else:
            log_mel = pieces.float().transpose(1, 2)
            if self.panns_mel and self.training:
                self.on_mels.fill_(True)
        return cnn14.from_passt_mel(log_mel) if self.panns_mel else log_mel


def _cut(audio: Tensor, lengths: Tensor, size: int, most: int, silence: float) -> Tensor:
    """Cut into `most` segments, (batch, segment, size, ...), with silence behind each recording's end."""
    audio = audio[:, : most * size]
    behind = torch.arange(audio.shape[1], device=audio.device) >= lengths[:, None]
    audio = audio.masked_fill(behind.view(*behind.shape, *(1,) * (audio.ndim - 2)), silence)
    missing = (*(0, 0) * (audio.ndim - 2), 0, most * size - audio.shape[1])
    return F.pad(audio, missing, value=silence).reshape(len(audio), most, size, *audio.shape[2:])


def build_audio(config: Config, storage: Storage | None) -> AudioEncoder:
    """Make the audio encoder with the weights that `config.audio.weights` names.

    Random weights come from torch's generator. Without a storage no weights are read: the caller has them.

    Raises:
        UserError: where the weights are missing or of another layout, or a segment does not fit the network.
    """
    check_segment(config)
    network: PasstNetwork | Cnn14Network | MeanMelNetwork
    match config.audio:
        case MeanMel(deviation=deviation):
            return AudioEncoder(config, MeanMelNetwork(deviation))
        case Passt():
            network = PasstNetwork(config.audio)
        case Cnn14():
            network = Cnn14Network(config.audio)
    if storage and config.audio.weights != "random":
        network.load_state_dict(checkpoints.load_state(config.audio, storage), strict=False)
    return AudioEncoder(config, network)


def check_segment(config: Config) -> None:
    """See whether the network takes segments of that length, and whether patchout leaves something of them.

    Raises:
        UserError: where not.
    """
    audio, frames = config.audio, frames_of(round(config.segment * SAMPLE_RATE))
    if isinstance(audio, Cnn14):
        if frames < cnn14.SHORTEST:
            raise UserError(f"segment {config.segment} s: CNN14 takes no less than 0.32 s; choose a longer one")
        if config.shift_bands:
            raise UserError("shift_bands: CNN14 has its own mel bank; set shift_bands=false")
    if not isinstance(audio, Passt):
        return
    columns, (rows, positions) = columns_of(frames, audio.stride), grid(audio)
    if not 0 < columns <= positions:
        longest = (positions - 1) * audio.stride + 16 + audio.stride - 1
        raise UserError(
            f"segment {config.segment} s: audio.frames {audio.frames} at audio.stride {audio.stride} suit segments of "
            f"0.16 s to {longest / 100} s; change one of them"
        )
    tokens = (rows - audio.patchout_frequency) * (columns - audio.patchout_time)
    if columns <= audio.patchout_time or tokens <= audio.patchout:
        raise UserError(
            f"audio.patchout_time {audio.patchout_time}, audio.patchout {audio.patchout}: nothing is left of the "
            f"{rows} x {columns} patches of a segment; lower them"
        )
