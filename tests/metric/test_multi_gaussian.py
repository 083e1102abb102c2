from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from helpers import adjoint_gap, random_field
from metreg.core.grid import Grid
from metreg.metric.gaussian import make_gaussians
from metreg.metric.multi_gaussian import MultiGaussian, border_window, default_weights

SIGMA = torch.tensor([0.01, 0.05, 0.1, 0.2], dtype=torch.float64)


def local_weights(grid: Grid, seed: int = 0) -> Tensor:
    return torch.softmax(2 * random_field(1, 4, *grid.shape, seed=seed), dim=1)


def metric_on(grid: Grid, realisation: str, w: Tensor, window: int = 2) -> MultiGaussian:
    gaussians = make_gaussians(grid, SIGMA, realisation)  # type: ignore[arg-type]
    return MultiGaussian(gaussians, w, border_window(grid, window, SIGMA) if window else None)


def test_default_weights_are_the_papers() -> None:
    torch.testing.assert_close(
        default_weights(SIGMA),
        torch.tensor([0.0019, 0.0475, 0.1901, 0.7605], dtype=torch.float64),
        atol=5e-5,
        rtol=0,
    )


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("realisation", ["fourier", "separable"])
@pytest.mark.parametrize("kind", ["global", "local"])
def test_sharp_is_symmetric_and_positive(kind: str, realisation: str, dim: int) -> None:
    grid = Grid((9, 8, 7)[:dim], (0.05, 0.06, 0.07)[:dim])
    w = default_weights(SIGMA) if kind == "global" else local_weights(grid)
    metric = metric_on(grid, realisation, w)
    m1, m2 = (random_field(1, dim, *grid.shape, seed=s) for s in (1, 2))
    assert adjoint_gap(metric.sharp, metric.sharp, m1, m2) < 1e-12
    assert (m1 * metric.sharp(m1)).sum() > 0


@pytest.mark.parametrize("realisation", ["fourier", "separable"])
def test_the_local_kernel_is_positive_definite(realisation: str) -> None:
    grid = Grid((6, 5), (0.05, 0.06))
    basis = torch.eye(30, dtype=torch.float64).view(30, 1, 6, 5)
    metric = metric_on(grid, realisation, local_weights(grid).expand(30, -1, -1, -1), window=0)
    assert torch.linalg.eigvalsh(metric.sharp(basis).reshape(30, 30)).min() > 0


@pytest.mark.parametrize("realisation", ["fourier", "separable"])
def test_constant_weights_give_the_global_kernel(realisation: str) -> None:
    grid = Grid((9, 8), (0.05, 0.06))
    w = default_weights(SIGMA)
    m = random_field(2, 2, *grid.shape)
    everywhere = w.view(1, 4, 1, 1).expand(2, 4, *grid.shape)
    expected = metric_on(grid, realisation, w).sharp(m)
    torch.testing.assert_close(metric_on(grid, realisation, everywhere).sharp(m), expected)


@pytest.mark.parametrize("dim", [2, 3])
def test_the_window_holds_the_border_still(dim: int) -> None:
    grid = Grid((12, 11, 10)[:dim], (0.05,) * dim)
    tau = border_window(grid, 3, SIGMA)
    v = metric_on(grid, "separable", default_weights(SIGMA), window=3).sharp(random_field(1, dim, *grid.shape))
    for axis in range(dim):
        for i in (0, -1):
            assert tau.select(axis, i).abs().max() == 0
            assert v.select(axis + 2, i).abs().max() == 0
    assert tau[(5,) * dim] == 1


@pytest.mark.parametrize("dim", [2, 3])
def test_the_window_is_equally_wide_at_all_levels_of_a_pyramid(dim: int) -> None:
    """Else a momentum found at a coarse level would move more at the next one, where less of it lies under the window."""
    fine = Grid((41, 33, 37)[:dim], (0.01,) * dim)
    coarse = fine.with_shape((11, 9, 10)[:dim])
    here = tuple(slice(None, None, 4) for _ in range(dim))
    torch.testing.assert_close(border_window(coarse, 6, SIGMA, fine), border_window(fine, 6, SIGMA)[here])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_local_sigma_lies_between_the_smallest_and_the_largest(seed: int) -> None:
    grid = Grid((6, 5), (0.05, 0.06))
    sigma = metric_on(grid, "separable", local_weights(grid, seed)).local_sigma()
    assert SIGMA[0] <= sigma.min() and sigma.max() <= SIGMA[-1]


def test_gradients_in_momentum_and_weights() -> None:
    grid = Grid((5, 4), (0.05, 0.06))
    m, w = random_field(1, 2, 5, 4).requires_grad_(), local_weights(grid).requires_grad_()
    assert gradcheck(lambda m, w: metric_on(grid, "separable", w).sharp(m), (m, w))
    assert gradcheck(lambda m, w: metric_on(grid, "fourier", w, window=0).sharp(m), (m, w))
