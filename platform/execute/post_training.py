"""Post-training pipeline: predicts, scores and combines as soon as inputs exist, while other trainings run."""

from __future__ import annotations

from retable.platform.execute.ensembles import Ensembler
from retable.platform.execute.scoring import ScoringTasks
from retable.platform.plan.graph import Order, evaluation_nodes, train_key
from retable.platform.plan.plan import Plan, Prediction, Scoring
from retable.platform.spec.resources import Resources
from retable.platform.store.run import RunFolder


class After:
    """Predicts, scores and combines what a plan lacks, while trainings run."""

    def __init__(self, plan: Plan, resources: Resources | None = None, gpus: float = 0.0) -> None:
        self.plan = plan
        self.scorer, self.joiner = ScoringTasks(plan, resources or Resources(), gpus), Ensembler(plan)
        self.combinings = {f"combine {combining.path}": combining for combining in plan.uncombined}
        self.order = Order(evaluation_nodes(plan))
        self._start()

    def submit(self, folder: RunFolder) -> None:
        """Start the predictions that a finished run makes possible; of one that diverged there are none."""
        diverged = "diverged" in (folder.result() or {})
        if not diverged:
            self.scorer.expect(folder)
        self.order.end(train_key(folder.path), failed=diverged)
        self._start()

    def _start(self) -> None:
        """Start what waits for nothing any more."""
        while nodes := self.order.ready():
            for node in nodes:
                if node.kind == "combine":
                    self.joiner.start(self.combinings[node.key])
                else:
                    self.scorer.submit(node)

    def poll(self, seconds: float | None = 0) -> None:
        """Process completed tasks and start what depends on them; block up to `seconds` for the first one."""
        import ray

        # Of both kinds, as either may hold the CPUs of the other.
        pending: list[object] = [*self.scorer.pending, *self.joiner.actors.running]
        count = len(pending) if seconds == 0 else 1
        for ref in ray.wait(pending, num_returns=count, timeout=seconds)[0] if pending else []:
            if ref in self.scorer.pending:
                key, succeeded = self.scorer.finish_task(ref)
                self.order.end(key, failed=not succeeded)
        self._start()
        self.joiner.poll()

    def finish(self) -> dict[str, str]:
        """Process all finished runs, wait for every task, and return the failures."""
        runs: list[Scoring | Prediction] = [*self.plan.unscored, *self.plan.predictions.values()]
        for folder in {item.folder.path: item.folder for item in runs}.values():
            if folder.result() is not None:
                self.submit(folder)
        with self.scorer.board.show():
            while self.scorer.pending:
                self.poll(None)
        return self.scorer.board.failures | self.joiner.finish()
