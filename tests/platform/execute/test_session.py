"""Refusals of what would hang, careful defaults, and the cluster file."""

import contextlib
import gc
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from ray.exceptions import AuthenticationError

from retable.platform import ray_compat
from retable.platform.errors import UserError
from retable.platform.execute import session as cluster
from retable.platform.store.provenance import code, versions
from retable.platform.store.storage import Storage

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be a cluster of some size."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def be(**resources):
        monkeypatch.setattr(cluster, "growth", dict)
        monkeypatch.setattr(cluster, "cluster_resources", lambda: resources)

    return be


def test_ray_that_comes_up_too_late_is_ended_and_leaves_no_warning(recwarn):
    def start():
        process = subprocess.Popen(["sleep", "60"])
        process.itself = process  # as Ray's node holds it, until it is collected
        process.kill()
        raise RuntimeError("The current node timed out during startup.")

    assert cluster.too_late(start)
    gc.collect()
    assert [str(each.message) for each in recwarn] == [] and not cluster.too_late(lambda: None)
    with pytest.raises(ZeroDivisionError):
        cluster.too_late(lambda: 1 / 0)


@pytest.mark.parametrize(("cpus", "workers"), [(2, 2), (2, 1), (2, 4), (8, 8), (8, 2), (64, 16)])
def test_workers_leave_room_for_their_trial(machine, cpus, workers):
    machine(CPU=float(cpus))
    share = cluster.cpu_share(workers)
    assert 0.45 <= share <= 1 and workers * share + 0.01 <= cpus, "else they would wait for ever"


def test_more_workers_than_the_machine_can_run_are_refused(machine):
    machine(CPU=2.0)
    with pytest.raises(UserError, match="--workers 9 is more than 2 CPUs can run; use at most 4"):
        cluster.cpu_share(9)
    assert cluster.cpu_share(4) > 0


def test_what_the_cluster_lacks_is_refused_unless_it_may_grow(machine, monkeypatch):
    machine(CPU=2.0)
    with pytest.raises(UserError, match="wants 1 GPUs and the cluster has 0"):
        cluster.check_room("GPU", 1)
    with pytest.raises(UserError, match="wants 4 CPUs and the cluster has 2"):
        cluster.check_room("CPU", 4)
    cluster.check_room("CPU", 2)
    cluster.check_room("GPU", 0)
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # a fixed cluster: the GPU would never come
    with pytest.raises(UserError, match="wants 1 GPUs and the cluster has 0"):
        cluster.check_room("GPU", 1)


def test_a_cluster_that_grows_counts_for_what_it_may_become(machine, monkeypatch, tmp_path):
    machine(CPU=0.0)  # a head that only drives
    monkeypatch.undo()
    monkeypatch.setattr(cluster, "cluster_resources", lambda: {"CPU": 0.0, "memory": 5.0})
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster._configured.cache_clear()
    (tmp_path / "ray_bootstrap_config.yaml").write_text((ROOT / "cluster.yaml").read_text())
    assert cluster.possible_resources() == {"CPU": 8 * 16.0 + 4 * 16, "GPU": 8.0}
    cluster.check_room("GPU", 8)
    assert cluster.cpu_share(4) == 1
    with pytest.raises(UserError, match="wants 9 GPUs and the cluster may grow to 8; lower --gpus-per-run"):
        cluster.check_room("GPU", 9)
    cluster._configured.cache_clear()
    (tmp_path / "ray_bootstrap_config.yaml").write_text("[]")
    assert cluster.possible_resources() == {"CPU": 0.0, "memory": 5.0}
    cluster._configured.cache_clear()


@pytest.fixture
def pod(monkeypatch, tmp_path):
    """Be a pod of the cluster `retable`, which has a head alone; return what sets the answer of the API server."""
    monkeypatch.setattr(cluster, "cluster_resources", lambda: {"CPU": 0.0})
    monkeypatch.setattr(cluster, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("RAY_CLUSTER_NAME", "retable")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "namespace").write_text("research\n")

    def answers(answer):
        def get(client, path):
            assert client._namespace == "research" and path == "rayclusters/retable"
            if isinstance(answer, Exception):
                raise answer
            return answer

        cluster._configured.cache_clear()
        monkeypatch.setattr("ray.autoscaler._private.kuberay.node_provider.KubernetesHttpApiClient.get", get)

    yield answers
    cluster._configured.cache_clear()


