"""Make a data set of real rain composites, in the competition's layout, with real or simulated satellite images.

A file that is foreign or damaged, or of another kind than most, is left out with a line that says why. Composites that
come more often than the layout's quarters of an hour are taken at those alone, and of an archive with gaps all
stretches that hold a sequence.

Squares are cut out of the composites, each as wide as a satellite image of the competition (the context); the rain of
its central sixth is what is forecast. Real images do not come with composites: they are cut from a folder of SEVIRI's
scans where one is given (`seviri`), and else simulated from the rain of the whole square; the files say which.

`splits` says which square and which frames belong to which split. Every file is read twice: to count where it rains,
and to cut all squares out of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from retable.platform.errors import UserError, disk_errors
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import Storage
from retable.platform.train.seeds import sequence
from retable.tasks.weather.tools.composites import seviri
from retable.tasks.weather.tools.composites.composites import stretches, survey
from retable.tasks.weather.tools.composites.published import PRODUCTS, Composite, Relation
from retable.tasks.weather.tools.composites.resample import NEAR, PIXEL
from retable.tasks.weather.tools.composites.splits import FEWEST, Cut, Place, cut, slots
from retable.tasks.weather.w4c import layout
from retable.tasks.weather.w4c.layout import SIMULATION, VERSION
from retable.tasks.weather.w4c.prepare import index_folder
from retable.tasks.weather.w4c.preprocess import CHANNELS, HIGHEST_RATE, MASKED, RAIN, classify
from retable.tasks.weather.w4c.satellite import BEFORE, observe

COVERED = 0.8
"""Share of a target's pixels that radar must see, over all frames of whole sequences."""
DRIEST = 0.001
"""Share of rainy pixels below which a target has nothing to learn from or to score."""
THRESHOLD = 0.2
"""Rain rate in mm/h from which on squares are compared by their rain, the competition's."""
CHUNK = 96
"""Most frames that are in memory at a time, a day's, besides those before them that their images show."""
MEMORY = 1 << 28
"""Bytes that the squares of these frames take, about."""


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
    relation: Relation | None = None,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Cut a folder of rain composites into regions: a data set in the competition's layout, named as `target` is.

    Frames are all stretches of 15-minute steps that hold a sequence of `inputs + forecast` frames. Training keeps all
    of them; validation, test and heldout keep sequences that do not overlap. Equal arguments give equal files. `target`
    appears whole or not at all. In memory are a composite and the squares of a day, or of fewer frames.

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
        relation: a and b of Z = a R^b; None: the file's own, else the product's.
        progress: called now and then with the work so far and in all.

    Returns:
        What `dataset.json` holds: what `index_folder` finds, and product, quantity, minutes (of an accumulation),
        relation, date, start, year, frames, stretches, dropped (files not used), skipped (lines on files that could not
        be), splits (regions by split), split_by, size, smaller (a size that splits by place where this one does not, or
        0), coverage and rain_by_region (shares), grids (by region), pixel in metres, averaged (pixels across one),
        resampled (how, in words), and whether the images are simulated, and how, or what they are.

    Raises:
        UserError: where no file can be read, the frames are too few, the squares too large for the composites or none
            with radar and rain, or an argument is out of range; with `satellite`, where no scan goes with the
            composites, one is damaged behind its header, or the composites do not say where they lie.

    """
    _check(target, size, regions, inputs, forecast, seed)
    surveyed, skipped = survey(source, relation)
    allowed = timedelta(minutes=tolerance)
    scans, surveyed, unseen = with_scans(satellite, surveyed, allowed)
    runs, dropped, counts, damaged = count(source, surveyed, size, inputs + forecast, allowed, progress)
    composites, ranges = [composite for run in runs for composite in run], numbered(runs)
    shown = _shown(scans, composites[0], size) if scans else None
    every = {frame for frame, _ in slots(ranges, "test", inputs, forecast)}  # frames that no split is without
    places = choose(source, [composites[frame] for frame in sorted(every)], counts, size, regions, shown)
    chosen = cut(places, ranges, inputs, forecast, seed)
    archive = Archive(source, composites, ranges, chosen, size)
    about: dict[str, Any] = {"simulated_by": SIMULATION, "simulation": VERSION}
    if scans:
        about = {"satellite": seviri.ABOUT, "simulated_satellite": False}
    unused = [_name(source, composite) for composite in dropped]
    about = _info(archive) | about | {"dropped": unused, "skipped": skipped + unseen + damaged}
    with disk_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".import-", dir=target.parent) as scratch:
            made = _write_set(Path(scratch), archive, scans, seed, progress)
            info = index_folder(Storage.open(made), target.name, "imported", **about)
            made.rename(target)
    return info


@dataclass(frozen=True)
class Archive:
    """Archive to import: the frames, and the places cut out of them."""

    source: Path
    composites: Sequence[Composite]
    """All that are used, in order of time."""
    runs: Sequence[range]
    """The frames of each stretch without a gap."""
    cut: Cut
    size: int
    """Pixels across a target; a square is six times as wide."""


def numbered(runs: Sequence[Sequence[Composite]]) -> list[range]:
    """Return the numbers of the frames of each run, counted through all."""
    ends = np.cumsum([len(run) for run in runs]).tolist()
    return [range(end - len(run), end) for run, end in zip(runs, ends, strict=True)]


def _name(source: Path, composite: Composite) -> str:
    return composite.path.relative_to(source).as_posix()


def _check(target: Path, size: int, regions: int, inputs: int, forecast: int, seed: int) -> None:
    """Refuse arguments out of range and a target that is there."""
    if size < 12 or size % 12 or regions < FEWEST or min(inputs, forecast) < 1 or seed < 0:
        given = f"size {size}, {regions} regions, {inputs} inputs, forecast {forecast}, seed {seed}"
        raise UserError(f"cannot import with {given}; size is a multiple of 12, regions {FEWEST} or more")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: exists already; remove it or choose another name")


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


def count(
    source: Path,
    surveyed: Sequence[Composite],
    size: int,
    shortest: int,
    tolerance: timedelta,
    progress: Callable[[int, int], None],
) -> tuple[list[list[Composite]], list[Composite], dict[Path, Array], list[str]]:
    """Read all stretches; where files are damaged behind a good header, the stretches without them.

    Returns:
        The stretches, the composites in none, what `count_frame` says of each frame, and a line on each damaged file.

    Raises:
        UserError: where no stretch has `shortest` frames, or no square fits.

    """
    counts: dict[Path, Array] = {}
    damaged: dict[Path, str] = {}
    while left := [composite for composite in surveyed if composite.path not in damaged]:
        runs, dropped = stretches(left, shortest, tolerance)
        if not runs:
            raise UserError(_too_short(source, stretches(left, 1, tolerance)[0], shortest, list(damaged.values())))
        composites = [composite for run in runs for composite in run]
        tiles, before = tile(composites[0], size), len(damaged)
        for done, composite in enumerate(composites, 1):
            try:
                if composite.path not in counts:
                    counts[composite.path] = count_frame(composite, tiles)
            except UserError as error:
                damaged[composite.path] = str(error)
            progress(done, 2 * len(composites))
        if len(damaged) == before:
            return runs, dropped, counts, list(damaged.values())
    raise UserError(next(iter(damaged.values())))


def _too_short(source: Path, runs: Sequence[Sequence[Composite]], shortest: int, damaged: Sequence[str]) -> str:
    longest = max(runs, key=len)
    longest_text = f"the longest stretch of 15-minute steps is {len(longest)} frames, from {_name(source, longest[0])}"
    remedy = "add files, lower the forecast or raise the tolerance"
    why = f"; {len(damaged)} files cannot be read: {damaged[0]}" if damaged else ""
    return f"{source}: {longest_text}, but {shortest} are needed; {remedy}{why}"


def tile(composite: Composite, size: int) -> Tiles:
    """Return the squares that tile a composite's middle.

    Raises:
        UserError: where none fits.

    """
    (height, width), side = composite.grid.shape, 6 * size
    down, across = height // side, width // side
    if not down * across:
        largest = fitting(composite, size, 1)
        remedy = f"the largest size that fits is {largest}" if largest else "no size fits"
        raise UserError(f"{composite.path}: no square of {side} pixels fits into {height} x {width}; {remedy}")
    return Tiles(down, across, (height - down * side) // 2, (width - across * side) // 2, size)


def fitting(composite: Composite, below: int, squares: int) -> int:
    """Return the largest size below one of which so many squares fit into a composite; 0: none."""
    height, width = composite.grid.shape
    fits = [size for size in range(12, below, 12) if (height // (6 * size)) * (width // (6 * size)) >= squares]
    return max(fits, default=0)


def count_frame(composite: Composite, tiles: Tiles) -> Array:
    """Read all squares of a composite, which is all that is read later, and count the pixels of their targets.

    Returns how many radar saw and on how many it rained, (2, down, across): whole numbers, so that sums do not depend
    on their order.
    """
    down, across, side = tiles.down, tiles.across, tiles.side
    centre = slice(5 * tiles.size // 2, 7 * tiles.size // 2)
    square = slice(tiles.top, tiles.top + down * side), slice(tiles.left, tiles.left + across * side)
    rate = composite.read(*square).reshape(down, side, across, side)
    events = classify(rate[:, centre, :, centre], THRESHOLD)
    counts: Array = np.stack([events != MASKED, events == RAIN]).sum(axis=(2, 4))
    return counts


def choose(
    source: Path,
    composites: Sequence[Composite],
    counts: Mapping[Path, Array],
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
        UserError: where no square has radar and rain, or is shown.

    """
    tiles = tile(composites[0], size)
    down, across, side = tiles.down, tiles.across, tiles.side
    seen, rainy = np.sum([counts[composite.path] for composite in composites], axis=0)
    coverage, rain = seen / (len(composites) * size**2), rainy / np.maximum(seen, 1)
    if shown is not None:
        coverage = np.where(shown, coverage, 0)
    places = []
    for i, (row, column) in enumerate(np.ndindex(down, across)):
        if coverage[row, column] > COVERED and rain[row, column] >= DRIEST:
            name, shares = f"{composites[0].product}_{i:03d}", (float(coverage[row, column]), float(rain[row, column]))
            places.append(Place(name, tiles.top + row * side, tiles.left + column * side, *shares))
    if not places:
        why = f"none of {down * across} squares of {side} pixels has radar and rain in its middle"
        if shown is not None:
            why += f" and is shown whole by the satellite ({shown.sum()} are)"
        raise UserError(f"{source}: {why}; lower the size or give composites with more rain")
    ranked = sorted(places, key=lambda square: (-square.rain, square.row, square.column))
    ranks = np.linspace(0, len(ranked) - 1, min(regions, len(ranked))).round().astype(int)
    return sorted((ranked[rank] for rank in ranks), key=lambda square: (square.row, square.column))


