"""What a registration gives: plain data, in reference lengths, on the grid of the map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from metreg.core.grid import Grid
from metreg.metric.multi_gaussian import MultiGaussian


@dataclass(frozen=True)
class Record:
    """The energy of one iteration, by term, already weighted."""

    level: int
    iteration: int
    terms: dict[str, float]
    levels: int
    """How many there are."""
    iterations: int
    """How many there are at this level, at most."""


class Repair(NamedTuple):
    """How the maps of a batch folded before any repair, and which were repaired, each (B,)."""

    repaired: Tensor
    """Whether the momentum was changed at places, where the map folded or nearly did."""
    folds: Tensor
    """Voxels that folded before, by the strict test."""
    smallest: Tensor
    """A lower bound of the determinant before."""


@dataclass(frozen=True)
class Registration:
    """Pairs, registered. Maps are absolute positions (B, D, *S) on `grid`."""

    m: Tensor
    metric: MultiGaussian
    phi_inv: Tensor
    """Target point to source point."""
    phi: Tensor
    """Its inverse."""
    grid: Grid
    history: list[Record]
    energy: dict[str, float]
    """The terms at the end, at the finest level."""
    repair: Repair
