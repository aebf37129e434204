"""Config of an offline-RL run: data, algorithm, pruning. The defaults are the paper's values.

Source: Arnob et al. 2021, *Single-Shot Pruning for Offline Reinforcement Learning*, section 4; what it leaves open
follows the code it builds on (continuous BCQ of Fujimoto et al. 2019; BC as in BEAR, Kumar et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from retable.platform.config import added, check


def check_sparsity(sparsity: float) -> None:
    """Refuse a sparsity outside [0, 1)."""
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity {sparsity} is outside [0, 1)")


@dataclass(frozen=True, kw_only=True)
class Dense:
    """No pruning."""


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """Fields that all pruning methods share."""

    sparsity: float = 0.95
    networks: Literal["all", "actor", "critic", "vae"] = added("all")
    """Networks that are pruned; the others stay dense. The paper prunes all."""

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)


@dataclass(frozen=True, kw_only=True)
class Scoring(Pruning):
    """Fields that pruning methods with scores on one batch share."""

    iterations: int = added(1)
    """Rounds in which weights are removed, a density `(1 - sparsity) ** (round / iterations)` being left after each:
    a round scores what the one before has left (iterative SNIP: de Jorge et al. 2021). The paper varied it, saw no
    gain, and gives no numbers (section 4); how its rounds went, it does not say."""
    batch: int = 100
    """Transitions that weights are scored on."""
    LEAST: ClassVar[int] = 1
    """Smallest batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "iterations")
        check(self, "batch", least=self.LEAST)


@dataclass(frozen=True, kw_only=True)
class Snip(Scoring):
    """Keep the weights with the largest |w dL/dw| on one batch (Lee et al. 2019; equation 1)."""


@dataclass(frozen=True, kw_only=True)
class Grasp(Scoring):
    """Remove the weights with the largest -w (H g) on one batch of two halves (Wang et al. 2020; equation 4)."""

    batch: int = 200
    LEAST: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class Random(Pruning):
    """Keep weights chosen uniformly over the whole network: a control the paper lacks."""


@dataclass(frozen=True, kw_only=True)
class Magnitude(Pruning):
    """Keep the weights with the largest |w| at initialisation: a control."""


@dataclass(frozen=True, kw_only=True)
class Erk(Pruning):
    """Keep random weights, each layer's density by the Erdos-Renyi rule (Mocanu et al. 2018; Evci et al. 2020)."""


@dataclass(frozen=True, kw_only=True)
class SmallDense:
    """A dense network with narrower layers and as many weights as pruning at `sparsity` would leave: a control."""

    sparsity: float = 0.95

    def __post_init__(self) -> None:
        check_sparsity(self.sparsity)


@dataclass(frozen=True, kw_only=True)
class Bcq:
    """Batch-constrained Q-learning (Fujimoto et al. 2019): the VAE proposes, the actor perturbs, the critic chooses."""

    discount: float = 0.99
    target_rate: float = 0.005
    """Share of the online weights that enters the target networks at each update (tau)."""
    minimum_weight: float = 0.75
    """Weight of the smaller of the two Q values in the target (lambda); the larger one has the rest."""
    perturbation: float = 0.05
    """How far the actor may move an action, as a share of the action range (phi)."""
    target_samples: int = 10
    """Actions sampled for each next state in the target."""
    target_precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the target pass, which takes no gradients and two thirds of the time."""

    def __post_init__(self) -> None:
        for name in ("discount", "target_rate", "minimum_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is outside [0, 1]")
        check(self, "perturbation", least=0)
        check(self, "target_samples")


@dataclass(frozen=True, kw_only=True)
class Bc:
    """Behaviour cloning as in BEAR: the VAE alone. Its policy is the view `policy=bc` of a BCQ run with that seed."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run of offline RL on one data set."""

    environment: str = "HalfCheetah"
    """A Gymnasium environment with continuous actions, without its version."""
    data: str = "d4rl-expert-v2"
    """The data set: a folder below `data/rl/<environment>/`. `recorded` is what `retable data make rl` writes, `mixed`
    what it writes with `--mix`."""
    states: Literal["standardized", "raw"] = "standardized"
    """States that all networks see: less their mean, divided by their standard deviation + 1e-3, both of the training
    data; or states as they are. The paper does not say; `play/states.py` says why it matters."""
    algorithm: Bcq | Bc = field(default_factory=Bcq)
    prune: Dense | Snip | Grasp | Random | Magnitude | Erk | SmallDense = field(default_factory=Dense)
    actor: tuple[int, int] = (400, 300)
    """Hidden units of the perturbation network."""
    critic: tuple[int, int] = (400, 300)
    """Hidden units of each head of the twin critic."""
    vae: tuple[int, int] = (750, 750)
    """Hidden units of the VAE's encoder and decoder."""
    initialisation: Literal["pytorch", "xavier"] = added("pytorch")
    """`pytorch`: as `torch.nn.Linear` starts; `xavier`: weights by Glorot and Bengio 2010 (uniform), biases 0."""
    learning_rate: float = 1e-3
    batch: int = 100
    """Transitions an update sees, over all workers together."""
    epochs: int = 200
    """The paper trains for 1,000,000 updates; the reference evaluates every 5,000."""
    steps: int = 5000
    """Updates in an epoch."""
    precision: Literal["float32", "tf32"] = "float32"
    """Arithmetic of a GPU's matrix products: `tf32` rounds their factors to 10 bits. On a CPU it is always float32."""
    seed: int = 0

    def __post_init__(self) -> None:
        check(self, "batch", "epochs", "steps")
        check(self, "actor", "critic", "vae")
        check(self, "seed", least=0)
        only = getattr(self.prune, "networks", "all")
        if isinstance(self.algorithm, Bc) and only in ("actor", "critic"):
            raise ValueError(f"prune.networks={only} prunes nothing, as algorithm=bc trains the VAE alone")
        check(self, "learning_rate", least=0, above=True)


@dataclass(frozen=True, kw_only=True)
class View:
    """View of a trained run: which policy of the same networks, at which epoch, over how many episodes."""

    policy: Literal["bcq", "bc"] = "bcq"
    epoch: int = 0
    """The epoch whose weights act, counted from 1; 0 is the last."""
    episodes: int = 10
    samples: int = 100
    """Candidate actions BCQ draws at each step (the current reference 100, its first release and BEAR 10)."""
    seed: int = 100
    """Seed of the first episode; the others follow by ones. The reference evaluates at seed + 100."""
    precision: Literal["float32", "float16", "int8"] = "float32"
    """The weights act as they come out of a compact file of this precision (`retable rl export`); float32 is exact."""

    def __post_init__(self) -> None:
        check(self, "epoch", "seed", least=0)
        check(self, "episodes", "samples")
