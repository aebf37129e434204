"""Training: against a plain implementation, stacked against separate, resumed, pruned, and spread over workers."""

import copy
import gc
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from retable.tasks.rl.config import Bc, Bcq, Dense, Erk, Grasp, Magnitude, Random, SmallDense, Snip
from retable.tasks.rl.learner import OfflineLearner, group
from retable.tasks.rl.losses import TRAINING_NOISE, draw_noise, td_target
from tests.rl.reference_bcq import ReferenceBcq
from tests.rl.toys import Toy, Worker, config, learner, stack, train, transitions

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def assert_states_equal(got, wanted, **tolerance):
    """Compare nested states: bit for bit without a tolerance."""
    if isinstance(got, dict):
        assert got.keys() == wanted.keys()
        for name in got:
            assert_states_equal(got[name], wanted[name], **tolerance)
    elif isinstance(got, torch.Tensor):
        torch.testing.assert_close(got, wanted, **(tolerance or {"rtol": 0, "atol": 0}), equal_nan=True)
    else:
        assert got == wanted


@pytest.mark.parametrize(
    "prune", [Dense(), pytest.param(Random(sparsity=0.6), marks=pytest.mark.slow), Snip(sparsity=0.6, batch=10)]
)
def test_twenty_updates_equal_the_plain_implementation(prune):
    c = config(seed=3, prune=prune)
    ours, toy = learner([c])
    state = ours.state_dict()[0]
    plain = ReferenceBcq(5, 2, c.actor, c.critic, c.vae)
    plain.load(state["weights"])
    plain.masks = state["masks"]
    assert bool(plain.masks) == (not isinstance(prune, Dense))
    for step in range(20):
        batch = toy.batch(step)
        noise = [part[0] for part in draw_noise([3], TRAINING_NOISE, step, 8, 4, 10)]
        metrics = ours.step(batch)
        wanted = plain.update({name: value[0] for name, value in batch.items()}, noise)
        for name, value in wanted.items():
            assert metrics[name].shape == (1,) and metrics[name].item() == pytest.approx(value, rel=1e-5, abs=1e-6), (
                name
            )
    got = ours.state_dict()[0]
    assert_states_equal(got["weights"], plain.weights(), **CLOSE)
    assert_states_equal(got["targets"], plain.targets(), **CLOSE)
    moved = (got["weights"]["actor.l1.weight"] - state["weights"]["actor.l1.weight"]).abs().max()
    assert moved > 1e-3, "nothing was trained"


def test_the_constants_of_the_target_are_the_configs():
    c = config(algorithm=Bcq(discount=0.5, minimum_weight=0.2, target_samples=3))
    ours, toy = learner([c])
    plain = ReferenceBcq(5, 2, c.actor, c.critic, c.vae)
    plain.load(ours.state_dict()[0]["weights"])
    batch = toy.batch(0)
    one = {name: value[0] for name, value in batch.items()}
    z = draw_noise([0], TRAINING_NOISE, 0, 8, 4, 3).target
    parts = ours.networks.vae, ours.targets["actor"], ours.targets["critic"]
    got = td_target(*parts, batch, z, c.algorithm)[0]
    for row in range(8):
        values = []
        for k in range(3):
            s = one["next_observation"][row : row + 1]
            a = plain.actor(s, plain.vae.decode(s, z[0, 3 * row + k : 3 * row + k + 1]))
            q1, q2 = (q.item() for q in plain.critic(s, a))
            values.append(0.2 * min(q1, q2) + 0.8 * max(q1, q2))
        wanted = one["reward"][row].item() + 0.5 * one["not_done"][row].item() * max(values)
        assert got[row].item() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


MIXED = [
    config(seed=0, prune=Snip(sparsity=0.8, batch=10)),
    config(seed=7, prune=Dense()),
    config(seed=2, prune=Grasp(sparsity=0.5, batch=12)),
]


def test_a_stack_equals_separate_runs():
    together, metrics = train(MIXED, 10)
    for member, c in enumerate(MIXED):
        alone, own = train([c], 10)
        assert_states_equal(together.state_dict()[member], alone.state_dict()[0], **CLOSE)
        for ours, theirs in zip(metrics, own, strict=True):
            assert ours.keys() == theirs.keys() == {"vae_loss", "critic_loss", "actor_loss", "q"}
            for name, value in ours.items():
                torch.testing.assert_close(value[member], theirs[name][0], **CLOSE)


def test_a_member_that_diverges_leaves_the_others_alone():
    healthy, _ = train(MIXED, 4)
    sick, toy = learner(MIXED)
    for step in range(4):
        batch = toy.batch(step)
        if step == 1:
            for name in ("observation", "reward", "action"):
                batch[name][2] = float("nan")
        metrics = sick.step(batch)
    for member in (0, 1):
        assert_states_equal(sick.state_dict()[member], healthy.state_dict()[member])
    assert metrics["q"][2].isnan() and not metrics["q"][:2].isnan().any()
    state = sick.state_dict()[2]
    assert state["weights"]["vae.e1.weight"].isnan().any()
    assert all((state["weights"][name][~mask] == 0).all() for name, mask in state["masks"].items())


