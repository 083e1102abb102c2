"""One step in time of f_t + Df v = 0, v fixed. The step is a Taylor polynomial of a linear operator, hence so short."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from metreg.fields import difference
from metreg.grid import Grid

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


class Transport(torch.autograd.Function):
    """Many steps as one operation. It keeps one map per step and recomputes the stages on the way back."""

    @staticmethod
    def forward(ctx: FunctionCtx, f: Tensor, v: Tensor, grid: Grid, steps: int, order: int) -> Tensor:
        z = _coefficients(v, grid, steps)
        starts = []
        buffer = torch.empty_like(f)
        for _ in range(steps):
            starts.append(f)
            f = _stages(f, z, order, buffer)[-1]
        ctx.save_for_backward(v, *starts)
        ctx.grid, ctx.order = grid, order  # type: ignore[attr-defined]
        return f

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, p: Tensor) -> tuple[Tensor | None, ...]:
        v, *starts = ctx.saved_tensors  # type: ignore[attr-defined]
        grid, order = ctx.grid, ctx.order  # type: ignore[attr-defined]
        z = _coefficients(v, grid, len(starts))
        z_grad = torch.zeros_like(z)
        buffer = torch.empty_like(p)
        p = p.contiguous()
        for f in reversed(starts):
            stages = _stages(f, z, order, buffer)[:-1]
            total, q = p.clone(), p
            for k, g in enumerate(reversed(stages), start=1):  # the adjoint runs through the stages backwards
                _add_outer(z_grad, q, g, 1 / k, buffer)
                q = _apply_adjoint(z, q, 1 / k, buffer)
                total += q
            p = total
        return p, z_grad / (-2 * len(starts) * grid.steps(v)), None, None, None


def _coefficients(v: Tensor, grid: Grid, steps: int) -> Tensor:
    """z_d = -dt v_d / (2 h_d), so that a stage is f + 1/k sum_d z_d difference_d(g)."""
    return v / (-2 * steps * grid.steps(v))


def _stages(f: Tensor, z: Tensor, order: int, buffer: Tensor) -> list[Tensor]:
    """[f, g_order, ..., g_1]: the stages of one step, the last of which is its result."""
    stages = [f]
    for k in range(order, 0, -1):
        g = f.clone()
        for d in range(z.shape[1]):
            g.addcmul_(z[:, d : d + 1], _difference_into(buffer, stages[-1], d + 2), value=1 / k)
        stages.append(g)
    return stages


def _difference_into(out: Tensor, f: Tensor, axis: int) -> Tensor:
    """`difference`, without an allocation."""
    n = f.shape[axis]
    torch.sub(f.narrow(axis, 2, n - 2), f.narrow(axis, 0, n - 2), out=out.narrow(axis, 1, n - 2))
    for i, high in ((0, 1), (n - 1, n - 1)):
        edge = out.narrow(axis, i, 1)
        torch.sub(f.narrow(axis, high, 1), f.narrow(axis, high - 1, 1), out=edge).mul_(2)
    return out


def _apply_adjoint(z: Tensor, p: Tensor, scale: float, buffer: Tensor) -> Tensor:
    """scale * sum_d difference_d^T (z_d p)."""
    out = torch.zeros_like(p)
    for d in range(z.shape[1]):
        axis, n = d + 2, p.shape[d + 2]
        q = torch.mul(p, z[:, d : d + 1], out=buffer)
        out.narrow(axis, 2, n - 2).add_(q.narrow(axis, 1, n - 2), alpha=scale)
        out.narrow(axis, 0, n - 2).sub_(q.narrow(axis, 1, n - 2), alpha=scale)
        for i, high in ((0, 1), (n - 1, n - 1)):
            out.narrow(axis, high, 1).add_(q.narrow(axis, i, 1), alpha=2 * scale)
            out.narrow(axis, high - 1, 1).sub_(q.narrow(axis, i, 1), alpha=2 * scale)
    return out


def _add_outer(z_grad: Tensor, p: Tensor, g: Tensor, scale: float, buffer: Tensor) -> None:
    """z_grad_d += scale * sum over components of p difference_d(g)."""
    for d in range(z_grad.shape[1]):
        product = _difference_into(buffer, g, d + 2).mul_(p)
        z_grad[:, d].add_(product.sum(1), alpha=scale)
