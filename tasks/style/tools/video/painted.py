"""Version 1 for videos: each frame is optimised, begun with the one before where the same things are still seen.

Ruder, Dosovitskiy and Brox 2016, *Artistic Style Transfer for Videos*, section 4.1: an optimisation that starts from
the last frame's result, moved along the optical flow, ends in strokes that move with what they are on, and takes a
fraction of the evaluations. What has come into sight starts from the frame itself, as the whole of a shot's first frame
does. Their temporal loss is not here: `--steady flow` blends the results along the motion instead.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from retable.platform.config import override
from retable.tasks.style.apply.optimise import ImageOptimisation
from retable.tasks.style.files import images
from retable.tasks.style.files.images import Pixels
from retable.tasks.style.tools.pictures.memory import shortage_told
from retable.tasks.style.tools.pictures.stylise import PaintingStyle, finished, sized
from retable.tasks.style.tools.video.steady import Finish, colour_histogram, is_cut, moved
from retable.tasks.style.tools.video.video import Pictures, Piece, batch_of, frames_of

SHARE = 3
"""A frame that follows another gets one evaluation in so many of a first frame's."""


@dataclasses.dataclass
class Painter:
    """Optimiser of a video's frames, one after the other, in order: it remembers the last one."""

    style: PaintingStyle
    finish: Finish = dataclasses.field(default_factory=lambda: Finish())
    shot: int | None = None
    before: tuple[Pixels, Pixels] | None = None
    """The last frame, and what became of it."""

    def __call__(self, piece: Piece) -> Pictures:
        """Optimise the frames of a piece.

        Raises:
            UserError: where a loss is no number at the end, or memory does not hold a frame.
        """
        if piece.shot != self.shot:
            self.shot, self.before = piece.shot, None
            self.style.check_memory(*piece.pictures.shape[2:])
        with shortage_told("a frame does not fit into memory; use a smaller --size"):
            made = [self.optimise(picture) for picture in frames_of(piece.pictures)]
        return self.finish(batch_of(made), piece)

    def optimise(self, picture: Pixels) -> Pixels:
        """Optimise one frame."""
        config = override(self.style.config, sized(picture, self.style.options))
        begin = None
        if self.before is not None and is_cut(*map(colour_histogram, (self.before[0], picture))):
            self.before = None  # found here too: without steadiness pieces know of no shots
        if self.before is not None:
            begin = images.to_tensor(self.begun(picture, *self.before))
            config = override(config, {"method.scales": [], "steps": max(1, config.steps // SHARE)})
        device = str(self.style.options.where)
        job = ImageOptimisation(config, picture, self.style.paintings, self.style.network, device, begin)
        for _ in range(job.evaluations):
            job.step()
        result = finished(job)
        self.before = picture, result
        return result

    def begun(self, picture: Pixels, source: Pixels, result: Pixels) -> Pixels:
        """Return what a frame is begun with: the last result, moved, where it is the same thing; else the frame."""
        warped, held = moved(picture, source, result)
        return np.asarray(np.rint(picture + held * (warped - picture)), np.uint8)
