"""Data sets that trainings borrow: made, read, waited for, dropped; and those that cannot be had."""

import dataclasses
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.platform.execute import datasets
from retable.platform.execute.datasets import DatasetCache, Entry
from retable.platform.execute.session import ray_cluster
from retable.platform.spec.task import find
from retable.platform.store import lease
from retable.platform.store.run import RunFolder, sha256

LINE = find("line")
WHERE = "line/points"


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster():
        yield


def borrowed(shelf, where=WHERE):
    """What a trial gets."""
    import ray

    held = ray.get(shelf.holder.get.remote(where))
    return ray.get(held[0]) if held else None


@pytest.mark.slow
def test_a_missing_set_is_made_read_lent_and_dropped_after_its_last_training(cluster, storage):
    shelf = DatasetCache(storage)
    shelf.reserve([WHERE, WHERE])
    assert shelf.ready(LINE, LINE.config()) is False and borrowed(shelf) is None
    shelf.fetch({WHERE: (LINE, LINE.config())})
    assert shelf.ready(LINE, LINE.config()) is True
    arrays = borrowed(shelf)
    np.testing.assert_allclose(arrays["y"], 2 * arrays["x"] + 1, rtol=1e-6)
    assert len(arrays["x"]) == storage.read_json(f"data/{WHERE}/dataset.json")["points"]
    for trainings in (1, 1):
        assert borrowed(shelf) is not None
        shelf.add_user(WHERE)
        shelf.release(WHERE, trainings)
    assert borrowed(shelf) is None and not shelf.entries


def test_a_task_whose_prepare_writes_elsewhere_is_told_so(storage, monkeypatch):
    """Else the set is made again and again."""
    dataset = dataclasses.replace(LINE.dataset, prepare=lambda config, storage: None)
    monkeypatch.setattr(datasets, "find", lambda name: dataclasses.replace(LINE, dataset=dataset))
    why = datasets._make_set("line", LINE.config(), storage)
    assert why == f"the task's `prepare` wrote no data/{WHERE}/dataset.json, which its `where` names"


@pytest.mark.slow
def test_a_set_that_cannot_be_had_is_one_line(cluster, storage, tmp_path):
    LINE.dataset.prepare(LINE.config(), storage)
    storage.write(f"data/{WHERE}/points.parquet", b"no Parquet")
    shelf = DatasetCache(storage)
    with pytest.raises(UserError, match=r"points\.parquet: missing or damaged; remove .*/points and run again$"):
        shelf.fetch({WHERE: (LINE, LINE.config())})
    assert shelf.ready(LINE, LINE.config()) is None and list(shelf.board.failures) == [f"data {WHERE}"]


@pytest.mark.slow
def test_a_set_waits_for_room_while_others_are_used_and_never_else(cluster, storage):
    streamed = dataclasses.replace(LINE, dataset=dataclasses.replace(LINE.dataset, streams=True))
    LINE.dataset.prepare(LINE.config(), storage)
    info = storage.read_json(f"data/{WHERE}/dataset.json")
    storage.write_json(f"data/{WHERE}/dataset.json", {**info, "bytes": 60})
    config = LINE.config()
    other = Entry(LINE, config, size=60, ready=True, users=1)
    for used, begins in ((0, True), (1, False)):
        shelf = DatasetCache(storage)
        shelf.room = 100
        shelf.entries["other"] = dataclasses.replace(other, users=used)
        assert shelf.ready(streamed, config) is False
        assert (shelf.entries[WHERE].pending is not None) is begins
    shelf.wanted["other"] = 1
    shelf.release("other", 1)
    shelf.poll()
    shelf.fetch({WHERE: (streamed, config)})
    assert borrowed(shelf) is not None
    shelf = DatasetCache(storage)
    shelf.room = 59
    assert shelf.ready(streamed, config) is True and borrowed(shelf) is None, "too large by itself: it is streamed"


def test_of_several_commands_one_makes_a_data_set_and_the_others_wait(storage, monkeypatch):
    """They removed each other's files, and trained on what was there then."""
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.05)
    made, config = [], LINE.config()

    def prepare(config, storage):
        made.append(1)
        time.sleep(0.5)
        LINE.dataset.prepare(config, storage)

    task = replace(LINE, dataset=replace(LINE.dataset, prepare=prepare))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: datasets.make_missing(task, config, storage), range(4)))
    assert made == [1] and storage.exists("data/line/points/dataset.json")


def test_after_one_that_failed_the_others_try_one_at_a_time(storage, monkeypatch):
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.01)
    active, most, begun, config = [], [], [], LINE.config()

    def prepare(config, storage):
        begun.append(1)
        active.append(1)
        most.append(len(active))
        time.sleep(0.2)
        active.pop()
        if len(begun) < 3:
            raise UserError("no room")
        LINE.dataset.prepare(config, storage)

    task = replace(LINE, dataset=replace(LINE.dataset, prepare=prepare))
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(datasets.make_missing, task, config, storage) for _ in range(8)]
    assert sum(each.exception() is not None for each in tries) == 2 and max(most) == 1 and len(begun) == 3


def test_a_data_set_that_a_dead_process_began_is_made(storage):
    place = RunFolder(storage / lease.MAKING, "line", sha256(b"line/points")[:16])
    dead = subprocess.run([sys.executable, "-c", DIES, storage.root, place.fingerprint], check=False)
    assert dead.returncode == -9 and lease.newest_number(place) == 1
    datasets.make_missing(LINE, LINE.config(), storage)
    assert storage.exists("data/line/points/dataset.json") and lease.newest_number(place) == 2


def test_of_several_that_replace_a_data_set_one_works_at_a_time(storage, monkeypatch):
    """The third took the lease of the second for one that had ended."""
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.01)
    active, most = [], []

    def make():
        with lease.one_maker(storage, "line/points"):
            active.append(1)
            most.append(len(active))
            time.sleep(0.1)
            active.pop()

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(make) for _ in range(6)]:
            done.result()
    assert most == [1] * 6


DIES = """
import os, sys
from retable.platform.store import lease
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
lease.acquire(RunFolder(Storage.open(sys.argv[1]) / ".making", "line", sys.argv[2]), "x", 0)
os.kill(os.getpid(), 9)
"""
