"""One server, started once on Ray: every endpoint of policies, as a client meets it; styles are in `test_jobs.py`."""

import concurrent.futures
import json
import socket

import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.serve.client import Client, ServeError
from retable.serve.launch import address, models, server
from tests.serve import toys

# Of Ray's own: sockets and subprocesses that it leaves to the garbage collector, and its use of old names of asyncio.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    storage = Storage.open(tmp_path_factory.mktemp("serve") / "results")
    served = [
        models.keep(toys.policy_file(0), storage, task="rl", name="InvertedPendulum", variant="dense"),
        models.keep(toys.policy_file(1), storage, task="rl", name="InvertedPendulum", variant="other"),
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = address.Address("127.0.0.1", port, TOKEN)
    with server.serving(served, storage, where):
        yield Client(where.url, TOKEN)


def test_policies_act_alike_whatever_batch_they_ride_in(client):
    draw = np.random.default_rng(0)
    asked = [(draw.normal(size=(1 + place % 7, 4)).astype(np.float32), place, place % 2) for place in range(40)]

    def act(each):
        rows, seed, other = each
        return client.act("InvertedPendulum", rows, seed, "other" if other else "")

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        together = list(pool.map(act, asked))
    policies = [toys.policy(0), toys.policy(1)]
    for (rows, seed, other), found in zip(asked, together, strict=True):
        noise = policies[other].noise(len(rows), 100, seed)
        wanted = policies[other].act(torch.from_numpy(rows), noise).numpy()
        assert found.shape == (len(rows), 1) and np.abs(found - wanted).max() <= 1e-5


def test_what_cannot_be_answered_is_a_problem(client):
    def refused(*arguments, **options):
        with pytest.raises(ServeError) as caught:
            client.ask(*arguments, **options)
        return caught.value.status, caught.value.detail

    path = "/v1/rl/InvertedPendulum"
    wide = json.dumps({"observations": [[0] * 5]}).encode()
    assert refused("POST", path, body=wide) == (
        422, "observations: got shape (1, 5), wanted numbers of shape (rows, 4)"
    )  # fmt: skip
    assert refused("POST", "/v1/rl/Hoper", body=b"{}")[0] == 404
    assert refused("POST", path, body=b"x" * (5 << 20))[0] == 413
    with pytest.raises(ServeError, match="401: a token is needed"):
        Client(client.url).models()


def test_a_wrong_request_does_not_fail_its_neighbours(client):
    def act(place):
        try:
            return client.act("InvertedPendulum", np.zeros((1, 4 + place % 2)), seed=place).shape
        except ServeError as error:
            return error.status

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        assert list(pool.map(act, range(40))) == [(1, 1), 422] * 20


def test_it_says_what_it_serves_and_what_it_accepts(client):
    assert [(model["task"], model["variant"]) for model in client.models()] == [("rl", "dense"), ("rl", "other")]
    assert client.limits()["pixels"] == 25_000_000
    page = Client(client.url).ask("GET", "/")
    assert page.headers["content-type"].startswith("text/html") and b"retable" in page.body


def test_more_than_the_machine_has_is_refused(client):
    with pytest.raises(UserError, match=r"CPUs are wanted \(rl 99\)"):
        server.check_cpus({"rl": 99})
