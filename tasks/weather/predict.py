"""Predictions of a trained run: forecasts of sequences, their scores, and histograms that tune a threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import Source
from retable.platform.train.worker import autocast, best_device, device_of
from retable.tasks.weather import metrics
from retable.tasks.weather.config import Config, Retrieval, View, lineage, trained_on_validation
from retable.tasks.weather.data import sequences
from retable.tasks.weather.learner import sample_cost
from retable.tasks.weather.model import Forecaster, build
from retable.tasks.weather.models.baselines import RetrievalForecaster
from retable.tasks.weather.w4c.frames import Frames
from retable.tasks.weather.w4c.layout import Index, Window
from retable.tasks.weather.w4c.prepare import check_simulation
from retable.tasks.weather.w4c.preprocess import classify, normalise

BATCH = 4
"""Sequences that are forecast at once."""
CHUNK = 256
"""Rain fields that are read at once."""


def reads(view: View) -> Sequence[View]:
    """Return the views that a view is scored from: a threshold needs no own forecast, what is tuned validation."""
    mask = view.calibration == "difference_mask"  # the one that changes forecasts
    plain = replace(view, threshold=0.5, calibration="difference_mask" if mask else "none")
    if (isinstance(view.threshold, float) and view.calibration != "isotonic") or view.split == "validation":
        return (plain,)
    return (plain, replace(plain, split="validation"))


def shards(config: Config, view: View, source: Source) -> Sequence[str]:
    """Return the names `<split>/<year>/<region>` of a view's forecasts.

    Raises:
        UserError: where the data set has no sequences of that split, or the view's regions are not the run's.
    """
    check_simulation(source)
    if unknown := [region for region in view.scored if region not in config.regions]:
        raise UserError(f"view.scored: {unknown[0]!r} is none of the run's; name one of {', '.join(config.regions)}")
    index = Index.read(source.folder, source.info, config.holdout)
    regions = view.scored or config.regions
    names = list(index.sequences(view.split, regions, config.years, config.inputs, config.forecast))
    if not names:
        raise UserError(f"{source.folder}: no {view.split} sequences of these regions and years; choose others")
    return names


def check(config: Config, view: View) -> None:
    """Refuse a view that moves what does not move, or that judges or tunes by what was trained on.

    What a run starts from counts, too.

    Raises:
        UserError: where the model is no retrieval, or sees one image, or what is scored was trained on.
    """
    for before in lineage(config)[1:]:
        if before.holdout != config.holdout:
            held = f"has holdout={before.holdout}, this one {config.holdout}"
            raise UserError(f"init: the run that it starts from {held}: it saw what is scored here; set them alike")
        if seen := [region for region in config.left_out if region in before.trained_regions]:
            raise UserError(f"init: the run that it starts from was trained on {seen[0]}; add it to its left_out")
    if trained_on_validation(config):
        uses = {
            "split validation": view.split == "validation",
            f"threshold {view.threshold}": isinstance(view.threshold, str),
            "calibration isotonic": view.calibration == "isotonic",
        }
        for name in (name for name, used in uses.items() if used):
            raise UserError(f"view.{name}: the run, or one that it starts from, was trained on the validation set")
    if view.motion == "none":
        return
    if not isinstance(config.model, Retrieval):
        raise UserError(f"view.motion {view.motion} moves a retrieval's rain; of other models leave it out")
    if config.inputs < 2:
        raise UserError(f"view.motion {view.motion} needs inputs of 2 or more, not {config.inputs}; leave it out")


def load(config: Config, weights: Mapping[str, Tensor], size: int, motion: str = "none") -> Forecaster:
    """Return a trained forecaster of images `size` pixels wide, in evaluation mode, on a GPU where there is one.

    `motion` is the view's, of a retrieval.
    """
    forecaster = build(config, size, config.regions)
    forecaster.load_state_dict(dict(weights))
    if isinstance(forecaster.model, RetrievalForecaster):
        forecaster.model.move(motion)
    return forecaster.eval().to(best_device())


@torch.inference_mode()
def forecast(model: Forecaster, images: Array, region: int, precision: str = "float32") -> Array:
    """Return the probability of rain for normalised images (n, inputs, 11, S, S): float32 (n, leads, S, S)."""
    device = device_of(model.parameters())
    x = torch.from_numpy(images).transpose(1, 2).contiguous().to(device)
    with autocast(device.type, precision):
        logits = model(x, torch.full((len(x),), region, device=device))
    probability: Array = logits.float().sigmoid().cpu().numpy()
    return probability


def predict(config: Config, view: View, weights: Mapping[str, Tensor], source: Source, shard: str) -> dict[str, Array]:
    """Forecast a shard's sequences: `probability`, uint8 (n, leads, S, S) in steps of 1/200."""
    alpha = difference_mask(config, source, shard) if view.calibration == "difference_mask" else None
    model = load(config, weights, int(source.info["size"]), view.motion)
    return {"probability": forecast_windows(model, config, source, sequences(source, config, shard), alpha)}


