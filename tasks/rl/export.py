"""A trained policy as one file that plays on its own: a compact file whose header says what the policy is of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from retable.platform.api import TrainedRun
from retable.platform.errors import UserError
from retable.platform.models import export
from retable.tasks.rl.config import Bc, Bcq, Config
from retable.tasks.rl.data import played_in, simulator
from retable.tasks.rl.formats.compact import NAME, deployable, pack, read_about, unpack
from retable.tasks.rl.formats.precisions import Precision
from retable.tasks.rl.metrics import is_reference
from retable.tasks.rl.model import build, generator, unstack
from retable.tasks.rl.play.acting import NOISE, Policy, acting
from retable.tasks.rl.play.evaluate import refused_settings
from retable.tasks.rl.play.states import DEVIATION, MEAN, Standard, networks_of
from retable.tasks.rl.sparse.inference import ACTING, Act
from retable.tasks.rl.tools import drawn

FIELDS = {"environment": str, "simulator": str, "policy": str, "max_action": float}
FIELDS |= {"perturbation": float, "behaviour_return": float}
POLICIES = (*ACTING, "all")
PLAYED = ("settings", "reference")
"""Entries of `dataset.json`, and of a header, where an environment has settings, or data have reference scores."""
STATISTICS = {"mean": MEAN, "deviation": DEVIATION}
"""Entries of a header's `states` -> their names among a run's weights."""


@dataclass(frozen=True, eq=False)
class Exported:
    """A policy out of one file: what acts, and what the file says of it."""

    about: Mapping[str, Any]
    """See `platform.models.export.about`; and `environment`, `simulator`, `states`, `policy`, `precision`,
    `max_action`, `perturbation`, `behaviour_return`. Of files without a run, only these."""
    config: Config
    info: Mapping[str, Any]
    """`states`, `actions`, `max_action`, `behaviour_return` and `simulator` of the run's data, see `dataset.json`."""
    weights: Mapping[str, Tensor]
    """Of every network, 0 where the policy does not need them; and what its states are standardized by."""
    policy: Policy
    """Policy that the file was written for."""

    @property
    def environment(self) -> str:
        """The Gymnasium environment, with its version: `HalfCheetah-v5`."""
        return simulator(self.config.environment, self.info)

    @cached_property
    def act(self) -> Act:
        """Maps observations (n, states) and noise (n samples, latent), both float32, to actions (n, actions).

        The same function plays in `predict`. Actions are in [-1, 1]; rows [i samples, (i + 1) samples) of the noise
        belong to observation i; a policy `bc` takes one sample each. A result may differ by 1e-5 with the batch.
        """
        return acting(self.config, self.info, self.weights, self.policy)

    def noise(self, observations: int, samples: int, seed: int) -> Float[Tensor, "candidates latent"]:
        """Return standard normal noise for `act`; `samples` candidates an observation, which a policy `bc` ignores."""
        count = observations * (samples if self.policy == "bcq" else 1)
        return torch.randn(count, 2 * int(self.info["actions"]), generator=generator(seed, NOISE))


def write_export(
    run: TrainedRun,
    epoch: int = 0,
    policy: Literal["bcq", "bc", "all", ""] = "",
    precision: Precision = "float32",
    **more: Any,
) -> bytes:
    """Return the one file that is served of a run.

    Args:
        run: a finished run of this task.
        epoch: one that was kept; 0: the last.
        policy: see `write_policy`; none: `bcq` where the run has it, else `bc`.
        precision: of the weights in the file.
        **more: what else the file is to say of itself, such as `licence`.

    Raises:
        UserError: where the epoch was not kept, or as `write_policy`.
    """
    chosen = policy or own_policy(run.config)
    about = export.about(run, epoch, **more)
    return write_policy(run.config, run.source.info, run.weights(epoch), chosen, precision, about)


