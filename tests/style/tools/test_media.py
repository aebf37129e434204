"""Videos and pictures as phones, cameras and broadcasters make them."""

import importlib
import io
import math
import struct
import sys
import zlib
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import av
import cv2
import numpy as np
import pytest
import torch
from av.stream import Disposition
from PIL import Image, ImageCms, features

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.style.config import Config, View
from retable.tasks.style.files import assets, hdr, images
from retable.tasks.style.networks import transformer
from retable.tasks.style.networks.network import TransformerNetwork
from retable.tasks.style.tools.pictures import memory as apply_memory
from retable.tasks.style.tools.pictures import stylise as stylise_tool
from retable.tasks.style.tools.pictures.batches import Job, stylise_jobs
from retable.tasks.style.tools.pictures.stylise import NetworkStyle, Options, open_paintings
from retable.tasks.style.tools.video import frames, steady
from retable.tasks.style.tools.video.video import Piece, stylise_video
from tests.style.tools.test_video import look, make, picture

torch.set_num_threads(1)
RATE = 25
same = partial(map, lambda pictures: pictures)


def write(
    path,
    *,
    start=0,
    late=0.0,
    codec="libx264",
    kind="yuv420p",
    sound="aac",
    count=20,
    b_frames=0,
    layout="mono",
    sounds=0.0,
):
    """Write a clip whose clock begins at `start` seconds, its sound `late` seconds after its pictures.

    `sounds`: seconds of sound; 0: as long as the pictures.
    """
    with av.open(str(path), "w") as container:
        options = {"bf": str(b_frames)} if codec in ("libx264", "mpeg4") else {}
        stream = container.add_stream(codec, rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 64, 48, kind, 4_000_000
        track = container.add_stream(sound, rate=48000, layout=layout) if sound else None
        packets = []
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(picture(number))
            frame.pts, frame.time_base = number + start * RATE, Fraction(1, RATE)
            packets += stream.encode(frame)
        packets += stream.encode()
        for number in range(int((sounds or count / RATE) * 48000 / 1024)) if track else ():
            channels = 2 if layout == "stereo" else 1
            kind, data = (
                ("s16", np.zeros((1, 1024 * channels), np.int16))
                if "pcm" in sound
                else ("fltp", np.zeros((channels, 1024), np.float32))
            )
            frame = av.AudioFrame.from_ndarray(data, kind, layout)
            frame.sample_rate, frame.time_base = 48000, Fraction(1, 48000)
            frame.pts = int((start + late) * 48000) + 1024 * number
            packets += track.encode(frame)
        packets += track.encode() if track else []
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)
    return path


def clock(path):
    """Return when pictures and sound begin, and how long the file is, in seconds."""
    with av.open(str(path)) as container:
        first = {}
        for packet in container.demux():
            if packet.size and packet.pts is not None:
                kind = packet.stream.type
                first[kind] = min(first.get(kind, np.inf), float(packet.pts * packet.time_base))
        return first["video"], first.get("audio"), container.duration / av.time_base


@pytest.mark.parametrize(
    ("suffix", "target"),
    [(".ts", ".mp4"), (".ts", ".mkv"), (".mkv", ".webm"), (".mp4", ".mp4"), (".mov", ".mkv")]
    + [
        pytest.param(*pair, marks=pytest.mark.slow)
        for pair in (
            (".mkv", ".mp4"), (".mov", ".mp4"), (".mkv", ".mkv"), (".mp4", ".mkv"),
            (".ts", ".webm"), (".mp4", ".webm"), (".mov", ".webm"),
        )
    ],
)  # fmt: skip
def test_a_clock_that_does_not_begin_at_zero_is_written_from_zero_on(tmp_path, suffix, target):
    opus = target == ".webm" and suffix != ".mov"  # which holds none
    source = write(tmp_path / f"in{suffix}", start=40_000, late=0.1, sound="libopus" if opus else "aac")
    before = clock(source)
    assert before[0] > 39_000
    stylise_video(source, tmp_path / f"out{target}", same)
    video, sound, duration = clock(tmp_path / f"out{target}")
    assert 0 <= video < 0.2 and duration < 1.5, "20 frames at 25 a second, and 0.1 s of lateness"
    if target != ".webm" or opus:
        assert sound - video == pytest.approx(before[1] - before[0], abs=0.03), "pictures and sound stay together"
    assert len(look(tmp_path / f"out{target}")[0]) == 20


def test_a_part_of_such_a_file_is_counted_from_its_beginning_by_either_reader(tmp_path):
    source = write(tmp_path / "in.ts", start=40_000)
    for reader in ("pyav", "opencv"):
        written = stylise_video(source, tmp_path / f"{reader}.mp4", same, start=0.2, duration=0.4, reader=reader)
        video, _, duration = clock(tmp_path / f"{reader}.mp4")
        assert written.frames == 10 and video < 0.05 and duration < 0.6


