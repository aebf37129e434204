"""Regions of a picture that are stylised each in its own way, by a mask.

A mask is a picture, stretched over the photograph. With one style its brightness is the share of the stylised picture:
white is stylised, black stays. With several, `NAME@COLOUR`, each style has the mask's pixels of its colour (Gatys et
al. 2017, *Controlling Perceptual Factors in Neural Style Transfer*, section 4, by results in place of features);
pixels of no style's colour stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.tasks.style.files import images
from retable.tasks.style.files.images import Pixels

Share = Float[np.ndarray, "height width"]

NEAR = 64
"""Levels by which a mask's colour may miss a style's in red, green and blue: JPEG blurs edges of colours."""


def split(style: str) -> tuple[str, str]:
    """Return the style that `NAME@COLOUR` names, and its colour as six digits; empty where there is none."""
    if Path(style).is_file():
        return style, ""
    match = re.fullmatch(r"(.+)@#?([0-9a-fA-F]{6})", style)
    return (match[1], match[2].lower()) if match else (style, "")


@dataclass(frozen=True, eq=False)
class Mask:
    """Which share of each pixel each style has."""

    pixels: Pixels
    colours: Sequence[str]
    """Of each style; one that is empty: the mask's brightness counts."""
    alpha: Array | None = None
    """Its transparency, 0 to 255: what is not there is of no style."""

    def shares(self, height: int, width: int) -> list[Share]:
        """Return what each style has of each pixel of a picture of this size, in [0, 1]; what is left, it keeps.

        The last answer is kept for the next picture: a caller must not change it.
        """
        return _shares(self, height, width)

    def stretched(self, share: Share, height: int, width: int) -> Share:
        """Return a share of each of the mask's pixels, less its transparency, at another size."""
        if self.alpha is not None:
            share = share * (self.alpha.astype(np.float32) / 255)
        shrinks = height <= share.shape[0] and width <= share.shape[1]
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        return np.clip(np.asarray(cv2.resize(share, (width, height), interpolation=how)), 0, 1)


@lru_cache(maxsize=1)  # a batch's pictures and a video's frames have one size
def _shares(mask: Mask, height: int, width: int) -> list[Share]:
    if mask.colours == [""]:
        return [mask.stretched(mask.pixels.astype(np.float32) @ images.LUMA / 255, height, width)]
    wanted = np.array([[int(one[at : at + 2], 16) for at in (0, 2, 4)] for one in mask.colours], np.int16)
    pixels = mask.pixels.astype(np.int16)  # a mask may be as large as a photograph: no wider, and colour by colour
    distances = np.stack([np.abs(pixels - colour).max(-1) for colour in wanted])
    nearest = distances.argmin(0)
    mine = ((nearest == n) & (distance <= NEAR) for n, distance in enumerate(distances))
    return [mask.stretched(one.astype(np.float32), height, width) for one in mine]


def open_mask(path: Path | None, colours: Sequence[str]) -> Mask | None:
    """Read the mask of styles with these colours; none where all of every picture is stylised.

    Raises:
        UserError: where it cannot be read, colours have no mask, or several styles have no or the same colour.
    """
    if path is None:
        if any(colours):
            raise UserError("--style NAME@COLOUR needs --mask: a picture with these colours")
        return None
    if len(colours) > 1 and ("" in colours or len(set(colours)) < len(colours)):
        raise UserError(
            "--mask with several styles: give each its own colour, --style NAME@ff0000 --style OTHER@0000ff"
        )
    mask = images.read(path)
    return Mask(mask.pixels, list(colours), mask.alpha)


def compose(photograph: Pixels, made: Sequence[Pixels], shares: Sequence[Share]) -> Pixels:
    """Return the mixture of a photograph and what styles made of it, rounded to the nearest value."""
    mixed: Any = photograph * (1 - np.stack(shares).sum(0, dtype=np.float32))[..., None]
    for pixels, share in zip(made, shares, strict=True):
        mixed += pixels * share[..., None]
    rounded: Pixels = np.rint(mixed).clip(0, 255).astype(np.uint8)
    return rounded
