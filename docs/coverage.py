"""Write `docs/coverage.md`: every row of the papers' tables and figures, and every option, with what running it takes.

`python docs/coverage.py` asks the planner, and starts nothing; a test fails when the page is old.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retable.platform import api
from retable.platform.config import choice_name, set_line
from retable.platform.plan.cluster_spec import read_cluster, read_prices
from retable.platform.plan.cost import Rates, estimate
from retable.platform.spec.table import AnyRow, AnyTable, Combined, Figure, Measurement
from retable.platform.spec.task import Task, find, scaled

ROOT = Path(__file__).parents[1]
TASKS = ("weather", "style", "audio", "rl")
QUICK = json.loads((ROOT / "docs/results/quick.json").read_text())["tables"]
"""Tables of the committed run of `make reproduce`."""
HEAD = """# What is here

Every table, figure and option of the four papers: the command that runs it, the scale at which it was run here, and
what the published setting takes. Written by `python docs/coverage.py` from the tables themselves and from the planner;
the commands are executed at the smallest scale by `make docs-check`.

- **smoke** fills all of it in minutes on two cores: it tests the code, and its numbers mean nothing.
- **quick**, the default, fills part of it in minutes on two cores: one seed, for a first look. "Run here" links to its
  numbers.
- **small** takes up to a night for each paper on two cores, on generated or recorded data. It was run where the column
  "run here" links to its results.
- **paper** is the published setting, on the published data, which you must have. Where "run here" links to results of
  it, they are of recordings of our own: masks and file sizes, and, as *a few rows*, four policies that were trained at
  full length. The costs are estimates. Days of one core follow each task's own rough formula. Money and GPU hours
  follow [cluster.yaml](../cluster.yaml) and the example prices in [prices.toml](../prices.toml), which also says how
  many cores a GPU is worth. Runs that several tables share count for each of them.
"""


def page() -> str:
    """Return the whole page."""
    prices = read_prices(str(ROOT / "prices.toml"))
    cluster = read_cluster(str(ROOT / "cluster.yaml"), prices)
    with tempfile.TemporaryDirectory() as nothing:
        parts = [HEAD]
        for name in TASKS:
            task = find(name)
            parts.append(f"## {name}: {task.about}\n\n{overview(task, nothing, cluster, prices)}\n")
            parts += [f"### {name}/{key}\n\n{rows(task, key, table)}\n" for key, table in task.tables().items()]
            parts.append(f"### Options of `{name}`\n\n{fields(task)}\n")
    return "\n".join(parts)


def overview(task: Task, storage: str, cluster: Any, prices: Any) -> str:
    """Return a line for each table: what it takes at the published setting, and where it was run."""
    lines = [
        "| command | rows | trainings | core time | GPU hours | money | run here |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for key, table in task.tables().items():
        name = f"{task.name}/{key}"
        work = api.plan(name, scale="paper", storage=storage)
        found = estimate(work, cluster, prices, Rates())
        part = found.tables[name]
        gpu = sum(hours for node, hours in part.hours.items() if cluster_gpus(cluster, node))
        days = f"{work.cost / 86400:,.1f} days"
        lines.append(
            f"| `retable reproduce {name} --scale paper` | {len(table.rows)} | {len(work.trainings)} | {days} "
            f"| {gpu:,.0f} | {found.money(part.hours):,.0f} {prices.currency} | {run_here(task, key)} |"
        )
    return "\n".join(lines)


def run_here(task: Task, key: str) -> str:
    """Return the scales at which a table was run here, with links to results that are among the documents."""
    quick = ["[quick](results/quick.json)"] if f"{task.name}/{key}" in QUICK else []
    found = [
        f"[{scale}](results/{task.name}-{scale}/report.md)" for scale in ("small", "paper") if has(task, key, scale)
    ]
    million = [
        f"[paper, a few rows](results/{task.name}-{part}/report.md)"
        for part in ("million", "million-2")
        if has(task, key, "paper", part)
    ]
    return ", ".join(["smoke", *quick, *found, *million])


def cluster_gpus(cluster: Any, node: str) -> bool:
    """Return whether a node type has GPUs."""
    return any(kind.name == node and kind.gpus for kind in cluster.workers)


def has(task: Task, key: str, scale: str, folder: str = "") -> bool:
    """Return whether the results of a table at some scale are among the documents, in the scale's folder or another."""
    files = ROOT / "docs" / "results" / f"{task.name}-{folder or scale}"
    return any(files.glob(f"{task.name}-{key}-{scale}*.csv"))


