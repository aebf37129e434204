"""What all tests share. The variables are set before anything imports retable or Ray."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

HOME = tempfile.mkdtemp(prefix="retable-home-")  # Ray writes its token there
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["HOME"] = HOME
os.environ.setdefault("RETABLE_TASKS", str(Path(__file__).parent / "extra_tasks"))
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import pytest  # noqa: E402
import torch  # noqa: E402

from retable.platform.storage import Storage  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def storage(tmp_path):
    return Storage.open(tmp_path / "results")


@pytest.fixture(scope="session")
def shared():
    """The folder of papers, weights and sample data that some checks read."""
    if "RETABLE_SHARED" not in os.environ:
        pytest.skip("RETABLE_SHARED names no folder; set it to where papers, weights and sample data lie")
    return Path(os.environ["RETABLE_SHARED"])
