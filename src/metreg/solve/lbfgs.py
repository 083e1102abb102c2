"""L-BFGS in the metric's own inner product, <a, b> = a . K b: every pair for itself, one evaluation an iteration.

In that product the gradient of the energy is the momentum-like field `ascent`, not its smoothed image K ascent: what is
narrow is not held back. Nothing is read back, so that an iteration can be recorded on a GPU.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from metreg.core.fields import speed
from metreg.core.grid import Grid
from metreg.deformation.stationary import FASTEST, reach
from metreg.solve.energy import Energy, Slope
from metreg.solve.timesteps import TimeSteps

MEMORY = 5
"""Steps that are remembered. Twice as many do not lead down faster, and have to be read in every iteration."""
CHUNKS = {"cpu": 64, "cuda": 1024}
"""Parts in which long sums are done, matrix products that all cores have a share in."""
DECREASE = 1e-4
"""The share of the decrease that the slope promises which a step must keep."""
FIRST_MOVE = 0.5
"""Grid cells that the first step's velocity crosses at most, as nothing is known yet of the curvature."""
PATIENCE = 5
"""Steps refused in a row after which the memory is given up."""


class Descent(Protocol):
    """An energy of momenta that says where it falls."""

    @property
    def map_grid(self) -> Grid: ...

    def slope(self, m: Tensor, steps: int | None) -> Slope: ...