@pytest.mark.parametrize("clocks", [(10, 40_000), (40_000, 10), (10, 40_000, 20, 40_100)])
@pytest.mark.parametrize("target", [".mp4", pytest.param(".mkv", marks=pytest.mark.slow)])
def test_a_clock_that_jumps_inside_the_file_is_written_without_the_gap(tmp_path, clocks, target):
    """Two .ts that a recorder joined; pictures and sound begin together in each."""
    parts = [write(tmp_path / f"{start}.ts", start=start) for start in clocks]
    (tmp_path / "in.ts").write_bytes(b"".join(part.read_bytes() for part in parts))
    written = stylise_video(tmp_path / "in.ts", tmp_path / f"out{target}", same)
    times, pictures, _, _ = look(tmp_path / f"out{target}")
    assert len(times) == 20 * len(clocks)
    assert np.diff([float(one) for one in times]) == pytest.approx(1 / RATE, abs=0.1)
    assert np.abs(pictures[25].astype(int) - picture(5)).mean() < 10
    packets = spans(tmp_path / f"out{target}")
    assert np.diff(packets["audio"]).max() < 0.2 and packets["audio"][-1] == pytest.approx(float(times[-1]), abs=0.2)
    assert any(f"its clock jumps {'1 time' if len(clocks) == 2 else '3 times'}:" in note for note in written.notes)


def spans(path):
    """Return the times of all packets, by kind, in order."""
    found = {"video": [], "audio": []}
    with av.open(str(path)) as container:
        for packet in container.demux():
            if packet.size:
                found[packet.stream.type].append(float(packet.pts * packet.time_base))
    return {kind: sorted(times) for kind, times in found.items()}


def test_a_gap_in_one_track_alone_is_no_jump(tmp_path):
    """A broadcast's second sound comes and goes."""
    source, cut = write(tmp_path / "long.ts", count=14 * RATE), tmp_path / "in.ts"
    with av.open(str(source)) as read, av.open(str(cut), "w") as made:
        streams = {stream.index: made.add_stream_from_template(stream) for stream in read.streams}
        for packet in read.demux():
            seconds = packet.dts and float(packet.dts * packet.time_base)
            if packet.size and (packet.stream.type == "video" or not 1 < seconds < 13):
                packet.stream = streams[packet.stream_index]
                made.mux(packet)
    stylise_video(cut, tmp_path / "out.mp4", same, batch=16)
    sound = np.array(spans(tmp_path / "out.mp4")["audio"])
    assert np.diff(sound).max() == pytest.approx(12, abs=0.5) and sound[-1] == pytest.approx(14, abs=0.5)


@pytest.mark.parametrize("suffix", [".ts", ".mkv", ".mp4"])
def test_another_video_tracks_clock_moves_nothing(tmp_path, suffix):
    path = tmp_path / f"in{suffix}"
    with av.open(str(path), "w") as container:
        packets = []
        for begin in (40_000, 100):
            stream = container.add_stream("libx264", rate=RATE, options={"bf": "0"})
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for number in range(20):
                frame = av.VideoFrame.from_ndarray(picture(number))
                frame.pts, frame.time_base = number + begin * RATE, Fraction(1, RATE)
                packets += [(number, packet) for packet in stream.encode(frame)]
            packets += [(20, packet) for packet in stream.encode()]
        for _, packet in sorted(packets, key=lambda one: one[0]) if suffix == ".ts" else packets:
            container.mux(packet)
    stylise_video(path, tmp_path / "out.mp4", same)
    assert look(tmp_path / "out.mp4")[0] == [Fraction(n, RATE) for n in range(20)]


@pytest.mark.parametrize(("start", "late"), [(40_000, -39_990.0), (10, 39_990.0)])
def test_sound_on_another_clock_is_dropped_and_said(tmp_path, start, late):
    source = write(tmp_path / "in.ts", start=start, late=late)
    notes = stylise_video(source, tmp_path / "out.mp4", same).notes
    video, sound, duration = clock(tmp_path / "out.mp4")
    assert video < 0.1 and duration < 1 and sound is None
    assert any(f"sound track 1 is dropped: its clock is {late:+,.0f} s from the pictures'" in note for note in notes)


def test_sound_that_begins_long_before_the_pictures_on_one_clock_is_kept(tmp_path):
    source = write(tmp_path / "in.mkv", start=30, late=-30.0, count=50, sounds=40)
    stylise_video(source, tmp_path / "out.mkv", same)
    video, sound, _ = clock(tmp_path / "out.mkv")
    assert video - sound == pytest.approx(30, abs=0.1)


BT709 = np.array([[0.6370, 0.1446, 0.1689], [0.2627, 0.6780, 0.0593], [0.0, 0.0281, 1.0610]])
TO_XYZ = {
    "709": np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]),
    "2020": BT709,
    "p3": np.array([[0.4866, 0.2657, 0.1982], [0.2290, 0.6917, 0.0793], [0.0, 0.0451, 1.0439]]),
}
"""Linear red, green, blue -> XYZ (ITU-R BT.709, BT.2020; SMPTE EG 432-1), white D65."""


