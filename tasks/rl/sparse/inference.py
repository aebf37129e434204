"""Act with pruned networks on a CPU in less time than with dense ones, from one member's ordinary weights.

What makes it faster, in the order of what it gives:
- Layers of which few weights are left are kept in CSR, with 32-bit indices, and activations are features first,
  (features, batch): a row of the product is then a sum of few contiguous rows. Batch first is slower than dense.
- Only what acting needs is there: the VAE's decoder and, for BCQ, the actor and the critic's first head.
- Units without a path to an output are left out. Units without a path from an input are constants, relu(bias), which
  the next layer's biases take up.

Actions equal those of `model.bcq_action` and `model.bc_action` within 1e-5 for the same noise, as far as arithmetic in
another order allows: of two candidates whose values are equal to rounding, BCQ may choose the other one, and episodes
that differ in the last digit may part later on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from retable.tasks.rl.model import BC_CLIP, BCQ_CLIP
from retable.tasks.rl.sparse.training import use_up_the_warning_of_csr

SPARSE_BELOW = 0.2
"""Share of non-zero weights below which a layer is kept in CSR: the largest at which that is no slower than dense for a
layer of the VAE's width at any batch of 1 to 1000, as `benchmarks/rl_inference.py` measures."""
BLOCK = 256
"""Columns that go through all layers before the next do: so many activations of 750 units fit a core's cache."""
DECODER, ACTOR, VALUE = (tuple(f"{name}{i}" for i in (1, 2, 3)) for name in ("vae.d", "actor.l", "critic.l"))
ACTING = {"bc": DECODER, "bcq": DECODER + ACTOR + VALUE}
"""The layers that each policy needs."""
Act = Callable[[Float[Tensor, "batch state"], Float[Tensor, "candidates latent"]], Float[Tensor, "batch action"]]
"""Maps observations and N(0, 1) noise to actions; rows [i n, (i + 1) n) of the noise belong to observation i."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer on features-first activations: `weight` (out, in), dense or CSR, and `bias` (out,)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, inputs: Float[Tensor, "inputs ..."]) -> Float[Tensor, "outputs ..."]:
        """Apply the layer to one vector or to columns."""
        if inputs.dim() == 1:
            return torch.addmv(self.bias, self.weight, inputs)
        return torch.addmm(self.bias.unsqueeze(1), self.weight, inputs)


def pays(weights: Sequence[Tensor]) -> bool:
    """Return whether CSR is faster than dense for these weights, since few of them are not 0.

    Never where PyTorch lacks Intel's MKL, whose sparse products these are.
    """
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    kept = sum(int(torch.count_nonzero(weight)) for weight in weights)
    return kept < SPARSE_BELOW * sum(weight.numel() for weight in weights)


def wins(weights: Mapping[str, Tensor], policy: Literal["bcq", "bc"]) -> bool:
    """Return whether a policy acts faster with `bcq` or `bc` of this module than with the dense ones of `model`.

    It does where less than `SPARSE_BELOW` of the weights that it needs are not 0. Weights that are not finite never do:
    0 x NaN is NaN in dense networks alone, and a training that diverged has to be seen.
    """
    used = [weights[f"{layer}.weight"] for layer in ACTING[policy]]
    biases = [weights[f"{layer}.bias"] for layer in ACTING[policy]]
    return pays(used) and all(bool(value.isfinite().all()) for value in used + biases)


def condense(layers: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Leave out the hidden units of a ReLU network that no input reaches or that reach no output.

    Args:
        layers: weight (out, in) and bias (out,) of each layer, from inputs to outputs; any floating type.

    Returns:
        Layers that compute the same function, in the same type. Inputs and outputs stay; a layer may have no units.

    """
    weights, biases = [weight for weight, _ in layers], [bias for _, bias in layers]
    for i in range(len(layers) - 1):  # from the inputs on: a unit fed by constants alone is one too
        fed = (weights[i] != 0).any(1)
        biases[i + 1] = biases[i + 1] + weights[i + 1][:, ~fed] @ torch.relu(biases[i][~fed])
        weights[i], biases[i], weights[i + 1] = weights[i][fed], biases[i][fed], weights[i + 1][:, fed]
    for i in reversed(range(len(layers) - 1)):
        leading = (weights[i + 1] != 0).any(0)
        weights[i], biases[i], weights[i + 1] = weights[i][leading], biases[i][leading], weights[i + 1][:, leading]
    return list(zip(weights, biases, strict=True))


