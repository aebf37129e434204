"""The dependency graph of a plan: each node once, after its needs, never after a failed need; as text and DOT."""

import re
from dataclasses import replace
from functools import partial
from graphlib import CycleError
from itertools import pairwise

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retable.platform.cli import app as cli
from retable.platform.plan.graph import Node, Order, as_dot, as_text, build, critical_path, train_key, train_nodes
from retable.platform.spec.table import Combined, Measurement, Row
from retable.tasks.halves.joins import mean
from tests.platform.halves import ROWS, fill, planned


@st.composite
def graphs(draw):
    """Draw a graph, the nodes that fail, and the order in which running nodes end."""
    count = draw(st.integers(1, 12))
    needs = [draw(st.sets(st.integers(0, number - 1))) if number else set() for number in range(count)]
    costs = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    names = draw(st.permutations(range(count)))  # so that the order of names says nothing of the order of nodes
    key = {number: f"train {names[number]}" for number in range(count)}
    nodes = [
        Node(
            key[number],
            "train",
            partial(str, number),
            frozenset(key[each] for each in needs[number]),
            float(costs[number]),
        )
        for number in range(count)
    ]
    return nodes, draw(st.sets(st.sampled_from(sorted(key.values())))), draw(st.randoms(use_true_random=False))


def oracle(nodes):
    """Return the same graph in networkx."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(node.key for node in nodes)
    graph.add_edges_from((need, node.key) for node in nodes for need in node.needs)
    return graph


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_each_node_starts_once_after_its_needs_and_never_after_a_failed_one(drawn):
    nodes, failing, random = drawn
    graph = oracle(nodes)
    shuffled = random.sample(nodes, len(nodes))
    order, running, started, ended = Order(shuffled), [], [], set()
    while True:
        fresh = order.ready()
        for node in fresh:
            assert networkx.ancestors(graph, node.key) <= ended - failing, "its needs have ended, and well"
        running += fresh
        started += [node.key for node in fresh]
        if not running:
            break
        node = running.pop(random.randrange(len(running)))
        ended.add(node.key)
        for _ in range(random.choice((1, 2))):  # told twice is once
            order.end(node.key, failed=node.key in failing)
    lost = {key for key in graph if networkx.ancestors(graph, key) & failing}
    assert sorted(started) == sorted(graph.nodes - lost)
    assert order.failed == lost | failing & set(started) and order.ended == order.nodes.keys()


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_the_longest_chain_is_the_one_of_networkx(drawn):
    nodes, _, _ = drawn
    chain = critical_path({node.key: node for node in nodes})
    assert all(before.key in after.needs for before, after in pairwise(chain))
    costs = {node.key: node.cost for node in nodes}
    graph = networkx.DiGraph([("start", key, {"weight": cost}) for key, cost in costs.items()])
    graph.add_weighted_edges_from((need, node.key, costs[node.key]) for node in nodes for need in node.needs)
    assert sum(node.cost for node in chain) == networkx.dag_longest_path_length(graph)


def test_nodes_that_need_each_other_are_refused():
    with pytest.raises(CycleError):
        Order([Node("a", "train", str, frozenset("b")), Node("b", "train", str, frozenset("a"))])


def test_keys_that_are_no_nodes_end_when_they_are_told_to():
    order = Order(
        [Node("score", "score", str, frozenset(["train a"])), Node("b", "score", str, frozenset(["train b"]))]
    )
    assert order.ready() == []
    order.end("train a")
    order.end("train b", failed=True)
    order.end("train c")
    assert [node.key for node in order.ready()] == ["score"] and order.failed == {"train b", "b"}


def measure(config):
    return {"seconds": 1.0}


BOTH = Combined(label="both", of=("slow", "fast"), combine=mean)
CHILD = Row(label="child", overrides={"init": "parent", "rate": 0.5}, view={"limit": 0.1})


def shape(graph):
    """Return the kinds of nodes, and each kind's pairs of kinds (need, node)."""
    kinds = sorted(node.kind for node in graph.values())
    pairs = {(graph[need].kind, node.kind) for node in graph.values() for need in node.needs}
    return kinds, pairs


def test_the_graph_of_a_plan_has_each_piece_of_work_once(storage):
    rows = [*ROWS, BOTH, CHILD, Measurement(label="time", measure=measure)]
    graph = build(planned(storage, *rows))
    kinds, pairs = shape(graph)
    views = ["predict"] * 4 + ["score"] * 4
    assert kinds == sorted(["combine", "data", "measure", "train", "train", "train", *views])
    assert pairs == {
        ("data", "train"), ("train", "train"), ("train", "predict"), ("predict", "score"),
        ("predict", "combine"), ("score", "combine"),
    }  # fmt: skip
    seen = set()
    for key, node in graph.items():
        assert node.needs <= seen
        seen.add(key)


def test_trainings_that_may_start_keep_the_order_that_they_were_given_in(storage):
    """A long plan begins with what decides a claim, though that starts from another run."""
    fill(storage, *ROWS)
    plan = planned(storage, Row(label="new", overrides={"rate": 0.7}, view={"limit": 0.1}), CHILD)
    new, child = plan.missing
    assert (new.wave, child.wave) == (0, 1)
    order = Order(train_nodes([child, new], storage, {}))
    (data,) = order.ready()
    order.end(data.key)
    assert [node.key for node in order.ready()] == [train_key(child.folder.path), train_key(new.folder.path)]


def test_a_dataset_that_children_alone_read_is_loaded_after_a_parent(storage):
    parent, child = sorted(planned(storage, CHILD).missing, key=lambda training: training.wave)
    elsewhere = replace(child.task, dataset=replace(child.task.dataset, where=lambda config: "line/other"))
    nodes = {n.key: n for n in train_nodes([replace(child, task=elsewhere), parent], storage, {})}
    assert nodes["data line/other"].needs == {train_key(parent.folder.path)} and not nodes["data line/points"].needs


def test_what_is_done_is_no_node(storage):
    fill(storage, *ROWS)
    assert build(planned(storage, *ROWS)) == {}
    kinds, pairs = shape(build(planned(storage, *ROWS, BOTH)))
    assert kinds == ["combine", "predict", "predict"], "of whose predictions only the summaries were kept"
    assert pairs == {("predict", "combine")}


def test_the_lines_of_a_graph_name_what_each_node_waits_for(storage):
    graph = build(planned(storage, *ROWS, CHILD))
    *lines, last = as_text(graph)
    numbers = dict(zip(graph, range(1, 100), strict=False))
    for (key, node), line in zip(graph.items(), lines, strict=True):
        number, kind, *_ = line.split()
        assert (int(number), kind) == (numbers[key], node.kind) and node.label() in line
        after = line.partition(" <- ")[2]
        assert {int(each) for each in after.split(", ") if each} == {numbers[need] for need in node.needs}
    assert last.startswith("longest chain, ")
    assert list(as_text({})) == []


def test_dot_has_each_node_and_each_edge(storage):
    graph = build(planned(storage, *ROWS, BOTH))
    text = "\n".join(as_dot(graph))
    assert len(re.findall(r"\[label=", text)) == len(graph)
    edges = set(re.findall(r'^  "([^"]+)" -> "([^"]+)";$', text, re.MULTILINE))
    assert edges == {(need, key) for key, node in graph.items() for need in node.needs}


@pytest.mark.parametrize(("form", "first"), [("text", "    1 data     line/points"), ("dot", "digraph plan {")])
def test_the_command_prints_the_graph(storage, capsys, form, first):
    cli.plan(["line/table1"], storage=storage.root, graph=form)
    assert capsys.readouterr().out.startswith(first)
