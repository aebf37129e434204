"""Committed expert policies: small networks that record data in a simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from retable.platform.spec.arrays import Array

POLICIES = Path(__file__).parent / "policies"


class Policy:
    """A deterministic policy: rectified linear layers, then tanh. `layers` holds `(weight (out, in), bias (out,))`."""

    def __init__(self, layers: Sequence[tuple[Array, Array]]) -> None:
        self.layers = [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers]

    def __call__(self, observations: Array) -> Array:
        """Map observations (batch, states) to actions (batch, actions) in [-1, 1]."""
        hidden = observations.astype(np.float32)
        for position, (weight, bias) in enumerate(self.layers):
            hidden = hidden @ weight.T + bias
            hidden = np.maximum(hidden, 0) if position < len(self.layers) - 1 else np.tanh(hidden)
        return hidden

    @staticmethod
    def load(environment: str) -> tuple[Policy, Mapping[str, object]]:
        """Return the committed policy of an environment (without version, `Hopper`) and its provenance."""
        tensors = load_file(POLICIES / f"{environment}.safetensors")
        layers = [(tensors[f"{i}.weight"], tensors[f"{i}.bias"]) for i in range(len(tensors) // 2)]
        return Policy(layers), json.loads((POLICIES / f"{environment}.json").read_text())

    def save(self, environment: str, provenance: Mapping[str, object]) -> None:
        """Write the policy and where it is from into the folder of committed policies."""
        POLICIES.mkdir(exist_ok=True)
        named = {
            f"{i}.{kind}": np.ascontiguousarray(array)
            for i, layer in enumerate(self.layers)
            for kind, array in zip(("weight", "bias"), layer, strict=True)
        }
        save_file(named, POLICIES / f"{environment}.safetensors")
        (POLICIES / f"{environment}.json").write_text(json.dumps(provenance, indent=2, sort_keys=True) + "\n")
