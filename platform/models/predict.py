"""Batch inference over Ray without a server: many files through one trained model; existing answers are kept."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from retable.platform import api
from retable.platform.config import override
from retable.platform.errors import UserError, disk_errors, nearest
from retable.platform.execute.streams import map_over
from retable.platform.models import contract, export, select, zoo
from retable.platform.store.cache import is_text
from retable.platform.store.storage import Storage, write_file
from retable.platform.text import plain

SHARE = 8
"""Files that an actor of Ray Data gets at once."""
_RECORD = "predict.json"
"""Says in the folder of the answers what made them."""


@dataclass(frozen=True)
class Job:
    """A file to answer, and where the answer goes."""

    source: Path
    target: Path


def predict(
    task: str,
    inputs: Sequence[str],
    out: Path,
    model: str,
    changes: Mapping[str, object],
    storage: Storage,
    report: Callable[[int, int], None],
) -> tuple[int, list[str], list[str]]:
    """Answer files with a trained model; return the number of new answers, and a line for each failure and each note.

    Answers that are there, and not older than their files, are left as they are: an interrupted batch goes on.

    Args:
        task: what answers: its module `answer`.
        inputs: files, folders, patterns such as `holiday/*.jpg`.
        out: folder of the answers, each named as its file.
        model: see `find_model`.
        changes: to the task's options, by field.
        storage: where runs lie, and where actors find the exported model.
        report: told how many files of how many are done.

    Raises:
        UserError: on a mistake that concerns all files.
    """
    answers = contract.answers(task)
    options = override(answers.Options(), changes)
    data, name = find_model(task, model, storage)
    answers.answering(contract.exporter(task).read_export(data, name), options)  # or refuses
    sources, _ = expand(inputs, answers.SUFFIXES)
    with disk_errors(str(out)):
        out.mkdir(parents=True, exist_ok=True)
    sha256 = export.keep(task, data, storage)
    _remember(out, {"task": task, "model": sha256, "options": asdict(options)})
    jobs, _, failures = plan(sources, lambda source: out / answers.target(source, options), is_newer, "answer")
    unnamed = [job for job in jobs if not is_text(f"{job.source.absolute()}{job.target.absolute()}")]  # Arrow has none
    failures += [f"{plain(job.source)}: its path is no valid UTF-8; rename it" for job in unnamed]
    jobs = [job for job in jobs if job not in unnamed]
    failed, notes = list[str](), list[str]()
    for done, row in enumerate(over_actors(jobs, _Answerer, task, sha256, options, storage, in_order=False), 1):
        report(done, len(jobs))
        failed += [row["failure"]] if row["failure"] else []
        notes += [row["note"]] if row["note"] else []
    return len(jobs) - len(failed), [*failures, *sorted(failed)], sorted(notes)


_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)


def note(text: str) -> None:
    """Add a note on the answer being made, which `retable predict` prints; a server prints none."""
    if (notes := _notes.get()) is not None and text:
        notes.append(text)


def over_actors(
    jobs: Sequence[Job], actor: Callable[..., Any], *given: Any, in_order: bool
) -> Iterator[Mapping[str, Any]]:
    """Share jobs out over actors of Ray Data, which get `given`; yield the rows that these return of each job.

    Every machine must see the files, under the same absolute paths.
    """
    rows = [{"source": str(job.source.absolute()), "target": str(job.target.absolute())} for job in jobs]
    shares = [pa.Table.from_pylist(rows[start : start + SHARE]) for start in range(0, len(rows), SHARE)]
    return map_over(shares, actor, *given, in_order=in_order)


class _Answerer:
    """An actor of Ray Data: holds a model, and answers the files of a block."""

    def __init__(self, task: str, sha256: str, options: object, storage: Storage) -> None:
        model = contract.exporter(task).read_export(export.kept(task, sha256, storage), task)
        self.answering = contract.answers(task).answering(model, options)

    def __call__(self, block: pa.Table) -> pa.Table:
        """Return the block with the reason of each failure, empty where the answer is written, and with notes."""
        outcomes = [self.answer(Path(row["source"]), Path(row["target"])) for row in block.to_pylist()]
        for index, name in enumerate(("failure", "note")):
            block = block.append_column(name, pa.array([outcome[index] for outcome in outcomes], pa.string()))
        return block

    def answer(self, source: Path, target: Path) -> tuple[str, str]:
        """Answer a file; return why there is no answer, in a line, and what is odd about it."""
        notes: list[str] = []
        token = _notes.set(notes)
        try:
            write_file(target, self.answering(source))
        except (UserError, OSError) as error:
            line = str(error).strip().splitlines()[0]
            return line if str(source) in line else f"{source}: {line}", ""
        finally:
            _notes.reset(token)
        return "", "; ".join(notes)


def find_model(task: str, name: str, storage: Storage) -> tuple[bytes, str]:
    """Return the exported file that a name refers to, and a display name.

    Args:
        task: whose.
        name: a file, a name of the zoo, or a run as `api.load` takes it; empty: the best run, or the zoo's model, if
            there is one of them.
        storage: where runs lie.

    Raises:
        UserError: where there is none, or the choice is not clear.
    """
    shipped = zoo.zoo(task)
    if not name:
        runs: Mapping[str, select.Choice] = {}
        if storage.folders(f"runs/{task}"):
            runs = contract.selector(task).best(select.eligible_runs(task, storage))
        candidates = {model: choice.run.fingerprint for model, choice in runs.items()} or {
            model: model for model in shipped
        }
        if len(candidates) != 1:
            named = ", ".join(f"{value} ({model})" if value != model else model for model, value in candidates.items())
            raise UserError(f"--model: name one{f' of {named}' if named else '; train one first'}, or a file")
        (name,) = candidates.values()
    if Path(name).is_file():
        with disk_errors(name):
            return Path(name).read_bytes(), name
    if name in shipped:
        return zoo.read(task, name), name
    if not api.is_run_name(name, task):
        raise UserError(f"--model {name}: no file, no run, and not in the zoo{nearest(name, shipped)}")
    return contract.exporter(task).write_export(api.load(name, storage, task=task)), name


def expand(inputs: Sequence[str], suffixes: Collection[str], what: str = "files") -> tuple[list[Path], list[str]]:
    """Return the files of names, folders and patterns, and a line for each other entry in those.

    A file that is named is taken whatever its name; of a folder or pattern, those of some suffixes.

    Raises:
        UserError: where a folder or pattern holds none.
    """
    files: list[Path] = []
    notes = []
    for name in inputs:
        path = Path(name)
        if not path.is_dir() and (path.exists() or not glob.has_magic(name)):
            files.append(path)
            continue
        matches = sorted(path.iterdir() if path.is_dir() else map(Path, glob.glob(name, recursive=True)))
        matches = [file for file in matches if not file.name.startswith(".")]  # previews, and what a killed run left
        fitting = [file for file in matches if file.is_file() and file.suffix.lower() in suffixes]
        if not fitting:
            raise UserError(f"{name}: holds no {what} ({', '.join(sorted(suffixes))})")
        others = (file for file in matches if file not in fitting)
        kind = what.removesuffix("s")
        notes += [f"{file}: skipped, {'a folder' if file.is_dir() else f'no {kind} by its name'}" for file in others]
        files += fitting
    return list(dict.fromkeys(files)), notes


def plan(
    sources: Sequence[Path], target_of: Callable[[Path], Path], is_done: Callable[[Path, Path], bool], what: str
) -> tuple[list[Job], list[Path], list[str]]:
    """Return the jobs of files in order, the targets that are done, and a line for each file that cannot be a job.

    Args:
        sources: files.
        target_of: file -> the file that its result is written to.
        is_done: whether an existing target is the result of its file, and stays.
        what: what a result is called.
    """
    jobs, done, failures = [], [], []
    sources_of: dict[Path, Path] = {}
    for source in sources:
        target = target_of(source)
        first = sources_of.setdefault(target, source)
        if not source.is_file():
            failures.append(f"{source}: no such file")
        elif first != source:
            failures.append(f"{source}: its {what} would take the place of that of {first}; use two folders")
        elif target.exists() and target.samefile(source):
            failures.append(f"{source}: its {what} would take its own place; choose another folder")
        elif target.exists() and is_done(source, target):
            done.append(target)
        else:
            jobs.append(Job(source, target))
    return jobs, done, failures


def is_newer(source: Path, target: Path) -> bool:
    """Return whether a target is not older than its file."""
    return target.stat().st_mtime >= source.stat().st_mtime


def _remember(out: Path, record: Mapping[str, object]) -> None:
    """Write to a folder which model and options make its answers.

    Raises:
        UserError: where they were made by something else.
    """
    folder = Storage.open(out)
    made = json.loads(json.dumps(record))
    if not folder.exists(_RECORD):
        folder.write_json(_RECORD, made)
    elif folder.read_record(_RECORD, {}) != made:
        raise UserError(f"{out}: holds answers of another model or with other options; choose another --out")
