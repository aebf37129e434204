"""Weights files: loaded without running code, checked, and stored under their digest.

`<storage>/weights/<sha256>.safetensors` holds what was imported; a config names it by that digest.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.store.run import contiguous, sha256
from retable.platform.store.storage import Storage
from retable.platform.text import and_more


def read_bytes(file: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        UserError: where it cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from error


def metadata(data: bytes) -> dict[str, str] | None:
    """Return the metadata of a safetensors file, which begins with its header and the length of that; else None."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length]) if length <= len(data) - 8 else None
    except ValueError:
        return None
    return header.get("__metadata__", {}) if isinstance(header, dict) else None


def read_tensors(file: Path, data: bytes, hint: str, *names: str, integers: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a PyTorch or safetensors file; code in it is never run.

    Those of a checkpoint lie under one of the names in `_WRAPPERS`, or under one inside another; of a checkpoint with
    other names the inner dictionary with the most tensors is read.

    Args:
        file: what an error calls it.
        data: its bytes.
        hint: ends an error: which files are known.
        names: see `unwrapped`.
        integers: whether counters are wanted too, not only floating-point numbers.

    Raises:
        UserError: where they are no state dict.
    """
    try:
        state = load(data) if metadata(data) is not None else _loaded(file, data, hint)
    except UserError:
        raise
    except Exception as error:  # unpickling a broken file raises almost anything
        # torch's own message advises to load the file unsafely
        raise UserError(f"{file}: no file of tensors and plain values, or not the whole file; {hint}") from error
    for _ in _WRAPPERS:  # a dictionary may hold itself
        if isinstance(state, dict):
            state = next((state[key] for key in _WRAPPERS if isinstance(state.get(key), dict)), state)
    if not isinstance(state, dict):
        raise UserError(f"{file}: no state dict but a {type(state).__name__}; {hint}")
    tensors = _named(state) or _named(_fullest(state))
    if not tensors and state:
        raise UserError(f"{file}: no tensors by name, but {and_more([str(key)[:40] for key in state], 4)}; {hint}")
    sound = {
        name: value.detach()
        for name, value in tensors.items()
        if (integers or value.is_floating_point()) and value.layout == torch.strided and value.numel() <= len(data)
    }  # a repeated number can claim to be a tensor of any size
    return unwrapped(sound, *names)


def _named(state: Mapping[object, object]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor)}


def _fullest(state: dict[object, object]) -> dict[object, object]:
    """Return the dictionary with the most named tensors, this one or one inside it; the first of equals."""
    candidates, seen = [state], {id(state)}
    for candidate in candidates:  # it grows meanwhile; a dictionary may hold itself
        for value in candidate.values():
            if isinstance(value, dict) and id(value) not in seen:
                seen.add(id(value))
                candidates.append(value)
    return max(candidates, key=lambda candidate: len(_named(candidate)))


class _Unread:
    """Stands in for settings of a library that is not installed: accepts them and does nothing."""

    def __new__(cls, *_: object, **__: object) -> Any:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


class _UnreadDict(_Unread):
    """The same for a subclass of `dict`: the reader fills nothing but a plain one."""

    def __new__(cls, *_: object, **__: object) -> Any:
        return {}


class _UnreadList(_Unread):
    """The same for what is filled like a list."""

    def __new__(cls, *_: object, **__: object) -> Any:
        return []


_SETTINGS = (
    *("sacred.", "omegaconf.", "pytorch_lightning.", "lightning.", "argparse.Namespace", "types.SimpleNamespace"),
    *("numpy.", "datetime.", "zoneinfo.", "decimal.", "fractions.", "uuid.", "pathlib.", "collections."),
)
"""Modules of values that checkpoints hold beside tensors: settings, scores and times. These values are not read: an
inert class takes the place of each that PyTorch's safe reader does not allow by itself."""
_PLAIN = frozenset(
    f"builtins.{name}" for name in ("dict", "list", "set", "frozenset", "int", "float", "str", "complex", "slice")
)
"""Python's own types, treated likewise."""
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "network", "net", "module", "weights", "params")
"""Names under which checkpoints keep a network's state dict."""


def _loaded(file: Path, data: bytes, hint: str) -> object:
    """Unpickle plain values and tensors by PyTorch's safe reader; other containers and values become empty ones.

    Raises:
        UserError: where the file names something else, which would run code.
    """
    try:
        named = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
    except ValueError:  # a file of before PyTorch 1.6: no archive
        named = []
    if code := sorted(name for name in named if not name.startswith(_SETTINGS) and name not in _PLAIN):
        holds = f"it holds {', '.join(code[:3])}, whose code is not run"
        raise UserError(f"{file}: no file of tensors and plain values: {holds}; {hint}")
    # One class for each name: the reader wants to know them apart.
    unread = [(type("Unread", (_stub(name),), {}), name) for name in named]
    with torch.serialization.safe_globals(unread):  # type: ignore[arg-type]
        return torch.load(io.BytesIO(data), "cpu", weights_only=True)


