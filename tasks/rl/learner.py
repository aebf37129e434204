"""Training of one stack of offline-RL runs: BCQ or behaviour cloning, dense or pruned before the first step.

Source: Arnob et al. 2021, Algorithm 1, over continuous BCQ (Fujimoto et al. 2019, Algorithm 1 and the authors' code):
each update trains the VAE, then the critic, then the actor on one batch, then moves the target networks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from retable.platform.config import override
from retable.platform.train.worker import Worker, autocast
from retable.tasks.rl.config import Bcq, Config, Dense, Pruning, SmallDense
from retable.tasks.rl.losses import (
    TRAINING_NOISE,
    Batch,
    actor_loss,
    critic_loss,
    latents,
    noise_keys,
    td_target,
    vae_loss,
)
from retable.tasks.rl.model import Actor, Critic, Vae, build, layers, load, unstack
from retable.tasks.rl.play.states import Standard, networks_of
from retable.tasks.rl.prune.prune import Masks, dense, masks
from retable.tasks.rl.sparse.training import SPARSE_BELOW, Pattern, choose, masks_of, own_values, sparsify, whole

State = dict[str, Any]
Network = TypeVar("Network", Vae, Actor, Critic)
MOMENTS = ("exp_avg", "exp_avg_sq")
SAVED = {"all": 1.0, "actor": 0.05, "critic": 0.2, "vae": 0.7}
"""Of the time that pruning all networks saves, what it saves to prune one of them."""


class Data(Protocol):
    """Interface of a data set to the learner."""

    @property
    def states(self) -> int:
        """Size of an observation."""

    @property
    def actions(self) -> int:
        """Size of an action."""

    @property
    def max_action(self) -> float:
        """Bound of every action dimension."""

    @property
    def standard(self) -> Standard | None:
        """Mean and deviation that the states of every batch are standardized by; None: they are raw."""

    def sample(self, member: int, size: int) -> Mapping[str, Tensor]:
        """Draw transitions for a member, (size, ...) each, always the same for the same member's seed."""

    def place(self, device: torch.device) -> None:
        """Serve batches on a device from now on."""


def group(config: Config) -> Hashable:
    """Return the key of configs that can train as one stack: they differ in seed and pruning only.

    `SmallDense` keeps its sparsity, which sets the shapes.
    """
    return replace(config, seed=0, prune=config.prune if isinstance(config.prune, SmallDense) else Dense())


class _Trained(Generic[Network]):
    """A network, the wrapped form its own update goes through, and its optimiser."""

    def __init__(self, network: Network, worker: Worker, learning_rate: float, fused: bool) -> None:
        self.network: Network = network
        self.wrapped = worker.wrap(network)
        on_gpu = torch.device(worker.device).type == "cuda"
        self.optimizer = torch.optim.Adam(
            network.parameters(), lr=learning_rate, fused=fused, foreach=not fused, capturable=on_gpu
        )
        for value in network.parameters():  # as Adam itself does later; made now so that there is a state to load into
            moments = {name: torch.zeros_like(value, requires_grad=False) for name in MOMENTS}
            self.optimizer.state[value] = {"step": torch.zeros((), device=value.device), **moments}

    def descend(self, losses: Tensor) -> None:
        """Make one step on the members' losses. Their sum keeps the members' gradients apart."""
        self.optimizer.zero_grad()
        torch.autograd.backward(losses.sum())
        for layer in layers(self.network).values():
            if layer.mask is not None and layer.weight.grad is not None:
                # With gradients of 0 from the first step on, Adam's moments and so the pruned weights stay exactly 0.
                # The bits are multiplied by 0 or 1, as 0 * NaN is NaN; `masked_fill_` takes 25 times as long.
                layer.weight.grad.view(torch.int32).mul_(layer.mask)
        self.optimizer.step()


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Keep gradients from a module that a loss passes through: they cost time, and DDP would try to average them."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


