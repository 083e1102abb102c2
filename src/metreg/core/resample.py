"""Between grids: sample anywhere, and change resolution. The only file that knows torch's [-1, 1] coordinates."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from metreg.core.grid import Grid
from metreg.kernels import is_compiled, is_fast

MANY = 500_000
"""Coordinates of points from which on it is worth the while to load a compiled kernel."""


def sample(
    f: Tensor,
    x: Tensor,
    grid: Grid,
    *,
    mode: Literal["linear", "nearest"] = "linear",
    outside: Literal["edge", "zero"] = "edge",
) -> Tensor:
    """f o x.  f (B, C, *S) on `grid`, x (B, D, *T) in its local coordinates -> (B, C, *T).

    `outside` says what lies beyond the outermost points: the nearest value, or zero from half a voxel on (as in ITK).
    """
    with_gradient = torch.is_grad_enabled() and (f.requires_grad or x.requires_grad)
    if x.numel() > MANY and is_compiled(f) and not with_gradient:
        from metreg.kernels.cpu.sample import sample_on_cpu

        return sample_on_cpu(f, x, grid, nearest=mode == "nearest", zero=outside == "zero")
    axes = (1, -1, *[1] * (x.dim() - 2))
    extent, step = grid.extents(x).view(axes), grid.spacings(x).view(axes)
    if mode == "nearest":
        x = (x / step + 0.5).floor() * step  # half-way points go up, as in ITK
    unit = 2 * x / extent - 1
    points = unit.flip(1).movedim(1, -1)
    if x.dim() != f.dim():  # a bare list of points (B, D, P)
        points = points.view(x.shape[0], *[1] * (grid.dim - 1), -1, grid.dim)
    method = "bilinear" if mode == "linear" else "nearest"
    values = F.grid_sample(f, points.to(f.dtype), mode=method, padding_mode="border", align_corners=True)
    values = values.reshape(*values.shape[:2], *x.shape[2:])
    if outside == "edge":
        return values
    return torch.where(covered(x, grid), values, torch.zeros((), dtype=values.dtype, device=values.device))


def covered(x: Tensor, grid: Grid) -> Tensor:
    """Which points x (B, D, *T) lie on the voxels of a grid, half a voxel beyond its outermost points.  (B, 1, *T)"""
    axes = (1, -1, *[1] * (x.dim() - 2))
    extent, step = grid.extents(x).view(axes), grid.spacings(x).view(axes)
    return ((x >= -step / 2) & (x <= extent + step / 2)).all(1, keepdim=True)


def along_axis(matrix: Tensor, f: Tensor, axis: int) -> Tensor:
    """A matrix (M, n) applied along one tensor axis of length n."""
    if axis in (-1, f.dim() - 1):
        return f @ matrix.T
    head, tail = f.shape[:axis], f.shape[axis + 1 :]
    out = torch.matmul(matrix, f.reshape(math.prod(head), f.shape[axis], math.prod(tail)))
    return out.view(*head, matrix.shape[0], *tail)


def upsample(f: Tensor, fine: Grid) -> Tensor:
    """Linear interpolation onto a finer grid of the same box, corners on corners.  (B, C, *S) -> (B, C, *fine.shape)."""
    for d, n in enumerate(fine.shape):
        if n != f.shape[d + 2]:
            f = along_axis(_matrix(f.shape[d + 2], n, f, fine), f, d + 2)
    return f


def warp(source: Tensor, phi_inv: Tensor, grid: Grid) -> Tensor:
    """I0 o phi_inv for a map that lives on a coarser grid of the same box.  (B, 1, *S), (B, D, *C) -> (B, 1, *S)."""
    if source.shape[1] != 1 or source.requires_grad or not (is_fast(phi_inv) or is_compiled(phi_inv)):
        return sample(source, upsample(phi_inv, grid), grid)
    warped: Tensor
    if phi_inv.device.type != "cpu":
        from metreg.kernels.triton.warp import Warp

        warped = Warp.apply(source, phi_inv, grid)  # type: ignore[no-untyped-call]
        return warped
    from metreg.kernels.cpu.warp import WarpOnCpu

    c, n = phi_inv.shape[2], grid.shape[0]
    up = None if c == n or grid.dim == 2 else _matrix(c, n, phi_inv, grid)
    warped = WarpOnCpu.apply(source, phi_inv, grid, up)  # type: ignore[no-untyped-call]
    return warped


def downsample(f: Tensor, coarse: Grid) -> Tensor:
    """Smooth, then sample on a coarser grid of the same box; axes that get finer are interpolated.  (B, C, *S)."""
    for d, n in enumerate(coarse.shape):
        if n != f.shape[d + 2]:
            f = along_axis(_matrix(f.shape[d + 2], n, f, coarse), f, d + 2)
    return f


def fill_unknown(f: Tensor, known: Tensor, grid: Grid) -> Tensor:
    """f where `known` (B, 1, *S) is one; elsewhere carried on smoothly from there, near from near, far from far."""
    if bool((known == 1).all()):
        return f
    if max(grid.shape) <= 4:
        axes = tuple(range(2, f.dim()))
        mean = (known * f).sum(axes, keepdim=True) / known.sum(axes, keepdim=True).clamp(min=1e-6)
        return torch.where(known > 0.99, f, mean)
    coarse = grid.coarsen(0.5)
    share = downsample(known, coarse)
    average = downsample(known * f, coarse) / share.clamp(min=1e-6)
    behind = upsample(fill_unknown(average, (share > 0.01).to(f.dtype), coarse), grid)
    return torch.where(known > 0.99, f, behind)


def _matrix(n: int, m: int, like: Tensor, grid: Grid) -> Tensor:
    """The weights (m, n) that take n points on a line to the grid's m: an average if they are fewer."""
    make = _smoothing_matrix if m < n else _linear_matrix
    return grid.constant((n, m), like, lambda: make(n, m, like))


def _linear_matrix(n: int, m: int, like: Tensor) -> Tensor:
    """Weights (m, n) that take n points on a line to m points on the same line."""
    at = torch.linspace(0, n - 1, m, dtype=torch.float64)
    weights = (1 - (at[:, None] - torch.arange(n, dtype=torch.float64)).abs()).clamp(min=0)
    return weights.to(like)


def _smoothing_matrix(n: int, m: int, like: Tensor) -> Tensor:
    """Gaussian averages (m, n) around m points, of half their distance in standard deviation; each row sums to one."""
    at = torch.linspace(0, n - 1, m, dtype=torch.float64)
    std = 0.5 * (n - 1) / (m - 1)
    weights = torch.exp(-0.5 * ((at[:, None] - torch.arange(n, dtype=torch.float64)) / std) ** 2)
    return (weights / weights.sum(1, keepdim=True)).to(like)
