"""A paper's table as an object that knows the runs which fill it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from retable.platform.config import Config, Fields, OwnConfig, OwnView, View, differences, override, override_lineage
from retable.platform.errors import UserError, nearest, one_line
from retable.platform.spec.arrays import Arrays
from retable.platform.spec.claims import LEAST, NOT_JUDGED, UNTESTED, Verdict
from retable.platform.text import and_more, is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

V = TypeVar("V", bound=View)

F = TypeVar("F", bound=Callable[..., object])


def stored_as(key: str) -> Callable[[F], F]:
    """Return a decorator that sets the name under which results of a combining or measuring function are stored.

    Without it, moving or renaming the function would lose what was stored.
    """

    def named(function: F) -> F:
        setattr(function, "stored_as", key)  # noqa: B010 (functions have no such attribute by their type)
        return function

    return named


def stored_key(function: Callable[..., object], name: str) -> str:
    """Return the name under which a function's results are stored; `name` where it has none of its own."""
    return str(getattr(function, "stored_as", name))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Line:
    """Fields of every line of a table."""

    label: str
    published: Mapping[str, float] = field(default_factory=dict)
    """Column header -> the paper's number."""
    absent: str = ""
    """Reason why the row is not run here (at this scale, with these changes); empty if it is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Row(_Line):
    """One line of a table: its training, its view, and its published numbers."""

    overrides: Mapping[str, object] | None = field(default_factory=dict)
    """The config, as differences from the paper's defaults; None where there is only a published value."""
    view: Mapping[str, object] | None = None
    """View of the run, as differences from the default view; None reads the metrics of the training itself."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Column header -> metric, where the row reads another one than its column says."""


class Member(Protocol):
    """One member of a combined row, as its combining function sees it."""

    @property
    def label(self) -> str:
        """The row's label."""

    @property
    def view(self) -> OwnView:
        """The view under which the row reads its run."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The row's scores, and the training's own metrics at the view's epoch."""

    def load(self) -> Arrays:
        """Read the member's predictions of this shard: one at a time is all that need be in memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Combined(_Line):
    """A line that trains nothing: it joins the predictions of other lines (a vote, a mean, a choice by region)."""

    of: tuple[str, ...]
    """Labels of the rows that are joined, replicate by replicate; they have a view."""
    combine: Callable[[str, Sequence[Member]], Arrays]
    """(shard, members) -> the shard's joined predictions; a function of a module, called in an actor."""
    view: Mapping[str, object] = field(default_factory=dict)
    """View by which the joined predictions are scored, as differences from the first member's view."""
    needs: tuple[str, ...] = ()
    """Labels of rows without which the line says nothing, where a scale leaves out some of those that it joins."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement(_Line):
    """A benchmark row; runs exclusively on one node and is keyed by device type."""

    measure: Callable[..., Mapping[str, float]]
    """Config -> metrics; a function of a module, so that a worker can import it."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of `measure`, by name; those that differ from its defaults tell measurements apart."""
    reads_data: bool = False
    """Whether `measure` also takes the config's data set, as `source`: a `Source`, or None where it is not there."""
    overrides: Mapping[str, object] = field(default_factory=dict)


AnyRow = Row | Combined | Measurement


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its header, the metric that fills it, and how it is printed."""

    header: str
    metric: str
    format: str = ".2f"
    factor: float = 1.0
    """Multiplies the metric (1e-6: bytes to MB)."""
    better: Literal["higher", "lower"] | None = None
    """Direction in which numbers are better; the report marks the best one. None: neither."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper (or ours), and the function of the results that tests it."""

    text: str
    check: Callable[[Results], Verdict]
    ours: bool = False
    """Whether the sentence is ours, not the paper's."""


def claim(
    text: str,
    check: Callable[..., Verdict],
    *rest: Any,
    ours: bool = False,
    gate: Callable[[Results, Sequence[Any]], Verdict | None] | None = None,
    **options: object,
) -> Claim:
    """Return the claim that `check(results, *rest, **options)` tests: a line of a task's `claims.py`.

    Args:
        text: the sentence.
        check: of a module; it takes the results first.
        *rest: what else it takes, such as rows.
        ours: whether the sentence is ours, not the paper's.
        gate: `gate(results, rest)` returns why nothing can be tested yet, or None where it can.
        **options: what else it takes, by name.
    """

    def checked(results: Results) -> Verdict:
        refused = gate(results, rest) if gate else None
        return refused or check(results, *rest, **options)

    return Claim(text=text, check=checked, ours=ours)


