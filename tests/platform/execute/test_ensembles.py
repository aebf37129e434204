"""Rows joined of several: by actors, shard by shard, whatever becomes of some of them."""

import json
import weakref
from dataclasses import replace

import numpy as np
import pytest

from retable.platform.execute import ensembles as combine
from retable.platform.execute.ensembles import Ensembler, StoredMember, combination_shards, member_metrics
from retable.platform.execute.scheduler import After
from retable.platform.execute.session import ray_cluster
from retable.platform.report.results import gather
from retable.platform.spec.table import Combined, Row
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.tasks.halves import TASK, Config, View, truth
from retable.tasks.halves.joins import best, deadly, mean, wrong
from tests.platform.halves import ROWS, fill, fit, planned


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster():
        yield


@pytest.fixture
def here(monkeypatch):
    """Join in this process."""

    monkeypatch.setattr(combine, "Actors", Here)


class Here:
    """Runs pieces in this process, one when asked for what has ended."""

    def __init__(self):
        self.pieces = []

    @property
    def busy(self):
        return bool(self.pieces)

    def add(self, pieces):
        self.pieces += pieces

    def ended(self, seconds):
        piece = self.pieces.pop(0)
        return [(piece, piece.run())]

    def close(self):
        self.pieces = []


def combine_all(plan):
    """Combine every row that lacks its scores; return the failures, row -> line."""
    joiner = Ensembler(plan)
    for row in plan.uncombined:
        if len(row.inputs()) == len(row.members):
            joiner.start(row)
    return joiner.finish()


BOTH = Combined(label="both", of=("slow", "fast"), combine=mean)


def forecast(storage, **changes):
    """What a run says of a shard."""
    folder = RunFolder.of(storage, TASK, replace(Config(), **changes))
    weights = folder.weights(3)
    return lambda shard: truth(shard)[0] * weights["weight"].item() + weights["bias"].item()


@pytest.mark.slow  # the table of test_trials.py has a joined row too
def test_ray_predicts_scores_and_joins_shard_by_shard(cluster, storage, tmp_path):
    rows = [
        *ROWS,
        BOTH,
        replace(BOTH, label="narrow", view={"limit": 0.01}),
        replace(BOTH, label="tuned", view={"tuned": True}),
        replace(BOTH, label="best", combine=best),
        replace(BOTH, label="killed once", combine=deadly),
        replace(BOTH, label="refused", combine=wrong),
        replace(BOTH, label="of one", of=("fast",)),
    ]
    here = gather(fill(Storage.open(tmp_path / "here"), *rows), "halves/t")
    for training in planned(storage, *rows).missing:
        fit(storage, training.config, training.folder, training.keep)
    plan = planned(storage, *rows)
    after, fast = After(plan), RunFolder.of(storage, TASK, Config())
    after.submit(fast)
    after.submit(fast)
    assert len(plan.uncombined) == len(after.combinings) == 7
    while not after.joiner.rows:  # the row of this run alone begins before the others' members are there
        after.poll(None)
    assert [row.row.label for row in after.joiner.rows.values()] == ["of one"]
    (failed,) = after.finish().items()
    assert after.order.nodes.keys() - after.order.ended == after.combinings.keys(), "all predictions and scores"
    assert failed[0].startswith("halves refused [") and failed[1] == "these cannot be joined"
    results = gather(planned(storage, *rows), "halves/t")
    assert results.select("refused") == [] and [c.row.label for c in planned(storage, *rows).uncombined] == ["refused"]

    for label in ("slow", "fast", "first"):
        assert results.select(label)[0].metrics["error"] == here.select(label)[0].metrics["error"]
    slow, fast = forecast(storage, rate=0.001), forecast(storage)
    error = np.concatenate([abs((slow(s) + fast(s)) / 2 - truth(s)[1]) for s in ("test/left", "test/right")])
    (both,) = results.select("both")
    assert both.metrics == {"hits": (error <= 2.5).mean(), "error": pytest.approx(error.mean()), "shards": 2}
    assert both.view == View(epoch=3, limit=2.5), "the first member's"
    np.testing.assert_allclose(both.summaries()["test/right"]["error"], error[5:])
    assert results.select("killed once")[0].metrics == both.metrics

    (narrow,) = results.select("narrow")
    assert narrow.view.limit == 0.01 and narrow.metrics["hits"] == (error <= 0.01).mean() < both.metrics["hits"]
    (tuned,) = results.select("tuned")
    assert list(tuned.summaries()) == ["test/left", "test/right", "validation/left", "validation/right"]
    assert tuned.metrics["shards"] == 4
    hits = {label: results.select(label)[0].metrics["hits"] for label in ("slow", "fast")}
    chosen = max(hits, key=hits.get)
    assert results.select("best")[0].metrics["error"] == results.select(chosen)[0].metrics["error"]
    assert results.select("of one")[0].metrics == {
        name: value for name, value in results.select("fast")[0].metrics.items() if name in both.metrics
    }
    killed = RunFolder.of(storage, TASK, Config(rate=0.001))
    assert killed.artifacts(View(epoch=3), killed.result()["weights"]["3"]).exists("died")


