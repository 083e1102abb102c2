"""The transport on a CPU, compiled by numba: a stage is one pass over memory, slabs are shared among threads.

Arrays are (B, C, n0, n1, n2); in 2-D there is one slab, n0 = 1. Innermost loops run along rows, one simple statement each,
which is what compilers turn into vector instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import Any

import numba
import torch
from numba import njit, prange
from torch import Tensor

from metreg.grid import Array

OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "fastmath": {"contract", "nsz", "arcp"}}

MOST_THREADS = numba.get_num_threads()
LITTLE = 10_000
"""So many numbers in a map are little work."""


def forward(f: Tensor, v: Tensor, factors: Sequence[float], steps: int, order: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """It keeps the map at the start of every step; the stages are found again on the way back."""
    shape = f.shape
    f, z = with_slabs(f), with_slabs(v * _along_axes(factors, v))
    starts, out = f.new_empty(steps, *f.shape), torch.empty_like(f)
    starts[0] = f
    with Threads(f):
        _forward(starts.numpy(), out.numpy(), z.numpy(), f.new_empty(2, *f.shape).numpy(), order)
    return out.view(shape), (starts.view(steps, *shape),)


def backward(kept: tuple[Tensor, ...], v: Tensor, factors: Sequence[float], p: Tensor, order: int) -> tuple[Tensor, Tensor]:
    shape, scales = p.shape, _along_axes(factors, v)
    p, z = with_slabs(p).clone(), with_slabs(v * scales)
    starts, z_grad = kept[0].view(-1, *p.shape), torch.zeros_like(z)
    stages, q = p.new_empty(order - 1, *p.shape), p.new_empty(2, *p.shape)
    with Threads(p):
        _backward(starts.numpy(), z.numpy(), p.numpy(), z_grad.numpy(), stages.numpy(), q.numpy(), order)
    return p.view(shape), z_grad.view(v.shape) * scales


def _along_axes(factors: Sequence[float], v: Tensor) -> Tensor:
    return torch.tensor(factors, dtype=v.dtype).view(1, -1, *[1] * (v.dim() - 2))


def with_slabs(t: Tensor) -> Tensor:
    """(B, C, *S) as (B, C, n0, n1, n2): in 2-D one slab."""
    t = t.detach().contiguous()
    return t if t.dim() == 5 else t.unsqueeze(2)


class Threads:
    """As many threads as torch uses, and as there are parts; one for little work, which threads only slow down.

    One kernel at a time: where there is no OpenMP, numba cannot run two.
    """

    one_at_a_time = RLock()

    def __init__(self, f: Tensor, parts: int | None = None) -> None:
        """f (B, ..., n0, n1, n2) is worked on in slabs, or in so many `parts`."""
        parts = f.shape[0] * f.shape[-3] if parts is None else parts
        self.count = min(torch.get_num_threads(), MOST_THREADS, parts) if f.numel() > LITTLE else 1

    def __enter__(self) -> None:
        self.one_at_a_time.acquire()
        self.before = numba.get_num_threads()
        numba.set_num_threads(self.count)

    def __exit__(self, *error: object) -> None:
        numba.set_num_threads(self.before)
        self.one_at_a_time.release()


@njit(parallel=True, **OPTIONS)
def _forward(starts: Array, out: Array, z: Array, scratch: Array, order: int) -> None:
    steps, pairs, slabs = starts.shape[0], starts.shape[1], starts.shape[3]
    for t in range(steps):
        f = starts[t]
        g = f
        for k in range(order, 0, -1):
            into = scratch[k % 2] if k > 1 else (starts[t + 1] if t + 1 < steps else out)
            for r in prange(pairs * slabs):
                b = r // slabs
                _stage(f[b], g[b], z[b], into[b], 1 / k, r % slabs)
            g = into


@njit(parallel=True, **OPTIONS)
def _backward(starts: Array, z: Array, p: Array, z_grad: Array, stages: Array, scratch: Array, order: int) -> None:
    steps, pairs, slabs = starts.shape[0], starts.shape[1], starts.shape[3]
    for t in range(steps - 1, -1, -1):
        f = starts[t]
        for k in range(order, 1, -1):  # the stages of the step once more: stages[k - 2] is what comes out of stage k
            g = f if k == order else stages[k - 1]
            for r in prange(pairs * slabs):
                b = r // slabs
                _stage(f[b], g[b], z[b], stages[k - 2][b], 1 / k, r % slabs)
        scratch[0] = p
        for k in range(1, order + 1):
            g = f if k == order else stages[k - 1]
            q, q_next = scratch[(k - 1) % 2], scratch[k % 2]
            for r in prange(pairs * slabs):
                b = r // slabs
                _adjoint_stage(q[b], g[b], z[b], q_next[b], p[b], z_grad[b], 1 / k, r % slabs)


@njit(**OPTIONS)
def _stage(f: Array, g: Array, z: Array, out: Array, scale: float, i: int) -> None:
    """out = f + scale sum_d z_d difference_d(g), in slab i of one pair."""
    channels, n0, n1, n2 = f.shape
    axes = z.shape[0]
    s = f.dtype.type(scale)
    below, above, wi = _neighbours(i, n0, s)
    for j in range(n1):
        left, right, wj = _neighbours(j, n1, s)
        z1, z2 = z[axes - 2, i, j], z[axes - 1, i, j]
        for c in range(channels):
            o, start, row = out[c, i, j], f[c, i, j], g[c, i, j]
            row_left, row_right = g[c, i, left], g[c, i, right]
            for k in range(n2):
                o[k] = start[k] + wj * z1[k] * (row_right[k] - row_left[k])
            for k in range(1, n2 - 1):
                o[k] += s * z2[k] * (row[k + 1] - row[k - 1])
            o[0] += 2 * s * z2[0] * (row[1] - row[0])
            o[n2 - 1] += 2 * s * z2[n2 - 1] * (row[n2 - 1] - row[n2 - 2])
            if axes == 3:
                z0, row_below, row_above = z[0, i, j], g[c, below, j], g[c, above, j]
                for k in range(n2):
                    o[k] += wi * z0[k] * (row_above[k] - row_below[k])


@njit(**OPTIONS)
def _adjoint_stage(q: Array, g: Array, z: Array, q_next: Array, total: Array, z_grad: Array, scale: float, i: int) -> None:
    """q_next = scale sum_d difference_d^T (z_d q); total += q_next; z_grad_d += scale sum_c q difference_d(g)."""
    channels, n0, n1, n2 = q.shape
    axes = z.shape[0]
    s = q.dtype.type(scale)
    below, above, wi = _neighbours(i, n0, s)
    from_below, from_here_i, from_above = _adjoint_weights(i, n0, s)
    for j in range(n1):
        left, right, wj = _neighbours(j, n1, s)
        from_left, from_here_j, from_right = _adjoint_weights(j, n1, s)
        z1, z1_left, z1_right = z[axes - 2, i, j], z[axes - 2, i, left], z[axes - 2, i, right]
        z2 = z[axes - 1, i, j]
        grad1, grad2 = z_grad[axes - 2, i, j], z_grad[axes - 1, i, j]
        for c in range(channels):
            o, row = q_next[c, i, j], q[c, i, j]
            row_left, row_right = q[c, i, left], q[c, i, right]
            for k in range(n2):
                o[k] = from_left * z1_left[k] * row_left[k] - from_right * z1_right[k] * row_right[k]
            if from_here_j != 0:
                for k in range(n2):
                    o[k] += from_here_j * z1[k] * row[k]
            for k in range(2, n2):
                o[k] += s * z2[k - 1] * row[k - 1]
            for k in range(0, n2 - 2):
                o[k] -= s * z2[k + 1] * row[k + 1]
            o[0] -= 2 * s * z2[0] * row[0]
            o[1] += 2 * s * z2[0] * row[0]
            o[n2 - 1] += 2 * s * z2[n2 - 1] * row[n2 - 1]
            o[n2 - 2] -= 2 * s * z2[n2 - 1] * row[n2 - 1]
            if axes == 3:
                z0_below, z0_above, row_below, row_above = z[0, below, j], z[0, above, j], q[c, below, j], q[c, above, j]
                for k in range(n2):
                    o[k] += from_below * z0_below[k] * row_below[k] - from_above * z0_above[k] * row_above[k]
                if from_here_i != 0:
                    z0 = z[0, i, j]
                    for k in range(n2):
                        o[k] += from_here_i * z0[k] * row[k]
            t = total[c, i, j]
            for k in range(n2):
                t[k] += o[k]

            stage, stage_left, stage_right = g[c, i, j], g[c, i, left], g[c, i, right]
            for k in range(n2):
                grad1[k] += wj * row[k] * (stage_right[k] - stage_left[k])
            for k in range(1, n2 - 1):
                grad2[k] += s * row[k] * (stage[k + 1] - stage[k - 1])
            grad2[0] += 2 * s * row[0] * (stage[1] - stage[0])
            grad2[n2 - 1] += 2 * s * row[n2 - 1] * (stage[n2 - 1] - stage[n2 - 2])
            if axes == 3:
                grad0, stage_below, stage_above = z_grad[0, i, j], g[c, below, j], g[c, above, j]
                for k in range(n2):
                    grad0[k] += wi * row[k] * (stage_above[k] - stage_below[k])


@njit(inline="always", **OPTIONS)
def _neighbours(i: int, n: int, s: float) -> tuple[int, int, float]:
    """The indices before and after i, and the factor of their difference; a one-sided difference counts twice."""
    low, high = max(i - 1, 0), min(i + 1, n - 1)
    return low, high, s if high - low == 2 else 2 * s


@njit(inline="always", **OPTIONS)
def _adjoint_weights(i: int, n: int, s: float) -> tuple[float, float, float]:
    """What the values before, at and after i count in the adjoint of the difference (the last one is subtracted)."""
    before = 0 * s if i == 0 else (2 * s if i == 1 else s)
    after = 0 * s if i == n - 1 else (2 * s if i == n - 2 else s)
    return before, (-2 * s if i == 0 else (2 * s if i == n - 1 else 0 * s)), after