def test_behaviour_cloning_is_the_vae_of_the_bcq_run():
    for prune in (Dense(), Snip(sparsity=0.7, batch=10)):
        bcq, _ = train([config(seed=4, prune=prune)], 10)
        bc, metrics = train([config(seed=4, prune=prune, algorithm=Bc())], 10)
        assert all(set(step) == {"vae_loss"} for step in metrics)
        full, state = bcq.state_dict()[0], bc.state_dict()[0]
        assert set(state["weights"]) == {name for name in full["weights"] if name.startswith("vae.")}
        assert state["targets"] == {}
        assert all(torch.equal(value, full["weights"][name]) for name, value in state["weights"].items())
        assert all(torch.equal(value, full["masks"][name]) for name, value in state["masks"].items())


def test_a_state_from_before_the_first_update_and_a_copy_of_it():
    ours, toy = learner(MIXED)
    states = ours.state_dict()
    kept = copy.deepcopy(states)
    other, _ = learner(MIXED)
    other.load_state_dict(states)
    ours.step(toy.batch(0))
    other.step(toy.batch(0))
    for member in range(3):
        assert_states_equal(states[member], kept[member])
        assert_states_equal(other.state_dict()[member], ours.state_dict()[member])


def test_a_member_can_move_to_another_stack():
    together, _ = train(MIXED, 3)
    alone, toy = learner([MIXED[2]])
    alone.load_state_dict([together.state_dict()[2]])
    longer, _ = train(MIXED, 5)
    for step in (3, 4):
        alone.step(toy.batch(step))
    assert_states_equal(alone.state_dict()[0], longer.state_dict()[2], **CLOSE)


@pytest.mark.parametrize(
    "method", [Snip, Erk, *(pytest.param(method, marks=pytest.mark.slow) for method in (Grasp, Random, Magnitude))]
)
def test_pruned_weights_stay_exactly_zero(method):
    c = config(prune=replace(method(sparsity=0.7), **({"batch": 10} if method in (Snip, Grasp) else {})))
    ours, toy = learner([c])
    start = ours.state_dict()[0]["weights"]
    for step in range(15):
        ours.step(toy.batch(step))
    again, _ = learner([c])
    again.load_state_dict(ours.state_dict())
    again.step(toy.batch(15))
    for state in (ours.state_dict()[0], again.state_dict()[0]):
        assert set(state["masks"]) == {name for name in state["weights"] if name.endswith("weight")}
        for name, mask in state["masks"].items():
            for part in ("weights", "targets"):
                if name in state[part]:
                    assert (state[part][name][~mask] == 0).all(), (part, name)
            assert (state["optimizer"]["exp_avg_sq"][name][~mask] == 0).all()
        total = sum(mask.numel() for name, mask in state["masks"].items() if name.startswith("vae."))
        left = sum(int(state["weights"][n].count_nonzero()) for n in state["masks"] if n.startswith("vae."))
        assert left == round(0.3 * total)
        assert not torch.equal(state["weights"]["vae.e1.bias"], start["vae.e1.bias"])


def test_the_actors_update_sends_no_gradient_elsewhere():
    ours, toy = learner([config()])
    ours.step(toy.batch(0))
    others = [*ours.networks.critic.parameters(), *ours.networks.vae.parameters()]
    for value in others:
        value.grad.fill_(7.0)
    ours._update_actor(toy.batch(1), torch.zeros(1, 8, 4))
    assert all((value.grad == 7).all() and value.requires_grad for value in others)


def test_targets_follow_slowly():
    ours, toy = learner([config(algorithm=Bcq(target_rate=0.25))])
    before = ours.state_dict()[0]["targets"]
    ours.step(toy.batch(0))
    state = ours.state_dict()[0]
    for name, value in state["targets"].items():
        torch.testing.assert_close(value, 0.25 * state["weights"][name] + 0.75 * before[name])
        assert torch.equal(before[name], learner([config()])[0].state_dict()[0]["weights"][name])


def test_noise_is_drawn_for_the_global_batch_and_clamped_where_it_decodes():
    whole = draw_noise([5, 6], TRAINING_NOISE, 9, 400, 6, 10)
    halves = [draw_noise([5, 6], TRAINING_NOISE, 9, 400, 6, 10, slice(i, i + 200)) for i in (0, 200)]
    for part, pieces in zip(whole, zip(*halves, strict=True), strict=True):
        assert torch.equal(part, torch.cat(pieces, 1))
        assert not torch.equal(part[0], part[1])
    assert whole.vae.shape == (2, 400, 6) and whole.target.shape == (2, 4000, 6)
    assert whole.vae.std() == pytest.approx(1, abs=0.05) and whole.vae.abs().max() > 2
    for part in (whole.target, whole.actor):
        assert part.abs().max() == 0.5 and (part.abs() < 0.5).float().mean() == pytest.approx(0.383, abs=0.03)
    assert torch.equal(draw_noise([6], TRAINING_NOISE, 9, 400, 6, 0).vae[0], whole.vae[1])
    assert not torch.equal(draw_noise([6], TRAINING_NOISE, 10, 400, 6, 0).vae[0], whole.vae[1])


