"""What a line's run is."""

from dataclasses import dataclass, field

from retable.platform.config import Parent, Scratch, Weights


@dataclass(frozen=True, kw_only=True)
class Config:
    """A fit of y = slope x + offset by stochastic gradient descent."""

    rate: float = 0.1
    batch: int = 8
    epochs: int = 3
    pause: float = 0.0
    """Seconds a step sleeps: time to be interrupted in."""
    init: Scratch | Parent | Weights = field(default_factory=Scratch)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class View:
    """A fit at one epoch."""

    epoch: int = 0
