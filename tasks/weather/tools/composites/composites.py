"""Real rain composites, one and a folder of them; `published` knows the layouts of their providers.

Rain rates are on pixels of about 2 km. Reflectivity becomes a rate by the file's relation, else the product's; an
accumulation by its own minutes. Pixels finer than the layout's are averaged, those of equal angle resampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyproj

from retable.platform.errors import UserError
from retable.tasks.weather.tools.composites import published
from retable.tasks.weather.tools.composites.opening import form_of
from retable.tasks.weather.tools.composites.published import PRODUCTS, SUFFIXES, Composite, Grid, Relation
from retable.tasks.weather.tools.composites.resample import PIXEL
from retable.tasks.weather.tools.composites.seviri import STEP, quarter


def describe(path: Path) -> Composite:
    """Read what a file says of itself, of pixels of about 2 km.

    Raises:
        UserError: where the file is truncated, foreign, or holds nothing that is rain.

    """
    described = published.describe(path)
    finer = max(1, round(PIXEL / described.grid.pixel)) if described.grid.pixel else 1
    height, width = described.grid.shape
    shape, pixel = (height // finer, width // finer), described.grid.pixel and described.grid.pixel * finer
    return replace(described, grid=replace(described.grid, shape=shape, pixel=pixel), finer=finer)


def candidates(source: Path) -> list[Path]:
    """Return the files below a folder that may be composites: by their content, or by their names."""
    files = (path for path in sorted(source.rglob("*")) if path.is_file())
    visible = (path for path in files if not any(part.startswith(".") for part in path.relative_to(source).parts))
    return [path for path in visible if path.name.lower().endswith(SUFFIXES) or form_of(path)]


def survey(source: Path, relation: Relation | None = None) -> tuple[list[Composite], list[str]]:
    """Return the composites below a folder in order of time, all of one kind and grid, and a line on each other file.

    `relation` replaces that of reflectivity.

    Raises:
        UserError: where there are none, none can be read, or a relation is given for other rain than reflectivity.

    """
    paths = candidates(source)
    if not paths:
        raise UserError(f"{source}: no composites ({', '.join(SUFFIXES)}); give a folder of them")
    composites, skipped = [], []
    for path in paths:
        try:
            described = describe(path)
            composites.append(replace(described, relation=described.relation and (relation or described.relation)))
        except UserError as error:
            skipped.append(str(error))
    if not composites:
        raise UserError(skipped[0])
    grids: list[Grid] = []
    kinds = [_kind(composite, grids) for composite in composites]
    counts = Counter(kinds)
    wanted = max(counts, key=lambda key: (counts[key], key[1] == "rate"))
    first = composites[kinds.index(wanted)]
    if relation and not first.relation:
        use = f"--zr {relation[0]:g},{relation[1]:g} turns reflectivity into rain"
        raise UserError(f"{source}: {use}, and these composites are {quantity_text(first)}; leave it out")
    kept: dict[datetime, Composite] = {}
    for composite, kind in zip(composites, kinds, strict=True):
        if kind != wanted:
            this, most = _kind_text(composite), _kind_text(first)
            if this == most:
                this, most = composite.grid.projdef, first.grid.projdef
            skipped.append(f"{composite.path}: {this}; most are {most}")
        elif composite.time in kept:
            skipped.append(f"{composite.path}: same time as {kept[composite.time].path.name}, {composite.time}")
        else:
            kept[composite.time] = composite
    return [kept[time] for time in sorted(kept)], skipped


def _kind(composite: Composite, grids: list[Grid]) -> tuple[Any, ...]:
    """Return what composites of one data set have in common; a grid that is none of `grids` is put there."""
    grid_index = next((number for number, grid in enumerate(grids) if _alike(composite.grid, grid)), len(grids))
    if grid_index == len(grids):
        grids.append(composite.grid)
    return composite.product, composite.quantity, grid_index, composite.minutes, composite.relation


def _alike(grid: Grid, other: Grid) -> bool:
    """Return whether two grids are one, to 100 m of their corner, as services round them anew."""
    numbers, others = ((compared.pixel, *(compared.corner or (None, None))) for compared in (grid, other))
    if grid.shape != other.shape or projection(grid.projdef) != projection(other.projdef):
        return False
    pairs = zip(numbers, others, (0.1, 100.0, 100.0), strict=True)
    return all(one == two or (None not in (one, two) and abs(one - two) <= near) for one, two, near in pairs)


@lru_cache(maxsize=64)
def projection(projdef: str) -> str:
    """Return a projection in the one form that all ways to write it have; as it is where PROJ does not understand."""
    try:
        return pyproj.CRS(projdef).to_wkt()
    except pyproj.exceptions.CRSError:
        return projdef


def _kind_text(composite: Composite) -> str:
    (height, width), corner = composite.grid.shape, composite.grid.corner
    where = "" if corner is None else f" from {corner[0]:.0f}, {corner[1]:.0f} m"
    return f"{PRODUCTS[composite.product].title}: {quantity_text(composite)}, {height} x {width} pixels{where}"


def quantity_text(composite: Composite) -> str:
    """Return a composite's quantity in words, with the interval or relation that converts it to rain rates."""
    if composite.relation:
        return f"{composite.quantity} (Z = {composite.relation[0]:g} R^{composite.relation[1]:g})"
    return f"{composite.quantity}{f' of {composite.minutes:g} minutes' if composite.minutes else ''}"


def stretches(
    composites: Sequence[Composite], shortest: int = 1, tolerance: timedelta = timedelta(0)
) -> tuple[list[list[Composite]], list[Composite]]:
    """Return the runs of 15-minute steps within a year, of `shortest` frames or more, and the composites in none.

    Steps need not begin at a full quarter of an hour: of the phases that do not, the one with most frames in runs is
    taken, the first of equals. With a `tolerance` each step is the composite nearest to a quarter of an hour, and its
    time is then the quarter's.
    """
    best: list[list[Composite]] = []
    for steps in phases(composites, tolerance):
        runs = [[steps[0]]]
        for before, after in pairwise(steps):
            if after.time - before.time == STEP and after.time.year == before.time.year:
                runs[-1].append(after)
            else:
                runs.append([after])
        best = max(best, [run for run in runs if len(run) >= shortest], key=lambda chosen: sum(map(len, chosen)))
    used = {composite.path for run in best for composite in run}
    return best, [composite for composite in composites if composite.path not in used]


def phases(composites: Sequence[Composite], tolerance: timedelta) -> Iterator[list[Composite]]:
    """Yield composites that may be steps of 15 minutes: those of one phase of the quarter, or nearest to quarters."""
    midnight = composites[0].time.replace(hour=0, minute=0, second=0, microsecond=0)
    if not tolerance:
        late = [(composite.time - midnight) % STEP for composite in composites]
        for phase in dict.fromkeys(late):
            yield [composite for composite, lateness in zip(composites, late, strict=True) if lateness == phase]
        return
    nearest: dict[datetime, Composite] = {}
    for composite in composites:
        time = quarter(composite.time)
        miss = abs(composite.time - time)
        if miss <= tolerance and (time not in nearest or miss < abs(nearest[time].time - time)):
            nearest[time] = composite
    if not nearest:
        raise UserError(f"no composite is within {tolerance.total_seconds() / 60:g} minutes of a quarter of an hour")
    yield [replace(nearest[time], time=time) for time in sorted(nearest)]
