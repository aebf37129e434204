"""Run the cells of `docs/tour.ipynb` and keep what they show in it: `python -m docs.tour [--storage FOLDER]`.

A cell that ends with an expression shows its value, as HTML where it has that, as in Jupyter.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_suffix(".ipynb")


def run(cells: list[dict[str, Any]]) -> None:
    """Run code cells one after another in one namespace, and replace their outputs."""
    names: dict[str, Any] = {}
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        tree, printed = ast.parse("".join(cell["source"])), io.StringIO()
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, NOTEBOOK.name, "exec"), names)
            value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names) if last else None
        shown = [{"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}]
        cell["outputs"] = [*(shown if printed.getvalue() else []), *([result(value, number)] if last else [])]
        cell["execution_count"] = number


def result(value: Any, number: int) -> dict[str, Any]:
    """Return a value as the output of a cell."""
    forms = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        forms["text/html"] = value._repr_html_().splitlines(keepends=True)
    return {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": forms}


def main() -> None:
    """Run the notebook where its `results` lie, and write it; where that is, is left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", default="results", help="folder that the notebook calls results")
    storage = Path(parser.parse_args().storage).absolute()
    notebook = json.loads(NOTEBOOK.read_text())
    os.chdir(storage.parent)
    if storage.name != "results":
        parser.error("--storage: the folder must be named results, as the notebook names it")
    run(notebook["cells"])
    text = json.dumps(notebook, indent=1, ensure_ascii=False).replace(f"{storage.parent}/", "")
    NOTEBOOK.write_text(text + "\n")


if __name__ == "__main__":
    main()
