from __future__ import annotations

import math

import pytest
import torch

from helpers import observed_order, random_field
from metreg.core.fields import determinant, gradient, inner, jacobian_determinant
from metreg.core.grid import Grid

DIMS = [2, 3]


@pytest.mark.parametrize("dim", DIMS)
def test_gradient_of_a_linear_field_is_exact_border_included(dim: int) -> None:
    grid = Grid(tuple(range(4, 4 + dim)), tuple(0.1 * (d + 1) for d in range(dim)))
    slope = random_field(dim, dim)
    x = grid.points(slope)
    f = torch.einsum("cd,bd...->bc...", slope, x)
    expected = slope.view(1, dim, dim, *[1] * dim).expand(1, dim, dim, *grid.shape)
    torch.testing.assert_close(gradient(f, grid), expected)


def test_stencil_has_order_two_inside() -> None:
    def error(n: int) -> float:
        grid = Grid.unit_cube((n, 3))
        x = grid.points(torch.empty(0, dtype=torch.float64))
        found = gradient(torch.sin(2 * math.pi * x[:, :1]), grid)[:, 0, 0]
        expected = 2 * math.pi * torch.cos(2 * math.pi * x[:, 0])
        return float((found - expected)[:, 1:-1].abs().max())

    assert observed_order(error, (33, 129)) == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("dim", DIMS)
def test_determinant_is_torchs(dim: int) -> None:
    matrices = random_field(2, dim, dim, *[3] * dim)
    expected = torch.linalg.det(matrices.movedim((1, 2), (-2, -1)))
    torch.testing.assert_close(determinant(matrices), expected)


@pytest.mark.parametrize("dim", DIMS)
def test_jacobian_of_an_affine_map_is_its_determinant(dim: int) -> None:
    grid = Grid(tuple(range(4, 4 + dim)), (0.3, 0.2, 0.1)[:dim])
    a = torch.eye(dim, dtype=torch.float64) + 0.2 * random_field(dim, dim)
    phi = torch.einsum("cd,bd...->bc...", a, grid.points(a))
    torch.testing.assert_close(jacobian_determinant(phi, grid), torch.linalg.det(a).expand(1, *grid.shape))


def test_inner_is_the_integral() -> None:
    grid = Grid((4, 5), (0.5, 0.25))
    a = torch.ones(2, 2, 4, 5)
    torch.testing.assert_close(inner(a, 3 * a, grid), torch.full((2,), 3 * 2 * 20 * 0.125))
