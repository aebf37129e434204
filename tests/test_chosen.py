"""Which tests of tools `make test` runs."""

import subprocess

import pytest

from tests.chosen import differing, left_out

TEST = """
from retable.tasks.rl import data
from retable.tasks.rl.tools import drawn
from retable.tasks.rl.formats.compact import pack
from tests.rl.toys import columns
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository whose branch `mine` begins at `main`."""
    for place in ("tests/rl/tools/test_drawn.py", "tasks/rl/tools/drawn.py", "tasks/rl/model.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(TEST)
    git(tmp_path, "init", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    git(tmp_path, "checkout", "-b", "mine")
    monkeypatch.setattr("tests.changed.ROOT", tmp_path)
    monkeypatch.setattr("tests.chosen.ROOT", tmp_path)
    return tmp_path


def git(root, *words):
    owner = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *owner, *words], check=True, capture_output=True)


def test_what_was_committed_changed_or_added_differs(root):
    assert differing() is None, "on `main` all are run"
    (root / "tasks/rl/model.py").write_text("")
    git(root, "commit", "-am", "two")
    (root / "tasks/rl/tools/drawn.py").unlink()
    (root / "tasks/rl/new.py").write_text("")
    assert sorted(differing()) == ["tasks/rl/model.py", "tasks/rl/new.py", "tasks/rl/tools/drawn.py"]


def test_without_a_main_branch_nothing_is_known(root, tmp_path_factory, monkeypatch):
    git(root, "branch", "-D", "main")
    assert differing() is None
    monkeypatch.setattr("tests.chosen.ROOT", tmp_path_factory.mktemp("bare"))
    assert differing() is None


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("tasks/rl/tools/drawn.py", False),
        ("tasks/rl/formats/sizes.py", False),
        ("tasks/rl/data.py", False),
        ("tests/rl/toys.py", False),
        ("tasks/rl/model.py", False),
        ("platform/config.py", False),
        ("docs/tasks/rl.md", True),
        ("tasks/style/tools/distil.py", True),
    ],
)
def test_a_tool_is_tested_where_it_or_its_room_differs(root, path, out):
    assert left_out(root / "tests/rl/tools/test_drawn.py", {"README.md", path}, root) is out
    assert not left_out(root / "tests/rl/test_model.py", set(), root), "only tests of tools are left out"
