"""Groups of commands that the tasks bring, and what `retable list` prints of them.

A task's `cli.py` is imported when one of its commands, or their help, is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

import typer
from typer.core import TyperGroup

from retable.platform.errors import one_line
from retable.platform.spec import task as tasks
from retable.platform.spec.extras import check
from retable.platform.store.storage import Record

MARKUP: Final = "markdown"
"""Markup language of help texts."""
VERBS = {
    "fetch": "Download a task's published data, check and convert them.\n\nExample: `retable data fetch rl` (a list)",
    "make": "Write generated or recorded data in the task's real format.\n\nExample: `retable data make style`",
    "check": "List every defect of a data set, one line each.\n\nExample: `retable data check style ~/Pictures`",
    "convert": "Read the real public files into the form that training streams.\n\n"
    "Example: `retable data convert rl hopper_expert-v2.hdf5`",
    "import": "Convert other real data to the task's layout.\n\n"
    "Example: `retable data import style ~/Pictures --name mine`",
}
"""Commands of `retable data`: what each does, with an example."""
DATA_HELP = "Download, make, check, convert or import a task's data.\n\nExample: `retable data make weather --size 36`"
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}
LOADED = ("help", "commands", "params", "callback", "invoke_without_command", "no_args_is_help", "epilog")
"""Attributes that a group takes from the group that it loads."""


class LazyGroup(TyperGroup):
    """A group of commands that is made when its help or one of its commands is asked for."""

    def __init__(self, name: str, about: str, load: Callable[[], TyperGroup]) -> None:
        super().__init__(name=name, short_help=about, rich_markup_mode=MARKUP)
        self.load = load
        for attribute in LOADED:  # `__getattr__` is asked for them
            delattr(self, attribute)

    def __getattr__(self, attribute: str) -> Any:
        """Return the help, the commands or what a task's own callback has, and load the group for that."""
        if attribute not in LOADED:
            raise AttributeError(attribute)
        vars(self).update({name: value for name, value in vars(self.load()).items() if name in LOADED})
        self.no_args_is_help = not self.invoke_without_command
        return vars(self)[attribute]


class Commands(TyperGroup):
    """The command `retable`: the platform's commands, a group for each task that has some, and `data`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name in filter(tasks.has_commands, tasks.names()):
            self.add_command(LazyGroup(name, f"Commands of the task {name}.", partial(task_group, name)))
        verbs = [LazyGroup(verb, first_paragraph(text), partial(verb_group, verb)) for verb, text in VERBS.items()]
        self.add_command(
            TyperGroup(name="data", help=DATA_HELP, commands=verbs, no_args_is_help=True, rich_markup_mode=MARKUP)
        )


def task_group(name: str) -> TyperGroup:
    """Return the commands of a task.

    Raises:
        Missing: where what it needs is not installed.
    """
    return _group(name, _cli(name).app)


def verb_group(verb: str) -> TyperGroup:
    """Return a group of `retable data`: a command for each task that has it, or that says why it cannot be had."""
    app = typer.Typer(help=VERBS[verb])
    for name in filter(tasks.has_commands, tasks.names()):
        try:
            if command := getattr(_cli(name), "DATA", {}).get(verb):
                app.command(name)(command)
        except Exception as error:  # a task's own code: the others' commands work nevertheless
            app.command(name, help=one_line(error), context_settings=ANYTHING)(_refusing(error))
    return _group(verb, app)


def _refusing(error: Exception) -> Callable[[], None]:
    def refuse() -> None:
        raise error

    return refuse


def _cli(name: str) -> ModuleType:
    check(name)
    return importlib.import_module(f"retable.tasks.{name}.cli")


def _group(name: str, app: typer.Typer) -> TyperGroup:
    outer = typer.Typer(rich_markup_mode=MARKUP)
    outer.add_typer(app, name=name)
    return cast(TyperGroup, typer.main.get_group(outer).commands[name])


def entry(name: str) -> Record:
    """Return what a task says of itself: `about`, `tables` and `scales`; or `missing`, why its code does not load."""
    try:
        task = tasks.find_description(name)
        return {
            "about": task.about,
            "tables": {table: content.title for table, content in task.tables().items()},
            "scales": {scale: str(content) for scale, content in task.scales().items()},
        }
    except Exception as error:  # a task's own functions may raise anything; the others are listed nevertheless
        return {"missing": one_line(error)}


def commands_of(name: str) -> Record:
    """Return the help of a task's commands: `help` of the group, `commands`, and `data` by verb."""
    if not tasks.has_commands(name):
        return {"help": "", "commands": {}, "data": {}}
    group = task_group(name)
    return {
        "help": group.help or f"Commands of the task {name}.",
        "commands": {command_name: first_paragraph(command.help) for command_name, command in group.commands.items()},
        "data": {verb: first_paragraph(command.__doc__) for verb, command in getattr(_cli(name), "DATA", {}).items()},
    }


def first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a help text, in one line."""
    return " ".join((text or "").split("\n\n")[0].split())
