"""Table 1: one caption of Clotho, and what a language model and the offline rewriter make of it, counted and drawn."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from retable.platform.spec.claims import Verdict, decided, untested
from retable.platform.spec.table import Measurement, Results, claim, stored_as
from retable.tasks.audio.config import Config
from retable.tasks.audio.rewrite.rewriter import rewrite

if TYPE_CHECKING:  # tables name what draws, and a list of them draws nothing
    from matplotlib.figure import Figure as Drawing

CAPTION = "A person is making noise by tapping their fingernails on a solid surface."
KEYWORDS = "nails;metal;tapping;rhythm"
"""Stand-ins: the paper prints its keywords in colour, which our text of it has lost. These are words of its answer, so
that the answer names them says nothing."""
ANSWER = (
    "The sound of nails tapping on a metal surface is heard.",
    "Fingernails are producing a dull sound when tapped.",
    "A person is tapping their nails on a solid, metal surface.",
    "The noise of someone tapping their fingernails is audible.",
    "Nails are rhythmically tapping on a hard metal object.",
)
"""Answer of GPT-3.5-turbo (Table 1)."""
WANTED, LONGEST, FORBIDDEN = 5, 19, {"heard", "recorded"}
"""The prompt's rules: five sentences of fewer than 20 words, without these two words."""
MODEL, RULES = "GPT-3.5-turbo (paper)", "offline rewriter"


def words(sentence: str) -> list[str]:
    """Return a sentence's words in lower case."""
    return re.findall(r"[a-z']+", sentence.lower())


def names_keyword(sentence: str) -> bool:
    """Return whether a sentence has a keyword, or a longer form of one, that the caption lacks."""
    new = set(words(sentence)) - set(words(CAPTION))
    return any(word.startswith(keyword) for word in new for keyword in KEYWORDS.split(";"))


def count(sentences: Sequence[str]) -> dict[str, float]:
    """Return `sentences`, the `longest` in words, `with_keyword` (see there), and how many have a `forbidden` word."""
    return {
        "sentences": float(len(sentences)),
        "longest": float(max((len(words(sentence)) for sentence in sentences), default=0)),
        "with_keyword": float(sum(map(names_keyword, sentences))),
        "forbidden": float(sum(bool(FORBIDDEN & set(words(sentence))) for sentence in sentences)),
    }


def rewritten() -> tuple[str, ...]:
    """Return what the offline rewriter makes of the caption."""
    return tuple(rewrite(CAPTION, KEYWORDS, "keywords", 0))


@stored_as("count_answer")
def count_answer(config: Config) -> Mapping[str, float]:
    """Count the paper's sentences."""
    return count(ANSWER)


@stored_as("count_rewritten")
def count_rewritten(config: Config) -> Mapping[str, float]:
    """Count the offline rewriter's sentences."""
    return count(rewritten())


ROWS = [
    Measurement(label=MODEL, measure=count_answer),
    Measurement(label=RULES, measure=count_rewritten),
]


def draw_example(results: Results) -> Drawing:
    """Draw the caption and its keywords, and below them the sentences of each author side by side."""
    from matplotlib.figure import Figure as Drawing

    sides = {MODEL: ANSWER, RULES: rewritten()}
    drawing = Drawing(figsize=(10, 3.6))
    drawing.text(0.02, 0.93, f"'{CAPTION}' [{', '.join(KEYWORDS.split(';'))}]", color="#3f7ae0", fontsize=10)
    for column, (author, sentences) in enumerate(sides.items()):
        drawing.text(0.02 + 0.5 * column, 0.82, author, weight="bold", fontsize=10)
        for line, sentence in enumerate(sentences):
            colour = "#d0442f" if names_keyword(sentence) else None
            text = textwrap.fill(f"{line + 1}. {sentence}", 62, subsequent_indent="    ")
            drawing.text(0.02 + 0.5 * column, 0.73 - 0.145 * line, text, color=colour, fontsize=9, va="top")
    return drawing


def takes_keywords(results: Results, author: str) -> Verdict:
    """Return the verdict on whether some of an author's sentences name what only the keywords do."""
    metrics = results.measured(author)
    if metrics is None:
        return untested("not counted")
    number, of = (round(metrics[name]) for name in ("with_keyword", "sentences"))
    return decided(bool(number), f"{number} of {of} sentences")


def keeps_rules(results: Results, author: str) -> Verdict:
    """Return the verdict on whether an author kept the prompt's rules that can be counted."""
    metrics = results.measured(author)
    if metrics is None:
        return untested("not counted")
    number, longest, forbidden = (round(metrics[name]) for name in ("sentences", "longest", "forbidden"))
    kept = number == WANTED and longest <= LONGEST and not forbidden
    because = f"{number} sentences, the longest of {longest} words, {forbidden} with 'heard' or 'recorded'"
    return decided(kept, because)


def lacks_keywords(results: Results) -> Verdict:
    """Return why it cannot be tested here whether the paper's sentences take its keywords into account."""
    because = (
        "the paper's keywords are lost; those shown were chosen from the very sentences they would be looked for in"
    )
    return untested(because)


CLAIMS = [
    claim("Some of the rephrased captions take the keywords into account.", lacks_keywords),
    claim("Some of the offline rewriter's sentences take the keywords into account.", takes_keywords, RULES, ours=True),
    claim("The language model keeps the prompt's rules.", keeps_rules, MODEL, ours=True),
    claim("The offline rewriter keeps them.", keeps_rules, RULES, ours=True),
]
