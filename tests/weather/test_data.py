"""The batches: against a reader that fetches every window by itself, and against themselves in every other way."""

from itertools import islice

import h5py
import numpy as np
import pytest
import ray
import torch

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute.session import ray_cluster
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.weather import TASK, data
from retable.tasks.weather.config import Config
from retable.tasks.weather.w4c.frames import Frames
from retable.tasks.weather.w4c.layout import VERSION, Index, Window
from retable.tasks.weather.w4c.preprocess import HIGH, LOW, MEAN, STD
from tests.weather.files import Layout, hdf5_path

CHANGES = {
    "regions": ["boxi_0015", "roxi_0004"],
    "inputs": 4,
    "forecast": 8,
    "batch": 4,
    "window_run": 5,
    "model": "context",
    "data": "tiny",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("layout")
    rain = {"2019/boxi_0015/training": 0.1, "2020/boxi_0015/training": 0.3}
    info = Layout().write(root) | {"rain": rain, "measured": dict.fromkeys(rain, 100)}
    return Source(Storage.open(root), info)


def config(**changes):
    return override(Config(), CHANGES | changes)


def memory(source):
    frames = Frames(source.folder, source.info)
    arrays = {}
    for series, rows in source.info["series"].items():
        if series.endswith(("training", "validation")):
            arrays[f"{series}/satellite"] = frames.satellite(series, 0, rows["satellite"])
            arrays[f"{series}/rate"] = frames.rate(series, 0, rows["rain"])
    return arrays


def windows(source, columns=None, **changes):
    return data.Windows(columns, source, [config(**changes)])


def fetched_one_by_one(source, window, inputs=4, forecast=8):
    """Read each frame of a window on its own with h5py, and prepare it number by number."""
    with h5py.File(source.folder.root + "/" + hdf5_path(window.series, "satellite"), locking=False) as file:
        images = [np.array(file["REFL-BT"][window.satellite + k]) for k in range(inputs)]
    with h5py.File(source.folder.root + "/" + hdf5_path(window.series, "rain"), locking=False) as file:
        rates = [np.array(file["rates.crop"][window.rain + inputs - 1 + k])[0] for k in range(forecast + 1)]
    for image in images:
        for channel in range(11):
            plane = image[channel]
            plane[~np.isfinite(plane)] = 0
            image[channel] = (np.clip(plane, LOW[channel], HIGH[channel]) - MEAN[channel]) / STD[channel]
    events = np.zeros((forecast + 1, *rates[0].shape), np.uint8)
    for k, rate in enumerate(rates):
        events[k][rate >= 0.2] = 1
        events[k][(rate == -9999000) | ~np.isfinite(rate) | (rate > 128)] = 2
    return np.stack(images, axis=1), events


def everything(batches):
    return [
        {name: getattr(batch, name).numpy() for name in ("images", "events", "now", "region")} | {"shard": batch.shard}
        for batch in batches
    ]


def same(left, right):
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        assert a["shard"] == b["shard"]
        assert all(np.array_equal(a[name], b[name]) for name in ("images", "events", "now", "region"))


def test_an_epoch_holds_each_window_once_and_as_a_plain_reader_reads_it(source):
    found = windows(source, memory(source))
    every = Index.read(source.folder, source.info).training(("boxi_0015", "roxi_0004"), (2019, 2020), 4, 8, False)
    expected = {}
    for window in every:
        images, events = fetched_one_by_one(source, window)
        expected[images.tobytes()] = (events, window)
    seen = []
    for batch in found.batches(0, 0, 0, 1):
        assert batch.images.dtype == torch.float32 and batch.images.shape == (4, 11, 4, 12, 12)
        for k in range(4):
            events, window = expected[batch.images[k].numpy().tobytes()]
            assert np.array_equal(batch.now[k], events[0]) and np.array_equal(batch.events[k], events[1:])
            assert batch.shard[k] == window.series.rsplit("/", 1)[0]
            assert found.regions[batch.region[k]] == window.series.split("/")[1]
            seen.append(window)
    assert len(seen) == len(set(seen)) == len(every) // 4 * 4 == found.steps * 4


def test_a_stream_without_ray_gives_the_same_batches_as_memory(source):
    same(
        everything(windows(source).batches(0, 0, 0, 1)),
        everything(windows(source, memory(source)).batches(0, 0, 0, 1)),
    )
    same(everything(windows(source).validation()), everything(windows(source, memory(source)).validation()))


def test_the_workers_shares_make_up_the_batch(source):
    found = windows(source, memory(source))
    whole = everything(found.batches(0, 2, 0, 1))
    parts = [everything(found.batches(0, 2, rank, 2)) for rank in (0, 1)]
    for step, batch in enumerate(whole):
        joined = {name: np.concatenate([part[step][name] for part in parts]) for name in ("images", "events", "now")}
        assert all(np.array_equal(joined[name], batch[name]) for name in joined)


def test_a_worker_reads_each_run_of_its_lanes_once(source, monkeypatch):
    read = []
    fetch = data.fetch

    def counted(piece, **how):
        read.append((piece["series"], piece["satellite"]))
        return fetch(piece, **how)

    monkeypatch.setattr(data, "fetch", counted)
    found = windows(source, memory(source))
    list(found.batches(0, 0, 0, 1))
    runs = {(run.series, run.satellite) for run in found._runs}
    cut = len(read) - len(set(read))
    assert set(read) <= runs and cut <= 3  # at each border between two of the four lanes a run may be cut in two


def test_validation_has_each_sequence_once_whatever_the_number_of_workers(source):
    found = windows(source, memory(source))
    alone = [name for batch in found.validation() for name in batch.shard]
    shared = [name for rank in (0, 1) for batch in found.validation(rank, 2) for name in batch.shard]
    assert sorted(alone) == sorted(shared) and len(alone) == 2 * 2 * 2
    assert found.validated == tuple(f"{year}/{region}" for year in (2019, 2020) for region in CHANGES["regions"])
    scored = data.sequences(source, config(), "validation/2020/roxi_0004")
    assert [window.series for window in scored] == ["2020/roxi_0004/validation"] * 2
    with pytest.raises(UserError, match="no validation/2021/roxi_0004; the data set has validation/2019/boxi_0015, "):
        data.sequences(source, config(), "validation/2021/roxi_0004")
    three = windows(source, memory(source), batch=3)
    shares = [list(found.validation()), list(found.validation(1, 2)), list(three.validation())]
    assert [[len(batch.shard) for batch in share] for share in shares] == [[4, 4], [2, 2], [3, 3, 2]]


def test_train_all_adds_the_validation_sequences(source):
    plain, joined = windows(source, memory(source)), windows(source, memory(source), train_on="training_and_validation")
    count = [sum(run.windows for run in each._runs) for each in (plain, joined)]
    assert count[1] - count[0] == 8
    assert {run.series.split("/")[2] for run in joined._runs} == {"training", "validation"}


def test_runs_are_windows_that_follow_one_another():
    found = [Window("a", k, k) for k in (0, 1, 2, 3, 7, 8)] + [Window("b", 9, 9)]
    assert [(run.series, run.satellite, run.windows) for run in data.runs_of(found, 3)] == [
        ("a", 0, 3),
        ("a", 3, 1),
        ("a", 7, 2),
        ("b", 9, 1),
    ]


def test_a_set_is_read_whole(source):
    folder = Storage.open(source.folder.root)
    folder.write_json("dataset.json", dict(source.info))
    found, expected = data.read(folder), memory(source)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name], equal_nan=True) for name in expected)


