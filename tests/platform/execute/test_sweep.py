"""Sweeps: what points train, how values are read, what is said of them, and that the same command goes on."""

import io
import json
import math
import shlex
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pandas
import pytest
from ray import tune
from typer.testing import CliRunner

import retable
from retable.platform import api
from retable.platform.cli import app as cli
from retable.platform.config import fingerprint, override, parse_set
from retable.platform.errors import UserError
from retable.platform.execute import run, sweep
from retable.platform.execute.callback import FAILURE
from retable.platform.execute.scoring import predict_and_score, score_weights
from retable.platform.execute.session import ray_cluster
from retable.platform.execute.sweep import Point, Sweep, SweepLaunch, SweepResult, read_points, try_point
from retable.platform.plan.plan import name_of_view
from retable.platform.spec.resources import Resources
from retable.platform.spec.space import Space, find_space
from retable.platform.spec.table import split_view
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.tasks.halves import TASK, Config, View
from tests.platform.halves import fit

GRID = find_space("halves_grid")
LINE = Space(task="line", domains={"rate": tune.grid_search([0.001, 0.1])}, metric="rmse", mode="min")


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster(nested=True):
        yield


@pytest.fixture
def no_ray(monkeypatch):
    """Sweeps that must find everything on the storage."""

    def start(**_):
        raise AssertionError("something was left to do")

    monkeypatch.setattr(run, "ray_cluster", start)
    monkeypatch.setattr(sweep, "ray_cluster", start)


def test_points_are_written_before_what_they_start_from_is_trained(storage, monkeypatch):
    """`gc` keeps what the written points start from: a parent that is finished while others are still trained."""
    find("line").dataset.prepare(find("line").config(), storage)
    space = replace(LINE, scheduler="median_stopping_rule", overrides={"init": "parent"})
    rates = []

    def interrupted(plan, resources):
        (file,) = storage.list("sweeps")
        rates.extend(point["overrides"]["rate"] for point in storage.read_json(f"sweeps/{file}"))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        api.sweep(space, storage=storage)
    assert rates == [0.001, 0.1]


def test_numbers_of_numpy_name_a_sweep_as_plain_ones_do(storage):
    def path(seeds):
        space = Space(
            task="line", domains={"seed": tune.choice(seeds)}, metric="rmse", mode="min", search="random", samples=2
        )
        return Sweep(name="x", space=space, scale="smoke", changes={}, storage=storage).path([])

    assert path(list(numpy.arange(3))) == path([0, 1, 2]) != path([0, 1])


def trained(storage, **changes):
    """Train a run of the toy in this process."""
    config = override(Config(), changes)
    folder = RunFolder.of(storage, TASK, config)
    fit(storage, config, folder, ())
    return config, folder


def scored(storage, config, folder, **view):
    """Score a run under a view of the validation points at its last epoch, and return the scores."""
    seen = View(split="validation", epoch=config.epochs, **view)
    assert predict_and_score(TASK, config, seen, folder) is None
    return score_weights(TASK, config, seen, folder.weights(config.epochs), Source.of(storage, "line/points"))


def result(points, space=GRID, **more):
    fixed = {"name": "s", "scale": "smoke", "changes": {}, "files": "out/sweeps/s-1"}
    return SweepResult(**{**fixed, "space": space, "points": points, **more})


def test_changes_of_the_view_are_told_from_those_of_the_config():
    changes = {"rate": 0.5, "view.limit": 0.1, "init.checkpoint": 2, "view.policy.kind": "x"}
    assert split_view(changes) == ({"rate": 0.5, "init.checkpoint": 2}, {"limit": 0.1, "policy.kind": "x"})
    assert split_view({}) == ({}, {})


