"""Video files: probed, decoded to frames and encoded again, with everything but the pixels kept.

The paper reads and writes with OpenCV. PyAV (FFmpeg's libraries) is the default here, since OpenCV's wheels write no
H.264, and OpenCV gives neither timestamps nor sound; `reader="opencv"` is the paper's way, at a constant rate.

Kept: the number of frames, their timestamps (hence a rational or a variable rate) from zero on, width and height, the
pixels' aspect ratio, and the sound tracks that the container holds, packet by packet, unchanged. A rotation that the
file asks its player for is applied to the pixels: the picture looks the same everywhere, and is stylised upright. HDR
and wide colours become BT.709 (`hdr`). Not kept: subtitles, cover art, a second video track, more than 8 bits,
full-range YUV (limited range is written) and interlacing flags. Matroska and WebM count time in milliseconds.
"""

from __future__ import annotations

import io
import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import av
import cv2
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.stream import Disposition
from av.video.reformatter import ColorRange, Interpolation
from av.video.stream import VideoStream
from jaxtyping import UInt8

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.store.cache import is_text
from retable.platform.text import plural
from retable.tasks.style.files.hdr import Wide, find, to_bt709
from retable.tasks.style.files.videos import BT709, MATRICES, OPENING, is_sideways, matrix_of, turn_of, upright

Reader = Literal["pyav", "opencv"]

CODECS = {".mp4": "libx264", ".mov": "libx264", ".mkv": "libx264", ".webm": "libvpx-vp9"}
"""Suffix of the file that is written -> its encoder."""
FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
"""Suffix -> FFmpeg's name of the container."""
LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
"""Number of channels -> how they usually lie."""
OPTIONS = {
    # Without B frames decoding and display order agree, so that every container keeps uneven timestamps exactly.
    "libx264": {"bf": "0"},
    "libvpx-vp9": {"row-mt": "1", "cpu-used": "4", "deadline": "good"},
}
UNSPECIFIED, LIMITED = 2, 1
MILLISECOND = Fraction(1, 1000)
UNINDEXED, EARLY = ("mpegts", "mpeg"), 10
"""Containers that do not know where key frames lie, and the seconds by which a part of them is entered earlier."""
TS_DISCONT = 0x0200
"""FFmpeg's AVFMT_TS_DISCONT: a container whose clock may jump."""
JUMP = 10
"""Seconds between two packets that are a jump of the clock, as FFmpeg's `dts_delta_threshold`."""
LATE_PACKET = 1
"""Seconds by which packets from before a jump may lie behind it in the file."""
LATE = Fraction(1, 4)
"""Seconds that may lack at the end of a video without a word."""
ACCURATE = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP


@dataclass(frozen=True)
class Part:
    """A stretch of a file, in seconds of the file's own clock; what is written of it begins at zero."""

    begin: Fraction
    passed: Fraction
    """Seconds of the video before it."""
    end: Fraction | None
    """The first moment that is left out; none: to the end of the file."""

    def holds(self, seconds: Fraction) -> bool:
        """Return whether a moment lies in the part."""
        return self.begin <= seconds and not self.is_over(seconds)

    def is_over(self, seconds: Fraction) -> bool:
        """Return whether a moment lies after the part."""
        return self.end is not None and seconds >= self.end

    def enter(self, container: InputContainer) -> None:
        """Go to a key frame before the part; what is decoded before its beginning is to be dropped."""
        early = EARLY if container.format.name in UNINDEXED else 0
        if self.passed > early:
            container.seek(math.floor((self.begin - early) * av.time_base))


