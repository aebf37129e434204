"""Early stopping: when a run ends, whose weights it keeps, and that no interruption changes either."""

import itertools
from dataclasses import replace
from html import unescape

import pytest
import torch

from retable.platform.plan.plan import compile_plan
from retable.platform.report.html import render
from retable.platform.report.render import grid, latex, markdown
from retable.platform.report.results import FilledTable, fill
from retable.platform.spec.table import Column, Row, Table
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker
from tests.platform.train.test_loop import LINE, SMALL, Pair, Stop, outcome, points, stop_now

CURVES = {3: [0.1, 0.5, 0.3, 0.5, 0.2, 0.6, 0.1, 0.1], 4: [0.4, 0.3, 0.2, 0.1, 0.05, 0.0, 0.0, 0.0]}


class Curve(Pair):
    """A stack whose members' validation metric goes up and down as `CURVES` says, by epoch."""

    def __init__(self, configs, data, run):
        super().__init__(configs, data, run)
        self.seeds, self.steps = [config.seed for config in configs], 0

    def step(self, batch):
        self.steps += 1
        return super().step(batch)

    def state_dict(self):
        return [{**state, "steps": torch.tensor(self.steps)} for state in super().state_dict()]

    def load_state_dict(self, states):
        super().load_state_dict(states)
        self.steps = int(states[0]["steps"])


