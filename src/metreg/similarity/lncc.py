"""Local normalised cross-correlation: ncc^2 in a window around every voxel. The cost does not depend on the window."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.interpolate import along_axis
from metreg.metric.gaussian import gaussian_matrix

Kernel = Literal["box", "gaussian"]
TINY = 1e-6
"""Smallest variance that single precision tells from rounding; intensities are in [0, 1]."""
FLAT = 1e-4
"""Variance of noise: windows of the target that vary less count for little, so that background has no say."""


def lncc(warped: Tensor, target: Tensor, mask: Tensor | None = None, *, window: int = 9, kernel: Kernel = "box") -> Tensor:
    """Mean of 1 - lncc^2 over the windows in which the target varies, in [0, 1].  (B, C, *S) -> (B,).

    `window` is the width of a box in voxels; the Gaussian has the same standard deviation as that box. Windows are cut
    off at the border and at the mask. The weight of a window depends on the target alone: equal images are a minimum.
    """

    def mean(f: Tensor) -> Tensor:
        return window_sum(f if mask is None else mask * f, window, kernel) / count

    one = torch.ones_like(target[:, :1]) if mask is None else mask
    count = window_sum(one, window, kernel).clamp(min=1e-3)
    # centred once, so that E[a^2] - E[a]^2 does not cancel
    a, b = warped - warped.detach().mean(), target - target.mean()
    mean_a, mean_b = mean(a), mean(b)
    covariance = mean(a * b) - mean_a * mean_b
    variance_a = (mean(a * a) - mean_a**2).clamp(min=TINY)
    variance_b = (mean(b * b) - mean_b**2).clamp(min=TINY)
    correlation = covariance**2 / (variance_a * variance_b)
    weight = one * variance_b / (variance_b + FLAT)
    total = weight.flatten(1).sum(1).clamp(min=TINY)
    return 1 - (weight * correlation).flatten(1).sum(1) / total


def window_sum(f: Tensor, window: int, kernel: Kernel) -> Tensor:
    """Sum over a window around every voxel, zero outside the image.  (B, C, *S) -> the same. Symmetric."""
    if kernel == "box":
        summed: Tensor = BoxSum.apply(f, window)  # type: ignore[no-untyped-call]
        return summed
    std = ((window**2 - 1) / 12) ** 0.5
    for d, n in enumerate(f.shape[2:]):
        f = along_axis(gaussian_matrix(n, 1.0, std).to(f), f, d + 2)
    return f


class BoxSum(torch.autograd.Function):
    """Running sums along every axis; the operator is its own adjoint."""

    @staticmethod
    def forward(ctx: FunctionCtx, f: Tensor, window: int) -> Tensor:
        ctx.window = window  # type: ignore[attr-defined]
        return _box_sum(f, window)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor, None]:
        return _box_sum(p, ctx.window), None  # type: ignore[attr-defined]


def _box_sum(f: Tensor, window: int) -> Tensor:
    half = window // 2
    for axis in range(2, f.dim()):
        n = f.shape[axis]
        running = f.cumsum(axis)
        upper = torch.arange(n, device=f.device).add_(half).clamp_(max=n - 1)
        f = running.index_select(axis, upper)
        if half + 1 < n:
            f.narrow(axis, half + 1, n - half - 1).sub_(running.narrow(axis, 0, n - half - 1))
    return f
