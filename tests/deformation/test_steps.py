from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from helpers import observed_order, random_field
from metreg.core.grid import Grid
from metreg.deformation.stationary import advect_in_time
from metreg.deformation.steps import ORDER, advect, step


def smooth_velocity(grid: Grid, scale: float = 0.1) -> Tensor:
    """A divergence-free swirl, smooth, zero at the border of the unit square, with a third component in 3-D."""
    x = grid.points(torch.empty(0, dtype=torch.float64))
    s, c = torch.sin(math.pi * x), torch.cos(math.pi * x)
    parts = [s[:, 0] ** 2 * s[:, 1] * c[:, 1], -(s[:, 1] ** 2) * s[:, 0] * c[:, 0]]
    if grid.dim == 3:
        parts = [part * s[:, 2] for part in (*parts, s[:, 0] * s[:, 1])]
    return scale * torch.stack(parts, dim=1)


def plain_transport(f: Tensor, v: Tensor, grid: Grid, steps: int, order: int) -> Tensor:
    for _ in range(steps):
        f = step(f, v=v, dt=1 / steps, grid=grid, order=order)
    return f


@pytest.mark.parametrize("scheme", list(ORDER))
def test_each_scheme_has_its_declared_order_in_time(scheme: str) -> None:
    grid = Grid.unit_cube((24, 24))
    v, x = smooth_velocity(grid, 0.3), grid.points(torch.empty(0, dtype=torch.float64))
    exact = advect_in_time(x, v, grid, 2000 if scheme == "rk4" else 4000, "rk4")

    def error(steps: int) -> float:
        return float((advect_in_time(x, v, grid, steps, scheme) - exact).abs().max())

    assert observed_order(error, (20, 40)) == pytest.approx(ORDER[scheme], abs=0.15)


def test_space_has_order_two() -> None:
    """A wave that is carried by a constant velocity, watched away from the border."""

    def error(n: int) -> float:
        grid = Grid.unit_cube((n, n))
        x = grid.points(torch.empty(0, dtype=torch.float64))
        v = torch.tensor([0.05, 0.02], dtype=torch.float64).view(1, 2, 1, 1).expand(1, 2, n, n)
        found = advect_in_time(torch.sin(6 * x[:, :1]), v, grid, 200)
        gap = (found - torch.sin(6 * (x[:, :1] - 0.05))).abs()
        return float(gap[..., n // 4 : -n // 4, n // 4 : -n // 4].max())

    assert observed_order(error, (33, 65)) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("shape", [(7, 6), (7, 6, 5), (2, 3, 4), (11, 4, 3), (5, 2, 2)])
@pytest.mark.parametrize("scheme", list(ORDER))
@pytest.mark.usefixtures("threads")
def test_fast_transport_equals_the_plain_one_forward_and_gradient(scheme: str, shape: tuple[int, ...]) -> None:
    """Slabs of two pairs among three threads: one of them has slabs of both."""
    dim, grid = len(shape), Grid(shape, (0.2, 0.25, 0.3)[: len(shape)])
    f = random_field(2, dim, *grid.shape, seed=1).requires_grad_()
    v = (0.2 * random_field(2, dim, *grid.shape, seed=2)).requires_grad_()
    p = random_field(2, dim, *grid.shape, seed=3)
    fast, plain = advect_in_time(f, v, grid, 4, scheme), plain_transport(f, v, grid, 4, ORDER[scheme])
    torch.testing.assert_close(fast, plain)
    torch.testing.assert_close(torch.autograd.grad(fast, (f, v), p), torch.autograd.grad(plain, (f, v), p))


def test_two_points_per_axis_are_enough() -> None:
    grid = Grid((2, 5), (0.2, 0.25))
    f, v = random_field(1, 2, 2, 5).requires_grad_(), (0.1 * random_field(1, 2, 2, 5, seed=1)).requires_grad_()
    torch.testing.assert_close(advect_in_time(f, v, grid, 3), plain_transport(f, v, grid, 3, 4))
    assert gradcheck(lambda f, v: advect_in_time(f, v, grid, 2), (f, v))


def test_gradients() -> None:
    grid = Grid((5, 4), (0.2, 0.25))
    f, v = random_field(1, 2, 5, 4).requires_grad_(), (0.2 * random_field(1, 2, 5, 4, seed=1)).requires_grad_()
    assert gradcheck(lambda f, v: advect(f, v, grid), (f, v))
    assert gradcheck(lambda f, v: advect_in_time(f, v, grid, 3), (f, v))


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_memory_is_one_map_per_step(steps: int) -> None:
    grid = Grid.unit_cube((16, 16))
    v = smooth_velocity(grid).requires_grad_()
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.data_ptr()] = t.numel()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        advect_in_time(grid.points(v).expand_as(v), v, grid, steps)
    assert sum(kept.values()) <= (steps + 1) * v.numel() + grid.dim  # the maps, the velocity, the spacing
