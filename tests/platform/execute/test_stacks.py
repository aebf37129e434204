"""Stacks: trainings of one group in one process, each with its own files, fate and result."""

import math
import os
import threading
import time
from dataclasses import replace

import pytest

from retable.platform.config import override
from retable.platform.execute import trials as launch
from retable.platform.execute.run import launch_for
from retable.platform.execute.scheduler import stack_size, train_all
from retable.platform.execute.session import ray_cluster
from retable.platform.plan.plan import compile_configs, stacks
from retable.platform.spec.resources import Requirements, Resources
from retable.platform.spec.task import find
from retable.platform.store.provenance import here
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.worker import Worker
from tests.platform.halves import fit
from tests.platform.trials import trial_processes

LINES = find("lines")


def configs(*changes):
    return [override(LINES.config(), change) for change in changes]


SEEDS = [{"seed": seed} for seed in range(5)]


def alone(where, config):
    """Train one member with the bare loop: the oracle."""
    folder = RunFolder.of(Storage.open(where), LINES, config)
    fit(folder.storage, config, folder, (), LINES)
    return folder


def outcome(folder):
    """Return a run's weights by digest and its log without times; NaN as text, for it is not equal to itself."""
    timeless = [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in folder.history()]
    return folder.result()["weights"], [{k: str(v) for k, v in row.items()} for row in timeless]


def groups_of(storage, members, task=LINES):
    return list(compile_configs(task, members, storage).groups.values())


def stacked(groups, size):
    """Return the seeds of each stack that groups are shared out to."""
    return sorted([training.config.seed for training in stack] for group in groups for stack in stacks(group, size))


def test_groups_are_shared_out_evenly(storage):
    two = groups_of(storage, configs(*SEEDS, {"seed": 9, "batch": 16}))
    assert stacked(two, 1) == [[0], [1], [2], [3], [4], [9]]
    assert stacked(two, 2) == [[0, 3], [1, 4], [2], [9]]
    assert stacked(two, 5) == stacked(two, 128) == [[0, 1, 2, 3, 4], [9]]
    own = replace(LINES, group=lambda config: config)
    assert stacked(groups_of(storage, configs(*SEEDS), own), 128) == [[0], [1], [2], [3], [4]]
    early = replace(LINES, early_stop=lambda config: ("slope", 2))
    assert stacked(groups_of(storage, configs(*SEEDS), early), 128) == [[0], [1], [2], [3], [4]]
    apart = replace(LINES, dataset=replace(LINES.dataset, where=lambda config: f"line/{config.seed // 3}"))
    assert stacked(groups_of(storage, configs(*SEEDS), apart), 128) == [[0, 1, 2], [3, 4]]


def test_only_members_at_the_same_step_train_together(storage):
    members = configs(*SEEDS)
    folders = [RunFolder.of(storage, LINES, config) for config in members]
    for folder, steps in zip(folders, [(16,), (8, 16), (8,), (), (16, 24)], strict=True):
        for step in steps:
            folder.save_checkpoint(step, {"weights": {}})
    assert stacked(groups_of(storage, members), 128) == [[0, 1, 4], [2], [3]]
    (group,) = groups_of(storage, members)
    passed = [replace(training, keep=(1,)) if training.config.seed == 0 else training for training in group]
    folders[0].write_history([{"epoch": 1, "step": 8, "time": 0.0}])  # the weights that are now wanted were not kept
    assert stacked([passed], 128) == [[0, 3], [1, 4], [2]]


def test_stacks_are_for_gpus_and_keep_every_gpu_busy(monkeypatch):
    assert stack_size(Requirements(), 4, 0, 315) == 1
    assert stack_size(Requirements(), 4, 7, 315) == stack_size(Requirements(gpus=1), 4, 7, 315) == 7
    assert stack_size(Requirements(gpus=1), 4, 0, 315) == 79
    assert stack_size(Requirements(gpus=0.5), 4, 0, 315) == 40
    assert stack_size(Requirements(gpus=1, workers=4), 4, 0, 105) == 105
    assert stack_size(Requirements(gpus=1, workers=4), 4, 0, 1000) == 128
    assert stack_size(Requirements(gpus=1), 0, 0, 3) == 3, "a GPU node is still to come"


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster():
        yield


def launched(storage, members, told=None):
    """Train members as one stack; return the failures."""
    LINES.dataset.prepare(members[0], storage)
    plan = compile_configs(LINES, members, storage)
    shared = launch_for(plan, Resources(stack=len(members)))
    shared = replace(shared, provenance={**shared.provenance, "device": "the driver's", "host": "the driver"})
    return train_all(plan, shared, Told(told if told is not None else []))


