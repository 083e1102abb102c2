"""Local correlation on a GPU, in Triton: window sums one axis at a time, energy and gradient in six passes.

The window sums of a, b, a^2, b^2 and a b (and of the mask) give a window's energy and its derivatives by those sums that
depend on a; the gradient at a voxel is made of the window sums of these derivatives, since windows are symmetric. Nothing
is kept from call to call. Images are (B, n0, n1, n2); in 2-D n0 = 1.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.kernels.triton.tiles import blocks_of, place

LINE = 256
"""Voxels of one block where sums run along the last axis."""
TILES = {0: (16, 1, 32), 1: (1, 16, 32)}
"""Voxels of one block along three axes, by the axis of the sums."""


class LnccOnGpu(torch.autograd.Function):
    """`lncc(a, b, mask)` with windows that are boxes.  a, b (B, 1, *S), mask (B, 1, *S) or None -> (B,).

    With `noise`, windows count by a logarithm that goes through `span`.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        a: Tensor,
        b: Tensor,
        mask: Tensor | None,
        window: int,
        tiny: float,
        flat: float,
        noise: float,
        span: float,
    ) -> Tensor:
        a, b, mask = a.contiguous(), b.contiguous(), None if mask is None else mask.contiguous()
        batch, shape = len(a), a.shape[2:]
        n0, n1, n2 = (1,) * (3 - len(shape)) + tuple(shape)
        half = window // 2
        shift = b.mean().view(1)
        masked = mask is not None
        common = {"MASKED": masked, "HALF": half}
        images = (a, b, b if mask is None else mask, shift)
        lines = (triton.cdiv(math.prod(shape), LINE), batch)
        along_lines, sums = (a.new_empty(5 + masked, batch, n0, n1, n2) for _ in range(2))
        _products[lines](*images, along_lines, n0, n1, n2, BLOCK=LINE, **common)
        _box(along_lines, sums, 1, half)
        tile = TILES[0] if n0 > 1 else TILES[1]
        blocks = blocks_of((n0, n1, n2), tile)
        slopes, parts = along_lines[:3], a.new_empty(2, batch, blocks)
        numbers, tiles = (tiny, flat, noise, span), {"T0": tile[0], "T1": tile[1], "T2": tile[2]}
        _compare[blocks, batch](sums, images[2], slopes, parts, *numbers, n0, n1, n2, LOG=noise > 0, **tiles, **common)
        energy, total = parts.sum(2, dtype=torch.float64)
        total = total.clamp(min=tiny)
        if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            spare = sums[:3]
            if n0 > 1:
                _box(slopes, spare, 0, half)
                slopes, spare = spare, slopes
            _box(slopes, spare, 1, half)
            gradient = torch.empty_like(a)
            _gradient[lines](spare, *images, gradient, n0, n1, n2, BLOCK=LINE, **common)
            ctx.save_for_backward(gradient, total.to(a.dtype))
        return (1 - energy / total).to(a.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor | None, ...]:
        gradient, total = ctx.saved_tensors  # type: ignore[attr-defined]
        return (-p / total).view(-1, *[1] * (gradient.dim() - 1)) * gradient, *[None] * 7


def _box(f: Tensor, out: Tensor, axis: int, half: int) -> None:
    """Window sums of fields (F, B, n0, n1, n2) along the first or the middle axis."""
    fields, batch, n0, n1, n2 = f.shape
    t0, t1, t2 = TILES[axis]
    blocks = blocks_of((n0, n1, n2), (t0, t1, t2))
    _window_sum[blocks, fields * batch](f, out, n0, n1, n2, AXIS=axis, HALF=half, T0=t0, T1=t1, T2=t2)


