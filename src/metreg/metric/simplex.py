"""From the network's output to weights: numbers of 0 or more whose sum is one at every point."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

LEAST = 1e-4
"""No weight is smaller, before the sum is made one: their square roots stay differentiable."""


class PreWeights(NamedTuple):
    """Pre-weights omega (B, N, *S), and by how much the numbers they come from lay outside [LEAST, 1]."""

    omega: Tensor
    excess: Tensor


def weighted_linear_softmax(z: Tensor, w: Tensor) -> PreWeights:
    """Move from the set point w (N,) along the simplex by z (B, N, *S), straight, as far as the clamps allow.

    a_i = w_i + z_i - mean(z);  omega_i = clamp(a_i) / sum_j clamp(a_j).  z = 0 gives w back.
    """
    a = w.view(1, -1, *[1] * (z.dim() - 2)) + z - z.mean(1, keepdim=True)
    clamped = a.clamp(LEAST, 1)
    return PreWeights(clamped / clamped.sum(1, keepdim=True), a - clamped)


def plain_softmax(z: Tensor, w: Tensor) -> PreWeights:
    """The usual softmax, which knows no set point: z = 0 gives equal weights. For the ablation."""
    omega = z.softmax(1).clamp(min=LEAST)
    return PreWeights(omega / omega.sum(1, keepdim=True), z.new_zeros(z.shape))


def to_simplex(w: Tensor) -> Tensor:
    """Smoothed weights (B, N, *S) back onto the simplex: clamped from below, sum one."""
    w = w.clamp(min=LEAST)
    return w / w.sum(1, keepdim=True)
