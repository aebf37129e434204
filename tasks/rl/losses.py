"""BCQ's three losses, one value per member, and the random latents they are given.

Both training and pruning use them. Source: Fujimoto et al. 2019, equations 5 to 7 and the authors' continuous BCQ,
which Arnob et al. 2021 prune "without changing anything within the RL objective" (section 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from retable.platform.train.seeds import sequence
from retable.tasks.rl.config import Bcq
from retable.tasks.rl.model import BCQ_CLIP, Actor, Critic, Vae

Batch = Mapping[str, Tensor]
"""observation (E, B, S), action (E, B, A), reward (E, B, 1), next_observation (E, B, S), not_done (E, B, 1)."""
TRAINING_NOISE, PRUNING_NOISE = "rl.noise.training", "rl.noise.pruning"
"""The streams of latents: of each update of a training, and of the one batch that weights are scored on."""
GOLDEN = -0x61C8864680B583EB
"""SplitMix64's step, 2^64 over the golden ratio, as a signed number."""


class Noise(NamedTuple):
    """The latents of one update: z's noise for the VAE loss, and the decoder's inputs for the target and the actor."""

    vae: Float[Tensor, "member batch latent"]
    target: Float[Tensor, "member samples latent"]
    actor: Float[Tensor, "member batch latent"]


def noise_keys(seeds: Sequence[int], stream: str) -> Int[Tensor, " member"]:
    """Return each member's key of one stream of noise: 64 bits, unrelated for nearby seeds."""
    keys = [sequence(seed, stream).generate_state(1, np.uint64) for seed in seeds]
    return torch.from_numpy(np.concatenate(keys).view(np.int64))


def normals(
    keys: Int[Tensor, " member"], number: int | Int[Tensor, ""], counters: Int[Tensor, " count"]
) -> Float[Tensor, "member count 2"]:
    """Return standard normal pairs: pure functions of key, `number` and counter, on whatever device these are.

    64 random bits of a counter (SplitMix64; Steele et al. 2014) make a pair by Box and Muller's transform, 24 bits for
    its radius, which so ends at 5.8, and 24 for its angle. PyTorch's own generators would need a call for each member,
    or give numbers that depend on the stack and the device. On another device the last bits may differ.
    """
    streams = _mix(keys + torch.as_tensor(number, device=keys.device) * GOLDEN)
    words = _mix(streams[:, None] + counters * GOLDEN)
    radius = ((words >> 40 & 0xFFFFFF) + 1).float().mul_(2**-24).log_().mul_(-2).sqrt_()
    angle = (words & 0xFFFFFF).float().mul_(2 * math.pi * 2**-24)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), -1)


def _mix(words: Tensor) -> Tensor:
    """Scramble 64-bit words, one to one. `>>` keeps the sign, so the bits that it drags in are masked."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        words = (words ^ words >> shift & (1 << 64 - shift) - 1) * factor
    return words ^ words >> 31 & (1 << 33) - 1


def latents(
    keys: Int[Tensor, " member"],
    number: int | Int[Tensor, ""],
    batch: int,
    latent: int,
    samples: int,
    rows: slice | None = None,
) -> Noise:
    """Draw the latents (an even number, two for each action) of a whole batch on the device of `keys`.

    A member's depend on its key and `number` only, and a BC run (`samples` = 0) sees what the BCQ run with its key
    sees. The decoder's latents are clamped to +-0.5 as in the reference. `rows` keeps one worker's transitions;
    `samples` rows of `target` belong to each transition.
    """
    rows = rows or slice(0, batch)
    pairs, share = latent // 2, rows.stop - rows.start
    starts = (rows.start, batch + rows.start, 2 * batch + rows.start * samples)
    sizes = [share, share, share * samples]  # of the VAE's noise, the actor's latents and the target's
    spans = [
        torch.arange(start * pairs, (start + size) * pairs, device=keys.device)
        for start, size in zip(starts, sizes, strict=True)
    ]
    drawn = normals(keys, number, torch.cat(spans)).view(len(keys), -1, latent)
    vae, actor, target = torch.split(drawn, sizes, dim=1)
    return Noise(vae, target.clamp(-BCQ_CLIP, BCQ_CLIP), actor.clamp(-BCQ_CLIP, BCQ_CLIP))


def draw_noise(
    seeds: Sequence[int], stream: str, number: int, batch: int, latent: int, samples: int, rows: slice | None = None
) -> Noise:
    """Draw `latents` on the CPU for members with these seeds."""
    return latents(noise_keys(seeds, stream), number, batch, latent, samples, rows)


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
    """Return -mean Q1(s, actor(s, decoder sample)).

    Deviation: the decoder runs without gradients; the reference computes and then discards them.
    """
    with torch.no_grad():
        proposed = vae.decode(batch["observation"], latents)
    value: Tensor = critic.q1(batch["observation"], actor(batch["observation"], proposed))
    return -value.mean((1, 2))
