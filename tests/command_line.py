"""Words as the command line reads them, without doing what they say."""

import functools

import typer

from retable.platform.cli import app as cli


@functools.cache
def root():
    """Return the command with all below it; Typer makes it anew at each call, which takes most of a test's time."""
    return typer.main.get_command(cli.app)


def accepted(words):
    """Read words as the command line does; raise what it raises where it does not take them."""
    command, context = root(), None
    while hasattr(command, "resolve_command"):
        context = command.make_context("retable", list(words), parent=context, resilient_parsing=True)
        _, command, words = command.resolve_command(context, words)
    command.make_context(command.name, list(words), parent=context)
