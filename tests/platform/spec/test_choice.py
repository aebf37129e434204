"""What a table runs can be chosen: rows by label, replicates and views by --set; what was left out is not judged."""

import re
from dataclasses import replace

import pytest

from retable.platform import api
from retable.platform.cli import app
from retable.platform.errors import UserError
from retable.platform.plan import plan as planning
from retable.platform.plan.plan import compile_plan
from retable.platform.report.render import markdown
from retable.platform.report.write import fill_and_keep, read_request
from retable.platform.spec.claims import NOT_JUDGED, UNTESTED, Verdict, untested
from retable.platform.spec.table import (
    BY_ROWS,
    Claim,
    Replicate,
    Results,
    Row,
    Table,
    choose_rows,
    hidden,
    judge_claim,
    matches,
    rows_of_claims,
)
from retable.platform.spec.task import check_rows, find, find_table, names, table_at
from tests.platform.made_table import filled_line

CHOSEN = {"environment": "HalfCheetah", "view.policy": "bc", "seed": 0}


@pytest.mark.parametrize(
    ("label", "pattern", "fits"),
    [
        ("SNIP 95 %", "SNIP 95 %", True),
        ("SNIP 95 %", "SNIP 9*", True),
        ("SNIP 5 %", "SNIP 9*", False),
        ("SNIP 95 %", "SNIP", False),
        ("SNIP 95 %", "*95*", True),
        ("a.b", "a?b", False),
        ("a[1]", "a[1]", True),
        ("axb", "a.b", False),
        ("", "*", True),
    ],
)
def test_a_star_stands_for_any_text_and_all_else_for_itself(label, pattern, fits):
    assert matches(label, pattern) is fits


def test_two_rows_of_a_figure_in_one_environment_policy_and_seed_are_two_trainings(storage):
    plan = api.plan("rl/figure1", scale="small", rows=["dense", "SNIP 95 %"], set=CHOSEN, storage=storage)
    found = {(t.config.environment, t.config.seed, type(t.config.prune).__name__) for t in plan.trainings.values()}
    assert found == {("HalfCheetah", 0, "Dense"), ("HalfCheetah", 0, "Snip")}
    assert {scoring.view.policy for scoring in plan.scorings.values()} == {"bc"}
    assert {row for row, replicates in plan.replicates["rl/figure1"].items() if replicates} == {"dense", "SNIP 95 %"}


def test_tables_in_which_no_row_is_chosen_are_left_out(storage):
    plan = api.plan("rl", scale="smoke", rows="Dense Model", storage=storage)
    assert list(plan.tables) == ["rl/table1"] and len(plan.trainings) == len(plan.tables["rl/table1"][1].over["seed"])


def test_no_rows_are_all_and_epochs_to_keep_are_a_list(storage):
    assert api.plan("line/table1", scale="smoke", rows=None, storage=storage).rows == ()
    with pytest.raises(UserError, match=r"keep=3: write a list of epochs"):
        api.train("line", keep=3, storage=storage)


def test_a_label_that_matches_nothing_names_the_nearest(storage):
    with pytest.raises(UserError, match=r"--rows 'SNIP 96 %' matches no row; the nearest: 'SNIP 9\d %'"):
        api.plan("rl/figure1", rows=["dense", "SNIP 96 %"], storage=storage)
    with pytest.raises(UserError, match=r"rows=.*: write labels of rows"):
        api.plan("rl/figure1", rows=[1], storage=storage)
    with pytest.raises(UserError, match="the nearest: 'slow', 'fast', 'fast, first epoch'"):
        check_rows(["zzz"], [find_table("line/table1")[1]])


def test_a_combined_row_takes_along_what_it_joins():
    table = choose_rows(find_table("line/table1")[1], ["mean of both"])
    assert [row.label for row in table.rows if not row.absent] == ["slow", "fast", "mean of both"]
    assert table.note == "3 of 6 rows were chosen by --rows."


def test_without_patterns_nothing_changes():
    table = find_table("line/table1")[1]
    assert choose_rows(table, ()) == replace(table, rows=list(table.rows))


def test_a_field_of_the_view_changes_every_row_whose_label_does_not_say_it():
    task, table = find_table("line/table1")
    at = table_at(task, table, "smoke", {"view.epoch": 1})
    assert {row.label: row.absent for row in at.rows} == {
        "slow": "it is not view.epoch=1",
        "fast": "it is not view.epoch=1",
        "fast, first epoch": "",
        "fine-tuned": "it is not view.epoch=1",
        "mean of both": "its members are absent",
        "as printed": "",
    }
    task, table = find_table("weather/table1")
    with pytest.raises(UserError, match=r"unknown field 'view.tresholds'; did you mean 'view.threshold"):
        table_at(task, table, "smoke", {"view.tresholds": 0.5})


