"""The server of `retable serve` on Ray: starts or joins a cluster, deploys, waits for signals, drains at the end."""

from __future__ import annotations

import logging
import os
import queue
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

import ray
from ray import serve
from ray.exceptions import RayError

from retable.platform import ray_compat
from retable.platform.console import console, errors, print_lines
from retable.platform.errors import UserError, one_line
from retable.platform.execute.session import (
    Interrupt,
    autoscales,
    cluster_address,
    cluster_resources,
    end_ray,
    start_ray,
)
from retable.platform.store.storage import Storage
from retable.serve import application
from retable.serve.ingress.app import routes_for
from retable.serve.ingress.replies import Json
from retable.serve.launch.address import Address, check_port, loopback
from retable.serve.launch.models import Model, some

T = TypeVar("T")
_leaving = threading.Event()
"""Set where the server ends: nothing is deployed any more."""
PATIENCE = 20.0
"""Seconds that what was begun has to be answered when the server ends."""
WATCH, _MISSED = 1.5, 3
"""Seconds between two looks at Ray, and how many in a row find it gone before it is."""
_ENDING, LAST = 5.0, 30.0
"""Seconds in which Ray ends where it is gone, and otherwise; then the process does, as Ray may block indefinitely."""
Swap = Callable[[Sequence[Model]], set[str]]
"""Serves other models of the same tasks from then on."""


@contextmanager
def serving(
    models: Sequence[Model],
    storage: Storage,
    address: Address,
    index: str = "",
    replicas: Mapping[str, int] | None = None,
) -> Iterator[Swap]:
    """Serve models while the block runs, until a signal; then answer what was begun, and end.

    Gives what serves other models of the same tasks, without a request that fails.

    Raises:
        UserError: where Ray does not start, the machine is too small, or a deployment does not come up.
        SystemExit: where Ray has ended meanwhile, or a signal came before the server was open.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    interrupt = Interrupt()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    name, began = "", False
    _leaving.clear()
    try:
        start_ray(nested=False, interrupt=interrupt)
        address = join(address)
        name = address.name or application.NAME
        arguments = application.arguments(models, storage, address, index)
        least = replicas or {}
        # Of a command that was killed: its replicas have their room.
        running = bool(cluster_address()) and name in serve.status().applications
        spare = check_cpus({} if running else application.reserved(arguments.tasks, least))
        scaling = application.scaling(arguments.tasks, least, spare, int(cluster_resources().get("CPU", 1)))
        watched(partial(listen, address))
        swap = partial(deploy, address, arguments, storage, scaling)
        watched(partial(swap, models))
        show(models, address)
        began = True
        yield swap
    except KeyboardInterrupt:
        if not began:
            raise SystemExit(128 + (interrupt.received or signal.SIGINT)) from None
        console.print("draining: what was begun is answered")
    finally:
        # A terminal that is closed now changes nothing more.
        signal.signal(signal.SIGHUP, lambda number, frame: _mute())
        leave(name)
        for number, handler in before.items():
            signal.signal(number, handler)


def join(address: Address) -> Address:
    """Return where the cluster listens; from then on, the application's name there is this command's.

    Raises:
        UserError: where the name is another one's, or where others can reach the server and there is no token.
    """
    if not cluster_address():
        return address
    name, running_at = address.name or application.NAME, ray_compat.serve_address()
    if not running_at:
        check_port(address.host, address.port)
    else:
        address = replace(address, host=running_at[0], port=running_at[1])
        if not address.token and not loopback(address.host):
            raise UserError(f"serve: this cluster serves at {address.url}, which others can reach; set RETABLE_TOKEN")
    other = ray_compat.claim(name, address.url)
    if other is None and name in serve.status().applications:
        ray_compat.release(name)
        other = f"{address.url}, by a config file,"
    if other:
        raise UserError(f"serve: {other} is served by this cluster already; end that, or serve beside it: --name NAME")
    return address


def leave(name: str) -> None:
    """Finish open requests and end Ray, or leave its cluster; end this process even if Ray hangs.

    Args:
        name: of the application; empty where there is none.

    Raises:
        SystemExit: where Ray has ended before.
    """
    _leaving.set()
    last = _exit_after(PATIENCE + 5 + LAST)
    gone = ray.is_initialized() and not ray_compat.connected()
    if ray.is_initialized() and name and not gone:
        try:
            watched(partial(end, name))
        except SystemExit:
            gone = True
        except Exception as error:  # whatever it is, the server ends
            errors.print(f"note: {name} is not removed from its cluster ({one_line(error)})", markup=False)
    if gone:
        last.cancel()
        last = _exit_after(_ENDING)
        errors.print("error: Ray has ended under the server; start it again")
    end_ray()
    if gone:
        raise SystemExit(1)
    last.cancel()


def _exit_after(seconds: float) -> threading.Timer:
    """End this process after so many seconds, unless it is cancelled."""
    last = threading.Timer(seconds, os._exit, (1,))
    last.daemon = True
    last.start()
    return last


def end(name: str) -> None:
    """Finish open requests; on a shared cluster, remove the application."""
    drain(name)
    if cluster_address():
        try:
            serve.delete(name)
        finally:
            ray_compat.release(name)


def listen(address: Address) -> None:
    """Start Serve and its proxy, unless they run.

    Raises:
        UserError: where they do not come up.
    """
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options=application.http_options(address),
            logging_config={"log_level": "WARNING"},
        )
    except (RuntimeError, TimeoutError, RayError) as error:
        raise UserError(
            f"serve: its proxy does not start ({one_line(error)}); is the machine busy? try again"
        ) from error


def deploy(
    address: Address,
    arguments: application.Arguments,
    storage: Storage,
    scaling: Mapping[str, Json],
    models: Sequence[Model],
) -> set[str]:
    """Deploy the application with these models and wait until it runs; a running one is updated.

    Returns the digests of what is served then: of a task whose new models do not answer, those before.

    Raises:
        UserError: where a deployment does not come up.
    """
    name = address.name or application.NAME
    made = application.assemble(arguments, storage, application.served(models), scaling)
    if _leaving.is_set():  # an interrupt left `watched`, whose thread goes on
        raise UserError("serve: it is ending")
    try:
        running = serve.run(made, name=name, route_prefix=address.prefix, logging_config=application.LOGS)
        return cast(set[str], running.answering.remote().result(timeout_s=PATIENCE))
    except (RuntimeError, TimeoutError, RayError) as error:
        raise UserError(f"serve: a deployment does not start: {reason(error, name)}") from error


def reason(error: Exception, name: str) -> str:
    """Return why an application does not start: the last line of what a replica says, or of the error."""
    texts = [str(error), type(error).__name__]
    with suppress(RayError, TimeoutError):  # Serve's controller may be what is gone
        if running := serve.status().applications.get(name):
            deployments = running.deployments.values()
            texts = [failed.message for failed in deployments if failed.status == "DEPLOY_FAILED"] + texts
    text = next(filter(None, map(str.strip, texts)))
    return text.splitlines()[-1].rpartition("UserError: ")[2]


def drain(name: str) -> None:
    """Wait until open requests are answered. Serve alone would close their connections first."""
    try:
        left = sum(serve.get_app_handle(name).broadcast("drain", PATIENCE).results(timeout_s=PATIENCE + 5))
    except Exception as error:  # whatever it is, the server ends
        console.print(f"note: not drained ({one_line(error)})", markup=False)
        return
    if left:
        console.print(f"note: {left} requests were not answered within {PATIENCE:g} s")


def check_cpus(wanted: Mapping[str, float]) -> float:
    """Return the CPUs that replicas leave; refuse what does not fit, as it would block indefinitely.

    Raises:
        UserError: saying who wants how much.
    """
    available = float(ray.available_resources().get("CPU", 0.0))  # type: ignore[no-untyped-call]
    total = round(sum(wanted.values()), 3)
    if total > available and not autoscales():
        parts = ", ".join(f"{name} {share:g}" for name, share in wanted.items())
        raise UserError(f"serve: {total:g} CPUs are wanted ({parts}) and {available:g} are free; name fewer tasks")
    return max(0.0, available - total)


def show(models: Sequence[Model], address: Address) -> None:
    """Print the address, and a line for each endpoint: of policies one for each environment."""
    console.print(f"\n{address.url}/ is open; Ctrl-C ends it", markup=False)
    places = {(model.task, model.name): model for model in reversed(models)}
    print_lines(some(list(reversed(places.values())), lambda model: curl(model, address)))
    console.print(f"Prometheus: {', '.join(metrics_urls())}", markup=False, soft_wrap=True)


def metrics_urls() -> list[str]:
    """Return where Ray's nodes say how much was asked, and how fast it was answered."""
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in nodes]


