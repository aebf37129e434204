"""Generated data in the official Weather4cast 2022 layout: files, keys, columns, structure of splits, and sentinels.

Rain and the clouds that it follows are simulated over the whole context (`rainfall`), images are made of the clouds by
a forward operator (`satellite`), and the target is the context's centre: the true 1:6 geometry. An image shows what
there is at its time, and nothing of a slot follows from later ones. Beyond the official set there is the true rain of
the test and heldout sequences, and the true flow of every slot (`truth/{year}/{region}.h5`). Each region and year has
its own random streams, so they may be written in any order, or side by side, with the same result.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from datetime import datetime, timedelta
from itertools import islice, tee
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.train.seeds import generator, sequence
from retable.tasks.weather.w4c.layout import (
    CSV,
    SPLITS,
    STEP,
    VERSION,
    layout_files,
    write_csv,
)
from retable.tasks.weather.w4c.preprocess import CHANNELS, MISSING, UNDETECTED
from retable.tasks.weather.w4c.rainfall import (
    DAY,
    FINE,
    Climate,
    Weather,
    amplitudes,
    block_mean,
    noise,
    simulate,
    to_grid,
)
from retable.tasks.weather.w4c.satellite import draw

YEARS = (2019, 2020, 2021)
REGIONS = {
    "boxi_0015": ((0.073, 0.081, 0.077), 1.0, 0, 0.15, 0.3),
    "boxi_0034": ((0.060, 0.087, 0.074), 1.3, 30, 0.10, 0.2),
    "boxi_0076": ((0.054, 0.041, 0.048), 0.8, -40, 0.25, 0.4),
    "roxi_0004": ((0.105, 0.141, 0.123), 1.2, 20, 0.08, 0.3),
    "roxi_0005": ((0.094, 0.111, 0.103), 1.0, 60, 0.10, 0.5),
    "roxi_0006": ((0.107, 0.107, 0.107), 0.9, -20, 0.12, 0.3),
    "roxi_0007": ((0.023, 0.025, 0.024), 0.7, 100, 0.35, 0.4),
    "roxi_0008": ((0.060, 0.070, 0.065), 1.4, 10, 0.10, 0.2),
    "roxi_0009": ((0.045, 0.050, 0.048), 1.1, 150, 0.20, 0.6),
    "roxi_0010": ((0.090, 0.080, 0.085), 0.8, -80, 0.15, 0.3),
}
"""Share of rainy pixels in each year, speed, direction, convective share and orography of a region's climate. The
shares of the seven core regions in 2019 and 2020 are those of the real training sets; everything else is made up."""
CHUNK = 32
"""Slots written at once."""


class Slot(NamedTuple):
    """A quarter of an hour, as the CSV has it: split `-` means that data are missing."""

    split: str
    split_type: str = "-"

    def stored(self, kind: str) -> bool:
        """Whether the slot has a row in the files of its split; of test and heldout, targets are rain alone."""
        hidden = kind == "satellite" and self.split_type in ("test_target", "heldout_target")
        return self.split != "-" and not self.split_type.endswith("buffer") and not hidden


def climate(region: str, year: int) -> Climate:
    """Return the climate of an official region in a year.

    Raises:
        UserError: where the generator does not know the region or the year.

    """
    if region not in REGIONS:
        raise UserError(f"regions: the generator does not know {region!r}; use some of {', '.join(REGIONS)}")
    if year not in YEARS:
        raise UserError(f"years: the generator does not know {year}; use some of {', '.join(map(str, YEARS))}")
    fractions, speed, direction, convective, orography = REGIONS[region]
    fraction = fractions[YEARS.index(year)]
    return Climate(fraction=fraction, speed=speed, direction=direction, convective=convective, orography=orography)


def schedule(
    *, training: int, sequences: Mapping[str, int], inputs: int, forecast: int, rng: np.random.Generator
) -> list[Slot]:
    """Return the slots of a year: stretches of training with blocks of the other splits in between.

    A block is [inputs][targets] for validation; for test and heldout a buffer as long as the targets follows, as in the
    real table. A stretch has at least the length of three windows, unless training is shorter; where that makes fewer
    stretches than blocks, blocks stand side by side. One training slot in 300 is missing.
    """
    blocks, left = [], dict(sequences)
    while any(left.values()):
        for split in ("test", "heldout", "validation"):
            if left.get(split, 0):
                left[split] -= 1
                lengths = {"in": inputs, "target": forecast, "buffer": 0 if split == "validation" else forecast}
                blocks.append([Slot(split, f"{split}_{part}") for part in lengths for _ in range(lengths[part])])
    stretches = max(1, min(len(blocks) + 1, training // (3 * (inputs + forecast))))
    days = [Slot("training")] * training
    for slot in rng.choice(training, training // 300, replace=False):
        days[slot:slot] = [Slot("-")]
    slots = []
    groups = max(1, stretches - 1)
    for number in range(stretches):
        slots += days[number * len(days) // stretches : (number + 1) * len(days) // stretches]
        if number < groups:
            for block in blocks[number * len(blocks) // groups : (number + 1) * len(blocks) // groups]:
                slots += block
    return slots


def times(year: int, slots: int) -> list[datetime]:
    """Return the times UTC of a year's slots: from 15 February on, as in the real 2019.

    Raises:
        UserError: where the year has fewer.

    """
    start = datetime(year, 2, 15)
    room = (datetime(year + 1, 1, 1) - start).days * DAY
    if slots > room:
        raise UserError(f"training, sequences: {slots} slots are too many for {year}, which has {room}; ask for fewer")
    return [start + slot * timedelta(minutes=STEP) for slot in range(slots)]


class Radar:
    """Network of radars: reports true rain (S, S) with some of the dry pixels as undetected, some as missing.

    One corner is out of reach for good; elsewhere a radar fails now and then, for two to fifteen hours.
    """

    def __init__(self, rng: np.random.Generator, size: int, slots: int) -> None:
        self.undetected = to_grid(amplitudes(size, size / 3, 3.0) * noise(rng, size), size) > -0.3
        self.y, self.x = np.indices((size, size))
        corner = rng.integers(0, 2, 2) * (size - 1)
        self.gaps = [(0, slots, *corner, rng.uniform(0.12, 0.2) * size)]
        for _ in range(rng.poisson(slots / 300)):
            first, centre = rng.integers(slots), rng.uniform(0, size, 2)
            self.gaps.append((first, first + rng.integers(8, 60), *centre, rng.uniform(0.2, 0.45) * size))

    def report(self, slot: int, rain: Array) -> Array:
        """Rates with sentinels (S, S), float32."""
        seen = np.where(self.undetected & (rain == 0), np.float32(UNDETECTED), rain)
        for first, end, y, x, radius in self.gaps:
            if first <= slot < end:
                seen[(self.y - y) ** 2 + (self.x - x) ** 2 <= radius**2] = MISSING
        return seen


def lose_pixels(images: Array, rng: np.random.Generator) -> None:
    """Set what a satellite may lose to NaN in images (frames, 11, S, S): in 2% of frames two rows, or lone pixels."""
    height = images.shape[-1]
    for image in images:
        kind, channel, row = rng.random(), rng.integers(len(CHANNELS)), rng.integers(height - 1)
        if kind < 0.01:
            image[channel, row : row + 2] = np.nan
        elif kind < 0.02:
            image[:, rng.integers(height, size=3), rng.integers(height, size=3)] = np.nan


class Files:
    """The HDF5 files of a region and year, open for writing in the order of time."""

    def __init__(
        self, target: Path, year: int, region: str, slots: Sequence[Slot], size: int, seed: int, stack: ExitStack
    ) -> None:
        self.slots = slots
        self.sets: dict[tuple[str, str], h5py.Dataset] = {}
        self.rows: dict[str, dict[str, int]] = {split: {"satellite": 0, "rain": 0} for split in SPLITS}

        def create(path: str, key: str, *shape: int) -> h5py.Dataset:
            """Open a file that says what it is, with one data set."""
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(h5py.File(target / path, "w", libver="latest"))  # its indices have checksums too
            file.attrs.update(generated=True, generator_version=VERSION, seed=seed)
            # One frame a chunk: windows start anywhere, and a chunk is read whole. No compression: lzf makes satellite
            # images, eleven twelfths of the bytes, a sixth smaller and takes 1.6 times the processor time to read.
            return file.create_dataset(key, shape, np.float32, chunks=(1, *shape[1:]), fletcher32=True)

        for split in SPLITS:
            for kind, (path, key, channels) in layout_files(year, region, split).items():
                rows = sum(slot.split == split and slot.stored(kind) for slot in slots)
                if rows:
                    self.sets[kind, split] = create(path, key, rows, channels, size, size)
        self.flow = create(f"truth/{year}/{region}.h5", "flow", len(slots), 2, size, size)

    def write(self, start: int, images: Array, rates: Array, flow: Array) -> None:
        """Write slots from `start` on: images (n, 11, S, S), rates (n, S, S), flow (n, 2, S, S)."""
        self.flow[start : start + len(flow)] = flow
        slots = self.slots[start : start + len(flow)]
        for kind, values in (("satellite", images), ("rain", rates[:, None])):
            for split in SPLITS:
                chosen = [number for number, slot in enumerate(slots) if slot.split == split and slot.stored(kind)]
                if chosen:
                    first = self.rows[split][kind]
                    self.rows[split][kind] += len(chosen)
                    self.sets[kind, split][first : first + len(chosen)] = values[chosen]


def watch(weather: Iterable[Weather], size: int, cirrus_seed: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yield of each slot the image (11, S, S), the rain of the target (S, S), and the flow at 12 km (2, S, S)."""
    centre = slice((FINE - 1) * size // 2, (FINE + 1) * size // 2)
    here, seen = tee(weather)
    images = draw((sky.cloud for sky in seen), size, cirrus_seed=cirrus_seed, start_minutes=0)
    for sky, image in zip(here, images, strict=True):
        yield image, sky.rain[centre, centre], block_mean(sky.flow)


def write_region(
    target: Path,
    year: int,
    region: str,
    slots: Sequence[Slot],
    size: int,
    seed: int,
    advance: Callable[[int], None] = lambda slots: None,
) -> None:
    """Write the files of one region and year below `target`; `advance` hears of each number of slots done."""
    where = (year, zlib.crc32(region.encode()))
    pixel_rng = generator(seed, "weather.lost pixels", *where)
    radar = Radar(generator(seed, "weather.radar", *where), size, len(slots))
    cirrus = int(sequence(seed, "weather.satellite", *where).generate_state(1)[0])
    sights = watch(simulate(climate(region, year), size=size, slots=len(slots), seed=seed, where=where), size, cirrus)
    with ExitStack() as stack:
        files = Files(target, year, region, slots, size, seed, stack)
        for start in range(0, len(slots), CHUNK):
            images, rain, flow = (np.stack(parts) for parts in zip(*islice(sights, CHUNK), strict=True))
            lose_pixels(images, pixel_rng)
            rates = np.stack([radar.report(slot, rate) for slot, rate in enumerate(rain, start)])
            files.write(start, images, rates, flow)
            advance(len(flow))


def generate(
    target: Path,
    *,
    size: int,
    regions: Sequence[str],
    years: Sequence[int],
    training: int,
    sequences: Mapping[str, int],
    inputs: int = 4,
    forecast: int = 32,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int, int], None],
) -> None:
    """Write a generated data set in the official layout below `target`, frame by frame.

    Args:
        target: a folder; files of the same name are replaced.
        size: S, pixels of an image and of a rain map along each side, a multiple of 12.
        regions: official names of regions.
        years: some of `YEARS`.
        training: training frames of each region and year.
        sequences: of validation, test and heldout, how many sequences each region and year has.
        inputs: images before a forecast.
        forecast: lead times of a forecast.
        seed: chooses everything random.
        workers: processes that write regions side by side; the files are the same for any number.
        progress: called with the slots done so far, and all.

    Raises:
        UserError: where size, a region or a year does not fit, or a year is too short.

    """
    if size < 12 or size % 12:
        raise UserError(f"size: {size} is not a multiple of 12; use 24, 36 or 60")
    for year in years:
        for region in regions:
            climate(region, year)
    schedules = {
        year: schedule(
            training=training,
            sequences=sequences,
            inputs=inputs,
            forecast=forecast,
            rng=generator(seed, "weather.schedule", year),
        )
        for year in years
    }
    target.mkdir(parents=True, exist_ok=True)
    rows = (
        (time, (1, 1, 1, 1, 1) if slot.split != "-" else (1, 1, 1, 0, 0), *slot)
        for year, slots in schedules.items()
        for slot, time in zip(slots, times(year, len(slots)), strict=True)
    )
    write_csv(target / CSV, rows)
    jobs = [(target, year, region, slots, size, seed) for year, slots in schedules.items() for region in regions]
    write_all(jobs, len(regions) * sum(map(len, schedules.values())), workers, progress)


def write_all(
    jobs: Sequence[tuple[Path, int, str, Sequence[Slot], int, int]],
    total: int,
    workers: int,
    progress: Callable[[int, int], None],
) -> None:
    """Call `write_region` with each job's arguments, here or in processes of their own."""
    done = 0

    def advance(slots: int) -> None:
        nonlocal done
        done += slots
        progress(done, total)

    if workers == 1:
        for job in jobs:
            write_region(*job, advance=advance)
        return
    with ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn")) as pool:
        futures = [pool.submit(write_region, *job) for job in jobs]
        for future in as_completed(futures):
            future.result()
            advance(total // len(jobs))
