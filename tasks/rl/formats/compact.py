"""A file for sparse networks that loses no bit: 17 to 20 times smaller than the dense file at 95 % sparsity.

Little-endian throughout:

    RTSN, version (1 byte), 3 bytes of 0, length of the header (4), CRC-32 of all that follows (4)
    header      JSON: {"precision": ..., "about": ..., "tensors": [[name, shape, kept, gaps, scale, lengths], ...]}
    streams     for each tensor: where its kept entries are, then their values; `lengths` in bytes

An entry is kept where its bits are not all 0, so -0.0 is. Positions are `gaps` bytes: the number of zeros before each
of the `kept` entries, where 255 stands for as many zeros and no entry. Values are one stream for each of their bytes;
they are rotated by one bit, which puts the sign last and the exponent, the one part that can be compressed, into a byte
of its own. zlib codes each stream, tensor by tensor, as layers differ in density and range; a stream that does not
shrink is stored as it is. Positions take within 2 % of their entropy, and next to nothing where all or none are kept.

Places that the reader can find by itself need not be in the file: of a tensor that is written with its mask the first
stream is empty (`gaps` 0), and the values are those at the mask's places, zeros among them.

float16 and int8 round the values first, and only entries that are then not 0 are kept. int8 is symmetric with one
scale for a layer (one for each row halves the error at best, in more bytes than another bit would take); biases are
float16 there.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retable.platform.errors import UserError, words
from retable.platform.spec.arrays import Array
from retable.tasks.rl.formats.precisions import TYPES, Precision
from retable.tasks.rl.sparse.inference import ACTING

MAGIC, VERSION = b"RTSN", 1
START = struct.Struct("<4sB3xII")
LARGEST = 1 << 22
"""Numbers in one file, at most: a header of a few bytes could claim as many zeros as it likes. The paper's networks
have 1.6 million in all. Positions, and the sums that give them, fit 32 bits."""
LONGEST = 1 << 18
"""Bytes of a header, at most."""
HEAVIEST = START.size + LONGEST + 6 * LARGEST
"""Bytes of a file, at most: four for a value, one for its place, and what is stored as it is."""
NAME = re.compile(r"[\w.-]+", re.ASCII)
"""A name in a file: errors print it, and it could hold lines or a terminal's commands."""
ESCAPE = 255


@dataclass(frozen=True)
class Encoded:
    """One tensor as it is written."""

    shape: tuple[int, ...]
    kept: int
    gaps: int
    scale: float
    """Multiplies int8 values; 1 for others."""
    streams: tuple[bytes, ...]


def pack(
    weights: Mapping[str, Tensor],
    precision: Precision = "float32",
    about: Mapping[str, Any] | None = None,
    masks: Mapping[str, Tensor] | None = None,
) -> bytes:
    """Return the file of float32 tensors of one or two dimensions, such as `vae.e1.weight` (out, in).

    Args:
        weights: what `unpack` gives back: bit for bit in float32, else rounded.
        precision: of the values in the file.
        about: anything JSON can hold, which `read_about` gives back.
        masks: of tensors whose places stay out of the file, as `unpack` will be given them; True is kept.

    Raises:
        UserError: where a value is too large for float16 or not finite for int8, or there are too many numbers.
        ValueError: where a tensor is not float32, has other dimensions, or is not 0 outside its mask.
    """
    given = masks or {}
    parts = {name: encode(value, precision, name, given.get(name)) for name, value in weights.items()}
    return assemble(parts, precision, about)