@dataclass(frozen=True)
class Clip:
    """Properties of a video, by its header and first frame."""

    path: Path
    width: int
    """Pixels across, as displayed: after the rotation."""
    height: int
    rate: Fraction
    """Frames a second, on average."""
    time_base: Fraction
    """Seconds in a unit of the timestamps."""
    frames: int
    """Their number by the header or the duration; 0: unknown."""
    aspect: Fraction | None
    """Width over height of a pixel, as displayed; none: not said."""
    matrix: int
    """The YUV matrix (AVCOL_SPC_*); where the file names none, what players take: BT.709 for HD, else BT.601."""
    primaries: int
    transfer: int
    turn: tuple[int, ...]
    """The display matrix's [a, b, c, d] in FFmpeg's 16.16 fixed point; empty: none."""
    origin: Fraction
    """The moment of the file's clock, in seconds, that is written as zero."""
    wide: Wide | None
    """Colours that are mapped to BT.709; None: colours stay as they are."""
    part: Part | None = None
    """Part of the file that is read and written; None: all of it."""
    most_pixels: int = 0
    """That a frame may have; 0: as many as FFmpeg decodes."""

    @property
    def tags(self) -> tuple[int, int, int]:
        """Matrix, primaries and transfer of what is written (AVCOL_*)."""
        return (BT709, BT709, BT709) if self.wide else (self.matrix, self.primaries, self.transfer)


@dataclass(frozen=True, eq=False)
class Frame:
    """One decoded frame."""

    pts: int
    """Time at which it is shown, in the clip's time base."""
    duration: int
    picture: UInt8[np.ndarray, "height width 3"]


def _pictures(container: InputContainer) -> list[VideoStream]:
    """Return the video tracks that are no cover art; the first one is written."""
    return [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]


@contextmanager
def _opened(path: Path, most_pixels: int = 0) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a file at its first video track that is no cover art; frames of more pixels than `most_pixels` are damage.

    Raises:
        UserError: where there is none, or the file is none that FFmpeg knows.
    """
    most = {"max_pixels": str(most_pixels)} if most_pixels else {}
    try:
        container = av.open(str(path.absolute()), options=OPENING | most)  # else FFmpeg reads `12:30` as a protocol
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (av.FFmpegError, ValueError) as error:
        raise UserError(f"{path}: no video that can be read, or cut off before its index") from error
    with container:
        streams = _pictures(container)
        if not streams or streams[0].codec_context is None:
            kinds = sorted({stream.type for stream in container.streams})
            raise UserError(f"{path}: no video track that can be decoded ({', '.join(kinds) or 'nothing'} only)")
        streams[0].codec_context.options |= most
        streams[0].thread_type = "AUTO"
        yield container, streams[0]


class _Clock:
    """Timestamps of packets without jumps, for containers whose clock may jump: MPEG-TS, MPEG-PS and Ogg.

    Two handles of one file that demux the same tracks shift them alike.
    """

    def __init__(self, container: InputContainer) -> None:
        self.may_jump = bool(container.format.flags & TS_DISCONT)
        self.offsets = [Fraction(0)]
        self.now: Fraction | None = None
        self.ends: dict[int, Fraction] = {}

    def tracks(self, container: InputContainer, video: VideoStream) -> list[Any]:
        """Return the tracks by which jumps are found: the pictures and the sound that is on their clock."""
        return [video, *(one for one in container.streams.audio if not _other_clock(container, video, one))]

    def straighten(self, packet: Any) -> None:
        """Shift a packet's timestamps so that they continue those before it; call it for each packet, in file order."""
        stamp = packet.pts if packet.dts is None else packet.dts
        if not self.may_jump or stamp is None:
            return
        seconds, track = stamp * packet.time_base, packet.stream_index
        before = [one for one in (self.now, self.ends.get(track)) if one is not None]
        limits = [LATE_PACKET] * (len(self.offsets) - 1) + [JUMP]
        near = [
            offset
            for offset, limit in zip(self.offsets, limits, strict=True)
            if min((abs(seconds + offset - one) for one in before), default=0) <= limit
        ]
        if not near:
            near = [before[-1] - seconds]
            self.offsets += near
        units = round(near[-1] / packet.time_base)
        packet.pts = None if packet.pts is None else packet.pts + units
        packet.dts = None if packet.dts is None else packet.dts + units
        self.now = self.ends[track] = seconds + near[-1] + (packet.duration or 0) * packet.time_base


