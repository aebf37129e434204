"""Sparse acting against the dense stack, and condensed networks against units computed one by one."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retable.platform.errors import UserError
from retable.tasks.rl.config import Bc, Dense, Erk, Grasp, Magnitude, Random, SmallDense, Snip, View
from retable.tasks.rl.model import BCQ_CLIP, bc_action, bcq_action, build, generator, load, unstack
from retable.tasks.rl.play.evaluate import rollout
from retable.tasks.rl.predict import predict
from retable.tasks.rl.prune.prune import diagnose
from retable.tasks.rl.sparse import inference
from tests.rl.toys import config, learner, train

torch.set_num_threads(1)
WIDE = {"actor": (60, 50), "critic": (50, 60), "vae": (90, 80)}
METHODS = [Random(sparsity=s) for s in (0.0, 0.5, 0.84, 0.9, 0.95, 0.99, 0.999)]
METHODS += [Snip(sparsity=s) for s in (0.5, 0.95, 0.99)] + [Grasp(sparsity=s) for s in (0.5, 0.95, 0.99)]
METHODS += [Magnitude(sparsity=0.95), Erk(sparsity=0.95), SmallDense(sparsity=0.9), Dense()]
SHAPES = [(1, 1), (1, 9), (7, 1), (10, 100), (1000, 1)]
"""Observations and candidates: a vector, columns, and more columns than a block."""


def drawn(observations, candidates, seed=0):
    source = torch.Generator().manual_seed(seed)
    states = 4 * torch.randn(observations, 5, generator=source)
    return states, 2 * torch.randn(observations * candidates, 4, generator=source)


def check_bc(networks, weights, states, noise):
    """Compare one member's actions with those of the dense stack."""
    wanted = bc_action(networks, states[None], noise[None])[0]
    found = inference.bc(weights, networks.vae.max_action)(states, noise)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def check_bcq(networks, weights, states, noise):
    """Compare actions with the dense stack's candidates: the best, or one whose value ties with it to rounding."""
    assert networks.actor is not None and networks.critic is not None
    repeated = states.repeat_interleave(len(noise) // len(states), 0)[None]
    with torch.no_grad():
        actions = networks.actor(repeated, networks.vae.decode(repeated, noise[None].clamp(-BCQ_CLIP, BCQ_CLIP)))
        values = networks.critic.q1(repeated, actions).view(len(states), -1)
    best = values.max(1, keepdim=True).values
    tied = values >= best - 1e-5 * best.abs().clamp_min(1)
    act = inference.bcq(weights, networks.vae.max_action, networks.actor.perturbation)
    found = act(states, noise)
    assert found.shape == (len(states), 2) and found.dtype == torch.float32
    off = (found[:, None] - actions.view(len(states), -1, 2)).abs().amax(2)
    assert (off.masked_fill(~tied, torch.inf).min(1).values <= 1e-5).all()
    wanted = bcq_action(networks, states[None], noise[None])[0]
    clear = tied.sum(1) == 1
    torch.testing.assert_close(found[clear], wanted[clear], rtol=0, atol=1e-5)


@pytest.mark.parametrize("prune", METHODS, ids=repr)
def test_actions_are_those_of_the_dense_stack(prune):
    trained, _ = learner([config(prune=prune, seed=3, **WIDE)], max_action=2.0)
    weights = unstack(trained.networks, 0)
    for shape in SHAPES:
        check_bc(trained.networks, weights, *drawn(shape[0], 1))
        check_bcq(trained.networks, weights, *drawn(*shape))


def test_trained_weights_of_one_member_of_a_stack():
    configs = [config(seed=seed, prune=Snip(sparsity=0.95), **WIDE) for seed in (0, 1)]
    trained, _ = train(configs, 30)
    for member, c in enumerate(configs):
        weights = unstack(trained.networks, member)
        assert inference.wins(weights, "bcq") and inference.wins(weights, "bc")
        alone = build([c], 5, 2, 1.0)
        load(alone, 0, weights)
        check_bc(alone, weights, *drawn(10, 1))
        check_bcq(alone, weights, *drawn(10, 30))


@pytest.mark.parametrize("lost", [("vae.d1",), ("vae.d2",), ("actor.l3", "critic.l1"), ("vae.d3", "critic.l3"), ()])
def test_layers_of_which_nothing_is_left(lost):
    c = config(**WIDE)
    networks = build([c], 5, 2, 1.0)
    weights = unstack(networks, 0)
    for name in weights:
        if name.endswith(".weight") and (not lost or name.startswith(lost)):
            weights[name].zero_()
    load(networks, 0, weights)
    for observations in (1, 20):
        check_bc(networks, weights, *drawn(observations, 1))
        check_bcq(networks, weights, *drawn(observations, 5))
    action = inference.bc(weights, 1.0)(*drawn(3, 1))
    if not lost:
        torch.testing.assert_close(action, torch.tanh(weights["vae.d3.bias"]).expand(3, 2))
        sizes = [layer.weight.shape for layer in inference.network(weights, inference.DECODER)]
        assert sizes == [(0, 9), (0, 0), (2, 0)]


def test_zeros_with_a_sign_are_zeros():
    networks = build([config(**WIDE)], 5, 2, 1.0)
    weights = unstack(networks, 0)
    source = torch.Generator().manual_seed(0)
    for value in weights.values():
        value[torch.rand(value.shape, generator=source) < 0.9] = -0.0
    load(networks, 0, weights)
    sparse = inference.network(weights, inference.DECODER)[1].weight
    assert sparse.layout == torch.sparse_csr and sparse.values().all()
    check_bc(networks, weights, *drawn(20, 1))
    check_bcq(networks, weights, *drawn(20, 5))


def one_by_one(layers, inputs):
    """Compute a network for one vector, unit by unit, in Python's numbers."""
    values = inputs
    for depth, (weight, bias) in enumerate(layers):
        sums = [b + sum(w * v for w, v in zip(row, values, strict=True)) for row, b in zip(weight, bias, strict=True)]
        values = sums if depth == len(layers) - 1 else [max(total, 0.0) for total in sums]
    return values


@st.composite
def whole_numbered(draw):
    """Layers of small whole numbers, most of them 0: their sums are exact in any order."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=4, max_size=5))
    number = st.sampled_from([0.0, 0.0, 0.0, -0.0, 1.0, -2.0, 3.0])
    layers = []
    for inputs, outputs in pairwise(sizes):
        entries = draw(st.lists(number, min_size=inputs * outputs, max_size=inputs * outputs))
        bias = draw(st.lists(st.integers(-3, 3), min_size=outputs, max_size=outputs))
        weight = torch.tensor(entries, dtype=torch.float64).view(outputs, inputs)
        layers.append((weight, torch.tensor(bias, dtype=torch.float64)))
    return layers, [draw(st.lists(st.integers(-4, 4), min_size=sizes[0], max_size=sizes[0])) for _ in range(4)]


@settings(max_examples=100, deadline=None)
@given(whole_numbered())
def test_a_condensed_network_computes_the_same_with_the_connected_units_alone(case):
    layers, inputs = case
    before = [(weight.clone(), bias.clone()) for weight, bias in layers]
    found = inference.condense(layers)
    plain = [(weight.tolist(), bias.tolist()) for weight, bias in layers]
    small = [(weight.tolist(), bias.tolist()) for weight, bias in found]
    for vector in inputs:
        assert one_by_one(small, vector) == one_by_one(plain, vector)
    for (weight, bias), (first_weight, first_bias) in zip(layers, before, strict=True):
        assert torch.equal(weight, first_weight) and torch.equal(bias, first_bias), "the caller's weights stay"
    assert all(weight.dtype == bias.dtype == torch.float64 for weight, bias in found)
    if len(layers) == 3:
        seen = diagnose({f"l{i + 1}": weight != 0 for i, (weight, _) in enumerate(layers)}, 1)
        assert sum(len(bias) for _, bias in found[:-1]) == seen.units - seen.unconnected
        assert sum(int((weight != 0).sum()) for weight, _ in found) == seen.effective


def test_csr_holds_the_matrix_with_narrow_indices():
    weight = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 3.0]])
    found = inference.csr(weight)
    assert found.crow_indices().tolist() == [0, 1, 1, 3] and found.col_indices().tolist() == [1, 0, 2]
    assert found.crow_indices().dtype == found.col_indices().dtype == torch.int32
    assert torch.equal(found.to_dense(), weight)


def test_only_what_a_policy_needs_decides():
    weights = unstack(build([config(**WIDE)], 5, 2, 1.0), 0)
    for name, value in weights.items():
        if name.startswith("vae.d") and value.dim() == 2:
            value.view(-1)[value.numel() // 10 :] = 0
    assert inference.wins(weights, "bc"), "encoder, actor and critic play no part in behaviour cloning"
    assert not inference.wins(weights, "bcq"), "actor and critic are dense"


def test_the_limit_is_a_share_of_all_weights(monkeypatch):
    limit = round(inference.SPARSE_BELOW * 2000)
    below = torch.cat((torch.ones(limit - 1), torch.zeros(2001 - limit)))
    assert inference.pays([below[:700], below[700:]])
    assert not inference.pays([torch.cat((torch.ones(1), below[:-1]))])
    assert not inference.pays([torch.zeros(3, 0)]), "a layer without units"
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not inference.pays([below])


@pytest.mark.parametrize("prune", [Dense(), SmallDense(sparsity=0.95), Random(sparsity=0.5)])
def test_dense_networks_act_as_before(prune):
    trained, _ = learner([config(prune=prune)])
    assert not inference.wins(unstack(trained.networks, 0), "bcq")


def test_a_policy_that_cannot_act_says_so():
    cloning = unstack(build([config(algorithm=Bc())], 5, 2, 1.0), 0)
    with pytest.raises(ValueError, match="VAE alone"):
        inference.bcq(cloning, 1.0, 0.05)
    act = inference.bcq(unstack(build([config()], 5, 2, 1.0), 0), 1.0, 0.05)
    for rows in (8, 0):
        with pytest.raises(ValueError, match="no multiple"):
            act(torch.zeros(9, 5), torch.zeros(rows, 4))


@dataclass
class HopperData:
    """Where a run's data are from, as far as playing asks."""

    info: dict = field(default_factory=lambda: {"states": 11, "actions": 3, "max_action": 1.0, "simulator": "v5"})


def played(prune, policy, spoil=lambda weights: None):
    """Play Hopper with fresh weights: as the task does, and with the dense stack."""
    c = config(environment="Hopper", prune=prune, **WIDE)
    trained, _ = learner([c], states=11, actions=3)
    weights = unstack(trained.networks, 0)
    spoil(weights)
    load(trained.networks, 0, weights)
    view = View(policy=policy, episodes=2, samples=20, seed=7)
    noise, act = generator(7, "rl.noise.acting"), {"bcq": bcq_action, "bc": bc_action}[policy]
    rows = 2 * (20 if policy == "bcq" else 1)

    def choose(observations):
        states = torch.from_numpy(observations)[None]
        return act(trained.networks, states, torch.randn(1, rows, 6, generator=noise))[0].numpy()

    return predict(c, view, weights, HopperData(), "all"), rollout(choose, "Hopper-v5", 2, 7)


def refuse(*args):
    raise AssertionError("not this way")


@pytest.mark.parametrize("policy", ["bcq", "bc"])
def test_sparse_runs_are_evaluated_sparse(monkeypatch, policy):
    monkeypatch.setitem(predict.__globals__, f"{policy}_action", refuse)
    found, wanted = played(Random(sparsity=0.95), policy)
    np.testing.assert_allclose(found["returns"], wanted["returns"], rtol=1e-3)
    np.testing.assert_array_equal(found["lengths"], wanted["lengths"])


@pytest.mark.parametrize("policy", ["bcq", "bc"])
@pytest.mark.parametrize("prune", [Dense(), Random(sparsity=0.5)])
def test_other_runs_are_evaluated_bit_for_bit_as_before(monkeypatch, prune, policy):
    monkeypatch.setattr(inference, policy, refuse)
    found, wanted = played(prune, policy)
    np.testing.assert_array_equal(found["returns"], wanted["returns"])
    np.testing.assert_array_equal(found["lengths"], wanted["lengths"])


@pytest.mark.parametrize(
    ("where", "value"), [("vae.d1.weight", torch.nan), ("vae.d1.weight", torch.inf), ("vae.d3.bias", torch.nan)]
)
def test_a_sparse_run_that_diverged_is_an_error(where, value):
    def spoil(weights):
        weights["vae.d2.weight"][:, 0] = 0  # the first unit leads nowhere: only 0 x NaN shows what it holds
        weights[where][0] = value

    with pytest.raises(UserError, match=r"actions are not finite; its training has diverged"):
        played(Random(sparsity=0.95), "bc", spoil)
