import io
import os
import struct
import zlib
from datetime import datetime
from fractions import Fraction

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageOps

from retable.platform.errors import UserError
from retable.tasks.style.files import images


def noise(height, width, seed=0, channels=3):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def smooth(height, width):
    rows, columns = np.mgrid[:height, :width]
    return np.stack((rows * 255 // height, columns * 255 // width, (rows + columns) % 256), 2).astype(np.uint8)


def saved(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def one_line(call):
    with pytest.raises(UserError) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_the_profile_does_not_tell_the_time():
    """So a picture has the same bytes whenever it is written."""
    plain = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert images.srgb()[:24] == plain[:24] and images.srgb()[36:] == plain[36:]
    assert ImageCms.ImageCmsProfile(io.BytesIO(images.srgb())).profile.creation_date == datetime(2000, 1, 1)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".tiff"])
def test_lossless_round_trip(tmp_path, suffix):
    pixels, alpha = noise(7, 5), noise(7, 5, 1)[..., 0]
    path = tmp_path / f"picture{suffix}"
    images.write(path, pixels, alpha, images.srgb())
    back = images.read(path)
    assert np.array_equal(back.pixels, pixels) and np.array_equal(back.alpha, alpha)
    assert back.icc == images.srgb() and not back.animated
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".webp"])
def test_lossy_round_trip_keeps_the_profile(tmp_path, suffix):
    pixels = smooth(40, 60)
    images.write(tmp_path / f"a{suffix}", pixels, None, images.srgb())
    back = images.read(tmp_path / f"a{suffix}")
    assert back.icc == images.srgb()
    assert np.abs(back.pixels.astype(int) - pixels).mean() < 4