def _other_clock(container: InputContainer, video: VideoStream, sound: AudioStream) -> int:
    """Return by how many seconds a sound track is on another clock than the pictures; 0: on the same.

    Tracks of MPEG-TS begin together. Those of other files share a clock, so sound may begin long before the pictures.
    """
    if sound.start_time is None or not sound.time_base:
        return 0
    begin = (video.start_time or 0) * (video.time_base or 0)
    first = sound.start_time * sound.time_base
    last = first if _Clock(container).may_jump else _end(container, sound)
    return round(first - begin) if last < begin - JUMP or first > _end(container, video) + JUMP else 0


def _decoded(container: InputContainer, stream: VideoStream, notes: list[str]) -> Iterator[av.VideoFrame]:
    """Decode what can be decoded; damage is noted. The empty packet at the end flushes the decoder's last frames.

    AVI says when packets are decoded, not when frames are shown: in order of display they take the same times.
    """
    clock = _Clock(container)
    damaged, end = 0, Fraction(0)
    packets = container.demux(*clock.tracks(container, stream)) if clock.may_jump else container.demux(stream)
    times: deque[int] | None = deque() if container.format.name == "avi" else None
    while True:
        try:
            packet = next(packets, None)
        except av.FFmpegError:
            break
        if packet is None:
            break
        clock.straighten(packet)
        if packet.stream_index != stream.index:
            continue
        if packet.pts is not None:
            end = max(end, (packet.pts + (packet.duration or 0)) * packet.time_base)
        if times is not None and packet.size and packet.dts is not None:
            times.append(packet.dts)
        try:
            for frame in packet.decode():
                damaged += frame.is_corrupt
                if times:
                    frame.pts = times.popleft()
                yield frame
        except av.FFmpegError:
            damaged += 1
            if times:
                times.popleft()
    claimed = _end(container, stream)
    if jumps := len(clock.offsets) - 1:
        notes.append(f"its clock jumps {plural(jumps, 'time')}: what follows a jump is written without a gap")
    elif claimed - end > LATE:
        notes.append(f"its pictures end at {float(end):.1f} of {float(claimed):.1f} s: cut off, or its sound is longer")
    if damaged:
        notes.append(f"{damaged} frames are damaged or lost")


def _end(container: InputContainer, stream: VideoStream | AudioStream) -> Fraction:
    """Return when a track ends, in seconds, by the file's header; 0 where it does not say."""
    if stream.duration and stream.time_base:
        return ((stream.start_time or 0) + stream.duration) * stream.time_base
    return Fraction((container.start_time or 0) + (container.duration or 0), av.time_base)


def _beginning(container: InputContainer, video: VideoStream) -> Fraction:
    """Return when the pictures or the sound on their clock begin, in seconds of that clock; 0 where that is earlier.

    Sound that an encoder had to begin before zero stays there.
    """
    first = [
        stream.start_time * stream.time_base
        for stream in _Clock(container).tracks(container, video)
        if stream.start_time is not None and stream.time_base
    ]
    return max(min(first, default=Fraction(0)), Fraction(0))


