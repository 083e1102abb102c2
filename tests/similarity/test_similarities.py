from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck

from helpers import adjoint_gap, random_field
from metreg.core.grid import Grid
from metreg.settings.model import SimilaritySettings
from metreg.similarity import Similarity, window_on
from metreg.similarity.lncc import lncc, window_sum, worth
from metreg.similarity.mi import cubic_b_spline, mutual_information
from metreg.similarity.ncc import ncc
from metreg.similarity.ssd import ssd

ALL = {
    "ssd": ssd,
    "ncc": ncc,
    "lncc": lambda a, b, k=None: lncc(a, b, k, window=3),
    "lncc-noise": lambda a, b, k=None: lncc(a, b, k, window=3, noise=0.3),
    "mi": lambda a, b, k=None: mutual_information(a, b, k),
}


def images(dim: int = 2, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Two different smooth images in (0, 1)."""
    shape = (batch, 1, *(9, 8, 7)[:dim])
    a, b = (torch.sigmoid(random_field(*shape, seed=s)) for s in (0, 1))
    return a, 0.5 * a + 0.5 * b


@pytest.mark.parametrize("name", list(ALL))
@pytest.mark.parametrize("dim", [2, 3])
def test_one_value_a_pair_and_an_image_is_most_like_itself(name: str, dim: int) -> None:
    a, b = images(dim)
    different, same = ALL[name](a, b), ALL[name](b, b)
    assert different.shape == (2,)
    assert (same < different).all() and (different >= 0).all()


@pytest.mark.parametrize("name", list(ALL))
def test_pairs_of_a_batch_do_not_mix(name: str) -> None:
    a, b = images()
    if name.startswith("lncc"):
        a, b = a - a.mean((1, 2, 3), keepdim=True), b - b.mean((1, 2, 3), keepdim=True)
    alone = torch.cat([ALL[name](a[i : i + 1], b[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(ALL[name](a, b), alone, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["ssd", "ncc", "lncc", "mi"])
def test_what_lies_outside_the_mask_does_not_matter(name: str) -> None:
    a, b = images()
    mask = torch.zeros_like(a)
    mask[..., 2:7, 1:6] = 1
    spoilt = torch.where(mask == 1, a, torch.rand_like(a))
    expected = ALL[name](a, b, mask)
    found = ALL[name](spoilt, torch.where(mask == 1, b, torch.rand_like(b)), mask)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ALL[name](a, b, torch.ones_like(a)), ALL[name](a, b))


def test_ssd_is_the_mean_square() -> None:
    a = torch.zeros(1, 1, 4, 4)
    assert ssd(a, a + 0.5).item() == pytest.approx(0.25)


def test_ncc_does_not_see_affine_changes_of_intensity() -> None:
    a, b = images()
    torch.testing.assert_close(ncc(3 * a - 7, b), ncc(a, b))
    torch.testing.assert_close(ncc(-a, b), ncc(a, b))
    assert ncc(2 * b + 1, b).abs().max() < 1e-12


def test_lncc_does_not_see_affine_changes_of_intensity_where_there_is_contrast() -> None:
    a, b = images()
    torch.testing.assert_close(lncc(3 * a - 7, b, window=5), lncc(a, b, window=5), atol=2e-4, rtol=0)


def test_ncc_is_the_correlation() -> None:
    a, b = images(batch=1)
    r = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
    torch.testing.assert_close(ncc(a, b), (1 - r**2)[None])


@pytest.mark.parametrize("name", ["ncc", "lncc", "mi"])
def test_constant_images_give_finite_values_and_gradients(name: str) -> None:
    a = torch.full((1, 1, 8, 8), 0.5, requires_grad=True)
    value = ALL[name](a, torch.rand(1, 1, 8, 8))
    assert value.isfinite().all()
    value.sum().backward()
    assert a.grad is not None and a.grad.isfinite().all()


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("window", [3, 5, 21])
def test_box_sums_equal_a_convolution(window: int, dim: int) -> None:
    f = random_field(2, 1, *(9, 8, 7)[:dim])
    kernel = torch.ones(1, 1, *[window] * dim, dtype=f.dtype)
    expected = (F.conv2d if dim == 2 else F.conv3d)(f, kernel, padding=window // 2)
    torch.testing.assert_close(window_sum(f, window), expected)


def test_windows_are_symmetric() -> None:
    x, y = random_field(1, 1, 7, 9), random_field(1, 1, 7, 9, seed=1)
    window = lambda f: window_sum(f, 3)  # noqa: E731
    assert adjoint_gap(window, window, x, y) < 1e-12


def test_lncc_in_one_voxels_window_is_the_correlation_there() -> None:
    a, b = images(batch=1)
    centre = torch.zeros_like(a)
    centre[..., 3:6, 3:6] = 1  # the mask cuts every window to these nine voxels at the middle one
    r = torch.corrcoef(torch.stack([a[centre == 1], b[centre == 1]]))[0, 1]
    found = lncc(a, b, centre, window=7)
    torch.testing.assert_close(found, (1 - r**2)[None], atol=2e-3, rtol=0)


def test_b_splines_sum_to_one() -> None:
    at = torch.linspace(0, 1, 20, dtype=torch.float64)
    total = sum(cubic_b_spline(at - k) for k in (-1, 0, 1, 2))
    torch.testing.assert_close(total, torch.ones_like(at))


def test_mutual_information_of_independent_images_is_small_and_survives_any_one_to_one_change() -> None:
    a, b = torch.rand(1, 1, 200, 200, dtype=torch.float64), torch.rand(1, 1, 200, 200, dtype=torch.float64)
    assert mutual_information(a, b, bins=16).item() > 0.98
    steps = (b * 8).floor() / 8
    assert mutual_information((steps * 3.7).frac(), steps, bins=16).item() < 0.6


@pytest.mark.parametrize("name", list(ALL))
def test_gradients(name: str) -> None:
    a, b = images(batch=1)
    a, b = a[..., :5, :4].clone().requires_grad_(), b[..., :5, :4]
    mask = torch.rand_like(b)
    assert gradcheck(lambda a: ALL[name](a, b), (a,), atol=2e-4)
    assert gradcheck(lambda a: ALL[name](a, b, mask), (a,), atol=2e-4)


@pytest.mark.parametrize(("spacing", "voxels"), [(0.005, 11), (0.008, 7), (0.01, 5), (0.3, 5)])
def test_a_window_may_be_as_wide_at_every_resolution(spacing: float, voxels: int) -> None:
    grid = Grid((20, 20, 20), (spacing,) * 3)
    assert window_on(grid, 0.055) == voxels and window_on(grid, 9) == 9


@pytest.mark.parametrize("name", ["ssd", "ncc", "lncc", "lncc-noise", "mi"])
def test_settings_name_them_all(name: str) -> None:
    a, b = images()
    noise = 0.3 if name == "lncc-noise" else 0.0
    given = {"name": name.partition("-")[0], "window": 3, "noise": noise}
    settings = SimilaritySettings.model_validate(given)
    torch.testing.assert_close(Similarity(settings)(a, b, Grid.unit_cube(tuple(a.shape[2:]))), 100 * ALL[name](a, b))


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5])
def test_worth_goes_from_none_to_all_and_steeper_towards_full_correlation(noise: float) -> None:
    correlation = torch.linspace(0, 1, 11, dtype=torch.float64, requires_grad=True)
    found = worth(correlation, noise)
    torch.testing.assert_close(found[[0, -1]], torch.tensor([0.0, 1.0], dtype=torch.float64))
    (slope,) = torch.autograd.grad(found.sum(), correlation)
    assert bool((slope > 0).all()) and bool((slope.diff() > -1e-12).all())


def test_much_noise_is_plain_correlation() -> None:
    correlation = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(worth(correlation, 1e6), correlation, rtol=0, atol=1e-6)
