"""The paper's findings, and ours, as functions of the measured rows.

The paper judges by eye. Here pictures are judged by a network that none was made with, over several photographs:
a comparison is the geometric mean of the ratios, photograph by photograph, with Student's 95 % interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from retable.platform.spec.claims import Estimate, Verdict, decided, join, judge, mean_of, too_few, untested
from retable.platform.spec.table import Replicate, Results, Row, claim
from retable.tasks.style.config import Alexnet, OptimiseImage, TrainNetwork
from retable.tasks.style.figures import CRITERIA, arrays_of, losses_of, photograph_of
from retable.tasks.style.files import assets
from retable.tasks.style.tables import (
    ALEXNET,
    LARGE,
    LOSSES,
    OPTIMIZED,
    SPEEDS,
    STARTED,
    STYLISED1,
    STYLISED2,
    TIMES,
    UHD,
    VGG19,
)

ALIKE = 1.5
"""Judged errors within this factor of each other are alike: settings differ by far more."""
TREND = 3.0
"""Losses that fall within this factor of each other, half a decade, have a similar trend."""
HUNDREDS = 100.0
SEVERAL = 3.0
"""Several times as fast; the paper says `around 5`."""
EXTREME = 0.1
"""A loss is extremely high where another is below this share of it."""
NOISE = 1.25
"""Times whose ratio's interval lies within this factor differ by noise."""
EQUAL = 1e-5
"""Relative difference of losses that are the same but for rounding."""
LATTICE, LATTICE_SIZE = 600.0, 384
"""The most that a trained network's pictures of this longer side have (`judge.lattice`): two published ones have 197 to
575 on the shipped photographs. A wave's power over its surroundings grows with the number of pixels, and so does the
limit: at 512 pixels they have 283 to 936, and the limit is 1,067."""
LEARNT = 0.5
"""A trained network's style error over that of the photographs as they are, at most: of those two at most 0.23."""
RATES = "; the paper gives no rates: SGD's was chosen so that it diverges as there"
SECONDS = 3.0
"""A 4K picture takes 2 to 3 seconds (section V.A)."""

Quantity = str | Callable[[Replicate], float]
"""A metric by name, or what is made of a replicate."""
RATIO = ".3g"
"""Format of printed ratios and of the values that they are made of."""


def by_photograph(results: Results, rows: Sequence[Row], quantity: Quantity) -> dict[str, float]:
    """Return a quantity of the rows' runs, by photograph; of a run that diverged, infinity."""
    values = {}
    for row in rows:
        for replicate in results.select(row):
            value = replicate.metrics.get(quantity) if isinstance(quantity, str) else quantity(replicate)
            if value is not None:
                values[photograph_of(replicate)] = float(value)
        values |= {photograph_of(replicate): np.inf for replicate in results.diverged(row)}
    return values


def compare(results: Results, above: Sequence[Row], below: Sequence[Row], quantity: Quantity) -> Estimate | Verdict:
    """Return the ratio of a quantity of some rows to that of others; a verdict where that cannot be done.

    A loss that overflowed counts as the largest number there is; two such losses are equal.
    """
    over, under = (by_photograph(results, rows, quantity) for rows in (above, below))
    common = [name for name in over if name in under]
    if refused := too_few(len(common), "photograph"):
        return refused
    largest, smallest = np.finfo(np.float64).max, np.finfo(np.float64).tiny
    values = np.array([[over[name], under[name]] for name in common])
    logs = np.log(np.clip(np.nan_to_num(values, nan=largest), smallest, largest))
    estimate = mean_of([logs[:, 0] - logs[:, 1]], form=RATIO, noun="photographs")
    logarithms = estimate.ends
    assert logarithms is not None

    def ends(count: float) -> tuple[float, float]:
        low, high = logarithms(count)
        return exp(low), exp(high)

    return replace(estimate, value=exp(estimate.value), low=exp(estimate.low), high=exp(estimate.high), ends=ends)


def exp(logarithm: float) -> float:
    """Return a number by its logarithm; infinity where it is too large."""
    with np.errstate(over="ignore"):
        return float(np.exp(logarithm))


