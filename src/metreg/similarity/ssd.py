"""Mean squared difference."""

from __future__ import annotations

from torch import Tensor


def ssd(warped: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean of (warped - target)^2 over the mask.  (B, C, *S) -> (B,)."""
    square = (warped - target) ** 2
    if mask is None:
        return square.flatten(1).mean(1)
    count = (mask.expand_as(square)).flatten(1).sum(1)
    return (mask * square).flatten(1).sum(1) / count.clamp(min=1)
