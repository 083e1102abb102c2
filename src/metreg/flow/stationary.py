"""The map of a stationary velocity: phi_inv_t + D phi_inv v = 0 from the identity, t in [0, 1], in two integrators."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from metreg.checks import MetregError
from metreg.flow.steps import ORDER, Transport
from metreg.grid import Grid
from metreg.interpolate import sample

Integrator = Literal["rk4", "squaring"]
RK4_REACH = 0.75 * 2 * math.sqrt(2)
"""RK4 with central differences is stable up to sum_d |v_d| dt / h_d = 2 sqrt 2; a quarter of it is kept as margin."""

MOST_STEPS = 1000
"""More would be needed only by a velocity that crosses some two thousand voxels: that is no registration."""


def flow(v: Tensor, grid: Grid, *, integrator: Integrator = "rk4", steps: int = 10) -> Tensor:
    """phi_inv (B, D, *S) of velocity v (B, D, *S), at time 1. The forward map phi is flow(-v).

    `steps` is the least number of RK4 steps, or of squarings; more are taken where stability or accuracy ask for them.
    """
    if integrator == "squaring":
        return exponentiate(v, grid, max(steps, needed_squarings(v, grid)))
    return transport(grid.points(v).expand_as(v), v, grid, max(steps, needed_steps(v, grid)))


def transport(f: Tensor, v: Tensor, grid: Grid, steps: int, scheme: str = "rk4") -> Tensor:
    """f carried along v from time 0 to 1 in a fixed number of steps.  f (B, C, *S)."""
    moved: Tensor = Transport.apply(f.contiguous(), v, grid, steps, ORDER[scheme])  # type: ignore[no-untyped-call]
    return moved


def exponentiate(v: Tensor, grid: Grid, squarings: int) -> Tensor:
    """Scaling and squaring: phi_inv = exp(-v) as 2^squarings compositions of one small midpoint step. Order 2 in time."""
    x = grid.points(v)
    dt = 2.0**-squarings
    u = -dt * sample(v, x - dt / 2 * v, grid)
    for _ in range(squarings):
        u = u + sample(u, x + u, grid)
    return x + u


def speed(v: Tensor, grid: Grid) -> float:
    """The largest sum_d |v_d| / h_d: grid cells crossed in unit time."""
    return float((v.detach().abs() / grid.steps(v)).sum(1).max())


def needed_steps(v: Tensor, grid: Grid) -> int:
    """The least number of RK4 steps that stays inside the stability limit."""
    return _ceil(speed(v, grid) / RK4_REACH)


def needed_squarings(v: Tensor, grid: Grid) -> int:
    """The least number of squarings whose first displacement stays below half a voxel."""
    return _ceil(math.log2(max(2 * speed(v, grid), 1)))


def _ceil(x: float) -> int:
    if not x < MOST_STEPS:  # so also where x is not a number
        raise MetregError("the velocity is huge or not finite: the optimisation diverged; lower solve.learning_rate")
    return max(1, math.ceil(x))
