"""What is served, as a configuration says it: strictly, and the same from the command and from a config file."""

import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from pyarrow import fs
from ray.exceptions import RayActorError
from ray.serve._private.build_app import build_app
from ray.serve.schema import ServeDeploySchema

from retable.platform.errors import UserError
from retable.platform.store.storage import Storage
from retable.serve import application
from retable.serve.deployments import subprocess_call
from retable.serve.launch import address, choice, command, models, server
from tests.serve import painters, toys
from tests.terminal import Terminal

HERE = address.Address("127.0.0.1", 8000)
TEMPLATE = Path(application.__file__).with_name("config.yaml")
GOOD = {"tasks": ["rl"], "hosts": ["localhost"]}


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    monkeypatch.setattr(application, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(server, "_leaving", threading.Event())  # `leave` sets it for good


@pytest.fixture
def served(storage):
    return [
        models.keep(toys.policy_file(seed), storage, task="rl", name="InvertedPendulum", variant=str(seed))
        for seed in (0, 1)
    ]


def deployments(app):
    """What Serve would start: name -> class, what it is made with, and its options."""
    built = build_app(app, name="retable").deployments
    found = {}
    for each in built:
        given = each.init_args[1:] if each.name == "ingress" else each.init_args  # the handles are made anew
        options = (each.user_config, each.ray_actor_options, each.max_ongoing_requests, each.max_queued_requests)
        found[each.name] = (each.func_or_class, given, *options, each.version)
    return found


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({**GOOD, "taks": ["rl"]}, "args: taks: extra inputs are not permitted"),
        ({**GOOD, "tasks": ["rll"]}, r"args: tasks\.0: no task 'rll'; did you mean 'rl'\?"),
        ({**GOOD, "models": "zooo"}, "args: models: input should be 'zoo', 'best' or 'user_config'"),
        ({**GOOD, "token_sha256": "secret"}, "args: token_sha256: string should match"),
        ({**GOOD, "wait_seconds": {"rl": 0}}, "args: wait_seconds.rl: input should be greater than 0"),
        ({**GOOD, "wait_seconds": {"rll": 1}}, r"args: wait_seconds\.rll"),
        ({**GOOD, "storage": 3}, "args: storage: input should be a valid string"),
        ({"tasks": ["rl"]}, "token_sha256 is needed; without one, `hosts`"),
        ({"hosts": ["localhost"]}, "tasks are needed"),
    ],
)
def test_a_config_file_says_what_is_known_or_is_refused_in_one_line(args, why):
    with pytest.raises(UserError, match=why) as caught:
        application.build(args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "wanted `models`, and nothing else; got nothing"),
        ({"models": [], "more": 1}, "wanted `models`, and nothing else; got models, more"),
        ({"models": []}, "no models"),
        ({"models": [{"task": "rl", "name": "a", "sha256": "b", "vairant": "c"}]}, "0.vairant: unexpected"),
        ({"models": [{"task": "rl", "sha256": "b"}]}, "0.name: field required"),
    ],
)
def test_user_config_is_as_strict(config, why):
    with pytest.raises(UserError, match=why):
        models.models_of(config)


def test_a_config_file_makes_what_the_command_makes(served, storage):
    arguments = application.arguments(served, storage, HERE, "")
    text = application.config_file(arguments, HERE, {"rl": {"num_replicas": 2}}, application.served(served))
    whole = ServeDeploySchema.model_validate(yaml.safe_load(text))  # Serve takes it
    (said,) = whole.applications
    assert said.import_path == "retable.serve.application:build" and text.count("sha256: ") == 2  # each model once
    made = deployments(application.build(said.args))
    wanted = deployments(application.assemble(arguments, storage, application.served(served)))
    configs = {each.name: each.user_config for each in said.deployments}
    assert made.keys() == wanted.keys() == configs.keys() == {"rl", "ingress"}
    for name, of in wanted.items():
        assert configs[name] == of[2] and made[name][:2] + made[name][3:] == of[:2] + of[3:]
    assert models.models_of(configs["rl"]) == served
    assert {each.name: each.num_replicas for each in said.deployments}["rl"] == 2


def test_how_long_a_request_may_wait_is_said_for_each_task():
    def waits(**said):
        built = build_app(application.build(GOOD | {"tasks": ["rl", "style"]} | said), name="retable").deployments
        return {each.name: each.init_kwargs["wait"] for each in built if each.init_kwargs}

    assert waits() == {"rl": 5, "style": 20} and waits(wait_seconds={"rl": 0.5}) == {"rl": 0.5, "style": 20}


