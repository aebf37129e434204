"""What leaves the platform, and what comes in: submissions, netCDF, weights that others trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from retable.platform import api, weights
from retable.platform.config import override, parse_set
from retable.platform.errors import UserError
from retable.platform.storage import Storage
from retable.platform.table import resolve
from retable.platform.task import Source
from retable.tasks.weather.config import STEPS, Config, View
from retable.tasks.weather.data import sequences
from retable.tasks.weather.forecasts import netcdf
from retable.tasks.weather.metrics import cut
from retable.tasks.weather.model import convert_reference
from retable.tasks.weather.predict import evaluate, forecast_windows, load, reads, shards, summarise
from retable.tasks.weather.w4c.layout import Index
from retable.tasks.weather.w4c.prepare import caution, describe

Array = npt.NDArray[Any]

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


def opened(
    run: str,
    storage: str,
    split: str,
    epoch: int,
    threshold: float | str,
    regions: Sequence[str] = (),
    years: Sequence[int] = (),
) -> Opened:
    """Find a run by its fingerprint's first digits; regions and years to read are the run's, where none are named.

    Raises:
        UserError: where there is no finished one of this task, its data are gone, or a value is wrong.
    """
    found = api.load(run, storage, task="weather")
    view = resolve(override(View(), {"split": split, "epoch": epoch, "threshold": threshold}), found.config)
    chosen = {"regions": tuple(regions) or found.config.regions, "years": tuple(years) or found.config.years}
    return Opened(found, override(found.config, chosen), view, found.source)


def official_forecasts(
    members: Sequence[Opened], wanted: Sequence[tuple[int, str]] = ()
) -> Iterator[tuple[int, str, Array]]:
    """Yield year, region and forecast (sequences, leads, S, S) for the organisers' inputs of a split.

    The forecast is 200 where rain is forecast, else 0; by several runs, where at least half of them forecast rain
    (section 3.5). The organisers' targets are not needed, and not public. One region and year is held at a time.
    `wanted` names the years and regions, of those that are read; none: all.

    Raises:
        UserError: where the data set has no such inputs, or the runs are of different data.
    """
    first = members[0]
    if any(m.config.data != first.config.data or m.config.regions != first.config.regions for m in members):
        raise UserError("submit: the runs are of different data or regions; choose runs of one data set")
    config, source, view = first.config, first.source, first.view
    index = Index.read(source.folder, source.info, config.holdout)
    lengths = (config.inputs, config.forecast)
    found = index.official(view.split, config.regions, config.years, *lengths, targets=False)
    if not found:
        raise UserError(f"{source.folder}: no {view.split} inputs; a submission needs the organisers' files")
    models = [load(m.run.config, m.run.weights(m.view.epoch), int(source.info["size"])) for m in members]
    for shard, windows in found.items():
        _, year, region = shard.split("/")
        if wanted and (int(year), region) not in wanted:
            continue
        forecasts = (
            forecast_windows(model, m.config, source, windows) >= cut(m.view.threshold)  # type: ignore[arg-type]
            for model, m in zip(models, members, strict=True)
        )
        votes: Array = sum(forecast.astype(np.uint8) for forecast in forecasts)
        yield int(year), region, np.where(2 * votes >= len(members), STEPS, 0).astype(np.uint8)


def write_netcdf(what: Opened, out: Path) -> Iterator[Path]:
    """Write each shard's forecasts to `<out>/<split>-<year>-<region>.nc`, and yield the files' names.

    The files say what data the run read, and where images were simulated.
    """
    config, source = what.config, what.source
    out.mkdir(parents=True, exist_ok=True)
    index = Index.read(source.folder, source.info, config.holdout)
    model = load(what.run.config, what.run.weights(what.view.epoch), int(source.info["size"]))
    attributes = {"source": f"retable run {what.run.fingerprint}", "data": str(source.info["name"])}
    attributes |= {"data_description": describe(source.info)}
    attributes |= {"comment": warning} if (warning := caution(source.info)) else {}
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
            grid=source.info.get("grids", {}).get(region),
        )
        yield path


def score(what: Opened) -> dict[str, float]:
    """Return the scores of a run on its view's split of the regions and years that are read; see `metrics.scores`."""
    config, source = what.config, what.source
    model = load(what.run.config, what.run.weights(what.view.epoch), int(source.info["size"]))
    summaries = {}
    for shard in (shard for view in reads(what.view) for shard in shards(config, view, source)):
        windows = sequences(source, config, shard)
        steps = {"probability": forecast_windows(model, config, source, windows)}
        summaries[shard] = summarise(config, what.view, steps, source, shard)
    return evaluate(config, what.view, summaries, source)


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
