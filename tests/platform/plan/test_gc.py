"""`retable gc`: what nothing names goes, on request; all else stays."""

import json
import sys
from pathlib import Path

import pytest

from retable.platform.cli import app
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.plan.gc import find_unreferenced
from retable.platform.plan.plan import compile_plan
from retable.platform.spec import task as tasks
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
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
