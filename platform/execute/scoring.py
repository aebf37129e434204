"""Post-training Ray tasks: predictions, their scores, and measurements."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retable.platform import ray_compat
from retable.platform.config import Config, View
from retable.platform.console import ProgressBoard, errors
from retable.platform.errors import TRACEBACK, UserError, one_line, traceback_of
from retable.platform.execute.session import alive_nodes, resource_of
from retable.platform.plan.graph import Node, predict_keys, score_key
from retable.platform.plan.plan import Plan, device_slug, name_of_timing
from retable.platform.spec.arrays import Arrays
from retable.platform.spec.resources import Resources
from retable.platform.spec.table import Measurement
from retable.platform.spec.task import Source, Task, find
from retable.platform.store.lease import DEATHS
from retable.platform.store.provenance import collect
from retable.platform.store.run import RunFolder, listed_shards, read_arrays, view_key, write_arrays
from retable.platform.store.storage import Storage
from retable.platform.text import and_more, grouped

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class ScoringTasks:
    """Predicts and scores views as Ray tasks, each as soon as its run is finished."""

    plan: Plan
    resources: Resources = field(default_factory=Resources)
    gpus: float = 0.0
    """GPUs that the cluster has or may grow to."""
    pending: dict[Any, Node] = field(default_factory=dict)
    """By Ray task."""

    def __post_init__(self) -> None:
        import ray

        self.scorings = {score_key(scoring): scoring for scoring in self.plan.unscored}
        predictions = {f"predict {key}": prediction for key, prediction in self.plan.predictions.items()}
        read = {key for evaluation in self.plan.unscored for key in predict_keys(evaluation, evaluation.reads)}
        items = self.scorings | {key: item for key, item in predictions.items() if key not in read}
        self.weights = {key: item.task.view_cost(item.config, item.view) for key, item in items.items()}
        """Keys of what the board counts: scorings, and predictions that are only joined."""
        self.by_run = grouped((item.folder.path, key) for key, item in items.items())
        """Run path -> those of its keys that the board does not expect yet."""
        self.board = ProgressBoard("evaluation", 0)
        # Made once: each new one would be pickled, sent to every node and read again there.
        self.predict: Any = ray.remote(max_retries=-1)(predict_one)
        self.score: Any = ray.remote(num_cpus=1, max_retries=DEATHS - 1)(score_one)

    def expect(self, folder: RunFolder) -> None:
        """Count the evaluations of a finished run on the board, once."""
        for key in self.by_run.pop(folder.path, ()):
            self.board.add(self.weights[key])

    def submit(self, node: Node) -> None:
        """Start the prediction or scoring of a node."""
        if node.kind == "predict":
            item = self.plan.predictions[node.key.removeprefix("predict ")]
            needs = self.resources.needs(item.task, item.config, self.gpus, "predict")
            predict = self.predict.options(num_cpus=needs.cpus, num_gpus=needs.gpus)
            ref = predict.remote(item.task.name, item.config, item.view, item.folder, item.joined)
        else:
            scoring = self.scorings[node.key]
            ref = self.score.remote(scoring.task.name, scoring.config, scoring.view, scoring.folder)
        self.pending[ref] = node

    def finish_task(self, ref: object) -> tuple[str, bool]:
        """Report a completed Ray task; return the key of its node, and whether it succeeded."""
        node, failure = self.pending.pop(ref), task_error(ref)
        if failure or node.key in self.weights:
            report_result(self.board, node.label(), failure, self.weights.get(node.key, 0.0))
        return node.key, not failure


WAIT = 30.0
"""Seconds in which an idle node starts a task that reserves all of it."""


def task_error(ref: Any) -> str | None:
    """Return why a completed Ray task failed, or None. Tasks return their own error; otherwise their process died."""
    import ray

    try:
        failure: str | None = ray.get(ref)
    except ray.exceptions.RayError as error:
        return one_line(error)
    return failure


def report_result(board: ProgressBoard, name: str, failure: str | None, weight: float = 1.0) -> None:
    """Show the outcome of a task."""
    if failure:
        board.fail(name, failure)
    else:
        board.done(name, weight)


def predict_one(task_name: str, config: Config, view: View, folder: RunFolder, joined: bool) -> str | None:
    """Predict every shard of one view of a finished run that is not there yet; return why it failed, or None."""
    from retable.platform.train.worker import threads

    task = find(task_name)
    try:
        with threads(1):  # a notebook that asks for scores keeps its own number
            source = _source_of(task, config, folder)
            artifacts = folder.artifacts(view, weights_digest(folder, view))
            names = ("predictions.npz", "summary.npz") if joined else ("summary.npz",)
            weights, again = None, _begun_again()
            for shard in task.shards(config, view, source):
                if all(artifacts.exists(f"{shard}/{name}") for name in names):
                    continue
                if again:
                    _count_death(artifacts, shard)
                    again = False
                weights = weights or folder.weights(view.epoch)
                predictions = task.predict(config, view, weights, source, shard)
                if joined:
                    write_arrays(artifacts, f"{shard}/predictions.npz", predictions)
                write_arrays(
                    artifacts, f"{shard}/summary.npz", task.summarise(config, view, predictions, source, shard)
                )
            if weights is not None:
                artifacts.remove("deaths.json")
                folder.folder.remove(f"views/{view_key(view)}/{TRACEBACK}")
    except Exception as error:
        return failed(folder, view, error)
    return None


def _begun_again() -> bool:
    """Return whether Ray retries this task after its process died."""
    import ray

    return ray.is_initialized() and ray_compat.task_attempt() > 0


def _count_death(artifacts: Storage, shard: str) -> None:
    """Count a process that died while predicting a shard: a lost machine is no fault of the shard, three are.

    Raises:
        UserError: where it is no accident any more.
    """
    before = artifacts.read_json("deaths.json") if artifacts.exists("deaths.json") else {}
    died = before.get(shard, 0) + 1
    if died >= DEATHS:
        artifacts.remove("deaths.json")
        raise UserError(f"its process died {DEATHS} times at {shard}; it may need more memory than there is")
    artifacts.write_json("deaths.json", {shard: died})


def _source_of(task: Task, config: Config, folder: RunFolder) -> Source:
    """Return the data set of a finished run.

    Raises:
        UserError: where it is not the one that the run was trained on.
    """
    source, result = Source.of(folder.storage, task.dataset.where(config)), folder.outcome()
    if result is not None and result["data"] != source.info["digest"]:
        raise UserError(f"{source.folder}: not the data that the run was trained on; train it again, or put those back")
    return source


def weights_digest(folder: RunFolder, view: View) -> str:
    """Return the digest of the weights that a view of a finished run names."""
    return str((folder.result() or {"weights": {}})["weights"].get(str(view.epoch), ""))


def training_metrics(folder: RunFolder, view: View, epochs: int) -> dict[str, float]:
    """Return the training's own metrics at a view's epoch; with early stopping the last one's are the best one's."""
    if view.epoch == epochs:
        return dict((folder.result() or {"metrics": {}})["metrics"])
    digest = weights_digest(folder, view)
    rows = [row for row in folder.history() if digest in (row.get("weights"), row.get("best"))]
    best = max(rows, key=lambda row: bool(row["epoch"] == view.epoch), default={})
    return {name: v for name, v in best.items() if isinstance(v, (int, float)) and name != "time"}


def summaries(task: Task, config: Config, view: View, folder: RunFolder) -> dict[str, Arrays]:
    """Read what a view of a finished run is scored from: shard -> arrays."""
    arrays: dict[str, Arrays] = {}
    for read in task.reads(view):
        artifacts = folder.artifacts(read, weights_digest(folder, read))
        shards = shards_of(task, config, [read], folder.storage, artifacts)
        arrays |= {shard: read_arrays(artifacts, f"{shard}/summary.npz") for shard in shards}
    return arrays


def shards_of(task: Task, config: Config, reads: Sequence[View], storage: Storage, folder: Storage) -> list[str]:
    """Return the shards of views: as the dataset has them or, where it is not here, as a bundle listed them.

    Args:
        task: whose views they are.
        config: of the run.
        reads: the views.
        storage: where the dataset lies.
        folder: the folder of the shards, with `shards.json` where they came in a bundle.

    Raises:
        UserError: if the list is damaged.
        FileNotFoundError: if there is neither a dataset nor a list.
    """
    where = task.dataset.where(config)
    if not storage.exists(f"data/{where}/dataset.json") and (listed := listed_shards(folder)) is not None:
        return listed
    source = Source.of(storage, where)
    return [shard for read in reads for shard in task.shards(config, read, source)]


def score_one(task_name: str, config: Config, view: View, folder: RunFolder) -> str | None:
    """Evaluate one view of a finished run from its summaries; return why it failed, or None."""
    task = find(task_name)
    try:
        start = time.perf_counter()
        source = _source_of(task, config, folder)
        metrics = task.evaluate(config, view, summaries(task, config, view, folder), source)
        folder.save_scores(view, weights_digest(folder, view), metrics, time.perf_counter() - start)
        folder.folder.remove(f"views/{view_key(view)}/{TRACEBACK}")
    except Exception as error:
        return failed(folder, view, error)
    return None


def failed(folder: RunFolder, view: View, error: Exception) -> str:
    """Keep the traceback of a prediction or scoring with its view, if the storage can; return the error in a line."""
    with suppress(Exception):
        if text := traceback_of(error):
            folder.folder.write(f"views/{view_key(view)}/{TRACEBACK}", text)
    return one_line(error)


def predict_and_score(task: Task, config: Config, view: View, folder: RunFolder) -> str | None:
    """Predict and score one view of a finished run in this process; return why it failed, or None."""
    for read in task.reads(view):
        if failure := predict_one(task.name, config, read, folder, joined=False):
            return failure
    return score_one(task.name, config, view, folder)


def score_weights(
    task: Task, config: Config, view: View, weights: Mapping[str, Tensor], source: Source
) -> Mapping[str, float]:
    """Score weights that are still in training, and keep nothing."""
    summaries_of: dict[str, Arrays] = {}
    for read in task.reads(view):
        for shard in task.shards(config, read, source):
            predictions = task.predict(config, read, weights, source, shard)
            summaries_of[shard] = task.summarise(config, read, predictions, source, shard)
    return task.evaluate(config, view, summaries_of, source)


def measure_all(plan: Plan, resources: Resources) -> dict[str, str]:
    """Take the missing measurements one at a time, each with its node to itself; return the failures.

    None starts after the deadline. The node is this process's own, or one that has what `plan.measure_on` names.
    Measurements reserve a whole node, so they run last.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    todo = plan.unmeasured
    if not todo or resources.late:
        return {}
    with ProgressBoard("measurements", len(todo)).show() as board:
        if plan.measure_on:
            board.start("a node", f"with {plan.measure_on} is waited for")
            node = _node_with(plan.measure_on)
            board.stop("a node")
        else:
            node = ray.get_runtime_context().get_node_id()
        capacity = next((info["Resources"] for info in alive_nodes() if info["NodeID"] == node), None)
        if capacity is None:
            raise UserError(f"node {node}, which measurements wanted, is gone; run the command again")
        alone: dict[str, Any] = {
            "num_cpus": capacity.get("CPU", 0.0),
            "num_gpus": capacity.get("GPU", 0.0),
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        measuring: Any = ray.remote(**alone)(measure_one)
        probe: Any = ray.remote(**alone)(_current_node)
        told = False
        for timing in itertools.takewhile(lambda _: not resources.late, todo):
            if not told and not ray.wait([probe.remote()], timeout=WAIT)[0]:
                told = _note_who_holds(node, capacity.get("CPU", 0.0))
            name = name_of_timing(timing, plan.shared)
            board.start(name)
            data = timing.task.dataset.where(timing.config) if timing.row.reads_data else ""
            taken = measuring.remote(timing.row, timing.config, plan.storage, timing.stem, data, plan.measure_on)
            report_result(board, name, task_error(taken))
        return board.failures


def _note_who_holds(node: str, cpus: float) -> bool:
    """Print a note if other processes hold CPUs of the node that measurements wait for; return whether they do."""
    held_cpus = cpus - ray_compat.free_cpus(node)
    if held_cpus > 0:
        held = f"others hold {held_cpus:g} of the node's {cpus:g} CPUs, and a measurement wants all"
        if actors := ray_compat.actors_on(node):
            held += f"; on it are {and_more(actors, 5)}"
        remedy = "end what holds them (`retable serve` does, too), or name another node with --measure-on"
        errors.print(f"note: measurements wait: {held}; {remedy}", markup=False)
    return held_cpus > 0


def _node_with(word: str) -> str:
    """Return a node that has a custom resource or accelerator type; wait for one if the cluster may grow."""
    import ray

    probe = ray.remote(num_cpus=1, resources={resource_of(word): 0.001})(_current_node)  # no other node can run it
    ref = probe.remote()
    if not ray.wait([ref], timeout=WAIT)[0]:
        for info in alive_nodes():
            if resource_of(word) in info["Resources"]:
                _note_who_holds(info["NodeID"], info["Resources"].get("CPU", 0.0))
    node: str = ray.get(ref)
    return node


def _current_node() -> str:
    """Return the node that this process runs on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def measure_one(
    row: Measurement, config: Config, storage: Storage, stem: str, data: str = "", measured_on: str = ""
) -> str | None:
    """Take one measurement and write it, named by its device; `data`: the dataset that it reads."""
    try:
        given = dict(row.arguments)
        if row.reads_data:
            given["source"] = Source.of(storage, data) if storage.exists(f"data/{data}/dataset.json") else None
        made = collect(stem.split("/")[1])
        record = {"metrics": dict(row.measure(config, **given)), "provenance": made, "measured on": measured_on}
        storage.write_json(f"{stem}{device_slug()}.json", record)
    except Exception as error:
        return one_line(error)
    return None
