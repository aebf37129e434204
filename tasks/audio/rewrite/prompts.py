"""Prompts that ask a language model to rewrite a caption, and the parsing of its answers.

Source: Primus, Koutini and Widmer 2023, Table 1, and its code, which asks the same with "sound events" for "sound
event" and curly quotes round "heard" and "recorded" (`Wording`; of its question about captions without keywords only
the beginning is known to us: here it is the paper's with those quotes). Its parser takes the lines of an answer as they
come; this one has to survive models of any make, so it looks for the captions, keeps at most five, and says what it
left out.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

WANTED = 5
"""Rewritten forms of a caption."""
LONGEST = 40
"""A line of more words is no caption; the model is asked for fewer than 20."""
RULES = (
    "Each audio caption should be one sentence with less than 20 words. Use grammatical subject-verb-object sentences. "
    "Do not include names of cities, countries, and persons. Do not include the time. Do not include recording device "
    'names. Do not write introductions or explanations. Do not use "heard" or "recorded". Start each output sentence '
    "with its index."
)
WITH_KEYWORDS = (
    "I will give a description of an audio recording and tags associated with the audio recording. Generate 5 audio "
    "captions describing the sound event."
)
Wording = Literal["paper", "code"]
"""Whose words a model is asked in: Table 1's, or those of the authors' code."""
CODE = {"sound event.": "sound events.", '"heard"': "“heard”", '"recorded"': "“recorded”"}
"""Words that the paper prints -> those that its code writes instead."""
WITHOUT_KEYWORDS = "I will give a description of an audio recording. Rephrase it 5 times."

REFUSALS = tuple(
    "i'm sorry;i am sorry;sorry,;i cannot;i can't;i can not;i'm unable;i am unable;as an ai;as a language model;"
    "i apologize;i won't;unfortunately, i".split(";")
)
INTRODUCTION = re.compile(r"(?i)^(sure|certainly|of course|okay|here (are|is)|below are|the following|note\b)")
NUMBER = r"(?:\d{1,2}|[a-h]|[ivx]{1,4}|one|two|three|four|five|first|second|third|fourth|fifth)"
MARK = re.compile(rf"(?i)^[(\[]?#?{NUMBER}\s*(?:[.)\]:|、](?!\d)|[-–—]\s)+\s*")
LABEL = re.compile(
    rf"(?i)^(?:caption|sentence|variation|version|description|option|rephrasing)\s*#?{NUMBER}?\s*[:.)]\s*"
)
BARE = re.compile(r"^(\d{1,2})(?!(?:st|nd|rd|th)\b)(?:\s+(?=\S)|(?=[^\W\d_]))")
"""A number without a mark: an index ("1 A dog barks", "1A dog barks") or a count ("1 dog barks")."""
BEGINNING = re.compile(r"(?i:an?|the)\b|\d")
"""Words that no count stands before, beside capital letters: an article, or another number."""
INLINE = re.compile(r"(?<=\S)\s+(?=[(\[]?[1-9][.)\]:]\s*\S)")
COUNT = re.compile(r"(?i)\s*[(\[]\d+ words[)\]]\.?$")
QUOTES = ('""', "''", "“”", "‘’", "«»", "„“", "「」", "``")


@dataclass(frozen=True)
class Parsed:
    """Contents of an answer."""

    captions: tuple[str, ...]
    """At most five, all different, none the caption itself."""
    dropped: tuple[str, ...]
    """Lines left out, each behind the reason: `introduction: Sure, here ...`."""


def prompt(caption: str, keywords: str, wording: Wording = "paper") -> str:
    """Return the question about one caption.

    Args:
        caption: the sentence to rephrase.
        keywords: what the recording is tagged with, ';'-separated; without any, the model is asked to rephrase only.
        wording: the paper's or the code's.
    """
    sentence = " ".join(caption.split())
    tags = [" ".join(word.split()) for word in keywords.split(";") if word.strip()]
    asked = f"{WITH_KEYWORDS if tags else WITHOUT_KEYWORDS} {RULES}"
    for printed, written in CODE.items() if wording == "code" else ():
        asked = asked.replace(printed, written)
    return f"{asked} '{sentence}'" + (f" [{', '.join(tags)}]" if tags else "")


def parse(answer: str, caption: str, cut: bool = False) -> Parsed:
    """Find the rewritten captions in an answer of any form.

    Numbers, letters, quotes, Markdown, tables, JSON, thoughts and pleasantries are taken off. Lines are left out that
    are refusals, introductions, repetitions, too long, without words, or in another script than the caption.

    Args:
        answer: the model's text.
        caption: what was to be rephrased.
        cut: whether the answer ended at the model's limit, so that its last sentence may be half.

    """
    text = unicodedata.normalize("NFKC", html.unescape(re.sub(r"(?s)<think>.*?(</think>|$)", "", answer)))
    text = "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
    lines, dropped = _unnumbered(_lines(text))
    if cut and lines and not lines[-1].endswith((".", "!", "?", "。")):
        dropped.append(f"cut off: {lines.pop()}")
    kept: list[str] = []
    for line in lines:
        if reason := _defect(line, caption, kept):
            dropped.append(f"{reason}: {line[:60]}")
        else:
            kept.append(line)
    return Parsed(tuple(kept[:WANTED]), (*dropped, *(f"more than {WANTED}: {line[:60]}" for line in kept[WANTED:])))


def _lines(text: str) -> list[str]:
    """Return the text's lines, or the strings in its JSON."""
    fenced = re.search(r"(?s)```\w*\n?(.*?)(?:```|$)", text)
    body = (fenced[1] if fenced else text).strip()
    if body[:1] in ("[", "{"):
        try:
            return _strings(json.loads(body))
        except (ValueError, RecursionError):
            pass
    lines = [line.strip() for line in body.splitlines()]
    lines = [line for line in lines if line]
    return INLINE.split(lines[0]) if len(lines) == 1 else lines


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [" ".join(value.split())]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in inner for text in _strings(part)]


