"""The transport on a GPU in Triton: one launch for a stage, one for its adjoint. In 2-D there is one slab, n0 = 1.

Maps are small beside a GPU's memory: all stages are kept, none is found again on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, MANY = 256, 128
"""Points of a plane that one program takes, side by side in memory; the second where it holds much for every point."""


def forward(f: Tensor, v: Tensor, factors: Sequence[float], steps: int, order: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """It keeps f and what comes out of every stage of every step, (1 + steps order, B, C, *S); the last is the map."""
    maps = f.new_empty(1 + steps * order, *f.shape)
    maps[0] = f
    for t in range(0, steps * order, order):
        for j in range(order):
            _launch(_stage, f, factors, maps[t], maps[t + j], v, maps[t + j + 1], 1 / (order - j))
    return maps[-1].clone(), (maps,)  # the map may be kept when the stages are not


def backward(kept: tuple[Tensor, ...], v: Tensor, factors: Sequence[float], p: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """A step back is a chain of adjoint stages that begins with p, what the step gives to the velocity, and their sum."""
    (maps,) = kept
    v_grad, chain = torch.empty_like(v), p.new_empty(order, *p.shape)
    chain[0] = p
    last = len(maps) - 1 - order
    for t in range(last, -1, -order):
        for k in range(1, order):
            _launch(_adjoint_stage, p, factors, chain[k - 1], v, chain[k], 1 / k, chain, ORDER=order, LAST=False)
        _launch(_by_velocity, p, factors, chain, maps[t], v_grad, ORDER=order, FIRST=t == last)
        end = chain[-1] if order > 1 else chain[0].clone()  # what is written must not be what neighbours are read from
        _launch(_adjoint_stage, p, factors, end, v, chain[0], 1 / order, chain, ORDER=order, LAST=True)
    return chain[0], v_grad


def _launch(kernel: Any, like: Tensor, factors: Sequence[float], *arguments: Any, **constants: int) -> None:
    """z_d = factors_d v_d is what a step makes of the velocity."""
    batch, channels, *shape = like.shape
    n0, n1, n2 = [1] * (3 - len(shape)) + shape
    scales = [0.0] * (3 - len(shape)) + list(factors)
    block = MANY if kernel is _by_velocity else BLOCK
    kernel[triton.cdiv(n1 * n2, block), n0, batch](
        *arguments,
        *scales,
        n0,
        n1,
        n2,
        CHANNELS=channels,
        AXES=len(shape),
        BLOCK=block,
        **constants,
    )


@triton.jit
def _place(n1, n2, BLOCK: tl.constexpr):
    """A program's plane, and its points there: indices, where they lie, and which there are (others repeat the last)."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.minimum(lane, n1 * n2 - 1)
    return tl.program_id(1), at // n2, at % n2, at, lane == at


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
    BLOCK: tl.constexpr,
):
    """out = f + scale sum_d z_d difference_d(g)."""
    plane, size = n1 * n2, n0 * n1 * n2
    i, j, k, at, inside = _place(n1, n2, BLOCK)
    pair = tl.program_id(2).to(tl.int64)
    low1, high1, weight1 = _neighbours(j, n1)
    low2, high2, weight2 = _neighbours(k, n2)
    low1, high1, low2, high2 = at - low1 * n2, at + high1 * n2, at - low2, at + high2
    weight1 *= scale * s1
    weight2 *= scale * s2
    to_v = v + pair * AXES * size + i * plane
    z1 = weight1 * tl.load(to_v + (AXES - 2) * size + at)
    z2 = weight2 * tl.load(to_v + (AXES - 1) * size + at)
    if AXES == 3:
        low0, high0, weight0 = _neighbours(i, n0)
        z0 = scale * s0 * weight0 * tl.load(to_v + at)
    for c in tl.static_range(CHANNELS):
        here = (pair * CHANNELS + c) * size + i * plane
        value = tl.load(f + here + at)
        value += z1 * _slope(g + here, low1, high1) + z2 * _slope(g + here, low2, high2)
        if AXES == 3:
            value += z0 * _slope(g + here, at - low0 * plane, at + high0 * plane)
        tl.store(out + here + at, value, mask=inside)