@triton.jit
def _products(a, b, mask, shift, out, n0, n1, n2, MASKED: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Sums along the last axis of k a, k b, k a a, k b b, k a b, and of k itself where there is a mask."""
    size = n0 * n1 * n2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    k = at % n2
    pair, pairs = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    a += pair * size
    b += pair * size
    mask += pair * size
    middle = tl.load(shift)
    sum_a = tl.zeros((BLOCK,), tl.float32)
    sum_b, sum_aa, sum_bb, sum_ab, sum_k = sum_a, sum_a, sum_a, sum_a, sum_a
    for t in range(-HALF, HALF + 1):
        here = inside & (k + t >= 0) & (k + t < n2)
        f, g = tl.load(a + at + t, mask=here, other=0.0) - middle, tl.load(b + at + t, mask=here, other=0.0) - middle
        known = here.to(tl.float32)
        if MASKED:
            known = tl.load(mask + at + t, mask=here, other=0.0)
        sum_a += known * f
        sum_b += known * g
        sum_aa += known * f * f
        sum_bb += known * g * g
        sum_ab += known * f * g
        sum_k += known
    out += pair * size + at
    step = pairs * size
    tl.store(out, sum_a, mask=inside)
    tl.store(out + step, sum_b, mask=inside)
    tl.store(out + 2 * step, sum_aa, mask=inside)
    tl.store(out + 3 * step, sum_bb, mask=inside)
    tl.store(out + 4 * step, sum_ab, mask=inside)
    if MASKED:
        tl.store(out + 5 * step, sum_k, mask=inside)


@triton.jit
def _window_sum(
    f,
    out,
    n0,
    n1,
    n2,
    AXIS: tl.constexpr,
    HALF: tl.constexpr,
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
):
    i, j, _, at, inside = place(n0, n1, n2, T0, T1, T2)
    field = tl.program_id(1).to(tl.int64) * n0 * n1 * n2
    index, n, stride = (i, n0, n1 * n2) if AXIS == 0 else (j, n1, n2)
    tl.store(out + field + at, _along(f + field + at, index, n, stride, inside, HALF), mask=inside)


@triton.jit
def _along(f, index, n, stride, inside, HALF: tl.constexpr):
    """The sum over a window along one axis."""
    total = tl.zeros_like(tl.load(f, mask=inside, other=0.0))
    for t in range(-HALF, HALF + 1):
        total += tl.load(f + t * stride, mask=inside & (index + t >= 0) & (index + t < n), other=0.0)
    return total


@triton.jit
def _reach(i, n, HALF: tl.constexpr):
    """Voxels of a window along one axis."""
    return tl.maximum(tl.minimum(i + HALF, n - 1) - tl.maximum(i - HALF, 0) + 1, 1).to(tl.float32)


@triton.jit
def _compare(
    sums,
    mask,
    slopes,
    parts,
    tiny,
    flat,
    noise,
    span,
    n0,
    n1,
    n2,
    LOG: tl.constexpr,
    MASKED: tl.constexpr,
    HALF: tl.constexpr,
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
):
    """The sums along the first axis; then every window's energy, and its derivatives by the sums of a, a a and a b."""
    size = n0 * n1 * n2
    i, j, k, at, inside = place(n0, n1, n2, T0, T1, T2)
    pair, pairs = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    step, stride = pairs * size, n1 * n2
    sums += pair * size + at
    share = 1 / (_reach(i, n0, HALF) * _reach(j, n1, HALF) * _reach(k, n2, HALF))
    known = inside.to(tl.float32)
    if MASKED:
        share = 1 / tl.maximum(_along(sums + 5 * step, i, n0, stride, inside, HALF), 1e-3)
        known = tl.load(mask + pair * size + at, mask=inside, other=0.0)
    mean_a = _along(sums, i, n0, stride, inside, HALF) * share
    mean_b = _along(sums + step, i, n0, stride, inside, HALF) * share
    spread_a = _along(sums + 2 * step, i, n0, stride, inside, HALF) * share - mean_a * mean_a
    spread_b = _along(sums + 3 * step, i, n0, stride, inside, HALF) * share - mean_b * mean_b
    covariance = _along(sums + 4 * step, i, n0, stride, inside, HALF) * share - mean_a * mean_b
    variance_a, variance_b = tl.maximum(spread_a, tiny), tl.maximum(spread_b, tiny)
    weight = known * variance_b / (variance_b + flat)
    slope = covariance / (variance_a * variance_b)
    correlation = slope * covariance
    energy, steep = weight * correlation, weight
    if LOG:
        left = tl.maximum(1 + noise - correlation, noise)
        energy, steep = weight * (1 - tl.log(left / noise) / span), weight / (left * span)
    by_ab = 2 * steep * slope * share
    by_aa = tl.where(spread_a > tiny, -steep * correlation / variance_a * share, 0.0)
    slopes += pair * size + at
    tl.store(slopes, -by_ab * mean_b - 2 * by_aa * mean_a, mask=inside)
    tl.store(slopes + step, by_aa, mask=inside)
    tl.store(slopes + 2 * step, by_ab, mask=inside)
    blocks = tl.num_programs(0)
    parts += pair * blocks + tl.program_id(0)
    tl.store(parts, tl.sum(tl.where(inside, energy, 0.0)))
    tl.store(parts + pairs * blocks, tl.sum(weight))


@triton.jit
def _gradient(sums, a, b, mask, shift, out, n0, n1, n2, MASKED: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """k (A + 2 a A' + b A''), the A's being sums along the last axis."""
    size = n0 * n1 * n2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    k = at % n2
    pair, pairs = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    step, here = pairs * size, pair * size + at
    middle = tl.load(shift)
    f, g = tl.load(a + here, mask=inside, other=0.0) - middle, tl.load(b + here, mask=inside, other=0.0) - middle
    value = _along(sums + here, k, n2, 1, inside, HALF) + 2 * f * _along(sums + step + here, k, n2, 1, inside, HALF)
    value += g * _along(sums + 2 * step + here, k, n2, 1, inside, HALF)
    if MASKED:
        value *= tl.load(mask + here, mask=inside, other=0.0)
    tl.store(out + here, value, mask=inside)
