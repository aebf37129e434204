"""The files that are served: each lies under its own digest, and a replica reads that one or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from retable.platform.errors import UserError, nearest
from retable.platform.models import export
from retable.platform.spec.table import Origin
from retable.platform.store.storage import Storage
from retable.platform.text import grouped
from retable.serve.ingress.replies import Json, Problem, plain_line

_HEADERS = {
    "Run": "fingerprint",
    "Cell": "cell",
    "Scale": "scale",
    "Data": "data",
    "Score": "score",
    "Commit": "commit",
    "Versions": "versions",
}
"""Header -> what the file says of itself that every answer repeats, where it is known."""
FEW = 8
"""Models of one task that are told of, a line each."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """One exported file and its metadata."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    task: str
    name: str
    """Name that a request uses: an environment, a style, a model."""
    variant: str = ""
    """Tells models of one name apart: `dense`, `snip-95`, a run's first digits."""
    sha256: str
    why: str = ""
    """Reason why this model is served."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the file, see `platform.models.export`; all of it may be absent."""

    def headers(self) -> dict[str, str]:
        """Return the headers of its answers."""
        name = f"{self.task}/{self.name}" + (f"/{self.variant}" if self.variant else "")
        headers = {"Model": name, "Digest": self.sha256}
        headers |= {key: self.about[entry] for key, entry in _HEADERS.items() if self.about.get(entry)}
        return {f"X-Retable-{key}": header(value) for key, value in headers.items()}


def by_task(models: Iterable[Model]) -> dict[str, list[Model]]:
    """Return the models of each task, in their order."""
    return grouped((model.task, model) for model in models)


def describe(model: Model) -> str:
    """Print what is served, and why."""
    name = f"{model.task}/{model.name}" + (f" {model.variant}" if model.variant else "")
    about = model.about
    facts = [f"run {str(about['fingerprint'])[:8]}"] if about.get("fingerprint") else []
    facts += [f"{key} {about[key]}" for key in ("cell", "scale", "data") if about.get(key)]
    return f"{name}: {'; '.join([model.why, *facts, f'file {model.sha256[:8]}'])}"


def some(models: Sequence[Model], line: Callable[[Model], str]) -> Iterator[str]:
    """Yield a line for each of the first models of each task, and one for the rest: a storage may hold hundreds."""
    for task, own in by_task(models).items():
        yield from (line(model) for model in own[:FEW])
        if len(own) > FEW:
            yield f"{task}: and {len(own) - FEW} more; GET /v1/models lists them"


def header(value: object) -> str:
    """Return a value as a header holds it: one line of ASCII."""
    text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
    return plain_line(text).encode("ascii", "replace").decode()


def keep(data: bytes, storage: Storage, **entries: Any) -> Model:
    """Write a file where replicas look for it, unless it is there; return its model."""
    return Model(sha256=export.keep(entries["task"], data, storage), **entries)


def config_of(models: Sequence[Model]) -> Json:
    """Return Serve's `user_config`: what is served, the same for each deployment."""
    return {"models": [asdict(model) for model in models]}


def models_of(config: Mapping[str, object]) -> list[Model]:
    """Return the models that Serve's `user_config` names.

    Raises:
        UserError: where it is anything else, in one line.
    """
    try:
        if set(config) != {"models"}:
            raise UserError(f"user_config: wanted `models`, and nothing else; got {', '.join(config) or 'nothing'}")
        models = TypeAdapter(list[Model]).validate_python(config["models"])
    except ValidationError as error:
        raise UserError(f"user_config: {first_error(error)}") from error
    if not models:
        raise UserError("user_config: no models; `retable serve --config-out FILE` writes them")
    return models


def first_error(error: ValidationError) -> str:
    """Return the first thing that is wrong with a configuration, in one line."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg'].lower()}"


def choose(models: Sequence[Model], name: str, variant: str, what: str) -> Model:
    """Return the model that a request names by its name, its variant or digest, or both; the first of several.

    Raises:
        Problem: where there is none; it names the nearest.
    """
    named = [model for model in models if not name or model.name.lower() == name.lower()]
    if not named:
        raise Problem(404, f"no {what} {name!r} is served{nearest(name, {model.name for model in models})}")
    matches = [model for model in named if not variant or variant in (model.variant, model.sha256)]
    if not matches:
        hint = nearest(variant, filter(None, {model.variant for model in named})) or "; leave out model"
        raise Problem(404, f"no model {variant!r} of {name or what}{hint}")
    return matches[0]


def fills(model: Model, origin: Origin) -> bool:
    """Return whether a model is a run at the epoch that was read; true if its file does not state its epochs."""
    if not origin.run or model.about.get("fingerprint") != origin.run:
        return False
    epoch, config = model.about.get("epoch"), model.about.get("config")
    last = config.get("epochs") if isinstance(config, dict) else None
    wanted = (origin.view or {}).get("epoch") or last
    return epoch is None or wanted is None or wanted == epoch
