"""`retable serve`: chooses and exports models, starts or joins Ray, deploys, and drains at the end."""

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
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from retable.platform import ray_compat
from retable.platform.console import console, errors, print_lines
from retable.platform.errors import UserError, one_line, redact
from retable.platform.execute.session import (
    Interrupt,
    autoscales,
    cluster_address,
    cluster_resources,
    end_ray,
    start_ray,
)
from retable.platform.spec.extras import check
from retable.platform.store.storage import Storage
from retable.serve.deployments.subprocess_call import IsolatedCall
from retable.serve.ingress.replies import Json
from retable.serve.launch.address import Address, check_name, check_port, host_name, loopback, read_token
from retable.serve.launch.choice import Wanted, choose_models, servable
from retable.serve.launch.models import Model, describe

if TYPE_CHECKING:
    from retable.serve.application import Arguments

T = TypeVar("T")
_leaving = threading.Event()
"""Set where the server ends: nothing is deployed any more."""
PATIENCE = 20.0
"""Seconds that what was begun has to be answered when the server ends."""
WATCH, MISSED = 1.5, 3
"""Seconds between two looks at Ray, and how many in a row find it gone before it is."""
ENDING, LAST = 5.0, 30.0
"""Seconds in which Ray ends where it is gone, and otherwise; then the process does, as Ray may wait for ever."""
FEW = 8
"""Models of one task that are told of, a line each."""
Swap = Callable[[Sequence[Model]], None]
"""Serves other models of the same tasks from then on."""


def run(wanted: Json, storage: str, address: Json, replicas: Sequence[str], config: str) -> None:
    """Serve until Ctrl-C or SIGTERM; on SIGHUP choose again, and serve what is better.

    Args:
        wanted: the fields of `choice.Wanted`.
        storage: where runs lie, and exported files go.
        address: host, port, the file of the token, more names, and the name beside other applications.
        replicas: `N` or `TASK=N`, the replicas that are there at least.
        config: where the config file of Serve goes that says the same; nothing is served then.

    Raises:
        UserError: on a mistake of the user's.
    """
    check("serve")
    check_name(address["name"])
    token = read_token(address["host"], address["token_file"])
    at = Address(address["host"], address["port"], token, tuple(address["allowed"]), address["name"])
    if not config and not cluster_address():  # on a cluster, Serve may be there already
        check_port(at.host, at.port)
    for word in at.allowed:
        host_name(word)
    if at.allowed and not token:
        errors.print(f"note: whoever reaches {at.allowed[0]} may ask, as there is no token", markup=False)
    where, chosen = Storage.open(storage), Wanted(**wanted)
    least = read_replicas(replicas)
    choosing = IsolatedCall(choose_models, chosen, where)
    import_module("ray.serve")  # meanwhile
    models = choosing.result()
    print_lines(some(models, describe))
    if config:
        from retable.serve import application as of

        fixed = {name: {"num_replicas": number} for name, number in least.items()}
        arguments = of.arguments(models, where, at, chosen.index)
        if "://" in storage:  # with its options, without its secrets
            arguments = arguments.model_copy(update={"storage": redact(storage)})
        _write_config(config, of.config_file(arguments, at, fixed, of.served(models)))
        return
    with hangups() as heard, serving(models, where, at, chosen.index, least) as swap:
        while hangup(heard):
            models = watched(partial(renew, models, chosen, where, swap))


def hangup(heard: queue.SimpleQueue[int]) -> bool:
    """Wait for a SIGHUP while Ray lives; return whether there was one."""

    def told(seconds: float) -> bool:
        with suppress(queue.Empty):
            return bool(heard.get(timeout=seconds))
        return False

    return _lives_until(told)


def _lives_until(ended: Callable[[float], bool]) -> bool:
    """Wait, some seconds at a time, until that gives true; return whether Ray has lived as long."""
    missed = 0
    while missed < MISSED:
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


