"""Sound that libsndfile does not read, that of videos among it: by PyAV, which brings FFmpeg's libraries along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from retable.platform.errors import UserError


@dataclass(frozen=True)
class Sound:
    """A file's first track of sound."""

    container: str
    """FFmpeg's name: mov, matroska, ..."""
    seconds: float
    """As the header says; 0 where it does not."""
    rate: int
    channels: int
    file: Any

    def blocks(self, lost: list[tuple[float, float]]) -> Iterator[Float32[np.ndarray, "samples channels"]]:
        """Yield the sound; packets that cannot be decoded are silence of their length, and go into `lost`."""
        import av

        track = self.file.streams.audio[0]
        resampler = av.AudioResampler(format="fltp", layout=track.layout.name, rate=self.rate)
        have = 0
        for packet in self.file.demux(track):
            try:
                frames = packet.decode()
            except av.FFmpegError:
                missing = round(float((packet.duration or 0) * (packet.time_base or 0)) * self.rate)
                lost.append((have / self.rate, (have + missing) / self.rate))
                have += missing
                yield np.zeros((missing, self.channels), np.float32)
                continue
            for frame in frames:
                for even in resampler.resample(frame):
                    block = even.to_ndarray().T.astype(np.float32, copy=False)
                    have += len(block)
                    yield block


@contextmanager
def opened(path: Path) -> Iterator[Sound]:
    """Open a file; what FFmpeg says of it becomes one clear line.

    Raises:
        UserError: where it is missing, empty, corrupt, or holds no sound, or PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise UserError(f"{path}: is read by PyAV; install it: pip install av") from error
    if not path.is_file():
        raise UserError(f"{path}: missing; put it back or take it out of the list")
    if not path.stat().st_size:
        raise UserError(f"{path}: empty (0 bytes); remove it")
    try:
        file = av.open(str(path))
    except (av.FFmpegError, OSError) as error:
        raise UserError(f"{path}: corrupt, it cannot be decoded ({error.strerror})") from error
    with file:
        if not file.streams.audio:
            raise UserError(f"{path}: holds no sound")
        track = file.streams.audio[0]
        seconds = float(file.duration or 0) / av.time_base
        container = file.format.name.split(",")[0]
        yield Sound(container, seconds, int(track.rate), int(track.channels), file)
