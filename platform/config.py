"""Configs: frozen dataclasses that change in one way only, and the fingerprint that names a run.

A config is a frozen, keyword-only dataclass whose defaults are the paper's values. A choice is a field whose type is a
union of small dataclasses: `prune: Dense | Snip | Grasp`. It is selected by the class's name in snake case
(`prune=snip`), and only then do its own fields exist (`prune.sparsity=0.9`), so that no field is ever dead.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import shlex
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from retable.platform.errors import UserError, nearest

C = TypeVar("C")
OwnConfig: TypeAlias = Any
"""A config of the task's own class; the platform knows of it what `Config` says."""
OwnView: TypeAlias = Any
"""A view of the task's own class; the platform knows of it what `View` says."""
Fields: TypeAlias = dict[str, Any]
"""Path of a field -> its value."""

CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
"""JSON encoder of fingerprints; created once, as there are many."""


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """Start from freshly initialised weights."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Start from a weights file, named by its content: `<storage>/weights/<sha256>.safetensors`."""

    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Parent:
    """Start from another run of the same task: the config `override(Config(), overrides)`, at `checkpoint`.

    `checkpoint` is the number of the epoch, counted from 1; 0 means the last.
    """

    overrides: tuple[tuple[str, Any], ...] = ()
    checkpoint: int = 0


class UnknownField(UserError):
    """A config has no field at a path."""


class Config(Protocol):
    """Base of all configs: a frozen, keyword-only dataclass with these fields, and `init` if runs build on runs."""

    @property
    def seed(self) -> int:
        """Seed of initialisation, order and noise."""

    @property
    def epochs(self) -> int:
        """The number of epochs that a run trains."""


class View(Protocol):
    """Base of all views: a frozen dataclass of settings that can change without training again."""

    @property
    def epoch(self) -> int:
        """After which epoch; 0: the last."""


def override(config: C, changes: Mapping[str, object], prefix: str = "") -> C:
    """Return `config` with the fields at the dotted paths changed, e.g. `{"prune": "snip", "prune.sparsity": 0.9}`.

    A choice is made before its fields are set, and all fields are set before any is checked against another: the order
    of `changes` does not matter. `prefix` stands before the paths in errors.

    Raises:
        UserError: on an unknown path (naming the nearest valid one), a value of the wrong type, or values that do not
            go together.
    """
    kind: object = type(config)
    hints = field_types(kind)
    own: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in changes.items():
        name, dot, rest = path.partition(".")
        if name not in hints:
            paths = (prefix + key for key in flatten(config))
            raise UnknownField(f"unknown field {prefix + path!r}{nearest(prefix + path, paths)}")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            own[name] = convert(value, hints[name], prefix + name)
    for name, below in inner.items():
        chosen = own.get(name, getattr(config, name))
        _check_chosen(chosen, hints[name], prefix + name, below)
        if not dataclasses.is_dataclass(chosen):
            dotted = f"{prefix}{name}.{next(iter(below))}"
            raise UserError(f"unknown field {dotted!r}: {prefix + name!r} has no fields of its own")
        own[name] = override(chosen, below, f"{prefix}{name}.")
    try:
        return dataclasses.replace(config, **own)  # type: ignore[type-var]
    except (ValueError, ArithmeticError, TypeError) as error:  # a config computes with its fields when it is made
        raise UserError(f"{', '.join(prefix + name for name in own)}: {error}") from error


def _check_chosen(chosen: object, hint: object, path: str, below: Mapping[str, object]) -> None:
    """Refuse fields that another choice has, as the choice is to be made first, and those that none has."""
    fields = {
        kind: field_types(kind)
        for kind in typing.get_args(hint)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    }
    for name in dict.fromkeys(inner.partition(".")[0] for inner in below):
        if name in getattr(chosen, "__dataclass_fields__", ()):
            continue
        having = [choice_name(kind) for kind, names in fields.items() if name in names]
        if having:
            choices = " or ".join(f"{path}={choice}" for choice in having)
            now = choice_name(type(chosen)) if dataclasses.is_dataclass(chosen) else chosen
            raise UserError(f"{path}.{name}: choose {choices} first; it is now {now}")
        if fields:
            paths = {f"{path}.{field_name}" for names in fields.values() for field_name in names}
            raise UserError(f"unknown field '{path}.{name}'{nearest(f'{path}.{name}', paths)}")