def lower(results: Results, *triples: tuple[Row, Row, str], most: float = 1.0) -> Verdict:
    """Return whether, for each (one, other, metric), the metric of the one row is below `most` times the other's."""
    return join(
        [
            judge(
                compare(results, [one], [other], metric),
                0.0,
                most,
                f"{metric.replace('_', ' ')}, {one.label} over {other.label}:",
            )
            for one, other, metric in triples
        ]
    )


def alike(results: Results, ones: Sequence[Row], other: Row) -> Verdict:
    """Return whether both judged errors of some rows are within a factor `ALIKE` of another's."""
    parts = [
        judge(
            compare(results, [one], [other], f"{name}_error"),
            1 / ALIKE,
            ALIKE,
            f"{name} error, {one.label} over {other.label}:",
        )
        for one in ones
        for name in ("style", "content")
    ]
    return join(parts).noted(f"; alike means within a factor {ALIKE}")


def spread(metrics: Mapping[str, float], name: str) -> Estimate:
    """Return a measured number and its range, `name`, `name_low` and `name_high`."""
    value, low, high = (metrics[f"{name}{end}"] for end in ("", "_low", "_high"))
    return Estimate(value, low, high, form=RATIO)


def at_every_size(results: Results, name: str, least: float, sizes: Sequence[int] = tuple(SPEEDS)) -> Verdict:
    """Return whether a measured ratio is at least so large at each of some sizes."""
    metrics = {size: results.measured(SPEEDS[size]) for size in sizes}
    estimates = {
        size: spread(measured, name) if measured else untested(f"{size} pixels not run")
        for size, measured in metrics.items()
    }
    words = name.replace("_", " ")
    return join([judge(measured, least, np.inf, f"{words} at {size} pixels") for size, measured in estimates.items()])


def on_a_gpu(results: Results, verdict: Verdict) -> Verdict:
    """Return the verdict on a claim about GPUs: not tested where a CPU was timed, with the CPU's numbers."""
    timed = [replicate for rows in results.replicates.values() for replicate in rows if "gpu" in replicate.metrics]
    return (
        verdict
        if all(replicate.metrics["gpu"] for replicate in timed)
        else untested(f"not tested on a CPU, where it is {verdict.because}")
    )


def much_faster(results: Results) -> Verdict:
    """Return whether version 2 is a hundred times as fast as version 1, or more, with either backbone, at each size."""
    parts = [at_every_size(results, f"speedup_{backbone}", HUNDREDS) for backbone in ("alexnet", "vgg")]
    return on_a_gpu(results, join(parts))


def several_times(results: Results) -> Verdict:
    """Return whether AlexNet is several times as fast as VGG-19 at 512 pixels."""
    return on_a_gpu(results, at_every_size(results, "vgg_over_alexnet", SEVERAL, (512,)))


def grows(results: Results) -> Verdict:
    """Return whether the speed-up at 1,024 pixels is larger than at 256, with either backbone."""
    small, large = (results.measured(SPEEDS[size]) for size in (256, 1024))
    if small is None or large is None:
        return untested("rows are missing")
    verdicts = []
    for name in ("alexnet", "vgg"):
        over, under = (spread(metrics, f"speedup_{name}") for metrics in (large, small))
        ratio = Estimate(over.value / under.value, over.low / under.high, over.high / under.low, form=RATIO)
        verdicts.append(judge(ratio, 1.0, np.inf, f"speedup {name}, 1,024 over 256 pixels:"))
    return join(verdicts)


def seconds_of_4k(results: Results) -> Verdict:
    """Return whether version 2 stylises a 4K picture on a GPU within 3 seconds."""
    metrics = results.measured(UHD)
    if metrics is None:
        return untested("not run")
    return on_a_gpu(results, spread(metrics, "network_seconds").verdict(0.0, SECONDS).noted(" s"))


def untrained(results: Results) -> Verdict | None:
    """Return why version 2's networks do not count as trained; None where they do.

    The judge decides, by limits of published networks of this architecture: no stronger lattice, and at most half of
    the style error that the photographs themselves have.
    """
    for row in STYLISED2:
        for replicate in results.select(row):
            lattice, style, before = (
                replicate.metrics.get(name, np.inf) for name in ("lattice", "style_error", "photograph_style_error")
            )
            size = (replicate.view and replicate.view.size) or LATTICE_SIZE
            most = LATTICE * (size / LATTICE_SIZE) ** 2
            if not lattice <= most:
                trained = f"trained networks have at most {most:.0f} at {size} pixels"
                return untested(f"{row.label}: a lattice of {lattice:.0f}; {trained}")
            if not style <= LEARNT * before:
                return untested(f"{row.label}: style error {style:.3g}, the photograph's {before:.3g}: not half of it")
    return None


