from __future__ import annotations

import numpy as np
import pytest
import torch

from metreg.core.grid import Grid, is_orthogonal, transform_points
from metreg.errors import MetregError


def test_unit_cube_runs_from_zero_to_one() -> None:
    grid = Grid.unit_cube((5, 9))
    points = grid.points(torch.empty(0, dtype=torch.float64))
    assert points.shape == (1, 2, 5, 9)
    assert points.amin() == 0
    torch.testing.assert_close(points.amax((0, 2, 3)), torch.ones(2, dtype=torch.float64))


def test_coarsen_gives_the_size_of_the_paper_and_keeps_the_corners() -> None:
    grid = Grid((229, 193, 193), (0.005,) * 3, length_mm=200)
    coarse = grid.coarsen(0.4)
    assert coarse.shape == (92, 78, 78)
    np.testing.assert_allclose(coarse.extent, grid.extent)
    corner = np.array([[n - 1.0 for n in coarse.shape]])
    np.testing.assert_allclose(transform_points(coarse.affine, corner), np.array([grid.extent]) * 200)


def test_thick_slices_are_not_taken_farther_apart_before_voxels_are_cubes() -> None:
    grid = Grid((100, 120, 20), (0.005, 0.005, 0.025))
    assert grid.shares(0.5) == (0.5, 0.5, 1.0)
    np.testing.assert_allclose(grid.shares(0.1), (0.1, 0.1, 0.5))
    assert grid.coarsen(grid.shares(0.5)).shape == (50, 60, 20)
    assert Grid((100, 120, 60), (0.005, 0.005, 0.0100001)).shares(0.5) == (0.5, 0.5, 1.0)
    assert Grid((100, 120), (0.005, 0.0055)).shares(0.4) == (0.4, 0.4)  # as good as cubes
    assert Grid.unit_cube((100, 20)).shares(0.4) == (0.4, 0.4)  # whose axes have units of their own


def test_local_to_world_agrees_with_the_affine() -> None:
    affine = np.array([[0.0, -2, 0, 5], [3, 0, 0, -7], [0, 0, 1.5, 2], [0, 0, 0, 1]])
    grid = Grid.of_image((4, 5, 6), affine, length_mm=100)
    index = np.array([[1.0, 2, 3]])
    local = index * np.array(grid.spacing)
    np.testing.assert_allclose(transform_points(grid.local_to_world(), local), transform_points(affine, index))


def test_shear_is_seen() -> None:
    assert is_orthogonal(np.diag([1.0, 2, 3, 1]))
    assert not is_orthogonal(np.array([[1.0, 0.1, 0], [0, 1, 0], [0, 0, 1]]))


@pytest.mark.parametrize(("shape", "spacing"), [((5, 1), (1.0, 1.0)), ((5, 5), (1.0, 0.0)), ((5, 5), (1.0,))])
def test_impossible_grids_are_refused(shape: tuple[int, ...], spacing: tuple[float, ...]) -> None:
    with pytest.raises(MetregError, match="grid"):
        Grid(shape, spacing)
