"""A paper's table as an object that knows the runs which fill it."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np

from retable.platform.config import override, override_lineage

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Status = Literal["holds", "does not hold", "not separable", "not tested at this scale"]
Predictions = Mapping[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: what to train, how to view it, and what the paper printed."""

    label: str
    overrides: Mapping[str, object] | None = field(default_factory=dict)
    """The config, as differences from the paper's defaults; None where there is only a published value."""
    view: Mapping[str, object] | None = None
    """How to read the run, as differences from the default view; None reads the metrics of the training itself."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Column header -> the paper's number."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Column header -> metric, where the row reads another one than its column says."""
    present: bool = True
    """Whether the row is run at this scale."""


class Member(Protocol):
    """What a combining function sees of one of the rows it joins."""

    @property
    def label(self) -> str:
        """The row's label."""

    @property
    def view(self) -> Any:
        """How the row reads its run."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The row's scores, and the training's own metrics at the view's epoch."""

    def load(self) -> Predictions:
        """Read the member's predictions of this shard: one at a time is all that need be in memory."""


@dataclass(frozen=True, kw_only=True)
class Combined:
    """A line that trains nothing: it joins the predictions of other lines (a vote, a mean, a choice by region)."""

    label: str
    of: tuple[str, ...]
    """Labels of the rows that are joined, replicate by replicate; they have a view."""
    combine: Callable[[str, Sequence[Member]], Predictions]
    """(shard, members) -> the shard's joined predictions; a function of a module, called in an actor."""
    view: Mapping[str, object] = field(default_factory=dict)
    """How the joined predictions are scored, as differences from the first member's view."""
    published: Mapping[str, float] = field(default_factory=dict)
    present: bool = True


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A line whose result is seconds or bytes: it has its node to itself and counts for that kind of device only."""

    label: str
    measure: Callable[[Any], Mapping[str, float]]
    """Config -> metrics; a function of a module, so that a worker can import it."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)
    present: bool = True


AnyRow = Row | Combined | Measurement


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its header, the metric that fills it, and how it is printed."""

    header: str
    metric: str
    format: str = ".2f"
    factor: float = 1.0
    """Multiplies the metric (1e-6: bytes to MB)."""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, and the numbers that it rests on."""

    status: Status
    because: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper (or ours), and the function of the results that tests it."""

    text: str
    check: Callable[[Results], Verdict]
    ours: bool = False
    """Whether the sentence is ours, not the paper's."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows by columns, replicated over axes such as seeds and environments."""

    title: str
    rows: Sequence[AnyRow]
    columns: Sequence[Column]
    over: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Replicate axes: config path, or `view.` and a path of the view -> values."""
    claims: Sequence[Claim] = ()
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Changes to every row and its ancestors: what a scale sets."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A table whose lines are drawn, not printed."""

    title: str
    rows: Sequence[AnyRow]
    draw: Callable[[Results], Drawing]
    over: Mapping[str, Sequence[object]] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    overrides: Mapping[str, object] = field(default_factory=dict)
    note: str = ""


T = TypeVar("T", Table, Figure)


@dataclass(frozen=True)
class Need:
    """One replicate of one row: a config and perhaps a view of it."""

    label: str
    axes: Mapping[str, object]
    config: Any
    view: Any | None
    """With its epoch resolved; None where the training's own metrics are read."""


@dataclass(frozen=True)
class Replicate:
    """A need that has been met."""

    need: Need
    fingerprint: str
    metrics: Mapping[str, float]
    history: Sequence[Mapping[str, float]] = ()
    """The training's log, one entry an epoch."""
    summaries: Callable[[], Mapping[str, Predictions]] = dict
    """Reads what scores were computed from: shard -> arrays."""


