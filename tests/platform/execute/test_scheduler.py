"""The order of trainings: children behind parents, stacks that fail one by one, another command's runs at the end."""

import pickle
import re
from dataclasses import replace

import pytest

from retable.platform.config import override
from retable.platform.console import ProgressBoard
from retable.platform.execute import scheduler as flows
from retable.platform.execute.callback import FAILURE, LATE, TAKEN
from retable.platform.execute.scheduler import After, Scheduler, job_of
from retable.platform.execute.trials import Launch
from retable.platform.plan.plan import compile_configs, name_of
from retable.platform.spec.resources import Requirements, Resources
from retable.platform.spec.task import find
from retable.platform.store.lease import acquire
from retable.platform.store.run import RunFolder
from tests.platform.halves import fit

LINE = find("line")


def configs(*changes):
    return [override(LINE.config(), each) for each in changes]


class Told:
    """Takes the place of what follows training."""

    def __init__(self):
        self.runs = []

    def submit(self, folder):
        self.runs.append(folder.fingerprint)

    def poll(self):
        pass


class Shelf:
    """Takes the place of the data sets' shelf: they come when a test says so."""

    def __init__(self):
        self.there, self.changed, self.log = True, False, []
        self.board = ProgressBoard("data", 0)

    def reserve(self, places):
        self.log.append(("expect", *places))

    def ready(self, task, config):
        return self.there

    def add_user(self, where):
        self.log.append(("take", where))

    def release(self, where, trainings, users=1):
        self.log.append(("back" if users else "lost", where, trainings))

    def poll(self, seconds=0.0):
        self.there = self.there or seconds > 0
        return self.changed or seconds > 0


@pytest.fixture
def flow(storage):
    """Make the flow of some configs, a stack for each wave; and the runs that were told to be finished."""

    def made(*changes, workers=1, there=True):
        plan, told = compile_configs(LINE, configs(*changes), storage), Told()
        waves = {}
        for training in plan.missing:
            waves.setdefault(training.wave, []).append(training)
        stacks = list(waves.values())
        launch = Launch(
            storage, Resources(), {}, jobs=[job_of(stack, Requirements(workers=workers)) for stack in stacks]
        )
        shelf = Shelf()
        shelf.there = there
        return Scheduler(stacks, launch, shelf, told), told.runs

    return made


CHILD = {"init": "parent", "rate": 0.01}


def test_a_child_begins_once_its_parent_has_ended(flow):
    work, told = flow(CHILD)
    first = work.next()
    assert [each.wave for each in work.trainings(first)] == [0] and work.next() is None and not work.is_done
    work.on_trial_end(first, {})
    second = work.next()
    assert [each.wave for each in work.trainings(second)] == [1] and len(told) == 1
    work.on_trial_end(second, {})
    assert work.is_done and len(told) == 2 and not work.datasets.board.failures


def test_a_child_begins_in_the_order_of_the_plan_and_not_behind_all_that_wait(storage):
    plan = compile_configs(LINE, configs(CHILD, {"seed": 7}, {"seed": 8}), storage)
    stacks = [[training] for training in sorted(plan.missing, key=lambda training: training.config.seed)]
    launch = Launch(storage, Resources(), {}, jobs=[job_of(stack, Requirements()) for stack in stacks])
    work = Scheduler(stacks, launch, Shelf(), Told())
    parent = work.next()
    assert work.stacks[1][0].wave == 1, "the child is the second of the plan"
    work.on_trial_end(parent, {})
    assert [work.next()["job"] for _ in range(3)] == [1, 2, 3]


GRANDCHILD = {"init": "parent", "rate": 0.02, "init.overrides": tuple(CHILD.items())}


