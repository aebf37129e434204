"""`retable audio ...` and the task's part of `retable data`."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from retable.platform.console import (
    Device,
    Epoch,
    Licence,
    Overwrite,
    Run,
    Where,
    console,
    errors,
    print_lines,
    progress_bar,
)
from retable.platform.errors import UserError
from retable.platform.store.storage import Storage, check_target, write_file
from retable.tasks.audio.data_cli import DATA

if TYPE_CHECKING:
    from retable.tasks.audio.tools.search.search import Hit

__all__ = ["DATA", "app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Text-to-audio retrieval: find recordings by describing them.\n\n"
    "Example: `retable audio index ~/Sounds --model passt-scenes`, then `retable audio search 'rain on a roof'`",
)

Model = Annotated[
    str,
    typer.Option(
        help="A run, a file of `retable audio export`, or a model of `retable zoo audio` (default: the model that made "
        "the index)."
    ),
]
Part = Annotated[
    str,
    typer.Option(help="Which network to take if a checkpoint holds two, e.g. net_swa (default: the first)."),
]
LLM = "For a language model"


@app.command()
def index(
    folder: Annotated[Path, typer.Argument(help="A folder of recordings; those below it are read too.")],
    model: Model = "",
    out: Annotated[Path, typer.Option("--out", "-o", help="The index, a folder of its own.")] = Path("index"),
    kind: Annotated[
        Literal["auto", "flat", "sq8", "hnsw", "ivf"] | None,
        typer.Option(
            help="flat: exact; sq8: one byte a number; hnsw, ivf: fast, approximate; auto: by size "
            "(default: the index's own; auto for a new one)."
        ),
    ] = None,
    storage: Where = "results",
    device: Device = "",
    hop: Annotated[
        float | None,
        typer.Option(
            help="Seconds between the starts of segments; below a segment's length they overlap, and hits are located "
            "more precisely (default: the index's own; a whole segment for a new one).",
            min=0.01,
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file again, to find changes that left size and time equal.")
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Distribute the files over the Ray cluster.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Allow smoke-scale models.")] = False,
) -> None:
    """Make an index of a folder to search in, or update it: only new and changed files are embedded.

    Broken files are named and left out. After a killed command, the same command resumes; until then the index answers
    as before. Recordings are identified by content: files that were moved or renamed are not embedded again, and a
    recording that lies there twice is one hit, with both places.

    Example: `retable audio index ~/Sounds --model passt-scenes --out sounds.index`
    """
    from retable.tasks.audio.tools.search import classes
    from retable.tasks.audio.tools.search.index import over_ray, update
    from retable.tasks.audio.tools.search.opening import check_scale, open_embedder
    from retable.tasks.audio.tools.search.search import read_info

    where, info = Storage.open(storage), read_info(out)
    if not (model or info):
        raise UserError(
            f"--model: {out} is a new index; name a run, an exported file, or a model of `retable zoo audio`"
        )
    source, say = model or (info or {})["source"], lambda line: errors.print(f"note: {line}", markup=False)
    embedder = open_embedder(source, where, device, say=say)
    check_scale(embedder, anyway)
    remote = partial(over_ray, source=embedder.source, storage=where, device=device, folder=folder) if ray else None
    begun = time.monotonic()
    with progress_bar(f"indexing {folder}", "files") as show:
        made = update(folder, out, embedder, kind=kind, hop=hop, remote=remote, show=show, verify=verify)
    print_lines(made.remarks, "note: ", to=errors)
    print_lines(made.failures, "left out: ", to=errors)
    facts, left = made.info, f", {len(made.failures)} left out" if made.failures else ""
    if others := sum(made.others.values()):
        most = sorted(made.others.items(), key=lambda item: (-item[1], item[0]))
        left += f", {others} no recordings ({', '.join(f'{count} {suffix}' for suffix, count in most[:5])})"
    twice = facts["files"] - facts["recordings"]
    apart = f", one each {facts['hop']:g} s" if facts["hop"] != facts["segment"] else ""
    copies = f" ({twice} of them copies)" if twice else ""
    console.print(
        f"{out}: {facts['files']} files{copies}, {facts['segments']} segments of {facts['segment']:g} s{apart}",
        markup=False,
    )
    rate = f" ({made.added / (time.monotonic() - begun):,.0f} files/s)" if made.added else ""
    console.print(f"{made.added} embedded{rate}, {made.found} known by their content, {made.removed} removed{left}")
    part = f"the index finds {facts['recall']:.1%} of the ten nearest that an exact search would"
    console.print("exact search" if facts["kind"] == "flat" else f"{facts['kind']}: {part}")
    if judged := classes.line(embedder.score):
        console.print(f"the model: {judged}", markup=False)


@app.command()
def search(
    words: Annotated[str, typer.Argument(help="Describe the sound: 'rain on a tin roof'.")] = "",
    like: Annotated[Path | None, typer.Option(help="Find what sounds like this recording.")] = None,
    index: Annotated[Path, typer.Option("--index", "-i", help="The index.")] = Path("index"),
    top: Annotated[int, typer.Option(help="Recordings to show.", min=1)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    page: Annotated[Path | None, typer.Option(help="Also write a page that plays the hits.")] = None,
    overwrite: Overwrite = False,
    avoid: Annotated[str, typer.Option("--not", help="Describe what to avoid: hits sound less like these words.")] = "",
    min_seconds: Annotated[
        float, typer.Option(help="Shortest hit in seconds, to within a segment of the index.", min=0)
    ] = 0.0,
    under: Annotated[str, typer.Option(help="Only hits below this folder of the index (or an absolute one).")] = "",
    name: Annotated[str, typer.Option(help="Only hits whose file name contains or matches this: '*take?.wav'.")] = "",
    aloud: Annotated[bool, typer.Option("--play", help="Play the best hit's seconds.")] = False,
    good: Annotated[list[int] | None, typer.Option(help="Mark a hit as good for the words, by its number.")] = None,
    bad: Annotated[list[int] | None, typer.Option(help="Mark a hit as bad.")] = None,
    model: Model = "",
    storage: Where = "results",
    device: Device = "",
) -> None:
    """Find recordings by words, by a recording, or by both: score (a cosine), second of the best segment, file.

    If random words often score as high, a note says that the sound is perhaps not here; hits are shown anyway.

    Example: `retable audio search "rain on a tin roof" --index sounds.index --page hits.html`
    """
    from retable.platform.store.run import file_digest
    from retable.tasks.audio.tools.search.hits import lines, to_json, told, write_page
    from retable.tasks.audio.tools.search.marks import mark, numbered
    from retable.tasks.audio.tools.search.play import play
    from retable.tasks.audio.tools.search.search import Where as Among
    from retable.tasks.audio.tools.search.search import check_model, open_index, open_words, p_value, query_vector
    from retable.tasks.audio.tools.search.search import search as find

    if as_json and aloud:
        raise UserError("--json and --play are mutually exclusive; leave one out")
    if both := {*(good or ())} & {*(bad or ())}:
        raise UserError(f"--good {min(both)} --bad {min(both)}: a hit is good or bad; leave one out")
    marks = [(number, True) for number in good or ()] + [(number, False) for number in bad or ()]
    if page:
        check_target(page, overwrite)
    words = words if any(map(str.isalnum, words)) else ""  # punctuation is not heard
    if marks and not words:
        raise UserError("--good, --bad: a hit is marked for words; give some")
    opened = open_index(index)
    embedder = open_words(model or opened.info["source"], Storage.open(storage), device, with_audio=like is not None)
    check_model(opened.info, embedder, index)
    query = query_vector(embedder, words, like, opened.refit, avoid)
    itself = file_digest(like) if like is not None and not words else ""
    hits = find(opened, query, top, Among(min_seconds, under, name), itself)
    alone = like is None and not avoid
    p = p_value(opened, hits, embedder) if alone else None
    note = told(opened, hits, p, alone)
    filters = {"--min-seconds": f"{min_seconds:g}" if min_seconds else "", "--under": under, "--name": name}
    if not hits and (given := " ".join(f"{option} {value}" for option, value in filters.items() if value)):
        note = f"no recording of the index passes {given}"
    for hit, is_good in [(numbered(number, hits), is_good) for number, is_good in marks]:  # all, or none
        mark(opened, words, hit, is_good)
    if page:
        write_page(page, opened, words, like, hits, note)
    if as_json:
        typer.echo(to_json(opened, words, like, hits, p))
        return
    print_lines((*([note] if note else []), *lines(hits)))
    if marks:
        console.print(f"{len(marks)} marked; to fine-tune on them: retable audio pairs {index} FILE.csv", markup=False)
    if page:
        console.print(str(page), markup=False)
    if aloud and hits:
        play(opened, hits[0])


@app.command()
def shell(
    index: Annotated[Path, typer.Option("--index", "-i", help="The index.")] = Path("index"),
    top: Annotated[int, typer.Option(help="Recordings to show.", min=1)] = 10,
    model: Model = "",
    storage: Where = "results",
    device: Device = "",
) -> None:
    """Search again and again without waiting for the model: a query a line, until the input ends (Ctrl-D).

    A number plays that hit of the last query, +2 marks the second as good, -3 the third as bad; `retable audio pairs`
    writes what was marked. What others add to the index meanwhile is found too.

    Example: `retable audio shell --index sounds.index`
    """
    import io
    import sys

    from retable.tasks.audio.tools.search.hits import lines, told
    from retable.tasks.audio.tools.search.marks import hit_number, mark, marked
    from retable.tasks.audio.tools.search.play import play
    from retable.tasks.audio.tools.search.search import (
        check_model,
        open_index,
        open_words,
        p_value,
        query_vector,
        refresh,
    )
    from retable.tasks.audio.tools.search.search import search as find

    opened = open_index(index)
    embedder = open_words(model or opened.info["source"], Storage.open(storage), device)
    check_model(opened.info, embedder, index)
    learnt = f"words go through what {opened.refit.said['queries']} marked queries taught; " if opened.refit else ""
    console.print(f"{index}: {opened.info['recordings']} recordings; {learnt}what is to be heard?", markup=False)
    hits: list[Hit] = []
    words = ""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a line that is not UTF-8 ends no shell
    for typed in sys.stdin:
        if not typed.strip():
            continue
        try:
            if 1 <= (number := hit_number(typed.strip()) or 0) <= len(hits):
                play(opened, hits[number - 1])
                continue
            if marking := marked(typed, hits):
                mark(opened, words, *marking)
                console.print(f"{'good' if marking[1] else 'bad'}: {marking[0].file}", markup=False)
                continue
            opened = refresh(opened)
            query = query_vector(embedder, typed.strip(), None, opened.refit)
            words, hits = typed.strip(), find(opened, query, top)
            note = told(opened, hits, p_value(opened, hits, embedder))
            print_lines((*([note] if note else []), *lines(hits)))
        except UserError as error:
            errors.print(str(error), markup=False)
        console.print()


@app.command()
def pairs(
    index: Annotated[Path, typer.Argument(help="The index.")],
    table: Annotated[Path, typer.Argument(dir_okay=False, help="The CSV to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Write the hits that were marked as good as a CSV of recordings and captions, to fine-tune on.

    Of recordings above 30 s the ten seconds around the hit are cut out, into a folder beside the CSV.

    Example: `retable audio pairs sounds.index good.csv`, then `retable audio finetune good.csv --from passt-scenes`
    """
    from retable.tasks.audio.tools.search.marks import write_pairs
    from retable.tasks.audio.tools.search.search import open_index

    if table.suffix.lower() != ".csv":
        raise UserError(f"{table}: call it {table.stem}.csv, so that it is known for what it is")
    check_target(table, overwrite)
    made = write_pairs(open_index(index), table)
    left = f"; {made.bad} marked as bad are left out" if made.bad else ""
    left += f"; of {made.gone} the recordings are gone" if made.gone else ""
    console.print(f"{table}: {made.pairs} pairs{left}", markup=False)


