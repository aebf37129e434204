"""Tables: which replicates a row has, and how its view is read."""

import re
from dataclasses import dataclass, field, replace
from math import inf, nan

import numpy as np
import pytest

from retable.platform.config import Parent, Scratch, parent
from retable.platform.errors import UserError
from retable.platform.spec.claims import Verdict
from retable.platform.spec.table import (
    Claim,
    Column,
    Combined,
    Measurement,
    Replicate,
    Results,
    Row,
    Table,
    apply_overrides,
    expand,
    judge_claim,
    resolve,
    row_fields,
    with_claims,
)
from retable.platform.spec.task import find_table, table_at
from retable.tasks.line.config import Config, View


@dataclass(frozen=True, kw_only=True)
class Look:
    epoch: int = 0
    threshold: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Small:
    rate: float = 0.1
    epochs: int = 3
    seed: int = 0
    init: Scratch | Parent = field(default_factory=Scratch)


def table(**changes):
    settings = {"title": "t", "rows": (), "columns": (Column(header="A", metric="a"),)}
    return Table(**settings | changes)


def points(needs):
    return [(need.config.seed, need.config.rate, need.view and need.view.threshold) for need in needs]


def test_a_row_has_one_replicate_for_each_point_of_the_axes():
    wide = table(over={"seed": (0, 1), "rate": (0.1, 0.2, 0.3)})
    needs = expand(wide, Row(label="r"), Small(), Look())
    assert points(needs) == [(s, r, None) for s in (0, 1) for r in (0.1, 0.2, 0.3)]
    assert [dict(need.axes) for need in needs] == [{"seed": s, "rate": r} for s in (0, 1) for r in (0.1, 0.2, 0.3)]
    assert {need.label for need in needs} == {"r"}


def test_a_table_without_axes_has_one_replicate_of_a_row():
    (need,) = expand(table(), Row(label="r", overrides={"rate": 0.7}), Small(), Look())
    assert need.config == Small(rate=0.7) and need.view is None and need.axes == {}


def test_an_axis_that_a_row_fixes_is_not_replicated_but_known():
    wide = table(over={"seed": (0, 1), "rate": (0.1, 0.2)})
    needs = expand(wide, Row(label="r", overrides={"rate": 0.9}), Small(), Look())
    assert points(needs) == [(0, 0.9, None), (1, 0.9, None)]
    assert [dict(need.axes) for need in needs] == [{"rate": 0.9, "seed": 0}, {"rate": 0.9, "seed": 1}]


def test_an_axis_of_the_view_replicates_rows_that_have_one_and_leaves_the_training_alone():
    wide = table(over={"seed": (0, 1), "view.threshold": (0.25, 0.75)})
    needs = expand(wide, Row(label="r", view={}), Small(), Look())
    assert points(needs) == [(0, 0.1, 0.25), (0, 0.1, 0.75), (1, 0.1, 0.25), (1, 0.1, 0.75)]
    assert needs[1].axes == {"seed": 0, "view.threshold": 0.75}
    assert points(expand(wide, Row(label="r"), Small(), Look())) == [(0, 0.1, None), (1, 0.1, None)]
    fixed = expand(wide, Row(label="r", view={"threshold": 0.9}), Small(), Look())
    assert points(fixed) == [(0, 0.1, 0.9), (1, 0.1, 0.9)]


def test_the_tables_overrides_reach_every_row_and_its_parent():
    row = Row(label="r", overrides={"init": "parent", "init.overrides": [["rate", 0.5]], "rate": 0.9})
    (need,) = expand(table(over={"seed": (4,)}, overrides={"epochs": 1}), row, Small(), Look())
    assert (need.config.epochs, need.config.seed, need.config.rate) == (1, 4, 0.9)
    assert parent(need.config) == Small(epochs=1, seed=4, rate=0.5)


def test_a_change_of_an_axis_takes_its_place():
    whole = table(over={"seed": (0, 1), "rate": (0.1, 0.2)}, overrides={"epochs": 1})
    wide = apply_overrides(whole, {"seed": 5, "epochs": 2}, Small(), Look(), ())
    needs = expand(wide, Row(label="r"), Small(), Look())
    assert points(needs) == [(5, 0.1, None), (5, 0.2, None)]
    assert [dict(need.axes) for need in needs] == [{"seed": 5, "rate": 0.1}, {"seed": 5, "rate": 0.2}]
    assert {need.config.epochs for need in needs} == {2}