def probe(path: Path, start: float = 0.0, duration: float | None = None, most_pixels: int = 0) -> Clip:
    """Return a video's properties from its header and first frame.

    Args:
        path: any file that FFmpeg reads.
        start: seconds of the video that are passed over.
        duration: seconds that are wanted; none: all that are left.
        most_pixels: that a frame may have, of a stranger's file; 0: as many as FFmpeg decodes.

    Raises:
        UserError: in one line, where it is no video, no frame can be decoded, or it ends before `start`.
    """
    if not all(math.isfinite(moment or 0) for moment in (start, duration)):
        raise UserError(f"{path}: from {start} s on, for {duration} s: seconds are finite numbers")
    with _opened(path, most_pixels) as (container, stream):
        frame = next(_decoded(container, stream, []), None)
        if frame is None:
            raise UserError(f"{path}: no frame can be decoded")
        try:
            matrix = matrix_of(frame)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        turn = turn_of(frame)
        sideways = is_sideways(turn)
        width, height = (frame.height, frame.width) if sideways else (frame.width, frame.height)
        rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        time_base = stream.time_base or 1 / rate
        begin = (stream.start_time or 0) * time_base
        seconds, part, origin = _end(container, stream) - begin, None, _beginning(container, stream)
        if start or duration is not None:
            if 0 < seconds <= start:
                raise UserError(f"{path}: ends after {float(seconds):.1f} s, and is to be read from {start:g} s on")
            passed, wanted = (Fraction(moment or 0).limit_denominator(10**6) for moment in (start, duration))
            origin = begin + passed
            part = Part(origin, passed, None if duration is None else origin + wanted)
            seconds = min(seconds - passed, seconds if duration is None else wanted)
        aspect = stream.sample_aspect_ratio or None
        return Clip(
            path=path,
            width=width,
            height=height,
            rate=rate,
            time_base=finer(time_base, rate),
            frames=stream.frames if stream.frames and not part else max(0, round(seconds * rate)),
            aspect=1 / aspect if aspect and sideways else aspect,
            matrix=matrix,
            primaries=frame.color_primaries,
            transfer=frame.color_trc,
            turn=turn,
            origin=origin,
            wide=find(frame.color_trc, frame.color_primaries),
            part=part,
            most_pixels=most_pixels,
        )


def read(clip: Clip, notes: list[str], size: int = 0, reader: Reader = "pyav") -> Iterator[Frame]:
    """Decode a clip, one frame at a time.

    Args:
        clip: what `probe` said.
        notes: gets a line for each thing that a user should know, such as a file that ends too early.
        size: pixels of the longer side; the shorter one is then even. 0: the clip's own size.
        reader: pyav, or opencv: the paper's, which gives frames alone. They are then shown at the clip's average rate.
    """
    width, height = scaled(clip.width, clip.height, size)
    step = max(1, round(1 / (clip.rate * clip.time_base)))
    if clip.wide:
        if reader == "opencv":
            raise UserError(f"{clip.path}: {clip.wide} is not mapped to BT.709 by OpenCV; leave out --reader opencv")
        notes.append(f"its colours, {clip.wide}, are mapped to BT.709")
    if reader == "opencv":
        for number, picture in enumerate(_read_opencv(clip, width, height)):
            seconds = clip.origin - (clip.part.passed if clip.part else 0) + number / clip.rate
            if clip.part and clip.part.is_over(seconds):
                return
            if not clip.part or clip.part.holds(seconds):
                yield Frame(_placed(seconds, clip), step, picture)
        return
    inner = (height, width) if is_sideways(clip.turn) else (width, height)
    scaling = Interpolation.AREA if size and size < max(clip.width, clip.height) else Interpolation.BICUBIC
    with _opened(clip.path, clip.most_pixels) as (container, stream):
        unit = stream.time_base or clip.time_base
        if clip.part:
            clip.part.enter(container)
        for frame, pts, duration in _timed(_decoded(container, stream, notes), clip, unit):
            seconds = pts * clip.time_base
            if clip.part and clip.part.is_over(seconds):
                return
            if clip.part and not clip.part.holds(seconds):
                continue
            kind = "rgb48le" if clip.wide else "rgb24"
            rgb = frame.reformat(*inner, kind, src_colorspace=MATRICES[clip.matrix], interpolation=scaling | ACCURATE)
            picture = to_bt709(rgb.to_ndarray(), clip.wide) if clip.wide else rgb.to_ndarray()
            yield Frame(_placed(seconds, clip), duration, upright(picture, clip.turn))


