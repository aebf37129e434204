"""Table 1 of the paper: bytes on disk."""

import shutil
import subprocess

import numpy as np
import pytest
import scipy.sparse
import torch

from retable.tasks.rl.config import Bc, Bcq, Config, Random
from retable.tasks.rl.formats.compact import deployable, pack
from retable.tasks.rl.formats.sizes import archived_bytes, every_size, saved, stored_bytes
from retable.tasks.rl.model import build, unstack
from retable.tasks.rl.prune import validate as validating
from retable.tasks.rl.prune.prune import masks
from retable.tasks.rl.prune.validate import validate
from tests.rl import toys

# MB of 1e6 bytes: dense, dense sparse-indexed, SNIP 95 %
TABLE = {
    "actor": (0.5287, 2.6318, 0.14297),
    "critic": (1.04492, 5.2035, 0.2824),
    "vae": (4.7621, 23.7739, 1.2303),
}


@pytest.fixture(scope="module")
def half_cheetah():
    config = Config(prune=Random(sparsity=0.95))
    networks = build([config], 17, 6, 1.0)
    return networks, masks([config], networks, lambda member, size: {})[0]


@pytest.mark.parametrize("name", TABLE)
def test_the_bytes_are_those_of_table_1(half_cheetah, name):
    networks, found = half_cheetah
    state = unstack(getattr(networks, name), 0)
    dense, indexed, pruned = TABLE[name]
    bytes_ = stored_bytes(state)
    assert bytes_["dense"] / 1e6 == pytest.approx(dense, rel=0.005)
    assert bytes_["sparse"] / 1e6 == pytest.approx(indexed, rel=0.005)
    kept = {k: v * found[name][k[:-7]][0] if k.endswith(".weight") else v for k, v in state.items()}
    assert stored_bytes(kept)["sparse"] / 1e6 == pytest.approx(pruned, rel=0.005)
    assert stored_bytes(kept)["dense"] == bytes_["dense"]


def test_a_view_counts_without_the_rest_of_its_storage():
    whole = torch.randn(10, 500, 20)
    assert stored_bytes({"w": whole[3]}) == stored_bytes({"w": whole[3].clone()})


def test_a_kept_weight_takes_20_bytes_and_a_bias_12():
    weight, bias = torch.zeros(100, 100), torch.zeros(100)
    empty = stored_bytes({"w": weight, "b": bias})["sparse"]
    weight.view(-1)[::2], bias[::4] = 1.0, 1.0
    assert stored_bytes({"w": weight, "b": bias})["sparse"] - empty == pytest.approx(5000 * 20 + 25 * 12, abs=400)


@pytest.mark.parametrize("shape", [(60, 90), (3, 1000), (1, 7)])
def test_other_formats_take_what_scipy_and_numpy_take(shape):
    source = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=source) * (torch.rand(shape, generator=source) < 0.3)
    found, empty = (stored_bytes({"w": w, "b": torch.ones(5)}) for w in (weight, torch.zeros(shape)))
    matrix = scipy.sparse.csr_array(weight.numpy())
    kept = matrix.nnz
    wanted = {
        "csr_int64": 4 * kept + 8 * kept,
        "csr_int32": matrix.data.nbytes + matrix.indices.nbytes,
        "coo_int16": 8 * kept,
        "bitmask": 4 * kept,
    }
    for form, size in wanted.items():
        assert found[form] - empty[form] == pytest.approx(size, abs=3 * 64), form
    starts = matrix.indptr.nbytes  # int32
    assert empty["csr_int64"] - empty["csr_int32"] == pytest.approx(starts, abs=64)
    assert empty["bitmask"] - empty["coo_int16"] == pytest.approx(np.packbits(weight.numpy() != 0).nbytes, abs=512)


def test_archives_are_what_the_programs_unpack():
    weights = {"w": torch.zeros(50, 70), "b": torch.ones(50)}
    found = archived_bytes(weights)
    file = saved(weights)
    for form, tool in (("xz", ["xz", "-9"]), ("zstd", ["zstd", "-19"])):
        assert found[form] < len(file) / 10
        if shutil.which(tool[0]):  # their containers differ by a few bytes: checksums, block sizes
            packed = subprocess.run([*tool, "-c"], input=file, capture_output=True, check=True).stdout
            assert found[form] == pytest.approx(len(packed), abs=24)


def test_sizes_are_those_of_the_files():
    weights = {name: value.masked_fill(torch.rand(value.shape) < 0.95, 0) for name, value in small().items()}
    found = every_size(weights)
    actor = {name: value for name, value in weights.items() if name.startswith("actor.")}
    assert found["bytes/actor/compact"] == len(pack(actor))
    assert found["bytes/deployable_bc/compact_int8"] == len(pack(deployable(weights, "bc"), "int8"))
    assert found["bytes/all/sparse"] == sum(found[f"bytes/{network}/sparse"] for network in TABLE)
    assert found["smaller/deployable_bcq/compact"] == found["bytes/all/dense"] / len(pack(deployable(weights, "bcq")))


def test_weights_of_a_diverged_run_have_no_int8_size_and_break_nothing():
    found = every_size({name: torch.full_like(value, torch.nan) for name, value in small().items()})
    assert "bytes/vae/compact_float16" in found and "bytes/vae/compact_int8" not in found


def test_a_run_counts_its_files_at_its_end_only(monkeypatch):
    monkeypatch.setattr(validating, "ARCHIVED_FROM", 4)
    monkeypatch.setattr(validating, "every_size", lambda weights, archives: {"archives": archives})
    for algorithm, archived in ((Bcq(), True), (Bc(), False)):
        learner, toy = toys.learner([toys.config(epochs=2, steps=2, algorithm=algorithm)])
        for step in range(4):
            learner.step(toy.batch(step))
            (found,) = validate(learner, toy)
            assert found.get("archives") is (archived if step == 3 else None)


def small():
    return unstack(build([toys.config()], 5, 2, 1.0), 0)
