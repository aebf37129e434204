"""Tasks, tables and scales are found by name, and a wrong name is answered with the right one."""

import errno

import pytest

from retable.platform import api
from retable.platform.errors import UserError, disk_errors, nearest
from retable.platform.spec.task import SCALES, find, find_scale, find_table, names, scaled, table_at
from retable.platform.text import clock


def test_tasks_are_found_by_the_names_of_their_folders():
    assert {"line", "rl"} <= set(names())
    assert find("line").name == "line" and find("rl").name == "rl"
    assert find_table("line/table1") == (find("line"), find("line").tables()["table1"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find("lien"), "no task 'lien'; did you mean 'line'?"),
        (lambda: find("../line"), "no task '../line'; did you mean 'line'?"),
        (lambda: find_table("line/tabel1"), "no table 'line/tabel1'; did you mean 'line/table1'?"),
        (lambda: find_table("line"), "no table 'line'; did you mean 'line/table1'?"),
        (lambda: find_scale(find("line"), "huge"), "line: no scale 'huge'; valid: paper, quick, small, smoke"),
        (
            lambda: table_at(find("line"), find_table("line/table1")[1], "smoke", {"rat": 1}),
            "unknown field 'rat'; did you mean 'rate'?",
        ),
    ],
)
def test_a_wrong_name_is_answered_in_one_line(call, message):
    with pytest.raises(UserError) as caught:
        call()
    assert str(caught.value) == message


PAPERS = ("rl", "weather", "style", "audio")


@pytest.mark.parametrize("name", PAPERS)
def test_a_scale_stays_within_the_time_that_it_promises_and_its_name_promises(name, storage):
    """By the planner, on two cores: `smoke` a minute a row, `small` a night, `quick` a share of some eight minutes."""
    task = find(name)
    assert [*task.scales()] == [scale for scale in SCALES if scale in task.scales()], "the smallest first"
    for scale, content in task.scales().items():
        if scale == "paper":
            assert not content.minutes
            continue
        plan = api.plan(name, scale=scale, storage=storage)
        rows = sum(not row.absent for _, table in plan.tables.values() for row in table.rows)
        minutes = plan.cost / 60 / 2
        assert 0 < minutes <= content.minutes, f"{name} at {scale}: {minutes:.0f} minutes on two cores"
        most = {"smoke": rows, "quick": 2.5, "small": 16 * 60 / 2}
        assert content.minutes <= most[scale]
        assert f"at most {clock(60 * content.minutes)} on two cores" in str(content)


def test_every_task_is_whole():
    for name in names():
        task = find(name)
        assert task.name == name
        config = task.config()
        assert config.epochs >= 1 and isinstance(config.seed, int) and task.view().epoch == 0
        assert "smoke" in task.scales() and task.cost(config) >= 0
        hash(task.group(config))
        for scale in task.scales().values():
            for table in task.tables().values():
                labels = [row.label for row in scaled(table, scale).rows]
                assert labels and len(set(labels)) == len(labels), "rows are found by their labels"


def test_the_nearest_name_is_offered_or_all_of_them():
    assert nearest("sede", ["seed", "rate"]) == "; did you mean 'seed'?"
    assert nearest("xxxxx", ["seed", "rate"]) == "; valid: rate, seed"
    assert nearest("x", []) == ""


def test_only_failures_of_the_disk_become_user_errors():
    for error in (FileNotFoundError(errno.ENOENT, "x"), FileNotFoundError("x"), OSError(errno.EIO, "x"), KeyError("x")):
        with pytest.raises(type(error)), disk_errors("here"):
            raise error
    for error in (OSError(errno.ENOSPC, "x"), OSError("the bucket says no\nand why")):
        with pytest.raises(UserError, match=r"^here: (the disk is full|the bucket says no$)"), disk_errors("here"):
            raise error
