"""README: short, and its terminal is what the command prints; links of all documents lead to files."""

import io
import json
import re
from collections import Counter
from pathlib import PurePosixPath
from types import SimpleNamespace

import pytest
from rich.console import Console

from retable.platform.cli import filled
from retable.platform.report import papers, write
from retable.platform.spec.task import find
from tests import documents

ROOT = documents.ROOT
README = (ROOT / "README.md").read_text()
WRITTEN = [*ROOT.glob("*.md"), *ROOT.glob("tasks/*/LICENSES.md"), *ROOT.glob("tasks/*/*/LICENSES.md")]
WRITTEN += [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/tasks/*.md"), *ROOT.glob("docs/results/*/report.md")]
QUICK = json.loads((ROOT / "docs" / "results" / "quick.json").read_text())
"""One run of the first command (`docs/quick.py`)."""
NUMERALS = "no one two three four five six seven eight nine ten".split()
PYTHON = "Python 3.11 to 3.13"


def test_it_has_600_words_outside_of_blocks():
    prose = re.sub(r"\]\([^)]*\)", "]", documents.BLOCK.sub("", README))
    assert len([word for word in prose.split() if re.search(r"\w", word)]) <= 600


def terminal():
    """Return the lines of the block that shows the terminal; the last one, which is broken there, as one."""
    (block,) = [found["text"] for found in documents.BLOCK.finditer(README) if "filled here" in found["text"]]
    assert max(map(len, block.splitlines())) <= 120
    return re.sub(r" ·\n +", " · ", block).splitlines()


def test_its_terminal_is_what_the_command_prints(monkeypatch):
    shown = terminal()
    words = [re.split(r"\s{2,}", line.strip()) for line in shown[1:5]]
    lines = [papers.Line(w[0], w[1], find(w[0]).key_number.about, *w[3:]) for w in words]
    claims = [re.fullmatch(r"claims (.+) \((.+)\): (.+)", line) for line in shown if line.startswith("claims")]
    ends = ("run here", "run elsewhere")
    verdicts = iter([[f"{c[1]}: {c[3]}" for c in claims if c[2].endswith(end)] for end in ends])
    own = SimpleNamespace(name="weather/table1", scale="quick", rows=[], changes={})
    shipped = SimpleNamespace(name="weather/table1", scale="small", rows=[], changes={})
    monkeypatch.setattr(papers, "summary_lines", lambda *_: lines)
    monkeypatch.setattr(papers, "verdict_lines", lambda _: next(verdicts))
    monkeypatch.setattr(write, "shipped_sections", lambda *_: [shipped])
    printed = io.StringIO()
    monkeypatch.setattr(filled, "console", Console(file=printed, width=160, highlight=False))
    filled.print_summary({own.name: own}, PurePosixPath("/home/you/retable/results"))
    assert [line.rstrip() for line in printed.getvalue().strip("\n").splitlines()] == shown
    assert len(shown) <= 25


def numbers_of(text, *labels):
    """Return the numbers before some words, in order."""
    return [int(found) for found in re.findall(rf"(\d+) (?:{'|'.join(labels)})", text)]


def test_its_numbers_are_those_of_the_run_that_is_kept():
    tables = QUICK["tables"]
    shown = terminal()
    for line in shown[1:5]:
        name, filled, _, here, *_ = re.split(r"\s{2,}", line.strip())
        own = {table: part for table, part in tables.items() if table.startswith(f"{name}/")}
        rows = sum(len(part["numbers"]) for part in own.values())
        assert numbers_of(filled, "rows?", "tables?") == [rows, sum(bool(part["numbers"]) for part in own.values())]
        key = find(name).key_number
        value = tables[f"{name}/{key.table}"]["numbers"][key.row][key.column]
        assert f"{value:.{len(here.partition('.')[2])}f}" == here
    for whose in ("of the papers", "ours"):
        (line,) = [line for line in shown if line.startswith(f"claims {whose} (quick")]
        claims = Counter()
        for part in tables.values():
            claims.update({k.removeprefix(f"{whose}: "): v for k, v in part["claims"].items() if k.startswith(whose)})
        assert {verdict: int(count) for count, verdict in re.findall(r"(\d+) ([^,]+)", line.split(": ")[1])} == claims
    minutes = re.search(r"The tables take (\w+) minutes on two cores", README)[1]
    assert abs(NUMERALS.index(minutes) - QUICK["seconds"] / 60) <= 0.6


@pytest.mark.parametrize(
    ("words", "table", "row", "column"),
    [
        ("the improved 3D U-Net", "weather/table1", "BASELINE bce, improved, train all. Epoch 15", "Total"),
        ("persistence of a rain retrieval", "weather/table1", "persistence of a retrieval", "Total"),
    ],
)
def test_its_table_quotes_the_run_that_is_kept(words, table, row, column):
    (shown,) = re.findall(rf"quick\.json.*{words} ([\d.]+)", README)
    value = QUICK["tables"][table]["numbers"][row][column]
    assert f"{value:.{len(shown.partition('.')[2])}f}" == shown


def test_every_page_names_the_same_versions_of_python():
    pages = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "install.md"]
    assert all(PYTHON in " ".join(page.read_text().split()) for page in pages)
    install = (ROOT / ".github" / "workflows" / "install.yml").read_text()
    assert 'python: ["3.11", "3.12", "3.13"]' in install
    assert not any(re.search(r"3\.11 or newer|3\.11, 3\.12", page.read_text()) for page in documents.PAGES)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", documents.BLOCK.sub("", page.read_text()))
    gone = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    folders = [
        link for link in links if (place := (page.parent / link).resolve()).is_dir() and ROOT / "docs" in place.parents
    ]
    assert not gone and not folders  # the site has pages and files, no folders


def test_the_notice_names_files_that_exist():
    names = re.findall(r"(?:tasks|docs)/[\w./*]+", (ROOT / "NOTICE").read_text())
    assert names
    for name in names:
        assert list(ROOT.glob(name.rstrip("."))), name


def test_the_page_of_rl_says_what_quick_had():
    page = " ".join((ROOT / "docs" / "tasks" / "rl.md").read_text().split())
    rows = {f"{figure}: {row}": numbers["behaviour_share"]
            for figure in ("figure1", "figure2")
            for row, numbers in QUICK["tables"][f"rl/{figure}"]["numbers"].items()}  # fmt: skip
    told = re.search(
        r"trains only BC .*: dense (\d+) %, SNIP (\d+) %, ERK (\d+) %, GraSP (\d+) %, "
        r"random (\d+) %, SNIP on raw states (\d+) %",
        page,
    )
    expected = (
        "1: dense",
        "1: SNIP 95 %",
        "1: ERK 95 %",
        "2: GraSP 95 %",
        "1: random 95 %",
        "1: SNIP 95 %, raw states",
    )
    assert told and [*map(int, told.groups())] == [round(100 * rows[f"figure{name}"]) for name in expected]
