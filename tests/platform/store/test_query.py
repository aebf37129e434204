"""`retable runs`, `show` and `diff`: what a storage holds, whatever state it is in."""

import errno
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from retable.platform.cli import app
from retable.platform.store import provenance
from retable.platform.store.query import Run, State, list_runs, select
from retable.platform.store.storage import Storage
from tests.platform.made_runs import aged, attempt, begun, finished


@pytest.fixture
def retable(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["retable", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "160")
        try:
            app.main()
        except SystemExit as ended:
            code = ended.code or 0
        said = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err)

    return call


def by_digits(storage):
    return {run.run: run for run in list_runs(storage)}


def test_each_state_is_told_with_its_cause(storage):
    done = finished(storage, entries={"attempts": 3})
    lost = finished(storage, seed=1, entries={"diverged": "loss is nan"})
    running, silent, stopped, failed = (begun(storage, seed=seed) for seed in (2, 3, 4, 5))
    attempt(running, age=5, number=2)
    attempt(silent, age=600)
    attempt(stopped, age=600, state="released")
    attempt(failed, age=600)
    failed.folder.write_json("failure.json", {"why": "ValueError: a\nb", "time": ""})
    found = by_digits(storage)
    assert found[done.fingerprint].state == "finished" and found[done.fingerprint].attempts == 3
    assert (found[lost.fingerprint].state, found[lost.fingerprint].why) == ("diverged", "loss is nan")
    assert found[running.fingerprint].state == "running" and found[running.fingerprint].attempts == 2
    assert found[running.fingerprint].host == "other"
    assert found[silent.fingerprint].state == "stale" and 590 < found[silent.fingerprint].silent < 700
    assert found[stopped.fingerprint].state == "incomplete" and found[stopped.fingerprint].epoch == 2
    assert (found[failed.fingerprint].state, found[failed.fingerprint].why) == ("failed", "ValueError: a b")


def test_a_storage_without_times_tells_states_by_the_records_and_no_ages():
    storage = Storage.open(f"memory://{os.urandom(8).hex()}")
    done, running, stale, former = finished(storage), *(begun(storage, seed=seed) for seed in (1, 2, 3))
    for folder, age in ((running, 5), (stale, 600)):
        beaten = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))
        folder.folder.write_json("attempts/0001/abc.json", {"state": "running", "beaten": beaten})
    former.folder.write_json("attempts/0001/abc.json", {"state": "running"})
    found = by_digits(storage)
    assert [found[each.fingerprint].state for each in (done, running, stale, former)] == [
        *("finished", "running", "stale", "running")
    ]
    assert 590 < found[stale.fingerprint].silent < 700 and found[former.fingerprint].silent == 0
    assert {run.changed for run in found.values()} == {0} and found[done.fingerprint].config["seed"] == 0


def test_sizes_and_ages_are_those_of_the_files(storage):
    folder = finished(storage)
    aged(folder.folder.root, 3600)
    (run,) = list_runs(storage)
    assert run.size == sum(path.stat().st_size for path in Path(folder.folder.root).rglob("*") if path.is_file())
    assert run.changed == pytest.approx((Path(folder.folder.root) / "result.json").stat().st_mtime)


def test_runs_are_chosen_by_fields_of_config_and_listing_and_sorted(storage):
    for seed in range(3):
        finished(storage, seed=seed, rate=0.1 if seed else 0.2)
    runs = list_runs(storage)
    assert [run.config["seed"] for run in select(runs, {"rate": 0.1}, (), "seed")] == [1, 2]
    assert [run.config["seed"] for run in select(runs, {"scale": "smoke"}, ["finished"], "-seed")] == [2, 1, 0]
    assert select(runs, {"init": "parent"}, (), "age") == [] and select(runs, {}, ["failed"], "age") == []
    ages = [run.changed for run in select(runs, {}, (), "age")]
    assert ages == sorted(ages, reverse=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("runs", "--where", "rat=1"), "--where: no run here has a field 'rat'; did you mean 'rate'?"),
        (("runs", "--where", "rate"), "--where rate: write it as path=value, e.g. --where seed=3"),
        (("runs", "--where", "age=1"), "--where: no run here has a field 'age'"),
        (("runs", "--sort", "nothing"), "--sort: no run here has a field 'nothing'"),
        (("runs", "--state", "finishd"), "--state finishd: no such state; did you mean 'finished'?"),
        (("runs", "lin"), "no runs of lin; did you mean 'line'?"),
        (("show", "zz"), "run 'zz': name it by its first digits, 0-9 and a-f, by TABLE/ROW, or say latest"),
        (("show", "0" * 16), "no run begins with"),
        (("diff", "latest", "../x"), "has no table ../x; `retable reproduce` fills it"),
    ],
)
def test_mistakes_are_one_line(retable, storage, words, said):
    finished(storage)
    found = retable(*words, "--storage", storage.root)
    assert found.returncode == 2 and said in found.stderr and found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "data"),
    [
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", b'{"config": 3}'),
        ("config.json", None),
        ("result.json", b"\xff\xfe"),
        ("result.json", b'{"data": 1}'),
        ("result.json", b'{"data": "d", "metrics": {"a": "x"}, "weights": {}}'),
        ("provenance.json", b"[" * 100000),
        ("result.json", b'{"data": "d", "metrics": {"epoch": []}, "weights": [], "seconds": "x"}'),
    ],
)
def test_a_damaged_run_is_a_line_and_the_others_are_listed(retable, storage, file, data):
    good, bad = finished(storage), finished(storage, seed=1)
    path = Path(bad.folder.root) / file
    path.unlink() if data is None else path.write_bytes(data)
    found = by_digits(storage)
    assert found[good.fingerprint].state == "finished" and found[bad.fingerprint].state == "corrupt"
    assert found[bad.fingerprint].why and "\n" not in found[bad.fingerprint].why
    for words in (("runs",), ("show", bad.fingerprint), ("diff", bad.fingerprint, good.fingerprint), ("status",)):
        said = retable(*words, "--storage", storage.root)
        assert said.returncode == 0 and "Traceback" not in said.stdout + said.stderr
        assert not {"\x1b", "\x07"} & set(said.stdout)


