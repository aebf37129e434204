"""How many bytes a network takes in a file, as the paper stores it."""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch
from torch import Tensor


def file_bytes(state: Mapping[str, Tensor]) -> int:
    """Count the bytes of the file that `torch.save` makes of a state dict, container included."""
    file = io.BytesIO()
    # A saved view drags its whole storage along: a member's slice of a stack would count all members.
    torch.save({name: value.detach().cpu().clone() for name, value in state.items()}, file)
    return file.getbuffer().nbytes


def stored_bytes(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Count the file bytes of a state dict: as it is (`dense`) and with every tensor `.to_sparse()` (`sparse`).

    Source: Arnob et al. 2021, section 4.3 and Table 1, whose MB are 1e6 bytes of the file. Biases are stored sparse
    too. COO keeps an int64 index per dimension and value: 20 bytes per kept weight, 12 per non-zero bias.
    """
    return {
        "dense": file_bytes(state),
        "sparse": file_bytes({name: value.detach().to_sparse() for name, value in state.items()}),
    }
