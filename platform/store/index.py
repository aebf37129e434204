"""Index of finished runs for plans and listings, one file a task: `<storage>/.index/<task>.packed`.

It works as git's index does: an entry holds the stamps (size and time) of the files that it was made from, and counts
only while the storage shows the same ones. It is a cache: absent, damaged or old, it is made again from the files. Of
two who write it at once the last one wins, and both are right.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1
RACY = 3 * 10**9
"""Nanoseconds: a file that changed so shortly before it was looked at may change again under the same stamp."""

Entry = dict[str, Any]
"""Of a run: `files` (path in its folder -> [size, time, what was kept of it]), `folder` (the folder's own time in ns,
0 where it is not known) and `bytes` (of all its files, when it was listed)."""


@dataclass
class Index:
    """Entries of a task's finished runs. They are parsed when asked for: a line a run is all that is held."""

    lines: dict[str, bytes] = field(default_factory=dict)
    """Fingerprint -> the newest stamp in its entry, and the entry as JSON."""
    added: dict[str, Entry] = field(default_factory=dict)
    """What was looked up meanwhile."""
    last: tuple[str, Entry] = ("", {})
    """The run that was asked for last, with its entry: a run's files are asked for one after another."""

    def entry(self, run: str) -> Entry:
        """Return the entry of a run; one without files if there is none."""
        if run in self.added:
            return self.added[run]
        if self.last[0] == run:
            return self.last[1]
        try:
            entry: Entry = json.loads(self.lines[run].partition(b" ")[2])
            entry = entry if isinstance(entry["files"], dict) else {"files": {}}
        except (KeyError, ValueError, TypeError, RecursionError):
            entry = {"files": {}}
        self.last = (run, entry)
        return entry

    def kept(self, run: str, path: str, stamp: object) -> Any:
        """Return the value stored for a run's file, if its stamp is this one; else None."""
        known = self.entry(run)["files"].get(path)
        same = isinstance(known, list) and len(known) == 3 and known[:2] == stamp
        return known[2] if same else None

    def note(self, run: str, files: Mapping[str, object], folder: int = 0, size: int = 0) -> None:
        """Record the values of a run's files: path -> [size, time, value]."""
        entry = self.added[run] = self.entry(run)
        entry["files"] |= files
        if folder or size:
            entry |= {"folder": folder, "bytes": size}

    def packed(self, alive: Collection[str], seconds: float) -> bytes:
        """Return the file of the index.

        Args:
            alive: the runs that are there; others are dropped.
            seconds: since the storage was listed: what changed after that, or just before, will not be trusted.
        """
        merged = self.lines | {run: line for run, entry in self.added.items() if (line := _line_of(entry))}
        head = json.dumps({"format": FORMAT, "seconds": seconds}).encode()
        return gzip.compress(
            b"\n".join([head, *(f"{run} ".encode() + merged[run] for run in merged if run in alive)]), 1
        )


def _line_of(entry: Entry) -> bytes:
    """Return an entry's line; empty if the storage reports no times, as no stamp could be trusted."""
    times = [known[1] for known in entry["files"].values()]
    if not times or not all(isinstance(moment, int) and moment > 0 for moment in times):
        return b""
    newest = max(*times, entry.get("folder", 0), 0)
    return f"{newest} {json.dumps(entry, separators=(',', ':'))}".encode()


def place(task: str) -> str:
    """Return where the index of a task's runs lies. It is no `.gz`: pyarrow would unpack that as it is read."""
    return f".index/{task}.packed"


def unpack(data: bytes, written: int) -> Index:
    """Return the index in a file's bytes; an empty one where they are damaged, or of another format.

    Args:
        data: the file's.
        written: when, ns of the storage's clock.
    """
    try:
        with gzip.open(io.BytesIO(data)) as lines:  # line by line: all at once would be in memory three times
            about = json.loads(next(lines))
            if about["format"] != FORMAT:
                return Index()
            trusted = written - int(about["seconds"] * 1e9) - RACY
            pairs = (line.partition(b" ") for line in lines)
            return Index({run.decode(): rest for run, _, rest in pairs if int(rest.partition(b" ")[0]) < trusted})
    except (OSError, EOFError, StopIteration, zlib.error, ValueError, KeyError, TypeError, RecursionError):
        return Index()
