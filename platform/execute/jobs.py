"""A command sent to a cluster as a Ray job: a thin convenience over Ray's own `JobSubmissionClient`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retable.platform import commit, ray_compat
from retable.platform.console import console, errors
from retable.platform.errors import UserError, disk_errors, redact
from retable.platform.execute.session import TOKEN_REMEDY, Interrupt
from retable.platform.store.storage import Storage

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_DASHBOARD = "http://127.0.0.1:8265"
_EXCLUDED = (
    *(".git", ".venv", "venv", "results", "build", "dist", "node_modules", "*.egg-info", "__pycache__"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".index", ".ray"),
)
"""Patterns of paths that are never uploaded, besides those in `.gitignore` and `.rayignore`."""
COMMANDS = ("reproduce", "train", "sweep", "score", "report", "plan", "predict", "doctor")
"""Commands that make sense as a job."""
_UPLOAD = 500 * 2**20
"""Bytes that Ray takes at most of a folder; ours is counted unpacked, as photographs and weights do not shrink."""
ANSWER = 10.0
"""Seconds that a dashboard has to answer."""
AGENT = 60.0
"""Seconds that a cluster may take from its start until a node takes jobs."""


def dashboard(address: str) -> str:
    """Return the address of a cluster's dashboard: the one given, or RAY_API_SERVER_ADDRESS, or this machine's.

    Raises:
        UserError: where it is the address of something else.
    """
    url = (address or os.environ.get("RAY_API_SERVER_ADDRESS", "") or _DASHBOARD).rstrip("/")
    if re.fullmatch(r"https?://[^/\s]+", url):
        return url
    host = re.match(r"(?:\w+://)?([^:/\s]+)", url)
    remedy = f"write http://{host[1] if host else 'HEAD'}:8265"
    raise UserError(f"--address {url}: not the address of Ray's dashboard, which takes jobs; {remedy}")


def _use_token() -> None:
    """Make Ray's client send the user's token, which with an address it does only on request."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if os.environ.get("RAY_AUTH_TOKEN") or path.exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextmanager
def _readable_errors(address: str) -> Iterator[None]:
    """Convert errors of a dashboard into one line.

    Raises:
        UserError: saying what answered instead.
    """
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        raise UserError(f"{address}: refuses this token, or the lack of one; {TOKEN_REMEDY}") from error
    except (requests.exceptions.RequestException, ConnectionError) as error:
        remedy = "is the tunnel to the head open (`ray dashboard cluster.yaml`)?"
        raise UserError(f"{address}: no Ray dashboard answers there; {remedy}") from error
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{address}: {str(error).strip().splitlines()[-1]}") from error


def ask(address: str, path: str) -> Any:
    """Return a dashboard's answer to a request, as plain data.

    Raises:
        UserError: where none answers, or it refuses.
    """
    _use_token()
    import requests
    from ray.exceptions import AuthenticationError

    with _readable_errors(address):
        headers = ray_compat.auth_headers()
        answer = requests.get(address + path, headers=headers, timeout=ANSWER, allow_redirects=False)
        if answer.status_code in (401, 403):
            raise AuthenticationError(answer.text)
        if answer.status_code != 200:
            raise ValueError(f"answers {answer.status_code}; is it Ray's dashboard?")
        try:
            return answer.json()
        except ValueError as error:
            raise ValueError("answers something else than Ray's dashboard does") from error


def connect(address: str) -> JobSubmissionClient:
    """Return a client of the cluster whose dashboard answers at an address.

    Raises:
        UserError: where none does.
    """
    ask(address, "/api/version")  # the client itself would wait without limit for a server that does not answer
    from ray.job_submission import JobSubmissionClient

    for name in (
        "ray",
        "ray.dashboard.modules.dashboard_sdk",
        "ray.dashboard.modules.job.sdk",
    ):  # it says each file that it leaves out
        logging.getLogger(name).setLevel(logging.ERROR)
    with _readable_errors(address):
        return JobSubmissionClient(address)


