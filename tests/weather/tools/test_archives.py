"""Archives as providers and meteorologists keep them: every file that holds rain is read, and what is done is said."""

import gzip
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.weather import cli
from retable.tasks.weather.tools.composites import composites, importer, published
from retable.tasks.weather.tools.composites.composites import describe
from retable.tasks.weather.tools.composites.importer import survey
from retable.tasks.weather.w4c.check import check
from retable.tasks.weather.w4c.frames import Frames
from retable.tasks.weather.w4c.layout import Index
from retable.tasks.weather.w4c.prepare import describe as describe_set
from retable.tasks.weather.w4c.preprocess import MISSING, UNDETECTED
from tests.weather.tools.composite_files import TIME, bom, fmi, knmi, knmi_today, odim

RAW = np.random.default_rng(1).integers(40, 150, (6, 8)).astype(np.uint8)
DBZH = {"gain": 0.5, "offset": -32.0, "nodata": 255.0, "undetect": 0.0}


def by_relation(dbz, a, b):
    return (10 ** (dbz / 10) / a) ** (1 / b)


def between(minutes, time=TIME):
    """ODIM's start and end of an accumulation."""
    ends = {"start": time - timedelta(minutes=minutes), "end": time}
    dates = {f"{name}date": np.bytes_(f"{end:%Y%m%d}") for name, end in ends.items()}
    return dates | {f"{name}time": np.bytes_(f"{end:%H%M%S}") for name, end in ends.items()}


# KNMI


@pytest.mark.parametrize(
    ("formula", "scale", "offset"),
    [
        ("GEO = 0.500000 * PV + -32.000000", 0.5, -32.0),
        ("GEO=0.500000*PV-32.0", 0.5, -32.0),
        ("GEO = 0.5 * PV - -32", 0.5, 32.0),
        ("GEO=5e-01*PV+-3.2e+01", 0.5, -32.0),
        ("GEO = +0.01 * PV - +1.5", 0.01, -1.5),
        ("GEO=0.01*PV", 0.01, 0.0),
        ("GEO=.5*PV", 0.5, 0.0),
        ("GEO=0.5*PV+(-32)", 0.5, -32.0),
        ("GEO=(0.5)*PV-.25", 0.5, -0.25),
    ],
)
def test_knmis_formulas_with_any_signs(tmp_path, formula, scale, offset):
    raw = np.full((2, 2), 40, np.uint8)
    found = describe(knmi(tmp_path / "a.h5", raw, "REFLECTIVITY_[DBZ]", formula)).read()
    assert found[0, 0] == pytest.approx(by_relation(40 * scale + offset, 200, 1.6), rel=1e-5)


@pytest.mark.parametrize("formula", ["GEO=0.5*PV+", "GEO=0.5*PV*2", "GEO=PV^2", "GEO=0.5*PV+1+2", "GEO=0.5*(PV+3)"])
def test_what_is_no_line_of_knmis_is_refused(tmp_path, formula):
    with pytest.raises(UserError, match="formula is not understood"):
        describe(knmi(tmp_path / "a.h5", RAW, formula=formula))


def test_pixels_that_differ_in_the_seventh_digit_are_square(tmp_path):
    path = knmi(tmp_path / "a.h5", RAW)
    with h5py.File(path, "r+") as file:
        file["geographic"].attrs["geo_pixel_size_x"] = np.float32([1.0000035])
        file["geographic"].attrs["geo_pixel_size_y"] = np.float32([-1.0000048])
    found = describe(path)
    assert found.grid.pixel == pytest.approx(2000.007, abs=1e-3) and found.finer == 2
    close = odim(tmp_path / "b.h5", RAW, "RATE", where={"xscale": 2000.0, "yscale": 1999.995})
    assert describe(close).grid.pixel == 2000
    for name, across, down in (("c.h5", 2000.0, 1500.0), ("d.h5", 2000.0, np.nan), ("e.h5", 2000.0, 0.0)):
        with pytest.raises(UserError, match="not square"):
            describe(odim(tmp_path / name, RAW, "RATE", where={"xscale": across, "yscale": down}))
    wide = np.zeros((4, 4000), np.uint8)  # a thousandth a pixel is four pixels at the end
    with pytest.raises(UserError, match="not square"):
        describe(odim(tmp_path / "f.h5", wide, "RATE", where={"xscale": 2000.0, "yscale": 1998.0}))


