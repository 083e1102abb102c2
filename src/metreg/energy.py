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
    mask: Tensor | None = None
    """Where the images are compared (B, 1, *S), as weights in [0, 1]; it does not move, or the map could push it away."""


def make_energy(
    scene: Scene, metric: Metric, similarity: Similarity, *, flow_settings: FlowSettings, regularity: float
) -> Callable[[Tensor], Energy]:
    """E(m) = Sim(I0 o phi_inv, I1) + lambda <m, v>,  v = K m,  phi_inv the flow of v."""

    def energy(m: Tensor) -> Energy:
        v = metric.sharp(m)
        phi_inv = flow(v, scene.map_grid, integrator=flow_settings.integrator, steps=flow_settings.steps)
        warped = sample(scene.source, upsample(phi_inv, scene.grid), scene.grid)
        return Energy(
            similarity=similarity(warped, scene.target, scene.mask),
            regularity=regularity * inner(m, v, scene.map_grid),
        )

    return energy
