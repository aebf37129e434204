"""Forecasts as files that people open: netCDF, a map of one lead time, a sheet of all, a film."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from retable.platform.spec.arrays import Array
from retable.serve.ingress.replies import Reply, wrong
from retable.tasks.weather.answer import as_netcdf, packed
from retable.tasks.weather.config import STEPS, View
from retable.tasks.weather.metrics import MINUTES

Format = Literal["npz", "netcdf", "png", "gif"]

RAMP = ((242, 245, 250), (156, 196, 255), (47, 111, 224), (42, 29, 122))
"""Colours of probabilities 0, 1/3, 2/3 and 1; those of the page."""
_INK, PAPER = (31, 41, 55), (255, 255, 255)
_SIDE, SMALL = 288, 132
"""Pixels across a map at least: alone, and in a sheet."""
COLUMNS, EDGE = 8, 10
SECONDS = 0.25
"""That a film shows each lead time."""


@dataclass(frozen=True)
class Forecast:
    """A forecast to write as a file."""

    steps: Array
    """Probability in steps of 1/200, uint8 (leads, S, S)."""
    region: str
    source: str
    """Models that made the forecast, in words."""
    time: np.datetime64 | None = None
    """Of the last image, UTC, where it is known."""
    caution: str = ""
    """Limits of the forecasters' training data: effects that the data do not show."""
    pixel: float | None = None
    """Width of a pixel, metres, where it is known."""


def written(forecast: Forecast, kind: Format, lead: int = 0) -> Reply:
    """Return a forecast as a file.

    Args:
        forecast: what is written.
        kind: of file.
        lead: minutes ahead of the one map that a PNG shows; 0: a sheet of all.

    Raises:
        Problem: 422 where there is no such lead time.
    """
    if lead and (lead % MINUTES or not 0 < lead // MINUTES <= len(forecast.steps)):
        raise wrong("lead", f"{lead} minutes", f"a multiple of {MINUTES} up to {MINUTES * len(forecast.steps)}")
    if kind == "npz":
        return Reply(packed(forecast.steps), "application/x-npz")
    if kind == "netcdf":
        times = None if forecast.time is None else np.array([forecast.time])
        about = (forecast.region, forecast.source, forecast.caution)
        made = as_netcdf(forecast.steps[None], *about, times, forecast.pixel)
        return Reply(made, "application/x-netcdf")
    file = io.BytesIO()
    if kind == "gif":
        first, *rest = (drawn(forecast, [step], _SIDE) for step in range(len(forecast.steps)))
        first.save(file, "GIF", save_all=True, append_images=rest, duration=round(1000 * SECONDS), loop=0)
    else:
        steps = [lead // MINUTES - 1] if lead else range(len(forecast.steps))
        drawn(forecast, steps, _SIDE if lead else SMALL).save(file, "PNG")
    return Reply(file.getvalue(), f"image/{kind}")


def drawn(forecast: Forecast, steps: Sequence[int], side: int) -> Image.Image:
    """Return maps of lead times beside each other, each with its time; above them the region, below the scale."""
    size = forecast.steps.shape[-1]
    width = size * -(-side // size)  # whole pixels of the screen for each of the map
    columns, rows = min(COLUMNS, len(steps)), -(-len(steps) // COLUMNS)
    font, line = ImageFont.load_default(13), 20
    canvas = Image.new(
        "RGB", (columns * (width + EDGE) + EDGE, rows * (width + line + EDGE) + 2 * line + 3 * EDGE), PAPER
    )
    pen = ImageDraw.Draw(canvas)
    since = "" if forecast.time is None else f" after {str(forecast.time)[:16].replace('T', ' ')} UTC"
    pen.text((EDGE, EDGE), f"{forecast.region}: probability of rain{since if columns > 1 else ''}", _INK, font)
    for number, step in enumerate(steps):
        left, top = EDGE + number % COLUMNS * (width + EDGE), line + EDGE + number // COLUMNS * (width + line + EDGE)
        minutes = MINUTES * (step + 1)
        pen.text((left, top), f"+{minutes // 60} h {minutes % 60:02d}{since if columns == 1 else ''}", _INK, font)
        colours = Image.fromarray(table()[forecast.steps[step]])
        canvas.paste(colours.resize((width, width), Image.Resampling.NEAREST), (left, top + line))
    scale(pen, EDGE, canvas.height - line - EDGE // 2, font)
    return canvas


def scale(pen: ImageDraw.ImageDraw, left: int, top: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> None:
    """Draw which colour means which probability."""
    pen.text((left, top), "0", _INK, font)
    for step, colour in enumerate(table()):
        pen.line((left + 14 + step * 120 // STEPS, top + 3, left + 14 + step * 120 // STEPS, top + 13), tuple(colour))
    pen.text((left + 140, top), "1", _INK, font)


def table() -> npt.NDArray[np.uint8]:
    """Return the colour of each step, (201, 3)."""
    at = np.linspace(0, len(RAMP) - 1, STEPS + 1)
    mixed = [np.interp(at, range(len(RAMP)), [colour[channel] for colour in RAMP]) for channel in range(3)]
    return np.rint(np.stack(mixed, axis=1)).astype(np.uint8)


@dataclass(frozen=True)
class Member:
    """A forecast as the functions of `tasks.weather.combine` see it."""

    label: str
    view: View
    steps: Array
    metrics: Mapping[str, float]

    def load(self) -> dict[str, Array]:
        """Return what the member predicts."""
        return {"probability": self.steps}
