"""Trainings as checks: by the platform's loop, whole or interrupted, and by two processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from benchmarks.gpu.measure import closeness, distance
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker

if TYPE_CHECKING:
    from benchmarks.gpu.frame import Where
    from retable.platform.spec.task import Task

DRIFT = 1e-4
"""How far two trainings of a few steps may part by rounding alone, relative to the weights. Adam turns what rounding
makes of a gradient near 0 into a step of the learning rate, a thousandth of a weight and less; few gradients are."""
MOVED = 0.02
"""How far weights may differ, relative to how far training moved them, where sums are made in another order. Adam's
first moves are by signs, and of a gradient near 0 rounding makes any. A lost state of the optimiser, or the gradient of
half a batch, is off by a tenth or more."""
Work = Callable[[Worker, Any], dict[str, Tensor]]


class Interrupted(Exception):
    """Early end of a training, as by a machine that goes away."""


def resumed(task: Task, configs: Sequence[Any], data: Any, where: Where) -> dict[str, Any]:
    """Check that a training which is interrupted in its first epoch and goes on ends as one that is not.

    On a CPU every bit is the same. On a GPU some sums have no fixed order: the bound is `MOVED`, or twice what two
    trainings part by that are both uninterrupted, where that is more (`noise`).

    Args:
        task: what is trained.
        configs: the members.
        data: theirs, in memory.
        where: the device.
    """

    def ended(storage: Storage, stopped: bool = False) -> dict[str, Tensor]:
        folders = [RunFolder.of(storage, task, config) for config in configs]
        batches = _Stopping(data, (0, data.steps - 1) if stopped else None)
        train(task, configs, batches, folders, "in memory", worker, [()] * len(configs), 1)
        return joined([folder.weights(config.epochs) for folder, config in zip(folders, configs, strict=True)])

    worker = Worker(device=where.device)
    start = joined([state["weights"] for state in task.learner(configs, data, worker).state_dict()])
    with tempfile.TemporaryDirectory(prefix="retable-gpu-") as folder:
        uninterrupted, interrupted = (Storage.open(Path(folder, name)) for name in ("whole", "parts"))
        wanted = moves(start, ended(uninterrupted))
        with suppress(Interrupted):
            ended(interrupted, stopped=True)
        got = moves(start, ended(interrupted))
        if not where.gpu:
            return closeness("moves of the weights", got, wanted, 0.0)
        noise = distance(moves(start, ended(Storage.open(Path(folder, "again")))), wanted)
    return {**closeness("moves of the weights", got, wanted, max(MOVED, 2 * noise)), "noise": noise}


class _Stopping:
    """Data whose batches end by `Interrupted` at a place, (epoch, step); otherwise what it wraps."""

    def __init__(self, data: Any, stop: tuple[int, int] | None) -> None:
        self._data, self._place = data, stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def batches(self, epoch: int, start: int, rank: int, world: int) -> Iterator[Any]:
        for step, batch in enumerate(self._data.batches(epoch, start, rank, world), start):
            if (epoch, step) == self._place:
                raise Interrupted
            yield batch


def joined(members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the weights of several members as one set, on the CPU."""
    every = {f"{number}/{name}": value for number, own in enumerate(members) for name, value in own.items()}
    return numbers(every)


def numbers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a state on the CPU, without what is no number, such as a tokenizer."""
    return {name: value.detach().cpu().clone() for name, value in state.items() if value.is_floating_point()}


def moves(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return how far training has moved matrices, kernels and pictures.

    Not vectors: a bias before a normalisation, or of an attention's keys, changes nothing, so that its gradient is all
    rounding, and Adam moves it by the sign of that. Nor what began as nothing, such as a log of losses.
    """
    return {name: new - start[name] for name, new in end.items() if new.ndim > 1 and new.shape == start[name].shape}


def by_two(work: Work, given: Any, where: Where) -> dict[str, Tensor]:
    """Return what the first of two processes gives for `work(run, given)`, a function of a module.

    On two GPUs over NCCL, where there are two; else both are on one device, over Gloo.
    """
    from torch.multiprocessing import spawn  # type: ignore[attr-defined]

    with tempfile.TemporaryDirectory(prefix="retable-gpu-") as folder:
        started = spawn(_one_of_two, (work, given, where.device, folder), nprocs=2, join=False)
        try:
            while not started.join():
                pass
        finally:  # also where time is over
            for process in started.processes:
                process.kill()
        tensors: dict[str, Tensor] = torch.load(Path(folder, "found.pt"), weights_only=True)
    return tensors


def _one_of_two(rank: int, work: Work, given: Any, device: str, folder: str) -> None:
    spread = device.startswith("cuda") and torch.cuda.device_count() > 1
    if spread:
        torch.cuda.set_device(rank)  # what "cuda" means from here
    torch.set_num_threads(1)
    backend = "nccl" if spread else "gloo"
    distributed.init_process_group(backend, f"file://{folder}/meeting", rank=rank, world_size=2)
    results = work(Worker(rank=rank, world=2, device=device), given)
    if rank == 0:
        torch.save({name: value.cpu() for name, value in results.items()}, Path(folder, "found.pt"))
    distributed.barrier()
    distributed.destroy_process_group()
