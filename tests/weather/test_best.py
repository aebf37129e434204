"""The forecaster that is served is the best on validation: no test score is looked at, no smaller scale wins."""

import pytest

from retable.platform.api import TrainedRun
from retable.platform.config import flatten, override
from retable.platform.errors import UserError
from retable.platform.models.select import eligible_runs
from retable.platform.spec.table import resolve
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.tasks.weather.best import best
from retable.tasks.weather.config import View
from tests.weather.toys import config

TASK = find("weather")
GENERATED, REAL = {"source": "generated"}, {"source": "w4c22"}


@pytest.fixture
def finished(storage):
    """Write a finished run with scores on validation and test, as they are kept; return the run."""

    def make(seed, validation, test, scale="small", data=GENERATED, digest="d", **changes):
        diverged = {"diverged": changes.pop("diverged")} if "diverged" in changes else {}
        chosen = config(seed=seed, **changes)
        folder = RunFolder.of(storage, TASK, chosen)
        folder.begin(chosen, TASK.version, {"scale": scale, "changed": [], "data": data})
        folder.folder.write_json("result.json", {"data": digest, "metrics": {}, "weights": {"2": "w"}, **diverged})
        for split, value in {"validation": validation, "test": test}.items():
            for threshold in (0.5, 0.4):
                view = resolve(override(View(), {"split": split, "threshold": threshold}), chosen)
                shifted = value if threshold == 0.5 else 1 - value
                folder.save_scores(view, "w", {"iou": shifted}, 0.0)
        return TrainedRun(TASK, folder, chosen)

    return make


def chosen(storage, **options):
    return best(eligible_runs("weather", storage), **options)["weather"]


def test_the_test_split_is_never_looked_at(finished, storage):
    finished(1, validation=0.1, test=0.9)
    good = finished(2, validation=0.3, test=0.2)
    finished(3, validation=0.2, test=0.8)
    found = chosen(storage)
    assert (found.run.fingerprint, found.value, found.among, found.passed_over) == (good.fingerprint, 0.3, 3, 0)
    line = f"weather weather: run {good.fingerprint}, validation IoU at 0.5 0.3, the best of 3 "
    assert found.line() == line + "(scale small, generated data)"


@pytest.mark.parametrize(
    "easier", [{"regions": ["boxi_0015"]}, {"years": [2019]}, {"forecast": 4}, {"rain_threshold": 0.0}]
)
def test_who_was_asked_something_easier_is_not_compared(finished, storage, easier):
    good = finished(1, 0.3, 0.1)
    finished(2, 0.2, 0.1)
    finished(3, 0.9, 0.1, **easier)
    assert chosen(storage).run.fingerprint == good.fingerprint


def test_no_test_score_is_even_read(finished, storage, monkeypatch):
    finished(1, 0.1, 0.9)
    asked, score = [], TrainedRun.score
    monkeypatch.setattr(TrainedRun, "score", lambda run, view: asked.append(view) or score(run, view))
    chosen(storage)
    assert asked == [{"split": "validation", "threshold": 0.5}]


def test_the_threshold_is_the_views(finished, storage):
    low = finished(1, 0.1, 0.9)
    finished(2, 0.3, 0.2)
    assert chosen(storage, threshold=0.4).run.fingerprint == low.fingerprint


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"scale": "smoke"}, {"scale": "small"}),
        ({"scale": "paper"}, {"scale": "smoke", "data": REAL}),
        ({"scale": "unheard-of"}, {"scale": "smoke"}),
        ({"data": {**REAL, "simulated_satellite": True}}, {"data": REAL}),
    ],
)
def test_smaller_scales_and_generated_data_never_win(finished, storage, less, more):
    finished(1, 0.9, 0.9, **less)
    large = finished(2, 0.1, 0.1, **more)
    found = chosen(storage)
    assert (found.run.fingerprint, found.among, found.passed_over) == (large.fingerprint, 1, 1)
    assert ("the only one" in found.line()) != (more.get("scale") == "smoke")
    assert "1 of less or other data not compared" in found.line()