def convert(value: object, hint: object, path: str) -> object:
    """Check `value` against the type of the field at `path`; lists become tuples, whole numbers become floats.

    Raises:
        UserError: naming the path, the value, and what was expected.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value if not isinstance(value, list) else tuple(value)
    if origin is typing.Literal:
        if value in arguments and type(value) in {type(argument) for argument in arguments}:
            return value
        raise UserError(f"{path}: {value!r} is not one of {', '.join(map(str, arguments))}{_meant(value, arguments)}")
    if origin in (typing.Union, types.UnionType):
        return _choose(value, arguments, path)
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            raise UserError(f"{path}: {value!r} is not a list; write {path}={json.dumps([value], default=str)}")
        inner = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(inner) != len(value):
            raise UserError(f"{path}: {value!r} should hold {len(inner)} values")
        return tuple(convert(item, kind, path) for item, kind in zip(value, inner, strict=True))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{path}: a whole number of {len(str(abs(value)))} digits is too large") from None
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{path}: {value!r} is not a finite number")
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise UserError(f"{path}: {value!r} is not {_article(getattr(hint, '__name__', str(hint)))}")


def _choose(value: object, options: tuple[Any, ...], path: str) -> object:
    classes: dict[str, Any] = {choice_name(option): option for option in options if dataclasses.is_dataclass(option)}
    if type(value) in classes.values():
        return override(type(value)(), flatten(value))  # an instance made by hand is checked as a path's value would be
    if isinstance(value, str) and value in classes:
        return classes[value]()
    plain = [option for option in options if not dataclasses.is_dataclass(option)]
    for option in plain:
        if option is type(None) and value is None:
            return None
        if option is not type(None):
            try:
                return convert(value, option, path)
            except UserError:
                continue
    names = [*classes, *(word for option in plain for word in _choices(option))]
    raise UserError(f"{path}: {value!r} is not one of {', '.join(names)}{_meant(value, tuple(names))}")


def _meant(value: object, options: tuple[object, ...]) -> str:
    hint = nearest(str(value), [str(option) for option in options])
    return hint if "did you mean" in hint else ""


def _choices(hint: object) -> list[str]:
    """Return in words what a type that is no config takes."""
    if typing.get_origin(hint) is typing.Literal:
        return [str(choice) for choice in typing.get_args(hint)]
    return [_article(getattr(hint, "__name__", str(hint)))]


def _article(name: str) -> str:
    words = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "NoneType": "null"}
    return words.get(name, f"a {name}")


@functools.cache
def field_types(config: Any) -> dict[str, Any]:
    """Return a dataclass's field names and their resolved types."""
    hints = typing.get_type_hints(config)
    return {field.name: hints[field.name] for field in dataclasses.fields(config)}


def choice_name(option: Any) -> str:
    """Return the name that selects a choice: the class's name in snake case, `SmallDense` -> `small_dense`."""
    return _snake_case(option.__name__)


@functools.cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def flatten(config: object) -> Fields:
    """Return every field as path -> value; overriding the defaults with them gives the config back.

    A choice appears twice: its name at its own path, and its fields below.
    """
    flat: Fields = {}
    kind: object = type(config)
    for name, is_choice, _ in _field_kinds(kind):
        value = getattr(config, name)
        if not hasattr(value, "__dataclass_fields__"):
            flat[name] = value
            continue
        if is_choice:
            flat[name] = choice_name(type(value))
        for path, inner in flatten(value).items():
            flat[f"{name}.{path}"] = inner
    return flat


@functools.cache
def _field_kinds(config: Any) -> list[tuple[str, bool, dataclasses.Field[object]]]:
    """Return a dataclass's field names, each with whether it is a choice, and its definition."""
    unions, hints = (typing.Union, types.UnionType), field_types(config)
    fields = dataclasses.fields(config)
    return [(field.name, typing.get_origin(hints[field.name]) in unions, field) for field in fields]


def differences(config: object, default: object) -> Fields:
    """Return the paths at which `config` differs from `default`: the shortest `--set` list that gives it.

    Where the choice itself differs, its fields are compared with that choice's own defaults.
    """
    different: Fields = {}
    kind: Any = type(config)
    for name in field_types(kind):
        value, other = getattr(config, name), getattr(default, name)
        if value is other:
            continue
        if not hasattr(value, "__dataclass_fields__"):
            if value != other:
                different[name] = value
            continue
        inner: Any = type(value)
        if inner is not type(other):
            different[name], other = choice_name(inner), inner()
        different |= {f"{name}.{path}": changed for path, changed in differences(value, other).items()}
    return different


def parent(config: C) -> C | None:
    """Return the config of the run that `config` starts from, or None where it starts from no run."""
    init = init_of(config)
    return override(type(config)(), dict(init.overrides)) if isinstance(init, Parent) else None


def lineage(config: C) -> list[C]:
    """Return a config, and those of the runs that it descends from, the first of them last."""
    configs = [config]
    while (ancestor := parent(configs[-1])) is not None:
        configs.append(ancestor)
    return configs


def init_of(config: object) -> Scratch | Parent | Weights:
    """Return how a config's run is initialized; `Scratch` if its task has no such field."""
    start: Scratch | Parent | Weights = getattr(config, "init", Scratch())
    return start


def override_lineage(config: C, changes: Mapping[str, object]) -> C:
    """Override `config` and every run it descends from, as a scale, a seed or `--set` does.

    A change that the parent has no field for (it made another choice) is left out there, and so is one of `init`,
    which says what a run itself starts from. Changes that state the parent itself (`init.overrides`) leave it as they
    state it: so the `--set` options of a finished run give exactly that run.
    """
    config = override(config, changes)
    ancestor = parent(config)
    if ancestor is None or "init.overrides" in changes:
        return config
    inherited: dict[str, object] = {}
    for path, value in sorted(changes.items(), key=lambda item: item[0].count(".")):  # choices before their fields
        if path in flatten(override(ancestor, inherited)) and path.split(".")[0] != "init":
            inherited[path] = value
    changed = override_lineage(ancestor, inherited)
    overrides = tuple(differences(changed, type(config)()).items())
    return override(config, {"init.overrides": overrides})


