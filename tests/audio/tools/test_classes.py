import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from retable.platform.config import override
from retable.platform.errors import UserError
from retable.tasks.audio import cli
from retable.tasks.audio.config import SAMPLE_RATE, Config
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


@pytest.mark.parametrize(("info", "fold"), [({"test_fold": 1}, 1), ({}, 5)])
def test_a_model_is_judged_on_the_fold_that_its_scenes_held_out(monkeypatch, tmp_path, info, fold):
    """Of scenes with `--test-fold 1`, fold 5 was trained on."""
    config = override(Config(), {})
    trained = SimpleNamespace(config=config, source=SimpleNamespace(info=info))
    monkeypatch.setattr("retable.platform.api.load", lambda *given, **options: trained)
    monkeypatch.setattr("retable.tasks.audio.tools.search.opening.open_embedder", lambda *given: None)
    monkeypatch.setattr("retable.platform.models.export.export", lambda *given, **options: None)
    told = []
    monkeypatch.setattr("retable.tasks.audio.tools.search.classes.judge", lambda *given: told.append(given))
    monkeypatch.setattr("retable.tasks.audio.tools.search.classes.line", str)
    cli.export("latest", tmp_path / "out.safetensors", classes=tmp_path, storage=str(tmp_path))
    assert told == [(None, tmp_path, fold, config)]
