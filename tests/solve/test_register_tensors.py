from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import random_field
from metreg.core.grid import Grid
from metreg.core.resample import sample, upsample
from metreg.deformation.maps import certify, compose, count_folds
from metreg.errors import MetregError
from metreg.experiments.rings.draw import DISC, RING, RingPair, ring_pair
from metreg.measure.displacement import displacement_error
from metreg.settings.model import make_settings
from metreg.similarity.ncc import ncc
from metreg.solve.loop import has_stalled
from metreg.solve.pyramid import levels, map_grid_of, plan_levels, shrunk
from metreg.solve.register import register_tensors
from metreg.solve.sgd import clip_each, nesterov_step

SHORT = {"paper2d": {"solve.iterations": [60]}, "default": {"solve.iterations": [20, 20, 10]}}


@pytest.fixture(scope="module")
def rings() -> RingPair:
    return ring_pair(torch.Generator().manual_seed(1))


def errors(pair: RingPair, phi_inv: torch.Tensor) -> list[float]:
    regions = [(pair.target_labels == label)[:, 0] for label in (DISC, RING)]
    return [float(displacement_error(phi_inv, pair.phi_inv, region, pair.grid)) for region in regions]


@pytest.mark.parametrize("preset", ["paper2d", "default"])
def test_rings_come_closer_to_the_true_map(preset: str, rings: RingPair) -> None:
    settings = make_settings(preset, changes=SHORT[preset])
    result = register_tensors(rings.source, rings.target, rings.grid, settings)
    before = errors(rings, rings.grid.points(rings.source))
    after = errors(rings, upsample(result.phi_inv, rings.grid))
    assert after[0] < before[0] and after[1] < before[1] / 2
    assert int(count_folds(result.phi_inv, result.grid)) == 0


@pytest.mark.parametrize("optimiser", ["sgd", "lbfgs"])
@pytest.mark.parametrize("integrator", ["rk4", "squaring"])
def test_every_optimiser_lowers_the_energy(optimiser: str, integrator: str, rings: RingPair) -> None:
    rate = {"sgd": 0.02, "lbfgs": 1.0}[optimiser]
    changes = {
        "solve.optimiser": optimiser,
        "solve.learning_rate": rate,
        "flow.integrator": integrator,
        "solve.iterations": [25],
    }
    result = register_tensors(rings.source, rings.target, rings.grid, make_settings("paper2d", changes=changes))
    first, last = result.history[0].terms, result.energy
    assert sum(last.values()) < 0.5 * sum(first.values())


def test_local_weights_register_too_and_constant_ones_give_the_global_result(rings: RingPair) -> None:
    settings = make_settings("paper2d", changes={"solve.iterations": [10], "solve.local_iterations": [20]})
    local = register_tensors(rings.source, rings.target, rings.grid, settings, weights=rings.weights)
    assert local.metric.w.dim() == 4 and len(local.history) == 30
    assert sum(local.energy.values()) < 0.5 * sum(local.history[0].terms.values())
    sigma = local.metric.local_sigma()
    assert sigma.min() < 0.1 < sigma.max()

    w = torch.tensor([0.1, 0.2, 0.3, 0.4])
    changes = {"solve.iterations": [10], "solve.local_iterations": None, "metric.weights": w.tolist()}
    settings = make_settings("paper2d", changes=changes)
    everywhere = w.view(1, 4, 1, 1).expand(1, 4, *rings.grid.shape)
    one = register_tensors(rings.source, rings.target, rings.grid, settings)
    other = register_tensors(rings.source, rings.target, rings.grid, settings, weights=everywhere)
    torch.testing.assert_close(one.phi_inv, other.phi_inv, atol=1e-4, rtol=0)


def test_the_border_stays_and_the_inverse_is_one(rings: RingPair) -> None:
    settings = make_settings(changes=SHORT["default"])
    result = register_tensors(rings.source, rings.target, rings.grid, settings)
    assert certify(result.phi_inv.double(), result.grid).holds
    h = torch.tensor(result.grid.spacing).view(1, 2, 1, 1)
    for outer, inner in ((result.phi_inv, result.phi), (result.phi, result.phi_inv)):
        gap = (compose(outer, inner, result.grid) - result.grid.points(outer)) / h
        assert gap.norm(dim=1).max() < 0.15


def test_three_dimensions() -> None:
    grid = Grid((28, 26, 24), (0.04,) * 3)
    x = grid.points(torch.empty(0)) - 0.5

    def ball(scale: float) -> torch.Tensor:
        radius = (x / torch.tensor([1.0, scale, 1 / scale]).view(1, 3, 1, 1, 1)).norm(dim=1, keepdim=True)
        return torch.sigmoid((0.25 - radius) / 0.02)

    settings = make_settings(changes={"solve.iterations": [15, 15, 5], "similarity.name": "ncc"})
    result = register_tensors(ball(1.0), ball(1.15), grid, settings)
    warped = sample(ball(1.0), upsample(result.phi_inv, grid), grid)
    assert ncc(warped, ball(1.15)).item() < 0.3 * ncc(ball(1.0), ball(1.15)).item()
    assert certify(result.phi_inv.double(), result.grid).holds


def test_the_same_run_twice_gives_the_same_bits(rings: RingPair) -> None:
    settings = make_settings(changes={"solve.iterations": [5, 5, 2]})
    one, two = (register_tensors(rings.source, rings.target, rings.grid, settings) for _ in range(2))
    assert torch.equal(one.m, two.m) and torch.equal(one.phi_inv, two.phi_inv)


