"""The pictures shipped with the task: four paintings and four photographs; `pictures/LICENSES.md` says whose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

FOLDER = Path(__file__).parents[1] / "pictures"
PAPER = ("great_wave", "starry_night", "the_scream")
"""The paper's three paintings."""
PAINTINGS = (*PAPER, "metzinger")
PHOTOGRAPHS = ("astronaut", "coffee", "mountain")
LARGE = "pigeon"
"""A photograph as a camera took it, 3,082 x 2,048 pixels: for figure 8."""
SIDE = 192
"""Pixels across a calibration image."""


def paintings() -> dict[str, Path]:
    """Return the shipped paintings, by name: the paper's three, and one that is less known."""
    return {name: FOLDER / f"{name}.jpg" for name in PAINTINGS}


def photographs() -> dict[str, Path]:
    """Return the shipped photographs of common size, by name."""
    return {name: FOLDER / f"{name}.jpg" for name in PHOTOGRAPHS}


def large() -> dict[str, Path]:
    """Return the shipped photograph that is large, by name."""
    return {LARGE: FOLDER / f"{LARGE}.jpg"}


def calibration() -> Float[Tensor, "n 3 192 192"]:
    """Return the paper's paintings and the shipped photographs, images in [0, 1]: what mean activations are taken on.

    The shorter side is resized to 192 pixels by area averaging, and the centre is cut out.
    """
    import torch  # here: tables and options name these pictures, and read none

    from retable.tasks.style.files import images

    shipped = [FOLDER / f"{name}.jpg" for name in (*PAPER, *PHOTOGRAPHS)]
    return torch.cat([images.to_tensor(images.square(images.read(path).pixels, SIDE)) for path in shipped])
