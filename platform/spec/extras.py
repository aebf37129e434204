"""Optional packages of tasks, serving and trackers, and whether they are installed.

The lists are those of `pyproject.toml`; nothing is imported to look.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import tomllib
from importlib import metadata

from retable.platform.commit import code_root
from retable.platform.errors import UserError

MODULES = {
    "faiss-cpu": "faiss",
    "opencv-python": "cv2",
    "pillow": "PIL",
    "pytest-xdist": "xdist",
    "ray[serve]": "fastapi",
}
"""Distribution -> a module that it brings, where that is named otherwise. Any build of OpenCV will do."""


class Missing(UserError, ImportError):
    """A package is not installed; the text says which extra brings it."""


@functools.cache
def extras() -> dict[str, tuple[str, ...]]:
    """Return extra -> the distributions that it names."""
    project = code_root().parent / "pyproject.toml"
    packages: dict[str, list[str]] = {}
    if project.exists():  # a checkout, perhaps not installed, or by an older version of itself
        for name, wanted in tomllib.loads(project.read_text())["project"]["optional-dependencies"].items():
            packages[name] = [distribution(text) for text in wanted]
    else:
        for text in metadata.requires("retable") or []:
            if extra := re.search(r"extra == ['\"]([\w-]+)['\"]", text):
                packages.setdefault(extra[1], []).append(distribution(text))
    return {name: tuple(wanted) for name, wanted in packages.items()}


def distribution(requirement: str) -> str:
    """Return the name in a requirement: `ray[serve]` of `ray[serve]>=2.60,<2.61`."""
    return re.split(r"[\s<>=!~;]", requirement.strip(), maxsplit=1)[0].lower()


def is_there(distribution: str) -> bool:
    """Return whether the modules of a distribution can be imported."""
    try:
        plain = distribution.partition("[")[0].replace("-", "_")
        return importlib.util.find_spec(MODULES.get(distribution, plain)) is not None
    except (ImportError, ValueError):
        return False


def missing(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed; none where there is no such extra."""
    return [name for name in extras().get(extra, ()) if not is_there(name)]


@functools.cache  # of those that are whole, as errors are not kept: a task is found again and again
def check(extra: str) -> None:
    """Refuse where an extra is not whole.

    Raises:
        Missing: saying how to install it.
    """
    if lacking := missing(extra):
        raise Missing(f"{extra} needs {', '.join(lacking)}: pip install 'retable[{extra}]'")
