"""Seconds that version 1 takes for one evaluation, version 2 for one image, and what the lines of Table I make of them.

Nothing is trained, and nothing but pictures is read: backbones have random weights, which take the same time. A
measurement has its node to itself, so torch uses every core that it may.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
import torch
from torch.nn import functional

from retable.platform.config import override
from retable.platform.spec.task import Source
from retable.platform.store.provenance import cores
from retable.platform.train.worker import best_device, threads
from retable.tasks.style.apply.measurements import BUDGET, SHIPPED
from retable.tasks.style.apply.optimise import EVALUATIONS, ImageOptimisation, version1
from retable.tasks.style.config import Config, Lbfgs, OptimiseImage, TrainNetwork
from retable.tasks.style.data import photograph, tests
from retable.tasks.style.files.assets import paintings, photographs
from retable.tasks.style.files.images import Pixels, read, square, to_tensor
from retable.tasks.style.losses import CRITERIA
from retable.tasks.style.networks.backbones import build
from retable.tasks.style.networks.tiling import stylise
from retable.tasks.style.networks.transformer import untrained

FEWEST, MOST = 8, 50
"""Timings of one measurement: as many as its budget allows, within these. An interval of `LEVEL` takes 8."""
LEVEL = 1 - 0.05 / 4
"""Of each median's interval: a speed-up is compared with another, and four medians hold together in 95 % of cases."""
FEWEST_ROUNDS = 8
"""Rounds in which criteria are timed in turn, at the least: a median's 95 % interval takes 6."""
UHD = (2480, 4032)
"""Height and width of the paper's large photograph."""
ENDS = ("", "_low", "_high")


def seconds_per_evaluation(config: Config, budget: float = 60.0) -> dict[str, float]:
    """Time steps of version 1 at the method's full size.

    The first, which compile and allocate, do not count, nor, for a third of the budget, those while L-BFGS has less
    than its full history.

    Returns:
        `seconds_per_evaluation` (the median; its interval with `_low` and `_high`), `seconds` (the median times
        `EVALUATIONS`), `evaluations` (how many were timed), and `gpu` (0 or 1).

    Raises:
        ValueError: where the config does not optimise an image.
    """
    with threads(cores()):
        job, warm_up = optimisation(config)
        metrics = summary("seconds_per_evaluation", timed(job.step, warm_up, budget))
    return {**metrics, "seconds": EVALUATIONS * metrics["seconds_per_evaluation"]}


def optimisation(config: Config) -> tuple[ImageOptimisation, int]:
    """Return version 1 at the method's full size with random weights, and how many of its first steps do not count.

    Raises:
        ValueError: where the config does not optimise an image.
    """
    method = version1(config)
    method = replace(method, scales=(), backbone=replace(method.backbone, weights="random", normalise=False))
    shipped = photographs()
    content = read(shipped.get(method.content, shipped["mountain"])).pixels
    chosen = [read(paintings().get(name, paintings()["great_wave"])).pixels for name in config.style]
    network = build(method.backbone, config.seed, None)
    job = ImageOptimisation(replace(config, method=method), content, chosen, network, best_device())
    return job, method.optimizer.history + 1 if isinstance(method.optimizer, Lbfgs) else 2


