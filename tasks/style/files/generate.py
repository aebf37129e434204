"""Landscapes made up by rule: sky, clouds, ridges, water or fields, trees and light, drawn from random numbers.

They stand in for photographs where none can be downloaded: they have smooth and rough regions, edges, reflections and
varied colours, but nothing man-made and no faces. Pixels follow from the seed alone; encoded bytes may also depend on
the versions of OpenCV and FFmpeg.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import av
import cv2
import numpy as np
from jaxtyping import Float32, UInt8

from retable.platform.train.seeds import pick

Colour = tuple[float, float, float]
Canvas = Float32[np.ndarray, "height width 3"]
Plane = Float32[np.ndarray, "height width"]

VERSION = 1
"""Raised when the generator's pixels change."""
SHAPES = ((300, 400), (400, 300), (280, 420))
"""Heights and widths of pictures."""
FRAMES, RATE, CLIP_SHAPE = 72, 24, (180, 320)
PAN = (48, 2)
"""The clip's first frame that moves, and by how many pixels each does."""


@dataclass(frozen=True, kw_only=True)
class Light:
    """The colours of a time of day, red, green and blue in [0, 1]."""

    zenith: Colour
    horizon: Colour
    sun: Colour
    cloud: Colour
    """The shaded side of clouds."""
    height: float
    """Of the sun, as a share of the sky."""
    shine: float
    """Light that ground and ridges reflect."""


LIGHTS = (
    Light(
        zenith=(0.16, 0.36, 0.72),
        horizon=(0.70, 0.82, 0.93),
        sun=(1.0, 0.97, 0.88),
        cloud=(0.66, 0.70, 0.78),
        height=0.8,
        shine=1.0,
    ),
    Light(
        zenith=(0.23, 0.30, 0.55),
        horizon=(0.98, 0.66, 0.38),
        sun=(1.0, 0.78, 0.42),
        cloud=(0.55, 0.40, 0.48),
        height=0.12,
        shine=0.7,
    ),
    Light(
        zenith=(0.36, 0.42, 0.66),
        horizon=(0.97, 0.80, 0.72),
        sun=(1.0, 0.90, 0.75),
        cloud=(0.68, 0.62, 0.70),
        height=0.3,
        shine=0.8,
    ),
    Light(
        zenith=(0.52, 0.57, 0.62),
        horizon=(0.80, 0.82, 0.83),
        sun=(0.92, 0.93, 0.94),
        cloud=(0.45, 0.48, 0.52),
        height=0.6,
        shine=0.75,
    ),
    Light(
        zenith=(0.05, 0.07, 0.20),
        horizon=(0.36, 0.30, 0.45),
        sun=(0.95, 0.93, 0.84),
        cloud=(0.14, 0.15, 0.26),
        height=0.6,
        shine=0.3,
    ),
)
"""Noon, sunset, morning, overcast, night."""
GROUNDS: tuple[Colour, ...] = (
    (0.24, 0.38, 0.14),
    (0.55, 0.47, 0.20),
    (0.42, 0.30, 0.18),
    (0.80, 0.82, 0.86),
    (0.35, 0.45, 0.22),
)
ROCKS: tuple[Colour, ...] = ((0.30, 0.30, 0.34), (0.36, 0.28, 0.24), (0.20, 0.30, 0.22), (0.40, 0.38, 0.34))


def landscape(seed: int, split: int, number: int) -> UInt8[np.ndarray, "height width 3"]:
    """Return a picture: a function of seed, split (0 training, 1 test) and number, no two of which share numbers."""
    rng = np.random.default_rng([seed, VERSION, split, number])  # splits are 0 and 1, the clip's is 2: none are equal
    return draw(rng, *pick(SHAPES, rng))


