"""UserError, the one exception for a user's mistake, and redaction of secrets in messages."""

from __future__ import annotations

import difflib
import errno
import re
import shlex
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

HIDDEN = "***"
"""Replacement for a secret in a text."""
SECRET = (
    r"[\w.-]*(?:secret|token|passw(?:or)?d|passphrase|credentials?|signature"
    r"|(?:api|access|account|private|shared)[-_]?key)(?:[-_]?(?:key|id|value))?"
)
"""Names of options, variables and parameters whose value is a secret: `api-key`, `AWS_SECRET_KEY`; not `tokens`."""
VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s'\"]+)"
_SECRETS = (
    # User info of a URI. Unescaped secrets hold `/`: it ends at the last `@`. Azure's `abfs://container@` is a place.
    (r"(://)[^\s/?#@:]*:\S*@", rf"\1{HIDDEN}@"),
    (r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)(://)[^\s/?#@]+@", rf"\1{HIDDEN}@"),
    (rf"([?&;](?:{SECRET}|key|sig|sas|pass|auth)=)[^\s&;#'\"]+", rf"\1{HIDDEN}"),
    (rf"(?<![\w.?&;-])(-*{SECRET}=){VALUE}", rf"\1{HIDDEN}"),
    (rf"(?<![\w-])(--{SECRET}\s+){VALUE}", rf"\1{HIDDEN}"),
    (rf"(['\"]{SECRET}['\"]:\s*(['\"])).*?\2", rf"\1{HIDDEN}\2"),
)


def redact(text: str) -> str:
    """Return a text without its secrets: user info of URIs, and values of parameters, options and variables.

    What is a secret is told by its name. Where that is unsure, as in `scheme://name:text/text@text`, it is hidden.
    """
    for pattern, shown in _SECRETS:
        text = re.sub(pattern, shown, text, flags=re.IGNORECASE)
    return text


def redact_command(words: Sequence[str]) -> str:
    """Return a command line without its secrets, those included that hold spaces.

    Args:
        words: the command and its arguments.
    """
    shown = [redact(word) for word in words]
    for index, word in enumerate(words):
        if named := re.match(rf"(-*{SECRET})=", word, re.IGNORECASE):
            shown[index] = f"{named[1]}={HIDDEN}"
        elif index and re.fullmatch(rf"--{SECRET}", words[index - 1], re.IGNORECASE):
            shown[index] = HIDDEN
    return " ".join(shlex.quote(word) if len(word.split()) > 1 else word for word in shown)


_QUOTED = r"""[^']*'(?:"'"'[^']*')*"""
"""The rest of a word behind the quote that it begins with, as `shlex.quote` writes it."""


def portable(command: str) -> str:
    """Return a kept command without its `--storage`: where results lay is nobody else's business."""
    return re.sub(rf" (?:--storage[ =](?:'{_QUOTED}|\S+)|'--storage={_QUOTED})", "", command)


class UserError(Exception):
    """A mistake that the user can mend. Its text is one line without secrets: what is wrong, where, and the remedy.

    The command line prints it without a traceback and exits with status 2; a notebook shows the line alone.
    """

    def __init__(self, text: str) -> None:
        super().__init__(redact(text))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        return [f"error: {self}"]


class Unreachable(UserError):
    """A disk or bucket that does not answer now, and may later; the operation can be retried."""


class Denied(Unreachable):
    """A bucket that refuses these credentials: wrong, or expired and soon renewed."""


_PASSING = tuple(
    getattr(errno, name)
    for name in (
        "ESTALE ETIMEDOUT EAGAIN EBUSY ENETDOWN ENETUNREACH "
        "EHOSTDOWN EHOSTUNREACH ECONNREFUSED ECONNRESET ECONNABORTED EPIPE"
    ).split()
)
"""Error numbers that a network folder returns while its server is unavailable."""
_PASSING_WORDS = re.compile(
    r"NETWORK_CONNECTION|SLOW_DOWN|THROTTL|INTERNAL_(FAILURE|ERROR)|SERVICE_UNAVAILABLE|REQUEST_TIMEOUT"
    r"|HTTP status (5\d\d|408|429)|curlCode|time[ds]?[ -]?out|connection|temporar|unavailable"
    r"|could not (connect|resolve)",
    re.IGNORECASE,
)
"""Words in the errors of a bucket that is unavailable; a wrong key or name gives other errors."""


_DENIED_WORDS = re.compile(
    r"ACCESS_DENIED|HTTP status 40[13]|expired|INVALID_(ACCESS_KEY_ID|CLIENT_TOKEN_ID)", re.IGNORECASE
)
"""Words in the errors of a bucket where credentials are wrong or have expired."""


def nearest(word: str, names: Iterable[str]) -> str:
    """Return a hint at the valid name that was probably meant: `; did you mean 'lr'?`, or the list of valid ones."""
    names = sorted(names)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid: {', '.join(names)}" if names else ""


def words(error: BaseException) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split())


