"""What goes wrong on clusters, one thing a test: the work ends as if it had not been, and little of it is done twice.

`python -m benchmarks faults` runs these and writes the table in `docs/reliability.md`.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from retable.platform.config import override
from retable.platform.execute import session
from retable.platform.spec.table import resolve
from retable.platform.spec.task import find
from retable.platform.store.lease import read
from retable.platform.store.run import RunFolder, view_key
from retable.platform.store.storage import Storage
from tests.platform.halves import fit, fit_together

pytestmark = pytest.mark.slow
EPOCH = 8
"""Steps of an epoch of the toy task."""


@pytest.fixture
def record(request):
    """Note what a fault cost; a later test run reads nothing of it."""
    facts = {"survived": "no"}
    yield facts
    if where := os.environ.get("RETABLE_FAULTS"):
        with open(where, "a") as file:
            file.write(json.dumps({"test": request.node.name, **facts}) + "\n")


class Nodes:
    """A cluster of Ray nodes on this machine: a head without CPUs, and nodes that come and go."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        session.make_token()
        # Ray Train frees what a vanished group held by asking the dashboard; another cluster has Ray's own port for it.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": port}
        self.ray = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = []

    def add(self, cpus=1):
        self.nodes.append(self.ray.add_node(num_cpus=cpus, include_dashboard=False))

    def lose(self):
        """Take the oldest node away without a word."""
        self.ray.remove_node(self.nodes.pop(0), allow_graceful=False)

    def drain(self):
        """Announce that the oldest node will be taken away."""
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        gcs, reason = GcsClient(address=self.ray.address), DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        assert gcs.drain_node(self.nodes[0].node_id, reason, "test", 2**62 // 10**6)[0]

    def only(self, *cpus):
        """Have nodes with so many CPUs, and no others."""
        while self.nodes:
            self.lose()
        for each in cpus:
            self.add(each)


@pytest.fixture(scope="module")
def nodes():
    made = Nodes()
    yield made
    made.ray.shutdown()


STARTED = []


@pytest.fixture(autouse=True)
def none_left():
    """End what a test that failed has left running."""
    yield
    while STARTED:
        STARTED.pop().kill()


def driver(code, storage, *, address="", **more):
    """Run Python with retable in a process of its own; it joins the cluster where an address is given."""
    environment = {**os.environ, **({"RAY_ADDRESS": address} if address else {}), **more}
    code = f"import sys, retable\nfrom retable.platform.spec.resources import Resources\nstorage = sys.argv[1]\n{code}"
    words = [sys.executable, "-W", "ignore", "-c", code, storage]
    started = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    STARTED.append(started)
    return started


TRAIN = """
retable.train("line", {"epochs": %d, "pause": 0.1}, storage=storage, resources=Resources(workers=%d))
"""


def ends(process, seconds=600):
    """Wait until a driver has ended well; return what it printed."""
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, said
    return said


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    raise AssertionError("it did not come about in time")


def run_of(storage, **changes):
    task = find("line")
    return RunFolder.of(Storage.open(storage), task, override(task.config(), changes))


def outcome(folder):
    """Return a run's weights and its log, without times."""
    log = [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in folder.history()]
    return folder.result()["weights"], log


def kept(run):
    """Return the same of a run's folder: its weights, and its log without times."""
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    weights = json.loads((run / "result.json").read_text())["weights"]
    return weights, [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in log]


def undisturbed(tmp_path, epochs, workers=1):
    """Return what a run ends with that nothing happens to, without Ray; a toy's jitter differs by rank, by design."""
    task, storage = find("line"), Storage.open(tmp_path / "plain")
    config = override(task.config(), {"epochs": epochs})
    folder = RunFolder.of(storage, task, config)
    if workers == 2:
        fit_together(storage, config, folder, task)
    else:
        fit(storage, config, folder, (), task)
    return outcome(folder)


def steps(folder):
    return max(folder.checkpoints(), default=0)


def attempts(folder):
    return len(folder.folder.list("attempts"))


def about_to_lose(folder, record):
    """Note how many steps were done since the last checkpoint, at a tenth of a second each: one epoch's at most."""
    newest = Path(folder.folder.root, f"checkpoint-{steps(folder):08d}", "manifest.json")
    with contextlib.suppress(FileNotFoundError):  # an even newer one has just replaced it
        lost = min((time.time() - newest.stat().st_mtime) / 0.1, EPOCH)
        record["steps_lost"] = max(record.get("steps_lost", 0.0), lost)


def goes_on(folder, process, record, before):
    """Wait until a run is further than it was; note how long that took."""
    start = time.monotonic()
    wait_for(lambda: steps(folder) > before or folder.result() is not None, process)
    record["seconds"] = max(record.get("seconds", 0.0), time.monotonic() - start)


@pytest.mark.parametrize(("workers", "losses"), [(1, 5), (2, 1)])
def test_a_node_is_lost_under_a_training(nodes, tmp_path, record, workers, losses):
    record["fault"] = f"node lost {losses} times under " + ("a trial" if workers == 1 else "a Train group")
    epochs, storage = 6 * losses + 4, str(tmp_path / "lost")
    folder = run_of(storage, epochs=epochs, pause=0.1)
    nodes.only(workers)
    process = driver(TRAIN % (epochs, workers), storage, address=nodes.ray.address)
    for loss in range(losses):
        wait_for(lambda loss=loss: attempts(folder) > loss and steps(folder) > 32 * loss, process)
        nodes.add(workers)
        about_to_lose(folder, record)
        before = steps(folder)
        nodes.lose()
        goes_on(folder, process, record, before)
    ends(process)
    record["attempts"] = attempts(folder)
    assert attempts(folder) == losses + 1
    assert outcome(folder) == undisturbed(tmp_path, epochs, workers)
    record["survived"] = "yes"


def test_a_node_is_drained_under_a_training(nodes, tmp_path, record):
    """As on a spot notice: it writes a checkpoint in the middle of an epoch, and goes on from there elsewhere."""
    record["fault"] = "node drained under a trial, then taken away"
    storage, epochs = str(tmp_path / "drained"), 3
    folder = run_of(storage, epochs=epochs, pause=1.0)
    nodes.only(1)
    process = driver((TRAIN % (epochs, 1)).replace("0.1", "1.0"), storage, address=nodes.ray.address)
    wait_for(lambda: steps(folder), process)
    nodes.add()
    nodes.drain()
    wait_for(lambda: steps(folder) % EPOCH, process, 60)
    before = steps(folder)
    nodes.lose()
    goes_on(folder, process, record, before)
    ends(process)
    assert attempts(folder) == 2 and read(folder, 2)["step"] % EPOCH, "else it went on from the end of an epoch"
    assert outcome(folder) == undisturbed(tmp_path, epochs)
    record |= {"survived": "yes", "attempts": 2}


SLOW = "retable.reproduce('slow/table1', storage=storage)"


def test_a_node_is_lost_under_predictions_and_under_a_combiner(nodes, tmp_path, record):
    record["fault"] = "node lost under a prediction, and under a combiner"
    storage, nothing = Storage.open(tmp_path / "lost"), {}
    task = find("slow")
    config = task.config()
    view = resolve(task.view(), config)
    folder = RunFolder.of(storage, task, config)
    nodes.only(1)
    process = driver(SLOW, storage.root, address=nodes.ray.address)
    place = f"views/{view_key(view)}"
    wait_for(lambda: len(list(Path(folder.folder.root, place).rglob("summary.npz"))) == 1, process)
    nodes.add()
    nodes.lose()
    wait_for(lambda: len(list(Path(folder.folder.root, place).rglob("summary.npz"))) == 2, process)
    wait_for(lambda: len(list(Path(storage.root, "combinations").rglob("summary.npz"))) == 1, process)
    nodes.add()
    nodes.lose()
    ends(process)
    plain = tmp_path / "plain"
    ends(driver(SLOW, str(plain)))

    def scores(root):
        return {
            p.relative_to(root): json.loads(p.read_text())["metrics"]
            for p in Path(root).rglob("combinations/**/*.json")
        }

    assert scores(storage.root) == scores(plain) != nothing
    record["survived"] = "yes"


def test_a_driver_is_killed_and_its_command_given_again_at_once(tmp_path, record):
    record["fault"] = "driver killed with -9 and started again at once"
    storage, epochs = str(tmp_path / "killed"), 8
    folder = run_of(storage, epochs=epochs, pause=0.1)
    first = driver(TRAIN % (epochs, 1), storage)
    wait_for(lambda: steps(folder), first)
    about_to_lose(folder, record)
    first.kill()
    first.wait()
    before = steps(folder)
    second = driver(TRAIN % (epochs, 1), storage)
    goes_on(folder, second, record, before)
    ends(second)
    first.communicate()
    assert outcome(folder) == undisturbed(tmp_path, epochs)
    record["survived"] = "yes"


def test_two_drivers_on_one_storage_train_each_run_once(tmp_path, record):
    record["fault"] = "two drivers on one storage"
    storage = str(tmp_path / "both")
    both = [driver("retable.reproduce('line', storage=storage)", storage) for _ in range(2)]
    for process in both:
        ends(process)
    plain = str(tmp_path / "plain")
    ends(driver("retable.reproduce('line', storage=storage)", plain))
    runs, expected = (
        [path for path in Path(where, "runs", "line").iterdir() if path.is_dir()] for where in (storage, plain)
    )
    assert len(runs) >= 4 and {run.name: kept(run) for run in runs} == {run.name: kept(run) for run in expected}
    record["attempts"] = sum(len(list((run / "attempts").iterdir())) for run in runs) / len(runs)
    for run in runs:
        finished = [json.loads(path.read_text()) for path in run.rglob("attempts/*/*.json")]
        assert all(each["state"] == "released" for each in finished)
    record["survived"] = "yes"


IMPATIENT = "from retable.platform.store import lease as attempt\nattempt.STALE_SECONDS = 5.0\n"


def test_a_process_that_was_frozen_wakes_and_writes_nothing_more(tmp_path, record):
    record["fault"] = "driver and trial frozen for half a minute, another command takes over"
    storage, epochs = str(tmp_path / "frozen"), 12
    folder = run_of(storage, epochs=epochs, pause=0.1)
    first = driver(TRAIN % (epochs, 1), storage)
    wait_for(lambda: steps(folder), first)
    (record_file,) = Path(folder.folder.root).rglob("attempts/0001/[!.]*.json")
    trial = psutil.Process(json.loads(record_file.read_text())["pid"])
    about_to_lose(folder, record)
    for each in (psutil.Process(first.pid), trial):
        each.suspend()
    before = steps(folder)
    try:
        second = driver(IMPATIENT + TRAIN % (epochs, 1), storage)
        goes_on(folder, second, record, before)
        ends(second)
        done = {path: path.stat().st_mtime_ns for path in Path(folder.folder.root).rglob("*") if path.is_file()}
    finally:
        for each in (psutil.Process(first.pid), trial):
            each.resume()
    ends(first)
    own = str(record_file)
    after = {path: path.stat().st_mtime_ns for path in Path(folder.folder.root).rglob("*") if path.is_file()}
    assert {k: v for k, v in after.items() if str(k) != own} == {k: v for k, v in done.items() if str(k) != own}
    assert outcome(folder) == undisturbed(tmp_path, epochs)
    record["survived"] = "yes"


class Door:
    """A way to a server that can be shut: then it refuses connections, is silent, or answers a status (`403`)."""

    def __init__(self, host, port):
        self.target, self.state, self.open = (host, port), "open", []
        self.socket = None
        self.listen(0)

    def listen(self, port):
        self.socket = socket.create_server(("127.0.0.1", port))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, args=(self.socket,), daemon=True).start()

    def serve(self, listening):
        with contextlib.suppress(OSError):
            while True:
                one, _ = listening.accept()
                self.open.append(one)
                if self.state.isdecimal():
                    threading.Thread(target=self.deny, args=(one,), daemon=True).start()
                elif self.state == "open":
                    other = socket.create_connection(self.target)
                    self.open.append(other)
                    for pair in ((one, other), (other, one)):
                        threading.Thread(target=self.pump, args=pair, daemon=True).start()

    def deny(self, one):
        """Answer a request with a status, after its body where the client does not ask before it sends that."""
        with contextlib.suppress(OSError), one, one.makefile("rb") as lines:
            head = [line.lower() for line in iter(lambda: lines.readline().rstrip(), b"")]
            length = sum(int(line.partition(b":")[2]) for line in head if line.startswith(b"content-length:"))
            if not any(line.startswith(b"expect:") for line in head):
                lines.read(length)
            one.sendall(f"HTTP/1.1 {self.state} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())

    def pump(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                while self.state == "silent":
                    time.sleep(0.05)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def shut(self, state, seconds):
        self.state = state
        if state == "refusing":
            self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()
        if state != "silent":
            for each in self.open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        time.sleep(seconds)
        self.state = "open"
        if state == "refusing":
            self.listen(self.port)


@pytest.mark.parametrize("state", ["refusing", "silent", "answering 503", "answering 403"])
def test_a_storage_is_away_for_half_a_minute(tmp_path, record, state):
    record["fault"] = f"storage {state} for 30 s"
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    door = Door(host, port)
    try:
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys)
        client.create_bucket(Bucket="away")
        options = f"endpoint_override=127.0.0.1:{door.port}&scheme=http&region=us-east-1"
        storage = f"s3://testing:testing@away/{state.replace(' ', '-')}?{options}"
        epochs = 6
        folder = run_of(storage, epochs=epochs, pause=0.1)
        process = driver(TRAIN % (epochs, 1), storage)
        before = wait_for(lambda: steps(folder), process)
        door.shut(state.removeprefix("answering "), 30)
        goes_on(folder, process, record, before)
        ends(process)
        record["attempts"] = attempts(folder)
        assert attempts(folder) == 1
        assert outcome(folder) == undisturbed(tmp_path, epochs)
    finally:
        server.stop()
    record["survived"] = "yes"


def test_a_training_whose_process_dies_again_and_again_at_one_step_fails_in_a_line(tmp_path, record):
    record["fault"] = "a process that dies again and again at one step (out of memory)"
    storage = str(tmp_path / "dies")
    folder = run_of(storage, epochs=400, pause=2.0)
    process = driver((TRAIN % (400, 1)).replace("0.1", "2.0"), storage)
    for attempt in range(1, 4):
        wait_for(lambda attempt=attempt: attempts(folder) == attempt, process)
        found = f"attempts/{attempt:04d}/[!.]*.json"
        file, *_ = wait_for(lambda found=found: list(Path(folder.folder.root).rglob(found)), process)
        os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
    said, _ = process.communicate(timeout=200)
    assert process.returncode != 0 and "its process died 3 times at step 0" in said
    assert (
        said.count("note: Ray: A worker died") == 3 and "ActorDiedError" not in said and "tune_controller" not in said
    )
    assert attempts(folder) == 3
    assert "died 3 times" in folder.folder.read_json("failure.json")["why"]
    record["survived"] = "no: one line"


def test_the_head_is_lost_and_started_again(tmp_path, record):
    record["fault"] = "head lost, and the cluster and the command started again"
    storage, epochs = str(tmp_path / "headless"), 120  # a minute and a half: trials outlive their head by a minute
    folder = run_of(storage, epochs=epochs, pause=0.1)
    first_cluster = Nodes()
    try:
        first_cluster.add()
        first = driver(TRAIN % (epochs, 1), storage, address=first_cluster.ray.address)
        wait_for(lambda: steps(folder), first)
        about_to_lose(folder, record)
        first_cluster.ray.remove_node(first_cluster.ray.head_node, allow_graceful=False)
        said, _ = first.communicate(timeout=600)  # Ray itself takes two minutes or three to give the head up
        assert first.returncode != 0 and "Traceback" not in said, said
    finally:
        first_cluster.ray.shutdown()
    before = steps(folder)  # trials go on for a while without their head
    assert folder.result() is None
    second_cluster = Nodes()
    try:
        second_cluster.add()
        second = driver(TRAIN % (epochs, 1), storage, address=second_cluster.ray.address)
        goes_on(folder, second, record, before)
        ends(second)
    finally:
        second_cluster.ray.shutdown()
    assert outcome(folder) == undisturbed(tmp_path, epochs)
    record["survived"] = "yes"


FULL = """
import numpy as np, ray, os
from retable.platform.execute.session import make_token
make_token()
ray.init("local", object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
held = [ray.put(np.full(2_500_000, part)) for part in range(10)]  # 20 MB each: most of them are on the disk now
"""


def test_an_object_store_that_is_full_spills(tmp_path, record):
    record["fault"] = "object store full of other objects, so that it spills"
    storage, epochs = str(tmp_path / "full"), 4
    folder = run_of(storage, epochs=epochs)
    code = FULL + f"retable.train('line', {{'epochs': {epochs}}}, storage=storage)\n"
    code += "from ray._private.internal_api import memory_summary as summary\n"
    code += "print(summary(ray.get_runtime_context().gcs_address, stats_only=True))\n"
    code += "assert [int(ray.get(each)[0]) for each in held] == list(range(10))\n"
    said = ends(driver(code, storage))
    assert "Spilled" in said, said
    assert outcome(folder) == undisturbed(tmp_path, epochs)
    record["survived"] = "yes"