def test_members_are_read_when_they_are_asked_for_and_not_held(storage, here, monkeypatch):
    loads, load = [], StoredMember.load

    def counted(self):
        found = load(self)
        loads.append((self.label, self.shard, weakref.ref(found["y"])))
        return found

    monkeypatch.setattr(StoredMember, "load", counted)

    def one_by_one(shard, members):
        before = len(loads)
        total = 0
        for number, member in enumerate(members):
            assert len(loads) == before + number
            total = total + member.load()["y"]
            assert loads[-1][2]() is None, "nobody but the caller held it"
        return {"y": total / len(members)}

    plan = fill(storage, *ROWS, replace(BOTH, combine=one_by_one))
    assert loads == [] and combine_all(plan) == {}
    assert [load[:2] for load in loads] == [(row, f"test/{h}") for h in ("left", "right") for row in ("slow", "fast")]

    loads.clear()
    assert combine_all(fill(storage, *ROWS, replace(BOTH, label="best", combine=best))) == {}
    assert len(loads) == 2, "only the chosen one is read, once for each shard"


def test_a_row_whose_members_are_damaged_is_one_line_and_leaves_the_others_alone(storage, here, capfd):
    rows = [*ROWS, BOTH, replace(BOTH, label="fast twice", of=("fast", "fast"))]
    plan = fill(storage, *rows)
    slow = RunFolder.of(storage, TASK, Config(rate=0.001))
    place = slow.artifacts(View(epoch=3), slow.result()["weights"]["3"])
    place.write("test/right/predictions.npz", b"garbage")
    failures = combine_all(plan)
    assert len(failures) == 1 and next(iter(failures)).startswith("halves both [")
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert len(said) == 1
    assert [c.row.label for c in planned(storage, *rows).uncombined] == ["both"]


def test_rows_of_unfinished_runs_wait(storage, here):
    plan = fill(storage, *ROWS, BOTH)
    RunFolder.of(storage, TASK, Config(rate=0.001)).folder.remove("result.json")
    assert combine_all(plan) == {} and not storage.exists(plan.combinings[0].path)


def test_a_row_is_joined_again_when_a_members_weights_change(storage, here):
    rows = [*ROWS, BOTH]
    plan = fill(storage, *rows)
    assert combine_all(plan) == {} and not planned(storage, *rows).uncombined
    before = storage.read_json(plan.combinings[0].path)
    slow = RunFolder.of(storage, TASK, Config(rate=0.001))
    digest = slow.save_weights(3, {name: tensor + 1 for name, tensor in slow.weights(3).items()})
    slow.folder.write_json("result.json", {**slow.result(), "weights": {"3": digest}})
    assert gather(planned(storage, *rows), "halves/t").select("both") == []
    plan = fill(storage, *rows)
    assert [combining.row.label for combining in plan.uncombined] == ["both"]
    assert combine_all(plan) == {} and not planned(storage, *rows).uncombined
    after = storage.read_json(plan.combinings[0].path)
    assert after["inputs"][0] != before["inputs"][0] and after["inputs"][1] == before["inputs"][1]
    assert after["metrics"]["error"] != before["metrics"]["error"]


