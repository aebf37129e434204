"""Private parts of Ray that have no public form. No other module of retable uses private names of Ray.

Each function says what breaks if Ray changes the name that it uses; `tests/platform/test_ray_compat.py` and the
tests of those who call it would fail. Ray is imported inside the functions: importing this module costs nothing.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class _AutoConnect:
    """The former value of Ray's auto-connect flag, except that it is false in threads of a Ray that has ended."""

    def __init__(self, former: object, left: Iterable[threading.Thread]) -> None:
        self.former = former
        self.left = weakref.WeakSet(left)

    def __bool__(self) -> bool:
        """Return whether a call of Ray's API in this thread may start a Ray."""
        return bool(self.former) and threading.current_thread() not in self.left


@contextmanager
def ray_session() -> Iterator[None]:
    """Allow Ray to connect by itself inside the block, then shut Ray down; afterwards it connects as before.

    A Train group whose node is lost needs that inside the block. Threads that the block leaves behind are excepted: a
    thread of Ray Data that outlives Ray would start another Ray, whose processes end with that thread, and this process
    with them a minute later.

    Uses `ray._private.auto_init_hook.enable_auto_connect`. If Ray renames it, Ray does not start: an AttributeError. If
    Ray reads it other than by its truth value, threads left behind start a Ray.
    """
    import ray
    from ray._private import auto_init_hook as hook

    flag: Any = hook.enable_auto_connect
    threads = set(threading.enumerate())
    hook.enable_auto_connect = True
    try:
        yield
    finally:
        hook.enable_auto_connect = False
        gc.collect()  # what Ray Data left in cycles ends while Ray is there: a call after that would end this process
        try:
            ray.shutdown()
        finally:
            left = set(threading.enumerate()) - threads - {threading.current_thread()}
            if isinstance(flag, _AutoConnect):
                flag, left = flag.former, left | set(flag.left)
            restored: Any = _AutoConnect(flag, left) if left else flag
            hook.enable_auto_connect = restored


