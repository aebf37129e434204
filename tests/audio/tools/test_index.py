import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from retable.platform.errors import UserError
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.tools.embed.embedder import embed_each, embed_file
from retable.tasks.audio.tools.embed.lexicon import Anchors, table
from retable.tasks.audio.tools.search import index as indexing
from retable.tasks.audio.tools.search.index import QUERIES, scan, update
from retable.tasks.audio.tools.search.search import Where, open_index, p_value, query_vector, read_info
from retable.tasks.audio.tools.search.search import search as find

SEGMENT = 1.0
NOTES = {"low": 200, "middle": 1200, "high": 6000}


class Toy:
    """Embeds a sound by the energy in five bands, and words by the bands that they name."""

    segment = SEGMENT
    dimension = 5
    source = "toy"
    anchors = None

    def __init__(self, fingerprint="a" * 64):
        self.fingerprint = fingerprint
        self.heard = 0

    def sounds(self, segments):
        self.heard += len(segments)
        power = [np.abs(np.fft.rfft(np.pad(s, (0, SAMPLE_RATE - len(s))))) ** 2 for s in segments]
        bands = np.array([[p[:500].sum(), p[500:3000].sum(), p[3000:].sum(), 1e-3, 1e-3] for p in power])
        return (bands / np.linalg.norm(bands, axis=1, keepdims=True)).astype(np.float32)

    def words(self, captions):
        rows = []
        for caption in captions:
            seed = sum(caption.encode())
            known = [float(name in caption) for name in NOTES]
            rest = np.random.default_rng(seed).normal(size=5) if not any(known) else np.array([*known, 0, 0])
            rows.append(rest / np.linalg.norm(rest))
        return np.array(rows, np.float32)


def tone(*notes, seconds=SEGMENT, loud=0.3):
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return np.concatenate([loud * np.sin(2 * np.pi * NOTES[note] * time) for note in notes]).astype(np.float32)


def record(path, waveform):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, waveform, SAMPLE_RATE)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "my sounds"
    record(place / "low.wav", tone("low"))
    record(place / "a, b & c &amp; d.flac", tone("middle"))
    record(place / "deep" / "regen – дождь 雨.wav", tone("low", "low", "high", "middle"))
    return place


def test_a_planted_sound_is_found_with_its_offset(folder, tmp_path):
    made = update(folder, tmp_path / "out", Toy())
    assert (made.added, made.removed, made.failures) == (3, 0, [])
    assert made.info["segments"] == 6 and made.info["recall"] == 1.0 and made.info["kind"] == "flat"
    opened = open_index(tmp_path / "out")
    best = find(opened, query_vector(Toy(), "a high note", None), 2)[0]
    assert (best.file, best.offset) == ("deep/regen – дождь 雨.wav", 2.0)
    assert best.score == pytest.approx(1, abs=1e-3)
    middle = find(opened, query_vector(Toy(), "middle", None), 3)
    assert {hit.file: hit.offset for hit in middle[:2]} == {
        "a, b & c &amp; d.flac": 0.0,
        "deep/regen – дождь 雨.wav": 3.0,
    }
    assert len({hit.file for hit in middle}) == 3  # each file once


def test_a_sound_finds_itself_and_words_turn_it(folder, tmp_path):
    update(folder, tmp_path / "out", Toy())
    opened = open_index(tmp_path / "out")
    like = folder / "low.wav"
    assert find(opened, query_vector(Toy(), "", like), 1)[0].score == pytest.approx(1, abs=1e-5)
    both = query_vector(Toy(), "high", like)
    assert both[0] == pytest.approx(both[2], abs=1e-3) and np.linalg.norm(both) == pytest.approx(1, abs=1e-6)
    with pytest.raises(UserError, match="nothing to search for"):
        query_vector(Toy(), " ?! ", None)