def test_an_interrupted_combination_does_not_count_and_goes_on_where_it_stopped(storage, monkeypatch):
    rows, asked = [*ROWS, BOTH], []
    plan = fill(storage, *rows)

    class Stopped(Here):
        def add(self, pieces):
            super().add(pieces)
            asked.append([piece.shard for piece in self.pieces])

        def ended(self, seconds):
            if len(self.pieces) < len(asked[-1]):
                raise KeyboardInterrupt
            return super().ended(seconds)

    monkeypatch.setattr(combine, "Actors", Stopped)
    with pytest.raises(KeyboardInterrupt):
        combine_all(plan)
    assert not storage.exists(plan.combinings[0].path)
    assert combine_all(planned(storage, *rows)) == {}
    assert len(asked[0]) == 2 and asked[1] == asked[0][1:] and not planned(storage, *rows).uncombined


def test_members_that_are_trained_again_are_predicted_for_the_row_at_once(storage):
    plan = fill(storage, *ROWS, BOTH)
    assert not any(prediction.joined for prediction in planned(storage, *ROWS).predictions.values())
    storage.write_json(plan.combinings[0].path, {"inputs": plan.combinings[0].inputs(), "metrics": {}})
    storage.write_json("data/line/points/dataset.json", {"points": 64, "digest": "other points"})
    again = planned(storage, *ROWS, BOTH)
    assert again.missing and again.uncombined == again.combinings
    assert {p.folder.path for p in again.predictions.values() if p.joined} == {
        m.folder.path for m in again.combinings[0].members
    }


def test_two_tables_with_one_row_join_it_once(storage):
    plan = fill(storage, *ROWS, BOTH)
    plan.combinings *= 2
    assert len(plan.uncombined) == 1


def test_members_know_their_metrics_at_the_views_epoch_and_their_scores(storage):
    join = Combined(label="join", of=("slow", "fast", "first"), combine=mean)
    plan = fill(storage, *ROWS, join)
    members = combination_shards(plan.combinings[0], storage)[0].members
    assert [member.label for member in members] == ["slow", "fast", "first"]
    assert [member.view.limit for member in members] == [2.5, 0.1, 0.1]
    for member, scoring in zip(members, plan.combinings[0].members, strict=True):
        row = scoring.folder.history()[scoring.view.epoch - 1]
        assert member.metrics["slope"] == row["slope"] and member.metrics["epoch"] == scoring.view.epoch
        scores = scoring.folder.scores(scoring.view, row["weights"])["metrics"]
        assert {name: member.metrics[name] for name in scores} == scores
    assert members[1].metrics["loss"] < members[2].metrics["loss"]
    assert all(isinstance(value, (int, float)) for member in members for value in member.metrics.values())


@pytest.mark.parametrize("epochs", [3, 10])
def test_of_a_run_that_ended_early_members_know_the_metrics_of_its_best_epoch(storage, epochs):
    config = Config(rate=0.8, epochs=epochs, patience=2)
    folder = RunFolder.of(storage, TASK, config)
    row = Row(label="a", overrides={"rate": 0.8, "epochs": epochs, "patience": 2}, view={})
    fit(storage, config, folder, ())
    plan = fill(storage, row)
    (scoring,) = plan.scorings.values()
    history = folder.history()
    slopes = [row["slope"] for row in history]
    best_row = history[int(np.argmax(slopes))]
    assert best_row is not history[-1] or epochs == 3
    found = member_metrics(scoring)
    assert (found["epoch"], found["slope"]) == (best_row["epoch"], best_row["slope"])
    assert scoring.view.epoch == epochs and "hits" in found
    weights = folder.weights(epochs)
    assert weights["weight"].item() == best_row["slope"]


def test_what_is_kept_of_a_combination_is_small_and_named(storage, here):
    plan = fill(storage, *ROWS, BOTH)
    assert combine_all(plan) == {}
    place = Storage.open(storage.root) / plan.combinings[0].place
    inputs, scores = place.list()
    assert scores == "scores.json" and place.list(f"{inputs}/test/left") == ["summary.npz"]
    assert json.loads(place.read("scores.json"))["inputs"] == plan.combinings[0].inputs()