def more_style(results: Results) -> Verdict:
    """Return whether version 1's judged style error is lower than version 2's, and how long version 2 was trained."""
    if refused := untrained(results):
        return refused
    ratio = compare(results, STYLISED1, STYLISED2, "style_error")
    verdict = judge(ratio, 0.0, 1.0, "style error, version 1 over version 2:")
    configs = [replicate.config for row in STYLISED2 for replicate in results.select(row)]
    trained = [
        f"; version 2 after {c.epochs * c.steps:,} batches (COCO 2017 once: 29,500)"
        if isinstance(c.method, TrainNetwork)
        else "; version 2 by the zoo's network"
        for c in configs[:1]
    ]
    return verdict.noted("".join(trained))


def fall(replicate: Replicate) -> float:
    """Return the result's loss over the first; the last evaluation may be of a move that was not made."""
    return float(replicate.metrics["final_loss"] / losses_of(replicate, relative=False)[0])


def falls_alike(results: Results, one: Row, other: Row) -> Verdict:
    """Return whether the losses of two rows fall by a similar factor."""
    about = f"loss left, {one.label} over {other.label}:"
    verdict = judge(compare(results, [one], [other], fall), 1 / TREND, TREND, about)
    return verdict.noted(f"; similar means within a factor {TREND:g}")


def of_trained_backbones(results: Results, check: Callable[..., Verdict], *rest: object) -> Verdict:
    """Return the verdict of `check(results, *rest)`, not tested where a backbone is not trained.

    The small AlexNet learnt from another architecture; on unseen pictures its third layer explains next to nothing of
    its teacher's.
    """
    methods = [replicate.config.method for row in (VGG19, ALEXNET) for replicate in results.select(row)]
    backbones = [method.backbone for method in methods if isinstance(method, OptimiseImage)]
    if any(backbone.weights == "random" for backbone in backbones):
        return untested("about trained backbones, and these are random")
    verdict = check(results, *rest)
    if any(isinstance(backbone, Alexnet) and backbone.weights == "small" for backbone in backbones):
        return untested(f"the small AlexNet's third layer is hardly a trained one's; with it, {verdict.because}")
    return verdict


def seconds(results: Results, name: str) -> Estimate | None:
    """Return the median seconds of one evaluation with a loss function, with its 95 % interval."""
    metrics = results.measured(TIMES)
    return None if metrics is None else spread(metrics, f"{CRITERIA[name]}_seconds")


def quicker(results: Results, quick: Sequence[str], slow: Sequence[str]) -> Verdict:
    """Return whether some losses take fewer seconds on a GPU than others, beyond the medians' intervals."""
    times = {name: seconds(results, name) for name in (*quick, *slow)}
    measured = {name: time for name, time in times.items() if time}
    if len(measured) < len(times):
        return untested("rows are missing")
    because = ", ".join(f"{name} {time} s" for name, time in measured.items())
    pairs = [(measured[one], measured[other]) for one in quick for other in slow]
    if all(one.high < other.low for one, other in pairs):
        return on_a_gpu(results, Verdict("holds", because))
    slower = any(one.low > other.high for one, other in pairs)
    return on_a_gpu(results, Verdict("does not hold" if slower else "not separable", because))


def same_function(results: Results) -> Verdict:
    """Return whether Huber and smooth L1 give equal first losses, and times within a factor `NOISE` of each other."""
    times = [seconds(results, name) for name in ("Huber", "smooth L1")]
    losses = [
        by_photograph(results, [LOSSES[name]], lambda replicate: losses_of(replicate, relative=False)[0])
        for name in ("Huber", "smooth L1")
    ]
    if None in times or not losses[0] or losses[0].keys() != losses[1].keys():
        return untested("rows are missing")
    gap = max(abs(losses[0][name] / losses[1][name] - 1) for name in losses[0])
    one, other = (time for time in times if time)
    because = f"first losses differ by {gap:.1g} of their size; seconds, Huber {one}, smooth L1 {other}"
    if gap >= EQUAL:
        return decided(False, because)
    ratio = Estimate(one.value / other.value, one.low / other.high, one.high / other.low, "times as long", ".2f")
    return judge(ratio, 1 / NOISE, NOISE, f"{because}:").noted(f"; noise means within a factor {NOISE}")


