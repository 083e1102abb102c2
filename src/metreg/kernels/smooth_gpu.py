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
    """v = tau sum_i sqrt(w_i) G_i * (sqrt(w_i) tau m), and <m, v> summed over each pair's points and components, (B,).

    m (B, C, *S), w (N,) or (B, N, *S), tau (*S) or None, v like m. `matrices` are the Gaussians (N, n, n) of every axis.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, m: Tensor, w: Tensor, tau: Tensor | None, matrices: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        m, w = m.contiguous(), w.contiguous()
        smooth = _smooth(m, w, tau, matrices)
        v, parts = torch.empty_like(m), m.new_empty(len(m), triton.cdiv(m[0, 0].numel(), BLOCK))
        _launch(_sum_up, m, len(matrices[0]), w, tau, smooth, v, m, parts, BACK=False)
        wants_w = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        ctx.save_for_backward(m, v, w, tau, smooth if wants_w else None, *matrices)  # type: ignore[arg-type]
        ctx.set_materialize_grads(False)
        return v, parts.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor | None, q: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Towards m it is K (p + q m) + q v, for K is its own adjoint."""
        m, v, w, tau, smooth, *matrices = ctx.saved_tensors  # type: ignore[attr-defined]
        p = torch.zeros_like(m) if p is None else p.contiguous()
        q = m.new_zeros(len(m)) if q is None else q.contiguous()
        count = len(matrices[0])
        p_smooth, m_grad = _smooth(p, w, tau, matrices, m, q), torch.empty_like(m)
        _launch(_sum_up, m, count, w, tau, p_smooth, m_grad, v, q, BACK=True)
        if smooth is None:
            return m_grad, None, None, None
        w_grad = m.new_empty(len(m), count, *m.shape[2:])
        _launch(_by_weights, m, count, w, tau, m, p, q, smooth, p_smooth, w_grad)
        return m_grad, w_grad if w.dim() > 1 else w_grad.flatten(2).sum((0, 2)), None, None


def _smooth(m: Tensor, w: Tensor, tau: Tensor | None, matrices: Sequence[Tensor], *more: Tensor) -> Tensor:
    """G_i * (sqrt(w_i) tau m) for every i, (B, N, C, *S); of m + q other where `more` are other, like m, and q (B,)."""
    batch, channels, *shape = m.shape
    f = m.new_empty(batch, len(matrices[0]), *shape, channels)
    _launch(_weighted, m, len(matrices[0]), w, tau, m, *more or (m, m), f, MORE=bool(more))
    for matrix in matrices:
        n = len(matrix[0])
        f = (f.view(*f.shape[:2], n, -1).mT @ matrix).view(*f.shape[:2], *f.shape[3:], n)
    return f


def _launch(kernel, like: Tensor, count: int, w: Tensor, tau: Tensor | None, *fields: Tensor, **constants: bool) -> None:
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
):
    """out (B, N, *S, C) = sqrt(w_i) tau (m + q other). Programs take values as they lie in `out`, not points."""
    here, inside, pair = _points(size * C, BLOCK)
    at, c = here // C, here % C
    value = tl.load(m + (pair * C + c) * size + at, mask=inside, other=0.0)
    if MORE:
        value += tl.load(q + pair) * tl.load(other + (pair * C + c) * size + at, mask=inside, other=0.0)
    if WINDOWED:
        value *= tl.load(tau + at, mask=inside, other=0.0)
    for i in tl.static_range(N):
        weight = _root(w, i, pair, at, size, inside, N, LOCAL)
        tl.store(out + (pair * N + i) * size * C + here, weight * value, mask=inside)


@triton.jit
def _sum_up(
    f,
    v,
    other,
    q,
    w,
    tau,
    size,
    C: tl.constexpr,
    N: tl.constexpr,
    LOCAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr,
    BACK: tl.constexpr,
):
    """v (B, C, *S) = tau sum_i sqrt(w_i) f_i of f (B, N, C, *S).

    On the way back q other is added, q (B,); else q (B, programs) is filled with sums of v other.
    """
    at, inside, pair = _points(size, BLOCK)
    window = tl.load(tau + at, mask=inside, other=0.0) if WINDOWED else 1.0
    weights = ()
    for i in tl.static_range(N):
        weights += (window * _root(w, i, pair, at, size, inside, N, LOCAL),)  # type: ignore[assignment]
    products = tl.zeros((BLOCK,), tl.float32)
    for c in tl.static_range(C):
        here = (pair * C + c) * size + at
        beside = tl.load(other + here, mask=inside, other=0.0)
        total = tl.zeros((BLOCK,), tl.float32)
        for i in tl.static_range(N):
            total += weights[i] * tl.load(f + ((pair * N + i) * C + c) * size + at, mask=inside, other=0.0)
        if BACK:
            total += tl.load(q + pair) * beside
        products += total * beside
        tl.store(v + here, total, mask=inside)
    if not BACK:
        tl.store(q + pair * tl.num_programs(0) + tl.program_id(0), tl.sum(products, axis=0))


@triton.jit
def _by_weights(
    m,
    p,
    q,
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
    """out (B, N, *S) = tau sum_c ((p + q m) G_i(m) + m p_smooth_i) / (2 sqrt(w_i)), p_smooth_i being G_i(p + q m)."""
    at, inside, pair = _points(size, BLOCK)
    factor = tl.load(q + pair)
    for i in tl.static_range(N):
        total = tl.zeros((BLOCK,), tl.float32)
        for c in tl.static_range(C):
            here, there = (pair * C + c) * size + at, ((pair * N + i) * C + c) * size + at
            momentum = tl.load(m + here, mask=inside, other=0.0)
            force = tl.load(p + here, mask=inside, other=0.0) + factor * momentum
            total += force * tl.load(smooth + there, mask=inside, other=0.0)
            total += momentum * tl.load(p_smooth + there, mask=inside, other=0.0)
        total /= 2 * _root(w, i, pair, at, size, inside, N, LOCAL)
        if WINDOWED:
            total *= tl.load(tau + at, mask=inside, other=0.0)
        tl.store(out + (pair * N + i) * size + at, total, mask=inside)
