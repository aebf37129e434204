"""Small exported files that can be served, and the processes that serve them."""

import psutil

from retable.tasks.rl.export import read_export, write_policy
from retable.tasks.rl.model import build, unstack
from tests.rl import toys

INFO = {"states": 4, "actions": 1, "max_action": 1.0, "behaviour_return": 100.0, "simulator": "v5"}


def policy_file(seed=0, policy="bcq"):
    """Return the file of an untrained policy of four states and one action."""
    config = toys.config(environment="InvertedPendulum", seed=seed)
    return write_policy(config, INFO, unstack(build([config], 4, 1, 1.0), 0), policy, "float32")


def policy(seed=0, policy="bcq"):
    return read_export(policy_file(seed, policy), "toy")


def replicas(deployment):
    """Return the process ids of a deployment's replicas, started by this process."""
    ours, name = psutil.Process().children(recursive=True), f"ServeReplica:retable:{deployment}"
    return {each.pid for each in ours if name in " ".join(each.cmdline())}