def test_a_cluster_of_pods_counts_for_what_its_autoscaler_may_start(pod, capsys):
    content = yaml.safe_load((ROOT / "docs" / "kuberay" / "raycluster.yaml").read_text())
    content["metadata"]["namespace"] = "research"
    pod(content)
    found = cluster.possible_resources()
    assert (found["CPU"], found["GPU"]) == (4 * 15 + 8 * 15, 8) and cluster.autoscales()
    cluster.check_room("GPU", 8)
    for group in content["spec"]["workerGroupSpecs"]:
        group["maxReplicas"] = 0
    pod(content)
    assert cluster.possible_resources() == {"CPU": 0.0} and not cluster.autoscales()
    content["spec"]["workerGroupSpecs"][0]["maxReplicas"] = 1
    content["spec"]["headGroupSpec"]["rayStartParams"] = {}
    pod(content)
    assert cluster.possible_resources()["CPU"] == 15 + 3, "the head computes, too"
    content["spec"]["enableInTreeAutoscaling"] = False
    pod(content)
    assert cluster.possible_resources() == {"CPU": 0.0} and not cluster.autoscales()
    assert capsys.readouterr().err == ""


def test_a_service_account_that_may_not_read_its_cluster_is_one_line(pod, capsys):
    pod(OSError("403 Client Error: Forbidden"))
    assert cluster.possible_resources() == {"CPU": 0.0}
    with pytest.raises(UserError, match="the cluster has 0"):
        cluster.check_room("CPU", 1)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("note: Kubernetes does not say how far retable may grow; it is taken as it is (OSError: 403")
    assert said.count("note:") == 1


