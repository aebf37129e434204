"""Which tests of a task's tools `make test` runs: those of tasks in which, or below which, something differs.

`pytest --tools changed` leaves the others out; `make test-all`, and pytest itself, run all.
"""

import re
import subprocess

from tests.changed import ROOT, changed

SHARED = ("platform/", "pyproject.toml", "requirements.lock", "tests/conftest.py")
"""What all tools rest on."""


def differing():
    """Return the paths that differ from the merge base with `main`; None where there is none, and on `main` itself."""
    try:
        words = ["git", "rev-parse", "main", "HEAD"]
        said = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
        return changed("main") if len({*said}) > 1 else None
    except (OSError, subprocess.CalledProcessError, SystemExit):
        return None


def left_out(test, paths, root=ROOT):
    """Return whether the test of a tool need not run, as of its task and the platform nothing differs."""
    place = test.relative_to(root).as_posix() if test.is_relative_to(root) else ""
    found = re.fullmatch(r"tests/(\w+)/tools/\w+\.py", place)
    if not found:
        return False
    starts = (f"tasks/{found[1]}/", f"tests/{found[1]}/", *SHARED)
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
