"""The order of trainings: children behind parents, stacks that fail one by one, another command's runs at the end."""

import pickle
from dataclasses import replace

import pytest

from retable.platform.config import override
from retable.platform.execute import scheduler as flows
from retable.platform.execute.callback import FAILURE, LATE, TAKEN
from retable.platform.execute.scheduler import Scheduler, job_of
from retable.platform.execute.trials import Launch, Resources
from retable.platform.plan.plan import compile_configs
from retable.platform.spec.resources import Requirements
from retable.platform.spec.task import find
from retable.platform.store.lease import acquire

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

    def reserve(self, places):
        self.log.append(("expect", *places))

    def ready(self, task, config):
        return self.there

    def add_user(self, where):
        self.log.append(("take", where))

    def release(self, where, trainings):
        self.log.append(("back", where, trainings))

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


@pytest.mark.parametrize("last", [{}, {FAILURE: "it broke"}])
def test_a_child_begins_once_its_parent_has_ended_well_or_not(flow, last):
    work, told = flow(CHILD)
    first = work.next()
    assert [each.wave for each in work.trainings(first)] == [0] and work.next() is None and not work.is_done
    work.on_trial_end(first, last)
    second = work.next()
    assert [each.wave for each in work.trainings(second)] == [1] and len(told) == (not last)
    work.on_trial_end(second, {})
    assert work.is_done and len(told) == 1 + (not last)


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
    work.on_trial_end(spec, {TAKEN: [first.folder.path]})
    assert told == [second.folder.fingerprint] and not work.is_done
    assert work.next() is None, "its child waits too"
    other.write_state("released", -1)
    again = work.next()
    assert again == {"job": spec["job"], "members": [0], "dead": [1]}
    work.on_trial_end(again, {})
    assert len(work.trainings(work.next())) == 1 and told[-1] == first.folder.fingerprint


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
