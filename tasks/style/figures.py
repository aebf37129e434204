"""Drawing of the figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from retable.platform.spec.arrays import Array
from retable.platform.spec.table import Replicate, Results
from retable.tasks.style.config import OptimiseImage

if TYPE_CHECKING:  # tables name what draws, and a list of them draws nothing
    from matplotlib.figure import Figure as Drawing

COLOURS = ("#2457c5", "#d9662b", "#2a8f62", "#8a4fbf")
VERSION1, VERSION2 = "version 1", "version 2"
CRITERIA = {"L1": "l1", "smooth L1": "smooth_l1", "Huber": "huber", "MSE": "mse"}
"""Label -> criterion."""
HEIGHT = 2.3
"""Inches of a line of pictures."""
FONT = 8
LETTERS = 15
"""Letters to an inch at that size, all but the widest words."""
PIECE = 300
"""Pixels of the height of what figure 8 shows at full size: as many as the drawing has there."""
TIMED_CRITERIA = "seconds of an evaluation"
"""Label of the row that measures all criteria."""


@dataclass(frozen=True)
class Panel:
    """A picture and what stands above it."""

    caption: str
    pixels: Array
    """uint8 (height, width, 3)."""

    @property
    def aspect(self) -> float:
        """Width over height."""
        return float(self.pixels.shape[1] / self.pixels.shape[0])


def of_photograph(version: str, photograph: str) -> str:
    """Return the label of the row of a version and a photograph."""
    return f"{version}, {photograph}"


def photograph_of(replicate: Replicate) -> str:
    """Return the name of the photograph that a replicate stylises (of several, the first)."""
    method, view = replicate.config.method, replicate.view
    return str(method.content if view is None or isinstance(method, OptimiseImage) else view.content[0])


def arrays_of(replicate: Replicate) -> Mapping[str, Array]:
    """Return what a replicate's scores were computed from: pictures, and the losses of version 1."""
    return replicate.summaries()["all"]


def title(name: str) -> str:
    """Return a picture's name as a caption."""
    return name.replace("_", " ")


def sources(replicate: Replicate) -> list[Panel]:
    """Return the photograph of a replicate, and its paintings."""
    arrays, name = arrays_of(replicate), photograph_of(replicate)
    panels = [Panel(title(name), arrays[f"photograph/{name}"])]
    return panels + [Panel(title(style), arrays[f"painting/{style}"]) for style in replicate.config.style]


def result(replicate: Replicate, caption: str) -> Panel:
    """Return a replicate's stylised picture, with its judged errors."""
    errors = [f"{name} {replicate.metrics[f'{name}_error']:.3g}" for name in ("style", "content")]
    caption = f"{caption}\n{', '.join(errors)}"
    return Panel(caption, arrays_of(replicate)[f"stylised/{photograph_of(replicate)}"])


def draw_lines(lines: Sequence[Sequence[Panel | None]]) -> Drawing:
    """Draw lines of pictures in aligned columns, each picture in its own shape; None leaves a place free."""
    from matplotlib.figure import Figure as Drawing

    columns = [[panel for panel in column if panel] for column in zip(*lines, strict=True)]
    widths = [max([HEIGHT * panel.aspect for panel in column], default=HEIGHT) for column in columns]
    drawing = Drawing(figsize=(sum(widths) + 0.1 * len(widths), (HEIGHT + 0.5) * len(lines)), layout="constrained")
    axes = drawing.subplots(len(lines), len(widths), squeeze=False, gridspec_kw={"width_ratios": widths})
    for axis_row, line in zip(axes, lines, strict=True):
        for axis, panel, width in zip(axis_row, line, widths, strict=True):
            show(axis, panel, width)
    return drawing


def show(axis: Any, panel: Panel | None, inches: float) -> None:
    """Show a picture without axes, its caption in lines no wider than so many inches."""
    axis.set_axis_off()
    if panel:
        letters = max(int(LETTERS * inches), 8)
        axis.imshow(panel.pixels)
        axis.set_title("\n".join(textwrap.fill(line, letters) for line in panel.caption.split("\n")), fontsize=FONT)


def draw_versions(results: Results) -> Drawing:
    """Draw figure 1: photograph, painting, version 1 and version 2, a photograph a line."""
    lines: list[list[Panel | None]] = []
    replicates = [rows[0] for rows in results.replicates.values() if rows]
    for name in dict.fromkeys(photograph_of(replicate) for replicate in replicates):
        versions = {version: results.select(of_photograph(version, name)) for version in (VERSION1, VERSION2)}
        (first, *_) = [rows[0] for rows in versions.values() if rows]
        made = [result(rows[0], version) if rows else None for version, rows in versions.items()]
        lines.append([*sources(first), *made])
    return draw_lines(lines)


