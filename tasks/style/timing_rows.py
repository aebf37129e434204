"""What the lines of Table I measure: version 1 with two backbones and version 2, at one size."""

from __future__ import annotations

from collections.abc import Mapping

from retable.platform.config import override
from retable.platform.task import Source
from retable.tasks.style.apply.optimise import EVALUATIONS
from retable.tasks.style.config import Config, OptimiseImage
from retable.tasks.style.timing import SHIPPED, seconds_per_evaluation, seconds_per_image

BUDGET = 20.0
"""Seconds for each system; a GPU needs fewer for as many timings as are taken at most."""
UHD = (2480, 4032)
"""Height and width of the paper's large photograph."""
ENDS = ("", "_low", "_high")


def seconds_of_versions(config: Config, photographs: int = SHIPPED, source: Source | None = None) -> dict[str, float]:
    """Time both versions on squares of the size of a version 1's config, whatever its backbone.

    Version 2 is timed over so many photographs of the data set; see `seconds_per_image`.

    Returns:
        `alexnet_seconds` and `vgg_seconds` of a run of `EVALUATIONS`, `network_seconds` of one image, and their ratios
        `speedup_alexnet`, `speedup_vgg` and `vgg_over_alexnet`: medians, with quartiles (`_low`, `_high`); `gpu`, 0 or
        1; and `photographs`, how many different ones version 2 was timed over.

    Raises:
        ValueError: where the config does not optimise an image.
    """
    method = config.method
    if not isinstance(method, OptimiseImage):
        raise ValueError(f"{type(method).__name__} does not optimise an image")
    found: dict[str, float] = {}
    for name, backbone in (("alexnet", "alexnet"), ("vgg", "vgg19")):
        times = seconds_per_evaluation(override(config, {"method.backbone": backbone}), BUDGET)
        found |= {f"{name}_seconds{end}": EVALUATIONS * times[f"seconds_per_evaluation{end}"] for end in ENDS}
    found |= network(config, (method.size, method.size), photographs, source)
    ratios = {"speedup_alexnet": ("alexnet", "network"), "speedup_vgg": ("vgg", "network")}
    for name, (slow, fast) in {**ratios, "vgg_over_alexnet": ("vgg", "alexnet")}.items():
        found |= ratio(found, name, f"{slow}_seconds", f"{fast}_seconds")
    return found


def seconds_of_4k(config: Config) -> dict[str, float]:
    """Time version 2 on 4032 x 2480 pixels: `network_seconds` with quartiles, `gpu` and `photographs`."""
    return network(config, UHD)


def network(
    config: Config, shape: tuple[int, int], photographs: int = SHIPPED, source: Source | None = None
) -> dict[str, float]:
    """Time version 2 at the config's precision, with the paper's network unless the config has another."""
    if isinstance(config.method, OptimiseImage):
        config = override(config, {"method": "train_network"})
    times = seconds_per_image(config, shape, BUDGET, photographs, source)
    seconds = {f"network_seconds{end}": times[f"seconds_per_image{end}"] for end in ENDS}
    return {**seconds, "gpu": times["gpu"], "photographs": times["photographs"]}


def ratio(found: Mapping[str, float], name: str, above: str, below: str) -> dict[str, float]:
    """Divide two times; the range is that of quartiles which err in opposite ways."""
    return {
        name: found[above] / found[below],
        f"{name}_low": found[f"{above}_low"] / found[f"{below}_high"],
        f"{name}_high": found[f"{above}_high"] / found[f"{below}_low"],
    }
