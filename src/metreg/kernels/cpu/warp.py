"""I0 o phi_inv on a CPU, compiled by numba: the map is up-sampled row by row and never stored at the image's resolution.

A slab at a time: the map is interpolated along first and last axis, then row by row along the other. The way back sums
p grad I0 onto the map's points along these two; the first axis is a small matrix product. In 2-D there is one slab, n0 = 1.
Cells are those of trilinear_cpu, here a row at a time, by which loops become vector instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.kernels.cpu.compile import compiled
from metreg.kernels.cpu.parallel import parallel_for, with_slabs

if TYPE_CHECKING:
    from metreg.core.grid import Array, Grid


class WarpOnCpu(torch.autograd.Function):
    """`sample(source, upsample(phi_inv, grid), grid)`.  source (B, 1, *S) on `grid`, phi_inv (B, D, *C) -> (B, 1, *S).

    `up` (n0, c0) is the matrix of up-sampling along the first axis of three, None where nothing is to be done.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, source: Tensor, phi_inv: Tensor, grid: Grid, up: Tensor | None) -> Tensor:
        ctx.save_for_backward(source, phi_inv)
        ctx.grid, ctx.up = grid, up  # type: ignore[attr-defined]
        f, x = with_slabs(source)[:, 0], with_slabs(phi_inv)
        out = torch.empty_like(f)
        arrays = (f.flatten(1).numpy(), x.numpy(), out.numpy(), _scales(grid, source))
        parallel_for(_warp, len(f) * f.shape[1], f.numel(), *arrays)
        return out.view(source.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[None, Tensor, None, None]:
        source, phi_inv = ctx.saved_tensors  # type: ignore[attr-defined]
        grid: Grid = ctx.grid  # type: ignore[attr-defined]
        up: Tensor | None = ctx.up  # type: ignore[attr-defined]
        f, x, q = with_slabs(source)[:, 0], with_slabs(phi_inv), with_slabs(p)[:, 0]
        part = f.new_empty(len(f), grid.dim, f.shape[1], *x.shape[-2:])
        arrays = (f.flatten(1).numpy(), x.numpy(), q.numpy(), part.numpy(), _scales(grid, source))
        parallel_for(_adjoint, len(f) * f.shape[1], f.numel(), *arrays)
        if up is not None:
            part = up.T @ part.flatten(-2)
        return None, part.view(phi_inv.shape), None, None


def _scales(grid: Grid, like: Tensor) -> Array:
    """Voxels per unit length along every axis, as the tensor's numbers are."""
    return (1 / np.array(grid.spacing)).astype(like.numpy().dtype)


@compiled()
def _warp(f: Array, x: Array, out: Array, scales: Array, first: int, last: int) -> None:
    """f (B, n0 n1 n2)"""
    n0, n1, n2 = out.shape[1:]
    axes, c1, c2 = x.shape[1], x.shape[3], x.shape[4]
    low, portion = _between_all(n2, c2, scales)
    plane, at = np.empty((axes, c1, n2), f.dtype), np.empty((axes, n2), f.dtype)
    corner, beyond = np.empty(n2, np.uint32), np.zeros((3, n2), f.dtype)
    for r in range(first, last):
        b, i = r // n0, r % n0
        _come_from(x[b], i, n0, scales, low, portion, plane)
        for j in range(n1):
            _row_of(plane, j, n1, at)
            _cells(at, n0, n1, corner, beyond)
            _values(f[b], n0, n1, corner, beyond[0], beyond[1], beyond[2], out[b, i, j])


@compiled()
def _adjoint(f: Array, x: Array, p: Array, part: Array, scales: Array, first: int, last: int) -> None:
    n0, n1, n2 = p.shape[1:]
    axes, c1, c2 = x.shape[1], x.shape[3], x.shape[4]
    low, portion = _between_all(n2, c2, scales)
    plane, at = np.empty((axes, c1, n2), f.dtype), np.empty((axes, n2), f.dtype)
    corner, beyond, slopes = np.empty(n2, np.uint32), np.zeros((3, n2), f.dtype), np.empty((3, n2), f.dtype)
    for r in range(first, last):
        b, i = r // n0, r % n0
        _come_from(x[b], i, n0, scales, low, portion, plane)
        pull = np.zeros((axes, c1, n2), f.dtype)
        for j in range(n1):
            _row_of(plane, j, n1, at)
            _cells(at, n0, n1, corner, beyond)
            _slopes(f[b], n0, n1, corner, beyond, slopes)
            j0, t = _between(j, n1, c1)
            for d in range(axes):
                s = slopes[d + 3 - axes]
                _keep_inside(s, at[d], p.shape[d + 4 - axes])
                _times(s, scales[d], p[b, i, j])
                _add(pull[d, j0], f.dtype.type(1 - t), s)
                _add(pull[d, min(j0 + 1, c1 - 1)], f.dtype.type(t), s)
        for d in range(axes):
            for j in range(c1):
                _gather(pull[d, j], low, portion, part[b, d, i, j])


@compiled(inline="always")
def _between(i: int, n: int, count: int) -> tuple[int, float]:
    """Of `count` points in the place of n the one at or below voxel i, and how far i is beyond it."""
    ratio = (count - 1) / (n - 1) if n > 1 else 0.0
    low = min(int(i * ratio), max(count - 2, 0))
    return low, i * ratio - low


@compiled()
def _between_all(n: int, count: int, like: Array) -> tuple[Array, Array]:
    """The same for all n voxels of a row."""
    low, portion = np.empty(n, np.uint32), np.empty(n, like.dtype)
    for k in range(n):
        low[k], portion[k] = _between(k, n, count)
    return low, portion


@compiled()
def _come_from(x: Array, i: int, n0: int, scales: Array, low: Array, portion: Array, plane: Array) -> None:
    """Where slab i comes from, in voxels of the source (D, c1, n2): the map interpolated along first and last axis."""
    axes, c0, c1, c2 = x.shape
    i0, s = _between(i, n0, c0)
    row = np.empty(c2 + 1, x.dtype)
    after = row[1:]
    for d in range(axes):
        here, there = scales[d] * x.dtype.type(1 - s), scales[d] * x.dtype.type(s)
        for j in range(c1):
            a, b, out = x[d, i0, j], x[d, min(i0 + 1, c0 - 1), j], plane[d, j]
            for k in range(c2):
                row[k] = here * a[k] + there * b[k]
            row[c2] = row[c2 - 1]
            for k in range(len(out)):
                out[k] = row[low[k]] + portion[k] * (after[low[k]] - row[low[k]])


@compiled()
def _row_of(plane: Array, j: int, n1: int, at: Array) -> None:
    """Where row j of the slab comes from, (D, n2)."""
    axes, c1, n2 = plane.shape
    j0, t = _between(j, n1, c1)
    here, there = at.dtype.type(1 - t), at.dtype.type(t)
    for d in range(axes):
        a, b, out = plane[d, j0], plane[d, min(j0 + 1, c1 - 1)], at[d]
        for k in range(n2):
            out[k] = here * a[k] + there * b[k]


@compiled()
def _cells(at: Array, n0: int, n1: int, corner: Array, beyond: Array) -> None:
    """The first corners of the cells around positions, clamped to the image, and how far they are beyond them."""
    axes, n2 = at.shape
    for k in range(n2):
        corner[k] = 0
    if axes == 3:
        _cell(at[0], n0, n1 * n2, corner, beyond[0])
    _cell(at[axes - 2], n1, n2, corner, beyond[1])
    _cell(at[axes - 1], n2, 1, corner, beyond[2])


@compiled()
def _cell(x: Array, n: int, step: int, corner: Array, beyond: Array) -> None:
    first, last, none, end = np.int32(0), np.int32(max(n - 2, 0)), x.dtype.type(0), x.dtype.type(n - 1)
    for k in range(len(x)):
        beyond[k] = min(max(x[k], none), end)
    for k in range(len(x)):
        corner[k] += np.uint32(max(min(np.int32(beyond[k]), last), first)) * np.uint32(step)
    for k in range(len(x)):
        beyond[k] -= x.dtype.type(max(min(np.int32(beyond[k]), last), first))


@compiled()
def _values(f: Array, n0: int, n1: int, corner: Array, s: Array, t: Array, u: Array, out: Array) -> None:
    """Interpolated between the eight corners of every cell, of f (n0 n1 n2,)."""
    n2 = len(out)
    slab = f[n1 * n2 if n0 > 1 else 0 :]
    b, c, e = f[1:], f[n2:], f[n2 + 1 :]
    bb, cc, ee = slab[1:], slab[n2:], slab[n2 + 1 :]
    for k in range(n2):
        m = corner[k]
        front, back = f[m] + u[k] * (b[m] - f[m]), slab[m] + u[k] * (bb[m] - slab[m])
        front += t[k] * (c[m] + u[k] * (e[m] - c[m]) - front)
        back += t[k] * (cc[m] + u[k] * (ee[m] - cc[m]) - back)
        out[k] = front + s[k] * (back - front)


@compiled()
def _slopes(f: Array, n0: int, n1: int, corner: Array, beyond: Array, slopes: Array) -> None:
    """Derivatives of those values along the axes, (3, n2)."""
    n2 = len(corner)
    s, t, u = beyond[0], beyond[1], beyond[2]
    slab = f[n1 * n2 if n0 > 1 else 0 :]
    b, c, e = f[1:], f[n2:], f[n2 + 1 :]
    bb, cc, ee = slab[1:], slab[n2:], slab[n2 + 1 :]
    along0, along1, along2 = slopes[0], slopes[1], slopes[2]
    for k in range(n2):
        m = corner[k]
        da, dc, dda, ddc = b[m] - f[m], e[m] - c[m], bb[m] - slab[m], ee[m] - cc[m]
        va, vc, vva, vvc = f[m] + u[k] * da, c[m] + u[k] * dc, slab[m] + u[k] * dda, cc[m] + u[k] * ddc
        front, back = vc - va, vvc - vva
        along0[k] = vva + t[k] * back - va - t[k] * front
        along1[k] = front + s[k] * (back - front)
        front, back = da + t[k] * (dc - da), dda + t[k] * (ddc - dda)
        along2[k] = front + s[k] * (back - front)


@compiled()
def _keep_inside(slope: Array, x: Array, n: int) -> None:
    """Beyond the image its outermost value goes on."""
    none, end = x.dtype.type(0), x.dtype.type(n - 1)
    for k in range(len(x)):
        slope[k] = slope[k] if x[k] > none and x[k] < end else none


@compiled()
def _times(f: Array, scale: float, g: Array) -> None:
    for k in range(len(f)):
        f[k] *= scale * g[k]


@compiled()
def _add(f: Array, scale: float, g: Array) -> None:
    for k in range(len(f)):
        f[k] += scale * g[k]


@compiled()
def _gather(pull: Array, low: Array, portion: Array, out: Array) -> None:
    """The adjoint of interpolation along a row."""
    last = len(out) - 1
    for c in range(len(out)):
        out[c] = 0
    for k in range(len(pull)):
        c, beyond = low[k], portion[k] * pull[k]
        out[c] += pull[k] - beyond
        out[min(c + 1, last)] += beyond