def draw(rng: np.random.Generator, height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
    """Draw a landscape from far to near."""
    light = LIGHTS[int(rng.choice(len(LIGHTS), p=(0.35, 0.2, 0.2, 0.15, 0.1)))]
    horizon = round(height * rng.uniform(0.4, 0.68))
    sun = width * rng.uniform(0.1, 0.9)
    canvas = np.zeros((height, width, 3), np.float32)
    canvas[:horizon] = sky(rng, light, (horizon, width), height, sun)
    ridges(rng, light, canvas[:horizon])
    ground = colour(rng, pick(GROUNDS, rng))
    soil = horizon  # the row from which on there is ground
    if rng.random() < 0.5:
        water(rng, light, canvas, horizon, sun)
        soil = round(height * rng.uniform(0.78, 0.92)) if rng.random() < 0.7 else height
    if soil < height:
        field(rng, light, canvas[soil:], ground, shore=soil > horizon)
        plant(rng, light, canvas, soil)
    canvas += rng.standard_normal(canvas.shape[:2], np.float32)[..., None] * 0.008  # grain
    return np.rint(np.clip(canvas, 0, 1) * 255).astype(np.uint8)


def rgb(of: Colour) -> Float32[np.ndarray, " 3"]:
    """Return a colour as an array."""
    return np.array(of, np.float32)


def colour(rng: np.random.Generator, around: Colour, spread: float = 0.06) -> Float32[np.ndarray, " 3"]:
    """Return a colour near another."""
    drawn: Float32[np.ndarray, " 3"] = rgb(around) + np.float32(spread) * rng.standard_normal(3, np.float32)
    return drawn


def blend(canvas: Canvas, paint: Canvas | Float32[np.ndarray, " 3"], cover: Plane) -> None:
    """Paint over a canvas, in place, where `cover` is not 0."""
    canvas += cover[..., None] * (paint - canvas)


def fractal(rng: np.random.Generator, height: int, width: int, cells: tuple[float, float], octaves: int = 5) -> Plane:
    """Return fractal noise with mean 0.5, mostly within [0, 1]: octaves of random grids, interpolated.

    Args:
        rng: draws the grids.
        height: of the result.
        width: of the result.
        cells: of the coarsest grid, down and across; each octave has twice as many, at half the strength.
        octaves: at most; grids finer than the pixels are left out.

    """
    total, strength, weights = np.zeros((height, width), np.float32), 1.0, 0.0
    for octave in range(octaves):
        down, across = (max(round(cell * 2**octave), 1) + 2 for cell in cells)
        if octave and across > width:
            break
        grid = rng.random((min(down, height), across), np.float32)
        total += strength * cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
        weights += strength
        strength /= 2
    noise: Plane = np.clip(0.5 + 1.5 * (total / weights - 0.5), 0, 1)
    return noise


def sky(rng: np.random.Generator, light: Light, shape: tuple[int, int], height: int, sun: float) -> Canvas:
    """Return the sky: a gradient, the sun or moon with its glow, clouds in perspective.

    Args:
        rng: draws what varies.
        light: the time of day.
        shape: rows down to the horizon, and width.
        height: of the whole picture.
        sun: its column.

    """
    (horizon, width), bright = shape, rgb(light.sun)
    y, x = np.mgrid[:horizon, :width].astype(np.float32)
    depth = (y / horizon)[..., None] ** rng.uniform(0.8, 1.6)
    canvas: Canvas = (1 - depth) * colour(rng, light.zenith, 0.04) + depth * colour(rng, light.horizon, 0.03)
    distance = cv2.magnitude(x - sun, y - horizon * (1 - light.height)) / height
    canvas += 0.45 * np.exp(-distance * rng.uniform(4, 9))[..., None] * bright
    blend(canvas, bright, np.clip((rng.uniform(0.02, 0.045) - distance) * height, 0, 1))
    texture = fractal(rng, 256, 256, (5, 5), 6)
    nearness = 40 / (horizon - y + 40 * rng.uniform(0.35, 0.8))  # clouds lie on a plane overhead
    across, down = 128 + (x - width / 2) * nearness * 0.8, 150 * nearness
    noise = cv2.remap(texture, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    thin = np.clip(1.6 - 1.4 * noise, 0, 1)[..., None]  # the middle of a cloud is thick and dark
    cloud = thin * np.minimum(bright * light.shine + 0.1, 1) + (1 - thin) * rgb(light.cloud)
    blend(canvas, cloud, 0.92 * np.clip((noise - rng.uniform(0.35, 0.75)) * rng.uniform(3, 8), 0, 1))
    return canvas


def ridges(rng: np.random.Generator, light: Light, canvas: Canvas) -> None:
    """Draw up to four ridges that end at the canvas' lower edge, the far ones hazy, some tall ones with snow."""
    horizon, width = canvas.shape[:2]
    rock, count = colour(rng, pick(ROCKS, rng)), int(rng.integers(1, 5))
    tall, snowy = horizon * rng.uniform(0.15, 0.8), rng.random() < 0.5
    for layer in range(count):
        near = (layer + 1) / count
        profile = fractal(rng, 1, width, (1, rng.uniform(1.5, 5)), 7)[0]
        if rng.random() < 0.4:
            profile = 1 - 2 * np.abs(profile - 0.5)  # sharp crests
        rise = tall * (1 - 0.7 * layer / count)
        crest = horizon - rise * (0.1 + 0.9 * profile)
        top = max(int(crest.min()) - 1, 0)
        rows = np.arange(top, horizon, dtype=np.float32)[:, None]
        texture = fractal(rng, horizon - top, width, (4, 12), 5)
        lit = cv2.GaussianBlur(cv2.Sobel(texture, cv2.CV_32F, 1, 0, ksize=3), (0, 0), 1)
        shade = np.clip(0.75 + 3 * lit + 0.6 * (texture - 0.5), 0.2, 1.4)[..., None] * light.shine
        stone = rock * (1 - 0.25 * near) * shade
        if snowy and rise > 0.3 * horizon:
            blend(stone, 0.9 * shade, np.clip((crest + rise * 0.6 * texture * profile - rows) / 3, 0, 1))
        stone += 0.75 * (1 - near) * (rgb(light.horizon) * (0.5 + 0.5 * light.shine) - stone)
        blend(canvas[top:], stone, np.clip(rows - crest, 0, 1))


def water(rng: np.random.Generator, light: Light, canvas: Canvas, horizon: int, sun: float) -> None:
    """Draw water below the horizon: what stands above it, mirrored and rippled, and the sun's glitter."""
    height, width = canvas.shape[:2]
    y, x = np.mgrid[horizon:height, :width].astype(np.float32)
    depth = (y - horizon) / (height - horizon)
    ripples = fractal(rng, height - horizon, width, (14, 3), 4) - 0.5
    squeeze = min(horizon / (height - horizon), 1)
    across = x + ripples * 14 * depth * rng.uniform(0.3, 1)
    down = horizon - 1 - (y - horizon) * squeeze + ripples * 40 * depth * rng.uniform(0.2, 1)
    mirrored = cv2.remap(canvas[:horizon], across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    deep = colour(rng, (0.06, 0.20, 0.28), 0.04) * (0.3 + 0.7 * light.shine)
    blend(mirrored, deep, 0.15 + 0.5 * depth)
    glitter = np.exp(-(((x - sun) / (width * (0.04 + 0.12 * depth))) ** 2)) * np.clip(ripples * 8 - 1.2, 0, 1)
    canvas[horizon:] = mirrored + 0.6 * glitter[..., None] * rgb(light.sun)


def field(
    rng: np.random.Generator, light: Light, canvas: Canvas, ground: Float32[np.ndarray, " 3"], *, shore: bool
) -> None:
    """Cover a canvas with ground: grain that grows towards the viewer, furrows, flowers; a shore has bays."""
    height, width = canvas.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    near = (y + 1) / (height + 1)
    scale = 30 / (near * 60 + 6)
    texture = fractal(rng, 256, 256, (24, 24), 4)
    across, down = 128 + (x - width / 2) * scale, 240 * scale
    grain = cv2.remap(texture, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    patches = fractal(rng, height, width, (8, 3), 3)
    shade = (0.65 + 0.7 * (grain - 0.5) + 0.5 * (patches - 0.5)) * (0.8 + 0.3 * near)
    if not shore and rng.random() < 0.4:
        shade *= 1 + 0.25 * np.sin((x - width * rng.uniform(0, 1)) / (near + 0.05) * rng.uniform(0.05, 0.15))  # furrows
    soil = ground * shade[..., None] * 1.4 * light.shine
    if rng.random() < 0.35:
        bloom = (rng.random((height, width), np.float32) < 0.03 * near) & (patches > 0.5)
        petals = cv2.dilate(bloom.astype(np.float32), np.ones((2, 2), np.uint8))
        blend(soil, colour(rng, (0.85, 0.35, 0.35), 0.3) * light.shine, petals)
    blend(soil, rgb(light.horizon) * light.shine, 0.5 * (1 - near) ** 4)
    bays = fractal(rng, 1, width, (1, 2), 5)[0] * height * 0.9 if shore else np.zeros(width, np.float32)
    blend(canvas, soil, np.clip(y + 1 - bays, 0, 1))


def plant(rng: np.random.Generator, light: Light, canvas: Canvas, soil: int) -> None:
    """Draw no, few or many trees that stand below row `soil`, from far to near, the taller the nearer."""
    height, width = canvas.shape[:2]
    for near in np.sort(rng.beta(1, 2.5, int(rng.choice((0, 6, 25))))).tolist():
        foot = height - (1 - near) * (height - soil) * (0.9 if soil > height * 0.7 else 1)
        tall = max((0.06 + 0.5 * (foot / height - 0.4)) * height * rng.uniform(0.7, 1.2), 6)
        tree(rng, light, canvas, (foot, rng.uniform(0, width)), tall, near)


def tree(
    rng: np.random.Generator, light: Light, canvas: Canvas, position: tuple[float, float], tall: float, near: float
) -> None:
    """Draw a conifer or a leafy tree whose foot stands at a row and column."""
    (foot, middle), (height, width) = position, canvas.shape[:2]
    top, bottom = max(round(foot - tall), 0), min(round(foot) + 1, height)
    left, right = max(round(middle - tall / 2), 0), min(round(middle + tall / 2) + 1, width)
    y, x = np.mgrid[top:bottom, left:right].astype(np.float32)
    up, across = (foot - y) / tall, np.abs(x - middle) / tall  # 0 at the foot, 1 at the top
    rough = fractal(rng, bottom - top, right - left, (7, 7), 3)
    if rng.random() < 0.5:
        boughs = 0.55 + 0.9 * (up * rng.integers(6, 11) % 1)
        crown = (0.24 * (1.03 - up) * boughs + 0.12 * (rough - 0.5) - across) * (up > 0.1)
    else:
        crown = 0.1 * (rough - 0.42) + 0.28 - cv2.magnitude(across, (up - 0.64) * 0.85)
    cover = np.clip(np.maximum(crown, (0.02 - across) * (up < 0.6)) * tall, 0, 1)
    leaves = colour(rng, (0.12, 0.24, 0.09), 0.04) * (0.5 + 1.1 * rough * (0.5 + 0.5 * up))[..., None]
    leaves += 0.3 * (1 - near) ** 3 * (rgb(light.horizon) - leaves)
    blend(canvas[top:bottom, left:right], leaves * light.shine, cover)


def frames(seed: int) -> Iterator[UInt8[np.ndarray, "180 320 3"]]:
    """Yield the frames of the clip: a still landscape with two balloons and a bird; the camera pans at the end."""
    rng = np.random.default_rng([seed, VERSION, 2])
    height, width = CLIP_SHAPE
    start, step = PAN
    scene = draw(rng, height, width + step * (FRAMES - start)).astype(np.float32)
    y, x = np.mgrid[:height, : scene.shape[1]].astype(np.float32)
    movers = [  # row, column, pixels a frame down and across, radius, colour
        (60.0, 40.0, -0.25, 1.5, 16.0, (214, 60, 48)),
        (110.0, 250.0, -0.6, -0.9, 11.0, (240, 200, 60)),
        (35.0, 300.0, 0.2, -3.0, 4.0, (25, 25, 30)),
    ]
    for frame in range(FRAMES):
        canvas = scene.copy()
        for row, column, down, across, radius, paint in movers:
            middle = (row + down * frame, column + across * frame)
            part = tuple(slice(max(int(at - radius), 0), max(int(at + radius) + 2, 0)) for at in middle)
            distance = cv2.magnitude(y[part] - row - down * frame, x[part] - column - across * frame)
            cover = np.clip(radius - distance, 0, 1)
            shade = (1.15 - 0.4 * distance / radius)[..., None]
            blend(canvas[part], np.clip(np.array(paint, np.float32) * shade, 0, 255), cover)
        left = step * max(frame - start + 1, 0)
        yield np.rint(canvas[:, left : left + width]).astype(np.uint8)


def clip(seed: int) -> bytes:
    """Return the clip as an MP4 file: 72 frames of 320 x 180 in H.264 at 24 a second, and a tone in AAC."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=RATE, options={"crf": "18", "threads": "1"})
        video.height, video.width = CLIP_SHAPE
        video.pix_fmt = "yuv420p"
        sound = container.add_stream("aac", rate=44100, layout="mono")
        for pixels in frames(seed):
            container.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(video.encode())
        time = np.arange(44100 * FRAMES // RATE) / 44100
        tone = 0.2 * np.sin(2 * np.pi * 220 * time) * np.minimum(1, 4 * np.minimum(time, time[-1] - time))
        samples = av.AudioFrame.from_ndarray(tone.astype(np.float32)[None], format="fltp", layout="mono")
        samples.sample_rate = 44100
        container.mux(sound.encode(samples))
        container.mux(sound.encode())
    return sink.getvalue()
