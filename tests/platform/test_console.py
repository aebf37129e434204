"""The board tells how long the rest will take only once it can."""

import io
import subprocess
import sys
import time

import pytest
from rich.console import Console

from retable.platform import console as consoles
from retable.platform.console import LeftColumn, ProgressBoard, items, progress_bar, whole
from retable.platform.errors import UserError
from retable.platform.text import seconds_of


def test_no_guess_before_a_twentieth_of_the_work_is_done(capsys):
    """The first of 170 trainings may be a thousandth of the work: of it, "55 days left" was said."""
    board = ProgressBoard("training", 3, 1000.0)
    with board.show():
        time.sleep(0.05)
        board.done("a small one", 1)
        time.sleep(0.05)
        board.done("a large one", 499)
        board.done("the rest", 500)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "a small one" in line] == ["training: done 1/3: a small one"]
    assert any(line.startswith("training: done 2/3: a large one, about") for line in lines)


@pytest.mark.parametrize(("done", "known"), [(1, False), (500, True)])
def test_a_bar_shows_dashes_until_then(done, known):
    board = ProgressBoard("training", 2, 1000.0)
    time.sleep(0.02)
    board.bars.advance(board.whole, done)
    assert LeftColumn().render(board.bars.tasks[0]).plain.startswith("0:00:0") == known


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("1d 1s", 86401), ("0h1m", 60)]
)
def test_a_time_is_read_as_people_write_it(text, seconds):
    assert seconds_of(text, "--deadline") == seconds


@pytest.mark.parametrize("text", ["", "soon", "0s", "5", "-1h", "1m2h", "1.5h", "h"])
def test_what_is_no_time_is_a_line(text):
    with pytest.raises(UserError, match=f"^--deadline {text}: write a time such as 2h, 90m, 1h30m or 45s$"):
        seconds_of(text, "--deadline")


def test_a_title_is_no_markup(capsys):
    """A folder may be called so."""
    with progress_bar("checking [/x] [bold]y") as advance:
        advance(1, 2)
    assert capsys.readouterr().out == "checking [/x] [bold]y\n"


def test_a_bar_shows_what_is_being_done(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=100)
    monkeypatch.setattr(consoles, "console", screen)
    with progress_bar("", "files") as advance:
        advance(1.5, 4, "a[/b].jpg loss 3")
    shown = screen.file.getvalue()
    assert "a[/b].jpg loss 3" in shown and "38%" in shown


@pytest.mark.parametrize(("unit", "lines"), [("files", ["x: 1/4 files, ", "x: 2/? files, "]), ("", [])])
def test_without_a_terminal_work_that_is_counted_is_a_line_now_and_then(monkeypatch, capsys, unit, lines):
    monkeypatch.setattr(consoles, "EVERY", 0.0)
    with progress_bar("x", unit) as advance:
        advance(1, 4)
        advance(2, 0)
    title, *rest = capsys.readouterr().out.splitlines()
    assert title == "x" and len(rest) == len(lines)
    assert all(line.startswith(wanted) and "files/s" in line for line, wanted in zip(rest, lines, strict=True))
    assert not rest or ("left" in rest[0] and "left" not in rest[1])


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("", str, []),
        ("a, b,c ", str, ["a", "b", "c"]),
        ("0.5,-1", float, [0.5, -1.0]),
        ("3,17", whole, [3, 17]),
        ("2019,", whole, [2019]),
    ],
)
def test_a_list_with_commas_is_read(text, kind, wanted):
    assert items("--x", text, kind) == wanted


@pytest.mark.parametrize("text", [",", " , ", "1,,2", ",1"])
def test_an_empty_item_is_refused(text):
    with pytest.raises(UserError, match=r"'' is no number; write 1,2$"):
        items("--x", text, str)


@pytest.mark.parametrize("word", ["20x9", "-3", "1.5", "²"])
def test_an_item_of_another_kind_is_named_with_its_option(word):
    with pytest.raises(UserError, match=rf"^--years 2019,{word}: '{word}' is no year; write 2019,2021$"):
        items("--years", f"2019,{word}", whole, "year", "2019,2021")


CLOSED = """
from retable.platform.console import consent, console, errors
from retable.platform.errors import UserError
console.print("shown")
errors.print("shown")
try:
    consent("?", yes=False)
except UserError:
    raise SystemExit(7)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_one_that_holds_nothing(closed):
    """As some supervisors start a command."""
    assert subprocess.run(["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, CLOSED]).returncode == 7
