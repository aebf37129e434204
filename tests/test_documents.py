"""README and docs: each command is one that the command line takes, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import cli as cli_page
from docs import coverage
from retable.platform.spec.task import find
from tests import documents
from tests.command_line import accepted
from tests.test_documents_run import ELSEWHERE

OURS = [line for line in documents.ALL if line.words[0] == "retable"]


@pytest.mark.parametrize("line", OURS, ids=str)
def test_the_command_line_takes_it(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = line.words[1:]
    for name in ("my.py", "images.npz", "published.csv"):
        Path(name).touch()
    accepted(words[: words.index("--")] if "--" in words else words)


@pytest.mark.parametrize("page", documents.UPKEEP, ids=lambda page: page.name)
def test_each_line_for_maintainers_is_a_command(page):
    texts = [line.text for line in documents.lines(page)]
    blocks = [found["text"] for found in documents.BLOCK.finditer(page.read_text())]
    written = [text.partition("  #")[0].rstrip() for block in blocks for text in block.splitlines()]
    assert [text for text in written if not re.fullmatch(r"V=[\d.]+|\. \.venv/bin/activate", text)] == texts


def test_most_reasons_name_a_test():
    assert sum(bool(re.search(r"[\w/]*test_\w+\.py", why)) for why in ELSEWHERE.values()) >= 10


@pytest.mark.parametrize(("pattern", "why"), ELSEWHERE.items(), ids=str)
def test_what_is_not_run_is_a_command_of_a_page_and_its_reason_names_tests_that_exist(pattern, why):
    assert any(re.match(pattern, line.text) for line in documents.ALL)
    assert all((documents.ROOT / name).is_file() for name in re.findall(r"[\w/]*test_\w+\.py", why))


PAGE = documents.ROOT / "docs" / "coverage.md"
COVERAGE = PAGE.read_text()
ROWS = [
    (name, key, row.label.replace("|", "\\|"))
    for name in coverage.TASKS
    for key, table in find(name).tables().items()
    for row in table.rows
]


def test_the_coverage_names_every_row_of_every_table():
    sections = {title: text for title, _, text in (part.partition("\n") for part in COVERAGE.split("\n### "))}
    missing = [row for row in ROWS if f"| {row[2]} |" not in sections["/".join(row[:2])]]
    assert not missing, "python docs/coverage.py writes the page anew"


def test_the_coverage_begins_as_it_would_be_written_and_links_to_results_that_exist():
    assert COVERAGE.startswith(coverage.HEAD), "python docs/coverage.py writes the page anew"
    assert ("[paper, a few rows]" in COVERAGE) == ("*a few rows*" in coverage.HEAD), "it said that none was trained"
    assert all((PAGE.parent / link).exists() for link in re.findall(r"\]\(([^)]+)\)", COVERAGE))
    for task in map(find, coverage.TASKS):
        for key in task.tables():
            (line,) = re.findall(rf"\| `retable reproduce {task.name}/{key} --scale paper` .*", COVERAGE)
            assert line.endswith(f"| {coverage.run_here(task, key)} |")


@pytest.mark.slow
def test_the_coverage_is_what_the_planner_says():
    assert coverage.page() == COVERAGE, "python docs/coverage.py writes the page anew"


def test_the_reference_of_the_commands_is_what_the_program_says():
    words = [
        sys.executable,
        "-c",
        "from docs.cli import page; print(page(), end='')",
    ]  # in another order of imports it is another
    page = subprocess.run(words, cwd=documents.ROOT, check=True, capture_output=True, text=True).stdout
    assert page == cli_page.PAGE.read_text(), "python -m docs.cli writes the page anew"


def test_each_page_has_its_place_in_the_site():
    docs = documents.ROOT / "docs"
    named = (documents.ROOT / "mkdocs.yml").read_text()
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    lost = {page for page in pages if not re.search(rf"[ :]{re.escape(page)}$", named, re.M)}
    assert len(pages) > 20 and lost == set()