def seconds_of_criteria(config: Config, budget: float = 240.0) -> dict[str, float]:
    """Time steps of version 1 with each criterion in turn, so that what else the machine does slows all of them alike.

    The first steps of each do not count; see `seconds_per_evaluation`.

    Returns:
        `<criterion>_seconds`, medians, with 95 % intervals of the median (`_low`, `_high`); `rounds`, how many steps of
        each were timed; and `gpu` (0 or 1).

    Raises:
        ValueError: where the config does not optimise an image.
    """
    begun = time.perf_counter()
    times: dict[str, list[float]] = {name: [] for name in CRITERIA}
    with threads(cores()):
        jobs = {name: optimisation(override(config, {"method.objective.criterion": name})) for name in CRITERIA}
        for _ in range(max(warm_up for _, warm_up in jobs.values())):
            for job, _ in jobs.values():
                job.step()
            if time.perf_counter() - begun > budget / 3:
                break
        rounds = 0
        while rounds < FEWEST_ROUNDS or (rounds < MOST and time.perf_counter() - begun < budget):
            for name in sorted(jobs, key=list(jobs).index, reverse=bool(rounds % 2)):
                times[name].append(once(jobs[name][0].step))
            rounds += 1
    metrics = {"rounds": float(rounds), "gpu": float(torch.cuda.is_available())}
    for criterion, values in times.items():
        metrics |= dict(zip((f"{criterion}_seconds{end}" for end in ENDS), median_interval(values), strict=True))
    return metrics


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return the median, and the ends of an interval that holds the true one at least so often.

    The ends are order statistics, by the binomial distribution of how many values lie below the median: right for any
    distribution of independent values.
    """
    from scipy.stats import binom

    ordered = sorted(values)
    rank = max(int(binom.ppf((1 - level) / 2, len(ordered), 0.5)) - 1, 0)
    return float(np.median(ordered)), ordered[rank], ordered[-1 - rank]


def seconds_per_image(
    config: Config,
    shape: tuple[int, int] | None = None,
    budget: float = 60.0,
    photographs: int = SHIPPED,
    source: Source | None = None,
) -> dict[str, float]:
    """Time passes of version 2, on squares of the method's size or at `shape`, one on each of some photographs.

    They are a data set's test photographs; where it has not so many, or there is none, the shipped ones in turn. Where
    the budget allows, there are more passes. Pictures lie on the device and stay there. The network is untrained.

    Returns:
        `seconds_per_image` and the rest as `seconds_per_evaluation` has them, without `seconds`; and `photographs`, how
        many different ones there were.

    Raises:
        ValueError: where the config does not train a network.
    """
    method = config.method
    if not isinstance(method, TrainNetwork):
        raise ValueError(f"{type(method).__name__} does not train a network")
    side = max(shape or (method.size,))
    network = untrained(method).eval().to(best_device())
    pictures = [to_tensor(square(pixels, side)) for pixels in pictures_of(source, photographs)]
    pictures = [
        functional.interpolate(image, shape or (side, side), mode="bilinear").to(best_device()) for image in pictures
    ]
    turn = cycle(pictures)
    with threads(cores()):
        times = timed(lambda: stylise(network, next(turn), config.precision), SHIPPED, budget, max(FEWEST, photographs))
    return {**summary("seconds_per_image", times), "photographs": float(len(pictures))}


def pictures_of(source: Source | None, count: int) -> Iterator[Pixels]:
    """Yield so many test photographs of a data set; the shipped ones where it has not so many, or there is none."""
    names = tests(source) if source else ()
    if source is None or len(names) < count:
        return (read(path).pixels for path in list(photographs().values())[:count])
    return (photograph(source, name) for name in names[:count])


def timed(work: Callable[[], object], warm_up: int, budget: float, fewest: int = FEWEST) -> list[float]:
    """Return the seconds of single calls, the device's work included, until `budget` seconds are spent.

    Before them come `warm_up` calls, at least one, as a third of the budget allows. There are at least `fewest`.
    """
    begun = time.perf_counter()
    for _ in range(warm_up):
        once(work)
        if time.perf_counter() - begun > budget / 3:
            break
    times: list[float] = []
    while len(times) < fewest or (len(times) < MOST and time.perf_counter() - begun < budget):
        times.append(once(work))
    return times


def once(work: Callable[[], object]) -> float:
    """Return the seconds of one call, the device's work included."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def summary(name: str, times: list[float]) -> dict[str, float]:
    """Return the median of some timings with its interval, their number, and whether a GPU was timed."""
    ends = dict(zip((f"{name}{end}" for end in ENDS), median_interval(times, LEVEL), strict=True))
    return {**ends, "evaluations": float(len(times)), "gpu": float(torch.cuda.is_available())}


def seconds_of_versions(
    config: Config, photographs: int = SHIPPED, budget: float = BUDGET, source: Source | None = None
) -> dict[str, float]:
    """Time both versions on squares of the size of a version 1's config, whatever its backbone.

    Version 2 is timed over so many photographs of the data set; see `seconds_per_image`. `budget` is in seconds for
    each system.

    Returns:
        `alexnet_seconds` and `vgg_seconds` of a run of `EVALUATIONS`, `network_seconds` of one image, and their ratios
        `speedup_alexnet`, `speedup_vgg` and `vgg_over_alexnet`: medians, with intervals (`_low`, `_high`); `gpu`, 0 or
        1; and `photographs`, how many different ones version 2 was timed over.

    Raises:
        ValueError: where the config does not optimise an image.
    """
    method = version1(config)
    metrics: dict[str, float] = {}
    for name, backbone in (("alexnet", "alexnet"), ("vgg", "vgg19")):
        times = seconds_per_evaluation(override(config, {"method.backbone": backbone}), budget)
        metrics |= {f"{name}_seconds{end}": EVALUATIONS * times[f"seconds_per_evaluation{end}"] for end in ENDS}
    metrics |= network(config, (method.size, method.size), photographs, source, budget)
    ratios = {"speedup_alexnet": ("alexnet", "network"), "speedup_vgg": ("vgg", "network")}
    for name, (slow, fast) in {**ratios, "vgg_over_alexnet": ("vgg", "alexnet")}.items():
        metrics |= ratio(metrics, name, f"{slow}_seconds", f"{fast}_seconds")
    return metrics


def network(
    config: Config,
    shape: tuple[int, int],
    photographs: int = SHIPPED,
    source: Source | None = None,
    budget: float = BUDGET,
) -> dict[str, float]:
    """Time version 2 at the config's precision, with the paper's network unless the config has another."""
    if isinstance(config.method, OptimiseImage):
        config = override(config, {"method": "train_network"})
    times = seconds_per_image(config, shape, budget, photographs, source)
    seconds = {f"network_seconds{end}": times[f"seconds_per_image{end}"] for end in ENDS}
    return {**seconds, "gpu": times["gpu"], "photographs": times["photographs"]}


def ratio(times: Mapping[str, float], name: str, above: str, below: str) -> dict[str, float]:
    """Divide two times; the ends are those of intervals which err in opposite ways."""
    return {
        name: times[above] / times[below],
        f"{name}_low": times[f"{above}_low"] / times[f"{below}_high"],
        f"{name}_high": times[f"{above}_high"] / times[f"{below}_low"],
    }