@app.command()
def refit(
    index: Annotated[Path, typer.Argument(help="The index.")],
    anyway: Annotated[bool, typer.Option("--anyway", help="Keep it even if its gain may be chance.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Remove what was learned, and search by the model alone.")
    ] = False,
    model: Model = "",
    storage: Where = "results",
    device: Device = "",
) -> None:
    """Learn from marked hits: move queries slightly towards what was marked as good for other queries.

    Nothing is trained, and no recording is embedded again. It is tested by leaving out each marked query in turn, and
    kept only if it helps them.

    Example: `retable audio refit sounds.index`
    """
    from retable.tasks.audio.tools.search.index import set_refit, undo_refit
    from retable.tasks.audio.tools.search.refit import learn, line
    from retable.tasks.audio.tools.search.search import check_model, open_index, open_words, read_info

    info = read_info(index) or open_index(index).info  # which says that there is none
    embedder = open_words(model or info["source"], Storage.open(storage), device)
    check_model(info, embedder, index)
    if undo:
        undo_refit(index, embedder)
        console.print(f"{index}: searched as the model says", markup=False)
        return
    opened = open_index(index)
    made, judged = learn(opened, embedder)
    kept = judged.helps or anyway
    if kept:
        set_refit(opened, embedder, made)
    console.print(line(judged), markup=False)
    after = "kept; --undo removes it" if kept else "not kept, as that may be chance: mark more hits, or add --anyway"
    console.print(f"{index}: {after}", markup=False)


