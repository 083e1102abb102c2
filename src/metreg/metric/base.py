"""What a metric is to the rest of metreg."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class Motion(NamedTuple):
    """What momenta set in motion."""

    v: Tensor
    """The velocity K m (B, D, *S)."""
    norm: Tensor
    """The squared length <m, K m> of each pair's momentum (B,)."""
    speed: Tensor
    """Grid cells that a pair's velocity crosses in unit time, at most, (B,). It has no gradient."""


class Penalties(NamedTuple):
    """What weights cost, every term already weighted, (B,)."""

    transport: Tensor
    variation: Tensor
    range: Tensor


class Weighting(NamedTuple):
    """Weights of a mixture (B, N, *S) at a momentum, and what they cost there."""

    w: Tensor
    penalties: Penalties


class Metric(Protocol):
    """A symmetric positive kernel K on vector fields."""

    def sharp(self, m: Tensor) -> Tensor:
        """v = K m: momentum to velocity, both (B, D, *S)."""

    def motion(self, m: Tensor) -> Motion:
        """The same, and how much of it there is."""

    def local_sigma(self) -> Tensor:
        """The local standard deviation sigma(x) in reference lengths, (B, *S)."""