@dataclass(frozen=True, kw_only=True)
class _Replicated:
    """Fields of tables and figures: rows, replicated over axes such as seeds and environments."""

    title: str
    rows: Sequence[AnyRow]
    over: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Replicate axes: config path, or `view.` and a path of the view -> values."""
    claims: Sequence[Claim] = ()
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Changes to every run and its ancestors: what a scale sets. Measurements are left as they are."""
    changes: Mapping[str, object] = field(default_factory=dict)
    """The user's own (`--set`), to everything; those of views are written `view.` and a path of the view."""
    left_out: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Replicate axis -> values of it that the user's changes leave out."""
    note: str = ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} of {len(self.rows)} rows: {self.title}>"


@dataclass(frozen=True, kw_only=True, repr=False)
class Table(_Replicated):
    """Rows by columns."""

    columns: Sequence[Column]


@dataclass(frozen=True, kw_only=True, repr=False)
class Figure(_Replicated):
    """A table whose lines are drawn, not printed."""

    draw: Callable[[Results], Drawing]


AnyTable = Table | Figure

BY_ROWS = "left out by --rows"
"""Reason why a row is absent that the user did not choose."""
_BY_SET = "left out by --set"


def with_claims(
    task: str, tables: Mapping[str, AnyTable], claims: Mapping[str, Sequence[Claim]]
) -> dict[str, AnyTable]:
    """Return a task's tables with their claims, which refer to the tables' rows and so are made after them.

    Raises:
        UserError: if there are claims on a table that is not there, or a table names rows or columns that it has not.
    """
    for name in claims.keys() - tables.keys():
        raise UserError(f"claims on {task}/{name}, which is no table{nearest(name, tables)}")
    for name, table in tables.items():
        _check_names(f"{task}/{name}", table)
    return {name: dataclasses.replace(table, claims=claims.get(name, ())) for name, table in tables.items()}


def _check_names(name: str, table: AnyTable) -> None:
    """Refuse labels that two rows have, members that no row has, and published values of no column or that are none."""
    labels = [row.label for row in table.rows]
    for label, count in Counter(labels).items():
        if count > 1:
            raise UserError(f"{name}: {count} rows have the label {label!r}; give each its own")
    for row in table.rows:
        for member in (*row.of, *row.needs) if isinstance(row, Combined) else ():
            if member not in labels:
                raise UserError(f"{name}, row {row.label!r}: joins {member!r}, no row{nearest(member, labels)}")
    if isinstance(table, Table):
        _check_columns(name, table)


def _check_columns(name: str, table: Table) -> None:
    headers = [column.header for column in table.columns]
    for header, count in Counter(headers).items():
        if count > 1:
            raise UserError(f"{name}: {count} columns have the header {header!r}; give each its own")
    for row in table.rows:
        for header in {**row.published, **(row.metrics if isinstance(row, Row) else {})}:
            if header not in headers:
                raise UserError(f"{name}, row {row.label!r}: {header!r} is no column{nearest(header, headers)}")
        for header, number in row.published.items():
            if number is not None and not (is_number(number) and math.isfinite(number)):
                where = f"{name}, row {row.label!r}, column {header!r}"
                raise UserError(f"{where}: {number!r} is published; write one finite number, or leave the column out")
    for column in table.columns:
        if column.better not in ("higher", "lower", None):
            raise UserError(f"{name}, column {column.header!r}: better={column.better!r}; use higher or lower")
        try:
            format(0.5, column.format), format(0.5, f"+{column.format}")  # differences are shown with their sign
        except ValueError as error:
            raise UserError(f"{name}, column {column.header!r}: format={column.format!r}: {error}; use .2f") from error


@dataclass(frozen=True)
class Origin:
    """The origin of a number: a run and its view, or the members of a combination."""

    run: str = ""
    """The fingerprint; of a combination and a measurement, the key of their file."""
    view: Mapping[str, object] | None = None
    """View under which it was read, as differences from the default view; None where there was none."""
    weights: str = ""
    """Digest of the weights that were read."""
    members: tuple[Origin, ...] = ()
    """Origins that a combination joined."""
    bundle: Mapping[str, str] = field(default_factory=dict)
    """The bundle that it came in (`bundle`, `packed`, `packed_on`), and when and where it was `measured` (`host`,
    `device`); empty for what was measured here."""

    def parts(self) -> Iterator[Origin]:
        """Yield the origin itself, then those that it was joined of, and theirs."""
        yield self
        for member in self.members:
            yield from member.parts()


