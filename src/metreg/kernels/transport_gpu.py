"""The transport on a GPU in Triton: one launch for a stage, one for its adjoint. In 2-D there is one slab, n0 = 1."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


def forward(f: Tensor, z: Tensor, steps: int, order: int) -> tuple[Tensor, Tensor]:
    starts, scratch = f.new_empty(steps, *f.shape), f.new_empty(2, *f.shape)
    starts[0] = f
    out = torch.empty_like(f)
    for t in range(steps):
        g = starts[t]
        for k in range(order, 0, -1):
            into = scratch[k % 2] if k > 1 else (starts[t + 1] if t + 1 < steps else out)
            _launch(_stage, f, starts[t], g, z, into, 1 / k)
            g = into
    return out, starts


def backward(starts: Tensor, z: Tensor, p: Tensor, order: int) -> tuple[Tensor, Tensor]:
    p, z_grad = p.contiguous(), torch.zeros_like(z)
    stages, scratch, totals = (p.new_empty(count, *p.shape) for count in (order - 1, 2, 2))
    for t in range(len(starts) - 1, -1, -1):
        f = starts[t]
        for k in range(order, 1, -1):  # the stages of the step once more: stages[k - 2] is what comes out of stage k
            _launch(_stage, f, f, f if k == order else stages[k - 1], z, stages[k - 2], 1 / k)
        q, total = p, totals[t % 2]
        for k in range(1, order + 1):
            g, q_next = f if k == order else stages[k - 1], scratch[k % 2]
            _launch(_adjoint_stage, p, q, g, z, q_next, p if k == 1 else total, total, z_grad, 1 / k)
            q = q_next
        p = total
    return p, z_grad


def _launch(kernel: Any, like: Tensor, *arguments: Any) -> None:
    batch, channels, *shape = like.shape
    n0, n1, n2 = [1] * (3 - len(shape)) + shape
    grid = (triton.cdiv(math.prod(shape), BLOCK), batch)
    kernel[grid](*arguments, n0, n1, n2, CHANNELS=channels, AXES=len(shape), BLOCK=BLOCK)


@triton.jit
def _stage(f, g, z, out, scale, n0, n1, n2, CHANNELS: tl.constexpr, AXES: tl.constexpr, BLOCK: tl.constexpr):
    """out = f + scale sum_d z_d difference_d(g)."""
    size = n0 * n1 * n2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    pair = tl.program_id(1).to(tl.int64)
    z += pair * AXES * size + at
    field = pair * CHANNELS * size + at
    for c in tl.static_range(CHANNELS):
        here = field + c * size
        value = tl.load(f + here, mask=inside)
        for d in tl.static_range(AXES):
            stride, low, high, weight = _neighbours(at, d + 3 - AXES, n0, n1, n2)
            slope = tl.load(g + here + high * stride, mask=inside) - tl.load(g + here - low * stride, mask=inside)
            value += scale * weight * tl.load(z + d * size, mask=inside) * slope
        tl.store(out + here, value, mask=inside)


@triton.jit
def _adjoint_stage(
    q,
    g,
    z,
    q_next,
    total_in,
    total_out,
    z_grad,
    scale,
    n0,
    n1,
    n2,
    CHANNELS: tl.constexpr,
    AXES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """q_next = scale sum_d difference_d^T (z_d q), total += q_next, z_grad_d += scale sum_c q difference_d(g)."""
    size = n0 * n1 * n2
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    pair = tl.program_id(1).to(tl.int64)
    z += pair * AXES * size + at
    z_grad += pair * AXES * size + at
    field = pair * CHANNELS * size + at
    for c in tl.static_range(CHANNELS):
        here = field + c * size
        value = tl.zeros((BLOCK,), tl.float32)
        for d in tl.static_range(AXES):
            stride, low, high, _ = _neighbours(at, d + 3 - AXES, n0, n1, n2)
            before, middle, after = _adjoint_weights(at, d + 3 - AXES, n0, n1, n2)
            z_d = z + d * size
            value += before * _product(z_d - low * stride, q + here - low * stride, inside)
            value -= after * _product(z_d + high * stride, q + here + high * stride, inside)
            value += middle * _product(z_d, q + here, inside)
        value *= scale
        tl.store(q_next + here, value, mask=inside)
        tl.store(total_out + here, tl.load(total_in + here, mask=inside) + value, mask=inside)
    for d in tl.static_range(AXES):
        stride, low, high, weight = _neighbours(at, d + 3 - AXES, n0, n1, n2)
        gradient = tl.load(z_grad + d * size, mask=inside)
        for c in tl.static_range(CHANNELS):
            here = field + c * size
            slope = tl.load(g + here + high * stride, mask=inside) - tl.load(g + here - low * stride, mask=inside)
            gradient += scale * weight * tl.load(q + here, mask=inside) * slope
        tl.store(z_grad + d * size, gradient, mask=inside)


@triton.jit
def _position(at, axis: tl.constexpr, n0, n1, n2):
    """Distance between neighbours along an axis, index along it, and its length."""
    if axis == 0:
        return n1 * n2, at // (n1 * n2), n0
    elif axis == 1:
        return n2, (at // n2) % n1, n1
    else:
        return 1, at % n2, n2


@triton.jit
def _neighbours(at, axis: tl.constexpr, n0, n1, n2):
    """Distance between neighbours, steps to the ones before and after (0 at an end), factor of their difference."""
    stride, i, n = _position(at, axis, n0, n1, n2)
    low, high = (i > 0).to(tl.int32), (i < n - 1).to(tl.int32)
    return stride, low, high, tl.where(low + high == 2, 1.0, 2.0)


@triton.jit
def _adjoint_weights(at, axis: tl.constexpr, n0, n1, n2):
    """What the values before, at and after count in the adjoint of the difference (the last one is subtracted)."""
    _, i, n = _position(at, axis, n0, n1, n2)
    before = tl.where(i == 0, 0.0, tl.where(i == 1, 2.0, 1.0))
    after = tl.where(i == n - 1, 0.0, tl.where(i == n - 2, 2.0, 1.0))
    return before, tl.where(i == 0, -2.0, tl.where(i == n - 1, 2.0, 0.0)), after


@triton.jit
def _product(a, b, inside):
    return tl.load(a, mask=inside, other=0.0) * tl.load(b, mask=inside, other=0.0)