def _info(archive: Archive) -> dict[str, Any]:
    """Return what `import_composites` returns of the rain."""
    first, last, places = archive.composites[0], archive.composites[-1], archive.cut.places
    days = dict.fromkeys(f"{composite.time:%Y-%m-%d}" for composite in (first, last))
    by_place = archive.cut.by == "place"
    return {
        "product": PRODUCTS[first.product].title,
        "quantity": first.quantity,
        "minutes": first.minutes,
        "relation": first.relation,
        "date": " to ".join(days),
        "start": f"{first.time:%Y-%m-%dT%H:%M:%SZ}",
        "year": first.time.year,
        "frames": len(archive.composites),
        "stretches": len(archive.runs),
        "splits": {
            split: [square.name for square in places if split in archive.cut.splits[square.name]]
            for split in layout.SPLITS
        },
        "split_by": archive.cut.by,
        "size": archive.size,
        "smaller": 0 if by_place else fitting(first, archive.size, FEWEST),
        "coverage": {square.name: square.coverage for square in places},
        "rain_by_region": {square.name: square.rain for square in places},
        "grids": {square.name: _grid(first, square, archive.size) for square in places},
        "pixel": first.grid.pixel,
        "averaged": first.finer,
        "resampled": first.resampled,
        "simulated_satellite": True,
    }


