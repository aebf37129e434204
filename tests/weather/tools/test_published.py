"""Layouts of composites, each made from its own definition: what is read is what was written."""

from datetime import datetime, timedelta

import h5py
import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.tasks.weather.tools.composites.composites import describe
from retable.tasks.weather.tools.composites.published import Composite
from retable.tasks.weather.tools.composites.resample import coarse
from retable.tasks.weather.w4c.preprocess import MISSING, UNDETECTED
from tests.weather.tools.composite_files import TIME, bom, fmi, knmi, odim

RAW = np.random.default_rng(1).integers(0, 200, (6, 8))


def capped(rate):
    return np.minimum(rate, 128).astype(np.float32)


def marshall_palmer(dbz, a=200, b=1.6):
    return capped((10 ** (dbz / 10) / a) ** (1 / b))


def test_attributes_that_lack_have_odims_defaults(tmp_path):
    found = describe(odim(tmp_path / "a.h5", RAW.astype(float), "RATE", inner=True))
    assert np.array_equal(found.read(), capped(RAW)) and found.time == TIME
    assert found.grid.pixel == 2000 and found.grid.projdef == "+proj=utm +zone=33" and found.quantity == "rate"


def test_texts_may_be_arrays_of_one_as_numbers_may(tmp_path):
    path = odim(tmp_path / "a.h5", RAW.astype(float), "RATE", inner=True)
    with h5py.File(path, "r+") as file:
        groups = [file]
        file.visititems(lambda _, group: groups.append(group))
        for attributes in (group.attrs for group in groups):
            for name, value in list(attributes.items()):
                attributes[name] = [value]
    found = describe(path)
    assert np.array_equal(found.read(), capped(RAW)) and (found.time, found.quantity) == (TIME, "rate")
    assert found.grid.projdef == "+proj=utm +zone=33"


