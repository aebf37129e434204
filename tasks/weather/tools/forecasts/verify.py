"""A page on how good runs' forecasts are: scores with intervals, figures, cases beside the radar, numbers as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retable.platform.console import Show
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import Storage
from retable.tasks.weather import metrics
from retable.tasks.weather.config import STEPS
from retable.tasks.weather.data import sequences
from retable.tasks.weather.figures import draw_scores
from retable.tasks.weather.metrics import MINUTES, thresholds, thresholds_of, validated
from retable.tasks.weather.model import Forecaster
from retable.tasks.weather.predict import events, forecast_windows, reads, shards
from retable.tasks.weather.tools.forecasts.cases import Case, Forecast, agreement, cases, draw_agreement, draw_cases
from retable.tasks.weather.tools.forecasts.exchange import Opened, check_alike
from retable.tasks.weather.verification import SCORES, THRESHOLDS, Band, Verification
from retable.tasks.weather.w4c.layout import Index
from retable.tasks.weather.w4c.prepare import caution, describe

SAME = ("data", "regions", "years", "inputs", "forecast", "holdout", "rain_threshold")
"""Fields that runs must have in common to forecast the same sequences."""


SHOWN = 4
"""Runs whose forecasts are shown beside each other."""


def verify(runs: Sequence[Opened], out: Path, show: Show) -> Path:
    """Forecast a split by one run or by several; write `index.html`, its pictures and `scores.csv`, return the page.

    Raises:
        UserError: where runs forecast different sequences, or there are none.
    """
    first = runs[0]
    check_alike("verify", [run.config for run in runs], SAME)
    models = [run.model() for run in runs]
    votes = np.zeros((len(runs) + 1, 2), np.int64)
    by_run: list[dict[str, dict[str, Array]]] = [{} for _ in runs]
    split, *tuning = [shards(first.config, view, first.source) for view in reads(first.view)]
    wanted = [*(shard for part in tuning for shard in part), *split]
    voted = len(wanted) - len(split)
    if len(runs) > 1 and first.view.split == "validation" and first.view.threshold == "tuned":
        voted = len(wanted)  # all shards decide on the threshold: they are forecast once more, for the votes
        wanted = [*wanted, *split]
    for done, shard in enumerate(wanted):
        show(done, len(wanted))
        rain: Array | int = 0
        truth = events(first.config, first.source, shard)
        for run, model, summaries in zip(runs, models, by_run, strict=True):
            windows = sequences(run.source, run.config, shard)
            steps = forecast_windows(model, run.config, run.source, windows)
            if shard not in summaries:
                summaries[shard] = metrics.summarise(steps, truth)
            if done >= voted:
                chosen = thresholds_of([shard], run.view, validated(summaries))[shard]
                rain = rain + metrics.rain(steps, chosen).astype(np.uint8)
        if not isinstance(rain, int):
            votes += agreement(rain, truth, len(runs))
    show(len(wanted), len(wanted))
    parts = []
    for run, summaries in zip(runs, by_run, strict=True):
        by = thresholds(run.view, summaries)
        parts.append(Verification(name_of(run), [{shard: summaries[shard] for shard in by}], [by]))
    shown = list(chosen_cases(runs[:SHOWN], models, parts))
    return write_page(runs, parts, shown, votes, out)


def name_of(run: Opened) -> str:
    """Return what a run is called on the page."""
    epoch = f", epoch {run.view.epoch}" if run.view.epoch != run.config.epochs else ""
    return f"{type(run.config.model).__name__} {run.run.fingerprint[:8]}{epoch}, seed {run.config.seed}"


def chosen_cases(runs: Sequence[Opened], models: Sequence[Forecaster], parts: Sequence[Verification]) -> Iterator[Case]:
    """Forecast the best, the median and the worst sequence of the first run once more, by each, for a picture."""
    config, source = runs[0].config, runs[0].source
    index = Index.read(source.folder, source.info, config.holdout)
    for name, (shard, number) in cases({shard: table[0] for shard, table in parts[0].counts.items()}).items():
        window = sequences(source, config, shard)[number]
        forecasts = []
        for run, model, part in zip(runs, models, parts, strict=False):  # of more than are shown, the first
            steps = forecast_windows(model, run.config, run.source, [window])[0]
            who = "forecast" if len(runs) == 1 else f"{run.run.fingerprint[:8]}@{run.view.epoch}"
            score = float(metrics.iou(part.counts[shard][0][number].sum(axis=0)))
            threshold = np.broadcast_to(part.thresholds[0][shard], (len(steps),))
            forecasts.append(Forecast(f"{who}\nIoU {score:.2f}", steps / STEPS, threshold))
        time = str(index.reference_times([window], config.inputs)[0]).replace("T", " ")
        year_region = " ".join(shard.split("/")[1:])
        yield Case(f"{name}\n{year_region}\n{time}", events(config, source, shard)[number], forecasts)


def lines(part: Verification) -> Iterator[tuple[str, str, str, float, float, float]]:
    """Yield every score as a line: about what, where, which, value, and the ends of its interval."""

    def rows(about: str, labels: Sequence[Any], names: Sequence[str], band: Band) -> Iterator[Any]:
        ends = [end.reshape(len(labels), len(names)) for end in (band.value, band.low, band.high)]
        for (row, label), (column, name) in ((p, n) for p in enumerate(labels) for n in enumerate(names)):
            yield about, str(label), name, *(float(end[row, column]) for end in ends)

    lead, (reliability, forecast, shares) = part.by_lead(), part.reliability()
    yield from rows("all", [""], SCORES, part.total())
    yield from rows("all", [""], ("Brier", "reliability", "resolution", "uncertainty", "Brier skill"), part.brier())
    yield from rows("minutes", range(MINUTES, MINUTES * len(lead.value) + 1, MINUTES), SCORES, lead)
    for label, band in part.by_place().items():
        yield from rows("year and region", [label], SCORES, band)
    yield from rows("neighbourhood, pixels", part.widths, ("FSS",), part.by_width())
    yield from rows("threshold", THRESHOLDS.tolist(), ("IoU",), part.by_threshold())
    yield from rows("mean probability", [f"{value:.4f}" for value in forecast], ("it rained",), reliability)
    yield from rows("tenth of probability", range(1, 11), ("share of pixels",), shares)


def write_page(
    runs: Sequence[Opened], parts: Sequence[Verification], shown: Sequence[Case], votes: Array, out: Path
) -> Path:
    """Write the page and what lies beside it."""
    from retable.platform.report.html import FOLDER, environment, size_of
    from retable.platform.report.write import pictures

    folder = Storage.open(out)
    draw: dict[str, Callable[[], Any]] = {"scores": lambda: draw_scores(parts)}
    draw |= {"cases": lambda: draw_cases(shown)} if shown else {}
    draw |= {"agreement": lambda: draw_agreement(votes)} if len(parts) > 1 else {}
    sizes = {}
    for name, function in draw.items():
        for kind, data in (files := pictures(function)).items():
            folder.write(f"{name}.{kind}", data)
        sizes[name] = size_of(files["png"])
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("run", "about", "where", "score", "value", "low", "high", "data"))
    for part in parts:
        for about, where, name, *numbers in lines(part):
            texts = (f"{number:.6g}" for number in numbers)
            writer.writerow((part.label, about, where, name, *texts, describe(runs[0].source.info)))
    folder.write("scores.csv", table.getvalue())
    counts = parts[0].counts
    page = (
        environment(Path(__file__).parent)
        .get_template("verification.html.j2")
        .render(
            css=(FOLDER / "report.css").read_text(),
            rows=[facts(part) for part in parts],
            widths=parts[0].widths,
            first=parts[0].label,
            shown=min(len(runs), SHOWN),
            floor=float(parts[0].all_rain().mean()),
            pictures=list(draw),
            sizes=sizes,
            split=runs[0].view.split,
            data=describe(runs[0].source.info),
            caution=caution(runs[0].source.info),
            sequences=sum(confusion.shape[1] for confusion in counts.values()),
            places=len(counts),
            threshold=runs[0].view.threshold,
            run=runs[0].run.fingerprint,
        )
    )
    folder.write("index.html", page)
    return out / "index.html"


def facts(part: Verification) -> Mapping[str, Any]:
    """Return a run's row of the page's table: cells with value and interval."""
    total, brier, widths = part.total(), part.brier(), part.by_width()
    cells = [total[k] for k in range(len(SCORES))] + [brier[0], brier[4]] + [widths[k] for k in range(len(part.widths))]
    return {"label": part.label, "cells": [(float(c.value), float(c.low), float(c.high)) for c in cells]}
