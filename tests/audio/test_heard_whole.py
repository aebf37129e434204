"""Files are decoded to their end, gaps keep their place in time, and all three commands judge a file alike."""

import io
import os
import resource
import struct
import time
from functools import cache
from types import SimpleNamespace

import av
import numpy as np
import pytest
import soundfile

from retable.platform.errors import UserError
from retable.tasks.audio.collect import chunks, ffmpeg
from retable.tasks.audio.collect.files import Remarks, decode, duration, stream
from retable.tasks.audio.collect.recordings import AudioShards, read_recordings
from retable.tasks.audio.prepare.check import check
from retable.tasks.audio.prepare.importer import import_own
from retable.tasks.audio.prepare.prepare import folder
from retable.tasks.audio.tools.embed.embedder import pieces
from retable.tasks.audio.tools.search.index import update
from retable.tasks.audio.tools.search.places import scan
from tests.audio.tools.test_index import Toy

RATE = 44_100


@cache
def chirp(seconds=6.0, rate=RATE):
    """A tone that rises by 100 Hz each second from 300 Hz on, in noise: its pitch tells the second; read-only."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(0).normal(0, 0.03, len(time))
    sound = (0.3 * np.sin(2 * np.pi * (300 * time + 50 * time**2)) + noise).astype(np.float32)
    sound.setflags(write=False)
    return sound


def pitch(sound, second):
    """Return the pitch of the tenth of a second around a second, in Hz."""
    part = sound[round((second - 0.05) * 32_000) : round((second + 0.05) * 32_000)] * np.hanning(3200)
    return np.abs(np.fft.rfft(part, 32_000)).argmax()


def encoded(form, codec, sound=None, rate=RATE, layout="mono", options=None, container=None):
    """Return a file of FFmpeg's as bytes."""
    sound = chirp(rate=rate) if sound is None else sound
    target = io.BytesIO()
    with av.open(target, "w", format=form, options=container or {}) as file:
        track = file.add_stream(codec, rate=rate, layout=layout, options=options or {})
        channels = track.codec_context.layout.nb_channels
        frame = av.AudioFrame.from_ndarray(np.stack([sound] * channels), format="fltp", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(track.format.name, layout, rate, track.codec_context.frame_size or 1024)
        for even in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(track.encode(even))
        file.mux([packet for packet in track.encode(None) if packet.size])
    return target.getvalue()


def sample(form, sound=None, rate=RATE, **options):
    """Return a file of libsndfile's as bytes."""
    if sound is None:
        return _chirping(form, rate, **options)
    target = io.BytesIO()
    soundfile.write(target, sound, rate, format=form, **options)
    return target.getvalue()


@cache
def _chirping(form, rate, **options):
    return sample(form, chirp(), rate, **options)


def pages(ogg):
    """Return the pages of an Ogg file."""
    found, place = [], 0
    while place < len(ogg):
        count = ogg[place + 26]
        size = 27 + count + sum(ogg[place + 27 : place + 27 + count])
        found.append(ogg[place : place + size])
        place += size
    return found


def without_page(ogg, share=0.5):
    every = pages(ogg)
    every.pop(round(share * len(every)))
    return b"".join(every)


def vbr(**options):
    return encoded("mp3", "libmp3lame", options={"q:a": "5"}, container={"write_xing": "0"}, **options)


def sizeless(wav, size=0):
    """Return a WAV as a recorder leaves it that lost its power: its sizes were never written."""
    place = wav.index(b"data") + 4
    return wav[:4] + struct.pack("<I", size) + wav[8:place] + struct.pack("<I", size) + wav[place + 4 :]


def stale(wav, seconds, width=2):
    """Return a WAV as a recorder leaves it that lost its power after it had updated the header once."""
    return sizeless(wav, seconds * RATE * width)


def size_of(name, data, count=4):
    """Return a chunk's name and size, and the same with a size that was never written."""
    size = data[data.index(name) + 4 :][:count]
    return name + size, name + (b"\xff" * 8 if count == 8 else bytes(4))


def odd():
    """Return a WAV of an odd number of bytes of sound, without the pad byte that should follow them."""
    wav = sample("WAV", sound=chirp()[:-1], subtype="PCM_U8")
    return wav[: wav.index(b"data") + 8 + 6 * RATE - 1]


def notes(size=60_001):
    """Return a chunk of notes of an odd size, without a pad byte."""
    return (
        b"bext"
        + struct.pack("<I", size)
        + b"recorded by a river; "[: size % 21]
        + b"recorded by a river; " * (size // 21)
    )


SHORT = chirp(4.0)
WHOLE = {
    "VBR MP3 without a Xing header": ("a.mp3", lambda: vbr(), 6),
    "such an MP3 of 8 kHz": ("a.mp3", lambda: vbr(sound=chirp(6, 8000), rate=8000), 6),
    "two MP3s joined": ("a.mp3", lambda: sample("MP3") + sample("MP3", sound=SHORT), 10),
    "an MP3 joined with one of another rate": ("a.mp3", lambda: sample("MP3") + sample("MP3", sound=SHORT[::2]), 8),
    "Ogg Vorbis chained": ("a.ogg", lambda: sample("OGG") + sample("OGG", sound=SHORT), 10),
    "Ogg Vorbis chained with one of another rate": (
        "a.ogg",
        lambda: sample("OGG") + sample("OGG", sound=chirp(4, 22_050), rate=22_050),
        10,
    ),
    "Ogg Opus chained": (
        "a.opus",
        lambda: encoded("ogg", "libopus", rate=48_000) + encoded("ogg", "libopus", chirp(4, 48_000), 48_000),
        10,
    ),
    "two FLACs joined": ("a.flac", lambda: sample("FLAC") + sample("FLAC", sound=SHORT), 10),
    "Ogg with FLAC inside": ("a.ogg", lambda: encoded("ogg", "flac"), 6),
    "WebM named .opus": ("a.opus", lambda: encoded("webm", "libopus", rate=48_000), 6),
    "AC-3": ("a.ac3", lambda: encoded("ac3", "ac3"), 6),
    "MPEG-TS": ("a.ts", lambda: encoded("mpegts", "mp2"), 6),
    "M4A named .wav": ("a.wav", lambda: encoded("mp4", "aac"), 6),
    "MP3 named .wav": ("a.wav", lambda: sample("MP3"), 6),
    "WAV without a size": ("a.wav", lambda: sizeless(sample("WAV")), 6),
    "WAV of a pipe": ("a.wav", lambda: sizeless(sample("WAV"), 0xFFFFFFFF), 6),
    "AU of a pipe": ("a.au", lambda: sample("AU")[:8] + b"\xff\xff\xff\xff" + sample("AU")[12:], 6),
    "two WAVs joined": ("a.wav", lambda: sample("WAV") + sample("WAV", sound=SHORT), 10),
    "three WAVs joined, one of another rate and layout": (
        "a.wav",
        lambda: (
            sample("WAV")
            + sample("WAV", sound=chirp(2, 22_050), rate=22_050, subtype="FLOAT")
            + sample("WAV", sound=SHORT)
        ),
        12,
    ),
    "WAV whose header was last written after 2 s": ("a.wav", lambda: stale(sample("WAV"), 2), 6),
    "such a WAV of 24 bits": ("a.wav", lambda: stale(sample("WAV", subtype="PCM_24"), 2, 3), 6),
    "WAV with notes behind its sound": (
        "a.wav",
        lambda: sample("WAV") + b"bext" + struct.pack("<I", 60_000) + bytes(60_000),
        6,
    ),
    "WAV with notes behind an odd sound without a pad byte": ("a.wav", lambda: odd() + notes(), 6),
    "two WAVs joined without a pad byte": ("a.wav", lambda: odd() + sample("WAV", sound=SHORT), 10),
    "two WAVs joined behind odd notes without a pad byte": (
        "a.wav",
        lambda: sample("WAV") + notes() + sample("WAV", sound=SHORT),
        10,
    ),
    "two WAVs joined, the last without a size": (
        "a.wav",
        lambda: sample("WAV") + sizeless(sample("WAV", sound=SHORT)),
        10,
    ),
    "three WAVs joined, the second empty": (
        "a.wav",
        lambda: sample("WAV") + sample("WAV", sound=SHORT[:0]) + sample("WAV", sound=SHORT),
        10,
    ),
    "two WAVs joined, the first empty": ("a.wav", lambda: sample("WAV", sound=SHORT[:0]) + sample("WAV"), 6),
    "two WAVs joined, the last empty": ("a.wav", lambda: sample("WAV") + sample("WAV", sound=SHORT[:0]), 6),
    "WAV with a tag behind its sound": ("a.wav", lambda: sample("WAV") + b"TAG" + b"x" * 125, 6),
    "AIFF without a size": ("a.aiff", lambda: sample("AIFF").replace(*size_of(b"SSND", sample("AIFF"))), 6),
    "AU without a size": ("a.au", lambda: sample("AU")[:8] + bytes(4) + sample("AU")[12:], 6),
    "AU whose header was last written after 2 s": (
        "a.au",
        lambda: sample("AU")[:8] + struct.pack(">I", 4 * RATE) + sample("AU")[12:],
        6,
    ),
    "CAF without a size": ("a.caf", lambda: sample("CAF").replace(*size_of(b"data", sample("CAF"), 8)), 6),
    "WAV with MP3 inside": ("a.wav", lambda: encoded("wav", "libmp3lame"), 6),
    "WAV, GSM 6.10": ("a.wav", lambda: sample("WAV", sound=chirp(6, 8000), rate=8000, subtype="GSM610"), 6),
    "WAV, ADPCM": ("a.wav", lambda: sample("WAV", subtype="MS_ADPCM"), 6),
}
"""Kind of file -> its name, its bytes, and the seconds that it holds."""


@pytest.mark.parametrize("kind", WHOLE)
def test_a_file_is_heard_to_its_end_by_all_that_read_it(tmp_path, kind):
    name, make, seconds = WHOLE[kind]
    (tmp_path / name).write_bytes(make())
    remarks = Remarks()
    heard = np.concatenate(list(stream(tmp_path / name, remarks)))
    assert len(heard) / 32_000 == pytest.approx(seconds, abs=0.2)  # as long as an encoder's padding
    assert len(decode(tmp_path / name)) == pytest.approx(len(heard), abs=1)
    assert duration(tmp_path / name) == pytest.approx(len(heard) / 32_000, abs=1e-3)
    assert sum(len(piece) for _, piece in pieces(tmp_path / name, 1.0, Remarks())) >= len(heard) - 3200
    assert all(abs(pitch(heard, second) - 300 - 100 * second) < 16 for second in (1, 3, 5))  # an encoder's delay
    assert [line for line in remarks.lines() if not line.startswith("mislabelled")] == []
    assert ("mislabelled" in " ".join(remarks.lines())) == ("named" in kind)


GAPS = {
    "Ogg Vorbis that lost a page": ("a.ogg", lambda: without_page(sample("OGG"))),
    "Ogg Opus that lost a page": ("a.opus", lambda: without_page(encoded("ogg", "libopus", rate=48_000))),
    "Ogg Vorbis with a damaged page": ("a.ogg", lambda: damaged(sample("OGG"))),
    "FLAC with a damaged part": ("a.flac", lambda: damaged(sample("FLAC"))),
    "Ogg FLAC that lost a page": ("a.oga", lambda: without_page(encoded("ogg", "flac"))),
    "MP3 with a damaged part": ("a.mp3", lambda: damaged(sample("MP3"))),
    "Matroska with a damaged part": ("a.mka", lambda: damaged(encoded("matroska", "flac"), 0.06)),
}


def damaged(data, share=0.15):
    middle, size = len(data) // 2, round(share * len(data))
    return data[: middle - size // 2] + b"\xa5" * size + data[middle - size // 2 + size :]


@pytest.mark.parametrize("kind", GAPS)
def test_a_gap_keeps_its_place_in_time_and_is_named_there(tmp_path, kind):
    name, make = GAPS[kind]
    (tmp_path / name).write_bytes(make())
    remarks = Remarks()
    heard = np.concatenate(list(stream(tmp_path / name, remarks)))
    start, stop = remarks.lost[0][0], remarks.lost[-1][1]
    assert 1.5 < start < stop < 4.95 and "cannot be decoded; heard as silence" in remarks.lines()[0]
    assert len(heard) / 32_000 == pytest.approx(6, abs=0.15 if name.endswith("mp3") else 0.05)
    assert not heard[round((start + 0.05) * 32_000) : round((remarks.lost[0][1] - 0.05) * 32_000)].any()
    off = 25 if name.endswith("mp3") else 6  # of an MP3 the bytes alone tell how long the gap is
    assert all(abs(pitch(heard, second) - 300 - 100 * second) < off for second in (0.5, 1, 5.2, 5.5))


@pytest.mark.parametrize(
    ("form", "end"), [("WAV", "wav"), ("RF64", "wav"), ("AIFF", "aiff"), ("AU", "au"), ("CAF", "caf"), ("W64", "w64")]
)
def test_what_was_cut_off_is_said_of_every_container(tmp_path, form, end):
    data = sample(form)
    (tmp_path / f"a.{end}").write_bytes(data[: len(data) // 2])
    remarks = Remarks()
    heard = np.concatenate(list(stream(tmp_path / f"a.{end}", remarks)))
    assert len(heard) / 32_000 == pytest.approx(3, abs=0.1)
    assert "truncated: holds 3.0 s, its header says 6.0 s" in remarks.lines()


def test_bytes_behind_the_sound_that_are_no_samples_are_said(tmp_path):
    (tmp_path / "a.wav").write_bytes(sample("WAV") + bytes(200_000))
    remarks = Remarks()
    assert sum(map(len, stream(tmp_path / "a.wav", remarks))) == pytest.approx(6 * 32_000, abs=1)
    assert remarks.lines() == ["200,000 bytes behind its sound are not heard"]


def test_bytes_of_a_joined_wav_that_cannot_be_read_are_said(tmp_path):
    """They were left out without a word."""
    broken = sample("WAV", sound=SHORT).replace(b"fmt ", b"fnt ")
    (tmp_path / "a.wav").write_bytes(sample("WAV") + broken)
    remarks = Remarks()
    assert sum(map(len, stream(tmp_path / "a.wav", remarks))) == pytest.approx(6 * 32_000, abs=1)
    assert remarks.lines() == [f"{len(broken):,} bytes behind its sound are not heard"]


def test_the_first_of_joined_wavs_is_heard_though_libsndfile_cannot_read_it(tmp_path):
    (tmp_path / "a.wav").write_bytes(encoded("wav", "mp2") + sample("WAV", sound=SHORT))
    with pytest.raises(soundfile.LibsndfileError):
        soundfile.info(tmp_path / "a.wav")
    heard = np.concatenate(list(stream(tmp_path / "a.wav", Remarks())))
    assert len(heard) / 32_000 >= 5.9
    assert all(abs(pitch(heard, second) - 300 - 100 * second) < 16 for second in (1, 3, 5))


def test_many_gaps_are_a_few_lines():
    lines = Remarks(lost=[(n, n + 0.25) for n in range(100)], seconds=200.0, loudest=1.0).lines()
    assert len(lines) == 4 and lines[0].startswith("0:00.0 to 0:00.2") and "97 gaps more, of 24.2 s in all" in lines[3]


def values(name, change):
    def make(path):
        sound = chirp(1.0).copy()
        change(sound)
        soundfile.write(path / name, sound, RATE, subtype="FLOAT")

    return make


def put(where, value):
    return lambda sound: sound.__setitem__(where, value)


JUDGED = {
    "one value that is no number": (values("a.wav", put(1000, np.nan)), "1 values are no numbers", True),
    "an infinite value": (values("a.wav", put(1000, np.inf)), "1 values are no numbers", True),
    "no numbers at all": (values("a.wav", put(slice(None), np.nan)), "no numbers", False),
    "silence": (values("a.wav", put(slice(None), 0)), "silent", False),
    "what is too quiet to be heard": (values("a.wav", put(slice(None), 5e-5)), "silent", False),
    "GSM 6.10": (
        lambda path: soundfile.write(path / "a.wav", chirp(1, 8000) / 4, 8000, format="WAV", subtype="GSM610"),
        "",
        True,
    ),
    "a damaged FLAC": (lambda path: (path / "a.flac").write_bytes(damaged(sample("FLAC"))), "cannot be decoded", True),
    "a FLAC that was cut off": (
        lambda path: (path / "a.flac").write_bytes(sample("FLAC")[:60_000]),
        "truncated: holds",
        True,
    ),
    "what is too short": (lambda path: soundfile.write(path / "a.wav", chirp(0.05), RATE), "too short", False),
    "a pipe": (lambda path: os.mkfifo(path / "a.wav"), "pipe", False),
    "an M4A that is called WAV": (
        lambda path: (path / "a.wav").write_bytes(encoded("mp4", "aac")),
        "mislabelled, it is MOV",
        True,
    ),
}
"""Kind of file -> what makes it, what is said of it, and whether it is used."""


@pytest.mark.parametrize("kind", JUDGED)
def test_index_import_and_check_judge_a_file_alike(tmp_path, storage, kind):
    make, said, used = JUDGED[kind]
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    make(sounds)
    soundfile.write(sounds / "good.wav", chirp(2.0), RATE)
    name = next(path.name for path in sounds.iterdir() if path.name != "good.wav")
    (tmp_path / "sounds.csv").write_text(f"file,caption,split\n{name},x,training\ngood.wav,y,training\n")

    made = update(sounds, tmp_path / "index", Toy())
    place = folder(storage, "mine")
    info = import_own(tmp_path / "sounds.csv", place, "mine")
    found = [line for line in check(sounds) if f"{name}: " in line]
    notes = [line for line in place.read_json("remarks.json") if f"{name}: " in line]
    assert (made.info["recordings"], info["left_out"]) == ((2, 0) if used else (1, 1))
    left, noted = (made.failures, made.remarks) if not used else (made.remarks, made.failures)
    assert not noted and len(left) == (said != "")
    for line in (*left, *found, *(notes if used else place.read_json("left_out.json"))):
        assert said in line and line.count("\n") == 0
    assert bool(found) == (said != "")


def test_the_import_keeps_all_of_a_file_whose_header_says_less(tmp_path, storage, monkeypatch):
    monkeypatch.setattr("retable.tasks.audio.prepare.importer.LONGEST", 5.0)
    (tmp_path / "a.mp3").write_bytes(vbr())
    (tmp_path / "b.ogg").write_bytes(sample("OGG", sound=chirp(2.0)) + sample("OGG", sound=chirp(2.0)))
    (tmp_path / "mine.csv").write_text("file,caption,split\na.mp3,x,training\nb.ogg,x,training\n")
    place = folder(storage, "mine")
    info = import_own(tmp_path / "mine.csv", place, "mine")
    assert [round(each.seconds, 1) for each in read_recordings(place)] == [5.0, 4.0]
    assert len(AudioShards(place, info).waveform(0)) == 5 * 32_000
    (cut,) = place.read_json("cut.json")
    assert cut[0] == "a.mp3" and cut[1] == pytest.approx(6, abs=0.1) and "a.mp3 (6 s)" in info["cut"]


def test_recordings_without_a_length_fill_shards_by_their_bytes(tmp_path, storage, monkeypatch):
    """By their headers they last 0 s: all of them were one shard, which is in memory at once."""
    flac = sample("FLAC", sound=chirp(2.0))
    at = flac.index(b"fLaC") + 8 + 13  # the number of samples: 4 bits and 4 bytes
    (piped := bytearray(flac))[at : at + 5] = bytes([flac[at] & 0xF0, 0, 0, 0, 0])
    lines = ["file,caption,split"]
    for n in range(4):
        (tmp_path / f"{n}.flac").write_bytes(bytes(piped))
        lines.append(f"{n}.flac,x{n},training")
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("retable.tasks.audio.collect.recordings.SHARD", 64_000)
    info = import_own(tmp_path / "mine.csv", folder(storage, "mine"), "mine")
    assert len(info["shards"]["training"]) == 4
    assert [round(each.seconds, 2) for each in read_recordings(folder(storage, "mine"))] == [2.0] * 4


def test_no_file_makes_another_one_be_read(tmp_path):
    """FFmpeg would open what a playlist names: here nothing but the file itself is read."""
    soundfile.write(tmp_path / "secret.wav", chirp(1.0), RATE)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:6\n#EXTINF:6,\nfile://{tmp_path}/secret.wav\n#EXT-X-ENDLIST\n"
    listed = f"ffconcat version 1.0\nfile {tmp_path}/secret.wav\n"
    for name, text in (("a.ts", playlist), ("a.mp4", playlist), ("a.ogg", listed)):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match="it is text"):
            decode(tmp_path / name)


def test_a_pipe_is_left_out_before_it_is_opened(tmp_path):
    soundfile.write(tmp_path / "good.wav", chirp(1.0), RATE)
    os.mkfifo(tmp_path / "p.wav")
    (tmp_path / "dangling.wav").symlink_to(tmp_path / "nowhere.wav")
    (tmp_path / "zero.wav").symlink_to("/dev/zero")
    files, failures, _ = scan(tmp_path)
    assert [file.path for file in files] == ["good.wav"] and len(failures) == 3
    assert any("p.wav: a pipe or device" in line for line in failures)


def test_a_clock_that_jumps_again_and_again_is_no_silence_of_days():
    """A file of a few kilobytes became hours of zeros, one for each packet."""
    clock = ffmpeg._Clock(bare=False)
    frame = SimpleNamespace(pts=0, time_base=1, samples=1024, sample_rate=1024)
    packet = SimpleNamespace(size=100, has_sidedata=lambda name: False)
    missing = []
    for number in range(100):
        frame.pts = number * 3000
        missing.append(clock.missing(packet, frame))
    assert sum(missing) == 0
    frame.pts += 6
    assert clock.missing(packet, frame) == 5  # what is short is kept in its place


def test_a_wav_of_more_parts_than_files_may_be_open_is_heard_to_its_end(tmp_path):
    path = tmp_path / "a.wav"
    data = io.BytesIO()
    soundfile.write(data, np.zeros(800, np.int16), 8000, format="WAV")
    path.write_bytes(data.getvalue() * 300)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, most[1]))
    try:
        assert duration(path) == pytest.approx(30.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def test_a_wav_of_very_many_chunks_takes_no_time(tmp_path):
    path = tmp_path / "a.wav"
    data = io.BytesIO()
    soundfile.write(data, np.zeros(800, np.int16), 8000, format="WAV")
    path.write_bytes(data.getvalue() + b"note\0\0\0\0" * 500_000)
    begun = time.process_time()
    chunks.parts(path)
    assert time.process_time() - begun < 0.3
