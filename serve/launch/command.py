"""`retable serve`: chooses and exports models, and serves them, or writes a config file that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from retable.platform.console import console, errors, print_lines
from retable.platform.errors import UserError, redact
from retable.platform.execute.session import cluster_address
from retable.platform.spec.extras import check
from retable.platform.store.storage import Storage
from retable.serve.deployments.subprocess_call import ProgressProcess
from retable.serve.ingress.replies import Json
from retable.serve.launch.address import Address, check_name, check_port, host_name, read_token
from retable.serve.launch.choice import Wanted, choose_models, servable
from retable.serve.launch.models import Model, by_task, describe, some


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
    read_replicas(replicas, servable())  # before models are exported, which takes a while
    choosing = ProgressProcess(_choose, chosen, where)
    from retable.serve import application
    from retable.serve.launch import server  # imports Ray Serve meanwhile

    models = choosing.wait()
    least = read_replicas(replicas, list(by_task(models)))
    print_lines(some(models, describe))
    if config:
        fixed = {name: {"num_replicas": number} for name, number in least.items()}
        arguments = application.arguments(models, where, at, chosen.index)
        if "://" in storage:  # with its options, without its secrets
            arguments = arguments.model_copy(update={"storage": redact(storage)})
        _write_config(config, application.config_file(arguments, at, fixed, application.served(models)))
        return
    with server.hangups() as heard, server.serving(models, where, at, chosen.index, least) as swap:
        while server.hangup(heard):
            models = server.watched(partial(renew, models, chosen, where, swap))


def _choose(tell: Callable[[object], None], wanted: Wanted, storage: Storage) -> list[Model]:
    """Choose models in a process of its own: what exporting imports and reads is released with it."""
    return choose_models(wanted, storage)


def renew(
    models: Sequence[Model], wanted: Wanted, storage: Storage, swap: Callable[[Sequence[Model]], set[str]]
) -> list[Model]:
    """Choose the models of the served tasks again; deploy changes, print them, and return the models."""
    try:
        available = by_task(ProgressProcess(_choose, wanted, storage).wait())
        chosen = [model for task, own in by_task(models).items() for model in available.get(task, own)]
        old, new = ({model.sha256: model for model in some} for some in (models, chosen))
        if old.keys() == new.keys():
            console.print("chosen again: nothing has changed")
            return list(models)
        answering = swap(chosen)
    except UserError as error:
        errors.print(f"note: {error}; what is served stays", markup=False)
        return list(models)
    for sha256 in new.keys() - answering:
        errors.print(f"note: {describe(new[sha256])} is not served (Ray's log says why); what is stays", markup=False)
    for sha256 in answering - old.keys():
        console.print(f"now: {describe(new[sha256])}", markup=False)
    for sha256 in old.keys() - answering:
        console.print(f"no longer: {describe(old[sha256])}", markup=False)
    return [model for sha256, model in (old | new).items() if sha256 in answering]


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


def read_replicas(words: Sequence[str], tasks: Sequence[str]) -> dict[str, int]:
    """Return how many replicas of `tasks` and the ingress are there at least: `2` for each, `rl=2` for one.

    Raises:
        UserError: on anything else.
    """
    counts: dict[str, int] = {}
    for word in words:
        name, _, number = word.rpartition("=")
        if not number.isdecimal() or int(number) < 1 or (name and name not in (*tasks, "ingress")):
            raise UserError(f"--replicas {word}: wanted N, or TASK=N, of {', '.join(tasks)}, ingress")
        counts |= dict.fromkeys([name] if name else [*tasks, "ingress"], int(number))
    return counts
