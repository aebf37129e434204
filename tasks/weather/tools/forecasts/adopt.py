"""Weights that others trained stand in for the runs of a table: nothing is trained, and the report says so.

The authors of the paper publish the checkpoints of their vote; each is the outcome of a run that a row of a table
names. `adopt` writes such a run as if it had been trained: its config is the row's, its weights are the file's, its
provenance says which file, by SHA-256, and that no step was made here. `retable reproduce` then finds it finished.
Weights are read, never changed: the running statistics of batch normalisation are the file's too. The log holds what a
training's would of validation, forecast here, as some rows are chosen by it.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from retable.platform.errors import UserError, nearest
from retable.platform.spec.table import Row, expand
from retable.platform.spec.task import Source, find_table, table_at
from retable.platform.store import provenance, weights
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from retable.tasks.weather.config import Config, View, trained_on_validation
from retable.tasks.weather.metrics import validated
from retable.tasks.weather.model import convert_reference
from retable.tasks.weather.predict import evaluate, load
from retable.tasks.weather.tools.forecasts.exchange import summaries_of
from retable.tasks.weather.w4c.prepare import prepare

LIST = "rows.csv"
"""In the folder of checkpoints: columns `row` and `file`."""
SEED = 0
"""Of the replicate that published weights stand for: their authors name none."""


@dataclass(frozen=True)
class Wanted:
    """Epoch of a run that a row of a table reads."""

    config: Config
    epoch: int


def adopt(folder: Path, table: str, storage: Storage, changes: Mapping[str, object]) -> list[str]:
    """Write the runs that checkpoints of others stand for; return a line for each row that is filled by one.

    Args:
        folder: where the checkpoints lie, and `rows.csv`, which says which row each is of.
        table: such as `weather/table2`.
        storage: where the data set lies and the runs go.
        changes: fields that all rows change, as `retable reproduce --set`.

    Raises:
        UserError: where a row or file is not there, does not fit its row, or a run was trained already.
    """
    wanted = rows_of(table, changes)
    files = listed(folder, wanted)
    lines = []
    for name, path in files.items():
        want = wanted[name]
        where = f"weather/{want.config.data}"
        if not storage.exists(f"data/{where}/dataset.json"):  # what was imported or converted says more than its files
            prepare(want.config, storage)
        source = Source.of(storage, where)
        data = weights.read_bytes(path)
        state = weights.read_tensors(path, data, "save `model.state_dict()` alone", integers=True)
        try:
            converted = convert_reference(state, want.config, int(source.info["size"]), want.config.regions)
        except ValueError as error:
            raise UserError(f"{path}: no weights of {name!r}: {error}") from error
        task, _ = find_table(table)
        run = RunFolder.of(storage, task, want.config)
        if run.folder.exists("provenance.json") and "adopted" not in run.folder.read_json("provenance.json"):
            raise UserError(f"{name}: run {run.fingerprint} was trained here; remove {run.folder}, or leave it be")
        origin = {"file": path.name, "sha256": sha256(data).hexdigest(), "row": name}
        write(run, task.version, want, converted, origin, source)
        lines.append(f"{name}: {path.name} ({origin['sha256'][:12]}) as epoch {want.epoch} of run {run.fingerprint}")
    return lines


def write(
    run: RunFolder, version: int, want: Wanted, state: Mapping[str, Tensor], origin: Mapping[str, str], source: Source
) -> None:
    """Write one epoch of a run as if it had been trained, beside those that are there."""
    line = {"epoch": want.epoch, "step": 0, "seconds": 0.0, **validation_scores(want.config, state, source)}
    result = run.result() or {"weights": {}, "metrics": {}}
    has_weights = bool(result["weights"])
    before, log = (run.folder.read_json("provenance.json")["adopted"], run.history()) if has_weights else ({}, [])
    run.folder.remove("provenance.json")
    ours = {**provenance.code_ran(run.task), "versions": provenance.versions()}
    about = {"adopted": {**before, str(want.epoch): origin}, "data": source.info, **ours}
    run.begin(want.config, version, about)
    digest = run.save_weights(want.epoch, state)
    rows = [*(row for row in log if row["epoch"] != want.epoch), {**line, "time": time.time(), "weights": digest}]
    rows.sort(key=lambda row: row["epoch"])
    run.folder.write("metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    last = want.epoch == want.config.epochs
    ended = line if last else {**result["metrics"], "epoch": want.config.epochs, "step": 0, "seconds": 0.0}
    run.folder.write_json(
        "result.json",
        {
            "task": run.task,
            "fingerprint": run.fingerprint,
            "data": source.info["digest"],
            "metrics": ended,
            "weights": {**result["weights"], str(want.epoch): digest},
            "seconds": 0.0,
            "used": {},
            "attempts": 0,
            "adopted": True,
        },
    )


def validation_scores(config: Config, state: Mapping[str, Tensor], source: Source) -> dict[str, float]:
    """Return the IoU on validation, in all and by year and region, as a training logs it: rows are chosen by that.

    None of a network that was trained on validation too.
    """
    if trained_on_validation(config):
        return {}
    view, model = View(split="validation"), load(config, state, int(source.info["size"]))
    summaries = summaries_of(config, source, model, [view])
    scores = evaluate(config, view, summaries, source)
    return {
        f"validation_{name}": scores[name]
        for name in ("iou", *(f"iou/{year_region}" for year_region in validated(summaries)))
    }


def rows_of(table: str, changes: Mapping[str, object]) -> dict[str, Wanted]:
    """Return what the trained rows of a table read, by label, for the first seed.

    Raises:
        UserError: where there is no such table of this task, or no such field.
    """
    task, definition = find_table(table)
    if task.name != "weather":
        raise UserError(f"{table}: is of {task.name}; name a table of weather")
    paper_table = table_at(task, definition, "paper", {"seed": SEED, **changes})
    made = {}
    for row in paper_table.rows:
        if isinstance(row, Row) and not row.absent:
            (replicate, *_) = expand(paper_table, row, task.config(), task.view())
            assert replicate.config is not None and replicate.view is not None
            made[row.label] = Wanted(replicate.config, replicate.view.epoch)
    return made


def listed(folder: Path, wanted: Mapping[str, Wanted]) -> dict[str, Path]:
    """Return the file of each row that `rows.csv` names.

    Raises:
        UserError: where the list is missing or no UTF-8 text, or names a row or file that is not there.
    """
    listing = folder / LIST
    try:
        text = listing.read_text(encoding="utf-8-sig")
    except OSError as error:
        names = "; ".join(f'"{name}"' for name in wanted)
        raise UserError(f"{listing}: missing; columns row,file, a line for each checkpoint; rows: {names}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{listing}: is no UTF-8 text; save it in that encoding") from error
    lines = list(csv.DictReader(io.StringIO(text)))
    if not lines or {"row", "file"} - lines[0].keys():
        raise UserError(f"{listing}: holds no columns row and file")
    files = {}
    for line in lines:
        name, path = str(line["row"]), folder / str(line["file"])
        if name not in wanted:
            raise UserError(f"{listing}: no row {name!r} in this table{nearest(name, wanted)}")
        if not path.is_file():
            raise UserError(f"{listing}: {path} is missing")
        files[name] = path
    return files