def test_the_reduced_target_stays_near_and_touches_nothing_else():
    full, exact = train([config(seed=1)], 1)
    low, rounded = train([config(seed=1, algorithm=Bcq(target_precision="bfloat16"))], 1)
    assert torch.equal(exact[0]["vae_loss"], rounded[0]["vae_loss"]) and torch.equal(exact[0]["q"], rounded[0]["q"])
    assert not torch.equal(exact[0]["critic_loss"], rounded[0]["critic_loss"]), "the option does nothing"
    torch.testing.assert_close(exact[0]["critic_loss"], rounded[0]["critic_loss"], rtol=2e-2, atol=1e-3)
    state = low.state_dict()[0]
    assert all(value.dtype == torch.float32 for value in state["weights"].values())
    assert_states_equal(
        {n: v for n, v in state["weights"].items() if n.startswith("vae.")},
        {n: v for n, v in full.state_dict()[0]["weights"].items() if n.startswith("vae.")},
    )


def test_groups_are_what_can_be_stacked():
    base = config()
    assert group(base) == group(config(seed=9, prune=Snip(sparsity=0.3))) == group(config(prune=Erk()))
    for other in (
        config(learning_rate=1e-4),
        config(prune=SmallDense(sparsity=0.5)),
        config(algorithm=Bc()),
        config(algorithm=Bcq(discount=0.9)),
        config(environment="Hopper"),
        config(vae=(18, 17)),
    ):
        assert group(other) != group(base)
        with pytest.raises(ValueError, match="seed and prune"):
            learner([base, other])
    assert group(config(prune=SmallDense(sparsity=0.5))) != group(config(prune=SmallDense(sparsity=0.6)))
    assert len({group(base), group(config(seed=1))}) == 1
    narrow, metrics = train([config(prune=SmallDense(sparsity=0.5), seed=seed) for seed in (0, 1)], 2)
    assert narrow.state_dict()[0]["masks"] == {} and metrics[1]["vae_loss"].shape == (2,)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="one or more"):
        OfflineLearner([], Toy([]), Worker())
    ours, toy = learner([config(prune=Random(sparsity=0.5))])
    with pytest.raises(ValueError, match=r"reward has shape \(1, 8\)"):
        ours.step(toy.batch(0) | {"reward": torch.zeros(1, 8)})
    with pytest.raises(ValueError, match="observation has shape"):
        ours.step(toy.batch(0, size=4))
    state = ours.state_dict()[0]
    with pytest.raises(ValueError, match="as many states"):
        ours.load_state_dict([state, state])
    revived = copy.deepcopy(state)
    revived["targets"]["critic.l2.weight"][~state["masks"]["critic.l2.weight"]] = 1e-9
    with pytest.raises(ValueError, match=r"targets critic.l2.weight .* not 0"):
        ours.load_state_dict([revived])
    with pytest.raises(ValueError, match="masks of member 0"):
        ours.load_state_dict([state | {"masks": {}}])
    two, _ = learner([config(seed=0), config(seed=1)])
    early, late = two.state_dict()
    with pytest.raises(ValueError, match="same update"):
        two.load_state_dict([early, late | {"updates": 4}])


def test_the_batch_of_one_member_is_its_own():
    """A member's data reaches that member only."""
    configs = [config(seed=0), config(seed=0)]
    ours = OfflineLearner(configs, Toy([0, 0]), Worker())
    ours.step(stack([transitions(1, 8), transitions(2, 8)]))
    first, second = ours.state_dict()
    swapped = OfflineLearner(configs, Toy([0, 0]), Worker())
    swapped.step(stack([transitions(2, 8), transitions(1, 8)]))
    assert_states_equal(swapped.state_dict()[1], first, **CLOSE)
    assert not torch.equal(first["weights"]["vae.e1.weight"], second["weights"]["vae.e1.weight"])


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_learner_that_nobody_needs_is_gone_at_once(device, monkeypatch):
    """On a GPU its memory would otherwise stay until Python looks for cycles, which no lack of it makes it do."""
    monkeypatch.setattr(Toy, "place", lambda self, device: None, raising=False)
    trained, toy = learner([config()], Worker(device=device))
    for step in range(5):
        trained.step(toy.batch(step))
    there = weakref.ref(trained)
    gc.disable()
    try:
        del trained
        assert there() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_two_workers_equal_one_with_the_joined_batch(tmp_path):
    """Real DDP over gloo; worker 1 scores on other data, so that the masks must come from worker 0."""
    torch.save(MIXED, tmp_path / "configs.pt")
    command = [sys.executable, "-m", "tests.rl.toys"]
    workers = [subprocess.Popen([*command, str(rank), str(tmp_path)], cwd=ROOT) for rank in range(2)]
    one, _ = train(MIXED, 5)
    try:
        assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    states = [torch.load(tmp_path / f"state{rank}.pt", weights_only=True) for rank in range(2)]
    for member, wanted in enumerate(one.state_dict()):
        assert_states_equal(states[0][member], wanted, **CLOSE)
        assert_states_equal(states[1][member], states[0][member])
