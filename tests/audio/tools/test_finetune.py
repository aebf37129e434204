import hashlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from retable.platform.api import TrainedRun
from retable.platform.config import Parent, Weights, override, parent
from retable.platform.errors import UserError
from retable.platform.models.zoo import zoo
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.platform.store.weights import stored
from retable.tasks.audio import export
from retable.tasks.audio.cli import app
from retable.tasks.audio.config import Config, MeanMel, Pretrained, Untrained
from retable.tasks.audio.learner import RetrievalLearner
from retable.tasks.audio.model import rebuild
from retable.tasks.audio.tools.search import finetune

INFO = {"name": "mine", "captions": {"training": 40, "validation": 5, "test": 5}, "rewrites": ""}
BEFORE = Config(
    data="dcase2023", audio=MeanMel(), text=Untrained(), learning_rate=1e-3, epochs=15, batch=64, chunk=48, steps=7,
    frequency_mask=48, time_mask=192, shift_bands=True, leaks="include", init=Parent(overrides=(("seed", 4),)),
)  # fmt: skip


@pytest.fixture
def trained(storage):
    """A finished run of another data set, which is no longer there, and which itself went on from a run."""
    folder = RunFolder.of(storage, find("audio"), BEFORE)
    folder.begin(BEFORE, find("audio").version, {})
    digest = folder.save_weights(15, {"x": torch.arange(3.0)})
    folder.folder.write_json("result.json", {"metrics": {}, "data": "gone", "weights": {"15": digest}})
    return folder


def test_from_a_run(trained, storage):
    config = finetune.settings(trained.fingerprint[:8], INFO, storage, {})
    assert parent(config) is None and config.init == Weights(sha256=trained.result()["weights"]["15"])
    assert torch.equal(stored(config.init.sha256, storage, "")[0]["x"], torch.arange(3.0))
    assert (config.data, config.corpora, config.leaks) == ("mine", ("clotho",), "exclude")
    assert (config.epochs, config.patience, config.steps) == (5, 5, 0)
    assert config.learning_rate == pytest.approx(1e-3 * 8e-6 / 2e-5)
    assert (config.batch, config.chunk) == (40, 0)
    assert (config.frequency_mask, config.time_mask, config.shift_bands) == (0, 0, False)
    assert (config.audio, config.text) == (BEFORE.audio, BEFORE.text)


def test_the_papers_own_rate_comes_out():
    assert Config().learning_rate * finetune.SLOWER == pytest.approx(8e-6)


def test_changes_win(trained, storage):
    start, changes = trained.fingerprint, {"epochs": 2, "batch": 8, "seed": 9, "learning_rate": 0.1}
    config = finetune.settings(start, INFO, storage, changes)
    assert (config.epochs, config.batch, config.seed, config.learning_rate) == (2, 8, 9, 0.1)
    for epochs in (2, 20):
        assert finetune.settings(start, INFO, storage, {"epochs": epochs}).patience == epochs, "it never ends early"
    assert finetune.settings(start, INFO, storage, {"epochs": 20, "patience": 3}).patience == 3
    with pytest.raises(UserError, match="unknown field 'epoch'"):
        finetune.settings(start, INFO, storage, {"epoch": 2})


def test_the_text_encoder_is_the_weights_own(trained, storage, monkeypatch):
    """They hold it, whatever it is called: under another name a run would say what it is not."""
    before = replace(BEFORE, text=Pretrained(name="roberta-base"), init=Weights(sha256="0" * 64))
    monkeypatch.setattr(finetune, "_continued", lambda start, storage: before)
    same = {"text.name": "roberta-base", "text.frozen": True, "text.dropout": 0.1}
    assert finetune.settings("a", INFO, storage, same).text.frozen
    for other in ({"text.name": "bert-base-uncased"}, {"text": "untrained"}):
        with pytest.raises(UserError, match=r"--set text: the weights of a hold their text encoder, roberta-base;"):
            finetune.settings("a", INFO, storage, other)


def test_from_a_run_that_is_not_finished_or_damaged(trained, storage):
    trained.folder.write("weights/epoch-0015.safetensors", b"damaged")
    with pytest.raises(UserError, match="damaged or missing"):
        finetune.settings(trained.fingerprint, INFO, storage, {})
    trained.folder.remove("result.json")
    with pytest.raises(UserError, match="is not finished"):
        finetune.settings(trained.fingerprint, INFO, storage, {})


def test_from_none(storage):
    config = finetune.settings("none", INFO, storage, {"text": "untrained", "audio": "mean_mel"})
    assert parent(config) is None
    expected = {"data": "mine", "corpora": ["clotho"], "batch": 40, "patience": 15, "text": "untrained"}
    assert config == override(Config(), {**expected, "audio": "mean_mel"})