def test_the_index_of_a_config_file_is_where_it_is_built_as_replicas_run_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index, whole in (("my.index", str(tmp_path / "my.index")), ("/my.index", "/my.index"), ("", "")):
        built = build_app(application.build(GOOD | {"tasks": ["audio"], "index": index}), name="retable").deployments
        assert [each.init_kwargs["index"] for each in built if each.name == "audio"] == [whole]


def test_the_template_serves_the_zoo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = ServeDeploySchema.model_validate(yaml.safe_load(TEMPLATE.read_text()))
    made = deployments(application.build(whole.applications[0].args))
    assert set(made) == {"weather", "style", "audio", "rl", "jobs", "ingress"}
    where, task = made["rl"][1]
    assert task == "rl" and str(where) == str(tmp_path / "results")  # replicas run elsewhere
    named = {model.name for model in models.models_of(made["ingress"][2])}
    assert {"great_wave", "HalfCheetah"} <= named


def test_replicas_get_the_storage_with_all_that_its_uri_said(served):
    """Its text has neither secrets nor options: a bucket behind an address of one's own was looked for elsewhere."""
    uri = "s3://bucket/x?endpoint_override=localhost:9000&scheme=http&region=here"
    storage = Storage(*fs.FileSystem.from_uri(uri))
    arguments = application.arguments(served, storage, HERE, "")
    made = deployments(application.assemble(arguments, storage, application.served(served)))
    for found in (made["rl"][1][0], made["ingress"][1][-1]):
        assert pickle.loads(pickle.dumps(found)).filesystem.equals(storage.filesystem)


def test_other_models_are_no_other_version_but_another_place_is(served, storage):
    arguments = application.arguments(served, storage, HERE, "")
    one, other = (
        deployments(application.assemble(arguments, storage, application.served(some))) for some in (served, served[:1])
    )
    assert one["rl"][-1] == other["rl"][-1] and one["rl"][2] != other["rl"][2]
    elsewhere = deployments(
        application.assemble(arguments.model_copy(update={"storage": "x"}), storage, application.served(served))
    )
    assert elsewhere["rl"][-1] != one["rl"][-1]
    versions = []
    for host in ("here:9000", "there:9000", "here:9000"):
        bucket = Storage(*fs.FileSystem.from_uri(f"s3://bucket/x?endpoint_override={host}&scheme=http&region=r"))
        at = arguments.model_copy(update={"storage": str(bucket)})
        versions.append(deployments(application.assemble(at, bucket, application.served(served)))["rl"][-1])
    assert versions[0] == versions[2] != versions[1]


def test_replicas_grow_into_the_cpus_that_are_left():
    grown = application.scaling(["rl"], {}, spare=7.5, cores=8)["rl"]["autoscaling_config"]
    assert (grown["min_replicas"], grown["max_replicas"], grown["target_ongoing_requests"]) == (1, 8, 64)
    both = application.scaling(["rl", "style"], {"rl": 2, "ingress": 2}, spare=0.5, cores=2)
    assert both == {
        "ingress": {"num_replicas": 2},
        "rl": {"num_replicas": 2},
        "style": {"autoscaling_config": {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 4}},
    }
    assert sum(application.reserved(["weather", "style", "audio", "rl"], {}).values()) <= 2
    assert application.reserved(["rl"], {"rl": 2}) == {"rl": 0.6, "ingress": 0.2}


def test_replicas_are_a_number_or_a_task_and_a_number():
    served = ("rl", "audio")
    assert command.read_replicas(["2", "rl=3"], served) == {"rl": 3, "audio": 2, "ingress": 2}
    for word in ("0", "rl", "rl=", "rll=2", "-1", "style=2"):
        with pytest.raises(UserError, match=f"--replicas {word}: wanted N, or TASK=N, of rl, audio, ingress"):
            command.read_replicas([word], served)


def test_batches_fit_into_what_a_replica_has_at_once():
    from retable.serve.deployments import audio, rl, style, weather

    for name, module in {"audio": audio, "rl": rl, "style": style, "weather": weather}.items():
        of = application.DEPLOYMENTS[name]
        assert of.ongoing > of.places >= module.BATCH and hasattr(module, of.path.rpartition(".")[2])


class Chosen:
    """Stands for a choice in another process: gives what it was told, or raises it."""

    next: object = None

    def __init__(self, *of):
        pass

    def wait(self):
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


