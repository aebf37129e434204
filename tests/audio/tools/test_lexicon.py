"""Words that a model was not trained on: endings, typing errors, anchors, and that files carry them."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.torch import load, save
from typer.testing import CliRunner

from retable.platform.errors import UserError
from retable.platform.models.zoo import zoo
from retable.platform.store.storage import Storage
from retable.tasks.audio.cli import app
from retable.tasks.audio.export import read_export, with_anchors, without_anchors
from retable.tasks.audio.prepare.importer import import_own
from retable.tasks.audio.prepare.prepare import folder as data_folder
from retable.tasks.audio.tools.embed import lexicon
from retable.tasks.audio.tools.embed.lexicon import PREFIX, Anchors, anchors_of, table
from retable.tasks.audio.tools.embed.words import read_words
from retable.tasks.audio.tools.search import anchors as fitting
from retable.tasks.audio.tools.search.anchors import GENERATOR, fit, sentences
from retable.tasks.audio.tools.search.opening import open_embedder
from retable.tasks.audio.world.captions import LEXICON


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dog", "dog"),
        ("helicopter", "helicopter"),
        ("helicoper", "helicopter"),
        ("hellicopter", "helicopter"),
        ("rooosters", "roosters"),
        ("clokc", "clock"),
        ("chiansaw", "chainsaw"),
        ("chainsaws", "chainsaw"),
        ("stridulating", "stridulate"),
        ("barkiing", "barking"),
        ("qzxjwv", None),
        ("zq", None),
    ],
)
def test_a_word_is_found_by_its_ending_or_as_a_typing_error(typed, meant):
    place = table().find(typed)
    found = None if place is None else table().words[place]
    if meant is None:
        assert found is None
    else:
        assert found is not None and found.rstrip("s") == meant.rstrip("s")


def test_two_errors_are_found_as_by_writing_down_all_of_them():
    words, rng = table(), np.random.default_rng(0)
    common = [word for place, word in enumerate(words.words[:3000]) if words.weights[place] >= lexicon.COMMON]
    typed = ["xqzwvkj", "gitarre"]
    for word in rng.choice([word for word in common if 6 <= len(word) <= 9], 6):
        letters = list(str(word))
        for place in rng.choice(len(letters) - 1, 2, replace=False):
            letters[place] = rng.choice(list("abcdefghijklmnopqrstuvwxyz"))
        typed.append("".join(letters))
    for word in typed:
        if words.find(word) == words.places.get(word) is not None or words._known(lexicon.neighbours(word)):
            continue
        written = {other for form in lexicon.neighbours(word) for other in lexicon.neighbours(form)}
        assert words.find(word) == min(words._known(written), default=None), word


def test_a_search_of_words_that_nobody_knows_takes_no_time():
    """Twenty-three of them took a server's core for twelve seconds."""
    rng = np.random.default_rng(0)
    caption = " ".join("".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 12)) for _ in range(23))
    table().vector("helycoptre")
    begun = time.process_time()
    table().vector(caption)
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("length", [16, 40, 300])
def test_a_long_word_that_nobody_knows_is_passed_over_at_once(length):
    """All of its double errors were written down: gigabytes for a word of 100 letters."""
    begun = time.monotonic()
    assert lexicon.table().find("q" * length) is None and time.monotonic() - begun < 1


def test_words_of_one_meaning_lie_near_each_other():
    def cosine(one, other):
        return float(table().vector(one) @ table().vector(other))

    for one, same, other in (
        ("baby", "infant", "engine"),
        ("chopper", "helicopter", "sneeze"),
        ("surf", "waves", "dog"),
    ):
        assert cosine(one, same) > cosine(one, other) + 0.1
    assert cosine("a dog barks", "the dog, barking!") > 0.9  # words that say little count little
    assert not table().vector("qzxjwv 雨").any()
    assert np.linalg.norm(table().vector("rain")) == pytest.approx(1)


def test_every_word_stands_once():
    words = table().words
    assert len(words) == len(set(words)) == len(table().vectors) and "sneeze" in words


def made(own=frozenset({"dog", "barks"})):
    words = np.stack([table().vector("dog barks"), table().vector("baby crying")]).astype(np.float32)
    return Anchors(words, np.eye(2, 3, dtype=np.float32), own)


def test_unknown_words_are_searched_at_their_anchor_and_known_ones_half_as_the_model_says():
    model = np.tile(np.array([[0, 0, 1]], np.float32), (3, 1))
    known, strange, empty = made().blend(["dog barks", "an infant crying", "雨"], model)
    assert known == pytest.approx([2**-0.5, 0, 2**-0.5], abs=0.02)
    assert strange == pytest.approx([0, 1, 0], abs=0.05)
    assert (empty == model[0]).all()  # nothing is known of it: as the model says
    assert made().known("a dog yaps") == 0.5


def test_anchors_travel_in_a_file_that_keeps_its_fingerprint(tmp_path):
    shipped = zoo("audio")["passt-scenes"]
    data = shipped.read_bytes()
    bare = save({n: t for n, t in load(data).items() if not n.startswith(PREFIX)}, lexicon_metadata(data))
    (tmp_path / "bare.safetensors").write_bytes(bare)
    (tmp_path / "own.safetensors").write_bytes(with_anchors(bare, made_of(128)))
    plain, own = (read_words(tmp_path / f"{name}.safetensors") for name in ("bare", "own"))
    assert plain.anchors is None and own.anchors is not None and plain.fingerprint == own.fingerprint
    captions = ["a dog barks", "whirlybird", "an infnat"]
    whole = open_embedder(str(tmp_path / "own.safetensors"), Storage.open(tmp_path), words_alone=True)
    np.testing.assert_allclose(own.words(captions), whole.words(captions), atol=1e-5)
    assert np.abs(own.words(captions) - plain.words(captions)).max() > 0.1
    assert whole.fingerprint == own.fingerprint


