"""Everything that trains: Ray Tune trials that run the loop, alone or as a Ray Train group.

With one worker a trial runs the loop itself, in an actor that the next trial uses again. With more it starts a Ray
Train `TorchTrainer` whose workers run the very same loop.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from retable.platform.board import Board, console
from retable.platform.cluster import TRIAL_MEMORY, check_room, cluster_resources, cpu_share, trial_memory
from retable.platform.config import override
from retable.platform.errors import UserError, disk_errors
from retable.platform.plan import Plan, Prediction, Scoring, Status, Timing, Training, data_digest, stacks, status
from retable.platform.runs import RunFolder
from retable.platform.storage import Storage
from retable.platform.table import split_view
from retable.platform.task import Source, Task, find

if TYPE_CHECKING:
    from ray import ObjectRef

STACK = 128
"""Most members of a stack, where nobody says how many."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one training gets. Never a part of a config."""

    workers: int = 1
    cpus: int = 1
    """CPUs, and torch threads, of a run with one worker."""
    gpus: float = 0.0
    """GPUs of each worker."""
    checkpoint_every: int = 0
    """Steps between checkpoints within an epoch; 0: at the epochs' ends only."""
    stream: bool = False
    """Read data as a stream even where they would fit in memory."""
    stack: int = 0
    """Most trainings of one group that train as one stack; 0: one on CPUs, on GPUs as many as keep every GPU busy."""


@dataclass(frozen=True)
class Job:
    """What one trial trains: a stack of members, usually one."""

    task: str
    configs: tuple[Any, ...]
    keep: tuple[tuple[int, ...], ...]
    view: Any | None = None
    """Scored after each epoch, in a sweep."""


@dataclass(frozen=True)
class Context:
    """What every trial of one launch shares; sent once."""

    storage: Storage
    resources: Resources
    provenance: Mapping[str, Any]
    arrays: Mapping[str, Sequence[ObjectRef[Any]]]
    """Data folder -> its arrays in the object store (in a list, so that Ray does not fetch them for us)."""
    share: float = 1.0
    """CPUs of each Train worker."""
    jobs: Sequence[Job] = ()
    base: Any = None
    """In a sweep: what the drawn overrides are applied to."""
    view: Any = None
    task: str = ""


def load_arrays(tasks: Mapping[str, Task], storage: Storage, stream: bool = False) -> dict[str, list[ObjectRef[Any]]]:
    """Read data sets through Ray Data, once, into the object store; `tasks` maps data folder to task.

    Sets that would take more than 30 % of a node's object store are left out, where their task can stream them.
    """
    import pyarrow as pa
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    room = 0.3 * min((node.get("object_store_memory", 0) for node in nodes), default=0)  # each node holds all of it
    arrays = {}
    for where, task in tasks.items():
        folder = storage / f"data/{where}"
        if stream and not task.dataset.streams:
            raise UserError(f"--stream: {task.name} has no data to stream; leave it out")
        size = folder.read_json("dataset.json")["bytes"] if task.dataset.streams else 0
        if task.dataset.streams and (stream or size > room):
            continue
        room -= size
        try:
            tables = ray.get(task.dataset.read(folder).to_arrow_refs())
        except (ray.exceptions.RayError, pa.ArrowException) as error:
            remedy = f"`retable data check {task.name}` says more"
            raise UserError(f"{folder} cannot be read ({one_line(error)}); {remedy}") from error
        arrays[where] = [ray.put(dict(task.dataset.arrays(pa.concat_tables(tables).combine_chunks())))]
    return arrays


def train_job(job: Job, context: Context, run: Any) -> None:
    """Run the loop for a job in this process, as the worker that `run` says.

    Members that are finished are left out: where a process died while it wrote the results, the others go on.
    """
    import ray
    import torch

    from retable.platform.loop import train
    from retable.platform.stages import score_weights

    torch.set_num_threads(context.resources.cpus if context.resources.workers == 1 else 1)
    task = find(job.task)
    where = task.dataset.where(job.configs[0])
    source = Source.of(context.storage, where)
    digest = source.info["digest"]
    every = [(c, keep, RunFolder.of(context.storage, task, c)) for c, keep in zip(job.configs, job.keep, strict=True)]
    todo = [(config, keep, folder) for config, keep, folder in every if status(folder, keep, digest) != "done"]
    if not todo:
        return  # the process died after its last step: Ray's retry has nothing left to do
    configs, keeps, folders = zip(*todo, strict=True)
    if run.rank == 0:
        facts = {**context.provenance, "data": source.info, "stack": len(configs)}
        for folder, config in zip(folders, configs, strict=True):
            folder.begin(config, task.version, {**facts, "seed": config.seed})
        run = dataclasses.replace(run, save=folders[0].folder.write)
    arrays = ray.get(context.arrays[where][0]) if where in context.arrays else None
    data = task.dataset.open(arrays, source, configs)

    def score(weights: Mapping[str, torch.Tensor], epoch: int) -> Mapping[str, float]:
        view: Any = override(job.view, {"epoch": epoch})
        return score_weights(task, configs[0], view, weights, source)

    train(
        task,
        configs,
        data,
        folders,
        digest,
        run,
        keeps,
        context.resources.checkpoint_every,
        score if job.view is not None else None,
    )


