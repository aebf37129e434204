"""Filled tables: read once from the storage, then shown on screen, page, CSV, LaTeX and in notebooks.

A filled table is plain data, so that whoever shows it needs no code of the task.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from retable.platform.config import Config, exact_changes, fingerprint, flatten, lineage, parent, set_line
from retable.platform.execute import ensembles, scoring
from retable.platform.plan.plan import Combining, Plan, combinings, corrupt_in, intact, read_timing, timing_read
from retable.platform.report import comparable, notebook
from retable.platform.spec.claims import Status
from retable.platform.spec.table import (
    AnyRow,
    Column,
    Combined,
    Measurement,
    Origin,
    Replicate,
    Results,
    Row,
    Table,
    expand,
    hidden,
    judge_claim,
    rows_of_claims,
    view_changes,
)
from retable.platform.spec.task import KeyNumber, Task, find_scale
from retable.platform.store.provenance import placeless
from retable.platform.store.run import RunFolder, sha256
from retable.platform.store.storage import Record
from retable.platform.text import and_more, plain

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 3
"""Pairs of epochs that a row's label names at most."""


@dataclass(frozen=True)
class Cell:
    """The values of a row's replicates in one column."""

    values: tuple[float | None, ...]
    """One for each of the row's replicates; None where it has no such metric."""
    published: float | None = None
    comparable: bool = False
    """Whether data and setting are the published ones."""

    @property
    def measured(self) -> list[float]:
        """The existing values."""
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """The mean over replicates, or None where there is none."""
        return float(np.mean(self.measured)) if self.measured else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation between replicates (n - 1); None where there are not two."""
        return float(np.std(self.measured, ddof=1)) if len(self.measured) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured minus published, if both exist and have the same data and setting."""
        if not self.comparable or self.mean is None or self.published is None:
            return None
        return self.mean - self.published


@dataclass(frozen=True)
class FilledReplicate:
    """One replicate of a row: where it stands, where it is from, and all that was measured."""

    axes: Mapping[str, object]
    origin: Origin
    commands: tuple[str, ...]
    """The lines that make exactly this."""
    metrics: Mapping[str, float]
    diverged: str = ""
    """Reason why it is in no cell: its training's numbers are not finite. Empty if they are."""
    epochs: str = ""
    """`24 -> 3`: the epoch that was asked for, and the best one, whose weights early stopping keeps in its place."""


@dataclass(frozen=True)
class FilledRow:
    """A row with its cells, one for each column."""

    label: str
    absent: str
    replicates: tuple[FilledReplicate, ...]
    cells: tuple[Cell, ...]
    planned: int = 0
    """Replicates that it has once all of them are there."""

    @property
    def epochs(self) -> str:
        """Epochs that its replicates show in place of those asked for, `24 -> 3, 24 -> 5`; empty if there are none."""
        return and_more(
            list(dict.fromkeys(replicate.epochs for replicate in self.replicates if replicate.epochs)), _SHOWN
        )


@dataclass(frozen=True)
class FilledClaim:
    """A claim and its verdict."""

    text: str
    ours: bool
    status: Status
    because: str


@dataclass(frozen=True)
class FilledColumn:
    """A column's header and how its numbers are printed."""

    header: str
    format: str
    better: Literal["higher", "lower"] | None = None


