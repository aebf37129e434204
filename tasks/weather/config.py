"""Config of a weather run: data, model, loss, optimiser. Defaults: the paper's values, its faults corrected.

Source: Belousov, Polezhaev, Pulfer 2022, *Solving the Weather4cast Challenge via Visual Transformers for 3D Images*,
and the code it builds on. Where paper or code are wrong, the fault is a value of a field; `PAPER` chooses all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from retable.platform import config as configs
from retable.platform.config import Parent, Scratch, Weights, added, check

CORE_REGIONS = ("boxi_0015", "boxi_0034", "boxi_0076", "roxi_0004", "roxi_0005", "roxi_0006", "roxi_0007")
TRANSFER_REGIONS = ("roxi_0008", "roxi_0009", "roxi_0010")
"""Regions that the transfer challenge adds, whose rain nobody was given."""
STEPS = 200
"""Probabilities are kept in steps of 1/200, rounded down; thresholds are whole steps."""

PRESETS = ("24", "24-quick", "24-small", "36", "60", "252")
"""Endings of a data set's name after `generated-`; each begins with the size."""
DATA_LENGTHS = {name: (4, 32) for name in ("w4c22", *(f"generated-{preset}" for preset in PRESETS))}
"""Inputs and lead times that data sets have, where this is known before they are there."""


@dataclass(frozen=True, kw_only=True)
class UNet:
    """The competition's baseline, a 3D U-Net (section 2.2); each improvement of the paper is a field."""

    filters: int = 32
    """Channels of the first level; each level below has twice as many."""
    levels: int = 5
    normalization: Literal["batch", "instance"] = "batch"
    activation: Literal["relu", "rrelu"] = "relu"
    attention: bool = False
    """Attention grid on the skip connections (Oktay et al. 2018)."""
    upsampling: Literal["transposed", "resize"] = "transposed"
    """Transposed convolution, or trilinear upsampling followed by a convolution (Odena et al. 2016)."""
    dropout: float = 0.4

    def __post_init__(self) -> None:
        check(self, "filters", "levels")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout {self.dropout} is outside [0, 1)")


@dataclass(frozen=True, kw_only=True)
class Swin:
    """Swin-UNETR (section 2.4) from MONAI."""

    variant: Literal["repeat_interleave", "channel_convolution", "upsample"] = "repeat_interleave"
    """Mapping of the input times to the forecast's lead times."""
    feature_size: int = 24
    window: int = 7
    """Tokens across a window of attention, in time, height and width: attention's cost grows with its cube."""
    resize: Literal["pad", "nearest", "trilinear"] = "pad"
    """Fit of height and width to a multiple of 32 and back. `nearest`, the reference's, shifts rows by a pixel."""
    merging: Literal["mergingv2", "merging", "merging_1_5"] = "mergingv2"
    """Patch merging; `merging`, the reference's, leaves slices out and takes others twice. `merging_1_5`: what MONAI
    calls `merging` since 1.5, which takes all, in another order than `mergingv2`."""
    checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""

    def __post_init__(self) -> None:
        check(self, "window")
        if self.feature_size < 12 or self.feature_size % 12:
            raise ValueError(f"feature_size {self.feature_size} is not a multiple of 12")


@dataclass(frozen=True, kw_only=True)
class Vivit:
    """A video vision transformer with a factorised encoder (section 2.3)."""

    dim: int = 400
    """Width of the tokens; a square number, as the last token becomes a picture."""
    depth: int = 8
    heads: int = 8
    patch: int = 16
    enlarge: Literal["linear", "nearest"] = "linear"
    """Interpolation of that picture to the output's size: the paper writes linear, its code says nearest."""

    def __post_init__(self) -> None:
        check(self, "dim", "depth", "heads", "patch")
        if self.dim % self.heads:
            raise ValueError(f"heads {self.heads} does not divide dim {self.dim}; choose another")
        if round(self.dim**0.5) ** 2 != self.dim:
            raise ValueError(f"dim {self.dim} is not a square number")


@dataclass(frozen=True, kw_only=True)
class Context:
    """A stronger arm of ours: a 2D U-Net over the whole context whose features are cropped, then refined at 2 km."""

    filters: int = 32
    levels: int = 5

    def __post_init__(self) -> None:
        check(self, "filters", "levels")


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Rain now, read off the last satellite image by a small network; a view says whether it moves (`motion`)."""

    filters: int = 16

    def __post_init__(self) -> None:
        check(self, "filters")


@dataclass(frozen=True, kw_only=True)
class Climatology:
    """Frequency of rain at each pixel of each region in the training set."""


@dataclass(frozen=True, kw_only=True)
class AllDry:
    """It never rains."""


@dataclass(frozen=True, kw_only=True)
class AllRain:
    """It always rains: what any forecast must beat where the measure is IoU."""


@dataclass(frozen=True, kw_only=True)
class Bce:
    """Binary cross-entropy with weighted positives (section 3.3)."""

    positive_weight: float | Literal["training_set"] = 2.577389
    """The reference's number, or dry over rainy pixels of the training set."""

    def __post_init__(self) -> None:
        if self.positive_weight != "training_set":
            check(self, "positive_weight", least=0)


