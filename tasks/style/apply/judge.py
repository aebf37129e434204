"""What can be measured of a picture or a network without taste: lattices, burnt areas, errors, flicker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, UInt8

from retable.tasks.style import losses
from retable.tasks.style.apply.tiling import stylise
from retable.tasks.style.config import Objective
from retable.tasks.style.files import images
from retable.tasks.style.networks.backbones import BackboneNetwork
from retable.tasks.style.networks.transformer import TransformerNetwork

Pixels = UInt8[np.ndarray, "height width 3"]

LUMA = np.array([0.299, 0.587, 0.114])
AROUND = 8
"""Frequencies on each side of a lattice's that it is compared with."""
JUDGEMENT = Objective(convention="relative", content_weight=1.0, style_weight=0.2)
"""Content and style errors relative to their targets; the style's is a mean over five layers."""
STEP = 3
"""Pixels by which the crop moves between two looks."""
NOISE = 2.0
"""Standard deviation of the noise of each look, in levels of 255: a camera's."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A network's measures: means over photographs, of the lattice the worst."""

    lattice: float
    """Power at periods of 2 and 4 pixels over that of its surroundings; see `lattice`."""
    burnt: float
    """Share of pixels whose three colours are all black or all white, beyond the photograph's own."""
    style_error: float
    content_error: float
    flicker: float
    """Mean change of what stays in the picture while it moves, in levels of 255, over that of the photograph."""


def lattice(pixels: Pixels) -> float:
    """Return how far a picture's power at periods of 2 and 4 pixels stands out of its surroundings: at most by.

    Poolings of a loss network and strides of a transformation network leave such patterns. Of each of the 15
    frequencies in multiples of a quarter (both directions, without the mean), the power of the luma's spectrum under a
    Hann window is divided by the median over the frequencies around it; the largest quotient counts. Noise has about
    4 to 8, photographs up to 20, a visible lattice hundreds.

    Raises:
        ValueError: for a picture of fewer than 64 pixels each way.
    """
    height, width = (length // 8 * 8 for length in pixels.shape[:2])
    if min(height, width) < 64:
        raise ValueError(f"{pixels.shape[1]} x {pixels.shape[0]} pixels are too few; a lattice shows from 64 x 64")
    luma = pixels[:height, :width] @ LUMA
    window = np.hanning(height)[:, None] * np.hanning(width)
    power = np.abs(np.fft.fft2((luma - luma.mean()) * window)) ** 2
    found = 0.0
    for row, column in np.ndindex(4, 4):
        if row or column:
            found = max(found, _standing_out(power, row * height // 4, column * width // 4))
    return found


def _standing_out(power: Float[np.ndarray, "row column"], row: int, column: int) -> float:
    """Return a frequency's power over the median of those around it; its own neighbours share its window's width."""
    span = np.arange(-AROUND, AROUND + 1)
    around = power[np.ix_((row + span) % power.shape[0], (column + span) % power.shape[1])].copy()
    peak = around[AROUND, AROUND]
    around[AROUND - 2 : AROUND + 3, AROUND - 2 : AROUND + 3] = np.nan
    return float(peak / max(np.nanmedian(around), 1e-9))


def burnt(pixels: Pixels) -> float:
    """Return the share of pixels that are black or white in all three colours, within two levels."""
    low, high = pixels.max(2) <= 2, pixels.min(2) >= 253
    return float((low | high).mean())


@torch.no_grad()
def errors(
    judge: BackboneNetwork,
    made: Pixels,
    photograph: Pixels,
    paintings: Sequence[Pixels],
    blend: Sequence[float] = (),
) -> tuple[float, float]:
    """Return style and content error of a picture as a backbone sees it: 0 is no difference.

    `blend` weighs several paintings.
    """
    side = max(made.shape[:2])
    works = [images.to_tensor(images.fit(work, side)) for work in paintings]
    before = images.to_tensor(images.fit(photograph, side))
    aimed = losses.targets(judge, JUDGEMENT, before, works, blend)
    seen = losses.loss(judge, JUDGEMENT, aimed, images.to_tensor(made))
    return float(seen.style), float(seen.content)


def flicker(network: TransformerNetwork, photograph: Pixels, looks: int = 3) -> float:
    """Return the mean change, in levels of 255, of what stays in view as a crop moves over a photograph, per level.

    Each look is `STEP` pixels further, with noise of its own. Two results are compared where both show the same pixels,
    and their mean absolute difference is divided by that of the noisy photographs: 1 for a network that changes
    nothing.
    """
    height, width = (length - STEP * (looks - 1) for length in photograph.shape[:2])
    rng = np.random.default_rng(0)
    before, after = [], []
    for look in range(looks):
        place = STEP * look
        crop = photograph[place : place + height, place : place + width].astype(np.float32)
        noisy = np.clip(crop + NOISE * rng.standard_normal(crop.shape, np.float32), 0, 255)
        image = torch.from_numpy(noisy / 255).permute(2, 0, 1)[None]
        before.append(noisy)
        after.append(stylise(network, image)[0].permute(1, 2, 0).numpy() * 255)
    return _change(after) / _change(before)


def _change(looks: Sequence[Float[np.ndarray, "height width 3"]]) -> float:
    """Return the mean absolute difference of following looks over what both show, away from the border."""
    margin = 16
    changes = []
    for first, second in pairwise(looks):
        same = first[STEP:, STEP:], second[:-STEP, :-STEP]
        inner = [one[margin:-margin, margin:-margin] for one in same]
        changes.append(np.abs(inner[0] - inner[1]).mean())
    return float(np.mean(changes))


def judge_network(
    network: TransformerNetwork,
    photographs: Sequence[Pixels],
    paintings: Sequence[Pixels],
    judge: BackboneNetwork,
) -> Verdict:
    """Stylise photographs and measure: the lattice of the worst, means of all else.

    Raises:
        UserError: where a photograph is too small for the judge's deepest layer.
    """
    rows = []
    for photograph in photographs:
        made = images.to_pixels(stylise(network, images.to_tensor(photograph)))
        style, content = errors(judge, made, photograph, paintings)
        extra = max(0.0, burnt(made) - burnt(photograph))
        rows.append((lattice(made), extra, style, content, flicker(network, photograph)))
    found = np.array(rows)
    names = ("burnt", "style_error", "content_error", "flicker")
    return Verdict(lattice=float(found[:, 0].max()), **dict(zip(names, found[:, 1:].mean(0).tolist(), strict=True)))
