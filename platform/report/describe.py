"""Runs, differences of two and tables as plain data: for `retable show`, `retable diff` and `retable tables`."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TypeAlias

from retable.platform.errors import TRACEBACK, UserError, nearest
from retable.platform.report.results import Cell, FilledReplicate, FilledTable, slug_of
from retable.platform.report.write import Request, kept_tables, read_request, request_slug
from retable.platform.store import provenance
from retable.platform.store.bundle import Member, kind_of
from retable.platform.store.cache import Index
from retable.platform.store.query import Files, Run, list_runs, look_at
from retable.platform.store.records import Malformed, check_content
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Record, Storage
from retable.platform.text import is_number

Pairs: TypeAlias = dict[str, tuple[object, object]]
"""Name -> the values of two runs; None where one has none."""
_TRACEBACKS = re.compile(rf"(attempts/\d+|views/[^/]+)/{re.escape(TRACEBACK)}")
_DIGITS = re.compile(r"[0-9a-f]{1,16}")


def find_run(storage: Storage, start: str) -> RunFolder:
    """Return the run whose fingerprint begins with some digits, the `latest`, or the one that fills a row of a table.

    Args:
        storage: where it lies.
        start: first digits; `latest`, the one that changed last; or `TABLE/ROW`, such as `rl/figure1/dense`: of several
            replicates the first.

    Raises:
        UserError: where there is none, or more than one.
    """
    if start == "latest":
        newest = next(iter(list_runs(storage)), None)
        if newest is None:
            raise UserError(f"{storage}: there is no run yet; `retable reproduce` or `retable train` makes some")
        return RunFolder(storage, newest.task, newest.run)
    if "/" in start:
        return _run_of_row(storage, start)
    if not _DIGITS.fullmatch(start):
        raise UserError(f"run {start!r}: name it by its first digits, 0-9 and a-f, by TABLE/ROW, or say latest")
    every = ((task, run) for task in storage.folders("runs") for run in storage.folders(f"runs/{task}"))
    matches = [RunFolder(storage, task, run) for task, run in every if run.startswith(start)]
    if not matches:
        raise UserError(f"{storage}: no run begins with {start!r}; `retable runs` lists what is there")
    if len(matches) > 1:
        names = ", ".join(f"{folder.task} {folder.fingerprint}" for folder in matches[:5])
        raise UserError(f"{storage}: {len(matches)} runs begin with {start!r}; name one by more digits: {names}")
    return matches[0]


def _run_of_row(storage: Storage, name: str) -> RunFolder:
    """Return the run that fills a row, `TABLE/ROW` or `TABLE/ROW/COLUMN`; of several replicates the first.

    Raises:
        UserError: where no such row was filled here, or no single run fills it, or that run is gone.
    """
    task, _, rest = name.partition("/")
    table, _, label = rest.partition("/")
    tables = [part for part in kept_tables(storage) if part.name == f"{task}/{table}"]
    if not tables:
        raise UserError(f"run {name!r}: {storage} has no table {task}/{table}; `retable reproduce` fills it")
    rows: dict[str, list[FilledReplicate]] = {}
    for part in tables:
        for row in part.rows:
            alone = [r for r in row.replicates if not r.origin.members and _DIGITS.fullmatch(r.origin.run)]
            for key in (row.label, *(f"{row.label}/{column.header}" for column in part.columns)):
                rows[key] = rows.get(key) or alone
    if label not in rows:
        labels = {row.label for part in tables for row in part.rows}
        raise UserError(f"run {name!r}: no such row{nearest(label, labels)}")
    if not rows[label]:
        why = f"it joins several, is a measurement or is empty; `retable tables {task}/{table} --json` names its runs"
        raise UserError(f"run {name!r}: no single run fills this row: {why}")
    folder = RunFolder(storage, task, rows[label][0].origin.run)
    if not storage.exists(folder.path):
        remedy = f"`{rows[label][0].commands[0]}` makes it again"
        raise UserError(f"run {name!r}: run {folder.fingerprint}, which filled it, is gone; {remedy}")
    return folder


def tables_of(storage: Storage) -> list[Record]:
    """Return, as plain data, each table that was asked for on a storage: its scale, changes, and what of it is filled.

    Of a request whose numbers are not there, or were kept by another version, `why` says so and the counts are None.
    """
    kept = {slug_of(part): part for part in kept_tables(storage)}
    tables = []
    for file in storage.list("tables"):
        try:
            request = read_request(storage, f"tables/{file}")
        except UserError as error:
            tables.append(_entry({"table": file, "scale": "", "set": {}}, None, str(error)))
            continue
        part = kept.get(request_slug(request))
        tables.append(_entry(request, part, "" if part else "asked for, and not filled; `retable reproduce` does"))
    return tables


def _entry(request: Request, part: FilledTable | None, why: str) -> Record:
    rows = part.rows if part else None
    return {
        "table": request["table"],
        "scale": request["scale"],
        "set": request["set"],
        "chosen": request.get("rows", []),
        "why": why,
        "title": part.title if part else "",
        "rows": None if rows is None else len(rows),
        "filled": None if rows is None else sum(1 for row in rows if row.replicates),
        "absent": None if rows is None else sum(1 for row in rows if row.absent),
        "replicates": None if rows is None else sum(len(row.replicates) for row in rows),
        "claims": dict(Counter(claim.status for claim in part.claims)) if part else {},
    }


def describe_table(part: FilledTable) -> Record:
    """Return a filled table in full, as plain data: columns, rows with their cells and replicates, claims."""
    headers = [column.header for column in part.columns]
    return {
        "table": part.name,
        "scale": part.scale,
        "set": part.changes,
        "chosen": part.chosen,
        "title": part.title,
        "figure": part.figure,
        "columns": [{"header": column.header, "better": column.better} for column in part.columns],
        "rows": [
            {
                "label": row.label,
                "absent": row.absent,
                "planned": row.planned,
                "cells": [_cell(header, cell) for header, cell in zip(headers, row.cells, strict=True)],
                "replicates": [_replicate(replicate) for replicate in row.replicates],
            }
            for row in part.rows
        ],
        "claims": [asdict(claim) for claim in part.claims],
    }


def _cell(header: str, cell: Cell) -> Record:
    numbers = {name: getattr(cell, name) for name in ("mean", "deviation", "published", "difference")}
    return {"column": header, "values": cell.values, **numbers}


def _replicate(replicate: FilledReplicate) -> Record:
    origin = replicate.origin
    return {
        "run": origin.run,
        "joins": [member.run for member in origin.members],
        "view": origin.view,
        "bundle": origin.bundle.get("bundle", ""),
        "axes": replicate.axes,
        "metrics": replicate.metrics,
        "diverged": replicate.diverged,
    }


def describe_run(folder: RunFolder) -> Record:
    """Return a run in full, as plain data; the first corrupt file is named in `why`, and all are left out."""
    files: Files = dict(folder.storage.files(folder.path))
    run = look_at(folder, files, Index(), 0, time.time())
    read = partial(_read, folder, files, run)
    result = read("result.json")
    log = _log(folder) if "metrics.jsonl" in files else {}
    made = read("provenance.json")
    tries = [read(path) for path in sorted(files) if re.fullmatch(r"attempts/\d+/[^/]+\.json", path)]
    views = {
        path.split("/")[1]: read(path) for path in sorted(files) if re.fullmatch(r"views/[^/]+/scores\.json", path)
    }
    return {
        **asdict(run),
        "metrics": result.get("metrics") or log,
        "result": {name: value for name, value in result.items() if name != "metrics"},
        "provenance": made,
        "code": {"differs": provenance.differing(made), "changed": _changed([made, *tries])},
        "attempts": tries,
        "notes": [
            " ".join(_text(folder, path).split())
            for path in sorted(files)
            if re.fullmatch(r"attempts/\d+/note\.txt", path)
        ],
        "tracebacks": {path: _text(folder, path) for path in sorted(files) if _TRACEBACKS.fullmatch(path)},
        "views": views,
        "files": {path: size for path, (size, _) in sorted(files.items())},
    }


def _read(folder: RunFolder, files: Files, run: Run, path: str) -> Record:
    """Return a JSON object in a run's folder; an empty one where it is absent or damaged, of which `run` then tells."""
    if path not in files:
        return {}
    kind = kind_of(f"{folder.path}/{path}")
    try:
        if kind is None:
            return folder.folder.read_record(path, {})
        data = folder.folder.read(path)
        check_content(Member(f"{folder.path}/{path}", kind, len(data), ""), data)
        return dict(json.loads(data))
    except FileNotFoundError:  # it went meanwhile
        return {}
    except (UserError, Malformed) as error:
        if kind and run.state != "corrupt":
            named = f"{folder.folder}/{path}: {error}; remove it and run again"
            run.state, run.why = "corrupt", named if isinstance(error, Malformed) else str(error)
        return {}


