"""The notebook of the documents runs from its first cell to its last."""

import json
import re

import pytest

from docs import tour
from retable.platform.spec.task import DEFAULT_SCALE
from tests import documents

CELLS = json.loads(tour.NOTEBOOK.read_text())["cells"]


def test_every_code_cell_was_run_in_order_and_shows_what_it_has():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert all(cell["outputs"] for cell in code if "retable." in cell["source"][-1])
    assert "/tmp" not in json.dumps(CELLS)


NO_RUNS = ("dir(retable)", 'plan("rl/figure1", scale="paper")', "prune.sparsty")
"""Parts of the cells that need no runs."""


def shown(cell):
    """Return what a cell shows as text, but for what depends on the storage and the runs on it."""
    outputs = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]
    lines = [line.rstrip("\n") for output in outputs for line in output]
    return [line for line in lines if not line.startswith(("  cost ", "  storage "))]


@pytest.mark.parametrize("part", NO_RUNS)
def test_what_needs_no_runs_is_shown_as_it_is_today(part, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (cell,) = [cell for cell in CELLS if cell["cell_type"] == "code" and part in "".join(cell["source"])]
    now = {**cell, "source": ["import retable\n", *cell["source"]]}
    tour.run([now])
    assert shown(now) == shown(cell)


def test_it_uses_the_default_scale_and_says_so():
    assert f"scale `{DEFAULT_SCALE}`, the default" in "".join(CELLS[0]["source"])
    (plan,) = [cell for cell in CELLS if "".join(cell["source"]) == 'retable.plan("rl/figure1")']
    assert shown(plan)[0] == f"plan of 1 table at the scale {DEFAULT_SCALE}"


def test_its_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)]+)\)", json.dumps(CELLS)):
        assert (tour.NOTEBOOK.parent / link).exists()


def test_outputs_are_what_cells_print_and_show():
    cells = [{"cell_type": "code", "source": ["x = 2\n", "print(x)\n", "x + 1"]}, {"cell_type": "markdown"}]
    tour.run(cells)
    printed, value = cells[0]["outputs"]
    assert printed["text"] == ["2\n"] and value["data"] == {"text/plain": ["3"]} and "outputs" not in cells[1]


@pytest.mark.slow
def test_it_runs(monkeypatch):
    place = documents.ROOT / "build" / "docs-check"
    place.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(place)
    tour.run(json.loads(json.dumps(CELLS)))
