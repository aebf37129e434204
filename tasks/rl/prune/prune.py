"""Which weights a run trains: masks found once, before training, one global threshold per network.

Source: Arnob et al. 2021, section 3 and Algorithm 1: SNIP (equation 1) and GraSP (equation 4); the other methods are
controls that the paper lacks. The networks are the actor, the critic with both heads, and the VAE with encoder and
decoder.

What the paper leaves open, or where known code errs:
- Weights only are pruned; biases stay dense, as the bytes of Table 1 imply.
- Exactly round((1 - s) N) weights stay. Thresholding keeps every tie, and 3 to 16 % of the scores are tied at 0 (dead
  ReLUs); here ties go to the lower index.
- The scored weights are those that will be trained; SNIP's and GraSP's reference code re-initialises a copy first.
- "theta_2 <- copy(theta_1)" of Algorithm 1 is read as the target network: a second head copied from the first would
  stay its double for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from retable.tasks.rl.config import Bcq, Config, Dense, Erk, Grasp, Magnitude, Pruning, Random, SmallDense, Snip
from retable.tasks.rl.losses import (
    PRUNING_NOISE,
    Batch,
    Noise,
    actor_loss,
    critic_loss,
    draw_noise,
    td_target,
    vae_loss,
)
from retable.tasks.rl.model import NETWORKS, Networks, build, generator, layers, load, unstack

Masks = dict[str, dict[str, Bool[Tensor, "member outputs inputs"]]]
"""Network -> layer -> mask; True is kept."""
Sample = Callable[[int, int], Mapping[str, Tensor]]
"""(member, size) -> batch of that member without the member axis."""
MASKS = {name: f"rl.masks.{name}" for name in NETWORKS}
"""Streams of the masks that are random."""
Objective = Callable[[Batch, Noise], Tensor]


def dense(config: Config) -> bool:
    """Return whether the config prunes nothing."""
    return isinstance(config.prune, Dense | SmallDense)


def masks(configs: Sequence[Config], networks: Networks, sample: Sample) -> tuple[Masks, list[dict[str, float]]]:
    """Find every member's masks on freshly initialised `networks`, which stay as they are.

    Gives with them each member's share of scores that are exactly 0, by network, where the method scores weights: among
    these, which weights stay is an accident of their order.

    Members may differ in method and sparsity: each is scored alone, as a stack of one, so its masks do not depend on
    its neighbours. Masks of a dense member, and of networks that `prune.networks` leaves out, are all True. `sample`
    is asked for `prune.batch` transitions where the method needs data: batches differ in size, hence no common one.
    """
    members, zeros = [], []
    for member, config in enumerate(configs):
        one = build([config], *_shape(networks), networks.vae.max_action)
        load(one, 0, unstack(networks, member))
        batch: Batch = {}
        if isinstance(config.prune, Snip | Grasp):
            drawn = sample(member, config.prune.batch)
            batch = {name: value.detach().cpu().unsqueeze(0) for name, value in drawn.items()}
        by_layer, zero = _member(config, one, batch)
        members.append(by_layer)
        zeros.append(zero)
    stacked = {
        network: {layer: torch.stack([member[network][layer] for member in members]) for layer in members[0][network]}
        for network in members[0]
    }
    return stacked, zeros


def _shape(networks: Networks) -> tuple[int, int]:
    actions = networks.vae.latent // 2
    return networks.vae.e1.weight.shape[2] - actions, actions


def _member(config: Config, networks: Networks, batch: Batch) -> tuple[dict[str, dict[str, Tensor]], dict[str, float]]:
    """Find one member's masks, (out, in) each, and its shares of zero scores; `networks` is a stack of one."""
    network_masks: dict[str, dict[str, Tensor]] = {}
    zeros: dict[str, float] = {}
    names = [name for name in NETWORKS if getattr(networks, name) is not None]
    for name in names:
        weights = {layer: module.weight for layer, module in layers(getattr(networks, name)).items()}
        total = sum(weight.numel() for weight in weights.values())
        match config.prune:
            case Dense() | SmallDense():
                flat = torch.ones(total, dtype=torch.bool)
            case Pruning(networks=chosen) if chosen not in ("all", name):
                flat = torch.ones(total, dtype=torch.bool)
            case Random() | Erk() as method:
                shapes = [(weight.shape[1], weight.shape[2]) for weight in weights.values()]
                flat = draw(method, shapes, config.seed, name)
            case method:
                flat, zeros[name] = _by_scores(method, name, config, networks, batch)
        parts = torch.split(flat, [weight.numel() for weight in weights.values()])
        network_masks[name] = {
            layer: part.view(weight.shape[1:]) for (layer, weight), part in zip(weights.items(), parts, strict=True)
        }
    return network_masks, zeros