class Replay:
    """A function of tensors that a GPU replays as one CUDA graph: an update is hundreds of small kernels.

    The first calls run it as it is, on a stream of their own, as capturing wants it. It must not wait for the device,
    inputs keep their shapes, and what else it reads or writes must stay where it is. Each call is given it, always the
    same one: a method that we kept would keep alive its object, which keeps us, and so the object's memory.
    """

    WARM_UP = 3

    def __init__(self) -> None:
        self._calls = 0
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph = torch.cuda.CUDAGraph()
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}

    def __call__(self, function: Callable[[Batch], dict[str, Tensor]], inputs: Batch) -> dict[str, Tensor]:
        """Return the function's outputs, in tensors of their own."""
        self._calls += 1
        if self._calls <= self.WARM_UP:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                outputs = function(inputs)
            torch.cuda.current_stream().wait_stream(self._stream)
            return outputs
        if not self._inputs:
            self._inputs = {name: value.clone() for name, value in inputs.items()}
            with torch.cuda.graph(self._graph):  # records; the first replay is what runs it
                self._outputs = function(self._inputs)
        torch._foreach_copy_([*self._inputs.values()], [*inputs.values()])
        self._graph.replay()
        return {name: value.clone() for name, value in self._outputs.items()}


class OfflineLearner:
    """Trains a stack of runs that share everything but seed and pruning. One run is a stack of one.

    Gradients, noise and metrics of a member never depend on its neighbours. Latents are drawn for the global batch as a
    function of (seed, update), so neither the number of workers nor a restart changes them, nor the device, but for the
    last bits.
    """

    def __init__(
        self, configs: Sequence[Config], data: Data, worker: Worker, graph: bool = True, fused: bool = True
    ) -> None:
        """Initialise, prune and copy the targets, in this order: targets copied earlier would keep pruned weights.

        Two arguments change no number but in its last bits: `graph` replays an update on a GPU as one CUDA graph,
        `fused` has Adam move a network in one kernel rather than in one for each of its operations.

        Raises:
            ValueError: where the configs cannot be stacked.

        """
        if not configs or len({group(config) for config in configs}) > 1:
            raise ValueError("a stack needs one or more configs that differ in nothing but seed and prune")
        self._config = config = configs[0]
        self.configs, self.worker, self.updates = list(configs), worker, 0
        self._algorithm, self._device = config.algorithm, torch.device(worker.device)
        self.networks = build(configs, data.states, data.actions, data.max_action)
        self.zero_scores: list[dict[str, float]] = [{} for _ in configs]
        if not all(dense(member) for member in configs):
            # On the CPU, before the move: the masks must not depend on the device's arithmetic.
            pruning_masks, self.zero_scores = masks(configs, self.networks, data.sample)
            _set_masks(self.networks, pruning_masks)
            if len(configs) == 1 and worker.world == 1 and self._device.type == "cpu":
                worker.note(choose(layers(self.networks)))
        self.networks.to(self._device)
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            data.place(self._device)
        self._replay = Replay() if graph and on_gpu and worker.world == 1 else None
        self._keys = noise_keys([member.seed for member in configs], TRAINING_NOISE).to(self._device)
        self._number = torch.zeros((), dtype=torch.int64, device=self._device)
        self._size = config.batch // worker.world
        self._statistics = data.standard.tensors() if data.standard is not None else {}
        self._shapes = {"observation": data.states, "action": data.actions, "reward": 1}
        self._shapes |= {"next_observation": data.states, "not_done": 1}
        self._vae = _Trained(self.networks.vae, worker, config.learning_rate, fused)
        self._trained: dict[str, _Trained[Any]] = {"vae": self._vae}
        self.targets = nn.ModuleDict()
        if self.networks.actor is not None and self.networks.critic is not None:
            self._actor = _Trained(self.networks.actor, worker, config.learning_rate, fused)
            self._critic = _Trained(self.networks.critic, worker, config.learning_rate, fused)
            self._trained |= {"actor": self._actor, "critic": self._critic}
            self._target_actor = copy.deepcopy(self._actor.network).requires_grad_(False)
            self._target_critic = copy.deepcopy(self._critic.network).requires_grad_(False)
            self.targets.update({"actor": self._target_actor, "critic": self._target_critic})

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update on this worker's rows of the global batch: rank r has rows [r B, (r + 1) B).

        `batch` holds float32 `observation` and `next_observation` (E, B, S), `action` (E, B, A), `reward` and
        `not_done` (E, B, 1). Gives `vae_loss` and, for BCQ, `critic_loss`, `actor_loss` and `q` (mean Q1 of the data's
        actions before the update), (E,) each, over this worker's rows and without waiting for the device.

        Raises:
            ValueError: where the batch has another shape; (B,) for (B, 1) would broadcast to (B, B) silently.

        """
        for name, width in self._shapes.items():
            if batch[name].shape != (wanted := (len(self.configs), self._size, width)):
                raise ValueError(f"{name} has shape {tuple(batch[name].shape)}, not {wanted}")
        self._number.fill_(self.updates)
        placed = {name: batch[name].to(self._device) for name in self._shapes}
        metrics = self._train(placed) if self._replay is None else self._replay(self._train, placed)
        self.updates += 1
        return metrics

    def _train(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update. All that changes between updates is in tensors, so that a GPU can replay it."""
        torch.backends.cuda.matmul.allow_tf32 = self._config.precision == "tf32"
        samples = self._algorithm.target_samples if isinstance(self._algorithm, Bcq) else 0
        rows = slice(self.worker.rank * self._size, (self.worker.rank + 1) * self._size)
        noise = latents(self._keys, self._number, self._config.batch, self.networks.vae.latent, samples, rows)
        losses = vae_loss(self._vae.wrapped, batch, noise.vae)
        self._vae.descend(losses)
        metrics = {"vae_loss": losses.detach()}
        if isinstance(self._algorithm, Bcq):
            metrics |= self._update_critic(batch, noise.target)
            metrics |= self._update_actor(batch, noise.actor)
            self._move_targets()
        return metrics

    def _update_critic(self, batch: Batch, latents: Tensor) -> dict[str, Tensor]:
        assert isinstance(self._algorithm, Bcq)
        with autocast(self.worker.device, self._algorithm.target_precision):
            vae, algorithm = self._vae.network, self._algorithm
            target = td_target(vae, self._target_actor, self._target_critic, batch, latents, algorithm)
        losses, q = critic_loss(self._critic.wrapped, batch, target)
        self._critic.descend(losses)
        return {"critic_loss": losses.detach(), "q": q}

    def _update_actor(self, batch: Batch, latents: Tensor) -> dict[str, Tensor]:
        with _frozen(self._critic.network):
            losses = actor_loss(self._actor.wrapped, self._critic.network, self._vae.network, batch, latents)
            self._actor.descend(losses)
        return {"actor_loss": losses.detach()}

    def _move_targets(self) -> None:
        """Soft-update the critic's, then the actor's target: target += tau (online - target); 0 stays 0."""
        assert isinstance(self._algorithm, Bcq)
        for target, online in ((self._target_critic, self._critic), (self._target_actor, self._actor)):
            values: tuple[list[Tensor], list[Tensor]] = [*target.parameters()], [*online.network.parameters()]
            with torch.no_grad():
                torch._foreach_lerp_(*values, self._algorithm.target_rate)

    def state_dict(self) -> list[State]:
        """Return one state per member, on the CPU: tensors and plain Python only, for `torch.load(weights_only=True)`.

        `weights`, `targets` and `masks` (pruned members only) are flat, "actor.l1.weight" (out, in), the layout of
        ordinary linear layers; `weights` also has what states are standardized by (`states.py`); `optimizer` has
        `exp_avg`, `exp_avg_sq` and `step` by the same names; `updates` is a count.
        """
        # Whole stacks come to the CPU and are taken apart there: each transfer from a GPU is waited for.
        networks, targets = (copy.deepcopy(part).cpu() for part in (self.networks, self.targets))
        optimizer: dict[str, dict[str, Tensor]] = {name: {} for name in (*MOMENTS, "step")}
        for network, trained in self._trained.items():
            for name, value in trained.network.named_parameters():
                for kind, tensor in trained.optimizer.state[value].items():
                    dense_tensor = tensor if kind == "step" else whole(trained.network, name, tensor)
                    optimizer[kind][f"{network}.{name}"] = dense_tensor.cpu()
        masks_by_name = masks_of(layers(networks))
        return [
            {
                "weights": unstack(networks, member) | self._statistics,
                "targets": unstack(targets, member),
                "optimizer": {
                    kind: {name: (value if kind == "step" else value[member]).clone() for name, value in parts.items()}
                    for kind, parts in optimizer.items()
                },
                "masks": {} if dense(config) else {name: mask[member].clone() for name, mask in masks_by_name.items()},
                "updates": self.updates,
            }
            for member, config in enumerate(self.configs)
        ]

    @torch.no_grad()
    def load_state_dict(self, states: Sequence[State]) -> None:
        """Continue from the members' states, one each, in the order of the configs.

        Raises:
            ValueError: where states and members do not fit, are at different updates, or a pruned weight is not 0.

        """
        if len(states) != len(self.configs) or len({state["updates"] for state in states}) != 1:
            raise ValueError(f"{len(self.configs)} members need as many states, all at the same update")
        for member, state in enumerate(states):
            self._load_masks(member, state)
            load(self.networks, member, networks_of(state["weights"]))
            load(self.targets, member, state["targets"])
            for network, trained in self._trained.items():
                for name, value in trained.network.named_parameters():
                    moments, key = trained.optimizer.state[value], f"{network}.{name}"
                    for moment in MOMENTS:
                        values = own_values(trained.network, name, state["optimizer"][moment][key])
                        moments[moment].resize_(len(states), *values.shape)[member].copy_(values)
                    moments["step"].copy_(state["optimizer"]["step"][key])
        self.updates = states[0]["updates"]

    def _load_masks(self, member: int, state: State) -> None:
        """Take over a member's masks, of online and target networks, after checking the weights against them."""
        expected = {f"{name}.weight" for name, layer in layers(self.networks).items()}
        if set(state["masks"]) != (set() if dense(self.configs[member]) else expected):
            raise ValueError(f"the masks of member {member} do not fit its config")
        for part in ("weights", "targets"):
            for name, mask in state["masks"].items():
                if name in state[part] and state[part][name][~mask].any():
                    raise ValueError(f"{part} {name} of member {member} has pruned weights that are not 0")
        for module in (self.networks, self.targets):
            for name, layer in layers(module).items():
                if layer.pattern is not None:
                    # Masks that another processor found may differ where its rounding does.
                    sparsify(layer, Pattern.of(state["masks"][f"{name}.weight"]))
                elif layer.mask is not None:
                    layer.mask[member].copy_(state["masks"].get(f"{name}.weight", torch.tensor(True)))


