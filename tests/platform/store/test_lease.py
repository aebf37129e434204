"""Whose a run is: one of many that ask at once, never a second one while it lives, and the next one once it is dead."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from retable.platform.errors import UserError
from retable.platform.store import lease as attempt
from retable.platform.store.lease import Silence, Taken, claim, held, newest, over, read
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
    first = claim(folder, "a", 0)
    with pytest.raises(Taken) as taken:
        claim(folder, "b", 0)
    assert taken.value.folders == (folder,)
    first.confirm()
    with held([first]):
        pass
    second = claim(folder, "b", 4)
    assert (first.number, second.number, newest(folder)) == (1, 2, 2)
    second.confirm()
    with pytest.raises(Taken):
        first.confirm()
    assert read(folder, 2)["step"] == 4 and read(folder, 2)["work"] == "b"


def test_of_many_that_ask_at_once_one_has_it_at_most(folder):
    def ask(place):
        try:
            return claim(folder, str(place), 0)
        except Taken:
            return None

    with ThreadPoolExecutor(16) as pool:
        won = [found for found in pool.map(ask, range(16)) if found]
    assert len(won) <= 1 and (len(won) == 1 or not folder.storage.is_local)
    for found in won:
        found.confirm()


CLAIM = """
import sys
from retable.platform.store.lease import Taken, claim
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
sys.stdin.readline()
try:
    claim(RunFolder(Storage.open(sys.argv[1]), "line", "0"), "x" + sys.argv[2], 0)
    print("won", flush=True)
    sys.stdin.readline()
except Taken:
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
    with pytest.raises(Taken):
        claim(folder, "y", 0)
    winner.send_signal(signal.SIGKILL)
    winner.wait()
    assert claim(folder, "y", 0).number == 2
    for process in asking:
        process.communicate()


def test_one_of_another_machine_is_dead_after_two_silent_minutes_of_our_own_clock(folder, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(attempt.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(attempt.time, "gmtime", lambda: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))  # clocks lie
    first = claim(folder, "a", 0)
    elsewhere(folder)
    silence = Silence(folder)
    assert silence.look() == 0
    clock[0] += 100
    first.tell("running", 1)
    elsewhere(folder)
    clock[0] += 100
    assert silence.look() == 0
    clock[0] += 119
    assert silence.look() == 0
    clock[0] += 1
    assert silence.look() == 1
    with pytest.raises(Taken):
        claim(folder, "b", 0)
    second = claim(folder, "b", 0, dead=1)
    with pytest.raises(Taken):
        first.confirm()
    second.confirm()


def test_one_that_let_go_is_over_wherever_it_was(folder):
    claim(folder, "a", 0)
    elsewhere(folder, state="released")
    assert Silence(folder).look() == 1 and claim(folder, "b", 0).number == 2


def test_a_run_that_nobody_has_is_free(folder):
    assert Silence(folder).look() == 1 and newest(folder) == 0


def test_the_same_work_is_taken_up_again_at_once_but_not_a_fourth_time_at_one_step(folder):
    for _ in range(3):
        claim(folder, "a", 4)
        elsewhere(folder, newest(folder))
    with pytest.raises(UserError, match=r"^its process died 3 times at step 4; "):
        claim(folder, "a", 4)
    assert newest(folder) == 3
    assert claim(folder, "a", 5).number == 4, "it has come further"
    elsewhere(folder, 4)
    assert claim(folder, "a", 4).number == 5, "another death in between"


def test_another_command_begins_to_count_anew(folder):
    for _ in range(3):
        claim(folder, "a", 4)
        elsewhere(folder, newest(folder))
    assert claim(folder, "b", 4, dead=3).number == 4


def test_signs_of_life_come_while_the_block_runs_and_an_end_after_it(folder, monkeypatch):
    monkeypatch.setattr(attempt, "BEAT", 0.02)
    first = claim(folder, "a", 0)
    with held([first]):
        end = time.monotonic() + 30
        while read(folder, 1)["beat"] < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert read(folder, 1)["beat"] >= 3 and read(folder, 1)["state"] == "running"
    assert read(folder, 1)["state"] == "released"


def test_a_storage_that_is_away_stops_no_sign_of_life(folder, monkeypatch):
    monkeypatch.setattr(attempt, "BEAT", 0.01)
    first = claim(folder, "a", 0)
    monkeypatch.setattr(Storage, "write", lambda *_: (_ for _ in ()).throw(UserError("away")))
    with held([first]):
        time.sleep(0.1)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"place": 3}', '{"pid": "x"}'])
def test_a_record_that_is_damaged_says_nothing(folder, text):
    claim(folder, "a", 0)
    (name,) = folder.folder.list("attempts/0001")
    folder.folder.write(f"attempts/0001/{name}", text)
    assert Silence(folder).look() == 0
    with pytest.raises(Taken):
        claim(folder, "b", 0)


def test_a_number_of_a_process_that_is_now_anothers_is_no_sign_of_life():
    here = attempt._self()
    assert not over(here) and over(here | {"born": here["born"] - 100}) and over(here | {"pid": 2**22 + 1})