def test_batches_never_share_the_memory_of_the_data(source):
    columns = memory(source)
    before = {name: array.copy() for name, array in columns.items()}
    for batch in islice(windows(source, columns).batches(0, 0, 0, 1), 3):
        for tensor in (batch.images, batch.events, batch.now):
            tensor.fill_(7)
    assert all(np.array_equal(columns[name], before[name], equal_nan=True) for name in columns)


def test_unknown_regions_and_too_long_forecasts_are_refused(source):
    with pytest.raises(UserError, match="roxi_0009"):
        windows(source, memory(source), regions=["roxi_0009"])
    with pytest.raises(UserError, match="forecast"):
        windows(source, memory(source), forecast=9)


def test_the_weight_of_rain_is_dry_over_rainy_pixels(source):
    assert windows(source, memory(source)).positive_ratio == pytest.approx(0.8 / 0.2)


@pytest.mark.slow
def test_ray_data_hands_over_the_same_batches(source):
    expected = everything(windows(source).batches(0, 1, 1, 2)), everything(windows(source).validation())
    with ray_cluster():
        assert ray.is_initialized()
        same(everything(windows(source).batches(0, 1, 1, 2)), expected[0])
        same(everything(windows(source).validation()), expected[1])
        stopped = windows(source).batches(0, 0, 0, 1)
        next(stopped)
        stopped.close()


def test_a_region_left_out_is_neither_trained_on_nor_looked_at(source):
    rain = {"2019/boxi_0015/training": 0.1, "2019/roxi_0004/training": 0.5}
    told = Source(source.folder, source.info | {"rain": rain, "measured": dict.fromkeys(rain, 100)})
    found, expected = windows(told, left_out=["roxi_0004"]), windows(told, regions=["boxi_0015"])
    assert found.steps == expected.steps and found.positive_ratio == expected.positive_ratio == pytest.approx(9)
    for split in (lambda of: of.batches(0, 0, 0, 1), lambda of: of.validation()):
        for batch, other in zip(split(found), split(expected), strict=True):
            assert torch.equal(batch.images, other.images) and torch.equal(batch.events, other.events)
            assert batch.shard == other.shard and all(shard.endswith("boxi_0015") for shard in batch.shard)
    for wrong, words in ((["roxi_0009"], "none of regions"), (["boxi_0015", "roxi_0004"], "leave one to train on")):
        with pytest.raises(UserError, match=words):
            config(left_out=wrong)


