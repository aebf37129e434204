"""The folder of a run: what is written comes back, what is damaged is refused, what is half written does not count."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_safetensors

from retable.platform.config import fingerprint, override
from retable.platform.errors import UserError
from retable.platform.execute.scoring import predict_and_score
from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder, read_arrays, sha256, tensorboard_events, view_key, write_arrays
from retable.platform.store.storage import Storage
from retable.tasks.line.config import Config, View

FILES = ["manifest.json", "model.safetensors", "state.pt"]


@pytest.fixture
def folder(storage):
    return RunFolder.of(storage, find("line"), Config())


def state(step=1):
    weights = {"w": torch.arange(6.0).reshape(2, 3).T * step, "b": torch.tensor([step], dtype=torch.int64)}
    rest = {"optimizer": {"state": {0: {"exp_avg": torch.full((2,), 0.25), "step": 3}}}, "progress": {"total": step}}
    return {"weights": weights, **rest}


def refused(call):
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_lies_in_a_folder_named_by_its_fingerprint(storage, folder):
    assert folder.path == f"runs/line/{fingerprint('line', find('line').version, Config())}"
    assert str(folder.folder) == f"{storage.root}/{folder.path}"


def test_a_checkpoint_comes_back_as_it_was(folder):
    folder.save_checkpoint(1, state())
    found = folder.load_checkpoint(1)
    assert found.keys() == state().keys()
    for name, tensor in state()["weights"].items():
        assert torch.equal(found["weights"][name], tensor) and found["weights"][name].dtype == tensor.dtype
    assert torch.equal(found["optimizer"]["state"][0].pop("exp_avg"), torch.full((2,), 0.25))
    assert found["optimizer"] == {"state": {0: {"step": 3}}} and found["progress"] == {"total": 1}


def test_tensors_that_share_memory_can_be_saved(folder):
    whole = torch.arange(4.0)
    folder.save_checkpoint(1, {"weights": {"whole": whole, "same": whole, "part": whole[1:3]}})
    found = folder.load_checkpoint(1)["weights"]
    assert found["whole"].tolist() == found["same"].tolist() == [0, 1, 2, 3] and found["part"].tolist() == [1, 2]


def test_the_manifest_is_written_last_and_a_checkpoint_without_it_does_not_count(folder, monkeypatch):
    folder.save_checkpoint(1, state())
    write, written = Storage.write, []

    def stop_at(stop):
        def limited(self, path, data):
            if len(written) == stop:
                raise KeyboardInterrupt
            written.append(path)
            write(self, path, data)

        return limited

    for stop in range(len(FILES)):
        written.clear()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Storage, "write", stop_at(stop))
            folder.save_checkpoint(2, state(2))
        assert folder.checkpoints() == [1], written
    folder.save_checkpoint(2, state(2))
    assert folder.checkpoints() == [1, 2]
    assert folder.load_checkpoint(2)["progress"] == {"total": 2}


def test_checkpoints_are_listed_in_order_of_their_steps(folder):
    for step in (100, 9, 123456789, 10):
        folder.save_checkpoint(step, state())
    assert folder.checkpoints() == [9, 10, 100, 123456789]


def test_all_checkpoints_are_removed_but_the_one_that_is_named_and_the_one_before(folder):
    for step in (0, 1, 2, 3):
        folder.save_checkpoint(step, state())
    folder.folder.write("checkpoint-00000009/state.pt", b"half")
    folder.folder.write("metrics.jsonl", "")
    folder.remove_checkpoints(keep=2)
    assert folder.folder.list() == ["checkpoint-00000001", "checkpoint-00000002", "metrics.jsonl"]
    folder.save_checkpoint(0, state())
    folder.remove_checkpoints()
    assert folder.folder.list() == ["metrics.jsonl"]
    folder.remove_checkpoints()


def test_a_removal_that_is_interrupted_leaves_no_checkpoint_that_counts(folder, monkeypatch):
    folder.save_checkpoint(1, state())
    remove = Storage.remove

    def stop(self, path):
        if path == "checkpoint-00000001":  # the folder, after its manifest
            raise KeyboardInterrupt
        remove(self, path)

    monkeypatch.setattr(Storage, "remove", stop)
    with pytest.raises(KeyboardInterrupt):
        folder.remove_checkpoints()
    assert folder.checkpoints() == [] and len(folder.folder.list("checkpoint-00000001")) == 2


def damage(path, how):
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["one bit", "truncated", "missing"])
@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
def test_a_damaged_checkpoint_is_refused_by_name_with_the_remedy(folder, how, name):
    folder.save_checkpoint(1, state())
    path = Path(str(folder.folder), "checkpoint-00000001", name)
    damage(path, how)
    text = refused(lambda: folder.load_checkpoint(1))
    assert text == f"{path} is damaged or missing; remove {folder.folder} to train this run again"


def test_a_damaged_manifest_is_refused(folder):
    folder.save_checkpoint(1, state())
    damage(Path(str(folder.folder), "checkpoint-00000001", "manifest.json"), "truncated")
    Path(str(folder.folder), "checkpoint-00000001", "manifest.json").write_text('{"model')
    assert "manifest.json: not a JSON file" in refused(lambda: folder.load_checkpoint(1))


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("kind", ["torch", "pickle"])
def test_code_in_a_checkpoint_is_refused_and_not_run(folder, tmp_path, kind):
    folder.save_checkpoint(1, state())
    trap = str(tmp_path / "trapped")
    buffer = io.BytesIO()
    if kind == "torch":
        torch.save({"progress": Malicious(trap)}, buffer)
    else:
        pickle.dump({"progress": Malicious(trap)}, buffer, protocol=2)
    folder.folder.write("checkpoint-00000001/state.pt", buffer.getvalue())
    manifest = folder.folder.read_json("checkpoint-00000001/manifest.json")
    folder.folder.write_json(
        "checkpoint-00000001/manifest.json", {**manifest, "state.pt": sha256(buffer.getvalue())}
    )  # whoever can write the one file can write the other
    assert "checkpoint-00000001/state.pt holds code" in refused(lambda: folder.load_checkpoint(1))
    assert not os.path.exists(trap)
    torch.load(io.BytesIO(buffer.getvalue()), weights_only=False) if kind == "torch" else pickle.loads(
        buffer.getvalue()
    )
    assert os.path.exists(trap)  # the trap does work


def test_weights_that_were_kept_come_back_and_are_verified(folder):
    digest = folder.save_weights(2, state()["weights"])
    path = Path(str(folder.folder), "weights", "epoch-0002.safetensors")
    assert digest == sha256(path.read_bytes()) and torch.equal(
        load_safetensors(path.read_bytes())["b"], state()["weights"]["b"]
    )
    assert "epoch 2 were not kept" in refused(lambda: folder.weights(2))  # no result yet
    folder.folder.write_json("result.json", {"data": "", "metrics": {}, "weights": {"2": digest}})
    assert torch.equal(folder.weights(2)["w"], state()["weights"]["w"])
    assert "epoch 1 were not kept; train the run again with --keep 1" in refused(lambda: folder.weights(1))
    for how in ("one bit", "missing"):
        damage(path, how)
        assert refused(lambda: folder.weights(2)).startswith(f"{path} is damaged or missing; remove {folder.folder}")


def test_scores_count_for_the_weights_and_the_view_that_they_were_taken_from(folder):
    view = View(epoch=2)
    assert folder.scores(view, "abc") is None
    folder.save_scores(view, "abc", {"rmse": 0.5}, 1.5)
    found = folder.scores(view, "abc")
    assert found["metrics"] == {"rmse": 0.5} and found["seconds"] == 1.5 and found["view"] == {"epoch": 2}
    assert folder.scores(view, "other weights") is None and folder.scores(View(epoch=1), "abc") is None
    assert view_key(View(epoch=2)) == view_key(View(epoch=2)) != view_key(View(epoch=1))


def test_predictions_lie_by_view_weights_and_shard_and_come_back_as_they_were(folder):
    view = View(epoch=2)
    arrays = {"y": np.arange(3, dtype=np.float32), "n": np.array(4), "none": np.zeros((0, 2), np.uint8)}
    place = folder.artifacts(view, "0123456789abcdef and more")
    write_arrays(place, "validation/2019/summary.npz", arrays)
    assert folder.folder.list(f"views/{view_key(view)}") == ["0123456789abcdef"]
    assert place.list("validation/2019") == ["summary.npz"]
    found = read_arrays(place, "validation/2019/summary.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tolist() == array.tolist()
    others = {str(folder.artifacts(v, w)) for v in (view, View(epoch=1)) for w in ("a", "b")}
    assert len(others) == 4


def test_scores_are_written_after_the_predictions(folder, monkeypatch):
    task, config = find("line"), Config()
    task.dataset.prepare(config, folder.storage)
    digest = folder.save_weights(3, {"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    data = Source.of(folder.storage, "line/points").info["digest"]
    folder.folder.write_json("result.json", {"data": data, "metrics": {}, "weights": {"3": digest}})
    view = View(epoch=3)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Storage, "write_json", stop)
        predict_and_score(task, config, view, folder)
    assert folder.artifacts(view, digest).list("all") == ["summary.npz"] and folder.scores(view, digest) is None
    assert predict_and_score(task, config, view, folder) is None and folder.scores(view, digest) is not None


def test_predictions_that_hold_code_are_refused(folder, tmp_path):
    array = np.empty(1, dtype=object)
    array[0] = Malicious(str(tmp_path / "trapped"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, archive.open("y.npy", "w") as file:
        np.lib.format.write_array(file, array, allow_pickle=True)
    place = folder.artifacts(View(), "abc")
    place.write("all/predictions.npz", buffer.getvalue())
    text = refused(lambda: read_arrays(place, "all/predictions.npz"))
    assert text.startswith(f"{place}/all/predictions.npz is damaged")
    assert not (tmp_path / "trapped").exists()


ROWS = [
    {"epoch": 1, "step": 8, "seconds": 0.5, "time": 100.0, "loss": 0.125, "weights": "abc"},
    {"epoch": 2, "step": 16, "seconds": 1.0, "time": 101.5, "loss": 0.1, "slope": -2.0},
]


def test_the_log_is_one_json_line_an_epoch(folder):
    assert folder.history() == []
    folder.write_history(ROWS[:1])
    folder.write_history(ROWS)
    assert [json.loads(line) for line in folder.folder.read("metrics.jsonl").decode().splitlines()] == ROWS
    assert folder.history() == ROWS


def test_tensorboard_reads_the_same_numbers(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder.write_history(ROWS)
    events = EventAccumulator(str(folder.folder / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["epoch", "loss", "seconds", "slope"]
    for name in ("epoch", "loss", "seconds", "slope"):
        wanted = [(row["time"], row["step"], float(np.float32(row[name]))) for row in ROWS if name in row]
        assert [(event.wall_time, event.step, event.value) for event in events.Scalars(name)] == wanted


def test_a_longer_log_only_appends_to_the_tensorboard_file():
    short, long = tensorboard_events(ROWS[:1], {}), tensorboard_events(ROWS, {})
    assert long.startswith(short) and len(long) > len(short)


def test_while_a_run_goes_on_its_tensorboard_file_lags_by_an_eighth_at_most(folder, monkeypatch):
    written, write = [], Storage.write
    monkeypatch.setattr(Storage, "write", lambda self, path, data: (written.append(path), write(self, path, data))[1])
    rows, lags = [], []
    for epoch in range(1, 101):
        rows.append({"epoch": epoch, "step": epoch, "time": float(epoch), "loss": 0.5})
        folder.write_history(rows, ended=epoch == 100)
        whole = Path(str(folder.folder), "tensorboard", "events.out.tfevents.0.retable").read_bytes()
        shown = next(n for n in range(epoch, 0, -1) if len(tensorboard_events(rows[:n], {})) == len(whole))
        lags.append((epoch - shown) / epoch)
    assert max(lags) < 1 / 8 and lags[-1] == 0 and folder.history() == rows
    assert sum("tensorboard" in path for path in written) < 40


def test_a_run_says_what_it_is_and_keeps_its_first_provenance(folder):
    config = override(Config(), {"init": "parent", "init.overrides": [["rate", 0.5]], "rate": 0.25})
    folder.begin(config, 1, {"command": "first"})
    folder.begin(config, 1, {"command": "second"})
    assert folder.folder.read_json("provenance.json") == {"command": "first"}
    assert folder.folder.read_json("config.json")["version"] == 1
    assert folder.config(find("line")) == config


def test_a_run_without_a_result_is_not_finished(folder):
    assert folder.result() is None
    result = {"data": "abc", "metrics": {"loss": 0.5}, "weights": {}}
    folder.folder.write_json("result.json", result)
    assert folder.result() == result
