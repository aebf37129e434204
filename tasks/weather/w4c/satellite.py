"""Satellite images that go with a sequence of rain maps: a simple forward operator, for simulated and for real rain.

It imitates what makes the task hard: cold tops appear before the rain and outlive it (the anvil), high clouds that do
not rain (cirrus) are as cold in the window channels, low warm clouds are as bright by day, and everything is coarser
than the rain. It is no radiative transfer: each channel is a sum of cloud cover times a typical response, scaled to the
real channels' mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter, maximum_filter, shift

from retable.tasks.weather.w4c.preprocess import CHANNELS, HIGH, HIGHEST_RATE, LOW, MEAN, STD
from retable.tasks.weather.w4c.rainfall import FINE, amplitudes, block_mean, noise, to_grid, wavenumbers

Array = npt.NDArray[Any]

WEIGHTS = np.array([0.04, 0.06, 0.10, 0.15, 0.20, 0.25, 0.20], np.float32)
"""What the rain of the frames from -4 to +2 adds to a frame's cloud tops: more of it is yet to fall."""
BEFORE, AFTER = 4, 2
"""Frames on either side whose rain matters to a frame."""
PARALLAX = 0.5
"""Satellite pixels (12 km) by which cold tops appear too far north: the satellite looks at them from the south."""
KEYFRAME = 24
"""Frames between independent states of the clouds that do not rain, which blend into each other."""
LATITUDE = 50.0
"""Degrees; with longitude 0 and the sun of an equinox, enough for day and night."""

# Response of (1, high raining cloud, cirrus, low cloud, humidity, sunshine on the ground) and the noise, in standard
# deviations of the channel. The first column makes the mean about zero.
_INFRARED = {
    "IR_039": ((0.85, -4.1, -2.1, -0.4, 0.0, 1.5), 0.12),
    "IR_087": ((1.45, -5.2, -2.7, -0.5, -0.1, 0.9), 0.06),
    "IR_097": ((1.35, -4.3, -2.4, -0.5, -0.4, 0.7), 0.10),
    "IR_108": ((1.45, -5.2, -2.6, -0.5, 0.0, 1.0), 0.06),
    "IR_120": ((1.50, -5.1, -3.0, -0.5, -0.1, 1.0), 0.06),
    "IR_134": ((1.40, -4.9, -2.6, -0.3, -0.2, 0.4), 0.06),
    "WV_062": ((0.90, -3.0, -1.7, 0.0, -0.8, 0.0), 0.08),
    "WV_073": ((1.20, -4.2, -2.0, -0.1, -0.6, 0.0), 0.08),
}
# Reflectances under an overhead sun: (ground, high raining cloud, cirrus, low cloud) and the noise. Ice is dark at
# 1.6 micrometres, drops are bright.
_SOLAR = {
    "IR_016": ((0.22, 0.33, 0.30, 0.62), 0.015),
    "VIS006": ((0.08, 0.95, 0.35, 0.62), 0.01),
    "VIS008": ((0.18, 1.00, 0.42, 0.68), 0.01),
}


def sunshine(minutes: int) -> float:
    """Cosine of the sun's zenith angle, 0 at night."""
    hour_angle = 2 * np.pi * (minutes / 1440 - 0.5)
    cosine = float(np.cos(np.radians(LATITUDE)) * np.cos(hour_angle))
    return cosine if cosine > 1e-6 else 0.0


