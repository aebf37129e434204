import hashlib
import importlib
import os
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import fs

from retable.platform.errors import UserError
from retable.platform.execute.datasets import _make_set
from retable.platform.spec.task import Source, data_folder
from retable.platform.store import lease
from retable.platform.store.storage import Storage
from retable.tasks.style import data, data_cli
from retable.tasks.style.config import Config
from retable.tasks.style.files import assets, generate
from retable.tasks.style.files.check import check
from retable.tasks.style.files.prepare import describe, import_folder, index_folder, make_generated, prepare

module = importlib.import_module("retable.tasks.style.files.prepare")  # the task exports a function so named


def folder(storage, name):
    return data_folder(storage, "style", name)


def picture(path, number=0, height=40, width=48):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(noise).save(path)


def bucket():
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    memory.store.clear()
    return Storage(fs.PyFileSystem(fs.FSSpecHandler(memory)), "/bucket")


def contents(place):
    return {path: hashlib.sha256(place.read(path)).hexdigest() for path in data.files_below(place)}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(generate, "clip", lambda seed: f"clip {seed}".encode())
    monkeypatch.setattr(generate, "SHAPES", ((40, 50),))
    monkeypatch.setattr(module, "PHOTOGRAPHS", 4)
    return monkeypatch


@pytest.mark.parametrize("where", ["local", "bucket"])
def test_prepare_generates_a_set_without_defects(quick, storage, where):
    root = storage if where == "local" else bucket()
    prepare(Config(data="generated"), root)
    place = folder(root, "generated")
    info = place.read_json("dataset.json")
    assert check(place) == [] and not place.exists("unfinished.json")
    assert info["source"] == "generated" and not info["real"] and info["training"] == 4 and info["seed"] == 0
    assert place.list("paintings") == ["great_wave.jpg", "starry_night.jpg", "the_scream.jpg"]
    names = [path.split("/")[1].split(".")[0] for path in info["test"]]
    assert names == ["astronaut", "coffee", *(f"landscape_{n}" for n in range(5)), "mountain"]
    assert place.read("test/mountain.jpg") == assets.photographs()["mountain"].read_bytes()
    assert describe(info) == "4 generated landscapes (seed 0)"


def test_generating_again_gives_the_same_and_another_seed_another_set(quick, storage):
    first = make_generated(storage / "a", "a", 3, 0)
    before = contents(storage / "a")
    assert make_generated(storage / "a", "a", 3, 0) == first and contents(storage / "a") == before
    other = make_generated(storage / "b", "b", 3, 1)
    assert other["digest"] != first["digest"]
    pictures = {p: h for p, h in contents(storage / "b").items() if p.startswith("training/") or "landscape" in p}
    assert len(set(pictures.values()) | set(before.values())) == 8 + len(before)
    fewer = make_generated(storage / "a", "a", 2, 0)
    assert fewer["training"] == 2 and len(data.files_below(storage / "a", "training")) == 2


def interrupt_at(monkeypatch, count):
    left = iter(range(count))
    write = Storage.write

    def stop(self, path, content):
        if next(left, None) is None:
            raise KeyboardInterrupt
        write(self, path, content)

    monkeypatch.setattr(Storage, "write", stop)


@pytest.mark.parametrize(
    "count", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow), 14]
)
def test_an_interrupted_generation_is_done_again(quick, storage, count):
    with quick.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, count)
        make_generated(storage / "data/style/mine", "mine", 3, 0)
    with pytest.raises(UserError, match="run `retable data make style --name mine --photographs 3 --seed 0 --storage "):
        prepare(Config(data="mine"), storage)
    info = make_generated(storage / "data/style/mine", "mine", 3, 0)
    assert info == make_generated(storage / "other", "mine", 3, 0) and check(storage / "data/style/mine") == []


