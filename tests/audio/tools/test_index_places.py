"""Where recordings lie and which are the same: moved, renamed, copied, swapped; and an index that is being written."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from retable.platform.errors import UserError
from retable.platform.store.run import file_digest
from retable.tasks.audio.tools.search import index as indexing
from retable.tasks.audio.tools.search.index import add, update
from retable.tasks.audio.tools.search.places import identify, scan
from retable.tasks.audio.tools.search.search import open_index, query_vector, refresh
from retable.tasks.audio.tools.search.search import search as find
from tests.audio.tools.test_index import Toy, folder, record, tone  # noqa: F401

ROOT = Path(__file__).parents[3]


def hits(out, words="high"):
    opened = open_index(out) if isinstance(out, Path) else out
    return {(hit.file, *hit.also): hit.offset for hit in find(opened, query_vector(Toy(), words, None), 50)}


def heard_by(folder, out, **options):  # noqa: F811
    """Update an index, and return how many segments were heard, and what became of it."""
    model = Toy()
    made = update(folder, out, model, **options)
    return model.heard, made


@pytest.fixture
def out(folder, tmp_path):  # noqa: F811
    update(folder, tmp_path / "out", Toy())
    return tmp_path / "out"


def test_contents_are_hashes_and_known_files_are_not_read_again(folder, monkeypatch):  # noqa: F811
    files, *_ = scan(folder)
    found, failures = identify(folder, files, [])
    assert failures == []
    assert [f.content for f in found] == [hashlib.sha256((folder / f.path).read_bytes()).hexdigest() for f in files]
    monkeypatch.setattr(
        "retable.tasks.audio.tools.search.places.file_digest", lambda path: pytest.fail(f"{path} was read")
    )
    assert identify(folder, files, found) == (found, [])


def test_linked_folders_are_followed_once_and_other_files_counted(folder, tmp_path):  # noqa: F811
    before = [file.path for file in scan(folder)[0]]
    record(tmp_path / "shelf" / "far.wav", tone("high"))
    (tmp_path / "shelf" / "back").symlink_to(folder)  # a loop
    (folder / "shelf").symlink_to(tmp_path / "shelf")
    (folder / "again").symlink_to(tmp_path / "shelf")
    for name in ("notes.txt", "cover.JPG", "back.jpg", "README", ".hidden.txt"):
        (folder / name).write_text("x")
    files, failures, others = scan(folder)
    new = [file.path for file in files if file.path not in before]
    assert new == ["again/far.wav"] and len(files) == len(before) + 1 and failures == []
    assert others == {".txt": 1, ".jpg": 2, "no suffix": 1}


def test_silence_is_left_out_and_odd_recordings_are_heard_and_remarked(folder, tmp_path):  # noqa: F811
    record(folder / "nothing.wav", 0 * tone("high"))
    record(folder / "loud.wav", 100 * tone("high"))
    _, made = heard_by(folder, tmp_path / "out")
    assert made.failures == [f"{folder / 'nothing.wav'}: silent"]
    assert len(made.remarks) == 1 and made.remarks[0].startswith(f"{folder / 'loud.wav'}: clipped")


def test_a_file_that_is_gone_before_it_is_hashed_is_a_line(folder):  # noqa: F811
    files, *_ = scan(folder)
    (folder / "low.wav").unlink()
    found, failures = identify(folder, files, [])
    assert len(found) == 2 and len(failures) == 1 and "low.wav: No such file" in failures[0]


def test_a_folder_that_moved_is_heard_no_second_time(folder, out, tmp_path, monkeypatch):  # noqa: F811
    before = hits(out)
    moved = folder.rename(tmp_path / "elsewhere")
    with monkeypatch.context() as patch:
        patch.setattr(
            "retable.tasks.audio.tools.search.places.file_digest", lambda path: pytest.fail(f"{path} was read")
        )
        heard, made = heard_by(moved, out)
    assert (heard, made.added, made.found, made.removed) == (0, 0, 0, 0)
    assert hits(out) == before and open_index(out).folder == moved


def test_a_folder_that_moves_with_its_index_needs_nothing(tmp_path):
    record(tmp_path / "one" / "in" / "a.wav", tone("high"))
    update(tmp_path / "one" / "in", tmp_path / "one" / "out", Toy())
    shutil.copytree(tmp_path / "one", tmp_path / "two")  # the first is still there
    assert open_index(tmp_path / "two" / "out").folder == tmp_path / "two" / "in"
    assert heard_by(tmp_path / "two" / "in", tmp_path / "two" / "out")[0] == 0


def test_a_path_with_dots_or_a_link_is_the_same_folder(folder, out, tmp_path):  # noqa: F811
    (tmp_path / "link").symlink_to(folder)
    before = (out / "index.json").read_bytes()
    for path in (tmp_path / "out" / ".." / folder.name, tmp_path / "link"):
        assert heard_by(path, out)[0] == 0
    assert (out / "index.json").read_bytes() == before


def test_files_that_were_renamed_are_not_heard_and_the_vectors_stay(folder, out):  # noqa: F811
    shards = {path.name: path.stat().st_mtime_ns for path in out.glob("*-*")}
    (folder / "deep").rename(folder / "sorted anew")
    (folder / "low.wav").rename(folder / "sorted anew" / "bass.wav")
    reader = open_index(out)
    heard, made = heard_by(folder, out)
    assert (heard, made.added, made.found, made.removed) == (0, 0, 2, 2)
    assert {n: t for n, t in shards.items() if "places" not in n} == {
        path.name: path.stat().st_mtime_ns for path in out.glob("*-*") if "places" not in path.name
    }
    assert next(iter(hits(out))) == ("sorted anew/regen – дождь 雨.wav",)
    assert hits(refresh(reader)) == hits(out)


def test_a_recording_that_lies_there_twice_is_heard_and_found_once(folder, out):  # noqa: F811
    shutil.copy(folder / "low.wav", folder / "deep" / "copy of low.wav")
    heard, made = heard_by(folder, out)
    assert heard == 0 and made.info["segments"] == 6
    assert (made.info["files"], made.info["recordings"]) == (4, 3)
    assert ("deep/copy of low.wav", "low.wav") in hits(out, "low")
    (folder / "deep" / "copy of low.wav").unlink()
    assert ("low.wav",) in hits(out, "low")  # before the next update, too
    assert heard_by(folder, out)[1].removed == 1


def test_what_was_swapped_at_equal_size_and_time_is_seen_with_verify(folder, out):  # noqa: F811
    low = (folder / "low.wav").stat()
    record(folder / "low.wav", tone("high"))
    assert (folder / "low.wav").stat().st_size == low.st_size
    os.utime(folder / "low.wav", ns=(low.st_atime_ns, low.st_mtime_ns))
    assert heard_by(folder, out)[0] == 0
    heard, made = heard_by(folder, out, verify=True)
    assert heard == 1 and made.added == 1 and ("low.wav",) in list(hits(out, "high"))[:2]


def test_another_folder_is_refused(folder, out, tmp_path):  # noqa: F811
    record(tmp_path / "other" / "x.wav", tone("high", "low"))
    with pytest.raises(UserError, match=r"is the index of .*my sounds; choose another"):
        update(tmp_path / "other", out, Toy())
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"of whose recordings .*other has none"):
        update(tmp_path / "other", out, Toy())


def test_an_added_copy_is_a_place(folder, out, monkeypatch):  # noqa: F811
    monkeypatch.setattr(indexing, "ADDED", 2)
    now, model = open_index(out), Toy()
    for number in range(6):
        shutil.copy(folder / "low.wav", folder / f"{number}.wav")
        now = add(now, model, folder / f"{number}.wav")
        assert len(now.info["places"]) <= 3
    assert model.heard == 0 and now.info["added"] == []
    assert (*(f"{n}.wav" for n in range(6)), "low.wav") in hits(now, "low")
    assert hits(out, "low") == hits(now, "low") and now.holds("3.wav")


@pytest.mark.parametrize("moment", ["embed_files", "_tidy", "_join", "_built", "_sweep"])
def test_an_index_answers_after_an_update_that_was_stopped(folder, out, monkeypatch, moment):  # noqa: F811
    before = hits(out)
    (folder / "low.wav").unlink()
    record(folder / "new.wav", tone("high"))
    record(folder / "more.wav", tone("middle", "low"))
    monkeypatch.setattr(indexing, "SHARE", 1)

    def stopped(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(indexing, moment, stopped)
        with pytest.raises(KeyboardInterrupt):
            update(folder, out, Toy())
    gone = {key: offset for key, offset in before.items() if key != ("low.wav",)}
    finished = moment == "_sweep"  # the last thing that is done
    assert hits(out) == gone or finished
    heard, _ = heard_by(folder, out)
    assert heard == (3 if moment == "embed_files" else 0)
    update(folder, out.parent / "anew", Toy())
    assert hits(out) == hits(out.parent / "anew")
    assert len(list(out.glob("embeddings-*"))) == len(list(out.glob("places-*"))) == 1


SLOW = """
import sys, time
from pathlib import Path
from retable.tasks.audio.tools.search import index
from tests.audio.tools.test_index import Toy
class Slow(Toy):
    def sounds(self, segments):
        print("heard", flush=True)
        time.sleep(float(sys.argv[3]))
        return super().sounds(segments)