def test_without_validation_all_epochs_count(storage):
    info = {"name": "mine", "captions": {"training": 3}, "rewrites": ""}
    assert finetune.settings("none", info, storage, {}).patience == 0


def test_captions_are_replaced_as_before_only_where_there_are_rewritten_ones(storage, monkeypatch):
    monkeypatch.setattr(finetune, "_continued", lambda start, storage: replace(BEFORE, augmentation=0.3))
    for rewrites, wanted in (("", 0.0), ("rules (keywords)", 0.3)):
        assert finetune.settings("a", {**INFO, "rewrites": rewrites}, storage, {}).augmentation == wanted


def test_no_captions(storage):
    with pytest.raises(UserError, match="mine: no training captions"):
        finetune.settings("none", {"name": "mine", "captions": {"training": 0}}, storage, {})


def test_from_a_file(storage, tmp_path):
    path = tmp_path / "model.safetensors"
    metadata = {"format": export.FORMAT, "config": '{"projection": 12, "audio": "cnn14", "audio.weights": "abc"}'}
    save_file({"x": torch.arange(3.0)}, path, metadata)
    config = finetune.settings(str(path), INFO, storage, {})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert config.init == Weights(sha256=digest)
    assert storage.read(f"weights/{digest}.safetensors") == path.read_bytes()
    assert config.projection == 12 and config.audio.weights == "random"  # of no use: the file holds all
    with pytest.raises(UserError, match="no run begins with 'ffff'"):
        finetune.settings("ffff", INFO, storage, {})


def test_a_run_and_its_file_give_the_same_settings(storage, tmp_path):
    """Only the digest that the weights go by differs: a file is another one than the run's."""
    path = tmp_path / "model.safetensors"
    other = override(
        BEFORE, {"seed": 7, "precision": "float32", "clip_seconds": 5.0, "warmup": 0.5, "text.dropout": 0.1}
    )
    dataset = replace(find("audio").dataset, describe=lambda info: "gone", caution=lambda info: "")
    task = replace(find("audio"), version=2, dataset=dataset)
    folder = RunFolder.of(storage, find("audio"), other)
    folder.begin(other, find("audio").version, {})
    digest = folder.save_weights(15, {"x": torch.arange(3.0)})
    folder.folder.write_json("result.json", {"metrics": {}, "data": "gone", "weights": {"15": digest}})
    folder.folder.write_json("provenance.json", {"data": {}})
    path.write_bytes(export.write_export(TrainedRun(task, folder, other)))
    of_run, of_file = (finetune.settings(start, INFO, storage, {}) for start in (folder.fingerprint, str(path)))
    assert of_file.init == Weights(sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    assert replace(of_file, init=of_run.init) == of_run
    assert (of_file.seed, of_file.clip_seconds, of_file.learning_rate) == (7, 5.0, 1e-3 * finetune.SLOWER)


def test_training_leaves_the_parents_run_alone(storage, monkeypatch):
    """The plan holds the very configs: no scale is applied to them, or to what they start from."""
    seen = {}

    def execute(work, resources):
        seen["configs"] = [training.config for training in work.trainings.values()]
        return seen["failures"]

    task = SimpleNamespace(
        name="audio", version=1, keep=lambda config: (), dataset=SimpleNamespace(where=lambda config: "audio/x")
    )
    monkeypatch.setattr(finetune, "find", lambda name: task)
    monkeypatch.setattr(finetune, "execute", execute)
    before = Config(seed=4)
    config = Config(init=Parent(overrides=(("seed", 4),)), epochs=2)
    seen["failures"] = {}
    assert finetune.train(config, storage, None).config == config
    assert seen["configs"] == [before, config]
    seen["failures"] = {"run": "it broke"}
    with pytest.raises(UserError, match="it broke"):
        finetune.train(config, storage, None)


def test_from_a_model_of_the_zoo(storage):
    """As the help of `finetune` and of `pairs` says: the weights load into the network that is trained."""
    config = finetune.settings("passt-scenes", INFO, storage, {})
    file = zoo("audio")["passt-scenes"]
    assert config == finetune.settings(str(file), INFO, storage, {})
    weights, _ = stored(config.init.sha256, storage, "")
    learner = object.__new__(RetrievalLearner)
    learner.config, learner.model = config, rebuild(config, weights)
    learner.load_weights([weights])
    shipped = load_file(file)
    assert all(torch.equal(value, shipped[name]) for name, value in weights.items())
    assert {name for name in shipped.keys() - weights.keys()} == {f"lexicon.{n}" for n in ("own", "sounds", "words")}
    with pytest.raises(
        UserError, match=r"--from passt-scene: no such file, no run, and none of the zoo's: passt-scenes"
    ):
        finetune.settings("passt-scene", INFO, storage, {})


def test_helps_name_a_model_that_is_there():
    for command in ("finetune", "pairs"):
        text = " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
        assert "--from passt-scenes" in text and "passt-scenes" in zoo("audio")