@dataclass(frozen=True)
class Replicate:
    """One replicate of one row: its config and view; after it has run, also its measured values."""

    label: str
    axes: Mapping[str, object]
    config: OwnConfig
    """The task's own class."""
    view: OwnView | None
    """The task's own class, with its epoch resolved; None where the training's own metrics are read."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """At the view's epoch."""
    history: Sequence[Mapping[str, Any]] = ()
    """The training's log, one entry an epoch."""
    origin: Origin = field(default_factory=Origin)
    diverged: str = ""
    """Reason why the training's numbers mean nothing: they are not finite. Empty for other trainings."""
    summaries: Callable[[], Mapping[str, Arrays]] = dict
    """Reads what scores were computed from: shard -> arrays."""


class Results:
    """The measured values of a table's rows. An unknown row is an error, never a missing result.

    It records which rows were asked for, and which of the values that the user left out.
    """

    def __init__(self, replicates: Mapping[str, Sequence[Replicate]], table: AnyTable | None = None) -> None:
        """Take the replicates of every row, by label; of a row that was not run, none.

        Args:
            replicates: label -> replicates.
            table: the table, for what the user left out of it.
        """
        self.replicates = {
            label: [replicate for replicate in rows if not replicate.diverged] for label, rows in replicates.items()
        }
        self._diverged = {
            label: [replicate for replicate in rows if replicate.diverged] for label, rows in replicates.items()
        }
        self.by_rows = {row.label for row in table.rows if row.absent == BY_ROWS} if table else set()
        """Labels of the rows that the user left out."""
        self.by_set = {axis: values for axis, values in table.left_out.items() if values} if table else {}
        """Replicate axis -> values that the user left out."""
        self.asked: dict[str, None] = {}
        """Labels of the rows that were asked for, in order."""
        self.lacking: dict[str, dict[str, None]] = {BY_ROWS: {}, _BY_SET: {}}
        """Requested values that the user left out: note that names the option -> labels, or axes with their values."""
        self.lost: dict[str, set[OwnConfig]] = {}
        """Label -> runs among those that were asked for that diverged, or whose metric is not finite."""
        self.counted: set[str] = set()
        """Labels of the rows whose diverged runs were asked for."""

    def __contains__(self, row: AnyRow | str) -> bool:
        """Return whether a row has any result. Raises KeyError if it is not the table's."""
        return bool(self._of(row))

    def _of(self, row: AnyRow | str) -> list[Replicate]:
        label = _label(row)
        self.asked[label] = None
        if label in self.by_rows:
            self.lacking[BY_ROWS][label] = None
        return self.replicates[label]

    def select(self, row: AnyRow | str, **axes: object) -> list[Replicate]:
        """Return a row's replicates whose axes have these values; write `view.epoch` as `view_epoch`.

        Raises:
            KeyError: if the row is not one of the table's.
        """
        wanted = {re.sub("^view_", "view.", name): value for name, value in axes.items()}
        for name, value in wanted.items():
            if value in self.by_set.get(name, ()):
                self.lacking[_BY_SET][f"{name}={value}"] = None
        chosen, gone = (
            [
                replicate
                for replicate in rows
                if all(replicate.axes.get(name) == value for name, value in wanted.items())
            ]
            for rows in (self._of(row), self._diverged[_label(row)])
        )
        if gone:
            self.lost.setdefault(_label(row), set()).update(replicate.config for replicate in gone)
        return chosen

    def diverged(self, row: AnyRow | str) -> list[Replicate]:
        """Return a row's replicates whose training diverged: they are in no number. Raises KeyError as `select`."""
        self.counted.add(_label(row))
        return self._diverged[_label(row)]

    def values(self, row: AnyRow | str, metric: str, **axes: object) -> npt.NDArray[np.float64]:
        """Return a metric over the selected replicates that have it, shape (replicates,); those not finite are lost."""
        pairs = [(r.config, float(v)) for r in self.select(row, **axes) if (v := r.metrics.get(metric)) is not None]
        if lost := {config for config, value in pairs if not math.isfinite(value)}:
            self.lost.setdefault(_label(row), set()).update(lost)
        return np.array([value for _, value in pairs if math.isfinite(value)], float)

    def measured(self, row: AnyRow | str) -> Mapping[str, float] | None:
        """Return the metrics of a row that has one replicate, such as a benchmark row; None if it was not run."""
        return next((replicate.metrics for replicate in self._of(row)), None)

    def lines(self, *rows: AnyRow | str) -> list[tuple[Replicate, ...]]:
        """Return the replicates of several rows in lines of equal axes; lines that lack a row are left out."""
        first, *others = (self.select(row) for row in rows)
        lines = []
        for replicate in first:
            same = [[other for other in rows if other.axes == replicate.axes] for rows in others]
            if all(same):
                lines.append((replicate, *(matching[0] for matching in same)))
        return lines

    def axis(self, name: str) -> list[Any]:
        """Return the values that an axis takes among the results, in order of appearance."""
        seen = [r.axes[name] for rs in self.replicates.values() for r in rs if name in r.axes]
        return list(dict.fromkeys(seen))