def _grid(composite: Composite, square: Place, size: int) -> dict[str, Any]:
    """Return where a target lies: row and column in the composite and, where the file says it, in metres.

    `x0`, `y0` is the upper left corner of the upper left pixel, `step` a pixel's width; y falls with the row.
    """
    row, column, grid = square.row + 5 * size // 2, square.column + 5 * size // 2, composite.grid
    about: dict[str, Any] = {"row": row, "column": column}
    if grid.pixel is not None:
        about["step"] = grid.pixel
        if abs(grid.pixel / PIXEL - 1) > NEAR:
            about["note"] = f"pixels are {grid.pixel:.0f} m wide, not the {PIXEL:.0f} m that the layout is made for"
        if grid.corner is not None:
            x, y = grid.corner
            about |= {"projdef": grid.projdef, "x0": x + column * grid.pixel, "y0": y - row * grid.pixel}
    return about


def _write_set(
    scratch: Path, archive: Archive, scans: Mapping[datetime, Path], seed: int, progress: Callable[[int, int], None]
) -> Path:
    """Write a data set below a scratch folder, and return its folder."""
    folder, composites, places = scratch / "set", archive.composites, archive.cut.places
    folder.mkdir()
    # Accumulated rain and reflectivity are not there; readers ask for `all_vars`, the layout's two. Of splits by place
    # a slot stands there once for each split, unlike in the competition's.
    rows = (
        (composites[frame].time, (1, 0, 0, 1, 1), split, kind)
        for split in layout.SPLITS
        for frame, kind in archive.cut.frames[split]
    )
    layout.write_csv(folder / layout.CSV, rows)
    if scans:
        seen = _scanned(scratch / "images.npy", composites, places, archive.size, scans, progress)
        images = [_observed(seen[:, number]) for number in range(len(places))]
    else:
        images = [_simulated(composites, square, seed) for square in places]
    for year in sorted({composite.time.year for composite in composites}):
        _write_year(folder, archive, year, images, (lambda *_: None) if scans else progress)
    return folder


