import pickle
import subprocess
import sys

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.weather.w4c import frames
from retable.tasks.weather.w4c.frames import Frames, open_hdf5, part_path, read_hdf5
from retable.tasks.weather.w4c.layout import SATELLITE
from tests.weather.files import Layout, hdf5_path, write_hdf5
from tests.weather.files import frames as written_frames

SERIES = "2019/boxi_0015/training"


@pytest.fixture
def layout(tmp_path):
    written = Layout(regions=("boxi_0015",), years=(2019,), runs=(25,), sequences=1, missing=0)
    return Storage.open(tmp_path), written.write(tmp_path)


def write_parquet(folder, info, monkeypatch, per_file=20, group=6):
    """Frames as Parquet, written with the simplest means: codes straight from bytes, odd sizes of files and groups."""
    monkeypatch.setattr(frames, "FRAMES_PER_FILE", per_file)
    random = np.random.default_rng(0)
    truth = {}
    for series, rows in info["series"].items():
        for kind, channels, dtype in (("satellite", 11, "<u2"), ("rain", 1, "<f4")):
            codes = random.integers(0, 65536, (rows[kind], channels, info["size"], info["size"])).astype(dtype)
            truth[series, kind] = codes
            for number, start in enumerate(range(0, rows[kind], per_file)):
                values = [frame.tobytes() for frame in codes[start : start + per_file]]
                table = pa.table({"frame": pa.array(values, pa.binary(len(values[0])))})
                with folder.filesystem.open_output_stream(f"{folder.root}/{part_path(series, kind, number)}") as file:
                    pq.write_table(table, file, row_group_size=group)
    offset, scale = np.linspace(-1, 1, 11).astype(np.float32), np.linspace(0.1, 2, 11).astype(np.float32)
    how = {"offset": offset.tolist(), "scale": scale.tolist(), "nan": 65535, "inf": 65534}
    return {**info, "format": "parquet", "encoding": how}, truth


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (7, 21), (0, 75), (74, 75), (5, 5)])
def test_rows_of_hdf5_are_those_written(layout, start, stop):
    folder, info = layout
    read = Frames(folder, info)
    images, rates = read.satellite(SERIES, start, stop), read.rate(SERIES, start, stop)
    assert images.dtype == rates.dtype == np.float32
    np.testing.assert_array_equal(images, written_frames(SERIES, "satellite", 75, 12)[start:stop])
    np.testing.assert_array_equal(rates, written_frames(SERIES, "rain", 75, 12)[start:stop, 0])


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (5, 7), (17, 23), (19, 20), (0, 75), (58, 75), (5, 5)])
def test_rows_of_parquet_are_those_written_on_disk_and_elsewhere(layout, monkeypatch, start, stop):
    _, info = layout
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    memory.store.clear()
    folder = Storage(fs.PyFileSystem(fs.FSSpecHandler(memory)), "/bucket/set")
    info, truth = write_parquet(folder, info, monkeypatch)
    read = Frames(folder, info)
    rates = read.rate(SERIES, start, stop)
    np.testing.assert_array_equal(rates, truth[SERIES, "rain"][start:stop, 0])
    images, codes = read.satellite(SERIES, start, stop), truth[SERIES, "satellite"][start:stop]
    assert images.dtype == np.float32 and images.shape == (stop - start, 11, 12, 12)
    how = info["encoding"]
    for channel in range(11):
        exact = codes[:, channel].astype(float) * how["scale"][channel] + how["offset"][channel]
        exact[codes[:, channel] == 65535], exact[codes[:, channel] == 65534] = np.nan, np.inf
        np.testing.assert_allclose(images[:, channel], exact, rtol=1e-6, atol=1e-5)
    whole = read.satellite(SERIES, 0, 75)
    np.testing.assert_array_equal(images, whole[start:stop])


def test_only_the_row_groups_needed_are_read(layout, tmp_path, monkeypatch):
    folder, info = layout
    (tmp_path / "data").mkdir()
    info, _ = write_parquet(folder, info, monkeypatch)
    asked = []
    plain = pq.ParquetFile.read_row_groups

    def watched(self, groups, **options):
        asked.append(list(groups))
        return plain(self, groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", watched)
    Frames(folder, info).satellite(SERIES, 18, 30)  # files of 20 frames, groups of 6
    assert asked == [[3], [0, 1]]


def test_frames_can_be_sent_after_reading(layout):
    folder, info = layout
    read = Frames(folder, info)
    expected = read.rate(SERIES, 0, 3)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(read)).rate(SERIES, 0, 3), expected)
    assert len(pickle.dumps(read)) < 10_000


