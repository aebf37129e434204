"""The tables against the paper's, and what each scale makes of them."""

import csv
import inspect
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from retable.platform import api
from retable.platform.config import fingerprint, parent
from retable.platform.spec.table import Combined, Replicate, Results, Row
from retable.platform.spec.task import scaled
from retable.tasks.weather import TASK, claims, figures, tables
from retable.tasks.weather.combine import best_by_validation
from retable.tasks.weather.config import Config, View
from retable.tasks.weather.metrics import scores, summarise, thresholds
from retable.tasks.weather.tables import SUBMISSIONS, TABLE1, TABLE2
from tests.table_results import results_of
from tests.weather.test_metrics import field

TABLES = TASK.tables()
SCALES = TASK.scales()
SMOKE = ("boxi_0015", "roxi_0004")


def published(table):
    return [tuple(row.published[header] for header in ("Total", "2019", "2020")) for row in table.rows if row.published]


@pytest.mark.parametrize(("table", "name"), [(TABLE1, "weather_table1"), (TABLE2, "weather_table2")])
def test_published_values_are_the_papers(shared, table, name):
    with open(shared / f"papers/tables/{name}.csv") as file:
        lines = [tuple(float(line[column]) for column in ("total", "2019", "2020")) for line in csv.DictReader(file)]
    assert sorted(published(table)) == sorted(lines)


def test_the_papers_eighteen_rows_need_thirteen_trainings(tmp_path):
    plan = api.plan("weather/table1", scale="paper", storage=str(tmp_path))
    labels = {row.label for row in SUBMISSIONS}
    table = plan.replicates["weather/table1"]
    needs = [need for label in labels for need in table[label] if need.axes["seed"] == 0]
    assert len({need.label for need in needs}) == 17
    assert len({fingerprint("weather", TASK.version, need.config) for need in needs}) == 13
    thresholds = [need for need in needs if "threshold" in need.label]
    assert {need.view.threshold for need in thresholds} == {0.2, 0.65}


def test_paper_rows_have_the_papers_faults_and_ours_have_not(tmp_path):
    plan = api.plan("weather/table1", scale="paper", storage=str(tmp_path))
    right = [tables.BASELINE_RIGHT, tables.IMPROVED_ALL_RIGHT, tables.CONTEXT_TUNED, tables.CONTEXT_BY_LEAD]
    right += [tables.PERSISTENCE, tables.CLIMATOLOGY]
    for row in right:
        for need in plan.replicates["weather/table1"][row.label]:
            assert (need.config.crop, need.config.mask) == ("centre", "exclude")
    uncropped = plan.replicates["weather/table1"][tables.CONTEXT_UNCROPPED.label][0].config
    assert (uncropped.crop, uncropped.mask) == ("none", "exclude")
    for label, needs in plan.replicates["weather/table1"].items():
        ours = label not in {row.label for row in SUBMISSIONS}
        for need in needs:
            if not ours:
                assert (need.config.crop, need.config.mask) == ("none", "zero")
            if label.startswith("SWIN"):
                resize = "trilinear" if "channel conv" in label else "nearest"
                assert (need.config.model.resize, need.config.model.merging) == (resize, "merging")


def test_batches_and_resizing_are_those_of_the_authors_configurations(tmp_path):
    plan = api.plan("weather", scale="paper", storage=str(tmp_path))
    batches, resizes = {}, {}
    for table in ("weather/table1", "weather/table2"):
        for label, needs in plan.replicates[table].items():
            batches[label] = needs[0].config.batch
            resizes[label] = getattr(needs[0].config.model, "resize", "")
    # models/configurations/config_*.yaml of bruce-willis/weather4cast-2022, e880258; the official ones are the kit's
    assert batches["VIVIT bce. VIVIT base"] == 4
    assert batches["BASELINE bce, w/o convtranspose, train all. Epoch 33"] == 7
    assert batches["BASELINE bce, improved, train all. Epoch 15"] == 12
    assert batches["BASELINE bce, official"] == 40
    swins = {label for label in batches if label.startswith("SWIN")}
    assert {batches[label] for label in swins} == {7}
    channel = {label for label in swins if "channel conv" in label}
    assert len(channel) == 3 and {resizes[label] for label in channel} == {"trilinear"}
    assert {resizes[label] for label in swins - channel} == {"nearest"}


