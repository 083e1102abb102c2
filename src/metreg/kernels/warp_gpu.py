"""I0 o phi_inv on a GPU, in Triton: the map is up-sampled where it is needed and never stored at the image's resolution.

Global correlation goes along: its sums are taken as the image is warped, and on the way back the image is warped again: not
even that is stored. The way back gathers, so that it gives the same bits every time: a first kernel takes p grad I0 at
every voxel and sums it onto the map's points along the last axis, a second one along the others. In 2-D n0 = 1.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.grid import Grid
from metreg.kernels.sampling_gpu import between, bilinear, first, sample
from metreg.kernels.transport_gpu import place

TILES = {2: (1, 8, 32), 3: (4, 4, 32)}
"""Voxels of one block along three axes."""
LINE = 128
"""Points of one block on the way back."""
SUMS = 6
"""Of k, k a, k b, k a a, k a b, k b b: mask k, warped a, target b."""


class Warp(torch.autograd.Function):
    """`sample(source, upsample(phi_inv, grid), grid)`.  source (B, 1, *S) on `grid`, phi_inv (B, D, *C) -> (B, 1, *S)."""

    @staticmethod
    def forward(ctx: FunctionCtx, source: Tensor, phi_inv: Tensor, grid: Grid) -> Tensor:
        source, phi_inv = source.contiguous(), phi_inv.contiguous()
        ctx.save_for_backward(source, phi_inv)
        ctx.grid = grid  # type: ignore[attr-defined]
        out = torch.empty_like(source)
        _forward(source, phi_inv, grid, out, source, None, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[None, Tensor, None]:
        source, phi_inv = ctx.saved_tensors  # type: ignore[attr-defined]
        return None, _pull(source, phi_inv, ctx.grid, p.contiguous(), None, None), None  # type: ignore[attr-defined]


class WarpedNcc(torch.autograd.Function):
    """`ncc(warp(source, phi_inv, grid), target, mask)`, nothing stored at the image's resolution.  -> (B,)"""

    @staticmethod
    def forward(
        ctx: FunctionCtx, source: Tensor, phi_inv: Tensor, target: Tensor, mask: Tensor | None, grid: Grid, tiny: float
    ) -> Tensor:
        source, phi_inv, target = source.contiguous(), phi_inv.contiguous(), target.contiguous()
        mask = None if mask is None else mask.contiguous()
        parts = source.new_empty(len(source), SUMS, _blocks(grid))
        _forward(source, phi_inv, grid, None, target, mask, parts)
        count, *sums = parts.sum(2, dtype=torch.float64).unbind(1)
        count = count.clamp(min=1)
        mean_a, mean_b, aa, ab, bb = (total / count for total in sums)
        variance_a, variance_b = (aa - mean_a**2).clamp(min=tiny), (bb - mean_b**2).clamp(min=tiny)
        slope = (ab - mean_a * mean_b) / (variance_a * variance_b)
        correlation = slope * (ab - mean_a * mean_b)
        by_b = -2 * slope / count
        by_a = torch.where(variance_a > tiny, 2 * correlation / variance_a, 0) / count
        pull = torch.stack([by_b, by_a, -by_b * mean_b - by_a * mean_a], dim=1)
        ctx.save_for_backward(source, phi_inv, target, mask, pull)  # type: ignore[arg-type]
        ctx.grid = grid  # type: ignore[attr-defined]
        return (1 - correlation).to(source.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[None, Tensor, None, None, None, None]:
        source, phi_inv, target, mask, pull = ctx.saved_tensors  # type: ignore[attr-defined]
        pull = (pull * p[:, None]).to(source.dtype).contiguous()
        gradient = _pull(source, phi_inv, ctx.grid, target, mask, pull)  # type: ignore[attr-defined]
        return None, gradient, None, None, None, None


def _blocks(grid: Grid) -> int:
    shape, tile = [1] * (3 - grid.dim) + list(grid.shape), TILES[grid.dim]
    return math.prod(triton.cdiv(n, t) for n, t in zip(shape, tile, strict=True))


def _forward(
    source: Tensor, phi_inv: Tensor, grid: Grid, out: Tensor | None, target: Tensor, mask: Tensor | None, parts: Tensor
) -> None:
    """The warped image into `out`, or, where there is none, the sums of every block into `parts` (B, SUMS, blocks)."""
    t0, t1, t2 = TILES[grid.dim]
    _warp[_blocks(grid), len(source)](
        source,
        phi_inv,
        parts if out is None else out,
        target,
        target if mask is None else mask,
        *_geometry(phi_inv, grid),
        FLAT=grid.dim == 2,
        SUM=out is None,
        MASKED=mask is not None,
        T0=t0,
        T1=t1,
        T2=t2,
    )


def _pull(source: Tensor, phi_inv: Tensor, grid: Grid, p: Tensor, mask: Tensor | None, pull: Tensor | None) -> Tensor:
    """The gradient towards the map, for p at every voxel, or for p = mask (pull_0 target + pull_1 warped + pull_2)."""
    geometry = _geometry(phi_inv, grid)
    count = phi_inv.shape[-1]
    part = p.new_empty(len(p), grid.dim, 2, *grid.shape[:-1], count)
    blocks = triton.cdiv(math.prod(part.shape[3:]), LINE)
    _adjoint[blocks, len(p)](
        source,
        phi_inv,
        p,
        p if mask is None else mask,
        p if pull is None else pull,
        part,
        *geometry,
        FLAT=grid.dim == 2,
        SPAN=math.ceil((grid.shape[-1] - 1) / (count - 1)) + 1,
        CORRELATE=pull is not None,
        MASKED=mask is not None,
        BLOCK=LINE,
    )
    gradient = torch.empty_like(phi_inv)
    spans = [1] * (2 - len(grid.shape[:-1])) + [_span(n, c) for n, c in zip(grid.shape, phi_inv.shape[2:-1], strict=False)]
    blocks = triton.cdiv(math.prod(phi_inv.shape[2:]), LINE)
    _gather[blocks, len(p) * grid.dim](part, gradient, *geometry[:8], SPAN0=spans[0], SPAN1=spans[1], BLOCK=LINE)
    return gradient


def _span(fine: int, coarse: int) -> int:
    """Voxels, at most, whose up-sampled value depends on one point of the map."""
    return math.ceil(2 * (fine - 1) / (coarse - 1)) + 1


def _geometry(phi_inv: Tensor, grid: Grid) -> tuple[float, ...]:
    """Sizes of both grids, map points per voxel, and voxels per unit length, each for three axes."""
    fine, coarse = ((1,) * (3 - grid.dim) + tuple(shape) for shape in (grid.shape, phi_inv.shape[2:]))
    ratios = [(c - 1) / (n - 1) if n > 1 else 0.0 for c, n in zip(coarse, fine, strict=True)]
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
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
):
    size, coarse = n0 * n1 * n2, c0 * c1 * c2
    i, j, k, at, inside = place(n0, n1, n2, T0, T1, T2)
    pair = tl.program_id(1).to(tl.int64)
    source += pair * size
    phi += pair * (2 if FLAT else 3) * coarse
    i, wi, step_i = between(i, r0, c0)
    j, wj, step_j = between(j, r1, c1)
    k, wk, step_k = between(k, r2, c2)
    x0 = tl.zeros((T0 * T1 * T2,), tl.float32)
    if not FLAT:
        near = bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
        far = bilinear(phi, i, j, wi, wj, step_i, step_j, k + step_k, c1, c2, inside, FLAT)
        x0 = (near + wk * (far - near)) * s0
        phi += coarse
    near = bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
    far = bilinear(phi, i, j, wi, wj, step_i, step_j, k + step_k, c1, c2, inside, FLAT)
    x1 = (near + wk * (far - near)) * s1
    phi += coarse
    near = bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT)
    far = bilinear(phi, i, j, wi, wj, step_i, step_j, k + step_k, c1, c2, inside, FLAT)
    x2 = (near + wk * (far - near)) * s2
    value, _, _, _ = sample(source, x0, x1, x2, n0, n1, n2, inside, FLAT)
    if SUM:
        b = tl.load(target + pair * size + at, mask=inside, other=0.0)
        known = inside.to(tl.float32)
        if MASKED:
            known = tl.load(mask + pair * size + at, mask=inside, other=0.0)
        blocks = tl.num_programs(0)
        out += pair * 6 * blocks + tl.program_id(0)
        tl.store(out, tl.sum(known))
        tl.store(out + blocks, tl.sum(known * value))
        tl.store(out + 2 * blocks, tl.sum(known * b))
        tl.store(out + 3 * blocks, tl.sum(known * value * value))
        tl.store(out + 4 * blocks, tl.sum(known * value * b))
        tl.store(out + 5 * blocks, tl.sum(known * b * b))
    else:
        tl.store(out + pair * size + at, value, mask=inside)


