"""Test pairs with a known map: register them in one batch, measure the errors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.core.resample import upsample
from metreg.deformation.maps import count_folds
from metreg.experiments.rings.draw import DISC, RING, RingPair
from metreg.io.atomic import atomic_file
from metreg.io.tensors import read_tensors, write_tensors
from metreg.learn.pairs import TrainingPairs
from metreg.measure.displacement import displacement_error
from metreg.measure.regularity import FoldCount
from metreg.settings.model import Settings
from metreg.solve.register import WeightsOf, register_tensors

FORMAT = "metreg-rings-2"
REGIONS = {"disc": DISC, "ring": RING}
SHOWN = 4
"""Pairs whose maps are kept for pictures."""


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

        images = TrainingPairs.of(together("source"), together("target"), pairs[0].grid)
        return cls(images, together("phi_inv"), together("target_labels"), together("source_labels"), together("weights"))

    @property
    def grid(self) -> Grid:
        return self.pairs.grid

    def part(self, first: int, last: int) -> RingBatch:
        """The pairs from one number to before another."""
        images = TrainingPairs.of(self.pairs.source[first:last], self.pairs.target[first:last], self.grid)
        tensors = (self.phi_inv, self.labels, self.source_labels, self.weights)
        return RingBatch(images, *[tensor[first:last] for tensor in tensors])


@dataclass(frozen=True, eq=False)
class RingResult:
    """One method on a batch: errors (P,) in pixels by region, folds of all pairs in the end."""

    errors: dict[str, Tensor]
    folds: int
    phi_inv: Tensor
    """The maps of the first few pairs, at image resolution."""
    weights: Tensor | None = None
    """Of a local metric: the weights (P, N, *S) of the first few pairs, on the map's grid."""
    mean_weights: Tensor | None = None
    """Their mean over all points of all pairs, (N,)."""
    agreement: dict[str, float] = field(default_factory=dict)
    """How sigma(x) compares with the truth."""
    energy: float = 0.0
    """Mean over the pairs, at the end."""
    before: FoldCount = field(default_factory=lambda: FoldCount())
    """Folds before any repair."""

    def medians(self) -> dict[str, float]:
        return {name: float(values.quantile(0.5)) for name, values in self.errors.items()}


def do_nothing(batch: RingBatch) -> RingResult:
    """The errors before any registration."""
    return measure(batch, batch.grid.points(batch.phi_inv).expand_as(batch.phi_inv), 0)


def register_rings(
    batch: RingBatch, settings: Settings, device: torch.device, *, weights: Tensor | WeightsOf | None = None
) -> RingResult:
    """All pairs with one method; `weights` (P, N, *S), or a function of the momenta, make the metric local."""
    source, target = batch.pairs.source.to(device), batch.pairs.target.to(device)
    local = weights.to(device) if isinstance(weights, Tensor) else weights
    found = register_tensors(source, target, batch.grid, settings, weights=local)
    folds = int(count_folds(found.phi_inv.double(), found.grid).sum())
    result = measure(batch, upsample(found.phi_inv, batch.grid).cpu(), folds)
    energy = sum(found.energy.values()) / len(batch.pairs)
    result = replace(result, energy=energy, before=FoldCount.of(found.repair))
    if weights is None:
        return result
    used = found.metric.w.cpu()
    return replace(
        result,
        weights=used[:SHOWN].clone(),
        mean_weights=used.mean((0, 2, 3)),
        agreement=sigma_agreement(used, batch, settings.metric.sigma),
    )


def measure(batch: RingBatch, phi_inv: Tensor, folds: int) -> RingResult:
    errors = {
        name: displacement_error(phi_inv, batch.phi_inv, (batch.labels == label)[:, 0], batch.grid)
        for name, label in REGIONS.items()
    }
    return RingResult(errors, folds, phi_inv[:SHOWN].clone())


def save_result(path: Path, result: RingResult, *, seconds: float) -> None:
    tensors = {**result.errors, "phi_inv": result.phi_inv}
    if result.weights is not None and result.mean_weights is not None:
        tensors |= {"weights": result.weights, "mean_weights": result.mean_weights}
    facts: dict[str, Any] = {"folds": result.folds, "energy": result.energy}
    facts |= {"before": result.before._asdict(), "agreement": result.agreement, "seconds": seconds}
    with atomic_file(path, overwrite=False) as temporary:
        write_tensors(temporary, tensors, form=FORMAT, header={"facts": json.dumps(facts)})


def load_result(path: Path) -> tuple[RingResult, float]:
    """A result, and the seconds it took."""
    tensors, header = read_tensors(path, form=FORMAT, role="result")
    facts = json.loads(header["facts"])
    result = RingResult(
        errors={region: tensors[region] for region in REGIONS},
        folds=facts["folds"],
        phi_inv=tensors["phi_inv"],
        weights=tensors.get("weights"),
        mean_weights=tensors.get("mean_weights"),
        agreement=facts["agreement"],
        energy=facts["energy"],
        before=FoldCount(**facts["before"]),
    )
    return result, facts["seconds"]


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
        "mean": float(found.mean()),
        "contrast": float(found[background].mean() - found[ring].mean()),
        "true_contrast": float(truth[background].mean() - truth[ring].mean()),
    }
