"""Everything that trains: Ray Tune trials that run the loop, alone or as a Ray Train group.

With one worker a trial runs the loop itself, in an actor that the next trial uses again. With more it starts a Ray
Train `TorchTrainer` whose workers run the very same loop.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from retable.platform.board import Board, console
from retable.platform.cluster import TRIAL_MEMORY, check_room, cpu_share, possible_resources, trial_memory
from retable.platform.config import Config, override
from retable.platform.errors import UserError, disk_errors, nearest, one_line
from retable.platform.plan import Plan, Training, name_of, stacks, status
from retable.platform.runs import RunFolder
from retable.platform.storage import Storage
from retable.platform.task import Data, Source, Task, find

if TYPE_CHECKING:
    from ray import ObjectRef

    from retable.platform.worker import Worker

STACK = 128
"""Most members of a stack, where nobody says how many."""
FAILURE = "trial_failure"
"""Under this name a trial reports what went wrong, in a line; `error` may be a metric."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one training gets. Never a part of a config."""

    workers: int = 1
    cpus: int = 1
    """CPUs, and torch threads, of a run with one worker."""
    gpus: float = 0.0
    """GPUs of each worker."""
    checkpoint_every: int = 0
    """Steps between checkpoints within an epoch; 0: one about every half minute."""
    stream: bool = False
    """Read data as a stream even where they would fit in memory."""
    stack: int = 0
    """Most trainings of one group that train as one stack; 0: one on CPUs, on GPUs as many as keep every GPU busy."""


@dataclass(frozen=True)
class Job:
    """What one trial trains: a stack of members, usually one."""

    task: str
    configs: tuple[Config, ...]
    keep: tuple[tuple[int, ...], ...]
    view: Any | None = None
    """Scored after each epoch, for a sweep."""
    metric: str = ""
    """What a sweep must find in each report."""


@dataclass(frozen=True)
class Launch:
    """What every trial of one launch shares; sent once."""

    storage: Storage
    resources: Resources
    provenance: Mapping[str, Any]
    arrays: Mapping[str, Sequence[ObjectRef[Any]]]
    """Data folder -> its arrays in the object store (in a list, so that Ray does not fetch them for us)."""
    share: float = 1.0
    """CPUs of each Train worker."""
    jobs: Sequence[Job] = ()
    scratch: str = ".ray"
    """Folder of the storage where Ray keeps its own state while it runs."""


def load_arrays(tasks: Mapping[str, Task], storage: Storage, stream: bool = False) -> dict[str, list[ObjectRef[Any]]]:
    """Read data sets through Ray Data, once, into the object store; `tasks` maps data folder to task.

    Sets that would take more than 30 % of a node's object store are left out, where their task can stream them.

    Raises:
        UserError: where a data set is missing, damaged, or cannot be streamed as asked for.
    """
    import pyarrow as pa
    import ray

    from retable.platform.stream import raise_error

    ray.data.DataContext.get_current().enable_progress_bars = False
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    room = 0.3 * min((node.get("object_store_memory", 0) for node in nodes), default=0)  # each node holds all of it
    arrays = {}
    for where, task in tasks.items():
        folder = storage / f"data/{where}"
        if stream and not task.dataset.streams:
            raise UserError(f"--stream: {task.name} has no data to stream; leave it out")
        again = "make or convert the data set again"
        size = folder.read_record("dataset.json", {"bytes": int}, again)["bytes"] if task.dataset.streams else 0
        if task.dataset.streams and (stream or size > room):
            continue
        room -= size
        try:
            tables = ray.get(task.dataset.read(folder).to_arrow_refs())
            for table in tables:
                raise_error(table)
        except (ray.exceptions.RayError, pa.ArrowException, RuntimeError) as error:
            remedy = f"`retable data check {task.name}` says more"
            raise UserError(f"{folder} cannot be read ({one_line(error)}); {remedy}") from error
        arrays[where] = [ray.put(dict(task.dataset.arrays(pa.concat_tables(tables).combine_chunks())))]
    return arrays


