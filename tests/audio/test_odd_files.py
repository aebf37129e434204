"""What an index makes of odd files: docs/tasks/audio_files.md is written of it, and compared with."""

import os
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from retable.platform.errors import UserError
from retable.tasks.audio.collect.files import SAMPLE_RATE, Remarks, decode, header, stream

RATE = 44_100
PAGE = Path(__file__).parents[2] / "docs/tasks/audio_files.md"
HEADER = """# audio: odd files

What `retable audio index` makes of files that archives hold. `tests/audio/test_odd_files.py` makes each of them and
writes this table: `RETABLE_WRITE=1 pytest tests/audio/test_odd_files.py`. *heard* counts seconds of sound.

| file | outcome |
|---|---|
"""


def tone(seconds=3.0, rate=RATE, level=0.3):
    return (level * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def written(name, waveform=None, rate=RATE, **options):
    return lambda path: soundfile.write(path / name, tone() if waveform is None else waveform, rate, **options)


def encoded(name, codec, picture=0.0):
    """Write a file by PyAV; with seconds of a picture, a video of one colour beside the sound."""

    def make(path):
        with av.open(str(path / name), "w") as file:
            sound = file.add_stream(codec, rate=48_000 if codec == "libopus" else RATE, layout="mono")
            if picture:
                video = file.add_stream("libx264" if name.endswith(("mp4", "mkv")) else "libvpx", rate=24)
                video.width = video.height = 32
                video.pix_fmt = "yuv420p"
                frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 90, np.uint8), format="rgb24")
                for _ in range(round(24 * picture)):
                    file.mux(video.encode(frame))
                file.mux(video.encode(None))
            frame = av.AudioFrame.from_ndarray(tone(rate=sound.rate)[None], format="fltp", layout="mono")
            frame.sample_rate = sound.rate
            resampler = av.AudioResampler(sound.format.name, "mono", sound.rate, sound.codec_context.frame_size or 1024)
            for even in [*resampler.resample(frame), *resampler.resample(None)]:
                file.mux(sound.encode(even))
            file.mux(sound.encode(None))

    return make


def cut(name, share, **options):
    def make(path):
        written(name, **options)(path)
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: int(share * len(data))])

    return make


def broken_inside(name, seconds=6.0, **options):
    """Overwrite a second in the middle of a compressed file."""

    def make(path):
        noise = np.random.default_rng(0).normal(0, 0.1, round(seconds * RATE)).astype(np.float32)
        written(name, noise, **options)(path)
        data = bytearray((path / name).read_bytes())
        middle, length = len(data) // 2, len(data) // 6
        data[middle : middle + length] = b"\xa5" * length
        (path / name).write_bytes(bytes(data))

    return make


def bytes_of(name, data):
    return lambda path: (path / name).write_bytes(data)


def numbers(name, value):
    def make(path):
        wave = tone()
        wave[1000:1100] = value
        soundfile.write(path / name, wave, RATE, subtype="FLOAT")

    return make


