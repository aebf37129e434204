"""Representations of plans, tables, runs and sweeps in notebooks (HTML) and at Python's prompt (text).

Plans and sweeps stand on levels below this one: what they look like is set here, when this module is imported.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from retable.platform.config import describe, differences
from retable.platform.errors import UserError
from retable.platform.execute.sweep import SweepResult
from retable.platform.plan.plan import Plan
from retable.platform.spec.task import SMOKE
from retable.platform.store.query import FIELDS, Run, differs, usual
from retable.platform.store.storage import Record
from retable.platform.text import clock, cut, is_number

if TYPE_CHECKING:
    import pandas as pd

    from retable.platform.report.results import FilledTable
    from retable.platform.trained import TrainedRun

WIDTH, ROWS = 100, 20
"""Columns and lines of a text."""
_AXES = ("epoch", "step", "time", "seconds")
"""Entries of a log that are no metrics."""
_PANELS = 6
"""Most curves of a run that are drawn."""
MOST = 10
"""Most metrics of a run that are named."""
Rows = Sequence[Sequence[str]]


class Tables(dict[str, "FilledTable"]):
    """Filled tables by name, which show themselves."""

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self.values()))

    def _repr_html_(self) -> str:
        return "".join(map(table_html, self.values()))


class History(list[Record]):
    """A run's log, an entry an epoch."""

    def frame(self) -> pd.DataFrame:
        """Return a line an epoch, a column a metric."""
        import pandas as pd

        return pd.DataFrame(self)

    def _repr_html_(self) -> str:
        return render("curves", curves=curves(self))


class Runs(list[Run]):
    """The runs that were asked for."""

    def frame(self) -> pd.DataFrame:
        """Return a line a run: what is known of it, then its config."""
        import pandas as pd

        lines = [{name: run.value(name) for name in dict.fromkeys([*FIELDS, *run.config])} for run in self]
        return pd.DataFrame(lines, columns=None if lines else FIELDS)

    def _grid(self) -> tuple[list[str], Rows]:
        base = usual(self)
        shown = [(r.run[:8], r.task, r.state, f"{r.epoch}/{r.epochs}", differs(r, base.get(r.task, {}))) for r in self]
        return ["run", "task", "state", "epochs", "differs"], shown

    def __repr__(self) -> str:
        return f"{len(self)} runs\n{text_grid(*self._grid())}"

    def _repr_html_(self) -> str:
        header, rows = self._grid()
        return render("grid", title=f"{len(self)} runs", header=header, rows=rows[:ROWS], more=len(rows) - ROWS)


def text_grid(header: Sequence[str], rows: Rows, width: int = WIDTH, most: int = ROWS) -> str:
    """Return a table as text of limited width and length, with the omitted part in words."""
    columns = list(zip(header, *rows[:most], strict=True))
    full = [max(map(len, column)) for column in columns]
    widths = [min(40, longest) for longest in full]
    fitting = 1
    while fitting < len(widths) and sum(widths[: fitting + 1]) + 2 * fitting <= width:
        fitting += 1
    rest = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    if fitting >= len(widths) - 1 and rest >= 10:  # the last one is cut where it must be, and has all the room there is
        widths[-1], fitting = min(full[-1], rest), len(widths)
    lines = ["  ".join(_line(text, w).ljust(w) for text, w in zip(line, widths[:fitting], strict=False)).rstrip()
             for line in zip(*columns, strict=True)]  # fmt: skip
    left = [f"{len(rows) - most} more rows"] if len(rows) > most else []
    left += [f"{len(widths) - fitting} more columns"] if fitting < len(widths) else []
    return "\n".join([*lines, *([f"... {' and '.join(left)}: .frame() has all"] if left else [])])


def _line(text: str, width: int) -> str:
    """Return a text in one line, cut where it is longer."""
    return cut(" ".join(text.split()), width)


def _facts_text(title: str, facts: Mapping[str, str]) -> str:
    """Return a title and facts, a line each."""
    wide = max(map(len, facts), default=0)
    lines = (f"  {name.ljust(wide)}  {_line(text, WIDTH - wide - 4)}" for name, text in facts.items())
    return "\n".join([_line(title, WIDTH), *lines])


# A plan ----------------------------------------------------------------------------------------------------------


