"""Findings are written by hand: each number is that of the cell that it links to, in the results that come along."""

import pytest

from retable.platform.report import measured
from retable.platform.report.findings import Cited, as_text, findings, wrong
from retable.platform.report.write import sections, write_report
from retable.platform.spec.task import names

TASKS = [task for task in names() if findings(task)]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The tables of all bundles that come along, filled."""
    from retable.platform.store.storage import Storage

    storage = Storage.open(tmp_path_factory.mktemp("shipped") / "results")
    cited = {piece.table for task in TASKS for piece in findings(task) if isinstance(piece, Cited)}
    measured.take_in(sorted(cited), storage)
    places = [storage / f"measured/{name}" for name in storage.list("measured")]
    return storage, [part for place in places for part in sections(place, storage / "report")]


@pytest.mark.parametrize("task", TASKS)
def test_each_number_is_the_one_of_its_cell(task, shipped):
    assert wrong(findings(task), shipped[1]) == []
    assert any(isinstance(piece, Cited) for piece in findings(task))


def test_a_report_may_show_a_task_that_is_not_installed():
    assert findings("of_another_lab") == []


@pytest.mark.parametrize("task", TASKS)
def test_two_or_three_sentences(task):
    assert 2 <= as_text(findings(task)).count(". ") + 1 <= 3


def test_a_number_that_is_not_in_its_cell_is_named(shipped):
    (good,) = [piece for piece in findings("rl") if isinstance(piece, Cited) and piece.text == "0.1411"]
    bad = Cited("0.1412", good.table, good.row, good.column)
    gone = Cited("1", good.table, "no such row", good.column)
    assert wrong([good, bad, gone, "text"], shipped[1]) == [
        f"0.1412: rl/table1 | {good.row} | Actor says 0.1411",
        "1: rl/table1 | no such row | Actor says nothing",
    ]


def test_the_report_shows_them_with_links_to_the_tables(shipped):
    storage, parts = shipped
    into = write_report(storage, parts=parts)
    page, text = into.read("index.html").decode(), into.read("report.md").decode()
    assert '<a href="#rl-table1-small">0.1411</a>' in page and "Found at small" in page
    assert f"**rl**, found at small: {as_text(findings('rl'))}" in text
