import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.audio.tools.search import index as indexing
from retable.tasks.audio.tools.search.index import add, update, writing
from retable.tasks.audio.tools.search.search import open_index, query_vector, refresh
from retable.tasks.audio.tools.search.search import search as find
from tests.audio.tools.test_index import Toy, folder, record, tone  # noqa: F401

ROOT = Path(__file__).parents[3]


def hits(opened, words="high", top=50):
    return [(hit.file, round(hit.score, 5), hit.offset) for hit in find(opened, query_vector(Toy(), words, None), top)]


@pytest.fixture
def out(folder, tmp_path):  # noqa: F811
    update(folder, tmp_path / "out", Toy())
    return tmp_path / "out"


def test_an_added_recording_is_found_as_in_an_index_built_anew(folder, out, tmp_path):  # noqa: F811
    reader = open_index(out)
    assert refresh(reader) is reader
    record(folder / "new.wav", tone("low", "middle", "high"))
    record(folder / "more.wav", tone("high"))
    now = add(add(reader, Toy(), folder / "new.wav"), Toy(), folder / "more.wav")
    assert now.faiss is reader.faiss and now.info["segments"] == reader.info["segments"]
    seen = refresh(reader)
    assert seen.faiss is reader.faiss and all(a is b for a, b in zip(seen.tables, reader.tables, strict=False))
    update(folder, tmp_path / "anew", Toy())
    for words in ("high", "middle", "low high", "anything else"):
        for top in (1, 2, 50):
            wanted = hits(open_index(tmp_path / "anew"), words, top)
            scores = [score for _, score, _ in wanted]  # equal ones may come in another order
            assert [score for _, score, _ in hits(now, words, top)] == scores and hits(seen, words, top) == hits(
                now, words, top
            )
            assert top < 50 or {hit[:2] for hit in hits(now, words, top)} == {hit[:2] for hit in wanted}
            assert hits(open_index(out), words, top) == hits(now, words, top)


def test_one_recording_is_added_once(folder, out):  # noqa: F811
    model = Toy()
    record(folder / "new.wav", tone("high"))
    now = add(open_index(out), model, folder / "new.wav")
    assert add(now, model, folder / "new.wav") is now and model.heard == 1
    assert add(open_index(out), model, folder / "deep" / "regen – дождь 雨.wav").info == now.info
    assert [file for file, _, _ in hits(now)].count("new.wav") == 1


def test_a_recording_from_elsewhere_stays_until_its_file_is_gone(folder, out, tmp_path):  # noqa: F811
    kept = tmp_path / "kept" / "a.wav"
    record(tmp_path / "b.wav", tone("low") + tone("high"))
    kept.parent.mkdir()
    now = add(open_index(out), Toy(), tmp_path / "b.wav", kept)
    assert kept.exists() and not (tmp_path / "b.wav").exists()
    assert hits(now, "low high")[0][0] == str(kept)
    model = Toy()
    made = update(folder, out, model)
    assert (model.heard, made.removed, made.info["added"]) == (0, 0, [])
    assert hits(refresh(now), "low high")[0][0] == hits(open_index(out), "low high")[0][0] == str(kept)
    kept.unlink()
    assert update(folder, out, Toy()).removed == 1
    assert str(kept) not in [file for file, _, _ in hits(open_index(out))]


def test_many_additions_become_one_shard(folder, out, monkeypatch):  # noqa: F811
    monkeypatch.setattr(indexing, "ADDED", 3)
    reader = now = open_index(out)
    for number in range(8):
        record(folder / f"{number}.wav", tone("high", loud=0.1 + number / 100))
        now = add(now, Toy(), folder / f"{number}.wav")
        assert len(now.info["added"]) <= 4
    shards = {path.name for path in out.glob("embeddings-*")}
    assert shards == {shard["name"] for shard in now.info["shards"] + now.info["added"]}
    assert {file for file, _, _ in hits(refresh(reader))} >= {f"{number}.wav" for number in range(8)}


