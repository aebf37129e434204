"""The Serve application: which deployments there are, and how a configuration makes them.

`retable serve` and Serve's config files (`import_path: retable.serve.application:build`) make it alike. Nothing here
imports a task or Torch: replicas do, by the names of their classes.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from ray import serve

from retable.platform.errors import UserError
from retable.platform.execute.session import cluster_resources
from retable.platform.ray_compat import deployment_by_name
from retable.platform.store.storage import Storage
from retable.serve.ingress.limits import LIMITS
from retable.serve.ingress.replies import Json
from retable.serve.launch.address import Address, host_name
from retable.serve.launch.choice import Wanted, check_servable, choose_models
from retable.serve.launch.models import Model, by_task, config_of, first_error

NAME = "retable"
"""Name of the application in Serve, unless it is given another one."""
KEEP_ALIVE = 65
"""Seconds that a connection stays open without a request; longer than the minute of usual proxies before it."""
LOGS = {"encoding": "JSON", "log_level": "INFO", "enable_access_log": False}
"""A line of JSON for each request and for what fails, with the request's id, in the folder of Ray's logs."""
_GPU_SHARE = 0.2
"""Of a GPU, where there is one: all tasks that use it fit on one."""


def _valid(check: Callable[[str], str | None]) -> AfterValidator:
    """Return a validator by which a field becomes what `check` returns, or is refused with its UserError's text."""

    def valid(word: str) -> str:
        try:
            return check(word) or word
        except UserError as error:
            raise PydanticCustomError("word", "{why}", {"why": str(error).removeprefix("serve: ")}) from error

    return AfterValidator(valid)


Task = Annotated[str, _valid(check_servable)]


@dataclass(frozen=True)
class Deployment:
    """Settings of a deployment: its class, and the resources and queue of each replica."""

    path: str
    """The class. A name: who deploys need not import it, which would take seconds and 300 MB."""
    cpus: float
    """Reserved for each replica; all four tasks, jobs and the ingress fit on two."""
    ongoing: int
    """Requests that a replica has, those included that wait for their turn: with more, Serve's router slows down."""
    places: int = 0
    """Requests that a replica answers at once: at least a batch, and what is decoded meanwhile."""
    wait: float = 0.0
    """Seconds that a request waits for its turn; then it is refused with 503."""
    queued: int = -1
    """Requests that wait for a replica to come; more are refused with 503. -1: any number."""
    gpu: bool = True
    """Whether it computes on a GPU, where there is one."""
    gets_models: bool = True
    """Whether it hears which models are served."""
    searches: bool = False
    """Whether it is made with the `index` of the arguments."""
    has_jobs: bool = False
    """Whether the deployment `_JOBS` is started beside it."""

    def options(self) -> Json:
        """Return the deployment's options for Serve."""
        gpus = _GPU_SHARE if self.gpu and cluster_resources().get("GPU", 0) else 0
        return {
            "user_config": {"models": []} if self.gets_models else None,
            "ray_actor_options": {"num_cpus": self.cpus, "num_gpus": gpus},
            "max_ongoing_requests": self.ongoing,
            "max_queued_requests": self.queued,
            "graceful_shutdown_wait_loop_s": 0.2,
            "health_check_period_s": 5,
            "max_constructor_retry_count": 2,
        }


