"""Training as Ray Tune trials that run the loop, alone or as a Ray Train group.

With one worker a trial runs the loop itself, in an actor that the next trial reuses. With more it starts a Ray Train
`TorchTrainer` whose workers run the same loop.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from retable.platform import ray_compat
from retable.platform.config import Config, View, override
from retable.platform.errors import Unreachable, UserError, disk_errors, nearest, one_line, traceback_carried
from retable.platform.execute import preemption
from retable.platform.execute.callback import FAILURE, LATE, TAKEN, Spec, TrialCallback
from retable.platform.execute.session import (
    check_node,
    check_room,
    cpu_share,
    possible_resources,
    switches,
    trial_memory,
)
from retable.platform.plan.plan import status
from retable.platform.spec.resources import Requirements, Resources
from retable.platform.spec.task import Data, Source, Task, find
from retable.platform.store import lease
from retable.platform.store.lease import Lease
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Record, Storage

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer
    from ray.tune import PlacementGroupFactory, ResultGrid

    from retable.platform.train.worker import Worker


@dataclass(frozen=True)
class Job:
    """The work of one trial: a stack of members, usually one."""

    task: str
    configs: tuple[Config, ...]
    keep: tuple[tuple[int, ...], ...]
    view: View | None = None
    """Scored after each epoch, for a sweep."""
    metric: str = ""
    """The metric that a sweep requires in each report."""
    retry: bool = False
    """Whether members that diverged are trained again."""
    dead: tuple[int, ...] = ()
    """For each member the number of the last attempt known to be dead, if any."""
    needs: Requirements = field(default_factory=Requirements)
    """The resources of the trial."""

    def of(self, members: Sequence[int], dead: Sequence[int]) -> Job:
        """Return the job of some members alone."""
        configs, keep = [self.configs[member] for member in members], [self.keep[member] for member in members]
        return dataclasses.replace(self, configs=tuple(configs), keep=tuple(keep), dead=tuple(dead))


HUNG = 600
"""Seconds that a worker of a Train group waits for the others before the group counts as hung and begins again. Train
itself asks each worker all the while, and gives one up after the same time."""


@dataclass(frozen=True)
class Launch:
    """The settings that all trials of a launch share; sent once."""

    storage: Storage
    resources: Resources
    provenance: Record
    holder: Any = None
    """The actor that holds the data sets (`datasets.RefHolder`); None: each is read as a stream."""
    gpus: float = 0.0
    """GPUs that the cluster has or may come to have."""
    jobs: Sequence[Job] = ()
    track: Mapping[str, str] = field(default_factory=dict)
    """Settings of the experiment tracker for workers (`trackers.prepare`); empty without one."""
    scratch: str = ".ray"
    """Folder of the storage where Ray keeps its own state while it runs."""
    hung: int = field(default_factory=lambda: HUNG)
    """Seconds that workers of a Train group wait for each other."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Distinguishes the trials of commands."""


@dataclass(frozen=True)
class Members:
    """The members of a trial's job that are unfinished and whose leases it holds."""

    job: Job
    """The job of these members."""
    folders: tuple[RunFolder, ...]
    attempts: tuple[Lease, ...]

    def check_owner(self) -> None:
        """Check that this trial still owns all of the runs.

        Raises:
            LeaseLost: if another attempt owns one; of all that are so.
        """
        if lost := [attempt.folder for attempt in self.attempts if not attempt.owns()]:
            raise lease.LeaseLost(lost)

    def note(self, text: str) -> None:
        """Keep a line about an event with each attempt."""
        for attempt in self.attempts:
            attempt.note(text)


