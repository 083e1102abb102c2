"""Convolutions with few channels on a GPU, in Triton: matrix products whose left side is gathered on the fly.

Fields are channels-last in memory, (B, n0, n1, n2, C); in 2-D n0 = 1. A row of the product is a run of a few voxels on
the last axis, with all that its outputs see: the kernel along that axis becomes a banded matrix. So few channels fill the
matrix units, and a value that is read serves many outputs. Where there is one channel, so is the kernel along the axis
before. Loops run over taps along the other axes and groups of channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

LONGEST = 8
"""Voxels of a run, at most."""
MOST_SEEN = 128
"""Values of a row, at most, where the kernel along a second axis is part of the product: on chip there is little room."""
SPLITS = 64
"""Parts in which the sum over voxels is done for the gradient of the kernel; then they are added, always in one order."""


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """x (B, C, *S) with a kernel (K, C, w, ...), zeros beyond the border, size kept. The result is channels-last."""
    found: Tensor = Convolve.apply(x, kernel)  # type: ignore[no-untyped-call]
    return found


class Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, kernel: Tensor) -> Tensor:
        lines = _channels_last(x)
        ctx.save_for_backward(lines, kernel)
        return _convolve(lines, kernel.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor | None, Tensor | None]:
        lines, kernel = ctx.saved_tensors  # type: ignore[attr-defined]
        wants_x, wants_kernel = ctx.needs_input_grad  # type: ignore[attr-defined]
        p = _channels_last(p)
        turned = kernel.flip(tuple(range(2, kernel.dim()))).transpose(0, 1)  # the adjoint: the kernel turned round
        return _convolve(p, turned) if wants_x else None, _correlate(lines, p, kernel.shape) if wants_kernel else None


def _channels_last(x: Tensor) -> Tensor:
    """(B, C, *S) -> (B, *S, C), contiguous."""
    return x.detach().movedim(1, -1).contiguous()


@dataclass(frozen=True)
class _Plan:
    """How a convolution is cut into matrix products."""

    channels_in: int
    channels_out: int
    width: int
    together: int
    """Voxels of a run: as many as leave the least of the products empty."""
    taps: int
    """Along the axes that loops run over."""
    joined: int
    """Taps along the last axis but one that are part of one product, rounded up to a power of two; 1: none is."""
    span: int
    """Voxels that a run of outputs sees along the last axis, rounded up to a power of two."""
    group: int
    """Channels of one product."""
    groups: int
    inner: int
    outer: int

    @classmethod
    def of(cls, kernel_shape: torch.Size) -> _Plan:
        channels_out, channels_in, *widths = kernel_shape
        width = widths[-1]
        spans = {t: triton.next_power_of_2(t + width - 1) for t in range(1, LONGEST + 1)}
        outers = {t: max(16, triton.next_power_of_2(t * channels_out)) for t in spans}
        together = max(spans, key=lambda t: t / (spans[t] * outers[t]))
        span = spans[together]
        group = min(4, triton.next_power_of_2(channels_in))
        joined = triton.next_power_of_2(width)
        if channels_in > 1 or joined * span > MOST_SEEN:
            joined = 1
        return cls(
            channels_in,
            channels_out,
            width,
            together,
            width ** (len(widths) - (1 if joined == 1 else 2)),
            joined,
            span,
            group,
            triton.cdiv(channels_in, group),
            max(16, joined * span * group),
            outers[together],
        )

    def launch(self, kernel: Any, parts: int | None, lines: Tensor, *others: Tensor) -> None:
        batch, *shape, _ = lines.shape
        n0, n1, n2 = [1] * (3 - len(shape)) + shape
        runs = batch * n0 * n1 * triton.cdiv(n2, self.together)
        rows = 64 if self.outer < 64 else 32
        blocks = triton.cdiv(runs, rows)
        grid = (blocks,) if parts is None else (self.taps * self.groups, parts)
        each = 1 if parts is None else triton.cdiv(blocks, parts)
        kernel[grid](
            lines,
            *others,
            runs,
            each,
            n0,
            n1,
            n2,
            C_IN=self.channels_in,
            C_OUT=self.channels_out,
            WIDTH=self.width,
            TAPS=self.taps,
            JOINED=self.joined,
            SPAN=self.span,
            GROUP=self.group,
            GROUPS=self.groups,
            INNER=self.inner,
            OUTER=self.outer,
            FLAT=len(shape) == 2,
            TOGETHER=self.together,
            ROWS=rows,
            num_warps=4,
        )


def _convolve(lines: Tensor, kernel: Tensor) -> Tensor:
    plan = _Plan.of(kernel.shape)
    out = lines.new_empty(*lines.shape[:-1], plan.channels_out)
    plan.launch(_convolution, None, lines, _banded(kernel, plan), out)
    return out.movedim(-1, 1)


def _correlate(lines: Tensor, p: Tensor, kernel_shape: torch.Size) -> Tensor:
    """The gradient by the kernel. What has fewer channels is looked at through windows: then products are larger."""
    channels_out, channels_in, *widths = kernel_shape
    if channels_in > channels_out:
        swapped = _correlate(p, lines, torch.Size((channels_in, channels_out, *widths)))
        return swapped.flip(tuple(range(2, swapped.dim()))).transpose(0, 1)
    plan = _Plan.of(kernel_shape)
    parts = lines.new_empty(SPLITS, plan.taps * plan.groups, plan.inner, plan.outer)
    plan.launch(_correlation, SPLITS, lines, p, parts)
    return _from_banded(parts.sum(0).unflatten(0, (plan.taps, plan.groups)), plan, kernel_shape)


def _banded(kernel: Tensor, plan: _Plan) -> Tensor:
    """(K, C, w, ..., w) -> (taps, groups, inner, outer): from (joined tap, voxel seen, channel) to (voxel, channel)."""
    rows = 1 if plan.joined == 1 else plan.width
    flat = kernel.reshape(plan.channels_out, plan.channels_in, plan.taps, rows, plan.width)
    padded = F.pad(flat, (0, 0, 0, 0, 0, 0, 0, plan.groups * plan.group - plan.channels_in))
    w = padded.view(plan.channels_out, plan.groups, plan.group, plan.taps, rows, plan.width).permute(3, 1, 4, 5, 2, 0)
    band = kernel.new_zeros(plan.taps, plan.groups, plan.inner, plan.outer)
    for k, (seen, outer) in enumerate(_bands(band, plan)):
        seen[:, :, :rows, k : k + plan.width, :, outer] = w
    return band


def _from_banded(band: Tensor, plan: _Plan, shape: torch.Size) -> Tensor:
    """The adjoint of `_banded`."""
    rows = 1 if plan.joined == 1 else plan.width
    parts = [seen[:, :, :rows, k : k + plan.width, :, outer] for k, (seen, outer) in enumerate(_bands(band, plan))]
    w = torch.stack(parts).sum(0).permute(5, 1, 4, 0, 2, 3).reshape(plan.channels_out, -1, *shape[2:])
    return w[:, : plan.channels_in]


def _bands(band: Tensor, plan: _Plan) -> list[tuple[Tensor, slice]]:
    """For every voxel of a run: the band by joined tap, voxel seen and channel, and its outputs."""
    seen = band[:, :, : plan.joined * plan.span * plan.group]
    seen = seen.view(plan.taps, plan.groups, plan.joined, plan.span, plan.group, plan.outer)
    return [(seen, slice(k * plan.channels_out, (k + 1) * plan.channels_out)) for k in range(plan.together)]


@triton.jit
def _windows(
    x,
    run,
    runs,
    n0,
    n1,
    n2,
    C_IN: tl.constexpr,
    WIDTH: tl.constexpr,
    JOINED: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    INNER: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """What every run sees, (ROWS, INNER): from where on, where it lies, at no tap and in the first channels, and what of it
    there is; then the places of the runs along the first axes."""
    half: tl.constexpr = WIDTH // 2
    per_line = tl.cdiv(n2, TOGETHER)
    line, start = run // per_line, (run % per_line) * TOGETHER - half
    j, i = line % n1, (line // n1) % n0
    inner = tl.arange(0, INNER)
    voxel = inner // GROUP % SPAN
    k = start[:, None] + voxel[None, :]
    there = (run < runs)[:, None] & (voxel < TOGETHER + WIDTH - 1)[None, :] & (k >= 0) & (k < n2)
    begin = tl.min(line)
    at = ((line - begin) * n2 * C_IN)[:, None] + k * C_IN + (inner % GROUP)[None, :]
    if JOINED > 1:
        row = inner // (GROUP * SPAN)
        other = j[:, None] + (row - half)[None, :]
        there = there & (row < WIDTH)[None, :] & (other >= 0) & (other < n1)
        at += ((row - half) * n2 * C_IN)[None, :]
    else:
        there = there & (inner < GROUP * SPAN)[None, :]
    return x + begin.to(tl.int64) * n2 * C_IN, at, there, i, j


@triton.jit
def _seen(
    x,
    at,
    there,
    i,
    j,
    product,
    n0,
    n1,
    n2,
    C_IN: tl.constexpr,
    WIDTH: tl.constexpr,
    JOINED: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    FLAT: tl.constexpr,
):
    """(ROWS, INNER): what windows show of one group of channels at one tap along the other axes."""
    half: tl.constexpr = WIDTH // 2
    tap, first = product // GROUPS, (product % GROUPS) * GROUP
    di, dj = 0, 0
    if JOINED == 1:
        dj = tap % WIDTH - half
        there = there & ((j + dj >= 0) & (j + dj < n1))[:, None]
        tap = tap // WIDTH
    if not FLAT:
        di = tap - half
        there = there & ((i + di >= 0) & (i + di < n0))[:, None]
    if C_IN % GROUP != 0:
        there = there & (first + tl.arange(0, INNER) % GROUP < C_IN)[None, :]
    return tl.load(x + ((di * n1 + dj) * n2 * C_IN + first) + at, mask=there, other=0.0)


@triton.jit
def _outputs(run, runs, n2, C_OUT: tl.constexpr, OUTER: tl.constexpr, TOGETHER: tl.constexpr):
    """Where the outputs of every run lie in memory, (ROWS, OUTER), and which of them there are."""
    per_line = tl.cdiv(n2, TOGETHER)
    line, start = run // per_line, (run % per_line) * TOGETHER
    outer = tl.arange(0, OUTER)
    voxel = outer // C_OUT
    there = (run < runs)[:, None] & (voxel < TOGETHER)[None, :] & (start[:, None] + voxel[None, :] < n2)
    return (line.to(tl.int64) * n2 + start)[:, None] * C_OUT + outer[None, :], there


@triton.jit
def _convolution(
    x,
    band,
    out,
    runs,
    each,
    n0,
    n1,
    n2,
    C_IN: tl.constexpr,
    C_OUT: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    JOINED: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    FLAT: tl.constexpr,
    TOGETHER: tl.constexpr,
    ROWS: tl.constexpr,
):
    run = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cells = tl.arange(0, INNER)[:, None] * OUTER + tl.arange(0, OUTER)[None, :]
    total = tl.zeros((ROWS, OUTER), tl.float32)
    lines, window, there, i, j = _windows(x, run, runs, n0, n1, n2, C_IN, WIDTH, JOINED, SPAN, GROUP, INNER, TOGETHER)
    for product in range(TAPS * GROUPS):
        left = _seen(lines, window, there, i, j, product, n0, n1, n2, C_IN, WIDTH, JOINED, GROUP, GROUPS, INNER, FLAT)
        total += tl.dot(left, tl.load(band + product * INNER * OUTER + cells), input_precision="tf32x3")
    at, there = _outputs(run, runs, n2, C_OUT, OUTER, TOGETHER)
    tl.store(out + at, total, mask=there)


@triton.jit
def _correlation(
    x,
    p,
    parts,
    runs,
    each,
    n0,
    n1,
    n2,
    C_IN: tl.constexpr,
    C_OUT: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    JOINED: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    FLAT: tl.constexpr,
    TOGETHER: tl.constexpr,
    ROWS: tl.constexpr,
):
    product, part = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((INNER, OUTER), tl.float32)
    for block in range(each):
        run = (part * each + block) * ROWS + tl.arange(0, ROWS)
        lines, window, there, i, j = _windows(x, run, runs, n0, n1, n2, C_IN, WIDTH, JOINED, SPAN, GROUP, INNER, TOGETHER)
        left = _seen(lines, window, there, i, j, product, n0, n1, n2, C_IN, WIDTH, JOINED, GROUP, GROUPS, INNER, FLAT)
        at, there = _outputs(run, runs, n2, C_OUT, OUTER, TOGETHER)
        right = tl.load(p + at, mask=there, other=0.0)
        total += tl.dot(tl.trans(left), right, input_precision="tf32x3")
    cells = tl.arange(0, INNER)[:, None] * OUTER + tl.arange(0, OUTER)[None, :]
    tl.store(parts + (part * TAPS * GROUPS + product) * INNER * OUTER + cells, total)
