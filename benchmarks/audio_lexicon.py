"""Make audio's `tools/embed/lexicon.safetensors`: static vectors of words, of a sentence encoder and WordNet 3.1.

Run as `python -m benchmarks.audio_lexicon ENCODER DICT FILE` in a checkout, with the folder of all-MiniLM-L6-v2, in
Hugging Face's layout, and WordNet's folder `dict`. The words are, in this order: the encoder's vocabulary, which is
sorted by frequency; WordNet's words, by the uses of their most frequent meaning; what else generated captions hold. A
word's weight is a / (a + p), with a probability p after Zipf's law; those that are not in the vocabulary weigh 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32

from retable.tasks.audio.tools.embed.lexicon import WORD
from retable.tasks.audio.tools.search.anchors import GENERATOR

SIZE = 96
"""Numbers of a vector."""
HALF = 80
"""Place in the vocabulary at which a word weighs a half."""
ATTESTED, NOUN, VERB = 14, 10, 14
"""Letters, at most, of a word that WordNet's corpus attests, and of another noun and verb."""
NOUNS, VERBS = {"05", "06", "11", "19"}, {"35", "38", "39", "43"}
"""WordNet's files of the first meanings that count where no use is attested: animals, things, events and phenomena;
contact, motion, perception, weather."""
BATCH = 256


def words(vocabulary: Sequence[str], senses: Sequence[str], captions: Sequence[str]) -> tuple[list[str], int]:
    """Return the words, and how many of them are the vocabulary's.

    Args:
        vocabulary: the encoder's, the most frequent first.
        senses: lines of WordNet's `index.sense`.
        captions: words of captions.
    """
    frequent = [word for word in vocabulary if re.fullmatch("[a-z]{2,}", word)]
    uses: dict[str, int] = {}
    heard: set[str] = set()
    for line in senses:
        key, _, number, count = line.split()
        word, (kind, field, *_) = key.split("%")[0], key.split("%")[1].split(":")
        uses[word] = max(uses.get(word, 0), int(count))
        noun = kind == "1" and field in NOUNS and len(word) <= NOUN
        if number == "1" and (noun or (kind == "2" and field in VERBS and len(word) <= VERB)):
            heard.add(word)
    included = set(frequent)
    chosen = [
        word
        for word in sorted(uses, key=lambda word: (-uses[word], word))
        if re.fullmatch("[a-z]{3,}", word)
        and word not in included
        and (word in heard or (0 < uses[word] and len(word) <= ATTESTED))
    ]
    included |= {*chosen}
    return [*frequent, *chosen, *sorted({word for word in captions if len(word) > 1} - included)], len(frequent)


def weights(count: int, frequent: int) -> Float[np.ndarray, " words"]:
    """Return the weights of so many words, of which the first are the vocabulary's."""
    places = np.arange(1, count + 1)
    return np.where(places <= frequent, places / (places + HALF), 1.0)


def condense(vectors: Float32[np.ndarray, "words dimension"]) -> Float32[np.ndarray, "words size"]:
    """Return unit vectors less their mean, in the directions of most variance."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centred = unit - unit.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    condensed: Float32[np.ndarray, "words size"] = (centred @ directions[:, ::-1][:, :SIZE]).astype(np.float32)
    return condensed


def embed(encoder: Path, listed: Sequence[str]) -> Float32[np.ndarray, "words dimension"]:
    """Return what an encoder says of each word alone: the mean over its tokens."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    vectors = []
    with torch.inference_mode():
        for start in range(0, len(listed), BATCH):
            tokens = tokenizer(list(listed[start : start + BATCH]), padding=True, return_tensors="pt")
            mask = tokens["attention_mask"][..., None]
            vectors.append(((network(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(vectors)


def make(encoder: Path, wordnet: Path, file: Path) -> None:
    """Write the table."""
    from safetensors.numpy import save_file

    vocabulary = (encoder / "vocab.txt").read_text().splitlines()
    captions = [word for word in GENERATOR if WORD.fullmatch(word)]
    listed, frequent = words(vocabulary, (wordnet / "index.sense").read_text().splitlines(), captions)
    vectors = condense(embed(encoder, listed))
    scales = np.abs(vectors).max(axis=1) / 127
    stored = {
        "words": np.frombuffer("\n".join(listed).encode(), np.uint8),
        "vectors": np.round(vectors / scales[:, None]).astype(np.int8),
        "scales": scales.astype(np.float16),
        "weights": weights(len(listed), frequent).astype(np.float16),
    }
    save_file(stored, file)


if __name__ == "__main__":
    make(*map(Path, sys.argv[1:4]))
