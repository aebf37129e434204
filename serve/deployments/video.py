"""Uploaded videos: checks and painting, both in child processes.

The process that checks imports PyAV alone, and the one that paints ends with its video: what a broken or hostile file
does to FFmpeg, it does to them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from retable.platform.errors import UserError
from retable.serve.ingress.limits import Limits

FORMATS = {"mp4": "mov,mp4,m4a,3gp,3g2,mj2", "mkv": "matroska,webm", "avi": "avi"}
"""Suffix -> what FFmpeg calls the container. No other is opened: some are lists of other files, or of addresses."""
STARTS = {"mp4": rb".{4}ftyp", "mkv": rb"\x1a\x45\xdf\xa3", "avi": rb"RIFF.{4}AVI "}
"""Suffix -> how such files begin."""
UNKNOWN = "the body is no video that is known: MP4, MOV, Matroska, WebM or AVI"
MEDIA = {"mp4": "video/mp4", "webm": "video/webm", "mkv": "video/x-matroska"}
"""Suffix of what is made -> its type."""
BATCH_PIXELS = 1_000_000
"""That go through the network at once, where a frame is smaller; 0.4 GB."""
NICE = 15
"""Pictures come first."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Order to stylise a video."""

    sha256: str
    """Of the style's file."""
    size: int = 0
    """Pixels of the longer side; 0: the video's own."""
    strength: float = 1.0
    original: bool = False
    """Whether the video's colours are kept."""
    steady: Literal["off", "statistics", "flow"] = "off"
    format: str = "mp4"
    """Suffix of what is made."""


def check(tell: Callable[[object], None], path: Path, size: int, limits: Limits) -> tuple[int, str] | None:
    """Check a video's header; return status and line of its defect, or None.

    Args:
        tell: is told nothing.
        path: a file whose suffix is of the kind that it began as.
        size: pixels of the longer side that are asked for; 0: its own.
        limits: of its frames, their size and their time.
    """
    import av
    from av.stream import Disposition

    options = {"protocol_whitelist": "file", "max_pixels": str(limits.video_pixels)}
    try:
        with av.open(str(path), options=options) as container:
            if container.format.name != FORMATS[path.suffix[1:]]:
                return 415, "the video is of another kind than its first bytes say"
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams or streams[0].codec_context is None:
                return 415, "there are no pictures in it that can be decoded"
            stream = streams[0]
            seconds = float((container.duration or 0) / av.time_base)
            frames = stream.frames or round(seconds * float(stream.average_rate or stream.guessed_rate or 0))
            return _excess(stream.width, stream.height, frames, seconds, size, limits)
    except (av.FFmpegError, ValueError):
        return 400, "the video is broken, or cut off before its index"


def _excess(width: int, height: int, frames: int, seconds: float, size: int, limits: Limits) -> tuple[int, str] | None:
    """Return the status and the line of what is too much in a video, or None."""
    if not (width and height):
        most = f"or it has more than {limits.video_pixels} pixels"
        return 400, f"its header does not say how large a picture is, {most}"
    scale = max(1.0, size / max(width, height))
    if width * height * scale**2 > limits.video_pixels:
        most = f"at most {limits.video_pixels} are taken, here and in the result"
        return (
            413,
            f"{width} x {height} pixels a frame, a longer side of {size or max(width, height)} asked for; {most}",
        )
    if frames > limits.video_frames:
        return 413, f"{frames} frames; at most {limits.video_frames} are taken"
    if seconds > limits.video_seconds:
        return 413, f"the video lasts {seconds:.0f} s; {limits.video_seconds:g} s are taken"
    return None


def paint(
    tell: Callable[[object], None], source: Path, target: Path, order: Order, storage: str, limits: Limits
) -> tuple[str, ...]:
    """Paint a video; return what its owner should know of the result.

    Args:
        tell: is told the frames that are done, and all (0: unknown).
        source: the video.
        target: is there when it is whole.
        order: what is to be done.
        storage: where the style's file lies.
        limits: of the frames, should the header have said too few.

    Raises:
        UserError: where it cannot be painted.
    """
    import cv2
    import torch

    from retable.platform.models.export import kept
    from retable.platform.store.storage import Storage
    from retable.tasks.style.export import read_export
    from retable.tasks.style.tools.video.frames import probe, scaled
    from retable.tasks.style.tools.video.steady import Finish, Stylist, stylise_stream
    from retable.tasks.style.tools.video.video import stylise_video

    with suppress(OSError):  # where memory ends, this process goes first, and no replica
        Path("/proc/self/oom_score_adj").write_text("1000")
    torch.set_num_threads(1)
    cv2.setNumThreads(1)

    def progress(done: int, total: int) -> None:
        if done > limits.video_frames:
            raise UserError(f"it has more than {limits.video_frames} frames")
        tell((done, total))

    network = read_export(kept("style", order.sha256, Storage.open(storage)), "the style").network
    clip = probe(source, most_pixels=limits.video_pixels)
    width, height = scaled(clip.width, clip.height, order.size)
    stylist = Stylist(network, "float32", Finish(order.original, order.strength))
    batch = max(1, min(4, BATCH_PIXELS // (width * height)))
    stylise = stylise_stream(stylist, order.steady)
    most = limits.video_pixels  # of each frame: a header may say less
    made = stylise_video(source, target, stylise, batch, order.size, progress=progress, most_pixels=most)
    return made.notes
