from __future__ import annotations

import math
from functools import reduce

import pytest
import torch
from torch.autograd import gradcheck

from helpers import adjoint_gap, random_field
from metreg.core.grid import Grid
from metreg.core.resample import along_axis
from metreg.metric.gaussian import FourierGaussians, SeparableGaussians, make_gaussians

SIGMA = torch.tensor([0.01, 0.05, 0.1, 0.2], dtype=torch.float64)
REALISATIONS = ["fourier", "separable"]


def grid_of(dim: int) -> Grid:
    return Grid((12, 9, 10)[:dim], (0.07, 0.09, 0.11)[:dim])


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("realisation", REALISATIONS)
def test_symmetric(realisation: str, dim: int) -> None:
    gaussians = make_gaussians(grid_of(dim), SIGMA, realisation)  # type: ignore[arg-type]
    x, y = (random_field(1, 4, dim, *grid_of(dim).shape, seed=s) for s in (0, 1))
    assert adjoint_gap(gaussians.each, gaussians.each, x, y) < 1e-12


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("realisation", REALISATIONS)
def test_the_matrices_along_the_axes_do_the_same(realisation: str, dim: int) -> None:
    gaussians = make_gaussians(grid_of(dim), SIGMA, realisation)  # type: ignore[arg-type]
    f = random_field(2, 4, dim, *grid_of(dim).shape)
    expected = torch.stack(
        [reduce(lambda g, d: along_axis(gaussians.matrices[d][i], g, d + 2), range(dim), f[:, i]) for i in range(4)], dim=1
    )
    torch.testing.assert_close(gaussians.each(f), expected)


@pytest.mark.parametrize("realisation", REALISATIONS)
def test_positive_definite_up_to_underflow(realisation: str) -> None:
    grid = Grid((7, 6), (0.1, 0.12))
    gaussians = make_gaussians(grid, SIGMA, realisation)  # type: ignore[arg-type]
    basis = torch.eye(42, dtype=torch.float64).view(42, 1, 1, 7, 6)
    for i in range(4):
        matrix = gaussians.each(basis)[:, i, 0].reshape(42, 42)
        assert torch.linalg.eigvalsh(matrix).min() > -1e-14


def test_a_cosine_is_damped_by_its_known_factor() -> None:
    n, waves = 64, 3
    grid = Grid((n, 4), (1 / n, 1 / n))  # period 1, as the Fourier kernel has it
    x = grid.points(SIGMA)[:, :1]
    cosine = torch.cos(2 * math.pi * waves * x)
    smooth = FourierGaussians(grid, SIGMA).each(cosine[:, None])
    omega = 2 * math.pi * waves
    for i, sigma in enumerate(SIGMA):
        torch.testing.assert_close(smooth[:, i], cosine * math.exp(-0.5 * (float(sigma) * omega) ** 2))


def test_the_separable_kernel_damps_a_cosine_alike_far_from_the_border() -> None:
    grid = Grid((201, 201), (0.01, 0.01))
    sigma = torch.tensor([0.05], dtype=torch.float64)
    x = grid.points(sigma)[:, :1]
    omega = 2 * math.pi * 3
    cosine = torch.cos(omega * x)
    smooth = SeparableGaussians(grid, sigma).each(cosine[:, None])[:, 0]
    factor = math.exp(-0.5 * (0.05 * omega) ** 2)
    torch.testing.assert_close(smooth[..., 100, 100], factor * cosine[..., 100, 100], atol=1e-10, rtol=0)


def test_separable_does_not_wrap_round_and_fourier_does() -> None:
    grid = Grid((40, 40), (0.02, 0.02))
    f = torch.zeros(1, 1, 1, 40, 40, dtype=torch.float64)
    f[..., 0, 20] = 1
    sigma = torch.tensor([0.05], dtype=torch.float64)
    assert SeparableGaussians(grid, sigma).each(f)[..., -1, 20].abs().max() < 1e-12
    assert FourierGaussians(grid, sigma).each(f)[..., -1, 20].abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_numbers_tell_what_a_wide_gaussian_leaves(dtype: torch.dtype) -> None:
    grid = Grid((60, 48, 56), (0.013, 0.016, 0.014))
    gaussians = SeparableGaussians(grid, SIGMA.to(dtype))
    f = random_field(2, 1, 3, *grid.shape).to(dtype)
    dense = f.double()
    for d, matrix in enumerate(gaussians.matrices):
        dense = torch.einsum(
            "nij,bnc...j->bnc...i", matrix.double(), dense.expand(-1, 4, -1, -1, -1, -1).movedim(3 + d, -1)
        )
        dense = dense.movedim(-1, 3 + d)
    assert gaussians.factors[0] is None  # a narrow one leaves all there is
    assert gaussians.factors[-1] is not None
    gap = (gaussians.each(f).double() - dense).norm() / dense.norm()
    assert gap < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("realisation", REALISATIONS)
def test_local_is_the_sum_of_each(realisation: str) -> None:
    grid = grid_of(2)
    gaussians = make_gaussians(grid, SIGMA, realisation)  # type: ignore[arg-type]
    f, w = random_field(2, 2, *grid.shape), random_field(2, 4, *grid.shape, seed=1).abs()
    root = w.sqrt()[:, :, None]
    torch.testing.assert_close(gaussians.local(f, w), (root * gaussians.each(root * f[:, None])).sum(1))


@pytest.mark.parametrize("realisation", REALISATIONS)
def test_mixed_is_the_sum_of_each(realisation: str) -> None:
    grid = grid_of(3)
    gaussians = make_gaussians(grid, SIGMA, realisation)  # type: ignore[arg-type]
    f, w = random_field(2, 3, *grid.shape), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    expected = torch.einsum("n,bn...->b...", w, gaussians.each(f[:, None]))
    torch.testing.assert_close(gaussians.mixed(f, w), expected)


@pytest.mark.parametrize("realisation", REALISATIONS)
def test_gradients(realisation: str) -> None:
    grid = Grid((4, 5), (0.1, 0.1))
    gaussians = make_gaussians(grid, SIGMA[1:3], realisation)  # type: ignore[arg-type]
    assert gradcheck(gaussians.each, (random_field(1, 2, 2, 4, 5).requires_grad_(),))
    w = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    assert gradcheck(gaussians.mixed, (random_field(1, 2, 4, 5).requires_grad_(), w))
