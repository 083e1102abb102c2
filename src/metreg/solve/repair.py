"""Repair of folds: where a map is not certified to be invertible, the momentum is changed as little as makes it so."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.deformation.maps import bernstein_coefficients, bernstein_minimum, count_folds
from metreg.deformation.stationary import FASTEST, flow
from metreg.metric.multi_gaussian import MultiGaussian
from metreg.settings.model import FlowSettings
from metreg.solve.energy import Energy, Slope, too_far
from metreg.solve.lbfgs import Lbfgs
from metreg.solve.registration import Repair
from metreg.solve.timesteps import TimeSteps

MARGIN = 1e-3
"""The determinant that a map must have everywhere: enough for single precision to keep it positive in a file."""
GOAL = 0.05
"""The determinant that is aimed at where it is below the margin: what overshoots arrives."""
ROUNDS = 40
"""Steps towards it, before all of a momentum is lowered."""
LOWER = 0.9
"""What is left of a momentum then, each time."""


class Repaired(NamedTuple):
    """Momenta (B, D, *S) whose maps fold nowhere, and what was found before."""

    m: Tensor
    repair: Repair


@torch.no_grad()
def look_for_folds(m: Tensor, metric: MultiGaussian, grid: Grid, settings: FlowSettings) -> Repair:
    """How the maps of momenta fold. Nothing is repaired."""
    phi_inv = flow(metric.sharp(m), grid, integrator=settings.integrator, steps=settings.steps)
    smallest = bernstein_minimum(phi_inv, grid).flatten(1).amin(1)
    folds = torch.zeros(len(m), dtype=torch.long, device=m.device)
    if bool((smallest <= 0).any()):
        folds = count_folds(phi_inv, grid)
    return Repair(torch.zeros_like(folds, dtype=torch.bool), folds, smallest)


@torch.no_grad()
def repair_folds(m: Tensor, metric: MultiGaussian, grid: Grid, settings: FlowSettings) -> Repaired:
    """The momenta, changed where the map's determinant may fall below the margin.

    They go down the slope of (GOAL - determinant)+^2 in the metric's own product: the least change of velocity that helps.
    Pairs at which nothing is wrong are left as they are. A momentum of zero makes the identity: it must end. Weights that
    look at the momentum stay those of the momenta given: what is written has weights of its own.
    """
    metric = metric.at(m)
    before = look_for_folds(m, metric, grid, settings)
    changed = before.smallest < MARGIN
    if not bool(changed.any()):
        return Repaired(m, before)
    found = m
    steps = TimeSteps(settings, m)
    steps.count = None  # every flow finds its own
    search = Lbfgs(_Folding(metric, grid, settings), m, steps)
    still = changed
    for _ in range(ROUNDS):
        search.iterate()
        found = torch.where(_each(changed, m), search.m, m)
        still = _is_below_margin(found, metric, grid, settings)
        if not bool(still.any()):
            break
        changed = changed | still  # the pairs of a batch share their time steps
    while bool(still.any()):
        found = torch.where(_each(still, m), LOWER * found, found)
        still = _is_below_margin(found, metric, grid, settings)
        changed = changed | still
    return Repaired(found, before._replace(repaired=changed))


def _is_below_margin(m: Tensor, metric: MultiGaussian, grid: Grid, settings: FlowSettings) -> Tensor:
    """Whose determinant may fall below the margin, (B,)."""
    phi_inv = flow(metric.sharp(m), grid, integrator=settings.integrator, steps=settings.steps)
    return (bernstein_minimum(phi_inv, grid) < MARGIN).flatten(1).any(1)


def _each(pairs: Tensor, m: Tensor) -> Tensor:
    return pairs.view(-1, *[1] * (m.dim() - 1))


@dataclass(frozen=True)
class _Folding:
    """The price of Bernstein coefficients of the determinant below the goal, as an energy of momenta."""

    metric: MultiGaussian
    map_grid: Grid
    settings: FlowSettings

    def slope(self, m: Tensor, steps: int | None) -> Slope:
        with torch.no_grad():
            v, _, speeds = self.metric.motion(m)
            if not bool((speeds < FASTEST).all()):
                return too_far(m, v, speeds)
        with torch.enable_grad():
            v.requires_grad_()
            phi_inv = flow(v, self.map_grid, integrator=self.settings.integrator, steps=self.settings.steps)
            price = self._price(phi_inv)
            (by_v,) = torch.autograd.grad(price.sum(), v)
        v, free = v.detach(), torch.zeros_like(price.detach())
        energy = Energy(free, free, free, free, free, price.detach())
        return Slope(energy, speeds, v, by_v, self.metric.sharp(by_v))

    def _price(self, phi_inv: Tensor) -> Tensor:
        """Of each pair, (B,). Only the cells that cost anything are looked at closely."""
        with torch.no_grad():
            where: tuple[Tensor, ...] = (bernstein_minimum(phi_inv, self.map_grid) < GOAL).nonzero(as_tuple=True)
        dim, pair, cell = self.map_grid.dim, where[0], where[1:]
        ends = []
        for corner in product((0, 1), repeat=dim):
            i: list[Tensor] = [first + c for first, c in zip(cell, corner, strict=True)]
            ends.append(phi_inv.movedim(1, -1)[(pair, *i)])
        cells = torch.stack(ends, dim=2).view(-1, dim, *[2] * dim)  # each a map of two points along every axis
        lack = (GOAL - bernstein_coefficients(cells, self.map_grid)).clamp(min=0)
        price = lack.square().flatten(2).sum((0, 2))
        return torch.stack([price[pair == b].sum() + 0 * phi_inv[b].sum() for b in range(len(phi_inv))])
