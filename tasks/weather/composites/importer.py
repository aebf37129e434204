"""Make a data set of real rain composites, in the competition's layout, with real or simulated satellite images.

A file that is foreign or damaged, or of another kind than most, is left out with a line that says why. Composites that
come more often than the layout's quarters of an hour are taken at those alone.

Squares are cut out of the composites, each as wide as a satellite image of the competition (the context); the rain of
its central sixth is what is forecast. Real images do not come with composites: they are cut from a folder of SEVIRI's
scans where one is given (`seviri`), and else simulated from the rain of the whole square; the files say which.

An event lasts hours, a composite archive often no longer: splitting by time would test on the rain trained on. So a
square belongs to one split only, with all its frames; the competition splits by time instead, each region in all.
"""

from __future__ import annotations

import csv
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from retable.platform.errors import UserError, disk_errors
from retable.platform.train.seeds import generator, sequence
from retable.tasks.weather.composites import seviri
from retable.tasks.weather.composites.composites import PRODUCTS, SUFFIXES, Composite, describe
from retable.tasks.weather.composites.resample import PIXEL
from retable.tasks.weather.w4c import layout
from retable.tasks.weather.w4c.preprocess import CHANNELS, HIGHEST_RATE, MASKED, RAIN, classify
from retable.tasks.weather.w4c.satellite import BEFORE, SIMULATION, VERSION, observe

Array = npt.NDArray[Any]

STEP = timedelta(minutes=layout.STEP)
COVERED = 0.8
"""Share of a target's pixels that radar must see, over all frames of whole sequences."""
DRIEST = 0.001
"""Share of rainy pixels below which a target has nothing to learn from or to score."""
THRESHOLD = 0.2
"""Rain rate in mm/h from which on squares are compared by their rain, the competition's."""
CHUNK = 96
"""Frames of a region that are in memory at a time, a day's, besides those before them that their images show."""
FEWEST = 4
"""Regions needed for four splits."""
CUT_SPLITS = ("validation", "test", "heldout")


@dataclass(frozen=True)
class Place:
    """A square of 6 size x 6 size pixels, and what its target saw over all frames of whole sequences."""

    name: str
    row: int
    column: int
    """The upper left pixel of the square in the composite."""
    coverage: float
    """Share of the target's pixels with a measurement."""
    rain: float
    """Share of rainy pixels among those."""