def _label(row: AnyRow | str) -> str:
    return row if isinstance(row, str) else row.label


def judge_claim(claim: Claim, results: Results, reads: Collection[str] = ()) -> Verdict:
    """Return the verdict on a claim: not judged where it reads what the user left out, or could not do without.

    Runs that diverged, or whose metric is not finite, have no number, and those that are left may be the lucky ones:
    unless the claim counts them (`Results.diverged`), they separate nothing.

    Args:
        claim: of the results' table.
        results: what was measured.
        reads: labels of the rows that it reads, as far as that is known beforehand (`rows_of_claims`).
    """
    for words in results.lacking.values():
        words.clear()
    for label in reads:
        results.select(label)
    results.lost.clear()
    results.counted.clear()
    try:
        verdict = claim.check(results)
    except UserError:
        raise
    except Exception as error:  # a night's numbers are worth more than what is wrong with one sentence
        verdict = Verdict(UNTESTED, f"its test fails: {one_line(error)}")
    lost = [f"{label} ({len(runs)})" for label, runs in results.lost.items() if label not in results.counted]
    if lost and verdict.status != UNTESTED:
        diverged = f"; runs whose numbers are not finite have none, which does not separate: {and_more(lost, 4)}"
        verdict = Verdict("not separable", verdict.because + diverged)
    lacking = {how: list(words) for how, words in results.lacking.items() if words}
    if not lacking and verdict.status == UNTESTED and results.by_set:
        lacking = {
            verdict.because: [],
            _BY_SET: [f"{axis}={v}" for axis, values in results.by_set.items() for v in values],
        }
    because = [f"{how}: {and_more(words, 4)}" if words else how for how, words in lacking.items()]
    return Verdict(NOT_JUDGED, "; ".join(because)) if lacking else verdict


class _Ones(dict[str, float]):
    """Metrics that are all there, and 1."""

    def get(self, name: str, default: object = None) -> Any:
        return 1.0

    def __missing__(self, name: str) -> float:
        return 1.0


def rows_of_claims(table: AnyTable, default: object, default_view: object) -> list[list[str]]:
    """Return for each claim of a table the labels of the rows that it reads, in the order in which it asks for them.

    They are found by trying: each check is called without results, and with results of a few replicates whose every
    metric is 1. What it returns or raises does not matter.
    """
    made: dict[str, list[Replicate]] = {row.label: [] for row in table.rows}
    few = dataclasses.replace(table, over={axis: values[-LEAST:] for axis, values in table.over.items()})
    for row in table.rows:
        if not isinstance(row, Combined) and row.absent in ("", BY_ROWS):
            with suppress(UserError):
                every = expand(few, row, default, default_view)
                made[row.label] = [dataclasses.replace(replicate, metrics=_Ones()) for replicate in every]
    made |= {row.label: made[row.of[0]] for row in table.rows if isinstance(row, Combined)}
    per_claim = []
    for claim in table.claims:
        requested: dict[str, None] = {}
        for results in (Results(dict.fromkeys(made, ())), Results(made)):
            with suppress(Exception):
                claim.check(results)
            requested |= results.asked
        per_claim.append(list(requested))
    return per_claim


