"""`retable submit`: what is refused before anything is sent, what is sent, and what a cluster's answers become."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus

from retable.platform import commit as commits
from retable.platform.cli import app
from retable.platform.errors import UserError
from retable.platform.execute import jobs, session
from retable.platform.execute.status import of_cluster
from retable.platform.store import provenance
from retable.platform.store.storage import Storage

ROOT = Path(__file__).parents[3]


class Dashboard(ThreadingHTTPServer):
    """Answers as it is told to, and keeps what it was asked."""

    def __init__(self, answers, status=200):
        server = self
        self.asked, self.headers = [], {}

        class Handler(BaseHTTPRequestHandler):
            def do_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                server.asked.append((self.command, path, body))
                server.headers = {name.lower(): value for name, value in self.headers.items()}
                found = answers.get(path, answers.get("*"))
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status if found is not None or self.command == "PUT" else 404)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_any

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def dashboards(monkeypatch):
    """Make dashboards; they end with the test."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    made = []

    def make(answers, status=200):
        made.append(Dashboard(answers, status))
        return made[-1]

    yield make
    for each in made:
        each.shutdown()
        each.server_close()
    os.environ.pop("RAY_AUTH_MODE", None)


VERSION = {"/api/version": {"version": "4", "ray_version": "2.60.0", "ray_commit": "", "session_name": ""}}


def said(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["retable", "submit", *map(str, words)])
    try:
        app.main()
    except SystemExit as ended:
        assert ended.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    return text


@pytest.mark.parametrize("storage", ["results", "./x", "", "~/x"])
def test_a_storage_that_is_not_shared_is_refused_before_anything_is_sent(monkeypatch, capsys, dashboards, storage):
    server = dashboards(VERSION)
    text = said(monkeypatch, capsys, "--address", server.address, "--", "reproduce", "rl", "--storage", storage)
    assert "no node sees" in text and "s3://" in text and not server.asked


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("auto", "http://auto:8265"),
        ("10.0.0.1:6379", "http://10.0.0.1:8265"),
        ("ray://head:10001", "http://head:8265"),
        ("http://head:8265/path", "http://head:8265"),
    ],
)
def test_an_address_of_something_else_is_told(monkeypatch, capsys, address, meant):
    text = said(monkeypatch, capsys, "--address", address, "--storage", "s3://b/x?region=us-east-1", "--", "reproduce")
    assert f"write {meant}" in text


def test_where_none_answers_the_tunnel_is_asked_for(monkeypatch, capsys):
    text = said(monkeypatch, capsys, "--address", "http://127.0.0.1:9", "--list")
    assert "no Ray dashboard answers there" in text and "ray dashboard" in text


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (401, {"*": b"no"}, "refuses this token"),
        (403, {"*": b"no"}, "refuses this token"),
        (200, {"*": b"<html>"}, "something else than Ray"),
        (500, {"*": b"x"}, "answers 500"),
        (302, {"*": b"x"}, "answers 302"),
    ],
)
def test_what_answers_otherwise_is_one_line(monkeypatch, capsys, dashboards, status, answer, words):
    server = dashboards(answer, status)
    assert words in said(monkeypatch, capsys, "--address", server.address, "--list")


def test_an_unknown_job_is_told_before_it_is_followed(monkeypatch, capsys, dashboards):
    server = dashboards(VERSION)
    assert "404" in said(monkeypatch, capsys, "--address", server.address, "--follow-job", "nosuch")


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # Ray's client says so to aiohttp
def test_a_connection_that_breaks_off_says_how_to_follow_again(monkeypatch, capsys, dashboards):
    """The server knows the job and then speaks no WebSocket, as a tunnel that is cut."""
    job = {"type": "SUBMISSION", "status": "RUNNING", "entrypoint": "x", "submission_id": "j"}
    server = dashboards({**VERSION, "/api/jobs/j": job})
    text = said(monkeypatch, capsys, "--address", server.address, "--follow-job", "j")
    assert "the job may go on" in text and f"--address {server.address} --follow-job j" in text