def _write_year(
    folder: Path, archive: Archive, year: int, images: Sequence[Images], progress: Callable[[int, int], None]
) -> None:
    """Write all regions' files of a year, some frames at a time: each composite is read once for all of them."""
    composites, size, places = archive.composites, archive.size, archive.cut.places
    middle = slice(5 * size // 2, 7 * size // 2)
    step = max(1, min(CHUNK, MEMORY // (len(places) * (6 * size) ** 2 * 4)))
    with ExitStack() as opened:
        files = [_files(opened, folder, archive, year, *pair) for pair in zip(places, images, strict=True)]
        for run in (run for run in archive.runs if composites[run.start].time.year == year):
            held: dict[int, Array] = {}
            for first in run[::step]:
                last = min(run.stop, first + step)
                low, high = max(run.start, first - BEFORE), last
                held = {k: held[k] if k in held else _squares(composites[k], places, size) for k in range(low, high)}
                for number, (outputs, made) in enumerate(zip(files, images, strict=True)):
                    squares = np.stack([held[k][number] for k in range(low, high)])
                    targets = squares[first - low : last - low, middle, middle][:, None]
                    views = made.of(low, composites[low:high], squares)[first - low : last - low]
                    for rows, data, image in outputs:
                        start, stop = np.searchsorted(rows, [first, last])
                        data[start:stop] = (targets, views)[image][rows[start:stop] - first]
                progress(len(composites) + last, 2 * len(composites))


def _files(
    opened: ExitStack, folder: Path, archive: Archive, year: int, square: Place, images: Images
) -> list[tuple[Array, h5py.Dataset, bool]]:
    """Open a region's files of a year; return of each its frames, its data set, and whether it holds images."""
    composites, size, outputs = archive.composites, archive.size, []
    names = np.array([_name(archive.source, composite).encode() for composite in composites])
    for split in archive.cut.splits[square.name]:
        kept = [(k, kind) for k, kind in archive.cut.frames[split] if composites[k].time.year == year]
        if not kept:
            continue
        rows = np.array([k for k, _ in kept])
        seen = np.array([k for k, kind in kept if not (split in ("test", "heldout") and kind.endswith("_target"))])
        about: dict[str, Any] = {
            "product": PRODUCTS[composites[0].product].title,
            "region": square.name,
            "split": split,
        }
        about |= _grid(composites[0], square, size)
        if relation := composites[0].relation:
            about |= {"zr_a": relation[0], "zr_b": relation[1]}
        pictures = folder / layout.satellite_path(year, square.name, split), layout.SATELLITE, (11, size, size)
        rain = folder / layout.rain_path(year, square.name, split), layout.RAIN, (1, size, size)
        shown = opened.enter_context(_written(*pictures, names[seen], about | dict(images.about)))
        outputs.append((seen, shown, True))
        measured = opened.enter_context(_written(*rain, names[rows], about | {"simulated": False}))
        outputs.append((rows, measured, False))
    return outputs


def _squares(composite: Composite, places: Sequence[Place], size: int) -> Array:
    """Return the rates of the squares of all places in a composite, (places, 6S, 6S)."""
    side = 6 * size
    top, left = min(square.row for square in places), min(square.column for square in places)
    bottom, right = max(square.row for square in places) + side, max(square.column for square in places) + side
    rate = composite.read(slice(top, bottom), slice(left, right))
    corners = [(square.row - top, square.column - left) for square in places]
    return np.stack([rate[row : row + side, column : column + side] for row, column in corners])


@dataclass(frozen=True)
class Images:
    """Source of a region's satellite images."""

    of: Callable[[int, Sequence[Composite], Array], Array]
    """Gives, of the first frame's number, frames with those before them, and the rates of their whole squares
    (n, 6S, 6S), the images (n, 11, S, S)."""
    about: Mapping[str, Any]
    """Attributes of the file that describe them."""


def _points(composite: Composite, corners: Sequence[tuple[int, int]], size: int) -> list[seviri.Points]:
    """Return where squares are looked up, of the rows and columns of their upper left pixels."""
    grid = composite.grid
    assert grid.corner and grid.pixel
    (x, y), pixel = grid.corner, grid.pixel
    return [seviri.points(grid.projdef, (x + column * pixel, y - row * pixel), pixel, size) for row, column in corners]


def _shown(scans: Mapping[datetime, Path], composite: Composite, size: int) -> Array:
    """Return whether the scans, all of one part of the disk, show each square of a composite: bool (down, across)."""
    tiles = tile(composite, size)
    squares = np.ndindex(tiles.down, tiles.across)
    corners = [(tiles.top + row * tiles.side, tiles.left + column * tiles.side) for row, column in squares]
    visible = seviri.sees(min(scans.values()), _points(composite, corners, size))
    return np.array(visible, bool).reshape(tiles.down, tiles.across)


def _scanned(
    path: Path,
    composites: Sequence[Composite],
    places: Sequence[Place],
    size: int,
    scans: Mapping[datetime, Path],
    progress: Callable[[int, int], None],
) -> Array:
    """Return all squares' images of SEVIRI's scans, (frames, places, 11, S, S), in a file: each scan is read once."""
    where = _points(composites[0], [(square.row, square.column) for square in places], size)
    shape = (len(composites), len(places), len(CHANNELS), size, size)
    images: Array = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for number, composite in enumerate(composites):
        images[number] = seviri.read(scans[seviri.quarter(composite.time)], where)
        progress(len(composites) + number + 1, 2 * len(composites))
    return images


def _observed(seen: Array) -> Images:
    """Return a region's images as a satellite saw them, (frames, 11, S, S)."""

    def of(first: int, nearby: Sequence[Composite], _: Array) -> Array:
        return seen[first : first + len(nearby)]

    return Images(of, {"simulated": False, "satellite": seviri.ABOUT})


def _simulated(composites: Sequence[Composite], square: Place, seed: int) -> Images:
    """Return images that are simulated from the rain of the whole square."""
    cirrus = int(sequence(seed, "weather.satellite", square.row, square.column).generate_state(1)[0])
    midnight = composites[0].time.replace(hour=0, minute=0)

    def of(_: int, nearby: Sequence[Composite], rates: Array) -> Array:
        rates = np.where((rates < 0) | (rates > HIGHEST_RATE), 0, rates)  # what nobody measured shows no cloud
        start = nearby[0].time - midnight  # clouds go on past midnight
        return observe(rates, cirrus_seed=cirrus, start_minutes=int(start.total_seconds()) // 60)

    about = {"simulated": True, "simulated_by": SIMULATION, "generator_version": VERSION, "cirrus_seed": cirrus}
    return Images(of, about)


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