def check(config: object, *names: str, least: float = 1, above: bool = False) -> None:
    """Refuse fields of a config below `least`, with `above` also those equal to it; of a tuple its smallest counts.

    Raises:
        ValueError: naming the field and its value.
    """
    for name in names:
        value = getattr(config, name)
        smallest = min(value) if isinstance(value, tuple) else value
        if not (smallest > least if above else smallest >= least):
            raise ValueError(f"{name} {smallest} is {'not above' if above else 'below'} {least}")


def added(default: object) -> Any:
    """Return a config's field that came later: with its default it enters no fingerprint, so runs keep their names."""
    return dataclasses.field(default=default, metadata={"added": True})


def _as_before(config: object, prefix: str = "") -> Iterator[str]:
    """Return the paths of added fields that have their defaults."""
    kind: object = type(config)
    for name, _, field in _field_kinds(kind):
        value = getattr(config, name)
        if hasattr(value, "__dataclass_fields__"):
            yield from _as_before(value, f"{prefix}{name}.")
        elif "added" in field.metadata and value == field.default:
            yield f"{prefix}{name}"


def naming(config: object) -> dict[str, object]:
    """Return the fields that a config or a view is named by: all but those `added` that have their default."""
    flat = flatten(config)
    for path in _as_before(config):
        del flat[path]
    return flat


def fingerprint(task: str, version: int, config: object) -> str:
    """Return the name of a config's run: 16 hexadecimal digits of a hash over task, version and fields.

    A parent enters by its own fingerprint; a field that was `added` and has its default does not.
    """
    flat = naming(config)
    ancestor = parent(config)
    if ancestor is not None:
        flat["init.overrides"] = fingerprint(task, version, ancestor)
    text = CANONICAL.encode([task, version, flat])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def exact_changes(config: object) -> Fields:
    """Return the `--set` list that gives exactly this config, with the parent as it is (`override_lineage`)."""
    kind: Any = type(config)
    changes = differences(config, kind())
    if parent(config) is not None:
        changes.setdefault("init.overrides", getattr(config, "init").overrides)  # noqa: B009 (not every config has it)
    return changes


def set_line(changes: Mapping[str, object]) -> str:
    """Return changes as `--set` options to paste; `parse_set` reads them."""
    pairs = [f"{path}={value if _plain(value) else json.dumps(value)}" for path, value in changes.items()]
    return " ".join(f"--set {shlex.quote(pair)}" for pair in pairs)


def _plain(value: object) -> bool:
    """Return whether a text can stand without quotes: one that is JSON itself, such as `1`, would be read as that."""
    try:
        json.loads(str(value))
    except ValueError:
        return isinstance(value, str)
    return False


def describe(changes: Mapping[str, object]) -> str:
    """Write changes as one reads them."""
    words = {path: f"{value:.4g}" if isinstance(value, float) else value for path, value in changes.items()}
    return " ".join(f"{path}={value}" for path, value in words.items())


def changes_of(wanted: Mapping[str, object] | Sequence[str] | None) -> dict[str, object]:
    """Return changes as they are written in Python, `{"seed": 1}`, or as on the command line, `["seed=1"]`.

    NumPy's scalars and arrays, and one-element tensors, become plain values; tuples and ranges become lists, which are
    several values of a replicate axis.

    Raises:
        UserError: where they are neither.
    """
    if wanted is None:
        return {}
    if isinstance(wanted, str):
        wanted = [wanted]
    if isinstance(wanted, Mapping) and all(isinstance(path, str) for path in wanted):
        plain = {path: plain_value(value) for path, value in wanted.items()}
        return {path: list(value) if isinstance(value, (tuple, range)) else value for path, value in plain.items()}
    if isinstance(wanted, Sequence) and all(isinstance(assignment, str) for assignment in wanted):
        return parse_set(list(wanted), "set")
    raise UserError(f'set={wanted!r}: write it as {{"seed": 1}} or as ["seed=1"]')


def plain_value(value: object) -> object:
    """Convert a value of NumPy or PyTorch to a plain Python value."""
    if isinstance(value, (list, tuple)):
        return type(value)(plain_value(item) for item in value)
    convert = getattr(value, "tolist", None)  # both have it, for scalars too
    return convert() if callable(convert) else value


def parse_set(assignments: list[str], option: str = "--set") -> dict[str, object]:
    """Parse `--set path=value` assignments; values are read as JSON where they are JSON, else as text.

    Raises:
        UserError: where an assignment has no `=`, or a path is given twice with different values.
    """
    changes: dict[str, object] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"{option} {assignment}: write it as path=value, e.g. {option} seed=3")
        path = path.strip()
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if path in changes and changes[path] != value:
            raise UserError(f"{option} {path}: two values are given; leave one out, or write a list, '{path}=[A,B]'")
        changes[path] = value
    return changes
