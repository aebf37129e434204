"""`make check` runs the tests of what was changed."""

import pytest

from tests.changed import LEVELS, files_testing


@pytest.fixture
def tree(tmp_path):
    for name in ("platform/store/test_run.py", "platform/store/test_lease.py", "rl/test_prune.py", "rl/test_data.py"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("platform/store/run.py", ["tests/platform/store/test_run.py"]),
        ("platform/store/new.py", ["tests/platform/store/test_lease.py", "tests/platform/store/test_run.py"]),
        ("tasks/rl/prune.py", ["tests/rl/test_prune.py"]),
        ("tasks/rl/recordings/data.py", ["tests/rl/test_data.py"]),
        ("tests/rl/test_prune.py", ["tests/rl/test_prune.py"]),
        ("tests/rl/test_removed.py", []),
        ("docs/tour.py", []),
        ("README.md", []),
    ],
)
def test_a_file_is_tested_by_the_file_of_its_name_or_by_its_room(tree, path, wanted):
    assert files_testing([path], tree) == sorted([*wanted, *([LEVELS] if wanted else [])])
