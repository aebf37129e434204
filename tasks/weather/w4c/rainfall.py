"""Simulated rain: maps of rain rate on a 2 km grid, 15 minutes apart, carried by a wind that is known.

Three populations share the flow: stratiform rain (a Gaussian field with a power law spectrum whose small scales die
first, as in the nowcasting scheme STEPS, Bowler et al. 2006), fronts (moving bands that lift that field) and
convective cells (born in moist places, mostly in the afternoon; they grow, ripen and decay). Lengths and speeds grow
with the size, so that a forecast asks for the same share of the context at every size.

The grid is periodic: what leaves comes back, changed, after two and a half days in the typical wind and 19 hours in the
strongest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
from scipy.ndimage import map_coordinates
from scipy.special import ndtr

Array = npt.NDArray[Any]

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


@dataclass(frozen=True, kw_only=True)
class Climate:
    """What sets one region and year apart."""

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


def advect(field: Array, flow: Array) -> Array:
    """One semi-Lagrangian step of a periodic field (height, width); flow (2, height, width), (y, x), pixels a step."""
    grid = np.indices(field.shape, np.float32)
    moved: Array = map_coordinates(field, grid - flow, order=1, mode="grid-wrap", output=np.float32)
    return moved


def red_noise(rng: np.random.Generator, slots: int, memory: float) -> Array:
    """First-order autoregressive series (slots,) with mean 0 and variance 1 that forgets within `memory` slots."""
    keep = np.exp(-1 / memory)
    kicks = rng.standard_normal(slots) * np.sqrt(1 - keep**2)
    kicks[:1] /= np.sqrt(1 - keep**2)
    values = np.empty(slots)
    last = 0.0
    for slot, kick in enumerate(kicks):
        last = values[slot] = keep * last + kick
    return values


def _threshold(wetness: Array, share: float, spread: float) -> float:
    """Level that a Gaussian field of this spread, lifted by each slot's wetness, exceeds in this share of pixels."""
    low, high = -10.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if ndtr((wetness - middle) / spread).mean() > share else (low, middle)
    return (low + high) / 2


class Wind:
    """Mean wind that changes from day to day plus a smooth whirling part without divergence; `flow` is (2, 6S, 6S)."""

    def __init__(self, climate: Climate, size: int, slots: int, rng: np.random.Generator) -> None:
        typical = 0.25 * FINE * size / 60
        speed = typical * climate.speed * np.exp(0.4 * red_noise(rng, slots, 1.5 * DAY))
        speed = np.clip(speed, 0.6 * typical, 3.2 * typical)
        angle = np.radians(climate.direction + 30 * red_noise(rng, slots, 1.5 * DAY))
        self.mean = np.stack([-speed * np.sin(angle), speed * np.cos(angle)], 1).astype(np.float32)
        self.rng, self.width = rng, FINE * size
        # Modes of a stream function, turned into those of velocities: u = -d/dy, v = d/dx, here (y, x) = (d/dx, -d/dy).
        y, x = wavenumbers(self.width)
        stream = amplitudes(self.width, 1.5 * size, 6.0)
        scale = 0.35 * typical / np.sqrt(((stream * np.hypot(y, x)) ** 2).sum()) * self.width**2
        self.turn = np.stack([1j * x * stream, -1j * y * stream]).astype(np.complex64) * np.float32(scale)
        self.modes = noise(rng, self.width)
        self.flow = np.zeros((2, self.width, self.width), np.float32)

    def step(self, slot: int) -> Array:
        """Flow of this slot, fine pixels a slot (2, 6S, 6S); slots come one after the other."""
        if slot % HOLD == 0:
            keep = np.float32(np.exp(-HOLD / DAY))
            self.modes = keep * self.modes + np.sqrt(1 - keep**2) * noise(self.rng, self.width)
            self.flow = to_grid(self.turn * self.modes, self.width) + self.mean[slot][:, None, None]
        return self.flow


class Fronts:
    """Bent bands, longer than the map, that the mean wind drives across it."""

    def __init__(self, climate: Climate, size: int, rng: np.random.Generator) -> None:
        self.size, self.reach, self.rng = size, 4.5 * size, rng
        self.angle = np.radians(climate.direction)
        self.expected = 6.0 * climate.fraction
        """Fronts on the map at a time."""
        axis = (np.arange(FINE * size, dtype=np.float32) - FINE * size / 2)[:, None]
        self.y, self.x = axis, axis.T
        self.bands: list[dict[str, float]] = []
        for _ in range(rng.poisson(self.expected)):
            self._arise(rng.uniform(-self.reach, self.reach))

    def _arise(self, place: float) -> None:
        angle = self.angle + self.rng.normal(0, 0.5)
        self.bands.append(
            {
                "place": place,
                "y": -np.sin(angle),
                "x": np.cos(angle),
                "width": self.size * self.rng.uniform(0.1, 0.2),
                "bend": self.rng.normal(0, 0.06) / self.size,
                "lift": self.rng.uniform(1.2, 2.2),
            }
        )

    def step(self, wind: Array) -> Array | float:
        """What the fronts add to the stratiform field (6S, 6S), after a slot in this mean wind (2,)."""
        lift: Array | float = 0.0
        for band in self.bands:
            band["place"] += max(band["y"] * wind[0] + band["x"] * wind[1], 0.01 * self.size)
            along = band["x"] * self.y - band["y"] * self.x
            across = band["y"] * self.y + band["x"] * self.x - band["place"] + band["bend"] * along**2
            lift = lift + band["lift"] * np.exp(-0.5 * (across / band["width"]) ** 2, dtype=np.float32)
        self.bands = [band for band in self.bands if band["place"] < self.reach]
        if self.rng.random() < self.expected * 0.025 * self.size / (2 * self.reach):
            self._arise(-self.reach)
        return lift


