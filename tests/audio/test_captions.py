"""Captions state what their statement states, in English, and statements hold exactly where they should."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest

from retable.tasks.audio.world import scenes
from retable.tasks.audio.world.captions import (
    ADJECTIVES,
    ADVERBS,
    CLOTHO,
    LEXICON,
    WRITERS,
    Habits,
    caption,
    is_plural,
    keywords,
    participle,
    state,
    third_person,
    write,
)
from retable.tasks.audio.world.generate import AMBIENT, TRAITS
from retable.tasks.audio.world.scenes import (
    OPPOSITE,
    Claim,
    Event,
    Scene,
    Statement,
    draw,
    facts_that_hold,
    from_json,
    holds,
    opposite,
    relation,
    relevance,
    reverse,
    to_json,
)
from tests.audio.oracles import fact_similarity, tag_similarity

EXACT = Habits(wrong=0, typo=0)
FULL = Habits(0, 0, 0, 0, 0, 0)
SCENE = Scene(
    (
        Event("dog", 0.1, 0.8, traits={"count": "twice", "loudness": "loud"}),
        Event("bell", 1.0, 0.9, traits={"count": "once", "pitch": "low"}),
        Event("rain", 0.0, 2.0, background=True, traits={"trend": "fading"}),
    ),
    2.0,
    "hall",
)


def drawn(count: int, seconds: float = 3.0, rooms: bool = True) -> list[Scene]:
    rng = np.random.default_rng(7)
    return [draw(rng, seconds, TRAITS, AMBIENT, rooms) for _ in range(count)]


@pytest.mark.parametrize(
    "verb,third,going",
    [
        ("bark", "barks", "barking"),
        ("crash on the shore", "crashes on the shore", "crashing on the shore"),
        ("go off", "goes off", "going off"),
        ("cry", "cries", "crying"),
        ("play a rhythm", "plays a rhythm", "playing a rhythm"),
        ("hum", "hums", "humming"),
        ("drip", "drips", "dripping"),
        ("chime", "chimes", "chiming"),
        ("beep", "beeps", "beeping"),
        ("hiss", "hisses", "hissing"),
    ],
)
def test_verbs_are_inflected(verb: str, third: str, going: str) -> None:
    assert (third_person(verb), participle(verb)) == (third, going)


def test_plurals() -> None:
    assert all(map(is_plural, ("birds", "people", "waves", "knuckles", "many voices")))
    assert not any(map(is_plural, ("a bird", "glass", "the sea", "rain", "someone", "a woman in heels")))


def test_words_of_different_sounds_do_not_mean_the_same() -> None:
    """Subject and verb together name one class of sound."""
    pairs = [(s, v) for words in LEXICON.values() for s in words.subjects for v in words.verbs]
    assert len(pairs) == len(set(pairs))
    assert all(
        len(words.subjects) >= 5 and len(words.verbs) >= 5 and len(words.tags) == 3 for words in LEXICON.values()
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_a_caption_says_every_stated_fact_and_no_other(writer: str) -> None:
    rng = np.random.default_rng(0)
    for scene in drawn(60):
        statement = state(scene, EXACT, rng)
        text = write(statement, writer, LEXICON, EXACT, rng)
        heard = f" {text.lower().rstrip('.')} ".replace(",", " ")
        said = {value for value, phrases in ADVERBS.items() if any(f" {p} " in heard for p in phrases)}
        said |= {value for value, words in ADJECTIVES.items() if any(f" {w} " in heard for w in words)}
        stated = {value for claim in statement.claims for value in claim.traits.values()} | {statement.room} - {""}
        assert stated <= said, (text, stated, said)
        assert said - stated <= {"once", "loud"}, (text, stated, said)  # "at once", "a loud ..." of another fact
        for claim in statement.claims:
            words = LEXICON[claim.sound]
            forms = [f for verb in words.verbs for f in (verb, third_person(verb), participle(verb))]
            assert any(f" {form} " in heard for form in forms), (text, claim)
        assert (" in the background" in heard or "a backdrop of" in heard) == any(
            c.background for c in statement.claims
        )
        assert "{" not in text and "  " not in text and text[0] == text[0].upper()


def test_the_order_in_words_is_the_order_in_time() -> None:
    rng = np.random.default_rng(1)
    statement = Statement((Claim("dog"), Claim("bell")), ("then",))
    for writer in WRITERS * 20:
        text = write(statement, writer, LEXICON, FULL, rng).lower()
        dog = min(text.find(w) for s in LEXICON["dog"].subjects if (w := s.split()[-1]) in text)
        bell = min(text.find(w) for s in LEXICON["bell"].subjects if (w := s.split()[-1]) in text)
        turned = "preceded by" in text
        assert (bell < dog) == turned, text


def test_captions_are_as_long_as_clothos_and_each_writer_has_a_form() -> None:
    rng = np.random.default_rng(0)
    texts = {w: [caption(scene, w, LEXICON, CLOTHO, rng)[0] for scene in drawn(80)] for w in WRITERS}
    lengths = [len(text.split()) for writer in WRITERS[:5] for text in texts[writer]]
    assert min(lengths) >= 8 and max(lengths) <= 20 and 10 < np.mean(lengths) < 15
    assert np.mean([len(text.split()) for text in texts["title"]]) < np.mean(lengths)
    heard = {writer: np.mean(["can be heard" in text for text in listed]) for writer, listed in texts.items()}
    assert heard.pop("passive") > 0.9 and not any(heard.values())
    assert len({text for listed in texts.values() for text in listed}) > 0.98 * 6 * 80


def test_shortening_keeps_statement_and_text_together() -> None:
    rng = np.random.default_rng(0)
    for scene in drawn(100):
        text, statement = caption(scene, "plain", LEXICON, FULL, rng, longest=14)
        assert len(text.split()) <= 14 and statement.claims and holds(statement, scene)
        assert len(statement.relations) == sum(not claim.background for claim in statement.claims) - 1


def test_true_statements_hold_and_habits_do_what_they_say() -> None:
    rng = np.random.default_rng(0)
    omitted, wrong, background = [], [], []
    for scene in drawn(400):
        assert holds(state(scene, EXACT, rng), scene)
        careless = state(scene, Habits(wrong=0.2), rng)
        for claim in careless.claims:
            event = next(event for event in scene.events if event.sound == claim.sound)
            omitted.append((len(event.traits) - len(claim.traits), len(event.traits)))
            wrong += [event.traits[trait] != value for trait, value in claim.traits.items()]
        if any(event.background for event in scene.events):
            background.append(any(claim.background for claim in careless.claims))
    missing, possible = np.sum(omitted, axis=0)
    assert missing / possible == pytest.approx(0.6, abs=0.05)
    assert np.mean(wrong) == pytest.approx(0.2, abs=0.05) and np.mean(background) == pytest.approx(0.6, abs=0.08)


def test_keywords_name_unsaid_sounds_too_and_some_noise() -> None:
    rng = np.random.default_rng(0)
    tags = [keywords(SCENE, rng).split(";") for _ in range(400)]
    own = {tag for sound in SCENE.sounds for tag in LEXICON[sound].tags}
    strange = np.mean([tag not in own for listed in tags for tag in listed])
    assert 0.08 < strange < 0.2 and np.mean(["rain" in listed for listed in tags]) > 0.75
    assert all(len(set(listed)) == len(listed) for listed in tags)


def test_typos_swap_two_letters() -> None:
    statement, swapped = Statement((Claim("bird"),)), 0
    for seed in range(20):
        words = replace(LEXICON["bird"], subjects=("a songbird",), verbs=("twitter",))
        right, wrong = (
            write(statement, "plain", {"bird": words}, Habits(typo=typo), np.random.default_rng([seed]))
            for typo in (0, 1)
        )
        different = [place for place, pair in enumerate(zip(right, wrong, strict=True)) if pair[0] != pair[1]]
        assert sorted(right) == sorted(wrong)
        assert not different or (len(different) == 2 and different[1] - different[0] == 1)
        swapped += bool(different)
    assert swapped >= 10


def test_relations() -> None:
    first, after, during = Event("dog", 0.0, 1.0), Event("bell", 1.0, 0.5), Event("bell", 0.5, 1.0)
    assert (relation(first, after), relation(first, during)) == ("then", "while")
    assert relation(first, Event("bell", 0.9, 1.0)) == "" and relation(after, first) == ""


def test_drawn_scenes_are_sound() -> None:
    for scene in [*drawn(300), *drawn(50, 30.0), *drawn(50, 1.0)]:
        front = [event for event in scene.events if not event.background]
        assert 1 <= len(front) <= 3 and len(scene.sounds) == len(scene.events)
        assert all(0 <= event.start and event.end <= scene.seconds + 1e-6 for event in scene.events)
        assert all(relation(a, b) in ("then", "while") for a, b in pairwise(front))
        assert list(scene.events[len(front) :]) == [event for event in scene.events if event.background]
        assert from_json(to_json(scene, [])) == (scene, [])
    assert {scene.room for scene in drawn(100, rooms=False)} == {"dry"}


def test_siblings_have_the_same_sounds_and_other_facts() -> None:
    changed = []
    for scene in drawn(200):
        full = state(scene, FULL, np.random.default_rng(0))
        backwards, flipped = reverse(scene), opposite(scene)
        assert scene.sounds == backwards.sounds == flipped.sounds
        assert reverse(backwards) == scene and holds(state(backwards, FULL, np.random.default_rng(0)), backwards)
        changed.append(holds(full, backwards))
        assert not any(event.traits for event in scene.events if not event.background) or not holds(full, flipped)
        assert changed[-1] == ("then" not in full.relations)
    assert 0.1 < np.mean(changed) < 0.6


def test_opposites_are_mutual() -> None:
    assert {OPPOSITE[OPPOSITE[value]] for value in OPPOSITE} == set(OPPOSITE)
    assert set(OPPOSITE) == {value for values in scenes.TRAITS.values() for value in values}


def naive_holds(statement: Statement, scene: Scene) -> bool:
    """The definition, by brute force: some choice of different events fits every claim and relation."""
    count = len(statement.claims)
    if statement.room not in ("", scene.room):
        return False
    for chosen in permutations(scene.events, count):
        fits = all(
            (event.sound, event.background) == (claim.sound, claim.background)
            and claim.traits.items() <= event.traits.items()
            for event, claim in zip(chosen, statement.claims, strict=True)
        )
        pairs = list(pairwise(chosen))[: len(statement.relations)]
        if fits and all(relation(*pair) == said for pair, said in zip(pairs, statement.relations, strict=True)):
            return True
    return False


def test_relevance_equals_its_definition() -> None:
    rng = np.random.default_rng(3)
    few = {name: TRAITS[name] for name in ("dog", "bell", "rain", "wind")}
    listed = [draw(rng, 2.0, few, ["rain", "wind"], rooms=True) for _ in range(40)]
    statements = [state(scene, Habits(wrong=0.2), rng) for scene in listed for _ in range(2)]
    owners = [number for number in range(40) for _ in range(2)]
    expected = np.array([[naive_holds(statement, scene) for scene in listed] for statement in statements])
    assert expected.sum() > 120 and not expected[np.arange(80), owners].all()
    expected[np.arange(80), owners] = True
    assert np.array_equal(relevance(statements, owners, listed), expected)


def test_two_events_of_one_sound_are_two() -> None:
    twice = Statement((Claim("dog"), Claim("dog")), ("then",))
    one = Scene((Event("dog", 0.0, 0.5),), 2.0)
    assert not holds(twice, one) and facts_that_hold(twice, one)[0] == 3
    assert holds(twice, Scene((Event("dog", 0.0, 0.5), Event("dog", 1.0, 0.5)), 2.0))


def test_oracles_by_hand() -> None:
    listed = [SCENE, reverse(SCENE), Scene((Event("dog", 0.0, 1.0),), 2.0), Scene((Event("horn", 0.0, 1.0),), 2.0)]
    said = [Statement((Claim("dog"), Claim("bell")), ("then",))]
    assert tag_similarity(said, listed)[0] == pytest.approx([2 / 6**0.5, 2 / 6**0.5, 1 / 2**0.5, 0])
    assert fact_similarity(said, listed)[0] == pytest.approx([1 - 0.01, 2 / 3 - 0.01, 1 / 3, 0])
