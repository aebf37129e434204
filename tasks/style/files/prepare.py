"""Prepare datasets: generate landscapes, index the photographs of a folder, or import pictures and videos."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import tempfile
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import pyarrow as pa

from retable.platform.console import counted, progress_bar
from retable.platform.errors import UserError, disk_errors
from retable.platform.spec.arrays import Array
from retable.platform.spec.task import data_folder
from retable.platform.store.storage import Storage
from retable.tasks.style.config import Config
from retable.tasks.style.data import INDEX, SUFFIXES, files_below, is_picture, pictures_below, threaded
from retable.tasks.style.files import assets, images
from retable.tasks.style.files import videos as video_files
from retable.tasks.style.files.check import defect, same_names, too_small

GENERATED = "generated"
PHOTOGRAPHS = 400
"""Training pictures of the data set `generated`."""
LANDSCAPES = 5
"""Generated test photographs, beside those shipped."""
COCO, COCO_PHOTOGRAPHS = "coco2017", 118_287
COCO_TESTS = 100
"""So many of val2017 are the tests of COCO: the paper times 100 of its photographs."""
UNFINISHED = "unfinished.json"
"""Lies in a folder while it is being written."""
SAMPLED = 4096
"""Bytes at a file's beginning and end that the data set's digest covers; its checksum covers all of them."""
VIDEOS = (
    *(".mp4", ".mov", ".mkv", ".avi", ".webm", ".m4v", ".3gp"),
    *(".mts", ".m2ts", ".mpg", ".mpeg", ".wmv", ".flv", ".ogv"),
)
QUALITY = 95
"""Of JPEGs written here, of 100."""


def prepare(config: Config, storage: Storage) -> None:
    """Generate the data set `generated`; of any other name, index the photographs that lie in its folder.

    Raises:
        UserError: where there are none, saying where to get them, or they are not those of COCO 2017 but named so.

    """
    dataset = data_folder(storage, "style", config.data)
    if config.data == GENERATED:
        make_generated(dataset, GENERATED, PHOTOGRAPHS, 0)
        return
    if dataset.exists(UNFINISHED):
        made = dataset.read_json(UNFINISHED)["command"]
        raise UserError(f"{dataset} is unfinished; run `{made} --storage {shlex.quote(str(storage))}` again")
    if not (pictures_below(dataset, "training") or pictures_below(dataset, "train2017")):
        raise UserError(
            f"{dataset} has no photographs; unzip http://images.cocodataset.org/zips/train2017.zip (118,287 images, "
            "18 GB) and val2017.zip there, or put any pictures into training/ and test/, or "
            f"`retable data import style FOLDER --name mine` and --set data=mine, or --set data={GENERATED}"
        )
    index_folder(dataset, config.data)


def index_folder(dataset: Storage, name: str, **extra: Any) -> dict[str, Any]:
    """Index the pictures in a data set's folder; write `index.parquet` and `dataset.json`, and return what that holds.

    Training pictures are those in `training/` or COCO's `train2017/`; test photographs those in `test/`, or the first
    100 of `val2017/`; paintings those in `paintings/`. The digest covers names, sizes, and 4 KB at both ends of each.
    Every file is read once, for the CRC-32 that it is compared with whenever it is read again.

    Args:
        dataset: the data set's folder.
        name: the data set's name.
        **extra: what else a data set says of itself.

    Raises:
        UserError: where there is no training picture, a file is empty, two tests or two paintings share a name, or
            `coco2017` is not whole.

    """
    training = pictures_below(dataset, "training")
    coco = {} if training else pictures_below(dataset, "train2017")
    training = training or coco
    tests = pictures_below(dataset, "test") or dict(list(pictures_below(dataset, "val2017").items())[:COCO_TESTS])
    everything = {**training, **tests, **pictures_below(dataset, "paintings")}
    _refuse(dataset, name, training, tests, everything)
    digest, crc32 = hashlib.sha256(), dict[str, int]()
    with progress_bar(f"indexing {name}") as show:
        read = threaded(partial(_digest, dataset), everything.items())
        for path, (one, crc) in counted(zip(everything, read, strict=True), show, len(everything)):
            digest.update(one)
            crc32[path] = crc
    sums = [crc32.pop(path) for path in training]
    table = pa.table({"path": list(training), "bytes": list(training.values()), "crc32": sums})
    dataset.write_table(INDEX, table, write_page_checksum=True)
    info = {
        "source": "coco" if len(coco) == COCO_PHOTOGRAPHS else "folder",
        **extra,
        "real": extra.get("source") != "generated",
        "name": name,
        "training": len(training),
        "bytes": sum(training.values()),
        "test": list(tests),
        "crc32": crc32,
        "digest": digest.hexdigest(),
    }
    dataset.write_json("dataset.json", info)
    dataset.remove(UNFINISHED)
    return info


def _refuse(
    target: Storage,
    name: str,
    training: Mapping[str, int],
    tests: Mapping[str, int],
    everything: Mapping[str, int],
) -> None:
    if not training:
        raise UserError(f"{target}/training: no pictures ({', '.join(SUFFIXES)})")
    if name == COCO and len(training) != COCO_PHOTOGRAPHS:
        wrong = f"{len(training):,} training pictures, not COCO 2017's {COCO_PHOTOGRAPHS:,}"
        raise UserError(f"{target}: {wrong}; unzip train2017.zip again, or choose another name")
    if name == COCO and len(tests) < COCO_TESTS:
        raise UserError(f"{target}: {len(tests)} test photographs, not {COCO_TESTS}; unzip val2017.zip there too")
    if empty := [path for path, size in everything.items() if not size]:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise UserError(f"{target}/{empty[0]}: zero bytes{more}; `retable data check style {target}` lists all defects")
    for line in same_names(target, everything):
        raise UserError(line)


def _digest(dataset: Storage, item: tuple[str, int]) -> tuple[bytes, int]:
    """Return what the data set's digest covers of a file, and the CRC-32 of all of it."""
    path, size = item
    data = dataset.read(path)
    ends = data[:SAMPLED] + data[max(size - SAMPLED, 0) :][:SAMPLED]
    return hashlib.sha256(f"{path} {size} ".encode() + ends).digest(), zlib.crc32(data)