def test_alpha_in_webp_and_not_in_jpeg(tmp_path):
    pixels, alpha = smooth(20, 20), smooth(20, 20)[..., 0]
    images.write(tmp_path / "a.webp", pixels, alpha)
    images.write(tmp_path / "a.jpg", pixels, alpha)
    assert np.array_equal(images.read(tmp_path / "a.webp").alpha, alpha)
    assert images.read(tmp_path / "a.jpg").alpha is None


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_as_pillow_turns(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(Image.fromarray(smooth(12, 20)), kind, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    found = images.read(data).pixels
    assert found.shape == ((20, 12, 3) if orientation >= 5 else (12, 20, 3))
    assert np.array_equal(found, np.array(upright))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("channels", [3, 4])
def test_turned_16_bit_tiff(orientation, channels):
    deep = np.random.default_rng(2).integers(0, 65536, (3, 5, channels), dtype=np.uint16)
    expected = np.rint(deep[..., [2, 1, 0]] / 257).astype(np.uint8)
    assert np.array_equal(images.read(deep_tiff(deep, 0x0112, orientation)).pixels, upright(expected, orientation))


def deep_tiff(deep, tag, value):
    """cv2 writes the 16-bit file; the tag is added to its directory by hand, as Pillow cannot write 16-bit colour."""
    data = bytearray(cv2.imencode(".tif", deep, [cv2.IMWRITE_TIFF_COMPRESSION, 1])[1].tobytes())
    (start,) = struct.unpack("<I", data[4:8])
    (count,) = struct.unpack("<H", data[start : start + 2])
    entries = [bytes(data[start + 2 + 12 * i : start + 14 + 12 * i]) for i in range(count)]
    entries = [e for e in entries if struct.unpack("<H", e[:2])[0] != tag]
    entries.append(struct.pack("<HHIHH", tag, 3, 1, value, 0))
    directory = struct.pack("<H", len(entries)) + b"".join(sorted(entries, key=lambda e: e[:2][::-1])) + bytes(4)
    data[4:8] = struct.pack("<I", len(data))
    return bytes(data + directory)


@pytest.mark.parametrize(
    "extra, colour, alpha", [(0, (100, 30, 15), None), (1, (199, 60, 30), 128), (2, (100, 30, 15), 128)]
)
def test_a_fourth_channel_of_16_bits_is_what_the_file_calls_it(extra, colour, alpha):
    """TIFF 6.0, ExtraSamples: 0 is no alpha (a scanner's infrared), 1 is alpha that the colours are multiplied by."""
    deep = np.full((3, 5, 4), np.array([15, 30, 100, 128]) * 257, np.uint16)
    found = images.read(deep_tiff(deep, 338, extra))
    assert tuple(found.pixels[0, 0]) == colour
    assert (found.alpha is None) if alpha is None else (found.alpha == alpha).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_16_bit_png(orientation):
    deep = np.random.default_rng(2).integers(0, 65536, (3, 5, 3), dtype=np.uint16)
    data = cv2.imencode(".png", deep)[1].tobytes()
    tag = b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    exif = struct.pack(">I", len(tag)) + b"eXIf" + tag + struct.pack(">I", zlib.crc32(b"eXIf" + tag))
    expected = np.rint(deep[..., ::-1] / 257).astype(np.uint8)
    assert np.array_equal(images.read(data[:33] + exif + data[33:]).pixels, upright(expected, orientation))


def upright(pixels, orientation):
    """EXIF 2.32, 4.6.4 A: where the 0th row and the 0th column of the stored picture belong."""
    sides = ["tl", "tr", "br", "bl", "lt", "rt", "rb", "lb"][orientation - 1]
    turned = pixels.transpose(1, 0, 2) if sides[0] in "lr" else pixels
    turned = turned[::-1] if "b" in sides else turned
    return turned[:, ::-1] if "r" in sides else turned


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bits_are_rounded(tmp_path, suffix, channels):
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    deep = np.stack([np.roll(values, 97 * i) for i in range(channels)], 2)
    cv2.imwrite(str(tmp_path / f"deep.{suffix}"), deep)
    found = images.read(tmp_path / f"deep.{suffix}")
    nearest = np.array([round(Fraction(value * 255, 65535)) for value in range(65536)], dtype=np.uint8)
    blue_green_red = nearest[deep] if channels > 1 else nearest[deep].repeat(3, 2)
    assert np.array_equal(found.pixels, blue_green_red[..., [2, 1, 0]])
    if channels == 4:
        assert np.array_equal(found.alpha, nearest[deep[..., 3]])
    else:
        assert found.alpha is None


def test_negatives_of_16_bits_are_positives():
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    file = saved(Image.fromarray(values), "TIFF", tiffinfo={262: 0})
    assert np.array_equal(images.read(file).pixels[..., 0], 255 - (values.astype(int) + 128) // 257)


def test_a_transparent_level_of_16_bits_is_transparent():
    values = np.array([[257, 258], [65535, 0]], np.uint16)  # the first two are one level of 8 bits
    found = images.read(saved(Image.fromarray(values), "PNG", transparency=258))
    assert found.alpha.tolist() == [[255, 0], [255, 255]] and found.pixels[..., 0].tolist() == [[1, 1], [255, 0]]


def test_16_bit_pgm():
    data = b"P5 2 1 65535\n" + struct.pack(">HH", 65535, 257 * 7 + 128)
    assert images.read(data).pixels.tolist() == [[[255] * 3, [7] * 3]]


def test_grey_palette_and_one_bit():
    grey = Image.fromarray(smooth(9, 11)[..., 0])
    expected = np.repeat(np.array(grey)[..., None], 3, 2)
    assert np.array_equal(images.read(saved(grey, "PNG")).pixels, expected)
    palette = Image.fromarray(smooth(9, 11)).quantize(16)
    assert np.array_equal(images.read(saved(palette, "PNG")).pixels, np.array(palette.convert("RGB")))
    bits = grey.point(lambda value: 255 * (value > 99), "1")
    assert set(np.unique(images.read(saved(bits, "PNG")).pixels)) == {0, 255}


def test_grey_and_alpha():
    grey, alpha = smooth(9, 11)[..., 0], noise(9, 11)[..., 0]
    found = images.read(saved(Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)]), "PNG"))
    assert np.array_equal(found.alpha, alpha)
    assert np.array_equal(found.pixels, np.repeat(grey[..., None], 3, 2))


