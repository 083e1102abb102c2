"""Simplex, penalties and network by their closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from helpers import random_field
from metreg.core.fields import gradient
from metreg.core.grid import Grid
from metreg.core.resample import downsample, upsample
from metreg.metric.learned import LearnedMetric
from metreg.metric.multi_gaussian import default_weights
from metreg.metric.network import WeightNetwork
from metreg.metric.penalties import colour_variation, edge_weight, out_of_range, safe_norm, square_variation, transport
from metreg.metric.simplex import LEAST, plain_softmax, to_simplex, weighted_linear_softmax
from metreg.settings.model import LearnedSettings, MetricSettings, NetworkSettings

SIGMA = torch.tensor([0.01, 0.05, 0.1, 0.2], dtype=torch.float64)
SET_POINT = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def everywhere(w: Tensor, grid: Grid) -> Tensor:
    return w.view(1, -1, *[1] * grid.dim).expand(1, -1, *grid.shape)


def test_no_output_gives_the_set_point_back() -> None:
    omega, excess = weighted_linear_softmax(torch.zeros(1, 4, 3, 3, dtype=torch.float64), SET_POINT)
    torch.testing.assert_close(omega, SET_POINT.view(1, 4, 1, 1).expand(1, 4, 3, 3))
    assert excess.abs().max() == 0


def test_the_linear_regime_is_exact() -> None:
    z = 0.03 * random_field(1, 4, 3, 3)
    omega, excess = weighted_linear_softmax(z, SET_POINT)
    torch.testing.assert_close(omega, SET_POINT.view(1, 4, 1, 1) + z - z.mean(1, keepdim=True))
    assert excess.abs().max() == 0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0, 100))
def test_outputs_lie_on_the_simplex(seed: int, scale: float) -> None:
    z = scale * random_field(1, 4, 3, 3, seed=seed)
    for omega in (weighted_linear_softmax(z, SET_POINT).omega, plain_softmax(z, SET_POINT).omega, to_simplex(z)):
        assert omega.min() >= LEAST / (4 * max(1.0, float(z.abs().max()) * 4))
        torch.testing.assert_close(omega.sum(1), torch.ones(1, 3, 3, dtype=torch.float64))


def test_gradient_flows_at_the_clamps_through_the_range_penalty() -> None:
    grid = Grid((3, 3), (1.0, 1.0))
    z = torch.zeros(1, 4, 3, 3, dtype=torch.float64)
    z[:, 0], z[:, 3] = -2.0, 2.0
    z.requires_grad_()
    omega, excess = weighted_linear_softmax(z, SET_POINT)
    (dead,) = torch.autograd.grad(omega[:, 0].sum(), z, retain_graph=True)
    assert dead[:, 0].abs().max() < 1e-4  # only through the sum
    (alive,) = torch.autograd.grad(out_of_range(excess, grid).sum(), z)
    assert (alive[:, 0] < 0).all() and (alive[:, 3] > 0).all()


def test_transport_in_closed_form() -> None:
    grid = Grid((5, 4), (0.1, 0.2))
    area = 20 * 0.02
    largest, smallest = torch.eye(4, dtype=torch.float64)[3], torch.eye(4, dtype=torch.float64)[0]
    assert transport(everywhere(largest, grid), SIGMA, grid).item() == 0
    assert transport(everywhere(smallest, grid), SIGMA, grid).item() == pytest.approx(area)
    second = torch.eye(4, dtype=torch.float64)[1]
    expected = area * (math.log(4) / math.log(20)) ** 2
    assert transport(everywhere(second, grid), SIGMA, grid, power=2).item() == pytest.approx(expected)
    assert transport(torch.ones(2, 1, 5, 4), torch.tensor([0.1]), grid).tolist() == [0, 0]
    share = torch.zeros(1, 1, 5, 4, dtype=torch.float64)
    share[..., :2] = 0.5
    assert transport(everywhere(smallest, grid), SIGMA, grid, share=share).item() == pytest.approx(area / 4)


def test_variation_in_closed_form() -> None:
    grid = Grid((6, 8), (0.5, 0.25))
    gamma = torch.ones(1, 1, 6, 8, dtype=torch.float64)
    constant = everywhere(SET_POINT, grid).clone().requires_grad_()
    assert colour_variation(constant, gamma, grid).item() == 0
    (gradient,) = torch.autograd.grad(colour_variation(constant, gamma, grid).sum(), constant)
    assert gradient.isfinite().all()
    step = torch.zeros(1, 2, 6, 8, dtype=torch.float64)
    step[:, 0, 3:], step[:, 1, :3] = 0.8, 0.8  # an edge of height 0.8 and length 8 * 0.25, in two weights
    assert colour_variation(step, gamma, grid).item() == pytest.approx(math.sqrt(2) * 0.8 * 2)
    assert colour_variation(step, gamma / 2, grid).item() == pytest.approx(math.sqrt(2) * 0.8)
    assert square_variation(step, gamma, grid).item() == pytest.approx(2 * (0.8 / 0.5) ** 2 * 8 * 0.125)


def test_edges_are_where_the_image_jumps() -> None:
    grid = Grid((6, 8), (0.5, 0.25))
    image = torch.zeros(1, 1, 6, 8, dtype=torch.float64)
    image[..., 4:] = 1
    gamma = edge_weight(image, grid)
    assert gamma[..., 3].unique().tolist() == [pytest.approx(1 / 3)]  # a jump of one a voxel: 1 / (1 + 2)
    assert gamma[..., :3].min() == 1


def test_the_papers_differences_are_on_request() -> None:
    """Central ones see half of a step on both of its sides, and nothing of what goes up and down; alpha is a setting."""
    grid = Grid((6, 8), (0.5, 0.25))
    gamma = torch.ones(1, 1, 6, 8, dtype=torch.float64)
    comb = torch.zeros(1, 1, 6, 8, dtype=torch.float64)
    comb[..., ::2] = 1
    central = colour_variation(comb[..., 1:-1], gamma[..., 1:-1], grid, slope_of=gradient)
    inside = gradient(comb, grid)[..., 1:-1].abs().max()
    assert float(inside) == 0 and float(central) < float(colour_variation(comb, gamma, grid))
    step = torch.zeros(1, 1, 6, 8, dtype=torch.float64)
    step[..., 4:] = 1
    assert edge_weight(step, grid, slope_of=gradient)[0, 0, 0].tolist() == pytest.approx([1, 1, 1, 1 / 2, 1 / 2, 1, 1, 1])
    assert edge_weight(step, grid, edge=10.0)[..., 3].unique().tolist() == [pytest.approx(1 / 11)]
    image = torch.rand(1, 1, 6, 8, generator=torch.Generator().manual_seed(0))
    costs = []
    for changes in ({}, {"differences": "central"}, {"edge": 10.0}):
        learned = LearnedSettings(smoothing=0.5, **changes)  # type: ignore[arg-type]
        model = LearnedMetric(2, MetricSettings(), learned, torch.Generator().manual_seed(0))
        weights = model.weights(image, grid)
        costs.append(model.penalties(weights, model.prices(image, grid), grid).variation.item())
    assert len(set(costs)) == 3 and costs[2] < costs[0]


def test_gradients() -> None:
    grid = Grid((4, 3), (0.5, 0.25))
    w = torch.softmax(random_field(2, 4, 4, 3), 1).requires_grad_()
    gamma = torch.rand(2, 1, 4, 3, dtype=torch.float64)
    assert gradcheck(lambda w: transport(w, SIGMA, grid, power=1.5), (w,))
    assert gradcheck(lambda w: colour_variation(w, gamma, grid), (w,))
    assert gradcheck(lambda w: square_variation(w, gamma, grid), (w,))
    assert gradcheck(lambda z: weighted_linear_softmax(0.1 * z, SET_POINT).omega, (w,))
    assert gradcheck(lambda z: safe_norm(z, 1), (w,))


@pytest.mark.parametrize("dim", [2, 3])
def test_the_network_is_the_papers(dim: int) -> None:
    network = WeightNetwork(dim, 4, NetworkSettings())
    kinds = [type(layer).__name__ for layer in network.layers]
    assert kinds == [f"Conv{dim}d", "BatchNorm1d", "LeakyReLU", f"Conv{dim}d", "BatchNorm1d"]
    assert sum(p.numel() for p in network.parameters()) == 20 * 5**dim + 2 * 20 + 20 * 4 * 5**dim + 2 * 4
    assert network.layers[-1].weight.unique().item() == pytest.approx(0.025)
    assert network(torch.rand(2, 1, *(9, 8, 7)[:dim])).shape == (2, 4, *(9, 8, 7)[:dim])
    with_momentum = WeightNetwork(dim, 4, NetworkSettings(momentum_input=True))
    shape = (9, 8, 7)[:dim]
    assert with_momentum(torch.rand(2, 1, *shape), torch.rand(2, dim, *shape)).shape == (2, 4, *shape)


@pytest.mark.parametrize("realisation", ["fourier", "separable"])
@pytest.mark.parametrize("dim", [2, 3])
def test_smoothing_keeps_the_simplex_and_weights_begin_near_the_set_point(dim: int, realisation: str) -> None:
    grid = Grid.unit_cube((20, 18, 16)[:dim])
    model = LearnedMetric(dim, MetricSettings(realisation=realisation), LearnedSettings(), torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    weights = model.weights(torch.rand(2, 1, *grid.shape), grid)
    torch.testing.assert_close(weights.w.sum(1), torch.ones(2, *grid.shape))
    assert weights.w.min() > 0
    far = (weights.w.mean((0, *range(2, dim + 2))) - default_weights(SIGMA.float())).abs().max()
    assert far < 0.05


def test_a_network_that_looks_at_the_momentum_sees_it_as_in_its_training_and_gives_weights_for_any_grid() -> None:
    learned = LearnedSettings(network=NetworkSettings(momentum_input=True))
    model = LearnedMetric(2, MetricSettings(), learned, torch.Generator().manual_seed(0)).eval()
    seen, coarse = Grid.unit_cube((21, 19)), Grid.unit_cube((11, 10))
    source, m = torch.rand(1, 1, 41, 37), torch.rand(1, 2, *coarse.shape)
    weights_of = model.weights_of(source, seen)
    assert callable(weights_of)
    w, penalties = weights_of(m, grid=coarse)
    assert w.shape == (1, 4, *coarse.shape)
    torch.testing.assert_close(w.sum(1), torch.ones(1, *coarse.shape))
    small = downsample(source, seen)
    wanted = model.weights(small, seen, upsample(m, seen))
    torch.testing.assert_close(w, downsample(wanted.w, coarse))
    torch.testing.assert_close(penalties, model.penalties(wanted, model.prices(small, seen), seen))