def encode(tensor: Tensor, precision: Precision, name: str, mask: Tensor | None = None) -> Encoded:
    """Return one tensor as `assemble` writes it; `name` is for errors, which are those of `pack`."""
    if tensor.dtype != torch.float32 or tensor.dim() not in (1, 2):
        raise ValueError(f"{name} is {tensor.dtype} of {tensor.dim()} dimensions, not float32 of one or two")
    numbers, scale = _rounded(tensor.detach().cpu().numpy(), form(precision, tensor.dim()), name)
    bits = np.ascontiguousarray(numbers).view(TYPES[form(precision, tensor.dim())][0]).ravel()
    positions = np.flatnonzero(bits)
    if mask is not None:
        allowed = np.flatnonzero(mask.numpy())
        if not np.isin(positions, allowed, assume_unique=True).all():
            raise ValueError(f"{name} is not 0 outside its mask")
        planes = _planes(bits[allowed])
        return Encoded(tuple(tensor.shape), len(allowed), 0, scale, (b"", *map(_deflated, planes)))
    zeros = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(zeros // ESCAPE + 1)
    gaps = np.full(ends[-1] if len(ends) else 0, ESCAPE, np.uint8)
    gaps[ends - 1] = zeros % ESCAPE
    streams = (gaps.tobytes(), *_planes(bits[positions]))
    return Encoded(tuple(tensor.shape), len(positions), len(gaps), scale, tuple(map(_deflated, streams)))


def _planes(values: Array) -> list[bytes]:
    """Return the bytes of values, first to last, each a stream; rotated by one bit."""
    width = values.itemsize
    rotated = (values << 1) | (values >> (8 * width - 1))
    return [plane.tobytes() for plane in rotated.view(np.uint8).reshape(-1, width).T]


def assemble(parts: Mapping[str, Encoded], precision: Precision, about: Mapping[str, Any] | None = None) -> bytes:
    """Return the file of encoded tensors; see `pack`."""
    count = sum(math.prod(part.shape) for part in parts.values())
    tensors = [[name, *astuple(part)[:-1], [len(s) for s in part.streams]] for name, part in parts.items()]
    header = json.dumps({"precision": precision, "about": about or {}, "tensors": tensors}, separators=(",", ":"))
    if count > LARGEST or len(header.encode()) > LONGEST:
        raise UserError(f"{count:,} numbers in {len(parts)} tensors; a compact file holds at most {LARGEST:,}")
    rest = header.encode() + b"".join(stream for part in parts.values() for stream in part.streams)
    return START.pack(MAGIC, VERSION, len(header.encode()), zlib.crc32(rest)) + rest


def unpack(data: bytes, name: str, masks: Callable[[Any], Mapping[str, Tensor]] | None = None) -> dict[str, Tensor]:
    """Return the tensors of a file as float32, dense; `name` is what errors call it.

    `masks` makes the masks that are not in the file of its `about`; ValueErrors that it raises name the file.

    Files of strangers are safe to read: nothing is run, and beside the file itself no more is allocated than five times
    what `LARGEST` numbers take, so 80 MiB.

    Raises:
        UserError: where the file is of another kind or version, cut short, changed, or contradicts itself.
    """
    with _one_line(name):
        header, start = _header(data)
        drawn = masks(header["about"]) if masks else {}
        tensors = {}
        for key, shape, kept, gaps, scale, lengths in header["tensors"]:
            ends = start + np.cumsum([0, *lengths])
            start = int(ends[-1])
            streams = tuple(data[a:b] for a, b in pairwise(ends))
            part = Encoded(tuple(shape), kept, gaps, scale, streams)
            tensors[key] = _decode(part, header["precision"], drawn.get(key))
        return tensors


def read_about(data: bytes, name: str) -> Any:
    """Return what `pack` was given as `about`; errors are those of `unpack`."""
    with _one_line(name):
        return _header(data)[0]["about"]


def deployable(weights: Mapping[str, Tensor], policy: str) -> dict[str, Tensor]:
    """Return what acting needs of a run's weights: for `bc` the decoder, for `bcq` also actor and first head."""
    return {name: value for name, value in weights.items() if name.rpartition(".")[0] in ACTING[policy]}


def form(precision: Precision, dimensions: int) -> Precision:
    """Return the precision in which a tensor is stored: biases are never int8."""
    return "float16" if precision == "int8" and dimensions == 1 else precision


def _rounded(numbers: Array, precision: Precision, name: str) -> tuple[Array, float]:
    """Return numbers in a precision, and what they are to be multiplied by."""
    if precision == "float32":
        return numbers, 1.0
    if precision == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            halves = numbers.astype(np.float16)
        if (np.isinf(halves) & np.isfinite(numbers)).any():
            raise UserError(f"{name} has values above 65504, the largest of float16; use float32")
        return halves, 1.0
    if not np.isfinite(numbers).all():
        raise UserError(f"{name} has NaN or infinite values, which int8 cannot hold; use float32")
    scale = float(np.abs(numbers).max(initial=0)) / 127 or 1.0
    return np.rint(numbers.astype(np.float64) / scale).astype(np.int8), scale  # in float32 a tiny scale would be 0


def _decode(part: Encoded, precision: Precision, mask: Tensor | None) -> Tensor:
    """Return a tensor; whatever is as long as it is 32 bits wide at most, and changed in place."""
    size, width = math.prod(part.shape), len(part.streams) - 1
    if part.kept and not part.gaps:
        if mask is None or mask.shape != part.shape:
            raise ValueError("its masks are not in it and cannot be drawn again")
        positions = np.flatnonzero(mask.numpy())
    else:
        positions = _positions(_inflated(part.streams[0], part.gaps), size)
    if len(positions) != part.kept:
        raise ValueError("its positions contradict its shapes")
    unsigned, number = TYPES[form(precision, len(part.shape))]
    planes = np.empty((part.kept, width), np.uint8)
    for byte, stream in enumerate(part.streams[1:]):
        planes[:, byte] = np.frombuffer(_inflated(stream, part.kept), np.uint8)
    values = planes.view(unsigned)[:, 0]
    signs = values << (8 * width - 1)
    values >>= 1
    values |= signs
    bits = np.zeros(size, unsigned)
    bits[positions] = values
    numbers = bits.view(number).reshape(part.shape)
    if number == "<f4":  # it stays as it is: arithmetic would change the bits of a NaN
        return torch.from_numpy(numbers)
    scaled = np.empty(part.shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(numbers, part.scale, out=scaled, dtype=np.float64, casting="unsafe")
    return torch.from_numpy(scaled)


def _positions(stream: bytes, size: int) -> Array:
    """Return where the entries are that a stream of gaps keeps."""
    gaps = np.frombuffer(stream, np.uint8)
    positions: Array = np.cumsum(gaps, dtype=np.int32)[gaps != ESCAPE]
    positions += np.arange(len(positions), dtype=np.int32)
    if len(gaps) and (gaps[-1] == ESCAPE or positions[-1] >= size):
        raise ValueError("its positions contradict its shapes")
    return positions


def _deflated(raw: bytes) -> bytes:
    """Return the shortest of: the bytes themselves, Huffman codes, Huffman codes with repetitions of one byte."""
    shortest = raw
    for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE):
        coder = zlib.compressobj(9, wbits=-15, strategy=strategy)
        coded = coder.compress(raw) + coder.flush()
        if len(coded) >= len(shortest):
            break  # as with the mantissa: what Huffman codes cannot shrink is not worth a second try
        shortest = coded
    return shortest


def _inflated(stream: bytes, size: int) -> bytes:
    if len(stream) == size:
        return stream
    decoder = zlib.decompressobj(wbits=-15)
    raw = decoder.decompress(stream, size + 1)
    if len(raw) != size or not decoder.eof or decoder.unused_data:
        raise ValueError("a stream has another length than its header says")
    return raw


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, zlib.error, RecursionError) as error:
        reason = words(error) if isinstance(error, ValueError) else "its streams cannot be read"
        raise UserError(f"{name}: {reason}; write it again by `retable rl export`") from error


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    """Return a file's header, checked so that what it claims can be allocated, and where the streams begin."""
    if len(data) < START.size or not data.startswith(MAGIC):
        raise ValueError("no file of sparse networks, or not the whole file")
    _, version, length, checksum = START.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"version {version} of the format; this program reads version {VERSION}")
    if zlib.crc32(memoryview(data)[START.size :]) != checksum:
        raise ValueError("the file is cut short or changed (its checksum differs)")
    start = START.size + length
    if length > LONGEST or start > len(data):
        raise ValueError("its header is too long")
    header = json.loads(data[START.size : start])
    if not isinstance(header, dict) or header.keys() != {"precision", "about", "tensors"}:
        raise ValueError("its header lacks `precision`, `about` or `tensors`")
    if header["precision"] not in list(TYPES) or not isinstance(header["tensors"], list):
        raise ValueError("its header has a wrong `precision` or `tensors`")
    stored = [_checked(entry, header["precision"]) for entry in header["tensors"]]
    if sum(numbers for numbers, _ in stored) > LARGEST:
        raise ValueError(f"it claims more than {LARGEST:,} numbers")
    if sum(streams for _, streams in stored) != len(data) - start:
        raise ValueError("its streams have another length than its header says")
    if len({entry[0] for entry in header["tensors"]}) != len(stored):
        raise ValueError("two of its tensors have one name")
    return header, start


def _checked(entry: Any, precision: Precision) -> tuple[int, int]:
    """Return how many numbers a tensor's entry in the header claims, and how many bytes of streams."""
    match entry:
        case [str(name), [*shape], int(kept), int(gaps), float(scale), [*lengths]] if len(shape) in (1, 2):
            size = math.prod(shape) if all(type(n) is int and 0 <= n <= LARGEST for n in shape) else LARGEST + 1
            streams = 1 + np.dtype(TYPES[form(precision, len(shape))][0]).itemsize
            if (
                NAME.fullmatch(name)
                and size <= LARGEST
                and 0 <= kept <= size
                and (gaps == 0 or kept <= gaps <= kept + size // ESCAPE)
                and 0 < scale < math.inf
                and len(lengths) == streams
                and all(type(n) is int and 0 <= n <= LARGEST * 2 for n in lengths)
            ):
                return size, sum(lengths)
    raise ValueError("its header describes an impossible tensor")
