"""Seconds, requests and megabytes that a plan and a listing of finished runs take: on a disk, and on a bucket.

The runs are made up: files of the names and sizes of rl's, each with a view that was scored. The bucket is one in
memory behind 20 ms (`bucket.py`). "First" has no index; "again" has the one that the first wrote.

`RETABLE_BENCH_RUNS=10000` makes fewer runs than 100,000.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bucket import Bucket, bucket

RUNS = int(os.environ.get("RETABLE_BENCH_RUNS", "100000"))
FEW = 10_000
"""Most runs whose files are read one by one from the bucket: of more, the index is written without that."""
METRICS = 150
"""As a run of rl has."""


def parts(seed: int) -> tuple[str, str, dict[str, Any]]:
    """Return the folder of a made-up run, the key of its view, and its config."""
    from retable.platform.config import fingerprint, flatten, override
    from retable.platform.spec.table import resolve
    from retable.platform.spec.task import find
    from retable.platform.store.run import view_key

    task = find("rl")
    config = override(task.config(), {"seed": seed})
    digits = fingerprint(task.name, task.version, config)
    return f"runs/rl/{digits}", view_key(resolve(task.view(), config)), flatten(config)


@functools.cache
def contents() -> dict[str, bytes]:
    """Return what stands in each file of a finished run, by its name; the config is each run's own."""
    _, _, config = parts(0)
    numbers = {f"metric/{n}": n / 7 for n in range(METRICS)} | {"epoch": config["epochs"]}
    weights = {str(config["epochs"]): "0" * 64}
    result = {"data": "d", "fingerprint": "", "metrics": numbers, "seconds": 1.0, "task": "rl", "weights": weights}
    row = {"epoch": config["epochs"], "step": 1, "time": 1.0} | numbers
    made = {
        "commit": "c" * 40,
        "dirty": False,
        "host": "node",
        "scale": "paper",
        "versions": {str(n): "1" for n in range(40)},
    }
    return {
        "result.json": json.dumps(result, indent=2).encode(),
        "provenance.json": json.dumps(made, indent=2).encode(),
        "metrics.jsonl": json.dumps(row).encode() + b"\n",
        "scores.json": json.dumps(
            {"weights": "0" * 64, "metrics": {"return": 1.0}, "seconds": 1.0, "view": {}}
        ).encode(),
        "config.json": json.dumps({"task": "rl", "version": 1, "config": config}, indent=2).encode(),
        "events.out.tfevents.0.retable": b"x" * 100,
        "epoch-0001.safetensors": b"x" * 100,
        "summary.npz": b"x" * 100,
    }


def paths(seed: int) -> Iterator[str]:
    """Yield the files of a run."""
    folder, view, _ = parts(seed)
    for name in ("result.json", "provenance.json", "metrics.jsonl", "config.json"):
        yield f"{folder}/{name}"
    yield f"{folder}/tensorboard/events.out.tfevents.0.retable"
    yield f"{folder}/weights/epoch-0001.safetensors"
    yield f"{folder}/views/{view}/scores.json"
    yield f"{folder}/views/{view}/{'0' * 16}/all/summary.npz"


def content(path: str) -> bytes:
    """Return a file's bytes, by its name."""
    return contents()[path.rsplit("/", 1)[-1]]


def made_up() -> Bucket:
    """Return a bucket of runs."""
    names = [f"store/{path}" for seed in range(RUNS) for path in paths(seed)]
    return Bucket(names, content, lambda name: len(content(name)))


def fill(folder: Path) -> None:
    """Write the same to a disk."""
    for seed in range(RUNS):
        for path in paths(seed):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content(path))