def test_data_of_ones_own_are_not_overwritten(quick, storage, tmp_path):
    picture(tmp_path / "results/data/style/mine/training/a.png")
    before = contents(storage)
    with pytest.raises(UserError, match="holds other data"):
        make_generated(folder(storage, "mine"), "mine", 3, 0)
    with pytest.raises(UserError, match="holds other data"):
        import_folder(tmp_path, folder(storage, "mine"), "mine")
    assert contents(storage) == before


def test_a_set_that_another_command_has_made_meanwhile_stays_as_it_is(quick, storage, monkeypatch):
    """It was emptied and made again, under a training that read it."""
    prepare(Config(data="generated"), storage)
    folder(storage, "generated").write("training/a note", "")
    assert _make_set("style", Config(data="generated"), storage) is None
    assert folder(storage, "generated").exists("training/a note")


def test_pictures_of_ones_own_in_the_generated_folder_are_not_removed(quick, storage):
    prepare(Config(data="generated"), storage)
    place = folder(storage, "generated")
    picture(Path(place.root, "test/my only copy.jpg"))
    place.remove("dataset.json")
    with pytest.raises(UserError, match=r"test/my only copy\.jpg: not of this set, which is made anew; move it to"):
        prepare(Config(data="generated"), storage)
    assert place.exists("test/my only copy.jpg") and not place.exists("unfinished.json")


@pytest.mark.parametrize(
    "path", ["training/IMG_1.heic", "training/film.mp4", "test/mine.gif", "paintings/the_scream.jpg", "clip.mp4"]
)
def test_files_of_ones_own_in_a_folder_called_generated_are_not_replaced(quick, storage, path):
    place = folder(storage, "generated")
    place.write(path, b"mine")
    with pytest.raises(UserError, match=f"{path}: not of this set, which is made anew; move it to the same place in"):
        prepare(Config(data="generated"), storage)
    assert contents(place) == {path: hashlib.sha256(b"mine").hexdigest()}


def test_a_generated_set_is_made_anew_beside_paintings_of_ones_own(quick, storage):
    prepare(Config(data="generated"), storage)
    place = folder(storage, "generated")
    place.remove("dataset.json")
    picture(Path(place.root, "paintings/sunflowers.png"))
    before = place.read("paintings/sunflowers.png")
    prepare(Config(data="generated"), storage)
    assert place.exists("dataset.json") and place.read("paintings/sunflowers.png") == before


def test_prepare_says_where_to_get_coco(storage):
    with pytest.raises(UserError) as error:
        prepare(Config(), storage)
    text = str(error.value)
    assert "\n" not in text
    assert all(word in text for word in ("train2017.zip", "118,287", "18 GB", "data import style", "data=generated"))
    with pytest.raises(UserError, match="cannot name a data set"):
        prepare(Config(data="../x"), storage)


def test_prepare_indexes_what_lies_in_the_folder(storage, tmp_path):
    place = tmp_path / "results/data/style/mine"
    for number in range(3):
        picture(place / f"training/{2 - number}.png", number)
    picture(place / "training/deep/er/x.jpg", 7)
    picture(tmp_path / "elsewhere/y.png", 8)
    (place / "training/linked").symlink_to(tmp_path / "elsewhere")
    (place / "training/notes.txt").write_text("no picture")
    (place / "training/.hidden.png").write_bytes(b"")
    picture(place / "test/one.png", 9)
    prepare(Config(data="mine"), storage)
    table = pq.read_table(place / "index.parquet").to_pydict()
    assert table["path"] == [
        f"training/{name}" for name in ("0.png", "1.png", "2.png", "deep/er/x.jpg", "linked/y.png")
    ]
    assert table["bytes"] == [(place / path).stat().st_size for path in table["path"]]
    info = storage.read_json("data/style/mine/dataset.json")
    assert (
        info["source"] == "folder"
        and info["real"]
        and info["test"] == ["test/one.png"]
        and info["bytes"] == sum(table["bytes"])
    )
    assert describe(info) == "own pictures, 5 for training"