def claim_members(job: Job, launch: Launch, work: str) -> tuple[Members, list[RunFolder]]:
    """Acquire the leases of a job's unfinished members; return them, and the runs that others own.

    Members that are finished are left out: where a process died while it wrote the results, the others go on.
    """
    task = find(job.task)
    digest = Source.of(launch.storage, task.dataset.where(job.configs[0])).info["digest"]
    dead = job.dead or (0,) * len(job.configs)
    every = [
        (c, keep, RunFolder.of(launch.storage, task, c), d)
        for c, keep, d in zip(job.configs, job.keep, dead, strict=True)
    ]
    over, again = ((), ("diverged",)) if job.retry else (("diverged",), ())
    anew = ("data changed", "weights not kept", "weights not sent", *again)
    todo = [run for run in every if status(run[2], run[1], digest, weights=True) not in ("done", *over)]
    steps = [set(folder.checkpoints()) for _, _, folder, _ in todo]
    step = max(set.intersection(*steps), default=0) if steps else 0
    ours, taken = [], []
    try:
        for config, keep, folder, number in todo:
            try:
                attempt = lease.acquire(folder, work, step, number)
            except lease.LeaseLost:
                taken.append(folder)
                continue
            state = status(folder, keep, digest, weights=True)
            if state in ("done", *over):  # another one has just ended
                lease.release([attempt])
                continue
            if state in anew:  # what it kept is kept again: views of other commands ask for it
                keep = tuple(sorted({*keep, *map(int, (folder.outcome() or {"weights": ()})["weights"])}))
                forget(folder, state == "data changed")
            ours.append((config, keep, folder, attempt))
    except BaseException as error:
        if isinstance(error, lease.Died):  # with all members of its stack
            for folder in [run for _, _, run, _ in todo if lease.is_free(run, work)]:
                folder.fail(str(error))
        lease.release([attempt for *_, attempt in ours])
        raise
    configs, keeps, places, mine = zip(*ours, strict=True) if ours else ((), (), (), ())
    return Members(dataclasses.replace(job, configs=configs, keep=keeps, dead=()), places, mine), taken


def forget(folder: RunFolder, data_changed: bool) -> None:
    """Reset a run that no longer counts, so that it starts anew with new provenance.

    With other data its views go first: these may well give the very same weights. `result.json` goes last, so that an
    interruption finds the run as it was.
    """
    if data_changed:
        folder.folder.remove("views")
    folder.remove_checkpoints()
    for name in ("provenance.json", "result.json"):
        folder.folder.remove(name)


def train_job(members: Members, launch: Launch, worker: Worker) -> None:
    """Run the loop for the members of a job in this process, as a worker."""
    import torch

    from retable.platform.execute.scoring import score_weights
    from retable.platform.store.provenance import code_of, here
    from retable.platform.train.loop import train
    from retable.platform.train.trackers import tracked

    needs = members.job.needs
    torch.set_num_threads(needs.cpus if needs.workers == 1 else 1)
    job, folders = members.job, members.folders
    configs, task = job.configs, find(job.task)
    source = Source.of(launch.storage, task.dataset.where(configs[0]))
    if worker.rank == 0:
        code = code_of(task.name)
        facts = {**launch.provenance, **here(), "code": code, "data": source.info, "stack": len(configs)}
        for folder, config in zip(folders, configs, strict=True):
            folder.begin(config, task.version, {**facts, "seed": config.seed})
        worker = dataclasses.replace(
            worker, save=folders[0].folder.write, check_owner=members.check_owner, note=members.note
        )
    worker = tracked(worker, launch.track, folders, configs) if launch.track else worker
    data = open_data(task, configs, source, launch)

    def score(weights: Mapping[str, torch.Tensor], epoch: int) -> Mapping[str, float]:
        assert job.view is not None
        return score_weights(task, configs[0], override(job.view, {"epoch": epoch}), weights, source)

    def report(metrics: Record) -> None:
        if worker.rank == 0:  # the others do not score
            require(job.metric, metrics)
        worker.report(metrics)

    train(
        task,
        configs,
        data,
        folders,
        source.info["digest"],
        dataclasses.replace(worker, report=report) if job.metric else worker,
        job.keep,
        launch.resources.checkpoint_every,
        score if job.view is not None else None,
    )


def open_data(task: Task, configs: Sequence[Config], source: Source, launch: Launch) -> Data:
    """Open the data set of some configs; its arrays are in the object store, or it is a stream."""
    import ray

    from retable.platform.execute.streams import limit

    if launch.resources.read_ahead:
        limit(launch.resources.read_ahead)
    held = ray.get(launch.holder.get.remote(task.dataset.where(configs[0]))) if launch.holder else []
    data: Data = task.dataset.open(ray.get(held[0]) if held else None, source, configs)
    return data