class Cells:
    """Convective cells: each grows, ripens and decays within one to three hours."""

    def __init__(self, climate: Climate, size: int, rng: np.random.Generator) -> None:
        self.width, self.rng = FINE * size, rng
        # A cell lives 8 slots on average and covers about 30 pixels.
        self.births = climate.convective * climate.fraction * self.width**2 / (8 * 30)
        self.cells = np.zeros((0, 6))
        """Columns: y, x, age, life (slots), radius (pixels), peak (mm/h)."""

    def step(self, slot: int, flow: Array, moisture: Array) -> Array:
        """Rain rates (6S, 6S) of the cells after one more slot; new ones arise where `moisture` is high."""
        hour = slot % DAY / 4
        expected = self.births * (1 + 0.9 * np.cos(2 * np.pi * (hour - 16) / 24))
        cells = np.concatenate([self.cells, self._newborn(int(self.rng.poisson(expected)), moisture)])
        rows, columns = (cells[:, :2].astype(int) % self.width).T
        cells[:, :2] += flow[:, rows, columns].T
        cells[:, 2] += 1
        self.cells = cells[cells[:, 2] < cells[:, 3]]
        return self._draw()

    def _newborn(self, count: int, moisture: Array) -> Array:
        rng, candidates = self.rng, 8 * count
        places = rng.uniform(0, self.width, (candidates, 2))
        rows, columns = places.astype(int).T
        wish = moisture[rows, columns] + rng.normal(0, 0.5, candidates)
        chosen = places[np.argsort(-wish)[:count]]
        life, radius = rng.uniform(4, 12, count), rng.uniform(1.5, 3.0, count)
        peak = 4 * np.exp(0.8 * rng.standard_normal(count))
        return np.column_stack([chosen, np.zeros(count), life, radius, peak])

    def _draw(self) -> Array:
        y, x, age, life, radius, peak = (column[:, None] for column in self.cells.T)
        ripe = np.sin(np.pi * age / life)
        radius = radius * (0.6 + 0.4 * ripe)
        rows, columns = np.round(y) + PATCH, np.round(x) + PATCH
        tall, wide = np.exp(-0.5 * ((rows - y) / radius) ** 2), np.exp(-0.5 * ((columns - x) / radius) ** 2)
        values = (peak * ripe * tall)[:, :, None] * wide[:, None, :]
        place = rows.astype(int)[:, :, None] % self.width * self.width + columns.astype(int)[:, None, :] % self.width
        rain = np.bincount(place.ravel(), values.ravel(), self.width**2)
        return rain.reshape(self.width, self.width).astype(np.float32)


def simulate(climate: Climate, *, size: int, slots: int, seed: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Yield rain rates (6S, 6S) in mm/h and the flow (2, 6S, 6S), in fine pixels a slot, (y, x), of every slot.

    The flow of a slot carries the rain of the slot before into it. The first slot is at midnight UTC.
    """
    rng = np.random.default_rng(list(seed))
    width = FINE * size
    wind, fronts, cells = Wind(climate, size, slots, rng), Fronts(climate, size, rng), Cells(climate, size, rng)
    wetness = 0.8 * red_noise(rng, slots, DAY)
    level = _threshold(wetness, (1 - climate.convective) * 0.6 * climate.fraction, np.hypot(1, climate.orography))
    spectrum = amplitudes(width, 1.2 * size, 3.5)
    ground = climate.orography * to_grid(amplitudes(width, 0.7 * size, 4.0) * noise(rng, width), width)
    y, x = wavenumbers(width)
    # The outer scale forgets within 120 slots; shorter waves sooner, as their length to the power 0.8.
    keep = np.exp(-((1 + size**2 * (y**2 + x**2)) ** 0.4) / 120).astype(np.float32)
    kick = np.sqrt(1 - keep**2) * spectrum
    field = to_grid(spectrum * noise(rng, width), width)
    for slot in range(slots):
        flow = wind.step(slot)
        modes = scipy.fft.rfft2(advect(field, flow), workers=1)
        field = to_grid(keep * modes + kick * noise(rng, width), width)
        # Interpolation loses a little variance in every step.
        field -= field.mean()
        field /= field.std()
        latent = field + ground + fronts.step(wind.mean[slot]) + np.float32(wetness[slot] - level)
        rain = EVENT * np.exp(np.float32(1.7) * np.minimum(latent, 3.0))
        rain[rain < 0.2 * EVENT] = 0
        rain += cells.step(slot, flow, latent)
        rain[rain < 0.2 * EVENT] = 0
        yield np.minimum(rain, np.float32(HIGHEST)), flow