def test_the_digest_is_of_names_and_content(storage):
    root = Path(storage.root)
    for name in ("a", "b"):
        for number in range(3):
            picture(root / name / f"training/{number}.png", number, 64, 64)
        picture(root / name / "paintings/oil.png", 5)
    digest = index_folder(storage / "a", "a")["digest"]
    assert index_folder(storage / "b", "other")["digest"] == digest
    path = root / "b/training/1.png"
    sound = path.read_bytes()
    assert len(sound) > 2 * module.SAMPLED
    for changed in (b"x" + sound[1:], sound[:-1] + b"x", sound + b"x"):
        path.write_bytes(changed)
        assert index_folder(storage / "b", "b")["digest"] != digest
    path.write_bytes(sound)
    path.rename(path.with_name("3.png"))
    assert index_folder(storage / "b", "b")["digest"] != digest
    path.with_name("3.png").rename(path)
    picture(root / "b/paintings/oil.png", 6)
    assert index_folder(storage / "b", "b")["digest"] != digest


def test_coco_must_be_whole_to_be_called_so(storage, tmp_path, monkeypatch):
    place = tmp_path / "results/data/style/coco2017"
    for number in range(4):
        picture(place / f"train2017/{number:012d}.jpg", number)
        picture(place / f"val2017/{9 - number:012d}.jpg", number)
    with pytest.raises(UserError, match="4 training pictures, not COCO 2017's 118,287"):
        prepare(Config(), storage)
    monkeypatch.setattr(module, "COCO_PHOTOGRAPHS", 4)
    with pytest.raises(UserError, match=r"4 test photographs, not 100; unzip val2017\.zip there too"):
        prepare(Config(), storage)
    monkeypatch.setattr(module, "COCO_TESTS", 3)
    prepare(Config(), storage)
    info = storage.read_json("data/style/coco2017/dataset.json")
    assert info["source"] == "coco" and describe(info) == "COCO 2017, 4 photographs"
    assert info["test"] == [f"val2017/{number:012d}.jpg" for number in (6, 7, 8)]


