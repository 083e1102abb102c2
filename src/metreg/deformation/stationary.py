"""The map of a stationary velocity: phi_inv_t + D phi_inv v = 0 from the identity, t in [0, 1], in two integrators."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from metreg.core.fields import speed
from metreg.core.grid import Grid
from metreg.core.resample import sample
from metreg.deformation.steps import ORDER, advection_steps
from metreg.errors import MetregError

Integrator = Literal["rk4", "squaring"]
RK4_REACH = 0.75 * 2 * math.sqrt(2)
"""RK4 with central differences is stable up to sum_d |v_d| dt / h_d = 2 sqrt 2; a quarter of it is kept as margin."""

FASTEST = 2000
"""Grid cells crossed in unit time beyond which it is no registration."""


def flow(v: Tensor, grid: Grid, *, integrator: Integrator = "rk4", steps: int = 10, adapt: bool = True) -> Tensor:
    """phi_inv (B, D, *S) of velocity v (B, D, *S), at time 1. The forward map phi is flow(-v).

    `steps` is the least number of RK4 steps, or of squarings; with `adapt`, more are taken where stability or accuracy ask
    for them. Without it the caller sees to it that `reach` is above the `speed`.
    """
    if adapt:
        steps = max(steps, needed_steps(float(speed(v, grid).max()), integrator))
    if integrator == "squaring":
        return exponentiate(v, grid, steps)
    identity = grid.constant("identity", v, lambda: grid.points(v))
    return advect_in_time(identity.expand_as(v), v, grid, steps)


def advect_in_time(f: Tensor, v: Tensor, grid: Grid, steps: int, scheme: str = "rk4") -> Tensor:
    """f carried along v from time 0 to 1 in a fixed number of steps.  f (B, C, *S)."""
    return advection_steps(f, v, grid, steps, ORDER[scheme])


def exponentiate(v: Tensor, grid: Grid, squarings: int) -> Tensor:
    """Scaling and squaring: phi_inv = exp(-v) as 2^squarings compositions of one small midpoint step. Order 2 in time."""
    x = grid.points(v)
    dt = 2.0**-squarings
    u = -dt * sample(v, x - dt / 2 * v, grid)
    for _ in range(squarings):
        u = u + sample(u, x + u, grid)
    return x + u


def reach(steps: int, integrator: Integrator) -> float:
    """The largest speed for which so many steps are enough: stable RK4 steps, or a first displacement of half a voxel."""
    return steps * RK4_REACH if integrator == "rk4" else 2.0 ** (steps - 1)


def needed_steps(fastest: float, integrator: Integrator) -> int:
    """The least number of steps whose reach is `fastest`."""
    if not fastest < FASTEST:  # so also where it is not a number
        raise MetregError("the velocity is huge or not finite: lower solve.learning_rate (sgd), or raise solve.regularity")
    if integrator == "squaring":
        return max(1, math.ceil(math.log2(max(2 * fastest, 1))))
    return max(1, math.ceil(fastest / RK4_REACH))
