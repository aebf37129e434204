"""Snapshots: what lies on a storage is asked for once, and what was asked for is known."""

from contextvars import copy_context
from threading import Thread

import pytest

from retable.platform.store.storage import Storage


@pytest.fixture
def filled(storage):
    storage.write_json("runs/line/a/result.json", {"n": 1})
    storage.write_json("runs/line/b/config.json", {"n": 2})
    storage.write("runs/.writing-half", "x")
    storage.write_json("data/line/points/dataset.json", {"digest": "d"})
    return storage


def asked(storage):
    """Ask a storage everything that can be asked of it."""
    return (
        [
            storage.exists(path)
            for path in ("runs/line/a", "runs/line/a/result.json", "runs/line/c", "data/line/points")
        ],
        [storage.list(path) for path in ("runs", "runs/line", "runs/line/a", "runs/line/c", "data/line")],
        [list(storage.folders(path)) for path in ("runs", "runs/line", "data")],
        storage.read_json("runs/line/a/result.json"),
        (storage / "runs/line/b").read_json("config.json"),
        storage.read_json("data/line/points/dataset.json"),
    )


def test_answers_are_those_of_the_storage(filled):
    plain = asked(filled)
    with filled.snapshot():
        assert asked(filled) == plain
        for path in ("runs/line/c/result.json", "data/other/dataset.json"):
            with pytest.raises(FileNotFoundError):
                filled.read(path)
    assert asked(filled) == plain


def test_what_is_written_meanwhile_is_not_seen_before_its_end(filled):
    with filled.snapshot():
        assert not filled.exists("runs/line/c")
        filled.write_json("runs/line/c/result.json", {})
        filled.write_json("runs/line/a/result.json", {"n": 9})
        with filled.snapshot():
            assert not filled.exists("runs/line/c") and filled.list("runs/line") == ["a", "b"]
    assert filled.exists("runs/line/c") and filled.read_json("runs/line/a/result.json") == {"n": 9}


def test_a_file_is_read_once_and_the_runs_are_listed_once(filled, monkeypatch):
    read, opened = Storage.read, []
    monkeypatch.setattr(Storage, "read", lambda self, path: opened.append(path) or read(self, path))
    with filled.snapshot() as snapshot:
        for _ in range(3):
            filled.read_json("runs/line/a/result.json")
            (filled / "runs").read_json("line/a/result.json")
        assert len(opened) == 1 and snapshot.listed == {"runs"}


def test_another_storage_is_read_as_ever(filled, tmp_path):
    other = Storage.open(tmp_path / "other")
    with filled.snapshot():
        assert not other.exists("x")
        other.write("x", "y")
        assert other.exists("x") and other.read("x") == b"y"


def test_every_path_that_was_asked_for_is_known_with_what_was_there(filled):
    with filled.snapshot() as snapshot:
        filled.exists("runs/line/b")
        with snapshot.record_reads() as inputs:
            filled.read_json("runs/line/a/result.json")
            filled.exists("runs/line/c")
            filled.list("runs/line")
        assert inputs.keys() == {"runs/line/a/result.json", "runs/line/c", "runs/line"}
        assert inputs["runs/line/c"] is None and inputs["runs/line"] == ["a", "b"]
        before = dict(inputs)
    filled.write_json("runs/line/a/result.json", {"n": 10})
    with filled.snapshot() as snapshot:
        changed = {path for path, stamp in before.items() if snapshot.stamp(path) != stamp}
        assert changed == {"runs/line/a/result.json"}


def test_a_value_made_of_a_file_is_asked_for_again_by_each_watch(filled):
    with filled.snapshot() as snapshot:
        filled.read_json("runs/line/a/result.json")
        with snapshot.record_reads() as inputs:
            filled.read_json("runs/line/a/result.json")
        assert list(inputs) == ["runs/line/a/result.json"], "what is read once is an input of all who use it"


def test_each_thread_has_its_own_snapshot(filled, tmp_path):
    """Two cells of a notebook may plan on two storages at once."""
    other, seen = Storage.open(tmp_path / "other"), []
    other.write_json("runs/line/a/result.json", {"n": 3})

    def work():
        with other.snapshot() as snapshot:
            other.write_json("runs/line/a/result.json", {"n": 4})
            seen.extend([snapshot.root, other.exists("runs/line/a"), filled.exists("runs/line/new")])

    with filled.snapshot() as outer:
        assert not filled.exists("runs/line/new")
        filled.write_json("runs/line/new/result.json", {})
        thread = Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [other.root, True, True] and outer.root == filled.root
        inherits = Thread(target=copy_context().run, args=(lambda: seen.append(filled.exists("runs/line/new")),))
        inherits.start()
        inherits.join()
    assert seen[-1] is False


def test_a_snapshot_of_another_storage_in_a_block_is_its_own(filled, tmp_path):
    other = Storage.open(tmp_path / "other")
    other.write_json("runs/line/a/result.json", {"n": 3})
    with filled.snapshot() as outer, other.snapshot() as inner:
        assert (outer.root, inner.root) == (filled.root, other.root)
        with (other / "runs").snapshot() as below:
            assert below is inner
