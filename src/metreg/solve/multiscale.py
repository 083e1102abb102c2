"""The pyramid: the same pair at several resolutions, and the momentum carried from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from metreg.config import Settings
from metreg.energy import Scene
from metreg.grid import Grid
from metreg.interpolate import downsample

SMALLEST = 16
"""No axis of an image is made smaller than this by the pyramid, no axis of a map smaller than half of it."""


@dataclass(frozen=True)
class Level:
    """One resolution of the pyramid."""

    number: int
    scene: Scene
    iterations: int
    local_iterations: int | None


def map_grid_of(grid: Grid, factor: float) -> Grid:
    """The grid of map, momentum and weights for images on `grid`."""
    return grid.coarsen(factor, at_least=SMALLEST // 2)


def levels(
    source: Tensor,
    target: Tensor,
    grid: Grid,
    settings: Settings,
    *,
    mask: Tensor | None = None,
) -> Iterator[Level]:
    """The pair from coarse to fine. Images are smoothed before they are down-sampled, the mask too."""
    solve = settings.solve
    for number, shrink in enumerate(solve.shrink):
        coarse = grid if shrink == 1 else grid.coarsen(1 / shrink, at_least=SMALLEST)
        scene = Scene(
            source=downsample(source, coarse),
            target=downsample(target, coarse),
            grid=coarse,
            map_grid=map_grid_of(coarse, settings.flow.map_factor),
            mask=None if mask is None else downsample(mask, coarse),
        )
        local = None if solve.local_iterations is None else solve.local_iterations[number]
        yield Level(number, scene, solve.iterations[number], local)
