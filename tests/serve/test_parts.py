"""What serving is made of, without Ray: limits, problems, the token, what is checked, and how batches are made."""

import asyncio
import hashlib
import http.client
import io
import json
import os
import re
import socket
import ssl
import struct
import threading
import time
import tracemalloc
import zipfile
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from PIL import Image

from retable.platform.errors import UserError
from retable.platform.models import export, zoo
from retable.platform.store.storage import Storage
from retable.serve.client import Answer, Client, ServeError
from retable.serve.deployments import answers, audio, rl, served, style, weather
from retable.serve.ingress import app, middleware
from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Problem, Reply, plain_line, send, span, wrong
from retable.serve.launch import address, choice, models, server
from tests.serve import toys

TOKEN = "0123456789abcdef"


def ask(application, method, path, body=b"", headers=()):
    """Call an ASGI application; return status, headers and body."""
    sent = []
    path, _, query = path.partition("?")
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "raw_path": path.encode()}
    scope |= {"headers": [*headers, (b"host", b"here")], "asgi": {"version": "3.0"}, "http_version": "1.1"}
    scope |= {"scheme": "http", "server": ("here", 80), "client": ("there", 1), "root_path": ""}
    parts = [body[start : start + 1000] for start in range(0, len(body), 1000)] or [b""]

    async def receive():
        return (
            {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            if parts
            else {"type": "http.disconnect"}
        )

    async def send(message):
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    said = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], said, b"".join(message.get("body", b"") for message in sent[1:])


def problem(answer):
    status, headers, body = answer
    said = json.loads(body)
    assert headers["content-type"] == "application/problem+json" and said["status"] == status
    assert "\n" not in said["detail"] and "Traceback" not in said["detail"]
    return status, said["detail"]


MODELS = [models.Model(task="style", name="great_wave", sha256="a" * 64, about={"fingerprint": "12", "data": "Ö\nx"})]


async def echo(task, method, sha256, body, *options):
    if body == b"fault":
        raise RuntimeError("/secret/path")
    return Reply(b"painted", "image/png") if body != b"bad" else Problem(400, "no picture")


def made(token="", limits=LIMITS, models=MODELS, ask=echo, hosts=(), answered=lambda *of: None):
    digest = hashlib.sha256(token.encode()).hexdigest() if token else ""
    return middleware.SecurityMiddleware(app.routes_of(models, ask, limits), digest, hosts, answered, limits)


def test_an_answer_says_which_model_made_it_and_what_browsers_may_do():
    status, headers, body = ask(made(), "POST", "/v1/style/great_wave", b"x")
    assert (status, body, headers["content-type"]) == (200, b"painted", "image/png")
    assert headers["x-retable-model"] == "style/great_wave" and headers["x-retable-digest"] == "a" * 64
    assert headers["x-retable-run"] == "12" and headers["x-retable-data"] == "? x"
    assert headers["x-content-type-options"] == "nosniff" and "default-src 'self'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("method", "path", "body", "wanted"),
    [
        ("POST", "/v1/style/great_wafe", b"x", (404, "no style 'great_wafe' is served; did you mean 'great_wave'?")),
        ("POST", "/v1/style/great_wave?model=x", b"x", (404, "no model 'x' of great_wave; leave out model")),
        ("POST", "/v1/style/great_wave", b"bad", (400, "no picture")),
        ("POST", "/v1/style/great_wave?size=-1", b"x", (422, "size: got '-1'")),
        ("POST", "/v1/style/great_wave?strength=nan", b"x", (422, "strength: got 'nan'")),
        ("GET", "/v1/style/great_wave", b"", (405, "GET is not for this")),
        ("GET", "/etc/passwd", b"", (404, "there is nothing here")),
        ("GET", "/page/../app.py", b"", (404, "there is nothing here")),
        ("POST", "/v1/style/great_wave", b"x" * 5000, (413, "longer than 4000 bytes")),
        ("POST", "/v1/style/great_wave", b"fault", (500, "a fault of the server's")),
    ],
)
def test_what_cannot_be_answered_is_one_line(method, path, body, wanted):
    status, detail = problem(ask(made(limits=Limits(picture_bytes=4000)), method, path, body))
    assert status == wanted[0] and wanted[1] in detail and "secret" not in detail


def test_a_body_that_says_it_is_too_long_is_not_read():
    header = (b"content-length", str(LIMITS.picture_bytes + 1).encode())
    assert problem(ask(made(), "POST", "/v1/style/great_wave", b"x", [header]))[0] == 413


def test_bodies_that_are_too_much_together_are_told_to_come_again():
    answer = ask(made(limits=Limits(held_bytes=3000)), "POST", "/v1/style/great_wave", b"x" * 3500)
    assert problem(answer)[0] == 503 and answer[1]["retry-after"] == "2"


@pytest.mark.parametrize(
    ("given", "status"),
    [(f"Bearer {TOKEN}", 200), (f"bearer  {TOKEN}", 200), (f"Basic {TOKEN}", 401), ("Bearer ", 401), ("", 401)],
)
def test_the_token_is_asked_for_where_it_is_told_what_is_served_and_nowhere_else(given, status):
    header = (b"authorization", given.encode())
    for path in ("/v1/limits", "/openapi.json"):  # the document lists the names of models
        assert ask(made(TOKEN), "GET", path, headers=[header])[0] == status
    assert ask(made(TOKEN), "GET", "/", headers=[header])[0] == 200


def test_other_sites_pages_are_refused():
    def status(origin):
        return ask(made(), "POST", "/v1/style/great_wave", b"x", [(b"origin", origin)])[0]

    assert (status(b"http://elsewhere"), status(b"null"), status(b"http://here")) == (403, 403, 200)


def test_limits_and_models_are_shown():
    assert json.loads(ask(made(), "GET", "/v1/limits")[2])["pixels"] == 25_000_000
    shown = json.loads(ask(made(), "GET", "/v1/models")[2])
    assert shown[0]["name"] == "great_wave" and shown[0]["sha256"] == "a" * 64
    paths = json.loads(ask(made(), "GET", "/openapi.json")[2])["paths"]
    assert {"/v1/style/{style}", "/v1/models", "/v1/limits"} <= set(paths) and "/v1/audio" not in paths


