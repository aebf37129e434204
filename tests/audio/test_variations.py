import json
from dataclasses import replace

import pytest

from retable.platform.errors import UserError
from retable.tasks.audio.collect.recordings import Recording
from retable.tasks.audio.rewrite import variations
from retable.tasks.audio.rewrite.variations import Variation

FORMS = ["A hound bays.", "A dog yaps.", "A puppy barks.", "A canine woofs.", "A dog is barking."]


def recording(number, file, captions, corpus="clotho", split="training"):
    return Recording(number, file, corpus, split, "", 1.0, tuple(captions), "dog")


RECORDINGS = [
    recording(0, "dog, outside.wav", ["A dog barks.", "A dog, barking"]),
    recording(1, "video.wav", ["A dog barks."], corpus="audiocaps"),
    recording(2, "held out.wav", ["A dog barks."], split="test"),
    recording(3, "rain.wav", ["Rain falls."]),
]


def published(**changes):
    """An object of the file that the paper's code writes."""
    row = {
        "idx": 0,
        "path": "/data/clotho/development/dog, outside.wav",
        "caption": "a dog barks",
        "query": "I will give ...",
        "response": {"choices": [{"message": {"content": "\n".join(FORMS)}, "finish_reason": "stop"}]},
        "variations": FORMS,
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
    }
    return {**row, **changes}


def read(tmp_path, rows):
    path = tmp_path / "variations.json"
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows), encoding="utf-8")
    return variations.read(path)


def test_the_published_form_fills_the_captions_that_it_names(tmp_path):
    filled, count = variations.fill(RECORDINGS, read(tmp_path, [published()]))
    assert count == 1
    assert [each.rewrites for each in filled] == [(tuple(FORMS), ()), (), (), ((),)]
    assert [replace(each, rewrites=()) for each in filled] == RECORDINGS


def test_answers_that_were_kept_whole_are_split_again(tmp_path):
    text = "Sure:\n" + "\n".join(f"{n}. {form}" for n, form in enumerate(FORMS, 1))
    response = {"choices": [{"message": {"content": text}}]}
    (row,) = read(tmp_path, [published(variations=text.split("\n"), response=response)])
    assert row.variations == tuple(FORMS)
    (row,) = read(tmp_path, [published(variations=["A hound bays.", " "], response=None)])
    assert row.variations == ("A hound bays.",)


def test_what_is_written_is_read_back_and_has_the_published_keys(tmp_path):
    rows = [
        Variation(0, "a.wav", "A dog barks.", "?", {"choices": []}, tuple(FORMS), "stop", {"prompt_tokens": 7}),
        Variation(1, "ü 雨.wav", "雨", "", None, (), "", {}),
    ]
    path = tmp_path / "new folder" / "variations.json"
    variations.write(path, rows)
    assert variations.read(path) == rows
    assert [list(row) for row in json.loads(path.read_text())] == [list(published())] * 2
    assert [file.name for file in path.parent.iterdir()] == ["variations.json"]


def test_captions_count_as_in_the_published_file():
    assert [(each.file, caption) for each, caption in variations.captions(RECORDINGS)] == [
        ("dog, outside.wav", "A dog barks."),
        ("dog, outside.wav", "A dog, barking"),
        ("rain.wav", "Rain falls."),
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("{not json", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ({"a": 1}, "not a list"),
        ([published(), 7], "object 1 has no path and caption"),
        ([published(caption=None)], "object 0 has no path and caption"),
        ([published(variations="A dog")], "object 0: variations"),
        ([published(variations=[1])], "object 0: variations"),
    ],
)
def test_foreign_files_are_refused_in_one_line(tmp_path, rows, said):
    with pytest.raises(UserError, match=said) as caught:
        read(tmp_path, rows)
    assert "\n" not in str(caught.value) and "variations.json" in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        variations.read(tmp_path / "variations.json")


@pytest.mark.parametrize("response", [None, {}, {"choices": []}, {"choices": [None]}, {"choices": [{"message": {}}]}])
def test_a_response_without_text(response):
    assert variations.content(response) == ""