def pq(nits):
    """ITU-R BT.2100, table 4: the inverse EOTF."""
    y = (np.clip(nits, 0, None) / 10_000) ** (2610 / 16384)
    return ((3424 / 4096 + 2413 / 128 * y) / (1 + 2392 / 128 * y)) ** (2523 / 32)


def hlg(nits):
    """ITU-R BT.2100, table 5: the inverse OOTF of a display of 1,000 nits, and the OETF."""
    shown = np.clip(nits, 0, None) / 1000
    luminance = shown @ [0.2627, 0.6780, 0.0593]
    scene = shown * (np.maximum(luminance, 1e-9) ** (1 / 1.2 - 1))[..., None]
    return np.where(
        scene <= 1 / 12, np.sqrt(3 * scene), 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
    )


def patches():
    """Return an SDR picture of patches, grey ones and coloured ones, none of them bright."""
    rng = np.random.default_rng(0)
    colours = np.concatenate([np.repeat(np.linspace(20, 170, 12)[:, None], 3, 1), rng.uniform(30, 170, (12, 3))])
    return np.kron(np.rint(colours).astype(np.uint8).reshape(4, 6, 3), np.ones((16, 16, 1), np.uint8))


def write_wide(path, light, coded, transfer, primaries, matrix=9, told=None):
    """Write a lossless 10-bit clip of `light`, linear BT.709 of 203 nits, in other primaries, coded by a function."""
    other = light @ (np.linalg.inv(TO_XYZ[{9: "2020", 12: "p3"}[primaries]]) @ TO_XYZ["709"]).T
    levels = np.rint(np.clip(coded(203 * other), 0, 1) * 65535).astype(np.uint16)
    told = told or matrix
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=RATE)
        stream.height, stream.width, stream.pix_fmt = *levels.shape[:2], "yuv444p10le"
        context = stream.codec_context
        context.color_trc, context.color_primaries, context.colorspace, context.color_range = (
            transfer,
            primaries,
            told,
            1,
        )
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(levels, "rgb48le")
            frame = frame.reformat(format="yuv444p10le", dst_colorspace=9 if matrix == 9 else 1, dst_color_range=1)
            frame.color_trc, frame.color_primaries, frame.colorspace, frame.color_range = transfer, primaries, told, 1
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize(
    ("coded", "transfer", "primaries", "said"),
    [
        (pq, 16, 9, "HDR (PQ)"),
        (hlg, 18, 9, "HDR (HLG)"),
        (lambda nits: np.clip(nits / 203, 0, 1) ** (1 / 2.4), 14, 9, "BT.2020"),
        (lambda nits: np.clip(nits / 203, 0, 1) ** (1 / 2.4), 1, 12, "P3"),
    ],
)
def test_wide_and_bright_colours_come_to_the_network_as_bt709_and_are_tagged_so(
    tmp_path, coded, transfer, primaries, said
):
    shown = patches()
    matrix = 9 if primaries == 9 else 1
    source = write_wide(tmp_path / "in.mkv", (shown / 255) ** 2.4, coded, transfer, primaries, matrix)
    seen = []
    notes = stylise_video(
        source, tmp_path / "out.mp4", partial(map, lambda pictures: seen.append(pictures) or pictures)
    ).notes
    found = seen[0][0].permute(1, 2, 0).numpy().astype(int)
    assert np.abs(found - shown).mean() < 2.5 and np.abs(found - shown).max() < 12
    with av.open(str(tmp_path / "out.mp4")) as container:
        context = container.streams.video[0].codec_context
        assert (context.color_trc, context.color_primaries, context.colorspace) == (1, 1, 1)
    assert any(said in note and "BT.709" in note for note in notes)


@pytest.mark.parametrize(("coded", "transfer"), [(pq, 16), (hlg, 18)])
def test_hdr_without_a_matrix_has_bt2020s(tmp_path, coded, transfer):
    shown = patches()
    source = write_wide(tmp_path / "in.mkv", (shown / 255) ** 2.4, coded, transfer, 9, told=2)
    seen = []
    stylise_video(source, tmp_path / "out.mp4", partial(map, lambda pictures: seen.append(pictures) or pictures))
    found = seen[0][0].permute(1, 2, 0).numpy().astype(int)
    assert np.abs(found - shown).mean() < 2.5 and np.abs(found - shown).max() < 12


def test_colours_that_are_not_read_are_refused(tmp_path):
    source = write_wide(tmp_path / "in.mkv", (patches() / 255) ** 2.4, pq, 16, 9, told=14)
    with pytest.raises(UserError, match=r"in.mkv: its colors are ICtCp, which is not read"):
        stylise_video(source, tmp_path / "out.mp4", same)


