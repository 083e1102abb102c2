"""The Triton kernels against their plain-torch twins: on a GPU, or where there is none in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import random_field
from metreg.flow.steps import ORDER, step
from metreg.grid import Grid
from metreg.interpolate import _matrix, sample, upsample

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def assert_near(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    """Equal to single precision, relative to the whole."""
    for f, w in zip(found, wanted, strict=True):
        assert f.shape == w.shape
        assert float((f.detach().cpu() - w.detach()).norm() / w.detach().norm()) < 1e-5


def single(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().float().to(DEVICE).requires_grad_(t.requires_grad) for t in tensors]


@pytest.mark.parametrize("shape", [(2, 3), (9, 17), (2, 3, 2), (5, 7, 6)])
@pytest.mark.parametrize("scheme", list(ORDER))
def test_transport(scheme: str, shape: tuple[int, ...]) -> None:
    from metreg.kernels import transport_gpu

    grid = Grid(shape, (0.2, 0.25, 0.3)[: len(shape)])
    f, v, p = (random_field(2, len(shape), *shape, seed=s) for s in (1, 2, 3))
    z = (v / (-2 * 3 * grid.steps(v)) * 0.2).requires_grad_()
    f.requires_grad_()
    plain = f
    for _ in range(3):
        plain = step(plain, v=z * (-2 * 3 * grid.steps(v)), dt=1 / 3, grid=grid, order=ORDER[scheme])
    expected = (plain, *torch.autograd.grad(plain, (f, z), p))
    g, y, q = (t.detach() for t in single(f, z, p))
    fast, starts = transport_gpu.forward(g, y, 3, ORDER[scheme])
    assert_near((fast, *transport_gpu.backward(starts, y, q, ORDER[scheme])), expected)


@pytest.mark.parametrize(
    ("shape", "channels", "width"),
    [
        ((3, 2), (1, 20), 5),
        ((6, 9), (20, 4), 5),
        ((3, 4, 2), (3, 7), 3),
        pytest.param((9, 18, 11), (1, 20), 5, marks=pytest.mark.gpu),
        pytest.param((9, 18, 11), (20, 4), 5, marks=pytest.mark.gpu),
    ],
)
def test_convolution(
    shape: tuple[int, ...], channels: tuple[int, int], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metreg.kernels import convolve as module
    from metreg.kernels.convolve import convolve

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


@pytest.mark.parametrize("factor", [0.4, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(9, 8), (12, 7, 11)])
def test_warp(shape: tuple[int, ...], factor: float) -> None:
    from metreg.kernels.warp import Warp

    grid = Grid(shape, (0.1, 0.12, 0.15)[: len(shape)])
    coarse = grid.coarsen(factor)
    source = torch.rand(2, 1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = 0.15 * random_field(2, len(shape), *coarse.shape, seed=1)  # far enough to leave the image here and there
    phi_inv = (coarse.points(source) + noise).requires_grad_()
    p = random_field(2, 1, *shape, seed=2)
    plain = sample(source, upsample(phi_inv, grid), grid)
    expected = (plain, *torch.autograd.grad(plain, phi_inv, p))
    image, phi, q = single(source, phi_inv, p)
    up = [None if c == n else _matrix(c, n, phi, grid) for c, n in zip(coarse.shape[:-1], shape, strict=False)]
    fast = Warp.apply(image, phi, grid, up)
    assert_near((fast, *torch.autograd.grad(fast, phi, q)), expected)