index.SHARE = index.WORKERS = 1
print(index.update(Path(sys.argv[1]), Path(sys.argv[2]), Slow()).added)
"""


def started(folder, out, seconds):  # noqa: F811
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", SLOW, str(folder), str(out), str(seconds)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


@pytest.mark.slow
def test_search_while_another_process_updates_is_killed_and_goes_on(folder, out):  # noqa: F811
    before, reader = hits(out), open_index(out)
    for number in range(6):
        record(folder / f"{number}.wav", tone("high", *["low"] * number))
    first = started(folder, out, 0.3)
    assert [first.stdout.readline() for _ in range(3)] == ["heard\n"] * 3
    assert hits(out) == before  # it is being written
    with pytest.raises(UserError, match=f"process {first.pid} of .* writes it; try again"):
        update(folder, out, Toy())
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert hits(out) == before and hits(refresh(reader)) == before
    second = started(folder, out, 0)
    said = second.communicate(timeout=120)[0].split()
    assert said.count("heard") == int(said[-1]) == 4  # two shards were written before
    assert len(hits(refresh(reader))) == 9 and hits(out) == hits(refresh(reader))


@pytest.mark.slow
def test_of_two_updates_at_once_one_is_refused_in_one_line(folder, tmp_path):  # noqa: F811
    both = [started(folder, tmp_path / "out", 1.0) for _ in range(2)]
    ends = [process.communicate(timeout=120)[1].strip().split("\n")[-1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    assert any("UserError" in line and "writes it; try again when that is done" in line for line in ends)
    assert len(hits(tmp_path / "out")) == 3 and file_digest(folder / "low.wav") in open_index(tmp_path / "out").paths


def test_lines_on_a_relative_folder_name_its_files(tmp_path, monkeypatch):
    """As over Ray: what embeds elsewhere was given the absolute folder, and its lines begin so."""
    record(tmp_path / "in/good.wav", tone("high"))
    for name in ("broken.wav", "copy of broken.wav"):
        (tmp_path / "in" / name).write_text("no sound")
    monkeypatch.chdir(tmp_path)

    def remote(shares, hop):
        return [indexing.embed_files(Toy(), tmp_path / "in", share, hop) for share in shares]

    for out, options in (("here", {}), ("elsewhere", {"remote": remote})):
        lines = update(Path("in"), Path(out), Toy(), **options).failures
        assert sorted(line.split(": ")[0] for line in lines) == [
            str(tmp_path / "in/broken.wav"),
            str(tmp_path / "in/copy of broken.wav"),
        ]


def test_a_file_in_the_place_of_an_index_is_named_with_the_options(tmp_path):
    (tmp_path / "file.txt").write_text("x")
    record(tmp_path / "in/good.wav", tone("high"))
    said = r"file.txt: is a file; name an index's folder, by --index, or --out of a new one$"
    with pytest.raises(UserError, match=said):
        open_index(tmp_path / "file.txt")
    with pytest.raises(UserError, match=said):
        update(tmp_path / "in", tmp_path / "file.txt", Toy())