def test_files_are_opened_once_and_few_stay_open(layout, monkeypatch):
    folder, info = layout
    monkeypatch.setattr(frames, "OPEN_FILES", 2)
    frames._opened.clear()
    opened = []
    plain = frames.open_hdf5
    monkeypatch.setattr(frames, "open_hdf5", lambda path, *rest: opened.append(path.name) or plain(path, *rest))
    read = Frames(folder, info)
    for _ in range(3):
        read.rate(SERIES, 0, 1)
        read.satellite(SERIES, 0, 1)
    assert len(opened) == 2
    for split in ("validation", "test", "heldout"):
        read.rate(f"2019/boxi_0015/{split}", 0, 1)
    assert len(frames._opened) == 2
    read.rate(SERIES, 0, 1)
    assert len(opened) == 6


def test_numbers_of_another_type_are_read_as_float32(layout, tmp_path):
    folder, info = layout
    path = tmp_path / hdf5_path(SERIES, "rain")
    values = np.arange(75 * 144, dtype=np.float64).reshape(75, 1, 12, 12)
    write_hdf5(path, "rain", values)
    rates = Frames(folder, {**info, "digest": "other"}).rate(SERIES, 0, 75)
    assert rates.dtype == np.float32
    np.testing.assert_array_equal(rates, values[:, 0])


def refused(folder, info, message, kind="rain"):
    read = Frames(folder, info)
    with pytest.raises(UserError, match=message) as error:
        (read.rate if kind == "rain" else read.satellite)(SERIES, 0, 75)
    assert "\n" not in str(error.value) and ".h5" in str(error.value)


def test_broken_hdf5_files_are_named(layout, tmp_path):
    folder, info = layout
    path = tmp_path / hdf5_path(SERIES, "rain")
    write_hdf5(path, "rain", written_frames(SERIES, "rain", 75, 12), compression="gzip")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(folder, {**info, "digest": "1"}, "not a readable HDF5 file.*data check")
    path.write_bytes(b"foreign" * 1000)
    refused(folder, {**info, "digest": "2"}, "not a readable HDF5 file")
    damaged = bytearray(whole)
    damaged[-2000:-1000] = bytes(1000)
    path.write_bytes(damaged)
    refused(folder, {**info, "digest": "3"}, "not a readable HDF5 file")
    path.unlink()
    refused(folder, {**info, "digest": "4"}, "no such file")


def test_foreign_shapes_and_keys_are_named(layout, tmp_path):
    folder, info = layout
    path = tmp_path / hdf5_path(SERIES, "satellite")
    for number, (shape, message) in enumerate(
        {
            (75, 9, 12, 12): r"REFL-BT.*\(75, 9, 12, 12\)",
            (75, 11, 12, 24): r"\(75, 11, 12, 24\)",
            (75, 11, 12): r"\(75, 11, 12\)",
            (74, 11, 12, 12): "dataset.json says",
            (75, 11, 24, 24): "dataset.json says",
        }.items()
    ):
        path.unlink()
        with h5py.File(path, "w") as file:
            file["REFL-BT"] = np.zeros(shape, np.float32)
        refused(folder, {**info, "digest": f"shape {number}"}, message, "satellite")
    for number, (fill, message) in enumerate(
        (
            (lambda file: file.create_dataset("other", data=[1.0]), "key 'REFL-BT' is missing"),
            (lambda file: file.create_group("REFL-BT"), "no array of numbers"),
            (lambda file: file.__setitem__("REFL-BT", h5py.ExternalLink("/etc/passwd", "x")), "link to elsewhere"),
            (lambda file: file.create_dataset("REFL-BT", (75, 11, 12, 12), "f4", external="raw.bin"), "another file"),
        )
    ):
        path.unlink()
        with h5py.File(path, "w") as file:
            fill(file)
        refused(folder, {**info, "digest": f"key {number}"}, message, "satellite")


def test_broken_parquet_files_are_named(layout, tmp_path, monkeypatch):
    folder, info = layout
    (tmp_path / "data").mkdir()
    info, _ = write_parquet(folder, info, monkeypatch)
    path = tmp_path / part_path(SERIES, "rain", 1)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"rain-00001\.parquet: not a readable Parquet file"):
        Frames(folder, {**info, "digest": "1"}).rate(SERIES, 0, 75)
    path.unlink()
    with pytest.raises(UserError, match=r"rain-00001\.parquet: no such file"):
        Frames(folder, {**info, "digest": "2"}).rate(SERIES, 0, 75)