def train_job(job: Job, launch: Launch, worker: Worker) -> None:
    """Run the loop for a job in this process, as a worker.

    Members that are finished are left out: where a process died while it wrote the results, the others go on.
    """
    import torch

    from retable.platform.loop import train
    from retable.platform.provenance import here
    from retable.platform.stages import score_weights

    torch.set_num_threads(launch.resources.cpus if launch.resources.workers == 1 else 1)
    task = find(job.task)
    source = Source.of(launch.storage, task.dataset.where(job.configs[0]))
    digest = source.info["digest"]
    every = [(c, keep, RunFolder.of(launch.storage, task, c)) for c, keep in zip(job.configs, job.keep, strict=True)]
    todo = [(config, keep, folder) for config, keep, folder in every if status(folder, keep, digest) != "done"]
    if not todo:
        return  # the process died after its last step: Ray's retry has nothing left to do
    configs, keeps, folders = zip(*todo, strict=True)
    if worker.rank == 0:
        facts = {**launch.provenance, **here(), "data": source.info, "stack": len(configs)}
        for folder, config in zip(folders, configs, strict=True):
            folder.begin(config, task.version, {**facts, "seed": config.seed})
        worker = dataclasses.replace(worker, save=folders[0].folder.write)
    data = open_data(task, configs, source, launch)

    def score(weights: Mapping[str, torch.Tensor], epoch: int) -> Mapping[str, float]:
        view: Any = job.view
        return score_weights(task, configs[0], override(view, {"epoch": epoch}), weights, source)

    def report(metrics: Mapping[str, Any]) -> None:
        if worker.rank == 0:  # the others do not score
            require(job.metric, metrics)
        worker.report(metrics)

    train(
        task,
        configs,
        data,
        folders,
        digest,
        dataclasses.replace(worker, report=report) if job.metric else worker,
        keeps,
        launch.resources.checkpoint_every,
        score if job.view is not None else None,
    )


def open_data(task: Task, configs: Sequence[Config], source: Source, launch: Launch) -> Data:
    """Open the data set of some configs; its arrays are in the object store, or it is a stream."""
    import ray

    where = task.dataset.where(configs[0])
    arrays = ray.get(launch.arrays[where][0]) if where in launch.arrays else None
    return task.dataset.open(arrays, source, configs)


def require(metric: str, metrics: Mapping[str, Any]) -> None:
    """Raise a UserError where a metric is not among those that were taken."""
    if metric not in metrics:
        raise UserError(f"no metric {metric!r} was taken{nearest(metric, metrics)}")


def trial(spec: Mapping[str, Any], launch: Launch) -> None:
    """Train the job that `spec` names, by number."""
    with reported():
        run_job(launch.jobs[spec["job"]], launch)


@contextmanager
def reported(**more: float) -> Iterator[None]:
    """Report what goes wrong, with more metrics, and do not raise it: Ray's retries are for machines that die."""
    from ray import tune

    try:
        yield
    except Exception as error:
        tune.report({FAILURE: one_line(error), **more})
    finally:
        trim_memory()


def trim_memory() -> None:
    """Give what this process has freed back to the system.

    Tune runs each trial of a reused actor in a new thread. glibc allots memory to threads in up to eight arenas a core,
    and keeps in each what is freed there: without this an actor grows with every training.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it, and needs it
    if trim is not None:
        trim(0)


def run_job(job: Job, launch: Launch) -> None:
    """Train a job: in the trial's own process, or as a Ray Train group."""
    from ray import tune

    from retable.platform.worker import Worker

    if launch.resources.workers > 1:
        train_group(job, launch)
    else:
        device = "cuda" if launch.resources.gpus else "cpu"
        train_job(job, launch, Worker(device=device, report=tune.report))


def train_group(job: Job, launch: Launch) -> None:
    """Train a job in a Ray Train group. A worker that dies costs what was done since the last checkpoint.

    The data are opened here first: over a mistake of the user, Train would start its workers again and again.
    """
    import ray.train
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    from retable.platform.loop import check_batch

    gpus, workers, task = launch.resources.gpus, launch.resources.workers, find(job.task)
    source = Source.of(launch.storage, task.dataset.where(job.configs[0]))
    check_batch(task, open_data(task, job.configs, source, launch), workers)
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"job": job, "launch": launch},
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": launch.share, **({"GPU": gpus} if gpus else {})},
        ),
        run_config=ray.train.RunConfig(
            name=f"train-{uuid.uuid4().hex[:12]}",  # one used before would make Train resume its own snapshot
            **ray_storage(launch),
            failure_config=ray.train.FailureConfig(max_failures=3),
            callbacks=[TuneReportCallback()],  # type: ignore[list-item, no-untyped-call]
        ),
    )
    trainer.fit()


