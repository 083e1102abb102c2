"""The pyramid: the same pair at several resolutions, and the momentum carried from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from metreg.core.grid import Grid
from metreg.core.resample import downsample
from metreg.settings.model import Settings, SolveSettings
from metreg.solve.energy import Scene

SMALLEST = 16
"""No axis of an image is made smaller than this by the pyramid, no axis of a map smaller than half of it."""


@dataclass(frozen=True)
class Level:
    """One resolution of the pyramid."""

    number: int
    count: int
    """Of all levels."""
    scene: Scene
    iterations: int
    local_iterations: int | None


COARSEST = 0.03
"""Voxels of the first of several levels have at least this size, in reference lengths: fine images get more levels."""


class LevelSettings(NamedTuple):
    """What the settings say of a level."""

    shrink: float
    iterations: int
    local_iterations: int | None


def map_grid_of(grid: Grid, factor: float, shrink: float = 1) -> Grid:
    """The grid of map, momentum and weights for images on `grid`, shrunk to a level of the pyramid."""
    image, both = grid.shares(1 / shrink), grid.shares(factor / shrink)
    shares = [b / a for a, b in zip(image, both, strict=True)]
    return shrunk(grid, shrink).coarsen(shares, at_least=SMALLEST // 2)


def shrunk(grid: Grid, shrink: float) -> Grid:
    """The grid of a level of the pyramid."""
    return grid if shrink == 1 else grid.coarsen(grid.shares(1 / shrink), at_least=SMALLEST)


def plan_levels(solve: SolveSettings, grid: Grid) -> list[LevelSettings]:
    """The levels of the settings, and before them those that fine images need besides; one level stays one.

    None is added that would be no smaller than the next.
    """
    local = solve.local_iterations or [None] * len(solve.shrink)
    plans = [LevelSettings(*level) for level in zip(solve.shrink, solve.iterations, local, strict=True)]
    while len(plans) > 1 and plans[0].shrink * min(grid.spacing) < 0.999 * COARSEST:  # headers have few digits
        coarser = plans[0]._replace(shrink=2 * plans[0].shrink)
        if shrunk(grid, coarser.shrink).shape == shrunk(grid, plans[0].shrink).shape:
            break
        plans.insert(0, coarser)
    return plans


def levels(
    source: Tensor,
    target: Tensor,
    grid: Grid,
    settings: Settings,
    *,
    mask: Tensor | None = None,
) -> Iterator[Level]:
    """The pair from coarse to fine. Images are smoothed before they are down-sampled, the mask too."""
    plans = plan_levels(settings.solve, grid)
    for number, (shrink, iterations, local_iterations) in enumerate(plans):
        coarse = shrunk(grid, shrink)
        scene = Scene(
            source=downsample(source, coarse),
            target=downsample(target, coarse),
            grid=coarse,
            map_grid=map_grid_of(grid, settings.flow.map_factor, shrink),
            mask=None if mask is None else downsample(mask, coarse),
            both_ways=number < len(plans) - 1,
        )
        yield Level(number, len(plans), scene, iterations, local_iterations)
