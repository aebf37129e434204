"""What the gate does that nobody watches, without Ray: slow bodies, crowds, proxies, probes, methods, and turns."""

import asyncio
import json
import threading
import time
import tracemalloc
from fnmatch import fnmatch
from types import SimpleNamespace

import pytest

from retable.platform.errors import UserError
from retable.serve.deployments.served import Line
from retable.serve.ingress import app
from retable.serve.ingress.limits import Limits
from retable.serve.ingress.middleware import BodyReader
from retable.serve.ingress.replies import Problem, Reply
from retable.serve.launch import address
from retable.serve.launch.models import Model, config_of
from tests.serve import web
from tests.serve.test_parts import MODELS, TOKEN, ask, made, problem

STYLE = "/v1/style/great_wave"
FOREVER = 3600.0


class Client:
    """A client that sends parts of its body, each after a pause in seconds."""

    def __init__(self, application, *parts, path=STYLE, host="127.0.0.1", root=""):
        self.parts, self.sent = list(parts), []
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": [(b"host", b"here")], "http_version": "1.1", "scheme": "http", "root_path": root}
        self.scope = scope | {"server": ("here", 80), "client": (host, 1), "asgi": {"version": "3.0"}}
        self.application = application

    async def receive(self):
        pause, part = self.parts.pop(0)
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": part, "more_body": bool(self.parts)}

    async def send(self, message):
        self.sent.append(message)

    def begin(self):
        return asyncio.ensure_future(self.application(self.scope, self.receive, self.send))

    @property
    def status(self):
        return self.sent[0]["status"] if self.sent else None


SLOW = ((0, b"x"), (FOREVER, b""))
QUICK = ((0, b"x"),)


async def end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("parts", [SLOW, [(0.02, b"x")] * 1000])
def test_a_body_that_comes_too_slowly_is_given_up_and_its_connection_closed(parts):
    client = Client(made(limits=Limits(body_seconds=0.2)), *parts)

    async def ask_once():
        await asyncio.wait_for(client.begin(), 10)

    asyncio.run(ask_once())
    assert client.status == 408 and (b"connection", b"close") in client.sent[0]["headers"]
    assert json.loads(client.sent[1]["body"])["detail"] == "the body comes too slowly"


def test_a_body_is_held_as_often_as_it_is_counted():
    async def chunks():
        for _ in range(32):
            yield bytes(1 << 20)

    async def read():
        bodies, before = BodyReader(Limits()), tracemalloc.get_traced_memory()[0]
        async with bodies.read(SimpleNamespace(headers={}, stream=chunks), 1 << 26) as body:
            held = tracemalloc.get_traced_memory()[0] - before
            assert len(body) == bodies.in_flight_bytes == 32 << 20 and held < 1.2 * len(body)
        assert bodies.in_flight_bytes == 0

    tracemalloc.start()
    try:
        asyncio.run(read())
    finally:
        tracemalloc.stop()


def test_a_body_that_comes_as_fast_as_is_expected_is_read_however_long_it_takes():
    client = Client(made(limits=Limits(body_seconds=0.4, body_rate=100)), *[(0.1, b"x" * 30)] * 12)

    async def ask_once():
        await asyncio.wait_for(client.begin(), 20)

    asyncio.run(ask_once())
    assert client.status == 200


def test_a_thousand_slow_bodies_do_not_stop_others():
    application = made(limits=Limits(bodies=20))

    async def crowd():
        slow = [Client(application, *SLOW) for _ in range(1000)]
        tasks = [client.begin() for client in slow]
        while sum(client.status == 408 for client in slow) < 980:
            await asyncio.sleep(0.05)
        others = [Client(application, (0, b"x" * 1000), (0.05, b"x")) for _ in range(10)]
        await asyncio.wait_for(asyncio.gather(*(other.begin() for other in others)), 10)
        statuses = [client.status for client in slow]
        await end(tasks)
        return [other.status for other in others], statuses, application.busy

    others, slow, busy = asyncio.run(asyncio.wait_for(crowd(), 15))
    assert others == [200] * 10 and slow.count(408) == 990 and slow.count(None) == 10 and busy == 0


