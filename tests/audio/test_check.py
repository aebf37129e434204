"""Every planted defect is named, and nothing that is fine."""

import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from retable.tasks.audio.collect.files import SUFFIXES
from retable.tasks.audio.collect.recordings import Recording, write_dataset
from retable.tasks.audio.prepare.check import check
from tests.audio.test_files import piped


def noise(seed, seconds=0.3, level=0.1):
    return np.random.default_rng(seed).uniform(-level, level, round(seconds * 32000)).astype(np.float32)


@pytest.fixture
def sounds(tmp_path):
    """A folder of good sounds of all kinds."""
    folder = tmp_path / "sounds"
    folder.mkdir()
    for seed, name in enumerate(("a, b.wav", "ü &amp; c.flac", "d.ogg", "e.mp3")):
        soundfile.write(folder / name, noise(seed), 32000)
    soundfile.write(folder / "stereo.wav", np.stack([noise(9), noise(8)], 1), 8000)
    return folder


def test_good_sounds_are_fine(sounds):
    shown = []
    assert check(sounds, lambda done, total: shown.append((done, total))) == []
    assert shown[-1] == (5, 5)


def test_each_defect_is_one_line_that_names_its_file(sounds, tmp_path):
    soundfile.write(sounds / "silent.wav", np.zeros(9999), 32000)
    soundfile.write(sounds / "short.wav", noise(20, 0.05), 32000)
    soundfile.write(sounds / "clipped.wav", np.sign(noise(21)), 32000)
    soundfile.write(sounds / "anti.wav", np.stack([noise(24), -noise(24)], axis=1), 32000)
    soundfile.write(sounds / "twin.flac", soundfile.read(sounds / "a, b.wav", dtype="int16")[0], 32000)
    soundfile.write(sounds / "labelled.flac", noise(22), 32000)
    (sounds / "labelled.flac").rename(sounds / "labelled.wav")
    (sounds / "text.mp3").write_text("not found")
    (sounds / "empty.wav").write_bytes(b"")
    piped(sounds / "piped.flac", noise(23))  # all of which is read
    wanted = {
        "silent.wav": "silent",
        "short.wav": "too short (0.050 s",
        "clipped.wav": "clipped: 100%",
        "anti.wav": "its channels cancel each other",
        "twin.flac": "the same sound as",
        "labelled.wav": "mislabelled, it is FLAC",
        "text.mp3": "mislabelled, it is text",
        "empty.wav": "empty (0 bytes)",
    }
    found = check(sounds)
    assert len(found) == len(wanted)
    for name, said in wanted.items():
        assert sum(line.startswith(f"{sounds}/{name}: ") and said in line for line in found) == 1
    assert check(tmp_path / "nothing") == [f"{tmp_path}/nothing: no recordings ({', '.join(SUFFIXES)})"]


def test_tables_are_checked_with_what_they_list(sounds):
    table = sounds / "captions.csv"
    lines = ["file,caption,source,split", '"a, b.wav",x,freesound:1@0,training', "d.ogg,,,", "away.wav,y,,"]
    table.write_text("\n".join([*lines, "e.mp3,z,freesound:1@10,test"]) + "\n")
    for found in (check(sounds), check(table)):
        assert len(found) == 3
        assert "d.ogg: no caption" in found[0]
        assert found[1].startswith("away.wav: missing")
        assert "of the test set, from freesound:1@10 as a, b.wav of the training set" in found[2]
    table.write_text("file,caption,split\nd.ogg,x,middle\n")
    assert check(table) == [f"{table}: there is no split 'middle'; write training, validation or test"]


@pytest.mark.parametrize("kept", ["waveform", "mel"])
def test_a_data_set_is_checked_against_its_own_description(storage, kept):
    folder = storage / "data/audio/set"
    splits = ["training", "training", "validation", "test"]
    items = [
        (Recording(n, f"{n}.wav", "clotho", split, "", 0.3, (f"caption {n}",)), lambda n=n: noise(max(n, 1)))
        for n, split in enumerate(splits)
    ]
    write_dataset(folder, "set", "own", kept, items[1:])
    assert check(folder) == []
    info = write_dataset(folder, "set", "own", kept, items)
    assert check(folder) == [f"{folder}: 1.wav: the same sound as 0.wav"]
    silent = [*items[1:], (replace(items[0][0], recording=4, split="test"), lambda: np.zeros(9600, np.float32))]
    write_dataset(folder, "set", "own", kept, silent)
    assert check(folder) == [f"{folder}: 0.wav: silent; make or import it again"]
    write_dataset(folder, "set", "own", kept, items)
    folder.remove("audio/test-00000.parquet")
    found = check(folder)
    assert len(found) == 2
    assert f"{folder}/audio/test-00000.parquet: missing" in found[1]
    folder.write("dataset.json", json.dumps({**info, "digest": "0"}))
    assert "belongs to another recordings.parquet" in check(folder)[0]
    folder.write("dataset.json", "[]")
    assert "not a data set's" in check(folder)[0]
