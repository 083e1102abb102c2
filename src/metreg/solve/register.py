"""vSVF registration of one pair: the algorithm on one page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.core.resample import downsample, upsample
from metreg.deformation.maps import invert, smooth_out_folds
from metreg.deformation.stationary import flow
from metreg.errors import MetregError, check_field
from metreg.kernels.heavy import heavy_work
from metreg.metric.base import Weighting
from metreg.metric.gaussian import make_gaussians
from metreg.metric.multi_gaussian import MultiGaussian, border_window, default_weights
from metreg.metric.simplex import to_simplex
from metreg.settings.model import FlowSettings, MetricSettings, Settings
from metreg.similarity import Similarity
from metreg.solve.energy import Objective
from metreg.solve.loop import minimise
from metreg.solve.pyramid import Level, levels, map_grid_of
from metreg.solve.registration import Record, Registration
from metreg.solve.repair import look_for_folds, repair_folds

WeightsOf = Callable[..., Weighting]
"""`(m, grid=...)`: from a momentum and its grid to the weights (B, N, *S) there, and what they cost."""


@heavy_work()
def register_tensors(
    source: Tensor,
    target: Tensor,
    grid: Grid,
    settings: Settings,
    *,
    weights: Tensor | WeightsOf | None = None,
    mask: Tensor | None = None,
    start: Tensor | None = None,
    on_iteration: Callable[[Record], None] = lambda record: None,
) -> Registration:
    """Find the momentum m whose flow takes the source onto the target, for a batch of pairs.

    Args:
        source: Images (B, 1, *S) on `grid`, in [0, 1]: I0.
        target: Likewise: I1.
        grid: Where their points lie; lengths are in reference lengths.
        settings: All settings, of `make_settings`.
        weights: (B, N, *S), on any grid of the same box, or a function that finds them from the momentum: they make the
            metric local. None: the global one of the settings.
        mask: Weights (B, 1, *S) of the points at which the images are compared.
        start: The momentum (B, D, *S) with which the search begins.
        on_iteration: Hears of every iteration its level and its energies by term.

    Returns:
        Momentum, maps there and back, energies. Pairs of a batch do not see each other with the optimiser `sgd`; the others
        work on the sum of their energies.

    Raises:
        MetregError: A tensor has another shape than the grid, or the energy is not finite.

    Example:
        >>> import metreg, torch
        >>> grid = metreg.Grid.unit_cube((32, 32))
        >>> x = grid.points(torch.zeros(1))
        >>> blob = lambda middle: torch.exp(-30 * ((x - middle) ** 2).sum(1, keepdim=True))
        >>> found = metreg.register_tensors(blob(0.5), blob(0.55), grid, metreg.make_settings())
        >>> found.phi_inv.shape
        torch.Size([1, 2, 16, 16])
    """
    check_field("source", source, grid, channels=1)
    check_field("target", target, grid, channels=1)
    if mask is not None:
        check_field("mask", mask, grid, channels=1)
    history: list[Record] = []
    finest = map_grid_of(grid, settings.flow.map_factor, settings.solve.shrink[-1])
    m = start

    for level in levels(source, target, grid, settings, mask=mask):
        scene = level.scene
        similarity = Similarity(settings.similarity)
        objective = Objective(similarity, settings.flow, settings.solve)
        m = zero_momentum(scene.map_grid, source) if m is None else upsample(m, scene.map_grid)

        for local, iterations in _passes(level, weights):

            def record(i: int, terms: dict[str, float], level: Level = level, most: int = iterations) -> None:
                history.append(Record(level.number, i, terms, level.count, most))
                on_iteration(history[-1])

            metric = make_metric(scene.map_grid, settings.metric, like=source, weights=local, finest=finest)
            m = minimise(objective.of(metric, scene), m, settings.solve, iterations=iterations, on_iteration=record)

    assert m is not None
    metric = metric.at(m)
    if settings.solve.repair:
        m, repair = repair_folds(m, metric, scene.map_grid, settings.flow)
    else:
        repair = look_for_folds(m, metric, scene.map_grid, settings.flow)
    with torch.no_grad():
        final = {name: float(value.sum()) for name, value in objective(m, metric, scene)._asdict().items()}
        phi_inv, phi = maps_of(m, metric, scene.map_grid, settings.flow)
    return Registration(m, metric, phi_inv, phi, scene.map_grid, history, final, repair)


def _passes(level: Level, weights: Tensor | WeightsOf | None) -> list[tuple[Tensor | WeightsOf | None, int]]:
    """What is done at a level, weights and iterations: with a local metric, the global one may go first."""
    if weights is None or level.local_iterations is None:
        return [(weights, level.iterations)]
    return [(None, level.iterations), (weights, level.local_iterations)]


def zero_momentum(grid: Grid, like: Tensor) -> Tensor:
    """A momentum that moves nothing, (B, D, *S), for the batch, dtype and device of `like`."""
    return torch.zeros((len(like), grid.dim, *grid.shape), dtype=like.dtype, device=like.device)


@torch.no_grad()
def maps_of(m: Tensor, metric: MultiGaussian, grid: Grid, settings: FlowSettings) -> tuple[Tensor, Tensor]:
    """phi_inv, and phi: the reversed flow, corrected to be the inverse of the map that is written, and to fold nowhere."""
    v = metric.sharp(m)
    phi_inv = flow(v, grid, integrator=settings.integrator, steps=settings.steps)
    reverse = flow(-v, grid, integrator=settings.integrator, steps=settings.steps)
    return phi_inv, smooth_out_folds(invert(phi_inv, grid, start=reverse), grid)


def make_metric(
    grid: Grid,
    settings: MetricSettings,
    *,
    like: Tensor,
    weights: Tensor | WeightsOf | None = None,
    finest: Grid | None = None,
) -> MultiGaussian:
    """The metric on `grid`, in the dtype and on the device of `like`; `weights` (B, N, *S') may come on a finer grid.

    `finest` is the last grid of a pyramid of which this is one.
    """
    sigma = torch.tensor(settings.sigma, dtype=like.dtype, device=like.device)
    tau = border_window(grid, settings.window, like, finest) if settings.window else None
    gaussians = make_gaussians(grid, sigma, settings.realisation)
    if callable(weights):
        return MultiGaussian(gaussians, partial(weights, grid=grid), tau)
    if weights is not None:
        if weights.shape[1] != len(sigma):
            raise MetregError(f"weights: wanted {len(sigma)} of them, one for each metric.sigma, got {weights.shape[1]}")
        return MultiGaussian(gaussians, to_simplex(downsample(weights, grid)), tau)
    given = settings.weights
    w = default_weights(sigma) if given is None else torch.tensor(given, dtype=like.dtype, device=like.device)
    return MultiGaussian(gaussians, w, tau)
