"""I0 o phi_inv on a GPU, in Triton: the map is up-sampled where it is needed and never stored at the image's resolution.

A program takes a column of voxels and goes along the first axis from one plane of the map to the next.
The way back gathers, so that it gives the same bits every time: a first kernel takes p grad I0 at every voxel and sums it
onto the map's points along the first axis, a second one along the others. In 2-D n0 = 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.kernels.triton.dependent_launch import dependent_launch, wait
from metreg.kernels.triton.gather import gather
from metreg.kernels.triton.sampling import between, position, sample, voxels
from metreg.kernels.triton.tiles import blocks_of, columns

if TYPE_CHECKING:
    from metreg.core.grid import Grid

BLOCK = 128
"""Voxels of a plane that one program takes, side by side in memory."""
CELLS = 8
"""Planes of the map that it goes along."""


class Warp(torch.autograd.Function):
    """`sample(source, upsample(phi_inv, grid), grid)`.  source (B, 1, *S) on `grid`, phi_inv (B, D, *C) -> (B, 1, *S)."""

    @staticmethod
    def forward(ctx: FunctionCtx, source: Tensor, phi_inv: Tensor, grid: Grid) -> Tensor:
        source, phi_inv = source.contiguous(), phi_inv.contiguous()
        ctx.save_for_backward(source, phi_inv)
        ctx.grid = grid  # type: ignore[attr-defined]
        out = torch.empty_like(source)
        forward_of(source, phi_inv, grid, out, source, None, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[None, Tensor, None]:
        source, phi_inv = ctx.saved_tensors  # type: ignore[attr-defined]
        return None, pull_of(source, phi_inv, ctx.grid, p.contiguous()), None  # type: ignore[attr-defined]


def programs(grid: Grid, phi_inv: Tensor) -> int:
    """Programs for one image."""
    _, n1, n2, c0, _, _ = _geometry(phi_inv, grid)[:6]
    return blocks_of((_cells(c0), n1 * n2), (CELLS, BLOCK))


def _cells(points: int) -> int:
    """Intervals between the map's points along the first axis; in 2-D there is one point, and voxels lie on it."""
    return max(points - 1, 1)


def forward_of(
    source: Tensor, phi_inv: Tensor, grid: Grid, out: Tensor | None, target: Tensor, mask: Tensor | None, parts: Tensor
) -> None:
    """The warped image into `out`, or, where there is none, the sums of every block into `parts` (B, SUMS, blocks)."""
    _warp[programs(grid, phi_inv), len(source)](
        source,
        phi_inv,
        parts if out is None else out,
        target,
        target if mask is None else mask,
        *_geometry(phi_inv, grid),
        FLAT=grid.dim == 2,
        SUM=out is None,
        MASKED=mask is not None,
        BLOCK=BLOCK,
        CELLS=CELLS,
        **dependent_launch(source.device),
    )


def pull_of(source: Tensor, phi_inv: Tensor, grid: Grid, p: Tensor, mask: Tensor | None = None, *pull: Tensor) -> Tensor:
    """The gradient towards the map, for p (B, 1, *S) at every voxel.

    Where `pull` (B, 3) and its factor (B,) are given, p is the target, and factor mask (pull_0 p + pull_1 warped + pull_2)
    stands in its place.
    """
    geometry = _geometry(phi_inv, grid)
    _, n1, n2, c0, c1, c2 = geometry[:6]
    slabs = triton.cdiv(_cells(c0), CELLS)
    part = p.new_empty(len(p), grid.dim, slabs, CELLS + 1, n1, n2)
    _adjoint[programs(grid, phi_inv), len(p)](
        source,
        phi_inv,
        p,
        p if mask is None else mask,
        *pull or (p, p),
        part,
        *geometry,
        FLAT=grid.dim == 2,
        CORRELATE=bool(pull),
        MASKED=mask is not None,
        BLOCK=BLOCK,
        CELLS=CELLS,
        **dependent_launch(p.device),
    )
    gradient = torch.empty_like(phi_inv)
    gather[triton.cdiv(c1 * c2, BLOCK), c0, len(p) * grid.dim](
        part,
        gradient,
        *geometry[:9],
        slabs,
        SPAN1=_span(n1, c1),
        SPAN2=_span(n2, c2),
        BLOCK=BLOCK,
        CELLS=CELLS,
        **dependent_launch(p.device),
    )
    return gradient