def test_only_what_is_new_is_embedded_and_what_is_gone_leaves(folder, tmp_path):
    out = tmp_path / "out"
    update(folder, out, Toy())
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    again = Toy()
    assert update(folder, out, again).added == 0 and again.heard == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (folder / "low.wav").unlink()
    record(folder / "new.wav", tone("high", "high"))
    record(folder / "a, b & c &amp; d.flac", tone("low"))  # changed
    third = Toy()
    made = update(folder, out, third)
    assert (made.added, made.removed, third.heard) == (2, 1, 3)
    fresh = update(folder, tmp_path / "fresh", Toy())
    assert made.info["corpus"] == fresh.info["corpus"] != json.loads(before["index.json"])["corpus"]
    for words in ("low", "middle", "high"):
        one, other = (find(open_index(o), query_vector(Toy(), words, None), 9) for o in (out, tmp_path / "fresh"))
        assert {(h.file, h.offset if h.score > 0.5 else None) for h in one} == {
            (h.file, h.offset if h.score > 0.5 else None) for h in other
        }
        assert sorted(h.score for h in one) == pytest.approx(sorted(h.score for h in other), abs=1e-6)
        assert "low.wav" not in {hit.file for hit in one}
    assert find(open_index(out), query_vector(Toy(), "middle", None), 1)[0].file.startswith("deep")


def test_the_kind_that_was_asked_for_is_kept(folder, tmp_path):
    out = tmp_path / "out"
    assert update(folder, out, Toy(), kind="hnsw").info["kind"] == "hnsw"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert update(folder, out, Toy()).info["kind"] == "hnsw"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    record(folder / "new.wav", tone("high"))
    assert update(folder, out, Toy()).info["kind"] == "hnsw"
    assert update(folder, out, Toy(), kind="auto").info["kind"] == "flat"
    assert update(folder, out, Toy(), kind="flat").added == 0
    assert read_info(out)["asked"] == "flat" and open_index(out).info["finished"]


def test_where_the_model_lies_now_is_remembered(folder, tmp_path):
    out = tmp_path / "out"
    update(folder, out, Toy())
    moved = Toy()
    moved.source = "elsewhere"
    assert update(folder, out, moved).added == 0 and moved.heard == 0
    assert read_info(out)["source"] == "elsewhere" and open_index(out).info["segments"] == 6


def test_twice_the_same_bytes(folder, tmp_path):
    for name in ("one", "two"):
        update(folder, tmp_path / name, Toy())
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path


@pytest.mark.parametrize("moment", ["write", "_tidy", "_join", "_built", "_finish"])
def test_an_interrupted_command_goes_on(folder, tmp_path, monkeypatch, moment):
    for number in range(5):
        record(folder / f"{number}.wav", tone("middle", loud=0.1 + number / 100))
    monkeypatch.setattr(indexing, "SHARE", 2)
    monkeypatch.setattr(indexing, "WORKERS", 1)
    out = tmp_path / "out"

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "write":
            real, calls = indexing.embed_files, []

            def twice(*arguments):
                calls.append(1)
                return real(*arguments) if len(calls) < 3 else stopped()

            patch.setattr(indexing, "embed_files", twice)
        else:
            patch.setattr(indexing, moment, stopped)
        with pytest.raises(KeyboardInterrupt):
            update(folder, out, Toy())
    with pytest.raises(UserError, match="unfinished"):
        open_index(out)
    rest = Toy()
    info = update(folder, out, rest).info
    whole = Toy()
    assert info["corpus"] == update(folder, tmp_path / "whole", whole).info["corpus"] and info["segments"] == 11
    assert rest.heard == (whole.heard - heard_before(moment))


def heard_before(moment):
    """Segments of the first two shares, where the third was stopped; all where the end was."""
    return 4 if moment == "write" else 11


def test_what_a_kill_leaves_twice_counts_once(folder, tmp_path):
    out = tmp_path / "out"
    update(folder, out, Toy())
    shutil.copy(out / "embeddings-000000.arrow", out / "embeddings-000007.arrow")
    (out / ".writing-x").write_text("half")
    record(folder / "new.wav", tone("high"))
    info = update(folder, out, Toy()).info
    assert info["segments"] == 7 and info["files"] == 4
    assert sorted(path.name.split("-")[0] for path in out.iterdir()) == [
        ".lock",
        "embeddings",
        "index.json",
        "places",
    ]
    assert not (out / ".writing-x").exists() and len(info["shards"]) == len(list(out.glob("embeddings-*"))) == 1


