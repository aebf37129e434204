"""Use of a cluster of nodes with one CPU by trials of known seconds, and a driver's cost for thousands of trials.

The nodes are processes of this machine, so their trials sleep: `efficiency` is the work done over slots and wall time,
from the first step to the last; `at work` the same between the moment at which all slots had begun and the last
begin, without the start of processes, for which the nodes of one machine share its cores, as those of a cluster do not.

`RETABLE_BENCH_NODES=1,2,4` and `RETABLE_BENCH_TRIALS=1000` take less than 32 nodes and 9,000 trials (0: none).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

NODES = tuple(map(int, os.environ.get("RETABLE_BENCH_NODES", "1,2,4,8,16,32").split(",")))
TRIALS = int(os.environ.get("RETABLE_BENCH_TRIALS", "9000"))
SECONDS = 10.0
ROUNDS = 6
"""Trials of each slot."""
STEPS = 8
"""Of a trial of one epoch."""

DRIVER = """
import json, resource, sys, threading, time
from pathlib import Path
from retable.platform import api
from retable.platform.config import override
from retable.platform.spec.resources import Resources
from retable.platform.plan.plan import compile_configs
from retable.platform.execute.scoring import ScoringTasks
from retable.platform.store.storage import Storage
from retable.platform.spec.table import resolve
from retable.platform.spec.task import find

where, count, pause, scored = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "scored"
task, storage, submits, sizes, done = find("line"), Storage.open(where), [], [0], threading.Event()
submit = ScoringTasks.submit
def timed(self, folder):
    start = time.perf_counter()
    submit(self, folder)
    submits.append(time.perf_counter() - start)
ScoringTasks.submit = timed
def watch():
    while not done.wait(20):
        files = list(Path(where, ".ray").rglob("*"))
        sizes.append(sum(file.stat().st_size for file in files if file.is_file()))
threading.Thread(target=watch, daemon=True).start()
configs = [override(task.config(), {"seed": seed, "epochs": 1, "pause": pause}) for seed in range(count)]
views = [resolve(task.view(), config) for config in configs] if scored else ()
begun, cpu = time.perf_counter(), time.process_time()
failed = api.execute(compile_configs(task, configs, storage, views), Resources())
wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
done.set()
assert not failed, failed
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
found = {"wall": wall, "cpu": cpu, "peak": peak, "ray": max(sizes) / 1e6, "submit": 1000 * sum(submits) / count}
print(json.dumps(found))
"""


@contextmanager
def cluster(nodes: int, cpus: int = 1) -> Iterator[str]:
    """Run a head without CPUs and some nodes; yield its address."""
    from ray.cluster_utils import Cluster

    from retable.platform.execute.session import add_to_path, make_token

    add_to_path()
    make_token()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            made.add_node(num_cpus=cpus, include_dashboard=False)
        yield made.address
    finally:
        made.shutdown()


def drive(address: str, storage: str, trials: int, pause: float, what: str) -> dict[str, float]:
    """Train in a driver of its own; return its seconds, CPU seconds and megabytes."""
    words = [sys.executable, "-W", "ignore", "-c", DRIVER, storage, str(trials), str(pause), what]
    done = subprocess.run(words, env=os.environ | {"RAY_ADDRESS": address}, stdout=subprocess.PIPE, check=True)
    results: dict[str, float] = json.loads(done.stdout.decode().splitlines()[-1])
    return results


def busy(spans: np.ndarray[Any, Any], slots: int, first: float, last: float) -> float:
    """Return the share of slots at work between two moments; `spans` (trials, 2) are begins and ends."""
    inside = np.clip(spans[:, 1], first, last) - np.clip(spans[:, 0], first, last)
    return float(inside.sum() / (slots * (last - first)))


def measure() -> dict[str, Any]:
    results: dict[str, Any] = {"seconds of a trial": SECONDS, "trials of a slot": ROUNDS}
    for nodes in NODES:
        with tempfile.TemporaryDirectory(prefix="retable-bench-") as storage, cluster(nodes) as address:
            driver = drive(address, storage, nodes * ROUNDS, SECONDS / STEPS, "trained")
            logs = [file.read_text().splitlines() for file in Path(storage).glob("runs/line/*/metrics.jsonl")]
        ends = np.array([json.loads(log[-1])["time"] for log in logs])
        spans = np.stack([ends - SECONDS, ends], 1)
        begins = np.sort(spans[:, 0])
        results[f"{nodes} nodes: efficiency"] = busy(spans, nodes, begins[0], ends.max())
        results[f"{nodes} nodes: at work"] = busy(spans, nodes, begins[nodes - 1], begins[-1])
        results[f"{nodes} nodes: driver, % of a core"] = 100 * driver["cpu"] / driver["wall"]
        print({name: round(value, 3) for name, value in results.items() if name.startswith(f"{nodes} ")}, flush=True)
    if TRIALS:
        with tempfile.TemporaryDirectory(prefix="retable-bench-") as storage, cluster(1, cpus=4) as address:
            driver = drive(address, storage, TRIALS, 0.0, "scored")
        results |= {
            "trials of one launch": TRIALS,
            "of these: s": driver["wall"],
            "of these: driver, MB": driver["peak"],
            "of these: driver, ms of CPU a trial, trained, predicted and scored": 1000 * driver["cpu"] / TRIALS,
            "of these: `.ray/`, MB": driver["ray"],
            "of these: ScoringTasks.submit, ms": driver["submit"],
        }
    plot(results)
    return results


def plot(results: dict[str, Any]) -> None:
    """Draw efficiency against nodes, beside the results."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.6))
    for name, style in (("efficiency", {"marker": "o"}), ("at work", {"marker": "s", "linestyle": "--"})):
        axis.plot(NODES, [100 * results[f"{nodes} nodes: {name}"] for nodes in NODES], label=name, **style)
    axis.axhline(90, color="#8d939c", linewidth=1)
    axis.set(xscale="log", xlabel="nodes of one CPU", ylabel="%", ylim=(0, 105), title=f"trials of {SECONDS:.0f} s")
    axis.set_xticks(NODES, [str(nodes) for nodes in NODES])
    axis.set_xticks([], minor=True)
    axis.grid(linewidth=0.6)
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(Path(__file__).parent / "results" / "scaling.svg")
    pyplot.close(figure)