def _span(fine: int, coarse: int) -> int:
    """Voxels, at most, whose up-sampled value depends on one point of the map."""
    return math.ceil(2 * (fine - 1) / (coarse - 1)) + 1


def _geometry(phi_inv: Tensor, grid: Grid) -> tuple[Any, ...]:
    """Sizes of both grids, map points per voxel, and voxels per unit length, each for three axes."""
    fine, coarse = ((1,) * (3 - grid.dim) + tuple(shape) for shape in (grid.shape, phi_inv.shape[2:]))
    ratios = [(c - 1) / (n - 1) if n > 1 else 1.0 for c, n in zip(coarse, fine, strict=True)]
    scales = [0.0] * (3 - grid.dim) + [1 / h for h in grid.spacing]
    return (*fine, *coarse, *ratios, *scales)


@triton.jit
def _warp(
    source,
    phi,
    out,
    target,
    mask,
    n0,
    n1,
    n2,
    c0,
    c1,
    c2,
    r0,
    r1,
    r2,
    s0,
    s1,
    s2,
    FLAT: tl.constexpr,
    SUM: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    plane, size = n1 * n2, n0 * n1 * n2
    j, k, at, inside, start, cells = columns(tl.maximum(c0 - 1, 1), n1, n2, BLOCK, CELLS)
    pair = tl.program_id(1).to(tl.int64)
    source += pair * size
    target += pair * size
    mask += pair * size
    phi += pair * (2 if FLAT else 3) * c0 * c1 * c2
    j, wj, step_j = between(j, r1, c1)
    k, wk, step_k = between(k, r2, c2)
    where = (j, wj, step_j, k, wk, step_k, c0, c1, c2, s0, s1, s2, inside)
    sum_k = tl.zeros((BLOCK,), tl.float32)
    sum_a, sum_b, sum_aa, sum_ab, sum_bb = sum_k, sum_k, sum_k, sum_k, sum_k
    wait(DEPENDENT)
    high0, high1, high2 = position(phi, start, where, FLAT)
    for turn in range(cells):
        cell = start + turn
        low0, low1, low2 = high0, high1, high2
        high0, high1, high2 = position(phi, tl.minimum(cell + 1, c0 - 1), where, FLAT)
        begin, end = voxels(cell, r0, n0, c0)
        for step in range(end - begin):
            i = begin + step
            weight = i.to(tl.float32) * r0 - cell.to(tl.float32)
            x0, x1, x2 = low0 + weight * (high0 - low0), low1 + weight * (high1 - low1), low2 + weight * (high2 - low2)
            a, _, _, _ = sample(source, x0, x1, x2, n0, n1, n2, inside, FLAT)
            if SUM:
                b = tl.load(target + i * plane + at, mask=inside, other=0.0)
                known = inside.to(tl.float32)
                if MASKED:
                    known = tl.load(mask + i * plane + at, mask=inside, other=0.0)
                sum_k += known
                sum_a += known * a
                sum_b += known * b
                sum_aa += known * a * a
                sum_ab += known * a * b
                sum_bb += known * b * b
            else:
                tl.store(out + pair * size + i * plane + at, a, mask=inside)
    if SUM:
        blocks = tl.num_programs(0)
        out += pair * 6 * blocks + tl.program_id(0)
        tl.store(out, tl.sum(sum_k))
        tl.store(out + blocks, tl.sum(sum_a))
        tl.store(out + 2 * blocks, tl.sum(sum_b))
        tl.store(out + 3 * blocks, tl.sum(sum_aa))
        tl.store(out + 4 * blocks, tl.sum(sum_ab))
        tl.store(out + 5 * blocks, tl.sum(sum_bb))


@triton.jit
def _adjoint(
    source,
    phi,
    p,
    mask,
    pull,
    factor,
    part,
    n0,
    n1,
    n2,
    c0,
    c1,
    c2,
    r0,
    r1,
    r2,
    s0,
    s1,
    s2,
    FLAT: tl.constexpr,
    CORRELATE: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """part (B, D, slabs, CELLS + 1, n1, n2): what the voxels of a program pull at the map's planes that they lie between.

    It is the sum of p grad I0, with the weights of up-sampling along the first axis. The last plane of a slab is the first
    of the next one.
    """
    dim: tl.constexpr = 2 if FLAT else 3
    plane, size = n1 * n2, n0 * n1 * n2
    j, k, at, inside, start, cells = columns(tl.maximum(c0 - 1, 1), n1, n2, BLOCK, CELLS)
    pair = tl.program_id(1).to(tl.int64)
    source += pair * size
    p += pair * size
    mask += pair * size
    phi += pair * dim * c0 * c1 * c2
    slab = start // CELLS
    parts = tl.cdiv(tl.maximum(c0 - 1, 1), CELLS) * (CELLS + 1) * plane  # of one component
    part += pair * dim * parts + slab * (CELLS + 1) * plane
    j, wj, step_j = between(j, r1, c1)
    k, wk, step_k = between(k, r2, c2)
    where = (j, wj, step_j, k, wk, step_k, c0, c1, c2, s0, s1, s2, inside)
    wait(DEPENDENT)
    if CORRELATE:
        whole = tl.load(factor + pair)
        by_b, by_a, by_one = tl.load(pull + 3 * pair), tl.load(pull + 3 * pair + 1), tl.load(pull + 3 * pair + 2)
        by_b, by_a, by_one = whole * by_b, whole * by_a, whole * by_one
    high0, high1, high2 = position(phi, start, where, FLAT)
    up0 = tl.zeros((BLOCK,), tl.float32)
    up1, up2 = up0, up0
    for turn in range(cells):
        cell = start + turn
        low0, low1, low2 = high0, high1, high2
        high0, high1, high2 = position(phi, tl.minimum(cell + 1, c0 - 1), where, FLAT)
        down0, down1, down2 = up0, up1, up2
        up0 = tl.zeros((BLOCK,), tl.float32)
        up1, up2 = up0, up0
        begin, end = voxels(cell, r0, n0, c0)
        for step in range(end - begin):
            i = begin + step
            weight = i.to(tl.float32) * r0 - cell.to(tl.float32)
            x0, x1, x2 = low0 + weight * (high0 - low0), low1 + weight * (high1 - low1), low2 + weight * (high2 - low2)
            value, slope0, slope1, slope2 = sample(source, x0, x1, x2, n0, n1, n2, inside, FLAT)
            force = tl.load(p + i * plane + at, mask=inside, other=0.0)
            if CORRELATE:
                force = by_b * force + by_a * value + by_one
            if MASKED:
                force *= tl.load(mask + i * plane + at, mask=inside, other=0.0)
            above = force * weight
            below = force - above
            down0 += below * slope0
            down1 += below * slope1
            down2 += below * slope2
            up0 += above * slope0
            up1 += above * slope1
            up2 += above * slope2
        _store(part + turn * plane + at, down0 * s0, down1 * s1, down2 * s2, parts, inside, FLAT)
    _store(part + cells * plane + at, up0 * s0, up1 * s1, up2 * s2, parts, inside, FLAT)


@triton.jit
def _store(at, value0, value1, value2, step, inside, FLAT: tl.constexpr):
    if not FLAT:
        tl.store(at, value0, mask=inside)
        at += step
    tl.store(at, value1, mask=inside)
    tl.store(at + step, value2, mask=inside)