def test_small_shards_are_joined_until_they_are_full(folder, tmp_path, monkeypatch):
    for number in range(12):
        record(folder / f"{number:02d}.wav", tone("middle", loud=0.1 + number / 100))
    monkeypatch.setattr(indexing, "SHARE", 1)
    monkeypatch.setattr(indexing, "ROWS", 4)
    info = update(folder, tmp_path / "out", Toy()).info
    assert sorted(shard["rows"] for shard in info["shards"]) == [2, 4, 4, 4, 4]
    record(folder / "last.wav", tone("high"))
    info = update(folder, tmp_path / "out", Toy()).info
    assert sum(s["rows"] for s in info["shards"]) == 19 == sum(map(len, open_index(tmp_path / "out").vectors))


def test_broken_files_are_lines_and_no_work_the_next_time(folder, tmp_path):
    (folder / "broken.wav").write_bytes(b"RIFF, but no more")
    (folder / "letter.mp3").write_text("Dear Sir or Madam")
    record(folder / "empty.wav", np.zeros(0, np.float32))
    (folder / ".hidden.wav").write_bytes(b"")
    (folder / "notes.txt").write_text("no recording")
    out = tmp_path / "out"
    made = update(folder, out, Toy())
    assert made.added == 3 and len(made.failures) == 3
    assert all("\n" not in line for line in made.failures)
    for name in ("broken.wav", "letter.mp3", "empty.wav"):
        assert sum(name in line for line in made.failures) == 1
    stamp = (out / "index.json").stat().st_mtime_ns
    again = update(folder, out, Toy())
    assert again.failures == made.failures and (out / "index.json").stat().st_mtime_ns == stamp
    only = tmp_path / "only"
    only.mkdir()
    (only / "broken.wav").write_bytes(b"no")
    with pytest.raises(UserError, match="none of 1 recordings can be read"):
        update(only, tmp_path / "nothing", Toy())


def test_each_copy_of_what_cannot_be_heard_is_named(folder, tmp_path):
    """Only the first of equal files was: the copies stood in no line, and in no count."""
    for name in ("silent.wav", "deep/silent too.wav", "er/silent again.wav"):
        record(folder / name, np.zeros(SAMPLE_RATE, np.float32))
    made = update(folder, tmp_path / "out", Toy())
    assert len(made.failures) == 3
    for name in ("silent.wav", "deep/silent too.wav", "er/silent again.wav"):
        (line,) = [line for line in made.failures if line.startswith(f"{folder / name}: ")]
        assert line.endswith("silent")
    assert update(folder, tmp_path / "out", Toy()).failures == made.failures


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_other_anchors_measure_the_null_anew_and_nothing_else(folder, tmp_path, monkeypatch, kind):
    """P values were of other queries than the salads, as words are searched otherwise since."""
    out = tmp_path / "out"
    update(folder, out, Toy(), kind=kind)
    before = open_index(out)
    hits = find(before, query_vector(Toy(), "high", None), 1)
    anchored = Toy()
    words = np.eye(2, table().vectors.shape[1], dtype=np.float32)
    anchored.anchors = Anchors(words, np.eye(2, 5, dtype=np.float32), frozenset({"dog"}))
    anchored.words = lambda captions: anchored.anchors.blend(captions, Toy.words(anchored, captions))
    assert p_value(before, hits, Toy()) is not None and p_value(before, hits, anchored) is None
    monkeypatch.setattr(indexing.nearest, "build", None)  # which may take minutes
    made = update(folder, out, anchored)
    after = open_index(out)
    assert (made.added, anchored.heard) == (0, 0) and not np.array_equal(after.null.scores, before.null.scores)
    assert p_value(after, hits, anchored) is not None and p_value(after, hits, Toy()) is None
    assert after.info["faiss"] == before.info["faiss"] and after.info["recall"] == before.info["recall"]
    stamp = (out / "index.json").stat().st_mtime_ns
    update(folder, out, anchored)
    assert (out / "index.json").stat().st_mtime_ns == stamp


def test_a_model_that_makes_no_numbers_is_a_line(folder, tmp_path):
    class Broken(Toy):
        def sounds(self, segments):
            vectors = super().sounds(segments)
            vectors[vectors[:, 2] > 0.9] = np.nan  # of a high note
            return vectors

    made = update(folder, tmp_path / "out", Broken())
    assert made.added == 2 and "no numbers" in made.failures[0]


