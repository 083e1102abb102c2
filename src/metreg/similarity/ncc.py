"""Global normalised cross-correlation."""

from __future__ import annotations

from torch import Tensor

TINY = 1e-10
"""Variances below this (intensities are in [0, 1]) count as a constant image."""


def ncc(warped: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """1 - ncc^2 over the mask, in [0, 1]; 1 where an image is constant.  (B, C, *S) -> (B,)."""
    a, b = warped.flatten(1), target.flatten(1)
    k = None if mask is None else mask.expand_as(warped).flatten(1)

    def mean(f: Tensor) -> Tensor:
        if k is None:
            return f.mean(1, keepdim=True)
        return (k * f).sum(1, keepdim=True) / k.sum(1, keepdim=True).clamp(min=1)

    a, b = a - mean(a), b - mean(b)
    correlation = mean(a * b) ** 2 / (mean(a * a).clamp(min=TINY) * mean(b * b).clamp(min=TINY))
    return 1 - correlation.squeeze(1)