@triton.jit
def _adjoint(
    source,
    phi,
    p,
    mask,
    pull,
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
    CORRELATE: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """part (B, D, 2, n0, n1, c2): what the voxels between two points of the map along the last axis pull at the lower and
    at the upper one: the sum of p grad I0, with the weights of up-sampling."""
    dim: tl.constexpr = 2 if FLAT else 3
    size, coarse, parts = n0 * n1 * n2, c0 * c1 * c2, n0 * n1 * c2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k, line = at % c2, at // c2
    inside = (at < parts) & (k < c2 - 1)
    pair = tl.program_id(1).to(tl.int64)
    if CORRELATE:
        by_b, by_a, by_one = tl.load(pull + 3 * pair), tl.load(pull + 3 * pair + 1), tl.load(pull + 3 * pair + 2)
    source += pair * size
    p += pair * size + line * n2
    mask += pair * size + line * n2
    phi += pair * dim * coarse
    part += pair * dim * 2 * parts + at
    i, wi, step_i = between(line // n1, r0, c0)
    j, wj, step_j = between(line % n1, r1, c1)
    low0 = tl.zeros((BLOCK,), tl.float32)
    high0 = low0
    if not FLAT:
        low0 = bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT) * s0
        high0 = bilinear(phi, i, j, wi, wj, step_i, step_j, k + 1, c1, c2, inside, FLAT) * s0
        phi += coarse
    low1 = bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT) * s1
    high1 = bilinear(phi, i, j, wi, wj, step_i, step_j, k + 1, c1, c2, inside, FLAT) * s1
    phi += coarse
    low2 = bilinear(phi, i, j, wi, wj, step_i, step_j, k, c1, c2, inside, FLAT) * s2
    high2 = bilinear(phi, i, j, wi, wj, step_i, step_j, k + 1, c1, c2, inside, FLAT) * s2
    down0 = tl.zeros((BLOCK,), tl.float32)
    down1, down2, up0, up1, up2 = down0, down0, down0, down0, down0
    start = tl.ceil(k.to(tl.float32) / r2 - 1e-3).to(tl.int32)
    for step in range(SPAN):
        fine = start + step
        owner, weight, _ = between(fine, r2, c2)
        here = inside & (fine < n2) & (owner == k)
        x0, x1, x2 = low0 + weight * (high0 - low0), low1 + weight * (high1 - low1), low2 + weight * (high2 - low2)
        value, slope0, slope1, slope2 = sample(source, x0, x1, x2, n0, n1, n2, here, FLAT)
        force = tl.load(p + fine, mask=here, other=0.0)
        if CORRELATE:
            force = by_b * force + by_a * value + by_one
        if MASKED:
            force *= tl.load(mask + fine, mask=here, other=0.0)
        above = tl.where(here, force * weight, 0.0)
        below = tl.where(here, force, 0.0) - above
        down0 += below * slope0
        down1 += below * slope1
        down2 += below * slope2
        up0 += above * slope0
        up1 += above * slope1
        up2 += above * slope2
    if not FLAT:
        tl.store(part, down0 * s0, mask=inside)
        tl.store(part + parts, up0 * s0, mask=inside)
        part += 2 * parts
    tl.store(part, down1 * s1, mask=inside)
    tl.store(part + parts, up1 * s1, mask=inside)
    tl.store(part + 2 * parts, down2 * s2, mask=inside)
    tl.store(part + 3 * parts, up2 * s2, mask=inside)


