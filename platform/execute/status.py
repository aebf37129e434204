"""Status of a storage, from its files alone, and of a Ray cluster, from its dashboard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any

from retable.platform.errors import UserError
from retable.platform.execute.jobs import ask
from retable.platform.store.query import Run, list_runs
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage

_ACTIVE = ("running", "stale", "failed", "incomplete", "corrupt")
"""States that somebody may want to know of."""


def of_storage(storage: Storage) -> dict[str, object]:
    """Return how many runs are in each state, and those that are not finished, as plain data."""
    runs = list_runs(storage)
    active = sorted((run for run in runs if run.state in _ACTIVE), key=lambda run: (_ACTIVE.index(run.state), run.host))
    return {
        "states": dict(Counter(run.state for run in runs)),
        "active": [asdict(run) | {"seconds_left": seconds_left(storage, run)} for run in active],
    }


def seconds_left(storage: Storage, run: Run) -> float | None:
    """Return the seconds that a running training will still take at the pace of its last epochs; None while unknown."""
    if run.state != "running":
        return None
    try:
        times = [float(row["time"]) for row in RunFolder(storage, run.task, run.run).history()[-10:]]
    except (UserError, OverflowError):
        return None
    steps = [later - sooner for sooner, later in pairwise(times) if 0 < later - sooner < inf]
    return median(steps) * max(0, run.epochs - run.epoch) if steps else None


def of_cluster(address: str) -> dict[str, object]:
    """Return a Ray cluster's nodes, and how much waits for which resources, as plain data.

    Raises:
        UserError: where no Ray's dashboard answers at the address.
    """
    nodes = listing(address, "nodes")
    waiting: Counter[str] = Counter()
    for kind, states, key in (
        ("tasks", ("PENDING_NODE_ASSIGNMENT",), "required_resources"),
        ("actors", ("PENDING_CREATION",), "required_resources"),
        ("placement_groups", ("PENDING", "RESCHEDULING"), "bundles"),
    ):
        for entry in listing(address, kind):
            if entry.get("state") in states:
                waiting[f"{kind.replace('_', ' ')[:-1]}: {amounts(entry.get(key))}"] += 1
    return {"nodes": [_node_of(node) for node in nodes], "waiting": dict(waiting)}


def listing(address: str, kind: str) -> Sequence[Mapping[str, Any]]:
    """Return the entries of a kind in Ray's state API."""
    answer = ask(address, f"/api/v0/{kind}?detail=1&limit=10000")
    try:
        rows: Sequence[Mapping[str, object]] = answer["data"]["result"]["result"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{address}: does not answer as Ray's dashboard does; is it one?") from error
    return rows


def _node_of(node: Mapping[str, Any]) -> dict[str, object]:
    """Return the displayed facts about a node."""
    total = node.get("resources_total") or {}
    has = {name: total[name] for name in ("CPU", "GPU", "memory") if name in total}
    return {
        "address": node.get("node_ip", ""),
        "state": node.get("state", ""),
        "head": bool(node.get("is_head_node")),
        **has,
    }


def amounts(wanted: Any) -> str:
    """Write resources as people read them."""
    if isinstance(wanted, list):
        return " + ".join(amounts(bundle.get("unit_resources", bundle)) for bundle in wanted) or "nothing"
    return ", ".join(f"{name} {amount:g}" for name, amount in (wanted or {}).items()) or "nothing"