def test_a_list_is_several_values_of_an_axis():
    rows = (Row(label="r"), Row(label="of one seed", overrides={"seed": 9}))
    found = apply_overrides(
        table(rows=rows, over={"seed": (0, 1)}), {"seed": [3, 5, 3], "epochs": 2}, Small(), Look(), ()
    )
    assert points(expand(found, rows[0], Small(), Look())) == [(3, 0.1, None), (5, 0.1, None)]
    assert [need.config.seed for need in expand(found, found.rows[1], Small(), Look())] == [9]
    assert found.changes == {"epochs": 2}


@pytest.mark.parametrize(
    ("seeds", "line"), [([0, "a"], "seed: 'a' is not a whole number"), ([], "seed: a list of no values")]
)
def test_a_list_of_wrong_values_is_a_line(seeds, line):
    task, wide = find_table("rl/critic")
    with pytest.raises(UserError, match=line):
        table_at(task, wide, "smoke", {"seed": seeds})


def test_a_list_is_refused_by_a_table_without_that_axis_by_its_title():
    task, alone = find_table("rl/speed")
    with pytest.raises(UserError, match=r"^seed: \[0, 1\] is .*; rl, Milliseconds .*, is not replicated over seed"):
        table_at(task, alone, "smoke", {"seed": [0, 1]})


def test_a_row_that_is_named_after_a_changed_axis_is_left_out_but_for_its_seed():
    rows = (
        Row(label="rate 0.1", overrides={"rate": 0.1}),
        Row(label="rate 0.2, once", overrides={"rate": 0.2, "seed": 0}),
        Measurement(label="m", measure=len, overrides={"rate": 0.3}),
        Combined(label="both", of=("rate 0.1", "rate 0.2, once"), combine=len),
        Row(label="as printed", overrides=None),
    )
    wide = table(rows=rows, over={"seed": (0, 1), "rate": (0.1, 0.2)})
    found = apply_overrides(wide, {"seed": 5, "rate": 0.2}, Small(), Look(), {"rate"})
    assert [row.label for row in found.rows if not row.absent] == ["rate 0.2, once", "as printed"]
    (need,) = expand(found, found.rows[1], Small(), Look())
    assert (need.config.seed, need.config.rate, dict(need.axes)) == (5, 0.2, {"rate": 0.2, "seed": 5})
    assert "Left out, as the changes would make them other rows: rate 0.1; m; both." in found.note
    assert [row.label for row in apply_overrides(wide, {}, Small(), Look(), {"rate"}).rows if not row.absent] == [
        r.label for r in rows
    ]


def test_set_fills_no_row_by_what_another_row_says():
    """`--set` came after a row's own overrides: it filled every row by one run."""
    rows = (
        Row(label="from scratch"),
        Row(label="fast", overrides={"rate": 0.2}),
        Row(label="from a run", overrides={"init": "parent", "init.overrides": [["rate", 0.5]]}),
    )
    wide = table(rows=rows)
    named = row_fields(wide)
    left = {row.label: row.absent for row in apply_overrides(wide, {"rate": 0.2}, Small(), Look(), named).rows}
    assert left["fast"] == "" and left["from scratch"] == "it is not rate=0.2" and left["from a run"]
    whole = {"init": "parent", "init.overrides": (("rate", 0.5),)}
    left = {row.label: row.absent for row in apply_overrides(wide, whole, Small(), Look(), named).rows}
    assert left["from scratch"] and left["fast"] and not left["from a run"]
    left = {row.label: row.absent for row in apply_overrides(wide, {"init.checkpoint": 2}, Small(), Look(), named).rows}
    assert left["fast"] == "it has no init.checkpoint" and left["from a run"] == "it is not init.checkpoint=2"
    assert not any(row.absent for row in apply_overrides(wide, {"epochs": 2, "seed": 1}, Small(), Look(), named).rows)