@dataclass(frozen=True, kw_only=True)
class SoftIou:
    """One minus the soft intersection over union of each sample (section 2.1)."""


@dataclass(frozen=True, kw_only=True)
class DiceFocal:
    """MONAI's Dice + focal loss (section 2.1)."""

    positive_weight: float = 2.577389
    weigh: Literal["positives", "whole"] = "positives"
    """Part of the loss that the weight multiplies: rainy pixels, or (the reference, by an older MONAI) the whole focal
    term."""

    def __post_init__(self) -> None:
        check(self, "positive_weight", least=0)


@dataclass(frozen=True, kw_only=True)
class Adamw:
    """Adam with decoupled weight decay."""

    learning_rate: float = 1e-4
    weight_decay: float = 2e-2
    fused: bool = added(False)
    """One pass over all weights for an update: faster, with other last bits than PyTorch's default."""

    def __post_init__(self) -> None:
        check(self, "learning_rate", least=0, above=True)
        check(self, "weight_decay", least=0)


@dataclass(frozen=True, kw_only=True)
class Adabelief:
    """adabelief-pytorch. The defaults are the library's: the reference ignores its own configuration."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    epsilon: float = 1e-16

    def __post_init__(self) -> None:
        check(self, "learning_rate", least=0, above=True)
        check(self, "weight_decay", "epsilon", least=0)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run: a model that reads an hour of satellite images and forecasts the probability of rain."""

    data: str = "w4c22"
    """The data set: a folder below `data/weather/`. `generated-<size>` is made on the way."""
    regions: tuple[str, ...] = CORE_REGIONS
    left_out: tuple[str, ...] = added(())
    """Those of `regions` that are not trained on, nor looked at in training: how a forecaster does where it is new."""
    years: tuple[int, ...] = (2019, 2020)
    inputs: int = 4
    """Satellite images that a forecast starts from, one each 15 minutes."""
    forecast: int = 32
    """Lead times forecast, one each 15 minutes."""
    rain_threshold: float = 0.2
    """Rain rate from which on it rains, mm/h; 0 (the competition's first stage): any rain."""
    train_on: Literal["training", "training_and_validation"] = "training"
    holdout: int = added(60)
    """Maximum number of training sequences of a region and year that replace test, and as many that replace heldout,
    if the organisers keep the targets of these splits. They are held back from training with the frames around them.
    0: none, and only validation can be scored."""
    model: UNet | Swin | Vivit | Context | Retrieval | Climatology | AllDry | AllRain = field(default_factory=UNet)
    crop: Literal["centre", "none"] = "centre"
    """The images show six times the forecast's width. `centre` cuts out its place and enlarges it; `none`, the
    reference's, lays the whole image over the forecast."""
    initial_rain: float = added(0.5)
    """Probability of rain that an untrained `unet`, `swin` or `vivit` forecasts, about; the reference's is a half. It
    rains far more seldom, and a short training spends its steps on finding that out."""
    temporal_shift: bool = False
    """Logits are sums over lead time of what the model says (section 2.1)."""
    loss: Bce | SoftIou | DiceFocal = field(default_factory=Bce)
    mask: Literal["exclude", "zero"] = "exclude"
    """Treatment of pixels without radar: left out of the loss, or (the reference) counted as dry, their logit 0, or
    in `soft_iou`, which the reference computes of probabilities, their probability 0."""
    optimizer: Adamw | Adabelief = field(default_factory=Adamw)
    gradient_clamp: float = 2.0
    """Gradients are cut off at this absolute value; 0: never."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    channels_last: bool = False
    compile: bool = False
    """Compile the model with torch.compile; numbers change in their last digits."""
    batch: int = 40
    epochs: int = 90
    steps: int = 0
    """Batches in an epoch; 0: as many as the windows of the training set fill."""
    window_run: int = 16
    """Consecutive windows that are read in one slice; shorter runs mix the batches better and read more."""
    patience: int = 0
    """End after so many epochs without a better validation IoU, and keep the best epoch's weights; 0: never. The
    reference watches the validation loss and keeps the best three."""
    init: Scratch | Parent | Weights = field(default_factory=Scratch)
    seed: int = 0

    def __post_init__(self) -> None:
        check(self, "batch", "epochs", "inputs", "forecast", "window_run")
        if len(set(self.regions)) != len(self.regions) or not self.regions:
            raise ValueError("regions must be named, each once")
        if unknown := [region for region in self.left_out if region not in self.regions]:
            raise ValueError(f"left_out {unknown[0]!r} is none of regions; name one of {', '.join(self.regions)}")
        if set(self.left_out) == set(self.regions):
            raise ValueError("left_out names all regions; leave one to train on")
        check(self, "steps", "patience", "gradient_clamp", "rain_threshold", "holdout", "seed", least=0)
        if self.patience and trained_on_validation(self):
            raise ValueError("patience waits for scores on a validation set that is trained on; set patience=0")
        self._check_model()

    @property
    def trained_regions(self) -> tuple[str, ...]:
        """The regions that are trained on."""
        return tuple(region for region in self.regions if region not in self.left_out)

    def _check_model(self) -> None:
        """Refuse what a model cannot do, before anything is trained."""
        model = self.model
        if not 0 < self.initial_rain < 1:
            raise ValueError(f"initial_rain {self.initial_rain} is outside (0, 1)")
        if self.initial_rain != 0.5 and not isinstance(model, UNet | Swin | Vivit):
            raise ValueError("initial_rain: this model starts from the climate by itself; leave it out")
        if isinstance(model, Retrieval | Climatology | AllDry | AllRain):
            if self.crop == "none":
                raise ValueError("crop none: the baselines forecast the right place only; leave it out")
            if self.temporal_shift:
                raise ValueError("temporal_shift sums what a network says of each step; with a baseline leave it out")
        if isinstance(model, Swin) and model.variant != "channel_convolution" and self.forecast % self.inputs:
            raise ValueError(
                f"forecast {self.forecast} is not a multiple of inputs {self.inputs}, as model.variant {model.variant} "
                "needs; change one of them, or set model.variant=channel_convolution"
            )
        if self.data in DATA_LENGTHS:
            for name, most in zip(("inputs", "forecast"), DATA_LENGTHS[self.data], strict=True):
                if getattr(self, name) > most:
                    raise ValueError(f"{name} {getattr(self, name)}: {self.data} is laid out for at most {most}")


def lineage(config: Config) -> list[Config]:
    """Return a config and those of the runs that its run starts from, as far as they are of the same data."""
    return [ancestor for ancestor in configs.lineage(config) if ancestor.data == config.data]


def trained_on_validation(config: Config) -> bool:
    """Return whether a run, or one that it starts from, is trained on the validation set."""
    return any(ancestor.train_on != "training" for ancestor in lineage(config))


PAPER = {"crop": "none", "mask": "zero"}
"""The reference's faults that every model has."""
PAPER_SWIN = {**PAPER, "model": "swin", "model.resize": "nearest", "model.merging": "merging"}
PAPER_VIVIT = {**PAPER, "model": "vivit", "model.enlarge": "nearest"}


