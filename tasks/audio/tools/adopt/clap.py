"""LAION-CLAP (Wu et al. 2023): an HTSAT and a RoBERTa that others trained, computed by transformers' `ClapModel`.

`clap_files.py` reads what was published; here is what embeds, and the one file that it is sealed as.
Sources: transformers' `ClapFeatureExtractor` for what is heard, LAION-AI/CLAP's `hook.py` for what is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn
from torch.nn import functional

from retable.platform.errors import UserError
from retable.platform.store.weights import check
from retable.tasks.audio.config import SAMPLE_RATE, SHORTEST
from retable.tasks.audio.encoders.cnn14 import FLOOR, slaney_bank
from retable.tasks.audio.encoders.fingerprint import weights_fingerprint
from retable.tasks.audio.encoders.mel import FFT
from retable.tasks.audio.encoders.text import read_state
from retable.tasks.audio.encoders.tokens import TEXT_STATE, read_tokenizer
from retable.tasks.audio.tools.embed.embedder import Embedder, placed

FORMAT = "retable audio clap 1"
"""Value of `format` in the metadata of such a pair's file."""
RATE, SECONDS = 48_000, 10
"""Samples a second that the networks hear, and how long they hear."""
HOP = 480
"""Samples between frames of the spectrogram."""
TOKENS = 77
"""Of a caption, the first and the last included, as LAION cuts it."""
AT_ONCE = 16
"""Segments that are encoded at once."""


class ClapNetwork(nn.Module):
    """Both encoders: recordings at 32 kHz and captions become unit vectors.

    Attributes:
        clap: transformers' `ClapModel`.
        tokenizer: cuts captions to `TOKENS`, and pads them.
        bank: of the spectrogram, (band, bin).
    """

    bank: Tensor

    def __init__(self, architecture: Mapping[str, Any], tokenizer: Any) -> None:
        from transformers import ClapConfig, ClapModel

        super().__init__()
        self.clap: Any = ClapModel(ClapConfig.from_dict(dict(architecture)))
        self.register_buffer("bank", slaney_bank(RATE), persistent=False)
        self.tokenizer = tokenizer
        tokenizer.enable_truncation(TOKENS)
        tokenizer.enable_padding(pad_id=self.clap.config.text_config.pad_token_id)  # type: ignore[union-attr]

    def embed_audio(
        self, audio: Float[Tensor, "n samples"], lengths: Int[Tensor, " n"], features: str
    ) -> Float[Tensor, "n dimension"]:
        """Embed recordings; of one longer than 10 s, the mean over its segments before the norm.

        Args:
            audio: waveforms at 32 kHz, padded at their ends.
            lengths: samples of each that are no padding.
            features: "waveform": these networks hear nothing else.

        Raises:
            UserError: where features are others.
        """
        if features != "waveform":
            raise UserError(f"LAION-CLAP hears waveforms, not {features}; take a data set that holds them")
        rows = zip(audio.cpu().numpy(), lengths.tolist(), strict=True)
        parts = [segments(row[:length]) for row, length in rows]
        flat = [segment for part in parts for segment in part]
        heard = torch.cat([self._heard(flat[start : start + AT_ONCE]) for start in range(0, len(flat), AT_ONCE)])
        means = torch.stack([one.mean(0) for one in torch.split(heard, [len(part) for part in parts])])
        return functional.normalize(means, dim=-1)

    def _heard(self, sounds: Sequence[Float32[np.ndarray, " samples"]]) -> Float[Tensor, "n dimension"]:
        """Encode segments of 10 s at 48 kHz; these vectors are of any length."""
        log_mel = self.log_mel(torch.from_numpy(np.stack(sounds)).to(self.bank.device))
        encoded: Tensor = self.clap.audio_projection(self.clap.audio_model(log_mel[:, None]).pooler_output)
        return encoded.float()

    def log_mel(self, waveforms: Float[Tensor, "n samples"]) -> Float[Tensor, "n frames 64"]:
        """Return spectrograms in decibels, a frame each 10 ms."""
        window = torch.hann_window(FFT, device=waveforms.device)
        spectrum = torch.stft(waveforms, FFT, HOP, window=window, pad_mode="reflect", return_complex=True)
        power = self.bank @ spectrum.abs().square()
        return (10 * power.clamp(min=FLOOR).log10()).transpose(1, 2)

    def embed_text(self, captions: Sequence[str]) -> Float[Tensor, "n dimension"]:
        """Embed captions as they are written: neither case nor punctuation is changed."""
        encodings, device = self.tokenizer.encode_batch(list(captions)), self.bank.device
        ids = torch.tensor([encoding.ids for encoding in encodings], device=device)
        mask = torch.tensor([encoding.attention_mask for encoding in encodings], device=device)
        pooled = self.clap.text_model(input_ids=ids, attention_mask=mask).pooler_output
        return functional.normalize(self.clap.text_projection(pooled).float(), dim=-1)


def segments(sound: Float32[np.ndarray, " samples"]) -> list[Float32[np.ndarray, " samples"]]:
    """Cut a recording at 32 kHz into segments of 10 s at 48 kHz.

    A shorter one is repeated as often as it fits whole, and silence follows ("repeatpad"); a last one of less than
    0.1 s beside others is left out.
    """
    step = SECONDS * SAMPLE_RATE
    end = max(1, len(sound) - round(SHORTEST * SAMPLE_RATE) + 1)
    return [_filled(sound[start : start + step]) for start in range(0, end, step)]


def _filled(sound: Float32[np.ndarray, " samples"]) -> Float32[np.ndarray, " samples"]:
    """Resample a sound of at most 10 s, and fill 10 s with it."""
    import soxr

    filled = np.zeros(SECONDS * RATE, np.float32)
    resampled = soxr.resample(sound, SAMPLE_RATE, RATE)[: len(filled)]
    if len(resampled):
        repeated = np.tile(resampled, len(filled) // len(resampled))
        filled[: len(repeated)] = repeated
    return filled


@dataclass(frozen=True, eq=False)
class Clap:
    """Such a pair out of one file: what embeds, and what the file says of it; see `export.Exported`."""

    about: Mapping[str, Any]
    """`task`, the SHA-256 of what was adopted, and what else was to be said."""
    weights: Mapping[str, Tensor]
    """A `ClapNetwork`'s, and `TEXT_STATE`."""
    source: str
    """Name that opens it again: the file's."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights and of what they compute with."""
        return weights_fingerprint(None, self.weights)

    def embedder(self, device: str = "", words_alone: bool = False) -> Embedder:
        """Return what embeds sounds and words, as `retable audio search` does.

        Args:
            device: cpu, cuda, ...; none: a GPU where there is one.
            words_alone: of no account: what hears is made in no time here.

        Raises:
            UserError: where the file is damaged, or there is no such device.
        """
        network = placed(self._network, device, self.source)
        return Embedder(float(SECONDS), network.clap.config.projection_dim, network, self.fingerprint, self.source)

    def _network(self) -> ClapNetwork:
        weights = dict(self.weights)
        try:
            state = read_state(weights.pop(TEXT_STATE))
            with torch.device("meta"):  # no memory, and no random numbers
                network = ClapNetwork(state["architecture"], read_tokenizer(state["tokenizer"]))
            check(weights, network.state_dict())
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.source}: a damaged model; `retable audio adopt` writes one") from error
        network.load_state_dict(weights, assign=True)
        return network
