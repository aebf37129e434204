"""Recordings that are sent: what is taken, what is left behind, and what the next query finds."""

import asyncio
import concurrent.futures
import errno
import io
import json
import os
import pathlib
import shutil
import socket
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from pyarrow import fs

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.serve.client import Client, ServeError
from retable.serve.deployments import audio, recordings
from retable.serve.deployments.audio import AudioIndex, Retrieval
from retable.serve.deployments.recordings import STARTS, shown, take_in
from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Problem, Reply, kind_of
from retable.serve.launch import address, choice, models, server
from retable.tasks.audio.tools.search.index import update, writing
from retable.tasks.audio.tools.search.search import open_index
from tests.audio.tools.test_index import Toy, record, tone
from tests.serve.test_parts import ask, made, problem

SHIPPED = 29


def sound(*notes, format="WAV", **options):
    file = io.BytesIO()
    soundfile.write(file, tone(*notes, **options), 32000, format=format)
    return file.getvalue()


@pytest.fixture
def index(tmp_path):
    record(tmp_path / "own" / "low.wav", tone("low"))
    update(tmp_path / "own", tmp_path / "index", Toy())
    return open_index(tmp_path / "index")


def refused(body, index, folder, limits=LIMITS):
    with pytest.raises(Problem) as caught:
        take_in(body, "x", index, Toy(), folder, limits)
    assert str(folder) not in caught.value.detail
    return caught.value.status, caught.value.detail


@pytest.mark.parametrize(("format", "suffix"), [("WAV", ".wav"), ("FLAC", ".flac"), ("OGG", ".ogg"), ("MP3", ".mp3")])
def test_each_kind_is_known_by_what_it_holds(index, tmp_path, format, suffix):
    body, folder = sound("low", "high", format=format), tmp_path / "kept"
    now, kept, seconds = take_in(body, "../../a b.txt", index, Toy(), folder)
    assert kept.suffix == suffix and kept.read_bytes() == body and abs(seconds - 2) < 0.1
    assert now.holds(str(kept)) and shown(str(kept), tmp_path / "own") == "a b.txt"
    assert sorted(path.name for path in folder.iterdir()) == sorted([kept.name, f"{kept.stem}.json"])
    again, same, _ = take_in(body, "other", now, Toy(), folder)
    assert same == kept and again.info == now.info and shown(str(kept), tmp_path / "own") == "a b.txt"


@pytest.mark.parametrize(
    ("call", "before"),
    [
        ("pathlib.Path.mkdir", 0),
        ("tempfile.mkdtemp", 0),
        ("pathlib.Path.write_bytes", 0),
        ("os.fsync", 0),
        ("os.fsync", 1),
        ("os.fsync", 3),
    ],
)
def test_a_disk_that_is_full_says_so_and_leaves_nothing(index, tmp_path, monkeypatch, call, before):
    """`os.fsync`: of the name, then of the index's three files."""
    *place, name = call.split(".")
    owner = pathlib.Path if place[-1] == "Path" else {"tempfile": tempfile, "os": os}[place[0]]
    works, calls, folder, body = getattr(owner, name), [], tmp_path / "kept", sound("high")

    def full(*given, **named):
        calls.append(name)
        if len(calls) > before:
            raise OSError(errno.ENOSPC, "No space left on device")
        return works(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, full)
        assert refused(body, index, folder) == (507, "there is no room for the recording: No space left on device")
    assert {file.path for file in open_index(index.out).files} == {"low.wav"} and not [*folder.glob("*")]
    take_in(body, "x", index, Toy(), folder)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".wav"]


def test_samples_are_counted_where_a_header_does_not_say_how_many(index, tmp_path):
    many = io.BytesIO()
    soundfile.write(many, np.random.default_rng(0).uniform(-0.1, 0.1, (20_000, 8)), 8000, format="FLAC")
    body = bytearray(many.getvalue())
    body[21] &= 0xF0  # STREAMINFO's number of samples: 0 is "not known"
    body[22:26] = bytes(4)
    assert refused(bytes(body), index, tmp_path / "kept", Limits(sound_samples=100_000))[0] == 413