def test_a_published_row_needs_nothing_and_a_measurement_no_view():
    wide = table(over={"seed": (0, 1), "view.threshold": (0.25, 0.75)})
    assert expand(wide, Row(label="r", overrides=None, view={}), Small(), Look()) == []
    measured = expand(wide, Measurement(label="m", measure=len, overrides={"rate": 0.3}), Small(), Look())
    assert points(measured) == [(0, 0.3, None), (1, 0.3, None)]


def test_a_view_of_the_last_epoch_names_it():
    assert resolve(View(), Config(epochs=7)) == View(epoch=7)
    assert [resolve(View(epoch=e), Config(epochs=7)).epoch for e in (1, 7)] == [1, 7]
    (need,) = expand(table(), Row(label="r", overrides={"epochs": 5}, view={}), Small(), Look())
    assert need.view == Look(epoch=5)


@pytest.mark.parametrize("epoch", [-1, 4, 100])
def test_a_view_of_an_epoch_that_the_run_does_not_reach_is_refused(epoch):
    with pytest.raises(UserError, match=rf"^view.epoch {epoch} is not among the run's epochs 1..3 \(0: the last\)$"):
        resolve(View(epoch=epoch), Config(epochs=3))


def test_a_row_with_an_unknown_field_is_refused():
    for row in (Row(label="r", overrides={"rat": 1.0}), Row(label="r", view={"tresholds": 1.0})):
        with pytest.raises(UserError, match="did you mean"):
            expand(table(), row, Small(), Look())
    with pytest.raises(UserError, match="unknown field 'sed'; did you mean 'seed'"):
        expand(table(over={"sed": (1,)}), Row(label="r"), Small(), Look())


def replicate(axes, **metrics):
    return Replicate("r", axes, None, None, metrics=metrics)


RESULTS = Results(
    {
        "r": [
            replicate({"seed": 0, "view.epoch": 1}, a=1.0, b=10.0),
            replicate({"seed": 0, "view.epoch": 2}, a=2.0),
            replicate({"seed": 1, "view.epoch": 1}, a=3.0, b=None),
        ],
        "s": [replicate({"seed": 2, "preview_rate": 5}, a=0.0)],
        "empty": [],
    }
)


def test_a_value_that_a_row_sets_and_the_config_refuses_names_the_row():
    _, table = find_table("line/table1")
    row = replace(table.rows[0], label="as printed here", overrides={"rate": "much"})
    with pytest.raises(UserError, match="row 'as printed here': rate: "):
        expand(replace(table, rows=[row]), row, Config(), View())


@pytest.mark.parametrize(
    ("changes", "field"), [({"overrides": {"penalty": 1}}, "penalty"), ({"view": {"limit": 1}}, "view.limit")]
)
def test_a_field_that_the_config_or_view_lacks_names_the_row(changes, field):
    wrong = table(rows=[Row(label="as printed here", **changes)])
    with pytest.raises(UserError, match=f"row 'as printed here': unknown field '{field}'"):
        apply_overrides(wrong, {}, Small(), Look(), ())


def test_results_are_selected_by_their_axes():
    assert [r.metrics["a"] for r in RESULTS.select("r")] == [1, 2, 3]
    assert [r.metrics["a"] for r in RESULTS.select("r", seed=0)] == [1, 2]
    assert [r.metrics["a"] for r in RESULTS.select("r", seed=0, view_epoch=2)] == [2]
    assert [r.metrics["a"] for r in RESULTS.select("s", preview_rate=5)] == [0]
    assert RESULTS.select("r", seed=9) == RESULTS.select("empty") == RESULTS.select("r", other=1) == []


def test_values_are_those_of_the_replicates_that_have_the_metric():
    values = RESULTS.values("r", "a", view_epoch=1)
    assert values.dtype == np.float64 and values.tolist() == [1, 3]
    assert RESULTS.values("r", "b").tolist() == [10]
    assert RESULTS.values("empty", "a").tolist() == [] and RESULTS.values("r", "c").shape == (0,)