def test_highlights_keep_their_order_and_stay_within_range():
    nits = np.array([0.0, 50, 100, 203, 400, 800, 1000, 4000, 10_000])
    levels = np.rint(pq(np.repeat(nits[None, :, None], 3, 2)) * 65535).astype(np.uint16)
    found = hdr.to_bt709(levels, hdr.find(16, 9))[0]
    assert (found[:, 0] == found[:, 1]).all() and (np.diff(found[:6, 0].astype(int)) > 0).all()
    assert found[0].tolist() == [0, 0, 0] and found[-1].tolist() == [255, 255, 255]
    assert abs(int(found[3, 0]) - 230) <= 1  # white of 203 nits, as the documents say


def test_hdr_is_refused_by_the_reader_that_cannot_map_it(tmp_path):
    source = write_wide(tmp_path / "in.mkv", (patches() / 255) ** 2.4, pq, 16, 9)
    with pytest.raises(UserError, match=r"HDR .* leave out --reader opencv"):
        stylise_video(source, tmp_path / "out.mp4", same, reader="opencv")


def patched(path, name):
    """Turn the last sound track's codec into one that nobody knows, as an iPhone's `apac` is."""
    data = bytearray(path.read_bytes())
    place = data.rfind(b"mp4a")
    data[place : place + 4] = name
    described = data.index(b"esds", place)
    data[described : described + 4] = b"dapa"
    path.write_bytes(bytes(data))
    return path


def test_a_sound_track_that_cannot_be_written_is_dropped_and_said(tmp_path):
    source = patched(make(tmp_path / "in.mp4", tracks=2), b"apac")
    notes = stylise_video(source, tmp_path / "out.mp4", same).notes
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert len(container.streams.audio) == 1 and len(list(container.decode(container.streams.video[0]))) == 13
    assert any("sound track 2 is dropped" in note for note in notes)


def test_a_codec_that_a_container_does_not_hold_is_dropped_with_the_remedy(tmp_path):
    notes = stylise_video(make(tmp_path / "in.mp4", tracks=1), tmp_path / "out.webm", same).notes
    assert any("sound track 1 is dropped: .webm holds no aac; .mkv does" in note for note in notes)


def test_a_sound_track_with_nothing_in_the_part_is_explained(tmp_path):
    source = write(tmp_path / "in.mkv", count=50, late=1.5)
    notes = stylise_video(source, tmp_path / "out.mp4", same, duration=0.5).notes
    assert any("sound track 1 has no sound between 0.0 and 0.5 s" in note for note in notes)