@pytest.mark.parametrize("relation", [(), {"zr_a": 300.0, "zr_b": 1.4}])
def test_reflectivity_becomes_a_rate(tmp_path, relation):
    data = {"gain": 0.5, "offset": -32.0, "nodata": 199.0, "undetect": 0.0}
    raw = RAW.copy()
    raw[0, :2] = 0, 199
    found = describe(odim(tmp_path / "a.h5", raw, "DBZH", data=data, how=relation))
    rate, dbz = found.read(), raw * 0.5 - 32
    expected = marshall_palmer(dbz, *relation.values()) if relation else marshall_palmer(dbz)
    expected[raw == 199], expected[raw == 0] = MISSING, UNDETECTED
    np.testing.assert_allclose(rate, expected, rtol=1e-5)
    assert found.quantity == "reflectivity" and marshall_palmer(23.0103) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("digits", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_what_was_not_measured_is_known_by_the_digits_of_a_float32(tmp_path, kind, digits):
    raw, what = RAW.astype(kind), np.dtype(digits).type
    raw[0, :2] = -9.999e33, -0.1
    found = describe(odim(tmp_path / "a.h5", raw, "RATE", data={"nodata": what(-9.999e33), "undetect": what(-0.1)}))
    expected = capped(RAW)
    expected[0, :2] = MISSING, UNDETECTED
    assert np.array_equal(found.read(), expected)


@pytest.mark.parametrize(
    ("written", "clock"),
    [("1215", "12:15"), ("121500", "12:15"), ("0005", "00:05"), ("2400", ""), ("12150", ""), ("", "")],
)
def test_times_of_odim_may_lack_their_seconds_and_nothing_else(tmp_path, written, clock):
    path = odim(tmp_path / "a.h5", RAW.astype(float), "RATE")
    with h5py.File(path, "r+") as file:
        file["what"].attrs["time"] = np.bytes_(written)
    if clock:
        assert describe(path).time == datetime.fromisoformat(f"{TIME:%Y-%m-%d} {clock}")
    else:
        with pytest.raises(UserError, match="not a readable composite"):
            describe(path)


def test_an_accumulation_becomes_a_rate_by_its_minutes(tmp_path):
    start = TIME - timedelta(minutes=10)
    what = {"startdate": np.bytes_(f"{start:%Y%m%d}"), "starttime": np.bytes_(f"{start:%H%M%S}")}
    what |= {"enddate": np.bytes_(f"{TIME:%Y%m%d}"), "endtime": np.bytes_(f"{TIME:%H%M%S}")}
    found = describe(odim(tmp_path / "a.h5", RAW * 0.1, "ACRR", what=what, time=start))  # some name the beginning
    assert found.time == TIME
    np.testing.assert_allclose(found.read(), RAW * 0.1 * 6, rtol=1e-6)
    what["starttime"] = what["endtime"]
    with pytest.raises(UserError, match="an accumulation of 0 minutes"):
        describe(odim(tmp_path / "b.h5", RAW * 0.1, "ACRR", what=what))


def test_a_rate_goes_before_what_it_was_made_of(tmp_path):
    path = odim(tmp_path / "a.h5", RAW, "DBZH")
    with h5py.File(path, "r+") as file:
        file["dataset2/data1/data"] = RAW + 1.0
        file.create_group("dataset2/data1/what").attrs["quantity"] = np.bytes_("RATE")
    assert describe(path).quantity == "rate" and np.array_equal(describe(path).read(), capped(RAW + 1))


def test_knmi(tmp_path):
    raw = np.random.default_rng(0).integers(0, 300, (6, 8)).astype(np.uint16)
    raw[0, :4] = 65535
    raw[1, :2] = 65534
    found = describe(knmi(tmp_path / "a.h5", raw))
    assert (found.product, found.time, found.quantity) == ("knmi", TIME, "accumulation")
    assert (found.grid.shape, found.grid.pixel, found.grid.corner) == ((3, 4), 2000.0, (0.0, -3650000.0))
    assert "+a=6378137 +b=6356752" in found.grid.projdef
    fine = capped(raw * 0.01 * 12)
    rate = found.read()
    assert rate[0, 0] == MISSING, "all four, or three of four, were not measured"
    assert rate[0, 1] == pytest.approx(fine[1, 2:4].mean()), "two of four: the mean of those"
    np.testing.assert_allclose(rate[1:], fine[2:].reshape(2, 2, 4, 2).mean((1, 3)), rtol=1e-6)
    assert np.array_equal(found.read(slice(1, 3), slice(2, 4)), rate[1:3, 2:4])
    dbz = describe(knmi(tmp_path / "b.h5", raw, "REFLECTIVITY_[DBZ]", "GEO = 0.5 * PV + -32.0".replace("+ -", "-")))
    expected = marshall_palmer(raw[4:6, 4:6] * 0.5 - 32.0).mean()
    assert dbz.read()[2, 2] == pytest.approx(expected, rel=1e-5)


def test_the_bureau_of_meteorology(tmp_path):
    raw = np.random.default_rng(0).integers(0, 80, (8, 12)).astype(np.int16)
    found = describe(bom(tmp_path / "a.nc", raw))
    assert (found.product, found.time, found.grid.shape, found.finer) == ("bom", TIME, (2, 3), 4)
    assert found.grid.pixel == 2000 and found.grid.corner == pytest.approx((-10000, 20000))
    np.testing.assert_allclose(found.read(), (raw * 0.05 * 6).reshape(2, 4, 3, 4).mean((1, 3)), rtol=1e-6)
    with pytest.raises(UserError, match="rows begin in the south"):
        describe(bom(tmp_path / "b.nc", raw, north=False))


@pytest.mark.parametrize("suffix", [".pgm", ".pgm.gz"])
def test_fmi(tmp_path, suffix):
    levels = np.random.default_rng(0).integers(60, 160, (4, 6))
    levels[:2, :2] = 255
    levels[2:, :2] = 0
    found = describe(fmi(tmp_path / f"a{suffix}", levels))
    assert (found.product, found.time, found.grid.shape, found.finer) == ("fmi", TIME, (2, 3), 2)
    assert found.grid.pixel == pytest.approx(2 * 999.674053)
    rate = found.read()
    assert rate[0, 0] == MISSING and rate[1, 0] == UNDETECTED
    expected = marshall_palmer(levels[:, 2:] * 0.5 - 32, 223, 1.53).reshape(2, 2, 2, 2).mean((1, 3))
    np.testing.assert_allclose(rate[:, 1:], expected, rtol=1e-5)
    left, top = found.grid.corner
    assert left == pytest.approx(-380886, abs=2) and top == pytest.approx(-3395678 + 4 * 999.62859, abs=2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: knmi(path, RAW, "CLOUD_TOP_HEIGHT"), "holds CLOUD_TOP_HEIGHT, which is no rain"),
        (lambda path: knmi(path, RAW, formula="GEO=exp(PV)"), "formula is not understood"),
        (lambda path: knmi(path, RAW, minutes=0), "an accumulation of 0 minutes"),
        (lambda path: odim(path, RAW, "RATE", where={"yscale": 1000.0}), "pixels are not square"),
        (lambda path: fmi(path.with_suffix(".pgm"), RAW, "RadialVelocity"), "not reflectivity"),
        (lambda path: fmi(path.with_suffix(".pgm"), RAW, across="wide"), "projection is not FMI's"),
        (lambda path: fmi(path.with_suffix(".pgm"), RAW, across=500.0), "not square"),
        (lambda path: fmi(path.with_suffix(".pgm"), RAW, down=0.0), "not square"),
        (lambda path: fmi(path.with_suffix(".pgm"), RAW, across="nan"), "not square"),
    ],
)
def test_what_is_no_rain_is_told(tmp_path, make, said):
    with pytest.raises(UserError, match=said) as caught:
        describe(make(tmp_path / "a.h5"))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_numbers_out_of_range_are_no_measurement_or_an_error(tmp_path):
    huge = describe(odim(tmp_path / "a.h5", RAW, "RATE", data={"gain": 1e308, "offset": 1e308}))
    assert (huge.read() == MISSING).all()
    with pytest.raises(UserError, match=r"b\.h5: not a readable composite \(float division by zero\)"):
        describe(odim(tmp_path / "b.h5", RAW, "DBZH", how={"zr_a": 200.0, "zr_b": 0.0})).read()
    with h5py.File(odim(tmp_path / "c.h5", RAW, "RATE"), "r+") as file:
        del file["dataset1/data1/data"]
        file.create_dataset("dataset1/data1/data", (1 << 15, 1 << 15), np.uint8, chunks=(64, 64))
    with pytest.raises(UserError, match="32768 x 32768 pixels"):
        describe(tmp_path / "c.h5")


def test_blocks_of_pixels_are_naive_means():
    random = np.random.default_rng(5)
    rate = random.gamma(1, 2, (12, 9)).astype(np.float32)
    rate[random.random(rate.shape) < 0.4] = MISSING
    rate[random.random(rate.shape) < 0.3] = UNDETECTED
    found = coarse(rate, 3)
    for row, column in np.ndindex(4, 3):
        block = rate[3 * row : 3 * row + 3, 3 * column : 3 * column + 3].ravel().tolist()
        measured = [value for value in block if value != MISSING]
        if len(measured) < 4.5:
            expected = MISSING
        elif all(value == UNDETECTED for value in measured):
            expected = UNDETECTED
        else:
            expected = sum(max(value, 0) for value in measured) / len(measured)
        assert found[row, column] == pytest.approx(expected, rel=1e-5)
    assert coarse(rate, 1) is rate


def test_real_files_of_public_samples(shared):
    """Those that lie beside the project are on the layout's own pixels, so nothing is averaged."""
    found = describe(sorted((shared / "data/weather/opera_20180824").iterdir())[0])
    assert isinstance(found, Composite) and found.finer == 1 and found.grid.shape == (2200, 1900)
