"""Checks a result that was sent: trains a random sample of a bundle's runs again and compares their numbers.

What is compared are the metrics of the training and the scores of its views, but seconds. They must be equal bit for
bit where device, versions, code and stacking are those of the bundle's run, else within a relative tolerance.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from retable.platform.config import Config, View, override
from retable.platform.errors import UserError
from retable.platform.execute.run import execute, prepare_data
from retable.platform.plan.plan import compile_configs, data_digest
from retable.platform.report import packing
from retable.platform.spec import task as tasks
from retable.platform.spec.resources import Resources
from retable.platform.spec.task import Task
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Record, Storage

Verdict = Literal["agrees bit for bit", "agrees within the tolerance", "differs", "not comparable"]
_TINY = 1e-9
"""Absolute tolerance, of numbers near zero."""


@dataclass
class Checked:
    """The outcome of one run that was trained again."""

    task: str
    run: str
    """The fingerprint."""
    verdict: Verdict
    why: str = ""
    """Reason why it cannot be compared, or why it need not be equal bit for bit."""
    compared: int = 0
    """Numbers that were compared."""
    tolerance: float = 0.0
    """Relative; 0: bit for bit."""
    different: dict[str, tuple[object, object]] = field(default_factory=dict)
    """Metric -> what the bundle says, what it is here."""

    def line(self) -> str:
        """Return the outcome as one line."""
        numbers = f", {self.compared} numbers" if self.compared else ""
        how = f", relative tolerance {self.tolerance:g}" if self.tolerance else ""
        return f"{self.task} {self.run}: {self.verdict}{numbers}{how}" + (f" ({self.why})" if self.why else "")

    def details(self, most: int = 10) -> list[str]:
        """Return which metrics differ; of very many, the first."""
        lines = [f"{name}: was {was!r}, is {now!r}" for name, (was, now) in self.different.items()]
        return lines[:most] + ([f"and {len(lines) - most} more: --json shows all"] if len(lines) > most else [])


@dataclass(frozen=True)
class _Sent:
    """A finished run of a bundle, to be trained again."""

    task: Task
    folder: RunFolder
    config: Config
    views: Mapping[str, View]
    """Key of its folder -> a view that was scored."""


def verify(
    bundle: Path,
    storage: Storage,
    into: Storage | None,
    sample: int,
    seed: int,
    tolerance: float,
    resources: Resources,
) -> list[Checked]:
    """Train a sample of a bundle's runs again and compare them; see `api.verify`.

    Raises:
        UserError: if the bundle is refused, holds no finished run of a task that is here, or a training fails.
    """
    if sample < 1:
        raise UserError(f"sample={sample}: verify at least 1 run")
    with tempfile.TemporaryDirectory(prefix="retable-verify-") as temporary:
        unpacked = Storage.open(Path(temporary, "bundle"))
        taken = packing.unpack(bundle, unpacked)
        retrained = into or Storage.open(Path(temporary, "again"))
        chosen = random.Random(seed).sample(sorted(taken.runs), min(sample, len(taken.runs)))
        sent = [_sent(unpacked, run) for run in chosen]
        if not sent:
            raise UserError(f"{bundle}: no finished run of a task and version that is here; nothing can be verified")
        with _data_of(storage, retrained, sent):
            refused = {
                original.folder.fingerprint: why for original in sent if (why := _other_data(original, retrained))
            }
            _train([original for original in sent if original.folder.fingerprint not in refused], retrained, resources)
            return [
                _compared(original, retrained, tolerance, refused.get(original.folder.fingerprint, ""))
                for original in sent
            ]


def _sent(unpacked: Storage, run: str) -> _Sent:
    name = next(name for name in unpacked.folders("runs") if unpacked.exists(f"runs/{name}/{run}"))
    task, folder = tasks.find(name), RunFolder(unpacked, name, run)
    views: dict[str, View] = {}
    for key in folder.scored_views():
        record = folder.folder.read_record(f"views/{key}/scores.json", {"view": dict})
        views[key] = override(task.view(), record["view"])
    return _Sent(task, folder, folder.config(task), views)


@contextmanager
def _data_of(storage: Storage, retrained: Storage, sent: Sequence[_Sent]) -> Iterator[None]:
    """Link the datasets and imported weights of another storage into a local one, while the block runs.

    Raises:
        UserError: where one is no local storage, and only the other holds a dataset.
    """
    links = []
    wanted = [f"data/{original.task.dataset.where(original.config)}" for original in sent]
    if not (storage.is_local and retrained.is_local):
        for path in wanted:
            if storage.exists(path) and not retrained.exists(path):
                raise UserError(f"--storage {storage}: {path} is read from there alone; write --keep {storage}, too")
    elif storage.root != retrained.root:
        for path in dict.fromkeys([*wanted, "weights"]):
            target, link = Path(storage.root, path), Path(retrained.root, path)
            if target.exists() and not os.path.lexists(link):
                link.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(target, link)
                links.append(link)
    try:
        yield
    finally:
        for link in links:
            link.unlink()


def _other_data(sent: _Sent, retrained: Storage) -> str:
    """Make the data of a run that are not there; return how they differ from those it was trained on, if they do.

    Raises:
        UserError: if the data cannot be had, or the run is in that storage already.
    """
    if RunFolder(retrained, sent.folder.task, sent.folder.fingerprint).result() is not None:
        where = f"{retrained}/runs/{sent.folder.task}/{sent.folder.fingerprint}"
        raise UserError(f"{where}: the run is there already; choose another storage to train it in again")
    prepare_data(compile_configs(sent.task, [sent.config], retrained).trainings.values(), retrained)
    was, now = (sent.folder.result() or {})["data"], data_digest(retrained, sent.task.dataset.where(sent.config))
    return "" if was == now else f"its data have the digest {was[:16]}, those here {str(now)[:16]}"


def _train(sent: Sequence[_Sent], retrained: Storage, resources: Resources) -> None:
    """Train runs again, a task's together, and score their views.

    Raises:
        UserError: if one fails.
    """
    for task in {original.task.name: original.task for original in sent}.values():
        pairs: list[tuple[Config, View | None]] = []
        for original in sent:
            if original.task is task:
                pairs += [(original.config, view) for view in original.views.values()] or [(original.config, None)]
        plan = compile_configs(task, [config for config, _ in pairs], retrained, [view for _, view in pairs])
        for name, failure in execute(plan, resources).items():
            raise UserError(f"{name}: {failure}")


def _compared(sent: _Sent, retrained: Storage, tolerance: float, refused: str = "") -> Checked:
    """Compare a run with the bundled one; `refused`: why it was not trained."""
    folder = RunFolder(retrained, sent.folder.task, sent.folder.fingerprint)
    checked = Checked(folder.task, folder.fingerprint, "not comparable", refused)
    if refused:
        return checked
    before, after = _numbers(sent.folder, sent.views), _numbers(folder, sent.views)
    pairs = {name: (before.get(name), after.get(name)) for name in [*before, *(after.keys() - before.keys())]}
    checked.compared = len(pairs)
    if all(same(was, now, 0.0) for was, now in pairs.values()):
        checked.verdict = "agrees bit for bit"
        return checked
    checked.why = other_conditions(folder.task, sent.folder.provenance(), folder.provenance())
    checked.tolerance = tolerance if checked.why else 0.0
    checked.different = {name: pair for name, pair in pairs.items() if not same(*pair, checked.tolerance)}
    checked.verdict = "differs" if checked.different else "agrees within the tolerance"
    return checked


def _numbers(folder: RunFolder, views: Mapping[str, View]) -> dict[str, object]:
    """Return all numbers of a run but seconds, by name."""
    result = folder.result() or {"metrics": {}}
    numbers = dict(result["metrics"]) | {"diverged": result.get("diverged")}
    for key in views:
        path = f"views/{key}/scores.json"
        scores = folder.folder.read_record(path, {"metrics": dict}) if folder.folder.exists(path) else {"metrics": {}}
        numbers |= {f"{key} {name}": value for name, value in scores["metrics"].items()}
    for row in folder.history():
        numbers |= {
            f"epoch {row['epoch']} {name}": v for name, v in row.items() if name not in ("time", "weights", "best")
        }
    return {name: value for name, value in numbers.items() if "seconds" not in name and value is not None}


def other_conditions(task: str, was: Record, now: Record) -> str:
    """Return why two runs of one config need not be equal bit for bit; empty if they must be.

    Args:
        task: theirs.
        was: the provenance of the one that was sent.
        now: that of the other.
    """
    parts = ("platform", f"tasks/{task}")
    codes = [made.get("code") for made in (was, now)]
    if all(isinstance(code, dict) for code in codes):
        same_code = all(was["code"].get(part) == now["code"].get(part) for part in parts)
    else:
        same_code = all(was.get(name) == now.get(name) for name in ("commit", "dirty"))
    other = [name for name in ("device", "versions", "stack") if was.get(name) != now.get(name)]
    other += [] if same_code else ["code"]
    return f"another {', '.join(other)}" if other else ""


def same(was: object, now: object, relative: float) -> bool:
    """Return whether two numbers are equal, or within a relative tolerance; NaN equals NaN."""
    if not isinstance(was, (int, float)) or not isinstance(now, (int, float)):
        return bool(was == now)
    if math.isnan(was) or math.isnan(now):
        return math.isnan(was) and math.isnan(now)
    return was == now or (relative > 0 and math.isclose(was, now, rel_tol=relative, abs_tol=_TINY))
