"""Refusals of what would hang, careful defaults, and the cluster file."""

import os
import stat
from pathlib import Path

import pytest
import yaml

from retable.platform import cluster
from retable.platform.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be a cluster of some size."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def be(**resources):
        monkeypatch.setattr(cluster, "cluster_resources", lambda: resources)

    return be


@pytest.mark.parametrize(("cpus", "workers"), [(2, 2), (2, 1), (2, 4), (8, 8), (8, 2), (64, 16)])
def test_workers_leave_room_for_their_trial(machine, cpus, workers):
    machine(CPU=float(cpus))
    share = cluster.cpu_share(workers)
    assert 0.45 <= share <= 1 and workers * share + 0.01 <= cpus, "else they would wait for ever"


def test_more_workers_than_the_machine_can_run_are_refused(machine):
    machine(CPU=2.0)
    with pytest.raises(UserError, match="--workers 9 is more than 2 CPUs can run; use at most 4"):
        cluster.cpu_share(9)
    assert cluster.cpu_share(4) > 0


def test_what_the_cluster_lacks_is_refused_unless_it_may_grow(machine, monkeypatch):
    machine(CPU=2.0)
    with pytest.raises(UserError, match="wants 1 GPUs and the cluster has 0"):
        cluster.check_room("GPU", 1)
    with pytest.raises(UserError, match="wants 4 CPUs and the cluster has 2"):
        cluster.check_room("CPU", 4)
    cluster.check_room("CPU", 2)
    cluster.check_room("GPU", 0)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    cluster.check_room("GPU", 1)


def test_ray_starts_quietly_with_a_private_token_and_ends():
    import ray

    mask = os.umask(0o022)
    try:
        with cluster.ray_cluster():
            assert ray.is_initialized()
            assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
            with cluster.ray_cluster():
                pass
            assert ray.is_initialized(), "an inner one leaves the outer one running"
            seen = ray.get(ray.remote(lambda: os.environ.get("PYTHONPATH", "")).remote())
            assert str(ROOT) in seen.split(os.pathsep)
            token = Path("~/.ray/auth_token").expanduser()
            assert not token.exists() or not stat.S_IMODE(token.stat().st_mode) & 0o077
        assert not ray.is_initialized()
    finally:
        assert os.umask(mask) == 0o022


def test_the_cluster_file_fits_rays_schema():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    validate_config(prepare_config(dict(config)))
    assert config["available_node_types"][config["head_node_type"]]["resources"]["CPU"] == 0
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        assert any("RAY_AUTH_MODE=token" in command for command in commands)
