"""Exports and imports: submissions, netCDF, weights that others trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retable.platform import api
from retable.platform.config import override, parse_set
from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.table import resolve
from retable.platform.spec.task import Source, data_folder
from retable.platform.store import weights
from retable.platform.store.storage import Storage
from retable.tasks.weather import metrics
from retable.tasks.weather.config import STEPS, Config, View
from retable.tasks.weather.data import sequences
from retable.tasks.weather.metrics import thresholds_of, validated
from retable.tasks.weather.model import Forecaster, convert_reference
from retable.tasks.weather.predict import (
    check,
    evaluate,
    forecast_windows,
    load,
    reads,
    shards,
    summarise,
)
from retable.tasks.weather.tools.forecasts import netcdf
from retable.tasks.weather.w4c.layout import Index
from retable.tasks.weather.w4c.prepare import caution, check_simulation, describe, pixel_width

SIZE = 252
"""Pixels across the competition's images: what others' weights were trained on."""


@dataclass(frozen=True)
class Opened:
    """A run to be read in one way."""

    run: api.TrainedRun
    config: Config
    """The run's, with the regions and years that are read: perhaps others than it was trained on."""
    view: View
    source: Source

    def model(self) -> Forecaster:
        """Return the run's forecaster at the epoch that is read."""
        weights, size = self.run.weights(self.view.epoch), int(self.source.info["size"])
        return load(self.run.config, weights, size, self.view.motion)


def opened(
    run: str,
    storage: str,
    split: str,
    epoch: int,
    threshold: float | str,
    regions: Sequence[str] = (),
    years: Sequence[int] = (),
    data: str = "",
    motion: str = "none",
) -> Opened:
    """Find a run by its fingerprint's first digits; regions and years to read are the run's, where none are named.

    Of another data set than the run's they are all it has.

    Args:
        run: `RUN`, or `RUN@EPOCH` for another epoch than `epoch`.
        storage: where it lies.
        split: what is read.
        epoch: a kept one, of a run that names none; 0: the last.
        threshold: from where on rain is forecast, or how that is tuned.
        regions: to be read.
        years: to be read.
        data: the data set to be read, by its name in the storage of the run's; none: the run's.
        motion: of a retrieval, how its rain moves.

    Raises:
        UserError: where there is no finished one of this task, its data are gone, a value is wrong, or images of other
            `data` are of another size, or its sequences shorter, than the run's.
    """
    name, own_epoch = at_epoch(run)
    trained = api.load(name, storage, task="weather")
    wanted = {"split": split, "epoch": own_epoch or epoch, "threshold": threshold, "motion": motion}
    view = resolve(override(View(), wanted), trained.config)
    elsewhere = bool(data) and data != trained.config.data
    source, available = trained.source, {"regions": trained.config.regions, "years": trained.config.years}
    if elsewhere:
        source = other_source(trained.source, data, trained.config)
        available = {name: tuple(source.info[name]) for name in available}
        elsewhere = origin(source) != origin(trained.source)
    check(override(trained.config, {"data": data, "train_on": "training"}) if elsewhere else trained.config, view)
    check_simulation(source)
    # What was left out of training may well be scored.
    chosen = {
        "regions": tuple(regions) or available["regions"],
        "years": tuple(years) or available["years"],
        "left_out": (),
    }
    return Opened(trained, override(trained.config, {"data": data or trained.config.data, **chosen}), view, source)


def origin(source: Source) -> str:
    """Return the digest of a data set, or of the one that it was converted from."""
    return str(source.info.get("converted_from", source.info)["digest"])


def other_source(source: Source, data: str, config: Config) -> Source:
    """Return another data set in a data set's storage, whose images are as wide and whose sequences are as long.

    Raises:
        UserError: where there is none of that name, or no forecast of a run with this config can be made of it.
    """
    folder = data_folder(source.storage, "weather", data)
    if not folder.exists("dataset.json"):
        raise UserError(f"--data {data}: {folder} has no dataset.json; make, import or train on the set first")
    other = Source.of(source.storage, f"weather/{data}")
    if other.info["size"] != source.info["size"]:
        sizes = f"its images are {other.info['size']} pixels wide, the run's {source.info['size']}"
        raise UserError(f"--data {data}: {sizes}; make or import it in that size")
    for name, asked in (("inputs", config.inputs), ("forecast", config.forecast)):
        if other.info[name] < asked:
            short = f"its sequences have {other.info[name]} {name}, the run's {asked}"
            raise UserError(f"--data {data}: {short}; import it with --{name} {asked}")
    return other


def at_epoch(run: str) -> tuple[str, int]:
    """Split `RUN@EPOCH`, such as `1f3a@4` or `latest@4`; the epoch is 0 where a run names none.

    Raises:
        UserError: where what follows the last `@` is no epoch.
    """
    name, mark, epoch = run.rpartition("@")
    if not mark:
        return run, 0
    if not (name and epoch.isdecimal() and int(epoch)):
        raise UserError(f"run {run!r}: write RUN@EPOCH, such as latest@4; epochs count from 1")
    return name, int(epoch)


