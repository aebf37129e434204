from datetime import datetime, timedelta

import h5py
import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.weather.tools.composites import seviri
from retable.tasks.weather.w4c import layout
from retable.tasks.weather.w4c.preprocess import CHANNELS
from tests.weather.tools import seviri_files
from tests.weather.tools.seviri_files import GAIN, OFFSET, native, pixel_of
from tests.weather.tools.test_importer import HEIGHT, OPERA, SIZE, START, WIDTH, corner, folder_of, run

pytest.importorskip("satpy", reason="satpy is not here: pip install 'retable[seviri]'")
ORDER = ("VIS006", "VIS008", "IR_016", "IR_039", "WV_062", "WV_073", "IR_087", "IR_097", "IR_108", "IR_120", "IR_134")
"""Of the channels in a file."""
EUROPE = "+proj=laea +lat_0=52 +lon_0=10 +x_0=0 +y_0=0 +ellps=WGS84 +units=m"


def name(time):
    return f"MSG4-SEVI-MSG15-0100-NA-{time + timedelta(minutes=12, seconds=42):%Y%m%d%H%M%S}.722000000Z-NA.nat"


def scan(folder, counts, south, east, time=START, **more):
    folder.mkdir(exist_ok=True)
    return native(folder / name(time), counts, south, east, time, **more)


def region(longitude, latitude, margin=4):
    """First line, first column and extent of a rectangle around degrees."""
    line, column = pixel_of(longitude, latitude)
    south, east = int(line.min()) - margin, int(column.min()) - margin
    columns = int(column.max()) + margin - east
    return south, east, int(line.max()) + margin - south, columns + -columns % 4


def test_a_pixel_is_the_mean_of_the_sixteen_nearest(tmp_path):
    size, pixel, upper_left = 12, 2000.0, (-90_000.0, 60_000.0)
    where = seviri.points(EUROPE, upper_left, pixel, size)
    assert where.longitude.shape == (size, size, 16)
    south, east, lines, columns = region(where.longitude, where.latitude)
    counts = np.random.default_rng(0).integers(300, 900, (11, lines, columns))
    path = scan(tmp_path / "scans", counts, south, east)
    (image,) = seviri.read(path, [where])
    assert image.shape == (11, size, size) and image.dtype == np.float32
    line, column = (np.rint(found).astype(int) for found in pixel_of(where.longitude, where.latitude))
    nearest = counts[ORDER.index("IR_108")][line - south, column - east]
    # Planck's law with what EUMETSAT publishes for Meteosat-11's channel at 10.8 micrometres (effective radiances).
    wavenumber, alpha, beta = 931.122, 0.9983, 0.6256
    radiance = GAIN * nearest + OFFSET
    kelvin = 1.43877523 * wavenumber / np.log(1.19104273e-5 * wavenumber**3 / radiance + 1)
    expected = ((kelvin - beta) / alpha).mean(-1)
    found = image[CHANNELS.index("IR_108")]
    assert np.abs(found - expected).max() < 0.6 and np.median(np.abs(found - expected)) < 0.02, (
        "all but points that lie between two pixels"
    )
    nearest = counts[ORDER.index("VIS006")][line - south, column - east]
    shares = (np.pi * (GAIN * nearest + OFFSET) / 65.2656).mean(-1)
    ratio = image[CHANNELS.index("VIS006")] / shares
    assert 1.015 < np.median(ratio) < 1.03, "in August the sun is 1.011 of its mean distance away, squared"
    assert np.ptp(ratio) < 0.05


def test_points_are_spread_evenly_from_the_upper_left():
    where = seviri.points("+proj=longlat +datum=WGS84", (10.0, 50.0), 0.5, 2)
    along = 10 + (np.arange(8) + 0.5) * 0.75
    assert np.allclose(where.longitude[0, 0].reshape(4, 4), along[:4])
    assert np.allclose(where.longitude[1, 1].reshape(4, 4), along[4:])
    assert np.allclose(where.latitude[0, 1].reshape(4, 4).T, 60 - along[:4])


