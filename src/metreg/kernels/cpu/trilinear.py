"""Linear interpolation in one cell of an image (n0, n1, n2), for kernels that numba compiles. In 2-D n0 = 1: i = ii, s = 0.

The cell lies between i and ii, j and jj, k and kk along the axes; s, t and u say how far the point is beyond the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metreg.kernels.cpu.compile import compiled

if TYPE_CHECKING:
    from metreg.core.grid import Array


@compiled(inline="always")
def value(f: Array, i: int, ii: int, j: int, jj: int, k: int, kk: int, s: float, t: float, u: float) -> float:
    a, b = f[i, j, k] + u * (f[i, j, kk] - f[i, j, k]), f[i, jj, k] + u * (f[i, jj, kk] - f[i, jj, k])
    front = a + t * (b - a)
    if i == ii:
        return front
    c, e = f[ii, j, k] + u * (f[ii, j, kk] - f[ii, j, k]), f[ii, jj, k] + u * (f[ii, jj, kk] - f[ii, jj, k])
    return front + s * (c + t * (e - c) - front)


@compiled(inline="always")
def value_and_slopes(
    f: Array, i: int, ii: int, j: int, jj: int, k: int, kk: int, s: float, t: float, u: float
) -> tuple[float, float, float, float]:
    """The value, and its derivatives along the axes; zero along one whose corners are the same point."""
    da, db, dc, de = (
        f[i, j, kk] - f[i, j, k],
        f[i, jj, kk] - f[i, jj, k],
        f[ii, j, kk] - f[ii, j, k],
        f[ii, jj, kk] - f[ii, jj, k],
    )
    a, b, c, e = f[i, j, k] + u * da, f[i, jj, k] + u * db, f[ii, j, k] + u * dc, f[ii, jj, k] + u * de
    front, back = a + t * (b - a), c + t * (e - c)
    along_first = (1 - s) * (b - a) + s * (e - c)
    along_last = (1 - s) * ((1 - t) * da + t * db) + s * ((1 - t) * dc + t * de)
    return front + s * (back - front), back - front, along_first, along_last
