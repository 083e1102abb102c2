from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import centred, picture
from metreg.core.grid import Grid, is_orthogonal, transform_points
from metreg.io.image import Image, standardise
from metreg.io.transforms import Affine, Transform
from metreg.prepare.pair import (
    average_over_voxels,
    bring,
    carry,
    content_box,
    content_length,
    domain_box,
    domain_of,
    make_pair,
    shown_by,
)
from metreg.settings.model import make_settings


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
    shape, affine = domain_box(image_with(6), np.full(3, 6))
    assert shape == (30, 32, 28)
    np.testing.assert_array_equal(affine, np.diag([2.0, 2.0, 2.0, 1.0]))


def test_missing_background_is_added() -> None:
    shape, affine = domain_box(image_with(2), np.full(3, 6))
    assert shape == (38, 40, 36)
    np.testing.assert_allclose(transform_points(affine, np.array([[4.0, 4, 4]])), [[0, 0, 0]])


def test_background_far_from_what_both_images_show_is_left_out() -> None:
    image = image_with(10)
    moving = np.array([6, 12, 12]), np.array([15, 24, 15])
    shape, affine = domain_box(image, np.full(3, 6), moving)
    assert shape == (30 - 0 - 4, 32 - 4 - 1, 28 - 4 - 4)
    np.testing.assert_array_equal(transform_points(affine, np.zeros((1, 3))), [[0, 8, 8]])


def test_where_an_image_shows_something_on_another_grid() -> None:
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    first, last = shown_by(image_with(10), np.linalg.inv(affine))
    np.testing.assert_array_equal([first, last], [[10, 10, 10], [19, 21, 17]])
    affine[:3, 3] = 8
    first, last = shown_by(image_with(10), np.linalg.inv(affine))
    np.testing.assert_array_equal([first, last], [[6, 6, 6], [15, 17, 13]])


def test_images_in_much_background_are_registered_where_they_show_something() -> None:
    affine, settings = centred(np.diag([2.0, 2.0, 2.0]), (20, 22, 24)), make_settings()
    small = Image(picture((20, 22, 24), affine), affine)
    values, apart = np.pad(small.values, 30), affine.copy()
    apart[:3, 3] -= 60
    large = Image(values, apart)
    shapes = [
        make_pair(moving, fixed, np.eye(4), settings, device=torch.device("cpu")).grid.shape
        for moving, fixed in ((small, large), (large, large))
    ]
    first, last = content_box(large)
    assert shapes == [tuple(last - first + 1 + 2 * 6)] * 2
    mask = Image(np.ones(large.shape, dtype=np.uint8), apart)
    masked = make_pair(large, large, np.eye(4), settings, device=torch.device("cpu"), fixed_mask=mask)
    assert (
        masked.grid.shape == large.shape
    )  # beside something bright that is masked out, tissue would seem to be background


def test_a_sheared_image_gets_an_orthonormal_domain_that_covers_it() -> None:
    sheared = np.array([[2.0, 0.5, 0.1, -20], [0, 2, 0.3, 5], [0.1, 0, 2, 7], [0, 0, 0, 1]])
    image = image_with(6, sheared)
    shape, affine = domain_box(image, np.full(3, 6))
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


def test_thick_slices_get_a_margin_by_the_voxels_of_their_map() -> None:
    thick = image_with(2, np.diag([1.0, 1.0, 5.0, 1.0]))
    assert domain_of(thick, make_settings()).shape == (30 + 2 * 4, 32 + 2 * 4, 28 + 2 * 1)


