import importlib
import json
import re
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import fsspec
import h5py
import numpy as np
import pytest
from pyarrow import fs

from retable.platform.errors import UserError
from retable.platform.spec.task import Source, data_folder
from retable.platform.store.storage import Storage
from retable.tasks.weather.config import PRESETS, Config
from retable.tasks.weather.w4c.frames import Frames
from retable.tasks.weather.w4c.layout import VERSION, Index, read_csv
from retable.tasks.weather.w4c.prepare import (
    GENERATED,
    Preset,
    caution,
    check_simulation,
    describe,
    index_folder,
    lengths,
    pixel_width,
    prepare,
)
from tests.weather.files import Layout, frames, hdf5_path, write_hdf5

prepare_module = importlib.import_module("retable.tasks.weather.w4c.prepare")  # the task exports a function so named

VERSIONS = ((VERSION, True), (VERSION - 1, False), (None, False), ("?", False))


@pytest.fixture
def small(monkeypatch):
    preset = Preset(regions=("boxi_0015",), years=(2019,), training=36, validation=1, tests=1)
    monkeypatch.setitem(GENERATED, "24", preset)
    monkeypatch.setitem(GENERATED, "12", preset)


def bucket():
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    memory.store.clear()
    return Storage(fs.PyFileSystem(fs.FSSpecHandler(memory)), "/bucket")


def index(tmp_path, written=None, name="mine", source="own", **extra):
    written = written or Layout()
    written.write(tmp_path)
    return written, index_folder(Storage.open(tmp_path), name, source, **extra)


def test_index_says_what_was_written(tmp_path):
    written, info = index(tmp_path, seed=3, size=99)
    expected = written.info(holdout="official")
    for key in ("format", "size", "regions", "years", "inputs", "forecast", "holdout", "series"):
        assert info[key] == expected[key]
    assert info["seed"] == 3 and info["name"] == "mine" and info["source"] == "own"
    pixels = sum((11 * rows["satellite"] + rows["rain"]) * 144 for rows in expected["series"].values())
    assert info["bytes"] == 4 * pixels
    assert json.loads((tmp_path / "dataset.json").read_text()) == info
    assert info["simulated_satellite"] is False and info["real"] is True


def test_rain_shares_are_those_of_a_plain_count(tmp_path):
    written, info = index(tmp_path)
    assert set(info["rain"]) == {f"{year}/{region}/training" for year in written.years for region in written.regions}
    for name, share in info["rain"].items():
        rates = frames(name, "rain", info["series"][name]["rain"], 12)
        measured = [rate for rate in rates.ravel().tolist() if rate != -9999000]
        assert share == pytest.approx(sum(np.float32(rate) >= np.float32(0.2) for rate in measured) / len(measured))


def test_rain_shares_of_long_series_come_from_spread_frames(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "RAIN_FRAMES", 10)
    path = tmp_path / "rain.h5"
    rates = np.zeros((95, 1, 12, 12), np.float32)
    rates[::10] = 1  # 10 of 95 frames: every tenth
    write_hdf5(path, "rain", rates)
    with h5py.File(path) as file:
        assert prepare_module.rain_share(file["rates.crop"], np.ones(95, bool)) == (1, 95 * 144)
        assert prepare_module.rain_share(file["rates.crop"], np.arange(95) % 10 > 0)[0] == 0
    write_hdf5(path, "rain", np.full((95, 1, 12, 12), -9999000, np.float32))
    with h5py.File(path) as file:
        assert prepare_module.rain_share(file["rates.crop"], np.ones(95, bool)) == (0, 0)