def test_a_view_axis_takes_one_value_or_several():
    task, table = find_table("rl/figure1")
    for value, over in (("bc", ("bc",)), (["bc", "bcq"], ("bc", "bcq")), (["bcq"], ("bcq",))):
        assert table_at(task, table, "smoke", {"view.policy": value}).over["view.policy"] == over
    with pytest.raises(UserError, match=r"view.policy: 'bq' is not one of bcq, bc"):
        table_at(task, table, "smoke", {"view.policy": "bq"})
    assert table_at(task, table, "smoke", CHOSEN).left_out["view.policy"] == ["bcq"]


def both(results):
    """Read two rows one after the other, and give up early as real claims do."""
    if "a" not in results:
        return untested("rows are missing")
    found = results.select("b", env="x")
    return Verdict("holds", f"{len(found)}") if found else untested("no x")


ROWS = [Row(label=label) for label in "abc"]
CLAIM = Claim(text="a before b", check=both)


def made(label, **axes):
    return Replicate(label, axes, None, None, metrics={"m": 1.0})


@pytest.mark.parametrize(
    ("patterns", "left", "status", "because"),
    [
        ((), [], "holds", "1"),
        (("a", "b"), [], "holds", "1"),
        (("b", "c"), [], NOT_JUDGED, "left out by --rows: a"),
        (("a",), [], NOT_JUDGED, "left out by --rows: b"),
        ((), ["x"], NOT_JUDGED, "left out by --set: env=x"),
        ((), ["z"], "holds", "1"),
    ],
)
def test_a_claim_about_what_was_left_out_is_not_judged(patterns, left, status, because):
    table = Table(title="", rows=ROWS, columns=(), claims=[CLAIM], left_out={"env": left})
    table = choose_rows(table, patterns)
    found = {row.label: [] if row.absent == BY_ROWS else [made(row.label, env="x")] for row in table.rows}
    assert judge_claim(CLAIM, Results(found, table)) == Verdict(status, because)


@pytest.mark.parametrize(
    ("env", "counts", "status"), [("x", False, "not separable"), ("y", False, "holds"), ("x", True, "holds")]
)
def test_runs_that_diverged_separate_nothing_unless_the_claim_counts_them(env, counts, status):
    def check(results):
        if counts:
            results.diverged("b")
        return both(results)

    lost = [replace(made("b", env=env, seed=seed), config=seed, diverged="at epoch 1") for seed in (1, 1, 2)]
    found = Results({"a": [made("a", env="x")], "b": [made("b", env="x", seed=0), *lost], "c": []})
    verdict = judge_claim(Claim(text="", check=check), found, ["a", "b"])
    assert verdict.status == status and (": b (2)" in verdict.because) == (status == "not separable")


def test_a_row_that_the_scale_leaves_out_is_not_left_out_by_the_user():
    rows = [ROWS[0], replace(ROWS[1], absent="at other sparsities"), ROWS[2]]
    table = choose_rows(Table(title="", rows=rows, columns=(), claims=[CLAIM]), ["a"])
    assert [hidden(row) for row in table.rows] == [False, True, True]
    found = Results({"a": [made("a", env="x")], "b": [], "c": []}, table)
    assert judge_claim(CLAIM, found).status == UNTESTED and table.note == "1 of 3 rows were chosen by --rows."


def test_a_claim_that_gives_up_early_is_known_to_read_what_was_left_out():
    """`both` never asks for b where a has no result: that it reads b is found by trying."""
    task = find("line")
    table = Table(title="", rows=ROWS, columns=(), over={"env": ("x",)}, claims=[CLAIM])
    table = replace(table, over={"seed": (0, 1)})
    (reads,) = rows_of_claims(table, task.config(), task.view())
    assert reads == ["a", "b"]
    chosen = choose_rows(table, ["a", "c"])
    results = Results({row.label: [] for row in chosen.rows}, chosen)
    assert judge_claim(CLAIM, results).status == UNTESTED
    assert judge_claim(CLAIM, results, reads) == Verdict(NOT_JUDGED, "left out by --rows: b")


def test_a_claim_that_lacks_replicates_which_the_user_left_out_does_not_blame_the_scale():
    table = Table(title="", rows=ROWS, columns=(), left_out={"env": ["x", "y"]})
    claim = Claim(text="", check=lambda results: untested("no runs"))
    verdict = judge_claim(claim, Results({row.label: [] for row in ROWS}, table))
    assert verdict == Verdict(NOT_JUDGED, "no runs; left out by --set: env=x, env=y")


