"""Reading a run: blocks of captions give the scores of the whole matrix, and each recording is embedded once."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.audio import metrics
from retable.tasks.audio.collect.recordings import Recording, write_dataset
from retable.tasks.audio.config import Config, MeanMel, Untrained, View
from retable.tasks.audio.model import build
from tests.audio.test_metrics import audio_to_text_scores, graded_scores

predict = import_module("retable.tasks.audio.predict")  # the package may have a function of this name

CONFIG = Config(
    audio=MeanMel(), text=Untrained(width=16, depth=1, heads=2), projection=8, segment=0.5, clip_seconds=1.0, seed=1
)
TEST = View(epoch=1)
WORDS = "rain wind dog bell siren engine bird door water drum".split()


def items():
    """Nine recordings of one to three captions, the test set's last ones without any; lengths from 0.1 s to 1.3 s."""
    random = np.random.default_rng(0)
    for number in range(18):
        seconds = 0.1 + 1.2 * random.random()
        waveform = random.normal(0, 0.1, int(32000 * seconds)).astype(np.float32)
        waveform *= np.linspace(1, random.random(), len(waveform), dtype=np.float32)
        captions = tuple(" ".join(random.choice(WORDS, 4)) for _ in range(0 if number == 17 else 1 + number % 3))
        split = ("training", "validation", "test")[min(number // 4, 2)]
        yield Recording(number, f"{number}.wav", "clotho", split, "", seconds, captions), lambda kept=waveform: kept


def made(folder, features):
    storage = Storage.open(folder) / f"data/audio/{features}"
    write_dataset(storage, features, "own", features, items())
    return Source(storage, storage.read_json("dataset.json"))


@pytest.fixture(scope="module", params=["waveform", "mel"])
def source(request, tmp_path_factory):
    return made(tmp_path_factory.mktemp("audio"), request.param)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return build(CONFIG, [caption for recording, _ in items() for caption in recording.captions], None).eval()


@pytest.fixture(autouse=True)
def blocks_of_four(monkeypatch):
    monkeypatch.setattr(predict, "BLOCK", 4)
    predict.EMBEDDED.clear()
    predict.LOADED.clear()
    predict.FITTING.clear()


def similarity(model, source, view=TEST):
    return np.concatenate(
        [
            predict.predict(CONFIG, view, model.state_dict(), source, shard)["similarity"]
            for shard in predict.shards(CONFIG, view, source)
        ]
    )


def alone(model, source, split="test"):
    """Embed each recording and each caption of a split by itself."""
    chosen = [recording for recording, _ in items() if recording.split == split]
    sounds = [predict.sounds(source, [recording]) for recording in chosen]
    with torch.no_grad():
        audio = [
            model.embed_audio(torch.tensor(sound)[None], torch.tensor([len(sound)]), source.info["features"])
            for (sound,) in sounds
        ]
        text = [model.embed_text([caption]) for recording in chosen for caption in recording.captions]
    return torch.cat(text) @ torch.cat(audio).T


def summaries(model, source, view=TEST):
    return {
        shard: predict.summarise(
            CONFIG, view, predict.predict(CONFIG, view, model.state_dict(), source, shard), source, shard
        )
        for shard in predict.shards(CONFIG, view, source)
    }


def test_similarities_are_those_of_recordings_and_captions_embedded_alone(model, source):
    found = similarity(model, source)
    assert found.dtype == np.float32 and found.shape == (18, 10)
    np.testing.assert_allclose(found, alone(model, source).numpy(), atol=1e-5)


def test_batches_of_any_size_give_the_same_vectors(model, source, monkeypatch):
    sounds = list(predict.sounds(source, predict.split_recordings(source, "test")))
    together = predict.embed_audio(model, sounds, source.info["features"])
    monkeypatch.setattr(predict, "SECONDS", 2)
    np.testing.assert_allclose(predict.embed_audio(model, sounds, source.info["features"]), together, atol=1e-6)


def test_batches_are_bounded_and_keep_the_order():
    sounds = [np.full(size, number) for number, size in enumerate([3, 1, 8, 2, 2, 2, 20, 1])]
    for most, sizes in ((0, [2, 1, 3, 1, 1]), (2, [2, 1, 2, 1, 1, 1])):
        found = list(predict.bounded(sounds, len, 8, most))
        assert [len(batch) for batch in found] == sizes
        assert [sound[0] for batch in found for sound in batch] == list(range(8))


def test_recordings_are_embedded_once_for_all_blocks_of_a_split(model, source, monkeypatch):
    embedded, embed = [], predict.embed_audio
    monkeypatch.setattr(predict, "embed_audio", lambda *given: embedded.append(1) or embed(*given))
    similarity(model, source)
    assert len(embedded) == 1
    similarity(model, source, View(epoch=1, split="validation"))
    assert len(embedded) == 2


def test_a_model_is_built_and_hashed_once_for_all_blocks_of_a_split(model, source, monkeypatch):
    calls = []
    for name in ("load", "weights_fingerprint"):
        real = getattr(predict, name)
        monkeypatch.setattr(predict, name, lambda *given, name=name, real=real: calls.append(name) or real(*given))
    first = similarity(model, source)
    assert sorted(calls) == ["load", "weights_fingerprint"] and not predict.LOADED
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    shards = predict.shards(CONFIG, TEST, source)
    before = predict.predict(CONFIG, TEST, weights, source, shards[0])["similarity"]
    np.testing.assert_array_equal(before, first[:4])
    weights["text_projection.weight"][0] *= -1  # in place, as an optimiser does
    changed = predict.predict(CONFIG, TEST, weights, source, shards[1])["similarity"]
    assert np.abs(changed - first[4:8]).max() > 0.01
    assert len(calls) == 6


def test_another_models_vectors_are_never_used(model, source):
    first = similarity(model, source)
    torch.manual_seed(4)
    other = build(CONFIG, [caption for recording, _ in items() for caption in recording.captions], None).eval()
    assert np.abs(similarity(other, source) - first).max() > 0.01
    np.testing.assert_array_equal(similarity(model, source), first)


def test_blocks_give_the_scores_of_the_whole_matrix(model, source):
    whole, own = similarity(model, source), np.array([r.recording for r, _ in items() for _ in r.captions][-18:])
    columns = np.array([recording.recording for recording, _ in items() if recording.split == "test"])
    expected = metrics.retrieval_scores(whole, own, columns) | audio_to_text_scores(whole, own, columns)
    parts = summaries(model, source)
    assert len(parts) == 5
    assert predict.evaluate(CONFIG, TEST, parts, source) == pytest.approx(expected)
    scores = predict.per_query(parts)
    np.testing.assert_array_equal(scores["recording"], own)
    assert np.mean(scores["map10"]) == pytest.approx(expected["map10"])


def test_what_is_known_to_fit_a_caption_counts(model, source, monkeypatch):
    relevance = np.random.default_rng(5).random((18, 10)) < 0.2
    relevance[3] = False
    asked = []
    monkeypatch.setattr(predict, "relevant", lambda source, split: asked.append(split) or relevance)
    scores = predict.evaluate(CONFIG, TEST, summaries(model, source), source)
    assert asked == ["test"]
    expected = graded_scores(similarity(model, source), relevance)
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert scores["map16_multi"] >= scores["map10_multi"] > 0


@pytest.mark.parametrize(
    ("rewrites", "by_rules"), [("rules (keywords)", True), ("gpt-3.5-turbo", False), ("", False), (None, False)]
)
def test_a_summary_says_whether_rules_rewrote_the_captions(model, source, rewrites, by_rules):
    info = {name: value for name, value in source.info.items() if name != "rewrites"}
    told = replace(source, info=info if rewrites is None else {**info, "rewrites": rewrites})
    parts = summaries(model, told)
    assert all(part["by_rules"].tolist() == [by_rules] for part in parts.values())


def test_of_imported_data_nobody_knows_what_else_fits(source):
    assert predict.fitting(source, "test") is None


def test_a_model_that_says_the_same_of_everything_scores_chance(source):
    parts = {
        shard: predict.summarise(
            CONFIG, View(), {"similarity": np.zeros((min(4, 18 - 4 * n), 10), np.float32)}, source, shard
        )
        for n, shard in enumerate(predict.shards(CONFIG, View(), source))
    }
    scores = predict.evaluate(CONFIG, View(), parts, source)
    assert (scores["r1"], scores["r5"], scores["r10"]) == pytest.approx((0.1, 0.5, 1.0))
    assert scores["map10"] == pytest.approx(np.mean(1 / np.arange(1, 11)))


def test_a_split_without_captions_is_one_line(source):
    empty = replace(source, info={**source.info, "captions": {"test": 0}})
    with pytest.raises(UserError, match="no captions of the test split"):
        predict.shards(CONFIG, View(), empty)


def test_a_small_model_and_a_small_set_are_estimated_to_cost_less():
    small = replace(CONFIG, data="generated-tiny")
    assert 0 < predict.view_cost(small, TEST) < predict.view_cost(CONFIG, TEST) < predict.view_cost(Config(), TEST)
