"""The leak guard finds copies by source, title, list and sound, and nothing else."""

import csv
import io
import json
import tracemalloc

import numpy as np
import pytest
import soundfile
import torch

from retable.platform.errors import UserError
from retable.tasks.audio.collect import leaks
from retable.tasks.audio.collect.files import decode
from retable.tasks.audio.collect.leaks import HeldOut, Leak
from retable.tasks.audio.collect.recordings import Recording
from retable.tasks.audio.encoders.mel import Mel


def recording(number, split, source):
    return Recording(number, f"{number}.wav", "clotho", split, source, 1.0, ("a",))


SEVERAL = [
    recording(0, "training", "freesound:7"),
    recording(1, "training", "youtube:abc@30"),
    recording(2, "training", ""),
    recording(3, "training", "freesound:70"),
    recording(4, "validation", "freesound:7"),
    recording(5, "test", "youtube:abc"),
    recording(6, "test", ""),
]


def mel_of(wave):
    with torch.no_grad():
        return Mel().eval()(torch.tensor(wave, dtype=torch.float32)[None])[0].T.numpy().astype(np.float16)


def bursts(seed, seconds):
    """Noise bursts of random colour and length."""
    rng = np.random.default_rng(seed)
    parts = []
    while sum(map(len, parts)) < seconds * 32000:
        part = rng.normal(size=rng.integers(2000, 9000))
        spectrum = np.fft.rfft(part) * np.exp(-(((np.linspace(0, 1, len(part) // 2 + 1) - rng.random()) / 0.2) ** 2))
        parts.append(np.fft.irfft(spectrum, len(part)) * rng.uniform(0.2, 1))
    wave = np.concatenate(parts)[: round(seconds * 32000)]
    return (0.3 * wave / np.abs(wave).max()).astype(np.float32)


def coded(wave, container):
    data = io.BytesIO()
    soundfile.write(data, wave, 32000, format=container)
    data.seek(0)
    return soundfile.read(data, dtype="float32")[0]


def test_equal_sources_of_training_and_held_out_recordings_are_leaks():
    assert leaks.same_source(SEVERAL) == [Leak(0, 4, "source"), Leak(1, 5, "source")]


def test_equal_titles_are_leaks_but_numbers_and_nothing_are_not():
    titles = ["rain", "12345", "", "dog barks", "12345", "", "dog barks"]
    assert leaks.same_title(SEVERAL, titles) == [Leak(3, 6, "title")]


def test_published_lists_of_both_kinds_are_read(tmp_path):
    listing = tmp_path / "blacklist_exclude_all_ac.json"
    listing.write_text(json.dumps({"AudioSet": ["Yabcdefghijk.wav"], "FreeSound": ["70", 8]}))
    assert leaks.read_exclusions(listing) == {"youtube:abcdefghijk", "freesound:70", "freesound:8"}
    assert leaks.listed(SEVERAL, leaks.read_exclusions(listing)) == [Leak(3, None, "list")]
    table = tmp_path / "ids.csv"
    table.write_text("name,sound_id\nrain,7\nwind,8\n")
    assert leaks.read_exclusions(table) == {"freesound:7", "freesound:8"}
    table.write_text("freesound_id\n7\n")
    assert leaks.read_exclusions(table) == {"freesound:7"}
    table.write_text("7\n8\n")
    assert leaks.read_exclusions(table) == {"freesound:7", "freesound:8"}
    for text in ("", "freesound_id\n"):
        table.write_text(text)
        with pytest.raises(UserError, match="no Freesound or YouTube ids"):
            leaks.read_exclusions(table)
    listing.write_text("[]")
    with pytest.raises(UserError, match="cannot be read as a list of exclusions"):
        leaks.read_exclusions(listing)


@pytest.mark.parametrize(
    "text",
    [
        "audiocap_id,youtube_id,start_time,caption\n58146,rqfQRErjfk8,170,A man talks\n97151,12345678901,30,Rain\n",
        "\ufeffYouTube_ID,audiocap_id\nrqfQRErjfk8,1\n12345678901,2\n",
        "# Segments csv created Sun Mar 5\n# num_ytids=2\n# YTID, start_seconds, end_seconds\n"
        'rqfQRErjfk8, 0.000, 10.000, "/m/03fwl"\n12345678901, 30.000, 40.000, "/m/0dl9sf8"\n',
    ],
)
def test_ids_of_youtube_are_taken_from_their_own_column(tmp_path, text):
    """AudioCaps' tables begin with numbers of their own, which are no Freesound ids."""
    table = tmp_path / "train_v2.csv"
    table.write_text(text)
    assert leaks.read_exclusions(table) == {"youtube:rqfQRErjfk8", "youtube:12345678901"}


@pytest.mark.parametrize(
    "text",
    [
        "audiocap_id;youtube_id;caption\n58146;rqfQRErjfk8;A man talks, loudly\n97151;12345678901;Rain\n",
        "audiocap_id\tyoutube_id\tcaption\n58146\trqfQRErjfk8\tA man talks\n97151\t12345678901\tRain\n",
        "caption,url\nA man talks,https://www.youtube.com/watch?v=rqfQRErjfk8&t=170\nRain,https://youtu.be/12345678901\n",
        "link\nhttps://www.youtube.com/embed/rqfQRErjfk8\nyoutube.com/shorts/12345678901?x=1\n",
        "Watch it there\nYrqfQRErjfk8.wav\nY12345678901.wav\n",
    ],
)
def test_exclusions_are_read_as_spreadsheets_and_people_write_them(tmp_path, text):
    """Such a list excluded nothing, and its recordings stayed in training."""
    table = tmp_path / "excluded.csv"
    table.write_text(text)
    assert leaks.read_exclusions(table) == {"youtube:rqfQRErjfk8", "youtube:12345678901"}


def test_urls_of_freesound_are_ids(tmp_path):
    table = tmp_path / "excluded.csv"
    table.write_text("url;by\nhttps://freesound.org/people/a_b/sounds/12345/;a\nhttps://freesound.org/s/678/;b\n")
    assert leaks.read_exclusions(table) == {"freesound:12345", "freesound:678"}


def test_a_list_most_of_which_are_no_ids_is_refused(tmp_path):
    table = tmp_path / "excluded.csv"
    table.write_text("file_name\nRain on a roof.wav\nA dog.wav\n1234.wav\n")
    with pytest.raises(UserError, match=r"excluded.csv: .*1 of 3 .*Rain on a roof.wav"):
        leaks.read_exclusions(table)
    table.write_text("id\nrain\n5\n\n6\n")  # a remark among ids
    said = []
    assert leaks.read_exclusions(table, said.append) == {"freesound:5", "freesound:6"}
    assert said == [f"{table}: 1 of 3 values are no ids and exclude nothing; the first: 'rain'"]


def test_a_published_list_says_what_in_it_are_no_ids(tmp_path):
    said, listing = [], tmp_path / "list.json"
    listing.write_text(json.dumps({"AudioSet": ["Yabcdefghijk.wav", "?", "Yabcdefghij"], "FreeSound": [7, "rain", 8]}))
    wanted = {"youtube:abcdefghijk", "youtube:Yabcdefghij", "freesound:7", "freesound:8"}
    assert leaks.read_exclusions(listing, said.append) == wanted
    assert said == [f"{listing}: 2 of 6 values are no ids and exclude nothing; the first: '?'"]
    listing.write_text(json.dumps({"FreeSound": ["rain", "wind", 8]}))
    with pytest.raises(UserError, match=r"list.json: .*only 1 of 3 values .* 'rain' is none"):
        leaks.read_exclusions(listing)


@pytest.mark.parametrize("text", ['{"AudioSet": null}', '{"FreeSound": 7}', '{"FreeSound": {"a": 1}}', "[" * 100_000])
def test_json_of_another_form_is_one_line(tmp_path, text):
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(UserError, match=r"list.json: cannot be read as a list of exclusions") as caught:
        leaks.read_exclusions(tmp_path / "list.json")
    assert "\n" not in str(caught.value)


def test_a_quote_that_is_not_closed_swallows_no_ids(tmp_path):
    table = tmp_path / "list.csv"
    table.write_text('freesound_id,title\n1,rain\n2,"a dog\n3,wind\n4,hail\n')
    with pytest.raises(UserError, match=r"list.csv: cannot be read as a list .*\(line 3: .* is not closed"):
        leaks.read_exclusions(table)


def test_a_table_with_other_ids_alone_is_refused(tmp_path):
    table = tmp_path / "train.csv"
    table.write_text("audiocap_id,caption\n58146,A man talks\n")
    with pytest.raises(UserError, match="no Freesound or YouTube ids"):
        leaks.read_exclusions(table)


def test_fingerprint_equals_a_naive_one():
    mel = np.random.default_rng(1).normal(-3, 2, (60, 128)).astype(np.float32)
    bits, margins, loud = leaks.fingerprint(mel)

    def energy(frame, group):
        bands = range(14 + 3 * group, 17 + 3 * group)
        return np.log(sum(np.exp(np.float64(mel[frame + n, band])) for n in range(37) for band in bands))

    assert len(bits) == 60 - 37 + 1 - 8
    for frame in (0, 7, 15):
        rises = [
            energy(frame + 8, m) - energy(frame + 8, m + 1) - (energy(frame, m) - energy(frame, m + 1))
            for m in range(32)
        ]
        assert [bool(bits[frame] >> m & 1) for m in range(32)] == [rise > 0 for rise in rises]
        assert np.allclose(margins[frame], np.abs(rises))
    assert loud.all()
    assert not leaks.fingerprint(np.full((60, 128), np.log(1e-5)))[2].any()


@pytest.mark.parametrize(
    "container", [pytest.param("OGG", marks=pytest.mark.slow), "MP3", pytest.param("WAV", marks=pytest.mark.slow)]
)
def test_cropped_quieter_and_encoded_copies_are_found(container):
    held = [bursts(seed, 6) for seed in range(4)]
    known = HeldOut((10 + number, mel_of(wave)) for number, wave in enumerate(held))
    for number, wave in enumerate(held):
        start = 20_001 + 7777 * number
        copy = coded(0.4 * wave[start : start + 100_000], container)
        assert known.find(mel_of(copy)) == 10 + number
        embedded = np.concatenate([bursts(90 + number, 3), copy, bursts(80 + number, 2)])
        assert known.find(mel_of(embedded)) == 10 + number


def test_other_sounds_silence_and_what_is_too_short_match_nothing():
    tone = 0.1 * np.sin(np.arange(96000) * 0.1)
    held = [*(bursts(seed, 4) for seed in range(3)), np.zeros(96000), tone]
    known = HeldOut((number, mel_of(wave)) for number, wave in enumerate(held))
    for other in [*(bursts(100 + seed, 8) for seed in range(6)), np.zeros(96000), held[0][:20000], held[0][:500]]:
        assert known.find(mel_of(other)) is None
    assert HeldOut(iter(())).find(mel_of(held[0])) is None


def test_a_steady_tone_is_compared_in_little_memory():
    """Each of its frames is like each: memory grew with the square of its length, to 6 GB for 300 s."""
    mel = mel_of(0.1 * np.sin(np.arange(60 * 32000) * np.pi / 16))
    known = HeldOut([(5, mel)])
    tracemalloc.start()
    assert known.find(mel) == 5
    assert tracemalloc.get_traced_memory()[1] < 64e6
    tracemalloc.stop()


@pytest.mark.slow
def test_real_recordings_match_their_copies_only(shared):
    folder = shared / "data/audio/esc10"
    if not folder.exists():
        pytest.skip("ESC-10 is not there")
    rows = list(csv.DictReader((folder / "esc10.csv").read_text(encoding="utf-8").splitlines()))
    held = [row["filename"] for row in rows if row["fold"] == "1"][::3]
    others = [row["filename"] for row in rows if row["fold"] == "2"][::3]  # clips of one source share a fold
    waves = {name: decode(folder / "audio" / name) for name in (*held, *others)}
    known = HeldOut((number, mel_of(waves[name])) for number, name in enumerate(held))
    assert all(known.find(mel_of(waves[name])) is None for name in others)
    copies = [known.find(mel_of(coded(0.5 * waves[name][16_123:], "OGG"))) for name in held]
    loud = [leaks.fingerprint(mel_of(waves[name][16_123:]))[2].sum() > 200 for name in held]  # of 450: 2 s
    right = [found == number for number, (found, is_loud) in enumerate(zip(copies, loud, strict=True)) if is_loud]
    assert len(right) > 10
    assert np.mean(right) > 0.9
    assert all(found in (None, number) for number, found in enumerate(copies))