def _plan_facts(plan: Plan) -> dict[str, str]:
    """Return the facts of a plan, in words."""
    states = Counter(training.status for training in plan.trainings.values())
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return {
        "trainings": f"{len(plan.trainings)}" + (f" ({counted})" if counted else ""),
        "evaluations": f"{len(plan.scorings)} ({len(plan.unscored)} to do)",
        "combinations": f"{len({combining.path for combining in plan.combinings})} ({len(plan.uncombined)} to do)",
        "measurements": f"{len(plan.timings)} ({len(plan.unmeasured)} to do)",
        "cost": f"{clock(plan.cost)} of one CPU core (rough)",
        "changed by": describe(plan.changes) or "nothing",
        "storage": str(plan.storage),
    }


def _plan_title(plan: Plan) -> str:
    """Return the title of a plan."""
    return f"plan of {len(plan.tables)} table{'s' * (len(plan.tables) != 1)} at the scale {plan.scale or '?'}"


def _plan_grid(plan: Plan) -> tuple[list[str], Rows]:
    """Return a line a table: how many rows it has, how many are not run, and how many replicates the others have."""
    rows = []
    for name, (_, table) in plan.tables.items():
        absent = sum(bool(row.absent) for row in table.rows)
        replicates = sum(len(per_label) for per_label in plan.replicates[name].values())
        rows.append((name, str(len(table.rows)), str(absent), str(replicates), table.title))
    return ["table", "rows", "absent", "replicates", "title"], rows


def _plan_text(plan: Plan) -> str:
    """Return a plan as a text of a screen."""
    return f"{_facts_text(_plan_title(plan), _plan_facts(plan))}\n\n{text_grid(*_plan_grid(plan), most=12)}"


def _plan_html(plan: Plan) -> str:
    """Return a plan as HTML."""
    header, rows = _plan_grid(plan)
    facts = render("facts", title=_plan_title(plan), facts=_plan_facts(plan))
    return facts + render("grid", title="", header=header, rows=rows, more=0)


# A filled table --------------------------------------------------------------------------------------------------


def table_text(part: FilledTable) -> str:
    """Return a filled table as a text of a screen."""
    header, rows = _table_grid(part)
    from retable.platform.report.render import counts

    counted = ", ".join(f"{count} {status}" for status, count in counts(part.claims).items())
    claims = [f"claims: {counted}"] if counted else []
    apart = [_line(text, WIDTH) for text in (part.caution, part.apart) if text]
    return "\n".join([_line(_table_title(part), WIDTH), *apart, text_grid(header, rows, most=ROWS - 4), *claims])


def _table_title(part: FilledTable) -> str:
    """Return a table's name, title and scale."""
    proof = ": proves the path, its numbers are no results" if part.scale == SMOKE else ""
    return f"{part.name}: {part.title} [{part.scale}{proof}]"


def _table_grid(part: FilledTable) -> tuple[list[str], Rows]:
    """Return a table's header and lines as text; of a figure, how many replicates each row has."""
    from retable.platform.report.render import grid, label, state

    if part.columns:
        return grid(part)
    return ["", "replicates"], [(label(row), str(len(row.replicates)) if row.replicates else state(row))
                                for row in part.rows]  # fmt: skip


def table_html(part: FilledTable) -> str:
    """Return a filled table as HTML, with its claims."""
    from retable.platform.report.render import about, in_order, remarks

    header, rows = _table_grid(part)
    below = [about(part), *remarks(part)]
    title, claims = _table_title(part), in_order(part.claims)
    return render("table", part=part, title=title, claims=claims, header=header, rows=rows, below=below)


# A run -----------------------------------------------------------------------------------------------------------


def _run_facts(run: TrainedRun) -> dict[str, str]:
    """Return the facts of a run, in words; unreadable ones are named, not raised."""
    facts = {
        "config": describe(differences(run.config, run.task.config())) or "the paper's",
        "folder": str(run.folder.folder),
    }
    try:
        result = run.folder.result()
        if result is None:
            return {"state": "not finished", **facts}
        ended = f"diverged: {run.diverged}" if run.diverged else "finished"
        most = _main_names(run.metrics)[:MOST]
        more = len(run.metrics) - len(most)
        numbers = describe({name: run.metrics[name] for name in most}) + (f" and {more} more" if more else "")
        took = f" in {clock(result['seconds'])}" if isinstance(result.get("seconds"), (int, float)) else ""
        return {"state": f"{ended}{took}, epochs: {run.config.epochs}", "metrics": numbers, **facts}
    except UserError as error:
        return {"state": f"corrupt: {error}", **facts}


