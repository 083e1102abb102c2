"""Local normalised cross-correlation: ncc^2 in a window around every voxel, whose width costs nothing on a CPU.

What a window is worth is ncc^2 itself, or, with some `noise`, goes by the logarithm of what ncc^2 leaves unexplained: the
mutual information of two Gaussian variables, which windows that fit well already can still raise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.kernels import is_compiled, is_fast

TINY = 1e-6
"""Smallest variance that single precision tells from rounding; intensities are in [0, 1]."""
FLAT = 1e-4
"""Variance of noise: windows of the target that vary less count for little, so that background has no say."""


def lncc(
    warped: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    window: int = 9,
    noise: float = 0.0,
) -> Tensor:
    """Mean of 1 - `worth(lncc^2, noise)` over the windows in which the target varies, in [0, 1].  (B, C, *S) -> (B,).

    `window` is the width of a box in voxels. Windows are cut off at the border and at the mask. The weight of a
    window depends on the target alone: equal images are a minimum.
    """

    windows = windows_of(target, mask, window)

    def mean(f: Tensor) -> Tensor:
        return window_sum(f if mask is None else mask * f, window) / windows.size

    a = centred(warped)
    mean_a = mean(a)
    covariance = mean(a * windows.b) - mean_a * windows.mean
    variance_a = (mean(a * a) - mean_a**2).clamp(min=TINY)
    correlation = covariance**2 / (variance_a * windows.variance)
    return 1 - (windows.weight * worth(correlation, noise)).flatten(1).sum(1) / windows.total


def worth(correlation: Tensor, noise: float) -> Tensor:
    """From 0 to 1, as ncc^2 is: that itself, or 1 - log((1 + noise - ncc^2) / noise) / log((1 + noise) / noise)."""
    if noise == 0:
        return correlation
    return 1 - ((1 + noise - correlation).clamp(min=noise) / noise).log() / span(noise)


def span(noise: float) -> float:
    """What the logarithm goes through from no correlation to full correlation."""
    return math.log((1 + noise) / noise) if noise > 0 else 1.0


class Windows(NamedTuple):
    """What the target, centred, is in every window, (B, C, *S), and the sum of all weights (B,)."""

    b: Tensor
    mean: Tensor
    variance: Tensor
    weight: Tensor
    size: Tensor
    total: Tensor


def windows_of(target: Tensor, mask: Tensor | None, window: int) -> Windows:
    one = torch.ones_like(target[:, :1]) if mask is None else mask
    count = window_sum(one, window).clamp(min=1e-3)
    b = centred(target)
    known = b if mask is None else mask * b
    mean = window_sum(known, window) / count
    variance = (window_sum(known * b, window) / count - mean**2).clamp(min=TINY)
    weight = one * variance / (variance + FLAT)
    return Windows(b, mean, variance, weight, count, weight.flatten(1).sum(1).clamp(min=TINY))


def centred(f: Tensor) -> Tensor:
    """Less its mean, so that E[f^2] - E[f]^2 does not cancel."""
    return f - f.detach().mean()


class Lncc:
    """`lncc` with the compiled kernel where there is one. It remembers its target, which a registration keeps."""

    def __init__(self, window: int, noise: float = 0.0) -> None:
        self.window = window
        self.noise = noise
        self.seen: tuple[Tensor, Tensor | None, tuple[int, int | None]] | None = None
        self.facts = self.b = self.total = torch.empty(0)

    def __call__(self, warped: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        simple = warped.shape[1] == 1 and target.dtype == warped.dtype
        by_log = (self.noise, span(self.noise))
        if simple and is_fast(warped):
            from metreg.kernels.triton.lncc import LnccOnGpu

            found: Tensor = LnccOnGpu.apply(warped, target, mask, self.window, TINY, FLAT, *by_log)  # type: ignore[no-untyped-call]
            return found
        if not simple or not is_compiled(warped):
            return lncc(warped, target, mask, window=self.window, noise=self.noise)
        from metreg.kernels.cpu.lncc import LnccOnCpu

        self._look_at(target, mask)
        value: Tensor = LnccOnCpu.apply(centred(warped), self.b, mask, self.facts, self.window, TINY, *by_log)  # type: ignore[no-untyped-call]
        return 1 - value / self.total

    def _look_at(self, target: Tensor, mask: Tensor | None) -> None:
        versions = (target._version, None if mask is None else mask._version)
        if self.seen is not None and self.seen[0] is target and self.seen[1] is mask and self.seen[2] == versions:
            return
        with torch.no_grad():
            windows = windows_of(target, mask, self.window)
            self.facts = torch.stack([windows.mean, windows.variance, windows.weight, 1 / windows.size])
        self.b, self.total, self.seen = windows.b, windows.total, (target, mask, versions)


def window_sum(f: Tensor, window: int) -> Tensor:
    """Sum over a window around every voxel, zero outside the image.  (B, C, *S) -> the same. Symmetric."""
    summed: Tensor = BoxSum.apply(f, window)  # type: ignore[no-untyped-call]
    return summed


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
