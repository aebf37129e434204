"""Help of every command, of the tasks too: one line of purpose, a text for each option, examples that work."""

import re
import shlex
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import typer

from retable.platform.cli import app as cli
from retable.platform.spec.task import find
from tests.command_line import accepted, walked

TASKS = ("weather", "style", "audio", "rl")


COMMANDS = dict(walked(typer.main.get_command(cli.app), "retable"))


def examples(text):
    """Return the commands in what a help says after `Example`, as words: a job's inner command apart, pipes cut off."""
    found = []
    for line in re.findall(r"`(retable [^`]+)`", text.partition("Example")[2].replace("\n", " ")):
        outer, _, inner = line.partition(" | ")[0].partition(" -- ")
        found += [shlex.split(each) for each in (outer, inner and f"retable {inner}") if each]
    return found


EXAMPLES = [words for command in COMMANDS.values() for words in examples(command.help or "")]


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_says_in_one_line_what_it_does_and_shows_an_example_of_itself(path):
    text = COMMANDS[path].help or ""
    first = text.strip().split("\n\n")[0]
    assert first.endswith(".") and len(first.splitlines()) == 1
    shown = [" ".join(words) for words in examples(text)]
    assert any(f"{line} ".startswith(f"{path} ") for line in shown), f"no example of `{path}` in {shown}"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_a_text_that_is_shown_whole(path):
    for parameter in COMMANDS[path].params:
        text = parameter.help or ""
        assert text and "<" not in text and not re.search(r"\b([Nn]one|0): ", text), (parameter.name, text)


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_the_command_line_takes_an_example(words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("my.py", "published.csv"):
        Path(name).touch()
    accepted(words[1:])


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_the_tables_and_rows_that_an_example_names_are_there(words):
    tables = [word for word in words if word.partition("/")[0] in TASKS and "/" in word]
    rows = [words[at + 1] for at, word in enumerate(words) if word == "--rows"]
    labels = set()
    for word in tables:
        task, table, *label = word.split("/", 2)
        assert table in find(task).tables(), word
        labels = {row.label for row in find(task).tables()[table].rows}
        assert not label or label[0] in labels, f"{word}: rows are {sorted(labels)}"
    for pattern in rows:
        assert any(fnmatchcase(label, pattern) for label in labels), pattern


def test_an_example_of_a_row_that_is_not_there_is_found():
    (words,) = examples("Example: `retable show rl/table1/dense`")
    with pytest.raises(AssertionError, match="rows are"):
        test_the_tables_and_rows_that_an_example_names_are_there(words)
