"""Opening of video files, for every reader: orientation, and the colors that they are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.tasks.style.files import hdr

OPENING = {
    "protocol_whitelist": "file",
    "format_whitelist": (
        "amv,apng,asf,avi,dv,flv,gif,h264,hevc,av1,ivf,m4v,matroska,webm,mjpeg,mov,mpeg,mpegts,mpegvideo,mxf,nut,"
        "ogg,rm,webp,yuv4mpegpipe"
    ),
}
"""A container may name other files and addresses, and a playlist does: none but the file itself is opened."""
MATRICES = {1: 1, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9}
"""FFmpeg's AVCOL_SPC_* -> swscale's SWS_CS_*: BT.709, FCC, BT.601 (PAL and NTSC), SMPTE 240M, BT.2020."""
BT709, BT601, BT2020, ICTCP = 1, 6, 9, 14
HD = 1024
"""A longer side beyond this many pixels is HD."""


def matrix_of(frame: Any) -> int:
    """Return a frame's YUV matrix (AVCOL_SPC_*); where it names none, what players take: BT.709 for HD, else BT.601.

    HDR and BT.2020's primaries without a matrix have BT.2020's.

    Raises:
        UserError: for ICtCp, which is no YUV matrix.
    """
    if frame.colorspace == ICTCP:
        raise UserError("its colors are ICtCp, which is not read; convert it to BT.2020 first")
    if frame.colorspace in MATRICES:
        return int(frame.colorspace)
    if frame.color_trc in (hdr.PQ, hdr.HLG) or frame.color_primaries == BT2020:
        return BT2020
    return BT709 if max(frame.width, frame.height) > HD else BT601


def turn_of(frame: Any) -> tuple[int, ...]:
    """Return the display matrix's [a, b, c, d] in FFmpeg's 16.16 fixed point; empty: none."""
    display: Any = frame.side_data.get("DISPLAYMATRIX")
    return tuple(int(v) for v in np.frombuffer(bytes(display), "<i4")[[0, 1, 3, 4]]) if display else ()


def is_sideways(turn: Sequence[int]) -> bool:
    """Return whether a display matrix exchanges rows and columns."""
    return bool(turn) and abs(turn[1]) > abs(turn[0])


def upright(picture: Array, turn: Sequence[int]) -> Array:
    """Apply a display matrix, to the nearest of the eight turns and reflections of a rectangle.

    A pixel at column p and row q is shown at column a p + c q and row b p + d q (FFmpeg's display.h).
    """
    if not turn:
        return picture
    a, b, c, d = turn
    across, down = (c, b) if is_sideways(turn) else (a, d)
    if is_sideways(turn):
        picture = picture.transpose(1, 0, 2)
    return np.ascontiguousarray(picture[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1])


def to_rgb(frame: Any) -> Array:
    """Return a frame as it is shown: uint8 (height, width, 3), upright; HDR and wide colors as BT.709."""
    wide = hdr.find(frame.color_trc, frame.color_primaries)
    rgb = frame.reformat(format="rgb48le" if wide else "rgb24", src_colorspace=MATRICES[matrix_of(frame)]).to_ndarray()
    return upright(hdr.to_bt709(rgb, wide) if wide else np.asarray(rgb), turn_of(frame))
