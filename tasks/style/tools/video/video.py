"""Videos, stylised as a stream: a thread decodes, one stylises and the caller encodes, a few batches apart.

No frame is ever on disk, and memory does not grow with the video's length. The paper (section IV) extracts all frames
first, and stylises them in batches; here too a batch goes through the network at once. Sound, timestamps and everything
else of the file are kept; see `frames`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.execute.session import cluster_resources, cpu_share
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import whole_file
from retable.tasks.style.tools.video import frames as files
from retable.tasks.style.tools.video.frames import CODECS, Clip, Frame, Reader

Pictures = UInt8[Tensor, "batch 3 height width"]
Stylise = Callable[[Iterator[Pictures]], Iterator[Pictures]]
"""Stylises a stream of batches of pictures: as many frames come out as go in, in order, in batches of any size.
`partial(map, function)` makes one of a function of a batch."""
T = TypeVar("T")

DEPTH = 2
"""Batches that a stage is ahead of the next: while one is worked on, the next is ready and another in the making."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A batch of pictures and the shot that it lies in: what a network is given."""

    pictures: Pictures
    shot: int = 0
    reference: Pictures | None = None
    """The shot's first pictures, from which statistics are taken; none: every picture has its own."""


@dataclass(frozen=True)
class Written:
    """Result of stylising a video."""

    frames: int
    seconds: float
    """How long it took."""
    notes: tuple[str, ...]
    """Remarks for the user: a file that ends too early, tracks that were not kept."""


def batch_of(pictures: Sequence[Array]) -> Pictures:
    """Return pictures, each (height, width, 3), as one batch."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def frames_of(batch: Pictures) -> UInt8[np.ndarray, "batch height width 3"]:
    """Return a batch's pictures, in the batch's own memory."""
    return batch.permute(0, 2, 3, 1).numpy()


def stylise_video(
    source: Path,
    target: Path,
    stylise: Stylise,
    batch: int = 4,
    size: int = 0,
    crf: int = 18,
    reader: Reader = "pyav",
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    start: float = 0.0,
    duration: float | None = None,
    most_pixels: int = 0,
) -> Written:
    """Decode a video, stylise its frames and encode them, with its sound.

    Args:
        source: any file that FFmpeg reads.
        target: .mp4, .mov or .mkv (H.264), or .webm (VP9). It appears when it is whole, and never before.
        stylise: what makes stylised batches of batches; uint8 (batch, 3, height, width).
        batch: frames that go through the network at once.
        size: pixels of the longer side; 0: the video's own size.
        crf: the encoder's quality on its own scale; lower is better, and larger.
        reader: pyav, or opencv: the paper's.
        overwrite: whether an existing `target` is replaced.
        progress: called with the frames done and in all (0: unknown).
        start: seconds of the video that are passed over.
        duration: seconds that are stylised; none: all that are left.
        most_pixels: that a frame may have; 0: any number.

    Raises:
        UserError: where the source is no video or the target cannot be written.
    """
    started, notes = time.monotonic(), list[str]()
    check_target(source, target, overwrite)
    with whole_file(target) as path:
        clip = files.probe(source, start, duration, most_pixels)
        decoded = files.read(clip, notes, size, reader)
        with closing(stylised(decoded, stylise, batch)) as made:
            count = files.write(path, clip, counted(made, clip, progress), notes, crf)
    return Written(count, time.monotonic() - started, tuple(dict.fromkeys(notes)))


def counted(frames: Iterable[Frame], clip: Clip, progress: Callable[[int, int], None]) -> Iterator[Frame]:
    """Pass frames on and tell how many there were."""
    for number, frame in enumerate(frames, 1):
        yield frame
        progress(number, max(number, clip.frames) if clip.frames else 0)


def check_target(source: Path, target: Path, overwrite: bool) -> None:
    """Refuse a video's `target` that exists, is the source, or has a suffix that is not written, with a UserError."""
    if target.suffix.lower() not in CODECS:
        raise UserError(f"{target}: videos are written as {', '.join(CODECS)}")
    if target.exists() and source.exists() and target.samefile(source):
        raise UserError(f"{target}: is the video that is read; choose another name")
    if target.exists() and not overwrite:
        raise UserError(f"{target}: exists; --overwrite replaces it")


