"""Experiment trackers, by `--track`: configs, metrics of each epoch and final metrics, through their own libraries.

What is logged is read from the run's own log, so a training that goes on after an interruption fills its gap. A tracker
that fails is noted in the run's folder and does no harm to the training.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from retable.platform.config import Config, flatten
from retable.platform.errors import UserError, nearest, one_line
from retable.platform.spec import extras
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Record

if TYPE_CHECKING:
    from retable.platform.train.worker import Worker  # which imports Torch

_TRACKERS = ("mlflow", "wandb", "tensorboard")
"""Names, each also of an extra and of the library."""
_PROJECT = "retable"
"""Experiment of MLflow, project of Weights & Biases, unless MLFLOW_EXPERIMENT_NAME or WANDB_PROJECT names another."""
_PAUSE = 1.0
"""Seconds between two readings of a log, which is read whole; the last epoch's is read at once."""

Row = Mapping[str, float]
Log = Callable[[Sequence[Row], Row | None], None]
"""(every epoch so far, the final metrics once there are some): called at epochs' ends."""


def prepare(name: str) -> dict[str, str]:
    """Return the settings of a tracker for workers: its name, and its address as seen from this process.

    Raises:
        UserError: if there is no such tracker, or its library is not installed.
    """
    if not name:
        return {}
    if name not in _TRACKERS:
        raise UserError(f"--track {name}: no such tracker{nearest(name, _TRACKERS)}")
    extras.check(name)
    if name == "mlflow":
        import mlflow

        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        return {"name": name, "where": mlflow.get_tracking_uri(), "project": experiment}
    if name == "wandb":
        folder = os.environ.get("WANDB_DIR", os.getcwd())
        return {"name": name, "where": os.path.abspath(folder), "project": os.environ.get("WANDB_PROJECT", _PROJECT)}
    return {"name": name, "where": os.path.abspath("tensorboard"), "project": _PROJECT}


def tracked(
    worker: Worker, settings: Mapping[str, str], folders: Sequence[RunFolder], configs: Sequence[Config]
) -> Any:
    """Return a worker that also reports to a tracker at epochs' ends; the same worker without one."""
    if not settings or worker.rank:
        return worker
    opened = {"mlflow": open_mlflow, "wandb": _open_wandb, "tensorboard": _open_tensorboard}[settings["name"]]
    logs: list[Log | None] = [None] * len(folders)
    broken, told = False, -math.inf

    def report(metrics: Record) -> None:
        nonlocal broken, told
        try:
            results = [] if broken else [folder.result() for folder in folders]
            if any(results) or (results and time.monotonic() - told >= _PAUSE):
                for index, (folder, config, result) in enumerate(zip(folders, configs, results, strict=True)):
                    log = logs[index] = logs[index] or opened(settings, folder, flatten(config))
                    log([numbers(row) for row in folder.history()], numbers(result["metrics"]) if result else None)
                told = time.monotonic()
        except Exception as error:
            broken = True
            worker.note(f"--track {settings['name']}: {one_line(error)}; the training went on without it")
        worker.report(metrics)

    return dataclasses.replace(worker, report=report)


def numbers(row: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a line of the log."""
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}


def open_mlflow(settings: Mapping[str, str], folder: RunFolder, config: Mapping[str, object]) -> Log:
    """Return a logger for MLflow: one MLflow run for each run, found again by its tags; trained anew, another one."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(settings["where"])
    project = client.get_experiment_by_name(settings["project"])
    experiment = project.experiment_id if project else client.create_experiment(settings["project"])
    tags = {"retable.run": folder.fingerprint, "retable.started": _started(folder)}
    existing = client.search_runs([experiment], " and ".join(f"tags.`{name}` = '{tag}'" for name, tag in tags.items()))
    if existing:
        run = existing[0]
    else:
        tags |= {"retable.task": folder.task}
        run = client.create_run(experiment, tags=tags, run_name=f"{folder.task} {folder.fingerprint[:8]}")
        params = [Param(path, str(value)[:500]) for path, value in config.items()]
        for first in range(0, len(params), 100):
            client.log_batch(run.info.run_id, params=params[first : first + 100])
    done = int(run.data.metrics.get("epoch", 0))

    def log(rows: Sequence[Row], final: Row | None) -> None:
        nonlocal done
        for row in rows:
            if row["epoch"] > done:
                at, step = int(1000 * row["time"]), int(row["epoch"])
                client.log_batch(run.info.run_id, [Metric(name, float(v), at, step) for name, v in row.items()])
                done = step
        if final is not None:
            at = int(1000 * rows[-1]["time"])
            last = [Metric(f"final/{name}", float(value), at, done) for name, value in final.items()]
            client.log_batch(run.info.run_id, last)
            client.set_terminated(run.info.run_id)

    return log


def _started(folder: RunFolder) -> str:
    """Return when a run's training began: one that is trained anew is another run of a tracker's."""
    return str(folder.provenance().get("started", ""))


def _open_wandb(settings: Mapping[str, str], folder: RunFolder, config: Mapping[str, object]) -> Log:
    """Return a logger for Weights & Biases, which follows WANDB_MODE and its other variables."""
    import wandb

    run = wandb.init(
        project=settings["project"],
        dir=settings["where"],
        id="-".join(filter(None, (folder.fingerprint, *re.findall(r"\d+", _started(folder))))),
        name=f"{folder.task} {folder.fingerprint[:8]}",
        group=folder.task,
        config=dict(config),
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(silent=True),
    )
    done = run.step - 1  # of what was logged before: wandb goes on with the next

    def log(rows: Sequence[Row], final: Row | None) -> None:
        nonlocal done
        for row in rows:
            if row["epoch"] > done:
                run.log(dict(row), step=int(row["epoch"]))
                done = int(row["epoch"])
        if final is not None:
            run.summary.update({f"final/{name}": value for name, value in final.items()})
            run.finish()

    return log


def _open_tensorboard(settings: Mapping[str, str], folder: RunFolder, config: Mapping[str, object]) -> Log:
    """Return a logger for TensorBoard: the curves, and the config with the final metrics as hyperparameters."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(f"{settings['where']}/{folder.task}-{folder.fingerprint}", purge_step=0)
    done = 0

    def log(rows: Sequence[Row], final: Row | None) -> None:
        nonlocal done
        for row in rows[done:]:
            for name, value in row.items():
                writer.add_scalar(name, value, int(row["epoch"]), row["time"])
        done = len(rows)
        if final is not None:
            chosen = {
                path: value if isinstance(value, (bool, int, float)) else str(value) for path, value in config.items()
            }
            last = {f"final/{name}": value for name, value in final.items()}
            writer.add_hparams(chosen, last, run_name=".")
        writer.flush()

    return log
