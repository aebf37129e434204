"""netCDF files read back with h5netcdf, with h5py alone, and with xarray where it is installed."""

from __future__ import annotations

from pathlib import Path

import h5netcdf
import h5py
import numpy as np
import pyproj
import pytest

from retable.tasks.weather.tools.forecasts.netcdf import export

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
        (None, None),
        ({"step": None}, None),
        ({"step": 21000.0}, 21),
        ({"row": 10, "column": 20, "step": 3000.0}, 3),
        ({**GRID, "projdef": "somewhere"}, 2),
        ({**GRID, "projdef": ""}, 2),
        ({**GRID, "projdef": PROJDEF.replace("units=m", "units=km")}, 2),
        ({**GRID, "projdef": "+proj=longlat +ellps=WGS84"}, 2),
    ],
)
def test_an_unknown_place_is_said_to_be_unknown(tmp_path: Path, grid, width: int | None) -> None:
    with h5netcdf.File(exported(tmp_path / "a.nc", grid=grid)) as file:
        assert "projection" not in file.variables and "grid_mapping" not in file["probability"].attrs
        assert file.attrs["georeference"].startswith("none:")
        for name, count in (("x", 14), ("y", 12)):
            assert file[name].attrs["units"] == ("km" if width else "1") and "standard_name" not in file[name].attrs
            assert sorted(file[name][...]) == [(width or 1) * (k + 0.5) for k in range(count)]
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


KNMI = "+proj=stere +lat_0=90 +lon_0=0 +lat_ts=60 +a=6378140 +b=6356750 +x_0=0 y_0=0"  # so in KNMI's files
BOM = "+proj=aea +lat_1=-18 +lat_2=-36 +lat_0=-33.264 +lon_0=150.874 +a=6378137.0 +rf=298.257222101 +units=m"
FMI = "+proj=stere +lon_0=25 +lat_0=90 +lat_ts=60 +a=6371288 +b=6371288 +units=m"
RMI = "+proj=lcc +lat_1=49.8333 +lat_2=51.1667 +lat_0=50.797815 +lon_0=4.359216 +x_0=649328 +y_0=665262 +ellps=GRS80"
CRR = "+proj=geos +a=6378137.000000 +b=6356752.300000 +lon_0=0.000000 +h=35785863.000000"
PLACES = {  # projection, upper left corner, CF's name, and a place on the earth that lies on the map
    "laea": (PROJDEF, (1_000_000.0, -2_000_000.0), "lambert_azimuthal_equal_area"),
    "knmi": (KNMI, (200_000.0, -3_900_000.0), "polar_stereographic"),
    "bom": (BOM, (-20_000.0, 30_000.0), "albers_conical_equal_area"),
    "fmi": (FMI, (-100_000.0, -3_000_000.0), "polar_stereographic"),
    "rmi": (RMI, (600_000.0, 700_000.0), "lambert_conformal_conic"),
    "utm": ("+proj=utm +zone=33 +ellps=WGS84 +units=m", (500_000.0, 5_500_000.0), "transverse_mercator"),
    "crr": (CRR, (300_000.0, 4_500_000.0), "geostationary"),
    "gnomonic": ("+proj=gnom +lat_0=50 +lon_0=10 +ellps=WGS84", (0.0, 0.0), "unknown"),
}


@pytest.mark.parametrize("name", PLACES)
def test_every_projection_places_the_forecast(tmp_path: Path, name: str) -> None:
    """Each pixel in three ways: from the corner, by the file's CF attributes, by its longitudes and latitudes."""
    xarray = pytest.importorskip("xarray")
    projdef, (left, top), wanted = PLACES[name]
    path = exported(tmp_path / "a.nc", grid={"projdef": projdef, "x0": left, "y0": top, "step": 2000.0})
    column, row = np.meshgrid(np.arange(14), np.arange(12))
    longitude, latitude = pyproj.Proj(projdef)(left + 2000 * (column + 0.5), top - 2000 * (row + 0.5), inverse=True)
    with xarray.open_dataset(path, decode_coords="all", engine="h5netcdf") as data:
        rain, mapping = data["probability"], data["projection"].attrs
        assert {"projection", "longitude", "latitude", "x", "y"} <= set(rain.coords)
        assert data.attrs["georeference"] == "projection"
        np.testing.assert_allclose(data["longitude"], longitude, atol=1e-7)
        np.testing.assert_allclose(data["latitude"], latitude, atol=1e-7)
        for axis, standard in (("longitude", "degrees_east"), ("latitude", "degrees_north")):
            assert data[axis].attrs["units"] == standard and data[axis].attrs["standard_name"] == axis
        assert mapping.get("grid_mapping_name", "unknown") == wanted
        x, y = data["x"].values, data["y"].values
        assert data["x"].attrs["units"] == data["y"].attrs["units"] == "m"
        attributes = (
            {key: value for key, value in mapping.items() if key != "crs_wkt"} if wanted != "unknown" else mapping
        )
        system = pyproj.CRS.from_cf(attributes)
        there = pyproj.Transformer.from_crs(system, system.geodetic_crs, always_xy=True).transform(*np.meshgrid(x, y))
        np.testing.assert_allclose(there[0], longitude, atol=1e-6)
        np.testing.assert_allclose(there[1], latitude, atol=1e-6)
        assert pyproj.CRS(mapping["crs_wkt"]).to_cf().get("grid_mapping_name", "unknown") == wanted
        values = rain.values
    np.testing.assert_allclose(values, steps() / 200, atol=1e-6)


def test_pixels_beyond_the_earths_edge_have_no_place(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    grid = {"projdef": CRR, "x0": 5_400_000.0, "y0": 10_000.0, "step": 3000.0}
    with xarray.open_dataset(exported(tmp_path / "a.nc", grid=grid), engine="h5netcdf") as data:
        longitude = data["longitude"].values
    assert np.isnan(longitude[:, -1]).all() and np.isfinite(longitude[:, 0]).all()


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


@pytest.mark.parametrize("name", PLACES)
def test_gdal_places_the_forecast(tmp_path: Path, name: str) -> None:
    """What QGIS reads with: its transform and its reference system."""
    rasterio = pytest.importorskip("rasterio", reason="no rasterio, which brings GDAL")
    projdef, (left, top), _ = PLACES[name]
    path = exported(tmp_path / "a.nc", grid={"projdef": projdef, "x0": left, "y0": top, "step": 2000.0})
    with rasterio.open(f"netcdf:{path}:probability") as found:
        x, y = found.xy(3, 5)
        system = pyproj.CRS(found.crs.to_wkt())
    there = pyproj.Transformer.from_crs(system, system.geodetic_crs, always_xy=True).transform(x, y)
    expected = pyproj.Proj(projdef)(left + 2000 * 5.5, top - 2000 * 3.5, inverse=True)
    assert there == pytest.approx(expected, abs=1e-6)
