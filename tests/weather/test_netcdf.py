"""netCDF files read back with h5netcdf, with h5py alone, and with xarray where it is installed."""

from __future__ import annotations

from pathlib import Path

import h5netcdf
import h5py
import numpy as np
import pytest

from retable.tasks.weather.forecasts.netcdf import equal_area, export

PROJDEF = "+proj=laea +lat_0=55.0 +lon_0=10.0 +x_0=1950000.0 +y_0=-2100000.0 +units=m +ellps=WGS84"
GRID = {"projdef": PROJDEF, "x0": 1_000_000.0, "y0": -2_000_000.0, "step": 2000.0}
TIMES = np.array(["2019-02-15T00:45", "2019-12-31T23:45", "2020-02-29T12:00"], "datetime64[m]")


def steps() -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 201, (3, 5, 12, 14), dtype=np.uint8)
    values[0, 0, 0, :5] = (0, 99, 100, 101, 200)
    return values


def exported(path: Path, **options) -> Path:
    options = {"times": TIMES, "region": "boxi_0015", "year": 2019, "attributes": {"title": "Rain"}, **options}
    export(path, steps(), **options)
    return path


def test_probabilities_come_back(tmp_path: Path) -> None:
    path = exported(tmp_path / "a.nc")
    assert [file.name for file in tmp_path.iterdir()] == ["a.nc"]
    with h5netcdf.File(path) as file:
        assert {name: len(size) for name, size in file.dimensions.items()} == {
            "sequence": 3,
            "lead_time": 5,
            "y": 12,
            "x": 14,
        }
        found = file["probability"]
        assert found.dimensions == ("sequence", "lead_time", "y", "x")
        values, attributes = found[...], dict(found.attrs)
    assert values.dtype == np.int8
    assert attributes["valid_range"].tolist() == [-100, 100] and values.min() >= -100 and values.max() <= 100
    assert attributes["_FillValue"] == -128 and attributes["units"] == "1"
    unpacked = values * attributes["scale_factor"] + attributes["add_offset"]
    np.testing.assert_allclose(unpacked, steps() / 200, atol=1e-6)
    np.testing.assert_array_equal(unpacked >= 0.5, steps() >= 100)
    assert unpacked[0, 0, 0, :5].tolist() == pytest.approx([0, 0.495, 0.5, 0.505, 1])


def test_times_are_minutes_since_1970(tmp_path: Path) -> None:
    with h5py.File(exported(tmp_path / "a.nc")) as file:
        start, lead, valid = (file[name] for name in ("forecast_reference_time", "lead_time", "time"))
        for each, name in ((start, "forecast_reference_time"), (lead, "forecast_period"), (valid, "time")):
            assert each.attrs["standard_name"] == name
        assert start.attrs["units"] == valid.attrs["units"] == "minutes since 1970-01-01 00:00:00"
        assert lead.attrs["units"] == "minutes"
        assert lead[()].tolist() == [15, 30, 45, 60, 75]
        seconds = [1550191500, 1577835900, 1582977600]  # of TIMES, by `date -u -d ... +%s`
        assert (60 * start[()].astype(np.int64)).tolist() == seconds
        np.testing.assert_array_equal(valid[()], start[()][:, None] + lead[()])


def test_a_known_place_is_georeferenced(tmp_path: Path) -> None:
    with h5netcdf.File(exported(tmp_path / "a.nc", grid=GRID)) as file:
        assert file["probability"].attrs["grid_mapping"] == "projection"
        mapping = dict(file["projection"].attrs)
        assert mapping["grid_mapping_name"] == "lambert_azimuthal_equal_area"
        assert mapping["longitude_of_projection_origin"] == 10 and mapping["latitude_of_projection_origin"] == 55
        assert mapping["false_easting"] == 1950000 and mapping["false_northing"] == -2100000
        assert mapping["semi_major_axis"] == 6378137 and 'EPSG",9820' in mapping["crs_wkt"]
        x, y = file["x"], file["y"]
        assert x.attrs["standard_name"] == "projection_x_coordinate" and x.attrs["units"] == "m"
        assert y.attrs["standard_name"] == "projection_y_coordinate" and y.attrs["axis"] == "Y"
        assert x[...].tolist() == [1_001_000 + 2000 * column for column in range(14)]
        assert y[...].tolist() == [-2_001_000 - 2000 * row for row in range(12)]
        assert file.attrs["georeference"] == "projection"


