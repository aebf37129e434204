import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from retable.platform.config import differences, override
from retable.platform.errors import UserError
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.platform.store.weights import keep, metadata
from retable.tasks.audio import cli, export
from retable.tasks.audio.config import SAMPLE_RATE, Config
from retable.tasks.audio.export import Exported
from retable.tasks.audio.tools.search.classes import class_map, judge, line, sentences


def by_all_orders(similarity, relevance):
    """Average precision as the mean over every order that the similarities allow."""
    found = []
    for order in itertools.permutations(range(len(similarity))):
        if all(similarity[a] >= similarity[b] for a, b in itertools.pairwise(order)):
            hits = np.array([relevance[place] for place in order])
            found.append(((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits]).mean())
    return np.mean(found)


def test_average_precision_is_that_of_all_orders():
    draw = np.random.default_rng(0)
    similarity, relevance = draw.integers(3, size=(6, 6)).astype(float), draw.random((6, 6)) < 0.5
    relevance[:, 0] = True
    wanted = [by_all_orders(*each) for each in zip(similarity, relevance, strict=True)]
    assert np.allclose(class_map(similarity, relevance), wanted)


def test_sentences_are_english():
    assert sentences("dog")[0] == "a dog barks" and sentences("rain")[:2] == ["rain falls", "raindrops pour"]
    assert len(set(sentences("sneeze"))) == 5


class Perfect:
    """Hears a recording's loudness, which is its class."""

    segment = 1.0
    dimension = 2
    KNOWN = ("dog", "bark", "hound", "puppy", "canine", "yap", "woof", "yelp", "bay")

    def sounds(self, segments):
        return np.array([[1.0, 0.0] if np.abs(s).max() > 0.3 else [0.0, 1.0] for s in segments], np.float32)

    def words(self, captions):
        return np.array([[1.0, 0.0] if set(c.split()) & set(self.KNOWN) else [0.0, 1.0] for c in captions], np.float32)


class Deaf(Perfect):
    def sounds(self, segments):
        return np.ones((len(segments), 2), np.float32)


@pytest.fixture
def folder(tmp_path):
    lines = ["filename,fold,category,src_file"]
    for number, (category, loud) in enumerate([("dog", 0.5), ("rain", 0.1)] * 4):
        fold = 5 if number < 6 else 1
        soundfile.write(tmp_path / f"{number}.wav", np.full(SAMPLE_RATE, loud), SAMPLE_RATE)
        lines.append(f"{number}.wav,{fold},{category},{number}")
    (tmp_path / "all.csv").write_text("\n".join(lines))
    return tmp_path


def test_who_hears_all_has_one_and_who_hears_nothing_has_chance(folder):
    score = judge(Perfect(), folder)
    assert score["value"] == 1.0 and score["on"].startswith("6 recordings of")
    assert 0 < score["low"] <= score["high"] == 1.0
    deaf = judge(Deaf(), folder)
    assert (
        deaf["value"] == deaf["chance"] == score["chance"] == round(by_all_orders([0] * 6, [True] * 3 + [False] * 3), 3)
    )
    assert line(score).startswith("class mAP 1.00 [") and line({"metric": "mAP@10", "value": 1}) == ""
    with pytest.raises(UserError, match="no recording of fold 7"):
        judge(Perfect(), folder, 7)


def finished(storage, info, **changes):
    """Return the digest of the weights of a finished run on a data set that `info` describes, and the run's config."""
    config = override(Config(), {"audio": "mean_mel", "text": "untrained", **changes})
    folder, info = RunFolder.of(storage, find("audio"), config), {"name": config.data, **DESCRIBED, **info}
    folder.begin(config, find("audio").version, {"data": info})
    storage.write_json(f"data/audio/{config.data}/dataset.json", info)
    digest = folder.save_weights(config.epochs, {"x": torch.tensor([int(folder.fingerprint[:6], 16)])})
    weights = {str(config.epochs): digest}
    folder.folder.write_json("result.json", {"metrics": {}, "data": "gone", "weights": weights})
    return digest, config


