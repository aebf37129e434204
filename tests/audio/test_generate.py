"""The made-up world is a function of its seed, has the planned structure, and is neither too easy nor too hard."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from retable.platform.errors import UserError
from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.audio.collect.layouts import challenge
from retable.tasks.audio.collect.recordings import Recording, write_recordings
from retable.tasks.audio.world.generate import (
    SIZES,
    World,
    describe,
    is_unseen,
    items,
    original,
    relevant,
    scene,
    waveform,
    world,
)
from tests.audio.generated_layout import AUTHOR, place, write_layout
from tests.audio.oracles import oracle_similarity

Array = npt.NDArray[Any]
TINY = world("tiny")
LITTLE = World(
    name="little",
    clotho=(6, 4, 4),
    audiocaps=21,
    wavcaps=8,
    clotho_seconds=(0.5, 0.6),
    audiocaps_seconds=(0.5, 0.5),
    wavcaps_seconds=(0.4, 0.8),
)


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return [recording for recording, _ in items(TINY)]


def test_sizes_and_order(recordings: list[Recording]) -> None:
    assert [each.recording for each in recordings] == list(range(192))
    counts = Counter((each.split, each.corpus) for each in recordings)
    assert list(counts.items()) == [
        (("training", "clotho"), 48),
        (("training", "audiocaps"), 32),
        (("training", "wavcaps"), 64),
        (("validation", "clotho"), 24),
        (("test", "clotho"), 24),
    ]
    captions = {"clotho": 5, "audiocaps": 1, "wavcaps": 1}
    assert all(len(each.captions) == len(each.rewrites) == captions[each.corpus] for each in recordings)
    assert all(bool(each.keywords) == (each.corpus == "clotho") for each in recordings)
    assert SIZES["large"].clotho == (3839, 1045, 1045)  # Clotho v2.1's sizes
    with pytest.raises(UserError, match="did you mean 'small'"):
        world("smal")


def test_a_recording_is_a_function_of_its_place_and_the_seed(recordings: list[Recording]) -> None:
    again = describe(TINY, "clotho", "test", 5)
    assert replace(again, recording=recordings[173].recording) == recordings[173]
    sound = waveform(TINY, "clotho", "test", 5)
    assert np.array_equal(pickle.loads(pickle.dumps(items(TINY)[173][1]))(), sound)
    other = replace(TINY, seed=1)
    assert describe(other, "clotho", "test", 5).captions != again.captions
    larger = replace(TINY, clotho=(480, 240, 240))
    assert describe(larger, "clotho", "test", 5) == again


def test_sounds_fit_their_descriptions() -> None:
    for recording, make in items(LITTLE):
        wave = make()
        assert wave.dtype == np.float32 and len(wave) == round(recording.seconds * 32000)
        assert 0.001 < np.abs(wave).max() <= 0.951


def test_sources_tell_recordings_apart_but_for_leaks(recordings: list[Recording]) -> None:
    honest = [each.source for each in recordings if not each.leak]
    assert len(set(honest)) == len(honest) and all(honest)
    assert len({place(each) for each in recordings}) == len(recordings)
    evaluated = {each.source for each in recordings if each.split != "training"}
    leaks = [each for each in recordings if each.leak]
    assert len(leaks) == 4 and all(each.split == "training" for each in leaks)
    assert sum(each.source in evaluated for each in leaks) == 2


def test_a_planted_leak_is_a_part_of_its_original() -> None:
    for number in range(TINY.leaks):
        found = original(TINY, "wavcaps", number)
        assert found
        copy, whole = waveform(TINY, "wavcaps", "training", number), waveform(TINY, "clotho", *found)
        start = len(whole) // 20
        assert len(copy) == pytest.approx(0.9 * len(whole), abs=2)
        assert copy == pytest.approx(0.8 * whole[start : start + len(copy)], abs=1e-6)
    assert original(TINY, "wavcaps", TINY.leaks) is None and original(TINY, "audiocaps", 0) is None


def test_siblings_and_twins(recordings: list[Recording]) -> None:
    for first in range(0, 24, 8):
        heard = [scene(TINY, "clotho", "test", first + number) for number in range(6)]
        assert heard[1] != heard[0] and heard[1].sounds == heard[0].sounds
        assert heard[3].sounds == heard[2].sounds and [e.start for e in heard[3].events] == [
            e.start for e in heard[2].events
        ]
        assert (heard[5] == heard[4]) == (first % 16 == 0)
    twin, own = (waveform(TINY, "clotho", "test", number) for number in (4, 5))
    assert twin.shape == own.shape and np.abs(np.corrcoef(twin, own)[0, 1]) < 0.5


def test_some_pairs_of_sounds_are_heard_in_tests_alone() -> None:
    small = world("small")
    for corpus, count in (("clotho", 300), ("wavcaps", 300)):
        numbers = range(200, 200 + count)  # past the leaks
        assert not any(
            is_unseen(pair)
            for number in numbers
            for pair in combinations(scene(small, corpus, "training", number).sounds, 2)  # type: ignore[arg-type]
        )
    unseen = [any(map(is_unseen, combinations(scene(small, "clotho", "test", n).sounds, 2))) for n in range(300)]
    assert 0.1 < np.mean(unseen) < 0.5


def test_the_corpora_differ_in_words_and_band(recordings: list[Recording]) -> None:
    words = {c: [len(t.split()) for each in recordings if each.corpus == c for t in each.captions] for c in CORPORA}
    assert min(words["clotho"]) >= 8 and max(words["clotho"]) <= 20
    assert np.mean(words["wavcaps"]) < np.mean(words["clotho"]) - 2

    def high(corpus: str) -> float:
        powers = [np.abs(np.fft.rfft(waveform(TINY, corpus, "training", n))) ** 2 for n in range(8, 20)]  # type: ignore[arg-type]
        return float(np.mean([power[len(power) * 9 // 16 :].sum() / power.sum() for power in powers]))

    assert high("audiocaps") < 0.2 * high("clotho")


CORPORA = ("clotho", "audiocaps", "wavcaps")


def test_training_captions_have_the_words_of_test_captions() -> None:
    """Nothing is narrowed for a rewriter to widen again."""
    small = world("small")

    def variety(split: str) -> float:
        """Share of the words of a recording's captions that but one of its captions has."""
        listed = [describe(small, "clotho", split, number).captions for number in range(40)]
        counts = [Counter(word for text in texts for word in set(text.lower().strip(".").split())) for texts in listed]
        return float(np.mean([np.mean([n == 1 for n in count.values()]) for count in counts]))

    assert abs(variety("training") - variety("test")) < 0.05