@contextmanager
def messages_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Hand what Ray prints on a driver of lost processes and machines to a function inside the block.

    Uses `ray._private.worker.print_to_stdstream`. If Ray renames it, Ray does not start: an AttributeError. If Ray
    prints by another function, its text of ten lines stands in the terminal.
    """
    from ray._private import worker

    before = worker.print_to_stdstream
    setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: tell("\n".join(data["lines"])))  # noqa: B010
    try:
        yield
    finally:
        setattr(worker, "print_to_stdstream", before)  # noqa: B010


def logs_folder() -> str:
    """Return the folder of Ray's logs on this machine.

    Uses `ray._private.worker._global_node`. If Ray renames it, a lost process is an AttributeError in a thread of
    Ray's, and nothing reports it.

    Raises:
        OSError: where Ray does not run.
    """
    from ray._private import worker

    if worker._global_node is None:
        raise OSError("Ray does not run")
    return str(worker._global_node.get_logs_dir_path())


def read_switches() -> None:
    """Update constants that imported modules of Ray have read from the environment.

    Uses `ray._private.ray_constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S` and
    `ray.tune.utils.util.warn_if_slow.DEFAULT_THRESHOLD`. If Ray renames them, SIGTERM while Ray starts takes 30 s where
    Ray was imported before it was started, and sweeps print warnings of Tune about operations slower than 0.5 s.
    """
    if constants := sys.modules.get("ray._private.ray_constants"):
        name = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
        setattr(constants, name, float(os.environ.get(name, "30")))
    if tune := sys.modules.get("ray.tune.utils.util"):
        tune.warn_if_slow.DEFAULT_THRESHOLD = float(os.environ.get("TUNE_WARN_THRESHOLD_S", "0.5"))


def ping_cluster(address: str, timeout: float) -> None:
    """Ask the head of a cluster for its id.

    Uses Ray's gRPC channel (which sends the token), its resolution of `auto`, and its generated protocol. If Ray moves
    them, no cluster can be joined: `check_cluster` fails with an ImportError or AttributeError.

    Args:
        address: `HOST:PORT` or `auto`.
        timeout: seconds to wait for the answer.

    Raises:
        ConnectionError: if the address is `auto` and no Ray runs on this machine.
        grpc.RpcError: if no cluster answers.
    """
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.services import canonicalize_bootstrap_address
    from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest  # type: ignore[attr-defined]
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    gcs = canonicalize_bootstrap_address(address) or ""
    with init_grpc_channel(gcs, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = NodeInfoGcsServiceStub(channel)  # type: ignore[no-untyped-call]
        stub.GetClusterId(GetClusterIdRequest(), timeout=timeout)


def autoscaler_limits() -> dict[str, float]:
    """Return the resources that the cluster's autoscaler may grow it to; empty if it reports none.

    Uses `ray._private.state.state.get_max_resources_from_cluster_config`, as Train does. If Ray renames it, nothing is
    planned or trained: an AttributeError.
    """
    from ray._private.state import state

    return dict(state.get_max_resources_from_cluster_config() or {})


def kuberay_config(name: str, namespace: str) -> dict[str, Any]:
    """Return the autoscaler's config of a RayCluster, which the API server tells this pod's service account.

    Uses `ray.autoscaler._private.kuberay`, as the autoscaler beside the head does. If Ray moves it, a cluster of pods
    is taken as it is, and a line names the import.

    Raises:
        Exception: of many types, if the API server does not answer, refuses, or has no such cluster.
    """
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.kuberay.node_provider import KubernetesHttpApiClient

    cluster: dict[str, Any] = KubernetesHttpApiClient(namespace).get(f"rayclusters/{name}")
    grows = cluster["spec"].get("enableInTreeAutoscaling")
    return dict(_derive_autoscaling_config_from_ray_cr(cluster)) if grows else {"available_node_types": {}}


def free_cpus(node: str) -> float:
    """Return how many CPUs of a node nothing holds; Ray leaves out a resource that is used up.

    Uses `ray._private.state.available_resources_per_node`. If Ray renames it, a measurement that waits for others says
    nothing of them: an AttributeError after half a minute.
    """
    from ray._private.state import available_resources_per_node

    per_node = available_resources_per_node()  # type: ignore[no-untyped-call]
    return float(per_node.get(node, {}).get("CPU", 0.0))


def actors_on(node: str) -> list[str]:
    """Return the actors that live on a node, each with its process: `Holder (pid 17)`. Tasks are not among them.

    Uses `ray._private.state.state.actor_table`; the public `list_actors` needs a dashboard. If Ray renames it, a
    measurement that waits for others says nothing of them: an AttributeError after half a minute.
    """
    from ray._private.state import state

    actors = state.actor_table(None, actor_state_name="ALIVE").values()
    return [f"{actor['ActorClassName']} (pid {actor['Pid']})" for actor in actors if actor["Address"]["NodeID"] == node]


def draining_nodes() -> set[str]:
    """Return the ids of nodes that are being drained: a spot machine's notice, or an autoscaler that scales down.

    Uses `ray._private.state.state.get_draining_nodes`, as Train does. If Ray renames it, trainings write no checkpoint
    before their node leaves, and lose up to the time between two checkpoints; nothing reports it.
    """
    from ray._private.state import state

    return set(state.get_draining_nodes() or ())


def task_attempt() -> int:
    """Return how often Ray began this task before: 0 at its first attempt.

    Uses `ray._private.worker.global_worker.core_worker.get_current_task_attempt_number`. If Ray renames it, predictions
    fail in one line that names it.
    """
    from ray._private.worker import global_worker

    worker: Any = global_worker
    return int(worker.core_worker.get_current_task_attempt_number())


def uploaded(folder: Path, excludes: Sequence[str]) -> list[Path]:
    """Return the files of a folder that a job's upload holds: those that neither `excludes` nor an ignore file names.

    Uses `_dir_travel` and `_get_excludes` of `ray._private.runtime_env.packaging`, as the upload does. If Ray moves
    them, `retable submit` fails with an ImportError.
    """
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    files: list[Path] = []
    _dir_travel(folder, [_get_excludes(folder, list(excludes))], files.append, include_gitignore=True)
    return [path for path in files if path.is_file()]


def auth_headers() -> dict[str, str]:
    """Return the HTTP headers that hold this user's token, where token authentication is on.

    Uses `get_auth_headers_if_auth_enabled` of `ray._private.authentication`. If Ray moves it, `retable submit` and
    `retable status --address` fail with an ImportError.
    """
    from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled

    return dict(get_auth_headers_if_auth_enabled({}))


def complete_cluster_config(config: dict[str, object]) -> dict[str, Any]:
    """Return the config of a cluster file with Ray's defaults, checked by Ray's schema.

    Uses `prepare_config` and `validate_config` of `ray.autoscaler._private.util`; the public `fillout_defaults` sets no
    limits of node types and checks nothing. If Ray moves them, `retable plan --cluster` refuses each cluster file in a
    line that names the import.

    Raises:
        Exception: of many types, if the config is wrong.
    """
    from ray.autoscaler._private.util import prepare_config, validate_config

    complete: dict[str, object] = prepare_config(config)
    validate_config(complete)
    return complete


def is_train_error(error: BaseException) -> bool:
    """Return whether Ray Train itself raised an error: a worker that does not answer, a group that does not start.

    Uses `ray.train.v2._internal.exceptions.RayTrainError`; only its subclasses for whole groups are public. If Ray
    moves it, each error in a trial becomes an ImportError, and no trial is begun again.
    """
    from ray.train.v2._internal.exceptions import RayTrainError

    return isinstance(error, RayTrainError)


def worker_errors(error: BaseException) -> list[BaseException]:
    """Return the errors of the workers of a Train group, as they were raised there; of any other error, itself.

    Uses `_base_exc` of Train's `UserExceptionWithTraceback`: `__cause__` does not survive pickling. If Ray renames it,
    each error in a worker counts as one of Train itself: a mistake of the user is tried again until Tune gives up.
    """
    failures: Mapping[int, BaseException] = getattr(error, "worker_failures", None) or {0: error}
    return [getattr(failure, "_base_exc", failure) for failure in failures.values()]


def start_timed_out(error: BaseException) -> bool:
    """Return whether a Train group found no room for its workers in Train's time.

    Uses `ray.train.v2._internal.exceptions.WorkerGroupStartupTimeoutError`. If Ray moves it, each error of a Train
    group becomes an ImportError; if Ray raises another one, a group whose node was just lost fails instead of starting
    with fewer workers.
    """
    from ray.train import ControllerError
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

    return isinstance(error, ControllerError) and isinstance(error.controller_failure, WorkerGroupStartupTimeoutError)


def mix_in(trainable: Callable[..., None], *classes: type) -> None:
    """Make the class that Tune creates for a trainable function inherit from other classes as well.

    Uses Tune's undocumented `__mixins__`. If Ray drops it, trials end at SIGTERM without a checkpoint.
    """
    trainable.__mixins__ = classes  # type: ignore[attr-defined]


def allow_failures(trial: Any, more: int) -> None:
    """Allow a Tune trial this many more failures.

    Uses `max_failures` and `num_failures` of Tune's `Trial`. If Ray renames them, a trial whose process dies on
    machines that vanish is given up after the failures that Tune was configured with, although it made progress.
    """
    trial.max_failures = trial.num_failures + more


def deployment_by_name(path: str, name: str, version: str, **options: Any) -> Any:
    """Return a Serve deployment of a class given by its import path, which is imported in the replicas only.

    Uses `_internal=True` of `serve.Deployment.options`, which permits a version; a path in place of the class is
    undocumented. If Ray drops them, `retable serve` and `serve deploy` fail when the application is assembled.
    """
    from ray import serve

    plain: Any = serve.deployment(_Named)
    return plain.options(path, name=name, version=version, _internal=True, **options)


def connected() -> bool:
    """Return whether this process's raylet and the head's control store still accept connections.

    A process that is busy or stopped still accepts them: only one that has ended, or a host that is gone, does not.

    Uses `node` of `ray._private.worker.global_worker`. If Ray renames it, `retable serve` ends with an AttributeError a
    few seconds after its start.
    """
    from ray._private.worker import global_worker

    node: Any = global_worker.node
    host, _, port = str(node.gcs_address).rpartition(":")
    try:
        with socket.socket(socket.AF_UNIX) as raylet:
            raylet.connect(node.raylet_socket_name)
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def serve_address() -> tuple[str, int] | None:
    """Return the host and port at which Serve listens on this cluster; None where Serve does not run.

    Uses `ray.serve.context._get_global_client`: Serve ignores the options of whoever joins it, and tells nobody. If Ray
    moves it, `retable serve` fails with an ImportError on a cluster that it joins.
    """
    from ray.serve.context import _get_global_client

    client: Any = _get_global_client(raise_if_no_controller_running=False)
    return (client.http_config.host, client.http_config.port) if client else None


def claim(name: str, value: str) -> str | None:
    """Put a value under a name for as long as this driver lives.

    Uses Ray's internal key-value store and table of jobs, as named actors cost a process. If Ray moves them, `retable
    serve` fails with an ImportError on a cluster that it joins.

    Returns:
        The value of another driver that lives and has the name; empty where this one has it now, None where none had.
    """
    import ray
    from ray._private.state import jobs
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    key, ours = f"retable:{name}", ray.get_runtime_context().get_job_id()
    if _internal_kv_put(key, f"{ours} {value}", overwrite=False):
        job, _, theirs = _internal_kv_get(key).decode().partition(" ")
        if job != ours and any(info["JobID"] == job and not info["IsDead"] for info in jobs()):  # type: ignore[no-untyped-call]
            return theirs
        _internal_kv_put(key, f"{ours} {value}")
        return ""
    return None


def release(name: str) -> None:
    """Remove what `claim` has put under a name. Uses the same store."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(f"retable:{name}")


class _Named:
    """Stands for a class that is given by its import path."""
