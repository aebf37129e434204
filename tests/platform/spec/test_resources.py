"""What work takes: a task says it, options override it, and what no machine has is refused or left out."""

import pytest
from typer.testing import CliRunner

from retable.platform.api import plan
from retable.platform.cli.app import app
from retable.platform.config import override
from retable.platform.errors import UserError
from retable.platform.execute import session as cluster
from retable.platform.execute.trials import check, tune_request
from retable.platform.spec.resources import Requirements, Resources, largest, summary
from retable.platform.spec.task import find


@pytest.fixture
def nodes(monkeypatch):
    """Make the cluster be these nodes."""

    def be(*nodes, grows=None):
        there = {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU", "memory")}
        monkeypatch.setattr(cluster, "cluster_resources", lambda: there)
        monkeypatch.setattr(cluster, "growth", lambda: grows or {})
        monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": node} for node in nodes])

    return be


@pytest.mark.parametrize(
    ("name", "changes", "train", "predict"),
    [
        ("rl", {}, 0.25, 0),
        ("weather", {"model": "swin"}, 1, 0.5),
        ("weather", {"model": "all_dry"}, 0, 0),
        ("audio", {}, 1, 0.5),
        ("style", {}, 1, 0.5),
    ],
)
def test_a_task_says_what_part_of_a_gpu_it_takes_and_a_laptop_without_one_takes_none(name, changes, train, predict):
    task = find(name)
    config = override(task.config(), changes)
    said = Resources()
    assert said.needs(task, config, 8.0).gpus == train
    assert said.needs(task, config, 8.0, "predict").gpus == predict
    for stage in ("train", "predict"):
        assert said.needs(task, config, 0.0, stage).gpus == 0


def test_what_smoke_scale_takes_is_what_it_took(nodes):
    nodes({"CPU": 2.0, "memory": 16e9})
    for name in ("rl", "weather", "audio", "style"):
        for training in plan(name, scale="smoke", storage="memory:///none").missing:
            needs = Resources().needs(training.task, training.config, 0.0)
            assert tune_request(needs) == {"CPU": 1, "GPU": 0, "memory": needs.memory} and needs.memory <= 4e9
            check(needs)


def test_options_come_before_what_a_task_says():
    task = find("rl")
    said = Resources(workers=2, cpus=3, gpus=0.5)
    assert said.needs(task, task.config(), 0.0) == Requirements(workers=2, cpus=3, gpus=0.5), (
        "to be refused, not left out"
    )
    assert said.needs(task, task.config(), 4.0, "predict") == Requirements(), "rollouts are no work for GPUs"
    weather = find("weather")
    assert said.needs(weather, weather.config(), 4.0, "predict").gpus == 0.5
    assert Resources(gpus=0).needs(weather, weather.config(), 4.0).gpus == 0


def test_a_stack_takes_the_most_of_each():
    assert largest([Requirements(gpus=0.5), Requirements(cpus=2, memory=3e9)]) == Requirements(
        gpus=0.5, cpus=2, memory=3e9
    )


@pytest.mark.parametrize(
    ("needs", "line"),
    [
        (Requirements(cpus=6), "a training wants 6 CPUs and no node has more than 4; lower --cpus-per-run"),
        (Requirements(gpus=2), "a training wants 2 GPUs and no node has more than 1; lower --gpus-per-run"),
        (
            Requirements(gpus=1, workers=4),
            "a training wants 4 GPUs and the cluster has 2; lower --gpus-per-run or --workers",
        ),
        (Requirements(workers=40), "--workers 40 is more than 8 CPUs can run"),
    ],
)
def test_what_no_node_has_is_refused_instead_of_waited_for(nodes, needs, line):
    nodes({"CPU": 4.0, "GPU": 1.0, "memory": 8e9}, {"CPU": 4.0, "GPU": 1.0, "memory": 8e9})
    with pytest.raises(UserError, match=line):
        check(needs)
    check(Requirements(cpus=4, gpus=1, workers=1))
    nodes({"CPU": 0.0}, grows={"CPU": 64.0, "GPU": 8.0})
    check(needs)


def test_a_plan_says_what_trainings_take(tmp_path):
    work = plan("rl/table1", scale="paper", storage=tmp_path)
    assert summary(work) == ["rl: 1 CPU, 0.25 GPU, 1 GB (x 25)", "without a GPU: the same on CPUs alone"]
    assert summary(work, Resources(gpus=1, workers=2)) == ["rl: 2 workers of 1 CPU, 1 GPU, 1 GB (x 25)"]
    shown = CliRunner().invoke(app, ["plan", "weather/table1", "--scale", "paper", "--storage", str(tmp_path)])
    assert "a training takes" in shown.output and "weather: 1 CPU, 1 GPU, 2 GB (x " in shown.output