def test_channel_conv_starts_from_the_swin_of_the_table(tmp_path):
    for scale in SCALES:
        plan = api.plan("weather/table1", scale=scale, storage=str(tmp_path))
        needs = plan.replicates["weather/table1"]
        children = needs.get("SWIN-UNETR bce, channel conv. Epoch 1", [])
        assert bool(children) == (scale != "quick")
        for child in children:
            (swin,) = [n for n in needs["SWIN-UNETR bce. Epoch 3"] if n.config.seed == child.config.seed]
            assert parent(child.config) == swin.config
            assert child.config.init.checkpoint == swin.view.epoch


def present(table, scale):
    return {row.label: row for row in scaled(table, SCALES[scale]).rows if not row.absent}


def test_smoke_and_small_run_every_row_and_16_bits_are_bfloat16():
    for scale in ("smoke", "small"):
        for table in (TABLE1, TABLE2):
            assert {row.label for row in table.rows} - set(present(table, scale)) <= {tables.MOVED_BY_PYSTEPS.label}
        rows = present(TABLE1, scale)
        assert rows[tables.SWIN_16BIT.label].overrides["precision"] == "bfloat16"
        assert "precision" not in rows[tables.SWIN_BCE.label].overrides


def test_quick_runs_the_references_and_one_network_of_each_kind():
    kept = {label for label, row in present(TABLE1, "quick").items() if isinstance(row, Row)}
    networks = (tables.OFFICIAL_ROW, tables.BASELINE_IMPROVED, tables.SWIN_BCE, tables.CONTEXT_TUNED)
    references = (tables.ALL_RAIN, tables.CLIMATOLOGY, tables.PERSISTENCE, tables.MOVED)
    assert kept == {row.label for row in (*networks, *references)}
    assert len(SCALES["quick"].over["seed"]) == 1 and "to save time" in scaled(TABLE1, SCALES["quick"]).note


def test_the_row_of_pysteps_is_there_where_the_library_is(monkeypatch):
    module = import_module("retable.tasks.weather.scales")  # the package has a function of that name
    for found in (None, object()):
        monkeypatch.setattr(module, "find_spec", lambda name, found=found: found)
        for scale in (SCALES[name] for name in SCALES if name != "quick"):
            table = scaled(TABLE1, scale)
            (row,) = [row for row in table.rows if row.label == tables.MOVED_BY_PYSTEPS.label]
            assert bool(row.absent) == (found is None)
            assert ("pip install 'retable[pysteps]'): retrieval moved by pysteps" in table.note) == (found is None)


def test_a_region_left_out_is_scored_by_a_run_of_its_own_beside_the_run_on_all(tmp_path):
    plan = api.plan("weather", scale="smoke", storage=str(tmp_path))
    found = plan.replicates["weather/regions"]
    (everywhere,) = {
        fingerprint("weather", TASK.version, n.config) for n in plan.replicates["weather/table1"]["context network"]
    }
    assert set(found) == {f"{region}, trained on {what}" for region in SMOKE for what in ("all regions", "the others")}
    for region in SMOKE:
        (seen,), (new,) = found[f"{region}, trained on all regions"], found[f"{region}, trained on the others"]
        assert fingerprint("weather", TASK.version, seen.config) == everywhere
        assert seen.view == new.view == View(epoch=1, scored=(region,))
        assert new.config.regions == SMOKE and new.config.trained_regions == tuple(r for r in SMOKE if r != region)
    absent = [row.label for row in scaled(TABLES["regions"], SCALES["smoke"]).rows if row.absent]
    assert len(absent) == 10 and not any(region in label for label in absent for region in SMOKE)


def test_windows_are_shuffled_one_by_one_at_every_scale(tmp_path):
    for scale, usual in (("smoke", 16), ("small", 4), ("paper", 16)):
        found = api.plan("weather", scale=scale, storage=str(tmp_path)).replicates
        rows = found["weather/shuffling"].items()
        runs = {label: {need.config.window_run for need in needs} for label, needs in rows if label.startswith("win")}
        assert runs == {"windows in runs": {usual}, "windows one by one": {1}}
        assert {need.config.window_run for needs in found["weather/table1"].values() for need in needs} == {usual}


def test_epochs_shrink_in_order_and_the_note_says_so():
    small = scaled(TABLE1, SCALES["small"])
    epochs = {row.label: (row.view or {}).get("epoch") for row in small.rows if isinstance(row, Row)}
    early, late = epochs["BASELINE bce, train all. Epoch 24"], epochs["BASELINE bce, train all. Epoch 53"]
    assert 0 < early < late == 7 and "54 of 54 -> 7 of 12" in small.note
    assert "16 of 16 -> 12 of 12" in small.note, "a run that is scored at its end has all the epochs of this scale"