def test_points_of_a_grid_read_what_is_there(storage, no_ray):
    expected = {}
    for rate in (0.001, 0.1):
        config, folder = trained(storage, rate=rate)
        for limit in (0.1, 0.5, 2.5):
            expected[rate, limit] = scored(storage, config, folder, limit=limit)["hits"]
    found = retable.sweep("halves_grid", storage=storage.root)
    got = {(point.overrides["rate"], point.overrides["view.limit"]): point.value for point in found.points}
    assert got == expected and len(set(expected.values())) > 2
    assert [point.value for point in found.points] == sorted(expected.values(), reverse=True)
    assert {point.epochs for point in found.points} == {3} and all(point.ended for point in found.points)
    least = retable.sweep(replace(GRID, mode="min"), storage=storage.root)
    assert [point.value for point in least.points] == sorted(expected.values())


def test_the_files_of_a_sweep_are_named_by_what_its_points_depend_on(storage):
    def path(space, **changes):
        return Sweep(name="s", space=space, scale="smoke", changes=changes, storage=storage).path([Config()])

    TASK.dataset.prepare(Config(), storage)
    others = [
        replace(GRID, metric="error"),
        replace(GRID, mode="min"),
        replace(GRID, view={}),
        replace(GRID, domains={"rate": tune.grid_search([0.001])}),
        replace(GRID, domains={"rate": tune.uniform(0, 1)}, search="random"),
        replace(GRID, domains={"rate": tune.loguniform(0.1, 1)}, search="random"),
        replace(GRID, domains={"rate": tune.loguniform(0.1, 1)}, search="optuna"),
    ]
    paths = [path(GRID), path(GRID, epochs=2), *map(path, others)]
    assert len(set(paths)) == len(paths)
    assert path(replace(GRID, domains=dict(GRID.domains))) == path(GRID)
    random = replace(GRID, domains={"rate": tune.uniform(0, 1)}, search="random", samples=3)
    assert path(random) == path(replace(random, samples=5)), "more points belong to the same sweep"
    storage.write_json("data/line/points/dataset.json", {"points": 64, "digest": "others"})
    assert path(GRID) != paths[0]


def test_a_searchers_points_find_every_data_set_that_they_may_read(storage):
    domains = {"environment": tune.choice(["HalfCheetah", "Hopper"]), "learning_rate": tune.loguniform(1e-4, 1e-3)}
    space = Space(
        task="rl", domains=domains | {"seed": tune.choice([0, 1])}, metric="score", mode="max", search="optuna"
    )
    made = Sweep(name="s", space=space, scale="smoke", changes={}, storage=storage)
    where = find("rl").dataset.where
    sets = [where(config) for config in sweep._configs_of_data(made)]
    assert (
        sets == [where(made.config({"environment": name})) for name in ("HalfCheetah", "Hopper")]
        and len(set(sets)) == 2
    )
    alone = replace(made, space=replace(space, domains={"learning_rate": domains["learning_rate"]}))
    assert sweep._configs_of_data(alone) == [alone.base]


@pytest.mark.parametrize("name", ["lr/first", "../x", "-x", "a b"])
def test_a_sweeps_name_is_one_of_files(storage, name):
    with pytest.raises(UserError, match="cannot name a sweep's files"):
        retable.sweep("halves_grid", storage=storage.root, name=name)


@pytest.mark.parametrize("text", ["[1]", "{}", '[{"fingerprint": "a", "more": 1}]'])
def test_a_journal_that_is_none_is_named(storage, text):
    storage.write("sweeps/s.json", text)
    with pytest.raises(UserError, match=r"sweeps/s.json: no sweep's points; mend or remove it first"):
        read_points(storage, "sweeps/s.json")


def test_a_grid_that_breaks_off_has_named_its_runs(storage, monkeypatch):
    """`gc` takes what no table and no sweep names."""

    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "execute", stops)
    with pytest.raises(KeyboardInterrupt):
        retable.sweep("halves_grid", storage=storage.root)
    (path,) = (f"sweeps/{name}" for name in storage.list("sweeps"))
    runs = {RunFolder.of(storage, TASK, override(Config(), {"rate": rate})).fingerprint for rate in (0.001, 0.1)}
    assert {point.fingerprint for point in read_points(storage, path)} == runs


