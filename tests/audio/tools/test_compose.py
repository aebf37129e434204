"""Composed scenes hold what their captions say, folds stay apart, and silence is not an event."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from retable.platform.api import config_at
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute.scoring import score_weights
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.platform.train.worker import Worker
from retable.tasks.audio import TASK
from retable.tasks.audio.collect.recordings import write_dataset, write_recordings
from retable.tasks.audio.config import View
from retable.tasks.audio.data import Recordings
from retable.tasks.audio.learner import RetrievalLearner
from retable.tasks.audio.tools.compose import CLASSES, Composition, audible, clips, compose, items
from retable.tasks.audio.world.captions import LEXICON
from retable.tasks.audio.world.generate import relevant
from retable.tasks.audio.world.scenes import Event, Scene, from_json

RATE = 32000
TONES = {category: 300.0 * 1.4**number for number, category in enumerate(CLASSES)}
"""Each class of the toy folder is a tone."""


def tone(category: str, fold: int) -> npt.NDArray[Any]:
    """Half a second of silence, one of tone, half a second of silence."""
    wave = np.zeros(2 * RATE)
    wave[RATE // 2 : 3 * RATE // 2] = 0.3 * np.sin(2 * np.pi * (TONES[category] + fold) * np.arange(RATE) / RATE)
    return wave


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    (folder / "audio").mkdir()
    with (folder / "toy.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["filename", "fold", "category", "src_file"])
        for fold in (1, 2, 3, 4, 5):
            for number, category in enumerate(CLASSES):
                name = f"{fold}-{category}.wav"
                soundfile.write(folder / "audio" / name, tone(category, fold), RATE)
                rows.writerow([name, fold, category, 100 * fold + number])
        rows.writerow(["5-siren.wav", 5, "siren", 1])
    return folder


def composition(folder: Path, **changes: Any) -> Composition:
    return Composition(folder=folder, **{"training": 40, "validation": 8, "seconds": 2.0, **changes})


def test_clips_of_known_classes(folder: Path) -> None:
    found = clips(folder)
    assert len(found) == 50 and {clip.sound for clip in found} == set(CLASSES.values()) <= set(LEXICON)
    assert (found[11].fold, found[11].source) == (2, "freesound:201") and found[11].path.is_file()


def test_folds_stay_apart(folder: Path) -> None:
    made = items(composition(folder))
    assert [recording.recording for recording, _ in made] == list(range(58))
    for recording, make in made:
        folds = {int(path.name[0]) for path in (make.args[1] if recording.split != "test" else make.args)}  # type: ignore[attr-defined]
        assert folds <= {"training": {1, 2, 3}, "validation": {4}, "test": {5}}[recording.split]
    assert sum(recording.split == "validation" for recording, _ in made) == 8


def test_a_scene_sounds_as_its_facts_say(folder: Path) -> None:
    """Every event's tone is there in its time and stands out from the time without it."""
    for recording, make in items(composition(folder))[:20]:
        wave, (scene, statements) = make(), from_json(recording.facts)
        assert len(wave) == round(recording.seconds * RATE) and wave.dtype == np.float32
        assert len(statements) == len(recording.captions) == 5
        for event in scene.events:
            category = next(name for name, sound in CLASSES.items() if sound == event.sound)
            time = np.arange(len(wave)) / RATE
            during = (time >= event.start) & (time < event.end)
            powers = [
                abs(np.mean(wave * np.exp(-2j * np.pi * (TONES[category] + f) * time) * during)) for f in (1, 2, 3)
            ]
            nearby = [
                abs(np.mean(wave * np.exp(-2j * np.pi * (TONES[category] + f) * time) * during)) for f in (40, 55)
            ]
            assert max(powers) > 3 * max(nearby), (scene, event)


def test_everything_is_a_function_of_the_seed(folder: Path) -> None:
    first, again, other = (items(composition(folder, seed=seed)) for seed in (0, 0, 1))
    assert [recording for recording, _ in first] == [recording for recording, _ in again]
    assert first[0][0].captions != other[0][0].captions
    assert np.array_equal(first[3][1](), pickle.loads(pickle.dumps(again[3][1]))())


def test_test_captions_are_true_of_their_class_and_of_no_other(folder: Path, storage: Storage) -> None:
    listed = [recording for recording, _ in items(composition(folder))]
    write_recordings(storage, listed)
    found = relevant(Source(storage, {}), "test")
    expected = np.repeat(np.eye(10, dtype=bool), 5, axis=0)
    assert found is not None and np.array_equal(found, expected)