def draw(method: Random | Erk, shapes: Sequence[tuple[int, int]], seed: int, network: str) -> Bool[Tensor, " weights"]:
    """Draw the mask of one network whose layers have `shapes` (out, in): it depends on nothing else, so on no data."""
    total = sum(outputs * inputs for outputs, inputs in shapes)
    if isinstance(method, Erk):
        return _random(erk_counts(shapes, kept(total, method.sparsity)), shapes, seed, network)
    return _random([kept(total, method.sparsity)], [(total, 1)], seed, network)


def kept(total: int, sparsity: float) -> int:
    """Count the weights that stay of `total`: int(131000 * (1 - 0.9)), as reference code has it, is one short."""
    return round((1 - sparsity) * total)


def keep_largest(scores: Float[Tensor, " weights"], count: int) -> Bool[Tensor, " weights"]:
    """Mark exactly `count` largest scores; equal scores go to the lower index. NaN counts as the largest."""
    order = torch.sort(scores, descending=True, stable=True).indices
    mask = torch.zeros(len(scores), dtype=torch.bool)
    mask[order[:count]] = True
    return mask


def _random(counts: Sequence[int], shapes: Sequence[tuple[int, int]], seed: int, network: str) -> Tensor:
    """Keep `counts` weights of each part, chosen uniformly in it."""
    source, parts = generator(seed, MASKS[network]), []
    for count, (outputs, inputs) in zip(counts, shapes, strict=True):
        part = torch.zeros(outputs * inputs, dtype=torch.bool)
        part[torch.randperm(len(part), generator=source)[:count]] = True
        parts.append(part)
    return torch.cat(parts)