def run_text(run: TrainedRun) -> str:
    """Return a run as a text of a screen."""
    return _facts_text(f"run {run.fingerprint} of {run.task.name}", _run_facts(run))


def run_html(run: TrainedRun) -> str:
    """Return a run as HTML, with its curves."""
    try:
        history = run.history
    except UserError:
        history = History()
    title = f"run {run.fingerprint} of {run.task.name}"
    return render("facts", title=title, facts=_run_facts(run)) + render("curves", curves=curves(history))


def curves(history: Sequence[Record]) -> list[dict[str, object]]:
    """Return for each metric of a log a line to draw, in a box of 100 x 40: the first few that have numbers."""
    charts: list[dict[str, object]] = []
    for name in _main_names({name: 0 for row in history for name in row}):
        rows = [row for row in history if is_number(row.get(name)) and math.isfinite(row[name])]
        points = [(float(row["epoch"]), float(row[name])) for row in rows]
        if points:
            charts.append({"name": name, "points": _scaled(points), "last": f"{points[-1][1]:.4g}",
                          "from": f"{points[0][1]:.4g}", "epochs": f"{points[-1][0]:g}"})  # fmt: skip
    return charts[:_PANELS]


def _main_names(metrics: Mapping[str, object]) -> list[str]:
    """Return the names of metrics, those first that are of the whole (`loss`, not `loss/layer1`)."""
    return sorted((name for name in metrics if name not in _AXES), key=lambda name: "/" in name)


def _scaled(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return points in a box of 100 x 40, the largest value on top."""
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    wide, tall = (right - left) or 1.0, (high - low) or 1.0
    flat = 20.0 if high == low else 0.0
    return [(round(100 * (x - left) / wide, 2), round(40 - 40 * (y - low) / tall - flat, 2)) for x, y in points]


# A sweep ---------------------------------------------------------------------------------------------------------


def _sweep_grid(result: SweepResult) -> tuple[list[str], Rows]:
    """Return a sweep's points as text, best first."""
    frame = result.frame()
    lines = [[_cell(value) for value in line] for line in frame.itertuples(index=False)]
    return [str(name) for name in frame.columns], lines


def _cell(value: object) -> str:
    if str(value) in ("None", "nan", "<NA>"):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _sweep_title(result: SweepResult) -> str:
    """Return the title of a sweep."""
    how = f"{result.space.metric} ({result.space.mode})"
    return f"sweep {result.name} of {result.space.task} at the scale {result.scale}: {len(result.points)} points, {how}"


def _sweep_text(result: SweepResult) -> str:
    """Return a sweep as a text of a screen."""
    return f"{_line(_sweep_title(result), WIDTH)}\n{text_grid(*_sweep_grid(result))}"


def _sweep_html(result: SweepResult) -> str:
    """Return a sweep as HTML: its points, and the metric over each axis."""
    header, rows = _sweep_grid(result)
    buffer = io.StringIO()
    if any(point.value is not None for point in result.points):
        result.figure().savefig(buffer, format="svg", metadata={"Date": None})
    shown = render("grid", title=_sweep_title(result), header=header, rows=rows[:ROWS], more=len(rows) - ROWS)
    return shown + buffer.getvalue()[buffer.getvalue().find("<svg") :] if buffer.getvalue() else shown


# HTML ------------------------------------------------------------------------------------------------------------


def render(what: str, **values: object) -> str:
    """Return a part of the template; all text in it is escaped."""
    part: Callable[..., str] = getattr(_template(), what)
    return str(part(**values))


@cache
def _template() -> Any:
    from retable.platform.report.html import environment

    return environment().get_template("notebook.html.j2").module


for _kind, _text, _html in ((Plan, _plan_text, _plan_html), (SweepResult, _sweep_text, _sweep_html)):
    setattr(_kind, "__repr__", _text)  # noqa: B010 (mypy takes a plain assignment for a mistake)
    setattr(_kind, "_repr_html_", _html)  # noqa: B010
