"""Catalogue of tasks, tables, scales, commands and search spaces, for `list`, help and completion.

To tell, the tasks' code is imported, which takes seconds; what it said is kept in the user's cache until a file of the
code changes.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict, cast

from retable.platform.commit import code_root
from retable.platform.spec import task as tasks
from retable.platform.spec.extras import Missing, missing
from retable.platform.spec.space import find_space, spaces
from retable.platform.store.storage import Record

CACHE = "XDG_CACHE_HOME"
"""Name of the variable that says where a user's caches lie; else `~/.cache`."""


class Catalogue(TypedDict):
    """Tasks and search spaces as plain data."""

    tasks: dict[str, Record]
    """Name -> `about`, `tables`, `scales`, `help`, `commands`, `data`.

    A task whose packages are not installed has only `missing`, the line that says what to install.
    """
    spaces: dict[str, str]
    """Name -> what is searched."""


def catalogue() -> Catalogue:
    """Return what there is: from the user's cache, if no code has changed since."""
    folder = os.environ.get(CACHE) or os.path.expanduser("~/.cache")
    path = Path(folder, "retable", f"{stamp()}.json")
    with suppress(OSError, ValueError):
        kept = json.loads(path.read_text())
        if isinstance(kept, dict) and kept.keys() == {"tasks", "spaces"}:
            return cast(Catalogue, kept)
    if sys.stderr.isatty():
        print("reading the tasks (until their code changes, only now)", file=sys.stderr)
    found = read()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob("*.json"):
            old.unlink()
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_text(json.dumps(found))
        whole.replace(path)
    return found


def read() -> Catalogue:
    """Import every task and search space, and return their descriptions."""
    found = {name: _task_entry(name) for name in tasks.names()}
    whole = [name for name in spaces() if "missing" not in found.get(name.partition("_")[0], {})]
    return {"tasks": found, "spaces": {name: find_space(name).about for name in whole}}


def _task_entry(name: str) -> Record:
    """Return the description of one task."""
    try:
        task = tasks.find(name)
    except Missing as error:
        return {"missing": str(error)}
    found: Record = {
        "about": task.about,
        "tables": {table: content.title for table, content in task.tables().items()},
        "scales": {scale: str(content) for scale, content in task.scales().items()},
        "help": "",
        "commands": {},
        "data": {},
    }
    if tasks.has_commands(name):
        module = importlib.import_module(f"retable.tasks.{name}.cli")
        found |= {
            "help": module.app.info.help or f"Commands of the task {name}.",
            "commands": dict(commands(module.app)),
            "data": {verb: summary(command) for verb, command in module.DATA.items()},
        }
    return found


def commands(app: Any) -> Iterator[tuple[str, str]]:
    """Yield the commands of a Typer application, each with its help."""
    for each in app.registered_commands:
        name = each.name or each.callback.__name__.strip("_").replace("_", "-")
        yield name, each.help or summary(each.callback)
    for each in app.registered_groups:
        yield each.name or each.typer_instance.info.name, each.help or each.typer_instance.info.help or ""


def summary(command: object) -> str:
    """Return the first paragraph of a command's text."""
    return " ".join((command.__doc__ or "").split("\n\n")[0].split())


def stamp() -> str:
    """Return a digest of the names, sizes and times of the code that the catalogue is made from."""
    import retable.search_spaces
    import retable.tasks

    lacking = {name: missing(name) for name in tasks.names()}
    places = [code_root() / "platform", *map(Path, [*retable.tasks.__path__, *retable.search_spaces.__path__])]
    files = [file for place in places for file in sorted(place.rglob("*.py"))]
    stamps = [[str(file), (about := file.stat()).st_size, about.st_mtime_ns] for file in files]
    return hashlib.sha256(json.dumps([sys.prefix, lacking, stamps]).encode()).hexdigest()[:16]
