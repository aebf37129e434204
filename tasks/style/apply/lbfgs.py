"""L-BFGS with a line search that takes one evaluation a step, so that evaluations can be counted and interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LONGEST = 0.02
"""Mean change of the pixels, whose range is 1, that no move exceeds. After the tiny first move the curvature says
nothing of what is farther away: with the paper's normalised filters, the second would be 100 on average."""
WINDOW = 10
"""Losses of images before, of which the largest must not be exceeded. With one (Armijo's rule) a third of the
evaluations was spent on shortening moves, for losses no lower."""
HALVINGS = 10
"""Moves that are halved so often do not lead down, as pixels that are clamped change where they lead."""


class BacktrackingLbfgs(torch.optim.LBFGS):
    """L-BFGS whose moves are bounded, and halved where the loss rises above those of the last `WINDOW` images.

    The rule is that of Grippo, Lampariello and Lucidi 1986 (a non-monotone line search), without the demand for
    sufficient decrease. PyTorch's strong Wolfe search takes several evaluations a step. What is kept from step to step
    lies in the optimiser's state: `origin`, the last image that was accepted, the `losses` of such images, and how many
    evaluations since were `rejected`.
    """

    def __init__(self, pixels: Tensor, learning_rate: float, history: int) -> None:
        """Optimise one tensor, which must be contiguous. Like the plain L-BFGS here, it never stops early."""
        super().__init__(
            [pixels], learning_rate, max_iter=1, tolerance_grad=0, tolerance_change=0, history_size=history
        )
        self.pixels = pixels

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        """Move once; the closure, which returns the loss of the pixels as they are, is called once."""
        with torch.enable_grad():
            loss = closure()
        state = self.state[self.pixels]
        if "t" not in state or float(loss) <= max(state["losses"]):
            self._move(loss, state)
            return loss
        state["rejected"] += 1
        if state["rejected"] <= HALVINGS:
            self._place(state, float(state["t"]) / 2)
        else:
            self.pixels.copy_(state["origin"])
            restart(state)
        return loss

    def _move(self, loss: Tensor, state: dict[str, Any]) -> None:
        """Go on from the pixels as they are."""
        losses = [*state.get("losses", []), float(loss)][-WINDOW:]
        state.update(origin=self.pixels.clone(), losses=losses, rejected=0)
        super().step(lambda: loss)  # type: ignore[no-untyped-call]
        length = float((self.pixels - state["origin"]).abs().mean())
        if length > LONGEST:
            self._place(state, float(state["t"]) * LONGEST / length)
        elif not length:  # rounding has turned the direction upwards, and PyTorch would stay here for ever
            restart(state)

    def _place(self, state: dict[str, Any], share: float) -> None:
        """Move from the origin by a share of the direction; PyTorch takes t times d for the move that was made."""
        state["t"] = share
        self.pixels.copy_(state["origin"]).add_(state["d"].view_as(self.pixels), alpha=share)


def restart(state: dict[str, Any]) -> None:
    """Forget the curvature: the next step follows the gradient."""
    kept = {name: state[name] for name in ("origin", "losses", "rejected")}
    state.clear()
    state.update(kept)
