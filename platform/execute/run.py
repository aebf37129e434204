"""Carries out a plan: data, trainings, predictions, scores, combinations, measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from retable.platform.errors import UserError
from retable.platform.execute.datasets import make_missing
from retable.platform.execute.scheduler import After, train_all
from retable.platform.execute.scoring import measure_all
from retable.platform.execute.session import (
    check_nodes,
    cluster_address,
    interruptible,
    possible_resources,
    ray_cluster,
    resource_of,
)
from retable.platform.execute.trials import Launch
from retable.platform.plan.plan import Plan, Prediction, Scoring, Training
from retable.platform.spec.resources import Resources
from retable.platform.spec.table import split_view
from retable.platform.store import provenance
from retable.platform.store.storage import Storage
from retable.platform.train import trackers as track


def execute(work: Plan, resources: Resources, finish: Callable[[], object] = lambda: None) -> dict[str, str]:
    """Carry out a plan and return the failures; start Ray only if something is missing.

    `finish` waits for what was begun beside it: a measurement has the machine to itself.
    """
    track.prepare(resources.track)  # a library that is missing is named before anything starts
    if work.nothing_to_do:
        return {}
    with interruptible():
        work.storage.check_writable()
        if prepare_data(_at_once(work), work.storage):  # of other data, finished runs no longer count
            on, work = work.measure_on, work.again()
            work.measure_on = on
        work.data_notes()  # data that do not fit are refused before Ray starts
        in_groups = any(resources.needs(training.task, training.config, 0.0).workers > 1 for training in work.missing)
        with ray_cluster(nested=in_groups):
            check_nodes(work.storage)
            if work.measure_on and work.unmeasured:
                resource_of(work.measure_on)  # a mistake is told before anything is trained
            after = After(work, resources, possible_resources().get("GPU", 0.0))
            failures = train_all(work, launch_for(work, resources), after) if work.missing else {}
            failures |= after.finish()
            if work.unmeasured:
                finish()
            return failures | measure_all(work, resources)


def _at_once(work: Plan) -> list[Training]:
    """Return the trainings whose data must exist before Ray starts: those of finished runs.

    Where all read one data set there is nothing to train beside, and what cannot be had is refused before Ray starts.
    A run that came in a bundle needs its data only where something of it is to be made.
    """
    items: list[Scoring | Prediction] = [*work.unscored, *work.predictions.values()]
    items += [member for combining in work.uncombined for member in combining.members]
    busy = {item.folder.path for item in items}
    every = [t for t in work.trainings.values() if t.status != "done" or t.folder.path in busy or not t.folder.bundle()]
    alone = len({training.task.dataset.where(training.config) for training in every}) == 1 and not cluster_address()
    return [training for training in every if alone or training.status not in ("new", "to be continued")]


def prepare_data(trainings: Iterable[Training], storage: Storage) -> bool:
    """Prepare the missing datasets of trainings in this process; return whether any was missing."""
    missing = False
    for training in trainings:
        where = training.task.dataset.where(training.config)
        if not storage.exists(f"data/{where}/dataset.json"):
            make_missing(training.task, training.config, storage)
            missing = True
    return missing


def launch_for(work: Plan, resources: Resources) -> Launch:
    """Return the settings that all trials of a plan share.

    Raises:
        UserError: where data cannot be streamed as asked for.
    """
    for task in {training.task.name: training.task for training in work.missing}.values():
        if resources.stream and not task.dataset.streams:
            raise UserError(f"--stream: {task.name} has no data to stream; leave it out")
    made = provenance.collect() | {"scale": work.scale, "changed": sorted(split_view(work.changes)[0])}
    return Launch(work.storage, resources, made, track=track.prepare(resources.track))
