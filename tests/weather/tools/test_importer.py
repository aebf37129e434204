import csv
import gzip
import os
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.weather import cli
from retable.tasks.weather.tools.composites import importer
from retable.tasks.weather.tools.composites.composites import describe, stretches, survey
from retable.tasks.weather.tools.composites.importer import import_composites
from retable.tasks.weather.tools.composites.published import Composite, Grid, project
from retable.tasks.weather.tools.composites.splits import Place, deal
from retable.tasks.weather.w4c import layout
from tests.weather.tools.composite_files import crr

START = datetime(2018, 8, 24, 18)
NODATA, UNDETECT = -9999000.0, -8888000.0
OPERA = "+proj=laea +lat_0=55.0 +lon_0=10.0 +x_0=1950000.0 +y_0=-2100000.0 +units=m +ellps=WGS84"
SIZE, SIDE = 12, 72
HEIGHT, WIDTH = 2 * SIDE + 10, 4 * SIDE + 7  # 2 x 4 squares, 5 rows above them and 3 columns left of them
SHORT = {"train": "training", "val": "validation", "test": "test", "heldout": "heldout"}


def odim(
    path,
    raw,
    time=START,
    quantity="RATE",
    gain=1.0,
    offset=0.0,
    nodata=NODATA,
    undetect=UNDETECT,
    scale=2000.0,
    kind="COMP",
):
    with h5py.File(path, "w") as file:
        file.attrs["Conventions"] = np.bytes_("ODIM_H5/V2_0")
        what = file.create_group("what").attrs
        what["object"] = np.bytes_(kind)
        what["date"], what["time"] = np.bytes_(f"{time:%Y%m%d}"), np.bytes_(f"{time:%H%M%S}")
        where = {"projdef": np.bytes_(OPERA), "UL_lon": -39.5357864125034, "UL_lat": 67.02283275830867}
        file.create_group("where").attrs.update({**where, "xscale": scale, "yscale": scale})
        for number, (name, data) in enumerate((("QIND", np.ones_like(raw)), (quantity, raw)), 1):
            file[f"dataset{number}/data1/data"] = data
            attributes = {"gain": gain, "offset": offset, "nodata": nodata, "undetect": undetect}
            file.create_group(f"dataset{number}/what").attrs.update(attributes | {"quantity": np.bytes_(name)})
    return path


def rates(frames, height=HEIGHT, width=WIDTH):
    """Rain, dry, undetected and unseen pixels; the first square of the second row has no radar."""
    random = np.random.default_rng(3)
    rate = random.gamma(0.5, 1.0, (frames, height, width)).round(3)
    choice = random.random(rate.shape)
    rate[choice < 0.5] = UNDETECT
    rate[choice > 0.98] = NODATA
    rate[0, ::50, ::3] = 1205.0
    rate[:, 5 + SIDE : 5 + 2 * SIDE, 3 : 3 + SIDE] = NODATA
    return rate


def folder_of(root, frames=7, suffix=".hdf"):
    """Composites whose names sort against their times."""
    root.mkdir()
    rate = rates(frames)
    for frame in range(frames):
        odim(root / f"composite_{frames - frame:02d}{suffix}", rate[frame], START + frame * timedelta(minutes=15))
    return rate


