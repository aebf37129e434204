"""Ray, started or joined: careful defaults, and one-line refusals of what would hang."""

from __future__ import annotations

import functools
import gc
import json
import logging
import math
import os
import re
import secrets
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from retable.platform import commit, ray_compat
from retable.platform.console import errors
from retable.platform.errors import UserError, one_line
from retable.platform.store.patience import PATIENCE
from retable.platform.store.storage import Storage
from retable.platform.text import plain

if TYPE_CHECKING:
    from pyarrow import fs

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # Train's controller polls every 2 s: 1.4 s a report, 5 s at the end
    "RAY_DATA_LOG_LEVEL": "ERROR",
    "RAY_DATA_USE_DATASOURCE_V2": "0",  # reading Parquet through V2 starts 32 actors at every execution
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # our own log is the log
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C reaches us; everything is on the storage by then
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # a process that was lost is one line of ours
    "TUNE_WARN_THRESHOLD_S": "10",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # what asks for no GPU sees none
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # SIGTERM while Ray starts: nothing runs yet that could drain
}
"""Environment variables of Ray that hold while Ray is started or joined, where the user has not set them."""

_SENT = ("RAY_ADDRESS", "RETABLE_TASKS", PATIENCE, commit.VARIABLE, *QUIET)
"""Variables that hold on every node of a cluster that is joined."""
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder in a Kubernetes pod that holds its service account and namespace."""
_session = ExitStack()
"""Changes that `start_ray` made in this process; `end_ray` undoes them."""
_starting, _users = threading.Lock(), 0
"""How many threads use a Ray that this process has started, held while it starts or ends."""
_MESSAGES = "retable.txt"
"""File beside Ray's logs: what Ray said of lost processes and machines."""
_RETRIED = "so the task will be retried"
"""Words of Ray's second message of a lost process."""
INTERRUPTED = "interrupted; the same command goes on where it stopped"
SHARED = "name a bucket (s3://...) or a folder that every node mounts at the same place"
TOKEN_REMEDY = "put the cluster's token into ~/.ray/auth_token, or name its file in RAY_AUTH_TOKEN_PATH"
_SOCKET = 68
"""Letters that Ray adds to its folder for temporary files: `/ray/session_<time>_<process>/sockets/plasma_store`."""
_SOCKET_NAME = 103 if sys.platform == "darwin" else 107
"""Letters that the name of a socket may have."""
ANSWER = 10.0
"""Seconds that a cluster has to answer; one that lives takes milliseconds."""


class Interrupt:
    """Handler of SIGINT and SIGTERM: interrupts the block once, and lets its cleanup finish."""

    PATIENCE = 10.0
    """Seconds in which further signals change nothing: schedulers and people send two."""
    announced = False
    """Whether any of this process has printed its line."""

    def __init__(self) -> None:
        self.received = 0
        self._told = False
        self._since = -math.inf

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: for either signal, as it is the one exception that Ray's own waiting lets through.
        """
        if time.monotonic() - self._since >= self.PATIENCE:
            self.received, self._since = signum, time.monotonic()
            raise KeyboardInterrupt

    def announce(self) -> None:
        """Print once that the work was interrupted, if it was."""
        if self.received and not self._told:
            self._told = Interrupt.announced = True
            errors.print(INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[Interrupt | None]:
    """Handle SIGTERM (Slurm, Kubernetes, a spot machine) as Ctrl-C, and print one line.

    Only a process's main thread hears signals; in others, and within another such block, this does nothing.

    Raises:
        KeyboardInterrupt: after SIGINT.
        SystemExit: with status 143, after SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    current = signal.getsignal(signal.SIGTERM)
    if isinstance(current, Interrupt):
        yield current
        return
    interrupt = Interrupt()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    except BaseException:  # whatever the interruption has become on its way
        if not interrupt.received:
            raise
        interrupt.announce()
        raise SystemExit(143) if interrupt.received == signal.SIGTERM else KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def switches() -> Iterator[None]:
    """Set the variables of `QUIET` inside the block, except those that are set already."""
    ours = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(ours)
    ray_compat.read_switches()
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
        ray_compat.read_switches()


