"""Mutual information from a joint histogram: cubic B-spline windows for the warped image, plain bins for the target."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

FIXED_POINT = 2.0**36
"""Histograms are summed in integers: the same result in any order, so also on a GPU. Room for 10^8 voxels."""


def mutual_information(warped: Tensor, target: Tensor, mask: Tensor | None = None, *, bins: int = 32) -> Tensor:
    """1 - 2 I(a, b) / (H(a) + H(b)), in [0, 1]: 0 for images that determine each other.  (B, 1, *S) in [0, 1] -> (B,)."""
    weight = torch.ones_like(target) if mask is None else mask.expand_as(target)
    joint = torch.stack([_joint_histogram(*pair, bins) for pair in zip(warped, target, weight, strict=True)])
    joint = joint / joint.sum((1, 2), keepdim=True).clamp(min=1e-12)
    h_ab, h_a, h_b = (_entropy(p) for p in (joint.flatten(1), joint.sum(2), joint.sum(1)))
    return 1 - 2 * (h_a + h_b - h_ab) / (h_a + h_b).clamp(min=1e-6)


def _entropy(p: Tensor) -> Tensor:
    return -torch.special.xlogy(p, p.clamp(min=1e-12)).sum(1)


def _joint_histogram(warped: Tensor, target: Tensor, weight: Tensor, bins: int) -> Tensor:
    """Counts (bins, bins), warped along rows."""
    at = warped.flatten().clamp(0, 1) * (bins - 3) + 1  # the B-spline reaches two bins to either side
    low = at.detach().floor().clamp(max=bins - 3)
    column = (target.flatten().clamp(0, 1) * (bins - 1)).round().long()
    rows = torch.stack([low + k for k in (-1, 0, 1, 2)]).long()
    shares = cubic_b_spline(at - rows.to(at)) * weight.flatten()
    counts: Tensor = Count.apply(shares, rows * bins + column, bins * bins)  # type: ignore[no-untyped-call]
    return counts.view(bins, bins)


def cubic_b_spline(t: Tensor) -> Tensor:
    """The cubic B-spline at distance t; its integer shifts sum to one."""
    t = t.abs()
    return torch.where(t < 1, (4 - 6 * t**2 + 3 * t**3) / 6, (2 - t).clamp(min=0) ** 3 / 6)


class Count(torch.autograd.Function):
    """counts[i] = sum of the shares whose bin is i, in integers, so that the order of summation does not matter."""

    @staticmethod
    def forward(ctx: FunctionCtx, shares: Tensor, bin_of: Tensor, bins: int) -> Tensor:
        ctx.save_for_backward(bin_of)
        counts = torch.zeros(bins, dtype=torch.int64, device=shares.device)
        counts.scatter_add_(0, bin_of.flatten(), (shares.double() * FIXED_POINT).round().long().flatten())
        return (counts.double() / FIXED_POINT).to(shares.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor, None, None]:
        (bin_of,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return p[bin_of], None, None
