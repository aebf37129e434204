"""Verification against loops over pixels, closed forms, a second library, and a page from the command line."""

import csv

import numpy as np
import pytest

from retable.platform.errors import UserError
from retable.platform.spec.task import Source
from retable.tasks.weather import cli, figures, metrics
from retable.tasks.weather.config import View
from retable.tasks.weather.predict import events, predict
from retable.tasks.weather.tools.forecasts import verify
from retable.tasks.weather.tools.forecasts.cases import Case, Forecast, agreement, cases, draw_cases
from retable.tasks.weather.tools.forecasts.exchange import opened
from retable.tasks.weather.verification import Verification, banded, brier, contingency, known_mean
from tests.weather.test_metrics import field, loop_counts
from tests.weather.toys import config, make, run

SHARDS = ("test/2019/boxi_0015", "test/2020/roxi_0004")


@pytest.fixture(scope="module")
def fields():
    return {shard: field(k, n=6, leads=4, rain=0.15 * (k + 1)) for k, shard in enumerate(SHARDS)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    storage = make(tmp_path_factory.mktemp("weather") / "results")
    return storage, [run(storage, config(epochs=1, seed=seed)) for seed in (0, 1)]


@pytest.fixture(scope="module")
def part(fields):
    summaries = {shard: metrics.summarise(*each) for shard, each in fields.items()}
    return Verification("ours", [summaries], [dict.fromkeys(SHARDS, 0.5)])


def loop_scores(steps, events, threshold=0.5):
    tp, fp, fn, _ = loop_counts(steps, events, threshold)
    return [tp / (tp + fp + fn), tp / (tp + fn), fp / (tp + fp), (tp + fp) / (tp + fn)]


def test_scores_are_what_a_loop_over_pixels_counts(fields, part):
    total = [loop_scores(*fields[shard]) for shard in SHARDS]
    assert np.allclose(part.total().value, np.mean(total, axis=0))
    for number, shard in enumerate(SHARDS):
        assert np.allclose(part.by_place()[" ".join(shard.split("/")[1:])].value, total[number])
    leads = [[loop_scores(*(each[:, lead] for each in fields[s])) for lead in range(4)] for s in SHARDS]
    assert np.allclose(part.by_lead().value, np.mean(leads, axis=0))
    curve = part.by_threshold().value
    for step in (1, 60, 100, 199):
        found = [loop_counts(*fields[shard], step / 200) for shard in SHARDS]
        assert curve[step - 1] == pytest.approx(np.mean([tp / (tp + fp + fn) for tp, fp, fn, _ in found]))
    rain = [[(e[:, lead] == 1).sum() / (e[:, lead] < 2).sum() for lead in range(4)] for _, e in fields.values()]
    assert np.allclose(part.all_rain(), np.mean(rain, axis=0))


def test_thresholds_may_differ_by_lead_time(fields, part):
    own = np.array([0.3, 0.5, 0.6, 0.8])
    apart = Verification("ours", part.members, [dict.fromkeys(SHARDS, own)])
    leads = [[loop_scores(*(e[:, k] for e in fields[s]), own[k]) for k in range(4)] for s in SHARDS]
    assert np.allclose(apart.by_lead().value, np.mean(leads, axis=0))
    scored = metrics.scores(part.members[0], dict.fromkeys(SHARDS, own), 4)
    assert scored["threshold"] == pytest.approx(0.55) and scored["iou"] == pytest.approx(apart.total().value[0])


def test_reliability_and_briers_parts_are_what_pixels_say(fields, part):
    seen = np.concatenate([events.ravel() < 2 for _, events in fields.values()])
    steps = np.concatenate([each.ravel() for each, _ in fields.values()])[seen]
    rained = np.concatenate([events.ravel() for _, events in fields.values()])[seen]
    probability = np.minimum((steps + 0.5) / 200, 1)
    band, forecast, shares = part.reliability()
    tenth = np.minimum(steps // 20, 9)
    for k in np.unique(tenth):
        assert band.value[k] == pytest.approx(rained[tenth == k].mean())
        assert forecast[k] == pytest.approx(probability[tenth == k].mean())
    assert np.allclose(shares.value, np.bincount(tenth, minlength=10) / len(tenth))
    score, reliability, resolution, uncertainty, skill = part.brier().value
    base = rained.mean()
    assert score == pytest.approx(((probability - rained) ** 2).mean())
    assert score == pytest.approx(reliability - resolution + uncertainty)
    assert uncertainty == pytest.approx(base * (1 - base))
    assert skill == pytest.approx(1 - score / ((base - rained) ** 2).mean())


def test_what_is_not_defined_is_no_number():
    dry = np.array([[0, 0, 0, 9.0], [0, 3, 0, 6]])
    assert np.array_equal(contingency(dry), [[0, np.nan, np.nan, np.nan], [0, np.nan, 1, np.nan]], equal_nan=True)
    assert np.isnan(metrics.fss(np.zeros((4, 2)))).all()
    assert np.isnan(brier(np.zeros((201, 2)))).all()
    always = np.zeros((201, 2))
    always[200, 1] = 5
    assert np.isnan(brier(always)[4]) and brier(always)[0] == 0
    band = banded({"test/2019/a": dry[None, :1]}, contingency)
    assert np.isnan(band.low[1:]).all() and band.value[0] == 0
    assert known_mean(np.array([[1.0, np.nan], [3.0, np.nan]]), 0).tolist()[0] == 2


def test_summaries_that_older_versions_kept_for_each_lead_time_are_read(part):
    one, *rest = part.members[0].values()
    names, shares = ("fss_error", "fss_reference"), np.array([0.1, 0.2, 0.3, 0.4])[:, None]
    older = [{**one, **{name: one[name][:, None] * shares for name in names}}, *rest]
    again = Verification("older", [dict(zip(SHARDS, older, strict=True))], part.thresholds)
    assert older[0]["fss_error"].shape == (6, 4, 4)
    assert np.allclose(again.by_width().value, part.by_width().value)
    assert np.allclose(again.by_width().low, part.by_width().low)


def test_an_interval_is_a_naive_bootstraps_and_narrows_with_sequences():
    random = np.random.default_rng(0)

    def table(sequences):
        return random.integers(1, 40, (2, sequences, 4))

    few, draws = {shard: table(8) for shard in SHARDS}, 4000
    band = banded(few, contingency, draws=draws)
    naive = []
    for _ in range(draws):
        shards = []
        for each in few.values():
            drawn = each[:, random.integers(0, 8, 8)].sum(axis=1)
            shards.append([c[0] / c[:3].sum() for c in drawn])
        naive.append(np.mean(shards))
    assert np.allclose([band.low[0], band.high[0]], np.percentile(naive, [2.5, 97.5]), atol=0.008)
    many = banded({shard: table(200) for shard in SHARDS}, contingency)
    assert (many.high - many.low)[0] < 0.5 * (band.high - band.low)[0]
    assert band.low[0] < band.value[0] < band.high[0]


def test_the_scores_library_agrees(fields, part):
    """Of the Australian Bureau of Meteorology: contingency table, Brier score, fractions skill score."""
    scores = pytest.importorskip("scores", reason="scores is not installed; it is a second oracle")
    xarray = pytest.importorskip("xarray")
    steps, events = fields[SHARDS[0]]
    seen = events < 2
    probability = xarray.DataArray(np.where(seen, np.minimum((steps + 0.5) / 200, 1), np.nan).ravel(), dims="pixel")
    event = xarray.DataArray(np.where(seen, events, np.nan).ravel().astype(float), dims="pixel")
    yes = xarray.where(probability.isnull(), np.nan, (probability >= 0.5).astype(float))
    table = scores.categorical.BinaryContingencyManager(yes, event)
    found = [
        table.critical_success_index(),
        table.probability_of_detection(),
        table.false_alarm_ratio(),
        table.frequency_bias(),
    ]
    ours = part.by_place()["2019 boxi_0015"].value
    assert np.allclose([float(each) for each in found], ours)
    known = ~np.isnan(event)
    single = {SHARDS[0]: part.steps[SHARDS[0]]}
    assert banded(single, brier, pooled=True).value[0] == pytest.approx(
        float(scores.probability.brier_score(probability[known], event[known]))
    )


def test_cases_are_the_best_the_middle_and_the_worst_of_those_with_rain():
    counts = np.zeros((5, 2, 4), np.int64)
    counts[:, :, 3] = 500
    counts[0, 0, :3], counts[1, 0, :3], counts[2, 0, :3] = (8, 1, 1), (10, 10, 0), (0, 9, 9)
    counts[3, 0, :3] = (1, 0, 0)  # a thousandth of it is rain: luck
    assert cases({"test/2019/a": counts}) == {
        "best": ("test/2019/a", 0),
        "median": ("test/2019/a", 1),
        "worst": ("test/2019/a", 2),
    }
    assert cases({"test/2019/a": counts[1:]}) == {"best": ("test/2019/a", 0), "worst": ("test/2019/a", 1)}
    assert cases({"test/2019/a": counts[:1]}) == {"only": ("test/2019/a", 0)}
    assert cases({"test/2019/a": counts[3:]}) == {}


def test_one_sequence_a_place_gives_no_interval():
    table = np.array([[[30, 10, 5, 55]]])
    alone = banded({"test/2019/a": table, "test/2019/b": table}, contingency)
    assert alone.value[0] == pytest.approx(30 / 45) and np.isnan(alone.low).all() and np.isnan(alone.high).all()
    two = banded({"test/2019/a": table, "test/2019/b": table.repeat(2, 1)}, contingency)
    assert not np.isnan(two.low).any()


def test_agreement_counts_pixels_by_votes():
    votes = np.array([0, 1, 2, 2, 1, 0]).reshape(1, 1, 2, 3)
    events = np.array([0, 1, 1, 0, 2, 0]).reshape(1, 1, 2, 3)
    assert agreement(votes, events, 2).tolist() == [[2, 0], [0, 1], [1, 1]]


def test_isotonic_probabilities_are_those_of_scipys_oracle_and_better_on_their_own_data(fields):
    histograms = [metrics.summarise(*each)["histogram"] for each in fields.values()]
    risen = metrics.isotonic(histograms)
    assert (np.diff(risen) >= -1e-12).all() and risen.min() >= 0 and risen.max() <= 1
    pooled = sum(each.sum(axis=(0, 1)) for each in histograms)
    before, after = metrics.calibration(pooled), metrics.calibration(pooled, risen)
    assert after["brier"] < before["brier"]
    assert after["reliability_error"] == pytest.approx(0, abs=1e-9)
    # pooled violators: of two blocks that fall, both have their common mean
    falling = np.zeros((201, 2), np.int64)
    falling[50], falling[150] = (1, 3), (6, 2)
    flat = metrics.isotonic([falling])
    assert flat[50] == pytest.approx(5 / 12) and flat[100] == pytest.approx(5 / 12)
    assert np.array_equal(metrics.isotonic([np.zeros((201, 2), np.int64)]), metrics.MIDDLES)


@pytest.mark.slow
def test_the_command_writes_a_page_that_agrees_with_score(trained, tmp_path, capsys):
    storage, (first, second) = trained[0], (folder.fingerprint for folder in trained[1])
    out = tmp_path / "page"
    cli.verify([first, second], out, storage.root, threshold="0.4", regions="", years="")
    page = (out / "index.html").read_text()
    assert {path.name for path in out.iterdir()} >= {"index.html", "scores.png", "scores.dark.png", "scores.csv"}
    assert (out / "agreement.png").exists() and "Agreement" in page and "UNet" in page
    rows = list(csv.DictReader((out / "scores.csv").read_text().splitlines()))
    capsys.readouterr()
    cli.score(first, storage.root, threshold="0.4", regions="", years="")
    said = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    mine = {(row["about"], row["where"], row["score"]): row for row in rows if first[:8] in row["run"]}
    assert float(mine["all", "", "IoU"]["value"]) == pytest.approx(float(said["iou"]), abs=1e-4)
    assert float(mine["minutes", "15", "IoU"]["value"]) == pytest.approx(float(said["iou/lead/015"]), abs=1e-4)
    assert float(mine["all", "", "Brier"]["value"]) == pytest.approx(float(said["brier"]), abs=1e-4)
    place = float(mine["year and region", "2019 boxi_0015", "IoU"]["value"])
    assert place == pytest.approx(float(said["iou/2019/boxi_0015"]), abs=1e-4)
    other = run(storage, config(epochs=1, forecast=4)).fingerprint
    with pytest.raises(UserError, match="differ in forecast"):
        cli.verify([first, other], out, storage.root, regions="", years="")


@pytest.mark.parametrize(
    ("split", "threshold"),
    [
        ("validation", "tuned"),
        ("test", "tuned_per_region"),
        pytest.param("validation", "tuned_per_region", marks=pytest.mark.slow),
        pytest.param("test", "tuned", marks=pytest.mark.slow),
    ],
)
def test_runs_agree_at_the_thresholds_of_the_page(trained, tmp_path, monkeypatch, split, threshold):
    storage, folders = trained
    chosen = [opened(folder.fingerprint, str(storage.root), split, 0, threshold) for folder in folders]
    written = []
    monkeypatch.setattr(verify, "write_page", lambda runs, parts, shown, votes, out: written.append((parts, votes)))
    verify.verify(chosen, tmp_path, lambda done, total: None)
    ((parts, votes),) = written
    source, total = Source.of(storage, "weather/tiny"), 0
    for shard in parts[0].counts:
        rain = [
            metrics.rain(
                predict(each.config, View(), each.run.weights(1), source, shard)["probability"],
                part.thresholds[0][shard],
            )
            for each, part in zip(chosen, parts, strict=True)
        ]
        total = total + agreement(np.sum(rain, axis=0), events(chosen[0].config, source, shard), 2)
    assert np.array_equal(votes, total)


def test_every_run_has_a_line_of_maps_below_the_radar():
    events, threshold = np.zeros((4, 8, 8), np.int64), np.full(4, 0.5)
    events[:, 2:5] = 1
    forecasts = [Forecast(f"run {n}", np.full((4, 8, 8), n / 4), threshold) for n in range(3)]
    figure = draw_cases([Case(name, events, forecasts) for name in ("best", "worst")])
    said = [axis.get_ylabel() for axis in figure.axes][:8]
    assert said == [text for name in ("best", "worst") for text in (f"{name}\nradar", "run 0", "run 1", "run 2")]
    shown = [np.asarray(axis.images[0].get_array())[0, 0] for axis in figure.axes[1:4]]
    assert shown == [0, 0.25, 0.5]


def test_pictures_of_a_forecast_that_never_rains(part):
    dry = {shard: {**each, "histogram": np.zeros_like(each["histogram"])} for shard, each in part.members[0].items()}
    for each in dry.values():
        each["histogram"][:, :, 0, 0] = 9
    figure = figures.draw_scores([part, Verification("dry", [dry], [dict.fromkeys(SHARDS, 0.5)])])
    figure.canvas.draw()
    assert [axis.get_title() for axis in figure.axes][:2] == ["by lead time", "detected (line), false alarms (dashed)"]