def test_reduced_epochs_keep_votes_apart_and_compared_rows_as_long():
    small = {row.label: row for row in scaled(TABLE2, SCALES["small"]).rows if isinstance(row, Row)}
    votes = [(sorted(small[one].overrides.items()), small[one].view) for one in tables.VOTE.of]
    assert all(one not in votes[:place] for place, one in enumerate(votes)), "no network has two votes"
    first = {row.label: (row.view or {}).get("epoch") for row in scaled(TABLE1, SCALES["small"]).rows[:20]}
    assert first["BASELINE bce, train all. Epoch 24"] == first["BASELINE bce. Epoch 23"] == 3
    assert first["BASELINE bce, train all. Epoch 53"] == 7, "of the same 12 epochs"


def test_a_small_swin_is_trained_for_as_many_epochs_as_the_papers():
    """What turns four channels into leads is compared at the paper's lengths: 4, 4 + 2 and 2 epochs."""
    small = {row.label: row.overrides for row in scaled(TABLE1, SCALES["small"]).rows if isinstance(row, Row)}
    channels = small[tables.SWIN_CHANNELS.label]
    assert (channels["init.checkpoint"], dict(channels["init.overrides"])["epochs"], channels["epochs"]) == (4, 4, 2)
    assert [small[row.label]["epochs"] for row in (tables.SWIN_BCE, tables.SWIN_UPSAMPLE)] == [4, 2]


def test_combined_rows_join_what_is_run():
    small = scaled(TABLE2, SCALES["small"])
    present = {row.label for row in small.rows if isinstance(row, Row) and not row.absent}
    joined = {row.label: row.of for row in small.rows if isinstance(row, Combined) and not row.absent}
    assert "majority vote" in joined and all(set(of) <= present and len(of) > 1 for of in joined.values())


def test_no_row_that_trained_on_validation_is_chosen_by_it():
    seen = []
    for table in (TABLE1, TABLE2):
        rows = {row.label: row for row in table.rows if isinstance(row, Row)}
        chosen = [row for row in table.rows if isinstance(row, Combined) and row.combine is best_by_validation]
        seen.append([(rows[label].overrides or {}).get("train_on") for row in chosen for label in row.of])
    assert all(seen) and "training_and_validation" not in seen[0] + seen[1]


def test_a_reduced_config_keeps_every_choice_of_its_row():
    for scale in ("smoke", "small"):
        table = scaled(TABLE1, SCALES[scale])
        for full, reduced in zip(TABLE1.rows, table.rows, strict=True):
            if isinstance(full, Row) and not reduced.absent:
                kept = {"crop", "mask", "loss", "train_on", "model", "model.variant", "model.upsampling"}
                assert {k: v for k, v in full.overrides.items() if k in kept}.items() <= reduced.overrides.items()


def replicate(label, seed, hits, summaries=None):
    """A run whose two sequences in each of two shards have so many hits of 100 rainy pixels, and no false alarms."""
    histogram = np.zeros((2, 1, 201, 2), np.int32)
    histogram[:, 0, 200, 1], histogram[:, 0, 0, 1] = hits, 100 - np.asarray(hits)
    found = {f"test/{year}/roxi_0004": {"histogram": histogram} for year in (2019, 2020)}
    need = Replicate(label, {"seed": seed}, Config(seed=seed), View(epoch=1))
    return replace(need, metrics={}, summaries=lambda: summaries or found)


def results(**rows):
    return results_of(
        TABLES,
        {label: [replicate(label, seed, hits) for seed, hits in enumerate(seeds)] for label, seeds in rows.items()},
    )


ROWS = {label: Row(label=label) for label in "abc"}


@pytest.mark.parametrize(
    ("a", "b", "status"),
    [
        ([[80, 82], [81, 83], [80, 80]], [[50, 52], [49, 51], [50, 50]], "holds"),
        ([[50, 52], [49, 51], [50, 50]], [[80, 82], [81, 83], [80, 80]], "does not hold"),
        ([[50, 80], [80, 50], [60, 61]], [[51, 79], [79, 52], [61, 60]], "not separable"),
        ([[80, 82]], [[50, 52]], "not tested at this scale"),
    ],
)
def test_a_claim_rests_on_the_interval(a, b, status):
    verdict = claims.beats(results(a=a, b=b), ROWS["a"], ROWS["b"])
    assert verdict.status == status and ("IoU" in verdict.because or "seed" in verdict.because)