def test_an_archive_whose_service_rounds_its_grid_anew_is_one(tmp_path):
    for number, pixel in enumerate((1.0, 1.0, 1.0000035)):
        path = knmi(tmp_path / f"{number}.h5", RAW, time=TIME + timedelta(minutes=15 * number))
        with h5py.File(path, "r+") as file:
            file["geographic"].attrs["geo_pixel_size_x"] = np.float32([pixel])
            file["geographic"].attrs["geo_pixel_size_y"] = np.float32([-1.0000014 * pixel])
    found, skipped = survey(tmp_path)
    assert len(found) == 3 and not skipped
    knmi(tmp_path / "3.h5", np.zeros((6, 10), np.uint16), time=TIME + timedelta(minutes=45))
    assert len(survey(tmp_path)[1]) == 1


@pytest.mark.parametrize("first", [-2000149.0, -2000151.0])
def test_a_corner_that_is_rounded_anew_is_one_wherever_it_lies(tmp_path, first):
    grids = []
    for metres in (first, first + 2, first - 2):
        described = SimpleNamespace(product="p", quantity="rate", minutes=None, relation=None)
        described.grid = published.Grid((4, 4), 2000.0, "+proj=longlat", (metres, 0.0))
        assert composites._kind(described, grids)[2] == 0
    described.grid = published.Grid((4, 4), 2000.0, "+proj=longlat", (first + 1000, 0.0))
    assert composites._kind(described, grids)[2] == 1


def test_todays_knmi_is_read_and_placed_as_that_of_2010(tmp_path):
    raw = np.full((4, 6), 25, np.uint16)
    raw[:2, :2], raw[:2, 2:4] = 65535, 65534
    today, older = describe(knmi_today(tmp_path / "a.h5", raw)), describe(knmi(tmp_path / "b.h5", raw))
    assert (today.quantity, today.minutes) == ("accumulation", 5)
    np.testing.assert_allclose(today.read(), [[MISSING, MISSING, 3.0], [3.0, 3.0, 3.0]])
    assert today.grid.corner == pytest.approx(older.grid.corner, abs=20) and "+units=km" not in today.grid.projdef
    utrecht = published.project(today.grid.projdef, 5.12, 52.09)
    assert utrecht == pytest.approx(published.project(older.grid.projdef, 5.12, 52.09), abs=1)
    assert today.grid.corner[1] > utrecht[1] > today.grid.corner[1] - 765_000 and 0 < utrecht[0] < 700_000


@pytest.mark.parametrize(
    ("parameter", "quantity", "expected"),
    [("ACCUMULATION_[MM]", "accumulation", 3.0), ("RAINFALL_RATE_[MM/H]", "rate", 0.25)],
)
def test_knmis_names_of_rain(tmp_path, parameter, quantity, expected):
    found = describe(knmi(tmp_path / "a.h5", np.full((2, 2), 25, np.uint16), parameter))
    assert found.quantity == quantity and found.read()[0, 0] == pytest.approx(expected)


def test_knmis_other_maps_and_forecasts_are_no_rain(tmp_path):
    for parameter in ("QUALITY_[-]", "ADJUSTMENT_FACTOR_[DB]"):
        with pytest.raises(UserError, match="is no rain"):
            describe(knmi(tmp_path / "a.h5", RAW, parameter))
    with pytest.raises(UserError, match="accumulation of 120 minutes"):
        describe(knmi_today(tmp_path / "b.h5", RAW.astype(np.uint16), minutes=120))


def test_a_dry_map_of_knmis_reflectivity_is_dry(tmp_path):
    """KNMI calls no echo, 0, missing data; only what lies out of the image was not measured."""
    raw = np.zeros((4, 4), np.uint8)
    raw[:2, :2], raw[2:, 2:] = 255, 110
    path = knmi(tmp_path / "a.h5", raw, "REFLECTIVITY_[DBZ]", "GEO = 0.500000 * PV + -32.000000")
    with h5py.File(path, "r+") as file:
        limits = {"calibration_missing_data": np.int32([0]), "calibration_out_of_image": np.int32([255])}
        file["image1/calibration"].attrs.update(limits)
    np.testing.assert_allclose(
        describe(path).read(), [[MISSING, UNDETECTED], [UNDETECTED, by_relation(23, 200, 1.6)]], rtol=1e-5
    )


