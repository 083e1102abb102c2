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

TILES = {2: (1, 8, 32), 3: (2, 8, 16)}
"""Points of one block along three axes, in 2-D and 3-D: neighbours are read once for many."""
WARPS = 4
"""Of one block."""


def forward(f: Tensor, v: Tensor, factors: Sequence[float], steps: int, order: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """It keeps what comes out of every stage of every step, (steps, order, B, C, *S); the last is the map."""
    stages = f.new_empty(steps, order, *f.shape)
    start = f
    for t in range(steps):
        g = start
        for j in range(order):
            _launch(_stage, f, factors, start, g, v, stages[t, j], 1 / (order - j))
            g = stages[t, j]
        start = g
    return start, (f, stages)


def backward(kept: tuple[Tensor, ...], v: Tensor, factors: Sequence[float], p: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """A step back is a chain of adjoint stages, then one launch for what the step gives to the velocity."""
    f, stages = kept
    steps, p = len(stages), p.contiguous()
    v_grad, chain, sums = torch.empty_like(v), p.new_empty(order - 1, *p.shape), p.new_empty(2, *p.shape)
    for t in range(steps - 1, -1, -1):
        total = sums[t % 2]
        for k in range(1, order):
            q = p if k == 1 else chain[k - 2]
            _launch(_adjoint_stage, p, factors, q, v, chain[k - 1], 1 / k, p, chain, ORDER=order, LAST=False)
        q = p if order == 1 else chain[-1]
        _launch(_adjoint_stage, p, factors, q, v, total, 1 / order, p, chain, ORDER=order, LAST=True)
        start = stages[t - 1, -1] if t else f
        _launch(_by_velocity, p, factors, p, chain, start, stages[t], v_grad, ORDER=order, FIRST=t == steps - 1)
        p = total
    return p, v_grad


def _launch(kernel: Any, like: Tensor, factors: Sequence[float], *arguments: Any, **constants: int) -> None:
    """z_d = factors_d v_d is what a step makes of the velocity."""
    batch, channels, *shape = like.shape
    n0, n1, n2 = [1] * (3 - len(shape)) + shape
    scales = [0.0] * (3 - len(shape)) + list(factors)
    t0, t1, t2 = TILES[len(shape)]
    blocks = triton.cdiv(n0, t0) * triton.cdiv(n1, t1) * triton.cdiv(n2, t2)
    kernel[blocks, batch](
        *arguments,
        *scales,
        n0,
        n1,
        n2,
        CHANNELS=channels,
        AXES=len(shape),
        T0=t0,
        T1=t1,
        T2=t2,
        num_warps=WARPS,
        **constants,
    )


@triton.jit
def place(n0, n1, n2, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr):
    """Indices along three axes of the points of this program's tile, where they lie in memory, and which there are."""
    blocks1, blocks2 = tl.cdiv(n1, T1), tl.cdiv(n2, T2)
    block = tl.program_id(0)
    lane = tl.arange(0, T0 * T1 * T2)
    i = block // (blocks1 * blocks2) * T0 + lane // (T1 * T2)
    j = block // blocks2 % blocks1 * T1 + lane // T2 % T1
    k = block % blocks2 * T2 + lane % T2
    return i, j, k, (i * n1 + j) * n2 + k, (i < n0) & (j < n1) & (k < n2)


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
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
):
    """out = f + scale sum_d z_d difference_d(g)."""
    size = n0 * n1 * n2
    i, j, k, at, inside = place(n0, n1, n2, T0, T1, T2)
    pair = tl.program_id(1).to(tl.int64)
    v += pair * AXES * size + at
    field = pair * CHANNELS * size + at
    low1, high1, weight1 = _neighbours(j, n1)
    low2, high2, weight2 = _neighbours(k, n2)
    z1 = scale * s1 * weight1 * tl.load(v + (AXES - 2) * size, mask=inside, other=0.0)
    z2 = scale * s2 * weight2 * tl.load(v + (AXES - 1) * size, mask=inside, other=0.0)
    if AXES == 3:
        low0, high0, weight0 = _neighbours(i, n0)
        z0 = scale * s0 * weight0 * tl.load(v, mask=inside, other=0.0)
    for c in tl.static_range(CHANNELS):
        here = field + c * size
        value = tl.load(f + here, mask=inside, other=0.0)
        value += z1 * _slope(g + here, low1 * n2, high1 * n2, inside) + z2 * _slope(g + here, low2, high2, inside)
        if AXES == 3:
            value += z0 * _slope(g + here, low0 * n1 * n2, high0 * n1 * n2, inside)
        tl.store(out + here, value, mask=inside)


@triton.jit
def _adjoint_stage(
    q,
    v,
    out,
    scale,
    p,
    chain,
    s0,
    s1,
    s2,
    n0,
    n1,
    n2,
    CHANNELS: tl.constexpr,
    AXES: tl.constexpr,
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
    ORDER: tl.constexpr,
    LAST: tl.constexpr,
):
    """out = scale sum_d difference_d^T (z_d q); the last of a chain adds p and all the chain (ORDER - 1, B, C, *S)."""
    size = n0 * n1 * n2
    i, j, k, at, inside = place(n0, n1, n2, T0, T1, T2)
    pair = tl.program_id(1).to(tl.int64)
    v += pair * AXES * size + at
    field = pair * CHANNELS * size + at
    step = tl.num_programs(1).to(tl.int64) * CHANNELS * size
    low1, high1, before1, middle, after1 = _spread(v + (AXES - 2) * size, s1, j, n1, n2, inside)
    low2, high2, before2, middle2, after2 = _spread(v + (AXES - 1) * size, s2, k, n2, 1, inside)
    middle += middle2
    if AXES == 3:
        low0, high0, before0, middle0, after0 = _spread(v, s0, i, n0, n1 * n2, inside)
        middle += middle0
    at_border = inside & (middle != 0)
    for c in tl.static_range(CHANNELS):
        here = field + c * size
        value = middle * tl.load(q + here, mask=at_border, other=0.0)
        value += before1 * tl.load(q + here - low1, mask=inside, other=0.0)
        value -= after1 * tl.load(q + here + high1, mask=inside, other=0.0)
        value += before2 * tl.load(q + here - low2, mask=inside, other=0.0)
        value -= after2 * tl.load(q + here + high2, mask=inside, other=0.0)
        if AXES == 3:
            value += before0 * tl.load(q + here - low0, mask=inside, other=0.0)
            value -= after0 * tl.load(q + here + high0, mask=inside, other=0.0)
        value *= scale
        if LAST:
            value += tl.load(p + here, mask=inside, other=0.0)
            for earlier in tl.static_range(ORDER - 1):
                value += tl.load(chain + earlier * step + here, mask=inside, other=0.0)
        tl.store(out + here, value, mask=inside)


@triton.jit
def _by_velocity(
    p,
    chain,
    start,
    stages,
    v_grad,
    s0,
    s1,
    s2,
    n0,
    n1,
    n2,
    CHANNELS: tl.constexpr,
    AXES: tl.constexpr,
    T0: tl.constexpr,
    T1: tl.constexpr,
    T2: tl.constexpr,
    ORDER: tl.constexpr,
    FIRST: tl.constexpr,
):
    """v_grad_d += factor_d sum_k 1/k sum_c q_(k-1) difference_d(g_k), q_0 = p and the chain, g_k what goes into stage k."""
    size = n0 * n1 * n2
    i, j, k, at, inside = place(n0, n1, n2, T0, T1, T2)
    pair = tl.program_id(1).to(tl.int64)
    v_grad += pair * AXES * size + at
    field = pair * CHANNELS * size + at
    step = tl.num_programs(1).to(tl.int64) * CHANNELS * size
    low1, high1, weight1 = _neighbours(j, n1)
    low2, high2, weight2 = _neighbours(k, n2)
    by_z1 = tl.zeros((T0 * T1 * T2,), tl.float32)
    by_z0, by_z2 = by_z1, by_z1
    if AXES == 3:
        low0, high0, weight0 = _neighbours(i, n0)
    for c in tl.static_range(CHANNELS):
        here = field + c * size
        for stage in tl.static_range(ORDER):  # its scale is 1 / (stage + 1)
            q = tl.load((p if stage == 0 else chain + (stage - 1) * step) + here, mask=inside, other=0.0) / (stage + 1)
            g = (start if stage == ORDER - 1 else stages + (ORDER - 2 - stage) * step) + here
            by_z1 += q * _slope(g, low1 * n2, high1 * n2, inside)
            by_z2 += q * _slope(g, low2, high2, inside)
            if AXES == 3:
                by_z0 += q * _slope(g, low0 * n1 * n2, high0 * n1 * n2, inside)
    _add(v_grad + (AXES - 2) * size, s1 * weight1 * by_z1, inside, FIRST)
    _add(v_grad + (AXES - 1) * size, s2 * weight2 * by_z2, inside, FIRST)
    if AXES == 3:
        _add(v_grad, s0 * weight0 * by_z0, inside, FIRST)


@triton.jit
def _add(into, value, inside, FIRST: tl.constexpr):
    if not FIRST:
        value += tl.load(into, mask=inside, other=0.0)
    tl.store(into, value, mask=inside)


@triton.jit
def _slope(g, before, after, inside):
    """The difference of the values so many places after and before."""
    return tl.load(g + after, mask=inside, other=0.0) - tl.load(g - before, mask=inside, other=0.0)


@triton.jit
def _neighbours(i, n):
    """Steps to the points before and after i (0 at an end), and the factor of their difference."""
    low, high = (i > 0).to(tl.int32), (i < n - 1).to(tl.int32)
    return low, high, tl.where(low + high == 2, 1.0, 2.0)


@triton.jit
def _spread(v, factor, i, n, stride, inside):
    """Along one axis: the way to the points before and after, and what z makes of the values before, at and after."""
    low, high = (i > 0).to(tl.int32) * stride, (i < n - 1).to(tl.int32) * stride
    before = tl.where(i == 0, 0.0, tl.where(i == 1, 2.0, 1.0)) * tl.load(v - low, mask=inside, other=0.0)
    after = tl.where(i == n - 1, 0.0, tl.where(i == n - 2, 2.0, 1.0)) * tl.load(v + high, mask=inside, other=0.0)
    end = inside & ((i == 0) | (i == n - 1))
    middle = tl.where(i == 0, -2.0, 2.0) * tl.load(v, mask=end, other=0.0)
    return low, high, factor * before, factor * middle, factor * after
