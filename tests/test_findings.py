"""Findings are written by hand: each number is that of the cell that it links to, in the results that come along."""

import dataclasses
import functools
import html
import re

import pytest

from retable.platform.report import measured
from retable.platform.report.findings import Cited, as_text, findings
from retable.platform.report.render import number
from retable.platform.report.write import read_request, sections, write_report
from retable.platform.spec.task import names
from retable.platform.store.storage import Storage
from tests import documents

TASKS = [task for task in names() if findings(task)]


SHIPPED = [pytest.param(task, marks=pytest.mark.slow) if task == "audio" else task for task in TASKS]
"""Tasks; the bundle of audio's is ten times the others' together."""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """Return what fills the cited tables of a task from the bundle that comes along, once."""

    @functools.cache
    def fill(task):
        storage = Storage.open(tmp_path_factory.mktemp(task) / "results")
        cited = {piece.table for piece in findings(task) if isinstance(piece, Cited)}
        measured.take_in(sorted(cited), storage)
        (place,) = (storage / f"measured/{name}" for name in storage.list("measured"))
        for file in place.list("tables"):
            if read_request(place, f"tables/{file}")["table"] not in cited:
                place.remove(f"tables/{file}")
        return storage, tuple(sections(place, storage / "report"))

    return fill


def wrong(pieces, parts):
    """Return a line for each cited number that differs from its cell, or whose cell is not in these tables."""
    lines = []
    for cited in pieces:
        if isinstance(cited, str):
            continue
        cells = [
            number(cell.published if cited.published else cell.mean, column.format)
            for part in parts
            if part.name == cited.table
            for row in part.rows
            if row.label == cited.row
            for column, cell in zip(part.columns, row.cells, strict=True)
            if column.header == cited.column
        ]
        if cited.text not in cells:
            where = " | ".join([cited.table, cited.row, cited.column, *(["published"] if cited.published else [])])
            lines.append(f"{cited.text}: {where} says {', '.join(cells) or 'nothing'}")
    return lines


@pytest.mark.parametrize("task", SHIPPED)
def test_each_number_is_the_one_of_its_cell(task, shipped):
    assert wrong(findings(task), shipped(task)[1]) == []
    assert any(isinstance(piece, Cited) for piece in findings(task))


@pytest.mark.parametrize("task", SHIPPED)
def test_no_test_of_a_claim_fails_on_what_comes_along(task, shipped):
    """A claim whose test raises is not tested: on pages of results that come along it would pass for one."""
    verdicts = [claim.because for part in shipped(task)[1] for claim in part.claims]
    assert verdicts and not [because for because in verdicts if "its test fails" in because]


def test_a_report_may_show_a_task_that_is_not_installed():
    assert findings("of_another_lab") == []


@pytest.mark.parametrize("task", TASKS)
def test_two_short_sentences(task):
    sentences = re.split(r"(?<=\.)\s+", as_text(findings(task)).strip())
    assert len(sentences) == 2
    for sentence in sentences:
        assert len([word for word in sentence.split() if re.search(r"\w", word)]) <= 30


@pytest.mark.parametrize("task", TASKS)
def test_a_number_without_a_link_is_a_label_of_a_cited_cell(task):
    cited = [piece for piece in findings(task) if isinstance(piece, Cited)]
    labels = {number for cell in cited for number in re.findall(r"\d+", f"{cell.row} {cell.column}")}
    prose = " ".join(piece for piece in findings(task) if isinstance(piece, str))
    assert set(re.findall(r"[\d.,]*\d", prose)) <= labels


@pytest.mark.parametrize("task", TASKS)
def test_the_committed_report_states_them_as_they_are(task):
    folder = documents.ROOT / "docs" / "results" / f"{task}-small"
    assert f"**{task}**, found at small: {as_text(findings(task)).strip()}\n" in (folder / "report.md").read_text()
    page = folder / "index.html"
    assert page.exists() == (task != "style")
    if page.exists():
        shown = re.sub(r"<[^>]*>", "", html.unescape(page.read_text()))
        assert f"Found at small: {as_text(findings(task)).strip()}\n" in shown


def test_a_number_that_is_not_in_its_cell_is_named(shipped):
    good = Cited("1126", "style/table1", "512 x 512", "Speed-up over VGG-19", published=True)
    assert good in findings("style")
    bad = dataclasses.replace(good, text="1127")
    measured = dataclasses.replace(good, published=False)
    pieces = [piece for piece in findings("style") if isinstance(piece, Cited)]
    (own,) = [piece for piece in pieces if dataclasses.replace(piece, text=good.text) == measured]
    gone = dataclasses.replace(good, row="no such row")
    assert wrong([good, bad, measured, gone, "text"], shipped("style")[1]) == [
        "1127: style/table1 | 512 x 512 | Speed-up over VGG-19 | published says 1126",
        f"1126: style/table1 | 512 x 512 | Speed-up over VGG-19 says {own.text}",
        "1126: style/table1 | no such row | Speed-up over VGG-19 | published says nothing",
    ]


def test_the_report_shows_them_with_links_to_the_tables(shipped):
    storage, parts = shipped("rl")
    into = write_report(storage, parts=list(parts))
    page, text = into.read("index.html").decode(), into.read("report.md").decode()
    assert '<a href="#rl-ablation-small">98.7</a>' in page and "Found at small" in page
    assert f"**rl**, found at small: {as_text(findings('rl'))}" in text
