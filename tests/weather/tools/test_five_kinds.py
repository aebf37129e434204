"""Composites as five providers publish them, from files to a page on forecasts: imported, trained on, verified."""

import gzip
import re
from datetime import datetime, timedelta

import h5py
import numpy as np
import pyproj
import pytest
from matplotlib import pyplot
from scipy.ndimage import gaussian_filter

from retable.platform.config import override
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker
from retable.tasks.weather import cli
from retable.tasks.weather.config import Config
from retable.tasks.weather.tools.composites.composites import describe
from retable.tasks.weather.w4c.preprocess import MISSING
from tests.weather.tools.composite_files import bom, crr, fmi, knmi, odim

START = datetime(2021, 7, 14, 6)
SIZE, INPUTS, FORECAST, QUARTERS = 12, 4, 2, 8
HEIGHT, WIDTH = 2 * 6 * SIZE, 3 * 6 * SIZE
DBZH = {"gain": 0.5, "offset": -32.0, "nodata": 255.0, "undetect": 0.0}
KINDS = {  # minutes between composites, pixels of theirs across one of 2 km (crr's stay 3 km wide), tolerance
    "opera": (5, 2, 0),
    "knmi": (5, 2, 0),
    "bom": (6, 4, 3),
    "fmi": (5, 2, 0),
    "crr": (15, 1, 0),
}
WORDS = {
    "opera": ("2 x 2 pixels are averaged", "rain rates are made of reflectivity, by Z = 200 R^1.6"),
    "knmi": ("2 x 2 pixels are averaged", "rain rates are made of accumulation, by its 5 minutes"),
    "bom": ("4 x 4 pixels are averaged", "rain rates are made of accumulation, by its 6 minutes"),
    "fmi": ("2 x 2 pixels are averaged to one of 1,999 m", "Z = 223 R^1.53"),
    "crr": ("pixels of 3,000 m are taken as they are",),
}