def test_what_is_out_of_knmis_image_was_not_measured_also_where_it_is_called_0(tmp_path):
    raw = np.zeros((4, 4), np.uint8)
    raw[2:, 2:] = 110
    path = knmi(tmp_path / "a.h5", raw, "REFLECTIVITY_[DBZ]", "GEO = 0.500000 * PV + -32.000000")
    with h5py.File(path, "r+") as file:
        limits = {"calibration_missing_data": np.int32([255]), "calibration_out_of_image": np.int32([0])}
        file["image1/calibration"].attrs.update(limits)
    assert (describe(path).read() == MISSING).tolist() == [[True, True], [True, False]]


def test_a_projection_written_in_two_ways_is_one_and_another_is_shown(tmp_path):
    for number, make in enumerate((knmi, knmi, knmi_today, knmi)):
        make(tmp_path / f"{number}.h5", RAW.astype(np.uint16), time=TIME + timedelta(minutes=15 * number))
    with h5py.File(tmp_path / "3.h5", "r+") as file:
        place = file["geographic/map_projection"].attrs
        place["projection_proj4_params"] = np.bytes_(
            "+proj=stere +lat_0=90 +lon_0=9 +lat_ts=60 +a=6378.137 +b=6356.752"
        )
    found, (line,) = survey(tmp_path)
    assert [each.path.name for each in found] == ["0.h5", "1.h5", "2.h5"]
    assert "3.h5" in line and "+lon_0=9 " in line and "+lon_0=0.0 " in line


# Relations of reflectivity and rain


def test_a_product_has_its_own_relation(tmp_path):
    levels = np.repeat(np.repeat(RAW, 2, 0), 2, 1)
    found = describe(fmi(tmp_path / "a.pgm", levels))
    np.testing.assert_allclose(found.read(), by_relation(RAW * 0.5 - 32, 223, 1.53), rtol=1e-5)
    assert found.relation == (223.0, 1.53)
    other = describe(odim(tmp_path / "b.h5", RAW, "DBZH", data=DBZH))
    np.testing.assert_allclose(other.read(), by_relation(RAW * 0.5 - 32, 200, 1.6), rtol=1e-5)
    assert other.relation == (200.0, 1.6)
    assert describe(odim(tmp_path / "c.h5", RAW, "RATE")).relation is None


@pytest.mark.parametrize("place", ["how", "dataset1/how", "dataset1/data1/how"])
def test_odims_own_relation_is_heeded_at_any_level(tmp_path, place):
    path = odim(tmp_path / "a.h5", RAW, "DBZH", data=DBZH)
    with h5py.File(path, "r+") as file:
        file.create_group("how").attrs.update({"zr_a": 1.0, "zr_b": 1.0}) if place != "how" else None
        file.require_group(place).attrs.update({"zr_a": 316.0, "zr_b": 1.5})
    found = describe(path)
    assert found.relation == (316.0, 1.5)
    np.testing.assert_allclose(found.read(), by_relation(RAW * 0.5 - 32, 316, 1.5), rtol=1e-5)


def test_a_rate_beside_which_a_relation_stands_is_a_rate(tmp_path, capsys):
    """OPERA's NIMBUS of 2024 says by which relation its rates were made."""
    (tmp_path / "source").mkdir()
    for number in range(6):
        time = TIME + timedelta(minutes=15 * number)
        how = {"zr_a": 200.0, "zr_b": 1.6}
        odim(tmp_path / "source" / f"{number}.h5", np.full((HEIGHT, WIDTH), 7.0), "RATE", how=how, time=time)
    found = describe(tmp_path / "source" / "0.h5")
    assert found.relation is None and found.read()[0, 0] == 7
    with pytest.raises(UserError, match=r"--zr 316,1.5 .* these composites are rate; leave it out") as caught:
        imported(tmp_path / "source", tmp_path / "refused", zr="316,1.5")
    assert "\n" not in str(caught.value) and not list((tmp_path / "refused").rglob("*.h5"))
    source, said = imported(tmp_path / "source", tmp_path / "results", capsys)
    assert source.info["relation"] is None and "reflectivity" not in said
    with h5py.File(next((tmp_path / "results").rglob("*.train.rates.crop.h5"))) as file:
        assert "zr_a" not in file.attrs


