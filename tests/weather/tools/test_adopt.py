"""Published checkpoints fill a table without a step of training, and the table says so."""

import csv
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from retable.platform import api
from retable.platform.errors import UserError
from retable.platform.plan.plan import compile_plan
from retable.platform.report.results import adopted
from retable.platform.spec.task import find, find_table, table_at
from retable.platform.store.run import RunFolder
from retable.tasks.weather.model import build
from retable.tasks.weather.tables import CLIMATOLOGY_HELDOUT, OFFICIAL_HELDOUT, VOTERS
from retable.tasks.weather.tools.forecasts.adopt import adopt, rows_of
from tests.weather.toys import make

TABLE = "weather/table2"
CHANGES = {"data": "tiny", "regions": ["boxi_0015", "roxi_0004"], "years": [2019], "forecast": 8}
SIZE = 24
"""Pixels of an image: the least that the published depth takes."""
LABELS = [OFFICIAL_HELDOUT.label, *(voter.label for voter in VOTERS)]


def published(folder, labels=LABELS, changes=CHANGES):
    """Write checkpoints with the authors' names and shapes, as Lightning and others wrap them, and the list of them."""
    folder.mkdir()
    states = {}
    with (folder / "rows.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["row", "file"])
        for number, label in enumerate(labels):
            want = rows_of(TABLE, changes)[label]
            torch.manual_seed(number)
            network = build(want.config, SIZE, want.config.regions).model
            for name, buffer in network.named_buffers():
                if name.endswith("running_mean"):
                    buffer.fill_(0.25)  # a training would move it
            states[label] = {f"model.{name}": value.clone() for name, value in network.state_dict().items()}
            state = {**states[label], "loss_fn.pos_weight": torch.ones(1)}
            torch.save(wrapped(state, number), folder / f"epoch={number}.ckpt")
            lines.writerow([label, f"epoch={number}.ckpt"])
    return states


def wrapped(state, number):
    """What a checkpoint holds: Lightning's, or another trainer's of several GPUs with scores and times beside."""
    if number % 2 == 0:
        return {"epoch": 3, "global_step": 9, "pytorch-lightning_version": "1.7.7", "state_dict": state}
    beside = {"scores": np.arange(3.0), "saved": datetime(2022, 10, 1, tzinfo=UTC), "run": Path("/scratch/run")}
    return {"epoch": 3, "model_state_dict": {f"module.{name}": value for name, value in state.items()}, **beside}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """One checkpoint, that nobody changes."""
    folder = tmp_path_factory.mktemp("published") / "one"
    published(folder, LABELS[:1])
    return folder


@pytest.fixture
def one(checkpoint, tmp_path):
    """A folder of one's own with the checkpoint and its list."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one/rows.csv").write_text((checkpoint / "rows.csv").read_text())
    (tmp_path / "one/epoch=0.ckpt").symlink_to(checkpoint / "epoch=0.ckpt")
    return tmp_path / "one"


@pytest.fixture
def storage(tmp_path):
    return make(tmp_path / "results", size=SIZE)


@pytest.mark.slow
def test_published_weights_fill_the_vote_without_a_training(storage, tmp_path):
    states = published(tmp_path / "checkpoints")
    lines = adopt(tmp_path / "checkpoints", TABLE, storage, CHANGES)
    assert [line.split(":")[0] for line in lines] == LABELS
    task = find("weather")
    for label, want in ((label, rows_of(TABLE, CHANGES)[label]) for label in LABELS):
        folder = RunFolder.of(storage, task, want.config)
        found = folder.weights(want.epoch)
        assert found.keys() == states[label].keys()
        assert all(torch.equal(found[name], value) for name, value in states[label].items())
        assert folder.result()["metrics"]["step"] == 0
    whole = table_at(task, find_table(TABLE)[1], "paper", {"seed": 0, **CHANGES})
    plan = compile_plan({TABLE: (task, whole)}, storage, "paper", {"seed": 0, **CHANGES})
    every = {RunFolder.of(storage, task, want.config).fingerprint for want in rows_of(TABLE, CHANGES).values()}
    waiting = [each for each in plan.trainings.values() if each.status != "done"]
    trained = {RunFolder.of(storage, task, rows_of(TABLE, CHANGES)[label].config).fingerprint for label in LABELS}
    assert trained < every and not trained & {each.folder.fingerprint for each in waiting}
    kept = {
        digits: {"provenance": (storage / "runs/weather" / digits).read_json("provenance.json")} for digits in trained
    }
    note = adopted(task, SimpleNamespace(replicates=plan.replicates[TABLE]), kept)
    assert all(label in note for label in LABELS) and CLIMATOLOGY_HELDOUT.label not in note


@pytest.mark.slow
def test_adopted_runs_are_scored_and_two_epochs_share_a_run(storage, tmp_path):
    pair = [voter.label for voter in VOTERS[-2:]]
    states = published(tmp_path / "checkpoints", pair[::-1])
    adopt(tmp_path / "checkpoints", TABLE, storage, CHANGES)
    first, second = (rows_of(TABLE, CHANGES)[label] for label in pair)
    assert first.config == second.config and (first.epoch, second.epoch) == (4, 5)
    folder = RunFolder.of(storage, find("weather"), first.config)
    assert [line["epoch"] for line in folder.history()] == [4, 5]
    for want in (first, second):
        assert all(torch.equal(folder.weights(want.epoch)[name], value) for name, value in states[want.row].items())
    loaded = api.load(folder.fingerprint, storage, task="weather")
    assert 0 <= loaded.score({"split": "heldout"})["iou"] <= 1
    assert folder.folder.read_json("provenance.json")["adopted"].keys() == {"4", "5"}


def test_data_that_are_there_stay_as_they_are(storage, one):
    place = storage / "data/weather/tiny"
    imported = place.read_json("dataset.json") | {"source": "imported", "grids": {"boxi_0015": {"step": 2000}}}
    place.write_json("dataset.json", imported)
    adopt(one, TABLE, storage, CHANGES)
    assert place.read_json("dataset.json") == imported


def test_what_does_not_fit_is_one_line(storage, one, tmp_path):
    label = OFFICIAL_HELDOUT.label
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"rows.csv: missing; columns row,file.*official BASELINE"):
        adopt(tmp_path / "empty", TABLE, storage, CHANGES)
    listing = one / "rows.csv"
    good = listing.read_text()
    for wrong, line in (
        (good.replace(label, "official BASE"), "no row 'official BASE'"),
        (good.replace("epoch=0", "epoch=7"), "is missing"),
        ("a,b\n1,2\n", "no columns row and file"),
        (f"row,file\n{label},Gewichte für später.pt\n", "is no UTF-8 text"),
        (good.replace(label, VOTERS[1].label), f"no weights of '{VOTERS[1].label}'"),
    ):
        listing.write_text(wrong, encoding="cp1252")
        with pytest.raises(UserError, match=line) as caught:
            adopt(one, TABLE, storage, CHANGES)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(UserError, match="rl/table1: is of rl"):
        adopt(one, "rl/table1", storage, {})


def test_a_run_that_was_trained_here_is_not_replaced(storage, one):
    task, want = find("weather"), rows_of(TABLE, CHANGES)[OFFICIAL_HELDOUT.label]
    folder = RunFolder.of(storage, task, want.config)
    folder.begin(want.config, task.version, {"data": {}})  # a training that got no further
    before = folder.folder.read_json("provenance.json")
    with pytest.raises(UserError, match="was trained here"):
        adopt(one, TABLE, storage, CHANGES)
    assert folder.folder.read_json("provenance.json") == before and folder.result() is None
