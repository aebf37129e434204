import hashlib
import json

import h5py
import numpy as np
import pytest

from retable.platform.store.storage import Storage
from retable.tasks.weather.w4c.check import check
from retable.tasks.weather.w4c.convert import transfer
from retable.tasks.weather.w4c.prepare import index_folder
from tests.weather.files import Layout, frames, hdf5_path, write_hdf5

SERIES = "2019/boxi_0015/training"
TRAINING = 94


@pytest.fixture
def root(tmp_path):
    Layout().write(tmp_path)
    return tmp_path


def rewrite(root, change, kind="satellite", name=SERIES):
    """Write a series' file again, its array changed."""
    written = Layout().info()["series"][name][kind]
    array = frames(name, kind, written, 12)
    array = array if (changed := change(array)) is None else changed
    write_hdf5(root / hdf5_path(name, kind), kind, array)


def only(root, *parts):
    """There is one defect, in one line that says all of `parts`."""
    (line,) = check(root)
    assert "\n" not in line
    assert "retable data check" not in line
    for part in parts:
        assert part in line
    return line


def test_a_sound_layout_has_no_defects(root):
    assert check(root) == []
    index_folder(Storage.open(root), "mine", "own")
    assert check(root) == []
    assert check(Storage.open(root)) == []


def test_truncated_and_foreign_files(root):
    path = root / hdf5_path(SERIES, "satellite")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    only(root, str(path), "not a readable HDF5 file", "truncated")
    path.write_bytes(b"no such thing")
    only(root, str(path), "not a readable HDF5 file")
    path.write_bytes(b"")
    only(root, str(path), "not a readable HDF5 file")


def test_a_damaged_chunk(root):
    path = root / hdf5_path(SERIES, "rain")
    write_hdf5(path, "rain", frames(SERIES, "rain", TRAINING, 12), compression="gzip")
    with h5py.File(path) as file:
        info = file["rates.crop"].id.get_chunk_info(0)
    whole = bytearray(path.read_bytes())
    whole[info.byte_offset + 2 : info.byte_offset + info.size] = bytes(info.size - 2)
    path.write_bytes(whole)
    only(root, str(path), "not a readable HDF5 file")


def test_a_missing_year(root):
    for path in (root / "2020").rglob("*.h5"):
        path.unlink()
    only(root, f"{root}/2020: missing", "the CSV lists the year")
    (root / "2018").mkdir()
    (root / "2019/HRIT").rename(root / "2018/HRIT")
    (root / "2019/OPERA").rename(root / "2018/OPERA")
    found = check(root)
    assert any(f"{root}/2018: the CSV does not list this year" in line for line in found)


@pytest.mark.parametrize("written", ["parquet", "hdf5"])
def test_a_split_that_the_table_does_not_list(tmp_path, written):
    layout = Layout(regions=("boxi_0015",), years=(2019,))
    layout.write(root := tmp_path / "a")
    if written == "parquet":
        index_folder(Storage.open(root), "a", "own")
        transfer(Storage.open(root), Storage.open(root := tmp_path / "b"), "b")
        info = json.loads((root / "dataset.json").read_text())
        layout.rows = [row for row in layout.rows if row[2] != "training"]
    else:
        layout.rows = [(time, 0 if split == "training" else ok, split, kind) for time, ok, split, kind in layout.rows]
    layout.write_csv(table := root / "timestamps_and_splits.csv")
    if written == "parquet":
        info["files"][table.name] = hashlib.sha256(table.read_bytes()).hexdigest()
        (root / "dataset.json").write_text(json.dumps(info))
    only(root, f"{root}: the CSV lists no complete row of training in 2019")


@pytest.mark.parametrize("word", ["True", "TRUE", "true", "1.0"])
def test_rows_are_complete_in_any_spelling(root, word):
    path = root / "timestamps_and_splits.csv"
    lines = (line.split(",") for line in path.read_text().splitlines())
    rows = [",".join([*cells[:7], cells[7].replace("1", word), *cells[8:]]) for cells in lines]
    path.write_text("\n".join(rows) + "\n")
    assert check(root) == []


