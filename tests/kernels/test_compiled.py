"""What numba compiles for CPUs equals its plain twin, forward and gradient."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from metreg.core.grid import Grid
from metreg.core.resample import sample, upsample, warp
from metreg.deformation.maps import bernstein_coefficients, bernstein_minimum, folding, plain_folding
from metreg.kernels.cpu.sample import sample_on_cpu
from metreg.similarity.lncc import Lncc, lncc

SHAPES = [(13, 17, 11), (21, 18), (2, 5, 40), (2, 9)]
KINDS = [(torch.float64, 1e-12), (torch.float32, 2e-5)]


@pytest.fixture(autouse=True)
def seed(threads: int) -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [0.5, 0.4, 1.0, (0.5, 1.0, 0.6), (1.0, 0.5, 1.0)])
@pytest.mark.parametrize(("kind", "tolerance"), KINDS)
def test_warp(shape: tuple[int, ...], factor: float | tuple[float, ...], kind: torch.dtype, tolerance: float) -> None:
    """Maps that leave the image too, where the outermost value goes on and nothing pulls."""
    grid = Grid(shape, tuple(1 / (n - 1) for n in shape))
    coarse = grid.coarsen(factor if isinstance(factor, float) else factor[: len(shape)])
    source, p = (torch.rand(2, 1, *shape, dtype=kind) for _ in range(2))
    phi_inv = (coarse.points(source) + 0.07 * torch.randn(2, len(shape), *coarse.shape, dtype=kind)).requires_grad_()
    plain, fast = sample(source, upsample(phi_inv, grid), grid), warp(source, phi_inv, grid)
    torch.testing.assert_close(fast, plain, rtol=0, atol=tolerance)
    gradients = [torch.autograd.grad((warped * p).sum(), phi_inv)[0] for warped in (fast, plain)]
    torch.testing.assert_close(*gradients, rtol=0, atol=20 * tolerance * float(gradients[1].abs().max()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("outside", ["edge", "zero"])
@pytest.mark.parametrize(("kind", "tolerance"), KINDS)
def test_sample(
    shape: tuple[int, ...],
    mode: Literal["linear", "nearest"],
    outside: Literal["edge", "zero"],
    kind: torch.dtype,
    tolerance: float,
) -> None:
    """Points on, between and beyond those of the grid, many and few, in rows or as a list."""
    grid = Grid(shape, tuple(1 / (n - 1) for n in shape))
    f = torch.rand(2, 3, *shape, dtype=kind)
    for x in (
        grid.points(f).expand(2, -1, *shape) + 0.1 * torch.randn(2, len(shape), *shape, dtype=kind),
        torch.rand(2, len(shape), 9001, dtype=kind) * 1.4 - 0.2,
        grid.points(f).expand(2, -1, *shape).flatten(2)[..., :1],
    ):
        fast = sample_on_cpu(f, x, grid, nearest=mode == "nearest", zero=outside == "zero")
        torch.testing.assert_close(fast, sample(f, x, grid, mode=mode, outside=outside), rtol=0, atol=tolerance)


def test_sample_takes_the_kernel_for_many_points_without_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metreg.core.resample.MANY", 10)
    monkeypatch.setattr("metreg.kernels.cpu.sample._sample", lambda f, x, steps, nearest, zero, out, *parts: out.fill(7))
    grid = Grid((3, 4), (1.0, 1.0))
    f = torch.rand(1, 1, 3, 4)
    assert sample(f, grid.points(f), grid).unique().tolist() == [7]
    torch.testing.assert_close(sample(f, grid.points(f).requires_grad_(), grid), f)


def test_sampling_nowhere_gives_a_number() -> None:
    grid = Grid((3, 4, 5), (1.0, 1.0, 1.0))
    f, x = torch.rand(1, 1, 3, 4, 5), torch.tensor([torch.nan, torch.inf, -torch.inf]).expand(1, 3, 3)
    found = sample_on_cpu(f, x, grid, nearest=False, zero=False).flatten().tolist()
    assert found == [f[0, 0, 0, 0, 0], f[0, 0, -1, -1, -1], f[0, 0, 0, 0, 0]]
    assert sample_on_cpu(f, x, grid, nearest=False, zero=True).flatten().tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [3, 7, 45])
@pytest.mark.parametrize(("masked", "noise"), [(False, 0.0), (True, 0.0), (True, 0.2)])
@pytest.mark.parametrize(("kind", "tolerance"), KINDS)
def test_lncc(shape: tuple[int, ...], window: int, masked: bool, noise: float, kind: torch.dtype, tolerance: float) -> None:
    if masked and window == 3 and kind == torch.float32:
        pytest.skip("windows of a voxel or two have no variance, and single precision no say in what it is")
    warped, target = torch.rand(2, 1, *shape, dtype=kind).requires_grad_(), torch.rand(2, 1, *shape, dtype=kind)
    mask = (torch.rand(2, 1, *shape) > 0.3).to(kind) if masked else None
    p = torch.tensor([0.7, 1.3], dtype=kind)
    plain, fast = lncc(warped, target, mask, window=window, noise=noise), Lncc(window, noise)(warped, target, mask)
    torch.testing.assert_close(fast, plain, rtol=0, atol=tolerance)
    gradients = [torch.autograd.grad((value * p).sum(), warped)[0] for value in (fast, plain)]
    torch.testing.assert_close(*gradients, rtol=0, atol=20 * tolerance * float(gradients[1].abs().max()))


def test_a_target_that_changed_in_place_is_looked_at_again() -> None:
    similarity = Lncc(5)
    warped, target = torch.rand(1, 1, 12, 14), torch.rand(1, 1, 12, 14)
    first = similarity(warped, target)
    target.copy_(warped)
    assert float(similarity(warped, target)) < 1e-4 < float(first)
    mask = torch.ones_like(target)
    similarity(warped, target, mask)
    mask[..., :6] = 0
    torch.testing.assert_close(similarity(warped, target, mask), lncc(warped, target, mask, window=5))


def test_equal_images_are_a_minimum() -> None:
    image = torch.rand(1, 1, 9, 10, 11, dtype=torch.float64).requires_grad_()
    value = Lncc(5)(image, image.detach())
    (gradient,) = torch.autograd.grad(value.sum(), image)
    assert float(value.detach()) < 1e-12 and float(gradient.abs().max()) < 1e-10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "tolerance"), KINDS)
def test_folding(shape: tuple[int, ...], kind: torch.dtype, tolerance: float) -> None:
    grid = Grid(shape, tuple(0.7 / (n - 1) for n in shape))
    points = grid.points(torch.zeros(1, dtype=kind))
    phi = (points + 0.05 * torch.randn(2, len(shape), *shape, dtype=kind)).requires_grad_()
    p = torch.tensor([0.4, 1.7], dtype=kind)
    scale = grid.cell_volume / 2**grid.dim / 0.3**2
    plain, fast = scale * plain_folding(phi, grid, 0.3), folding(phi, grid, 0.3)
    torch.testing.assert_close(fast, plain, rtol=tolerance, atol=0)
    gradients = [torch.autograd.grad((value * p).sum(), phi)[0] for value in (fast, plain)]
    torch.testing.assert_close(*gradients, rtol=0, atol=20 * tolerance * float(gradients[1].abs().max()))


@pytest.mark.parametrize("dim", [2, 3])
def test_folding_of_a_map_that_shrinks_everything_alike(dim: int) -> None:
    """det = c^D everywhere: the box's volume times (1 - c^D / least)^2 below the least, nothing above it."""
    grid = Grid((9, 8, 7)[:dim], (0.1, 0.2, 0.3)[:dim])
    points = grid.points(torch.zeros(1, dtype=torch.float64))
    volume = float(torch.tensor(grid.extent).prod())
    for c in (0.3, 0.9, 1.0):
        expected = volume * max(0.0, 1 - c**dim / 0.5) ** 2
        assert float(folding(c * points, grid, 0.5)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "tolerance"), KINDS)
