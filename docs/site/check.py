"""Look at every page of the built site, on a phone and in the dark: `python -m docs.site.check build/site`.

Reports pages that scroll sideways, requests to other hosts, pictures and links that lead nowhere, and, with axe-core,
serious faults of accessibility. It needs Playwright and a Chromium (`--chromium`).
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from playwright.sync_api import Browser, sync_playwright

LINKS = "[...document.querySelectorAll('a[href], img[src]')].map(e => e.href || e.src)"
WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"
AXE = """async () => (await axe.run()).violations.filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => `${v.id} (${v.nodes.length}): ${v.nodes[0].html.slice(0, 200)} ${v.nodes[0].failureSummary}`)"""
VIEWS = {"phone": (390, 844, "light"), "dark": (1280, 900, "dark")}


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def faults(browser: Browser, site: Path, base: str, axe: str) -> Iterator[str]:
    """Yield a line for each fault of each page."""
    links: set[str] = set()
    asked: set[str] = set()
    for name, (width, height, scheme) in VIEWS.items():
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.on("request", lambda request: asked.add(request.url))
        for file in sorted(site.rglob("*.html")):
            where = f"{file.relative_to(site)}, {name}"
            page.goto(f"{base}/{file.relative_to(site)}", wait_until="networkidle")
            if page.evaluate(WIDE):
                yield f"{where}: scrolls sideways"
            links.update(page.evaluate(LINKS))
            if axe:
                page.evaluate(axe)
                yield from (f"{where}: {' '.join(line.split())}" for line in page.evaluate(AXE))
        context.close()
    yield from (f"asks for {url}" for url in sorted(asked) if not url.startswith((base, "data:")))
    for link in sorted(links):
        path = site / unquote(link.removeprefix(base).lstrip("/").partition("#")[0])
        if link.startswith(base) and not (path / "index.html" if path.is_dir() else path).exists():
            yield f"nothing at {link.removeprefix(base)}"


def main() -> None:
    """Print the faults of a site; exit with status 1 where there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("--axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(options.site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        axe = options.axe.read_text() if options.axe else ""
        found = list(faults(browser, options.site, f"http://127.0.0.1:{server.server_port}", axe))
    print("\n".join(found) or "no faults")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