@app.command()
def finetune(
    table: Annotated[Path, typer.Argument(help="A CSV with the columns file and caption; files lie beside it.")],
    start: Annotated[
        str, typer.Option("--from", help="A run, a file of `retable audio export`, a model of the zoo, or none.")
    ],
    name: Annotated[str, typer.Option(help="Name of the data set (default: the CSV's).")] = "",
    folder: Annotated[Path | None, typer.Option(help="Folder of the recordings (default: the CSV's).")] = None,
    set: Annotated[list[str] | None, typer.Option("--set", help="Change a config field: path=value.")] = None,
    storage: Where = "results",
    workers: Annotated[int, typer.Option(help="Workers; several form a Ray Train group.", min=1)] = 1,
    cpus: Annotated[int, typer.Option(help="CPUs and torch threads with one worker.", min=1)] = 1,
    gpus: Annotated[float, typer.Option(help="GPUs of each worker.", min=0)] = 0.0,
) -> None:
    """Train on your own recordings and captions, from a trained model or from none.

    The CSV is imported as a data set (broken files are named and left out), and trained on with the paper's settings.
    The model's anchors (for words on which it was not trained) are not carried over: fit them again to the export
    (`retable audio anchors`).

    Example: `retable audio finetune sounds.csv --from passt-scenes`
    """
    import re

    from retable.platform.config import parse_set
    from retable.platform.spec.resources import Resources
    from retable.tasks.audio.data_cli import import_table
    from retable.tasks.audio.tools.search.finetune import settings, train

    where = Storage.open(storage)
    chosen = name or re.sub(r"[^\w.-]+", "-", table.stem, flags=re.ASCII).strip("-._") or "own"
    info = import_table(table, folder, chosen, where)
    config = settings(start, info, where, parse_set(set or []))
    run = train(config, where, Resources(workers=workers, cpus=cpus, gpus=gpus))
    console.print(f"run {run.fingerprint}: {run.folder.folder}", markup=False)
    for metric, value in run.metrics.items():
        console.print(f"  {metric}  {value:.6g}")
    console.print(f"search with it: retable audio index FOLDER --model {run.fingerprint[:8]}")