def test_a_hangup_chooses_again_and_says_what_changed(served, storage, monkeypatch, capsys):
    monkeypatch.setattr(command, "ProgressProcess", Chosen)
    swapped, refused = [], set()

    def swap(chosen):
        swapped.append(chosen)
        answer = [served[0] if model.sha256 in refused else model for model in chosen]
        return {model.sha256 for model in answer}

    def renew(found):
        Chosen.next = found
        return command.renew(served[:1], choice.Wanted(), storage, swap), capsys.readouterr()

    kept, said = renew(served[:1])
    assert kept == served[:1] and not swapped and "nothing has changed" in said.out
    other = models.Model(task="style", name="great_wave", sha256="a" * 64)
    kept, said = renew([served[1], other])  # of tasks that are not served, nothing
    assert kept == served[1:] == swapped[0]
    assert f"now: rl/InvertedPendulum 1: ; file {served[1].sha256[:8]}" in said.out.replace("\n", "")
    assert "no longer: rl/InvertedPendulum 0" in said.out
    refused.add(served[1].sha256)  # a replica could not load it: what is served stays, and nothing else is said
    kept, said = renew([served[1]])
    assert kept == served[:1] and "now:" not in said.out and "no longer:" not in said.out
    assert "note: rl/InvertedPendulum 1" in said.err and "is not served" in said.err
    del swapped[1:]
    for trouble in (UserError("the disk is full"), [other]):
        kept, said = renew(trouble)
        assert kept == served[:1] and len(swapped) == 1
    assert "nothing has changed" in said.out


def test_sighup_is_heard_again_and_again():
    with server.hangups() as heard:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert [heard.get(timeout=5) for _ in range(3)] == [signal.SIGHUP] * 3


