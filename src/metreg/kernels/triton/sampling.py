"""Interpolation inside Triton kernels: a map between its points, an image between its voxels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def between(i, ratio, count):
    """The map's point at or below voxel i, how far i is beyond it, and the step to the next point (0 if there is none)."""
    at = i.to(tl.float32) * ratio
    low = tl.minimum(tl.floor(at), tl.maximum(count - 2, 0).to(tl.float32))
    return low.to(tl.int32), at - low, tl.minimum(count - 1, 1)


@triton.jit
def _cell(x, n):
    """Voxel at or below position x, kept inside; how far x is beyond it; whether x may move."""
    free = (x > 0) & (x < n - 1)
    x = tl.minimum(tl.maximum(x, 0.0), (n - 1).to(tl.float32))
    low = tl.minimum(tl.floor(x), tl.maximum(n - 2, 0).to(tl.float32))
    return low.to(tl.int32), x - low, free


@triton.jit
def square(source, at, n2, w1, w2, step1, step2, inside):
    """What lies between four points of one plane: its value, and its slopes along the last two axes."""
    a, b = tl.load(source + at, mask=inside, other=0.0), tl.load(source + at + step2, mask=inside, other=0.0)
    at += step1 * n2
    c, d = tl.load(source + at, mask=inside, other=0.0), tl.load(source + at + step2, mask=inside, other=0.0)
    low, high = a + w2 * (b - a), c + w2 * (d - c)
    return low + w1 * (high - low), high - low, (b - a) + w1 * (d - c - b + a)


@triton.jit
def sample(source, x0, x1, x2, n0, n1, n2, inside, FLAT: tl.constexpr):
    """Value of the source at a position in voxels, and its slope along each axis."""
    j, w1, free1 = _cell(x1, n1)
    k, w2, free2 = _cell(x2, n2)
    step1, step2 = tl.minimum(n1 - 1, 1), tl.minimum(n2 - 1, 1)
    if FLAT:
        value, slope1, slope2 = square(source, j * n2 + k, n2, w1, w2, step1, step2, inside)
        slope0 = tl.zeros_like(value)
    else:
        i, w0, free0 = _cell(x0, n0)
        at = (i * n1 + j) * n2 + k
        near, near1, near2 = square(source, at, n2, w1, w2, step1, step2, inside)
        far, far1, far2 = square(source, at + tl.minimum(n0 - 1, 1) * n1 * n2, n2, w1, w2, step1, step2, inside)
        value, slope1, slope2 = near + w0 * (far - near), near1 + w0 * (far1 - near1), near2 + w0 * (far2 - near2)
        slope0 = tl.where(free0, far - near, 0.0)
    return value, slope0, tl.where(free1, slope1, 0.0), tl.where(free2, slope2, 0.0)


@triton.jit
def first(i, ratio):
    """The first voxel whose up-sampled value depends on point i of the map, or the one before it."""
    return tl.maximum(tl.ceil((i - 1).to(tl.float32) / ratio - 1e-3), 0.0).to(tl.int32)


@triton.jit
def position(phi, c, where, FLAT: tl.constexpr):
    """Where plane c of the map sends the voxels of a column, in voxels: three components."""
    j, wj, step_j, k, wk, step_k, c0, c1, c2, s0, s1, s2, inside = where
    at = j * c2 + k
    phi += c * c1 * c2
    x0 = tl.zeros_like(wj)
    if not FLAT:
        x0, _, _ = square(phi, at, c2, wj, wk, step_j, step_k, inside)
        phi += c0 * c1 * c2
    x1, _, _ = square(phi, at, c2, wj, wk, step_j, step_k, inside)
    x2, _, _ = square(phi + c0 * c1 * c2, at, c2, wj, wk, step_j, step_k, inside)
    return x0 * s0, x1 * s1, x2 * s2


@triton.jit
def voxels(cell, ratio, n, count):
    """The first voxel of an interval between the map's points, and the one after its last."""
    begin, end = tl.ceil(cell.to(tl.float32) / ratio - 1e-3), tl.ceil((cell + 1).to(tl.float32) / ratio - 1e-3)
    return begin.to(tl.int32), tl.where(cell + 2 >= count, n, end.to(tl.int32))
