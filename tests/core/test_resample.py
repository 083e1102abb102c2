from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from helpers import adjoint_gap, random_field
from metreg.core.grid import Grid
from metreg.core.resample import along_axis, downsample, fill_unknown, sample, upsample

DIMS = [2, 3]


@pytest.mark.parametrize("dim", DIMS)
def test_sampling_at_the_points_of_the_grid_changes_nothing(dim: int) -> None:
    grid = Grid((4, 5, 6)[:dim], (0.3, 0.2, 0.1)[:dim])
    f = random_field(2, 3, *grid.shape)
    torch.testing.assert_close(sample(f, grid.points(f).expand(2, -1, *grid.shape), grid), f)


@pytest.mark.parametrize("dim", DIMS)
def test_linear_fields_are_sampled_exactly(dim: int) -> None:
    grid = Grid((4, 5, 6)[:dim], (0.3, 0.2, 0.1)[:dim])
    f = grid.points(torch.empty(0, dtype=torch.float64))
    x = torch.rand(1, dim, 50, dtype=torch.float64) * torch.tensor(grid.extent, dtype=torch.float64).view(1, -1, 1)
    torch.testing.assert_close(sample(f, x, grid), x)


def test_outside_is_the_edge_or_zero_from_half_a_voxel_on() -> None:
    grid = Grid((3, 3), (1.0, 1.0))
    f = torch.arange(9.0).view(1, 1, 3, 3)
    x = torch.tensor([[[2.4, 2.6], [1.0, 1.0]]])
    torch.testing.assert_close(sample(f, x, grid), torch.tensor([[[7.0, 7.0]]]))
    torch.testing.assert_close(sample(f, x, grid, outside="zero"), torch.tensor([[[7.0, 0.0]]]))


def test_nearest() -> None:
    grid = Grid((3, 3), (1.0, 1.0))
    f = torch.arange(9.0).view(1, 1, 3, 3)
    assert sample(f, torch.tensor([[[0.6], [1.3]]]), grid, mode="nearest").item() == 4


@pytest.mark.parametrize("dim", DIMS)
def test_upsample_agrees_with_sampling_and_keeps_the_corners(dim: int) -> None:
    fine = Grid((9, 8, 7)[:dim], (0.1,) * dim)
    coarse = fine.coarsen(0.5)
    f = random_field(1, 2, *coarse.shape)
    torch.testing.assert_close(upsample(f, fine), sample(f, fine.points(f), coarse))


def test_downsample_keeps_constants() -> None:
    coarse = Grid((20, 21), (1.0, 1.0)).coarsen(0.3)
    f = torch.full((1, 1, 20, 21), 3.0)
    torch.testing.assert_close(downsample(f, coarse), torch.full((1, 1, *coarse.shape), 3.0))


def test_unknown_values_are_carried_on_from_the_known_ones() -> None:
    grid = Grid((40, 44), (1.0, 1.0))
    f, known = random_field(1, 1, 40, 44), torch.zeros(1, 1, 40, 44, dtype=torch.float64)
    known[..., 5:20, 10:30] = 1
    filled = fill_unknown(known * f, known, grid)
    assert torch.equal(filled[known == 1], f[known == 1])
    assert filled.abs().max() <= f[known == 1].abs().max()
    constant = torch.full_like(f, 0.7)
    torch.testing.assert_close(fill_unknown(known * constant, known, grid), constant)


@pytest.mark.parametrize("axis", [2, 3, 4])
def test_along_axis_has_its_adjoint(axis: int) -> None:
    x = random_field(2, 3, 4, 5, 6)
    matrix = random_field(7, x.shape[axis], seed=1)
    y = random_field(*[7 if a == axis else n for a, n in enumerate(x.shape)], seed=2)
    assert adjoint_gap(lambda f: along_axis(matrix, f, axis), lambda f: along_axis(matrix.T, f, axis), x, y) < 1e-12


def test_gradients() -> None:
    grid = Grid((4, 5), (0.3, 0.2))
    f = random_field(1, 2, 4, 5).requires_grad_()
    x = (grid.points(f) * 0.9 + 0.031).detach().requires_grad_()
    assert gradcheck(lambda f, x: sample(f, x, grid), (f, x))
    assert gradcheck(lambda f: upsample(f, grid.with_shape((7, 9))), (f,))