def require(metric: str, metrics: Mapping[str, object]) -> None:
    """Raise a UserError where a metric is not among those that were taken."""
    if metric not in metrics:
        raise UserError(f"no metric {metric!r} was taken{nearest(metric, metrics)}")


def trial(spec: Spec, launch: Launch) -> None:
    """Train the job that `spec` names by number, or those of its members that it names."""
    from ray import tune

    if launch.resources.late:  # Tune makes trials before there is room for them
        tune.report({LATE: True})
        return
    with reported():
        try:
            run_job(
                launch.jobs[spec["job"]].of(spec["members"], spec["dead"]), launch, f"{launch.id} {spec['members']}"
            )
        except lease.LeaseLost as taken:
            tune.report({TAKEN: [folder.path for folder in taken.folders]})


@contextmanager
def reported(**more: float) -> Iterator[None]:
    """Report an error, with more metrics, instead of raising it.

    Transient errors are re-raised so that Ray retries the trial, possibly on another node.
    """
    from ray import tune

    try:
        yield
    except Exception as error:
        if is_transient(error):
            raise
        tune.report({FAILURE: one_line(error), **more})
    finally:
        _trim_memory()


def is_transient(error: BaseException) -> bool:
    """Return whether an error is a transient infrastructure failure: of storage, GPU, network, or a lost worker."""
    import ray.exceptions
    import torch
    from torch.distributed import DistError

    errors = ray_compat.worker_errors(error)
    if any(isinstance(cause, UserError) and not isinstance(cause, Unreachable) for cause in errors):
        return False
    machines = (Unreachable, ConnectionError, TimeoutError, ray.exceptions.RayError, torch.AcceleratorError, DistError)
    return any(isinstance(cause, machines) or ray_compat.is_train_error(cause) for cause in errors)