def _unnumbered(lines: list[str]) -> tuple[list[str], list[str]]:
    """Take numbers and decoration off; where lines are numbered, those that are not are no captions."""
    stripped = [_strip(line) for line in lines]
    if not any(marked for marked, _ in stripped):
        bare = [BARE.match(text) for _, text in stripped]
        if _are_indices([match for match in bare if match], len(lines)):
            stripped = [
                (True, _strip(text[match.end() :])[1]) if match else (False, text)
                for (_, text), match in zip(stripped, bare, strict=True)
            ]
    kept, dropped, expected = [], [], False
    several = sum(marked for marked, _ in stripped) > 1
    for marked, text in stripped:
        if marked and not text:
            expected = True  # the number has a line of its own
        elif several and not (marked or expected):
            dropped.append(f"not numbered: {text[:60]}")
        elif text:
            kept.append(text)
            expected = False
    return kept, dropped


def _are_indices(numbers: list[re.Match[str]], lines: int) -> bool:
    """Return whether numbers without a mark at the head of lines count the lines, not what is heard.

    Indices are 1, 2, 3, ...; and either there are as many as were asked for, or behind one a sentence begins, with a
    capital letter, an article or a count: "1 A dog barks", not "1 dog barks". A single one is none among other lines,
    but for "1A dog barks".
    """
    if not numbers or [int(number[1]) for number in numbers] != list(range(1, len(numbers) + 1)):
        return False
    sentences = (_strip(number.string[number.end() :])[1] for number in numbers)
    begun = any(text[:1].isupper() or BEGINNING.match(text) for text in sentences)
    alone = len(numbers) == 1 and lines > 1 and numbers[0][0] != numbers[0][1]
    return len(numbers) >= WANTED or (begun and not alone)


def _strip(line: str) -> tuple[bool, str]:
    """Return whether a line had a number or label, and the line without any of it."""
    marked, before = False, ""
    while line != before:
        before = line
        line = line.strip().strip("|").strip()
        line = re.sub(r"^(?:[-*•>#+_~]+\s+|[*•]+|_+|-+(?=[^\W\d_]))", "", line)
        line = re.sub(r"[*_]+$|(?<=\w|[.,:;])[*_]{2}(?=\s|$)", "", COUNT.sub("", line)).rstrip(",")
        for match in (MARK.match(line), LABEL.match(line)):
            if match:
                marked, line = True, line[match.end() :]
                break
        for quotes in QUOTES:
            if len(line) > 1 and line[0] + line[-1] == quotes:
                line = line[1:-1]
    return marked, " ".join(line.split())


def _defect(line: str, caption: str, kept: list[str]) -> str:
    """Return why a line is no rewritten caption; empty if it is one."""
    lower = line.casefold().replace("’", "'")
    if sum(letter.isalpha() for letter in line) < 3:
        return "no words"
    if lower.startswith(REFUSALS):
        return "refusal"
    if line.endswith(":") or (INTRODUCTION.match(line) and (":" in line or "!" in line)):
        return "introduction"
    if len(line.split()) > LONGEST:
        return f"more than {LONGEST} words"
    if script(line) != script(caption) and script(caption):
        return "another script"
    if len(words(line)) < min(2, len(words(caption))):
        return "one word"
    if words(line) == words(caption):
        return "the caption itself"
    return "repeated" if words(line) in map(words, kept) else ""


def words(sentence: str) -> tuple[str, ...]:
    """Return a sentence's words, without case and punctuation."""
    return tuple(re.findall(r"\w+", sentence.casefold()))


def script(sentence: str) -> str:
    """Return the script that most letters are of: LATIN, CYRILLIC, CJK, ...; empty without letters."""
    names = (unicodedata.name(letter, "?").split()[0] for letter in sentence if letter.isalpha())
    counted = Counter(names).most_common(1)
    return counted[0][0] if counted else ""
