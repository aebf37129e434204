"""The network of a config, as a forecaster: an hour of satellite images in, logits of rain at every lead time out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from retable.platform.errors import UserError, nearest
from retable.platform.store.weights import check, unwrapped
from retable.tasks.weather.config import AllDry, AllRain, Climatology, Config, Context, Retrieval, Swin, UNet, Vivit
from retable.tasks.weather.models import baselines
from retable.tasks.weather.models.context import ContextForecaster
from retable.tasks.weather.models.swin import SwinForecaster
from retable.tasks.weather.models.unet import UNetForecaster
from retable.tasks.weather.models.vivit import VivitForecaster, from_reference


class Forecaster(nn.Module):
    """A network in its place: it forecasts the region's 2 km grid from 12 km images six times as wide.

    The reference lays the images' grid over the forecast's, though these show different places. Here the networks that
    work on the images' grid (`UNet`, `Swin`, `Vivit`) forecast there; the central sixth is cut out and enlarged
    bilinearly. `Context` and the baselines deal with the scales by themselves.

    Logits are added to that of the probability which training starts from (`initial_rain`).

    The network is the attribute `model`, so that state dicts have the names of the reference's checkpoints.
    """

    def __init__(self, config: Config, size: int, regions: Sequence[str]) -> None:
        super().__init__()
        self.temporal_shift = config.temporal_shift
        self.start = math.log(config.initial_rain / (1 - config.initial_rain))
        self.crop = config.crop == "centre" and isinstance(config.model, UNet | Swin | Vivit)
        self.by_region = isinstance(config.model, Climatology | AllDry | AllRain)
        self.regions = tuple(regions)
        self.model = network(config, size, regions)
        if self.temporal_shift and isinstance(self.model, ContextForecaster):
            nn.init.zeros_(
                self.model.get_parameter("last.bias")[1:]
            )  # only the first of the summed logits starts at the climate

    def number(self, region: str) -> int:
        """Return a region's place in the list of regions; networks that look at images alone take any region.

        Raises:
            UserError: where a climatology has not seen it.
        """
        if region in self.regions:
            return self.regions.index(region)
        if isinstance(self.model, baselines.Climatology):
            seen = f"a climatology knows the regions that it has seen, {', '.join(self.regions)}"
            raise UserError(f"region {region!r}: {seen}{nearest(region, self.regions)}")
        return 0

    def forward(
        self, x: Float[Tensor, "batch 11 input row column"], region: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch lead row column"]:
        """Return logits of rain for normalised images; `region` is the index of each sample's region."""
        logits: Tensor = self.model(x, region) if self.by_region else self.model(x)
        if self.crop:
            logits = baselines.enlarge_centre(logits)
        if self.temporal_shift:  # section 2.1: t'_0 = t_0, t'_i = t'_(i-1) + t_i
            logits = logits.cumsum(1)
        return logits + self.start if self.start else logits


def network(config: Config, size: int, regions: Sequence[str]) -> nn.Module:
    """Make the config's network, initialised, for images of `size` x `size` pixels."""
    model, shape = config.model, (size, config.inputs, config.forecast)
    match model:
        case UNet():
            return UNetForecaster(model, *shape)
        case Swin():
            return SwinForecaster(model, *shape)
        case Vivit():
            return VivitForecaster(model, *shape)
        case Context():
            return ContextForecaster(model, *shape, crop=config.crop == "centre")
        case Retrieval():
            return baselines.RetrievalForecaster(model, *shape)
        case Climatology():
            return baselines.Climatology(len(regions), config.forecast, size)
        case AllDry():
            return baselines.Always(config.forecast, size, baselines.DRY_LOGIT)
        case AllRain():
            return baselines.Always(config.forecast, size, -baselines.DRY_LOGIT)


def build(config: Config, size: int, regions: Sequence[str]) -> Forecaster:
    """Make the forecaster of a config, on the CPU, initialised from torch's global generator.

    `size` is the width of the images in pixels, `regions` those of the config.

    Raises:
        UserError: where the images' centre is no whole number of pixels, or a network cannot take the size.

    """
    if size < 12 or size % 12:
        raise UserError(f"images of {size} x {size} pixels have no central sixth; their size must be a multiple of 12")
    forecaster = Forecaster(config, size, regions)
    if config.channels_last:
        volumes = isinstance(config.model, UNet | Swin)
        forecaster.to(memory_format=torch.channels_last_3d if volumes else torch.channels_last)
    return forecaster


def convert_reference(
    state: Mapping[str, Tensor], config: Config, size: int, regions: Sequence[str]
) -> dict[str, Tensor]:
    """Turn a state dict of the reference's network, or of its Lightning module, into the forecaster's.

    Raises:
        ValueError: naming the first entry that is missing, unexpected or of another shape than the config's.

    """
    expected = build(config, size, regions).model.state_dict()
    if isinstance(config.model, Vivit):
        given = from_reference(unwrapped(state, "pos_embedding", *expected), config.model)
    else:
        given = unwrapped(state, *expected)
    check(given, expected)
    return {f"model.{name}": value for name, value in given.items()}
