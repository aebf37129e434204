"""Dependency graph of a plan: every dataset, training, prediction, score, combination and measurement, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from graphlib import TopologicalSorter
from typing import Literal

from retable.platform.config import View, parent
from retable.platform.plan.plan import (
    Plan,
    Scoring,
    Shared,
    Training,
    name_of,
    name_of_combining,
    name_of_timing,
    name_of_view,
)
from retable.platform.store.run import RunFolder, view_key
from retable.platform.store.storage import Storage
from retable.platform.text import clock

Kind = Literal["data", "train", "predict", "score", "combine", "measure"]


@dataclass(frozen=True)
class Node:
    """One work item of a plan."""

    key: str
    """Its kind, and where its result lies on the storage."""
    kind: Kind
    label: Callable[[], str]
    """Returns its name for people: a plan has tens of thousands of nodes, and few are ever shown."""
    needs: frozenset[str] = frozenset()
    """Keys of the nodes that end before this one starts."""
    cost: float = 0.0
    """Seconds of one CPU core, by the task's estimate."""


def build(plan: Plan) -> dict[str, Node]:
    """Return the graph of what a plan still has to do: key -> node, each after the nodes that it needs."""
    shared = plan.shared
    measurements = [
        Node(f"measure {timing.path}", "measure", partial(name_of_timing, timing, shared)) for timing in plan.unmeasured
    ]
    trainings = train_nodes(plan.missing, plan.storage, shared)
    nodes = {node.key: node for node in (*trainings, *evaluation_nodes(plan), *measurements)}
    order = TopologicalSorter({key: node.needs & nodes.keys() for key, node in nodes.items()}).static_order()
    return {key: replace(nodes[key], needs=nodes[key].needs & nodes.keys()) for key in order}


def train_key(path: str) -> str:
    """Return the key of a training by the path of its run."""
    return f"train {path}"


def data_key(training: Training) -> str:
    """Return the key of a training's dataset."""
    return f"data {training.task.dataset.where(training.config)}"


def train_nodes(trainings: Iterable[Training], storage: Storage, shared: Shared) -> Iterator[Node]:
    """Yield the nodes of trainings, in their order, and of their datasets.

    A dataset is loaded for the first wave that reads it: not before the parent of such a training has ended.
    """
    trainings = list(trainings)
    keys = {train_key(training.folder.path) for training in trainings}
    parents: dict[str, frozenset[str]] = {}
    readers: dict[str, Training] = {}
    for training in trainings:
        ancestor = parent(training.config)
        before = "" if ancestor is None else train_key(RunFolder.of(storage, training.task, ancestor).path)
        parents[training.folder.path] = frozenset({before} & keys)
        first = readers.setdefault(data_key(training), training)
        readers[data_key(training)] = min(first, training, key=lambda candidate: candidate.wave)
    for data, reader in readers.items():
        yield Node(data, "data", partial(data.removeprefix, "data "), parents[reader.folder.path])
    for training in trainings:
        path, cost = training.folder.path, training.task.cost(training.config)
        yield Node(
            train_key(path), "train", partial(name_of, training, shared), parents[path] | {data_key(training)}, cost
        )


def evaluation_nodes(plan: Plan) -> Iterator[Node]:
    """Yield the nodes of predictions, scores and combinations; those of a run need its training, finished or not."""
    for key, prediction in plan.predictions.items():
        cost = prediction.task.view_cost(prediction.config, prediction.view)
        run = frozenset([train_key(prediction.folder.path)])
        yield Node(f"predict {key}", "predict", partial(name_of_view, prediction, plan.shared), run, cost)
    predicted = {f"predict {key}" for key in plan.predictions}
    for scoring in plan.unscored:
        reads = predict_keys(scoring, scoring.reads)
        yield Node(score_key(scoring), "score", partial(name_of_view, scoring, plan.shared), frozenset(reads))
    for row in plan.uncombined:
        scores = {score_key(member) for member in row.members if not member.done}
        reads = {key for member in row.members for key in predict_keys(member, row.reads(member))}
        yield Node(
            f"combine {row.path}", "combine", partial(name_of_combining, row), frozenset(scores | reads & predicted)
        )


