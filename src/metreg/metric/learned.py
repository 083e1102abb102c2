"""The learned metric: from a source image to weights, what they cost, and the kernel they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metreg.core.grid import Grid
from metreg.core.resample import downsample
from metreg.metric.base import Penalties, Weighting
from metreg.metric.gaussian import make_gaussians
from metreg.metric.multi_gaussian import default_weights
from metreg.metric.network import WeightNetwork
from metreg.metric.penalties import (
    DIFFERENCES,
    colour_variation,
    edge_weight,
    out_of_range,
    square_variation,
    transport,
)
from metreg.metric.simplex import plain_softmax, to_simplex, weighted_linear_softmax
from metreg.settings.model import LearnedSettings, MetricSettings

EDGE_SMOOTHING = 0.01
"""Standard deviation with which the source is smoothed before its edges are looked for."""


class Weights(NamedTuple):
    """Smoothed weights w and pre-weights omega (B, N, *S), and by how much the clamps held."""

    w: Tensor
    omega: Tensor
    excess: Tensor


class Prices(NamedTuple):
    """What the source says of the costs of weights, (B, 1, *S)."""

    transport: Tensor
    """The share of the price of leaving the largest Gaussian that is asked for at a point."""
    variation: Tensor
    """gamma, small at the edges of the source: there weights may vary."""


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

    def weights_of(self, source: Tensor, seen: Grid) -> Tensor | Callable[..., Weighting]:
        """For a registration: the weights of a source (B, 1, *S) of any resolution, looked at on the grid `seen`.

        A network that looks at the momentum too gives a function of it, `(m, grid=...)`: then what weights cost depends on
        the momentum as well, and a registration has to weigh it.
        """
        small = downsample(source, seen)
        if not self.network.momentum_input:
            with torch.no_grad():
                return self.weights(small, seen).w
        prices = self.prices(small, seen)

        def at(m: Tensor, grid: Grid) -> Weighting:
            weights = self.weights(small, seen, downsample(m, seen))
            return Weighting(downsample(weights.w, grid), self.penalties(weights, prices, seen))

        return at

    def penalties(self, weights: Weights, prices: Prices, grid: Grid) -> Penalties:
        """What these weights cost."""
        learned = self.learned
        variation = colour_variation if learned.variation_kind == "tv" else square_variation
        varied = variation(weights.omega, prices.variation, grid, DIFFERENCES[learned.differences])
        moved = transport(weights.w, self.sigma, grid, power=learned.transport_power, share=prices.transport)  # type: ignore[arg-type]
        return Penalties(
            transport=learned.transport * moved,
            variation=learned.variation * varied,
            range=out_of_range(weights.excess, grid),
        )

    def prices(self, source: Tensor, grid: Grid) -> Prices:
        """What goes with a source (B, 1, *S) on the map's grid."""
        share = torch.ones_like(source) if self.learned.transport_by == "space" else source.clamp(0, 1)
        smooth = self._smooth(source, grid, EDGE_SMOOTHING)
        slope_of = DIFFERENCES[self.learned.differences]
        return Prices(share, edge_weight(smooth, grid, edge=self.learned.edge, slope_of=slope_of))

    def _smooth(self, f: Tensor, grid: Grid, sigma: float) -> Tensor:
        kind = self.metric.realisation
        gaussians = grid.constant(
            (kind, sigma), f, lambda: make_gaussians(grid, torch.tensor([sigma], dtype=f.dtype, device=f.device), kind)
        )
        return gaussians.each(f[:, None])[:, 0]
