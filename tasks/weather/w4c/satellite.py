"""Satellite images of simulated clouds, and of clouds that are guessed from real rain: a simple forward operator.

It imitates what makes the task hard: high clouds that do not rain (cirrus) are as cold in the window channels as those
that do, low warm clouds are as bright by day, and everything is coarser than the rain. It is no radiative transfer:
each channel is a sum of cloud cover times a typical response, scaled to the real channels' mean and standard deviation.

An image knows nothing of what comes after it. Generated weather has clouds of its own, which rain follows
(`rainfall.Weather.cloud`). Of real rain nobody knows the clouds: `observe` draws those of the rain at the image's time
and of the hour before it, so that images tell no more than past rain does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from scipy.ndimage import gaussian_filter, maximum_filter, shift

from retable.platform.spec.arrays import Array
from retable.platform.train.seeds import generator
from retable.tasks.weather.w4c.preprocess import CHANNELS, HIGH, LOW, MEAN, STD
from retable.tasks.weather.w4c.rainfall import FINE, amplitudes, depth, noise, to_grid, wavenumbers

WEIGHTS = np.array([0.05, 0.10, 0.20, 0.30, 0.35], np.float32)
"""Weights of the real rain of the frames from -4 to 0 in a frame's cloud tops: an anvil outlives its rain."""
BEFORE = len(WEIGHTS) - 1
"""Frames before a frame whose rain matters to it."""
PARALLAX = 0.5
"""Satellite pixels (12 km) by which cold tops appear too far north: the satellite looks at them from the south."""
KEYFRAME = 24
"""Frames after which another state of the clouds that do not rain begins to take the place of the one before."""
LATITUDE = 50.0
"""Degrees; with longitude 0 and the sun of an equinox, enough for day and night."""

