"""Config of an audio run: data, two encoders, their training. Defaults: the paper's values, its faults corrected.

Source: Primus, Koutini and Widmer 2023, *CP-JKU's Submission to Task 6b of the DCASE2023 Challenge*, and its code.
Where paper and code differ, the difference is a value of a field; `PAPER` chooses what the paper's rows were trained
with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from retable.platform.config import Parent, Scratch, Weights, added, check, lineage

SAMPLE_RATE = 32000
"""Sample rate of every model's input, Hz."""
BANDS = 128
"""Mel bands of a spectrogram."""
HOP = 320
"""Samples between its frames: 10 ms."""
SHORTEST = 0.1
"""Seconds of a file that is of use, and of a last segment that counts beside others, at least."""
Corpus = Literal["clotho", "audiocaps", "wavcaps"]
TrainOn = Literal["training", "training_validation", "all"]
SPLITS: Mapping[TrainOn, tuple[str, ...]] = {
    "training": ("training",),
    "training_validation": ("training", "validation"),
    "all": ("training", "validation", "test"),
}
"""`Config.train_on` -> the splits whose recordings are trained on."""


def _check_share(config: object, name: str) -> None:
    if not 0 <= getattr(config, name) <= 1:
        raise ValueError(f"{name} {getattr(config, name)} is no probability")


@dataclass(frozen=True, kw_only=True)
class Passt:
    """PaSST (Koutini et al. 2022), a vision transformer over mel spectrograms; the defaults are PaSST-N's."""

    weights: str = "passt-n"
    """passt-n, passt-s, passt-s15: the published checkpoints of that name, from the storage; imagenet: timm's DeiT,
    its positions adapted; random; or the SHA-256 that `retable audio weights FILE` prints."""
    stride: int = 16
    """Of the 16 x 16 patches, in mel bands and frames: 10 makes them overlap, 16 does not."""
    frames: int = 1000
    """Frames (10 ms each) that there are positions for: 998 of PaSST-S, 1000 of PaSST-N, 2000 of PaSST-S15."""
    width: int = 768
    depth: int = 12
    heads: int = 12
    patchout_frequency: int = 2
    """Rows of patches that a training step leaves out, one draw for the whole batch."""
    patchout_time: int = 15
    """Columns of patches left out."""
    patchout: int = 0
    """Patches left out of those that remain, without structure."""

    def __post_init__(self) -> None:
        check(self, "stride", "width", "depth", "heads")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.frames < 16:
            raise ValueError(f"frames {self.frames} are fewer than a patch's 16")
        check(self, "patchout_frequency", "patchout_time", "patchout", least=0)
        rows, columns = (128 - 16) // self.stride + 1, (self.frames - 16) // self.stride + 1
        if self.patchout_frequency >= rows or self.patchout_time >= columns:
            raise ValueError(f"patchout leaves nothing of {rows} x {columns} patches")


@dataclass(frozen=True, kw_only=True)
class Cnn14:
    """CNN14 of PANNs (Kong et al. 2020), the challenge's baseline encoder."""

    weights: str = "random"
    """cnn14: PANNs' published `Cnn14_mAP=0.431.pth`, from the storage; random; or the SHA-256 that `retable audio
    weights FILE` prints."""
    filters: int = 64
    """Channels of the first of six blocks; each next one has twice as many."""

    def __post_init__(self) -> None:
        check(self, "filters")


