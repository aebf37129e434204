"""A hundred files as archives hold them: three commands agree on each, and hear as much of it as FFmpeg does."""

import shutil
import subprocess

import av
import numpy as np
import pytest

from retable.tasks.audio.collect.recordings import read_recordings
from retable.tasks.audio.prepare.check import check
from retable.tasks.audio.prepare.importer import import_own
from retable.tasks.audio.prepare.prepare import folder
from retable.tasks.audio.tools.search.index import update
from retable.tasks.audio.tools.search.search import open_index
from tests.audio.test_heard_whole import GAPS, JUDGED, WHOLE, chirp, encoded, sample
from tests.audio.tools.test_index import Toy

PLAIN = [
    *[("wav", "WAV", kind) for kind in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")],
    *[("wav", "WAV", kind) for kind in ("IMA_ADPCM", "MS_ADPCM")],
    *[("wav", "RF64", "PCM_16"), ("wav", "WAVEX", "PCM_24"), ("w64", "W64", "PCM_16"), ("w64", "W64", "FLOAT")],
    *[("aiff", "AIFF", kind) for kind in ("PCM_16", "PCM_24", "FLOAT", "ULAW")],
    *[("au", "AU", kind) for kind in ("PCM_16", "FLOAT", "ULAW")],
    *[("caf", "CAF", kind) for kind in ("PCM_16", "FLOAT", "ALAC_16")],
    *[("flac", "FLAC", kind) for kind in ("PCM_16", "PCM_24")],
    *[("ogg", "OGG", "VORBIS"), ("mp3", "MP3", None)],
]
"""Ends of names, and libsndfile's format and encoding."""
CODED = [
    ("m4a", "ipod", "aac"), ("mp4", "mp4", "alac"), ("mov", "mov", "pcm_s16le"), ("mkv", "matroska", "ac3"),
    ("mka", "matroska", "flac"), ("mkv", "matroska", "libmp3lame"), ("ts", "mpegts", "mp2"), ("ts", "mpegts", "aac"),
    ("ac3", "ac3", "ac3"), ("eac3", "eac3", "eac3"), ("wma", "asf", "wmav2"), ("avi", "avi", "libmp3lame"),
    ("avi", "avi", "pcm_s16le"), ("flv", "flv", "libmp3lame"), ("flv", "flv", "aac"), ("wv", "wv", "wavpack"),
    ("tta", "tta", "tta"), ("mpg", "mpeg", "mp2"), ("aac", "adts", "aac"), ("mp2", "mp2", "mp2"),
    ("oga", "ogg", "flac"), ("wav", "wav", "adpcm_ima_wav"),
]  # fmt: skip
"""Ends of names, and FFmpeg's container and codec."""


def made():
    """Return the files by name."""
    found = {}
    for suffix, form, kind in PLAIN:
        for rate, channels in ((44_100, 1), (8_000 if form == "OGG" else 48_000, 2)):
            sound = np.stack([chirp(2.0, rate)] * channels, 1)
            found[f"{form}-{kind}-{rate}.{suffix}"] = sample(form, sound=sound, rate=rate, subtype=kind)
    for suffix, form, codec in CODED:
        for rate, layout in ((44_100, "mono"), (48_000, "stereo")):
            if form != "flv" or rate == 44_100:
                found[f"{form}-{codec}-{rate}.{suffix}"] = encoded(
                    form, codec, chirp(2.0, rate), rate, layout, {"b": "128000"}
                )
    for rate in (8_000, 24_000, 48_000):
        found[f"opus-{rate}.opus"] = encoded("ogg", "libopus", chirp(2.0, rate), rate)
        found[f"webm-{rate}.webm"] = encoded("webm", "libopus", chirp(2.0, rate), rate)
    for name in [name for name in found if name.endswith("44100." + name.rpartition(".")[2])][::2]:
        found[f"cut-{name}"] = found[name][: round(0.6 * len(found[name]))]
    for kind, (name, make, *_) in {**WHOLE, **GAPS}.items():
        found[f"{kind} {name}"] = make()
    return found


def plain_seconds(path):
    """Return how much FFmpeg hears: its samples, or where its clock has gaps, from the first stamp to the last."""
    if tool := shutil.which("ffmpeg"):
        sizes = []
        for filters in ("anull", "aresample=async=1"):
            command = [tool, "-v", "quiet", "-i", str(path), "-map", "a:0", "-af", filters, "-f", "f32le"]
            done = subprocess.run([*command, "-ac", "1", "-ar", "32000", "-"], capture_output=True, check=False)
            sizes.append(len(done.stdout) / 128_000)
        return max(sizes)
    samples, first, last = 0.0, None, 0.0
    try:
        with av.open(str(path)) as file:
            for packet in file.demux(file.streams.audio[0]):
                try:
                    frames = packet.decode()
                except av.FFmpegError:
                    continue
                for frame in frames:
                    samples += frame.samples / frame.sample_rate
                    if frame.pts is not None:
                        first = frame.time if first is None else first
                        last = max(last, frame.time + frame.samples / frame.sample_rate - first)
    except (av.FFmpegError, IndexError):
        pass
    return max(samples, last)


@pytest.mark.slow
def test_three_commands_agree_on_a_hundred_files_and_hear_what_ffmpeg_hears(tmp_path, storage):
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    for name, data in made().items():
        (sounds / name).write_bytes(data)
    for kind, (make, _, _) in JUDGED.items():
        if kind not in (
            "a damaged FLAC",
            "an M4A that is called WAV",
        ):  # which are there: an index has equal files once
            (sounds / kind).mkdir()
            make(sounds / kind)
    files = sorted(path.relative_to(sounds).as_posix() for path in sounds.rglob("*") if not path.is_dir())
    assert len(files) > 130
    (tmp_path / "sounds.csv").write_text("file,caption,split\n" + "".join(f'"{file}",x,training\n' for file in files))

    said = update(sounds, tmp_path / "index", Toy())
    place = folder(storage, "mine")
    import_own(tmp_path / "sounds.csv", place, "mine")
    defects = [line for line in check(sounds) if ": the same sound as " not in line]
    heard = {file.path for file in open_index(tmp_path / "index").files}
    seconds = {each.file: each.seconds for each in read_recordings(place)}

    def named(lines):
        return {file for file in files if any(line.startswith((f"{sounds}/{file}: ", f"{file}: ")) for line in lines)}

    assert heard == set(seconds) and named(said.failures) == set(files) - heard == named(
        place.read_json("left_out.json")
    )
    assert named(said.remarks) == named(place.read_json("remarks.json"))
    assert named(defects) == named([*said.failures, *said.remarks])
    expected = {f"{kind} {name}" for kind, (name, _) in GAPS.items()} | {file for file in files if "cut-" in file}
    plain = [file for file in heard - named(said.remarks)]
    assert len(plain) > 90 and not named(said.failures) & {file for file in files if "-" in file and "cut" not in file}
    assert named(said.remarks) >= {file for file in heard & expected if "FLAC" in file or "WAV" in file}

    bare = {file for file in files if "MP3 with a damaged" in file or "another rate" in file}  # FFmpeg's count is less
    off = {file: (seconds[file], plain_seconds(sounds / file)) for file in seconds.keys() - bare}
    whole = {f"{kind} {name}": length for kind, (name, _, length) in WHOLE.items()}  # FFmpeg believes sizes of headers
    truth = {file: max(pair[1], whole.get(file, 0)) for file, pair in off.items()}
    assert {file: pair for file, pair in off.items() if abs(pair[0] - truth[file]) > 0.05} == {}
