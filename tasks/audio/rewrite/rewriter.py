"""Rewriting of captions by rules: five further forms without a language model, and two bad ways as controls.

What the paper has GPT-3.5 do (section 2.4.4): other words, another order, another voice, and what the keywords add. The
rules know the words of `captions.LEXICON`, so they are at home in made recordings; of other English they swap common
words, turn clauses round and mention keywords. Everything is a function of caption, keywords, rules and seed.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from retable.tasks.audio.rewrite.prompts import WANTED, script, words
from retable.tasks.audio.world.captions import (
    ADJECTIVES,
    ADVERBS,
    ARCHIVE,
    CLAUSES,
    FILLERS,
    LEXICON,
    PHRASES,
    is_plural,
    participle,
    third_person,
)

Rules = Literal["keywords", "no_keywords", "hallucinated"]
"""keywords: the good rewriter; no_keywords: not told them; hallucinated: each form names a sound that is not there."""

LONGEST = 19
"""Words of a rewritten caption: the paper asks for fewer than 20."""
DRAWS = 60
"""Attempts at five different forms."""
MENTION = 0.6
"""Probability that a form mentions what only the keywords say."""
SWAP = 0.7
"""Probability that a word gives way to another one of its meaning."""

SYNONYMS = (
    *ADVERBS.values(),
    *ADJECTIVES.values(),
    ("talking", "speaking"),
    ("talk", "speak"),
    ("walking", "strolling", "stepping"),
    ("walks", "strolls", "steps"),
    ("hitting", "striking", "knocking against"),
    ("hits", "strikes", "knocks against"),
    ("flowing", "streaming", "running"),
    ("flows", "streams", "runs"),
    ("driving by", "passing by", "going past"),
    ("drives by", "passes by", "goes past"),
    ("moving", "shifting"),
    ("making noise", "making sounds", "being noisy"),
    ("continuously", "constantly", "without a break", "nonstop"),
    ("occasionally", "now and then", "from time to time"),
    ("suddenly", "all of a sudden", "abruptly"),
    ("several", "a number of", "some", "multiple"),
    ("cars", "vehicles", "automobiles"),
    ("kids", "children"),
    ("street", "road"),
    ("machine", "device", "apparatus"),
    ("metallic", "tinny"),
    ("hard surface", "solid surface", "firm surface"),
    ("big", "large"),
    ("little", "small"),
    ("inside", "indoors"),
)
"""Words that may stand for each other wherever they are found."""
IGNORED = frozenset(
    "ambience ambiance ambient atmosphere atmos audio binaural day edited effect evening field-recording foley fx h4n "
    "h1n indoor indoors loop mono morning natural night noise noises outdoor outdoors owi recorder recording sample "
    "sfx sound soundscape sounds stereo weather zoom".split()
)
"""Keywords that name no sound."""
OPENINGS = ("in this clip, {x}", "{x}, by the sound of it", "here, {x}", "to the ear, {x}", "{x}, as the clip tells")
"""For captions whose grammar the rules do not see."""
FRAMES = ("{x}", "the sound of {x}", "the noise of {x}")
"""For phrases without a finite verb."""
ADDED = {
    True: ("{a} while {b}", "{a} and {b} as well", "{a} as {b}"),
    False: ("{a} along with {b}", "{a} together with {b}", "{a} with {b}"),
}
"""How a further sound is named; by whether the two are clauses."""

INFIX = {
    " and then ": "then",
    ", and afterwards ": "then",
    " before ": "then",
    " followed by ": "then",
    ", then ": "then",
    " then ": "then",
    " preceded by ": "after",
    " and at the same time ": "while",
    " while ": "while",
    " as ": "while",
    " along with ": "while",
    " together with ": "while",
}
JOINT = re.compile(
    f"(?<!such),?({'|'.join(map(re.escape, sorted(INFIX, key=len, reverse=True)))})(?!if |well |though )"
)
AROUND = (
    (re.compile(r"^in the background,? (?P<b>.+?) as (?P<a>.+)$"), "background"),
    (re.compile(r"^after (?P<a>.+?), (?P<b>.+)$"), "then"),
    (re.compile(r"^(?:while|as) (?P<b>.+?), (?P<a>.+)$"), "while"),
    (re.compile(r"^(?P<a>.+) (?:while|with) (?P<b>.+?) in the background$"), "background"),
    (re.compile(r"^(?P<a>.+) against a backdrop of (?P<b>.+)$"), "background"),
)
NOISE = re.compile(
    rf"(?:,? (?:(?:can be|is|are) (?:heard|audible)|{'|'.join(map(re.escape, (*FILLERS, *ARCHIVE)))}))+$"
)
ARTICLES = ("a", "an", "the")
ENGLISH = re.compile(r"\b(?:the|is|are|of|and|with|\w+ing)\b")


def _bare(subject: str) -> str:
    article, _, rest = subject.partition(" ")
    return rest if article in ARTICLES else subject


def _tables() -> tuple[dict[str, list[tuple[str, str]]], dict[str, list[tuple[str, str, str]]]]:
    """Return the lexicon's nouns, and its verbs in three forms, with the classes of sound that they may mean."""
    nouns, verbs = defaultdict(list), defaultdict(list)
    for sound, entry in LEXICON.items():
        for subject in entry.subjects:
            nouns[_bare(subject)].append((sound, subject))
        for verb in entry.verbs:
            for form, inflected in (("third", third_person(verb)), ("ing", participle(verb)), ("base", verb)):
                verbs[inflected].append((sound, verb, form))
    return dict(nouns), dict(verbs)