@pytest.fixture
def silence():
    """The address of a port that takes connections and never answers: a tunnel whose other end is gone."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def joining(monkeypatch, tmp_path):
    """Try to join the cluster of an address, on a machine where no Ray runs; return the one line that says why not."""
    monkeypatch.setattr("ray._private.services._find_address_from_flag", lambda flag: set())
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(cluster, "ANSWER", 2)

    def join(address):
        monkeypatch.setenv("RAY_ADDRESS", address)
        start = time.monotonic()
        with pytest.raises(UserError) as refused, cluster.ray_cluster():
            raise AssertionError("it joined something")
        assert time.monotonic() - start < 25, "people wait for it"
        assert "\n" not in str(refused.value) and str(refused.value).startswith(f"RAY_ADDRESS={address}")
        return str(refused.value)

    return join


@pytest.mark.parametrize(
    "address", ["nonsense", "http://127.0.0.1:8265", "ray://127.0.0.1:10001", "host:port", ":6379"]
)
def test_what_is_no_address_is_one_line(joining, address):
    assert "is not the address of a Ray cluster; set it to HEAD:6379" in joining(address)


def test_a_dead_cluster_is_one_line(joining, silence, capfd):
    assert "no Ray cluster answers there (failed to connect" in joining("127.0.0.1:1")
    assert "no Ray cluster answers there (Deadline Exceeded); set it to" in joining(silence)
    assert "no Ray runs on this machine" in joining("auto")
    assert not capfd.readouterr().err, "Ray logs every try"


def test_the_address_of_a_cluster_that_has_ended_is_one_line(joining, tmp_path):
    place = tmp_path / "ray" / "ray_current_cluster"  # `ray start` wrote it, and the machine was switched off
    place.parent.mkdir(exist_ok=True)
    place.write_text("127.0.0.1:1")
    assert "no Ray cluster answers there (failed to connect" in joining("auto")


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "PERMISSION_DENIED"])
def test_a_cluster_that_refuses_the_token_says_so(joining, monkeypatch, code):
    import grpc

    class Refusal(grpc.RpcError):
        def code(self):
            return getattr(grpc.StatusCode, code)

    def refuse(address, timeout):
        raise Refusal

    monkeypatch.setattr("retable.platform.ray_compat.ping_cluster", refuse)
    text = joining("127.0.0.1:6379")
    assert "refuses this token" in text and "RAY_AUTH_TOKEN_PATH" in text and "no Ray cluster" not in text


def test_a_token_that_is_needed_and_not_there_is_one_line(joining, monkeypatch):
    def refuse(address, timeout):
        raise AuthenticationError("Token authentication is enabled but Ray couldn't find an authentication token.")

    monkeypatch.setattr("retable.platform.ray_compat.ping_cluster", refuse)
    text = joining("127.0.0.1:6379")
    assert "a token is needed and none is found" in text and "RAY_AUTH_TOKEN_PATH" in text


def test_who_joins_a_cluster_needs_no_short_folder_for_sockets(joining, monkeypatch, tmp_path):
    """None is made here."""

    def reached(**_):
        raise RuntimeError("reached")

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 100)))
    monkeypatch.setattr(cluster, "check_cluster", lambda address: None)
    monkeypatch.setattr("ray.init", reached)
    assert "this machine cannot join: reached" in joining("127.0.0.1:6379")


def test_sockets_have_short_names_whatever_tmpdir_is(tmp_path, monkeypatch):
    """As on Slurm and macOS; a folder that the user has chosen for Ray is refused, with what it may be."""
    long = tmp_path / ("x" * 60)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert cluster.temporary_folder() is None
    monkeypatch.setenv("TMPDIR", str(long))
    assert cluster.temporary_folder() == "/tmp/ray"
    monkeypatch.setenv("RAY_TMPDIR", "")
    assert cluster.temporary_folder() == "/tmp/ray"
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    with pytest.raises(UserError, match=r"RAY_TMPDIR=.*at most 39 letters"):
        cluster.temporary_folder()


@pytest.mark.slow
def test_ray_starts_under_a_long_tmpdir(tmp_path):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    code = "from retable.platform.execute.session import ray_cluster\nwith ray_cluster():\n    print('up')"
    environment = {**os.environ, "TMPDIR": str(long)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=180)
    assert done.stdout.endswith("up\n"), done.stderr


@pytest.mark.parametrize("address", ["", "local"])
def test_no_address_means_a_ray_of_our_own(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert not cluster.cluster_address() and not cluster.autoscales()


def test_calls_in_two_threads_share_one_ray_that_the_last_of_them_ends(monkeypatch):
    """The first one that ended took it away from the other."""
    import ray

    running, log = [], []
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(running))
    monkeypatch.setattr(cluster, "start_ray", lambda *of: (log.append("start"), time.sleep(0.2), running.append(1)))
    monkeypatch.setattr(cluster, "end_ray", lambda: (log.append("end"), running.clear()))
    both = threading.Barrier(2)

    def call(seconds):
        both.wait()
        with cluster.ray_cluster():
            time.sleep(seconds)
            assert running

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, (0.1, 0.6)))
    assert log == ["start", "end"]


def test_ray_starts_quietly_with_a_private_token_and_ends(tmp_path, monkeypatch):
    """Else it asks, prints or stays; a Ray that runs is also asked for what `ray_compat` reads of one.

    After its end Ray starts by itself as before, but not for a thread that was left: a reader of Ray Data that outlived
    its stream started one, which died with that thread, and a minute later the process.
    """
    import ray

    for name in cluster.QUIET:
        monkeypatch.delenv(name, raising=False)
    mask, failed, ended = os.umask(0o022), [], threading.Event()

    def read():
        ended.wait(60)
        try:
            ray.put(1)
        except Exception as error:
            failed.append(str(error))

    try:
        with cluster.ray_cluster():
            assert ray.is_initialized()
            assert cluster.QUIET.items() <= os.environ.items() and cluster.QUIET["RAY_USAGE_STATS_ENABLED"] == "0"
            with cluster.ray_cluster():
                pass
            assert ray.is_initialized(), "an inner one leaves the outer one running"
            seen = ray.get(ray.remote(lambda: os.environ.get("PYTHONPATH", "")).remote())
            assert str(ROOT) in seen.split(os.pathsep)
            token = Path("~/.ray/auth_token").expanduser()
            assert not token.exists() or not stat.S_IMODE(token.stat().st_mode) & 0o077
            assert ray.get(ray.remote(lambda: os.umask(0o022)).remote()) == 0o022, "others may read what runs write"
            cluster.check_cluster(ray.get_runtime_context().gcs_address)
            left = threading.Thread(target=read)
            left.start()
            check_attempts_are_counted(str(tmp_path / "begun"))
            check_draining_is_told()
        assert not ray.is_initialized() and not cluster.QUIET.keys() & os.environ.keys()
    finally:
        assert os.umask(mask) == 0o022
    ended.set()
    left.join(60)
    assert "Ray has not been started" in failed[0] and not ray.is_initialized()
    started = []
    monkeypatch.setattr(ray, "init", lambda: started.append(1))
    with pytest.raises(Exception, match="Ray has not been started"):
        ray.put(1)
    assert started == [1], "the user's own Ray starts by itself"


def check_attempts_are_counted(begun):
    """Else a prediction whose process dies is tried for ever."""
    import ray

    def attempt():
        from retable.platform import ray_compat

        number = ray_compat.task_attempt()
        with open(begun, "a") as file:
            file.write(str(number))
        if number == 0:
            os._exit(1)
        return number

    assert ray.get(ray.remote(max_retries=2)(attempt).remote()) == 1 and Path(begun).read_text() == "01"
    assert ray_compat.task_attempt() == 0


def check_draining_is_told():
    """Else trainings do not notice that their node leaves; a cluster that cannot grow has no limits."""
    import ray
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    assert ray_compat.autoscaler_limits() == {} and ray_compat.draining_nodes() == set()
    busy = ray.remote(num_cpus=1)(type("Busy", (), {})).remote()  # an idle node would be gone at once
    ray.get(busy.__ray_ready__.remote())
    place = ray.get_runtime_context()
    gcs, reason = GcsClient(address=place.gcs_address), DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    assert gcs.drain_node(place.get_node_id(), reason, "test", 2**62 // 10**6)[0]
    assert ray_compat.draining_nodes() == {place.get_node_id()}


@pytest.mark.slow
def test_a_lost_process_is_one_line_and_a_file_has_the_rest(tmp_path, capfd):
    import ray

    @ray.remote(max_retries=1)
    def dies_once(marker):
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    with cluster.ray_cluster():
        assert ray.get(dies_once.remote(tmp_path / "died")) == "done"
        said, end = "", time.monotonic() + 30
        while "note" not in said and time.monotonic() < end:
            time.sleep(0.2)
            said += "".join(capfd.readouterr())
    (line,) = said.splitlines()
    assert line.startswith("note: Ray: A worker died or was killed while executing a task") and " (more in " in line
    file = Path(line.rpartition("more in ")[2].rstrip(")"))
    assert "Worker PID" in file.read_text() and "retries remaining" in file.read_text()


@pytest.mark.parametrize("received", [0, signal.SIGINT])
def test_an_interrupted_command_is_silent_of_the_processes_that_it_ends(tmp_path, capfd, monkeypatch, received):
    monkeypatch.setattr(ray_compat, "logs_folder", lambda: str(tmp_path))
    handler = cluster.Interrupt()
    handler.received = received
    before = signal.signal(signal.SIGTERM, handler)
    try:
        cluster.tell("A worker died or was killed. Worker PID: 1")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Worker PID" in (tmp_path / "retable.txt").read_text()
    assert ("A worker died" in capfd.readouterr().err) is not bool(received)


@pytest.mark.slow
def test_each_node_of_a_joined_cluster_is_asked_what_it_sees(tmp_path, monkeypatch, capfd):
    storage = Storage.open(tmp_path)
    upload = Storage.open(tmp_path / "runtime_resources" / "working_dir_files" / "pkg" / "results")
    cluster.check_nodes(upload)  # a Ray of our own: nothing is asked
    monkeypatch.setattr(cluster, "cluster_address", lambda: "")
    with cluster.ray_cluster():
        monkeypatch.setattr(cluster, "cluster_address", lambda: "auto")
        cluster.check_nodes(storage)
        assert not list(tmp_path.iterdir())
        with pytest.raises(UserError, match="lies in the job's upload, which Ray deletes; name a bucket"):
            cluster.check_nodes(upload)
        monkeypatch.setattr(cluster, "look_from_node", lambda *asked: (False, {}, {}))
        with pytest.raises(UserError, match=r"node [\d.]+ does not see it; name a bucket"):
            cluster.check_nodes(storage)
        monkeypatch.setattr(cluster, "look_from_node", lambda *asked: (True, {**versions(), "torch": "1"}, code()))
        cluster.check_nodes(storage)
        assert "has other versions than the driver: torch 1" in capfd.readouterr().err.replace("\n", " ")
        monkeypatch.setattr(cluster, "look_from_node", lambda *asked: 1 / 0)
        with pytest.raises(UserError, match=r"cannot run this .*division by zero"):
            cluster.check_nodes(storage)
    assert not list(tmp_path.iterdir())


def test_a_node_with_another_checkout_is_refused_by_name(monkeypatch, tmp_path):
    import retable.tasks

    ours = code()
    assert {"platform", "serve", "search_spaces", "tasks/rl", "tasks/weather"} <= ours.keys() and code() == ours
    cluster.compare("10.0.0.7", versions(), dict(ours), ours)
    own = tmp_path / "mine"
    own.mkdir()
    (own / "__init__.py").write_text("TASK = 1")
    monkeypatch.setattr(retable.tasks, "__path__", [*retable.tasks.__path__, str(tmp_path)])
    before = code()
    assert before.keys() - ours.keys() == {"tasks/mine"}
    (own / "__init__.py").write_text("TASK = 2")
    told = r"node 10\.0\.0\.7: has another checkout of the code than the driver \(tasks/mine\); bring the same commit"
    for theirs in (before, ours):
        with pytest.raises(UserError, match=told):
            cluster.compare("10.0.0.7", versions(), theirs, code())
    with pytest.raises(UserError, match=r"than the driver \(platform\); "):
        cluster.compare("n", versions(), {**ours, "platform": "x"}, ours)


def test_what_measurements_are_taken_on_is_a_resource_or_a_type_of_accelerators(monkeypatch):
    there = {"CPU": 2.0, "memory": 1.0, "node:10.0.0.1": 1.0, "accelerator_type:L4": 1.0, "GPU": 1.0}
    monkeypatch.setattr(cluster, "cluster_resources", lambda: there)
    monkeypatch.setattr(cluster, "growth", lambda: {"bench": 2.0})
    assert [cluster.resource_of(word) for word in ("L4", "bench")] == ["accelerator_type:L4", "bench"]
    with pytest.raises(
        UserError, match=r"--measure-on H100: no node of the cluster has .*; they have GPU, L4, bench; "
    ):
        cluster.resource_of("H100")


def test_the_token_is_made_once_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    path = tmp_path / ".ray" / "auth_token"
    cluster.make_token()
    made = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and re.fullmatch("[0-9a-f]{64}", made)
    cluster.make_token()
    assert path.read_text() == made
    path.unlink()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    cluster.make_token()
    assert not path.exists()


def test_the_cluster_file_fits_rays_schema():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    validate_config(prepare_config(dict(config)))
    kinds = config["available_node_types"]
    head = kinds.pop(config["head_node_type"])
    assert head["resources"]["CPU"] == 0 and config["max_workers"] == sum(
        kind["max_workers"] for kind in kinds.values()
    )
    assert all(kind["min_workers"] == 0 and "IamInstanceProfile" in kind["node_config"] for kind in kinds.values())
    assert kinds["gpu"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        assert any("RAY_AUTH_MODE=token" in command for command in commands)


def free_ports(count):
    """Return ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@pytest.mark.slow