@triton.jit
def _adjoint_stage(
    q,
    v,
    out,
    scale,
    chain,
    s0,
    s1,
    s2,
    n0,
    n1,
    n2,
    CHANNELS: tl.constexpr,
    AXES: tl.constexpr,
    BLOCK: tl.constexpr,
    ORDER: tl.constexpr,
    LAST: tl.constexpr,
):
    """out = scale sum_d difference_d^T (z_d q); the last one adds all the chain (ORDER, B, C, *S)."""
    plane, size = n1 * n2, n0 * n1 * n2
    i, j, k, at, inside = _place(n1, n2, BLOCK)
    pair = tl.program_id(2).to(tl.int64)
    step = tl.num_programs(2).to(tl.int64) * CHANNELS * size
    low1, high1, below1, middle1, above1 = _spread(j, n1, scale * s1)
    low2, high2, below2, middle2, above2 = _spread(k, n2, scale * s2)
    low1, high1, low2, high2 = at - low1 * n2, at + high1 * n2, at - low2, at + high2
    to_v = v + pair * AXES * size + i * plane
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
        middle += middle0 * tl.load(to_v + at)
    at_border = middle != 0
    for c in tl.static_range(CHANNELS):
        here = (pair * CHANNELS + c) * size + i * plane
        to_q = q + here
        value = middle * tl.load(to_q + at, mask=at_border, other=0.0)
        value += before1 * tl.load(to_q + low1)
        value -= after1 * tl.load(to_q + high1)
        value += before2 * tl.load(to_q + low2)
        value -= after2 * tl.load(to_q + high2)
        if AXES == 3:
            value += before0 * tl.load(to_q + low0)
            value -= after0 * tl.load(to_q + high0)
        if LAST:
            for earlier in tl.static_range(ORDER):
                value += tl.load(chain + earlier * step + here + at)
        tl.store(out + here + at, value, mask=inside)


@triton.jit
def _by_velocity(
    chain,
    maps,
    v_grad,
    s0,
    s1,
    s2,
    n0,
    n1,
    n2,
    CHANNELS: tl.constexpr,
    AXES: tl.constexpr,
    BLOCK: tl.constexpr,
    ORDER: tl.constexpr,
    FIRST: tl.constexpr,
):
    """v_grad_d += factor_d sum_k 1/k sum_c chain_(k-1) difference_d(g_k), g_k the map k stages before the step's end."""
    plane, size = n1 * n2, n0 * n1 * n2
    i, j, k, at, inside = _place(n1, n2, BLOCK)
    pair = tl.program_id(2).to(tl.int64)
    step = tl.num_programs(2).to(tl.int64) * CHANNELS * size
    low1, high1, weight1 = _neighbours(j, n1)
    low2, high2, weight2 = _neighbours(k, n2)
    low1, high1, low2, high2 = at - low1 * n2, at + high1 * n2, at - low2, at + high2
    by_z1 = tl.zeros((BLOCK,), tl.float32)
    by_z0, by_z2 = by_z1, by_z1
    low0, high0, weight0 = _neighbours(i, n0)
    low0, high0 = at - low0 * plane, at + high0 * plane
    for stage in range(ORDER):  # loops are not unrolled: a program would hold too much
        share = 1 / (stage + 1.0)
        for c in range(CHANNELS):
            here = (pair * CHANNELS + c) * size + i * plane
            force = share * tl.load(chain + stage * step + here + at)
            g = maps + (ORDER - 1 - stage) * step + here
            by_z1 += force * _slope(g, low1, high1)
            by_z2 += force * _slope(g, low2, high2)
            if AXES == 3:
                by_z0 += force * _slope(g, low0, high0)
    out = v_grad + pair * AXES * size + i * plane
    _add(out + (AXES - 2) * size + at, s1 * weight1 * by_z1, inside, FIRST)
    _add(out + (AXES - 1) * size + at, s2 * weight2 * by_z2, inside, FIRST)
    if AXES == 3:
        _add(out + at, s0 * weight0 * by_z0, inside, FIRST)


@triton.jit
def _add(into, value, inside, FIRST: tl.constexpr):
    if not FIRST:
        value += tl.load(into)
    tl.store(into, value, mask=inside)


@triton.jit
def _slope(g, before, after):
    """The difference of the values at two places."""
    return tl.load(g + after) - tl.load(g + before)


@triton.jit
def _neighbours(i, n):
    """Steps to the points before and after i (0 at an end), and the factor of their difference."""
    low, high = (i > 0).to(tl.int32), (i < n - 1).to(tl.int32)
    return low, high, tl.where(low + high == 2, 1.0, 2.0)


@triton.jit
def _spread(i, n, factor):
    """Steps to the points before and after i, and how much of z q there and at i comes to i: `difference` transposed."""
    low, high = (i > 0).to(tl.int32), (i < n - 1).to(tl.int32)
    below = tl.where(i == 0, 0.0, tl.where(i == 1, 2.0, 1.0))
    above = tl.where(i == n - 1, 0.0, tl.where(i == n - 2, 2.0, 1.0))
    middle = tl.where(i == 0, -2.0, tl.where(i == n - 1, 2.0, 0.0))
    return low, high, factor * below, factor * middle, factor * above