@contextmanager
def ray_cluster(nested: bool = False) -> Iterator[None]:
    """Join the cluster of RAY_ADDRESS, or start Ray on this machine's cores; leave a running Ray as it is.

    Args:
        nested: whether Train groups will run inside trials. They need the dashboard: without it a stopped trial's
            resources are never freed and the next trial waits for ever (Ray 2.60).

    Raises:
        UserError: if no cluster answers at RAY_ADDRESS.
    """
    import ray

    global _users
    if ray.is_initialized() and not _users:  # the user's own
        with switches():
            yield
        return
    with interruptible() as interrupt:
        with _starting:  # calls in several threads share one Ray, which the last of them ends
            _users += 1
        try:
            with _starting:
                if not ray.is_initialized():
                    start_ray(nested, interrupt)
            yield
        finally:
            if interrupt:
                interrupt.announce()  # before Ray ends: while it does, it takes our handler away
            with _starting:
                _users -= 1
                if not _users:
                    end_ray()


def start_ray(nested: bool, interrupt: Interrupt | None) -> None:
    """Join or start Ray, and keep our handler of SIGTERM: Ray sets its own, which ends in an abort."""
    _session.enter_context(switches())  # first: Ray reads some of them when it is imported
    import ray

    _session.enter_context(ray_compat.messages_to(tell))
    _session.enter_context(ray_compat.ray_session())
    address = cluster_address()
    if address:
        check_cluster(address)
    else:
        add_to_path()
        make_token()
    local = {"include_dashboard": nested, "dashboard_host": "127.0.0.1"}
    ours: dict[str, Any] = variables() if address else {**local, "_temp_dir": temporary_folder()}
    start = partial(ray.init, address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **ours)
    try:
        if address or too_late(start):
            start()
    except Exception as error:  # Ray raises plain ones where a node does not come up
        what = f"RAY_ADDRESS={address}: this machine cannot join" if address else "Ray does not start on this machine"
        raise UserError(f"{what}: {str(error).splitlines()[0]}") from error
    except SystemExit:  # Ray's handler
        if interrupt:
            interrupt(signal.SIGTERM, None)
        raise
    finally:
        if interrupt:
            signal.signal(signal.SIGTERM, interrupt)


def tell(message: str) -> None:
    """Print what Ray says of a lost process or machine as one line; a file beside Ray's logs has all of it."""
    words = " ".join(message.split())
    try:
        file = Path(ray_compat.logs_folder(), _MESSAGES)
        with file.open("a") as kept:
            kept.write(f"{message}\n")
        line = f"{plain(words.partition('. ')[0].rstrip('.'))} (more in {file})"
    except OSError:  # another user's folder, or Ray has ended
        line = plain(words, 2000)
    handler = signal.getsignal(signal.SIGTERM)
    interrupted = isinstance(handler, Interrupt) and handler.received  # then we end our processes ourselves
    if _RETRIED not in words and not interrupted:  # that a process was lost was said
        errors.print(f"note: Ray: {line}", markup=False)


def end_ray() -> None:
    """Leave or end Ray, and restore what `start_ray` changed in this process."""
    _session.close()


def too_late(start: Callable[[], object]) -> bool:
    """Start Ray; return whether it did not come up within its 30 s, as on a machine with much to do, and was ended."""
    import ray

    try:
        start()
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
    else:
        return False
    with warnings.catch_warnings():  # of the processes that Ray ends without waiting for them
        warnings.simplefilter("ignore", ResourceWarning)
        ray.shutdown()
        gc.collect()
    return True


def variables() -> dict[str, Any]:
    """Return a runtime environment with our variables for every node, except those that a job sets itself."""
    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    environment = (job.get("runtime_env") or {}).get("env_vars") or {}
    sent = {name: os.environ[name] for name in _SENT if name in os.environ and name not in environment}
    return {"runtime_env": {"env_vars": sent}} if sent else {}


