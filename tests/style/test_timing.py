import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from retable.platform.spec.task import Source
from retable.platform.store.storage import Storage
from retable.tasks.style.apply import timing
from retable.tasks.style.config import Alexnet, Config, Objective, OptimiseImage, Sgd, TrainNetwork
from retable.tasks.style.files import images

OPTIMISE = Config(method=OptimiseImage(size=64, scales=(32,), backbone=Alexnet()))


@pytest.fixture
def sleep(monkeypatch):
    """Let time pass only where it is called: a busy machine changes no timing."""
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now))
    return sleep


def test_a_call_is_timed_and_the_first_ones_are_not_counted(sleep):
    durations = iter([0.2, *(number / 100 for number in range(2, 11))])
    times = timing.timed(lambda: sleep(next(durations)), warm_up=2, budget=0.0)
    assert times == pytest.approx(
        [number / 100 for number in range(2, 2 + timing.FEWEST)]
    )  # the slow first is left out, and ends the warming up


def test_calls_end_with_the_budget_or_at_the_most(sleep):
    calls = []
    assert len(timing.timed(lambda: calls.append(1), 4, budget=60)) == timing.MOST == len(calls) - 4
    assert len(timing.timed(lambda: sleep(0.05), 1, budget=0.48)) == 9  # and one to warm up


def test_summary_has_a_median_and_an_interval_that_holds_it_as_often_as_it_says():
    found = timing.summary("x", [float(n) for n in range(1, 10)])
    assert (found["x_low"], found["x"], found["x_high"]) == (1.0, 5.0, 9.0)
    assert found["evaluations"] == 9 and found["gpu"] == float(torch.cuda.is_available())


@pytest.fixture
def called(monkeypatch):
    """Let each measurement call what it times six times, for 1 to 6 seconds: calls, results and threads are kept."""
    seen = []

    def six(work, warm_up, budget, fewest=0):
        seen.extend((work, work(), torch.get_num_threads()) for _ in range(6))
        return [float(n) for n in range(1, 7)]

    monkeypatch.setattr(timing, "timed", six)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    return seen


@pytest.fixture
def given(monkeypatch):
    """Keep the pictures that are stylised: several threads round the results of one picture otherwise now and then."""
    seen, stylise = [], timing.stylise
    monkeypatch.setattr(timing, "stylise", lambda net, image, how: seen.append(image) or stylise(net, image, how))
    return seen


def test_an_evaluation_is_a_step_at_full_size_on_all_cores(called):
    before = torch.get_num_threads()
    found = timing.seconds_per_evaluation(OPTIMISE)
    assert (found["seconds_per_evaluation"], found["seconds"], found["evaluations"]) == (3.5, 1050.0, 6)
    job = called[0][0].__self__
    assert job.image.shape == (1, 3, 64, 64) and len(job.losses) == 6 and job.losses.isfinite().all()
    assert {threads for *_, threads in called} == {3} and torch.get_num_threads() == before


def test_every_optimiser_and_unknown_names_are_timed():
    objective = Objective(content_layers=("relu2",), style_layers=("relu1",))
    method = replace(OPTIMISE.method, content="a photograph of one's own", optimizer=Sgd(), objective=objective)
    found = timing.seconds_per_evaluation(replace(OPTIMISE, method=method, style=("another",)), budget=0.1)
    assert np.isfinite(list(found.values())).all()


def test_an_image_is_a_pass_at_the_size_asked_for(called, given):
    config = Config(method=TrainNetwork(filters=4, size=32))
    found = timing.seconds_per_image(config)
    assert found["seconds_per_image"] == 3.5 and "seconds" not in found
    timing.seconds_per_image(config, shape=(40, 24))
    results = [result for _, result, _ in called]
    assert [tuple(result.shape[2:]) for result in results] == [(32, 32)] * 6 + [(40, 24)] * 6
    assert torch.equal(given[0], given[3]) and not torch.equal(given[0], given[1])  # three in turn


@pytest.mark.parametrize(("asked", "different"), [(4, 4), (5, 3), (2, 2)])
def test_photographs_of_the_data_set_are_timed_where_there_are_so_many(tmp_path, called, given, asked, different):
    (tmp_path / "test").mkdir()
    for number in range(4):
        images.write(tmp_path / f"test/{number}.png", np.full((40, 40, 3), 10 * number, np.uint8))
    source = Source(Storage.open(tmp_path), {"test": [f"test/{number}.png" for number in range(4)]})
    config = Config(method=TrainNetwork(filters=4, size=32))
    found = timing.seconds_per_image(config, photographs=asked, source=source)
    assert found["photographs"] == different, "the shipped ones in turn where the data set has not so many"
    same = [torch.equal(given[0], image) for image in given]
    assert same == [number % different == 0 for number in range(6)]
    plain = [pixels.std() == 0 for pixels in timing.pictures_of(source, asked)]
    assert plain == [asked <= 4] * different


def test_a_pass_is_timed_on_each_photograph_whatever_the_budget():
    calls = []
    assert len(timing.timed(lambda: calls.append(1), 1, 0.0, fewest=7)) == 7
    assert len(timing.timed(lambda: calls.append(1), 1, 60.0, fewest=70)) == 70


def test_the_other_version_is_refused():
    with pytest.raises(ValueError, match="TrainNetwork does not optimise an image"):
        timing.seconds_per_evaluation(Config(method=TrainNetwork()))
    with pytest.raises(ValueError, match="OptimiseImage does not train a network"):
        timing.seconds_per_image(OPTIMISE)


def test_the_interval_of_a_median_holds_the_true_one_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for count in (8, 25):
        held = 0
        for _ in range(1000):
            median, low, high = timing.median_interval(rng.exponential(size=count).tolist())
            held += low <= np.log(2) <= high
            assert low <= median <= high
        assert held / 1000 > 0.94
    assert timing.median_interval([3.0, 1.0, 2.0, 5.0, 4.0, 6.0]) == (3.5, 1.0, 6.0)


def test_criteria_are_timed_in_turn_and_not_by_their_order(monkeypatch, sleep):
    order = []

    class Job:
        def __init__(self, name):
            self.name = name

        def step(self):
            order.append(self.name)
            sleep({"l1": 2.0, "mse": 1.0}.get(self.name, 1.5))

    monkeypatch.setattr(timing, "optimisation", lambda config: (Job(config.method.objective.criterion), 2))
    found = timing.seconds_of_criteria(OPTIMISE, budget=0.0)
    assert (found["l1_seconds"], found["mse_seconds"], found["huber_seconds_low"]) == (2.0, 1.0, 1.5)
    names = list(dict.fromkeys(order))
    assert found["rounds"] == timing.FEWEST_ROUNDS and len(names) == 4
    assert order[4:12] == [*names, *reversed(names)], "after the first, which does not count"