@pytest.mark.parametrize("target", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("layout", ["mono", "stereo"])
def test_a_cameras_avi_is_written(tmp_path, target, layout):
    source = write(tmp_path / "in.avi", codec="mjpeg", kind="yuvj420p", sound="pcm_s16le", layout=layout)
    written = stylise_video(source, tmp_path / f"out{target}", same)
    assert written.frames == 20
    with av.open(str(tmp_path / f"out{target}")) as container:
        assert len(container.streams.audio) == 1 or any("sound track 1 is dropped" in note for note in written.notes)
    assert abs(clock(tmp_path / f"out{target}")[2] - 0.8) < 0.1


@pytest.mark.parametrize("target", [".mp4", ".mov", ".mkv"])
def test_a_part_of_an_avi_that_begins_between_two_frames_keeps_their_distances(tmp_path, target):
    source = write(tmp_path / "in.avi", codec="mjpeg", kind="yuvj420p", sound=None)
    stylise_video(source, tmp_path / f"out{target}", same, start=0.1)
    times, *_ = look(tmp_path / f"out{target}")
    assert np.diff([float(one) for one in times]) == pytest.approx(1 / RATE, abs=1e-3) and len(times) == 17


@pytest.mark.parametrize("reader", ["pyav", "opencv"])
def test_a_video_called_by_a_time_of_day_is_read(tmp_path, monkeypatch, reader):
    """FFmpeg takes what stands before a colon for a protocol."""
    monkeypatch.chdir(tmp_path)
    source = write(Path("in.mp4").absolute()).rename("2024-01-01T12:30:00.mp4")
    assert stylise_video(source, Path("12:31.mp4"), same, reader=reader).frames == 20
    with av.open(str(tmp_path / "12:31.mp4")) as container:
        assert container.streams.audio


def test_a_name_that_is_no_text_is_refused_by_the_reader_that_would_crash(tmp_path):
    source = write(tmp_path / "in.mp4").rename(tmp_path / "vid\udce9o.mp4")
    assert stylise_video(source, tmp_path / "out.mp4", same).frames == 20
    with pytest.raises(UserError, match="leave out --reader opencv"):
        stylise_video(source, tmp_path / "other.mp4", same, reader="opencv")


def unplaced(path, channels):
    """Write an AVI whose PCM does not say how its channels lie, as field recorders do."""
    layout = {2: "stereo", 3: "2.1", 4: "quad", 5: "5.0", 7: "6.1", 16: "hexadecagonal"}[channels]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        track = container.add_stream("pcm_s16le", rate=48000, layout=layout)
        for number in range(5):
            frame = av.VideoFrame.from_ndarray(picture(number)).reformat(format="yuvj420p")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
            heard = av.AudioFrame.from_ndarray(np.zeros((1, 1920 * channels), np.int16), "s16", layout)
            heard.sample_rate, heard.pts = 48000, 1920 * number
            container.mux(track.encode(heard))
        container.mux(stream.encode())
    data = bytearray(path.read_bytes())
    if (place := data.find(struct.pack("<HH", 0xFFFE, channels))) > 0:
        data[place + 20 : place + 24] = bytes(4)  # dwChannelMask
        path.write_bytes(bytes(data))
    with av.open(str(path)) as container:
        assert channels < 3 or container.streams.audio[0].layout.name == f"{channels} channels"
    return path


@pytest.mark.parametrize("channels", [3, 4, 5, 7])
def test_channels_that_lie_nowhere_are_written_as_usual(tmp_path, channels):
    written = stylise_video(unplaced(tmp_path / "in.avi", channels), tmp_path / "out.mp4", same)
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert [track.channels for track in container.streams.audio] == [channels], written.notes


def test_the_reason_why_a_track_is_dropped_is_the_true_one(tmp_path):
    notes = stylise_video(unplaced(tmp_path / "in.avi", 16), tmp_path / "out.mp4", same).notes
    assert any("sound track 1 is dropped: .mp4 holds no pcm_s16le in 16 channels (" in note for note in notes), notes


def test_sound_that_cannot_be_written_is_no_fault_of_the_pictures(tmp_path, monkeypatch):
    """The encoder of the pictures is not blamed for what the muxer says of the sound."""
    copied = frames._copy_of

    def other(stream, target):
        made = copied(stream, target)
        made.codec_context.extradata = b""  # AAC without it cannot be written to .mp4
        return made

    source = write(tmp_path / "in.ts")
    monkeypatch.setattr(frames, "_refusal", lambda path, index, suffix: "")
    monkeypatch.setattr(frames, "_copy_of", other)
    with pytest.raises(UserError, match=r"in.ts: .mp4 cannot hold the packets of sound track 1 \("):
        stylise_video(source, tmp_path / "out.mp4", same)


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_b_frames_in_avi_come_in_order_and_at_their_times(tmp_path, codec):
    source = write(tmp_path / "in.avi", codec=codec, sound=None, b_frames=2)
    written = stylise_video(source, tmp_path / "out.mp4", same)
    times, pictures, _, _ = look(tmp_path / "out.mp4")
    assert written.frames == len(times) == 20 and times == [Fraction(n, RATE) for n in range(20)]
    for number, found in enumerate(pictures):
        near = [np.abs(found.astype(int) - picture(other)).mean() for other in range(20)]
        assert int(np.argmin(near)) == number


def test_other_video_tracks_and_cover_art_are_said(tmp_path):
    path = tmp_path / "in.mp4"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("libx264", rate=RATE) for _ in range(2)]
        cover = container.add_stream("mjpeg", rate=1)
        for stream in (*streams, cover):
            stream.width, stream.height = 64, 48
            stream.pix_fmt = "yuvj420p" if stream is cover else "yuv420p"
        cover.disposition = Disposition.attached_pic
        for number in range(5):
            for stream in streams:
                frame = av.VideoFrame.from_ndarray(picture(number))
                frame.pts, frame.time_base = number, Fraction(1, RATE)
                container.mux(stream.encode(frame))
        frame = av.VideoFrame.from_ndarray(picture(0)).reformat(format="yuvj420p")
        container.mux(cover.encode(frame))
        for stream in (*streams, cover):
            container.mux(stream.encode())
    notes = stylise_video(path, tmp_path / "out.mp4", same).notes
    assert "not kept: a second video track" in "; ".join(notes) and "cover art" in "; ".join(notes)


def test_a_videos_transparency_is_said_to_be_lost(tmp_path):
    path = write(tmp_path / "in.mov", codec="qtrle", kind="argb", sound="", count=3)
    assert "not kept: transparency" in "; ".join(stylise_video(path, tmp_path / "out.mp4", same).notes)
    plain = write(tmp_path / "plain.mov", sound="", count=3)
    assert not stylise_video(plain, tmp_path / "plain.mp4", same).notes


def test_no_frame_of_a_strangers_video_is_larger_than_is_taken(tmp_path):
    """A header speaks of the first frame alone."""
    path = tmp_path / "in.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number, size in enumerate([(64, 48), (640, 480), (64, 48)]):
            data = io.BytesIO()
            Image.new("RGB", size, "red").save(data, "JPEG")
            packet = av.Packet(data.getvalue())
            packet.pts = packet.dts = number
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, RATE), True
            container.mux(packet)
    made = stylise_video(path, tmp_path / "out.mp4", same, most_pixels=64 * 48)
    assert made.frames == 2 and made.notes
    assert stylise_video(path, tmp_path / "all.mp4", same).frames == 3
    with pytest.raises(UserError, match="no frame can be decoded"):
        frames.probe(write(tmp_path / "large.mp4", sound=""), most_pixels=64 * 47)


