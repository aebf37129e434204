import contextlib
import importlib
import json
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.weather import cli
from retable.tasks.weather.w4c import frames as frames_module
from retable.tasks.weather.w4c.convert import convert, encode, encoding, parts, transfer, write_part
from retable.tasks.weather.w4c.frames import Frames, decode, part_path
from retable.tasks.weather.w4c.layout import Index
from retable.tasks.weather.w4c.prepare import index_folder
from retable.tasks.weather.w4c.preprocess import HIGH, LOW, normalise
from tests.weather.files import Layout

module = importlib.import_module("retable.tasks.weather.w4c.convert")
SERIES = "2019/boxi_0015/training"


@pytest.fixture
def source(tmp_path, monkeypatch):
    for module_ in (module, frames_module):
        monkeypatch.setattr(module_, "FRAMES_PER_FILE", 50)
    Layout(regions=("boxi_0015",), years=(2019,)).write(tmp_path / "data/weather/mine")
    folder = Storage.open(tmp_path / "data/weather/mine")
    return folder, index_folder(folder, "mine", "own")


def clipped(images):
    """What normalisation makes of channels before it scales them, missing values aside."""
    low, high = (limit.reshape(11, 1, 1) for limit in (LOW, HIGH))
    return np.where(np.isfinite(images), np.clip(images, low, high), images)


def test_codes_keep_images_to_half_a_step():
    random = np.random.default_rng(1)
    span = (HIGH - LOW).reshape(11, 1, 1)
    images = (LOW.reshape(11, 1, 1) + random.uniform(-0.2, 1.2, (5, 11, 12, 12)) * span).astype(np.float32)
    images[0], images[1, :, 0], images[1, :, 1], images[1, :, 2] = 0, np.nan, np.inf, -np.inf
    codes = encode(images)
    assert codes.dtype == np.uint16
    back = decode(codes, json.loads(json.dumps(encoding())))
    assert back.dtype == np.float32
    finite = np.isfinite(images)
    error = np.abs(np.where(finite, back, 0).astype(np.float64) - np.where(finite, clipped(images), 0))
    step = (span / 65533).astype(np.float64)
    assert (error <= 0.5 * step + 2e-7 * span)[finite].all()
    assert error[finite].max() > 0.4 * step.max()  # the bound is tight
    np.testing.assert_array_equal(np.isnan(back), np.isnan(images))
    np.testing.assert_array_equal(np.isinf(back), np.isinf(images))
    np.testing.assert_array_equal(back[0], 0)
    assert step.max() == pytest.approx(0.0053, abs=1e-4)


def test_networks_see_the_same_to_a_thousandth():
    random = np.random.default_rng(2)
    low, high = (limit.reshape(11, 1, 1) for limit in (LOW, HIGH))
    images = random.uniform(low - 1, high + 1, (3, 11, 12, 12)).astype(np.float32)
    images[random.uniform(size=images.shape) < 0.1] = np.nan
    images[random.uniform(size=images.shape) < 0.1] = np.inf
    np.testing.assert_allclose(normalise(decode(encode(images), encoding())), normalise(images), atol=1e-3)


def test_codes_are_a_fixed_point():
    codes = np.arange(65536, dtype=np.uint16)
    images = np.repeat(codes.reshape(256, 1, 16, 16), 11, axis=1)
    np.testing.assert_array_equal(encode(decode(images, encoding())), images)


def test_a_converted_set_is_the_same_set(source, tmp_path):
    folder, info = source
    target = Storage.open(tmp_path / "data/weather/other")
    written = transfer(folder, target, "other")
    assert written == target.read_json("dataset.json")
    same = ("series", "size", "regions", "years", "inputs", "forecast", "holdout", "source", "rain", "bytes")
    assert {key: written[key] for key in same} == {key: info[key] for key in same}
    assert (written["format"], written["name"], written["converted_from"]["name"]) == ("parquet", "other", "mine")
    assert written["digest"] != info["digest"]
    old, new = Frames(folder, info), Frames(target, written)
    for series, rows in info["series"].items():
        a, b = old.rate(series, 0, rows["rain"]), new.rate(series, 0, rows["rain"])
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))
        a, b = old.satellite(series, 0, rows["satellite"]), new.satellite(series, 0, rows["satellite"])
        np.testing.assert_allclose(b, clipped(a), atol=0.0028)
        np.testing.assert_array_equal(new.satellite(series, 3, 6), b[3:6])
    lengths = (("boxi_0015",), (2019,), 4, 8)
    a, b = Index.read(folder, info), Index.read(target, written)
    assert b.training(*lengths, True) == a.training(*lengths, True)
    assert b.sequences("test", *lengths) == a.sequences("test", *lengths)


