"""Prepare datasets: record them in a simulator; errors say where to get the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from retable.platform.console import progress_bar
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.rl.config import Config
from retable.tasks.rl.metrics import D4RL
from retable.tasks.rl.recordings import d4rl
from retable.tasks.rl.recordings.record import MIX, record

if TYPE_CHECKING:
    from retable.platform.store.download import Published

SOURCES = Path(__file__).parents[1] / "sources.json"
"""The sets of Minari that `fetch` knows; those of D4RL are in `d4rl.json`."""


def make_recording(
    environment: str,
    storage: Storage,
    transitions: int = 100_000,
    noise: float = 0.05,
    seed: int = 0,
    policy: Literal["expert", "random"] = "expert",
    mix: Sequence[str] = (),
) -> dict[str, Any]:
    """Record a data set with a progress bar; return its `dataset.json`."""
    storage.check_writable()
    with progress_bar(f"recording {transitions:,} transitions of {environment}") as show:
        return record(
            environment,
            storage,
            transitions,
            noise,
            seed,
            policy=policy,
            mix=mix,
            progress=show,
        )


def prepare(config: Config, storage: Storage) -> None:
    """Record the data set `recorded` with our expert, or `mixed` with what `MIX` names.

    Raises:
        UserError: for any other data set, saying where it can be had.
    """
    if config.data in ("recorded", "mixed"):
        make_recording(config.environment, storage, mix=MIX if config.data == "mixed" else ())
        return
    target = f"{storage}/data/rl/{config.environment}/{config.data}"
    origin, _, kind = config.data.partition("-")
    fetched = f"minari-{config.environment.lower()}-{kind.removesuffix('-v0')}" if origin == "minari" else ""
    for file in D4RL["files"].values():
        if (file["environment"], file["name"]) == (config.environment, config.data):
            fetched = d4rl.fetched_as(file)
    remedy = f"convert rl FILE --env {config.environment} --name {config.data}"
    if origin == "minari":
        remedy = f"import rl FOLDER --name {config.data}"
    if fetched in published():
        remedy = f"fetch rl {fetched}"
    raise UserError(f"{target} is missing: run `retable data {remedy}`, or use --set data=recorded")


def published() -> dict[str, Published]:
    """Return the sets of D4RL and Minari that `retable data fetch rl` knows, by name."""
    from retable.platform.store.download import read_published

    return {**d4rl.published(), **read_published(SOURCES)}


def is_published(info: Mapping[str, Any]) -> bool:
    """Return whether data are D4RL's own files, as they are."""
    return info.get("source") == "d4rl" and not (info.get("mended") or info.get("skipped"))


def describe(info: Mapping[str, Any]) -> str:
    """Return the origin of a dataset, for reports: a number is called D4RL only on D4RL data."""
    behaviour = info.get("behaviour", {})
    mixed = f"a mix of our {', '.join(part['name'] for part in behaviour.get('parts', ()))}"
    who = {"random": "random actions", "mixed": mixed}.get(behaviour.get("policy"), "our expert")
    source = {
        "d4rl": f"D4RL {info['name'].removeprefix('d4rl-')}",
        "minari": f"Minari {info['name'].removeprefix('minari-')}",
        "recorded": f"recorded here by {who}",
    }
    score = "" if info["behaviour_score"] is None else f" = {info['behaviour_score']:.1f} normalised"
    changes = [f"{key} {value}" for key, value in sorted(info.get("settings", {}).items())]
    changes += [word for key, word in (("mended", "ends mended"), ("skipped", "episodes left out")) if info.get(key)]
    simulator = ", ".join([info["simulator"], *changes])
    return (
        f"{info['environment']} {source.get(info['source'], info['name'])} ({info['transitions']:,} transitions in "
        f"{simulator}, behaviour return {info['behaviour_return']:.0f}{score})"
    )
