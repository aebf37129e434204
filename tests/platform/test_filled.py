"""Tables filled from the storage: only what is there, and only what counts."""

from dataclasses import replace

import pytest

from retable.platform.plan import compile_plan
from retable.platform.results import cell, gather
from retable.platform.runs import RunFolder
from retable.platform.table import Column, Combined, Measurement, Replicate, Results, Row
from retable.platform.task import find_table
from retable.tasks.line import mean
from retable.tasks.line.config import Config

LINE, TABLE = find_table("line/table1")
RMSE = Column(header="RMSE", metric="rmse")


def measure(config):
    return {}


def planned(storage, *rows):
    return compile_plan({"line/t": (LINE, replace(TABLE, rows=rows, over={"seed": (0, 1)}))}, storage)


def finish(storage, config, weights="abc", slope=2.0):
    folder = RunFolder.of(storage, LINE, config)
    folder.write_history([{"epoch": 3, "step": 12, "time": 0.0, "slope": slope}])
    result = {"metrics": {"slope": slope}, "data": "64 points", "weights": {"3": weights}}
    folder.folder.write_json("result.json", result)
    return folder


def score(plan, seed, rmse, weights="abc"):
    for scoring in plan.scorings.values():
        if scoring.config.seed == seed:
            scoring.folder.save_scores(scoring.view, weights, {"rmse": rmse}, 0.0)


def test_a_row_is_filled_by_the_replicates_that_are_there(storage):
    row = Row(label="a", view={})
    plan = planned(storage, row)
    assert gather(plan, "line/t").select("a") == []
    finish(storage, Config(seed=1))
    assert gather(plan, "line/t").select("a") == []  # trained, not scored
    score(plan, 1, 0.25)
    results = gather(plan, "line/t")
    (found,) = results.select("a")
    assert found.metrics == {"slope": 2.0, "rmse": 0.25} and found.axes == {"seed": 1}
    assert found.fingerprint == RunFolder.of(storage, LINE, Config(seed=1)).fingerprint
    assert [line["epoch"] for line in found.history] == [3]
    assert results.values("a", "rmse").tolist() == [0.25] and results.axis("seed") == [1]


def test_a_row_without_a_view_reads_the_training_itself(storage):
    finish(storage, Config(seed=0), slope=1.5)
    assert gather(planned(storage, Row(label="a")), "line/t").values("a", "slope").tolist() == [1.5]


def test_scores_of_other_weights_and_runs_of_other_data_fill_nothing(storage):
    row = Row(label="a", view={})
    finish(storage, Config(seed=0))
    finish(storage, Config(seed=1))
    plan = planned(storage, row)
    score(plan, 0, 0.5)
    score(plan, 1, 0.5, weights="others")
    assert [r.axes["seed"] for r in gather(planned(storage, row), "line/t").select("a")] == [0]
    storage.write_json("data/line/points/dataset.json", {"digest": "others"})
    assert gather(planned(storage, row), "line/t").select("a") == []


def test_a_combined_row_counts_for_exactly_its_members(storage):
    rows = (Row(label="a", view={}), Combined(label="c", of=("a", "a"), combine=mean))
    folder = finish(storage, Config(seed=0))
    plan = planned(storage, *rows)
    combining = plan.combinings[0]
    assert combining.scores(storage) is None and gather(plan, "line/t").select("c") == []
    storage.write_json(combining.path, {"inputs": combining.inputs(), "metrics": {"rmse": 0.125}})
    (found,) = gather(plan, "line/t").select("c")
    assert found.metrics == {"rmse": 0.125} and found.axes == {"seed": 0}
    finish(storage, Config(seed=0), weights="trained again")
    assert gather(plan, "line/t").select("c") == []
    finish(storage, Config(seed=0))
    assert len(gather(plan, "line/t").select("c")) == 1
    storage.write_json("data/line/points/dataset.json", {"digest": "others"})
    assert gather(planned(storage, *rows), "line/t").select("c") == []
    assert folder.result() is not None


def test_a_combination_of_unfinished_runs_is_not_there(storage):
    plan = planned(storage, Row(label="a", view={}), Combined(label="c", of=("a",), combine=mean))
    storage.write_json(plan.combinings[0].path, {"inputs": ["abc"], "metrics": {"rmse": 0.125}})
    assert gather(plan, "line/t").select("c") == []


def test_a_measurement_is_read_from_its_file(storage):
    plan = planned(storage, Measurement(label="m", measure=measure))
    assert gather(plan, "line/t").select("m") == []
    storage.write_json(next(iter(plan.timings)), {"metrics": {"rmse": 3.0}})
    assert gather(plan, "line/t").values("m", "rmse").tolist() == [3.0]


def test_rows_that_are_absent_are_empty(storage):
    rows = (
        Row(label="a", absent="left out"),
        Row(label="p", overrides=None, published={"RMSE": 0.5}),
        Combined(label="c", of=("a",), combine=mean, absent="left out"),
    )
    results = gather(planned(storage, *rows), "line/t")
    assert [results.select(label) for label in "apc"] == [[], [], []]
    printed = cell(results, rows[1], RMSE)
    assert (printed.mean, printed.deviation, printed.published, printed.difference) == (None, 0.0, 0.5, None)


def results_of(*values, metric="rmse"):
    return Results({"a": [Replicate("a", {}, None, None, metrics={metric: value}) for value in values]})


def test_a_cell_says_mean_deviation_and_difference():
    row = Row(label="a", published={"RMSE": 10.0})
    found = cell(results_of(1.0, 2.0, 6.0), row, RMSE)
    assert found.values == (1.0, 2.0, 6.0) and len(found.replicates) == 3
    assert found.mean == 3.0 and found.difference == -7.0
    assert found.deviation == pytest.approx(((4 + 1 + 9) / 2) ** 0.5)
    single = cell(results_of(4.0), Row(label="a"), RMSE)
    assert (single.mean, single.deviation, single.difference) == (4.0, 0.0, None)


def test_a_cell_leaves_out_replicates_without_the_metric():
    found = cell(results_of(1.0, None), Row(label="a"), RMSE)
    assert found.values == (1.0,) and len(found.replicates) == 1


def test_a_factor_is_applied_to_what_was_measured_and_not_to_what_was_published():
    column = replace(RMSE, factor=1e-6)
    found = cell(results_of(3e6), Row(label="a", published={"RMSE": 2.0}), column)
    assert found.mean == pytest.approx(3.0) and found.difference == pytest.approx(1.0)


def test_a_row_may_read_another_metric_than_its_column():
    row = Row(label="a", metrics={"RMSE": "other"})
    assert cell(results_of(5.0, metric="other"), row, RMSE).values == (5.0,)
    assert cell(results_of(5.0, metric="rmse"), row, RMSE).values == ()
