"""Storages with the toy table of lines filled in this process, and bundles of them."""

import io
import json
import lzma
import tarfile
from hashlib import sha256
from pathlib import Path

from retable.platform.execute import ensembles as combine
from retable.platform.execute.scoring import predict_one, score_one
from retable.platform.plan.plan import compile_plan, device_slug
from retable.platform.report.write import fill_and_keep
from retable.platform.spec.table import Column, Combined, Measurement, Row, Table
from retable.platform.spec.task import find
from retable.platform.store.storage import Storage
from retable.tasks.line.learner import mean
from tests.platform.halves import fit

LINE = find("line")
MADE = {"host": "sender", "device": "a fast one, 8 cores", "started": "2026-11-20T10:00:00Z", "scale": "smoke"}


def seconds(config):
    """Measure nothing; count how often."""
    seconds.taken += 1
    return {"seconds": 1.5 + seconds.taken}


seconds.taken = 0


def joined(storage, plan):
    """Join what a plan of combined rows lacks, and score it."""
    for combining in plan.uncombined:
        for piece in combine.combination_shards(combining, storage):
            assert piece.run() is None
        assert combine.score(combining, storage) is None


def work_off(plan_again):
    """Do in this process, without Ray, all that a plan lacks but measurements; return what is trained, by path."""
    plan = plan_again()
    trained = [training.folder.path for training in plan.missing]
    for training in plan.missing:
        if training.folder.outcome() is not None:
            training.folder.folder.remove("result.json")
        info = {"points": 64, "digest": "64 points"}
        training.folder.begin(training.config, training.task.version, {**MADE, "data": info})
        fit(plan.storage, training.config, training.folder, training.keep, training.task)
    plan = plan_again()
    for each in plan.predictions.values():
        assert predict_one(each.task.name, each.config, each.view, each.folder, each.joined) is None
    for each in plan.unscored:
        assert score_one(each.task.name, each.config, each.view, each.folder) is None
    joined(plan.storage, plan_again())
    return trained


def table(*more):
    return Table(
        title="Error of a fitted line",
        rows=[
            Row(label="slow", overrides={"rate": 0.001}, view={}, published={"RMSE": 1.0}),
            Row(label="fast", overrides={"rate": 0.1}, view={}),
            Row(label="first", overrides={}, view={"epoch": 1}),
            Row(label="fine-tuned", overrides={"init": "parent", "rate": 0.01}, view={}),
            Combined(label="mean of both", of=("slow", "fast"), combine=mean),
            Measurement(label="speed", measure=seconds, overrides={}),
            *more,
        ],
        columns=[Column(header="RMSE", metric="rmse"), Column(header="s", metric="seconds")],
        over={"seed": (0, 1)},
        claims=LINE.tables()["table1"].claims[:0],
    )


def planned(storage, *more):
    return compile_plan({"line/table1": (LINE, table(*more))}, storage)


def reproduced(storage):
    """Fill the package's own tables of lines."""

    def plan():
        return compile_plan({f"line/{name}": (LINE, each) for name, each in LINE.tables().items()}, storage)

    work_off(plan)
    return fill_and_keep(plan())


def measured(storage, plan):
    """Note a measurement as another device would have taken it, and one as this would."""
    for timing in plan.timings.values():
        for device in (device_slug(), "Other-chip-8-cores"):
            storage.write_json(f"{timing.stem}{device}.json", {"metrics": {"seconds": 9.0}, "provenance": MADE})


def members_of(file):
    """Read a bundle without the platform: path -> content."""
    with tarfile.open(file, "r:xz") as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}


def written(file, contents, **changes):
    """Write a bundle by hand, its digests made anew: path -> content; `changes` to the manifest."""
    contents = dict(contents)
    about = json.loads(contents.pop("bundle.json"))
    about |= {"members": [[path, len(data), sha256(data).hexdigest()] for path, data in contents.items()]}
    whole = {"bundle.json": json.dumps(about | changes).encode(), **contents}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, data in whole.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    Path(file).write_bytes(lzma.compress(buffer.getvalue()))
    return Path(file)


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def fresh(folder):
    return Storage.open(Path(folder) / "fresh")
