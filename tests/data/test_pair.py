from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import centred, picture
from metreg.config import make_settings
from metreg.data.formats import Image
from metreg.data.intensity import standardise
from metreg.data.pair import bring, carry, content_length, extended_box, make_pair
from metreg.data.transforms import Affine, Transform
from metreg.grid import Grid, is_orthogonal, transform_points


def image_with(margin: int, affine: np.ndarray | None = None) -> Image:
    values = np.zeros((30, 32, 28), dtype=np.float32)
    values[margin:-margin, margin:-margin, margin:-margin] = 1 + np.random.default_rng(0).random()
    values[15, 15, 15] = 3
    return Image(values, np.diag([2.0, 2.0, 2.0, 1.0]) if affine is None else affine)


def test_standardised_intensities_lie_between_zero_and_one_whatever_the_outliers() -> None:
    values = np.random.default_rng(0).normal(100, 10, size=10_000)
    values[0] = 1e6
    found = standardise(values)
    assert found.min() == 0 and found.max() == 1
    assert 0.3 < np.median(found) < 0.8


def test_enough_background_needs_no_margin() -> None:
    shape, affine = extended_box(image_with(6), 6)
    assert shape == (30, 32, 28)
    np.testing.assert_array_equal(affine, np.diag([2.0, 2.0, 2.0, 1.0]))


def test_missing_background_is_added() -> None:
    shape, affine = extended_box(image_with(2), 6)
    assert shape == (38, 40, 36)
    np.testing.assert_allclose(transform_points(affine, np.array([[4.0, 4, 4]])), [[0, 0, 0]])


def test_a_sheared_image_gets_an_orthonormal_domain_that_covers_it() -> None:
    sheared = np.array([[2.0, 0.5, 0.1, -20], [0, 2, 0.3, 5], [0.1, 0, 2, 7], [0, 0, 0, 1]])
    image = image_with(6, sheared)
    shape, affine = extended_box(image, 6)
    assert is_orthogonal(affine) and not is_orthogonal(sheared)
    corners = np.array(np.meshgrid(*[(0.0, n - 1) for n in image.shape])).reshape(3, -1).T
    index = transform_points(np.linalg.inv(affine) @ sheared, corners)
    assert index.min() >= 0 and (index <= np.array(shape) - 1).all()


def test_images_are_copied_voxel_by_voxel_where_nothing_has_to_be_interpolated() -> None:
    affine = centred(np.diag([-2.0, 2.0, 2.0]), (20, 22, 24))
    image = Image(picture((20, 22, 24), affine), affine)
    pair = make_pair(image, image, np.eye(4), make_settings(), device=torch.device("cpu"))
    assert pair.grid.length_mm == content_length(image)
    inside = tuple(slice((n - k) // 2, (n - k) // 2 + k) for n, k in zip(pair.grid.shape, image.shape, strict=True))
    np.testing.assert_array_equal(pair.target[0, 0].numpy()[inside], standardise(image.values))
    torch.testing.assert_close(pair.source, pair.target)


def test_the_mask_is_where_both_images_are_known() -> None:
    affine = centred(np.diag([2.0, 2.0]), (40, 40))
    image = Image(picture((40, 40), affine) + 50, affine)
    mask = image.with_values(np.ones((40, 40), dtype=np.float32))
    mask.values[:, :10] = 0
    shift = np.eye(3)
    shift[0, 2] = 8.0  # four voxels
    pair = make_pair(image, image, shift, make_settings(), device=torch.device("cpu"), fixed_mask=mask)
    assert pair.mask is not None
    known = pair.mask[0, 0].numpy()
    assert known.sum() == 36 * 30


@pytest.mark.parametrize("turn", [0.0, 0.1])
def test_an_image_is_carried_as_a_transform_resamples_it(turn: float) -> None:
    image, reference = image_with(4), Image(np.empty((25, 40, 30)), np.diag([2.0, 2.0, 2.0, 1.0]))
    matrix = np.eye(4)
    matrix[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    matrix[:3, 3] = [-6, 4, 2]
    to_index = np.linalg.inv(image.affine) @ matrix @ reference.affine
    found = carry(torch.from_numpy(image.values)[None, None], to_index, reference.shape)
    expected = Transform((Affine(matrix),)).resample(image, reference)
    np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=1e-5)


def test_what_lies_wholly_inside_a_turned_image_is_known_everywhere() -> None:
    affine = centred(np.diag([2.0, 2.0, 2.0]), (40, 40, 40))
    small = centred(np.diag([2.0, 2.0, 2.0]), (15, 15, 15))
    moving, fixed = (Image(picture(shape, a), a) for shape, a in (((40, 40, 40), affine), ((15, 15, 15), small)))
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(0.2), -np.sin(0.2)], [np.sin(0.2), np.cos(0.2)]]
    domain = Grid.of_image(fixed.shape, fixed.affine, 30.0)
    _, known = bring(moving, None, turn, domain, torch.device("cpu"))
    assert bool((known == 1).all())
