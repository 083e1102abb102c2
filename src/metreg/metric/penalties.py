"""What weights may cost. Each penalty gives one value for each pair, (B,)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metreg.core.fields import forward_differences, gradient
from metreg.core.grid import Grid

Gradient = Callable[[Tensor, Grid], Tensor]
"""Of f (B, C, *S), by some differences: (B, C, D, *S)."""
DIFFERENCES: dict[str, Gradient] = {"forward": forward_differences, "central": gradient}


def transport(w: Tensor, sigma: Tensor, grid: Grid, *, power: float = 1.0, share: Tensor | None = None) -> Tensor:
    """Mass transport to the largest Gaussian: integral of sum_i w_i |log(sigma_N / sigma_i)|^r, at most 1 a point.

    `share` (B, 1, *S) says how much of that price is asked for at a point; none: all of it everywhere.
    """
    if len(sigma) == 1:
        return w.new_zeros(w.shape[0])
    cost = (sigma[-1] / sigma).log().abs() ** power
    cost = (cost / cost[0]).to(w)
    price = torch.einsum("bn...,n->b...", w, cost)
    if share is not None:
        price = share[:, 0] * price
    return price.flatten(1).sum(1) * grid.cell_volume


def edge_weight(source: Tensor, grid: Grid, *, edge: float = 2.0, slope_of: Gradient = forward_differences) -> Tensor:
    """gamma(|grad I|) = 1 / (1 + alpha |grad I|), alpha = edge min(h): small at edges.  (B, 1, *S) -> the same."""
    slope = safe_norm(slope_of(source, grid), dim=2)
    return 1 / (1 + edge * min(grid.spacing) * slope)


def colour_variation(omega: Tensor, gamma: Tensor, grid: Grid, slope_of: Gradient = forward_differences) -> Tensor:
    """Edge-weighted colour total variation: sqrt(sum_i (integral of gamma |grad omega_i|)^2)."""
    slope = safe_norm(slope_of(omega, grid), dim=2)
    per_weight = (gamma * slope).flatten(2).sum(2) * grid.cell_volume
    return safe_norm(per_weight, dim=1)


def square_variation(omega: Tensor, gamma: Tensor, grid: Grid, slope_of: Gradient = forward_differences) -> Tensor:
    """The H1 alternative: the integral of gamma sum_i |grad omega_i|^2."""
    square = (slope_of(omega, grid) ** 2).sum((1, 2))
    return (gamma[:, 0] * square).flatten(1).sum(1) * grid.cell_volume


def out_of_range(excess: Tensor, grid: Grid) -> Tensor:
    """The integral of sum_i (a_i - clamp(a_i))^2: it leads back the weights that the clamps hold."""
    return (excess**2).flatten(1).sum(1) * grid.cell_volume


def safe_norm(f: Tensor, dim: int) -> Tensor:
    """The Euclidean norm, with gradient 0 where it is 0: a plain square root gives NaN there."""
    square = (f**2).sum(dim)
    zero = square == 0
    return torch.where(zero, torch.zeros_like(square), torch.where(zero, torch.ones_like(square), square).sqrt())
