"""The command under a supervisor: Ray ends under it, another one is there already, it is killed and comes again."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from retable.platform.execute import session
from retable.serve.client import Client, ServeError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}


def begin(words, log, **more):
    """Start a command in a session of its own; what it says goes to a file."""
    with log.open("w") as file:
        return subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=environment(**more), start_new_session=True, cwd=ROOT
        )


def serve(folder, name, *words, **more):
    """Start `retable serve` of the zoo's policies."""
    command = [sys.executable, "-W", "ignore", "-m", "retable.platform.cli", "serve", "rl", "--zoo", *words]
    return begin([*command, "--storage", str(folder / "results")], folder / name, **more)


def wait_for(log, text, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not (found := re.search(text, log.read_text())):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[0]


@contextmanager
def ended(*processes):
    """End what a test has started, however the test ends."""
    try:
        yield
    finally:
        for process in processes:
            family = [process.pid, *(each.pid for each in children(process))]
            for pid in family:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait(30)


def children(process):
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def test_it_ends_with_status_1_where_ray_ends_under_it(tmp_path):
    port = free_port()
    server = serve(tmp_path, "log", "--port", str(port))
    with ended(server):
        wait_for(tmp_path / "log", "is open", server)
        for path in ("/-/healthz", "/-/readyz"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                assert answer.status == 200
        family = children(server)
        (raylet,) = [each for each in family if each.name() == "raylet"]
        begun = time.monotonic()
        raylet.kill()
        assert server.wait(15) == 1, (tmp_path / "log").read_text()
        assert time.monotonic() - begun < 15
        assert "error: Ray has ended under the server; start it again" in (tmp_path / "log").read_text()
        _, alive = psutil.wait_procs(family, 20)
        assert not alive, alive  # nothing is left behind


def test_the_first_interrupt_ends_it_at_once_where_ray_is_gone(tmp_path):
    server = serve(tmp_path, "log", "--port", str(free_port()))
    with ended(server):
        wait_for(tmp_path / "log", "is open", server)
        (raylet,) = [each for each in children(server) if each.name() == "raylet"]
        raylet.kill()
        server.send_signal(signal.SIGINT)
        assert server.wait(15) == 1, (tmp_path / "log").read_text()


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A Ray cluster; give the variables of who joins it."""
    session.make_token()
    folder = tmp_path_factory.mktemp("head")
    port = free_port()
    words = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}", "--num-cpus=4"]
    words += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--min-worker-port=0", "--max-worker-port=0"]
    words.append(f"--dashboard-agent-listen-port={free_port()}")
    process = begin(words, folder / "log", RAY_AUTH_MODE="token")
    with ended(process):
        wait_for(folder / "log", "Ray runtime started", process, 120)
        yield {"RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_AUTH_MODE": "token"}


def test_two_servers_of_one_cluster_live_beside_each_other_and_neither_ends_the_other(head, tmp_path):
    port, where = free_port(), head
    first = serve(tmp_path, "first", "--port", str(port), **where)
    url = f"http://127.0.0.1:{port}"
    with ended(first):
        wait_for(tmp_path / "first", f"{url}/ is open", first)
        second = serve(tmp_path, "second", "--port", str(free_port()), **where)
        with ended(second):
            assert second.wait(200) == 1
            said = (tmp_path / "second").read_text()
            assert f"serve: {url} is served by this cluster already" in said and "--name" in said
        assert Client(url).models()
        beside = serve(tmp_path, "beside", "--port", str(free_port()), "--name", "other", **where)
        with ended(beside):
            wait_for(tmp_path / "beside", f"{url}/other/ is open", beside)
            other = Client(f"{url}/other")
            assert other.models() and b"<title>" in other.ask("GET", "/").body
            assert other.ask("GET", "/page/page.js").body and other.ask("GET", "/-/readyz").body
            beside.send_signal(signal.SIGINT)
            assert beside.wait(90) == 0, (tmp_path / "beside").read_text()
        assert Client(url).models()
        with pytest.raises(ServeError, match="404"):
            other.models()
        first.kill()  # the application stays; who comes next takes its place
        first.wait(30)
        again = serve(tmp_path, "again", "--port", str(port), **where)
        with ended(again):
            wait_for(tmp_path / "again", f"{url}/ is open", again)
            assert Client(url).models()
            again.send_signal(signal.SIGTERM)
            assert again.wait(90) == 0, (tmp_path / "again").read_text()
