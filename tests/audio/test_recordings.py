"""A data set comes back as it was written; writing goes on where it stopped."""

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest

from retable.platform.errors import UserError
from retable.tasks.audio.collect import recordings
from retable.tasks.audio.collect.recordings import AudioShards, Recording, read_recordings, write_dataset


def recording(number, split="training", seconds=0.1, **changes):
    fields = {"file": f" a, {number}.wav", "corpus": "clotho", "source": "", "captions": ("A dög barks.", "x")}
    return Recording(recording=number, split=split, seconds=seconds, **{**fields, **changes})


def sounds(count):
    rng = np.random.default_rng(0)
    return [rng.integers(-32768, 32768, 3200 + 100 * n).astype(np.float32) / 32768 for n in range(count)]


def items_of(waves, splits, calls=None):
    def decode(number):
        def read():
            if calls is not None:
                calls.append(number)
            if waves[number] is None:
                raise UserError(f"{number}: broken")
            return waves[number]

        return read

    return [(recording(n, split), decode(n)) for n, split in enumerate(splits)]


@pytest.fixture
def folder(storage):
    return storage / "data/audio/set"


def test_recordings_come_back_as_they_were_written(folder):
    several = [
        recording(0, rewrites=(("a",), ()), facts='{"x": 1}', keywords="dog;bark", leak=True),
        recording(1, captions=(), source="freesound:1"),
    ]
    recordings.write_recordings(folder, several)
    assert read_recordings(folder) == several


def test_sixteen_bit_waveforms_come_back_exactly_from_several_shards_and_row_groups(folder, monkeypatch):
    monkeypatch.setattr(recordings, "SHARD", 20_000)  # three recordings of 0.1 s, by the lengths they claim
    monkeypatch.setattr(recordings, "GROUP", 7_000)
    waves = sounds(9)
    info = write_dataset(folder, "set", "own", "waveform", items_of(waves, ["training"] * 7 + ["test"] * 2))
    assert [len(info["shards"][split]) for split in recordings.SPLITS] == [3, 0, 1]
    assert pq.ParquetFile(f"{folder.root}/audio/training-00000.parquet").metadata.num_row_groups == 3
    shards = AudioShards(folder, info)
    for number in (8, 0, 3, 2, 6, 1, 7, 5, 4):
        assert np.array_equal(shards.waveform(number), waves[number])
    assert [each.seconds for each in read_recordings(folder)] == [len(wave) / 32000 for wave in waves]
    assert info["rows"] == {"training": 7, "validation": 0, "test": 2}
    assert info["bytes"] == 2 * sum(map(len, waves[:7]))
    numbers, stored = shards.all_of("training-00001.parquet")
    assert numbers == [3, 4, 5]
    assert [len(each) for each in stored] == [len(wave) for wave in waves[3:6]]


def test_values_beyond_sixteen_bits_are_clipped_not_wrapped(folder):
    info = write_dataset(folder, "set", "own", "waveform", [(recording(0), lambda: np.array([1.0, -1.0, 0.5]))])
    assert np.allclose(AudioShards(folder, info).waveform(0), [1, -1, 0.5], atol=1 / 32768)


def test_mel_sets_keep_the_mel_spectrogram_in_half_precision(folder):
    wave = sounds(1)[0]
    info = write_dataset(folder / "mel", "set", "own", "mel", [(recording(0), lambda: wave)])
    plain = write_dataset(folder / "waveform", "set", "own", "waveform", [(recording(0), lambda: wave)])
    kept, computed = AudioShards(folder / "mel", info).mel(0), AudioShards(folder / "waveform", plain).mel(0)
    assert kept.shape == (10, 128)  # 0.1 s of 10 ms each
    assert np.array_equal(kept, computed.astype(np.float16))
    with pytest.raises(ValueError, match="no waveforms"):
        AudioShards(folder / "mel", info).waveform(0)


def test_broken_recordings_are_left_out_and_those_after_them_move_up(folder, monkeypatch):
    monkeypatch.setattr(recordings, "SHARD", 14_000)
    waves = sounds(6)
    waves[1] = waves[4] = waves[5] = None
    info = write_dataset(folder, "set", "own", "waveform", items_of(waves, ["training"] * 4 + ["test"] * 2))
    assert folder.read_json(recordings.LEFT_OUT) == ["1: broken", "4: broken", "5: broken"]
    assert [each.file for each in read_recordings(folder)] == [" a, 0.wav", " a, 2.wav", " a, 3.wav"]
    assert [each.recording for each in read_recordings(folder)] == [0, 1, 2]
    assert all(np.array_equal(AudioShards(folder, info).waveform(n), waves[m]) for n, m in enumerate([0, 2, 3]))
    assert info["shards"]["test"] == []


def test_an_interrupted_writing_goes_on_and_ends_as_an_uninterrupted_one(folder, monkeypatch):
    monkeypatch.setattr(recordings, "SHARD", 14_000)
    waves, splits = [*sounds(5), None, *sounds(2)], ["training"] * 6 + ["test"] * 2
    expected = write_dataset(folder / "whole", "set", "own", "waveform", items_of(waves, splits))
    items = items_of(waves, splits)

    def dies():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset(folder / "cut", "set", "own", "waveform", [*items[:4], (items[4][0], dies), *items[5:]])
    assert not (folder / "cut").exists("dataset.json")
    calls = []
    assert write_dataset(folder / "cut", "set", "own", "waveform", items_of(waves, splits, calls)) == expected
    assert calls == [4, 5, 6, 7]  # the first four lie in two whole shards
    assert write_dataset(folder / "cut", "set", "own", "waveform", items_of(waves, splits, calls)) == expected
    assert calls == [4, 5, 6, 7]
    assert (folder / "cut").read_json("left_out.json") == ["5: broken"]


