"""Rewriting of captions by rules: five further forms without a language model, and two bad ways as controls.

What the paper has GPT-3.5 do (section 2.4.4): other words, another order, another voice, and what the keywords add. The
words come from a condensed WordNet (`thesaurus.py`), none from the lexicon of generated captions. Order, joints and
voices are shared with the grammar of those: 9 of its 16 templates are templates of the grammar, so are 11 of the 13
joints that it looks for, and its four voices. Training captions there have all of these forms already, as they come
from the writers of the test captions; so rewriting adds words, and what the keywords say. The rules see a clause where
its verb is inflected (barks, is barking, barking); of what they do not see they swap words and turn the order.
Everything is a function of caption, keywords, rules and seed.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from retable.tasks.audio.rewrite.prompts import WANTED, script, words
from retable.tasks.audio.rewrite.thesaurus import groups

Rules = Literal["keywords", "no_keywords", "hallucinated"]
"""keywords: the good rewriter; no_keywords: not told them; hallucinated: each form names a sound that is not there."""
Form = Literal["third", "ing", "plural"]

LONGEST = 19
"""Words of a rewritten caption: the paper asks for fewer than 20."""
DRAWS = 60
"""Attempts at five different forms."""
MENTION = 0.6
"""Probability that a form mentions what only the keywords say."""
SWAP = 0.7
"""Probability that a word gives way to another one of its meaning."""
ABSENT = (
    "an accordion", "an air raid siren", "applause", "a coffee machine", "a forklift", "a harp", "a hair dryer",
    "a jackhammer", "laughter", "a parrot", "a ping-pong ball", "skateboards", "a subway", "a typewriter",
)  # fmt: skip
"""Sounds that the bad rewriter names."""
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
JOINED = {
    ("then", True): ("{a}, then {b}", "{a} and then {b}", "first {a}, then {b}"),
    ("then", False): ("{a}, then {b}", "{a} and then {b}", "{a} followed by {b}"),
    ("while", True): ("{a} while {b}", "{b} while {a}", "{a} as {b}"),
    ("while", False): ("{a} with {b}", "{a} along with {b}", "{b} along with {a}"),
    ("background", True): ("{a} while {b} in the background", "in the background {b} as {a}"),
    ("background", False): ("{a} with {b} in the background", "in the background {b}, in front {a}"),
    ("and", True): ("{a} and {b}", "{b} and {a}"),
    ("and", False): ("{a} and {b}", "{b} and {a}"),
}
"""Templates that join two parts, by their relation and whether they are clauses."""
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
    " and ": "and",
}
JOINT = re.compile(
    f"(?<!such)(?<!for a),?({'|'.join(map(re.escape, sorted(INFIX, key=len, reverse=True)))})(?!if |well |though )"
)
AROUND = (
    (re.compile(r"^in the background,? (?P<b>.+?) as (?P<a>.+)$"), "background"),
    (re.compile(r"^after (?P<a>.+?), (?P<b>.+)$"), "then"),
    (re.compile(r"^(?:while|as) (?P<b>.+?), (?P<a>.+)$"), "while"),
    (re.compile(r"^(?P<a>.+) (?:while|with) (?P<b>.+?) in the background$"), "background"),
    (re.compile(r"^(?P<a>.+) against a backdrop of (?P<b>.+)$"), "background"),
)
TAIL = re.compile(r"(?:,? (?:can be|is|are) (?:heard|audible))+$")
"""Ends of captions that the prompt forbids."""
ENGLISH = re.compile(r"\b(?:the|is|are|of|and|with|\w+ing)\b")
WORD = re.compile(r"[a-z]+")
ADVERBIAL = r" (?:\w+ly|in|on|at|by|near|nearby|outside|outdoors|from|over|once|twice|again|for|with|without)\b.*"
NOMINAL = re.compile(rf"^the (?P<verb>[a-z]+ing) of (?P<subject>.+?)(?P<rest>(?:{ADVERBIAL})?)$")
INTRANSITIVE = re.compile(rf"^(?:{ADVERBIAL})?$")
"""Whether what follows a verb leaves "the barking of a dog" sensible."""
DETERMINERS = frozenset("a an the some several many two three his her their its".split())
VOWELS = "aeiou"


@dataclass(frozen=True)
class Piece:
    """One clause or phrase; without a verb where the rules see none."""

    text: str
    """As it was written."""
    subject: str = ""
    verb: str = ""
    """In the infinitive."""
    form: Literal["", "plain", "progressive", "ing"] = ""
    """barks, is barking, barking."""
    plural: bool = False
    rest: str = ""
    """Words after the verb, with the space before them."""


@dataclass(frozen=True)
class Pair:
    """Two parts of a caption and how they relate: then, while, background or and."""

    relation: str
    first: Piece | Pair
    second: Piece | Pair


def rewrite(caption: str, keywords: str, how: Rules = "keywords", seed: int = 0) -> tuple[str, ...]:
    """Return up to five rewritten forms of a caption, all different and none the caption.

    Args:
        caption: an English sentence. There are no forms of one in another script.
        keywords: of its recording, ';'-separated.
        how: the good rules or a bad control.
        seed: other seeds, other forms.

    """
    text = TAIL.sub("", re.sub(r"[.!?\s]+$", "", " ".join(caption.lower().split())))
    if script(text) != "LATIN" or len(text.split()) > 4 * LONGEST or not (ENGLISH.search(text) or _known(text)):
        return ()
    state = hashlib.sha256("\x1f".join((caption, keywords, how, str(seed))).encode()).digest()
    rng = random.Random(int.from_bytes(state[:8], "big"))
    tree = _parse(text)
    extra = _extras(text, "" if how == "no_keywords" else keywords, how)
    forms: dict[tuple[str, ...], str] = {words(caption): ""}
    for draw in range(DRAWS):
        form = _form(tree, extra, how, rng, plain=draw < DRAWS // 2)
        if len(form.split()) <= max(LONGEST, len(text.split())):
            forms.setdefault(words(form), form)
        if len(forms) > WANTED:
            break
    return tuple(form for form in forms.values() if form)


def _known(text: str) -> bool:
    """Return whether a text has a noun, an adverb or an inflected verb of the thesaurus."""
    return any(word in lexicon for word in WORD.findall(text) for lexicon in (inflections(), groups("n"), groups("r")))


@cache
def inflections() -> dict[str, tuple[str, Form]]:
    """Return inflected form -> infinitive and which form it is, of all verbs of the thesaurus."""
    forms: dict[str, tuple[str, Form]] = {}
    for verb in sorted(groups("v"), key=len):  # "singing" is of sing, not of singe
        forms.setdefault(third_person(verb), (verb, "third"))
        forms.setdefault(participle(verb), (verb, "ing"))
    return forms


def third_person(verb: str) -> str:
    """Return bark -> barks, crash -> crashes, fly -> flies."""
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")


def participle(verb: str) -> str:
    """Return bark -> barking, wave -> waving, hum -> humming."""
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")):
        return verb[:-1] + "ing"
    short = re.fullmatch(rf"[^{VOWELS}]*[{VOWELS}][^{VOWELS}wxy]", verb)
    return verb + (verb[-1] if short else "") + "ing"


def _parse(text: str) -> Piece | Pair:
    """Split a caption at the words that join its parts."""
    for pattern, relation in AROUND:
        if match := pattern.match(text):
            return Pair(relation, _parse(match["a"]), _parse(match["b"]))
    joints = [joint for joint in JOINT.finditer(text) if joint[1] != " and " or _splits(text, joint)]
    if not joints:
        return _piece(text)
    left, right = text[: joints[-1].start()], text[joints[-1].end() :]
    relation = INFIX[joints[-1][1]]
    if relation == "after":
        return Pair("then", _piece(right), _parse(left))
    return Pair(relation, _parse(left), _piece(right))


def _splits(text: str, joint: re.Match[str]) -> bool:
    """Return whether an "and" stands between two parts that each have a verb."""
    return all(_piece(part).verb for part in (text[: joint.start()], text[joint.end() :]))


def _piece(text: str) -> Piece:
    """Find the subject, the verb and the rest of a clause or phrase."""
    if (match := NOMINAL.match(text)) and match["verb"] in inflections():
        subject = match["subject"]
        return Piece(text, subject, inflections()[match["verb"]][0], "ing", _is_plural(subject), match["rest"])
    start = 0
    while match := re.compile(r" (is |are )?([a-z]+)").search(text, start):
        auxiliary, word = match[1] or "", match[2]
        verb, form = inflections().get(word, ("", "ing"))
        subject, rest = text[: match.start()], text[match.end() :]
        named = subject.split()[-1] not in DETERMINERS
        if verb and named and (form == "ing" or (not auxiliary and not _is_plural(subject))):
            style: Literal["plain", "progressive", "ing"] = (
                "progressive" if auxiliary else "ing" if form == "ing" else "plain"
            )
            return Piece(text, subject, verb, style, auxiliary == "are " or _is_plural(subject), rest)
        start = match.start(2)
    return Piece(text)


def _is_plural(subject: str) -> bool:
    """Return whether a subject takes a plural verb."""
    first, last = subject.split()[0], subject.split()[-1]
    return first not in ("a", "an") and (last == "people" or (last.endswith("s") and not last.endswith("ss")))


def _pieces(tree: Piece | Pair) -> list[Piece]:
    return [tree] if isinstance(tree, Piece) else [*_pieces(tree.first), *_pieces(tree.second)]


def _extras(text: str, keywords: str, how: Rules) -> list[str]:
    """Return what a form may add: keywords that name a sound and are not said yet, or what is not there."""
    tags = list(dict.fromkeys(" ".join(tag.lower().split()) for tag in keywords.split(";")))
    if how == "hallucinated":
        return [sound for sound in ABSENT if not {*words(sound)[-1:]} & {*words(text), *tags}]
    names = {tag.strip().lower() for tag in keywords.split(";") if tag.strip()[:1].isupper()}  # cities, devices
    tags = [tag for tag in tags if tag not in names and re.fullmatch(r"[^\W\d_]{3,}(?:[ -][^\W\d_]+)?", tag)]
    stems = {_stem(word) for word in words(text)}
    new = [tag for tag in tags if tag not in IGNORED and not {_stem(word) for word in words(tag)} & stems]
    return [f"{tag} sounds" for tag in new]


def _stem(word: str) -> str:
    """Return a word without its inflection, as far as the verbs of the thesaurus and plurals go."""
    return inflections().get(word, (word.removesuffix("s"), ""))[0]


def _form(tree: Piece | Pair, extra: Sequence[str], how: Rules, rng: random.Random, plain: bool) -> str:
    """Draw one form of a caption."""
    seen = all(piece.verb for piece in _pieces(tree))
    style = rng.choice(("plain", "progressive", "ing", "nominal")) if seen else ""
    text = _join(tree, style, rng)
    if extra and (how == "hallucinated" or rng.random() < MENTION):
        text = f"{text}{rng.choice((' with', ' along with', ', and'))} {rng.choice(extra)}"
    if style in ("ing", "nominal") and not text.startswith(("the ", "in ")):
        text = rng.choice(FRAMES).format(x=text)
    elif not plain or (not seen and rng.random() < 0.3):
        text = rng.choice(OPENINGS).format(x=text)
    text = re.sub(r"\ban? (?=(\w))", lambda match: "an " if match[1] in VOWELS else "a ", text)
    return f"{text[0].upper()}{text[1:]}."


def _join(tree: Piece | Pair, style: str, rng: random.Random, inner: bool = False) -> str:
    """Word a tree in one style; "first" and turned orders are kept to the outermost pair."""
    if isinstance(tree, Piece):
        return _say(tree, style, rng)
    first, second = _join(tree.first, style, rng, True), _join(tree.second, style, rng, True)
    clauses = style in ("plain", "progressive") if style else all(piece.form != "ing" for piece in _pieces(tree))
    joints = JOINED[tree.relation, clauses]
    return rng.choice(joints[:1] if inner else joints).format(a=first, b=second)


def _say(piece: Piece, style: str, rng: random.Random) -> str:
    """Word a piece differently; without style, in the form that it has."""
    if not piece.verb:
        return _swap(piece.text, rng)
    style = style or piece.form
    subject, rest = _swap(piece.subject, rng), _swap(piece.rest, rng)
    verb = _other(piece.verb, "v", rng)
    if style == "nominal" and INTRANSITIVE.match(piece.rest):
        return f"the {participle(verb)} of {subject}{rest}"
    if style == "plain":
        verb = verb if piece.plural else third_person(verb)
    else:
        verb = participle(verb)
        verb = f"{'are' if piece.plural else 'is'} {verb}" if style == "progressive" else verb
    return f"{subject} {verb}{rest}"


def _other(word: str, part: str, rng: random.Random) -> str:
    return rng.choice(groups(part).get(word, (word,))) if rng.random() < SWAP else word


def _swap(text: str, rng: random.Random) -> str:
    """Replace nouns, in either number, and adverbs by others of their meaning."""

    def another(match: re.Match[str]) -> str:
        word = match[0]
        single = word.removesuffix("s")
        for part in "nr":
            if word in groups(part):
                return _other(word, part, rng)
        return _other(single, "n", rng) + "s" if word != single and single in groups("n") else word

    return WORD.sub(another, text)
