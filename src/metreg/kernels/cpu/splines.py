"""Sums of cubic B-splines at points, on a CPU, compiled by numba. In 2-D there is one slab."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from metreg.kernels.cpu.compile import compiled
from metreg.kernels.cpu.parallel import parallel_for, with_slabs

if TYPE_CHECKING:
    from metreg.core.grid import Array


def sample_splines_on_cpu(c: Tensor, x: Tensor) -> Tensor:
    """`splines.sample_splines`, where nobody asks for its gradient.  c (B, C, *(S + 2)), x (B, D, *T) -> (B, C, *T)."""
    points = x.detach().double().flatten(2).contiguous()
    out = c.new_empty(len(x), c.shape[1], points.shape[2])
    for image, at, into in zip(with_slabs(c), points, out, strict=True):
        parallel_for(_sample, points.shape[2], points.numel(), image.numpy(), at.numpy(), into.numpy())
    return out.view(len(x), c.shape[1], *x.shape[2:])


@compiled()
def _sample(c: Array, x: Array, out: Array, first: int, last: int) -> None:
    channels, n0, n1, n2 = c.shape
    axes = len(x)
    along0, along1, along2 = np.ones(4), np.empty(4), np.empty(4)
    for p in range(first, last):
        i = _four(x[0, p], n0, along0) if axes == 3 else 0
        j, k = _four(x[axes - 2, p], n1, along1), _four(x[axes - 1, p], n2, along2)
        for channel in range(channels):
            total = 0.0
            for a in range(4 if axes == 3 else 1):
                plane = 0.0
                for b in range(4):
                    row = c[channel, i + a, j + b]
                    plane += along1[b] * (
                        along2[0] * row[k] + along2[1] * row[k + 1] + along2[2] * row[k + 2] + along2[3] * row[k + 3]
                    )
                total += along0[a] * plane
            out[channel, p] = total


@compiled(inline="always")
def _four(x: float, n: int, weights: Array) -> int:
    """The first of the four coefficients, of n, that count at index x of n - 2 voxels, and by how much they do."""
    x = min(max(x, 0.0), n - 3.0) if x == x else 0.0  # nowhere is treated like the first point
    first = min(int(x), n - 4)
    t = x - first
    s = 1 - t
    weights[0], weights[3] = s**3 / 6, t**3 / 6
    weights[1], weights[2] = (4 - 6 * t**2 + 3 * t**3) / 6, (4 - 6 * s**2 + 3 * s**3) / 6
    return first
