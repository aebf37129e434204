"""What all tests share. The variables are set before anything imports retable or Ray."""

import atexit
import functools
import gc
import os
import shutil
import tempfile
from pathlib import Path

gc.disable()  # until all files are imported: of what they make nothing is garbage

HOME = tempfile.mkdtemp(prefix="retable-home-")  # Ray writes its token there
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["HOME"] = HOME
os.environ["RETABLE_TASKS"] = str(Path(__file__).parent / "extra_tasks")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's threads spin: beside another worker they take four times the seconds
for name in ("RAY_ADDRESS", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
    os.environ.pop(name, None)  # Ray would join that cluster, Typer would colour what tests read
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process that a test starts would compile retable anew

import random  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import typer.main  # noqa: E402
import typer.testing  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from retable.platform.store.storage import Storage  # noqa: E402
from tests.chosen import pytest_addoption, pytest_collection_modifyitems  # noqa: E402, F401
from tests.files import pytest_xdist_make_scheduler  # noqa: E402, F401

torch.set_num_threads(1)

# A process makes its command line once; Typer makes it at each call that a test runs, for 0.1 s.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)

# The same examples in every run, none kept from one to the next, and no clock: a run ends like the run before.
# `--hypothesis-profile=default` searches on.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


def pytest_collection_finish():
    """Collect garbage from here on, and leave what was imported out of it; collection took a third longer before."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup():
    """Let no test's random numbers depend on the tests before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def storage(tmp_path):
    return Storage.open(tmp_path / "results")


@pytest.fixture(scope="session")
def shared():
    """The folder of papers, weights and sample data that some checks read."""
    if "RETABLE_SHARED" not in os.environ:
        pytest.skip("RETABLE_SHARED names no folder; set it to where papers, weights and sample data lie")
    return Path(os.environ["RETABLE_SHARED"])
