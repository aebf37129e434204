"""The rooms of a task: what the paper needs imports nothing of `tools/`, and no two rooms import each other."""

import ast
import functools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TASKS = Path(__file__).parents[1] / "tasks"
NAMES = sorted(path.parent.name for path in TASKS.glob("*/tools"))
DOORS = {"answer", "best", "cli", "data_cli", "export"}
"""By these the command and the server come to a task: they reach its tools, and no table reaches them."""


@functools.cache
def modules(task):
    """Return the modules of a task by their dotted names below it."""
    files = [file for file in (TASKS / task).rglob("*.py") if file.name != "__init__.py"]
    return {".".join(file.relative_to(TASKS / task).with_suffix("").parts): file for file in files}


@functools.cache
def imports(task, text):
    """Return the modules of a task that code imports, inside functions too, but not those for types alone."""
    base = f"retable.tasks.{task}"

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name.removeprefix(f"{base}.") for name in names if name.startswith(f"{base}."))
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    known = modules(task)
    return [name for name in visit(ast.parse(text)) if name in known]


def reached(task):
    """Return the modules that the task, its tables and its scales import, directly or not."""
    known, seen = modules(task), set()
    wanted = [
        name for file in ("__init__", "task") for name in imports(task, (TASKS / task / f"{file}.py").read_text())
    ] + ["tables", "claims", "scales"]
    while wanted:
        if (name := wanted.pop()) not in seen:
            seen.add(name)
            wanted += imports(task, known[name].read_text())
    return seen


@pytest.mark.parametrize("task", NAMES)
def test_no_table_reaches_a_tool_or_a_door(task):
    found = reached(task)
    assert {"config", "data", "learner", "predict"} <= found, "they are imported, not named here"
    assert [name for name in found if name.startswith("tools.") or name in DOORS] == []


@pytest.mark.parametrize("task", NAMES)
def test_only_doors_import_tools(task):
    wrong = [
        f"{name} imports {other}"
        for name, file in modules(task).items()
        for other in imports(task, file.read_text())
        if other.startswith("tools.") and not name.startswith("tools.") and name not in DOORS
    ]
    assert wrong == []


def circle(edges):
    """Return the rooms of a circle; none: there is none."""
    graph = {}
    for room, other in edges:
        graph.setdefault(room, set()).update({other} - {room})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("task", NAMES)
def test_rooms_have_no_circle(task):
    edges = [
        (room, other)
        for name, file in modules(task).items()
        if (room := name.rpartition(".")[0])
        for each in imports(task, file.read_text())
        if (other := each.rpartition(".")[0])
    ]
    assert edges and circle(edges) == []


def test_circles_and_imports_of_every_form_are_seen():
    text = """
from retable.tasks.rl.model import build
from retable.tasks.rl import learner
import retable.tasks.rl.config
if TYPE_CHECKING:
    from retable.tasks.rl import data
def later():
    from retable.tasks.rl.losses import Noise
"""
    assert imports("rl", text) == ["model", "learner", "config", "losses"]
    assert circle([("a", "b"), ("b", "c"), ("c", "a")]) and not circle([("a", "b"), ("a", "a"), ("b", "c")])
