"""Notice to leave: a training that is told to end loses the step it is at, not half a minute."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from retable.platform.execute import preemption as notice
from retable.platform.spec.task import config_at, find
from retable.platform.store.lease import acquire, read
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import AGREE, CheckpointClock
from retable.platform.train.worker import Worker
from tests.platform.execute.test_faults import (
    TRAIN,
    driver,
    ends,
    none_left,
    outcome,
    record,
    run_of,
    undisturbed,
    wait_for,
)

assert none_left and record  # fixtures
EPOCH = 8
"""Steps of the toy."""


@pytest.fixture
def told(monkeypatch):
    """A process that has heard nothing yet."""
    fresh = notice.Notice()
    monkeypatch.setattr(notice, "NOTICE", fresh)
    return fresh


def test_a_checkpoint_is_due_once_notice_was_given_on_every_rank_alike():
    asked = threading.Event()
    for every in (0, 3):
        asked.clear()
        clock, alone = CheckpointClock(every), Worker(checkpoint_requested=asked.is_set)
        assert not clock.due(1, alone)
        asked.set()
        assert clock.due(1, alone)
        worker = SimpleNamespace(world=2, device="cpu", checkpoint_requested=asked.is_set, mean=lambda told: told / 2)
        assert not clock.due(1, worker) and clock.due(AGREE, worker), "the other rank has heard nothing"


def test_a_trial_without_a_lease_yet_keeps_no_other_from_being_told(storage, monkeypatch):
    begun, none = (RunFolder(storage, "line", name) for name in ("a" * 16, "b" * 16))
    lease, sent = acquire(begun, "work", 0), []

    def end(processes):
        sent.extend(processes)
        lease.write_state("released", -1)

    monkeypatch.setattr(notice, "_send_sigterm", end)
    notice.give_notice([none, begun])
    assert [pid for _, pid, _ in sent] == [os.getpid()]


@pytest.mark.parametrize("drained", ["before", "unanswered"])
def test_sigterm_after_a_drain_asks_for_a_checkpoint_of_its_own(told, monkeypatch, drained):
    ended = []
    monkeypatch.setattr(notice, "_end_process", lambda: ended.append(told.saved.is_set()))
    told.requested.set()  # by the drain
    if drained == "before":
        told.checkpoint_written()
    trial = type("Trial", (notice.SigtermMixin, type("Base", (), {"setup": lambda self, config: None})), {})()
    before = signal.getsignal(signal.SIGTERM)
    try:
        trial.setup({})
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    for thread in threading.enumerate():
        if thread.name == "leave":
            thread.join()
    assert ended == [False] and told.requested.is_set() and not told.saved.is_set()


def test_each_reason_to_leave_asks_once_when_it_begins(told, monkeypatch):
    monkeypatch.setattr(notice, "POLL_SECONDS", 0.01)
    reasons, asked = {"drain": True, "mark": False}, []
    with notice._polling(lambda: reasons["drain"], lambda: reasons["mark"]):
        assert told.requested.wait(30)
        told.checkpoint_written()
        asked.append(told.requested.wait(0.2))
        reasons["mark"] = True
        asked.append(told.requested.wait(30))
    assert asked == [False, True]


def test_one_checkpoint_answers_one_notice(told):
    told.checkpoint_written()
    assert not told.saved.is_set()
    told.requested.set()
    told.checkpoint_written()
    assert told.saved.is_set() and not told.requested.is_set()


def test_a_group_is_told_by_a_file_and_says_so_by_removing_it(told, storage, monkeypatch):
    monkeypatch.setattr(notice, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(notice, "node_draining", lambda: False)
    task = find("line")
    attempt = acquire(RunFolder.of(storage, task, task.config()), "work", 0)
    with notice.worker_preemption([attempt], 0) as answer, notice.worker_preemption([attempt], 1) as other:
        told.members, told.relayed = [attempt], True
        waiting = threading.Thread(target=told.wait)
        waiting.start()
        assert told.requested.wait(5), "its workers look every few seconds"
        other()
        told.requested.set()  # each worker has its own
        assert waiting.is_alive()
        answer()
        waiting.join(5)
    assert not waiting.is_alive() and read(attempt.folder, 1)["state"] == "released"


def trial_of(folder, number=1):
    record = read(folder, number)
    return record.get("state") == "running" and psutil.Process(record["pid"])


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["trial", "command"])
def test_what_is_told_to_end_writes_a_checkpoint_and_goes_on_from_it(tmp_path, record, whom):
    record["fault"] = f"SIGTERM to the {whom}"
    storage, epochs = str(tmp_path / "left"), 4
    folder = run_of(storage, epochs=epochs, pause=0.5)
    code = (TRAIN % (epochs, 1)).replace("0.1", "0.5")
    process = driver(code, storage)
    trial = wait_for(lambda: trial_of(folder), process)
    wait_for(lambda: folder.checkpoints(), process)
    time.sleep(1.7)
    before = time.monotonic()
    if whom == "trial":
        trial.send_signal(signal.SIGTERM)
        wait_for(lambda: not trial.is_running(), process)
    else:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 143 and "interrupted; the same command" in said and "Traceback" not in said
        process = driver(code, storage)
    record["seconds"] = time.monotonic() - before
    assert record["seconds"] < 15
    ends(process)
    second = read(folder, 2)
    assert second["step"] % EPOCH, "else it went on from the end of an epoch"
    assert read(folder, 1)["state"] == "released"
    assert outcome(folder) == undisturbed(tmp_path, epochs)
    record |= {"survived": "yes", "attempts": 2}


@pytest.mark.slow
def test_a_real_training_that_is_killed_by_sigterm_goes_on_where_it_was(tmp_path, record):
    record["fault"] = "SIGTERM to a training of weather"
    code = "retable.train('weather', {'epochs': 1, 'steps': 300}, scale='smoke', storage=storage)"
    ends(driver(code, str(tmp_path / "plain")))
    process = driver(code, str(tmp_path / "killed"))
    task = find("weather")
    config = config_at(task, "smoke", {"epochs": 1, "steps": 300})
    plain, killed = (RunFolder.of(Storage.open(tmp_path / name), task, config) for name in ("plain", "killed"))
    trial = wait_for(lambda: trial_of(killed), process)
    time.sleep(plain.result()["seconds"] / 2 + 3)
    assert not killed.checkpoints(), "half a minute has not gone by"
    trial.send_signal(signal.SIGTERM)
    ends(process)
    assert 0 < read(killed, 2)["step"] < 300 and outcome(killed) == outcome(plain)
    record |= {"survived": "yes", "attempts": 2}