def test_files_are_small_and_grouped(source, tmp_path):
    folder, _ = source
    target = tmp_path / "b"
    written = transfer(folder, Storage.open(target), "b")
    paths = sorted(path.relative_to(target).as_posix() for path in (target / "data").iterdir())
    assert paths == sorted(path for path in written["files"] if path.endswith(".parquet"))
    assert [path for path in paths if "training.satellite" in path] == [
        f"data/2019.boxi_0015.training.satellite-0000{number}.parquet" for number in (0, 1)
    ]
    metadata = pq.read_metadata(target / paths[0])
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert set(rows[:-1]) <= {8} and rows[-1] <= 8
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.serialized_size < 20_000  # no frame is repeated as a statistic
    assert written["stored_bytes"] == sum((target / path).stat().st_size for path in paths)


def test_an_interrupted_conversion_keeps_what_is_done(source, tmp_path, monkeypatch):
    folder, info = source
    target = Storage.open(tmp_path / "b")
    expected = transfer(folder, Storage.open(tmp_path / "whole"), "b")
    made, plain = [], module._parquet

    def stopping(piece, *rest):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(piece)
        return plain(piece, *rest)

    monkeypatch.setattr(module, "_parquet", stopping)
    with pytest.raises(KeyboardInterrupt):
        transfer(folder, target, "b")
    assert not target.exists("dataset.json") and len(target.list("data")) == 3
    monkeypatch.setattr(module, "_parquet", lambda piece, *rest: made.append(piece) or plain(piece, *rest))
    assert transfer(folder, target, "b") == expected
    assert len(made) == len(list(parts(info)))  # each once