def _placed(seconds: Fraction, clip: Clip) -> int:
    """Return the timestamp of a moment of the file in what is written, in the clip's time base."""
    return math.floor((seconds - clip.origin) / clip.time_base + Fraction(1, 2))  # `round` would pair halves


def _timed(frames: Iterable[av.VideoFrame], clip: Clip, unit: Fraction) -> Iterator[tuple[av.VideoFrame, int, int]]:
    """Yield each frame with its timestamp and duration in the clip's time base; `unit` is the file's time base.

    What Matroska rounded to milliseconds becomes exact again where it fits the rate. Timestamps that a broken file
    lacks, or that do not rise, follow on the last one.
    """
    step = 1 / clip.rate
    start, last = Fraction(0), None
    for frame in frames:
        seconds = None if frame.pts is None else frame.pts * unit
        length = frame.duration * unit or step
        if unit == MILLISECOND:
            if last is None:
                start = seconds or start
            exact = start + round(((seconds or start) - start) / step) * step
            seconds = exact if seconds is not None and abs(exact - seconds) <= unit / 2 else seconds
            length = step if abs(length - step) < unit else length
        if seconds is None or (last is not None and round(seconds / clip.time_base) <= last):
            seconds = start if last is None else last * clip.time_base + step
        last = round(seconds / clip.time_base)
        yield frame, last, max(1, round(length / clip.time_base))


def finer(time_base: Fraction, rate: Fraction) -> Fraction:
    """Return a time base that holds Matroska's milliseconds and whole frames at `rate`; others are kept."""
    return time_base if time_base != MILLISECOND else Fraction(1, math.lcm(1000, rate.numerator))


def _read_opencv(clip: Clip, width: int, height: int) -> Iterator[Array]:
    """Read with OpenCV, which turns frames upright itself and converts colours in its own way."""
    if not is_text(str(clip.path.absolute())):
        raise UserError(f"{clip.path}: OpenCV crashes on a name that is not valid text; leave out --reader opencv")
    capture = cv2.VideoCapture(str(clip.path.absolute()))
    try:
        while True:
            ok, picture = capture.read()
            if not ok:
                return
            if picture.shape[:2] != (height, width):
                picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
            yield cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    finally:
        capture.release()


def scaled(width: int, height: int, size: int) -> tuple[int, int]:
    """Return width and height with the longer side `size` and the other one even; 0: as they are."""
    if not size:
        return width, height
    share = size / max(width, height)
    shorter = max(2, 2 * round(min(width, height) * share / 2))
    return (size, shorter) if width >= height else (shorter, size)


