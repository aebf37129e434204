"""BCQ for one agent, the plain way: `nn.Linear`, `Adam`, no stacking, no sharing of code with `retable`.

Written from the description of continuous BCQ (Fujimoto et al. 2019) in our research notes, as an oracle for the tests
and as the benchmark's baseline. Random latents are arguments, so that two implementations can be given the same ones.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Perturbation(nn.Module):
    def __init__(self, states, actions, hidden=(400, 300), max_action=1.0, phi=0.05):
        super().__init__()
        self.l1 = nn.Linear(states + actions, hidden[0])
        self.l2 = nn.Linear(hidden[0], hidden[1])
        self.l3 = nn.Linear(hidden[1], actions)
        self.max_action, self.phi = max_action, phi

    def forward(self, state, action):
        x = F.relu(self.l1(torch.cat([state, action], 1)))
        x = F.relu(self.l2(x))
        x = self.phi * self.max_action * torch.tanh(self.l3(x))
        return (x + action).clamp(-self.max_action, self.max_action)


class TwinCritic(nn.Module):
    def __init__(self, states, actions, hidden=(400, 300)):
        super().__init__()
        self.l1 = nn.Linear(states + actions, hidden[0])
        self.l2 = nn.Linear(hidden[0], hidden[1])
        self.l3 = nn.Linear(hidden[1], 1)
        self.l4 = nn.Linear(states + actions, hidden[0])
        self.l5 = nn.Linear(hidden[0], hidden[1])
        self.l6 = nn.Linear(hidden[1], 1)

    def q1(self, state, action):
        x = torch.cat([state, action], 1)
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))

    def forward(self, state, action):
        x = torch.cat([state, action], 1)
        return self.q1(state, action), self.l6(F.relu(self.l5(F.relu(self.l4(x)))))


class Autoencoder(nn.Module):
    def __init__(self, states, actions, hidden=(750, 750), max_action=1.0):
        super().__init__()
        latent = 2 * actions
        self.e1 = nn.Linear(states + actions, hidden[0])
        self.e2 = nn.Linear(hidden[0], hidden[1])
        self.mean = nn.Linear(hidden[1], latent)
        self.log_std = nn.Linear(hidden[1], latent)
        self.d1 = nn.Linear(states + latent, hidden[0])
        self.d2 = nn.Linear(hidden[0], hidden[1])
        self.d3 = nn.Linear(hidden[1], actions)
        self.max_action = max_action

    def decode(self, state, z):
        x = F.relu(self.d1(torch.cat([state, z], 1)))
        return self.max_action * torch.tanh(self.d3(F.relu(self.d2(x))))

    def forward(self, state, action, noise):
        x = F.relu(self.e2(F.relu(self.e1(torch.cat([state, action], 1)))))
        mean, std = self.mean(x), torch.exp(self.log_std(x).clamp(-4, 15))
        return self.decode(state, mean + std * noise), mean, std


def autoencoder_loss(vae, batch, noise):
    reconstruction, mean, std = vae(batch["observation"], batch["action"], noise)
    kl = -0.5 * (1 + torch.log(std.pow(2)) - mean.pow(2) - std.pow(2)).mean()
    return F.mse_loss(reconstruction, batch["action"]) + 0.5 * kl


def bootstrap(vae, actor_target, critic_target, batch, z, discount=0.99, lam=0.75, samples=10):
    with torch.no_grad():
        state = torch.repeat_interleave(batch["next_observation"], samples, 0)
        q1, q2 = critic_target(state, actor_target(state, vae.decode(state, z)))
        q = lam * torch.min(q1, q2) + (1.0 - lam) * torch.max(q1, q2)
        q = q.reshape(-1, samples).max(1)[0].reshape(-1, 1)
        return batch["reward"] + batch["not_done"] * discount * q


def twin_loss(critic, batch, target):
    q1, q2 = critic(batch["observation"], batch["action"])
    return F.mse_loss(q1, target) + F.mse_loss(q2, target)


def perturbation_loss(actor, critic, vae, batch, z):
    sampled = vae.decode(batch["observation"], z)
    return -critic.q1(batch["observation"], actor(batch["observation"], sampled)).mean()


class ReferenceBcq:
    """One agent; batches of (B, S), (B, A), (B, 1) tensors; noise (vae (B, Z), target (10 B, Z), actor (B, Z))."""

    def __init__(self, states, actions, actor=(400, 300), critic=(400, 300), vae=(750, 750), rate=1e-3, tau=0.005):
        self.actor, self.critic = Perturbation(states, actions, actor), TwinCritic(states, actions, critic)
        self.vae, self.tau, self.masks = Autoencoder(states, actions, vae), tau, {}
        self.optimizers = {name: torch.optim.Adam(net.parameters(), lr=rate) for name, net in self.networks().items()}
        self.copy_targets()

    def networks(self):
        return {"vae": self.vae, "actor": self.actor, "critic": self.critic}

    def copy_targets(self):
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)

    def load(self, weights):
        """Take over initial weights, named as in "actor.l1.weight"."""
        for name, net in self.networks().items():
            net.load_state_dict({k.split(".", 1)[1]: v for k, v in weights.items() if k.split(".")[0] == name})
        self.copy_targets()

    def weights(self):
        return {f"{n}.{k}": v.detach() for n, net in self.networks().items() for k, v in net.named_parameters()}

    def targets(self):
        pairs = {"actor": self.actor_target, "critic": self.critic_target}
        return {f"{n}.{k}": v.detach() for n, net in pairs.items() for k, v in net.named_parameters()}

    def descend(self, name, loss):
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        with torch.no_grad():  # the other way to keep a mask: let Adam move pruned weights, then put them back
            for key, value in self.networks()[name].named_parameters():
                if f"{name}.{key}" in self.masks:
                    value.mul_(self.masks[f"{name}.{key}"])
        return loss.item()

    def update(self, batch, noise):
        losses = {"vae_loss": self.descend("vae", autoencoder_loss(self.vae, batch, noise[0]))}
        target = bootstrap(self.vae, self.actor_target, self.critic_target, batch, noise[1])
        losses["critic_loss"] = self.descend("critic", twin_loss(self.critic, batch, target))
        loss = perturbation_loss(self.actor, self.critic, self.vae, batch, noise[2])
        losses["actor_loss"] = self.descend("actor", loss)
        for online, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
            for new, old in zip(online.parameters(), target.parameters(), strict=True):
                old.data.copy_(self.tau * new.data + (1 - self.tau) * old.data)
        return losses