def test_a_problem_names_field_got_and_wanted():
    said = json.loads(wrong("seed", "x", "y").reply().body)
    assert (said["field"], said["got"], said["wanted"], said["status"]) == ("seed", "x", "y", 422)
    detail = wrong("f" * 400, "g" * 400, "one of a, b").detail
    assert "fff…: got ggg" in detail and detail.endswith("g…, wanted one of a, b")
    assert plain_line("a\x1b[2J\nb" + "c" * 999).startswith("a [2J b") and len(plain_line("c" * 999)) == 300


def test_a_file_is_read_by_its_digest_or_not_at_all(storage):
    model = models.keep(b"weights", storage, task="rl", name="Hopper")
    path = export.place_of("rl", model.sha256)
    assert export.kept("rl", model.sha256, storage) == b"weights"
    storage.write(path, b"others")
    with pytest.raises(UserError, match="not what was exported"):
        export.kept("rl", model.sha256, storage)
    storage.remove(path)
    with pytest.raises(UserError, match="not there; run the same command again"):
        export.kept("rl", model.sha256, storage)


def test_a_problem_repeats_only_the_beginning_of_what_was_sent():
    body = json.dumps({"observations": [], "x" * 1_000_000: 0}).encode()
    with pytest.raises(Problem) as refused:
        rl.question(POLICY, body)
    assert len(refused.value.reply().body) < 2000


POLICY = toys.policy(seed=0)
BAD = {
    "no JSON": (b"{", 400),
    "no JSON ": (b"[" * 100_000, 400),
    "got nothing": (b"[]", 422),
    "seed: got -1": (b'{"observations": [[0, 0, 0, 0]], "seed": -1}', 422),
    "seed: got True": (b'{"observations": [[0, 0, 0, 0]], "seed": true}', 422),
    "path: got a field": (b'{"observations": [[0, 0, 0, 0]], "path": "/etc"}', 422),
    "shape (1, 3), wanted numbers of shape (rows, 4)": (b'{"observations": [[0, 0, 0]]}', 422),
    "got 0 rows": (b'{"observations": []}', 422),
    "no rows of numbers": (b'{"observations": 3}', 422),
    "no rows of numbers ": (b'{"observations": [0, 0, 0, 0]}', 422),
    "different lengths": (b'{"observations": [[0, 0, 0, 0], [0]]}', 422),
    "else than numbers": (b'{"observations": [["a", 0, 0, 0]]}', 422),
    "not finite in float32": (b'{"observations": [[1' + b"0" * 400 + b", 0, 0, 0]]}", 422),
    "than numbers": (b'{"observations": [[true, 0, 0, 0]]}', 422),
    "than numbers ": (b'{"observations": [[[0], 0, 0, 0]]}', 422),
    "not finite": (b'{"observations": [[NaN, 0, 0, 0]]}', 422),
    "not finite in": (b'{"observations": [[1e200, 0, 0, 0]]}', 422),
    "300 rows": (json.dumps({"observations": [[0] * 4] * 300}).encode(), 422),
}


@pytest.mark.parametrize("why", BAD)
def test_observations_are_checked_before_they_join_a_batch(why):
    with pytest.raises(Problem) as caught:
        rl.question(POLICY, BAD[why][0])
    assert caught.value.status == BAD[why][1] and why.strip() in caught.value.detail


