"""The page: a few files, known by name beforehand."""

# No `from __future__ import annotations` here; `serve/ingress/app.py` says why.

from fastapi import FastAPI, Response
from starlette.exceptions import HTTPException

from retable.platform.commit import code_root

PAGE = code_root() / "serve" / "page"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}


def add(app: FastAPI) -> None:
    """Add the page: a few files, known by name beforehand."""
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in MEDIA} if PAGE.is_dir() else {}

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return Response(files[name].read_bytes(), 200, {"Cache-Control": "no-cache"}, MEDIA[files[name].suffix])
