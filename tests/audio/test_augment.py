import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from retable.platform.errors import UserError
from retable.tasks.audio.collect.recordings import Recording, digest, read_recordings, write_recordings
from retable.tasks.audio.prepare.prepare import is_published
from retable.tasks.audio.rewrite import augment, variations
from retable.tasks.audio.rewrite.augment import Endpoint, Pace, augment_dataset, rewrite_items

SOUND = "of three files"
CAPTIONS = tuple(f"A dog barks {number} times." for number in range(2, 8))


def completion(text, reason="stop"):
    """A recorded answer of an endpoint, with another text."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1684000000,
        "model": "toy-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
    }


def forms(query):
    """What the toy model makes of a caption: five forms that hold the caption's number."""
    number = query.split("barks ")[1].split(" ")[0]
    return tuple(f"Dog {letter} barks {number} times." for letter in "PQRST")


def good(query):
    return completion("\n".join(f"{n}. {form}" for n, form in enumerate(forms(query), 1)))


class Server:
    """An endpoint on this machine. `plan` holds what it does first for each caption, before it answers well."""

    def __init__(self):
        self.plan, self.queries, self.headers, self.times = {}, [], [], []
        self.busy = self.busiest = 0
        self.lock, self.ended = threading.Lock(), threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.answer(self, body["messages"][0]["content"], body["model"])

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def answer(self, request, query, model):
        with self.lock:
            self.queries.append(query)
            self.times.append(time.monotonic())
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            steps = self.plan.get(next((word for word in self.plan if word in query), None), [])
            step = steps.pop(0) if steps else good
        try:
            status, body, headers = step(query) if callable(step) else step, None, {}
            if isinstance(status, tuple):
                status, body, headers = status
            elif isinstance(status, dict | str | bytes):
                status, body = 200, status
            body = {"error": {"message": f"status {status}", "code": None}} if body is None else body
            data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
            request.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": len(data), **headers}.items():
                request.send_header(name, str(value))
            request.end_headers()
            request.wfile.write(data)
        except OSError:
            pass  # the client gave up
        finally:
            with self.lock:
                self.busy -= 1

    def asked(self):
        """How often each caption was asked for."""
        return Counter(query.split("'")[1] for query in self.queries)

    def close(self):
        self.ended.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch):
    server = Server()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.http.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    yield server
    server.close()


@pytest.fixture
def folder(storage):
    folder = storage / "data/audio/toy"
    recordings = [
        Recording(0, "one.wav", "clotho", "training", "", 1.0, CAPTIONS[:3], "dog;bark"),
        Recording(1, "two.wav", "audiocaps", "training", "", 1.0, ("A cat meows.",)),
        Recording(2, "three.wav", "clotho", "training", "", 1.0, CAPTIONS[3:]),
        Recording(3, "four.wav", "clotho", "test", "", 1.0, ("A dog barks 9 times.",)),
    ]
    write_recordings(folder, recordings)
    folder.write_json("dataset.json", {"name": "toy", "sound": SOUND, "digest": digest(recordings, [SOUND])})
    return folder


def endpoint(**changes):
    return Endpoint(**{"model": "toy-1", "pause": 0.01, "timeout": 60.0, "tries": 3, "concurrent": 2, **changes})


def rewritten(folder):
    return {
        c: forms for each in read_recordings(folder) for c, forms in zip(each.captions, each.rewrites, strict=False)
    }


