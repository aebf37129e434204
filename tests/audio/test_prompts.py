import pytest

from retable.tasks.audio.rewrite.prompts import LONGEST, WANTED, parse, prompt, script

CAPTION = "A person is making noise by tapping their fingernails on a solid surface."
FORMS = (
    "The sound of nails tapping on a metal surface is heard.",
    "Fingernails are producing a dull sound when tapped.",
    "A person is tapping their nails on a solid, metal surface.",
    "2 hands are tapping with their nails.",
    "Nails are rhythmically tapping on a hard metal object.",
)


def numbered(mark):
    return "\n".join(mark(number, form) for number, form in enumerate(FORMS, 1))


ROMAN = ("i", "ii", "iii", "iv", "v")
WORDS = ("One", "Two", "Three", "Four", "Five")
LAYOUTS = {
    "point": numbered(lambda n, form: f"{n}. {form}"),
    "bracket": numbered(lambda n, form: f"  {n}) {form}  "),
    "brackets": numbered(lambda n, form: f"({n}) {form}"),
    "square": numbered(lambda n, form: f"[{n}] {form}"),
    "colon": numbered(lambda n, form: f"{n}: {form}"),
    "dash": numbered(lambda n, form: f"{n} - {form}"),
    "hash": numbered(lambda n, form: f"#{n}: {form}"),
    "nothing but the number": numbered(lambda n, form: f"{n} {form}"),
    "number glued": numbered(lambda n, form: f"{n}{form}" if n != 4 else f"{n} {form}"),
    "number and quotes": numbered(lambda n, form: f'{n} "{form}"'),
    "letter": numbered(lambda n, form: f"{'abcde'[n - 1]}) {form}"),
    "roman": numbered(lambda n, form: f"{ROMAN[n - 1]}. {form}"),
    "word": numbered(lambda n, form: f"{WORDS[n - 1]}: {form}"),
    "full width": numbered(lambda n, form: f"{chr(0xFF10 + n)}． {form}"),
    "circled": numbered(lambda n, form: f"{chr(0x245F + n)}. {form}"),
    "label": numbered(lambda n, form: f"Caption {n}: {form}"),
    "label and number": numbered(lambda n, form: f"{n}. **Caption:** {form}"),
    "bullets": numbered(lambda n, form: f"- {form}"),
    "stars": numbered(lambda n, form: f"* {form}"),
    "bold number": numbered(lambda n, form: f"**{n}.** {form}"),
    "bold form": numbered(lambda n, form: f"{n}. **{form}**"),
    "quotes": numbered(lambda n, form: f'{n}. "{form}"'),
    "curly quotes": numbered(lambda n, form: f"{n}. “{form}”"),
    "single quotes": numbered(lambda n, form: f"{n}. '{form}'"),
    "blank lines": numbered(lambda n, form: f"{n}. {form}\n\n   \n"),
    "windows": numbered(lambda n, form: f"{n}. {form}\r"),
    "count of words": numbered(lambda n, form: f"{n}. {form} (11 words)"),
    "number above": numbered(lambda n, form: f"{n}.\n{form}"),
    "table": "| # | caption |\n|---|---|\n" + numbered(lambda n, form: f"| {n}. | {form} |"),
    "plain lines": "\n".join(FORMS),
    "one line": " ".join(f"{n}. {form}" for n, form in enumerate(FORMS, 1)),
    "code": "```\n" + numbered(lambda n, form: f"{n}. {form}") + "\n```\nThat was it.",
    "pleasantries": f"Sure! Here are 5 captions:\n\n{numbered(lambda n, form: f'{n}. {form}')}\n\nAnything else?",
    "thoughts": f"<think>1. Is it a dog?\n2. No.</think>{numbered(lambda n, form: f'{n}. {form}')}",
    "entities": numbered(lambda n, form: f"{n}. &quot;{form}&quot;"),
    "json list": str(list(FORMS)).replace("'", '"'),
    "json object": '{"captions": ' + str(list(FORMS)).replace("'", '"') + "}",
    "json numbers": "{" + ", ".join(f'"{n}": "{form}"' for n, form in enumerate(FORMS, 1)) + "}",
    "json fenced": "Here:\n```json\n["
    + ", ".join(f'{{"id": {n}, "text": "{f}"}}' for n, f in enumerate(FORMS))
    + "]\n```",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_five_captions_are_found_in_every_layout(layout):
    assert parse(LAYOUTS[layout], CAPTION).captions == FORMS


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I'm sorry, but I can't help with that.", "refusal"),
        ("I’m sorry, I cannot rephrase this.", "refusal"),
        ("As an AI language model, I have no ears.", "refusal"),
        ("Here are five captions:", "introduction"),
        ("1.\n2.\n3. !!!", "no words"),
        ("1. " + "word " * (LONGEST + 1), "words"),
        (f"1. {CAPTION.upper()}", "the caption itself"),
        ("1. 有人在敲桌子\n", "another script"),
        ("\x00\x01\x02{]", "no words"),
    ],
)
def test_what_is_no_caption_is_dropped_with_its_reason(answer, reason):
    parsed = parse(answer, CAPTION)
    assert parsed.captions == ()
    assert any(reason in line for line in parsed.dropped)
    assert all("\n" not in line for line in parsed.dropped)


