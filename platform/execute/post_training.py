"""Post-training pipeline: predicts, scores and combines as soon as inputs exist, while other trainings run."""

from __future__ import annotations

from retable.platform.execute.ensembles import Ensembler
from retable.platform.execute.scoring import ScoringTasks, scores_key
from retable.platform.plan.plan import Combining, Plan
from retable.platform.spec.resources import Resources
from retable.platform.store.run import RunFolder, view_key


class After:
    """Predicts, scores and combines what a plan lacks, while trainings run."""

    def __init__(self, plan: Plan, resources: Resources | None = None, gpus: float = 0.0) -> None:
        self.scorer, self.joiner = ScoringTasks(plan, resources or Resources(), gpus), Ensembler(plan)
        self.waiting: list[tuple[Combining, set[str]]] = [(row, self._needs(row)) for row in plan.uncombined]
        """Rows to be joined, with the keys of the predictions and scorings that they wait for."""

    def _needs(self, row: Combining) -> set[str]:
        keys = {f"{each.folder.path}/{view_key(view)}" for each in row.members for view in (*row.reads(each),)}
        seen = {scores_key(f"{each.folder.path}/{view_key(each.view)}") for each in row.members}
        return (keys | seen) & self.scorer.open

    def submit(self, folder: RunFolder) -> None:
        """Start the predictions and scorings that a finished run makes possible."""
        self.scorer.submit(folder)

    def poll(self, seconds: float | None = 0) -> None:
        """Process completed tasks and start what depends on them; block up to `seconds` for the first one."""
        import ray

        pending: list[object] = [
            *self.scorer.pending,
            *self.joiner.actors.running,
        ]  # either may hold the CPUs of the other
        ended = (
            ray.wait(pending, num_returns=len(pending) if seconds == 0 else 1, timeout=seconds)[0] if pending else []
        )
        ended = [ref for ref in ended if ref in self.scorer.pending]
        for ref in ended:
            self.scorer.finish_task(ref)
        if ended:
            self._join()
        self.joiner.poll()

    def finish(self) -> dict[str, str]:
        """Process all finished runs, wait for every task, and return the failures."""
        self.scorer.submit_finished()
        with self.scorer.board.show():
            while self.scorer.pending:
                self.poll(None)
        self._join()
        return self.scorer.board.failures | self.joiner.finish()

    def _join(self) -> None:
        """Start the combined rows whose members are all predicted and scored."""
        ready = [row for row, needs in self.waiting if needs.isdisjoint(self.scorer.open)]
        self.waiting = [(row, needs) for row, needs in self.waiting if not needs.isdisjoint(self.scorer.open)]
        self.joiner.start(row for row in ready if len(row.inputs()) == len(row.members))