def test_transparent_colour_of_a_palette():
    palette = Image.fromarray(np.array([[0, 1], [2, 0]], dtype=np.uint8), "P")
    palette.putpalette([9, 8, 7, 200, 100, 50, 1, 2, 3])
    found = images.read(saved(palette, "PNG", transparency=0))
    assert found.alpha.tolist() == [[0, 255], [255, 0]]
    assert found.pixels[0, 1].tolist() == [200, 100, 50]


def test_cmyk_without_a_profile():
    cyan = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    found = images.read(saved(cyan, "JPEG", quality=100))
    assert np.abs(found.pixels.astype(int) - [0, 255, 255]).max() <= 3 and found.icc is None


def test_grey_profile_is_converted_and_dropped():
    """A grey profile with a gamma of 1: half of full light is 188 of 255 in sRGB (IEC 61966-2-1)."""
    found = images.read(saved(Image.new("L", (4, 4), 128), "PNG", icc_profile=grey_profile(1.0)))
    light = 128 / 255
    expected = 255 * (1.055 * light ** (1 / 2.4) - 0.055)
    assert np.abs(found.pixels - expected).max() <= 1
    assert found.icc is None


def test_cmyk_profile_is_converted_and_dropped():
    """A profile in which black ink alone matters: lightness L* falls linearly from 100 to 0."""
    coloured, black = Image.new("L", (3, 1), 200), Image.fromarray(np.uint8([[0, 128, 255]]))
    inks = Image.merge("CMYK", [coloured, coloured, coloured, black])
    found = images.read(saved(inks, "TIFF", icc_profile=cmyk_profile()))
    light = ((100 * 127 / 255 + 16) / 116) ** 3  # CIE 1976, Y of L*
    expected = 255 * (1.055 * light ** (1 / 2.4) - 0.055)  # IEC 61966-2-1
    assert np.abs(found.pixels[0] - np.array([[255], [expected], [0]])).max() <= 2
    assert found.icc is None


def profile(space, connection, tags):
    """The smallest ICC version 2 profile with these tags (ICC.1:2001-04, sections 6.1 and 6.2)."""
    white = struct.pack(">iii", 63190, 65536, 54061)
    tags = {b"wtpt": b"XYZ " + bytes(4) + white, **tags}
    start, table = 132 + 12 * len(tags), struct.pack(">I", len(tags))
    for name, data in tags.items():
        table += name + struct.pack(">II", start, len(data))
        start += len(data)
    head = struct.pack(">I4sI4s4s4s", start, bytes(4), 0x02100000, b"prtr", space, connection) + bytes(12) + b"acsp"
    return (head + bytes(28) + white).ljust(128, b"\0") + table + b"".join(tags.values())


def grey_profile(gamma):
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(256 * gamma)) + bytes(2)
    return profile(b"GRAY", b"XYZ ", {b"kTRC": curve})


def linear_profile():
    """sRGB's primaries, and a gamma of 1."""
    colorant = (
        (b"rXYZ", (0.4360, 0.2225, 0.0139)),
        (b"gXYZ", (0.3851, 0.7169, 0.0971)),
        (b"bXYZ", (0.1431, 0.0606, 0.7141)),
    )
    tags = {name: b"XYZ " + bytes(4) + struct.pack(">iii", *(round(65536 * v) for v in xyz)) for name, xyz in colorant}
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, 256) + bytes(2)
    return profile(b"RGB ", b"XYZ ", {**tags, b"rTRC": curve, b"gTRC": curve, b"bTRC": curve})


