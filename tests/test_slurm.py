"""docs/slurm/retable.sbatch, run on two machines of namespaces by a small Slurm: preempted, cancelled, ended."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retable.platform.config import override
from retable.platform.spec.task import find
from retable.platform.store.lease import read
from retable.platform.store.run import RunFolder
from retable.platform.store.storage import Storage
from tests.machines import SHARED, machines
from tests.platform.execute.test_faults import EPOCH, outcome, record, undisturbed
from tests.slurm import Slurm

assert record  # a fixture
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
TASKS = ROOT / "tests" / "extra_tasks"
EPOCHS = 6


@pytest.fixture
def slurm():
    """Two machines, on whose PATH are Slurm's programs and ours."""
    with machines() as made:
        nodes = [made.add("node1"), made.add("node2")]
        found = Slurm(nodes, made.shared, SHARED)
        shim = made.shared / "bin" / "retable"
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m retable.platform.cli "$@"\n')
        shim.chmod(0o755)
        (made.shared / "home").mkdir()
        yield found
        found.close()


def documented():
    """Return the line of docs/cluster.md that submits the script."""
    (line,) = re.findall(r"^sbatch .*docs/slurm/retable.sbatch .*$", (ROOT / "docs" / "cluster.md").read_text(), re.M)
    return line


def submit(slurm, more=""):
    """Give the documented line, with a small training in place of its command; return the training's run."""
    line = documented()
    words = f"train line --set epochs={EPOCHS} --set pause=0.5 --storage {SHARED}/results{more}"
    for old, new in ((r"--nodes \d+ --gpus-per-node \d", "--nodes 2"), (r"reproduce .*", words)):
        line, count = re.subn(old, new, line)
        assert count == 1, line
    kept = {name: os.environ[name] for name in ("LANG", "OMP_NUM_THREADS") if name in os.environ}
    path = [f"{SHARED}/bin", str(Path(sys.executable).parent), os.environ["PATH"]]
    own = {"PATH": ":".join(path), "HOME": f"{SHARED}/home", "PYTHONPATH": str(ROOT), "RETABLE_TASKS": str(TASKS)}
    login = own | {"SLURM_SOCKET": str(slurm.shared / "socket")}
    login["PATH"] = own["PATH"].replace(SHARED, str(slurm.shared))
    told = subprocess.run(line, shell=True, cwd=ROOT, env=kept | login, capture_output=True, text=True)
    assert told.stdout == "Submitted batch job 41\n", told.stderr
    task = find("line")
    config = override(task.config(), {"epochs": EPOCHS, "pause": 0.5})
    return RunFolder.of(Storage.open(slurm.shared / "results"), task, config)


def wait_for(slurm, condition, seconds=400):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert not slurm.over.is_set() and time.monotonic() < deadline, logs(slurm)
        time.sleep(0.2)
    return found


def logs(slurm):
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(slurm.shared.glob("*.log")))


def assert_nothing_is_left(slurm):
    """Neither processes nor files of Ray, on any machine."""
    for machine in slurm.machines:
        _, said = machine.call("sh", "-c", "ps -eo args; ls /tmp")
        assert not re.search(r"raylet|gcs_server|retable|ray-41", said), said


def test_a_preempted_job_goes_on_from_its_checkpoint(slurm, tmp_path, record):
    record["fault"] = "Slurm job preempted, and started again by Slurm"
    folder = submit(slurm)
    wait_for(slurm, folder.checkpoints)
    time.sleep(1.7)
    slurm.warn()
    wait_for(slurm, lambda: slurm.statuses)
    assert slurm.statuses == [143] and slurm.requeued == 1, logs(slurm)
    assert slurm.over.wait(400), logs(slurm)
    assert slurm.statuses == [143, 0] and slurm.requeued == 1, logs(slurm)
    said = logs(slurm)
    assert (
        said.count("Ray runtime started") == 4 and "interrupted; the same command" in said and "Traceback" not in said
    )
    assert read(folder, 2)["step"] % EPOCH, "else it went on from the end of an epoch"
    assert read(folder, 1)["state"] == "released"
    assert outcome(folder) == undisturbed(tmp_path, EPOCHS)
    assert_nothing_is_left(slurm)
    token = slurm.shared / "home/.ray/auth_token"
    assert token.stat().st_mode & 0o777 == 0o600
    record |= {"survived": "yes", "attempts": 2}


def test_it_is_cancelled_and_does_not_come_again(slurm):
    folder = submit(slurm)
    wait_for(slurm, folder.checkpoints)
    slurm.scancel({"words": ["41"]}, ())
    assert slurm.over.wait(90), logs(slurm)
    assert slurm.statuses[0] != 0 and not slurm.requeued, logs(slurm)
    assert_nothing_is_left(slurm)


def test_a_command_that_is_refused_ends_the_job_with_its_status(slurm):
    submit(slurm, " --set nothing=1")
    assert slurm.over.wait(400) and slurm.statuses == [2] and not slurm.requeued, logs(slurm)
    assert "nothing" in logs(slurm)
    assert_nothing_is_left(slurm)
