"""Generated data have the official layout, the true geometry, and something to forecast."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from scipy.ndimage import map_coordinates

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.tasks.weather.w4c import rainfall, satellite
from retable.tasks.weather.w4c.frames import open_hdf5, read_hdf5
from retable.tasks.weather.w4c.generate import REGIONS, Slot, climate, generate, schedule, times, watch
from retable.tasks.weather.w4c.layout import RAIN, SATELLITE, Index, rain_path, satellite_path
from retable.tasks.weather.w4c.prepare import index_folder
from retable.tasks.weather.w4c.preprocess import CHANNELS, MISSING, UNDETECTED, classify
from retable.tasks.weather.w4c.rainfall import Climate, advect, block_mean, simulate
from retable.tasks.weather.w4c.satellite import observe

Array = npt.NDArray[Any]
SIZE, TRAINING = 24, 330
SEQUENCES = {"validation": 2, "test": 2, "heldout": 1}
SETTINGS: dict[str, Any] = {
    "size": SIZE,
    "training": TRAINING,
    "sequences": SEQUENCES,
    "inputs": 4,
    "forecast": 8,
    "progress": lambda done, total: None,
}
WINDOW = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root, heard = tmp_path_factory.mktemp("generated"), []
    settings = {**SETTINGS, "progress": lambda done, total: heard.append((done, total))}
    generate(root, regions=["boxi_0015", "roxi_0007"], years=[2019], **settings)
    done = [pair[0] for pair in heard]
    assert done == sorted(done) and heard[-1] == (2 * len(table(root, 2019)),) * 2
    return root, index_folder(Storage.open(root), "made", "generated")


def table(root: Path, year: int) -> list[dict[str, str]]:
    with (root / "timestamps_and_splits.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["date_str"].startswith(str(year))]


def arrays(root: Path) -> dict[str, Array]:
    found = {}
    for path in sorted(root.rglob("*.h5")):
        with h5py.File(path) as file:
            found[str(path.relative_to(root))] = next(iter(file.values()))[:]
    return found


def test_files_hold_the_rows_of_the_table(made: tuple[Path, dict[str, Any]]) -> None:
    root, info = made
    rows = table(root, 2019)
    for region in ("boxi_0015", "roxi_0007"):
        for split, name in (("training", "train"), ("validation", "val"), ("test", "test"), ("heldout", "heldout")):
            kinds = [r["split_type"] for r in rows if r["split"] == split and r["all_vars"] == "1"]
            inputs = sum(kind.endswith("_in") for kind in kinds)
            frames = sum(not kind.endswith("_buffer") for kind in kinds)
            satellite = inputs if split in ("test", "heldout") else frames
            with h5py.File(root / f"2019/HRIT/{region}.{name}.reflbt0.ns.h5") as file:
                assert file["REFL-BT"].shape == (satellite, 11, SIZE, SIZE) and file["REFL-BT"].dtype == np.float32
                assert file["REFL-BT"].chunks == (1, 11, SIZE, SIZE) and file.attrs["generated"]
                with h5py.File(root / f"2019/OPERA/{region}.{name}.rates.crop.h5") as file:
                    assert file["rates.crop"].shape == (frames, 1, SIZE, SIZE)
                assert info["series"][f"2019/{region}/{split}"] == {"satellite": satellite, "rain": frames}
                if split != "training":
                    assert frames == SEQUENCES[split] * WINDOW
            assert 0 < info["rain"][f"2019/{region}/training"] < 0.5
            with h5py.File(root / f"truth/2019/{region}.h5") as file:
                assert file["flow"].shape == (len(rows), 2, SIZE, SIZE)


def test_the_table_has_the_official_structure(made: tuple[Path, dict[str, Any]]) -> None:
    root, _ = made
    official = "time,date_str,date,RATE,ACRR,DBZH,REFL-BT,all_vars,split,split_type"
    assert (root / "timestamps_and_splits.csv").read_text().splitlines()[:2] == [
        official,
        "000000,20190215,2019-02-15,1,1,1,1,1,training,-",
    ]
    rows = table(root, 2019)
    moments = [np.datetime64(f"{r['date']}T{r['time'][:2]}:{r['time'][2:4]}") for r in rows]
    assert set(np.diff(moments)) == {np.timedelta64(15, "m")}
    missing = [row for row in rows if row["split"] == "-"]
    assert len(missing) == TRAINING // 300 and all(r["all_vars"] == "0" and r["split_type"] == "-" for r in missing)
    assert sum(row["split"] == "training" for row in rows) == TRAINING
    kinds = [row["split_type"] for row in rows]
    for split, count in SEQUENCES.items():
        buffer = [] if split == "validation" else [f"{split}_buffer"] * 8
        block = [f"{split}_in"] * 4 + [f"{split}_target"] * 8 + buffer
        starts = [i for i in range(len(kinds)) if kinds[i : i + len(block)] == block]
        assert len(starts) == count and kinds.count(f"{split}_target") == 8 * count


@pytest.mark.parametrize("training", [0, 30, 60, 2000])
def test_few_and_many_training_slots(training: int) -> None:
    slots = schedule(
        training=training, sequences=SEQUENCES, inputs=4, forecast=8, rng=np.random.default_rng([training])
    )
    assert slots.count(Slot("training")) == training
    blocks = [slot for slot in slots if slot.split_type != "-"]
    assert len(blocks) == 2 * 12 + 3 * 20
    whole = "".join("t" if slot.split == "training" else "-" if slot.split == "-" else " " for slot in slots)
    assert all(len(part) >= 30 for part in whole.split()) or not training


def test_the_index_finds_the_windows(made: tuple[Path, dict[str, Any]]) -> None:
    root, info = made
    index = Index.read(Storage.open(root), info)
    for split, count in SEQUENCES.items():
        found = index.sequences(split, ["boxi_0015"], [2019], 4, 8)
        assert len(found[f"{split}/2019/boxi_0015"]) == count
    rows = table(root, 2019)
    good = [row["split"] == "training" for row in rows]
    expected = sum(all(good[i : i + WINDOW]) for i in range(len(good) - WINDOW + 1))
    assert len(index.training(["boxi_0015"], [2019], 4, 8, with_validation=False)) == expected > TRAINING / 2


def test_sentinels_are_there(made: tuple[Path, dict[str, Any]]) -> None:
    root, _ = made
    for region in ("boxi_0015", "roxi_0007"):
        with h5py.File(root / f"2019/OPERA/{region}.train.rates.crop.h5") as file:
            rate = file["rates.crop"][:, 0]
        missing = (rate == MISSING).mean()
        assert 0.001 < missing < 0.3
        assert (rate == UNDETECTED).any() and (rate == 0).any() and rate.max() <= 128
        assert set(np.unique(rate[rate < 0])) == {np.float32(MISSING), np.float32(UNDETECTED)}
        assert set(np.unique(classify(rate, 0.2))) == {0, 1, 2}
    images = [values for name, values in arrays(root).items() if "train.reflbt0" in name]
    lost = np.mean([np.isnan(values).any((1, 2, 3)).mean() for values in images])
    assert 0.002 < lost < 0.08


def test_the_same_seed_gives_the_same_data_in_any_order(tmp_path: Path) -> None:
    small = {**SETTINGS, "size": 12, "training": 40, "sequences": {"validation": 1, "test": 1, "heldout": 1}}
    generate(tmp_path / "first", regions=["boxi_0015", "roxi_0007"], years=[2019, 2020], **small)
    generate(tmp_path / "again", regions=["roxi_0007"], years=[2020], **small)
    generate(tmp_path / "other", regions=["roxi_0007"], years=[2020], seed=1, **small)
    first, again, other = (arrays(tmp_path / name) for name in ("first", "again", "other"))
    assert len(again) == 9 and len(first) == 36
    for name, values in again.items():
        np.testing.assert_array_equal(values, first[name], err_msg=name)
        assert not np.array_equal(values, other[name], equal_nan=True), name
        for changed in (name.replace("2020", "2019"), name.replace("roxi_0007", "boxi_0015")):
            assert not np.array_equal(values, first[changed], equal_nan=True), changed


@pytest.mark.parametrize(
    ("region", "year"),
    [
        ("roxi_0004", 2020),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("boxi_0076", 2020), ("roxi_0007", 2019))),
    ],
)
def test_regions_and_years_have_the_real_frequencies(region: str, year: int) -> None:
    """A wet day is a matter of chance, and no slot knows of later ones: so the share is that of many short years."""
    years = [simulate(climate(region, year), size=12, slots=60, seed=seed) for seed in range(20)]
    share = np.mean([(sky.rain >= 0.2).mean() for series in years for sky in series])
    assert share == pytest.approx(climate(region, year).fraction, rel=0.4), region


def test_there_are_ten_regions_and_years_differ() -> None:
    assert climate("boxi_0034", 2019).fraction != climate("boxi_0034", 2020).fraction
    assert len(REGIONS) == 10


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not know 'atlantis'"):
        generate(tmp_path, regions=["atlantis"], years=[2019], **SETTINGS)
    with pytest.raises(UserError, match="does not know 1999"):
        generate(tmp_path, regions=["boxi_0015"], years=[1999], **SETTINGS)
    with pytest.raises(UserError, match="size: 40"):
        generate(tmp_path, regions=["boxi_0015"], years=[2019], **{**SETTINGS, "size": 40})
    assert not list(tmp_path.iterdir())
    assert len(times(2019, 30720)) == 30720  # as many as the real year has
    with pytest.raises(UserError, match="30721 slots are too many"):
        times(2019, 30721)


def test_rain_lies_in_the_centre_of_the_images(made: tuple[Path, dict[str, Any]]) -> None:
    """The target is the middle sixth, so a stretched image fits it worse."""
    root, _ = made
    true, stretched = [], []
    for region in ("boxi_0015", "roxi_0007"):
        with h5py.File(root / f"2019/HRIT/{region}.train.reflbt0.ns.h5") as file:
            window = np.nan_to_num(file["REFL-BT"][:, CHANNELS.index("IR_108")], nan=270.0)
        with h5py.File(root / f"2019/OPERA/{region}.train.rates.crop.h5") as file:
            events = classify(file["rates.crop"][:, 0], 0.2)
        centre = slice(5 * SIZE // 12, 7 * SIZE // 12)
        wet = block_mean((events == 1).astype(np.float32))
        true.append(np.corrcoef(window[:, centre, centre].ravel(), wet.ravel())[0, 1])
        stretched.append(np.corrcoef(block_mean(window).ravel(), wet.ravel())[0, 1])
    assert np.mean(true) < -0.3
    assert np.mean(true) < np.mean(stretched) - 0.15


def test_the_flow_carries_the_rain() -> None:
    """A blob moved by the true flow for one step lands where the flow says."""
    y, x = np.indices((144, 144), np.float32)
    blob = np.exp(-((y - 70) ** 2 + (x - 60) ** 2) / 50)
    flow = np.stack([np.full_like(y, 2.5), np.full_like(y, -1.25)])
    moved = advect(blob, flow)
    assert (moved * y).sum() / moved.sum() == pytest.approx(72.5, abs=0.05)
    assert (moved * x).sum() / moved.sum() == pytest.approx(58.75, abs=0.05)


def pooled(pairs: list[tuple[Array, Array]]) -> float:
    return sum((p & t).sum() for p, t in pairs) / sum((p | t).sum() for p, t in pairs)


def test_the_true_flow_beats_persistence_beats_always_rain() -> None:
    """Oracle ceilings: pooled IoU at all 32 lead times of forecasts from the true rain, over 12 sequences."""
    size, lead, gap = 24, 32, 34
    centre = slice(5 * size // 2, 7 * size // 2)
    place = np.stack(np.meshgrid(*[np.arange(6 * size, dtype=np.float32)[centre]] * 2, indexing="ij"))
    still: list[tuple[Array, Array]] = []
    moving: list[tuple[Array, Array]] = []
    always: list[tuple[Array, Array]] = []
    for seed in range(2):
        for number, sky in enumerate(simulate(Climate(fraction=0.08), size=size, slots=6 * gap, seed=seed)):
            rain, flow = sky.rain, block_mean(sky.flow)  # fine pixels a slot on the 12 km grid, as in truth/
            if number % gap == 0:
                start, path = rain, np.zeros_like(flow)
            elif number % gap <= lead:
                # Where the air came from, X_n(x) = X_{n-1}(x - flow), as displacements.
                path = np.stack([advect(part, flow / 6) for part in path]) + flow
                coarse = (place + 0.5) / 6 - 0.5
                source = place - np.stack([map_coordinates(part, coarse, order=1, mode="grid-wrap") for part in path])
                carried = map_coordinates(start, source, order=1, mode="grid-wrap")
                truth = (rain >= 0.2)[centre, centre]
                still.append(((start >= 0.2)[centre, centre], truth))
                moving.append((carried >= 0.2, truth))
                always.append((np.ones_like(truth), truth))
    scores = [pooled(moving), pooled(still), pooled(always)]
    print("true flow {:.3f}, persistence {:.3f}, always rain {:.3f}".format(*scores))
    assert scores[0] > scores[1] + 0.05 > scores[1] > scores[2] + 0.02, scores
    # Forecasts get harder with lead time.
    by_lead = [pooled(moving[first::lead]) for first in (0, 3, 31)]
    assert by_lead[0] > by_lead[1] > by_lead[2], by_lead


def test_rain_enters_from_outside_the_target() -> None:
    """A forecast that sees the centre alone must miss rain: the wind crosses a good part of it in eight hours."""
    shifts = []
    for sky in simulate(Climate(fraction=0.08), size=SIZE, slots=33, seed=1):
        shifts.append(sky.flow.mean((1, 2)))
    travelled = np.linalg.norm(np.sum(shifts, 0))
    assert 0.4 * SIZE < travelled < 2.5 * SIZE


def sights(slots: int) -> tuple[Array, Array]:
    weather = simulate(Climate(fraction=0.1, convective=0.4), size=12, slots=slots, seed=2, where=(2019, 7))
    images, rain, _ = zip(*watch(weather, 12, 5), strict=True)
    return np.stack(images), np.stack(rain)


def test_nothing_that_happens_later_changes_an_image_or_rain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other draws from every random stream after a slot: rain and images up to it stay, bit for bit; later ones not."""
    last, draw = 29, rainfall.generator
    images, rain = sights(60)

    def other(seed: int, stream: str, *where: int) -> np.random.Generator:
        later = where[-1:] > (last,) and stream not in ("weather.sky", "weather.ground")
        return draw(seed + later, stream, *where)

    def later_noise(seed: int, stream: str, *where: int) -> np.random.Generator:
        later = stream == "weather.noise" and where[-1] > 15 * last
        later |= "keyframe" in stream and satellite.KEYFRAME * (where[-1] - 1) > last  # the frame it begins at
        return draw(seed + later, stream, *where)

    monkeypatch.setattr(rainfall, "generator", other)
    monkeypatch.setattr(satellite, "generator", later_noise)
    changed, other_rain = sights(60)
    np.testing.assert_array_equal(changed[: last + 1], images[: last + 1])
    np.testing.assert_array_equal(other_rain[: last + 1], rain[: last + 1])
    assert np.abs(changed[last + 1 :] - images[last + 1 :]).max() > 5
    assert not np.array_equal(other_rain[last + 2 :], rain[last + 2 :])


