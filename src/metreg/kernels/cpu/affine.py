"""Correlation under a matrix, and its derivative by that, on a CPU, compiled by numba: two passes over the points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metreg.kernels.cpu.compile import compiled
from metreg.kernels.cpu.parallel import parallel_for, with_slabs
from metreg.kernels.cpu.sample import place
from metreg.kernels.cpu.trilinear import value, value_and_slopes

if TYPE_CHECKING:
    from metreg.core.grid import Array

BLOCK = 4096
"""Points whose sums are taken on their own."""


class Compared:
    """A target's values at points (D, P), and a source (1, 1, *S) that a matrix brings there. Masks are theirs, or None.

    In 2-D there is one slab, and the first coordinate is always 0.
    """

    def __init__(self, source: Tensor, target: Tensor, points: Tensor, masks: tuple[Tensor | None, Tensor | None]) -> None:
        of_source, of_target = masks
        self.axes, count = points.shape
        self.source, self.target = _slabs(source), target.detach().reshape(count).numpy()
        self.of_source = np.zeros((0, 0, 0), np.float32) if of_source is None else _slabs(of_source)
        self.of_target = np.zeros(0, np.float32) if of_target is None else of_target.detach().reshape(count).numpy()
        self.points = np.zeros((3, count), np.float32)
        self.points[3 - self.axes :] = points.numpy()
        self.parts = -(-count // BLOCK)
        self.found = np.empty((5, count), np.float32)
        """At every point: share of the mask, value, and its derivatives along the source's axes."""

    def under(self, matrix: Array, tiny: float) -> tuple[float, float, Array]:
        """The sum of the masks, 1 - ncc^2, and its derivative, under a matrix (D, D+1) from points to indices."""
        start, whole = 3 - self.axes, np.zeros((3, 4))
        whole[start:, start:] = matrix
        sums, slopes = np.empty((self.parts, 6)), np.empty((self.parts, 3, 4))
        images = (self.source, self.target, self.of_source, self.of_target)
        parallel_for(_carry, self.parts, self.points.size, *images, self.points, whole, self.found, sums)
        n, *means = sums.sum(0)
        count = max(n, 1.0)
        a, b, aa, bb, ab = (total / count for total in means)
        variance_a, variance_b, covariance = max(aa - a * a, tiny), max(bb - b * b, tiny), ab - a * b
        by_covariance = -2 * covariance / (variance_a * variance_b) / count
        by_variance = (aa - a * a > tiny) * covariance**2 / (variance_a**2 * variance_b) / count
        # of each value, before it is multiplied by what is known: by_covariance (b - mean b) + 2 by_variance (a - mean a)
        constant = -by_covariance * b - 2 * by_variance * a
        numbers = (by_covariance, 2 * by_variance, constant)
        parallel_for(_pull, self.parts, self.points.size, self.target, self.points, self.found, *numbers, slopes)
        slope = slopes.sum(0)[start:, start:]
        return float(n), float(1 - covariance**2 / (variance_a * variance_b)), slope


def _slabs(f: Tensor) -> Array:
    return np.asarray(with_slabs(f.to(torch.float32))[0, 0].numpy())


@compiled()
def _carry(
    f: Array,
    b: Array,
    mask: Array,
    other: Array,
    points: Array,
    matrix: Array,
    found: Array,
    sums: Array,
    first: int,
    last: int,
) -> None:
    """Values of f under the matrix, their derivatives, and the sums of 1, a, b, a^2, b^2 and ab over the masks."""
    n0, n1, n2 = f.shape
    count = len(b)
    for block in range(first, last):
        total = sums[block]
        total.fill(0)
        for p in range(block * BLOCK, min(count, (block + 1) * BLOCK)):
            x, y, z = points[0, p], points[1, p], points[2, p]
            i, ii, s, inside0 = place(matrix[0, 0] * x + matrix[0, 1] * y + matrix[0, 2] * z + matrix[0, 3], n0, False)
            j, jj, t, inside1 = place(matrix[1, 0] * x + matrix[1, 1] * y + matrix[1, 2] * z + matrix[1, 3], n1, False)
            k, kk, u, inside2 = place(matrix[2, 0] * x + matrix[2, 1] * y + matrix[2, 2] * z + matrix[2, 3], n2, False)
            known = 1.0 if inside0 and inside1 and inside2 else 0.0
            if len(mask) and known > 0:
                known = value(mask, i, ii, j, jj, k, kk, s, t, u)
            if len(other):
                known *= other[p]
            found[0, p] = known
            if known == 0:
                continue
            a, found[2, p], found[3, p], found[4, p] = value_and_slopes(f, i, ii, j, jj, k, kk, s, t, u)
            found[1, p] = a
            total[0] += known
            total[1] += known * a
            total[2] += known * b[p]
            total[3] += known * a * a
            total[4] += known * b[p] * b[p]
            total[5] += known * a * b[p]


@compiled()
def _pull(
    b: Array, points: Array, found: Array, by_b: float, by_a: float, constant: float, slopes: Array, first: int, last: int
) -> None:
    """The sum over all points of what a value's change is worth, times its derivatives, times the point and 1: (3, 4)."""
    count = len(b)
    for block in range(first, last):
        total = slopes[block]
        total.fill(0)
        for p in range(block * BLOCK, min(count, (block + 1) * BLOCK)):
            if found[0, p] == 0:
                continue
            worth = found[0, p] * (by_b * b[p] + by_a * found[1, p] + constant)
            for d in range(3):
                g = worth * found[2 + d, p]
                total[d, 0] += g * points[0, p]
                total[d, 1] += g * points[1, p]
                total[d, 2] += g * points[2, p]
                total[d, 3] += g
