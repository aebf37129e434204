"""Pictures: read from any usual file, written whole or not at all, and the arithmetic on them.

A *picture* is a uint8 RGB array (height, width, 3); an *image* is a float32 tensor (batch, 3, height, width) in [0, 1].
"""

from __future__ import annotations

import io
import struct
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import ExifTags, Image, ImageCms, ImageFile, UnidentifiedImageError
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.spec.arrays import Array
from retable.platform.store.storage import whole_file
from retable.tasks.style.files import hdr

Pixels = UInt8[np.ndarray, "height width 3"]
"""A picture."""
PIXELS = 400_000_000
"""The most pixels of a picture that is read: a few hundred bytes can decode to more memory than there is."""
FORMATS: dict[str, dict[str, Any]] = {
    ".png": {"format": "PNG"},
    ".jpg": {"format": "JPEG", "quality": 95, "subsampling": 0},
    ".jpeg": {"format": "JPEG", "quality": 95, "subsampling": 0},
    ".webp": {"format": "WEBP", "quality": 95},
    ".tif": {"format": "TIFF", "compression": "tiff_adobe_deflate"},
    ".tiff": {"format": "TIFF", "compression": "tiff_adobe_deflate"},
}
"""Suffix -> how a picture is written. JPEG has no alpha channel, and chroma at full resolution here."""
SUFFIXES = {*FORMATS, ".jfif", ".gif", ".bmp", ".avif", ".heic", ".heif", ".jp2", ".ppm", ".pgm", ".tga"}
"""Of pictures that are read, HEIC's among them."""
WHITE_IS_ZERO = 0
"""TIFF's photometric interpretation of negatives."""
ASSOCIATED = (1,)
"""TIFF's extra sample: alpha that the colors are multiplied by."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what sets the picture upright."""
HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Brands of HEIC files."""
STRIP = 256
"""Rows that are converted at once."""
HEADER = 65536
"""Bytes at a file's beginning in which it names its color space."""
Matrix = tuple[tuple[float, ...], ...]
BT709 = 1
"""The primaries of sRGB (ITU-T H.273)."""
DESCRIBED = {b"CMYK": ("CMYK",), b"GRAY": ("1", "L", "LA", "I")}
"""Color space of a profile -> Pillow's modes of pictures that it may describe; RGB's may describe any."""
BROKEN_EXIF = (KeyError, OSError, SyntaxError, TypeError, ValueError, struct.error)
"""Exceptions of Pillow for broken EXIF, which is then ignored."""
ADOBE: tuple[Matrix, float] = (((1.3984, -0.3984, 0.0), (0.0, 1.0, 0.0), (0.0, -0.0429, 1.0429)), 563 / 256)
"""Adobe RGB (1998): linear colors to sRGB's, and the exponent that decodes them. Cameras name it by EXIF's R03."""
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Weights of R, G and B in the luma Y (ITU-R BT.601, section 2.5.1), as JPEG's."""

Image.MAX_IMAGE_PIXELS = PIXELS


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded picture, upright."""

    pixels: Pixels
    alpha: UInt8[np.ndarray, "height width"] | None = None
    icc: bytes | None = None
    """sRGB's profile, which the pixels are in, where the file had a profile of RGB; none: it had not."""
    animated: bool = False
    """Whether the file holds more pictures, of which this is the first."""


def read(source: Path | str | bytes, formats: list[str] | None = None) -> Picture:
    """Decode a file, or the bytes of one: the first picture where it holds several, turned as its EXIF says.

    Samples of 16 bits are rounded to 8. All become sRGB through the profile that they carry, or from the color space
    that they name instead: BT.2020 or P3 (cICP of PNG, nclx of AVIF and HEIC), Adobe RGB (EXIF). Without either, RGB is
    sRGB. HDR is refused. HEIC is read by pillow-heif where that is installed.

    Args:
        source: the file's path, or its bytes.
        formats: which of Pillow's decoders are asked; None: all.

    Raises:
        UserError: in one line, where it is no picture, is broken, or has more than `PIXELS` pixels.
    """
    name = "the picture" if isinstance(source, bytes) else str(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of broken metadata, which is not used
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            register_heif()
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats) as image:
                return _decode(image, source)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise UserError(f"{name}: more than {PIXELS // 10**6} million pixels; make it smaller first") from error
        except UnidentifiedImageError as error:
            raise UserError(f"{name}: {_no_picture(source)}") from error
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise UserError(f"{name}: {error.strerror}") from error
        except Exception as error:  # decoders raise anything on broken bytes
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{name}: cannot be read: {why}") from error


