"""On a GPU: the same numbers as on the CPU, and the same bits twice."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import curious_network, random_field
from metreg.core.grid import Array, Grid, transform_points
from metreg.deformation.stationary import advect_in_time, flow
from metreg.experiments.rings.batch import RingBatch
from metreg.experiments.rings.draw import ring_pair
from metreg.io.image import Image
from metreg.kernels.replay import Replay
from metreg.learn.curriculum import train
from metreg.prepare.affine import align
from metreg.settings.model import AffineSettings, make_settings
from metreg.similarity.lncc import lncc
from metreg.similarity.mi import mutual_information
from metreg.similarity.ncc import ncc
from metreg.solve.pyramid import map_grid_of
from metreg.solve.register import make_metric, register_tensors

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("realisation", ["fourier", "separable"])
def test_momentum_to_map_and_back(realisation: str, dim: int) -> None:
    grid = Grid((17, 15, 13)[:dim], (0.05, 0.06, 0.07)[:dim])
    settings = make_settings(changes={"metric.realisation": realisation}).metric
    m = 0.2 * random_field(1, dim, *grid.shape, dtype=torch.float32)
    p = random_field(1, dim, *grid.shape, seed=1, dtype=torch.float32)
    found = []
    for device in ("cpu", "cuda"):
        here = m.to(device).requires_grad_()
        phi_inv = flow(make_metric(grid, settings, like=here).sharp(here), grid)
        (gradient,) = torch.autograd.grad(phi_inv, here, p.to(device))
        found.append((phi_inv.detach().cpu(), gradient.cpu()))
    torch.testing.assert_close(found[0], found[1], atol=2e-4, rtol=1e-3)


def test_the_affine_is_that_of_the_cpu() -> None:
    x = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in (30, 28, 26)], indexing="ij"))

    def blob(middle: list[float], width: list[float]) -> Array:
        return np.exp(-sum(((x[d] - middle[d]) / width[d]) ** 2 for d in range(3)))

    blobs = [blob([s, 0, -s], [0.5, 0.35, 0.6]) + 2 * blob([0.4 + s, -0.3, 0.3 - s], [0.2, 0.2, 0.2]) for s in (0.1, 0)]
    moving, fixed = (Image(values.astype(np.float32), np.diag([2.0, 2.0, 2.0, 1.0]), "blob") for values in blobs)
    found = [align(moving, fixed, AffineSettings(), device=torch.device(name)) for name in ("cpu", "cuda")]
    corners = 2.0 * np.array(list(itertools.product((0, 29), (0, 27), (0, 25))))
    placed = [transform_points(affine, corners) for affine in found]
    np.testing.assert_allclose(placed[0], placed[1], atol=0.1)  # mm: a twentieth of a voxel


def test_similarities() -> None:
    a, b = (torch.rand(2, 1, 20, 21, 22, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    for similarity in (ncc, lncc, mutual_information):
        torch.testing.assert_close(similarity(a.cuda(), b.cuda()).cpu(), similarity(a, b), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("similarity", ["name=ncc", "noise=0", "noise=0.15", "name=mi"])
def test_the_same_run_twice_gives_the_same_bits(similarity: str) -> None:
    pair = ring_pair(torch.Generator().manual_seed(0))
    settings = make_settings(changes=["solve.iterations=[5, 5, 3]", f"similarity.{similarity}"])
    runs = [register_tensors(pair.source.cuda(), pair.target.cuda(), pair.grid, settings).m for _ in range(2)]
    assert torch.equal(*runs)


def test_replayed_iterations_equal_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a flow that becomes too fast for its time steps gets more of them on the way."""
    pair = ring_pair(torch.Generator().manual_seed(0))
    changes = {"solve.iterations": [25], "solve.shrink": [1], "flow.steps": 1, "solve.optimiser": "sgd", "solve.clip": 1.0}
    settings = make_settings(changes={**changes, "solve.learning_rate": 0.02, "solve.regularity": 1.0})
    replayed = register_tensors(pair.source.cuda(), pair.target.cuda(), pair.grid, settings)
    monkeypatch.setattr(Replay, "__call__", lambda self: self.work())
    plain = register_tensors(pair.source.cuda(), pair.target.cuda(), pair.grid, settings)
    assert torch.equal(replayed.m, plain.m)
    assert [r.terms for r in replayed.history] == [r.terms for r in plain.history]


def test_training_on_the_gpu_gives_the_same_bits_twice_and_the_network_of_the_cpu(tmp_path: Path) -> None:
    pairs = RingBatch.of([ring_pair(torch.Generator().manual_seed(s)) for s in range(5)]).pairs
    settings = make_settings("paper2d", changes={"train.epochs": [2, 3], "train.batch": 2, "flow.steps": 5})
    found = []
    for i, device in enumerate(("cuda", "cuda", "cpu")):
        (tmp_path / str(i)).mkdir()
        model, _ = train(pairs, settings, tmp_path / str(i), device=torch.device(device))
        found.append(torch.cat([p.detach().cpu().flatten() for p in model.network.parameters()]))
    assert torch.equal(found[0], found[1])
    # the first map is the identity: at voxels an interpolated image has two slopes, and rounding says which one counts
    assert float((found[0] - found[2]).norm() / found[2].norm()) < 0.02


def test_transport_follows_its_input_to_the_device_and_dtype() -> None:
    grid = Grid((5, 6), (0.1, 0.1))
    v = (0.1 * random_field(1, 2, 5, 6)).cuda()
    moved = advect_in_time(grid.points(v).expand_as(v), v, grid, 3)
    assert moved.is_cuda and moved.dtype == torch.float64


@pytest.mark.parametrize("optimiser", ["sgd", "lbfgs"])
def test_weights_that_look_at_the_momentum_as_on_the_cpu(optimiser: str) -> None:
    pair = ring_pair(torch.Generator().manual_seed(0))
    seen = map_grid_of(pair.grid, 0.5)
    changes = {"solve.optimiser": optimiser, "solve.iterations": [4], "solve.local_iterations": [25]}
    settings = make_settings("paper2d", changes=changes)
    energies = []
    for device in ("cpu", "cuda"):
        model = curious_network(2).float().to(device)
        source, target = pair.source.to(device), pair.target.to(device)
        found = register_tensors(source, target, pair.grid, settings, weights=model.weights_of(source, seen))
        energies.append(sum(found.energy.values()))
    assert energies[1] == pytest.approx(energies[0], rel=0.05)
