"""Train a pruned layer without its pruned weights: the same numbers as masked dense training, in less time and memory.

Masks never change, so a layer's pattern is made once. Values, gradients and Adam's moments are then vectors of the kept
weights alone, and a layer needs three products, with activations features first, (features, batch):

- outputs: row o is the weighted sum of the rows of activations that o has weights for. That is what `embedding_bag`
  computes, by FBGEMM's kernels, in 0.3 to 0.4 of the time of MKL's CSR products;
- gradients of the inputs: the same with the transposed pattern, whose values are the same in another order;
- gradients of the weights: for each kept weight the dot product of its two rows (`sampled_addmm`), no others.
Files hold dense tensors (`Pattern.scatter` and `gather`), so a run may go on either way. On the CPU only, for one run
in one process: a GPU multiplies dense matrices faster, and stacks share one shape.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from retable.tasks.rl.model import StackedLinear

SPARSE_BELOW = 0.25
"""Share of kept weights below which a layer trains sparsely. A number that `benchmarks/rl_sparse.py` has measured, not
a measurement at each start: a run that goes on must choose as it did before, to be equal bit for bit."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Positions of a layer's kept weights: CSR indices of the (outputs, inputs) matrix and of its transpose.

    A pattern never changes, so copies of a network share it.
    """

    shape: tuple[int, int]
    starts: Int[Tensor, " outputs_and_one"]
    columns: Int[Tensor, " kept"]
    transposed_starts: Int[Tensor, " inputs_and_one"]
    transposed_columns: Int[Tensor, " kept"]
    order: Int[Tensor, " kept"]
    """`values[order]` are the values of the transposed matrix."""

    @staticmethod
    def of(mask: Bool[Tensor, "outputs inputs"]) -> Pattern:
        """Find the pattern of a mask."""
        rows, columns = mask.nonzero(as_tuple=True)
        order = columns.argsort(stable=True)
        starts, transposed = (torch.nn.functional.pad(mask.sum(side).cumsum(0), (1, 0)) for side in (1, 0))
        indices = (starts, columns, transposed, rows[order], order)
        return Pattern((mask.shape[0], mask.shape[1]), *(index.int() for index in indices))

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        """Return this one."""
        return self

    def mask(self) -> Bool[Tensor, "outputs inputs"]:
        """Return the mask whose pattern this is."""
        return self.scatter(torch.ones(len(self.columns), dtype=torch.bool))

    def scatter(self, values: Float[Tensor, " kept"]) -> Float[Tensor, "outputs inputs"]:
        """Return the dense matrix, with 0 for what is pruned."""
        dense = values.new_zeros(self.shape)
        dense[self._rows(), self.columns] = values
        return dense

    def gather(self, dense: Float[Tensor, "outputs inputs"]) -> Float[Tensor, " kept"]:
        """Return the kept values of a dense matrix."""
        return dense[self._rows(), self.columns]

    def product(
        self, values: Float[Tensor, " kept"], inputs: Float[Tensor, "inputs batch"]
    ) -> Float[Tensor, "outputs batch"]:
        """Multiply the matrix of these values by activations."""
        return _sums(self.starts, self.columns, values, inputs)

    def transposed_product(
        self, values: Float[Tensor, " kept"], gradient: Float[Tensor, "outputs batch"]
    ) -> Float[Tensor, "inputs batch"]:
        """Multiply the transposed matrix of these values by gradients."""
        values = values.index_select(0, self.order)
        return _sums(self.transposed_starts, self.transposed_columns, values, gradient)

    def dots(
        self, left: Float[Tensor, "outputs batch"], right: Float[Tensor, "inputs batch"]
    ) -> Float[Tensor, " kept"]:
        """Return the entries of `left @ right.T` that are in the pattern."""
        use_up_the_warning_of_csr()
        zeros = left.new_zeros(len(self.columns))
        pattern = torch.sparse_csr_tensor(self.starts, self.columns, zeros, self.shape, check_invariants=False)
        dots: Tensor = torch.sparse.sampled_addmm(pattern, left, right.T, beta=0.0).values()
        return dots

    def _rows(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(self.shape[0]), self.starts.diff())


@functools.cache
def use_up_the_warning_of_csr() -> None:
    """Trigger and drop PyTorch's warning, once in a process, that CSR is in beta: tests cover what is used of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        torch.eye(1).to_sparse_csr()


