import importlib.util
import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from retable.platform.errors import UserError
from retable.tasks.audio.cli import app
from retable.tasks.audio.config import SAMPLE_RATE
from retable.tasks.audio.encoders import checkpoints
from retable.tasks.audio.tools.challenge import submission
from retable.tasks.audio.tools.search import hits, opening
from tests.json_page import SECTIONS, differences


class Toy:
    """Hears how loud a sound is."""

    segment = 1.0
    dimension = 2
    network, scale, anchors = "a network", "small", None

    def __init__(self, name):
        self.source, self.fingerprint = name, name * 16
        self.score = {"metric": "class mAP", "value": 0.7, "low": 0.6, "high": 0.8, "chance": 0.14, "on": "some fold"}

    def sounds(self, segments):
        loud = np.array([np.abs(segment).max() for segment in segments])
        return np.stack([loud, np.sqrt(1 - loud**2)], 1).astype(np.float32)

    def words(self, captions):
        """Return what is loud as such; all other words are alike, and no sound is near to them."""
        return np.array([[1, 0] if "loud" in caption else [-0.5, 0.75**0.5] for caption in captions], np.float32)


@pytest.fixture
def audio(tmp_path, monkeypatch):
    """Call `retable audio ...` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        opening, "open_embedder", lambda name, storage, device="", words_alone=False, say=None: Toy(name)
    )
    Path("in").mkdir()
    for name, peaks in {"Rain &amp; wind, 1.wav": [0.1], "[red]Hund.wav": [0.1] * 70 + [0.9]}.items():
        wave = np.concatenate([peak * np.sign(np.sin(np.arange(SAMPLE_RATE) / 9)) for peak in peaks])
        soundfile.write(Path("in", name), wave.astype(np.float32), SAMPLE_RATE)

    def call(*words, typed=None):
        words = [str(word) for word in words]
        return CliRunner().invoke(app, words, typed, env={"COLUMNS": "160"}, catch_exceptions=True)

    return call


def refused(found):
    assert isinstance(found.exception, UserError), found.output
    assert "\n" not in str(found.exception)
    return str(found.exception)


def test_index_and_search(audio):
    assert "or a model of `retable zoo audio`" in refused(audio("index", "in"))
    Path("in/letter.mp3").write_text("Dear Sir")
    made = audio("index", "in", "--model", "one", "--out", "my index")
    assert made.exit_code == 0, made.output
    assert "my index: 2 files, 72 segments of 1 s" in made.output and "exact search" in made.output
    assert "the model: class mAP 0.70 [0.60, 0.80], by chance 0.14; some fold" in made.output
    assert f"left out: {Path('in/letter.mp3').absolute()}" in made.output and re.search(
        r"2 embedded \([\d,]+ files/s\), 0 known by their content, 0 removed, 1 left out", made.output
    )
    found = audio("search", "something loud", "--index", "my index").output.splitlines()
    assert len(found) == 2 and found[0].endswith("1:10  [red]Hund.wav") and found[0].split()[0] == "0.900"
    assert found[1].endswith("0:00  Rain &amp; wind, 1.wav")
    again = audio("index", "in", "--out", "my index")  # the model is known
    assert "0 embedded, 0 known by their content, 0 removed, 1 left out" in again.output
    said = json.loads(audio("search", "--like", "in/Rain &amp; wind, 1.wav", "-i", "my index", "--json").output)
    assert said["hits"][0]["score"] == pytest.approx(1, abs=1e-4) and said["folder"].endswith("/in")
    assert len(json.loads(audio("search", "x", "-i", "my index", "--json", "--top", "1").output)["hits"]) == 1
    assert "was made with the model one" in refused(audio("search", "x", "-i", "my index", "--model", "two"))
    assert "was made with the model one" in refused(audio("index", "in", "--model", "two", "--out", "my index"))
    assert "nothing to search for" in refused(audio("search", "-i", "my index"))
    assert "no index" in refused(audio("search", "x", "-i", "other"))


def test_a_page_plays_the_hits(audio):
    audio("index", "in", "--model", "one")
    Path("pages").mkdir()
    found = audio("search", 'so "loud" <b>', "--page", "pages/hits.html")
    assert found.exit_code == 0 and found.output.splitlines()[-1] == "pages/hits.html"
    page = Path("pages/hits.html").read_text()
    addresses = re.findall('<audio[^>]* src="([^"#]+)#t=([0-9.]+),([0-9.]+)"', page)
    assert addresses[0][1:] == ("70.0", "71.0") and len(addresses) == 2
    for address, *_ in addresses:
        assert (Path("pages") / unquote(address)).is_file()
    assert "<h1>so &#34;loud&#34; &lt;b&gt;</h1>" in page and "<b>[red]Hund.wav</b>" in page
    assert '"so \\"loud\\" \\u003cb\\u003e"' in page  # in the script


def test_a_shell_answers_line_by_line(audio):
    audio("index", "in", "--model", "one")
    found = audio("shell", "--top", "1", typed="something loud\n\n...\nsilence\n")
    assert found.exit_code == 0
    lines = [line for line in found.output.splitlines() if line]
    assert lines[0] == "index: 2 recordings; what is to be heard?"
    assert lines[1].endswith("1:10  [red]Hund.wav") and "nothing to search for" in lines[2]
    assert lines[3].startswith("perhaps not here: words at random find as much in ")
    assert lines[4].endswith("Rain &amp; wind, 1.wav") and len(lines) == 5


def test_a_number_of_thousands_of_digits_ends_no_shell(audio):
    audio("index", "in", "--model", "one")
    number = "9" * 5000  # more than Python makes a number of
    found = audio("shell", "--top", "1", typed=f"{number}\n+{number}\n-{number}\nsomething loud\n")
    assert found.exit_code == 0, found.exception
    assert "[red]Hund.wav" in found.output.splitlines()[-2]


def test_a_line_that_is_not_utf8_ends_no_shell(audio):
    audio("index", "in", "--model", "one")
    found = audio("shell", "--top", "1", typed=b"M\xfcnster\nsomething loud\n")
    lines = [line for line in found.output.splitlines() if line]
    assert found.exit_code == 0, found.output
    assert lines[1].startswith("'M\\udcfcnster': not UTF-8; ") and lines[2].endswith("1:10  [red]Hund.wav")


def test_hits_are_marked_and_written_as_pairs(audio):
    audio("index", "in", "--model", "one")
    found = audio("shell", typed="+1\nsomething loud\n+1\n-2\n+3\n?!\n+2\n")
    lines = found.output.splitlines()
    assert found.exit_code == 0 and "hit 1: the last query has 0" in lines and "hit 3: the last query has 2" in lines
    assert "good: [red]Hund.wav" in lines and "bad: Rain &amp; wind, 1.wav" in lines
    assert lines[-1] == "good: Rain &amp; wind, 1.wav"  # of the words before, as nothing was asked for since
    marked = audio("search", "loud", "--good", "1", "--bad", "2").output.splitlines()
    assert marked[-1] == "2 marked; to fine-tune on them: retable audio pairs index FILE.csv"
    assert "--good 1 --bad 1: a hit is good or bad" in refused(audio("search", "loud", "--good", "1", "--bad", "1"))
    assert "hit 7: the last query has 2" in refused(audio("search", "loud", "--good", "1", "--good", "7"))
    for words in ((), ("...",)):
        assert "a hit is marked for words" in refused(
            audio("search", *words, "--like", "in/[red]Hund.wav", "--good", "1")
        )
    assert "call it pairs.csv" in refused(audio("pairs", "index", "pairs.txt"))
    made = audio("pairs", "index", "good.csv")
    assert made.output.strip() == "good.csv: 3 pairs; 1 marked as bad are left out"
    assert Path("good.csv").read_text().count("something loud") == 2


def test_json_and_play_exclude_each_other(audio):
    assert "--json and --play are mutually exclusive" in refused(audio("search", "loud", "--json", "--play"))


def test_a_hit_is_played_from_its_second(audio, tmp_path, monkeypatch):
    """By a player of ours, which keeps what it is given to play."""
    audio("index", "in", "--model", "one")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "no player is there (ffplay, aplay, afplay)" in refused(audio("search", "something loud", "--play"))
    (tmp_path / "bin").mkdir()
    player = tmp_path / "bin/aplay"
    player.write_text('#!/bin/sh\ncd "$(dirname "$0")/.."\n/bin/cp "$2" played.wav\n/bin/echo "$@" >> said\n')
    player.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: str(player) if name == "aplay" else None)
    assert audio("search", "something loud", "--play").exit_code == 0
    whole = soundfile.read("in/[red]Hund.wav")[0]
    assert np.allclose(soundfile.read("played.wav")[0], whole[70 * SAMPLE_RATE :], atol=1e-4)
    Path("played.wav").unlink()
    found = audio("shell", typed="something loud\n2\n7\n")
    assert found.exit_code == 0 and len(Path("said").read_text().splitlines()) == 2
    quiet = soundfile.read("in/Rain &amp; wind, 1.wav")[0]
    assert np.allclose(soundfile.read("played.wav")[0], quiet[:SAMPLE_RATE], atol=1e-4)


def test_what_is_not_there_is_said(audio):
    audio("index", "in", "--model", "one")
    found = audio("search", "silence", "--page", "hits.html").output.splitlines()
    assert found[0].startswith("perhaps not here") and found[-1] == "hits.html"
    assert [line.split()[-1] for line in found[1:-1]] == ["1.wav", "[red]Hund.wav"]
    page = Path("hits.html").read_text()
    assert "perhaps not here" in page and page.count("<audio") == 2 and "<details" not in page
    said = json.loads(audio("search", "silence", "--json").output)
    assert said["verdict"] == "doubtful" and said["p"] > 0.2 and len(said["hits"]) == 2
    said = json.loads(audio("search", "loud", "--json").output)
    assert said["verdict"] == "found" and said["p"] <= 0.05
    assert not differences(said, SECTIONS["retable audio search --json"])
    apart = json.loads(audio("search", "silence", "--not", "a hum", "--json").output)
    assert apart["p"] is apart["verdict"] is None  # the vector is no sentence's
    assert "perhaps" not in audio("search", "silence", "--not", "a hum").output
    like = json.loads(audio("search", "loud", "--like", "in/[red]Hund.wav", "--json").output)
    assert like["p"] is like["verdict"] is None  # what sounds like a recording is not judged


def test_hits_are_filtered_by_length_folder_and_name(audio):
    for path in ("in/deep/DOORWood_Cupboard Squeak_JD_LIB.wav", "in/deep/er/x.wav"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        peak = 0.2 if "x" in path else 0.3
        soundfile.write(path, np.full(3 * SAMPLE_RATE, peak, np.float32), SAMPLE_RATE)
    audio("index", "in", "--model", "one")

    def files(*options):
        return {hit["file"] for hit in json.loads(audio("search", "loud", "--json", *options).output)["hits"]}

    door, deep, dog = "deep/DOORWood_Cupboard Squeak_JD_LIB.wav", "deep/er/x.wav", "[red]Hund.wav"
    assert files("--min-seconds", "2.5") == {door, deep, dog} and files("--min-seconds", "60") == {dog}
    assert files("--under", "deep") == {door, deep} == files("--under", str(Path("in/deep").absolute()))
    assert files("--name", "hund") == {dog} and files("--name", "*.WAV", "--under", "deep/er") == {deep}
    assert files("--name", "nothing of that") == set()
    for options in (["--under", "../x"], ["--name", "nothing of that"], ["--min-seconds", "60", "--under", "deep"]):
        none = audio("search", "loud", *options, "--page", "hits.html", "--overwrite")
        line = f"no recording of the index passes {' '.join(map(str, options))}"
        assert none.output.splitlines() == [line, "hits.html"] and none.exit_code == 0
        assert line in Path("hits.html").read_text()
    line = audio("search", "loud", "--name", "squeak").output.splitlines()[-1]
    assert line.endswith(f"{door}  [DOORWood, Cupboard Squeak]")
    assert "tags" in audio("search", "loud", "--json").output


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("DOORWood_Cupboard Squeak_JD_LIB.wav", ("DOORWood", "Cupboard Squeak")),
        ("AMBForst-NIGHT_Owls Far_JD_LIB_extra.flac", ("AMBForst", "Owls Far")),
        ("UIClick_Button 3_JD_NONE.wav", ("UIClick", "Button 3")),
        ("IMG_2023_10_11.wav", ()),
        ("VID_20231011_123000_a.mp4", ()),
        ("REC_Take_One_Left.wav", ()),
        ("ZOOM0001_Tr1_a_b.wav", ()),
    ],
)
def test_only_names_of_the_universal_category_system_are_tags(name, wanted):
    assert hits.tags(f"deep/{name}") == wanted


def test_words_to_avoid_turn_the_order(audio):
    audio("index", "in", "--model", "one")
    first, second = (line.split()[-1] for line in audio("search", "loud").output.splitlines())
    turned = [line.split()[-1] for line in audio("search", "silence", "--not", "loud").output.splitlines()]
    assert (first, second) == ("[red]Hund.wav", "1.wav") and turned == ["1.wav", "[red]Hund.wav"]
    both = json.loads(audio("search", "loud", "--not", "loud", "--json").output)["hits"][0]
    assert both["score"] == pytest.approx(0.9, abs=0.01)  # half of it is taken off, and the length is 1 again


def test_a_recording_of_the_index_is_most_like_itself(audio):
    """The mean of its 71 segments lies nearest to another file: it is the first hit all the same."""
    audio("index", "in", "--model", "one")
    like = json.loads(audio("search", "--like", "in/[red]Hund.wav", "--json").output)["hits"]
    assert [hit["file"] for hit in like] == ["[red]Hund.wav", "Rain &amp; wind, 1.wav"] and like[0]["score"] == 1


def test_a_page_draws_waves_and_copies_paths(audio):
    audio("index", "in", "--model", "one")
    audio("search", "loud", "--page", "hits.html")
    page = Path("hits.html").read_text()
    waves = re.findall('<rect x="([0-9.]+)" width="([0-9.]+)" height="20"/><path d="(M[^"]+)"', page)
    assert len(waves) == 2 and all(len(path.split("M")) == 101 for _, _, path in waves)
    assert float(waves[0][0]) == pytest.approx(81.8, abs=0.1)  # second 70 of the 65.5 to 71 that are drawn
    assert f'data-path="{Path("in").absolute()}/[red]Hund.wav"' in page
    Path("in/[red]Hund.wav").write_text("gone")
    assert audio("search", "loud", "--page", "hits.html", "--overwrite").exit_code == 0
    assert Path("hits.html").read_text().count("<rect") == 1


def test_kinds(audio):
    for kind in ("sq8", "hnsw", "ivf"):
        assert (
            f"{kind}: the index finds 100.0% of the ten nearest"
            in audio("index", "in", "--model", "one", "--kind", kind).output
        )
    found = audio("search", "loud").output
    assert "Hund" in found.splitlines()[0]


def test_weights_and_submit(audio, monkeypatch):
    def imported(file, storage, part, say):
        say("holds two networks")
        return f"{file.stem}{part} in {Path(storage.root).name}"

    monkeypatch.setattr(checkpoints, "import_file", imported)
    made = audio("weights", "passt.pt", "--storage", "here", "--part", "_swa")
    assert made.stdout.strip() == "--set audio.weights=passt_swa in here"
    assert made.stderr.strip() == "note: holds two networks"
    given = []
    monkeypatch.setattr(submission, "submit", lambda *words: given.append(words) or ["left out: 00.wav: is empty"])
    found = audio("submit", "one", "two", "--captions", "c.csv", "--audio", "in", "-o", "out.csv")
    assert found.output.splitlines()[-2:] == ["out.csv", "left out: 00.wav: is empty"]
    assert given[0][0] == ["a network"] * 2 and given[0][1:4] == (Path("c.csv"), Path("in"), Path("out.csv"))


def test_augment_takes_one_provider(audio):
    assert "name one of" in refused(audio("augment", "mine"))
    assert "name one of" in refused(audio("augment", "mine", "--rules", "keywords", "--model", "m"))


@pytest.mark.parametrize(
    "command", ["index", "search", "shell", "pairs", "finetune", "weights", "augment", "submit", "export"]
)
def test_help_has_an_example(audio, command):
    found = audio(command, "--help")
    assert found.exit_code == 0 and f"Example: `retable audio {command}" in " ".join(found.output.split())


def test_help_imports_nothing_heavy():
    """`retable --help` must stay quick: torch and FAISS are imported by the commands that need them."""
    import subprocess
    import sys

    code = (
        "import sys, retable.tasks.audio.cli; print([m for m in ('faiss', 'transformers', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert importlib.util.find_spec("faiss")
