"""Reports: every table measured beside published, figures, claims with verdicts, and the run behind each cell.

One static page, `report/index.html`, for all that a storage path holds; the same as Markdown, CSV and LaTeX. A section
whose inputs have not changed is shown as it was filled, without the task's code.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

from retable.platform.commit import code_root
from retable.platform.console import errors
from retable.platform.errors import UserError, one_line
from retable.platform.plan.plan import Plan, compile_plan
from retable.platform.report.findings import as_text, findings
from retable.platform.report.html import render
from retable.platform.report.papers import in_order, papers_of
from retable.platform.report.render import latex, markdown
from retable.platform.report.results import FilledTable, fill, gather, slug, slug_of
from retable.platform.spec.table import AnyTable, Figure, Results
from retable.platform.spec.task import Task, find_table, folder, table_at
from retable.platform.store.cache import Snapshot
from retable.platform.store.provenance import processor_name
from retable.platform.store.run import sha256
from retable.platform.store.storage import Storage

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


class Request(TypedDict):
    """Which table was asked for, as `tables/<name>.json` keeps it."""

    table: str
    scale: str
    set: dict[str, object]
    rows: NotRequired[list[str]]


def fill_and_keep(plan: Plan, into: Storage | None = None) -> dict[str, FilledTable]:
    """Fill a plan's tables, record that they were asked for, and keep them for the report; return them by name.

    Those that are kept in the report's folder (`into`, else `report`), complete and unchanged are not filled again.
    """
    filled, into = {}, into or plan.storage / "report"
    keep_requests(plan)
    for name, of in plan.tables.items():
        request = request_of(name, plan.scale, plan.changes, plan.rows)
        with plan.storage.snapshot() as snapshot:
            part, current = _kept_section(request, into, snapshot) or (None, False)
            filled[name] = part if part and current else keep_section(request, of, plan.storage, into, snapshot)
    return filled


def keep_requests(plan: Plan) -> None:
    """Record that a plan's tables were asked for: `gc` keeps their runs, also before they are filled."""
    for name in plan.tables:
        request = request_of(name, plan.scale, plan.changes, plan.rows)
        plan.storage.write_json(f"tables/{request_slug(request)}.json", request)


def request_of(table: str, scale: str, changes: Mapping[str, object], rows: Sequence[str] = ()) -> Request:
    """Return the stored form of a requested table."""
    request = Request(table=table, scale=scale, set=dict(changes))
    return Request(**request, rows=[*rows]) if rows else request


def request_slug(request: Request) -> str:
    """Return the name under which a request and its section are kept."""
    return slug(request["table"], request["scale"], request["set"], request.get("rows", ()))


def keep_section(
    request: Request, of: tuple[Task, AnyTable], storage: Storage, into: Storage, snapshot: Snapshot
) -> FilledTable:
    """Fill a requested table and write its files, with the inputs it was made of in its JSON.

    It is planned anew: the inputs are what planning and filling read, of this table alone and after it was run.
    """
    name, table = request["table"], of[1]
    with snapshot.record_reads() as inputs:
        plan = compile_plan({name: of}, storage, request["scale"], request["set"], request.get("rows", ()))
        results = gather(plan, name)
        part = fill(plan, name, results)
        files = {"csv": part.frame().to_csv(index=False).encode()} if part.filled else {}
        if isinstance(table, Figure):
            files |= _pictures(name, table, results) if any(results.replicates.values()) else {}
            part = replace(part, drawn="png" in files)
        else:
            files["tex"] = latex(part).encode()
    complete = plan.nothing_to_do and not (plan.corrupt or plan.timings)  # measurements: another device needs its own
    kept = {"code": code_digest(task_of(name)), "inputs": inputs, "complete": complete, "table": part.as_json()}
    for kind, data in {**files, "json": json.dumps(kept, default=str).encode()}.items():
        into.write(f"{slug_of(part)}.{kind}", data)
    return part