class Results:
    """What the rows of a table measured: label -> replicates."""

    def __init__(self, replicates: Mapping[str, Sequence[Replicate]]) -> None:
        self.replicates = replicates

    def __contains__(self, label: str) -> bool:
        """Say whether a row has any result."""
        return bool(self.replicates.get(label))

    def select(self, label: str, **axes: object) -> list[Replicate]:
        """Return a row's replicates whose axes have these values; write `view.epoch` as `view_epoch`."""
        wanted = {re.sub("^view_", "view.", name): value for name, value in axes.items()}
        return [
            replicate
            for replicate in self.replicates.get(label, ())
            if all(replicate.need.axes.get(name) == value for name, value in wanted.items())
        ]

    def values(self, label: str, metric: str, **axes: object) -> np.ndarray[Any, Any]:
        """Return a metric over the selected replicates that have it, shape (replicates,)."""
        chosen = self.select(label, **axes)
        return np.array([r.metrics[metric] for r in chosen if r.metrics.get(metric) is not None], float)

    def axis(self, name: str) -> list[Any]:
        """Return the values that an axis takes among the results, in order of appearance."""
        seen = [r.need.axes[name] for rs in self.replicates.values() for r in rs if name in r.need.axes]
        return list(dict.fromkeys(seen))


def changed(table: T, changes: Mapping[str, object]) -> T:
    """Return a table with the user's changes (`--set`): to every row, and one to a replicate axis in the axis's place.

    A row that itself sets a changed axis to another value is named after that value, and left out; but for the seed,
    which names no row.
    """
    axes = {axis: changes[axis] for axis in table.over if axis in changes}
    names = {axis: value for axis, value in axes.items() if axis != "seed"}
    rows = []
    for row in table.rows:
        own = {} if isinstance(row, Combined) else row.overrides or {}
        if any(own.get(axis, value) != value for axis, value in names.items()):
            row = dataclasses.replace(row, present=False)
        elif not isinstance(row, Combined) and axes.keys() & own.keys():
            row = dataclasses.replace(row, overrides={path: axes.get(path, value) for path, value in own.items()})
        rows.append(row)
    over = {axis: (axes[axis],) if axis in axes else values for axis, values in table.over.items()}
    return dataclasses.replace(table, rows=rows, over=over, overrides={**table.overrides, **changes})


def expand(table: Table | Figure, row: Row | Measurement, default: Any, default_view: Any) -> list[Need]:
    """Return every replicate of a row. An axis that the row itself sets is not replicated."""
    if row.overrides is None:
        return []
    view_overrides = row.view if isinstance(row, Row) else None
    own = {*row.overrides, *(f"view.{path}" for path in view_overrides or ())}
    axes = {path: values for path, values in table.over.items() if path not in own}
    if view_overrides is None:
        axes = {path: values for path, values in axes.items() if not path.startswith("view.")}
    needs = []
    for combination in itertools.product(*axes.values()):
        point = dict(zip(axes, combination, strict=True))
        changes, seen = split_view(point)
        config = override_lineage(override(default, row.overrides), {**table.overrides, **changes})
        view = None
        if view_overrides is not None:
            view = resolve(override(default_view, {**view_overrides, **seen}), config)
        fixed = {path: value for path, value in row.overrides.items() if path in table.over}
        fixed |= {f"view.{path}": v for path, v in (view_overrides or {}).items() if f"view.{path}" in table.over}
        needs.append(Need(row.label, {**fixed, **point}, config, view))
    return needs


def split_view(changes: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the changes to the config, and those to the view, which are written `view.` and a path of the view."""
    config = {path: value for path, value in changes.items() if not path.startswith("view.")}
    view = {path.removeprefix("view."): value for path, value in changes.items() if path.startswith("view.")}
    return config, view


def resolve(view: Any, config: Any) -> Any:
    """Return a view with the last epoch's number in place of 0.

    Raises:
        UserError: if it names an epoch that the run does not reach.
    """
    from retable.platform.errors import UserError

    if not 0 <= view.epoch <= config.epochs:
        raise UserError(f"view.epoch {view.epoch} is not among the run's epochs 1..{config.epochs} (0: the last)")
    return dataclasses.replace(view, epoch=view.epoch or config.epochs)