def test_a_metric_that_is_not_finite_is_lost_and_separates_nothing():
    made = {"r": [Replicate("r", {"seed": seed}, Small(seed=seed), None, {"a": a}) for seed, a in enumerate([nan, 1])]}
    results = Results(made)
    assert results.values("r", "a").tolist() == [1] and results.lost == {"r": {Small(seed=0)}}
    claim = Claim(text="", check=lambda results: Verdict("holds", str(results.values("r", "a").mean())))
    assert judge_claim(claim, results).status == "not separable"


def test_results_know_their_rows_and_axes():
    assert "r" in RESULTS and "empty" not in RESULTS
    for ask in (RESULTS.select, RESULTS.diverged, RESULTS.__contains__):
        with pytest.raises(KeyError):
            ask("absent")
    assert RESULTS.axis("seed") == [0, 1, 2] and RESULTS.axis("view.epoch") == [1, 2] and RESULTS.axis("none") == []


def test_a_table_is_a_value():
    assert replace(table(), note="n") == table(note="n") != table()


FIRST, SECOND = Row(label="CNN 3x3"), Row(label="linear", published={"Accuracy": 81.2})
COLUMNS = [Column(header="Accuracy", metric="accuracy", better="higher")]


@pytest.mark.parametrize("number", [(0.3, 0.5), "0.3-0.5", "", nan, inf, True])
def test_a_published_value_is_a_finite_number_or_none(number):
    """Of a range, filling the table broke off after all of its trainings."""
    made = Table(title="", columns=COLUMNS, rows=[replace(FIRST, published={"Accuracy": number})])
    with pytest.raises(UserError, match=re.escape(f"own/table1, row 'CNN 3x3', column 'Accuracy': {number!r} is")):
        with_claims("own", {"table1": made}, {})
    with_claims("own", {"table1": replace(made, rows=[replace(FIRST, published={"Accuracy": None})])}, {})


@pytest.mark.parametrize(
    ("rows", "columns", "claims", "said"),
    [
        (
            [FIRST, Combined(label="both", of=("CNN3x3", "CNN 3x3"), combine=max)],
            COLUMNS,
            {},
            "own/table1, row 'both': joins 'CNN3x3', no row; did you mean 'CNN 3x3'?",
        ),
        (
            [FIRST, Combined(label="both", of=("CNN 3x3",), needs=("linaer",), combine=max)],
            COLUMNS,
            {},
            "own/table1, row 'both': joins 'linaer', no row",
        ),
        ([FIRST, SECOND, FIRST], COLUMNS, {}, "own/table1: 2 rows have the label 'CNN 3x3'; give each its own"),
        (
            [FIRST, Row(label="b", published={"Acc": 95.0})],
            COLUMNS,
            {},
            "own/table1, row 'b': 'Acc' is no column; did you mean 'Accuracy'?",
        ),
        (
            [FIRST, Row(label="b", metrics={"Acc": "accuracy"})],
            COLUMNS,
            {},
            "own/table1, row 'b': 'Acc' is no column; did you mean 'Accuracy'?",
        ),
        (
            [FIRST],
            [replace(COLUMNS[0], better="more")],
            {},
            "own/table1, column 'Accuracy': better='more'; use higher or lower",
        ),
        ([FIRST], COLUMNS * 2, {}, "own/table1: 2 columns have the header 'Accuracy'; give each its own"),
        ([FIRST], [replace(COLUMNS[0], format="d")], {}, "own/table1, column 'Accuracy': format='d': Unknown format"),
        ([FIRST], [replace(COLUMNS[0], format="+.2f")], {}, "own/table1, column 'Accuracy': format='+.2f': "),
        ([FIRST], COLUMNS, {"table2": ()}, "claims on own/table2, which is no table; did you mean 'table1'?"),
    ],
)
def test_a_table_that_names_what_is_not_there_is_refused(rows, columns, claims, said):
    good = {"table1": Table(title="", columns=COLUMNS, rows=[FIRST, SECOND])}
    assert with_claims("own", good, {"table1": ()})["table1"].rows == [FIRST, SECOND]
    with pytest.raises(UserError) as error:
        with_claims("own", {"table1": Table(title="", columns=columns, rows=rows)}, claims)
    assert str(error.value).startswith(said)
