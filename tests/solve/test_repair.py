from __future__ import annotations

import pytest
import torch

from helpers import curious_network, random_field
from metreg.core.fields import speed
from metreg.core.grid import Grid
from metreg.deformation.maps import bernstein_minimum, certify, count_folds
from metreg.deformation.stationary import flow
from metreg.settings.model import FlowSettings, MetricSettings, make_settings
from metreg.solve.register import make_metric, register_tensors
from metreg.solve.repair import MARGIN, repair_folds


@pytest.mark.parametrize("shape", [(24, 22), (14, 13, 12)])
def test_maps_that_fold_no_longer_do_and_the_others_stay_as_they_are(shape: tuple[int, ...]) -> None:
    grid = Grid(shape, (1 / 24,) * len(shape))
    metric = make_metric(grid, MetricSettings(), like=torch.empty(0))
    m = random_field(2, len(shape), *shape, dtype=torch.float32) * torch.tensor([6.0, 0.1]).view(2, 1, *[1] * len(shape))
    before = flow(metric.sharp(m), grid)
    assert count_folds(before, grid).gt(0).tolist() == [True, False]
    found, repair = repair_folds(m, metric, grid, FlowSettings())
    phi_inv = flow(metric.sharp(found), grid)
    assert repair.repaired.tolist() == [True, False]
    assert torch.equal(repair.folds, count_folds(before, grid))
    assert repair.smallest[0] < 0 < repair.smallest[1]
    assert not count_folds(phi_inv, grid).any()
    assert certify(phi_inv[:1], grid).holds
    assert float(bernstein_minimum(phi_inv, grid).min()) >= MARGIN  # of all, with the time steps they share
    assert torch.equal(found[1], m[1])
    assert found[0].norm() > 0.3 * m[0].norm()


def test_weights_that_look_at_the_momentum_stay_what_they_were_where_the_search_ended() -> None:
    grid = Grid((24, 22), (1 / 24, 1 / 24))
    model, source = curious_network(2), random_field(1, 1, *grid.shape)
    metric = make_metric(grid, MetricSettings(), like=source, weights=model.weights_of(source, grid))
    m = 12 * random_field(1, 2, *grid.shape, seed=1)
    found, repair = repair_folds(m, metric, grid, FlowSettings())
    assert bool(repair.repaired)
    assert float(bernstein_minimum(flow(metric.at(m).sharp(found), grid), grid).min()) >= MARGIN


def test_a_velocity_near_the_fastest_is_repaired_too() -> None:
    grid = Grid((24, 22), (1 / 24, 1 / 24))
    metric = make_metric(grid, MetricSettings(), like=torch.empty(0))
    m = random_field(1, 2, 24, 22, dtype=torch.float32)
    m *= 1500 / float(speed(metric.sharp(m), grid))
    found, repair = repair_folds(m, metric, grid, FlowSettings())
    assert bool(repair.repaired) and float(bernstein_minimum(flow(metric.sharp(found), grid), grid).min()) >= MARGIN


def test_what_does_not_fold_is_left_alone() -> None:
    grid = Grid((12, 12), (0.05, 0.05))
    metric = make_metric(grid, MetricSettings(), like=torch.empty(0))
    m = 0.1 * random_field(1, 2, 12, 12, dtype=torch.float32)
    assert repair_folds(m, metric, grid, FlowSettings()).m is m


def test_the_price_of_folding_keeps_maps_from_it() -> None:
    """Two stripes that must swap places: without a price the map folds, with one it hardly tries."""
    grid = Grid.unit_cube((40, 40))
    x = grid.points(torch.zeros(1))[:, :1]
    source = torch.exp(-(((x - 0.42) / 0.04) ** 2)) + 0.5 * torch.exp(-(((x - 0.58) / 0.04) ** 2))
    target = source.flip(2)
    changes = {"solve.regularity": 0.01, "metric.weights": [0.5, 0.5, 0.0, 0.0], "similarity.name": "ssd"}
    changes |= {"solve.iterations": [60, 60, 200]}
    folds = []
    for price in (0.0, 1000.0):
        settings = make_settings(changes={**changes, "solve.folding": price, "solve.repair": False})
        found = register_tensors(source, target, grid, settings)
        folds.append(int(count_folds(found.phi_inv, found.grid)))
        assert found.repair.folds.tolist() == [folds[-1]] and not bool(found.repair.repaired.any())
    assert 5 * folds[1] < folds[0]


def test_folds_are_counted_before_they_are_repaired() -> None:
    """The same two stripes: what the repair hides is told."""
    grid = Grid.unit_cube((40, 40))
    x = grid.points(torch.zeros(1))[:, :1]
    source = torch.exp(-(((x - 0.42) / 0.04) ** 2)) + 0.5 * torch.exp(-(((x - 0.58) / 0.04) ** 2))
    changes = {"solve.regularity": 0.01, "metric.weights": [0.5, 0.5, 0.0, 0.0], "similarity.name": "ssd"}
    changes |= {"solve.folding": 0.0, "solve.iterations": [60, 60, 200]}
    found = register_tensors(source, source.flip(2), grid, make_settings(changes=changes))
    assert int(found.repair.folds) > 0 and float(found.repair.smallest) < 0 and bool(found.repair.repaired)
    assert not count_folds(found.phi_inv, found.grid).any()


def test_presets_of_the_paper_do_not_repair() -> None:
    assert [make_settings(name).solve.repair for name in ("default", "brain", "paper2d", "paper3d")] == [
        True,
        True,
        False,
        False,
    ]