def _no_picture(source: Path | str | bytes) -> str:
    head = source[:12] if isinstance(source, bytes) else _head(Path(source))
    if not head:
        return "an empty file"
    if head[4:8] == b"ftyp" and head[8:12] in HEIF:
        return "HEIC; it is read where pillow-heif is installed: pip install pillow-heif"
    return "no picture (PNG, JPEG, WebP, TIFF, GIF, BMP, ...); a video goes to `retable style video`"


def _head(path: Path, count: int = 12) -> bytes:
    with open(path, "rb") as file:
        return file.read(count)


def register_heif() -> None:
    """Register pillow-heif as Pillow's reader of HEIC, if it is installed."""
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()


def _decode(image: ImageFile.ImageFile, source: Path | str | bytes) -> Picture:
    """Decode in full, turn upright, and convert any of Pillow's modes to RGB and alpha.

    Raises:
        UserError: on HDR.
        ValueError: on samples without a fixed range.
    """
    upright, icc = _upright(image, source), image.info.get("icc_profile", b"")
    animated = (
        bool(getattr(image, "is_animated", False)) and image.format != "MPO"
    )  # a phone's: a photograph, a preview
    alpha = None
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        alpha = np.array(upright.getchannel("A"))
    if matrix := named_matrix(image, source):
        return Picture(_from_named(np.array(upright.convert("RGB")), *matrix), alpha, srgb(), animated)
    is_named = image.format == "PNG" and code_points(source)[0] == BT709
    if not icc or is_named or image.mode.partition(";")[0] not in DESCRIBED.get(icc[16:20], image.mode):
        return Picture(np.array(upright.convert("RGB")), alpha, None, animated)
    return Picture(np.array(_managed(upright, icc)), alpha, srgb() if icc[16:20] == b"RGB " else None, animated)


def named_matrix(image: ImageFile.ImageFile, source: Path | str | bytes) -> tuple[Matrix, float] | None:
    """Return the matrix to sRGB's primaries and the exponent that decodes samples, of a color space named by code.

    The exponent 0 stands for sRGB's curve. None where the color space is sRGB, or is not named.

    Raises:
        UserError: on HDR.
    """
    profiled = image.format != "PNG" and "icc_profile" in image.info  # cICP comes before a profile, nclx after one
    primaries, transfer = (0, 0) if profiled else code_points(source)
    if transfer in (hdr.PQ, hdr.HLG):
        raise UserError("an HDR picture (PQ or HLG), which is not read; save it in sRGB")
    if primaries in hdr.PRIMARIES:
        return hdr.PRIMARIES[primaries][1], 0.0
    with suppress(*BROKEN_EXIF):
        if "icc_profile" not in image.info and image.getexif().get_ifd(ExifTags.IFD.Interop).get(1) == "R03":
            return ADOBE
    return None


def code_points(source: Path | str | bytes) -> tuple[int, int]:
    """Return primaries and transfer (ITU-T H.273) that a file names: cICP of PNG, nclx of AVIF and HEIC; 0: none."""
    head = source[:HEADER] if isinstance(source, bytes) else _head(Path(source), HEADER)
    if head[4:8] == b"ftyp" and (at := head.find(b"colrnclx")) > 0:
        return int.from_bytes(head[at + 8 : at + 10], "big"), int.from_bytes(head[at + 10 : at + 12], "big")
    at = 8
    while head[:4] == b"\x89PNG" and at + 12 < len(head) and (name := head[at + 4 : at + 8]) != b"IDAT":
        if name == b"cICP":
            return head[at + 8], head[at + 9]
        at += 12 + int.from_bytes(head[at : at + 4], "big")
    return 0, 0


def _from_named(pixels: Pixels, matrix: Matrix, exponent: float) -> Pixels:
    """Convert 8-bit RGB of other primaries to sRGB, in strips: a strip's numbers take many times its bytes."""
    coded = np.arange(256) / 255
    curve = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    decoded = (coded**exponent if exponent else curve).astype(np.float32)
    made = np.empty_like(pixels)
    for top in range(0, len(pixels), STRIP):
        light = np.clip(decoded[pixels[top : top + STRIP]] @ np.array(matrix, np.float32).T, 0, 1)
        shown = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
        made[top : top + STRIP] = np.rint(255 * shown)
    return made


