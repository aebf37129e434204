"""How the table of word vectors is made; the whole of it was made again by hand, from the encoder and WordNet 3.1."""

import numpy as np
from safetensors.numpy import load_file

from benchmarks import audio_lexicon
from retable.tasks.audio.tools.embed import lexicon

SENSES = """\
aardvark%1:05:00:: 1 1 0
anode%1:06:00:: 2 1 66
the%1:10:00:: 3 1 9
bel%1:23:00:: 4 1 0
bell%1:06:00:: 5 1 2
bell%1:14:00:: 6 2 7
abrasion%1:04:00:: 7 1 0
abrasion%1:11:00:: 8 2 0
containerization%1:04:00:: 9 1 5
sledgehammer%1:06:00:: 10 1 0
sledgehammer%2:35:00:: 11 1 0
wheel_lock%1:06:00:: 12 1 3
cobblestone%1:06:00:: 13 1 0
""".splitlines()


def test_words_are_the_vocabularys_then_wordnets_by_use_then_those_of_captions():
    """Of WordNet: attested and not too long, or a thing, an animal, an event or a motion by its first meaning."""
    listed, frequent = audio_lexicon.words(
        ["[PAD]", "a", "the", "##ing", "of", "Of", "x1"], SENSES, ["a", "of", "yaps", "barks"]
    )
    assert (listed[:2], frequent) == (["the", "of"], 2)
    assert listed[2:] == ["anode", "bell", "aardvark", "sledgehammer", "barks", "yaps"]


def test_the_shipped_table_has_these_words_of_captions_and_these_weights():
    stored, words = load_file(lexicon.FILE), lexicon.table().words
    frequent = words.index("anode")  # the first of WordNet's
    assert np.array_equal(audio_lexicon.weights(len(words), frequent).astype(np.float16), stored["weights"])
    assert {word for word in audio_lexicon.GENERATOR if len(word) > 1} <= set(words)


def test_vectors_are_the_main_components_of_unit_vectors():
    rows = np.random.default_rng(0).normal(size=(300, 120)) * np.linspace(3, 1, 120)
    found = audio_lexicon.condense(rows.astype(np.float32))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    left, size, _ = np.linalg.svd(unit - unit.mean(0), full_matrices=False)
    wanted = (left * size)[:, : audio_lexicon.SIZE]
    np.testing.assert_allclose(np.abs(found), np.abs(wanted), atol=1e-4)


def test_the_shipped_vectors_are_components():
    """Uncorrelated, in the order of their variance, about a mean of zero."""
    table = lexicon.table()
    vectors = table.vectors * table.scales[:, None]
    assert np.all(np.diff(vectors.var(0)) < 1e-5) and np.abs(vectors.mean(0)).max() < 1e-3
    assert np.abs(np.corrcoef(vectors.T) - np.eye(96)).max() < 0.01