def row_fields(table: AnyTable) -> set[str]:
    """Return the fields of config and view (`view.epoch`) that a table's rows set, which distinguish them."""
    config = {path for row in table.rows if not isinstance(row, Combined) for path in row.overrides or {}}
    return config | {f"view.{path}" for row in table.rows if isinstance(row, Row) for path in row.view or {}}


def apply_overrides(
    table: AnyTable, changes: Mapping[str, object], default: object, default_view: object, named: Collection[str]
) -> AnyTable:
    """Return a table with the user's changes (`--set`): to all rows, and one to a replicate axis in the axis's place.

    A list is several values of an axis; a row that sets the axis itself stays as it is.

    What rows say of themselves stays true: of a change to a field by which rows are told apart, those rows stay that
    have the new value anyway; the others are absent.

    Args:
        table: at its scale.
        changes: config path, or `view.` and a path of the view -> value.
        default: the task's default config.
        default_view: the task's default view.
        named: the fields by which rows are told apart: their labels say them.
    """
    several = {axis: tuple(dict.fromkeys(value)) for axis in table.over if isinstance(value := changes.get(axis), list)}
    changes = {path: value for path, value in changes.items() if path not in several}
    axes = {axis: changes[axis] for axis in table.over if axis in changes}
    telling = {path for path in changes if any(_within(path, field) or _within(field, path) for field in named)}

    def changed(row: AnyRow) -> AnyRow:
        if isinstance(row, Combined) or row.overrides is None:
            return row
        own = {path: axes.get(path, value) if path not in named else value for path, value in row.overrides.items()}
        open_axes = axes.keys() - row_fields(dataclasses.replace(table, rows=[row]))
        contradicting = {path: value for path, value in changes.items() if path in telling - open_axes}
        absent = row.absent or _contradiction(row, default, default_view, contradicting)
        return dataclasses.replace(row, overrides=own, absent=absent)

    rows = [changed(row) for row in table.rows]
    rows = [drop_missing_members(row, rows) if isinstance(row, Combined) else row for row in rows]
    over = {axis: (axes[axis],) if axis in axes else several.get(axis, values) for axis, values in table.over.items()}
    left_out = {axis: [value for value in values if value not in over[axis]] for axis, values in table.over.items()}
    lost = [new.label for old, new in zip(table.rows, rows, strict=True) if new.absent and not old.absent]
    note = (
        f"{table.note} Left out, as the changes would make them other rows: {'; '.join(lost)}." if lost else table.note
    )
    merged = {**table.changes, **changes}
    return dataclasses.replace(table, rows=rows, over=over, changes=merged, left_out=left_out, note=note.strip())


def _within(path: str, field: str) -> bool:
    return path == field or path.startswith(f"{field}.")


def _contradiction(row: Row | Measurement, default: object, default_view: object, changes: Mapping[str, object]) -> str:
    """Return which of the changes would make a row something else than its label says; empty where none would."""
    config, view = split_view(changes)
    own, seen = _own(row, default, default_view)
    try:
        other = differences(override(own, config), own)
        if seen is not None:
            other |= {f"view.{path}": v for path, v in differences(override(seen, view), seen).items()}
    except UserError:  # a field that this row's choice does not have
        return f"it has no {', '.join(sorted(changes))}"
    return f"it is not {', '.join(f'{path}={value}' for path, value in other.items())}" if other else ""


def _own(row: Row | Measurement, default: OwnConfig, default_view: OwnView) -> tuple[OwnConfig, OwnView | None]:
    """Return a row's config and view, without what scale, replicate axes and user change.

    Raises:
        UserError: naming the row, on a value that they refuse.
    """
    try:
        seen = row.view if isinstance(row, Row) else None
        view = None if seen is None else override(default_view, seen, "view.")
        return override(default, row.overrides or {}), view
    except UserError as error:
        raise UserError(f"row {row.label!r}: {error}") from error