NOUNS, VERBS = _tables()
GROUPS = {word: group for group in SYNONYMS for word in group}


def _any_of(phrases: Sequence[str]) -> re.Pattern[str]:
    """Return what finds the longest of some phrases, as whole words."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(phrases, key=len, reverse=True)))})\b")


NOUN, VERB, WORD = (_any_of([*table]) for table in (NOUNS, VERBS, GROUPS))
KNOWN = sorted({adjective for group in ADJECTIVES.values() for adjective in group})
ARTICLE = re.compile(rf"(?:\b(a|an|the) )?((?:(?:{'|'.join(KNOWN)}) )*)$")


@dataclass(frozen=True)
class Piece:
    """One clause or phrase, its words for one sound found or not: before, subject, between, verb, behind."""

    text: str
    """As it was written."""
    sounds: frozenset[str]
    """What it may be about."""
    sound: str = ""
    """Empty where subject and verb were not found."""
    before: str = ""
    article: str = ""
    adjectives: str = ""
    subject: str = ""
    """As the lexicon has it, with its article."""
    between: str = ""
    verb: str = ""
    """In the infinitive."""
    behind: str = ""
    form: str = ""
    """plain (barks), progressive (is barking) or ing (barking, the barking of)."""

    @property
    def movable(self) -> bool:
        """Whether all of its grammar is known, so that its voice can be changed."""
        return bool(self.sound) and not self.before.strip() and " and " not in self.behind

    @property
    def finite(self) -> bool:
        """Whether it is a clause; what is not known is taken for one."""
        return self.form != "ing"


@dataclass(frozen=True)
class Pair:
    """Two parts of a caption and how they relate: then, while, background or and."""

    relation: str
    first: Piece | Pair
    second: Piece | Pair
    joint: str = ""
    """What stood between them; empty where they stood otherwise."""


def rewrite(caption: str, keywords: str, how: Rules = "keywords", seed: int = 0) -> tuple[str, ...]:
    """Return up to five rewritten forms of a caption, all different and none the caption.

    Args:
        caption: an English sentence. There are no forms of one in another script.
        keywords: of its recording, ';'-separated.
        how: the good rules or a bad control.
        seed: other seeds, other forms.

    """
    text = NOISE.sub("", re.sub(r"[.!?\s]+$", "", " ".join(caption.lower().split())))
    if script(text) != "LATIN" or len(text.split()) > 4 * LONGEST or not (ENGLISH.search(text) or sounds(text)):
        return ()
    state = hashlib.sha256("\x1f".join((caption, keywords, how, str(seed))).encode()).digest()
    rng = random.Random(int.from_bytes(state[:8], "big"))
    tree = _parse(text)
    extra = _extras(text, tree, "" if how == "no_keywords" else keywords, how)
    found: dict[tuple[str, ...], str] = {words(caption): ""}
    for draw in range(DRAWS):
        form = _form(tree, extra, how, rng, plain=draw < DRAWS // 2)
        if len(form.split()) <= max(LONGEST, len(text.split())):
            found.setdefault(words(form), form)
        if len(found) > WANTED:
            break
    return tuple(form for form in found.values() if form)


def sounds(text: str) -> frozenset[str]:
    """Return the classes of sound that the lexicon's words in a text may mean."""
    text = text.lower()
    nouns = (sound for found in NOUN.findall(text) for sound, _ in NOUNS[found])
    verbs = (sound for found in VERB.findall(text) for sound, _, _ in VERBS[found])
    return frozenset([*nouns, *verbs])


