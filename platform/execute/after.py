"""What follows training, in one flow with it: views are scored, and rows joined, as soon as what they need is there."""

from __future__ import annotations

from typing import Any

from retable.platform.execute.ensembles import Joiner
from retable.platform.execute.scoring import Scorer, scores
from retable.platform.plan.plan import Combining, Plan
from retable.platform.spec.resources import Resources
from retable.platform.store.run import RunFolder, view_key


class After:
    """Predicts, scores and joins what a plan lacks, beside trainings that still run."""

    def __init__(self, plan: Plan, resources: Resources | None = None, gpus: float = 0.0) -> None:
        self.scorer, self.joiner = Scorer(plan, resources or Resources(), gpus), Joiner(plan)
        self.waiting: list[tuple[Combining, set[str]]] = [(row, self._needs(row)) for row in plan.uncombined]
        """Rows to be joined, with the keys of the predictions and scorings that they wait for."""

    def _needs(self, row: Combining) -> set[str]:
        keys = {f"{each.folder.path}/{view_key(view)}" for each in row.members for view in (*row.reads(each),)}
        seen = {scores(f"{each.folder.path}/{view_key(each.view)}") for each in row.members}
        return (keys | seen) & self.scorer.open

    def submit(self, folder: RunFolder) -> None:
        """Begin what a finished run makes possible."""
        self.scorer.submit(folder)

    def look(self, seconds: float | None = 0) -> None:
        """Take note of what has ended, and begin what that makes possible; wait so long for the first of it."""
        import ray

        pending: list[Any] = [
            *self.scorer.pending,
            *self.joiner.actors.running,
        ]  # either may hold the CPUs of the other
        ended = (
            ray.wait(pending, num_returns=len(pending) if seconds == 0 else 1, timeout=seconds)[0] if pending else []
        )
        ended = [ref for ref in ended if ref in self.scorer.pending]
        for ref in ended:
            self.scorer.take(ref)
        if ended:
            self._join()
        self.joiner.look()

    def finish(self) -> dict[str, str]:
        """Do what is left of finished runs, wait for all of it, and return the failures."""
        self.scorer.submit_finished()
        with self.scorer.board.show():
            while self.scorer.pending:
                self.look(None)
        self._join()
        return self.scorer.board.failures | self.joiner.finish()

    def _join(self) -> None:
        """Begin the rows whose members are all there."""
        ready = [row for row, needs in self.waiting if needs.isdisjoint(self.scorer.open)]
        self.waiting = [(row, needs) for row, needs in self.waiting if not needs.isdisjoint(self.scorer.open)]
        self.joiner.begin(row for row in ready if len(row.inputs()) == len(row.members))
