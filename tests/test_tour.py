"""The notebook of the documents runs from its first cell to its last."""

import json
import re

import pytest

from docs import tour
from tests import documents

CELLS = json.loads(tour.NOTEBOOK.read_text())["cells"]


def test_every_code_cell_was_run_in_order_and_shows_what_it_has():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert all(cell["outputs"] for cell in code if "retable." in cell["source"][-1])
    assert "/tmp" not in json.dumps(CELLS)


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