def test_parts_of_other_data_or_half_a_file_are_written_again(source, tmp_path):
    folder, info = source
    target = Storage.open(tmp_path / "b")
    piece = next(iter(parts(info)))
    first = write_part(piece, folder, target, info)
    (path,) = (tmp_path / "b/data").iterdir()
    whole = path.read_bytes()
    for broken in (whole[:-10], whole[: len(whole) // 2], b"", b"foreign"):
        path.write_bytes(broken)
        again = write_part(piece, folder, target, info)
        assert path.read_bytes() == whole
        np.testing.assert_array_equal(again["sha256"], first["sha256"])
    write_part(piece, folder, target, {**info, "digest": "other"})
    assert path.read_bytes() != whole


def test_conversion_to_a_bucket(source):
    folder, info = source
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    memory.store.clear()
    target = Storage(fs.PyFileSystem(fs.FSSpecHandler(memory)), "/bucket/b")
    written = transfer(folder, target, "b")
    np.testing.assert_array_equal(
        Frames(target, written).rate(SERIES, 40, 60), Frames(folder, info).rate(SERIES, 40, 60)
    )


def test_images_without_rain_are_converted(tmp_path):
    Layout(regions=("boxi_0015",), years=(2019,), targets=False).write(tmp_path / "a")
    folder = Storage.open(tmp_path / "a")
    info = index_folder(folder, "a", "own")
    written = transfer(folder, Storage.open(tmp_path / "b"), "b")
    assert written["series"] == info["series"]
    assert not [path for path in written["files"] if ".test.rain" in path]


def test_what_cannot_be_converted_is_refused(source, tmp_path, monkeypatch):
    folder, _ = source
    target = Storage.open(tmp_path / "b")
    with pytest.raises(UserError, match="no data set here"):
        transfer(Storage.open(tmp_path / "nothing"), target, "b")
    transfer(folder, target, "b")
    with pytest.raises(UserError, match="parquet already"):
        transfer(target, Storage.open(tmp_path / "c"), "c")
    with pytest.raises(UserError, match="another name"):
        convert(Storage.open(tmp_path), "mine", "mine")
    monkeypatch.delattr(module, "ray_cluster")  # it is refused before Ray starts
    with pytest.raises(UserError, match="no data set here"):
        convert(Storage.open(tmp_path), "nothing")


def test_files_that_no_command_has_looked_at_are_indexed_first(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ray_cluster", contextlib.nullcontext)
    Layout(regions=("boxi_0015",), years=(2019,)).write(tmp_path / "data/weather/mine")
    cli.convert("mine", str(tmp_path))
    made = (Storage.open(tmp_path) / "data/weather/mine-parquet").read_json("dataset.json")
    assert made["format"] == "parquet" and made["source"] == "own"
    with pytest.raises(UserError, match="no data set here"):
        cli.convert("nothing", str(tmp_path))


@pytest.mark.parametrize("target", ["other", "unfinished", "converted"])
def test_a_data_set_that_is_there_is_not_replaced(source, tmp_path, monkeypatch, target):
    storage = Storage.open(tmp_path)
    monkeypatch.setattr(module, "ray_cluster", contextlib.nullcontext)
    Layout(regions=("roxi_0004",), years=(2020,)).write(tmp_path / "data/weather/other")
    index_folder(storage / "data/weather/other", "other", "own")
    Layout(regions=("roxi_0004",), years=(2020,)).write(tmp_path / "data/weather/unfinished")
    transfer(storage / "data/weather/other", storage / "data/weather/converted", "converted")
    place = storage / f"data/weather/{target}"
    before = {path: path.read_bytes() for path in Path(place.root).rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="holds other data; choose another --target"):
        convert(storage, "mine", target)
    assert {path: path.read_bytes() for path in Path(place.root).rglob("*") if path.is_file()} == before
    assert convert(storage, "mine")["digest"] == convert(storage, "mine")["digest"]


@pytest.mark.parametrize(
    ("name", "target", "refusal"),
    [
        ("mine", "w4c22", "tables read other data under this name"),
        ("mine", "generated-36", "tables read other data under this name"),
        ("mine", "../audio/mine", "cannot name a data set"),
        ("../weather/mine", None, "cannot name a data set"),
    ],
)
def test_a_conversion_takes_no_name_of_other_data(source, tmp_path, monkeypatch, name, target, refusal):
    monkeypatch.setattr(module, "ray_cluster", contextlib.nullcontext)
    with pytest.raises(UserError, match=refusal):
        convert(Storage.open(tmp_path), name, target)
    assert [path.name for path in (tmp_path / "data").rglob("dataset.json")] == ["dataset.json"]


@pytest.mark.slow
def test_ray_converts_as_a_plain_process_does(source, tmp_path):
    folder, info = source
    expected = transfer(folder, Storage.open(tmp_path / "plain"), "mine-parquet")
    assert convert(Storage.open(tmp_path), "mine") == expected
    target = Storage.open(tmp_path / "data/weather/mine-parquet")
    np.testing.assert_array_equal(
        Frames(target, expected).rate(SERIES, 0, 80), Frames(folder, info).rate(SERIES, 0, 80)
    )


def test_overwritten_bytes_are_refused(source, tmp_path):
    folder, _ = source
    target = Storage.open(tmp_path / "target")
    info = transfer(folder, target, "target")
    for kind, read in (("rain", Frames.rate), ("satellite", Frames.satellite)):
        rows = info["series"][SERIES][kind]
        expected = read(Frames(target, info), SERIES, 0, rows)
        path = tmp_path / "target" / part_path(SERIES, kind, 0)
        sound, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
        footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
        for number in range(30):
            size = (1, 8, 4000)[number % 3]
            start = int(rng.integers(4, max(footer - size, 5)))
            stop = min(start + size, footer)
            path.write_bytes(sound[:start] + bytes(byte ^ 0x5A for byte in sound[start:stop]) + sound[stop:])
            try:
                found = read(Frames(target, {**info, "digest": f"{kind} {number}"}), SERIES, 0, rows)
                assert np.array_equal(found, expected, equal_nan=True)
            except UserError as error:
                assert str(path) in str(error) and "convert again" in str(error) and "\n" not in str(error)
                refused += 1
        assert refused >= 25
        path.write_bytes(sound)


def test_a_table_that_changed_is_refused(source):
    folder, info = source
    Index.read(folder, info)
    text = folder.read("timestamps_and_splits.csv").decode()
    folder.write("timestamps_and_splits.csv", text.replace("train", "val", 1))
    with pytest.raises(UserError, match=r"timestamps_and_splits\.csv: not the table that dataset\.json knows; put it"):
        Index.read(folder, info)
