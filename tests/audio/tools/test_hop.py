"""Segments that overlap: a hit's second, against recordings whose event's time is known."""

import json

import numpy as np
import pytest
import soundfile

from retable.platform.errors import UserError
from retable.tasks.audio.collect.files import Remarks
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.tools.embed.embedder import pieces
from retable.tasks.audio.tools.search.hits import clock
from retable.tasks.audio.tools.search.index import add, update
from retable.tasks.audio.tools.search.search import open_index, query_vector, read_info
from retable.tasks.audio.tools.search.search import search as find
from tests.audio.tools.test_index import Toy, record, tone


def event(start, seconds=20.0):
    """A low hum, in which one second from `start` on is high instead."""
    wave = np.tile(tone("low"), int(seconds))
    first = round(start * SAMPLE_RATE)
    wave[first : first + SAMPLE_RATE] = tone("high")
    return wave


@pytest.mark.parametrize("start", [0.0, 3.4, 7.33, 12.06, 18.98])
def test_a_hit_begins_where_its_event_does(tmp_path, start):
    """To 0.1 s, as the hop is; without overlap it is up to half a segment beside it."""
    record(tmp_path / "in/long.wav", event(start))
    record(tmp_path / "in/low.wav", tone("low"))
    update(tmp_path / "in", tmp_path / "out", Toy(), hop=0.1)
    hits = find(open_index(tmp_path / "out"), query_vector(Toy(), "high", None), 9)
    assert [hit.file for hit in hits] == ["long.wav", "low.wav"]  # each once, by its best segment
    assert abs(hits[0].offset - start) <= 0.1 and hits[0].score > 0.98


def test_segments_are_the_sound_that_their_offsets_say(tmp_path):
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, round(3.25 * SAMPLE_RATE)).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", sound, SAMPLE_RATE, subtype="FLOAT")
    found = list(pieces(tmp_path / "a.wav", 1.0, Remarks(), 0.3))
    assert [offset for offset, _ in found] == pytest.approx([0.3 * number for number in range(9)], abs=1e-9)
    for offset, piece in found:
        first = round(offset * SAMPLE_RATE)
        assert np.array_equal(piece, sound[first : first + SAMPLE_RATE])
    assert found[-1][0] + len(found[-1][1]) / SAMPLE_RATE == pytest.approx(3.25)  # to the end, which is in none before
    plain, whole = (list(pieces(tmp_path / "a.wav", 1.0, Remarks(), hop)) for hop in (None, 1.0))
    assert [offset for offset, _ in plain] == [offset for offset, _ in whole] == [0.0, 1.0, 2.0, 3.0]


def test_an_index_keeps_its_hop(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    record(folder / "a.wav", event(2.0, 4))
    with pytest.raises(UserError, match=r"^--hop 1.5: segments of this model are 1 s"):
        update(folder, out, Toy(), hop=1.5)
    assert not out.exists()
    update(folder, out, Toy(), hop=0.5)
    record(folder / "b.wav", event(2.5, 4))
    made = update(folder, out, Toy())
    assert made.info["hop"] == 0.5 and made.info["segments"] == 2 * 7
    record(folder / "c.wav", event(1.5, 4))
    index = add(open_index(out), Toy(), folder / "c.wav")
    hits = find(index, query_vector(Toy(), "high", None), 9)
    assert {hit.file: hit.offset for hit in hits} == {"a.wav": 2.0, "b.wav": 2.5, "c.wav": 1.5}
    with pytest.raises(UserError, match=r"its segments begin each 0.5 s, not 1; choose another --out$"):
        update(folder, out, Toy(), hop=1.0)


def test_an_index_of_before_has_no_overlap(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    record(folder / "a.wav", event(2.0, 4))
    update(folder, out, Toy())
    info = read_info(out)
    del info["hop"]
    (out / "index.json").write_text(json.dumps(info))
    assert update(folder, out, Toy(), hop=1.0).added == 0


def test_a_clock_shows_tenths_where_there_are_any():
    assert [clock(s) for s in (0, 70.0, 7.3, 59.96, 3725.25, 7.0000001)] == [
        "0:00", "1:10", "0:07.3", "1:00", "1:02:05.2", "0:07",
    ]  # fmt: skip
