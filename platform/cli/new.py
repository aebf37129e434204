"""`retable new`: the files of a fifth task, which runs as it is and is made one's own file by file."""

from __future__ import annotations

import json
import keyword
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2

from retable.platform.cli.published import Line, Published, read_published
from retable.platform.commit import code_root
from retable.platform.config import override
from retable.platform.errors import UserError, disk_errors
from retable.platform.spec import task

TEMPLATES = code_root() / "platform" / "cli" / "templates"
RESERVED = ("data", "search_spaces", "ingress", "jobs", "limits", "models", "tables")
"""Names of packages, and of what a server has besides tasks."""
FOLDER = "papers"
"""Folder of new tasks if RETABLE_TASKS names none."""
PARTS = (
    *("__init__", "task", "config", "data", "model", "losses", "learner", "metrics", "predict"),
    *("tables", "claims", "scales", "export", "best", "answer"),
)
"""Files of a task, as the four papers' have them."""
MEASURED = {"accuracy": "accuracy", "acc": "accuracy", "loss": "loss"}
"""First word of a header -> what the written learner measures under it."""
EXAMPLE = Published(
    ("Accuracy (%)",),
    {"Accuracy (%)": 1},
    (
        Line("linear", {"Accuracy (%)": 61.5}, {"model": "linear"}),
        Line("perceptron of 4", {"Accuracy (%)": 88.0}, {"model": "perceptron", "model.width": 4}),
        Line("perceptron of 64", {"Accuracy (%)": 97.5}, {"model": "perceptron", "model.width": 64}),
    ),
)


@dataclass
class Written:
    """The files that were written, and what is left to do by hand."""

    folder: Path
    """Of the task's code; its test lies beside it."""
    files: list[Path] = field(default_factory=list)
    is_found: bool = True
    """Whether RETABLE_TASKS names the folder already."""
    unwritten: dict[str, str] = field(default_factory=dict)
    """Label of a row that is not run -> what is to be done."""
    unmeasured: list[str] = field(default_factory=list)
    """Headers of columns whose metric nothing measures yet."""
    default: list[str] = field(default_factory=list)
    """Labels of rows that are run with the defaults: nothing says that they change anything."""
    joined: tuple[str, ...] = ()
    """Headers of columns that hold no numbers and became part of the labels."""


def write_task(name: str, table: Path | None = None) -> Written:
    """Write a task's folder and its test; existing files are never overwritten.

    Args:
        name: of the task: a Python name in lower case.
        table: the paper's table as CSV; none: an example's.

    Raises:
        UserError: where the name cannot be used or is taken, or the table cannot be read.
    """
    check_name(name)
    published = read_published(table) if table else EXAMPLE
    named = next(filter(None, os.environ.get("RETABLE_TASKS", "").split(os.pathsep)), "")
    root = Path(named or FOLDER)
    written = Written(root / name, is_found=bool(named))
    test = root / f"test_{name}.py"
    for path in (written.folder, test):
        if path.exists():
            raise UserError(f"{path} is there already; choose another name, or remove it first")
    words = words_of(name, table, published, written) | {"file": test}
    texts = {written.folder / f"{part}.py": render(f"{part}.py.j2", words) for part in PARTS}
    texts[test] = render("test.py.j2", words)
    if not (root / "conftest.py").exists():
        texts[root / "conftest.py"] = render("conftest.py.j2", words)
    with disk_errors(str(root)):
        written.folder.mkdir(parents=True)
        try:
            for path, text in texts.items():
                path.write_text(text, encoding="utf-8")
                written.files.append(path)
        except BaseException:  # half a task would be in the way of the next call
            for path in texts:
                path.unlink(missing_ok=True)
            written.folder.rmdir()
            raise
    return written


def check_name(name: str) -> None:
    """Raise a UserError where a task cannot be called so."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or keyword.iskeyword(name):
        raise UserError(f"{name!r} cannot name a task; use lower case letters, digits and '_', such as my_paper")
    if name in task.names() or name in RESERVED:
        raise UserError(f"{name!r} is taken; choose another name")
    if name in sys.stdlib_module_names or name in metadata.packages_distributions():
        raise UserError(f"{name!r} is a Python package, which its test would hide; choose another name")


def render(template: str, words: dict[str, object]) -> str:
    """Return a template's text."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    made = jinja2.Environment(
        loader=loader,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return made.get_template(template).render(words)