def test_what_is_no_recording_leaves_nothing_behind(index, tmp_path):
    folder, before = tmp_path / "kept", (tmp_path / "index" / "index.json").read_bytes()
    whole = sound("low")
    broken = [b"", b"RIFF", whole[:40], b"RIFF1234WAVE" + b"x" * 500, b"fLaC" + b"\0" * 90, b"OggS" + b"\xff" * 99]
    broken += [b"ID3" + b"\4" * 50, b"\xff\xfb" + b"\0" * 400, sound("low", format="FLAC")[:100], b"\x89PNG\r\n"]
    wrong = io.BytesIO()
    soundfile.write(wrong, np.full(32000, np.nan, np.float32), 32000, format="WAV", subtype="FLOAT")
    statuses = [refused(body, index, folder)[0] for body in [*broken, wrong.getvalue()]]
    assert set(statuses) == {400, 415}
    assert refused(whole, index, folder, Limits(sound_seconds=0.5)) == (
        413, "the recording lasts 1 s; 0.5 s are taken"
    )  # fmt: skip
    assert refused(whole, index, folder, Limits(sound_samples=1000))[0] == 413
    joined = 3 * sound("low", format="OGG")  # its header says 1 s, as the first part lasts
    assert refused(joined, index, folder, Limits(sound_seconds=2.0))[0] == 413
    with writing(tmp_path / "index"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(recordings, "add", lambda *given: recordings_add(*given, patience=0.05))
        assert refused(whole, index, folder)[0] == 503
    assert list(folder.iterdir()) == [] and (tmp_path / "index" / "index.json").read_bytes() == before


recordings_add = recordings.add


def test_an_index_that_was_made_anew_with_another_model_is_a_503(index, tmp_path):
    shelf = AudioIndex(Toy(), index.out)
    shutil.rmtree(index.out)
    update(tmp_path / "own", index.out, Toy("b" * 64))
    storage = Storage.open(tmp_path / "results")
    for request in (lambda: shelf.found(Toy().words(["low"])[0], 1), lambda: shelf.add(sound("high"), "x", storage)):
        with pytest.raises(Problem, match="made anew with another model; restart the server") as caught:
            request()
        assert caught.value.status == 503 and "Retry-After" not in caught.value.headers
    replica = Retrieval(storage, "audio", "", 1, 1.0)
    replica.models = {"a": shelf}
    assert asyncio.run(replica.ready(["a"])).status == 503, "readiness says it too"


def test_words_and_recordings_go_to_the_model_that_the_answer_names(tmp_path):
    """After a swap a replica may hold two, each with an index of its own."""
    shelves = {}
    for place in "ab":
        record(tmp_path / place / f"{place}.wav", tone("low"))
        update(tmp_path / place, tmp_path / f"index-{place}", Toy(place * 64))
        shelves[place] = AudioIndex(Toy(place * 64), tmp_path / f"index-{place}")
    storage = Storage.open(tmp_path / "results")
    replica = Retrieval(storage, "audio", "", 1, 1.0)
    replica.models = shelves

    async def batch(work):
        return audio.vectors([work])[0]

    replica.batch = batch

    def found(digest):
        return {hit["file"] for hit in json.loads(asyncio.run(replica.search(digest, "low", 9)).body)["hits"]}

    assert (found("a"), found("b")) == ({"a.wav"}, {"b.wav"})
    added = json.loads(asyncio.run(replica.add("b", sound("high"), "high.wav")).body)
    assert (found("a"), found("b")) == ({"a.wav"}, {"b.wav", "high.wav"})
    assert asyncio.run(replica.recording("b", added["id"], "")).body == sound("high")
    assert asyncio.run(replica.recording("a", added["id"], "")).status == 404
    assert asyncio.run(replica.ready(["a", "b"])).status == 200
    assert asyncio.run(replica.ready(["a", "c"])).status == 503, "one that is not there answers nothing"


def test_a_batch_of_words_is_embedded_by_model():
    def model(name):
        return SimpleNamespace(embedder=SimpleNamespace(words=lambda words: [name + word for word in words]))

    first, second = model("a"), model("b")
    assert audio.vectors([(first, "x"), (second, "x"), (first, "y")]) == ["ax", "bx", "ay"]


def test_where_the_storage_is_a_bucket_the_recordings_of_the_task_are_searched_and_none_is_kept(tmp_path, monkeypatch):
    record(tmp_path / "shipped" / "bark.ogg", tone("low"))
    monkeypatch.setattr(recordings, "SHIPPED", tmp_path / "shipped")
    bucket = Storage(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "results")
    assert not bucket.is_local
    index = AudioIndex(Toy(), recordings.own_index(Toy(), bucket))
    assert [path.name for path in index.recordings.values()] == ["bark.ogg"]
    assert {path.name for path in (tmp_path / "shipped").iterdir()} == {"bark.ogg"}, "the code's own folder"
    with pytest.raises(Problem, match="keeps no recordings") as refusal:
        index.add(sound("high"), "x", bucket)
    assert refusal.value.status == 501


def test_a_name_tells_nothing_of_where_a_recording_lies(tmp_path):
    assert shown("deep/a.wav", tmp_path) == "deep/a.wav" and shown("/else/where/b.wav", tmp_path) == "b.wav"
    kept = tmp_path / f"{'0' * 64}.ogg"
    assert shown(str(kept), tmp_path) == kept.name
    recordings.note(kept, "\n\x1b[1m/..\\" + "n" * 300)
    assert shown(str(kept), tmp_path) == "n" * recordings.LONGEST
    assert kind_of(b"RF64\0\0\0\0WAVE", STARTS, "") == ".wav"


def test_the_route_reads_no_more_than_it_takes():
    async def echo(task, method, sha256, body, name):
        return Reply(json.dumps([task, method, sha256[:1], len(body), name]).encode(), "application/json", 201)

    served = [models.Model(task="audio", name="audio", sha256="a" * 64)]
    built = made(models=served, ask=echo, limits=Limits(sound_bytes=2000))
    status, headers, body = ask(built, "POST", "/v1/audio?name=a%20dog", b"x" * 1500)
    assert (status, json.loads(body)) == (201, ["audio", "add", "a", 1500, "a dog"])
    assert headers["x-retable-model"] == "audio/audio"
    for path in ("/v1/audio?q=abc", "/v1/audio/abc"):
        assert json.loads(ask(built, "GET", path)[2])[2] == "a"
    assert problem(ask(built, "POST", "/v1/audio", b"x" * 2001))[0] == 413


def test_a_model_of_the_smoke_scale_gives_way_unless_it_was_named(tmp_path, capsys):
    storage = Storage.open(tmp_path)
    smoke = models.Model(task="audio", name="audio", sha256="0" * 64, about={"scale": "smoke", "fingerprint": "12ab"})
    (found,) = choice.with_index([smoke], "", False, storage)
    assert found.why == "from the zoo" and "run 12ab is of the smoke scale" in " ".join(capsys.readouterr().err.split())
    assert choice.with_index([smoke], "", True, storage) == [smoke]
    named = models.Model(task="audio", name="audio", sha256="0" * 64, about=smoke.about, why=choice.NAMED)
    with pytest.raises(UserError, match="--anyway"):
        choice.with_index([named], "", False, storage)
    with pytest.raises(UserError, match="--run names 2 runs of audio, which serves one; leave out all but one"):
        choice.with_index([named, replace(named, sha256="1" * 64)], "", True, storage)
    assert choice.with_index([named, named], "", True, storage) == [named]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fresh_machine_searches_and_what_is_added_is_found_also_after_a_restart(tmp_path):
    storage = Storage.open(tmp_path / "results")
    served = choice.choose_models(choice.Wanted(["audio"], zoo=True), storage)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = address.Address("127.0.0.1", free.getsockname()[1])
    with server.serving(served, storage, where):
        client = Client(where.url)
        there = client.search("a dog barks", 50)
        assert len(there) == SHIPPED and all(hit.file.endswith(".ogg") for hit in there)
        bodies = [sound("low", "high", seconds=1 + 0.1 * place) for place in range(6)]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            added = list(pool.map(lambda body: client.add_recording(body, "new.wav"), bodies))
        assert len({each.id for each in added}) == 6 and added[0].seconds == 2.0
        assert {each.id for each in added} <= {hit.id for hit in client.search("a siren wails", 50)}
        assert client.add_recording(bodies[0]) == added[0]
        assert [client.recording(each.id) for each in added] == bodies
        with pytest.raises(ServeError, match="415"):
            client.add_recording(b"words")
        found = [(hit.id, hit.file) for hit in client.search("a siren wails", 50)]
    with server.serving(served, storage, where):
        client = Client(where.url)
        assert sorted((hit.id, hit.file) for hit in client.search("a siren wails", 50)) == sorted(found)
        assert len(found) == SHIPPED + 6
        assert client.recording(added[3].id) == bodies[3]