def test_a_point_whose_prediction_failed_says_so(storage, monkeypatch):
    views = {"view.split": ["test", "validation"], "view.limit": [0.1, 0.2]}
    domains = {path: tune.grid_search(values) for path, values in views.items()}

    def failing(plan, resources):
        failed = [each for each in plan.predictions.values() if each.view.split == "validation"]
        return {name_of_view(each, plan.shared): "no room" for each in failed}

    monkeypatch.setattr(sweep, "execute", failing)
    found = api.sweep(Space(task="halves", domains=domains, metric="hits", mode="max"), storage=storage)
    failed = {point.overrides["view.split"]: point.note for point in found.points}
    assert failed == {"test": "", "validation": "failed: no room"}


def test_points_that_differ_in_the_sixth_digit_have_names_of_their_own(storage):
    of = Sweep(name="line", space=LINE, scale="smoke", changes={}, storage=storage)
    launch = SweepLaunch(storage, Resources(), {}, None, 0.0, sweep=of)
    runs_of = sweep._Journal(storage, "sweeps/line", {}).watch(None, launch).runs_of
    names = {runs_of({"rate": rate})[0].name for rate in (0.00123451, 0.00123454)}
    assert len(names) == 2


def test_what_other_commands_tried_stays_in_the_journal(storage):
    """Two searches side by side, or a random one with fewer samples, lost points, and `gc` took the runs."""
    ended = Point({"rate": 0.1}, "a" * 16, 0.5, 3, True)
    other = Point({"rate": 0.3}, "c" * 16, 0.7, 3, True)
    begun = Point({"rate": 0.2}, "b" * 16)
    sweep._write_points(storage, "sweeps/s.json", [ended, other])
    sweep._write_points(storage, "sweeps/s.json", [begun, Point({"rate": 0.3}, "c" * 16)])
    assert read_points(storage, "sweeps/s.json") == [ended, other, begun]
    over = replace(begun, value=0.1, ended=True)
    result([over], LINE).write(storage, "sweeps/s")
    assert read_points(storage, "sweeps/s.json") == [ended, other, over]


def test_a_random_sweep_of_fewer_samples_gives_all_that_are_known(storage, no_ray):
    space = replace(GRID, domains={"rate": tune.choice([0.001, 0.1])}, search="random", samples=2)
    for point in (every := space.points()):
        trained(storage, **{path: value for path, value in point.items() if not path.startswith("view.")})
        config = override(Config(), split_view(point)[0])
        scored(storage, config, RunFolder.of(storage, TASK, config), **split_view(point)[1])
    more = sweep.run_sweep(space, {}, "smoke", storage, Resources(), 2)
    fewer = sweep.run_sweep(space, {}, "smoke", storage, Resources(), 1)
    assert len(every) == 2 and {p.key for p in fewer.points} == {p.key for p in more.points}


def test_a_point_that_came_in_a_bundle_without_weights_is_trained_again_where_it_is_not_scored(storage, monkeypatch):
    config, folder = trained(storage, rate=0.8)
    folder.folder.write_json("result.json", folder.result() | {"bundle": {"id": "b"}})
    folder.folder.remove("weights")
    trial = Sweep(name="s", space=GRID, scale="smoke", changes={}, storage=storage)
    heard, jobs = [], []
    monkeypatch.setattr("ray.tune.report", heard.append)
    monkeypatch.setattr("ray.tune.get_context", lambda: SimpleNamespace(get_trial_id=lambda: "t"))
    monkeypatch.setattr(sweep, "run_job", lambda job, *of: jobs.append(job))
    try_point({"rate": 0.8}, SweepLaunch(storage, Resources(), {}, sweep=trial))
    assert not heard and [job.keep for job in jobs] == [((config.epochs,),)]