def test_every_training_caption_of_clotho_gets_the_models_forms(folder, server, tmp_path):
    seen = []
    out = tmp_path / "variations.json"
    report = augment_dataset(
        folder, endpoint(price=(2.0, 4.0)), out=out, show=lambda done, total: seen.append((done, total))
    )
    assert rewritten(folder) == {caption: forms(caption) for caption in CAPTIONS}
    assert server.asked() == dict.fromkeys(CAPTIONS, 1)
    assert "tags" in server.queries[0] + server.queries[1] and any("[dog, bark]" in query for query in server.queries)
    assert (report.captions, report.rewritten, report.forms, report.asked) == (6, 6, 30, 6)
    assert report.tokens == (600, 300)
    assert report.cost == pytest.approx(6 * (100 * 2 + 50 * 4) / 1e6)
    assert seen == [(done, 6) for done in range(7)]
    rows = variations.read(out)
    assert [(row.idx, row.path, row.caption) for row in rows] == [
        (n, "one.wav" if n < 3 else "three.wav", caption) for n, caption in enumerate(CAPTIONS)
    ]
    assert rows[0].response["usage"] == rows[0].usage and rows[0].usage["total_tokens"] == 150
    info = folder.read_json("dataset.json")
    whole = digest(read_recordings(folder), [SOUND])
    rewriter = {"model": "toy-1", "captions": 6, "rewritten": 6}
    assert info == {"name": "toy", "sound": SOUND, "digest": whole, "rewrites": "toy-1", "rewriter": rewriter}


def test_a_second_call_asks_nothing_and_a_new_caption_only_for_itself(folder, server):
    first = augment_dataset(folder, endpoint())
    server.queries.clear()
    second = augment_dataset(folder, endpoint())
    assert server.queries == [] and second.asked == 0
    assert (second.forms, second.tokens) == (first.forms, first.tokens)
    recordings = read_recordings(folder)
    new = Recording(4, "five.wav", "clotho", "training", "", 1.0, ("A dog barks 88 times.",))
    write_recordings(folder, [*recordings, new])
    assert augment_dataset(folder, endpoint()).asked == 1
    assert server.asked() == {"A dog barks 88 times.": 1}
    assert augment_dataset(folder, endpoint(model="toy-2")).asked == 7  # another model's answers are its own


HOSTILE = [
    429,
    500,
    503,
    408,
    completion(""),
    completion(None),
    completion("\ud800\x00 \ud800"),
    completion("I'm sorry, but I cannot do that."),
    {},
    {"choices": []},
    {"choices": None, "usage": "many"},
    {"choices": [None]},
    {"choices": [{"message": {"content": [1, 2]}}]},
    (200, [], {}),
    "null",
    "no JSON at all",
    "<html>Bad gateway</html>",
    b"\xff\xfe\x00",
    "[" * 100_000,
    (200, "<html>captive portal</html>", {"Content-Type": "text/html"}),
]


def test_hostile_answers_are_asked_for_again(folder, server):
    server.plan = {f"barks {number}": HOSTILE[number - 2 :: 6] for number in range(2, 8)}
    wanted = {caption: 1 + len(steps) for caption, steps in zip(CAPTIONS, server.plan.values(), strict=True)}
    report = augment_dataset(folder, endpoint(tries=5))
    assert rewritten(folder) == {caption: forms(caption) for caption in CAPTIONS}
    assert server.asked() == wanted and sum(wanted.values()) == len(HOSTILE) + 6
    assert report.failed == ()


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda answer: repr(answer)[:40])
def test_a_hostile_answer_to_the_last_try_does_not_end_the_command(folder, server, hostile):
    server.plan = {"barks 3": [hostile]}
    report = augment_dataset(folder, endpoint(tries=1))
    assert report.rewritten == 5 and rewritten(folder)[CAPTIONS[1]] == ()


def test_an_answer_that_takes_too_long_is_asked_for_again(folder, server):
    server.plan = {"barks 3": [lambda query: server.ended.wait(20) and 500]}
    augment_dataset(folder, endpoint(timeout=1.0))
    assert server.asked()[CAPTIONS[1]] >= 2
    assert rewritten(folder)[CAPTIONS[1]] == forms(CAPTIONS[1])


def test_a_caption_that_always_fails_is_said_and_asked_for_next_time(folder, server):
    server.plan = {"barks 3": [500] * 3, "barks 5": [400]}  # 400: this one is refused, no use in asking again
    report = augment_dataset(folder, endpoint())
    assert len(report.failed) == 2 and report.rewritten == 4
    assert all("\n" not in line for line in report.failed) and "failed, run again" in str(report)
    assert server.asked() == {**dict.fromkeys(CAPTIONS, 1), CAPTIONS[1]: 3}
    assert rewritten(folder)[CAPTIONS[1]] == ()
    server.queries.clear()
    assert augment_dataset(folder, endpoint()).rewritten == 6
    assert server.asked() == {CAPTIONS[1]: 1, CAPTIONS[3]: 1}