def _stub(name: str) -> type[_Unread]:
    """Return what stands for a class or function of a name."""
    if name.lower().endswith(("dict", ".counter")):
        return _UnreadDict
    return _UnreadList if name.endswith(".deque") else _Unread


def unwrapped(tensors: Mapping[str, Tensor], *names: str, part: str = "") -> dict[str, Tensor]:
    """Return a network's tensors by its own names, without the prefix of a wrapper: `module.`, `model.`, `net.`, ...

    The first of `names` that ends a tensor's name says what stands before all of the network's; tensors that have
    another beginning are not the network's. Where none of `names` is there, all are returned as they are.

    Args:
        tensors: all of a file.
        names: of tensors that the network has.
        part: which one is meant where a file holds several, such as `net_swa`; none: that of the shortest name.

    Raises:
        ValueError: where there is no such part.
    """
    prefixes = wrappers(tensors, *names)
    if part:
        prefixes = [prefix for prefix in prefixes if part.strip(".") in prefix.split(".")]
        if not prefixes:
            raise ValueError(f"it has no part {part!r}")
    if not prefixes:
        return dict(tensors)
    prefix = prefixes[0]
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def wrappers(tensors: Mapping[str, Tensor], *names: str) -> list[str]:
    """Return what stands before the names of a network's tensors; of one that is held twice, the shorter first."""
    for wanted in names:
        matches = [name for name in tensors if name == wanted or name.endswith(f".{wanted}")]
        if matches:
            return [name.removesuffix(wanted) for name in sorted(matches, key=len)]
    return []


def check(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Check that tensors have exactly the names and shapes of `like`, with finite values.

    Raises:
        ValueError: where not, naming one.
    """
    if missing := sorted(like.keys() - tensors.keys()):
        raise ValueError(f"{missing[0]} is missing")
    if surplus := sorted(tensors.keys() - like.keys()):
        raise ValueError(f"{surplus[0]} is not of this network")
    for name, wanted in like.items():
        if tensors[name].shape != wanted.shape:
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(wanted.shape)}")
    check_finite(tensors)


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Check that all values are finite.

    Raises:
        ValueError: where not, naming a tensor.
    """
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise ValueError(f"{name} has values that are no finite numbers")


def sealed(tensors: Mapping[str, Tensor], kind: str = "", fields: Mapping[str, object] | None = None) -> bytes:
    """Return a safetensors file of tensors and, under the name `kind`, fields; the same content gives the same file.

    The fields are one JSON text, as safetensors puts several in any order.
    """
    return save(contiguous(tensors), metadata={kind: json.dumps(fields, sort_keys=True)} if kind else None)


def unsealed(data: bytes, kind: str) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and fields of what `sealed` made.

    Raises:
        KeyError: where it is of another kind.
        ValueError: where its fields are no JSON.
        SafetensorError: where it is no such file.
    """
    return load(data), json.loads((metadata(data) or {})[kind])


def keep(data: bytes, storage: Storage) -> str:
    """Write a safetensors file as `<storage>/weights/<sha256>.safetensors`; return that digest."""
    digest = sha256(data)
    storage.write(f"weights/{digest}.safetensors", data)
    return digest


def stored(digest: str, storage: Storage | None, remedy: str, kind: str = "") -> tuple[dict[str, Tensor], Any]:
    """Read a file that was kept: its tensors, and the fields of its kind; none where no kind is asked for.

    Args:
        digest: which one.
        storage: where it lies; none: nowhere.
        remedy: ends an error: how one comes by the file.
        kind: as `sealed` was given.

    Raises:
        UserError: where the file is missing, changed, or of another kind.
    """
    path = f"weights/{digest}.safetensors"
    where = f"{storage}/{path}" if storage else path
    data = storage.read(path) if storage and storage.exists(path) else b""
    if sha256(data) != digest:
        raise UserError(f"{where} is missing or is another file; {remedy}")
    try:
        return unsealed(data, kind) if kind else (load(data), None)
    except (SafetensorError, KeyError, ValueError) as error:
        what = f"holds no weights of the kind {kind}" if kind else "is no safetensors file"
        raise UserError(f"{where} {what}; {remedy}") from error
