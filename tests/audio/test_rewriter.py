import itertools
from dataclasses import replace

import numpy as np
import pytest

from retable.tasks.audio.rewrite.rewriter import LONGEST, rewrite, sounds
from retable.tasks.audio.world.captions import ADVERBS, CLOTHO, LEXICON, WRITERS, write
from retable.tasks.audio.world.scenes import Claim, Statement

KINDS = ("dog", "bell", "rain", "frog", "engine", "glass")
UNMISTAKABLE = {"dog": ("bark", "yap", "woof", "yelp", "bay"), "frog": ("croak", "ribbit", "toad", "frog", "amphibian")}


def stem(word):
    return word.lower().strip(".,")


def place(text, sound):
    """Where a text first has a noun of a class, by plain search; -1: nowhere."""
    text = f" {text.lower().strip('.')} ".replace(",", " ")
    nouns = [
        subject.split(" ", 1)[1] if subject[:2] in ("a ", "an") else subject for subject in LEXICON[sound].subjects
    ]
    nouns = [noun.removeprefix("the ").removeprefix("n ") for noun in nouns]
    found = [text.find(f" {noun} ") for noun in nouns if f" {noun} " in text]
    return min(found, default=-1)


def captions(relation="", background=False, room=""):
    """Captions of two sounds of every kind by every writer, without typing errors."""
    rng = np.random.default_rng(0)
    careful = replace(CLOTHO, typo=0.0)
    for writer, (first, second) in itertools.product(WRITERS, itertools.permutations(KINDS, 2)):
        claims = (Claim(first), Claim(second, background=background))
        statement = Statement(claims, () if background else (relation,), room)
        yield first, second, write(statement, writer, LEXICON, careful, rng)


def test_five_forms_that_are_all_different_and_short():
    for _, _, caption in captions("while"):
        forms = rewrite(caption, "")
        assert len(forms) == 5
        assert len({tuple(map(stem, form.split())) for form in (*forms, caption)}) == 6
        for form in forms:
            assert len(form.split()) <= max(LONGEST, len(caption.split()))
            assert form[0].isupper() and form.endswith(".") and "  " not in form
            assert "heard" not in form and "recorded" not in form


@pytest.mark.parametrize(("relation", "background"), [("then", False), ("while", False), ("", True)])
def test_forms_keep_the_sounds_and_add_none(relation, background):
    for first, second, caption in captions(relation, background):
        for form in rewrite(caption, ""):
            assert place(form, first) >= 0 and place(form, second) >= 0, (caption, form)
            for other in {*KINDS} - {first, second}:
                assert place(form, other) < 0, (caption, form)


def test_forms_keep_the_order_of_events():
    for first, second, caption in captions("then"):
        for form in rewrite(caption, ""):
            turned = " preceded by " in form
            assert (place(form, first) < place(form, second)) != turned, (caption, form)
            assert any(word in form.lower() for word in ("then", "before", "after", "followed", "preceded")), form


def test_forms_keep_the_background_behind():
    for _, second, caption in captions(background=True):
        for form in rewrite(caption, ""):
            text = form.lower()
            assert "background" in text or "backdrop" in text
            behind = text.split(" as ")[0] if text.startswith("in the background") else text
            behind = behind.split(" backdrop of ")[-1]
            assert place(behind, second) >= 0, (caption, form)


def test_forms_keep_the_room_in_its_synonyms():
    for _, _, caption in captions("while", room="hall"):
        assert all(any(words in form for words in ADVERBS["hall"]) for form in rewrite(caption, ""))


def test_forms_use_other_words_of_the_same_sounds():
    """What augmentation is for: the words of a dog that one writer uses become nearly all that there are."""
    used = set()
    for seed in range(30):
        for form in rewrite("A dog barks while a bell rings.", "", seed=seed):
            used |= {verb for verb in LEXICON["dog"].verbs if verb[:3] in form}
    assert used == {*LEXICON["dog"].verbs}


def test_the_good_rewriter_alone_mentions_what_keywords_add():
    """A frog in the keywords: the good rewriter names it, often; the one without keywords never does."""
    named = {"keywords": 0, "no_keywords": 0}
    for how in named:
        for seed in range(20):
            forms = rewrite("A dog barks loudly.", "dog;bark;frog;croak", how, seed)
            assert all(any(verb in form for verb in UNMISTAKABLE["dog"]) for form in forms)
            named[how] += sum(any(word in form.lower() for word in UNMISTAKABLE["frog"]) for form in forms)
    assert named["no_keywords"] == 0
    assert 30 <= named["keywords"] <= 80  # of 100


def test_keywords_that_are_no_sounds_are_left_out():
    forms = rewrite("A dog barks loudly.", "field-recording;H4n;Vienna;2015;stereo;barks;noise", "keywords")
    said = " ".join(forms).lower()
    assert not any(word in said for word in ("field", "h4n", "vienna", "2015", "stereo", "noise sounds"))
    assert any("market sounds" in form for form in rewrite("Someone is laughing.", "market", "keywords"))


def test_the_hallucinating_rewriter_names_an_absent_sound_in_every_form():
    for seed in range(20):
        for form in rewrite("A frog croaks.", "frog;dog", "hallucinated", seed):
            assert sounds(form) - {"frog", "dog"}
            assert not any(f" {verb}" in form for verb in ("barks", "woofs", "yaps"))


@pytest.mark.parametrize(
    "caption",
    [
        "A person is making noise by tapping their fingernails on a solid surface.",
        "Cars drive by as people talk and laugh outside",
        "A kettle drum thing, while a strange laugh comes, such as in a factory",
        "An unknown machine is humming loudly, such as in a factory.",
        "Rain",
    ],
)
def test_other_english_keeps_its_words_but_for_synonyms(caption):
    forms = rewrite(caption, "")
    assert len(forms) == 5
    kept = {"tapping", "fingernails", "laugh", "unknown", "humming", "factory", "rain"} & {*map(stem, caption.split())}
    for form in forms:
        assert kept <= {*map(stem, form.split())}, form
        assert ",." not in form


def test_articles_fit_the_words_behind_them():
    for _, _, caption in captions("while"):
        for form in rewrite(caption, "wind;crickets"):
            words = [stem(word) for word in form.split()]
            for article, word in itertools.pairwise(words):
                if article in ("a", "an"):
                    assert (article == "an") == (word[0] in "aeiou"), form


@pytest.mark.parametrize(
    "caption", ["", "...", "a", "После дождя", "一只狗在叫", "?!", "word " * 500, "Eine Frau spricht"]
)
def test_what_is_no_english_caption_has_no_forms(caption):
    assert rewrite(caption, "dog;bark") == ()


def test_forms_depend_on_seed_rules_and_caption_only():
    caption = "A dog is barking."
    assert rewrite(caption, "rain", seed=3) == rewrite(caption, "rain", seed=3)
    others = {
        rewrite(caption, "rain", how, seed) for how in ("keywords", "no_keywords", "hallucinated") for seed in (0, 1)
    }
    assert len(others) == 6
