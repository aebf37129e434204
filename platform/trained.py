"""A run that was trained, as one loads it: its config, results, log and networks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from retable.platform.config import OwnConfig, OwnView, changes_of, fingerprint, override
from retable.platform.console import errors
from retable.platform.errors import UserError
from retable.platform.execute.scoring import predict_and_score
from retable.platform.report import notebook
from retable.platform.report.describe import find_run
from retable.platform.report.notebook import History
from retable.platform.spec.table import resolve
from retable.platform.spec.task import Source, Task, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Record, Storage

if TYPE_CHECKING:
    from torch import Tensor

STORAGE = os.environ.get("RETABLE_STORAGE", "results")


@dataclass(frozen=True)
class TrainedRun:
    """A run that was loaded: its config, results and networks."""

    task: Task
    folder: RunFolder
    config: OwnConfig
    """The task's own class."""

    @property
    def fingerprint(self) -> str:
        """The run's name."""
        return self.folder.fingerprint

    @cached_property
    def result(self) -> Record:
        """`result.json`: the last metrics, seconds, the digest of the data.

        Raises:
            UserError: if the run is not finished.
        """
        result = self.folder.result()
        if result is None:
            raise UserError(f"run {self.fingerprint} is not finished; the command that began it goes on with it")
        return result

    @property
    def source(self) -> Source:
        """The data set that the run was trained on.

        Raises:
            UserError: if it is gone.
        """
        where = self.task.dataset.where(self.config)
        if not self.folder.storage.exists(f"data/{where}/dataset.json"):
            raise UserError(f"{self.folder.storage}/data/{where} is gone; put the run's data there again")
        return Source.of(self.folder.storage, where)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the last epoch."""
        return dict(self.result["metrics"])

    @property
    def diverged(self) -> str:
        """Why the run's numbers mean nothing: they are not finite. Empty where they are."""
        return str(self.result.get("diverged", ""))

    @property
    def history(self) -> History:
        """The log, one entry an epoch; `frame()` gives it as a data frame."""
        return History(self.folder.history())

    def weights(self, epoch: int = 0) -> Mapping[str, Tensor]:
        """The networks' weights after an epoch that was kept; 0: the last."""
        return self.folder.weights(epoch or self.config.epochs)

    def score(self, view: Mapping[str, object] | Sequence[str] | None = None) -> dict[str, float]:
        """Return the scores of a view, given by the fields that differ from the task's default, or as `path=value`.

        Predictions and scores are kept: the same view again is only read.

        Raises:
            UserError: if the run is not finished or diverged, a field is unknown, the epoch was not kept, or the
                scoring fails.
        """
        if self.diverged:
            raise UserError(f"run {self.fingerprint} diverged: {self.diverged}")
        seen: OwnView = resolve(override(self.task.view(), changes_of(view)), self.config)
        weights = self.result["weights"].get(str(seen.epoch), "")
        if self.folder.scores(seen, weights) is None:
            failure = predict_and_score(self.task, self.config, seen, self.folder)
            if failure:
                raise UserError(f"run {self.fingerprint}: {failure}")
        kept = self.folder.scores(seen, weights)
        return dict(kept["metrics"]) if kept else {}

    def __repr__(self) -> str:
        return notebook.run_text(self)

    def _repr_html_(self) -> str:
        return notebook.run_html(self)


def is_run_name(name: str, task: str) -> bool:
    """Return whether a name can be a run's, as `load` takes it: first digits, `latest`, or TABLE/ROW of the task."""
    return bool(re.fullmatch(rf"[0-9a-f]+|latest|{task}/[^/]+/.+", name))


def load(fingerprint_start: str, storage: str | Path | Storage = STORAGE, task: str | None = None) -> TrainedRun:
    """Return a run by its fingerprint, by as many of its first digits as are needed, by TABLE/ROW, or the `latest`.

    With a task's name, the run's weights are good to use: it is of that task, finished, and has not diverged.

    Raises:
        UserError: if no run, or more than one, begins so, its `config.json` is missing or damaged, or it is not such a
            run of the task.
    """
    where = Storage.open(storage)
    folder = find_run(where, str(fingerprint_start))
    name, digits = folder.task, folder.fingerprint
    if task not in (None, name):
        raise UserError(f"run {digits} is of {name}, not of {task}; name a run of {task}")
    of = find(name)
    try:
        run = TrainedRun(of, folder, folder.config(of))
    except UserError as error:
        raise UserError(f"run {digits} is of another version of {name} ({error}); train it again") from error
    if fingerprint(name, of.version, run.config) != digits:
        errors.print(f"note: run {digits} is of an older version of {name}; its numbers no longer count")
    if task and "diverged" in run.result:
        raise UserError(f"run {digits} has diverged: its weights are no numbers; train it with other settings")
    return run