def stylised(frames: Iterator[Frame], stylise: Stylise, batch: int) -> Generator[Frame]:
    """Stylise a stream of frames in batches, reading and working ahead; timestamps stay with their frames."""
    times: deque[tuple[int, int]] = deque()

    def batches() -> Iterator[Tensor]:
        while group := list(islice(frames, batch)):
            times.extend((frame.pts, frame.duration) for frame in group)
            yield batch_of([frame.picture for frame in group])

    with closing(ahead(batches(), DEPTH)) as decoded, closing(ahead(stylise(decoded), DEPTH)) as made:
        for pictures in made:
            for picture in frames_of(pictures):
                yield Frame(*times.popleft(), picture)
    if times:
        raise RuntimeError(f"{len(times)} frames went into the network and did not come out")


def ahead(items: Iterable[T], depth: int) -> Generator[T]:
    """Yield `items`, none of them None, as a thread makes them, `depth` of them early. Closing it stops the thread.

    Raises:
        BaseException: what the making of an item raised.
    """
    iterator, pool = iter(items), ThreadPoolExecutor(1)
    waiting = deque(pool.submit(next, iterator, None) for _ in range(depth))
    try:
        while (item := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, iterator, None))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def on_cluster(
    function: Callable[[Piece], Pictures], pieces: Iterable[Piece], workers: int
) -> Iterator[tuple[Piece, Pictures]]:
    """Apply `function` to pieces with Ray actors, in order; at most two pieces an actor are on their way.

    Pictures travel as uint8 through the object store, a shot's reference once. An actor that is lost is started again
    and its pieces repeated. Ray must run.

    Args:
        function: picklable; called in the actors, so it may keep what it has worked out for a shot.
        pieces: an iterator is read as fast as pieces are finished.
        workers: how many actors; each has a GPU, or a share of one, where the cluster has any.

    Raises:
        UserError: where the cluster has too few CPUs.
    """
    import ray

    gpus = gpu_share(workers, int(cluster_resources().get("GPU", 0.0)))
    needs: dict[str, Any] = {"num_gpus": gpus, "num_cpus": 0} if gpus else {"num_cpus": cpu_share(workers)}
    actor: Any = ray.remote(max_restarts=-1, max_task_retries=3, **needs)(_Worker)
    held = ray.put(function)
    actors = [actor.remote(held) for _ in range(workers)]
    waiting: deque[tuple[Piece, Any]] = deque()
    shot, reference = -1, None
    try:
        for number, piece in enumerate(pieces):
            if piece.reference is not None and piece.shot != shot:
                shot, reference = piece.shot, ray.put(piece.reference.numpy())
            if len(waiting) == 2 * workers:
                done, result = waiting.popleft()
                yield done, _tensor(ray.get(result))
            arguments = (piece.pictures.numpy(), piece.shot, reference)
            waiting.append((piece, actors[number % workers].run.remote(*arguments)))
        while waiting:
            done, result = waiting.popleft()
            yield done, _tensor(ray.get(result))
    finally:
        for one in actors:
            ray.kill(one)


def gpu_share(workers: int, gpus: int) -> float:
    """Return how much of a GPU each worker may reserve so that all of them fit; 0 where there is none.

    No worker lies across two GPUs, so the share follows from the most that one GPU holds. Ray counts in ten-thousandths
    and rounds to the nearest, so the share is rounded down here.
    """
    return 10_000 // -(-workers // gpus) / 10_000 if gpus else 0.0


class _Worker:
    """The Ray actor that stylises."""

    def __init__(self, function: Callable[[Piece], Pictures]) -> None:
        self.function = function

    def run(self, pictures: Any, shot: int, reference: Any) -> Any:
        """Stylise one piece; arrays in, an array out."""
        first = None if reference is None else _tensor(reference)
        return self.function(Piece(_tensor(pictures), shot, first)).numpy()


def _tensor(array: Any) -> Tensor:
    """Copy an array out of the object store, whose memory is read-only and should be free again."""
    return torch.from_numpy(array.copy())