@dataclass(frozen=True)
class FilledTable:
    """A table or figure, as it was filled: all that a screen, a page or a file shows of it."""

    name: str
    title: str
    scale: str
    scale_about: str
    changes: Mapping[str, object]
    figure: bool
    """Whether it is a figure; `drawn` says whether there was anything to draw."""
    columns: tuple[FilledColumn, ...]
    rows: tuple[FilledRow, ...]
    claims: tuple[FilledClaim, ...]
    axes: Mapping[str, tuple[object, ...]]
    """Replicate axis -> the values there are results of."""
    data: tuple[str, ...]
    """Description of each data set, in words."""
    note: str
    caution: str = ""
    """Limits of what scores on these data show, in a sentence or more."""
    apart: str = ""
    """Reason why measured and published numbers are not subtracted, in a sentence; empty if they are."""
    task_about: str = ""
    paper: str = ""
    """Whose table it is."""
    telling: bool = False
    """Whether it stands for its paper."""
    drawn: bool = False
    """Whether there is a picture of it."""
    key_number: KeyNumber | None = None
    """The cell that a summary shows of its paper, where it is in this table."""
    full: Mapping[str, float] = field(default_factory=dict)
    """Cost of the published setting: `trainings`, and `core_seconds`, roughly."""
    corrupt: tuple[str, ...] = ()
    """Damaged files of its runs, a line each; their contents are in no number."""
    chosen: tuple[str, ...] = ()
    """Labels or patterns of the rows that the user chose; none: all. Other rows are not among `rows`."""
    runs: Mapping[str, Record] = field(default_factory=dict)
    """Fingerprint -> `task`, `command`, `config`, `provenance`, `usage`, `curves` of each run behind a number."""

    @property
    def has_published(self) -> bool:
        """Whether any cell has a published number."""
        return any(cell.published is not None for row in self.rows for cell in row.cells)

    @property
    def has_differences(self) -> bool:
        """Whether any cell may be subtracted from its published number."""
        return any(cell.difference is not None for row in self.rows for cell in row.cells)

    @property
    def filled(self) -> bool:
        """Whether there is any result."""
        return any(row.replicates for row in self.rows)

    @property
    def shown(self) -> bool:
        """Whether there is anything to see: a number, or a picture."""
        return self.drawn if self.figure else self.filled

    @property
    def left_out(self) -> bool:
        """Whether this scale leaves out all of its rows."""
        return not self.filled and not any(row.planned for row in self.rows)

    @cached_property
    def by_label(self) -> Mapping[tuple[str, str], Cell]:
        """The cells by their row's label and their column's header."""
        pairs = ((row, column, cell) for row in self.rows for column, cell in zip(self.columns, row.cells, strict=True))
        return {(row.label, column.header): cell for row, column, cell in pairs}

    def cell(self, label: str, header: str) -> Cell:
        """Return a cell by its row and column.

        Raises:
            KeyError: if there is no such row or column.
        """
        return self.by_label[label, header]

    def frame(self) -> pd.DataFrame:
        """Return the table as a data frame: a line for each cell; of a figure, a line for each replicate."""
        import pandas as pd

        return pd.DataFrame([*(self._replicate_lines() if self.figure else self._cell_lines())])

    def _cell_lines(self) -> Iterator[dict[str, object]]:
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                used = [r for r, value in zip(row.replicates, cell.values, strict=True) if value is not None]
                yield {
                    "row": row.label,
                    "column": column.header,
                    "mean": cell.mean,
                    "std": cell.deviation,
                    "min": min(cell.measured, default=None),
                    "max": max(cell.measured, default=None),
                    "n": len(cell.measured),
                    "published": cell.published,
                    "difference": cell.difference,
                    "scale": self.scale,
                    "epochs": row.epochs,
                    "values": " ".join(map(repr, cell.measured)),
                    "sources": " ".join(source_line(replicate.origin) for replicate in used),
                }

    def _replicate_lines(self) -> Iterator[dict[str, object]]:
        for row in self.rows:
            for replicate in row.replicates:
                origin = {"scale": self.scale, "source": source_line(replicate.origin), "diverged": replicate.diverged}
                yield {"row": row.label, **replicate.axes, **origin, **replicate.metrics}

    def __repr__(self) -> str:
        return notebook.table_text(self)

    def _repr_html_(self) -> str:
        return notebook.table_html(self)

    def as_json(self) -> Record:
        """Return it as plain values, which `of_json` reads."""
        return dataclasses.asdict(self)

    @staticmethod
    def of_json(values: Record) -> FilledTable:
        """Return a table from its `as_json`."""
        fields = dict(values)
        fields["columns"] = tuple(FilledColumn(**column) for column in fields["columns"])
        fields["claims"] = tuple(FilledClaim(**claim) for claim in fields["claims"])
        fields["rows"] = tuple(_row_of(row) for row in fields["rows"])
        fields["key_number"] = KeyNumber(**key) if (key := fields.get("key_number")) else None
        fields |= {"data": tuple(fields["data"]), "chosen": tuple(fields.get("chosen", ()))}
        fields["corrupt"] = tuple(fields.get("corrupt", ()))
        fields["axes"] = {axis: tuple(levels) for axis, levels in fields["axes"].items()}
        return FilledTable(**fields)


def _row_of(values: Record) -> FilledRow:
    replicates = tuple(
        FilledReplicate(**{**record, "origin": _origin_of(record["origin"]), "commands": tuple(record["commands"])})
        for record in values["replicates"]
    )
    cells = tuple(Cell(**{**cell, "values": tuple(cell["values"])}) for cell in values["cells"])
    return FilledRow(values["label"], values["absent"], replicates, cells, values.get("planned", 0))


def _origin_of(values: Record) -> Origin:
    return Origin(**{**values, "members": tuple(map(_origin_of, values["members"]))})