@pytest.mark.parametrize("moments", [{"start": math.nan}, {"duration": math.inf}])
def test_moments_are_finite_numbers(tmp_path, moments):
    with pytest.raises(UserError, match="seconds are finite numbers"):
        frames.probe(write(tmp_path / "in.mp4", sound="", count=3), **moments)
    with pytest.raises(UserError, match="strength nan is outside"):
        steady.Finish(strength=math.nan)


COLOURANTS = {
    "sRGB": ((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141)),
    "Display P3": ((0.5151, 0.2412, -0.0011), (0.2920, 0.6922, 0.0419), (0.1571, 0.0666, 0.7841)),
    "ProPhoto": ((0.7977, 0.2880, 0.0), (0.1352, 0.7119, 0.0), (0.0313, 0.0001, 0.8249)),
}
"""XYZ of red, green and blue, adapted to D50."""


def profile(name):
    """Return an ICC profile with sRGB's curve and other colourants."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for index in range(struct.unpack(">I", data[128:132])[0]):
        tag, offset, _ = struct.unpack(">4sII", data[132 + 12 * index : 144 + 12 * index])
        if tag in (b"rXYZ", b"gXYZ", b"bXYZ"):
            values = COLOURANTS[name]["rgb".index(chr(tag[0]))]
            data[offset + 8 : offset + 20] = struct.pack(">3i", *(round(value * 65536) for value in values))
    return bytes(data)


def converted(pixels, name):
    """Convert to sRGB by matrices."""
    curve = np.where((v := pixels / 255) <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    matrix = np.linalg.inv(np.array(COLOURANTS["sRGB"]).T) @ np.array(COLOURANTS[name]).T
    linear = np.clip(curve @ matrix.T, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize("name", ["Display P3", "ProPhoto"])
@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_a_profile_is_converted_to_srgb_for_the_network_and_written_so(tmp_path, name, suffix):
    pixels = patches()
    keep = {"quality": 100} if suffix == "JPEG" else {"lossless": True} if suffix == "WEBP" else {}
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, suffix, icc_profile=profile(name), **keep)
    found = images.read(stream.getvalue())
    middle = (slice(8, None, 16), slice(8, None, 16))
    assert np.abs(found.pixels[middle] - converted(pixels, name)[middle]).max() < 4
    images.write(tmp_path / "out.png", found.pixels, None, found.icc)
    with Image.open(tmp_path / "out.png") as back:
        said = ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(io.BytesIO(back.info["icc_profile"])))
    assert "sRGB" in said
    assert images.read(tmp_path / "out.png").pixels[middle] == pytest.approx(found.pixels[middle], abs=1)


IHDR_END = 33


def chunk(name, data):
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def test_transparency_and_16_bits_survive_the_conversion():
    pixels = np.dstack([patches(), np.full(patches().shape[:2], 77, np.uint8)])
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", icc_profile=profile("Display P3"))
    found = images.read(stream.getvalue())
    assert (found.alpha == 77).all() and np.abs(found.pixels[8, 8] - converted(patches(), "Display P3")[8, 8]).max() < 3
    deep = cv2.imencode(".png", (patches().astype(np.uint16) * 257)[..., ::-1])[1].tobytes()
    named = chunk(b"iCCP", b"x\0\0" + zlib.compress(profile("Display P3")))
    found = images.read(deep[:IHDR_END] + named + deep[IHDR_END:])
    assert np.abs(found.pixels - converted(patches(), "Display P3")).max() < 3


CHROMATICITIES = {
    "sRGB": ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06)),
    "P3": ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),
    "BT.2020": ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046)),
    "Adobe RGB": ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06)),
}
"""x and y of red, green and blue; the white is D65."""


def to_xyz(name):
    """Return the matrix of a color space from its chromaticities (SMPTE RP 177)."""
    columns = np.array([(x / y, 1, (1 - x - y) / y) for x, y in CHROMATICITIES[name]]).T
    return columns * np.linalg.solve(columns, (0.3127 / 0.3290, 1, (1 - 0.3127 - 0.3290) / 0.3290))


def in_srgb(pixels, name):
    """Convert to sRGB by chromaticities."""
    v = pixels / 255
    curve = v ** (563 / 256) if name == "Adobe RGB" else np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    linear = np.clip(curve @ (np.linalg.inv(to_xyz("sRGB")) @ to_xyz(name)).T, 0, 1)
    return 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def encoded(pixels, suffix="PNG", **keep):
    """Return a picture's file."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, suffix, **keep)
    return stream.getvalue()


def cicp(pixels, primaries, transfer):
    """Return a PNG file that names its color space by code."""
    data = encoded(pixels)
    return data[:IHDR_END] + chunk(b"cICP", bytes([primaries, transfer, 0, 1])) + data[IHDR_END:]


