"""Reading a run: one forecast serves many views, thresholds come from validation, scores are those of plain loops."""

from importlib import import_module

import h5py
import numpy as np
import pytest
import torch

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute.scoring import score_weights
from retable.platform.spec.task import Source, find
from retable.platform.store.run import view_key
from retable.platform.store.storage import Storage
from retable.tasks.weather import metrics
from retable.tasks.weather.config import View
from retable.tasks.weather.data import sequences
from retable.tasks.weather.model import build
from retable.tasks.weather.w4c.frames import Frames
from retable.tasks.weather.w4c.layout import Index
from retable.tasks.weather.w4c.preprocess import classify, normalise
from tests.weather.files import Layout
from tests.weather.toys import config, make

# The package has functions of these names.
predict, prepare = (import_module(f"retable.tasks.weather.{name}") for name in ("predict", "w4c.prepare"))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return Source.of(make(tmp_path_factory.mktemp("weather") / "results"), "weather/tiny")


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(3)
    model = build(config(), 12, config().regions)
    return {name: value.detach() for name, value in model.state_dict().items()}


def view(**changes):
    return override(View(epoch=1), changes)


def truth(source, shard):
    frames = Frames(source.folder, source.info)
    return np.stack(
        [
            classify(frames.rate(window.series, window.rain + 4, window.rain + 12), 0.2)
            for window in sequences(source, config(), shard)
        ]
    )


def plain_forecasts(source, weights, shard):
    """Forecast each sequence alone."""
    model = build(config(), 12, config().regions)
    model.load_state_dict(weights)
    model.eval()
    frames, found = Frames(source.folder, source.info), []
    for window in sequences(source, config(), shard):
        images = normalise(frames.satellite(window.series, window.satellite, window.satellite + 4))
        x = torch.from_numpy(images.transpose(1, 0, 2, 3)[None].copy())
        region = torch.tensor([config().regions.index(shard.split("/")[2])])
        with torch.no_grad():
            found.append(model(x, region)[0].sigmoid().numpy())
    return np.stack(found)


def test_shards_are_the_regions_and_years_of_the_split(source):
    found = predict.shards(config(), view(split="heldout"), source)
    assert sorted(found) == [f"heldout/{y}/{r}" for y in (2019, 2020) for r in ("boxi_0015", "roxi_0004")]


def test_a_forecast_is_the_models_probability_rounded_down(source, weights):
    shard = "test/2020/roxi_0004"
    steps = predict.predict(config(), view(), weights, source, shard)["probability"]
    expected = plain_forecasts(source, weights, shard)
    assert steps.dtype == np.uint8 and steps.shape == expected.shape
    assert np.abs(steps / 200 + 0.0025 - expected).max() <= 0.0026


def test_scores_are_those_of_a_plain_loop(source, weights):
    chosen = view(threshold=0.5, split="test")
    found = score_weights(find("weather"), config(), chosen, weights, source)
    ious = {}
    for shard in predict.shards(config(), chosen, source):
        forecast, events = plain_forecasts(source, weights, shard) >= 0.5, truth(source, shard)
        seen = events != 2
        both, either = (forecast & (events == 1)).sum(), ((forecast & seen) | (events == 1)).sum()
        ious[shard.removeprefix("test/")] = both / either
    assert found["iou"] == pytest.approx(np.mean(list(ious.values())), abs=1e-3)
    for place, value in ious.items():
        assert found[f"iou/{place}"] == pytest.approx(value, abs=2e-3)


def test_scores_of_a_region_are_its_part_of_all(source, weights):
    everywhere, alone = (
        score_weights(find("weather"), config(), chosen, weights, source)
        for chosen in (view(), view(scored=["roxi_0004"]))
    )
    assert alone["iou/2019"] == alone["iou/2019/roxi_0004"] == everywhere["iou/2019/roxi_0004"]
    assert alone["iou"] == pytest.approx((everywhere["iou/2019/roxi_0004"] + everywhere["iou/2020/roxi_0004"]) / 2)
    assert "iou/2019/boxi_0015" not in alone


def test_views_that_differ_in_a_threshold_share_a_forecast():
    for threshold in (0.2, 0.65):
        assert predict.reads(view(threshold=threshold)) == (view(),)
    assert predict.reads(view(threshold="tuned")) == (view(), view(split="validation"))
    assert predict.reads(view(threshold="tuned", split="validation")) == (view(split="validation"),)
    assert predict.reads(view(split="heldout", calibration="difference_mask"))[0].calibration == "difference_mask"


def test_a_tuned_threshold_is_the_best_on_validation_and_looks_at_nothing_else(source, weights):
    task, chosen = find("weather"), config()
    score = score_weights(task, chosen, view(threshold="tuned"), weights, source)
    best = score["threshold"]
    pooled = pooled_ious(source, weights, [round(best * 200), *range(60, 150, 5)])
    assert pooled[0] == max(pooled)
    same = score_weights(task, chosen, view(threshold=best), weights, source)
    assert same["iou"] == score["iou"]


