"""README and docs: each command is one that the command line takes, as it stands there."""

import importlib.util
from pathlib import Path

import pytest

from docs import cli as cli_page
from retable.platform.cli import app as cli
from retable.platform.spec.task import find
from tests import documents
from tests.command_line import accepted

OURS = [line for line in documents.ALL if line.words[0] == "retable"]


@pytest.mark.parametrize("line", OURS, ids=str)
def test_the_command_line_takes_it(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = line.words[1:]
    cli.mount(words)
    for name in ("my.py", "images.npz", "published.csv"):
        Path(name).touch()
    accepted(words[: words.index("--")] if "--" in words else words)


COVERAGE = (documents.ROOT / "docs" / "coverage.md").read_text()
ROWS = [
    (name, key, row.label.replace("|", "\\|"))
    for name in ("weather", "style", "audio", "rl")
    for key, table in find(name).tables().items()
    for row in table.rows
]


def test_the_coverage_names_every_row_of_every_table():
    sections = {title: text for title, _, text in (part.partition("\n") for part in COVERAGE.split("\n### "))}
    missing = [row for row in ROWS if f"| {row[2]} |" not in sections["/".join(row[:2])]]
    assert not missing, "python docs/coverage.py writes the page anew"


@pytest.mark.slow
def test_the_coverage_is_what_the_planner_says():
    spec = importlib.util.spec_from_file_location("coverage_page", documents.ROOT / "docs" / "coverage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == COVERAGE, "python docs/coverage.py writes the page anew"


def test_the_reference_of_the_commands_is_what_the_program_says():
    assert cli_page.page() == cli_page.PAGE.read_text(), "python -m docs.cli writes the page anew"
