"""Tables filled from the storage: only what is there, and only what counts."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from retable.platform.cli.filled import print_section
from retable.platform.plan.plan import compile_plan
from retable.platform.report import html, render
from retable.platform.report.results import Cell, FilledColumn, FilledTable, fill, gather
from retable.platform.spec.table import Column, Combined, Measurement, Row
from retable.platform.spec.task import find_table
from retable.platform.store.run import RunFolder
from retable.tasks.line import mean
from retable.tasks.line.config import Config

LINE, TABLE = find_table("line/table1")
RMSE = Column(header="RMSE", metric="rmse")


def measure(config):
    return {}


def planned(storage, *rows, columns=(RMSE,)):
    table = replace(TABLE, rows=rows, columns=columns, claims=(), over={"seed": (0, 1)})
    return compile_plan({"line/t": (LINE, table)}, storage)


def finish(storage, config, weights="abc", slope=2.0, first="", first_slope=0.0):
    """Write a finished run; `first` is the digest of its first epoch's weights, where they were kept."""
    folder = RunFolder.of(storage, LINE, config)
    kept = {"weights": first} if first else {}
    rows = [{"epoch": 1, "step": 4, "time": 0.0, "slope": first_slope, **kept}] if first else []
    folder.write_history([*rows, {"epoch": 3, "step": 12, "time": 0.0, "slope": slope}])
    digests = {"3": weights, **({"1": first} if first else {})}
    result = {"metrics": {"slope": slope}, "data": "64 points", "weights": digests}
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
    assert found.origin.run == RunFolder.of(storage, LINE, Config(seed=1)).fingerprint
    assert [line["epoch"] for line in found.history] == [3]
    assert results.values("a", "rmse").tolist() == [0.25] and results.axis("seed") == [1]


def test_a_row_without_a_view_reads_the_training_itself(storage):
    finish(storage, Config(seed=0), slope=1.5)
    assert gather(planned(storage, Row(label="a")), "line/t").values("a", "slope").tolist() == [1.5]


def test_the_time_of_a_table_counts_the_runs_that_its_own_start_from(storage):
    row = Row(label="a", overrides={"init": "parent", "init.overrides": [["rate", 0.5]], "rate": 0.9})
    plan = planned(storage, row)
    for training in plan.trainings.values():
        folder = finish(storage, training.config)
        folder.folder.write_json("result.json", folder.result() | {"used": {"cpu_seconds": 3600.0}})
        folder.folder.write_json("provenance.json", {})
    assert render.taken(fill(planned(storage, row), "line/t")) == "Its trainings took 4 h 00 min of one core (4 runs)."
    assert len(plan.trainings) == 4, "two seeds, each from a run of its own"


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
    found = fill(planned(storage, *rows), "line/t")
    assert [row.absent for row in found.rows] == ["left out", "", "left out"] and not found.filled
    printed = found.cell("p", "RMSE")
    assert (printed.mean, printed.deviation, printed.published, printed.difference) == (None, None, 0.5, None)
    with pytest.raises(KeyError):
        found.cell("q", "RMSE")


def test_a_cell_says_mean_deviation_and_difference():
    found = Cell((1.0, 2.0, 6.0), 10.0, comparable=True)
    assert found.mean == 3.0 and found.difference == -7.0
    assert Cell((1.0, 2.0, 6.0), 10.0).difference is None
    assert found.deviation == pytest.approx(((4 + 1 + 9) / 2) ** 0.5)


@pytest.mark.parametrize("values", [(), (4.0,), (4.0, None)])
def test_fewer_than_two_values_have_no_deviation(values):
    found = Cell(values)
    assert found.deviation is None and found.difference is None and found.mean == (4.0 if values else None)


def test_replicates_without_the_metric_are_in_no_cell_and_factors_apply_to_what_was_measured(storage):
    row = Row(label="a", view={}, published={"RMSE": 2.0, "slope": 1.0})
    for seed in (0, 1):
        finish(storage, Config(seed=seed), slope=3e6 if seed else None)
    plan = planned(storage, row, columns=[replace(RMSE, header="slope", metric="slope", factor=1e-6), RMSE])
    score(plan, 0, 0.5)
    score(plan, 1, 0.25)
    found = fill(plan, "line/t")
    slope, rmse = found.cell("a", "slope"), found.cell("a", "RMSE")
    assert slope.values == (None, pytest.approx(3.0))
    assert rmse.values == (0.5, 0.25) and rmse.mean == 0.375


def test_what_diverged_is_said_and_in_no_number(storage):
    row = Row(label="a", view={})
    for seed in (0, 1):
        folder = finish(storage, Config(seed=seed))
    folder.folder.write_json("result.json", {**folder.result(), "diverged": "loss is nan in epoch 3"})
    plan = planned(storage, row)
    score(plan, 0, 0.5)
    score(plan, 1, 0.1)
    assert [training.status for training in plan.trainings.values()] == ["done", "diverged"]
    assert {t.config.seed: t.status for t in compile_plan(plan.tables, storage, retry=True).missing} == {
        1: "to be retried"
    }
    results = gather(plan, "line/t")
    assert results.values("a", "rmse").tolist() == [0.5] and results.axis("seed") == [0]
    assert [each.diverged for each in results.diverged("a")] == ["loss is nan in epoch 3"]
    found = fill(plan, "line/t", results)
    assert found.cell("a", "RMSE").values == (0.5, None)
    assert [replicate.diverged for replicate in found.rows[0].replicates] == ["", "loss is nan in epoch 3"]


