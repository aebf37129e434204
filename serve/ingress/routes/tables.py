"""The result tables of a storage over HTTP: measured beside published, claims, and the model that serves a cell.

They are read as they were filled, without the tasks' code; nothing is told of where they lie, nor of machines.
"""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import asyncio
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import FastAPI, Query, Response

from retable.platform.errors import Unreachable, UserError, nearest
from retable.platform.report import render
from retable.platform.report.papers import in_order
from retable.platform.report.results import FilledReplicate, FilledTable, slug_of
from retable.platform.store.patience import at_most
from retable.platform.store.storage import Storage
from retable.serve.ingress.middleware import respond
from retable.serve.ingress.openapi import files
from retable.serve.ingress.replies import Json, Problem, Reply
from retable.serve.launch.models import Model, fills

FOLDER = "report"
_TABLE = re.compile(r"[^/]+\.json")
"""Names of files that may hold a table; none below the folder does."""
_PLACE = re.compile(r"\.{0,2}/|~|\w+://")
"""Start of a value that is a path or a URI."""
_BEFORE, _AFTER = r"(?:(?<![\w.-])|(?<=\\[bfnrt]))", r"(?![\w-])"
"""Bounds of a path in JSON: no part of a longer path; letters may precede it in escapes of control characters."""
_WORDS = ("measured", "published", "difference")
"""Parts of a cell that are given as text."""
LARGEST = 64 << 20
"""Bytes of a kept table; a larger one is none of ours."""
At = Annotated[str, Query(max_length=60, description="The scale, as `at` says in the list; none: the largest.")]


def add(app: FastAPI, models: Sequence[Model], storage: Storage | None) -> None:
    """Add `GET /v1/tables`, `GET /v1/tables/{task}/{name}` and its `/picture`; `storage`: where runs lie, or none."""
    tables = Tables(storage, models)

    async def read(work: Callable[[Tables], Reply | Problem]) -> Response:
        """Do what reads the storage in a thread; a storage that does not answer is not waited for here."""
        try:
            with at_most(0):
                return respond(await asyncio.to_thread(work, tables))
        except Unreachable as error:
            logging.getLogger("ray.serve").warning("tables: %s", error)
            raise Problem(503, "the storage of the tables does not answer; try again in a moment", wait=5) from error

    @app.get("/v1/tables")
    async def list_tables() -> Response:
        """List the tables that were filled on the server's storage, in the papers' order, with counts of verdicts."""
        return await read(lambda tables: tables.listed())

    @app.get("/v1/tables/{task}/{name}")
    async def show_table(task: str, name: str, at: At = "") -> Response:
        """Return a table: measured beside published, its claims, and which served model each cell's runs are."""
        return await read(lambda tables: tables.shown(f"{task}/{name}", at))

    @app.get("/v1/tables/{task}/{name}/picture", **files("image/png"))
    async def show_picture(task: str, name: str, at: At = "") -> Response:
        """Return a figure's picture, PNG."""
        return await read(lambda tables: tables.picture(f"{task}/{name}", at))