def write(path: Path, clip: Clip, frames: Iterable[Frame], notes: list[str], crf: int = 18) -> int:
    """Encode frames beside the clip's untouched sound; return how many there were.

    H.264 with 4:2:0 chroma has even sizes only, so an odd width or height is written as 4:4:4 (some players, browsers
    among them, show no 4:4:4); VP9 has no such limit. The sound is read by a second handle, in step with the pictures.

    Args:
        path: what is written; its suffix chooses container and encoder.
        clip: the video that the frames are of; its colour tags, aspect and sound are taken over.
        frames: in the clip's time base, all of one size.
        notes: gets a line for each thing that a user should know.
        crf: the encoder's quality, its own scale: lower is better.

    Raises:
        UserError: where there is no frame, the encoder refuses it, or the container cannot hold the sound.
    """
    options = {"movflags": "faststart"} if path.suffix in (".mp4", ".mov") else {}
    with (
        _explained(f"{clip.path}: {path.suffix} cannot hold its frames"),
        av.open(str(clip.path.absolute()), options=OPENING) as source,
        av.open(str(path.absolute()), "w", options=options) as container,
    ):
        return _encode(container, source, path, clip, iter(frames), notes, crf)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise FFmpeg's errors in the block as `what` and their reason; a full disk's as it is."""
    try:
        yield
    except av.FFmpegError as error:
        if isinstance(error, OSError):
            raise
        raise UserError(f"{what} ({error.strerror})") from error


def _encode(
    container: OutputContainer,
    source: InputContainer,
    path: Path,
    clip: Clip,
    frames: Iterator[Frame],
    notes: list[str],
    crf: int,
) -> int:
    first = next(frames, None)
    if first is None:
        raise UserError(f"{clip.path}: no frame can be decoded")
    stream = _add_video(container, clip, first.picture, path.suffix, crf)
    sound = _Sound(container, source, path, notes, clip)
    count, durations = 0, deque[int]()
    for frame in chain([first], frames, [None]):
        if frame is not None:
            count += 1
            durations.append(frame.duration)
        with _explained(f"{clip.path}: {CODECS[path.suffix]} cannot encode its frames"):
            packets = stream.encode(_to_yuv(frame, clip, stream) if frame else None)  # none: what it still holds
        for packet in packets:
            packet.duration = durations.popleft()
            sound.mux_until((packet.pts or 0) * clip.time_base)
            container.mux(packet)
    sound.mux_until(None)
    sound.explain()
    return count


def _add_video(container: OutputContainer, clip: Clip, picture: Array, suffix: str, crf: int) -> VideoStream:
    height, width = picture.shape[:2]
    codec = CODECS[suffix]
    stream = container.add_stream(codec, rate=clip.rate, options={**OPTIONS[codec], "crf": str(crf)})
    assert isinstance(stream, VideoStream)
    stream.width, stream.height = width, height
    stream.pix_fmt = "yuv444p" if codec == "libx264" and (width % 2 or height % 2) else "yuv420p"
    context = stream.codec_context
    context.thread_type = "AUTO"
    context.time_base = clip.time_base
    if clip.aspect:
        context.sample_aspect_ratio = clip.aspect
    context.colorspace, primaries, transfer = clip.tags
    context.color_range = LIMITED
    context.color_primaries, context.color_trc = primaries or UNSPECIFIED, transfer or UNSPECIFIED
    return stream


def _to_yuv(frame: Frame, clip: Clip, stream: VideoStream) -> av.VideoFrame:
    yuv = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame.picture), "rgb24").reformat(
        format=stream.pix_fmt,
        dst_colorspace=MATRICES[clip.tags[0]],
        dst_color_range=ColorRange.MPEG,
        interpolation=Interpolation.BICUBIC | ACCURATE,
    )
    yuv.pts, yuv.time_base, yuv.duration = frame.pts, clip.time_base, frame.duration
    return yuv


class _Sound:
    """The sound tracks of one file, copied to another in step with its pictures."""

    def __init__(
        self, target: OutputContainer, source: InputContainer, path: Path, notes: list[str], clip: Clip
    ) -> None:
        self.target, self.notes, self.clip, self.suffix = target, notes, clip, path.suffix
        self.tracks: dict[int, AudioStream] = {}
        self.copied: dict[int, int] = {}
        video, self.clock = _pictures(source)[0], _Clock(source)
        for number, stream in enumerate(source.streams.audio, 1):
            away = _other_clock(source, video, stream)
            why = f"its clock is {away:+,} s from the pictures'" if away else ""
            if why := why or _refusal(clip.path, stream.index, path.suffix):
                notes.append(f"sound track {number} is dropped: {why}")
                continue
            self.tracks[stream.index] = _copy_of(stream, target)
            self.copied[stream.index] = 0
        if dropped := _dropped(source):
            notes.append(f"not kept: {', '.join(dropped)}")
        if clip.part:
            clip.part.enter(source)
        streams = [stream for stream in source.streams.audio if stream.index in self.tracks]
        if streams and self.clock.may_jump:
            streams = self.clock.tracks(source, video)
        self.numbers = {stream.index: number for number, stream in enumerate(source.streams.audio, 1)}
        self.packets = source.demux(*streams) if streams else iter(())
        self.next = self._read()

    def _read(self) -> Any:
        """Return the next packet that is written; none at the end, or where the file is cut off."""
        try:
            return next((packet for packet in self.packets if packet.size and self._holds(packet)), None)
        except av.FFmpegError:
            return None

    def _holds(self, packet: Any) -> bool:
        """Return whether a packet is written; its timestamps are then counted from the clip's origin."""
        self.clock.straighten(packet)
        part = self.clip.part
        if packet.stream_index not in self.tracks:
            return False
        if part and (packet.pts is None or not part.holds(packet.pts * packet.time_base)):
            return False
        shift = round(self.clip.origin / packet.time_base)
        if packet.pts is not None:
            packet.pts -= shift
        if packet.dts is not None or part:
            packet.dts = packet.pts if packet.dts is None else packet.dts - shift
        return True

    def mux_until(self, seconds: Fraction | None) -> None:
        """Copy the packets up to a time; none: all that are left."""
        while self.next is not None and (
            seconds is None or self.next.dts is None or self.next.dts * self.next.time_base <= seconds
        ):
            self.copied[self.next.stream_index] += 1
            number = self.numbers[self.next.stream_index]
            self.next.stream = self.tracks[self.next.stream_index]
            with _explained(f"{self.clip.path}: {self.suffix} cannot hold the packets of sound track {number}"):
                self.target.mux(self.next)
            self.next = self._read()

    def explain(self) -> None:
        """Add a note for each track of which nothing was copied."""
        for index, count in self.copied.items():
            part = self.clip.part
            if count:
                continue
            end = "" if part is None or part.end is None else f"{float(part.end - part.begin + part.passed):.1f} s"
            where = f" between {float(part.passed):.1f} and {end or 'the end'}" if part else ""
            self.notes.append(f"sound track {self.numbers[index]} has no sound{where}")