@pytest.mark.parametrize("method", ["write", "write_json"])
def test_a_write_that_fails_leaves_the_index_as_it_was(folder, out, monkeypatch, method):  # noqa: F811
    record(folder / "new.wav", tone("high"))
    before = hits(open_index(out))

    def fail(*arguments):
        raise OSError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, method, fail)
        with pytest.raises(OSError, match="no more"):
            add(open_index(out), Toy(), folder / "new.wav")
    assert hits(open_index(out)) == before
    after = hits(add(open_index(out), Toy(), folder / "new.wav"))
    assert [file for file, _, _ in after].count("new.wav") == 1
    update(folder, out, Toy())
    assert hits(open_index(out)) == after


def test_what_cannot_be_heard_is_not_added(folder, out):  # noqa: F811
    (folder / "broken.wav").write_bytes(b"RIFF")
    before = (out / "index.json").read_bytes()
    with pytest.raises(UserError, match=r"broken\.wav: mislabelled"):
        add(open_index(out), Toy(), folder / "broken.wav")
    with pytest.raises(UserError, match="was made with the model"):
        add(open_index(out), Toy("b" * 64), folder / "low.wav")
    assert (out / "index.json").read_bytes() == before


def test_a_second_writer_is_told_who_writes(folder, out):  # noqa: F811
    record(folder / "new.wav", tone("high"))
    reader = open_index(out)
    with writing(out):
        for call in (lambda: add(reader, Toy(), folder / "new.wav", patience=0.05), lambda: update(folder, out, Toy())):
            with pytest.raises(UserError, match=f"process {os.getpid()} of .* writes it; try again"):
                call()
    assert hits(add(reader, Toy(), folder / "new.wav"))


def test_an_index_that_was_made_anew_with_another_model_is_not_mixed_with_the_first(folder, out):  # noqa: F811
    """Queries of the first model were compared with vectors of the other, and its recordings were added among them."""
    reader = open_index(out)
    shutil.rmtree(out)
    update(folder, out, Toy("b" * 64))
    record(folder / "new.wav", tone("high"))
    for call in (lambda: refresh(reader), lambda: add(reader, Toy(), folder / "new.wav")):
        with pytest.raises(UserError, match=r"out: was made anew with another model; open it again$"):
            call()
    assert not open_index(out).holds("new.wav")


ADD = """
import sys
from pathlib import Path
from retable.tasks.audio.tools.search.index import add
from retable.tasks.audio.tools.search.search import open_index
from tests.audio.tools.test_index import Toy
index = open_index(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for path in sys.argv[2:]:
    index = add(index, Toy(), Path(path))
    print(path, flush=True)
"""


@pytest.mark.slow
def test_writers_at_once_lose_nothing_and_one_that_is_killed_harms_nothing(folder, out):  # noqa: F811
    groups = [[folder / f"{who} {number}.wav" for number in range(12)] for who in "abc"]
    for number, path in enumerate(path for group in groups for path in group):
        record(path, tone("high", loud=0.1 + number / 100))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", ADD, str(out), *map(str, group)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )
        for group in groups
    ]  # fmt: skip
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 3
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    said = [writers[2].stdout.readline().strip() for _ in range(3)]
    writers[2].send_signal(signal.SIGKILL)
    said += [line.strip() for line in writers[2].stdout]
    outputs = [writer.communicate(timeout=60)[0].split("\n") for writer in writers[:2]]
    writers[2].communicate()
    assert [writer.returncode for writer in writers] == [0, 0, -signal.SIGKILL]
    promised = {Path(line).name for line in [*said, *outputs[0], *outputs[1]] if line}
    assert len(promised) >= 27
    opened = open_index(out)
    listed = [Path(file.path).name for file in opened.files]
    assert len({content for table in opened.tables for content in table["content"].to_pylist()}) == len(listed)
    assert promised <= set(listed) and len([file for file in listed if file in promised]) == len(promised)
    assert json.loads((out / "index.json").read_text())["finished"]
    update(folder, out, Toy())
    assert len(open_index(out).tables) == 1