# Accumulations


def test_accumulations_of_more_than_a_quarter_of_an_hour_are_refused(tmp_path):
    for minutes in (5, 10, 15):
        found = describe(odim(tmp_path / f"{minutes}.h5", RAW * 0.05, "ACRR", what=between(minutes)))
        np.testing.assert_allclose(found.read(), RAW * 0.05 * 60 / minutes, rtol=1e-6)
        assert found.minutes == minutes
    for make in (
        lambda path: odim(path, RAW * 0.1, "ACRR", what=between(60)),
        lambda path: odim(path, RAW * 0.1, "ACRR", what=between(30)),
        lambda path: knmi(path, RAW, minutes=60),
        lambda path: bom(path, RAW.astype(np.int16), minutes=60),
    ):
        with pytest.raises(UserError, match=r"accumulation of \d0 minutes; .* 15"):
            describe(make(tmp_path / "a.h5"))


def test_an_hour_beside_a_rate_does_not_hide_it(tmp_path):
    path = odim(tmp_path / "a.h5", RAW, "ACRR", data=between(60))
    with h5py.File(path, "r+") as file:
        file["dataset2/data1/data"] = RAW
        file.create_group("dataset2/data1/what").attrs.update({"quantity": np.bytes_("DBZH"), **DBZH})
    found = describe(path)
    assert found.quantity == "reflectivity"
    np.testing.assert_allclose(found.read(), by_relation(RAW * 0.5 - 32, 200, 1.6), rtol=1e-5)


def test_hours_in_a_folder_of_rates_are_left_out_with_a_line(tmp_path):
    for number in range(4):
        time = TIME + timedelta(minutes=15 * number)
        odim(tmp_path / f"rate_{number}.h5", RAW, "RATE", time=time)
        odim(tmp_path / f"hour_{number}.h5", RAW, "ACRR", what=between(60, time), time=time)
    found, skipped = survey(tmp_path)
    assert [each.path.name for each in found] == [f"rate_{n}.h5" for n in range(4)]
    assert len(skipped) == 4 and all("accumulation of 60 minutes" in line for line in skipped)


def test_accumulations_of_different_minutes_are_two_kinds(tmp_path):
    for number in range(3):
        time = TIME + timedelta(minutes=15 * number)
        odim(tmp_path / f"five_{number}.h5", RAW * 0.1, "ACRR", what=between(5, time), time=time)
        if number:
            odim(tmp_path / f"quarter_{number}.h5", RAW * 0.1, "ACRR", what=between(15, time), time=time)
    found, skipped = survey(tmp_path)
    assert {each.minutes for each in found} == {5} and len(skipped) == 2
    assert all("accumulation of 15 minutes" in line for line in skipped)


# Names and folders


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("T_PAAH21-hd5", lambda path: odim(path, RAW, "RATE")),
        ("composite.hd5", lambda path: odim(path, RAW, "RATE")),
        ("RAD_NL25_RAC", lambda path: knmi(path, RAW)),
        ("composite", lambda path: fmi(path, RAW)),
        ("composite.h5.gz", lambda path: packed(lambda plain, raw: odim(plain, raw, "RATE"), path)),
        ("composite.hdf.GZ", lambda path: packed(knmi, path)),
        ("composite.pgm.1", lambda path: packed(fmi, path)),
        ("picture.h5", lambda path: fmi(path, RAW)),
        ("2018/08/24/1800", lambda path: odim(path, RAW, "RATE")),
    ],
)
def test_files_are_known_by_what_they_hold(tmp_path, name, make):
    (tmp_path / "README").write_text("Radar of the summer")
    (tmp_path / ".hidden").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    make(tmp_path / name)
    found, skipped = survey(tmp_path)
    assert [each.path for each in found] == [tmp_path / name] and not skipped
    assert np.isfinite(found[0].read()).all()


def packed(make, path):
    plain = path.with_name("plain.h5")
    make(plain, RAW)
    expected = describe(plain).read()
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert np.array_equal(describe(path).read(), expected)


