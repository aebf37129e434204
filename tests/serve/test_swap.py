"""Through Serve, under load: models are swapped, and replicas die, and no request is lost."""

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import ray
import torch

from retable.platform.store.storage import Storage
from retable.serve.client import Client, ServeError
from retable.serve.launch import address, models
from retable.serve.launch.server import metrics_urls, serving
from tests.serve import toys

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
OBSERVATIONS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    storage = Storage.open(tmp_path_factory.mktemp("swap") / "results")
    made = {seed: models.keep(toys.policy_file(seed), storage, task="rl", name="InvertedPendulum") for seed in range(3)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = address.Address("127.0.0.1", free.getsockname()[1])
    with serving([made[0]], storage, where, replicas={"rl": 2, "ingress": 2}) as swap:
        yield Client(where.url), made, swap


class Load:
    """Clients that ask without a pause, and keep each answer with the time it came."""

    def __init__(self, client, clients=3):
        self.client, self.answers, self.failures, self.end = client, [], [], threading.Event()
        self.threads = [threading.Thread(target=self.ask) for _ in range(clients)]

    def ask(self):
        body = b'{"observations": %s, "seed": 5}' % str(OBSERVATIONS.tolist()).encode()
        while not self.end.is_set():
            try:
                answer = self.client.ask("POST", "/v1/rl/InvertedPendulum", None, body)
                self.answers.append((time.monotonic(), answer.headers["x-retable-digest"], answer.body))
            except Exception as error:
                self.failures.append(repr(error))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *of):
        self.end.set()
        for thread in self.threads:
            thread.join()


def actions(seed):
    policy = toys.policy(seed)
    return policy.act(torch.from_numpy(OBSERVATIONS), policy.noise(len(OBSERVATIONS), 100, 5)).numpy()


def test_a_swap_under_load_drops_nothing_and_starts_no_replica_again(server):
    client, made, swap = server
    before = toys.replicas("rl")
    assert len(before) == 2
    patient = Client(client.url, tries=1)  # it asks once: what is dropped is seen
    with Load(patient) as load:
        time.sleep(1)
        for seed in (1, 2, 0, 1):
            begun = time.monotonic()
            assert swap([made[seed]]) == {made[seed].sha256}
            done = time.monotonic()
            assert np.abs(client.act("InvertedPendulum", OBSERVATIONS, 5) - actions(seed)).max() <= 1e-5
            time.sleep(1)
            late = {digest for when, digest, _ in load.answers if when > done + 0.7}
            early = {digest for when, digest, _ in load.answers[-1:] if when < begun}
            assert late == {made[seed].sha256} and made[seed].sha256 not in early
    assert not load.failures and len(load.answers) > 50
    assert toys.replicas("rl") == before
    (shown,) = client.models()
    assert shown["sha256"] == made[1].sha256
    answers = {digest: body for _, digest, body in load.answers}  # each header is true of its answer
    assert len(answers) == 3 and len(set(answers.values())) == 3
    for _, digest, body in load.answers:
        assert body == answers[digest]


def test_a_swap_to_what_is_not_there_leaves_replicas_as_they_are(server):
    client, made, swap = server
    gone = models.Model(task="rl", name="InvertedPendulum", sha256="0" * 64)
    swap([made[1]])
    before = toys.replicas("rl")
    with Load(Client(client.url, tries=1)) as load:
        assert swap([gone]) == {made[1].sha256}
        assert [model["sha256"] for model in client.models()] == [made[1].sha256]
        assert np.abs(client.act("InvertedPendulum", OBSERVATIONS, 5) - actions(1)).max() <= 1e-5
        assert client.ask("GET", "/-/readyz").status == 200
        swap([made[2]])
        assert np.abs(client.act("InvertedPendulum", OBSERVATIONS, 5) - actions(2)).max() <= 1e-5
    assert not load.failures and load.answers
    assert toys.replicas("rl") == before


def test_replicas_that_are_killed_cost_no_request(server):
    client = server[0]
    killed = []
    with Load(client, 4) as load:
        for deployment in ("rl", "rl", "ingress", "rl", "ingress"):
            deadline = time.monotonic() + 120
            while len(living := toys.replicas(deployment) - set(killed)) < 1 and time.monotonic() < deadline:
                time.sleep(0.2)
            killed.append(min(living))
            os.kill(killed[-1], signal.SIGKILL)
            time.sleep(4)
    assert not load.failures and len(load.answers) > 50 and len(set(killed)) == 5


def test_metrics_say_what_was_asked_and_what_is_served(server):
    import urllib.request

    Client(server[0].url).ask("POST", "/v1/rl/InvertedPendulum", None, b'{"observations": [[0, 0, 0, 0]]}')
    (url,) = metrics_urls()
    deadline, asked = time.monotonic() + 60, []
    while not asked and time.monotonic() < deadline:  # Ray exports its metrics now and then
        time.sleep(2)
        text = urllib.request.urlopen(url, timeout=30).read().decode()
        counts = [line for line in text.splitlines() if line.startswith("ray_retable_requests_total{")]
        asked = [line for line in counts if 'endpoint="/v1/rl/{environment}"' in line and 'status="200"' in line]
    assert asked
    assert "ray_retable_request_seconds_bucket" in text and 'sha256="' + server[1][1].sha256[:8] in text
    assert "ray_serve_actual_batch_size" in text
    assert ray.is_initialized()


def test_a_proxy_of_this_machine_says_whose_request_it_is(server):
    """One address has 32 requests at once in each of two replicas of the ingress; this machine's own has any number."""
    client = Client(server[0].url, tries=1)
    body = b'{"observations": %s}' % str(np.zeros((256, 4)).tolist()).encode()

    def status(headers):
        try:
            return client.ask("POST", "/v1/rl/InvertedPendulum", None, body, headers).status
        except ServeError as error:
            return error.status

    for headers, refused in (({"X-Forwarded-For": "203.0.113.7"}, True), ({}, False)):
        with ThreadPoolExecutor(100) as pool:
            statuses = set(pool.map(status, [headers] * 100))
        assert (429 in statuses) == refused and statuses - {200, 429, 503} == set()
