"""Make audio's `rewrite/thesaurus.txt`: words that may stand for each other, condensed from WordNet 3.1.

Run as `python -m benchmarks.audio_thesaurus DICT > thesaurus.txt` in a checkout, with WordNet's folder `dict`. A lemma
is in a group where it is one word of three letters or more whose first meaning this is, WordNet's corpus attests it,
and the meaning is of `FIELDS`; of verbs of sound every attested meaning counts, of adverbs those in -ly. A verb without
such a synonym is a line by itself, so that it is known as a verb.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PARTS = {"n": "noun", "v": "verb", "r": "adv"}
SOUND = "39"
"""WordNet's file of the verbs of sound and of other perceptions."""
FIELDS = {
    "n": {"05", "06", "08", "10", "11", "14", "17", "18", "19", "20", "27"},
    "v": {SOUND, "35", "38", "43"},
    "r": {"02"},
}
"""WordNet's files of what can be heard: things, beings, events and substances; contact, motion, weather; adverbs."""
LETTERS = re.compile(r"[a-z]{3,}")
HEADER = """\
# Condensed from WordNet 3.1 by `benchmarks/audio_thesaurus.py`. WordNet 3.1 Copyright 2011 by Princeton University. All
# rights reserved. Permission to use, copy, modify and distribute this database for any purpose and without fee is
# granted by https://wordnet.princeton.edu/license-and-commercial-use, provided that this notice stays; it is provided
# "as is", without any warranty, and Princeton's name may not be used in advertising it.
"""


def condense(folder: Path) -> Iterator[str]:
    """Yield the lines of `thesaurus.txt`, of the data files of WordNet 3.1."""
    meanings = {}
    for line in (folder / "index.sense").read_text().splitlines():
        key, offset, number, count = line.split()
        lemma, kind = key.split("%")
        meanings["nvara"[int(kind[0]) - 1], offset, lemma] = (int(number), int(count))
    for part, name in PARTS.items():
        alone: dict[str, int] = defaultdict(int)
        for line in (folder / f"data.{name}").read_text().splitlines():
            if line.startswith(" "):
                continue
            offset, field, _, size, *rest = line.split("|")[0].split()
            lemmas = [re.sub(r"\(.*\)", "", word) for word in rest[: 2 * int(size, 16) : 2]]
            usual = []
            for lemma in filter(LETTERS.fullmatch, lemmas):
                sense, uses = meanings[part, offset, lemma]
                alone[lemma] += uses
                first = sense == 1 or (part == "v" and field == SOUND)
                if uses and first and field in FIELDS[part] and (part != "r" or lemma.endswith("ly")):
                    usual.append(lemma)
            if len(usual) > 1:
                yield f"{part} {' '.join(usual)}"
        if part == "v":
            yield from (f"v {lemma}" for lemma, count in alone.items() if count)


if __name__ == "__main__":
    print(HEADER + "\n".join(condense(Path(sys.argv[1]))))
