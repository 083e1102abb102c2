"""v = tau K (tau m) with the separable Gaussians on a GPU: matrix products, and Triton for the weights around them.

Every product contracts the first axis and puts it last, so that all are alike, and after as many as there are axes all are
in their order, before them the components, which were last. Fields are (B, C, *S).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

BLOCK = 512


class Sharp(torch.autograd.Function):
    """tau sum_i sqrt(w_i) G_i * (sqrt(w_i) tau m).  m (B, C, *S), w (N,) or (B, N, *S), tau (*S) or None -> like m.

    `matrices` are the Gaussians (N, n, n) of every axis.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, m: Tensor, w: Tensor, tau: Tensor | None, matrices: Sequence[Tensor]) -> Tensor:
        m, w = m.contiguous(), w.contiguous()
        smooth = _smooth(m, w, tau, matrices)
        wants_w = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        ctx.save_for_backward(m, w, tau, smooth if wants_w else None, *matrices)  # type: ignore[arg-type]
        return _summed(smooth, w, tau)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        m, w, tau, smooth, *matrices = ctx.saved_tensors  # type: ignore[attr-defined]
        p = p.contiguous()
        p_smooth = _smooth(p, w, tau, matrices)
        m_grad = _summed(p_smooth, w, tau)
        if smooth is None:
            return m_grad, None, None, None
        w_grad = m.new_empty(len(m), len(matrices[0]), *m.shape[2:])
        _launch(_by_weights, w_grad.shape[:2], m, w, tau, m, p, smooth, p_smooth, w_grad)
        return m_grad, w_grad if w.dim() > 1 else w_grad.flatten(2).sum((0, 2)), None, None


def _smooth(m: Tensor, w: Tensor, tau: Tensor | None, matrices: Sequence[Tensor]) -> Tensor:
    """G_i * (sqrt(w_i) tau m) for every i, (B, N, C, *S)."""
    batch, channels, *shape = m.shape
    f = m.new_empty(batch, len(matrices[0]), *shape, channels)
    _launch(_weighted, f.shape[:2], m, w, tau, m, f)
    for matrix in matrices:
        n = len(matrix[0])
        f = (f.view(*f.shape[:2], n, -1).mT @ matrix).view(*f.shape[:2], *f.shape[3:], n)
    return f


def _summed(smooth: Tensor, w: Tensor, tau: Tensor | None) -> Tensor:
    """tau sum_i sqrt(w_i) of what was smoothed."""
    batch, count, channels, *shape = smooth.shape
    v = smooth.new_empty(batch, channels, *shape)
    _launch(_sum_up, (batch, count), v, w, tau, smooth, v)
    return v


def _launch(kernel, counts: Sequence[int], like: Tensor, w: Tensor, tau: Tensor | None, *fields: Tensor) -> None:
    """`like` is (B, C, *S); there are N = counts[1] weights."""
    size = math.prod(like.shape[2:])
    kernel[triton.cdiv(size * (like.shape[1] if kernel is _weighted else 1), BLOCK), counts[0]](
        *fields,
        w,
        w if tau is None else tau,
        size,
        C=like.shape[1],
        N=counts[1],
        LOCAL=w.dim() > 1,
        WINDOWED=tau is not None,
        BLOCK=BLOCK,
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
    out,
    w,
    tau,
    size,
    C: tl.constexpr,
    N: tl.constexpr,
    LOCAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out (B, N, *S, C) = sqrt(w_i) tau m. Programs take values as they lie in `out`, not points."""
    here, inside, pair = _points(size * C, BLOCK)
    at, c = here // C, here % C
    value = tl.load(m + (pair * C + c) * size + at, mask=inside, other=0.0)
    if WINDOWED:
        value *= tl.load(tau + at, mask=inside, other=0.0)
    for i in tl.static_range(N):
        weight = _root(w, i, pair, at, size, inside, N, LOCAL)
        tl.store(out + (pair * N + i) * size * C + here, weight * value, mask=inside)


@triton.jit
def _sum_up(
    f,
    v,
    w,
    tau,
    size,
    C: tl.constexpr,
    N: tl.constexpr,
    LOCAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """v (B, C, *S) = tau sum_i sqrt(w_i) f_i of f (B, N, C, *S)."""
    at, inside, pair = _points(size, BLOCK)
    window = tl.load(tau + at, mask=inside, other=0.0) if WINDOWED else 1.0
    weights = ()
    for i in tl.static_range(N):
        weights += (window * _root(w, i, pair, at, size, inside, N, LOCAL),)  # type: ignore[assignment]
    for c in tl.static_range(C):
        total = tl.zeros((BLOCK,), tl.float32)
        for i in tl.static_range(N):
            total += weights[i] * tl.load(f + ((pair * N + i) * C + c) * size + at, mask=inside, other=0.0)
        tl.store(v + (pair * C + c) * size + at, total, mask=inside)


@triton.jit
def _by_weights(
    m,
    p,
    smooth,
    p_smooth,
    out,
    w,
    tau,
    size,
    C: tl.constexpr,
    N: tl.constexpr,
    LOCAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out (B, N, *S) = tau sum_c (p G_i(m) + m G_i(p)) / (2 sqrt(w_i))."""
    at, inside, pair = _points(size, BLOCK)
    for i in tl.static_range(N):
        total = tl.zeros((BLOCK,), tl.float32)
        for c in tl.static_range(C):
            here, there = (pair * C + c) * size + at, ((pair * N + i) * C + c) * size + at
            total += tl.load(p + here, mask=inside, other=0.0) * tl.load(smooth + there, mask=inside, other=0.0)
            total += tl.load(m + here, mask=inside, other=0.0) * tl.load(p_smooth + there, mask=inside, other=0.0)
        total /= 2 * _root(w, i, pair, at, size, inside, N, LOCAL)
        if WINDOWED:
            total *= tl.load(tau + at, mask=inside, other=0.0)
        tl.store(out + (pair * N + i) * size + at, total, mask=inside)