def _mute() -> None:
    """Send what would go to a terminal that is gone to nowhere: writing there fails, also while the server ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if not stream.isatty() and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):  # a file or a pipe goes on
            os.dup2(nowhere, stream.fileno())


def renew(models: Sequence[Model], wanted: Wanted, storage: Storage, swap: Swap) -> list[Model]:
    """Choose the models of the served tasks again; deploy changes, print them, and return the models."""
    try:
        available = IsolatedCall(choose_models, wanted, storage).result()
        tasks = list(dict.fromkeys(model.task for model in models))
        chosen = [
            m
            for task in tasks
            for m in ([m for m in available if m.task == task] or [m for m in models if m.task == task])
        ]
        old, new = ({model.sha256: model for model in some} for some in (models, chosen))
        if old.keys() == new.keys():
            console.print("chosen again: nothing has changed")
            return list(models)
        swap(chosen)
    except UserError as error:
        errors.print(f"note: {error}; what is served stays", markup=False)
        return list(models)
    for sha256 in new.keys() - old.keys():
        console.print(f"now: {describe(new[sha256])}", markup=False)
    for sha256 in old.keys() - new.keys():
        console.print(f"no longer: {describe(old[sha256])}", markup=False)
    return chosen


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
    from ray import serve

    from retable.serve import application

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    interrupt = Interrupt() if threading.current_thread() is threading.main_thread() else None
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM) if interrupt}
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
            raise SystemExit(128 + ((interrupt and interrupt.received) or signal.SIGINT)) from None
        console.print("draining: what was begun is answered")
    finally:
        if interrupt:  # a terminal that is closed now changes nothing more
            signal.signal(signal.SIGHUP, lambda number, frame: _mute())
        leave(name)
        for number, handler in before.items():
            signal.signal(number, handler)


def join(address: Address) -> Address:
    """Return where the cluster listens; from then on, the application's name there is this command's.

    Raises:
        UserError: where the name is another one's, or where others can reach the server and there is no token.
    """
    from ray import serve

    from retable.serve.application import NAME

    if not cluster_address():
        return address
    name, running_at = address.name or NAME, ray_compat.serve_address()
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
    import ray

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
        last = _exit_after(ENDING)
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
    from ray import serve

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
    from ray import serve
    from ray.exceptions import RayError

    from retable.serve.application import KEEP_ALIVE

    where: Json = {"host": address.host, "port": address.port, "keep_alive_timeout_s": KEEP_ALIVE}
    try:
        serve.start(proxy_location="HeadOnly", http_options=where, logging_config={"log_level": "WARNING"})
    except (RuntimeError, TimeoutError, RayError) as error:
        raise UserError(
            f"serve: its proxy does not start ({one_line(error)}); is the machine busy? try again"
        ) from error


def deploy(
    address: Address,
    arguments: Arguments,
    storage: Storage,
    scaling: Mapping[str, Json],
    models: Sequence[Model],
) -> None:
    """Deploy the application with these models and wait until it runs; a running one is updated.

    Raises:
        UserError: where a deployment does not come up.
    """
    from ray import serve
    from ray.exceptions import RayError

    from retable.serve.application import LOGS, NAME, assemble, served

    name, made = address.name or NAME, assemble(arguments, storage, served(models), scaling)
    if _leaving.is_set():  # an interrupt left `watched`, whose thread goes on
        raise UserError("serve: it is ending")
    try:
        serve.run(made, name=name, route_prefix=address.prefix, logging_config=LOGS)
    except (RuntimeError, TimeoutError, RayError) as error:
        raise UserError(f"serve: a deployment does not start: {reason(error, name)}") from error


def reason(error: Exception, name: str) -> str:
    """Return why an application does not start: the last line of what a replica says, or of the error."""
    from ray import serve
    from ray.exceptions import RayError

    texts = [str(error) or type(error).__name__]
    with suppress(RayError, TimeoutError):  # Serve's controller may be what is gone
        if running := serve.status().applications.get(name):
            failed = [each.message for each in running.deployments.values() if each.status == "DEPLOY_FAILED"]
            texts = failed or texts
    return texts[0].strip().splitlines()[-1].rpartition("UserError: ")[2]


def drain(name: str) -> None:
    """Wait until open requests are answered. Serve alone would close their connections first."""
    from ray import serve

    try:
        left = sum(serve.get_app_handle(name).broadcast("drain", PATIENCE).results(timeout_s=PATIENCE + 5))
    except Exception as error:  # whatever it is, the server ends
        console.print(f"note: not drained ({one_line(error)})", markup=False)
        return
    if left:
        console.print(f"note: {left} requests were not answered within {PATIENCE:g} s")


def check_cpus(wanted: Mapping[str, float]) -> float:
    """Return the CPUs that replicas leave; refuse what does not fit, as it would wait for ever.

    Raises:
        UserError: saying who wants how much.
    """
    import ray

    available = float(ray.available_resources().get("CPU", 0.0))  # type: ignore[no-untyped-call]
    total = round(sum(wanted.values()), 3)
    if total > available and not autoscales():
        parts = ", ".join(f"{name} {share:g}" for name, share in wanted.items())
        raise UserError(f"serve: {total:g} CPUs are wanted ({parts}) and {available:g} are free; name fewer tasks")
    return max(0.0, available - total)


def _write_config(file: str, text: str) -> None:
    """Write a config file of Serve, and say what to do with it.

    Raises:
        UserError: where it cannot be written.
    """
    try:
        Path(file).write_text(text)
    except OSError as error:
        raise UserError(f"--config-out {file}: it cannot be written ({error.strerror})") from error
    console.print(f"{file}: `serve deploy {file}` serves this, and serves it anew after a change", markup=False)


def read_replicas(words: Sequence[str]) -> dict[str, int]:
    """Return how many replicas are there at least, by deployment: `2` for each, `rl=2` for one.

    Raises:
        UserError: on anything else.
    """
    counts: dict[str, int] = {}
    for word in words:
        name, _, number = word.rpartition("=")
        if not number.isdecimal() or int(number) < 1 or (name and name not in (*servable(), "ingress")):
            raise UserError(f"--replicas {word}: wanted N, or TASK=N, of {', '.join(servable())}, ingress")
        counts |= dict.fromkeys([name] if name else [*servable(), "ingress"], int(number))
    return counts


def some(models: Sequence[Model], line: Callable[[Model], str]) -> Iterator[str]:
    """Yield a line for each of the first models of each task, and one for the rest: a storage may hold hundreds."""
    for task in dict.fromkeys(model.task for model in models):
        own = [model for model in models if model.task == task]
        yield from (line(model) for model in own[:FEW])
        if len(own) > FEW:
            yield f"{task}: and {len(own) - FEW} more; GET /v1/models lists them"


def show(models: Sequence[Model], address: Address) -> None:
    """Print the address, and a line for each endpoint: of policies one for each environment."""
    console.print(f"\n{address.url}/ is open; Ctrl-C ends it", markup=False)
    places = {(model.task, model.name): model for model in reversed(models)}
    print_lines(some(list(reversed(places.values())), lambda model: curl(model, address)))
    console.print(f"Prometheus: {', '.join(metrics_urls())}", markup=False, soft_wrap=True)


def metrics_urls() -> list[str]:
    """Return where Ray's nodes say how much was asked, and how fast it was answered."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in nodes]


def curl(model: Model, address: Address) -> str:
    """Return a line for a shell that asks a model."""
    from retable.serve.ingress.app import routes_for

    key = ' -H "Authorization: Bearer $RETABLE_TOKEN"' if address.token else ""
    options, place = routes_for(model.task).curl(model)
    return f"curl -s{key}{options} '{address.url}/v1/{model.task}{place}'"
