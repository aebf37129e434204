"""`make check` runs the tests of what was changed."""

import subprocess

import pytest

from tests.changed import DOCUMENTS, LEVELS, changed, files_testing


@pytest.fixture
def tree(tmp_path):
    for name in (
        "platform/store/test_run.py",
        "platform/store/test_lease.py",
        "rl/test_prune.py",
        "rl/test_data.py",
        "test_documents.py",
        "test_readme.py",
        "test_tour.py",
    ):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("platform/store/run.py", ["tests/platform/store/test_run.py"]),
        ("platform/store/new.py", ["tests/platform/store/test_lease.py", "tests/platform/store/test_run.py"]),
        ("tasks/rl/prune.py", ["tests/rl/test_prune.py"]),
        ("tasks/rl/recordings/data.py", ["tests/rl/test_data.py"]),
        ("tests/rl/test_prune.py", ["tests/rl/test_prune.py"]),
        ("tests/rl/test_removed.py", []),
        ("docs/tour.py", []),
        ("README.md", [DOCUMENTS, "tests/test_readme.py"]),
        ("NOTICE", [DOCUMENTS, "tests/test_readme.py"]),
        ("docs/tour.ipynb", [DOCUMENTS, "tests/test_tour.py"]),
        ("docs/kuberay/rayjob.yaml", []),
        ("platform/store/prices.toml", ["tests/platform/store/test_lease.py", "tests/platform/store/test_run.py"]),
        ("docs/tasks/rl.md", [DOCUMENTS]),
        (
            "platform/store/templates/page.j2",
            ["tests/platform/store/test_lease.py", "tests/platform/store/test_run.py"],
        ),
        ("platform/store/run.css", ["tests/platform/store/test_run.py"]),
        ("tasks/rl/published.csv", ["tests/rl/test_data.py", "tests/rl/test_prune.py"]),
        ("tasks/rl/sources.json", ["tests/test_fetch.py"]),
        ("tasks/rl/findings.md", ["tests/test_findings.py"]),
        ("tasks/rl/zoo/policy.rtsn", []),
        ("docs/results/rl-small/table1.csv", []),
    ],
)
def test_a_file_is_tested_by_the_file_of_its_name_or_by_its_room(tree, path, wanted):
    assert files_testing([path], tree) == sorted([*wanted, *([LEVELS] if wanted and path.endswith(".py") else [])])


def test_a_clone_of_another_branch_is_compared_with_the_main_branch_of_its_origin(tmp_path):
    def git(*words, folder=tmp_path / "one"):
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(folder), *named, *words], check=True, capture_output=True)

    (tmp_path / "one").mkdir()
    git("init", "-b", "main")
    git("commit", "--allow-empty", "-m", "first")
    git("checkout", "-b", "topic")
    (tmp_path / "one/new.py").touch()
    git("add", "new.py")
    git("commit", "-m", "second")
    git("clone", "--branch", "topic", str(tmp_path / "one"), "two", folder=tmp_path)
    (tmp_path / "two/unknown.py").touch()
    assert changed("main", tmp_path / "two") == ["new.py", "unknown.py"]
    with pytest.raises(SystemExit, match="no branch or commit 'nosuch' here; name one: make check BASE=NAME"):
        changed("nosuch", tmp_path / "two")
