"""v = tau K (tau m) with the separable Gaussians on a GPU: matrix products, and Triton for the weights around them.

Every product contracts the first axis and puts it last, so that all are alike, and after as many as there are axes all are
in their order, before them the components, which were last. Fields are (B, C, *S).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.kernels.triton.dependent_launch import dependent_launch, wait

BLOCK = 512


class Sharp(torch.autograd.Function):
    """v = tau sum_i sqrt(w_i) G_i * (sqrt(w_i) tau m), its length <m, v> and its speed of each pair (B,).

    m (B, D, *S), w (N,) or (B, N, *S), tau (*S) or None, v like m. `matrices` are the Gaussians (N, n, n) of every axis.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, m: Tensor, w: Tensor, tau: Tensor | None, matrices: Sequence[Tensor], spacing: Sequence[float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        m, w = m.contiguous(), w.contiguous()
        smooth = _smooth(m, w, tau, matrices)
        v, parts = torch.empty_like(m), m.new_empty(len(m), 2, triton.cdiv(m[0, 0].numel(), BLOCK))
        volume, per_step = math.prod(spacing), [1 / h for h in spacing] + [0.0] * (3 - len(spacing))
        how = dependent_launch(m.device)
        _launch(_sum_up, m, len(matrices[0]), w, tau, smooth, m, v, parts, volume, *per_step, **how)
        norm, speed = m.new_empty(2, len(m))
        _finish[(len(m),)](parts, norm, speed, parts.shape[2], BLOCK=BLOCK, **how)
        wants_w = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        ctx.save_for_backward(m, v, w, tau, smooth if wants_w else None, *matrices)  # type: ignore[arg-type]
        ctx.volume = volume  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(speed)
        ctx.set_materialize_grads(False)
        return v, norm, speed

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor | None, q: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        """Towards m it is K (p + q m) + q v, q times the volume, for K is its own adjoint."""
        m, v, w, tau, smooth, *matrices = ctx.saved_tensors  # type: ignore[attr-defined]
        p = torch.zeros_like(m) if p is None else p.contiguous()
        q = m.new_zeros(len(m)) if q is None else q.contiguous()
        count, volume, m_grad = len(matrices[0]), ctx.volume, torch.empty_like(m)  # type: ignore[attr-defined]
        p_smooth = _smooth(p, w, tau, matrices, m, q, volume)
        w_grad = None if smooth is None else m.new_empty(len(m), count, *m.shape[2:])
        kept = (p_smooth, m) if smooth is None else (smooth, w_grad)  # whatever, where it is not looked at
        _launch(_pull_back, m, count, w, tau, m, v, p, q, volume, p_smooth, *kept, m_grad, BY_W=w_grad is not None)
        if w_grad is not None and w.dim() == 1:
            w_grad = w_grad.flatten(2).sum((0, 2))
        return m_grad, w_grad, None, None, None


def _smooth(m: Tensor, w: Tensor, tau: Tensor | None, matrices: Sequence[Tensor], *more: Any) -> Tensor:
    """G_i * (sqrt(w_i) tau m) for every i, (B, N, C, *S).

    Where `more` are other, like m, q (B,), and a number, it is that of m + number q other.
    """
    batch, channels, *shape = m.shape
    f = m.new_empty(batch, len(matrices[0]), *shape, channels)
    _launch(
        _weighted, m, len(matrices[0]), w, tau, m, *more or (m, m, 0.0), f, MORE=bool(more), **dependent_launch(m.device)
    )
    for matrix in matrices:
        n = len(matrix[0])
        f = (f.view(*f.shape[:2], n, -1).mT @ matrix).view(*f.shape[:2], *f.shape[3:], n)
    return f


def _launch(kernel, like: Tensor, count: int, w: Tensor, tau: Tensor | None, *fields: Any, **constants: bool) -> None:
    """`like` is (B, C, *S); there are N = `count` weights."""
    batch, channels, *shape = like.shape
    size = math.prod(shape)
    kernel[triton.cdiv(size * (channels if kernel is _weighted else 1), BLOCK), batch](
        *fields,
        w,
        w if tau is None else tau,
        size,
        C=channels,
        N=count,
        LOCAL=w.dim() > 1,
        WINDOWED=tau is not None,
        BLOCK=BLOCK,
        **constants,
    )


@triton.jit
def _points(size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return at, at < size, tl.program_id(1).to(tl.int64)


@triton.jit
def _root(w, i, pair, at, size, inside, N: tl.constexpr, LOCAL: tl.constexpr):
    """The root of weight i, which is a number or a field."""
    if LOCAL:
        return tl.sqrt_rn(tl.load(w + (pair * N + i) * size + at, mask=inside, other=1.0))
    else:
        return tl.sqrt_rn(tl.load(w + i))


@triton.jit
def _weighted(
    m,
    other,
    q,
    volume,
    out,
    w,
    tau,
    size,
    C: tl.constexpr,
    N: tl.constexpr,
    LOCAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
    MORE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out (B, N, *S, C) = sqrt(w_i) tau (m + volume q other). Programs take values as they lie in `out`, not points."""
    here, inside, pair = _points(size * C, BLOCK)
    at, c = here // C, here % C
    wait(DEPENDENT)
    value = tl.load(m + (pair * C + c) * size + at, mask=inside, other=0.0)
    if MORE:
        value += volume * tl.load(q + pair) * tl.load(other + (pair * C + c) * size + at, mask=inside, other=0.0)
    if WINDOWED:
        value *= tl.load(tau + at, mask=inside, other=0.0)
    for i in tl.static_range(N):
        weight = _root(w, i, pair, at, size, inside, N, LOCAL)
        tl.store(out + (pair * N + i) * size * C + here, weight * value, mask=inside)


@triton.jit
def _sum_up(
    f,
    m,
    v,
    parts,
    volume,
    s0,
    s1,
    s2,
    w,
    tau,
    size,
    C: tl.constexpr,
    N: tl.constexpr,
    LOCAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """v (B, C, *S) = tau sum_i sqrt(w_i) f_i of f (B, N, C, *S); parts (B, 2, programs): sums of m v times the volume, and
    how fast v is at its fastest, steps per unit time."""
    at, inside, pair = _points(size, BLOCK)
    per_step = (s0, s1, s2)
    wait(DEPENDENT)
    window = tl.load(tau + at, mask=inside, other=0.0) if WINDOWED else 1.0
    weights = ()
    for i in tl.static_range(N):
        weights += (window * _root(w, i, pair, at, size, inside, N, LOCAL),)  # type: ignore[assignment]
    product = tl.zeros((BLOCK,), tl.float32)
    speed = product
    for c in tl.static_range(C):
        here = (pair * C + c) * size + at
        total = tl.zeros((BLOCK,), tl.float32)
        for i in tl.static_range(N):
            total += weights[i] * tl.load(f + ((pair * N + i) * C + c) * size + at, mask=inside, other=0.0)
        product += total * tl.load(m + here, mask=inside, other=0.0)
        speed += per_step[c] * tl.abs(total)
        tl.store(v + here, total, mask=inside)
    speed = tl.where(speed == speed, speed, float("inf"))  # maxima take no notice of what is not a number
    parts += 2 * pair * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts, volume * tl.sum(product, axis=0))
    tl.store(parts + tl.num_programs(0), tl.max(tl.where(inside, speed, 0.0), axis=0))


@triton.jit
def _finish(parts, norm, speed, count, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """What the programs found, put together."""
    pair = tl.program_id(0).to(tl.int64)
    parts += 2 * pair * count
    total = tl.zeros((BLOCK,), tl.float32)
    most = total
    wait(DEPENDENT)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(parts + at, mask=at < count, other=0.0)
        most = tl.maximum(most, tl.load(parts + count + at, mask=at < count, other=0.0))
    tl.store(norm + pair, tl.sum(total, axis=0))
    tl.store(speed + pair, tl.max(most, axis=0))


@triton.jit
def _pull_back(
    m,
    v,
    p,
    q,
    volume,
    p_smooth,
    smooth,
    w_grad,
    m_grad,
    w,
    tau,
    size,
    C: tl.constexpr,
    N: tl.constexpr,
    LOCAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
    BY_W: tl.constexpr,
):
    """m_grad (B, C, *S) = tau sum_i sqrt(w_i) p_smooth_i + q v, p_smooth_i being G_i(p + q m), (B, N, C, *S).

    w_grad (B, N, *S) = tau sum_c ((p + q m) G_i(m) + m p_smooth_i) / (2 sqrt(w_i)), G_i(m) being `smooth`, (B, N, C, *S).
    Here q is times the volume.
    """
    at, inside, pair = _points(size, BLOCK)
    window = tl.load(tau + at, mask=inside, other=0.0) if WINDOWED else 1.0
    factor = volume * tl.load(q + pair)
    momenta, forces, totals = (), (), ()
    for c in tl.static_range(C):
        here = (pair * C + c) * size + at
        momentum = tl.load(m + here, mask=inside, other=0.0)
        momenta += (momentum,)  # type: ignore[assignment]
        forces += (tl.load(p + here, mask=inside, other=0.0) + factor * momentum,)  # type: ignore[assignment]
        totals += (factor * tl.load(v + here, mask=inside, other=0.0),)  # type: ignore[assignment]
    for i in tl.static_range(N):
        root = _root(w, i, pair, at, size, inside, N, LOCAL)
        by_w = tl.zeros((BLOCK,), tl.float32)
        sums = ()
        for c in tl.static_range(C):
            there = ((pair * N + i) * C + c) * size + at
            value = tl.load(p_smooth + there, mask=inside, other=0.0)
            sums += (totals[c] + window * root * value,)  # type: ignore[assignment]
            if BY_W:
                by_w += momenta[c] * value + forces[c] * tl.load(smooth + there, mask=inside, other=0.0)
        totals = sums
        if BY_W:
            tl.store(w_grad + (pair * N + i) * size + at, window * by_w / (2 * root), mask=inside)
    for c in tl.static_range(C):
        tl.store(m_grad + (pair * C + c) * size + at, totals[c], mask=inside)
