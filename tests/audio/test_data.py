"""Batches are functions of seed, epoch and step: for any number of workers, from memory as from a stream."""

from dataclasses import replace

import numpy as np
import pytest
import ray
import torch

from retable.platform.errors import UserError
from retable.platform.execute.session import ray_cluster
from retable.platform.spec.task import Source
from retable.tasks.audio import data
from retable.tasks.audio.collect.recordings import Recording, read_recordings, write_dataset, write_recordings
from retable.tasks.audio.config import Config

CONFIG = Config(batch=4, clip_seconds=0.1, seed=3)
LENGTHS = [1600, 3200, 4800, 6400, 8000, 9600, 4000, 2000, 5000]


def ramp(number):
    """A sound whose samples say which recording and place they are from."""
    return ((np.arange(LENGTHS[number]) + 1000 * number) / 32768).astype(np.float32)


def items():
    for number in range(9):
        split = "training" if number < 6 else "validation" if number < 8 else "test"
        corpus, count = ("wavcaps", 1) if number in (4, 5) else ("clotho", 3)
        captions = tuple(f"{number}.{caption}" for caption in range(count))
        rewrites = tuple((f"{text}a", f"{text}b") for text in captions)
        recording = Recording(
            number, "", corpus, split, "", LENGTHS[number] / 32000, captions, "", number == 4, rewrites, ""
        )
        yield recording, lambda number=number: ramp(number)


@pytest.fixture(params=["waveform", "mel"])
def source(request, storage):
    folder = storage / "data/audio/set"
    return Source(folder, write_dataset(folder, "set", "own", request.param, items()))


@pytest.fixture
def waves(storage):
    folder = storage / "data/audio/waves"
    return Source(folder, write_dataset(folder, "waves", "own", "waveform", items()))


def memory(source):
    return data.read(source.folder)


def opened(source, config=CONFIG, streamed=False):
    return data.Recordings(None if streamed else memory(source), source, [config])


def same(expected, found):
    expected, found = list(expected), list(found)
    assert len(expected) == len(found) > 0
    for one, other in zip(expected, found, strict=True):
        assert one.captions == other.captions
        assert torch.equal(one.audio, other.audio)
        assert torch.equal(one.lengths, other.lengths)
        assert torch.equal(one.recording, other.recording)


def test_an_epoch_has_each_caption_of_the_chosen_recordings_once(waves):
    found = opened(waves)
    assert found.steps == 3  # 12 captions of Clotho and one of WavCaps that is no leak, four at a time
    captions = [caption for batch in found.batches(0, 0, 0, 1) for caption in batch.captions]
    assert len(set(captions)) == 12
    assert set(captions) < set(found.captions()) == {f"{n}.{m}" for n in range(4) for m in range(3)} | {"5.0"}
    other = [caption for batch in found.batches(1, 0, 0, 1) for caption in batch.captions]
    assert captions != other
    with_leaks = opened(waves, replace(CONFIG, leaks="include"))
    assert set(with_leaks.captions()) - set(found.captions()) == {"4.0"}
    assert opened(waves, replace(CONFIG, corpora=("wavcaps",))).captions() == ["5.0"]
    wrapped = opened(waves, replace(CONFIG, steps=8))
    counts = np.unique([c for b in wrapped.batches(0, 0, 0, 1) for c in b.captions], return_counts=True)[1]
    assert (counts.min(), counts.max(), counts.sum()) == (2, 3, 32)


def test_a_clip_is_a_random_part_of_its_own_recording_then_silence(waves):
    starts = set()
    for batch in opened(waves).batches(0, 0, 0, 1):
        assert batch.audio.shape == (4, 3200)
        for audio, length, recording, caption in zip(
            batch.audio, batch.lengths.tolist(), batch.recording.tolist(), batch.captions, strict=True
        ):
            assert caption.startswith(f"{recording}.")
            assert length == min(3200, LENGTHS[recording])
            start = round(float(audio[0]) * 32768) - 1000 * recording
            assert np.array_equal(audio[:length], ramp(recording)[start : start + length])
            assert not audio[length:].any()
            starts.add(start)
    assert len(starts) > 5