def test_recordings_alone_are_as_they_are_but_for_loudness_and_start(folder: Path) -> None:
    made = items(composition(folder, alone=0.5))
    alone = [each for each in made if each[0].file.startswith("alone")]
    assert len(alone) == 20 and all(recording.split == "training" and not recording.source for recording, _ in alone)
    assert len({from_json(recording.facts)[0].sounds for recording, _ in alone}) > 5
    for recording, make in alone[:8]:
        ((event,), wave) = from_json(recording.facts)[0].events, make()
        heard, known = make.args[0], np.fft.rfft(wave)  # type: ignore[attr-defined]
        truth = np.fft.rfft(soundfile.read(heard)[0])
        assert heard.stem[0] in "123" and CLASSES[heard.stem[2:]] == event.sound
        loud = np.abs(truth) > 0.01 * np.abs(truth).max()  # a turn changes phases alone
        ratio = np.abs(known[loud]) / np.abs(truth[loud])
        assert ratio.std() < 0.01 * ratio.mean() and 0.19 < ratio.mean() < 2.1


def test_the_validations_fold_may_be_trained_on_once_all_is_chosen(folder: Path) -> None:
    made = items(composition(folder, alone=1.0, all_folds=True))
    paths = {split: {make.args[0].name for r, make in made if r.split == split} for split in ("training", "test")}  # type: ignore[attr-defined]
    assert {name[0] for name in paths["training"]} == set("1234") and {name[0] for name in paths["test"]} == {"5"}


def test_silence_around_a_sound_is_left_out(folder: Path) -> None:
    path = folder / "audio/1-dog.wav"
    assert len(audible(path)) == pytest.approx(RATE, abs=RATE // 10)
    event = Event("dog", 0.0, 1.5)
    wave = compose(Scene((event,), 2.0), [path], (0, 0))
    level = np.sqrt((wave.reshape(20, -1) ** 2).mean(axis=1))
    assert level[1:14].min() > 0.7 * level[1:14].max() > 5 * level[16:].max()  # repeated to fill the event


def test_mistakes_are_one_clear_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="0 CSV files"):
        clips(tmp_path)
    with pytest.raises(UserError, match="no recording is left for test"):
        items(composition(folder, test_fold=9))
    table = tmp_path / "list.csv"
    for text, message in (
        ("name,fold\na,1\n", "no column filename, category"),
        ("filename,fold,category\na.wav,one,dog\n", "a fold is no number"),
        ("filename,fold,category\na.wav,1,tuba\n", "no recording of a known class"),
        ("filename,category,fold\na.wav,dog\n", "a fold is no number"),
        ("filename,fold,category\n", "lists no recordings"),
        ("", "no column filename, fold, category"),
    ):
        table.write_text(text)
        with pytest.raises(UserError, match=message):
            clips(tmp_path)


@pytest.mark.parametrize("encoding, separator", [("cp1252", ","), ("utf-8-sig", ","), ("utf-16", "\t"), ("utf-8", ";")])
def test_a_table_is_read_as_a_spreadsheet_saves_it(tmp_path: Path, encoding: str, separator: str) -> None:
    lines = (("Filename", "fold", "category", "taken by"), ("Hühner.wav", "1", "rooster", "José"))
    (tmp_path / "meta.csv").write_bytes("\r\n".join(separator.join(line) for line in lines).encode(encoding))
    assert [(clip.path.name, clip.fold, clip.sound) for clip in clips(tmp_path)] == [("Hühner.wav", 1, "rooster")]


def test_real_recordings(shared: Path) -> None:
    folder = shared / "data/audio/esc10"
    if not folder.is_dir():
        pytest.skip("no ESC-10 there")
    made = items(Composition(folder=folder, training=3, validation=1))
    test = [recording for recording, _ in made if recording.split == "test"]
    assert len(test) == 80 and len(clips(folder)) == 398
    for recording, make in [*made[:4], *made[-2:]]:
        wave = make()
        assert len(wave) == pytest.approx(recording.seconds * RATE, abs=2) and 0.01 < np.abs(wave).max() <= 1


@pytest.mark.slow
def test_what_is_learnt_on_scenes_finds_real_recordings_of_another_fold(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/audio/esc10"
    if not folder.is_dir():
        pytest.skip("no ESC-10 there")
    place = Storage.open(tmp_path) / "data/audio/scenes"
    made = items(Composition(folder=folder, training=300, validation=10))
    source = Source(place, write_dataset(place, "scenes", "generated", "mel", made, workers=2))
    changes = {
        "data": "scenes",
        "corpora": ["clotho"],
        "clip_seconds": 5.0,
        "audio": "mean_mel",
        "epochs": 2,
        "steps": 250,
    }
    config = override(config_at(TASK, "small", {}), changes)
    data = Recordings(None, source, [config])
    learner = RetrievalLearner([config], data, Worker())

    def score() -> float:
        return score_weights(TASK, config, View(epoch=1), learner.state_dict()[0]["weights"], source)["map10_multi"]

    untrained = score()
    for epoch in range(config.epochs):
        for batch in data.batches(epoch, 0, 0, 1):
            learner.step(batch)
    assert score() > 3 * max(untrained, 0.06), "ten classes, eight recordings each: by chance about 0.03"