def slug(name: str, scale: str, changes: Mapping[str, object], rows: Sequence[str] = ()) -> str:
    """Return the name under which a table at a scale, with changes and chosen rows, is kept."""
    identity: object = [dict(changes), sorted(rows)] if rows else dict(changes)
    marked = f"-{sha256(json.dumps(identity, sort_keys=True).encode())[:6]}" if changes or rows else ""
    return f"{name.replace('/', '-')}-{scale}{marked}"


def slug_of(part: FilledTable) -> str:
    """Return the name under which a filled table is kept."""
    return slug(part.name, part.scale, part.changes, part.chosen)


def source_line(origin: Origin) -> str:
    """Write where a number is from: `<run>`, `<run>[epoch=3]`, `<combination>(<run>,<run>[threshold=0.2])`."""
    seen = ",".join(f"{path}={value}" for path, value in (origin.view or {}).items())
    members = ",".join(source_line(member) for member in origin.members)
    return origin.run + (f"[{seen}]" if seen else "") + (f"({members})" if members else "")


def fill(plan: Plan, name: str, results: Results | None = None) -> FilledTable:
    """Fill a planned table and judge its claims. `results`: the return value of `gather`, if it was called before."""
    task, table = plan.tables[name]
    with plan.storage.snapshot():
        results = results or gather(plan, name)
        columns = table.columns if isinstance(table, Table) else ()
        judged = rows_of_claims(table, task.config(), task.view()) if results.by_rows else [()] * len(table.claims)
        verdicts = [
            (claim, judge_claim(claim, results, reads)) for claim, reads in zip(table.claims, judged, strict=True)
        ]
        infos = list(_infos(plan, task, name))
        runs, reasons = _runs(plan, task, results), comparable.apart(plan, name, results)
        return FilledTable(
            name=name,
            title=table.title,
            scale=plan.scale,
            scale_about=str(find_scale(task, plan.scale)),
            changes=dict(plan.changes),
            corrupt=tuple(plain(line, most=1000) for line in corrupt_in(plan, name)),
            chosen=tuple(plan.rows),
            figure=not isinstance(table, Table),
            columns=tuple(FilledColumn(column.header, column.format, column.better) for column in columns),
            rows=tuple(
                _fill_row(plan, name, row, columns, results, reasons.get(row.label) == [])
                for row in table.rows
                if not hidden(row)
            ),
            claims=tuple(FilledClaim(claim.text, claim.ours, v.status, v.because) for claim, v in verdicts),
            axes={axis: tuple(levels) for axis in table.over if (levels := results.axis(axis))},
            data=tuple(plain(task.dataset.describe(info)) for info in infos),
            caution=" ".join(dict.fromkeys(text for info in infos if (text := plain(task.dataset.caution(info))))),
            note=" ".join(part for part in (table.note, adopted(task, results, runs)) if part),
            apart=comparable.sentence(task, reasons) if columns else "",
            task_about=task.about,
            paper=task.paper,
            telling=name == f"{task.name}/{task.telling or next(iter(task.tables()), '')}",
            key_number=task.key_number if task.key_number and name == f"{task.name}/{task.key_number.table}" else None,
            full=_full(task, name),
            runs=runs,
        )


def _fill_row(
    plan: Plan, name: str, row: AnyRow, columns: Sequence[Column], results: Results, as_published: bool
) -> FilledRow:
    """Return a row's replicates and cells; diverged replicates are listed, in no cell, and no number is NaN."""
    of_row = [*results.select(row), *results.diverged(row)]
    cells = []
    for column in columns:
        metric = row.metrics.get(column.header, column.metric) if isinstance(row, Row) else column.metric
        values = [None if replicate.diverged else replicate.metrics.get(metric) for replicate in of_row]
        scaled = tuple(
            None if value is None or not math.isfinite(value) else float(value) * column.factor for value in values
        )
        cells.append(Cell(scaled, row.published.get(column.header), as_published))
    replicates = tuple(
        FilledReplicate(
            replicate.axes,
            replicate.origin,
            commands(plan, name, row, replicate),
            replicate.metrics,
            replicate.diverged,
            _epochs_of(plan.tables[name][0], replicate) if isinstance(row, Row) else "",
        )
        for replicate in of_row
    )
    if isinstance(row, Combined):
        planned = 0 if row.absent else len(combinings(plan, name, row))
    else:
        planned = len(plan.replicates[name].get(row.label, ()))
    return FilledRow(row.label, row.absent, replicates, tuple(cells), planned)


