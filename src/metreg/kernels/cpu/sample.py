"""f o x on a CPU, compiled by numba: torch samples one volume with one thread. No way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from metreg.kernels.cpu.compile import compiled
from metreg.kernels.cpu.parallel import parallel_for, with_slabs
from metreg.kernels.cpu.trilinear import value

if TYPE_CHECKING:
    from metreg.core.grid import Array, Grid


def sample_on_cpu(f: Tensor, x: Tensor, grid: Grid, *, nearest: bool, zero: bool) -> Tensor:
    """`interpolate.sample`, where nobody asks for its gradient.  f (B, C, *S) on `grid`, x (B, D, *T) -> (B, C, *T)."""
    points = x.detach().flatten(2).contiguous()
    out = f.new_empty(len(x), f.shape[1], points.shape[2])
    steps = np.array(grid.spacing)
    for image, at, into in zip(with_slabs(f), points, out, strict=True):
        arrays = (image.numpy(), at.numpy(), steps, nearest, zero, into.numpy())
        parallel_for(_sample, points.shape[2], points.numel(), *arrays)
    return out.view(len(x), f.shape[1], *x.shape[2:])


@compiled()
def _sample(f: Array, x: Array, steps: Array, nearest: bool, zero: bool, out: Array, first: int, last: int) -> None:
    channels, n0, n1, n2 = f.shape
    axes = x.shape[0]
    for p in range(first, last):
        i, ii, s, inside0 = 0, 0, 0.0, True
        if axes == 3:
            i, ii, s, inside0 = place(x[0, p] / steps[0], n0, nearest)
        j, jj, t, inside1 = place(x[axes - 2, p] / steps[axes - 2], n1, nearest)
        k, kk, u, inside2 = place(x[axes - 1, p] / steps[axes - 1], n2, nearest)
        if zero and not (inside0 and inside1 and inside2):
            for c in range(channels):
                out[c, p] = 0
            continue
        for c in range(channels):
            out[c, p] = f[c, i, j, k] if nearest else value(f[c], i, ii, j, jj, k, kk, s, t, u)


@compiled(inline="always")
def place(x: float, n: int, nearest: bool) -> tuple[int, int, float, bool]:
    """The two points around a position, how far it is beyond the first, and whether it lies on the voxels of the image."""
    if nearest:
        x = np.floor(x + 0.5)  # half-way points go up, as in ITK
    inside = -0.5 <= x <= n - 0.5
    if not x > 0:  # nowhere is treated like the first point
        return 0, 0, 0.0, inside
    if x >= n - 1:
        return n - 1, n - 1, 0.0, inside
    low = int(x)
    return low, low + 1, x - low, inside