def test_one_long_word_among_observations_takes_no_more_memory_than_the_body():
    """NumPy gives each number as many letters."""
    body = json.dumps({"observations": [["x" * 100_000, 0, 0, 0], *[[0.0] * 4] * 250]}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(Problem, match="else than numbers"):
            rl.question(POLICY, body)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(body)
    finally:
        tracemalloc.stop()


def test_observations_are_read_beside_the_event_loop(storage, monkeypatch):
    read = []
    replica = rl.Policies(storage, "rl", 1, 1.0)

    def question(policy, body):
        read.append(threading.current_thread())
        raise Problem(400, "the body is no JSON")

    monkeypatch.setattr(rl, "question", question)
    replica.models = {"a": POLICY}
    assert asyncio.run(replica.act("a", b"")).status == 400 and threading.main_thread() not in read


def test_the_batch_changes_no_action(monkeypatch):
    others = [POLICY, toys.policy(seed=1), toys.policy(seed=2, policy="bc")]
    draw = np.random.default_rng(0)
    asked = []
    for place in range(30):
        rows = draw.normal(size=(int(draw.integers(1, 40)), 4)).tolist()
        asked.append(rl.question(others[place % 3], json.dumps({"observations": rows, "seed": place}).encode()))
    shares, act = [], rl.actions
    monkeypatch.setattr(rl, "actions", lambda some: shares.append(some) or act(some))
    together = rl.answers(asked)
    monkeypatch.setattr(rl, "actions", act)
    for question, found in zip(asked, together, strict=True):
        assert found.shape == (len(question.observations), 1)
        assert np.abs(found - rl.answers([question])[0]).max() <= 1e-5
    assert sorted(map(id, (each for share in shares for each in share))) == sorted(map(id, asked)) and len(shares) < 15
    assert all(len({id(question.policy) for question in share}) == 1 for share in shares)


def test_the_seed_draws_the_noise():
    body = [json.dumps({"observations": [[0, 0, 0, 0]] * 5, "seed": seed}).encode() for seed in (1, 1, 2)]
    policy = toys.policy(policy="bc")  # BCQ's best of a hundred is often the same
    same, again, other = rl.answers([rl.question(policy, each) for each in body])
    assert np.array_equal(same, again) and not np.array_equal(same, other)


def picture(width=40, height=30, kind="PNG"):
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def test_pictures_of_one_style_and_shape_go_together(monkeypatch):
    shares = []

    class Style:
        def __call__(self, pictures, report):
            shares.append((self, pictures[0].shape, len(pictures)))
            return [SimpleNamespace(pixels=pixels) for pixels in pictures]

    monkeypatch.setattr(style, "BATCH_PIXELS", 2400)
    wave, other = Style(), Style()
    small, large = np.zeros((30, 40, 3), np.uint8), np.zeros((40, 40, 3), np.uint8)
    works = [
        style.StyleRequest(*pair)
        for pair in [(wave, small), (other, small), (wave, large), (wave, small), (wave, small)]
    ]
    assert [painted.shape for painted in style.paint(works)] == [work.pixels.shape for work in works]
    assert shares == [(wave, small.shape, 2), (wave, small.shape, 1), (other, small.shape, 1), (wave, large.shape, 1)]


BOMB = picture(10, 10).replace((10).to_bytes(4) * 2, (6000).to_bytes(4) * 2)


@pytest.mark.parametrize(
    ("body", "size", "status", "why"),
    [
        (BOMB, 0, 400, "PNG file is broken"),
        (picture(2, 1), 8000, 413, "at most 25 million"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", 0, 415, "no picture: send BMP, GIF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 0, 415, "no picture"),
        (picture()[:200], 0, 400, "cannot be read"),
        (b"", 0, 415, "no picture"),
    ],
)
def test_what_is_no_picture_is_refused(body, size, status, why):
    with pytest.raises(Problem) as caught:
        style.decode(body, size)
    assert caught.value.status == status and why in caught.value.detail and "/" not in caught.value.detail


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    stream = io.BytesIO()
    Image.new("1", (6000, 6000)).save(stream, "PNG")
    monkeypatch.setattr(style.images, "read", None)
    assert len(stream.getvalue()) < 10_000
    with pytest.raises(Problem, match="6000 x 6000 pixels"):
        style.decode(stream.getvalue(), 0)


def test_every_kind_of_picture_is_read():
    for kind in style.KINDS:
        assert style.decode(picture(kind=kind), 20).pixels.shape == (15, 20, 3)


@pytest.mark.filterwarnings("ignore:IM image format is deprecated")
def test_a_picture_is_read_by_the_decoder_that_its_header_was_checked_by():
    """A TIFF of 4 x 4 pixels, which is an IM file of 36 million as well: that decoder was asked first."""
    text = b":x\nImage type: Greyscale image\nImage size (x*y): 6000*6000\n\x1a"
    at = 8 + len(text)
    tags = {256: 4, 257: 4, 258: 8, 259: 1, 262: 1, 273: at, 277: 1, 278: 4, 279: 16}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    body = struct.pack("<2sHI", b"II", 42, at + 16) + text + bytes(16) + struct.pack("<H", len(tags)) + entries
    body += bytes(4)
    assert style.decode(body, 0).pixels.shape == (4, 4, 3)


def test_the_token_is_taken_out_of_the_environment_which_replicas_inherit(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    for given in ("", str(file)):
        monkeypatch.setenv("RETABLE_TOKEN", TOKEN)
        assert address.read_token("0.0.0.0", given) == TOKEN and "RETABLE_TOKEN" not in os.environ


def test_a_token_is_wanted_where_others_can_ask(tmp_path, monkeypatch):
    monkeypatch.delenv("RETABLE_TOKEN", raising=False)
    assert [address.read_token(host, "") for host in ("127.0.0.1", "localhost", "::1")] == ["", "", ""]
    with pytest.raises(UserError, match="no token; set RETABLE_TOKEN"):
        address.read_token("0.0.0.0", "")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        address.read_token("0.0.0.0", str(file))
    file.chmod(0o600)
    assert address.read_token("0.0.0.0", str(file)) == TOKEN
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(file.parent))
    file.chmod(0o440)  # as systemd shows one that the service's user may read
    assert address.read_token("0.0.0.0", str(file)) == TOKEN
    file.chmod(0o444)
    with pytest.raises(UserError, match="others can read it"):
        address.read_token("0.0.0.0", str(file))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/other")
    file.chmod(0o440)
    with pytest.raises(UserError, match="others can read it"):
        address.read_token("0.0.0.0", str(file))
    monkeypatch.setenv("RETABLE_TOKEN", "short")
    with pytest.raises(UserError, match="RETABLE_TOKEN is no 16") as caught:
        address.read_token("127.0.0.1", "")
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    ("tasks", "runs", "zoo", "why"),
    [
        (["stile"], [], False, "did you mean 'style'"),
        (["rl"], ["ab"], True, "exclude each other"),
        (["rl"], ["ab"], False, "no run begins with 'ab'"),
    ],
)
def test_a_mistake_in_what_to_serve_is_one_line(tasks, runs, zoo, why, storage):
    with pytest.raises(UserError, match=why):
        choice.choose_models(choice.Wanted(tasks, runs, zoo), storage)


def test_the_zoo_is_exported_by_digest(storage):
    (model, *_) = choice.choose_models(choice.Wanted(["style"], zoo=True), storage)
    assert export.kept(model.task, model.sha256, storage) and storage.list("served/style") and model.about["licence"]
    assert "from the zoo" in models.describe(model)
    assert server.curl(model, address.Address("127.0.0.1", 1)).startswith("curl -s --data-binary @photograph.jpg")


@pytest.mark.parametrize(
    ("task", "name", "asked"),
    [
        ("weather", "w", "'http://127.0.0.1:1/v1/weather?region=north%20%26%20sea'"),
        (
            "style",
            "black & 'white'",
            """-o 'black & '"'"'white'"'"'.png' 'http://127.0.0.1:1/v1/style/black%20%26%20""",
        ),
        ("rl", "a b", "'http://127.0.0.1:1/v1/rl/a%20b?model=c%26d'"),
    ],
)
def test_the_line_for_curl_may_name_anything(task, name, asked):
    model = models.Model(task=task, name=name, variant="c&d", sha256="1" * 64, about={"regions": ["north & sea"]})
    assert asked in server.curl(model, address.Address("127.0.0.1", 1))


