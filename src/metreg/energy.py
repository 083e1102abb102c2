"""The objective on one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from metreg.config import FlowSettings
from metreg.fields import inner
from metreg.flow.stationary import flow
from metreg.grid import Grid
from metreg.interpolate import sample, upsample
from metreg.metric.base import Metric
from metreg.similarity import Similarity


class Energy(NamedTuple):
    """Every term already weighted, one value for each pair (B,)."""

    similarity: Tensor
    regularity: Tensor

    def total(self) -> Tensor:
        return self.similarity + self.regularity


@dataclass(frozen=True)
class Scene:
    """A batch of pairs at one resolution: images on `grid`, map and momentum on `map_grid`, a grid of the same box."""

    source: Tensor
    """I0 (B, 1, *S)"""
    target: Tensor
    """I1 (B, 1, *S)"""
    grid: Grid
    map_grid: Grid
    source_mask: Tensor | None = None
    """Where the source is known (B, 1, *S); it moves with the source."""
    target_mask: Tensor | None = None
    """Where the target counts (B, 1, *S)."""


def warp(scene: Scene, phi_inv: Tensor) -> tuple[Tensor, Tensor | None]:
    """I0 o phi_inv at image resolution, and the mask within which it is compared."""
    x = upsample(phi_inv, scene.grid)
    warped = sample(scene.source, x, scene.grid)
    mask = scene.target_mask
    if scene.source_mask is not None:
        known = sample(scene.source_mask, x.detach(), scene.grid)
        mask = known if mask is None else mask * known
    return warped, mask


def make_energy(
    scene: Scene, metric: Metric, similarity: Similarity, *, flow_settings: FlowSettings, regularity: float
) -> Callable[[Tensor], Energy]:
    """E(m) = Sim(I0 o phi_inv, I1) + lambda <m, v>,  v = K m,  phi_inv the flow of v."""

    def energy(m: Tensor) -> Energy:
        v = metric.sharp(m)
        phi_inv = flow(v, scene.map_grid, integrator=flow_settings.integrator, steps=flow_settings.steps)
        warped, mask = warp(scene, phi_inv)
        return Energy(
            similarity=similarity(warped, scene.target, mask),
            regularity=regularity * inner(m, v, scene.map_grid),
        )

    return energy
