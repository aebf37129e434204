"""Windows of satellite images and rain, in batches: from memory, or as a stream of runs of frames.

A *run* is a number of consecutive windows whose frames are read in one slice: 16 windows of 4 + 32 frames need 19
images and 48 rain fields, not 64 and 512. The order of an epoch is a function of seed and epoch alone: runs are
shuffled, the windows within each run are shuffled, and the list is dealt to as many *lanes* as a batch has places. A
batch takes one window of each lane; a worker reads its own lanes only. So the batches are the same for any number of
workers and of blocks in flight, and training can start at any step without reading what lies before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.execute.streams import stream
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.platform.train.seeds import generator
from retable.platform.train.worker import share
from retable.tasks.weather.config import Config
from retable.tasks.weather.w4c.frames import Frames
from retable.tasks.weather.w4c.layout import HOLDOUT, Index, Window
from retable.tasks.weather.w4c.prepare import check_simulation
from retable.tasks.weather.w4c.preprocess import CHANNELS, classify, normalise

IN_MEMORY = ("training", "validation")


@dataclass(frozen=True)
class Batch:
    """Some windows."""

    images: Tensor
    """Normalised satellite images, float32 (batch, 11, inputs, S, S)."""
    events: Tensor
    """Observed event at each lead time, uint8 (batch, leads, S, S): 0 dry, 1 rain, 2 no radar."""
    now: Tensor
    """The same at the time of the last image, uint8 (batch, S, S)."""
    region: Tensor
    """Each sample's place in the list of regions, int64 (batch,)."""
    shard: tuple[str, ...]
    """`<year>/<region>` of each sample."""


@dataclass(frozen=True)
class Memory:
    """Raw frames in shared memory, read-only: `<series>/satellite` and `<series>/rate` -> all frames of a series."""

    arrays: Mapping[str, Array]

    def satellite(self, series: str, start: int, stop: int) -> Array:
        """Return raw satellite images, float32 (n, 11, S, S)."""
        return self.arrays[f"{series}/satellite"][start:stop]

    def rate(self, series: str, start: int, stop: int) -> Array:
        """Return raw rain rates, mm/h, float32 (n, S, S)."""
        return self.arrays[f"{series}/rate"][start:stop]


def read(folder: Storage) -> dict[str, Array]:
    """Return the training and validation frames: `<series>/satellite` and `<series>/rate`, all of a series each."""
    info = folder.read_json("dataset.json")
    frames = Frames(folder, info)
    return {
        f"{series}/{kind}": take(series, 0, rows[key])
        for series, rows in info["series"].items()
        if series.rsplit("/", 1)[1] in IN_MEMORY
        for kind, key, take in (("satellite", "satellite", frames.satellite), ("rate", "rain", frames.rate))
        if rows[key]
    }


@dataclass(frozen=True)
class WindowRun:
    """Consecutive windows of one series, read together."""

    series: str
    satellite: int
    rain: int
    windows: int


def runs_of(windows: Sequence[Window], longest: int) -> list[WindowRun]:
    """Cut a list of windows into runs of windows that follow one another, at most `longest` in each."""
    runs: list[list[Window]] = []
    for window in windows:
        last = runs[-1] if runs else []
        step = Window(last[-1].series, last[-1].satellite + 1, last[-1].rain + 1) if last else None
        if window == step and len(last) < longest:
            last.append(window)
        else:
            runs.append([window])
    return [WindowRun(run[0].series, run[0].satellite, run[0].rain, len(run)) for run in runs]


def fetch(
    piece: Mapping[str, Any], raw: Frames | Memory, inputs: int, forecast: int, threshold: float
) -> dict[str, Array]:
    """Read a run's frames and prepare each of them once.

    Returns:
        satellite: normalised, float32 (windows + inputs - 1, 11, S, S).
        events: from the last input of the first window on, uint8 (windows + forecast, S, S).

    """
    run = WindowRun(**piece)
    now = run.rain + inputs - 1
    satellite = raw.satellite(run.series, run.satellite, run.satellite + run.windows + inputs - 1)
    rate = raw.rate(run.series, now, now + run.windows + forecast)
    return {"satellite": normalise(satellite, copy=isinstance(raw, Memory)), "events": classify(rate, threshold)}