def _sums(starts: Tensor, columns: Tensor, values: Tensor, inputs: Tensor) -> Tensor:
    """Sum the rows `columns[starts[o]:starts[o + 1]]` of the inputs, each times its value, for every o."""
    return torch.nn.functional.embedding_bag(
        columns, inputs, starts, mode="sum", per_sample_weights=values, include_last_offset=True
    )


def pays(mask: Bool[Tensor, "outputs inputs"]) -> bool:
    """Return whether sparse training is faster, since few weights are kept; False without FBGEMM."""
    return (
        int(mask.count_nonzero()) < SPARSE_BELOW * mask.numel()
        and "fbgemm" in torch.backends.quantized.supported_engines
    )


class _Linear(torch.autograd.Function):
    """Outputs (outputs, batch) of a sparse layer. Its gradients cannot be differentiated again: nothing asks for it."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(context: Any, values: Tensor, bias: Tensor, inputs: Tensor, pattern: Pattern) -> Tensor:
        context.save_for_backward(values, inputs)
        context.pattern = pattern
        return pattern.product(values.detach(), inputs.detach()).add_(bias.unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        values, inputs = context.saved_tensors
        gradient, pattern = gradient.contiguous(), context.pattern
        of_values, of_bias, of_inputs, _ = context.needs_input_grad
        return (
            pattern.dots(gradient, inputs) if of_values else None,
            gradient.sum(1) if of_bias else None,
            pattern.transposed_product(values, gradient) if of_inputs else None,
            None,
        )


def linear(
    pattern: Pattern | None,
    weight: Float[Tensor, " kept"] | Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"],
    inputs: Float[Tensor, "batch inputs"],
) -> Float[Tensor, "batch outputs"]:
    """Apply a layer of a pruned network: sparse (under autocast in float32), or dense where there is no pattern.

    Rows come and go as for `torch.nn.functional.linear`, but the result lies features first in memory, as does what
    elementwise functions make of it: the next layer need not copy it.
    """
    if pattern is None:
        return torch.addmm(bias.unsqueeze(1), weight, inputs.T).T
    result: Tensor = _Linear.apply(weight, bias, inputs.T.contiguous(), pattern)
    return result.T


def choose(layers: Mapping[str, StackedLinear]) -> str:
    """Make the layers of a pruned run sparse where that is faster; return a line that names them."""
    sparse: list[str] = []
    dense: list[str] = []
    for name, layer in layers.items():
        assert layer.mask is not None
        if pays(layer.mask[0]):
            sparsify(layer, Pattern.of(layer.mask[0]))
        (dense if layer.pattern is None else sparse).append(name)
    for layer in layers.values():
        layer.features_first = bool(sparse)
    return f"layers trained sparsely: {', '.join(sparse) or 'none'}; as dense ones: {', '.join(dense) or 'none'}"


@torch.no_grad()
def sparsify(layer: StackedLinear, pattern: Pattern) -> None:
    """Keep of a layer of one member the weights of a pattern alone, in place: optimisers know it by its parameters."""
    dense = layer.weight[0] if layer.pattern is None else layer.pattern.scatter(layer.weight[0])
    layer.weight.data = pattern.gather(dense).unsqueeze(0)
    layer.pattern, layer.mask = pattern, None


def masks_of(layers: Mapping[str, StackedLinear]) -> dict[str, Tensor]:
    """Return the masks of the layers that have one, by the names of their weights, members first."""
    masks = {
        name: layer.mask if layer.pattern is None else layer.pattern.mask()[None] for name, layer in layers.items()
    }
    return {f"{name}.weight": mask for name, mask in masks.items() if mask is not None}


def whole(module: nn.Module, name: str, value: Tensor) -> Tensor:
    """Return a parameter, or a tensor of its shape such as a moment, in the layout of dense layers: members first."""
    pattern = pattern_of(module, name)
    return value if pattern is None else pattern.scatter(value[0]).unsqueeze(0)


def own_values(module: nn.Module, name: str, dense: Tensor) -> Tensor:
    """Return the values that a parameter stores of one member's dense tensor: the inverse of `whole`."""
    pattern = pattern_of(module, name)
    return dense if pattern is None else pattern.gather(dense)


def pattern_of(module: nn.Module, name: str) -> Pattern | None:
    """Return the pattern of a parameter; None where it is dense."""
    layer, _, kind = name.rpartition(".")
    pattern = module.get_submodule(layer).pattern if kind == "weight" else None
    assert pattern is None or isinstance(pattern, Pattern)
    return pattern