def trial(spec: Mapping[str, Any], context: Context) -> None:
    """Train what `spec` names: a job by number, or the base config with the overrides a sweep drew.

    A mistake of the user is reported, not raised: Ray's retries are for machines that die.
    """
    from ray import tune

    try:
        job = context.jobs[spec["job"]] if "job" in spec else drawn(spec, context)
        folder = RunFolder.of(context.storage, find(job.task), job.configs[0])
        there = standing(job, context.storage) if job.view is not None else "new"
        if there == "data changed":
            forget(folder, data_changed=True)
        if there == "done":
            replay(job, folder)
        elif context.resources.workers > 1:
            train_group(job, context)
        else:
            from retable.platform.run import Run

            device = "cuda" if context.resources.gpus else "cpu"
            train_job(job, context, Run(device=device, report=tune.report))
    except Exception as error:
        if "job" not in spec:
            raise
        tune.report({"error": one_line(error)})
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


def standing(job: Job, storage: Storage) -> Status:
    """Say what there is of the run that a point of a sweep trains."""
    task, config = find(job.task), job.configs[0]
    return status(RunFolder.of(storage, task, config), (), data_digest(storage, task.dataset.where(config)))


def replay(job: Job, folder: RunFolder) -> None:
    """Report a finished run's last epoch with the scores of the sweep's view; its log may hold those of another."""
    from ray import tune

    from retable.platform.stages import predict_and_score, weights_digest

    config = job.configs[0]
    view: Any = override(job.view, {"epoch": config.epochs})
    digest = weights_digest(folder, view)
    if folder.scores(view, digest) is None:
        failure = predict_and_score(find(job.task), config, view, folder)
        if failure:
            raise UserError(failure)
    scores, last = folder.scores(view, digest) or {}, folder.history()[-1]
    numbers = {name: value for name, value in last.items() if isinstance(value, (int, float))}
    tune.report({**numbers, **scores["metrics"]})


def drawn(spec: Mapping[str, Any], context: Context) -> Job:
    """Return the job of one point of a sweep: what it trains, and the view that it is scored under."""
    config, view = split_view(spec)
    return Job(context.task, (override(context.base, config),), ((),), override(context.view, view))


def train_group(job: Job, context: Context) -> None:
    """Train a job in a Ray Train group. A worker that dies costs what was done since the last checkpoint."""
    import ray.train
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    gpus, workers = context.resources.gpus, context.resources.workers
    for config in job.configs:
        if getattr(config, "batch", workers) % workers:
            raise UserError(
                f"batch {config.batch} cannot be shared by {workers} workers; choose a multiple of {workers}"
            )
    name = f"train-{uuid.uuid4().hex[:12]}"  # a name used before would make Train resume its own snapshot
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"job": job, "context": context},
        scaling_config=ray.train.ScalingConfig(
            num_workers=context.resources.workers,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": context.share, **({"GPU": gpus} if gpus else {})},
        ),
        run_config=ray.train.RunConfig(
            name=name,
            **ray_storage(context.storage),
            failure_config=ray.train.FailureConfig(max_failures=3),
            callbacks=[TuneReportCallback()],  # type: ignore[list-item, no-untyped-call]
        ),
    )
    try:
        trainer.fit()
    finally:
        context.storage.remove(f".ray/{name}")


def ray_storage(storage: Storage) -> dict[str, Any]:
    """Say where Ray may keep its own state while it runs: beside ours, so that every node sees it."""
    return {
        "storage_path": f"{storage.root}/.ray",
        "storage_filesystem": None if storage.is_local else storage.filesystem,
    }


def train_worker(settings: Mapping[str, Any]) -> None:
    """Run the loop as one worker of a Ray Train group."""
    import ray.train

    from retable.platform.run import Run

    place = ray.train.get_context()
    device = "cuda" if settings["context"].resources.gpus else "cpu"
    run = Run(place.get_world_rank(), place.get_world_size(), device, ray.train.report)
    train_job(settings["job"], settings["context"], run)


