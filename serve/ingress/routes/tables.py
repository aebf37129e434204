"""Result tables over HTTP."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import FastAPI, Query, Response

from retable.platform.errors import Unreachable
from retable.platform.store.patience import at_most
from retable.platform.store.storage import Storage
from retable.serve.ingress.middleware import respond
from retable.serve.ingress.openapi import files
from retable.serve.ingress.replies import Problem, Reply
from retable.serve.ingress.results import Tables
from retable.serve.launch.models import Model

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
            raise Problem(503, "the storage of the tables does not answer; try again in a moment").wait(5) from error

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