@dataclass(frozen=True, kw_only=True)
class View:
    """View of a trained run: which epoch, on which split, and the threshold of rain."""

    epoch: int = 0
    """The epoch whose weights forecast, counted from 1; 0 is the last (with patience: the best)."""
    split: Literal["test", "heldout", "validation"] = "test"
    scored: tuple[str, ...] = added(())
    """Of the run's regions those that are scored; none named: all."""
    threshold: float | Literal["tuned", "tuned_per_region", "tuned_per_region_and_lead"] = 0.5
    """Probability from which on rain is forecast, in steps of 0.005; or the best on the validation set: for all, for
    each region and year, or for each lead time of these."""
    motion: Literal["none", "optical_flow", "pysteps"] = added("none")
    """Of a retrieval: its rain stays where it is, or moves with the clouds by our optical flow or that of pysteps, the
    library of radar meteorologists (`pip install 'retable[pysteps]'`)."""
    calibration: Literal["none", "difference_mask", "isotonic"] = "none"
    """`difference_mask` lowers probabilities where training had more rain than validation (section 2.1). `isotonic`
    (ours) gives each step of probability the share of validation pixels on which it rained: Brier score and
    reliability change, the order of forecasts does not; a threshold is of the probabilities before it."""

    def __post_init__(self) -> None:
        check(self, "epoch", least=0)
        if isinstance(self.threshold, float):
            if not 0 < self.threshold < 1:
                raise ValueError(f"threshold {self.threshold} is outside (0, 1)")
            if abs(self.threshold * STEPS - round(self.threshold * STEPS)) > 1e-9:
                raise ValueError(f"threshold {self.threshold} is not a multiple of 0.005")
