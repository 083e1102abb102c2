"""Local correlation on a CPU, compiled by numba: running sums along every axis, energy and gradient in four passes.

A window's sums of a, a^2 and a b give its energy and its derivatives by these sums; the gradient at a voxel is made of the
window sums of those derivatives, since windows are symmetric. Images are (B, n0, n1, n2); in 2-D n0 = 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.kernels.cpu.compile import compiled
from metreg.kernels.cpu.parallel import parallel_for, with_slabs

if TYPE_CHECKING:
    from metreg.core.grid import Array

TOGETHER = 1024
"""Windows, side by side in a slab, with which a thread walks through all slabs."""
LOG_2 = math.log(2)
EXPONENT = -(1 << 52)
HALF_ROOT = int(np.float64(math.sqrt(0.5)).view(np.int64))
"""Of double precision: the bits above those of the fraction, and the root of one half."""


class LnccOnCpu(torch.autograd.Function):
    """Sum over windows of weight * worth(cov(a, b)^2 / (var(a) var(b))).  a, b and the facts of b (B, 1, *S) -> (B,).

    `facts` (4, B, 1, *S): of every window of b its mean, its variance and its weight, and one over the voxels in it.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        a: Tensor,
        b: Tensor,
        mask: Tensor | None,
        facts: Tensor,
        window: int,
        tiny: float,
        noise: float,
        span: float,
    ) -> Tensor:
        f, g = with_slabs(a)[:, 0], with_slabs(b)[:, 0]
        known = with_slabs(torch.ones((1,) * a.dim(), dtype=a.dtype) if mask is None else mask)[:, 0]
        told = facts.view(4, *f.shape)
        sums, slopes = f.new_empty(3, *f.shape), f.new_empty(3, *f.shape)
        parts = math.ceil(f[0, 0].numel() / TOGETHER)
        energy = torch.zeros(len(f), parts, dtype=torch.float64)
        half = min(window // 2, max(f.shape[1:]))
        slabs, pillars, numbers = len(f) * f.shape[1], len(f) * parts, f.numel()
        parallel_for(_sums_in_slabs, slabs, numbers, f.numpy(), g.numpy(), known.numpy(), sums.numpy(), half)
        arrays = (*map(_planes, (sums, told, slopes)), energy.numpy())
        parallel_for(_compare, pillars, numbers, *arrays, half, tiny, noise, span)
        if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            gradient = torch.empty_like(f)
            parallel_for(_box_in_slabs, slabs, numbers, slopes.numpy(), sums.numpy(), half)
            parallel_for(_gradient, pillars, numbers, *map(_planes, (sums, f, g, known, gradient)), half, parts)
            ctx.save_for_backward(gradient.view(a.shape))
        return energy.sum(1).to(a.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return p.view(-1, *[1] * (gradient.dim() - 1)) * gradient, *[None] * 7


def _planes(f: Tensor) -> Array:
    """(..., n0, n1, n2) as (..., n0, n1 n2)."""
    planes: Array = f.flatten(-2).numpy()
    return planes


@compiled()
def _sums_in_slabs(a: Array, b: Array, mask: Array, out: Array, half: int, first: int, last: int) -> None:
    """Window sums of m a, m a^2 and m a b along the two last axes."""
    n0, n1, n2 = a.shape[1:]
    masked = mask.shape[3] > 1
    rows, padded = np.empty((3, n1, n2), a.dtype), np.zeros((3, n2 + 2 * half + 1), a.dtype)
    line0, line1, line2 = padded[0, half : half + n2], padded[1, half : half + n2], padded[2, half : half + n2]
    for r in range(first, last):
        p, i = r // n0, r % n0
        for j in range(n1):
            _copy(a[p, i, j], line0)
            if masked:
                _times(line0, mask[p, i, j])
            _product(line0, a[p, i, j], line1)
            _product(line0, b[p, i, j], line2)
            _box_lines(padded, rows[0, j], rows[1, j], rows[2, j], half)
        for c in range(3):
            _box_rows(rows[c], out[c, p, i], half)


@compiled()
def _box_in_slabs(f: Array, out: Array, half: int, first: int, last: int) -> None:
    """Window sums along the two last axes."""
    n0, n1, n2 = f.shape[2:]
    rows, padded = np.empty((3, n1, n2), f.dtype), np.zeros((3, n2 + 2 * half + 1), f.dtype)
    for r in range(first, last):
        p, i = r // n0, r % n0
        for j in range(n1):
            for c in range(3):
                _copy(f[c, p, i, j], padded[c, half : half + n2])
            _box_lines(padded, rows[0, j], rows[1, j], rows[2, j], half)
        for c in range(3):
            _box_rows(rows[c], out[c, p, i], half)


@compiled()
def _copy(f: Array, out: Array) -> None:
    for k in range(len(f)):
        out[k] = f[k]


@compiled()
def _product(f: Array, g: Array, out: Array) -> None:
    for k in range(len(f)):
        out[k] = f[k] * g[k]


@compiled()
def _times(f: Array, g: Array) -> None:
    for k in range(len(f)):
        f[k] *= g[k]


@compiled()
def _box_lines(padded: Array, first: Array, second: Array, third: Array, half: int) -> None:
    """Running sums along three lines at once, which do not wait for each other. Lines begin and end with zeros."""
    wide = 2 * half + 1
    x, y, z = 0.0, 0.0, 0.0
    for k in range(wide):
        x += padded[0, k]
        y += padded[1, k]
        z += padded[2, k]
    for k in range(len(first)):
        first[k], second[k], third[k] = x, y, z
        x += np.float64(padded[0, k + wide]) - padded[0, k]
        y += np.float64(padded[1, k + wide]) - padded[1, k]
        z += np.float64(padded[2, k + wide]) - padded[2, k]


@compiled()
def _box_rows(f: Array, out: Array, half: int) -> None:
    """The same along the rows of (n1, n2)."""
    n1, n2 = f.shape
    total = np.zeros(n2)
    for j in range(min(half, n1)):
        for k in range(n2):
            total[k] += f[j, k]
    for j in range(n1):
        if j + half < n1:
            for k in range(n2):
                total[k] += f[j + half, k]
        for k in range(n2):
            out[j, k] = total[k]
        if j >= half:
            for k in range(n2):
                total[k] -= f[j - half, k]


@compiled()
def _roll(sums: Array, p: int, i: int, a: int, b: int, half: int, total: Array) -> None:
    """Let the running sums (3, b - a) over slabs, zero at first, take in the last slab of the window around slab i."""
    n0 = sums.shape[2]
    for c in range(3):
        if i == 0:
            for near in range(min(half, n0)):
                _plus(total[c], sums[c, p, near, a:b])
        if i + half < n0:
            _plus(total[c], sums[c, p, i + half, a:b])


@compiled()
def _unroll(sums: Array, p: int, i: int, a: int, b: int, half: int, total: Array) -> None:
    """Let them give up the first slab of that window."""
    if i >= half:
        for c in range(3):
            _minus(total[c], sums[c, p, i - half, a:b])


@compiled()
def _plus(f: Array, g: Array) -> None:
    for k in range(len(f)):
        f[k] += g[k]


@compiled()
def _minus(f: Array, g: Array) -> None:
    for k in range(len(f)):
        f[k] -= g[k]


@compiled()
def _compare(
    sums: Array,
    facts: Array,
    slopes: Array,
    energy: Array,
    half: int,
    tiny: float,
    noise: float,
    span: float,
    first: int,
    last: int,
) -> None:
    """The energy of all windows, and what the gradient is made of. A pillar of windows goes through all slabs."""
    n0, size = sums.shape[2:]
    parts = energy.shape[1]
    for r in range(first, last):
        p, part = r // parts, r % parts
        a, b = part * size // parts, (part + 1) * size // parts
        total, rows = np.zeros((3, b - a)), np.empty((4, b - a), sums.dtype)
        left, found = np.empty(b - a), np.zeros(b - a)
        for i in range(n0):
            _roll(sums, p, i, a, b, half, total)
            told = facts[0, p, i, a:b], facts[1, p, i, a:b], facts[2, p, i, a:b], facts[3, p, i, a:b]
            into = slopes[0, p, i, a:b], slopes[1, p, i, a:b], slopes[2, p, i, a:b]
            _compare_row(total, told, into, rows, left, found, tiny, noise, span)
            _unroll(sums, p, i, a, b, half, total)
        energy[p, part] = found.sum()


@compiled()
def _compare_row(
    total: Array,
    facts: tuple[Array, ...],
    slopes: tuple[Array, ...],
    rows: Array,
    left: Array,
    found: Array,
    tiny: float,
    noise: float,
    span: float,
) -> None:
    """A row of windows. One simple loop after the other, each of which becomes vector instructions."""
    mean_b, var_b, weight, per_voxel = facts
    by_covariance, by_variance, by_means = slopes
    mean_a, covariance, correlation, steep = rows[0], rows[1], rows[2], rows[3]
    n, kind = len(left), mean_a.dtype.type
    none, one, two, tiny, noise, span = kind(0), kind(1), kind(2), kind(tiny), kind(noise), kind(span)
    for k in range(n):
        mean_a[k] = total[0, k] * per_voxel[k]
    for k in range(n):
        covariance[k] = total[2, k] * per_voxel[k] - total[0, k] * per_voxel[k] * mean_b[k]
    for k in range(n):  # for now the variance of a
        by_variance[k] = total[1, k] * per_voxel[k] - (total[0, k] * per_voxel[k]) ** 2
    for k in range(n):
        by_covariance[k] = covariance[k] / (max(by_variance[k], tiny) * var_b[k])
    for k in range(n):
        correlation[k] = covariance[k] * by_covariance[k]
    if noise > 0:
        for k in range(n):
            left[k] = max(one + noise - correlation[k], noise)
        for k in range(n):
            steep[k] = weight[k] * per_voxel[k] / (kind(left[k]) * span)
        for k in range(n):
            left[k] /= noise
        _logarithm(left)
        for k in range(n):
            found[k] += weight[k] * (1 - left[k] / span)
    else:
        for k in range(n):
            steep[k] = weight[k] * per_voxel[k]
        for k in range(n):
            found[k] += weight[k] * correlation[k]
    for k in range(n):
        by_variance[k] = -correlation[k] / by_variance[k] * steep[k] if by_variance[k] >= tiny else none
    for k in range(n):
        by_covariance[k] *= two * steep[k]
    for k in range(n):
        by_means[k] = by_covariance[k] * mean_b[k] + two * by_variance[k] * mean_a[k]


@compiled()
def _logarithm(x: Array) -> None:
    """log(x) in place, x > 0: that of the C library takes one number at a time."""
    bits, exponent = x.view(np.int64), np.empty(len(x))
    for k in range(len(x)):
        exponent[k] = ((bits[k] - HALF_ROOT) >> 52) * LOG_2 + 0 * x[k]  # no number stays no number
    for k in range(len(x)):
        bits[k] -= (bits[k] - HALF_ROOT) & EXPONENT
    for k in range(len(x)):  # now between the roots of 1/2 and 2: twice the area tangent of (x - 1) / (x + 1)
        s = (x[k] - 1) / (x[k] + 1)
        t = s * s
        series = ((((t / 21 + 1 / 19) * t + 1 / 17) * t + 1 / 15) * t + 1 / 13) * t + 1 / 11
        series = (((((series * t + 1 / 9) * t + 1 / 7) * t + 1 / 5) * t + 1 / 3) * t) + 1
        x[k] = 2 * s * series + exponent[k]


@compiled()
def _gradient(
    sums: Array, a: Array, b: Array, mask: Array, out: Array, half: int, parts: int, first: int, last: int
) -> None:
    """m (b [by covariance] + 2 a [by variance] - [by both, times means]), brackets for window sums."""
    n0, size = sums.shape[2:]
    for r in range(first, last):
        p, part = r // parts, r % parts
        low, high = part * size // parts, (part + 1) * size // parts
        total = np.zeros((3, high - low))
        for i in range(n0):
            _roll(sums, p, i, low, high, half, total)
            _gradient_row(total, a[p, i, low:high], b[p, i, low:high], out[p, i, low:high])
            if mask.shape[2] > 1:
                _times(out[p, i, low:high], mask[p, i, low:high])
            _unroll(sums, p, i, low, high, half, total)


@compiled()
def _gradient_row(total: Array, a: Array, b: Array, out: Array) -> None:
    for k in range(len(out)):
        out[k] = b[k] * total[0, k] + 2 * a[k] * total[1, k] - total[2, k]