def rank_scores(similarity: Array, owners: Array) -> float:
    """mAP@10 with one relevant recording, in expectation over ties."""
    own = similarity[np.arange(len(owners)), owners][:, None]
    better, equal = (similarity > own).sum(1), (similarity == own).sum(1)
    tied = zip(better, equal, strict=True)
    gains = [sum(1 / rank for rank in range(b + 1, b + e + 1) if rank <= 10) / e for b, e in tied]
    return float(np.mean(gains))


def test_anchors_are_in_order() -> None:
    """Chance < the bag of sounds < all facts < 1: traits and order matter, and captions leave things out."""
    listed = [describe(world("small"), "clotho", "test", number) for number in range(96)]
    owners = np.repeat(np.arange(96), 5)
    tags, facts = (rank_scores(oracle_similarity(listed, knows), owners) for knows in ("tags", "facts"))
    assert 0.3 < tags < facts - 0.05 and facts < 0.95


def test_relevance_of_a_data_set(storage: Storage, recordings: list[Recording]) -> None:
    write_recordings(storage, recordings)
    found = relevant(Source(storage, {}), "test")
    assert found is not None and found.shape == (120, 24)
    assert found[np.arange(120), np.repeat(np.arange(24), 5)].all()
    assert found.sum() > 130  # false negatives: the twins, and vague captions
    facts = oracle_similarity(recordings[168:], "facts")
    exact = facts > 0.9
    assert (found >= exact).all()
    write_recordings(storage, [replace(each, facts="") for each in recordings])
    assert relevant(Source(storage, {}), "test") is None


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("layout")
    return folder, write_layout(LITTLE, folder)


