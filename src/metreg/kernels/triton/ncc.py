"""Global correlation of a warped image on a GPU, in Triton: nothing is stored at the image's resolution.

Its sums are taken as the image is warped, and on the way back the image is warped again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.kernels.triton.dependent_launch import dependent_launch, wait
from metreg.kernels.triton.warp import forward_of, programs, pull_of

if TYPE_CHECKING:
    from metreg.core.grid import Grid

SUMS = 6
"""Of k, k a, k b, k a a, k a b, k b b: mask k, warped a, target b."""
AT_ONCE = 1024
"""Sums of blocks that are added up side by side."""


class WarpedNcc(torch.autograd.Function):
    """`ncc(warp(source, phi_inv, grid), target, mask)`, nothing stored at the image's resolution.  -> (B,)"""

    @staticmethod
    def forward(
        ctx: FunctionCtx, source: Tensor, phi_inv: Tensor, target: Tensor, mask: Tensor | None, grid: Grid, tiny: float
    ) -> Tensor:
        source, phi_inv, target = source.contiguous(), phi_inv.contiguous(), target.contiguous()
        mask = None if mask is None else mask.contiguous()
        parts = source.new_empty(len(source), SUMS, programs(grid, phi_inv))
        forward_of(source, phi_inv, grid, None, target, mask, parts)
        energy, pull = source.new_empty(len(source)), source.new_empty(len(source), 3)
        how = {"BLOCK": AT_ONCE, "num_warps": AT_ONCE // 32} | dependent_launch(source.device)
        _correlate[(len(source),)](parts, energy, pull, parts.shape[2], tiny, **how)
        ctx.save_for_backward(source, phi_inv, target, mask, pull)  # type: ignore[arg-type]
        ctx.grid = grid  # type: ignore[attr-defined]
        return energy

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[None, Tensor, None, None, None, None]:
        source, phi_inv, target, mask, pull = ctx.saved_tensors  # type: ignore[attr-defined]
        gradient = pull_of(source, phi_inv, ctx.grid, target, mask, pull, p.contiguous())  # type: ignore[attr-defined]
        return None, gradient, None, None, None, None


@triton.jit
def _correlate(parts, energy, pull, blocks, tiny, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """The sums of all blocks, the energy 1 - correlation, and its derivatives by the warped image, pull_0 b + pull_1 a +
    pull_2, in double precision."""
    pair = tl.program_id(0).to(tl.int64)
    parts += pair * 6 * blocks
    wait(DEPENDENT)
    count = tl.maximum(_total(parts, blocks, BLOCK), 1.0)
    mean_a = _total(parts + blocks, blocks, BLOCK) / count
    mean_b = _total(parts + 2 * blocks, blocks, BLOCK) / count
    spread_a = _total(parts + 3 * blocks, blocks, BLOCK) / count - mean_a * mean_a
    covariance = _total(parts + 4 * blocks, blocks, BLOCK) / count - mean_a * mean_b
    spread_b = _total(parts + 5 * blocks, blocks, BLOCK) / count - mean_b * mean_b
    variance_a, variance_b = tl.maximum(spread_a, tiny), tl.maximum(spread_b, tiny)
    slope = covariance / (variance_a * variance_b)
    by_b = -2 * slope / count
    by_a = tl.where(spread_a > tiny, 2 * slope * covariance / variance_a, 0.0) / count
    tl.store(energy + pair, (1 - slope * covariance).to(tl.float32))
    tl.store(pull + 3 * pair, by_b.to(tl.float32))
    tl.store(pull + 3 * pair + 1, by_a.to(tl.float32))
    tl.store(pull + 3 * pair + 2, (-by_b * mean_b - by_a * mean_a).to(tl.float32))


@triton.jit
def _total(f, count, BLOCK: tl.constexpr):
    """The sum of so many values, in double precision."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(f + at, mask=at < count, other=0.0).to(tl.float64)
    return tl.sum(total)