def test_what_diverged_never_wins(storage, no_ray):
    space = replace(GRID, domains={"rate": tune.grid_search([0.001, 0.01, 0.1])}, metric="error", mode="min")
    values = {}
    for rate in (0.001, 0.01, 0.1):
        config, folder = trained(storage, rate=rate)
        values[rate] = scored(storage, config, folder)["error"]
    assert values[0.1] < values[0.01] < values[0.001]
    said = folder.result() | {"diverged": "loss is nan at step 9"}
    folder.folder.write_json("result.json", said)
    folder.folder.remove("views")  # nothing is scored of what diverged
    config, folder = trained(storage, rate=0.01)
    scores = {"hits": 0.0, "error": math.nan}
    folder.save_scores(View(split="validation", epoch=3), folder.result()["weights"]["3"], scores, 0.0)
    found = retable.sweep(space, storage=storage.root)
    assert [(point.overrides["rate"], point.value, point.note) for point in found.points] == [
        (0.001, values[0.001], ""),
        (0.01, None, "diverged"),
        (0.1, None, "diverged: loss is nan at step 9"),
    ]
    assert (
        found.best.overrides == {"rate": 0.001} and json.loads(storage.read(name(storage, ".json")))[1]["value"] is None
    )


def name(storage, suffix):
    (only,) = [f"sweeps/{each}" for each in storage.list("sweeps") if each.endswith(suffix)]
    return only


def test_a_metric_that_was_not_taken_is_said_to_be_missing(storage, no_ray):
    config, folder = trained(storage, rate=0.1)
    scored(storage, config, folder)
    found = api.sweep(
        replace(GRID, domains={"rate": tune.grid_search([0.1])}, metric="hits/left"), storage=storage.root
    )
    with pytest.raises(UserError, match="none of 1 points has a value: 1 x no metric 'hits/left'; did you mean 'hits'"):
        print(found.best)


def test_a_finished_run_is_replayed_with_its_best_weights(storage, monkeypatch):
    config, folder = trained(storage, rate=0.8, epochs=10, patience=2)
    last = folder.history()[-1]
    assert last["epoch"] < 10 and "best" not in last
    heard = []
    monkeypatch.setattr("ray.tune.report", heard.append)
    base = {"epochs": 10, "patience": 2}
    for limit, metric in ((0.0, "hits"), (100.0, "hits"), (100.0, "hits/x")):
        space = replace(GRID, domains={"rate": tune.grid_search([0.8])}, view={"limit": limit}, metric=metric)
        trial = Sweep(name="s", space=space, scale="smoke", changes=base, storage=storage)
        try_point({"rate": 0.8}, SweepLaunch(storage, Resources(), {}, sweep=trial))
    best = score_weights(TASK, config, View(epoch=10), folder.weights(10), Source.of(storage, "line/points"))
    assert [report["hits"] for report in heard[:2]] == [0, 1]
    assert all(report["error"] == best["error"] and report["epoch"] == last["epoch"] for report in heard[:2])
    assert heard[2][FAILURE].startswith("no metric 'hits/x' was taken; did you mean 'hits'")
    assert math.isnan(heard[2]["hits/x"]), "a searcher hears of the point"


def test_a_trial_of_a_run_that_diverged_says_so_at_once(storage, monkeypatch):
    _, folder = trained(storage, rate=0.8)
    folder.folder.write_json("result.json", folder.result() | {"diverged": "loss is nan in epoch 2"})
    heard = []
    monkeypatch.setattr("ray.tune.report", heard.append)
    space = replace(GRID, domains={"rate": tune.grid_search([0.8])})
    trial = Sweep(name="s", space=space, scale="smoke", changes={}, storage=storage)
    try_point({"rate": 0.8}, SweepLaunch(storage, Resources(), {}, sweep=trial))
    assert len(heard) == 1 and math.isnan(heard[0]["hits"]) and heard[0]["epoch"] == 3
    assert not folder.folder.exists("views")
    point = Point({"rate": 0.8}, folder.fingerprint)
    sweep.note_value(point, trial, heard[0])
    assert (point.value, point.note) == (None, "diverged: loss is nan in epoch 2")