def lexicon_metadata(data):
    from retable.platform.store.weights import metadata

    return metadata(data)


def made_of(dimension):
    rng = np.random.default_rng(0)
    sounds = rng.normal(size=(2, dimension)).astype(np.float32)
    return Anchors(made().words, sounds / np.linalg.norm(sounds, axis=1, keepdims=True), frozenset({"dog"}))


def test_anchors_that_are_not_whole_are_one_line(tmp_path):
    data = zoo("audio")["passt-scenes"].read_bytes()
    tensors = load(data)
    tensors.pop(f"{PREFIX}sounds")
    with pytest.raises(UserError, match=r"lexicon\.sounds"):
        read_export(save(tensors, lexicon_metadata(data)), "broken")
    with pytest.raises(ValueError, match="do not fit"):
        anchors_of({**made().tensors(), f"{PREFIX}words": np.ones((2, 5), np.float32)})
    assert anchors_of({}) is None


class Model:
    """Embeds words by whether they name a dog."""

    anchors = None

    def words(self, captions):
        return np.array([[1.0, 0.0] if "dog" in caption else [0.6, 0.8] for caption in captions], np.float32)


def test_an_anchor_is_where_recordings_of_the_class_lie_else_where_its_words_do(monkeypatch):
    monkeypatch.setattr("retable.tasks.audio.tools.search.anchors.replace", lambda model, **changes: model)
    heard = {"baby": [np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)]}  # its second segment is nearer to the words
    anchors = fit(Model(), heard, GENERATOR)
    names = list(LEXICON)
    assert anchors.sounds[names.index("baby")] == pytest.approx([0, 1])
    assert anchors.sounds[names.index("rain")] == pytest.approx([0.6, 0.8])
    assert "cockerel" in anchors.own and len(sentences(LEXICON["dog"])) == 30
    assert anchors.words.shape == (len(LEXICON), table().vectors.shape[1])


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A model, labelled recordings of two known classes and of another one, and a data set with a violin."""
    monkeypatch.chdir(tmp_path)
    Path("model.safetensors").write_bytes(without_anchors(zoo("audio")["passt-scenes"].read_bytes()))
    Path("esc").mkdir()
    lines = ["filename,fold,category"]
    for number, category in enumerate(("dog", "dog", "rain", "siren", "dog")):
        name, fold = f"{number}.wav", 5 if number == 4 else 1
        soundfile.write(Path("esc", name), np.random.default_rng(number).normal(0, 0.1, 32_000), 32_000)
        lines.append(f"{name},{fold},{category}")
    Path("esc/esc.csv").write_text("\n".join(lines) + "\n")
    Path("mine.csv").write_text("file,caption,split\nesc/0.wav,A violin plays,training\nesc/1.wav,Cellos,test\n")

    def call(*words):
        return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"}, catch_exceptions=True)

    return call


def test_anchors_of_ones_own_model_know_the_words_that_it_was_trained_on(own):
    import_own(Path("mine.csv"), data_folder(Storage.open("results"), "mine"), "mine")
    made = own("anchors", "model.safetensors", "esc", "--data", "mine")
    assert made.exit_code == 0, made.output
    anchors = read_export(Path("model.safetensors").read_bytes(), "").anchors
    assert anchors.own == {"a", "violin", "plays"}  # no word of the test, and none that was not seen
    assert anchors.known("a violin") == 1 and anchors.known("a cello") == 0
    assert "recordings of dog (2), rain (1)" in made.output and "of no known class, not used: siren (1)" in made.output
    assert "3 words count as trained on: those of mine" in made.output


def test_without_a_data_set_the_words_of_the_generator_count_and_that_is_said(own):
    made = own("anchors", "model.safetensors", "esc")
    anchors = read_export(Path("model.safetensors").read_bytes(), "").anchors
    assert anchors.own == GENERATOR and "those of the generator; name others by --data" in made.output


def test_without_a_data_set_the_file_says_which_folds_are_left_out(own, monkeypatch):
    found = read_export(Path("model.safetensors").read_bytes(), "")
    monkeypatch.setattr(fitting, "read_export", lambda data, name: replace(found, about={"test_folds": [1]}))
    made = own("anchors", "model.safetensors", "esc")
    assert "anchors by recordings of dog (1);" in made.output.replace("\n", " "), made.output


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["mine.csv", "esc"], "mine.csv: no model of this task"),
        (["nothing.safetensors", "esc"], "nothing.safetensors: No such file"),
        (["model.safetensors", "nowhere"], "nowhere: 0 CSV files"),
        (["model.safetensors", "esc", "--data", "other"], "other"),
    ],
)
def test_a_mistake_in_fitting_anchors_is_one_line_and_changes_nothing(own, words, line):
    before = Path("model.safetensors").read_bytes()
    made = own("anchors", *words)
    assert isinstance(made.exception, UserError) and line in str(made.exception) and "\n" not in str(made.exception)
    assert Path("model.safetensors").read_bytes() == before


def test_the_table_is_small():
    assert Path(lexicon.FILE).stat().st_size < 5e6
