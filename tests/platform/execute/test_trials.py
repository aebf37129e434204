"""Ray runs: the same numbers as the bare loop, nothing trained twice, and every kind of interruption survived."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import retable
from retable.platform import api
from retable.platform.cli import app, runs
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute import trials as launch
from retable.platform.execute.session import ray_cluster
from retable.platform.spec.resources import Resources
from retable.platform.spec.task import find
from retable.platform.store import lease
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from tests.platform.halves import fit, fit_together
from tests.platform.trials import trial_processes


@pytest.fixture(scope="module")
def cluster(request):
    """Start Ray, with the dashboard where slow tests, which alone have Train groups, are to run; yield its CPUs."""
    import ray

    slow = any(item.get_closest_marker("slow") for item in request.session.items if item.path == request.path)
    with ray_cluster(nested=slow):
        yield int(ray.cluster_resources()["CPU"])


def plainly(storage, workers=1, **changes):
    """Train the toy with the bare loop, in this process, or with another one: the oracle of every run on Ray."""
    task = find("line")
    config = override(task.config(), changes)
    folder = RunFolder.of(storage, task, config)
    if workers == 2:
        fit_together(storage, config, folder, task)
    else:
        fit(storage, config, folder, (), task)
    return folder


def numbers(result):
    return {name: value for name, value in result["metrics"].items() if name != "seconds"}


def test_a_child_of_a_run_that_diverged_is_refused_with_the_remedy(storage):
    parent = plainly(storage, rate=0.01)
    parent.folder.write_json("result.json", parent.result() | {"diverged": "loss is nan at step 3"})
    with pytest.raises(UserError, match="the run it starts from diverged; try that one again: --retry-diverged"):
        api.train("line", {"init": "parent", "init.overrides": [["rate", 0.01]]}, storage=storage.root)


def claimed(storage, work, *wanted):
    """Acquire the leases of runs of the toy: (config, epochs that are kept)."""
    job = launch.Job("line", tuple(config for config, _ in wanted), tuple(keep for _, keep in wanted))
    return launch.claim_members(job, launch.Launch(storage, Resources(), {}), work)


def test_what_a_run_kept_is_kept_when_it_is_trained_again_for_another_epoch(storage):
    """Two rows, or two commands, that read other epochs of a run took the weights from each other for ever."""
    task = find("line")
    folder = RunFolder.of(storage, task, task.config())
    fit(storage, task.config(), folder, (1,), task)
    members, _ = claimed(storage, "a", (task.config(), (2, 3)))
    assert members.job.keep == ((1, 2, 3),) and folder.result() is None


def test_a_stack_that_died_too_often_says_so_of_its_own_runs_alone_and_lets_go_of_them(storage):
    task = find("line")
    wanted = [(override(task.config(), {"seed": seed}), ()) for seed in range(3)]
    task.dataset.prepare(task.config(), storage)
    ours, theirs, dead = (RunFolder.of(storage, task, config) for config, _ in wanted)
    lease.acquire(theirs, "another command", 0)
    for _ in range(lease.DEATHS):
        lease.acquire(dead, "a", 0)
    with pytest.raises(lease.Died):
        claimed(storage, "a", *wanted)
    assert [folder.folder.exists("failure.json") for folder in (ours, theirs, dead)] == [True, False, True]
    assert lease.read(ours, 1)["state"] == "released"


def test_a_trial_that_lost_several_runs_names_them_all(storage):
    task = find("line")
    wanted = [(override(task.config(), {"seed": seed}), ()) for seed in range(3)]
    task.dataset.prepare(task.config(), storage)
    members, _ = claimed(storage, "a", *wanted)
    members.check_owner()
    for folder in members.folders[1:]:
        lease.acquire(folder, "b", 0, dead=1)
    with pytest.raises(lease.LeaseLost) as lost:
        members.check_owner()
    assert lost.value.folders == members.folders[1:]


def test_a_run_is_trained_anew_where_the_data_that_its_parent_saw_were_lost_and_others_made(storage, monkeypatch):
    parent = plainly(storage, rate=0.01)
    storage.remove("data")
    parent.folder.write_json("result.json", parent.result() | {"data": "what was lost"})
    seen = []
    monkeypatch.setattr("retable.platform.execute.run.train_all", lambda work, *of: seen.append(work) or {"x": "no"})
    monkeypatch.setattr("retable.platform.execute.run.ray_cluster", lambda **of: nullcontext())
    monkeypatch.setattr("retable.platform.execute.run.possible_resources", dict)
    monkeypatch.setattr("retable.platform.execute.run.check_nodes", lambda storage: None)
    with pytest.raises(UserError, match="no"):
        api.train("line", {"init": "parent", "init.overrides": [["rate", 0.01]]}, storage=storage.root)
    assert seen[0].trainings[parent.path].status == "data changed"


def test_a_trial_tells_no_more_than_one_epoch_a_second_and_none_of_its_first(monkeypatch):
    told, now = [], [100.0]
    monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])
    report = launch.epochs_shown(told.append)
    for epoch, after in enumerate([0.1, 0.5, 0.5, 0.5, 0.6, 5.0], 1):
        now[0] += after
        report({"epoch": epoch, "loss": 0.5})
    assert told == [{"epoch": 3}, {"epoch": 5}, {"epoch": 6}]


def test_a_table_is_filled_and_the_second_call_trains_nothing(cluster, tmp_path, capfd):
    where = str(tmp_path / "ray")
    Path(where).mkdir()
    Path(where, ".ray").write_text("no folder")  # whatever Tune wrote on the storage would fail
    request = {"storage": where, "set": {"seed": 1}}
    one_process = Resources(cpus=cluster)  # for all trials, one after the other: each that starts takes seconds
    filled = retable.reproduce("line/table1", **request, resources=one_process)["line/table1"]
    assert retable.plan("line/table1", **request).nothing_to_do
    assert [len(row.replicates) for row in filled.rows] == [1, 1, 1, 1, 1, 0] and filled.claims[0].status == "holds"
    oracle = plainly(Storage.open(tmp_path / "plain"), seed=1)
    run = retable.load(oracle.fingerprint, storage=where)
    assert numbers(run.result) == numbers(oracle.result())
    assert run.result["weights"] == oracle.result()["weights"] | run.result["weights"]
    before = {path: path.stat().st_mtime_ns for path in Path(where, "runs").rglob("*") if path.is_file()}
    assert "Last result" not in capfd.readouterr().out
    retable.reproduce("line/table1", **request)
    assert {path: path.stat().st_mtime_ns for path in Path(where, "runs").rglob("*") if path.is_file()} == before
    assert "to do" not in capfd.readouterr().out
    page, details = (Path(where, "report", name).read_text() for name in ("index.html", "details.js"))
    assert "A fast rate fits better." in page and run.fingerprint in details


def test_after_a_deadline_nothing_begins_and_the_report_says_what_is_missing(cluster, tmp_path, capfd):
    where = str(tmp_path)
    retable.reproduce("line/table1", storage=where, resources=Resources(deadline=1e-9))
    said = capfd.readouterr().out
    assert "deadline: 6 trainings not begun; the same command goes on with them" in said
    assert not Path(where, "runs").exists() and len(retable.plan("line/table1", storage=where).missing) == 6
    assert "Not there yet: slow (0 of 2); fast (0 of 2)" in Path(where, "report/report.md").read_text()


@pytest.mark.slow
def test_without_training_a_table_is_filled_from_finished_runs_alone(cluster, tmp_path, capsys):
    where = str(tmp_path)
    fast = [retable.train("line", {"rate": 0.1, "seed": k}, storage=where, keep=[1]).fingerprint for k in (0, 1)]
    capsys.readouterr()
    command = ["reproduce", "line/table1", "--storage", where, "--no-train"]
    app.app(command, standalone_mode=False)
    said = capsys.readouterr().out
    assert "line/table1: left out, not trained: slow; fine-tuned" in said
    assert {path.name for path in Path(where, "runs/line").iterdir()} == set(fast)
    part = retable.reproduce("line/table1", storage=where, train=False)["line/table1"]
    rows = {row.label: len(row.replicates) for row in part.rows}
    assert rows["fast"] == 2 and rows["slow"] == rows["mean of both"] == 0
    whole = retable.reproduce("line/table1", storage=where)[
        "line/table1"
    ]  # what was left out is not taken for complete
    assert [len(row.replicates) for row in whole.rows] == [2, 2, 2, 2, 2, 0]
    with pytest.raises(UserError, match="leave one out"):
        app.app([*command, "--retry-diverged"], standalone_mode=False)


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come about in time")


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "victim"), [(1, "ImplicitFunc"), (2, "RayTrainWorker")])
def test_a_killed_process_goes_on_from_the_last_checkpoint(cluster, tmp_path, workers, victim):
    storage = Storage.open(tmp_path / "killed")
    changes = {"epochs": 6, "pause": 0.1}  # seconds enough to kill it in, also on a busy machine
    oracle = plainly(Storage.open(tmp_path / "plain"), workers, epochs=6, pause=0.0)
    folder = RunFolder.of(storage, find("line"), override(find("line").config(), changes))
    failures = []

    def call():
        try:
            api.train("line", changes, storage=storage.root, resources=Resources(workers=workers))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    wait_for(lambda: len(folder.history()) >= 2)
    trial_processes(victim)[0].kill()
    thread.join(300)
    assert not failures and not thread.is_alive()
    steps = [row["step"] for row in folder.history()]
    assert steps == [8, 16, 24, 32, 40, 48]
    assert numbers(folder.result()) == numbers(oracle.result())
    assert folder.result()["weights"] == oracle.result()["weights"]


DRIVER = """
import sys, retable
retable.train("line", {"epochs": 6, "pause": 0.1}, storage=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_driver_goes_on_where_it_stopped(tmp_path, signum):
    storage = Storage.open(tmp_path / "killed")
    config = override(find("line").config(), {"epochs": 6, "pause": 0.1})
    folder = RunFolder.of(storage, find("line"), config)
    with subprocess.Popen([sys.executable, "-c", DRIVER, storage.root], stderr=subprocess.DEVNULL) as driver:
        try:
            wait_for(lambda: folder.checkpoints())
        finally:
            driver.send_signal(signum)
    before = [row for row in folder.history() if row["step"] <= folder.checkpoints()[-1]]
    assert folder.result() is None and before
    subprocess.run([sys.executable, "-c", DRIVER, storage.root], check=True, timeout=300)
    oracle = plainly(Storage.open(tmp_path / "plain"), epochs=6)
    assert folder.result()["weights"] == oracle.result()["weights"]
    assert folder.history()[: len(before)] == before, "epochs that were done were trained again"


@pytest.mark.slow
def test_two_workers_equal_one_with_the_joined_batch(cluster, tmp_path):
    run = api.train("line", {"seed": 3}, storage=str(tmp_path / "two"), resources=Resources(workers=2))
    oracle = plainly(Storage.open(tmp_path / "one"), seed=3)
    slope = oracle.result()["metrics"]["slope"]
    # the jitter differs by rank, by design: 1e-3 of a gradient
    assert run.metrics["slope"] == pytest.approx(slope, abs=2e-2)
    together = plainly(Storage.open(tmp_path / "without Ray"), 2, seed=3)
    assert run.result["weights"] == together.result()["weights"] and run.metrics["step"] == 24


@pytest.mark.slow
def test_a_failing_run_is_one_line_and_leaves_the_rest_alone(cluster, tmp_path, capfd):
    where, task = str(tmp_path), find("line")
    folder = RunFolder.of(Storage.open(where), task, override(task.config(), {"rate": 0.001}))
    folder.save_checkpoint(8, {"weights": {}, "progress": {}, "sums": {}})
    folder.folder.write("checkpoint-00000008/state.pt", b"garbage")
    with pytest.raises(UserError, match=r"failed: 1 \(see above") as caught:
        retable.reproduce("line/figure1", storage=where)
    assert "\n" not in str(caught.value)
    failed = [line for line in capfd.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 1 and "state.pt is damaged" in failed[0] and "remove" in failed[0]
    folder.folder.remove("checkpoint-00000008")
    retable.reproduce("line/figure1", storage=where)
    assert retable.plan("line/figure1", storage=where).nothing_to_do


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_raises_in_a_step_leaves_its_whole_traceback(cluster, tmp_path, workers, capsys):
    """`outer` catches what `inner` raised: the line that is kept beside it names one of the two."""
    where = Storage.open(tmp_path)
    resources = Resources(workers=workers)
    with pytest.raises(UserError, match=r"ZeroDivisionError|RuntimeError"):
        retable.train("failing", storage=where.root, resources=resources)
    folder = RunFolder.of(where, find("failing"), find("failing").config())
    (number,) = (int(name) for name in folder.folder.list("attempts"))
    text = folder.folder.read("attempts/0001/traceback.txt").decode()
    for words in ("in step", "outer()", "in inner", "return 1 / 0", "ZeroDivisionError: division by zero"):
        assert text.count(words) == workers, text
    assert text.count("RuntimeError: cannot read s3://***@bucket/x") == workers and "SECRET" not in text
    assert [f"worker {rank}:" in text for rank in (0, 1)] == [workers == 2] * 2
    capsys.readouterr()
    runs.show_run(folder.fingerprint, storage=where.root)
    shown = capsys.readouterr().out
    assert f"{folder.folder}/attempts/0001/traceback.txt" in " ".join(shown.split())
    assert "    raise RuntimeError(" in shown and "RuntimeError: cannot read s3://***@bucket/x" in shown
    runs.show_run(folder.fingerprint, storage=where.root, as_json=True)
    assert json.loads(capsys.readouterr().out)["tracebacks"] == {f"attempts/{number:04d}/traceback.txt": text}


def test_a_mistake_of_the_users_leaves_a_line_and_no_traceback(storage):
    task = find("failing")
    attempt = lease.acquire(RunFolder.of(storage, task, task.config()), "work", 0)
    with pytest.raises(UserError), launch.failures_kept([attempt]):
        raise UserError("this cannot be trained; choose another")
    assert attempt.folder.folder.read_json("failure.json")["why"] == "this cannot be trained; choose another"
    assert not attempt.folder.folder.exists("attempts/0001/traceback.txt")


def test_a_storage_that_cannot_be_written_does_not_hide_what_went_wrong(storage, monkeypatch):
    task = find("failing")
    attempt = lease.acquire(RunFolder.of(storage, task, task.config()), "work", 0)

    def refused(*_):
        raise OSError("the storage is gone")

    monkeypatch.setattr(Storage, "write", refused)
    with pytest.raises(ZeroDivisionError), launch.failures_kept([attempt]):
        raise ZeroDivisionError


@pytest.mark.slow
def test_a_table_is_filled_on_a_bucket(cluster, tmp_path):
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys)
        client.create_bucket(Bucket="tables")
        where = f"s3://testing:testing@tables/results?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        retable.reproduce("line", storage=where)
        assert retable.plan("line", storage=where).nothing_to_do
        oracle = plainly(Storage.open(tmp_path), seed=1)
        assert numbers(retable.load(oracle.fingerprint, storage=where).result) == numbers(oracle.result())
        run = api.train("line", {"seed": 5}, storage=where, resources=Resources(workers=2))
        assert run.result["weights"] == plainly(Storage.open(tmp_path / "two"), 2, seed=5).result()["weights"]
    finally:
        server.stop()


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.slow
def test_pickles_that_others_put_where_ray_keeps_its_state_are_not_opened(cluster, tmp_path, monkeypatch):
    known, trap, where = uuid.UUID(int=1), str(tmp_path / "trapped"), tmp_path / "planted"
    # The name is random: here it is one that they could foresee.
    monkeypatch.setattr(launch, "uuid", SimpleNamespace(uuid4=lambda: known))
    names = ["tuner.pkl", "trainable.pkl", "search_gen_state.pkl", "searcher-state.pkl", "run_config.pkl", ".tmp.pkl"]
    names += ["search_gen_state-2026-01-01_00-00-00.json", "experiment_state-2026-01-01_00-00-00.json", "callback.pkl"]
    planted = [
        where / ".ray" / folder / name for folder in (known.hex[:12], f"{known.hex[:12]}/tune") for name in names
    ]
    for path in planted:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(Trap(trap)))
    run = retable.train("line", storage=str(where))
    assert numbers(run.result) == numbers(plainly(Storage.open(tmp_path / "plain")).result())
    assert not os.path.exists(trap)
    pickle.loads(pickle.dumps(Trap(trap)))
    assert os.path.exists(trap)  # the trap does work
