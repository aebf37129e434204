"""Seconds and megabytes that Ray adds to one run: a plain Tune trial, and a Ray Train group of two workers.

The reference is the bare loop in this process on the same toy task (a straight line, three epochs). How the process
of a trial grows is seen with a toy that takes and frees 100 MB a step. A thousand trainings, planned, each with its
lease, history and result on the storage, have a reference of their own: Ray Tune with the bare loop as its function.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def clocked(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_megabytes(call: Any) -> float:
    """Return the most private memory that Ray's workers held at once while `call` ran, MB."""
    import psutil

    most, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.25):
            total = 0.0
            for child in psutil.Process().children(recursive=True):
                try:
                    if child.cmdline() and child.cmdline()[0].startswith("ray::") and "IDLE" not in child.cmdline()[0]:
                        total += child.memory_full_info().uss / 1e6
                except psutil.Error:
                    continue
            most = max(most, total)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        call()
    finally:
        done.set()
        thread.join()
    return most


MANY = 1000


def many(ours: bool) -> dict[str, float]:
    """Train the toy a thousand times, by this platform or by Ray Tune alone; return seconds and the driver's MB."""
    from ray import tune

    from retable.platform.config import override
    from retable.platform.execute.run import launch_for
    from retable.platform.execute.scheduler import train_all
    from retable.platform.execute.session import ray_cluster
    from retable.platform.plan.plan import compile_configs
    from retable.platform.spec.resources import Resources
    from retable.platform.spec.task import find
    from retable.platform.store.storage import Storage

    task = find("line")
    with tempfile.TemporaryDirectory(prefix="retable-bench-") as folder, ray_cluster(nested=True):
        storage = Storage.open(folder)
        task.dataset.prepare(task.config(), storage)

        def fill() -> None:
            plan = compile_configs(task, [override(task.config(), {"seed": seed}) for seed in range(MANY)], storage)
            assert not train_all(plan, launch_for(plan, Resources()))

        def bare_trial(chosen: dict[str, int]) -> dict[str, float]:
            train_once(folder, chosen["seed"])
            return {"done": 1.0}

        def tune_alone() -> None:
            tuner = tune.Tuner(
                tune.with_resources(bare_trial, {"cpu": 1}),
                param_space={"seed": tune.grid_search([*range(MANY)])},
                tune_config=tune.TuneConfig(reuse_actors=True),
                run_config=tune.RunConfig(storage_path=f"{folder}/tune", verbose=0),
            )
            assert tuner.fit().num_errors == 0

        seconds = clocked(fill if ours else tune_alone)
    lines = Path("/proc/self/status").read_text().splitlines()
    return {"s": seconds, "mb": next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))}


def train_once(root: str, seed: int) -> None:
    """Train the toy in this process; its data are there."""
    from retable.platform.config import override
    from retable.platform.spec.task import Source, find
    from retable.platform.store.run import RunFolder
    from retable.platform.store.storage import Storage
    from retable.platform.train.loop import train
    from retable.platform.train.worker import Worker

    task, storage = find("line"), Storage.open(root)
    config = override(task.config(), {"seed": seed})
    arrays = task.dataset.read(storage / "data/line/points")
    data = task.dataset.open(arrays, Source.of(storage, "line/points"), [config])
    train(task, [config], data, [RunFolder.of(storage, task, config)], "64 points", Worker(), [()])


def apart(ours: bool) -> dict[str, float]:
    """Return what `many` measures, in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(many, ours).result()


def measure() -> dict[str, Any]:
    from retable.platform.config import override
    from retable.platform.execute.run import launch_for
    from retable.platform.execute.scheduler import train_all
    from retable.platform.execute.session import ray_cluster
    from retable.platform.plan.plan import compile_configs
    from retable.platform.spec.resources import Resources
    from retable.platform.spec.task import find
    from retable.platform.store.storage import Storage

    task = find("line")
    storage = Storage.open(tempfile.mkdtemp(prefix="retable-bench-"))
    task.dataset.prepare(task.config(), storage)

    def trials(first: int, count: int) -> None:
        configs = [override(task.config(), {"seed": first + number}) for number in range(count)]
        plan = compile_configs(task, configs, storage)
        assert not train_all(plan, launch_for(plan, Resources()))

    def bare() -> None:
        train_once(str(storage.root), 10_000)

    def private_memory(count: int) -> list[float]:
        import ray

        heavy = find("heavy")
        configs = [override(heavy.config(), {"seed": seed, "epochs": 1}) for seed in range(count)]
        plan = compile_configs(heavy, configs, storage)
        cores = int(ray.cluster_resources()["CPU"])
        assert not train_all(plan, launch_for(plan, Resources(cpus=cores)))  # one process for all of them
        rows = [training.folder.history()[-1] for training in plan.trainings.values()]
        return [row["private"] for row in sorted(rows, key=lambda row: row["time"])]

    def group(seed: int) -> None:
        plan = compile_configs(task, [override(task.config(), {"seed": seed})], storage)
        resources = Resources(workers=2)
        assert not train_all(plan, launch_for(plan, resources))

    bare()
    storage.remove("runs")
    results: dict[str, Any] = {"bare loop, s": clocked(bare)}
    with ray_cluster(nested=True):
        trials(0, 2)
        few, many = clocked(lambda: trials(100, 2)), clocked(lambda: trials(200, 34))
        results["first two plain trials, s"] = few
        results["each further plain trial, s"] = (many - few) / 32
        results["34 plain trials, s a run"] = many / 34
        results["plain trials (2 at once), MB"] = peak_megabytes(lambda: trials(300, 8))
        memory = private_memory(40)
        results["a trial's process after 4 heavy trainings, MB"] = memory[3]
        results["a trial's process after 40 heavy trainings, MB"] = memory[39]
        results["Ray Train group of 2, s"] = clocked(lambda: group(400))
        results["Ray Train group of 2, MB"] = peak_megabytes(lambda: group(500))
    storage.remove("")
    for name, ours in (("Ray Tune alone", False), ("retable", True)):
        for what, value in apart(ours).items():
            results[f"{MANY} trainings, {name}, {'s' if what == 's' else 'MB of the driver'}"] = value
    return results
