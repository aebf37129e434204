"""Measured minus published: never of other data or another setting, over all tasks and in every form."""

import html
from dataclasses import replace

import pytest

from retable.platform.plan.plan import compile_plan
from retable.platform.report.html import render
from retable.platform.report.papers import in_order
from retable.platform.report.render import grid, latex, markdown
from retable.platform.report.results import FilledTable, fill
from retable.platform.spec.table import Column, Combined, Measurement, Row, Table
from retable.platform.spec.task import find, find_table, table_at
from retable.platform.store.storage import Storage
from retable.serve.ingress.routes.tables import Tables
from tests.tiny import DATA

TABLES = ("weather/table1", "weather/table2", "style/table1", "audio/table2", "rl/table1")
"""Those that print published numbers."""
GENERATED = {
    "weather": {"source": "generated"},
    "style": {"source": "generated"},
    "audio": {"kind": "generated"},
    "rl": {"source": "recorded"},
}
PUBLISHED = {
    "weather": {"source": "w4c22", "holdout": "official"},
    "style": {"source": "coco"},
    "audio": {
        "kind": "dcase2023",
        "corpora": {"audiocaps": 51_308, "clotho": 5_929, "wavcaps": 403_050},
        "rows": {"training": 4, "validation": 1, "test": 1045},
        "rewrites": "gpt-3.5-turbo",
        "rewriter": {"model": "gpt-3.5-turbo", "rewritten": 4, "captions": 4},
    },
    "rl": {"source": "d4rl", "name": "d4rl-expert-v2"},
}
SET = {
    "weather": {"data": "generated-24"},
    "style": {"data": "generated"},
    "audio": {"data": "generated-tiny"},
    "rl": {"data": "recorded"},
}
"""What makes the published setting run on generated data."""


@pytest.fixture(scope="module")
def infos(tmp_path_factory):
    """`dataset.json` of a small data set of each task, as its own code writes it."""
    found = {}
    for name in GENERATED:
        storage = Storage.open(tmp_path_factory.mktemp(name))
        DATA[name](storage)
        found[name] = _info(storage, f"data/{name}")
    return found


def _info(storage, place):
    """Return the first `dataset.json` below a folder."""
    if storage.exists(f"{place}/dataset.json"):
        return storage.read_json(f"{place}/dataset.json")
    return next(filter(None, (_info(storage, f"{place}/{folder}") for folder in storage.folders(place))), None)


def made(storage, name, scale, changes, info):
    """Fill a table from results that are written by hand, all that one seed wants: papers name no seeds."""
    task, table = find_table(name)
    changes = {**changes, **({"seed": [0]} if "seed" in table.over else {})}
    tables = {name: (task, replace(table_at(task, table, scale, changes), claims=()))}
    columns = {column.metric for column in table.columns if column.metric}
    metrics = dict.fromkeys(columns | {m for row in table.rows for m in getattr(row, "metrics", {}).values()}, 0.25)
    plan = compile_plan(tables, storage, scale, changes)
    for config in {t.config for t in plan.trainings.values()} | {t.config for t in plan.timings.values()}:
        storage.write_json(f"data/{task.dataset.where(config)}/dataset.json", {**info, "digest": "d"})
    for training in plan.trainings.values():
        weights = {str(epoch): "w" for epoch in training.keep}
        training.folder.folder.write_json("result.json", {"data": "d", "metrics": metrics, "weights": weights})
    for scoring in plan.scorings.values():
        scoring.folder.save_scores(scoring.view, "w", metrics, 0.0)
    for timing in plan.timings.values():
        storage.write_json(timing.path, {"metrics": metrics})
    for combining in plan.combinings:
        storage.write_json(combining.path, {"inputs": combining.inputs(), "metrics": metrics})
    return fill(compile_plan(tables, storage, scale, changes), name)


def everything(storage, part):
    """Return a table in every form."""
    storage.write_json("report/a.json", {"table": part.as_json()})
    served = Tables(storage, ()).shown(part.name, "").body.decode()
    header, _ = grid(part)
    page, _ = render(in_order([part]), "s", storage / "report", single=True)
    shown = page[page.index('<section class="part"') : page.index('id="how"')]
    forms = {
        "screen": " ".join(header),
        "Markdown": markdown(part).split("\n|", 1)[1],
        "LaTeX": latex(part).split("\n", 1)[1],
        "notebook": part._repr_html_().split("<table", 1)[1],
        "page": html.unescape(shown),
        "served": served,
    }
    return {form: text.replace("difference mask", "") for form, text in forms.items()}  # of a row's label


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("scale", "changed"),
    [
        ("smoke", False),
        pytest.param("small", False, marks=pytest.mark.slow),  # as smoke: another setting
        ("paper", True),
        ("paper", False),
    ],
)
def test_generated_data_have_no_difference_at_any_scale(storage, infos, name, scale, changed):
    """The last: generated data lie where the published ones should."""
    task = name.split("/")[0]
    part = made(storage, name, scale, SET[task] if changed else {}, infos[task] | GENERATED[task])
    cells = [cell for row in part.rows for cell in row.cells]
    assert any(cell.mean is not None and cell.published is not None for cell in cells)
    assert all(cell.difference is None for cell in cells)
    assert part.frame()["difference"].isna().all()
    forms = everything(storage, part)
    assert not any("difference" in forms[form] for form in ("screen", "Markdown", "LaTeX", "notebook"))
    assert 'class="difference"' not in forms["page"] and '"difference": "+' not in forms["served"]
    assert part.apart.startswith("No difference is shown: the published numbers are of ")
    assert part.apart in forms["page"] and part.apart in markdown(part) and part.apart in forms["served"]
    for form, text in everything(storage, replace(part, caution="Scores on these show nothing.")).items():
        assert form in ("screen", "Markdown", "LaTeX", "notebook") or "Scores on these show nothing." in text, form
    assert ("another setting" in part.apart) == (scale != "paper" or changed)