def test_a_call_without_any_answer_leaves_older_forms_alone(folder, server):
    augment_dataset(folder, "keywords")
    before = read_recordings(folder)
    server.plan = {"barks": [500] * 50}
    with pytest.raises(UserError, match=r"toy-1: rewrites no caption of .*500"):
        augment_dataset(folder, endpoint())
    assert read_recordings(folder) == before


def test_answers_that_are_no_completions_end_the_command_and_are_not_kept(folder, server, monkeypatch):
    monkeypatch.setattr(augment, "HOPELESS", 3)
    server.plan = {"barks": ["<html>captive portal</html>"] * 50}
    with pytest.raises(UserError, match="captions failed in a row, the last by: the answers are no chat completions"):
        augment_dataset(folder, endpoint())
    assert len(server.queries) <= 5 * 3  # of three at a time
    server.plan = {}
    assert augment_dataset(folder, endpoint()).rewritten == 6


def test_a_refusal_to_the_end_is_kept_with_what_it_said(folder, server):
    server.plan = {"barks 3": [completion("I'm sorry, no.")] * 3}
    report = augment_dataset(folder, endpoint())
    assert report.failed == () and report.rewritten == 5
    assert any("refusal: I'm sorry" in line and CAPTIONS[1] in line for line in report.dropped)
    server.queries.clear()
    assert augment_dataset(folder, endpoint()).asked == 0


def test_a_cut_answer_loses_its_half_sentence(folder, server):
    server.plan = {"barks 3": [completion("1. A hound bays.\n2. A dog is", "length")]}
    augment_dataset(folder, endpoint())
    assert rewritten(folder)[CAPTIONS[1]] == ("A hound bays.",)


def test_an_interrupted_command_goes_on(folder, server):
    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    before = read_recordings(folder)
    with pytest.raises(KeyboardInterrupt):
        augment_dataset(folder, endpoint(concurrent=1), show=interrupt)
    assert read_recordings(folder) == before
    assert len(server.queries) in (3, 4)  # a fourth request may be under way
    server.queries.clear()
    report = augment_dataset(folder, endpoint(concurrent=1))
    assert len(server.queries) == report.asked == 3
    assert rewritten(folder) == {caption: forms(caption) for caption in CAPTIONS}


def test_answers_are_written_while_others_are_waited_for(folder, server, monkeypatch):
    """A killed process runs no clean-up: what came before the last seconds must be on the disk."""
    monkeypatch.setattr(augment, "KEPT_EVERY", 0.0)
    on_disk = []

    def look(done, total):
        place = folder / "rewrites/toy-1"
        on_disk.append(sum(len(place.read(file).splitlines()) for file in place.list()))

    augment_dataset(folder, endpoint(), show=look)
    assert on_disk == list(range(7))


def test_broken_lines_in_the_kept_answers_are_asked_for_again(folder, server):
    augment_dataset(folder, endpoint())
    place = folder / "rewrites/toy-1"
    (file,) = place.list()
    lines = place.read(file).decode().splitlines()
    lines[0] = lines[0][:50]
    place.write(file, "\n".join([*lines, "[1, 2]", "null", '{"model": "toy-1"}', '{"model": "toy-1", "query": "x"}']))
    server.queries.clear()
    assert augment_dataset(folder, endpoint()).asked == 1
    assert rewritten(folder) == {caption: forms(caption) for caption in CAPTIONS}
    augment_dataset(folder, endpoint())
    assert place.list() == ["answers.jsonl"]  # two files became one


@pytest.mark.parametrize(("status", "said"), [(401, "OPENAI_API_KEY"), (403, "permission"), (404, "no such model")])
def test_refusals_for_good_end_the_command_at_once(folder, server, status, said):
    server.plan = {"barks": [status] * 50}
    with pytest.raises(UserError, match=said) as caught:
        augment_dataset(folder, endpoint())
    assert len(server.queries) <= 2  # those under way
    assert "secret-key" not in str(caught.value) and "\n" not in str(caught.value)