def _kept_section(request: Request, into: Storage, snapshot: Snapshot) -> tuple[FilledTable, bool] | None:
    """Return a table as it was kept, and whether it was complete, if neither its inputs nor the code have changed.

    Nothing is returned where one of its files was removed.
    """
    path = f"{request_slug(request)}.json"
    if not into.exists(path):
        return None
    try:
        kept = json.loads(into.read(path))
        same = kept["code"] == code_digest(task_of(request["table"]))
        same = same and all(
            snapshot.stamp(where) == stamp and None not in (stamp or ())  # without a time, a file may be another one
            for where, stamp in kept["inputs"].items()
        )
        part = FilledTable.of_json(kept["table"])
        same = same and {f"{slug_of(part)}.{kind}" for kind in _kinds(part)} <= {*into.list()}
        return (part, kept["complete"]) if same else None
    except (ValueError, KeyError, TypeError, AttributeError):  # half a file, or one of before: fill it again
        return None


def _kinds(part: FilledTable) -> list[str]:
    """Return the suffixes of the files that are kept of a table or figure, beside its JSON."""
    pictures = ["png", "svg", "dark.png"] if part.drawn else []
    return [*(pictures if part.figure else ["tex"]), *(["csv"] if part.filled else [])]


def complete(
    tables: Sequence[str], scale: str, changes: Mapping[str, object], rows: Sequence[str], storage: Storage
) -> dict[str, FilledTable]:
    """Return tables as they were filled, if all are complete and unchanged, else nothing; no task is imported."""
    filled = {}
    with storage.snapshot() as snapshot:
        for name in tables:
            kept = _kept_section(request_of(name, scale, changes, rows), storage / "report", snapshot)
            if kept is None or not kept[1]:
                return {}
            filled[name] = kept[0]
    return filled


def sections(storage: Storage, into: Storage, without: Collection[str] = ()) -> list[FilledTable]:
    """Return every table requested on a storage, filled; tables that cannot be filled are named and left out.

    Args:
        storage: where the requests are.
        into: the folder of the tables' files, which are written anew.
        without: names of files of requests that are left out.
    """
    parts = []
    with storage.snapshot() as snapshot:
        for file in [name for name in storage.list("tables") if name not in without]:
            try:
                request = read_request(storage, f"tables/{file}")
                kept = _kept_section(request, into, snapshot)
                parts.append(kept[0] if kept else keep_section(request, table_of(request), storage, into, snapshot))
            except Exception as error:  # one bad request, or one claim that cannot be judged, must not hide the others
                errors.print(f"left out of the report: tables/{file}: {one_line(error)}", markup=False)
    return parts


def shipped_sections(storage: Storage, into: Storage) -> list[FilledTable]:
    """Return the tables that `measured.take_in` filled, but those that the user requested at the same scale."""
    own = storage.list("tables")
    storages = [storage / f"measured/{name}" for name in storage.list("measured")]
    return [part for shipped in storages for part in sections(shipped, into, without=own) if part.filled]


def kept_tables(storage: Storage) -> list[FilledTable]:
    """Return the tables that `retable reproduce` filled on a storage, as they were filled, in the report's order.

    No task is imported.
    """
    tables = []
    for file in storage.list("tables"):
        try:
            request = read_request(storage, f"tables/{file}")
            kept = json.loads(storage.read(f"report/{request_slug(request)}.json"))
            tables.append(FilledTable.of_json(kept["table"]))
        except (UserError, FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):  # old, or half a file
            continue
    return in_order(tables)


def read_request(storage: Storage, path: str) -> Request:
    """Read which table was asked for.

    Raises:
        UserError: if the file is no such request.
    """
    request = storage.read_record(path, {"table": str, "scale": str, "set": dict})
    if not isinstance(rows := request.get("rows", []), list) or not all(isinstance(label, str) for label in rows):
        raise UserError(f"{storage}/{path}: the entry 'rows' is no list of labels; remove it and run again")
    return cast(Request, request)