def weather():
    """Showers that drift to the right by a pixel in five minutes: minute -> mm/h on 2 km, some of it unseen."""
    field = gaussian_filter(np.random.default_rng(4).normal(size=(HEIGHT, WIDTH)), 5, mode="wrap")
    rate = np.clip(12 * field / field.std() - 6, 0, 60)

    def at(minute):
        moved = np.roll(rate, minute // 5, axis=1)
        moved[30:33, 30:36] = np.nan  # in the first target
        return moved

    return at


def write(kind, folder, time, rate, factor, minutes):
    """Write one composite in a provider's layout and with its precision."""
    fine = rate.repeat(factor, 0).repeat(factor, 1)
    unseen, rate = np.isnan(fine), np.nan_to_num(fine)
    a, b = (223, 1.53) if kind == "fmi" else (200, 1.6)
    levels = np.clip(np.round(2 * (10 * np.log10(a * np.maximum(rate, 0.01) ** b) + 32)), 0, 254).astype(np.uint8)
    levels[rate == 0], levels[unseen] = 0, 255
    name = f"{time:%Y%m%d%H%M}"
    if kind == "opera":
        odim(folder / f"T_PABV22_{name}.hdf", levels, "DBZH", data=DBZH, scale=1000.0, time=time)
    elif kind == "knmi":
        raw = np.where(unseen, 65535, np.round(rate / 12 / 0.01)).astype(np.uint16)
        knmi(folder / f"RAD_NL25_RAC_5m_{name}.h5", raw, time=time)
    elif kind == "bom":
        raw = np.where(unseen, -32768, np.round(rate / 10 / 0.05)).astype(np.int16)
        bom(folder / f"2_{name}.prcp-cscn.nc", raw, minutes=minutes, time=time)
    elif kind == "fmi":
        fmi(folder / f"{name}_fmi.radar.composite.pgm.gz", levels, time=time)
    else:
        crr(folder / f"S_NWC_CRR_{name}.nc", np.where(unseen, 65535, np.round(rate / 0.1)).astype(np.uint16), time=time)


def reading(kind, path):
    """Read a file as its provider's manual says, without the package: mm/h on 2 km, NaN where something is missing."""
    minutes = 5
    if kind == "fmi":
        data = gzip.decompress(path.read_bytes())
        width, height = map(int, re.search(rb"\n(\d+) (\d+)\n255\n", data).groups())
        raw = np.frombuffer(data[-width * height :], np.uint8).reshape(height, width)
    else:
        keys = {"opera": "dataset1/data1/data", "knmi": "image1/image_data", "bom": "precipitation"}
        with h5py.File(path) as file:
            raw = file[keys.get(kind, "crr_intensity")][:]
            if kind == "bom":
                minutes = float(file["valid_time"][()] - file["start_time"][()]) / 60
    rate = {
        "opera": lambda: (10 ** ((raw * 0.5 - 32) / 10) / 200) ** 0.625 * (raw > 0),
        "fmi": lambda: (10 ** ((raw * 0.5 - 32) / 10) / 223) ** (1 / 1.53) * (raw > 0),
        "knmi": lambda: raw * 0.01 * 60 / minutes,
        "bom": lambda: raw * 0.05 * 60 / minutes,
        "crr": lambda: raw * 0.1,
    }[kind]()
    rate = np.where(raw == {"opera": 255, "fmi": 255, "knmi": 65535, "bom": -32768, "crr": 65535}[kind], np.nan, rate)
    factor = KINDS[kind][1]
    height, width = (side // factor for side in raw.shape)
    return rate[: height * factor, : width * factor].reshape(height, factor, width, factor).mean((1, 3))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of each kind, two hours of composites: `<root>/<kind>`."""
    root, at = tmp_path_factory.mktemp("kinds"), weather()
    for kind, (minutes, factor, _) in KINDS.items():
        (root / kind).mkdir()
        for minute in range(0, 15 * QUARTERS + 1, minutes):
            write(kind, root / kind, START + timedelta(minutes=minute), at(minute), factor, minutes)
    return root


def imported(root, kind):
    """Import a folder as a user does, once; return its data set."""
    storage = Storage.open(root / "results")
    if not storage.exists(f"data/weather/{kind}"):
        tolerance = KINDS[kind][2]
        cli.import_(root / kind, storage.root, kind, SIZE, 6, INPUTS, FORECAST, tolerance=tolerance)
    return Source.of(storage, f"weather/{kind}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_imported_rain_is_that_of_an_independent_reading(root, kind, capsys):
    capsys.readouterr()
    source = imported(root, kind)
    said = " ".join(capsys.readouterr().out.split())
    assert all(words in said for words in WORDS[kind]) and "left out" not in said
    assert ("taken as they are" in said) == (kind == "crr"), "half a metre in a kilometre is nothing to warn of"
    assert source.info["frames"] == QUARTERS + 1
    compared = unseen = 0
    for path in sorted(root.glob(f"results/data/weather/{kind}/2021/OPERA/*.h5")):
        grid = source.info["grids"][path.name.split(".")[0]]
        square = slice(grid["row"], grid["row"] + SIZE), slice(grid["column"], grid["column"] + SIZE)
        with h5py.File(path) as file:
            for name, stored in zip(file["sources"], file["rates.crop"][:, 0], strict=True):
                expected = reading(kind, root / kind / name.decode())[square]
                seen = np.isfinite(expected)
                assert (stored[~seen] == MISSING).all()
                assert np.clip(stored[seen], 0, None).sum() == pytest.approx(expected[seen].sum(), rel=1e-5)
                compared, unseen = compared + int((expected[seen] > 0.2).sum()), unseen + int((~seen).sum())
    assert compared > 500 and unseen == 18 * (QUARTERS + 1)


def trained(source):
    """Train the context network on a data set for a few steps, without Ray; return the run's fingerprint."""
    task, info = find("weather"), source.info
    changes = {"data": info["name"], "regions": info["regions"], "years": info["years"], "inputs": INPUTS}
    changes |= {
        "window_run": 2,
        "forecast": FORECAST,
        "model": "context",
        "model.filters": 4,
        "model.levels": 2,
        "batch": 2,
    }
    chosen = override(Config(), changes | {"epochs": 1, "steps": 4, "optimizer.learning_rate": 1e-3})
    folder = RunFolder.of(source.storage, task, chosen)
    folder.begin(chosen, task.version, {})
    data = task.dataset.open(None, source, [chosen])
    train(task, [chosen], data, [folder], info["digest"], Worker(), [()])
    return folder.fingerprint


REAL = {
    "real opera": ("opera_*", 36, QUARTERS, 0),
    "real crr": ("nwcsaf_*", 24, QUARTERS, 0),
    "real knmi": ("knmi*", SIZE, 3 * QUARTERS, 0),
    "real fmi": ("fmi*", SIZE, 3 * QUARTERS, 0),
    "real bom": ("bom*", SIZE, 72, 5),
    "real rmi": ("rmi*", SIZE, 3 * QUARTERS, 0),
}
"""Folders of real files below `data/weather`, the size of regions, how many files are read, and the tolerance."""


def real(shared, kind):
    """Return the first real files of a kind; without them the test is skipped."""
    folders = sorted((shared / "data/weather").glob(REAL[kind][0]))
    if not folders:
        pytest.skip(f"no {REAL[kind][0]} in {shared}/data/weather")
    return sorted(path for path in folders[0].rglob("*") if path.is_file())[: REAL[kind][2]]


@pytest.mark.parametrize("kind", ["knmi", "fmi", "bom"])
def test_real_files_are_read_as_their_providers_say(shared, kind):
    for path in real(shared, f"real {kind}")[::16]:
        found, expected = describe(path).read(), reading(kind, path)
        seen = np.isfinite(expected)
        assert seen.mean() > 0.1 and (expected[seen] > 0.2).sum() > 50
        np.testing.assert_allclose(np.clip(found[seen], 0, None), np.minimum(expected[seen], 128), rtol=1e-4, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*REAL, "knmi", "bom", "fmi"])
def test_forecasts_of_every_source_are_placed_on_the_earth(root, kind, tmp_path, capsys, request):
    """Import, train, score, export, open with xarray: each pixel lies where the provider's own grid has it."""
    xarray = pytest.importorskip("xarray")
    if kind in REAL:
        _, size, _, tolerance = REAL[kind]
        (tmp_path / "files").mkdir()
        for path in real(request.getfixturevalue("shared"), kind):
            (tmp_path / "files" / path.name).symlink_to(path)
        where = tmp_path / "files", str(tmp_path / "results")
        cli.import_(*where, "real", size, 4, INPUTS, FORECAST, tolerance=tolerance)
        source = Source.of(Storage.open(tmp_path / "results"), "weather/real")
    else:
        source = imported(root, kind)
    run, storage = trained(source), source.storage.root
    capsys.readouterr()
    cli.score(run, storage, threshold="tuned", regions="", years="", data="")
    assert "iou  " in capsys.readouterr().out
    cli.netcdf(run, tmp_path / "out", storage, regions="", years="", data="")
    (path,) = list((tmp_path / "out").iterdir())[:1]
    grid = source.info["grids"][path.stem.split("-")[-1]]
    step, size = grid["step"], source.info["size"]
    column, row = np.meshgrid(np.arange(size) + 0.5, np.arange(size) + 0.5)
    place = pyproj.Proj(grid["projdef"])(grid["x0"] + step * column, grid["y0"] - step * row, inverse=True)
    with xarray.open_dataset(path, decode_coords="all", engine="h5netcdf") as data:
        rain = data["probability"]
        assert rain.shape[1:] == (FORECAST, size, size) and {"longitude", "latitude", "projection"} <= set(rain.coords)
        np.testing.assert_allclose(data["longitude"], place[0], atol=1e-6)
        np.testing.assert_allclose(data["latitude"], place[1], atol=1e-6)
        assert pyproj.CRS.from_cf(data["projection"].attrs).is_projected
        assert ((rain >= 0) & (rain <= 1)).all() and "simulated" in data.attrs["comment"]
        drawn = rain[0, 0].plot(x="longitude", y="latitude")
        np.testing.assert_allclose(np.ravel(drawn.get_array()), np.ravel(rain[0, 0]))
        (left, right), (south, north) = drawn.axes.get_xlim(), drawn.axes.get_ylim()
        assert left <= place[0].min() < place[0].max() <= right and south <= place[1].min() < place[1].max() <= north
        pyplot.close(drawn.figure)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "other"), [("knmi", "fmi"), ("bom", "crr")])
def test_a_run_on_it_is_scored_and_verified_there_and_on_data_of_another_kind(root, kind, other, tmp_path, capsys):
    name, storage = trained(imported(root, kind)), str(root / "results")
    imported(root, other)
    for data, product in {"": kind, other: other}.items():
        capsys.readouterr()
        cli.score(name, storage, threshold="tuned", regions="", years="", data=data)
        first, caution, *lines = capsys.readouterr().out.splitlines()
        words = {"knmi": "KNMI", "fmi": "FMI", "bom": "Bureau of Meteorology", "crr": "NWC-SAF"}[product]
        scores = dict(line.split() for line in lines)
        assert words in first and "simulated" in caution and 0 <= float(scores["iou"]) <= 1
        assert any(score.startswith(f"iou/2021/{product}_") for score in scores)
        page = tmp_path / product
        cli.verify([name], page, storage, threshold="tuned", regions="", years="", data=data)
        assert words in (page / "index.html").read_text() and words in (page / "scores.csv").read_text()
        assert (page / "scores.png").stat().st_size > 10_000 and (page / "cases.png").stat().st_size > 10_000