def test_equally_good_points_are_named_as_ties():
    points = [
        Point({"rate": 0.1, "view.limit": 0.25}, "f" * 16, 0.5, 3, True),
        Point({"rate": 0.2, "view.limit": 1.0}, "e" * 16, 0.5, 3, True),
        Point({"rate": 0.1, "view.limit": 1.0}, "f" * 16, 0.25, 3, True),
        Point({"rate": 0.3, "view.limit": 1.0}, "d" * 16, None, 2, True, "diverged: loss is nan"),
    ]
    found = result(points)
    assert found.best is points[0] and found.ties == points[:2]
    frame = found.frame()
    assert frame["place"].tolist() == [1, 1, 3, pandas.NA]
    assert frame["rate"].tolist() == [0.1, 0.2, 0.1, 0.3] and frame["view.limit"].tolist() == [0.25, 1.0, 1.0, 1.0]
    read = pandas.read_csv(io.StringIO(found.csv()))
    assert list(read) == ["place", "rate", "view.limit", "hits", "epochs", "run", "note"]
    assert read["hits"][:3].tolist() == [0.5, 0.5, 0.25] and read["note"][3] == "diverged: loss is nan"


def test_a_plot_shows_the_metric_over_each_axis():
    domains = {
        "rate": tune.loguniform(1e-3, 1),
        "batch": tune.choice([4, 8]),
        "init": tune.choice(["scratch", "parent"]),
        "pause": tune.qloguniform(1e-3, 1, 1e-3),
    }
    space = replace(LINE, domains=domains, search="random")
    points = [
        Point({"rate": 0.1, "batch": 4, "init": "parent", "pause": 0.1}, "a", 0.5, 3, True),
        Point({"rate": 0.2, "batch": 8, "init": "scratch", "pause": 0.2}, "b", 0.5, 3, True),
        Point({"rate": 0.3, "batch": 8, "init": "parent", "pause": 0.3}, "c", 0.7, 3, True),
        Point({"rate": 0.4, "batch": 8, "init": "parent", "pause": 0.4}, "d", None, 3, True, "diverged"),
    ]
    panels = result(points, space).figure().axes
    assert [panel.get_xlabel() for panel in panels] == ["rate", "batch", "init", "pause"]
    assert [panel.get_xscale() for panel in panels] == ["log", "linear", "linear", "log"]
    everything, ties, winner = (group.get_offsets().data.tolist() for group in panels[0].collections)
    assert everything == [[0.1, 0.5], [0.2, 0.5], [0.3, 0.7]]
    assert ties == [[0.2, 0.5]] and winner == [[0.1, 0.5]]
    assert [label.get_text() for label in panels[2].get_xticklabels()] == ["parent", "scratch"]
    assert panels[2].collections[0].get_offsets().data[:, 0].tolist() == [0, 1, 0]
    wide, narrow = tune.grid_search([0.1, 1.0, 1e4]), tune.grid_search([0.1, 0.2])
    for domain, scale in ((wide, "log"), (narrow, "linear")):
        points = [Point({"rate": rate}, "a", 0.5) for rate in domain["grid_search"]]
        assert result(points, replace(LINE, domains={"rate": domain})).figure().axes[0].get_xscale() == scale
    assert result([Point({"rate": 0.1}, "a")], LINE).figure().axes, "even where no point has a value"


def test_the_line_of_a_point_makes_its_run_again(storage):
    space = replace(LINE, overrides={"epochs": 2})
    trial = Sweep(name="s", space=space, scale="smoke", changes={"seed": 4, "batch": 4}, storage=storage)
    run = trial.folder({"rate": 0.1}).fingerprint
    line = result([], space, changes=trial.changes).command(Point({"rate": 0.1}, run))
    words = shlex.split(line)
    assert words[:5] == ["retable", "train", "line", "--scale", "smoke"]
    config = api.config_at(find("line"), "smoke", parse_set(words[6::2]))
    assert fingerprint("line", 1, config) == run and (config.epochs, config.seed, config.rate) == (2, 4, 0.1)
    trial = replace(trial, changes={"init": "parent"})
    run = trial.folder({"rate": 0.1}).fingerprint
    line = result([], space, changes=trial.changes).command(Point({"rate": 0.5}, run))
    assert line == f"retable score {run}", "--set would change the parent, too"


