"""Cubic splines: through their points, of order four, as scipy has them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from helpers import random_field
from metreg.core.splines import coefficients, sample_splines
from metreg.kernels import plain_torch


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", [(9, 12), (7, 2, 5), (2, 3)])
def test_they_are_those_of_scipy(shape: tuple[int, ...]) -> None:
    f = random_field(1, 2, *shape)
    x = torch.rand(1, len(shape), 500, dtype=torch.float64) * (torch.tensor(shape).view(1, -1, 1) - 1)
    c = coefficients(f)
    with plain_torch():
        plain = sample_splines(c, x)
    for found in (plain, sample_splines(c, x)):
        for mine, values in zip(found[0], f[0], strict=True):
            expected = map_coordinates(values.numpy(), x[0].numpy(), order=3, mode="mirror")
            np.testing.assert_allclose(mine.numpy(), expected, atol=1e-12)


def test_they_go_through_their_points_and_beyond_the_image_stay_as_at_its_border() -> None:
    f = random_field(1, 1, 6, 7)
    points = torch.stack(torch.meshgrid(torch.arange(6.0), torch.arange(7.0), indexing="ij")).double()[None]
    c = coefficients(f)
    torch.testing.assert_close(sample_splines(c, points), f)
    outside = torch.tensor([[-3.0, 9.0], [2.0, 2.0]], dtype=torch.float64)[None]
    torch.testing.assert_close(sample_splines(c, outside)[0, 0], f[0, 0, [0, 5], 2])
    with plain_torch():
        torch.testing.assert_close(sample_splines(c, points), f)
        torch.testing.assert_close(sample_splines(c, outside)[0, 0], f[0, 0, [0, 5], 2])


def test_order_four() -> None:
    """Cosines that are even at both ends, as the spline is."""
    errors = []
    for n in (17, 33, 65):
        wave = torch.cos(3 * torch.pi * torch.linspace(0, 1, n, dtype=torch.float64))
        x = torch.rand(1, 2, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        found = sample_splines(coefficients((wave[:, None] * wave)[None, None]), (n - 1) * x)
        errors.append(float((found[0, 0] - torch.cos(3 * torch.pi * x[0]).prod(0)).abs().max()))
    slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert min(slopes) > 3.7
