"""Where a number is from: commit, versions, machine, command."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import retable
from retable.platform.errors import redact_command

PACKAGES = ("retable", "ray", "torch", "numpy", "pyarrow", "gymnasium", "mujoco", "monai", "timm", "transformers")


@functools.cache
def _git() -> dict[str, Any]:
    """Return the commit of the checkout that this code runs from, and whether it has changes; empty outside of one.

    In a job there is no `.git`: `retable submit` sends the commit along.
    """
    here = Path(retable.__file__).absolute().parents[1]
    if not (here / ".git").exists() and re.fullmatch(r"[0-9a-f]{40,64}", os.environ.get("RETABLE_COMMIT", "")):
        return {"commit": os.environ["RETABLE_COMMIT"], "dirty": os.environ.get("RETABLE_DIRTY") == "1"}
    return _git_of(here)


def checkout(folder: Path) -> dict[str, str]:
    """Return the variables by which a job knows the commit of the uploaded folder; none outside of a checkout."""
    found = _git_of(folder)
    return {"RETABLE_COMMIT": found["commit"], "RETABLE_DIRTY": str(int(found["dirty"]))} if found else {}


def _git_of(here: Path) -> dict[str, Any]:
    if not (here / ".git").exists():  # installed: the repository around it, if any, is another's
        return {}

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=True).stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(git("status", "--porcelain").strip())}
    except (OSError, subprocess.CalledProcessError):
        return {}


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that shape numbers, where installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def code() -> dict[str, str]:
    """Return a digest of each part of the code that this process imports: `platform`, `tasks/rl`, ...

    Tasks of RETABLE_TASKS are among them. Where a part differs on another machine, so may its numbers.
    """
    import retable.tasks

    parts = {name: Path(retable.__path__[0], name) for name in ("platform", "search_spaces", "serve")}
    for place in reversed(list(retable.tasks.__path__)):  # the first one of a name is the one that is imported
        parts |= {f"tasks/{each.parent.name}": each.parent for each in Path(place).glob("*/__init__.py")}
    found = {}
    for name, folder in sorted(parts.items()):
        digest = hashlib.sha256()
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder).as_posix()}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
        found[name] = digest.hexdigest()
    return found


def device_name() -> str:
    """Return the name of the device that numbers of seconds belong to: GPU, where there is one, and processor."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {processor_name()}"
    return processor_name()


def processor_name() -> str:
    """Return the name of this machine's processor and the number of its cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"


def here() -> dict[str, str]:
    """Return where this process runs: what a worker says of itself, as the driver may run elsewhere."""
    return {"device": device_name(), "system": platform.platform(), "host": platform.node()}


def collect() -> dict[str, Any]:
    """Return the provenance of what this process is about to do; its command is kept without secrets."""
    return {
        **_git(),
        "versions": versions(),
        **here(),
        "command": redact_command([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