@pytest.mark.parametrize(
    ("file", "entries", "why"),
    [
        ("result.json", {"seconds": None}, "seconds"),
        ("result.json", {"seconds": float("nan")}, "seconds"),
        ("result.json", {"attempts": "x"}, "attempts"),
        ("result.json", {"used": {"peak_memory": "x"}}, "peak_memory"),
        ("provenance.json", {"versions": "x"}, "versions"),
        ("provenance.json", {"data": True}, "data"),
        ("scores.json", {"metrics": True}, "metrics"),
        ("scores.json", {"view": "x"}, "view"),
        ("config.json", {"config": {"epochs": "x"}}, "epochs"),
    ],
)
def test_entries_of_the_wrong_type_make_a_run_corrupt_and_are_named(retable, storage, file, entries, why):
    good, bad = finished(storage), finished(storage, seed=1)
    (path,) = Path(bad.folder.root).rglob(file)
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    for words in (("runs",), ("diff", bad.fingerprint, good.fingerprint), ("status",)):
        assert retable(*words, "--storage", storage.root).returncode == 0
    said = retable("show", bad.fingerprint, "--storage", storage.root)
    first = said.stdout.splitlines()[0]
    assert said.returncode == 0 and "corrupt" in first and why in first


@pytest.mark.parametrize("epochs", ["x", float("nan"), [3]])
def test_a_training_whose_number_of_epochs_is_none_is_corrupt(retable, storage, epochs):
    running = begun(storage)
    attempt(running, age=5)
    config = running.folder.read_json("config.json")
    running.folder.write_json("config.json", config | {"config": config["config"] | {"epochs": epochs}})
    assert "corrupt" in retable("status", "--storage", storage.root).stdout


def test_the_time_left_of_a_log_whose_times_are_no_finite_ones_is_unknown(retable, storage):
    running = begun(storage, at=float("inf"))
    attempt(running, age=5)
    (active,) = json.loads(retable("status", "--storage", storage.root, "--json").stdout)["storage"]["active"]
    assert active["seconds_left"] is None


def test_a_run_without_permission_is_a_line_and_the_others_are_listed(retable, storage, monkeypatch):
    good, closed = finished(storage), finished(storage, seed=1)
    scandir = os.scandir

    def refusing(path):  # root, who may run these tests, may read all
        if closed.fingerprint in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = by_digits(storage)
    assert found[good.fingerprint].state == "finished" and found[closed.fingerprint].state == "corrupt"
    assert found[closed.fingerprint].why.startswith(f"{closed.folder}: no permission; ")
    for words in (("runs",), ("status",)):
        said = retable(*words, "--storage", storage.root)
        assert said.returncode == 0 and "finished" in said.stdout and "corrupt" in said.stdout


def test_hostile_names_do_not_move_the_cursor(retable, storage):
    finished(storage)
    for name in ("\x1b[2Jgone", "[red]x[", "a\nb", "..", "x" * 200, "\udcff"):
        Path(storage.root, "runs/line", name + "z").mkdir()
    Path(storage.root, "runs", "\x1b]0;title\x07").mkdir()
    Path(storage.root, "runs", "file").write_text("x")
    said = retable("runs", "--storage", storage.root)
    assert said.returncode == 0 and "1 of" not in said.stderr
    assert "\x1b" not in said.stdout and "\x07" not in said.stdout and "finished" in said.stdout
    assert json.loads(retable("runs", "--storage", storage.root, "--json").stdout)


