"""Steadier videos: statistics fixed over a shot, outputs carried along the motion, and flicker measured.

The paper's network stylises each frame alone and claims that it "keeps the consistency and flow". But instance
normalisation takes mean and variance from every frame anew, so a change anywhere recolours the frame everywhere.
`statistics` takes them from a shot's first frames and keeps them: what is far from a change then stays as it is, to the
bit. Against the noise of cameras and codecs, which is amplified where it is, that does nothing, and a flickering light
shows more. `flow` also blends each frame with the one before, moved along the optical flow, but for what was hidden or
differs (Ruder, Dosovitskiy and Brox 2016, *Artistic Style Transfer for Videos*, section 4). The paper has neither, so
both are off unless asked for; `flicker` says what they bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import cv2
import numpy as np
import torch
from jaxtyping import Float

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.train.worker import best_device
from retable.tasks.style.files import images
from retable.tasks.style.files.images import Pixels
from retable.tasks.style.networks import tiling
from retable.tasks.style.networks.network import Statistics, TransformerNetwork
from retable.tasks.style.networks.tiling import Precision
from retable.tasks.style.tools.pictures.memory import shortage_told
from retable.tasks.style.tools.pictures.regions import Mask, compose
from retable.tasks.style.tools.pictures.stylise import scaled
from retable.tasks.style.tools.video.video import Pictures, Piece, Stylise, batch_of, frames_of, on_cluster

Flow = Float[np.ndarray, "height width 2"]
Pairs = Iterator[tuple[Piece, Pictures]]
"""Pieces of a video and what the network made of them."""
Steadiness = Literal["off", "statistics", "flow"]

LOOK_AHEAD = 8
"""Frames of a shot that its statistics are taken from."""
REFERENCE_PIXELS = 4_000_000
"""Pixels, in all, of the pictures that statistics are measured on at once: 8 at 640 x 360, one at 4K."""
CUT = 0.4
"""Share of a frame's pixels that must change colour (of 64) for a new shot to begin."""
STATIC = 2
"""Levels of 255 by which a pixel that stands still may change: noise of cameras and codecs."""
STILL = 0.25
"""Pixels by which what stands still may seem to move: the flow's own error."""
ALIKE, CHANGED = 24, 48
"""Levels of 255 by which a moved pixel may differ from its source and count whole, and from where on not at all."""


def by_shot(batches: Iterable[Pictures], look_ahead: int = LOOK_AHEAD) -> Iterator[Piece]:
    """Cut batches where a new shot begins, and give each piece the first pictures of its shot.

    At most `look_ahead` pictures, and the batch that completes them, wait at the start of a shot.
    """
    shot, reference, before = 0, None, None
    waiting: list[Pictures] = []
    for batch in batches:
        colours = [colour_histogram(picture) for picture in frames_of(batch)]
        starts = {n for n, pair in enumerate(pairwise([before, *colours])) if is_cut(*pair)}
        before = colours[-1]
        for begin, end in pairwise(sorted({0, *starts, len(batch)})):
            if begin in starts:
                yield from _pieces(waiting, shot, look_ahead)
                shot, reference, waiting = shot + 1, None, []
            if reference is not None:
                yield Piece(batch[begin:end], shot, reference)
                continue
            waiting.append(batch[begin:end])
            if sum(map(len, waiting)) >= look_ahead:
                for piece in _pieces(waiting, shot, look_ahead):
                    reference = piece.reference
                    yield piece
                waiting = []
    yield from _pieces(waiting, shot, look_ahead)


def _pieces(waiting: list[Pictures], shot: int, look_ahead: int) -> Iterator[Piece]:
    if waiting:
        reference = torch.cat(waiting)[:look_ahead].clone()
        yield from (Piece(pictures, shot, reference) for pictures in waiting)


