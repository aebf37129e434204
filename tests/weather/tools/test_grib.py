"""MRMS's GRIB2, written byte by byte from the format's definition and packed as PNG by the library."""

import gzip
import math
import struct
import sys
from datetime import datetime, timedelta

import numpy as np
import pyproj
import pytest

from retable.platform.errors import UserError
from retable.tasks.weather import cli
from retable.tasks.weather.tools.composites.composites import describe
from retable.tasks.weather.tools.composites.resample import EqualAngles, cells, flatten, plane
from retable.tasks.weather.w4c.preprocess import MISSING

TIME = datetime(2024, 6, 1, 12, 2)
NORTH, WEST, STEP = 40.995, 259.005, 0.01
PRECIP_RATE = (209, 6, 1)


def grib2(values, time=TIME, parameter=PRECIP_RATE, scan=0, step=STEP):
    """A message in simple packing: sections 1 and 3 to 7 of WMO's FM 92 GRIB, edition 2."""
    (height, width), (discipline, category, number) = values.shape, parameter
    low = float(np.float32(10 * values.min()))
    packed = np.round(10 * values - low).astype(">u2").tobytes()
    angles = [NORTH, WEST, NORTH - step * (height - 1), WEST + step * (width - 1), step, step]
    first, second, third, fourth, down, across = (round(1e6 * angle) for angle in angles)
    moment = struct.pack(">H5B", time.year, time.month, time.day, time.hour, time.minute, time.second)
    grid = struct.pack(
        ">B15x4I2IB4IB", 6, width, height, 0, 2**32 - 1, first, second, 48, third, fourth, down, across, scan
    )
    sections = {
        1: struct.pack(">HHBBB", 161, 0, 2, 1, 0) + moment + b"\0\7",
        3: struct.pack(">BIBBH", 0, height * width, 0, 0, 0) + grid,
        4: struct.pack(">HHBBBBBHBBIBBIBBI", 0, 0, category, number, 0, 0, 97, 0, 0, 0, 0, 102, 0, 0, 255, 0, 0),
        5: struct.pack(">IHfHHBB", height * width, 0, low, 0, 1, 16, 0),
        6: b"\xff",
        7: packed,
    }
    body = b"".join(struct.pack(">IB", len(data) + 5, name) + data for name, data in sections.items()) + b"7777"
    return b"GRIB" + struct.pack(">HBBQ", 0, discipline, 2, 16 + len(body)) + body


def rates(height=120, width=160, seed=0):
    random = np.random.default_rng(seed)
    rate = np.round(random.gamma(0.5, 2.0, (height, width)), 1)
    rate[random.random(rate.shape) < 0.3] = 0
    rate[:30, :40], rate[-3:, -50:] = -3, -1
    return rate


@pytest.fixture
def pygrib():
    return pytest.importorskip("pygrib", reason="no pygrib: pip install 'retable[grib]'")


def png(pygrib, rate, time=TIME):
    """The message as the library itself writes it, packed as MRMS packs."""
    message = pygrib.fromstring(grib2(rate, time))
    message["packingType"], message["bitsPerValue"], message["decimalScaleFactor"] = "grid_png", 16, 1
    message["values"] = rate
    return message.tostring()


def by_loop(rate):
    """Mean of the pixels whose centres each pixel of the plane holds, one by one."""
    flat = plane(EqualAngles(rate.shape, NORTH, WEST, STEP, STEP))
    project, held = pyproj.Proj(flat.projdef), {}
    for row, column in np.ndindex(rate.shape):
        x, y = project(WEST + STEP * column, NORTH - STEP * row)
        place = math.floor((flat.corner[1] - y) / 2000), math.floor((x - flat.corner[0]) / 2000)
        held.setdefault(place, []).append(rate[row, column])
    found = np.full(flat.shape, MISSING)
    for place, values in held.items():
        measured = [value for value in values if value >= 0]
        if 2 * len(measured) >= len(values):
            found[place] = sum(measured) / len(measured)
    return flat, found


def test_pixels_are_means_of_those_whose_centres_they_hold():
    rate = rates()
    flat, expected = by_loop(rate)
    found = flatten(rate, EqualAngles(rate.shape, NORTH, WEST, STEP, STEP))
    assert found.dtype == np.float32 and found.shape == flat.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (found[3:12, 4:12] == MISSING).all() and (found >= 0).mean() > 0.7
    held = np.bincount(cells(EqualAngles(rate.shape, NORTH, WEST, STEP, STEP)), minlength=found.size)
    assert held.reshape(found.shape)[4:-4, 4:-4].min() >= 2, "no holes inside"


def test_hail_is_cut_off_before_the_mean_is_taken():
    rate = rates()
    rate[10:30:2] = 500
    grid = EqualAngles(rate.shape, NORTH, WEST, STEP, STEP)
    np.testing.assert_allclose(flatten(rate, grid), by_loop(np.minimum(rate, 128))[1], rtol=1e-6)