def _upright(image: ImageFile.ImageFile, source: Path | str | bytes) -> Image.Image:
    """Decode in 8 bits and turn. Colours of 16 bits are decoded by OpenCV, since Pillow cuts off their lower half."""
    deep = image.mode in ("RGB", "RGBA") and bool(image.tile) and ";16" in str(image.tile[0].args)
    turn = None
    with suppress(*BROKEN_EXIF):
        turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    if deep:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if decoded is None:
            raise ValueError("OpenCV cannot decode it")
        if getattr(image, "tag_v2", {}).get(ExifTags.Base.ExtraSamples) == ASSOCIATED:
            opaque = decoded[..., :3].astype(np.uint32) * 65535 // np.maximum(decoded[..., 3:], 1)
            decoded[..., :3] = np.minimum(opaque, 65535)
        # TIFF's fourth channel may be none of the picture's; a PNG of three may have a transparent color.
        order = [2, 1, 0, 3][: len(image.getbands()) if image.format == "TIFF" else decoded.shape[2]]
        picture = Image.fromarray(_eight_bits(decoded[..., order]))
    else:
        image.load()
        picture = image
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            picture = _of_levels(image)
    itself = image.format == "TIFF"  # both libraries turn TIFF, and nothing else, by themselves
    return picture if turn is None or itself else picture.transpose(turn)


def _of_levels(image: Image.Image) -> Image.Image:
    """Return a grey picture of 16 bits in 8; Pillow leaves TIFF's "white is zero" and PNG's transparent level to us."""
    samples, clear = np.asarray(image), image.info.get("transparency")
    if getattr(image, "tag_v2", {}).get(ExifTags.Base.PhotometricInterpretation) == WHITE_IS_ZERO:
        samples = 65535 - samples
    grey = _eight_bits(samples)
    if clear is None:
        return Image.fromarray(grey)
    return Image.fromarray(np.stack([grey, np.where(samples == clear, 0, 255).astype(np.uint8)], -1))


