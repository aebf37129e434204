"""`retable new`: a task that is written, and runs; and the tables it is written from."""

import errno
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import retable.tasks
from retable.platform.cli.app import app
from retable.platform.cli.new import PARTS, check_name, constant, write_task
from retable.platform.cli.published import Line, digits, number, read_published
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage

ROOT = Path(__file__).parents[3]
CSV = r"""Method,Backbone,Accuracy (%),FLOPs (G),set:model,set:model.width
Baseline,linear,61.2 ± 0.3,-,linear,
**Ours**,MLP,"1,095.1",0.12,perceptron,16
Ours large,MLP,\textbf{97.5},1.20,perceptron,64
"""


@pytest.fixture
def table(tmp_path):
    """Write a table to a file."""

    def written(text, name="published.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def found_too(monkeypatch, folder):
    """Let the tasks of a folder be found in this process, as they are written now; undone after the test."""
    monkeypatch.setattr(retable.tasks, "__path__", [*retable.tasks.__path__, str(folder)])
    importlib.invalidate_caches()
    for path in folder.iterdir():
        for name in [name for name in sys.modules if f"{name}.".startswith(f"retable.tasks.{path.name}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(retable.tasks, path.name, raising=False)


def python(folder, *words):
    """Run Python where the tasks of a folder are found; return what it printed."""
    environment = {**os.environ, "RETABLE_TASKS": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=folder.parent, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_table_is_read_as_the_paper_prints_it(table):
    found = read_published(table(CSV))
    assert found.headers == ("Accuracy (%)", "FLOPs (G)") and found.places == {"Accuracy (%)": 1, "FLOPs (G)": 2}
    assert found.lines == (
        Line("Baseline, linear", {"Accuracy (%)": 61.2}, {"model": "linear"}),
        Line("Ours, MLP", {"Accuracy (%)": 1095.1, "FLOPs (G)": 0.12}, {"model": "perceptron", "model.width": 16}),
        Line("Ours large, MLP", {"Accuracy (%)": 97.5, "FLOPs (G)": 1.2}, {"model": "perceptron", "model.width": 64}),
    )


@pytest.mark.parametrize(
    ("text", "labels", "values"),
    [
        ("A;B\nx;1,5\ny;2,25\n", ["x", "y"], [1.5, 2.25]),
        ("A\tB\nx\t1.5\ny\t-2\n", ["x", "y"], [1.5, -2]),
        ("A;B\nx;81,2 ± 0,3\ny;**88,05**\n", ["x", "y"], [81.2, 88.05]),
        ("A;B\nx;1,234\ny;1.234,5\nz;1.234.567\n", ["x", "y", "z"], [1.234, 1234.5, 1234567]),
        ('A,B\nx,"81,2"\ny,"1,234"\nz,"1,234.5"\n', ["x", "y", "z"], [81.2, 1234, 1234.5]),
        ("A,B\nx,2k\ny,1.5M\nz,~12\n", ["x", "y", "z"], [2000, 1_500_000, 12]),
        ("\ufeffA,B\n\nx,.5\ny,\u22122e-3\n,\n", ["x", "y"], [0.5, -0.002]),
    ],
)
def test_separators_decimal_commas_and_empty_lines(table, text, labels, values):
    found = read_published(table(text))
    assert [line.label for line in found.lines] == labels
    assert [line.published["B"] for line in found.lines] == values
    assert all(line.overrides is None for line in found.lines)


@pytest.mark.parametrize(
    ("header", "cells", "numeric"),
    [
        ("Architecture", ["3D U-Net", "2D U-Net"], False),
        ("Training", ["2 x V100"], False),
        ("Parameters", ["12 million"], False),
        ("Parameters", ["12 M"], True),
        ("Time (ms)", ["12 ms", "3.5ms"], True),
        ("mAP", [r"$81.2\pm0.3$", r"\textbf{82.0}\dagger"], True),
        ("mAP", [r"\underline{81.2}", r"\emph{\textbf{82.0}}"], True),
    ],
)
def test_letters_after_a_number_are_a_unit_of_the_header_or_text(table, header, cells, numeric):
    lines = "".join(f"{place},{cell},1\n" for place, cell in enumerate(cells))
    assert (header in read_published(table(f"Method,{header},B\n{lines}")).headers) == numeric


@pytest.mark.parametrize(
    ("cells", "values", "places"),
    [
        (["1.2e-3", "4.56e-4", "2"], [0.0012, 0.000456, 2], 6),
        ([r"$1.2\times10^{-3}$", "1.5×10⁻³", "2 · 10^4"], [0.0012, 0.0015, 20000], 4),
        (["2k", "1.5e3"], [2000, 1500], 0),
        (["1e-400", "3"], [0, 3], 20),
    ],
)
def test_powers_of_ten_are_read_and_printed(table, cells, values, places):
    text = "".join(f"{place},{cell}\n" for place, cell in enumerate(cells))
    found = read_published(table(f"A,B\n{text}"))
    assert [line.published["B"] for line in found.lines] == values and found.places == {"B": places}


@pytest.mark.parametrize("cell", ["81–83", "81-83", "0.3 - 0.5", "1/3", "81 to 83", "-3 .. -1", r"$81--83$"])
def test_a_range_is_no_number(table, cell):
    """Its lower end was published as the paper's number."""
    with pytest.raises(UserError, match=re.escape(f"row 'x', 'B': {cell!r} is a range or fraction; write one number")):
        read_published(table(f"A,B\nx,{cell}\ny,80.1\nz,\n"))
    years = read_published(table(f"A,B,C\nx,{cell},1\ny,{cell},2\n"))
    assert years.joined == ("B",)


def test_cells_of_several_lines_and_separators_within_quotes(table):
    found = read_published(table('A,"Acc; top\n(%)"\n"Foo\nbar\u2028baz",81\ny,80.1\n'))
    assert found.headers == ("Acc; top (%)",) and [line.label for line in found.lines] == ["Foo bar baz", "y"]


def test_a_setting_that_is_nested_too_deep_is_text(table):
    (line,) = read_published(table(f"A,B,set:rate\nx,1,{'[' * 2000}\n")).lines
    assert line.overrides == {"rate": "[" * 2000}


@given(st.floats(-1e6, 1e6), st.integers(0, 6), st.sampled_from(["{}", "**{}**", r"\textbf{{{}}}", "{} %", "{} ± 0.1"]))
def test_a_number_is_found_with_its_digits_whatever_marks_it(value, places, marks):
    written = f"{value:.{places}f}"
    assert number(marks.format(written)) == float(written) and digits(marks.format(written)) == places


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it needs a row of headers"),
        ("A,B\n", "it needs a row of headers"),
        ("A,B,B\nx,1,2\n", "the columns need names of their own: 'B' stands there twice or is empty"),
        ("A,B\nx,1\nx,2\n", "each row needs a label of its own: 'x' stands there 2 times"),
        ("A,B\nx,one\n", "no column holds numbers"),
        ("A,B\nx,1.2.3\n", "no column holds numbers"),
        ("A,B\nx,1,2\n", "row 2 has 3 cells, the headers are 2"),
        ("A,B\nx,\0\n", "not a text file"),
        ("A,B\nx,1e999\n", "row 'x' holds a number that is not finite"),
        ("A,B,set:rate\nx,1,[NaN]\n", "row 'x' holds a number that is not finite"),
    ],
)
def test_what_is_no_table_is_refused_in_a_line(table, text, why):
    path = table(text)
    with pytest.raises(UserError, match=f"^{re.escape(str(path))}: {re.escape(why)}") as said:
        read_published(path)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("task", ["audio", "rl", "style", "weather"])
def test_who_knows_what_is_written_knows_where_things_are_in_the_four_tasks(task):
    elsewhere = {"style": {"metrics", "model"}}  # its networks/, and apply/judge.py
    there = {path.stem for path in (ROOT / "tasks" / task).glob("*.py")}
    assert set(PARTS) - there == elsewhere.get(task, set())


@pytest.mark.parametrize("name", ["", "My_paper", "1st", "a-b", "class", "rl", "../x", "x" * 41])
def test_names_that_cannot_be_used(name):
    with pytest.raises(UserError, match=r"cannot name a task|is taken"):
        check_name(name)


@pytest.mark.parametrize("name", ["random", "torch", "statistics", "yaml"])
def test_no_task_is_called_as_a_package_that_its_tests_import(name):
    """pytest puts the folder of the tests first on Python's path: `import random` found the task."""
    with pytest.raises(UserError, match=f"'{name}' is a Python package, which its test would hide; choose another"):
        check_name(name)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=6))
