"""Sparse training: its gradients in float64, its numbers beside masked dense training, and files that serve both."""

import copy
import io

import pytest
import torch

from retable.tasks.rl.config import Bc, Bcq, Dense, Random, Snip
from retable.tasks.rl.model import layers
from retable.tasks.rl.sparse import training as training_sparse
from retable.tasks.rl.sparse.training import SPARSE_BELOW, Pattern, linear, pays
from tests.rl.toys import Worker, config, learner

torch.set_num_threads(1)
WIDE = {"actor": (40, 30), "critic": (40, 30), "vae": (60, 50)}
PRUNED = Random(sparsity=0.9)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def mask_of(outputs, inputs, share, seed=0):
    return torch.rand(outputs, inputs, generator=torch.Generator().manual_seed(seed)) < share


def masked(monkeypatch, *arguments):
    """Make a learner whose pruned layers are all dense: masked, as on a GPU."""
    with monkeypatch.context() as patch:
        patch.setattr(training_sparse, "pays", lambda mask: False)
        return learner(*arguments)


def patterns(trained):
    return {name: layer.pattern for name, layer in layers(trained.networks).items()}


def assert_equal(got, wanted, **tolerance):
    assert got.keys() == wanted.keys()
    for name in got:
        torch.testing.assert_close(
            got[name], wanted[name], **(tolerance or {"rtol": 0, "atol": 0}), msg=f"{name} differs"
        )


def assert_states(got, wanted, **tolerance):
    for part in ("weights", "targets", "masks"):
        assert_equal(got[part], wanted[part], **tolerance)
    for kind in ("exp_avg", "exp_avg_sq", "step"):
        assert_equal(got["optimizer"][kind], wanted["optimizer"][kind], **tolerance)
    assert got["updates"] == wanted["updates"]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 1.0])
def test_a_pattern_keeps_what_its_mask_keeps(share):
    mask = mask_of(13, 7, share)
    dense = torch.randn(13, 7)
    pattern = Pattern.of(mask)
    assert torch.equal(pattern.mask(), mask) and torch.equal(pattern.gather(dense), dense[mask])
    assert torch.equal(pattern.scatter(pattern.gather(dense)), dense * mask)
    assert copy.deepcopy(pattern) is pattern
    values = pattern.gather(dense)
    right, left = torch.randn(7, 5), torch.randn(13, 5)
    torch.testing.assert_close(pattern.product(values, right), (dense * mask) @ right)
    torch.testing.assert_close(pattern.transposed_product(values, left), (dense * mask).T @ left)
    torch.testing.assert_close(pattern.dots(left, right), (left @ right.T)[mask])


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_gradients_are_those_of_the_masked_layer(share):
    """In float64: against finite differences, and against autograd through the masked dense layer."""
    mask = mask_of(9, 11, share)
    pattern, generator = Pattern.of(mask), torch.Generator().manual_seed(1)
    weight, bias, rows, back = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((9, 11), (9,), (6, 11), (6, 9))
    )
    sparse = [value.clone().requires_grad_() for value in (pattern.gather(weight), bias, rows)]
    assert torch.autograd.gradcheck(lambda *values: linear(pattern, *values), sparse)
    dense = [value.clone().requires_grad_() for value in (weight, bias, rows)]
    result = linear(pattern, *sparse)
    wanted = torch.nn.functional.linear(dense[2], dense[0] * mask, dense[1])
    torch.testing.assert_close(result, wanted)
    got = torch.autograd.grad(result, sparse, back)
    expected = torch.autograd.grad(wanted, dense, back)
    torch.testing.assert_close(pattern.scatter(got[0]), expected[0])
    torch.testing.assert_close(got[1:], expected[1:])


def test_only_gradients_that_are_wanted_are_computed(monkeypatch):
    pattern = Pattern.of(mask_of(9, 11, 0.2))
    values, bias, rows = pattern.gather(torch.randn(9, 11)), torch.randn(9), torch.randn(6, 11, requires_grad=True)
    monkeypatch.setattr(Pattern, "dots", lambda *_: pytest.fail("the frozen critic's weights need no gradient"))
    linear(pattern, values, bias, rows).sum().backward()
    assert rows.grad is not None