def test_digest_is_of_the_content(tmp_path):
    _, info = index(tmp_path / "a")
    assert index(tmp_path / "b", name="other")[1]["digest"] == info["digest"]
    name = "2020/boxi_0015/validation"
    path = tmp_path / "b" / hdf5_path(name, "rain")
    with h5py.File(path, "r+") as file:
        last = file["rates.crop"][-1]
        last[0, 0, 0] += 1
        file["rates.crop"][-1] = last
    again = index_folder(Storage.open(tmp_path / "b"), "other", "own")
    assert again["digest"] != info["digest"]
    changed = {path for path, digest in again["files"].items() if info["files"][path] != digest}
    assert changed == {hdf5_path(name, "rain")}
    table = tmp_path / "b" / "timestamps_and_splits.csv"
    table.write_text(table.read_text() + "000000,20191231,2019-12-31,1,1,1,0,0,-,-\n")
    assert index_folder(Storage.open(tmp_path / "b"), "other", "own")["digest"] != again["digest"]


def test_without_test_targets_holdouts_are_local(tmp_path):
    written, info = index(tmp_path, Layout(targets=False, runs=(60,), sequences=1))
    assert info["holdout"] == "local"
    assert info["series"]["2019/boxi_0015/test"] == {"satellite": 4, "rain": None}
    assert list(Index.read(Storage.open(tmp_path), info).sequences("heldout", written.regions, (2019,), 4, 8)) == [
        "heldout/2019/boxi_0015",
        "heldout/2019/roxi_0004",
    ]


def test_regions_of_one_split_and_images_without_rain_are_indexed(tmp_path):
    written = Layout(years=(2019,))
    written.write(tmp_path)
    for name in ("2019/boxi_0015/validation", "2019/boxi_0015/test", "2019/boxi_0015/heldout"):
        for kind in ("satellite", "rain"):
            (tmp_path / hdf5_path(name, kind)).unlink()
    (tmp_path / hdf5_path("2019/roxi_0004/training", "rain")).unlink()
    info = index_folder(Storage.open(tmp_path), "mine", "own")
    assert [name for name in info["series"] if "boxi_0015" in name] == ["2019/boxi_0015/training"]
    assert info["series"]["2019/roxi_0004/training"]["rain"] is None
    assert list(info["rain"]) == ["2019/boxi_0015/training"]


@pytest.mark.parametrize(("inputs", "forecast"), [(4, 32), (2, 3)])
def test_lengths_are_those_of_the_sequences(tmp_path, inputs, forecast):
    written = Layout(inputs=inputs, forecast=forecast, sequences=4)
    at = next(i for i, row in enumerate(written.rows) if row[3] == "validation_target")
    written.rows[at] = (written.rows[at][0], 0, "-", "-")
    written.write_csv(tmp_path / "timestamps_and_splits.csv")
    slots = read_csv(Storage.open(tmp_path))
    assert lengths(slots) == (inputs, forecast)
    assert lengths({key: value for key, value in slots.items() if key[1] == "training"}) == (4, 32)


@pytest.mark.parametrize(
    ("said", "width"),
    [
        ({"source": "w4c22", "size": 252}, 2000),
        ({"source": "generated", "size": 24}, 21_000),
        ({"source": "own", "size": 36, "simulated_as": "generated"}, 14_000),
        ({"source": "imported", "size": 36, "pixel": 1000.0}, 1000),
        ({"source": "imported", "size": 36, "pixel": None}, None),
        ({"source": "own", "size": 252}, None),
    ],
)
def test_pixels_are_as_wide_as_a_data_set_says(said, width):
    assert pixel_width(said) == width


def test_other_data_cannot_pass_for_the_competitions(tmp_path):
    written = Layout(regions=("boxi_0015",), years=(2019,))
    with pytest.raises(UserError, match="12 pixels wide, not 252"):
        index(tmp_path, written, "w4c22", "w4c22")
    tiny = replace(written, size=252, runs=(1,), sequences=1, inputs=1, forecast=1, missing=0, rows=[])
    tiny.write(tmp_path / "252")
    assert index_folder(Storage.open(tmp_path / "252"), "w4c22", "w4c22")["source"] == "w4c22"
    for mark in ("generated", "simulated"):
        with h5py.File(tmp_path / "252" / hdf5_path("2019/boxi_0015/test", "satellite"), "r+") as file:
            file.attrs.clear()
            file.attrs[mark] = True
        with pytest.raises(UserError, match="images are simulated"):
            index_folder(Storage.open(tmp_path / "252"), "w4c22", "w4c22")
    assert index_folder(Storage.open(tmp_path / "252"), "mine", "own")["simulated_satellite"] is True


