"""The command under a supervisor: Ray ends under it, another one is there already, it is killed and comes again."""

import configparser
import os
import re
import shutil
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
import yaml

from retable.platform.execute import session
from retable.serve.client import Client, ServeError
from tests.documents import BLOCK

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
        # 0 where the signal comes before the news that Ray is gone: then there was nothing to wait for.
        assert server.wait(15) in (0, 1), (tmp_path / "log").read_text()
        assert "Traceback" not in (tmp_path / "log").read_text()


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


@pytest.mark.parametrize("token", ["wrong" * 8, ""], ids=["another token", "none"])
def test_a_command_that_the_cluster_does_not_let_in_says_so_in_a_line(head, tmp_path, token):
    """As Ray itself refuses it."""
    words = [sys.executable, "-W", "ignore", "-m", "retable.platform.cli", "train", "rl", "--storage", str(tmp_path)]
    more = head | ({"RAY_AUTH_TOKEN": token} if token else {"HOME": str(tmp_path)})
    ran = subprocess.run(words, env=environment(**more), capture_output=True, text=True, timeout=200, cwd=ROOT)
    (line,) = [each for each in ran.stderr.splitlines() if each.startswith("error: ")]
    assert ran.returncode == 2 and "Traceback" not in ran.stderr + ran.stdout
    assert "token" in line and ("RAY_AUTH_TOKEN_PATH" in line or "refuses" in line), line


def test_two_servers_of_one_cluster_live_beside_each_other_and_neither_ends_the_other(head, tmp_path):
    port, where = free_port(), head
    first = serve(tmp_path, "first", "--port", str(port), **where)
    url = f"http://127.0.0.1:{port}"
    with ended(first):
        wait_for(tmp_path / "first", f"{url}/ is open", first)
        second = serve(tmp_path, "second", "--port", str(free_port()), **where)
        with ended(second):
            assert second.wait(200) == 2
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


def example(kind):
    """Return the block of a kind in docs/serving.md that a supervisor reads."""
    blocks = BLOCK.finditer((ROOT / "docs" / "serving.md").read_text())
    return next(block["text"] for block in blocks if block["kind"] == kind)


def unit():
    """Return the sections of the systemd unit."""
    read = configparser.ConfigParser(interpolation=None)
    read.optionxform = str
    read.read_string(example("ini"))
    return read


def test_what_the_compose_file_mounts_is_the_images_users():
    """A new volume takes the owner of the folder of the image that it is mounted at."""
    image, service = (ROOT / "Dockerfile").read_text(), yaml.safe_load(example("yaml"))["services"]["retable"]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", image, re.M)
    made = re.findall(r"install --directory --owner (\d+) --group (\d+) (\S+)$", image, re.M)
    assert [(*user, mount.partition(":")[2]) for mount in service["volumes"]] == made
    assert image.index("install --directory") < image.index("\nUSER ")
    own = unit()["Service"]
    assert own["Environment"].split()[0].startswith(f"RETABLE_STORAGE=/var/lib/{own['StateDirectory']}/")
    assert f"HOME=/var/lib/{own['StateDirectory']}" in own["Environment"].split()


def test_systemd_takes_the_unit(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd here")
    file = tmp_path / "retable.service"
    file.write_text(
        example("ini").replace("/opt/venv/bin/retable", sys.executable).replace("User=retable", "User=root")
    )
    ran = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True)
    assert ran.returncode == 0 and "retable.service" not in ran.stdout + ran.stderr


def test_the_commands_of_the_examples_serve_are_healthy_reload_and_end(tmp_path):
    """What the unit and the compose file run, with this machine's paths and a free port, policies alone."""
    service = yaml.safe_load(example("yaml"))["services"]["retable"]
    own, port = unit()["Service"], free_port()
    token = tmp_path / "token"
    token.write_text("a-token-for-tests")
    token.chmod(0o600)
    words, probe = service["command"], service["healthcheck"]["test"]
    said = own["ExecStart"].replace("%d/token", "/run/secrets/token").split()
    assert said == ["/opt/venv/bin/retable", *words[1:]] and own["KillMode"] == "mixed"
    assert service["ports"] == ["127.0.0.1:8000:8000"] and probe[-1].startswith("http://127.0.0.1:8000/")
    command = [sys.executable, "-W", "ignore", "-m", "retable.platform.cli"]
    command += [str(token) if word == "/run/secrets/token" else word for word in words[1:]]
    where = {name: str(tmp_path / "results") for name in service["environment"]}
    assert f"Environment={next(iter(where))}=" in example("ini")
    server = begin([*command, "rl", "--port", str(port)], tmp_path / "log", **where)
    with ended(server):
        wait_for(tmp_path / "log", "is open", server)
        healthy = [word.replace(":8000/", f":{port}/") for word in probe[1:]]
        assert subprocess.run(healthy, timeout=60).returncode == 0
        assert (tmp_path / "results" / "served").is_dir()
        reload = own["ExecReload"].replace("$MAINPID", str(server.pid)).split()
        assert subprocess.run(reload).returncode == 0
        wait_for(tmp_path / "log", "chosen again", server)
        server.send_signal(signal.SIGTERM)
        assert server.wait(float(service["stop_grace_period"].removesuffix("s"))) == 0
    assert subprocess.run(healthy, timeout=60).returncode != 0