def temporary_folder() -> str | None:
    """Return a short folder for Ray's sockets where the one of TMPDIR has too long a name; None: Ray's own choice.

    Slurm and macOS have such long ones.

    Raises:
        UserError: where there is no short one, or RAY_TMPDIR names a long one.
    """
    chosen = os.environ.get("RAY_TMPDIR")
    if chosen == "" or (chosen is None and os.environ.get("TMPDIR") == ""):  # Ray would take it for where it is started
        return "/tmp/ray"
    long = len(os.fsencode(chosen or os.environ.get("TMPDIR", "/tmp"))) + _SOCKET > _SOCKET_NAME
    if not long:
        return None
    remedy = f"set RAY_TMPDIR to a folder whose name has at most {_SOCKET_NAME - _SOCKET} letters"
    if chosen:
        raise UserError(f"RAY_TMPDIR={chosen}: too long for the sockets that Ray makes there; {remedy}")
    if not os.access("/tmp", os.W_OK | os.X_OK):
        raise UserError(f"TMPDIR={os.environ['TMPDIR']}: too long for the sockets that Ray makes there; {remedy}")
    return "/tmp/ray"


def make_token() -> None:
    """Create the token of this machine's Ray, readable by its owner alone, unless it exists."""
    path = Path("~/.ray/auth_token").expanduser()
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or path.exists():
        return
    with suppress(OSError):  # another process was first; or the home cannot be written: Ray says so
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))


def cluster_address() -> str:
    """Return the address in RAY_ADDRESS; empty if Ray is to start on this machine."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address == "local" else address


def check_cluster(address: str) -> None:
    """Refuse an address at which no cluster answers: `ray.init` would wait for minutes and log every try.

    Raises:
        UserError: saying what answered instead.
    """
    import grpc
    from ray.exceptions import AuthenticationError

    remedy = "set it to HEAD:6379 (the address that `ray start --head` prints), to auto, or not at all"
    if address != "auto" and not re.fullmatch(r"[^/]+:\d+", address):
        raise UserError(f"RAY_ADDRESS={address} is not the address of a Ray cluster; {remedy}")
    try:
        ray_compat.ping_cluster(address, ANSWER)
    except ConnectionError as error:
        raise UserError("RAY_ADDRESS=auto: no Ray runs on this machine; unset it, or `ray start --head`") from error
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            raise UserError(f"RAY_ADDRESS={address}: refuses this token, or the lack of one; {TOKEN_REMEDY}") from error
        raise UserError(f"RAY_ADDRESS={address}: no Ray cluster answers there ({error.details()}); {remedy}") from error
    except AuthenticationError as error:  # of Ray on this side: the mode is on, and there is no token
        raise UserError(f"RAY_ADDRESS={address}: a token is needed and none is found; {TOKEN_REMEDY}") from error


def check_nodes(storage: Storage) -> None:
    """Refuse a cluster that was joined where its nodes do not see the storage, or would run other code, or none.

    One task looks on each node that is there. On a Ray of our own, nothing has to be asked.

    Raises:
        UserError: naming the node, and what to do.
    """
    if not cluster_address():
        return
    if storage.is_local and "working_dir_files" in Path(storage.root).parts:
        raise UserError(f"--storage {storage}: lies in the job's upload, which Ray deletes; {SHARED}")
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    from retable.platform.store.provenance import code

    ours = code()
    mark = f".seen-{secrets.token_hex(8)}"
    storage.write(mark, b"")
    try:
        alive = alive_nodes()
        look = ray.remote(num_cpus=0, max_retries=1)(look_from_node)
        asked = (storage.filesystem, storage.root, mark)
        answers = [look.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote(*asked) for node in alive]
        for node, answer in zip(alive, answers, strict=True):
            name = node["NodeManagerAddress"]
            try:
                seen, their_versions, theirs = ray.get(answer, timeout=60)
            except Exception as error:  # whatever Ray makes of it: the node cannot work, if it is still there
                if gone(node["NodeID"], error):
                    continue
                raise UserError(f"node {name}: cannot run this ({one_line(error)}); install the same there") from error
            if not seen:
                raise UserError(f"--storage {storage}: node {name} does not see it; {SHARED}")
            compare(name, their_versions, theirs, ours)
    finally:
        storage.remove(mark)


def gone(node: str, error: Exception) -> bool:
    """Return whether a node has vanished: Ray notices that after a while."""
    from ray.exceptions import NodeDiedError, TaskUnschedulableError

    return node not in {info["NodeID"] for info in alive_nodes()} or isinstance(
        error, (TaskUnschedulableError, NodeDiedError)
    )


def look_from_node(filesystem: fs.FileSystem, root: str, mark: str) -> tuple[bool, dict[str, str], dict[str, str]]:
    """Return whether a file is seen from here, which versions are installed, and which code is imported.

    The storage is opened anew: that the driver has read and written there says nothing of this node's credentials.
    """
    from retable.platform.store.provenance import code, versions

    return Storage(filesystem, root).exists(mark), versions(), code()


def compare(node: str, their_versions: Mapping[str, str], theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Refuse a node whose code differs from the driver's; print where its package versions differ.

    Raises:
        UserError: naming the node, and the parts of the code.
    """
    from retable.platform.store.provenance import versions

    parts = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    if parts:
        raise UserError(
            f"node {node}: has another checkout of the code than the driver ({', '.join(parts)}); "
            "bring the same commit there (and the tasks of RETABLE_TASKS), or submit a job, which takes its code along"
        )
    others = [
        f"{package} {their_versions.get(package)}"
        for package, own in versions().items()
        if their_versions.get(package) != own
    ]
    if others:
        errors.print(f"note: node {node} has other versions than the driver: {', '.join(others)}", markup=False)


