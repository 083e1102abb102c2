"""I0 o phi_inv on a GPU, in Triton: the map is up-sampled where it is needed and never stored at the image's resolution.

The way back gathers, so that it gives the same bits every time: a first kernel takes p grad I0 at every voxel and sums it
onto the map's points along the last axis; the other axes are small matrix products. In 2-D n0 = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.grid import Grid

BLOCK = 256


class Warp(torch.autograd.Function):
    """`sample(source, upsample(phi_inv, grid), grid)`.  source (B, 1, *S) on `grid`, phi_inv (B, D, *C) -> (B, 1, *S).

    `up` holds the matrices of up-sampling along all axes but the last, None where nothing is to be done.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, source: Tensor, phi_inv: Tensor, grid: Grid, up: Sequence[Tensor | None]) -> Tensor:
        source, phi_inv = source.contiguous(), phi_inv.contiguous()
        ctx.save_for_backward(source, phi_inv)
        ctx.grid, ctx.up = grid, up  # type: ignore[attr-defined]
        out = torch.empty_like(source)
        blocks = triton.cdiv(math.prod(grid.shape), BLOCK)
        _warp[(blocks, len(source))](source, phi_inv, out, *_geometry(phi_inv, grid), FLAT=grid.dim == 2, BLOCK=BLOCK)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[None, Tensor, None, None]:
        source, phi_inv = ctx.saved_tensors  # type: ignore[attr-defined]
        grid: Grid = ctx.grid  # type: ignore[attr-defined]
        count = phi_inv.shape[-1]
        part = p.new_empty(len(p), grid.dim, *grid.shape[:-1], count)
        blocks = triton.cdiv(math.prod(part.shape[2:]), BLOCK)
        _adjoint[(blocks, len(p))](
            source,
            phi_inv,
            p.contiguous(),
            part,
            *_geometry(phi_inv, grid),
            FLAT=grid.dim == 2,
            SPAN=math.ceil(2 * (grid.shape[-1] - 1) / (count - 1)) + 1,
            BLOCK=BLOCK,
        )
        for axis, matrix in enumerate(ctx.up, start=2):  # type: ignore[attr-defined]
            if matrix is not None:
                head, n, tail = part.shape[:axis], part.shape[axis], part.shape[axis + 1 :]
                part = (matrix.T @ part.reshape(-1, n, math.prod(tail))).view(*head, matrix.shape[1], *tail)
        return None, part, None, None


def _geometry(phi_inv: Tensor, grid: Grid) -> tuple[float, ...]:
    """Sizes of both grids, map points per voxel, and voxels per unit length, each for three axes."""
    fine, coarse = ((1,) * (3 - grid.dim) + tuple(shape) for shape in (grid.shape, phi_inv.shape[2:]))
    ratios = [(c - 1) / (n - 1) if n > 1 else 0.0 for c, n in zip(coarse, fine, strict=True)]
    scales = [0.0] * (3 - grid.dim) + [1 / h for h in grid.spacing]
    return (*fine, *coarse, *ratios, *scales)


@triton.jit
def _between(i, ratio, count):
    """The map's point at or below voxel i, how far i is beyond it, and the step to the next point (0 if there is none)."""
    at = i.to(tl.float32) * ratio
    low = tl.minimum(tl.floor(at), tl.maximum(count - 2, 0).to(tl.float32))
    return low.to(tl.int32), at - low, tl.minimum(count - 1, 1)


@triton.jit
def _bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT: tl.constexpr):
    """One component of the map at its own index k along the last axis, interpolated along the others."""
    at = phi + (i * c1 + j) * c2 + k
    near, far = tl.load(at, mask=inside, other=0.0), tl.load(at + step_j * c2, mask=inside, other=0.0)
    value = near + wj * (far - near)
    if not FLAT:
        at += step_i * c1 * c2
        near, far = tl.load(at, mask=inside, other=0.0), tl.load(at + step_j * c2, mask=inside, other=0.0)
        value += wi * (near + wj * (far - near) - value)
    return value


@triton.jit
def _cell(x, n):
    """Voxel at or below position x, kept inside; how far x is beyond it; whether x may move."""
    free = (x > 0) & (x < n - 1)
    x = tl.minimum(tl.maximum(x, 0.0), (n - 1).to(tl.float32))
    low = tl.minimum(tl.floor(x), tl.maximum(n - 2, 0).to(tl.float32))
    return low.to(tl.int32), x - low, free


@triton.jit
def _square(source, at, n2, w1, w2, step1, step2, inside):
    """The source between four voxels of one slab: its value, and its slopes along the last two axes."""
    a, b = tl.load(source + at, mask=inside, other=0.0), tl.load(source + at + step2, mask=inside, other=0.0)
    at += step1 * n2
    c, d = tl.load(source + at, mask=inside, other=0.0), tl.load(source + at + step2, mask=inside, other=0.0)
    low, high = a + w2 * (b - a), c + w2 * (d - c)
    return low + w1 * (high - low), high - low, (b - a) + w1 * (d - c - b + a)