def ray_storage(launch: Launch) -> dict[str, Any]:
    """Say where Ray may keep its own state while it runs: beside ours, so that every node sees it."""
    storage = launch.storage
    return {
        "storage_path": f"{storage.root}/{launch.scratch}",
        "storage_filesystem": None if storage.is_local else storage.filesystem,
    }


def train_worker(settings: Mapping[str, Any]) -> None:
    """Run the loop as one worker of a Ray Train group."""
    import ray.train

    from retable.platform.worker import Worker

    place = ray.train.get_context()
    device = "cuda" if settings["launch"].resources.gpus else "cpu"
    worker = Worker(place.get_world_rank(), place.get_world_size(), device, ray.train.report)
    train_job(settings["job"], settings["launch"], worker)


def nothing(*_: Any) -> None:
    """Do nothing."""


@dataclass
class Watch:
    """Hears of each trial what the board shows and what the driver does next."""

    board: Board
    names: Callable[[Mapping[str, Any]], Sequence[str]]
    """A trial's spec -> what people call the runs that it trains."""
    epochs: int
    weights: Callable[[Mapping[str, Any]], Sequence[float]] = lambda spec: (1.0,)
    started: Callable[[Mapping[str, Any]], None] = nothing
    ended: Callable[[Mapping[str, Any], Mapping[str, Any]], None] = nothing
    """Called with a trial's spec and its last report."""
    apart: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    """Specs of stacks that failed: whose fault it was shows when their members train one by one."""

    def callback(self) -> Any:
        """Return the Tune callback that calls us."""
        from ray.tune import Callback

        watch = self

        class Forward(Callback):
            def __reduce__(self) -> Any:
                """Pickle nothing of ours: Ray writes callbacks beside its state, and a terminal cannot be pickled."""
                return Callback, ()

            def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                for name in watch.names(trial.config):
                    watch.board.start(name)
                watch.started(trial.config)

            def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
                if "epoch" in result:
                    epoch = result["epoch"]
                    for name in watch.names(trial.config):
                        watch.board.update(name, f"epoch {epoch} of {watch.epochs}", epoch, watch.epochs)

            def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                last = trial.last_result or {}
                if FAILURE in last:
                    watch.fail(trial.config, last[FAILURE])
                else:
                    for name, weight in zip(watch.names(trial.config), watch.weights(trial.config), strict=True):
                        watch.board.done(name, weight)
                watch.ended(trial.config, last)

            def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                watch.fail(trial.config, "its process died more often than it was started again")

        return Forward()

    def fail(self, spec: Mapping[str, Any], why: str) -> None:
        """Note that a trial failed; a stack's members get another chance, apart."""
        names = self.names(spec)
        if len(names) == 1:
            self.board.fail(names[0], why)
            return
        for name in names:
            self.board.stop(name)
        console.print(f"a stack of {len(names)} failed, its members train one by one: {why}", markup=False)
        self.apart.append(spec)


def fit(
    trainable_space: Mapping[str, Any],
    launch: Launch,
    watch: Watch,
    trainable: Callable[..., None] = trial,
    **tune_config: Any,
) -> Any:
    """Run a Tune experiment over a space and return its `ResultGrid`."""
    from ray import tune

    launch = dataclasses.replace(launch, scratch=f".ray/{uuid.uuid4().hex[:12]}")
    resources = launch.resources
    check_room("GPU", resources.workers * resources.gpus)
    if resources.workers > 1:
        launch = dataclasses.replace(launch, share=cpu_share(resources.workers))
        needs = {"cpu": 0.01}
        tune_config.setdefault("max_concurrent_trials", concurrent(launch))
    else:
        check_room("CPU", resources.cpus)
        memory = trial_memory(resources.cpus, resources.gpus)
        needs = {"cpu": resources.cpus, "gpu": resources.gpus, "memory": memory}
    try:
        with disk_errors(str(launch.storage)):
            tuner = tune.Tuner(
                tune.with_resources(tune.with_parameters(trainable, launch=launch), needs),
                param_space=dict(trainable_space),
                tune_config=tune.TuneConfig(reuse_actors=resources.workers == 1, **tune_config),
                run_config=tune.RunConfig(
                    name="tune",
                    **ray_storage(launch),
                    verbose=0,
                    callbacks=[watch.callback()],
                    failure_config=tune.FailureConfig(max_failures=3),
                    checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
                ),
            )
            return tuner.fit()
    finally:
        launch.storage.remove(launch.scratch)  # Ray's own state is never read, nor is that of Train in the trials