def test_smoke_runs_are_not_compared(finished, storage, monkeypatch):
    monkeypatch.setattr(TrainedRun, "score", lambda run, view: pytest.fail("to score it takes time and says nothing"))
    runs = [finished(seed, 0.1 * seed, 0.9, scale="smoke") for seed in (1, 2, 3)]
    found = chosen(storage)
    assert found.run.fingerprint == min(run.fingerprint for run in runs)
    assert (found.value, found.among, found.passed_over) == (None, 3, 0)
    assert "the first of 3, not compared: what a smoke run scores means nothing" in found.line()


def test_numbers_of_other_data_are_not_compared(finished, storage):
    finished(1, 0.9, 0.9, digest="other")
    finished(2, 0.1, 0.1)
    third = finished(3, 0.2, 0.1)
    assert (chosen(storage).run.fingerprint, chosen(storage).passed_over) == (third.fingerprint, 1)


def test_what_does_not_count_is_not_there(finished, storage):
    finished(1, 0.9, 0.9, diverged="loss is nan")
    finished(2, float("nan"), 0.9)
    damaged = finished(3, 0.9, 0.9)
    damaged.folder.folder.write("config.json", "{")
    good = finished(4, 0.1, 0.1)
    RunFolder.of(storage, TASK, config(seed=5)).begin(config(seed=5), TASK.version, {})  # unfinished
    assert chosen(storage).run.fingerprint == good.fingerprint and len(eligible_runs("weather", storage)) == 2


def test_none_is_one_line(storage):
    with pytest.raises(UserError, match="no run for weather: there is none; train one, or serve the zoo"):
        chosen(storage)


def test_a_run_that_was_trained_on_the_validation_set_is_passed_over(finished, storage):
    everything = finished(1, validation=0.9, test=0.1, train_on="training_and_validation")
    with pytest.raises(UserError, match="all 1 were trained on the validation set"):
        best([everything])
    finished(3, validation=0.9, test=0.1, **child(train_on="training_and_validation"))
    good = finished(2, validation=0.3, test=0.2)
    assert chosen(storage).run.fingerprint == good.fingerprint


def child(**parents):
    """Return what makes a run go on from another one, which differs in these fields."""
    return {"init": "parent", "init.overrides": tuple(flatten(config(**parents)).items())}


@pytest.mark.parametrize(
    "view",
    [{"split": "validation"}, {"threshold": "tuned"}, {"threshold": "tuned_per_region"}, {"calibration": "isotonic"}],
)
def test_no_view_judges_or_tunes_by_a_validation_set_that_was_trained_on(view):
    joined = config(train_on="training_and_validation")
    with pytest.raises(UserError, match=f"view.{next(iter(view))}.*was trained on the validation set"):
        TASK.check(joined, override(View(), view))
    later = config(**child(train_on="training_and_validation"))
    with pytest.raises(UserError, match=f"view.{next(iter(view))}.*was trained on the validation set"):
        TASK.check(later, override(View(), view))
    TASK.check(config(**child(train_on="training_and_validation", data="other")), override(View(), view))
    with pytest.raises(UserError, match="patience waits for scores on a validation set"):
        override(later, {"patience": 1})
    TASK.check(joined, override(View(), {"split": "heldout", "calibration": "difference_mask"}))
    with pytest.raises(UserError, match="patience waits for scores on a validation set"):
        config(train_on="training_and_validation", patience=1)


def test_a_run_goes_on_from_none_that_was_trained_on_what_it_is_scored_on():
    for changes, own, refusal in (
        ({"holdout": 0}, {}, "init: the run that it starts from has holdout=0, this one 60"),
        ({}, {"left_out": ["roxi_0004"]}, "init: the run that it starts from was trained on roxi_0004"),
    ):
        with pytest.raises(UserError, match=refusal):
            TASK.check(config(**child(**changes), **own), View())
        TASK.check(config(**child(data="other", **changes), **own), View())
    TASK.check(config(**child(holdout=5, left_out=["roxi_0004"]), holdout=5, left_out=["roxi_0004"]), View())