def test_empty_files_and_equal_names_are_refused(storage, tmp_path):
    place = tmp_path / "results/x"
    picture(place / "training/a.png")
    picture(place / "test/a.png")
    picture(place / "test/a.jpg")
    with pytest.raises(UserError, match=r"test/a\.png: has the name of test/a\.jpg"):
        index_folder(storage / "x", "x")
    (place / "test/a.jpg").unlink()
    (place / "training/b.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"training/b\.jpg: zero bytes"):
        index_folder(storage / "x", "x")


@pytest.fixture
def album(tmp_path):
    root = tmp_path / "album"
    for number in range(12):
        picture(root / f"{'abc'[number % 3]}/{number}.png", number)
    picture(root / "a-0.jpg", 20)  # flattened, a/0.png has its stem
    (root / "text.png").write_text("no picture")
    (root / "empty.jpg").write_bytes(b"")
    picture(root / "tiny.png", 0, 20, 20)
    (root / "notes.txt").write_text("x")
    return root


@pytest.mark.parametrize("where", ["local", "bucket"])
def test_an_import_splits_all_sound_pictures(album, storage, where):
    root = storage if where == "local" else bucket()
    info = import_folder(album, folder(root, "mine"), "mine", 4)
    place = folder(root, "mine")
    assert info["training"] == 9 and len(info["test"]) == 4 and check(place) == []
    sound = [
        path for path in album.rglob("*") if path.is_file() and path.name[:4] not in ("text", "empt", "tiny", "note")
    ]
    stored = [place.read(path) for path in data.pictures_below(place)]
    assert sorted(stored) == sorted(path.read_bytes() for path in sound) and len(set(stored)) == 13
    assert [line.split(": ")[0].rsplit("/")[-1] for line in info["left_out"]] == ["empty.jpg", "text.png", "tiny.png"]
    assert len({path.split("/")[1].split(".")[0] for path in data.pictures_below(place)}) == 13
    assert describe(info) == "own pictures, 9 for training"


@pytest.mark.parametrize("make", [import_folder, make_generated])
def test_paintings_of_ones_own_are_in_the_set(album, storage, tmp_path, monkeypatch, make):
    place, work = folder(storage, "mine"), tmp_path / "my work.png"
    words = (album, place, "mine", 4, 24) if make is import_folder else (place, "mine", 2, 0)
    picture(work, 7)
    info = make(*words, [work])
    assert info["crc32"].keys() >= {"paintings/my work.png"} and check(place) == []
    found = data.painting(Source(place, info), "my work")
    np.testing.assert_array_equal(found, np.asarray(Image.open(work)))
    picture(tmp_path / "starry_night.jpg")
    for wrong in ([tmp_path / "starry_night.jpg"], [work, work]):
        before = contents(place)
        with pytest.raises(UserError, match="a painting of that name already; rename it"):
            make(*words, wrong)
        assert contents(place) == before
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "index_folder", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        make(*words, [work])
    with pytest.raises(UserError, match="unfinished") as raised:
        prepare(Config(data="mine"), storage)
    assert shlex.split(str(raised.value).split("`")[1])[-4:-2] == ["--painting", str(work)]


def test_generated_pictures_replace_no_imported_ones(album, storage):
    place = folder(storage, "mine")
    import_folder(album, place, "mine", 4)
    place.write("training/added.png", place.read(next(iter(data.pictures_below(place)))))
    before = contents(place)
    with pytest.raises(UserError, match="mine holds other data; choose another --name"):
        make_generated(place, "mine", 2, 0)
    assert contents(place) == before


def test_an_import_links_and_is_repeatable(album, storage):
    place = folder(storage, "mine")
    first = import_folder(album, place, "mine", 4)
    assert {os.stat(f"{place.root}/{path}").st_nlink for path in data.pictures_below(place)} == {2}
    before = contents(place)
    assert import_folder(album, place, "mine", 4) == first and contents(place) == before
    more = import_folder(album, place, "mine", 5)
    assert set(first["test"]) < set(more["test"]) and more["training"] == 8


@pytest.mark.parametrize("count", [0, 1, 7])
def test_an_interrupted_import_is_done_again(album, storage, monkeypatch, count):
    album = album.rename(album.with_name("my album"))
    place, left, link = folder(storage, "mine"), iter(range(count)), os.link

    def stop(source, target):
        if next(left, None) is None:
            raise KeyboardInterrupt
        link(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "link", stop)
        import_folder(album, place, "mine", 4)
    with pytest.raises(UserError, match=r"unfinished; run `retable data import style ") as raised:
        prepare(Config(data="mine"), storage)
    words = shlex.split(str(raised.value).split("`")[1])
    assert words[4] == str(album) and words[-2:] == ["--storage", str(storage)], "it can be pasted"
    info = import_folder(album, place, "mine", 4)
    assert info["training"] == 9 and check(place) == []


def test_copies_stand_in_where_links_cannot_be_made(album, storage, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(OSError(18, "Invalid cross-device link")))
    import_folder(album, folder(storage, "mine"), "mine", 4)
    assert check(folder(storage, "mine")) == []


def test_of_two_commands_at_once_one_makes_the_data_set(album, storage, quick):
    def slowly(*words, index=module.index_folder, **more):
        time.sleep(0.3)
        return index(*words, **more)

    quick.setattr(lease, "POLL_SECONDS", 0.01)
    quick.setattr(module, "index_folder", slowly)
    with ThreadPoolExecutor(4) as pool:
        imports = [pool.submit(data_cli.import_, album, "mine", storage.root, test=4) for _ in range(2)]
        makes = [pool.submit(data_cli.make, storage.root, "drawn", 3) for _ in range(2)]
    for first, second in (imports, makes):
        (error,) = filter(None, (first.exception(), second.exception()))
        assert "a data set is there already" in str(error)
    data_cli.make(storage.root, "drawn", 4, replace=True)
    assert check(folder(storage, "mine")) == [] and folder(storage, "drawn").read_json("dataset.json")["training"] == 4


def test_an_import_needs_pictures_to_train_on(album, storage, tmp_path):
    with pytest.raises(UserError, match=r"13 sound pictures and 0 videos, too few .* lower --test"):
        import_folder(album, folder(storage, "mine"), "mine", 13)
    with pytest.raises(UserError, match="no folder"):
        import_folder(tmp_path / "nowhere", folder(storage, "mine"), "mine")
    assert not storage.list("data/style/mine")


def test_videos_that_cannot_be_played_are_no_pictures_to_train_on(album, storage, tmp_path):
    place = folder(storage, "mine")
    info = import_folder(album, place, "mine", tests=1)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "film.mp4").write_bytes(b"no film" * 100)
    with pytest.raises(UserError, match="0 sound pictures and 0 videos"):
        import_folder(broken, place, "mine", tests=0)
    assert place.read_json("dataset.json") == info  # what was there is there


