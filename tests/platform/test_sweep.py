"""Sweeps over the config, the view, or both: what a point trains, and how the journal tells points apart."""

from dataclasses import replace

import pytest

from retable.platform import cli
from retable.platform.errors import UserError
from retable.platform.launch import Context, Resources, drawn
from retable.platform.plan import data_digest
from retable.platform.runs import RunFolder
from retable.platform.stages import predict_and_score
from retable.platform.sweep import Journal, Point, at_once, entry, find_space, fixed_points, run_sweep, trains_apart
from retable.platform.table import split_view
from retable.tasks.halves import TASK, Config, View
from tests.platform.halves import fit

GRID = find_space("halves_grid")


@pytest.fixture
def context(storage):
    TASK.dataset.prepare(Config(), storage)
    return Context(storage, Resources(), {}, {}, base=Config(epochs=1), view=View(split="validation"), task="halves")


def test_changes_of_the_view_are_told_from_those_of_the_config():
    changes = {"rate": 0.5, "view.limit": 0.1, "init.checkpoint": 2, "view.policy.kind": "x"}
    assert split_view(changes) == ({"rate": 0.5, "init.checkpoint": 2}, {"limit": 0.1, "policy.kind": "x"})
    assert split_view({}) == ({}, {})


def test_a_point_trains_its_config_and_is_scored_under_its_view(context):
    job = drawn({"rate": 0.5, "view.limit": 0.1}, context)
    assert job.configs == (Config(epochs=1, rate=0.5),) and job.view == View(split="validation", limit=0.1)
    assert drawn({"rate": 0.5}, context).view == View(split="validation")
    with pytest.raises(UserError, match="unknown field 'limt'; did you mean 'limit'"):
        drawn({"view.limt": 0.1}, context)


def test_points_of_one_run_do_not_train_it_side_by_side(context):
    points = fixed_points(GRID, 1)
    assert len(points) == 6
    runs = {rate: [point for point in points if point["rate"] == rate] for rate in (0.001, 0.1)}
    first = at_once(points, context)
    assert len(first) == 2 and {point["rate"] for point in first} == {0.001, 0.1}
    config = Config(epochs=1, rate=0.1)
    folder = RunFolder.of(context.storage, TASK, config)
    fit(context.storage, config, folder, ())
    rest = [point for point in points if point not in first]
    assert len(at_once(rest, context)) == 2, "of a run that is not predicted yet, one point"
    assert predict_and_score(TASK, config, replace(drawn(rest[0], context).view, epoch=1), folder) is None
    assert at_once(rest, context) == sorted(
        [*(p for p in runs[0.1] if p in rest), next(p for p in runs[0.001] if p in rest)], key=rest.index
    ), "all of the finished run, and one of the other, which was stopped early"
    context.storage.write_json("data/line/points/dataset.json", {"points": 64, "digest": "others"})
    assert len(at_once(points, context)) == 2, "a run of other data is trained again"
    assert data_digest(context.storage, "line/points") == "others"


def test_the_journal_tells_points_of_one_run_apart_and_reads_old_ones(context):
    base, storage = context.base, context.storage
    journal = Journal.open(storage, "sweeps/s.json", "hits")
    points = [entry(journal, TASK, base, overrides) for overrides in ({"view.limit": 0.1}, {"view.limit": 0.5}, {})]
    assert len({point.fingerprint for point in points}) == 1 and len({point.key for point in points}) == 3
    assert points[2].key == points[2].fingerprint
    for value, point in enumerate(points):
        journal.points[point.key] = point
        point.value, point.ended = float(value), True
    journal.write()
    again = Journal.open(storage, "sweeps/s.json", "hits")
    assert again.points == journal.points
    assert entry(again, TASK, base, {"view.limit": 0.5}).value == 1.0
    assert not entry(again, TASK, base, {"view.limit": 0.7}).ended
    assert not entry(again, TASK, base, {"view.limit": 0.5, "rate": 0.9}).ended
    assert [point.value for point in again.best("max")] == [2.0, 1.0, 0.0]


def test_draws_that_may_share_a_run_come_one_after_another():
    from ray import tune

    limit = {"view.limit": tune.uniform(0, 1)}
    assert not trains_apart({"rate": tune.choice([0.1])}), "an equal draw would train the same run beside it"
    assert trains_apart({"rate": tune.loguniform(1e-3, 1), **limit})
    for domains in ({}, {"epochs": tune.randint(1, 3)}, {"rate": tune.quniform(0, 1, 0.5)}):
        assert not trains_apart(domains | limit)


def test_a_mistake_in_a_field_of_the_view_is_told_before_anything_runs(storage, monkeypatch):
    monkeypatch.setattr(GRID, "SPACE", {"view.limt": GRID.SPACE["view.limit"]})
    with pytest.raises(UserError, match="unknown field 'limt'; did you mean 'limit'"):
        run_sweep("halves_grid", {}, "smoke", storage, Resources(), None)
    assert not storage.exists()


def test_a_sweep_of_another_metric_has_a_journal_of_its_own(storage, monkeypatch):
    def opened(storage, path, metric):
        paths.add(path)
        raise UserError("enough")

    paths = set()
    monkeypatch.setattr(Journal, "open", opened)
    for metric in ("hits", "rmse", "hits"):
        monkeypatch.setattr(GRID, "METRIC", metric)
        with pytest.raises(UserError, match="enough"):
            run_sweep("halves_grid", {}, "smoke", storage, Resources(), None)
    assert len(paths) == 2


def test_the_winner_is_printed_as_set_options_and_a_view(monkeypatch, capsys):
    def sweep(*_, **options):
        heard.append(options["resources"])
        points = [Point({"rate": 0.1, "init": "parent", "view.limit": 0.25}, "f" * 16, 0.5, 3, True)]
        return [
            *points,
            Point({"rate": 0.5}, "e" * 16, 0.25, 3, True),
            Point({"view.limit": 1}, "d" * 16, 0.1, 3, True),
        ]

    heard = []
    monkeypatch.setattr("retable.platform.api.sweep", sweep)
    with pytest.raises(SystemExit):
        cli.app(["sweep", "halves_grid", "--stream"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "winner: --set rate=0.1 --set init=parent  view: limit=0.25"
    assert lines[2].split(maxsplit=4)[-1].strip() == "--set rate=0.5"
    assert lines[3].split(maxsplit=4)[-1].strip() == "view: limit=1"
    assert heard[0].stream is True


@pytest.mark.parametrize(("words", "stream"), [((), False), (("--stream",), True), (("--no-stream",), False)])
@pytest.mark.parametrize("command", [("train", "line"), ("reproduce", "line/table1")])
def test_streams_are_asked_for_by_an_option(monkeypatch, tmp_path, command, words, stream):
    heard = []

    def call(*_, **options):
        heard.append(options["resources"])
        raise UserError("enough")

    monkeypatch.setattr("retable.platform.api.train", call)
    monkeypatch.setattr("retable.platform.api.reproduce", call)
    with pytest.raises(UserError, match="enough"):
        cli.app([*command, *words, "--storage", str(tmp_path)], standalone_mode=False)
    assert [resources.stream for resources in heard] == [stream]
