"""What finished runs say of the time that trainings take."""

from dataclasses import replace

import pytest

from retable.platform.config import override
from retable.platform.plan import calibration
from retable.platform.plan.plan import compile_plan
from retable.platform.spec.table import Row
from retable.platform.spec.task import find_table
from retable.platform.store.provenance import device_name
from retable.platform.store.run import RunFolder
from retable.tasks.line.config import Config

LINE, TABLE = find_table("line/table1")
LONG, SHORT = 100, 2  # epochs


def finish(storage, factor, *, device="", stack=1, **changes):
    """Leave a finished run that took so many times the seconds of the task's estimate."""
    config = override(Config(), changes)
    folder = RunFolder.of(storage, LINE, config)
    info = {"points": 64, "digest": "64 points"}
    folder.begin(config, LINE.version, {"device": device or device_name(), "stack": stack, "data": info})
    weights = {str(config.epochs): "digest"}
    seconds = factor * LINE.cost(config)
    folder.folder.write_json(
        "result.json", {"metrics": {}, "data": info["digest"], "weights": weights, "seconds": seconds}
    )


def learnt(storage, epochs=LONG):
    table = replace(TABLE, rows=[Row(label="next", overrides={"epochs": epochs, "seed": 99}, view={})], over={})
    return calibration.learn(compile_plan({"line/t": (LINE, table)}, storage)).get("line")


def test_the_median_of_runs_counts(storage):
    for seed, factor in enumerate((2.0, 3.0, 40.0)):
        assert learnt(storage) is None  # too few
        finish(storage, factor, epochs=LONG, seed=seed)
    assert learnt(storage) == calibration.Learnt(pytest.approx(3.0), 3)


def test_short_runs_say_nothing_of_long_ones(storage):
    for seed in range(5):
        finish(storage, 100.0, epochs=SHORT, seed=seed)  # nearly all of it is the start
    assert learnt(storage) is None and learnt(storage, SHORT).factor == pytest.approx(100.0)
    for seed in range(3):
        finish(storage, 2.0, epochs=LONG, seed=seed)
    assert learnt(storage) == calibration.Learnt(pytest.approx(2.0), 3)


def test_runs_of_other_devices_and_of_stacks_do_not_count(storage):
    for seed in range(3):
        finish(storage, 2.0, epochs=LONG, seed=seed, device="another")
        finish(storage, 2.0, epochs=LONG, seed=10 + seed, stack=4)
    assert learnt(storage) is None
