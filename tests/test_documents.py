"""README and docs: each command is one that the command line takes, as it stands there."""

from pathlib import Path

import pytest
import typer

from retable.platform import cli
from tests import documents

OURS = [line for line in documents.ALL if line.words[0] == "retable"]
SUBMITTED = [line.text.partition(" -- ")[2] for line in OURS if " -- " in line.text]


def accepted(words):
    """Read words as the command line does, without doing what they say."""
    command, context = typer.main.get_command(cli.app), None
    while hasattr(command, "resolve_command"):
        context = command.make_context("retable", list(words), parent=context, resilient_parsing=True)
        _, command, words = command.resolve_command(context, words)
    command.make_context(command.name, list(words), parent=context)


@pytest.mark.parametrize("line", OURS, ids=str)
def test_the_command_line_takes_it(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = line.words[1:]
    monkeypatch.setattr(cli.app, "registered_groups", list(cli.app.registered_groups))
    cli.mount(words)
    for name in ("my.py", "images.npz", "published.csv"):
        Path(name).touch()
    accepted(words[: words.index("--")] if "--" in words else words)