def _trim_memory() -> None:
    """Return freed memory of this process to the system.

    Tune runs each trial of a reused actor in a new thread. glibc allots memory to threads in up to eight arenas a core,
    and keeps in each what is freed there: without this an actor grows with every training.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it, and needs it
    if trim is not None:
        trim(0)


def run_job(job: Job, launch: Launch, work: str) -> None:
    """Train the members of a job that are unfinished and free: in this process, or as a Ray Train group.

    Args:
        job: what.
        launch: what all trials share.
        work: names the trial: where Ray begins it again, its former attempt is over.

    Raises:
        LeaseLost: at the end, if other commands own runs of it.
    """
    from ray import tune

    from retable.platform.train.worker import Worker

    members, taken = claim_members(job, launch, work)
    if members.folders:
        group = job.needs.workers > 1
        with (
            switches(),  # on a Ray that the user has started
            lease.heartbeat(members.attempts),
            preemption.handle_preemption(members.attempts, relayed=group),
            failures_kept(members.attempts),
        ):
            if job.needs.workers > 1:
                train_group(members, launch)
            else:
                device = "cuda" if job.needs.gpus else "cpu"
                report = tune.report if job.metric else epochs_shown(tune.report)
                hooks = _preemption_hooks(preemption.NOTICE.checkpoint_written)
                train_job(members, launch, Worker(device=device, report=report, **hooks))
    if taken:
        raise lease.LeaseLost(taken)


def epochs_shown(report: Callable[[Record], None]) -> Callable[[Record], None]:
    """Return a report of no more than progress bars show: at most one epoch a second.

    A trial waits until Tune has taken a report, and Tune keeps statistics of all that it is told.
    """
    last = time.monotonic()

    def paced(metrics: Record) -> None:
        nonlocal last
        if time.monotonic() - last >= 1:
            last = time.monotonic()
            report({"epoch": metrics["epoch"]})

    return paced


@contextmanager
def failures_kept(tried: Sequence[Lease]) -> Iterator[None]:
    """Write why the block failed to each run; a storage failure meanwhile does not hide the error."""
    try:
        yield
    except lease.LeaseLost:
        raise
    except Exception as error:
        for attempt in tried:
            with suppress(Exception):
                attempt.fail(error)
        raise


def _preemption_hooks(written: Callable[[], None]) -> dict[str, Any]:
    """Return the fields of a worker that connect it to preemption."""
    return {"checkpoint_requested": preemption.NOTICE.requested.is_set, "checkpoint_written": written}


def train_group(members: Members, launch: Launch) -> None:
    """Train a job in a Ray Train group. A worker that dies ends it, and Tune begins the trial again.

    The data are opened here first: over a mistake of the user, Train would start its workers again and again.
    """
    from retable.platform.train.loop import check_batch

    job = members.job
    task, needs = find(job.task), job.needs
    source = Source.of(launch.storage, task.dataset.where(job.configs[0]))
    data = open_data(task, job.configs, source, launch)
    check_batch(task, data, needs.workers)
    while True:
        workers = workers_now(needs, data.batch)
        if workers < needs.workers:
            members.note(f"went on with {workers} of {needs.workers} workers: the cluster has room for no more")
            needs = dataclasses.replace(needs, workers=workers)
        try:
            _trainer_of(members, launch, needs).fit()
            return
        except Exception as error:
            if ray_compat.start_timed_out(error):  # left to itself, Train would ask for the same again and again
                continue
            for cause in ray_compat.worker_errors(error):
                if isinstance(cause, lease.LeaseLost):
                    raise cause from error
            raise


def _trainer_of(members: Members, launch: Launch, needs: Requirements) -> TorchTrainer:
    """Return a Ray Train group that is still to be started."""
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    share = cpu_share(needs.workers)
    per_worker = {"CPU": share, "memory": trial_memory(share, needs.gpus, needs.memory)}
    return TorchTrainer(
        _train_worker,
        train_loop_config={"members": members, "launch": dataclasses.replace(launch, jobs=())},
        torch_config=TorchConfig(timeout_s=launch.hung),
        scaling_config=ray.train.ScalingConfig(
            num_workers=needs.workers,
            use_gpu=needs.gpus > 0,
            resources_per_worker=per_worker | ({"GPU": needs.gpus} if needs.gpus else {}),
        ),
        run_config=ray.train.RunConfig(
            name=f"train-{uuid.uuid4().hex[:12]}",  # one used before would make Train resume its own snapshot
            storage_path=f"{launch.storage.root}/{launch.scratch}",  # beside ours, so that every node sees it
            storage_filesystem=None if launch.storage.is_local else launch.storage.filesystem,
            failure_config=ray.train.FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]
            callbacks=[TuneReportCallback()],  # type: ignore[list-item, no-untyped-call]
        ),
    )


def workers_now(needs: Requirements, batch: int) -> int:
    """Return the number of workers a group starts with: fewer than planned if nodes were lost for good.

    The batch is then shared by fewer, and stays what it is.
    """
    available = possible_resources()

    def fits(workers: int) -> bool:
        cpus, gpus = available.get("CPU", 0.0) - 0.1, available.get("GPU", 0.0)
        return batch % workers == 0 and cpus / workers >= 0.45 and workers * needs.gpus <= gpus

    return next(filter(fits, range(needs.workers, 0, -1)), needs.workers)


def _train_worker(settings: Mapping[str, Any]) -> None:
    """Run the loop as one worker of a Ray Train group."""
    import ray.train

    from retable.platform.train.worker import Worker

    context = ray.train.get_context()
    device = "cuda" if settings["members"].job.needs.gpus else "cpu"
    rank, members = context.get_world_rank(), settings["members"]
    with preemption.worker_preemption(members.attempts, rank) as written:
        worker = Worker(rank, context.get_world_size(), device, ray.train.report, **_preemption_hooks(written))
        with traceback_carried(), timeouts_told_apart():
            train_job(members, settings["launch"], worker)


def check(needs: Requirements) -> None:
    """Refuse a request that the cluster can never satisfy; Ray would wait without an end.

    Raises:
        UserError: naming what there is.
    """
    check_room("GPU", needs.workers * needs.gpus)
    check_node("GPU", needs.gpus)
    if needs.workers > 1:
        cpu_share(needs.workers)
    else:
        check_room("CPU", needs.cpus)
        check_node("CPU", needs.cpus)


def tune_request(needs: Requirements) -> dict[str, float]:
    """Return a trial's resource request to Tune; the workers of a Train group request theirs themselves."""
    if needs.workers > 1:
        return {"CPU": 0.01}
    memory = trial_memory(needs.cpus, needs.gpus, needs.memory)
    return {"CPU": needs.cpus, "GPU": needs.gpus, "memory": memory}


