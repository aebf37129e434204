"""Tune callback: forwards trial events to the progress display and the scheduler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retable.platform import ray_compat
from retable.platform.console import ProgressBoard
from retable.platform.store import lease
from retable.platform.store.run import RunFolder
from retable.platform.text import plural

if TYPE_CHECKING:
    from ray.tune import Callback
    from ray.tune.experiment import Trial

FAILURE = "trial_failure"
"""Key under which a trial reports its error, in a line; `error` may be a metric."""
TAKEN = "trial_taken"
"""Key under which a trial reports the runs that another command owns."""

LATE = "trial_late"
"""Key under which a trial reports that it did not start, as the deadline had passed."""

Spec = Mapping[str, Any]
"""The config of a trial."""
Report = Mapping[str, Any]
"""Content of a trial's report: metrics, or an outcome under one of the keys above."""


@dataclass(frozen=True)
class RunProgress:
    """One run of a trial as the progress display shows it."""

    name: str
    folder: RunFolder
    epochs: int
    weight: float = 1.0


def nothing(*_: object) -> None:
    """Do nothing."""


@dataclass
class TrialCallback:
    """Forwards Tune trial events to the progress display and the scheduler."""

    board: ProgressBoard
    runs_of: Callable[[Spec], Sequence[RunProgress]]
    """A trial's spec -> the runs that it trains."""
    started: Callable[[Spec], None] = nothing
    on_trial_end: Callable[[Spec, Report], None] = nothing
    """Called with a trial's spec and its last report, which may have `FAILURE` or `TAKEN`."""
    poll: Callable[[], None] = nothing
    """Called repeatedly while trials run."""
    begun: dict[str, int] = field(default_factory=dict)
    """Trial -> number of attempts at its runs when its process last died."""

    trials: dict[str, Spec] = field(default_factory=dict)
    """Running trials."""

    @property
    def running(self) -> list[RunFolder]:
        """Return the runs in training."""
        return [piece.folder for spec in self.trials.values() for piece in self.runs_of(spec)]

    def callback(self) -> Callback:
        """Return the Tune callback that forwards to this object."""
        from ray import tune
        from ray.tune.progress_reporter import TrialProgressCallback

        watch = self

        # In the place of Tune's own, which prints of trials that report nothing. Tune's new output, where the user has
        # switched it on, drops such a callback: we would hear of no trial's end, and wait for ever.
        is_old = os.environ.get("RAY_AIR_NEW_OUTPUT") == "0"
        base: type[Callback] = TrialProgressCallback if is_old else tune.Callback

        class Forward(base):  # type: ignore[valid-type, misc]
            def __reduce__(self) -> tuple[type, tuple[()]]:
                """Pickle the base class: Ray writes callbacks beside its state, and a terminal cannot be pickled."""
                return tune.Callback, ()

            def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
                watch.poll()

            def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
                for piece in watch.runs_of(trial.config):
                    watch.board.start(piece.name, plural(piece.epochs, "epoch"))
                watch.trials[trial.trial_id] = trial.config
                watch.started(trial.config)

            def on_trial_result(
                self, iteration: int, trials: list[Trial], trial: Trial, result: Report, **info: object
            ) -> None:
                if "epoch" in result:
                    epoch = result["epoch"]
                    for piece in watch.runs_of(trial.config):
                        watch.board.update(piece.name, f"epoch {epoch} of {piece.epochs}", epoch, piece.epochs)

            def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
                watch.trials.pop(trial.trial_id, None)
                watch.end(trial.config, trial.last_result or {})

            def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
                watch.died(trial)

            def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
                watch.trials.pop(trial.trial_id, None)
                watch.end(trial.config, {FAILURE: "its process died more often than it was started again"})

        return Forward()

    def died(self, trial: Trial) -> None:
        """Allow a trial whose process died to restart, unless nothing was started since its last death.

        How often a training may die at one step is counted where it begins (`lease.acquire`).
        """
        with suppress(Exception):  # a storage that is away tells nothing: the trial may go on
            begun = sum(lease.newest_number(piece.folder) for piece in self.runs_of(trial.config))
            if begun == self.begun.get(trial.trial_id):
                return
            self.begun[trial.trial_id] = begun
        ray_compat.allow_failures(trial, lease.DEATHS)

    def end(self, spec: Spec, last: Report) -> None:
        """Show a trial's outcome; a stack that failed, or runs that another command owns, have none yet."""
        pieces = self.runs_of(spec)
        if FAILURE in last and len(pieces) == 1:
            self.board.fail(pieces[0].name, last[FAILURE])
        for piece in pieces:
            if FAILURE in last or LATE in last or piece.folder.path in last.get(TAKEN, ()):
                self.board.stop(piece.name)
            else:
                self.board.done(piece.name, piece.weight)
        self.on_trial_end(spec, last)
