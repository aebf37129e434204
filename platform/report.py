"""Reports: every table measured beside published, figures, claims with verdicts, and the run behind each cell.

One static page, `report/index.html`, for all that a storage path holds; the same as Markdown, CSV and LaTeX.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retable.platform.api import set_line
from retable.platform.config import differences, fingerprint, flatten
from retable.platform.plan import compile_plan
from retable.platform.results import Cell, cell, gather
from retable.platform.runs import RunFolder, sha256
from retable.platform.storage import Storage
from retable.platform.table import Claim, Figure, Results, Table, Verdict, changed
from retable.platform.task import Task, find_table, scaled


@dataclass(frozen=True)
class Section:
    """One table or figure of a report, filled."""

    name: str
    scale: str
    changes: Mapping[str, object]
    task: Task
    table: Table | Figure
    results: Results
    verdicts: Sequence[tuple[Claim, Verdict]]
    data: Sequence[str]
    """What each data set is, in words."""

    @property
    def slug(self) -> str:
        """The section's name as part of a file name."""
        return slug(self.name, self.scale, self.changes)

    @property
    def columns(self) -> Sequence[Any]:
        """The columns; a figure has none."""
        return self.table.columns if isinstance(self.table, Table) else ()

    @property
    def has_published(self) -> bool:
        """Whether any row has a published number."""
        return any(row.published for row in self.table.rows)

    def cells(self, row: Any) -> list[Cell]:
        """Return a row's cells."""
        return [cell(self.results, row, column) for column in self.columns]

    @property
    def replicates(self) -> str:
        """Say over what the numbers are averaged."""
        axes = {axis: self.results.axis(axis) for axis in self.table.over}
        return "; ".join(f"{axis}: {', '.join(map(str, values))}" for axis, values in axes.items() if values)


def slug(name: str, scale: str, changes: Mapping[str, object]) -> str:
    """Return the name under which a table at a scale, with changes, is kept."""
    marked = f"-{sha256(json.dumps(dict(changes), sort_keys=True).encode())[:6]}" if changes else ""
    return f"{name.replace('/', '-')}-{scale}{marked}"


def remember(plan: Any, scale: str, changes: Mapping[str, object]) -> None:
    """Note on the storage which tables were asked for, so that the report shows them."""
    for name in plan.tables:
        request = {"table": name, "scale": scale, "set": dict(changes)}
        plan.storage.write_json(f"tables/{slug(name, scale, changes)}.json", request)


def sections(storage: Storage) -> list[Section]:
    """Fill every table that was asked for on a storage path."""
    found = []
    for file in storage.list("tables"):
        request = storage.read_json(f"tables/{file}")
        task, table = find_table(request["table"])
        table = changed(scaled(task, table, request["scale"]), request["set"])
        found.append(section(storage, request["table"], request["scale"], request["set"], task, table))
    return found


def section(storage: Storage, name: str, scale: str, changes: Mapping[str, object], task: Task, table: Any) -> Section:
    """Fill one table."""
    plan = compile_plan({name: (task, table)}, storage)
    results = gather(plan, name)
    verdicts = [(claim, claim.check(results)) for claim in table.claims]
    places = dict.fromkeys(task.dataset.where(training.config) for training in plan.trainings.values())
    infos = [f"data/{place}/dataset.json" for place in places]
    data = [task.dataset.describe(storage.read_json(info)) for info in infos if storage.exists(info)]
    return Section(name, scale, changes, task, table, results, verdicts, data)


def number(value: float | None, form: str) -> str:
    """Write a number, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def measured(found: Cell, form: str) -> str:
    """Write mean ± standard deviation (n), or what there is."""
    if found.mean is None:
        return "–"
    spread = f" ± {format(found.deviation, form)}" if len(found.values) > 1 else ""
    return format(found.mean, form) + spread


def grid(part: Section) -> tuple[list[str], list[list[str]]]:
    """Return a table's header and lines as text: measured, and published and difference where there are any."""
    header = [""]
    for column in part.columns:
        header += [column.header]
        header += [f"{column.header} published", "difference"] if part.has_published else []
    lines = []
    for row in part.table.rows:
        line = [row.label]
        for column, found in zip(part.columns, part.cells(row), strict=True):
            line.append(measured(found, column.format) if row.present else "not at this scale")
            if part.has_published:
                signed = "+" + column.format
                line += [number(found.published, column.format), number(found.difference, signed)]
        lines.append(line)
    return header, lines


def about(part: Section) -> str:
    """Say what a section's numbers are: scale, replicates, spread, data, changes."""
    words = [f"scale {part.scale} ({part.task.scales[part.scale].about})"]
    words += [part.replicates] if part.replicates else []
    words += ["mean ± standard deviation over replicates"] if part.columns else []
    words += [f"data: {' | '.join(part.data)}"] if part.data else []
    words += [f"changed by {set_line(part.changes)}"] if part.changes else []
    return "; ".join(words)


def markdown(part: Section) -> str:
    """Return a section as Markdown."""
    lines = [f"## {part.name}: {part.table.title}", "", f"*{about(part)}.*", ""]
    if part.columns:
        header, rows = grid(part)
        lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    else:
        lines += [f"![{part.table.title}]({part.slug}.png)", ""]
    lines += [part.table.note, ""] if part.table.note else []
    for claim, verdict in part.verdicts:
        whose = "ours" if claim.ours else "paper"
        lines.append(f"- **{verdict.status}** ({whose}): {claim.text} — {verdict.because}")
    return "\n".join(lines).rstrip() + "\n"


