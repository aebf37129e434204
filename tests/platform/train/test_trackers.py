"""Experiment trackers, each read back through its own library; a broken one does a training no harm."""

import numpy as np
import pytest

import retable
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute.trials import forget
from retable.platform.spec import extras
from retable.platform.spec.resources import Resources
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.train import trackers as track
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker

LINE = find("line")


class Stop(Exception):
    """An interruption."""


def fit(storage, name, notes=None, stop=0, epochs=3):
    """Train a run with the bare loop, tracked; `stop`: after so many epochs."""
    config = override(LINE.config(), {"epochs": epochs})
    folder = RunFolder.of(storage, LINE, config)
    LINE.dataset.prepare(config, storage)
    folder.begin(config, LINE.version, {})
    source, seen = Source.of(storage, "line/points"), []

    def report(metrics):
        seen.append(metrics["epoch"])
        if len(seen) == stop:
            raise Stop

    worker = Worker(report=report, note=(notes if notes is not None else []).append)
    worker = track.tracked(worker, track.prepare(name), [folder], [config])
    data = LINE.dataset.open({each: np.linspace(-1, 1, 64, dtype=np.float32) for each in "xy"}, source, [config])
    train(LINE, [config], data, [folder], source.info["digest"], worker, [(epochs,)])
    return folder


def test_mlflow_holds_config_curves_and_final_metrics_also_after_an_interruption(storage, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with pytest.raises(Stop):
        fit(storage, "mlflow", stop=1)
    folder = fit(storage, "mlflow")
    client = mlflow.MlflowClient((tmp_path / "store").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("retable").experiment_id])
    log = folder.history()
    assert run.data.params["rate"] == "0.1" and run.data.params["init"] == "scratch"
    assert run.data.tags["retable.run"] == folder.fingerprint and run.info.status == "FINISHED"
    found = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "loss")]
    assert found == [(row["epoch"], row["loss"]) for row in log] and len(found) == 3
    assert run.data.metrics["final/slope"] == folder.result()["metrics"]["slope"]


def test_a_run_that_is_trained_anew_is_another_run_of_the_tracker(storage, tmp_path, monkeypatch):
    """Its numbers would stand beside the curves of the old one."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = fit(storage, "mlflow")
    forget(folder, data_changed=False)
    folder.begin(override(LINE.config(), {}), LINE.version, {"started": "2026-01-01T00:00:00Z"})
    fit(storage, "mlflow")
    client = mlflow.MlflowClient((tmp_path / "store").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("retable").experiment_id])
    assert [len(client.get_metric_history(run.info.run_id, "loss")) for run in runs] == [3, 3]


def test_tensorboard_holds_the_curves(storage, tmp_path, monkeypatch):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    folder = fit(storage, "tensorboard")
    (place,) = (tmp_path / "tensorboard").iterdir()
    read = events.EventAccumulator(str(place)).Reload()
    assert folder.fingerprint in place.name
    log = folder.history()
    assert [each.step for each in read.Scalars("loss")] == [1, 2, 3]
    assert [each.value for each in read.Scalars("loss")] == pytest.approx([row["loss"] for row in log])
    assert read.Scalars("final/slope")[0].value == pytest.approx(log[-1]["slope"])


def test_a_log_is_not_read_anew_at_each_epoch_of_milliseconds(storage, monkeypatch):
    reads, rows = [], []
    history = RunFolder.history
    monkeypatch.setattr(RunFolder, "history", lambda folder: reads.append(1) or history(folder))
    monkeypatch.setattr(track, "prepare", lambda name: {"name": name})
    monkeypatch.setattr(track, "open_mlflow", lambda *_: lambda seen, final: rows.append((len(seen), final)))
    folder = fit(storage, "mlflow", epochs=40)
    assert rows[-1] == (40, folder.result()["metrics"]) and len(reads) < 20


def test_weights_and_biases_keeps_a_run_offline(storage, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    notes = []
    folder = fit(storage, "wandb", notes)
    assert not notes and list(tmp_path.glob(f"wandb/offline-run-*/run-{folder.fingerprint}.wandb"))


def test_a_tracker_that_fails_is_noted_once_and_the_run_is_finished(storage, monkeypatch):
    def fails(*_):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(track, "prepare", lambda name: {"name": name})
    monkeypatch.setattr(track, "open_mlflow", fails)
    notes = []
    assert fit(storage, "mlflow", notes).result()["metrics"]["epoch"] == 3
    assert len(notes) == 1 and notes[0].startswith("--track mlflow: ConnectionError: nobody there")


@pytest.mark.parametrize(
    ("name", "said"),
    [("mlfow", "--track mlfow: no such tracker; did you mean 'mlflow'?"), ("wandb", "pip install 'retable[wandb]'")],
)
def test_a_mistake_is_told_before_anything_starts(name, said, monkeypatch, tmp_path):
    monkeypatch.setattr("retable.platform.spec.extras.is_there", lambda name: False)
    extras.check.cache_clear()
    with pytest.raises(UserError) as caught:
        retable.reproduce("line/table1", storage=tmp_path, resources=Resources(track=name))
    assert not (tmp_path / "data").exists()
    assert said in str(caught.value)
