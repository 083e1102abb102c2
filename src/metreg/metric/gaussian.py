"""Gaussian smoothing in two realisations behind one interface, each symmetric and positive."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from torch import Tensor

from metreg.grid import Grid
from metreg.interpolate import along_axis

Realisation = Literal["separable", "fourier"]


class Gaussians(Protocol):
    """N Gaussians of standard deviations `sigma` (N,), in reference lengths, on one grid."""

    grid: Grid
    sigma: Tensor

    def each(self, f: Tensor) -> Tensor:
        """G_i * f_i for every i.  f (B, N, C, *S), or (B, 1, C, *S) for one f under all -> (B, N, C, *S)."""

    def mixed(self, f: Tensor, w: Tensor) -> Tensor:
        """sum_i w_i G_i * f for constant weights w (N,).  f (B, C, *S) -> the same."""


def make_gaussians(grid: Grid, sigma: Tensor, realisation: Realisation) -> Gaussians:
    return FourierGaussians(grid, sigma) if realisation == "fourier" else SeparableGaussians(grid, sigma)


class FourierGaussians:
    """The paper's: multiply by exp(-2 pi^2 sigma_i^2 |k|^2); periodic, gain 1 at k = 0."""

    def __init__(self, grid: Grid, sigma: Tensor) -> None:
        self.grid, self.sigma = grid, sigma
        self.axes = tuple(range(-grid.dim, 0))
        frequencies = [torch.fft.fftfreq(n, d=h) for n, h in zip(grid.shape, grid.spacing, strict=True)]
        frequencies[-1] = torch.fft.rfftfreq(grid.shape[-1], d=grid.spacing[-1])
        k2 = sum(k**2 for k in torch.meshgrid(*[k.to(sigma) for k in frequencies], indexing="ij"))
        self.gain = torch.exp(-2 * math.pi**2 * sigma.view(-1, 1, *[1] * grid.dim) ** 2 * k2)  # (N, 1, *S/2)

    def each(self, f: Tensor) -> Tensor:
        return self._filter(f, self.gain)

    def mixed(self, f: Tensor, w: Tensor) -> Tensor:
        return self._filter(f, torch.tensordot(w, self.gain, dims=1))

    def _filter(self, f: Tensor, gain: Tensor) -> Tensor:
        return torch.fft.irfftn(torch.fft.rfftn(f, dim=self.axes) * gain, s=self.grid.shape, dim=self.axes)


class SeparableGaussians:
    """For real images: one dense matrix per axis and sigma; nothing wraps round, nothing comes from outside."""

    def __init__(self, grid: Grid, sigma: Tensor) -> None:
        self.grid, self.sigma = grid, sigma
        self.matrices = [  # per axis (N, n, n)
            torch.stack([gaussian_matrix(n, h, float(s)) for s in sigma]).to(sigma)
            for n, h in zip(grid.shape, grid.spacing, strict=True)
        ]

    def each(self, f: Tensor) -> Tensor:
        f = f.expand(-1, len(self.sigma), *f.shape[2:])
        return torch.stack([self._smooth(f[:, i], i) for i in range(len(self.sigma))], dim=1)

    def mixed(self, f: Tensor, w: Tensor) -> Tensor:
        return torch.stack([w[i] * self._smooth(f, i) for i in range(len(self.sigma))]).sum(0)

    def _smooth(self, f: Tensor, i: int) -> Tensor:
        for d, matrix in enumerate(self.matrices):
            f = along_axis(matrix[i], f, d + 2)
        return f


def gaussian_matrix(n: int, h: float, sigma: float) -> Tensor:
    """The sampled Gaussian between n points at distance h, normalised by its sum over the infinite line, (n, n)."""
    reach = math.ceil(10 * sigma / h) + 1
    total = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) * h / sigma) ** 2).sum()
    i = torch.arange(n, dtype=torch.float64)
    return torch.exp(-0.5 * ((i[:, None] - i) * h / sigma) ** 2) / total
