"""Convolutions with few channels on a GPU, in Triton: matrix products whose left side is gathered on the fly.

Fields are channels-last in memory, (B, n0, n1, n2, C); in 2-D n0 = 1. Then the values of all channels at all taps along the
last axis lie in a row, and one product covers them; a loop runs over the taps along the other axes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

ROWS = 64
"""Voxels of a block."""
SPLITS = 64
"""Parts in which the sum over voxels is done for the gradient of the kernel; then they are added, always in one order."""


class Convolve(torch.autograd.Function):
    """x (B, C, *S) with a kernel (K, C, w, ...), zeros beyond the border, size kept. The result is channels-last."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, kernel: Tensor) -> Tensor:
        rows = _channels_last(x)
        ctx.save_for_backward(rows, kernel)
        ctx.shape = x.shape  # type: ignore[attr-defined]
        return _convolve(rows, _as_matrices(kernel), kernel.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, kernel = ctx.saved_tensors  # type: ignore[attr-defined]
        wants_x, wants_kernel = ctx.needs_input_grad  # type: ignore[attr-defined]
        p = _channels_last(p)
        x_grad, kernel_grad = None, None
        if wants_x:  # the adjoint: the kernel turned round
            turned = kernel.flip(tuple(range(2, kernel.dim()))).transpose(0, 1)
            x_grad = _convolve(p, _as_matrices(turned), turned.shape)
        if wants_kernel:
            kernel_grad = _correlate(rows, p, kernel.shape)
        return x_grad, kernel_grad


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    found: Tensor = Convolve.apply(x, kernel)  # type: ignore[no-untyped-call]
    return found


def _channels_last(x: Tensor) -> Tensor:
    """(B, C, *S) -> (B, *S, C), contiguous."""
    return x.detach().movedim(1, -1).contiguous()


def _as_matrices(kernel: Tensor) -> Tensor:
    """(K, C, w, ..., w) -> (w^(D-1), w C, K): for each tap along the other axes, taps and channels to channels."""
    width = kernel.shape[-1]
    return kernel.detach().movedim((0, 1), (-1, -2)).reshape(-1, width * kernel.shape[1], kernel.shape[0]).contiguous()


def _sizes(rows: Tensor) -> tuple[int, int, int, int]:
    """Number of voxels of the batch, and the grid's size as three axes."""
    shape = rows.shape[1:-1]
    n0, n1, n2 = (1,) * (3 - len(shape)) + tuple(shape)
    return rows.shape[0] * n0 * n1 * n2, n0, n1, n2


def _power_of_two(n: int) -> int:
    return max(16, triton.next_power_of_2(n))


def _convolve(rows: Tensor, matrices: Tensor, kernel_shape: torch.Size) -> Tensor:
    channels_out, channels_in, *widths = kernel_shape
    count, *size = _sizes(rows)
    out = rows.new_empty(*rows.shape[:-1], channels_out)
    _convolution[(triton.cdiv(count, ROWS),)](
        rows,
        matrices,
        out,
        count,
        *size,
        C_IN=channels_in,
        C_OUT=channels_out,
        WIDTH=widths[-1],
        FLAT=len(widths) == 2,
        INNER=_power_of_two(widths[-1] * channels_in),
        OUTER=_power_of_two(channels_out),
        ROWS=ROWS,
    )
    return out.movedim(-1, 1)


def _correlate(rows: Tensor, p: Tensor, kernel_shape: torch.Size) -> Tensor:
    channels_out, channels_in, *widths = kernel_shape
    count, *size = _sizes(rows)
    taps = widths[-1] if len(widths) == 2 else widths[-1] ** 2
    parts = rows.new_empty(SPLITS, taps, widths[-1] * channels_in, channels_out)
    _correlation[(taps, SPLITS)](
        rows,
        p,
        parts,
        count,
        triton.cdiv(triton.cdiv(count, SPLITS), ROWS),
        *size,
        C_IN=channels_in,
        C_OUT=channels_out,
        WIDTH=widths[-1],
        FLAT=len(widths) == 2,
        INNER=_power_of_two(widths[-1] * channels_in),
        OUTER=_power_of_two(channels_out),
        ROWS=ROWS,
    )
    return parts.sum(0).view(*widths, channels_in, channels_out).movedim((-1, -2), (0, 1))


@triton.jit
def _gather(
    x,
    at,
    tap,
    count,
    n0,
    n1,
    n2,
    C_IN: tl.constexpr,
    WIDTH: tl.constexpr,
    FLAT: tl.constexpr,
    INNER: tl.constexpr,
):
    """(ROWS, INNER): around every voxel, all taps along the last axis and all channels, at one tap along the others."""
    half: tl.constexpr = WIDTH // 2
    k, j, i = at % n2, (at // n2) % n1, (at // (n2 * n1)) % n0
    if FLAT:
        di, dj = 0, tap - half
    else:
        di, dj = tap // WIDTH - half, tap % WIDTH - half
    seen = (at < count) & (i + di >= 0) & (i + di < n0) & (j + dj >= 0) & (j + dj < n1)
    inner = tl.arange(0, INNER)
    dk = inner // C_IN - half
    k_there = k[:, None] + dk[None, :]
    seen = seen[:, None] & (inner < WIDTH * C_IN)[None, :] & (k_there >= 0) & (k_there < n2)
    start = (at + (di * n1 + dj) * n2 - half).to(tl.int64) * C_IN
    return tl.load(x + start[:, None] + inner[None, :], mask=seen, other=0.0)


@triton.jit
def _convolution(
    x,
    matrices,
    out,
    count,
    n0,
    n1,
    n2,
    C_IN: tl.constexpr,
    C_OUT: tl.constexpr,
    WIDTH: tl.constexpr,
    FLAT: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    ROWS: tl.constexpr,
):
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inner, outer = tl.arange(0, INNER), tl.arange(0, OUTER)
    fits = (inner < WIDTH * C_IN)[:, None] & (outer < C_OUT)[None, :]
    total = tl.zeros((ROWS, OUTER), tl.float32)
    taps: tl.constexpr = WIDTH if FLAT else WIDTH * WIDTH
    for tap in range(taps):
        left = _gather(x, at, tap, count, n0, n1, n2, C_IN, WIDTH, FLAT, INNER)
        right = tl.load(matrices + (tap * WIDTH * C_IN + inner[:, None]) * C_OUT + outer[None, :], mask=fits, other=0.0)
        total += tl.dot(left, right, input_precision="tf32x3")
    written = (at < count)[:, None] & (outer < C_OUT)[None, :]
    tl.store(out + at.to(tl.int64)[:, None] * C_OUT + outer[None, :], total, mask=written)


@triton.jit
def _correlation(
    x,
    p,
    parts,
    count,
    blocks,
    n0,
    n1,
    n2,
    C_IN: tl.constexpr,
    C_OUT: tl.constexpr,
    WIDTH: tl.constexpr,
    FLAT: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    ROWS: tl.constexpr,
):
    tap, split = tl.program_id(0), tl.program_id(1)
    inner, outer = tl.arange(0, INNER), tl.arange(0, OUTER)
    total = tl.zeros((INNER, OUTER), tl.float32)
    for block in range(blocks):
        at = (split * blocks + block) * ROWS + tl.arange(0, ROWS)
        left = _gather(x, at, tap, count, n0, n1, n2, C_IN, WIDTH, FLAT, INNER)
        seen = (at < count)[:, None] & (outer < C_OUT)[None, :]
        right = tl.load(p + at.to(tl.int64)[:, None] * C_OUT + outer[None, :], mask=seen, other=0.0)
        total += tl.dot(tl.trans(left), right, input_precision="tf32x3")
    fits = (inner < WIDTH * C_IN)[:, None] & (outer < C_OUT)[None, :]
    taps: tl.constexpr = WIDTH if FLAT else WIDTH * WIDTH
    place = (split * taps + tap) * (WIDTH * C_IN) + inner[:, None]
    tl.store(parts + place * C_OUT + outer[None, :], total, mask=fits)
