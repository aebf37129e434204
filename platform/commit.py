"""The commit and the digests of this code, in a checkout, a job, an image and an installed package.

    python -m retable.platform.commit                   print the checkout's commit, for RETABLE_COMMIT
    python -m retable.platform.commit --write COMMIT    keep a commit with a copy of the code that has no `.git`

A commit is written as `git describe --dirty` does: 40 hexadecimal digits, with `-dirty` where there are changes. This
module needs the standard library alone, so that it also runs where nothing is installed and while a wheel is built.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "commit.json"
"""Written into the package when a wheel, an sdist or an image is built: the commit, and the digests of its code."""
NAMED = 20
"""Lines of changed files that a provenance holds, at most."""
VARIABLE = "RETABLE_COMMIT"
"""Environment variable that names the commit of a job's upload."""


def code_root() -> Path:
    """Return the folder `retable`, which holds all code except that of RETABLE_TASKS."""
    return Path(__file__).absolute().parents[1]


def of_checkout(folder: Path) -> str:
    """Return the commit of a checkout, with `-dirty` where it has changes; nothing outside of a checkout."""
    return of_folder(folder) if (folder / ".git").exists() else ""  # a repository around a package is another's


def of_folder(folder: Path) -> str:
    """Return the commit of the repository that holds a folder, with `-dirty` where the folder has changes.

    A folder that the repository around it ignores is in none.
    """
    try:
        if _git(folder, "check-ignore", ".", check=False):
            return ""
        dirty = _git(folder, "status", "--porcelain", ".").strip()
        return _git(folder, "rev-parse", "HEAD").strip() + ("-dirty" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def uncommitted(folder: Path) -> list[str]:
    """Return the changed and untracked files of a checkout, as `git status --porcelain` writes them: ` M docs/cli.md`.

    Beyond `NAMED` lines the last one says how many more there are.
    """
    lines = _git(folder, "status", "--porcelain", "--untracked-files=all", ".", check=False).splitlines()
    return lines if len(lines) <= NAMED else [*lines[:NAMED], f"and {len(lines) - NAMED} more"]


def _git(folder: Path, *words: str, check: bool = True) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=check).stdout


def parsed(text: str) -> dict[str, Any]:
    """Return `commit` and `dirty` of a written commit; nothing where it is none."""
    match = re.fullmatch(r"([0-9a-f]{40,64})(-dirty)?", text)
    return {"commit": match[1], "dirty": bool(match[2])} if match else {}


def digests(package: Path, tasks: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of the Python files of each part of the code: `platform`, `tasks/rl`, ...

    Args:
        package: the folder `retable`.
        tasks: folders that hold tasks; of tasks with one name, that of the first folder counts, as for imports.
    """
    parts = {name: package / name for name in ("platform", "search_spaces", "serve")}
    for root in reversed(list(tasks)):
        parts |= {f"tasks/{init.parent.name}": init.parent for init in root.glob("*/__init__.py")}
    return {name: digest(folder) for name, folder in sorted(parts.items())}


def digest(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of a folder's Python files."""
    hashed = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        hashed.update(f"{file.relative_to(folder).as_posix()}\0{file.stat().st_size}\0".encode())
        hashed.update(file.read_bytes())
    return hashed.hexdigest()


def write(package: Path, commit: str) -> None:
    """Write a commit into a copy of the package, with the digests of its code: a copy that is changed later shows."""
    file = package / FILE
    file.unlink(missing_ok=True)  # it may be a hard link to another's
    file.write_text(json.dumps({"commit": commit, "code": digests(package, [package / "tasks"])}, indent=2) + "\n")


def current(package: Path) -> dict[str, Any]:
    """Return `commit` and `dirty` of the code that is imported; nothing where the commit is not known.

    It is the checkout's, with `uncommitted`, the changed files, if there are any; without `.git`, the one that was
    written into the package, with changes where its code is not what it was; else, in a job, the one that came along in
    RETABLE_COMMIT.
    """
    if commit := parsed(of_checkout(package.parent)):
        return {**commit, "uncommitted": uncommitted(package.parent)} if commit["dirty"] else commit
    try:
        kept = json.loads((package / FILE).read_text())
        commit, before = parsed(kept["commit"]), dict(kept["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return parsed(os.environ.get(VARIABLE, ""))
    now = digests(package, [package / "tasks"])
    return commit and {**commit, "dirty": commit["dirty"] or before != now}


def main(words: list[str]) -> None:
    """Print the checkout's commit, or keep one with a copy of the code.

    Raises:
        SystemExit: where it is no commit, or there is none.
    """
    package = code_root()
    if words[:1] == ["--write"]:
        commit = words[1] if len(words) > 1 else ""
        if not parsed(commit):
            raise SystemExit(f"error: {commit!r} is no commit; `python -m retable.platform.commit` prints one")
        write(package, commit)
        return
    if not (commit := of_checkout(package.parent)):
        raise SystemExit(f"error: {package.parent} is no checkout that git reads")
    print(commit)


if __name__ == "__main__":
    main(sys.argv[1:])