def run_bytes(config: Config, size: int) -> int:
    """Return the bytes of a run of `config.window_run` windows, as `fetch` returns it, of images of `size` pixels."""
    images, fields = config.window_run + config.inputs - 1, config.window_run + config.forecast
    return (images * len(CHANNELS) * np.dtype(np.float32).itemsize + fields) * size**2


def memory_notes(configs: Sequence[Config], source: Source) -> list[str]:
    """Return a line on the memory of the largest batch of a dataset that is streamed."""
    size = int(source.info["size"])
    most = max(configs, key=lambda config: config.batch * run_bytes(config, size))
    lane = run_bytes(most, size) / 1e6
    return [
        f"{source.info['name']}: as a stream, a lane holds {most.window_run + most.inputs - 1} images and "
        f"{most.window_run + most.forecast} rain fields, {lane:,.1f} MB; a batch of {most.batch} "
        f"{most.batch * lane:,.1f} MB; half of shared memory, or --read-ahead, may be read ahead"
    ]


def lanes(runs: Sequence[WindowRun], batch: int, seed: int, epoch: int) -> Array:
    """Return an epoch's order: run and window of each step and lane, int64 (batch, steps, 2).

    What is left over when the windows are dealt to the lanes is not seen in this epoch.
    """
    order = generator(seed, "weather.runs", epoch).permutation(len(runs))
    parts = []
    for number in order:
        inside = generator(seed, "weather.windows", epoch, int(number)).permutation(runs[number].windows)
        parts.append(np.stack([np.full(len(inside), number), inside], axis=1))
    dealt = np.concatenate(parts)
    steps = len(dealt) // batch
    return dealt[: batch * steps].reshape(batch, steps, 2)