def test_equal_means_within_a_hundredth():
    near = [[80, 82], [81, 83], [80, 80]]
    assert claims.equals(results(a=near, b=near), "a", "b").status == "holds"
    far = [[50, 52], [49, 51], [50, 50]]
    assert claims.equals(results(a=near, b=far), "a", "b").status == "does not hold"


def test_a_sentence_holds_if_every_part_does():
    data = results(a=[[80, 82]] * 3, b=[[50, 52]] * 3, c=[[90, 92]] * 3)
    assert claims.beats(data, ROWS["a"], ROWS["b"]).status == "holds"
    assert claims.beats(data, ROWS["a"], ROWS["b"], ROWS["c"]).status == "does not hold"
    assert (
        claims.beats(data, ROWS["a"], ROWS["b"], Row(label="BASELINE bce, official")).status
        == "not tested at this scale"
    )


def uncertain(label, seed, split_rain, calibration):
    """A run that says 0.9 where it rains on 3 of 10 pixels, or as `split_rain` has it for validation and test."""
    found = {}
    for split, rain in zip(("validation", "test"), split_rain, strict=True):
        histogram = np.zeros((4, 2, 201, 2), np.int32)
        histogram[:, :, 180] = [100 - rain, rain]
        histogram[:, :, 4] = [900 + seed, 1]
        found[f"{split}/2019/roxi_0004"] = {"histogram": histogram}
    view = View(epoch=1, threshold="tuned", calibration=calibration)
    need = Replicate(label, {"seed": seed}, Config(seed=seed), view)
    return replace(need, metrics={}, summaries=lambda: found)


@pytest.mark.parametrize(
    ("rain", "seeds", "status"),
    [((30, 30), 3, "holds"), ((30, 90), 3, "does not hold"), ((30, 30), 2, "not tested at this scale")],
)
def test_calibration_holds_where_the_brier_score_falls(rain, seeds, status):
    rows = {"calibrated": "isotonic", "plain": "none"}
    found = results_of(TABLES, {k: [uncertain(k, s, rain, how) for s in range(seeds)] for k, how in rows.items()})
    verdict = claims.lowers_brier(found, "calibrated", "plain")
    assert verdict.status == status
    assert verdict.because.startswith(("-0.", "+0.")[status != "holds"]) == (seeds == 3)
    assert "3 seeds, 4 sequences" in verdict.because or seeds == 2


def test_what_thresholds_and_calibration_gain_is_claimed_of_views_of_one_training(tmp_path):
    plan = api.plan("weather/table1", scale="smoke", storage=str(tmp_path))
    own = [plan.replicates["weather/table1"][row.label][0] for row in (tables.CONTEXT_TUNED, tables.CONTEXT_BY_LEAD)]
    calibrated = plan.replicates["weather/table1"][tables.CONTEXT_CALIBRATED.label][0]
    assert len({fingerprint("weather", TASK.version, each.config) for each in (*own, calibrated)}) == 1
    assert [each.view.threshold for each in own] == ["tuned", "tuned_per_region_and_lead"]
    assert calibrated.view == replace(own[0].view, calibration="isotonic")
    texts = [claim.text for claim in TABLES["table1"].claims if claim.ours]
    assert any("lead time" in text for text in texts) and any("Brier" in text for text in texts)


def test_every_claim_names_rows_of_its_table():
    for table in TABLES.values():
        empty = Results({row.label: [] for row in table.rows})
        assert all(claim.check(empty).status == "not tested at this scale" for claim in table.claims)


def measured(label, values, hits):
    """A row's replicates with these IoU scores, one for each seed."""
    return [replace(replicate(label, s, hits), metrics={"iou": value}) for s, value in enumerate(values)]