@triton.jit
def _sample(source, x0, x1, x2, n0, n1, n2, inside, FLAT: tl.constexpr):
    """Value of the source at a position in voxels, and its slope along each axis."""
    j, w1, free1 = _cell(x1, n1)
    k, w2, free2 = _cell(x2, n2)
    step1, step2 = tl.minimum(n1 - 1, 1), tl.minimum(n2 - 1, 1)
    if FLAT:
        value, slope1, slope2 = _square(source, j * n2 + k, n2, w1, w2, step1, step2, inside)
        slope0 = tl.zeros_like(value)
    else:
        i, w0, free0 = _cell(x0, n0)
        at = (i * n1 + j) * n2 + k
        near, near1, near2 = _square(source, at, n2, w1, w2, step1, step2, inside)
        far, far1, far2 = _square(source, at + tl.minimum(n0 - 1, 1) * n1 * n2, n2, w1, w2, step1, step2, inside)
        value, slope1, slope2 = near + w0 * (far - near), near1 + w0 * (far1 - near1), near2 + w0 * (far2 - near2)
        slope0 = tl.where(free0, far - near, 0.0)
    return value, slope0, tl.where(free1, slope1, 0.0), tl.where(free2, slope2, 0.0)


@triton.jit
def _warp(
    source,
    phi,
    out,
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
    BLOCK: tl.constexpr,
):
    size, coarse = n0 * n1 * n2, c0 * c1 * c2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    pair = tl.program_id(1).to(tl.int64)
    source += pair * size
    phi += pair * (2 if FLAT else 3) * coarse
    i, wi, step_i = _between(at // (n1 * n2), r0, c0)
    j, wj, step_j = _between((at // n2) % n1, r1, c1)
    k, wk, step_k = _between(at % n2, r2, c2)
    x0 = tl.zeros((BLOCK,), tl.float32)
    if not FLAT:
        near = _bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
        far = _bilinear(phi, i, j, wi, wj, step_i, step_j, k + step_k, c1, c2, inside, FLAT)
        x0 = (near + wk * (far - near)) * s0
        phi += coarse
    near = _bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
    far = _bilinear(phi, i, j, wi, wj, step_i, step_j, k + step_k, c1, c2, inside, FLAT)
    x1 = (near + wk * (far - near)) * s1
    phi += coarse
    near = _bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
    far = _bilinear(phi, i, j, wi, wj, step_i, step_j, k + step_k, c1, c2, inside, FLAT)
    x2 = (near + wk * (far - near)) * s2
    value, _, _, _ = _sample(source, x0, x1, x2, n0, n1, n2, inside, FLAT)
    tl.store(out + pair * size + at, value, mask=inside)


@triton.jit
def _three(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT: tl.constexpr):
    """One component of the map at the points k - 1, k and k + 1 (at an end: the end itself)."""
    here = _bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
    below = _bilinear(phi, i, j, wi, wj, step_i, step_j, tl.maximum(k - 1, 0), c1, c2, inside, FLAT)
    above = _bilinear(phi, i, j, wi, wj, step_i, step_j, tl.minimum(k + 1, c2 - 1), c1, c2, inside, FLAT)
    return below, here, above


@triton.jit
def _adjoint(
    source,
    phi,
    p,
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
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """part (B, D, n0, n1, c2): sum over voxels along the last axis of p grad I0, with the weights of up-sampling."""
    size, coarse, parts = n0 * n1 * n2, c0 * c1 * c2, n0 * n1 * c2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < parts
    pair = tl.program_id(1).to(tl.int64)
    source += pair * size
    p += pair * size
    phi += pair * (2 if FLAT else 3) * coarse
    part += pair * (2 if FLAT else 3) * parts + at
    k, line = at % c2, at // c2
    i, wi, step_i = _between(line // n1, r0, c0)
    j, wj, step_j = _between(line % n1, r1, c1)
    b0 = tl.zeros((BLOCK,), tl.float32)
    h0, a0 = b0, b0
    if not FLAT:
        b0, h0, a0 = _three(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
        phi += coarse
    b1, h1, a1 = _three(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
    phi += coarse
    b2, h2, a2 = _three(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
    total0 = tl.zeros((BLOCK,), tl.float32)
    total1, total2 = total0, total0
    first = tl.maximum(tl.ceil((k - 1).to(tl.float32) / r2 - 1e-3), 0.0).to(tl.int32)
    for step in range(SPAN):
        fine = first + step
        beyond = fine.to(tl.float32) * r2 - k.to(tl.float32)
        weight = 1 - tl.abs(beyond)
        here = inside & (fine < n2) & (weight > 0)
        forward, backward = tl.maximum(beyond, 0.0), tl.maximum(-beyond, 0.0)
        x0 = (h0 + forward * (a0 - h0) + backward * (b0 - h0)) * s0
        x1 = (h1 + forward * (a1 - h1) + backward * (b1 - h1)) * s1
        x2 = (h2 + forward * (a2 - h2) + backward * (b2 - h2)) * s2
        _, slope0, slope1, slope2 = _sample(source, x0, x1, x2, n0, n1, n2, here, FLAT)
        pull = tl.load(p + line * n2 + fine, mask=here, other=0.0) * weight
        total0 += pull * slope0
        total1 += pull * slope1
        total2 += pull * slope2
    if not FLAT:
        tl.store(part, total0 * s0, mask=inside)
        part += parts
    tl.store(part, total1 * s1, mask=inside)
    tl.store(part + parts, total2 * s2, mask=inside)
