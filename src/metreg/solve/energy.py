"""The objective on one page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.deformation.maps import folding
from metreg.deformation.stationary import FASTEST, flow
from metreg.metric.base import Penalties
from metreg.metric.gaussian import InvertibleKernel
from metreg.metric.multi_gaussian import MultiGaussian, default_weights
from metreg.settings.model import FlowSettings, SolveSettings
from metreg.similarity import Similarity

LEAST_DETERMINANT = 0.2
"""Smaller determinants have a price."""


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
    both_ways: bool = False
    """Whether I1 o phi is compared with I0 too."""


@dataclass(frozen=True)
class Objective:
    """E = Sim(I0 o phi_inv, I1) + lambda <m, v> + what weights and folds cost,  v = K m,  phi_inv the flow of v.

    Both ways, Sim is the mean of that and Sim(I1 o phi, I0), phi the flow of -v.
    """

    similarity: Similarity
    flow: FlowSettings
    solve: SolveSettings

    @cached_property
    def backwards(self) -> Similarity:
        """For the way back: a similarity remembers what it compares with."""
        return Similarity(self.similarity.settings)

    def __call__(self, m: Tensor, metric: MultiGaussian, scene: Scene, penalties: Penalties | None = None) -> Energy:
        """The energy of momenta m (B, D, *S), by term."""
        return self.at(m, metric, scene, penalties).energy

    def at(
        self, m: Tensor, metric: MultiGaussian, scene: Scene, penalties: Penalties | None = None, steps: int | None = None
    ) -> Point:
        """The energy and the speed of the flow; `steps` fixes the number of time steps, whatever the speed.

        `penalties` are what the weights cost; without them, what the metric says of it.
        """
        metric = metric.at(m)
        v, norm, speeds = metric.motion(m)
        similarity, folds = self.carried(v, scene, steps)
        free = nothing(scene.map_grid, m)
        costs = penalties or metric.penalties or Penalties(free, free, free)
        return Point(Energy(similarity, self.solve.regularity * norm, *costs, folds), speeds)

    def carried(self, v: Tensor, scene: Scene, steps: int | None = None) -> tuple[Tensor, Tensor]:
        """What the flow of v (B, D, *S) makes of the pairs: their dissimilarity, and what folds cost."""
        grid = scene.map_grid
        flow_of = partial(
            flow, grid=grid, integrator=self.flow.integrator, steps=steps or self.flow.steps, adapt=steps is None
        )
        phi_inv = flow_of(v)
        similarity = self.similarity.of_map(scene.source, phi_inv, scene.target, scene.grid, scene.mask)
        if scene.both_ways:
            back = self.backwards.of_map(scene.target, flow_of(-v), scene.source, scene.grid, scene.mask)
            similarity = (similarity + back) / 2
        if not self.solve.folding:
            return similarity, nothing(grid, v)
        return similarity, self.solve.folding * folding(phi_inv, grid, LEAST_DETERMINANT)

    def of(self, metric: MultiGaussian, scene: Scene) -> Problem:
        """The energy as a function of the momenta alone."""
        return Problem(self, metric, scene)


class Point(NamedTuple):
    """What there is to know of momenta."""

    energy: Energy
    speed: Tensor
    """Grid cells that the flow of each pair crosses in unit time, at most, (B,)."""


class Slope(NamedTuple):
    """What there is to know of momenta by one who wants to go down. Fields are (B, D, *S)."""

    energy: Energy
    speed: Tensor
    v: Tensor
    """K m, with K the kernel of the inner product <a, b> = a . K b in which the search goes down: the velocity, where that
    is the metric's own.
    """
    ascent: Tensor
    """The gradient in that inner product."""
    gradient: Tensor
    """The gradient by the momenta, K ascent."""


def nothing(grid: Grid, like: Tensor) -> Tensor:
    """What costs nothing, for each pair (B,)."""
    return grid.constant(("nothing", len(like)), like, lambda: like.new_zeros(len(like)))


def too_far(m: Tensor, v: Tensor, speeds: Tensor) -> Slope:
    """Where a step led beyond all measure: nobody will stay there."""
    endless, flat = torch.full_like(speeds, math.inf), torch.zeros_like(m)
    return Slope(Energy(*[endless] * len(Energy._fields)), speeds, v, flat, flat)


@dataclass(frozen=True)
class Problem:
    """An energy to be minimised over momenta."""

    objective: Objective
    metric: MultiGaussian
    scene: Scene

    @property
    def flow(self) -> FlowSettings:
        return self.objective.flow

    @property
    def map_grid(self) -> Grid:
        return self.scene.map_grid

    def slope(self, m: Tensor, steps: int | None) -> Slope:
        """By hand where it is simple: d<m, K m> = 2 K m, and what depends on v alone has the gradient K dE/dv."""
        if self.metric.looks_at_momentum:
            return self._whole_slope(m, steps)
        grid, regularity = self.scene.map_grid, self.objective.solve.regularity
        with torch.no_grad():
            v, norm, speeds = self.metric.motion(m)
            if steps is None and not bool((speeds < FASTEST).all()):
                return too_far(m, v, speeds)
        with torch.enable_grad():
            v.requires_grad_()
            similarity, folds = self.objective.carried(v, self.scene, steps)
            (by_v,) = torch.autograd.grad((similarity + folds).sum(), v)
        with torch.no_grad():
            v = v.detach()
            free = nothing(grid, m)
            ascent = by_v.add_(m, alpha=2 * regularity * grid.cell_volume)
            terms = (similarity.detach(), regularity * norm, free, free, free, folds.detach())
            return Slope(Energy(*terms), speeds, v, ascent, self.metric.sharp(ascent))

    @cached_property
    def product(self) -> InvertibleKernel:
        """The kernel of the inner product of a search whose metric changes with the momentum.

        In the metric's own product the ascent a, K a = dE/dm, is known in closed form only where K stays as it is. This one
        is near to it in the mean, does not change, and is inverted exactly: so all products that L-BFGS remembers fit
        together, and every direction leads down.
        """
        gaussians = self.metric.gaussians
        return InvertibleKernel(gaussians.grid, gaussians.sigma, default_weights(gaussians.sigma))

    def _whole_slope(self, m: Tensor, steps: int | None) -> Slope:
        """By automatic differentiation: weights that look at the momentum, and what they cost, have a slope too."""
        with torch.enable_grad():
            m = m.detach().requires_grad_()
            metric = self.metric.at(m)
            v, norm, speeds = metric.motion(m)
            if steps is None and not bool((speeds < FASTEST).all()):
                return too_far(m.detach(), m.detach(), speeds)  # v and ascent are not looked at there
            similarity, folds = self.objective.carried(v, self.scene, steps)
            assert metric.penalties is not None, "weights that look at the momentum come with what they cost"
            energy = Energy(similarity, self.objective.solve.regularity * norm, *metric.penalties, folds)
            (gradient,) = torch.autograd.grad(energy.total().sum(), m)
        values = Energy(*[term.detach() for term in energy])
        return Slope(values, speeds, self.product.sharp(m.detach()), self.product.flat(gradient), gradient)
