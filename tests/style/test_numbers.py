"""Every number in README and docs about style names the file that it is from, and is in it."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs/tasks").glob("style*.md")))
PAGE = (ROOT / "docs/tasks/style.md").read_text()
LINKED = re.compile(r"\[(\d[\d.,]*)\]\(([^)]*results/style[^)]*)\)")
NUMBER = re.compile(r"(?<![\w.,])\d[\d.,]*(?<![.,])(?![\w])")


def linked():
    """Return (page, number as it is written, file) of each number that links to results."""
    return [
        (page.name, number, (page.parent / file).resolve())
        for page in PAGES
        for number, file in LINKED.findall(page.read_text())
    ]


@pytest.mark.parametrize(("page", "number", "file"), linked(), ids=str)
def test_a_number_is_in_the_file_that_it_names(page, number, file):
    written = number.replace(",", "")
    digits = len(written.partition(".")[2])
    with open(file) as lines:
        values = [float(row["mean"]) for row in csv.DictReader(lines) if row["mean"]]
    assert any(round(value, digits) == float(written) for value in values), f"{page}: {number} is not in {file.name}"


def test_the_readme_gives_what_the_results_hold():
    (row,) = re.findall(r"\| \[`style`\].*", (ROOT / "README.md").read_text())
    measured = row.split("|")[-2]
    assert LINKED.search(measured), "the number links to its file"
    ends = re.search(r"\\\[(\d+), (\d+)\\\]", measured).groups()
    report = (ROOT / "docs/results/style-small/report.md").read_text()
    assert f"speedup vgg at 256 pixels {LINKED.search(measured)[1]} [{ends[0]}, {ends[1]}]" in report
    assert "published size" not in measured, "the paper gives no iterations"


def bullets():
    """Return the points of "What was measured here", but the table of the zoo, which `retable style judge` prints."""
    section = PAGE.split("## What was measured here")[1].split("\n**Small")[0]
    points = re.split(r"\n- ", section)[2:]
    return [point.split("\n\n")[0] for point in points]


def test_what_was_measured_by_hand_is_in_one_file_with_how():
    with open(ROOT / "docs/results/style-measured.csv") as file:
        rows = list(csv.DictReader(file))
    assert all(row["numbers"] and row["how"] for row in rows)
    known = {number for row in rows for text in row.values() for number in NUMBER.findall(text)}
    points = [re.sub(r"\d+ x \d+", "", point) for point in bullets()]  # sizes
    found = {number for point in points for number in NUMBER.findall(point)}
    assert len(bullets()) >= 5 and len(found) > 20
    assert found <= known, f"not in style-measured.csv: {sorted(found - known)}"
    prose = " ".join(PAGE.split())
    assert all(number in prose for row in rows for number in row["numbers"].split()), "what no page gives is left out"
