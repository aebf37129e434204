"""Masks against definitions written out: finite differences, the explicit Hessian, enumerated paths."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from retable.tasks.rl.config import Bc, Config, Dense, Erk, Grasp, Magnitude, Random, SmallDense, Snip
from retable.tasks.rl.losses import PRUNING_NOISE, draw_noise, vae_loss
from retable.tasks.rl.model import build, layers, unstack
from retable.tasks.rl.prune.prune import diagnose, erk_counts, grasp, keep_largest, kept, masks, snip
from tests.rl import reference_bcq
from tests.rl.toys import Toy, config, learner, transitions

torch.set_num_threads(1)
METHODS = [Snip, Grasp, Random, Magnitude, Erk]
NETWORKS = ("actor", "critic", "vae")
TINY = {"actor": (4, 3), "critic": (3, 4), "vae": (4, 3)}


def found(configs, sample=None, states=5, actions=2):
    sample = sample or Toy([c.seed for c in configs], states, actions).sample
    return masks(configs, build(configs, states, actions, 1.0), sample)[0]


def flat(by_layer, member=0):
    return torch.cat([mask[member].flatten() for mask in by_layer.values()])


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.95, 0.9999])
@pytest.mark.parametrize("method", METHODS)
def test_exactly_k_weights_stay(method, sparsity):
    c = config(prune=method(sparsity=sparsity))
    for name, by_layer in found([c]).items():
        mask = flat(by_layer)
        assert mask.sum() == round((1 - sparsity) * len(mask)), name
        assert {layer: m.shape for layer, m in by_layer.items()} == {
            layer: m.weight.shape for layer, m in layers(getattr(build([c], 5, 2, 1.0), name)).items()
        }


@pytest.mark.parametrize("method", METHODS)
def test_a_learner_can_be_built_where_gradients_are_off(method):
    c = config(prune=method(sparsity=0.7, **({"batch": 10} if method in (Snip, Grasp) else {})))
    wanted, _ = learner([c])
    with torch.no_grad():
        built, toy = learner([c])
        assert not torch.is_grad_enabled(), "the caller's choice stays"
    for one, other in ((wanted, toy), (built, toy)):
        one.step(other.batch(0))
    ours, theirs = built.state_dict()[0], wanted.state_dict()[0]
    for part in ("masks", "weights"):
        assert ours[part] and all(torch.equal(value, theirs[part][name]) for name, value in ours[part].items())


@pytest.mark.parametrize("prune", [Dense(), SmallDense(sparsity=0.5)])
def test_dense_networks_keep_all(prune):
    assert all(flat(by_layer).all() for by_layer in found([config(prune=prune)]).values())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_one_network_is_pruned_as_it_is_among_all_and_the_others_stay_dense(method, network):
    wanted = found([config(prune=method(sparsity=0.8))])
    for name, by_layer in found([config(prune=method(sparsity=0.8, networks=network))]).items():
        for layer, mask in by_layer.items():
            assert torch.equal(mask, wanted[name][layer]) if name == network else mask.all(), f"{name}.{layer}"


def test_a_network_that_is_not_trained_cannot_be_the_one_that_is_pruned():
    with pytest.raises(ValueError, match="networks=critic prunes nothing"):
        config(algorithm=Bc(), prune=Snip(networks="critic"))
    assert flat(found([config(algorithm=Bc(), prune=Snip(sparsity=0.8, networks="vae"))])["vae"]).float().mean() < 0.25


@pytest.mark.parametrize(("method", "score"), [(Snip, snip), (Grasp, lambda *given: [-s for s in grasp(*given)])])
def test_a_round_scores_what_the_round_before_has_left(method, score):
    toy, size = Toy([0], 5, 2), 20
    c = config(prune=method(sparsity=0.91, iterations=2, batch=size))
    networks = build([c], 5, 2, 1.0)
    before = {name: value.clone() for name, value in networks.state_dict().items()}
    ours = masks([c], networks, toy.sample)[0]
    batch = {name: value[None] for name, value in toy.sample(0, size).items()}
    noise = draw_noise([0], PRUNING_NOISE, 0, size, 4, 10)
    once = found([config(prune=method(sparsity=0.7, batch=size))])["vae"]  # 1 - sqrt(0.09)
    with torch.no_grad():
        for layer, module in layers(networks.vae).items():
            module.weight *= once[layer]
    weights = [module.weight for module in layers(networks.vae).values()]
    scores = torch.cat(
        [s.flatten() for s in score(lambda b, n: vae_loss(networks.vae, b, n.vae).sum(), batch, noise, weights)]
    )
    scores[~flat(once)] = -torch.inf
    wanted = keep_largest(scores, round(0.09 * len(scores)))
    assert torch.equal(flat(ours["vae"]), wanted)
    assert not torch.equal(wanted, flat(found([config(prune=method(sparsity=0.91, batch=size))])["vae"])), "it matters"
    again = build([c], 5, 2, 1.0)
    masks([c], again, toy.sample)
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())


def test_counts_do_not_suffer_from_binary_fractions():
    assert kept(131000, 0.9) == 13100 and int(131000 * (1 - 0.9)) == 13099
    assert kept(10, 0.0) == 10


@pytest.mark.parametrize("method", [Snip, Grasp])
def test_ties_at_zero_do_not_break_the_count(method):
    """Hopper's trouble: at 10 % SNIP's threshold falls among zeros of dead units, and `>=` would prune nothing."""

    def sample(member, size):
        batch = transitions(3, size, 11, 3)
        for name in ("observation", "next_observation"):
            batch[name] = batch[name] * torch.tensor([0.0, 0.0, *[1.0] * 9]) + 3.0 * (torch.arange(11) > 8)
        return batch

    c = Config(actor=(40, 30), critic=(40, 30), vae=(60, 50), prune=method(sparsity=0.1, batch=20))
    ours = found([c], sample, 11, 3)
    for name, by_layer in ours.items():
        mask = flat(by_layer)
        assert mask.sum() == round(0.9 * len(mask)), name
    if method is Snip:
        networks = build([c], 11, 3, 1.0)
        noise = draw_noise([0], PRUNING_NOISE, 0, 20, 6, 10)
        reference = oracle(c, networks, 11, 3, torch.float32)
        batch = sample(0, 20)
        loss = reference_bcq.autoencoder_loss(reference.vae, batch, noise.vae[0])
        weights = [m.weight for m in reference.vae.children()]
        scores = torch.cat(
            [(w * g).abs().flatten() for w, g in zip(weights, torch.autograd.grad(loss, weights), strict=True)]
        )
        assert (scores == 0).float().mean() > 0.1, "the case must have the tie it is about"
        assert not flat(ours["vae"])[scores == 0].all() and flat(ours["vae"])[scores > 0].all()
        _, (zeros,) = masks([c], networks, sample)
        assert set(zeros) == set(NETWORKS) and zeros["vae"] == pytest.approx((scores == 0).double().mean().item())


def test_equal_scores_go_to_the_lower_index():
    scores = torch.tensor([0.0, 2.0, 0.0, 0.0, 1.0, 0.0])
    assert keep_largest(scores, 4).tolist() == [True, True, True, False, True, False]
    assert keep_largest(scores, 0).sum() == 0 and keep_largest(scores, 6).all()
    assert torch.equal(keep_largest(torch.zeros(1000), 300), torch.arange(1000) < 300)  # short lists sort stably anyway


def oracle(c, networks, states, actions, dtype=torch.float64):
    plain = reference_bcq.ReferenceBcq(states, actions, c.actor, c.critic, c.vae)
    plain.load(unstack(networks, 0))
    for net in (*plain.networks().values(), plain.actor_target, plain.critic_target):
        net.to(dtype)
    return plain


def objective(plain, name, batch, noise):
    """Give the loss of one plain network as a function of its own weights, a dict."""
    net = plain.networks()[name]

    class Swapped(torch.nn.Module):
        def __init__(self, values):
            super().__init__()
            self.values = values

        def forward(self, *inputs):
            return functional_call(net, self.values, inputs)

    if name == "vae":
        return lambda values: reference_bcq.autoencoder_loss(Swapped(values), batch, noise[0])
    if name == "actor":
        return lambda v: reference_bcq.perturbation_loss(Swapped(v), plain.critic, plain.vae, batch, noise[2])
    target = reference_bcq.bootstrap(plain.vae, plain.actor_target, plain.critic_target, batch, noise[1])
    return lambda values: reference_bcq.twin_loss(Swapped(values), batch, target)


def scored(method, size, seed):
    """Set up a tiny run: its masks, and the plain double-precision networks, batch and noise they should come from."""
    c = Config(**TINY, prune=method(sparsity=0.6, batch=size), seed=seed)
    toy = Toy([seed], 3, 1)
    ours = found([c], toy.sample, 3, 1)
    batch = {k: v.double() for k, v in toy.sample(0, size).items()}
    noise = [part[0].double() for part in draw_noise([seed], PRUNING_NOISE, 0, size, 2, 10)]
    return ours, oracle(c, build([c], 3, 1, 1.0), 3, 1), batch, noise


def weights_of(plain, name):
    return {k: v.detach() for k, v in plain.networks()[name].named_parameters() if k.endswith("weight")}


@pytest.mark.parametrize("seed", [0, 1])
def test_snip_keeps_what_finite_differences_of_a_gate_find_most_sensitive(seed):
    ours, plain, batch, noise = scored(Snip, 10, seed)
    for name in NETWORKS:
        loss, weights = objective(plain, name, batch, noise), weights_of(plain, name)
        scores = []
        for layer, weight in weights.items():
            for index in range(weight.numel()):
                gate = torch.zeros_like(weight)
                gate.view(-1)[index] = 1e-6
                up, down = (loss({**weights, layer: weight * (1 + sign * gate)}).item() for sign in (1, -1))
                scores.append(abs(up - down) / 2e-6)
        check(scores, flat(ours[name]), name)


def check(scores, mask, name):
    """Check that `mask` keeps the largest scores, given that the threshold is not within rounding of the last one."""
    scores = torch.tensor(scores, dtype=torch.float64)
    inside, outside = scores[mask].min(), scores[~mask].max()
    assert mask.sum() == round(0.4 * len(mask))
    assert inside >= outside - 1e-6 * scores.abs().max(), (name, inside, outside)
    assert scores.unique().numel() > len(scores) / 3, "scores that say nothing"


@pytest.mark.parametrize("seed", [0, 1])
def test_grasp_removes_the_largest_minus_w_h_g_of_the_explicit_hessian(seed):
    ours, plain, batch, noise = scored(Grasp, 12, seed)
    for name in NETWORKS:
        weights = weights_of(plain, name)
        halves = []
        for rows in (slice(0, 6), slice(6, 12)):
            part = [noise[0][rows], noise[1][rows.start * 10 : rows.stop * 10], noise[2][rows]]
            halves.append(objective(plain, name, {k: v[rows] for k, v in batch.items()}, part))

        def total(vector, weights=weights, halves=halves):
            parts = torch.split(vector, [w.numel() for w in weights.values()])
            values = {k: p.view_as(w) for (k, w), p in zip(weights.items(), parts, strict=True)}
            return sum(half(values) for half in halves)

        vector = torch.cat([w.flatten() for w in weights.values()])
        hessian = torch.autograd.functional.hessian(total, vector)
        gradient = torch.autograd.functional.jacobian(total, vector)
        scores = -vector * (hessian @ gradient)
        assert scores.min() < 0 < scores.max(), "a case without both signs would not tell |score| from score"
        check((-scores).tolist(), flat(ours[name]), name)  # the largest go, so the largest of -score stay


def test_magnitude_keeps_the_largest_weights():
    c = config(prune=Magnitude(sparsity=0.7))
    networks = build([c], 5, 2, 1.0)
    for name, by_layer in found([c]).items():
        sizes = torch.cat([m.weight[0].detach().abs().flatten() for m in layers(getattr(networks, name)).values()])
        assert sizes[flat(by_layer)].min() >= sizes[~flat(by_layer)].max()


def test_random_masks_are_uniform_and_follow_the_seed():
    configs = [Config(prune=Random(sparsity=0.8), seed=seed) for seed in (0, 1)]
    ours = found(configs, states=17, actions=6)
    for name, by_layer in ours.items():
        total = len(flat(by_layer))
        both = (flat(by_layer, 0) & flat(by_layer, 1)).sum() / total
        assert both == pytest.approx(0.04, abs=5 * math.sqrt(0.04 / total)), "seeds must be independent"
        for layer, mask in by_layer.items():
            spread = math.sqrt(0.16 / mask[0].numel())
            assert mask[0].float().mean() == pytest.approx(0.2, abs=5 * spread), (name, layer)
    again = found(configs[1:], states=17, actions=6)
    assert all(torch.equal(flat(again[name]), flat(ours[name], 1)) for name in NETWORKS)


@pytest.mark.parametrize(("method", "option"), [(Snip, {"batch": 10}), (Grasp, {"batch": 10}), (Random, {}), (Erk, {})])
def test_a_members_masks_do_not_depend_on_its_neighbours_or_the_algorithm(method, option):
    mine = config(seed=3, prune=method(sparsity=0.7, **option))
    alone = found([mine])
    mixed = [config(seed=1, prune=Random(sparsity=0.2)), mine, config(seed=2)]
    stacked = found(mixed)
    for name in NETWORKS:
        assert torch.equal(flat(stacked[name], 1), flat(alone[name])) and flat(stacked[name], 2).all()
    cloning = found([config(seed=3, algorithm=Bc(), prune=mine.prune)])
    assert set(cloning) == {"vae"} and torch.equal(flat(cloning["vae"]), flat(alone["vae"]))


def test_masks_leave_the_networks_alone():
    c = config(prune=Grasp(batch=10))
    networks = build([c], 5, 2, 1.0)
    before = unstack(networks, 0)
    masks([c], networks, Toy([0]).sample)
    assert all(torch.equal(value, before[name]) for name, value in unstack(networks, 0).items())
    assert all(value.grad is None for value in networks.parameters())


def test_erk_densities_have_their_closed_form():
    shapes = [(400, 23), (300, 400), (6, 300)]
    count = 5000
    scale = count / sum(a + b for a, b in shapes)
    for got, (a, b) in zip(erk_counts(shapes, count), shapes, strict=True):
        assert got / (a * b) == pytest.approx(scale * (a + b) / (a * b), abs=1 / (a * b))
    shapes, count = [(1, 300), (300, 400), (400, 23)], 65000  # the thin layer is full, the others share the rest
    counts = erk_counts(shapes, count)
    scale = (count - 300 - 9200) / 700
    assert counts[0] == 300 and counts[2] == 9200 and counts[1] == pytest.approx(scale * 700, abs=1)
    assert erk_counts([(4, 4), (3, 4), (4, 5)], 11) == [4, 3, 4]  # of 3 2/3, 3 5/24, 4 1/8 the first is rounded up
    assert erk_counts([(4, 4)] * 3, 4) == [2, 1, 1]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_erk_counts_sum_up_and_fit(shapes, share):
    sizes = [a * b for a, b in shapes]
    count = round(share * sum(sizes))
    counts = erk_counts(shapes, count)
    assert sum(counts) == count and all(0 <= c <= size for c, size in zip(counts, sizes, strict=True))
    free = [(c, a + b) for c, (a, b), size in zip(counts, shapes, sizes, strict=True) if c < size]
    for c, units in free:  # among layers that are not full, counts are proportional to units, up to rounding
        for other, others in free:
            assert abs(c * others - other * units) <= units + others


def test_erk_masks_have_these_counts_and_differ_by_seed():
    configs = [config(prune=Erk(sparsity=0.8), seed=seed) for seed in (0, 1)]
    for by_layer in found(configs).values():
        shapes = [tuple(mask.shape[1:]) for mask in by_layer.values()]
        counts = erk_counts(shapes, kept(sum(a * b for a, b in shapes), 0.8))
        assert [int(mask[0].sum()) for mask in by_layer.values()] == counts
        assert not torch.equal(flat(by_layer, 0), flat(by_layer, 1))


def edges_of(by_layer):
    """List a network's kept weights as edges between named units, with its inputs, outputs and hidden units."""
    if "e1" in by_layer:
        latents, states = len(by_layer["mean"]), by_layer["d1"].shape[1] - len(by_layer["mean"])
        into = {"e1": "in", "e2": "e1", "mean": "e2", "log_std": "e2", "d1": None, "d2": "d1", "d3": "d2"}
        hidden, ends, starts = ("e1", "e2", "d1", "d2"), ("d3",), {("in", i) for i in range(by_layer["e1"].shape[1])}
        starts |= {("state", i) for i in range(states)} | {("z", i) for i in range(latents)}
    else:
        heads = [("l1", "l2", "l3"), ("l4", "l5", "l6")][: len(by_layer) // 3]
        into = {name: ("in" if i == 0 else head[i - 1]) for head in heads for i, name in enumerate(head)}
        hidden, ends = [name for head in heads for name in head[:2]], [head[2] for head in heads]
        starts, states = {("in", i) for i in range(by_layer["l1"].shape[1])}, 0
    edges = []
    for layer, mask in by_layer.items():
        for out, column in mask.nonzero().tolist():
            source = (into[layer], column)
            if layer == "d1":
                source = ("state", column) if column < states else ("z", column - states)
            edges.append((source, ("z", out) if layer in ("mean", "log_std") else (layer, out)))
    units = [(layer, i) for layer in hidden for i in range(len(by_layer[layer]))]
    return edges, starts, {(layer, i) for layer in ends for i in range(len(by_layer[layer]))}, units


def paths(edges, starts, ends):
    """Enumerate every path, as a list of edge indices; a path may begin at any start, also a latent."""
    out = []

    def walk(unit, taken):
        if unit in ends:
            out.append(list(taken))
        for number, (source, target) in enumerate(edges):
            if source == unit:
                walk(target, [*taken, number])

    for start in starts:
        walk(start, [])
    return out


FIRST = {"vae": ("d1",), "actor": ("l1",), "critic": ("l1", "l4")}
"""The first layer of each chain that acts."""
STATE = {"vae": "state", "actor": "in", "critic": "in"}
STATES = 3


def random_masks(kind, seed, density):
    networks = build([Config(actor=(3, 2), critic=(2, 3), vae=(3, 2))], STATES, 1, 1.0)
    source = torch.Generator().manual_seed(seed)
    shapes = {name: layer.weight.shape[1:] for name, layer in layers(getattr(networks, kind)).items()}
    return {name: torch.rand(shape, generator=source) < density for name, shape in shapes.items()}


@given(st.sampled_from(NETWORKS), st.integers(0, 10**6), st.floats(0.05, 0.9))
@settings(max_examples=150, deadline=None)
def test_the_diagnosis_agrees_with_enumerated_paths(kind, seed, density):
    by_layer = random_masks(kind, seed, density)
    edges, starts, ends, units = edges_of(by_layer)
    routes = paths(edges, starts, ends)
    crossed = {edges[number][1] for route in routes for number in route}
    got = diagnose(by_layer, STATES)
    assert got.effective == len({number for route in routes for number in route})
    assert got.units == len(units) and got.unconnected == len([unit for unit in units if unit not in crossed])
    assert got.weights == len(edges)
    acting = [route for route in routes if edges[route[0]][1][0] in FIRST[kind]]
    for_each = [{edges[route[0]][0] for route in acting if edges[route[0]][1][0] == first} for first in FIRST[kind]]
    assert got.blind == sum(any((STATE[kind], i) not in seen for seen in for_each) for i in range(STATES))
    assert got.dead == len(ends - {edges[route[-1]][1] for route in acting})
    assert got.lost == tuple(layer for layer, mask in by_layer.items() if not mask.sum())
    assert got.density == pytest.approx({layer: mask.sum().item() / mask.numel() for layer, mask in by_layer.items()})


def test_the_diagnosis_of_a_dense_network_finds_all_connected():
    for kind in NETWORKS:
        got = diagnose(random_masks(kind, 0, 2.0), STATES)
        assert got.unconnected == 0 and got.effective == got.weights and not got.lost
        assert got.blind == got.dead == 0