R03 = (
    b"Exif\0\0II*\0\x08\0\0\0"
    + struct.pack("<HHHIII", 1, 0x8769, 4, 1, 26, 0)
    + struct.pack("<HHHIIHHIII", 2, 0xA001, 3, 1, 0xFFFF, 0xA005, 4, 1, 56, 0)
    + struct.pack("<HHHI4sI", 1, 1, 2, 4, b"R03\0", 0)
)
"""EXIF of a camera that is set to Adobe RGB (DCF 2.0): no color space, and the rule R03."""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("P3", lambda pixels: cicp(pixels, 12, 13)),
        ("BT.2020", lambda pixels: cicp(pixels, 9, 1)),
        ("Adobe RGB", lambda pixels: encoded(pixels, "JPEG", quality=100, subsampling=0, exif=R03)),
    ],
)
def test_a_color_space_that_is_named_without_a_profile_is_converted(tmp_path, name, data):
    pixels = patches()
    (tmp_path / "in").write_bytes(data(pixels))
    for source in (data(pixels), tmp_path / "in"):
        found = images.read(source)
        middle = (slice(8, None, 16), slice(8, None, 16))
        assert np.abs(found.pixels[middle] - in_srgb(pixels, name)[middle]).max() < 3
        assert found.icc == images.srgb()
    assert np.abs(in_srgb(pixels, name) - pixels).max() > 8, "the test can fail"


@pytest.mark.parametrize("transfer", [16, 18])
def test_hdr_pictures_are_refused_in_a_line(tmp_path, transfer):
    (tmp_path / "a.png").write_bytes(cicp(patches(), 9, transfer))
    with pytest.raises(UserError, match=r"a\.png: an HDR picture \(PQ or HLG\), which is not read; save it in sRGB$"):
        images.read(tmp_path / "a.png")


def test_srgb_that_is_named_stays_and_broken_exif_says_nothing():
    assert np.array_equal(images.read(cicp(patches(), 1, 13)).pixels, patches())
    broken = R03.replace(struct.pack("<HHII", 0xA005, 4, 1, 56), struct.pack("<HHII", 0xA005, 4, 1, 60_000))
    flat = np.full((16, 16, 3), (90, 60, 40), np.uint8)
    assert np.abs(images.read(encoded(flat, "JPEG", quality=100, exif=broken)).pixels.astype(int) - flat).max() < 4


@pytest.mark.skipif(not features.check("avif"), reason="Pillow has no AVIF here")
def test_avif_names_p3_by_code():
    data = encoded(patches(), "AVIF", quality=100, subsampling="4:4:4")
    place = data.index(b"colrnclx") + 8
    named = data[:place] + struct.pack(">HH", 12, 13) + data[place + 4 :]
    plain, found = images.read(data), images.read(named)
    assert plain.icc is None and np.abs(found.pixels - in_srgb(plain.pixels, "P3")).max() < 2


def test_a_picture_without_a_profile_is_written_without_one():
    stream = io.BytesIO()
    Image.fromarray(patches()).save(stream, "PNG")
    assert images.read(stream.getvalue()).icc is None


HEIC = struct.pack(">I4s4sI4s", 24, b"ftyp", b"heic", 0, b"mif1") + bytes(100)


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"mif1", b"hevc"])
def test_heic_names_what_reads_it(tmp_path, brand):
    file = tmp_path / "IMG_0001.HEIC"
    file.write_bytes(HEIC.replace(b"heic", brand, 1))
    with pytest.raises(UserError, match=r"HEIC; it is read where pillow-heif is installed: pip install pillow-heif"):
        images.read(file)


def test_heic_is_read_by_pillow_heif_where_it_is_installed(tmp_path, monkeypatch):
    """A stand-in of the package, which registers itself with Pillow as it does."""
    module, stream = ModuleType("pillow_heif"), io.BytesIO()
    Image.new("RGB", (4, 6), (10, 20, 30)).save(stream, "PNG")

    def opened(file, name=""):
        return Image.open(io.BytesIO(stream.getvalue()))

    module.register_heif_opener = lambda: Image.register_open("HEIF", opened, lambda start: start[4:12] == b"ftypheic")
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    (tmp_path / "IMG_0001.HEIC").write_bytes(HEIC)
    assert images.read(tmp_path / "IMG_0001.HEIC").pixels[0, 0].tolist() == [10, 20, 30]


@pytest.fixture
def memory(monkeypatch):
    """Say how many bytes are free."""
    free = SimpleNamespace(available=0)
    monkeypatch.setattr(apply_memory.psutil, "virtual_memory", lambda: free)
    return free


def painted(tmp_path, **changes):
    return open_paintings([assets.paintings()["great_wave"]], Options(changes=changes), Storage.open(tmp_path))


