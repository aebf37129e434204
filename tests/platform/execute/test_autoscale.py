"""A cluster that grows from nothing: the nodes that the work asks for come, and go when it is done.

Ray's own `AutoscalingCluster` opens a file that its wheel lacks, and ends every Ray of the machine; this is our own
over the same fake provider, whose nodes are processes of this machine.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from retable.platform.execute import session
from tests.compare_cells import cells_of

pytestmark = pytest.mark.slow
PORT = 6379
"""The fake provider's nodes look for their head there, whatever it was told."""
CONFIG = """
cluster_name: fake
max_workers: 2
upscaling_speed: 1.0
idle_timeout_minutes: 0.1
provider:
  type: fake_multinode
  head_node_id: HEAD
  use_node_id_as_ip: true
  disable_node_updaters: true
  disable_launch_config_check: true
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, node_config: {}, max_workers: 0}
  worker: {resources: {CPU: 1}, node_config: {}, min_workers: 0, max_workers: 2}
auth: {}
docker: {}
file_mounts: {}
file_mounts_sync_continuously: false
cluster_synced_files: []
rsync_exclude: []
rsync_filter: []
initialization_commands: []
setup_commands: []
head_setup_commands: []
worker_setup_commands: []
head_start_ray_commands: []
worker_start_ray_commands: []
"""
LOOK = """
import ray
ray.init(logging_level="ERROR", log_to_driver=False)
print("CPUs", int(ray.cluster_resources().get("CPU", 0)))
"""


@pytest.fixture
def head():
    """The variables of who joins a head without CPUs, whose autoscaler may start two nodes of one CPU each.

    The autoscaler's configuration lies where Ray's launcher puts it: there we read what a cluster may become.
    """
    import ray
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    with socket.socket() as taken:
        if not taken.connect_ex(("127.0.0.1", PORT)):
            pytest.skip(f"port {PORT}, on which the fake provider insists, is taken")
    session.make_token()
    temporary = Path(tempfile.mkdtemp(prefix="r"))  # sockets' paths are short
    config = temporary / "ray_bootstrap_config.yaml"
    config.write_text(CONFIG.replace("HEAD", FAKE_HEAD_NODE_ID))
    words = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={PORT}", "--num-cpus=0"]
    words += [f"--autoscaling-config={config}", f"--temp-dir={temporary}", "--include-dashboard=false"]
    fake = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "0"}
    started = subprocess.Popen(words, env={**os.environ, **fake}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        where = {"RAY_ADDRESS": f"{ray.util.get_node_ip_address()}:{PORT}", "RAY_AUTH_MODE": "token"}
        token = Path("~/.ray/auth_token").expanduser()
        yield {**os.environ, **where, "RAY_AUTH_TOKEN_PATH": str(token), "HOME": str(temporary)}
    finally:
        family = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        started.wait(60)
        for process in family:  # nodes may outlive their head
            if process.is_running():
                process.kill()
        shutil.rmtree(temporary, ignore_errors=True)


def cpus(environment):
    """Return how many CPUs a cluster has; -1: it does not answer."""
    words = [sys.executable, "-W", "ignore", "-c", LOOK]
    said = subprocess.run(words, env=environment, capture_output=True, text=True).stdout
    return int(said.partition("CPUs")[2] or -1)


def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(1)


def reproduced(storage, environment):
    """Fill a table of the toy task by the command; return what it said."""
    words = [sys.executable, "-W", "ignore", "-m", "retable.platform.cli", "reproduce", "line/table1"]
    ended = subprocess.run(
        [*words, "--storage", str(storage)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def test_nodes_come_with_the_work_and_go_with_it_and_the_numbers_are_those_of_one_machine(head, tmp_path):
    until(lambda: cpus(head) == 0)
    reproduced(tmp_path / "cluster", head)
    assert cpus(head) == 2  # all that may come did, and each is idle for some seconds yet
    reproduced(tmp_path / "alone", dict(os.environ))
    (file,) = (tmp_path / "cluster").glob("**/line-table1*.csv")
    (other,) = (tmp_path / "alone").glob("**/line-table1*.csv")
    assert cells_of(file) == cells_of(other) and len(cells_of(file)) == 5
    until(lambda: cpus(head) == 0)
