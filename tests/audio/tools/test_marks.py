"""Marks of hits: kept by content, added whole by several at once, and written as pairs that a fine-tuning takes."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile

from retable.platform.errors import UserError
from retable.tasks.audio.collect import layouts
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.tools.search.index import update
from retable.tasks.audio.tools.search.marks import MARKS, Mark, mark, marked, read_marks, write_pairs
from retable.tasks.audio.tools.search.search import Hit, open_index
from tests.audio.tools.test_index import Toy, record, tone


@pytest.fixture
def index(tmp_path):
    """Two short recordings, and one of forty seconds that is high from second 33 to 34."""
    record(tmp_path / "in/low.wav", tone("low"))
    record(tmp_path / "in/middle, 1.wav", tone("middle"))
    record(tmp_path / "in/long.wav", tone(*["low"] * 33, "high", *["middle"] * 6))
    update(tmp_path / "in", tmp_path / "out", Toy())
    return open_index(tmp_path / "out")


def hit(file, offset=0.0):
    return Hit(file, (), 0.5, offset)


def content(index, path):
    return next(file.content for file in index.files if file.path == path)


def test_the_last_mark_of_a_recording_and_words_counts(index):
    assert read_marks(index) == []
    mark(index, "a low hum", hit("low.wav"), True)
    mark(index, "wind", hit("low.wav"), True)
    mark(index, " a  low hum ", hit("low.wav"), False)
    assert read_marks(index) == [
        Mark("wind", content(index, "low.wav"), 0.0, True),
        Mark("a low hum", content(index, "low.wav"), 0.0, False),
    ]
    assert len((index.out / MARKS).read_text().splitlines()) == 3  # nothing is ever taken away


def test_marks_outlast_a_rename_and_an_index_built_anew(index, tmp_path):
    mark(index, "hum", hit("low.wav"), True)
    (tmp_path / "in/low.wav").rename(tmp_path / "in/other.wav")
    record(tmp_path / "in/new.wav", tone("high"))
    update(tmp_path / "in", tmp_path / "out", Toy())
    write_pairs(open_index(tmp_path / "out"), tmp_path / "good.csv")
    (row,) = csv.DictReader((tmp_path / "good.csv").read_text().splitlines())
    assert row["file"] == str(tmp_path / "in/other.wav") and row["caption"] == "hum"


def test_a_hit_whose_file_has_left_the_index_is_a_line(index):
    with pytest.raises(UserError, match=r"gone.wav: not in the index any more; search again$"):
        mark(index, "hum", hit("gone.wav"), True)
    assert read_marks(index) == []


def test_lines_of_many_writers_do_not_mix(index):
    words = [f"{number} {'sound ' * 300}" for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: mark(index, text, hit("low.wav"), True), words))
    assert {each.words for each in read_marks(index)} == {" ".join(text.split()) for text in words}


def test_a_broken_last_line_is_passed_over_and_any_other_is_named(index):
    mark(index, "hum", hit("low.wav"), True)
    path = index.out / MARKS
    whole = path.read_text()
    path.write_text(whole + '{"words": "half')
    assert len(read_marks(index)) == 1
    said = json.loads(whole)
    for broken in ("[1]", *(json.dumps({**said, name: [1]}) for name in said), "[" * 100_000, "{}", '{"x": 1}'):
        path.write_text(f"{broken}\n{whole}")
        with pytest.raises(UserError, match=r"marks.jsonl: line 1 is no mark; remove that line$"):
            read_marks(index)
    path.write_text(json.dumps({**said, "offset": 2}))
    assert read_marks(index)[0].offset == 2, "a whole second may be written without a point"


def test_pairs_are_a_table_of_ones_own(index, tmp_path):
    """Read by what `finetune` imports: captions, sources, and of the long recording the seconds around the hit."""
    with pytest.raises(UserError, match="no hit is marked good"):
        write_pairs(index, tmp_path / "good.csv")
    mark(index, 'a "low", deep hum', hit("low.wav"), True)
    mark(index, "noise", hit("middle, 1.wav"), True)
    mark(index, "a whistle", hit("long.wav", 33.0), True)
    mark(index, "a whistle", hit("low.wav"), False)
    (tmp_path / "in/middle, 1.wav").unlink()
    made = write_pairs(index, tmp_path / "sub/good.csv")
    assert (made.pairs, made.bad, made.gone) == (2, 1, 1)
    entries = {entry.captions[0]: entry for entry in layouts.own(tmp_path / "sub/good.csv")}
    assert entries.keys() == {'a "low", deep hum', "a whistle"}
    assert entries['a "low", deep hum'].path == tmp_path / "in/low.wav"
    assert {entry.source for entry in entries.values()} == {content(index, "low.wav"), content(index, "long.wav")}
    part, rate = soundfile.read(entries["a whistle"].path, dtype="float32")
    whole, _ = soundfile.read(tmp_path / "in/long.wav", dtype="float32")
    assert rate == SAMPLE_RATE and np.allclose(part, whole[int(28.5 * rate) : int(38.5 * rate)], atol=1e-4)


def test_a_table_outlasts_a_disk_that_is_not_mounted(index, tmp_path):
    table = tmp_path / "good.csv"
    mark(index, "a low hum", hit("low.wav"), True)
    write_pairs(index, table)
    whole = table.read_bytes()
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"in: none of the 1 recordings marked good is there; mount its disk, or index"):
        write_pairs(index, table)
    assert table.read_bytes() == whole


@pytest.mark.parametrize(
    "text", ["file,caption\nrain.wav,rain\n", "file,caption,source\nrain.wav,rain,freesound:1\n", "notes", ""]
)
def test_a_table_of_ones_own_is_not_replaced(index, tmp_path, text):
    table = tmp_path / "good.csv"
    table.write_text(text)
    mark(index, "a whistle", hit("long.wav", 33.0), True)
    with pytest.raises(UserError, match=r"good.csv: was not written by `audio pairs`; choose another name"):
        write_pairs(index, table)
    assert table.read_text() == text and not (tmp_path / "good").exists()
    table.unlink()
    write_pairs(index, table)
    mark(index, "a low hum", hit("low.wav"), True)
    assert write_pairs(index, table).pairs == 2, "a table of this command is brought up to date"


def test_what_is_a_mark():
    hits = [hit("a"), hit("b")]
    assert marked("+2", hits) == (hits[1], True) and marked(" -1\n", hits) == (hits[0], False)
    for words in ("2", "rain", "+rain", "-", "+ 2", "--2", "", "+" + "9" * 5000):
        assert marked(words, hits) is None
    for words in ("+0", "-3"):
        with pytest.raises(UserError, match=r"the last query has 2$"):
            marked(words, hits)


def test_a_line_is_json(index):
    mark(index, "шум", hit("low.wav", 1.5), True)
    line = json.loads((index.out / MARKS).read_text())
    assert line == {"words": "шум", "content": content(index, "low.wav"), "offset": 1.5, "good": True}
