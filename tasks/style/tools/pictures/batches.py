"""Files in, files out: many pictures, one after the other or over a Ray cluster, and sheets to compare."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont

from retable.platform.errors import UserError, disk_errors
from retable.platform.models.predict import Job, expand, over_actors, plan
from retable.platform.store.storage import Storage, write_file
from retable.tasks.style.files import images
from retable.tasks.style.files.images import FORMATS, Picture, Pixels
from retable.tasks.style.networks.transformer import chosen, is_file
from retable.tasks.style.tools.pictures import regions
from retable.tasks.style.tools.pictures.memory import TOO_LARGE, shortage_told
from retable.tasks.style.tools.pictures.stylise import (
    MaskedStyle,
    NetworkStyle,
    Options,
    PaintingStyle,
    Report,
    Style,
    find_run,
    open_style,
    run_network,
)

SMALLER = 0.7
"""Of a picture's size that memory did not hold: about half of its pixels."""


def nothing(done: float, total: int, text: str) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class Outcome:
    """Result of a job."""

    job: Job
    failure: str = ""
    """Reason why there is no result, in one line; empty if there is one."""
    note: str = ""
    """Remark on a result for the user."""
    losses: Float[np.ndarray, "evaluations 3"] | None = None
    """Version 1: total, content and style loss of each evaluation."""


def plan_jobs(inputs: Sequence[str], out: Path, overwrite: bool) -> tuple[list[Job], list[str], list[str]]:
    """Return jobs in order, notes on what is left out, and failures, a line each.

    `out` is the result's file for one photograph that is named, else a folder; a result keeps its photograph's name.

    Raises:
        UserError: where nothing is named that there is, or `out` cannot hold the results.
    """
    pictures, notes = expand(inputs, images.SUFFIXES, "pictures")
    single = len(inputs) == 1 and [Path(inputs[0])] == pictures and bool(out.suffix) and not out.is_dir()
    if single:
        images.check_suffix(out)
    elif out.suffix.lower() in FORMATS or out.is_file():
        raise UserError(f"{out}: is one file, and there are {len(pictures)} pictures; name a folder")

    def target(source: Path) -> Path:
        return out if single else out / images.result_name(source)

    jobs, done, failures = plan(pictures, target, lambda *_: not overwrite, "result")
    notes += [f"{target}: is there already, skipped; --overwrite makes it anew" for target in done]
    return jobs, notes, failures


def stylise_jobs(style: Style, jobs: Sequence[Job], options: Options, report: Report = nothing) -> Iterator[Outcome]:
    """Stylise pictures in order; a broken one is an outcome, and the rest go on.

    Small pictures of one size that follow each other share a batch.
    """
    waiting: list[tuple[Job, Picture]] = []
    for number, job in enumerate(jobs):
        try:
            with shortage_told(f"{job.source}: {TOO_LARGE}"):
                picture = resized(images.read(job.source), style.size)
        except UserError as error:
            yield Outcome(job, failure=str(error))
            continue
        area = picture.pixels.shape[0] * picture.pixels.shape[1]
        same = bool(waiting) and waiting[0][1].pixels.shape == picture.pixels.shape
        if waiting and not (same and (len(waiting) + 1) * area <= style.batch_pixels):
            yield from stylise_batch(style, waiting, options, within(report, number - len(waiting), len(jobs), waiting))
            waiting = []
        waiting.append((job, picture))
    if waiting:
        yield from stylise_batch(style, waiting, options, within(report, len(jobs) - len(waiting), len(jobs), waiting))


def within(report: Report, before: int, total: int, batch: Sequence[tuple[Job, Picture]]) -> Report:
    """Return what turns a batch's progress into that of all pictures, of which `before` are done."""

    def tell(done: float, steps: int, text: str) -> None:
        report(before + len(batch) * done / steps, total, f"{batch[0][0].source.name} {text}")

    return tell


def resized(picture: Picture, size: int) -> Picture:
    """Return a picture whose longer side has `size` pixels, with its alpha; 0: as it is."""
    pixels, alpha = images.fit(picture.pixels, size), picture.alpha
    if alpha is not None and size:  # colors are averaged by their alpha: those of transparent pixels do not show
        seen = np.dstack((picture.pixels, np.full_like(alpha, 255))) * alpha[..., None].astype(np.uint16)
        colors, shares = np.split(images.fit(seen, size), [3], -1)
        shown = np.rint(np.float32(255) * colors / np.maximum(shares, 1)).clip(max=255)
        pixels, alpha = np.where(shares, shown, pixels).astype(np.uint8), images.fit(alpha, size)
    return Picture(pixels, alpha, picture.icc, picture.animated)