def test_a_missing_region_in_one_year(root):
    for kind in ("satellite", "rain"):
        (root / hdf5_path("2020/roxi_0004/validation", kind)).unlink()
    only(root, "2020/HRIT/roxi_0004.val.reflbt0.ns.h5: missing", "another year has it")


def test_missing_partners(root):
    rain, images = (root / hdf5_path(SERIES, kind) for kind in ("rain", "satellite"))
    rain.rename(root / "aside")
    only(root, f"{rain}: missing, though its satellite images are there")
    (root / "aside").rename(rain)
    images.unlink()
    assert [line for line in check(root) if f"{rain}: its satellite images are missing" in line]


def test_test_rain_may_be_absent(tmp_path):
    Layout(targets=False).write(tmp_path)
    assert check(tmp_path) == []


@pytest.mark.parametrize("channels", [9, 12])
def test_wrong_channel_count(root, channels):
    rewrite(root, lambda array: np.resize(array, (len(array), channels, 12, 12)))
    only(root, hdf5_path(SERIES, "satellite"), "REFL-BT", f"({TRAINING}, {channels}, 12, 12)")


def test_wrong_key_and_type(root):
    path = root / hdf5_path(SERIES, "rain")
    with h5py.File(path, "r+") as file:
        file.move("rates.crop", "rates")
    only(root, str(path), "key 'rates.crop' is missing")
    with h5py.File(path, "w") as file:
        file["rates.crop"] = np.full((TRAINING, 1, 12, 12), b"text")
    only(root, str(path), "no array of numbers")


def test_rows_that_disagree_with_the_table(root):
    rewrite(root, lambda array: array[:-3])
    only(root, hdf5_path(SERIES, "satellite"), "91 frames", "CSV lists 94", "3 missing")
    rewrite(root, lambda array: array)
    name = "2020/boxi_0015/test"
    rewrite(root, lambda array: np.concatenate([array, array[:1]]), "rain", name)
    only(root, hdf5_path(name, "rain"), "25 frames", "CSV lists 24", "1 too many")


def test_nan_floods_are_found_by_channel(root):
    def flood(array):
        array[:, 4, :7] = np.nan  # 7 of 12 rows
        array[:, 5, :5] = np.nan

    rewrite(root, flood)
    only(root, hdf5_path(SERIES, "satellite"), "IR_108", "more than half NaN in 16 of 16")

    def one_frame(array):
        array[-1] = np.nan

    rewrite(root, one_frame)
    assert len(check(root)) == 11 and all("in 1 of 16" in line for line in check(root))


def test_nan_floods_in_rain(root):
    rewrite(root, lambda array: np.full_like(array, np.nan), "rain")
    found = check(root)
    assert any("rain rate: more than half NaN" in line for line in found)
    rewrite(root, lambda array: np.full_like(array, -9999000), "rain")
    only(root, hdf5_path(SERIES, "rain"), "no sampled pixel has a measurement")


def test_values_out_of_range(root):
    def celsius(array):
        array[:, 4] -= 273.15

    rewrite(root, celsius)
    only(root, "IR_108: values from -7", "kelvin")

    def percent(array):
        array[:, 7] *= 100

    rewrite(root, percent)
    only(root, "VIS006: values from", "shares")
    rewrite(root, lambda array: None)

    def other_sentinel(array):
        array[array == -8888000] = -1

    rewrite(root, other_sentinel, "rain")
    only(root, "negative rain rates (-1)")
    rewrite(root, lambda array: np.where(array >= 0, array + 200, array), "rain")
    assert any("more than half above 128 mm/h" in line for line in check(root))


def test_zero_kelvin_and_infinity_are_usual_missing_values(root):
    def missing(array):
        array[::2, 4] = 0
        array[:, 5, :3] = np.inf

    rewrite(root, missing)
    assert check(root) == []


def test_sizes_that_differ(root):
    write_hdf5(root / hdf5_path(SERIES, "rain"), "rain", np.ones((TRAINING, 1, 24, 24), np.float32))
    only(root, "several sizes", "24 wide", "12 wide")