@app.command()
def anchors(
    file: Annotated[Path, typer.Argument(help="A file of `retable audio export`; the anchors are written into it.")],
    folder: Annotated[Path, typer.Argument(help="Labelled recordings in ESC's layout; without the fold held out.")],
    data: Annotated[
        list[str] | None,
        typer.Option(help="A data set that the model was trained on; its words count as known (default: generated)."),
    ] = None,
    storage: Where = "results",
) -> None:
    """Fit a model's anchors, which find words that it was not trained on, such as synonyms.

    Recordings of ESC-10's classes are used; a kind of sound without recordings is placed by its words.

    Example: `retable audio anchors sounds.safetensors ~/ESC-10 --data sounds`
    """
    from retable.tasks.audio.tools.search.anchors import fit_file

    made = fit_file(file, folder, data or (), Storage.open(storage))
    used, passed = (
        ", ".join(f"{name} ({count})" for name, count in sorted(counts.items())) for counts in (made.heard, made.passed)
    )
    left = f"; of no known class, not used: {passed}" if passed else ""
    words = f"those of {', '.join(data)}" if data else "those of the generator; name others by --data"
    console.print(f"{file}: anchors by recordings of {used}{left}", markup=False)
    console.print(f"{made.words} words count as trained on: {words}", markup=False)


