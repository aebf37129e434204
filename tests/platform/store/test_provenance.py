"""Where a number is from."""

import calendar
import json
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil
import pytest

import retable.tasks
from retable.platform import commit as commits
from retable.platform.spec.task import find
from retable.platform.store import provenance
from retable.platform.store.run import RunFolder

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def fresh():
    provenance._git.cache_clear()
    yield
    provenance._git.cache_clear()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_the_commit_is_the_one_git_names_wherever_the_process_stands(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = provenance.collect()
    assert found["commit"] == commit.strip() and isinstance(found["dirty"], bool)


def test_a_checkout_with_changes_is_dirty_and_one_without_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(commits, "code_root", lambda: tmp_path / "retable")
    assert provenance._git() == {}  # no checkout at all
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    provenance._git.cache_clear()
    assert provenance._git()["dirty"] is False
    (tmp_path / "new").write_text("")
    provenance._git.cache_clear()
    assert provenance._git()["dirty"] is True and provenance._git()["uncommitted"] == ["?? new"]


def test_a_provenance_names_the_files_that_were_changed(monkeypatch, tmp_path):
    """`dirty` alone: nobody could see what a run's code differed in."""
    monkeypatch.setattr(commits, "code_root", lambda: tmp_path / "retable")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path)]
    (tmp_path / "retable").mkdir()
    (tmp_path / "retable" / "a b.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    assert "uncommitted" not in provenance._git()
    (tmp_path / "retable" / "a b.py").write_text("2")
    (tmp_path / "new").mkdir()
    for number in range(40):
        (tmp_path / "new" / f"{number:02d}").write_text("")
    provenance._git.cache_clear()
    files = [f"?? new/{number:02d}" for number in range(commits.NAMED - 1)]
    assert provenance._git()["uncommitted"] == [' M "retable/a b.py"', *files, f"and {41 - commits.NAMED} more"]


def test_a_task_of_another_repository_names_its_commit_too(monkeypatch, tmp_path):
    task = tmp_path / "papers" / "mine"
    task.mkdir(parents=True)
    monkeypatch.setattr("retable.tasks.__path__", [*retable.tasks.__path__, str(tmp_path / "papers")])
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path)]
    assert "own" not in provenance.code_ran("mine")  # no repository at all
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "elsewhere.txt").write_text("what lies outside of the task's folder is no change of it")
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    provenance._own.cache_clear()
    made = provenance.code_ran("mine")
    assert made["own"] == {"name": "mine", "commit": commit, "dirty": False}
    assert provenance.name_of({"commit": "f" * 40, **made}).endswith(f"; mine: commit {commit[:7]}")
    (task / "__init__.py").write_text("")
    provenance._own.cache_clear()
    assert provenance.code_ran("mine")["own"]["dirty"] is True
    assert "own" not in provenance.code_ran("rl")
    (tmp_path / ".gitignore").write_text("papers/")
    provenance._own.cache_clear()
    assert "own" not in provenance.code_ran("mine")  # as in a home whose dotfiles are under git


def test_a_machine_without_git_has_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    found = provenance.collect()
    assert "commit" not in found and found["versions"]


def test_versions_are_those_of_what_is_installed():
    found = provenance.versions()
    assert found["python"] == platform.python_version()
    for package in ("ray", "torch", "numpy"):
        assert found[package] == metadata.version(package)
    assert "none" not in [version.lower() for version in found.values()]


def test_the_device_is_this_machines_processor():
    name, cores = provenance.device_name(), len(psutil.Process().cpu_affinity())
    assert name.endswith(f", {cores} cores") and len(name) > len(f", {cores} cores")


def test_the_device_has_the_cores_that_this_process_may_use():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from retable.platform.store import provenance; print(provenance.processor_name())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.endswith(", 1 cores\n")


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/usr/bin/retable", "retable"),
        ("/x/platform/cli/__main__.py", "retable"),
        ("/x/benchmarks/__main__.py", "__main__.py"),
    ],
)
def test_what_is_collected_is_json_with_the_command_and_the_time(monkeypatch, program, name):
    monkeypatch.setattr("sys.argv", [program, "reproduce", "line"])
    before = int(time.time())
    found = json.loads(json.dumps(provenance.collect()))
    assert found["command"] == f"{name} reproduce line"
    started = time.strptime(found["started"], "%Y-%m-%dT%H:%M:%SZ")
    assert before <= calendar.timegm(started) <= time.time()


def test_a_command_is_kept_without_its_secrets(monkeypatch, storage):
    """What a run keeps of `retable train --storage s3://KEY:SECRET@bucket ...`."""
    words = ["--storage", "s3://AKIAKEY:SEC/RET+=@bucket/x?region=eu", "--api-key", "SEC RET", "--hf-token=SECRET"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/retable", "train", "line", *words, "--set", "seed=3"])
    task = find("line")
    folder = RunFolder.of(storage, task, task.config())
    folder.begin(task.config(), task.version, provenance.collect())
    kept = folder.folder.read("provenance.json").decode()
    hidden = "retable train line --storage s3://***@bucket/x?region=eu --api-key *** --hf-token=*** --set seed=3"
    assert json.loads(kept)["command"] == hidden
    assert not any(word in kept for word in ("SEC", "RET", "AKIAKEY"))


def test_a_checkout_that_git_cannot_read_has_the_commit_that_was_sent(monkeypatch, tmp_path):
    """Another user's folder in a container, or a worktree that was copied elsewhere."""
    (tmp_path / "retable").mkdir()
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    monkeypatch.setenv(commits.VARIABLE, "a" * 40)
    assert commits.current(tmp_path / "retable") == {"commit": "a" * 40, "dirty": False}
