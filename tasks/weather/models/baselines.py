"""Forecasts that any network should beat: no rain, how often it rained before, and rain read off the last image.

The paper's table has none of them. Radar is not given at forecast time, so persistence needs a retrieval of rain from
the satellite, as in the winning entry of 2022 (FIT-CTU); moving it with the clouds is the Lagrangian persistence of
Germann and Zawadzki (2002). Only the retrieval learns by gradients.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.tasks.weather.config import Retrieval
from retable.tasks.weather.w4c.preprocess import CHANNELS, MASKED, MEAN, RAIN, STD

DRY_LOGIT = -20.0
"""Two rains in a billion."""
INFRARED = CHANNELS.index("IR_108")
"""The window channel shows clouds by day and night, and the atmosphere absorbs little of it."""
COLDEST, WARMEST = 200.0, 310.0
"""Brightness temperatures, K, that the eight bits of a picture for optical flow range over."""
ENLARGEMENT = 6
"""Satellite pixels are 12 km wide, the radar's 2 km; the forecast is the central sixth of the images."""


class Always(nn.Module):
    """It never rains, or it always does; no weights."""

    def __init__(self, forecast: int, size: int, logit: float) -> None:
        super().__init__()
        self.shape, self.logit = (forecast, size, size), logit

    def forward(
        self, images: Float[Tensor, "batch channel inputs row column"], region: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch lead row column"]:
        """Return the same logit everywhere."""
        return images.new_full((len(images), *self.shape), self.logit, dtype=torch.float32)


class Climatology(nn.Module):
    """Frequency of rain at each pixel of each region in the samples of `observe`, at any lead time.

    The counts are buffers `rainy` and `seen` (region, S, S), float64, whole numbers: those of several workers add up.
    """

    rainy: Tensor
    seen: Tensor

    def __init__(self, regions: int, forecast: int, size: int) -> None:
        super().__init__()
        self.forecast = forecast
        for name in ("rainy", "seen"):
            self.register_buffer(name, torch.zeros(regions, size, size, dtype=torch.float64))

    @torch.no_grad()
    def observe(self, events: UInt8[Tensor, "batch lead row column"], region: Int[Tensor, " batch"]) -> None:
        """Count the events of a batch; masked pixels are not counted."""
        self.rainy.index_add_(0, region, (events == RAIN).sum(1, dtype=torch.float64))
        self.seen.index_add_(0, region, (events != MASKED).sum(1, dtype=torch.float64))

    def frequency(self) -> Float[Tensor, "region row column"]:
        """Return the share of rain, strictly between 0 and 1.

        Each pixel is taken to have been seen once more, with the region's mean as the outcome; the region itself once
        more, half rainy (Jeffreys). So pixels never seen have the region's mean, and regions never seen that of all.
        """
        rainy, seen = self.rainy.sum((1, 2), keepdim=True), self.seen.sum((1, 2), keepdim=True)
        every = (rainy.sum() + 0.5) / (seen.sum() + 1)
        mean = torch.where(seen > 0, (rainy + 0.5) / (seen + 1), every)
        return (self.rainy + mean) / (self.seen + 1)

    def forward(
        self, images: Float[Tensor, "batch channel inputs row column"], region: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch lead row column"]:
        """Return the logit of each region's frequencies, for each lead time."""
        logits = torch.logit(self.frequency()).float()[region]
        return logits[:, None].expand(-1, self.forecast, -1, -1)


def optical_flow(images: Array) -> Array:
    """Estimate how clouds move: (frame, row, column) in K to (2, row, column), pixels per frame to the right and down.

    Dense inverse search (Kroeger et al. 2016) by OpenCV between each two consecutive frames, averaged. Frames without
    contrast are missing ones; pairs with them are left out, and where no pair is left nothing moves.
    """
    steps = (images.astype(np.float64) - COLDEST) * (255 / (WARMEST - COLDEST))
    pictures = np.clip(np.rint(steps), 0, 255).astype(np.uint8)
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    rest = np.zeros((*images.shape[1:], 2), np.float32)
    flows = [
        search.calc(before, after, rest.copy())  # it writes into its last argument
        for before, after in pairwise(pictures)
        if np.ptp(before) and np.ptp(after)
    ]
    mean: Array = np.mean(np.array(flows or [rest]), axis=0)
    return mean.transpose(2, 0, 1)


def kelvin(images: Float[Tensor, "batch channel inputs row column"]) -> Array:
    """Return the infrared brightness temperatures of normalised images, on the CPU."""
    temperatures: Array = images[:, INFRARED].float().cpu().numpy() * STD[INFRARED] + MEAN[INFRARED]
    return temperatures


@torch.no_grad()
def motion(images: Float[Tensor, "batch channel inputs row column"]) -> Float[Tensor, "batch 2 row column"]:
    """Estimate the clouds' motion in normalised images, on the CPU and without gradients; see `optical_flow`."""
    return torch.from_numpy(np.stack([optical_flow(sample) for sample in kelvin(images)])).to(images.device)


def pysteps() -> tuple[Any, Any]:
    """Return what pysteps estimates motion with, and what it moves fields with.

    Raises:
        UserError: where it is not installed.
    """
    try:
        with redirect_stdout(io.StringIO()):  # it says where its configuration lies
            from pysteps.extrapolation.semilagrangian import extrapolate
            from pysteps.motion.lucaskanade import dense_lucaskanade
    except ImportError as error:
        raise UserError(f"view.motion pysteps: {error}; pip install 'retable[pysteps]'") from error
    return dense_lucaskanade, extrapolate


@torch.no_grad()
def extrapolate(
    fields: Float[Tensor, "batch row column"], images: Float[Tensor, "batch channel inputs row column"], steps: int
) -> Float[Tensor, "batch step row column"]:
    """Move fields with the clouds for 1 to `steps` steps by pysteps: Lucas and Kanade's motion, semi-Lagrangian.

    The peer of `motion` and `advect`, with pysteps' own settings but for the border, which goes on beyond itself.
    """
    estimate, move = pysteps()
    cold = WARMEST - kelvin(images)  # it tracks maxima
    moved = [
        move(field, estimate(sample), steps, map_coordinates_mode="nearest")
        for field, sample in zip(fields.cpu().numpy(), np.clip(cold, 0, WARMEST - COLDEST), strict=True)
    ]
    return torch.from_numpy(np.stack(moved)).to(fields)


def sample(
    fields: Float[Tensor, "batch channel row column"], displacement: Float[Tensor, "batch 2 row column"]
) -> Float[Tensor, "batch channel row column"]:
    """Read fields, bilinearly, at each pixel minus its displacement (right, down); the border goes on beyond itself."""
    rows, columns = fields.shape[2:]
    right = torch.arange(columns, device=fields.device) - displacement[:, 0]
    down = torch.arange(rows, device=fields.device)[:, None] - displacement[:, 1]
    grid = torch.stack((2 * right / (columns - 1) - 1, 2 * down / (rows - 1) - 1), -1)
    return F.grid_sample(fields, grid, mode="bilinear", padding_mode="border", align_corners=True)


def advect(
    field: Float[Tensor, "batch row column"], velocity: Float[Tensor, "batch 2 row column"], steps: int
) -> Float[Tensor, "batch step row column"]:
    """Move a field with a steady flow for 1 to `steps` steps: semi-Lagrangian and backward (Germann, Zawadzki 2002).

    Each pixel's path is followed back, one step after another; the field is interpolated once, at the path's end, so
    it does not blur.
    """
    displacement, moved = torch.zeros_like(velocity), []
    for _ in range(steps):
        displacement = displacement + sample(velocity, displacement)
        moved.append(sample(field[:, None], displacement))
    return torch.cat(moved, 1)


def enlarge_centre(fields: Float[Tensor, "batch channel row column"]) -> Float[Tensor, "batch channel row column"]:
    """Cut out the central sixth, where the forecast lies, and enlarge it bilinearly to the whole's number of pixels."""
    start = fields.shape[2] * 5 // 12
    stop = start + fields.shape[2] // ENLARGEMENT
    return F.interpolate(fields[..., start:stop, start:stop], scale_factor=ENLARGEMENT, mode="bilinear")


class RetrievalForecaster(nn.Module):
    """Reads rain off the last image with a small network, then leaves it there or moves it with the clouds.

    What is trained is `now`, against the rain at the time of the last image; `move` says how it moves.
    """

    def __init__(self, model: Retrieval, size: int, inputs: int, forecast: int) -> None:
        super().__init__()
        self.forecast = forecast
        self.moves = "none"
        """Motion of the rain in a forecast, `View.motion`; nothing that is trained depends on it."""
        # Not as decorators: that would import the compiler, which takes 2 s, with this module.
        self.motion = torch.compiler.disable(motion)  # type: ignore[no-untyped-call]
        self.extrapolate = torch.compiler.disable(extrapolate)  # type: ignore[no-untyped-call]
        widths = (len(CHANNELS), model.filters, model.filters, 1)
        first, second, third = (
            nn.Conv2d(before, after, 3, padding=1, padding_mode="replicate") for before, after in pairwise(widths)
        )
        self.network = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)

    def move(self, motion: str) -> None:
        """Move the rain in forecasts from here on as `View.motion` says.

        Raises:
            UserError: where pysteps is not installed.
        """
        if motion == "pysteps":
            pysteps()
        self.moves = motion

    def now(self, images: Float[Tensor, "batch channel inputs row column"]) -> Float[Tensor, "batch row column"]:
        """Return the logit of rain at the time of the last image, on the forecast's grid."""
        return enlarge_centre(self.network(images[:, :, -1]))[:, 0]

    def forward(
        self, images: Float[Tensor, "batch channel inputs row column"]
    ) -> Float[Tensor, "batch lead row column"]:
        """Return the logits of all lead times. They, not probabilities, are moved: at rest the forecast is `now`.

        In training mode, only `now` (batch, 1, row, column): the motion has nothing to learn.
        """
        if self.training:
            return self.now(images)[:, None]
        if self.moves == "none":
            return self.now(images)[:, None].expand(-1, self.forecast, -1, -1)
        context = self.network(images[:, :, -1])[:, 0].float()
        if self.moves == "pysteps":
            return enlarge_centre(self.extrapolate(context, images, self.forecast))
        return enlarge_centre(advect(context, self.motion(images), self.forecast))
