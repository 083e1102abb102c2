"""Advection on a GPU in Triton: one launch for a stage, one for its adjoint. In 2-D there is one plane, n0 = 1.

Maps are small beside a GPU's memory: all stages are kept, none is found again on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from metreg.kernels.triton.dependent_launch import dependent_launch, wait

STAGE, BACK = (2, 256, 4), (1, 256, 8)
"""Planes, points of each side by side in memory, and warps of a program of a kernel."""

TOGETHER = 2**21
"""Pairs are carried together up to so many numbers in their maps: what stages hand on then stays in the cache."""


def forward(f: Tensor, v: Tensor, factors: Sequence[float], steps: int, order: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """It keeps f and what comes out of every stage but the last, which is the map, (steps order - 1, B, C, *S)."""
    stages, end = f.new_empty(steps * order - 1, *f.shape), torch.empty_like(f)
    for part in _parts(f):
        outs = [*stages[:, part], end[part]]
        for t in range(steps):
            start = g = outs[t * order - 1] if t else f[part]
            for j in range(order):
                out = outs[t * order + j]
                how = dependent_launch(f.device, t + j > 0)  # v must be there before the first of them starts
                _launch(_stage, STAGE, g, factors, start, g, v[part], out, 1 / (order - j), **how)
                g = out
    return end, (f, stages)


def backward(kept: tuple[Tensor, ...], v: Tensor, factors: Sequence[float], p: Tensor, order: int) -> tuple[Tensor, Tensor]:
    f, stages = kept
    f_grad, v_grad = torch.empty_like(f), torch.empty_like(v)
    for part in _parts(f):
        _back([f[part], *stages[:, part]], v[part], factors, p[part], f_grad[part], v_grad[part], order)
    return f_grad, v_grad


def _back(
    maps: list[Tensor],
    v: Tensor,
    factors: Sequence[float],
    p: Tensor,
    f_grad: Tensor,
    v_grad: Tensor,
    order: int,
) -> None:
    """A step back is a chain of adjoint stages that begins with p; its sum is p one step earlier."""
    chain = p.new_empty(order, *p.shape)
    for t in range(len(maps) - order, -1, -order):
        q = p if order > 1 else p.clone()  # what is written must not be what neighbours are read from
        for k in range(1, order + 1):
            g, out = maps[t + order - k], f_grad if t == 0 and k == order else chain[k % order]
            end = {"ORDER": order, "LAST": k == order, "FIRST": t == len(maps) - order and k == 1}
            end |= dependent_launch(p.device)
            _launch(_adjoint_stage, BACK, p, factors, q, v, g, out, v_grad, p, chain, 1 / k, **end)
            q = out
        p = chain[0]


def _parts(f: Tensor) -> list[slice]:
    """Pairs that are carried together."""
    together = max(1, TOGETHER // f[0].numel())
    return [slice(start, start + together) for start in range(0, len(f), together)]


def _launch(
    kernel: Any, tile: tuple[int, int, int], like: Tensor, factors: Sequence[float], *arguments: Any, **constants: int
) -> None:
    """z_d = factors_d v_d is what a step makes of the velocity."""
    batch, channels, *shape = like.shape
    n0, n1, n2 = [1] * (3 - len(shape)) + shape
    scales = [0.0] * (3 - len(shape)) + list(factors)
    planes, block, warps = min(tile[0], n0), *tile[1:]
    kernel[triton.cdiv(n1 * n2, block), triton.cdiv(n0, planes), batch](
        *arguments,
        *scales,
        n0,
        n1,
        n2,
        CHANNELS=channels,
        AXES=len(shape),
        PLANES=planes,
        BLOCK=block,
        num_warps=warps,
        **constants,
    )


@triton.jit
def _place(n0, n1, n2, PLANES: tl.constexpr, BLOCK: tl.constexpr):
    """The points of a program: indices, where they lie, and which there are (others repeat the last of an axis)."""
    lane = tl.arange(0, PLANES * BLOCK)
    row, column = tl.program_id(1) * PLANES + lane // BLOCK, tl.program_id(0) * BLOCK + lane % BLOCK
    i, at = tl.minimum(row, n0 - 1), tl.minimum(column, n1 * n2 - 1)
    return i, at // n2, at % n2, i * n1 * n2 + at, (row == i) & (column == at)


@triton.jit
def _stage(
    f,
    g,
    v,
    out,
    scale,
    s0,
    s1,
    s2,
    n0,
    n1,
    n2,
    CHANNELS: tl.constexpr,
    AXES: tl.constexpr,
    PLANES: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out = f + scale sum_d z_d difference_d(g)."""
    plane, size = n1 * n2, n0 * n1 * n2
    i, j, k, at, inside = _place(n0, n1, n2, PLANES, BLOCK)
    pair = tl.program_id(2).to(tl.int64)
    low1, high1, weight1 = _neighbours(j, n1)
    low2, high2, weight2 = _neighbours(k, n2)
    low1, high1, low2, high2 = at - low1 * n2, at + high1 * n2, at - low2, at + high2
    weight1 *= scale * s1
    weight2 *= scale * s2
    to_v = v + pair * AXES * size
    z1 = weight1 * tl.load(to_v + (AXES - 2) * size + at)
    z2 = weight2 * tl.load(to_v + (AXES - 1) * size + at)
    if AXES == 3:
        low0, high0, weight0 = _neighbours(i, n0)
        z0 = scale * s0 * weight0 * tl.load(to_v + at)
    wait(DEPENDENT)
    for c in tl.static_range(CHANNELS):
        here = (pair * CHANNELS + c) * size
        value = tl.load(f + here + at)
        value += z1 * _slope(g + here, low1, high1) + z2 * _slope(g + here, low2, high2)
        if AXES == 3:
            value += z0 * _slope(g + here, at - low0 * plane, at + high0 * plane)
        tl.store(out + here + at, value, mask=inside)


