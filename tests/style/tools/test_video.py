"""Videos: what is kept of a file, what is done with broken ones, and the stream between."""

import gc
import hashlib
import math
import threading
import time
from contextlib import closing
from fractions import Fraction
from functools import partial
from itertools import pairwise

import av
import cv2
import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.tasks.style.tools.video import frames as files
from retable.tasks.style.tools.video import video
from retable.tasks.style.tools.video.video import Piece, ahead, gpu_share, on_cluster, stylise_video

RATE = Fraction(30000, 1001)
invert = partial(map, lambda pictures: 255 - pictures)
same = partial(map, lambda pictures: pictures)


def picture(number, height=48, width=64):
    """A smooth picture: a colour gradient that changes with its number, and a bright top left corner."""
    rows, columns = np.mgrid[:height, :width]
    made = np.stack([rows * 3 + number * 2, columns * 2 + 40, np.full_like(rows, 10 * (number % 20))], -1)
    made[: height // 4, : width // 4] = 250
    return np.clip(made, 0, 255).astype(np.uint8)


def make(path, count=13, size=(48, 64), rate=RATE, pts=None, base=None, tracks=0, turn=0, aspect=None, kind="yuv420p"):
    """Write a clip with FFmpeg's own tools, independent of what is tested."""
    codec = "libvpx-vp9" if path.suffix == ".webm" else "libx264"
    with av.open(str(path), "w", options={"movflags": "faststart"} if path.suffix == ".mp4" else {}) as container:
        stream = container.add_stream(codec, rate=rate, options={"crf": "12", "g": "6"})
        stream.height, stream.width, stream.pix_fmt = *size, kind
        stream.codec_context.time_base = base or 1 / rate
        if aspect:
            stream.codec_context.sample_aspect_ratio = aspect
        if turn:
            stream.set_display_rotation(turn)
        sounds = [container.add_stream("aac", rate=48000) for _ in range(tracks)]
        for number, sound in enumerate(sounds):
            rng = np.random.default_rng(number)
            for _ in range(10 + number):
                noise = av.AudioFrame.from_ndarray(rng.normal(0, 0.1, (2, 1024)).astype(np.float32), "fltp", "stereo")
                noise.sample_rate = 48000
                container.mux(sound.encode(noise))
            container.mux(sound.encode())
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(picture(number, *size))
            frame.pts, frame.time_base = (pts[number] if pts else number), base or 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def look(path):
    """Decode with PyAV alone: times, pictures, stream facts."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        decoded = list(container.decode(stream))
        times = [frame.pts * frame.time_base for frame in decoded]
        pictures = [frame.to_ndarray(format="rgb24") for frame in decoded]
        return times, pictures, stream.average_rate, stream.sample_aspect_ratio


def moments(path):
    """The times of all pictures."""
    with av.open(str(path)) as container:
        return [frame.pts * frame.time_base for frame in container.decode(video=0)]


def sound(path):
    """MD5 and time of every packet of each sound track."""
    with av.open(str(path)) as container:
        found = [[] for _ in container.streams.audio]
        for packet in container.demux(*container.streams.audio) if found else ():
            if packet.size:
                index = [stream.index for stream in container.streams.audio].index(packet.stream_index)
                digest = hashlib.md5(bytes(packet), usedforsecurity=False).hexdigest()
                found[index].append((digest, packet.pts * packet.time_base))
        return found


def far(left, right):
    return np.abs(left.astype(int) - right).mean()


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov", ".webm"])
def test_count_rate_size_and_pictures_are_kept_whatever_the_batch(tmp_path, suffix):
    source = make(tmp_path / "in.mp4", 13)
    written = stylise_video(source, tmp_path / f"out{suffix}", invert, batch=5)
    times, pictures, rate, _ = look(tmp_path / f"out{suffix}")
    assert written.frames == len(pictures) == 13 and written.notes == ()
    assert rate == RATE
    unit = Fraction(1, 1000) if suffix in (".mkv", ".webm") else 0
    assert all(abs(time - n / RATE) <= unit for n, time in enumerate(times))
    for number, found in enumerate(pictures):
        assert far(found, 255 - picture(number)) < 4, "in order, and each frame its own"


def test_milliseconds_of_matroska_become_the_exact_rate_again(tmp_path):
    stylise_video(make(tmp_path / "in.mkv"), tmp_path / "out.mp4", same)
    times, _, rate, _ = look(tmp_path / "out.mp4")
    assert rate == RATE and times == [n / RATE for n in range(13)]


def test_uneven_timestamps_are_kept(tmp_path):
    ticks = [0, 1000, 1500, 4000, 4100, 9000, 9001]
    source = make(tmp_path / "in.mp4", 7, pts=ticks, base=Fraction(1, 10000))
    stylise_video(source, tmp_path / "out.mp4", same, batch=3)
    stylise_video(source, tmp_path / "out.mkv", same, batch=3)
    assert look(tmp_path / "out.mp4")[0] == [Fraction(tick, 10000) for tick in ticks]
    assert all(
        abs(a - Fraction(b, 10000)) <= Fraction(1, 1000)
        for a, b in zip(look(tmp_path / "out.mkv")[0], ticks, strict=True)
    )
    with av.open(str(tmp_path / "out.mp4")) as container:
        shown = container.streams.video[0].duration * container.streams.video[0].time_base
    assert shown >= Fraction(9001, 10000), "the last frame is within the duration"


@pytest.mark.parametrize("size", [(47, 65), (48, 65), (47, 64), (2, 2), (17, 300)])
def test_sizes_are_exact(tmp_path, size):
    source = make(tmp_path / "in.mp4", 3, size, kind="yuv444p")
    for suffix in (".mp4", ".webm"):
        stylise_video(source, tmp_path / f"out{suffix}", same)
        assert {p.shape for p in look(tmp_path / f"out{suffix}")[1]} == {(*size, 3)}


@pytest.mark.parametrize(("wanted", "given"), [(32, (24, 32)), (100, (76, 100)), (0, (48, 64))])
def test_a_longer_side_may_be_given(tmp_path, wanted, given):
    stylise_video(make(tmp_path / "in.mp4", 3), tmp_path / "out.mp4", same, size=wanted)
    (first, *_), number = look(tmp_path / "out.mp4")[1], 0
    assert first.shape == (*given, 3)
    assert far(first, cv2.resize(picture(number), given[::-1], interpolation=cv2.INTER_AREA)) < 6


@pytest.mark.parametrize("turn", [90, 180, 270])
@pytest.mark.parametrize("reader", ["pyav", "opencv"])
def test_a_rotation_is_applied_once(tmp_path, turn, reader):
    source = make(tmp_path / "in.mp4", 3, turn=turn, aspect=Fraction(4, 3))
    with av.open(str(source)) as container:
        said = next(container.decode(video=0)).rotation
    stylise_video(source, tmp_path / "out.mp4", same, reader=reader)
    _, pictures, _, aspect = look(tmp_path / "out.mp4")
    assert far(pictures[0], np.rot90(picture(0), said // 90)) < 4, "FFmpeg's rotation is counter-clockwise"
    assert aspect == (Fraction(3, 4) if turn != 180 else Fraction(4, 3))
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert next(container.decode(video=0)).rotation == 0


@pytest.mark.parametrize(
    ("matrix", "show"),
    [
        ((0, -1, 1, 0), lambda p: np.rot90(p)),
        ((1, 0, 0, 1), lambda p: p),
        ((-1, 0, 0, 1), lambda p: p[:, ::-1]),
        ((0, 1, 1, 0), lambda p: p.transpose(1, 0, 2)),
        ((0, -1, -1, 0), lambda p: np.rot90(p, 2).transpose(1, 0, 2)),
    ],
)
def test_all_turns_and_reflections(matrix, show):
    shown = show(picture(0))
    assert np.array_equal(files.upright(picture(0), [65536 * v for v in matrix]), shown)


def test_colours_survive_with_their_tags(tmp_path):
    source = tmp_path / "in.mp4"
    with av.open(str(source), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "5"})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuvj420p"
        context = stream.codec_context
        context.colorspace, context.color_primaries, context.color_trc, context.color_range = 1, 1, 1, 2
        frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), (220, 40, 30), np.uint8))
        container.mux(stream.encode(frame.reformat(format="yuvj420p", dst_colorspace="ITU709", dst_color_range="JPEG")))
        container.mux(stream.encode())
    stylise_video(source, tmp_path / "out.mp4", same)
    with av.open(str(tmp_path / "out.mp4")) as container:
        frame = next(container.decode(video=0))
        planes = [plane.mean() for plane in np.split(frame.to_ndarray(), [48, 60])]
    assert (frame.colorspace, frame.color_primaries, frame.color_trc, frame.color_range) == (1, 1, 1, 1)
    red, green, blue = 220, 40, 30  # BT.709 in limited range, by its definition
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    expected = (
        16 + 219 / 255 * luma,
        128 + 224 / 255 * (blue - luma) / 1.8556,
        128 + 224 / 255 * (red - luma) / 1.5748,
    )
    assert planes == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("tracks", [0, 1, 2])
def test_sound_is_copied_packet_by_packet(tmp_path, tracks):
    source = make(tmp_path / "in.mp4", tracks=tracks)
    for suffix in (".mp4", ".mkv", ".mov"):
        stylise_video(source, tmp_path / f"out{suffix}", invert)
        left, right = sound(source), sound(tmp_path / f"out{suffix}")
        assert len(right) == tracks
        for one, other in zip(left, right, strict=True):
            assert [digest for digest, _ in one] == [digest for digest, _ in other]
            shifts = [b - a for (_, a), (_, b) in zip(one, other, strict=True)]
            pictures = look(tmp_path / f"out{suffix}")[0][0] - look(source)[0][0]
            assert all(abs(shift - pictures) <= Fraction(1, 500) for shift in shifts), "in step with the pictures"
    if tracks:
        notes = stylise_video(source, tmp_path / "out.webm", invert).notes
        assert len(notes) == tracks and "sound track 1 is dropped: .webm holds no aac; .mkv does" in notes


def test_the_sample_video(shared, tmp_path):
    source = shared / "data/style/video_big_buck_bunny_360p24_10s.mp4"
    seen = []
    written = stylise_video(source, tmp_path / "out.mp4", same, size=96, progress=lambda *n: seen.append(n))
    times, pictures, rate, _ = look(tmp_path / "out.mp4")
    assert written.frames == len(pictures) == 240 and rate == 24 and times == moments(source)
    assert sound(tmp_path / "out.mp4") == sound(source) and len(sound(source)[0]) > 100
    assert seen == [(n, 240) for n in range(1, 241)]
    capture = cv2.VideoCapture(str(tmp_path / "out.mp4"))
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == 240 and capture.get(cv2.CAP_PROP_FPS) == 24
    stylise_video(source, tmp_path / "paper.mp4", same, size=96, reader="opencv")
    theirs = look(tmp_path / "paper.mp4")
    assert theirs[0] == times and far(theirs[1][100], pictures[100]) < 6, "the paper's reader sees the same frames"


def test_a_video_cut_off_is_written_as_far_as_it_goes(tmp_path):
    source = make(tmp_path / "in.mp4", 40)
    source.write_bytes(source.read_bytes()[: source.stat().st_size * 6 // 10])
    written = stylise_video(source, tmp_path / "out.mp4", same)
    assert 0 < written.frames == len(look(tmp_path / "out.mp4")[0]) < 40
    assert written.frames > 10 and "cut off" in written.notes[0]
    source = make(tmp_path / "in.mkv", 40)
    source.write_bytes(source.read_bytes()[: source.stat().st_size * 6 // 10])
    written = stylise_video(source, tmp_path / "out.mkv", same)
    assert 10 < written.frames < 40 and "cut off" in written.notes[0]


def test_damage_in_the_middle_costs_the_damaged_frames_alone(tmp_path):
    source = make(tmp_path / "in.mp4", 40)
    with av.open(str(source)) as container:
        packets = [packet.pos for packet in container.demux(video=0) if packet.size]
    data = bytearray(source.read_bytes())
    data[packets[20] + 30 : packets[22]] = b"\xff" * (packets[22] - packets[20] - 30)
    source.write_bytes(data)
    written = stylise_video(source, tmp_path / "out.mp4", same)
    times, pictures, *_ = look(tmp_path / "out.mp4")
    assert "damaged" in written.notes[0]
    assert 30 <= written.frames <= 40 and all(a < b for a, b in pairwise(times))
    assert far(pictures[-1], picture(39)) < 4 and times[-1] == 39 / RATE, "the end is in its place"


def no_video(tmp_path, kind):
    path = tmp_path / f"{kind}.mp4"
    if kind == "text":
        path.write_text("no video at all\n" * 100)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "headless":
        make(path)
        path.write_bytes(path.read_bytes()[:60])
    elif kind == "sound":
        with av.open(str(path), "w") as container:
            stream = container.add_stream("aac", rate=48000)
            frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), "fltp", "stereo")
            frame.sample_rate = 48000
            container.mux([*stream.encode(frame), *stream.encode()])
    elif kind == "frameless":
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=25)
            stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
            container.start_encoding()
    return path


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("text", "no video that can be read"),
        ("empty", "no video that can be read"),
        ("headless", "no video t"),
        ("missing", "No such file"),
        ("folder", "no video that can be read|Is a directory"),
        ("sound", r"no video track that can be decoded \(audio only\)"),
        ("frameless", "no frame can be decoded|no video"),
    ],
)
def test_what_is_no_video_is_said_in_one_line(tmp_path, kind, why):
    source = no_video(tmp_path, kind)
    with pytest.raises(UserError, match=why) as caught:
        stylise_video(source, tmp_path / "out" / "out.mp4", same)
    assert str(source) in str(caught.value) and "\n" not in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_targets_are_refused_or_replaced(tmp_path):
    source, target = make(tmp_path / "in.mp4", 3), tmp_path / "out.mp4"
    target.write_text("precious")
    with pytest.raises(UserError, match="exists; --overwrite"):
        stylise_video(source, target, same)
    assert target.read_text() == "precious"
    assert stylise_video(source, target, same, overwrite=True).frames == 3
    with pytest.raises(UserError, match="is the video that is read"):
        stylise_video(source, source, same, overwrite=True)
    with pytest.raises(UserError, match=r"written as \.mp4"):
        stylise_video(source, tmp_path / "out.gif", same)
    assert stylise_video(source, tmp_path / "OUT.MP4", same).frames == len(look(tmp_path / "OUT.MP4")[0])


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("no memory"), ValueError])
@pytest.mark.parametrize("where", ["progress", "network"])
def test_an_interruption_leaves_nothing_behind(tmp_path, error, where):
    source, before = make(tmp_path / "in.mp4", 24), threading.active_count()

    def break_off(*_):
        raise error

    broken = {"stylise": same, "progress": break_off} if where == "progress" else {"stylise": partial(map, break_off)}
    with pytest.raises(error if isinstance(error, type) else UserError):
        stylise_video(source, tmp_path / "out.mp4", batch=2, **broken)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.mp4"]
    assert threading.active_count() <= before


def test_memory_does_not_grow_with_the_length(tmp_path, monkeypatch):
    alive, peak = [], []
    plain = files.read

    def watched(*arguments):
        for frame in plain(*arguments):
            alive.append(frame.pts)
            yield frame

    def slow(done, total):
        time.sleep(0.002)
        peak.append(len(alive) - done)

    monkeypatch.setattr(video.files, "read", watched)
    for count in (60, 120):
        alive.clear()
        peak.clear()
        stylise_video(make(tmp_path / "in.mp4", count), tmp_path / "out.mp4", same, 2, overwrite=True, progress=slow)
        assert len(peak) == count and max(peak) <= 2 * (3 + 2 * video.DEPTH), "two queues and three stages"


def test_a_network_that_loses_frames_is_found_out(tmp_path):
    with pytest.raises(RuntimeError, match=r"\d frames went into the network"):
        stylise_video(make(tmp_path / "in.mp4", 9), tmp_path / "out.mp4", lambda batches: iter([next(batches)]), 4)


def test_reading_ahead_keeps_order_passes_errors_on_and_stops():
    assert list(ahead(range(100), 3)) == list(range(100))
    made, before = [], threading.active_count()

    def endless():
        for number in range(10**9):
            made.append(number)
            yield number

    with closing(ahead(endless(), 4)) as items:
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        time.sleep(0.1)
        assert len(made) == 3 + 4
    gc.collect()
    assert threading.active_count() <= before
    with pytest.raises(ZeroDivisionError):
        list(ahead((1 // n for n in (1, 0)), 1))


@pytest.mark.parametrize("gpus", [1, 3, 4, 8])
def test_all_workers_fit_on_the_gpus(gpus):
    for workers in range(1, 40):
        units = round(10_000 * gpu_share(workers, gpus))  # what Ray counts in
        assert gpus * (10_000 // units) >= workers
        assert units == 10_000 or workers > gpus
    assert gpu_share(3, 0) == 0


@pytest.mark.slow
def test_ray_actors_give_the_same_frames_in_order(tmp_path):
    import ray

    from retable.platform.execute.session import ray_cluster

    with ray_cluster():
        most, given = 0, 0

        def pieces():
            nonlocal given
            for number in range(12):
                given += 1
                yield Piece(
                    torch.full((2, 3, 4, 4), number, dtype=torch.uint8), number // 6, torch.ones(1, 3, 4, 4).byte()
                )

        def work(piece):
            time.sleep(0.05 if piece.pictures[0, 0, 0, 0] % 2 == 0 else 0)
            return piece.pictures + piece.reference + piece.shot

        found = []
        for done, (piece, made) in enumerate(on_cluster(work, pieces(), 2)):
            most = max(most, given - done)
            assert torch.equal(made, piece.pictures + 1 + piece.shot)
            found.append(int(piece.pictures[0, 0, 0, 0]))
        assert found == list(range(12)) and most <= 6
        source = make(tmp_path / "in.mp4", 11, tracks=1)
        stylise_video(source, tmp_path / "here.mp4", invert, 2)

        def cluster(batches):
            return (made for _, made in on_cluster(lambda piece: 255 - piece.pictures, map(Piece, batches), 2))

        stylise_video(source, tmp_path / "there.mp4", cluster, 2)
        assert (tmp_path / "here.mp4").read_bytes() == (tmp_path / "there.mp4").read_bytes()
        assert ray.is_initialized()


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm"])
@pytest.mark.parametrize(("start", "duration"), [(0.0, 0.5), (0.5, None), (0.4, 0.6), (1.3, 9.0)])
@pytest.mark.parametrize("reader", ["pyav", "opencv"])
def test_a_part_is_what_the_whole_has_between(tmp_path, suffix, start, duration, reader):
    """Key frames are six pictures apart, so a part begins within a group."""
    source = make(tmp_path / f"in{suffix}", 40, rate=Fraction(25))
    written = stylise_video(source, tmp_path / "out.mkv", same, start=start, duration=duration, reader=reader)
    end = 40 if duration is None else min(40, math.ceil(round((start + duration) * 25, 3)))
    wanted = range(math.ceil(round(start * 25, 3)), end)
    times, pictures, *_ = look(tmp_path / "out.mkv")
    assert written.frames == len(pictures) == len(wanted) and not written.notes
    for shown, number in zip(times, wanted, strict=True):
        assert abs(shown - (number / 25 - start)) < 1e-3, "counted from the part's beginning, as the sound is"
    for made, number in zip(pictures, wanted, strict=True):
        assert np.abs(made.astype(int) - picture(number)).mean() < 4


def test_the_sound_of_a_part_is_that_part(tmp_path):
    source = make(tmp_path / "in.mp4", 40, rate=Fraction(100), tracks=1)
    stylise_video(source, tmp_path / "out.mp4", same, start=0.1, duration=0.05)
    (whole,), (part,) = sound(source), sound(tmp_path / "out.mp4")
    wanted = [(digest, time) for digest, time in whole if Fraction(1, 10) <= time < Fraction(15, 100)]
    assert 1 <= len(wanted) < len(whole) and [digest for digest, _ in part] == [digest for digest, _ in wanted]
    shifts = [time - got for (_, got), (_, time) in zip(part, wanted, strict=True)]
    assert all(abs(shift - Fraction(1, 10)) < Fraction(1, 500) for shift in shifts)


def test_a_part_that_is_not_there_is_told(tmp_path):
    source = make(tmp_path / "in.mp4", 10, rate=Fraction(25))
    with pytest.raises(UserError, match=r"ends after 0\.4 s, and is to be read from 3 s on"):
        stylise_video(source, tmp_path / "out.mp4", same, start=3)
    assert not (tmp_path / "out.mp4").exists()