@app.command()
def weights(
    file: Annotated[Path, typer.Argument(help="A checkpoint of PaSST or PANNs, e.g. passt-s-f128-p16-s16-ap.468.pt.")],
    part: Part = "",
    storage: Where = "results",
) -> None:
    """Take over an audio encoder that others trained; prints the `--set` option that uses it.

    Known are the published files of PaSST and PANNs' CNN14. Only numbers are read: a file that holds code is refused.

    Example: `retable audio weights passt-s-f128-p16-s16-ap.468.pt`
    """
    from retable.tasks.audio.encoders.checkpoints import import_file

    digest = import_file(file, Storage.open(storage), part, lambda line: errors.print(f"note: {line}", markup=False))
    console.print(f"--set audio.weights={digest}")


@app.command()
def adopt(
    file: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint of dcase2023_task6b or salsa (passt_roberta.ckpt), or of LAION-CLAP "
            "(630k-audioset-best.pt; or a folder such as laion/clap-htsat-unfused)."
        ),
    ],
    out: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write, e.g. salsa.safetensors.")],
    text: Annotated[
        str, typer.Option(help="Folder or name of its text encoder, for the tokenizer (default: chosen by its size).")
    ] = "",
    part: Part = "",
    licence: Licence = "",
    overwrite: Overwrite = False,
) -> None:
    """Convert a pair of encoders that others trained to one file for search and serving.

    Only numbers are read: code in the checkpoint is never run. The new file includes the tokenizer. If the
    checkpoint is not a folder that holds it, it is read from --text, the cache of Hugging Face or the hub.

    Example: `retable audio adopt passt_roberta.ckpt salsa.safetensors`, then `retable audio index ~/Sounds --model
    salsa.safetensors`
    """
    from retable.tasks.audio.export import write_adopted
    from retable.tasks.audio.tools.adopt.pairs import read_foreign

    check_target(out, overwrite)
    pair = read_foreign(file, text, part, lambda line: errors.print(f"note: {line}", markup=False))
    data = write_adopted(pair, licence=licence)
    write_file(out.expanduser(), data)
    console.print(f"{out}: {len(data):,} bytes", markup=False)


