"""Malformed invocations and damaged files: each ends in one clear line, at once, and nothing on the storage is lost.

The cases are products of the small tables below; `build/malformed.md` tells how each ended. They run in this process,
where starting Ray is a fault by itself: a mistake is to be told before.
"""

import contextlib
import io
import itertools
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from retable.platform.cli import app
from retable.platform.execute.scoring import predict_and_score
from retable.platform.plan.plan import compile_plan
from retable.platform.report.write import fill_and_keep, write_report
from retable.platform.spec.task import find
from retable.platform.store.query import list_runs
from retable.platform.store.storage import Storage
from tests import documents
from tests.platform.halves import fit

SECONDS = 60
"""Most that a case may take; a machine may be busy."""
TASKS = ("rl", "weather", "style", "audio")
HUGE, DIGITS, ALIEN = "x" * 5000, "9" * 400, "ſéed\N{SNOWMAN}\u202e"

# (command, words that make it whole) -> each gets an unknown option, and a word too many or too few.
COMMANDS = """list|plan|reproduce|train rl|score latest|sweep rl|report|zoo|serve|predict rl x.npy -o out|new paper
doctor|runs|show latest|diff latest latest|gc|status|tables|data make rl --env Hopper|data check weather
data convert rl x.hdf5|data import audio folder|rl export latest x|rl play latest|weather submit latest
weather netcdf latest|weather weights x|weather export latest x|style video a.mp4 b.mp4 --style c.jpg|style image a.jpg
style compare latest a.jpg|style weights x|style export latest x|audio index folder|audio search words|audio weights x
audio finetune x.csv --from latest|audio augment data|audio submit latest|audio export latest x|data|rl
runs pack|runs unpack x|verify x"""
INCOMPLETE = """nonsense|plan --scale|train|train rl extra|score|predict|predict rl|new|show|diff latest|data nonsense
data make|data make nothing|data check|data convert|data import rl|rl|rl nonsense|rl export|rl export latest
weather nonsense|style image|style nonsense|style video a.mp4|audio
audio search --nonsense|audio nonsense|--nonsense|é"""
NUMBERS = {
    "plan": ("--scale",),
    "reproduce rl": ("--workers", "--cpus-per-run", "--gpus-per-run", "--checkpoint-every", "--stack"),
    "train rl": ("--workers", "--keep"),
    "sweep rl": ("--samples",),
    "runs": ("--limit",),
    "gc": ("--older-than",),
    "verify x": ("--sample", "--seed", "--tolerance"),
    "serve rl": ("--port",),
    "rl play latest": ("--episodes",),
    "data make rl --env Hopper": ("--transitions", "--noise"),
}
NO_NUMBERS = ("", "many", "-1", "1.5.2", "nan", ALIEN)
FIELDS = ("sed=1", "seed", "=1", "seed=", "seed=one", "seed=[1]", "seed=1.5", "epochs=0", "epochs=-1", f"{ALIEN}=1")
FIELDS += (f"{HUGE}=1", "seed=true", "seed.x=1", "epochs=null", "batch.=1", "init=paren", "init.sha256=1", "init.x=1")
NAMES = (
    "",
    "rl/",
    "/figure1",
    "rl/figure9",
    "rl/figure1/dense",
    "rll",
    ALIEN,
    HUGE,
    "../rl",
    "rl/figure1 ",
    "RL",
    "--",
)
STORAGES = (
    "",
    " ",
    "nowhere://x",
    "s3://",
    "file://host/x",
    "a\nb",
    "\x00",
    f"/tmp/{HUGE}",
    "/dev/null",
    "/dev/null/x",
)
READERS = ("runs", "show latest", "diff latest latest", "gc", "status", "tables", "report", "score latest")
READERS += ("rl export latest x.rtsn", "weather netcdf latest", "style export latest x", "audio export latest x")
WRITERS = ("reproduce line", "train line", "sweep line_grid", "data make style")
RUNS = (
    "",
    "zz",
    "0" * 16,
    HUGE,
    ALIEN,
    "../x",
    "line/table1",
    "line/table9/fast",
    "line/table1/nobody",
    "latest/x",
    "-1",
)
NAMERS = ("show", "diff latest", "score", "rl play", "weather netcdf", "audio submit")
# Commands that read a file or folder of the user's: `{}` stands for it.
OPENERS = """predict rl {} -o out|predict style {} -o out|predict audio {} -o out|predict weather {} -o out
style image {} --style great_wave --out o.png|style image lake.jpg --style {} --out o.png|style weights {}
style video {} o.mp4 --style great_wave|audio search --like {}|audio search rain --index {}|audio weights {}
audio finetune {} --from latest|audio index {}|audio augment {}|weather weights {}|sweep --space {}|plan --cluster {}
data check rl {}|data check weather {}|data check style {}|data check audio {}|data convert rl {}|data import rl {}
data import weather {}|data import style {} --name x|data import audio {}|new paper --table {}|submit --fetch {}
runs unpack {}|verify {}"""
FOREIGN = {
    "absent": None,
    "empty": b"",
    "text": "kein Bild, keine Tabelle ☃".encode(),
    "half.png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00",
    "half.safetensors": b"\xff" * 8 + b'{"a"',
    "deep.json": b"[" * 100_000,
    "zip.npz": b"PK\x03\x04" + b"\x00" * 40,
    "half.h5": b"\x89HDF\r\n\x1a\n" + b"\x00" * 40,
}
# Files of a storage that are damaged in each of these ways, and what then reads them.
FILES = """runs/line/*/result.json|runs/line/*/config.json|runs/line/*/provenance.json|runs/line/*/metrics.jsonl
runs/line/*/views/*/scores.json|runs/line/*/weights/*.safetensors|tables/*.json|data/line/points/dataset.json
.index/line.packed"""
DAMAGES = {
    "empty": b"",
    "half": lambda data: data[: len(data) // 2],
    "foreign": b"\xff\xfe\x00PK\x03\x04",
    "wrong type": b'{"data": [], "weights": 3, "metrics": [], "config": 7, "rows": 1, "cells": "x", "views": null}',
    "a list": b"[1, 2]",
    "deep": b"[" * 100_000,
}
LOOKERS = ("runs", "show latest", "plan line", "reproduce line/figure1", "report", "gc", "tables", "status")


@dataclass
class Outcome:
    """How a case ended."""

    case: str
    code: object
    stdout: str
    stderr: str
    seconds: float
    fault: str = ""


class Started(BaseException):
    """Something began that a mistake should have stopped."""


def split(table):
    return [tuple(part.split()) for line in table.splitlines() for part in line.split("|")]


def call(words):
    """Run the command in this process, within the time."""
    out, said, before = io.StringIO(), io.StringIO(), time.monotonic()

    def late(*_):
        raise Started(f"no end after {SECONDS} s")

    old, argv = signal.signal(signal.SIGALRM, late), sys.argv
    signal.alarm(SECONDS)
    try:
        sys.argv = ["retable", *words]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            app.main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        code = f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        sys.argv = argv
    return Outcome(" ".join(words), code, out.getvalue(), said.getvalue(), time.monotonic() - before)


def fault_of(found, codes, names=""):
    """Return what is wrong with how a case ended; nothing where that is as it should be."""
    if "Traceback" in found.stdout + found.stderr or not isinstance(found.code, int):
        return f"no clear end: {found.code}"
    if found.code not in codes:
        return f"code {found.code}"
    lines = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    helped = "Usage: " in found.stdout + found.stderr and found.code == 2
    if found.code == 2 and not helped and (len(lines) != 1 or found.stderr.count("\n") != 1 or len(lines[0]) > 1500):
        return "not one line"
    if names and found.code == 2 and not helped and names not in found.stderr:
        return f"does not name {names!r}"
    return ""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A storage with a filled table and figure of the toy, made without Ray."""
    storage = Storage.open(tmp_path_factory.mktemp("made") / "results")
    line = find("line")
    tables = {f"line/{name}": (line, table) for name, table in line.tables().items()}
    for training in compile_plan(tables, storage).missing:
        training.folder.begin(training.config, line.version, {"scale": "smoke"})
        fit(storage, training.config, training.folder, training.keep, line)
    for scoring in compile_plan(tables, storage).unscored:
        assert predict_and_score(line, scoring.config, scoring.view, scoring.folder) is None
    fill_and_keep(compile_plan(tables, storage))
    write_report(storage)
    with storage.snapshot() as taken:
        list_runs(storage)
        compile_plan(tables, storage)
        taken.keep_index(storage.write, 0)
    return storage


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A working directory with foreign files, and a copy of the storage that is the default one."""
    shutil.copytree(made.root, tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    for name, data in FOREIGN.items():
        if data is not None:
            Path(name).write_bytes(data)
    Path("folder").mkdir()
    shutil.copy(next((documents.ROOT / "docs").rglob("*.jpg"), documents.ROOT / "README.md"), "lake.jpg")

    def started(*_, **__):
        raise Started("Ray was to be started")

    monkeypatch.setattr(ray, "init", started)
    monkeypatch.setenv("RETABLE_PATIENCE", "0")
    return tmp_path


def content(folder):
    """Return the bytes of all files that nothing may lose: all but the index and the report, which are made anew."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    kept = {path: path.read_bytes() for path in files}
    return {path: data for path, data in kept.items() if not {".index", "report"} & {*path.parts}}


def lost(before, after):
    """Name a file of the storage that is gone or was changed; what was added is none."""
    return next((f"lost {path}" for path, data in before.items() if after.get(path) != data), "")


def invocations():
    """Yield the words of each malformed invocation, the codes that it may end with, and what the line must name."""
    for words in split(COMMANDS):
        yield (*words, "--nonsense"), (2,), "--nonsense"
    for words in split(INCOMPLETE):
        yield words, (2,), ""
    for command, options in NUMBERS.items():
        for option, value in itertools.product(options, NO_NUMBERS):
            yield (*command.split(), f"{option}={value}"), (2,), option.strip("-").split("-")[0]
    for task, change in itertools.product(TASKS, FIELDS):
        yield ("train", task, "--set", change), (2,), ""
    for name in NAMES:
        yield ("plan", name) if name != "--" else ("plan", "--", "--"), (2,), ""
        yield ("train", name) if name != "--" else ("train", "--", "--"), (2,), ""
    for command, where in itertools.product((*READERS, *WRITERS, "plan line"), STORAGES):
        if command == "plan line" and where.startswith("/dev/null"):
            continue  # nothing is there: a plan writes nothing
        yield (*command.split(), "--storage", where), (2,), ""
    for command, run in itertools.product(NAMERS, RUNS):
        if (command, run) == ("score", "line/table1"):  # a table is scored
            continue
        yield (*command.split(), *(("--",) if run == "-1" else ()), run), (2,), ""
    for words, file in itertools.product(split(OPENERS), (*FOREIGN, "folder")):
        decoded = words[:2] == ("style", "video") and file == "half.h5"  # FFmpeg takes it for a frame
        codes = (0, 1, 2) if words[0] == "submit" or decoded else (1, 2)
        yield tuple(word.replace("{}", file) for word in words), codes, ""


def write_table(outcomes, name):
    """Write how each case ended, faults first."""
    build = documents.ROOT / "build"
    build.mkdir(exist_ok=True)
    lines = [f"# Malformed: {name}", "", f"{len(outcomes)} cases, {sum(bool(o.fault) for o in outcomes)} faults.", ""]
    lines += ["| case | code | seconds | said | fault |", "|---|---|---|---|---|"]
    for each in sorted(outcomes, key=lambda each: not each.fault):
        said = " ".join((each.stderr or each.stdout).split())[:300]
        cells = [ascii(each.case[:120]), str(each.code), f"{each.seconds:.1f}", said, each.fault]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    (build / f"malformed-{name}.md").write_text("\n".join(lines) + "\n", errors="replace")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_malformed_invocation_is_one_line(place):
    before, outcomes = content("results"), []
    for words, codes, named in invocations():
        found = call(words)
        started = isinstance(found.code, str) and "Ray was to be" in found.code
        found.fault = "" if started and words[0] == "predict" else fault_of(found, codes, named)  # files go to Ray
        found.fault = found.fault or lost(before, content("results"))
        outcomes.append(found)
    write_table(outcomes, "invocations")
    assert len(outcomes) >= 250
    assert not [(each.case[:100], each.fault, each.stderr[-300:]) for each in outcomes if each.fault]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_damaged_file_is_told_and_nothing_is_lost(made, place):
    outcomes = []
    for pattern, (how, damage) in itertools.product([words[0] for words in split(FILES)], DAMAGES.items()):
        shutil.rmtree("results")
        shutil.copytree(made.root, "results")
        file = sorted(Path("results").glob(pattern))[0]
        file.write_bytes(damage(file.read_bytes()) if callable(damage) else damage)
        before = content("results")
        for command in LOOKERS:
            found = call(command.split())
            found.case = f"{pattern} {how}: {command}"
            started = isinstance(found.code, str) and "Ray was to be" in found.code
            found.fault = "" if started and "reproduce" in command else fault_of(found, (0, 2))
            found.fault = found.fault or lost(before, content("results"))
            outcomes.append(found)
    write_table(outcomes, "files")
    assert not [(each.case, each.fault, each.stderr[-300:]) for each in outcomes if each.fault]
