"""One step in time of f_t + Df v = 0, v fixed. The step is a Taylor polynomial of a linear operator, hence so short."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.core.fields import difference
from metreg.core.grid import Grid
from metreg.kernels import advection_kernels

ORDER = {"euler": 1, "midpoint": 2, "rk4": 4}
"""The declared order in time of each scheme: for a linear operator that does not change they are Taylor polynomials."""


def advect(f: Tensor, v: Tensor, grid: Grid) -> Tensor:
    """Df v.  f (B, C, *S), v (B, D, *S) -> (B, C, *S)."""
    terms = [v[:, d : d + 1] * difference(f, d + 2) / (2 * h) for d, h in enumerate(grid.spacing)]
    return torch.stack(terms).sum(0)


def step(f: Tensor, *, v: Tensor, dt: float, grid: Grid, order: int = 4) -> Tensor:
    """f + z f + z^2/2 f + ... up to z^order, z = -dt v . grad: for order 4 this is RK4. Plain torch, the oracle."""
    g = f
    for k in range(order, 0, -1):
        g = f - dt / k * advect(g, v, grid)
    return g


def advection_steps(f: Tensor, v: Tensor, grid: Grid, steps: int, order: int) -> Tensor:
    """Many steps in a row: by compiled kernels where there are any for such tensors, else one after the other."""
    if advection_kernels(f) is None:
        for _ in range(steps):
            f = step(f, v=v, dt=1 / steps, grid=grid, order=order)
        return f
    factors = [-1 / (2 * steps * h) for h in grid.spacing]
    moved: Tensor = Transport.apply(f, v, factors, steps, order)  # type: ignore[no-untyped-call]
    return moved


class Transport(torch.autograd.Function):
    """Many steps as one operation, z_d = -dt v_d / (2 h_d). The kernels say what they keep for the way back."""

    @staticmethod
    def forward(ctx: FunctionCtx, f: Tensor, v: Tensor, factors: Sequence[float], steps: int, order: int) -> Tensor:
        kernels = advection_kernels(f)
        assert kernels is not None
        v = v.contiguous()
        out, kept = kernels.forward(f.contiguous(), v, factors, steps, order)
        ctx.save_for_backward(v, *kept)
        ctx.factors, ctx.order = factors, order  # type: ignore[attr-defined]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor | None, ...]:
        v, *kept = ctx.saved_tensors  # type: ignore[attr-defined]
        kernels = advection_kernels(p)
        assert kernels is not None
        f_grad, v_grad = kernels.backward(tuple(kept), v, ctx.factors, p.contiguous(), ctx.order)  # type: ignore[attr-defined]
        return f_grad, v_grad, None, None, None
