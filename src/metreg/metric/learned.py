"""The learned metric: from a source image to weights, what they cost, and the kernel they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metreg.config import LearnedSettings, MetricSettings
from metreg.grid import Grid
from metreg.interpolate import downsample
from metreg.metric.gaussian import make_gaussians
from metreg.metric.multi_gaussian import default_weights
from metreg.metric.network import WeightNetwork
from metreg.metric.penalties import colour_variation, edge_weight, out_of_range, square_variation, transport
from metreg.metric.simplex import plain_softmax, to_simplex, weighted_linear_softmax

EDGE_SMOOTHING = 0.01
"""Standard deviation with which the source is smoothed before its edges are looked for."""


class Weights(NamedTuple):
    """Smoothed weights w and pre-weights omega (B, N, *S), and by how much the clamps held."""

    w: Tensor
    omega: Tensor
    excess: Tensor


class Penalties(NamedTuple):
    """What weights cost, every term already weighted, (B,)."""

    transport: Tensor
    variation: Tensor
    range: Tensor


class LearnedMetric(nn.Module):
    """A network with the settings that give its output a meaning. It works at any size of grid."""

    def __init__(
        self, dim: int, metric: MetricSettings, learned: LearnedSettings, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.dim, self.metric, self.learned = dim, metric, learned
        self.network = WeightNetwork(dim, len(metric.sigma), learned.network, generator)
        sigma = torch.tensor(metric.sigma)
        self.register_buffer("sigma", sigma, persistent=False)
        set_point = default_weights(sigma) if metric.weights is None else torch.tensor(metric.weights)
        self.register_buffer("set_point", set_point, persistent=False)

    def weights(self, source: Tensor, grid: Grid, m: Tensor | None = None) -> Weights:
        """The weights that go with a source (B, 1, *S) on the map's grid."""
        simplex = weighted_linear_softmax if self.learned.simplex == "linear" else plain_softmax
        omega, excess = simplex(self.network(source, m), self.set_point)  # type: ignore[arg-type]
        return Weights(to_simplex(self._smooth(omega, grid, self.learned.smoothing_in(self.dim))), omega, excess)

    def weights_of(self, source: Tensor, map_grid: Grid) -> Tensor | Callable[..., Tensor]:
        """For a registration: the weights of a source (B, 1, *S) of any resolution, or their function `(m, grid=...)`."""

        def at(m: Tensor | None, grid: Grid) -> Tensor:
            with torch.no_grad():
                return self.weights(downsample(source, grid), grid, m).w

        return at if self.network.momentum_input else at(None, map_grid)

    def penalties(self, weights: Weights, gamma: Tensor, grid: Grid) -> Penalties:
        """What these weights cost; `gamma` is the source's `edges`."""
        variation = colour_variation if self.learned.variation_kind == "tv" else square_variation
        power = self.learned.transport_power
        return Penalties(
            transport=self.learned.transport * transport(weights.w, self.sigma, grid, power=power),  # type: ignore[arg-type]
            variation=self.learned.variation * variation(weights.omega, gamma, grid),
            range=self.learned.range * out_of_range(weights.excess, grid),
        )

    def edges(self, source: Tensor, grid: Grid) -> Tensor:
        """gamma (B, 1, *S), small at the edges of the source."""
        return edge_weight(self._smooth(source, grid, EDGE_SMOOTHING), grid)

    def _smooth(self, f: Tensor, grid: Grid, sigma: float) -> Tensor:
        kind = self.metric.realisation
        gaussians = grid.constant(
            (kind, sigma), f, lambda: make_gaussians(grid, torch.tensor([sigma], dtype=f.dtype, device=f.device), kind)
        )
        return gaussians.each(f[:, None])[:, 0]