def test_a_shorter_year_is_the_beginning_of_a_longer_one() -> None:
    for short, long in zip(sights(20), sights(40), strict=True):
        np.testing.assert_array_equal(short, long[:20])


def test_clouds_tell_of_rain_to_come() -> None:
    """Where it begins to rain within half an hour, cloud is thicker than where it stays dry; not all cloud rains."""
    ahead, dry, wet = [], [], []
    skies = list(simulate(Climate(fraction=0.08), size=SIZE, slots=80, seed=4))
    for now, soon in zip(skies, skies[2:], strict=False):
        rains, will = (block_mean((sky.rain >= 0.2).astype(np.float32)) for sky in (now, soon))
        ahead.append(now.cloud[(rains == 0) & (will > 0)])
        dry.append(now.cloud[(rains == 0) & (will == 0)])
        wet.append(now.cloud[rains > 0.5])
    means = [np.concatenate(each).mean() for each in (dry, ahead, wet)]
    assert means[0] + 0.05 < means[1] < means[2], means
    assert (np.concatenate(dry) > 0.1).mean() > 0.01


def test_real_composites_can_be_observed() -> None:
    composites = np.random.default_rng(0).gamma(0.2, 2, (12, 144, 144))
    assert np.isfinite(observe(composites, cirrus_seed=0, start_minutes=1425)).all()


