import ast
import itertools
import re
from pathlib import Path

import pytest

from benchmarks import audio_thesaurus
from retable.tasks.audio.rewrite import rewriter, thesaurus
from retable.tasks.audio.rewrite.rewriter import ABSENT, LONGEST, rewrite
from retable.tasks.audio.world import captions as grammar
from retable.tasks.audio.world import generate
from tests.documents import ROOT

CLAUSES = {
    "dog": ("a dog barks", "a dog is barking", "dog barking", "the barking of a dog"),
    "bell": ("a bell rings", "a bell is ringing", "bell ringing", "the ringing of a bell"),
    "crickets": ("the crickets are chirping", "crickets chirping"),
    "engine": ("an engine idles loudly", "an engine is idling loudly", "engine idling loudly"),
}
JOINTS = {
    "then": ("{a} and then {b}", "{a} before {b}", "after {a}, {b}", "{a} followed by {b}", "{b} preceded by {a}"),
    "while": ("{a} while {b}", "{a} as {b}", "while {b}, {a}", "{a} along with {b}"),
    "background": ("{a} while {b} in the background", "in the background {b} as {a}"),
}


def captions(relation):
    """Two sounds in every form, joined in every way."""
    for (first, ones), (second, others) in itertools.permutations(CLAUSES.items(), 2):
        for joint, a, b in itertools.product(JOINTS[relation], ones, others):
            yield first, second, joint.format(a=a, b=b).capitalize() + "."


def test_the_rewriter_has_no_words_of_the_generator():
    """Its words come from WordNet: neither module of the rewriter imports the generated world."""
    for module in (rewriter, thesaurus):
        nodes = [*ast.walk(ast.parse(Path(module.__file__).read_text()))]
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        names += [each.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for each in node.names]
        assert names and not any("world" in name.split(".") for name in names)


def templates(tables):
    """Return the distinct templates of two parts."""
    return {template for options in tables for template in options}


def test_the_documents_count_what_rewriter_and_generator_share():
    """Words are WordNet's; of the templates, joints and voices the documents say how many are the generator's."""
    ours = templates(rewriter.JOINED.values())
    theirs = templates([*grammar.CLAUSES.values(), *grammar.PHRASES.values()])
    assert (len(ours & theirs), len(ours)) == (9, 16)
    joints = {between[1] for template in theirs if (between := re.search(r"{[ab]}(.+){[ab]}", template))}
    assert (len(joints & rewriter.INFIX.keys()), len(rewriter.INFIX)) == (11, 13)
    page = " ".join((ROOT / "docs/tasks/audio_rewrite.md").read_text().split())
    for said in (" ".join(rewriter.__doc__.split()), page):
        assert "9 of its 16 templates" in said and "11 of the 13 joints" in said and "four voices" in said
    assert {"plain", "progressive", "nominal", "terse"} < {*grammar.WRITERS}


def test_training_captions_have_each_form_of_the_generator(monkeypatch):
    """So rewriting adds none of the forms that it shares with the generator: tagged, each occurs in training."""
    for name in ("CLAUSES", "PHRASES"):
        tagged = {
            relation: tuple(f"{{a}} {name}-{relation}-{n} {{b}}" for n, _ in enumerate(options))
            for relation, options in getattr(grammar, name).items()
        }
        monkeypatch.setattr(grammar, name, tagged)
    wanted = {
        template.split()[1]
        for name in ("CLAUSES", "PHRASES")
        for template in templates(getattr(grammar, name).values())
    }
    written = [generate.describe(generate.world("quick"), "clotho", "training", n).captions for n in range(200)]
    assert wanted and wanted <= set(re.findall(r"(?:CLAUSES|PHRASES)-\w+-\d", " ".join(itertools.chain(*written))))
    assert {len(each) for each in written} == {5}  # one a writer, and so a voice


@pytest.mark.parametrize("relation", JOINTS)
def test_five_forms_that_are_all_different_and_short(relation):
    for _, _, caption in captions(relation):
        forms = rewrite(caption, "")
        assert len(forms) == 5
        assert len({tuple(form.lower().strip(".").split()) for form in (*forms, caption)}) == 6
        for form in forms:
            assert len(form.split()) <= max(LONGEST, len(caption.split()))
            assert form[0].isupper() and form.endswith(".") and "  " not in form
            assert "heard" not in form and "recorded" not in form


