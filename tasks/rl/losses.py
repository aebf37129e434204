"""BCQ's three losses, one value per member, and the random latents they are given.

Both training and pruning use them. Source: Fujimoto et al. 2019, equations 5 to 7 and the authors' continuous BCQ,
which Arnob et al. 2021 prune "without changing anything within the RL objective" (section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from retable.tasks.rl.config import Bcq
from retable.tasks.rl.model import BCQ_CLIP, Actor, Critic, Vae, generator

Batch = Mapping[str, Tensor]
"""observation (E, B, S), action (E, B, A), reward (E, B, 1), next_observation (E, B, S), not_done (E, B, 1)."""


class Noise(NamedTuple):
    """The latents of one update: z's noise for the VAE loss, and the decoder's inputs for the target and the actor."""

    vae: Float[Tensor, "member batch latent"]
    target: Float[Tensor, "member samples latent"]
    actor: Float[Tensor, "member batch latent"]


def draw_noise(
    seeds: Sequence[int], stream: str, number: int, batch: int, latent: int, samples: int, rows: slice | None = None
) -> Noise:
    """Draw on the CPU the latents of a whole batch; each member's depend on its own seed, `stream` and `number` only.

    The VAE's noise comes first, so that a BC run (`samples` = 0) sees what the BCQ run of the same seed sees. The
    decoder's latents are clamped to +-0.5 as in the reference. `rows` keeps one worker's transitions; `samples` rows of
    `target` belong to each transition.
    """
    rows = rows or slice(0, batch)
    drawn: list[tuple[Tensor, ...]] = []
    for seed in seeds:
        source = generator(seed, stream, number)
        vae, target, actor = (torch.randn(n, latent, generator=source) for n in (batch, batch * samples, batch))
        drawn.append((vae[rows], target[rows.start * samples : rows.stop * samples], actor[rows]))
    vae, target, actor = (torch.stack(parts) for parts in zip(*drawn, strict=True))
    return Noise(vae, target.clamp_(-BCQ_CLIP, BCQ_CLIP), actor.clamp_(-BCQ_CLIP, BCQ_CLIP))


def vae_loss(vae: nn.Module, batch: Batch, noise: Float[Tensor, "member batch latent"]) -> Float[Tensor, " member"]:
    """Mean squared error + KL / 2 (Fujimoto et al. 2019, equation 7). `vae` is a `Vae`, wrapped or not.

    Means are over transitions and action or latent dimensions, as in the reference: the published equation sums over
    dimensions, which weighs the two terms differently.
    """
    reconstruction, mean, log_std = vae(batch["observation"], batch["action"], noise)
    error: Tensor = (reconstruction - batch["action"]).square().mean((1, 2))
    divergence: Tensor = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp()).mean((1, 2))
    return error + 0.5 * divergence


@torch.no_grad()
def td_target(
    vae: Vae,
    actor: Actor,
    critic: Critic,
    batch: Batch,
    latents: Float[Tensor, "member samples latent"],
    algorithm: Bcq,
) -> Float[Tensor, "member batch 1"]:
    """Compute r + not_done gamma max_i (lambda min_j Q_j + (1 - lambda) max_j Q_j) (Fujimoto et al. 2019, equation 6).

    The i run over perturbed decoder samples at s'. `actor` and `critic` are the target networks; the VAE is the online
    one, as in the reference, which has no target VAE.
    """
    observations = batch["next_observation"].repeat_interleave(algorithm.target_samples, dim=1)
    q1, q2 = critic(observations, actor(observations, vae.decode(observations, latents)))
    q1, q2 = q1.float(), q2.float()  # under autocast they are bfloat16, too coarse to combine
    mixed = algorithm.minimum_weight * torch.min(q1, q2) + (1 - algorithm.minimum_weight) * torch.max(q1, q2)
    best: Tensor = mixed.view(*batch["reward"].shape[:2], algorithm.target_samples).amax(2, keepdim=True)
    return batch["reward"] + batch["not_done"] * algorithm.discount * best


def critic_loss(
    critic: nn.Module, batch: Batch, target: Float[Tensor, "member batch 1"]
) -> tuple[Float[Tensor, " member"], Float[Tensor, " member"]]:
    """Sum the mean squared errors of both heads to a detached target; also give the mean of Q1, without gradient."""
    q1, q2 = critic(batch["observation"], batch["action"])
    loss = (q1 - target).square().mean((1, 2)) + (q2 - target).square().mean((1, 2))
    return loss, q1.detach().mean((1, 2))


def actor_loss(
    actor: nn.Module, critic: Critic, vae: Vae, batch: Batch, latents: Float[Tensor, "member batch latent"]
) -> Float[Tensor, " member"]:
    """Give -mean Q1(s, actor(s, decoder sample)).

    Deviation: the decoder runs without gradients; the reference computes and then discards them.
    """
    with torch.no_grad():
        proposed = vae.decode(batch["observation"], latents)
    value: Tensor = critic.q1(batch["observation"], actor(batch["observation"], proposed))
    return -value.mean((1, 2))