def read_paintings(files: Sequence[Path]) -> dict[str, bytes]:
    """Return pictures as files of a data set's `paintings/`: name -> PNG, upright and in sRGB.

    Raises:
        UserError: where one cannot be read, or has the name of another or of a painting that comes with the task.
    """
    paintings: dict[str, bytes] = {}
    for file in files:
        name = f"{file.stem}.png"
        if name in paintings or file.stem in assets.paintings():
            raise UserError(f"{file}: there is a painting of that name already; rename it")
        paintings[name] = images.encode_png(images.read(file).pixels)
    return paintings


def make_generated(
    dataset: Storage, name: str, photographs: int, seed: int, paintings: Sequence[Path] = ()
) -> dict[str, Any]:
    """Generate landscapes and a clip into `dataset`, beside the shipped pictures and `paintings`; return its info.

    Raises:
        UserError: where the folder holds other data, the disk is full, or nothing can be written there.

    """
    from retable.tasks.style.files import generate

    _check_own(dataset, name, "generated")
    if foreign := _foreign(dataset):
        mine = "move it to the same place in a folder of your own beside it, NAME, and --set data=NAME"
        raise UserError(f"{dataset}/{foreign[0]}: not of this set, which is made anew; {mine}")
    works = read_paintings(paintings)
    _begin(dataset, paintings, "make", "style", "--name", name, "--photographs", str(photographs), "--seed", str(seed))
    dataset.write("clip.mp4", generate.clip(seed))
    for name_of in assets.PAPER:
        dataset.write(f"paintings/{name_of}.jpg", assets.paintings()[name_of].read_bytes())
    for path in assets.photographs().values():
        dataset.write(f"test/{path.name}", path.read_bytes())
    for number in range(LANDSCAPES):
        dataset.write(f"test/landscape_{number}.jpg", encode_jpeg(generate.landscape(seed, 1, number)))
    with progress_bar(f"generating {name}") as show:
        made = threaded(lambda number: encode_jpeg(generate.landscape(seed, 0, number)), range(photographs))
        for number, data in enumerate(counted(made, show, photographs)):
            dataset.write(f"training/{number:06d}.jpg", data)
    for file, data in works.items():
        dataset.write(f"paintings/{file}", data)
    return index_folder(dataset, name, source="generated", seed=seed, generator=generate.VERSION)


def encode_jpeg(pixels: Array) -> bytes:
    """Return a picture (red, green, blue) as the bytes of a JPEG file."""
    return cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def _check_own(dataset: Storage, name: str, source: str) -> None:
    """Refuse a folder that cannot be written, or whose files were not put there by the same command."""
    info = dataset.read_json("dataset.json") if dataset.exists("dataset.json") else {}
    ours = name == GENERATED or dataset.exists(UNFINISHED) or info.get("source") == source
    if dataset.list() and not ours:
        raise UserError(f"{dataset} holds other data; choose another --name")
    dataset.check_writable()


