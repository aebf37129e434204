"""The three losses of the paper (sections 2.1 and 3.3), with or without the pixels that no radar saw.

Each is a function of the logits and of the events: 0 dry, 1 rain, 2 masked. All compute in float32, under autocast too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from retable.tasks.weather.config import Bce, Config, DiceFocal, SoftIou
from retable.tasks.weather.w4c.preprocess import MASKED, RAIN

SMOOTH = 1e-5
"""MONAI adds this to the numerator and the denominator of the Dice coefficient."""

Maps = Float[Tensor, "batch lead row column"]
Loss = Callable[[Maps, UInt8[Tensor, "batch lead row column"]], Float[Tensor, ""]]
Measure = Callable[[Maps, Maps, Maps], Float[Tensor, ""]]
"""A loss of logits, targets (0 or 1) and which pixels count (0 or 1); targets are 0 where no radar saw."""


def build_loss(config: Config, positive_weight: float) -> Loss:
    """Return the config's loss, a scalar function of logits (B, L, S, S) and events; masked pixels get no gradient.

    `positive_weight` is what rainy pixels weigh in `Bce` and `DiceFocal`: the config's number, or the one that the
    training set gives.
    """
    measure: Measure
    unseen = 0.0  # the reference zeroes what its losses take: logits, but for soft IoU
    match config.loss:
        case Bce():
            measure = partial(cross_entropy, positive_weight=positive_weight)
        case SoftIou():
            measure, unseen = soft_iou, -math.inf  # which takes probabilities
        case DiceFocal(weigh=weigh):
            measure = partial(dice_focal, positive_weight=positive_weight, weigh=weigh)
    return partial(masked, measure=measure, mask=config.mask, unseen=unseen)


def masked(
    logits: Maps,
    events: UInt8[Tensor, "batch lead row column"],
    measure: Measure,
    mask: Literal["exclude", "zero"],
    unseen: float,
) -> Float[Tensor, ""]:
    """Apply a measure to the pixels that the radar saw, or (`zero`, the reference) to all, unseen ones dry.

    Unseen pixels have the logit `unseen`. With 0, as the reference still takes its means over all pixels, each adds
    ln 2 to the cross-entropy and shrinks the gradients of the others. With minus infinity, a probability of 0, they add
    nothing to an intersection or a union. A batch without any seen pixel costs 0 with `exclude`, where a soft IoU
    costs 1 with `zero`.
    """
    seen = events != MASKED
    logits = logits.float().where(seen, unseen)
    counted = seen.float() if mask == "exclude" else logits.new_ones(()).expand_as(logits)
    return measure(logits, (events == RAIN).float(), counted)


def mean(values: Tensor, counted: Tensor) -> Float[Tensor, ""]:
    """Average the values that count in each sample (0 where none does), then over the samples.

    Every sample weighs the same, so the mean over workers of equal shares is that of the joined batch.
    """
    values, counted = values.flatten(1), counted.flatten(1)
    return ((values * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()


def cross_entropy(logits: Maps, targets: Maps, counted: Maps, positive_weight: float) -> Float[Tensor, ""]:
    """Binary cross-entropy; rainy pixels weigh `positive_weight`, dry ones 1 (section 3.3)."""
    weight = logits.new_tensor(positive_weight)
    costs = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none", pos_weight=weight)
    return mean(costs, counted)


def overlap(
    logits: Maps, targets: Maps, counted: Maps
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return each sample's soft intersection, sum of probabilities and targets, and whether any pixel counts."""
    probability = logits.sigmoid() * counted
    intersection = (probability * targets).flatten(1).sum(1)
    return intersection, (probability + targets).flatten(1).sum(1), counted.flatten(1).amax(1)


def soft_iou(logits: Maps, targets: Maps, counted: Maps) -> Float[Tensor, ""]:
    """One minus the soft intersection over union of each sample, averaged (section 2.1).

    There is no smoothing, as in the reference: a sample without rain costs 1, whatever the forecast, and teaches
    nothing. Where even the union is 0, the reference takes an IoU of 0 too, but its gradient is not a number.
    """
    intersection, total, samples = overlap(logits, targets, counted)
    union = (total - intersection).clamp(min=torch.finfo(total.dtype).tiny)
    return ((1 - intersection / union) * samples).mean()


def dice_focal(
    logits: Maps, targets: Maps, counted: Maps, positive_weight: float, weigh: Literal["positives", "whole"]
) -> Float[Tensor, ""]:
    """Sum of the Dice loss of each sample and the focal loss with gamma 2 (section 2.1; MONAI's `DiceFocalLoss`).

    The reference gives MONAI the positive weight as a class weight, which used to multiply the whole focal term
    (`whole`) and is ignored from MONAI 1.4 on. `positives` weighs rainy pixels, as its name says.
    """
    intersection, total, samples = overlap(logits, targets, counted)
    dice = 1 - (2 * intersection + SMOOTH) / (total + SMOOTH)
    miss = (logits * (1 - 2 * targets)).sigmoid()  # the probability given to what did not happen
    focal = miss.square() * functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    weight = positive_weight if weigh == "whole" else 1 + (positive_weight - 1) * targets
    return (dice * samples).mean() + mean(weight * focal, counted)
