"""Frames a second of a video, decoded, stylised and encoded at once; peak memory, also of four times the frames.

The clip is noise that is moved and blurred, H.264 at 320 x 180, without sound. `identity` gives frames back as they
are, so that it shows what decoding, converting and encoding take; the network is a small one, untrained. Each runs in a
process of its own, whose memory is thus its alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import most_resident

FRAMES, SHAPE, RATE = 96, (180, 320), 24
"""Frames of the shorter clip; height and width; frames a second."""
FILTERS = {"identity": 0, "network of 8 filters": 8}


def generate(path: Path, frames: int) -> None:
    """Write a clip: blurred noise, larger than the picture, seen through a window that moves."""
    import av
    import cv2
    import numpy as np

    height, width = SHAPE
    noise = cv2.GaussianBlur(np.random.default_rng(0).random((height + 64, width + 64, 3), np.float32), (0, 0), 4)
    scene = np.interp(noise, (noise.min(), noise.max()), (0, 255)).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            top, left = (abs(speed * number % 128 - 64) for speed in (1, 2))
            picture = np.ascontiguousarray(scene[top : top + height, left : left + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode(None))


def one(path: str, filters: int) -> None:
    """Stylise a clip by a network of so many filters, or by none; print frames a second and peak MB."""
    import torch

    from retable.tasks.style.networks.network import TransformerNetwork
    from retable.tasks.style.tools.video.steady import Stylist, stylise_stream
    from retable.tasks.style.tools.video.video import stylise_video

    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    function = Stylist(TransformerNetwork(filters).eval()) if filters else (lambda piece: piece.pictures)
    start = time.perf_counter()
    source = Path(path)
    written = stylise_video(source, source.with_suffix(".mkv"), stylise_stream(function), overwrite=True)
    rate = written.frames / (time.perf_counter() - start)
    print(rate, most_resident(), written.frames)


def run(path: Path, filters: int) -> tuple[float, float]:
    """Return frames a second and peak MB of a process that stylises a clip."""
    command = [sys.executable, "-c", f"from benchmarks.style_video import one; one({str(path)!r}, {filters})"]
    rate, peak, _ = map(float, subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    return rate, peak


def measure() -> dict[str, Any]:
    """Stylise both clips in both ways."""
    seconds_of: dict[str, Any] = {"size": f"{SHAPE[1]} x {SHAPE[0]}"}
    with tempfile.TemporaryDirectory(prefix="retable-bench-") as folder:
        clips = {frames: Path(folder, f"{frames}.mp4") for frames in (FRAMES, 4 * FRAMES)}
        for frames, path in clips.items():
            generate(path, frames)
        for name, filters in FILTERS.items():
            results = {frames: run(path, filters) for frames, path in clips.items()}
            for frames, (rate, peak) in results.items():
                seconds_of[f"{name}, {frames} frames: frames/s"] = rate
                seconds_of[f"{name}, {frames} frames: peak MB"] = peak
            seconds_of[f"{name}: peak of four times the frames, ratio"] = results[4 * FRAMES][1] / results[FRAMES][1]
    return seconds_of