@pytest.mark.slow
def test_processes_write_what_one_writes(tmp_path: Path) -> None:
    regions, years = ["boxi_0015", "roxi_0004"], [2019]
    said = [
        generate(tmp_path / str(workers), regions=regions, years=years, **SETTINGS, workers=workers)
        for workers in (1, 2)
    ]
    assert said[0] == said[1]
    files = sorted(path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("*.h5"))
    assert len(files) > 8
    for name in files:
        with h5py.File(tmp_path / "1" / name) as left, h5py.File(tmp_path / "2" / name) as right:
            for key in left:
                np.testing.assert_array_equal(left[key][()], right[key][()])


@pytest.mark.parametrize(("where", "key", "channels"), [(satellite_path, SATELLITE, 11), (rain_path, RAIN, 1)])
def test_overwritten_bytes_are_refused(
    made: tuple[Path, dict[str, Any]], tmp_path: Path, where: Any, key: str, channels: int
) -> None:
    sound = (made[0] / where(2019, "boxi_0015", "training")).read_bytes()
    path, random, refused = tmp_path / "damaged.h5", np.random.default_rng(0), 0

    def read(content: bytes) -> Array:
        path.unlink(missing_ok=True)  # HDF5 keeps what it has read of a file that is open
        path.write_bytes(content)
        with open_hdf5(path, key, channels).file as file:
            return read_hdf5(file[key], slice(None))

    expected = read(sound)
    for number in range(20):
        size = (1, 8, 4000)[number % 3]
        start = int(random.integers(len(sound) - size))
        stop = start + size
        try:
            found = read(sound[:start] + bytes(byte ^ 0x5A for byte in sound[start:stop]) + sound[stop:])
            np.testing.assert_array_equal(found, expected)
        except UserError as error:
            assert str(path) in str(error) and "write it again" in str(error) and "\n" not in str(error)
            refused += 1
    assert refused >= 17