def official_forecasts(
    members: Sequence[Opened], wanted: Sequence[tuple[int, str]] = ()
) -> Iterator[tuple[int, str, Array]]:
    """Yield year, region and forecast (sequences, leads, S, S) for the organisers' inputs of a split.

    The forecast is 200 where rain is forecast, else 0; by several runs, where at least half of them forecast rain
    (section 3.5). The organisers' targets are not needed, and not public: tuned thresholds are the best of each run on
    validation. One region and year is held at a time.
    `wanted` names the years and regions, of those that are read; none: all.

    Raises:
        UserError: where the data set has no such inputs, or the runs are of different data.
    """
    first = members[0]
    alike = ("data", "regions", "years", "inputs", "forecast", "rain_threshold")
    check_alike("submit", [member.config for member in members], alike)
    config, source, view = first.config, first.source, first.view
    index = Index.read(source.folder, source.info, config.holdout)
    lengths = (config.inputs, config.forecast)
    windows_of = index.official(view.split, config.regions, config.years, *lengths, targets=False)
    if not windows_of:
        raise UserError(f"{source.folder}: no {view.split} inputs; a submission needs the organisers' files")
    asked = {shard: windows for shard, windows in windows_of.items() if not wanted or place_of(shard) in wanted}
    models = [m.model() for m in members]
    chosen = [thresholds_of(list(asked), m.view, tuned_on(m, model)) for m, model in zip(members, models, strict=True)]
    for shard, windows in asked.items():
        forecasts = (
            metrics.rain(forecast_windows(model, m.config, source, windows), by[shard])
            for model, m, by in zip(models, members, chosen, strict=True)
        )
        votes = np.asarray(sum(forecast.astype(np.uint16) for forecast in forecasts))
        yield *place_of(shard), np.where(2 * votes >= len(members), STEPS, 0).astype(np.uint8)


def check_alike(what: str, configs: Sequence[Config], fields: Sequence[str]) -> None:
    """Refuse runs whose configs differ in some fields.

    Raises:
        UserError: naming the first such field.
    """
    for name in fields:
        if len({getattr(config, name) for config in configs}) > 1:
            raise UserError(f"{what}: the runs differ in {name}; choose runs that forecast the same sequences")


def place_of(shard: str) -> tuple[int, str]:
    """Return year and region of a shard `split/year/region`."""
    _, year, region = shard.split("/")
    return int(year), region


def tuned_on(what: Opened, model: Forecaster) -> dict[str, Array]:
    """Return the histograms of the validation shards that a threshold is tuned on; nothing where it is a number."""
    if isinstance(what.view.threshold, float):
        return {}
    return validated(summaries_of(what.config, what.source, model, [replace(what.view, split="validation")]))


def summaries_of(
    config: Config, source: Source, model: Forecaster, views: Sequence[View]
) -> dict[str, dict[str, Array]]:
    """Forecast the shards of some views, and return what their scores are computed from."""
    summaries = {}
    for view in views:
        for shard in shards(config, view, source):
            steps = {"probability": forecast_windows(model, config, source, sequences(source, config, shard))}
            summaries[shard] = summarise(config, view, steps, source, shard)
    return summaries


def write_netcdf(what: Opened, out: Path) -> Iterator[Path]:
    """Write each shard's forecasts to `<out>/<split>-<year>-<region>.nc`, and yield the files' names.

    The files say what data the run read, and where images were simulated.
    """
    config, source = what.config, what.source
    index = Index.read(source.folder, source.info, config.holdout)
    model = what.model()
    made_by = f"retable run {what.run.fingerprint}, epoch {what.view.epoch}"
    attributes = {"source": made_by, "data": str(source.info["name"]), "data_description": describe(source.info)}
    attributes |= netcdf.comment(caution(source.info))
    for shard in shards(config, what.view, source):
        split, year, region = shard.split("/")
        path = out / f"{split}-{year}-{region}.nc"
        windows = sequences(source, config, shard)
        netcdf.export(
            path,
            forecast_windows(model, config, source, windows),
            times=index.reference_times(windows, config.inputs),
            region=region,
            year=int(year),
            attributes=attributes,
            grid=source.info.get("grids", {}).get(region) or {"step": pixel_width(source.info)},
        )
        yield path


def score(what: Opened) -> dict[str, float]:
    """Return the scores of a run on its view's split of the regions and years that are read; see `metrics.scores`."""
    summaries = summaries_of(what.config, what.source, what.model(), reads(what.view))
    return evaluate(what.config, what.view, summaries, what.source)


def take_over(file: Path, storage: Storage, changes: list[str]) -> str:
    """Import a checkpoint of the reference as `<storage>/weights/<sha256>.safetensors`, and return the digest.

    Raises:
        UserError: where the file cannot be read, or does not fit the config that `changes` give.
    """
    config, data = override(Config(), parse_set(changes)), weights.read_bytes(file)
    state = weights.read_tensors(file, data, "save `model.state_dict()` alone", integers=True)
    try:
        converted = convert_reference(state, config, SIZE, config.regions)
    except ValueError as error:
        raise UserError(f"{file}: {error}; set the fields of `model` to what they were trained with") from error
    return weights.keep(weights.sealed(converted), storage)
