"""A submission of trained models: every caption's best recordings, from files alone."""

import os

import numpy as np
import pytest
import soundfile
import torch

from retable.platform.errors import UserError
from retable.tasks.audio.tools.challenge import submission
from tests.audio.tools.test_submission import read


class Listener(torch.nn.Module):
    """Hears how loud a recording is, and takes a caption's first word for the loudness that is looked for."""

    def __init__(self, turn=0.0):
        super().__init__()
        self.turn = turn

    def embed_audio(self, audio, lengths, features):
        level = torch.stack([row[:length].abs().max() for row, length in zip(audio, lengths, strict=True)])
        return self._vectors(level)

    def embed_text(self, captions):
        return self._vectors(torch.tensor([float(caption.split()[0]) for caption in captions]))

    def _vectors(self, level):
        angle = level * 3 + self.turn
        return torch.stack([angle.cos(), angle.sin()], 1)


@pytest.fixture
def given(tmp_path):
    """Twelve recordings, the n-th as loud as n / 12, of several kinds; and captions."""
    audio = tmp_path / "audio"
    audio.mkdir()
    for n in range(1, 13):
        kind, rate = ("flac", 32000) if n % 2 else ("wav", 32000)
        sound = np.full((3200 * n, 2), n / 12.1, np.float32)
        soundfile.write(audio / f"{n:02d}, &amp;.{kind}", sound, rate, subtype="PCM_16")
    (audio / "notes.txt").write_text("no sound")
    (audio / "folder.wav.d").mkdir()
    captions = tmp_path / "captions.csv"
    captions.write_text('caption\n"0.1 loud, at most"\n0.5 loud\n')
    return captions, audio, tmp_path / "out" / "submission.csv"


def best(wanted):
    return [f"{n:02d}, &amp;.{'flac' if n % 2 else 'wav'}" for n in wanted]


def test_each_caption_gets_its_ten_nearest_recordings(given):
    captions, audio, out = given
    heard = []
    assert submission.submit([Listener()], captions, audio, out, lambda done, total: heard.append((done, total))) == []
    rows = read(out)
    assert [caption for caption, _ in rows] == ["0.1 loud, at most", "0.5 loud"]
    assert list(rows[0][1]) == best(range(1, 11))
    assert rows[1][1][0] == best([6])[0] and set(rows[1][1][1:3]) == set(best([5, 7]))
    assert heard == [(n, 12) for n in range(1, 13)]


def test_several_models_rank_by_the_mean_of_their_cosines(given):
    captions, audio, out = given
    models = [Listener(), Listener(0.7)]
    wanted, files = submission.read_captions(captions), submission.audio_files(audio)
    single = [submission.mean_cosines([model], wanted, files, lambda done, total: None, {}, {}) for model in models]
    submission.submit(models, captions, audio, out)
    for row, (_, names) in zip((single[0] + single[1]) / 2, read(out), strict=True):
        cosines = [row[[file.name for file in files].index(name)] for name in names]
        assert cosines == sorted(cosines, reverse=True) and min(cosines) == np.sort(row)[-10]


def test_equally_similar_recordings_are_in_order_of_name():
    rows = list(submission.ranked(np.zeros((1, 12)), ["rain"], [f"{n:02d}" for n in range(12)]))
    assert rows == [("rain", tuple(f"{n:02d}" for n in range(10)))]


def test_too_few_recordings_or_no_folder_are_one_line(given, tmp_path):
    captions, audio, out = given
    for file in sorted(audio.glob("*.*"))[:3]:
        if file.is_file():
            file.unlink()
    with pytest.raises(UserError, match="holds 9 recordings"):
        submission.submit([Listener()], captions, audio, out)
    with pytest.raises(UserError, match="no such folder"):
        submission.submit([Listener()], captions, tmp_path / "none", out)
    assert not out.exists()


def test_broken_recordings_are_named_and_the_rest_is_ranked(given):
    captions, audio, out = given
    submission.submit([Listener()], captions, audio, out)
    whole = read(out)
    (audio / "00.wav").write_text("not a sound")
    (audio / "13.flac").write_bytes(b"fLaC" + bytes(99))
    os.mkfifo(audio / "14.wav")
    said = submission.submit([Listener(), Listener()], captions, audio, out)
    assert len(said) == 3 and all(line.startswith(f"left out: {audio}/") for line in said)
    assert "00.wav: mislabelled, it is text" in said[0] and "14.wav: a pipe" in said[2]
    assert read(out) == whole


def test_odd_recordings_are_noted_and_ranked(given):
    captions, audio, out = given
    soundfile.write(audio / "00.wav", np.zeros(32000), 32000)
    soundfile.write(audio / "13.wav", np.full(32, 0.1), 32000)
    said = submission.submit([Listener(), Listener()], captions, audio, out)
    wanted = [f"note: {audio}/00.wav: silent", f"note: {audio}/13.wav: too short (0.001 s, 0.1 s are needed)"]
    assert said == wanted and read(out)[0][1][:2] == ("13.wav", *best([1]))


def test_fewer_than_ten_whole_recordings_are_one_line(given):
    captions, audio, out = given
    for file in sorted(audio.glob("*.wav"))[:3]:
        file.write_text("not a sound")
    with pytest.raises(UserError, match=r"only 9 recordings can be decoded, not 10; .*mislabelled, it is text"):
        submission.submit([Listener()], captions, audio, out)
    assert not out.exists()


def test_a_model_that_has_diverged_writes_nothing(given):
    captions, audio, out = given
    with pytest.raises(UserError, match=r"similarities are not finite; the training of a model has diverged"):
        submission.submit([Listener(), Listener(float("nan"))], captions, audio, out)
    assert not out.exists()