def test_an_import_by_another_name_of_its_own_target_removes_nothing(album, storage, tmp_path):
    place = folder(storage, "mine")
    import_folder(album, place, "mine", 4)
    before = contents(place)
    (tmp_path / "link").symlink_to(place.root)
    with pytest.raises(UserError, match="0 sound pictures"):
        import_folder(tmp_path / "link", place, "mine", 0)
    assert contents(place) == before


def test_a_link_to_a_folder_above_multiplies_no_pictures(tmp_path):
    picture(tmp_path / "a/x.png")
    picture(tmp_path / "b/x.png")
    (tmp_path / "a/above").symlink_to(tmp_path)
    (tmp_path / "b/self").symlink_to(".")
    (tmp_path / "b/y.png").symlink_to(tmp_path / "a/x.png")
    assert list(data.files_below(Storage.open(tmp_path))) == ["a/x.png", "b/x.png", "b/y.png"]


def test_an_import_leaves_out_its_own_target(album):
    inside = Storage.open(album / "results")
    for _ in range(2):
        assert import_folder(album, folder(inside, "mine"), "mine", 4)["training"] == 9


def test_a_video_contributes_every_nth_frame_to_training(storage, tmp_path):
    album = tmp_path / "videos"
    picture(album / "one.png")
    (album / "clip.mp4").write_bytes(generate.clip(0))
    (album / "broken.mp4").write_bytes(b"no video" * 100)
    place = folder(storage, "mine")
    info = import_folder(album, place, "mine", 1, every=30)
    assert info["test"] == ["test/one.png"] and info["training"] == 3
    assert place.list("training/videos/clip") == [f"{number:06d}.jpg" for number in (0, 30, 60)]
    frames = list(generate.frames(0))
    for number in (0, 30, 60):
        found = np.asarray(Image.open(f"{place.root}/training/videos/clip/{number:06d}.jpg"), np.float32)
        assert np.abs(found - frames[number]).mean() < 5
    (line,) = info["left_out"]
    assert "broken.mp4" in line


def test_videos_of_cameras_are_imported_and_small_ones_left_out(storage, tmp_path):
    album = tmp_path / "videos"
    album.mkdir()
    clip(tmp_path / "a.mp4").rename(album / "00001.MTS")
    clip(album / "small.mp4", height=16)
    info = import_folder(album, folder(storage, "mine"), "mine", 0)
    assert folder(storage, "mine").list("training/videos") == ["00001"] and info["training"] == 1
    (line,) = info["left_out"]
    assert line.endswith("small.mp4: 48 x 16 pixels: too small, 32 are needed")


@pytest.mark.parametrize("name", ["generated", "coco2017"])
def test_an_import_takes_no_name_that_tables_use(album, storage, name):
    with pytest.raises(UserError, match=f"--name {name}: .* choose another"):
        import_folder(album, folder(storage, name), name, 2)
    assert not folder(storage, name).exists()


def test_no_pictures_are_made_under_the_name_of_coco(storage):
    with pytest.raises(UserError, match=r"--name coco2017: .* choose another"):
        data_cli.make(storage=storage.root, name="coco2017")
    assert not storage.exists("data")