@pytest.mark.parametrize(("received", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_the_server_is_open_ends_it_without_a_traceback(served, storage, monkeypatch, received, status):
    monkeypatch.setattr(server, "start_ray", lambda interrupt, **options: interrupt(received, None))
    with pytest.raises(SystemExit) as ended, server.serving(served, storage, HERE):
        raise AssertionError("it was never open")
    assert ended.value.code == status


LOST = """
import sys, time
from pathlib import Path
from retable.platform.console import console, errors
from retable.serve.launch.server import hangups
with hangups() as heard:
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        console.print("draining")
        errors.print("a note")
        Path(sys.argv[1]).touch()
        heard.get(timeout=60)
        Path(sys.argv[1]).write_text("ended")
"""


def test_a_lost_terminal_ends_the_server_once_and_takes_no_more_output(tmp_path):
    terminal = Terminal([sys.executable, "-c", LOST, str(tmp_path / "ended")])
    terminal.read(until="ready")
    terminal.close()  # the kernel sends one SIGHUP
    deadline = time.monotonic() + 60
    while not (tmp_path / "ended").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(terminal.pid, signal.SIGHUP)  # and the shell another
    assert os.waitpid(terminal.pid, 0)[1] == 0 and (tmp_path / "ended").read_text() == "ended"


CLOSED = """
import os, signal, sys
from pathlib import Path
import ray.serve, retable.serve.ingress.app, retable.serve.launch.command, retable.serve.launch.server as server
Path(sys.argv[1]).write_text(str([name for name in sys.modules if name == "torch" or ".tasks." in name]))
with server.hangups() as heard:
    os.kill(os.getpid(), signal.SIGHUP)
    raise SystemExit(40 + heard.get(timeout=5))
"""


def test_the_command_and_the_ingress_import_neither_torch_nor_tasks_and_hear_hangups_without_streams(tmp_path):
    closed = ["sh", "-c", '"$0" -W ignore -c "$1" "$2" <&- >&- 2>&-', sys.executable, CLOSED, tmp_path / "imported"]
    assert subprocess.run(closed).returncode == 40 + signal.SIGHUP
    assert (tmp_path / "imported").read_text() == "[]"


@pytest.mark.parametrize(
    ("messages", "why"), [(["", "a\nUserError: no room"], "no room"), ([""], "lost"), ([" \n"], "lost")]
)
def test_a_deployment_that_says_nothing_leaves_the_reason_to_the_others_and_the_error(monkeypatch, messages, why):
    failed = {str(place): SimpleNamespace(status="DEPLOY_FAILED", message=said) for place, said in enumerate(messages)}
    running = SimpleNamespace(applications={"retable": SimpleNamespace(deployments=failed)})
    monkeypatch.setattr("ray.serve.status", lambda: running)
    assert server.reason(RuntimeError("lost"), "retable") == why


def test_the_command_waits_for_hangups_while_ray_lives(monkeypatch):
    monkeypatch.setattr(server, "WATCH", 0.01)
    looks = [True, False, False, True, False, False, True]  # a moment's silence is none

    def connected():
        if not looks:
            heard.put(signal.SIGHUP)
            return True
        return looks.pop(0)

    heard = queue.SimpleQueue()
    monkeypatch.setattr(server.ray_compat, "connected", connected)
    assert server.hangup(heard)
    looks = [True, False, False, False, True]
    assert not server.hangup(heard) and looks == [True]


@pytest.fixture
def ray_ends(monkeypatch):
    """What is watched finds that Ray has ended, within a moment."""
    monkeypatch.setattr(server, "WATCH", 0.02)
    monkeypatch.setattr(server.ray_compat, "connected", lambda: False)
    blocked = threading.Event()
    yield blocked
    blocked.set()


def test_what_is_watched_ends_with_ray_or_as_it_ends_itself(monkeypatch, ray_ends):
    with pytest.raises(SystemExit) as ended:
        server.watched(ray_ends.wait)
    assert ended.value.code == 1
    monkeypatch.setattr(server.ray_compat, "connected", lambda: True)
    assert server.watched(lambda: "done") == "done"
    with pytest.raises(UserError, match="why"):
        server.watched(lambda: refuse("why"))


def test_ray_is_watched_while_the_server_starts(monkeypatch, ray_ends, served, storage):
    left = []
    for name, stub in {
        "start_ray": lambda **_: None,
        "join": lambda here: here,
        "check_cpus": lambda wanted: 1.0,
        "cluster_resources": lambda: {"CPU": 2.0},
        "deploy": lambda *_: ray_ends.wait(20),
        "leave": left.append,
    }.items():
        monkeypatch.setattr(server, name, stub)
    monkeypatch.setattr("ray.serve.start", lambda **_: None)
    with pytest.raises(SystemExit) as ended, server.serving(served, storage, HERE):
        pytest.fail("it never was open")
    assert ended.value.code == 1 and left == [application.NAME]


def test_ray_is_watched_while_models_are_chosen_again(monkeypatch, ray_ends, served, storage):
    class Chosen:
        def __init__(self, *_):
            pass

        def wait(self):
            return served

    @contextmanager
    def serving(*_):
        yield None

    heard = [True, False]
    for where, name, stub in (
        (command, "ProgressProcess", Chosen),
        (server, "serving", serving),
        (server, "hangup", lambda _: heard.pop(0)),
        (command, "renew", lambda *_: ray_ends.wait(20)),
        (command, "check_port", lambda *_: None),
    ):
        monkeypatch.setattr(where, name, stub)
    here = {"host": "127.0.0.1", "port": 8000, "token_file": "", "allowed": (), "name": ""}
    with pytest.raises(SystemExit) as ended:
        command.run({}, storage.root, here, [], "")
    assert ended.value.code == 1


def test_a_controller_that_is_silent_does_not_keep_the_command(monkeypatch):
    """Ray lives, and what ends the application waits for ever."""
    released, codes = threading.Event(), []

    def leave_at_once(code):
        codes.append(code)
        released.set()

    for name, stub in {"WATCH": 0.02, "PATIENCE": -5, "LAST": 0.2, "end": lambda _: released.wait(20)}.items():
        monkeypatch.setattr(server, name, stub)
    monkeypatch.setattr(server.os, "_exit", leave_at_once)
    monkeypatch.setattr(server, "end_ray", lambda: None)
    monkeypatch.setattr(server.ray_compat, "connected", lambda: True)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    began = time.monotonic()
    server.leave("retable")
    assert codes == [1] and time.monotonic() - began < 10


@pytest.mark.parametrize("error", [TimeoutError("60 s"), RayActorError(error_msg="the controller\nhas died")], ids=repr)
def test_a_swap_that_ray_refuses_leaves_what_is_served(monkeypatch, served, storage, error):
    def refusing(*_, **__):
        raise error

    monkeypatch.setattr("ray.serve.run", refusing)
    monkeypatch.setattr("ray.serve.status", refusing)
    monkeypatch.setattr(application, "assemble", lambda *_: None)
    arguments = application.arguments(served, storage, HERE, "")
    with pytest.raises(UserError, match=r"a deployment does not start: .") as refused:
        server.deploy(HERE, arguments, storage, {}, served)
    assert "\n" not in str(refused.value)


def test_a_proxy_that_does_not_start_is_one_line(monkeypatch):
    """As on a machine so busy that Serve gives it up."""

    def given_up(**_):
        raise RayActorError(error_msg="The actor died.\nThe actor is dead because it was killed by `ray.kill`.")

    monkeypatch.setattr("ray.serve.start", given_up)
    with pytest.raises(UserError, match=r"its proxy does not start .*killed by") as refused:
        server.listen(HERE)
    assert "\n" not in str(refused.value)


def test_a_cluster_that_does_not_answer_keeps_no_application_name(monkeypatch):
    released = []

    def silent(name):
        raise TimeoutError

    monkeypatch.setattr(server, "drain", lambda name: None)
    monkeypatch.setattr(server, "cluster_address", lambda: "10.0.0.1:6379")
    monkeypatch.setattr("ray.serve.delete", silent)
    monkeypatch.setattr(server.ray_compat, "release", released.append)
    with pytest.raises(TimeoutError):
        server.end("other")
    assert released == ["other"]


def test_names_of_hosts_are_compared_as_requests_have_them():
    written = ["Retable.Example.org", "[::1]:8000", "a.example:8443"]
    lower = tuple(word.lower() for word in written)
    assert application.Arguments(tasks=("rl",), hosts=written).hosts == lower
    assert address.Address("127.0.0.1", 8000, allowed=tuple(written)).names[-3:] == lower


@pytest.mark.parametrize("word", ["https://x.example", "x.example/", "x.example:443", "x.example:80", "a b", ""])
def test_what_is_no_name_of_a_host_is_refused(word, monkeypatch):
    monkeypatch.setattr(command, "check_port", lambda *_: None)
    monkeypatch.setattr(command, "ProgressProcess", None)
    here = {"host": "127.0.0.1", "port": 8000, "token_file": "", "allowed": (word,), "name": ""}
    with pytest.raises(UserError, match="no name of a host; write it as browsers show it"):
        command.run({}, "x", here, [], "")
    with pytest.raises(UserError, match="no name of a host"):
        application.build({"tasks": ["rl"], "hosts": ["localhost", word]})


def test_an_application_beside_others_has_a_name_that_is_part_of_its_address():
    beside = address.Address("::1", 8000, name="other")
    assert (beside.url, beside.prefix) == ("http://[::1]:8000/other", "/other")
    assert (HERE.url, HERE.prefix) == ("http://127.0.0.1:8000", "/")
    for name in ("v1", "page", "Other", "a/b", "-", "a" * 41, " "):
        with pytest.raises(UserError, match="write 1 to 40"):
            address.check_name(name)
    for name in ("", "other", "team-2"):
        address.check_name(name)


@pytest.mark.parametrize(
    ("there", "holder", "applications", "why"),
    [
        (None, None, {}, ""),
        (None, None, {}, "nothing can listen there"),
        (("127.0.0.9", 9000), "", {"retable"}, ""),  # of a command that was killed
        (("127.0.0.9", 9000), None, {"retable"}, "http://127.0.0.9:9000, by a config file, is served by this cluster"),
        (("127.0.0.9", 9000), "http://a:1", {"retable"}, "http://a:1 is served by this cluster already; .*--name NAME"),
        (("0.0.0.0", 9000), None, {}, "which others can reach; set RETABLE_TOKEN"),
    ],
)
def test_who_joins_a_cluster_serves_at_its_address_or_is_told_who_is_there(
    there, holder, applications, why, monkeypatch
):
    released = []
    monkeypatch.setattr(server, "cluster_address", lambda: "head:6379")
    monkeypatch.setattr(server.ray_compat, "serve_address", lambda: there)
    monkeypatch.setattr(server.ray_compat, "claim", lambda name, url: holder)
    monkeypatch.setattr(server.ray_compat, "release", released.append)
    monkeypatch.setattr("ray.serve.status", lambda: SimpleNamespace(applications=applications))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1] if "listen" in why else 8000
        monkeypatch.setattr(server, "check_port", address.check_port if "listen" in why else lambda host, port: None)
        taken.listen()
        if why:
            with pytest.raises(UserError, match=why):
                server.join(address.Address("127.0.0.1", port))
    if why:
        assert released == (["retable"] if "config file" in why else [])
    else:
        assert server.join(HERE) == (HERE if there is None else address.Address(*there)) and not released


def refuse(text):
    raise UserError(text)


def test_what_runs_apart_gives_its_result_or_its_mistake():
    assert subprocess_call.ProgressProcess(painters.ordered, [2, 1]).wait() == [1, 2]
    with pytest.raises(UserError, match="no such run"):
        subprocess_call.ProgressProcess(painters.refused, "no such run").wait()
    with pytest.raises(UserError, match="a process of the server's was ended"):
        subprocess_call.ProgressProcess(painters.killed).wait()
