"""Hooks of MkDocs: the notebook as a page, and links that leave the documents' folder."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

LOG = logging.getLogger("mkdocs.hooks.pages")
DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


@event_priority(100)  # before mkdocstrings looks for the folder
def on_config(config: Any) -> Any:
    """Mirror the platform as a regular package: mkdocstrings reads no namespace package inside another package."""
    package = ROOT / "build" / "api" / "retable" / "platform"
    shutil.rmtree(package.parent, ignore_errors=True)
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    for path in (ROOT / "platform").iterdir():
        (package / path.name).symlink_to(path)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the notebook as a page."""
    files.append(File.generated(config, "tour.md", content=notebook(DOCS / "tour.ipynb")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links that leave `docs/` at the repository, or show their text alone where the site has none."""
    folder = DOCS / Path(page.file.src_uri).parent

    def mended(link: re.Match[str]) -> str:
        picture, text, target, anchor = link.groups()
        path = (folder / target).resolve()
        if path == DOCS / "tour.ipynb":
            return link[0].replace("tour.ipynb", "tour.md")
        if "://" in target or target.startswith("mailto:") or path.is_relative_to(DOCS):
            return link[0]
        if not path.exists():
            LOG.warning("%s: link to %s, which does not exist", page.file.src_uri, target)
        if picture:
            return text
        kind = "tree" if path.is_dir() else "blob"
        address = f"{config.repo_url.rstrip('/')}/{kind}/main/{path.relative_to(ROOT)}{anchor or ''}"
        return f"[{text}]({address})" if config.repo_url else text

    return LINK.sub(mended, markdown)


def notebook(path: Path) -> str:
    """Return a notebook as Markdown: its text, its code, and below each cell what it showed."""
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join(part for cell in cells for part in shown(cell)) + "\n"


def shown(cell: dict[str, Any]) -> list[str]:
    """Return a cell's parts as Markdown: HTML where an output has it, else its text."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", [])})
        if "text/html" in data:
            lines = [line for line in "".join(data["text/html"]).splitlines() if line.strip()]
            parts.append('<div class="output">\n' + "\n".join(lines) + "\n</div>")
        else:
            parts.append("```text\n" + "".join(data.get("text/plain", [])).rstrip() + "\n```")
    return parts
