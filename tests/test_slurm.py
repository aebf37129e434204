"""docs/slurm/retable.sbatch, run on two machines of namespaces by a small Slurm: preempted, cancelled, ended.

One test has a real Ray and a real training. The others have scripts in place of `ray`, `python` and `retable`.
"""

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
STAND_INS = {
    # The head listens, the worker says that it has joined; with /mnt/slow each gives up its first start, as Ray does.
    "ray": f"""
[ "$1" = get-auth-token ] && mkdir -p ~/.ray && exec touch ~/.ray/auth_token
echo "ray $* with $(ls -d /tmp/ray-*)"
[ -e /mnt/slow ] && [ ! -e /tmp/tried ] && touch /tmp/tried && exit 1
[[ "$*" == *--head* ]] || {{ touch /mnt/joined; exec sleep 1000; }}
exec {sys.executable} -c 'import socket
listening = socket.create_server(("0.0.0.0", 6379))
while True: listening.accept()'
""",
    # Counts nodes; with /mnt/alone only the head is ever there.
    "python": "[ -e /mnt/joined ] && [ ! -e /mnt/alone ]",
    # Trains until it is told to stop; with /mnt/trained it has little left to do.
    "retable": """
echo "retable $*"
trap 'echo checkpoint written; touch /mnt/trained; exit 143' TERM
[ "$1" = nonsense ] && exit 2
[ -e /mnt/trained ] && exit 0
touch /mnt/training
while :; do sleep 0.1; done
""",
}


@pytest.fixture
def slurm():
    """Two machines, on whose PATH are Slurm's programs and ours."""
    with machines() as made:
        found = Slurm([made.add("node1"), made.add("node2")], made.shared, SHARED)
        program(found, "retable", f'exec {sys.executable} -W ignore -m retable.platform.cli "$@"')
        (made.shared / "home").mkdir()
        yield found
        found.close()


@pytest.fixture
def pretended(slurm):
    """The same, with stand-ins."""
    for name, text in STAND_INS.items():
        program(slurm, name, text)
    return slurm


def program(slurm, name, text):
    path = slurm.shared / "bin" / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def submit(slurm, words):
    """Give the line of docs/cluster.md, with these words in place of its command."""
    (line,) = re.findall(r"^sbatch .*docs/slurm/retable.sbatch .*$", (ROOT / "docs" / "cluster.md").read_text(), re.M)
    for old, new in ((r"--nodes \d+ --gpus-per-node \d", "--nodes 2"), (r"reproduce .*", words)):
        line, count = re.subn(old, new, line)
        assert count == 1, line
    shared = str(slurm.shared)
    path = [f"{shared}/bin", str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {"PATH": ":".join(path), "HOME": f"{shared}/home", "SLURM_SOCKET": f"{shared}/socket"}
    env |= {"PYTHONPATH": str(ROOT), "RETABLE_TASKS": str(TASKS), "OMP_NUM_THREADS": "1"}
    told = subprocess.run(line, shell=True, cwd=ROOT, env=env, capture_output=True, text=True)
    assert told.stdout == "Submitted batch job 41\n", told.stderr


def wait_for(slurm, condition, seconds=900):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert not slurm.over.is_set() and time.monotonic() < deadline, logs(slurm)
        time.sleep(0.1)
    return found


def wait_for_file(slurm, name):
    wait_for(slurm, (slurm.shared / name).exists, 120)


def ended(slurm, seconds=120):
    """Wait for the end; return the statuses of the job's starts, and what it said. Nothing is left on the machines."""
    assert slurm.over.wait(seconds), logs(slurm)
    for machine in slurm.machines:
        _, said = machine.call("sh", "-c", "ps -eo args; ls /tmp")
        assert not re.search(r"raylet|gcs_server|ray start|retable|sleep 1000|ray-41", said), said
    return slurm.statuses, logs(slurm)


def logs(slurm):
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(slurm.shared.glob("*.log")))


def test_a_preempted_job_goes_on_from_its_checkpoint(slurm, tmp_path, record):
    record["fault"] = "Slurm job preempted, and started again by Slurm"
    task = find("line")
    config = override(task.config(), {"epochs": EPOCHS, "pause": 0.5})
    folder = RunFolder.of(Storage.open(slurm.shared / "results"), task, config)
    submit(slurm, f"train line --set epochs={EPOCHS} --set pause=0.5 --storage {SHARED}/results")
    wait_for(slurm, folder.checkpoints)
    time.sleep(1.7)
    slurm.warn()
    statuses, said = ended(slurm, 900)
    assert statuses == [143, 0] and slurm.requeued == 1, said
    assert said.count("Ray runtime started") == 4 and "interrupted; the same command" in said
    assert "Traceback" not in slurm.log().read_text()
    assert read(folder, 2)["step"] % EPOCH, "else it went on from the end of an epoch"
    assert read(folder, 1)["state"] == "released"
    assert outcome(folder) == undisturbed(tmp_path, EPOCHS)
    assert (slurm.shared / "home/.ray/auth_token").stat().st_mode & 0o777 == 0o600
    record |= {"survived": "yes", "attempts": 2}


def test_it_requeues_itself_with_the_same_words(pretended):
    submit(pretended, "train line --storage '/nfs/a b'")
    wait_for_file(pretended, "training")
    pretended.warn()
    statuses, said = ended(pretended)
    assert statuses == [143, 0] and pretended.requeued == 1 and said.count("checkpoint written") == 1
    assert said.count("retable train line --storage /nfs/a b\n") == 2
    assert "ray start --head --node-ip-address=10.77.0.1 --port=6379 --dashboard-host=127.0.0.1 --num-cpus=1" in said
    assert "ray start --address=10.77.0.1:6379 --num-cpus=1 --block with /tmp/ray-41\n" in said


def test_it_is_cancelled_and_does_not_come_again(pretended):
    submit(pretended, "train line")
    wait_for_file(pretended, "training")
    pretended.scancel({"words": ["41"]}, ())
    statuses, said = ended(pretended)
    assert statuses == [143] and not pretended.requeued and "checkpoint written" in said


def test_a_command_that_is_refused_ends_the_job_with_its_status(pretended):
    submit(pretended, "nonsense")
    assert ended(pretended)[0] == [2] and not pretended.requeued


def test_a_node_that_starts_too_slowly_for_ray_is_started_again(pretended):
    (pretended.shared / "slow").touch()
    submit(pretended, "nonsense")
    statuses, said = ended(pretended)
    assert statuses == [2] and said.count("ray start --head") == said.count("ray start --address") == 2


def test_a_job_that_is_preempted_before_its_command_begins_is_requeued(pretended):
    (pretended.shared / "alone").touch()
    submit(pretended, "train line")
    wait_for_file(pretended, "joined")
    pretended.warn()
    wait_for(pretended, lambda: pretended.statuses)
    (pretended.shared / "trained").touch()
    (pretended.shared / "alone").unlink()
    statuses, said = ended(pretended)
    assert statuses == [143, 0] and said.count("retable train line") == 1