@pytest.mark.parametrize("linked", [False, True], ids=["a file", "a link to it"])
@pytest.mark.parametrize("where", ["", "weights"])
def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(
    monkeypatch, dashboards, checkout, tmp_path_factory, where, linked
):
    """Before it is packed: what is ignored, or never uploaded, does not count."""
    server = dashboards({**VERSION, "/api/jobs/": {"job_id": "j", "submission_id": "raysubmit_1"}})
    (checkout / where).mkdir(exist_ok=True)
    for name, size in (("large.bin", 600), ("small.bin", 20), ("ignored.tmp", 900)):
        with open(checkout / where / name, "wb") as file:
            file.truncate(size * 10**6)
    if linked:  # Ray packs what it leads to
        outside = tmp_path_factory.mktemp("cache") / "large"
        (checkout / where / "large.bin").rename(outside)
        (checkout / where / "large.bin").symlink_to(outside)
    with open(checkout / "results/large", "wb") as file:
        file.truncate(900 * 10**6)
    (checkout / ".gitignore").write_text("*.tmp\n")
    monkeypatch.delenv("RETABLE_TASKS", raising=False)
    with pytest.raises(UserError) as refused:
        jobs.submit(server.address, ["reproduce"], "/x", checkout)
    text = str(refused.value)
    assert "620 MB, unpacked, would be uploaded, and Ray takes 524; name in .rayignore" in text and ".tmp" not in text
    assert f"such as {Path(where) / 'large.bin'} 600 MB, " in text and not server.asked


def test_a_command_that_makes_no_sense_as_a_job_is_refused(monkeypatch, capsys):
    for words in ((), ("serve",), ("rm", "-rf")):
        assert "write a command after --" in said(monkeypatch, capsys, "--storage", "/x", "--", *words)


def test_a_stream_that_ends_before_its_job_says_how_to_follow_again(monkeypatch, capsys):
    class Client:
        async def tail_job_logs(self, job):
            yield "a line\n"

        def get_job_info(self, job):
            return SimpleNamespace(status=JobStatus.RUNNING)

    monkeypatch.setattr(jobs, "connect", lambda address: Client())
    with pytest.raises(UserError, match="follow it again: retable submit --address http://h:1 --follow-job j"):
        jobs.follow("http://h:1", "j")
    assert capsys.readouterr().out == "a line\njob j: running\n"


def test_a_cluster_that_has_just_started_is_asked_again(monkeypatch):
    answers = [
        "No available agent to submit job, please try again later",
        "No available agent to submit job",
        "no room",
    ]
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)

    def submit_job(**job):
        assert job == {"entrypoint": "x"}
        if answers:
            raise RuntimeError(answers.pop(0))
        return "raysubmit_1"

    client = SimpleNamespace(submit_job=submit_job)
    with pytest.raises(RuntimeError, match="no room"):
        jobs._submit(client, entrypoint="x")
    assert jobs._submit(client, entrypoint="x") == "raysubmit_1"
    answers.append("No available agent to submit job")
    monkeypatch.setattr(jobs, "AGENT", -1.0)
    with pytest.raises(RuntimeError, match="No available agent"):
        jobs._submit(client, entrypoint="x")