def test_fine_images_get_more_levels() -> None:
    solve = make_settings(changes={"solve.iterations": [30, 20, 10]}).solve

    def shrinks(h: float) -> list[float]:
        return [plan.shrink for plan in plan_levels(solve, Grid((300, 300), (h, h)))]

    assert shrinks(0.01) == [4, 2, 1]  # 2 mm of 200
    assert shrinks(1.5 / 200) == [4, 2, 1] == shrinks(1.50001 / 200)
    assert shrinks(0.005) == [8, 4, 2, 1]
    assert [plan.shrink for plan in plan_levels(solve, Grid((60, 60), (0.005, 0.005)))] == [4, 2, 1]  # 16 points anyway
    assert [plan.iterations for plan in plan_levels(solve, Grid((300, 300), (0.0025, 0.0025)))] == [30, 30, 30, 20, 10]
    assert len(plan_levels(make_settings("paper2d").solve, Grid((9, 9), (0.001, 0.001)))) == 1


def test_maps_of_thick_slices_have_voxels_like_cubes() -> None:
    grid = Grid((96, 96, 20), (0.005, 0.005, 0.025))
    for shrink in (1, 2, 4):
        image, coarse = shrunk(grid, shrink), map_grid_of(grid, 0.5, shrink)
        wanted = np.array([max(h, 0.005 * shrink) for h in grid.spacing])
        np.testing.assert_allclose(image.spacing, wanted, rtol=0.1)
        np.testing.assert_allclose(coarse.spacing, [max(h, 0.01 * shrink) for h in grid.spacing], rtol=0.2)
    few = Grid((3, 96, 96), (0.005, 0.005, 0.005))  # slices that cannot be fewer do not keep the others from it
    assert map_grid_of(few, 0.5, 4).shape == (3, 12, 12)


def test_the_pyramid_has_the_levels_that_were_asked_for(rings: RingPair) -> None:
    settings = make_settings(changes={"solve.shrink": [4, 2, 1], "solve.iterations": [3, 2, 1]})
    found = list(levels(rings.source, rings.target, rings.grid, settings))
    assert [level.scene.grid.shape for level in found] == [(32, 32), (64, 64), (128, 128)]
    assert [level.scene.map_grid.shape for level in found] == [(16, 16), (32, 32), (64, 64)]
    result = register_tensors(rings.source, rings.target, rings.grid, settings)
    assert [(record.level, record.iteration) for record in result.history] == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
        (2, 1),
    ]


def test_images_are_compared_both_ways_at_all_levels_but_the_last(rings: RingPair) -> None:
    found = [level.scene.both_ways for level in levels(rings.source, rings.target, rings.grid, make_settings())]
    assert found == [True, True, False]


def test_the_stop_rule() -> None:
    falling = [100 * 0.9**i for i in range(40)]
    assert not has_stalled(falling, 1e-3)
    assert has_stalled([*falling, *[falling[-1]] * 11], 1e-3)
    assert not has_stalled([1.0] * 100, 0)


def test_gradients_are_clipped_pair_by_pair() -> None:
    gradient = random_field(2, 2, 4, 4)
    gradient[1] *= 1e-3
    small = gradient[1].clone()
    clip_each(gradient, 1.0)
    assert gradient[0].norm() == pytest.approx(1.0)
    torch.testing.assert_close(gradient[1], small)


def test_the_sgd_step_is_torchs() -> None:
    m, buffer = random_field(1, 2, 4, 4), torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    theirs = m.clone().requires_grad_()
    optimiser = torch.optim.SGD([theirs], 0.1, momentum=0.9, nesterov=True)
    for seed in range(3):
        theirs.grad = random_field(1, 2, 4, 4, seed=seed)
        optimiser.step()
        nesterov_step(m, buffer, theirs.grad, rate=0.1)
    torch.testing.assert_close(m, theirs.detach())


def test_a_pair_does_not_depend_on_its_batch() -> None:
    pairs = [ring_pair(torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    settings = make_settings("paper2d", changes={"solve.iterations": [25]})
    source, target = (torch.cat([getattr(pair, name) for pair in pairs]) for name in ("source", "target"))
    together = register_tensors(source, target, pairs[0].grid, settings).phi_inv
    for i, pair in enumerate(pairs):
        alone = register_tensors(pair.source, pair.target, pair.grid, settings).phi_inv
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=0)


def test_a_divergence_is_named(rings: RingPair) -> None:
    settings = make_settings("paper2d", changes={"solve.learning_rate": 1e30, "solve.clip": 1e30, "solve.iterations": [5]})
    with pytest.raises(MetregError, match="not finite"):
        register_tensors(rings.source, rings.target, rings.grid, settings)


def test_fields_of_the_wrong_shape_are_refused(rings: RingPair) -> None:
    with pytest.raises(MetregError, match=r"target: wanted shape \(B, 1, 128, 128\), got \(1, 1, 64, 64\)"):
        register_tensors(rings.source, rings.target[..., :64, :64], rings.grid, make_settings())
    with pytest.raises(MetregError, match="weights: wanted 4 of them"):
        register_tensors(rings.source, rings.target, rings.grid, make_settings(), weights=rings.weights[:, :3])
