"""What follows training, as Ray tasks: predictions and their scores, combinations, measurements."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retable.platform.board import Board
from retable.platform.config import differences
from retable.platform.launch import describe, name_of, one_line
from retable.platform.plan import Plan, Scoring
from retable.platform.provenance import collect
from retable.platform.runs import RunFolder
from retable.platform.storage import Storage
from retable.platform.task import find


@dataclass
class Scorer:
    """Predicts and evaluates views as Ray tasks: those of a run as soon as it is finished, beside other trainings."""

    plan: Plan
    pending: dict[Any, str] = field(default_factory=dict)
    submitted: set[str] = field(default_factory=set)

    def submit(self, folder: RunFolder) -> None:
        """Start the scoring of a finished run's views."""
        import ray

        remote = ray.remote(num_cpus=1, max_retries=3)(score_one)
        for key, scoring in self.plan.scorings.items():
            if scoring.folder == folder and not scoring.done and key not in self.submitted:
                self.submitted.add(key)
                ref = remote.remote(scoring.task.name, scoring.config, scoring.view, scoring.folder)
                self.pending[ref] = name_of_view(scoring)

    def finish(self) -> dict[str, str]:
        """Score what is left, wait for all of it, and return the failures."""
        for scoring in self.plan.unscored:
            if scoring.folder.result() is not None:
                self.submit(scoring.folder)
        weights = {name_of_view(s): s.task.view_cost(s.config, s.view) for s in self.plan.unscored}
        total = sum(weights[name] for name in self.pending.values())
        with Board("evaluation", len(self.pending), total).show() as board:
            await_all(self.pending, board, weights)
            return board.failures


def await_all(pending: dict[Any, str], board: Board, weights: Mapping[str, float]) -> None:
    """Wait for Ray tasks as they end, and show each on the board. A task returns None, or why it failed."""
    import ray

    while pending:
        (ready, *_), _ = ray.wait(list(pending), num_returns=1)
        name = pending.pop(ready)
        try:
            failure = ray.get(ready)
        except ray.exceptions.RayError as error:
            failure = one_line(error)
        if failure:
            board.fail(name, failure)
        else:
            board.done(name, weights.get(name, 1.0))


def name_of_view(scoring: Scoring) -> str:
    """Name a view of a run."""
    return f"{name_of(scoring)} as {describe(differences(scoring.view, scoring.task.view()))}"


def score_one(task_name: str, config: Any, view: Any, folder: RunFolder) -> str | None:
    """Predict and evaluate one view of a finished run; return why it failed, or None."""
    import torch

    torch.set_num_threads(1)
    task = find(task_name)
    try:
        start = time.perf_counter()
        weights = folder.weights(view.epoch)
        info = folder.storage.read_json(f"data/{task.dataset.where(config)}/dataset.json")
        predictions = task.predict(config, view, weights, info)
        metrics = task.evaluate(config, view, predictions, info)
        digest = (folder.result() or {})["weights"][str(view.epoch)]
        folder.save_scores(view, digest, predictions, metrics, time.perf_counter() - start)
    except Exception as error:
        return one_line(error)
    return None


def measure_all(plan: Plan) -> dict[str, str]:
    """Take the measurements that are missing, one at a time, each with its node to itself; return the failures."""
    import ray

    todo = plan.unmeasured
    if not todo:
        return {}
    cpus = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
    remote = ray.remote(num_cpus=cpus)(measure_one)
    with Board("measurements", len(todo)).show() as board:
        for timing in todo:
            name = f"{timing.row.label} ({name_of(timing)})"
            board.start(name)
            await_all({remote.remote(timing.row.measure, timing.config, plan.storage, timing.path): name}, board, {})
        return board.failures


def measure_one(measure: Any, config: Any, storage: Storage, path: str) -> str | None:
    """Take one measurement and keep it with the device it was taken on."""
    try:
        storage.write_json(path, {"metrics": dict(measure(config)), "provenance": collect()})
    except Exception as error:
        return one_line(error)
    return None


def combine_all(plan: Plan) -> dict[str, str]:
    """Join predictions for every combined row that lacks its scores, as Ray tasks; return the failures."""
    import ray

    todo = [combining for combining in plan.uncombined if len(combining.inputs()) == len(combining.members)]
    if not todo:
        return {}
    remote = ray.remote(num_cpus=1, max_retries=3)(combine_one)
    with Board("combinations", len(todo)).show() as board:
        pending = {}
        for combining in todo:
            members = [(m.config, m.view, m.folder) for m in combining.members]
            task = remote.remote(
                combining.task.name, combining.row.combine, members, combining.path, combining.inputs()
            )
            pending[task] = f"{combining.row.label} {describe(combining.axes)}"
        await_all(pending, board, {})
        return board.failures


def combine_one(task_name: str, combine: Any, members: Any, path: str, inputs: list[str]) -> str | None:
    """Join the predictions of some views and score what comes out as the first member would be scored."""
    task = find(task_name)
    try:
        config, view, folder = members[0]
        info = folder.storage.read_json(f"data/{task.dataset.where(config)}/dataset.json")
        joined = combine([member_folder.predictions(member_view) for _, member_view, member_folder in members])
        metrics = dict(task.evaluate(config, view, joined, info))
        folder.storage.write_json(path, {"inputs": inputs, "metrics": metrics})
    except Exception as error:
        return one_line(error)
    return None
