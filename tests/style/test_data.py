"""The batches, against plain readers and themselves in every other way; pictures of one colour tell who is who."""

import pickle
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
import ray
import torch
from PIL import Image

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute.session import ray_cluster
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.style import data
from retable.tasks.style.config import Config, OptimiseImage
from retable.tasks.style.files import assets
from retable.tasks.style.files.check import check
from retable.tasks.style.files.prepare import index_folder

COUNT = 7


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def plain(number, height=40, width=36):
    return np.full((height, width, 3), (10 * number, 200, 255 - 10 * number), np.uint8)


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "data/style/mine"
    for number in range(COUNT):
        save(root / f"training/{number}.png", plain(number))
    save(root / "test/house.png", plain(20))
    index_folder(Storage.open(root), "mine")
    return Source.of(Storage.open(tmp_path), "style/mine")


def config(**changes):
    return override(Config(), {"method.size": 32, "method.batch": 4, "steps": 5, "data": "mine"} | changes)


def memory(source):
    return data.read(source.folder)


def photographs(source, streamed=False, **changes):
    return data.Photographs(None if streamed else memory(source), source, [config(**changes)])


def same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right) > 0
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def numbers(batches):
    return [int(picture[0, 0, 0]) // 10 for batch in batches for picture in batch]


def test_arrays_hold_the_files_as_they_are_in_order(source):
    found = memory(source)
    assert found["bytes"].dtype == np.uint8 and found["offsets"].dtype == np.int64
    files = sorted((source.folder.root + f"/training/{number}.png") for number in range(COUNT))
    for number, path in enumerate(files):
        with open(path, "rb") as file:
            assert found["bytes"][slice(*found["offsets"][number : number + 2])].tobytes() == file.read()
    assert found["offsets"][-1] == len(found["bytes"]) == source.info["bytes"]


def test_each_pass_is_a_permutation_of_its_own():
    order = data.pictures_at(np.arange(5 * 11), 11, 3).reshape(5, 11)
    assert (np.sort(order) == np.arange(11)).all() and len({row.tobytes() for row in order}) == 5
    assert not np.array_equal(order, data.pictures_at(np.arange(5 * 11), 11, 4).reshape(5, 11))
    shuffled = np.random.default_rng(0).permutation(5 * 11).reshape(5, 11)
    assert np.array_equal(data.pictures_at(shuffled, 11, 3), order.ravel()[shuffled])


def test_batches_go_through_all_pictures_pass_after_pass(source):
    found = photographs(source)
    assert found.steps == 5
    batches = [batch for epoch in range(7) for batch in found.batches(epoch, 0, 0, 1)]
    assert all(batch.dtype == torch.uint8 and batch.shape == (4, 3, 32, 32) for batch in batches)
    seen = numbers(batches)
    assert len(seen) == 7 * 5 * 4 == 20 * COUNT
    for start in range(0, len(seen), COUNT):
        assert sorted(seen[start : start + COUNT]) == list(range(COUNT))
    assert (batches[0][:, 1] == 200).all() and torch.equal(batches[0][:, 2], 255 - batches[0][:, 0])  # RGB, not BGR
    assert numbers(photographs(source, seed=1).batches(0, 0, 0, 1)) != seen[:20]


@pytest.mark.parametrize("crop", ["centre", "random"])
@pytest.mark.parametrize("streamed", [False, True])
def test_training_goes_on_at_any_step_and_workers_share_a_batch(source, crop, streamed):
    changes = {"method.crop": crop, "streamed": streamed}
    whole = list(photographs(source, **changes).batches(2, 0, 0, 1))
    for start in (1, 4):
        same(whole[start:], photographs(source, **changes).batches(2, start, 0, 1))
    parts = [list(photographs(source, **changes).batches(2, 0, rank, 2)) for rank in (0, 1)]
    same(whole, [torch.cat(pair) for pair in zip(*parts, strict=True)])


def noise(height, width):
    coarse = np.random.default_rng(height).integers(0, 256, (9, 9, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


@pytest.mark.parametrize("crop", ["centre", "random"])
def test_a_stream_without_ray_gives_the_same_batches_as_memory(source, crop, tmp_path, monkeypatch):
    for number in range(COUNT):
        save(tmp_path / f"data/style/mine/training/{number}.png", noise(50 + number, 80 - 3 * number))
    index_folder(source.folder, "mine")
    monkeypatch.setattr(data, "PIECE", 9)  # two steps, which do not divide five
    for epoch in (0, 3):
        found = list(photographs(source, **{"method.crop": crop}).batches(epoch, 0, 0, 1))
        same(found, photographs(source, True, **{"method.crop": crop}).batches(epoch, 0, 0, 1))
        place = epoch * 5 * 4 + 6
        file = tmp_path / f"data/style/mine/training/{data.pictures_at(np.array([place]), COUNT, 0)[0]}.png"
        expected = data.prepare_picture(file.read_bytes(), 32, (0, place) if crop == "random" else None, "a")
        assert np.array_equal(found[1][2], expected)


def averaging(length, new):
    """Share of each old pixel in each new one, float64 (new, length)."""
    edges = np.arange(new + 1) * length / new
    low, high = np.maximum(edges[:-1, None], np.arange(length)), np.minimum(edges[1:, None], np.arange(1, length + 1))
    return np.maximum(high - low, 0) * new / length


@pytest.mark.parametrize(("height", "width"), [(75, 50), (50, 83), (32, 40), (64, 64)])
def test_the_centre_crop_is_an_area_average(tmp_path, height, width):
    pixels = noise(height, width)
    save(tmp_path / "a.png", pixels)
    found = data.prepare_picture((tmp_path / "a.png").read_bytes(), 32, None, "a")
    new = [round(side * 32 / min(height, width)) for side in (height, width)]
    resized = np.einsum("hi,wj,ijc->chw", averaging(height, new[0]), averaging(width, new[1]), pixels.astype(float))
    top, left = (new[0] - 32) // 2, (new[1] - 32) // 2
    assert np.abs(found - resized[:, top : top + 32, left : left + 32]).max() <= 0.6


def test_a_smaller_picture_is_enlarged(tmp_path):
    save(tmp_path / "a.png", plain(3, 20, 30))
    found = data.prepare_picture((tmp_path / "a.png").read_bytes(), 32, None, "a")
    assert found.shape == (3, 32, 32) and (found == np.array([30, 200, 225])[:, None, None]).all()


def test_random_crops_are_squares_of_varied_size_and_place_and_half_of_them_mirrored(tmp_path):
    height, width = 60, 90
    ramp = np.zeros((height, width, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = 2 * np.arange(width), 3 * np.arange(height)[:, None]
    save(tmp_path / "a.png", ramp)
    encoded = (tmp_path / "a.png").read_bytes()
    sides, lefts, tops, mirrored = [], [], [], []
    for number in range(200):
        found = data.prepare_picture(encoded, 32, (0, number), "a").astype(float)
        across, down = (
            (found[0, 0, -1] - found[0, 0, 0]) / 31 / 2 * 32,
            (found[1, -1, 0] - found[1, 0, 0]) / 31 / 3 * 32,
        )
        assert abs(abs(across) - down) < 1.1 and np.ptp(found[0], axis=0).max() <= 1  # upright, and not distorted
        sides.append(down)
        mirrored.append(across < 0)
        lefts.append(min(found[0, 0, 0], found[0, 0, -1]) / 2)
        tops.append(found[1, 0, 0] / 3)
    assert 39 < min(sides) < 42 and 58 < max(sides) < 61
    assert 0.4 < np.mean(mirrored) < 0.6
    assert max(lefts) > 35 and max(tops) > 12 and min(lefts) < 3 and min(tops) < 1
    again, other = (data.prepare_picture(encoded, 32, key, "a") for key in ((0, 199), (1, 199)))
    assert np.array_equal(again, found) and not np.array_equal(other, found)


def test_a_random_crop_of_a_picture_of_one_pixel_is_that_pixel(tmp_path):
    save(tmp_path / "a.png", plain(3, 1, 1))
    encoded = (tmp_path / "a.png").read_bytes()
    for number in range(8):
        found = data.prepare_picture(encoded, 4, (0, number), "a")
        assert (found == np.array([30, 200, 225])[:, None, None]).all()


def test_a_random_crop_is_of_a_picture_that_is_decoded_large_enough(tmp_path):
    """32 pixels of at least 1 / 1.5 of the shorter side: of 304 pixels a quarter will do, an eighth will not."""
    pixels = noise(304, 400)
    encoded = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
    save(tmp_path / "a.png", cv2.resize(pixels, (100, 76), interpolation=cv2.INTER_AREA))
    quarter = (tmp_path / "a.png").read_bytes()
    for number in range(3):
        found, expected = (data.prepare_picture(each, 32, (0, number), "a") for each in (encoded, quarter))
        assert np.abs(found.astype(float) - expected).mean() < 2


@pytest.mark.parametrize(
    ("shorter", "factor"), [(304, 1), (153, 1), (152, 2), (77, 2), (76, 4), (39, 4), (38, 8), (3, 8)]
)
def test_large_jpegs_are_decoded_at_a_fraction_of_their_size(shorter, factor):
    pixels = noise(304, 400)
    encoded = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
    found = data.decode(encoded, shorter, "a")
    assert found.shape == (304 // factor, 400 // factor, 3)
    expected = cv2.resize(pixels, found.shape[1::-1], interpolation=cv2.INTER_AREA)[..., ::-1]
    assert np.abs(found.astype(float) - expected).mean() < 2


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("broken", [b"no picture", b""])
def test_a_broken_picture_is_named(source, streamed, broken):
    with open(f"{source.folder.root}/training/5.png", "wb") as file:
        file.write(broken)
    with pytest.raises(UserError, match=r"training/5\.png.*retable data check style"):
        list(photographs(source, streamed).batches(0, 0, 0, 1))


def test_a_missing_picture_is_named(source):
    source.folder.remove("training/5.png")
    with pytest.raises(UserError, match=r"training/5\.png: missing"):
        list(photographs(source, streamed=True).batches(0, 0, 0, 1))


def test_an_index_with_another_path_by_damage_is_refused(source):
    file = Path(source.folder.root) / data.INDEX
    file.write_bytes(file.read_bytes().replace(b"training/0.png", b"training/9.png", 1))
    assert "training/9.png" in pq.read_table(file)["path"].to_pylist(), "unless checksums are verified, nobody notices"
    with pytest.raises(UserError, match=r"index\.parquet: missing or broken; remove dataset\.json"):
        data.training_files(source.folder)


def test_version_1_needs_no_batches(source):
    found = data.Photographs(None, source, [Config(steps=5, method=OptimiseImage(content="house"))])
    assert list(found.batches(0, 0, 0, 1)) == [None] * 5 and list(found.batches(3, 3, 0, 1)) == [None] * 2
    assert found.batch == 1, "which two workers cannot share"


def test_pictures_are_found_by_name(source, tmp_path):
    found = photographs(source)
    assert np.array_equal(found.photograph("house"), plain(20))
    assert np.array_equal(found.photograph("coffee"), np.asarray(Image.open(assets.photographs()["coffee"])))
    assert np.array_equal(found.painting("the_scream"), np.asarray(Image.open(assets.paintings()["the_scream"])))
    save(tmp_path / "data/style/mine/paintings/oil.png", plain(2))
    save(tmp_path / "data/style/mine/paintings/the_scream.png", plain(3))  # one's own wins
    save(tmp_path / "data/style/mine/test/later.png", plain(4))
    index_folder(source.folder, "mine")
    source = Source.of(Storage.open(tmp_path), "style/mine")
    assert np.array_equal(data.painting(source, "oil"), plain(2))
    assert np.array_equal(data.painting(source, "the_scream"), plain(3))
    assert np.array_equal(data.photograph(source, "later"), plain(4))
    assert (found.tests, data.tests(source)) == (("house",), ("house", "later"))
    assert found.storage == Storage.open(tmp_path)


def test_pictures_in_folders_below_are_found_by_name(source, tmp_path):
    root = tmp_path / "data/style/mine"
    save(root / "paintings/sub/oil.png", plain(2))
    save(root / "test/deep/er/later.png", plain(4))
    for read, path in ((data.painting, "paintings/sub/oil.png"), (data.photograph, "test/deep/er/later.png")):
        with pytest.raises(UserError, match=f"{path}: was added after the data set was indexed"):
            read(source, path.split("/")[-1][:-4])
    index_folder(source.folder, "mine")
    source = Source.of(Storage.open(tmp_path), "style/mine")
    assert np.array_equal(data.painting(source, "oil"), plain(2))
    assert np.array_equal(data.photograph(source, "later"), plain(4))


def test_an_unknown_name_gets_the_nearest(source):
    with pytest.raises(UserError, match="did you mean 'great_wave'"):
        photographs(source, style=["great_wav"])
    with pytest.raises(UserError, match=r"method\.content.*did you mean 'house'"):
        data.Photographs(None, source, [Config(method=OptimiseImage(content="hause"))])
    with pytest.raises(UserError, match="did you mean 'mountain'"):
        data.photograph(source, "mountains")


def test_a_set_without_tests_has_the_shipped_photographs(source):
    bare = Source(source.folder, {**source.info, "test": []})
    assert data.tests(bare) == ("astronaut", "coffee", "mountain")


def test_batches_never_share_the_memory_of_the_data(source, monkeypatch):
    held = np.zeros((8, 3, 32, 32), np.uint8)
    held.flags.writeable = False
    monkeypatch.setattr(data, "stream", lambda pieces, fetch: iter([{"images": held}] * len(pieces)))
    monkeypatch.setattr(data, "PIECE", 8)
    batches = list(photographs(source, streamed=True).batches(0, 0, 0, 1))
    assert len(batches) == 6  # the last of three pieces is cut as the others, though it holds one batch
    for batch in batches:
        assert batch.shape == (4, 3, 32, 32)
        batch.fill_(7)
    assert not held.any()


def test_what_tasks_are_given_can_be_sent(source):
    piece = {"paths": ["training/1.png"], "crc32": [None], "keys": [[0, 2, 5]]}
    fetch = pickle.loads(pickle.dumps(partial(data.fetch, folder=source.folder, size=32)))
    assert fetch(piece)["images"].shape == (1, 3, 32, 32)


@pytest.mark.slow
def test_ray_data_hands_over_the_same_batches(source):
    expected = list(photographs(source).batches(1, 1, 1, 2))
    with ray_cluster():
        assert ray.is_initialized()
        same(expected, photographs(source, streamed=True).batches(1, 1, 1, 2))


def flipped(file):
    """Change one bit in the middle of a picture's pixels: a BMP has no checksum of its own."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


@pytest.fixture
def bitmaps(tmp_path):
    root = tmp_path / "data/style/bitmaps"
    for path in (*(f"training/{number}.bmp" for number in range(COUNT)), "test/house.bmp", "paintings/oil.bmp"):
        save(root / path, noise(40, 36))
    index_folder(Storage.open(root), "bitmaps")
    return Source.of(Storage.open(tmp_path), "style/bitmaps")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_changed_picture_is_refused(bitmaps, tmp_path, streamed):
    list(photographs(bitmaps, streamed).batches(0, 0, 0, 1))
    flipped(tmp_path / "data/style/bitmaps/training/5.bmp")
    with pytest.raises(
        UserError, match=r"training/5\.bmp: not the file that was indexed.*retable data check"
    ) as caught:
        list(photographs(bitmaps, streamed).batches(0, 0, 0, 1))
    assert "\n" not in str(caught.value)
    assert [line for line in check(bitmaps.folder) if "training/5.bmp: not the file that was indexed" in line]


def test_a_changed_test_or_painting_is_refused(bitmaps, tmp_path):
    for path, read in (("test/house.bmp", data.photograph), ("paintings/oil.bmp", data.painting)):
        name = path[path.index("/") + 1 : -4]
        read(bitmaps, name)
        flipped(tmp_path / "data/style/bitmaps" / path)
        with pytest.raises(UserError, match=rf"{path}: not the file that was indexed.*remove dataset.json"):
            read(bitmaps, name)
    assert len([line for line in check(bitmaps.folder) if "not the file that was indexed" in line]) == 2


def test_a_picture_that_came_after_the_index_is_refused_and_takes_no_indexed_ones_place(bitmaps, tmp_path):
    root = tmp_path / "data/style/bitmaps"
    for path, read in (("test/mountain.png", data.photograph), ("paintings/the_scream.png", data.painting)):
        save(root / path, plain(1))
        with pytest.raises(UserError, match=f"{path}: was added after the data set was indexed; remove dataset.json"):
            read(bitmaps, path.split("/")[1][:-4])
    save(root / "paintings/oil.png", plain(2))
    assert np.array_equal(data.painting(bitmaps, "oil"), np.asarray(Image.open(root / "paintings/oil.bmp")))


def test_a_set_indexed_without_checksums_is_read_as_before(bitmaps, tmp_path):
    expected = list(photographs(bitmaps).batches(0, 0, 0, 1))
    file = f"{bitmaps.folder.root}/index.parquet"
    pq.write_table(pq.read_table(file, columns=["path", "bytes"]), file)
    old = Source(bitmaps.folder, {name: value for name, value in bitmaps.info.items() if name != "crc32"})
    for streamed in (False, True):
        same(expected, photographs(old, streamed).batches(0, 0, 0, 1))
    assert data.painting(old, "oil").shape == (40, 36, 3)
    old.folder.write_json("dataset.json", old.info)
    assert not [line for line in check(old.folder) if "indexed" in line]
