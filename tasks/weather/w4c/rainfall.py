"""Simulated weather: rain rates on a 2 km grid and clouds on the satellite's, 15 minutes apart, in a known wind.

Three populations share the flow: stratiform cloud (a Gaussian field with a power law spectrum whose small scales die
first, as in the nowcasting scheme STEPS, Bowler et al. 2006), fronts (moving bands that lift that field) and convective
cells (born in moist places, mostly in the afternoon; they grow, ripen and decay). Rain follows cloud: stratiform rain
relaxes towards what its cloud would give within `LAG` slots, and a cell is a cloud for `LEAD` slots before it rains.
So a picture of the clouds tells of rain to come, and no rain is needed to draw the clouds of its past.

Nothing depends on what comes later: every slot draws from its own random streams, and adds to the state before it.

Lengths and speeds grow with the size, so that a forecast asks for the same share of the context at every size: a world
of size S is the real one on pixels of 2 km x 252 / S. Areas, rates, speeds, lifetimes and growth are fitted to real
radar at that resolution (`python -m benchmarks weather_world`).

The grid is periodic: what leaves comes back, changed, after two and a half days in the typical wind and 19 hours in the
strongest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.fft
from scipy.special import ndtri

from retable.platform.spec.arrays import Array
from retable.platform.train.seeds import generator

FINE = 6
"""Radar pixels (2 km) along a satellite pixel (12 km)."""
DAY = 96
"""Slots of a day."""
EVENT = 0.2
"""mm/h at the edge of what counts as rain."""
HIGHEST = 100.0
"""mm/h; below what preprocessing takes for a fault."""
HOLD = 4
"""Slots for which the flow stays as it is: it changes slowly, and every change costs two Fourier transforms."""
PATCH = np.arange(-10, 11)
"""Offsets of the pixels that one convective cell may touch."""
LAG = 1.5
"""Slots within which stratiform rain follows its cloud."""
LEAD, ANVIL = 2, 4
"""Slots for which a convective cell is a cloud before it rains (half an hour: Roberts and Rutledge 2003 see cooling
tops that long before the first echo), and for which its anvil stays."""
SPEED = 0.16
"""Typical wind, satellite pixels a slot at size 60."""
MEMORY = 240.0
"""Slots within which the largest waves of the stratiform field are forgotten."""
SLOPE = 2.7
"""The field's power falls with the wave number to this power."""
RADII = (0.5, 1.4)
"""Of convective cells, fine pixels."""
LIVES = (6.0, 20.0)
"""Slots for which a convective cell rains."""
STRATIFORM = 0.95
"""Part of the rain that is not convective for which the stratiform field is made to suffice without fronts."""
CELL = 7.0
"""Fine pixels on which a convective cell rains, on average."""
TEXTURE = 0.2
"""Standard deviation of what is new in every pixel and slot of the rain, in that of the stratiform field."""
STEEPNESS = 2.1
"""A rise of the stratiform field by one standard deviation multiplies rain by e to this power."""
WETNESS = 0.5
"""Standard deviation of how wet a day is, in that of the stratiform field."""
THICK = 0.5
"""mm/h of rain whose cloud covers half of what is under it."""


@dataclass(frozen=True, kw_only=True)
class Climate:
    """Climate of one region and year."""

    fraction: float
    """Share of pixels with 0.2 mm/h or more, in the long run."""
    speed: float = 1.0
    """Mean wind over the typical one, which is a quarter of a satellite pixel in 15 minutes at size 60."""
    direction: float = 0.0
    """Degrees, counter-clockwise from a wind towards the east."""
    convective: float = 0.15
    """Share of the rainy pixels that are convective."""
    orography: float = 0.3
    """How much the ground favours some places, in standard deviations of the stratiform field."""


def wavenumbers(size: int) -> tuple[Array, Array]:
    """Wavenumbers in cycles per pixel along y (size, 1) and x (1, size // 2 + 1) of a real transform, float32."""
    y, x = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    return y.astype(np.float32), x.astype(np.float32)


def amplitudes(size: int, outer: float, beta: float) -> Array:
    """Amplitudes (size, size // 2 + 1) of modes whose power falls as k^-beta beyond the outer scale, in pixels.

    White complex noise times these, transformed back, has variance 1 and mean 0 over the grid.
    """
    y, x = wavenumbers(size)
    power = (y**2 + x**2 + outer**-2.0) ** (-beta / 2)
    power[0, 0] = 0
    twice = np.full(power.shape[1], 2.0)
    twice[0] = 1
    if size % 2 == 0:
        twice[-1] = 1
    scaled = size**2 * np.sqrt(power / (power * twice).sum())
    return np.asarray(scaled, np.float32)


