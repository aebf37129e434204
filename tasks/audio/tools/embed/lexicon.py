"""Words that a model was not trained on: static vectors of common English words, and what a model makes of them.

`lexicon.safetensors` holds a vector for each of some 38,000 words, distilled from the sentence encoder all-MiniLM-L6-v2
(Apache-2.0): what it says of the word alone, less the mean, in the 96 directions of most variance, a byte a number. A
caption's vector is the sum over its words, rare ones counting more (Arora et al. 2017, *A Simple but Tough-to-Beat
Baseline for Sentence Embeddings*); `benchmarks/audio_lexicon.py` makes the file. A word that is not there is looked for
without its ending, then as a typing error: two letters in turn, one left out or doubled, then one otherwise, then two
such; of several the most frequent.

A model that has `Anchors` knows where some kinds of sound lie in both spaces. A caption is taken for the anchors that
it is nearest to (a softmax of cosines), and its vector in the joint space is the mean of theirs. The words that the
model was trained on keep its own vector in, by half: it knows of traits and order, of which anchors know nothing.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, Int8, Int64

FILE = Path(__file__).with_suffix(".safetensors")
PREFIX = "lexicon."
"""Of an exported file's tensors that are `Anchors`. They are no part of its fingerprint: sounds lie where they lay."""
SHARPNESS = 1 / 0.03
"""Factor by which cosines to anchors are multiplied."""
COMMON = 0.3
"""Words of a smaller weight (the, with, over) do not count when a caption's unknown words are counted."""
WORD = re.compile("[a-z]+")
ENDINGS = (
    ("s", ""),
    ("es", ""),
    ("ies", "y"),
    ("ing", ""),
    ("ing", "e"),
    ("ed", ""),
    ("ed", "e"),
    ("ly", ""),
    ("er", ""),
)
DOUBLED = re.compile(r"(.*)(.)\2ing")
SHORTEST, LONGER = 3, 6
"""Letters of a word that may have one error, and two."""
LONGEST, TWICE = 24, 12
"""Letters of a word that may still have one, and two: all forms are written down, a million of 24 letters with two."""

Vectors = Float32[np.ndarray, "captions dimension"]


@dataclass(frozen=True, eq=False)
class Table:
    """The static vectors."""

    words: Sequence[str]
    """The most frequent first."""
    vectors: Int8[np.ndarray, "words size"]
    scales: Float[np.ndarray, " words"]
    """Factor by which a word's bytes are multiplied."""
    weights: Float[np.ndarray, " words"]

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each word."""
        return {word: row for row, word in enumerate(self.words)}

    def vector(self, caption: str) -> Float[np.ndarray, " size"]:
        """Return a caption's vector of length one; zeros where none of its words is known."""
        rows = [row for word in WORD.findall(caption.lower()) if (row := self.find(word)) is not None]
        total = (self.weights[rows] * self.scales[rows]) @ self.vectors[rows].astype(np.float64)
        return unit(total)

    def find(self, word: str) -> int | None:
        """Return the place of a word, of it without its ending, or of what it may be a typing error of."""
        doubled = DOUBLED.fullmatch(word)
        forms = [word, *(word[: -len(end)] + to for end, to in ENDINGS if word.endswith(end))]
        forms += [doubled[1] + doubled[2]] if doubled else []
        row = next((self.places[form] for form in forms if form in self.places), None)
        if row is not None or not SHORTEST <= len(word) <= LONGEST:
            return row
        forms_of = slips(word) | edits(word)
        near = self._known(slips(word)) or self._known(forms_of)
        if near or not LONGER <= len(word) <= TWICE:
            return min(near, default=None)
        rows, letters = self._common
        # Two errors change the counts of letters by four at most; what both words become by one error is between them.
        close = rows[np.abs(letters - letters_of(word)).sum(1) <= 4]
        between = (int(row) for row in close if not forms_of.isdisjoint(neighbours(self.words[row])))
        return next(between, None)

    @cached_property
    def _common(self) -> tuple[Int64[np.ndarray, " common"], Int64[np.ndarray, "common 26"]]:
        """The places of words that may be meant by a typing error, the most frequent first, and counts of letters."""
        usual = (row for row, word in enumerate(self.words) if len(word) >= SHORTEST)
        rows = [row for row in usual if self.weights[row] >= COMMON]
        return np.array(rows, np.int64), np.stack([letters_of(self.words[row]) for row in rows])

    def _known(self, forms: set[str]) -> list[int]:
        rows = (self.places[form] for form in forms if len(form) >= SHORTEST and form in self.places)
        return [row for row in rows if self.weights[row] >= COMMON]


