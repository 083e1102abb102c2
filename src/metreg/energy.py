"""The objective on one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from metreg.config import FlowSettings, SolveSettings
from metreg.fields import inner
from metreg.flow.maps import folding
from metreg.flow.stationary import flow, speed
from metreg.grid import Grid
from metreg.interpolate import sample, upsample, warp
from metreg.metric.base import Metric
from metreg.metric.learned import Penalties
from metreg.similarity import Similarity


class Energy(NamedTuple):
    """Every term already weighted, one value for each pair (B,)."""

    similarity: Tensor
    regularity: Tensor
    transport: Tensor
    variation: Tensor
    range: Tensor
    folding: Tensor

    def total(self) -> Tensor:
        return torch.stack(tuple(self)).sum(0)


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


@dataclass(frozen=True)
class Objective:
    """E = Sim(I0 o phi_inv, I1) + lambda <m, v> + what weights and folds cost,  v = K m,  phi_inv the flow of v."""

    similarity: Similarity
    flow: FlowSettings
    solve: SolveSettings

    def __call__(self, m: Tensor, metric: Metric, scene: Scene, penalties: Penalties | None = None) -> Energy:
        """The energy of momenta m (B, D, *S), by term."""
        return self.at(m, metric, scene, penalties).energy

    def at(
        self, m: Tensor, metric: Metric, scene: Scene, penalties: Penalties | None = None, steps: int | None = None
    ) -> Point:
        """The energy and the speed of the flow; `steps` fixes the number of time steps, whatever the speed."""
        v = metric.sharp(m)
        phi_inv = flow(
            v, scene.map_grid, integrator=self.flow.integrator, steps=steps or self.flow.steps, adapt=steps is None
        )
        if phi_inv.device.type == "cpu":
            warped = warp(scene.source, phi_inv, scene.grid)
        else:  # the Triton kernel for it has been seen in its interpreter only
            warped = sample(scene.source, upsample(phi_inv, scene.grid), scene.grid)
        similarity = self.similarity(warped, scene.target, scene.mask)
        free = torch.zeros_like(similarity)
        energy = Energy(
            similarity,
            self.solve.regularity * inner(m, v, scene.map_grid),
            *(penalties or Penalties(free, free, free)),
            self.solve.folding * folding(phi_inv, scene.map_grid, self.solve.least_determinant)
            if self.solve.folding
            else free,
        )
        return Point(energy, speed(v, scene.map_grid))

    def of(self, metric: Metric, scene: Scene) -> Problem:
        """The energy as a function of the momenta alone."""
        return Problem(lambda m, steps: self.at(m, metric, scene, steps=steps), self.flow)


class Point(NamedTuple):
    """What there is to know of momenta."""

    energy: Energy
    speed: Tensor
    """Grid cells that their flow crosses in unit time, at most."""


@dataclass(frozen=True)
class Problem:
    """An energy to be minimised over momenta."""

    at: Callable[[Tensor, int | None], Point]
    """Momenta and number of time steps (None: as many as the flow needs) to a point."""
    flow: FlowSettings
