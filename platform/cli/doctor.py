"""The checks of `retable doctor`."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retable.platform.errors import UserError, redact
from retable.platform.execute.session import temporary_folder
from retable.platform.spec import extras
from retable.platform.spec.task import names
from retable.platform.store.provenance import processor_name, versions
from retable.platform.store.storage import Storage


@dataclass(frozen=True)
class Line:
    """One thing that was checked."""

    good: bool
    text: str
    optional: bool = False
    """Not there, and needed for some uses only."""


def checks(storage: str) -> Iterator[Line]:
    """Check this machine, one line a check; a failed one names its remedy."""
    installed = versions()
    yield Line(True, ", ".join(f"{name} {version}" for name, version in installed.items()))
    yield Line(True, processor_name())
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield Line(True, f"GPUs: {', '.join(gpus) or 'none; trainings run on the CPU'}")
    yield from extras_checks()
    yield from storage_checks(storage)
    yield from ray_checks()


def extras_checks() -> Iterator[Line]:
    """Return which optional packages are missing, for each task, serving, development and clusters."""
    wanted = [*names(), *(extra for extra in extras.extras() if extra not in names())]
    for extra in wanted:
        lacking = extras.missing(extra)
        remedy = f"lacks {', '.join(lacking)}: pip install 'retable[{extra}]'" if lacking else "can be used"
        yield Line(True, f"{extra}: {remedy}", optional=bool(lacking))
    tools = [tool for tool in ("docker", "kubectl") if shutil.which(tool) is None]
    absent = f"this machine has no {' and no '.join(tools)}, which docs/cluster.md uses" if tools else "can be used"
    address = os.environ.get("RAY_ADDRESS")
    yield Line(True, f"cluster: RAY_ADDRESS={redact(address)}" if address else f"cluster: {absent}", bool(tools))


def storage_checks(storage: str) -> Iterator[Line]:
    """Write and read a file where everything will lie."""
    try:
        where = Storage.open(storage)
        where.check_writable()
        yield Line(True, f"storage {where} can be written")
        if where.is_local:
            free = shutil.disk_usage(where.root).free / 1e9
            yield Line(free > 5, f"storage has {free:.0f} GB free" + ("" if free > 5 else "; free some space"))
    except UserError as error:
        yield Line(False, str(error))


def ray_checks() -> Iterator[Line]:
    """Check for settings that make Ray hang, or open it to others."""
    for name in ("stat", "io", "types", "queue", "select", "platform"):
        if Path(f"{name}.py").exists() or Path(name, "__init__.py").exists():
            yield Line(False, f"{name} in this folder hides the standard library's; Ray's workers would never start")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if token.exists():
        private = not stat.S_IMODE(token.stat().st_mode) & 0o077
        yield Line(private, f"Ray's token {token} is " + ("private" if private else "readable by others; chmod 600 it"))
    home = Path("~").expanduser()
    if not os.access(home, os.W_OK):
        remedy = "set RAY_AUTH_TOKEN_PATH to a file that only you read, with a token in it"
        given = bool(os.environ.get("RAY_AUTH_TOKEN")) or token.exists()
        yield Line(given, f"{home} cannot be written" + ("" if given else f"; {remedy}"))
    try:
        if short := temporary_folder():
            yield Line(True, f"TMPDIR is too long for Ray's sockets; {short} is used")
    except UserError as error:
        yield Line(False, str(error))
    if os.environ.get("RAY_TRAIN_V2_ENABLED") == "0":
        yield Line(False, "RAY_TRAIN_V2_ENABLED=0 selects the old Ray Train; unset it")
    shared = shutil.disk_usage("/dev/shm").free / 1e9 if Path("/dev/shm").exists() else 0.0
    yield Line(
        shared > 0.5, f"/dev/shm has {shared:.1f} GB free" + ("" if shared > 0.5 else "; Ray would use slow disk")
    )
