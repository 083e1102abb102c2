"""The smallest Bernstein coefficient of the determinant in every cell of a 3-D map, compiled by numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from metreg.kernels.cpu.compile import compiled
from metreg.kernels.cpu.parallel import parallel_for

if TYPE_CHECKING:
    from metreg.core.grid import Array, Grid


def bernstein_minimum_3d(phi: Tensor, grid: Grid) -> Tensor:
    """(B, 3, *S) -> (B, *(S-1))."""
    phi = phi.detach().contiguous()
    out = phi.new_empty(len(phi), *[n - 1 for n in phi.shape[2:]])
    inverse = (1 / np.array(grid.spacing)).astype(phi.numpy().dtype)
    arrays = (phi.numpy(), inverse, _shares().astype(inverse.dtype), out.numpy())
    parallel_for(_minimum, len(phi) * (phi.shape[2] - 1), phi.numel(), *arrays)
    return out


def _shares() -> Array:
    """One over how many choices of edges go into the coefficient of a degree, (27,)."""
    choices = np.array([1, 2, 1])
    return 1 / np.einsum("i,j,k->ijk", choices, choices, choices).ravel()


@compiled()
def _minimum(x: Array, inverse: Array, shares: Array, out: Array, first: int, last: int) -> None:
    n0, n1, n2 = x.shape[2:]
    edges = np.empty((3, 2, 2, 3), x.dtype)  # axis, the two other coordinates, component
    sums = np.empty(27, x.dtype)
    for r in range(first, last):
        b, i = r // (n0 - 1), r % (n0 - 1)
        for j in range(n1 - 1):
            for k in range(n2 - 1):
                out[b, i, j, k] = _cell(x[b], i, j, k, inverse, shares, edges, sums)


@compiled()
def _cell(x: Array, i: int, j: int, k: int, inverse: Array, shares: Array, edges: Array, sums: Array) -> float:
    for s in range(2):
        for t in range(2):
            for c in range(3):
                edges[0, s, t, c] = (x[c, i + 1, j + s, k + t] - x[c, i, j + s, k + t]) * inverse[0]
                edges[1, s, t, c] = (x[c, i + s, j + 1, k + t] - x[c, i + s, j, k + t]) * inverse[1]
                edges[2, s, t, c] = (x[c, i + s, j + t, k + 1] - x[c, i + s, j + t, k]) * inverse[2]
    sums[:] = 0
    for s1 in range(2):  # the edge along the second axis is at (s1, ., t1), the one along the third at (s2, t2, .)
        for t1 in range(2):
            b0, b1, b2 = edges[1, s1, t1, 0], edges[1, s1, t1, 1], edges[1, s1, t1, 2]
            for s2 in range(2):
                for t2 in range(2):
                    c0, c1, c2 = edges[2, s2, t2, 0], edges[2, s2, t2, 1], edges[2, s2, t2, 2]
                    m0, m1, m2 = b1 * c2 - b2 * c1, b2 * c0 - b0 * c2, b0 * c1 - b1 * c0
                    for s0 in range(2):  # and the one along the first at (., s0, t0)
                        for t0 in range(2):
                            det = edges[0, s0, t0, 0] * m0 + edges[0, s0, t0, 1] * m1 + edges[0, s0, t0, 2] * m2
                            sums[9 * (s1 + s2) + 3 * (s0 + t2) + t0 + t1] += det
    smallest = sums[0] * shares[0]
    for degree in range(1, 27):
        if np.isnan(sums[degree]):
            return sums[degree]
        smallest = min(smallest, sums[degree] * shares[degree])
    return smallest