@triton.jit
def _adjoint_stage(
    q,
    v,
    g,
    out,
    v_grad,
    p,
    chain,
    scale,
    s0,
    s1,
    s2,
    n0,
    n1,
    n2,
    CHANNELS: tl.constexpr,
    AXES: tl.constexpr,
    PLANES: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
    ORDER: tl.constexpr,
    LAST: tl.constexpr,
    FIRST: tl.constexpr,
):
    """out = scale sum_d difference_d^T (z_d q), and v_grad_d += scale factor_d sum_c q difference_d(g).

    The last one adds p and all of the chain (ORDER, B, C, *S) but its first place, which is for the sum.
    """
    plane, size = n1 * n2, n0 * n1 * n2
    i, j, k, at, inside = _place(n0, n1, n2, PLANES, BLOCK)
    pair = tl.program_id(2).to(tl.int64)
    step = tl.num_programs(2).to(tl.int64) * CHANNELS * size
    low1, high1, below1, middle1, above1 = _spread(j, n1, scale * s1)
    low2, high2, below2, middle2, above2 = _spread(k, n2, scale * s2)
    low1, high1, low2, high2 = at - low1 * n2, at + high1 * n2, at - low2, at + high2
    to_v, to_grad = v + pair * AXES * size, v_grad + pair * AXES * size
    v1, v2 = to_v + (AXES - 2) * size, to_v + (AXES - 1) * size
    before1 = below1 * tl.load(v1 + low1)
    after1 = above1 * tl.load(v1 + high1)
    before2 = below2 * tl.load(v2 + low2)
    after2 = above2 * tl.load(v2 + high2)
    middle = middle1 * tl.load(v1 + at, mask=middle1 != 0, other=0.0)
    middle += middle2 * tl.load(v2 + at, mask=middle2 != 0, other=0.0)
    if AXES == 3:
        low0, high0, below0, middle0, above0 = _spread(i, n0, scale * s0)
        low0, high0 = at - low0 * plane, at + high0 * plane
        before0 = below0 * tl.load(to_v + low0)
        after0 = above0 * tl.load(to_v + high0)
        middle += middle0 * tl.load(to_v + at, mask=middle0 != 0, other=0.0)
    wait(DEPENDENT)
    by_z1 = tl.zeros((PLANES * BLOCK,), tl.float32)
    by_z0, by_z2 = by_z1, by_z1
    for c in tl.static_range(CHANNELS):
        here = (pair * CHANNELS + c) * size
        to_q, to_g = q + here, g + here
        force = tl.load(to_q + at)
        value = middle * force
        value += before1 * tl.load(to_q + low1) - after1 * tl.load(to_q + high1)
        value += before2 * tl.load(to_q + low2) - after2 * tl.load(to_q + high2)
        by_z1 += force * _slope_once(to_g, low1, high1)
        by_z2 += force * _slope_once(to_g, low2, high2)
        if AXES == 3:
            value += before0 * tl.load(to_q + low0) - after0 * tl.load(to_q + high0)
            by_z0 += force * _slope_once(to_g, low0, high0)
        if LAST:
            value += tl.load(p + here + at)
            for earlier in tl.static_range(1, ORDER):
                value += tl.load(chain + earlier * step + here + at)
        tl.store(out + here + at, value, mask=inside)
    _add(to_grad + (AXES - 2) * size + at, scale * s1 * _one_sided(j, n1) * by_z1, inside, FIRST)
    _add(to_grad + (AXES - 1) * size + at, scale * s2 * _one_sided(k, n2) * by_z2, inside, FIRST)
    if AXES == 3:
        _add(to_grad + at, scale * s0 * _one_sided(i, n0) * by_z0, inside, FIRST)


@triton.jit
def _add(into, value, inside, FIRST: tl.constexpr):
    if not FIRST:
        value += tl.load(into)
    tl.store(into, value, mask=inside)


@triton.jit
def _slope_once(g, before, after):
    return tl.load(g + after, eviction_policy="evict_first") - tl.load(g + before, eviction_policy="evict_first")


@triton.jit
def _slope(g, before, after):
    """The difference of the values at two places."""
    return tl.load(g + after) - tl.load(g + before)


@triton.jit
def _one_sided(i, n):
    """The factor of the difference of the points around i, which at an end is that of i and its one neighbour."""
    return tl.where((i == 0) | (i == n - 1), 2.0, 1.0)


@triton.jit
def _neighbours(i, n):
    """Steps to the points before and after i (0 at an end), and the factor of their difference."""
    return (i > 0).to(tl.int32), (i < n - 1).to(tl.int32), _one_sided(i, n)


@triton.jit
def _spread(i, n, factor):
    """Steps to the points before and after i, and how much of z q there and at i comes to i: `difference` transposed."""
    low, high = (i > 0).to(tl.int32), (i < n - 1).to(tl.int32)
    below = tl.where(i == 0, 0.0, tl.where(i == 1, 2.0, 1.0))
    above = tl.where(i == n - 1, 0.0, tl.where(i == n - 2, 2.0, 1.0))
    middle = tl.where(i == 0, -2.0, tl.where(i == n - 1, 2.0, 0.0))
    return low, high, factor * below, factor * middle, factor * above