def test_what_was_not_seen_is_no_number(tmp_path):
    where = seviri.points(EUROPE, (0.0, 0.0), 2000.0, 12)
    south, east, lines, columns = region(where.longitude, where.latitude)
    counts = np.full((11, lines, columns), 500)
    counts[:, : lines // 2] = 0  # the format's word for it
    (image,) = seviri.read(scan(tmp_path / "scans", counts, south, east), [where])
    assert np.isfinite(image[:, :4]).all() and np.isnan(image[:, -3:]).all()


def test_scans_are_known_by_the_quarter_at_which_they_begin(tmp_path):
    counts = np.full((11, 8, 8), 500)
    first = scan(tmp_path / "scans", counts, 3300, 1700, START)
    second = scan(tmp_path / "scans", counts, 3300, 1700, START + timedelta(minutes=15, seconds=10))
    (tmp_path / "scans" / name(START + timedelta(hours=3))).write_bytes(b"FormatName")
    found, skipped = seviri.survey(tmp_path / "scans")
    assert found == {START: first, START + timedelta(minutes=15): second}
    assert len(skipped) == 1 and "satpy cannot read it" in skipped[0]
    assert seviri.scan_of(found, START + timedelta(minutes=5), timedelta(minutes=5)) == first
    assert seviri.scan_of(found, START + timedelta(minutes=5), timedelta(0)) is None, "the sky of five minutes before"
    assert seviri.scan_of(found, START + timedelta(hours=2), timedelta(minutes=5)) is None


def test_of_rapid_scans_those_at_quarters_are_taken(tmp_path):
    counts, five = np.full((11, 8, 8), 500), timedelta(minutes=5)
    paths = [scan(tmp_path, counts, 3300, 1700, START - five + n * five, rapid=True) for n in range(5)]
    found, skipped = seviri.survey(tmp_path)
    assert found == {START: paths[1], START + 3 * five: paths[4]}
    assert skipped == [f"{tmp_path}: 3 of 5 scans begin between two quarters of an hour, not used"]
    for path in (paths[1], paths[4]):
        path.unlink()
    with pytest.raises(UserError, match="3 of 3 scans begin between"):
        seviri.survey(tmp_path)


def test_scans_of_another_part_of_the_disk_and_without_a_channel_are_left_out(tmp_path):
    counts, step = np.full((11, 8, 8), 500), timedelta(minutes=15)
    kept = [scan(tmp_path, counts, 3300, 1700, START + n * step) for n in range(2)]
    moved = scan(tmp_path, counts, 3296, 1700, START + 2 * step)
    lacking = scan(tmp_path, counts, 3300, 1700, START + 3 * step, bands="XXXXXXXX-XX-")
    found, skipped = seviri.survey(tmp_path)
    assert list(found.values()) == kept
    assert skipped == [
        f"{lacking}: has no IR_108; order all channels, and not HRV alone",
        f"{moved}: shows another part of the disk than most scans",
    ]


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(UserError, match="no scans"):
        seviri.survey(tmp_path)
    counts = np.full((11, 8, 8), 500)
    path = scan(tmp_path / "scans", counts, 3300, 1700)
    far = seviri.points("+proj=longlat +datum=WGS84", (150.0, 10.0), 0.02, 12)
    assert seviri.sees(path, [far]) == [False] and np.isnan(seviri.read(path, [far])).all()
    with pytest.raises(UserError, match="projection 'nonsense' is not understood"):
        seviri.points("nonsense", (0.0, 0.0), 2000.0, 12)
    folder_of(tmp_path / "source")
    path.unlink()
    scan(tmp_path / "scans", counts, 3300, 1700, datetime(2020, 1, 1))
    with pytest.raises(UserError, match="give scans of the same quarters of an hour, or --tolerance"):
        run(tmp_path / "source", tmp_path / "set", satellite=tmp_path / "scans")
    assert not (tmp_path / "set").exists()


def test_a_data_set_has_the_images_of_its_hours(tmp_path):
    folder_of(tmp_path / "source")
    whole = seviri.points(OPERA, (0.0, 0.0), 2000.0, -(-max(HEIGHT, WIDTH) // 6))
    south, east, lines, columns = region(whole.longitude, whole.latitude, 8)
    draw = np.random.default_rng(1)
    counts = [draw.integers(300, 900, (11, lines, columns)) for _ in range(6)]
    for number, frame in enumerate(counts):  # the seventh composite has no scan
        scan(tmp_path / "scans", frame, south, east, START + number * timedelta(minutes=15))
    info = run(tmp_path / "source", tmp_path / "set", satellite=tmp_path / "scans")
    assert info["simulated_satellite"] is False and "SEVIRI" in info["satellite"] and "simulated_by" not in info
    assert info["frames"] == 6 and "no scan goes with 1 of 7 composites" in info["skipped"][-1]
    name_ = info["splits"]["training"][0]
    with h5py.File(tmp_path / "set" / layout.satellite_path(2018, name_, "training")) as file:
        images, attributes = file[layout.SATELLITE][:], dict(file.attrs)
    assert attributes["simulated"] is np.False_ and "SEVIRI" in attributes["satellite"]
    row, column = corner(name_)
    x0, y0 = origin()
    where = seviri.points(OPERA, (x0 + 2000 * column, y0 - 2000 * row), 2000.0, SIZE)
    line, across = (np.rint(found).astype(int) for found in pixel_of(where.longitude, where.latitude))
    rank = np.argsort(np.argsort(images[4, CHANNELS.index("WV_062")].ravel()))
    nearest = counts[4][ORDER.index("WV_062")][line - south, across - east].mean(-1)
    assert np.corrcoef(rank, np.argsort(np.argsort(nearest.ravel())))[0, 1] > 0.97


def test_squares_that_a_scan_does_not_show_whole_are_left_out(tmp_path):
    """The section ends some pixels inside of the composites' east: what lies there is no square."""
    folder_of(tmp_path / "source")
    whole = seviri.points(OPERA, (0.0, 0.0), 2000.0, -(-max(HEIGHT, WIDTH) // 6))
    south, east, lines, columns = region(whole.longitude, whole.latitude, 8)
    for number, cut in enumerate((0, columns // 8 * 4)):
        scans, target = tmp_path / f"scans{number}", tmp_path / f"set{number}"
        for frame in range(6):
            counts = np.full((11, lines, columns - cut), 500)
            scan(scans, counts, south, east + cut, START + frame * timedelta(minutes=15))
        if not cut:
            every = run(tmp_path / "source", target, satellite=scans)
            continue
        with pytest.raises(UserError, match=r"^[123] squares have radar and rain \(and are shown whole\)"):
            run(tmp_path / "source", target, satellite=scans)
    assert len(every["grids"]) >= 4


def origin():
    from pyproj import Proj

    return Proj(OPERA)(-39.5357864125034, 67.02283275830867)


def test_the_made_file_is_read_by_the_library_as_it_was_meant(tmp_path):
    import warnings

    from satpy import Scene

    counts = np.random.default_rng(2).integers(1, 1024, (11, 6, 8))
    path = scan(tmp_path / "scans", counts, 3300, 1700)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scene = Scene([str(path)], reader="seviri_l1b_native")
        scene.load(["IR_134"], calibration="counts")
        assert np.array_equal(scene["IR_134"].values, counts[ORDER.index("IR_134")])
    assert seviri_files.since_1958(START) == (22150, 64_800_000)
