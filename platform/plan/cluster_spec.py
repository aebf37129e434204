"""Limits and prices of a cluster: a file of Ray's launcher or of KubeRay, and `prices.toml`.

Only files are read: no Ray is started and no cloud is asked.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retable.platform import ray_compat
from retable.platform.errors import UserError, nearest

SHIPPED = Path(__file__).with_name("prices.toml")
"""Example prices, which come with the package."""
_EXAMPLE = f"{SHIPPED} shows how"


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price and properties of one kind of machine."""

    hour: float
    """Money for an hour of a node."""
    spot: float | None = None
    """Money for an hour of a spot node."""
    gpu: str = ""
    """Its GPU, by PyTorch's name."""
    gpu_cores: float | None = None
    """CPU cores that one of its GPUs is worth, where no step time was measured."""
    cpus: float | None = None
    """CPUs of a node, where the cluster file does not say so; `gpus` likewise."""
    gpus: float | None = None


@dataclass(frozen=True, kw_only=True)
class Prices:
    """A user's `prices.toml`."""

    file: str
    currency: str
    gigabyte_month: float
    """Money for 1e9 bytes on the storage, a month."""
    instances: Mapping[str, Price]


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """One kind of node of a cluster."""

    name: str
    instance: str
    cpus: float
    gpus: float
    least: int
    """Nodes that are always there."""
    most: int
    hour: float
    """Money for an hour of one."""
    spot: bool
    gpu: str
    gpu_cores: float
    """CPU cores that one of its GPUs is worth; 0 where it has none."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A head, and workers that come and go."""

    head: NodeType
    workers: tuple[NodeType, ...]
    most: int
    """Workers of all kinds together."""
    idle: float
    """Hours that a node without work is kept."""


def prices_file() -> str:
    """Return `prices.toml` of the current folder if there is one, else the example prices of the package."""
    return "prices.toml" if Path("prices.toml").is_file() else str(SHIPPED)


def read_prices(file: str) -> Prices:
    """Read a `prices.toml`; every word of it is checked.

    Raises:
        UserError: naming the entry, and what it should be.
    """
    try:
        values = tomllib.loads(Path(file).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{file}: prices cannot be read ({_why(error)}); name a file by --prices; {_EXAMPLE}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file}: not a TOML file ({error}); {_EXAMPLE}") from error
    _known(file, values, ("currency", "gigabyte_month", "instances"))
    currency, entries = values.get("currency"), values.get("instances")
    if not isinstance(currency, str) or not currency:
        raise UserError(f'{file}: currency must be a word such as "USD"; {_EXAMPLE}')
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise UserError(f'{file}: instances must be sections such as [instances."g6.4xlarge"]; {_EXAMPLE}')
    return Prices(
        file=file,
        currency=currency,
        gigabyte_month=_number(file, "gigabyte_month", values.get("gigabyte_month")),
        instances={name: _price(file, name, entry) for name, entry in entries.items()},
    )


def _price(file: str, name: str, entry: Mapping[str, object]) -> Price:
    where = f'{file}: [instances."{name}"]'
    _known(where, entry, Price.__dataclass_fields__)
    gpu = entry.get("gpu", "")
    if not isinstance(gpu, str):
        raise UserError(f"{where}: gpu must be the name of a GPU; {_EXAMPLE}")
    numbers = {key: _number(where, key, value) for key, value in entry.items() if key != "gpu"}
    if "hour" not in numbers:
        raise UserError(f"{where}: hour, the price of a node for an hour, is missing; {_EXAMPLE}")
    return Price(gpu=gpu, **numbers)


def _known(where: str, entry: Mapping[str, object], names: Iterable[str]) -> None:
    for name in entry:
        if name not in names:
            raise UserError(f"{where}: there is no entry {name!r}{nearest(name, names)}")