def concurrent(launch: Launch) -> int:
    """Return how many Train groups fit the cluster at once, grown as it may: Tune does not know of their workers."""
    there, workers, gpus = possible_resources(), launch.resources.workers, launch.resources.gpus
    by_cpu = there.get("CPU", 1) / (workers * launch.share + 0.01)
    by_gpu = there.get("GPU", 0) / (workers * gpus) if gpus else by_cpu
    by_memory = there.get("memory", math.inf) / (workers * TRIAL_MEMORY)
    return max(1, int(min(by_cpu, by_gpu, by_memory)))


def train_all(plan: Plan, launch: Launch, finished: Callable[[RunFolder], None] = nothing) -> dict[str, str]:
    """Train what a plan lacks, parents before children; return the failures, run -> line.

    `finished` is called with each run that is done, while others still train.
    """
    failures: dict[str, str] = {}
    waves = sorted({training.wave for training in plan.missing})
    for wave in waves:
        groups = [group for group in plan.groups.values() if group[0].wave == wave]
        todo = [training for group in groups for training in group]
        for training in todo:
            if training.status in ("data changed", "weights not kept"):
                forget(training.folder, training.status == "data changed")
        title = "training" if len(waves) == 1 else f"training, wave {wave + 1} of {len(waves)}"
        with Board(title, len(todo), sum(t.task.cost(t.config) for t in todo)).show() as board:
            queue = stacks(groups, stack_size(launch.resources, len(todo)))
            while queue:
                queue = [[member] for stack in fit_stacks(queue, launch, board, finished) for member in stack]
            failures |= board.failures
    return failures


def fit_stacks(
    queue: Sequence[Sequence[Training]], launch: Launch, board: Board, finished: Callable[[RunFolder], None]
) -> list[Sequence[Training]]:
    """Train stacks side by side; return those of several members that failed."""
    from ray import tune

    jobs = [Job(s[0].task.name, tuple(t.config for t in s), tuple(t.keep for t in s)) for s in queue]
    names = [[name_of(training) for training in stack] for stack in queue]
    weights = [[training.task.cost(training.config) for training in stack] for stack in queue]
    watch = Watch(board, partial(pick, names), queue[0][0].config.epochs, partial(pick, weights))
    watch.ended = partial(tell, [[training.folder for training in stack] for stack in queue], finished)
    fit({"job": tune.grid_search(list(range(len(jobs))))}, dataclasses.replace(launch, jobs=jobs), watch)
    return [pick(queue, spec) for spec in watch.apart]


def stack_size(resources: Resources, trainings: int) -> int:
    """Return how many of so many trainings may train as one stack; on CPUs stacking gains nothing."""
    if resources.stack or not resources.gpus:
        return resources.stack or 1
    at_once = int(possible_resources().get("GPU", 0) / (resources.workers * resources.gpus))
    return min(STACK, -(-trainings // max(1, at_once)))


def pick(items: Sequence[Any], spec: Mapping[str, Any]) -> Any:
    """Return the item of the job that a trial's spec names."""
    return items[spec["job"]]


def tell(
    folders: Sequence[Sequence[RunFolder]],
    finished: Callable[[RunFolder], None],
    spec: Mapping[str, Any],
    last: Mapping[str, Any],
) -> None:
    """Say that a trial's runs are done, unless it failed."""
    if FAILURE not in last:
        for folder in pick(folders, spec):
            finished(folder)


def forget(folder: RunFolder, data_changed: bool) -> None:
    """Make a run that no longer counts start anew, with new provenance.

    With other data its views go first: these may well give the very same weights. `result.json` goes last, so that an
    interruption finds the run as it was.
    """
    if data_changed:
        folder.folder.remove("views")
    folder.remove_checkpoints()
    for name in ("provenance.json", "result.json"):
        folder.folder.remove(name)