def test_a_port_that_is_taken_is_one_line():
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        with pytest.raises(UserError, match="choose another"):
            address.check_port("127.0.0.1", server.server_port)


def test_the_client_asks_again_with_the_same_id():
    seen = []

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers["X-Request-Id"])
            if len(seen) == 1:
                self.close_connection = True  # no answer at all
                return
            body = b"[]" if len(seen) > 2 else b"{}"
            self.send_response(200 if len(seen) > 2 else 503)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            client = Client(f"http://127.0.0.1:{server.server_port}", tries=3)
            assert client.models() == [] and len(seen) == 3 and len(set(seen)) == 1
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(ConnectionError, match="no answer"):
        Client(client.url, tries=1).models()


def test_the_client_waits_for_a_proxy_that_starts_again(monkeypatch):
    """Half a minute without anybody who listens, as where Serve's proxy was killed; before, an answer named a pause."""
    waited, busy = [], Answer(503, b"", {"retry-after": "10"})
    monkeypatch.setattr("retable.serve.client.time.sleep", waited.append)

    class Away(Client):
        def _once(self, *arguments):
            if not waited:
                return busy
            if sum(waited) < 10 + 30:
                raise ConnectionRefusedError
            return Answer(200, b"[]", {})

    assert Away().models() == [] and waited[0] == 10 > waited[1]


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ConnectionRefusedError(111, "Connection refused"), 10),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), 10),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), 10),
        (TimeoutError("timed out"), 1),
        (ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate"), 1),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), 1),
        (http.client.InvalidURL("nonnumeric port: 'x'"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_client_asks_again_only_where_that_may_help_and_says_what_failed(monkeypatch, error, tries):
    asked = []
    monkeypatch.setattr("retable.serve.client.time.sleep", lambda seconds: None)

    class Failing(Client):
        def _once(self, *arguments):
            asked.append(arguments)
            raise error

    with pytest.raises(ConnectionError, match=re.escape(error.args[-1])):
        Failing().models()
    assert len(asked) == tries


@pytest.mark.parametrize("asked", ["1", "", "7"])
def test_the_client_asks_for_as_long_as_the_page_says_whatever_pause_a_busy_server_names(monkeypatch, asked):
    waited = []
    monkeypatch.setattr("retable.serve.client.time.sleep", waited.append)

    class Busy(Client):
        def _once(self, *arguments):
            return Answer(429, b'{"detail": "too many"}', {"retry-after": asked})

    with pytest.raises(ServeError, match="429: too many"):
        Busy().models()
    page = " ".join((Path(__file__).parents[2] / "docs/serving.md").read_text().split())
    ((seconds, said),) = re.findall(r"retries with the same request id, ten times over ([\d.]+) s or (more)", page)
    assert len(waited) == 9 and sum(waited) >= float(seconds) and min(waited) >= float(asked or 0.2), said


@pytest.mark.parametrize(
    ("error", "tries"),
    [(TimeoutError("timed out"), 1), (socket.gaierror("no such name"), 10), (OSError("no route"), 10)],
)
def test_a_server_that_cannot_be_reached_is_no_answer_whatever_the_network_says(monkeypatch, error, tries):
    """One that is silent for the whole timeout is not asked again."""
    asked = []
    monkeypatch.setattr("retable.serve.client.time.sleep", lambda seconds: None)

    class Away(Client):
        def _once(self, *arguments):
            asked.append(arguments)
            raise error

    with pytest.raises(ConnectionError, match=f"http://here: no answer .{type(error).__name__}"):
        Away("http://here").models()
    assert len(asked) == tries


@pytest.mark.parametrize(
    "url", ["host:8000", "localhost", "//host", "ftp://host", "http://", "http:host", "http:///v1", ""]
)
def test_an_address_without_scheme_or_host_is_refused_before_a_token_is_sent_elsewhere(url):
    """To port 80 of this machine, where anybody may listen."""
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        Client(url, token=TOKEN)
    for good in ("http://host:8000", "HTTPS://host/other", "http://[::1]:8000"):
        assert Client(good).url == good


@pytest.mark.parametrize("size", [1, 100, 101, 250])
def test_a_recording_or_a_video_is_fetched_in_as_many_answers_as_it_takes(size, tmp_path):
    content, path = bytes(range(256))[:size], tmp_path / "file"
    path.write_bytes(content)

    class Served(Client):
        def _once(self, method, target, body, headers):
            asked.append(target)
            try:
                reply = send(path, headers.get("Range", ""), 100, "audio/wav")
            except Problem as problem:
                reply = problem.reply()
            return Answer(reply.status, reply.body, {name.lower(): value for name, value in reply.headers})

    for fetch, where in ((Client.recording, "/v1/audio/ab"), (Client.file, "/v1/jobs/ab/file")):
        asked: list[str] = []
        assert fetch(Served(), "ab") == content
        assert asked == [where] * -(-size // 100)


def test_the_client_takes_a_whole_file_and_refuses_what_is_no_json():
    class Proxied(Client):
        def _once(self, *arguments):
            return Answer(200, b"<html>", {})

    assert Proxied().recording("ab") == Proxied().file("ab") == b"<html>"
    for call in (Proxied.models, Proxied.limits, Proxied.tables):
        with pytest.raises(ServeError, match=r"200: no JSON; is http://127.0.0.1:8000 the address of `retable serve`"):
            call(Proxied())


def test_the_client_says_why(monkeypatch):
    class Refusing(Client):
        def _once(self, *arguments):
            return Answer(404, b'{"detail": "no style"}', {"content-type": "application/problem+json"})

    with pytest.raises(ServeError, match="404: no style"):
        Refusing().models()


def test_storage_of_the_served_is_the_storage(tmp_path):
    model = models.keep(
        b"x", Storage.open(tmp_path), task="rl", name="Hopper", variant="dense", about={"scale": "small"}
    )
    assert (tmp_path / "served/rl" / model.sha256).read_bytes() == b"x"
    assert models.choose([model], "hopper", "", "policy") is model


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", (0, 100)),
        ("bytes=0-", (0, 50)),
        ("bytes=90-", (90, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=5-7", (5, 8)),
        ("bytes=-500", (0, 50)),
        ("bytes=100-", 416),
        ("bytes=7-5", 416),
        ("bytes=-", 416),
        ("bytes=0-1,5-6", 416),
    ],
)
def test_a_range_of_a_recording(wanted, found):
    if found == 416:
        with pytest.raises(Problem) as caught:
            span(wanted, 100, 50)
        assert caught.value.status == 416
    else:
        assert span(wanted, 100, 50 if wanted else 100) == found


@pytest.mark.parametrize(
    ("wanted", "status", "sent"),
    [
        ("", 200, b"0123456789"),
        ("items=0-5", 200, b"0123456789"),
        ("5-7", 200, b"0123456789"),
        ("bytes=5-7", 206, b"567"),
        (" Bytes=5-7 ", 206, b"567"),
        ("BYTES=-1", 206, b"9"),
    ],
)
def test_a_range_of_another_unit_is_none_and_units_have_no_case(tmp_path, wanted, status, sent):
    """RFC 9110, section 14.2."""
    (tmp_path / "file").write_bytes(b"0123456789")
    reply = send(tmp_path / "file", wanted, 10, "audio/wav")
    assert (reply.status, reply.body, "Content-Range" in dict(reply.headers)) == (status, sent, status == 206)


def test_a_variant_that_is_not_there_is_told_of_those_that_are():
    some = [models.Model(task="rl", name="Hopper", variant=each, sha256="a" * 64) for each in ("", "dense", "snip-95")]
    for there, hint in ((some[:1], "; leave out model"), (some, "; valid: dense, snip-95")):
        with pytest.raises(Problem) as refused:
            models.choose(there, "Hopper", "x", "policy")
        assert (refused.value.status, refused.value.detail) == (404, f"no model 'x' of Hopper{hint}")


def test_a_long_recording_is_sent_in_ranges_alone():
    with pytest.raises(Problem, match="ask for a range"):
        span("", 100, 50)


SHAPE = (4, 11, 3, 3)


def npz(name="images", **arrays):
    stream = io.BytesIO()
    np.savez_compressed(stream, **(arrays or {name: np.arange(396, dtype=np.float64).reshape(SHAPE)}))
    return stream.getvalue()


def test_images_are_read_from_both_kinds_of_file():
    wanted = np.arange(396, dtype=np.float32).reshape(SHAPE)
    assert np.array_equal(weather.images_of(npz(), SHAPE), wanted)
    turned = npz(images=np.asfortranarray(wanted))
    assert np.array_equal(weather.images_of(turned, SHAPE), wanted)
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["REFL-BT"] = wanted
    assert np.array_equal(weather.images_of(stream.getvalue(), SHAPE), wanted)


def linked():
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["REFL-BT"] = h5py.ExternalLink("/etc/passwd", "x")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"x", 415, "neither npz"),
        (npz("other"), 400, "no npz file"),
        (npz()[:300], 400, "no npz file"),
        (npz(images=np.zeros((4, 11, 3, 4))), 422, "shape (4, 11, 3, 4)"),
        (npz(images=np.full(SHAPE, None)), 422, "got object"),
        (npz(images=np.zeros((1 << 24, 1))), 413, "more than"),
        (linked(), 400, "the file: key 'REFL-BT' is a link to elsewhere"),
        (linked()[:100], 400, "the file"),
    ],
)
def test_what_is_no_images_is_refused(body, status, why):
    with pytest.raises(Problem) as caught:
        weather.images_of(body, SHAPE)
    assert caught.value.status == status and why in caught.value.detail and "/" not in caught.value.detail


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_inflate_without_a_bound_are_refused_before_they_are_read(packing, monkeypatch):
    """A kilobyte of them took gigabytes."""
    stream, plain = io.BytesIO(), io.BytesIO()
    np.save(plain, np.zeros(SHAPE))
    with zipfile.ZipFile(stream, "w", packing) as folder:
        folder.writestr("images.npy", plain.getvalue())
    monkeypatch.setattr(zipfile.ZipExtFile, "read", None)
    with pytest.raises(Problem, match="deflate") as caught:
        weather.images_of(stream.getvalue(), SHAPE)
    assert caught.value.status == 400


def test_a_zip_of_very_many_files_is_refused_before_they_are_listed(monkeypatch):
    """Each takes ten times its bytes in memory."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as folder:
        for place in range(1001):
            folder.writestr(str(place), b"")
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(Problem, match="more than 1000 arrays"):
        weather.images_of(stream.getvalue(), SHAPE)


def hdf5(bomb=0, **options):
    """Return a file of zeros whose one data set is stored as the options say; `bomb`: MB that a chunk inflates to."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        data = file.create_dataset("REFL-BT", SHAPE, "f4", **options)
        if bomb:
            packer = zlib.compressobj(9)
            raw = b"".join(packer.compress(bytes(1 << 20)) for _ in range(bomb)) + packer.flush()
            data.id.write_direct_chunk((0, 0, 0, 0), raw)
        elif "chunks" not in options:
            data[:] = 0
    return stream.getvalue()


@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": np.zeros(0)},
        {"scale_factor": h5py.Empty("f4")},
        {"add_offset": "warm"},
        {"scale_factor": np.zeros((), np.dtype([("a", "f4")]))},
        {"scale_factor": 2.0, "_FillValue": np.zeros(0)},
    ],
)
def test_attributes_of_images_that_are_no_numbers_are_a_broken_file(attributes):
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        data = file.create_dataset("REFL-BT", SHAPE, "f4", data=np.zeros(SHAPE))
        data.attrs.update(attributes)
    with pytest.raises(Problem, match="the HDF5 file is broken") as caught:
        weather.images_of(stream.getvalue(), SHAPE)
    assert caught.value.status == 400


