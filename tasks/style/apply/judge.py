"""Measures of a picture or a network: lattices, burnt areas, tones, slivers, errors, flicker."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import cv2
import numpy as np
import torch
from jaxtyping import Float

from retable.tasks.style import losses
from retable.tasks.style.config import Objective
from retable.tasks.style.files import images
from retable.tasks.style.files.images import Pixels
from retable.tasks.style.networks.backbones import BackboneNetwork
from retable.tasks.style.networks.network import Features, TransformerNetwork
from retable.tasks.style.networks.tiling import stylise

LUMA = np.array([0.299, 0.587, 0.114])
AROUND = 8
"""Frequencies on each side of a lattice's that it is compared with."""
JUDGEMENT = Objective(convention="relative", content_weight=1.0, style_weight=0.2)
"""Content and style errors relative to their targets; the style's is a mean over five layers."""
LEAST = 64
"""Pixels each way of the smallest picture that a lattice shows in."""
STEP = 3
"""Pixels by which the crop moves between two looks."""
NOISE = 2.0
"""Standard deviation of the noise of each look, in levels of 255: a camera's."""
TONES = 64
"""Tones are compared under a blur whose standard deviation is the longer side divided by this."""
CONCENTRATED = 20.0
"""Standard deviations from its channel's mean beyond which a feature of the last residual layer is a spike."""
OUTLYING = 6.0
"""Mahalanobis distance from a picture's median chroma beyond which a color is none of its own."""
REACH = 8
"""Pixels around a spike that the layers after it color."""
SLIVER = 20
"""Pixels of the smallest blob that is counted."""


def lattice(pixels: Pixels) -> float:
    """Return how far a picture's power at periods of 2 and 4 pixels stands out of its surroundings: at most by.

    Poolings of a loss network and strides of a transformation network leave such patterns. Of each of the 15
    frequencies in multiples of a quarter (both directions, without the mean), the power of the luma's spectrum under a
    Hann window is divided by the median over the frequencies around it; the largest quotient counts. Noise has about
    4 to 8, photographs up to 20, a visible lattice hundreds.

    Raises:
        ValueError: for a picture of fewer than `LEAST` pixels each way.
    """
    height, width = (length // 8 * 8 for length in pixels.shape[:2])
    if min(height, width) < LEAST:
        raise ValueError(f"{pixels.shape[1]} x {pixels.shape[0]} pixels are too few; {LEAST} each way are needed")
    luma = pixels[:height, :width] @ LUMA
    window = np.hanning(height)[:, None] * np.hanning(width)
    power = np.abs(np.fft.fft2((luma - luma.mean()) * window)) ** 2
    largest = 0.0
    for row, column in np.ndindex(4, 4):
        if row or column:
            largest = max(largest, _standing_out(power, row * height // 4, column * width // 4))
    return largest


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


def tone(made: Pixels, photograph: Pixels) -> float:
    """Return 1 minus the correlation of the blurred luma of a result and its photograph; of a flat one 1.

    0 means that light and dark are where the photograph has them, whatever their range.
    """
    blur = max(made.shape[:2]) / TONES
    first, second = (cv2.GaussianBlur(pixels @ LUMA, (0, 0), blur) for pixels in (made, photograph))
    if min(first.std(), second.std()) < 0.01:
        return 1.0
    return 1 - float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


@torch.no_grad()
def sliver(network: TransformerNetwork, photograph: Pixels) -> int:
    """Return the pixels of the largest blob that a spike in the network's features colors unlike all of the result.

    A network whose layers are normalized by each image's own statistics may learn to govern them by a few pixels that
    hold most of a channel's energy (Karras et al. 2020, section 2). Published networks have such spikes too, but draw
    nothing there. So a blob counts where both are seen: a feature of the last residual layer that is `CONCENTRATED`,
    and colors around it that are `OUTLYING`.
    """
    spikes: list[Float[np.ndarray, "row column"]] = []
    last = max(index for index, layer in enumerate(network.layers) if layer.residual)

    def keep(index: int, features: Features) -> None:
        if index == last:
            variance, mean = torch.var_mean(features[0].float(), (1, 2), correction=0, keepdim=True)
            spikes.append(((features[0] - mean).abs() * torch.rsqrt(variance + 1e-9)).amax(0).numpy())

    height, width = photograph.shape[:2]
    made = network.walk(images.to_tensor(photograph), keep)[0].clamp(0, 1).permute(1, 2, 0).numpy()
    around = np.kron(spikes[0] > CONCENTRATED, np.ones((4, 4), np.uint8))[:height, :width].astype(np.uint8)
    reached = cv2.dilate(around, np.ones((2 * REACH + 1, 2 * REACH + 1), np.uint8))
    blobs = (_outlying(made) > OUTLYING) & (reached > 0)
    areas = cv2.connectedComponentsWithStats(blobs.astype(np.uint8))[2][1:, cv2.CC_STAT_AREA]
    return int(areas.max(initial=0))


def _outlying(made: Float[np.ndarray, "height width 3"]) -> Float[np.ndarray, "height width"]:
    """Return the Mahalanobis distance of each pixel's chroma (CIE a* and b*, blurred by a pixel) from the median."""
    chroma = cv2.GaussianBlur(cv2.cvtColor(made.astype(np.float32), cv2.COLOR_RGB2LAB), (0, 0), 1)[..., 1:]
    away = (chroma - np.median(chroma, (0, 1))).astype(np.float64)
    spread = np.cov(away.reshape(-1, 2).T) + np.eye(2)  # a unit of a* or b*: what one does not see is no outlier
    squares = np.einsum("yxi,ij,yxj->yx", away, np.linalg.inv(spread), away)
    distance: Float[np.ndarray, "height width"] = np.sqrt(squares)
    return distance


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
    rng = np.random.default_rng(0)  # the only stream here: each photograph gets the same noise
    before, after = [], []
    for look in range(looks):
        offset = STEP * look
        crop = photograph[offset : offset + height, offset : offset + width].astype(np.float32)
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
) -> dict[str, float]:
    """Stylise photographs and measure.

    Returns:
        `lattice`, of the worst photograph, and means over the photographs: `burnt` (beyond the photograph's own),
        `tone`, `spike` (1 where the result shows a sliver), `style_error`, `content_error` and `flicker`. See the
        functions of these names, `sliver` and `errors`.

    Raises:
        UserError: where a photograph is too small for the judge's deepest layer.
    """
    rows = []
    for photograph in photographs:
        made = images.to_pixels(stylise(network, images.to_tensor(photograph)))
        style, content = errors(judge, made, photograph, paintings)
        extra = max(0.0, burnt(made) - burnt(photograph))
        shows = float(sliver(network, photograph) >= SLIVER)
        tones = tone(made, photograph)
        rows.append((lattice(made), extra, tones, shows, style, content, flicker(network, photograph)))
    table = np.array(rows)
    names = ("burnt", "tone", "spike", "style_error", "content_error", "flicker")
    return {"lattice": float(table[:, 0].max()), **dict(zip(names, table[:, 1:].mean(0).tolist(), strict=True))}
