"""A table that is filled without Ray."""

import atexit
import copy
import functools
import shutil
import tempfile

from retable.platform.execute.scoring import predict_and_score
from retable.platform.plan.plan import compile_plan
from retable.platform.report.write import fill_and_keep
from retable.platform.spec.task import Source, find_table
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker


def filled_line(storage, scale="smoke", published=False):
    """Fill the toy's table with the bare loop, but for the row `slow`; return it filled.

    An empty folder becomes a copy of one that was filled before in this process: the same files of the same times.
    `published`: whether its points pass for the paper's own data.
    """
    if not storage.is_local or storage.list():
        return fill_line(storage, scale, published)
    folder, part = once(scale, published)
    shutil.copytree(folder, storage.root, dirs_exist_ok=True)
    return copy.deepcopy(part)


@functools.cache
def once(scale, published):
    """Return a storage's folder that lives as long as this process, and the table that was filled there."""
    folder = tempfile.mkdtemp(prefix="retable-filled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder, fill_line(Storage.open(folder), scale, published)


def fill_line(storage, scale, published):
    """Fill the toy's table; train and score what is not there."""
    task, table = find_table("line/table1")
    task.dataset.prepare(task.config(), storage)
    info = storage.read_json("data/line/points/dataset.json")
    storage.write_json("data/line/points/dataset.json", info | {"published": published})
    plan = compile_plan({"line/table1": (task, table)}, storage, scale)
    source = Source.of(storage, "line/points")
    arrays = task.dataset.read(storage / "data/line/points")
    for training in plan.missing:
        if training.config.rate != 0.001:
            data = task.dataset.open(arrays, source, [training.config])
            training.folder.begin(training.config, 1, {"commit": "abc"})
            train(task, [training.config], data, [training.folder], "64 points", Worker(), [training.keep])
    for scoring in compile_plan(plan.tables, storage, scale).unscored:
        if scoring.folder.result():
            assert predict_and_score(task, scoring.config, scoring.view, scoring.folder) is None
    return fill_and_keep(compile_plan(plan.tables, storage, scale))["line/table1"]