def colour_histogram(picture: Pixels) -> Array:
    """Return the shares of 4 x 4 x 4 colours among the pixels, of which a few thousand are counted."""
    step = max(1, min(picture.shape[:2]) // 64)
    levels = picture[::step, ::step].reshape(-1, 3).astype(np.int64) >> 6
    counts = np.bincount(levels @ np.array([16, 4, 1]), minlength=64)
    return np.asarray(counts / counts.sum())


def is_cut(before: Array | None, after: Array | None) -> bool:
    """Return whether neighbouring frames are of different shots: half their histograms' L1 distance exceeds `CUT`."""
    return before is not None and after is not None and bool(np.abs(before - after).sum() / 2 > CUT)


@dataclass(frozen=True)
class Finish:
    """Final steps on stylised pictures, given their sources."""

    original_colours: bool = False
    strength: float = 1.0
    mask: Mask | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise UserError(f"strength {self.strength} is outside [0, 1]")

    def __call__(self, pictures: Pictures, piece: Piece) -> Pictures:
        """Bring back colours, what the mask leaves out, and a share of the photographs."""
        if not self.original_colours and self.strength == 1 and self.mask is None:
            return pictures
        pairs = zip(frames_of(pictures), frames_of(piece.pictures), strict=True)
        finished = [self._one(stylised, photograph) for stylised, photograph in pairs]
        return batch_of(finished)

    def _one(self, stylised: Pixels, photograph: Pixels) -> Pixels:
        if self.original_colours:
            stylised = images.original_colours(stylised, photograph)
        if self.mask is not None:
            stylised = compose(photograph, [stylised], self.mask.shares(*photograph.shape[:2]))
        return images.mix(stylised, photograph, self.strength)


def stretched(pictures: Pictures, height: int, width: int) -> Pictures:
    """Resize pictures; see `images.stretch`."""
    if pictures.shape[2:] == (height, width):
        return pictures
    return batch_of([images.stretch(picture, height, width) for picture in frames_of(pictures)])


class Stylist:
    """A network, and what is done to its pictures: what stylises a piece of a video, here or in a Ray actor.

    It moves to a GPU where it is first called, if there is one, and keeps the statistics of the shot it is at.
    """

    def __init__(
        self,
        network: TransformerNetwork,
        precision: Precision = "float32",
        finish: Finish | None = None,
        scale: float = 1.0,
    ) -> None:
        """Take a network, its arithmetic, what is done to its pictures, and how many times as large strokes are."""
        self.network, self.precision, self.finish, self.scale = network, precision, finish or Finish(), scale
        self.shot: int | None = None
        self.statistics: Statistics | None = None

    def __call__(self, piece: Piece) -> Pictures:
        """Stylise a piece; its pictures come back as uint8, rounded to the nearest level."""
        device = best_device(apple=True)
        self.network.to(device)
        count = len(piece.pictures)
        with shortage_told(f"{count} frames do not fit into memory; use --batch 1, or a smaller --size"):
            if piece.reference is not None and piece.shot != self.shot:
                self.shot, self.statistics = piece.shot, self._measure(piece.reference, device)
            image = stretched(piece.pictures, *self._size(piece.pictures)).to(device).float() / 255
            statistics = None if piece.reference is None else self.statistics
            made = tiling.stylise(self.network, image, self.precision, statistics=statistics)
        pictures = (made.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu()
        return self.finish(stretched(pictures, *piece.pictures.shape[2:]), piece)

    def _size(self, pictures: Pictures) -> tuple[int, int]:
        return scaled(pictures.shape[2], pictures.shape[3], self.scale)

    def _measure(self, reference: Pictures, device: str) -> Statistics:
        """Measure a shot's statistics, on as many of its first pictures as memory has room for."""
        height, width = self._size(reference)
        most = max(1, REFERENCE_PIXELS // (height * width))
        chosen = stretched(reference[:: -(-len(reference) // most)], height, width)
        return self.network.statistics(chosen.to(device).float() / 255)


class Regional:
    """Styles of a mask's regions: each makes whole frames, and the mask, the same for all, says where it is seen."""

    def __init__(self, stylists: Sequence[Callable[[Piece], Pictures]], mask: Mask, strength: float = 1.0) -> None:
        self.stylists, self.mask, self.strength = stylists, mask, strength

    def __call__(self, piece: Piece) -> Pictures:
        """Stylise a piece by each in turn, put the regions together, and mix in a share of the photographs."""
        made = [frames_of(stylist(piece)) for stylist in self.stylists]
        frames = frames_of(piece.pictures)
        shares = self.mask.shares(*frames.shape[1:3])
        together = [
            images.mix(compose(frame, several, shares), frame, self.strength)
            for frame, several in zip(frames, zip(*made, strict=True), strict=True)
        ]
        return batch_of(together)


def optical_flow(source: Pixels, target: Pixels) -> Flow:
    """Return where each pixel of `source` lies in `target`, as offsets (x, y), by dense inverse search."""
    if min(source.shape[:2]) < 16:  # too small for its pyramid
        return np.zeros((*source.shape[:2], 2), np.float32)
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    grey = [cv2.cvtColor(np.ascontiguousarray(picture), cv2.COLOR_RGB2GRAY) for picture in (source, target)]
    return np.asarray(search.calc(grey[0], grey[1], np.zeros((*grey[0].shape, 2), np.float32)))


def warp(picture: Array, flow: Flow, interpolation: int = cv2.INTER_LINEAR) -> Array:
    """Return `picture` read where `flow` points to; outside of it the border is repeated."""
    height, width = flow.shape[:2]
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    read = cv2.remap(
        picture, columns + flow[..., 0], rows + flow[..., 1], interpolation, borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(read)


def is_visible(flow: Flow, back: Flow) -> Array:
    """Return a mask of the pixels that are visible in both frames: there the flow and the flow back cancel out.

    Ruder et al. 2016, equation 5 (after Sundaram et al. 2010): |w + v|^2 <= 0.01 (|w|^2 + |v|^2) + 0.5, where v is the
    flow back at the place that w points to. Pixels that come from outside the frame count as hidden.

    Returns:
        bool (height, width).
    """
    height, width = flow.shape[:2]
    rows, columns = np.mgrid[:height, :width]
    x, y = columns + flow[..., 0], rows + flow[..., 1]
    inside = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
    returned = warp(back, flow)
    gap = ((flow + returned) ** 2).sum(-1)
    return np.asarray(inside & (gap <= 0.01 * ((flow**2).sum(-1) + (returned**2).sum(-1)) + 0.5))


def moved(picture: Pixels, source: Pixels, result: Array) -> tuple[Array, Array]:
    """Move what became of a frame, `source`, to where the same things are in the next one, `picture`.

    The result is read by Lanczos' kernel: what is read between pixels again and again, frame after frame, is soon soft
    if it is read bilinearly, and gets ripples by OpenCV's cubic one.

    Returns:
        The moved result (height, width, 3) in [0, 255], and how far it holds, in [0, 1], (height, width, 1): see
        `is_visible`; beyond that, the source's pixel must have kept its colour, from `ALIKE` to `CHANGED` less and
        less, as flows of things that appear can cancel out too.
    """
    flow = optical_flow(picture, source)
    change = cv2.absdiff(warp(source, flow), picture).max(-1).astype(np.float32)
    same = np.clip((CHANGED - cv2.GaussianBlur(change, (0, 0), 1)) / (CHANGED - ALIKE), 0, 1)
    held = (same * is_visible(flow, optical_flow(source, picture)))[..., None]
    return np.clip(warp(result.astype(np.float32), flow, cv2.INTER_LANCZOS4), 0, 255), held


def smooth(pairs: Pairs, share: float = 0.9) -> Pairs:
    """Blend each stylised picture with the one before it, moved along the flow, where the pixel was visible.

    Pixels that are the photograph's own are left as they are.

    Args:
        pairs: in the video's order.
        share: of the picture before in the blend; more is steadier, and later to follow light that changes.
    """
    source, result, shot = None, None, None
    for piece, stylised in pairs:
        blended = []
        for picture, new in zip(frames_of(piece.pictures), frames_of(stylised), strict=True):
            new = new.astype(np.float32)
            if source is not None and result is not None and piece.shot == shot:
                warped, held = moved(picture, source, result)
                painted = (new != picture).any(-1, keepdims=True)  # not what a mask keeps of the photograph
                new = new + share * held * painted * (warped - new)
            source, result, shot = picture, new, piece.shot
            blended.append(np.rint(new).astype(np.uint8))
        yield piece, batch_of(blended)


class Flicker:
    """Change of a stylised video where its source stays the same, summed frame by frame."""

    def __init__(self) -> None:
        self.before: tuple[Pixels, Pixels] | None = None
        self.static_change = self.static_count = self.squares = self.count = 0.0

    def add(self, frame: Pixels, stylised: Pixels) -> None:
        """Take the next frame and what became of it."""
        if self.before is not None:
            old, old_stylised = self.before
            difference = stylised.astype(np.float32) - old_stylised
            flow = optical_flow(frame, old)
            static = (cv2.absdiff(frame, old).max(-1) <= STATIC) & (np.hypot(flow[..., 0], flow[..., 1]) <= STILL)
            self.static_change += float(np.abs(difference[static]).sum(dtype=np.float64))
            self.static_count += 3 * int(static.sum())
            visible = is_visible(flow, optical_flow(old, frame))
            moved = stylised.astype(np.float32) - warp(old_stylised.astype(np.float32), flow)
            self.squares += float((moved[visible].astype(np.float64) ** 2).sum()) / 255**2
            self.count += 3 * int(visible.sum())
        self.before = frame, stylised

    def result(self) -> dict[str, float]:
        """Return the mean change of static pixels, in levels of 255, and the warp error; not a number: none such.

        Static is what neither changes nor moves: under a camera that pans an even sky does not change, but what is
        painted on it moves as it should.

        The warp error is the root mean square, in [0, 1], of what is left between a frame and the frame before it
        moved along the source's optical flow, over pixels visible in both: the temporal loss of Ruder et al., rooted.
        """
        return {
            "static_change": self.static_change / self.static_count if self.static_count else float("nan"),
            "warp_error": (self.squares / self.count) ** 0.5 if self.count else float("nan"),
        }


def measured(pairs: Pairs, free: Callable[[Piece], Pictures] | None, meters: dict[str, Flicker], frames: int) -> Pairs:
    """Pass pairs on, and measure the flicker of the first ones.

    Args:
        pairs: in the video's order.
        free: stylises every picture with its own statistics, for comparison; none: not compared.
        meters: gets `source` (what no stylisation can fall below), `off` where compared, and `result`.
        frames: how many frames are looked at.
    """
    seen = 0
    for piece, stylised in pairs:
        if seen < frames:
            first = piece.pictures[: frames - seen]
            made = {"source": first, "result": stylised[: frames - seen]}
            if free:
                made["off"] = free(Piece(first))
            for name, pictures in made.items():
                meter = meters.setdefault(name, Flicker())
                for frame, picture in zip(first, pictures, strict=True):
                    meter.add(frame.permute(1, 2, 0).numpy(), picture.permute(1, 2, 0).numpy())
        seen += len(stylised)
        yield piece, stylised


def stylise_stream(
    stylist: Callable[[Piece], Pictures],
    steady: Steadiness = "off",
    workers: int = 0,
    meters: dict[str, Flicker] | None = None,
    sample: int = 48,
    beside: bool = False,
) -> Stylise:
    """Put together what `stylise_video` stylises with.

    Args:
        stylist: stylises a piece.
        steady: statistics: fixed over a shot; flow: also blended along the motion.
        workers: Ray actors; 0: none, this process does the work.
        meters: gets the flicker of the first `sample` frames; none: not measured.
        sample: see `meters`.
        beside: whether pictures come out with the photograph on their left, twice as wide.
    """

    def stylise(batches: Iterator[Pictures]) -> Iterator[Pictures]:
        pieces = map(Piece, batches) if steady == "off" else by_shot(batches)
        pairs = on_cluster(stylist, pieces, workers) if workers else ((piece, stylist(piece)) for piece in pieces)
        if steady == "flow":
            pairs = smooth(pairs)
        if meters is not None:
            pairs = measured(pairs, None if steady == "off" else stylist, meters, sample)
        if beside:
            return (torch.cat([piece.pictures, pictures], 3) for piece, pictures in pairs)
        return (pictures for _, pictures in pairs)

    return stylise
