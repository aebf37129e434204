"""Stacked networks against ordinary ones, their shapes, initialisation and acting rules."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from retable.tasks.rl.config import Bc, Bcq, Config, SmallDense, Snip
from retable.tasks.rl.model import (
    StackedLinear,
    bc_action,
    bcq_action,
    build,
    layers,
    load,
    unstack,
    weight_count,
    widths,
)
from tests.rl.reference_bcq import ReferenceBcq
from tests.rl.toys import config

torch.set_num_threads(1)


def reference(networks, member, c):
    plain = ReferenceBcq(5, 2, c.actor, c.critic, c.vae)
    plain.load(unstack(networks, member))
    return plain


def test_a_layer_starts_as_torch_linear_does():
    torch.manual_seed(3)
    plain = [nn.Linear(7, 4), nn.Linear(4, 9)]
    sources = [torch.Generator().manual_seed(8), torch.Generator().manual_seed(3)]
    for layer, shape in zip(plain, ((7, 4), (4, 9)), strict=True):
        ours = StackedLinear(*shape, sources)
        torch.testing.assert_close(ours.weight[1], layer.weight, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(ours.bias[1], layer.bias, rtol=1e-6, atol=1e-7)
        assert not torch.allclose(ours.weight[0], layer.weight)


def test_a_stack_computes_what_ordinary_networks_do():
    configs = [config(seed=seed) for seed in (4, 0, 9)]
    networks = build(configs, 5, 2, 1.0)
    state, action, z = torch.randn(3, 6, 5), torch.rand(3, 6, 2) * 2 - 1, torch.randn(3, 6, 4)
    moved, values, coded = networks.actor(state, action), networks.critic(state, action), networks.vae(state, action, z)
    for member, c in enumerate(configs):
        plain = reference(networks, member, c)
        s, a = state[member], action[member]
        torch.testing.assert_close(moved[member], plain.actor(s, a))
        for ours, theirs in zip(values, plain.critic(s, a), strict=True):
            torch.testing.assert_close(ours[member], theirs)
        reconstruction, mean, std = plain.vae(s, a, z[member])
        torch.testing.assert_close(coded[0][member], reconstruction)
        torch.testing.assert_close(coded[1][member], mean)
        torch.testing.assert_close(coded[2][member].exp(), std)


def test_the_range_of_actions_and_of_log_std_is_kept():
    networks = build([config()], 5, 2, 2.0)
    with torch.no_grad():
        networks.vae.log_std.bias.fill_(99.0)
        networks.vae.d3.bias.fill_(99.0)
        networks.actor.l3.bias.fill_(99.0)
    state, action = torch.randn(1, 4, 5), torch.full((1, 4, 2), 1.5)
    assert (networks.vae(state, action, torch.zeros(1, 4, 4))[2] == 15).all()
    with torch.no_grad():
        networks.vae.log_std.bias.fill_(-99.0)
    assert (networks.vae(state, action, torch.zeros(1, 4, 4))[2] == -4).all()
    assert (networks.vae.decode(state, torch.zeros(1, 4, 4)) == 2).all()
    torch.testing.assert_close(networks.actor(state, action), action + 0.05 * 2)
    assert (networks.actor(state, torch.full((1, 4, 2), 1.95)) == 2).all()


def test_a_member_starts_from_its_seed_whatever_the_rest():
    alone = unstack(build([config(seed=5)], 5, 2, 1.0), 0)
    stacked = build([config(seed=1, prune=Snip()), config(seed=5, prune=Snip())], 5, 2, 1.0)
    for name, value in unstack(stacked, 1).items():
        assert torch.equal(value, alone[name]) and not torch.equal(value, unstack(stacked, 0)[name])
    cloning = build([config(seed=5, algorithm=Bc())], 5, 2, 1.0)
    assert cloning.actor is None and cloning.critic is None
    assert set(unstack(cloning, 0)) == {name for name in alone if name.startswith("vae.")}
    assert all(torch.equal(value, alone[name]) for name, value in unstack(cloning, 0).items())
    assert not torch.equal(alone["critic.l1.weight"], alone["critic.l4.weight"])


def test_xavier_weights_are_glorots_and_biases_0():
    c = config(seed=5, initialisation="xavier", vae=(200, 300))
    stacked = build([replace(c, seed=1), c], 50, 20, 1.0)
    for name, value in unstack(stacked, 1).items():
        if name.endswith(".bias"):
            assert not value.any(), name
            continue
        bound = (6 / sum(value.shape)) ** 0.5  # Glorot and Bengio 2010, equation 16
        assert value.abs().max() <= bound, name
        if value.numel() > 5000:
            assert float(value.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    for name, value in unstack(build([c], 50, 20, 1.0), 0).items():
        assert torch.equal(value, unstack(stacked, 1)[name]), "whatever the neighbours"
    assert not torch.equal(stacked.critic.l1.weight, stacked.critic.l4.weight)


def test_unstacked_weights_load_into_linear_layers_and_back():
    networks = build([config(seed=0), config(seed=1)], 5, 2, 1.0)
    weights = unstack(networks, 1)
    assert weights["actor.l1.weight"].shape == (16, 7) and weights["critic.l6.bias"].shape == (1,)
    other = build([config(seed=2), config(seed=3)], 5, 2, 1.0)
    before = unstack(other, 1)
    load(other, 0, weights)
    assert all(torch.equal(value, weights[name]) for name, value in unstack(other, 0).items())
    assert all(torch.equal(value, before[name]) for name, value in unstack(other, 1).items())
    weights["actor.l1.weight"].zero_()
    assert networks.actor.l1.weight[1].any(), "a copy, not a view"


def test_weights_that_do_not_fit_are_refused():
    networks = build([config()], 5, 2, 1.0)
    weights = unstack(networks, 0)
    with pytest.raises(ValueError, match=r"l1.weight has shape"):
        load(networks, 0, weights | {"actor.l1.weight": torch.zeros(1, 16, 7)})
    with pytest.raises(ValueError, match="one side only"):
        load(networks, 0, {name: value for name, value in weights.items() if name != "vae.d3.bias"})


@pytest.mark.parametrize(
    ("states", "actions", "counts"), [(17, 6, (131000, 259000, 1186500)), (11, 3, (126500, 251800, 1159500))]
)
def test_the_number_of_weights_is_the_papers(states, actions, counts):
    networks = build([Config()], states, actions, 1.0)
    for name, count in zip(("actor", "critic", "vae"), counts, strict=True):
        module = getattr(networks, name)
        assert sum(layer.weight.numel() for layer in layers(module).values()) == count
        assert weight_count(name, states, actions, getattr(Config(), name)) == count


@pytest.mark.parametrize("full", [(400, 1), (1, 1000), (750, 4), (4, 750)])
@pytest.mark.parametrize("sparsity", [0.5, 0.9, 0.95])
def test_unequal_widths_are_made_smaller_as_well(full, sparsity):
    wanted = (1 - sparsity) * weight_count("vae", 17, 6, full)
    found = widths(Config(vae=full, prune=SmallDense(sparsity=sparsity)), "vae", 17, 6)
    step = weight_count("vae", 17, 6, (2, 2)) - weight_count("vae", 17, 6, (1, 1))
    assert abs(weight_count("vae", 17, 6, found) - wanted) <= step


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("name", ["actor", "critic", "vae"])
def test_a_small_dense_network_has_about_as_many_weights_as_a_pruned_one(name, sparsity):
    dense, small = Config(), Config(prune=SmallDense(sparsity=sparsity))
    first, second = widths(small, name, 17, 6)
    full = getattr(dense, name)
    total = weight_count(name, 17, 6, full)
    assert abs(first / full[0] - second / full[1]) <= 1 / full[0] + 1 / full[1]
    off = abs(weight_count(name, 17, 6, (first, second)) - (1 - sparsity) * total)
    for scale in torch.linspace(0.001, 1, 2000).tolist():  # no other proportional network is closer
        hidden = max(1, round(scale * full[0])), max(1, round(scale * full[1]))
        assert abs(weight_count(name, 17, 6, hidden) - (1 - sparsity) * total) >= off - 1e-6
    assert widths(dense, name, 17, 6) == full
    built = getattr(build([replace(small, batch=8)], 17, 6, 1.0), name)
    assert sum(layer.weight.numel() for layer in layers(built).values()) == weight_count(name, 17, 6, (first, second))


def test_bcq_acts_by_the_best_of_its_own_candidates():
    configs = [config(seed=3), config(seed=4)]
    networks = build(configs, 5, 2, 1.0)
    with torch.no_grad():  # larger weights, so that candidates and values differ
        for layer in layers(networks).values():
            layer.weight.mul_(3)
    state, noise = torch.randn(2, 4, 5), torch.randn(2, 4 * 7, 4) * 2
    ours = bcq_action(networks, state, noise)
    assert ours.shape == (2, 4, 2)
    for member, c in enumerate(configs):
        plain = reference(networks, member, c)
        for i in range(4):
            best = None
            for k in range(7):
                s, z = state[member, i : i + 1], noise[member, 7 * i + k : 7 * i + k + 1].clamp(-0.5, 0.5)
                action = plain.actor(s, plain.vae.decode(s, z))
                value = plain.critic.q1(s, action).item()
                best = (value, action) if best is None or value > best[0] else best
            torch.testing.assert_close(ours[member, i], best[1][0], rtol=1e-5, atol=1e-6)


def test_behaviour_cloning_acts_by_one_clamped_sample():
    networks = build([config(seed=3, algorithm=Bc())], 5, 2, 1.0)
    full = build([config(seed=3)], 5, 2, 1.0)
    state, noise = torch.randn(1, 9, 5), torch.randn(1, 9, 4) * 2
    wanted = full.vae.decode(state, noise.clamp(-0.25, 0.25))
    assert torch.equal(bc_action(networks, state, noise), wanted) and torch.equal(bc_action(full, state, noise), wanted)
    assert not torch.equal(wanted, full.vae.decode(state, noise.clamp(-0.5, 0.5)))
    with pytest.raises(ValueError, match="VAE alone"):
        bcq_action(networks, state, noise)
    with pytest.raises(ValueError, match="no multiple"):
        bcq_action(full, state, noise[:, :8])


def test_the_perturbation_is_the_configs():
    wide = build([config(algorithm=Bcq(perturbation=0.5))], 5, 2, 1.0).actor
    narrow = build([config()], 5, 2, 1.0).actor
    state, action = torch.randn(1, 6, 5), torch.zeros(1, 6, 2)
    torch.testing.assert_close(wide(state, action), 10 * narrow(state, action))
