"""`retable serve`: choose, export, start Ray or join it, say what is served and how to ask it, drain at the end."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import os
import shlex
import signal
import socket
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from retable.platform.board import console
from retable.platform.cluster import Interrupt, autoscales, cluster_address, cluster_resources, start_ray
from retable.platform.errors import UserError, one_line
from retable.platform.storage import Storage
from retable.serve.choice import choose_models
from retable.serve.limits import LIMITS
from retable.serve.models import Model

NAME = "retable"
"""What Serve calls the application."""
GPU_SHARE = 0.2
"""Of a GPU, where there is one: all tasks that use it fit on one."""
SHORTEST_TOKEN = 16
PATIENCE = 20.0
"""Seconds that what was begun has to be answered when the server ends."""


@dataclass(frozen=True)
class Address:
    """Where the server listens, and the token that it asks for."""

    host: str
    port: int
    token: str = ""

    @property
    def url(self) -> str:
        """What clients open."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def digest(self) -> str:
        """What the replicas know of the token."""
        return hashlib.sha256(self.token.encode()).hexdigest() if self.token else ""


def run(
    tasks: Sequence[str],
    runs: Sequence[str],
    zoo: bool,
    storage: str,
    host: str,
    port: int,
    token_file: str,
    index: str,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        UserError: on a mistake of the user's.
    """
    check_extra()
    address = Address(host, port, read_token(host, token_file))
    check_port(host, port)
    where = Storage.open(storage)
    models = choose_models(tasks, runs, zoo, where, index)
    for model in models:
        console.print(describe(model), markup=False, highlight=False)
    with serving(models, where, address, index):
        show(models, address)
        threading.Event().wait()


def check_extra() -> None:
    """Refuse where what serving needs is not installed.

    Raises:
        UserError: saying how to install it.
    """
    try:
        import_module("ray.serve")
        import_module("fastapi")
    except ImportError as error:
        raise UserError("serve needs an extra: pip install 'retable[serve]'") from error


def read_token(host: str, file: str) -> str:
    """Return the token: of RETABLE_TOKEN or a file that is its owner's alone; none is needed on a loopback address.

    Raises:
        UserError: where one is needed and there is none, it is short, or others can read the file.
    """
    token, where = os.environ.get("RETABLE_TOKEN", ""), "RETABLE_TOKEN"
    if file:
        path, where = Path(file).expanduser(), file
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise UserError(f"{file}: others can read it; run `chmod 600 {shlex.quote(file)}`")
            token = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: no token can be read there; write one: `openssl rand -hex 32`") from error
    if not token and not file and loopback(host):
        return ""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        missing = "no token" if not token else f"the token of {where} is no {SHORTEST_TOKEN} letters or digits"
        raise UserError(f"--host {host}: {missing}; set RETABLE_TOKEN, or --token-file FILE: `openssl rand -hex 32`")
    return token


def loopback(host: str) -> bool:
    """Say whether only this machine can reach a host's address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_port(host: str, port: int) -> None:
    """Refuse an address that nothing can listen on.

    Raises:
        UserError: naming it.
    """
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port}: nothing can listen there ({error}); choose another") from error


@contextmanager
def serving(models: Sequence[Model], storage: Storage, address: Address, index: str = "") -> Iterator[None]:
    """Serve models while the block runs, until a signal; then answer what was begun, and end.

    Raises:
        UserError: where Ray does not start, the machine is too small, or a deployment does not come up.
    """
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    interrupt = Interrupt() if threading.current_thread() is threading.main_thread() else None
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM) if interrupt}
    try:
        start_ray(nested=False, interrupt=interrupt)
        application = deploy(models, str(storage), address.digest, index)
        where: Any = {"host": address.host, "port": address.port, "keep_alive_timeout_s": 65}
        serve.start(proxy_location="HeadOnly", http_options=where, logging_config={"log_level": "WARNING"})
        try:
            serve.run(application, name=NAME, route_prefix="/")
        except RuntimeError as error:
            raise UserError(f"serve: a deployment does not start: {str(error).strip().splitlines()[-1]}") from error
        yield
    except KeyboardInterrupt:
        console.print("draining: what was begun is answered")
    finally:
        if ray.is_initialized():
            drain()
            if cluster_address():
                serve.delete(NAME)
            ray.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)