def test_one_address_has_so_many_requests_at_once_but_this_machine_any_number():
    application = made(limits=Limits(client_requests=3))

    async def crowd(host):
        tasks = [Client(application, *SLOW, host=host).begin() for _ in range(3)]
        await asyncio.sleep(0.1)
        others = [Client(application, *QUICK, host=each) for each in (host, "198.51.100.9")]
        await asyncio.gather(*(other.begin() for other in others))
        await end(tasks)
        again = Client(application, *QUICK, host=host)
        await again.begin()
        return [client.status for client in (*others, again)], others[0].sent

    statuses, sent = asyncio.run(crowd("203.0.113.7"))
    assert statuses == [429, 200, 200] and (b"retry-after", b"1") in sent[0]["headers"]
    for own in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):  # the last: as a socket of IPv6 shows the first
        assert asyncio.run(crowd(own))[0] == [200] * 3
    assert asyncio.run(crowd("::ffff:203.0.113.7"))[0] == [429, 200, 200]
    assert not application.clients  # nobody is remembered


BEHIND = address.Address("127.0.0.1", 8000, allowed=("retable.example.org", "other.example.org:8443"))


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("retable.example.org", "https://retable.example.org", 200),  # the proxy leaves the name
        ("127.0.0.1:8000", "https://retable.example.org", 200),  # the proxy rewrites it
        ("other.example.org:8443", "https://other.example.org:8443", 200),
        ("Retable.Example.org", "https://retable.example.org", 200),
        ("127.0.0.1:8000", "https://evil.example", 403),
        ("127.0.0.1:8000", "https://retable.example.org.evil.example", 403),
        ("127.0.0.1:8000", "http://127.0.0.1:3000", 403),  # another server of this machine
        ("127.0.0.1:8000", "http://localhost", 403),
        ("127.0.0.1:8000", "null", 403),
        ("evil.example", "https://retable.example.org", 421),
        ("other.example.org:9", "", 421),
    ],
)
def test_a_proxy_before_this_machine_has_a_name_that_is_allowed(host, origin, status):
    headers = [(b"host", host.encode()), *([(b"origin", origin.encode())] if origin else [])]
    assert ask(made(hosts=BEHIND.names), "POST", STYLE, b"x", headers)[0] == status