def import_composites(
    source: Path,
    target: Path,
    *,
    size: int,
    regions: int = 12,
    inputs: int,
    forecast: int,
    seed: int = 0,
    tolerance: float = 0.0,
    satellite: Path | None = None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Cut a folder of rain composites into regions and write them below `target` in the competition's layout.

    Frames are the longest stretch of 15-minute steps within one year whose files can all be read. Training regions keep
    all of them; validation, test and heldout regions keep sequences of `inputs + forecast` frames that do not overlap.
    Equal arguments give equal files. `target` appears whole or not at all. In memory is one composite, or one day of
    one region.

    Args:
        source: a folder of composites in a layout of `published`.
        target: where to write; missing or empty.
        size: width of a satellite image and of a target, in their own pixels; a multiple of 12.
        regions: the most regions to cut, wet and dry ones; at least 4.
        inputs: satellite images that a forecast starts from.
        forecast: lead times forecast.
        seed: decides which regions go to which split, and the simulated cirrus.
        tolerance: minutes by which a composite may miss its quarter of an hour.
        satellite: a folder of SEVIRI's scans; composites without one, and squares that a scan does not show whole, are
            left out. None: images are simulated.
        progress: called now and then with the work so far and in all.

    Returns:
        What a data set must say of itself: product, quantity, date, start, year, frames, dropped (files not used),
        skipped (lines on files that could not be), regions (by split), coverage and rain (shares by region), grids (by
        region), pixel in metres, averaged (pixels across one), resampled (how, in words), and whether the images are
        simulated, and how, or what they are.

    Raises:
        UserError: where no file can be read, the frames are too few, the squares too large for the composites or fewer
            than four with radar and rain, or an argument is out of range; with `satellite`, where no scan goes with the
            composites, one is damaged behind its header, or the composites do not say where they lie.

    """
    _check(target, size, regions, inputs, forecast, seed)
    found, skipped = survey(source)
    allowed = timedelta(minutes=tolerance)
    scans, found, unseen = with_scans(satellite, found, allowed)
    composites, dropped, counts, damaged = count(source, found, size, inputs + forecast, allowed, progress)
    whole = len(composites) // (inputs + forecast) * (inputs + forecast)
    shown = _shown(scans, composites[0], size) if scans else None
    places = choose(source, composites[:whole], counts, size, regions, shown)
    splits = deal(places, seed)
    with disk_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".import-", dir=target.parent) as scratch:
            folder = Path(scratch) / "set"
            folder.mkdir()
            _write_csv(folder / layout.CSV, composites, inputs, forecast)
            seen = _scanned(Path(scratch) / "images.npy", composites, places, size, scans, progress) if scans else None
            for number, place in enumerate(places):
                images = _simulated(composites, place, seed) if seen is None else _observed(seen[:, number])
                _write_region(folder, composites, place, splits[place.name], size, (inputs, forecast), images)
                if not scans:
                    progress(len(composites) + len(composites) * (number + 1) // len(places), 2 * len(composites))
            folder.rename(target)
    about: dict[str, Any] = {"simulated_by": SIMULATION, "simulation": VERSION}
    if scans:
        about = {"satellite": seviri.ABOUT, "simulated_satellite": False}
    return _info(composites, dropped, places, splits, size) | about | {"skipped": skipped + unseen + damaged}


def _check(target: Path, size: int, regions: int, inputs: int, forecast: int, seed: int) -> None:
    """Refuse arguments out of range and a target that is there."""
    if size < 12 or size % 12 or regions < FEWEST or min(inputs, forecast) < 1 or seed < 0:
        given = f"size {size}, {regions} regions, {inputs} inputs, forecast {forecast}, seed {seed}"
        raise UserError(f"cannot import with {given}; size is a multiple of 12, regions {FEWEST} or more")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: exists already; remove it or choose another name")


def survey(source: Path) -> tuple[list[Composite], list[str]]:
    """Return the composites of a folder in order of time, all of one kind and grid, and a line on each other file.

    Raises:
        UserError: where there are none, or none can be read.

    """
    paths = sorted(path for path in source.glob("*") if path.name.lower().endswith(SUFFIXES))
    if not paths:
        raise UserError(f"{source}: no composites ({', '.join(SUFFIXES)}); give a folder of them")
    composites, skipped = [], []
    for path in paths:
        try:
            composites.append(describe(path))
        except UserError as error:
            skipped.append(str(error))
    if not composites:
        raise UserError(skipped[0])
    kinds = Counter(kind(composite) for composite in composites)
    wanted = max(kinds, key=lambda each: (kinds[each], each[1] == "rate"))
    first = next(composite for composite in composites if kind(composite) == wanted)
    kept: dict[datetime, Composite] = {}
    for composite in composites:
        if kind(composite) != wanted:
            skipped.append(f"{composite.path}: {_kind_text(composite)}; most are {_kind_text(first)}")
        elif composite.time in kept:
            skipped.append(f"{composite.path}: same time as {kept[composite.time].path.name}, {composite.time}")
        else:
            kept[composite.time] = composite
    return [kept[time] for time in sorted(kept)], skipped


def with_scans(
    satellite: Path | None, composites: Sequence[Composite], tolerance: timedelta
) -> tuple[dict[datetime, Path], list[Composite], list[str]]:
    """Return scans by their time, the composites that have one, and a line on each file that is left out for that.

    Raises:
        UserError: where there are no scans, none goes with a composite, or the composites do not say where they lie.
    """
    if satellite is None:
        return {}, list(composites), []
    grid = composites[0].grid
    if not (grid.projdef and grid.corner and grid.pixel):
        raise UserError(f"{composites[0].path}: does not say where its pixels lie, so no image can be cut out for it")
    scans, skipped = seviri.survey(satellite)
    seen = [composite for composite in composites if seviri.scan_of(scans, composite.time, tolerance)]
    if not seen:
        span = f"scans of {min(scans)} to {max(scans)}, composites of {composites[0].time} to {composites[-1].time}"
        raise UserError(f"{satellite}: {span}; give scans of the same quarters of an hour, or --tolerance MINUTES")
    if len(seen) < len(composites):
        skipped.append(f"{satellite}: no scan goes with {len(composites) - len(seen)} of {len(composites)} composites")
    return scans, seen, skipped


def kind(composite: Composite) -> tuple[Any, ...]:
    """Return what composites of one data set have in common."""
    return composite.product, composite.quantity, composite.grid


def _kind_text(composite: Composite) -> str:
    (height, width), corner = composite.grid.shape, composite.grid.corner
    place = "" if corner is None else f" from {corner[0]:.0f}, {corner[1]:.0f} m"
    return f"{PRODUCTS[composite.product]}: {composite.quantity}, {height} x {width} pixels{place}"


def stretch(composites: Sequence[Composite], tolerance: timedelta = timedelta(0)) -> tuple[list[Composite], list[str]]:
    """Return the longest run of 15-minute steps within a year (the first of equals) and the names of other files.

    Steps need not begin at a full quarter of an hour. With a `tolerance` they do, each is the composite nearest to it,
    and its time is then the quarter's.
    """
    best: list[Composite] = []
    for steps in phases(composites, tolerance):
        runs = [[steps[0]]]
        for before, after in pairwise(steps):
            if after.time - before.time == STEP and after.time.year == before.time.year:
                runs[-1].append(after)
            else:
                runs.append([after])
        best = max(best, *runs, key=len)
    used = {composite.path for composite in best}
    return best, [composite.path.name for composite in composites if composite.path not in used]


def phases(composites: Sequence[Composite], tolerance: timedelta) -> Iterator[list[Composite]]:
    """Yield composites that may be steps of 15 minutes: those of one phase of the quarter, or nearest to quarters."""
    midnight = composites[0].time.replace(hour=0, minute=0, second=0, microsecond=0)
    if not tolerance:
        late = [(composite.time - midnight) % STEP for composite in composites]
        for phase in dict.fromkeys(late):
            yield [composite for composite, own in zip(composites, late, strict=True) if own == phase]
        return
    nearest: dict[datetime, Composite] = {}
    for composite in composites:
        quarter = midnight + (composite.time - midnight + STEP / 2) // STEP * STEP
        miss = abs(composite.time - quarter)
        if miss <= tolerance and (quarter not in nearest or miss < abs(nearest[quarter].time - quarter)):
            nearest[quarter] = composite
    if not nearest:
        raise UserError(f"no composite is within {tolerance.total_seconds() / 60:g} minutes of a quarter of an hour")
    yield [replace(nearest[quarter], time=quarter) for quarter in sorted(nearest)]


@dataclass(frozen=True)
class Tiles:
    """The squares that tile a composite's middle."""

    down: int
    across: int
    top: int
    left: int
    size: int
    """Pixels across a target; a square is six times as wide."""

    @property
    def side(self) -> int:
        """Pixels across a square."""
        return 6 * self.size


@dataclass(frozen=True)
class Counts:
    """Pixels of the targets of all squares in one frame: how many radar saw and on how many it rained, (down, across).

    Of whole numbers, so that sums do not depend on their order.
    """

    seen: Array
    rainy: Array


def count(
    source: Path,
    found: Sequence[Composite],
    size: int,
    shortest: int,
    tolerance: timedelta,
    progress: Callable[[int, int], None],
) -> tuple[list[Composite], list[str], dict[Path, Counts], list[str]]:
    """Read the longest stretch; where files are damaged behind a good header, the longest stretch without them.

    Returns:
        The stretch, the names of files not used, what each frame shows, and a line on each damaged file.

    Raises:
        UserError: where the stretch has fewer than `shortest` frames, or fewer than four squares fit.

    """
    counts: dict[Path, Counts] = {}
    damaged: dict[Path, str] = {}
    while left := [composite for composite in found if composite.path not in damaged]:
        composites, dropped = stretch(left, tolerance)
        _check_length(source, composites, shortest, list(damaged.values()))
        tiles, before = tile(composites[0], size), len(damaged)
        for done, composite in enumerate(composites, 1):
            try:
                if composite.path not in counts:
                    counts[composite.path] = count_frame(composite, tiles)
            except UserError as error:
                damaged[composite.path] = str(error)
            progress(done, 2 * len(composites))
        if len(damaged) == before:
            return composites, dropped, counts, list(damaged.values())
    raise UserError(next(iter(damaged.values())))


def _check_length(source: Path, composites: Sequence[Composite], shortest: int, damaged: Sequence[str]) -> None:
    """Refuse a stretch that holds no sequence."""
    if len(composites) < shortest:
        longest = f"the longest stretch of 15-minute steps is {len(composites)} frames, from {composites[0].path.name}"
        remedy = "add files, lower the forecast or raise the tolerance"
        why = f"; {len(damaged)} files cannot be read: {damaged[0]}" if damaged else ""
        raise UserError(f"{source}: {longest}, but {shortest} are needed; {remedy}{why}")


def tile(composite: Composite, size: int) -> Tiles:
    """Return the squares that tile a composite's middle.

    Raises:
        UserError: where fewer than four fit.

    """
    (height, width), side = composite.grid.shape, 6 * size
    down, across = height // side, width // side
    if down * across < FEWEST:
        fits = [s for s in range(12, size, 12) if (height // (6 * s)) * (width // (6 * s)) >= FEWEST]
        remedy = f"the largest size that fits is {fits[-1]}" if fits else "no size fits"
        squares = f"{FEWEST} squares of {side} pixels do not fit into {height} x {width}"
        raise UserError(f"{composite.path}: {squares}; {remedy}")
    return Tiles(down, across, (height - down * side) // 2, (width - across * side) // 2, size)


def count_frame(composite: Composite, tiles: Tiles) -> Counts:
    """Read all squares of a composite, which is all that is read later, and count the pixels of their targets."""
    down, across, side = tiles.down, tiles.across, tiles.side
    centre = slice(5 * tiles.size // 2, 7 * tiles.size // 2)
    square = slice(tiles.top, tiles.top + down * side), slice(tiles.left, tiles.left + across * side)
    rate = composite.read(*square).reshape(down, side, across, side)
    events = classify(rate[:, centre, :, centre], THRESHOLD)
    return Counts((events != MASKED).sum(axis=(1, 3)), (events == RAIN).sum(axis=(1, 3)))


def choose(
    source: Path,
    composites: Sequence[Composite],
    counts: Mapping[Path, Counts],
    size: int,
    regions: int,
    shown: Array | None = None,
) -> list[Place]:
    """Return squares with radar and rain in their target, in order of place, row by row.

    The squares tile the composite's middle. `composites` are those that every split keeps, so that none is left without
    rain. Of more than `regions` those are taken whose ranks by rain are evenly spaced, the wettest and the driest among
    them: with the wettest alone, rain everywhere is the forecast to beat. `shown`, bool (down, across), are the squares
    that a satellite shows; None: all.

    Raises:
        UserError: where fewer than four squares have radar and rain, or are shown.

    """
    tiles = tile(composites[0], size)
    down, across, side = tiles.down, tiles.across, tiles.side
    seen = np.sum([counts[composite.path].seen for composite in composites], axis=0)
    rainy = np.sum([counts[composite.path].rainy for composite in composites], axis=0)
    coverage, rain = seen / (len(composites) * size**2), rainy / np.maximum(seen, 1)
    if shown is not None:
        coverage = np.where(shown, coverage, 0)
    places = []
    for i, (row, column) in enumerate(np.ndindex(down, across)):
        if coverage[row, column] > COVERED and rain[row, column] >= DRIEST:
            name, shares = f"{composites[0].product}_{i:03d}", (float(coverage[row, column]), float(rain[row, column]))
            places.append(Place(name, tiles.top + row * side, tiles.left + column * side, *shares))
    if len(places) < FEWEST:
        found = f"{len(places)} of {down * across} squares of {side} pixels have radar and rain in their middle"
        if shown is not None:
            found += f" and are shown whole by the satellite ({shown.sum()} are)"
        raise UserError(f"{source}: {found}, but {FEWEST} are needed; lower the size or give composites with more rain")
    ranked = sorted(places, key=lambda place: (-place.rain, place.row, place.column))
    ranks = np.linspace(0, len(ranked) - 1, min(regions, len(ranked))).round().astype(int)
    return sorted((ranked[rank] for rank in ranks), key=lambda place: (place.row, place.column))


def deal(places: Sequence[Place], seed: int) -> dict[str, str]:
    """Deal squares to splits: half to training, the rest to validation, test and heldout in turn, by name.

    The rest is spread evenly along a line that winds through the rows, so that no split keeps to a corner.
    """
    rows = sorted({place.row for place in places})
    line = sorted(places, key=lambda place: (place.row, place.column * (-1) ** rows.index(place.row)))
    first, rest = int(generator(seed, "weather.splits").integers(len(line))), max(len(CUT_SPLITS), len(line) // 2)
    splits = dict.fromkeys((place.name for place in places), "training")
    for k in range(rest):
        splits[line[(first + k * len(line) // rest) % len(line)].name] = CUT_SPLITS[k % len(CUT_SPLITS)]
    return splits


def _info(
    composites: Sequence[Composite], dropped: list[str], places: Sequence[Place], splits: Mapping[str, str], size: int
) -> dict[str, Any]:
    """Return what `import_composites` returns."""
    first = composites[0]
    return {
        "product": PRODUCTS[first.product],
        "quantity": first.quantity,
        "date": f"{first.time:%Y-%m-%d}",
        "start": f"{first.time:%Y-%m-%dT%H:%M:%SZ}",
        "year": first.time.year,
        "frames": len(composites),
        "dropped": dropped,
        "regions": {split: [place.name for place in places if splits[place.name] == split] for split in layout.SPLITS},
        "coverage": {place.name: place.coverage for place in places},
        "rain": {place.name: place.rain for place in places},
        "grids": {place.name: _grid(first, place, size) for place in places},
        "pixel": first.grid.pixel,
        "averaged": first.finer,
        "resampled": first.resampled,
        "simulated_satellite": True,
    }


def _grid(composite: Composite, place: Place, size: int) -> dict[str, Any]:
    """Return where a target lies: row and column in the composite and, where the file says it, in metres.

    `x0`, `y0` is the upper left corner of the upper left pixel, `step` a pixel's width; y falls with the row.
    """
    row, column, grid = place.row + 5 * size // 2, place.column + 5 * size // 2, composite.grid
    found: dict[str, Any] = {"row": row, "column": column}
    if grid.pixel is not None:
        found["step"] = grid.pixel
        if grid.pixel != PIXEL:
            found["note"] = f"pixels are {grid.pixel:.0f} m wide, not the {PIXEL:.0f} m that the layout is made for"
        if grid.corner is not None:
            x, y = grid.corner
            found |= {"projdef": grid.projdef, "x0": x + column * grid.pixel, "y0": y - row * grid.pixel}
    return found


def _write_region(
    folder: Path,
    composites: Sequence[Composite],
    place: Place,
    split: str,
    size: int,
    lengths: tuple[int, int],
    images: Images,
) -> None:
    """Write a region's two files, with the frames that belong to its split, some frames at a time."""
    kept, year = slots(len(composites), split, *lengths), composites[0].time.year
    rows = np.array([frame for frame, _ in kept])
    seen = np.array([frame for frame, kind in kept if not (split in ("test", "heldout") and kind.endswith("_target"))])
    about = {"product": PRODUCTS[composites[0].product], "region": place.name, "split": split}
    about |= _grid(composites[0], place, size)
    names = np.array([composite.path.name.encode() for composite in composites])
    image_path = folder / layout.satellite_path(year, place.name, split)
    rain_path = folder / layout.rain_path(year, place.name, split)
    with (
        _written(image_path, layout.SATELLITE, (11, size, size), names[seen], about | dict(images.about)) as pictures,
        _written(rain_path, layout.RAIN, (1, size, size), names[rows], about | {"simulated": False}) as rates,
    ):
        for first in range(0, len(composites), CHUNK):
            nearby, squares = _squares(composites, first, place, size)
            inside = slice(min(first, BEFORE), min(first, BEFORE) + len(composites[first : first + CHUNK]))
            centre = slice(5 * size // 2, 7 * size // 2)
            targets = squares[inside, centre, centre].copy()
            views = images.of(first, nearby, squares)[inside]
            for data, frames, part in ((rates, rows, targets[:, None]), (pictures, seen, views)):
                low, high = np.searchsorted(frames, [first, first + CHUNK])
                data[low:high] = part[frames[low:high] - first]


def _squares(composites: Sequence[Composite], first: int, place: Place, size: int) -> tuple[Sequence[Composite], Array]:
    """Return the frames from `first` on, at most `CHUNK`, with those before them, and their rates (n, 6S, 6S)."""
    low, last = max(0, first - BEFORE), min(len(composites), first + CHUNK)
    nearby = composites[low:last]
    square = slice(place.row, place.row + 6 * size), slice(place.column, place.column + 6 * size)
    return nearby, np.stack([composite.read(*square) for composite in nearby])


@dataclass(frozen=True)
class Images:
    """Where a region's satellite images come from."""

    of: Callable[[int, Sequence[Composite], Array], Array]
    """Gives, of the first frame's number, frames with those before them, and the rates of their whole squares
    (n, 6S, 6S), the images (n, 11, S, S)."""
    about: Mapping[str, Any]
    """What the file says of them."""


def _points(composite: Composite, corners: Sequence[tuple[int, int]], size: int) -> list[seviri.Points]:
    """Return where squares are looked up, of the rows and columns of their upper left pixels."""
    grid = composite.grid
    assert grid.corner and grid.pixel
    (x, y), pixel = grid.corner, grid.pixel
    return [seviri.points(grid.projdef, (x + column * pixel, y - row * pixel), pixel, size) for row, column in corners]


def _shown(scans: Mapping[datetime, Path], composite: Composite, size: int) -> Array:
    """Say of each square that tiles a composite whether the scans, all of one part of the disk, show it: bool."""
    tiles = tile(composite, size)
    squares = np.ndindex(tiles.down, tiles.across)
    corners = [(tiles.top + row * tiles.side, tiles.left + column * tiles.side) for row, column in squares]
    found = seviri.sees(min(scans.values()), _points(composite, corners, size))
    return np.array(found, bool).reshape(tiles.down, tiles.across)


def _scanned(
    path: Path,
    composites: Sequence[Composite],
    places: Sequence[Place],
    size: int,
    scans: Mapping[datetime, Path],
    progress: Callable[[int, int], None],
) -> Array:
    """Return all squares' images of SEVIRI's scans, (frames, places, 11, S, S), in a file: each scan is read once."""
    where = _points(composites[0], [(place.row, place.column) for place in places], size)
    shape = (len(composites), len(places), len(CHANNELS), size, size)
    images: Array = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for number, composite in enumerate(composites):
        images[number] = seviri.read(scans[seviri.quarter(composite.time)], where)
        progress(len(composites) + number + 1, 2 * len(composites))
    return images


def _observed(seen: Array) -> Images:
    """Return a region's images as a satellite saw them, (frames, 11, S, S)."""

    def of(first: int, nearby: Sequence[Composite], _: Array) -> Array:
        low = max(0, first - BEFORE)
        return seen[low : low + len(nearby)]

    return Images(of, {"simulated": False, "satellite": seviri.ABOUT})


def _simulated(composites: Sequence[Composite], place: Place, seed: int) -> Images:
    """Return images that are simulated from the rain of the whole square."""
    cirrus = int(sequence(seed, "weather.satellite", place.row, place.column).generate_state(1)[0])
    midnight = composites[0].time.replace(hour=0, minute=0)

    def of(_: int, nearby: Sequence[Composite], rates: Array) -> Array:
        rates = np.where((rates < 0) | (rates > HIGHEST_RATE), 0, rates)  # what nobody measured shows no cloud
        start = nearby[0].time - midnight  # clouds go on past midnight
        return observe(rates, cirrus_seed=cirrus, start_minutes=int(start.total_seconds()) // 60)

    return Images(of, {"simulated": True, "simulated_by": SIMULATION, "cirrus_seed": cirrus})


@contextmanager
def _written(
    path: Path, key: str, shape: tuple[int, ...], sources: Array, attributes: Mapping[str, Any]
) -> Iterator[h5py.Dataset]:
    """Make one file of the layout, a chunk for each frame; `sources` names the composite behind each row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", libver="latest") as file:  # its indices have checksums too
        file["sources"] = sources
        file.attrs.update(attributes)
        yield file.create_dataset(key, (len(sources), *shape), np.float32, chunks=(1, *shape), fletcher32=True)


def slots(frames: int, split: str, inputs: int, forecast: int) -> list[tuple[int, str]]:
    """Return a split's frames, 0 to `frames - 1`, each with its `split_type` in the CSV.

    Training has all; the others have as many sequences of inputs and targets as fit one after another.
    """
    if split == "training":
        return [(frame, "-") for frame in range(frames)]
    length = inputs + forecast
    kinds = [f"{split}_in"] * inputs + [f"{split}_target"] * forecast
    return [(frame, kinds[frame % length]) for frame in range(frames // length * length)]


def _write_csv(path: Path, composites: Sequence[Composite], inputs: int, forecast: int) -> None:
    """Write the CSV; unlike in the competition's, a slot stands there once for each split, as splits are places."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(layout.COLUMNS)
        for split in layout.SPLITS:
            for frame, kind in slots(len(composites), split, inputs, forecast):
                time = composites[frame].time
                # Accumulated rain and reflectivity are not there; readers ask for `all_vars`, the layout's two.
                there = (1, 0, 0, 1, 1)
                table.writerow((f"{time:%H%M%S}", f"{time:%Y%m%d}", f"{time:%Y-%m-%d}", *there, split, kind))