LEARNT = [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("one", "other", "climatology", "everywhere", "because"),
    [
        (LEARNT, LEARNT, 0.4, 0.45, ""),
        (LEARNT, LEARNT, 0.9, 0.1, "climatology 0.900"),
        (LEARNT, LEARNT, 0.1, 0.9, "all rain 0.900"),
        (LEARNT, [0.063, 0.078, 0.00001], 0.053, 0.05, "has an IoU of 0.047, climatology 0.053"),
        ([0.063, 0.078, 0.00001], LEARNT, 0.053, 0.05, "has an IoU of 0.047, climatology 0.053"),
        (LEARNT, LEARNT, None, 0.1, "climatology, which trained rows have to exceed, was not run"),
        (LEARNT, LEARNT, 0.1, None, "all rain, which trained rows have to exceed, was not run"),
    ],
)
def test_no_claim_compares_a_row_whose_mean_is_below_a_reference(one, other, climatology, everywhere, because):
    """All rows of a claim have to pass, of the paper's and of ours; the mean of two good seeds and a dead one fails."""
    pairs = {
        "BASELINE: binary cross-entropy beats optimising IoU.": (tables.BASELINE, tables.BASELINE_IOU),
        "The context network beats the retrieval moved by optical flow.": (tables.CONTEXT_TUNED, tables.MOVED),
        "Isotonic calibration lowers the Brier score of the context network.": (
            tables.CONTEXT_CALIBRATED,
            tables.CONTEXT_TUNED,
        ),
    }
    checks = {claim.text: claim.check for claim in TABLES["table1"].claims}
    for text, rows in pairs.items():
        found = {rows[0].label: measured(rows[0].label, one, [80, 82])}
        found[rows[1].label] = measured(rows[1].label, other, [50, 52])
        for row, value in ((tables.CLIMATOLOGY, climatology), (tables.ALL_RAIN, everywhere)):
            found[row.label] = [] if value is None else measured(row.label, [value], [1, 1])
        if because:
            verdict = checks[text](results_of(TABLES, found))
            assert verdict.status == "not tested at this scale" and because in verdict.because, text
        elif "Brier" not in text:
            assert checks[text](results_of(TABLES, found)).status == "holds", text


def test_every_claim_on_trained_rows_has_the_gate_and_its_table_the_references():
    """Asked for on rows that were run, each claim looks at the references, but for those that compare with them."""
    for name, table in TABLES.items():
        labels = {row.label for row in table.rows}
        if table.claims:
            assert set(claims.GATES) <= labels, name
        for claim in table.claims:
            results = results_of({name: table}, {})
            verdict = claim.check(results)
            compared = {row.label for row in inspect.getclosurevars(claim.check).nonlocals["rest"]}
            assert ("was not run" in verdict.because) == (not compared & set(claims.REFERENCES)), claim.text


def test_climatology_is_held_against_at_the_threshold_that_is_best_on_validation():
    rows = [row for table in TABLES.values() for row in table.rows if row.label == tables.CLIMATOLOGY.label]
    assert rows and all(row.view["threshold"] == "tuned" for row in rows)


def test_the_retrievals_three_rows_are_views_of_one_training(tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("retable.tasks.weather.scales"), "find_spec", lambda name: object())
    found = api.plan("weather/table1", scale="smoke", storage=str(tmp_path)).replicates["weather/table1"]
    needs = [found[row.label][0] for row in (tables.PERSISTENCE, tables.MOVED, tables.MOVED_BY_PYSTEPS)]
    assert len({fingerprint("weather", TASK.version, need.config) for need in needs}) == 1
    assert [need.view.motion for need in needs] == ["none", "optical_flow", "pysteps"]


def test_pysteps_is_held_against_the_network_over_all_and_by_lead_time(tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("retable.tasks.weather.scales"), "find_spec", lambda name: object())
    (claim,) = [each for each in TABLES["table1"].claims if "pysteps" in each.text]
    assert claim.ours and inspect.getclosurevars(claim.check).nonlocals["rest"] == (
        tables.CONTEXT_TUNED,
        tables.MOVED_BY_PYSTEPS,
    )
    drawn = {row.label for row in scaled(tables.VERIFICATION, SCALES["small"]).rows if not row.absent}
    compared = (tables.CONTEXT_TUNED, tables.PERSISTENCE, tables.MOVED, tables.MOVED_BY_PYSTEPS)
    assert {row.label for row in compared} <= drawn and len(drawn) <= len(figures.STYLES)


def drawn_row(summaries, leads=8):
    return replace(replicate("swin", 0, [1, 1], summaries), config=Config(forecast=leads))