@app.command()
def augment(
    data: Annotated[str, typer.Argument(help="A data set below data/audio/, e.g. dcase2023.")],
    rules: Annotated[
        Literal["keywords", "no_keywords", "hallucinated"] | None,
        typer.Option(help="Rewrite by rules, without a model; the last two damage captions on purpose."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Ask this model at OPENAI_BASE_URL, with OPENAI_API_KEY.", rich_help_panel=LLM)
    ] = "",
    variations: Annotated[Path | None, typer.Option(help="Take the forms of a published variations.json.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the forms as variations.json too.")] = None,
    overwrite: Overwrite = False,
    seed: Annotated[int, typer.Option(help="Seed of the rules.", min=0)] = 0,
    prompt: Annotated[
        Literal["paper", "code"],
        typer.Option(help="Wording of the prompt: the paper's or its code's.", rich_help_panel=LLM),
    ] = "paper",
    rate: Annotated[float, typer.Option(help="Requests per minute; 0 sets no limit.", min=0, rich_help_panel=LLM)] = 0,
    concurrent: Annotated[int, typer.Option(help="Requests at once.", min=1, rich_help_panel=LLM)] = 8,
    price: Annotated[
        tuple[float, float], typer.Option(help="Prices of a million input and output tokens.", rich_help_panel=LLM)
    ] = (0.0, 0.0),
    storage: Where = "results",
) -> None:
    """Rewrite a data set's training captions: by a language model, by rules, or from a published file.

    Answers are kept as they come: a killed command asks only for what is missing. `--set augmentation=0.3` trains with
    them. Rewrite before training: what was trained on the data set before counts as trained on other data.

    Example: `retable audio augment dcase2023 --model gpt-3.5-turbo`
    """
    from retable.tasks.audio.prepare.prepare import folder
    from retable.tasks.audio.rewrite.augment import Endpoint, augment_dataset

    asked = None
    if model:
        asked = Endpoint(model=model, prompt=prompt, requests_per_minute=rate, concurrent=concurrent, price=price)
    provider = asked or rules or variations
    if provider is None or [bool(asked), bool(rules), bool(variations)].count(True) != 1:
        raise UserError("augment: name one of --rules, --model and --variations")
    if out:
        check_target(out, overwrite)
    with progress_bar(f"rewriting {data}") as show:
        report = augment_dataset(folder(Storage.open(storage), data), provider, seed, out, show)
    print_lines((*report.dropped, *report.failed), to=errors)
    console.print(f"{data}: {report}", markup=False)
    if report.failed:
        raise typer.Exit(1)


@app.command()
def submit(
    runs: Annotated[
        list[str],
        typer.Argument(help="Runs, files of `retable audio export`, or models of the zoo; several are averaged."),
    ],
    captions: Annotated[Path, typer.Option(help="A CSV with a column caption: retrieval_captions.csv.")],
    audio: Annotated[Path, typer.Option(help="The folder of the recordings.")],
    out: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The CSV to write.")] = Path(
        "submission.csv"
    ),
    overwrite: Overwrite = False,
    storage: Where = "results",
    device: Device = "",
) -> None:
    """Write the ten best recordings of each caption in the challenge's form.

    Recordings that cannot be decoded are named and left out; of others, such as silent ones, a note says what is odd.

    Example: `retable audio submit passt-scenes --captions retrieval_captions.csv --audio retrieval_audio`
    """
    from retable.tasks.audio.tools.challenge.submission import submit as write
    from retable.tasks.audio.tools.search.opening import open_embedder

    check_target(out, overwrite)
    where = Storage.open(storage)
    models = [open_embedder(run, where, device).network for run in runs]
    with progress_bar(f"ranking {audio}") as show:
        left_out = write(models, captions, audio, out, show)
    console.print(str(out), markup=False)
    print_lines(left_out)


@app.command()
def export(
    run: Run,
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file to write, e.g. sounds.safetensors.")],
    epoch: Epoch = 0,
    licence: Licence = "",
    classes: Annotated[
        Path | None,
        typer.Option(help="Labelled recordings such as ESC-10: the fold that scenes held out, else 5, judges."),
    ] = None,
    overwrite: Overwrite = False,
    storage: Where = "results",
) -> None:
    """Write a trained model with its config and provenance to one file, which `--model` takes on any machine.

    Example: `retable audio export latest sounds.safetensors`
    """
    from retable.platform import api
    from retable.platform.models.export import export
    from retable.tasks.audio.export import test_folds
    from retable.tasks.audio.tools.search.classes import fold_of, judge, line
    from retable.tasks.audio.tools.search.opening import open_embedder

    if classes and epoch:
        raise UserError("--classes: judges the last epoch; leave --epoch out")
    score: dict[str, Any] = {}
    if classes:
        check_target(file, overwrite)
        where = Storage.open(storage)
        trained = api.load(run, where, task="audio")
        folds, all_known = test_folds(trained.config, where)
        fold = fold_of(folds, run)
        score = judge(open_embedder(run, where), classes, fold, trained.config)
        score["on"] += "" if all_known else "; what the weights that it started from were trained on is not known"
        console.print(line(score), markup=False)
    export("audio", run, storage, file, overwrite=overwrite, epoch=epoch, licence=licence, score=score)