def words_of(name: str, table: Path | None, published: Published, written: Written) -> dict[str, object]:
    """Return the values of the templates, and record what is left to write."""
    config = _written_config(name)
    rows = [_row_of(line, config, first=number == 0) for number, line in enumerate(published.lines)]
    for number, row in enumerate(rows):
        row["constant"] = constant(row["text"], number, [other["constant"] for other in rows[:number]])
    columns: list[dict[str, object]] = []
    for header in published.headers:
        columns.append(_column_of(header, published, [column["metric"] for column in columns]))
    written.default = [row["text"] for row in rows if not row["absent"] and row["overrides"] == "{}"]
    written.joined = published.joined
    written.unwritten = {row["text"]: row["absent"] for row in rows if row["absent"]}
    written.unmeasured = [header for header, c in zip(published.headers, columns, strict=True) if not c["measured"]]
    if not any(column["measured"] for column in columns):
        columns.append({"header": quoted("Accuracy (example)"), "metric": "accuracy", "format": ".3f", "factor": 1})
    title = "Published values, and what was measured" if table else "An example: its published values are invented"
    return {
        "name": name,
        "about": f"a task of your own, {name}",
        "rows": rows,
        "columns": columns,
        "claim": _claim_of(published, rows, columns),
        "unwritten": bool(written.unwritten),
        "title": quoted(title),
    }


def _written_config(name: str) -> Any:
    """Return the default config of the `config.py` that is written."""
    module = sys.modules[f"{__name__}.{name}"] = ModuleType(f"{__name__}.{name}")  # where its type hints are looked up
    exec(render("config.py.j2", {"name": name}), module.__dict__)
    return module.Config()


def _row_of(line: Line, config: Any, first: bool) -> dict[str, Any]:
    """Return a row's words. Where nothing says what rows change, the first is taken for the defaults."""
    overrides = line.overrides or {}
    absent = "say in tables.py what it changes" if line.overrides is None and not first else ""
    try:
        override(config, overrides)
    except UserError as error:
        absent = f"{error}; write such a field in config.py, or correct the table"
    return {
        "text": line.label,
        "label": quoted(line.label),
        "overrides": literal(overrides),
        "published": literal(line.published),
        "absent": absent,
    }


def _column_of(header: str, published: Published, taken: Sequence[object]) -> dict[str, object]:
    """Return a column's words: its metric is called after its header, and printed as the paper does.

    A metric is one column's: of those in `taken`, a later column is not measured yet.
    """
    metric = re.sub(r"[^a-z0-9]+", "_", header.lower()).strip("_") or "score"
    measured = MEASURED.get(metric.split("_")[0], "")
    measured = "" if measured in taken else measured
    while metric in taken:
        metric += "_2"
    most = max(abs(line.published.get(header, 0.0)) for line in published.lines)
    percent = measured == "accuracy" and most > 1
    return {
        "header": quoted(header),
        "metric": measured or metric,
        "measured": bool(measured),
        "format": f".{published.places[header]}f",
        "factor": 100 if percent else 1,
    }


def _claim_of(
    published: Published, rows: Sequence[dict[str, object]], columns: Sequence[dict[str, object]]
) -> dict[str, object] | None:
    """Return the words of what the first column says: its highest row is above its lowest. None of a single row."""
    header = published.headers[0]
    words = [
        (line.published[header], row)
        for line, row in zip(published.lines, rows, strict=True)
        if header in line.published
    ]
    if not words:
        return None
    (low, lower), (high, upper) = min(words, key=lambda pair: pair[0]), max(words, key=lambda pair: pair[0])
    if low == high:
        return None
    return {
        "upper": upper["constant"],
        "lower": lower["constant"],
        "upper_label": upper["label"],
        "lower_label": lower["label"],
        "metric": columns[0]["metric"],
        "text": quoted(f"{header}: {upper['text']} is above {lower['text']}."),
    }


def constant(label: str, number: int, taken: Sequence[str]) -> str:
    """Return a name for a row's constant: of its label's letters and digits."""
    words = re.sub(r"[^A-Z0-9]+", "_", label.upper()).strip("_")[:40].strip("_")
    name = words if words and not words[0].isdigit() else f"ROW_{words or number + 1}"
    while name in (*taken, "TABLE", "TABLES", "UNWRITTEN"):
        name += f"_ROW_{number + 1}"
    return name


def literal(values: Mapping[str, object]) -> str:
    """Write a dictionary as Python does, with the quotes that this project uses."""
    return "{" + ", ".join(f"{quoted(key)}: {quoted(value)}" for key, value in values.items()) + "}"


def quoted(value: object) -> str:
    """Write a value as Python reads it: texts in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
