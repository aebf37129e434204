"""The table of docs/reliability.md is the one that `python -m benchmarks faults` has written."""

import json

from benchmarks import faults


def test_the_page_has_the_table_of_the_results():
    result = json.loads((faults.ROOT / "benchmarks" / "results" / "faults.json").read_text())["result"]
    page = faults.PAGE.read_text()
    assert faults.with_table(page, result) == page and len(result) > 20


def test_new_figures_replace_the_table_and_nothing_else():
    page = faults.PAGE.read_text()
    (before, after) = page.split(faults.table({}))
    changed = faults.with_table(page, {"ended": "1 passed", "a fire: survived": "yes", "a fire: seconds": 3.4})
    assert changed == before + faults.HEAD + "| a fire | yes |  | 3 |  |\n\n" + after.partition("\n\n")[2]