CLASSES = "retable.serve.deployments"
_INGRESS = Deployment("retable.serve.ingress.app.Ingress", cpus=0.2, ongoing=4096, gpu=False)
DEPLOYMENTS: Mapping[str, Deployment] = {
    "weather": Deployment(f"{CLASSES}.weather.Forecasters", 0.5, ongoing=64, places=8, wait=20, queued=32),
    "style": Deployment(f"{CLASSES}.style.Styles", 0.5, ongoing=64, places=8, wait=20, queued=32, has_jobs=True),
    "audio": Deployment(f"{CLASSES}.audio.Retrieval", 0.4, ongoing=2048, places=64, wait=5, queued=256, searches=True),
    "rl": Deployment(f"{CLASSES}.rl.Policies", 0.3, ongoing=2048, places=128, wait=5, queued=512, gpu=False),
}
_OTHERS = Deployment(f"{CLASSES}.answers.Answers", 0.3, ongoing=64, places=4, wait=20, queued=32, gpu=False)
"""Of each task beside these: it answers files, as its module `answer` does."""
_JOBS = Deployment(f"{CLASSES}.jobs.Jobs", cpus=0.1, ongoing=8, queued=32, gets_models=False)
"""Videos, where styles are served; always one replica, which has the folder."""


def _deployment_of(task: str) -> Deployment:
    """Return how replicas of a task run."""
    return DEPLOYMENTS.get(task, _OTHERS)


class Arguments(BaseModel):
    """`args` of a Serve config file. What is not here is refused: Serve itself would pass over it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    storage: str = "results"
    """Storage of exported files and runs; every node reads it."""
    tasks: tuple[Task, ...] = ()
    """Tasks that are served; none: the papers' tasks that have something to serve."""
    models: Literal["zoo", "best", "user_config"] = "user_config"
    """Source of the models: files of the tasks, best runs of the storage, or those that `user_config` names."""
    index: Annotated[str, AfterValidator(lambda path: path and str(Path(path).absolute()))] = ""
    """Of recordings: what audio searches; replicas run elsewhere."""
    token_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """Of the token that requests need."""
    hosts: tuple[Annotated[str, _valid(host_name)], ...] = ()
    """Names under which the server answers; none: any."""
    wait_seconds: dict[Task, Annotated[float, Field(gt=0, le=120)]] = {}
    """That a request waits for its turn, by task; a task that is not named has its own, `DEPLOYMENTS`."""

    client_requests: Annotated[int, Field(ge=0)] = LIMITS.client_requests
    """Of one address at once, beyond this machine's own; 0: any number, as behind a balancer, which is one address."""

    @model_validator(mode="after")
    def complete(self) -> Arguments:
        """Refuse what says too little.

        Raises:
            ValueError: naming the field.
        """
        if not self.token_sha256 and not self.hosts:
            raise ValueError("token_sha256 is needed; without one, `hosts` has to name this machine's own: [localhost]")
        if self.models == "user_config" and not self.tasks:
            raise ValueError("tasks are needed, as user_config names the models")
        return self


def build(args: dict[str, object]) -> serve.Application:
    """Return the application that a config file's `args` describe; Serve calls it, on the cluster.

    Raises:
        UserError: in one line, where `args` hold anything unknown or wrong, or there is nothing to serve.
    """
    try:
        arguments = Arguments.model_validate(args)
    except ValidationError as error:
        raise UserError(f"args: {first_error(error)}") from None  # Serve shows all that led to it
    storage = Storage.open(arguments.storage)
    arguments = arguments.model_copy(update={"storage": str(storage)})
    if arguments.models == "user_config":
        return assemble(arguments, storage)
    models = choose_models(Wanted(arguments.tasks, zoo=arguments.models == "zoo", index=arguments.index), storage)
    return assemble(arguments.model_copy(update={"tasks": tuple(by_task(models))}), storage, served(models))


def arguments(models: Sequence[Model], storage: Storage, address: Address, index: str) -> Arguments:
    """Return what a config file says of models that were chosen."""
    return Arguments(
        storage=str(storage),
        tasks=tuple(by_task(models)),
        index=index,
        token_sha256=hashlib.sha256(address.token.encode()).hexdigest() if address.token else "",
        hosts=address.names,
    )


def served(models: Sequence[Model]) -> dict[str, Json]:
    """Return options of each deployment that say what is served: the same list for all, of which each takes its own."""
    config = config_of(models)
    return {name: {"user_config": config} for name in ("ingress", *by_task(models))}