@pytest.mark.parametrize(
    ("mark", "words", "version", "right"),
    [
        *(("generated", "generated: an image", *each) for each in VERSIONS),
        ("simulated", "rain is real", *VERSIONS[0]),
        *(pytest.param("simulated", "rain is real", *each, marks=pytest.mark.slow) for each in VERSIONS[1:]),
    ],
)
def test_simulated_files_in_a_folder_of_another_name_are_known_by_their_marks(tmp_path, mark, words, version, right):
    Layout().write(tmp_path)
    for number, path in enumerate(sorted(tmp_path.rglob("*.h5"))):
        with h5py.File(path, "r+") as file:
            file.attrs[mark] = True
            file.attrs["generator_version"] = VERSION if number or version is None else version
            if version is None and number == 0:
                del file.attrs["generator_version"]
    info = index_folder(Storage.open(tmp_path), "mine", "own")
    assert words in caution(info) and words in info["caution"]
    with nullcontext() if right else pytest.raises(UserError, match="older version and show later rain"):
        check_simulation(Source(Storage.open(tmp_path), info))


def test_sizes_must_agree(tmp_path):
    index(tmp_path)
    write_hdf5(tmp_path / hdf5_path("2019/boxi_0015/test", "rain"), "rain", np.zeros((24, 1, 24, 24), np.float32))
    with pytest.raises(UserError, match="24 pixels wide"):
        index_folder(Storage.open(tmp_path), "mine", "own")


def test_generated_data_are_made_and_marked_and_old_files_do_not_mix_with_them(tmp_path, small):
    Layout(regions=("roxi_0004",), years=(2020,), sequences=1).write(tmp_path / "data/weather/generated-12")
    prepare(Config(data="generated-12"), storage := Storage.open(tmp_path))
    place = storage / "data/weather/generated-12"
    info = place.read_json("dataset.json")
    assert (info["regions"], info["years"]) == (["boxi_0015"], [2019])
    assert (info["source"], info["name"], info["size"], info["seed"]) == ("generated", "generated-12", 12, 0)
    assert info["simulated_satellite"] is True and info["real"] is False and info["holdout"] == "official"
    assert (info["inputs"], info["forecast"]) == (4, 32)
    assert info["series"]["2019/boxi_0015/training"] == {"satellite": 36, "rain": 36}
    sequences = Index.read(place, info).sequences("test", ("boxi_0015",), (2019,), 4, 32)
    (window,) = sequences["test/2019/boxi_0015"]
    assert Frames(place, info).satellite(window.series, window.satellite, window.satellite + 4).shape == (4, 11, 12, 12)
    assert (
        describe(info)
        == "generated rain that follows generated clouds, images of these, 12 x 12, 1 region, 1 year (seed 0)"
    )


def test_generated_data_go_to_a_bucket_as_parquet(small):
    storage = bucket()
    prepare(Config(data="generated-12"), storage)
    there = storage / "data/weather/generated-12"
    info = there.read_json("dataset.json")
    assert info["format"] == "parquet" and info["name"] == "generated-12" and info["source"] == "generated"
    assert info["series"]["2019/boxi_0015/test"] == {"satellite": 4, "rain": 36}
    (window,) = Index.read(there, info).sequences("test", ("boxi_0015",), (2019,), 4, 32)["test/2019/boxi_0015"]
    assert Frames(there, info).rate(window.series, window.rain, window.rain + 36).shape == (36, 12, 12)


