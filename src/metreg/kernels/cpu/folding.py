"""The price of small determinants on a CPU, compiled by numba: value and gradient in one pass over the cells.

Maps are (B, D, n0, n1, n2); in 2-D n0 = 1. Cells of every other slab are done together, so that no two threads add to the
same point.
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


class FoldingOnCpu(torch.autograd.Function):
    """Sum over all corners of all cells of (least - det)+^2.  phi (B, D, *S) -> (B,)."""

    @staticmethod
    def forward(ctx: FunctionCtx, phi: Tensor, grid: Grid, least: float) -> Tensor:
        x = with_slabs(phi)
        gradient = torch.zeros_like(x)
        energy = torch.zeros(len(x), x.shape[2], dtype=torch.float64)
        inverse = (1 / np.array(grid.spacing)).astype(x.numpy().dtype)
        run = _folding_3d if grid.dim == 3 else _folding_2d
        for colour in range(2) if grid.dim == 3 else range(1):
            parts = len(x) * ((x.shape[2] - colour) // 2 if grid.dim == 3 else 1)
            parallel_for(run, parts, x.numel(), x.numpy(), inverse, least, energy.numpy(), gradient.numpy(), colour)
        ctx.save_for_backward(gradient.view(phi.shape))
        return energy.sum(1).to(phi.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return p.view(-1, *[1] * (gradient.dim() - 1)) * gradient, None, None


@compiled()
def _folding_3d(
    x: Array, inverse: Array, least: float, energy: Array, gradient: Array, colour: int, first: int, last: int
) -> None:
    n0, n1, n2 = x.shape[2:]
    count = (n0 - colour) // 2  # slabs of cells that begin at colour, colour + 2, ...
    edges = np.empty((3, 2, 2, 3), x.dtype)  # axis, the two other coordinates, component
    back = np.empty((3, 2, 2, 3), x.dtype)
    along0, along1 = np.empty((2, 3, n2), x.dtype), np.empty((2, 3, n2), x.dtype)
    along2 = np.empty((2, 2, 3, n2), x.dtype)
    normal, worst = np.empty((3, n2 - 1), x.dtype), np.empty(n2 - 1, x.dtype)
    for r in range(first, last):
        b, i = r // count, colour + 2 * (r % count)
        for j in range(n1 - 1):
            _least(x[b], i, j, inverse, along0, along1, along2, normal, worst)
            for k in range(n2 - 1):
                if not worst[k] >= least:
                    energy[b, i] += _cell(x[b], gradient[b], i, j, k, inverse, least, edges, back)


@compiled()
def _least(
    x: Array, i: int, j: int, inverse: Array, along0: Array, along1: Array, along2: Array, normal: Array, worst: Array
) -> None:
    """The least determinant at the corners of every cell in a row: most cells are far from folding, and not looked at."""
    last = x.shape[3] - 1
    for s in range(2):
        for c in range(3):
            _difference(x[c, i + 1, j + s], x[c, i, j + s], inverse[0], along0[s, c])
            _difference(x[c, i + s, j + 1], x[c, i + s, j], inverse[1], along1[s, c])
            for t in range(2):
                row = x[c, i + s, j + t]
                _difference(row[1:], row[:last], inverse[2], along2[s, t, c, :last])
    for k in range(last):
        worst[k] = np.inf
    for p in range(2):
        for q in range(2):
            g0, g1, g2 = along2[p, q, 0], along2[p, q, 1], along2[p, q, 2]
            for r in range(2):
                end = last + r
                f0, f1, f2 = along1[p, 0, r:end], along1[p, 1, r:end], along1[p, 2, r:end]
                _cross(f1, f2, g1, g2, normal[0])
                _cross(f2, f0, g2, g0, normal[1])
                _cross(f0, f1, g0, g1, normal[2])
                e0, e1, e2 = along0[q, 0, r:end], along0[q, 1, r:end], along0[q, 2, r:end]
                _lower(e0, e1, e2, normal[0], normal[1], normal[2], worst)


@compiled()
def _difference(a: Array, b: Array, scale: float, out: Array) -> None:
    for k in range(len(out)):
        out[k] = scale * (a[k] - b[k])


@compiled()
def _cross(a: Array, b: Array, c: Array, d: Array, out: Array) -> None:
    for k in range(len(out)):
        out[k] = a[k] * d[k] - b[k] * c[k]


@compiled()
def _lower(a: Array, b: Array, c: Array, d: Array, e: Array, f: Array, out: Array) -> None:
    for k in range(len(out)):
        found = a[k] * d[k] + b[k] * e[k] + c[k] * f[k]
        out[k] = min(out[k], found) + 0 * found  # no number stays no number


@compiled()
def _cell(
    x: Array, gradient: Array, i: int, j: int, k: int, inverse: Array, least: float, edges: Array, back: Array
) -> float:
    for s in range(2):
        for t in range(2):
            for c in range(3):
                edges[0, s, t, c] = inverse[0] * (x[c, i + 1, j + s, k + t] - x[c, i, j + s, k + t])
                edges[1, s, t, c] = inverse[1] * (x[c, i + s, j + 1, k + t] - x[c, i + s, j, k + t])
                edges[2, s, t, c] = inverse[2] * (x[c, i + s, j + t, k + 1] - x[c, i + s, j + t, k])
    found = 0.0
    clean = True
    for p in range(2):
        for q in range(2):
            for r in range(2):
                e, f, g = edges[0, q, r], edges[1, p, r], edges[2, p, q]
                n0, n1, n2 = f[1] * g[2] - f[2] * g[1], f[2] * g[0] - f[0] * g[2], f[0] * g[1] - f[1] * g[0]
                lack = least - (e[0] * n0 + e[1] * n1 + e[2] * n2)
                if lack <= 0:
                    continue
                if clean:
                    back.fill(0)
                    clean = False
                found += lack * lack
                s = -2 * lack
                d, h, o = back[0, q, r], back[1, p, r], back[2, p, q]
                d[0] += s * n0
                d[1] += s * n1
                d[2] += s * n2
                h[0] += s * (g[1] * e[2] - g[2] * e[1])
                h[1] += s * (g[2] * e[0] - g[0] * e[2])
                h[2] += s * (g[0] * e[1] - g[1] * e[0])
                o[0] += s * (e[1] * f[2] - e[2] * f[1])
                o[1] += s * (e[2] * f[0] - e[0] * f[2])
                o[2] += s * (e[0] * f[1] - e[1] * f[0])
    if not clean:
        for s in range(2):
            for t in range(2):
                for c in range(3):
                    a, b, e = inverse[0] * back[0, s, t, c], inverse[1] * back[1, s, t, c], inverse[2] * back[2, s, t, c]
                    gradient[c, i + 1, j + s, k + t] += a
                    gradient[c, i, j + s, k + t] -= a
                    gradient[c, i + s, j + 1, k + t] += b
                    gradient[c, i + s, j, k + t] -= b
                    gradient[c, i + s, j + t, k + 1] += e
                    gradient[c, i + s, j + t, k] -= e
    return found


@compiled()
def _folding_2d(
    x: Array, inverse: Array, least: float, energy: Array, gradient: Array, colour: int, first: int, last: int
) -> None:
    n1, n2 = x.shape[3:]
    for b in range(first, last):
        f, g = x[b, :, 0], gradient[b, :, 0]
        for j in range(n1 - 1):
            for k in range(n2 - 1):
                for p in range(2):
                    for q in range(2):
                        e0 = inverse[0] * (f[0, j + 1, k + q] - f[0, j, k + q])
                        e1 = inverse[0] * (f[1, j + 1, k + q] - f[1, j, k + q])
                        h0 = inverse[1] * (f[0, j + p, k + 1] - f[0, j + p, k])
                        h1 = inverse[1] * (f[1, j + p, k + 1] - f[1, j + p, k])
                        lack = least - (e0 * h1 - e1 * h0)
                        if lack <= 0:
                            continue
                        energy[b, 0] += lack * lack
                        s, t = -2 * lack * inverse[0], -2 * lack * inverse[1]
                        g[0, j + 1, k + q] += s * h1
                        g[0, j, k + q] -= s * h1
                        g[1, j + 1, k + q] -= s * h0
                        g[1, j, k + q] += s * h0
                        g[0, j + p, k + 1] -= t * e1
                        g[0, j + p, k] += t * e1
                        g[1, j + p, k + 1] += t * e0
                        g[1, j + p, k] -= t * e0
