"""Videos in wide or bright colours, as BT.709 shows them: networks and paintings know no others.

PQ and HLG (ITU-R BT.2100) say how much light a display emits. The curve of ITU-R BT.2390, section 5.4, makes level 230
of 255 of white of 203 nits (ITU-R BT.2408), and 255 of 1,000 nits and more; little below 93 nits is changed by it. The
largest of red, green and blue is mapped, and the others follow, so that hues stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import UInt8, UInt16

from retable.platform.spec.arrays import Array

PQ, HLG = 16, 18
"""FFmpeg's AVCOL_TRC_* and AVCOL_PRI_*."""
WHITE, PEAK = 203.0, 1000.0
"""Nits of diffuse white, and the brightest that is told apart."""
GAMMA = 2.4
"""Of a BT.709 display (ITU-R BT.1886)."""
PRIMARIES = {
    9: ("BT.2020", ((1.6605, -0.5876, -0.0728), (-0.1246, 1.1329, -0.0083), (-0.0182, -0.1006, 1.1187))),
    12: ("P3", ((1.2249, -0.2247, 0.0), (-0.0420, 1.0419, 0.0), (-0.0197, -0.0786, 1.0979))),
}
"""AVCOL_PRI_* -> name, and the matrix of linear colours to BT.709's (both have the white D65)."""


@dataclass(frozen=True)
class Wide:
    """Colour space of a video that exceeds BT.709."""

    transfer: int
    primaries: int

    def __str__(self) -> str:
        """Name it."""
        name = {PQ: "HDR (PQ)", HLG: "HDR (HLG)"}.get(self.transfer)
        return name or PRIMARIES[self.primaries][0]


def find(transfer: int, primaries: int) -> Wide | None:
    """Return what is to be mapped of a video's tags; None where it is BT.709's own or not said."""
    return Wide(transfer, primaries) if transfer in (PQ, HLG) or primaries in PRIMARIES else None


def to_bt709(samples: UInt16[np.ndarray, "height width 3"], wide: Wide) -> UInt8[np.ndarray, "height width 3"]:
    """Map RGB of 16 bits, as coded, to RGB of 8 bits as BT.709 codes it."""
    light = decoding(wide.transfer)[samples]
    if wide.transfer == HLG:  # the display's system gamma, of 1.2 at 1,000 nits
        light = PEAK * light * (light @ np.array([0.2627, 0.6780, 0.0593], np.float32))[..., None] ** 0.2
    # HDR without primaries that are known is BT.2100's, whose are BT.2020's.
    matrix = np.array(PRIMARIES.get(wide.primaries, PRIMARIES[9])[1], np.float32)
    light = np.maximum(light @ matrix.T, 0)
    if wide.transfer in (PQ, HLG):
        largest = np.maximum(light.max(axis=2, keepdims=True), 1e-6)
        light = light * (tone_mapped(largest) / largest)
    return np.asarray(np.rint(255 * np.clip(light, 0, 1) ** (1 / GAMMA)), np.uint8)


@cache
def decoding(transfer: int) -> Array:
    """Return what each of 65,536 levels stands for: nits of PQ, scene light of HLG and of the others, to 1."""
    coded = np.linspace(0, 1, 65536)
    if transfer == PQ:
        return pq_light(coded).astype(np.float32)
    if transfer == HLG:
        low, high = coded**2 / 3, (np.exp((coded - 0.55991073) / 0.17883277) + 0.28466892) / 12
        return np.where(coded <= 0.5, low, high).astype(np.float32)
    return np.asarray(coded**GAMMA, np.float32)


def tone_mapped(nits: Array) -> Array:
    """Return the light of a BT.709 display, 1 at white, for nits: BT.2390's curve, on PQ's scale."""
    top, knee_of = pq_code(np.array(PEAK)), pq_code(np.array(WHITE))
    coded, limit = np.minimum(pq_code(nits) / top, 1), knee_of / top
    knee = 1.5 * limit - 0.5
    t = (coded - knee) / (1 - knee)
    bent = (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (3 * t**2 - 2 * t**3) * limit
    return np.asarray(pq_light(np.where(coded < knee, coded, bent) * top) / WHITE)


def pq_light(coded: Array) -> Array:
    """Return nits of PQ's values in [0, 1] (BT.2100, table 4)."""
    power = coded ** (32 / 2523)
    share = np.maximum(power - 3424 / 4096, 0) / (2413 / 128 - 2392 / 128 * power)
    return np.asarray(10_000 * share ** (16384 / 2610))


def pq_code(nits: Array) -> Array:
    """Return PQ's values of nits, the inverse of `pq_light`."""
    power = (nits / 10_000) ** (2610 / 16384)
    return np.asarray(((3424 / 4096 + 2413 / 128 * power) / (1 + 2392 / 128 * power)) ** (2523 / 32))