def comma_separated(part: Section) -> str:
    """Return a table as CSV, one line for each cell, with its replicates and fingerprints."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["row", "column", "mean", "std", "min", "max", "n", "published", "scale", "values", "fingerprints"])
    for row in part.table.rows:
        for column, found in zip(part.columns, part.cells(row), strict=True):
            low, high = (min(found.values), max(found.values)) if found.values else ("", "")
            prints = " ".join(replicate.fingerprint for replicate in found.replicates)
            values = " ".join(map(repr, found.values))
            mean, published = ("" if x is None else x for x in (found.mean, found.published))
            writer.writerow(
                [
                    row.label,
                    column.header,
                    mean,
                    found.deviation,
                    low,
                    high,
                    len(found.values),
                    published,
                    part.scale,
                    values,
                    prints,
                ]
            )
    return out.getvalue()


def replicates_csv(part: Section) -> str:
    """Return the numbers behind a figure as CSV: one line a replicate, with its axes, fingerprint and every metric."""
    rows = [(label, replicate) for label, found in part.results.replicates.items() for replicate in found]
    axes = list(dict.fromkeys(axis for _, replicate in rows for axis in replicate.need.axes))
    metrics = list(dict.fromkeys(name for _, replicate in rows for name in replicate.metrics))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["row", *axes, "scale", "fingerprint", *metrics])
    for label, replicate in rows:
        placed = [replicate.need.axes.get(axis, "") for axis in axes]
        numbers = [replicate.metrics.get(name, "") for name in metrics]
        writer.writerow([label, *placed, part.scale, replicate.fingerprint, *numbers])
    return out.getvalue()


def latex(part: Section) -> str:
    """Return a table as a LaTeX `tabular` in the booktabs style."""
    escape = str.maketrans({"%": r"\%", "_": r"\_", "&": r"\&", "±": r"$\pm$", "–": "--", "#": r"\#"})
    header, rows = grid(part)
    body = [" & ".join(text.translate(escape) for text in line) + r" \\" for line in [header, *rows]]
    columns = "l" + "r" * (len(header) - 1)
    caption = f"% {part.name}, {about(part)}"
    return "\n".join(
        [
            caption,
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            body[0],
            r"\midrule",
            *body[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def drawing(part: Section) -> dict[str, bytes]:
    """Draw a figure as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    assert isinstance(part.table, Figure)
    with pyplot.rc_context(
        {
            "svg.hashsalt": "retable",
            "figure.dpi": 130,
            "savefig.bbox": "tight",
            "axes.grid": True,
            "grid.alpha": 0.25,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure = part.table.draw(part.results)
        files = {}
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
            files[kind] = buffer.getvalue()
        pyplot.close(figure)
    return files


def write_report(storage: Storage, into: Storage | None = None) -> Storage:
    """Write the whole report of a storage path; return its folder.

    Args:
        storage: where runs and requests lie.
        into: where the report goes; by default `report/` below the storage.
    """
    from jinja2 import Environment, FileSystemLoader

    into = into or storage / "report"
    parts = sections(storage)
    pictures = {}
    for part in parts:
        if part.columns:
            into.write(f"{part.slug}.csv", comma_separated(part))
            into.write(f"{part.slug}.tex", latex(part))
        elif any(part.results.replicates.values()):
            into.write(f"{part.slug}.csv", replicates_csv(part))
            for kind, data in drawing(part).items():
                into.write(f"{part.slug}.{kind}", data)
                if kind == "png":
                    pictures[part.slug] = base64.b64encode(data).decode()
    into.write("report.md", "# retable report\n\n" + "\n".join(markdown(part) for part in parts))
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("report.html.j2")
    into.write(
        "index.html",
        page.render(
            parts=parts,
            pictures=pictures,
            runs=list(behind(storage, parts)),
            about=about,
            measured=measured,
            number=number,
            set_line=set_line,
        ),
    )
    return into


def behind(storage: Storage, parts: Sequence[Section]) -> list[dict[str, Any]]:
    """Return what the page tells of each run behind a cell, each once."""
    seen: dict[str, dict[str, Any]] = {}
    for part in parts:
        for replicates in part.results.replicates.values():
            for replicate in replicates:
                if replicate.fingerprint not in seen:
                    seen[replicate.fingerprint] = describe_run(storage, part.task, replicate.need.config)
    return list(seen.values())


def describe_run(storage: Storage, task: Task, config: Any) -> dict[str, Any]:
    """Return a run's name, config, command and provenance."""
    folder = RunFolder.of(storage, task, config)
    path = "provenance.json"
    provenance = folder.folder.read_json(path) if folder.folder.exists(path) else {}
    changes = differences(config, task.config())
    return {
        "fingerprint": fingerprint(task.name, task.version, config),
        "task": task.name,
        "command": f"retable train {task.name} --scale paper {set_line(changes)}".strip(),
        "config": json.dumps(flatten(config), indent=1),
        "provenance": json.dumps(provenance, indent=1),
    }
