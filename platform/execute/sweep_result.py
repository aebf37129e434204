"""The result of a sweep: its points, best first, as a value, a table and a plot."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from retable.platform.config import describe, fingerprint, set_line
from retable.platform.errors import UserError
from retable.platform.spec.space import Space
from retable.platform.spec.table import split_view
from retable.platform.spec.task import config_at, find
from retable.platform.store.storage import Storage

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass
class Point:
    """One point of a sweep."""

    overrides: dict[str, object]
    """Changes to the config, and `view.<field>`: how the run is scored."""
    fingerprint: str
    """Of the run that the point trains; points that differ in the view alone share it."""
    value: float | None = None
    """The metric at the last epoch it reached; None where there is no finite one."""
    epochs: int = 0
    ended: bool = False
    """Finished, or stopped early by the scheduler; else it failed or was interrupted."""
    note: str = ""
    """Why there is no value: `diverged`, or what failed."""

    @property
    def key(self) -> str:
        """The point's name: its run, and the fields of the view that it sets."""
        view = split_view(self.overrides)[1]
        return f"{self.fingerprint} {json.dumps(view, sort_keys=True)}" if view else self.fingerprint


@dataclass(frozen=True, kw_only=True, repr=False)
class SweepResult:
    """The result of a sweep."""

    name: str
    space: Space
    scale: str
    changes: Mapping[str, object]
    """Changes to every point that the caller made."""
    points: Sequence[Point]
    """Best first; then those without a value."""

    @property
    def best(self) -> Point:
        """The best point; of several equally good ones, the first.

        Raises:
            UserError: if no point has a value, saying why.
        """
        if not self.points or self.points[0].value is None:
            notes = Counter(point.note or "not finished" for point in self.points)
            why = "; ".join(f"{count} x {note}" for note, count in notes.most_common(3))
            raise UserError(f"sweep {self.name}: none of {len(self.points)} points has a value: {why}")
        return self.points[0]

    @property
    def ties(self) -> list[Point]:
        """The points whose value equals the best one's, including the best."""
        return [point for point in self.points if point.value is not None and point.value == self.best.value]

    def command(self, point: Point) -> str:
        """Return the line that trains a point's run and none else, or loads it where no such line is shorter."""
        changes = {**self.space.overrides, **self.changes, **split_view(point.overrides)[0]}
        task = find(self.space.task)
        config = config_at(task, self.scale, changes)
        if fingerprint(task.name, task.version, config) != point.fingerprint:  # --set changes a parent, too
            return f"retable score {point.fingerprint}"
        return f"retable train {task.name} --scale {self.scale} {set_line(changes)}".strip()

    def frame(self) -> DataFrame:
        """Return one line a point: its place, each axis, the metric, epochs, the run and a note."""
        from pandas import DataFrame

        values = [point.value for point in self.points]
        lines = [
            {
                "place": None if point.value is None else values.index(point.value) + 1,
                **{path: point.overrides.get(path) for path in self.space.domains},
                self.space.metric: point.value,
                "epochs": point.epochs,
                "run": point.fingerprint,
                "note": point.note,
            }
            for point in self.points
        ]
        return DataFrame(lines).astype({"place": "Int64", self.space.metric: float})

    def csv(self) -> str:
        """Return the frame as CSV."""
        text: str = self.frame().to_csv(index=False)
        return text

    def figure(self) -> Figure:
        """Draw the metric over each axis, a panel an axis; the best point and its ties are marked."""
        from matplotlib.figure import Figure

        axes = list(self.space.domains)
        drawing = Figure(figsize=(3.2 * len(axes), 3.2), layout="constrained")
        for panel, path in zip(drawing.subplots(1, len(axes), sharey=True, squeeze=False)[0], axes, strict=True):
            self._draw(panel, path)
        lost = sum(point.value is None for point in self.points)
        drawing.suptitle(f"sweep {self.name}" + (f" ({lost} without a value)" if lost else ""))
        drawing.supylabel(f"{self.space.metric} ({self.space.mode})")
        return drawing

    def _draw(self, panel: Any, path: str) -> None:
        valued = [point for point in self.points if point.value is not None]
        places = [point.overrides[path] for point in valued]
        if all(isinstance(place, (int, float)) and not isinstance(place, bool) for place in places):
            if _is_logarithmic(self.space.domains[path], places):
                panel.set_xscale("log")
        else:
            names = list(dict.fromkeys(describe({"": place})[1:] for place in places))
            places = [names.index(describe({"": place})[1:]) for place in places]
            panel.set_xticks(range(len(names)), names, rotation=30 if len(names) > 3 else 0)
            panel.margins(x=0.2)
        panel.set_xlabel(path)
        panel.scatter(places, [point.value for point in valued], s=18, color="0.4")
        if valued:
            best = [place for place, point in zip(places, valued, strict=True) if point.value == self.best.value]
            panel.scatter(best[1:], [self.best.value] * (len(best) - 1), s=60, facecolors="none", edgecolors="C3")
            panel.scatter(best[:1], [self.best.value], s=90, marker="*", color="C3", zorder=3)

    def write(self, storage: Storage, path: str) -> None:
        """Write the result as `<path>.json`, `.csv` and `.png`."""
        write_points(storage, f"{path}.json", self.points)
        storage.write(f"{path}.csv", self.csv())
        buffer = io.BytesIO()
        self.figure().savefig(buffer, dpi=120)
        storage.write(f"{path}.png", buffer.getvalue())


def _is_logarithmic(domain: Any, places: Sequence[Any]) -> bool:
    """Return whether an axis is logarithmic: the domain is drawn so, or a grid's values span a hundredfold."""
    if isinstance(domain, Mapping):
        return bool(places) and min(places) > 0 and max(places) / min(places) >= 100
    sampler = getattr(domain.sampler, "sampler", domain.sampler)  # a quantized one holds the other
    return "Log" in type(sampler).__name__


def write_points(storage: Storage, path: str, points: Sequence[Point]) -> None:
    """Write a sweep's points: the journal that the same command reads and goes on from."""
    storage.write_json(path, [asdict(point) for point in points])


def read_points(storage: Storage, path: str) -> list[Point]:
    """Read a sweep's points; none where there is no journal."""
    return [Point(**entry) for entry in storage.read_json(path)] if storage.exists(path) else []