@triton.jit
def _gather(part, out, n0, n1, n2, c0, c1, c2, r0, r1, SPAN0: tl.constexpr, SPAN1: tl.constexpr, BLOCK: tl.constexpr):
    """out (F, c0, c1, c2) from part (F, 2, n0, n1, c2): the sum over voxels along the first two axes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < c0 * c1 * c2
    field = tl.program_id(1).to(tl.int64)
    i, j, k = at // (c1 * c2), at // c2 % c1, at % c2
    low = part + field * 2 * n0 * n1 * c2 + k
    high = low + n0 * n1 * c2 - 1
    total = tl.zeros((BLOCK,), tl.float32)
    first0, first1 = first(i, r0), first(j, r1)
    for step0 in range(SPAN0):
        fine0 = first0 + step0
        weight0 = 1 - tl.abs(fine0.to(tl.float32) * r0 - i.to(tl.float32))
        for step1 in range(SPAN1):
            fine1 = first1 + step1
            weight = weight0 * (1 - tl.abs(fine1.to(tl.float32) * r1 - j.to(tl.float32)))
            here = inside & (fine0 < n0) & (fine1 < n1) & (weight0 > 0) & (weight > 0)
            line = (fine0 * n1 + fine1) * c2
            value = tl.load(low + line, mask=here & (k < c2 - 1), other=0.0)
            value += tl.load(high + line, mask=here & (k > 0), other=0.0)
            total += tl.where(here, weight, 0.0) * value
    tl.store(out + field * c0 * c1 * c2 + at, total, mask=inside)
