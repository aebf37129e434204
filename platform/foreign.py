"""Weights that others trained: read without running what a file may hold, and kept under their digest."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from retable.platform.errors import UserError
from retable.platform.storage import Storage


def read_tensors(file: Path, data: bytes, known: str) -> dict[str, Tensor]:
    """Read a PyTorch file's tensors of floating-point numbers, or those of its `model`; code in it is never run.

    Args:
        file: what an error calls it.
        data: its bytes.
        known: ends an error: which files are known.

    Raises:
        UserError: where they are no state dict.
    """
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling a broken file raises almost anything
        # torch's own message advises to load the file unsafely
        raise UserError(f"{file}: no file of tensors and plain values, or not the whole file; {known}") from error
    if isinstance(state, dict) and isinstance(state.get("model"), dict):
        state = state["model"]
    if not isinstance(state, dict):
        raise UserError(f"{file}: no state dict but a {type(state).__name__}; {known}")
    tensors = {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor)}
    return {
        name: value.detach()
        for name, value in tensors.items()
        if value.is_floating_point() and value.layout == torch.strided and value.numel() <= len(data)
    }  # a repeated number can claim to be a tensor of any size


def seal(tensors: Mapping[str, Tensor], kind: str, fields: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return a safetensors file of tensors and fields, and its SHA-256; the same content gives the same file.

    The fields are one JSON text under the name `kind`, as safetensors puts several in any order. The file belongs at
    `<storage>/weights/<sha256>.safetensors`.
    """
    whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    made = save(whole, metadata={kind: json.dumps(fields, sort_keys=True)})
    return hashlib.sha256(made).hexdigest(), made


def unseal(digest: str, kind: str, storage: Storage | None, command: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the fields and tensors of a file that `seal` made; `command` is the one that imports such a file.

    Raises:
        UserError: where the file is missing, changed, or of another kind.
    """
    path = f"weights/{digest}.safetensors"
    where = f"{storage}/{path}" if storage else path
    data = storage.read(path) if storage and storage.exists(path) else b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{where} is missing or is another file; import it by `{command}`")
    try:
        tensors = load(data)
        (length,) = np.frombuffer(data[:8], "<u8")
        fields: dict[str, Any] = json.loads(json.loads(data[8 : 8 + int(length)])["__metadata__"][kind])
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{where} holds no weights of the kind {kind}; use `{command}`") from error
    return fields, tensors