def rows(task: Task, key: str, table: AnyTable) -> str:
    """Return the table's title, and its rows: what they change, and at which scales they are run.

    Where the paper gives numbers, also whose the rows are.
    """
    scales = {name: scaled(table, scale) for name, scale in task.scales().items()}
    kind, numbers = "figure" if isinstance(table, Figure) else "table", any(row.published for row in table.rows)
    over = "; ".join(f"{axis}: {', '.join(map(str, values))}" for axis, values in table.over.items())
    lines = [f"{table.title}. A {kind} of {len(table.rows)} rows" + (f", each over {over}" if over else "") + ".", ""]
    lines += ["<details><summary>Its rows</summary>", ""]
    lines += [f"| row |{' of |' * numbers} what it is | scales |", f"|---|{'---|' * numbers}---|---|"]
    for place, row in enumerate(table.rows):
        there = [name for name, at in scales.items() if not at.rows[place].absent and runs(at.rows[place])]
        whose = f" {'paper' if row.published else 'ours'} |" * numbers
        lines.append(f"| {plain(row.label)} |{whose} {what(row)} | {', '.join(there) or plain(row.absent) or '–'} |")
    return "\n".join([*lines, "", "</details>"])


def runs(row: AnyRow) -> bool:
    """Return whether a row is more than a published value."""
    return isinstance(row, Combined) or row.overrides is not None


def what(row: AnyRow) -> str:
    """Return what a row changes of the paper's defaults, or joins, in the words of the command line."""
    if isinstance(row, Combined):
        return f"joins {len(row.of)} rows by `{row.combine.__name__}`"
    if row.overrides is None:
        return "a published value only"
    if isinstance(row, Measurement):
        return f"measures, `{plain(set_line(row.overrides))}`" if row.overrides else "measures"
    changes = f"`{plain(set_line(row.overrides))}`" if row.overrides else "the defaults"
    return changes + (f"; view `{plain(set_line(row.view))}`" if row.view else "")


def plain(text: str) -> str:
    """Return text as a cell of a table holds it."""
    return text.replace("|", "\\|").replace("\n", " ")


def fields(task: Task) -> str:
    """Return the config's fields that are a choice: what `--set` and sweeps choose from."""
    lines = ["| `--set` | choices (the paper's first setting in bold) |", "|---|---|"]
    for path, names, default in choices(task.config, task.config()):
        shown = ", ".join(f"**{name}**" if name == default else name for name in names)
        lines.append(f"| `{path}=` | {shown} |")
    return "\n".join(lines)


def choices(kind: type[Any], config: Any, prefix: str = "") -> Iterator[tuple[str, list[str], str]]:
    """Yield the path of each field that is a choice, what it chooses from, and what the default is."""
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        hint, value = hints[each.name], getattr(config, each.name, None)
        members = [m for m in typing.get_args(hint) if m is not type(None)] if union(hint) else []
        if typing.get_origin(hint) is typing.Literal:
            yield prefix + each.name, [str(member) for member in typing.get_args(hint)], str(value)
        elif len(members) > 1 and all(dataclasses.is_dataclass(member) for member in members):
            names = [choice_name(member) for member in members]
            yield prefix + each.name, names, choice_name(type(value))
        elif dataclasses.is_dataclass(hint) and value is not None:
            yield from choices(typing.cast(type[Any], hint), value, f"{prefix}{each.name}.")


def union(hint: Any) -> bool:
    """Return whether a type is one of several."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


if __name__ == "__main__":
    (ROOT / "docs" / "coverage.md").write_text(page())
