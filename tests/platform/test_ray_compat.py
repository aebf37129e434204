"""Private parts of Ray: each test fails where Ray has changed one, and says what then breaks in retable.

Those of a Ray that runs are tested where one does: in `execute/test_session.py`.
"""

import ast
import functools
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import ray
import yaml

from retable.platform import ray_compat
from retable.platform.execute import session
from retable.platform.execute.trials import timeouts_told_apart

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path for folder in ("platform", "tasks", "search_spaces", "serve") for path in (ROOT / folder).rglob("*.py")
)
COMPAT = ROOT / "platform" / "ray_compat.py"
PRIVATE = re.compile(r"ray\.((.*\.)?_[a-z]|core\.generated|train\.v2\b)")
NAMES = {"_base_exc", "_internal", "__mixins__", "core_worker", "enable_auto_connect"}
SPELLED = re.compile(rf"\bray\b|{'|'.join(NAMES)}")


def test_what_ray_prints_of_lost_processes_goes_to_a_function_while_a_block_runs():
    """Else ten lines of Ray's stand in the terminal for each process that is lost."""
    from ray._private import worker

    before, told = worker.print_to_stdstream, []
    assert "print_to_stdstream(" in inspect.getsource(worker.listen_error_messages)
    assert list(inspect.signature(before).parameters) == ["data", "ignore_prefix"]
    with ray_compat.messages_to(told.append):
        worker.print_to_stdstream({"lines": ["a", "b"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert told == ["a\nb"] and worker.print_to_stdstream is before


def test_ray_that_does_not_run_has_no_folder_of_logs():
    with pytest.raises(OSError, match="Ray does not run"):
        ray_compat.logs_folder()
    from ray._private.node import Node
    from ray._private.state import GlobalState

    assert inspect.isfunction(Node.get_logs_dir_path)
    assert list(inspect.signature(GlobalState.actor_table).parameters)[1:] == ["actor_id", "job_id", "actor_state_name"]


def dotted(node):
    """Return `a.b.c` of a chain of attributes; nothing where it begins with something else than a name."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


@functools.cache
def private_uses(path):
    """Return the private names of Ray that a file imports, reads, sets, passes or spells in a string."""
    found, text = set(), path.read_text()
    if not SPELLED.search(text):  # most files: nothing to parse
        return found
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module), level=0):
                found |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.Attribute():
                found |= {dotted(node), node.attr}
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Constant(value=str(text)) if re.fullmatch(r"[\w.]+", text):
                found.add(text)
    return {name for name in found if name in NAMES or PRIVATE.match(name)}


def test_only_ray_compat_uses_private_names_of_ray():
    assert {
        f"{path.relative_to(ROOT)}: {uses}" for path in FILES if path != COMPAT and (uses := private_uses(path))
    } == set()


def test_private_names_are_seen_in_every_form(tmp_path):
    seen = private_uses(COMPAT)
    assert {"_internal", "_base_exc", "__mixins__", "core_worker", "ray._private.state.state"} <= seen
    file = tmp_path / "x.py"
    for code in (
        "import ray._private",
        "import ray\nray._raylet.x()",
        "from ray import _raylet",
        "f('ray._private.x')",
    ):
        file.write_text(code)
        private_uses.cache_clear()
        assert private_uses(file), code
    file.write_text("from ray.train import FailureConfig\nimport ray\nray.data.x(y._z)")
    private_uses.cache_clear()
    assert not private_uses(file)


@pytest.mark.parametrize("former", [True, False])
def test_ray_connects_by_itself_as_before_but_not_in_threads_that_a_session_left(monkeypatch, former):
    """Else a notebook's own Ray does not start by itself, or a thread of Ray Data starts one that ends the process."""
    from ray._private import auto_init_hook as hook

    started, proceed = [], threading.Event()
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda: started.append(threading.current_thread()))
    monkeypatch.setattr(ray, "shutdown", hook.auto_init_ray)
    monkeypatch.setattr(hook, "enable_auto_connect", former)

    def reader():
        proceed.wait(30)
        hook.auto_init_ray()

    def in_thread(work):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    mine = [threading.current_thread()]
    with ray_compat.ray_session():
        left = in_thread(reader)
        hook.auto_init_ray()
    assert started == mine, "inside it connects, while it ends it does not"
    with ray_compat.ray_session():
        other = in_thread(reader)
    hook.auto_init_ray()
    assert started == mine * (1 + former)
    proceed.set()
    left.join(30)
    other.join(30)
    assert started == mine * (1 + former), "a thread that was left behind started a Ray"
    new = in_thread(hook.auto_init_ray)
    new.join(30)
    assert started == mine * (1 + former) + [new] * former
    with ray_compat.ray_session():
        pass
    assert bool(hook.enable_auto_connect) is former


def test_ray_reads_its_switches_anew(monkeypatch, fresh):
    """Else SIGTERM while Ray starts takes 30 s, and sweeps print Tune's warnings of slow operations."""
    from ray._private.node import Node, ray_constants
    from ray.tune.utils.util import warn_if_slow

    asked = []
    node = SimpleNamespace(
        _node_id="n", all_processes={ray_constants.PROCESS_TYPE_RAYLET: []}, get_gcs_client=lambda: asked.append(1)
    )
    for name, value in (("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"), ("TUNE_WARN_THRESHOLD_S", "7")):
        monkeypatch.setenv(name, value)
    ray_compat.read_switches()
    Node._drain_node_before_shutdown(node)
    assert not asked and warn_if_slow("x").threshold == 7
    monkeypatch.undo()
    ray_compat.read_switches()
    here = [ray_constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, warn_if_slow.DEFAULT_THRESHOLD]
    assert fresh["defaults"] == here, "Ray's own defaults"


TOKEN = "s" * 32
FRESH = """
import json, os
before = dict(os.environ)
from ray._private import ray_constants as constants
from ray.tune.utils.util import warn_if_slow
defaults = [constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, warn_if_slow.DEFAULT_THRESHOLD]
import retable.platform.execute.session, retable.platform.execute.trials, retable.platform.execute.sweep
from retable.platform import ray_compat
same = before == dict(os.environ)
print(json.dumps({"defaults": defaults, "same": same, "headers": ray_compat.auth_headers()}))
"""


def python(code, **variables):
    """Return what code prints, as JSON, in a process whose environment has no switches."""
    clean = {name: value for name, value in os.environ.items() if name not in session.QUIET}
    words = [sys.executable, "-W", "ignore", "-c", code]
    return json.loads(subprocess.run(words, env=clean | variables, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def fresh():
    """What a process of its own tells, in which tokens are not used."""
    return python(FRESH, RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN=TOKEN)


def test_no_variable_is_set_when_a_module_is_imported(fresh):
    assert fresh["same"] is True


def test_switches_hold_inside_the_block_alone_and_leave_what_the_user_set(monkeypatch):
    for name in session.QUIET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_DATA_LOG_LEVEL", "DEBUG")
    before = dict(os.environ)
    with session.switches():
        with session.switches():
            pass
        assert os.environ == before | session.QUIET | {"RAY_DATA_LOG_LEVEL": "DEBUG"}
        assert set(session.QUIET) <= session.variables()["runtime_env"]["env_vars"].keys(), "nodes that were joined"
    assert os.environ == before


def test_a_cluster_that_is_not_there_does_not_answer():
    """Else `ray.init` waits for minutes, or no cluster can be joined. `test_cluster.py` asks one that is there."""
    import grpc

    with pytest.raises(grpc.RpcError):
        ray_compat.ping_cluster("127.0.0.1:1", timeout=5)


def test_the_limits_of_an_autoscaler_are_read(monkeypatch):
    """Else a cluster that can grow is taken as it is: trainings for which nodes would come are refused."""
    from ray._private.state import state
    from ray.core.generated.autoscaler_pb2 import ClusterConfig

    config = ClusterConfig()
    config.node_group_configs.add(resources={"CPU": 4, "GPU": 1}, max_count=3)
    monkeypatch.setattr(state, "get_cluster_config", lambda: config)
    assert ray_compat.autoscaler_limits() == {"CPU": 12, "GPU": 3}
    monkeypatch.setattr(state, "get_cluster_config", lambda: None)
    assert ray_compat.autoscaler_limits() == {}


def test_ray_names_the_nodes_that_drain(monkeypatch):
    """Else trainings write no checkpoint before their node leaves."""
    from ray._private.state import state

    monkeypatch.setattr(
        state, "_connect_and_get_accessor", lambda: SimpleNamespace(get_draining_nodes=lambda: {"a": 0})
    )
    assert ray_compat.draining_nodes() == {"a"} and hasattr(ray._raylet.GlobalStateAccessor, "get_draining_nodes")


@pytest.mark.slow
def test_a_driver_knows_whether_ray_lives_and_holds_names_while_it_does(tmp_path):
    code = """
import os, signal, ray
from retable.platform import ray_compat
ray.init("local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
print(ray_compat.connected(), ray_compat.serve_address())
print(ray_compat.claim("x", "here"), repr(ray_compat.claim("x", "there")), ray_compat.claim("y", "here"))
ray_compat.release("x")
print(ray_compat.claim("x", "here"), flush=True)
import psutil
(raylet,) = [each for each in psutil.Process().children() if each.name() == "raylet"]
raylet.kill()
raylet.wait()
print(ray_compat.connected(), flush=True)
os._exit(0)
"""
    words = [sys.executable, "-W", "ignore", "-c", code]
    ran = subprocess.run(
        words, capture_output=True, text=True, timeout=200, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert ran.stdout.split() == ["True", "None", "None", "''", "None", "None", "False"], ran.stderr


def test_the_token_is_sent_where_tokens_are_used(fresh):
    """Else `retable submit` is refused by every cluster with a token."""
    code = "import json; from retable.platform import ray_compat; print(json.dumps(ray_compat.auth_headers()))"
    assert python(code, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) == {"authorization": f"Bearer {TOKEN}"}
    assert fresh["headers"] == {}


def test_a_cluster_file_is_completed_and_checked():
    """Else `retable plan --cluster` refuses every cluster file, or takes wrong ones."""
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    complete = ray_compat.complete_cluster_config(dict(config))
    assert complete["available_node_types"][config["head_node_type"]]["max_workers"] == 0
    assert complete["idle_timeout_minutes"] == config["idle_timeout_minutes"]
    with pytest.raises(jsonschema.ValidationError, match="max_wrkers"):
        ray_compat.complete_cluster_config(config | {"max_wrkers": 1})


def test_errors_of_train_are_told_from_those_of_the_training():
    """Else a Train group that lost a worker is not begun again, or a mistake of the user is tried again and again."""
    from ray.train import ControllerError, WorkerGroupError
    from ray.train.v2._internal import exceptions as private

    timeout = private.WorkerGroupStartupTimeoutError(2)
    for error in (
        timeout,
        private.WorkerHealthCheckTimeoutError("x"),
        WorkerGroupError("x", {}),
        ControllerError(timeout),
    ):
        assert ray_compat.is_train_error(error)
    assert not ray_compat.is_train_error(RuntimeError("x"))
    raised = private.UserExceptionWithTraceback(ConnectionError("reset"), "Traceback ...")
    group = pickle.loads(
        pickle.dumps(WorkerGroupError("x", {0: raised, 1: private.WorkerHealthCheckTimeoutError("y")}))
    )
    first, second = ray_compat.worker_errors(group)
    assert isinstance(first, ConnectionError) and str(first) == "reset" and ray_compat.is_train_error(second)
    assert ray_compat.worker_errors(group.worker_failures[1]) == [group.worker_failures[1]]


def test_a_group_that_found_no_room_is_told_from_other_failures():
    """Else a Train group whose node was just lost fails instead of starting with fewer workers."""
    from ray.train import ControllerError
    from ray.train.v2._internal.exceptions import InsufficientClusterResourcesError, WorkerGroupStartupTimeoutError

    assert ray_compat.start_timed_out(pickle.loads(pickle.dumps(ControllerError(WorkerGroupStartupTimeoutError(2)))))
    assert not ray_compat.start_timed_out(ControllerError(InsufficientClusterResourcesError("x")))
    assert not ray_compat.start_timed_out(WorkerGroupStartupTimeoutError(2))


def test_tune_makes_a_trial_of_a_function_with_our_class_first():
    """Else trials end at SIGTERM without a checkpoint."""
    from ray import tune
    from ray.tune.trainable.function_trainable import wrap_function

    class Mixed:
        pass

    def trainable(config, launch):
        pass

    ray_compat.mix_in(trainable, Mixed)
    made = wrap_function(tune.with_resources(tune.with_parameters(trainable, launch=1), {"CPU": 1}))
    assert made.__mro__.index(Mixed) < made.__mro__.index(tune.Trainable) and callable(made.setup)


def test_a_trial_may_fail_as_often_as_it_is_allowed_to():
    """Else a training that makes progress is given up after a few machines have vanished."""
    from ray.tune.experiment import Trial

    trial = Trial("x", stub=True, max_failures=1)
    trial.run_metadata.num_failures = 5
    assert not trial.should_recover()
    ray_compat.allow_failures(trial, 2)
    assert trial.num_failures == 5 and trial.should_recover()
    trial.run_metadata.num_failures = 8
    assert not trial.should_recover()


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning")  # Ray's own, at import
def test_a_deployment_is_named_by_a_path_and_has_a_version():
    """Else `retable serve` imports Torch to deploy, or restarts all replicas where only the models are others."""
    made = ray_compat.deployment_by_name("not.there.Class", "x", "v1", max_ongoing_requests=3)
    assert (made.func_or_class, made.name, made.version, made.max_ongoing_requests) == ("not.there.Class", "x", "v1", 3)
    bound = made.bind("given")
    assert bound._bound_deployment.init_args == ("given",)


def test_ray_still_says_so_where_it_comes_up_too_late():
    """Else a slow machine's first failed start is not tried again."""
    from ray._private.node import Node

    (text,) = {
        node.args[0].value
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[Node.__module__])))
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
        if "during startup" in str(node.args[0].value)
    }

    def start():
        raise Exception(text)

    assert session.too_late(start)


def test_gloo_still_says_so_where_another_worker_does_not_answer():
    """Else a Train group whose other worker is frozen is taken for a training that went wrong."""
    import torch
    from torch.distributed import HashStore, ProcessGroupGloo

    store, groups = HashStore(), {}

    def join(rank):
        groups[rank] = ProcessGroupGloo(store, rank, 2, timedelta(seconds=1))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with pytest.raises(TimeoutError, match="another worker does not answer: "), timeouts_told_apart():
        groups[0].allreduce([torch.ones(1)]).wait()
