"""A trial's process does not grow with its trainings, and no more trials start than memory has room for."""

import pytest

from retable.platform.config import override
from retable.platform.execute import session as cluster
from retable.platform.execute.run import launch_for
from retable.platform.execute.scheduler import train_all
from retable.platform.execute.session import ray_cluster, trial_memory
from retable.platform.execute.trials import concurrent
from retable.platform.plan.plan import compile_configs
from retable.platform.spec.resources import Requirements, Resources
from retable.platform.spec.task import find


def train(storage, name, count, cpus, **changes):
    """Train seeds of a toy side by side; return the lines of each log, in the order of their ends."""
    task = find(name)
    task.dataset.prepare(task.config(), storage)
    configs = [override(task.config(), {"seed": seed, **changes}) for seed in range(count)]
    plan = compile_configs(task, configs, storage)
    assert train_all(plan, launch_for(plan, Resources(cpus=cpus))) == {}
    return sorted((one.folder.history() for one in plan.trainings.values()), key=lambda rows: rows[-1]["time"])


@pytest.mark.slow
def test_a_reused_process_does_not_grow_with_its_trainings(storage):
    import ray

    with ray_cluster():
        rows = [log[-1] for log in train(storage, "heavy", 8, cpus=int(ray.cluster_resources()["CPU"]), epochs=1)]
    assert len({row["process"] for row in rows}) == 1, "all cores for one: one process trains them all"
    early, late = ([row["private"] for row in part] for part in (rows[:2], rows[-2:]))
    assert max(late) - min(early) < 200, f"MB of private memory, early {early}, late {late}"  # 500 and more otherwise


@pytest.mark.slow
@pytest.mark.parametrize("output", ["0", "1"])
def test_no_more_trials_start_than_memory_has_room_for(storage, monkeypatch, output):
    """Also where the user wants Tune's new output, which takes no callback of the old one's kind."""
    import ray

    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", output)

    cluster.add_to_path()
    ray.init(address="local", num_cpus=8, _memory=2.5 * Requirements().memory, include_dashboard=False)
    try:
        logs = train(storage, "line", 5, cpus=1, epochs=8, pause=0.5)
    finally:
        ray.shutdown()
    spans = [(log[0]["time"], log[-1]["time"]) for log in logs]
    assert max(sum(first <= begun <= last for first, last in spans) for begun, _ in spans) == 2


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        ([{"CPU": 16.0, "memory": 10e9}], 1e9),
        ([{"CPU": 2.0, "memory": 0.5e9}], 0.5e9),  # alone it starts wherever it can
        ([{"CPU": 4.0, "memory": 0.5e9}, {"CPU": 16.0, "memory": 90e9}], 1e9),  # it goes to the larger one
        ([{"CPU": 0.0, "memory": 0.1e9}, {"CPU": 16.0, "memory": 90e9}], 1e9),  # a head without CPUs
        ([{"CPU": 0.0, "memory": 8e9}], 0),  # its nodes are still to come
        ([], 0),
    ],
)
def test_a_trial_asks_for_no_more_memory_than_its_node_has(monkeypatch, nodes, asked):
    dead = {"Alive": False, "Resources": {"CPU": 16.0, "memory": 1.0}}
    monkeypatch.setattr("ray.nodes", lambda: [dead, *({"Alive": True, "Resources": node} for node in nodes)])
    assert trial_memory(cpus=2, gpus=0, wanted=1e9) == asked
    assert trial_memory(cpus=2, gpus=0.5, wanted=1e9) == 0


def test_what_takes_more_memory_than_any_node_has_is_told_so_once_and_begins(monkeypatch, capsys):
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 4.0, "memory": 6e9}}])
    cluster.cap_memory.cache_clear()
    assert [trial_memory(1, 0, 12e9), trial_memory(1, 0, 12e9), trial_memory(1, 0, 6e9)] == [6e9] * 3
    heard = capsys.readouterr().err
    assert heard.count("note: a training may take 12 GB of memory and no node has more than 6") == 1


@pytest.mark.parametrize(("memory", "groups"), [(16e9, 4), (4e9, 2), (1e9, 1), (None, 4)])
def test_groups_of_workers_heed_memory_too(monkeypatch, memory, groups):
    there = {"CPU": 9.0} | ({"memory": memory} if memory else {})
    monkeypatch.setattr("retable.platform.execute.trials.possible_resources", lambda: there)
    monkeypatch.setattr("retable.platform.execute.session.possible_resources", lambda: there)
    assert concurrent(Requirements(workers=2)) == groups