def test_the_plane_of_the_united_states_holds_all_of_the_grid_and_keeps_areas():
    grid = EqualAngles((3500, 7000), 54.995, 230.005, STEP, STEP)
    flat = plane(grid)
    assert flat.projdef == "+proj=laea +lat_0=37.5 +lon_0=-95.0 +ellps=WGS84 +units=m"
    x, y = pyproj.Proj(flat.projdef)([-130, -60, -130, -60, -95, -95], [55, 55, 20, 20, 55, 20])
    rows, columns = (flat.corner[1] - np.array(y)) / 2000, (np.array(x) - flat.corner[0]) / 2000
    assert rows.min() >= 0 and columns.min() >= 0 and rows.max() <= flat.shape[0] and columns.max() <= flat.shape[1]
    sphere = 2 * math.pi * 6371.0072**2 * (70 / 360) * (math.sin(math.radians(55)) - math.sin(math.radians(20)))
    row, column = np.mgrid[2 : flat.shape[0] : 5, 2 : flat.shape[1] : 5]  # every fifth pixel each way, 100 square km
    project = pyproj.Proj(flat.projdef)
    lon, lat = project(flat.corner[0] + 2000 * (column + 0.5), flat.corner[1] - 2000 * (row + 0.5), inverse=True)
    inside = (lon > -130) & (lon < -60) & (lat > 20) & (lat < 55)
    assert 100 * inside.sum() == pytest.approx(sphere, rel=0.005)
    for wide in (EqualAngles((10, 13000), 50, 0, STEP, STEP), EqualAngles((9000, 10), 89, 0, STEP, 0.02)):
        with pytest.raises(ValueError, match="degrees from"):
            plane(EqualAngles(wide.shape, wide.north + 60, wide.west, wide.down, wide.across))


@pytest.mark.parametrize("name", ["MRMS_PrecipRate_00.00_20240601-120200.grib2", "PrecipRate.GRIB2.GZ"])
def test_a_file_is_read(tmp_path, pygrib, name):
    rate, path = rates(), tmp_path / name
    for data in (grib2(rate), png(pygrib, rate)):
        path = tmp_path / f"{len(data)}_{name}"
        path.write_bytes(gzip.compress(data) if name.lower().endswith(".gz") else data)
        found, (flat, expected) = describe(path), by_loop(rate)
        assert (found.product, found.time, found.quantity, found.finer) == ("mrms", TIME, "rate", 1)
        assert (found.grid.shape, found.grid.pixel, found.grid.corner) == (flat.shape, 2000, flat.corner)
        assert found.grid.projdef == flat.projdef and "resampled to 2,000 m" in found.resampled
        np.testing.assert_allclose(found.read(), expected, rtol=1e-6)
        assert np.array_equal(found.read(slice(5, 9), slice(7, 30)), found.read()[5:9, 7:30])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (grib2(rates(20, 20), parameter=(209, 10, 0)), "(209, 10, 0), not MRMS's PrecipRate"),
        (grib2(rates(20, 20), scan=64), "from north and west"),
        (grib2(rates(20, 20), step=0.05), "20 x 20 pixels of 0.05 degrees"),
        (grib2(rates(20, 20))[:300], "no whole GRIB2 message"),
        (grib2(rates(20, 20)) * 2, "more than one GRIB2 message"),
        (b"GRIB" + b"\2" * 40 + b"7777", "more than one GRIB2 message, or a part of one"),
    ],
)
def test_what_is_no_rain_of_mrms_is_told(tmp_path, pygrib, data, words):
    (tmp_path / "a.grib2").write_bytes(data)
    with pytest.raises(UserError) as caught:
        describe(tmp_path / "a.grib2")
    assert words in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygrib", None)
    (tmp_path / "source").mkdir()
    for name in ("a.grib2", "b.grib2.gz"):
        (tmp_path / "source" / name).write_bytes(grib2(rates(20, 20)))
    with pytest.raises(
        UserError, match=r"a\.grib2: GRIB2 is read by pygrib.*; pip install 'retable\[grib\]'$"
    ) as caught:
        cli.import_(tmp_path / "source", str(tmp_path / "results"))
    assert "\n" not in str(caught.value)


def test_every_two_minutes_with_a_tolerance_become_a_set(tmp_path, pygrib, capsys):
    (tmp_path / "source").mkdir()
    rate = rates(420, 560)
    for number in (-1, 0, 7, 8, 14, 15, 16):
        time = datetime(2024, 6, 1, 12) + timedelta(minutes=2 * number)
        path = tmp_path / "source" / f"MRMS_PrecipRate_00.00_{time:%Y%m%d-%H%M%S}.grib2.gz"
        path.write_bytes(gzip.compress(grib2(rate, time), 1))
    with pytest.raises(UserError, match="raise the tolerance"):
        cli.import_(tmp_path / "source", str(tmp_path / "results"), "mrms", 12, 4, 2, 1)
    cli.import_(tmp_path / "source", str(tmp_path / "results"), "mrms", 12, 4, 2, 1, tolerance=1)
    said = " ".join(capsys.readouterr().out.split())
    assert "3 composites, 15 minutes apart, are used; 4 lie between" in said
    assert "resampled to 2,000 m on an equal-area projection" in said and "taken as they are" not in said