def write_index(where: str) -> None:
    """Write the index that a first plan and listing leave, without their reads, which take an hour on a bucket."""
    from retable.platform.store.cache import Snapshot
    from retable.platform.store.run import outcome_of
    from retable.platform.store.storage import Storage

    storage = Storage.open(where)
    taken = Snapshot(storage.filesystem, storage.root)
    taken.stamp("runs")
    contents_of = {name: json.loads(contents()[name]) for name in ("result.json", "provenance.json", "config.json")}
    kept = {
        "result.json": outcome_of(contents_of["result.json"]),
        "provenance.json": {"host": "node", "scale": "paper"},
    }
    kept |= {"config.json": contents_of["config.json"]["config"], "scores.json": "0" * 64}
    for run in taken.names("runs/rl"):
        files = taken.below(f"runs/rl/{run}")
        note = {path: [*files[path], kept[name]] for path in files if (name := path.rsplit("/", 1)[-1]) in kept}
        taken.index("rl").note(run, note, 0, sum(size for size, _ in files.values()))
    taken.keep_index(storage.write)


STEP = """
import json, sys, time
from retable.platform.store.storage import Storage
storage = Storage.open(sys.argv[2])
if sys.argv[1] == "runs":
    from retable.platform.store.query import list_runs
    start = time.perf_counter()
    found = len(list_runs(storage))
else:
    import dataclasses
    from retable.platform.plan.plan import compile_plan
    from retable.platform.spec.table import Row, Table
    from retable.platform.spec.task import find
    task = find("rl")
    table = Table(title="many", rows=[Row(label="one", view={})], columns=[], over={"seed": range(int(sys.argv[3]))})
    start = time.perf_counter()
    plan = compile_plan({"rl/many": (task, table)}, storage)
    found = len([t for t in plan.trainings.values() if t.status == "done"]), len(plan.unscored)
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6
print(json.dumps([found, time.perf_counter() - start, peak]))
"""


KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}


def step(what: str, where: str) -> tuple[Any, float, float]:
    """Plan or list in a process of its own; return what was found, seconds, and the most memory, MB."""
    command = [sys.executable, "-c", STEP, what, where, str(RUNS)]
    done = subprocess.run(command, env=os.environ | KEYS, stdout=subprocess.PIPE, text=True, check=True)
    results: tuple[Any, float, float] = tuple(json.loads(done.stdout.splitlines()[-1]))
    return results


def measure() -> dict[str, Any]:
    os.environ.update(KEYS)
    results: dict[str, Any] = {"runs": RUNS, "files": 8 * RUNS}

    def note(name: str, what: str, where: str, counted: Any = None) -> None:
        before = counted() if counted else {}
        what_found, seconds, peak = step(what, where)
        results[f"{name}, s"], results[f"{name}, MB"] = seconds, peak
        assert what_found in (RUNS, [RUNS, 0]), what_found
        if counted:
            results[f"{name}, requests"] = {kind: n - before.get(kind, 0) for kind, n in counted().items()}
        print(name, f"{seconds:.1f} s", f"{peak:.0f} MB", results.get(f"{name}, requests", ""), flush=True)

    seconds, peak = step("plan", tempfile.mkdtemp(prefix="retable-bench-"))[1:]
    results |= {"plan of configs that are not there, s": seconds, "plan of configs that are not there, MB": peak}
    print(f"plan of configs that are not there {seconds:.1f} s {peak:.0f} MB", flush=True)
    with tempfile.TemporaryDirectory(prefix="retable-bench-") as folder:
        fill(Path(folder))
        time.sleep(3)  # what was written this moment would not be trusted
        for name in ("first", "again"):
            note(f"disk: plan, {name}", "plan", folder)
        for name in ("after a plan", "again"):
            note(f"disk: runs, {name}", "runs", folder)
    with bucket(made_up) as (options, counted):
        where = f"s3://b/store?{options}"
        if RUNS <= FEW:
            note("bucket: plan, first", "plan", where, counted)
            note("bucket: runs, after a plan", "runs", where, counted)
        else:
            write_index(where)
        for what in ("plan", "runs"):
            note(f"bucket: {what}, again", what, where, counted)
    return results
