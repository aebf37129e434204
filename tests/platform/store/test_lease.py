"""Whose a run is: one of many that ask at once, never a second one while it lives, and the next one once it is dead."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import fsspec
import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from retable.platform.errors import Unreachable, UserError
from retable.platform.store import lease as attempt
from retable.platform.store import patience
from retable.platform.store.lease import LeaseLost, StaleLeaseWatcher, acquire, heartbeat, is_over, newest_number, read
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    where = tmp_path if request.param == "local" else f"memory://{os.urandom(8).hex()}"
    return RunFolder(Storage.open(where), "line", "0123456789abcdef")


def elsewhere(folder, number=1, state="running"):
    """Make an attempt look like another machine's."""
    (name,) = folder.folder.list(f"attempts/{number:04d}")
    record = read(folder, number) | {"place": "another machine", "state": state}
    folder.folder.write(f"attempts/{number:04d}/{name}", json.dumps(record))


def test_the_first_one_has_it_and_the_next_one_only_once_it_is_let_go(folder):
    first = acquire(folder, "a", 0)
    with pytest.raises(LeaseLost) as taken:
        acquire(folder, "b", 0)
    assert taken.value.folders == (folder,)
    assert first.owns()
    with heartbeat([first]):
        pass
    second = acquire(folder, "b", 4)
    assert (first.number, second.number, newest_number(folder)) == (1, 2, 2)
    assert second.owns() and not first.owns()
    assert read(folder, 2)["step"] == 4 and read(folder, 2)["work"] == "b"


def test_of_many_that_ask_at_once_one_has_it_at_most(folder):
    def ask(place):
        try:
            return acquire(folder, str(place), 0)
        except LeaseLost:
            return None

    with ThreadPoolExecutor(16) as pool:
        won = [found for found in pool.map(ask, range(16)) if found]
    assert len(won) <= 1 and (len(won) == 1 or not folder.storage.is_local)
    assert all(found.owns() for found in won)


CLAIM = """
import sys
from retable.platform.store.lease import LeaseLost, acquire
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
sys.stdin.readline()
try:
    acquire(RunFolder(Storage.open(sys.argv[1]), "line", "0"), "x" + sys.argv[2], 0)
    print("won", flush=True)
    sys.stdin.readline()
except LeaseLost:
    print("lost", flush=True)
"""


