"""What a metric is to the rest of metreg."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Metric(Protocol):
    """A symmetric positive kernel K on vector fields."""

    def sharp(self, m: Tensor) -> Tensor:
        """v = K m: momentum to velocity, both (B, D, *S)."""

    def sharp_and_norm(self, m: Tensor) -> tuple[Tensor, Tensor]:
        """v = K m, and the squared length <m, K m> of each pair's momentum (B,)."""

    def local_sigma(self) -> Tensor:
        """The local standard deviation sigma(x) in reference lengths, (B, *S)."""