def test_what_a_lane_holds_is_its_runs_images_and_fields(source):
    """`run + inputs - 1` images of 11 channels in float32, and `run + forecast` fields of a byte a pixel."""
    found = windows(source, window_run=5)
    piece = max(found._runs, key=lambda run: run.windows)
    (arrays,) = found._fetch([piece])
    assert piece.windows == 5
    held = 12 * 12 * (4 * 11 * (5 + 4 - 1) + 5 + 8)
    assert sum(array.nbytes for array in arrays.values()) == data.run_bytes(found.config, 12) == held


def test_a_plan_says_what_a_stream_takes():
    """252 x 252 x (4 x 11 x 19 + 48) = 56,137,536 bytes a lane; shorter runs and smaller batches take less."""
    large = Source(Storage.open("."), {"name": "w4c22", "size": 252, "holdout": "official"})
    [line] = TASK.dataset.notes([Config(batch=7), Config(), Config(window_run=4)], large)
    assert line == (
        "w4c22: as a stream, a lane holds 19 images and 48 rain fields, 56.1 MB; a batch of 40 2,245.5 MB; "
        "half of shared memory, or --read-ahead, may be read ahead"
    )
    [line] = data.memory_notes([Config(window_run=4)], large)  # 252 x 252 x (4 x 11 x 7 + 36) = 21,845,376
    assert "7 images and 36 rain fields, 21.8 MB; a batch of 40 873.8 MB" in line


def test_the_size_of_a_run_is_told_to_the_stream(source, monkeypatch):
    told = []

    def counted(pieces, get, size):
        told.append(size)
        return map(get, pieces)

    expected = everything(windows(source).batches(0, 0, 0, 1))
    monkeypatch.setattr(data, "stream", counted)
    same(everything(windows(source).batches(0, 0, 0, 1)), expected)
    assert told == [12 * 12 * (4 * 11 * (5 + 4 - 1) + 5 + 8)]


def test_the_weight_of_rain_counts_pixels_and_not_series(source):
    """60 of 100 and 100 of 900 pixels are rainy: 160 of 1000, so 840 dry over 160 rainy ones."""
    series = ("2019/boxi_0015/training", "2019/roxi_0004/training")
    said = {
        "rain": dict(zip(series, (0.6, 1 / 9), strict=True)),
        "measured": dict(zip(series, (100, 900), strict=True)),
    }
    assert windows(Source(source.folder, source.info | said)).positive_ratio == pytest.approx(840 / 160)
    for other, words in (
        ({"rain_threshold": 0.1}, r"0\.160 of the pixels at 0\.1 mm/h"),
        ({"rain": dict.fromkeys(series, 0.0)}, r"0\.000 of the pixels at 0\.2 mm/h"),
        ({"rain": {}}, r"0\.000 of the pixels at 0\.2 mm/h"),
    ):
        with pytest.raises(UserError, match=f"knows of rain in {words}; give a number"):
            data.positive_ratio(source.info | said | other, config())
    old = {name: value for name, value in source.info.items() if name != "measured"}
    with pytest.raises(UserError, match=r"older version; remove it$"):
        _ = windows(Source(source.folder, old)).positive_ratio


@pytest.mark.parametrize("holdout", [0, 10, 60, 100])
def test_the_weight_of_rain_does_not_count_other_hold_outs(source, holdout):
    local = {**source.info, "holdout": "local"}
    if holdout in (0, 60):
        data.positive_ratio(local, config(holdout=holdout))
    else:
        with pytest.raises(UserError, match=f"outside of the sequences of holdout 60, not {holdout}; give a number"):
            data.positive_ratio(local, config(holdout=holdout))
    assert data.positive_ratio(source.info, config(holdout=holdout)) == pytest.approx(0.8 / 0.2)


@pytest.mark.parametrize(("kind", "remedy"), [("generated", "made again"), ("imported", "import them again")])
def test_images_of_an_older_version_which_show_later_rain_are_refused(source, kind, remedy):
    said = {"source": kind, "simulated_satellite": True}
    with pytest.raises(UserError, match=f"show later rain; .*{remedy}"):
        windows(Source(source.folder, source.info | said))
    assert windows(Source(source.folder, source.info | said | {"simulation": VERSION})).steps
    assert windows(Source(source.folder, source.info | said | {"simulated_satellite": False})).steps