def own_policy(config: Config) -> Literal["bcq", "bc"]:
    """Return the policy of a run where none is asked for: `bc` where it trained the VAE alone."""
    return "bc" if isinstance(config.algorithm, Bc) else "bcq"


def read_export(data: bytes, name: str) -> Exported:
    """Read a file of `write_export`: numbers and JSON, never code. `name` is what errors call it.

    Raises:
        UserError: where it is no such file, is damaged, or its weights make no networks.
    """
    config, info, weights, policy = read_policy(data, name)
    about = read_about(data, name)
    run = about.pop("run", {})
    return Exported({**(run if isinstance(run, dict) else {}), **about}, config, info, weights, cast(Policy, policy))


def served_as(policy: Exported, name: str) -> tuple[str, str, dict[str, int]]:
    """Return the environment, by which requests name a policy, its variant such as `snip-95`, and its widths."""
    environment = str(policy.config.environment)
    widths = {key: int(policy.info[key]) for key in ("states", "actions")}
    return environment, name.removeprefix(environment).strip("-_"), widths


def write_policy(
    config: Config,
    info: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    policy: str,
    precision: Precision,
    run: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the file of a run's policy.

    Args:
        config: the run's.
        info: `dataset.json` of its data.
        weights: all of the run's (`vae.e1.weight`, ...).
        policy: `bc` or `bcq`, what that one needs to act; `all`: every weight.
        precision: of the weights in the file. Random and ERK masks are not in it: they are drawn again when it is read.
        run: what the file says of the run, see `platform.models.export.about`.

    Raises:
        UserError: where the run has no such policy, or the precision cannot hold a weight.
    """
    if policy == "bcq" and isinstance(config.algorithm, Bc):
        raise UserError("policy bcq needs a run with algorithm=bcq; this one trained the VAE alone (use bc or all)")
    about = {
        "environment": config.environment,
        "simulator": played_in(config.environment, info["simulator"]),
        **{key: info[key] for key in PLAYED if key in info},
        **({"states": _numbers(weights)} if Standard.of_weights(weights) else {}),
        "policy": policy,
        "max_action": float(info["max_action"]),
        "perturbation": float(config.algorithm.perturbation if isinstance(config.algorithm, Bcq) else 0),
        "behaviour_return": float(info["behaviour_return"]),
        "precision": precision,
        **({"run": dict(run)} if run else {}),
    }
    held = networks_of(weights) if policy == "all" else deployable(weights, policy)
    drawn_masks = {}
    if recipe := drawn.describe(config, info):
        about["masks"] = recipe
        drawn_masks = {name: mask for name, mask in drawn.masks(recipe).items() if name in held}
    return pack(dict(sorted(held.items())), precision, about, drawn_masks)  # equal content gives an equal file


def read_policy(data: bytes, name: str) -> tuple[Config, dict[str, Any], dict[str, Tensor], str]:
    """Return what plays a file: config, data set's entries, weights of every network (absent ones 0), and its policy.

    Widths and the sizes of observations and actions are those of the weights. `name` is what errors call the file.

    Raises:
        UserError: where it is no such file, or its weights make no networks.
    """
    about, weights = read_about(data, name), unpack(data, name, _masks)
    try:
        _check_about(about)
        policy = about["policy"]
        bcq = policy == "bcq" or (policy == "all" and "actor.l1.weight" in weights)
        first, *vae, actions = _chain(weights, "vae.d")
        states = first - 2 * actions
        if states < 1:
            raise ValueError("its decoder has no observations")
        standard = _standard(about.get("states"), states)
        widths = {"vae": (vae[0], vae[1])}
        for network, outputs in (("actor", actions), ("critic", 1)) if bcq else ():
            inputs, *hidden, last = _chain(weights, f"{network}.l")
            if (inputs, last) != (states + actions, outputs):
                raise ValueError(f"its {network} does not fit its decoder")
            widths[network] = (hidden[0], hidden[1])
        config = Config(
            environment=about["environment"],
            data="recorded",  # not D4RL's: the file says which version of the environment it is played in
            states="standardized" if standard else "raw",
            algorithm=Bcq(perturbation=about["perturbation"]) if bcq else Bc(),
            vae=widths["vae"],
            actor=widths.get("actor", Config.actor),
            critic=widths.get("critic", Config.critic),
        )
        template = unstack(build([config], states, actions, about["max_action"]), 0)
        needed = template.keys() if policy == "all" else deployable(template, policy).keys()
        if needed != weights.keys():
            raise ValueError(f"{sorted(needed ^ weights.keys())[0]} is missing, or too many")
        for key, value in weights.items():
            if value.shape != template[key].shape:
                raise ValueError(f"{key} has shape {tuple(value.shape)}, not {tuple(template[key].shape)}")
    except ValueError as error:
        raise UserError(f"{name}: no policy ({error}); write it again by `retable rl export`") from error
    entries = {key: about[key] for key in ("max_action", "behaviour_return", "simulator", *PLAYED) if key in about}
    absent = {key: torch.zeros_like(value) for key, value in template.items()}
    tensors = absent | weights | (standard.tensors() if standard else {})
    return config, {"states": states, "actions": actions, **entries}, tensors, "bc" if not bcq else "bcq"


def _numbers(weights: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return what states are standardized by as JSON holds it: nine digits make the same float32 again."""
    return {key: [float(f"{number:.9g}") for number in weights[name].tolist()] for key, name in STATISTICS.items()}


def _standard(statistics: object, states: int) -> Standard | None:
    """Return what states are standardized by, from what `_numbers` made; a file without it takes raw states."""
    if statistics is None:
        return None
    if not isinstance(statistics, dict) or statistics.keys() != STATISTICS.keys():
        raise ValueError("its states are described as nothing that is known")
    if any(not isinstance(row, list) or {type(number) for number in row} != {float} for row in statistics.values()):
        raise ValueError("its states are standardized by what are no numbers")
    mean, deviation = (torch.tensor(statistics[key]) for key in STATISTICS)
    if mean.shape != (states,) or deviation.shape != (states,):
        raise ValueError(f"its states are standardized by other than {states} numbers")
    if not (mean.isfinite().all() and deviation.isfinite().all() and (deviation > 0).all()):
        raise ValueError("its states are standardized by impossible numbers")
    return Standard(mean, deviation)


def _masks(about: Any) -> Mapping[str, Tensor]:
    return drawn.masks(about["masks"]) if isinstance(about, dict) and "masks" in about else {}


def _check_about(about: Any) -> None:
    for key, kind in FIELDS.items():
        value = about.get(key) if isinstance(about, dict) else None
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"its header has no valid entry '{key}'")
        if isinstance(value, str) and not NAME.fullmatch(value):
            raise ValueError(f"its header's entry '{key}' is no name")
    if about["policy"] not in POLICIES or about["max_action"] <= 0:
        raise ValueError("its header has a wrong policy or bound of actions")
    if refused := refused_settings(about.get("settings", {})):
        raise ValueError(f"its header's settings have {refused}")
    if not is_reference(about.get("reference", (0, 1))):
        raise ValueError("its header has wrong reference scores")


def _chain(weights: Mapping[str, Tensor], prefix: str) -> Sequence[int]:
    """Return inputs, hidden widths and outputs of three layers; checked before networks so wide are built."""
    sizes: list[int] = []
    for layer in (f"{prefix}{i}" for i in (1, 2, 3)):
        weight, bias = weights.get(f"{layer}.weight"), weights.get(f"{layer}.bias")
        if weight is None or bias is None or weight.dim() != 2 or bias.shape != weight.shape[:1] or not weight.numel():
            raise ValueError(f"its layer {layer} is missing or empty")
        if sizes and sizes[-1] != weight.shape[1]:
            raise ValueError(f"its layer {layer} does not fit the one before")
        sizes = [*(sizes or [weight.shape[1]]), weight.shape[0]]
    return sizes
