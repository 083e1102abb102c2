"""Gaussian smoothing in two realisations behind one interface, each symmetric and positive."""

from __future__ import annotations

import math
from functools import cached_property, reduce
from typing import Literal, Protocol

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.core.resample import along_axis

Realisation = Literal["separable", "fourier"]
LEAST_GAIN = 0.01
"""What is added to the gain of a kernel that is to be inverted, or its inverse would be all high frequencies."""


class Gaussians(Protocol):
    """N Gaussians of standard deviations `sigma` (N,), in reference lengths, on one grid."""

    grid: Grid
    sigma: Tensor

    @property
    def matrices(self) -> list[Tensor]:
        """For every axis the Gaussians along it, (N, n, n)."""

    def each(self, f: Tensor) -> Tensor:
        """G_i * f_i for every i.  f (B, N, C, *S), or (B, 1, C, *S) for one f under all -> (B, N, C, *S)."""

    def mixed(self, f: Tensor, w: Tensor) -> Tensor:
        """sum_i w_i G_i * f for constant weights w (N,).  f (B, C, *S) -> the same."""

    def local(self, f: Tensor, w: Tensor) -> Tensor:
        """sum_i sqrt(w_i) G_i * (sqrt(w_i) f) for weights w (B, N, *S).  f (B, C, *S) -> the same."""


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

    @cached_property
    def matrices(self) -> list[Tensor]:
        """The same as a matrix per axis and sigma (N, n, n): it is a product over the axes."""
        return [
            torch.stack([periodic_matrix(n, h, float(s)) for s in self.sigma]).to(self.sigma)
            for n, h in zip(self.grid.shape, self.grid.spacing, strict=True)
        ]

    def each(self, f: Tensor) -> Tensor:
        return self._filter(f, self.gain)

    def mixed(self, f: Tensor, w: Tensor) -> Tensor:
        return self._filter(f, torch.tensordot(w, self.gain, dims=1))

    def local(self, f: Tensor, w: Tensor) -> Tensor:
        root = w.sqrt().unsqueeze(2)  # (B, N, 1, *S): the same for every component of f
        return (root * self.each(root * f.unsqueeze(1))).sum(1)

    def _filter(self, f: Tensor, gain: Tensor) -> Tensor:
        """Multiply by the gain in Fourier space."""
        return torch.fft.irfftn(torch.fft.rfftn(f, dim=self.axes) * gain, s=self.grid.shape, dim=self.axes)


class SeparableGaussians:
    """For real images: a matrix per axis and sigma; nothing wraps round, nothing comes from outside.

    What a wide Gaussian leaves of a field is so smooth that few numbers tell it: its matrices have low rank.
    """

    def __init__(self, grid: Grid, sigma: Tensor) -> None:
        self.grid, self.sigma = grid, sigma

    @cached_property
    def matrices(self) -> list[Tensor]:
        return [
            torch.stack([gaussian_matrix(n, h, float(s)) for s in self.sigma]).to(self.sigma)
            for n, h in zip(self.grid.shape, self.grid.spacing, strict=True)
        ]

    def each(self, f: Tensor) -> Tensor:
        wide = f.expand(-1, len(self.sigma), *f.shape[2:])
        return torch.stack([self._one(i, part) for i, part in enumerate(wide.unbind(1))], dim=1)

    def mixed(self, f: Tensor, w: Tensor) -> Tensor:
        return reduce(torch.add, (w[i] * self._one(i, f) for i in range(len(w))))

    def local(self, f: Tensor, w: Tensor) -> Tensor:
        roots = w.sqrt().unsqueeze(2).unbind(1)  # (B, 1, *S) each: the same for every component of f
        total = roots[0] * self._one(0, roots[0] * f)
        for i, root in enumerate(roots[1:], start=1):
            total = torch.addcmul(total, root, self._one(i, root * f))
        return total

    @cached_property
    def factors(self) -> list[list[Tensor] | None]:
        """For every Gaussian its matrices G = U U^T as U (n, r), one for each axis; None where r would not be small."""
        return [_factors([matrix[i] for matrix in self.matrices]) for i in range(len(self.sigma))]

    def _one(self, i: int, f: Tensor) -> Tensor:
        """G_i * f.  f (B, C, *S) -> the same."""
        axes, factors = range(self.grid.dim), self.factors[i]
        if factors is None:
            for d in axes:
                f = along_axis(self.matrices[d][i], f, d + 2)
            return f
        for d in reversed(axes):
            f = along_axis(factors[d].mT, f, d + 2)
        for d in axes:
            f = along_axis(factors[d], f, d + 2)
        return f


class InvertibleKernel:
    """sum_i w_i G_i + LEAST_GAIN for constant weights w (N,), periodic: symmetric, positive, its inverse in closed form."""

    def __init__(self, grid: Grid, sigma: Tensor, w: Tensor) -> None:
        self.gaussians = FourierGaussians(grid, sigma)
        self.gain = torch.tensordot(w, self.gaussians.gain, dims=1) + LEAST_GAIN

    def sharp(self, m: Tensor) -> Tensor:
        return self.gaussians._filter(m, self.gain)

    def flat(self, v: Tensor) -> Tensor:
        """The momentum whose velocity is v: `sharp` undone."""
        return self.gaussians._filter(v, 1 / self.gain)


def _factors(matrices: list[Tensor]) -> list[Tensor] | None:
    """U (n, r) with U U^T = G, to the last digit, for every matrix G (n, n); None if some r is more than half of n."""
    found = []
    for matrix in matrices:
        values, vectors = torch.linalg.eigh(matrix.double().cpu())
        kept = values > torch.finfo(matrix.dtype).eps * values[-1]
        if 2 * int(kept.sum()) > len(matrix):
            return None
        found.append((vectors[:, kept] * values[kept].sqrt()).to(matrix))
    return found


def periodic_matrix(n: int, h: float, sigma: float) -> Tensor:
    """What multiplying by exp(-2 pi^2 sigma^2 k^2) does to n points at distance h, (n, n)."""
    k = torch.fft.rfftfreq(n, d=h, dtype=torch.float64)
    gain = torch.exp(-2 * math.pi**2 * sigma**2 * k**2)
    return torch.fft.irfft(torch.fft.rfft(torch.eye(n, dtype=torch.float64)) * gain, n=n)


def gaussian_matrix(n: int, h: float, sigma: float) -> Tensor:
    """The sampled Gaussian between n points at distance h, normalised by its sum over the infinite line, (n, n)."""
    sigma = max(sigma, 1e-3 * h)  # narrower is a delta all the same
    reach = math.ceil(10 * min(sigma / h, 100)) + 1
    total = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) * h / sigma) ** 2).sum()
    if sigma / h > 100:  # the sum is the integral to all digits
        total = torch.tensor(math.sqrt(2 * math.pi) * sigma / h, dtype=torch.float64)
    i = torch.arange(n, dtype=torch.float64)
    return torch.exp(-0.5 * ((i[:, None] - i) * h / sigma) ** 2) / total