def cmyk_profile():
    """Section 6.5.8, lut8Type: identity curves, and a table of two points for each ink, black's varying fastest."""
    ramp = bytes(range(256))
    table = bytes([255, 128, 128, 0, 128, 128]) * 8
    matrix = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536)
    lut = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix + ramp * 4 + table + ramp * 3
    return profile(b"CMYK", b"Lab ", {b"A2B0": lut})


@pytest.mark.parametrize("icc", [b"junk", b"\0" * 16 + b"CMYK" + b"\0" * 200, b"\0" * 16 + b"GRAY"])
def test_broken_profile_is_dropped(icc):
    pixels = noise(4, 4)
    found = images.read(saved(Image.fromarray(pixels), "PNG", icc_profile=icc))
    assert np.array_equal(found.pixels, pixels) and found.icc is None


@pytest.mark.parametrize(
    "mode, kind, space", [("RGB", "JPEG", "cmyk"), ("RGB", "PNG", "grey"), ("P", "PNG", "grey"), ("LA", "PNG", "cmyk")]
)
def test_a_profile_of_another_color_space_is_ignored(mode, kind, space):
    plain = Image.new("RGB", (4, 4), (200, 30, 60)).convert(mode)
    found = images.read(saved(plain, kind, icc_profile=cmyk_profile() if space == "cmyk" else grey_profile(2.2)))
    assert np.array_equal(found.pixels, images.read(saved(plain, kind)).pixels) and found.icc is None


def test_srgb_by_code_comes_before_a_profile():
    """PNG, third edition, 4.3: cICP, then iCCP."""
    pixels = noise(4, 4)
    data = saved(Image.fromarray(pixels), "PNG", icc_profile=linear_profile())
    assert not np.array_equal(images.read(data).pixels, pixels)
    chunk = b"cICP" + bytes((1, 13, 0, 1))
    data = data[:33] + struct.pack(">I", 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]
    assert np.array_equal(images.read(data).pixels, pixels)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_broken_exif_is_not_used(kind):
    pixels = noise(4, 4)
    data = saved(Image.fromarray(pixels), kind, exif=b"Exif\0\0XXXXYYYYZZZZ", lossless=True)
    assert np.array_equal(images.read(data).pixels, pixels)


def test_first_of_an_animation():
    frames = [Image.fromarray(np.full((6, 8, 3), value, np.uint8)) for value in (10, 200)]
    for kind in ("GIF", "WEBP"):
        found = images.read(saved(frames[0], kind, save_all=True, append_images=frames[1:]))
        assert found.animated and np.abs(found.pixels.astype(int) - 10).max() <= 2


@pytest.mark.parametrize("shape", [(1, 1), (4000, 3), (3, 4000)])
def test_odd_shapes(tmp_path, shape):
    pixels = noise(*shape)
    images.write(tmp_path / "a.png", pixels)
    assert np.array_equal(images.read(tmp_path / "a.png").pixels, pixels)
    assert np.array_equal(images.to_pixels(images.to_tensor(pixels)), pixels)
    assert max(images.fit(pixels, 64).shape[:2]) == 64 and min(images.fit(pixels, 64).shape[:2]) >= 1
    assert images.square(pixels, 16).shape == (16, 16, 3)