def choose_rows(table: AnyTable, patterns: Sequence[str]) -> AnyTable:
    """Return a table of which only the rows are run that match a pattern (`matches`); without patterns all are.

    A combined row takes along the rows that it joins.
    """
    wanted = {
        row.label for row in table.rows if not patterns or any(matches(row.label, pattern) for pattern in patterns)
    }
    for row in table.rows:
        if isinstance(row, Combined) and row.label in wanted:
            wanted |= {*row.of, *row.needs}
    rows = [
        row if row.label in wanted else dataclasses.replace(row, absent="; ".join(filter(None, (BY_ROWS, row.absent))))
        for row in table.rows
    ]
    count = len(rows) - sum(map(hidden, rows))
    note = f"{table.note} {count} of {len(rows)} rows were chosen by --rows." if patterns else table.note
    return dataclasses.replace(table, rows=rows, note=note.strip())


def hidden(row: AnyRow) -> bool:
    """Return whether the user did not choose a row; it may be absent for another reason, too."""
    return row.absent.startswith(BY_ROWS)


def matches(label: str, pattern: str) -> bool:
    """Return whether a row's label matches a pattern, in which `*` stands for any text and all else for itself."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), label) is not None


def drop_missing_members(row: Combined, rows: Sequence[AnyRow]) -> Combined:
    """Return a combined row of those members that are run: absent if fewer than two are, or one that it needs."""
    trained = [other for other in rows if isinstance(other, Row) and other.overrides is not None]
    present = {other.label for other in trained if not other.absent}
    if all(label in present for label in row.of):
        return row
    members = tuple(label for label in row.of if label in present)
    lacking = [label for label in row.needs if label not in present]
    absent = f"without {lacking[0]}" if lacking else "" if len(members) > 1 else "its members are absent"
    return dataclasses.replace(row, of=members or row.of, absent=absent)


def expand(table: AnyTable, row: Row | Measurement, default: OwnConfig, default_view: OwnView) -> list[Replicate]:
    """Return every replicate of a row, not yet run. An axis that the row itself sets is not replicated.

    Raises:
        UserError: on a value that the config refuses; it names the row where the row sets it.
    """
    if row.overrides is None:
        return []
    wanted, _ = _own(row, default, default_view)
    view_overrides = row.view if isinstance(row, Row) else None
    own = {*row.overrides, *(f"view.{path}" for path in view_overrides or ())}
    axes = {path: values for path, values in table.over.items() if path not in own}
    if view_overrides is None:
        axes = {path: values for path, values in axes.items() if not path.startswith("view.")}
    scaled = {} if isinstance(row, Measurement) else table.overrides
    user, user_view = split_view(table.changes)
    base = override_lineage(wanted, scaled)
    configs: dict[object, OwnConfig] = {}  # one for all replicates that differ in their views alone: they are many
    views: dict[object, OwnView] = {}
    fixed = {path: value for path, value in row.overrides.items() if path in table.over}
    fixed |= {f"view.{path}": v for path, v in (view_overrides or {}).items() if f"view.{path}" in table.over}
    expanded = []
    for combination in itertools.product(*axes.values()):
        point = dict(zip(axes, combination, strict=True))
        changes, seen = split_view(point)
        same = tuple((path, repr(value)) for path, value in changes.items())
        config = configs.get(same)
        if config is None:
            config = configs[same] = override_lineage(base, {**user, **changes})
        view = None
        if view_overrides is not None:
            key = (config.epochs, *((path, repr(value)) for path, value in seen.items()))
            view = views.get(key)  # one for all replicates that read their runs alike
            if view is None:
                view = views[key] = resolve(override(default_view, {**view_overrides, **user_view, **seen}), config)
        expanded.append(Replicate(row.label, {**fixed, **point}, config, view))
    return expanded


def split_view(changes: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the changes to the config, and those to the view, which are written `view.` and a path of the view."""
    config = {path: value for path, value in changes.items() if not path.startswith("view.")}
    view = {path.removeprefix("view."): value for path, value in changes.items() if path.startswith("view.")}
    return config, view


def view_changes(default: View, config: Config, view: View) -> Fields:
    """Return a view as differences from the default; the last epoch is the default."""
    changes = differences(view, default)
    return {path: value for path, value in changes.items() if (path, value) != ("epoch", config.epochs)}


def resolve(view: V, config: Config) -> V:
    """Return a view with the last epoch's number in place of 0.

    Raises:
        UserError: if it names an epoch that the run does not reach.
    """
    if not 0 <= view.epoch <= config.epochs:
        raise UserError(f"view.epoch {view.epoch} is not among the run's epochs 1..{config.epochs} (0: the last)")
    return override(view, {"epoch": view.epoch or config.epochs})
