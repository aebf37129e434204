"""The index of finished runs: it saves reads, and never tells what is not so any more."""

import gzip
import os
import shutil
import threading
from pathlib import Path

import pytest

from retable.platform.config import override
from retable.platform.plan.plan import compile_configs
from retable.platform.spec.table import resolve
from retable.platform.spec.task import find
from retable.platform.store.query import list_runs
from retable.platform.store.storage import Storage
from tests.platform.made_runs import aged, finished

MANY = 60
"""Enough for an index to be written."""


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory):
    """A folder of finished runs of yesterday."""
    storage = Storage.open(tmp_path_factory.mktemp("yesterday"))
    for seed in range(MANY):
        finished(storage, seed=seed)
    aged(storage.root, 86400)
    return storage.root


@pytest.fixture
def many(yesterday, storage):
    """A copy of them, with their times."""
    shutil.copytree(yesterday, storage.root, dirs_exist_ok=True)
    return storage


@pytest.fixture
def reads(monkeypatch):
    """The paths that are read."""
    read, opened = Storage.read, []
    monkeypatch.setattr(Storage, "read", lambda self, path: opened.append(f"{self.root}/{path}") or read(self, path))
    return opened


def planned(storage):
    task = find("line")
    configs = [override(task.config(), {"seed": seed}) for seed in range(MANY)]
    views = [resolve(task.view(), config) for config in configs]
    plan = compile_configs(task, configs, storage, views)
    found = {key: training.status for key, training in plan.trainings.items()}
    return found, [scoring.done for scoring in plan.scorings.values()]


def packed(storage):
    return Path(storage.root) / ".index/line.packed"


def test_a_plan_reads_results_and_scores_once_and_then_the_index_alone(many, reads):
    first = planned(many)
    assert set(first[0].values()) == {"done"} and all(first[1]) and packed(many).exists()
    assert len([path for path in reads if path.endswith(("result.json", "scores.json"))]) == 2 * MANY
    reads.clear()
    assert planned(many) == first
    assert not [path for path in reads if "/runs/" in path]


def test_a_listing_reads_no_file_of_a_run_that_is_in_the_index(many, reads):
    first = list_runs(many)
    assert reads and {run.state for run in first} == {"finished"}
    reads.clear()
    assert list_runs(many) == first and not reads


def test_plans_and_listings_share_the_index(many, reads):
    planned(many)
    first = list_runs(many)
    reads.clear()
    planned(many)
    assert list_runs(many) == first
    assert not [path for path in reads if "/runs/" in path]


def test_what_has_changed_is_read_again(many):
    before = {run.run: run for run in list_runs(many)}
    planned(many)
    changed = finished(many, seed=3, entries={"weights": {}, "diverged": "loss is nan"})
    again = {run.run: run for run in list_runs(many)}
    assert again.pop(changed.fingerprint).state == "diverged"
    assert again == {digits: run for digits, run in before.items() if digits != changed.fingerprint}
    assert planned(many)[0][changed.path] == "diverged"
    many.remove(changed.path)
    assert len(list_runs(many)) == MANY - 1 and planned(many)[0][changed.path] == "new"


def test_a_file_replaced_by_one_of_the_same_size_within_a_tick_is_not_taken_for_the_old_one(storage):
    """Two writes may leave the same stamp: what was young when it was listed is never trusted."""
    for seed in range(MANY):
        finished(storage, seed=seed)
    folder = finished(storage, seed=0)
    path = Path(folder.folder.root) / "result.json"
    list_runs(storage)
    planned(storage)
    stamp, inside = path.stat(), Path(folder.folder.root).stat()
    path.write_text(path.read_text().replace('"seconds": 2.0', '"seconds": 7.0').replace('"3": "f', '"4": "f'))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    os.utime(folder.folder.root, ns=(inside.st_atime_ns, inside.st_mtime_ns))
    assert {run.run: run.seconds for run in list_runs(storage)}[folder.fingerprint] == 7.0
    assert planned(storage)[0][folder.path] == "weights not kept"


def test_what_was_too_young_for_one_index_does_not_become_old_by_the_next(storage):
    for seed in range(MANY):
        finished(storage, seed=seed)
    list_runs(storage)
    young = packed(storage)
    assert young.exists()
    for seed in range(MANY, 2 * MANY):
        finished(storage, seed=seed)
    aged(storage.root + "/runs", 86400)
    list_runs(storage)  # writes the index anew, an hour later
    os.utime(young, (young.stat().st_mtime + 3600,) * 2)
    lines = gzip.decompress(young.read_bytes()).split(b"\n")[1:]
    assert len(lines) == 2 * MANY, "all were old when they were listed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "data", [b"", b"not an index", gzip.compress(b"[]\nx", mtime=0), gzip.compress(b'{"format": 99}\n', mtime=0), None]
)
def test_a_damaged_index_is_made_again(many, reads, data):
    first = list_runs(many)
    whole = packed(many).read_bytes()
    packed(many).write_bytes(whole[: len(whole) // 2] if data is None else data)
    reads.clear()
    assert list_runs(many) == first and reads
    reads.clear()
    assert list_runs(many) == first and not reads


def test_lines_that_are_not_an_indexs_are_passed_over(many):
    first = list_runs(many)
    head, *lines = gzip.decompress(packed(many).read_bytes()).split(b"\n")
    bad = [
        line.split(b" ")[0] + b" 5 " + rest
        for line, rest in zip(lines[:4], (b"{", b"[]", b'{"files": 3}', b'{"files": {"result.json": 1}}'), strict=True)
    ]
    packed(many).write_bytes(gzip.compress(b"\n".join([head, *bad, *lines[4:]])))
    assert list_runs(many) == first


def test_a_storage_for_reading_only_is_listed_without_an_index(many, monkeypatch):
    def refuse(self, path, data):
        raise PermissionError(13, "no")

    monkeypatch.setattr(Storage, "write", refuse)
    assert len(list_runs(many)) == MANY and len(planned(many)[0]) == MANY
    assert not packed(many).exists()


def test_two_who_write_the_index_at_once_are_both_right(many):
    first = list_runs(many)
    packed(many).unlink()
    found = []
    threads = [threading.Thread(target=lambda: found.append(list_runs(many))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [first, first] and list_runs(many) == first


def test_few_new_runs_are_not_worth_an_index(storage):
    finished(storage)
    aged(storage.root)
    list_runs(storage)
    assert not packed(storage).exists()