def test_figure_shows_radar_and_forecasts_with_their_rain_ratios():
    events = np.zeros((2, 12, 12), np.uint8)
    events[0, :6] = 1
    events[1, 0, 0] = 2
    steps = np.where(np.arange(12) < 3, 120, 20).astype(np.uint8) * np.ones((2, 12, 12), np.uint8)
    summary = {"test/2020/roxi_0004": {"example_events": events, "example_steps": steps}}
    rows = {"swin": [drawn_row(summary)]}
    drawing = figures.draw_forecasts(results_of(TABLES, rows))
    titles = [axis.get_title() for axis in drawing.axes]
    seen = 35 / 143  # where no radar looked, the forecast does not count either
    assert titles == ["1 h, 50.0%", "2 h, 0.0%", "1 h, 25.0%", f"2 h, {seen:.1%}"]
    assert "2020/roxi_0004" in drawing.get_suptitle()
    half = {"test/2020/roxi_0004": {name: maps[:1] for name, maps in summary["test/2020/roxi_0004"].items()}}
    drawing = figures.draw_forecasts(results_of(TABLES, {"swin": [drawn_row(half, 2)]}))
    assert [axis.get_title() for axis in drawing.axes] == ["0.5 h, 50.0%", "0.5 h, 25.0%"]
    empty = figures.draw_forecasts(results_of(TABLES, {"swin": []}))
    assert not empty.axes and not empty.texts


@pytest.mark.parametrize("threshold", ["tuned", "tuned_per_region_and_lead"])
def test_figure_shows_forecasts_at_tuned_thresholds(threshold):
    splits = {"test": field(1, n=2, leads=8), "validation": field(2, n=2, leads=8)}
    summaries = {f"{split}/2020/roxi_0004": summarise(*fields) for split, fields in splits.items()}
    row = replace(drawn_row(summaries), view=View(threshold=threshold))
    drawing = figures.draw_forecasts(results_of(TABLES, {"swin": [row]}))
    best = np.broadcast_to(thresholds(row.view, summaries)["test/2020/roxi_0004"], 8)[[3, 7]]
    shown = summaries["test/2020/roxi_0004"]
    wanted = []
    for steps, events, one in zip(shown["example_steps"], shown["example_events"], best, strict=True):
        wanted.append((steps >= round(200 * one))[events != 2].mean())
    titles = [axis.get_title() for axis in drawing.axes[2:]]
    assert titles == [f"{hour} h, {share:.1%}" for hour, share in enumerate(wanted, start=1)]


def test_figure_of_data_without_the_papers_year_shows_and_names_the_last_there_is():
    shown = {"example_events": np.zeros((2, 12, 12), np.uint8), "example_steps": np.zeros((2, 12, 12), np.uint8)}
    summaries = {f"test/{place}": shown for place in ("2018/roxi_0004", "2019/roxi_0004", "2020/boxi_0015")}
    drawing = figures.draw_forecasts(results_of(TABLES, {"swin": [drawn_row(summaries)]}))
    assert drawing.get_suptitle() == "2019/roxi_0004"
    summaries |= {f"test/{year}/roxi_0004": shown for year in (2020, 2021)}
    drawing = figures.draw_forecasts(results_of(TABLES, {"swin": [drawn_row(summaries)]}))
    assert drawing.get_suptitle() == "2020/roxi_0004"
    assert len(drawing.axes) == 4


def test_verification_draws_the_scores_that_are_computed_with_an_interval():
    shards = {"test/2019/boxi_0015": field(1, n=4, leads=4), "test/2020/roxi_0004": field(2, n=4, leads=4)}
    summaries = {shard: summarise(*each) for shard, each in shards.items()}
    found = [replace(replicate("swin", seed, [1, 1], summaries), view=View(threshold=0.4)) for seed in (0, 1)]
    drawing = figures.draw_verification(results_of(TABLES, {"swin": found, "vivit": []}))
    expected = scores(summaries, dict.fromkeys(summaries, 0.4), 4)
    lead = drawing.axes[0].lines[0].get_xydata()
    assert np.allclose(lead[:, 0], [0.25, 0.5, 0.75, 1])
    assert np.allclose(lead[:, 1], [expected[f"iou/lead/{minutes:03d}"] for minutes in (15, 30, 45, 60)])
    widths = drawing.axes[4].lines[0].get_ydata()
    assert np.allclose(widths, [expected[f"fss/{width}px"] for width in (1, 3, 9, 12)])
    assert drawing.axes[3].get_xticklabels()[0].get_text() == "2019 boxi_0015"
    assert len(drawing.axes) == 8 and [text.get_text() for text in drawing.legends[0].get_texts()] == ["swin"]


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_that_a_scale_runs_is_planned(tmp_path, scale):
    plan = api.plan("weather", scale=scale, storage=str(tmp_path))
    runs = {name: scaled(table, SCALES[scale]).rows for name, table in TABLES.items()}
    labels = {
        name: {row.label for row in rows if isinstance(row, Row) and not row.absent} for name, rows in runs.items()
    }
    assert len(labels["table1"]) >= 8
    assert all(rows <= plan.replicates.get(f"weather/{name}", {}).keys() for name, rows in labels.items())
