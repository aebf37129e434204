"""Trainings as checks: by the platform's loop, whole or interrupted, and by two processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from benchmarks.gpu.measure import closeness
from retable.platform.loop import train
from retable.platform.runs import RunFolder
from retable.platform.storage import Storage
from retable.platform.worker import Worker

if TYPE_CHECKING:
    from benchmarks.gpu.frame import Where
    from retable.platform.task import Task

DRIFT = 1e-4
"""How far two trainings of a few steps may part by rounding alone, relative to the weights. Adam turns what rounding
makes of a gradient near 0 into a step of the learning rate, a thousandth of a weight and less; few gradients are."""
Work = Callable[[Worker, Any], dict[str, Tensor]]


class Interrupted(Exception):
    """What ends a training early, as a machine that goes away would."""


def resumed(task: Task, configs: Sequence[Any], opened: Callable[[], Any], where: Where) -> dict[str, Any]:
    """Check that a training which is interrupted and goes on ends as one that is not: on a CPU bit for bit.

    On a GPU sums may be taken in any order. There only matrices and kernels are compared: a bias before a normalisation
    has a gradient of nothing but rounding, of which Adam makes whole steps.

    Args:
        task: what is trained.
        configs: the members; two epochs of some steps.
        opened: returns their data, anew for each training.
        where: the device.
    """
    steps = opened().steps

    def dying(data: Any, after: int) -> Any:
        batches = data.batches

        def some(epoch: int, *place: int) -> Iterator[Any]:
            for step, batch in enumerate(batches(epoch, *place)):
                if (epoch, step) == (1, after):
                    raise Interrupted
                yield batch

        data.batches = some
        return data

    def ended(folder: str, data: Any) -> dict[str, Tensor]:
        storage = Storage.open(folder)
        folders = [RunFolder.of(storage, task, config) for config in configs]
        train(task, configs, data, folders, "in memory", Worker(device=where.device), [()] * len(configs), 1)
        last = [own.weights(config.epochs) for own, config in zip(folders, configs, strict=True)]
        every = {f"{number}/{name}": value for number, own in enumerate(last) for name, value in own.items()}
        return {name: value for name, value in every.items() if value.dim() > 1} if where.gpu else every

    with tempfile.TemporaryDirectory(prefix="retable-gpu-") as folder:
        whole = ended(f"{folder}/whole", opened())
        try:
            ended(f"{folder}/parts", dying(opened(), steps // 2))
        except Interrupted:
            return closeness("weights", ended(f"{folder}/parts", opened()), whole, DRIFT if where.gpu else 0.0)
    raise RuntimeError("the training was not interrupted")


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
        found: dict[str, Tensor] = torch.load(Path(folder, "found.pt"), weights_only=True)
    return found


def _one_of_two(rank: int, work: Work, given: Any, device: str, folder: str) -> None:
    spread = device.startswith("cuda") and torch.cuda.device_count() > 1
    if spread:
        torch.cuda.set_device(rank)  # what "cuda" means from here
    torch.set_num_threads(1)
    backend = "nccl" if spread else "gloo"
    distributed.init_process_group(backend, f"file://{folder}/meeting", rank=rank, world_size=2)
    found = work(Worker(rank=rank, world=2, device=device), given)
    if rank == 0:
        torch.save({name: value.cpu() for name, value in found.items()}, Path(folder, "found.pt"))
    distributed.barrier()
    distributed.destroy_process_group()
