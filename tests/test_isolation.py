"""A test that takes its process with it fails alone: Ray ends a driver whose raylet has died, with no word."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

TESTS = """
import os

def test_before():
    pass

def test_that_dies():
    os._exit(1)

def test_after():
    pass
"""


@pytest.mark.slow
def test_a_test_that_ends_its_process_fails_alone(tmp_path):
    for number in range(12):  # files that are done by then: xdist hands those out again too, and waits for ever
        quick = "import pytest\n\n@pytest.mark.parametrize('one', range(4))\ndef test_quick(one):\n    pass\n"
        (tmp_path / f"test_{number:02}.py").write_text(quick)  # xdist begins with the files of most tests
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests.files import pytest_xdist_make_scheduler")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, tmp_path]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    clean["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "1 failed, 50 passed" in done.stdout and "FAILED test_some.py::test_that_dies" in done.stdout