def unit(vector: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
    """Return a vector at length one; zeros stay zeros."""
    scaled: Float[np.ndarray, " size"] = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return scaled


def letters_of(word: str) -> Int64[np.ndarray, " 26"]:
    """Return how often a word has each letter from a to z."""
    codes = np.frombuffer(word.encode("ascii", "replace"), np.uint8).astype(np.int64) - ord("a")
    return np.bincount(codes[(codes >= 0) & (codes < 26)], minlength=26)


@lru_cache(maxsize=4096)
def neighbours(word: str) -> frozenset[str]:
    """Return what a word becomes by one error, and what becomes it."""
    return frozenset(slips(word) | edits(word))


def slips(word: str) -> set[str]:
    """Return what a word may be a slip of: two letters in turn, one left out, or one doubled."""
    parts = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    forms = {left + right[1] + right[0] + right[2:] for left, right in parts if len(right) > 1}
    forms |= {left + right[1:] for left, right in parts if len(right) > 1 and right[0] == right[1]}
    return forms | {left + letter + right for left, right in parts for letter in string.ascii_lowercase}


def edits(word: str) -> set[str]:
    """Return what a word becomes by one letter less or another one."""
    parts = [(word[:i], word[i:]) for i in range(len(word))]
    forms = {left + right[1:] for left, right in parts}
    return forms | {left + letter + right[1:] for left, right in parts for letter in string.ascii_lowercase}


@cache
def table() -> Table:
    """Return the static vectors that come with the package."""
    from safetensors.numpy import load_file

    stored = load_file(FILE)
    words = stored["words"].tobytes().decode().split("\n")
    return Table(words, stored["vectors"], stored["scales"].astype(np.float64), stored["weights"].astype(np.float64))


@dataclass(frozen=True, eq=False)
class Anchors:
    """Kinds of sound in both spaces."""

    words: Float32[np.ndarray, "anchors size"]
    """Unit vectors of the static table."""
    sounds: Float32[np.ndarray, "anchors dimension"]
    """Unit vectors of the joint space."""
    own: frozenset[str]
    """The words that count as trained on: see `search.anchors.trained_words`."""

    def blend(self, captions: Sequence[str], vectors: Vectors) -> Vectors:
        """Return the unit vectors that captions are searched as.

        Args:
            captions: in words.
            vectors: what the model itself makes of them.
        """
        rows = [self._blend(caption, vector) for caption, vector in zip(captions, vectors, strict=True)]
        return np.array(rows, np.float32).reshape(vectors.shape)

    def _blend(self, caption: str, vector: Float32[np.ndarray, " dimension"]) -> Float[np.ndarray, " dimension"]:
        static = table().vector(caption)
        if not static.any():
            return vector
        nearness = SHARPNESS * (self.words @ static)
        shares = np.exp(nearness - nearness.max())
        meant = shares @ self.sounds
        own = self.known(caption) / 2
        mixed = own * vector + (1 - own) * meant / max(float(np.linalg.norm(meant)), 1e-12)
        return unit(mixed)

    def known(self, caption: str) -> float:
        """Return which share of a caption's words the model was trained on, those that say little left out."""
        places, weights = table().places, table().weights
        words = [w for w in WORD.findall(caption.lower()) if len(w) > 1]
        words = [w for w in words if w not in places or weights[places[w]] >= COMMON]
        return sum(word in self.own for word in words) / len(words) if words else 1.0

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of all of it."""
        state = hashlib.sha256()
        for name, array in sorted(self.tensors().items()):
            state.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        return state.hexdigest()

    def tensors(self) -> dict[str, np.ndarray]:
        """Return them as an exported file holds them."""
        own = np.frombuffer("\n".join(sorted(self.own)).encode(), np.uint8)
        return {f"{PREFIX}words": self.words, f"{PREFIX}sounds": self.sounds, f"{PREFIX}own": own}


def digest_of(anchors: Anchors | None) -> str:
    """Return the digest of anchors; "" where there are none."""
    return anchors.digest if anchors else ""


def anchors_of(tensors: Mapping[str, np.ndarray]) -> Anchors | None:
    """Return the anchors of an exported file; None where it has none.

    Args:
        tensors: those whose names begin with `PREFIX`.

    Raises:
        ValueError: where they are not whole, or do not fit each other.
    """
    if not tensors:
        return None
    try:
        words, sounds, own = (tensors[f"{PREFIX}{name}"] for name in ("words", "sounds", "own"))
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    if words.ndim != 2 or words.shape[1] != table().vectors.shape[1] or words.shape[0] != len(sounds):
        raise ValueError(f"{PREFIX}words: {words.shape} do not fit the static vectors or {PREFIX}sounds")
    return Anchors(words, sounds, frozenset(own.tobytes().decode().split("\n")))