@pytest.mark.parametrize("answer", ["", "   \n\n", "[]", "{}", "null", "```", "<think>never ends", "[" * 100_000])
def test_an_answer_of_nothing_gives_nothing(answer):
    assert parse(answer, CAPTION).captions == ()


def test_fewer_more_and_repeated_forms():
    three = parse("1. Nails tap.\n2. nails tap!\n3. A nail taps.", CAPTION)
    assert three.captions == ("Nails tap.", "A nail taps.")
    assert three.dropped == ("repeated: nails tap!",)
    seven = parse("\n".join(f"{n}. Nails tap {n} times." for n in range(1, 8)), CAPTION)
    assert len(seven.captions) == WANTED
    assert [line.split(":")[0] for line in seven.dropped] == ["more than 5"] * 2


def test_an_answer_cut_at_its_limit_loses_the_half_sentence_only():
    text = "1. Nails tap on metal.\n2. A hand taps with its"
    assert parse(text, CAPTION, cut=True).captions == ("Nails tap on metal.",)
    assert parse(text, CAPTION, cut=False).captions[1] == "A hand taps with its"
    assert len(parse("1. Nails tap.\n2. A nail taps.", CAPTION, cut=True).captions) == 2


def test_numbers_that_belong_to_the_sentence_stay():
    assert parse("1. 3 dogs bark.\n2. 1.5 seconds of beeps.", CAPTION).captions == (
        "3 dogs bark.",
        "1.5 seconds of beeps.",
    )
    assert parse("2 dogs bark.\nA dog barks at 2 cats.", CAPTION).captions[0] == "2 dogs bark."


@pytest.mark.parametrize(
    "mark", ["1", "1 ", "1. ", "1.", "1) ", "1)", "(1) ", "(1)", "1: ", "1 - ", "- ", "-", "* ", "*", "• ", "①"]
)
@pytest.mark.parametrize("form", ["A hound yaps.", "a hound yaps.", "The hound yaps.", "Hounds yap at 2 cats."])
def test_a_mark_before_a_single_caption_goes(mark, form):
    assert parse(mark + form, CAPTION).captions == (form,)


@pytest.mark.parametrize(
    "captions",
    [
        ["2 dogs bark."],
        ["1 car passes."],
        ["10 people clap."],
        ["3D printers hum loudly."],
        ["1st a dog barks, then a cat meows."],
        ["1-2 dogs bark."],
        ["1:30 minutes of rain pass."],
        ["1 car passes.", "2 cars pass."],
        ["10 people clap.", "20 people clap."],
        ["1 car passes.", "2 dogs bark.", "A cat meows.", "Rain falls hard.", "Wind blows."],
        ["1 German shepherd barks.", "A big dog barks."],
    ],
)
@pytest.mark.parametrize("mark", ["", "{}. ", "{}) ", "({}) ", "{}: ", "- ", "* "])
def test_captions_keep_the_numbers_that_they_begin_with(captions, mark):
    answer = "\n".join(mark.format(place) + caption for place, caption in enumerate(captions, 1))
    assert parse(answer, CAPTION).captions == tuple(captions)


def test_bare_numbers_are_indices_where_they_count_the_lines():
    assert parse("1A hound yaps.\n2The dog barks.\n3Someone shouts.", CAPTION).captions == (
        "A hound yaps.",
        "The dog barks.",
        "Someone shouts.",
    )
    assert parse("1 1 car passes.\n2 2 cars pass.", CAPTION).captions == ("1 car passes.", "2 cars pass.")
    assert parse("Here you go:\n1A hound yaps.", CAPTION).captions == ("A hound yaps.",)
    assert parse("1A hound yaps.\n3D printers hum.", CAPTION).captions == ("1A hound yaps.", "3D printers hum.")


def test_a_caption_in_another_script_keeps_forms_in_it():
    assert parse("1. 狗在叫个不停\n2. A dog barks.", "一只狗在叫").captions == ("狗在叫个不停",)
    assert [script(text) for text in ("a дождь", "雨が降る", "12 !?")] == ["CYRILLIC", "CJK", ""]


def test_the_question_is_the_papers():
    asked = prompt(CAPTION, "metal; finger nails ;;tapping")
    assert asked.startswith(
        "I will give a description of an audio recording and tags associated with the audio recording."
    )
    assert asked.endswith(f"Start each output sentence with its index. '{CAPTION}' [metal, finger nails, tapping]")
    assert "[" not in prompt(CAPTION, " ; ") and "tags" not in prompt(CAPTION, "")
    assert "'A dog\nbarks'" not in prompt("A dog\nbarks", "") and "'A dog barks'" in prompt("A dog\nbarks", "")


def test_the_code_asks_in_its_own_words():
    paper, code = (prompt(CAPTION, "tapping", wording) for wording in ("paper", "code"))
    assert paper == prompt(CAPTION, "tapping") and "the sound event. " in paper and '"heard" or "recorded"' in paper
    assert "the sound events. " in code and "“heard” or “recorded”" in code and '"' not in code.replace(CAPTION, "")
    assert code.endswith(f"'{CAPTION}' [tapping]")
    assert prompt('a "heard" dog', "x", "code").endswith("'a \"heard\" dog' [x]")  # the caption stays as it is
