"""The order of trainings: children behind parents, stacks that fail one by one, another command's runs at the end."""

import pickle
from dataclasses import replace

import pytest

from retable.platform.config import override
from retable.platform.execute import flow as flows
from retable.platform.execute.flow import Flow, job_of
from retable.platform.execute.trials import Launch, Resources
from retable.platform.execute.watch import FAILURE, LATE, TAKEN
from retable.platform.plan.plan import compile_configs
from retable.platform.spec.resources import Needs
from retable.platform.spec.task import find
from retable.platform.store.lease import claim

LINE = find("line")


def configs(*changes):
    return [override(LINE.config(), each) for each in changes]


class Told:
    """Takes the place of what follows training."""

    def __init__(self):
        self.runs = []

    def submit(self, folder):
        self.runs.append(folder.fingerprint)

    def look(self):
        pass


class Shelf:
    """Takes the place of the data sets' shelf: they come when a test says so."""

    def __init__(self):
        self.there, self.changed, self.log = True, False, []

    def expect(self, places):
        self.log.append(("expect", *places))

    def ready(self, task, config):
        return self.there

    def take(self, where):
        self.log.append(("take", where))

    def give_back(self, where, trainings):
        self.log.append(("back", where, trainings))

    def look(self):
        return self.changed


@pytest.fixture
def flow(storage):
    """Make the flow of some configs, a stack for each wave; and the runs that were told to be finished."""

    def made(*changes, workers=1, there=True):
        plan, told = compile_configs(LINE, configs(*changes), storage), Told()
        waves = {}
        for training in plan.missing:
            waves.setdefault(training.wave, []).append(training)
        stacks = list(waves.values())
        launch = Launch(storage, Resources(), {}, jobs=[job_of(stack, Needs(workers=workers)) for stack in stacks])
        shelf = Shelf()
        shelf.there = there
        return Flow(stacks, launch, shelf, told), told.runs

    return made


CHILD = {"init": "parent", "rate": 0.01}


@pytest.mark.parametrize("last", [{}, {FAILURE: "it broke"}])
def test_a_child_begins_once_its_parent_has_ended_well_or_not(flow, last):
    work, told = flow(CHILD)
    first = work.next()
    assert [each.wave for each in work.trainings(first)] == [0] and work.next() is None and not work.over
    work.ended(first, last)
    second = work.next()
    assert [each.wave for each in work.trainings(second)] == [1] and len(told) == (not last)
    work.ended(second, {})
    assert work.over and len(told) == 1 + (not last)


def test_what_starts_from_nothing_waits_for_nobody(flow):
    work, _ = flow({"seed": 0}, {"seed": 1})
    assert work.next() is not None and work.next() is None


def test_the_members_of_a_stack_that_failed_are_trained_one_by_one(flow):
    work, told = flow({"seed": 0}, {"seed": 1}, {"seed": 2})
    whole = work.next()
    assert whole["members"] == [0, 1, 2]
    work.ended(whole, {FAILURE: "one of them"})
    alone = [work.next() for _ in range(3)]
    assert [spec["members"] for spec in alone] == [[0], [1], [2]] and not told
    work.ended(alone[0], {FAILURE: "it was this one"})
    for spec in alone[1:]:
        work.ended(spec, {})
    assert work.over and len(told) == 2


def test_another_commands_run_is_looked_at_until_it_is_done_or_left(flow, monkeypatch):
    monkeypatch.setattr(flows, "LOOK", 0.0)
    work, told = flow({"seed": 0}, {"seed": 1}, {"init": "parent", "rate": 0.01, "seed": 0})
    spec = work.next()
    first, second = work.trainings(spec)
    other = claim(first.folder, "another command", 0)
    work.ended(spec, {TAKEN: [first.folder.path]})
    assert told == [second.folder.fingerprint] and not work.over
    assert work.next() is None, "its child waits too"
    other.tell("released", -1)
    again = work.next()
    assert again == {"job": spec["job"], "members": [0], "dead": [1]}
    work.ended(again, {})
    assert len(work.trainings(work.next())) == 1 and told[-1] == first.folder.fingerprint


def test_no_more_groups_are_begun_than_fit(flow, monkeypatch):
    monkeypatch.setattr(flows, "concurrent", lambda needs: 1)
    work, _ = flow({"seed": 0}, {"init": "parent", "seed": 1}, workers=2)
    first = work.next()
    assert first is not None and work.next() is None
    work.ended(first, {})
    assert work.next() is not None


def test_tune_is_told_when_all_is_over(flow):
    work, _ = flow({"seed": 0})
    queue = work.searcher()
    spec = queue.suggest("a")
    assert spec["members"] == [0] and queue.suggest("b") is None
    work.ended(spec, {})
    assert queue.suggest("b") == queue.FINISHED


def test_a_training_begins_once_its_data_are_there(flow):
    work, _ = flow({"seed": 0}, {"init": "parent", "rate": 0.01}, there=False)
    assert work.next() is None and not work.over
    work.shelf.there = True
    assert work.next() is None, "nothing has changed, as far as the shelf says"
    work.shelf.changed = True
    for _ in range(2):
        work.ended(work.next(), {})
    where = "line/points"
    begun_and_ended = [("take", where), ("back", where, 1)]
    assert work.over and work.shelf.log == [("expect", where, where), *begun_and_ended, *begun_and_ended]


def test_without_data_nothing_of_it_is_trained(flow):
    work, told = flow({"seed": 0}, CHILD, there=None)
    assert work.over and work.next() is None and not told


LONG_AGO = Resources(deadline=0.0, made=0.0)


def test_nothing_begins_after_the_deadline_and_all_that_waits_is_counted(flow):
    work, told = flow({"seed": 0}, {"init": "parent", "rate": 0.01, "seed": 0}, {"seed": 1})
    first = work.next()
    assert len(work.trainings(first)) == 2 and not work.launch.resources.late
    work.launch = replace(work.launch, resources=LONG_AGO)
    assert work.next() is None and not work.over, "what runs goes on to its end"
    work.ended(first, {})
    assert work.over and work.late == 1 and len(told) == 2


def test_a_trial_that_finds_the_deadline_passed_has_trained_nothing(flow):
    """Tune makes trials before there is room for them."""
    work, told = flow({"seed": 0}, {"seed": 1})
    spec = work.next()
    work.ended(spec, {LATE: True})
    assert work.over and work.late == 2 and not told and work.shelf.log[-1] == ("back", "line/points", 2)


def test_a_deadline_counts_from_when_it_was_set():
    assert not Resources().late and not Resources(deadline=60).late
    assert LONG_AGO.late and pickle.loads(pickle.dumps(LONG_AGO)).late
    assert Resources(deadline=5, made=1.0) == Resources(deadline=5, made=2.0)