@pytest.mark.parametrize("why", ["failed", "diverged"])
def test_no_training_begins_after_a_parent_without_weights(flow, why):
    work, told = flow(GRANDCHILD, {"seed": 7})
    first = work.next()
    parent, other = work.trainings(first)
    if why == "diverged":
        parent.folder.folder.write_json("result.json", {"data": "d", "metrics": {}, "weights": {}, "diverged": "nan"})
        work.on_trial_end(first, {})
    else:
        work.on_trial_end(first, {FAILURE: "one of them"})
        work.on_trial_end(work.next(), {FAILURE: "it broke"})
        work.on_trial_end(work.next(), {})
    assert work.next() is None and work.is_done, "neither the child nor what starts from that"
    assert told[-1] == other.folder.fingerprint
    (child, grandchild), lines = zip(*work.datasets.board.failures.items(), strict=True)
    names = [training.label() for training in work.order.nodes.values() if training.kind == "train"]
    assert {child, grandchild} <= set(names) and child != grandchild
    assert re.fullmatch(rf"not begun: its parent, .+, {why}", lines[0])
    assert lines[1] == f"not begun: its parent, {child}, was not begun"
    lost = [entry for entry in work.datasets.log if entry[0] == "lost"]
    assert lost == [("lost", "line/points", 1)] * 2


def test_a_dataset_is_loaded_though_the_first_parent_before_it_failed(flow, monkeypatch):
    """Other children read it, too."""
    where = LINE.dataset.where
    elsewhere = replace(LINE.dataset, where=lambda config: "line/other" if config.rate < 0.1 else where(config))
    monkeypatch.setitem(vars(LINE), "dataset", elsewhere)
    work, _ = flow(CHILD, {"seed": 1, **CHILD, "init.overrides": (("seed", 1),)})
    whole = work.next()
    work.on_trial_end(whole, {FAILURE: "one of them"})
    first, second = work.next(), work.next()
    work.on_trial_end(first, {FAILURE: "it broke"})
    work.on_trial_end(second, {})
    child = work.next()
    assert [work.where(child), child["members"]] == ["line/other", [1]]
    assert list(work.datasets.board.failures.values()) == [
        f"not begun: its parent, {name_of(work.trainings(first)[0], {})}, failed"
    ]


def test_what_starts_from_nothing_waits_for_nobody(flow):
    work, _ = flow({"seed": 0}, {"seed": 1})
    assert work.next() is not None and work.next() is None


def test_the_members_of_a_stack_that_failed_are_trained_one_by_one(flow):
    work, told = flow({"seed": 0}, {"seed": 1}, {"seed": 2})
    whole = work.next()
    assert whole["members"] == [0, 1, 2]
    work.on_trial_end(whole, {FAILURE: "one of them"})
    alone = [work.next() for _ in range(3)]
    assert [spec["members"] for spec in alone] == [[0], [1], [2]] and not told
    work.on_trial_end(alone[0], {FAILURE: "it was this one"})
    for spec in alone[1:]:
        work.on_trial_end(spec, {})
    assert work.is_done and len(told) == 2


def test_another_commands_run_is_looked_at_until_it_is_done_or_left(flow, monkeypatch):
    monkeypatch.setattr(flows, "POLL_SECONDS", 0.0)
    work, told = flow({"seed": 0}, {"seed": 1}, {"init": "parent", "rate": 0.01, "seed": 0})
    spec = work.next()
    first, second = work.trainings(spec)
    other = acquire(first.folder, "another command", 0)
    fit(second.folder.storage, second.config, second.folder, (), LINE)
    work.on_trial_end(spec, {TAKEN: [first.folder.path]})
    assert told == [second.folder.fingerprint] and not work.is_done
    assert work.next() is None, "its child waits too"
    other.write_state("released", -1)
    again = work.next()
    assert again == {"job": spec["job"], "members": [0], "dead": [1]}
    work.on_trial_end(again, {})
    assert len(work.trainings(work.next())) == 1 and told[-1] == first.folder.fingerprint


def test_what_was_stopped_with_a_run_that_another_command_took_is_trained_alone(flow):
    work, told = flow({"seed": 0}, {"seed": 1}, {"seed": 2})
    spec = work.next()
    taken, _, finished = work.trainings(spec)
    acquire(taken.folder, "another command", 0)
    fit(finished.folder.storage, finished.config, finished.folder, (), LINE)
    work.on_trial_end(spec, {TAKEN: [taken.folder.path]})
    assert told == [finished.folder.fingerprint]
    assert work.next() == {"job": spec["job"], "members": [1], "dead": [0]}