def _eight_bits(samples: Array) -> Array:
    """Round 16-bit samples to 8 bits: 65535 = 257 * 255, so v / 257 to the nearest integer, which has no ties.

    Raises:
        ValueError: where samples are fractions, or outside 16 bits.
    """
    if samples.dtype.kind == "f" or samples.min() < 0 or samples.max() > 65535:
        raise ValueError("its samples have no fixed range; save it with 8 or 16 bits each")
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _managed(image: Image.Image, icc: bytes) -> Image.Image:
    """Convert RGB, CMYK or grey into sRGB through its profile; plainly, where that is broken or for something else."""
    wanted = {b"RGB ": "RGB", b"CMYK": "CMYK", b"GRAY": "L"}.get(icc[16:20], "")
    try:
        source = image if image.mode == wanted else image.convert(wanted)
        profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        managed = ImageCms.profileToProfile(source, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        managed = None
    return managed or image.convert("RGB")


@cache
def srgb() -> bytes:
    """Return sRGB's profile, of a fixed date: a picture has the same bytes whenever it is written."""
    made_now = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return made_now[:24] + struct.pack(">6H", 2000, 1, 1, 0, 0, 0) + made_now[36:]


def result_name(source: Path) -> str:
    """Return the name of a picture's result: the picture's own, as PNG where its format is not written."""
    return f"{source.stem}{source.suffix if source.suffix.lower() in FORMATS else '.png'}"


def check_suffix(path: Path) -> dict[str, Any]:
    """Return how a picture of this name is written.

    Raises:
        UserError: naming the suffixes there are.
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path}: pictures are written as {', '.join(FORMATS)}")
    return FORMATS[path.suffix.lower()]


def write(
    path: Path | str,
    pixels: Pixels,
    alpha: UInt8[np.ndarray, "height width"] | None = None,
    icc: bytes | None = None,
) -> None:
    """Write a picture in the format of its name's suffix, at once: there is never half of one. JPEG drops `alpha`.

    Raises:
        UserError: on another suffix, a picture too large for the format, or where the disk refuses.
    """
    path = Path(path)
    data = encode(pixels, alpha, icc, check_suffix(path), str(path))
    with whole_file(path) as writing:
        writing.write_bytes(data)


def encode(pixels: Array, alpha: Array | None, icc: bytes | None, how: dict[str, Any], name: str) -> bytes:
    """Return a picture as the bytes of a file; `how`: one of `FORMATS`. JPEG drops `alpha`.

    Raises:
        UserError: naming the picture, where it is too large for the format.
    """
    if alpha is not None and how["format"] != "JPEG":
        pixels = np.dstack((pixels, alpha))
    stream = io.BytesIO()
    try:
        Image.fromarray(pixels).save(stream, **(how | ({"icc_profile": icc} if icc else {})))
    except (OSError, ValueError) as error:
        size = f"{pixels.shape[1]} x {pixels.shape[0]}"
        raise UserError(f"{name}: {how['format']} cannot hold this picture of {size} ({error}); use .png") from error
    return stream.getvalue()


def encode_png(pixels: Pixels) -> bytes:
    """Return a picture as the bytes of a PNG file."""
    return encode(pixels, None, None, FORMATS[".png"], "the picture")


def to_tensor(pixels: Pixels) -> Float[Tensor, "1 3 height width"]:
    """Turn a picture into an image."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).unsqueeze(0).float().div_(255)


def to_pixels(image: Float[Tensor, "1 3 height width"]) -> Pixels:
    """Turn an image into a picture: clamped to [0, 1] and rounded to the nearest of the 256 values."""
    levels = image.detach()[0].float().clamp(0, 1).mul(255).round().to(torch.uint8)
    return np.ascontiguousarray(levels.permute(1, 2, 0).cpu().numpy())


def fit(pixels: Pixels, longer: int) -> UInt8[np.ndarray, "new_height new_width 3"]:
    """Resize so that the longer side has `longer` pixels, the other in proportion and at least one; 0: unchanged.

    Each new pixel is the mean over its area; where the picture grows, it is interpolated bicubically.
    """
    height, width = pixels.shape[:2]
    scale = longer / max(height, width)
    return _resize(pixels, round(height * scale), round(width * scale)) if longer else pixels


def square(pixels: Pixels, side: int) -> UInt8[np.ndarray, "side side 3"]:
    """Resize so that the shorter side has `side` pixels, and crop the other in the middle."""
    height, width = pixels.shape[:2]
    scale = side / min(height, width)
    resized = _resize(pixels, round(height * scale), round(width * scale))
    top, left = (resized.shape[0] - side) // 2, (resized.shape[1] - side) // 2
    return np.ascontiguousarray(resized[top : top + side, left : left + side])


def stretch(pixels: Pixels, height: int, width: int) -> UInt8[np.ndarray, "new_height new_width 3"]:
    """Resize to this height and width, at least one each: by area where it shrinks, by Lanczos' kernel elsewhere."""
    return _resize(np.ascontiguousarray(pixels), height, width, cv2.INTER_LANCZOS4)


def _resize(pixels: Array, height: int, width: int, enlarging: int = cv2.INTER_CUBIC) -> Array:
    size = max(1, width), max(1, height)
    if size == (pixels.shape[1], pixels.shape[0]):
        return pixels
    if size[0] * size[1] > PIXELS:  # some systems would grant the memory, and end the process when it is used
        raise MemoryError(f"{size[0]} x {size[1]} pixels, more than {PIXELS // 10**6} million")
    shrinks = size[0] <= pixels.shape[1] and size[1] <= pixels.shape[0]
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if shrinks else enlarging))


def original_colours(stylised: Pixels, photograph: Pixels) -> Pixels:
    """Return the luma Y of `stylised` with the chroma of `photograph` (Gatys et al. 2017, *luminance only*).

    Chroma is B - Y and R - Y, so the photograph plus the difference of the lumas has exactly both, up to rounding and
    the ends of the range: colours beyond them are clipped.
    """
    difference = stylised.astype(np.float32) @ LUMA - photograph.astype(np.float32) @ LUMA
    recolored: Array = np.clip(photograph + np.rint(difference)[..., None], 0, 255).astype(np.uint8)
    return recolored


def mix(stylised: Pixels, photograph: Pixels, strength: float) -> Pixels:
    """Return `strength` parts of `stylised` and the rest of `photograph`, rounded to the nearest value."""
    mixed = strength * stylised.astype(np.float32) + (1 - strength) * photograph.astype(np.float32)
    return np.rint(mixed).astype(np.uint8)
