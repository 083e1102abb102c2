"""Regularity of transforms as other tools may write them."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import centred
from metreg.core.grid import world_points
from metreg.io.image import Image
from metreg.io.transforms import Affine, Field, Transform
from metreg.measure.regions import regions_of
from metreg.measure.regularity import check_written, determinants, jacobian_facts

SHAPE = (9, 8, 7)
AXES = {
    "ras": np.diag([2.0, 2.0, 3.0]),
    "las": np.diag([-2.0, 2.0, 3.0]),
    "oblique": np.array([[1.6, -1.2, 0.0], [1.2, 1.6, 0.0], [0.0, 0.0, 3.0]]),
}


def field(shape: tuple[int, ...], affine: np.ndarray, matrix: np.ndarray) -> Field:
    """The linear map x -> matrix x as a displacement field."""
    points = world_points(shape, affine)
    u = (points @ matrix.T - points).T.reshape(len(matrix), *shape)
    return Field(u.astype(np.float32), affine)


@pytest.mark.parametrize("name", AXES)
def test_determinants_are_those_of_the_deformation_without_its_affine(name: str) -> None:
    affine = centred(AXES[name], SHAPE)
    image = Image(np.zeros(SHAPE, np.float32), affine, "image")
    stretch = np.diag([1.1, 0.9, 1.2])
    turned = np.eye(4)
    turned[:3, :3] = 1.5 * np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    transform = Transform((field(SHAPE, affine, stretch), Affine(turned)))
    found = determinants(transform, image, image)[2:-2, 2:-2, 2:-2]
    assert np.allclose(found, 1.1 * 0.9 * 1.2, atol=1e-4)
    assert check_written(transform)[0] == 0


@pytest.mark.parametrize("name", AXES)
def test_a_mirror_folds_everywhere(name: str) -> None:
    affine = centred(AXES[name], SHAPE)
    folds, smallest, holds = check_written(Transform((field(SHAPE, affine, np.diag([-1.0, 1, 1])),)))
    assert folds == np.prod(SHAPE) and smallest == pytest.approx(-1, abs=1e-4) and not holds


def test_a_single_slice_is_tested_in_its_plane() -> None:
    affine = centred(AXES["oblique"], (9, 8, 1))
    good = Field(np.zeros((3, 9, 8, 1), np.float32), affine)
    assert check_written(Transform((good,))) == (0, pytest.approx(1.0), True)
    bad = np.zeros((3, 9, 8, 1), np.float32)
    bad[:, 4, 4, 0] = affine[:3, 0] * 1.5  # past its neighbour
    folds, smallest, _ = check_written(Transform((Field(bad, affine),)))
    assert folds > 0 and smallest < 0


def test_affine_transforms_have_nothing_to_certify() -> None:
    assert check_written(Transform((Affine(np.diag([2.0, 2, 2, 1])),))) == (0, float("inf"), True)


def test_facts_of_determinants() -> None:
    facts = jacobian_facts(np.exp(np.array([-1.0, 1.0])))
    assert facts["log_std"] == pytest.approx(1.0) and facts["mean"] == pytest.approx(np.cosh(1.0))


def test_regions_by_hand() -> None:
    before = np.array([[1, 1, 0], [2, 2, 2]])
    after = np.array([[1, 0, 0], [2, 2, 0]])
    sigma = np.array([[10.0, 20, 0], [30, 30, 30]])
    moved = np.array([[3.0, 0, 0], [1, 2, 0]])
    det = np.exp(np.array([[0.5, 0, 0], [-1, 1, 0]]))
    one, two = regions_of(before, after, sigma=sigma, displacement=moved, jacobian=det, voxel_ml=0.5, names={2: "two"})
    assert (one.label, one.sigma_mm, one.volume_ml, one.displacement_mm) == (1, 15.0, 1.0, 3.0)
    assert one.log_spread == 0 and one.determinant == pytest.approx(np.exp(0.5))
    assert (two.name, two.sigma_mm, two.displacement_mm) == ("two", 30.0, 1.5)
    assert two.log_spread == pytest.approx(1.0)
