"""Provenance of a number: commit, versions, machine, command."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retable.platform import commit
from retable.platform.errors import portable, redact_command

_PACKAGES = ("retable", "ray", "torch", "numpy", "pyarrow", "gymnasium", "mujoco", "monai", "timm", "transformers")
UNKNOWN = "commit not known"


@functools.cache
def _git() -> dict[str, object]:
    """Return the commit of the code that this process runs, and whether it has changes; empty where it is not known."""
    return commit.current(commit.code_root())


def own_folder(task: str) -> Path | None:
    """Return the folder of a task outside of this package; None of others, and where there is none."""
    import retable.tasks

    folder = next((path for path in (Path(root, task) for root in retable.tasks.__path__) if path.exists()), None)
    return None if folder is None or folder.is_relative_to(commit.code_root()) else folder


@functools.cache
def _own(task: str) -> dict[str, object]:
    """Return the commit of the repository that a task outside of this package lies in; empty where there is none."""
    folder = own_folder(task)
    if folder is None:
        return {}
    revision = commit.parsed(commit.of_folder(folder))
    return {"own": {"name": task, **revision}} if revision and revision["commit"] != _git().get("commit") else {}


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that shape numbers, where installed."""
    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def code() -> dict[str, str]:
    """Return a digest of each part of the code that this process imports: `platform`, `tasks/rl`, ...

    Tasks of RETABLE_TASKS are among them. Where a part differs on another machine, so may its numbers.
    """
    import retable.tasks

    return commit.digests(commit.code_root(), map(Path, retable.tasks.__path__))


@functools.cache
def _code() -> dict[str, str]:
    """Return `code()` as it was when this process first asked."""
    return code()


def placeless(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's provenance without the storage that its command names."""
    return {name: portable(str(value)) if name == "command" else value for name, value in made.items()}


def code_of(task: str) -> dict[str, str]:
    """Return the digests of the parts that can shape a task's numbers: `platform` and the task itself.

    A task imports no other, and what a search space chooses stands in the run's config.
    """
    return {name: digest for name, digest in _code().items() if name in ("platform", f"tasks/{task}")}


def differing(made: Mapping[str, object]) -> list[str] | None:
    """Return the parts of a run's code that differ from this process's; None where its provenance has no digests."""
    before = made.get("code")
    if not isinstance(before, dict) or not before:
        return None
    return [name for name, digest in before.items() if _code().get(name) != digest]


def name_of(made: Mapping[str, object], digits: int = 7) -> str:
    """Return what names the code of a provenance: `commit 1a2b3c4 and changes`; nothing where none was recorded.

    Without a commit it is the digest of the code.
    """

    def named(of: Mapping[str, Any]) -> str:
        return f"commit {str(of['commit'])[:digits]}{' and changes' if of.get('dirty') else ''}"

    own = made.get("own")
    whose = f"; {own.get('name')}: {named(own)}" if isinstance(own, dict) and own.get("commit") else ""
    if made.get("commit"):
        return named(made) + whose
    if made.get("code"):
        digest = hashlib.sha256(json.dumps(made["code"], sort_keys=True).encode()).hexdigest()
        return f"{UNKNOWN}; code {digest[:digits]}{whose}"
    return ""


def device_name() -> str:
    """Return the name of the device that numbers of seconds belong to: GPU, where there is one, and processor."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {processor_name()}"
    return processor_name()


def cores() -> int:
    """Return the number of cores that this process may use: a container or `taskset` may leave it fewer than all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """Return the name of this machine's processor and the number of cores that this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {cores()} cores"


def here() -> dict[str, str]:
    """Return where this process runs: device, operating system, host. The driver may run elsewhere."""
    return {"device": device_name(), "system": platform.platform(), "host": platform.node()}


def code_ran(task: str) -> dict[str, object]:
    """Return which code a task's numbers come from: `commit` and `dirty`, if known, `own` and `code`."""
    return {**_git(), **_own(task), "code": code_of(task)}


def collect(task: str = "") -> dict[str, object]:
    """Return the provenance of this process's work; its command is stored without secrets.

    Args:
        task: whose numbers; `code` then has the digests of its code.
    """
    program = Path(sys.argv[0])  # of `python -m retable.platform.cli`, as jobs run it, a file
    name = "retable" if program.match("platform/cli/__main__.py") else program.name
    return {
        **(code_ran(task) if task else _git()),
        "versions": versions(),
        **here(),
        "command": redact_command([name, *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
