"""`retable gc`: what nothing names goes, on request; all else stays."""

import json
import os
import sys
from pathlib import Path

import pytest

from retable.platform.cli import app
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.plan.gc import find_unreferenced, remove
from retable.platform.plan.plan import compile_plan
from retable.platform.spec import task as tasks
from retable.platform.spec.task import find
from retable.platform.store import lease
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from tests.platform.made_runs import aged, attempt, begun, finished


@pytest.fixture(autouse=True)
def only_line(monkeypatch):
    """The other tasks take seconds to import."""
    monkeypatch.setattr(tasks, "names", lambda: ["line"])


@pytest.fixture
def filled(storage):
    """All that tables of `line` name, and one run of nobody, all of yesterday."""
    task = find("line")
    for name, table in task.tables().items():
        plan = compile_plan({f"line/{name}": (task, table)}, storage)
        for training in plan.trainings.values():
            training.folder.begin(training.config, 1, {})
            training.folder.folder.write_json("result.json", {"data": "d", "metrics": {}, "weights": {}})
        for combining in plan.combinings:
            storage.write_json(combining.path, {})
    storage.write_json("data/line/points/dataset.json", {"digest": "d"})
    storage.write("weights/abc.safetensors", b"x")
    finished(storage, rate=0.7)
    aged(storage.root, 86400)
    return storage


def digits(rate, **more):
    task = find("line")
    return RunFolder.of(None, task, override(task.config(), {"rate": rate, **more})).path


def paths(storage, older=0.0):
    return {each.path for each in find_unreferenced(storage, older)[0]}


def test_only_what_no_table_names_is_found(filled):
    assert paths(filled) == {digits(0.7)}
    (each,), _ = find_unreferenced(filled)
    assert each.size == sum(p.stat().st_size for p in Path(filled.root, digits(0.7)).rglob("*") if p.is_file())


def test_combinations_and_what_ray_left_are_found(filled):
    filled.write_json("combinations/line/feed/scores.json", {})
    filled.write("measurements/line/seconds-0000-CPU.json", "{}")
    filled.write(".ray/abc/trial/state", "x")
    aged(filled.root, 86400)
    more = {"combinations/line/feed", "measurements/line/seconds-0000-CPU.json", ".ray/abc"}
    assert paths(filled) == {digits(0.7), *more}


def test_what_is_trained_or_young_stays_and_so_does_what_it_starts_from(filled):
    child = begun(filled, rate=0.7, init="parent", **{"init.overrides": (("rate", 0.7),)})
    aged(filled.root, 86400)
    filled.write(".ray/abc/x", "x")
    aged(Path(filled.root) / ".ray", 86400)
    attempt(child, age=5)
    assert paths(filled) == set(), "its parent, and Ray's state of whoever trains it, stay"
    attempt(child, age=7200, state="released")
    aged(child.folder.root, 7200)
    assert paths(filled) == {child.path, digits(0.7), ".ray/abc"}
    (Path(child.folder.root) / "config.json").touch()
    assert paths(filled) == {digits(0.7), ".ray/abc"}


def test_what_has_changed_within_some_days_stays(filled):
    assert paths(filled, 0.5) == {digits(0.7)} and paths(filled, 2) == set()


def test_runs_of_sweeps_and_of_tables_with_changes_stay(filled):
    filled.write_json("sweeps/mine.json", [{"overrides": {}, "fingerprint": digits(0.7).split("/")[-1]}])
    assert paths(filled) == set()
    filled.remove("sweeps/mine.json")
    finished(filled, rate=0.1, epochs=2)
    aged(filled.root, 86400)
    assert digits(0.1, epochs=2) in paths(filled)
    filled.write_json("tables/line-table1.json", {"table": "line/table1", "scale": "smoke", "set": {"epochs": 2}})
    assert digits(0.1, epochs=2) not in paths(filled)


@pytest.mark.parametrize(("file", "data"), [("sweeps/a.json", "{"), ("sweeps/a.json", "[3]"), ("tables/a.json", "[]")])
def test_nothing_is_found_while_a_file_that_names_runs_cannot_be_read(filled, file, data):
    filled.write(file, data)
    with pytest.raises(UserError, match=r"a\.json"):
        find_unreferenced(filled)


@pytest.mark.parametrize(
    ("place", "error"), [("plan.gc.compile_plan", UserError("epoch 999")), ("spec.task.table_at", OverflowError("inf"))]
)
def test_a_request_that_cannot_be_planned_is_named_with_the_remedy(filled, monkeypatch, place, error):
    """Which runs it stands for is not known: it may be of an older version."""

    def refusing(*arguments):
        if {"rate": 0.7} in arguments:
            raise error
        return real(*arguments)

    real = {"compile_plan": compile_plan, "table_at": tasks.table_at}[place.rpartition(".")[2]]
    monkeypatch.setattr(f"retable.platform.{place}", refusing)
    filled.write_json("tables/old.json", {"table": "line/table1", "scale": "smoke", "set": {"rate": 0.7}})
    with pytest.raises(UserError, match=str(error)) as refused:
        find_unreferenced(filled)
    assert str(refused.value).startswith(f"{filled}/tables/old.json: ") and "; remove the file" in str(refused.value)


