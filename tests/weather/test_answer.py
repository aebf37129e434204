"""`retable predict weather`: the example that comes with the task, and regions that the forecaster never saw."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import h5netcdf
import h5py
import numpy as np
import pytest

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.models import zoo
from retable.tasks.weather import answer
from retable.tasks.weather.export import Exported, read_export
from retable.tasks.weather.model import build
from tests.weather.toys import config

EXAMPLE = Path(answer.__file__).parent / "zoo" / "example" / "generated-36.npz"


@pytest.fixture(scope="module")
def model():
    (file,) = zoo.zoo("weather").values()
    return read_export(file.read_bytes(), file.name)


def answered(model, source, **options):
    return np.load(io.BytesIO(answer.answering(model, answer.Options(**options))(source)))["probability"]


def test_the_example_is_answered_as_it_comes(model):
    images = np.load(EXAMPLE)["images"]
    found = answered(model, EXAMPLE)
    assert np.array_equal(found, model.steps(images[None], "roxi_0004")) and found.shape == (1, 32, 36, 36)
    data = answer.answering(model, answer.Options(format="netcdf"))(EXAMPLE)
    with h5netcdf.File(io.BytesIO(data)) as file:
        assert file.attrs["region"] == "roxi_0004"


def test_netcdf_says_what_the_data_of_the_training_do_not_show(model):
    for about, comment in (({"data_caution": "Not real."}, "Not real."), ({"pixel": 14_000.0}, None)):
        data = answer.answering(replace(model, about=about), answer.Options(format="netcdf"))(EXAMPLE)
        with h5netcdf.File(io.BytesIO(data)) as file:
            assert file.attrs.get("comment") == comment
            assert file["x"][0] == (0.5 if comment else 7) and file["x"].attrs["units"] == ("1" if comment else "km")


@pytest.mark.parametrize("split", ["train", "val"])
def test_files_that_hold_more_than_inputs_are_refused(model, tmp_path, split):
    with h5py.File(path := tmp_path / f"boxi_0034.{split}.reflbt0.ns.h5", "w") as file:
        file["REFL-BT"] = np.load(EXAMPLE)["images"]
    with pytest.raises(UserError, match=r"other frames beside the inputs; give the .test. or .heldout. file$"):
        answered(model, path)


@pytest.mark.parametrize("shape", [(4, 11, 0, 0), (4, 11, 36, 24), (0, 11, 36, 36), (4, 9, 36, 36), (36, 36), ()])
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_other_shapes_are_refused_before_they_are_read(model, tmp_path, monkeypatch, shape, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        np.savez(path, images=np.zeros(shape))
        monkeypatch.delattr(np.lib.npyio.NpzFile, "__getitem__") if shape[1:] != (11, 36, 36) else None
    else:
        with h5py.File(path, "w") as file:
            file["REFL-BT"] = np.zeros(shape)
        monkeypatch.delattr(answer, "read_hdf5") if shape[1:] != (11, 36, 36) else None
    with pytest.raises(UserError, match=r"(a\.(npz|h5): |^satellite).*\bshape \("):
        answered(model, path)


def test_a_region_that_no_file_can_name_is_refused(model, tmp_path):
    np.savez(tmp_path / "a.npz", images=np.load(EXAMPLE)["images"], region="a\0b")
    with pytest.raises(UserError, match="is no name; --set region= gives one"):
        answered(model, tmp_path / "a.npz", format="netcdf")


@pytest.mark.parametrize(
    "name",
    ["north_sea.npz", "north_sea-1.NPZ", "north_sea_20190301.npz", "north_2019.npz", "northern.npz", "north_dam.npz"],
)
def test_the_region_is_the_longest_name_that_a_files_name_begins_with(tmp_path, name):
    chosen = override(config(), {"model": "climatology", "regions": ["north", "north_sea"]})
    climatology = Exported({}, chosen, 12, build(chosen, 12, chosen.regions).eval())
    with (tmp_path / name).open("wb") as file:
        np.savez(file, images=np.zeros((4, 11, 12, 12), np.float32))
    ask = answer.answering(climatology, answer.Options(format="netcdf"))
    if name in ("northern.npz", "north_dam.npz"):
        with pytest.raises(UserError, match="has seen"):
            ask(tmp_path / name)
        return
    with h5netcdf.File(io.BytesIO(ask(tmp_path / name))) as file:
        assert file.attrs["region"] == ("north_sea" if "sea" in name else "north")


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_numbers_beyond_float32_are_missing_ones(model, tmp_path, suffix):
    images = np.load(EXAMPLE)["images"].astype(np.float64)
    images[:, 2, :5, :5] = np.nan
    expected = model.steps(images[None].astype(np.float32), "roxi_0004")
    images[:, 2, :5, :5] = 1e300
    if suffix == ".npz":
        np.savez(tmp_path / "a.npz", images=images)
    else:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["REFL-BT"] = images
    assert np.array_equal(answered(model, tmp_path / f"a{suffix}"), expected)


@pytest.mark.parametrize("about", ["no array of the name", "text", "an array beside a zip", "another version"])
def test_an_npz_without_numbers_is_one_line(model, tmp_path, about):
    path = tmp_path / "a.npz"
    if about == "no array of the name":
        np.savez(path, others=np.zeros((4, 11, 36, 36)))
    elif about == "text":
        np.savez(path, images=np.full((4, 11, 36, 36), "x"))
    elif about == "an array beside a zip":
        with zipfile.ZipFile(path, "w") as folder:
            folder.writestr("images", b"no array")
    else:
        with zipfile.ZipFile(path, "w") as folder, folder.open("images.npy", "w") as file:
            np.lib.format.write_array(file, np.zeros((4, 11, 36, 36)), version=(2, 0))
        assert answered(model, path).shape == (1, 32, 36, 36)
        return
    with pytest.raises(UserError, match=r"holds <U1; wanted are numbers|no npz file that holds an array") as caught:
        answered(model, path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["boxi_0034.test.reflbt0.ns.h5", "roxi_0008.h5", "afternoon.h5", "afternoon.npz"])
def test_regions_that_it_never_saw_are_answered(model, tmp_path, name):
    images = np.load(EXAMPLE)["images"]
    if name.endswith(".npz"):
        np.savez(tmp_path / name, images=images)
    else:
        with h5py.File(tmp_path / name, "w") as file:
            file["REFL-BT"] = images
    expected = model.steps(images[None], "roxi_0004")
    assert np.array_equal(answered(model, tmp_path / name), expected)
    assert np.array_equal(answered(model, tmp_path / name, region="roxi_0010"), expected)
    data = answer.answering(model, answer.Options(format="netcdf"))(tmp_path / name)
    with h5netcdf.File(io.BytesIO(data)) as file:
        assert file.attrs["region"] == {"b": "boxi_0034", "r": "roxi_0008", "a": "not named"}[name[0]]


def test_a_climatology_knows_its_regions_alone(tmp_path):
    chosen = override(config(), {"model": "climatology", "forecast": 8})
    climatology = Exported({}, chosen, 12, build(chosen, 12, chosen.regions).eval())
    for name, region in (("afternoon.npz", None), ("boxi_0034.npz", None), ("other.npz", np.array("roxi_0009"))):
        said = {} if region is None else {"region": region}
        np.savez(tmp_path / name, images=np.zeros((4, 11, 12, 12), np.float32), **said)
        with pytest.raises(UserError, match="climatology knows the regions that it has seen") as caught:
            answered(climatology, tmp_path / name)
        assert "\n" not in str(caught.value) and "--set region=" in str(caught.value)
    with pytest.raises(UserError, match="did you mean 'roxi_0004'"):
        answered(climatology, tmp_path / "other.npz", region="roxi_0005")
    assert answered(climatology, tmp_path / "other.npz", region="roxi_0004").shape == (1, 8, 12, 12)
    np.savez(tmp_path / "roxi_00041.test.npz", images=np.zeros((4, 11, 12, 12), np.float32))
    with pytest.raises(UserError, match="has seen"):  # another region, whose name begins alike
        answered(climatology, tmp_path / "roxi_00041.test.npz")
