"""Stacked networks of BCQ: E members of equal shape trained at once; one run is a stack of one.

Every tensor has the member axis first. Members never mix: each is initialised from its own generators and its layers
are one slice of a batched product. Random latents are always arguments, so that a stack equals separate runs and N
workers equal one.

Source: Arnob et al. 2021, section 4 (BCQ and BC share actor, critic and VAE); layers, widths and acting rules follow
the code it builds on (continuous BCQ of Fujimoto et al. 2019, equations 5 to 7; BC as in BEAR, Kumar et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from retable.platform.train import seeds
from retable.tasks.rl.config import Bcq, Config, SmallDense
from retable.tasks.rl.sparse.training import Pattern, linear, own_values, pattern_of, whole

BCQ_CLIP = 0.5
"""Latents that propose BCQ's candidate actions are clamped to this (Fujimoto et al. 2019, code)."""
BC_CLIP = 0.25
"""Latents that behaviour cloning acts with are clamped to this (BEAR, code)."""
LOG_STD_RANGE = (-4.0, 15.0)
NETWORKS = ("vae", "actor", "critic")
INITIAL = {name: f"rl.initial.{name}" for name in NETWORKS}
"""Streams of the weights that training starts from."""


def generator(seed: int, stream: str) -> torch.Generator:
    """Return the CPU generator of one stream, so that adding a draw for one purpose never shifts another.

    PyTorch's Mersenne Twister takes 32 bits of a seed, and starts in related states when seeded with 0, 1, 2, ...
    """
    return torch.Generator().manual_seed(int(seeds.sequence(seed, stream).generate_state(1)[0]))