def one_line(error: BaseException, below: str = "") -> str:
    """Return an error as one line without secrets; for a fault of code, also its location.

    Args:
        error: what was raised.
        below: the folder whose code is at fault, if any of it was running; none: any.
    """
    if isinstance(error, UserError):
        return str(error)
    cause = error.__cause__ or error
    inner = getattr(error, "worker_failures", None)
    if inner:
        cause = next(iter(inner.values()))
        cause = getattr(cause, "cause", None) or cause
    text = str(cause).strip().splitlines()
    every = traceback.extract_tb(cause.__traceback__)
    frames = [frame for frame in every if frame.filename.startswith(below)] or every
    frames = [] if isinstance(cause, SyntaxError) else frames  # its text names the place
    location = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return redact(f"{type(cause).__name__}: {text[-1] if text else ''}{location}")


TRACEBACK = "traceback.txt"
"""File that keeps the traceback of what failed."""
LINES = 100
"""Lines that are kept of a long traceback: so many of its beginning, and of its end."""
WIDTH = 500
"""Characters that are kept of each."""


def traceback_of(error: BaseException) -> str:
    """Return an error's traceback with its causes, of bounded size and without secrets; nothing for a user's mistake.

    Of a Train group it is that of each worker that failed, by rank.
    """
    failures = getattr(error, "worker_failures", None)
    if not failures:
        return "" if isinstance(error, UserError) else _bounded("".join(traceback.format_exception(error)))
    texts = []
    for rank, failure in sorted(failures.items()):
        if not isinstance(failure, UserError):
            text = getattr(failure, "traceback_text", "") or _bounded("".join(traceback.format_exception(failure)))
            texts.append(f"worker {rank}:\n{text}")
    return "\n".join(texts)


@contextmanager
def traceback_carried() -> Iterator[None]:
    """Attach an error's traceback as text, because pickling an error drops its traceback."""
    try:
        yield
    except Exception as error:
        with suppress(AttributeError):
            error.traceback_text = traceback_of(error)  # type: ignore[attr-defined]
        raise


def _bounded(text: str) -> str:
    """Return the beginning and the end of a text, without secrets; in a short one a regular expression is quick."""
    lines = text.splitlines()
    if len(lines) > 2 * LINES:
        lines = [*lines[:LINES], f"... {len(lines) - 2 * LINES} lines left out ...", *lines[-LINES:]]
    return redact("\n".join(redact(line[: 20 * WIDTH])[:WIDTH] for line in lines)) + "\n"


def _first_line(error: OSError) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def passing_errors(what: str) -> Iterator[None]:
    """Convert failures of a disk or bucket at `what` that may be over in a moment into one line; others pass unchanged.

    Raises:
        Unreachable: where it does not answer; a `Denied` where it refuses these credentials.
    """
    try:
        yield
    except FileNotFoundError:  # whatever words its path holds
        raise
    except OSError as error:
        message = _first_line(error)
        if error.errno is None and _DENIED_WORDS.search(message):
            raise Denied(f"{what}: {message}; check the credentials") from error
        if error.errno in _PASSING or (error.errno is None and _PASSING_WORDS.search(message)):
            raise Unreachable(f"{what}: {message}") from error
        raise


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Convert failures of a disk or bucket at `what` into one clear line.

    Raises:
        UserError: where the disk is full, the path cannot be written, a component is no directory, or a bucket refuses;
            an `Unreachable` where it may be another matter in a moment.
    """
    remedies = {
        errno.ENOSPC: "the disk is full; free some space and run the same command again",
        errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
        errno.EACCES: "no permission; choose another place or change the permissions",
        errno.EPERM: "no permission; choose another place or change the permissions",
        errno.EROFS: "the file system is read-only; choose another place",
        errno.ENOTDIR: "a part of the path is a file; choose another place",
        errno.EEXIST: "a part of the path is a file; choose another place",
        errno.EISDIR: "a folder is there; name a file",
    }
    try:
        with passing_errors(what):
            yield
    except OSError as error:
        if error.errno in remedies:
            raise UserError(f"{what}: {remedies[error.errno]}") from error
        if error.errno is None and not isinstance(error, FileNotFoundError):  # a bucket's own words
            raise UserError(f"{what}: {_first_line(error)}") from error
        raise
    except NotImplementedError as error:
        raise UserError(f"{what}: such a storage is for reading only; choose another --storage") from error