@pytest.mark.parametrize(("token", "status"), [(TOKEN, 200), ("another", 401), ("", 401)])
def test_whoever_has_the_token_is_no_other_sites_page(token, status):
    headers = [(b"origin", b"https://behind.example"), (b"authorization", f"Bearer {token}".encode())]
    answer = ask(made(TOKEN), "POST", STYLE, b"x", headers)
    assert answer[0] == status and (status == 200 or answer[1]["www-authenticate"] == "Bearer")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", STYLE, "POST"),
        ("PUT", "/v1/audio", "GET, HEAD, POST"),
        ("POST", "/v1/audio/12", "GET, HEAD"),
        ("PATCH", "/v1/jobs/12", "DELETE, GET, HEAD"),
        ("DELETE", "/", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_for_a_path_is_told_which_are(method, path, allowed):
    both = [*MODELS, Model(task="audio", name="a", sha256="c" * 64)]
    answer = ask(made(models=both), method, path)
    assert problem(answer)[0] == 405 and answer[1]["allow"] == allowed


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/v1/models", 200), ("/v1/nothing", 404), (STYLE, 405)])
def test_head_is_get_without_the_body(path, status):
    whole, head = ask(made(), "GET", path), ask(made(), "HEAD", path)
    assert head[0] == whole[0] == status and whole[2] and not head[2]
    assert head[1]["content-length"] == str(len(whole[2])) and head[1]["content-type"] == whole[1]["content-type"]


def test_every_answer_is_of_a_kind_that_the_document_names():
    application = web.application()
    paths = json.loads(ask(application, "GET", "/openapi.json")[2])["paths"]
    for path in ("/v1/weather/example", "/v1/models", "/v1/limits", "/v1/audio?q=x", "/v1/tables"):
        status, headers, _ = ask(application, "GET", path)
        named = paths[path.partition("?")[0]]["get"]["responses"][str(status)]["content"]
        assert headers["content-type"] in named, path
    audio = paths["/v1/audio/{id}"]["get"]
    for wanted, expected in ((b"", 200), (b"bytes=0-99", 206), (b"bytes=x", 416)):  # as a page's player asks
        status, headers, body = ask(application, "GET", "/v1/audio/1", headers=[(b"range", wanted)] if wanted else [])
        named = audio["responses"].get(str(status), audio["responses"]["default"])["content"]
        assert status == expected and any(fnmatch(headers["content-type"], kind) for kind in named)
        assert status != 206 or len(body) == 100
    assert [each["in"] for each in audio["parameters"] if each["name"] == "Range"] == ["header"]
    assert "206" in paths["/v1/jobs/{id}/file"]["get"]["responses"]
    assert list(paths["/v1/tables/{task}/{name}/picture"]["get"]["responses"]["200"]["content"]) == ["image/png"]


def test_probes_are_answered_without_a_token_and_by_any_name():
    application = made(TOKEN, hosts=("localhost",))
    headers = [(b"host", b"10.0.0.7:8000")]
    assert ask(application, "GET", "/-/healthz", headers=headers)[0] == 200
    assert ask(application, "GET", "/v1/models", headers=headers)[0] == 421


def test_a_server_that_drains_is_alive_and_not_ready():
    """A supervisor that was told that it is dead would kill it before what was begun is answered."""
    application = made()
    application.closing = True
    assert [ask(application, "GET", path)[0] for path in ("/-/healthz", "/-/readyz", "/v1/models")] == [200, 503, 503]


def test_it_is_ready_while_every_model_answers_and_asks_them_now_and_then():
    asked, says = [], {"style": Reply(b"", "text/plain")}

    async def refuse():
        raise Problem(503, "all places are taken")

    async def break_down():
        raise RuntimeError("/secret/path")

    async def answer(task, method, digests):
        asked.append((task, method, digests))
        return await says[task] if asyncio.iscoroutine(says[task]) else says[task]

    async def status(application):
        client = Client(application, *QUICK, path="/-/readyz")
        client.scope["method"] = "GET"
        await client.begin()
        return client.status

    async def probe(times, pause=0.0, **limits):
        application, found = made(ask=answer, limits=Limits(**limits)), []
        for _ in range(times):
            found.append(await status(application))
            await asyncio.sleep(pause)
        return found

    assert asyncio.run(probe(3)) == [200] * 3 and asked == [("style", "ready", ["a" * 64])]
    assert asyncio.run(probe(3, pause=1.1, ready_seconds=1)) == [200] * 3 and len(asked) == 4
    says["style"] = Problem(503, "style is starting again")
    assert asyncio.run(probe(2)) == [503] * 2 and len(asked) == 5  # what failed is asked no more often
    says["style"] = refuse()  # as the ingress does where a queue is full
    assert asyncio.run(probe(2)) == [503] * 2 and len(asked) == 6
    says["style"] = asyncio.sleep(FOREVER)
    assert asyncio.run(probe(1, ready_seconds=0.1)) == [503]
    says["style"] = break_down()  # as where a replica raises what is no refusal
    assert asyncio.run(probe(2)) == [503] * 2 and len(asked) == 8


def test_other_models_of_a_task_are_served_once_they_answer_and_until_then_those_before(monkeypatch):
    """One that could not be loaded was asked for by each request, and each was a fault."""
    asked, says = [], {}
    monkeypatch.setattr(app, "Metrics", lambda: SimpleNamespace(answered=lambda *of: None, serve=lambda models: None))
    monkeypatch.setattr(app, "PAUSE", 0.01)

    class Ingress(app.Ingress.__mro__[1]):  # without Serve's part, which needs a replica
        async def ask(self, task, method, digests):
            asked.append((task, method, digests))
            answer = says.get(digests[0], [Reply(b"", "text/plain")])
            if isinstance(found := answer.pop(0) if len(answer) > 1 else answer[0], Exception):
                raise found
            return found

    ingress = Ingress(dict.fromkeys(("style", "rl")), "", (), Limits(held_bytes=3))

    def swap(**digests):
        made = [Model(task=task, name="toy", sha256=digest) for task, digest in digests.items()]
        asyncio.run(ingress.reconfigure(config_of(made)))
        shown = json.loads(ask(ingress.gate.app, "GET", "/v1/models")[2])
        return {model["task"]: model["sha256"] for model in shown}

    assert swap(style="a", rl="b") == {"style": "a", "rl": "b"} and not asked  # at the start nothing answers yet
    for fault in (RuntimeError("no such file"), Problem(503, "it cannot be loaded")):
        says["c"] = [fault]
        assert swap(style="c", rl="d") == {"style": "a", "rl": "d"}
    assert ("rl", "ready", ["d"]) in asked
    busy = Problem(503, "all places are taken", wait=1)
    says["c"] = [busy, busy, Reply(b"", "text/plain")]
    assert swap(style="c", rl="d") == {"style": "c", "rl": "d"}
    assert swap(rl="d") == {"rl": "d"}
    says["e"] = [fault]
    assert swap(style="a", rl="e") == {"style": "a", "rl": "d"}
    assert swap(rl="e") == {"rl": "d"}

    async def reload():
        """Bodies that are held count on after a swap."""
        made = [Model(task="style", name="toy", sha256=digest) for digest in "ab"]
        await ingress.reconfigure(config_of(made[:1]))
        held = Client(ingress.gate, (0, b"xx"), (FOREVER, b""), path="/v1/style/toy").begin()
        late = Client(ingress.gate, (0, b"xx"), path="/v1/style/toy")
        await asyncio.sleep(0.05)
        await ingress.reconfigure(config_of(made[1:]))
        await late.begin()
        await end([held])
        return late.status

    assert asyncio.run(reload()) == 503
    with pytest.raises(UserError, match="user_config: a model of audio, which is not among the `tasks`"):
        swap(audio="a")


def test_below_a_prefix_the_token_is_asked_for_and_places_are_right():
    async def location(task, method, *of):
        return Reply(b"{}", "application/json", 202, (("Location", "/v1/jobs/12"),))

    def answer(path, token):
        client = Client(made(TOKEN if token else "", ask=location), *QUICK, path=path, root="/other")

        async def ask_once():
            await client.begin()

        asyncio.run(ask_once())
        return client.status, dict(client.sent[0]["headers"]).get(b"location")

    assert answer(f"/other{STYLE}", token=False) == (202, b"/other/v1/jobs/12")
    assert answer(f"/other{STYLE}", token=True) == (401, None)


def test_who_waits_too_long_for_a_turn_is_told_to_come_again_and_the_others_are_not():
    async def crowd():
        line, done = Line(2, 0.25), []

        async def one(place):
            async def work():
                await asyncio.sleep(0.1)
                done.append(place)

            try:
                return await line.run(work)
            except Problem as refused:
                return refused

        begun = time.monotonic()
        told = await asyncio.gather(*(one(place) for place in range(20)))
        return told, done, time.monotonic() - begun

    told, done, seconds = asyncio.run(crowd())
    assert done == list(range(len(done))) and 2 <= len(done) <= 6  # in the order in which they came
    refused = [each for each in told if each]
    assert len(refused) == 20 - len(done) and seconds < 2
    assert {each.status for each in refused} == {503} and refused[0].headers == {"Retry-After": "1"}


def test_who_leaves_while_it_waits_takes_no_place():
    async def crowd():
        line, over = Line(1, 5), asyncio.Event()
        first = asyncio.create_task(line.run(over.wait))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(line.run(over.wait))
        await asyncio.sleep(0.05)
        await end([waiting])
        over.set()
        await first
        async with asyncio.timeout(1):
            return await line.run(over.wait)

    assert asyncio.run(crowd())


def test_work_whose_asker_has_gone_away_keeps_its_place_until_it_is_done():
    """A thread cannot be ended: its place is not another's before."""

    async def crowd():
        line, over = Line(1, 0.1), threading.Event()
        gone = asyncio.create_task(line.run(lambda: asyncio.to_thread(over.wait, 10)))
        await asyncio.sleep(0.05)
        await end([gone])
        with pytest.raises(Problem):
            await line.run(lambda: asyncio.sleep(0))
        over.set()
        await asyncio.sleep(0.05)
        await line.run(lambda: asyncio.sleep(0))

    asyncio.run(crowd())


def test_work_that_fails_before_its_first_step_frees_its_place():
    """As a body that is refused while it is read: after as many of them nobody was answered any more."""

    def refused():
        raise Problem(400, "the body is no JSON")

    async def crowd():
        line = Line(2, 0.1)
        for _ in range(5):
            with pytest.raises(Problem, match="no JSON"):
                await line.run(refused)
        return await line.run(lambda: asyncio.sleep(0, "answered"))

    assert asyncio.run(crowd()) == "answered"