def csr(weight: Float[Tensor, "outputs inputs"]) -> Tensor:
    """Turn a matrix into CSR with 32-bit indices, which MKL takes as they are (it would copy 64-bit ones)."""
    use_up_the_warning_of_csr()
    wide = weight.to_sparse_csr()
    rows, columns = wide.crow_indices().int(), wide.col_indices().int()
    return torch.sparse_csr_tensor(rows, columns, wide.values(), weight.shape, check_invariants=True)


def network(weights: Mapping[str, Tensor], names: Sequence[str]) -> list[Layer]:
    """Return the named layers without unconnected units, each dense or in CSR, whichever is faster."""
    layers = condense([(weights[f"{name}.weight"].detach(), weights[f"{name}.bias"].detach()) for name in names])
    return [Layer(csr(weight) if pays([weight]) else weight.contiguous(), bias) for weight, bias in layers]


def forward(layers: Sequence[Layer], inputs: Float[Tensor, "inputs batch"]) -> Float[Tensor, "outputs batch"]:
    """Apply layers with ReLU between them: `BLOCK` columns at a time, one alone as a vector, in half the time."""
    if inputs.shape[1] == 1:
        return _apply(layers, inputs[:, 0]).unsqueeze(1)
    return torch.cat([_apply(layers, columns) for columns in torch.split(inputs, BLOCK, 1)], 1)


def _apply(layers: Sequence[Layer], hidden: Tensor) -> Tensor:
    for layer in layers[:-1]:
        hidden = layer(hidden).relu_()
    return layers[-1](hidden)


def bcq(weights: Mapping[str, Tensor], max_action: float, perturbation: float) -> Act:
    """Build BCQ's acting rule, `model.bcq_action`, from one member's weights as `model.unstack` names them.

    Args:
        weights: `vae.d1.weight` (out, in), `vae.d1.bias` (out,) and so on, of decoder, actor and critic l1 to l3.
        max_action: bound of every action dimension.
        perturbation: how far the actor moves an action, as a share of `max_action`.

    Raises:
        ValueError: where weights of the actor or the critic are missing, as after behaviour cloning; and, when called,
            where the noise has no whole number of candidates.

    """
    if not all(f"{name}.weight" in weights for name in ACTING["bcq"]):
        raise ValueError("policy bcq needs an actor and a critic; this run trained the VAE alone (policy bc)")
    decoder, actor, value = (network(weights, names) for names in (DECODER, ACTOR, VALUE))

    def act(observations: Tensor, noise: Tensor) -> Tensor:
        samples, rest = divmod(len(noise), len(observations))
        if rest or not samples:
            raise ValueError(f"{len(noise)} rows of noise are no multiple of {len(observations)} observations")
        states = observations.T.repeat_interleave(samples, 1)
        latents = noise.T.clamp(-BCQ_CLIP, BCQ_CLIP)
        actions = max_action * torch.tanh(forward(decoder, torch.cat((states, latents))))
        moved = perturbation * max_action * torch.tanh(forward(actor, torch.cat((states, actions))))
        actions = (actions + moved).clamp(-max_action, max_action)
        best = forward(value, torch.cat((states, actions))).view(len(observations), samples).argmax(1)
        return actions.T[best + samples * torch.arange(len(observations))]

    return act


def bc(weights: Mapping[str, Tensor], max_action: float) -> Act:
    """Build behaviour cloning's acting rule, `model.bc_action`, from one member's decoder; see `bcq`."""
    decoder = network(weights, DECODER)

    def act(observations: Tensor, noise: Tensor) -> Tensor:
        inputs = torch.cat((observations.T, noise.T.clamp(-BC_CLIP, BC_CLIP)))
        return max_action * torch.tanh(forward(decoder, inputs)).T

    return act
