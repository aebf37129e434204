"""Statistics of rain on maps: of real radar, and of the generator of data, whose parameters they fix.

Lengths of the generator grow with the size of its images, so a world of size S shows rain on pixels of 2 km x 252 / S:
real composites are averaged to about as much. With RETABLE_SHARED set, those in its `data/weather` are read as well.
`docs/tasks/weather_world.md` has the table.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SIZE, WORLDS, HOURS = 36, 4, 24
"""Of the generated maps: images' width in pixels, how many sequences, and how long each."""
PIXEL = 2.0 * 252 / SIZE
"""Kilometres across a pixel."""
RAIN = 0.2
"""mm/h from which on it rains."""
STEPS = {15: 1, 60: 4, 120: 8}
"""Minutes -> frames over which rain is carried."""
WET = 0.01
"""Share of rainy pixels below which a pair of maps is not looked at."""


def real(folder: Path) -> Array:
    """Return a folder's composites at about `PIXEL`, float32 (frames, rows, columns) in mm/h, NaN where unmeasured."""
    from retable.tasks.weather.tools.composites.composites import describe

    composites = sorted((describe(path) for path in folder.iterdir()), key=lambda frame: frame.time)
    blocks = round(PIXEL * 1000 / (composites[0].grid.pixel or 2000.0))
    return np.stack([coarse(composite.read(), blocks) for composite in composites])


def coarse(rate: Array, blocks: int) -> Array:
    """Average a map over blocks of pixels; those of which less than half was measured are NaN."""
    height, width = (side // blocks * blocks for side in rate.shape)
    cut = rate[:height, :width].reshape(height // blocks, blocks, width // blocks, blocks)
    seen = np.isfinite(cut) & (cut > -9e6) & (cut <= 128)
    total = np.where(seen, np.maximum(cut, 0), 0).sum((1, 3))
    count = seen.sum((1, 3))
    return np.where(2 * count >= blocks**2, total / np.maximum(count, 1), np.nan).astype(np.float32)


def generated(fraction: float, seed: int) -> Array:
    """Return a generated sequence of rain maps in which about this share of pixels is rainy."""
    from retable.tasks.weather.w4c.rainfall import Climate, simulate

    return np.stack([sky.rain for sky in simulate(Climate(fraction=fraction), size=SIZE, slots=4 * HOURS, seed=seed)])


def motion(before: Array, after: Array) -> Array:
    """Return the flow from one map to the next (rows, columns, 2), pixels to the right and down (OpenCV's DIS)."""
    import cv2

    rates = np.nan_to_num(np.stack([before, after]))
    pictures = np.clip(np.rint(60 * np.log1p(rates / 0.1)), 0, 255).astype(np.uint8)
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    return np.asarray(search.calc(*pictures, None))


def carry(wet: Array, flow: Array, steps: int) -> Array:
    """Move a mask with a steady flow."""
    from scipy.ndimage import map_coordinates

    rows, columns = np.indices(wet.shape, np.float32)
    coordinates = [rows - steps * flow[..., 1], columns - steps * flow[..., 0]]
    moved: Array = map_coordinates(wet.astype(np.float32), coordinates, order=1, mode="constant") >= 0.5
    return moved


def measure_maps(maps: Array) -> dict[str, float]:
    """Return what a sequence of maps, 15 minutes apart, is like; nothing of one that is dry all the time."""
    from scipy.ndimage import label

    wet = maps >= RAIN
    seen = np.isfinite(maps)
    speeds, changes, areas = [], [], []
    alive = born = 0
    overlap = {minutes: [0, 0, 0, 0] for minutes in STEPS}
    for number in range(len(maps) - 1):
        if wet[number].sum() < WET * seen[number].sum():
            continue
        flow = motion(maps[number], maps[number + 1])
        speeds.append(np.hypot(*np.moveaxis(flow, -1, 0))[wet[number]])
        for minutes, steps in STEPS.items():
            if number + steps < len(maps):
                later = wet[number + steps]
                for k, guess in enumerate((carry(wet[number], flow, steps), wet[number])):
                    overlap[minutes][2 * k] += int((guess & later).sum())
                    overlap[minutes][2 * k + 1] += int(((guess | later) & seen[number + steps]).sum())
        moved = carry(wet[number], flow, 1)
        marks, count = label(wet[number + 1], np.ones((3, 3)))
        alive += count
        touched = np.unique(marks[moved])
        born += count - int((touched > 0).sum())
        areas.append(np.bincount(marks.ravel())[1:])
        before, _ = label(moved, np.ones((3, 3)))
        changes += grown(before, marks)
    if not areas:
        return {}
    area, speed = np.concatenate(areas), np.concatenate(speeds)
    rates = maps[wet]
    return {
        "rainy pixels": float(wet.sum() / seen.sum()),
        "rainy pixels with 1 mm/h": float((rates >= 1).mean()),
        "rainy pixels with 5 mm/h": float((rates >= 5).mean()),
        "median area, pixels": float(np.median(area)),
        "rain in areas below 30 pixels": float(area[area < 30].sum() / area.sum()),
        "speed, pixels in 15 min": float(speed.mean()),
        "IoU when carried 15 min": overlap[15][0] / overlap[15][1],
        "IoU when carried 60 min": overlap[60][0] / overlap[60][1],
        "IoU when carried 120 min": overlap[120][0] / overlap[120][1],
        "IoU when left 60 min": overlap[60][2] / overlap[60][3],
        "lifetime of an area, h": alive / max(born, 1) / 4,
        "growth in 15 min, factor": float(np.exp(np.median(np.abs(changes)))),
    }


def grown(before: Array, after: Array) -> list[float]:
    """Return log ratios of area of areas of 4 pixels or more that meet one area of the next map, and it only them."""
    pairs = np.unique(np.stack([before, after], -1)[(before > 0) & (after > 0)], axis=0)
    sizes = [np.bincount(marks.ravel()) for marks in (before, after)]
    alone = [np.bincount(pairs[:, side], minlength=len(sizes[side])) == 1 for side in (0, 1)]
    return [
        float(np.log(sizes[1][new] / sizes[0][old]))
        for old, new in pairs
        if alone[0][old] and alone[1][new] and sizes[0][old] >= 4
    ]


def worlds(fraction: float) -> dict[str, float]:
    """Return the generator's statistics in a climate: means over `WORLDS` sequences."""
    maps = [measures for seed in range(WORLDS) if (measures := measure_maps(generated(fraction, seed)))]
    return {name: float(np.mean([measures[name] for measures in maps])) for name in maps[0]}


def table(columns: dict[str, dict[str, float]]) -> Sequence[str]:
    """Return the lines of a Markdown table."""
    names = list(next(iter(columns.values())))
    head = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    return [
        *head,
        *(f"| {name} | {' | '.join(f'{column[name]:.2f}' for column in columns.values())} |" for name in names),
    ]


def measure() -> dict[str, Any]:
    results: dict[str, dict[str, float]] = {}
    if shared := os.environ.get("RETABLE_SHARED"):
        for folder in sorted((Path(shared) / "data/weather").iterdir()):
            if folder.is_dir():
                results[folder.name] = measure_maps(real(folder))
    for name, fraction in [(name, measures["rainy pixels"]) for name, measures in results.items()] or [("", 0.08)]:
        results[f"generated, as wet as {name or 'a core region'}"] = worlds(fraction)
    print("\n".join(table(results)))
    return {f"{column}: {name}": value for column, measures in results.items() for name, value in measures.items()}