DESCRIBED = {"kind": "own", "digest": "gone", "rows": {"training": 1, "test": 1}, "seconds": 1.0, "leaks": 0}


def judged_on(monkeypatch, storage, config):
    """Return the fold on which `export --classes` judges a run, what it says of the score, and the file's facts."""
    monkeypatch.setattr("retable.tasks.audio.tools.search.opening.open_embedder", lambda *given: Perfect())
    asked = []
    score = {"metric": "class mAP", "value": 1.0, "low": 1.0, "high": 1.0, "chance": 0.1, "on": "a fold"}
    monkeypatch.setattr(
        "retable.tasks.audio.tools.search.classes.judge", lambda *given: asked.append(given[2]) or dict(score)
    )
    run, file = RunFolder.of(storage, find("audio"), config).fingerprint, Path(storage.root) / "out.safetensors"
    cli.export(run, file, classes=file.parent, overwrite=True, storage=str(storage))
    said = json.loads(metadata(file.read_bytes())["provenance"])
    return asked[0], said["score"]["on"], said.get("test_folds")


UNKNOWN = "a fold; what the weights that it started from were trained on is not known"


def test_a_model_is_judged_on_the_fold_that_its_scenes_held_out(monkeypatch, storage):
    """Of scenes with `--test-fold 2`, fold 5 was trained on: by a run, and by what is fine-tuned from it."""
    assert judged_on(monkeypatch, storage, finished(storage, {}, data="plain")[1]) == (5, "a fold", [])
    digest, scenes = finished(storage, {"test_fold": 2}, data="scenes")
    assert judged_on(monkeypatch, storage, scenes) == (2, "a fold", [2])
    of_run = {"init": "weights", "init.sha256": digest, "data": "mine"}
    _, tuned = finished(storage, {}, **of_run)
    assert judged_on(monkeypatch, storage, tuned) == (2, "a fold", [2])
    of_file = keep((Path(storage.root) / "out.safetensors").read_bytes(), storage)
    _, tuned = finished(storage, {}, **{**of_run, "init.sha256": of_file})
    assert judged_on(monkeypatch, storage, tuned) == (2, "a fold", [2])
    lineage = tuple(differences(scenes, Config()).items())
    _, child = finished(storage, {}, data="mine", init="parent", **{"init.overrides": lineage})
    assert judged_on(monkeypatch, storage, child) == (2, "a fold", [2])


def test_where_no_fold_is_unheard_nothing_is_judged_and_what_is_not_known_is_said(monkeypatch, storage):
    digest, _ = finished(storage, {"test_fold": 2}, data="scenes")
    start = {"init": "weights", "init.sha256": digest}
    whole, _ = finished(storage, {"test_fold": 5}, data="scenes", train_on="all")
    with pytest.raises(UserError, match=r"heard every fold of its scenes, or of those of what it started from; leave"):
        judged_on(monkeypatch, storage, finished(storage, {"test_fold": 5}, data="others", **start)[1])
    with pytest.raises(UserError, match=r"heard every fold"):
        judged_on(monkeypatch, storage, finished(storage, {}, data="mine", **{**start, "init.sha256": whole})[1])
    theirs = keep(export.write_adopted(Exported({"adopted": "x"}, Config(), {"x": torch.ones(1)}, "")), storage)
    of_theirs = {**start, "init.sha256": theirs}
    assert judged_on(monkeypatch, storage, finished(storage, {}, data="mine", **of_theirs)[1]) == (5, UNKNOWN, None)
    _, tuned = finished(storage, {"test_fold": 2}, data="scenes", **of_theirs)
    assert judged_on(monkeypatch, storage, tuned) == (2, UNKNOWN, None)
    gone = {**start, "init.sha256": "0" * 64}
    assert judged_on(monkeypatch, storage, finished(storage, {}, data="mine", **gone)[1]) == (5, UNKNOWN, None)