@pytest.mark.parametrize("relation", JOINTS)
def test_forms_keep_the_sounds_and_their_relation(relation):
    for first, second, caption in captions(relation):
        for form in rewrite(caption, ""):
            text = form.lower()
            assert first in text and second in text, (caption, form)
            if relation == "then":
                assert text.index(first) < text.index(second), (caption, form)
                assert "then" in text or "followed by" in text, (caption, form)
            if relation == "background":
                behind = text.split(" as ")[0].split(", in front")[0] if text.startswith("in the b") else text
                assert "in the background" in text and second in behind.split(" while ")[-1].split(" with ")[-1]


def test_forms_use_other_words_of_the_thesaurus():
    used = {form.split()[1] for seed in range(20) for form in rewrite("A car speeds.", "", seed=seed)}
    assert {"car", "automobile"} <= used
    assert "metal" in " ".join(rewrite("A person is tapping on a surface.", "metal", seed=1))


@pytest.mark.parametrize(
    ("verb", "third", "ing"),
    [
        ("bark", "barks", "barking"),
        ("crash", "crashes", "crashing"),
        ("fly", "flies", "flying"),
        ("hum", "hums", "humming"),
        ("wave", "waves", "waving"),
        ("sing", "sings", "singing"),
        ("blow", "blows", "blowing"),
    ],
)
def test_verbs_are_known_by_their_forms(verb, third, ing):
    assert (rewriter.third_person(verb), rewriter.participle(verb)) == (third, ing)
    assert rewriter.inflections()[third] == (verb, "third") and rewriter.inflections()[ing] == (verb, "ing")


def test_a_voice_is_changed():
    forms = {form for seed in range(10) for form in rewrite("A dog is barking loudly.", "", seed=seed)}
    assert any(" barks" in form for form in forms) and any("barking of" in form for form in forms)


def test_the_good_rewriter_alone_mentions_what_keywords_add():
    named = {"keywords": 0, "no_keywords": 0}
    for how in named:
        for seed in range(20):
            forms = rewrite("A dog barks loudly.", "dog;barking;frog;croak", how, seed)
            assert all("bark" in form and "barking sounds" not in form for form in forms)
            named[how] += sum(any(word in form for word in ("frog sounds", "croak sounds")) for form in forms)
    assert named["no_keywords"] == 0
    assert 30 <= named["keywords"] <= 80  # of 100


def test_keywords_that_are_no_sounds_are_left_out():
    forms = rewrite("A dog barks loudly.", "field-recording;H4n;Vienna;2015;stereo;barks;noise", "keywords")
    said = " ".join(forms).lower()
    assert not any(word in said for word in ("field", "h4n", "vienna", "2015", "stereo", "noise sounds"))
    assert any("market sounds" in form for form in rewrite("Someone is laughing.", "market", "keywords"))


def test_the_hallucinating_rewriter_names_an_absent_sound_in_every_form():
    for seed in range(20):
        forms = rewrite("A frog croaks.", "frog;harp", "hallucinated", seed)
        assert all(any(sound in form for sound in ABSENT) and "harp" not in form for form in forms) and forms


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
def test_other_english_keeps_what_is_said(caption):
    forms = rewrite(caption, "")
    assert len(forms) == 5
    kept = {word for word in ("unknown", "kettle") if word in caption}
    for form in forms:
        assert all(word in form for word in kept) and ",." not in form


def test_articles_fit_the_words_behind_them():
    for _, _, caption in captions("while"):
        for form in rewrite(caption, "wind;crickets"):
            for article, word in itertools.pairwise(form.lower().strip(".").split()):
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


def test_a_thesaurus_is_condensed_of_first_attested_meanings(tmp_path):
    """Of "auto" the car is the first meaning; "wheels" is not attested; a "gondola" is a second meaning."""
    (tmp_path / "index.sense").write_text(
        "auto%1:06:00:: 00000001 1 5\ncar%1:06:00:: 00000001 1 9\nwheels%1:06:00:: 00000001 1 0\n"
        "gondola%1:06:00:: 00000001 2 3\nhum%2:39:00:: 00000002 1 2\n"
    )
    (tmp_path / "data.noun").write_text(
        "  1 a licence\n00000001 06 n 04 auto 0 car 0 wheels 0 gondola 0 000 | a motor vehicle\n"
    )
    (tmp_path / "data.verb").write_text("00000002 39 v 01 hum 0 000 | sound\n")
    (tmp_path / "data.adv").write_text("")
    assert list(audio_thesaurus.condense(tmp_path)) == ["n auto car", "v hum"]
    assert thesaurus.FILE.read_text().startswith(audio_thesaurus.HEADER)
    assert thesaurus.groups("n")["automobile"] == thesaurus.groups("n")["car"]
