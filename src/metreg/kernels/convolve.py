"""Convolutions with few channels on a GPU, in Triton: matrix products whose left side is gathered on the fly.

Fields are channels-last in memory, (B, n0, n1, n2, C); in 2-D n0 = 1. A row of the product is a run of TOGETHER voxels on
the last axis, with all that its outputs see: the kernel along that axis becomes a banded matrix. So few channels fill the
matrix units, and a value that is read serves many outputs. Loops run over taps along the other axes and groups of channels.
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

TOGETHER = 4
"""Voxels of a run."""
ROWS = 64
"""Runs of a block."""
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
    taps: int
    """Along all axes but the last."""
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
        span = triton.next_power_of_2(TOGETHER + width - 1)
        group = min(4, triton.next_power_of_2(channels_in))
        return cls(
            channels_in,
            channels_out,
            width,
            width ** (len(widths) - 1),
            span,
            group,
            triton.cdiv(channels_in, group),
            max(16, span * group),
            max(16, triton.next_power_of_2(TOGETHER * channels_out)),
        )

    def launch(self, kernel: Any, parts: int | None, lines: Tensor, *others: Tensor) -> None:
        batch, *shape, _ = lines.shape
        n0, n1, n2 = [1] * (3 - len(shape)) + shape
        runs = batch * n0 * n1 * triton.cdiv(n2, TOGETHER)
        blocks = triton.cdiv(runs, ROWS)
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
            GROUP=self.group,
            GROUPS=self.groups,
            INNER=self.inner,
            OUTER=self.outer,
            FLAT=len(shape) == 2,
            TOGETHER=TOGETHER,
            ROWS=ROWS,
            num_warps=4,
        )


def _convolve(lines: Tensor, kernel: Tensor) -> Tensor:
    plan = _Plan.of(kernel.shape)
    out = lines.new_empty(*lines.shape[:-1], plan.channels_out)
    plan.launch(_convolution, None, lines, _banded(kernel, plan), out)
    return out.movedim(-1, 1)


def _correlate(lines: Tensor, p: Tensor, kernel_shape: torch.Size) -> Tensor:
    plan = _Plan.of(kernel_shape)
    parts = lines.new_empty(SPLITS, plan.taps * plan.groups, plan.inner, plan.outer)
    plan.launch(_correlation, SPLITS, lines, p, parts)
    return _from_banded(parts.sum(0), plan, kernel_shape)


def _banded(kernel: Tensor, plan: _Plan) -> Tensor:
    """(K, C, w, ..., w) -> (taps, groups, inner, outer): from (voxel seen, channel) to (voxel of the run, channel)."""
    flat = kernel.reshape(plan.channels_out, plan.channels_in, plan.taps, plan.width)
    padded = F.pad(flat, (0, 0, 0, 0, 0, plan.groups * plan.group - plan.channels_in))
    w = padded.view(plan.channels_out, plan.groups, plan.group, plan.taps, plan.width).permute(3, 1, 4, 2, 0)
    band = kernel.new_zeros(plan.taps, plan.groups, plan.inner // plan.group, plan.group, plan.outer)
    for k in range(TOGETHER):
        band[:, :, k : k + plan.width, :, k * plan.channels_out : (k + 1) * plan.channels_out] = w
    return band


def _from_banded(band: Tensor, plan: _Plan, shape: torch.Size) -> Tensor:
    """The adjoint of `_banded`."""
    band = band.view(plan.taps, plan.groups, plan.inner // plan.group, plan.group, plan.outer)
    w = torch.stack(
        [band[:, :, k : k + plan.width, :, k * plan.channels_out : (k + 1) * plan.channels_out] for k in range(TOGETHER)]
    ).sum(0)
    w = w.permute(4, 1, 3, 0, 2).reshape(plan.channels_out, plan.groups * plan.group, *shape[2:])
    return w[:, : plan.channels_in]


@triton.jit
def _gather(
    x,
    run,
    product,
    runs,
    n0,
    n1,
    n2,
    C_IN: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    FLAT: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """(ROWS, INNER): what every run sees of one group of channels at one tap along the other axes."""
    half: tl.constexpr = WIDTH // 2
    tap, first = product // GROUPS, (product % GROUPS) * GROUP
    per_line = tl.cdiv(n2, TOGETHER)
    line, start = run // per_line, (run % per_line) * TOGETHER - half
    j, i = line % n1, (line // n1) % n0
    if FLAT:
        di, dj = 0, tap - half
    else:
        di, dj = tap // WIDTH - half, tap % WIDTH - half
    seen = (run < runs) & (i + di >= 0) & (i + di < n0) & (j + dj >= 0) & (j + dj < n1)
    inner = tl.arange(0, INNER)
    voxel, channel = inner // GROUP, first + inner % GROUP
    k = start[:, None] + voxel[None, :]
    seen = seen[:, None] & (channel < C_IN)[None, :] & (voxel < TOGETHER + WIDTH - 1)[None, :] & (k >= 0) & (k < n2)
    at = ((line + di * n1 + dj).to(tl.int64) * n2)[:, None] + k
    return tl.load(x + at * C_IN + channel[None, :], mask=seen, other=0.0)


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
    for product in range(TAPS * GROUPS):
        left = _gather(x, run, product, runs, n0, n1, n2, C_IN, WIDTH, GROUP, GROUPS, INNER, FLAT, TOGETHER)
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
        left = _gather(x, run, product, runs, n0, n1, n2, C_IN, WIDTH, GROUP, GROUPS, INNER, FLAT, TOGETHER)
        at, there = _outputs(run, runs, n2, C_OUT, OUTER, TOGETHER)
        right = tl.load(p + at, mask=there, other=0.0)
        total += tl.dot(tl.trans(left), right, input_precision="tf32x3")
    cells = tl.arange(0, INNER)[:, None] * OUTER + tl.arange(0, OUTER)[None, :]
    tl.store(parts + (part * TAPS * GROUPS + product) * INNER * OUTER + cells, total)
