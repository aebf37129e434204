"""What the tests of the platform share."""

import functools

import pytest
import typer.main
import typer.testing

made = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def one_command_line(monkeypatch):
    """Make the command line once in a process, as every process does: Typer makes it at each call, for 0.1 s."""
    monkeypatch.setattr(typer.main, "get_command", made)
    monkeypatch.setattr(typer.testing, "_get_command", made)