def test_a_score_that_is_not_finite_is_said_and_in_no_number(storage):
    plan = planned(storage, Row(label="a", view={}))
    for seed, rmse in enumerate((math.nan, 0.5)):
        finish(storage, Config(seed=seed))
        score(plan, seed, rmse)
    found = fill(planned(storage, Row(label="a", view={})), "line/t")
    assert found.cell("a", "RMSE").values == (None, 0.5)
    assert render.remarks(found) == ["Not finite, and in no number: a (rmse)."]


def test_a_combination_names_all_its_sources_and_itself(storage):
    early = Row(label="early", view={"epoch": 1})
    plan = planned(storage, Row(label="a", view={}), early, Combined(label="c", of=("a", "early"), combine=mean))
    folder = finish(storage, Config(seed=0), weights="last", first="first")
    plan = planned(storage, Row(label="a", view={}), early, Combined(label="c", of=("a", "early"), combine=mean))
    storage.write_json(plan.combinings[0].path, {"inputs": plan.combinings[0].inputs(), "metrics": {"rmse": 0.1}})
    (found,) = gather(plan, "line/t").select("c")
    name = plan.combinings[0].place.rsplit("/", 1)[-1]
    assert found.origin.run == name
    assert [(m.run, m.view, m.weights) for m in found.origin.members] == [
        (folder.fingerprint, {}, "last"),
        (folder.fingerprint, {"epoch": 1}, "first"),
    ]
    line = fill(plan, "line/t").frame().set_index("row").loc["c", "sources"]
    assert line == f"{name}({folder.fingerprint},{folder.fingerprint}[epoch=1])"


def test_an_earlier_epoch_has_the_metrics_of_its_own(storage):
    finish(storage, Config(seed=0), slope=2.0, first="first", first_slope=1.0)
    row = Row(label="a", view={"epoch": 1})
    plan = planned(storage, row)
    plan.scorings and next(iter(plan.scorings.values())).folder.save_scores(
        next(iter(plan.scorings.values())).view, "first", {"rmse": 0.5}, 0.0
    )
    (found,) = gather(planned(storage, row), "line/t").select("a")
    assert found.metrics["slope"] == 1.0 and found.metrics["step"] == 4 and found.metrics["rmse"] == 0.5


def test_a_row_that_the_table_does_not_have_is_an_error(storage):
    results = gather(planned(storage, Row(label="a", view={})), "line/t")
    assert "a" not in results and results.select(Row(label="a")) == []
    for ask in (results.select, results.diverged, results.__contains__, lambda row: results.values(row, "rmse")):
        with pytest.raises(KeyError):
            ask("A")


def test_a_filled_table_is_plain_data(storage):
    for seed in (0, 1):
        finish(storage, Config(seed=seed))
    plan = planned(storage, Row(label="a", view={}, published={"RMSE": 1.0}))
    score(plan, 0, 0.5)
    found = fill(planned(storage, Row(label="a", view={}, published={"RMSE": 1.0})), "line/t")
    again = FilledTable.of_json(json.loads(json.dumps(found.as_json())))
    assert again.rows == found.rows and again.columns == found.columns and again.frame().equals(found.frame())


def test_what_scores_do_not_show_stands_below_the_data(storage, capsys):
    storage.write_json("data/line/points/dataset.json", {"digest": "64 points", "points": 64, "caution": "Not real."})
    finish(storage, Config(seed=0))
    found = fill(planned(storage, Row(label="a")), "line/t")
    assert found.caution == "Not real." and "\n\nNot real.\n\n" in render.markdown(found)
    print_section(found)
    assert "Not real." in capsys.readouterr().out


def test_brackets_of_labels_headers_and_titles_are_printed(storage, capsys):
    finish(storage, Config(seed=0))
    part = fill(
        planned(storage, Row(label="ResNet [he2016] [/wide]"), columns=[replace(RMSE, header="acc [dev]")]), "line/t"
    )
    print_section(replace(part, title="Errors [test split]"))
    shown = capsys.readouterr().out
    assert "ResNet [he2016] [/wide]" in shown and "acc [dev]" in shown and "Errors [test split]" in shown


def test_a_row_may_read_another_metric_than_its_column(storage):
    row = Row(label="a", metrics={"RMSE": "slope"})
    finish(storage, Config(seed=0), slope=5.0)
    found = fill(planned(storage, row, columns=[RMSE, replace(RMSE, header="b")]), "line/t")
    assert found.cell("a", "RMSE").values == (5.0,) and found.cell("a", "b").values == (None,)


@pytest.mark.parametrize(("better", "scale", "best"), [
    ("higher", "paper", 3.0), ("lower", "paper", 1.0), (None, "paper", None), ("higher", "smoke", None),
])  # fmt: skip
def test_the_best_number_is_marked_where_its_column_says_which_numbers_are_better(better, scale, best):
    rows = [SimpleNamespace(cells=[SimpleNamespace(mean=mean)]) for mean in (math.nan, 1.0, None, 3.0)]
    part = SimpleNamespace(scale=scale, columns=[FilledColumn("sparsity, %", ".1f", better)], rows=rows)
    assert html.best(part, 0) == best