@pytest.mark.parametrize("head", [b"PK\3\4", b"BZh9", b"\xfd7zXZ\0", b"(\xb5/\xfd", b"x" * 257 + b"ustar"])
def test_archives_are_named_with_the_remedy(tmp_path, head):
    odim(tmp_path / "a.h5", RAW, "RATE")
    (tmp_path / "day").write_bytes(head + bytes(600))
    (line,) = survey(tmp_path)[1]
    assert "day" in line and "unpack" in line


def test_folders_by_date_hold_the_same_names(tmp_path):
    for day in (23, 24):
        (tmp_path / f"201808{day}").mkdir()
        for number in range(2):
            odim(tmp_path / f"201808{day}" / f"{number}.h5", RAW, "RATE", time=datetime(2018, 8, day, 0, 15 * number))
    found, skipped = survey(tmp_path)
    assert [each.time.day for each in found] == [23, 23, 24, 24] and not skipped


# Hail


def test_what_is_above_the_cap_is_kept_at_the_cap(tmp_path):
    raw = np.array([[0, 64, 184, 200, 254, 255]] * 6, np.uint8)
    rate = describe(odim(tmp_path / "a.h5", raw, "DBZH", data=DBZH)).read()[0]
    assert rate[[0, 5]].tolist() == [UNDETECTED, MISSING] and rate[2:5].tolist() == [128, 128, 128]
    heavy = describe(odim(tmp_path / "b.h5", np.array([[127.5, 128.0, 129.0, 1205.0]]), "RATE")).read()[0]
    assert heavy.tolist() == [127.5, 128, 128, 128]
    fine = np.full((4, 4), 100, np.uint16)
    fine[0, 0] = 60000  # 7,200 mm/h: each pixel is cut off before the mean is taken
    mean = describe(knmi(tmp_path / "c.h5", fine)).read()
    assert mean[0, 0] == pytest.approx((3 * 12 + 128) / 4) and mean[1, 1] == pytest.approx(12)
    infinite = describe(odim(tmp_path / "d.h5", np.array([[np.inf, np.nan]]), "RATE")).read()[0]
    assert infinite.tolist() == [MISSING, MISSING]


# Gaps


SIZE, SIDE = 12, 72
HEIGHT, WIDTH = 2 * SIDE, 3 * SIDE


