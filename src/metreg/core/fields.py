"""n-D stencils and integrals. A field is (B, C, *S); axis d of the grid is tensor axis d + 2."""

from __future__ import annotations

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.kernels import is_fast


def difference(f: Tensor, axis: int) -> Tensor:
    """f[i+1] - f[i-1] along a tensor axis; at both ends f is extrapolated linearly, so twice the one-sided difference."""
    n = f.shape[axis]
    inner = f.narrow(axis, 2, n - 2) - f.narrow(axis, 0, n - 2)
    first = f.narrow(axis, 1, 1) - f.narrow(axis, 0, 1)
    last = f.narrow(axis, n - 1, 1) - f.narrow(axis, n - 2, 1)
    return torch.cat([2 * first, inner, 2 * last], dim=axis)


def gradient(f: Tensor, grid: Grid) -> Tensor:
    """df_c / dx_d by central differences.  f (B, C, *S) -> (B, C, D, *S)."""
    return torch.stack([difference(f, d + 2) / (2 * h) for d, h in enumerate(grid.spacing)], dim=2)


def forward_differences(f: Tensor, grid: Grid) -> Tensor:
    """df_c / dx_d by forward differences, zero at the far border.  f (B, C, *S) -> (B, C, D, *S)."""
    steps = [
        torch.cat([f.diff(dim=d + 2) / h, torch.zeros_like(f.narrow(d + 2, 0, 1))], dim=d + 2)
        for d, h in enumerate(grid.spacing)
    ]
    return torch.stack(steps, dim=2)


def determinant(columns: Tensor) -> Tensor:
    """Determinant of small matrices stored before the grid axes.  (B, D, D, *S) -> (B, *S)."""
    if columns.shape[1] == 1:
        return columns[:, 0, 0]
    rest = range(columns.shape[2])
    minors = [determinant(torch.cat([columns[:, 1:, :d], columns[:, 1:, d + 1 :]], dim=2)) for d in rest]
    terms = [(-1) ** d * columns[:, 0, d] * minor for d, minor in enumerate(minors)]
    return torch.stack(terms).sum(0)


def jacobian_determinant(phi: Tensor, grid: Grid) -> Tensor:
    """det D phi by central differences.  phi (B, D, *S), absolute positions -> (B, *S)."""
    return determinant(gradient(phi, grid))


def inner(a: Tensor, b: Tensor, grid: Grid) -> Tensor:
    """<a, b> for each pair of a batch: sum over components and points, times the cell's volume.  (B, C, *S) -> (B,)."""
    return (a * b).flatten(1).sum(1) * grid.cell_volume


def speed(v: Tensor, grid: Grid) -> Tensor:
    """The largest sum_d |v_d| / h_d of each pair, grid cells crossed in unit time, (B,). Not finite where v is not."""
    if is_fast(v):
        from metreg.kernels.triton.speed import fastest

        return fastest(v.detach(), grid.spacing)
    return (v.detach().abs() / grid.spacings(v)).sum(1).flatten(1).amax(1)
