"""retable re-runs the tables: train, sweep, tabulate and serve four published systems on Ray.

`retable.reproduce("rl/table1")`, `plan`, `train`, `sweep`, `load`, `runs`, `report`, `pack`, `unpack` and `verify` do in
a notebook what the command `retable` does in a shell. `Space` is what a sweep searches, `Resources` what each training gets, and
`UserError` what is raised on a mistake that its one line says how to mend.

Folders of your own tasks, named in the variable RETABLE_TASKS (separated as PATH is), join those that ship here; the
search spaces in a folder's `search_spaces/` too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import retable.search_spaces
import retable.tasks

if TYPE_CHECKING:
    from retable.platform.api import (
        Resources,
        Space,
        TrainedRun,
        load,
        pack,
        plan,
        report,
        reproduce,
        runs,
        sweep,
        train,
        unpack,
        verify,
    )
    from retable.platform.errors import UserError

__version__ = "0.2.0"
__all__ = [
    "Resources",
    "Space",
    "TrainedRun",
    "UserError",
    "__version__",
    "load",
    "pack",
    "plan",
    "report",
    "reproduce",
    "runs",
    "sweep",
    "train",
    "unpack",
    "verify",
]

# Plain lists: a namespace package computes its own path anew after `importlib.invalidate_caches()`, without additions.
_folders = [os.path.abspath(folder) for folder in os.environ.get("RETABLE_TASKS", "").split(os.pathsep) if folder]
retable.tasks.__path__ = [*retable.tasks.__path__, *_folders]
retable.search_spaces.__path__ = [
    *retable.search_spaces.__path__,
    *(os.path.join(folder, "search_spaces") for folder in _folders),
]


def __getattr__(name: str) -> Any:
    """Import the platform only when it is used: `import retable` stays cheap in every worker process."""
    if name in __all__:
        from retable.platform import api
        return getattr(api, name)
    raise AttributeError(f"module 'retable' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what there is to use."""
    return __all__
