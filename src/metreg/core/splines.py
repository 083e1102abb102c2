"""Cubic splines through the voxels of an image: between them it is hardly blurred; linear interpolation blurs it."""

from __future__ import annotations

from itertools import product
from math import prod

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.core.resample import along_axis, sample
from metreg.kernels import is_compiled


def coefficients(f: Tensor) -> Tensor:
    """Of the B-splines, one at every voxel and one beyond at each end, whose sum goes through f.

    f (B, C, *S), two voxels or more along every axis, mirrored at both ends -> (B, C, *(S + 2)).
    """
    for axis in range(2, f.dim()):
        f = along_axis(_through(f.shape[axis]).to(f), f, axis)
    return f


def sample_splines(c: Tensor, x: Tensor) -> Tensor:
    """The sum of the splines of `coefficients` at indices x (B, D, *T) of the image, clamped to it -> (B, C, *T).

    Along an axis four coefficients count, two and two in the shares of a linear interpolation between them: that leaves
    2^D points to sample.
    """
    if is_compiled(c) and not (torch.is_grad_enabled() and (c.requires_grad or x.requires_grad)):
        from metreg.kernels.cpu.splines import sample_splines_on_cpu

        return sample_splines_on_cpu(c, x)
    grid = Grid(tuple(c.shape[2:]), (1.0,) * (c.dim() - 2))
    low, high = zip(*[_two_points(at, n - 2) for at, n in zip(x.unbind(1), grid.shape, strict=True)], strict=True)
    found: Tensor | int = 0
    for corner in product(*zip(low, high, strict=True)):
        at, weights = zip(*corner, strict=True)
        found = found + prod(weights).to(c.dtype).unsqueeze(1) * sample(c, torch.stack(at, dim=1), grid)
    assert isinstance(found, Tensor)
    return found


def _two_points(x: Tensor, n: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Two points among the n + 2 coefficients of an axis, and the weights of what lies there."""
    x = x.clamp(0, n - 1)
    first = x.floor().clamp(max=n - 2)
    t = x - first
    s = 1 - t
    a, b, c, d = s**3 / 6, (4 - 6 * t**2 + 3 * t**3) / 6, (4 - 6 * s**2 + 3 * s**3) / 6, t**3 / 6
    return (first + b / (a + b), a + b), (first + 2 + d / (c + d), c + d)


def _through(n: int) -> Tensor:
    """The matrix (n + 2, n) from values to coefficients: B-splines are 2/3 at their own point and 1/6 at the next."""
    i = torch.arange(n)
    mirrored = torch.cat([i[1:2], i, i[-2:-1]])  # whose coefficient each of the n + 2 is
    values = torch.zeros(n, n, dtype=torch.float64)
    for offset, value in ((0, 1 / 6), (1, 2 / 3), (2, 1 / 6)):
        values.index_put_((i, mirrored[offset : offset + n]), torch.tensor(value, dtype=torch.float64), accumulate=True)
    return torch.linalg.inv(values)[mirrored]