def test_the_cluster_files_own_commands_start_a_head_and_a_worker_that_want_the_token(tmp_path):
    """With a home of its own, other ports than Ray's, and no machines to start: the fixture's part of a cluster."""
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    mounted = config["file_mounts"]["~/.ray/auth_token"]
    assert mounted == "~/.ray/auth_token"
    (tmp_path / ".ray").mkdir()
    token = tmp_path / ".ray" / "auth_token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o644)
    port, *others = free_ports(5)
    names = ("dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
    ports = " ".join(f"--{name}={each}" for name, each in zip(names, others, strict=True))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    home = {**clean, "HOME": str(tmp_path), "RAY_HEAD_IP": "127.0.0.1", "PATH": f"{BIN}:{os.environ['PATH']}"}
    temporary = tempfile.mkdtemp(prefix="r")  # sockets' paths are short

    def start(commands, more):
        for command in commands:
            if command == "ray stop":  # it would end every Ray of this machine
                continue
            command = command.replace("6379", str(port)).replace(
                "--autoscaling-config=~/ray_bootstrap_config.yaml", more
            )
            if "ray start" in command:
                return subprocess.Popen(f"exec env {command} --num-cpus=1 --block", shell=True, env=home)
            subprocess.run(command, shell=True, env=home, check=True)
        raise AssertionError("nothing starts Ray")

    running = [start(config["head_start_ray_commands"], f"{ports} --temp-dir={temporary}")]
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    look = f"import ray; ray.init('127.0.0.1:{port}', logging_level='ERROR'); print('nodes', len(ray.nodes()))"

    def nodes(**environment):
        ended = subprocess.run(
            [sys.executable, "-c", look],
            env=home | {"RAY_AUTH_MODE": "token"} | environment,
            capture_output=True,
            text=True,
        )
        return ended.stdout + ended.stderr

    try:
        until(lambda: "nodes 1" in nodes())
        running.append(start(config["worker_start_ray_commands"], ""))
        until(lambda: "nodes 2" in nodes())
        assert "nodes 2" not in nodes(RAY_AUTH_TOKEN="wrong")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)
        shutil.rmtree(temporary, ignore_errors=True)


def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(1)