FREE = (None,) * 4


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"chunks": (1, 1, 9000, 9000), "maxshape": FREE}, "chunks of shape (1, 1, 9000, 9000)"),
        ({"chunks": (1, 1, 3, 1 << 24), "maxshape": FREE, "compression": "gzip"}, "44 chunks of shape"),
        ({"chunks": SHAPE, "compression": "gzip", "bomb": 20}, "inflates to more"),
        ({"chunks": SHAPE, "compression": "lzf"}, "filters of REFL-BT"),
        ({"chunks": SHAPE, "scaleoffset": 2}, "filters of REFL-BT"),
    ],
)
def test_chunks_that_take_more_than_their_data_are_refused_before_they_are_read(options, why, monkeypatch):
    monkeypatch.setattr(weather, "read_hdf5", None)
    with pytest.raises(Problem) as caught:
        weather.images_of(hdf5(**options), SHAPE)
    assert caught.value.status == 422 and why in caught.value.detail


def test_a_small_file_of_a_million_chunks_is_refused():
    shape, stream = (4, 11, 252, 252), io.BytesIO()
    with h5py.File(stream, "w") as file:
        file.create_dataset("REFL-BT", shape, "f4", chunks=(1, 1, 1, 1))
    assert len(stream.getvalue()) < 10_000
    with pytest.raises(Problem, match="2794176 chunks"):
        weather.images_of(stream.getvalue(), shape)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"maxshape": FREE, "chunks": (16, 11, 3, 3)},  # of a file that grows
        {"maxshape": FREE, "compression": "gzip", "compression_opts": 9},
        {},
    ],
)
def test_chunks_as_people_write_them_are_read(options):
    assert np.array_equal(weather.images_of(hdf5(**options), SHAPE), np.zeros(SHAPE, np.float32))


