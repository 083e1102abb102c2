"""Gaussian smoothing in two realisations behind one interface, each symmetric and positive."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from torch import Tensor

from metreg.grid import Grid

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
        frequencies = [
            torch.fft.fftfreq(n, d=h, dtype=torch.float64) for n, h in zip(grid.shape, grid.spacing, strict=True)
        ]
        frequencies[-1] = torch.fft.rfftfreq(grid.shape[-1], d=grid.spacing[-1], dtype=torch.float64)
        k2 = torch.stack(torch.meshgrid(*frequencies, indexing="ij")).square().sum(0)
        width = sigma.double().cpu().view(-1, 1, *[1] * grid.dim)
        self.gain = torch.exp(-2 * math.pi**2 * width**2 * k2).to(sigma)  # (N, 1, *S/2)

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
        for d, matrix in enumerate(self.matrices):
            f = self._along(matrix, f, d)
        return f

    def mixed(self, f: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("n,bn...->b...", w, self.each(f[:, None]))

    def _along(self, matrices: Tensor, f: Tensor, d: int) -> Tensor:
        """All the matrices of axis d in one product.  f (B, N or 1, C, *S) -> (B, N, C, *S)."""
        b, _, c, *shape = f.shape
        last = d == self.grid.dim - 1
        rows, columns = (c * math.prod(shape[:d]), math.prod(shape[d + 1 :]))
        if last:  # (rows, n) times a symmetric matrix
            out = f.reshape(b, -1, rows, shape[d]) @ matrices
        else:
            out = matrices[:, None] @ f.reshape(b, -1, rows, shape[d], columns)
        return out.view(b, len(matrices), c, *shape)


def gaussian_matrix(n: int, h: float, sigma: float) -> Tensor:
    """The sampled Gaussian between n points at distance h, normalised by its sum over the infinite line, (n, n)."""
    sigma = max(sigma, 1e-3 * h)  # narrower is a delta all the same
    reach = math.ceil(10 * min(sigma / h, 100)) + 1
    total = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) * h / sigma) ** 2).sum()
    if sigma / h > 100:  # the sum is the integral to all digits
        total = torch.tensor(math.sqrt(2 * math.pi) * sigma / h, dtype=torch.float64)
    i = torch.arange(n, dtype=torch.float64)
    return torch.exp(-0.5 * ((i[:, None] - i) * h / sigma) ** 2) / total