def extreme(results: Results) -> Verdict:
    """Return whether L-BFGS ends below Adam, and Adam below `EXTREME` times what SGD ends at."""
    lowest = lower(results, *order(("L-BFGS", "Adam", "final_loss")))
    highest = lower(results, *order(("Adam", "SGD", "final_loss")), most=EXTREME)
    return join([lowest, highest]).noted(f"; extremely high means above {1 / EXTREME:g} times{RATES}")


def no_content(results: Results) -> Verdict:
    """Return whether SGD's judged content error is above L-BFGS' and Adam's."""
    pairs = (("L-BFGS", "SGD", "content_error"), ("Adam", "SGD", "content_error"))
    return lower(results, *order(*pairs)).noted(RATES)


def order(*triples: tuple[str, str, str]) -> list[tuple[Row, Row, str]]:
    """Return (row, row, metric) of optimizers' names: the metric is said to be lower of the first (`lower`)."""
    return [(OPTIMIZED[one], OPTIMIZED[other], metric) for one, other, metric in triples]


def keeps_size(results: Results) -> Verdict:
    """Return whether results have their photographs' own sizes; not tested where a scale reduces the photographs."""
    with Image.open(assets.large()[assets.LARGE]) as picture:
        own = picture.size
    pairs = []
    for replicate in results.select(LARGE):
        arrays: Mapping[str, Any] = arrays_of(replicate)
        name = photograph_of(replicate)
        pairs.append([arrays[f"{what}/{name}"].shape[1::-1] for what in ("photograph", "stylised")])
    if not pairs:
        return untested("rows are missing")
    if any(before != own for before, _ in pairs):
        return untested(f"reduced at this scale; the photograph has {own[0]} x {own[1]} pixels")
    because = "; ".join(f"{w} x {h} gives {v} x {g}" for (w, h), (v, g) in pairs)
    return decided(all(one == other for one, other in pairs), because)


CLAIMS = {
    "table1": [
        claim("Version 2 is hundreds of times as fast as version 1, at every size.", much_faster),
        claim("The speed-up is larger at higher resolutions.", grows),
        claim("At 512 pixels AlexNet is several times as fast as VGG-19 (the paper: around 5).", several_times),
        claim("A 4K picture takes 2 to 3 seconds, or less, on a GPU.", seconds_of_4k),
    ],
    "figure1": [claim("Version 1 preserves more of the style than version 2.", more_style)],
    "figure2": [claim("Both backbones have a similar loss trend.", of_trained_backbones, falls_alike, ALEXNET, VGG19)],
    "figure3": [claim("Both backbones end alike.", of_trained_backbones, alike, [ALEXNET], VGG19)],
    "figure4": [
        claim("Huber and MSE take less time than L1 and smooth L1.", quicker, ("Huber", "MSE"), ("L1", "smooth L1")),
        claim(
            "The four losses end alike.", alike, [LOSSES[name] for name in ("L1", "smooth L1", "Huber")], LOSSES["MSE"]
        ),
        claim(
            "Huber with delta 1 and smooth L1 are one function: their losses are equal, their times differ by noise.",
            same_function,
            ours=True,
        ),
    ],
    "figure5": [
        claim("L-BFGS ends with the lowest loss, SGD with an extremely high one.", extreme),
        claim(
            "SGD ends lower where its gradients are normalised.",
            lower,
            *order(("SGD, normalised gradient", "SGD", "final_loss")),
            ours=True,
        ),
    ],
    "figure6": [
        claim(
            "Adam keeps more of the content than L-BFGS, and takes less of the style.",
            lower,
            *order(("Adam", "L-BFGS", "content_error"), ("L-BFGS", "Adam", "style_error")),
        ),
        claim("SGD gives no picture with clear content.", no_content),
    ],
    "figure8": [claim("The result has the size of the photograph.", keeps_size)],
    "starts": [
        claim(
            "Begun with the photograph, a picture keeps more of it than begun with noise.",
            lower,
            (STARTED["the photograph"], STARTED["noise"], "content_error"),
            ours=True,
        ),
    ],
}