def curves(learner, data):
    return [{"iou": CURVES[seed][learner.steps // 4 - 1]} for seed in learner.seeds]


def patient(epochs, curve=curves, learner=Curve):
    return replace(LINE, learner=learner, validate=curve, early_stop=lambda config: ("iou", epochs))


def fit_curves(storage, task, seeds=(3,), keep=((),), epochs=8, **more):
    configs = [replace(SMALL, epochs=epochs, seed=seed) for seed in seeds]
    folders = [RunFolder.of(storage, task, config) for config in configs]
    train(task, configs, points(storage, configs), folders, "64 points", Worker(), keep, **more)
    return folders


def values_after(storage, seed):
    """Each epoch's weights of a run that does not end early."""
    task = replace(patient(9), early_stop=lambda config: None)
    (folder,) = fit_curves(storage, task, (seed,), (tuple(range(1, 9)),))
    return [folder.weights(epoch)["value"].item() for epoch in range(1, 9)]


def test_the_best_epochs_weights_become_the_last_ones(storage, tmp_path):
    values = values_after(Storage.open(tmp_path / "all"), 3)
    for patience, stopped, best in ((1, 3, 2), (2, 4, 2), (4, 8, 6), (9, 8, 6)):
        where = storage / f"patience-{patience}"
        (folder,) = fit_curves(where, patient(patience))
        assert [row["epoch"] for row in folder.history()] == list(range(1, stopped + 1))
        assert folder.weights(8)["value"].item() == values[best - 1], "the first of equally good ones"
        result = folder.result()
        assert list(result["weights"]) == ["8"] and result["metrics"]["epoch"] == best
        assert "best" not in result["metrics"] and not folder.checkpoints()


def test_epochs_beyond_the_stop_are_the_best_one_and_earlier_ones_themselves(storage, tmp_path):
    values = values_after(Storage.open(tmp_path / "all"), 3)
    (folder,) = fit_curves(storage, patient(2), keep=((1, 2, 4, 6, 8),))
    assert {int(epoch) for epoch in folder.result()["weights"]} == {1, 2, 4, 6, 8}
    kept = {epoch: folder.weights(epoch)["value"].item() for epoch in (1, 2, 4, 6, 8)}
    assert kept == {1: values[0], 2: values[1], 4: values[3], 6: values[1], 8: values[1]}
    (whole,) = fit_curves(storage / "whole", patient(4), keep=((7, 8),))
    assert whole.weights(7)["value"].item() == values[6] and whole.weights(8)["value"].item() == values[5]


def test_two_members_stop_only_together(storage):
    alone = [fit_curves(storage / f"alone-{seed}", patient(2), (seed,))[0] for seed in (3, 4)]
    assert [len(folder.history()) for folder in alone] == [4, 3]
    both = fit_curves(storage, patient(2), (3, 4), ((), (1, 5)))
    assert [[row["epoch"] for row in folder.history()] for folder in both] == [[1, 2, 3, 4]] * 2
    bests = [[row["epoch"] for row in folder.history() if "best" in row] for folder in both]
    assert bests == [[1, 2], [1]]
    assert both[1].result()["weights"]["1"] == both[1].result()["weights"]["8"] == both[1].result()["weights"]["5"]


def test_what_is_no_number_is_never_the_best(storage):
    def holes(learner, data):
        return [{"iou": float("nan") if learner.steps in (4, 12) else row["iou"]} for row in curves(learner, data)]

    (folder,) = fit_curves(storage, patient(2, holes))
    assert [row["epoch"] for row in folder.history() if "best" in row] == [1, 2]
    assert len(folder.history()) == 4


MORE = {"seeds": (3, 4), "keep": ((6,), (2,)), "checkpoint_every": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the two end with where nothing stops them."""
    return [
        outcome(folder) for folder in fit_curves(Storage.open(tmp_path_factory.mktemp("whole")), patient(2), **MORE)
    ]


STOPS = [pytest.param(stop, marks=[pytest.mark.slow] * (stop % 2 == 0)) for stop in range(1, 40, 3)]


@pytest.mark.parametrize("stop", STOPS)
def test_an_early_ended_run_stopped_in_any_write_ends_as_if_it_had_not_been(storage, whole, monkeypatch, stop):
    points(storage, [SMALL])
    count, write = itertools.count(1), Storage.write

    def limited(self, path, data):
        if next(count) == stop:
            raise Stop
        write(self, path, data)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Storage, "write", limited)
        fit_curves(storage, patient(2), **MORE)
    assert [outcome(folder) for folder in fit_curves(storage, patient(2), **MORE)] == whole


def test_an_epoch_that_ends_otherwise_when_trained_again_spoils_nothing(storage, tmp_path, monkeypatch):
    """On a GPU two trainings of an epoch are not equal: what was the best is then not."""
    values = values_after(Storage.open(tmp_path / "all"), 3)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        write = RunFolder.write_history
        patch.setattr(
            RunFolder,
            "write_history",
            lambda self, rows, *more: stop_now() if len(rows) == 2 else write(self, rows, *more),
        )
        fit_curves(storage, patient(2))
    taken = []

    class Counting(Curve):
        def step(self, batch):
            taken.append(1)
            return super().step(batch)

    def worse(learner, data):
        return [{"iou": 0.05 if learner.steps == 8 else row["iou"]} for row in curves(learner, data)]

    (folder,) = fit_curves(storage, patient(9, worse, Counting))
    assert len(taken) == 28, "the first epoch was not trained again"
    assert [row["epoch"] for row in folder.history() if "best" in row] == [1, 3, 4, 6]
    assert folder.weights(8)["value"].item() == values[5]


def test_nothing_is_left_of_epochs_that_were_the_best_for_a_while(storage):
    (folder,) = fit_curves(storage, patient(9), keep=((2,),))
    assert [row["epoch"] for row in folder.history() if "best" in row] == [1, 2, 6]
    assert folder.folder.list("weights") == ["epoch-0002.safetensors", "epoch-0008.safetensors"]
    (folder,) = fit_curves(storage, patient(9), epochs=6)
    assert folder.folder.list("weights") == ["epoch-0006.safetensors"], "the last epoch is itself the best"


def test_a_sweep_hears_the_best_epochs_score_at_the_end(storage):
    heard = []
    config = replace(SMALL, epochs=8, seed=3)
    folder = RunFolder.of(storage, LINE, config)
    worker = Worker(report=heard.append)
    train(
        patient(2), [config], points(storage, [config]), [folder], "64 points", worker, [()],
        score=lambda weights, epoch: {"score": weights["value"].item()},
    )  # fmt: skip
    scores = [report["score"] for report in heard]
    assert [report["epoch"] for report in heard] == [1, 2, 3, 4]
    assert scores[3] == scores[1] == folder.weights(8)["value"].item() and len(set(scores)) == 3
    assert folder.history()[-1]["score"] == scores[1]


def shown(storage, task, *rows, seeds=(3,)):
    """Fill a table of rows of eight epochs from runs that ended early."""
    table = Table(title="t", rows=rows, columns=[Column(header="RMSE", metric="rmse")], over={"seed": seeds})
    changes = {"epochs": 8, "batch": SMALL.batch}
    tables = {"line/t": (task, replace(table, rows=[replace(row, overrides=changes) for row in rows]))}
    keep = compile_plan(tables, storage).trainings.values()
    fit_curves(storage, task, seeds, [training.keep for training in keep])
    for scoring in compile_plan(tables, storage).unscored:
        weights = scoring.folder.result()["weights"][str(scoring.view.epoch)]
        scoring.folder.save_scores(scoring.view, weights, {"rmse": 0.5}, 0.0)
    return fill(compile_plan(tables, storage), "line/t")


def test_a_row_says_which_epoch_it_shows(storage):
    """Epochs that were not reached have the best epoch's weights under their number."""
    rows = (Row(label="sixth", view={"epoch": 6}), Row(label="last", view={}), Row(label="second", view={"epoch": 2}))
    part = shown(storage, patient(2), *rows)
    assert {row.label: [each.epochs for each in row.replicates] for row in part.rows} == {
        "sixth": ["6 -> 2"], "last": ["8 -> 2"], "second": [""],
    }  # fmt: skip
    assert FilledTable.of_json(part.as_json()).rows == part.rows
    labels = ["sixth (epoch 6 -> 2)", "last (epoch 8 -> 2)", "second"]
    assert [line[0] for line in grid(part)[1]] == labels and all(label in repr(part) for label in labels)
    assert all(f"| {label} |" in markdown(part).replace("&gt;", ">") for label in labels)
    remark = "sixth: epoch 6 -> 2 (seed=3), the best epoch's weights, as early stopping keeps them."
    assert remark in markdown(part) and remark in unescape(part._repr_html_())
    page, details = render([part], "s", storage / "report")
    assert "6 -> 2" in unescape(page) and remark in unescape(page) and '"epochs": "6 -> 2"' in details
    assert r"sixth (epoch 6 $\rightarrow$ 2)" in latex(part)
    assert part.frame()["epochs"].tolist() == ["6 -> 2", "8 -> 2", ""]


def test_seeds_that_stopped_elsewhere_are_named_one_by_one_and_a_run_without_early_stopping_not(storage):
    part = shown(storage, patient(2), Row(label="last", view={}), Row(label="training"), seeds=(3, 4))
    assert [[each.epochs for each in row.replicates] for row in part.rows] == [["8 -> 2", "8 -> 1"]] * 2
    assert grid(part)[1][0][0] == "last (epoch 8 -> 2, 8 -> 1)"
    assert "last: epoch 8 -> 2 (seed=3), 8 -> 1 (seed=4), the best" in markdown(part)
    whole = replace(patient(9), early_stop=lambda config: None)
    part = shown(storage / "whole", whole, Row(label="sixth", view={"epoch": 6}), Row(label="last", view={}))
    assert [each.epochs for row in part.rows for each in row.replicates] == ["", ""] and "->" not in repr(part)
