"""Train a pruned layer without its pruned weights: the same numbers as masked dense training, in less time and memory.

Masks never change, so a layer's pattern is made once. Values, gradients and Adam's moments are then vectors of the kept
weights alone, and a layer needs three products, with activations features first, (features, batch), as rows of a
product are then sums of few contiguous rows:

- outputs: CSR times activations;
- gradients of the inputs: CSR of the transposed matrix, whose values are the same in another order;
- gradients of the weights: the dot products of two rows that belong to a kept weight (`sampled_addmm`), no others.

Files hold dense tensors (`Pattern.scatter` and `gather`), so a run may go on either way. On the CPU only, for one run
in one process: a GPU multiplies dense matrices faster, and stacks share one shape.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

SPARSE_BELOW = 0.15
"""Share of kept weights below which a layer trains sparsely. A number that `benchmarks/rl_sparse.py` has measured, not
a measurement at each start: a run that goes on must choose as it did before, to be equal bit for bit."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where a layer's kept weights are: CSR of the (outputs, inputs) matrix and of its transpose, in 32-bit indices.

    MKL takes these as they are. A pattern never changes, so that copies of a network share it.
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
        pattern = Pattern((mask.shape[0], mask.shape[1]), *(index.int() for index in indices))
        with warnings.catch_warnings():
            # PyTorch says once that CSR is in beta; what is used of it here, the tests hold against dense products.
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
            pattern.matrix(torch.zeros(len(columns)))
        return pattern

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        """Return this one."""
        return self

    def matrix(self, values: Float[Tensor, " kept"]) -> Tensor:
        """Give the matrix of these values in CSR, without a copy."""
        return _csr(self.starts, self.columns, values, self.shape)

    def transposed(self, values: Float[Tensor, " kept"]) -> Tensor:
        """Give the transposed matrix of these values in CSR."""
        return _csr(
            self.transposed_starts, self.transposed_columns, values.index_select(0, self.order), self.shape[::-1]
        )

    def scatter(self, values: Float[Tensor, " kept"]) -> Float[Tensor, "outputs inputs"]:
        """Give the dense matrix, with 0 for what is pruned."""
        dense = values.new_zeros(self.shape)
        dense[self._rows(), self.columns] = values
        return dense

    def gather(self, dense: Float[Tensor, "outputs inputs"]) -> Float[Tensor, " kept"]:
        """Give the kept values of a dense matrix."""
        return dense[self._rows(), self.columns]

    def mask(self) -> Bool[Tensor, "outputs inputs"]:
        """Give the mask whose pattern this is."""
        return self.scatter(torch.ones(len(self.columns), dtype=torch.bool))

    def _rows(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(self.shape[0]), self.starts.diff())


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


def pays(mask: Bool[Tensor, "outputs inputs"]) -> bool:
    """Say whether so few weights are kept that sparse training is faster. Never where PyTorch lacks Intel's MKL."""
    kept = int(mask.count_nonzero())
    return kept < SPARSE_BELOW * mask.numel() and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(context: Any, values: Tensor, bias: Tensor, inputs: Tensor, pattern: Pattern) -> Tensor:
        context.save_for_backward(values, inputs)
        context.pattern = pattern
        return torch.addmm(bias.unsqueeze(1), pattern.matrix(values), inputs)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        values, inputs = context.saved_tensors
        gradient, pattern = gradient.contiguous(), context.pattern
        wants_values, wants_bias, wants_inputs, _ = context.needs_input_grad
        of_values = of_inputs = None
        if wants_values:
            matrix = pattern.matrix(values)  # its pattern alone counts: beta is 0
            of_values = torch.sparse.sampled_addmm(matrix, gradient, inputs.T, beta=0.0).values()
        if wants_inputs:
            of_inputs = pattern.transposed(values) @ gradient
        return of_values, gradient.sum(1) if wants_bias else None, of_inputs, None


def linear(
    pattern: Pattern | None,
    weight: Float[Tensor, " kept"] | Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"],
    inputs: Float[Tensor, "batch inputs"],
) -> Float[Tensor, "batch outputs"]:
    """Apply a layer of a pruned network: a sparse one, under autocast in float32, or where there is no pattern a dense one.

    Rows come and go as for `torch.nn.functional.linear`, but the result lies features first in memory, as does what
    elementwise functions make of it: the next layer need not copy it.
    """
    if pattern is None:
        return torch.addmm(bias.unsqueeze(1), weight, inputs.T).T
    result: Tensor = _Linear.apply(weight, bias, inputs.T.contiguous(), pattern)  # type: ignore[no-untyped-call]
    return result.T