def test_show_tells_all_of_a_run_and_diff_what_two_differ_in(retable, storage):
    one, other = finished(storage), finished(storage, seed=1, metrics={"loss": 0.75})
    attempt(other)
    other.folder.write("attempts/0001/note.txt", "a checkpoint\nwas damaged")
    shown = json.loads(retable("show", other.fingerprint[:10], "--storage", storage.root, "--json").stdout)
    assert shown["config"]["seed"] == 1 and shown["metrics"]["loss"] == 0.75 and len(shown["attempts"]) == 1
    assert shown["notes"] == ["a checkpoint was damaged"]
    assert [view["metrics"] for view in shown["views"].values()] == [{"rmse": 0.25}]
    assert set(shown["files"]) == {
        str(path.relative_to(other.folder.root)) for path in Path(other.folder.root).rglob("*") if path.is_file()
    }
    words = ("diff", one.fingerprint, other.fingerprint, "--storage", storage.root)
    found = json.loads(retable(*words, "--json").stdout)["differences"]
    assert found["config"] == {"seed": [0, 1]} and found["metrics"]["loss"] == [0.5, 0.75] and "versions" not in found
    assert "+0.25" in retable(*words).stdout
    assert "rmse" in retable("show", "latest", "--storage", storage.root).stdout


def test_show_and_diff_say_which_parts_of_the_code_differ(retable, storage):
    one, other, old = finished(storage), finished(storage, seed=1), finished(storage, seed=2)
    made = one.folder.read_json("provenance.json")
    now = provenance.code_of("line")
    assert now.keys() == {"platform", "tasks/line"}
    one.folder.write_json("provenance.json", made | {"code": now, "dirty": True})
    changed = {name: value for name, value in made.items() if name != "commit"} | {"code": now | {"tasks/line": "0"}}
    other.folder.write_json("provenance.json", changed)
    said = [
        (one, [], "c" * 12 + " and changes", "the same as now"),
        (other, ["tasks/line"], "not known; code ", "tasks/line differs from the code here"),
        (old, None, "c" * 12, "not recorded"),
    ]
    for run, differs, commit, words in said:
        shown = retable("show", run.fingerprint, "--storage", storage.root).stdout
        assert commit in shown and re.search(rf"^\s*code\s+{words}\s*$", shown, re.MULTILINE), shown
        plain = json.loads(retable("show", run.fingerprint, "--storage", storage.root, "--json").stdout)
        assert plain["code"] == {"differs": differs, "changed": []}
    words = ("diff", one.fingerprint, other.fingerprint, "--storage", storage.root)
    assert json.loads(retable(*words, "--json").stdout)["differences"]["code"] == {
        "tasks/line": [now["tasks/line"], "0"]
    }
    assert re.search(r"^code\s*$", retable(*words).stdout, re.MULTILINE)
    attempt(one, number=1, code=now)
    attempt(one, number=2, code=now | {"platform": "0"})
    said = retable("show", one.fingerprint, "--storage", storage.root).stdout
    assert "the same as now; an attempt went on with another platform" in said


def test_secrets_of_a_command_are_not_shown(retable, storage):
    folder = begun(storage)
    made = folder.folder.read_json("provenance.json")
    folder.folder.write_json("provenance.json", made | {"command": "retable train --storage s3://KEY:SECRET@bucket"})
    for words in (("show", "latest"), ("show", "latest", "--json")):
        said = retable(*words, "--storage", storage.root)
        assert said.returncode == 0 and "retable train --storage" in said.stdout
        assert "SECRET" not in said.stdout + said.stderr


def test_status_shows_progress_and_causes(retable, storage):
    finished(storage)
    running, failed = begun(storage, seed=1), begun(storage, seed=2)
    attempt(running, age=5)
    failed.folder.write_json("failure.json", {"why": "the disk is full", "time": ""})
    found = json.loads(retable("status", "--storage", storage.root, "--json").stdout)["storage"]
    assert found["states"] == {"finished": 1, "running": 1, "failed": 1}
    (first, second) = found["active"]
    assert first["run"] == running.fingerprint and first["seconds_left"] == 10.0, "one epoch of three, 10 s each"
    assert second["why"] == "the disk is full"
    said = retable("status", "--storage", storage.root).stdout
    assert "10 s left" in said and "the disk is full" in said


def test_listing_imports_no_task_and_no_ray(storage):
    finished(storage)
    code = "import sys; sys.argv = ['retable', 'runs', '--storage', sys.argv[1]]\n"
    code += (
        "from retable.platform.cli import app as cli\n"
        "try: cli.main()\nexcept SystemExit: print(sorted({'torch', 'ray', 'retable.tasks.line'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code, storage.root], capture_output=True, text=True, timeout=300)
    assert found.stdout.endswith("[]\n"), found.stdout + found.stderr


def test_an_empty_storage_says_so(retable, storage):
    said = retable("runs", "--storage", storage.root)
    assert said.returncode == 2 and "no runs of any task" in said.stderr
    assert retable("status", "--storage", storage.root).returncode == 2


def test_former_words_for_states_are_accepted():
    runs = [Run("a", "line", state) for state in get_args(State)]
    for former, state in (("silent", "stale"), ("stopped", "incomplete"), ("damaged", "corrupt")):
        assert [run.state for run in select(runs, {}, [former], "age")] == [state]


def test_the_latest_of_a_storage_whose_runs_were_removed_is_no_run(storage, retable):
    storage.write("runs/line/0123456789abcdef/note.txt", "")
    storage.remove("runs/line/0123456789abcdef")
    Path(storage.root, "runs/line").mkdir(parents=True, exist_ok=True)
    said = retable("show", "latest", "--storage", storage.root)
    assert said.returncode == 2 and "there is no run yet" in said.stderr
