"""Styles: a photograph in, a painting out; every network is held at once."""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from ray import serve

from retable.platform.errors import UserError
from retable.serve.deployments.served import Served, raised, together
from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Problem, Reply, kind_of, returns_problems
from retable.tasks.style.export import read_export
from retable.tasks.style.files import images
from retable.tasks.style.files.images import Picture, Pixels
from retable.tasks.style.tools.pictures.batches import nothing, resized
from retable.tasks.style.tools.pictures.memory import shortage_told
from retable.tasks.style.tools.pictures.stylise import BATCH_PIXELS, NetworkStyle

BATCH, WAIT = 8, 0.01
"""Requests of one batch, and the seconds that the first of them waits for others."""
KINDS = {
    "PNG": rb"\x89PNG",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8",
    "WEBP": rb"RIFF",
    "TIFF": rb"II\*\0|MM\0\*",
    "BMP": rb"BM",
}
"""Kind of picture -> first bytes. Other decoders are never used: some run programs, many were never attacked."""


_COMPRESSION, _TILE_WIDTH, _TILE_HEIGHT = 259, 322, 323
"""Tags of TIFF."""
_SCAN = b"\xff\xda"
"""Marker at the start of a JPEG scan."""
MOST_SCANS = {"JPEG": 100, "TIFF": 1000}
"""A progressive JPEG has ten; a TIFF of JPEGs has one for each of its strips."""


@dataclass(frozen=True, eq=False)
class StyleRequest:
    """A decoded photograph, and the network that it goes through."""

    style: NetworkStyle
    pixels: Pixels


def decode(body: bytes, size: int, limits: Limits = LIMITS) -> Picture:
    """Decode a photograph, after a look at its header, and resize it.

    Raises:
        Problem: where it is no picture, or a larger one than is accepted.
    """
    kind, _ = check(body, size, limits)
    try:
        return resized(images.read(body, [kind]), size)
    except UserError as error:
        raise Problem(400, str(error)) from error


def check(body: bytes, size: int, limits: Limits = LIMITS) -> tuple[str, float]:
    """Return a picture's kind and the pixels of its painting, by its header: nothing is decoded.

    Raises:
        Problem: 413 where there are too many, 400 or 415 where it is none.
    """
    kind = kind_of(body, KINDS, f"no picture: send {', '.join(sorted(KINDS))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of broken metadata
            with Image.open(io.BytesIO(body), formats=[kind]) as image:
                width, height = image.size
                # A TIFF's tiles are made room for as their header says, whatever the picture's own size is.
                tags = getattr(image, "tag_v2", {})
                tiles = [tags.get(tag, 0) for tag in (_TILE_WIDTH, _TILE_HEIGHT)]
                jpeg_inside = tags.get(_COMPRESSION) in (6, 7)
                if any(not isinstance(length, int) or length < 0 for length in tiles):
                    raise ValueError("lengths of tiles")  # a tag has the type that the file says: text times a number
    except Exception as error:  # decoders raise anything on broken bytes
        raise Problem(400, f"the {kind} file is broken") from error
    # Each scan is gone through for all of the picture; coded data have no such bytes.
    if (kind == "JPEG" or jpeg_inside) and body.count(_SCAN) > MOST_SCANS[kind]:
        raise Problem(413, f"the {kind} file has more than {MOST_SCANS[kind]} scans; save it anew")
    pixels = width * height * (size / max(width, height, 1)) ** 2 if size else width * height
    if max(width * height, pixels, math.prod(tiles)) > limits.pixels:
        raise Problem(
            413, f"{width} x {height} pixels; at most {limits.pixels // 10**6} million, here and in the result"
        )
    return kind, pixels


def painted(works: Sequence[StyleRequest]) -> list[Pixels]:
    """Stylise photographs of one style and shape."""
    return [result.pixels for result in works[0].style([work.pixels for work in works], nothing)]


def paint(works: Sequence[StyleRequest]) -> list[Pixels | Exception]:
    """Stylise photographs; those of one style and shape together, and of `BATCH_PIXELS` at most."""
    return together(
        works,
        painted,
        key=lambda work: (id(work.style), work.pixels.shape),
        size=lambda work: math.prod(work.pixels.shape[:2]),
        most=BATCH_PIXELS,
    )


def finish(made: Pixels, photograph: Picture, strength: float, original: bool, kind: str) -> Reply:
    """Mix a result with its photograph as asked, and return its file; JPEG has no transparency."""
    if original:
        made = images.original_colours(made, photograph.pixels)
    if strength < 1:
        made = images.mix(made, photograph.pixels, strength)
    try:
        data = images.encode(made, photograph.alpha, photograph.icc, images.FORMATS[f".{kind}"], "the picture")
    except UserError as error:
        raise Problem(422, f"{kind.upper()} holds no picture so large; ask for a smaller size") from error
    return Reply(data, f"image/{kind}")


class Styles(Served[NetworkStyle]):
    """Holds every style that is served."""

    def load(self, data: bytes, name: str) -> NetworkStyle:
        """Return the style in a file."""
        return read_export(data, name).style()

    def probe(self, model: NetworkStyle) -> None:
        """Paint a small picture."""
        painted([StyleRequest(model, np.full((64, 64, 3), 128, np.uint8))])

    @returns_problems
    async def stylise(self, sha256: str, body: bytes, size: int, strength: float, original: bool, kind: str) -> Reply:
        """Paint the photograph in a body: in a batch, or alone where it is large, so that no other waits for it."""
        _, pixels = await asyncio.to_thread(check, body, size)
        large = pixels > BATCH_PIXELS

        async def answered() -> Reply:
            photograph = await asyncio.to_thread(decode, body, size)
            work = StyleRequest(await self.model(sha256), photograph.pixels)
            made = (await asyncio.to_thread(painted, [work]))[0] if large else raised(await self.batch(work))
            return await asyncio.to_thread(finish, made, photograph, strength, original, kind)

        try:
            with shortage_told("more memory is needed than is free"):
                return await (self.alone if large else self.line).run(answered)
        except UserError as error:  # others that are painted meanwhile took what was free
            raise Problem(503, f"{error}; ask for a smaller size, or again in a moment", wait=2) from error

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def batch(self, works: list[StyleRequest]) -> list[Pixels | Exception]:
        """Stylise photographs together, in a thread, so that health checks are answered meanwhile."""
        return await asyncio.to_thread(paint, works)