def erk_counts(shapes: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Share `count` weights among layers (out, in) by the Erdos-Renyi rule (Mocanu et al. 2018; Evci et al. 2020).

    A layer's density is proportional to (out + in) / (out in), so its count to out + in, capped at the full layer; what
    a full layer cannot take goes to the others. Integers throughout: the counts sum to `count` exactly, the largest
    remainders being rounded up.
    """
    counts, open_layers = [0] * len(shapes), set(range(len(shapes)))
    while True:
        left = count - sum(outputs * inputs for i, (outputs, inputs) in enumerate(shapes) if i not in open_layers)
        units = sum(sum(shapes[i]) for i in open_layers)
        full = {i for i in open_layers if left * sum(shapes[i]) >= units * shapes[i][0] * shapes[i][1]}
        open_layers -= full
        for i in full:
            counts[i] = shapes[i][0] * shapes[i][1]
        if not full:
            break
    remainders = {}
    for i in open_layers:
        counts[i], remainders[i] = divmod(left * sum(shapes[i]), units)
    for i in sorted(remainders, key=lambda i: (-remainders[i], i))[: count - sum(counts)]:
        counts[i] += 1
    return counts


@torch.no_grad()
def _by_scores(
    method: Snip | Grasp | Magnitude, name: str, config: Config, networks: Networks, batch: Batch
) -> tuple[Tensor, float]:
    """Keep one network's largest scores; give with it the share of the last round's scores that are exactly 0.

    Between rounds the network acts without the weights that are gone already; in the end it is as it was.
    """
    weights = [layer.weight for layer in layers(getattr(networks, name)).values()]
    sizes, before = [weight.numel() for weight in weights], [weight.clone() for weight in weights]
    flat = torch.ones(sum(sizes), dtype=torch.bool)
    rounds = 1 if isinstance(method, Magnitude) else method.iterations
    for done in range(1, rounds + 1):
        scores = _scores(method, name, config, networks, batch)
        share = (scores[flat] == 0).float().mean().item()
        left = round((1 - method.sparsity) ** (done / rounds) * len(flat))
        flat = keep_largest(scores.masked_fill(~flat, -torch.inf), left)
        for weight, part in zip(weights, torch.split(flat, sizes), strict=True):
            weight.mul_(part.view(weight.shape))
    for weight, value in zip(weights, before, strict=True):
        weight.copy_(value)
    return flat, share


def _scores(method: Snip | Grasp | Magnitude, name: str, config: Config, networks: Networks, batch: Batch) -> Tensor:
    """Score all weights of one network of a stack of one, flat; the largest are kept."""
    weights = [layer.weight for layer in layers(getattr(networks, name)).values()]
    match method:
        case Magnitude():
            scores = [weight.detach().abs() for weight in weights]
        case Snip():
            scores = snip(*_objective(name, config, networks, batch), weights)
        case Grasp():
            scores = [-score for score in grasp(*_objective(name, config, networks, batch), weights)]
    return torch.cat([score.flatten() for score in scores])


def _objective(name: str, config: Config, networks: Networks, batch: Batch) -> tuple[Objective, Batch, Noise]:
    """Return one network's training loss, the batch and its latents, which stay the same for every pass.

    The critic's target comes from the networks themselves: fresh target networks are copies of them.
    """
    samples = config.algorithm.target_samples if isinstance(config.algorithm, Bcq) else 0
    size, latent = batch["reward"].shape[1], networks.vae.latent
    noise = draw_noise([config.seed], PRUNING_NOISE, 0, size, latent, samples)
    vae, actor, critic, algorithm = networks.vae, networks.actor, networks.critic, config.algorithm
    if name == "vae":
        return lambda part, drawn: vae_loss(vae, part, drawn.vae).sum(), batch, noise
    assert actor is not None and critic is not None and isinstance(algorithm, Bcq)
    if name == "actor":
        return lambda part, drawn: actor_loss(actor, critic, vae, part, drawn.actor).sum(), batch, noise

    def critic_objective(part: Batch, drawn: Noise) -> Tensor:
        target = td_target(vae, actor, critic, part, drawn.target, algorithm)
        return critic_loss(critic, part, target)[0].sum()

    return critic_objective, batch, noise


@torch.enable_grad()  # whoever builds a learner to read weights alone may have turned gradients off
def snip(objective: Objective, batch: Batch, noise: Noise, weights: Sequence[Tensor]) -> list[Tensor]:
    """Score |w dL/dw| (Lee et al. 2019; Arnob et al. 2021, equation 1). The largest are kept.

    Not divided by their sum, as SNIP does: it changes no order.
    """
    gradients = torch.autograd.grad(objective(batch, noise), weights)
    return [(weight * gradient).abs().detach() for weight, gradient in zip(weights, gradients, strict=True)]


@torch.enable_grad()
def grasp(objective: Objective, batch: Batch, noise: Noise, weights: Sequence[Tensor]) -> list[Tensor]:
    """Score -w (H g) (Wang et al. 2020; Arnob et al. 2021, equation 4). The LARGEST are removed.

    As in the authors' code the batch comes in two halves: g is the sum of the halves' gradients, H g the sum over
    halves of the gradients of <g, gradient of the half>. Equal halves make it 4 times the full batch's; the order is
    the same. The normalisation and the temperature of logits in that code have no use here.
    """
    size = batch["reward"].shape[1]
    halves = [_rows(batch, noise, slice(0, size // 2)), _rows(batch, noise, slice(size // 2, size))]
    total = [torch.zeros_like(weight) for weight in weights]
    for half in halves:
        for sum_, gradient in zip(total, torch.autograd.grad(objective(*half), weights), strict=True):
            sum_ += gradient
    products = [torch.zeros_like(weight) for weight in weights]
    for half in halves:
        gradients = torch.autograd.grad(objective(*half), weights, create_graph=True)
        inner = torch.stack(
            [(g * half_gradient).sum() for g, half_gradient in zip(total, gradients, strict=True)]
        ).sum()
        # A weight that enters the loss linearly and alone has no second derivative, not a zero one.
        for sum_, product in zip(products, torch.autograd.grad(inner, weights, allow_unused=True), strict=True):
            if product is not None:
                sum_ += product
    return [(-weight * product).detach() for weight, product in zip(weights, products, strict=True)]


def _rows(batch: Batch, noise: Noise, rows: slice) -> tuple[Batch, Noise]:
    samples = noise.target.shape[1] // noise.vae.shape[1]
    target = noise.target[:, rows.start * samples : rows.stop * samples]
    part = Noise(noise.vae[:, rows], target, noise.actor[:, rows])
    return {name: value[:, rows] for name, value in batch.items()}, part


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Connected parts of a masked network."""

    density: dict[str, float]
    """Share of the weights kept, by layer."""
    lost: tuple[str, ...]
    """Layers of which nothing is kept."""
    units: int
    """Hidden units."""
    unconnected: int
    """Hidden units with no path from an input or no path to an output."""
    weights: int
    """Weights kept."""
    effective: int
    """Kept weights on some path from an input to an output."""
    blind: int
    """Entries of the observation with no path to an output: the network can never take notice of them."""
    dead: int
    """Outputs that no input reaches: they are constant."""


def diagnose(masks: Mapping[str, Bool[Tensor, "outputs inputs"]], states: int) -> Diagnosis:
    """Follow the paths through one member's network (`vae`, `actor` or `critic`), given its masks by layer.

    The VAE's latents count as inputs of the decoder, since they are drawn when it acts; the encoder's outputs lead on
    through the decoder's latent columns, so an encoder weight whose latent the decoder ignores is not effective. Blind
    inputs and dead outputs are those of what acts: of the VAE its decoder, of the critic either of its heads.

    Args:
        masks: layer -> mask, True where a weight is kept.
        states: entries of an observation, the first inputs of each network.
    """
    vae = "e1" in masks
    parts = _vae_paths(masks) if vae else _head_paths(masks)
    acting = parts[1:] if vae else parts
    return Diagnosis(
        density={layer: mask.float().mean().item() for layer, mask in masks.items()},
        lost=tuple(layer for layer, mask in masks.items() if not mask.any()),
        units=sum(part.units for part in parts),
        unconnected=sum(part.unconnected for part in parts),
        weights=sum(int(mask.sum()) for mask in masks.values()),
        effective=sum(part.effective for part in parts),
        blind=int((~torch.stack([part.leads_on[:states] for part in acting]).all(0)).sum()),
        dead=sum(part.dead for part in acting),
    )


@dataclass(frozen=True)
class _Chain:
    units: int
    unconnected: int
    effective: int
    leads_on: Tensor
    """Mask of the inputs of the chain that lead to a wanted output."""
    dead: int
    """Outputs that no input reaches."""


def _chain(masks: Sequence[Tensor], wanted: Tensor) -> _Chain:
    """Follow the paths through layers one after another, from any input to the `wanted` outputs."""
    reached = [torch.ones(masks[0].shape[1], dtype=torch.bool)]
    for mask in masks:
        reached.append((mask & reached[-1]).any(1))
    leading = [wanted]
    for mask in reversed(masks):
        leading.insert(0, (mask & leading[0][:, None]).any(0))
    hidden = [into & out for into, out in zip(reached[1:-1], leading[1:-1], strict=True)]
    effective = sum(int((m & leading[i + 1][:, None] & reached[i]).sum()) for i, m in enumerate(masks))
    units, cut = sum(len(h) for h in hidden), sum(int((~h).sum()) for h in hidden)
    return _Chain(units, cut, effective, leading[0], int((~reached[-1]).sum()))


def _head_paths(masks: Mapping[str, Tensor]) -> list[_Chain]:
    heads = [("l1", "l2", "l3"), ("l4", "l5", "l6")][: len(masks) // 3]
    chains = [[masks[layer] for layer in head] for head in heads]
    return [_chain(chain, torch.ones(len(chain[-1]), dtype=torch.bool)) for chain in chains]


def _vae_paths(masks: Mapping[str, Tensor]) -> list[_Chain]:
    decoder = _chain([masks["d1"], masks["d2"], masks["d3"]], torch.ones(len(masks["d3"]), dtype=torch.bool))
    latents = decoder.leads_on[-len(masks["mean"]) :]
    outputs = torch.cat((masks["mean"], masks["log_std"]))
    return [_chain([masks["e1"], masks["e2"], outputs], latents.repeat(2)), decoder]