def noise(rng: np.random.Generator, size: int) -> Array:
    """White complex noise (size, size // 2 + 1) with unit variance, complex64."""
    parts = rng.standard_normal((size, size // 2 + 1, 2), np.float32) * np.float32(0.5**0.5)
    return parts.view(np.complex64)[..., 0]


def to_grid(modes: Array, size: int) -> Array:
    """Fields (..., size, size), float32, of modes (..., size, size // 2 + 1)."""
    field: Array = scipy.fft.irfft2(modes, s=(size, size), workers=1)
    return field


def block_mean(field: Array) -> Array:
    """Means (..., S, S) over the 6 x 6 radar pixels in each satellite pixel of (..., 6 S, 6 S)."""
    *lead, height, width = field.shape
    means: Array = field.reshape(*lead, height // FINE, FINE, width // FINE, FINE).mean((-3, -1))
    return means


def advect(fields: Array, flow: Array) -> Array:
    """Return periodic fields (..., height, width) one semi-Lagrangian step later, by bilinear interpolation.

    `flow` is (2, height, width), (y, x), pixels a step.
    """
    height, width = fields.shape[-2:]
    rows, columns = np.arange(height, dtype=np.float32)[:, None] - flow[0], np.arange(width, dtype=np.float32) - flow[1]
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top).ravel(), (columns - left).ravel()
    first, second = ((top.astype(np.intp) + step) % height * width for step in (0, 1))
    near, far = ((left.astype(np.intp) + step) % width for step in (0, 1))
    flat = fields.reshape(-1, height * width)
    corners = [flat.take((row + column).ravel(), 1) for row in (first, second) for column in (near, far)]
    upper, lower = ((1 - right) * corners[k] + right * corners[k + 1] for k in (0, 2))
    moved: Array = ((1 - down) * upper + down * lower).reshape(fields.shape)
    return moved


def red(last: float | None, memory: float, kick: float) -> float:
    """Return the next value of an autoregressive series with variance 1 that forgets within `memory` slots."""
    keep = np.exp(-1 / memory)
    return kick if last is None else float(keep * last + np.sqrt(1 - keep**2) * kick)


def depth(rain: Array) -> Array:
    """Return the thickness (S, S) in 0..1 of the cloud that goes with rain (6S, 6S); about a third where it begins."""
    rate = np.minimum(rain, np.float32(HIGHEST))
    return block_mean(rate / (rate + np.float32(THICK)))


class Wind:
    """Mean wind that changes from day to day plus a smooth whirling part without divergence; `flow` is (2, 6S, 6S)."""

    def __init__(self, climate: Climate, size: int) -> None:
        self.climate, self.width, self.typical = climate, FINE * size, SPEED * FINE * size / 60
        self.speed: float | None = None
        self.angle: float | None = None
        # Modes of a stream function, turned into those of velocities: u = -d/dy, v = d/dx, here (y, x) = (d/dx, -d/dy).
        y, x = wavenumbers(self.width)
        stream = amplitudes(self.width, 1.5 * size, 6.0)
        scale = 0.35 * self.typical / np.sqrt(((stream * np.hypot(y, x)) ** 2).sum()) * self.width**2
        self.turn = np.stack([1j * x * stream, -1j * y * stream]).astype(np.complex64) * np.float32(scale)
        self.modes = np.zeros(0, np.complex64)
        self.mean = np.zeros(2, np.float32)
        self.flow = np.zeros((2, self.width, self.width), np.float32)

    def step(self, slot: int, rng: np.random.Generator) -> Array:
        """Flow of this slot, fine pixels a slot (2, 6S, 6S); slots come one after the other."""
        faster, turned = rng.standard_normal(2)
        self.speed, self.angle = red(self.speed, 1.5 * DAY, faster), red(self.angle, 1.5 * DAY, turned)
        speed = np.clip(self.climate.speed * np.exp(0.4 * self.speed), 0.6, 3.2) * self.typical
        angle = np.radians(self.climate.direction + 30 * self.angle)
        self.mean = np.array([-speed * np.sin(angle), speed * np.cos(angle)], np.float32)
        if slot % HOLD == 0:
            keep, kick = np.float32(np.exp(-HOLD / DAY)), noise(rng, self.width)
            self.modes = keep * self.modes + np.sqrt(1 - keep**2) * kick if len(self.modes) else kick
            self.flow = to_grid(self.turn * self.modes, self.width) + self.mean[:, None, None]
        return self.flow


class Fronts:
    """Bent bands, longer than the map, that the mean wind drives across it."""

    def __init__(self, climate: Climate, size: int, rng: np.random.Generator) -> None:
        self.size, self.reach = size, 4.5 * size
        self.angle = np.radians(climate.direction)
        self.expected = 6.0 * climate.fraction
        """Fronts on the map at a time."""
        axis = (np.arange(FINE * size, dtype=np.float32) - FINE * size / 2)[:, None]
        self.y, self.x = axis, axis.T
        self.bands: list[dict[str, float]] = []
        for _ in range(rng.poisson(self.expected)):
            self._arise(rng.uniform(-self.reach, self.reach), rng)

    def _arise(self, distance: float, rng: np.random.Generator) -> None:
        angle = self.angle + rng.normal(0, 0.5)
        self.bands.append(
            {
                "place": distance,
                "y": -np.sin(angle),
                "x": np.cos(angle),
                "width": self.size * rng.uniform(0.1, 0.2),
                "bend": rng.normal(0, 0.06) / self.size,
                "lift": rng.uniform(1.2, 2.2),
            }
        )

    def step(self, wind: Array, rng: np.random.Generator) -> Array | float:
        """Return the fronts' part of the stratiform field (6S, 6S), after a slot in this mean wind (2,)."""
        lift: Array | float = 0.0
        for band in self.bands:
            band["place"] += max(band["y"] * wind[0] + band["x"] * wind[1], 0.01 * self.size)
            along = band["x"] * self.y - band["y"] * self.x
            across = band["y"] * self.y + band["x"] * self.x - band["place"] + band["bend"] * along**2
            lift = lift + band["lift"] * np.exp(-0.5 * (across / band["width"]) ** 2, dtype=np.float32)
        self.bands = [band for band in self.bands if band["place"] < self.reach]
        if rng.random() < self.expected * 0.025 * self.size / (2 * self.reach):
            self._arise(-self.reach, rng)
        return lift


class Cells:
    """Convective cells: each is a cloud that grows, rains, ripens and decays within one and a half to four hours."""

    def __init__(self, climate: Climate, size: int) -> None:
        self.size, self.width = size, FINE * size
        self.births = climate.convective * climate.fraction * self.width**2 / (np.mean(LIVES) * CELL)
        self.cells = np.zeros((0, 6))
        """Columns: y, x, age, how long it rains (slots), radius (pixels), peak (mm/h)."""

    def step(self, slot: int, flow: Array, moisture: Array, rng: np.random.Generator) -> None:
        """Age the cells by a slot, and add new ones where `moisture` (6S, 6S) is high."""
        hour = slot % DAY / 4
        expected = self.births * (1 + 0.9 * np.cos(2 * np.pi * (hour - 16) / 24))
        cells = np.concatenate([self.cells, self._newborn(int(rng.poisson(expected)), moisture, rng)])
        rows, columns = (cells[:, :2].astype(int) % self.width).T
        cells[:, :2] += flow[:, rows, columns].T
        cells[:, 2] += 1
        self.cells = cells[cells[:, 2] < LEAD + cells[:, 3] + ANVIL]

    def _newborn(self, count: int, moisture: Array, rng: np.random.Generator) -> Array:
        candidates = 8 * count
        places = rng.uniform(0, self.width, (candidates, 2))
        rows, columns = places.astype(int).T
        wish = moisture[rows, columns] + rng.normal(0, 0.5, candidates)
        chosen = places[np.argsort(-wish)[:count]]
        life, radius = rng.uniform(*LIVES, count), rng.uniform(*RADII, count)
        peak = 4 * np.exp(0.8 * rng.standard_normal(count))
        return np.column_stack([chosen, np.zeros(count), life, radius, peak])

    def rain(self) -> Array:
        """Rain rates (6S, 6S) of the cells."""
        y, x, age, life, radius, peak = (column[:, None] for column in self.cells.T)
        ripe = np.sin(np.pi * np.clip((age - LEAD) / life, 0, 1))
        return drawn(y, x, radius * (0.6 + 0.4 * ripe), peak * ripe, self.width)

    def cloud(self) -> Array:
        """Thickness (S, S) in 0..1 of their clouds, which tower before it rains and spread to anvils."""
        y, x, age, life, radius, peak = (column[:, None] for column in self.cells.T)
        tower = np.minimum(age / LEAD, 1) * np.clip((LEAD + life + ANVIL - age) / ANVIL, 0, 1)
        spread = radius * (1.5 + age / (LEAD + life)) / FINE
        thick = drawn((y + 0.5) / FINE - 0.5, (x + 0.5) / FINE - 0.5, spread, tower * peak / (peak + THICK), self.size)
        return 1 - np.exp(-thick)


def drawn(y: Array, x: Array, radius: Array, peak: Array, width: int) -> Array:
    """Return the sum of Gaussian bells, each argument (cells, 1), on a periodic grid (width, width), float32."""
    rows, columns = np.round(y) + PATCH, np.round(x) + PATCH
    tall, wide = np.exp(-0.5 * ((rows - y) / radius) ** 2), np.exp(-0.5 * ((columns - x) / radius) ** 2)
    values = (peak * tall)[:, :, None] * wide[:, None, :]
    cell = rows.astype(int)[:, :, None] % width * width + columns.astype(int)[:, None, :] % width
    return np.bincount(cell.ravel(), values.ravel(), width**2).reshape(width, width).astype(np.float32)


class Weather(NamedTuple):
    """State of the weather in one slot."""

    rain: Array
    """Rain rates, mm/h (6S, 6S)."""
    cloud: Array
    """Thickness of high cloud in 0..1 (S, S)."""
    flow: Array
    """Fine pixels a slot, (y, x) (2, 6S, 6S): what carried the rain of the slot before into this one."""


class Field:
    """A Gaussian field (6S, 6S) with mean 0 and variance 1 that the flow carries and that changes as it goes."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self.width = FINE * size
        spectrum = amplitudes(self.width, 1.2 * size, SLOPE)
        y, x = wavenumbers(self.width)
        # Shorter waves are forgotten sooner than the outer scale, as their length to the power 0.8.
        self.keep = np.exp(-((1 + size**2 * (y**2 + x**2)) ** 0.4) / MEMORY).astype(np.float32)
        self.kick = np.sqrt(1 - self.keep**2) * spectrum
        self.field = to_grid(spectrum * noise(rng, self.width), self.width)

    def change(self, carried: Array, rng: np.random.Generator) -> Array:
        """Return the field one slot later, of what the flow has made of it."""
        modes = scipy.fft.rfft2(carried, workers=1)
        field = to_grid(self.keep * modes + self.kick * noise(rng, self.width), self.width)
        self.field = standardized(field)  # interpolation loses a little variance in every step
        return self.field


def standardized(field: Array) -> Array:
    """Return a field with mean 0 and variance 1."""
    centred = field - field.mean()
    return np.asarray(centred / centred.std(), np.float32)


def stratiform(latent: Array) -> Array:
    """Return rain rates of a field that is above 0 where it rains 0.2 mm/h or more."""
    return np.asarray(EVENT * np.exp(np.float32(STEEPNESS) * np.minimum(latent, 3.0)), np.float32)


def simulate(climate: Climate, *, size: int, slots: int, seed: int, where: Sequence[int] = ()) -> Iterator[Weather]:
    """Yield the weather of every slot; the first slot is at midnight UTC.

    Args:
        climate: of the region and year.
        size: S, pixels of a satellite image along each side.
        slots: how many; fewer are the first of more.
        seed: of the data set.
        where: the place among the data set's random streams, such as year and region.
    """
    draw = partial(_stream, seed, tuple(where))
    start = draw("start")
    wind, fronts, cells = Wind(climate, size), Fronts(climate, size, start), Cells(climate, size)
    width = FINE * size
    ground = climate.orography * to_grid(amplitudes(width, 0.7 * size, 4.0) * noise(start, width), width)
    field = Field(size, start)
    water, wet = field.field, None
    share = (1 - climate.convective) * STRATIFORM * climate.fraction
    level = -float(ndtri(share)) * np.sqrt(1 + climate.orography**2 + WETNESS**2)
    for slot in range(slots):
        flow = wind.step(slot, draw("wind", slot))
        carried, water = advect(np.stack([field.field, water]), flow)
        cloud = field.change(carried, draw("field", slot))
        water = standardized(water * np.float32(1 - 1 / LAG) + cloud * np.float32(1 / LAG))
        wet = red(wet, DAY, draw("wetness", slot).standard_normal())
        lift = ground + fronts.step(wind.mean, draw("fronts", slot)) + np.float32(WETNESS * wet - level)
        cells.step(slot, flow, cloud + lift, draw("cells", slot))
        texture = draw("texture", slot).standard_normal(water.shape, np.float32)
        rain = stratiform(water + lift + np.float32(TEXTURE) * texture)
        rain[rain < 0.2 * EVENT] = 0
        rain += cells.rain()
        rain[rain < 0.2 * EVENT] = 0
        thick = np.maximum(depth(stratiform(cloud + lift)), depth(rain))
        yield Weather(np.minimum(rain, np.float32(HIGHEST)), 1 - (1 - thick) * (1 - cells.cloud()), flow)


def _stream(seed: int, where: tuple[int, ...], name: str, slot: int = 0) -> np.random.Generator:
    """Return the random stream of one process in one slot."""
    return generator(seed, f"weather.{name}", *where, slot)