def test_other_recordings_are_written_anew_and_old_shards_removed(folder, monkeypatch):
    monkeypatch.setattr(recordings, "SHARD", 14_000)
    waves = sounds(6)
    first = write_dataset(folder, "set", "own", "waveform", items_of(waves, ["training"] * 6))
    calls = []
    changed = [(dataclasses.replace(each, captions=("new",)), read) for each, read in items_of(waves[:2], "ab", calls)]
    changed = [(dataclasses.replace(each, split="training"), read) for each, read in changed]
    second = write_dataset(folder, "set", "own", "waveform", changed)
    assert calls == [0, 1]
    assert folder.list("audio") == ["training-00000.parquet"]
    assert first["digest"] != second["digest"]


def test_a_file_that_was_replaced_is_read_again_and_changes_the_digest(folder, monkeypatch):
    monkeypatch.setattr(recordings, "SHARD", 14_000)
    waves, splits, calls = sounds(4), ["training"] * 4, []

    def write(stamps):
        written = recordings.write_shards(folder, "waveform", items_of(waves, splits, calls), stamps=stamps)
        return recordings.finish(folder, "set", "own", "waveform", written)

    first = write(["a", "b", "c", "d"])
    assert calls == [0, 1, 2, 3] and write(["a", "b", "c", "d"]) == first and calls == [0, 1, 2, 3]
    assert write(["a", "b", "c", "touched"]) == first and calls == [0, 1, 2, 3, 2, 3]  # the same sound
    waves[0] = waves[0][::-1]  # as long as before
    second = write(["new", "b", "c", "touched"])
    assert calls[-2:] == [0, 1] and len(calls) == 8
    assert np.array_equal(AudioShards(folder, second).waveform(0), waves[0])
    assert second["digest"] != first["digest"]


def test_what_is_missing_or_foreign_is_said_in_one_line(folder):
    with pytest.raises(UserError, match=r"recordings.parquet: missing or broken"):
        read_recordings(folder)
    info = write_dataset(folder, "set", "own", "waveform", items_of(sounds(2), ["training"] * 2))
    with pytest.raises(UserError, match="missing, broken or of another set"):
        AudioShards(folder, info).waveform(7)
    folder.write("audio/training-00000.parquet", b"PAR1 nonsense")
    with pytest.raises(UserError, match=r"training-00000.parquet: missing, broken"):
        AudioShards(folder, info).waveform(0)


def test_a_shard_that_says_nested_json_is_written_again(folder):
    items = items_of(sounds(2), ["training"] * 2)
    info = write_dataset(folder, "set", "own", "waveform", items)
    name = "audio/training-00000.parquet"
    whole = folder.read_table(name)
    deep = whole.replace_schema_metadata({**whole.schema.metadata, b"shard": b"[" * 100_000})
    pq.write_table(deep, f"{folder.root}/{name}")
    assert write_dataset(folder, "set", "own", "waveform", items) == info
    assert folder.read_table(name).schema.metadata == whole.schema.metadata


def everything(folder, info):
    """Return a data set's sound, read both ways, and its table."""
    shards = AudioShards(folder, info)
    rows = read_recordings(folder)
    whole = [sound.tobytes() for name in info["starts"] for sound in shards.all_of(name)[1]]
    assert [shards.stored(each.recording).tobytes() for each in rows] == whole
    return whole, rows


@pytest.mark.parametrize("features", ["waveform", "mel"])
@pytest.mark.parametrize("name", ["audio/training-00000.parquet", "recordings.parquet"])
def test_overwritten_bytes_are_refused_and_written_again(folder, features, name):
    waves, splits, calls = sounds(8), ["training"] * 8, []
    info = write_dataset(folder, "set", "own", features, items_of(waves, splits))
    expected, sound = everything(folder, info), folder.read(name)
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")  # it has no checksum, and mostly cannot be read
    refused, rng = [], np.random.default_rng(0)
    for size in (1, 8, 4000):
        for _ in range(20):
            start = int(rng.integers(4, max(footer - size, 5)))
            damaged = bytearray(sound)
            damaged[start : min(start + size, footer)] = bytes(byte ^ 0x5A for byte in damaged[start:footer][:size])
            folder.write(name, bytes(damaged))
            try:
                assert everything(folder, info) == expected  # bytes that say nothing of the content
            except UserError as error:
                refused.append(str(error))
    assert len(refused) > 40
    for line in refused:
        assert line.startswith(f"{folder}/{name}: missing") and line.endswith("again") and "\n" not in line
    assert write_dataset(folder, "set", "own", features, items_of(waves, splits, calls)) == info
    assert calls == (list(range(8)) if name.startswith("audio") else [])
    assert everything(folder, info) == expected


def test_sets_without_checksums_are_read_as_before(folder):
    info = write_dataset(folder, "set", "own", "waveform", items_of(sounds(5), ["training"] * 5))
    expected = everything(folder, info)
    for name in ("audio/training-00000.parquet", "recordings.parquet"):
        table = pq.read_table(f"{folder.root}/{name}")
        pq.write_table(table, f"{folder.root}/{name}", row_group_size=2)
    assert everything(folder, info) == expected