def _text(folder: RunFolder, path: str) -> str:
    return folder.folder.read(path).decode(errors="replace")


def last_tracebacks(description: Record) -> dict[str, str]:
    """Return the current tracebacks of a described run: of its newest attempt, and of its views."""
    newest = max((path.split("/")[1] for path in description["files"] if path.startswith("attempts/")), default="")
    return {
        path: text
        for path, text in description["tracebacks"].items()
        if path.startswith("views/") or path.split("/")[1] == newest
    }


def _log(folder: RunFolder) -> Record:
    """Return the last line of a run's log."""
    try:
        rows = folder.history()
    except UserError:
        return {}
    return rows[-1] if rows else {}


def diff_runs(first: Record, second: Record) -> dict[str, Pairs]:
    """Return the differences of two described runs, by group.

    Metrics and scores that both have are all there, equal or not.
    """
    pairs: dict[str, tuple[Record, Record]] = {
        "config": (first["config"], second["config"]),
        "data": (_data(first), _data(second)),
        "versions": (first["provenance"].get("versions") or {}, second["provenance"].get("versions") or {}),
        "code": (_code(first["provenance"]), _code(second["provenance"])),
        "made by": (_made(first), _made(second)),
    }
    different = {name: _changes(*both) for name, both in pairs.items()}
    different["metrics"] = _shared(first["metrics"], second["metrics"])
    for key in sorted(first["views"].keys() & second["views"].keys()):
        one, other = (run["views"][key] for run in (first, second))
        view = ", ".join(f"{path}={value}" for path, value in (one.get("view") or {}).items())
        different[f"scores ({view})"] = _shared(one.get("metrics") or {}, other.get("metrics") or {})
    return {name: changes for name, changes in different.items() if changes}


def _changes(first: Mapping[str, object], second: Mapping[str, object]) -> Pairs:
    pairs = {name: (first.get(name), second.get(name)) for name in [*first, *second]}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}


def _shared(first: Mapping[str, object], second: Mapping[str, object]) -> Pairs:
    return {name: (value, second[name]) for name, value in first.items() if name in second and is_number(value)}


def _data(run: Record) -> Record:
    made = run["provenance"].get("data") or {}
    return {**{f"data.{name}": value for name, value in made.items()}, "digest": run["result"].get("data")}


def _code(made: Record) -> Record:
    kept = made.get("code")
    return kept if isinstance(kept, dict) else {}


def _changed(made: Sequence[Record]) -> list[str]:
    """Return the parts of the code that were not the same in all of a run's attempts."""
    first, *others = [code for code in map(_code, made) if code] or [{}]
    return sorted({name for code in others for name in _changes(first, code)})


def _made(run: Record) -> Record:
    made = run["provenance"]
    return {name: made.get(name) for name in ("commit", "dirty", "device", "host", "system", "scale", "stack")}
