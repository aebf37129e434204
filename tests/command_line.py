"""The command line: its commands, and words as it reads them, without doing what they say."""

import typer

from retable.platform.cli import app as cli


def accepted(words):
    """Read words as the command line does; raise what it raises where it does not take them."""
    command, context = typer.main.get_command(cli.app), None
    while hasattr(command, "resolve_command"):
        context = command.make_context("retable", list(words), parent=context, resilient_parsing=True)
        _, command, words = command.resolve_command(context, words)
    command.make_context(command.name, list(words), parent=context)


def walked(command, path):
    """Yield every command below one, and it, with the words that call it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walked(inner, f"{path} {name}")