def draw_pictures(results: Results) -> Drawing:
    """Draw figures 3 and 6: photograph, painting and the result of each row, a photograph a line."""
    labels = [label for label in results.replicates if label in results]
    lines: list[list[Panel | None]] = []
    for name in results.axis("method.content"):
        rows = {label: results.select(label, **{"method.content": name}) for label in labels}
        available = [selected[0] for selected in rows.values() if selected]
        made = [result(selected[0], label) if selected else None for label, selected in rows.items()]
        lines.append([*sources(available[0]), *made])
    return draw_lines(lines)


def draw_paintings(results: Results) -> Drawing:
    """Draw figure 7: the photograph and the paintings above, the results below the paintings."""
    replicates = {label: rows[0] for label, rows in results.replicates.items() if rows}
    photograph = sources(next(iter(replicates.values())))[0]
    above: list[Panel | None] = [Panel(label, sources(replicate)[1].pixels) for label, replicate in replicates.items()]
    below: list[Panel | None] = [result(replicate, label) for label, replicate in replicates.items()]
    return draw_lines([[photograph, *above], [None, *below]])


def draw_large(results: Results) -> Drawing:
    """Draw figure 8: photograph and result reduced, with the painting; below, a piece of both as it is."""
    from matplotlib.patches import Rectangle

    (replicate,) = results.select(VERSION2)
    photograph, painting = sources(replicate)
    made = result(replicate, VERSION2)
    height, width = made.pixels.shape[:2]
    tall = max(min(PIECE, height // 2), 1)
    wide = max(tall * width // height, 1)
    top, left = (height - tall) // 2, (width - wide) // 2
    piece = (slice(top, top + tall), slice(left, left + wide))
    sized = Panel(f"{photograph.caption}, {width} x {height} pixels", photograph.pixels)
    pieces = [Panel(f"its middle, {wide} x {tall} pixels", panel.pixels[piece]) for panel in (photograph, made)]
    drawing = draw_lines([[sized, made, painting], [*pieces, None]])
    for axis in drawing.axes[:2]:
        axis.add_patch(Rectangle((left, top), wide, tall, fill=False, edgecolor="white", linewidth=1))
    return drawing


def losses_of(replicate: Replicate, relative: bool) -> Array:
    """Return the total loss of each evaluation, relative to the first where asked."""
    total = np.asarray(arrays_of(replicate)["losses"][:, 0], np.float64)
    return total / total[0] if relative else total


def draw_losses(results: Results, relative: bool) -> Drawing:
    """Draw figures 2 and 5: the loss over evaluations, on a logarithmic axis; the first photograph thick."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(7.5, 4), layout="constrained")
    axis = drawing.subplots()
    drawn = {label: rows for label, rows in results.replicates.items() if rows}
    first = results.axis("method.content")[0]
    for (label, rows), colour in zip(drawn.items(), COLOURS, strict=False):
        for number, replicate in enumerate(rows):
            losses = losses_of(replicate, relative)
            shown = np.where(np.isfinite(losses) & (losses > 0), losses, np.nan)  # a run that broke off has a gap
            thick = photograph_of(replicate) == first
            style: dict[str, Any] = {"linewidth": 1.8} if thick else {"linewidth": 0.8, "alpha": 0.4}
            axis.plot(np.arange(1, len(losses) + 1), shown, color=colour, label=None if number else label, **style)
    axis.set_yscale("log")
    axis.set_xlabel("evaluations of the loss")
    axis.set_ylabel("loss, relative to the first" if relative else "loss")
    axis.legend(fontsize=FONT)
    return drawing


def draw_criteria(results: Results) -> Drawing:
    """Draw figure 4: seconds of one evaluation with each loss function, and the judged errors where runs end."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(11, 2.9), layout="constrained")
    axes = drawing.subplots(1, 3, sharey=True)
    for position, (label, colour) in enumerate(zip(CRITERIA, COLOURS, strict=True)):
        for replicate in results.select(TIMED_CRITERIA)[:1]:
            middle, low, high = (replicate.metrics[f"{CRITERIA[label]}_seconds{end}"] for end in ("", "_low", "_high"))
            axes[0].barh(position, middle, 0.55, color=colour, alpha=0.75)
            axes[0].plot([low, high], [position, position], color=rcParams["text.color"], linewidth=1.5)
        for axis, name in zip(axes[1:], ("style", "content"), strict=True):
            errors = results.values(label, f"{name}_error")
            axis.plot(errors, [position] * len(errors), "o", color=colour, markersize=5)
    axes[0].set_yticks(range(len(CRITERIA)), list(CRITERIA))
    axes[0].invert_yaxis()
    for axis, text in zip(axes, ("seconds of one evaluation", "style error", "content error"), strict=True):
        axis.set_xlabel(text)
        axis.set_xlim(left=0)
    return drawing