def test_what_cannot_be_read_here_is_refused(layout):
    folder, info = layout
    elsewhere = Storage(fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("memory"))), "/bucket")
    with pytest.raises(UserError, match="retable data convert weather"):
        Frames(elsewhere, info)
    with pytest.raises(UserError, match="format 'zarr'"):
        Frames(folder, {**info, "format": "zarr"})
    read = Frames(folder, info)
    with pytest.raises(UserError, match="2019/boxi_0016/training"):
        read.rate("2019/boxi_0016/training", 0, 1)
    with pytest.raises(IndexError):
        read.rate(SERIES, 70, 76)
    info["series"][SERIES]["rain"] = None
    with pytest.raises(UserError, match="has no rain rates"):
        Frames(folder, info).rate(SERIES, 0, 1)


def packed(path, key, values, **attributes):
    with h5py.File(path, "w") as file:
        file[key] = values
        file[key].attrs.update(attributes)
    return path


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"scale_factor": np.float32(0.01)}, lambda raw: raw * 0.01),
        ({"scale_factor": [0.01], "add_offset": [200.0]}, lambda raw: raw * 0.01 + 200),
        ({"add_offset": -5.0}, lambda raw: raw - 5.0),
        ({"scale_factor": 0.5, "_FillValue": np.int16([7])}, lambda raw: np.where(raw == 7, np.nan, raw * 0.5)),
        ({"_FillValue": np.int16(7)}, lambda raw: np.where(raw == 7, np.nan, raw)),
        ({"missing_value": np.int16([3])}, lambda raw: np.where(raw == 3, np.nan, raw)),
        (
            {"add_offset": 1.0, "_FillValue": 7, "missing_value": 3},
            lambda raw: np.where(np.isin(raw, (3, 7)), np.nan, raw + 1),
        ),
    ],
)
def test_packed_numbers_are_unpacked(tmp_path, attributes, expected):
    raw = np.random.default_rng(0).integers(0, 20, (3, 11, 12, 12)).astype(np.int16)
    data = open_hdf5(packed(tmp_path / "a.h5", SATELLITE, raw, **attributes), SATELLITE, 11)
    found = read_hdf5(data, slice(1, 3))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(raw[1:3].astype(float)), rtol=1e-6)


@pytest.mark.parametrize("digits", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_floats_that_were_not_measured_are_no_numbers(tmp_path, kind, digits):
    raw = np.random.default_rng(0).random((3, 11, 12, 12)).astype(kind)
    raw[0, 0, 0, :3] = -999.9, 9.969209968386869e36, -1
    missing = {"_FillValue": np.dtype(digits).type(-999.9), "missing_value": -1.0}
    path = packed(tmp_path / "a.h5", SATELLITE, raw, **missing)
    with h5py.File(path, "r+") as file:
        file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2,hdf5=1.14.2"
    data = open_hdf5(path, SATELLITE, 11)
    expected = raw.astype(np.float32)
    expected[0, 0, 0, :3] = np.nan
    np.testing.assert_array_equal(read_hdf5(data, slice(0, 3)), expected)


def with_filter(path, code):
    """A file whose chunks claim to be written by a filter that is not here."""
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((1, 11, 12, 12))
        plist.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (1, 2))
        space = h5py.h5s.create_simple((2, 11, 12, 12))
        h5py.h5d.create(file.id, SATELLITE.encode(), h5py.h5t.IEEE_F32LE, space, plist)
    return path


@pytest.mark.parametrize("code", [32001, 32004, 32015, 40000])
def test_a_filter_that_is_missing_is_named(tmp_path, monkeypatch, code):
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"filter {code} .*pip install hdf5plugin") as caught:
        open_hdf5(with_filter(tmp_path / "a.h5", code), SATELLITE, 11)
    assert "\n" not in str(caught.value) and "download" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Blosc", "Zstd", "LZ4", "Bitshuffle"])
def test_files_of_other_filters_are_read_where_their_package_is(tmp_path, name):
    hdf5plugin = pytest.importorskip("hdf5plugin", reason="no hdf5plugin: it has the compression filters of others")
    images = np.random.default_rng(0).random((2, 11, 12, 12), np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset(SATELLITE, data=images, chunks=(1, 11, 12, 12), **getattr(hdf5plugin, name)())
    code = f"""
import numpy as np, pathlib
from retable.tasks.weather.w4c.frames import open_hdf5, read_hdf5
data = open_hdf5(pathlib.Path({str(tmp_path / "a.h5")!r}), "REFL-BT", 11)
np.save({str(tmp_path / "a.npy")!r}, read_hdf5(data, slice(None)))
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # where nothing has loaded the package
    assert np.array_equal(np.load(tmp_path / "a.npy"), images)