def _epochs_of(task: Task, replicate: Replicate) -> str:
    """Return `24 -> 3` where early stopping keeps the weights of epoch 3 under the number 24, which was asked for."""
    epoch = replicate.view.epoch if replicate.view is not None else replicate.config.epochs
    shown = replicate.metrics.get("epoch", epoch)
    if replicate.diverged or task.early_stop(replicate.config) is None or shown == epoch:
        return ""
    return f"{epoch} -> {shown:.0f}"


def _infos(plan: Plan, task: Task, name: str) -> Iterator[Record]:
    """Yield `dataset.json` of a table's datasets, each once."""
    readers: dict[str, list[RunFolder]] = {}
    for replicate in (planned for rows in plan.replicates[name].values() for planned in rows if planned.config):
        run = RunFolder.of(plan.storage, task, replicate.config)
        readers.setdefault(task.dataset.where(replicate.config), []).append(run)
    for where, runs in readers.items():
        if (info := comparable.data_info(plan.storage, where, runs)) is not None:
            yield info


def _came(bundle: object, made: Mapping[str, object]) -> dict[str, str]:
    """Return which bundle a number came in, and when and where it was measured; nothing of one that was made here."""
    if not isinstance(bundle, dict):
        return {}
    facts = {"packed": bundle.get("packed", ""), "packed_on": bundle.get("host", ""), "bundle": bundle.get("id", "")}
    facts |= {"measured": made.get("started", ""), "host": made.get("host", ""), "device": made.get("device", "")}
    return {name: plain(value) for name, value in facts.items()}


def _came_of(folder: RunFolder) -> dict[str, str]:
    bundle = folder.bundle()
    return _came(bundle, folder.provenance()) if bundle else {}


def _full(task: Task, name: str) -> dict[str, float]:
    """Return the cost of a table's published setting, parents included; empty if the task has none."""
    table = comparable.published_table(task, name)
    if table is None:
        return {}
    configs = {
        fingerprint(task.name, task.version, config): config
        for row in table.rows
        if isinstance(row, Row) and not row.absent
        for replicate in expand(table, row, task.config(), task.view())
        for config in lineage(replicate.config)
    }
    return {"trainings": len(configs), "core_seconds": sum(map(task.cost, configs.values()))}


def _runs(plan: Plan, task: Task, results: Results) -> dict[str, Record]:
    """Return the facts about each run behind a number, and those that it starts from, each once."""
    states = {}
    configs = [
        replicate.config for rows in results.replicates.values() for replicate in rows if replicate.config is not None
    ]
    for config in configs:  # parents join the list behind their children
        folder = RunFolder.of(plan.storage, task, config)
        if folder.fingerprint not in states and folder.folder.exists("provenance.json"):
            configs += filter(None, [parent(config)])
            with intact(plan, folder):
                result = folder.result() or {}
                states[folder.fingerprint] = {
                    "task": task.name,
                    "usage": {"seconds": result.get("seconds", 0.0), **(result.get("used") or {})},
                    "curves": notebook.curves(folder.history())[:1],
                    "command": train_line(task, config),
                    "config": flatten(config),
                    "provenance": placeless(folder.provenance()),
                }
    return states


def adopted(task: Task, results: Results, runs: Mapping[str, Record]) -> str:
    """Return which rows show weights that others trained, in words; empty if none does."""
    others = {digits for digits, run in runs.items() if "adopted" in run["provenance"]}
    if not others:
        return ""
    configs = {
        label: [replicate.config for replicate in replicates if replicate.config]
        for label, replicates in results.replicates.items()
    }
    replicates = [
        label for label, some in configs.items() if any(fingerprint(task.name, task.version, c) in others for c in some)
    ]
    return f"Weights that others trained, adopted without a step of training: {', '.join(replicates)}."


def train_line(task: Task, config: Config, epoch: int = 0) -> str:
    """Return the command that trains exactly this config, and keeps the weights of an epoch."""
    keep = f"--keep {epoch}" if epoch not in (0, config.epochs, *task.keep(config)) else ""
    scales = task.scales()
    plain = [name for name, scale in scales.items() if not scale.overrides and not scale.start]
    scale, changes = (plain[-1], exact_changes(config)) if plain else (next(iter(scales)), flatten(config))
    words = [f"retable train {task.name} --scale {scale}", set_line(changes), keep]
    return " ".join(word for word in words if word)