class Windows:
    """The batches of one training, and its validation set."""

    def __init__(self, columns: Mapping[str, Array] | None, source: Source, configs: Sequence[Config]) -> None:
        """Take what `arrays` returned, or None to read the data set's files as a stream.

        Raises:
            UserError: where the data set lacks a region, a year or enough frames, or was simulated by an older version.

        """
        (config,) = configs
        check_simulation(source)
        self.config, self.batch, self.size = config, config.batch, int(source.info["size"])
        self.regions: tuple[str, ...] = config.regions
        self._info = source.info
        index = Index.read(source.folder, source.info, config.holdout)
        lengths = (config.inputs, config.forecast)
        joined = config.train_on == "training_and_validation"
        windows = index.training(config.trained_regions, config.years, *lengths, with_validation=joined)
        self._runs = runs_of(windows, config.window_run)
        self._validation = index.sequences("validation", config.trained_regions, config.years, *lengths)
        every = len(windows) // config.batch
        self.steps = min(config.steps or every, every)
        self._raw: Frames | Memory = Frames(source.folder, source.info) if columns is None else Memory(columns)
        self._streams = columns is None

    @property
    def validated(self) -> tuple[str, ...]:
        """The places `<year>/<region>` that have validation sequences."""
        return tuple(shard.partition("/")[2] for shard, windows in self._validation.items() if windows)

    @property
    def positive_ratio(self) -> float:
        """Dry over rainy pixels of the training set."""
        return positive_ratio(self._info, self.config)

    def batches(self, epoch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield this rank's share of the epoch's batches from step `start` on."""
        lanes_here = share(self.batch, rank, world)
        order = lanes(self._runs, self.batch, self.config.seed, epoch)[lanes_here, start : self.steps]
        needed = []  # (step, lane, run) where a lane comes to another run
        for lane, row in enumerate(order[:, :, 0]):
            changes = [0, *(np.flatnonzero(np.diff(row)) + 1)] if len(row) else []
            needed += [(step, lane, int(row[step])) for step in changes]
        needed.sort()
        arriving = self._fetch([self._runs[run] for _, _, run in needed])
        held: dict[int, tuple[WindowRun, Mapping[str, Array]]] = {}
        position = 0
        for step in range(order.shape[1]):
            while position < len(needed) and needed[position][0] == step:
                _, lane, run = needed[position]
                held[lane] = (self._runs[run], next(arriving))
                position += 1
            places = order[:, step, 1].tolist()
            yield self._join([(*held[lane], start) for lane, start in enumerate(places)])

    def validation(self, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield this rank's share of the validation sequences in batches; the last one may be smaller."""
        runs = [run for windows in self._validation.values() for run in runs_of(windows, 1)][rank::world]
        size = self.config.batch // world
        held: list[tuple[WindowRun, Mapping[str, Array], int]] = []
        for run, arrays in zip(runs, self._fetch(runs), strict=True):
            held.append((run, arrays, 0))
            if len(held) == size:
                yield self._join(held)
                held = []
        if held:
            yield self._join(held)

    def _fetch(self, runs: Sequence[WindowRun]) -> Iterator[Mapping[str, Array]]:
        config = self.config
        get = partial(
            fetch, raw=self._raw, inputs=config.inputs, forecast=config.forecast, threshold=config.rain_threshold
        )
        pieces = [asdict(run) for run in runs]
        if not self._streams:
            return map(get, pieces)
        return stream(pieces, get, run_bytes(config, self.size))

    def _join(self, samples: Sequence[tuple[WindowRun, Mapping[str, Array], int]]) -> Batch:
        """Cut windows out of their runs and put them together. Everything is copied: runs may be shared memory."""
        inputs, forecast = self.config.inputs, self.config.forecast
        images = np.empty((len(samples), len(CHANNELS), inputs, self.size, self.size), np.float32)
        for image, (_, arrays, start) in zip(images, samples, strict=True):
            image[...] = arrays["satellite"][start : start + inputs].swapaxes(0, 1)
        events = np.stack([arrays["events"][start : start + 1 + forecast] for _, arrays, start in samples])
        names = [run.series.rsplit("/", 1)[0] for run, _, _ in samples]
        regions = [self.regions.index(name.split("/")[1]) for name in names]
        return Batch(
            torch.from_numpy(images),
            torch.from_numpy(events[:, 1:]),
            torch.from_numpy(events[:, 0]),
            torch.tensor(regions),
            tuple(names),
        )


def positive_ratio(info: Mapping[str, Any], config: Config) -> float:
    """Return dry over rainy pixels of the training set: what `loss.positive_weight=training_set` stands for.

    Raises:
        UserError: where the data set's share of rain was counted at another threshold or beside other hold-outs, there
            is none, or pixels were not counted.
    """
    if "measured" not in info:
        raise UserError("loss.positive_weight training_set: dataset.json was written by an older version; remove it")
    if info["holdout"] == "local" and config.holdout not in (0, HOLDOUT):  # rain was counted outside of other sequences
        held = f"rain was counted outside of the sequences of holdout {HOLDOUT}, not {config.holdout}"
        raise UserError(f"loss.positive_weight training_set: {held}; give a number, or leave holdout out")
    places = [
        series
        for series in info["rain"]
        if int(series.split("/")[0]) in config.years and series.split("/")[1] in config.trained_regions
    ]
    counted = info.get("rain_threshold", config.rain_threshold)
    pixels = sum(info["measured"][series] for series in places)
    rainy = sum(info["rain"][series] * info["measured"][series] for series in places) / max(pixels, 1)
    if config.rain_threshold != counted or not rainy:
        shares = f"{rainy:.3f} of the pixels at {counted} mm/h"
        raise UserError(f"loss.positive_weight training_set: the data set knows of rain in {shares}; give a number")
    ratio: float = (1 - rainy) / rainy
    return ratio


def sequences(source: Source, config: Config, shard: str) -> list[Window]:
    """Return the windows of a shard: the sequences that its forecasts are scored on.

    Raises:
        UserError: where the data set has no such shard.

    """
    split = shard.split("/")[0]
    windows = Index.read(source.folder, source.info, config.holdout).sequences(
        split, config.regions, config.years, config.inputs, config.forecast
    )
    if shard not in windows:
        raise UserError(
            f"{source.folder}: no {shard}; the data set has {', '.join(windows) or 'nothing of that split'}"
        )
    return windows[shard]
