"""Ways to compute that `style` and `audio` share: precisions, CUDA graphs, an interrupted run, two processes.

Trainings are compared by where they move the weights, not by the weights (`training.py`): these have biases without an
effect, which Adam moves at random.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing

from benchmarks.gpu.frame import Value, Where
from benchmarks.gpu.measure import Tensors, closeness, tf32
from retable.platform.loop import train
from retable.platform.runs import RunFolder
from retable.platform.storage import Storage
from retable.platform.task import Task
from retable.platform.worker import Worker, seed_everything

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
NO_CUDA: Mapping[str, Value] = {"left out": "no CUDA"}
WAIT = 120
"""Seconds after which a process gives up the other."""
MOVED = 0.02
"""How far weights may differ, relative to how far training moved them, where sums are made in another order. Adam's
first moves are by signs, and of a gradient near 0 rounding makes any. A lost state of the optimiser, or the gradient of
half a batch, is off by a tenth or more."""

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
    found: dict[str, float | str | bool] = {}
    ok = True
    for name, bound in bounds.items():
        each = closeness(name, got[name], want[name], bound)
        found |= {f"{name}: error": each["error"], f"{name}: bound": bound}
        ok &= bool(each["ok"])
    return {**found, "ok": ok}


def numbers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a state on the CPU, without what is no number, such as a tokenizer."""
    return {name: value.detach().cpu().clone() for name, value in state.items() if value.is_floating_point()}


def moves(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return how far training has moved matrices, kernels and pictures.

    Not vectors: a bias before a normalisation, or of an attention's keys, changes nothing, so that its gradient is all
    rounding, and Adam moves it by the sign of that. Nor what began as nothing, such as a log of losses.
    """
    return {name: new - start[name] for name, new in end.items() if new.ndim > 1 and new.shape == start[name].shape}


class Interrupted(Exception):
    """What ends a training in the middle, as a machine that dies would."""


def resumed(opened: Opened, where: Where) -> dict[str, float | str | bool]:
    """Train twice by `loop.train`, the second time interrupted within the first epoch and resumed; compare weights.

    On a CPU every bit is the same. On a GPU some sums have no fixed order, and `MOVED` is the bound.
    """
    task, config, data = opened
    start = numbers(task.learner([config], data, Worker(device=where.device)).state_dict()[0]["weights"])
    with tempfile.TemporaryDirectory(prefix="retable-gpu-") as folder, arithmetic("float32", where.device):
        whole, parts = (Storage.open(Path(folder, name)) for name in ("whole", "parts"))
        wanted = _trained(opened, where, whole)
        with suppress(Interrupted):
            _trained(opened, where, parts, config.steps - 1)
        got = _trained(opened, where, parts)
    bound = MOVED if where.gpu else 0.0
    return closeness("moves of the weights", moves(start, got), moves(start, wanted), bound)


def _trained(opened: Opened, where: Where, storage: Storage, stop_at: int | None = None) -> dict[str, Tensor]:
    """Train to the end and return the weights, or raise `Interrupted` before step `stop_at` of the first epoch."""
    task, config, data = opened
    folder = RunFolder.of(storage, task, config)
    train(task, [config], _Stopping(data, stop_at), [folder], "in memory", Worker(device=where.device), [()], 1)
    return numbers(folder.weights(config.epochs))


class _Stopping:
    """Data whose batches end by `Interrupted` before a step of the first epoch; otherwise what it wraps."""

    def __init__(self, data: Any, stop_at: int | None) -> None:
        self._data, self._stop_at = data, stop_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def batches(self, epoch: int, start: int, rank: int, world: int) -> Iterator[Any]:
        for step, batch in enumerate(self._data.batches(epoch, start, rank, world), start):
            if (epoch, step) == (0, self._stop_at):
                raise Interrupted
            yield batch


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
    found = closeness("moves of the weights", moves(start, got), moves(start, wanted), MOVED)
    return {"two": "GPUs" if two else "processes on the CPU", **found}


def _work(rank: int, open_one: Callable[[str], Opened], device: str, folder: str) -> None:
    """Train as one of two processes; the first leaves the weights before and after in a file."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend, meeting = ("nccl" if device == "cuda" else "gloo"), f"file://{folder}/meeting"
    distributed.init_process_group(backend, meeting, timedelta(seconds=WAIT), rank=rank, world_size=2)
    try:
        found = _steps(open_one(device), Worker(rank, 2, device))
        if rank == 0:
            torch.save(found, Path(folder, "weights.pt"))
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