@pytest.mark.parametrize(
    ("grid", "width"),
    [
        (None, 2),
        ({"row": 10, "column": 20, "step": 3000.0}, 3),
        ({**GRID, "projdef": "+proj=geos +h=35785863 +ellps=WGS84"}, 2),
        ({**GRID, "projdef": PROJDEF.replace("units=m", "units=km")}, 2),
    ],
)
def test_an_unknown_place_is_said_to_be_unknown(tmp_path: Path, grid, width: int) -> None:
    with h5netcdf.File(exported(tmp_path / "a.nc", grid=grid)) as file:
        assert "projection" not in file.variables and "grid_mapping" not in file["probability"].attrs
        assert file.attrs["georeference"].startswith("none:")
        for name, count in (("x", 14), ("y", 12)):
            assert file[name].attrs["units"] == "km" and "standard_name" not in file[name].attrs
            assert sorted(file[name][...]) == [width * (k + 0.5) for k in range(count)]
        assert file["x"][0] < file["x"][1] and file["y"][0] > file["y"][1]  # row 0 lies in the north


def test_attributes_are_kept_and_cannot_contradict(tmp_path: Path) -> None:
    attributes = {"title": "Rain", "history": "made", "Conventions": "mine", "region": "other"}
    with h5netcdf.File(exported(tmp_path / "a.nc", attributes=attributes)) as file:
        found = dict(file.attrs)
    assert (found["title"], found["history"]) == ("Rain", "made")
    assert (found["Conventions"], found["region"], found["year"]) == ("CF-1.8", "boxi_0015", 2019)


def test_all_types_are_those_that_cf_1_8_knows(tmp_path: Path) -> None:
    known = {np.dtype(name) for name in ("i1", "i2", "i4", "f4", "f8")}
    with h5netcdf.File(exported(tmp_path / "a.nc", grid=GRID)) as file:
        for name, variable in file.variables.items():
            assert variable.dtype in known, name
        packed = file["probability"]
        assert packed.attrs["scale_factor"].dtype == packed.attrs["add_offset"].dtype == np.float32
        assert packed.attrs["valid_range"].dtype == packed.dtype


def test_only_equal_area_projections_in_metres_are_described() -> None:
    assert equal_area("+proj=laea +datum=WGS84") is not None
    other = equal_area(PROJDEF.replace("WGS84", "bessel"))
    assert other is not None and round(other["semi_major_axis"]) == 6377397
    assert equal_area(PROJDEF.replace("laea", "stere")) is None
    assert equal_area("") is None


def test_times_and_sequences_must_agree(tmp_path: Path) -> None:
    for wrong in (TIMES[:2], TIMES[:, None]):
        with pytest.raises(ValueError, match="times"):
            exported(tmp_path / "a.nc", times=wrong)
    assert not list(tmp_path.iterdir())


def test_a_broken_export_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        exported(tmp_path / "a.nc", attributes={"title": object()})
    assert not list(tmp_path.iterdir())


def test_xarray_decodes_it(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    with xarray.open_dataset(exported(tmp_path / "a.nc", grid=GRID), engine="h5netcdf") as found:
        np.testing.assert_allclose(found.probability, steps() / 200, atol=1e-6)
        np.testing.assert_array_equal(found.forecast_reference_time, TIMES)
        np.testing.assert_array_equal(found.time[:, 3], TIMES + np.timedelta64(60, "m"))