def test_no_credit_ends_the_command_and_keeps_what_came(folder, server):
    error = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    server.plan = {"barks 6": [(429, error, {})]}
    with pytest.raises(UserError, match="no credit left"):
        augment_dataset(folder, endpoint(concurrent=1))
    assert len(server.queries) == 5
    server.queries.clear()
    augment_dataset(folder, endpoint())
    assert server.asked() == dict.fromkeys(CAPTIONS[4:], 1)


def test_captions_that_all_fail_end_the_command(folder, server, monkeypatch):
    monkeypatch.setattr(augment, "HOPELESS", 3)
    server.plan = {"barks": [400] * 50}
    with pytest.raises(UserError, match="captions failed in a row"):
        augment_dataset(folder, endpoint(concurrent=1))
    assert len(server.queries) < 6


def test_nobody_at_the_address(folder, server, monkeypatch):
    server.close()
    server.close = lambda: None
    with pytest.raises(UserError, match="cannot be reached") as caught:
        augment_dataset(folder, endpoint(tries=2))
    assert "\n" not in str(caught.value)


def test_the_environment_says_where_and_with_which_key(folder, server, monkeypatch):
    augment_dataset(folder, endpoint())
    assert {header["authorization"] for header in server.headers} == {"Bearer secret-key"}
    stored = b"".join((folder / "rewrites/toy-1").read(file) for file in (folder / "rewrites/toy-1").list())
    assert b"secret-key" not in stored
    monkeypatch.delenv("OPENAI_API_KEY")
    assert augment_dataset(folder, endpoint(model="no-key")).rewritten == 6  # a server of one's own needs none
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(UserError, match="OPENAI_BASE_URL localhost:8000: no web address"):
        augment_dataset(folder, endpoint(model="other"))
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(UserError, match="OPENAI_API_KEY: not set"):
        augment_dataset(folder, endpoint(model="other"))


def test_as_many_requests_as_allowed_are_under_way(folder, server):
    together = threading.Barrier(3)

    def meet(query):
        together.wait(60)
        return good(query)

    server.plan = {"barks": [meet] * 6}
    augment_dataset(folder, endpoint(concurrent=3))
    assert server.busiest == 3


def test_requests_keep_the_limit_of_a_minute(folder, server):
    start = time.monotonic()
    augment_dataset(folder, endpoint(concurrent=6, requests_per_minute=600))
    assert max(server.times) - start >= 0.5  # the sixth of requests that are 0.1 s apart


