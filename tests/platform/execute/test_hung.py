"""Train groups that lose workers: a frozen one is given up in bounded time, and fewer share the same batch."""

import contextlib
import signal
import time

import psutil
import pytest
from ray.train import ControllerError, UserCallback
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

from retable.platform.config import override
from retable.platform.execute.trials import (
    Job,
    Launch,
    Members,
    is_transient,
    timeouts_told_apart,
    train_group,
    workers_now,
)
from retable.platform.spec.resources import Requirements, Resources
from retable.platform.spec.task import find
from retable.platform.store.storage import Storage
from tests.platform.execute.test_faults import (
    TRAIN,
    attempts,
    driver,
    ends,
    none_left,
    outcome,
    record,
    run_of,
    steps,
    undisturbed,
    wait_for,
)
from tests.tiny import lines

assert none_left and record  # fixtures


def test_who_waits_in_vain_for_another_worker_begins_again():
    said = "[/pytorch/third_party/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation"
    with pytest.raises(TimeoutError, match="another worker does not answer: ") as raised, timeouts_told_apart():
        raise RuntimeError(said)
    assert is_transient(raised.value)
    with pytest.raises(RuntimeError, match="shapes") as raised, timeouts_told_apart():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert not is_transient(raised.value)


@pytest.mark.parametrize(
    ("there", "batch", "workers"),
    [
        ({"CPU": 16.0, "GPU": 8.0}, 64, 8),
        ({"CPU": 16.0, "GPU": 6.0}, 64, 4),  # 5 and 6 cannot share 64
        ({"CPU": 16.0, "GPU": 6.0}, 66, 6),
        ({"CPU": 16.0, "GPU": 1.0}, 64, 1),
        ({"CPU": 16.0, "GPU": 0.0}, 64, 8),  # nothing fits: the nodes are waited for
        ({"CPU": 2.0, "GPU": 8.0}, 64, 4),
    ],
)
def test_a_group_that_lost_nodes_goes_on_with_as_many_workers_as_share_its_batch(monkeypatch, there, batch, workers):
    for place in ("trials", "session"):
        monkeypatch.setattr(f"retable.platform.execute.{place}.possible_resources", lambda: there)
    assert workers_now(Requirements(workers=8, gpus=1.0), batch) == workers


def test_a_group_that_finds_no_room_is_counted_anew(monkeypatch, tmp_path):
    """A node that was just lost may still be counted; its group would wait for ever."""
    counts, asked, storage = iter([4.0, 4.0, 2.0, 2.0]), [], Storage.open(tmp_path)
    config = override(find("line").config(), {"epochs": 1})
    lines(storage)
    for place in ("trials", "session"):
        monkeypatch.setattr(f"retable.platform.execute.{place}.possible_resources", lambda: {"CPU": next(counts)})
    monkeypatch.setattr("retable.platform.execute.trials.trial_memory", lambda *given: 0)

    class Trainer:
        def __init__(self, loop, *, scaling_config, run_config, **more):
            asked.append(scaling_config.resources_per_worker["CPU"])
            assert run_config.failure_config.controller_failure_limit == 0, "Train itself would ask for the same again"

        def fit(self):
            if len(asked) == 1:
                raise ControllerError(WorkerGroupStartupTimeoutError(2))

    monkeypatch.setattr("ray.train.torch.TorchTrainer", Trainer)
    monkeypatch.setattr("ray.tune.integration.ray_train.TuneReportCallback", UserCallback)
    job = Job("line", (config,), ((),), needs=Requirements(workers=2))
    train_group(Members(job, (), ()), Launch(storage, Resources(workers=2), {}))
    assert asked == [1.0, 0.95]


def workers_of(process):
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "RayTrainWorker" in " ".join(child.cmdline()):
                found.append(child)
    return sorted(found, key=lambda child: child.create_time())


@pytest.mark.slow
def test_a_worker_that_is_frozen_is_given_up_and_its_group_begins_again(tmp_path, record):
    record["fault"] = "worker of a Train group frozen, with 15 s to wait in place of 600"
    storage, epochs = str(tmp_path / "frozen"), 6
    folder = run_of(storage, epochs=epochs, pause=0.1)
    impatient = {
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "30",
        "RAY_TRAIN_TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5",
    }
    code = "from retable.platform.execute import trials as launch\nlaunch.HUNG = 15\n" + TRAIN % (epochs, 2)
    process = driver(code, storage, **impatient)
    wait_for(lambda: steps(folder), process)
    frozen = workers_of(process)[-1]
    start = time.monotonic()
    frozen.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: attempts(folder) == 2, process, seconds=120)
        seconds = time.monotonic() - start
        ends(process, 200)
    finally:
        with contextlib.suppress(psutil.Error):
            frozen.kill()
    assert seconds < 120 and folder.result()["metrics"]["step"] == 8 * epochs
    assert outcome(folder) == undisturbed(tmp_path, epochs, workers=2)
    record |= {"survived": "yes", "seconds": seconds, "attempts": attempts(folder)}