def forecast_windows(
    model: Forecaster, config: Config, source: Source, windows: Sequence[Window], alpha: Array | None = None
) -> Array:
    """Forecast windows of one region; `alpha` multiplies probabilities. Returns steps, uint8 (n, leads, S, S)."""
    frames, region = Frames(source.folder, source.info), model.number(windows[0].series.split("/")[1])
    steps = []
    for start in range(0, len(windows), BATCH):
        images = [
            normalise(frames.satellite(window.series, window.satellite, window.satellite + config.inputs))
            for window in windows[start : start + BATCH]
        ]
        probability = forecast(model, np.stack(images), region, config.precision)
        steps.append(metrics.quantise(probability if alpha is None else np.minimum(probability * alpha, 1)))
    return np.concatenate(steps)


def difference_mask(config: Config, source: Source, shard: str) -> Array:
    """Return what probabilities of a shard's region and year are multiplied by, float32 (S, S) (section 2.1).

    The reference counts pixels without radar as rain; they are left out here.
    """
    _, year, region = shard.split("/")
    frequencies = [rain_frequency(config, source, f"{year}/{region}/{split}") for split in ("training", "validation")]
    return metrics.difference_mask(*frequencies)


def rain_frequency(config: Config, source: Source, series: str) -> Array:
    """Return how often it rained at each pixel of a series, float (S, S); NaN where no radar ever looked.

    Frames of local hold-outs do not count.
    """
    frames, rows = Frames(source.folder, source.info), source.info["series"].get(series, {}).get("rain") or 0
    size, free = int(source.info["size"]), Index.read(source.folder, source.info, config.holdout).free(series)
    rain, seen = np.zeros((size, size)), np.zeros((size, size))
    for start in range(0, rows, CHUNK):
        stop = min(rows, start + CHUNK)
        events = classify(frames.rate(series, start, stop)[free[start:stop]], config.rain_threshold)
        rain += (events == 1).sum(0)
        seen += (events != 2).sum(0)
    return metrics.ratio(rain, seen, np.nan)


def events(config: Config, source: Source, shard: str) -> Array:
    """Return what happened in a shard's sequences, uint8 (n, leads, S, S): 0 dry, 1 rain, 2 no radar."""
    frames, classes = Frames(source.folder, source.info), []
    for window in sequences(source, config, shard):
        first = window.rain + config.inputs
        rate = frames.rate(window.series, first, first + config.forecast)
        classes.append(classify(rate, config.rain_threshold))
    return np.stack(classes)


def summarise(
    config: Config, view: View, predictions: Mapping[str, Array], source: Source, shard: str
) -> dict[str, Array]:
    """Return what a shard's scores at any threshold are computed from, and an example for the figure."""
    return metrics.summarise(predictions["probability"], events(config, source, shard))


def evaluate(
    config: Config, view: View, summaries: Mapping[str, Mapping[str, Array]], source: Source
) -> dict[str, float]:
    """Return the scores of a view; see `metrics.scores` for their names."""
    return metrics.scores(
        metrics.scored(view, summaries),
        metrics.thresholds(view, summaries),
        config.batch,
        metrics.probabilities_of(view, summaries),
    )


def view_cost(config: Config, view: View) -> float:
    """Return seconds of one CPU core that a view's forecasts take, roughly: a third of training on as many samples."""
    return 60 * len(view.scored or config.regions) * len(config.years) * sample_cost(config) / 3
