"""Test pairs with a known map: register them in one batch, measure the errors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from metreg.config import Settings
from metreg.evaluate.displacement import displacement_error
from metreg.flow.maps import count_folds
from metreg.grid import Grid
from metreg.interpolate import downsample, upsample
from metreg.learn.train import TrainingPairs
from metreg.metric.learned import LearnedMetric
from metreg.solve.multiscale import map_grid_of
from metreg.solve.register import register_pair
from metreg.synthetic import DISC, RING, RingPair

REGIONS = {"disc": DISC, "ring": RING}


@dataclass(frozen=True, eq=False)
class RingBatch:
    """Many ring pairs as one batch."""

    pairs: TrainingPairs
    phi_inv: Tensor
    labels: Tensor
    source_labels: Tensor
    weights: Tensor

    @classmethod
    def of(cls, pairs: list[RingPair]) -> RingBatch:
        def together(name: str) -> Tensor:
            return torch.cat([getattr(pair, name) for pair in pairs])

        images = TrainingPairs(together("source"), together("target"), pairs[0].grid)
        return cls(images, together("phi_inv"), together("target_labels"), together("source_labels"), together("weights"))

    @property
    def grid(self) -> Grid:
        return self.pairs.grid


@dataclass(frozen=True, eq=False)
class RingResult:
    """One method on a batch: errors (P,) in pixels by region, and the maps at image resolution."""

    errors: dict[str, Tensor]
    folds: int
    phi_inv: Tensor

    def medians(self) -> dict[str, float]:
        return {name: float(values.quantile(0.5)) for name, values in self.errors.items()}


def do_nothing(batch: RingBatch) -> RingResult:
    """The errors before any registration."""
    return measure(batch, batch.grid.points(batch.phi_inv).expand_as(batch.phi_inv), 0)


def register_rings(
    batch: RingBatch, settings: Settings, device: torch.device, *, weights: Tensor | None = None
) -> RingResult:
    """All pairs with one method; `weights` (P, N, *S) make the metric local."""
    source, target = batch.pairs.source.to(device), batch.pairs.target.to(device)
    local = None if weights is None else weights.to(device)
    found = register_pair(source, target, batch.grid, settings, weights=local)
    folds = int(count_folds(found.phi_inv.double(), found.grid).sum())
    return measure(batch, upsample(found.phi_inv, batch.grid).cpu(), folds)


def measure(batch: RingBatch, phi_inv: Tensor, folds: int) -> RingResult:
    errors = {
        name: displacement_error(phi_inv, batch.phi_inv, (batch.labels == label)[:, 0], batch.grid)
        for name, label in REGIONS.items()
    }
    return RingResult(errors, folds, phi_inv)


@torch.no_grad()
def learned_weights(model: LearnedMetric, batch: RingBatch, settings: Settings) -> Tensor:
    """What a metric says of every source, (P, N, *S) on the grid of the map."""
    grid = map_grid_of(batch.grid, settings.flow.map_factor)
    device = next(model.parameters()).device
    small = downsample(batch.pairs.source.to(device), grid)
    return model.weights(small, grid).w


def sigma_of(weights: Tensor, sigma: tuple[float, ...]) -> Tensor:
    """sigma(x) (P, *S) of weights (P, N, *S)."""
    square = torch.tensor(sigma, dtype=weights.dtype, device=weights.device) ** 2
    return torch.einsum("bn...,n->b...", weights, square).sqrt()


def sigma_agreement(weights: Tensor, batch: RingBatch, sigma: tuple[float, ...]) -> dict[str, float]:
    """Correlation of sigma(x) with the truth, and how far the background lies above the ring in both."""
    grid = batch.grid
    found = upsample(sigma_of(weights, sigma)[:, None].cpu(), grid)[:, 0]
    truth = sigma_of(batch.weights, sigma)
    ring, background = (batch.source_labels == RING)[:, 0], (batch.source_labels == 0)[:, 0]
    stacked = torch.stack([found.flatten(), truth.flatten()])
    return {
        "correlation": float(torch.corrcoef(stacked)[0, 1]),
        "contrast": float(found[background].mean() - found[ring].mean()),
        "true_contrast": float(truth[background].mean() - truth[ring].mean()),
    }