def test_another_model_or_folder_is_refused(folder, tmp_path):
    out = tmp_path / "out"
    update(folder, out, Toy())
    with pytest.raises(UserError, match="was made with the model toy"):
        update(folder, out, Toy("b" * 64))
    other = tmp_path / "other"
    record(other / "x.wav", tone("low"))
    with pytest.raises(UserError, match="is the index of"):
        update(other, out, Toy())
    with pytest.raises(UserError, match="holds other files"):
        update(folder, other, Toy())
    with pytest.raises(UserError, match="no recordings"):
        scan(tmp_path / "out")
    with pytest.raises(UserError, match="no folder"):
        scan(tmp_path / "absent")


READ = (
    *("model", "source", "folder", "beside", "segment", "dimension", "finished"),
    *("shards", "added", "places", "faiss", "kind", "effort", "recall", "segments", "files", "recordings"),
)
"""Entries of `index.json` that every finished index has and something reads."""


def test_foreign_and_damaged_files_are_refused(folder, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no index"):
        open_index(out)
    update(folder, out, Toy(), kind="sq8")
    (faiss,) = out.glob("index-*.faiss")
    data = faiss.read_bytes()
    faiss.write_bytes(data + b"x")
    with pytest.raises(UserError, match="not what was written"):
        open_index(out)
    faiss.write_bytes(b"x" * len(data))
    with pytest.raises(UserError, match="FAISS cannot read it"):
        open_index(out)
    faiss.unlink()
    update(folder, out, Toy())  # built again from the vectors
    assert next(out.glob("index-*.faiss")).read_bytes() == data
    shard = next(out.glob("embeddings-*"))
    shard.write_bytes(shard.read_bytes()[:-30])
    with pytest.raises(UserError, match="damaged or missing"):
        open_index(out)
    out = tmp_path / "anew"
    update(folder, out, Toy())
    whole = read_info(out)
    lacking = [{key: value for key, value in whole.items() if key != name} for name in READ]
    for said in ([], {"format": 2}, *lacking, *({**whole, name: None} for name in READ), {**whole, "finished": 1}):
        (out / "index.json").write_text(json.dumps(said))
        for reader in (read_info, open_index):
            with pytest.raises(UserError, match="no index of this version"):
                reader(out)


def test_files_that_are_gone_are_not_shown(folder, tmp_path):
    update(folder, tmp_path / "out", Toy())
    (folder / "low.wav").unlink()
    opened = open_index(tmp_path / "out")
    query = query_vector(Toy(), "low", None)
    assert "low.wav" not in {hit.file for hit in find(opened, query, 9)}
    shutil.rmtree(folder)  # an index that was carried to another machine
    assert "low.wav" in {hit.file for hit in find(opened, query, 9)}


def test_enough_different_files_are_found_beside_a_long_one(tmp_path):
    folder = tmp_path / "in"
    record(folder / "long.wav", tone(*["high"] * 40))
    for number in range(6):
        record(folder / f"{number}.wav", tone("high", "low", loud=0.1 + number / 100))
    update(folder, tmp_path / "out", Toy())
    assert len(find(open_index(tmp_path / "out"), query_vector(Toy(), "high", None), 5)) == 5
    assert len(find(open_index(tmp_path / "out"), query_vector(Toy(), "high", None), 50)) == 7


def test_queries_are_many_and_different():
    assert len(QUERIES) == len(set(QUERIES)) == 120


def test_an_exact_index_has_no_second_copy_and_an_older_one_loses_it(folder, tmp_path):
    import json

    out = tmp_path / "out"
    update(folder, out, Toy(), kind="sq8")
    assert len(list(out.glob("index-*.faiss"))) == 1 and open_index(out).faiss is not None
    (out / "index.json").write_text(json.dumps({**read_info(out), "kind": "flat", "asked": "flat"}))  # as older ones
    query = query_vector(Toy(), "high", None)
    before = find(open_index(out), query, 3)
    heard = Toy()
    assert update(folder, out, heard).info["faiss"] == {} and heard.heard == 0
    assert not list(out.glob("index-*.faiss")) and open_index(out).faiss is None
    assert find(open_index(out), query, 3) == before


@pytest.mark.parametrize("workers", [2, 5])
def test_several_workers_write_the_same_index(tmp_path, monkeypatch, workers):
    """Whole, in order, with every line, and each computes in one thread; torch has its threads back afterwards."""
    sounds, threads = tmp_path / "sounds", []
    for number in range(23):
        record(sounds / f"{number:02d}.wav", tone(*["low", "middle", "high"][: 1 + number % 3], loud=0.1 + number / 50))
    (sounds / "07.flac").write_text("no sound")
    record(sounds / "silent.wav", 0 * tone("low"))

    class Counting(Toy):
        def sounds(self, segments):
            threads.append(torch.get_num_threads())
            return super().sounds(segments)

    monkeypatch.setattr(indexing, "SHARE", 2)
    made = {}
    for count in (1, workers):
        monkeypatch.setattr(indexing, "WORKERS", count)
        made[count] = update(sounds, tmp_path / str(count), Counting())
    assert made[1] == replace(made[workers], info={**made[workers].info, "beside": made[1].info["beside"]})
    one, other = (open_index(tmp_path / str(count)) for count in (1, workers))
    assert all(mine.equals(theirs) for mine, theirs in zip(one.tables, other.tables, strict=True))
    assert set(threads) == {1}


def test_a_stopped_worker_ends_the_others(tmp_path, monkeypatch):
    sounds, heard = tmp_path / "sounds", []
    for number in range(20):
        record(sounds / f"{number:02d}.wav", tone("low", loud=0.1 + number / 50))

    class Stopped(Toy):
        def sounds(self, segments):
            heard.append(1)
            raise KeyboardInterrupt

    monkeypatch.setattr(indexing, "SHARE", 1)
    monkeypatch.setattr(indexing, "WORKERS", 3)
    with pytest.raises(KeyboardInterrupt):
        update(sounds, tmp_path / "out", Stopped())
    assert len(heard) <= 5
    assert update(sounds, tmp_path / "out", Toy()).added == 20


def test_segments_of_several_files_are_embedded_at_once(folder):
    sizes = []

    class Counting(Toy):
        def sounds(self, segments):
            sizes.append(len(segments))
            return super().sounds(segments)

    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    (folder / "broken.wav").write_text("x")
    together = embed_each(Counting(), [*paths[:2], folder / "broken.wav", *paths[2:]])
    assert sizes == [6] and isinstance(together.pop(2), UserError)
    for path, many in zip(paths, together, strict=True):
        one = embed_file(Toy(), path)
        assert many.starts == one.starts and np.abs(many.vectors - one.vectors).max() < 1e-6


class OneList:
    """Stands in for an index of lists: it looks into the one that holds the first segments alone."""

    def __init__(self, vectors):
        self.vectors = vectors

    def search(self, queries, count):
        scores = queries @ self.vectors.T
        order = np.argsort(-scores, axis=1)[:, :count]
        scores = np.take_along_axis(scores, order, 1)
        lacking = ((0, 0), (0, count - order.shape[1]))
        return np.pad(scores, lacking, constant_values=-np.inf), np.pad(order, lacking, constant_values=-1)


def test_what_a_filter_allows_is_found_in_lists_that_are_not_looked_into(folder, tmp_path):
    update(folder, tmp_path / "out", Toy())
    whole = open_index(tmp_path / "out")
    lists = replace(whole, info={**whole.info, "effort": 1}, faiss=OneList(np.concatenate(whole.vectors)[:1]))
    query = query_vector(Toy(), "low", None)
    for file in ("low.wav", "a, b & c &amp; d.flac", "deep/regen – дождь 雨.wav"):
        where = Where(name=file.rpartition("/")[2])
        assert (
            [hit.file for hit in find(lists, query, 1, where)]
            == [file]
            == [h.file for h in find(whole, query, 1, where)]
        )


def test_a_folder_is_found_below_a_link(folder, tmp_path):
    """An index knows its folder by its real name, and people by the link's."""
    (tmp_path / "link").symlink_to(folder)
    update(tmp_path / "link", tmp_path / "out", Toy())
    index = open_index(tmp_path / "out")
    query = query_vector(Toy(), "low", None)
    found = [
        {hit.file for hit in find(index, query, 9, Where(under=under))}
        for under in ("deep", str(tmp_path / "link/deep"))
    ]
    assert found[0] == found[1] != set()