@pytest.mark.parametrize("done", [True, False])
def test_a_generated_set_is_replaced_and_own_files_are_not(tmp_path, small, monkeypatch, done):
    made, own = (Storage.open(tmp_path / name) for name in ("made", "own"))
    own.write("truth/gauges.csv", "")
    own.write("2018/rain.csv", "")
    with pytest.raises(UserError, match="own holds other data; choose another --name"):
        prepare_module.make_generated(own, "own", "12")
    assert own.exists("2018/rain.csv") and own.exists("truth/gauges.csv")
    with monkeypatch.context() as patched, nullcontext() if done else pytest.raises(KeyboardInterrupt):
        if not done:
            patched.setattr("retable.tasks.weather.w4c.generate.write_csv", Mock(side_effect=KeyboardInterrupt))
        prepare_module.make_generated(made, "made", "12")
    made.write("2018/old", "")
    assert prepare_module.make_generated(made, "made", "12", seed=1)["seed"] == 1 and not made.exists("2018/old")


def test_files_that_lie_there_are_indexed(tmp_path):
    storage = Storage.open(tmp_path)
    Layout().write(tmp_path / "data/weather/mine")
    prepare(Config(data="mine"), storage)
    assert (storage / "data/weather/mine").read_json("dataset.json")["source"] == "own"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("w4c22", "timestamps_and_splits.csv, 2019/HRIT/boxi_0015.train.reflbt0.ns.h5.*generated-36"),
        ("generated-48", "generated-24, .*generated-36"),
        ("generated-x", "generated-24, .*generated-36"),
        ("../w4c22", "cannot name a data set"),
    ],
)
def test_missing_data_are_asked_for(tmp_path, data, message):
    with pytest.raises(UserError, match=message) as error:
        prepare(Config(data=data), Storage.open(tmp_path))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_missing_data_in_a_bucket_are_asked_for():
    with pytest.raises(UserError, match="convert them on a local --storage"):
        prepare(Config(data="w4c22"), bucket())


def test_files_without_images_are_refused(tmp_path):
    Layout().write_csv(tmp_path / "timestamps_and_splits.csv")
    with pytest.raises(UserError, match="no satellite images"):
        index_folder(Storage.open(tmp_path), "mine", "own")


def test_presets_fit_the_published_regions_and_sizes():
    assert tuple(GENERATED) == PRESETS and {"24", "36", "60", "252"} <= set(GENERATED)
    for key, preset in GENERATED.items():
        assert int(key.partition("-")[0]) % 12 == 0 and set(preset.years) <= {2019, 2020}
        assert preset.training >= 36 and preset.validation >= 1 and preset.tests >= 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"source": "generated", "size": 36, "regions": "abc", "years": [1, 2], "seed": 5},
            "generated rain that follows generated clouds, images of these, 36 x 36, 3 regions, 2 years (seed 5)",
        ),
        (
            {"source": "imported", "product": "OPERA composites", "date": "2018-08-24", "simulated_satellite": True},
            "OPERA composites of 2018-08-24 with satellite images simulated from past rain, split by place",
        ),
        (
            {"source": "w4c22", "holdout": "local", "simulated_satellite": False},
            "Weather4cast 2022; test and heldout are local hold-outs, as the organisers keep the targets",
        ),
        ({"source": "own", "holdout": "official"}, "own files, 252 x 252, 2 regions, 1 year"),
        (
            {"source": "own", "holdout": "official", "simulated_satellite": True},
            "own files, simulated satellite images, 252 x 252, 2 regions, 1 year",
        ),
    ],
)
def test_reports_say_where_data_come_from(said, expected):
    general = {"size": 252, "regions": ["a", "b"], "years": [2019], "simulated_satellite": False}
    assert describe({**general, **said}) == expected


def test_names_of_data_sets_stay_in_their_folder(tmp_path):
    storage = Storage.open(tmp_path)
    assert data_folder(storage, "weather", "w4c22").root == f"{tmp_path}/data/weather/w4c22"
    for name in ("", "a/b", "..", ".hidden"):
        with pytest.raises(UserError, match=re.escape(name) if name else "name"):
            data_folder(storage, "weather", name)