def test_what_is_no_picture(tmp_path):
    jpeg = saved(Image.fromarray(noise(64, 64)), "JPEG")
    files = {
        "empty.png": b"",
        "text.png": b"not a picture\n",
        "video.jpg": b"\0\0\0\x18ftypmp42" + bytes(200),
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": saved(Image.fromarray(noise(64, 64)), "PNG")[:3000],
        "head.png": b"\x89PNG\r\n\x1a\n",
        "cut16.png": cv2.imencode(".png", noise(64, 64).astype(np.uint16) * 257)[1].tobytes()[:3000],
        "float.tif": saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        assert one_line(lambda name=name: images.read(tmp_path / name)).startswith(str(tmp_path / name))
        one_line(lambda data=data: images.read(data))
    assert "empty" in one_line(lambda: images.read(tmp_path / "empty.png"))
    assert "video" in one_line(lambda: images.read(tmp_path / "video.jpg"))
    assert "No such file" in one_line(lambda: images.read(tmp_path / "absent.png"))
    one_line(lambda: images.read(tmp_path))


@pytest.mark.parametrize("side", [20_001, 65_000])
def test_bomb_is_refused_unread(side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    assert "400 million" in one_line(lambda: images.read(bomb))


def test_nothing_half_written(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    images.write(path, noise(4, 4))
    before = path.read_bytes()
    one_line(lambda: images.write(tmp_path / "a.bmp", noise(4, 4)))
    one_line(lambda: images.write(path / "a.png", noise(4, 4)))
    one_line(lambda: images.write(tmp_path / "a.webp", noise(2, 16_400)))
    for error in (KeyboardInterrupt, OSError(28, "No space left on device")):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises((KeyboardInterrupt, UserError)):
            images.write(path, noise(5, 5))
    assert os.listdir(tmp_path) == ["a.png"] and path.read_bytes() == before


def test_encode_png():
    pixels = noise(5, 6)
    assert np.array_equal(cv2.imdecode(np.frombuffer(images.encode_png(pixels), np.uint8), 1)[..., ::-1], pixels)


def test_tensors():
    pixels = noise(5, 6)
    image = images.to_tensor(pixels)
    assert image.shape == (1, 3, 5, 6) and image.dtype == torch.float32
    assert torch.equal(image[0, 1], torch.from_numpy(pixels[..., 1] / np.float32(255)))
    rounded = images.to_pixels(
        torch.tensor([-3.0, 0.499 / 255, 0.501 / 255, 7.0]).reshape(1, 1, 2, 2).repeat(1, 3, 1, 1)
    )
    assert rounded[..., 0].tolist() == [[0, 0], [1, 255]]


def test_fit_averages_areas():
    pixels = noise(24, 36)
    means = pixels.reshape(8, 3, 12, 3, 3).astype(float).mean((1, 3))
    assert np.abs(images.fit(pixels, 12) - means).max() <= 0.5 + 1e-6
    weights = np.zeros((3, 7))  # 7 pixels onto 3: each new one covers 7/3 old ones
    for new in range(3):
        for old in range(7):
            weights[new, old] = max(0, min((new + 1) * 7 / 3, old + 1) - max(new * 7 / 3, old)) / (7 / 3)
    small = noise(7, 7)
    expected = np.einsum("ih,jw,hwc->ijc", weights, weights, small)
    assert np.abs(images.fit(small, 3) - expected).max() <= 0.5 + 1e-3
    assert images.fit(pixels, 0) is pixels
    assert images.fit(pixels, 90).shape == (60, 90, 3)


def test_square_crops_the_middle():
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200
    assert np.array_equal(images.square(pixels, 10), np.full((10, 10, 3), 200))


def test_original_colours():
    """Luma and chroma by OpenCV's own conversion; greyish colours, so that nothing is clipped."""
    photograph = 100 + noise(20, 30) // 8
    stylised = 80 + noise(20, 30, 1) // 4
    found = cv2.cvtColor(images.original_colours(stylised, photograph), cv2.COLOR_RGB2YCrCb).astype(int)
    luma = cv2.cvtColor(stylised, cv2.COLOR_RGB2YCrCb)[..., 0]
    chroma = cv2.cvtColor(photograph, cv2.COLOR_RGB2YCrCb)[..., 1:]
    assert np.abs(found[..., 0] - luma).max() <= 1
    assert np.abs(found[..., 1:] - chroma).max() <= 1


def test_mix():
    first, second = noise(4, 4), noise(4, 4, 1)
    assert np.array_equal(images.mix(first, second, 1.0), first)
    assert np.array_equal(images.mix(first, second, 0.0), second)
    expected = 0.3 * first.astype(float) + 0.7 * second
    assert np.abs(images.mix(first, second, 0.3) - expected).max() <= 0.5 + 1e-4
