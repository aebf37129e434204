"""The dual encoder: recordings and captions become vectors of one space, in which what belongs together lies close."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.config import Config
from retable.tasks.audio.encoders.audio_encoder import AudioEncoder, build_audio
from retable.tasks.audio.encoders.text import TextEncoder, build_text, rebuild_text
from retable.tasks.audio.encoders.tokens import TEXT_STATE

ON_MELS = "audio.on_mels"
"""Name of what says that a CNN14 was trained on mels; weights from before there was such a thing say nothing."""


class Encoders(Protocol):
    """Encoders of recordings and captions into one space: `DualEncoder`, and `clap.ClapNetwork`."""

    def embed_audio(self, audio: Tensor, lengths: Tensor, features: str) -> Tensor:
        """Embed recordings; see `DualEncoder.embed_audio`."""

    def embed_text(self, captions: Sequence[str]) -> Tensor:
        """Embed captions."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what was learnt; it lies on the device that computes."""


class DualEncoder(nn.Module):
    """An audio and a text encoder, each with a linear projection to vectors of length one.

    `temperature` is what cosines are divided by, in absolute value: a scalar that is learnt, if the config says so.

    Source: section 2 of the paper, and its code. The norm and its inputs are float32 also where the encoders are not.
    """

    def __init__(self, config: Config, audio: AudioEncoder, text: TextEncoder) -> None:
        super().__init__()
        self.audio, self.text = audio, text
        self.audio_projection = nn.Linear(audio.width, config.projection)
        self.text_projection = nn.Linear(text.width, config.projection)
        self.temperature = nn.Parameter(torch.tensor(config.temperature), requires_grad=config.learn_temperature)

    def forward(
        self,
        audio: Float[Tensor, "n samples"] | Float[Tensor, "n frames 128"],
        lengths: Int[Tensor, " n"],
        features: str,
        ids: Int[Tensor, "m token"],
        mask: Bool[Tensor, "m token"],
    ) -> tuple[Float[Tensor, "n dimension"], Float[Tensor, "m dimension"]]:
        """Embed recordings (see `embed_audio`) and tokenized captions."""
        return self.embed_audio(audio, lengths, features), self._embed_tokens(ids, mask)

    def embed_audio(
        self,
        audio: Float[Tensor, "n samples"] | Float[Tensor, "n frames 128"],
        lengths: Int[Tensor, " n"],
        features: str,
    ) -> Float[Tensor, "n dimension"]:
        """Embed recordings: the mean over a recording's segments is projected to a vector of length one.

        Args:
            audio: waveforms at 32 kHz, or raw log-mel frames, padded at their ends.
            lengths: samples or frames of each that are no padding.
            features: "waveform" or "mel", saying which.
        """
        projected = self.audio_projection(self.audio(audio, lengths, features))
        return functional.normalize(projected.float(), dim=-1)

    def embed_text(self, captions: Sequence[str]) -> Float[Tensor, "n dimension"]:
        """Embed captions, on the device where the model is."""
        tokens = self.text.tokenize(captions)
        device = self.temperature.device
        return self._embed_tokens(tokens["ids"].to(device), tokens["mask"].to(device))

    def _embed_tokens(self, ids: Tensor, mask: Tensor) -> Tensor:
        return functional.normalize(self.text_projection(self.text(ids, mask)).float(), dim=-1)


def build(config: Config, captions: Sequence[str], storage: Storage | None) -> DualEncoder:
    """Make the dual encoder of a config, on the CPU; random weights come from torch's global generator.

    Args:
        config: the run's.
        captions: those of training; the tokenizer of an untrained text encoder is trained on them.
        storage: where the weights of pretrained audio encoders lie.

    Raises:
        UserError: where pretrained weights cannot be had, or do not fit.
    """
    return DualEncoder(config, build_audio(config, storage), build_text(config, captions))


def load(config: Config, weights: Mapping[str, Tensor]) -> DualEncoder:
    """Make a trained dual encoder again, from its weights alone, in evaluation mode.

    Raises:
        UserError: where the weights are of another model.
    """
    model = rebuild(config, weights)
    load_weights(model, weights)
    return model.eval()


def load_words(config: Config, weights: Mapping[str, Tensor]) -> DualEncoder:
    """Make the half that embeds captions of a trained dual encoder, in evaluation mode: a fraction of the whole's time.

    Raises:
        UserError: where the weights are of another model.
    """
    text, deaf = _text_of(config, weights), nn.Identity()
    deaf.width = weights["audio_projection.weight"].shape[1]  # type: ignore[assignment]
    model = DualEncoder(config, deaf, text)  # type: ignore[arg-type]
    load_weights(model, {name: value for name, value in weights.items() if not name.startswith("audio.")})
    return model.eval()


def rebuild(config: Config, weights: Mapping[str, Tensor], trained: bool = False) -> DualEncoder:
    """Make the dual encoder of a config again, without a trained model's weights but with its tokenizer.

    Args:
        config: the run's.
        weights: the trained model's.
        trained: whether it is trained on; see `rebuild_text`.
    """
    text = _text_of(config, weights, trained)
    return DualEncoder(config, build_audio(config, None), text)


def _text_of(config: Config, weights: Mapping[str, Tensor], trained: bool = False) -> TextEncoder:
    if TEXT_STATE not in weights:
        raise UserError("weights: they hold no text encoder; name the weights of a run of this task")
    return rebuild_text(config, weights[TEXT_STATE], trained)


def check(config: Config, weights: Mapping[str, Tensor]) -> None:
    """See whether weights are those of a config's dual encoder, before that takes any memory.

    Raises:
        UserError: where names or shapes differ.
    """
    with torch.device("meta"):
        fitting(rebuild(config, weights), weights)


def load_weights(model: DualEncoder, weights: Mapping[str, Tensor]) -> None:
    """Load a trained model's weights, tokenizer included, into one that is built alike.

    Raises:
        UserError: where names or shapes differ.
    """
    model.load_state_dict(fitting(model, weights))


def fitting(model: DualEncoder, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights as a model takes them; errors are those of `load_weights`."""
    ours = model.state_dict()
    if ON_MELS in ours:
        weights = {ON_MELS: torch.tensor(False, device="cpu"), **weights}
    for name in sorted(ours.keys() | weights.keys()):
        if name not in weights or name not in ours:
            where = "the weights" if name in ours else "this model"
            raise UserError(f"weights: {name!r} is not in {where}; choose the encoders that they were trained with")
        if name != TEXT_STATE and ours[name].shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} where this model has {tuple(ours[name].shape)}"
            raise UserError(f"weights: {name!r} has shape {shapes}; choose the encoders that they were trained with")
    return dict(weights)