@dataclass(frozen=True, kw_only=True)
class MeanMel:
    """A control of ours: the mean over time of each mel band; only the projection is trained."""

    deviation: bool = True
    """Append the standard deviation over time."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A text encoder of Hugging Face's transformers."""

    name: str = "roberta-large"
    """A name on the hub (bert-base-uncased, bert-large-uncased, roberta-base, roberta-large, ...) or a local folder."""
    dropout: float = 0.2
    """Of hidden layers and attention: the code's; the paper does not say."""
    pooling: Literal["class", "mean"] = added("class")
    """Vector of a caption: its class token's, as in the paper, or the mean over its tokens, as Sentence-BERT's
    encoders were trained."""
    frozen: bool = added(False)
    """Whether its weights stay as they are, and only the projection behind it is trained."""

    def __post_init__(self) -> None:
        _check_share(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class Untrained:
    """A small encoder with random weights, whose tokenizer is trained on the training captions."""

    family: Literal["bert", "roberta"] = "bert"
    width: int = 128
    depth: int = 2
    heads: int = 4
    vocabulary: int = 2000
    dropout: float = 0.2

    def __post_init__(self) -> None:
        check(self, "width", "depth", "heads", "vocabulary")
        _check_share(self, "dropout")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run: an audio and a text encoder are trained so that a recording and its captions come to lie close."""

    data: str = "dcase2023"
    """The data set: a folder below `data/audio/`. `generated-<size>` is made on the way."""
    corpora: tuple[Corpus, ...] = ("clotho", "audiocaps", "wavcaps")
    """Whose recordings are trained on: all three in pre-training, Clotho's in fine-tuning."""
    leaks: Literal["exclude", "include"] = "exclude"
    """Training recordings that are also in the validation or test set: left out, or (the paper's code) kept."""
    train_on: Literal["training", "training_validation", "all"] = added("training")
    """Splits that are trained on. `all` is what the paper's authors submitted (section 4): the training, validation
    and test set, once everything was chosen. Nothing is scored on a split that was trained on."""
    audio: Passt | Cnn14 | MeanMel = field(default_factory=Passt)
    text: Pretrained | Untrained = field(default_factory=Pretrained)
    segment: float = 10.0
    """Seconds of audio that are encoded at once; longer recordings are cut, and the mean is taken."""
    clip_seconds: float = 30.0
    """Seconds of a recording that a training step hears, cut at random."""
    tokens: int = 32
    """Tokens of a caption, the first included; the rest is cut off."""
    projection: int = 1024
    """Length of the vectors that are compared."""
    temperature: float = 0.01
    """Initial divisor of the similarities; it is learnt."""
    learn_temperature: bool = True
    augmentation: float = 0.0
    """Probability that a caption of Clotho is replaced by one of its rewritten forms."""
    frequency_mask: int = 0
    """Mel bands, at most, that a training step hides of each segment (SpecAugment; 48 in the paper's code)."""
    time_mask: int = 0
    """Frames, at most, that it hides (192 in the paper's code)."""
    shift_bands: bool = False
    """Whether the mel bank's lowest and highest frequency are drawn for each batch, as in the paper's code."""
    batch: int = 64
    chunk: int = 0
    """Clips encoded at once: the loss is that of the whole batch, by gradient caching; 0: all of it. Refused with
    `cnn14`, whose norms are over a batch, and with `compile`, whose dropout cannot be drawn again."""
    learning_rate: float = 2e-5
    final_learning_rate: float = 1e-7
    warmup: float = 1.0
    """Epochs of linear warm-up; a half cosine follows, to the last epoch."""
    epochs: int = 15
    steps: int = 0
    """Batches of an epoch; 0: as many as the training captions fill."""
    precision: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    compile: bool = False
    patience: int = 0
    """End after so many epochs without a better validation mAP@10, and keep the best epoch's weights; 0: never. As many
    as `epochs`: keep the best epoch's weights, and never end early."""
    init: Scratch | Parent | Weights = field(default_factory=Scratch)
    """Starting point of the encoders besides their own weights: fine-tuning names its pre-training here. Its last
    epoch (`init.checkpoint` 0) is its best one where it has patience."""
    seed: int = 0

    def __post_init__(self) -> None:
        check(self, "projection", "batch", "epochs")
        check(self, "segment", "clip_seconds", least=SHORTEST)
        check(self, "temperature", "learning_rate", least=0, above=True)
        check(self, "chunk", "steps", "patience", "warmup", "frequency_mask", "time_mask", least=0)
        check(self, "final_learning_rate", "seed", least=0)
        _check_share(self, "augmentation")
        if self.chunk and isinstance(self.audio, Cnn14):
            raise ValueError("chunk is not of the whole batch with cnn14, whose norms are over a batch; set chunk=0")
        if self.chunk and self.compile:
            raise ValueError("chunk embeds twice with the same dropout, which compile draws anew; set one of them")
        if self.tokens < 2:
            raise ValueError(f"tokens {self.tokens} leave no room for a caption")
        if self.patience and "validation" in SPLITS[trained_on(self)]:
            raise ValueError(
                f"patience {self.patience} waits for validation scores, but the validation set is trained on "
                f"(train_on={trained_on(self)}); set patience=0"
            )
        if not self.corpora or len(set(self.corpora)) != len(self.corpora):
            raise ValueError("corpora must be named, each once")
        if isinstance(self.audio, Passt) and round(self.segment * 100) > self.audio.frames + self.audio.stride:
            raise ValueError(f"segment {self.segment} s is longer than audio.frames {self.audio.frames} (10 ms each)")


def trained_on(config: Config) -> TrainOn:
    """Return the widest `train_on` of a run and of the runs that it goes on from, as far as they are of the same data.

    Of what is scored on a split in `SPLITS` of it nothing can be said. What a file of weights (`init=weights`) was
    trained on is not known here.

    Raises:
        UserError: where a parent's overrides fit no config.
    """
    choices = [ancestor.train_on for ancestor in lineage(config) if ancestor.data == config.data]
    return max(choices, key=lambda name: len(SPLITS[name]))


PAPER: dict[str, object] = {
    "leaks": "include",
    "frequency_mask": 48,
    "time_mask": 192,
    "shift_bands": True,
    "precision": "float16",
}
"""Settings of the paper's code that its text does not state."""


@dataclass(frozen=True, kw_only=True)
class View:
    """View of a trained run: which epoch, and on which recordings."""

    epoch: int = 0
    """The epoch whose weights embed, counted from 1; 0 is the last (with patience: the best)."""
    split: Literal["test", "validation"] = "test"
