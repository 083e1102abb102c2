"""Local correlation on a CPU, compiled by numba: running sums along every axis, energy and gradient in four passes.

A window's sums of a, a^2 and a b give its energy and its derivatives by these sums; the gradient at a voxel is made of the
window sums of those derivatives, since windows are symmetric. Images are (B, n0, n1, n2); in 2-D n0 = 1.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.grid import Array
from metreg.kernels.transport_cpu import OPTIONS, Threads, with_slabs


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
        energy = torch.zeros(f.shape[0], f.shape[2], dtype=torch.float64)
        half = min(window // 2, max(f.shape[1:]))
        with Threads(f):
            _sums_in_slabs(f.numpy(), g.numpy(), known.numpy(), sums.numpy(), half)
            _compare(sums.numpy(), told.numpy(), slopes.numpy(), energy.numpy(), half, tiny, noise, span)
            if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
                _box_in_slabs(slopes.numpy(), sums.numpy(), half)
                gradient = torch.empty_like(f)
                _gradient(sums.numpy(), f.numpy(), g.numpy(), known.numpy(), gradient.numpy(), half)
                ctx.save_for_backward(gradient.view(a.shape))
        return energy.sum(1).to(a.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return p.view(-1, *[1] * (gradient.dim() - 1)) * gradient, *[None] * 7


@njit(parallel=True, **OPTIONS)
def _sums_in_slabs(a: Array, b: Array, mask: Array, out: Array, half: int) -> None:
    """Window sums of m a, m a^2 and m a b along the two last axes."""
    pairs, n0, n1, n2 = a.shape
    masked = mask.shape[3] > 1
    for r in prange(pairs * n0):
        p, i = r // n0, r % n0
        rows = np.empty((3, n1, n2), a.dtype)
        line = np.empty((3, n2), a.dtype)
        for j in range(n1):
            for k in range(n2):
                m = mask[p, i, j, k] if masked else a.dtype.type(1)
                line[0, k] = m * a[p, i, j, k]
                line[1, k] = line[0, k] * a[p, i, j, k]
                line[2, k] = line[0, k] * b[p, i, j, k]
            for c in range(3):
                _box_line(line[c], rows[c, j], half)
        for c in range(3):
            _box_rows(rows[c], out[c, p, i], half)


@njit(parallel=True, **OPTIONS)
def _box_in_slabs(f: Array, out: Array, half: int) -> None:
    """Window sums along the two last axes."""
    _, pairs, n0, n1, n2 = f.shape
    for r in prange(pairs * n0):
        p, i = r // n0, r % n0
        rows = np.empty((n1, n2), f.dtype)
        for c in range(3):
            for j in range(n1):
                _box_line(f[c, p, i, j], rows[j], half)
            _box_rows(rows, out[c, p, i], half)


@njit(**OPTIONS)
def _box_line(f: Array, out: Array, half: int) -> None:
    n = len(f)
    total = 0.0
    for k in range(min(half, n)):
        total += f[k]
    for k in range(n):
        if k + half < n:
            total += f[k + half]
        out[k] = total
        if k >= half:
            total -= f[k - half]


@njit(**OPTIONS)
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


@njit(**OPTIONS)
def _roll(sums: Array, p: int, i: int, j: int, half: int, total: Array) -> None:
    """Let the running sums (3, n2) over slabs take in the last slab of the window around slab i."""
    n0, n2 = sums.shape[2], sums.shape[4]
    for c in range(3):
        if i == 0:
            for k in range(n2):
                total[c, k] = 0
            for near in range(min(half, n0)):
                for k in range(n2):
                    total[c, k] += sums[c, p, near, j, k]
        if i + half < n0:
            for k in range(n2):
                total[c, k] += sums[c, p, i + half, j, k]


@njit(**OPTIONS)
def _unroll(sums: Array, p: int, i: int, j: int, half: int, total: Array) -> None:
    """Let them give up the first slab of that window."""
    if i >= half:
        for c in range(3):
            for k in range(sums.shape[4]):
                total[c, k] -= sums[c, p, i - half, j, k]


@njit(parallel=True, **OPTIONS)
def _compare(
    sums: Array, facts: Array, slopes: Array, energy: Array, half: int, tiny: float, noise: float, span: float
) -> None:
    """The energy of all windows, line by line, and what the gradient is made of."""
    _, pairs, n0, n1, n2 = sums.shape
    for r in prange(pairs * n1):
        p, j = r // n1, r % n1
        total = np.zeros((3, n2))
        found = 0.0
        for i in range(n0):
            _roll(sums, p, i, j, half, total)
            for k in range(n2):
                mean_b, var_b = facts[0, p, i, j, k], facts[1, p, i, j, k]
                weight, share = facts[2, p, i, j, k], facts[3, p, i, j, k]
                mean_a = total[0, k] * share
                var_a = total[1, k] * share - mean_a * mean_a
                covariance = total[2, k] * share - mean_a * mean_b
                free = 1.0
                if var_a < tiny:
                    var_a, free = tiny, 0.0
                correlation = covariance * covariance / (var_a * var_b)
                steep = weight
                if noise > 0:
                    left = max(1 + noise - correlation, noise)
                    found += weight * (1 - np.log(left / noise) / span)
                    steep = weight / (left * span)
                else:
                    found += weight * correlation
                by_covariance = 2 * covariance / (var_a * var_b) * steep
                by_variance = -free * correlation / var_a * steep
                slopes[0, p, i, j, k] = by_covariance * share
                slopes[1, p, i, j, k] = by_variance * share
                slopes[2, p, i, j, k] = (by_covariance * mean_b + 2 * by_variance * mean_a) * share
            _unroll(sums, p, i, j, half, total)
        energy[p, j] = found


@njit(parallel=True, **OPTIONS)
def _gradient(sums: Array, a: Array, b: Array, mask: Array, out: Array, half: int) -> None:
    """m (b [by covariance] + 2 a [by variance] - [by both, times means]), brackets for window sums."""
    _, pairs, n0, n1, n2 = sums.shape
    masked = mask.shape[3] > 1
    for r in prange(pairs * n1):
        p, j = r // n1, r % n1
        total = np.zeros((3, n2))
        for i in range(n0):
            _roll(sums, p, i, j, half, total)
            for k in range(n2):
                m = mask[p, i, j, k] if masked else a.dtype.type(1)
                out[p, i, j, k] = m * (b[p, i, j, k] * total[0, k] + 2 * a[p, i, j, k] * total[1, k] - total[2, k])
            _unroll(sums, p, i, j, half, total)
