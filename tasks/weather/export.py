"""A trained forecaster as one file that forecasts on its own: numbers and JSON, with what it computes with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.models import export
from retable.platform.spec.arrays import Array
from retable.platform.store import weights
from retable.tasks.weather import metrics
from retable.tasks.weather.config import Config, View
from retable.tasks.weather.model import Forecaster, build
from retable.tasks.weather.predict import BATCH, check, forecast, load
from retable.tasks.weather.w4c.prepare import check_simulation, pixel_width
from retable.tasks.weather.w4c.preprocess import CHANNELS, normalise

FORMAT = "retable weather 1"
REMEDY = "`retable weather export RUN FILE` writes one"


@dataclass(frozen=True, eq=False)
class Exported:
    """A forecaster out of one file: what forecasts, and what the file says of it."""

    about: Mapping[str, Any]
    """See `platform.models.export.about`; and `size`, `regions`, `inputs`, `forecast`, `rain_threshold` (mm/h) and,
    where it is known, `pixel` (its width, metres)."""
    config: Config
    """The run's, but for `data` and `init`."""
    size: int
    """Pixels across an image, and across a forecast."""
    forecaster: Forecaster
    """In evaluation mode, on a GPU where there is one."""

    def forecast(self, satellite: Array, region: str) -> Array:
        """Return the probability of rain: float32 (n, leads, size, size), a lead time each 15 minutes.

        Args:
            satellite: images as the files have them (`preprocess` says what their numbers mean), float
                (n, inputs, 11, size, size); missing values are not finite.
            region: any; a climatology needs one that the run knew.

        Raises:
            UserError: where the images are of another shape, or a climatology does not know the region.
        """
        wanted = (self.config.inputs, len(CHANNELS), self.size, self.size)
        if satellite.ndim != 5 or satellite.shape[1:] != wanted or not len(satellite):
            raise UserError(f"satellite images of shape {satellite.shape}; this forecaster reads (n, {wanted})")
        number = self.forecaster.number(region)
        parts = (satellite[start : start + BATCH] for start in range(0, len(satellite), BATCH))
        return np.concatenate(
            [forecast(self.forecaster, normalise(part), number, self.config.precision) for part in parts]
        )

    def steps(self, satellite: Array, region: str) -> Array:
        """Return the same as whole steps of 1/200, uint8: what `predict` keeps, and what is scored."""
        return metrics.quantise(self.forecast(satellite, region))


def write_export(run: TrainedRun, epoch: int = 0, motion: str = "none", **more: Any) -> bytes:
    """Return the one file that is served of a run.

    Args:
        run: a finished run of this task, whose data are there.
        epoch: one that was kept; 0: the last.
        motion: of a retrieval, how the file's forecasts move its rain.
        **more: what else the file is to say of itself, such as `licence`.

    Raises:
        UserError: where the epoch was not kept, the data are gone or show later rain, or the model does not move rain.
    """
    check_simulation(run.source)
    check(override(run.config, {"init": "scratch"}), override(View(), {"motion": motion}))  # nothing is scored
    config, size = run.config, int(run.source.info["size"])
    shape = {name: getattr(config, name) for name in ("inputs", "forecast", "rain_threshold")}
    map_of = {"size": size, "pixel": pixel_width(run.source.info), "regions": list(config.regions)}
    about = export.about(run, epoch, **map_of, motion=motion, **shape, **more)
    metadata = export.described(FORMAT, config, about)
    return export.sealed(run.weights(epoch), {**metadata, "size": json.dumps(size)})


def read_export(data: bytes, name: str) -> Exported:
    """Read a file of `write_export`: numbers and JSON, never code. `name` is what errors call it.

    Raises:
        UserError: where it is no such file, is damaged, or its weights are not those of its config.
    """
    metadata, tensors = export.opened(data, name, "forecaster", REMEDY, FORMAT)
    about = export.read_json(metadata, "provenance", name, REMEDY)
    try:
        # The file names no data set, so the default's limits on inputs and lead times do not hold.
        config = override(Config(), {**export.read_json(metadata, "config", name, REMEDY), "data": ""})
        size = int(json.loads(metadata["size"]))
        _check(config, size, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError, UserError) as error:
        line = str(error).strip().splitlines()[0].removeprefix(f"{name}: ")
        raise UserError(f"{name}: a damaged forecaster ({line}); {REMEDY}") from error
    return Exported(about, config, size, load(config, tensors, size, str(about.get("motion", "none"))))


def served_as(forecaster: Exported, name: str) -> tuple[str, str, dict[str, object]]:
    """Return how requests name a forecaster: by its file."""
    return name or "weather", "", {}


def _check(config: Config, size: int, tensors: Mapping[str, Tensor]) -> None:
    """See whether these are a config's weights, before its network takes any memory."""
    with torch.device("meta"):
        expected = build(config, size, config.regions).state_dict()
    weights.check(tensors, expected)
