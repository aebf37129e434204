"""Predictions, once for all views that read them, shard by shard; scores from their summaries."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from retable.platform import api
from retable.platform.cli import app as cli
from retable.platform.errors import UserError
from retable.platform.execute import run as execution
from retable.platform.execute import scoring as stages
from retable.platform.execute.scoring import ScoringTasks, predict_and_score, predict_one, score_weights, summaries
from retable.platform.execute.trials import forget
from retable.platform.plan.plan import compile_configs
from retable.platform.report.describe import describe_run, last_tracebacks
from retable.platform.spec.resources import Resources
from retable.platform.spec.table import Combined, Measurement, Row
from retable.platform.spec.task import Source
from retable.platform.store.run import RunFolder, read_arrays, view_key
from retable.platform.store.storage import Storage
from retable.tasks.halves import TASK, Config, View
from retable.tasks.halves.joins import mean
from tests.platform.halves import ROWS, fill, fit, planned

VIEWS = [{"limit": 0.1}, {"limit": 0.5}, {"limit": 2.5}, {"tuned": True}, {"split": "validation", "limit": 0.1}]
SHARDS = [f"{split}/{half}" for split in ("test", "validation") for half in ("left", "right")]


@pytest.fixture
def run(storage):
    """A finished run."""
    folder = RunFolder.of(storage, TASK, Config())
    fit(storage, Config(), folder, (1, 3))
    return folder


@pytest.fixture
def predicted(monkeypatch):
    """The shards that were predicted, and a list of those before which it is interrupted."""
    found, stop = [], []

    def predict(config, view, weights, source, shard):
        if shard in stop:
            raise KeyboardInterrupt
        found.append((view.epoch, shard))
        return TASK.predict(config, view, weights, source, shard)

    monkeypatch.setattr(stages, "find", lambda name: replace(TASK, predict=predict))
    return found, stop


def test_views_that_read_the_same_predictions_predict_once(storage, run, predicted):
    rows = [Row(label=str(number), view=view) for number, view in enumerate(VIEWS)]
    plan = planned(storage, *rows)
    assert len(plan.unscored) == 5 and [p.view.split for p in plan.predictions.values()] == ["test", "validation"]
    assert plan.cost == pytest.approx(2 * 0.01), "what is predicted twice costs twice, not what is scored"
    for scoring in plan.unscored:
        assert predict_and_score(stages.find("halves"), scoring.config, scoring.view, run) is None
    assert predicted[0] == [(3, shard) for shard in SHARDS]
    assert not planned(storage, *rows).predictions and not planned(storage, *rows).unscored


def test_what_fails_while_it_predicts_leaves_its_traceback_with_the_view_until_that_is_scored(
    storage, run, monkeypatch
):
    scoring = planned(storage, Row(label="one", view={"tuned": True})).unscored[0]

    def predict(config, view, weights, source, shard):
        if view.split == "validation" and failing:
            raise failing[0]
        return TASK.predict(config, view, weights, source, shard)

    monkeypatch.setattr(stages, "find", lambda name: replace(TASK, predict=predict))
    for error in (UserError("no"), KeyError("s3://KEY:SECRET@bucket")):
        failing = [error]
        assert predict_and_score(stages.find("halves"), scoring.config, scoring.view, run)
    found = describe_run(run)["tracebacks"]
    ((path, text),) = found.items()
    assert path == f"views/{view_key(View(epoch=3, split='validation'))}/traceback.txt"
    assert "in predict\n    raise failing[0]" in text and "KeyError: 's3://***@bucket'" in text
    assert last_tracebacks(describe_run(run)) == found
    failing = []
    assert predict_and_score(stages.find("halves"), scoring.config, scoring.view, run) is None
    assert not describe_run(run)["tracebacks"]


def test_scores_are_those_of_the_weights_in_memory(storage, run):
    source = Source.of(storage, "line/points")
    for changes in VIEWS:
        view = replace(View(epoch=3), **changes)
        assert predict_and_score(TASK, Config(), view, run) is None
        scores = run.scores(view, run.result()["weights"]["3"])["metrics"]
        assert scores == score_weights(TASK, Config(), view, run.weights(3), source)
        assert scores["shards"] == (4 if view.tuned else 2)


def test_a_view_that_reads_two_gives_all_their_shards(storage, run):
    view = View(epoch=3, tuned=True)
    for read in TASK.reads(view):
        assert predict_one("halves", Config(), read, run, joined=False) is None
    found = summaries(TASK, Config(), view, run)
    assert list(found) == SHARDS
    assert [len(found[shard]["error"]) for shard in SHARDS] == [5, 5, 3, 3]


def test_predictions_are_kept_only_where_they_are_joined(storage):
    plan = fill(storage, *ROWS, Combined(label="both", of=("slow", "fast"), combine=mean))
    for scoring in plan.scorings.values():
        (read,) = TASK.reads(scoring.view)
        place = scoring.folder.artifacts(read, scoring.folder.result()["weights"][str(scoring.view.epoch)])
        joined = scoring.view.epoch == 3
        wanted = ["predictions.npz", "summary.npz"] if joined else ["summary.npz"]
        assert [place.list(shard) for shard in SHARDS[:2]] == [wanted, wanted]
        if joined:
            assert read_arrays(place, "test/left/predictions.npz")["y"].shape == (5,)


def test_what_was_scored_and_is_now_joined_is_predicted_again(storage, run, predicted):
    view = View(epoch=3)
    for joined in (False, False, True, True, False):
        assert predict_one("halves", Config(), view, run, joined) is None
    assert predicted[0] == [(3, shard) for shard in (*SHARDS[:2], *SHARDS[:2])]


@pytest.mark.parametrize("joined", [False, True])
def test_interrupted_predictions_go_on_shard_by_shard(storage, run, predicted, monkeypatch, joined):
    found, stop = predicted
    stop.append("test/right")
    with pytest.raises(KeyboardInterrupt):
        predict_one("halves", Config(), View(epoch=3), run, joined)
    assert found == [(3, "test/left")]
    stop.clear()
    write = Storage.write

    def half(self, path, data):
        if path == "test/right/summary.npz":
            raise KeyboardInterrupt
        write(self, path, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Storage, "write", half)
        predict_one("halves", Config(), View(epoch=3), run, joined)
    assert predict_one("halves", Config(), View(epoch=3), run, joined) is None
    assert found == [(3, "test/left"), (3, "test/right"), (3, "test/right")]


def test_predictions_belong_to_the_weights(storage, run, predicted):
    view = View(epoch=3)
    assert predict_and_score(TASK, Config(), view, run) is None
    digest = run.save_weights(3, {name: tensor + 1 for name, tensor in run.weights(3).items()})
    run.folder.write_json("result.json", {**run.result(), "weights": {"3": digest}})
    assert predict_and_score(TASK, Config(), view, run) is None
    assert len(predicted[0]) == 4 and run.scores(view, digest)["metrics"]["error"] > 0.9


def test_a_failing_prediction_is_one_line_for_each_view_that_reads_it(storage, run, monkeypatch):
    def predict(*_):
        raise ValueError("no forecast\nhere")

    monkeypatch.setattr(stages, "find", lambda name: replace(TASK, predict=predict))
    line = predict_and_score(TASK, Config(), View(epoch=3), run)
    assert line.startswith("ValueError: here (test_scoring.py:") and "\n" not in line
    assert run.scores(View(epoch=3), run.result()["weights"]["3"]) is None


def test_scores_of_other_data_are_forgotten_though_the_weights_are_the_same(storage, run):
    view = View(epoch=3)
    assert predict_and_score(TASK, Config(), view, run) is None
    weights = run.result()["weights"]
    storage.write_json("data/line/points/dataset.json", {"points": 64, "digest": "another test set"})
    (training,) = compile_configs(TASK, [Config()], storage).trainings.values()
    assert training.status == "data changed"
    forget(run, data_changed=True)
    storage.remove("data")
    fit(storage, Config(), run, (1, 3))
    assert run.result()["weights"] == weights and run.scores(view, weights["3"]) is None


def test_a_run_is_not_scored_on_data_that_it_was_not_trained_on(storage, run):
    run.begin(Config(), TASK.version, {})
    info = storage.read_json("data/line/points/dataset.json")
    storage.write_json("data/line/points/dataset.json", info | {"digest": "another test set"})
    with pytest.raises(UserError, match="not the data that the run was trained on"):
        api.load(run.fingerprint, str(storage)).score()
    assert run.scores(View(epoch=3), run.result()["weights"]["3"]) is None
    storage.write_json("data/line/points/dataset.json", info)
    assert api.load(run.fingerprint, str(storage)).score()


def test_deaths_are_forgotten_once_the_shards_are_there(storage, run):
    place = run.artifacts(View(epoch=3), run.result()["weights"]["3"])
    place.write_json("deaths.json", {SHARDS[0]: 2})
    assert predict_one("halves", Config(), View(epoch=3), run, joined=False) is None
    assert not place.exists("deaths.json")


def test_a_loaded_run_is_scored_and_the_scores_are_kept(storage, run, predicted):
    run.begin(Config(), TASK.version, {})
    loaded = replace(api.load(run.fingerprint[:8], str(storage)), task=stages.find("halves"))
    weights, source = run.weights(1), Source.of(storage, "line/points")
    view = {"epoch": 1, "limit": 0.5}
    assert loaded.score(view) == score_weights(TASK, Config(), View(**view), weights, source)
    assert loaded.score(view) == loaded.score(view) and len(predicted[0]) == 2, "read again, not predicted again"
    assert loaded.score() != loaded.score(view)
    for wrong, message in (({"epok": 1}, "epok"), ({"epoch": 9}, "epoch 9 is not among"), ({"epoch": 2}, "not kept")):
        with pytest.raises(UserError, match=message):
            loaded.score(wrong)


def test_the_command_scores_a_run(storage, run):
    run.begin(Config(), TASK.version, {})
    said = CliRunner().invoke(cli.app, ["score", run.fingerprint[:8], "--set", "limit=0.5", "--storage", str(storage)])
    assert said.exit_code == 0, said.output
    expected = api.load(run.fingerprint, str(storage)).score({"limit": 0.5})
    assert all(f"{name}  {value:.6g}" in said.output for name, value in expected.items()) and expected


def test_the_board_counts_scorings_and_no_prediction_that_one_reads(storage):
    plan = planned(storage, *ROWS, Combined(label="both", of=("slow", "fast"), combine=mean, view={"tuned": True}))
    scorer = ScoringTasks(plan)
    (fast,) = {each.folder.path: each.folder for each in plan.unscored if each.config == Config()}.values()
    for _ in range(2):
        scorer.expect(fast)
    assert scorer.board.total == 3, "two scorings, and a prediction of the validation split that is only joined"


def test_what_runs_beside_has_ended_before_anything_is_measured(storage, monkeypatch):
    order = []
    monkeypatch.setattr(execution, "ray_cluster", lambda nested: nullcontext())
    monkeypatch.setattr(execution, "check_nodes", lambda storage: None)
    monkeypatch.setattr(execution, "possible_resources", dict)
    monkeypatch.setattr(execution, "After", lambda *_: SimpleNamespace(finish=dict))
    monkeypatch.setattr(execution, "measure_all", lambda *_: order.append("measured") or {})
    plan = planned(storage, Measurement(label="m", measure=len))
    assert execution.execute(plan, Resources(), lambda: order.append("waited")) == {}
    assert order == ["waited", "measured"]