def observe(rain: Array, *, cirrus_seed: int, start_minutes: int) -> Array:
    """Satellite images of a sequence of rain maps.

    A frame depends on the rain of the frames from `BEFORE` it to `AFTER` it (at the ends of the sequence the first and
    last frame stand in) and on its time. So a long sequence may be cut into chunks that overlap by as much: frames that
    far from a chunk's ends are those of the whole.

    Args:
        rain: rates (frames, 6S, 6S), mm/h, 15 minutes apart, over the whole context. Negative and missing values count
            as dry.
        cirrus_seed: chooses the clouds that do not rain, the ground and the noise.
        start_minutes: time of the first frame since some midnight UTC, not negative; it may exceed a day, and clouds
            move on with it.

    Returns:
        Images (frames, 11, S, S) float32: reflectances and brightness temperatures in K.

    Raises:
        ValueError: where the maps are not squares of a multiple of 6 pixels.

    """
    frames, height, width = rain.shape
    if height != width or height % FINE:
        raise ValueError(f"rain maps of {height} x {width} pixels are not squares of a multiple of {FINE}")
    size = height // FINE
    images = np.empty((frames, len(CHANNELS), size, size), np.float32)
    depths = np.stack([_depth(frame) for frame in rain])
    skies = _skies(cirrus_seed, size, start_minutes // 15)
    ground = next(_skies(cirrus_seed + 1, size, 0))[0]
    for frame in range(frames):
        nearby = np.clip(np.arange(frame - BEFORE, frame + AFTER + 1), 0, frames - 1)
        tops = _tops(np.tensordot(WEIGHTS, depths[nearby], 1))
        minutes = start_minutes + 15 * frame
        rng = np.random.default_rng([cirrus_seed, minutes])
        images[frame] = _channels(tops, next(skies), ground, sunshine(minutes), rng)
    return images


def _depth(rain: Array) -> Array:
    """Thickness of raining cloud (S, S) in 0..1, growing with the rain rate; about a third where rain begins."""
    rate = np.minimum(np.where(rain > 0, rain, 0), HIGHEST_RATE).astype(np.float32)
    return block_mean(rate / (rate + np.float32(0.5)))


def _tops(depth: Array) -> Array:
    """Cover of cold tops (S, S) in 0..1: wider than the rain, and seen from the south."""
    spread = 0.6 * gaussian_filter(depth, 0.8, mode="nearest") + 0.4 * maximum_filter(depth, 3, mode="nearest")
    covered: Array = shift(1 - np.exp(-2.2 * spread), (-PARALLAX, 0), order=1, mode="nearest")
    return covered


def _skies(seed: int, size: int, start: int) -> Iterator[Array]:
    """Yield smooth fields (3, S, S) with mean 0 and variance 1, of cirrus, low cloud and humidity, from frame `start`.

    Each frame follows from the seed and its number alone: it blends two keyframes, drawn from their own streams of
    random numbers, that drift on their own wind.
    """
    rng = np.random.default_rng([seed, size])
    speed = size / 60 * rng.uniform(0.2, 0.6, (3, 1, 1))
    angle = rng.uniform(0, 2 * np.pi, (3, 1, 1))
    y, x = wavenumbers(size)
    phase = -2 * np.pi * speed * (np.sin(angle) * y + np.cos(angle) * x)
    spectra = np.stack([amplitudes(size, size / 3, beta) for beta in (3.0, 2.8, 4.0)])

    def keyframe(number: int) -> Array:
        stream = np.random.default_rng([seed, size, number])
        modes: Array = spectra * np.stack([noise(stream, size) for _ in range(3)])
        return modes

    frame, number = start, start // KEYFRAME
    now, following = keyframe(number), keyframe(number + 1)
    while True:
        if frame // KEYFRAME > number:
            number, now, following = number + 1, following, keyframe(number + 2)
        angle_between = np.pi / 2 * (frame / KEYFRAME - number)
        modes = np.cos(angle_between) * now + np.sin(angle_between) * following
        yield to_grid((modes * np.exp(1j * phase * frame)).astype(np.complex64), size)
        frame += 1


def _channels(tops: Array, sky: Array, ground: Array, sun: float, rng: np.random.Generator) -> Array:
    """One image (11, S, S) of cold tops, other clouds (3, S, S), the ground (S, S) and the sun's cosine."""
    cirrus = 1 / (1 + np.exp(-2.5 * (sky[0] - 0.9)))
    low = 1 / (1 + np.exp(-4 * (sky[1] - 0.3)))
    thin = (1 - tops) * cirrus
    shown = (1 - tops) * (1 - 0.6 * cirrus) * low
    warm = (1 - tops) * (1 - cirrus) * (1 - low) * (sun + 0.3 * ground)
    bright = 1 - (1 - tops) * (1 - 0.35 * cirrus) * (1 - 0.7 * low)
    image = np.empty((len(CHANNELS), *tops.shape), np.float32)
    for channel, name in enumerate(CHANNELS):
        if name in _SOLAR:
            (soil, deep, veil, drops), sigma = _SOLAR[name]
            albedo = soil * (1 - bright) + deep * tops + veil * thin + drops * shown
            values = sun * gaussian_filter(albedo, 0.5) + sigma * np.sqrt(sun) * rng.standard_normal(tops.shape)
        else:
            (offset, *responses), sigma = _INFRARED[name]
            terms = [tops, thin, shown, sky[2], warm]
            mixed = sum(weight * term for weight, term in zip(responses, terms, strict=True))
            blurred = gaussian_filter(mixed, 1.0 if name.startswith("WV") else 0.6)
            solar = 0.9 * sun * bright if name == "IR_039" else 0.0
            values = offset + blurred + solar + sigma * rng.standard_normal(tops.shape)
            values = MEAN[channel] + STD[channel] * values
        image[channel] = values
    clipped: Array = np.clip(image, LOW[:, None, None], HIGH[:, None, None])
    return clipped