def _number(where: str, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise UserError(f"{where}: {name} must be a number, 0 or more; {_EXAMPLE}")
    return float(value)


def read_cluster(file: str, prices: Prices) -> Cluster:
    """Read the node types of a cluster, with their prices.

    Args:
        file: of Ray's cluster launcher (checked by Ray's own schema), or a RayCluster, RayJob or RayService of KubeRay.
        prices: of the user.

    Raises:
        UserError: where it is no such file, says too little, or a price is missing.
    """
    import yaml

    try:
        documents = [document for document in yaml.safe_load_all(Path(file).read_text()) if document is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: the cluster file cannot be read ({_why(error)})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{file}: not a YAML file ({' '.join(str(error).split())})") from error
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise UserError(f"{file}: not a Ray cluster file; name one such as cluster.yaml")
    rays = [document for document in documents if str(document.get("apiVersion", "")).startswith("ray.io/")]
    try:
        document = _kuberay(file, rays[0], prices) if rays else _launcher(file, documents[0], prices)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise UserError(f"{file}: incomplete Ray cluster file ({type(error).__name__}: {error})") from error
    if document.most < 1 or not any(kind.cpus and kind.most for kind in document.workers):
        raise UserError(f"{file}: no worker with CPUs may ever start; raise max_workers and the CPUs of a worker type")
    return document


def _launcher(file: str, written: dict[str, object], prices: Prices) -> Cluster:
    config = _checked(file, written)
    kinds, head = config["available_node_types"], config["head_node_type"]
    node_types = {}
    for name, kind in kinds.items():
        node = kind["node_config"]
        machine = node.get("InstanceType") or node.get("machineType")  # AWS; Google
        machine = machine or node.get("azure_arm_parameters", {}).get("vmSize") or name
        limits = (int(kind.get("min_workers", 0)), int(kind.get("max_workers", 0)))
        node_types[name] = _node(file, name, str(machine), kind.get("resources") or {}, limits, spot(node), prices)
    workers = tuple(kind for name, kind in node_types.items() if name != head or kind.most)
    idle = float(config["idle_timeout_minutes"]) / 60
    return Cluster(head=node_types[head], workers=workers, most=int(config["max_workers"]), idle=idle)


def _checked(file: str, written: dict[str, object]) -> dict[str, Any]:
    """Return a launcher's file with Ray's defaults, checked by Ray's own schema."""
    import click
    import jsonschema

    remedy = "see https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html"
    logging.getLogger("ray.autoscaler").setLevel(logging.WARNING)  # it tells of each default
    if not isinstance(written.get("provider"), dict):
        raise UserError(f"{file}: not a Ray cluster file, as it has no provider; name one such as cluster.yaml")
    output = io.StringIO()  # Ray prints before it gives up
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            config = ray_compat.complete_cluster_config(written)
    except jsonschema.ValidationError as error:
        path = "/".join(map(str, error.absolute_path))
        raise UserError(f"{file}: not as Ray's cluster launcher wants it: {path}: {error.message}; {remedy}") from error
    except click.ClickException as error:
        why = " ".join(output.getvalue().split())
        raise UserError(f"{file}: not as Ray's cluster launcher wants it: {why}; {remedy}") from error
    except Exception as error:  # Ray raises whatever comes of what it does not expect
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"{file}: not as Ray's cluster launcher wants it: {why}; {remedy}") from error
    return config


def _kuberay(file: str, document: dict[str, Any], prices: Prices) -> Cluster:
    spec = document["spec"]
    spec = spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec  # RayJob; RayService
    head = _group(file, "head", spec["headGroupSpec"], (1, 1), prices)
    workers = []
    for group in spec.get("workerGroupSpecs", []):
        hosts = int(group.get("numOfHosts", 1))
        limits = (hosts * int(group.get("minReplicas", 0)), hosts * int(group.get("maxReplicas", 0)))
        workers.append(_group(file, group["groupName"], group, limits, prices))
    idle = float(spec.get("autoscalerOptions", {}).get("idleTimeoutSeconds", 60)) / 3600
    return Cluster(head=head, workers=tuple(workers), most=sum(kind.most for kind in workers), idle=idle)


def _group(file: str, name: str, group: dict[str, Any], limits: tuple[int, int], prices: Prices) -> NodeType:
    """Return a group of pods; a pod is taken to have its node to itself."""
    pod = group["template"]["spec"]
    container = pod["containers"][0].get("resources", {})
    amounts = container.get("requests", {}) | container.get("limits", {})
    resources = {"CPU": amounts.get("cpu", 0), "GPU": amounts.get("nvidia.com/gpu", 0)}
    resources = {
        kind: float(str(amount).removesuffix("m")) / (1000 if str(amount).endswith("m") else 1)
        for kind, amount in resources.items()
    }
    start = group.get("rayStartParams", {})
    overrides = {"CPU": start.get("num-cpus"), "GPU": start.get("num-gpus")}
    resources |= {kind: float(amount) for kind, amount in overrides.items() if amount is not None}
    machine = pod.get("nodeSelector", {}).get("node.kubernetes.io/instance-type", name)
    return _node(file, name, machine, resources, limits, spot(pod.get("nodeSelector", {})), prices)


def _node(
    file: str,
    name: str,
    machine: str,
    resources: Mapping[str, float],
    limits: tuple[int, int],
    is_spot: bool,
    prices: Prices,
) -> NodeType:
    """Return a node type with its price.

    Raises:
        UserError: where `prices.toml` lacks what must be known of it.
    """
    price = prices.instances.get(machine)
    if price is None:
        section = f'[instances."{machine}"]'
        raise UserError(
            f"{prices.file}: no price of {machine}, the node type {name} of {file}; add a section {section}"
        )
    where = f'{prices.file}: [instances."{machine}"]'
    cpus, gpus = resources.get("CPU", price.cpus), resources.get("GPU", price.gpus) or 0.0
    if cpus is None:
        raise UserError(
            f"{file}: the node type {name} has no resources; add `resources: {{CPU: 16}}` there, or cpus to {where}"
        )
    if is_spot and price.spot is None:
        raise UserError(f"{where}: spot, the price of a spot node for an hour, is missing; {name} in {file} is one")
    if gpus and not price.gpu_cores:
        raise UserError(f"{where}: gpu_cores is missing: the node type {name} has GPUs; {_EXAMPLE}")
    return NodeType(
        name=name,
        instance=machine,
        cpus=float(cpus),
        gpus=float(gpus),
        least=limits[0],
        most=limits[1],
        hour=price.spot if is_spot and price.spot is not None else price.hour,
        spot=is_spot,
        gpu=price.gpu,
        gpu_cores=price.gpu_cores or 0.0,
    )


def spot(node: Mapping[str, object]) -> bool:
    """Return whether a node's settings ask for a spot node, on AWS, Google, Azure or by a Kubernetes selector."""
    for key, value in _leaves(node):
        named = "spot" in key.lower() or "preemptible" in key.lower()
        if str(value).lower() == "spot" or (named and str(value).lower() == "true"):
            return True
    return False


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not text"
