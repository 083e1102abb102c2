"""The price of small determinants on a GPU, in Triton. In 2-D n0 = 1.

A corner of a cell is a point of the map with one neighbour along each axis, before it or after it. The first kernel takes
all corners of a point and finds the derivatives by the edges that leave it; the second gathers them, so that the bits are
the same every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.kernels.triton.tiles import blocks_of, place

if TYPE_CHECKING:
    from metreg.core.grid import Grid

TILES = {2: (1, 8, 32), 3: (2, 4, 32)}
"""Points of one block along three axes."""


class FoldingOnGpu(torch.autograd.Function):
    """`plain_folding(phi, grid, least)`: the sum over all corners of all cells of (least - det)+^2.  (B, D, *S) -> (B,)"""

    @staticmethod
    def forward(ctx: FunctionCtx, phi: Tensor, grid: Grid, least: float) -> Tensor:
        phi = phi.contiguous()
        dim, batch = grid.dim, len(phi)
        shape = (1,) * (3 - dim) + tuple(grid.shape)
        scales = [0.0] * (3 - dim) + [1 / h for h in grid.spacing]
        tile = TILES[dim]
        blocks = blocks_of(shape, tile)
        common = {"FLAT": dim == 2, "T0": tile[0], "T1": tile[1], "T2": tile[2]}
        parts = phi.new_empty(batch, blocks)
        edges = phi.new_empty(batch, dim, 2, dim, *grid.shape)  # direction, side, component
        for d in range(3 - dim, 3):
            _corners[blocks, batch](phi, edges, parts, least, *shape, *scales, DIRECTION=d, **common)
        gradient = torch.empty_like(phi)
        _collect[blocks, batch](edges, gradient, *shape, *scales, **common)
        ctx.save_for_backward(gradient)
        return parts.sum(1, dtype=torch.float64).to(phi.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return p.view(-1, *[1] * (gradient.dim() - 1)) * gradient, None, None


@triton.jit
def _corners(
    phi,
    edges,
    parts,
    least,
    n0,
    n1,
    n2,
    s0,
    s1,
    s2,
    DIRECTION: tl.constexpr,
    FLAT: tl.constexpr,
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
):
    """The price of all corners of every point, and its derivatives by the two edges of one direction."""
    second: tl.constexpr = (DIRECTION + 1) % 3
    third: tl.constexpr = (DIRECTION + 2) % 3
    dim: tl.constexpr = 2 if FLAT else 3
    size = n0 * n1 * n2
    i, j, k, at, inside = place(n0, n1, n2, T0, T1, T2)
    pair = tl.program_id(1).to(tl.int64)
    phi += pair * dim * size
    edges += (pair * dim + DIRECTION - (3 - dim)) * 2 * dim * size + at
    where = (i, j, k, at, inside, n0, n1, n2, s0, s1, s2)
    price = tl.zeros((T0 * T1 * T2,), tl.float32)
    for side in tl.static_range(2):
        a0, a1, a2, there_a = _edge(phi, where, DIRECTION, side, FLAT)
        g0 = tl.zeros((T0 * T1 * T2,), tl.float32)
        g1, g2 = g0, g0
        for side_b in tl.static_range(1 if FLAT and second == 0 else 2):
            b0, b1, b2, there_b = _edge(phi, where, second, side_b, FLAT)
            for side_c in tl.static_range(1 if FLAT and third == 0 else 2):
                c0, c1, c2, there_c = _edge(phi, where, third, side_c, FLAT)
                m0, m1, m2 = b1 * c2 - b2 * c1, b2 * c0 - b0 * c2, b0 * c1 - b1 * c0
                lack = tl.maximum(least - (a0 * m0 + a1 * m1 + a2 * m2), 0.0)
                lack = tl.where(there_a & there_b & there_c, lack, 0.0)
                price += lack * lack
                g0 -= 2 * lack * m0
                g1 -= 2 * lack * m1
                g2 -= 2 * lack * m2
        if not FLAT:
            tl.store(edges, g0, mask=inside)
            edges += size
        tl.store(edges, g1, mask=inside)
        tl.store(edges + size, g2, mask=inside)
        edges += 2 * size
    if DIRECTION == 2:
        tl.store(parts + pair * tl.num_programs(0) + tl.program_id(0), tl.sum(price))


@triton.jit
def _axis(where, AXIS: tl.constexpr):
    """Index along an axis, its length, the distance in memory between neighbours, and one over the spacing."""
    n1, n2 = where[6], where[7]
    if AXIS == 0:
        return where[0], where[5], n1 * n2, where[8]
    elif AXIS == 1:
        return where[1], n1, n2, where[9]
    else:
        return where[2], n2, 1, where[10]


@triton.jit
def _edge(phi, where, AXIS: tl.constexpr, SIDE: tl.constexpr, FLAT: tl.constexpr):
    """The derivative of the map along the edge after a point (side 0) or before it, and whether there is one."""
    at, inside, size = where[3], where[4], where[5] * where[6] * where[7]
    e0 = tl.zeros(at.shape, tl.float32)
    if FLAT and AXIS == 0:
        return e0 + 1, e0, e0, inside
    else:
        index, n, stride, scale = _axis(where, AXIS)
        sign: tl.constexpr = 1 - 2 * SIDE
        there = inside & (index + sign >= 0) & (index + sign < n)
        here, next = phi + at, phi + at + sign * stride
        if not FLAT:
            e0 = (tl.load(next, mask=there, other=0.0) - tl.load(here, mask=there, other=0.0)) * sign * scale
            here += size
            next += size
        e1 = (tl.load(next, mask=there, other=0.0) - tl.load(here, mask=there, other=0.0)) * sign * scale
        here += size
        next += size
        e2 = (tl.load(next, mask=there, other=0.0) - tl.load(here, mask=there, other=0.0)) * sign * scale
        return e0, e1, e2, there


@triton.jit
def _collect(
    edges,
    out,
    n0,
    n1,
    n2,
    s0,
    s1,
    s2,
    FLAT: tl.constexpr,
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
):
    """The derivatives by the points: an edge pulls at both its ends."""
    dim: tl.constexpr = 2 if FLAT else 3
    size = n0 * n1 * n2
    i, j, k, at, inside = place(n0, n1, n2, T0, T1, T2)
    pair = tl.program_id(1).to(tl.int64)
    where = (i, j, k, at, inside, n0, n1, n2, s0, s1, s2)
    for c in tl.static_range(dim):
        total = tl.zeros((T0 * T1 * T2,), tl.float32)
        for d in tl.static_range(3 - dim, 3):
            index, n, stride, scale = _axis(where, d)
            for side in tl.static_range(2):
                sign = 1 - 2 * side
                mine = edges + (((pair * dim + d - (3 - dim)) * 2 + side) * dim + c) * size + at
                from_there = inside & (index - sign >= 0) & (index - sign < n)
                pull = tl.load(mine - sign * stride, mask=from_there, other=0.0) - tl.load(mine, mask=inside, other=0.0)
                total += sign * scale * pull
        tl.store(out + (pair * dim + c) * size + at, total, mask=inside)