# Response of (1, high raining cloud, cirrus, low cloud, humidity, sunshine on the ground) and the noise, in standard
# deviations of the channel. The first column makes the mean about zero.
_WINDOW = {
    "IR_039": ((0.85, -4.1, -2.1, -0.4, 0.0, 1.5), 0.12),
    "IR_087": ((1.45, -5.2, -2.7, -0.5, -0.1, 0.9), 0.06),
    "IR_097": ((1.35, -4.3, -2.4, -0.5, -0.4, 0.7), 0.10),
    "IR_108": ((1.45, -5.2, -2.6, -0.5, 0.0, 1.0), 0.06),
    "IR_120": ((1.50, -5.1, -3.0, -0.5, -0.1, 1.0), 0.06),
    "IR_134": ((1.40, -4.9, -2.6, -0.3, -0.2, 0.4), 0.06),
}
_VAPOUR = {
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
    """Return satellite images of a sequence of real rain maps.

    A frame depends on its rain, on that of the `BEFORE` frames before it (at the start of the sequence the first frame
    stands in) and on its time. So a long sequence may be cut into chunks that overlap by as much.

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
    depths = np.stack([depth(np.where(frame > 0, frame, 0).astype(np.float32)) for frame in rain])
    nearby = np.clip(np.arange(frames)[:, None] + np.arange(-BEFORE, 1), 0, None)
    clouds = (np.tensordot(WEIGHTS, depths[past], 1) for past in nearby)
    return np.stack(list(draw(clouds, height // FINE, cirrus_seed=cirrus_seed, start_minutes=start_minutes)))


def draw(clouds: Iterable[Array], size: int, *, cirrus_seed: int, start_minutes: int) -> Iterator[Array]:
    """Yield a satellite image (11, S, S) of each thickness of high cloud that may rain (S, S), in 0..1.

    Arguments are those of `observe`; an image depends on its own clouds and its time alone.
    """
    skies = _skies(cirrus_seed, "sky", size, start_minutes // 15)
    ground = next(_skies(cirrus_seed, "ground", size, 0))[0]
    for number, cloud in enumerate(clouds):
        minutes = start_minutes + 15 * number
        rng = generator(cirrus_seed, "weather.noise", minutes)
        yield _channels(_tops(cloud), next(skies), ground, sunshine(minutes), rng)


def _tops(cloud: Array) -> Array:
    """Return the cover of cold tops (S, S) in 0..1: wider than the rain, and seen from the south."""
    spread = 0.6 * gaussian_filter(cloud, 0.8, mode="nearest") + 0.4 * maximum_filter(cloud, 3, mode="nearest")
    covered: Array = shift(1 - np.exp(-2.2 * spread), (-PARALLAX, 0), order=1, mode="nearest")
    return covered


def _skies(seed: int, what: str, size: int, start: int) -> Iterator[Array]:
    """Yield smooth fields (3, S, S) with mean 0 and variance 1, of cirrus, low cloud and humidity, from frame `start`.

    Each frame follows from the seed and its number alone: it blends two keyframes, drawn from their own random streams,
    that drift on their own wind. A keyframe begins at its frame and takes the place of the one before by the next.
    """
    rng = generator(seed, f"weather.{what}", size)
    speed = size / 60 * rng.uniform(0.2, 0.6, (3, 1, 1))
    angle = rng.uniform(0, 2 * np.pi, (3, 1, 1))
    y, x = wavenumbers(size)
    phase = -2 * np.pi * speed * (np.sin(angle) * y + np.cos(angle) * x)
    spectra = np.stack([amplitudes(size, size / 3, beta) for beta in (3.0, 2.8, 4.0)])

    def keyframe(number: int) -> Array:
        stream = generator(seed, f"weather.{what} keyframe", size, number)
        modes: Array = spectra * np.stack([noise(stream, size) for _ in range(3)])
        return modes

    frame, number = start, start // KEYFRAME + 1  # 0 stands before the first frame
    before, now = keyframe(number - 1), keyframe(number)
    while True:
        if frame // KEYFRAME >= number:
            number, before, now = number + 1, now, keyframe(number + 1)
        angle_between = np.pi / 2 * (frame / KEYFRAME - number + 1)
        modes = np.cos(angle_between) * before + np.sin(angle_between) * now
        yield to_grid((modes * np.exp(1j * phase * frame)).astype(np.complex64), size)
        frame += 1


def _channels(tops: Array, sky: Array, ground: Array, sun: float, rng: np.random.Generator) -> Array:
    """Return one image (11, S, S) of cold tops, other clouds (3, S, S), the ground (S, S) and the sun's cosine."""
    cirrus = 1 / (1 + np.exp(-2.5 * (sky[0] - 0.9)))
    low = 1 / (1 + np.exp(-4 * (sky[1] - 0.3)))
    thin = (1 - tops) * cirrus
    shown = (1 - tops) * (1 - 0.6 * cirrus) * low
    warm = (1 - tops) * (1 - cirrus) * (1 - low) * (sun + 0.3 * ground)
    bright = 1 - (1 - tops) * (1 - 0.35 * cirrus) * (1 - 0.7 * low)
    image = np.empty((len(CHANNELS), *tops.shape), np.float32)
    for names, blur in ((_SOLAR, 0.5), (_WINDOW, 0.6), (_VAPOUR, 1.0)):
        terms = (1 - bright, tops, thin, shown) if names is _SOLAR else (tops, thin, shown, sky[2], warm)
        weights = np.array([names[name][0][-len(terms) :] for name in names])
        mixed = gaussian_filter(np.tensordot(weights, np.stack(terms), 1), (0, blur, blur))
        for (name, (response, sigma)), values in zip(names.items(), mixed, strict=True):
            number, error = CHANNELS.index(name), sigma * rng.standard_normal(tops.shape)
            if names is _SOLAR:
                image[number] = sun * values + np.sqrt(sun) * error
            else:
                solar = 0.9 * sun * bright if name == "IR_039" else 0.0
                image[number] = MEAN[number] + STD[number] * (response[0] + values + solar + error)
    return np.clip(image, LOW[:, None, None], HIGH[:, None, None])