def http_options(address: Address) -> Json:
    """Return the options of Serve's proxy: where it listens, and for how long a connection stays open."""
    return {"host": address.host, "port": address.port, "keep_alive_timeout_s": KEEP_ALIVE}


def reserved(tasks: Sequence[str], least: Mapping[str, int]) -> dict[str, float]:
    """Return the CPUs that the replicas of each deployment reserve that are always there."""
    named = {task: _deployment_of(task) for task in tasks} | {"ingress": _INGRESS}
    if any(_deployment_of(task).has_jobs for task in tasks):
        named["jobs"] = _JOBS
    return {name: of.cpus * least.get(name, 1) for name, of in named.items()}


def scaling(tasks: Sequence[str], least: Mapping[str, int], spare: float, cores: int) -> dict[str, Json]:
    """Return options of each deployment that say how many replicas there are.

    Args:
        tasks: which.
        least: deployment -> replicas that are always there; 1 where it is not said.
        spare: CPUs that these leave; with them, a task gets more replicas while it has much to do.
        cores: replicas of a task at most: each computes with one thread.
    """
    settings: dict[str, dict[str, object]] = {"ingress": {"num_replicas": least.get("ingress", 1)}}
    for task in tasks:
        always, of = least.get(task, 1), _deployment_of(task)
        most = max(always, min(cores, always + int(spare / of.cpus + 1e-6)))
        # Each replica has half of what it may have at once: then another one starts.
        limits = {"min_replicas": always, "max_replicas": most, "target_ongoing_requests": of.places / 2}
        settings[task] = {"autoscaling_config": limits} if most > always else {"num_replicas": always}
    return settings


def assemble(arguments: Arguments, storage: Storage, *options: Mapping[str, Mapping[str, object]]) -> serve.Application:
    """Return the application: a deployment for each task, and the ingress before them.

    Args:
        arguments: what all share.
        storage: theirs, which replicas get as it is: its text has neither secrets nor the options of a URI.
        *options: deployment -> more options of Serve's, such as `user_config`.
    """
    # Serve starts all replicas again where the version differs. It changes with what they are started with, and so not
    # where `user_config` alone is another one.
    pickled = pickle.dumps(storage.filesystem)  # the address and the region of a bucket, which its text lacks
    version = hashlib.sha256(arguments.model_dump_json().encode() + pickled).hexdigest()[:16]

    def made(name: str, deployment: Deployment) -> Any:
        own = deployment.options()
        for more in options:
            own |= more.get(name, {})
        return deployment_by_name(deployment.path, name, version, **own)

    handles: dict[str, object] = {}
    for task in arguments.tasks:
        of = _deployment_of(task)
        given = {"index": arguments.index} if of.searches else {}
        wait = arguments.wait_seconds.get(task, of.wait)
        handles[task] = made(task, of).bind(storage, task, **given, places=of.places, wait=wait)
        if of.has_jobs:
            handles["jobs"] = made("jobs", _JOBS).bind(storage)
    limits = replace(LIMITS, client_requests=arguments.client_requests)
    application: serve.Application = made("ingress", _INGRESS).bind(
        handles, arguments.token_sha256, arguments.hosts, limits, storage
    )
    return application


def config_file(arguments: Arguments, address: Address, *options: Mapping[str, Mapping[str, object]]) -> str:
    """Return the config file of Serve that makes the same application: for `serve deploy`, or a RayService."""
    import yaml

    names = ["ingress", *arguments.tasks]
    deployments = [{"name": name} | {k: v for more in options for k, v in more.get(name, {}).items()} for name in names]
    application = {
        "name": address.name or NAME,
        "route_prefix": address.prefix,
        "import_path": "retable.serve.application:build",
        "args": arguments.model_dump(mode="json", exclude_defaults=True),
        "logging_config": LOGS,
        "deployments": deployments,
    }
    content = {
        "proxy_location": "EveryNode",
        "http_options": http_options(address),
        "applications": [application],
    }
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120))