def test_places_of_a_pace_are_evenly_apart(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(augment.time, "monotonic", lambda: now[0])
    pace, free = Pace(600), Pace(0)
    assert [pace.delay() for _ in range(4)] == pytest.approx([0, 0.1, 0.2, 0.3])
    now[0] += 0.35
    assert pace.delay() == pytest.approx(0.05)
    now[0] += 60  # a pause saves nothing up
    assert [pace.delay() for _ in range(2)] == pytest.approx([0, 0.1])
    assert [free.delay() for _ in range(3)] == [0, 0, 0]


def test_the_endpoints_wish_to_wait_is_granted(folder, server):
    server.plan = {"barks 3": [(429, None, {"Retry-After": "1"})]}
    start = time.monotonic()
    augment_dataset(folder, endpoint())
    assert time.monotonic() - start > 1.0


def test_rules_and_published_files_fill_the_same_place(folder, tmp_path):
    out = tmp_path / "variations.json"
    report = augment_dataset(folder, "keywords", seed=1, out=out)
    by_rules = read_recordings(folder)
    assert report.rewritten == 6 and "6 of 6 captions rewritten" in str(report)
    assert folder.read_json("dataset.json")["digest"] == digest(by_rules, [SOUND])
    assert folder.read_json("dataset.json")["rewrites"] == "rules (keywords)"

    def ruled(how, seed):
        return [each for each, _ in rewrite_items([(each, None) for each in by_rules], how, seed)]

    assert ruled("keywords", 1) == by_rules
    assert ruled("keywords", 2) != by_rules != ruled("hallucinated", 1)
    augment_dataset(folder, "hallucinated")
    assert read_recordings(folder) != by_rules
    augment_dataset(folder, out)
    assert read_recordings(folder) == by_rules
    assert folder.read_json("dataset.json")["rewrites"] == "variations.json"


WHOLE = {
    "kind": "dcase2023",
    "rows": {"training": 458_197, "validation": 1045, "test": 1045},
    "corpora": {"audiocaps": 51_308, "clotho": 5_929, "wavcaps": 403_050},
}
"""What `dataset.json` says of all three corpora."""


def rewritten_as(folder, provider):
    """Return what `dataset.json` says of whole corpora whose captions a provider rewrote."""
    augment_dataset(folder, provider)
    return {**folder.read_json("dataset.json"), **WHOLE}


def answered_by(path, model, captions=CAPTIONS):
    """Write a file of the published form in which a model gave the answers; in one of no model there are none."""
    row = {"variations": ["Dogs bark."], "response": {"model": model} if model else None}
    files = ["one.wav"] * 3 + ["three.wav"] * 3
    rows = [{**row, "path": file, "caption": text} for file, text in zip(files, captions, strict=False)]
    path.write_text(json.dumps(rows))
    return path


def test_only_answers_of_the_papers_model_make_published_data(folder, server, tmp_path):
    """The file's name says nothing: the authors' own is called variations.json, and anything may be called gpt."""
    authors = answered_by(tmp_path / "variations.json", "gpt-3.5-turbo-0301")
    assert is_published(rewritten_as(folder, authors))
    assert is_published(rewritten_as(folder, endpoint(model="gpt-3.5-turbo")))
    assert not is_published(rewritten_as(folder, answered_by(tmp_path / "gpt-3.5-turbo-mine.json", "")))
    assert not is_published(rewritten_as(folder, answered_by(tmp_path / "gpt-3.5-turbo", "toy-1")))
    assert not is_published(rewritten_as(folder, endpoint(model="gpt-3.5-turbo-mine")))
    assert not is_published(rewritten_as(folder, "keywords"))
    mixed = json.loads(authors.read_text())
    authors.write_text(json.dumps([{**mixed[0], "response": None}, *mixed[1:]]))
    assert not is_published(rewritten_as(folder, authors))


def test_only_whole_corpora_with_every_caption_rewritten_are_the_published_data(folder, tmp_path):
    whole = rewritten_as(folder, answered_by(tmp_path / "variations.json", "gpt-3.5-turbo-0301"))
    assert is_published(whole)
    assert not is_published({**whole, "corpora": {**whole["corpora"], "wavcaps": 1_232}})
    assert not is_published({**whole, "corpora": {"clotho": 5_929, "wavcaps": 403_050}})
    assert not is_published({**whole, "rows": {**whole["rows"], "test": 40}})
    assert not is_published({**whole, "kind": "own"})
    older = {key: value for key, value in whole.items() if key != "rewriter"}
    assert not is_published({**older, "rewrites": "gpt-3.5-turbo"})
    few = answered_by(tmp_path / "variations.json", "gpt-3.5-turbo-0301", CAPTIONS[:5])
    assert not is_published(rewritten_as(folder, few))


def test_what_cannot_be_rewritten_is_said(folder, storage, tmp_path):
    other = tmp_path / "other.json"
    variations.write(other, [variations.Variation(0, "x.wav", "?", "", None, ("A dog.",), "stop", {})])
    before = read_recordings(folder)
    with pytest.raises(UserError, match=r"rewrites no caption"):
        augment_dataset(folder, other)
    with pytest.raises(UserError, match="no such rules"):
        augment_dataset(folder, "magic")
    assert read_recordings(folder) == before
    write_recordings(folder, [each for each in before if each.corpus != "clotho"])
    with pytest.raises(UserError, match="no training captions"):
        augment_dataset(folder, "keywords")
    with pytest.raises(UserError, match="make or import"):
        augment_dataset(storage / "nowhere", "keywords")


@pytest.mark.parametrize("wrong", [{"model": ""}, {"tries": 0}, {"concurrent": 0}, {"pause": -1}, {"price": (0, -1)}])
def test_endpoints_that_make_no_sense(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        endpoint(**wrong)