class StackedLinear(nn.Module):
    """E linear layers as one batched product: `weight` (E, out, in), `bias` (E, out).

    Each member starts from its own generator with the distribution of `torch.nn.Linear`: weight, then bias, both
    uniform within +-1/sqrt(in). `mask` (E, out, in; bool, True = trained) is a buffer, so that copies (the target
    networks) carry it and DDP hands every worker rank 0's.

    A layer of one member may be sparse: `weight` (1, kept) are then the values of `pattern`, and there is no mask. All
    layers of a network with such ones have activations `features_first` in memory.
    """

    mask: Tensor | None
    pattern: Pattern | None = None
    features_first = False

    def __init__(self, inputs: int, outputs: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        members = len(generators)
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(members, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(members, outputs))
        with torch.no_grad():
            for member, source in enumerate(generators):
                self.weight[member].uniform_(-bound, bound, generator=source)
                self.bias[member].uniform_(-bound, bound, generator=source)
        self.register_buffer("mask", None, persistent=False)

    def forward(self, inputs: Float[Tensor, "member batch inputs"]) -> Float[Tensor, "member batch outputs"]:
        """Apply each member's layer to its own rows."""
        if self.features_first:
            return linear(self.pattern, self.weight.squeeze(0), self.bias.squeeze(0), inputs.squeeze(0)).unsqueeze(0)
        return torch.baddbmm(self.bias.unsqueeze(1), inputs, self.weight.transpose(1, 2))


class Actor(nn.Module):
    """BCQ's perturbation network: (s, a) to a + phi M tanh(net), clamped to the action range (Fujimoto, equation 5)."""

    def __init__(
        self,
        states: int,
        actions: int,
        hidden: tuple[int, int],
        max_action: float,
        perturbation: float,
        generators: Sequence[torch.Generator],
    ) -> None:
        super().__init__()
        self.l1 = StackedLinear(states + actions, hidden[0], generators)
        self.l2 = StackedLinear(hidden[0], hidden[1], generators)
        self.l3 = StackedLinear(hidden[1], actions, generators)
        self.max_action, self.perturbation = max_action, perturbation

    def forward(
        self, observations: Float[Tensor, "member batch state"], actions: Float[Tensor, "member batch action"]
    ) -> Float[Tensor, "member batch action"]:
        """Move proposed actions by at most phi times the action range."""
        hidden = torch.relu(self.l1(torch.cat((observations, actions), 2)))
        moved: Tensor = actions + self.perturbation * self.max_action * torch.tanh(self.l3(torch.relu(self.l2(hidden))))
        return moved.clamp(-self.max_action, self.max_action)


class Critic(nn.Module):
    """The twin critic: two independent heads, l1 to l3 and l4 to l6, in one module, as Table 1 counts it."""

    def __init__(
        self, states: int, actions: int, hidden: tuple[int, int], generators: Sequence[torch.Generator]
    ) -> None:
        super().__init__()
        self.l1 = StackedLinear(states + actions, hidden[0], generators)
        self.l2 = StackedLinear(hidden[0], hidden[1], generators)
        self.l3 = StackedLinear(hidden[1], 1, generators)
        self.l4 = StackedLinear(states + actions, hidden[0], generators)
        self.l5 = StackedLinear(hidden[0], hidden[1], generators)
        self.l6 = StackedLinear(hidden[1], 1, generators)

    def q1(
        self, observations: Float[Tensor, "member batch state"], actions: Float[Tensor, "member batch action"]
    ) -> Float[Tensor, "member batch 1"]:
        """Return the first head's value, the one that the actor climbs and that chooses among candidates."""
        hidden = torch.relu(self.l1(torch.cat((observations, actions), 2)))
        value: Tensor = self.l3(torch.relu(self.l2(hidden)))
        return value

    def forward(
        self, observations: Float[Tensor, "member batch state"], actions: Float[Tensor, "member batch action"]
    ) -> tuple[Float[Tensor, "member batch 1"], Float[Tensor, "member batch 1"]]:
        """Return both heads' values."""
        hidden = torch.relu(self.l4(torch.cat((observations, actions), 2)))
        return self.q1(observations, actions), self.l6(torch.relu(self.l5(hidden)))


class Vae(nn.Module):
    """The generative model of the data's actions: encoder e1, e2, mean, log_std; decoder d1 to d3; 2 A latents."""

    def __init__(
        self,
        states: int,
        actions: int,
        hidden: tuple[int, int],
        max_action: float,
        generators: Sequence[torch.Generator],
    ) -> None:
        super().__init__()
        latent = 2 * actions
        self.e1 = StackedLinear(states + actions, hidden[0], generators)
        self.e2 = StackedLinear(hidden[0], hidden[1], generators)
        self.mean = StackedLinear(hidden[1], latent, generators)
        self.log_std = StackedLinear(hidden[1], latent, generators)
        self.d1 = StackedLinear(states + latent, hidden[0], generators)
        self.d2 = StackedLinear(hidden[0], hidden[1], generators)
        self.d3 = StackedLinear(hidden[1], actions, generators)
        self.max_action, self.latent = max_action, latent

    def decode(
        self, observations: Float[Tensor, "member batch state"], latents: Float[Tensor, "member batch latent"]
    ) -> Float[Tensor, "member batch action"]:
        """Decode latents, which the caller has drawn and clamped, to actions."""
        hidden = torch.relu(self.d1(torch.cat((observations, latents), 2)))
        return self.max_action * torch.tanh(self.d3(torch.relu(self.d2(hidden))))

    def forward(
        self,
        observations: Float[Tensor, "member batch state"],
        actions: Float[Tensor, "member batch action"],
        noise: Float[Tensor, "member batch latent"],
    ) -> tuple[
        Float[Tensor, "member batch action"], Float[Tensor, "member batch latent"], Float[Tensor, "member batch latent"]
    ]:
        """Return the reconstruction from z = mean + std * noise, the mean, and the clamped logarithm of std."""
        hidden = torch.relu(self.e2(torch.relu(self.e1(torch.cat((observations, actions), 2)))))
        mean, log_std = self.mean(hidden), self.log_std(hidden).clamp(*LOG_STD_RANGE)
        return self.decode(observations, mean + log_std.exp() * noise), mean, log_std


class Networks(nn.Module):
    """Networks of one stack. Behaviour cloning is the VAE alone: its actor and critic are None, not idle weights."""

    vae: Vae
    actor: Actor | None
    critic: Critic | None

    def __init__(self, vae: Vae, actor: Actor | None, critic: Critic | None) -> None:
        super().__init__()
        self.vae, self.actor, self.critic = vae, actor, critic


def layers(module: nn.Module) -> dict[str, StackedLinear]:
    """Return the layers below `module` by name, in the order in which they were made."""
    return {name: child for name, child in module.named_modules() if isinstance(child, StackedLinear)}


def weight_count(network: str, states: int, actions: int, hidden: tuple[int, int]) -> int:
    """Count the weights, without biases, of the network `vae`, `actor` or `critic` with these hidden widths."""
    first, second = hidden
    if network == "actor":
        return (states + actions) * first + first * second + second * actions
    if network == "critic":
        return 2 * ((states + actions) * first + first * second + second)
    latent = 2 * actions
    encoder = (states + actions) * first + first * second + 2 * second * latent
    return encoder + (states + latent) * first + first * second + second * actions


def widths(config: Config, network: str, states: int, actions: int) -> tuple[int, int]:
    """Return the hidden widths of the network `vae`, `actor` or `critic`.

    `SmallDense` scales both by one factor, up to rounding, chosen so that the number of weights is the closest to (1 -
    sparsity) N of the full network. At very high sparsities the narrowest network, one unit wide, may still be too
    large.
    """
    full: tuple[int, int] = getattr(config, network)
    if not isinstance(config.prune, SmallDense):
        return full
    wanted = (1 - config.prune.sparsity) * weight_count(network, states, actions, full)
    ratio = full[1] / full[0]
    candidates = [
        (first, second)
        for first in range(1, full[0] + 1)
        for second in range(
            max(1, round((first - 0.5) * ratio)) if first > 1 else 1,
            max(1, min(full[1], round((first + 0.5) * ratio))) + 1,
        )
    ]
    return min(candidates, key=lambda hidden: abs(weight_count(network, states, actions, hidden) - wanted))


def build(configs: Sequence[Config], states: int, actions: int, max_action: float) -> Networks:
    """Initialise one member per config on the CPU. Shapes and algorithm are those of the first config.

    A member's values depend on its seed, the network and the kind of initialisation alone: not on pruning, its
    neighbours, or the algorithm. So the VAE of a BC run starts as the VAE of the BCQ run with the same seed, and
    weights are pruned as they would be trained.
    """
    config, algorithm = configs[0], configs[0].algorithm
    sources = {name: [generator(member.seed, INITIAL[name]) for member in configs] for name in NETWORKS}
    hidden = {name: widths(config, name, states, actions) for name in NETWORKS}
    networks = Networks(Vae(states, actions, hidden["vae"], max_action, sources["vae"]), None, None)
    if isinstance(algorithm, Bcq):
        networks.actor = Actor(states, actions, hidden["actor"], max_action, algorithm.perturbation, sources["actor"])
        networks.critic = Critic(states, actions, hidden["critic"], sources["critic"])
    if config.initialisation == "xavier":
        _start_by_xavier(networks, sources)
    return networks


@torch.no_grad()
def _start_by_xavier(networks: Networks, sources: Mapping[str, Sequence[torch.Generator]]) -> None:
    """Draw every member's weights anew by Xavier's uniform rule, and set biases to 0."""
    for name, network in networks.named_children():
        for layer in layers(network).values():
            layer.bias.zero_()
            for weight, source in zip(layer.weight, sources[name], strict=True):
                nn.init.xavier_uniform_(weight, generator=source)


def unstack(module: nn.Module, member: int) -> dict[str, Tensor]:
    """Copy one member's weights to the CPU under the names and shapes of ordinary `torch.nn.Linear` layers.

    For `Networks` the names are `vae.e1.weight` (out, in), `vae.e1.bias` (out), and so on.
    """
    return {
        name: whole(module, name, value.detach())[member].to("cpu", copy=True)
        for name, value in module.named_parameters()
    }


@torch.no_grad()
def load(module: nn.Module, member: int, weights: Mapping[str, Tensor]) -> None:
    """Put one member's ordinary weights, as `unstack` gives them, into a stack, in place.

    Raises:
        ValueError: where names or shapes differ from the stack's.

    """
    parameters = dict(module.named_parameters())
    if parameters.keys() != weights.keys():
        only = sorted(parameters.keys() ^ weights.keys())
        raise ValueError(f"weights do not fit the networks: {only} on one side only")
    for name, value in parameters.items():
        pattern = pattern_of(module, name)
        shape = tuple(value.shape[1:]) if pattern is None else pattern.shape
        if shape != weights[name].shape:
            raise ValueError(f"{name} has shape {tuple(weights[name].shape)}, the network {shape}")
        value[member].copy_(own_values(module, name, weights[name]))


@torch.no_grad()
def bcq_action(
    networks: Networks,
    observations: Float[Tensor, "member batch state"],
    noise: Float[Tensor, "member candidates latent"],
) -> Float[Tensor, "member batch action"]:
    """Act by BCQ: of the perturbed decoder samples, the one the first critic values most (Fujimoto, equation 5).

    `noise` is N(0, 1), clamped here to +-0.5; rows [i * n, (i + 1) * n) belong to observation i, n candidates each.

    Raises:
        ValueError: where the networks are a behaviour-cloning run's, or the noise has no whole number of candidates.

    """
    if networks.actor is None or networks.critic is None:
        raise ValueError("policy bcq needs an actor and a critic; this run trained the VAE alone (policy bc)")
    members, batch, _ = observations.shape
    samples, rest = divmod(noise.shape[1], batch)
    if rest or not samples:
        raise ValueError(f"{noise.shape[1]} rows of noise are no multiple of {batch} observations")
    repeated = observations.repeat_interleave(samples, dim=1)
    actions = networks.actor(repeated, networks.vae.decode(repeated, noise.clamp(-BCQ_CLIP, BCQ_CLIP)))
    best = networks.critic.q1(repeated, actions).view(members, batch, samples).argmax(2)
    candidates: Tensor = actions.view(members, batch, samples, -1)
    index = best[:, :, None, None].expand(-1, -1, 1, candidates.shape[3])
    return candidates.gather(2, index).squeeze(2)


@torch.no_grad()
def bc_action(
    networks: Networks, observations: Float[Tensor, "member batch state"], noise: Float[Tensor, "member batch latent"]
) -> Float[Tensor, "member batch action"]:
    """Act by behaviour cloning as in BEAR: one decoder sample; `noise` is N(0, 1), clamped here to +-0.25."""
    return networks.vae.decode(observations, noise.clamp(-BC_CLIP, BC_CLIP))