def drain() -> None:
    """Wait for the answers to what was begun. Serve alone would close the connections first."""
    from ray import serve

    try:
        left = serve.get_app_handle(NAME).drain.remote(PATIENCE).result(timeout_s=PATIENCE + 5)
    except Exception as error:  # whatever it is, the server ends
        console.print(f"note: not drained ({one_line(error)})", markup=False)
        return
    if left:
        console.print(f"note: {left} requests were not answered within {PATIENCE:g} s")


def deploy(models: Sequence[Model], storage: str, token: str, index: str) -> Any:
    """Return the Serve application: a deployment for each task, and the ingress before them.

    Raises:
        UserError: where the machine has too few CPUs for them.
    """
    ingress: Any = import_module("retable.serve.app").Ingress
    tasks = list(dict.fromkeys(model.task for model in models))
    deployments = {task: import_module(f"retable.serve.{task}").DEPLOYMENT for task in tasks}
    wanted = {task: deployment.ray_actor_options["num_cpus"] for task, deployment in deployments.items()}
    check_cpus(wanted | {"ingress": ingress.ray_actor_options["num_cpus"]})
    gpu = GPU_SHARE if cluster_resources().get("GPU", 0) else 0
    handles = {}
    for task, deployment in deployments.items():
        options = {"num_cpus": wanted[task], "num_gpus": 0 if task == "rl" else gpu}
        own = [model for model in models if model.task == task]
        chosen = deployment.options(ray_actor_options=options, max_constructor_retry_count=2)
        more = (str(Path(index).absolute()),) if task == "audio" else ()
        handles[task] = chosen.bind(own, storage, max(1, round(wanted[task])), *more)
    return ingress.bind(list(models), handles, token, LIMITS, storage)


def check_cpus(wanted: dict[str, float]) -> None:
    """Refuse more replicas than the machine has CPUs for: what does not fit would wait for ever.

    Raises:
        UserError: saying who wants how much.
    """
    import ray

    there = float(ray.available_resources().get("CPU", 0.0))  # type: ignore[no-untyped-call]
    total = round(sum(wanted.values()), 3)
    if total > there and not autoscales():
        parts = ", ".join(f"{name} {share:g}" for name, share in wanted.items())
        raise UserError(f"serve: {total:g} CPUs are wanted ({parts}) and {there:g} are free; name fewer tasks")


def describe(model: Model) -> str:
    """Say what is served, and why."""
    name = f"{model.task}/{model.name}" + (f" {model.variant}" if model.variant else "")
    about = model.about
    known = [f"run {str(about['fingerprint'])[:8]}"] if about.get("fingerprint") else []
    known += [f"{key} {about[key]}" for key in ("scale", "data") if about.get(key)]
    return f"{name}: {'; '.join([model.why, *known, f'file {model.sha256[:8]}'])}"


def show(models: Sequence[Model], address: Address) -> None:
    """Print the address, and a line for each endpoint."""
    console.print(f"\n{address.url}/ is open; Ctrl-C ends it", markup=False, highlight=False)
    for line in dict.fromkeys(curl(model, address) for model in models):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def curl(model: Model, address: Address) -> str:
    """Return a line for a shell that asks a model."""
    key = ' -H "Authorization: Bearer $RETABLE_TOKEN"' if address.token else ""
    url = f"{address.url}/v1/{model.task}"
    if model.task == "rl":
        states = model.about.get("states", 17)
        row = json.dumps({"observations": [[0] * states]}, separators=(",", ":"))
        variant = f"?model={model.variant}" if model.variant else ""
        return f"curl -s{key} --json '{row}' '{url}/{model.name}{variant}'"
    if model.task == "style":
        return f"curl -s{key} --data-binary @photograph.jpg '{url}/{model.name}?size=1024' -o {model.name}.png"
    if model.task == "audio":
        return f"curl -s{key} '{url}?q=a+dog+barks&top=5'"
    region = next(iter(model.about.get("regions", ())), "")
    return f"curl -s{key} --data-binary @images.npz '{url}?region={region}' -o forecast.npz"