def test_a_coarser_grid_sees_averages_of_an_image() -> None:
    fine = Grid((60, 64), (1.0, 1.0))
    wave = torch.cos(torch.pi * torch.arange(60) * 2 / 2.3)[:, None].expand(60, 64)[None, None]
    image = Image((1 + wave[0, 0]).numpy(), np.eye(3))
    coarse = Grid.of_image((20, 22), np.diag([3.0, 3.0, 1.0]), 1.0)
    brought, _ = bring(image, None, np.eye(3), coarse, torch.device("cpu"))
    assert float(brought[..., 2:-2, 2:-2].std()) < 0.05  # of 0.35: a wave of 2.3 voxels is hardly seen in voxels of 3
    turn = np.array([[0.6, -0.8, 1.0], [0.8, 0.6, 2.0], [0, 0, 1]])
    assert average_over_voxels(wave, turn) is wave  # as wide, however it is turned
    flat = torch.ones(1, 1, *fine.shape)
    torch.testing.assert_close(average_over_voxels(flat, np.diag([3.0, 2.0, 1.0])), flat)
    ramp = torch.arange(60.0)[:, None].expand(60, 64)[None, None]
    smooth = average_over_voxels(ramp, np.diag([3.0, 1.0, 1.0]))
    torch.testing.assert_close(smooth[..., 5:-5, :], ramp[..., 5:-5, :])  # nothing is shifted


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


@pytest.mark.parametrize("shape", [(24, 25), (24, 25, 26)])
def test_between_voxels_images_are_carried_sharply(shape: tuple[int, ...]) -> None:
    """A wave of eight voxels, whose highest and lowest points are voxels, a quarter of a voxel on."""
    axes = [torch.cos(2 * torch.pi / 8 * torch.arange(n, dtype=torch.float64)) for n in shape]
    wave = torch.stack(torch.meshgrid(*axes, indexing="ij")).sum(0)[None, None]
    matrix = np.eye(len(shape) + 1)
    matrix[:-1, -1] = 0.25
    between = [torch.cos(2 * torch.pi / 8 * (torch.arange(n, dtype=torch.float64) + 0.25)) for n in shape]
    truth = torch.stack(torch.meshgrid(*between, indexing="ij")).sum(0)
    inside = tuple(slice(4, -4) for _ in shape)
    linear, sharp = (carry(wave, matrix, shape, sharply=sharply)[0, 0] for sharply in (False, True))
    off = [float((found - truth)[inside].abs().max()) for found in (linear, sharp)]
    assert off[1] < 0.4 * off[0]
    assert wave.min() <= sharp.min() and sharp.max() <= wave.max()
    matrix[:-1, -1] = -3.25  # three voxels of nothing come first
    carried = carry(wave + 5, matrix, shape, sharply=True)[0, 0]
    behind = tuple(slice(3, None) for _ in shape)
    assert float(carried[:3].abs().max()) == 0 and float(carried[behind].min()) > 0


def test_what_a_mask_leaves_out_does_not_ring_inside_of_it() -> None:
    """Tissue of 0.3, and beside it, outside the mask, something bright; everything half a voxel on."""
    values = np.full((40, 22, 24), 0.3, dtype=np.float32)
    values[:2], values[2:4], values[32:] = 0.0, 1.0, 1.0
    mask = np.zeros(values.shape, dtype=np.uint8)
    mask[:32] = 1
    shift = np.eye(4)
    shift[:3, 3] = 0.5
    image = Image(values, np.eye(4))
    found, known = bring(image, Image(mask, np.eye(4)), shift, Grid(values.shape, (1.0,) * 3), torch.device("cpu"))
    assert image.scaled_in(Image(mask, np.eye(4)))[16, 5, 5] == pytest.approx(0.3)
    near = found[0, 0, 20:][known[0, 0, 20:] == 1]
    assert len(near) and float((near - 0.3).abs().max()) < 0.003


def test_what_is_too_large_or_too_flat_to_be_carried_sharply_is_carried_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.eye(4)
    matrix[:-1, -1] = 0.25
    flat, large = (torch.rand(1, 1, *shape, dtype=torch.float64) for shape in ((6, 7, 1), (6, 7, 8)))
    monkeypatch.setattr("metreg.prepare.pair.LONGEST_SHARP", 7)
    for f in (flat, large):
        torch.testing.assert_close(
            carry(f, matrix, f.shape[2:], sharply=True), carry(f, matrix, f.shape[2:]), atol=0, rtol=0
        )