def clip(path, turn=0, transfer=2, primaries=2, levels=None, height=32):
    """Write a lossless clip of a picture: 8 bits, or HDR's 10."""
    picture = np.zeros((height, 48, 3), np.uint8)
    picture[:16] = 200, 40, 40
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264" if levels is None else "ffv1", rate=25)
        stream.width, stream.height = 48, height
        stream.pix_fmt = "yuv444p" if levels is None else "yuv444p10le"
        if turn:
            stream.set_display_rotation(turn)
        frame = av.VideoFrame.from_ndarray(
            picture if levels is None else levels, "rgb24" if levels is None else "rgb48le"
        )
        if levels is not None:
            frame = frame.reformat(format="yuv444p10le", dst_colorspace=9, dst_color_range=1)
            context = stream.codec_context
            for each in (context, frame):
                each.color_trc, each.color_primaries, each.colorspace, each.color_range = transfer, primaries, 9, 1
        frame.pts = 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def test_a_videos_frames_are_upright(tmp_path):
    (_, pixels), *_ = module.video_frames(clip(tmp_path / "a.mp4", turn=90), 1)
    assert pixels.shape == (48, 32, 3)
    red = pixels[..., 0].astype(int) > 100
    assert red[:, :14].all() and not red[:, 18:].any(), "a quarter counterclockwise: the top comes to the left"


def test_a_videos_frames_of_hdr_are_mapped(tmp_path):
    """Grey of 100 nits in PQ (ITU-R BT.2100) is far darker as a level than as BT.709 shows it."""
    levels = np.full((32, 48, 3), round(0.508078 * 65535), np.uint16)
    (_, pixels), *_ = module.video_frames(clip(tmp_path / "a.mkv", 0, 16, 9, levels), 1)
    expected = 255 * (100 / 203) ** (1 / 2.4)
    assert np.abs(pixels.astype(int) - expected).max() < 4


def test_a_playlist_named_as_a_video_opens_no_other_file(tmp_path, storage):
    album = tmp_path / "album"
    picture(album / "a.png")
    clip(tmp_path / "secret.mp4").rename(album / "secret.bin")
    (album / "x.mp4").write_text("ffconcat version 1.0\nfile secret.bin\n")
    info = import_folder(album, folder(storage, "mine"), "mine", 0)
    assert info["training"] == 1 and ["x.mp4" in line for line in info["left_out"]] == [True]


def test_pictures_that_training_does_not_read_are_converted_or_named(tmp_path, storage):
    album = tmp_path / "album"
    picture(album / "a.png")
    Image.fromarray(np.full((40, 50, 3), (200, 40, 40), np.uint8)).save(album / "b.ppm")
    (album / "IMG_1.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    place = folder(storage, "mine")
    info = import_folder(album, place, "mine", 0)
    assert place.list("training") == ["a.png", "b.jpg"] and info["training"] == 2
    assert np.abs(np.asarray(Image.open(f"{place.root}/training/b.jpg"), int) - (200, 40, 40)).max() < 5
    (line,) = info["left_out"]
    assert line.endswith("IMG_1.HEIC: HEIC; it is read where pillow-heif is installed: pip install pillow-heif")
    assert check(place) == []


@pytest.mark.parametrize("where", ["local", "bucket"])
def test_pictures_that_are_converted_are_decoded_once(tmp_path, storage, monkeypatch, where):
    album = tmp_path / "album"
    picture(album / "a.png")
    for name in ("b", "c", "c.c"):
        Image.fromarray(np.full((40, 50, 3), (200, 40, 40), np.uint8)).save(album / f"{name}.ppm")
    read, times = module.images.read, []
    monkeypatch.setattr(module.images, "read", lambda source: times.append(source) or read(source))
    place = folder(storage if where == "local" else bucket(), "converted")
    info = import_folder(album, place, "converted", 1)
    assert len(times) == 3 and info["training"] == 3 and check(place) == []
    assert sorted(path.split("/")[1] for path in data.pictures_below(place)) == ["a.png", "b.jpg", "c.c.jpg", "c.jpg"]
