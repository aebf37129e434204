"""What the driver hears of Tune's trials, and shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from retable.platform import ray_compat
from retable.platform.console import Board
from retable.platform.store import lease
from retable.platform.store.run import RunFolder

FAILURE = "trial_failure"
"""Under this name a trial reports what went wrong, in a line; `error` may be a metric."""
TAKEN = "trial_taken"
"""Under this name a trial reports the runs that are another command's."""

LATE = "trial_late"
"""Under this name a trial reports that it did not begin, as the deadline had passed."""

Spec = Mapping[str, Any]
"""What a trial is given."""


@dataclass(frozen=True)
class Piece:
    """One run of a trial, as people see it."""

    name: str
    folder: RunFolder
    epochs: int
    weight: float = 1.0


def nothing(*_: Any) -> None:
    """Do nothing."""


@dataclass
class Watch:
    """Hears of each trial what the board shows and what the driver does next."""

    board: Board
    pieces: Callable[[Spec], Sequence[Piece]]
    """A trial's spec -> the runs that it trains."""
    started: Callable[[Spec], None] = nothing
    ended: Callable[[Spec, Mapping[str, Any]], None] = nothing
    """Called with a trial's spec and its last report, in which `FAILURE` or `TAKEN` may stand."""
    look: Callable[[], None] = nothing
    """Called again and again while trials run."""
    begun: dict[str, int] = field(default_factory=dict)
    """Trial -> attempts at its runs when its process last died."""

    trials: dict[str, Spec] = field(default_factory=dict)
    """Trials that run."""

    @property
    def running(self) -> list[RunFolder]:
        """The runs that are trained now."""
        return [piece.folder for spec in self.trials.values() for piece in self.pieces(spec)]

    def callback(self) -> Any:
        """Return the Tune callback that calls us."""
        from ray.tune import Callback

        watch = self

        class Forward(Callback):
            def __reduce__(self) -> Any:
                """Pickle nothing of ours: Ray writes callbacks beside its state, and a terminal cannot be pickled."""
                return Callback, ()

            def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
                watch.look()

            def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                for piece in watch.pieces(trial.config):
                    watch.board.start(piece.name)
                watch.trials[trial.trial_id] = trial.config
                watch.started(trial.config)

            def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
                if "epoch" in result:
                    epoch = result["epoch"]
                    for piece in watch.pieces(trial.config):
                        watch.board.update(piece.name, f"epoch {epoch} of {piece.epochs}", epoch, piece.epochs)

            def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                watch.trials.pop(trial.trial_id, None)
                watch.end(trial.config, trial.last_result or {})

            def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                watch.died(trial)

            def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                watch.trials.pop(trial.trial_id, None)
                watch.end(trial.config, {FAILURE: "its process died more often than it was started again"})

        return Forward()

    def died(self, trial: Any) -> None:
        """Let a trial whose process died begin again as often as it does begin.

        How often a training may die at one step is counted where it begins (`lease.claim`).
        """
        with suppress(Exception):  # a storage that is away tells nothing: the trial may go on
            begun = sum(lease.newest(piece.folder) for piece in self.pieces(trial.config))
            if begun == self.begun.get(trial.trial_id):
                return
            self.begun[trial.trial_id] = begun
        ray_compat.allow_failures(trial, lease.DEATHS)

    def end(self, spec: Spec, last: Mapping[str, Any]) -> None:
        """Show what became of a trial; a stack that failed, or was not ours, has no outcome yet."""
        pieces = self.pieces(spec)
        if FAILURE in last and len(pieces) == 1:
            self.board.fail(pieces[0].name, last[FAILURE])
        for piece in pieces:
            if FAILURE in last or LATE in last or piece.folder.path in last.get(TAKEN, ()):
                self.board.stop(piece.name)
            else:
                self.board.done(piece.name, piece.weight)
        self.ended(spec, last)
