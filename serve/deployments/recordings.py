"""Uploaded recordings: checks, storage, and the index that finds them.

They lie in `<storage>/served/audio/recordings`, each under its SHA-256 beside a file with the name that it was sent
with. A server that was given no index searches this folder, and starts it with the recordings that come with the task;
where the storage is a bucket, it searches these alone.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from retable.platform.errors import Unreachable, UserError
from retable.platform.spec.task import folder as task_folder
from retable.platform.store.storage import Storage
from retable.serve.ingress.limits import LIMITS, Limits
from retable.serve.ingress.replies import Problem, kind_of
from retable.tasks.audio.collect.files import SUFFIXES, duration, header
from retable.tasks.audio.tools.embed.embedder import Embedder
from retable.tasks.audio.tools.search.index import add, update
from retable.tasks.audio.tools.search.search import Index

FOLDER, INDEX = "served/audio/recordings", "served/audio/index"
SHIPPED = task_folder("audio") / "zoo" / "recordings"
"""Recordings that come with the task; `zoo/LICENSES.md` names their owners."""
STARTS = {".wav": rb"(RIFF|RF64).{4}WAVE", ".flac": rb"fLaC", ".ogg": rb"OggS", ".mp3": rb"ID3|\xff[\xe0-\xff]"}
"""Suffix -> how such files begin."""
LONGEST = 100
"""Characters of a name."""
_STARTING = 300.0
"""Seconds that a replica waits for another one that makes the same index."""


def own_index(embedder: Embedder, storage: Storage) -> Path:
    """Return the index of the folder that recordings are kept in, made or brought up to date: one for each model.

    Where the storage is a bucket, none are kept: the index is of those that come with the task, and of this process.

    Raises:
        UserError: where the index cannot be made.
    """
    if not storage.is_local:
        out = Path(tempfile.mkdtemp(prefix="retable-index-"))
        atexit.register(shutil.rmtree, out, ignore_errors=True)
        update(SHIPPED, out, embedder)
        return out
    folder = folder_of(storage)
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(SHIPPED.glob("*.ogg")):
        if not (folder / file.name).exists():
            (storage / FOLDER).write(file.name, file.read_bytes())
    out = Path((storage / INDEX).root) / embedder.fingerprint[:16]
    update(folder, out, embedder, patience=_STARTING)
    return out


def folder_of(storage: Storage) -> Path:
    """Return the folder in which recordings are kept.

    Raises:
        Problem: 501 where the storage is no folder of this machine.
    """
    if not storage.is_local:
        raise Problem(501, "this server keeps no recordings: its storage is no folder")
    return Path((storage / FOLDER).root)


def take_in(
    body: bytes, name: str, index: Index, embedder: Embedder, folder: Path, limits: Limits = LIMITS
) -> tuple[Index, Path, float]:
    """Keep a recording and put it into an index; return the index with it, the kept file and its seconds.

    What was sent is decoded in a folder of its own, which is gone afterwards. The same recording twice is one.

    Args:
        body: a file, WAV, FLAC, Ogg or MP3 by what it holds.
        name: what it is to be called.
        index: an open one.
        embedder: the model that it was made with.
        folder: where it is kept.
        limits: of its length.

    Raises:
        Problem: where it is something else, broken or too long, another process writes the index, or the disk is full.
    """
    suffix = kind_of(body, STARTS, "the body is no recording that is known: WAV, FLAC, Ogg or MP3")
    kept = folder / f"{hashlib.sha256(body).hexdigest()}{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as own:
            path = Path(own) / f"recording{suffix}"
            path.write_bytes(body)
            try:
                seconds = length(path, limits)
                note(kept, name)  # first: what is indexed is kept
                now = add(index, embedder, path, kept)
            except UserError as error:
                if str(path) in str(error):
                    raise Problem(400, str(error).replace(str(path), "the recording")) from error
                raise
    except (OSError, UserError) as error:
        raise _not_kept(error) from error
    finally:
        if not kept.exists():
            with suppress(OSError):
                kept.with_suffix(".json").unlink()
    return now, kept, seconds


def _not_kept(error: OSError | UserError) -> Problem:
    """Return the problem of a recording that cannot be written, or of an index that another process writes."""
    cause = error.__cause__ if isinstance(error, UserError) else error
    if isinstance(cause, OSError) and not isinstance(error, Unreachable):
        return Problem(507, f"there is no room for the recording: {os.strerror(cause.errno or errno.EIO)}")
    return Problem(503, "the index is being written; try again in a moment", wait=5)


def length(path: Path, limits: Limits) -> float:
    """Return a recording's seconds: by its header, which may say too few, then by decoding it up to the limit.

    Raises:
        Problem: 413 where it is too long, 415 where it is of another kind than it began.
        UserError: where its header is broken.
    """
    info = header(path)
    if info.container not in SUFFIXES[path.suffix]:
        raise Problem(415, "the recording is of another kind than its first bytes say")
    seconds, most = info.seconds, limits.sound_samples / max(1, info.rate * info.channels)
    if info.is_guess or seconds <= min(limits.sound_seconds, most):
        seconds = duration(path, min(limits.sound_seconds, most))
    if seconds > most:
        raise Problem(413, f"the recording has more than {limits.sound_samples} samples; send fewer channels or less")
    if seconds > limits.sound_seconds:
        detail = f"the recording lasts {seconds:.0f} s; {limits.sound_seconds:g} s are taken"
        raise Problem(413, detail, entries={"wanted": limits.sound_seconds})
    return seconds


def note(kept: Path, name: str) -> None:
    """Write down what a recording is called, unless it has a name; one without a name is called by its digest."""
    beside = kept.with_suffix(".json")
    if not beside.exists():
        plain = "".join(letter for letter in re.split(r"[/\\]", name)[-1] if letter.isprintable()).strip()
        called = plain[:LONGEST] or f"recording-{kept.stem[:8]}{kept.suffix}"
        Storage.open(kept.parent).write_json(beside.name, {"name": called})


def shown(file: str, folder: Path) -> str:
    """Return what a recording of an index is called: nothing of where it lies.

    Args:
        file: its path, as the index has it.
        folder: the index's.
    """
    path = folder / file
    if re.fullmatch("[0-9a-f]{64}", path.stem):
        try:
            return str(json.loads(path.with_suffix(".json").read_bytes())["name"])
        except (OSError, ValueError, KeyError, TypeError):
            return path.name
    return path.name if Path(file).is_absolute() else file