@pytest.mark.parametrize("name", TABLES)
def test_published_data_in_the_published_setting_have_one(storage, infos, name):
    task = name.split("/")[0]
    part = made(storage, name, "paper", {}, infos[task] | PUBLISHED[task])
    cells = [cell for row in part.rows for cell in row.cells if cell.published is not None and cell.mean is not None]
    forms = everything(storage, part)
    if task == "style":  # seconds: the paper's GPU is not there
        assert cells and all(cell.difference is None for cell in cells) and "another device" in part.apart
        return
    assert cells and all(cell.difference == cell.mean - cell.published for cell in cells)
    assert part.apart == "" and "difference" in forms["screen"] and 'class="difference"' in forms["page"]
    small = made(storage, name, "small", {}, infos[task] | PUBLISHED[task])
    assert small.apart and not small.has_differences


def mean(shard, members):
    return {}


def size(config):
    return {}


PRINTED = {"RMSE": 1.0}
ROWS = [
    Row(label="a", view={}, published=PRINTED),
    Row(label="b", overrides={"rate": 0.05}, view={"epoch": 1}, published=PRINTED),
    Row(label="ours", view={}),
    Combined(label="both", of=("a", "b"), combine=mean, published=PRINTED),
    Measurement(label="bytes", measure=size, published=PRINTED),
]
WHOLE = Table(
    title="t", rows=ROWS, columns=[Column(header="RMSE", metric="rmse")], over={"seed": (0, 1), "batch": (8, 16)}
)
LINE = find("line")
PAPER = replace(LINE, tables=lambda: {"t": WHOLE}, dataset=replace(LINE.dataset, published=lambda info: info["ours"]))


def compared(storage, changes=None, without=lambda config: False, ours=True):
    """Fill it but for some runs; return which rows may be subtracted, and why others may not."""
    storage.write_json("data/line/points/dataset.json", {"digest": "d", "points": 64, "ours": ours})
    tables, metrics = {"line/t": (PAPER, table_at(PAPER, WHOLE, "paper", changes or {}))}, {"rmse": 0.5}
    for training in compile_plan(tables, storage).trainings.values():
        weights = {str(epoch): "w" for epoch in training.keep}
        if not without(training.config):
            training.folder.folder.write_json("result.json", {"data": "d", "metrics": metrics, "weights": weights})
    plan = compile_plan(tables, storage, "paper", changes or {})
    for scoring in plan.scorings.values():
        scoring.folder.save_scores(scoring.view, "w", metrics, 0.0)
    for timing in plan.timings.values():
        storage.write_json(timing.path, {"metrics": metrics})
    for combining in plan.combinings:
        storage.write_json(combining.path, {"inputs": combining.inputs(), "metrics": metrics})
    part = fill(compile_plan(tables, storage, "paper", changes or {}), "line/t")
    assert FilledTable.of_json(part.as_json()).rows == part.rows
    return [row.label for row in part.rows if row.cells[0].difference is not None], part.apart


BYTES = "No difference is shown for bytes: the published numbers are of another device."


def test_a_row_and_what_joins_it_are_compared_whatever_their_seeds(storage):
    assert compared(storage) == (["a", "b", "both"], BYTES)
    other = storage / "other"
    assert compared(other, {"seed": [5]}) == (["a", "b", "both"], BYTES), "the paper names no seeds"
    third = storage / "third"
    assert compared(third, without=lambda config: config.seed == 1) == (["a", "b", "both"], BYTES)


def test_a_row_without_some_of_the_published_replicates_is_not(storage):
    left, why = compared(storage, without=lambda config: (config.rate, config.batch) == (0.05, 16))
    assert (
        left == ["a"]
        and "for b; both; bytes: the published numbers are of a part of its replicates and another device" in why
    )


def test_a_row_in_another_setting_is_not_and_its_combination_neither(storage):
    assert compared(storage, {"batch": 32}) == ([], compared(storage / "b", {"epochs": 7})[1])
    assert "another setting" in compared(storage / "c", {"epochs": 7})[1]


def test_nothing_is_compared_on_other_data_but_a_measurement_that_reads_none_has_none(storage):
    left, why = compared(storage, ours=False)
    assert left == [] and "of other data" in why


def test_a_report_of_an_older_version_has_no_difference(storage):
    part = made(storage, "rl/table1", "smoke", {}, {"source": "d4rl", "name": "d", "environment": "e",
                "behaviour_score": None, "transitions": 1, "simulator": "s", "behaviour_return": 0.0})  # fmt: skip
    old = part.as_json()
    del old["apart"]
    for row in old["rows"]:
        for cell in row["cells"]:
            del cell["comparable"]
    assert not FilledTable.of_json(old).has_differences