def test_no_more_groups_are_begun_than_fit(flow, monkeypatch):
    monkeypatch.setattr(flows, "concurrent", lambda needs: 1)
    work, _ = flow({"seed": 0}, {"init": "parent", "seed": 1}, workers=2)
    first = work.next()
    assert first is not None and work.next() is None
    work.on_trial_end(first, {})
    assert work.next() is not None


def test_tune_is_told_when_all_is_over(flow):
    work, _ = flow({"seed": 0})
    queue = work.searcher()
    spec = queue.suggest("a")
    assert spec["members"] == [0] and queue.suggest("b") is None
    work.on_trial_end(spec, {})
    assert queue.suggest("b") == queue.FINISHED


def test_a_training_begins_once_its_data_are_there(flow):
    work, _ = flow({"seed": 0}, {"init": "parent", "rate": 0.01}, there=False)
    assert work.next() is None and not work.is_done
    work.datasets.there = True
    assert work.next() is None, "nothing has changed, as far as the shelf says"
    work.datasets.changed = True
    for _ in range(2):
        work.on_trial_end(work.next(), {})
    where = "line/points"
    begun_and_ended = [("take", where), ("back", where, 1)]
    assert work.is_done and work.datasets.log == [("expect", where, where), *begun_and_ended, *begun_and_ended]


def test_tunes_queue_waits_for_data_where_nothing_else_can_happen(flow):
    """Where it gives nothing, Tune sleeps for a second, and for another after the trial was given."""
    work, _ = flow({"seed": 0}, there=False)
    assert work.next() is None
    assert work.searcher().suggest("a")["members"] == [0]


def test_without_data_nothing_of_it_is_trained(flow):
    work, told = flow({"seed": 0}, CHILD, there=None)
    assert work.is_done and work.next() is None and not told


LONG_AGO = Resources(deadline=0.0, made=0.0)


def test_nothing_begins_after_the_deadline_and_all_that_waits_is_counted(flow):
    work, told = flow({"seed": 0}, {"init": "parent", "rate": 0.01, "seed": 0}, {"seed": 1})
    first = work.next()
    assert len(work.trainings(first)) == 2 and not work.launch.resources.late
    work.launch = replace(work.launch, resources=LONG_AGO)
    assert work.next() is None and not work.is_done, "what runs goes on to its end"
    work.on_trial_end(first, {})
    assert work.is_done and work.not_begun == 1 and len(told) == 2


def test_a_trial_that_finds_the_deadline_passed_has_trained_nothing(flow):
    """Tune makes trials before there is room for them."""
    work, told = flow({"seed": 0}, {"seed": 1})
    spec = work.next()
    work.on_trial_end(spec, {LATE: True})
    assert work.is_done and work.not_begun == 2 and not told and work.datasets.log[-1] == ("back", "line/points", 2)


def test_a_deadline_counts_from_when_it_was_set():
    assert not Resources().late and not Resources(deadline=60).late
    assert LONG_AGO.late and pickle.loads(pickle.dumps(LONG_AGO)).late
    assert Resources(deadline=5, made=1.0) == Resources(deadline=5, made=2.0)


def test_only_runs_that_are_done_are_scored_at_the_end(storage, monkeypatch):
    """After a deadline a run may still wait to be trained anew: for other data, or weights that were not kept."""
    whole, early, changed = configs({"seed": 0}, {"seed": 1}, {"seed": 2})
    for config in (whole, early, changed):
        fit(storage, config, RunFolder.of(storage, LINE, config), (), LINE)
    stale = RunFolder.of(storage, LINE, changed)
    stale.folder.write_json("result.json", stale.result() | {"data": "others"})
    views = [replace(LINE.view(), epoch=epoch) for epoch in (3, 1, 3)]
    after = After(compile_configs(LINE, [whole, early, changed], storage, views))
    told = []
    monkeypatch.setattr(after, "submit", told.append)
    after.finish()
    assert [folder.path for folder in told] == [RunFolder.of(storage, LINE, whole).path]