def one_line(error: BaseException) -> str:
    """Say in one line what went wrong; for a fault of ours, also where."""
    if isinstance(error, UserError):
        return str(error)
    cause = error.__cause__ or error
    inner = getattr(error, "worker_failures", None)
    if inner:
        cause = next(iter(inner.values()))
        cause = getattr(cause, "cause", None) or cause
    text = str(cause).strip().splitlines()
    frames = traceback.extract_tb(cause.__traceback__)
    place = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(cause).__name__}: {text[-1] if text else ''}{place}"


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
            def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                for name in watch.names(trial.config):
                    watch.board.start(name)
                watch.started(trial.config)

            def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
                if "epoch" in result:
                    text = f"epoch {result['epoch']} of {watch.epochs}, {result.get('seconds', 0):.0f} s"
                    for name in watch.names(trial.config):
                        watch.board.update(name, text)

            def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
                last = trial.last_result or {}
                if "error" in last:
                    watch.fail(trial.config, last["error"])
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
            self.board.running.pop(name, None)
        console.print(f"a stack of {len(names)} failed, its members train one by one: {why}", markup=False)
        self.apart.append(spec)


def describe(overrides: Mapping[str, Any]) -> str:
    """Write overrides as one reads them."""
    return " ".join(
        f"{path}={value:.4g}" if isinstance(value, float) else f"{path}={value}" for path, value in overrides.items()
    )


def fit(trainable_space: Mapping[str, Any], context: Context, watch: Watch, **tune_config: Any) -> Any:
    """Run a Tune experiment over a space and return its `ResultGrid`."""
    from ray import tune

    resources, name = context.resources, f"tune-{uuid.uuid4().hex[:12]}"
    check_room("GPU", resources.workers * resources.gpus)
    if resources.workers > 1:
        context = dataclasses.replace(context, share=cpu_share(resources.workers))
        needs = {"cpu": 0.01}
        tune_config.setdefault("max_concurrent_trials", concurrent(context))
    else:
        check_room("CPU", resources.cpus)
        memory = trial_memory(resources.cpus, resources.gpus)
        needs = {"cpu": resources.cpus, "gpu": resources.gpus, "memory": memory}
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(trial, context=context), needs),
        param_space=dict(trainable_space),
        tune_config=tune.TuneConfig(reuse_actors=resources.workers == 1, **tune_config),
        run_config=tune.RunConfig(
            name=name,
            **ray_storage(context.storage),
            verbose=0,
            callbacks=[watch.callback()],
            failure_config=tune.FailureConfig(max_failures=3),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    )
    try:
        with disk_errors(str(context.storage)):
            return tuner.fit()
    finally:
        context.storage.remove(f".ray/{name}")  # Ray's own state is never read


def concurrent(context: Context) -> int:
    """Return how many Train groups fit the cluster at once: Tune does not know of their workers."""
    there, workers, gpus = cluster_resources(), context.resources.workers, context.resources.gpus
    by_cpu = there.get("CPU", 1) / (workers * context.share + 0.01)
    by_gpu = there.get("GPU", 0) / (workers * gpus) if gpus else by_cpu
    by_memory = there.get("memory", math.inf) / (workers * TRIAL_MEMORY)
    return max(1, int(min(by_cpu, by_gpu, by_memory)))


def train_all(plan: Plan, context: Context, finished: Callable[[RunFolder], None] = nothing) -> dict[str, str]:
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
            queue = stacks(groups, stack_size(context.resources, len(todo)))
            while queue:
                queue = [[member] for stack in fit_stacks(queue, context, board, finished) for member in stack]
            failures |= board.failures
    return failures


def fit_stacks(
    queue: Sequence[Sequence[Training]], context: Context, board: Board, finished: Callable[[RunFolder], None]
) -> list[Sequence[Training]]:
    """Train stacks side by side; return those of several members that failed."""
    from ray import tune

    jobs = [Job(s[0].task.name, tuple(t.config for t in s), tuple(t.keep for t in s)) for s in queue]
    names = [[name_of(training) for training in stack] for stack in queue]
    weights = [[training.task.cost(training.config) for training in stack] for stack in queue]
    watch = Watch(board, partial(pick, names), queue[0][0].config.epochs, partial(pick, weights))
    watch.ended = partial(tell, [[training.folder for training in stack] for stack in queue], finished)
    fit({"job": tune.grid_search(list(range(len(jobs))))}, dataclasses.replace(context, jobs=jobs), watch)
    return [pick(queue, spec) for spec in watch.apart]


def stack_size(resources: Resources, trainings: int) -> int:
    """Return how many of so many trainings may train as one stack; on CPUs stacking gains nothing."""
    if resources.stack or not resources.gpus:
        return resources.stack or 1
    at_once = int(cluster_resources().get("GPU", 0) / (resources.workers * resources.gpus))
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
    if "error" not in last:
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


def name_of(item: Training | Scoring | Prediction | Timing) -> str:
    """Name a piece of work: task, what differs from the defaults, and the fingerprint's first digits."""
    from retable.platform.config import differences

    changes = differences(item.config, item.task.config())
    short = {path.rsplit(".", 1)[-1]: value for path, value in changes.items() if path != "init.overrides"}
    digits = f" [{item.folder.fingerprint[:8]}]" if not isinstance(item, Timing) else ""
    return f"{item.task.name} {describe(short)}{digits}"