def swept(monkeypatch, points, *words):
    """Run the command on points that were found; return what it says."""
    heard = {}

    def call(space, **options):
        heard.update(options, space=space)
        return result(points)

    monkeypatch.setattr(api, "sweep", call)
    said = CliRunner().invoke(cli.app, ["sweep", *words])
    return said, heard


def test_the_command_prints_points_ties_and_the_winner_as_set_options(monkeypatch):
    run = fingerprint("halves", 1, Config(rate=0.1))
    points = [
        Point({"rate": 0.1, "view.limit": 0.25}, run, 0.5, 3, True),
        Point({"rate": 0.5}, "e" * 16, 0.5, 3, True),
        Point({"view.limit": 1}, "d" * 16, 0.1, 3, True),
        Point({"rate": 9.0}, "c" * 16, None, 1, True, "diverged: loss is nan"),
    ]
    said, heard = swept(monkeypatch, points, "halves_grid", "--stream", "--samples", "3")
    lines = said.output.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["1", "1", "3"]
    assert lines[1].split(maxsplit=4)[-1].strip() == "--set rate=0.1  view: limit=0.25"
    assert lines[3].split(maxsplit=4)[-1].strip() == "view: limit=1"
    assert lines[4].split()[0] == "diverged"
    assert lines[-5:] == [
        "1 point without a value: diverged: loss is nan",
        "2 points tie at 0.5; the first of them is named",
        "winner: --set rate=0.1  view: limit=0.25",
        "its run: retable train halves --scale smoke --set rate=0.1",
        "all points: out/sweeps/s-1.csv, drawn: out/sweeps/s-1.png",
    ]
    assert heard["resources"].stream is True and heard["samples"] == 3 and heard["space"] == "halves_grid"


def test_the_command_says_why_no_point_has_a_value(monkeypatch):
    points = [Point({"rate": 0.1}, "a" * 16, note="failed: no room"), Point({"rate": 0.2}, "b" * 16, note="diverged")]
    said, _ = swept(monkeypatch, points, "halves_grid")
    assert isinstance(said.exception, UserError)
    assert str(said.exception) == "sweep s: none of 2 points has a value: 1 x failed: no room; 1 x diverged"


def test_the_command_takes_a_name_or_a_file(monkeypatch, tmp_path):
    path = tmp_path / "my.py"
    path.write_text(
        "from ray import tune\nfrom retable.platform.spec.space import Space\n"
        "SPACE = Space(task='line', domains={'rate': tune.grid_search([0.1])}, metric='rmse', mode='min')\n"
    )
    _, heard = swept(monkeypatch, [Point({"rate": 0.1}, "a" * 16, 0.5)], "--space", str(path))
    assert heard["space"].points() == [{"rate": 0.1}] and heard["name"] == "my"
    for words in ((), ("halves_grid", "--space", str(path))):
        said, _ = swept(monkeypatch, [], *words)
        assert isinstance(said.exception, UserError) and "name one search space" in str(said.exception)


def test_samples_of_a_grid_are_refused(storage):
    with pytest.raises(UserError, match="samples: a grid is run whole"):
        api.sweep("halves_grid", storage=storage.root, samples=3)
    with pytest.raises(UserError, match="samples: 0 is less than 1"):
        api.sweep(replace(GRID, domains={"rate": tune.uniform(0, 1)}, search="random"), storage=storage.root, samples=0)
    assert not storage.exists()