@torch.no_grad()
def _set_masks(networks: nn.Module, masks_by_network: Masks) -> None:
    """Prune: zero the weights that are masked and keep the masks beside them."""
    for network, by_layer in masks_by_network.items():
        for name, layer in layers(networks.get_submodule(network)).items():
            layer.mask = by_layer[name]
            layer.weight.masked_fill_(~layer.mask, 0)


def cost(config: Config) -> float:
    """Return seconds of one core that a training takes, as measured at (17, 6).

    An update takes 53 ms for BCQ, 37 ms with its target pass in bfloat16, 13 ms for BC; where more than three quarters
    of the weights are pruned (`sparse/training.py`), 23 ms at 90 % and 16 ms at 95 %, and 3.5 ms for BC.
    """
    bcq = isinstance(config.algorithm, Bcq)
    reduced = isinstance(config.algorithm, Bcq) and config.algorithm.target_precision == "bfloat16"
    dense = seconds = 0.037 if reduced else 0.053 if bcq else 0.013
    match config.prune:
        case SmallDense(sparsity=sparsity):
            seconds = 0.003 + dense * (1 - sparsity)
        case Pruning(sparsity=sparsity, networks=networks) if 1 - sparsity < SPARSE_BELOW:
            sparse = 0.009 + 0.14 * (1 - sparsity) if bcq else 0.002 + 0.03 * (1 - sparsity)
            seconds = dense - SAVED[networks] * max(dense - sparse, 0)
    return config.epochs * config.steps * seconds * config.batch / 100 + 1


def gpu_work(config: Config) -> tuple[str, float]:
    """Return which rate of `python -m benchmarks gpu` a training goes at, and its network-updates, counted as BCQ's."""
    config = override(config, {"prune": "dense"})  # a GPU multiplies dense matrices
    share = cost(config) / cost(override(config, {"algorithm": "bcq"}))
    return "rl/tf32" if config.precision == "tf32" else "rl", config.epochs * config.steps * share
