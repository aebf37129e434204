"""Drawing of figure 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.table import Replicate, Results

if TYPE_CHECKING:  # tables name what draws, and a list of them draws nothing
    from matplotlib.figure import Figure as Drawing

COLOURS = ("#2457c5", "#d9662b")
SHIFT = 0.03
"""Epochs by which the second line stands beside the first, so that both bars are seen."""


def validation_losses(replicate: Replicate) -> Array:
    """Return the validation loss after each epoch, (epochs,)."""
    return np.array([row["validation_loss"] for row in replicate.history], np.float64)


def draw_validation(results: Results, labels: Sequence[str]) -> Drawing:
    """Draw the validation loss over epochs: a line a row through the means of its runs, bars from least to largest."""
    from matplotlib.figure import Figure as Drawing
    from matplotlib.ticker import MaxNLocator

    drawing = Drawing(figsize=(6, 3.8), layout="constrained")
    axis = drawing.subplots()
    selected = {label: rows for label in labels if (rows := results.select(label))}
    for number, (label, rows) in enumerate(selected.items()):
        losses = np.stack([validation_losses(replicate) for replicate in rows])
        mean = losses.mean(axis=0)
        bars = [mean - losses.min(axis=0), losses.max(axis=0) - mean]
        epochs = np.arange(1, len(mean) + 1) + SHIFT * number
        runs = f"{label}, {len(rows)} run{'' if len(rows) == 1 else 's'}"
        axis.errorbar(epochs, mean, bars, color=COLOURS[number], marker="o", markersize=4, capsize=3, label=runs)
    axis.set_xlabel("epoch of fine-tuning")
    axis.set_ylabel("validation loss")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(fontsize=8)
    return drawing
