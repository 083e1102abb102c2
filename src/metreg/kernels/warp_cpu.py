"""I0 o phi_inv on a CPU, compiled by numba: the map is up-sampled row by row and never stored at the image's resolution.

The way back sums p grad I0 onto the map's points along the last axis; the other axes are small matrix products. In 2-D
there is one slab, n0 = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.grid import Array, Grid
from metreg.kernels.transport_cpu import OPTIONS, Threads, with_slabs


class WarpOnCpu(torch.autograd.Function):
    """`sample(source, upsample(phi_inv, grid), grid)`.  source (B, 1, *S) on `grid`, phi_inv (B, D, *C) -> (B, 1, *S).

    `up` holds the matrices of up-sampling along all axes but the last, None where nothing is to be done.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, source: Tensor, phi_inv: Tensor, grid: Grid, up: Sequence[Tensor | None]) -> Tensor:
        ctx.save_for_backward(source, phi_inv)
        ctx.grid, ctx.up = grid, up  # type: ignore[attr-defined]
        f, x = with_slabs(source)[:, 0], with_slabs(phi_inv)
        out = torch.empty_like(f)
        with Threads(out):
            _warp(f.numpy(), x.numpy(), out.numpy(), _scales(grid, source))
        return out.view(source.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[None, Tensor, None, None]:
        source, phi_inv = ctx.saved_tensors  # type: ignore[attr-defined]
        grid: Grid = ctx.grid  # type: ignore[attr-defined]
        f, x, q = with_slabs(source)[:, 0], with_slabs(phi_inv), with_slabs(p)[:, 0]
        part = f.new_empty(len(f), grid.dim, *f.shape[1:-1], x.shape[-1])
        with Threads(f):
            _adjoint(f.numpy(), x.numpy(), q.numpy(), part.numpy(), _scales(grid, source))
        part = part.view(len(f), grid.dim, *grid.shape[:-1], x.shape[-1])
        for axis, matrix in enumerate(ctx.up, start=2):  # type: ignore[attr-defined]
            if matrix is not None:
                head, n, tail = part.shape[:axis], part.shape[axis], part.shape[axis + 1 :]
                part = (matrix.T @ part.reshape(-1, n, math.prod(tail))).view(*head, matrix.shape[1], *tail)
        return None, part, None, None


def _scales(grid: Grid, like: Tensor) -> Array:
    """Voxels per unit length along every axis, as the tensor's numbers are."""
    return (1 / np.array(grid.spacing)).astype(like.numpy().dtype)


@njit(parallel=True, **OPTIONS)
def _warp(f: Array, x: Array, out: Array, scales: Array) -> None:
    pairs, n0, n1, n2 = f.shape
    axes, c2 = x.shape[1], x.shape[4]
    for r in prange(pairs * n0):
        b, i = r // n0, r % n0
        at = np.empty((axes, n2), f.dtype)
        row = np.empty(c2, f.dtype)
        for j in range(n1):
            _positions(x[b], i, j, n0, n1, scales, row, at)
            for k in range(n2):
                out[b, i, j, k] = _value(f[b], at, k)


@njit(parallel=True, **OPTIONS)
def _adjoint(f: Array, x: Array, p: Array, part: Array, scales: Array) -> None:
    pairs, n0, n1, n2 = f.shape
    axes, c2 = x.shape[1], x.shape[4]
    ratio = (c2 - 1) / (n2 - 1)
    for r in prange(pairs * n0):
        b, i = r // n0, r % n0
        at = np.empty((axes, n2), f.dtype)
        slope = np.empty(3, f.dtype)
        row = np.empty(c2, f.dtype)
        for j in range(n1):
            _positions(x[b], i, j, n0, n1, scales, row, at)
            for d in range(axes):
                for c in range(c2):
                    part[b, d, i, j, c] = 0
            for k in range(n2):
                _slopes(f[b], at, k, slope)
                low, t = _between(k, ratio, c2)
                for d in range(axes):
                    g = p[b, i, j, k] * slope[d + 3 - axes] * scales[d]
                    part[b, d, i, j, low] += (1 - t) * g
                    part[b, d, i, j, min(low + 1, c2 - 1)] += t * g


@njit(inline="always", **OPTIONS)
def _between(i: int, ratio: float, count: int) -> tuple[int, float]:
    """The point at or below voxel i of `count` that are `ratio` of it apart, and how far i is beyond it."""
    low = min(int(i * ratio), max(count - 2, 0))
    return low, i * ratio - low


@njit(**OPTIONS)
def _positions(x: Array, i: int, j: int, n0: int, n1: int, scales: Array, row: Array, at: Array) -> None:
    """Where a row of voxels comes from, in voxels of the source, (D, n2): the map interpolated along every axis."""
    axes, c0, c1, c2 = x.shape
    n2 = at.shape[1]
    low0, s = _between(i, (c0 - 1) / (n0 - 1) if n0 > 1 else 0.0, c0)
    low1, t = _between(j, (c1 - 1) / (n1 - 1), c1)
    high0, high1 = min(low0 + 1, c0 - 1), min(low1 + 1, c1 - 1)
    kind = at.dtype.type
    w00, w01, w10, w11 = kind((1 - s) * (1 - t)), kind((1 - s) * t), kind(s * (1 - t)), kind(s * t)
    ratio = (c2 - 1) / (n2 - 1)
    for d in range(axes):
        a, b, c, e = x[d, low0, low1], x[d, low0, high1], x[d, high0, low1], x[d, high0, high1]
        for k in range(c2):
            row[k] = scales[d] * (w00 * a[k] + w01 * b[k] + w10 * c[k] + w11 * e[k])
        for k in range(n2):
            low, u = _between(k, ratio, c2)
            at[d, k] = row[low] + kind(u) * (row[min(low + 1, c2 - 1)] - row[low])


@njit(inline="always", **OPTIONS)
def _cell(x: float, n: int) -> tuple[int, int, float, float]:
    """The two points around a position, clamped to the n there are, how far it is beyond the first, and 0 if clamped."""
    if x <= 0:
        return 0, 0, x * 0, x * 0
    if x >= n - 1:
        return n - 1, n - 1, x * 0, x * 0
    low = int(x)
    return low, low + 1, x - low, x * 0 + 1


@njit(inline="always", **OPTIONS)
def _value(f: Array, at: Array, k: int) -> float:
    n0, n1, n2 = f.shape
    axes = at.shape[0]
    j, jj, t, _ = _cell(at[axes - 2, k], n1)
    k0, k1, u, _ = _cell(at[axes - 1, k], n2)
    if axes == 2:
        a = f[0, j, k0] + u * (f[0, j, k1] - f[0, j, k0])
        b = f[0, jj, k0] + u * (f[0, jj, k1] - f[0, jj, k0])
        return a + t * (b - a)
    i, ii, s, _ = _cell(at[0, k], n0)
    a = f[i, j, k0] + u * (f[i, j, k1] - f[i, j, k0])
    b = f[i, jj, k0] + u * (f[i, jj, k1] - f[i, jj, k0])
    c = f[ii, j, k0] + u * (f[ii, j, k1] - f[ii, j, k0])
    e = f[ii, jj, k0] + u * (f[ii, jj, k1] - f[ii, jj, k0])
    front, back = a + t * (b - a), c + t * (e - c)
    return front + s * (back - front)


@njit(inline="always", **OPTIONS)
def _slopes(f: Array, at: Array, k: int, slope: Array) -> None:
    """The derivatives of the interpolated source by position, in voxels, into the last places of `slope`."""
    n0, n1, n2 = f.shape
    axes = at.shape[0]
    j, jj, t, free1 = _cell(at[axes - 2, k], n1)
    k0, k1, u, free2 = _cell(at[axes - 1, k], n2)
    if axes == 2:
        i, ii, s, free0 = 0, 0, t * 0, t * 0
    else:
        i, ii, s, free0 = _cell(at[0, k], n0)
    da, db = f[i, j, k1] - f[i, j, k0], f[i, jj, k1] - f[i, jj, k0]
    dc, de = f[ii, j, k1] - f[ii, j, k0], f[ii, jj, k1] - f[ii, jj, k0]
    a, b, c, e = f[i, j, k0] + u * da, f[i, jj, k0] + u * db, f[ii, j, k0] + u * dc, f[ii, jj, k0] + u * de
    front, back = a + t * (b - a), c + t * (e - c)
    slope[0] = free0 * (back - front)
    slope[1] = free1 * ((1 - s) * (b - a) + s * (e - c))
    slope[2] = free2 * ((1 - s) * ((1 - t) * da + t * db) + s * ((1 - t) * dc + t * de))
