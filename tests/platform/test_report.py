"""Reports of a filled toy table: what they say, in every form."""

import csv
import io
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from retable.platform.combine import pieces_of, score
from retable.platform.loop import train
from retable.platform.plan import compile_plan
from retable.platform.report import comma_separated, latex, markdown, remember, section, sections, write_report
from retable.platform.run import Run
from retable.platform.stages import predict_and_score, predict_one
from retable.platform.task import Source, find_table, scaled


@pytest.fixture
def filled(storage):
    """Fill the toy's table with the bare loop, but for the row `slow`."""
    task, table = find_table("line/table1")
    table = scaled(task, table, "smoke")
    task.dataset.prepare(task.config(), storage)
    plan = compile_plan({"line/table1": (task, table)}, storage)
    source = Source.of(storage, "line/points")
    arrays = task.dataset.arrays(pq.read_table(f"{storage.root}/data/line/points/points.parquet"))
    for training in plan.missing:
        if training.config.rate != 0.001:
            data = task.dataset.open(arrays, source, [training.config])
            training.folder.begin(training.config, 1, {"commit": "abc"})
            train(task, [training.config], data, [training.folder], "64 points", Run(), [training.keep])
    for scoring in compile_plan(plan.tables, storage).unscored:
        if scoring.folder.result():
            assert predict_and_score(task, scoring.config, scoring.view, scoring.folder) is None
    remember(plan, "smoke", {})
    return storage, section(storage, "line/table1", "smoke", {}, task, table)


def test_a_report_of_a_set_seed_is_of_that_seed_alone(filled):
    storage, _ = filled
    remember(compile_plan({"line/table1": find_table("line/table1")}, storage), "smoke", {"seed": 1})
    (part,) = (part for part in sections(storage) if part.changes)
    assert part.replicates == "seed: 1" and len(part.results.values("fast", "rmse")) == 1


def test_measured_stands_beside_published_and_difference(filled):
    _, part = filled
    lines = markdown(part).splitlines()
    fast = next(line for line in lines if line.startswith("| fast |"))
    _, _, shown, published, difference, _ = (text.strip() for text in fast.split("|"))
    values = part.results.values("fast", "rmse")
    assert shown == f"{values.mean():.3f} ± {values.std(ddof=1):.3f}" and len(values) == 2
    assert published == "0.100" and difference == f"{values.mean() - 0.1:+.3f}"
    assert "| slow | – | 1.000 | – |" in lines
    assert "| as printed | – | 0.200 | – |" in lines
    assert (
        "64 generated points" in markdown(part) and "scale smoke" in markdown(part) and "seed: 0, 1" in markdown(part)
    )


def test_csv_holds_every_replicate_and_its_fingerprint(filled):
    storage, part = filled
    rows = {row["row"]: row for row in csv.DictReader(io.StringIO(comma_separated(part)))}
    fast = rows["fast"]
    values = [float(value) for value in fast["values"].split()]
    assert values == part.results.values("fast", "rmse").tolist()
    assert float(fast["min"]) == min(values) and float(fast["max"]) == max(values) and fast["n"] == "2"
    assert all(storage.exists(f"runs/line/{name}/config.json") for name in fast["fingerprints"].split())
    assert rows["slow"]["mean"] == "" and rows["slow"]["published"] == "1.0"


def test_latex_has_as_many_cells_in_every_line(filled):
    _, part = filled
    lines = [line for line in latex(part).splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + len(part.table.rows)
    assert {line.count("&") for line in lines} == {3}


def test_the_page_links_each_number_to_the_config_behind_it(filled):
    storage, part = filled
    into = write_report(storage)
    page = into.read("index.html").decode()
    for replicate in part.results.select("fast"):
        assert f'href="#run-{replicate.fingerprint}"' in page and f'id="run-{replicate.fingerprint}"' in page
    assert "retable train line" in page and "not tested at this scale" in page
    assert into.exists("line-table1-smoke.csv") and into.exists("line-table1-smoke.tex") and into.exists("report.md")


def test_a_figure_is_drawn_and_its_numbers_are_beside_it(filled):
    storage, part = filled
    task, figure = find_table("line/figure1")
    remember(compile_plan({"line/figure1": (task, figure)}, storage), "smoke", {})
    into = write_report(storage)
    assert into.read("line-figure1-smoke.png").startswith(b"\x89PNG") and b"<svg" in into.read("line-figure1-smoke.svg")
    rows = list(csv.DictReader(io.StringIO(into.read("line-figure1-smoke.csv").decode())))
    assert [(row["row"], row["seed"]) for row in rows] == [("fast", "0"), ("fast", "1")], "slow was not run"
    slopes = part.results.values("fast", "slope").tolist()
    assert [float(row["slope"]) for row in rows] == slopes
    assert "data:image/png;base64," in into.read("index.html").decode()


def test_text_from_outside_cannot_become_markup(filled):
    storage, _ = filled
    storage.write_json("data/line/points/dataset.json", {"points": "<script>alert(1)</script>", "digest": "64 points"})
    page = write_report(storage).read("index.html").decode()
    assert "<script>alert(1)</script>" not in page and "&lt;script&gt;" in page


def test_a_combination_counts_only_for_the_weights_it_was_made_from(filled):
    storage, part = filled
    task, table = part.task, part.table
    row = replace(table.rows[4], of=("fast", "fast"))
    plan = compile_plan({"line/table1": (task, replace(table, rows=[*table.rows[:4], row]))}, storage)
    combining = plan.combinings[0]
    assert combining.scores(storage) is None
    for prediction in plan.predictions.values():
        if prediction.joined and prediction.folder.result():
            assert predict_one("line", prediction.config, prediction.view, prediction.folder, joined=True) is None
    assert not any(piece.run() for piece in pieces_of(combining, storage))
    assert score(combining, storage) is None and combining.scores(storage) is not None
    fast = part.results.select("fast", seed=0)[0].metrics["rmse"]
    assert combining.scores(storage)["metrics"]["rmse"] == pytest.approx(fast), "the mean of a thing and itself"
    storage.write_json(combining.path, {"inputs": ["other weights"], "metrics": {"rmse": 0.0}})
    assert combining.scores(storage) is None
