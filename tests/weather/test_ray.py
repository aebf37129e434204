"""Training under Ray: two Ray Train workers, and a stream through Ray Data, give the curve of one process."""

import pytest

import retable
from retable.platform.execute.session import ray_cluster
from retable.platform.spec.resources import Resources
from tests.weather.toys import SMALL, config, make, run

PLAIN = {"model.normalization": "instance", "model.dropout": 0.0}


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster(nested=True):
        yield


def curve(history):
    return [[row["loss"], row["validation_loss"], row["validation_iou"]] for row in history]


def close(left, right):
    return all(a == pytest.approx(b, rel=1e-4) for a, b in zip(left, right, strict=True)) and len(left) == 2


@pytest.mark.slow
def test_two_train_workers_and_a_stream_give_the_curve_of_one_process(cluster, tmp_path):
    changes = {name.replace(".", "__"): value for name, value in PLAIN.items()}
    alone = curve(run(make(tmp_path / "alone"), config(**changes)).history())
    for name, resources in {
        "trial": Resources(),
        "stream": Resources(stream=True),
        "group": Resources(workers=2),
    }.items():
        where = make(tmp_path / name).root
        trained = retable.train("weather", set={**SMALL, **PLAIN}, scale="paper", storage=where, resources=resources)
        found = curve(trained.history)
        assert found == alone if name != "group" else close(found, alone)