def curl(model: Model, address: Address) -> str:
    """Return a line for a shell that asks a model."""
    key = ' -H "Authorization: Bearer $RETABLE_TOKEN"' if address.token else ""
    options, suffix = routes_for(model.task).curl(model)
    return f"curl -s{key}{options} '{address.url}/v1/{model.task}{suffix}'"


def hangup(heard: queue.SimpleQueue[int]) -> bool:
    """Wait for a SIGHUP while Ray lives; return whether there was one."""

    def told(seconds: float) -> bool:
        with suppress(queue.Empty):
            return bool(heard.get(timeout=seconds))
        return False

    return _lives_until(told)


@contextmanager
def hangups() -> Iterator[queue.SimpleQueue[int]]:
    """Yield a queue into which each SIGHUP goes while the block runs, if one is needed.

    Raises:
        KeyboardInterrupt: where the signal says that the terminal is gone; once, as kernel and shell both send one.
    """
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()  # others may not be filled by a handler of signals
    attached = sys.stdin.isatty()

    def hear(number: int, frame: object) -> None:
        nonlocal attached
        if not attached or sys.stdin.isatty():
            heard.put(number)
            return
        attached = False
        _mute()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGHUP, hear)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGHUP, before)


def _lives_until(ended: Callable[[float], bool]) -> bool:
    """Wait, some seconds at a time, until that gives true; return whether Ray has lived as long."""
    missed = 0
    while missed < _MISSED:
        if ended(WATCH):
            return True
        missed = 0 if ray_compat.connected() else missed + 1
    return False


def watched(work: Callable[[], T]) -> T:
    """Return `work()`, done in a thread while Ray lives.

    Raises:
        SystemExit: where Ray has ended meanwhile; `leave` says so.
    """
    done: Future[T] = Future()

    def doing() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # of whatever kind, it is the caller's
            done.set_exception(error)

    threading.Thread(target=doing, daemon=True).start()
    if not _lives_until(lambda seconds: bool(wait([done], seconds).done)):
        raise SystemExit(1)
    return done.result()


def _mute() -> None:
    """Send what would go to a terminal that is gone to nowhere: writing there fails, also while the server ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if not stream.isatty() and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):  # a file or a pipe goes on
            os.dup2(nowhere, stream.fileno())
