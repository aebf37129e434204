"""Measurements of Table I and figure 4: tables name these functions, which import `timing`, and torch, when called."""

from __future__ import annotations

from retable.platform.spec.table import stored_as
from retable.platform.spec.task import Source
from retable.tasks.style.config import Config

SHIPPED = 3
"""Photographs that come with the task."""
BUDGET = 20.0
"""Seconds for each system; a GPU needs fewer for as many timings as are taken at most."""


@stored_as("intervals_of_versions")
def seconds_of_versions(
    config: Config, photographs: int = SHIPPED, budget: float = BUDGET, source: Source | None = None
) -> dict[str, float]:
    """Time both versions; see `timing.seconds_of_versions`."""
    from retable.tasks.style.apply import timing

    return timing.seconds_of_versions(config, photographs, budget, source)


@stored_as("interval_of_4k")
def seconds_of_4k(config: Config) -> dict[str, float]:
    """Time version 2 on 4032 x 2480 pixels; see `timing.network`."""
    from retable.tasks.style.apply import timing

    return timing.network(config, timing.UHD)


@stored_as("seconds_of_criteria")
def seconds_of_criteria(config: Config) -> dict[str, float]:
    """Time version 1 with each criterion in turn; see `timing.seconds_of_criteria`."""
    from retable.tasks.style.apply import timing

    return timing.seconds_of_criteria(config)