def archive(folder, minutes, shape=(HEIGHT, WIDTH), start=TIME):
    """Composites at some minutes after a start: each pixel's rain names its frame, so that frames can be told apart."""
    folder.mkdir()
    for minute in minutes:
        time = start + timedelta(minutes=minute)
        odim(folder / f"{time:%Y%m%d%H%M}.h5", np.full(shape, 1 + minute // 15 % 120, float), "RATE", time=time)


def imported(source, target, capsys=None, **options):
    """Import as the command does; return the data set, and what was printed."""
    cli.import_(source, str(target), "set", **{"size": SIZE, "regions": 4, "inputs": 2, "forecast": 1, **options})
    said = " ".join(capsys.readouterr().out.split()) if capsys else ""
    return Source.of(Storage.open(target), "weather/set"), said


def windows(source, split, inputs=2, forecast=1):
    """Return the rain that each window of a region's split shows: from the files, by their times."""
    info = source.info
    index, frames = Index.read(source.folder, info), Frames(source.folder, info)
    found = []
    if split == "training":
        listed = index.training(info["regions"], info["years"], inputs, forecast, False)
    else:
        listed = [
            w
            for each in index.sequences(split, info["regions"], info["years"], inputs, forecast).values()
            for w in each
        ]
    for window in listed:
        times = index.reference_times([window], inputs)
        found.append(
            (window.series, times[0], frames.rate(window.series, window.rain, window.rain + inputs + forecast))
        )
    return found


def test_all_stretches_between_gaps_are_used(tmp_path, capsys):
    """Single slots are missing, as in physicsnemo-curator 65: all the other frames are used."""
    archive(tmp_path / "source", [15 * slot for slot in range(45) if slot not in (10, 30)], shape=(144, 144))
    source, said = imported(tmp_path / "source", tmp_path / "results", capsys)
    assert source.info["frames"] == 43 and not source.info["dropped"] and "3 stretches" in said
    assert check(source.folder) == []
    seen = windows(source, "training")
    lengths = [10, 19, 14]
    assert len(seen) == len(source.info["splits"]["training"]) * sum(length - 2 for length in lengths)
    for _, time, rain in seen:
        slot = int((time - np.datetime64(TIME, "m")) / np.timedelta64(15, "m"))
        assert np.unique(rain[:, 0]).size <= 3 and [each[0, 0] for each in rain] == [
            1 + (slot + k) % 120 for k in (-1, 0, 1)
        ]
    for split in ("validation", "test", "heldout"):
        assert len(windows(source, split)) == sum(length // 3 for length in lengths) * len(source.info["splits"][split])


def test_stretches_too_short_for_a_sequence_are_named(tmp_path, capsys):
    archive(tmp_path / "source", [0, 15, 30, 60, 75, 105, 120, 135, 150])
    source, said = imported(tmp_path / "source", tmp_path / "results", capsys)
    assert source.info["frames"] == 7 and source.info["dropped"] == ["202107140720.h5", "202107140735.h5"]
    assert "2 lie between" in said


def test_an_archive_goes_over_new_year(tmp_path):
    start = datetime(2020, 12, 31, 22)
    archive(tmp_path / "source", range(0, 15 * 16, 15), start=start)
    source, _ = imported(tmp_path / "source", tmp_path / "results")
    assert source.info["years"] == [2020, 2021] and source.info["frames"] == 16
    assert len(windows(source, "training")) == len(source.info["splits"]["training"]) * 2 * 6
    assert len(windows(source, "test")) == len(source.info["splits"]["test"]) * 2 * 2


def test_the_phase_with_most_frames_is_taken(tmp_path):
    archive(tmp_path / "source", [0, 15, 30, *range(65, 200, 15), 210, 225, 240])
    source, _ = imported(tmp_path / "source", tmp_path / "results")
    assert source.info["frames"] == 9 and len(source.info["dropped"]) == 6


def test_images_know_nothing_of_other_stretches(tmp_path):
    """A gap of a year or of an hour: a frame's image is made of its own stretch's rain alone."""
    archive(tmp_path / "one", range(0, 90, 15))
    archive(tmp_path / "two", [*range(0, 90, 15), *range(120, 210, 15)])
    for name in ("one", "two"):
        imported(tmp_path / name, tmp_path / f"results-{name}")
    paths = [*(tmp_path / "results-one").rglob("*.train.reflbt0.ns.h5")]
    assert paths
    for path in paths:
        other = tmp_path / "results-two" / path.relative_to(tmp_path / "results-one")
        with h5py.File(path) as alone, h5py.File(other) as both:
            assert np.array_equal(alone["REFL-BT"][:], both["REFL-BT"][:6])


def test_folders_by_date_keep_their_files_apart(tmp_path):
    (tmp_path / "source").mkdir()
    for day in (24, 25):
        archive(tmp_path / "source" / f"2018-08-{day}", range(0, 60, 15), start=datetime(2018, 8, day))
        for path in (tmp_path / "source" / f"2018-08-{day}").iterdir():
            path.rename(path.with_name(path.name[-7:]))
    imported(tmp_path / "source", tmp_path / "results")
    path = next((tmp_path / "results").rglob("*.train.rates.crop.h5"))
    with h5py.File(path) as file:
        names = [name.decode() for name in file["sources"]]
    assert names == [f"2018-08-{day}/{minute:04d}.h5" for day in (24, 25) for minute in (0, 15, 30, 45)]


# Small maps


def test_boms_older_files_name_edges_of_pixels(tmp_path):
    """prcp-cscn of 2018 has x of -128 to 127.5 and y of 128 to -127.5 km about the radar, prcp-c10 of 2020 centres."""
    raw = np.ones((64, 64), np.int16)
    for half, bounds in ((0.0, False), (0.25, False), (0.25, True)):
        path = bom(tmp_path / "a.nc", raw)
        with h5py.File(path, "r+") as file:
            file["x"][:] = -16 + half + 0.5 * np.arange(64)
            file["y"][:] = 16 - half - 0.5 * np.arange(64)
            if bounds:
                file["x_bounds"] = np.zeros((64, 2))
        assert describe(path).grid.corner == (-16_000, 16_000)


def test_one_radar_of_256_km_is_split_by_time(tmp_path, capsys):
    """BOM's single radars: 512 pixels of 0.5 km, which hold one square."""
    (tmp_path / "source").mkdir()
    for number in range(40):
        raw = np.full((512, 512), 1 + number, np.int16)  # 0.05 mm in five minutes
        time = TIME + timedelta(minutes=15 * number)
        bom(tmp_path / "source" / f"310_{time:%Y%m%d_%H%M%S}.prcp-cscn.nc", raw, minutes=5, time=time)
    source, said = imported(tmp_path / "source", tmp_path / "results", capsys)
    assert "1 square of 72 pixels" in said and "by time" in said and "by time" in describe_set(source.info)
    assert source.info["regions"] == ["bom_000"] and check(source.folder) == []
    span = {}
    for split in ("training", "validation", "test", "heldout"):
        seen = windows(source, split)
        assert seen and {series for series, _, _ in seen} == {f"2021/bom_000/{split}"}
        rates = np.concatenate([rain.ravel() for _, _, rain in seen]) / 0.6
        span[split] = round(rates.min()), round(rates.max())
    ends = list(span.values())
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ends)), ends


def test_fewer_squares_with_rain_are_split_by_time_too(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    for number in range(20):
        raw = np.zeros((HEIGHT, WIDTH))
        raw[:SIDE, : 2 * SIDE] = 2.0
        time = TIME + timedelta(minutes=15 * number)
        odim(tmp_path / "source" / f"{number:02d}.h5", raw, "RATE", time=time)
    source, said = imported(tmp_path / "source", tmp_path / "results", capsys)
    assert len(source.info["regions"]) == 2 and "2 squares of 72 pixels" in said
    assert all(source.info["splits"][split] == source.info["regions"] for split in source.info["splits"])


def test_a_smaller_size_that_splits_by_place_is_said(tmp_path, capsys):
    archive(tmp_path / "source", range(0, 15 * 20, 15), shape=(150, 290))
    _, said = imported(tmp_path / "source", tmp_path / "results", capsys, size=24)
    assert "2 squares of 144 pixels" in said and "--size 12" in said
    with pytest.raises(UserError, match="no size fits"):
        archive(tmp_path / "small", range(0, 60, 15), shape=(70, 400))
        imported(tmp_path / "small", tmp_path / "other")


def test_too_few_frames_for_four_splits_are_refused(tmp_path):
    archive(tmp_path / "source", range(0, 15 * 14, 15), shape=(72, 72))
    with pytest.raises(UserError, match=r"1 square has radar .*14 frames .* 15") as caught:
        imported(tmp_path / "source", tmp_path / "results")
    assert "\n" not in str(caught.value)


def test_the_relation_can_be_given_and_is_kept_in_the_data_set(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    levels = np.full((2 * HEIGHT, 2 * WIDTH), 110, np.uint8)
    for number in range(4):
        time = TIME + timedelta(minutes=15 * number)
        fmi(tmp_path / "source" / f"{number}.pgm", levels, time=time)
    for name, options, relation in (("a", {}, (223, 1.53)), ("b", {"zr": "316,1.5"}, (316, 1.5))):
        source, said = imported(tmp_path / "source", tmp_path / name, capsys, **options)
        assert f"Z = {relation[0]} R^{relation[1]}" in said and tuple(source.info["relation"]) == relation
        path = next((tmp_path / name).rglob("*.train.rates.crop.h5"))
        with h5py.File(path) as file:
            assert file["rates.crop"][0, 0, 0, 0] == pytest.approx(by_relation(23, *relation), rel=1e-5)
            assert (file.attrs["zr_a"], file.attrs["zr_b"]) == relation
    for wrong in ("200", "200,x", "0,1.6", "200,-1", "200,1.6,3", "nan,1.6"):
        with pytest.raises(UserError, match="--zr"):
            imported(tmp_path / "source", tmp_path / "c", zr=wrong)


def test_each_file_is_read_at_most_twice(tmp_path, monkeypatch):
    """Once to see where it rains, once to cut out all squares."""
    archive(tmp_path / "source", range(0, 15 * 7, 15))
    reads = Counter()

    def counted(path, *window):
        reads[path.name] += 1
        return read(path, *window)

    read = published.read
    monkeypatch.setattr(published, "read", counted)
    monkeypatch.setattr(importer, "CHUNK", 2)
    imported(tmp_path / "source", tmp_path / "results", regions=6)
    assert set(reads.values()) == {2} and len(reads) == 7
