"""Words that may stand for each other: a condensed WordNet 3.1, which `rewriter` reads and the generator does not.

`thesaurus.txt` has a line for each group: part of speech (n, v, r) and lemmas. `benchmarks/audio_thesaurus.py` makes
the file and says which lemmas are in a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")


@cache
def groups(part: str) -> Mapping[str, tuple[str, ...]]:
    """Return lemma -> the lemmas of its first group, itself included, of a part of speech (n, v, r)."""
    synonyms: dict[str, tuple[str, ...]] = {}
    for line in FILE.read_text().splitlines():
        kind, *lemmas = line.split()
        if kind == part:  # no part is called "#"
            for lemma in lemmas:
                synonyms.setdefault(lemma, tuple(lemmas))
    return synonyms