def tiled(side, tile):
    """Return a grey TIFF of one tile that is larger than the picture, deflated."""
    raw, size = zlib.compress(bytes(tile**2)), 14 + 12 * 10
    tags = {256: side, 257: side, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: size, 325: len(raw)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + raw


def test_a_picture_in_tiles_larger_than_itself_is_refused():
    assert style.decode(tiled(16, 32), 0).pixels.shape == (16, 16, 3)
    with pytest.raises(Problem) as caught:
        style.decode(tiled(16, 6000), 0)
    assert caught.value.status == 413


def test_a_small_picture_of_many_scans_is_refused():
    """Each is gone through for all of the picture: 30 kB took a core for a second, and 32 MB an hour."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(
        file, "JPEG", progressive=True
    )
    assert style.decode(file.getvalue(), 0).pixels.shape == (64, 64, 3)
    scan = file.getvalue().rindex(b"\xff\xda")
    for body in (file.getvalue()[:scan] + b"\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x00" * 101 + file.getvalue()[scan:],):
        with pytest.raises(Problem, match="more than 100 scans") as caught:
            style.check(body, 0)
        assert caught.value.status == 413


def test_a_cancelled_job_whose_answer_was_lost_is_cancelled(monkeypatch):
    monkeypatch.setattr("retable.serve.client.time.sleep", lambda seconds: None)
    answers = [ConnectionError("reset"), Answer(404, b'{"detail": "no such job"}', {})]

    class Lost(Client):
        def _once(self, *arguments):
            if isinstance(answer := answers.pop(0), Exception):
                raise answer
            return answer

    Lost().cancel("ab")
    answers = [Answer(404, b'{"detail": "no such job"}', {})]
    with pytest.raises(ServeError, match="no such job"):
        Lost().cancel("ab")


@pytest.mark.parametrize("host", [b"localhost:8000", b"127.0.0.1", b"[::1]:8000", b"LocalHost"])
def test_this_machine_answers_to_its_own_names(host):
    own = address.Address("127.0.0.1", 8000).names
    assert ask(made(hosts=own), "GET", "/v1/limits", headers=[(b"host", host)])[0] == 200


@pytest.mark.parametrize("host", [b"evil.example", b"localhost.evil.example:8000", b"", b"127.0.0.1.evil.example"])
def test_a_name_that_another_site_made_lead_here_is_refused(host):
    status, why = problem(ask(made(hosts=address.LOOPBACK), "GET", "/v1/limits", headers=[(b"host", host)]))
    assert status == 421 and "localhost" in why
    assert ask(made(hosts=()), "GET", "/v1/limits", headers=[(b"host", host)])[0] == 200
    assert address.Address("0.0.0.0", 8000, TOKEN).names == () != address.Address("127.0.0.5", 8000).names


def test_each_answer_is_counted_by_its_route_and_never_by_what_was_asked():
    told = []
    application = made(token=TOKEN, answered=lambda *of: told.append(of))
    key = [(b"authorization", f"Bearer {TOKEN}".encode())]
    ask(application, "POST", "/v1/style/great_wave", b"x", key)
    ask(application, "POST", "/v1/style/none", b"x", key)
    ask(application, "POST", "/v1/style/great_wave", b"fault", key)
    ask(application, "GET", "/v1/limits")
    ask(application, "GET", "/v1/secret", headers=key)
    assert [each[:3] for each in told] == [
        ("/v1/style/{style}", "POST", 200),
        ("/v1/style/{style}", "POST", 404),
        ("/v1/style/{style}", "POST", 500),
        ("", "-", 401),
        ("", "-", 404),
    ]
    assert all(0 <= seconds < 5 for *_, seconds in told)


def test_the_openapi_document_says_what_is_answered_and_what_a_problem_is():
    rest = [
        models.Model(task="rl", name="HalfCheetah", sha256="b" * 64),
        models.Model(task="audio", name="a", sha256="c"),
    ]
    weather = models.Model(task="weather", name="w", sha256="d" * 64, about={"regions": ["boxi_0015"]})
    said = json.loads(ask(made(models=[*MODELS, *rest, weather]), "GET", "/openapi.json")[2])
    assert "HTTPValidationError" not in said["components"]["schemas"]
    for path, operations in said["paths"].items():
        for method, operation in operations.items():
            assert "422" not in operation["responses"], (path, method)
            (media,) = operation["responses"]["default"]["content"]
            assert media == "application/problem+json"
    examples = operation["responses"]["default"]["content"][media]["examples"]
    problem_of = said["components"]["schemas"]["Problem"]
    for status, example in examples.items():
        assert set(problem_of["required"]) <= example["value"].keys() <= problem_of["properties"].keys()
        assert str(example["value"]["status"]) == status
    act = said["paths"]["/v1/rl/{environment}"]["post"]
    assert act["parameters"][0]["schema"]["examples"] == ["HalfCheetah"]
    assert list(act["responses"]["200"]["content"]["application/json"]["example"]) == ["actions"]
    region = {each["name"]: each for each in said["paths"]["/v1/weather"]["post"]["parameters"]}["region"]
    assert region["schema"]["examples"] == ["boxi_0015"] and "enum" not in region["schema"]
    assert act["parameters"][0]["schema"]["enum"] == ["HalfCheetah"]
    methods = [method for path in said["paths"].values() for method in path.values()]
    schemas = [each["schema"] for method in methods for each in method.get("parameters", ())]
    assert all(each.get("default") in (None, *each["enum"]) for each in schemas if "enum" in each)
    pictures = said["paths"]["/v1/style/{style}"]["post"]["requestBody"]["content"]
    assert set(pictures) == {f"image/{kind.lower()}" for kind in style.KINDS}


@pytest.mark.parametrize(
    ("module", "of", "compute"),
    [(rl, rl.Policies, "actions"), (style, style.Styles, "painted"), (weather, weather.Forecasters, "steps")],
)
def test_a_model_is_asked_whether_it_answers_what_it_can_answer_and_past_all_batches(module, of, compute, monkeypatch):
    task = module.__name__.rpartition(".")[2]
    name = sorted(zoo.zoo(task))[0]
    replica, asked = of.__new__(of), []
    replica.task, replica.models = task, {}
    replica.models["a"] = replica.load(zoo.read(task, name), name)

    def counting(some):
        asked.append(len(some))
        return answers(some)

    async def batch(one):
        await asyncio.sleep(3600)  # there is always one more that was there before

    answers = getattr(module, compute)
    monkeypatch.setattr(module, compute, counting)
    replica.batch = batch

    async def ready():
        return await asyncio.wait_for(replica.ready(["a"]), 60)

    assert asyncio.run(ready()).status == 200 and asked == [1]


@pytest.mark.parametrize(
    ("of", "task", "given"),
    [(served.Served, "rl", ()), (answers.Answers, "weather", ()), (audio.Retrieval, "audio", ("",))],
)
def test_readiness_during_a_swap_loads_nothing_twice_and_leaves_the_event_loop_free(storage, of, task, given):
    loading, gaps = [], []

    class Slow(of):
        def load(self, data, name):
            loading.append(threading.current_thread())
            time.sleep(0.5)
            return SimpleNamespace(refresh=lambda: None, embedder=SimpleNamespace(words=lambda words: None))

    async def tick():
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - begun)

    async def swap():
        old, new = (models.keep(bytes([place]), storage, task=task, name="Toy") for place in range(2))
        replica = Slow(storage, task, *given, 1, 1.0)
        await replica.reconfigure(models.config_of([old]))
        ticking = asyncio.create_task(tick())
        _, reply = await asyncio.gather(replica.reconfigure(models.config_of([new])), replica.ready([new.sha256]))
        ticking.cancel()
        return reply

    assert asyncio.run(swap()).status == 200
    assert len(loading) == 2 and threading.main_thread() not in loading and max(gaps) < 0.4


def test_a_replica_holds_the_models_that_are_served_and_finds_others_while_it_is_told(storage):
    class Toys(served.Served):
        def load(self, data, name):
            return data

    kept = [models.keep(bytes([place]), storage, task="rl", name="Toy") for place in range(3)]
    other, gone = (models.Model(task=task, name="Toy", sha256="0" * 64) for task in ("style", "rl"))

    async def swaps():
        toys = Toys(storage, "rl", 1, 1.0)
        for start in ([gone], [kept[0], gone]):
            with pytest.raises(UserError, match="not there"):
                await Toys(storage, "rl", 1, 1.0).reconfigure(models.config_of(start))
        await toys.reconfigure(models.config_of([*kept[:2], other]))
        assert list(toys.models.values()) == [b"\0", b"\1"] and (await toys.ready(list(toys.models))).status == 200
        await toys.reconfigure(models.config_of([gone]))
        assert list(toys.models.values()) == [b"\0", b"\1"]
        assert await toys.model(kept[2].sha256) == b"\2"
        await toys.reconfigure(models.config_of(kept[1:2]))
        assert list(toys.models) == [kept[1].sha256] and await toys.model(kept[0].sha256) == b"\0"

    asyncio.run(swaps())


@pytest.mark.parametrize("fault", ["gone", "broken"])
def test_a_model_that_cannot_be_loaded_is_told_as_such_and_is_no_fault(storage, fault):
    kept = models.keep(b"no policy" if fault == "broken" else b"x", storage, task="rl", name="Toy")
    if fault == "gone":
        storage.remove(export.place_of("rl", kept.sha256))
    replica = rl.Policies(storage, "rl", 1, 1.0)
    for asked in (replica.ready, lambda digests: replica.act(digests[0], b""), lambda of: replica.episode(of[0], 0, 1)):
        found = asyncio.run(asked([kept.sha256]))
        assert isinstance(found, Problem) and found.status == 503 and found.headers["Retry-After"]
        assert "it cannot be loaded" in found.detail and "/" not in found.detail


@pytest.mark.parametrize(
    ("kind", "count", "value"), [(2, 2, b"A\0\0\0"), (7, 2, b"AB\0\0"), (9, 1, struct.pack("<i", -5))]
)
def test_lengths_of_tiles_that_are_no_lengths_are_refused(kind, count, value):
    """In a picture of strips, which needs none: text times a number took 4 GB."""
    pixels = 14 + 12 * 11
    tags = {256: 4, 257: 4, 258: 8, 259: 1, 262: 1, 273: pixels, 277: 1, 278: 4, 279: 16}
    entries = [struct.pack("<HHII", tag, 4, 1, given) for tag, given in tags.items()]
    entries += [struct.pack("<HHI", 322, kind, count) + value, struct.pack("<HHII", 323, 4, 1, 70000)]
    body = b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4 + 16)
    assert Image.open(io.BytesIO(body)).size == (4, 4)
    with pytest.raises(Problem) as refused:
        style.check(body, 0, Limits())
    assert refused.value.status == 400


class Toy:
    """A style that inverts, waits where a picture is large, and has no memory for one of some width."""

    def __init__(self, over=None, width=0, error=None):
        self.over, self.width, self.error = over, width, error

    def __call__(self, pictures, report):
        if pictures[0].shape[1] == self.width:
            raise self.error
        if self.over and pictures[0].size > 3 * style.BATCH_PIXELS:
            self.over.wait(20)
        return [SimpleNamespace(pixels=255 - pixels) for pixels in pictures]


def styles(storage, toy, wait=20.0):
    """Return a replica that holds a style `a`, and batches what comes within a moment as Serve does."""
    replica, turn, waiting = style.Styles(storage, "style", 8, wait), asyncio.Lock(), []
    replica.models = {"a": toy}

    async def batch(work):
        waiting.append((work, answer := asyncio.get_running_loop().create_future()))
        await asyncio.sleep(0.05)
        async with turn:
            works, answers = zip(*waiting, strict=True) if waiting else ((), ())
            waiting.clear()
            try:
                for each, made in zip(answers, await asyncio.to_thread(style.paint, works), strict=True):
                    each.set_result(made)
            except Exception as error:
                for each in answers:
                    each.set_exception(error)
        return await answer

    replica.batch = batch
    return replica


def test_a_large_picture_is_painted_alone_and_neither_small_ones_nor_readiness_wait_for_it(storage, monkeypatch):
    """One of 12 million takes a minute: a batch answers when all of it is painted, and readiness waited there, too."""
    monkeypatch.setattr(style, "BATCH_PIXELS", 5000)
    over = threading.Event()

    async def crowd():
        replica = styles(storage, Toy(over), wait=0.5)

        def paint(width, height):
            return replica.stylise("a", picture(width, height), 0, 1.0, False, "png")

        large = asyncio.create_task(paint(80, 80))
        await asyncio.sleep(0.2)
        try:
            async with asyncio.timeout(10):
                small = await asyncio.gather(*(paint(40, 30 + place) for place in range(8)))
                ready = await replica.ready(["a"])
                others = await asyncio.gather(*(paint(80, 81) for place in range(8)), paint(30, 40))
            assert not large.done()
        finally:
            over.set()
        return [*small, ready, await large], others

    answered, others = asyncio.run(crowd())
    assert [reply.status for reply in answered] == [200] * 10 and others[-1].status == 200
    for refused in others[:-1]:  # they have waited for the one that is painted
        assert (refused.status, refused.headers) == (503, {"Retry-After": "1"}) and "try again" in refused.detail


def test_how_large_a_picture_is_painted_decides_and_not_how_large_it_is(storage, monkeypatch):
    monkeypatch.setattr(style, "BATCH_PIXELS", 2400)
    replica, batched = styles(storage, Toy()), []

    async def batch(work):
        batched.append(work.pixels.shape)
        return style.paint([work])[0]

    replica.batch = batch
    for width, height, size in ((80, 60, 40), (40, 30, 80), (80, 60, 0), (40, 30, 0)):
        body = picture(width, height)
        assert asyncio.run(replica.stylise("a", body, size, 1.0, False, "png")).status == 200
    assert batched == [(30, 40, 3), (30, 40, 3)]


@pytest.mark.parametrize(
    ("error", "status", "why"),
    [
        (UserError("48 x 30 pixels need 9 GB of memory, 1 GB are free"), 503, "48 x 30 pixels need 9 GB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 503, "more memory is needed"),
        (MemoryError(), 503, "more memory is needed"),
        (RuntimeError("a fault"), 500, ""),
    ],
)
def test_a_photograph_that_does_not_fit_into_memory_fails_alone_and_says_so(storage, error, status, why):
    async def crowd():
        replica = styles(storage, Toy(width=48, error=error))
        pictures = [picture(width) for width in (40, 48, 41, 40)]
        return await asyncio.gather(
            *(replica.stylise("a", body, 0, 1.0, False, "png") for body in pictures), return_exceptions=True
        )

    first, failed, *others = asyncio.run(crowd())
    assert [reply.status for reply in (first, *others)] == [200] * 3
    if status == 500:
        assert failed is error  # Serve logs it, and the ingress says so
    else:
        assert isinstance(failed, Problem) and failed.status == 503 and failed.headers["Retry-After"]
        assert why in failed.detail and "ask for a smaller size" in failed.detail


def test_what_fails_in_a_batch_fails_alone():
    def answer(some):
        if "bad" in some:
            raise ValueError(some)
        return [word.upper() for word in some]

    bad, *found = served.together(["bad", "a", "b", "a"], answer, lambda word: word)
    assert isinstance(bad, ValueError) and found == ["A", "B", "A"]


@pytest.mark.parametrize("task", ["rl", "weather"])
def test_an_error_that_a_batch_gives_in_the_place_of_an_answer_is_raised(task, storage, monkeypatch):
    replica = (rl.Policies if task == "rl" else weather.Forecasters)(storage, task, 1, 1.0)
    forecaster = SimpleNamespace(config=SimpleNamespace(forecast=32, rain_threshold=0.2))
    replica.models = {"a": POLICY if task == "rl" else forecaster}
    monkeypatch.setattr(weather, "work", lambda *given: ["work"])

    async def batch(request):
        return ZeroDivisionError()

    replica.batch = batch
    body = json.dumps({"observations": [[0.0] * POLICY.info["states"]]}).encode()
    asked = replica.act("a", body) if task == "rl" else replica.forecast(["a"], b"", "")
    with pytest.raises(ZeroDivisionError):
        asyncio.run(asked)
