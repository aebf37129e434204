"""The encoders that are served are the best on validation, whatever their test scores are."""

from retable.platform.api import TrainedRun
from retable.platform.config import override
from retable.platform.models.select import eligible_runs
from retable.platform.spec.table import resolve
from retable.platform.spec.task import find
from retable.platform.store.run import RunFolder
from retable.tasks.audio.best import best
from retable.tasks.audio.config import View
from tests.tiny import tiny

TASK = find("audio")


def finished(storage, seed, validation, test):
    config = override(tiny("audio", {}), {"seed": seed})
    folder = RunFolder.of(storage, TASK, config)
    folder.begin(config, TASK.version, {"scale": "small", "changed": [], "data": {"kind": "generated"}})
    folder.folder.write_json("result.json", {"data": "d", "metrics": {}, "weights": {"2": "w"}})
    for split, value in {"validation": validation, "test": test}.items():
        folder.save_scores(resolve(override(View(), {"split": split}), config), "w", {"map10": value}, 0.0)
    return TrainedRun(TASK, folder, config)


def test_the_test_split_is_never_looked_at(storage):
    finished(storage, 1, validation=0.1, test=0.9)
    good = finished(storage, 2, validation=0.2, test=0.1)
    found = best(eligible_runs("audio", storage))["audio"]
    assert (found.run.fingerprint, found.value, found.scale) == (good.fingerprint, 0.2, "small")
    assert f"run {good.fingerprint}, validation mAP@10 0.2, the best of 2 (scale small, generated" in found.line()