STEREO = np.stack([tone(), -tone()], 1)
ODD = {
    "WAV, 16 bits": ("a.wav", written("a.wav"), "heard 3.0"),
    "WAV of 24 bits, 96 kHz, six channels": (
        "a.wav",
        written("a.wav", np.stack([tone(rate=96_000)] * 6, 1), 96_000, subtype="PCM_24"),
        "heard 3.0",
    ),
    "WAV of a telephone, mu-law": (
        "a.wav",
        written("a.wav", tone(rate=8000), 8000, subtype="ULAW"),
        "heard 3.0",
    ),
    "WAV of 64-bit floats": ("a.wav", written("a.wav", subtype="DOUBLE"), "heard 3.0"),
    "WAV with values beyond 1": ("a.wav", written("a.wav", tone(level=3), subtype="FLOAT"), "clipped"),
    "WAV with values that are no numbers": ("a.wav", numbers("a.wav", np.nan), "100 values are no numbers"),
    "WAV that was cut off": ("a.wav", cut("a.wav", 0.5), "truncated: holds 1.5 s, its header says 3.0"),
    "RF64": ("a.wav", written("a.wav", format="RF64"), "heard 3.0"),
    "Wave64": ("a.w64", written("a.w64", format="W64"), "heard 3.0"),
    "Apple's CAF": ("a.caf", written("a.caf", format="CAF"), "heard 3.0"),
    "Sun's AU": ("a.au", written("a.au", format="AU"), "heard 3.0"),
    "AIFF": ("a.aiff", written("a.aiff"), "heard 3.0"),
    "AIFF-C": ("a.aifc", written("a.aifc", format="AIFF", subtype="FLOAT"), "heard 3.0"),
    "FLAC": ("a.flac", written("a.flac"), "heard 3.0"),
    "FLAC that was cut off": ("a.flac", cut("a.flac", 0.5), "truncated"),
    "FLAC with a broken part": ("a.flac", broken_inside("a.flac"), "cannot be decoded"),
    "Ogg Vorbis": ("a.ogg", written("a.ogg"), "heard 3.0"),
    "Ogg Opus": ("a.opus", written("a.opus", tone(rate=48_000), 48_000, format="OGG", subtype="OPUS"), "heard 3.0"),
    "MP3": ("a.mp3", written("a.mp3"), "heard 3."),
    "MP3 that was cut off": ("a.mp3", cut("a.mp3", 0.5), "heard 1."),
    "MP3 with a broken part": ("a.mp3", broken_inside("a.mp3"), "heard"),
    "M4A (AAC)": ("a.m4a", encoded("a.m4a", "aac"), "heard 3."),
    "MP4, a video with sound": ("a.mp4", encoded("a.mp4", "aac", picture=3), "heard 3."),
    "WebM, a video with sound": ("a.webm", encoded("a.webm", "libopus", picture=3), "heard 3."),
    "Matroska, sound alone": ("a.mka", encoded("a.mka", "ac3"), "heard 3."),
    "silence": ("a.wav", written("a.wav", np.zeros(3 * RATE)), "left out: silent"),
    "stereo whose channels cancel each other": ("a.wav", written("a.wav", STEREO), "cancel each other"),
    "a tenth of a second": ("a.wav", written("a.wav", tone(0.1)), "heard 0.1"),
    "no samples": ("a.wav", written("a.wav", np.zeros(0)), "left out: "),
    "an empty file": ("a.wav", bytes_of("a.wav", b""), "left out: "),
    "a text that is called MP3": ("a.mp3", bytes_of("a.mp3", b"Dear Sir, this is no music. " * 40), "left out: "),
    "a picture that is called WAV": ("a.wav", bytes_of("a.wav", b"\x89PNG\r\n\x1a\n" + bytes(100)), "left out: "),
    "a text that is called M4A": ("a.m4a", bytes_of("a.m4a", b"Dear Sir, this is no music. " * 40), "left out: "),
    "noise that is called FLAC": ("a.flac", bytes_of("a.flac", bytes(range(256)) * 40), "left out: "),
}
"""Kind of file -> its name, what makes it, and how its outcome begins or what it says."""


def outcome(path):
    """Say what becomes of a file, as `retable audio index` does."""
    remarks = Remarks()
    try:
        count = sum(map(len, stream(path, remarks)))
    except UserError as error:
        return f"left out: {str(error).removeprefix(f'{path}: ')}"
    if defect := remarks.defect():
        return f"left out: {defect}"
    return "; ".join([f"heard {count / SAMPLE_RATE:.1f} s", *remarks.lines()])


@pytest.mark.parametrize("kind", ODD)
def test_odd_files_are_heard_or_named(tmp_path, kind):
    name, make, said = ODD[kind]
    make(tmp_path)
    found = outcome(tmp_path / name)
    assert said in found and "\n" not in found
    assert said.startswith("left out") or not found.startswith("left out")


