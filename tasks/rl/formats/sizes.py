"""Bytes that networks take in files: as the paper stores them, in other published formats, and in ours."""

from __future__ import annotations

import io
import lzma
from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import pyarrow
import torch
from jaxtyping import Float
from torch import Tensor

from retable.platform.errors import UserError
from retable.tasks.rl.formats.compact import assemble, deployable, encode
from retable.tasks.rl.formats.precisions import COMPACT
from retable.tasks.rl.play.states import by_network


def saved(state: Mapping[str, Tensor]) -> bytes:
    """Return the file that `torch.save` makes of a state dict."""
    file = io.BytesIO()
    # A saved view drags its whole storage along: a member's slice of a stack would count all members.
    torch.save({name: value.detach().cpu().clone() for name, value in state.items()}, file)
    return file.getvalue()


def file_bytes(state: Mapping[str, Tensor]) -> int:
    """Count the bytes of the file that `torch.save` makes of a state dict, container included."""
    return len(saved(state))


def archived_bytes(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Count the bytes of the dense file after `xz -9` and `zstd -19`: what a sparse format has to beat.

    All networks of a run take 7 s of one core.
    """
    file = saved(state)
    return {"xz": len(lzma.compress(file, preset=9)), "zstd": pyarrow.Codec("zstd", 19).compress(file).size}


def stored_bytes(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Count the file bytes of a state dict in the formats that are published; all are written by `torch.save`.

    `dense` is the state dict as it is, `sparse` every tensor `.to_sparse()`: COO with an int64 index per dimension and
    value, 20 bytes per kept weight, 12 per non-zero bias, since biases are stored sparse too. The others keep biases
    dense and are written as the plain tensors that they consist of: `csr_int64` and `csr_int32` (row starts, columns,
    values), `coo_int16` (rows, columns, values) and `bitmask` (one bit per weight, then the values).

    Source: Arnob et al. 2021, section 4.3 and Table 1, whose MB are 1e6 bytes of the file.
    """
    weights = {name: value.detach().cpu() for name, value in state.items() if value.dim() == 2}
    others: dict[str, dict[str, Tensor]] = {
        form: {name: value for name, value in state.items() if value.dim() != 2}
        for form in ("csr_int64", "csr_int32", "coo_int16", "bitmask")
    }
    for name, weight in weights.items():
        for form, parts in _parts(weight).items():
            others[form] |= {f"{name}.{part}": value for part, value in parts.items()}
    return {
        "dense": file_bytes(state),
        "sparse": file_bytes({name: value.detach().to_sparse() for name, value in state.items()}),
        **{form: file_bytes(parts) for form, parts in others.items()},
    }


def _parts(weight: Float[Tensor, "outputs inputs"]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors that each format but the paper's consists of."""
    kept = weight != 0
    values = weight[kept]
    rows, columns = kept.nonzero(as_tuple=True)
    starts = torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0))
    bits = torch.from_numpy(np.packbits(kept.numpy()))
    return {
        "csr_int64": {"starts": starts, "columns": columns, "values": values},
        "csr_int32": {"starts": starts.int(), "columns": columns.int(), "values": values},
        "coo_int16": {"rows": rows.short(), "columns": columns.short(), "values": values},
        "bitmask": {"kept": bits, "values": values},
    }


def every_size(weights: Mapping[str, Tensor], archives: bool = False) -> dict[str, float]:
    """Count the file bytes of one run's weights (`vae.e1.weight`, ...) in every format: `bytes/<what>/<format>`.

    What: each network, `all` of them (a file for each), and what acting needs, `deployable_bc` and `deployable_bcq`, in
    one file, dense or compact. `smaller/<what>/<format>` is how many times smaller than the dense files of all networks
    `all` and `deployable_...` are. What a precision cannot hold (NaN in int8) has no number. With
    `archives` each network has `archived_bytes` too.
    """
    networks = by_network(weights)
    policies = ("bc", "bcq") if "actor" in networks else ("bc",)
    acting = {f"deployable_{policy}": deployable(weights, policy) for policy in policies}
    counts = {what: {"dense": file_bytes(state)} for what, state in acting.items()}
    for network, parameters in networks.items():
        counts[network] = stored_bytes(parameters) | (archived_bytes(parameters) if archives else {})
    names = {network: [f"{network}.{name}" for name in parameters] for network, parameters in networks.items()}
    for form, precision in COMPACT.items():
        with suppress(UserError):
            encoded = {name: encode(value, precision, name) for name, value in weights.items()}
            for what, held in {**names, **acting}.items():
                counts[what][form] = len(assemble({name: encoded[name] for name in held}, precision))
    counts["all"] = {form: sum(counts[network][form] for network in networks) for form in counts["vae"]}
    counted = {f"bytes/{what}/{form}": float(size) for what, sizes in counts.items() for form, size in sizes.items()}
    ratios = {
        f"smaller/{what}/{form}": counts["all"]["dense"] / size
        for what in ("all", *acting)
        for form, size in counts[what].items()
    }
    return counted | ratios
