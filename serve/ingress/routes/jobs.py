"""Endpoints of jobs, for work that takes longer than a request."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.
from fastapi import FastAPI, Request, Response

from retable.serve.ingress.middleware import respond
from retable.serve.ingress.routes.common import Ask


def add(app: FastAPI, ask: Ask) -> None:
    """Add `GET` and `DELETE /v1/jobs/{id}`, and `GET /v1/jobs/{id}/file`."""

    @app.get("/v1/jobs/{id}")
    async def job(id: str) -> Response:
        """Say how far a job is: queued, running, done, failed (`detail` says why) or cancelled."""
        return respond(await ask("jobs", "status", id))

    @app.get("/v1/jobs/{id}/file")
    async def file(request: Request, id: str) -> Response:
        """Return what a job has made, or a range of its bytes."""
        return respond(await ask("jobs", "file", id, request.headers.get("range", "")))

    @app.delete("/v1/jobs/{id}", status_code=204)
    async def cancel(id: str) -> Response:
        """Cancel a job; remove one that is over, with its file."""
        return respond(await ask("jobs", "cancel", id))