def _dropped(source: InputContainer) -> list[str]:
    """Name what of a file is not written, but sound."""
    covers = [stream for stream in source.streams.video if stream.disposition & Disposition.attached_pic]
    more = len(source.streams.video) - len(covers) - 1
    kinds = sorted({stream.type for stream in source.streams if stream.type not in ("audio", "video")})
    others = [f"{kind} tracks" for kind in kinds] + ["cover art"] * bool(covers)
    form = _pictures(source)[0].codec_context.format
    others += ["transparency"] * (form is not None and any(part.is_alpha for part in form.components))
    return [{1: "a second video track"}.get(more, f"{more} more video tracks")] * (more > 0) + others


def _copy_of(stream: AudioStream, target: OutputContainer) -> AudioStream:
    """Add a sound track like another; where a camera does not say how its channels lie, they lie as usual."""
    made = target.add_stream_from_template(stream)
    if stream.layout.name == f"{stream.channels} channels" and stream.channels in LAYOUTS:
        made.codec_context.layout = LAYOUTS[stream.channels]
    made.metadata.update(stream.metadata)
    return made


def _refusal(path: Path, index: int, suffix: str) -> str:
    """Return why a container cannot hold a file's track; empty where it can: its first packet is written to memory."""
    with av.open(str(path.absolute()), options=OPENING) as source:
        stream = source.streams[index]
        assert isinstance(stream, AudioStream)
        if stream.codec_context is None:
            return "its codec is unknown"
        name, supported = stream.codec_context.name, False
        try:
            with av.open(io.BytesIO(), "w", format=FORMATS[suffix]) as trial:
                supported = name in trial.supported_codecs
                made = _copy_of(stream, trial)
                trial.start_encoding()
                packet = next((packet for packet in source.demux(stream) if packet.size), None)
                if packet is not None:
                    packet.stream, packet.pts, packet.dts = made, 0, 0
                    trial.mux(packet)
        except (ValueError, av.FFmpegError) as error:
            other = suffix != ".mkv" and not _refusal(path, index, ".mkv")
            held = f"{name} in {stream.layout.name} ({getattr(error, 'strerror', error)})" if supported else name
            return f"{suffix} holds no {held}" + "; .mkv does" * other
    return ""
