"""Build hooks of setuptools: the commit goes into the wheel and the sdist, never into the checkout.

Setuptools imports this file alone, before anything of retable is there to import.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

_OURS = runpy.run_path(str(Path(__file__).with_name("commit.py")))
COMMIT: str = _OURS["of_checkout"](Path(__file__).absolute().parents[2])
"""Of the checkout that is built, before a build writes into it; an sdist has its own in the package already."""


class BuildPy(build_py):
    """Copies the package for a wheel."""

    def run(self) -> None:
        """Copy it; an editable install has no copy."""
        super().run()
        if COMMIT and not self.editable_mode:
            _OURS["write"](Path(self.build_lib, "retable"), COMMIT)


class Sdist(sdist):
    """Copies the sources for an sdist."""

    def make_release_tree(self, base_dir: str | os.PathLike[str], files: object) -> None:
        """Copy them."""
        super().make_release_tree(base_dir, files)
        if COMMIT:
            _OURS["write"](Path(base_dir, "retable"), COMMIT)
