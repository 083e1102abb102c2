from __future__ import annotations

import pytest
import torch
from test_steps import smooth_velocity
from torch import Tensor

from helpers import random_field
from metreg.core.fields import determinant, gradient, jacobian_determinant
from metreg.core.grid import Grid
from metreg.deformation.maps import bernstein_minimum, certify, compose, count_folds, invert, smooth_out_folds
from metreg.deformation.stationary import flow


def identity(grid: Grid) -> Tensor:
    return grid.points(torch.empty(0, dtype=torch.float64))


@pytest.mark.parametrize("dim", [2, 3])
def test_compose_with_the_identity_changes_nothing(dim: int) -> None:
    grid = Grid.unit_cube((8, 9, 7)[:dim])
    phi = flow(smooth_velocity(grid), grid)
    torch.testing.assert_close(compose(phi, identity(grid), grid), phi)
    torch.testing.assert_close(compose(identity(grid), phi, grid), phi)


@pytest.mark.parametrize("dim", [2, 3])
def test_invert(dim: int) -> None:
    grid = Grid.unit_cube((24, 25, 22)[:dim])
    phi = flow(smooth_velocity(grid, 0.4), grid)
    there_and_back = compose(phi, invert(phi, grid), grid)
    voxels = (there_and_back - identity(grid)) / torch.tensor(grid.spacing).view(1, -1, *[1] * dim)
    assert voxels.abs().max() < 2e-3


@pytest.mark.parametrize("dim", [2, 3])
def test_maps_that_go_zigzag_are_inverted_too(dim: int) -> None:
    """Central differences do not see how sharply they bend: a step by those leads nowhere."""
    n = 14
    grid, index = Grid.unit_cube((n,) * dim), torch.meshgrid(*[torch.arange(n)] * dim, indexing="ij")
    inside = torch.stack([torch.minimum(i, n - 1 - i) for i in index]).amin(0).clamp(max=4) / 4
    shift = torch.stack([(-1.0) ** index[(d + 1) % dim] for d in range(dim)]) * inside
    phi = identity(grid) + 0.45 / (n - 1) * shift
    assert certify(phi, grid).holds
    assert ((compose(phi, invert(phi, grid), grid) - identity(grid)) * (n - 1)).abs().max() < 1e-3


@pytest.mark.parametrize("dim", [2, 3])
def test_folds_are_smoothed_out_where_they_are_and_nowhere_else(dim: int) -> None:
    grid = Grid.unit_cube((24, 25, 22)[:dim])
    fine = flow(smooth_velocity(grid, 0.2), grid)
    assert smooth_out_folds(fine, grid) is fine
    folded = fine.clone()
    folded[:, :, *[slice(8, 12)] * dim] += 0.06 * random_field(1, dim, *[4] * dim, seed=1)
    both = torch.cat([fine, folded])
    assert certify(fine, grid).holds and not certify(folded, grid).holds
    found = smooth_out_folds(both, grid)
    assert certify(found[1:], grid).holds
    torch.testing.assert_close(found[:1], fine, rtol=0, atol=0)
    far = torch.ones(grid.shape, dtype=torch.bool)
    far[*[slice(4, 16)] * dim] = False
    torch.testing.assert_close(found[1][:, far], fine[0][:, far], rtol=0, atol=0)


def test_maps_are_inverted_each_for_itself_and_nothing_is_made_of_what_is_no_number() -> None:
    grid = Grid.unit_cube((14, 12))
    maps = torch.cat([flow(smooth_velocity(grid, size), grid) for size in (0.1, 0.4, 0.2)])
    maps[2, 0, 5, 5] = torch.nan
    found = invert(maps, grid)
    for i in (0, 1):
        torch.testing.assert_close(found[i : i + 1], invert(maps[i : i + 1], grid))
    assert not torch.isfinite(compose(maps[2:], found[2:], grid)[0, 0, 5, 5])


@pytest.mark.parametrize("dim", [2, 3])
def test_the_identity_and_smooth_flows_do_not_fold(dim: int) -> None:
    grid = Grid.unit_cube((12, 10, 11)[:dim])
    for phi in (identity(grid), flow(smooth_velocity(grid), grid)):
        assert count_folds(phi, grid).tolist() == [0]
        certificate = certify(phi, grid)
        assert certificate.holds and certificate.smallest > 0.3


@pytest.mark.parametrize("dim", [2, 3])
def test_the_strict_test_finds_a_fold_that_central_differences_miss(dim: int) -> None:
    grid = Grid((9,) * dim, (1.0,) * dim)
    phi = identity(grid)
    phi[(0, 0, *[4] * dim)] += 1.4  # one point overtakes its neighbour; two steps still go forward
    assert jacobian_determinant(phi, grid).min() > 0
    assert int(count_folds(phi, grid)) > 0
    assert not certify(phi, grid).holds


def test_folds_at_the_border_count() -> None:
    grid = Grid((6, 6), (1.0, 1.0))
    phi = identity(grid)
    phi[0, 0, 0, 3] = 1.5
    assert int(count_folds(phi, grid)) > 0


def trilinear_determinants(phi: Tensor, samples: int) -> Tensor:
    """det D phi of one cell's multilinear map at samples^D points, by automatic differentiation."""
    dim = phi.shape[1]
    t = torch.linspace(0, 1, samples, dtype=phi.dtype)
    points = torch.stack([axis.flatten() for axis in torch.meshgrid(*[t] * dim, indexing="ij")], dim=1)

    def value(x: Tensor) -> Tensor:
        out = torch.zeros(dim, dtype=phi.dtype)
        for corner in torch.cartesian_prod(*[torch.arange(2)] * dim):
            weight = torch.prod(torch.where(corner == 1, x, 1 - x))
            out = out + weight * phi[(0, slice(None), *corner.tolist())]
        return out

    return torch.linalg.det(torch.func.vmap(torch.func.jacrev(value))(points))


@pytest.mark.parametrize("dim", [2, 3])
def test_bernstein_coefficients_bound_the_determinant_inside_a_cell(dim: int) -> None:
    grid = Grid((2,) * dim, (1.0,) * dim)
    for seed in range(30):
        phi = identity(grid) + 0.3 * random_field(1, dim, *grid.shape, seed=seed)
        bound = float(bernstein_minimum(phi, grid).min())
        inside = trilinear_determinants(phi, 7)
        assert bound <= float(inside.min()) + 1e-12
        if dim == 2:  # there the coefficients are the corners
            assert bound == pytest.approx(float(inside.view(7, 7)[::6, ::6].min()))


def test_the_certificate_rejects_a_cell_whose_corners_are_positive_but_whose_inside_folds() -> None:
    grid = Grid((2, 2, 2), (1.0, 1.0, 1.0))
    generator = torch.Generator().manual_seed(1)
    for _ in range(20_000):
        noise = torch.randn((1, 3, 2, 2, 2), generator=generator, dtype=torch.float64)
        phi = identity(grid) + 0.45 * noise
        if int(count_folds(phi, grid)) == 0 and trilinear_determinants(phi, 5).min() < -1e-3:
            break
    else:
        pytest.fail("no such cell was drawn")
    assert certify(phi, grid).smallest < 0
    assert determinant(gradient(phi, grid)).shape == (1, 2, 2, 2)


def test_a_border_that_moves_is_no_certificate() -> None:
    grid = Grid.unit_cube((8, 8))
    certificate = certify(identity(grid) + 0.01, grid)
    assert certificate.smallest == pytest.approx(1)
    assert not certificate.border_fixed and not certificate.holds
