from __future__ import annotations

import pytest
import torch
from test_steps import smooth_velocity
from torch.autograd import gradcheck

from helpers import observed_order, random_field
from metreg.core.fields import speed
from metreg.core.grid import Grid
from metreg.deformation.maps import compose
from metreg.deformation.stationary import exponentiate, flow, needed_steps, reach
from metreg.errors import MetregError


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("integrator", ["rk4", "squaring"])
def test_the_flow_of_nothing_is_the_identity(integrator: str, dim: int) -> None:
    grid = Grid.unit_cube((6, 7, 8)[:dim])
    v = torch.zeros(2, dim, *grid.shape)
    torch.testing.assert_close(flow(v, grid, integrator=integrator), grid.points(v).expand_as(v))  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [2, 3])
def test_the_two_integrators_agree_better_on_finer_grids(dim: int) -> None:
    def gap(n: int) -> torch.Tensor:
        grid = Grid.unit_cube((n,) * dim)
        v = smooth_velocity(grid)
        return (flow(v, grid, steps=40) - flow(v, grid, integrator="squaring", steps=7)).abs()

    assert gap(33).max() < 0.25 / 32  # a quarter of a voxel
    # linear interpolation over less than a voxel, as squaring does it, is of order one
    assert observed_order(lambda n: float(gap(n).mean()), (17, 33)) > 1.0


def test_squaring_has_order_two_in_time() -> None:
    grid = Grid.unit_cube((33, 33))
    x = grid.points(torch.empty(0, dtype=torch.float64))
    v = torch.cat([x[:, 1:] - 0.5, 0.5 - x[:, :1]], dim=1)  # a rotation by one radian: linear, so sampled exactly
    angle = torch.tensor(1.0, dtype=torch.float64)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    exact = torch.einsum("cd,bd...->bc...", turn, x - 0.5) + 0.5
    inside = (x - 0.5).norm(dim=1) < 0.2

    def error(squarings: int) -> float:
        return float((exponentiate(v, grid, squarings) - exact).norm(dim=1)[inside].max())

    assert observed_order(lambda n: error(n.bit_length() - 1), (8, 32)) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("integrator", ["rk4", "squaring"])
def test_forth_and_back_is_the_identity_to_the_order_of_the_scheme(integrator: str) -> None:
    def gap(n: int) -> float:
        grid = Grid.unit_cube((n, n))
        v = smooth_velocity(grid, 0.2)
        there = flow(v, grid, integrator=integrator, steps=20)  # type: ignore[arg-type]
        back = flow(-v, grid, integrator=integrator, steps=20)  # type: ignore[arg-type]
        return float((compose(there, back, grid) - grid.points(v)).abs().max())

    assert observed_order(gap, (33, 65)) > 1.7


def test_translation_is_exact_away_from_the_border() -> None:
    grid = Grid.unit_cube((20, 20))
    v = torch.tensor([0.03, -0.02], dtype=torch.float64).view(1, 2, 1, 1).expand(1, 2, 20, 20)
    torch.testing.assert_close(flow(v, grid), grid.points(v) - v)


def test_more_steps_are_taken_when_stability_asks_for_them() -> None:
    grid = Grid.unit_cube((64, 64))
    v = smooth_velocity(grid, 3.0)
    needed = needed_steps(float(speed(v, grid)), "rk4")
    assert needed > 10
    assert reach(needed - 1, "rk4") < speed(v, grid) <= reach(needed, "rk4") <= 2.2 * needed
    assert flow(v, grid, steps=2).isfinite().all()


def test_a_velocity_that_is_not_finite_is_named() -> None:
    grid = Grid.unit_cube((8, 8))
    with pytest.raises(MetregError, match="huge or not finite"):
        flow(torch.full((1, 2, 8, 8), float("nan")), grid)


def test_gradients() -> None:
    grid = Grid.unit_cube((5, 6))
    v = (0.03 * random_field(1, 2, 5, 6)).requires_grad_()
    assert gradcheck(lambda v: flow(v, grid, steps=3), (v,))
    assert gradcheck(lambda v: exponentiate(v, grid, 2), (v,))
