"""Every product's definition against pysteps' importers, pixel by pixel; NWC-SAF and OPERA on real files."""

import gzip
import warnings
from datetime import datetime

import h5py
import numpy as np
import pytest

from retable.tasks.weather.tools.composites import published
from retable.tasks.weather.tools.composites.composites import describe
from retable.tasks.weather.tools.composites.grib import message
from retable.tasks.weather.tools.composites.resample import flatten
from retable.tasks.weather.w4c.preprocess import MISSING, UNDETECTED
from tests.weather.tools.composite_files import bom, fmi, knmi
from tests.weather.tools.test_grib import grib2, rates

TIME = datetime(2024, 6, 1, 12)
random = np.random.default_rng(3)


@pytest.fixture(scope="module")
def pysteps():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("pysteps", reason="no pysteps: pip install 'retable[pysteps]'")
        return pytest.importorskip("pysteps.io.importers")


def theirs(found):
    """Return pysteps' rain rate in mm/h, NaN where nothing was measured, and its metadata."""
    values, _, said = found
    values = np.ma.filled(np.ma.asarray(values, float), np.nan)
    if said["unit"] == "dBZ":
        values = (10 ** (values / 10) / said["zr_a"]) ** (1 / said["zr_b"])
    elif said["unit"] == "mm":
        values = values * 60 / said["accutime"]
    return values, said


def compared(path, found):
    """Compare all pixels of a file, before they are averaged, and the grid where pysteps gives one in metres."""
    expected, said = theirs(found)
    ours = published.read(path, slice(None), slice(None))
    unseen = np.isnan(expected)
    assert np.array_equal(ours == MISSING, unseen)
    np.testing.assert_allclose(
        np.where(ours == UNDETECTED, 0, ours)[~unseen], np.minimum(expected[~unseen], 128), rtol=1e-5, atol=2e-3
    )
    assert (ours > 0.2).sum() > 20 and unseen.any()
    return published.describe(path), said


@pytest.mark.parametrize("number", [0, 11, 23])
def test_opera(pysteps, shared, number):
    path = sorted((shared / "data/weather/opera_20180824").iterdir())[number]
    found, said = compared(path, pysteps.import_opera_hdf5(str(path)))
    assert found.grid.corner == pytest.approx((said["x1"], said["y2"]), abs=1)
    assert found.grid.pixel == said["xpixelsize"]


@pytest.mark.parametrize("number", [0, 20, 43])
def test_nwcsaf(pysteps, shared, number):
    path = sorted((shared / "data/weather/nwcsaf_crr_20180601").iterdir())[number]
    found, said = compared(path, pysteps.import_saf_crri(str(path)))
    assert found.grid.corner == pytest.approx((said["x1"], said["y2"]), abs=1)
    assert found.grid.pixel == pytest.approx(said["xpixelsize"])


@pytest.mark.parametrize("minutes", [5, 15])
def test_knmi(pysteps, tmp_path, minutes):
    raw = random.integers(0, 300, (40, 50)).astype(np.uint16)
    raw[:3, :4] = 65535
    path = knmi(tmp_path / "a.h5", raw, minutes=minutes, time=TIME)
    found, said = compared(path, pysteps.import_knmi_hdf5(str(path), qty="ACRR", accutime=minutes, pixelsize=1.0))
    assert said["unit"] == "mm" and found.minutes == minutes
    assert found.grid.corner == pytest.approx((1000 * said["x1"], 1000 * said["y2"]))


def test_knmis_reflectivity(pysteps, tmp_path):
    raw = random.integers(0, 160, (40, 50)).astype(np.uint8)
    raw[:3, :4], raw[3:6] = 255, 0
    path = knmi(tmp_path / "a.h5", raw, "REFLECTIVITY_[DBZ]", "GEO = 0.500000 * PV + -32.000000", time=TIME)
    with h5py.File(path, "r+") as file:
        limits = {"calibration_missing_data": np.int32([0]), "calibration_out_of_image": np.int32([255])}
        file["image1/calibration"].attrs.update(limits)
    _, said = compared(path, pysteps.import_knmi_hdf5(str(path), qty="DBZH", accutime=5, pixelsize=1.0))
    assert said["unit"] == "dBZ"


def test_bom(pysteps, tmp_path):
    raw = random.integers(0, 80, (40, 60)).astype(np.int16)
    raw[:3, :4] = -32768
    path = bom(tmp_path / "a.nc", raw, minutes=6, time=TIME)
    found, said = compared(path, pysteps.import_bom_rf3(str(path)))
    assert (said["accutime"], found.minutes) == (6, 6)
    assert found.grid.pixel == pytest.approx(said["xpixelsize"])


@pytest.mark.parametrize("suffix", [".pgm", ".pgm.gz"])
def test_fmi(pysteps, tmp_path, suffix):
    levels = random.integers(0, 160, (40, 60)).astype(np.uint8)
    levels[:3, :4] = 255
    path = fmi(tmp_path / f"a{suffix}", levels, time=TIME)
    found, said = compared(path, pysteps.import_fmi_pgm(str(path), gzipped=suffix.endswith("gz")))
    assert found.relation == (said["zr_a"], said["zr_b"])
    assert found.grid.pixel == said["xpixelsize"]


def test_mrms(pysteps, tmp_path):
    pytest.importorskip("pygrib", reason="no pygrib: pip install 'retable[grib]'")
    rate, path = rates(), tmp_path / "a.grib2"
    path.write_bytes(grib2(rate, TIME))
    values, said = theirs(pysteps.import_mrms_grib(str(path), window_size=1))
    assert said["unit"] == "mm/h"
    (tmp_path / "a.grib2.gz").write_bytes(gzip.compress(path.read_bytes()))
    expected = flatten(np.minimum(np.nan_to_num(values, nan=-1), 128), message(path).grid)
    for name in ("a.grib2", "a.grib2.gz"):
        np.testing.assert_allclose(describe(tmp_path / name).read(), expected, rtol=1e-5)