def test_what_trains_sparsely():
    assert pays(mask_of(100, 100, SPARSE_BELOW - 0.05)) and not pays(mask_of(100, 100, SPARSE_BELOW + 0.05))
    worker = Worker()
    trained, _ = learner([config(**WIDE, prune=PRUNED)], worker)
    assert all(patterns(trained).values()) and all(layer.mask is None for layer in layers(trained.networks).values())
    assert "trained sparsely: vae.e1" in worker.notes[0] and "as dense ones: none" in worker.notes[0]
    assert sum(value.numel() for value in trained.networks.parameters()) < 0.2 * sum(
        value.numel() for value in trained.state_dict()[0]["weights"].values()
    )
    online, target = trained.networks.actor.l2, trained.targets["actor"].l2
    assert online.pattern is target.pattern and online.weight is not target.weight
    for others in (
        [config(**WIDE, prune=Random(sparsity=0.1))],
        [config(**WIDE, prune=Dense())],
        [config(**WIDE, prune=PRUNED), config(**WIDE, prune=PRUNED, seed=1)],  # a stack
    ):
        assert not any(patterns(learner(others)[0]).values())


@pytest.mark.parametrize(
    ("changes", "updates"),
    [
        ({"prune": PRUNED}, 25),
        ({"prune": Snip(sparsity=0.8, batch=10)}, 25),  # some layers sparse, some not
        ({"prune": PRUNED, "algorithm": Bc()}, 25),
        ({"prune": Random(sparsity=0.9, networks="critic")}, 25),  # one network sparse, the others dense and whole
        pytest.param({"prune": PRUNED}, 1000, marks=pytest.mark.slow),
        pytest.param({"prune": Snip(sparsity=0.8, batch=10)}, 1000, marks=pytest.mark.slow),
    ],
)
def test_the_numbers_are_those_of_masked_dense_training(monkeypatch, changes, updates):
    runs = [config(**WIDE, **changes)]
    sparse, toy = learner(runs)
    dense, _ = masked(monkeypatch, runs)
    assert any(patterns(sparse).values()) and not any(patterns(dense).values())
    assert_states(sparse.state_dict()[0], dense.state_dict()[0])
    for update in range(updates):
        batch = toy.batch(update)
        got, wanted = sparse.step(batch), dense.step(batch)
        # Rounding grows with the updates, as it does between two processors.
        assert_equal(got, wanted, rtol=1e-3 if update > 100 else 1e-4, atol=1e-3 if update > 100 else 1e-5)
    tolerance = CLOSE if updates <= 100 else {"rtol": 2e-2, "atol": 2e-3}
    assert_states(sparse.state_dict()[0], dense.state_dict()[0], **tolerance)


def through_a_file(states):
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("prune", [PRUNED, Random(sparsity=0.9, networks="vae")])
def test_a_run_goes_on_in_the_other_representation(monkeypatch, prune):
    """Sparse, dense, sparse again: what files hold is the same bit for bit."""
    runs = [config(**WIDE, prune=prune)]
    first, toy = learner(runs)
    for update in range(5):
        first.step(toy.batch(update))
    states = first.state_dict()
    dense, _ = masked(monkeypatch, runs)
    dense.load_state_dict(through_a_file(states))
    assert_states(dense.state_dict()[0], states[0])
    back, _ = learner(runs)
    back.load_state_dict(through_a_file(dense.state_dict()))
    assert_states(back.state_dict()[0], states[0])
    for update in range(5, 15):
        for each in (first, dense, back):
            each.step(toy.batch(update))
    assert_states(back.state_dict()[0], first.state_dict()[0])  # interrupted equals uninterrupted
    assert_states(dense.state_dict()[0], first.state_dict()[0], **CLOSE)


def test_other_masks_are_taken_over(monkeypatch):
    """A run that goes on keeps its masks, also where this processor's scores would give others."""
    elsewhere, toy = masked(monkeypatch, [config(**WIDE, prune=Random(sparsity=0.9), seed=5)])
    elsewhere.step(toy.batch(0))
    states = elsewhere.state_dict()
    here, _ = learner([config(**WIDE, prune=Random(sparsity=0.9), seed=6)])
    here.step(toy.batch(0))
    here.load_state_dict(states)
    assert_states(here.state_dict()[0], states[0])
    here._keys = elsewhere._keys
    for each in (here, elsewhere):
        each.step(toy.batch(1))
    assert_states(here.state_dict()[0], elsewhere.state_dict()[0], **CLOSE)


def test_a_reduced_target_stays_near():
    runs = [config(**WIDE, prune=PRUNED, algorithm=Bcq(target_precision="bfloat16"))]
    trained, toy = learner(runs)
    full, _ = learner([config(**WIDE, prune=PRUNED)])
    got, wanted = trained.step(toy.batch(0)), full.step(toy.batch(0))
    assert_equal(got, wanted, rtol=2e-2, atol=1e-3)
    assert all(value.dtype == torch.float32 for value in trained.state_dict()[0]["weights"].values())