def commands(plan: Plan, name: str, row: AnyRow, replicate: Replicate) -> tuple[str, ...]:
    """Return the command lines that make one replicate: `train`, `score` for a view, `reproduce` for a combined row."""
    task, _ = plan.tables[name]
    words = f"retable reproduce {name} --rows {shlex.quote(row.label)} --scale {plan.scale} {set_line(plan.changes)}"
    command = words.strip()
    if isinstance(row, Measurement):
        return (command,)
    if isinstance(row, Combined):
        rows = plan.replicates[name]
        members = [member for label in row.of for member in rows[label] if member.axes == replicate.axes]
        return (*dict.fromkeys(line for member in members for line in _run_lines(plan, task, member)), command)
    return tuple(_run_lines(plan, task, replicate))


def _run_lines(plan: Plan, task: Task, replicate: Replicate) -> list[str]:
    config, view = replicate.config, replicate.view
    if view is None:
        return [train_line(task, config)]
    run = RunFolder.of(plan.storage, task, config).fingerprint
    score = f"retable score {run} {set_line(view_changes(task.view(), config, view))}".strip()
    return [train_line(task, config, view.epoch), score]


def gather(plan: Plan, name: str) -> Results:
    """Return the existing results of each row of a planned table."""
    task, table = plan.tables[name]
    replicates: dict[str, Sequence[Replicate]] = {}
    with plan.storage.snapshot():
        for row in table.rows:
            if isinstance(row, Combined):
                rows = (
                    [_combined(plan, replicate) for replicate in combinings(plan, name, row)] if not row.absent else []
                )
            else:
                rows = [
                    _replicate(plan, task, row, replicate) for replicate in plan.replicates[name].get(row.label, [])
                ]
            replicates[row.label] = [replicate for replicate in rows if replicate is not None]
    return Results(replicates, table)


def _replicate(plan: Plan, task: Task, row: Row | Measurement, replicate: Replicate) -> Replicate | None:
    """Return one replicate of a row with its measured values, or None if they do not exist."""
    folder = RunFolder.of(plan.storage, task, replicate.config)
    if isinstance(row, Measurement):
        path = timing_read(plan, task, row, replicate)
        if path is None:
            return None
        key, taken = path.rsplit("/", 1)[-1].removesuffix(".json"), read_timing(plan.storage, path)
        origin = Origin(key, bundle=_came(taken.get("bundle"), taken.get("provenance") or {}))
        return dataclasses.replace(replicate, metrics=taken["metrics"], origin=origin)
    with intact(plan, folder):
        return _trained(plan, task, replicate, folder)
    return None


def _trained(plan: Plan, task: Task, replicate: Replicate, folder: RunFolder) -> Replicate | None:
    """Return a replicate with what its run measured, or None if that does not exist."""
    result, view = folder.result(), replicate.view
    if result is None or plan.trainings[folder.path].status == "data changed":
        return None
    filled = dataclasses.replace(replicate, history=folder.history(), diverged=result.get("diverged", ""))
    came = _came_of(folder) if "bundle" in result else {}
    if view is None:
        return dataclasses.replace(filled, metrics=result["metrics"], origin=Origin(folder.fingerprint, bundle=came))
    weights = result["weights"].get(str(view.epoch), "")
    origin = Origin(folder.fingerprint, view_changes(task.view(), replicate.config, view), weights, bundle=came)
    if filled.diverged:
        return dataclasses.replace(filled, metrics=result["metrics"], origin=origin)
    scores = folder.scores(view, weights)
    if scores is None:
        return None
    metrics = {**scoring.training_metrics(folder, view, replicate.config.epochs), **scores["metrics"]}
    summaries = partial(scoring.summaries, task, replicate.config, view, folder)
    return dataclasses.replace(filled, metrics=metrics, origin=origin, summaries=summaries)


def _combined(plan: Plan, combining: Combining) -> Replicate | None:
    """Return one replicate of a combined row, or None while it is not there."""
    scores = combining.scores(plan.storage) if plan.whole(combining) else None
    if scores is None:
        return None
    task = combining.task
    members = tuple(
        Origin(
            member.folder.fingerprint,
            view_changes(task.view(), member.config, member.view),
            scoring.weights_digest(member.folder, member.view),
            bundle=_came_of(member.folder),
        )
        for member in combining.members
    )
    first = combining.members[0]
    view = view_changes(task.view(), first.config, combining.view)
    return Replicate(
        combining.row.label,
        combining.axes,
        first.config,
        combining.view,
        metrics=scores["metrics"],
        origin=Origin(
            combining.place.rsplit("/", 1)[-1], view, members=members, bundle=_came(scores.get("bundle"), {})
        ),
        summaries=partial(ensembles.summaries, combining, plan.storage),
    )