def alive_nodes() -> list[dict[str, Any]]:
    """Return what Ray says of each node that is there."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def cluster_resources() -> dict[str, float]:
    """Return the total resources of the cluster: `CPU`, `GPU`, ..."""
    import ray

    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


def trial_memory(cpus: float, gpus: float, wanted: float) -> int:
    """Return the bytes of memory that work asks Ray for, so that no more is begun than a node has room for.

    It is never more than the largest node with so many CPUs and GPUs has: alone, it always starts. It is 0 where there
    is no such node yet, because nobody knows what the nodes to come have.
    """
    nodes = [node["Resources"] for node in alive_nodes()]
    able = [node.get("memory", 0.0) for node in nodes if node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus]
    most = max(able, default=0.0)
    if able and most < wanted:
        cap_memory(round(wanted / 1e9, 1), round(most / 1e9, 1))
    return int(min(wanted, most))


@functools.cache
def cap_memory(wanted: float, most: float) -> None:
    """Print once that work gets less memory (GB) than its task requires."""
    errors.print(f"note: a training may take {wanted:g} GB of memory and no node has more than {most:g}; it may fail")


def add_to_path() -> None:
    """Make Ray's workers import the package that this process runs: a checkout need not be installed."""
    ours = str(commit.code_root().parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != ours]
    os.environ["PYTHONPATH"] = os.pathsep.join([ours, *paths])


def cpu_share(workers: int) -> float:
    """Return how many CPUs each of `workers` may reserve so that they and their trial fit the cluster.

    Workers that reserve every CPU wait for ever for their trial's own share; so they get a little less than one each
    where there is no room.

    Raises:
        UserError: if the cluster has not half a CPU for each worker.
    """
    cpus = possible_resources().get("CPU", 0.0)
    share = min(1.0, int(100 * (cpus - 0.1) / workers) / 100)
    if share < 0.45:
        raise UserError(f"--workers {workers} is more than {cpus:.0f} CPUs can run; use at most {int(2 * cpus)}")
    return share