def stylise_batch(
    style: Style, batch: Sequence[tuple[Job, Picture]], options: Options, report: Report
) -> Iterator[Outcome]:
    """Stylise pictures of one size and write the results."""
    report(0, 1, "")
    height, width = batch[0][1].pixels.shape[:2]
    smaller = f"try --size {int(max(height, width) * SMALLER)}"
    try:
        with shortage_told(f"{width} x {height} pixels need more memory than there is; {smaller}"):
            made = style([picture.pixels for _, picture in batch], report)
    except UserError as error:
        yield from (Outcome(job, failure=f"{job.source}: {error}") for job, _ in batch)
        return
    for (job, picture), result in zip(batch, made, strict=True):
        pixels = result.pixels
        if options.original_colours:
            pixels = images.original_colours(pixels, picture.pixels)
        if options.strength < 1:
            pixels = images.mix(pixels, picture.pixels, options.strength)
        try:
            images.write(job.target, pixels, picture.alpha, picture.icc)
        except UserError as error:
            yield Outcome(job, failure=str(error))
        else:
            yield Outcome(job, note=note(job, picture), losses=result.losses)
    report(1, 1, "")


def note(job: Job, picture: Picture) -> str:
    """Return a remark on what the result lacks of its photograph: further pictures, transparency."""
    lacks = [f"{job.source}: holds several pictures; the first is stylised"] if picture.animated else []
    if picture.alpha is not None and FORMATS[job.target.suffix.lower()]["format"] == "JPEG":
        lacks.append(f"{job.target}: JPEG holds no transparency; it is dropped")
    return "; ".join(lacks)


class Stylist:
    """An actor of Ray Data: holds a style, and stylises the pictures of a block."""

    def __init__(self, styles: Sequence[str], options: Options, storage: Storage) -> None:
        self.style, self.options = open_style(styles, options, storage), options

    def __call__(self, block: pa.Table) -> pa.Table:
        """Stylise; return sources and targets with what is to be said of them."""
        jobs = [Job(Path(row["source"]), Path(row["target"])) for row in block.to_pylist()]
        outcomes = {outcome.job: outcome for outcome in stylise_jobs(self.style, jobs, self.options)}
        remarks = {"failure": [outcomes[job].failure for job in jobs], "note": [outcomes[job].note for job in jobs]}
        return pa.table({"source": block["source"], "target": block["target"], **remarks})


def stylise_dataset(
    jobs: Sequence[Job], styles: Sequence[str], options: Options, storage: Storage
) -> Iterator[Outcome]:
    """Stylise pictures on a Ray cluster; outcomes come in order, without losses; see `over_actors`."""
    named = [absolute(style) for style in styles]
    if options.mask:
        options = replace(options, mask=options.mask.absolute())
    backbone = Path(str(options.changes.get("method.backbone.weights", "")))
    if backbone.is_file():
        options = replace(options, changes={**options.changes, "method.backbone.weights": str(backbone.absolute())})
    for row in over_actors(jobs, Stylist, named, options, storage, in_order=True):
        yield Outcome(Job(Path(row["source"]), Path(row["target"])), row["failure"], row["note"])


def stylise_files(
    inputs: Sequence[str],
    styles: Sequence[str],
    out: Path,
    options: Options,
    storage: Storage,
    *,
    overwrite: bool = False,
    history: Path | None = None,
    ray: bool = False,
    report: Report = nothing,
) -> Iterator[str | Outcome]:
    """Stylise photographs, folders of them and patterns; yield notes and outcomes as they come.

    An interrupted batch goes on where it stopped: what is written is whole, and is skipped the next time.

    Args:
        inputs: photographs, folders, patterns such as `holiday/*.jpg`.
        styles: see `open_style`.
        out: see `plan_jobs`.
        options: how.
        storage: where runs and imported weights lie.
        overwrite: whether results that are there are made anew.
        history: a CSV file to write the losses of version 1 to.
        ray: whether the pictures are shared out over a Ray cluster.
        report: told how far the work is.

    Raises:
        UserError: on a mistake that concerns all pictures.
    """
    jobs, notes, failures = plan_jobs(inputs, out, overwrite)
    yield from notes
    yield from (Outcome(Job(out, out), failure=failure) for failure in failures)
    if not jobs:
        return
    style = open_style(styles, options, storage)  # before Ray too: a mistake is one line, and no dead actor
    if history and (ray or not keeps_losses(style)):
        raise UserError(f"--history {history}: losses are of paintings (version 1), optimised without --ray")
    for file in filter(None, (jobs[0].target, history)):
        Storage.open(file.absolute().parent).check_writable()
    rows = read_history(history, {str(job.source) for job in jobs}, overwrite) if history else []
    outcomes = stylise_dataset(jobs, styles, options, storage) if ray else stylise_jobs(style, jobs, options, report)
    for number, outcome in enumerate(outcomes, 1):
        if ray:
            report(number, len(jobs), outcome.job.source.name)
        if history and outcome.losses is not None:
            rows += [(str(outcome.job.source), i, *line) for i, line in enumerate(outcome.losses.tolist(), 1)]
            write_history(history, rows)
        yield outcome


