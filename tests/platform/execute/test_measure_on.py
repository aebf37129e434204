"""Measurements on a node that has what `--measure-on` names: found, waited for, and alone there."""

import re
import threading

import pytest

from retable.platform.execute import session
from retable.platform.execute.scoring import measure_all
from retable.platform.plan.plan import Timing, compile_plan
from retable.platform.spec.resources import Resources
from retable.platform.spec.table import Measurement
from retable.platform.spec.task import find


def where(config):
    """Return where a measurement is taken, as numbers."""
    import ray

    place = ray.get_runtime_context()
    return {"node": float(int(place.get_node_id()[:8], 16)), "cpus": float(place.get_assigned_resources()["CPU"])}


class Holder:
    """What takes CPUs, and does nothing with them."""

    def there(self):
        return True


def leave_a_holder(config):
    """Begin what holds a tenth of a CPU from the end of this measurement on."""
    import ray

    ray.remote(num_cpus=0.1, name="holder", lifetime="detached")(Holder).remote()
    return {"began": 1.0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket that Ray leaves
def test_a_measurement_runs_on_the_node_that_has_the_resource_with_all_its_cpus(storage, monkeypatch, capfd):
    import ray
    from ray.cluster_utils import Cluster

    session.add_to_path()
    session.make_token()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1, include_dashboard=False)
        bench = nodes.add_node(num_cpus=2, resources={"bench": 1}, include_dashboard=False)
        ray.init(address=nodes.address, log_to_driver=False)
        monkeypatch.setattr("retable.platform.execute.scoring.WAIT", 3.0)
        holder = ray.remote(num_cpus=2, resources={"bench": 0.001})(Holder).remote()
        ray.get(holder.there.remote())
        end = threading.Timer(10.0, ray.kill, [holder])
        end.start()
        task = find("line")
        row = Measurement(label="m", measure=where, overrides={})
        plan = compile_plan({}, storage)
        plan.measure_on = "bench"
        timing = Timing(task, task.config(), row, "measurements/line/where-1-chip.json", False)
        plan.timings[timing.path] = timing
        assert measure_all(plan, Resources()) == {} and plan.unmeasured == []
        (name,) = storage.list("measurements/line")
        found = storage.read_json(f"measurements/line/{name}")
        assert found["metrics"] == {"node": float(int(bench.node_id[:8], 16)), "cpus": 2.0}
        assert found["measured on"] == "bench" and found["provenance"]["device"]
        end.join()
        assert "note: measurements wait: others hold 2 of the node's 2 CPUs" in capfd.readouterr().err
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket that Ray leaves
def test_a_measurement_that_waits_says_what_holds_its_node(storage, monkeypatch, capfd):
    """What holds it may come between two measurements; it is told once."""
    import ray

    monkeypatch.setattr("retable.platform.execute.scoring.WAIT", 3.0)
    task = find("line")
    plan = compile_plan({}, storage)
    rows = {"a": leave_a_holder, "b": where, "c": where}
    for name, measure in rows.items():
        row = Measurement(label=name, measure=measure, overrides={})
        timing = Timing(task, task.config(), row, f"m/line/{name}.json", False)
        plan.timings[timing.path] = timing
    with session.ray_cluster():
        end = threading.Timer(15.0, lambda: ray.kill(ray.get_actor("holder")))
        end.start()
        assert measure_all(plan, Resources()) == {}
        end.join()
    said = capfd.readouterr().err
    assert said.count("measurements wait: others hold 0.1 of the node's") == 1
    assert "; end what holds them (`retable serve` does, too), or name another node with --measure-on" in said
    assert re.search(r"; on it are .*Holder \(pid \d+\)", said)