def table_of(request: Request) -> tuple[Task, AnyTable]:
    """Return the task and the table that a request names, at its scale and with its changes and rows."""
    task, table = find_table(request["table"])
    return task, table_at(task, table, request["scale"], request["set"], request.get("rows", ()))


def task_of(name: str) -> str:
    """Return the task's name in a table's full name."""
    return name.partition("/")[0]


@functools.cache
def code_digest(task: str) -> str:
    """Return a digest of the code that fills a task's tables, and of the processor, for which measurements count.

    Raises:
        UserError: if there is no such task.
    """
    files = [file for root in (code_root() / "platform", folder(task)) for file in sorted(root.rglob("*.py"))]
    parts = [f"{file.name} {sha256(file.read_bytes())}" for file in files]
    return sha256("\n".join([processor_name(), *parts]).encode())[:16]


STYLE: Any = {
    "svg.hashsalt": "retable",
    "figure.dpi": 130,
    "savefig.bbox": "tight",
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Matplotlib settings that all figures share."""
_DARK: Any = STYLE | {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"), "#161c27"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#c9d1de"),
    "grid.color": "#8590a4",
}
"""The same for a page in the dark."""


@contextmanager
def _without_display() -> Iterator[None]:
    """Draw without a display inside the block; restore a notebook's own backend afterwards."""
    import matplotlib

    chosen = matplotlib.get_backend(auto_select=False)
    matplotlib.use("Agg")
    try:
        yield
    finally:
        if chosen:
            matplotlib.use(chosen)


@_without_display()
def pictures(draw: Callable[[], Drawing]) -> dict[str, bytes]:
    """Return a figure's files: `png` and `svg`, and `dark.png` for a page in dark colours.

    There are none where it shows neither data nor text.
    """
    from matplotlib import pyplot

    files = {}
    for style, kinds in ((STYLE, ("png", "svg")), (_DARK, ("dark.png",))):
        with pyplot.rc_context(style):
            drawn = draw()
            if not (drawn.texts or any(axis.has_data() for axis in drawn.axes)):
                pyplot.close(drawn)
                return {}
            for kind in kinds:
                buffer = io.BytesIO()
                form = kind.rpartition(".")[2]
                drawn.savefig(buffer, format=form, metadata={"Date": None} if form == "svg" else None)
                files[kind] = buffer.getvalue()
            pyplot.close(drawn)
    return files


def _pictures(name: str, figure: Figure, results: Results) -> dict[str, bytes]:
    """Return a figure's files; where its drawing fails, they say why, and so does the terminal."""
    try:
        return pictures(lambda: figure.draw(results))
    except UserError:
        raise
    except Exception as error:
        why = f"{name}: its drawing fails: {one_line(error)}"
        errors.print(why, markup=False)

    def reason() -> Drawing:
        from matplotlib import pyplot

        drawing = pyplot.figure(figsize=(8, 0.6))
        drawing.text(0.01, 0.4, why)
        return drawing

    return pictures(reason)


def write_report(
    storage: Storage, into: Storage | None = None, single: bool = False, parts: Sequence[FilledTable] | None = None
) -> Storage:
    """Write the whole report of a storage path; return its folder.

    Args:
        storage: where runs and requests lie.
        into: where the report goes; by default `report/` below the storage.
        single: whether the page holds all of its pictures and details, as one file to send.
        parts: the tables that it shows; by default all that were asked for on the storage, and results that come with
            the tasks.
    """
    into = into or storage / "report"
    if parts is None:
        parts = [*sections(storage, into), *shipped_sections(storage, into)]
    parts = in_order(parts)
    papers = [paper.name for paper in papers_of(parts) if "small" in paper.scales and findings(paper.name)]
    paragraphs = [f"**{name}**, found at small: {as_text(findings(name))}\n" for name in papers]
    into.write("report.md", "# retable report\n\n" + "\n".join([*paragraphs, *map(markdown, parts)]))
    page, details = render(parts, str(storage), into, single)
    into.write("index.html", page)
    if not single:
        into.write("details.js", details)
    return into
