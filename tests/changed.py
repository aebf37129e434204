"""Print the test files of what changed since the merge base with a branch: `python -m tests.changed [main]`.

`platform/store/run.py` is tested by `tests/platform/store/test_run.py`; where there is no file of that name, by the
tests of its room. Templates, styles, scripts and data of the package likewise; pages by the tests of the documents.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEVELS = "tests/platform/test_levels.py"
KINDS = tuple(f".{kind}" for kind in "py j2 css js html svg json toml yaml txt md csv ipynb".split())
"""Endings of files that a test reads."""
NAMED = {
    "sources.json": "tests/test_fetch.py",
    "findings.md": "tests/test_findings.py",
    "json.md": "tests/platform/cli/test_json.py",
    "cluster.md": "tests/test_cluster_page.py",
    "README.md": "tests/test_readme.py",
    "CHANGELOG.md": "tests/test_readme.py",
    "NOTICE": "tests/test_readme.py",
    "tour.ipynb": "tests/test_tour.py",
}
"""Files of these names, wherever they are, have a test file of their own."""
DOCUMENTS = "tests/test_documents.py"


def changed(base: str, root: Path | None = None) -> list[str]:
    """Return the files that differ from the merge base with a branch, and those that git does not know.

    Where there is no such branch, as in a clone of another one, it is that of `origin`.

    Raises:
        SystemExit: where there is neither.
    """

    def git(*words: str) -> list[str]:
        return subprocess.run(
            ["git", *words], cwd=root or ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()

    known = git("for-each-ref", "--format=%(refname:short)")
    found = next((name for name in (base, f"origin/{base}") if name in known), base)
    try:
        (ancestor,) = git("merge-base", found, "HEAD")
    except subprocess.CalledProcessError:
        raise SystemExit(f"error: no branch or commit {base!r} here; name one: make check BASE=NAME") from None
    return [*git("diff", "--name-only", ancestor), *git("ls-files", "--others", "--exclude-standard")]


def files_testing(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files of the files at `paths`, each once."""
    known = [Path(path) for path in paths if path.endswith((*KINDS, "NOTICE"))]
    code = {test for path in known if path.suffix == ".py" for test in _named_for(path, root)}
    return sorted(code.union(*(_for_data(path, root) for path in known)) | ({LEVELS} if code else set()))


def _for_data(path: Path, root: Path) -> Iterator[str]:
    if path.suffix == ".py" or path.parts[0] == "tests":
        return
    if path.parts[0] == "docs" or len(path.parts) == 1:
        if path.suffix not in (".md", ".ipynb") and path.name not in NAMED:
            return
        yield from filter(lambda test: (root / test).exists(), [DOCUMENTS, NAMED.get(path.name, DOCUMENTS)])
    elif path.name in NAMED:
        yield NAMED[path.name]
    else:
        yield from _named_for(path, root)


def _named_for(path: Path, root: Path) -> Iterator[str]:
    if path.parts[0] == "tests":
        if path.name.startswith("test_") and (root / path).exists():
            yield path.as_posix()
        return
    room = Path("tests", *path.parts[1:-1] if path.parts[0] == "tasks" else path.parts[:-1])
    while not (root / room).is_dir() or room == Path("tests"):
        if room == Path("tests"):
            return
        room = room.parent
    named = [test for test in (root / room).rglob(f"test_{path.stem}.py")]
    yield from (test.relative_to(root).as_posix() for test in named or (root / room).glob("test_*.py"))


if __name__ == "__main__":
    print("\n".join(files_testing(changed(sys.argv[1] if len(sys.argv) > 1 else "main"))))