def test_files_that_do_not_belong_there(root):
    (root / "2019/HRIT/notes.txt").write_text("hello")
    only(root, "2019/HRIT/notes.txt: no file of the competition's layout")


def test_gaps_in_the_table(tmp_path):
    written = Layout(years=(2019,))
    at = next(i for i, row in enumerate(written.rows) if row[3] == "validation_target") + 2
    written.rows[at] = (written.rows[at][0], 0, "-", "-")
    written.write(tmp_path)
    (line,) = check(tmp_path)
    assert "in 2019 11 rows of validation belong to no whole sequence of 4 + 8" in line


def test_missing_and_broken_tables(root):
    path = root / "timestamps_and_splits.csv"
    path.write_text("a,b\n1,2\n")
    only(root, "not the competition's table")
    path.unlink()
    only(root, "is missing")


def test_an_index_that_is_out_of_date(root):
    index_folder(Storage.open(root), "mine", "own")

    def change(array):
        array[0] = 7

    rewrite(root, change, "rain")
    found = check(root)
    # The type and size are as before, yet it is another file.
    assert len(found) == 1 and hdf5_path(SERIES, "rain") in found[0] and "remove dataset.json" in found[0]
    known = json.loads((root / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps(known | {"source": "imported"}))
    only(root, "put it back, or remove the folder and import the data set again")
    (root / "dataset.json").write_text("[1]")
    only(root, "dataset.json: not a data set's")
    (root / "dataset.json").write_text("{")
    only(root, "dataset.json: not a JSON file")


@pytest.fixture
def converted(tmp_path):
    Layout(regions=("boxi_0015",), years=(2019,)).write(tmp_path / "a")
    index_folder(Storage.open(tmp_path / "a"), "a", "own")
    transfer(Storage.open(tmp_path / "a"), Storage.open(tmp_path / "b"), "b")
    return tmp_path / "b"


def test_converted_sets_are_checked(converted):
    assert check(converted) == []
    path = converted / "data/2019.boxi_0015.training.rain-00000.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    only(converted, str(path), "checksum")
    path.unlink()
    only(converted, f"{path}: missing")
    path.write_bytes(whole)
    assert check(converted) == []
    table = converted / "timestamps_and_splits.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:-1]) + "\n")  # a buffer's row, which no file has
    only(converted, str(table), "checksum")


def test_converted_values_are_checked(tmp_path):
    Layout(regions=("boxi_0015",), years=(2019,)).write(tmp_path / "a")
    info = index_folder(Storage.open(tmp_path / "a"), "a", "own")
    rewrite(tmp_path / "a", lambda array: np.full_like(array, np.nan))
    transfer(Storage.open(tmp_path / "a"), Storage.open(tmp_path / "b"), "b")
    found = check(tmp_path / "b")
    assert len(found) == 11 and all(f"{SERIES} satellite" in line and "NaN" in line for line in found)
    assert info["format"] == "hdf5"


@pytest.mark.parametrize("value", [0, 273.15])
@pytest.mark.parametrize(("channels", "said"), [(range(11), "images"), ([4], "IR_108"), ([4, 5], "IR_108, IR_120")])
def test_images_of_one_value(root, value, channels, said):
    def change(array):
        rows = slice(5, 90) if len(channels) == 11 else slice(None)
        array[rows, list(channels)] = value if len(channels) < 11 else 0

    rewrite(root, change)
    only(root, hdf5_path(SERIES, "satellite"), f"{said}: one value everywhere", "sampled frames")


def test_night_and_dry_hours_are_no_defect(root):
    def night(array):
        array[:, [0, 7, 8]] = 0

    rewrite(root, night)
    rewrite(root, lambda array: np.zeros_like(array), kind="rain")
    assert check(root) == []


def test_a_missing_filter_is_the_defect(root, monkeypatch):
    from retable.tasks.weather.w4c import frames as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    path = root / hdf5_path(SERIES, "satellite")
    shape = (TRAINING, 11, 12, 12)
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((1, 11, 12, 12))
        plist.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (2, 2, 4, 6336))
        h5py.h5d.create(file.id, b"REFL-BT", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple(shape), plist)
    only(root, str(path), "filter 32001", "pip install hdf5plugin")
