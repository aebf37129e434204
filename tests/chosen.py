"""Which tests of a task's tools `make test` runs: those of which the tool, or a room that it needs, differs.

`pytest --tools changed` leaves the others out; `make test-all`, and pytest itself, run all.
"""

import re
import subprocess

from tests.changed import ROOT, changed


def differing():
    """Return the paths that differ from the merge base with `main`, None where there is none."""
    try:
        return changed("main")
    except (OSError, subprocess.CalledProcessError):
        return None


def needed(test):
    """Return the rooms, and the files outside of rooms, that the test of a tool imports, as starts of paths."""
    modules = re.findall(r"retable\.(tasks\.\w+(?:\.\w+)*)(?: import ([\w, ]+))?", test.read_text())
    files = {module.replace(".", "/") for module, _ in modules}
    files |= {f"{module.replace('.', '/')}/{name}" for module, names in modules for name in re.findall(r"\w+", names)}
    parts = (file.split("/") for file in files)
    return {"/".join(part[:-1]) + "/" if len(part) > 3 else f"{'/'.join(part)}.py" for part in parts if len(part) > 2}


def left_out(test, paths, root=ROOT):
    """Return whether the test of a tool need not run, as of what it tests nothing is among the paths that differ."""
    place = test.relative_to(root).as_posix() if test.is_relative_to(root) else ""
    if not re.fullmatch(r"tests/\w+/tools/\w+\.py", place):
        return False
    starts = (f"{place.rpartition('/')[0]}/", *needed(test))
    return not any(path.startswith(starts) for path in paths)


def pytest_addoption(parser):
    """Add `--tools`."""
    parser.addoption("--tools", choices=("all", "changed"), default="all", help="tests of tasks' tools that are run")


def pytest_collection_modifyitems(config, items):
    """Leave out tests of tools that do not differ, where that is asked for."""
    if config.getoption("tools") == "changed" and (paths := differing()) is not None:
        out = {test for test in {item.path for item in items} if left_out(test, paths)}
        config.hook.pytest_deselected(items=[item for item in items if item.path in out])
        items[:] = [item for item in items if item.path not in out]
