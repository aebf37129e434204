"""Seconds that commands take to start, and to answer over a storage that is full.

Each runs in a process of its own, three times; the least counts, as another process may be in the way. Beside the
seconds on the clock stand those of the processor, which heed other work less.

`RETABLE_BENCH_STORAGE=FOLDER` names a storage on which all tables are filled at the smoke scale; it is copied, and the
copy used. Without one, only what needs none is measured.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

TIMES = 3
STARTS = (
    "--version",
    "--help",
    "list",
    "reproduce --help",
    "data --help",
    "data make --help",
    "rl --help",
    "rl export --help",
    "zoo",
    "doctor --help",
)
"""Commands that need no storage."""
ASKED = ("runs", "tables", "show latest", "status", "plan rl/table1 --scale smoke", "plan --scale smoke", "report")
"""Commands that read a storage."""


def timed(words: str, **variables: str) -> tuple[float, float]:
    """Return the seconds on the clock and of the processor that a command took."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", "from retable.platform.cli.app import main; main()", *words.split()]
    own = {"RETABLE_TASKS": ""}  # the four papers alone, not the toy tasks of other benchmarks, which import torch
    done = subprocess.run(command, env=os.environ | own | variables, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"retable {words}: {done.stderr[-300:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, used


def least(words: str, **variables: str) -> dict[str, float]:
    """Return the least seconds of several times."""
    every = [timed(words, **variables) for _ in range(TIMES)]
    return {"clock": min(clock for clock, _ in every), "processor": min(used for _, used in every)}


def measure() -> dict[str, Any]:
    results: dict[str, Any] = {}
    full = os.environ.get("RETABLE_BENCH_STORAGE", "")

    def note(name: str, words: str, **variables: str) -> None:
        results[name] = least(words, **variables)
        print(
            f"{name}: {results[name]['clock']:.2f} s, {results[name]['processor']:.2f} s of the processor", flush=True
        )

    with tempfile.TemporaryDirectory(prefix="retable-bench-") as folder:
        for words in STARTS:
            note(words, words)
        completing = {"_RETABLE_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
        note("completion of `retable rl`", "", **completing, COMP_WORDS="retable rl ")
        if full:
            storage = {"RETABLE_STORAGE": f"{folder}/results"}
            shutil.copytree(full, f"{folder}/results", ignore=shutil.ignore_patterns(".ray"))
            every = "reproduce --scale smoke"
            clock, used = timed(every, **storage)  # fills what another version kept
            results["reproduce of all tables, the first over runs that are there"] = {"clock": clock, "processor": used}
            note("reproduce of all tables, again", every, **storage)
            for words in ASKED:
                note(words, words, **storage)
    return results
