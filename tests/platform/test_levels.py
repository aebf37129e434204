"""The rooms of the platform stand in one order of levels: no import goes upwards, and none goes round in a circle."""

import ast
import re
import sys
from pathlib import Path

import pytest

PLATFORM = Path(__file__).parents[2] / "platform"
LEVELS = (
    ("errors",),
    ("commit", "building", "ray_compat"),
    ("config",),
    ("text",),
    ("console",),
    ("store",),
    ("spec",),
    ("train",),
    ("plan",),
    ("execute",),
    ("report",),
    ("trained",),
    ("api",),
    ("models",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
ROOMS = sorted(path.parent.name for path in PLATFORM.glob("*/__init__.py"))
FILES = sorted(PLATFORM.rglob("*.py"))


def room(path):
    """Return the room that a file stands in, or the file's own name at the top."""
    first = path.relative_to(PLATFORM).parts[0]
    return first.removesuffix(".py")


def imports(text):
    """Yield the line and the room of each import of the platform, inside functions too, but those for types alone."""

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = node.module == "retable.platform"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if whole else [node.module]
        for name in names:
            if name.startswith("retable.platform."):
                yield node.lineno, name.split(".")[2]
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(text))


def test_every_file_has_a_level():
    assert {room(path) for path in FILES} == set(LEVEL) and len(ROOMS) == 8


def test_no_import_goes_upwards():
    wrong = [
        f"{path.relative_to(PLATFORM)}:{line} imports {other}"
        for path in FILES
        for line, other in imports(path.read_text())
        if LEVEL[other] > LEVEL[room(path)]
    ]
    assert wrong == []


def test_imports_of_every_form_are_seen():
    text = """
from retable.platform.api import plan
from retable.platform import api
import retable.platform.cli.app
if TYPE_CHECKING:
    from retable.platform.report.results import FilledTable
def later():
    from retable.platform.models import zoo
"""
    assert [name for _, name in imports(text)] == ["api", "api", "cli", "models"]


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_says_what_it_is_its_level_and_its_public_names(name):
    lines = (ast.get_docstring(ast.parse((PLATFORM / name / "__init__.py").read_text())) or "").splitlines()
    text = " ".join(lines)
    assert 6 <= len(lines) <= 16 and f"Level {LEVEL[name] + 1} of {len(LEVELS)}" in text
    files = {path.stem for path in (PLATFORM / name).glob("*.py") if path.stem[0] != "_"}
    assert files == {*re.findall("`([a-z_0-9]+)`", text)} & files, "each file is named"


def test_no_room_has_the_name_of_a_module_of_python():
    assert not {*ROOMS} & sys.stdlib_module_names