def test_nothing_is_listed_of_a_storage_that_reports_no_times():
    storage = Storage.open(f"memory://{os.urandom(8).hex()}")
    finished(storage, rate=0.7)
    storage.write("served/line/abc", "a model")
    storage.write("data/.writing-1-a", "half")
    for older, count in ((0.0, 2), (30.0, 3)):
        found, notes = find_unreferenced(storage, older)
        assert not found and notes == [
            f"left alone: {count} unreferenced items, as {storage} reports no times; remove them by hand"
        ]


@pytest.mark.parametrize("state", ["running", "released"])
def test_a_run_that_was_resumed_since_it_was_listed_stays(filled, capsys, state):
    other = finished(filled, rate=0.6)
    aged(filled.root, 86400)
    found, _ = find_unreferenced(filled)
    assert {each.path for each in found} == {digits(0.6), digits(0.7)}
    attempt(other, state=state)
    remove(filled, found, lambda done, total: None)
    assert other.folder.exists("result.json") and not filled.exists(digits(0.7))
    assert f"left alone: {other.path}, which another command has resumed" in " ".join(capsys.readouterr().err.split())


def test_nobody_resumes_a_run_while_it_is_removed(filled, monkeypatch):
    """Also one whose machine went without releasing its lease."""
    run = RunFolder(filled, *digits(0.7).split("/")[1:])
    attempt(run, age=7200)
    aged(run.folder.root, 7200)
    found, _ = find_unreferenced(filled, 0.01)
    (Path(run.folder.root) / "result.json").unlink()
    removed = Storage.remove

    def resuming(storage, path):
        if path == run.path:
            with pytest.raises(lease.LeaseLost):
                lease.acquire(run, "train", 0, dead=1)
        removed(storage, path)

    monkeypatch.setattr(Storage, "remove", resuming)
    remove(filled, found, lambda done, total: None)
    assert not run.folder.exists()


def test_half_written_files_of_killed_commands_are_found_wherever_they_lie(filled):
    places = [f"{digits(0.1)}/weights/.writing-1-a.safetensors", "data/line/.writing-2.h5", ".writing-3-writable.txt"]
    for place in places:
        filled.write(place, b"1234")
    aged(filled.root, 86400)
    filled.write("data/line/.writing-4.h5", b"at work")
    found = {each.path: each.size for each in find_unreferenced(filled)[0]}
    assert found == {**dict.fromkeys(places, 4), digits(0.7): found[digits(0.7)]}
    remove(filled, find_unreferenced(filled)[0], lambda done, total: None)
    assert [path.name for path in Path(filled.root).rglob(".writing-*")] == [".writing-4.h5"]
    assert filled.exists(f"{digits(0.1)}/result.json") and filled.exists("data/line/points/dataset.json")


def test_tasks_whose_code_does_not_load_and_strange_folders_are_left_alone(filled, monkeypatch):
    Path(filled.root, "runs/line/not-a-run").mkdir()
    filled.write("runs/other/0123456789abcdef/result.json", "{}")
    aged(filled.root, 86400)
    found, notes = find_unreferenced(filled)
    assert {each.path for each in found} == {digits(0.7)} and "not-a-run" in notes[0]

    def absent(name):
        raise ImportError("no h5py")

    monkeypatch.setattr(tasks, "find", absent)
    found, notes = find_unreferenced(filled)
    assert not found and any("no h5py" in note for note in notes)


def test_the_command_lists_and_removes_on_request_only(filled, monkeypatch, capsys):
    def gc(*words):
        monkeypatch.setattr(sys, "argv", ["retable", "gc", "--storage", filled.root, *words])
        with pytest.raises(SystemExit):
            app.main()
        return capsys.readouterr().out

    before = {path for path in Path(filled.root).rglob("*") if path.is_file()}
    assert digits(0.7) in gc() and "--delete removes" in gc()
    assert json.loads(gc("--json"))["found"][0]["path"] == digits(0.7)
    assert {path for path in Path(filled.root).rglob("*") if path.is_file()} == before
    assert "removed" in gc("--delete")
    after = {path for path in Path(filled.root).rglob("*") if path.is_file()}
    assert before - after == {path for path in before if digits(0.7) in str(path)} and "0 unreferenced items" in gc()