HISTORY = ("photograph", "evaluation", "total", "content", "style")
"""Columns of a file of losses."""


def absolute(style: str) -> str:
    """Return a style's name as any working directory understands it."""
    name, colour = regions.split(style)
    where = ",".join(map(_absolute, [name] if is_file(name) else name.split(",")))
    return f"{where}@{colour}" if colour else where


def _absolute(name: str) -> str:
    """Return the name of a network or painting, with the style that is chosen of it: `file:style`, `file:style:0.7`."""
    file, *rest = [name] if is_file(name) else name.split(":")
    return ":".join([str(Path(file).absolute()) if is_file(file) else file, *rest])


def keeps_losses(style: Style) -> bool:
    """Return whether a style's results have the losses of an optimisation."""
    inner = style.styles if isinstance(style, MaskedStyle) else [style]
    return len(inner) == 1 and isinstance(inner[0], PaintingStyle)


def read_history(path: Path, anew: Collection[str], overwrite: bool) -> list[tuple[str | float, ...]]:
    """Return the losses of a file that is there, but of photographs that are stylised anew: an interrupted batch's.

    Raises:
        UserError: where it is no such file, and is not to be overwritten.
    """
    if not path.exists():
        return []
    with disk_errors(f"--history {path}"), path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        head, *rows = list(csv.reader(file)) or [[]]
    if head != list(HISTORY):
        if overwrite:
            return []
        raise UserError(f"--history {path}: is there, and holds no losses; choose another file, or --overwrite")
    return [tuple(row) for row in rows if row and row[0] not in anew]


def write_history(path: Path, rows: Sequence[tuple[str | float, ...]]) -> None:
    """Write losses as a table: photograph, evaluation, total, content and style loss."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([HISTORY, *rows])
    write_file(path, stream.getvalue().encode(errors="surrogateescape"))


def sheet(pictures: Sequence[tuple[str, Pixels]], columns: int = 4) -> Pixels:
    """Return pictures in rows on white, each above its name. All are as large as the largest one's box."""
    height, width = (max(pixels.shape[axis] for _, pixels in pictures) for axis in (0, 1))
    size = max(10, width // 16)
    font = ImageFont.load_default(size)
    line, columns = 2 * size, min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    canvas = Image.new("RGB", (columns * width, rows * (height + line)), "white")
    pen = ImageDraw.Draw(canvas)
    for number, (name, pixels) in enumerate(pictures):
        left, top = number % columns * width, number // columns * (height + line)
        canvas.paste(Image.fromarray(pixels), (left, top))
        pen.text((left + width // 2, top + height + line // 2), name, fill="black", font=font, anchor="mm")
    return np.array(canvas)


def compare(run: str, photograph: Path, epochs: Sequence[int], options: Options, storage: Storage) -> Pixels:
    """Return a sheet of one photograph, stylised by a run's network after several epochs; none: all that were kept.

    Raises:
        UserError: where the run is no network's, an epoch was not kept, or the photograph cannot be read.
    """
    with shortage_told(f"{photograph}: {TOO_LARGE}"):
        pixels = images.fit(images.read(photograph).pixels, options.size or 0)
    shown = [(photograph.stem, pixels)]
    trained = find_run(run, storage)
    for epoch in epochs or sorted(map(int, trained.result["weights"])):
        network, paintings = run_network(trained, epoch), trained.config.style
        for painting in paintings if network.architecture.styles > 1 else ("",):
            style = NetworkStyle(chosen(network, paintings, painting, run).to(options.where), options)
            with shortage_told(f"{photograph}: {TOO_LARGE}"):
                shown.append((f"epoch {epoch} {painting}".strip(), style([pixels], nothing)[0].pixels))
    return sheet(shown)