def check_room(kind: str, wanted: float) -> None:
    """Refuse a training that requires more `CPU` or `GPU` than the cluster can ever have.

    Raises:
        UserError: naming what there is.
    """
    available = possible_resources().get(kind, 0.0)
    if wanted > available:
        option, has = f"--{kind.lower()}s-per-run", "may grow to" if autoscales() else "has"
        raise UserError(
            f"a training wants {wanted:g} {kind}s and the cluster {has} {available:g}; lower {option} or --workers"
        )


def check_node(kind: str, wanted: float) -> None:
    """Refuse a requirement that no single node meets, unless nodes may be added.

    Raises:
        UserError: naming what the largest has.
    """
    most = max((node["Resources"].get(kind, 0.0) for node in alive_nodes()), default=0.0)
    if wanted > most and not autoscales():
        raise UserError(
            f"a training wants {wanted:g} {kind}s and no node has more than {most:g}; lower --{kind.lower()}s-per-run"
        )


def resource_of(word: str) -> str:
    """Return Ray's name of a custom resource or accelerator type.

    Raises:
        UserError: where no node has it, nor may have it.
    """
    names = {*cluster_resources(), *growth()}
    matching = [name for name in (word, f"accelerator_type:{word}") if name in names]
    if not matching:
        usual = re.compile(r"CPU|memory|object_store_memory|node:.*")
        available = sorted(name.removeprefix("accelerator_type:") for name in names if not usual.fullmatch(name))
        has = f"; they have {', '.join(available)}" if available else ""
        raise UserError(
            f"--measure-on {word}: no node of the cluster has such a resource{has}; start one with "
            f"`ray start --resources='{{\"{word}\": 1}}'`, or name it in the cluster file"
        )
    return matching[0]


def autoscales() -> bool:
    """Return whether the cluster may grow: then waiting for machines is no mistake."""
    return bool(growth())


def possible_resources() -> dict[str, float]:
    """Return the resources that the cluster has or may grow to.

    Of one that grows, what its autoscaler's config does not name, such as the nodes' memory, is not known.
    """
    present, grown = cluster_resources(), growth()
    return {kind: max(present.get(kind, 0.0), grown[kind]) for kind in grown} if grown else present


def growth() -> dict[str, float]:
    """Return the resources that the cluster's autoscaler may grow to; empty without one."""
    import ray

    reported = ray_compat.autoscaler_limits() if ray.is_initialized() else {}
    return reported or _configured()


@functools.cache
def _configured() -> dict[str, float]:
    """Return the same by the cluster launcher's file, which lies on the head, or by KubeRay of the cluster of this pod.

    Their autoscalers do not report it.
    """
    import yaml

    launcher, namespace = Path("~/ray_bootstrap_config.yaml").expanduser(), Path(f"{SERVICE_ACCOUNT}/namespace")
    name = os.environ.get("RAY_CLUSTER_NAME")
    try:
        if launcher.exists():
            return _most(yaml.safe_load(launcher.read_text()))
        if name and namespace.is_file():
            return _most(ray_compat.kuberay_config(name, namespace.read_text().strip()))
    except Exception as error:  # a file may hold anything, and Ray's client raises whatever comes
        who, what = (launcher, "the cluster") if launcher.exists() else ("Kubernetes", name)
        line = f"note: {who} does not say how far {what} may grow; it is taken as it is ({one_line(error)})"
        errors.print(line, markup=False)
    return {}


def _most(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources of all nodes that an autoscaler's config allows; empty where it may add none."""
    kinds, head = config["available_node_types"], config.get("head_node_type")
    nodes = {name: kind.get("max_workers", 1) for name, kind in kinds.items()}
    if not any(nodes[name] for name in nodes if name != head):
        return {}
    resources: dict[str, float] = {}
    for name, kind in kinds.items():
        for resource, amount in kind["resources"].items():
            resources[resource] = resources.get(resource, 0.0) + amount * (nodes[name] or name == head)
    return resources