def test_the_layout_is_read_back(layout: tuple[Path, dict[str, Any]]) -> None:
    folder, planted = layout
    entries = {str(e.path and e.path.relative_to(folder)): e for e in challenge(folder)}
    for recording, _ in items(LITTLE):
        entry = entries[place(recording)]
        assert (entry.captions, entry.source) == (recording.captions, recording.source)
        assert (entry.corpus, entry.split, entry.keywords) == (recording.corpus, recording.split, recording.keywords)
    assert len(entries) == sum(LITTLE.clotho) + 21 + 8 + len(planted["defects"]) + len(planted["odd"])
    assert json.loads((folder / "planted.json").read_text()) == planted


def test_planted_defects_are_what_they_are_called(layout: tuple[Path, dict[str, Any]]) -> None:
    folder, planted = layout
    file = {what: folder / name for name, what in {**planted["defects"], **planted["odd"]}.items()}
    assert not file["missing"].exists()
    assert not soundfile.read(file["silent"])[0].any() and soundfile.info(file["empty"]).frames == 0
    for what in ("corrupt", "mislabelled"):
        with pytest.raises(soundfile.LibsndfileError):
            soundfile.info(file[what])
    assert soundfile.info(file["short"]).duration < 0.1
    assert file["duplicate"].read_bytes() == (folder / place(items(LITTLE)[0][0])).read_bytes()
    assert [soundfile.info(file[what]).samplerate for what in ("8 kHz", "48 kHz")] == [8000, 48000]
    assert soundfile.info(file["stereo"]).channels == 2 and soundfile.info(file["70 s"]).duration == 70
    empty = [entry for entry in challenge(folder) if entry.file == "planted no caption.wav"]
    assert empty[0].captions == () and empty[0].source == ""


def test_files_have_the_official_form(layout: tuple[Path, dict[str, Any]]) -> None:
    folder, planted = layout
    metadata = (folder / "clotho/clotho_metadata_development.csv").read_bytes()
    assert AUTHOR.encode("latin-1") in metadata and b"Not found" in metadata
    names = (folder / "clotho/clotho_captions_development.csv").read_text().splitlines()
    assert names[0] == "file_name,caption_1,caption_2,caption_3,caption_4,caption_5"
    assert names[2].startswith('"') and "&amp;" in names[3] and names[4].startswith(" ") and ": " in names[5]
    path = folder / place(items(LITTLE)[4][0])
    assert path.exists() and ":" not in path.name and soundfile.info(path).samplerate == 44100
    flac = next((folder / "wavcaps/FreeSound").glob("*.flac"))
    assert (soundfile.info(flac).format, soundfile.info(flac).samplerate) == ("FLAC", 32000)
    table = json.loads((folder / "wavcaps/json_files/FreeSound/fsd_final.json").read_text())
    assert table["num_captions_per_audio"] == 1
    titles = {f"wavcaps/FreeSound/{item['id']}.flac": item["file_name"] for item in table["data"]}
    for name, leak in planted["leaks"].items():
        assert (folder / name).exists() and (folder / leak["of"]).exists()
        assert (f"{titles[name]}".startswith("take ")) == (leak["by"] != "name")
    assert [leak["by"] for leak in planted["leaks"].values()] == ["id", "id", "name", "sound"]


def test_an_interrupted_layout_goes_on(layout: tuple[Path, dict[str, Any]]) -> None:
    folder, planted = layout
    kept, lost = (folder / place(items(LITTLE)[number][0]) for number in (1, 2))
    before, content = kept.stat().st_mtime_ns, lost.read_bytes()
    lost.unlink()
    heard: list[tuple[int, int]] = []
    assert write_layout(LITTLE, folder, lambda done, total: heard.append((done, total))) == planted
    assert kept.stat().st_mtime_ns == before and lost.read_bytes() == content
    assert heard[-1] == (43, 43) and not list(folder.rglob(".writing*"))