class Told:
    """Takes the place of what follows training."""

    def __init__(self, folders):
        self.submit = folders.append

    def poll(self):
        pass


@pytest.mark.slow
def test_a_killed_stack_goes_on_and_every_member_ends_as_if_it_were_alone(cluster, storage, tmp_path, capfd):
    members = configs(*({"seed": seed, "epochs": 4, "pause": 0.1} for seed in range(3)))
    folders = [RunFolder.of(storage, LINES, config) for config in members]
    told, failures = [], []
    thread = threading.Thread(target=lambda: failures.append(launched(storage, members, told)))
    thread.start()
    end = time.monotonic() + 300
    while len(folders[2].history()) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    (victim,) = trial_processes("ImplicitFunc")
    victim.kill()
    thread.join(300)
    assert failures == [{}] and not thread.is_alive()
    assert told == folders
    assert [line for line in capfd.readouterr().out.splitlines() if "done 3/3" in line]
    for config, folder in zip(members, folders, strict=True):
        assert outcome(folder) == outcome(alone(tmp_path / "alone", config))
        facts = folder.folder.read_json("provenance.json")
        assert facts["seed"] == config.seed and facts["stack"] == 3
        assert {key: facts[key] for key in here()} == here(), "what the worker says of itself"


@pytest.mark.slow
def test_a_bad_member_is_one_line_and_takes_nobody_with_it(cluster, storage, tmp_path, capfd):
    good = configs({"seed": 0}, {"seed": 1}, {"rate": 1e30})  # the last one diverges, which is no failure of training
    (bad,) = configs({"rate": -1.0})
    told = []
    failures = launched(storage, [*good, bad], told)
    ((name, why),) = failures.items()
    assert RunFolder.of(storage, LINES, bad).fingerprint[:8] in name and "Invalid learning rate" in why
    assert "a stack of 4 failed, its members train one by one: ValueError" in capfd.readouterr().out
    assert sorted(folder.fingerprint for folder in told) == sorted(
        RunFolder.of(storage, LINES, config).fingerprint for config in good
    )
    for config in good:
        folder = RunFolder.of(storage, LINES, config)
        assert outcome(folder) == outcome(alone(tmp_path / "alone", config))
        assert math.isnan(folder.result()["metrics"]["slope"]) == (config.rate == 1e30)
    assert RunFolder.of(storage, LINES, bad).result() is None
    assert [t.config for t in compile_configs(LINES, [*good, bad], storage).missing] == [bad]


def test_a_retry_of_what_diverged_has_provenance_of_its_own(storage):
    (config,) = configs({"seed": 0})
    folder = alone(storage.root, config)
    folder.folder.write_json("result.json", folder.result() | {"diverged": "loss is nan at step 3"})
    folder.folder.write_json("provenance.json", {"commit": "old"})
    context = launch.Launch(storage, Resources(), {})
    ours, _ = launch.claim_members(launch.Job("lines", (config,), ((),), retry=True), context, "here")
    assert ours.folders == (folder,) and folder.result() is None and not folder.folder.exists("provenance.json")


def test_what_another_command_has_just_seen_diverge_stays(storage, monkeypatch):
    (config,) = configs({"seed": 0})
    folder = alone(storage.root, config)
    folder.folder.write_json("result.json", folder.result() | {"diverged": "loss is nan at step 3"})
    states = iter(["to be continued", "diverged"])
    monkeypatch.setattr(launch, "status", lambda *_, **__: next(states))
    job = launch.Job("lines", (config,), ((),))
    ours, taken = launch.claim_members(job, launch.Launch(storage, Resources(), {}), "here")
    assert not ours.folders and not taken and folder.result() is not None


def test_members_that_were_finished_when_the_process_died_are_left_alone(storage, monkeypatch):
    """`finish` writes one result after the other: those behind the death go on without the others."""
    members = configs({"seed": 0}, {"seed": 1})
    first = alone(storage.root, members[0])
    before = outcome(first)
    stamp = os.stat(f"{first.folder.root}/result.json").st_mtime_ns
    arrays = LINES.dataset.read(storage / "data/line/points")
    monkeypatch.setattr(
        launch, "open_data", lambda task, configs, source, launch: task.dataset.open(arrays, source, configs)
    )
    context = launch.Launch(storage, Resources(stack=2), {})
    (ours, taken) = launch.claim_members(launch.Job("lines", tuple(members), ((), ())), context, "here")
    assert not taken
    launch.train_job(ours, context, Worker())
    assert os.stat(f"{first.folder.root}/result.json").st_mtime_ns == stamp and outcome(first) == before
    second = RunFolder.of(storage, LINES, members[1])
    assert second.folder.read_json("provenance.json")["stack"] == 1 and second.result() is not None