def score_key(scoring: Scoring) -> str:
    """Return the key of a scoring."""
    return f"score {scoring.folder.path}/{view_key(scoring.view)}"


def predict_keys(scoring: Scoring, views: Iterable[View]) -> set[str]:
    """Return the keys of predictions of some views of a run."""
    return {f"predict {scoring.folder.path}/{view_key(view)}" for view in views}


class Order:
    """Yields the nodes that may start, as others end; what needs a failed node fails with it.

    A dataset does not: it waits for one training, and others read it, too.
    Keys that nodes need, and that are not nodes themselves, end by `end` like all others.

    Raises:
        graphlib.CycleError: where nodes need each other.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.key: node for node in nodes}
        self.started: set[str] = set()
        self.ended: set[str] = set()
        self.failed: set[str] = set()
        self.skipped: list[Node] = []
        """Nodes that failed as a need of theirs did; whoever handles them empties this list."""
        self._sorter = TopologicalSorter({key: node.needs for key, node in self.nodes.items()})
        self._sorter.prepare()

    def ready(self) -> list[Node]:
        """Return the nodes that may start and were not returned before."""
        nodes = []
        while keys := self._sorter.get_ready():
            for key in keys:
                self.started.add(key)
                node = self.nodes.get(key)
                if node is not None and node.kind != "data" and self.failed & node.needs:
                    self.skipped.append(node)
                    self.end(key, failed=True)
                elif node is not None:
                    nodes.append(node)
        return nodes

    def end(self, key: str, failed: bool = False) -> None:
        """Record that a node which may start has ended; do nothing for one that has ended before, or is unknown."""
        if key in self.ended or key not in self.started:
            return
        self.ended.add(key)
        if failed:
            self.failed.add(key)
        self._sorter.done(key)


def critical_path(graph: Mapping[str, Node]) -> list[Node]:
    """Return the chain of nodes that takes longest, of a graph in `build`'s order: no number of machines is faster."""
    best: dict[str, tuple[float, str]] = {}  # key -> seconds until it ends, and the node before it
    for key, node in graph.items():
        before = max(node.needs, key=lambda need: best[need][0], default="")
        best[key] = (node.cost + (best[before][0] if before else 0.0), before)
    key = max(best, key=lambda end: best[end][0], default="")
    chain = []
    while key:
        chain.append(graph[key])
        key = best[key][1]
    return chain[::-1]


def as_text(graph: Mapping[str, Node]) -> Iterator[str]:
    """Yield a graph as lines: each node with the nodes that it waits for, and the critical path."""
    numbers = {key: number for number, key in enumerate(graph, 1)}
    for key, node in graph.items():
        cost = f", {clock(node.cost)}" if node.cost else ""
        after = ", ".join(str(number) for number in sorted(numbers[need] for need in node.needs))
        yield f"{numbers[key]:>5} {node.kind:8} {node.label()}{cost}{f'  <- {after}' if after else ''}"
    chain = critical_path(graph)
    if chain:
        seconds = sum(node.cost for node in chain)
        yield f"longest chain, {clock(seconds)} of one core: {' -> '.join(str(numbers[node.key]) for node in chain)}"


SHAPES = {"data": "cylinder", "train": "box", "predict": "ellipse", "score": "ellipse", "combine": "diamond"}


def as_dot(graph: Mapping[str, Node]) -> Iterator[str]:
    """Yield a graph as lines of Graphviz's DOT."""
    yield "digraph plan {"
    yield "  rankdir=LR;"
    for key, node in graph.items():
        label = json.dumps(f"{node.kind}\n{node.label()}", ensure_ascii=False)
        yield f"  {json.dumps(key)} [label={label}, shape={SHAPES.get(node.kind, 'note')}];"
        yield from (f"  {json.dumps(need)} -> {json.dumps(key)};" for need in sorted(node.needs))
    yield "}"