def test_of_many_processes_that_ask_at_once_exactly_one_has_it_and_once_it_is_killed_the_next(tmp_path):
    words = [sys.executable, "-c", CLAIM, str(tmp_path)]
    asking = [
        subprocess.Popen([*words, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for place in range(4)
    ]
    for process in asking:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.readline().strip() for process in asking]
    assert sorted(said) == ["lost", "lost", "lost", "won"]
    folder, winner = RunFolder(Storage.open(tmp_path), "line", "0"), asking[said.index("won")]
    with pytest.raises(LeaseLost):
        acquire(folder, "y", 0)
    winner.send_signal(signal.SIGKILL)
    winner.wait()
    assert acquire(folder, "y", 0).number == 2
    for process in asking:
        process.communicate()


def test_one_of_another_machine_is_dead_after_two_silent_minutes_of_our_own_clock(folder, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(attempt.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(attempt.time, "gmtime", lambda: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))  # clocks lie
    first = acquire(folder, "a", 0)
    elsewhere(folder)
    silence = StaleLeaseWatcher(folder)
    assert silence.poll() == 0
    clock[0] += 100
    first.write_state("running", 1)
    elsewhere(folder)
    clock[0] += 100
    assert silence.poll() == 0
    clock[0] += 119
    assert silence.poll() == 0
    clock[0] += 1
    assert silence.poll() == 1
    with pytest.raises(LeaseLost):
        acquire(folder, "b", 0)
    second = acquire(folder, "b", 0, dead=1)
    assert second.owns() and not first.owns()


def test_one_that_let_go_is_over_wherever_it_was(folder):
    acquire(folder, "a", 0)
    elsewhere(folder, state="released")
    assert StaleLeaseWatcher(folder).poll() == 1 and acquire(folder, "b", 0).number == 2


class Bucket(MemoryFileSystem):
    """A bucket whose listings are cached as gcsfs, adlfs and ossfs do; each opening is like another process's."""

    protocol = "bucket"
    cachable = False
    find, walk = fsspec.AbstractFileSystem.find, fsspec.AbstractFileSystem.walk

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = super().ls(path)
        found = self.dircache.get(path) or super().ls(path)
        return found if detail else [info["name"] for info in found]

    def _open(self, path, mode="rb", **named):
        self.dircache.clear()
        return super()._open(path, mode, **named)

    def mv(self, *paths, **named):
        super().mv(*paths, **named)
        self.dircache.clear()


def test_a_lease_that_another_process_took_is_seen_where_listings_are_cached():
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    name = f"bucket://{os.urandom(8).hex()}"
    ours, theirs = (RunFolder(Storage.open(name), "line", "0") for _ in range(2))
    first = acquire(ours, "a", 0)
    assert first.owns() and newest_number(theirs) == 1
    second = acquire(theirs, "b", 0, dead=1)
    assert second.owns() and not first.owns()


def test_a_run_that_nobody_has_is_free(folder):
    assert StaleLeaseWatcher(folder).poll() == 1 and newest_number(folder) == 0


def test_the_same_work_is_taken_up_again_at_once_but_not_a_fourth_time_at_one_step(folder):
    for _ in range(3):
        acquire(folder, "a", 4)
        elsewhere(folder, newest_number(folder))
    with pytest.raises(UserError, match=r"^its process died 3 times at step 4; "):
        acquire(folder, "a", 4)
    assert newest_number(folder) == 3
    assert acquire(folder, "a", 5).number == 4, "it has come further"
    elsewhere(folder, 4)
    assert acquire(folder, "a", 4).number == 5, "another death in between"


def test_another_command_begins_to_count_anew(folder):
    for _ in range(3):
        acquire(folder, "a", 4)
        elsewhere(folder, newest_number(folder))
    assert acquire(folder, "b", 4, dead=3).number == 4


def test_signs_of_life_come_while_the_block_runs_and_an_end_after_it(folder, monkeypatch):
    monkeypatch.setattr(attempt, "HEARTBEAT_SECONDS", 0.02)
    first = acquire(folder, "a", 0)
    with heartbeat([first]):
        end = time.monotonic() + 30
        while read(folder, 1)["beat"] < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert read(folder, 1)["beat"] >= 3 and read(folder, 1)["state"] == "running"
    assert read(folder, 1)["state"] == "released"


def test_a_storage_that_is_away_stops_no_sign_of_life(folder, monkeypatch):
    monkeypatch.setattr(attempt, "HEARTBEAT_SECONDS", 0.01)
    first = acquire(folder, "a", 0)
    tried = []

    def away(*_):
        tried.append(1)
        raise UserError("away")

    monkeypatch.setattr(Storage, "write", away)
    with heartbeat([first]):
        end = time.monotonic() + 30
        while len(tried) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(tried) >= 3


def test_a_storage_that_does_not_answer_is_waited_for_once_and_not_for_each_run(folder, monkeypatch):
    runs = [acquire(replace(folder, fingerprint=f"{number:016x}"), "a", 0) for number in range(50)]
    tried = []

    def away(*_):
        tried.append(patience.patience())
        raise Unreachable("away")

    monkeypatch.setattr(Storage, "write", away)
    with heartbeat(runs):
        pass
    assert tried == [attempt.HEARTBEAT_SECONDS]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"place": 3}', '{"pid": "x"}'])
def test_a_record_that_is_damaged_says_nothing(folder, text):
    acquire(folder, "a", 0)
    (name,) = folder.folder.list("attempts/0001")
    folder.folder.write(f"attempts/0001/{name}", text)
    assert StaleLeaseWatcher(folder).poll() == 0
    with pytest.raises(LeaseLost):
        acquire(folder, "b", 0)


def test_a_number_of_a_process_that_is_now_anothers_is_no_sign_of_life():
    here = attempt._self()
    assert not is_over(here) and is_over(here | {"born": here["born"] - 100}) and is_over(here | {"pid": 2**22 + 1})


@pytest.mark.skipif(sys.platform != "linux", reason="the ticks are those of Linux")
def test_a_process_lives_though_the_machines_clock_is_set_meanwhile(monkeypatch):
    here = attempt._self()
    born = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: born(self) + 3600)
    assert not is_over(here)