def _parse(text: str) -> Piece | Pair:
    """Split a caption at the words that join its parts."""
    for pattern, relation in AROUND:
        if found := pattern.match(text):
            return Pair(relation, _parse(found["a"]), _parse(found["b"]))
    joints = list(JOINT.finditer(text))
    if not joints:
        return _listed(text)
    left, right = text[: joints[-1].start()], text[joints[-1].end() :]
    joint = joints[-1][0]
    relation = INFIX[joints[-1][1]]
    if relation == "after":
        return Pair("then", _listed(right), _parse(left))
    return Pair(relation, _parse(left), _listed(right), joint)


def _listed(text: str) -> Piece | Pair:
    """Split at an "and" that stands between two sounds."""
    for found in re.finditer(" and ", text):
        first, second = _piece(text[: found.start()]), _piece(text[found.end() :])
        if first.sound and second.sound:
            return Pair("and", first, second, found[0])
    return _piece(text)


def _piece(text: str) -> Piece:
    """Find the subject and verb of one sound that stand nearest to each other."""
    best: tuple[int, Piece] | None = None
    for noun in NOUN.finditer(text):
        for verb in VERB.finditer(text):
            nominal = text[verb.end() :].startswith(" of ")  # the barking of a dog
            gap = noun.start() - verb.end() if nominal else verb.start() - noun.end()
            if gap > 0 and (best is None or gap < best[0]):
                piece = next(_meanings(text, noun, verb), None)
                best = (gap, piece) if piece else best
    return best[1] if best else Piece(text, sounds(text))


def _meanings(text: str, noun: re.Match[str], verb: re.Match[str]) -> Iterator[Piece]:
    """Yield what a noun and a verb of one sound can mean together."""
    front = ARTICLE.search(text[: noun.start()])
    assert front is not None  # it matches nothing, too
    article, adjectives = front[1] or "", front[2]
    for (sound, subject), (other, infinitive, form) in itertools.product(NOUNS[noun[0]], VERBS[verb[0]]):
        if sound != other or (form == "base" and not (verb.start() == noun.end() + 1 and is_plural(subject))):
            continue
        if verb.start() > noun.start():
            middle = text[noun.end() : verb.start()]
            auxiliary = re.search(r" (?:is|are) $", middle)
            before, behind = text[: front.start()], text[verb.end() :]
            between = middle[: auxiliary.start()] if auxiliary else middle.rstrip()
            form = "progressive" if auxiliary else "ing" if form == "ing" else "plain"
        else:
            before, between, behind = re.sub(r"\bthe $", "", text[: verb.start()]), "", text[noun.end() :]
        yield Piece(text, sounds(text), sound, before, article, adjectives, subject, between, infinitive, behind, form)


def _pieces(tree: Piece | Pair) -> list[Piece]:
    return [tree] if isinstance(tree, Piece) else [*_pieces(tree.first), *_pieces(tree.second)]


def _extras(text: str, tree: Piece | Pair, keywords: str, how: Rules) -> list[str]:
    """Return what a form may add: classes of sound, and keywords that are none, as `#word`."""
    said = frozenset().union(*(piece.sounds for piece in _pieces(tree)))
    tags = list(dict.fromkeys(" ".join(tag.lower().split()) for tag in keywords.split(";")))
    if how == "hallucinated":
        return [sound for sound in LEXICON if sound not in said and LEXICON[sound].tags[0] not in tags]
    explained = {tag for sound in said for tag in LEXICON[sound].tags}
    singular = {tag.removesuffix("s") for tag in tags} | {*tags}
    new = [sound for sound in LEXICON if sound not in said and LEXICON[sound].tags[0] in singular - explained]
    explained |= {tag for sound in new for tag in LEXICON[sound].tags}
    there = {word.removesuffix("s") for word in words(text)}
    names = {tag.strip().lower() for tag in keywords.split(";") if tag.strip()[:1].isupper()}  # cities, devices
    others = [tag for tag in tags if tag not in names and re.fullmatch(r"[^\W\d_]{3,}(?:[ -][^\W\d_]+)?", tag)]
    others = [tag for tag in others if tag not in IGNORED and tag not in explained]
    return new or [f"#{tag}" for tag in others if not {word.removesuffix("s") for word in words(tag)} & there]


