"""Steps, the clock they run against, and the report that is on the disk after each of them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from benchmarks.gpu.measure import as_pytorch_starts, free

Value = float | str | bool


@dataclass(frozen=True)
class Where:
    """Place and size of a part's steps."""

    device: str
    tiny: bool
    """Every line, at sizes that say nothing of speed."""
    seconds: float
    """How long one timing takes; 0: a single call."""

    @property
    def gpu(self) -> bool:
        """Whether this is a CUDA device."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Step:
    """One check or one measurement."""

    name: str
    run: Callable[[], Mapping[str, Value]]
    """Returns named results; a check's have `ok`, and `ok` False fails the command."""
    rates: Mapping[str, str] = field(default_factory=dict)
    """Name in the report's `rates` -> the result it is; the highest of all steps counts. Only for settings that leave
    numbers as published: plans take their hours from it."""


class Part(Protocol):
    """A module of this package. To make the steps must cost nothing: those that time is too short for are listed."""

    def steps(self, where: Where) -> Iterator[Step]:
        """Yield the steps: checks first, then measurements, the most valuable first."""


class OutOfTime(BaseException):
    """A part's time is over. Not an `Exception`, as libraries catch these while they compile."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in the block once so many seconds are over."""

    def over(signal_number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Report:
    """Collects results, prints them as they come, and writes `gpu.json` and `gpu.md` anew after every step."""

    def __init__(self, folder: Path, where: Where) -> None:
        self.folder, self.sound = folder, True
        self._content: dict[str, Any] = {"tiny": where.tiny, "machine": machine(where), "rates": {}, "rates_from": {}}
        self._content["parts"] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def begin(self, part: str) -> None:
        """Start a part."""
        print(f"\n{part}", flush=True)
        self._content["parts"][part] = []

    def add(self, part: str, step: Step, results: Mapping[str, Value], seconds: float) -> None:
        """Take what a step gave; `failed` and a false `ok` are remembered for the exit code."""
        self.sound &= "failed" not in results and bool(results.get("ok", True))
        print(f"  {step.name}: {', '.join(f'{key} {shown(value)}' for key, value in results.items())}", flush=True)
        row = {"step": step.name, "results": dict(results), "seconds": round(seconds, 2)}
        self._content["parts"][part].append(row)
        rates = self._content["rates"]
        for rate, key in step.rates.items():
            if key in results and float(results[key]) > rates.get(rate, 0.0):
                rates[rate], self._content["rates_from"][rate] = float(results[key]), step.name
        self.write()

    def write(self) -> None:
        """Write both files, each in one piece."""
        for name, text in (
            ("gpu.json", json.dumps(self._content, indent=2) + "\n"),
            ("gpu.md", markdown(self._content)),
        ):
            draft = self.folder / f".{name}"
            draft.write_text(text)
            os.replace(draft, self.folder / name)


def run_part(name: str, load: Callable[[], Part], where: Where, report: Report, seconds: float) -> None:
    """Run a part's steps one after another until its time is over. A step that fails is noted, and the next goes on."""
    end = time.monotonic() + seconds
    report.begin(name)
    pending = load_steps(load, where)
    for step in pending:
        start = time.monotonic()
        as_pytorch_starts()
        results = outcome(step, end - start)
        report.add(name, step, results, time.monotonic() - start)
        free(where)
        if time.monotonic() >= end:
            break
    for step in pending:
        report.add(name, step, {"skipped": f"not reached in {seconds / 60:.3g} minutes"}, 0.0)


def load_steps(load: Callable[[], Part], where: Where) -> Iterator[Step]:
    """Yield a part's steps; a part that cannot be imported, or that fails between steps, ends with a step that says so.

    The order of its steps is the part's; what they need is imported here, and is not the next part's concern.
    """
    try:
        yield from load().steps(where)
    except Exception as error:
        reason = error

        def fail() -> Mapping[str, Value]:
            raise reason

        yield Step("to come to its next step", fail)


def outcome(step: Step, seconds: float) -> Mapping[str, Value]:
    """Run a step; return its results, or a line that says why there are none."""
    try:
        with limit(seconds):
            return step.run()
    except OutOfTime:
        return {"skipped": f"stopped after {max(seconds, 0):.0f} s: the part's time was over"}
    except Exception as error:
        lines = str(error).strip().splitlines()
        return {"failed": f"{type(error).__name__}: {lines[0][:300] if lines else ''}"}


def machine(where: Where) -> dict[str, Any]:
    """Return what numbers belong to: device, versions, commit, time."""
    import torch

    from retable.platform.store.provenance import collect, processor_name

    facts: dict[str, Any] = {**collect(), "processor": processor_name(), "torch": torch.__version__}
    facts |= {"python": sys.version.split()[0], "cuda": torch.version.cuda}
    facts["device"] = "CPU"
    if where.gpu:
        properties = torch.cuda.get_device_properties(where.device)
        facts |= {"device": properties.name, "gpus": torch.cuda.device_count(), "driver": driver()}
        facts |= {
            "memory, GB": round(properties.total_memory / 1e9, 1),
            "multiprocessors": properties.multi_processor_count,
        }
    return facts


def driver() -> str:
    """Return the version of NVIDIA's driver, or that it is unknown."""
    import subprocess

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def shown(value: Value) -> str:
    """Return a result as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, (int, float)):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return value


def markdown(content: Mapping[str, Any]) -> str:
    """Return the report as Markdown: the machine, the rates, and for each part tables of steps with equal results."""
    machine = content["machine"]
    title = f"# {machine['device']}, PyTorch {machine['torch']}"
    lines = [title, "", f"{machine['started']}, Python {machine['python']}, CUDA {machine['cuda']}."]
    if content["tiny"]:
        lines += ["", "`--tiny`: sizes at which every line runs; none of these speeds means anything."]
    if content["rates"]:
        rates = [(name, shown(value), content["rates_from"][name]) for name, value in content["rates"].items()]
        lines += ["", "## Rates that plans use", "", *table(("rate", "a second", "measured as"), rates)]
    for part, rows in content["parts"].items():
        lines += ["", f"## {part}"]
        for keys, alike in itertools.groupby(rows, key=lambda row: tuple(row["results"])):
            body = [(row["step"], *map(shown, row["results"].values()), f"{row['seconds']:.1f}") for row in alike]
            lines += ["", *table(("step", *keys, "seconds"), body)]
    return "\n".join(lines) + "\n"


def table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        for row in (head, ("---",) * len(head), *body)
    ]