def split_storage(words: Sequence[str], storage: str) -> tuple[list[str], str]:
    """Return a command without its `--storage`, and the storage it is to use: of one without a value, none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--storage", nargs="?", const="", default=storage)
    given, rest = parser.parse_known_args(words)
    return rest, given.storage


def _check_shared(storage: str) -> None:
    """Refuse a storage that the nodes of a cluster cannot share; print the requirements of one that they may.

    Raises:
        UserError: with the remedy.
    """
    if "://" in storage and not storage.startswith("file://"):
        Storage.open(storage)  # a mistake in the URI is told here, not by the job
        return
    if not os.path.isabs(storage.removeprefix("file://")):
        shared = "name a bucket (s3://...), or the absolute path of a folder that every node mounts"
        raise UserError(f"--storage {storage or '(none)'}: a folder of this machine, which no node sees; {shared}")
    errors.print(f"note: --storage {storage}: every node is asked whether it sees this folder", markup=False)


def environment(storage: str, folder: Path) -> dict[str, str]:
    """Return the variables that a job gets: where its storage is, which tasks there are, and the commit.

    Raises:
        UserError: where RETABLE_TASKS names a folder that is not uploaded.
    """
    variables = {"RETABLE_STORAGE": storage}
    if made := commit.of_checkout(folder):
        variables[commit.VARIABLE] = made
    entries = []
    for entry in filter(None, os.environ.get("RETABLE_TASKS", "").split(os.pathsep)):
        path = Path(os.path.abspath(entry))
        if path.exists() and not path.is_relative_to(folder):
            raise UserError(
                f"RETABLE_TASKS names {path}, which is outside of {folder}; use --working-dir, or move it there"
            )
        entries.append(str(path.relative_to(folder)) if path.exists() else entry)
    return variables | ({"RETABLE_TASKS": os.pathsep.join(entries)} if entries else {})


def _check_upload(folder: Path) -> None:
    """Refuse a folder larger than Ray takes, before it is packed.

    Raises:
        UserError: naming its largest files.
    """
    sizes = {path: path.stat().st_size for path in ray_compat.uploaded(folder, _EXCLUDED)}
    if sum(sizes.values()) <= _UPLOAD:
        return
    largest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:3]
    named = ", ".join(f"{path.relative_to(folder)} {sizes[path] / 1e6:,.0f} MB" for path in largest)
    what = f"{sum(sizes.values()) / 1e6:,.0f} MB, unpacked, would be uploaded, and Ray takes {_UPLOAD / 1e6:,.0f}"
    raise UserError(f"{folder}: {what}; name in .rayignore what the job does not need, such as {named}")


def submit(address: str, words: Sequence[str], storage: str, folder: Path) -> str:
    """Upload a folder and start a command of retable as a job; return the job's id.

    Args:
        address: of the dashboard.
        words: the command, such as `reproduce rl --scale small`.
        storage: where its results go.
        folder: what is uploaded.

    Raises:
        UserError: on a storage that is not shared, a folder too large, or where no cluster takes the job.
    """
    if not words or words[0] not in COMMANDS:
        raise UserError(f"submit: write a command after --, such as `-- reproduce rl`; of {', '.join(COMMANDS)}")
    _check_shared(storage)
    folder = Path(os.path.abspath(folder))
    variables = environment(storage, folder)
    _check_upload(folder)
    client = connect(address)
    with _readable_errors(address):
        return _submit(
            client,
            entrypoint=shlex.join(["python", "-m", "retable.platform.cli", *words]),
            runtime_env={"working_dir": str(folder), "excludes": list(_EXCLUDED), "env_vars": variables},
            metadata={"retable": redact(shlex.join(words))},
        )


def _submit(client: JobSubmissionClient, **job: Any) -> str:
    """Send a job, again while a cluster that has just started has no node that takes any; return its id."""
    end = time.monotonic() + AGENT
    while True:
        try:
            return str(client.submit_job(**job))
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(1)


def follow(address: str, job: str) -> bool:
    """Print a job's log until it ends; return whether it succeeded. Ctrl-C ends the following, not the job.

    Raises:
        UserError: where the connection breaks off, saying how to follow the job again.
    """
    import aiohttp

    client = connect(address)
    with _readable_errors(address):
        client.get_job_info(job)  # one that is unknown is told here: to follow it would end in a handshake's traceback

    async def tail() -> None:
        async for text in client.tail_job_logs(job):
            console.print(redact(text), end="", markup=False)

    try:
        with _readable_errors(address):
            try:
                asyncio.run(tail())
            except (aiohttp.ClientError, OSError, RuntimeError) as error:
                raise UserError(_broken_off(address, job)) from error
            info = client.get_job_info(job)
    except KeyboardInterrupt:
        command, Interrupt.announced = f"retable submit --address {address}", True
        how = f"follow it: {command} --follow-job {job}; stop it: {command} --stop {job}"
        errors.print(f"\nthe job goes on; {how}", markup=False)
        raise
    console.print(f"job {job}: {str(info.status.value).lower()}", markup=False)
    if not info.status.is_terminal():
        raise UserError(_broken_off(address, job))
    return str(info.status.value) == "SUCCEEDED"


def _broken_off(address: str, job: str) -> str:
    again = f"retable submit --address {address} --follow-job {job}"
    return f"{address}: the connection broke off; the job may go on; follow it again: {again}"


def stop(address: str, job: str) -> str:
    """Stop a job: its trainings go on from their last checkpoints when the same command is submitted again.

    Raises:
        UserError: where there is no such job.
    """
    client = connect(address)
    with _readable_errors(address):
        stopped = client.stop_job(job)
    return f"job {job}: told to stop" if stopped else f"job {job}: had ended before"


def jobs(address: str) -> list[Mapping[str, Any]]:
    """Return the jobs that a cluster knows, the newest first, as plain data."""
    client = connect(address)
    with _readable_errors(address):
        entries = client.list_jobs()
    rows = [
        {
            "job": job.submission_id or job.job_id,
            "state": str(job.status.value).lower(),
            "started": (job.start_time or 0) / 1000,
            "ended": (job.end_time or 0) / 1000,
            "command": redact((job.metadata or {}).get("retable") or job.entrypoint),
        }
        for job in entries
    ]
    return sorted(rows, key=lambda row: float(row["started"]), reverse=True)


def fetch(storage: Storage, folder: Path) -> None:
    """Copy a storage's report to a folder of this machine.

    Raises:
        UserError: where there is no report.
    """
    if not storage.exists("report/index.html"):
        raise UserError(f"{storage}: no report there yet; `retable report --storage URI` writes it")
    with disk_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    with storage.local("report") as report, disk_errors(str(folder)):
        shutil.copytree(report, folder, dirs_exist_ok=True)