def test_version_1_is_refused_before_it_begins_with_the_size_that_fits(tmp_path, memory):
    style = painted(tmp_path)
    memory.available = 2 * 10**9
    with pytest.raises(
        UserError, match=r"2048 x 1536 pixels need .* GB of memory, 2.0 are free; --size (\d+) fits"
    ) as told:
        style([np.zeros((1536, 2048, 3), np.uint8)], lambda done, total, text: None)
    fits = int(str(told.value).split("--size ")[1].split()[0])
    assert 300 < fits < 2048
    style.check_memory(fits * 3 // 4, fits)
    with pytest.raises(UserError, match="GB of memory"):
        style.check_memory(fits * 3 // 4 + 40, fits + 50)
    memory.available = 10**9
    style.check_memory(512, 512)
    for change in ({"method.style_scale": 8.0}, {"method.scales": [2048]}):  # a large painting or stage counts
        with pytest.raises(UserError, match="GB of memory"):
            painted(tmp_path, **change).check_memory(512, 512)


def test_version_2_names_the_size_that_fits(memory):
    style = NetworkStyle(TransformerNetwork(32, "resize", "raw").eval(), Options())
    memory.available = 10**9
    with pytest.raises(UserError, match=r"--size (\d+) fits") as told:
        style.check_memory(6000, 8000)
    fits = int(str(told.value).split("--size ")[1].split()[0])
    style.check_memory(fits * 3 // 4, fits)


def opencv_shortage():
    """OpenCV's error of an allocation that is larger than the address space."""
    with pytest.raises(cv2.error) as caught:
        cv2.resize(np.zeros((64, 48, 3), np.uint8), (1 << 24, 1 << 22))
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        MemoryError("Unable to allocate 3.0 GiB for an array"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB)"),
        RuntimeError("Invalid buffer size: 12.00 GiB"),
        opencv_shortage(),
    ],
)
def test_an_allocation_that_fails_is_one_line_with_a_size(tmp_path, error):
    images.write(tmp_path / "a.png", np.zeros((300, 400, 3), np.uint8))

    def style(photographs, report):
        raise error

    style.size, style.batch_pixels = 0, 0
    (outcome,) = stylise_jobs(style, [Job(tmp_path / "a.png", tmp_path / "out.png")], Options())
    assert outcome.failure == f"{tmp_path / 'a.png'}: 400 x 300 pixels need more memory than there is; try --size 280"


def test_another_error_is_no_lack_of_memory(tmp_path):
    images.write(tmp_path / "a.png", np.zeros((30, 40, 3), np.uint8))

    def style(photographs, report):
        raise RuntimeError("a fault of ours")

    style.size, style.batch_pixels = 0, 0
    with pytest.raises(RuntimeError, match="a fault of ours"):
        list(stylise_jobs(style, [Job(tmp_path / "a.png", tmp_path / "out.png")], Options()))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    network = TransformerNetwork(8, "resize", "raw")
    with torch.no_grad():
        next(network.parameters())[0] = value
    (tmp_path / "bad.safetensors").write_bytes(transformer.pack(network, {}))
    with pytest.raises(UserError, match=r"bad.safetensors: .* has values that are no finite numbers"):
        transformer.read(tmp_path / "bad.safetensors")


def test_weights_beyond_16_bits_are_not_written_as_infinities(tmp_path):
    network = TransformerNetwork(4, "resize", "raw")
    with torch.no_grad():
        next(network.parameters())[0] = 1e5
    with pytest.raises(UserError, match="beyond the largest number of 16 bits; leave out --half"):
        (tmp_path / "half.safetensors").write_bytes(transformer.pack(network, {}, half=True))
    assert not list(tmp_path.iterdir())
    (tmp_path / "full.safetensors").write_bytes(transformer.pack(network, {}))


def test_mps_is_chosen_by_itself_after_cuda(monkeypatch):
    from retable.platform.train.worker import best_device

    there = {"cuda": False, "mps": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there["cuda"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there["mps"])
    assert best_device(apple=True) == "mps"
    there["cuda"] = True
    assert best_device(apple=True) == "cuda"
    there.update(cuda=False, mps=False)
    assert best_device(apple=True) == "cpu"


def test_every_tool_and_the_predictions_ask_for_mps(monkeypatch):
    asked, predict = [], importlib.import_module("retable.tasks.style.predict")  # the task exports a function so named
    for module in (stylise_tool, steady, predict):
        monkeypatch.setattr(module, "best_device", lambda apple=False: asked.append(apple) or "cpu")
    assert Options().where.type == "cpu"
    network, shown = TransformerNetwork(4, "resize", "raw").eval(), np.zeros((32, 32, 3), np.uint8)
    steady.Stylist(network)(Piece(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)))
    monkeypatch.setattr(predict, "photograph", lambda source, name: shown)
    monkeypatch.setattr(predict, "trained", lambda config, weights: network)
    predict.stylised(Config(), View(content=("lake",)), {}, None)
    assert asked == [True, True, True]


def test_a_playlist_named_as_a_video_opens_no_other_file(tmp_path):
    source = write_wide(tmp_path / "secret.mkv", (patches() / 255) ** 2.4, pq, 16, 9)
    (tmp_path / "x.mp4").write_text(f"ffconcat version 1.0\nfile {source.name}\n")
    with pytest.raises(UserError, match=r"x\.mp4"):
        stylise_video(tmp_path / "x.mp4", tmp_path / "out.mp4", same)