@pytest.mark.parametrize(("words", "stream"), [((), False), (("--stream",), True), (("--no-stream",), False)])
@pytest.mark.parametrize("command", [("train", "line"), ("reproduce", "line/table1")])
def test_streams_are_asked_for_by_an_option(monkeypatch, tmp_path, command, words, stream):
    heard = []

    def execute(work, resources, finish=None):
        heard.append(resources)
        raise UserError("enough")

    monkeypatch.setattr(api, "execute", execute)
    with pytest.raises(UserError, match="enough"):
        cli.app([*command, *words, "--storage", str(tmp_path)], standalone_mode=False)
    assert [resources.stream for resources in heard] == [stream]


@pytest.mark.slow
def test_points_that_differ_in_the_view_alone_train_one_run(cluster, tmp_path):
    storage = Storage.open(tmp_path)
    found = retable.sweep("halves_grid", storage=storage.root)
    assert len(found.points) == 6 and len({point.fingerprint for point in found.points}) == 2
    runs = storage / "runs/halves"
    assert sorted(runs.list()) == sorted({point.fingerprint for point in found.points})
    source = Source.of(storage, "line/points")
    for point in found.points:
        folder = RunFolder(storage, "halves", point.fingerprint)
        made = folder.folder.read_json("provenance.json")
        assert made["scale"] == "quick" and made["changed"] == ["rate"]
        assert [row["epoch"] for row in folder.history()] == [1, 2, 3] and point.epochs == 3
        config = override(Config(), {"rate": point.overrides["rate"]})
        view = override(View(), {"split": "validation", "limit": point.overrides["view.limit"], "epoch": 3})
        assert point.value == score_weights(TASK, config, view, folder.weights(3), source)["hits"]
    assert sorted(read_points(storage, name(storage, ".json")), key=str) == sorted(found.points, key=str)
    assert storage.read(name(storage, ".csv")).decode() == found.csv()
    assert storage.read(name(storage, ".png")).startswith(b"\x89PNG")
    before = {each: (runs / each).read("metrics.jsonl") for each in runs.list()}
    assert retable.sweep("halves_grid", storage=storage.root).points == found.points
    assert {each: (runs / each).read("metrics.jsonl") for each in runs.list()} == before


@pytest.mark.slow
def test_a_searchers_sweep_goes_on_with_what_it_knows(cluster, tmp_path):
    storage = Storage.open(tmp_path)
    drawn = api.sweep("line", storage=storage.root, samples=3)
    assert len(drawn.points) == 3 and drawn.best.value == min(point.value for point in drawn.points)
    for point in drawn.points:
        (last,) = [row for row in drawn_folder(storage, point).history() if row["epoch"] == point.epochs]
        assert point.value == last["rmse"] and point.ended
        assert drawn_folder(storage, point).folder.read_json("provenance.json")["scale"] == "quick"
    again = api.sweep("line", storage=storage.root, samples=3)
    assert again.points == drawn.points
    more = api.sweep("line", storage=storage.root, samples=5)
    assert len(more.points) == 5 and all(point in more.points for point in drawn.points)


def drawn_folder(storage, point):
    return RunFolder(storage, "line", point.fingerprint)


@pytest.mark.slow
def test_points_that_a_scheduler_may_stop_fail_alone_and_go_on(cluster, tmp_path):
    """Batches of 64 points' data hold 8 or 64; 100 is more than there are: that point fails, once, in one line."""
    storage = Storage.open(tmp_path)
    domains = {"batch": tune.grid_search([8, 64, 100])}
    space = replace(LINE, domains=domains, scheduler="median_stopping_rule", overrides={"init": "parent"})
    found = api.sweep(space, storage=storage.root)
    assert [point.overrides["batch"] for point in found.points][-1] == 100
    assert found.points[-1].note.startswith("failed: line: the data hold less than one batch")
    assert found.points[-1].value is None and not found.points[-1].ended
    assert all(point.value is not None and point.ended for point in found.points[:2])
    parent = RunFolder.of(storage, find("line"), find("line").config())
    assert parent.result() is not None, "what the points start from is trained first"
    again = api.sweep(space, storage=storage.root)
    assert again.points == found.points