@contextmanager
def timeouts_told_apart() -> Iterator[None]:
    """Turn a collective's timeout into TimeoutError, which differs from an error of this worker.

    Raises:
        TimeoutError: so that the group begins again.
    """
    try:
        yield
    except RuntimeError as error:  # gloo has no better one; NCCL ends the process
        if re.search(r"gloo|NCCL|Timed out waiting|Connection (closed|reset) by peer", str(error)):
            raise TimeoutError(f"another worker does not answer: {one_line(error)}") from error
        raise


def fit(
    trainable_space: Mapping[str, object],
    launch: Launch,
    watch: TrialCallback,
    needs: Callable[[Spec], Requirements],
    trainable: Callable[..., None] = trial,
    reuse: bool = True,
    **tune_config: Any,
) -> ResultGrid:
    """Run a Tune experiment over a space and return its `ResultGrid`.

    Args:
        trainable_space: what trials are drawn from.
        launch: what they share.
        watch: hears of them.
        needs: a trial's spec -> what it takes.
        trainable: what each does.
        reuse: whether a trial may run in the process of another; one that starts a Train group may not.
        tune_config: of `tune.TuneConfig`.
    """
    import ray
    from ray import tune

    launch = dataclasses.replace(launch, scratch=f".ray/{uuid.uuid4().hex[:12]}")
    shared: Any = ray.put(launch)

    def begin(spec: Spec) -> None:
        """Do what each trial does; `tune.with_parameters` would read the launch, with all jobs, for each."""
        trainable(spec, _launch_of(shared))

    ray_compat.mix_in(begin, preemption.SigtermMixin)

    def request(spec: Spec) -> PlacementGroupFactory:
        """Return a trial's resource request for the current cluster: Tune asks when it makes the trial."""
        return tune.PlacementGroupFactory([{k: v for k, v in tune_request(needs(spec)).items() if v}])

    try:
        with TemporaryDirectory(prefix="retable-tune-") as local, disk_errors(local):
            tuner = tune.Tuner(
                tune.with_resources(begin, request),
                param_space=dict(trainable_space),
                tune_config=tune.TuneConfig(reuse_actors=reuse, **tune_config),
                run_config=tune.RunConfig(
                    name="tune",
                    storage_path=local,  # Tune's own notes, which the driver alone writes and nobody reads
                    verbose=0,
                    callbacks=[watch.callback()],
                    failure_config=tune.FailureConfig(max_failures=lease.DEATHS),
                    checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
                ),
            )
            return tuner.fit()
    except KeyboardInterrupt:  # the trials are still there; Ray ends them with this process
        with suppress(Exception):
            preemption.give_notice(watch.running)
        raise
    finally:
        launch.storage.remove(launch.scratch)  # what Train kept of its groups is never read


@functools.lru_cache(1)
def _launch_of(shared: Any) -> Launch:
    """Return a launch from Ray's object store, in a process that may run many of its trials."""
    import ray

    launch: Launch = ray.get(shared)
    return launch


def concurrent(needs: Requirements) -> int:
    """Return how many Train groups fit the cluster at once, grown as it may: Tune does not know of their workers."""
    available, workers = possible_resources(), needs.workers
    by_cpu = available.get("CPU", 1) / (workers * cpu_share(workers) + 0.01)
    by_gpu = available.get("GPU", 0) / (workers * needs.gpus) if needs.gpus else by_cpu
    by_memory = available.get("memory", math.inf) / (workers * needs.memory)
    return max(1, int(min(by_cpu, by_gpu, by_memory)))