def test_rows_get_constants_of_their_own(labels):
    names = []
    for place, label in enumerate(labels):
        names.append(constant(label, place, names))
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) for name in names)


@pytest.mark.parametrize("labels", [["Tables"], ["A", "A row 3", "a"]])
def test_constants_take_no_name_that_is_taken(labels):
    names = ["TABLES"]
    for place, label in enumerate(labels):
        names.append(constant(label, place, names[1:]))
    assert len(set(names)) == len(names)


def test_a_full_disk_leaves_nothing_of_a_task(tmp_path, monkeypatch):
    monkeypatch.setenv("RETABLE_TASKS", str(tmp_path / "mine"))
    write = Path.write_text

    def full(self, text, **options):
        write(self, text[:9], **options)
        if self.name == "conftest.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, text, **options)

    with monkeypatch.context() as patched, pytest.raises(UserError, match="the disk is full"):
        patched.setattr(Path, "write_text", full)
        write_task("fifth")
    assert list((tmp_path / "mine").iterdir()) == []
    assert write_task("fifth").files


def test_nothing_is_written_over_and_what_is_left_to_do_is_said(table, tmp_path, monkeypatch):
    monkeypatch.setenv("RETABLE_TASKS", str(tmp_path / "mine"))
    path = table("Model,Acc,Speed,Device\nA,81.0,3,-\nB,83,4,-\n")
    done = CliRunner().invoke(app, ["new", "fifth", "--table", str(path)])
    assert done.exit_code == 0 and "export RETABLE_TASKS" not in done.output
    assert "the row 'B'; say in tables.py" in done.output and "not measured yet: 'Speed'" in done.output
    assert "run with the defaults: the row 'A'" in done.output and "no column of numbers: 'Device'" in done.output
    files = {path.name: path.read_text() for path in (tmp_path / "mine").rglob("*.py")}
    written = {"conftest.py", "test_fifth.py"} | {f"{name}.py" for name in PARTS}
    assert files.keys() == written
    (tmp_path / "papers").symlink_to(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    lost = CliRunner().invoke(app, ["plan", "fifth"])
    assert str(lost.exception).endswith("papers/fifth is found after: export RETABLE_TASKS=$PWD/papers")
    again = CliRunner().invoke(app, ["new", "fifth"])
    assert again.exit_code == 1 and "there already" in str(again.exception or again.output)
    assert files == {path.name: path.read_text() for path in (tmp_path / "mine").rglob("*.py")}


def test_a_row_with_a_field_that_config_py_lacks_is_not_run_and_says_so(table, tmp_path, monkeypatch):
    """Each command that plans all tables was refused for it, those of the four papers too."""
    monkeypatch.setenv("RETABLE_TASKS", str(tmp_path / "mine"))
    path = table("Model,Acc,set:penalty,set:batch\nA,81.0,,64\nB,83,0.1,\nC,84,,none\n")
    done = CliRunner().invoke(app, ["new", "sixth", "--table", str(path)])
    assert "not run yet: the row 'B'; unknown field 'penalty'; valid: batch, " in done.output
    assert (
        "not run yet: the row 'C'; batch: 'none' is not a whole number" in done.output
        and "the row 'A'" not in done.output
    )
    mine = tmp_path / "mine"
    found_too(monkeypatch, mine)
    planned = CliRunner().invoke(app, ["plan", "sixth", "--storage", str(tmp_path / "new")])
    assert "unique trainings    1 " in planned.output
    tables = mine / "sixth/tables.py"
    assert max(map(len, tables.read_text().splitlines())) <= 120, "the line length of ruff's settings here"
    tables.write_text(tables.read_text().replace("    absent=UNWRITTEN,\n", ""))
    found_too(monkeypatch, mine)
    refused = str(CliRunner().invoke(app, ["plan", "sixth"]).exception)
    assert "sixth, Published values, and what was measured: row 'B': unknown field 'penalty'" in refused


def test_each_metric_is_one_columns(table, tmp_path, monkeypatch):
    monkeypatch.setenv("RETABLE_TASKS", str(tmp_path / "mine"))
    written = write_task("fifth", table("Method,Accuracy top-1 (%),Acc top-5 (%),é,#\nA,81.0,95,1,2\nB,83,96,1,2\n"))
    assert written.unmeasured == ["Acc top-5 (%)", "é", "#"]
    metrics = re.findall(r'metric="(\w+)"', (written.folder / "tables.py").read_text())
    assert metrics == ["accuracy", "acc_top_5", "score", "score_2"]


@pytest.mark.parametrize(
    ("broken", "commands"),
    [
        ("__init__", {"gc": "", "list": ""}),
        (
            "tables",
            {"list": "", "tables": "no tables have been reproduced", "plan rl/table1 --set sedd=1": "field 'sedd'"},
        ),
    ],
)
def test_a_task_of_ones_own_that_does_not_load_leaves_the_others_alone(tmp_path, monkeypatch, broken, commands):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETABLE_TASKS", str(tmp_path / "own"))
    mine = write_task(f"mine{broken}").folder
    with (mine / f"{broken}.py").open("a") as file:
        file.write("TASK = (\n")
    found_too(monkeypatch, mine.parent)
    if "gc" in commands:  # beside the toys: it plans all tables at every scale
        monkeypatch.setattr(retable.tasks, "__path__", retable.tasks.__path__[1:])
    (tmp_path / "results/tables").mkdir(parents=True)
    for command, error in commands.items():
        done = CliRunner().invoke(app, command.split())
        if error:
            assert isinstance(done.exception, UserError) and error in str(done.exception)
            continue
        told = " ".join(done.output.split())
        assert done.exit_code == 0 and f"task {mine.name} does not load: SyntaxError: '(' was never closed" in told
        assert f"{broken}.py" in told and (command != "list" or "line/table1" in told)


@pytest.mark.slow
@pytest.mark.parametrize("text", [None, CSV, "Model,Acc\nA,81.0\nB,83\n", "Model,Other\nA,81.0\n"])
def test_what_is_written_is_tidy_passes_its_test_and_fills_its_table(table, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RETABLE_TASKS", raising=False)
    folder = write_task("fifth", table(text) if text else None).folder.absolute().parent
    settings = ["--config", str(ROOT / "pyproject.toml")]
    python(folder, "-m", "ruff", "check", *settings, "--ignore", "D103", str(folder))
    python(folder, "-m", "ruff", "format", "--check", *settings, str(folder))
    assert " passed" in python(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder))
    said = python(folder, "-m", "retable.platform.cli", "reproduce", "fifth", "--storage", "results")
    assert "failed" not in said
    storage = Storage.open(tmp_path / "results")
    (filled,) = storage.list("tables")
    assert filled == "fifth-table1-quick.json" and storage.read_json(f"tables/{filled}")