@dataclass(frozen=True)
class Tables:
    """The filled tables that a storage keeps; of none, where no storage is named."""

    storage: Storage | None
    models: Sequence[Model]
    known: dict[str, tuple[tuple[int, int], FilledTable | None]] = field(default_factory=dict)
    """File -> its size and time, and what was read then."""

    def listed(self) -> Reply:
        """Return what tables there are, in the papers' order, with the counts of their claims' verdicts."""
        return self.reply(
            [
                self.heading(part) | {"filled": part.filled, "claims": render.counts(part.claims)}
                for part in in_order(self.parts())
            ]
        )

    def shown(self, name: str, at: str) -> Reply | Problem:
        """Return a table with its claims; `at`: the scale, with `listed`'s word for changes; empty: the largest."""
        parts = in_order(self.parts())
        named = [part for part in parts if part.name == name]
        matches = [part for part in named if at in ("", _kept_at(part))]
        if not named:
            return Problem(404, f"no table {name!r} was filled here{nearest(name, {part.name for part in parts})}")
        if not matches:
            return Problem(404, f"{name} was not filled at {at!r}{nearest(at, {_kept_at(part) for part in named})}")
        return self.reply(self.whole(matches[0]))

    def picture(self, name: str, at: str) -> Reply | Problem:
        """Return the picture of a figure, PNG."""
        for part in in_order(self.parts()):
            if self.storage and part.name == name and at in ("", _kept_at(part)) and self.drawn(part):
                return Reply(self.storage.read(f"{FOLDER}/{slug_of(part)}.png"), "image/png")
        return Problem(404, f"no picture of {name!r} was drawn here; GET /v1/tables lists what there is")

    def parts(self) -> list[FilledTable]:
        """Return every kept table, read again where its file has changed; what is no such file is left out."""
        if self.storage is None:
            return []
        kept = sorted((name, stamp) for name, stamp in self.storage.files(FOLDER) if _TABLE.fullmatch(name))
        for name, stamp in kept:
            if name not in self.known or self.known[name][0] != stamp:
                size, _ = stamp
                self.known[name] = stamp, read_table(self.storage, f"{FOLDER}/{name}") if size <= LARGEST else None
        return [part for name, _ in kept if (part := self.known[name][1])]

    def heading(self, part: FilledTable) -> Json:
        """Return what a table is."""
        return {
            "name": part.name,
            "at": _kept_at(part),
            "scale": part.scale,
            "title": part.title,
            "figure": part.figure,
            "picture": self.drawn(part),
        }

    def whole(self, part: FilledTable) -> Json:
        """Return all that is shown of a table."""
        hidden = {path: "…" if is_place(value) else value for path, value in part.changes.items()}
        return self.heading(part) | {
            "about": render.about(replace(part, changes=hidden)),
            "caution": part.caution,
            "apart": part.apart,
            "note": part.note,
            "remarks": render.remarks(part),
            "published": part.has_published,
            "differences": part.has_differences,
            "columns": [column.header for column in part.columns],
            "rows": list(self.rows(part)),
            "claims": [
                {"text": claim.text, "ours": claim.ours, "status": claim.status, "because": claim.because}
                for claim in render.in_order(part.claims)
            ],
        }

    def rows(self, part: FilledTable) -> Iterator[Json]:
        """Return each row: label, and its cells in words, each with the models that serve its runs."""
        for row in part.rows:
            cells = []
            for index, (column, cell) in enumerate(zip(part.columns, row.cells, strict=False)):
                behind = [
                    replicate
                    for replicate, value in zip(row.replicates, cell.values, strict=False)
                    if value is not None
                ]
                cells.append(
                    {what: render.text_of(row, index, what, column.format) for what in _WORDS}
                    | {
                        "mean": cell.mean if cell.mean is not None and math.isfinite(cell.mean) else None,
                        "count": len(cell.measured),
                        "models": self.serving(behind),
                    }
                )
            yield {
                "label": row.label,
                "epochs": row.epochs,
                "absent": row.absent,
                "cells": cells,
                "models": self.serving(row.replicates),
            }

    def serving(self, replicates: Sequence[FilledReplicate]) -> list[str]:
        """Return the digests of the served models that are the runs behind replicates, at the same epoch."""
        origins = [part for replicate in replicates for part in replicate.origin.parts() if not part.members]
        return [model.sha256 for model in self.models if any(fills(model, origin) for origin in origins)]

    def drawn(self, part: FilledTable) -> bool:
        """Return whether a figure's picture is kept."""
        return bool(part.figure and self.storage and self.storage.exists(f"{FOLDER}/{slug_of(part)}.png"))

    def reply(self, content: object) -> Reply:
        """Return plain values as JSON, in which the storage is not named."""
        text = json.dumps(content, ensure_ascii=False, default=str)
        if self.storage:
            folder = re.escape(json.dumps(str(self.storage), ensure_ascii=False)[1:-1])
            text = re.sub(_BEFORE + folder + _AFTER, "STORAGE", text)
        return Reply(text.encode(), "application/json")


def is_place(value: object) -> bool:
    """Return whether a value, or an item of a list, says where something lies."""
    return any(map(is_place, value)) if isinstance(value, (list, tuple)) else bool(_PLACE.match(str(value)))


def read_table(storage: Storage, path: str) -> FilledTable | None:
    """Return a kept table; nothing where the file is none, or half of one.

    Raises:
        Unreachable: where the storage does not answer.
    """
    try:
        return FilledTable.of_json(json.loads(storage.read(path))["table"])
    except Unreachable:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OSError, UserError):
        return None


def _kept_at(part: FilledTable) -> str:
    """Return what distinguishes tables of one name: the scale, and a digest of the changes."""
    return slug_of(part).removeprefix(part.name.replace("/", "-")).removeprefix("-")
