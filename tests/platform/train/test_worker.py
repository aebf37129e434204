"""Two processes compute what one computes, and go on as if they had not been interrupted."""

import json
import os
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from retable.platform.spec.task import Source, find
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.platform.train import worker
from retable.platform.train.loop import train
from retable.platform.train.worker import Worker
from retable.tasks.line.config import Config

ROWS = 6
WAIT = 300
"""Seconds after which a process gives up the other."""


def encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, ROWS, 5, generator=generator, dtype=torch.float64)


def contrast(worker, share):
    """A step whose loss compares every row with every other: return loss, rows and gradients."""
    module = encoder()
    wrapped = worker.wrap(module)
    first, second = wrapped(inputs()[:, share].flatten(0, 1)).unflatten(0, (2, -1))
    first, second = worker.gather(first), worker.gather(second)
    loss = nn.functional.cross_entropy(first @ second.T, torch.arange(ROWS))
    loss.backward()
    return loss.detach(), first.detach(), [parameter.grad for parameter in module.parameters()]


def average(worker, share):
    """A step whose loss is a mean over rows: return it and its gradients."""
    module = encoder()
    wrapped = worker.wrap(module)  # it averages as long as it lives
    loss = wrapped(inputs()[0, share]).square().mean()
    loss.backward()
    return worker.mean(loss.detach()), [parameter.grad for parameter in module.parameters()]


def train_line(worker, where, task=None, keep=(2,)):
    task, config, storage = task or find("line"), Config(epochs=2, batch=16), Storage.open(where)
    folder = RunFolder.of(storage, task, config)
    columns = task.dataset.read(Storage.open(where) / "data/line/points")
    data = task.dataset.open(columns, Source.of(storage, "line/points"), [config])
    train(task, [config], data, [folder], "64 points", worker, [keep], 1)
    return folder


class Stop(Exception):
    pass


class Stopping(find("line").learner):
    steps = 0

    def step(self, batch):
        self.steps += 1
        if self.steps == 4:
            raise Stop
        return super().step(batch)


def process(rank, folder):
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    distributed.init_process_group("gloo", meet, timedelta(seconds=WAIT), rank=rank, world_size=2)
    try:
        work(rank, folder)
    finally:
        distributed.destroy_process_group()


def work(rank, folder):
    worker = Worker(rank=rank, world=2)
    share = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
    found = {"contrast": contrast(worker, share), "average": average(worker, share)}
    torch.save(found, f"{folder}/rank-{rank}.pt")
    train_line(worker, f"{folder}/whole")
    try:
        train_line(worker, f"{folder}/stopped", replace(find("line"), learner=Stopping))
    except Stop:
        distributed.barrier()
        train_line(worker, f"{folder}/stopped")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two processes found."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("whole", "stopped"):
        find("line").dataset.prepare(Config(), Storage.open(folder / name))
    other = torch.multiprocessing.get_context("spawn").Process(target=process, args=(1, str(folder)))
    other.start()
    try:
        process(0, str(folder))
        other.join(timeout=WAIT)
        assert other.exitcode == 0
    finally:
        other.kill()
    return folder


def found(two, name):
    return [torch.load(two / f"rank-{rank}.pt", weights_only=True)[name] for rank in (0, 1)]


def test_gathered_rows_carry_gradients_to_every_process(two):
    loss, rows, gradients = contrast(Worker(), slice(0, ROWS))
    for got in found(two, "contrast"):
        torch.testing.assert_close(got[0], loss)
        torch.testing.assert_close(got[1], rows)  # in order of rank
        torch.testing.assert_close(got[2], gradients)
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients)


def test_wrapped_modules_average_gradients_and_metrics(two):
    loss, gradients = average(Worker(), slice(0, ROWS))
    for got in found(two, "average"):
        torch.testing.assert_close(got[0], loss)
        torch.testing.assert_close(got[1], gradients)


def test_one_process_wraps_and_gathers_nothing():
    module, tensor = encoder(), torch.ones(2)
    assert Worker().wrap(module) is module and Worker().gather(tensor) is tensor and Worker().mean(tensor) is tensor


def test_two_processes_stopped_within_an_epoch_end_as_if_they_had_not_been(two):
    task, config = find("line"), Config(epochs=2, batch=16)
    whole, stopped = (RunFolder.of(Storage.open(two / name), task, config) for name in ("whole", "stopped"))
    logs = [folder.history() for folder in (whole, stopped)]
    for row in (*logs[0], *logs[1]):
        del row["time"], row["seconds"]
    assert logs[0] == logs[1] and [row["epoch"] for row in logs[0]] == [1, 2]
    assert whole.result()["weights"] == stopped.result()["weights"]
    assert "loss" in json.dumps(logs[0]) and os.listdir(two / "whole" / "runs" / "line") == [whole.fingerprint]


class Convolved(TorchDispatchMode):
    """The types of what is convolved while the block runs."""

    def __init__(self):
        super().__init__()
        self.types = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.convolution.default:
            self.types.append(args[0].dtype)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_cpu_without_instructions_for_16_bits_convolves_rounded_operands_in_float32(precision, monkeypatch):
    monkeypatch.setattr(worker, "_has_instructions", lambda dtype: False)
    dtype = getattr(torch, precision)
    convolution, x = nn.Conv3d(5, 7, 3, padding=1), torch.randn(2, 5, 6, 7, 8)

    with Convolved() as convolved, torch.no_grad(), worker.autocast("cpu", precision):
        result = convolution(x)
        with torch.autocast("cpu", enabled=False):
            exact = convolution(x)

    operands = [each.detach().to(dtype).double() for each in (x, convolution.weight, convolution.bias)]
    expected = functional.conv3d(*operands, padding=1)
    assert result.dtype == dtype
    assert exact.dtype == torch.float32
    tolerance = torch.finfo(dtype).eps
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    assert convolved.types == [torch.float32, torch.float32]