def _foreign(dataset: Storage) -> list[str]:
    """Return the files in a generated set's folder that no generator has put there, and that would be lost."""
    photographs = "|".join(re.escape(path.name) for path in assets.photographs().values())
    ours = re.compile(rf"training/\d{{6}}\.jpg|test/({photographs}|landscape_\d+\.jpg)")
    foreign = [path for top in ("training", "test") for path in files_below(dataset, top) if not ours.fullmatch(path)]
    for name in assets.PAPER:
        path = f"paintings/{name}.jpg"
        if dataset.exists(path) and dataset.read(path) != assets.paintings()[name].read_bytes():
            foreign.append(path)
    begun = dataset.exists(INDEX) or dataset.exists(UNFINISHED)
    return foreign if begun or not dataset.exists("clip.mp4") else [*foreign, "clip.mp4"]


def _begin(dataset: Storage, paintings: Sequence[Path], *words: str) -> None:
    """Empty a data set's folder to write it anew, and note how to go on after an interruption: `retable data WORDS`."""
    more = [word for painting in paintings for word in ("--painting", str(painting))]
    dataset.write_json(UNFINISHED, {"command": shlex.join(("retable", "data", *words, *more))})
    for old in ("dataset.json", INDEX, "training", "test"):
        dataset.remove(old)


def import_folder(
    source: Path,
    dataset: Storage,
    name: str,
    tests: int = 10,
    every: int = 24,
    paintings: Sequence[Path] = (),
    remedy: str = "add pictures, or lower --test of `retable data import`",
) -> dict[str, Any]:
    """Make a data set of the pictures, and of the videos' frames, in a folder and those below it; return its info.

    The tests are those whose paths have the lowest SHA-256, so adding pictures changes few of them. Frames of videos
    are for training only: tests would be too like them. Files are linked where that can be done, else copied.

    Args:
        source: the folder.
        dataset: the data set's folder; an older import there is replaced.
        name: the data set's name.
        tests: how many pictures become test photographs.
        every: of each video, the first frame of so many is taken.
        paintings: pictures that trainings on the set can take their style from, by their names; see `read_paintings`.
        remedy: ends the error where there are too few pictures.

    Returns:
        `dataset.json`; its `left_out` says of each file that is broken or too small what is wrong with it.

    Raises:
        UserError: where there is no such folder, too few pictures, or other data in the target's.

    """
    if not source.is_dir():
        raise UserError(f"{source}: no folder; give one that holds pictures")
    if name in (GENERATED, COCO):
        raise UserError(f"--name {name}: is the name of other pictures, which tables are made with; choose another")
    _check_own(dataset, name, "imported")
    with tempfile.TemporaryDirectory(prefix="retable-") as converted:
        return _import(source, dataset, name, tests, every, paintings, remedy, Path(converted))


def _import(
    source: Path,
    dataset: Storage,
    name: str,
    tests: int,
    every: int,
    paintings: Sequence[Path],
    remedy: str,
    converted: Path,
) -> dict[str, Any]:
    origin = Storage.open(source)
    # The target may lie in the folder that is imported, or be that folder by another name.
    inside = f"{os.path.realpath(dataset.root)}/" if dataset.is_local else "no folder"
    files = [path for path in files_below(origin) if not os.path.realpath(f"{origin.root}/{path}").startswith(inside)]
    pictures = [path for path in files if Path(path).suffix.lower() in images.SUFFIXES]
    videos = [path for path in files if Path(path).suffix.lower() in VIDEOS]
    sound, left_out = _sound(origin, pictures, name, converted)
    videos, broken = _playable(origin, videos)
    left_out += broken
    if tests > len(sound) or not (len(sound) > tests or videos):
        raise UserError(
            f"{source}: {len(sound)} sound pictures and {len(videos)} videos, too few to train on beside {tests} tests"
            f"; {remedy}"
        )
    chosen = set(sorted(sound, key=lambda path: hashlib.sha256(path.encode()).digest())[:tests])
    import av  # here and below: a machine that only trains may lack it

    works = read_paintings(paintings)
    _begin(
        dataset, paintings, "import", "style", str(source), "--name", name, "--test", str(tests), "--every", str(every)
    )

    def transfer(move: tuple[str, str]) -> None:
        path, flat = move
        file = (Path(origin.root) if is_picture(path) else converted) / path
        _transfer(file, dataset, f"{'test' if path in chosen else 'training'}/{flat}")

    for _ in threaded(transfer, _flat(sound).items()):
        pass
    for path, flat in _flat(videos).items():
        try:
            for number, pixels in video_frames(Path(origin.root) / path, every):
                dataset.write(f"training/videos/{Path(flat).stem}/{number:06d}.jpg", encode_jpeg(pixels))
        except av.FFmpegError as error:
            left_out.append(f"{origin.root}/{path}: {error.strerror}; frames before that are taken")
    for file, data in works.items():
        dataset.write(f"paintings/{file}", data)
    return index_folder(dataset, name, source="imported", origin=origin.root, left_out=left_out)


