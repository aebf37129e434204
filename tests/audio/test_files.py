"""Sound files of every kind become mono at 32 kHz, or one clear line."""

import numpy as np
import pytest
import soundfile

from retable.platform.errors import UserError
from retable.tasks.audio.collect.files import Remarks, decode, duration, header, is_sound, stream

SECONDS = 1.5
TONE = 440.0


def tone(rate, seconds=SECONDS):
    return 0.5 * np.sin(2 * np.pi * TONE * np.arange(round(seconds * rate)) / rate)


def piped(path, waveform):
    """Write a FLAC as an encoder does that cannot go back to its header: the length there is 0."""
    soundfile.write(path, waveform, 32000)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8000, 44100])
def test_an_mp3_has_no_holes(tmp_path, rate, channels):
    """Its sound is as loud in each 20 ms of a steady tone; a seek would damage the frames after it."""
    path = tmp_path / "tone.mp3"
    soundfile.write(path, np.stack([tone(rate, 3.0)] * channels, axis=1), rate)
    for found in (decode(path), np.concatenate(list(stream(path, Remarks())))):
        loud = found[8000:88000].reshape(-1, 640).std(axis=1)
        assert np.abs(loud * np.sqrt(2) - 0.5).max() < 0.1


@pytest.mark.parametrize(
    ("suffix", "rate", "channels", "tolerance"),
    [
        ("wav", 32000, 1, 1e-4),
        ("wav", 8000, 1, 2e-2),
        ("flac", 44100, 2, 2e-2),
        ("wav", 48000, 2, 2e-2),
        ("ogg", 44100, 1, 5e-2),
        ("mp3", 44100, 2, 5e-2),
    ],
)
def test_every_format_rate_and_number_of_channels_gives_the_same_tone(tmp_path, suffix, rate, channels, tolerance):
    path = tmp_path / f"a tone, {suffix} &amp;.{suffix}"
    soundfile.write(path, np.stack([tone(rate)] * channels, axis=1), rate)
    found = decode(path)
    assert found.dtype == np.float32
    assert abs(len(found) - SECONDS * 32000) <= 0.06 * 32000  # lossy formats may pad
    middle = slice(8000, 40000)
    if suffix == "mp3":  # a delay of the encoder: compare the spectrum's peak and level
        peak = np.abs(np.fft.rfft(found[middle])).argmax()
        assert abs(peak * 32000 / 32000 - TONE) <= 1
        assert abs(np.sqrt(2) * found[middle].std() - 0.5) < tolerance
    else:
        assert np.abs(found[middle] - tone(32000)[middle]).max() < tolerance
    assert header(path).rate == rate
    assert abs(duration(path) - SECONDS) < 0.06


def test_stereo_is_averaged(tmp_path):
    path = tmp_path / "stereo.wav"
    soundfile.write(path, np.stack([np.full(3200, 0.5), np.full(3200, -0.25)], axis=1), 32000, subtype="FLOAT")
    assert np.allclose(decode(path), 0.125)


def test_of_stereo_that_cancels_itself_one_channel_is_heard(tmp_path):
    """A second of plain stereo, then a half in antiphase: of that the mean is silence, and the channel is not."""
    path, sound = tmp_path / "anti.wav", tone(32000)
    other = np.concatenate([sound[:32000], -sound[32000:]])
    soundfile.write(path, np.stack([sound, other], axis=1), 32000, subtype="FLOAT")
    remarks = Remarks()
    assert np.allclose(decode(path, remarks=remarks), sound, atol=1e-6)
    assert np.allclose(decode(path, 1.0, 0.5), sound[32000:], atol=1e-6)
    assert remarks.lines() == ["its channels cancel each other; the first is heard"]
    decode(path, 0.0, 1.0, plain := Remarks())
    assert not plain.cancels


def test_a_part_is_the_same_part_of_the_whole_and_long_files_are_not_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "long.wav"
    long = np.random.default_rng(0).integers(-9999, 9999, 600 * 1000).astype(np.int16)
    soundfile.write(path, long, 1000)  # ten minutes
    read = []
    plain = soundfile.SoundFile.read
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda self, n, **k: read.append(n) or plain(self, n, **k))
    assert len(decode(path, 595.0, 10.0)) == 5 * 32000
    assert sum(read) <= 6000  # the part, and the block in which the file ends
    same = tmp_path / "same.wav"
    soundfile.write(same, long[:64000], 32000)
    assert np.array_equal(decode(same, 0.5, 1.0), decode(same)[16000:48000])


def test_very_short_sounds_and_values_beyond_one_are_read(tmp_path):
    path = tmp_path / "short.wav"
    soundfile.write(path, np.full(1, 3.0), 48000, subtype="FLOAT")
    assert decode(path).tolist() == [1.0]


def test_broken_files_are_one_clear_line(tmp_path):
    nothing = {
        "empty.wav": (b"", "empty \\(0 bytes\\)"),
        "text.wav": (b"<html>not found</html>\n", "mislabelled, it is text"),
        "picture.mp3": (b"\x89PNG\r\n\x1a\n" + bytes(200), "mislabelled, it is a PNG picture"),
        "phone.wav": (b"\x00\x00\x00\x20ftypM4A " + bytes(200), "corrupt"),
        "noise.flac": (bytes(np.random.default_rng(0).integers(0, 256, 999, np.uint8)), "corrupt"),
        "notes.txt": (b"hello", "not a sound file, it is text"),
    }
    for name, (data, said) in nothing.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=said) as error:
            decode(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
        assert "\n" not in str(error.value)
    soundfile.write(tmp_path / "none.wav", np.zeros(0), 32000)
    soundfile.write(tmp_path / "nan.wav", np.full(100, np.nan), 32000, subtype="FLOAT")
    soundfile.write(tmp_path / "fine.wav", np.zeros(3200), 32000)
    for name, said in {"none.wav": "0 s", "nan.wav": "no numbers", "away.wav": "missing", "": "a folder"}.items():
        with pytest.raises(UserError, match=said):
            decode(tmp_path / name)
    with pytest.raises(UserError, match=r"ends after 0.1 s, before 2 s"):
        decode(tmp_path / "fine.wav", 2.0)


def test_a_flac_of_a_pipe_is_read(tmp_path):
    """Its header says no length: libsndfile makes 2^63 frames of that, and fails to seek in it and at its end."""
    path = piped(tmp_path / "piped.flac", tone(32000))
    with soundfile.SoundFile(path) as file:
        assert file.frames > 1 << 62
    assert np.abs(decode(path) - tone(32000)).max() < 1e-4 and duration(path) == SECONDS
    assert np.abs(decode(path, 1.0, 0.25) - tone(32000)[32000:40000]).max() < 1e-4
    with pytest.raises(UserError, match=r"ends after 1.5 s, before 99 s"):
        decode(path, 99.0)


def test_names_of_sounds(tmp_path):
    assert all(is_sound(tmp_path / name) for name in ("a.WAV", "b, c.flac", "d.mp3", "ü.ogg"))
    assert not any(is_sound(tmp_path / name) for name in (".hidden.wav", "a.csv", "wav"))


def test_a_gap_is_told_in_minutes_and_seconds_below_sixty():
    lines = Remarks(lost=[(0.0, 3.04), (59.94, 59.97), (119.96, 3599.99)]).lines()
    spans = [line.partition(" cannot")[0] for line in lines if "cannot be decoded" in line]
    assert spans == ["0:00.0 to 0:03.0", "0:59.9 to 1:00.0", "2:00.0 to 60:00.0"]