def test_the_page_says_what_is_so(tmp_path):
    rows = []
    for kind, (name, make, _) in ODD.items():
        (tmp_path / kind).mkdir()
        make(tmp_path / kind)
        rows.append(f"| {kind} | {outcome(tmp_path / kind / name)} |")
    text = HEADER + "\n".join(rows) + "\n"
    if os.environ.get("RETABLE_WRITE"):
        PAGE.write_text(text)
    assert len(ODD) >= 30 and PAGE.read_text() == text


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm"])
def test_a_video_may_be_longer_than_its_sound(tmp_path, name):
    encoded(name, "libopus" if name.endswith("webm") else "aac", picture=6)(tmp_path)
    assert outcome(tmp_path / name) in ("heard 3.0 s", "heard 3.1 s")


def test_the_sound_of_a_video_that_was_cut_off_is_named(tmp_path):
    encoded("a.mp4", "aac", picture=3)(tmp_path)
    remarks = Remarks()
    list(stream(tmp_path / "a.mp4", remarks))
    assert remarks.promised == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("kind", ["M4A (AAC)", "WebM, a video with sound", "Matroska, sound alone"])
def test_a_part_of_what_ffmpeg_reads_is_that_part(tmp_path, kind):
    name, make, _ = ODD[kind]
    make(tmp_path)
    whole = decode(tmp_path / name)
    part, rest, ends = decode(tmp_path / name, 1.0, 0.5), decode(tmp_path / name, 1.0), 640
    assert len(part) == 16_000 and abs(len(rest) - len(whole) + 32_000) <= 1
    assert np.abs(part - whole[32_000:48_000])[ends:-ends].max() < 2e-3  # a resampler needs what lies beside it
    assert np.abs(rest - whole[32_000 : 32_000 + len(rest)])[ends:-ends].max() < 2e-3
    assert header(tmp_path / name).seconds == pytest.approx(3, abs=0.1)
    peak = np.abs(np.fft.rfft(whole[8_000:72_000])).argmax() / 2
    assert peak == pytest.approx(440, abs=1)
    with pytest.raises(UserError, match="ends after"):
        decode(tmp_path / name, 9.0)


@pytest.mark.parametrize(("rate", "channels"), [(32_000, 1), (44_100, 2), (8_000, 1)])
def test_a_stream_is_the_whole_file(tmp_path, monkeypatch, rate, channels):
    noise = np.random.default_rng(0).normal(0, 0.1, (5 * rate, channels)).clip(-0.9, 0.9)
    soundfile.write(tmp_path / "a.wav", noise, rate, subtype="FLOAT")
    monkeypatch.setattr("retable.tasks.audio.collect.files.STEP", 0.07)
    remarks = Remarks()
    found = np.concatenate(list(stream(tmp_path / "a.wav", remarks)))
    whole = decode(tmp_path / "a.wav")
    assert abs(len(found) - len(whole)) <= 1
    assert np.abs(found[: len(whole)] - whole[: len(found)]).max() < 1e-4
    assert remarks.lines() == [] and remarks.seconds == pytest.approx(5)


def test_the_good_seconds_of_a_broken_file_lie_where_they_were(tmp_path):
    noise = np.random.default_rng(0).normal(0, 0.1, 6 * RATE).astype(np.float32)
    soundfile.write(tmp_path / "whole.flac", noise, RATE)
    broken_inside("a.flac")(tmp_path)
    remarks = Remarks()
    whole, found = decode(tmp_path / "whole.flac"), np.concatenate(list(stream(tmp_path / "a.flac", remarks)))
    assert abs(len(found) - len(whole)) <= 1
    (start, stop), *_ = remarks.lost
    assert 2 <= start < 3.5 and remarks.lost[-1][1] < 4.6 and stop > start
    before, after = slice(0, int((start - 0.2) * 32_000)), slice(int((remarks.lost[-1][1] + 0.2) * 32_000), 190_000)
    assert np.abs(found[before] - whole[before]).max() < 2e-3
    assert np.abs(found[after] - whole[after]).max() < 2e-3