def test_bernstein_minimum(shape: tuple[int, ...], kind: torch.dtype, tolerance: float) -> None:
    grid = Grid(shape, tuple(1 / (n - 1) for n in shape))
    phi = torch.rand(2, len(shape), *shape, dtype=kind)
    plain = bernstein_coefficients(phi, grid).amin(0)
    torch.testing.assert_close(bernstein_minimum(phi, grid), plain, rtol=0, atol=tolerance * float(plain.abs().max()))
    phi[(1, 0, *[1] * len(shape))] = torch.nan
    assert bernstein_minimum(phi, grid)[(1, *[0] * len(shape))].isnan()


def test_a_map_to_nowhere_is_told() -> None:
    """Nothing is read outside the image, and what is no number makes an energy that is none."""
    grid = Grid((6, 7, 8), (1.0, 1.0, 1.0))
    source = torch.rand(1, 1, *grid.shape)
    phi_inv = grid.points(source).clone()
    phi_inv[0, 0, 2, 3, 4], phi_inv[0, 1, 1, 1, 1], phi_inv[0, 2, 3, 3, 3] = torch.nan, torch.inf, -torch.inf
    warped = warp(source, phi_inv, grid)
    assert torch.isfinite(warp(source, phi_inv.nan_to_num(), grid)).all()
    assert torch.isnan(folding(phi_inv, grid, 0.2)).all()
    warped[0, 0, 2, 3, 4] = torch.nan
    for noise in (0.0, 0.15):
        assert torch.isnan(Lncc(3, noise)(warped, source)).all()