@pytest.mark.parametrize("name", [name for name in names() if find(name).tables() and name in "rl weather style audio"])
def test_the_rows_of_every_claim_of_the_papers_are_found_by_trying(name):
    """A claim whose rows are not found would be trained late and judged though they were left out."""
    task = find(name)
    for table in task.tables().values():
        reads = rows_of_claims(table, task.config(), task.view())
        for claim, labels in zip(table.claims, reads, strict=True):
            assert labels or claim.text == "Some of the rephrased captions take the keywords into account."


def test_a_chosen_table_shows_what_was_chosen_and_says_so(storage):
    filled_line(storage)
    task, table = find_table("line/table1")
    at = table_at(task, table, "smoke", {}, ["fast", "as*"])
    part = fill_and_keep(compile_plan({"line/table1": (task, at)}, storage, "smoke", rows=["fast", "as*"]))[
        "line/table1"
    ]
    assert [row.label for row in part.rows] == ["fast", "as printed"]
    (claim,) = part.claims
    assert (claim.status, claim.because) == (NOT_JUDGED, "left out by --rows: slow")
    text = markdown(part)
    assert "**not judged**" in text and "2 of 6 rows were chosen by --rows." in text and UNTESTED not in text
    (request,) = [each for each in storage.list("tables") if each != "line-table1-smoke.json"]
    assert read_request(storage, f"tables/{request}")["rows"] == ["fast", "as*"]


def test_rows_of_a_request_are_labels(storage):
    storage.write_json("tables/a.json", {"table": "line/table1", "scale": "smoke", "set": {}, "rows": [1]})
    with pytest.raises(UserError, match=r"a.json: the entry 'rows' is no list of labels"):
        read_request(storage, "tables/a.json")


def test_a_report_and_scores_of_chosen_rows(storage, capsys):
    filled_line(storage)
    where = str(storage)
    app.report(["line/table1"], rows=["fast*"], storage=where, output=f"{where}/chosen")
    page = storage.read("chosen/report.md").decode()
    assert "| fast |" in page and "| fast, first epoch |" in page and "| slow |" not in page
    app.score("line/table1", rows=["fast"], storage=where)
    said = capsys.readouterr().out
    assert "1 with 1 rows, 2 replicates (--rows fast)" in said
    assert "fast" in said and "slow" not in said.split("claim")[0]
    with pytest.raises(UserError, match="--rows is about a table, and 'latest' is a run"):
        app.score("latest", rows=["fast"], storage=where)
    with pytest.raises(UserError, match="--scale, --set and --rows choose from tables"):
        app.report(rows=["fast"], storage=where)


def test_what_is_still_to_come_is_said_row_by_row(storage):
    part = filled_line(storage)
    assert "Not there yet: slow (0 of 2); mean of both (0 of 2)." in markdown(part)


def test_runs_of_a_claim_begin_first_and_side_by_side_in_a_long_plan(storage, monkeypatch):
    """The paper's claim reads `late` and `early`: their runs alternate, parents in front, before those of others."""
    task = find("line")
    rows = [
        Row(label="other", overrides={"rate": 0.5}),
        Row(label="early", overrides={"rate": 0.2}),
        Row(label="late", overrides={"init": "parent", "rate": 0.3}),
    ]

    def check(results, *labels):
        return untested("") if all(label in results for label in labels) else untested("no")

    claims = [
        Claim(text="ours", check=lambda results: check(results, "other"), ours=True),
        Claim(text="the paper's", check=lambda results: check(results, "late", "early")),
    ]
    table = Table(title="", rows=rows, columns=(), over={"seed": (0, 1)}, claims=claims)
    monkeypatch.setattr(planning, "SHORT", 0.0)
    plan = compile_plan({"line/t": (task, table)}, storage)
    order = sorted(plan.missing, key=plan.start_order)
    assert [(t.config.seed, t.config.rate if t.config.rate in (0.2, 0.3, 0.5) else "parent") for t in order] == [
        (0, "parent"),
        (0, 0.3),
        (0, 0.2),
        (1, "parent"),
        (1, 0.3),
        (1, 0.2),
        (0, 0.5),
        (1, 0.5),
    ]


def test_a_claim_whose_test_fails_is_not_tested_and_says_why():
    def breaks(results):
        return results.values("a", "y").oops

    verdict = judge_claim(Claim(text="", check=breaks), Results({row.label: [] for row in ROWS}, None))
    assert verdict.status == UNTESTED
    assert re.fullmatch(r"its test fails: AttributeError: .* attribute 'oops' \(test_choice.py:\d+\)", verdict.because)
