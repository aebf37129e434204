"""What a notebook sees: names, texts that fit a screen, HTML that is well-formed, and mistakes in one line."""

import dataclasses
import math
import subprocess
import sys
import typing
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import retable
from retable.platform.config import changes_of, flatten
from retable.platform.errors import UserError
from retable.platform.execute.sweep import Point, SweepResult
from retable.platform.report import notebook
from retable.platform.report.notebook import History, Runs, Tables
from retable.platform.report.results import FilledClaim, fill
from retable.platform.spec.claims import UNTESTED
from retable.platform.spec.space import Space
from retable.platform.store.storage import Storage
from tests.platform.made_runs import begun, finished

VOID = {"meta", "br", "img", "path", "polyline", "circle"}


class Page(HTMLParser):
    """Reads HTML; every tag must be closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.cells, self.points, self.texts = [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        if tag == "polyline":
            self.points.append(dict(attributes)["points"].split())

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["td"]:
            self.cells.append(data)
        self.texts.append(data)


def fits(text, lines=30, columns=100):
    return len(text.splitlines()) <= lines and max(map(len, text.splitlines())) <= columns


def test_dir_shows_what_there_is_and_all_of_it_is_there():
    code = "import sys, retable; print(*dir(retable)); print({'torch', 'ray', 'numpy', 'pandas'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = "Resources Space TrainedRun UserError __version__ load pack plan report reproduce runs sweep train unpack "
    wanted += "verify"
    assert said == [wanted, "set()"]
    for name in dir(retable):
        assert getattr(retable, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = retable.nothing


def test_every_function_is_typed():
    for name in ("load", "plan", "report", "reproduce", "runs", "sweep", "train"):
        hints = getattr(retable, name).__annotations__
        assert "return" in hints and "Any" not in str(hints.values())
    assert typing.get_type_hints(retable.Resources)["gpus"] == (float | None)


@pytest.mark.parametrize(
    "given",
    [
        {"seed": np.int64(3), "pause": np.float32(0.5)},
        {"seed": torch.tensor(3), "pause": np.array(0.5)},
        ["seed=3", "pause=0.5"],
        ("seed=3", "pause=0.5"),
        {"seed": 3, "pause": 0.5},
    ],
)
def test_changes_are_written_in_any_way_and_mean_the_same(given, storage):
    plan = retable.plan("line/table1", set=given, storage=storage)
    assert plan.changes == {"seed": 3, "pause": 0.5}
    assert all(type(value) in (int, float) for value in plan.changes.values())
    assert {training.config.seed for training in plan.trainings.values()} == {3}


def test_one_text_is_one_change_and_lists_of_numpy_become_plain():
    assert changes_of("seed=3") == {"seed": 3} and changes_of(None) == {}
    assert changes_of({"a": [np.int8(1), (np.float64(2.0),)]}) == {"a": [1, (2.0,)]}
    assert changes_of({"a": np.arange(2)}) == {"a": [0, 1]}
    assert changes_of({"a": range(2), "b": (0, 1)}) == {"a": [0, 1], "b": [0, 1]}, "values of an axis"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: retable.plan("line/table1", set=3, storage=s), 'set=3: write it as {"seed": 1} or as ["seed=1"]'),
        (lambda s: retable.plan("line/table1", set=["seed"], storage=s), "set seed: write it as path=value"),
        (lambda s: retable.plan("line/table1", set={"seed": np.float64(1.5)}, storage=s), "seed: 1.5 is not a whole"),
        (lambda s: retable.plan("line/table1", set={"seed": Path("x")}, storage=s), "is not a whole number"),
        (lambda s: retable.plan("line/table1", set={"rate": np.nan}, storage=s), "rate: nan is not a finite number"),
        (lambda s: retable.plan(["line/table1"], storage=s), "['line/table1'] names no table"),
        (lambda s: retable.plan("line/table1", scale=None, storage=s), "no scale None"),
        (lambda s: retable.plan("line/table1", storage=None), "storage=None: name a folder"),  # not `./None`
        (lambda s: retable.sweep(3, storage=s), "space=3: name a search space"),
        (lambda s: retable.load("zz", s), "name it by its first digits"),
        (lambda s: retable.load(123, s), "no run begins with '123'"),
        (lambda s: retable.report(s), "no tables have been reproduced here"),
        (lambda s: retable.Resources(workers=0), "workers=0"),
        (lambda s: retable.Resources(gpus=-1.0), "gpus=-1.0"),
        (lambda s: retable.Resources(cpus="two"), "cpus='two'"),
    ],
)
def test_mistakes_are_one_line(call, said, storage):
    begun(storage)
    with pytest.raises(UserError) as raised:
        call(storage)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_notebook_shows_the_line_of_a_mistake_and_no_traceback():
    assert UserError("s3://KEY:SECRET@b is not there")._render_traceback_() == ["error: s3://***@b is not there"]


def test_a_storage_is_a_text_a_path_or_open_already(tmp_path):
    run = finished(Storage.open(tmp_path / "results"))
    for where in (str(tmp_path / "results"), tmp_path / "results", Storage.open(tmp_path / "results")):
        assert retable.load(run.fingerprint[:6], where).fingerprint == run.fingerprint
        assert retable.load("latest", where).fingerprint == run.fingerprint
        assert [found.run for found in retable.runs(storage=where)] == [run.fingerprint]


def test_a_plan_fits_a_screen_and_says_what_is_to_do(storage):
    plan = retable.plan(storage=storage)
    assert fits(repr(plan)) and len(repr(plan.trainings)) / len(plan.trainings) < 4000
    page = Page(plan._repr_html_())
    todo = sum(training.status == "new" for training in plan.trainings.values())
    assert f"{todo} ({todo} new)" in page.cells
    rows = {name: len(table.rows) for name, (_, table) in plan.tables.items()}
    for name, count in rows.items():
        assert page.cells[page.cells.index(name) + 1] == str(count)


def test_a_run_fits_a_screen_and_shows_its_curve(storage):
    folder = finished(storage, rate=0.25, metrics={f"density/{n}": 1.0 for n in range(90)})
    rows = [{"epoch": e, "step": e, "time": 1.0, "loss": v} for e, v in enumerate((8.0, 4.0, math.nan, 0.0), 1)]
    folder.write_history(rows)
    run = retable.load(folder.fingerprint, storage)
    assert (
        fits(repr(run), 8) and "rate=0.25" in repr(run) and "loss=0.5" in repr(run) and "finished in 2 s" in repr(run)
    )
    page = Page(run._repr_html_())
    assert page.points == [["0.0,0.0", "33.33,20.0", "100.0,40.0"]]  # 8 on top, 0 at the bottom, no epoch 3
    frame = run.history.frame()
    assert list(frame["loss"])[:2] == [8.0, 4.0] and len(frame) == 4
    assert isinstance(run.history, History) and run.history[0]["loss"] == 8.0


def test_a_run_that_is_not_finished_diverged_or_damaged_still_shows_itself(storage):
    other = begun(storage, seed=1)
    assert "not finished" in repr(retable.load(other.fingerprint, storage))
    Path(other.folder.root, "result.json").write_text("{")
    run = retable.load(other.fingerprint, storage)
    assert "corrupt: " in repr(run) and fits(repr(run)) and Page(run._repr_html_())
    assert "diverged: loss" in repr(
        retable.load(finished(storage, seed=2, entries={"diverged": "loss"}).fingerprint, storage)
    )


def filled(storage, published=False):
    storage.write_json("data/line/points/dataset.json", {"digest": "d", "points": 64, "published": published})
    for seed, changes in ((s, c) for s in (0, 1) for c in ({"rate": 0.001}, {})):
        finished(storage, seed=seed, **changes)
    return fill(retable.plan("line/table1", storage=storage), "line/table1")


def test_a_table_shows_itself_as_in_the_report(storage):
    from retable.platform.report.render import grid

    part = filled(storage)
    header, rows = grid(part)
    page = Page(part._repr_html_())
    shown = [cell for row in rows for cell in row]
    assert page.cells[: len(shown)] == shown and "difference" not in header
    assert part.apart.startswith("No difference") and part.apart in page.texts and part.apart[:90] in repr(part)
    large = dataclasses.replace(filled(storage, published=True), scale="paper")
    assert "difference" in Page(large._repr_html_()).texts and "difference" in repr(large)
    smoke = dataclasses.replace(part, scale="smoke")
    assert fits(repr(smoke)) and "no results" in repr(smoke) and "no results" not in repr(large)
    both = Tables({"a": part, "b": large})
    assert both["a"] is part and fits(repr(both), 60) and Page(both._repr_html_())


def test_claims_are_in_the_order_of_the_report(storage):
    claims = [("ours", True, "holds"), ("untested", False, UNTESTED), ("the paper's", False, "does not hold")]
    judged = tuple(FilledClaim(text, ours, status, "") for text, ours, status in claims)
    part = dataclasses.replace(filled(storage), claims=judged[::-1])
    html = part._repr_html_()
    places = [html.index(text) for text in ("the paper&#39;s", "ours: ours", "untested")]
    assert places == sorted(places)
    assert f"claims: 1 holds, 1 does not hold, 1 {UNTESTED}" in repr(part)


def test_what_a_label_holds_is_no_html(storage):
    part = filled(storage)
    row = dataclasses.replace(part.rows[0], label="<script>alert(1)</script>")
    html = dataclasses.replace(part, rows=(row, *part.rows[1:]))._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_runs_are_listed_selected_and_framed(storage):
    for seed in range(30):
        finished(storage, seed=seed)
    every = retable.runs("line", storage=storage)
    assert fits(repr(every)) and "more rows" in repr(every) and Page(every._repr_html_())
    frame = every.frame()
    assert sorted(frame["seed"]) == list(range(30)) and set(frame["state"]) == {"finished"}
    assert [run.config["seed"] for run in retable.runs(where=["seed=7"], storage=storage)] == [7]
    assert retable.runs(state="failed", storage=storage) == [] and Runs().frame().empty
    with pytest.raises(UserError, match="no such state"):
        retable.runs(state="finnished", storage=storage)


def test_a_sweep_fits_a_screen_and_draws_itself():
    from ray import tune

    space = Space(task="line", domains={"rate": tune.loguniform(1e-4, 1)}, metric="rmse", mode="min", search="random")
    points = [Point({"rate": 10.0**-n}, f"{n:016x}", float(n), 3, True) for n in range(1, 60)]
    found = SweepResult(name="line", space=space, scale="smoke", changes={}, points=points)
    assert fits(repr(found)) and "39 more rows" in repr(found)
    html = found._repr_html_()
    assert html.count("<svg") == 1 and "39 more" in html
    none = SweepResult(name="line", space=space, scale="smoke", changes={}, points=[Point({"rate": 1.0}, "a" * 16)])
    assert "<svg" not in none._repr_html_() and fits(repr(none))


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_grid_is_never_wider_than_the_screen_and_says_what_it_left_out(width):
    header, rows = [f"column {n}" for n in range(30)], [[f"{n * m}" * 5 for n in range(30)] for m in range(50)]
    text = notebook.text_grid(header, rows, width=width)
    assert max(map(len, text.splitlines()[:-1])) <= width and len(text.splitlines()) == 22
    shown = len(text.splitlines()[0].split("column")) - 1
    assert text.endswith(f"30 more rows and {30 - shown} more columns: .frame() has all")


def test_the_config_of_a_loaded_run_is_what_was_trained(storage):
    folder = finished(storage, rate=0.25, seed=5)
    assert flatten(retable.load(folder.fingerprint, storage).config)["rate"] == 0.25
