"""Advection on a CPU, compiled by numba: all stages of a step in one pass over memory, slabs are shared among threads.

Arrays are (B, C, n0, n1 n2); in 2-D there is one slab, n0 = 1. A stage at slab i needs what the stage before it gave at
slabs i - 1 to i + 1, so stages follow each other slab by slab, and what lies between them stays in the cache, in rings of a
few slabs. Innermost loops run along planes, one simple statement each: such are turned into vector instructions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metreg.kernels.cpu.compile import compiled
from metreg.kernels.cpu.parallel import parallel_for, with_slabs

if TYPE_CHECKING:
    from metreg.core.grid import Array

RING = 4
"""Slabs that are remembered of a stage of which its successor needs three."""


def forward(f: Tensor, v: Tensor, factors: Sequence[float], steps: int, order: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """It keeps the map at the start of every step; the stages are found again on the way back."""
    shape, n2 = f.shape, f.shape[-1]
    f, z = _with_planes(f), _with_planes(v * _along_axes(factors, v))
    starts, out, slabs = f.new_empty(steps, *f.shape), torch.empty_like(f), len(f) * f.shape[2]
    starts[0] = f
    for here, there in itertools.pairwise((*starts.numpy(), out.numpy())):
        parallel_for(_forward, slabs, f.numel(), here, z.numpy(), there, order, n2, turns=1)
    return out.view(shape), (starts.view(steps, *shape),)


def backward(kept: tuple[Tensor, ...], v: Tensor, factors: Sequence[float], p: Tensor, order: int) -> tuple[Tensor, Tensor]:
    shape, n2, scales = p.shape, p.shape[-1], _along_axes(factors, v)
    p, z = _with_planes(p), _with_planes(v * scales)
    starts, z_grad, slabs = kept[0].view(-1, *p.shape), torch.zeros_like(z), len(p) * p.shape[2]
    q, spare = torch.empty_like(p), torch.empty_like(p)
    for f in starts.numpy()[::-1]:
        parallel_for(_backward, slabs, p.numel(), f, z.numpy(), p.numpy(), q.numpy(), z_grad.numpy(), order, n2, turns=1)
        p, q, spare = q, spare, q
    return p.view(shape), z_grad.view(v.shape) * scales


def _along_axes(factors: Sequence[float], v: Tensor) -> Tensor:
    return torch.tensor(factors, dtype=v.dtype).view(1, -1, *[1] * (v.dim() - 2))


def _with_planes(t: Tensor) -> Tensor:
    """(B, C, *S) as (B, C, n0, n1 n2)."""
    return with_slabs(t).flatten(-2)


@compiled()
def _forward(f: Array, z: Array, out: Array, order: int, n2: int, first: int, last: int) -> None:
    """One step from f to `out`, for slabs `first` to `last` of all pairs."""
    pairs, channels, n0, size = f.shape
    ring = np.empty((max(order - 1, 1), channels, RING, size), f.dtype)
    for b in range(pairs):
        low, high = max(first - b * n0, 0), min(last - b * n0, n0)
        if low >= high:
            continue
        for wave in range(low - (order - 1), high + order - 1):
            for stage in range(order):
                i, more = wave - stage, order - 1 - stage  # so many stages come after it, and need slabs beyond ours
                if max(low - more, 0) <= i < min(high + more, n0):
                    for c in range(channels):
                        g = f[b, c] if stage == 0 else ring[stage - 1, c]
                        into = out[b, c] if stage == order - 1 else ring[stage, c]
                        _stage(f[b, c, i], g, z[b], into[i % len(into)], 1 / (order - stage), i, n2)


@compiled()
def _backward(
    f: Array, z: Array, p: Array, p_before: Array, z_grad: Array, order: int, n2: int, first: int, last: int
) -> None:
    """One step back, from p to `p_before`, for slabs `first` to `last` of all pairs; f is the map before the step."""
    pairs, channels, n0, size = f.shape
    ring = np.empty((max(order - 1, 1), channels, 2 * order, size), f.dtype)  # of the stages
    back = np.empty((order, channels, RING, size), f.dtype)  # of their adjoints
    for b in range(pairs):
        low, high = max(first - b * n0, 0), min(last - b * n0, n0)
        if low >= high:
            continue
        for wave in range(low - (order - 1), high + 2 * order - 2):
            for stage in range(order - 1):
                i, more = wave - stage, order - 1 - stage
                if max(low - more, 0) <= i < min(high + more, n0):
                    for c in range(channels):
                        g = f[b, c] if stage == 0 else ring[stage - 1, c]
                        into = ring[stage, c]
                        _stage(f[b, c, i], g, z[b], into[i % len(into)], 1 / (order - stage), i, n2)
            for k in range(order):
                i, more = wave - (order - 1) - k, order - 1 - k
                if max(low - more, 0) <= i < min(high + more, n0):
                    for c in range(channels):
                        q, into = p[b, c] if k == 0 else back[k - 1, c], back[k, c]
                        o, at = into[i % len(into)], q[i % len(q)]
                        _adjoint_stage(q, z[b], o, 1 / (k + 1), i, n2)
                        if low <= i < high:
                            _sum(p[b, c, i] if k == 0 else p_before[b, c, i], o, p_before[b, c, i])
                            g = f[b, c] if k == order - 1 else ring[order - 2 - k, c]
                            _pull_at_velocity(at, g, z_grad[b], 1 / (k + 1), i, n2)


@compiled()
def _stage(f: Array, g: Array, z: Array, out: Array, scale: float, i: int, n2: int) -> None:
    """out = f + scale sum_d z_d difference_d(g), in slab i of one channel.  f, out (n1 n2,); g (slabs, n1 n2), a ring."""
    axes, n0, size = z.shape
    n1, s = size // n2, f.dtype.type(scale)
    at = g[i % len(g)]
    below, above, wi = _neighbours(i, n0, s)
    _along_rows(f, at, z[axes - 1, i], out, s, n2)
    for j, end in _alike(n1):
        left, right, wj = _neighbours(j, n1, s)
        a, b, back, on = j * n2, end * n2, (left - j) * n2, (right - j) * n2
        _add(out[a:b], wj, z[axes - 2, i, a:b], at[a + on : b + on], at[a + back : b + back])
    if axes == 3:
        _add(out, wi, z[0, i], g[above % len(g)], g[below % len(g)])


@compiled()
def _adjoint_stage(q: Array, z: Array, out: Array, scale: float, i: int, n2: int) -> None:
    """out = scale sum_d difference_d^T (z_d q), in slab i of one channel."""
    axes, n0, size = z.shape
    n1, s = size // n2, q.dtype.type(scale)
    at, z1 = q[i % len(q)], z[axes - 2, i]
    below, above, _ = _neighbours(i, n0, s)
    from_below, from_here, from_above = _adjoint_weights(i, n0, s)
    _along_rows_back(at, z[axes - 1, i], out, s, n2)
    if axes == 3:
        _add_two(out, from_below, z[0, below], q[below % len(q)], from_above, z[0, above], q[above % len(q)])
        if from_here != 0:
            _add_one(out, from_here, z[0, i], at)
    for j, end in _alike(n1):
        left, right, _ = _neighbours(j, n1, s)
        from_left, from_here, from_right = _adjoint_weights(j, n1, s)
        a, b, la, ra = j * n2, end * n2, left * n2, right * n2
        lb, rb = la + b - a, ra + b - a
        _add_two(out[a:b], from_left, z1[la:lb], at[la:lb], from_right, z1[ra:rb], at[ra:rb])
        if from_here != 0:
            _add_one(out[a:b], from_here, z1[a:b], at[a:b])


@compiled()
def _pull_at_velocity(q: Array, g: Array, z_grad: Array, scale: float, i: int, n2: int) -> None:
    """z_grad_d += scale q difference_d(g), in slab i."""
    axes, n0, size = z_grad.shape
    n1, s = size // n2, q.dtype.type(scale)
    at = g[i % len(g)]
    below, above, wi = _neighbours(i, n0, s)
    if axes == 3:
        _add(z_grad[0, i], wi, q, g[above % len(g)], g[below % len(g)])
    for j, end in _alike(n1):
        left, right, wj = _neighbours(j, n1, s)
        a, b, back, on = j * n2, end * n2, (left - j) * n2, (right - j) * n2
        _add(z_grad[axes - 2, i, a:b], wj, q[a:b], at[a + on : b + on], at[a + back : b + back])
    _add_along_rows(z_grad[axes - 1, i], s, q, at, n2)


@compiled(inline="always")
def _alike(n1: int) -> tuple[tuple[int, int], ...]:
    """Rows that are treated alike, from and to: the first two, those between, the last two."""
    inner = min(2, n1), max(n1 - 2, 2)
    return (0, 1), (1, inner[0]), inner, (inner[1], max(n1 - 1, inner[1])), (max(n1 - 1, inner[1]), n1)


@compiled()
def _sum(f: Array, g: Array, out: Array) -> None:
    for k in range(len(out)):
        out[k] = f[k] + g[k]


@compiled()
def _add(out: Array, w: float, z: Array, high: Array, low: Array) -> None:
    for k in range(len(out)):
        out[k] += w * z[k] * (high[k] - low[k])


@compiled()
def _add_one(out: Array, w: float, z: Array, q: Array) -> None:
    for k in range(len(out)):
        out[k] += w * z[k] * q[k]


@compiled()
def _add_two(out: Array, w: float, z: Array, q: Array, w_less: float, z_less: Array, q_less: Array) -> None:
    for k in range(len(out)):
        out[k] += w * z[k] * q[k] - w_less * z_less[k] * q_less[k]


@compiled()
def _along_rows(f: Array, g: Array, z: Array, out: Array, s: float, n2: int) -> None:
    """out = f + s z difference(g) along rows of n2 points: one loop over all rows, which knows no ends, and then these."""
    n = len(out)
    start, before, after, factor, inner = f[1 : n - 1], g[: n - 2], g[2:], z[1 : n - 1], out[1 : n - 1]
    for k in range(n - 2):
        inner[k] = start[k] + s * factor[k] * (after[k] - before[k])
    for a in range(0, n, n2):
        b = a + n2 - 1
        out[a] = f[a] + (s + s) * z[a] * (g[a + 1] - g[a])
        out[b] = f[b] + (s + s) * z[b] * (g[b] - g[b - 1])


@compiled()
def _along_rows_back(q: Array, z: Array, out: Array, s: float, n2: int) -> None:
    """out = s difference^T (z q) along rows of n2 points."""
    n = len(out)
    q_before, q_after, z_before, z_after, inner = q[: n - 2], q[2:], z[: n - 2], z[2:], out[1 : n - 1]
    for k in range(n - 2):
        inner[k] = s * (z_before[k] * q_before[k] - z_after[k] * q_after[k])
    for a in range(0, n, n2):
        for k in (0, 1, n2 - 2, n2 - 1):
            before, here, after = _adjoint_weights(k, n2, s)
            low, at, high = a + max(k - 1, 0), a + k, a + min(k + 1, n2 - 1)
            out[at] = before * z[low] * q[low] + here * z[at] * q[at] - after * z[high] * q[high]


@compiled()
def _add_along_rows(out: Array, s: float, z: Array, g: Array, n2: int) -> None:
    """out += s z difference(g) along rows of n2 points."""
    n = len(out)
    first, last = np.empty(n // n2, out.dtype), np.empty(n // n2, out.dtype)
    for j in range(n // n2):
        a, b = j * n2, (j + 1) * n2 - 1
        first[j] = out[a] + (s + s) * z[a] * (g[a + 1] - g[a])
        last[j] = out[b] + (s + s) * z[b] * (g[b] - g[b - 1])
    _add(out[1 : n - 1], s, z[1 : n - 1], g[2:], g[: n - 2])
    for j in range(n // n2):
        out[j * n2], out[(j + 1) * n2 - 1] = first[j], last[j]


@compiled(inline="always")
def _neighbours(i: int, n: int, s: float) -> tuple[int, int, float]:
    """The indices before and after i, and the factor of their difference; a one-sided difference counts twice."""
    low, high = max(i - 1, 0), min(i + 1, n - 1)
    return low, high, s if high - low == 2 else s + s


@compiled(inline="always")
def _adjoint_weights(i: int, n: int, s: float) -> tuple[float, float, float]:
    """What the values before, at and after i count in the adjoint of the difference (the last one is subtracted)."""
    none, twice = s - s, s + s  # of the type of s, as whole numbers are not
    before = none if i == 0 else (twice if i == 1 else s)
    after = none if i == n - 1 else (twice if i == n - 2 else s)
    return before, (-twice if i == 0 else (twice if i == n - 1 else none)), after