def _form(tree: Piece | Pair, extra: Sequence[str], how: Rules, rng: random.Random, plain: bool) -> str:
    """Draw one form of a caption."""
    pieces = _pieces(tree)
    known = all(piece.movable for piece in pieces)
    style = rng.choice(("plain", "progressive", "ing", "nominal")) if known else ""
    text = _join(tree, style, rng)
    if extra and (how == "hallucinated" or rng.random() < MENTION):
        text = _add(text, rng.choice(extra), style, rng)
    if style in ("ing", "nominal") and not text.startswith("the "):
        text = rng.choice(FRAMES).format(x=text)
    elif not known and (not plain or rng.random() < 0.3):
        text = rng.choice(OPENINGS).format(x=text)
    text = re.sub(r"\ban? (?=(\w))", lambda found: "an " if found[1] in "aeiou" else "a ", text)
    return f"{text[0].upper()}{text[1:]}."


def _add(text: str, what: str, style: str, rng: random.Random) -> str:
    """Add a further sound to a form; to one of unknown grammar, as a phrase."""
    if what.startswith("#"):
        return f"{text}, {rng.choice(('with', 'and'))} {what[1:]} sounds"
    entry = LEXICON[what]
    subject, verb = rng.choice(entry.subjects), rng.choice(entry.verbs)
    said = _say(Piece("", frozenset([what]), what, subject=subject, verb=verb), style or "ing", rng)
    return rng.choice(ADDED[style in ("plain", "progressive")]).format(a=text, b=said)


def _join(tree: Piece | Pair, style: str, rng: random.Random, inner: bool = False) -> str:
    """Say a tree: in one style where all of its grammar is known, else with the words that joined it."""
    if isinstance(tree, Piece):
        return _say(tree, style, rng)
    first, second = _join(tree.first, style, rng, True), _join(tree.second, style, rng, True)
    clauses = style in ("plain", "progressive") if style else all(piece.finite for piece in _pieces(tree))
    if style or not tree.joint:
        joints = (CLAUSES if clauses else PHRASES).get(tree.relation, ("{a} and {b}", "{b} and {a}"))
        if inner or not style:  # "after after one, two, three" says nothing
            joints = tuple(joint for joint in joints if joint.startswith("{a}"))
        return rng.choice(joints).format(a=first, b=second)
    if tree.relation in ("while", "and") and rng.random() < 0.5:
        first, second = second, first
    return f"{first}{tree.joint}{second}"


def _say(piece: Piece, style: str, rng: random.Random) -> str:
    """Say a piece with other words; without style, in the form that it has."""
    if not piece.sound:
        return _swap(piece.text, rng)
    style = style or piece.form
    subject, verb = _subject(piece, rng), _other(piece.verb, LEXICON[piece.sound].verbs, rng)
    before, between, behind = (_swap(part, rng) for part in (piece.before, piece.between, piece.behind))
    if style == "nominal" and " " not in verb and not between and not before:
        return f"the {participle(verb)} of {subject}{behind}"
    plural = is_plural(subject)
    if style == "plain":
        verb = verb if plural else third_person(verb)
    else:
        verb = participle(verb)
        verb = f"{'are' if plural else 'is'} {verb}" if style == "progressive" else verb
    return f"{before}{subject}{between} {verb}{behind}"


def _subject(piece: Piece, rng: random.Random) -> str:
    """Return another subject of the same number that fits article and adjectives."""
    own = piece.subject.partition(" ")[0] in ARTICLES
    plural = is_plural(piece.subject)
    options = [each for each in LEXICON[piece.sound].subjects if is_plural(each) == plural]
    if not own and not piece.article and not piece.adjectives:
        return _other(piece.subject, options, rng)  # "rain": "a rain shower" is as good
    options = [each for each in options if (each.partition(" ")[0] in ARTICLES) == own]
    chosen = _other(piece.subject, options, rng)
    article = piece.article or (chosen.partition(" ")[0] if own and not piece.before else "")
    return f"{article} {piece.adjectives}{_bare(chosen)}".strip()


def _other(word: str, options: Sequence[str], rng: random.Random) -> str:
    return rng.choice(options) if options and rng.random() < SWAP else word


def _swap(text: str, rng: random.Random) -> str:
    """Replace words of `SYNONYMS`."""
    return WORD.sub(lambda found: _other(found[0], GROUPS[found[0]], rng), text)