def fake_observe(rain, *, cirrus_seed, start_minutes):
    frames, height, _ = rain.shape
    images = np.zeros((frames, 11, height // 6, height // 6), np.float32)
    images[:, 0] = rain.reshape(frames, height // 6, 6, height // 6, 6).sum((2, 4))
    images[:, 1], images[:, 2] = start_minutes, cirrus_seed % 1000
    return images


def run(source, target, **changes):
    arguments = {"size": SIZE, "inputs": 2, "forecast": 1, "progress": lambda done, total: None}
    return import_composites(source, target, **(arguments | changes))


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    root = tmp_path_factory.mktemp("import")
    rate = folder_of(root / "source")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importer, "observe", fake_observe)
        calls = []
        info = run(root / "source", root / "set", progress=lambda done, total: calls.append((done, total)))
    files = {}
    for path in sorted((root / "set").glob("2018/*/*.h5")):
        region, split = path.name.split(".")[:2]
        with h5py.File(path) as file:
            key = next(key for key in file if key != "sources")
            files[path.parent.name, region] = SimpleNamespace(
                split=SHORT[split], key=key, data=file[key][:], sources=file["sources"][:], attributes=dict(file.attrs)
            )
    return SimpleNamespace(root=root / "set", rate=rate, info=info, files=files, calls=calls)


def corner(region):
    row, column = divmod(int(region.removeprefix("opera_")), 4)
    return 5 + row * SIDE, 3 + column * SIDE


def rows_of(split, inputs_only):
    sequences = [0, 1, 2, 3, 4, 5]  # two of three frames; the seventh is left over
    return list(range(7)) if split == "training" else [f for f in sequences if f % 3 < 2 or not inputs_only]


def test_integers_with_gain_become_rates_and_sentinels(tmp_path):
    raw = np.arange(256, dtype=np.uint8).reshape(16, 16)
    rate = describe(odim(tmp_path / "a.h5", raw, gain=0.5, offset=-1.0, nodata=255.0, undetect=0.0)).read()
    assert rate.dtype == np.float32
    for row in range(16):
        for column in range(16):
            value = 16 * row + column
            assert rate[row, column] == {0: UNDETECT, 255: NODATA}.get(value, value / 2 - 1)


def test_nan_is_no_measurement(tmp_path):
    rate = describe(odim(tmp_path / "a.h5", np.array([[np.nan, 1.0], [np.inf, UNDETECT]]))).read()
    assert rate.tolist() == [[NODATA, 1], [NODATA, UNDETECT]]


def test_netcdf_becomes_rates(tmp_path):
    composite = describe(crr(tmp_path / "a.nc", np.array([[0, 2, 65535], [500, 1, 7]], np.uint16), START))
    np.testing.assert_allclose(composite.read(), [[0, 0.2, NODATA], [50, 0.1, 0.7]], rtol=1e-6)
    assert composite.read()[0, 1] >= np.float32(0.2)
    assert composite.read(slice(1, 2), slice(0, 2)).shape == (1, 2)
    assert composite.time == START
    assert composite.grid == Grid((2, 3), 3000.0, "+proj=geos +h=35785863.0", (-3e6, 5e6))


@pytest.mark.parametrize(
    ("longitude", "latitude", "metres"),
    [
        # The corners that OPERA publishes for its grid of 1900 x 2200 pixels of 2 km.
        (-39.5357864125034, 67.02283275830867, (0, 0)),
        (57.81196475014995, 67.62103710275053, (3_800_000, 0)),
        (-10.434576838640398, 31.746215319325056, (0, -4_400_000)),
        (29.421038635578032, 31.98765027794496, (3_800_000, -4_400_000)),
        (10.0, 55.0, (1_950_000, -2_100_000)),
    ],
)
def test_projection_gives_the_corners_of_the_opera_grid(longitude, latitude, metres):
    assert project(OPERA, longitude, latitude) == metres


def test_what_names_no_projection_gives_no_place():
    assert project("", 10, 55) is None and project("somewhere", 10, 55) is None


def test_targets_are_cut_from_the_middle_of_their_square(imported):
    seen = {NODATA: 0, UNDETECT: 0}
    rain = {region: file for (kind, region), file in imported.files.items() if kind == "OPERA"}
    assert set(rain) == {f"opera_{i:03d}" for i in (0, 1, 2, 3, 5, 6, 7)}  # 4 has no radar
    for region, file in rain.items():
        top, left = corner(region)
        rows = rows_of(file.split, inputs_only=False)
        assert file.key == "rates.crop"
        assert file.data.shape == (len(rows), 1, SIZE, SIZE) and file.data.dtype == np.float32
        for row, frame in enumerate(rows):
            expected = imported.rate[frame, top + 30 : top + 42, left + 30 : left + 42]
            np.testing.assert_array_equal(file.data[row, 0], expected.astype(np.float32))
            assert file.sources[row].decode() == f"composite_{7 - frame:02d}.hdf"
        for value in seen:
            seen[value] += int((file.data == value).sum())
        assert not file.attributes["simulated"]
    assert min(seen.values()) > 100


@pytest.mark.parametrize(("pixel", "remark"), [(2000.007, False), (1999.35, False), (2100.0, True), (3000.0, True)])
def test_only_pixels_of_another_width_are_remarked_on(pixel, remark):
    composite = SimpleNamespace(grid=Grid((99, 99), pixel, "", None))
    assert ("note" in importer._grid(composite, Place("knmi_000", 0, 0, 1.0, 1.0), 12)) == remark


def test_images_show_the_whole_square_and_say_they_are_simulated(imported):
    cirrus = set()
    for (kind, region), file in imported.files.items():
        if kind == "OPERA":
            continue
        top, left = corner(region)
        rows = rows_of(file.split, inputs_only=file.split in ("test", "heldout"))
        assert file.key == "REFL-BT"
        assert file.data.shape == (len(rows), 11, SIZE, SIZE)
        for row, frame in enumerate(rows):
            assert np.all(file.data[row, 1] == 18 * 60)  # all frames were observed at once
            rain = imported.rate[frame, top : top + SIDE, left : left + SIDE]
            rain = np.clip(rain, 0, 128)
            for i, j in np.ndindex(12, 12):
                block = rain[6 * i : 6 * i + 6, 6 * j : 6 * j + 6]
                assert file.data[row, 0, i, j] == pytest.approx(block.sum(), rel=1e-5)
            assert file.sources[row].decode() == f"composite_{7 - frame:02d}.hdf"
        cirrus.add(file.attributes["cirrus_seed"])
        assert file.attributes["simulated"] and "not observed" in file.attributes["simulated_by"]
        assert file.attributes["generator_version"] == layout.VERSION
    assert len(cirrus) == 7  # every place has its own


def test_files_say_where_their_target_lies(imported):
    for (_, region), file in imported.files.items():
        top, left = corner(region)
        said = file.attributes
        assert (said["row"], said["column"], said["step"]) == (top + 30, left + 30, 2000)
        assert (said["x0"], said["y0"]) == (2000 * (left + 30), -2000 * (top + 30))
        assert said["projdef"] == OPERA and "note" not in said
        assert imported.info["grids"][region]["x0"] == said["x0"]


def test_every_place_is_in_one_split(imported):
    regions = [region for names in imported.info["splits"].values() for region in names]
    assert len(set(regions)) == len(regions) == 7
    assert all(imported.info["splits"].values())
    for split, names in imported.info["splits"].items():
        for region in names:
            assert {imported.files[kind, region].split for kind in ("HRIT", "OPERA")} == {split}


def test_csv_rows_are_the_rows_of_the_files(imported):
    with (imported.root / "timestamps_and_splits.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == "time date_str date RATE ACRR DBZH REFL-BT all_vars split split_type".split()
    for (kind, _), file in imported.files.items():
        rows = [row for row in table if row["split"] == file.split and row["all_vars"] == "1"]
        rows.sort(key=lambda row: (row["date_str"], row["time"]))
        if kind == "HRIT" and file.split in ("test", "heldout"):
            rows = [row for row in rows if row["split_type"].endswith("_in")]
        times = [datetime.strptime(row["date_str"] + row["time"], "%Y%m%d%H%M%S") for row in rows]
        frames = [7 - int(name.decode()[10:12]) for name in file.sources]
        assert times == [START + frame * timedelta(minutes=15) for frame in frames]
    assert [row["split_type"] for row in table if row["split"] == "test"] == ["test_in", "test_in", "test_target"] * 2


def test_the_index_finds_windows_and_sequences(imported):
    series = {}
    for (kind, region), file in imported.files.items():
        name = layout.series_name(2018, region, file.split)
        series.setdefault(name, {})[{"HRIT": "satellite", "OPERA": "rain"}[kind]] = len(file.data)
    regions = sorted(imported.info["grids"])
    info = {"inputs": 2, "forecast": 1, "holdout": "official", "series": series, "regions": regions, "years": [2018]}
    index = layout.Index.read(Storage.open(imported.root), info)
    windows = index.training(regions, [2018], 2, 1, with_validation=False)
    assert len(windows) == 5 * len(imported.info["splits"]["training"])
    for split in ("validation", "test", "heldout"):
        shards = index.sequences(split, regions, [2018], 2, 1)
        assert sorted(shards) == [f"{split}/2018/{region}" for region in imported.info["splits"][split]]
        rows = [(0, 0), (3, 3)] if split == "validation" else [(0, 0), (2, 3)]
        for sequences in shards.values():
            assert [(window.satellite, window.rain) for window in sequences] == rows


def test_info_counts_rain_and_progress_reaches_its_end(imported):
    info = imported.info
    assert (info["product"], info["date"], info["frames"], info["year"]) == (
        "ODIM_H5 radar composites",
        "2018-08-24",
        7,
        2018,
    )
    assert (info["start"], info["dropped"], info["pixel"]) == ("2018-08-24T18:00:00Z", [], 2000)
    for region, share in info["rain_by_region"].items():
        top, left = corner(region)
        target = imported.rate[:6, top + 30 : top + 42, left + 30 : left + 42]
        measured = (target != NODATA) & (target <= 128)
        assert share == pytest.approx(((target >= 0.2) & measured).sum() / measured.sum())
        assert info["coverage"][region] == pytest.approx(measured.mean())
    assert imported.calls == sorted(imported.calls) and imported.calls[-1] == (14, 14)


def test_equal_arguments_give_equal_files_and_the_seed_matters(tmp_path):
    folder_of(tmp_path / "source", 3)
    infos = [
        run(tmp_path / "source", tmp_path / name, seed=seed, regions=4) for name, seed in (("a", 5), ("b", 5), ("c", 6))
    ]
    contents = []
    for root in (tmp_path / name for name in "abc"):
        files = [path for path in root.rglob("*") if path.is_file() and path.name != "dataset.json"]
        contents.append({path.relative_to(root): path.read_bytes() for path in files})
    assert len(contents[0]) == 9  # four regions with two files, and the CSV
    assert contents[0] == contents[1] and infos[0] | {"name": "b"} == infos[1]
    assert contents[0] != contents[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "source"]  # nothing left over


@pytest.mark.parametrize("step", ["_write_set", "index_folder"])
def test_an_interrupted_import_leaves_nothing_and_the_next_one_all(tmp_path, monkeypatch, step):
    folder_of(tmp_path / "source", 3)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(importer, step, interrupted)
        run(tmp_path / "source", tmp_path / "set", regions=4)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    info = run(tmp_path / "source", tmp_path / "set", regions=4)
    assert info == Storage.open(tmp_path / "set").read_json("dataset.json")
    assert info["source"] == "imported" and info["grids"] and info["splits"]


def test_wet_and_dry_regions_stay(tmp_path):
    rate = folder_of(tmp_path / "source", 3)
    (tmp_path / "set").mkdir()  # an empty folder is no obstacle
    info = run(tmp_path / "source", tmp_path / "set", regions=5)
    shares = {}
    for i in (0, 1, 2, 3, 5, 6, 7):
        top, left = corner(f"opera_{i:03d}")
        target = rate[:, top + 30 : top + 42, left + 30 : left + 42]
        measured = (target != NODATA) & (target <= 128)
        shares[f"opera_{i:03d}"] = ((target >= 0.2) & measured).sum() / measured.sum()
    ranked = sorted(shares, key=shares.get)
    assert set(info["rain_by_region"]) == {ranked[round(6 - 6 * k / 4)] for k in range(5)}, "evenly through the ranks"


def test_files_do_not_depend_on_the_chunks(tmp_path, monkeypatch):
    folder_of(tmp_path / "source", 6)
    run(tmp_path / "source", tmp_path / "whole", regions=4)
    monkeypatch.setattr(importer, "CHUNK", 2)
    run(tmp_path / "source", tmp_path / "chunks", regions=4)
    paths = sorted((tmp_path / "whole").rglob("*.h5"))
    assert len(paths) == 8
    for path in paths:
        with h5py.File(path) as whole, h5py.File(tmp_path / "chunks" / path.relative_to(tmp_path / "whole")) as chunks:
            for key in whole:
                np.testing.assert_array_equal(whole[key][:], chunks[key][:])
                if key == "REFL-BT":
                    assert whole[key][:, 4].std() > 1


@pytest.mark.parametrize("count", range(4, 13))
def test_splits_are_dealt_evenly_over_the_map(count):
    random = np.random.default_rng(count)
    cells = random.choice(30, count, replace=False)
    places = [Place(f"opera_{i:03d}", i // 6 * SIDE, i % 6 * SIDE, 1.0, 0.1) for i in sorted(cells.tolist())]
    dealt = {tuple(sorted(deal(places, seed).items())) for seed in range(30)}
    assert len(dealt) > 1
    for splits in map(dict, dealt):
        counts = [list(splits.values()).count(split) for split in layout.SPLITS]
        assert sum(counts) == count and min(counts) >= 1
        assert counts[0] == count - max(3, count // 2)
        assert max(counts[1:]) - min(counts[1:]) <= 1
        if count >= 8:  # along the winding line, never more than two neighbours train, and no two others adjoin
            rows = sorted({place.row for place in places})
            line = []
            for number, row in enumerate(rows):
                line += [place for place in places if place.row == row][:: 1 if number % 2 == 0 else -1]
            kinds = ["t" if splits[place.name] == "training" else "o" for place in line]
            circle = "".join(kinds + kinds)
            assert "oo" not in circle and "ttt" not in circle


def composites_at(*minutes):
    grid = Grid((10, 10), None, "", None)
    return [Composite(Path(f"{m}.h5"), "opera", START + timedelta(minutes=m), grid) for m in minutes]


def names(runs):
    return [[composite.path.name for composite in run] for run in runs]


def test_all_stretches_that_are_long_enough_are_used():
    there = composites_at(0, 15, 45, 60, 75, 100, 115, 135)
    runs, left = stretches(there, 2)
    assert names(runs) == [["0.h5", "15.h5"], ["45.h5", "60.h5", "75.h5"]]
    assert names([left]) == [["100.h5", "115.h5", "135.h5"]]
    runs, left = stretches(there, 3)
    assert names(runs) == [["45.h5", "60.h5", "75.h5"]] and len(left) == 5
    assert stretches(there, 4) == ([], there)


def test_a_stretch_ends_with_the_year():
    minutes = (datetime(2019, 1, 1) - START) // timedelta(minutes=1)
    runs, left = stretches(composites_at(minutes - 30, minutes - 15, minutes, minutes + 15, minutes + 30), 2)
    assert [[composite.time.year for composite in run] for run in runs] == [[2018] * 2, [2019] * 3] and not left


def test_a_crash_leaves_nothing(tmp_path, monkeypatch):
    folder_of(tmp_path / "source", 3)

    def crash(rain, *, cirrus_seed, start_minutes):
        raise RuntimeError("crash")

    monkeypatch.setattr(importer, "observe", crash)
    with pytest.raises(RuntimeError, match="crash"):
        run(tmp_path / "source", tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def truncated(path):
    os.truncate(path, path.stat().st_size // 2)


def truncate(source):
    truncated(source / "composite_01.hdf")


def link(source):
    (source / "composite_01.hdf").rename(source.parent / "elsewhere")
    with h5py.File(source / "composite_01.hdf", "w") as file:
        for key in ("what", "where", "dataset1", "dataset2"):
            file[key] = h5py.ExternalLink(source.parent / "elsewhere", key)


def deflated(source):
    """What unpacks to nothing: the bytes after the header are no deflated ones."""
    (source / "z.pgm.gz").write_bytes(gzip.compress(b"")[:10] + b"\xff" * 50)


def elsewhere(source):
    """A corner that the projection sends to infinity."""
    with h5py.File(odim(source / "z.h5", np.ones((9, 9))), "r+") as file:
        file["where"].attrs.update({"UL_lon": 0.0, "UL_lat": 95.0})


def zoned(path):
    """A time with its zone, which others lack."""
    with h5py.File(crr(path, np.ones((9, 9), np.uint16)), "r+") as file:
        file.attrs["nominal_product_time"] = np.bytes_("2018-08-24T20:00:00+02:00")


def broken(source, number=1):
    """Data damaged behind a good header: a checksum that is wrong."""
    path = source / f"composite_{number:02d}.hdf"
    with h5py.File(path, "r+") as file:
        raw = np.ones(file["dataset2/data1/data"].shape)
        del file["dataset2/data1/data"]
        data = file.create_dataset("dataset2/data1/data", data=raw, chunks=raw.shape, fletcher32=True)
        place = data.id.get_chunk_info(0).byte_offset
    with path.open("r+b") as file:
        file.seek(place + 1000)
        file.write(b"damaged")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (truncate, ("composite_01.hdf", "not a readable composite")),
        (link, ("composite_01.hdf", "another file")),
        (broken, ("composite_01.hdf", "not a readable composite")),
    ],
)
def test_a_composite_that_is_damaged_is_left_out_with_a_line(tmp_path, spoil, words):
    folder_of(tmp_path / "source", 4)
    spoil(tmp_path / "source")
    info = run(tmp_path / "source", tmp_path / "set")
    (line,) = info["skipped"]
    assert all(word in line for word in words) and "\n" not in line, line
    assert info["frames"] == 3


UNUSABLE = [
    (lambda source: (source / "z.nc").write_text("netCDF, they said"), ("z.nc", "not a readable composite")),
    (lambda source: h5py.File(source / "z.h5", "w").close(), ("z.h5", "neither")),
    (lambda source: odim(source / "z.h5", np.ones((9, 9)), quantity="VRAD"), ("z.h5", "QIND, VRAD but none of")),
    (lambda source: odim(source / "z.h5", np.ones((9, 9, 1))), ("z.h5", "no map of numbers")),
    (lambda source: odim(source / "z.h5", np.ones((9, 9))), ("z.h5", "9 x 9 pixels")),
    (lambda source: crr(source / "z.nc", np.ones((HEIGHT, WIDTH), np.uint16)), ("z.nc", "NWC-SAF", "most are")),
    (lambda source: odim(source / "z.h5", np.ones((HEIGHT, WIDTH))), ("z.h5", "same time as composite_04.hdf")),
    (lambda source: odim(source / "z.h5", np.ones((HEIGHT, WIDTH)), quantity="DBZH"), ("z.h5", "reflectivity")),
    (lambda source: (source / "z.pgm").write_bytes(b"P5 2 2 255 abc"), ("z.pgm", "not a readable composite")),
    (deflated, ("z.pgm.gz", "not a readable composite")),
    (lambda source: odim(source / "z.h5", np.ones((9, 9)), scale=1e-320), ("z.h5", "pixels of 9.99989e-321 m")),
    (lambda source: odim(source / "z.h5", np.ones((9, 9)), scale=np.nan), ("z.h5", "not square")),
    (lambda source: odim(source / "z.h5", np.ones((9, 9)), scale=-2000.0), ("z.h5", "pixels of -2000 m")),
    (lambda source: odim(source / "z.h5", np.ones((9, 9)), scale=1.0), ("z.h5", "pixels of 1 m")),
    (elsewhere, ("z.h5", "not a readable composite")),
    (lambda source: odim(source / "z.h5", np.ones((360, 480)), kind="PVOL"), ("z.h5", "no map but PVOL")),
    (lambda source: odim(source / "z.h5", np.ones((360, 480)), kind="SCAN"), ("z.h5", "no map but SCAN")),
    (lambda source: odim(source / "z.h5", np.ones((9, 9)), datetime(9999, 12, 31, 23, 59)), ("z.h5", "9999")),
    (lambda source: zoned(source / "z.nc"), ("z.nc", "NWC-SAF", "most are")),
]


def test_files_that_cannot_be_used_are_left_out_with_a_line_each(tmp_path):
    source = tmp_path / "source"
    folder_of(source, 4)
    for number, (spoil, (name, *_)) in enumerate(UNUSABLE):
        (folder := tmp_path / str(number)).mkdir()
        spoil(folder)
        (folder / name).rename(source / name.replace("z", f"z{number:02d}", 1))
    info = run(source, tmp_path / "set")
    assert info["frames"] == 4 and len(info["skipped"]) == len(UNUSABLE)
    for number, (_, (_, *words)) in enumerate(UNUSABLE):
        (line,) = (line for line in info["skipped"] if f"z{number:02d}." in line)
        assert all(word in line for word in words) and "\n" not in line, line


def test_what_is_damaged_in_the_middle_splits_the_stretch(tmp_path):
    folder_of(tmp_path / "source", 7)
    for number in (3, 5):
        broken(tmp_path / "source", number)
    words = r"steps is 2 frames, .*; 2 files cannot be read: .*composite_05\.hdf: not a"
    with pytest.raises(UserError, match=words) as caught:
        run(tmp_path / "source", tmp_path / "set")
    assert "\n" not in str(caught.value)
    info = run(tmp_path / "source", tmp_path / "set", inputs=1)
    assert (info["frames"], info["stretches"], len(info["skipped"])) == (4, 2, 2)
    for number in range(1, 8):
        broken(tmp_path / "source", number)
    with pytest.raises(UserError, match="not a readable composite"):
        run(tmp_path / "source", tmp_path / "other")


def test_with_a_tolerance_the_next_nearest_stands_for_what_is_damaged(tmp_path):
    rate = folder_of(tmp_path / "source", 4)
    odim(tmp_path / "source" / "late.hdf", rate[1], START + timedelta(minutes=17))
    broken(tmp_path / "source", 3)
    info = run(tmp_path / "source", tmp_path / "set", tolerance=3)
    assert (info["frames"], len(info["skipped"]), info["dropped"]) == (4, 1, [])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda source: [truncated(path) for path in source.iterdir()], ("not a readable composite",)),
        (lambda source: [path.unlink() for path in source.iterdir()], ("no composites",)),
        (lambda source: (source / "composite_02.hdf").unlink(), ("stretch of 15-minute steps is 1 frames", "3 are")),
    ],
)
def test_folders_of_nothing_are_refused_in_one_line(tmp_path, spoil, words):
    folder_of(tmp_path / "source", 3)
    spoil(tmp_path / "source")
    with pytest.raises(UserError) as caught:
        run(tmp_path / "source", tmp_path / "set")
    assert "\n" not in str(caught.value) and str(tmp_path / "source") in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not (tmp_path / "set").exists()


def test_of_five_minutes_every_third_is_taken():
    runs, left = stretches(composites_at(*range(5, 66, 5), 200), 2)
    assert names(runs) == [["5.h5", "20.h5", "35.h5", "50.h5", "65.h5"]] and len(left) == 9


def test_a_tolerance_takes_the_nearest_to_each_quarter():
    """Steps of six minutes: 18:12 misses the quarter by three minutes as 18:18 does, and the first of equals stays."""
    times = list(range(0, 61, 6))
    (chosen,), _ = stretches(composites_at(*times), 2, timedelta(minutes=3))
    assert [composite.path.name for composite in chosen] == ["0.h5", "12.h5", "30.h5", "42.h5", "60.h5"]
    assert [(composite.time - START) // timedelta(minutes=1) for composite in chosen] == [0, 15, 30, 45, 60]
    assert names(stretches(composites_at(*times), 1, timedelta(minutes=2))[0]) == [["0.h5"], ["30.h5"], ["60.h5"]]
    with pytest.raises(UserError, match="no composite is within 1 minutes of a quarter"):
        stretches(composites_at(6, 24), 1, timedelta(minutes=1))


def test_arguments_are_checked(tmp_path):
    folder_of(tmp_path / "source", 3)
    for changes in ({"size": 20}, {"regions": 3}, {"inputs": 0}, {"forecast": 0}, {"seed": -1}):
        with pytest.raises(UserError, match="cannot import"):
            run(tmp_path / "source", tmp_path / "set", **changes)
    with pytest.raises(UserError, match="largest size that fits is 24"):
        run(tmp_path / "source", tmp_path / "set", size=36)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("")
    with pytest.raises(UserError, match="exists already"):
        run(tmp_path / "source", tmp_path / "set")


def test_too_small_and_too_dry_composites_are_refused(tmp_path):
    for name, raw in (("small", np.ones((71, 400))), ("dry", np.full((HEIGHT, WIDTH), UNDETECT))):
        (tmp_path / name).mkdir()
        for frame in range(3):
            odim(tmp_path / name / f"{frame}.h5", raw, START + frame * timedelta(minutes=15))
    with pytest.raises(UserError, match="no size fits"):
        run(tmp_path / "small", tmp_path / "set")
    with pytest.raises(UserError, match="none of 8 squares"):
        run(tmp_path / "dry", tmp_path / "set")


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (2000.0, []),
        (1500.0, ["pixels of 1,500 m are taken as they are, not resampled to the layout's 2,000 m"]),
        (3000.0, ["pixels of 3,000 m are taken as they are, not resampled to the layout's 2,000 m"]),
        (1000.0, ["2 x 2 pixels are averaged to one of 2,000 m"]),
        (
            700.0,
            [
                "3 x 3 pixels are averaged to one of 2,100 m",
                "pixels of 2,100 m are taken as they are, not resampled to the layout's 2,000 m",
            ],
        ),
        (None, ["the files do not say how wide their pixels are; they are taken as 2,000 m"]),
    ],
)
def test_what_becomes_of_pixels_is_said(tmp_path, capsys, scale, words):
    finer = max(1, round(2000 / (scale or 2000)))
    rate = rates(3, HEIGHT * finer, WIDTH * finer)
    (tmp_path / "source").mkdir()
    for frame in range(3):
        path = odim(tmp_path / "source" / f"{frame}.h5", rate[frame], START + frame * timedelta(minutes=15))
        with h5py.File(path, "r+") as file:
            for axis in ("xscale", "yscale"):
                del file["where"].attrs[axis]
                file["where"].attrs.update({axis: scale} if scale else {})
    cli.import_(tmp_path / "source", str(tmp_path / "results"), "real", SIZE, 4, 2, 1)
    said = " ".join(capsys.readouterr().out.split())
    assert all(line in said for line in words), said
    assert said.count("are taken as") + said.count("are averaged") == len(words), said


@pytest.mark.parametrize("name", ["generated-24-small", "w4c22"])
def test_an_import_takes_no_name_that_tables_use(tmp_path, name):
    with pytest.raises(UserError, match=f"--name {name}: tables read other data"):
        cli.import_(tmp_path, str(tmp_path / "results"), name)
    assert not (tmp_path / "results").exists()


def test_a_folder_is_sorted_by_the_files_own_times(tmp_path):
    folder_of(tmp_path / "source", 3)
    (tmp_path / "source" / "README.md").write_text("not a composite")
    assert [composite.path.name for composite in survey(tmp_path / "source")[0]] == [
        f"composite_{number:02d}.hdf" for number in (3, 2, 1)
    ]


@pytest.mark.parametrize(
    ("folder", "key", "source", "grid", "step", "size"),
    [
        ("opera_20180824", "dataset1/data1/data", "opera", (2200, 1900), 2000, 36),
        ("nwcsaf_crr_20180601", "crr_intensity", "crr", (1019, 2200), 3000, 24),
    ],
)
def test_real_composites(shared, tmp_path, folder, key, source, grid, step, size):
    files = sorted((shared / "data/weather" / folder).iterdir())[:6]
    (tmp_path / "source").mkdir()
    for path in files:
        (tmp_path / "source" / path.name).symlink_to(path)
    info = run(tmp_path / "source", tmp_path / "set", size=size, regions=4, inputs=2, forecast=3)
    assert [len(names) for names in info["splits"].values()] == [1, 1, 1, 1]
    side, across = 6 * size, grid[1] // (6 * size)
    top, left = (grid[0] % side) // 2, (grid[1] % side) // 2
    for path in sorted((tmp_path / "set").rglob("*.rates.crop.h5")):
        region = path.name.split(".")[0]
        row, column = divmod(int(region.removeprefix(f"{source}_")), across)
        first = top + row * side + 5 * size // 2, left + column * side + 5 * size // 2
        with h5py.File(path) as file:
            rate, said = file["rates.crop"][:], dict(file.attrs)
        assert len(rate) == (6 if ".train." in path.name else 5)
        events = measured = 0
        for frame, got in enumerate(rate):
            with h5py.File(files[frame]) as file:
                raw = file[key][first[0] : first[0] + size, first[1] : first[1] + size]
            if source == "crr":
                raw = np.where(raw == 65535, NODATA, raw * 0.1)
            events += ((raw > 0.1999) & (raw <= 128)).sum()
            measured += ((raw != NODATA) & (raw <= 128)).sum()
            np.testing.assert_allclose(got[0], raw, rtol=1e-6)
            for value in (NODATA, UNDETECT):
                assert (got == value).sum() == (raw == value).sum()
        assert (said["row"], said["column"], said["step"]) == (*first, step)
        assert ("note" in said) == (step != 2000)
        assert info["coverage"][region] > 0.8
        if ".train." not in path.name:  # frames that all splits keep
            assert info["rain_by_region"][region] == pytest.approx(events / measured)
    for path in (tmp_path / "set").rglob("*.reflbt0.ns.h5"):
        with h5py.File(path) as file:
            assert file["REFL-BT"].shape[1:] == (11, size, size) and file.attrs["simulated"]
            assert np.isfinite(file["REFL-BT"][:]).all()