class Lbfgs:
    """The search from momenta m (B, D, *S). `m`, and its energy `terms` (terms, B), are the best found so far."""

    def __init__(self, problem: Descent, m: Tensor, steps: TimeSteps) -> None:
        self.problem, self.steps = problem, steps
        self.m, self.trial = m.clone(), m.clone()
        self.v, self.ascent, self.gradient = (torch.zeros_like(m) for _ in range(3))
        self.terms = m.new_full((len(Energy._fields), len(m)), math.inf)
        number: dict[str, Any] = {"dtype": torch.float64, "device": m.device}
        self.energy, self.slope, self.length = (torch.zeros(len(m), **number) for _ in range(3))
        self.energy.fill_(math.inf)
        self.refused, self.count = (torch.zeros(len(m), dtype=torch.long, device=m.device) for _ in range(2))
        self.beyond = torch.zeros(len(m), dtype=torch.bool, device=m.device)
        """Pairs of which a trial point had a velocity beyond all measure, and was refused."""
        self.pairs = torch.arange(len(m), device=m.device)
        self.chunks = CHUNKS[m.device.type]
        size = m[0].numel()
        points = math.ceil(size / self.chunks) * self.chunks
        slots = MEMORY + 1  # the last one is for steps that are not to be remembered
        self.memory = m.new_zeros(len(m), 2, slots, points)  # steps s, and by how much they changed the ascent, y
        self.newest = m.new_zeros(len(m), 2, points)  # s and y of the newest step
        self.fresh = m.new_zeros(len(m), 3, points)  # K s, K y of the newest step, and the gradient
        self.new, self.dual = (f[..., :size].unflatten(2, m.shape[1:]).unbind(1) for f in (self.newest, self.fresh))
        self.sy, self.yy = (torch.zeros(len(m), slots, slots, **number) for _ in range(2))

    @torch.no_grad()
    def begin_at(self, m: Tensor) -> None:
        """Begin anew at other momenta."""
        self.m.copy_(m)
        self.trial.copy_(m)
        self.terms.fill_(math.inf)
        self.energy.fill_(math.inf)
        for number in (self.slope, self.length, self.refused, self.count):
            number.zero_()

    @torch.no_grad()
    def iterate(self) -> None:
        """Evaluate the trial point, take it or leave it, and choose the next one."""
        found = self.problem.slope(self.trial, self.steps.count)
        possible = found.speed < FASTEST  # false where it is not a number
        self.beyond.logical_or_(~possible)
        self.steps.see(torch.where(possible, found.speed, 0.0))
        terms = torch.stack(tuple(found.energy))
        energy = terms.sum(0, dtype=torch.float64)
        good = possible & (energy <= self.energy + DECREASE * self.length * self.slope)
        if self.steps.count is not None:
            good &= found.speed <= reach(self.steps.count, self.steps.integrator)
        shorter = self._shorter(energy)
        self._remember(good, found.v, found.ascent, found.gradient)
        self.terms.copy_(torch.where(good, terms, self.terms))
        self.energy.copy_(torch.where(good, energy, self.energy))
        for mine, new in zip(
            (self.m, self.v, self.ascent, self.gradient),
            (self.trial, found.v, found.ascent, found.gradient),
            strict=True,
        ):
            torch.where(self._each(good), new, mine, out=mine)
        self.refused.copy_(torch.where(good, 0, self.refused + 1))
        self.count.mul_(self.refused < PATIENCE)
        self.length.copy_(torch.where(good | (self.refused == PATIENCE), math.inf, shorter))
        self._look_ahead()

    def _shorter(self, energy: Tensor) -> Tensor:
        """After a refused step: where the parabola through both energies and the slope is lowest, within bounds."""
        lowest = -self.slope * self.length**2 / (2 * (energy - self.energy - self.slope * self.length))
        lowest = torch.where(lowest.isfinite(), lowest, 0.0)
        return torch.maximum(torch.minimum(lowest, 0.5 * self.length), 0.1 * self.length)

    def _remember(self, good: Tensor, v: Tensor, ascent: Tensor, gradient: Tensor) -> None:
        """The step that was taken, and its products with all steps before it."""
        (step, change), (k_step, k_change, now) = self.new, self.dual
        torch.sub(self.trial, self.m, out=step)
        torch.sub(ascent, self.ascent, out=change)
        torch.sub(v, self.v, out=k_step)
        torch.sub(gradient, self.gradient, out=k_change)
        torch.where(self._each(good), gradient, self.gradient, out=now)
        curvature = (step * k_change).flatten(1).sum(1, dtype=torch.float64)
        keep = good & self.energy.isfinite() & (curvature > 0)
        slot = torch.where(keep, self.count % MEMORY, MEMORY)
        for f in (step, change, k_step, k_change):
            f.masked_fill_(self._each(~keep), 0)
        self.memory[self.pairs, :, slot] = self.newest
        self.products = self._products()
        by_s, by_y = self.products[:, 0], self.products[:, 1]  # (B, slots, 3)
        self.sy[self.pairs, :, slot] = by_s[..., 1]
        self.sy[self.pairs, slot] = by_y[..., 0]
        self.yy[self.pairs, :, slot] = by_y[..., 1]
        self.yy[self.pairs, slot] = by_y[..., 1]
        self.count.add_(keep)

    def _products(self) -> Tensor:
        """Of all that is remembered with all that is fresh, (B, 2, slots, 3)."""
        batch, kinds, slots, points = self.memory.shape
        left = self.memory.view(batch, kinds * slots, self.chunks, points // self.chunks).transpose(1, 2)
        right = self.fresh.view(batch, 3, self.chunks, points // self.chunks).permute(0, 2, 3, 1)
        return (left @ right).double().sum(1).view(batch, kinds, slots, 3)

    def _look_ahead(self) -> None:
        """The direction -H ascent by the compact form of Byrd, Nocedal and Schnabel; the trial point on it."""
        scale, by_s, by_y = self._coefficients()
        none = self.count == 0
        size = self.m[0].numel()
        coefficients = torch.stack([by_s, by_y], dim=1).flatten(1).to(self.m.dtype)
        remembered = (coefficients[:, None] @ self.memory.flatten(1, 2))[:, 0, :size].view_as(self.m)
        direction = torch.addcmul(remembered, self._each(scale).to(self.m.dtype), self.ascent).neg_()
        self.slope.copy_((direction * self.gradient).flatten(1).sum(1, dtype=torch.float64))
        first = FIRST_MOVE / speed(self.gradient, self.problem.map_grid).double().clamp(min=1e-30)
        self.length.copy_(torch.where(self.length.isfinite(), self.length, torch.where(none, first, 1.0)))
        torch.addcmul(self.m, self._each(self.length).to(self.m.dtype), direction, out=self.trial)

    def _coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        """H = scale + what the remembered steps s and changes y (B, slots) add."""
        age = torch.arange(MEMORY, device=self.m.device)
        slot = (self.count[:, None] + age) % MEMORY  # from the oldest to the newest
        known = age >= MEMORY - self.count[:, None]
        both = known[:, :, None] & known[:, None]
        rows, columns = slot[:, :, None].expand(-1, -1, MEMORY), slot[:, None].expand(-1, MEMORY, -1)
        pairs = self.pairs[:, None, None]
        sy = torch.where(both, self.sy[pairs, rows, columns], 0)
        yy = torch.where(both, self.yy[pairs, rows, columns], 0)
        s_gradient, y_gradient = (torch.where(known, self.products[:, kind, :, 2].gather(1, slot), 0) for kind in range(2))
        newest = self.count > 0
        scale = torch.where(newest, sy[:, -1, -1] / yy[:, -1, -1].clamp(min=1e-300), 1.0)
        upper = sy.triu() + torch.diag_embed((~known).double())
        p = torch.linalg.solve_triangular(upper, s_gradient[..., None], upper=True)
        middle = sy.diagonal(dim1=1, dim2=2)[..., None] * p + scale[:, None, None] * (yy @ p - y_gradient[..., None])
        u = torch.linalg.solve_triangular(upper.mT, middle, upper=False)
        by_s, by_y = (torch.zeros_like(self.sy[:, 0]) for _ in range(2))
        by_s.scatter_(1, slot, torch.where(known, u[..., 0], 0))
        by_y.scatter_(1, slot, torch.where(known, -scale[:, None] * p[..., 0], 0))
        return scale, by_s, by_y

    def _each(self, values: Tensor) -> Tensor:
        """One value for each pair, beside fields."""
        return values.view(-1, *[1] * (self.m.dim() - 1))
