import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.style.files.check import SMALLEST, check, defect
from retable.tasks.style.files.prepare import index_folder


def encoded(kind="JPEG", size=(48, 40), mode="RGB"):
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(stream, kind)
    return stream.getvalue()


def put(root, files):
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


SOUND = {
    "a.jpg": encoded(),
    "b.PNG": encoded("PNG"),
    "deep/er/c.webp": encoded("WEBP"),
    "grey.jpeg": encoded(mode="L"),
    "cmyk.jpg": encoded(mode="CMYK"),
    "palette.png": encoded("PNG", mode="P"),
    "d.tif": encoded("TIFF"),
    "e.bmp": encoded("BMP"),
}
BROKEN = {
    "text.png": (b"Not a picture at all.\n" * 20, "no picture"),
    "empty.jpg": (b"", "zero bytes"),
    "half.jpg": (encoded()[:900], "truncated"),
    "half.png": (encoded("PNG")[:2000], "truncated"),
    "tiny.png": (encoded("PNG", (400, SMALLEST - 1)), "too small"),
    "bent.png": (encoded("PNG").replace(b"IDAT", b"IDAT\x00", 1), "broken"),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_pictures_have_no_defect(name):
    assert defect(SOUND[name]) is None


def test_a_folder_of_ones_own_has_its_defects_found_exactly(tmp_path):
    put(tmp_path, SOUND | {"notes.txt": b"", ".hidden.jpg": b"", "sub/._a.jpg": b""})
    seen = []
    assert check(tmp_path, lambda done, total: seen.append((done, total))) == []
    assert seen == [(number, len(SOUND)) for number in range(1, len(SOUND) + 1)]
    put(tmp_path, {f"x/{name}": data for name, (data, _) in BROKEN.items()})
    lines = check(tmp_path)
    assert len(lines) == len(BROKEN) and not any("\n" in line for line in lines)
    for name, (_, what) in BROKEN.items():
        (line,) = [line for line in lines if f"{tmp_path}/x/{name}: " in line]
        assert what in line and "remove or replace" in line


def hdr():
    """Return a PNG that names BT.2020 and PQ (ITU-T H.273) by code."""
    kind, codes = b"cICP", bytes([9, 16, 0, 1])
    chunk = struct.pack(">I", len(codes)) + kind + codes + struct.pack(">I", zlib.crc32(kind + codes))
    plain = encoded("PNG")
    return plain[:33] + chunk + plain[33:]  # after the header


def test_a_picture_that_no_reader_takes_is_a_defect_too(tmp_path):
    put(tmp_path, {"hdr.png": hdr(), "b.gif": b"broken", "c.gif": encoded("GIF"), "small.gif": encoded("GIF", (9, 9))})
    for name, what in (("b.gif", "no picture"), ("hdr.png", "HDR"), ("small.gif", "too small")):
        (line,) = [line for line in check(tmp_path) if name in line]
        assert what in line
    assert len(check(tmp_path)) == 3


def test_an_empty_folder_is_a_defect(tmp_path):
    put(tmp_path, {"notes.txt": b"x"})
    (line,) = check(tmp_path)
    assert "no pictures" in line


@pytest.fixture
def root(tmp_path):
    put(tmp_path, {f"training/{name.replace('/', '-')}": data for name, data in SOUND.items()})
    put(tmp_path, {"test/one.jpg": encoded(), "paintings/oil.jpg": encoded()})
    index_folder(Storage.open(tmp_path), "mine")
    return tmp_path


def only(root, *parts):
    (line,) = check(root)
    assert all(part in line for part in parts)


def test_a_data_set_is_compared_with_its_index(root):
    assert check(Storage.open(root)) == []
    (root / "training/a.jpg").unlink()
    only(root, "training/a.jpg: missing")
    put(root, {"training/a.jpg": encoded(size=(50, 50))})
    only(root, "training/a.jpg", "that were indexed", "dataset.json")
    put(root, {"training/a.jpg": SOUND["a.jpg"], "training/new.jpg": encoded()})
    only(root, "training/new.jpg", "dataset.json lacks")


@pytest.mark.parametrize("place", ["training/a.jpg", "test/one.jpg", "paintings/oil.jpg"])
def test_every_part_of_a_data_set_is_decoded(root, place):
    data = (root / place).read_bytes()
    put(root, {place: data[:-100]})
    only(root, place, "truncated")


def test_names_must_differ(root):
    put(root, {"paintings/oil.png": encoded("PNG")})
    only(root, "1 pictures, such as paintings/oil.png, that dataset.json lacks")
    (root / "dataset.json").unlink()
    only(root, "oil.png", "has the name of paintings/oil.jpg")


@pytest.mark.parametrize(
    "one, other",
    [
        ("test/a/x.png", "test/b/x.jpg"),
        ("val2017/x.jpg", "val2017/x.png"),
        ("paintings/x.jpg", "paintings/x.png"),
        ("paintings/a/x.jpg", "paintings/x.png"),
    ],
)
def test_equal_names_that_indexing_refuses_are_defects(tmp_path, one, other):
    put(tmp_path, {"training/a.jpg": encoded(), one: encoded(), other: encoded()})
    line = f"{tmp_path}/{other}: has the name of {one}; rename one of them"
    assert check(tmp_path) == [line]
    with pytest.raises(UserError) as caught:
        index_folder(Storage.open(tmp_path), "mine")
    assert str(caught.value) == line


def test_equal_names_of_what_is_not_found_by_name_are_sound(tmp_path):
    put(tmp_path, {path: encoded() for path in ("training/x.jpg", "training/x.png", "test/x.jpg", "paintings/x.jpg")})
    put(tmp_path, {"test/x.tga": encoded("TGA")})  # of a format that training does not read
    assert check(tmp_path) == []
    index_folder(Storage.open(tmp_path), "mine")
    assert check(tmp_path) == []


def test_a_broken_index_is_one_line(root):
    (root / "index.parquet").write_bytes(b"nothing")
    only(root, "index.parquet")
    (root / "dataset.json").write_text("[]")
    only(root, "dataset.json", "not a data set's")


def test_an_error_without_words_is_a_defect_too(monkeypatch, tmp_path):
    def give_up(image):
        raise MemoryError

    Image.new("RGB", (SMALLEST, SMALLEST)).save(tmp_path / "a.png")
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", give_up)
    assert defect((tmp_path / "a.png").read_bytes()) == "broken (MemoryError())"