@pytest.fixture
def checkout(tmp_path):
    """A folder of a user's, under git."""
    folder = tmp_path / "mine"
    (folder / "tasks_of_mine").mkdir(parents=True)
    (folder / "code.py").write_text("x")
    (folder / "results").mkdir()
    (folder / "results/large").write_text("never sent")
    for words in (
        ["init", "-q"],
        ["add", "code.py"],
        ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


@pytest.mark.parametrize(
    ("words", "rest", "storage"),
    [
        (["plan", "--storage", "--scale", "small"], ["plan", "--scale", "small"], ""),
        (["plan", "--storage=/a", "--storage", "/b", "--set", "a=-1"], ["plan", "--set", "a=-1"], "/b"),
        (["plan", "--stor", "-x"], ["plan", "--stor", "-x"], "mine"),
    ],
)
def test_the_storage_is_taken_out_of_a_command(words, rest, storage):
    assert jobs.split_storage(words, "mine") == (rest, storage)


def test_what_is_sent_is_the_folder_the_commit_the_tasks_and_the_storage(dashboards, checkout, monkeypatch):
    before = sorted(checkout.rglob("*"))
    answers = {**VERSION, "/api/jobs/": {"job_id": "j", "submission_id": "raysubmit_1"}}
    server = dashboards(answers)
    monkeypatch.setenv("RETABLE_TASKS", str(checkout / "tasks_of_mine"))
    words, where = jobs.split_storage(["reproduce", "rl", "--storage", "/mnt/x", "--set", "a=1; rm x"], "results")
    assert jobs.submit(server.address, words, where, checkout) == "raysubmit_1"
    sent = json.loads(next(body for method, path, body in server.asked if path == "/api/jobs/"))
    assert sent["entrypoint"] == "python -m retable.platform.cli reproduce rl --set 'a=1; rm x'"
    variables = sent["runtime_env"]["env_vars"]
    commit = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert variables == {
        "RETABLE_STORAGE": "/mnt/x",
        "RETABLE_COMMIT": f"{commit}-dirty",
        "RETABLE_TASKS": "tasks_of_mine",
    }
    (package,) = [body for method, path, body in server.asked if method == "PUT"]
    assert b"code.py" in package and b"never sent" not in package and b"results/" not in package
    assert sorted(checkout.rglob("*")) == before, "the user's folder is left as it is"


def test_tasks_outside_of_the_upload_are_refused(checkout, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("RETABLE_TASKS", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="outside of"):
        jobs.environment("/x", checkout)
    monkeypatch.chdir(checkout)
    (tmp_path / "papers").mkdir()
    monkeypatch.setenv("RETABLE_TASKS", "../papers")
    with pytest.raises(UserError, match="which is outside of"):
        jobs.environment("/x", checkout)
    monkeypatch.setenv("RETABLE_TASKS", "/in/the/image")
    assert jobs.environment("/x", checkout)["RETABLE_TASKS"] == "/in/the/image"


def test_a_job_without_git_knows_its_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(commits, "code_root", lambda: tmp_path / "retable")
    for commit, found in (
        ("a" * 40 + "-dirty", {"commit": "a" * 40, "dirty": True}),
        ("a" * 40, {"commit": "a" * 40, "dirty": False}),
        ("$(rm x)", {}),
        ("", {}),
    ):
        monkeypatch.setenv("RETABLE_COMMIT", commit)
        assert provenance._git.__wrapped__() == found
        assert session.variables()["runtime_env"]["env_vars"]["RETABLE_COMMIT"] == commit, "its nodes know it, too"


LINE = re.compile(r"^ray job submit .*? -- .*?[^\\]$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def node():
    """A node of Ray on this machine that takes jobs; its dashboard's address."""
    from ray.cluster_utils import Cluster

    session.make_token()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with pytest.MonkeyPatch.context() as patch, socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        patch.setenv("PATH", path)  # the job's `python`
        # A Ray that runs here already has the agent's usual port, and a node without an agent takes no job.
        ports = {"dashboard_port": free.getsockname()[1], "dashboard_agent_listen_port": other.getsockname()[1]}
        head = {"num_cpus": 2, "include_dashboard": True, **ports}
        free.close()
        other.close()
        made = Cluster(initialize_head=True, head_node_args=head)
        yield f"http://{made.webui_url}"
        made.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_the_documented_line_makes_runs_that_name_their_commit_and_code(node, tmp_path, known):
    """`ray job submit` as docs/cluster.md has it, of a checkout with changes; and without the commit in it."""
    source, storage = tmp_path / "source", Storage.open(tmp_path / "results")
    ignored = shutil.ignore_patterns(
        ".*", "results", "build", "*.egg-info", "__pycache__", "docs", "tests", "commit.json"
    )
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    git = ["git", "-C", source, "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "platform"], ["commit", "-qm", "some"]):
        subprocess.run([*git, *words], check=True)
    (line,) = LINE.findall((ROOT / "docs" / "cluster.md").read_text().partition("## Kubernetes")[0])
    words = (("http://localhost:8265", node), (" --no-wait", ""), ("reproduce --scale paper", "train line"))
    for old, new in (*words, ("s3://BUCKET/retable", storage.root)):
        assert old in line
        line = line.replace(old, new)
    if not known:
        assert "env RETABLE_COMMIT=$(python3 -m retable.platform.commit)" in line
        line = line.replace("RETABLE_COMMIT=$(python3 -m retable.platform.commit)", "")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "RAY_AUTH_MODE": "token", "PYTHONPATH": ""}
    for _ in range(30):
        words = ["bash", "-c", line]
        ended = subprocess.run(words, cwd=source, env=variables, capture_output=True, text=True, timeout=500)
        if "No available agent" not in ended.stderr:  # the node has just started, and the machine has much to do
            break
        time.sleep(2)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (run,) = storage.list("runs/line")
    made = storage.read_json(f"runs/line/{run}/provenance.json")
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert (made.get("commit"), made.get("dirty")) == ((commit, True) if known else (None, None))
    assert made["code"] == provenance.code_of("line") and made["code"].keys() == {"platform", "tasks/line"}
    assert provenance.name_of(made).startswith(f"commit {commit[:7]} and" if known else "commit not known; code ")


def test_the_report_is_fetched_from_the_storage(monkeypatch, capsys, tmp_path, storage):
    text = said(monkeypatch, capsys, "--storage", storage.root, "--fetch", tmp_path / "here")
    assert "no report there yet" in text
    storage.write("report/index.html", "<html>")
    storage.write("report/a/b.csv", "1")
    jobs.fetch(Storage.open(storage.root), tmp_path / "here")
    assert {path.relative_to(tmp_path / "here").as_posix() for path in Path(tmp_path, "here").rglob("*.*")} == {
        "index.html",
        "a/b.csv",
    }


def test_a_clusters_nodes_and_what_waits_are_told(dashboards):
    def listed(*rows):
        return {"result": True, "data": {"result": {"result": list(rows)}}}

    node = {
        "node_ip": "10.0.0.1",
        "state": "ALIVE",
        "is_head_node": True,
        "resources_total": {"CPU": 4.0, "node:x": 1.0},
    }
    waiting = {"state": "PENDING_NODE_ASSIGNMENT", "required_resources": {"GPU": 0.25, "CPU": 1.0}}
    group = {"state": "PENDING", "bundles": [{"unit_resources": {"GPU": 1.0}}, {"unit_resources": {"GPU": 1.0}}]}
    server = dashboards(
        {
            "/api/v0/nodes": listed(node),
            "/api/v0/tasks": listed(waiting, waiting, {"state": "RUNNING"}),
            "/api/v0/actors": listed({"state": "ALIVE"}),
            "/api/v0/placement_groups": listed(group),
        }
    )
    found = of_cluster(server.address)
    assert found["nodes"] == [{"address": "10.0.0.1", "state": "ALIVE", "head": True, "CPU": 4.0}]
    assert found["waiting"] == {"task: GPU 0.25, CPU 1": 2, "placement group: GPU 1 + GPU 1": 1}
    with pytest.raises(UserError, match="is it one"):
        of_cluster(dashboards({"*": {"data": None}}).address)


def test_the_token_of_this_user_is_sent(dashboards, tmp_path):
    server = dashboards(VERSION)
    (tmp_path / "token").write_text("s" * 32)
    (tmp_path / "token").chmod(0o600)
    code = "import sys; from retable.platform.execute import jobs as submit; submit.ask(sys.argv[1], '/api/version')"
    variables = os.environ | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}  # Ray reads it once a process
    subprocess.run([sys.executable, "-c", code, server.address], env=variables, check=True, timeout=300)
    assert server.headers["authorization"] == f"Bearer {'s' * 32}"
