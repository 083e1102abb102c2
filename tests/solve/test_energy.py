from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import curious_network, random_field, taylor_slope
from metreg.core.grid import Grid
from metreg.settings.model import FlowSettings, MetricSettings, SimilaritySettings, SolveSettings
from metreg.similarity import Similarity
from metreg.solve.energy import Objective, Problem, Scene
from metreg.solve.register import make_metric


def smooth_image(grid: Grid, shift: float) -> Tensor:
    x = grid.points(torch.empty(0, dtype=torch.float64))
    return torch.exp(-(((x - 0.5 - shift) ** 2).sum(1, keepdim=True)) / 0.06)


@pytest.mark.parametrize("integrator", ["rk4", "squaring"])
@pytest.mark.parametrize("similarity", ["ssd", "ncc", "lncc", "mi"])
@pytest.mark.parametrize(("kind", "both_ways"), [("global", False), ("local", False), ("local", True)])
def test_the_gradient_of_the_whole_energy_passes_the_taylor_test(
    kind: str, both_ways: bool, similarity: str, integrator: str
) -> None:
    grid = Grid.unit_cube((17, 16))
    map_grid = grid.coarsen(0.5)
    scene = Scene(smooth_image(grid, 0.0), smooth_image(grid, 0.05), grid, map_grid, both_ways=both_ways)
    weights = torch.softmax(random_field(1, 4, *grid.shape), dim=1) if kind == "local" else None
    metric = make_metric(map_grid, MetricSettings(), like=scene.source, weights=weights)
    settings = SimilaritySettings.model_validate({"name": similarity, "window": 5})
    flow = FlowSettings.model_validate({"integrator": integrator, "steps": 5})
    energy = Objective(Similarity(settings), flow, SolveSettings(regularity=3.0))
    m, direction = (0.5 * random_field(1, 2, *map_grid.shape, seed=s) for s in (1, 2))
    # the energy is smooth between the lines at which linear interpolation has its kinks: small steps
    slope = taylor_slope(lambda m: energy(m, metric, scene).total().sum(), m, direction, (1e-4, 1e-5))
    assert slope == pytest.approx(2, abs=0.15)


def test_terms_add_up_and_are_one_value_a_pair() -> None:
    grid = Grid.unit_cube((12, 12))
    source = smooth_image(grid, 0.0).expand(3, -1, -1, -1)
    scene = Scene(source, source, grid, grid)
    metric = make_metric(grid, MetricSettings(), like=source)
    energy = Objective(Similarity(SimilaritySettings()), FlowSettings(), SolveSettings(regularity=2.0))
    m = random_field(3, 2, 12, 12)
    terms = energy(0.01 * m, metric, scene)
    torch.testing.assert_close(terms.total(), terms.similarity + terms.regularity)
    assert terms.total().shape == (3,)
    expected = 2 * (m * metric.sharp(m)).flatten(1).sum(1) * grid.cell_volume * 1e-4
    torch.testing.assert_close(terms.regularity, expected)


@pytest.mark.parametrize("similarity", ["ssd", "ncc", "lncc", "mi"])
def test_both_ways_it_is_the_same_energy_with_the_images_exchanged_and_the_flow_reversed(similarity: str) -> None:
    grid = Grid.unit_cube((17, 16))
    images = smooth_image(grid, 0.0), smooth_image(grid, 0.05)
    metric = make_metric(grid, MetricSettings(), like=images[0])
    settings = SimilaritySettings.model_validate({"name": similarity, "window": 5})
    energy = Objective(Similarity(settings), FlowSettings(), SolveSettings(folding=0.0))
    m = 0.5 * random_field(1, 2, *grid.shape)

    def similarity_of(source: Tensor, target: Tensor, m: Tensor, *, both_ways: bool) -> Tensor:
        return energy(m, metric, Scene(source, target, grid, grid, both_ways=both_ways)).similarity

    there = similarity_of(*images, m, both_ways=True)
    torch.testing.assert_close(there, similarity_of(*images[::-1], -m, both_ways=True))
    one, other = similarity_of(*images, m, both_ways=False), similarity_of(*images[::-1], -m, both_ways=False)
    assert not torch.isclose(one, other)
    torch.testing.assert_close(there, (one + other) / 2)


def curious_problem(dim: int) -> Problem:
    """A pair whose weights, and what they cost, depend on the momentum."""
    grid = Grid.unit_cube((17, 16, 15)[:dim])
    scene = Scene(smooth_image(grid, 0.0), smooth_image(grid, 0.05), grid, grid.coarsen(0.5))
    weights_of = curious_network(dim).weights_of(scene.source, grid.coarsen(0.6))
    metric = make_metric(scene.map_grid, MetricSettings(), like=scene.source, weights=weights_of)
    objective = Objective(Similarity(SimilaritySettings(name="ncc")), FlowSettings(steps=5), SolveSettings(regularity=3.0))
    return Problem(objective, metric, scene)


@pytest.mark.parametrize("dim", [2, 3])
def test_the_slope_goes_through_weights_that_look_at_the_momentum(dim: int) -> None:
    """Against differences of the whole energy, what weights cost included."""
    problem = curious_problem(dim)
    shape = (1, dim, *problem.map_grid.shape)
    m, direction = (0.5 * random_field(*shape, seed=seed) for seed in (1, 2))
    found = problem.slope(m, None)
    assert float(found.energy.transport) > 0 and float(found.energy.variation) > 0

    def energy(at: Tensor) -> float:
        return float(problem.objective(at, problem.metric, problem.scene).total())

    assert energy(m) == pytest.approx(float(found.energy.total()), rel=1e-12)
    slope = float((found.gradient * direction).sum())
    quotient = (energy(m + 1e-7 * direction) - energy(m - 1e-7 * direction)) / 2e-7  # kinks lie further apart
    assert slope == pytest.approx(quotient, rel=1e-5)
    still = Problem(problem.objective, problem.metric.at(m), problem.scene).slope(m, None)
    partial = float((still.gradient * direction).sum())
    assert abs(partial - quotient) > 0.01 * abs(quotient)  # what is left out where weights are taken as they are


@pytest.mark.parametrize("dim", [2, 3])
def test_the_product_of_such_a_search_is_symmetric_positive_and_inverted_exactly(dim: int) -> None:
    product = curious_problem(dim).product
    shape = (1, dim, *product.gaussians.grid.shape)
    a, b = random_field(*shape, seed=1), random_field(*shape, seed=2)
    torch.testing.assert_close((a * product.sharp(b)).sum(), (product.sharp(a) * b).sum())
    torch.testing.assert_close(product.flat(product.sharp(a)), a)
    assert float((a * product.sharp(a)).sum()) > 0