def _playable(origin: Storage, videos: list[str]) -> tuple[list[str], list[str]]:
    """Return the videos whose first frame can be decoded, and of each other one what is wrong with it."""
    import av

    playable, left_out = [], []
    for path in videos:
        try:
            with closing(video_frames(Path(origin.root) / path, 1)) as frames:
                _, pixels = next(frames)
            if small := too_small(pixels.shape[1], pixels.shape[0]):
                left_out.append(f"{origin.root}/{path}: {small}")
            else:
                playable.append(path)
        except StopIteration:
            left_out.append(f"{origin.root}/{path}: no frames")
        except (av.FFmpegError, UserError) as error:
            left_out.append(f"{origin.root}/{path}: {getattr(error, 'strerror', error)}")
    return playable, left_out


def _sound(origin: Storage, pictures: list[str], name: str, converted: Path) -> tuple[list[str], list[str]]:
    """Return the pictures that can be used, and what is wrong with each of the others.

    HEIC and others that OpenCV does not read are written to the folder `converted` as JPEG, under the same path.
    """
    sound, left_out = [], []

    def wrong(path: str) -> str | None:
        try:
            data = origin.read(path)
            if is_picture(path) or not data:
                return defect(data)
            data = encode_jpeg(images.read(data).pixels)
        except UserError as error:
            return str(error).removeprefix("the picture: ")
        with disk_errors(str(converted)):
            (converted / path).parent.mkdir(parents=True, exist_ok=True)
            (converted / path).write_bytes(data)
        return defect(data)

    with progress_bar(f"checking {name}") as show:
        defects = threaded(wrong, pictures)
        for path, what in counted(zip(pictures, defects, strict=True), show, len(pictures)):
            if what:
                left_out.append(f"{origin.root}/{path}: {what}")
            else:
                sound.append(path)
    return sound, left_out


def _flat(paths: Iterable[str]) -> dict[str, str]:
    """Name each file for a folder without folders, so that no two share a stem: `a/b.jpg` becomes `a-b.jpg`."""
    names, taken = {}, set()
    for path in sorted(paths):
        flat = Path(path.replace("/", "-"))
        stem, number = flat.stem, 1
        while stem in taken:
            number += 1
            stem = f"{flat.stem}-{number}"
        taken.add(stem)
        names[path] = f"{stem}{flat.suffix if is_picture(path) or flat.suffix.lower() in VIDEOS else '.jpg'}"
    return names


def _transfer(file: Path, dataset: Storage, path: str) -> None:
    """Put a local file into a data set: as a hard link where possible, else as a copy."""
    if not dataset.is_local:
        dataset.write(path, file.read_bytes())
        return
    target = Path(dataset.root) / path
    with disk_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            os.link(file.resolve(), target)
            return
        shutil.copyfile(file, target)


def video_frames(path: Path, every: int) -> Generator[tuple[int, Array], None, None]:
    """Yield number and pixels, uint8 (height, width, 3), of the first of every so many frames of a video, as shown.

    Raises:
        UserError: where its colors are not read.
    """
    import av

    with av.open(str(path), options=video_files.OPENING) as container:
        for number, frame in enumerate(container.decode(video=0) if container.streams.video else ()):
            if number % every == 0:
                yield number, video_files.to_rgb(frame)


def is_published(info: Mapping[str, Any]) -> bool:
    """Return whether photographs are those of COCO 2017."""
    return info.get("source") == "coco"


def describe(info: Mapping[str, Any]) -> str:
    """Return the origin of a dataset in one clause, for reports."""
    count = f"{info['training']:,}"
    if info["source"] == "generated":
        return f"{count} generated landscapes (seed {info['seed']})"
    if info["source"] == "coco":
        return f"COCO 2017, {count} photographs"
    return f"own pictures, {count} for training"