def pooled_ious(source, weights, steps):
    """Return the IoU over all pixels of the validation set where it rains from each of these steps on."""
    both, either = np.zeros(len(steps)), np.zeros(len(steps))
    for shard in predict.shards(config(), view(split="validation"), source):
        found = predict.predict(config(), view(split="validation"), weights, source, shard)["probability"]
        events = truth(source, shard)
        for at, step in enumerate(steps):
            forecast, seen = found >= step, events != 2
            both[at] += (forecast & (events == 1)).sum()
            either[at] += ((forecast & seen) | (events == 1)).sum()
    return (both / either).tolist()


def test_each_region_may_have_its_own_threshold(source, weights):
    summaries = {}
    for each in predict.reads(view(threshold="tuned_per_region")):
        for shard in predict.shards(config(), each, source):
            forecast = predict.predict(config(), each, weights, source, shard)
            summaries[shard] = predict.summarise(config(), each, forecast, source, shard)
    own = metrics.thresholds(view(threshold="tuned_per_region"), summaries)
    assert set(own) == set(predict.shards(config(), view(), source)) and len(set(own.values())) > 1
    for shard, threshold in own.items():
        histogram = summaries[shard.replace("test", "validation")]["histogram"].sum((0, 1))
        hits = histogram[::-1, 1].cumsum()[::-1]
        alarms = histogram[::-1, 0].cumsum()[::-1]
        ious = hits / (alarms + histogram[:, 1].sum())
        assert ious[round(threshold * 200)] == ious[1:200].max()


def test_the_difference_mask_lowers_what_training_had_more_of(source, weights):
    shard = "test/2019/boxi_0015"
    frames = Frames(source.folder, source.info)
    frequency = []
    for split in ("training", "validation"):
        series = f"2019/boxi_0015/{split}"
        events = classify(frames.rate(series, 0, source.info["series"][series]["rain"]), 0.2)
        frequency.append((events == 1).sum(0) / np.maximum((events != 2).sum(0), 1))
    alpha = 1 / (1 + frequency[0] - frequency[1])
    expected = np.minimum(plain_forecasts(source, weights, shard) * alpha, 1)
    steps = predict.predict(config(), view(calibration="difference_mask"), weights, source, shard)["probability"]
    assert np.abs(steps / 200 + 0.0025 - expected).max() <= 0.0027
    assert (alpha < 1).any() and (alpha > 1).any()


def test_local_hold_outs_count_for_nothing_that_is_fitted(tmp_path):
    storage = Storage.open(tmp_path)
    info = Layout(targets=False, runs=(150, 140, 160, 150)).write(tmp_path)
    index, chosen = Index.read(storage, info), config()
    sequences = [window for split in ("test", "heldout") for window in held(index, split)]
    series = "2019/boxi_0015/training"
    free = index.free(series)
    assert sequences and 0 < free.sum() < len(free)
    frames = Frames(storage, info)
    rates = frames.rate(series, 0, len(free))
    for window in sequences:
        assert not free[window.rain : window.rain + 12].any()
    events = classify(rates[free], 0.2)
    expected = (events == 1).sum(0) / (events != 2).sum(0)
    found = predict.rain_frequency(chosen, Source(storage, info), series)
    assert np.allclose(found, expected, equal_nan=True)
    assert not np.allclose(found, (classify(rates, 0.2) == 1).sum(0) / (classify(rates, 0.2) != 2).sum(0))
    with h5py.File(tmp_path / "2019/OPERA/boxi_0015.train.rates.crop.h5", locking=False) as file:
        share, _ = prepare.rain_share(file["rates.crop"], free)
    assert share == pytest.approx((events == 1).sum() / (events != 2).sum(), rel=0.1)


def held(index, split):
    return index.sequences(split, ("boxi_0015",), (2019,), 4, 8)[f"{split}/2019/boxi_0015"]


def test_an_unknown_shard_or_empty_split_is_named(source, weights):
    with pytest.raises(UserError, match="no test/2020/roxi_0009"):
        predict.predict(config(), view(), weights, source, "test/2020/roxi_0009")
    with pytest.raises(UserError, match="2021"):
        predict.shards(config(years=[2021]), view(), source)


@pytest.mark.parametrize("threshold", [0.0, 1.0, 0.5012, "best"])
def test_thresholds_outside_the_steps_are_refused(threshold):
    with pytest.raises(UserError, match="threshold"):
        override(View(), {"threshold": threshold})


def test_a_view_of_some_regions_reads_theirs_alone(source):
    shards = predict.shards(config(), view(scored=["roxi_0004"]), source)
    assert list(shards) == ["test/2019/roxi_0004", "test/2020/roxi_0004"]
    with pytest.raises(UserError, match=r"'roxi_0009' is none of the run's; name one of boxi_0015, roxi_0004"):
        predict.shards(config(), view(scored=["roxi_0009"]), source)


def test_views_of_before_keep_their_names():
    """Stored forecasts are found by them: those are the names that views had before `scored` was a field."""
    assert view_key(View(epoch=1)) == "view-bc15df3efacd"
    assert view_key(View(epoch=7, threshold="tuned")) == "view-b05ff3ace84e"
    assert view_key(View(epoch=1, scored=("boxi_0015",))) != view_key(View(epoch=1))
