"""Ways to compute that `style` and `audio` share: precisions, CUDA graphs, two processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing

from benchmarks.gpu.frame import Value, Where
from benchmarks.gpu.measure import Tensors, closeness, tf32
from benchmarks.gpu.training import MOVED, moves, numbers
from retable.platform.spec.task import Task
from retable.platform.train.worker import Worker, seed_everything

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
NO_CUDA: Mapping[str, Value] = {"left out": "no CUDA"}
WAIT = 120
"""Seconds after which a process gives up the other."""

Opened = tuple[Task, Any, Any]
"""A task, a config of it, and data in memory that its learner and the loop take."""


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """Compute in `float32` (TF32 nowhere), `tf32` (wherever it can be), `bfloat16`, `float16`, or `default`.

    Half precisions are autocast's, with PyTorch's own setting of TF32 elsewhere; `default` is that setting alone:
    TF32 in convolutions, not in products of matrices.
    """
    switched = tf32(precision == "tf32") if precision in ("float32", "tf32") else nullcontext()
    with switched, torch.autocast(torch.device(device).type, HALF.get(precision), enabled=precision in HALF):
        yield


def graphed(call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Capture what a call does on the GPU; return what replays it, and the result that each replay writes anew."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):  # libraries choose their algorithms and take their memory before the capture
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph.replay, result


def compiled(module: Callable[..., Any], where: Where) -> Callable[..., Any]:
    """Compile for a GPU; on a CPU trace only, as there may be no compiler for it."""
    torch.compiler.reset()  # after some versions of the same code PyTorch would give up, and say nothing
    made: Callable[..., Any] = torch.compile(module, dynamic=False, backend="inductor" if where.gpu else "eager")
    return made


def compared(
    got: Mapping[str, Tensors], want: Mapping[str, Tensors], bounds: Mapping[str, float]
) -> dict[str, float | str | bool]:
    """Compare several things, each within a bound of its own; `ok` says whether all are."""
    results: dict[str, float | str | bool] = {}
    ok = True
    for name, bound in bounds.items():
        comparison = closeness(name, got[name], want[name], bound)
        results |= {f"{name}: error": comparison["error"], f"{name}: bound": bound}
        ok &= bool(comparison["ok"])
    return {**results, "ok": ok}


def shared_out(open_one: Callable[[str], Opened], where: Where) -> dict[str, float | str | bool]:
    """Train some steps in two processes and in one with the joined batch; compare where the weights have come to.

    Two GPUs where there are, else two processes on the CPU. `open_one` is a module's function or a partial of one, and
    is given the device that it opens a run for: processes may have to import it.
    """
    two = where.gpu and torch.cuda.device_count() > 1
    device = "cuda" if two else "cpu"
    with tempfile.TemporaryDirectory(prefix="retable-gpu-") as folder:
        # A process that is forked has everything imported; where there is CUDA, it could not use PyTorch.
        method = "spawn" if torch.cuda.is_available() else "fork"
        multiprocessing.start_processes(_work, (open_one, device, folder), nprocs=2, start_method=method)
        start, got = torch.load(Path(folder, "weights.pt"), weights_only=True)
    _, wanted = _steps(open_one(device), Worker(device=device))
    distances = closeness("moves of the weights", moves(start, got), moves(start, wanted), MOVED)
    return {"two": "GPUs" if two else "processes on the CPU", **distances}


def _work(rank: int, open_one: Callable[[str], Opened], device: str, folder: str) -> None:
    """Train as one of two processes; the first leaves the weights before and after in a file."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend, meeting = ("nccl" if device == "cuda" else "gloo"), f"file://{folder}/meeting"
    distributed.init_process_group(backend, meeting, timedelta(seconds=WAIT), rank=rank, world_size=2)
    try:
        results = _steps(open_one(device), Worker(rank, 2, device))
        if rank == 0:
            torch.save(results, Path(folder, "weights.pt"))
    finally:
        distributed.destroy_process_group()


def _steps(opened: Opened, worker: Worker) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Train the first epoch; return the weights before and after."""
    task, config, data = opened
    learner = task.learner([config], data, worker)
    start = numbers(learner.state_dict()[0]["weights"])
    with arithmetic("float32", worker.device):
        for step, batch in enumerate(data.batches(0, 0, worker.rank, worker.world)):
            seed_everything(config.seed, step, worker.rank)
            learner.step(batch)
    return start, numbers(learner.state_dict()[0]["weights"])
