"""Pairs of pictures for a blind test: which of two would one hang?

`python -m benchmarks` does not run it, since people answer. Pictures lie in SOURCE/PAINTING/PHOTOGRAPH.png, a folder
for each program; the first is compared with each of the others wherever both have a picture. A seed draws the order of
the pairs and which picture stands on the left; the key is written outside the folder that is shown.

    python benchmarks/style_blind.py shown key.json ours lite published --seed 7
    python benchmarks/style_blind.py --count choices.csv key.json     # lines `number,left|right`
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections import Counter
from itertools import product
from pathlib import Path

import cv2
import numpy as np

GAP = 24
"""White pixels between the two pictures."""


def pairs(ours: Path, others: list[Path]) -> list[tuple[Path, Path]]:
    """Return our picture and another's of each painting and photograph that both have."""
    mine = sorted(ours.glob("*/*.png"))
    both = [(one, folder / one.relative_to(ours)) for one, folder in product(mine, others)]
    return [pair for pair in both if pair[1].is_file()]


def show(ours: Path, others: list[Path], folder: Path, key: Path, seed: int) -> int:
    """Write numbered pictures of the pairs, and which source is on which side; return how many there are."""
    drawn = random.Random(seed)
    chosen = pairs(ours, others)
    drawn.shuffle(chosen)
    folder.mkdir(parents=True)
    sides = {}
    for number, pair in enumerate(chosen, 1):
        left, right = drawn.sample(pair, 2)
        first, second = (cv2.imread(str(path)) for path in (left, right))
        assert first.shape == second.shape, pair  # a size of its own would tell them apart
        gap = np.full((first.shape[0], GAP, 3), 255, np.uint8)
        cv2.imwrite(str(folder / f"{number:03}.png"), np.concatenate([first, gap, second], 1))
        names = {side: path.parts[-3] for side, path in (("left", left), ("right", right))}
        sides[f"{number:03}"] = {**names, "painting": left.parts[-2], "photograph": left.stem}
    key.write_text(json.dumps({"seed": seed, "ours": ours.name, "pairs": sides}, indent=1))
    return len(chosen)


def count(choices: Path, key: Path) -> list[str]:
    """Return a line for each painting and other source: how many of its pairs ours won."""
    answers = json.loads(key.read_text())
    won, shown = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for number, side in csv.reader(choices.read_text().splitlines()):
        pair = answers["pairs"][number]
        other = next(pair[position] for position in ("left", "right") if pair[position] != answers["ours"])
        shown[pair["painting"], other] += 1
        won[pair["painting"], other] += pair[side] == answers["ours"]
    return [f"{painting} against {other}: {won[painting, other]} of {n}" for (painting, other), n in shown.items()]


def main() -> None:
    """Write the pairs, or count choices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, help="folder of the pairs; with --count, a CSV of choices")
    parser.add_argument("key", type=Path)
    parser.add_argument("sources", type=Path, nargs="*", help="folders, ours first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", action="store_true")
    given = parser.parse_args()
    if given.count:
        print(*count(given.out, given.key), sep="\n")
    else:
        ours, *others = given.sources
        print(show(ours, others, given.out, given.key, given.seed), "pairs")


if __name__ == "__main__":
    main()
