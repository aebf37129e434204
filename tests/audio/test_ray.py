"""Training under Ray: two Ray Train workers, and a stream through Ray Data, give the curve of one process."""

import shutil

import pytest

import retable
from retable.platform.execute.session import ray_cluster
from retable.platform.spec.resources import Resources

STEADY = {
    "audio.patchout_frequency": 0,
    "audio.patchout_time": 0,
    "text.dropout": 0.0,
    "learn_temperature": True,
    "epochs": 2,
    "steps": 3,
}
"""Nothing random in the networks; what is drawn of the data depends on seed and place alone."""


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster(nested=True):
        yield


def train(where, resources):
    return retable.train("audio", set=STEADY, scale="smoke", storage=str(where), resources=resources)


def curve(trained):
    names = ("loss", "temperature", "validation_loss", "validation_map10")
    return [[row[name] for name in names] for row in trained.history]


@pytest.mark.slow
def test_two_train_workers_and_a_stream_give_the_curve_of_one_process(cluster, tmp_path):
    alone = curve(train(tmp_path / "alone", Resources()))
    assert len(alone) == 2 and alone[0] != alone[1]
    for name, resources in {"stream": Resources(stream=True), "group": Resources(workers=2)}.items():
        shutil.copytree(tmp_path / "alone/data", tmp_path / name / "data")
        found = curve(train(tmp_path / name, resources))
        if name == "stream":
            assert found == alone
        assert all(row == pytest.approx(other, rel=1e-4) for row, other in zip(found, alone, strict=True))