def test_the_batches_of_workers_joined_are_those_of_one(source):
    for streamed in (False, True):
        found = opened(source, streamed=streamed)
        whole = list(found.batches(2, 0, 0, 1))
        parts = zip(found.batches(2, 0, 0, 2), found.batches(2, 0, 1, 2), strict=True)
        for batch, (first, second) in zip(whole, parts, strict=True):
            assert batch.captions == first.captions + second.captions
            assert torch.equal(batch.recording, torch.cat([first.recording, second.recording]))
            assert torch.equal(batch.lengths, torch.cat([first.lengths, second.lengths]))
            for half, rows in ((first, batch.audio[:2]), (second, batch.audio[2:])):
                assert torch.equal(half.audio, rows[:, : half.audio.shape[1]])


def test_a_stream_gives_the_same_batches_as_memory_and_starts_anywhere(source, monkeypatch):
    monkeypatch.setattr(data, "PIECE", 3)
    expected = list(opened(source).batches(1, 0, 0, 1))
    streamed = opened(source, streamed=True)
    same(expected, streamed.batches(1, 0, 0, 1))
    same(expected[2:], streamed.batches(1, 2, 0, 1))
    same(opened(source).validation(), streamed.validation())


def test_mel_batches_hold_the_mel_spectrogram_then_silence(storage):
    folder = storage / "data/audio/mel"
    source = Source(folder, write_dataset(folder, "mel", "own", "mel", items()))
    (batch,) = opened(source).validation()
    assert batch.features == "mel"
    assert batch.audio.shape == (2, 13, 128)
    assert batch.lengths.tolist() == [13, 7]  # 1 + (samples - 1) // 320 frames
    assert torch.allclose(batch.audio[1, 7:], torch.tensor(np.log(1e-5), dtype=torch.float32))
    with pytest.raises(UserError, match="shift_bands"):
        opened(source, replace(CONFIG, shift_bands=True))


def test_captions_of_clotho_alone_are_rewritten_as_often_as_asked(waves):
    config = replace(CONFIG, augmentation=0.3, steps=500)
    batches = opened(waves, config).batches(0, 0, 0, 1)
    captions = [pair for batch in batches for pair in zip(batch.recording.tolist(), batch.captions, strict=True)]
    rewritten = [caption[-1] in "ab" for recording, caption in captions if recording < 4]
    assert abs(np.mean(rewritten) - 0.3) < 0.04  # three standard deviations
    assert {caption for recording, caption in captions if recording == 5} == {"5.0"}
    assert {caption[-1] for _, caption in captions} == set("012ab")


def test_validation_recordings_come_whole_each_to_one_worker(waves, monkeypatch):
    found = opened(waves)
    (batch,) = found.validation()
    assert (batch.recording.tolist(), batch.lengths.tolist(), batch.captions) == ([6, 7], LENGTHS[6:8], ())
    shares = [[b.recording.tolist() for b in found.validation(rank, 3)] for rank in range(3)]
    assert shares == [[[6]], [[7]], []]
    monkeypatch.setattr(data, "EVALUATED", 0.2)
    assert [b.recording.tolist() for b in found.validation()] == [[6], [7]]
    monkeypatch.setattr(data, "EVALUATED", 2 * LENGTHS[6] / 32000)  # both, padded to the longer, and not a sample more
    assert [b.recording.tolist() for b in found.validation()] == [[6, 7]]
    assert found.queries("test") == [("8.0", 8), ("8.1", 8), ("8.2", 8)]


def test_an_epoch_has_a_step_even_where_a_batch_is_larger_than_the_data(waves):
    assert opened(waves, replace(CONFIG, batch=100, steps=0)).steps == 1


def test_rewritten_captions_that_are_not_there_are_asked_for(waves):
    none = [replace(each, rewrites=()) for each in read_recordings(waves.folder)]
    write_recordings(waves.folder, none)
    assert opened(waves, replace(CONFIG, augmentation=0.0)).steps
    with pytest.raises(UserError, match=r"augmentation 0\.3: .*no rewritten captions.*retable audio augment"):
        opened(waves, replace(CONFIG, augmentation=0.3))


def test_nothing_to_train_on_is_said(waves):
    with pytest.raises(UserError, match="no captions of audiocaps to train on"):
        opened(waves, replace(CONFIG, corpora=("audiocaps",)))


@pytest.mark.slow
def test_ray_data_hands_over_the_same_batches(waves, monkeypatch):
    monkeypatch.setattr(data, "PIECE", 2)
    expected = list(opened(waves).batches(1, 1, 1, 2))
    with ray_cluster():
        assert ray.is_initialized()
        same(expected, opened(waves, streamed=True).batches(1, 1, 1, 2))
