"""`retable audio index` of 20,000 short files in one go, and searches while a fifth of them is embedded again.

Processor time and memory are of the command with all its processes: proportional set sizes, sampled, at their highest.
The files are bursts of noise of half a second at 44.1 kHz, of as many pitches; the model is the zoo's.
`RETABLE_BENCH_FILES=1000` takes fewer.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import soundfile

from benchmarks import serving

FILES = int(os.environ.get("RETABLE_BENCH_FILES", 20_000))
RATE, SECONDS, FOLDER = 44_100, 0.5, 500
COMMAND = (sys.executable, "-m", "retable.platform.cli", "audio")


def write(folder: Path, numbers: range, seed: int) -> None:
    """Write bursts, 500 in a folder."""
    draw = np.random.default_rng(seed)
    clock = np.arange(int(RATE * SECONDS)) / RATE
    for number in numbers:
        pitch, fall = draw.uniform(100, 8000), draw.uniform(2, 30)
        sound = np.exp(-fall * clock) * (np.sin(2 * np.pi * pitch * clock) + 0.3 * draw.normal(size=len(clock)))
        path = folder / f"{number // FOLDER:02d}" / f"{number:05d}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, 0.5 * sound, RATE, subtype="PCM_16")


def spent() -> float:
    """Return the processor seconds of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def watched(*arguments: str, meanwhile: Any = None) -> dict[str, float]:
    """Run an update; return its seconds, by the clock and of the processor, and its highest memory, MB."""
    cpu, start, most = spent(), time.perf_counter(), 0
    process = subprocess.Popen([*COMMAND, "index", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if meanwhile:
            meanwhile()
        else:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            most = max(most, sum(serving.pss(member) for member in family))
            time.sleep(0.2)
    if process.returncode:
        raise RuntimeError(f"retable audio index ended with {process.returncode}")
    return {"s": time.perf_counter() - start, "cpu_s": spent() - cpu, "mb": most / 1e6}


def search(index: Path) -> float:
    """Return the seconds that a search takes, as people run it."""
    start = time.perf_counter()
    subprocess.run(
        [*COMMAND, "search", "a dog barks", "--index", str(index), "--json"], check=True, capture_output=True
    )
    return time.perf_counter() - start


def measure() -> dict[str, float]:
    """Index all files, search; then index a fifth of them again, and search meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        sounds, index = Path(name, "sounds"), Path(name, "index")
        sounds.mkdir()
        write(sounds, range(FILES), 0)
        common = (str(sounds), "--out", str(index), "--model", "passt-scenes")
        first = watched(*common)
        alone = [search(index) for _ in range(5)]
        write(sounds, range(FILES // 5), 1)
        beside: list[float] = []
        second = watched(*common, meanwhile=lambda: beside.append(search(index)))
        nothing = watched(*common)
    return {
        "files": FILES,
        "one go, s": first["s"],
        "one go, processor ms a file": 1000 * first["cpu_s"] / FILES,
        "one go, memory, MB": first["mb"],
        "search, s": statistics.median(alone),
        "a fifth again, with searches, s": second["s"],
        "searches meanwhile": len(beside),
        "search meanwhile, s": statistics.median(beside),
        "nothing to do, s": nothing["s"],
    }
