"""What runs on a GPU keeps everything there that belongs there: seen on a pretended one, since there may be no real one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import bent_picture, centred, picture
from helpers import curious_network
from metreg.core.grid import Array
from metreg.experiments.rings.batch import RingBatch
from metreg.experiments.rings.draw import ring_pair
from metreg.learn.curriculum import train
from metreg.pipeline.register import register
from metreg.result.result import Result
from metreg.settings.model import make_settings
from metreg.solve.pyramid import map_grid_of
from metreg.solve.register import register_tensors
from pretend_gpu import OnGpu, pretended_gpu

LITTLE = ["solve.iterations=[6, 4, 3]"]


def images(dim: int) -> list[tuple[Array, Array]]:
    shape = (24, 26, 22)[:dim]
    affine = centred(np.diag([3.0, 3.0, 3.0][:dim]), shape)
    return [(picture(shape, affine), affine), (bent_picture(shape, affine), affine)]


def both(dim: int, **given: object) -> list[Result]:
    """A registration on the CPU, and on the pretended GPU, saved there."""
    moving, fixed = images(dim)
    on_cpu = register(moving, fixed, changes=LITTLE, device="cpu", **given)  # type: ignore[arg-type]
    with pretended_gpu():
        on_gpu = register(moving, fixed, changes=LITTLE, device="cuda", **given)  # type: ignore[arg-type]
    return [on_cpu, on_gpu]


def test_tensors_of_both_places_are_not_mixed() -> None:
    with pretended_gpu() as gpu:
        there, here = torch.ones(2, 3, device=gpu), torch.ones(2, 3)
        assert there.device == gpu and there.is_cuda and isinstance(there * 2.0, OnGpu)
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert torch.equal((there + here.to(gpu)).cpu(), here + 1)
        here.requires_grad_()
        (gradient,) = torch.autograd.grad((2 * here.to(gpu)).sum(), here)
        assert not isinstance(gradient, OnGpu) and torch.equal(gradient, torch.full((2, 3), 2.0))


@pytest.mark.parametrize(("dim", "metric"), [(2, "global"), (3, "global"), (3, "brain-t1"), (3, "mean:brain-t1")])
def test_registration(dim: int, metric: str, tmp_path: Path) -> None:
    labels = [((values > 300).astype(np.uint8), affine) for values, affine in images(dim)]
    on_cpu, on_gpu = both(dim, metric=metric, moving_labels=labels[0], fixed_labels=labels[1])
    assert isinstance(on_gpu.registration.m, OnGpu) and isinstance(on_gpu.registration.phi, OnGpu)
    with pretended_gpu():
        on_gpu.save(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").is_file() and (tmp_path / "out" / "warped_labels.nii.gz").is_file()
    wanted, found = (sum(result.registration.energy.values()) for result in (on_cpu, on_gpu))
    assert found == pytest.approx(wanted, rel=0.05)


def test_registration_with_masks_and_weights() -> None:
    (moving, affine), (fixed, _) = images(3)
    masks = {"moving_mask": ((moving > 50).astype(np.uint8), affine), "fixed_mask": ((fixed > 50).astype(np.uint8), affine)}
    weights = np.broadcast_to(np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32), (*moving.shape, 4)), affine
    _, on_gpu = both(3, metric="global", weights=weights, **masks)
    assert isinstance(on_gpu.pair.weights, OnGpu) and isinstance(on_gpu.pair.mask, OnGpu)


@pytest.mark.parametrize("preset", ["paper2d", "default"])
def test_learning(preset: str, tmp_path: Path) -> None:
    pairs = RingBatch.of([ring_pair(torch.Generator().manual_seed(s)) for s in range(2)]).pairs
    changes = {"train.epochs": [1, 2], "train.batch": 2, "flow.steps": 5}
    settings = make_settings(preset, changes=changes if preset == "paper2d" else {**changes, "solve.iterations": [2, 2, 2]})
    with pretended_gpu() as gpu:
        model, progress = train(pairs, settings, tmp_path, device=gpu)
    assert all(isinstance(p.data, OnGpu) for p in model.network.parameters())
    assert np.isfinite([record["total"] for record in progress.history]).all()


@pytest.mark.parametrize("optimiser", ["sgd", "lbfgs"])
def test_weights_that_look_at_the_momentum(optimiser: str) -> None:
    pair = ring_pair(torch.Generator().manual_seed(0))
    seen = map_grid_of(pair.grid, 0.5)
    changes = {"solve.optimiser": optimiser, "solve.iterations": [4], "solve.local_iterations": [6]}
    settings = make_settings("paper2d", changes=changes)
    energies = []
    for place in ("cpu", "cuda"):
        with pretended_gpu() if place == "cuda" else nullcontext() as gpu:
            model = curious_network(2).float().to(gpu or "cpu")
            source, target = (image.to(gpu or "cpu") for image in (pair.source, pair.target))
            found = register_tensors(source, target, pair.grid, settings, weights=model.weights_of(source, seen))
        energies.append(sum(found.energy.values()))
    assert found.energy["transport"] > 0
    assert energies[1] == pytest.approx(energies[0], rel=0.05)
