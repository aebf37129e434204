"""`retable reproduce` to its last line: the bundle that comes along is taken in, and the summary is short and plain."""

import io

import pytest
from typer.testing import CliRunner

from retable.platform import api
from retable.platform.cli import app as cli
from retable.platform.cli import filled
from retable.platform.console import new_console
from retable.platform.report import measured
from retable.platform.report.packing import pack
from retable.platform.store.storage import Storage
from tests.platform.made_table import filled_line

TABLE = "line/table1"


@pytest.fixture
def reproduced(storage, tmp_path, monkeypatch):
    """What the command shows after the training, in a terminal with NO_COLOR; its runs were trained without Ray."""
    there = Storage.open(tmp_path / "there")
    filled_line(there, "small")
    pack([TABLE], "small", {}, there, tmp_path / "small.bundle", False, False)
    monkeypatch.setattr(measured, "bundle_of", lambda task: tmp_path / "small.bundle")
    filled_line(storage, "quick")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    screen, carry_out, begun = io.StringIO(), api.carry_out, []
    shown = new_console(file=screen, force_terminal=True, width=100)
    for module in (cli, filled):
        monkeypatch.setattr(module, "console", shown)
    monkeypatch.setattr(cli, "FEW", 0)  # of one table, as of many, a summary

    def carried_out(*words):
        done = carry_out(*words)
        begun.append(screen.tell())
        return done

    monkeypatch.setattr(api, "carry_out", carried_out)
    words = ["reproduce", TABLE, "--no-train", "--storage", storage.root]
    ended = CliRunner().invoke(cli.app, words)
    assert ended.exit_code == 0, ended.exception
    return screen.getvalue()[begun[0] :]


def test_the_summary_has_at_most_25_lines_and_says_where_the_report_is_and_what_to_do_next(reproduced):
    lines = reproduced.splitlines()
    assert len(lines) <= 25
    assert [line for line in lines if line.startswith("report: ")] and lines[-1].startswith("next: ")


def test_what_came_along_has_a_column(reproduced, storage):
    header = next(line for line in reproduced.splitlines() if "filled here" in line)
    assert header.split()[-3:] == ["quick", "small", "published"]
    assert "small: measured earlier" in reproduced and storage.list("measured")


def test_no_escape_code_is_written_with_no_color(reproduced, monkeypatch):
    assert "\x1b" not in reproduced
    monkeypatch.delenv("NO_COLOR")
    screen = io.StringIO()
    new_console(file=screen, force_terminal=True).print("[bold]x[/]")
    assert "\x1b" in screen.getvalue()
