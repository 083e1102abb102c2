"""The Triton kernels against their plain-torch twins: on a GPU, or where there is none in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import random_field
from metreg.core.fields import inner, speed
from metreg.core.grid import Grid
from metreg.core.resample import sample, upsample
from metreg.deformation.maps import plain_folding
from metreg.deformation.steps import ORDER, step
from metreg.metric.gaussian import SeparableGaussians
from metreg.metric.multi_gaussian import MultiGaussian, border_window
from metreg.similarity import lncc as lncc_module
from metreg.similarity.lncc import lncc, span
from metreg.similarity.ncc import TINY, ncc

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def assert_near(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    """Equal to single precision, relative to the whole."""
    for f, w in zip(found, wanted, strict=True):
        assert f.shape == w.shape
        assert float((f.detach().cpu() - w.detach()).norm() / w.detach().norm()) < 1e-5


def single(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().float().to(DEVICE).requires_grad_(t.requires_grad) for t in tensors]


def test_every_kernel_compiles_for_a_gpu_though_there_may_be_none() -> None:
    """In a process of its own: in this one kernels may be for the interpreter, which takes more than the compiler does."""
    script = Path(__file__).with_name("compile_for_gpu.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("together", [2**20, 0])
@pytest.mark.parametrize("shape", [(2, 3), (9, 17), (2, 3, 2), (5, 7, 6)])
@pytest.mark.parametrize("scheme", list(ORDER))
def test_transport(scheme: str, shape: tuple[int, ...], together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from metreg.kernels.triton import advection as advection_gpu

    monkeypatch.setattr(advection_gpu, "TOGETHER", together)
    grid = Grid(shape, (0.2, 0.25, 0.3)[: len(shape)])
    f, v, p = (random_field(2, len(shape), *shape, seed=s) for s in (1, 2, 3))
    v = (0.2 * v).requires_grad_()
    f.requires_grad_()
    plain = f
    for _ in range(3):
        plain = step(plain, v=v, dt=1 / 3, grid=grid, order=ORDER[scheme])
    expected = (plain, *torch.autograd.grad(plain, (f, v), p))
    factors = [-1 / (2 * 3 * h) for h in grid.spacing]
    g, u, q = (t.detach() for t in single(f, v, p))
    fast, kept = advection_gpu.forward(g, u, factors, 3, ORDER[scheme])
    assert_near((fast, *advection_gpu.backward(kept, u, factors, q, ORDER[scheme])), expected)


@pytest.mark.parametrize(
    ("shape", "channels", "width"),
    [
        ((3, 2), (1, 20), 5),
        ((6, 9), (20, 4), 5),
        ((3, 4, 2), (3, 7), 3),
        ((4, 5), (1, 3), 9),
        pytest.param((9, 18, 11), (1, 20), 5, marks=pytest.mark.gpu),
        pytest.param((9, 18, 11), (20, 4), 5, marks=pytest.mark.gpu),
    ],
)
def test_convolution(
    shape: tuple[int, ...], channels: tuple[int, int], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metreg.kernels.triton import convolve as module
    from metreg.kernels.triton.convolve import convolve

    if DEVICE == "cpu":  # the interpreter takes its time for every block
        monkeypatch.setattr(module, "SPLITS", 2)
    x = random_field(2, channels[0], *shape, seed=1).requires_grad_()
    kernel = random_field(channels[1], channels[0], *[width] * len(shape), seed=2).requires_grad_()
    p = random_field(2, channels[1], *shape, seed=3)
    plain = (F.conv2d if len(shape) == 2 else F.conv3d)(x, kernel, padding=width // 2)
    y, k, q = single(x, kernel, p)
    fast = convolve(y, k)
    expected = (plain, *torch.autograd.grad(plain, (x, kernel), p))
    assert_near((fast, *torch.autograd.grad(fast, (y, k), q)), expected)


@pytest.mark.parametrize("factor", [0.4, 0.5, 1.0, (0.5, 1.0, 0.6), (1.0, 0.5, 1.0)])
@pytest.mark.parametrize("shape", [(9, 8), (12, 7, 11)])
def test_warp(shape: tuple[int, ...], factor: float | tuple[float, ...]) -> None:
    from metreg.kernels.triton.warp import Warp

    grid = Grid(shape, (0.1, 0.12, 0.15)[: len(shape)])
    coarse = grid.coarsen(factor if isinstance(factor, float) else factor[: len(shape)])
    source = torch.rand(2, 1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = 0.15 * random_field(2, len(shape), *coarse.shape, seed=1)  # far enough to leave the image here and there
    phi_inv = (coarse.points(source) + noise).requires_grad_()
    p = random_field(2, 1, *shape, seed=2)
    plain = sample(source, upsample(phi_inv, grid), grid)
    expected = (plain, *torch.autograd.grad(plain, phi_inv, p))
    image, phi, q = single(source, phi_inv, p)
    fast = Warp.apply(image, phi, grid)
    assert_near((fast, *torch.autograd.grad(fast, phi, q)), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("shape", "factor"), [((9, 8), 0.5), ((12, 7, 11), 0.4), ((12, 7, 11), (0.5, 0.6, 1.0))])
def test_correlation_of_the_warped(shape: tuple[int, ...], factor: float | tuple[float, ...], masked: bool) -> None:
    from metreg.kernels.triton.ncc import WarpedNcc

    grid = Grid(shape, (0.1, 0.12, 0.15)[: len(shape)])
    coarse = grid.coarsen(factor if isinstance(factor, float) else factor[: len(shape)])
    source, noise = torch.rand(2, 2, 1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = source + 0.3 * noise
    mask = (random_field(2, 1, *shape, seed=3) > 0).double() if masked else None
    phi_inv = (coarse.points(source) + 0.05 * random_field(2, len(shape), *coarse.shape, seed=1)).requires_grad_()
    p = torch.tensor([0.7, 1.3], dtype=torch.float64)
    plain = ncc(sample(source, upsample(phi_inv, grid), grid), target, mask)
    expected = (plain, *torch.autograd.grad(plain, phi_inv, p))
    image, phi, other, q = single(source, phi_inv, target, p)
    fast = WarpedNcc.apply(image, phi, other, None if mask is None else single(mask)[0], grid, TINY)
    assert_near((fast, *torch.autograd.grad(fast, phi, q)), expected)


@pytest.mark.parametrize(("masked", "noise"), [(False, 0.0), (True, 0.0), (False, 0.15), (True, 0.15)])
@pytest.mark.parametrize(("shape", "window"), [((19, 18), 5), ((12, 7, 11), 7), ((6, 9, 33), 5)])
def test_local_correlation(shape: tuple[int, ...], window: int, masked: bool, noise: float) -> None:
    from metreg.kernels.triton.lncc import LnccOnGpu

    warped, target = torch.rand(2, 2, 1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = (random_field(2, 1, *shape, seed=3) > -0.5).double() if masked else None
    warped.requires_grad_()
    p = torch.tensor([0.7, 1.3], dtype=torch.float64)
    plain = lncc(warped, target, mask, window=window, noise=noise)
    expected = (plain, *torch.autograd.grad(plain, warped, p))
    a, b, q = single(warped, target, p)
    known, numbers = None if mask is None else single(mask)[0], (lncc_module.TINY, lncc_module.FLAT, noise, span(noise))
    fast = LnccOnGpu.apply(a, b, known, window, *numbers)
    assert_near((fast, *torch.autograd.grad(fast, a, q)), expected)


@pytest.mark.parametrize("shape", [(7, 9), (2, 3), (5, 4, 6), (2, 3, 2)])
def test_folding(shape: tuple[int, ...]) -> None:
    from metreg.kernels.triton.folding import FoldingOnGpu

    grid = Grid(shape, (0.1, 0.12, 0.15)[: len(shape)])
    phi = (
        grid.points(torch.zeros(2, 1, 1, dtype=torch.float64)) + 0.05 * random_field(2, len(shape), *shape)
    ).requires_grad_()
    p = torch.tensor([0.7, 1.3], dtype=torch.float64)
    plain = plain_folding(phi, grid, 0.6)
    expected = (plain, *torch.autograd.grad(plain, phi, p))
    assert float(plain.detach().min()) > 0
    psi, q = single(phi, p)
    fast = FoldingOnGpu.apply(psi, grid, 0.6)
    assert_near((fast, *torch.autograd.grad(fast, psi, q)), expected)


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("shape", [(9, 17), (5, 7, 6), pytest.param((37, 41, 35), marks=pytest.mark.gpu)])
def test_smoothing(shape: tuple[int, ...], local: bool, windowed: bool) -> None:
    """Momentum to velocity, its length and its speed, with the gradients towards momentum and weights."""
    from metreg.kernels.triton.smooth import Sharp

    grid = Grid(shape, (0.1, 0.12, 0.15)[: len(shape)])
    gaussians = SeparableGaussians(grid, torch.tensor([0.05, 0.2, 0.5], dtype=torch.float64))
    tau = border_window(grid, 2, gaussians.sigma) if windowed else None
    m, p = (random_field(2, len(shape), *shape, seed=s) for s in (1, 2))
    w = (random_field(2, 3, *shape, seed=3).abs() + 0.1) if local else torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    m.requires_grad_()
    w.requires_grad_()
    v = MultiGaussian(gaussians, w, tau).sharp(m)
    plain = (v, inner(m, v, grid), speed(v, grid))
    forces = (p, torch.tensor([0.3, -0.7], dtype=torch.float64))
    n, u, q, to_norm, *matrices = single(m, w, *forces, *gaussians.matrices)
    window = None if tau is None else single(tau)[0]
    known = Sharp.apply(n, u.detach(), window, matrices, grid.spacing)[0]  # nobody asks for the weights' gradient
    assert_near(torch.autograd.grad(known, n, q), torch.autograd.grad(v, m, p, retain_graph=True))
    fast = Sharp.apply(n, u, window, matrices, grid.spacing)
    for used in (slice(2), slice(1), slice(1, 2)):  # both, the velocity, its length
        expected = torch.autograd.grad(plain[used], (m, w), forces[used], retain_graph=True)
        found = torch.autograd.grad(fast[used], (n, u), (q, to_norm)[used], retain_graph=True)
        assert_near((*fast, *found), (*plain, *expected))


@pytest.mark.parametrize("shape", [(9, 17), (5, 70, 6)])
def test_the_fastest_point(shape: tuple[int, ...]) -> None:
    from metreg.kernels.triton.speed import fastest

    grid = Grid(shape, (0.1, 0.12, 0.15)[: len(shape)])
    v = random_field(2, len(shape), *shape)
    assert_near((fastest(*single(v), grid.spacing),), (speed(v, grid),))
    v[1].view(-1)[-1] = torch.nan
    found = fastest(*single(v), grid.spacing)
    assert found[0].isfinite() and not found[1].isfinite()
